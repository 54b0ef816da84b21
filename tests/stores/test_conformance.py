"""The conformance suite of a log, with the log in a store: what takes a `maker` there takes one of a store here.

The short lane runs the tests in `SHORT` on moto, the long lane all of them on every store.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_timely.log import core
from spark_timely.log.store import delta as delta_store
from tests.conformance.logs import LogMaker
from tests.stores.conftest import Place

SHORT = {
    "test_commit_is_the_same_before_and_after_its_file_was_merged",
    "test_commit_of_another_plan_is_refused_at_any_seq",
    "test_log_of_two_streams_moves_when_both_have_opened",
    "test_open_by_another_owner_is_refused",
    "test_two_openers_on_one_unclaimed_capability",
    "test_rows_before_and_without_a_new_column_have_nulls_there",
    "test_stream_taken_over_continues_without_its_former_owner",
    "test_takeovers_at_once_own_the_stream_one_after_the_other",
    "test_merge_of_files_keeps_columns_that_only_some_have",
    "test_vacuum_leaves_what_is_part_of_the_log",
}


@pytest.fixture
def maker(place: Place) -> LogMaker:
    return LogMaker("store", place.url, storage_options=place.options)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once where a log that is damaged is looked at again after a pause."""
    monkeypatch.setattr(delta_store, "_pause", lambda _: None)


@pytest.fixture(autouse=True)
def _upkeep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do upkeep with the commit that it comes with: tests look at what it did."""

    def run(log: object, job: Callable[[], None]) -> bool:
        del log
        job()
        return True

    monkeypatch.setattr(core, "run_aside", run)


def _tests() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the suite's tests that take a maker: copies, whose marks are their own and choose no other kind of log."""
    for file in sorted((Path(__file__).parents[1] / "conformance").glob("test_*.py")):
        for name, test in vars(importlib.import_module(f"tests.conformance.{file.stem}")).items():
            if not name.startswith("test_") or "maker" not in test.__code__.co_varnames[: _arguments(test)]:
                continue
            own = types.FunctionType(test.__code__, test.__globals__, name, test.__defaults__, test.__closure__)
            own.__kwdefaults__ = test.__kwdefaults__
            own.__annotations__ = test.__annotations__
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.args[:1] != ("maker",)]
            own.pytestmark = marks if name in SHORT else [*marks, pytest.mark.long.mark]  # type: ignore[attr-defined]
            yield name, own


def _arguments(test: Any) -> int:
    return int(test.__code__.co_argcount + test.__code__.co_kwonlyargcount)


_found = dict(pairs := list(_tests()))
assert len(_found) == len(pairs), "two tests of one name"
assert set(_found) >= SHORT, "a test of that name is no longer there"
globals().update(_found)
