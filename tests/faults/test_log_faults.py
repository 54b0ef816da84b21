"""How a log could lose or repeat a row, or let a frontier pass early: each way is tried.

Here a store that fails in all four ways under every commit, writes that land late, and a process that dies
between any two steps; races are in `test_log_races.py`, other engines in `test_table_rewritten.py`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import StorageError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store.base import MemoryStore
from tests.faults.append_query import VALUES, assert_exactly_once, run_query
from tests.faults.harness import long_lane
from tests.faults.unreliable import UnreliableStore, make_unreliable

pytestmark = pytest.mark.faults


# A store that fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_store_fails_in_all_four_ways_under_every_commit(seed: int) -> None:
    plain = MemoryLog.create(VALUES, minimum=(0,), merge_every=7)
    ways: Counter[tuple[bool, bool]] = Counter()
    stores: list[UnreliableStore] = []

    def make() -> Log:
        log = plain.another()
        stores.append(
            make_unreliable(
                log,
                seed=1000 * seed + len(stores),
                happens=0.5,
                reports_failure=0.5,
                lands_late=0.5,
                another=lambda: MemoryStore(plain.core.store.table),
            )
        )
        return log

    run_query(make, 40)
    for store in stores:
        ways.update(store.calls)
    assert set(ways) == {(a, b) for a in (False, True) for b in (False, True)}
    plain.refresh()
    assert_exactly_once(plain, 40)


@pytest.mark.parametrize("seed", range(3))
def test_store_fails_in_all_four_ways_over_a_table(seed: int, tmp_path: Path) -> None:
    plain = create_log(tmp_path / "log", VALUES, minimum=(0,), merge_every=5)
    stores: list[UnreliableStore] = []

    def make() -> Log:
        log = open_log(tmp_path / "log", merge_every=5)
        stores.append(make_unreliable(log, seed=100 * seed + len(stores), happens=0.5, reports_failure=0.5))
        return log

    run_query(make, 20)
    plain.refresh()
    assert_exactly_once(plain, 20)


def test_unclear_commit_without_a_batch_number_happens_once() -> None:
    for seed in range(2000 if long_lane() else 50):
        plain = MemoryLog.create(VALUES, minimum=(0,))
        writer = plain.writer(owner="me")
        store = make_unreliable(
            plain,
            seed=seed,
            happens=0.4,
            reports_failure=0.7,
            lands_late=0.7,
            another=lambda table=plain.core.store.table: MemoryStore(table),
        )
        told = 0
        with contextlib.suppress(StorageError):
            for i in range(5):
                writer.append(pa.table({"_time": [i], "v": [i]}))
                told += 1
        plain.core.store = store.inner
        plain.refresh()
        plain.refresh()
        found = plain.messages()["v"].to_pylist()
        # What was reported as done is there once; what was unclear is there once or not at all.
        assert found in (list(range(told)), list(range(told + 1)))
        assert plain.verify().legal


def test_storage_lost_right_after_a_commit_leaves_it_unclear() -> None:
    log = MemoryLog.create(VALUES, minimum=(0,))
    writer = log.writer(owner="me")
    inner = log.core.store

    class GoneAfterCommit(UnreliableStore):
        gone = False

        def transact(self, *args: Any, **kwargs: Any) -> None:
            super().transact(*args, **kwargs)
            self.gone = True

        def refresh(self, *, after_put: bool = False) -> bool:
            if self.gone:
                raise StorageError("could not open log 'x': found nothing", determinate=True)
            return super().refresh(after_put=after_put)

    log.core.store = GoneAfterCommit(inner, happens=1.0, reports_failure=0.0)
    with pytest.raises(StorageError) as caught:
        writer.append(pa.table({"_time": [1], "v": [1]}))
    assert not caught.value.determinate
    log.core.store = inner
    log.refresh()
    # It had happened, and its file is still there.
    assert log.messages()["v"].to_pylist() == [1]
    assert log.verify().legal


# A process that dies --------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """Passes calls on, and dies right before or right after the n-th of those that change something."""

    def __init__(self, inner: Any, steps: Iterator[int], at: int, changing: tuple[str, ...]) -> None:
        self._inner, self._steps, self._at, self._changing = inner, steps, at, changing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._changing:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(self._steps) == self._at:
                raise Crash
            result = found(*args, **kwargs)
            if next(self._steps) == self._at:
                raise Crash
            return result

        return call


class CrashingStore(Crashing):
    """A store whose storage dies too."""

    @property
    def storage(self) -> Any:
        return Crashing(self._inner.storage, self._steps, self._at, ("write", "open_output", "delete"))


@pytest.mark.parametrize("kind", ["memory", "delta"])
def test_process_dies_between_any_two_steps(kind: str, tmp_path: Path) -> None:
    finished, at = False, 0
    while not finished:
        if kind == "memory":
            plain: Log = MemoryLog.create(VALUES, minimum=(0,), merge_every=2)
        else:
            plain = create_log(tmp_path / str(at), VALUES, minimum=(0,), merge_every=2)
        steps = iter(range(1 << 30))
        first = True

        def make(plain: Log = plain, steps: Iterator[int] = steps, at: int = at) -> Log:
            nonlocal first
            log = plain.another() if isinstance(plain, MemoryLog) else open_log(plain.path, merge_every=2)
            if first:
                first = False
                log.core.store = CrashingStore(log.core.store, steps, at, ("transact", "refresh", "tidy"))  # type: ignore[assignment]
            return log

        done: list[int] = []
        try:
            run_query(make, 3, done)
            finished = True
        except Crash:
            # Whatever was left behind: a new process repeats the batch that was under way.
            run_query(make, 3, done)
        plain.refresh()
        assert_exactly_once(plain, 3)
        at += 1 if kind == "memory" else 3
    assert at > 20


def test_process_dies_while_creating(tmp_path: Path) -> None:
    where = tmp_path / "log"
    # A progress file was written, the table was not: creation can be repeated.
    (where / "_event=progress").mkdir(parents=True)
    (where / "_event=progress" / "open.-000000000000-00.parquet").write_bytes(b"left behind")
    log = create_log(where, VALUES, minimum=(0,))
    assert log.core.unclaimed == 1
    assert create_log(where, VALUES, minimum=(0,), exist_ok=True).core.log_id == log.core.log_id
