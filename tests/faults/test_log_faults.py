"""How a log could lose or repeat a row, or let a frontier pass early: each way is tried.

A store that fails in all four ways under every commit; a process that dies between any two steps; writes
that land late; races of handles and of processes; other engines that rewrite the table meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from spark_timely.antichain import Antichain
from spark_timely.errors import NotBeyondError, RolledBackError, StorageError, UpperMismatchError
from spark_timely.log.base import CommitRequest
from spark_timely.log.compaction import _merge_progress
from spark_timely.log.delta import DeltaLog, create_log, open_log
from spark_timely.log.files import message_table, read_file, write_data_files
from spark_timely.log.memory import MemoryLog
from spark_timely.log.reading import ReadableLog
from spark_timely.log.store import MemoryStore
from spark_timely.testing.unreliable import UnreliableStore, make_unreliable

pytestmark = pytest.mark.faults

VALUES = pa.schema([("v", pa.int64())])
JOB = Path(__file__).parent / "jobs" / "append_job.py"
DEADLINE_S = 240


def run_batch(log: ReadableLog, batch: int) -> None:
    """Append micro-batch `batch` as a query would, that may have been restarted: rows (b, b), (b + 2, b)."""
    log.refresh()
    state = log.open_stream("main", owner="query")
    seq = state.seq
    if state.batch == batch and (done := log.recorded("main", batch)) is not None:
        seq = done.seq - 1  # judged by what was held before its first commit
    held = int((state.before if seq < state.seq else state.counts).times[0, 0])
    times = np.array([[batch], [batch + 2]], np.int64)
    payload = pa.table({"v": pa.array([batch, batch], pa.int64())})
    table = message_table(log.format, payload, times, "main", seq + 1)
    files = write_data_files(log.storage, table, times, stream="main", seq=seq + 1, domain=log.domain)
    request = CommitRequest(
        "main", "query", np.array([[held], [batch + 1]]), np.array([-1, 1]), batch=batch, expected_seq=seq, files=files
    )
    outcome = log.commit(request)
    if outcome.duplicate:
        for file in files:
            log.storage.delete(file.path)


def run_query(make: Callable[[], ReadableLog], n_batches: int, done: list[int] | None = None) -> None:
    """Run micro-batches as Spark does: one that failed is repeated by a new process.

    `done` is Spark's checkpoint: the batches that it knows to be committed.
    """
    done = [] if done is None else done
    log, failures = make(), 0
    while len(done) < n_batches:
        try:
            run_batch(log, len(done))
            done.append(len(done))
        except StorageError:
            failures += 1
            assert failures < 50 * n_batches
            log = make()


def assert_exactly_once(log: ReadableLog, n_batches: int) -> None:
    report = log.verify()
    assert report.legal, report.problems
    assert Counter(log.messages()["v"].to_pylist()) == dict.fromkeys(range(n_batches), 2)
    assert log.frontier() == Antichain.of(n_batches)
    state = log.stream("main")
    assert state is not None
    assert (state.seq, state.batch) == (n_batches, n_batches - 1)


# A store that fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_store_fails_in_all_four_ways_under_every_commit(seed: int) -> None:
    plain = MemoryLog.create(VALUES, minimum=(0,), merge_every=7)
    ways: Counter[tuple[bool, bool]] = Counter()
    stores: list[UnreliableStore] = []

    def make() -> ReadableLog:
        log = plain.another()
        stores.append(
            make_unreliable(
                log,
                seed=1000 * seed + len(stores),
                happens=0.5,
                reports_failure=0.5,
                lands_late=0.5,
                another=lambda: MemoryStore(plain.store.table),
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

    def make() -> ReadableLog:
        log = open_log(tmp_path / "log", merge_every=5)
        stores.append(make_unreliable(log, seed=100 * seed + len(stores), happens=0.5, reports_failure=0.5))
        return log

    run_query(make, 20)
    plain.refresh()
    assert_exactly_once(plain, 20)


def test_unclear_commit_without_a_batch_number_happens_once() -> None:
    for seed in range(200):
        plain = MemoryLog.create(VALUES, minimum=(0,))
        writer = plain.writer(owner="me")
        store = make_unreliable(
            plain,
            seed=seed,
            happens=0.4,
            reports_failure=0.7,
            lands_late=0.7,
            another=lambda table=plain.store.table: MemoryStore(table),
        )
        told = 0
        with contextlib.suppress(StorageError):
            for i in range(5):
                writer.append(pa.table({"_time": [i], "v": [i]}))
                told += 1
        plain.store = store.inner
        plain.refresh()
        plain.refresh()
        found = plain.messages()["v"].to_pylist()
        # What was reported as done is there once; what was unclear is there once or not at all.
        assert found in (list(range(told)), list(range(told + 1)))
        assert plain.verify().legal


def test_storage_that_goes_away_right_after_a_commit_leaves_it_unclear() -> None:
    log = MemoryLog.create(VALUES, minimum=(0,))
    writer = log.writer(owner="me")
    inner = log.store

    class GoneAfterCommit(UnreliableStore):
        gone = False

        def transact(self, *args: Any, **kwargs: Any) -> None:
            super().transact(*args, **kwargs)
            self.gone = True

        def refresh(self) -> bool:
            if self.gone:
                raise StorageError("could not open log 'x': found nothing", determinate=True)
            return super().refresh()

    log.store = GoneAfterCommit(inner, happens=1.0, reports_failure=0.0)
    with pytest.raises(StorageError) as caught:
        writer.append(pa.table({"_time": [1], "v": [1]}))
    assert not caught.value.determinate
    log.store = inner
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
            plain: ReadableLog = MemoryLog.create(VALUES, minimum=(0,), merge_every=2)
        else:
            plain = create_log(tmp_path / str(at), VALUES, minimum=(0,), merge_every=2)
        steps = iter(range(1 << 30))
        first = True

        def make(plain: ReadableLog = plain, steps: Iterator[int] = steps, at: int = at) -> ReadableLog:
            nonlocal first
            log = plain.another() if isinstance(plain, MemoryLog) else open_log(plain.path, merge_every=2)
            if first:
                first = False
                log.store = CrashingStore(log.store, steps, at, ("transact", "refresh", "tidy"))  # type: ignore[assignment]
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
    assert log.unclaimed == 1
    assert create_log(where, VALUES, minimum=(0,), exist_ok=True).log_id == log.log_id


# Races of handles -----------------------------------------------------------------------------------


def racing(log: ReadableLog, act: Callable[[], None], times: int = 1) -> None:
    """Let somebody else act right before the next commits of a log: after its decision."""
    left = [times]

    def before() -> None:
        if left[0]:
            left[0] -= 1
            act()

    log.store = UnreliableStore(log.store, happens=1.0, reports_failure=0.0, before_commit=before)


@pytest.fixture(params=["memory", "delta"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> ReadableLog:
    if request.param == "memory":
        return MemoryLog.create(VALUES, minimum=(0,), merge_every=None)
    return create_log(tmp_path / "log", VALUES, minimum=(0,), merge_every=None)


def another(log: ReadableLog) -> ReadableLog:
    return log.another() if isinstance(log, MemoryLog) else open_log(log.path, merge_every=None)


def test_two_restarts_of_one_query_commit_a_batch_once(log: ReadableLog) -> None:
    zombie = another(log)
    run_batch(log, 0)
    racing(zombie, lambda: run_batch(log, 1))
    run_batch(zombie, 1)
    log.refresh()
    assert_exactly_once(log, 2)


def test_zombie_that_is_ahead_is_caught_up_with(log: ReadableLog) -> None:
    zombie = another(log)
    run_batch(log, 0)

    def ahead() -> None:
        run_batch(log, 1)
        run_batch(log, 2)

    racing(zombie, ahead)
    with pytest.raises(RolledBackError, match="batch=1 step=0"):
        run_batch(zombie, 1)
    log.refresh()
    assert_exactly_once(log, 3)


def test_writer_that_lost_a_race_does_not_append_on_changed_grounds(log: ReadableLog) -> None:
    mine = log.writer(owner="me")
    theirs = another(log).writer(owner="me")
    racing(log, lambda: theirs.append(pa.table({"_time": [0], "v": [1]}), advance_to=9))
    with pytest.raises(UpperMismatchError, match="judged at seq=0"):
        mine.append(pa.table({"_time": [3], "v": [2]}))
    theirs.log.refresh()
    assert theirs.log.messages()["v"].to_pylist() == [1]


def test_joiner_races_its_donor_at_the_commit(log: ReadableLog) -> None:
    donor = log.writer("a", owner="a")
    joining = another(log)
    racing(joining, lambda: donor.advance(7))
    state = joining.open_stream("b", owner="b")
    assert state.frontier == Antichain.of(7)
    log.refresh()
    assert log.frontier() == Antichain.of(7)
    third = another(log)
    racing(third, lambda: donor.advance(9))
    # Stream b still holds 7.
    assert third.open_stream("c", owner="c", at=7).reason.startswith("copy of b")
    fourth = another(log)
    racing(fourth, lambda: donor.advance(12))
    with pytest.raises(NotBeyondError):
        fourth.open_stream("d", owner="d", donor="a", at=10)
    log.refresh()
    assert log.verify().legal


def test_donor_races_a_joiner_at_the_commit(log: ReadableLog) -> None:
    donor = log.writer("a", owner="a")
    racing(log, lambda: another(log).open_stream("b", owner="b") and None)
    donor.advance(7)
    log.refresh()
    # The joiner got its copy before the donor went on: the frontier waits for it.
    assert log.frontier() == Antichain.of(0)
    assert log.verify().legal


def test_two_openers_race_for_one_capability_at_the_commit(log: ReadableLog) -> None:
    other = another(log)
    racing(log, lambda: other.open_stream("b", owner="b") and None)
    state = log.open_stream("a", owner="a")
    assert state.reason == "copy of b at 0"
    assert log.unclaimed == 0
    assert log.counts().total == 2
    assert log.verify().legal


def test_appends_to_other_streams_do_not_disturb(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=2, merge_every=None)
    mine = log.writer("a", owner="a")
    theirs = another(log).writer("b", owner="b")
    racing(log, lambda: theirs.append(pa.table({"_time": [0], "v": [1]}), advance_to=4))
    assert mine.append(pa.table({"_time": [1], "v": [2]}), advance_to=3).committed
    assert log.frontier() == Antichain.of(3)
    assert log.verify().messages == 2


def test_compaction_races_an_append(log: ReadableLog) -> None:
    writer = log.writer(owner="me")
    for i in range(5):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    compacting, appending = another(log), another(log).writer(owner="me")
    count = iter(range(5, 100))

    def append() -> None:
        i = next(count)
        appending.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)

    racing(compacting, append, times=6)
    report = compacting.compact()
    assert report.lost == 0
    log.refresh()
    assert sorted(log.messages()["v"].to_pylist()) == list(range(11))
    assert log.verify().legal


def test_append_races_a_compaction(log: ReadableLog) -> None:
    writer = log.writer(owner="me")
    for i in range(5):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    racing(log, lambda: another(log).compact() and None)
    writer.append(pa.table({"_time": [5], "v": [5]}), advance_to=6)
    assert sorted(log.messages()["v"].to_pylist()) == list(range(6))
    assert log.frontier() == Antichain.of(6)
    assert log.verify().legal


def test_two_compactions_race_and_one_loses(log: ReadableLog) -> None:
    writer = log.writer(owner="me")
    for i in range(5):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    other = another(log)
    racing(log, lambda: other.compact() and None)
    assert log.compact().lost > 0
    assert log.messages()["v"].to_pylist() == list(range(5))
    assert log.verify().legal


# The table, rewritten by others ---------------------------------------------------------------------


@pytest.fixture
def table_log(tmp_path: Path) -> DeltaLog:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=2, merge_every=None)
    for name in ("a", "b"):
        writer = log.writer(name, owner=name)
        for i in range(1, 6):
            writer.append(pa.table({"_time": [i, i + 2], "v": [i, i]}), advance_to=i)
    return log


def facts(log: ReadableLog) -> tuple[Any, ...]:
    report = log.verify()
    assert report.legal, report.problems
    return report.digest, report.commits, log.counts(), dict(log.streams())


def test_optimize_of_delta_rs_changes_no_answer(table_log: DeltaLog) -> None:
    before = facts(table_log)
    table = DeltaTable(table_log.path)
    table.optimize.compact()
    assert facts(open_log(table_log.path)) == before
    table_log.refresh()
    assert facts(table_log) == before
    assert len(table_log.progress_files()) == 1
    table.update_incremental()
    table.optimize.z_order(["_time", "v"])
    table.create_checkpoint()
    assert facts(open_log(table_log.path)) == before
    table_log.writer("a", owner="a").append(pa.table({"_time": [9], "v": [9]}), advance_to=8)
    state = open_log(table_log.path).stream("a")
    assert state is not None
    assert (state.seq, state.frontier) == (6, Antichain.of(8))
    table_log.compact()
    assert table_log.verify().legal


def test_optimize_of_delta_rs_races_a_compaction(table_log: DeltaLog) -> None:
    before = facts(table_log)

    def optimize() -> None:
        DeltaTable(table_log.path).optimize.compact()

    racing(table_log, optimize)
    assert table_log.compact().lost > 0
    assert facts(table_log) == before
    assert facts(open_log(table_log.path)) == before


def test_compaction_races_an_optimize_of_delta_rs(table_log: DeltaLog) -> None:
    """It read the files before they were merged, and commits after."""
    before = facts(table_log)
    late = [DeltaTable(table_log.path), DeltaTable(table_log.path)]
    table_log.compact()
    with pytest.raises(CommitFailedError, match="deleted data this operation read"):
        late[0].optimize.compact()
    with pytest.raises(CommitFailedError, match="deleted data this operation read"):
        late[1].optimize.z_order(["v"])
    assert facts(open_log(table_log.path)) == before


def test_merge_of_progress_races_an_optimize_of_delta_rs(table_log: DeltaLog) -> None:
    """Nothing stops it here; progress rows that are there twice count once."""
    before = facts(table_log)
    late = DeltaTable(table_log.path)
    index = table_log.progress_files()
    assert _merge_progress(table_log, index.select(index.stream_lo == "a"), "a")
    late.optimize.compact()
    twice = open_log(table_log.path, merge_every=2)
    assert (
        pa.concat_tables(
            [read_file(twice.storage, p, twice.format.progress_schema) for p in twice.progress_files().paths]
        ).num_rows
        > before[1]
    )
    assert facts(twice) == before
    for i in range(6, 10):
        twice.writer("a", owner="a").append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    assert twice.stream("a").frontier == Antichain.of(9)  # type: ignore[union-attr]
    assert open_log(table_log.path).verify().legal


def test_optimize_of_delta_rs_races_an_append(table_log: DeltaLog) -> None:
    def optimize() -> None:
        DeltaTable(table_log.path).optimize.compact()

    racing(table_log, optimize)
    table_log.writer("a", owner="a").append(pa.table({"_time": [9], "v": [9]}), advance_to=8)
    report = table_log.verify()
    assert report.legal, report.problems
    assert report.messages == 21


def test_change_of_the_metadata_races_an_append(table_log: DeltaLog) -> None:
    def alter() -> None:
        table = DeltaTable(table_log.path)
        table.alter.set_table_description("seen by people")
        table.alter.set_column_metadata("v", {"comment": "a value"})

    racing(table_log, alter)
    writer = table_log.writer("a", owner="a")
    assert writer.append(pa.table({"_time": [9], "v": [9]}), advance_to=8).committed
    assert open_log(table_log.path).verify().legal
    assert facts(open_log(table_log.path)) == facts(table_log)


def test_vacuum_deletes_only_what_is_not_part_of_the_log(table_log: DeltaLog) -> None:
    before = facts(table_log)
    table_log.compact()
    orphan = "_event=message/a-000000000099-00.parquet"
    table_log.storage.write(orphan, b"left behind by a crash")
    DeltaTable(table_log.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not table_log.storage.exists(orphan)
    assert facts(open_log(table_log.path)) == before


def test_log_of_the_table_is_kept_short_and_stale_handles_recover(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=2, merge_every=20)
    stale = open_log(log.path)
    stale_writer = stale.writer("b", owner="b")
    writer = log.writer("a", owner="a")
    for i in range(1, 330):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    entries = os.listdir(tmp_path / "log" / "_delta_log")
    assert len(entries) < 330
    assert f"{5:020d}.json" not in entries
    # Its snapshot is older than anything that is left of the table's log.
    assert stale_writer.append(pa.table({"_time": [2], "v": [0]}), advance_to=400).committed
    assert stale.frontier() == Antichain.of(329)
    assert open_log(log.path).verify().messages == 330
    log.refresh()
    assert log.verify().legal


def test_cleanup_of_delta_rs_keeps_the_state(table_log: DeltaLog) -> None:
    before = facts(table_log)
    table = DeltaTable(table_log.path)
    table.create_checkpoint()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.update_incremental()
    table.create_checkpoint()
    table.cleanup_metadata()
    assert facts(open_log(table_log.path)) == before
    table_log.refresh()
    assert facts(table_log) == before


# Races of processes ---------------------------------------------------------------------------------


def start(*args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(JOB), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(processes: list[subprocess.Popen[str]]) -> None:
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=DEADLINE_S)[0])
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output


def test_two_processes_race_on_one_stream(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,))
    n = 40
    finish([start(log.path, "main", "query", 0, n) for _ in range(2)])
    log.refresh()
    assert_exactly_once(log, n)


def test_eight_processes_on_eight_streams_all_succeed(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=8)
    n = 15
    finish([start(log.path, f"s{i}", f"q{i}", 0, n) for i in range(8)])
    log.refresh()
    report = log.verify()
    assert report.legal, report.problems
    assert report.messages == 8 * 2 * n
    assert log.frontier() == Antichain.of(n)
    assert {s.batch for s in log.streams().values()} == {n - 1}


def test_processes_that_create_one_log_at_once_share_it(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa; from spark_timely.log.delta import create_log;"
        "log = create_log(sys.argv[1], pa.schema([('v', pa.int64())]), minimum=(0,), streams=4, exist_ok=True);"
        "log.writer(sys.argv[2], owner=sys.argv[2]).append("
        "pa.table({'_time': [1], 'v': [1]}), advance_to=5); print(log.log_id)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "log"), f"s{i}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(4)
    ]
    finish(processes)
    log = open_log(tmp_path / "log")
    assert log.frontier() == Antichain.of(5)
    assert log.unclaimed == 0
    report = log.verify()
    assert report.legal, report.problems
    assert report.messages == 4


def test_creations_at_one_moment_make_one_table(tmp_path: Path) -> None:
    # delta-rs looks whether there is a table before it writes version 0: here all look at once.
    for attempt in range(10):
        path = str(tmp_path / f"log {attempt}")
        barrier = threading.Barrier(4)
        logs: list[Any] = []

        def create(path: str = path, barrier: threading.Barrier = barrier, logs: list[Any] = logs) -> None:
            barrier.wait()
            logs.append(create_log(path, VALUES, minimum=(0,), streams=3, exist_ok=True))

        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert len(logs) == 4
        assert len({log.log_id for log in logs}) == 1
        table = DeltaTable(path)
        assert table.version() == 0
        assert pa.table(table.get_add_actions()).num_rows == 1
        assert open_log(path).unclaimed == 3


def test_joiners_race_a_donor_and_the_frontier_never_goes_back(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,))
    log.open_stream("main", owner="query")
    reader = open_log(log.path)
    seen: list[Antichain] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            reader.refresh()
            seen.append(reader.frontier())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        donor = start(log.path, "main", "query", 0, 60)
        joiners = [start(log.path, f"j{i}", f"j{i}", 0, 10, "main") for i in range(3)]
        finish([donor, *joiners])
    finally:
        stop.set()
        watcher.join()
    for earlier, later in itertools.pairwise(seen):
        assert earlier.less_equal_frontier(later)
    log.refresh()
    report = log.verify()
    assert report.legal, report.problems
    assert report.messages == 2 * (60 + 30)
