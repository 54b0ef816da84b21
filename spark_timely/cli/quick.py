"""Quick answers of the verb ``frontier``: from the newest commit of a log, without opening it.

Scripts ask for frontiers often. What cannot be answered from the newest commit alone, as with ``--stream`` or storage
options, goes to `spark_timely.cli.log_verbs.frontier`, which opens the log.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final, Literal

from spark_timely.cli.output import Console
from spark_timely.cli.verb_table import Run
from spark_timely.log.store.newest import newest_frontier
from spark_timely.time.text import bare_number, day_text, moment_text, parse_day, parse_moment

# Numbers from 0 to these are times of the types; what else is one, or why it is none, the log's own types say.
_SURELY_TIMES: Final = {
    "short": 2**15 - 1,
    "int": 2**31 - 1,
    "long": 2**62,
    "date": 2_900_000,
    "timestamp": 2_900_000 * 86_400_000_000,
}


def _frontier(options: argparse.Namespace, console: Console) -> bool:
    answer = None
    if not (options.stream or options.at or options.storage or options.single_writer):
        answer = _at_once(options, console)
    if answer is None:
        from spark_timely.cli.log_verbs import frontier

        answer = frontier(options, console)
    return answer


def _at_once(options: argparse.Namespace, console: Console) -> bool | None:
    """Print the frontier, and return the answer; nothing, and None, where the log is to be opened for that."""
    found = newest_frontier(options.log)
    if found is None:
        return None
    type_, times = found
    answer = not times or not options.complete
    if options.passed is not None:
        asked = _number(type_, options.passed)
        if asked is None:
            return None
        answer = not times or asked < times[0]
    if console.json_mode:
        texts = [_text(type_, time, "seconds") for time in times]
        asked = options.passed is not None or options.complete
        console.answer({"frontier": texts, "complete": not times} | ({"answer": answer} if asked else {}))
    else:
        console.line("".join(str(_text(type_, time, "minutes")) for time in times) or "[] (complete)")
    return answer


def _text(type_: str, time: int, least: Literal["minutes", "seconds"]) -> str | int:
    if type_ == "date":
        return day_text(time)
    return moment_text(time, least=least) if type_ == "timestamp" else time


def _number(type_: str, text: str) -> int | None:
    if type_ == "date":
        number = parse_day(text)
    else:
        number = parse_moment(text) if type_ == "timestamp" else bare_number(text)
    return number if number is not None and 0 <= number <= _SURELY_TIMES[type_] else None


RUNS: Mapping[str, Run] = {"frontier": _frontier}
