"""Read the command line, run one verb, and turn its outcome into an exit code.

Exit codes, for scripts:

===  ==========================================================================================
  0  done; or: yes
  1  no: what was asked is false (`verify` found a violation or another hash, `frontier` has not passed,
     `wait` has waited as long as it may)
  2  the command line is wrong: unknown verb, option, stream, or a value that cannot be read
  3  the log could not be read or written: no log there, newer format, lost file, storage failed
  4  refused, and nothing was done: the log's state or another writer is against it, or the answer at a
     terminal was not yes
 70  a bug in spark-timely; the traceback is on standard error
130  interrupted
===  ==========================================================================================

Invariants
----------
1. Every error that is raised on purpose is one line on standard error: ``spark-timely: could not …: …
   — hint: …``; with ``--json`` it is one JSON object there, with ``error``, ``message``, ``hint``.
2. No exit code but 1 means no, so that ``if spark-timely frontier LOG --passed TIME`` cannot mistake
   a failure for an answer.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import spark_timely
from spark_timely.cli import verbs
from spark_timely.cli.interop import EXPORT, IMPORT
from spark_timely.cli.output import Console, to_json
from spark_timely.errors import (
    ClosedError,
    DataLossError,
    InvalidUsageError,
    LogFormatError,
    LogMissingError,
    NotBeyondError,
    SinceViolationError,
    StorageError,
    StreamMissingError,
    TimelyError,
    TimelyInternalError,
    shown,
)
from spark_timely.masking import keep_secret, looks_secret, mask_exception

YES, NO, USAGE, STORAGE, REFUSED, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130
BROKEN_PIPE = 141

# The first class that fits decides.
_EXIT_CODES: tuple[tuple[type[TimelyError], int], ...] = (
    (TimelyInternalError, INTERNAL),
    (LogMissingError, STORAGE),
    (LogFormatError, STORAGE),
    (DataLossError, STORAGE),
    (StorageError, STORAGE),
    (ClosedError, REFUSED),
    (NotBeyondError, REFUSED),
    (SinceViolationError, REFUSED),
    (InvalidUsageError, USAGE),
    (StreamMissingError, USAGE),
    (TimelyError, REFUSED),
)

_EPILOG = """\
exit codes:
  0  done; or yes                       3  the log could not be read or written
  1  no: what was asked is false        4  refused: the log's state is against it
  2  the command line is wrong        130  interrupted

times are written as the log's type has them: 17, 2013-06-12, 2013-06-12T08:00Z; a date among timestamps is its
midnight UTC; numbers for dates and timestamps only with their unit: days:15868, us:1371024000000000
a frontier is a time or a JSON list of times: '["2013-06-12T08:00Z"]', '[[1, 2], [2, 1]]', '[]' (complete)
durations have a unit: 30s, 10m, 12 hours
"""


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process, so that `main` can be called from Python."""

    def error(self, message: str) -> NoReturn:
        what, unknown, given = message.partition("unrecognized arguments: ")
        if unknown:
            # Names alone: a mistyped option may hold a secret.
            names = [word.partition("=")[0] for word in given.split() if word.startswith("-")]
            message = f"{what}{unknown}{', '.join(names) or 'more words than the verb takes'}"
        msg = f"could not read the command line: {message}"
        raise InvalidUsageError(msg, hint=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process by default.

    Returns
    -------
    int
        0 done or yes · 1 no · 2 usage · 3 log or storage · 4 refused · 70 our mistake · 130 interrupted.

    Notes
    -----
    Errors are written to standard error, never raised; a bug in spark-timely ends in `SystemExit`.

    Examples
    --------
    >>> from spark_timely.cli import main
    >>> main(["--version"])
    spark-timely 0.1.0
    0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    json_mode = "--json" in arguments
    try:
        keep_secret(_storage_words(arguments))  # before anything is refused
        options = build_parser().parse_args(arguments)
        console = Console(sys.stdout, json_mode=options.json)
        code: int = YES if options.run(options, console) else NO
        sys.stdout.flush()
    except SystemExit as stop:  # --help and --version have said all
        return int(stop.code or 0)
    except TimelyError as error:
        _complain(error, json_mode=json_mode)
        return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))
    except BrokenPipeError:
        # The reader of our output, such as `head`, has had enough. Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        _complain(
            StorageError(f"could not {arguments[0]}: found {shown(error)}", hint="check the path and its permissions"),
            json_mode=json_mode,
        )
        return STORAGE
    except KeyboardInterrupt:
        sys.stderr.write("spark-timely: interrupted\n")
        return INTERRUPTED
    except Exception as error:
        # Python would end with 1, which means no.
        mask_exception(error)
        traceback.print_exc()
        raise SystemExit(INTERNAL) from error
    return code


def _storage_words(arguments: Sequence[str]) -> dict[str, str]:
    """Return what looks like a storage option, in its place or not."""
    found: dict[str, str] = {}
    for before, word in zip(("", *arguments), arguments, strict=False):
        option, equals, given = word.partition("=")
        if option.startswith("-") and not option.startswith("--storag"):
            continue
        pair = given if equals and option.startswith("--storag") else word
        key, equals, value = pair.partition("=")
        if equals and (before.startswith("--storag") or pair is given or looks_secret(key)):
            found[key] = value
    return found


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs.

    Examples
    --------
    >>> build_parser().parse_args(["frontier", "flights", "--json"]).json
    True
    """
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="answer in JSON")
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
    parser = _Parser(
        prog="spark-timely",
        description="Look at a capture log, check it, wait for it, advance, close and compact it;"
        " exchange captures with the real timely. Needs no Spark.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"spark-timely {spark_timely.__version__}")
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in (*verbs.VERBS, IMPORT, EXPORT):
        child = subparsers.add_parser(
            verb.name,
            parents=[common],
            help=verb.summary,
            description=verb.description,
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        number = None if verb.log_needed else "?"
        child.add_argument("log", metavar="LOG", nargs=number, help="path or URL of the log")
        verb.arguments(child)
        child.set_defaults(run=verb.run)
    return parser


def _complain(error: TimelyError, *, json_mode: bool) -> None:
    if json_mode:
        text = to_json({"error": type(error).__name__, "message": error.message, "hint": error.hint})
    else:
        text = f"spark-timely: {error}"
    # Standard error may have a narrow encoding as well.
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
