"""Reads the command line, runs one verb, and turns its outcome into an exit code.

`main` is the program ``spark-timely``, and what ``python -m spark_timely`` runs. Exit codes, for scripts:

===  ==========================================================================================
  0  done; or: yes
  1  no: what was asked is false (`verify` found a violation or another hash, `frontier` has not passed,
     `wait` has waited as long as it may)
  2  the command line is wrong: unknown verb, option, stream, or a value that cannot be read
  3  the log could not be read or written: no log there, newer format, lost file, storage failed; or there was no
     room for the answer
  4  refused, and nothing was done: the log's state or another writer is against it, or the answer at a
     terminal was not yes
 70  a bug in spark-timely; the traceback is on standard error
130  interrupted
141  the reader of the answer, such as `head`, left before the end
===  ==========================================================================================

Where standard output is closed (``>&-``) nobody wants the answer: the verb does what it does, and its exit code says
the rest.

Invariants
----------
1. Every error that is raised on purpose is one line on standard error: ``spark-timely: could not …: …
   — hint: …``; with ``--json`` it is one JSON object there, with ``error``, ``message``, ``hint``. Without ``--json``
   the usage of a verb follows where an option of it is unknown.
2. No exit code but 1 means no, so that ``if spark-timely frontier LOG --passed TIME`` cannot mistake
   a failure for an answer.
3. What is not needed is not loaded: ``--version`` loads nothing else, and a verb what it works with.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import spark_timely

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.errors import TimelyError

YES, NO, USAGE, STORAGE, REFUSED, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process by default.

    Returns
    -------
    int
        0 done or yes · 1 no · 2 usage · 3 storage · 4 refused · 70 our mistake · 130 interrupted · 141 no reader.

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
    arguments = list(map(_decoded, sys.argv[1:] if argv is None else argv))
    _open_closed_streams()
    try:
        code = _run(arguments)
        _answered(sys.stdout.flush)
    except BrokenPipeError:
        _drop_answer()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        _complain("spark-timely: interrupted")
        return INTERRUPTED
    except Exception as error:
        failed = _failed(error, arguments)
        if failed is None:
            # Python would end with 1, which means no.
            raise SystemExit(INTERNAL) from error
        return failed
    return code


def _decoded(argument: str) -> str:
    """Return an argument as the text that its bytes are in UTF-8, whatever the locale."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        # The parser answers it too, among other options; here it is as quick as Python is.
        _answered(lambda: sys.stdout.write(f"spark-timely {spark_timely.__version__}\n"))
        return YES
    from importlib import import_module

    from spark_timely.cli.output import Console
    from spark_timely.cli.parser import build_parser
    from spark_timely.masking import keep_secret

    # The library of cloud stores writes lines of its own about what it tries; what comes of it is our error.
    os.environ.setdefault("RUST_LOG", "off")
    keep_secret(_storage_words(arguments))  # before anything is refused
    try:
        # Without a word: what can be said.
        options = build_parser().parse_args(arguments or ["--help"])
    except SystemExit as stop:  # --help and --version have said all
        return int(stop.code or 0)
    console = Console(sys.stdout, json_mode=options.json)
    return YES if import_module(options.verb.module).RUNS[options.verb.name](options, console) else NO


def _failed(error: Exception, arguments: list[str]) -> int | None:
    """Say what went wrong, and return its exit code; None for a bug."""
    from spark_timely import errors
    from spark_timely.cli.output import printable, to_json
    from spark_timely.masking import mask_exception

    if isinstance(error, OSError) and not isinstance(error, errors.TimelyError):
        verb = next((word for word in arguments if not word.startswith("-")), "run")
        error = errors.StorageError(
            f"could not {verb}: found {errors.shown(error)}", hint="check the path and its permissions"
        )
    if not isinstance(error, errors.TimelyError):
        import traceback

        mask_exception(error)
        traceback.print_exception(error)
        return None
    if "--json" in arguments:
        _complain(to_json({"error": type(error).__name__, "message": error.message, "hint": error.hint}))
    else:
        usage = error.context.get("usage")
        _complain(printable(f"spark-timely: {error}") + (f"\n\n{str(usage).rstrip()}" if usage else ""))
    _flush_or_drop()
    return _exit_code(error)


def _exit_code(error: TimelyError) -> int:
    from spark_timely import errors

    # The first class that fits decides.
    codes: tuple[tuple[type[TimelyError], int], ...] = (
        (errors.TimelyInternalError, INTERNAL),
        (errors.LogMissingError, STORAGE),
        (errors.LogFormatError, STORAGE),
        (errors.DataLossError, STORAGE),
        (errors.StorageError, STORAGE),
        (errors.ClosedError, REFUSED),
        (errors.NotBeyondError, REFUSED),
        (errors.SinceViolationError, REFUSED),
        (errors.InvalidUsageError, USAGE),
        (errors.StreamMissingError, USAGE),
        (errors.TimelyError, REFUSED),
    )
    return next(code for kind, code in codes if isinstance(error, kind))


def _storage_words(arguments: Sequence[str]) -> dict[str, str]:
    """Return what looks like a storage option, in its place or not."""
    from spark_timely.masking import looks_secret

    found: dict[str, str] = {}
    for before, word in zip(("", *arguments), arguments, strict=False):
        option, equals, given = word.partition("=")
        if option.startswith("-") and not option.startswith("--storag"):
            continue
        pair = given if equals and option.startswith("--storag") else word
        key, equals, value = pair.partition("=")
        if equals and (before.startswith("--storag") or pair is given or looks_secret(key)):
            found[key] = value
            if looks_secret(value) or not _NAME.fullmatch(key):
                # The wrong way round, or JSON: what stands where a name should is no less secret.
                found[f"secret {len(found)}"] = key
    return found


_NAME = re.compile(r"[A-Za-z0-9_.]*")


# --- standard streams ---------------------------------------------------------------------------


def _open_closed_streams() -> None:
    """Let closed standard streams lead nowhere: else the next file that is opened would get their numbers."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _answered(write: Callable[[], object]) -> None:
    """Write a part of the answer. What says how that failed is loaded then."""
    try:
        write()
    except OSError:
        from spark_timely.cli.output import answering

        with answering():
            raise


def _flush_or_drop() -> None:
    """Write what is left of the answer if that is possible; of an error that was said already no other is made."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_answer()


def _drop_answer() -> None:
    """Let what is left of the answer go nowhere: Python would write it at its end, fail again, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):  # no file: nothing is written at the end
        pass
    finally:
        os.close(null)


def _complain(text: str) -> None:
    # Standard error may have a narrow encoding as well, and no room.
    encoding = sys.stderr.encoding or "utf-8"
    try:
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stderr.flush()
    except OSError:
        pass
