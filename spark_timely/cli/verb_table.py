"""The table of the command line's verbs: what each is called, what it takes, and which module does it.

`spark_timely.cli.parser` makes parsers and help of it, and `spark_timely.cli.command` asks a `Verb` for its module.
Nothing here loads numpy, pyarrow or deltalake (invariant 1 of the parser).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from spark_timely.cli.output import Console
from spark_timely.errors import shown
from spark_timely.time.text import Duration, parse_duration

__all__ = ["OWN_SINCE", "VERBS", "Argument", "OneOf", "Run", "Verb"]

_TYPES = (
    "types are written as in Rust: u64, (String, u64), {name: string, n: Option<u64>}, Vec<u8>, bytes,"
    " enum{A, B(u64)}, and beyond it date_days, timestamp_us, decimal(12, 2), map<string, u64>; times: u64,"
    " Product<u64, u64>, Duration, (), date_days, timestamp_us"
)


# --- values of the command line -----------------------------------------------------------------


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


# --- what a verb takes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a verb, as argparse takes it.

    Parameters
    ----------
    names : tuple of str
        Of an option, or the one of a positional argument.
    settings : mapping
        What `add_argument` takes beside the names.
    """

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Let a parser, or a group of it, take the argument."""
        parser.add_argument(*self.names, **self.settings)


class OneOf:
    """Options of which at most one is given; exactly one where that is required."""

    def __init__(self, *options: Argument, required: bool = False) -> None:
        self.options = options
        self.required = required

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Let a parser take them."""
        group = parser.add_mutually_exclusive_group(required=self.required)
        for option in self.options:
            option.add_to(group)


def _value(names: str, metavar: str | None, text: str, **settings: Any) -> Argument:  # noqa: ANN401 - as argparse has it
    """Return an argument with a value; more than one name of an option with a space between them."""
    return Argument(tuple(names.split()), {"metavar": metavar, "help": text, **settings})


def _choice(name: str, words: Sequence[str], text: str, **settings: Any) -> Argument:  # noqa: ANN401
    return _value(name, None, text, choices=words, **settings)


def _repeated(name: str, metavar: str, text: str) -> Argument:
    return _value(name, metavar, text, action="append", default=[])


def _flag(names: str, text: str) -> Argument:
    return Argument(tuple(names.split()), {"action": "store_true", "help": text})


OWN_SINCE: Final = "since"
"""Stands for the since of the log itself."""

_LOG = _value("log", "LOG", "path or URL of the log")
_CHANGING = (
    _flag("--yes", "do not ask, as at a terminal"),
    _flag("--dry-run", "show what would happen, and change nothing"),
)
_ROWS = (
    _LOG,
    _value("-n --rows", "N", "how many rows (10)", type=whole_number, default=10),
    _value("--stream", "NAME", "only this stream"),
    _value("--columns", "A,B", "only these columns of the payload"),
)
_AS_OF_AT_LEAST = _value("--as-of-at-least", "TIME", "the first time that can be read, none before this")
_AS_OF = (_value("--as-of", "TIME", "the time (the newest that is complete); it is waited for"), _AS_OF_AT_LEAST)
_TIMEOUT = _value(
    "--timeout",
    "DURATION",
    "how long to wait until the time is complete; 0 looks once (60s)",
    type=duration,
    default=Duration(60_000_000),
)
_FORGOTTEN = _flag("--forgotten", "of a stream that has forgotten messages, take those that are left")
_ANSWER = (
    _choice(
        "--format",
        ["table", "json", "csv"],
        "of the rows; json: one object per line, csv: with a header, null is empty (table)",
    ),
    _flag("--explain", "say on standard error how it was answered"),
)
_MASTER = _value("--master", "MASTER", "where Spark runs, if it is needed (local[*])", default="local[*]")
_EXPORTED = (
    _value("--time", "TYPE", "type of the times; by default as imported, or as the log has them"),
    _value("--record", "TYPE", f"type of the records; {_TYPES}"),
    _value("--columns", "NAMES", "only these columns, in this order: a,b,c (all)"),
    _repeated(
        "--cast",
        "NAME=TYPE",
        "what a column is exported as, such as at=i64, day=string; a value that does not fit is refused",
    ),
    _choice(
        "--timely",
        ["0.31", "0.32"],
        "version of timely that is to read the captures (as imported; 0.31 for other logs)",
    ),
)


def _poll(text: str) -> Argument:
    return _value("--poll", "DURATION", text, type=duration, default=Duration(1_000_000))


def _reason(reason: str) -> Argument:
    return _value("--reason", "TEXT", "kept with the progress", default=reason)


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
    arguments : tuple of Argument or OneOf
        The verb's own, in the order of the help.
    of_logs : bool
        Whether it reads or writes logs, and takes the options for that.
    """

    name: str
    summary: str
    description: str
    arguments: tuple[Argument | OneOf, ...]
    of_logs: bool = True

    @property
    def module(self) -> str:
        """The module that is loaded when the verb runs; its mapping ``RUNS`` has what the verb does, by name."""
        names = (module for module, verbs in _MODULES.items() if self.name in verbs)
        return f"spark_timely.cli.{next(names, 'log_verbs')}"


# Which module does which verbs; the others are in `spark_timely.cli.log_verbs`.
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "stats": ("stats",),
    "quick": ("frontier",),
    "answers": ("peek", "subscribe", "sql", "copy-to", "explain-timestamp"),
    "instance": ("instance",),
    "forgetting": ("forget", "retain", "retainers", "release", "vacuum"),
    "interop": ("import", "export", "types"),
    "parser": ("completion", "help"),
}

_VERBS = (
    Verb(
        "ls",
        "the logs in a folder, a line for each",
        "Print the logs in a folder and the folders in it: how many streams each has, how far it is, how many messages"
        " it holds, when its newest commit was made. With --json: one object per line. Other tables are left out. Exit"
        " code 3 if a log cannot be read.",
        (
            _value("folder", "FOLDER", "path or URL of the folder (.)", nargs="?", default="."),
            _value("--depth", "N", "how many folders deep to look (3)", type=whole_number, default=3),
        ),
    ),
    Verb(
        "head",
        "first rows, stream by stream in the order captured",
        "Print the first rows of a log, stream by stream in the order captured. With --json: one object per line.",
        (
            *_ROWS,
            OneOf(
                _flag("--events", "progress rows too, where they stand between the messages"),
                _flag("--dead", "dead letters instead of messages"),
            ),
        ),
    ),
    Verb(
        "tail",
        "newest rows; with -f also those that come",
        "Print the newest rows of a log, by the wall clock of their commits. With --follow also the rows that come, as"
        " soon as they are committed, until the log is complete or Ctrl-C is pressed. With --json: an object per line.",
        (
            *_ROWS,
            _flag("--events", "progress rows too, each after the messages of its commit"),
            _flag("-f --follow", "print what comes, until the log is complete"),
            _poll("with --follow: between two looks (1s)"),
        ),
    ),
    Verb(
        "stats",
        "the log at a glance: frontier, sizes, streams",
        "Print what a log is, how far it got, who owns its streams, and what is odd: missing numbers, repetitions with"
        " other rows, overdue upkeep.",
        (_LOG,),
    ),
    Verb(
        "frontier",
        "which times are complete",
        "Print the frontier: nothing will be added at a time that is not beyond it. Or ask whether a time is complete.",
        (
            _LOG,
            _value("--stream", "NAME", "of this stream alone"),
            _value("--at", "MOMENT", "as it was then: 2013-06-12T08:00Z, wall clock of the commits"),
            OneOf(
                _value("--passed", "TIME", "ask whether this time is complete: exit code 0 yes, 1 no"),
                _flag("--complete", "ask whether nothing can follow: exit code 0 yes, 1 no"),
            ),
        ),
    ),
    Verb(
        "verify",
        "check the protocol and all rows; canonical hash",
        "Check every stream against the capture protocol and every file against what the log says of it,"
        " and print the canonical hash. Values that another program changed are found by the digests that commits say;"
        " commits without one are judged by counts alone, and counted. Exit code 1 if the log is not sound, or has"
        " another hash.",
        (
            _LOG,
            _value("--expect", "HASH", "the canonical hash that it should have; its beginning will do"),
            _value(
                "--since",
                "FRONTIER",
                "the hash relative to this frontier, or to the log's since: it stays when the log forgets",
                nargs="?",
                const=OWN_SINCE,
            ),
        ),
    ),
    Verb(
        "peek",
        "the rows that a log has at a time",
        "Print the rows that a log has at a time, each once, with how often it is there in _diff: of a collection its"
        " contents, of a stream its messages up to the time. Reads only files that may have the keys. Needs no Spark.",
        (
            _LOG,
            _value("--as-of", "TIME", "the time (the newest that is complete); one that is not complete is waited for"),
            _repeated(
                "--key",
                "COLUMN=VALUE",
                "only rows of this key; may be repeated. Of a key of several columns once for each",
            ),
            _value("--where", "CONDITION", 'only rows for which it holds: "price > 10 AND k IN (1, 2)"'),
            _value("--select", "A,B", "only these columns; rows that are equal in them become one"),
            _value("--order-by", "ORDER", 'such as "price DESC NULLS LAST, id"'),
            _value("--limit", "N", "how many copies of rows, at most", type=whole_number),
            _value("--offset", "N", "how many to leave out first (0)", type=whole_number, default=0),
            _value("--max-bytes", "SIZE", "an answer with more is an error, such as 10mb", type=_size),
            _value("--scan-limit", "SIZE", "how much to read of files, at most, such as 1gb (256mb)", type=_size),
            _FORGOTTEN,
            _TIMEOUT,
            *_ANSWER,
        ),
    ),
    Verb(
        "subscribe",
        "what a log has at a time, then every change",
        "Print what a log has at a time, then every change as times become complete, one JSON object per line, until"
        " --up-to, the end of the log, Ctrl-C or SIGTERM. What is printed is final, and whole: a signal is noticed"
        " between two batches. Needs no Spark.",
        (
            _LOG,
            _value("--as-of", "TIME", "where it begins, inclusive (the newest that is complete)"),
            _AS_OF_AT_LEAST,
            _value("--up-to", "TIME", "where it ends, exclusive"),
            _flag("--no-snapshot", "only what changes later, not what is there first"),
            _flag(
                "--progress",
                "also rows with _progressed true: times before theirs are complete. The first is at the beginning",
            ),
            _choice(
                "--envelope",
                ["upsert", "debezium"],
                "one row for each key and time: what became of it, with its values, or with those before and after",
            ),
            _value("--key", "A,B", "columns of the envelope's key (those of the log)"),
            _value("--order-by", "ORDER", 'of the rows of one time: "_diff DESC, id"'),
            _value(
                "--name",
                "NAME",
                "keep the log readable from what was printed and flushed last, under this name; acknowledged by itself",
            ),
            _value("--expiry", "DURATION", "with --name: how long it counts (7 days)", default="7 days"),
            _value("--resume-from", "CUT", "continue where another one ended: it says so when it is interrupted"),
            _value("--fetch", "N", "wait for the first row, take what is there up to N, and end", type=whole_number),
            _value("--timeout", "DURATION", "end when no row came for this long (never)", type=duration),
            _value("--max-bytes", "SIZE", "more than this at once is an error", type=_size),
            _value("--poll", "DURATION", "between two looks (20ms; 1s elsewhere)", type=duration),
            _FORGOTTEN,
        ),
    ),
    Verb(
        "sql",
        "a SELECT over logs as they all were at one time",
        "Run a statement: SELECT … [AS OF t] over logs as they all were at one time, SUBSCRIBE [TO] name …, or COPY …"
        " TO 'folder'. A SELECT of rows of one log is answered at once; for any other, and for COPY, Spark starts in"
        " this process, which takes some seconds and needs Java and pip install 'spark-timely[spark]'.",
        (
            _value("text", "TEXT", "one statement: SELECT, SUBSCRIBE or COPY … TO"),
            _repeated(
                "--name",
                "TABLE=LOG",
                "the log that a table of the statement is; may be repeated. Without it: a path in backquotes",
            ),
            *_AS_OF,
            _FORGOTTEN,
            _TIMEOUT,
            _value("--max-rows", "N", "an answer with more is an error (100000)", type=whole_number, default=100_000),
            *_ANSWER,
            _MASTER,
        ),
    ),
    Verb(
        "copy-to",
        "what a log has at a time, as files of Parquet or CSV",
        "Write what a log has at a time into files of an empty folder, and print how many rows that is. While they are"
        " written the folder has a file INCOMPLETE. Spark starts in this process, which takes some seconds and needs"
        " Java and pip install 'spark-timely[spark]'.",
        (
            _LOG,
            _value("folder", "FOLDER", "where to: a folder that is empty or not there yet"),
            *_AS_OF,
            _choice("--format", ["parquet", "csv"], "of the files (parquet)", default="parquet"),
            _value("--where", "CONDITION", 'only rows for which it holds: "price > 10"'),
            _value("--select", "A,B", "only these columns"),
            _value("--max-file-size", "SIZE", "about how large a file may become: 16mb to 1gb (256mb)", type=_size),
            _FORGOTTEN,
            _TIMEOUT,
            _MASTER,
        ),
    ),
    Verb(
        "explain-timestamp",
        "at which one time logs answer together, and why",
        "Print at which one time logs answer together, and what that follows from: from where each can be read, and how"
        " far it is complete.",
        (_value("logs", "LOG", "paths or URLs of the logs", nargs="+"), *_AS_OF),
    ),
    Verb(
        "instance",
        "run a compute instance, ask it for something, look at it",
        "Maintain dataflows that come and go. run starts Spark and takes what others ask for; create, drop,"
        " configure and remove ask the process that runs; status, peek and why look at it, without Spark. remove"
        " deletes a folder of the instance that no collection has; status folders lists them.",
        (
            _value("directory", "DIR", "path or URL of the instance"),
            _value(
                "action",
                "ACTION",
                "run, create, drop, configure, status, peek, why or remove",
                choices=["run", "create", "drop", "configure", "status", "peek", "why", "remove"],
            ),
            _value(
                "id",
                "ID",
                "of a collection; with status: a relation (hydration), or folders; with remove: a folder",
                nargs="?",
            ),
            _value("--query", "SQL", "create: what is maintained"),
            _repeated(
                "--import",
                "NAME=PATH",
                "create: the log that a name in the query stands for; others are ids of collections",
            ),
            _repeated(
                "--key",
                "KEY",
                "create: columns to index by, as A,B; peek: only rows of this key, as COLUMN=VALUE; may be repeated",
            ),
            _value("--into", "PATH", "create: maintain a log there, in place of an index"),
            _repeated(
                "--input",
                "NAME=LOG",
                "create: a continual task; what a name in its SQL stands for, id or path, whose rows make its times",
            ),
            _repeated(
                "--reference",
                "NAME=LOG",
                "create: a continual task; what a name in its SQL stands for, id or path, as of each time",
            ),
            _flag("--snapshot", "create: a continual task begins with what is there"),
            _value("--as-of", "TIME", "create: from when on; peek: the time (the newest complete)"),
            _repeated("--set", "NAME=VALUE", "configure: a value"),
            _value("--where", "CONDITION", "peek: only rows for which it holds"),
            _value("--limit", "N", "peek: at most this number of rows", type=int),
            _flag("--read-only", "run: follow the process that maintains the instance"),
            _flag("--moved", "run: the directory was meant to be moved to where it is"),
            _repeated(
                "--adopt", "NAME=START", "run: the command log went back; continue a collection as this start wrote it"
            ),
            _repeated(
                "--leave",
                "NAME",
                "run: the command log went back, or is lost; leave a collection, or a folder, as it is (* all folders)",
            ),
            _value("--master", "MASTER", "run: where Spark runs (local[*])", default="local[*]"),
            _TIMEOUT,
        ),
    ),
    Verb(
        "advance",
        "move a stream's frontier forward",
        "Declare times of a stream complete, in the name of its owner. Rows that come at such times are late then.",
        (
            _LOG,
            _value("frontier", "FRONTIER", "where to: a time, or a JSON list of times"),
            _value("--stream", "NAME", "which stream (main)", default="main"),
            _reason("advanced by hand"),
            *_CHANGING,
        ),
    ),
    Verb(
        "close",
        "declare a stream, or the whole log, complete",
        "Give up all capabilities: nothing can be appended any more. This cannot be undone.",
        (
            _LOG,
            _value("--stream", "NAME", "only this stream; if not given the whole log"),
            _reason("closed by hand"),
            *_CHANGING,
        ),
    ),
    Verb(
        "compact",
        "merge small files; changes no answer",
        "Merge small files into larger ones. Readers and writers may continue meanwhile.",
        (_LOG, _value("--target-file-size", "SIZE", "such as 64mb (128mb)", type=_size)),
    ),
    Verb(
        "forget",
        "let a log forget what is before a frontier",
        "Forget times before a frontier: messages of a stream are deleted, updates of a collection are summed. What"
        " retainers need stays, and what the log keeps. This cannot be undone. Files on disk go later, by upkeep or"
        " with --purge. Exit code 1 if something holds it back.",
        (
            _LOG,
            OneOf(
                _value("--to", "FRONTIER", "what is before need not be remembered"),
                _value(
                    "--keep", "LENGTH", "how much of the log stays, behind its frontier: 30 days; a number of units"
                ),
                required=True,
            ),
            _flag("--always", "with --keep: from now on too, by themselves as rows are captured"),
            _flag("--purge", "delete files that nobody needs, and say when the rest is gone from disk"),
            *_CHANGING,
        ),
    ),
    Verb(
        "retain",
        "keep a log readable from a frontier on",
        "Register or move a retainer: what its consumer needs is not forgotten until it is released or expires.",
        (
            _LOG,
            _value("consumer", "CONSUMER", "a name for who reads"),
            _value("frontier", "FRONTIER", "from where the log stays readable"),
            _value("--owner", "NAME", "the one that may move it (command line)", default="command line"),
            _value("--expiry", "DURATION", "how long it counts (7 days)", default="7 days"),
        ),
    ),
    Verb(
        "retainers",
        "the retainers of a log, and what they cost",
        "Print the retainers of a log: from where on each keeps it readable, until when, and about how many bytes could"
        " be forgotten if it alone were gone.",
        (_LOG,),
    ),
    Verb(
        "release",
        "let a retainer go",
        "Let a retainer go, whatever query or program owns it. A query whose retainer is gone may find that the log has"
        " forgotten what it needs.",
        (_LOG, _value("consumer", "CONSUMER", "the name, as `retainers` shows it"), *_CHANGING),
    ),
    Verb(
        "vacuum",
        "delete files that were replaced long ago",
        "Delete files that merges and compaction have replaced, once nobody can need them. No answer changes.",
        (
            _LOG,
            _value(
                "--older-than",
                "DURATION",
                "how long ago files were replaced, at least (what the table says, a day for logs)",
                type=duration,
            ),
            _flag("--unknown", "also files a week old that no entry of the table's log names"),
            _flag("--dry-run", "show what would go, and delete nothing"),
        ),
    ),
    Verb(
        "repair",
        "put whole entries in the place of damaged ones; accept what another program changed",
        "Find entries of the table's log that a power cut left empty, cut or missing, and say what can be done and what"
        " is lost. With --yes it is done. Exit code 1 if there is damage that was left as it is. With --accept messages"
        " that another program changed are taken as they are, where a RESTORE is not possible any more.",
        (
            _LOG,
            OneOf(
                _flag("--yes", "do it; else it is only said what would be done"),
                _value(
                    "--accept",
                    "TOKEN",
                    "accept what another program changed, by the token of the error that refuses the log: messages"
                    " are as they are, progress is put back",
                ),
            ),
        ),
    ),
    Verb(
        "wait",
        "wait until a time is complete; for job conditions",
        "Wait until a log's frontier has passed a time or reached a token, or until the logs of a cut have come so far."
        " Exit code 0 if it has; 1 if not within the timeout. A complete log has passed every time.",
        (
            _value("log", "LOG", "path or URL of the log", nargs="?"),
            OneOf(
                _value("--time", "TIME", "until this time is complete: the frontier has passed it"),
                _value(
                    "--token",
                    "FRONTIER",
                    "until all times not beyond this frontier are complete: a JSON list of times; '[]' is the end"
                    " of the log",
                ),
                _value(
                    "--cut",
                    "FILE",
                    "until the logs of a cut have come so far; JSON as str(cut) gives it, - reads it",
                ),
                required=True,
            ),
            _value(
                "--timeout", "DURATION", "such as 10m; 0 looks once (60s)", type=duration, default=Duration(60_000_000)
            ),
            _poll("between two looks (1s)"),
        ),
    ),
    Verb(
        "import",
        "captures of the real timely into a log",
        "Import captures that timely's EventWriter wrote, from files or sockets: one stream of the log for each. The"
        " protocol is checked. What the log has already is not added again: an import can be repeated, and continues"
        " where it was when files have grown.",
        (
            _LOG,
            _value(
                "captures",
                "FILE",
                "captures: files, or addresses: tcp-listen://HOST:PORT waits for a producer, tcp://HOST:PORT connects",
                nargs="+",
            ),
            _value("--time", "TYPE", "type of the times", required=True),
            _value("--record", "TYPE", f"type of the records; {_TYPES}", required=True),
            _choice(
                "--timely",
                ["0.31", "0.32"],
                "version of timely that writes the captures; needed with addresses, with --wait, and where both fit the"
                " bytes. Kept with the stream (the only one that all bytes of a file fit)",
            ),
            _choice(
                "--stamps",
                ["refuse", "column"],
                "what to do with records that have several times of a partial order, as 0.32 allows; column keeps the"
                " times of each record's message in a column 'stamp' (refuse)",
                default="refuse",
            ),
            _choice(
                "--unstamped",
                ["refuse", "drop", "dead-letter"],
                "what to do with records that have no time, as 0.32 allows; drop counts them (refuse)",
                default="refuse",
            ),
            _choice(
                "--updates",
                ["auto", "yes", "no"],
                "whether records are updates (data, time, diff), each at its own time (auto: those of 0.32 that have"
                " the type (data, time, i64))",
                default="auto",
            ),
            _repeated(
                "--stream", "NAME", "name of the stream, one for each FILE in turn; by default what the file is called"
            ),
            _value("--streams", "N", "how many captures a new log will get in all (as many as FILEs)", type=_positive),
            _choice(
                "--format",
                ["timely", "jsonl", "cdcv2"],
                "of the files: timely's own, the same as lines of JSON, or lines of CDCv2 messages, which all together"
                " are one stream of a collection log (timely)",
                default="timely",
            ),
            _value(
                "--wait",
                "DURATION",
                "how long to wait for more of a capture that is not closed (0s for files, 60s for addresses)",
                type=duration,
            ),
        ),
    ),
    Verb(
        "export",
        "a log to captures that the real timely replays",
        "Write a log, or part of it, to capture files that timely's EventReader replays: as many as are asked for,"
        " balanced, each by itself a valid stream.",
        (
            _LOG,
            _value("folder", "DIR", "where to write the captures"),
            _value("--files", "N", "how many captures (1)", type=_positive, default=1),
            *_EXPORTED,
            _value("--stream", "NAME", "only this stream of the log"),
            _value("--up-to", "FRONTIER", "only times not beyond this frontier; the captures end there"),
            _value("--name", "NAME", "what the files' names begin with (capture)", default="capture"),
            _choice(
                "--format",
                ["timely", "jsonl", "cdcv2"],
                "of the files: timely's own, the same as lines of JSON, or for a collection log CDCv2 messages as lines"
                " of JSON (what fits the log)",
            ),
        ),
    ),
    Verb(
        "types",
        "the Rust types of a log's captures, and a program that replays them",
        "Print Rust: the types of times and records that a log is exported as, and a short program that replays the"
        " captures. A comment in it says what its Cargo.toml needs. With --json: the types and the program.",
        (_LOG, *_EXPORTED),
    ),
    Verb(
        "completion",
        "a script that completes the command line in bash or zsh",
        "Print a script for a shell, which completes verbs, options and paths. It needs the package shtab: pip install"
        " 'spark-timely[cli]'. For bash, add this line to ~/.bashrc: eval \"$(spark-timely completion bash)\". For zsh,"
        ' add to ~/.zshrc, after compinit: eval "$(spark-timely completion zsh)".',
        (_choice("shell", ["bash", "zsh"], "whose script"),),
        of_logs=False,
    ),
)

_HELPED = [*(verb.name for verb in _VERBS), "help"]
VERBS: tuple[Verb, ...] = (
    *_VERBS,
    Verb(
        "help",
        "what a verb does and takes",
        "Print the help of a verb, as VERB --help does; without a verb that of all.",
        (_value("about", "VERB", "which verb; all if not given", nargs="?", choices=_HELPED),),
        of_logs=False,
    ),
)
