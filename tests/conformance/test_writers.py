"""A writer that lives on knows the log that it left, and what it may have appended to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.errors import (
    ClosedError,
    NotBeyondError,
    RolledBackError,
    StorageError,
    UnheldCapabilityError,
    UpperMismatchError,
)
from spark_timely.log import Log, streams
from spark_timely.log.core import LogCore
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import CommitOutcome
from spark_timely.log.writer import StreamWriter
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import VALUES, LogMaker, frozen, rows, stored
from tests.faults.unreliable import UnreliableStore


class Gone(UnreliableStore):
    """A store that cannot be reached from the next commit on, which happens or not, or happens late."""

    def __init__(self, core: LogCore, *, happens: str, error: type[BaseException] = StorageError) -> None:
        super().__init__(core.store, happens=1.0, reports_failure=0.0)
        self.core, self.how, self.error = core, happens, error
        self.gone = False
        self.late: list[Callable[[], None]] = []
        core.store = self

    def transact(self, *args: Any, **kwargs: Any) -> None:
        if self.how == "now":
            self.inner.transact(*args, **kwargs)
        elif self.how == "late":
            self.late.append(lambda: self.inner.transact(*args, **kwargs))
        self.gone = True
        raise self._lost()

    def refresh(self, *, after_put: bool = False) -> bool:
        if self.gone:
            raise self._lost()
        return super().refresh(after_put=after_put)

    def back(self) -> None:
        """Reach the store again."""
        self.core.store = self.inner

    def _lost(self) -> BaseException:
        if self.error is StorageError:
            return StorageError("could not reach the store: found no network", hint="check the network")
        return self.error()


def told(act: Callable[[], CommitOutcome]) -> CommitOutcome:
    """Repeat a call until it is told what came of it."""
    for _ in range(50):
        try:
            return act()
        except StorageError:
            continue
    raise AssertionError("the store fails too often")


def lost_append(writer: StreamWriter, table: pa.Table, how: str, **progress: Any) -> Gone:
    """Append, and lose the store meanwhile."""
    gone = Gone(writer.core, happens=how)
    with pytest.raises(StorageError) as caught:
        writer.append(table, **progress)
    assert not caught.value.determinate
    assert "no network" in caught.value.message
    assert caught.value.hint is not None
    assert ("batch=…" in caught.value.hint) == ("batch" not in progress)
    assert "repeat the append" in caught.value.hint
    gone.back()
    return gone


def values(log: Any) -> list[int]:
    log.refresh()
    return sorted(log.messages()["v"].to_pylist())


@pytest.fixture
def log(maker: LogMaker) -> Log:
    return maker.create(VALUES, merge_every=3)


@pytest.fixture
def plain(tmp_path: Path) -> Log:
    return LogMaker("memory", tmp_path).create(VALUES)


# Without a key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["now", "late", "never"])
@pytest.mark.parametrize("between", [0, 4])
def test_unclear_append_repeated_is_there_once(log: Log, how: str, between: int) -> None:
    writer = log.writer(owner="me")
    told(lambda: writer.append(rows((1, 1)), advance_to=1, batch=0))
    gone = lost_append(writer, rows((3, 3), (4, 4)), how, advance_to=3)
    # What comes first is another append: late writes find their place taken.
    for i in range(between):
        told(lambda i=i: writer.append(rows((9, 10 + i)), batch=1 + i))  # type: ignore[misc]
    if how == "late" and not between:
        # The write takes effect between the look and the commit of the repetition.
        inner, late = log.core.store, gone.late
        log.core.store = UnreliableStore(inner, happens=1.0, reports_failure=0.0, before_commit=lambda: late.pop()())
        outcome = writer.append(rows((3, 3), (4, 4)), advance_to=3)
        log.core.store = inner
    else:
        outcome = told(lambda: writer.append(rows((3, 3), (4, 4)), advance_to=3))
    if not isinstance(log.core.store, UnreliableStore):
        assert outcome.committed == (how == "never" or (how == "late" and bool(between)))
    assert values(log) == [1, 3, 4, *range(10, 10 + between)]
    assert log.frontier() == Antichain.of(3)
    assert log.verify().legal


@pytest.mark.parametrize("how", ["now", "never"])
def test_rows_that_come_again_later_are_other_rows(log: Log, how: str) -> None:
    writer = log.writer(owner="me")
    lost_append(writer, rows((3, 3)), how)
    for _ in range(3):
        told(lambda: writer.append(rows((3, 3))))
    assert values(log) == [3, 3, 3]


def test_unclear_append_with_other_progress_is_refused(plain: Log) -> None:
    writer = plain.writer(owner="me")
    lost_append(writer, rows((3, 3)), "now", advance_to=2)
    before = frozen(plain)
    refused = r"found these rows there, of an append with an unclear outcome at seq=1 and "
    with pytest.raises(RolledBackError, match=refused + r"other progress, which left the stream at \[2\]") as caught:
        writer.append(rows((3, 3)), advance_to=3)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("repeat the append as it was")
    with pytest.raises(RolledBackError, match=refused + "no batch, now there is batch=7"):
        writer.append(rows((3, 3)), advance_to=2, batch=7)
    assert frozen(plain) == before
    assert not writer.append(rows((3, 3)), advance_to=2).committed
    assert frozen(plain) == before


@pytest.mark.parametrize("how", ["now", "late", "never"])
def test_unclear_changes_of_counts_happen_once(plain: Log, how: str) -> None:
    writer = plain.writer(owner="me")
    gone = lost_append(writer, rows(), how, progress=([[5]], [1]))
    if how == "late":
        gone.late.pop()()
    # No rows, and other progress: another append.
    writer.append(rows(), progress=([[7]], [1]))
    for _ in range(2 if how == "never" else 1):
        writer.append(rows(), progress=([[5]], [1]))
    held = {0: 1, 5: 2 if how == "never" else 1, 7: 1}
    state = writer.state
    assert dict(zip(state.counts.times[:, 0].tolist(), state.counts.counts.tolist(), strict=True)) == held


def test_unclear_append_outlives_further_failures(plain: Log) -> None:
    writer = plain.writer(owner="me")
    lost_append(writer, rows((3, 3)), "never")
    lost_append(writer, rows((3, 3)), "now")
    inner = plain.core.store
    store = UnreliableStore(inner)

    def fail() -> None:
        raise StorageError("could not flush: found a full disk")

    store.flush = fail  # type: ignore[method-assign]
    plain.core.store = store
    with pytest.raises(StorageError, match="full disk"):
        writer.append(rows((3, 3)))
    plain.core.store = inner
    assert not writer.append(rows((3, 3))).committed
    assert writer.append(rows((3, 3))).committed
    assert values(plain) == [3, 3]


def test_interrupted_append_is_there_once(plain: Log) -> None:
    writer = plain.writer(owner="me")
    gone = Gone(plain.core, happens="now", error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.append(rows((3, 3)))
    gone.back()
    assert not writer.append(rows((3, 3))).committed
    assert values(plain) == [3]


@pytest.mark.parametrize("key", [None, 4])
def test_unclear_append_that_closes_is_repeated(plain: Log, key: int | None) -> None:
    writer = plain.writer(owner="me")
    gone = lost_append(writer, rows((3, 3)), "late", advance_to=[], **({} if key is None else {"batch": key}))
    inner = plain.core.store
    plain.core.store = UnreliableStore(inner, happens=1.0, reports_failure=0.0, before_commit=lambda: gone.late.pop()())
    for _ in range(2 if key is not None else 1):
        assert not writer.append(rows((3, 3)), advance_to=[], batch=key).committed
    with pytest.raises(ClosedError):
        writer.append(rows((3, 3)), batch=None if key is None else 5)
    assert values(plain) == [3]


def test_files_of_an_append_that_did_not_happen_are_deleted(plain: Log) -> None:
    writer = plain.writer(owner="me")
    lost_append(writer, rows((3, 3)), "never")
    assert writer.append(rows((4, 4))).committed
    writer.append(rows((5, 5)))
    plain.refresh()
    assert {path for path in stored(plain) if "message" in path} == set(plain.core.files().paths.tolist())


def test_two_writers_with_one_clock_know_their_appends_apart(maker: LogMaker) -> None:
    # Each says the same of its commit: the same owner, rows, progress and moment.
    log = maker.create(VALUES, clock=ManualClock())
    mine, theirs = log.writer(owner="me"), maker.another(log).writer(owner="me")
    gone = lost_append(mine, rows((3, 3)), "never")
    told(lambda: theirs.append(rows((3, 3))))
    assert gone.how == "never"
    told(lambda: mine.append(rows((3, 3))))
    assert values(log) == [3, 3]


# With a key ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["now", "late", "never"])
def test_unclear_append_with_a_key_is_repeated_by_anyone(maker: LogMaker, how: str) -> None:
    log = maker.create(VALUES, merge_every=3)
    gone = lost_append(log.writer(owner="me"), rows((3, 3), (4, 4)), how, advance_to=3, batch=17)
    if how == "late":
        gone.late.pop()()
    for _ in range(3):
        writer = maker.another(log).writer(owner="me")
        told(lambda writer=writer: writer.append(rows((3, 3), (4, 4)), advance_to=3, batch=17))  # type: ignore[misc]
        # Without a key, and by `advance`: the key stays the newest.
        told(lambda writer=writer: writer.advance(5))  # type: ignore[misc]
        told(lambda writer=writer: writer.append(rows((8, 8)), batch=None))  # type: ignore[misc]
    assert values(log) == [3, 4, 8, 8, 8]
    state = log.core.stream("main")
    assert state is not None
    assert (state.batch, state.frontier) == (17, Antichain.of(5))
    assert log.verify().legal


def test_key_that_another_process_takes_first_is_judged(maker: LogMaker) -> None:
    log = maker.create(VALUES)
    writer, rival = log.writer(owner="me"), maker.another(log).writer(owner="me")
    inner = log.core.store

    def race(key: int, table: pa.Table, by_rival: dict[str, Any], **progress: Any) -> CommitOutcome:
        given = dict(by_rival)
        store = UnreliableStore(inner, happens=1.0, reports_failure=0.0)

        def first() -> None:
            store.before_commit = None
            told(lambda: rival.append(given.pop("rows"), **given) if "rows" in given else rival.append(table, **given))

        store.before_commit = first
        log.core.store = store
        try:
            return writer.append(table, batch=key, **progress)
        finally:
            log.core.store = inner
            log.refresh()

    same = race(1, rows((3, 3)), {"batch": 1, "advance_to": 2}, advance_to=2)
    assert not same.committed
    with pytest.raises(RolledBackError, match=r"batch=2 to stream .* found other rows in it"):
        race(2, rows((4, 4)), {"batch": 2, "rows": rows((5, 5))})
    with pytest.raises(RolledBackError, match=r"batch=3 to stream .* found it with the same rows and other progress"):
        race(3, rows((6, 6)), {"batch": 3, "advance_to": 6}, advance_to=4)
    with pytest.raises(RolledBackError, match=r"batch=4 to stream .* found batch=5 in it, and none of this key"):
        race(4, rows((7, 7)), {"batch": 5, "rows": rows((8, 8))})
    with pytest.raises(UpperMismatchError, match="judged at seq="):
        race(6, rows((9, 9)), {"rows": rows((10, 10))})
    assert values(log) == [3, 5, 6, 8, 10]
    assert log.frontier() == Antichain.of(6)
    live = set(log.core.files().paths.tolist())
    assert {path for path in stored(log) if "message" in path} >= live


def test_newest_key_is_recognised_whatever_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "log")
    log = create_log(path, VALUES, minimum=(0,), merge_every=10)
    writer = log.writer(owner="me")
    for key in range(35):
        writer.append(rows((key, key)), advance_to=key, batch=key)
    for to in range(40, 45):
        writer.advance(to)
    read: list[str] = []
    plainly = streams.read_progress

    def counted(storage: Any, file: str, *args: Any) -> pa.Table:
        read.append(file)
        return plainly(storage, file, *args)

    monkeypatch.setattr(streams, "read_progress", counted)
    again = open_log(path).writer(owner="me")
    opened = len(read)
    assert not again.append(rows((34, 34)), advance_to=34, batch=34).committed
    assert len(read) - opened <= 1


@pytest.mark.parametrize("key", [0, 2**63 - 1, np.int64(5)])
def test_least_and_greatest_keys(plain: Log, key: Any) -> None:
    assert plain.writer(owner="me").append(rows((3, 3)), batch=key).committed
    assert not plain.writer(owner="me").append(rows((3, 3)), batch=int(key)).committed
    with pytest.raises(RolledBackError if key else ValueError):
        plain.writer(owner="me").append(rows((3, 3)), batch=key - 1)
    assert values(plain) == [3]


def test_keys_end_when_a_stream_is_taken_over(plain: Log) -> None:
    former = plain.writer(owner="me")
    former.append(rows((3, 3)), batch=7)
    after = plain.writer(owner="you", takeover=True)
    assert after.append(rows((3, 3)), batch=2).committed
    assert not after.append(rows((3, 3)), batch=2).committed
    assert values(plain) == [3, 3]


# Advance and close -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["now", "late", "never"])
@pytest.mark.parametrize("close", [False, True])
def test_unclear_advance_is_repeated(plain: Log, how: str, close: bool) -> None:
    writer = plain.writer(owner="me")

    def act() -> None:
        if close:
            assert writer.close().closed
        else:
            writer.advance(5)

    gone = Gone(plain.core, happens=how)
    with pytest.raises(StorageError, match="no network"):
        act()
    gone.back()
    if how == "late":
        inner = plain.core.store
        plain.core.store = UnreliableStore(
            inner, happens=1.0, reports_failure=0.0, before_commit=lambda: gone.late.pop()()
        )
        act()
        plain.core.store = inner
    act()
    act()
    plain.refresh()
    assert plain.frontier() == (Antichain.empty(1) if close else Antichain.of(5))
    assert writer.state.seq == 1


def test_advance_to_where_the_stream_is_does_nothing(log: Log) -> None:
    writer = log.writer(owner="me")
    told(lambda: writer.append(rows((4, 4)), advance_to=5))
    before = frozen(log)
    assert not told(lambda: writer.advance(5)).committed
    assert frozen(log) == before
    with pytest.raises(NotBeyondError):
        writer.advance(4)
    # Two capabilities there become one: that is a change.
    told(lambda: writer.append(rows(), progress=([[5]], [1])))
    assert told(lambda: writer.advance(5)).state.counts.total == 1
    assert told(lambda: writer.advance([])).state.closed
    assert not told(lambda: writer.advance([])).committed


def test_late_rows_are_refused_whatever_was_unclear(plain: Log) -> None:
    writer = plain.writer(owner="me")
    lost_append(writer, rows((3, 3)), "never")
    writer.advance(9)
    with pytest.raises(UnheldCapabilityError):
        writer.append(rows((3, 3)))
    assert values(plain) == []


# A log that went back --------------------------------------------------------------------------------


def test_writer_that_lives_on_notices_a_log_that_went_back(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    writer = create_log(path, pa.schema([("v", pa.int64())]), minimum=(0,)).writer("main", owner="me")
    for key in range(5):
        assert writer.append(pa.table({"_time": [key], "v": [key]}), advance_to=key + 1, batch=key).committed
    table = DeltaTable(path)
    table.restore(table.version() - 2)
    version = open_log(path).core.version
    for other in (pa.table({"_time": [5], "v": [5]}), pa.table({"_time": [9], "v": [9]})):
        with pytest.raises(RolledBackError, match=r"'main' at seq=3, this handle has seen 'main' at seq=5"):
            writer.append(other, advance_to=10, batch=5)
    assert open_log(path).core.version == version
    again = open_log(path).writer("main", owner="me")
    assert again.append(pa.table({"_time": [3, 4], "v": [3, 4]}), advance_to=5, batch=5).committed
