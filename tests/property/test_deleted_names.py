"""What is found by its name to be deleted: names that are alike, of other streams, exports and people, stay.

For each place a folder is filled with the place's own names and with names that differ from them a little. Which are
its own is said here by cutting names into parts, not by the patterns of the code.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.compute.drive.directory import Directory
from spark_timely.compute.drive.requests import Requests
from spark_timely.interop.exporting import WholeFiles
from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.capture import cdcv2
from spark_timely.trace.folder import delete, delete_former
from tests.support import examples

HEX = set("0123456789abcdef")
DIGITS = set("0123456789")


def _statements(folder: Path, names: set[str]) -> set[str]:
    """Statements of CDCv2 of stream ``a-0`` up to commit 5, with one that a commit names."""
    (folder / "_cdcv2").mkdir()
    fill(folder / "_cdcv2", names)
    plan: Any = SimpleNamespace(options=SimpleNamespace(stream="a-0"))
    nothing: Any = None
    cdcv2._Task(nothing, plan, nothing, open_storage(folder, {})).forget_before(5, f"a-0-{5:012d}-{'0' * 16}.json")
    return left_in(folder / "_cdcv2")


def _is_of_statements(name: str) -> bool:
    stem, dot, end = name.rpartition(".")
    stream, seq, token = (["", "", *stem.rsplit("-", 2)])[-3:]
    whole = dot + end == ".json" and len(seq) >= 12 and set(seq) <= DIGITS and len(token) == 16 and set(token) <= HEX
    return whole and stream == "a-0" and int(seq) <= 5 and name != f"a-0-{5:012d}-{'0' * 16}.json"


def _exports(folder: Path, names: set[str]) -> set[str]:
    """Unfinished files of an export of ``a`` and ``a.0``, which ends."""
    fill(folder, names - {"a", "a.0"})
    with WholeFiles("a log", folder, ["a", "a.0"]) as whole:
        whole.finish()
    return left_in(folder) | ({"a", "a.0"} & names)


def _is_of_exports(name: str) -> bool:
    head, token, end = (["", "", *name.rsplit(".", 2)])[-3:]
    return end == "partial" and len(token) == 8 and set(token) <= HEX and head in (".a", ".a.0")


def _requests(folder: Path, names: set[str]) -> set[str]:
    """What is left of requests, and answers of a day ago."""
    (folder / "requests").mkdir()
    fill(folder / "requests", names)
    requests = Requests(Directory(str(folder)))
    requests._sweep(requests._storage.names())
    return left_in(folder / "requests") - {"."}


def _is_of_requests(name: str) -> bool:
    digits = name.removeprefix(".")[:20]
    if len(digits) < 20 or not set(digits) <= DIGITS:
        return False
    return name.endswith(".begun") or (name.endswith((".answer", ".tmp", ".new")) and int(digits) < 10**18)


def _index(folder: Path, names: set[str]) -> set[str]:
    """Files that a damaged list of an index names: some lead out of its folder."""
    (folder / "index").mkdir()
    fill(folder / "index", names)
    (folder / "run-out").write_text("mine")
    delete(str(folder / "index"), [*names, "../run-out", "run-x/../../run-out", str(folder / "run-out"), "..", ""])
    assert (folder / "run-out").read_text() == "mine"
    return left_in(folder / "index")


def _former_index(folder: Path, names: set[str]) -> set[str]:
    """The folder of an index as an earlier version has left it, two days ago."""
    (folder / "by-1").mkdir()
    fill(folder / "by-1", names)
    for name in names:
        os.utime(folder / "by-1" / name, (0, 0))
    delete_former(str(folder / "by-1"), 2 * 86_400)
    left = left_in(folder / "by-1") if (folder / "by-1").exists() else set()
    assert (folder / "by-1").exists() == bool(left)
    return left


def _is_of_index(name: str) -> bool:
    spine, dot, end = name.partition(".")
    unfinished = end[5:].endswith(".tmp") and len(end) == 41 and set(end[5:37]) <= HEX
    whole = dot + end == ".json" or (end.startswith("json.") and unfinished)
    is_spine = spine.startswith("spine-") and len(spine) == 26 and set(spine[6:]) <= DIGITS and whole
    return is_spine or (name.startswith("run-") and len(name) > 4)


OF_INDEX = ["run-0123abcd.arrow", f"spine-{7:020d}.json", f"spine-{7:020d}.json.{'0a' * 16}.tmp"]

PLACES: dict[str, tuple[Callable[[Path, set[str]], set[str]], Callable[[str], bool], list[str]]] = {
    "statements": (
        _statements,
        _is_of_statements,
        [f"{stream}-{seq:012d}-{token * 8}.json" for stream in ("a-0", "a", "a-") for seq in (4, 5, 6)
         for token in ("00", "3f")],
    ),
    "exports": (_exports, _is_of_exports, [".a.0123abcd.partial", ".a.0.0123abcd.partial", ".b.0123abcd.partial"]),
    "requests": (
        _requests,
        _is_of_requests,
        [f"{1:020d}-ab{end}" for end in (".begun", ".answer", ".new")] + [f".{1:020d}-ab.json.0.tmp", "notes.begun"],
    ),
    "index": (_index, _is_of_index, OF_INDEX),
    "former index": (_former_index, _is_of_index, OF_INDEX),
}  # fmt: skip


def fill(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).write_text(name)


def left_in(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


@st.composite
def alike(draw: st.DrawFn, own: list[str]) -> str:
    """Draw one of a place's own names, or one that differs from it."""
    name = draw(st.sampled_from(own))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(name)))
        cut = draw(st.integers(0, 2))
        name = (
            name[:at]
            + draw(st.sampled_from(["", "", "-", ".", "0", "a", "partial", ".json", "\n", "²"]))
            + name[at + cut :]
        )
    return name if name not in ("", ".", "..") else own[0]


@pytest.mark.parametrize("place", PLACES)
@examples(60, long=3000)
@given(data=st.data())
def test_names_that_are_alike_are_not_deleted(place: str, data: st.DataObject) -> None:
    act, is_own, own = PLACES[place]
    names = set(data.draw(st.lists(alike(own), min_size=1, max_size=12)))
    with tempfile.TemporaryDirectory() as folder:
        left = act(Path(folder), names)
    assert names - left == {name for name in names if is_own(name)}
