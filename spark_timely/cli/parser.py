"""The table of the command line's verbs, and the argument parser that is built from it.

Invariants
----------
1. Nothing here loads numpy, pyarrow, deltalake or tqdm: help, completion and the errors of a command line come at once.
   What a verb does is in a module that is loaded when it runs.
2. A mistyped option is named without its value, which may be a secret.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, Protocol

import spark_timely
from spark_timely.cli.output import Console, unwritten
from spark_timely.errors import InvalidUsageError, shown
from spark_timely.time.text import Duration, parse_duration

_EPILOG = """\
exit codes:
  0    done; or: yes
  1    no: what was asked is false
  2    the command line is wrong
  3    the log could not be read or written, or the answer not be written
  4    refused: the log's state is against it
  130  interrupted

times are written as the log's type has them: 17, 2013-06-12, 2013-06-12T08:00Z; a date among timestamps is its \
midnight UTC; numbers for dates and timestamps only with their unit: days:15868, us:1371024000000000
a frontier is a time or a JSON list of times: '["2013-06-12T08:00Z"]', '[[1, 2], [2, 1]]', '[]' (complete)
durations have a unit: 30s, 10m, 12 hours
"""

_TYPES = (
    "types are written as in Rust: u64, (String, u64), {name: string, n: Option<u64>}, Vec<u8>, bytes,"
    " enum{A, B(u64)}, and beyond it date_days, timestamp_us, decimal(12, 2), map<string, u64>; times: u64,"
    " Product<u64, u64>, Duration, (), date_days, timestamp_us"
)


# --- what a verb takes --------------------------------------------------------------------------


def _log_argument(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    parser.add_argument("log", metavar="LOG", nargs=None if needed else "?", help="path or URL of the log")


_MOST_DIGITS: Final = 18  # of 64 bits


def whole_number(text: str, *, least: int = 0) -> int:
    """Read a number of the command line."""
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS or int(text) < least:
        wanted = f"a whole number{f' from {least}' if least else ''} of at most {_MOST_DIGITS} digits"
        msg = f"expected {wanted}, found {text!r:.40}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


_positive = partial(whole_number, least=1)


def duration(text: str) -> Duration:
    """Read a duration of the command line."""
    try:
        return parse_duration(text)
    except ValueError as error:
        msg = f"found {shown(text)}: {error}"
        raise argparse.ArgumentTypeError(msg) from error


def _size(text: str) -> int:
    from spark_timely.conf import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="path or URL of the folder (.)")
    parser.add_argument("--depth", metavar="N", type=whole_number, default=3, help="how many folders deep to look (3)")


def _rows_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("-n", "--rows", type=whole_number, default=10, metavar="N", help="how many rows (10)")
    parser.add_argument("--stream", metavar="NAME", help="only this stream")
    parser.add_argument("--columns", metavar="A,B", help="only these columns of the payload")


def _head_arguments(parser: argparse.ArgumentParser) -> None:
    _rows_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--events", action="store_true", help="progress rows too, where they stand between the messages")
    what.add_argument("--dead", action="store_true", help="dead letters instead of messages")


def _tail_arguments(parser: argparse.ArgumentParser) -> None:
    _rows_arguments(parser)
    parser.add_argument(
        "--events", action="store_true", help="progress rows too, each after the messages of its commit"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="print what comes, until the log is complete")
    parser.add_argument(
        "--poll",
        metavar="DURATION",
        type=duration,
        default=Duration(1_000_000),
        help="with --follow: between two looks (1s)",
    )


def _frontier_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("--stream", metavar="NAME", help="of this stream alone")
    parser.add_argument("--at", metavar="MOMENT", help="as it was then: 2013-06-12T08:00Z, wall clock of the commits")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--passed", metavar="TIME", help="ask whether this time is complete: exit code 0 yes, 1 no")
    asked.add_argument("--complete", action="store_true", help="ask whether nothing can follow: exit code 0 yes, 1 no")


OWN_SINCE: Final = "since"
"""Stands for the since of the log itself."""


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument(
        "--expect", metavar="HASH", help="the canonical hash that it should have; its beginning will do"
    )
    parser.add_argument(
        "--since",
        metavar="FRONTIER",
        nargs="?",
        const=OWN_SINCE,
        help="the hash relative to this frontier, or to the log's since: it stays when the log forgets",
    )


def _consent_arguments(parser: argparse.ArgumentParser, *, reason: str) -> None:
    parser.add_argument("--reason", metavar="TEXT", default=reason, help="kept with the progress")
    _changing_arguments(parser)


def _advance_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("frontier", metavar="FRONTIER", help="where to: a time, or a JSON list of times")
    parser.add_argument("--stream", metavar="NAME", default="main", help="which stream (main)")
    _consent_arguments(parser, reason="advanced by hand")


def _close_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("--stream", metavar="NAME", help="only this stream; if not given the whole log")
    _consent_arguments(parser, reason="closed by hand")


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("--target-file-size", metavar="SIZE", type=_size, help="such as 64mb (128mb)")


def _forget_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--to", metavar="FRONTIER", help="what is before need not be remembered")
    asked.add_argument(
        "--keep", metavar="LENGTH", help="how much of the log stays, behind its frontier: 30 days; a number of units"
    )
    parser.add_argument(
        "--always", action="store_true", help="with --keep: from now on too, by themselves as rows are captured"
    )
    parser.add_argument(
        "--purge", action="store_true", help="delete files that nobody needs, and say when the rest is gone from disk"
    )
    _changing_arguments(parser)


def _retain_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("consumer", metavar="CONSUMER", help="a name for who reads")
    parser.add_argument("frontier", metavar="FRONTIER", help="from where the log stays readable")
    parser.add_argument(
        "--owner", metavar="NAME", default="command line", help="the one that may move it (command line)"
    )
    parser.add_argument("--expiry", metavar="DURATION", default="7 days", help="how long it counts (7 days)")


def _release_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("consumer", metavar="CONSUMER", help="the name, as `retainers` shows it")
    _changing_arguments(parser)


def _vacuum_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument(
        "--older-than",
        metavar="DURATION",
        type=duration,
        help="how long ago files were replaced, at least (what the table says, a day for logs)",
    )
    parser.add_argument(
        "--unknown", action="store_true", help="also files a week old that no entry of the table's log names"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would go, and delete nothing")


def _changing_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask, as at a terminal")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen, and change nothing")


def _repair_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--yes", action="store_true", help="do it; else it is only said what would be done")
    asked.add_argument(
        "--accept",
        metavar="TOKEN",
        help="accept what another program changed, by the token of the error that refuses the log: messages are as they"
        " are, progress is put back",
    )


def _wait_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser, needed=False)
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


def _time_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--as-of", metavar="TIME", help="the time (the newest that is complete); it is waited for")
    parser.add_argument("--as-of-at-least", metavar="TIME", help="the first time that can be read, none before this")


def _timeout_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=duration,
        default=Duration(60_000_000),
        help="how long to wait until the time is complete; 0 looks once (60s)",
    )


def _forgotten_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--forgotten", action="store_true", help="of a stream that has forgotten messages, take those that are left"
    )


def _format_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv"],
        help="of the rows; json: one object per line, csv: with a header, null is empty (table)",
    )
    parser.add_argument("--explain", action="store_true", help="say on standard error how it was answered")


def _master_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", metavar="MASTER", default="local[*]", help="where Spark runs, if it is needed (local[*])"
    )


def _peek_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument(
        "--as-of", metavar="TIME", help="the time (the newest that is complete); one that is not complete is waited for"
    )
    parser.add_argument(
        "--key",
        metavar="COLUMN=VALUE",
        action="append",
        default=[],
        help="only rows of this key; may be repeated. Of a key of several columns once for each",
    )
    parser.add_argument(
        "--where", metavar="CONDITION", help='only rows for which it holds: "price > 10 AND k IN (1, 2)"'
    )
    parser.add_argument("--select", metavar="A,B", help="only these columns; rows that are equal in them become one")
    parser.add_argument("--order-by", metavar="ORDER", help='such as "price DESC NULLS LAST, id"')
    parser.add_argument("--limit", metavar="N", type=whole_number, help="how many copies of rows, at most")
    parser.add_argument("--offset", metavar="N", type=whole_number, default=0, help="how many to leave out first (0)")
    parser.add_argument("--max-bytes", metavar="SIZE", type=_size, help="an answer with more is an error, such as 10mb")
    parser.add_argument(
        "--scan-limit", metavar="SIZE", type=_size, help="how much to read of files, at most, such as 1gb (256mb)"
    )
    _forgotten_argument(parser)
    _timeout_argument(parser)
    _format_argument(parser)


def _subscribe_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("--as-of", metavar="TIME", help="where it begins, inclusive (the newest that is complete)")
    parser.add_argument("--as-of-at-least", metavar="TIME", help="the first time that can be read, none before this")
    parser.add_argument("--up-to", metavar="TIME", help="where it ends, exclusive")
    parser.add_argument("--no-snapshot", action="store_true", help="only what changes later, not what is there first")
    parser.add_argument(
        "--progress",
        action="store_true",
        help="also rows with _progressed true: times before theirs are complete. The first is at the beginning",
    )
    parser.add_argument(
        "--envelope",
        choices=["upsert", "debezium"],
        help="one row for each key and time: what became of it, with its values, or with those before and after",
    )
    parser.add_argument("--key", metavar="A,B", help="columns of the envelope's key (those of the log)")
    parser.add_argument("--order-by", metavar="ORDER", help='of the rows of one time: "_diff DESC, id"')
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="keep the log readable from what was printed and flushed last, under this name; acknowledged by itself",
    )
    parser.add_argument(
        "--expiry", metavar="DURATION", default="7 days", help="with --name: how long it counts (7 days)"
    )
    parser.add_argument(
        "--resume-from", metavar="CUT", help="continue where another one ended: it says so when it is interrupted"
    )
    parser.add_argument(
        "--fetch", metavar="N", type=whole_number, help="wait for the first row, take what is there up to N, and end"
    )
    parser.add_argument(
        "--timeout", metavar="DURATION", type=duration, help="end when no row came for this long (never)"
    )
    parser.add_argument("--max-bytes", metavar="SIZE", type=_size, help="more than this at once is an error")
    parser.add_argument("--poll", metavar="DURATION", type=duration, help="between two looks (20ms; 1s elsewhere)")
    _forgotten_argument(parser)


def _sql_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="one statement: SELECT, SUBSCRIBE or COPY … TO")
    parser.add_argument(
        "--name",
        metavar="TABLE=LOG",
        action="append",
        default=[],
        help="the log that a table of the statement is; may be repeated. Without it: a path in backquotes",
    )
    _time_arguments(parser)
    _forgotten_argument(parser)
    _timeout_argument(parser)
    parser.add_argument(
        "--max-rows", metavar="N", type=whole_number, default=100_000, help="an answer with more is an error (100000)"
    )
    _format_argument(parser)
    _master_argument(parser)


def _copy_to_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("folder", metavar="FOLDER", help="where to: a folder that is empty or not there yet")
    _time_arguments(parser)
    parser.add_argument("--format", choices=["parquet", "csv"], default="parquet", help="of the files (parquet)")
    parser.add_argument("--where", metavar="CONDITION", help='only rows for which it holds: "price > 10"')
    parser.add_argument("--select", metavar="A,B", help="only these columns")
    parser.add_argument(
        "--max-file-size", metavar="SIZE", type=_size, help="about how large a file may become: 16mb to 1gb (256mb)"
    )
    _forgotten_argument(parser)
    _timeout_argument(parser)
    _master_argument(parser)


def _explain_timestamp_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOG", nargs="+", help="paths or URLs of the logs")
    _time_arguments(parser)


def _instance_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="path or URL of the instance")
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=["run", "create", "drop", "configure", "status", "peek", "why", "remove"],
        help="run, create, drop, configure, status, peek, why or remove",
    )
    parser.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="of a collection; with status: a relation (hydration), or folders; with remove: a folder",
    )
    parser.add_argument("--query", metavar="SQL", help="create: what is maintained")
    parser.add_argument(
        "--import",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help="create: the log that a name in the query stands for; others are ids of collections",
    )
    parser.add_argument(
        "--key",
        metavar="KEY",
        action="append",
        default=[],
        help="create: columns to index by, as A,B; peek: only rows of this key, as COLUMN=VALUE; may be repeated",
    )
    parser.add_argument("--into", metavar="PATH", help="create: maintain a log there, in place of an index")
    parser.add_argument(
        "--input",
        metavar="NAME=LOG",
        action="append",
        default=[],
        help="create: a continual task; what a name in its SQL stands for, id or path, whose rows make its times",
    )
    parser.add_argument(
        "--reference",
        metavar="NAME=LOG",
        action="append",
        default=[],
        help="create: a continual task; what a name in its SQL stands for, id or path, as of each time",
    )
    parser.add_argument("--snapshot", action="store_true", help="create: a continual task begins with what is there")
    parser.add_argument("--as-of", metavar="TIME", help="create: from when on; peek: the time (the newest complete)")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="configure: a value")
    parser.add_argument("--where", metavar="CONDITION", help="peek: only rows for which it holds")
    parser.add_argument("--limit", metavar="N", type=int, help="peek: at most this number of rows")
    parser.add_argument("--read-only", action="store_true", help="run: follow the process that maintains the instance")
    parser.add_argument("--moved", action="store_true", help="run: the directory was meant to be moved to where it is")
    parser.add_argument(
        "--adopt",
        metavar="NAME=START",
        action="append",
        default=[],
        help="run: the command log went back; continue a collection as this start wrote it",
    )
    parser.add_argument(
        "--leave",
        metavar="NAME",
        action="append",
        default=[],
        help="run: the command log went back, or is lost; leave a collection, or a folder, as it is (* all folders)",
    )
    parser.add_argument("--master", metavar="MASTER", default="local[*]", help="run: where Spark runs (local[*])")
    _timeout_argument(parser)


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument(
        "captures",
        metavar="FILE",
        nargs="+",
        help="captures: files, or addresses: tcp-listen://HOST:PORT waits for a producer, tcp://HOST:PORT connects",
    )
    parser.add_argument("--time", metavar="TYPE", required=True, help="type of the times")
    parser.add_argument("--record", metavar="TYPE", required=True, help=f"type of the records; {_TYPES}")
    parser.add_argument(
        "--timely",
        choices=["0.31", "0.32"],
        help="version of timely that writes the captures; needed with addresses, with --wait, and where both fit the"
        " bytes. Kept with the stream (the only one that all bytes of a file fit)",
    )
    parser.add_argument(
        "--stamps",
        choices=["refuse", "column"],
        default="refuse",
        help="what to do with records that have several times of a partial order, as 0.32 allows; column keeps the"
        " times of each record's message in a column 'stamp' (refuse)",
    )
    parser.add_argument(
        "--unstamped",
        choices=["refuse", "drop", "dead-letter"],
        default="refuse",
        help="what to do with records that have no time, as 0.32 allows; drop counts them (refuse)",
    )
    parser.add_argument(
        "--updates",
        choices=["auto", "yes", "no"],
        default="auto",
        help="whether records are updates (data, time, diff), each at its own time (auto: those of 0.32 that have the"
        " type (data, time, i64))",
    )
    parser.add_argument(
        "--stream",
        metavar="NAME",
        action="append",
        default=[],
        help="name of the stream, one for each FILE in turn; by default what the file is called",
    )
    parser.add_argument(
        "--streams", metavar="N", type=_positive, help="how many captures a new log will get in all (as many as FILEs)"
    )
    parser.add_argument(
        "--format",
        choices=["timely", "jsonl", "cdcv2"],
        default="timely",
        help="of the files: timely's own, the same as lines of JSON, or lines of CDCv2 messages, which all together are"
        " one stream of a collection log (timely)",
    )
    parser.add_argument(
        "--wait",
        metavar="DURATION",
        type=duration,
        help="how long to wait for more of a capture that is not closed (0s for files, 60s for addresses)",
    )


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument("folder", metavar="DIR", help="where to write the captures")
    parser.add_argument("--files", metavar="N", type=_positive, default=1, help="how many captures (1)")
    parser.add_argument(
        "--time", metavar="TYPE", help="type of the times; by default as imported, or as the log has them"
    )
    parser.add_argument("--record", metavar="TYPE", help=f"type of the records; {_TYPES}")
    _choice_arguments(parser)
    parser.add_argument("--stream", metavar="NAME", help="only this stream of the log")
    parser.add_argument(
        "--up-to", metavar="FRONTIER", help="only times not beyond this frontier; the captures end there"
    )
    parser.add_argument("--name", metavar="NAME", default="capture", help="what the files' names begin with (capture)")
    parser.add_argument(
        "--format",
        choices=["timely", "jsonl", "cdcv2"],
        help="of the files: timely's own, the same as lines of JSON, or for a collection log CDCv2 messages as lines of"
        " JSON (what fits the log)",
    )


def _choice_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--columns", metavar="NAMES", help="only these columns, in this order: a,b,c (all)")
    parser.add_argument(
        "--cast",
        metavar="NAME=TYPE",
        action="append",
        default=[],
        help="what a column is exported as, such as at=i64, day=string; a value that does not fit is refused",
    )
    parser.add_argument(
        "--timely",
        choices=["0.31", "0.32"],
        help="version of timely that is to read the captures (as imported; 0.31 for other logs)",
    )


def _types_arguments(parser: argparse.ArgumentParser) -> None:
    _log_argument(parser)
    parser.add_argument(
        "--time", metavar="TYPE", help="type of the times; by default as imported, or as the log has them"
    )
    parser.add_argument("--record", metavar="TYPE", help=f"type of the records; {_TYPES}")
    _choice_arguments(parser)


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"], help="whose script")


def _help_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "about", metavar="VERB", nargs="?", choices=[verb.name for verb in VERBS], help="which verb; all if not given"
    )


# --- the table ----------------------------------------------------------------------------------


class Run(Protocol):
    """The function of a verb; returns whether the answer is yes."""

    def __call__(self, options: argparse.Namespace, console: Console, /) -> bool:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Parameters
    ----------
    name, summary, description : str
        For the help.
    arguments : callable
        Adds the verb's own arguments to its parser.
    module : str
        Has a mapping ``RUNS`` of the names of verbs to what they do. Loaded when the verb runs.
    of_logs : bool
        Whether it reads or writes logs, and takes the options for that.
    """

    name: str
    summary: str
    description: str
    arguments: Callable[[argparse.ArgumentParser], None]
    module: str = "spark_timely.cli.verbs"
    of_logs: bool = True


VERBS: tuple[Verb, ...] = (
    Verb(
        "ls",
        "the logs in a folder, a line for each",
        "Print the logs in a folder and the folders in it: how many streams each has, how far it is, how many messages"
        " it holds, when its newest commit was made. With --json: one object per line. Other tables are left out. Exit"
        " code 3 if a log cannot be read.",
        _ls_arguments,
    ),
    Verb(
        "head",
        "first rows, stream by stream in the order captured",
        "Print the first rows of a log, stream by stream in the order captured. With --json: one object per line.",
        _head_arguments,
    ),
    Verb(
        "tail",
        "newest rows; with -f also those that come",
        "Print the newest rows of a log, by the wall clock of their commits. With --follow also the rows that come, as"
        " soon as they are committed, until the log is complete or Ctrl-C is pressed. With --json: an object per line.",
        _tail_arguments,
    ),
    Verb(
        "stats",
        "the log at a glance: frontier, sizes, streams",
        "Print what a log is, how far it got, who owns its streams, and what is odd: missing numbers, repetitions with"
        " other rows, overdue upkeep.",
        _log_argument,
    ),
    Verb(
        "frontier",
        "which times are complete",
        "Print the frontier: nothing will be added at a time that is not beyond it. Or ask whether a time is complete.",
        _frontier_arguments,
        "spark_timely.cli.quick",
    ),
    Verb(
        "verify",
        "check the protocol and all rows; canonical hash",
        "Check every stream against the capture protocol and every file against what the log says of it,"
        " and print the canonical hash. Values that another program changed are found by the digests that commits say;"
        " commits without one are judged by counts alone, and counted. Exit code 1 if the log is not sound, or has"
        " another hash.",
        _verify_arguments,
    ),
    Verb(
        "peek",
        "the rows that a log has at a time",
        "Print the rows that a log has at a time, each once, with how often it is there in _diff: of a collection its"
        " contents, of a stream its messages up to the time. Reads only files that may have the keys. Needs no Spark.",
        _peek_arguments,
        "spark_timely.cli.answers",
    ),
    Verb(
        "subscribe",
        "what a log has at a time, then every change",
        "Print what a log has at a time, then every change as times become complete, one JSON object per line, until"
        " --up-to, the end of the log, Ctrl-C or SIGTERM. What is printed is final, and whole: a signal is noticed"
        " between two batches. Needs no Spark.",
        _subscribe_arguments,
        "spark_timely.cli.answers",
    ),
    Verb(
        "sql",
        "a SELECT over logs as they all were at one time",
        "Run a statement: SELECT … [AS OF t] over logs as they all were at one time, SUBSCRIBE [TO] name …, or COPY …"
        " TO 'folder'. A SELECT of rows of one log is answered at once; for any other, and for COPY, Spark starts in"
        " this process, which takes some seconds and needs Java and pip install 'spark-timely[spark]'.",
        _sql_arguments,
        "spark_timely.cli.answers",
    ),
    Verb(
        "copy-to",
        "what a log has at a time, as files of Parquet or CSV",
        "Write what a log has at a time into files of an empty folder, and print how many rows that is. While they are"
        " written the folder has a file INCOMPLETE. Spark starts in this process, which takes some seconds and needs"
        " Java and pip install 'spark-timely[spark]'.",
        _copy_to_arguments,
        "spark_timely.cli.answers",
    ),
    Verb(
        "explain-timestamp",
        "at which one time logs answer together, and why",
        "Print at which one time logs answer together, and what that follows from: from where each can be read, and how"
        " far it is complete.",
        _explain_timestamp_arguments,
        "spark_timely.cli.answers",
    ),
    Verb(
        "instance",
        "run a compute instance, ask it for something, look at it",
        "Maintain dataflows that come and go. run starts Spark and takes what others ask for; create, drop,"
        " configure and remove ask the process that runs; status, peek and why look at it, without Spark. remove"
        " deletes a folder of the instance that no collection has; status folders lists them.",
        _instance_arguments,
        "spark_timely.cli.instance",
    ),
    Verb(
        "advance",
        "move a stream's frontier forward",
        "Declare times of a stream complete, in the name of its owner. Rows that come at such times are late then.",
        _advance_arguments,
    ),
    Verb(
        "close",
        "declare a stream, or the whole log, complete",
        "Give up all capabilities: nothing can be appended any more. This cannot be undone.",
        _close_arguments,
    ),
    Verb(
        "compact",
        "merge small files; changes no answer",
        "Merge small files into larger ones. Readers and writers may continue meanwhile.",
        _compact_arguments,
    ),
    Verb(
        "forget",
        "let a log forget what is before a frontier",
        "Forget times before a frontier: messages of a stream are deleted, updates of a collection are summed. What"
        " retainers need stays, and what the log keeps. This cannot be undone. Files on disk go later, by upkeep or"
        " with --purge. Exit code 1 if something holds it back.",
        _forget_arguments,
        "spark_timely.cli.forgetting",
    ),
    Verb(
        "retain",
        "keep a log readable from a frontier on",
        "Register or move a retainer: what its consumer needs is not forgotten until it is released or expires.",
        _retain_arguments,
        "spark_timely.cli.forgetting",
    ),
    Verb(
        "retainers",
        "the retainers of a log, and what they cost",
        "Print the retainers of a log: from where on each keeps it readable, until when, and about how many bytes could"
        " be forgotten if it alone were gone.",
        _log_argument,
        "spark_timely.cli.forgetting",
    ),
    Verb(
        "release",
        "let a retainer go",
        "Let a retainer go, whatever query or program owns it. A query whose retainer is gone may find that the log has"
        " forgotten what it needs.",
        _release_arguments,
        "spark_timely.cli.forgetting",
    ),
    Verb(
        "vacuum",
        "delete files that were replaced long ago",
        "Delete files that merges and compaction have replaced, once nobody can need them. No answer changes.",
        _vacuum_arguments,
        "spark_timely.cli.forgetting",
    ),
    Verb(
        "repair",
        "put whole entries in the place of damaged ones; accept what another program changed",
        "Find entries of the table's log that a power cut left empty, cut or missing, and say what can be done and what"
        " is lost. With --yes it is done. Exit code 1 if there is damage that was left as it is. With --accept messages"
        " that another program changed are taken as they are, where a RESTORE is not possible any more.",
        _repair_arguments,
    ),
    Verb(
        "wait",
        "wait until a time is complete; for job conditions",
        "Wait until a log's frontier has passed a time or reached a token, or until the logs of a cut have come so far."
        " Exit code 0 if it has; 1 if not within the timeout. A complete log has passed every time.",
        _wait_arguments,
    ),
    Verb(
        "import",
        "captures of the real timely into a log",
        "Import captures that timely's EventWriter wrote, from files or sockets: one stream of the log for each. The"
        " protocol is checked. What the log has already is not added again: an import can be repeated, and continues"
        " where it was when files have grown.",
        _import_arguments,
        "spark_timely.cli.interop",
    ),
    Verb(
        "export",
        "a log to captures that the real timely replays",
        "Write a log, or part of it, to capture files that timely's EventReader replays: as many as are asked for,"
        " balanced, each by itself a valid stream.",
        _export_arguments,
        "spark_timely.cli.interop",
    ),
    Verb(
        "types",
        "the Rust types of a log's captures, and a program that replays them",
        "Print Rust: the types of times and records that a log is exported as, and a short program that replays the"
        " captures. A comment in it says what its Cargo.toml needs. With --json: the types and the program.",
        _types_arguments,
        "spark_timely.cli.interop",
    ),
    Verb(
        "completion",
        "a script that completes the command line in bash or zsh",
        "Print a script for a shell, which completes verbs, options and paths. It needs the package shtab: pip install"
        " 'spark-timely[cli]'. For bash, add this line to ~/.bashrc: eval \"$(spark-timely completion bash)\". For zsh,"
        ' add to ~/.zshrc, after compinit: eval "$(spark-timely completion zsh)".',
        _completion_arguments,
        __name__,
        of_logs=False,
    ),
    Verb(
        "help",
        "what a verb does and takes",
        "Print the help of a verb, as VERB --help does; without a verb that of all.",
        _help_arguments,
        __name__,
        of_logs=False,
    ),
)


# --- the parser ---------------------------------------------------------------------------------


def wrapped(text: str, width: int) -> str:
    r"""Wrap the paragraphs of a help text; a list stays one.

    Parameters
    ----------
    text : str
        A paragraph on each line. Lines that begin with spaces are a list, of a word and what it means.
    width : int
        In characters.

    Examples
    --------
    >>> print(wrapped("codes:\n  0    done, or yes", 14))
    codes:
      0    done,
           or yes
    """
    lines = []
    for line in text.splitlines():
        hanging = re.match(r" +\S+ +", line)
        indent = " " * len(hanging[0]) if hanging else ""
        # One word that is longer than a line stays whole: it may be a path or a command.
        found = textwrap.wrap(line, max(width, 11), subsequent_indent=indent, break_long_words=False)
        lines += found or [""]
    return "\n".join(lines)


class _Help(argparse.HelpFormatter):
    """Wraps every text of a help to the width of the terminal, or to `COLUMNS`, and keeps lines apart that were."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(wrapped(text, width - len(indent)), indent)

    def add_argument(self, action: argparse.Action) -> None:
        """Make room for an argument; for verbs as much as they take, their indent included."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process, so that the command line can be called from Python.

    Where an option of a verb is unknown, the error's context has the verb's usage under ``usage``.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as argparse takes them
        super().__init__(**settings, formatter_class=_Help, allow_abbrev=False)
        self.verbs: Mapping[str, Parser] = {}

    def error(self, message: str) -> NoReturn:
        """Raise `InvalidUsageError`."""
        self._refuse(message)

    def _refuse(self, found: str, *, hint: str = "", unknown: bool = False) -> NoReturn:
        context = {"usage": self.format_usage()} if unknown and not self.verbs else {}
        msg = f"could not read the command line: {found}"
        raise InvalidUsageError(msg, hint=f"{hint}see `{self.prog} --help`", context=context)

    def parse_known_args(  # type: ignore[override]  # its overloads are for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; refuse what is not known before what is missing, for the one may be the other, mistyped."""
        words = list(sys.argv[1:] if args is None else args)
        self._check_options(words)
        found, left = super().parse_known_args(words, namespace)
        if left:
            self._refuse("unrecognized arguments: more words than the verb takes")
        return found, left

    def _check_options(self, words: Iterable[str]) -> None:
        known = self._option_string_actions
        for word in words:
            # What begins like a number, or has a space, is a value; so it is for argparse.
            if word == "--" or word in ("-h", "--help") or (self.verbs and not word.startswith("-")):
                return
            name = word.partition("=")[0]
            if not re.match(r"--?[^\W\d]", name) or " " in name or name in known:
                continue
            if not name.startswith("--") and name[:2] in known:
                continue  # with its value, such as -n5
            hint = ""
            if any(name in verb._option_string_actions for verb in self.verbs.values()):
                hint = f"write {name} behind the verb; "
            elif near := _nearest(name, known):
                hint = f"did you mean {near}? "
            self._refuse(f"unrecognized arguments: {name}", hint=hint, unknown=True)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        near = _nearest(str(value), action.choices)
        hint = f"did you mean {near}? " if near else ""
        if action.metavar == "VERB":
            self._refuse(f"found no verb {shown(value)}", hint=hint)
        named = "/".join(action.option_strings) or action.metavar or action.dest
        choices = ", ".join(map(str, action.choices))
        self._refuse(f"argument {named}: found {shown(value)}", hint=f"{hint}choose among {choices}; ")

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - as argparse has it
        # Argparse passes over what standard output refuses.
        try:
            (file or sys.stdout).write(message)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise unwritten(error) from error


def _nearest(word: str, known: Iterable[str]) -> str | None:
    """Return which of the known words is meant, as far as can be guessed."""
    import difflib

    words = list(known)
    begun = [each for each in words if len(word.strip("-")) > 1 and each.startswith(word)]
    near = begun if len(begun) == 1 else difflib.get_close_matches(word, words, n=1)
    return near[0] if near else None


def build_parser() -> Parser:
    """Return the parser of all verbs.

    Examples
    --------
    >>> build_parser().parse_args(["frontier", "flights", "--json"]).json
    True
    >>> build_parser().parse_args(["--json", "frontier", "flights"]).json
    True
    """
    common = Parser(add_help=False)
    # No default: it would take the place of what was given before the verb.
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="answer in JSON")
    common.add_argument(
        "--storage",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="storage option of a cloud URL; may be repeated",
    )
    common.add_argument(
        "--single-writer",
        action="store_true",
        help="promise that nobody else writes to the log meanwhile: for logs on Databricks volumes",
    )
    parser = Parser(
        prog="spark-timely",
        description="Look at a capture log, check it, wait for it, advance, close and compact it; ask what it had at a"
        " time; exchange captures with the real timely. Only sql and copy-to may start Spark.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"spark-timely {spark_timely.__version__}")
    parser.add_argument("--json", action="store_true", help="answer in JSON; also behind the verb")
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    verbs: dict[str, Parser] = {}
    for verb in VERBS:
        verbs[verb.name] = child = subparsers.add_parser(
            verb.name,
            parents=[common] if verb.of_logs else [],
            help=verb.summary,
            description=verb.description,
            epilog=_EPILOG if verb.of_logs else None,
        )
        verb.arguments(child)
        child.set_defaults(verb=verb)
    parser.verbs = verbs
    return parser


# --- verbs about the command line itself --------------------------------------------------------


def _help(options: argparse.Namespace, console: Console) -> bool:
    parser = build_parser()
    console.write((parser.verbs[options.about] if options.about else parser).format_help())
    return True


def _completion(options: argparse.Namespace, console: Console) -> bool:
    try:
        import shtab
    except ImportError as error:
        msg = "could not make a script of completion: found no package shtab"
        raise InvalidUsageError(msg, hint="run pip install 'spark-timely[cli]'") from error
    parser = build_parser()
    folder, file = shtab.DIRECTORY, shtab.FILE
    paths = {"LOG": folder, "FOLDER": folder, "DIR": folder, "FILE": file}
    for verb in parser.verbs.values():
        for action in verb._actions:
            if action.metavar in paths:
                action.complete = paths[action.metavar]  # type: ignore[attr-defined]  # where shtab looks for it
    console.write(shtab.complete(parser, shell=options.shell) + "\n")
    return True


RUNS: Mapping[str, Run] = {"completion": _completion, "help": _help}
