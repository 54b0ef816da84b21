"""The verb ``wait``: a condition for jobs and scripts, with a time limit."""

from __future__ import annotations

import argparse
import os
import sys
import time as clock
from collections.abc import Callable

from spark_timely.cli.output import Console
from spark_timely.cli.verbs import Verb, asked_log, frontier_text, storage_options
from spark_timely.errors import InvalidOptionError, InvalidUsageError, shown
from spark_timely.log import Log
from spark_timely.log.cut import Cut, open_cut
from spark_timely.log.wait import passes, wait_for
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import Duration, parse_duration

__all__ = ["WAIT", "duration"]


def _arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--time", metavar="TIME", help="until this time is complete: the frontier has passed it")
    asked.add_argument(
        "--token",
        metavar="FRONTIER",
        help="until all times not beyond this frontier are complete: a JSON list of times; '[]' is the end of the log",
    )
    asked.add_argument(
        "--cut", metavar="FILE", help="until the logs of a cut have come so far; JSON as str(cut) gives it, - reads it"
    )
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=duration,
        default=Duration(60_000_000),
        help="such as 10m; 0 looks once (60s)",
    )
    parser.add_argument(
        "--poll", metavar="DURATION", type=duration, default=Duration(1_000_000), help="between two looks (1s)"
    )


def duration(text: str) -> Duration:
    """Read a duration of the command line."""
    try:
        return parse_duration(text)
    except ValueError as error:
        msg = f"found {shown(text)}: {error}"
        raise argparse.ArgumentTypeError(msg) from error


def _wait(
    options: argparse.Namespace,
    console: Console,
    *,
    now: Callable[[], float] = clock.monotonic,
    pause: Callable[[float], None] = clock.sleep,
) -> bool:
    logs, reached = _asked(options)
    begun = now()
    # A look costs about a millisecond: less than that is as good as none.
    poll_s = max(options.poll.seconds, 0.001)
    answer = wait_for(logs, reached, timeout_s=options.timeout.seconds, poll_s=poll_s, now=now, pause=pause)
    waited = now() - begun
    if console.json_mode:
        found = [
            {
                "log": log.path,
                "frontier": log.domain.frontier_to_json(log.frontier()),
                "complete": log.frontier().is_empty,
                "reached": reached(log.frontier()),
            }
            for log in logs
        ]
        console.answer({"reached": answer, "waited_seconds": round(waited, 3), "logs": found})
        return answer
    for log in logs:  # as many turns as logs
        before = f"{log.path}: " if len(logs) > 1 else ""
        after = "" if reached(log.frontier()) else f", not reached in {options.timeout.text}"
        console.line(f"{before}{frontier_text(log.domain, log.frontier())}{after}")
    return answer


def _asked(options: argparse.Namespace) -> tuple[list[Log], Callable[[Antichain], bool]]:
    if options.cut is None:
        if options.log is None:
            msg = "could not read the command line: found no LOG"
            raise InvalidUsageError(msg, hint="give the log to wait for, or --cut FILE")
        log = asked_log(options)
        return [log], passes(log.domain, time=options.time, frontier=options.token)
    if options.log is not None:
        msg = f"could not read the command line: found LOG {shown(options.log)} beside --cut"
        raise InvalidUsageError(msg, hint="leave LOG out: a cut names its logs")
    cut = Cut.from_json(_text(options.cut))
    return open_cut(cut, storage_options=storage_options(options)), cut.reached_by


_FILE_HINT = "give a file with what str(cut) gives, or - for standard input"


def _text(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        if os.path.exists(file) and not os.path.isfile(file):
            # A pipe without a writer would be waited for, whatever the timeout.
            msg = f"could not read the command line: found --cut {shown(file)}, which is no file"
            raise InvalidOptionError(msg, hint=_FILE_HINT)
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"could not read the command line: found --cut {shown(file)}, which cannot be read ({error})"
        raise InvalidOptionError(msg, hint=_FILE_HINT) from error


WAIT = Verb(
    "wait",
    "wait until a time is complete; for job conditions",
    "Wait until a log's frontier has passed a time or reached a token, or until the logs of a cut have come so far."
    " Exit code 0 if it has; 1 if not within the timeout. A complete log has passed every time.",
    _arguments,
    _wait,
    log_needed=False,
)
