"""The verb ``frontier``: answered at once where the log is plain, else by opening the log as other verbs do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Literal

from spark_timely.cli.output import Console
from spark_timely.cli.parser import Run
from spark_timely.log.store.newest import newest_frontier
from spark_timely.time.text import day_text, moment_text


def _frontier(options: argparse.Namespace, console: Console) -> bool:
    plain = not (options.stream or options.at or options.passed or options.storage or options.single_writer)
    found = newest_frontier(options.log) if plain else None
    if found is None:
        from spark_timely.cli.verbs import frontier

        return frontier(options, console)
    type_, times = found
    answer = not times or not options.complete
    if console.json_mode:
        told = [_text(type_, time, "seconds") for time in times]
        console.answer({"frontier": told, "complete": not times, "answer": answer})
    else:
        console.line("".join(str(_text(type_, time, "minutes")) for time in times) or "[] (complete)")
    return answer


def _text(type_: str, time: int, least: Literal["minutes", "seconds"]) -> str | int:
    if type_ == "date":
        return day_text(time)
    return moment_text(time, least=least) if type_ == "timestamp" else time


RUNS: Mapping[str, Run] = {"frontier": _frontier}
