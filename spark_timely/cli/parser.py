"""The parser of the command line, made of the table of its verbs; completion and help.

`spark_timely.cli.command` parses by it. The verbs and their options are in `spark_timely.cli.verb_table`.

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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import spark_timely
from spark_timely.cli.output import Console, answering
from spark_timely.cli.verb_table import VERBS, Run
from spark_timely.errors import InvalidUsageError, shown

__all__ = ["RUNS", "Parser", "build_parser", "wrapped"]

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
        with answering():  # argparse passes over what standard output refuses
            (file or sys.stdout).write(message)


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
        for argument in verb.arguments:
            argument.add_to(child)
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
