"""Plain English in all that people read: heads that name their module, and none of the phrases of a list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.modules import ROOT

# What may stand between two words of a text: the end of a line, with the sign of a comment or a quotation, or the seam
# of two literals.
_GAP = r"""(?:[\s#>]|"\s*\n\s*f?")+"""
# Where a sentence or a clause of its own begins: a literal, a comment, an entry of a list, or after a point.
_BEGIN = r"""(?:"|^[\s#>*-]*|[.;:!?—]{gap}|\d\.\s+)"""

# A phrase, and what to say instead.
PHRASES = {
    # A question may begin so: it ends with its mark before any other point.
    f"{_BEGIN}(?-i:[Ww]ho) [a-z](?![^.;:|]*\\?)": "name the actor: the writer, the query, a process that …",
    "tells? of": "is about, states, names",
    "(?:is|are) told": "gets, receives, learns, states",
    "untold": "unreported",
    "bears?": "has, carries",
    "at one go": "at once, in one step",
    "anew": "again",
    "(?:go|goes|going|went) on": "continue",
    "(?:stand|stands|stood|standing) still": "wait, stop",
    "comes? to": "become, equal, reach",
    "(?:has|had|have) it that": "says that",
    "lies": "is",
    "(?:leave|leaves) off": "stop, end",
    "in vain": "without effect, for nothing",
    "his|him": "its",
    "a mistake of": "an internal error",
    "so many": "give the number a name: `n` seconds",
    "whoever": "name the actor: the writer, a reader, the process that …",
    "told": "known, distinct, received, reported, stated",
    "errors? of ours": "an internal error",
}

# What a module, or a class, is: a noun phrase or a verb, not a question.
RIDDLES = re.compile(
    r"(?:(?:at|by|for|from|in|of|on|since|to|up to|with) )?(?:what|how|who|whoever|which|when|where|why)\b",
    re.IGNORECASE,
)

# Names of files that say nothing of what is in them.
EMPTY_NAMES = re.compile(
    "building|common|early|facts|fit|growing|helpers|hosted|hosting|lib|live|marks|misc|notes|objects|places?|seen|stuff"
    "|surroundings|things|utils?|various|watching|working"
)


def read_by_people() -> list[Path]:
    """Return the files of the product, its scripts and its pages."""
    folders = ("spark_timely", "datasource", "sink", "conf", "benchmarks", "examples", "scripts", "docs")
    files = [
        file
        for folder in folders
        for ending in ("py", "md", "sh", "yml", "toml")
        for file in sorted((ROOT / folder).rglob(f"*.{ending}"))
    ]
    alone = (
        "README.md",
        "CHANGELOG.md",
        "ARCHITECTURE.md",
        "tests/README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Makefile",
        "pyspark_timely.py",
    )
    return [*files, *(ROOT / name for name in alone)]


def modules() -> list[Path]:
    """Return the modules of the product."""
    files = [
        file for folder in ("spark_timely", "datasource", "sink", "conf") for file in (ROOT / folder).rglob("*.py")
    ]
    return sorted([*files, ROOT / "pyspark_timely.py"])


def pattern(phrase: str) -> re.Pattern[str]:
    """Return what finds a phrase, also where it is wrapped."""
    bare = phrase if phrase.startswith('(?:"') else rf"\b(?:{phrase})\b"
    spaced = bare.replace(" ", _GAP).replace("{gap}", _GAP)
    return re.compile(spaced, re.IGNORECASE | re.MULTILINE)


def found_in(text: str, phrase: str) -> list[tuple[int, str]]:
    """Return the lines of a text at which a phrase ends, with their numbers."""
    lines = text.splitlines()
    ends = [text.count("\n", 0, found.end()) for found in pattern(phrase).finditer(text)]
    return [(end + 1, lines[end].strip()) for end in ends]


@pytest.mark.parametrize("phrase", PHRASES)
def test_nothing_that_people_read_has_the_phrase(phrase: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line}"
        for file in read_by_people()
        for number, line in found_in(file.read_text(encoding="utf-8"), phrase)
    ]
    assert not found, f"say instead: {PHRASES[phrase]}\n" + "\n".join(found)


def heads_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return the first lines of the docstrings of a module and its classes, with the numbers of the lines."""
    for node in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))):
        text = ast.get_docstring(node)
        if text:
            yield node.body[0].lineno, text.splitlines()[0]


def test_heads_of_modules_and_classes_name_what_these_are() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line}"
        for file in modules()
        for number, line in heads_of(ast.parse(file.read_text(encoding="utf-8")))
        if RIDDLES.match(line)
    ]
    assert not found, "begin with a noun or a verb\n" + "\n".join(found)


def test_heads_of_modules_are_one_sentence_that_fits_a_line() -> None:
    heads = {file: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for file in modules()}
    found = [str(file.relative_to(ROOT)) for file, head in heads.items() if not re.match(r"\S.*\.(?:\n\n|$)", head)]
    assert found == []


def test_names_of_files_say_what_is_in_them() -> None:
    assert [file.relative_to(ROOT).as_posix() for file in modules() if EMPTY_NAMES.fullmatch(file.stem)] == []


def test_no_comment_counts_the_turns_of_its_loop() -> None:
    counts = re.compile(r"\b(?:for|while)\b.*# (?:at most |as )?(?:one|a|two|three|many) turns?\b")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in modules()
        for line in file.read_text(encoding="utf-8").splitlines()
        if counts.search(line)
    ]
    assert not found, "say why it is cheap, or nothing\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("line", "is_riddle"),
    [
        ("What whoever drives an instance saw.", True),
        ("At which time several collections answer together.", True),
        ("How a dataflow is written down.", True),
        ("The planner of replays.", False),
        ("Reads the rows of a log.", False),
        ("Whether the log is complete.", False),
    ],
)
def test_a_head_that_asks_is_found(line: str, is_riddle: bool) -> None:
    assert (RIDDLES.match(line) is not None) == is_riddle


@pytest.mark.parametrize(
    ("text", "n_found"),
    [
        ('"""Read it.\n\n    Who reads the rows starts here.\n"""', 1),
        ('hint="who has lost a stream does not get it back"', 1),
        ("1. One owner. Who takes it over owns it; who has lost\n   it never gets it back.", 2),
        ("# Who captures needs it.", 1),
        ("to go\n    # on with it", 1),
        ('msg = (\n    f"could not go"\n    f" on at {name}"\n)', 1),
        ('msg = "what is made "\n    "anew"', 1),
        ("## Who owns a stream?", 0),
        ("a query, who owns it", 0),
        ("times lie between 1700 and 9999, which stay distinct", 0),
        ("two times that cannot be\n    told apart", 1),
        ('"""Rows of whoever asks."""', 1),
        ("# an error\n    # of ours", 1),
        ("it implies that history relies on this", 0),
    ],
)
def test_phrases_are_found_where_sentences_begin_and_lines_end(text: str, n_found: int) -> None:
    assert sum(len(found_in(text, phrase)) for phrase in PHRASES) == n_found
