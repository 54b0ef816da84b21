"""Render the pages of the reference that are made from code: options, command line, errors.

``python scripts/reference.py`` writes them to ``docs/reference``; a test compares what is there with what it gives.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spark_timely import errors
from spark_timely.cli.parser import build_parser, wrapped
from spark_timely.cli.verb_table import VERBS
from spark_timely.conf import SINK_OPTIONS, SOURCE_OPTIONS, Option, OptionTable

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
_NUMPY_SECTION = re.compile(r"^(\w[\w ]*)\n-+$", re.MULTILINE)


def options() -> str:
    """Return the page of options: the present one, with the tables as they are now."""
    text = (FOLDER / "options.md").read_text(encoding="utf-8")
    return with_tables(text, sink=SINK_OPTIONS, source=SOURCE_OPTIONS)


def with_tables(text: str, **tables: OptionTable[Any]) -> str:
    """Put tables of options between the lines ``<!-- options: NAME -->`` and ``<!-- end -->`` of a Markdown text.

    Raises
    ------
    InvalidUsageError
        If a table has no such lines in the text.
    """
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- options: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        # A function, not a template: a backslash in a help text would mean something.
        text, n_found = pattern.subn(lambda marks, table=table: marks[1] + table_of(table) + marks[2], text)  # type: ignore[misc]
        if n_found == 0:
            msg = f"could not render the options {name!r}: found no line '<!-- options: {name} -->' with an end"
            raise errors.InvalidUsageError(msg, hint="add the two marks where the table shall be")
    return text


def table_of(table: OptionTable[Any]) -> str:
    """Return two tables of options as Markdown: those that a first job needs, and the others."""
    options = table.options.values()
    lines = ["In the first hour:", *_table_of(option for option in options if option.first)]
    lines += ["", "All others:", *_table_of(option for option in options if not option.first)]
    return "\n".join(lines) + "\n"


def _table_of(options: Iterable[Option]) -> Iterator[str]:
    yield from ("", "| option | values | meaning |", "|---|---|---|")  # with more columns it is wider than a laptop
    for option in options:
        default = "; required" if option.required else f"; default `{option.default}`" if option.default else ""
        yield f"| `{option.name}` | {_values(option)}{default} | {option.help} |"


def command_line() -> str:
    """Return the page of the command line, from its parser."""
    parser = build_parser()
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {action.dest: action.help or "" for action in verbs._choices_actions}
    # The others are about the command line itself.
    of_logs = [verbs.choices[verb.name] for verb in VERBS if verb.of_logs]
    common = {action.dest for action in _common(of_logs)}
    lines = [
        "# Command line",
        "",
        "This page is generated from the parser of the command line; `make docs` renews it.",
        "",
        f"`spark-timely VERB LOG`: {parser.description}",
        "",
        "| verb | |",
        "|---|---|",
        *(f"| [`{name}`](#{name}) | {_cell(summaries[name])} |" for name in verbs.choices),
        "",
        "Every verb about logs takes",
        "",
        *_arguments(_common(of_logs)),
        "",
        "```text",
        wrapped((parser.epilog or "").strip(), 118),
        "```",
        "",
        "`--json` may also be in front of the verb. `python -m spark_timely` is the same command line.",
        "",
        "Errors are one line on standard error; with `--json` they are one JSON object there. Where an option of a verb"
        " is unknown, the verb's usage follows. An internal error ends with 70 and a traceback; 141 means that the"
        " reader of the answer, such as `head`, left before the end.",
        "",
        "On a terminal, tables are as wide as it, or as `COLUMNS` says: long cells are cut. In a file or a pipe every"
        " cell is whole. Help is as wide as the terminal or `COLUMNS`.",
    ]
    for name, verb in verbs.choices.items():
        own = [action for action in _shown(verb) if action.dest not in common]
        words = " ".join([*(_usage(action) for action in own if not action.option_strings), *_needed(own)])
        lines += ["", f"## {name}", "", f"`spark-timely {name} {words}`", "", _sentences(verb.description or "")]
        lines += ["", *_arguments(own)]
    return "\n".join(lines) + "\n"


def error_page() -> str:
    """Return the page of errors, from their classes: the condition and the cure of each."""
    lines = [
        "# Errors",
        "",
        "This page is generated from `spark_timely/errors.py`; `make docs` renews it.",
        "",
        "Everything that the library raises on purpose is a `TimelyError`, in `spark_timely.errors`. A message reads"
        " `[<condition>] could not <attempt>: <what was found> — hint: <what to do>`, on one line; `error.condition`,"
        " `error.sqlstate`, `error.message`, `error.hint` and `error.context` (values by name) hold its parts.",
        "",
        "Errors of a query that was refused after a restart:"
        " [My query was refused after a restart](../how-to/refused-after-restart.md).",
    ]
    for kind, depth in _tree(errors.TimelyError):
        lines += ["", f"({kind.condition.lower().replace('_', '-')})=", f"{'#' * min(2 + depth, 4)} {kind.__name__}"]
        lines += ["", f"`{kind.condition}` · SQLSTATE {kind.sqlstate}", "", _prose(kind)]
        others = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
        if others:
            lines += ["", f"Also a `{others[0]}`."]
        values = {name: value for name, value in vars(kind).items() if isinstance(value, errors._Value | property)}
        if values:
            lines += ["", *(f"- `{name}`: {_lowered(inspect.getdoc(value) or '')}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


PAGES = {"options.md": options, "cli.md": command_line, "errors.md": error_page}


def _common(verbs: list[argparse.ArgumentParser]) -> list[argparse.Action]:
    """Return the options that every verb has, as the first one states them."""
    everywhere = set.intersection(*({action.dest for action in _shown(verb)} for verb in verbs))
    return [action for action in _shown(verbs[0]) if action.option_strings and action.dest in everywhere]


def _shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def _needed(actions: list[argparse.Action]) -> list[str]:
    return [
        f"{action.option_strings[-1]} {_metavar(action)}"
        for action in actions
        if action.required and action.option_strings
    ]


def _usage(action: argparse.Action) -> str:
    word = _metavar(action)
    return {None: word, "?": f"[{word}]", "*": f"[{word} …]", "+": f"{word} …"}.get(action.nargs, word)  # type: ignore[call-overload]


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _arguments(actions: list[argparse.Action]) -> list[str]:
    lines = ["| argument | |", "|---|---|"]
    for action in actions:
        names = ", ".join(action.option_strings)
        word = names if action.option_strings and action.nargs == 0 else f"{names} {_metavar(action)}".strip()
        lines.append(f"| `{_cell(word)}` | {_cell(action.help or '')} |")
    return lines


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("%%", "%")).replace("|", "\\|")


def _sentences(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", ":")) else f"{text}."


def _tree(kind: type[errors.TimelyError], depth: int = 0) -> Iterator[tuple[type[errors.TimelyError], int]]:
    yield kind, depth
    for child in vars(errors).values():  # in the order of their definition; subclasses elsewhere are none of the page
        if inspect.isclass(child) and kind in child.__bases__:
            yield from _tree(child, depth + 1)


def _prose(kind: type[errors.TimelyError]) -> str:
    """Return what a docstring says before its sections, as Markdown."""
    text = _NUMPY_SECTION.split(inspect.getdoc(kind) or "")[0].strip()
    return text.replace("``", "`")


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


_KIND_TEXT: dict[str, str] = {
    "str": "text",
    "name": "letters, digits, `_`",
    "names": "names, comma separated or a JSON list",
    "int": "number",
    "bool": "`true`, `false`",
    "bytes": "size such as `128mb`",
    "antichain": 'one time, or a JSON antichain such as `[5]` or `["2013-06-12"]`',
    "seq": "number",
    "wallclock": "moment such as `2013-01-01T00:00Z`",
}


def _values(option: Option) -> str:
    words = ", ".join(f"`{word}`" for word in option.choices)
    if option.kind == "enum":
        return words
    kind = option.unit if option.kind in ("duration", "distance") else _KIND_TEXT[option.kind]
    return f"{kind}, {words}" if words else kind


if __name__ == "__main__":
    for page, render in PAGES.items():
        (FOLDER / page).write_text(render(), encoding="utf-8")
