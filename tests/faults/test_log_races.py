"""Several handles and processes use one log at once: one wins, the others decide anew."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.errors import NotBeyondError, RolledBackError, UpperMismatchError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.log import create_log, open_log
from spark_timely.time.antichain import Antichain
from tests.faults.append_query import VALUES, assert_exactly_once, racing, run_batch
from tests.faults.harness import long_lane, wait_until

pytestmark = pytest.mark.faults

JOB = Path(__file__).parent / "jobs" / "append_job.py"
PRODUCER = Path(__file__).parent / "jobs" / "producer_job.py"
DEADLINE_S = 240

# Races of handles -----------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "delta"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    if request.param == "memory":
        return MemoryLog.create(VALUES, minimum=(0,), merge_every=None)
    return create_log(tmp_path / "log", VALUES, minimum=(0,), merge_every=None)


def another(log: Log) -> Log:
    return log.another() if isinstance(log, MemoryLog) else open_log(log.path, merge_every=None)


def test_two_restarts_of_one_query_commit_a_batch_once(log: Log) -> None:
    zombie = another(log)
    run_batch(log, 0)
    racing(zombie, lambda: run_batch(log, 1))
    run_batch(zombie, 1)
    log.refresh()
    assert_exactly_once(log, 2)


def test_zombie_that_is_ahead_is_caught_up_with(log: Log) -> None:
    zombie = another(log)
    run_batch(log, 0)

    def ahead() -> None:
        run_batch(log, 1)
        run_batch(log, 2)

    racing(zombie, ahead)
    with pytest.raises(RolledBackError, match=r"micro-batch 1 \(step 0\)"):
        run_batch(zombie, 1)
    log.refresh()
    assert_exactly_once(log, 3)


def test_loser_of_a_race_does_not_append_on_changed_grounds(log: Log) -> None:
    mine = log.writer(owner="me")
    theirs = another(log).writer(owner="me")
    racing(log, lambda: theirs.append(pa.table({"_time": [0], "v": [1]}), advance_to=9))
    with pytest.raises(UpperMismatchError, match="judged at seq=0"):
        mine.append(pa.table({"_time": [3], "v": [2]}))
    log.refresh()
    assert log.messages()["v"].to_pylist() == [1]


def test_joiner_races_its_donor_at_the_commit(log: Log) -> None:
    donor = log.writer("a", owner="a")
    joining = another(log)
    racing(joining, lambda: donor.advance(7))
    state = joining.core.open_stream("b", owner="b")
    assert state.frontier == Antichain.of(7)
    log.refresh()
    assert log.frontier() == Antichain.of(7)
    third = another(log)
    racing(third, lambda: donor.advance(9))
    # Stream b still holds 7.
    assert third.core.open_stream("c", owner="c", at=7).reason.startswith("copy of b")
    fourth = another(log)
    racing(fourth, lambda: donor.advance(12))
    with pytest.raises(NotBeyondError):
        fourth.core.open_stream("d", owner="d", donor="a", at=10)
    log.refresh()
    assert log.verify().legal


def test_donor_races_a_joiner_at_the_commit(log: Log) -> None:
    donor = log.writer("a", owner="a")
    racing(log, lambda: another(log).core.open_stream("b", owner="b") and None)
    donor.advance(7)
    log.refresh()
    # The joiner got its copy before the donor went on: the frontier waits for it.
    assert log.frontier() == Antichain.of(0)
    assert log.verify().legal


def test_two_openers_race_for_one_capability_at_the_commit(log: Log) -> None:
    other = another(log)
    racing(log, lambda: other.core.open_stream("b", owner="b") and None)
    state = log.core.open_stream("a", owner="a")
    assert state.reason == "copy of b at 0"
    assert log.core.unclaimed == 0
    assert log.core.counts().total == 2
    assert log.verify().legal


def test_appends_to_other_streams_do_not_disturb(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=2, merge_every=None)
    mine = log.writer("a", owner="a")
    theirs = another(log).writer("b", owner="b")
    racing(log, lambda: theirs.append(pa.table({"_time": [0], "v": [1]}), advance_to=4))
    assert mine.append(pa.table({"_time": [1], "v": [2]}), advance_to=3).committed
    assert log.frontier() == Antichain.of(3)
    assert log.verify().messages == 2


def test_compaction_races_an_append(log: Log) -> None:
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


def test_append_races_a_compaction(log: Log) -> None:
    writer = log.writer(owner="me")
    for i in range(5):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    racing(log, lambda: another(log).compact() and None)
    writer.append(pa.table({"_time": [5], "v": [5]}), advance_to=6)
    assert sorted(log.messages()["v"].to_pylist()) == list(range(6))
    assert log.frontier() == Antichain.of(6)
    assert log.verify().legal


def test_two_compactions_race_and_one_loses(log: Log) -> None:
    writer = log.writer(owner="me")
    for i in range(5):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    other = another(log)
    racing(log, lambda: other.compact() and None)
    assert log.compact().lost > 0
    assert log.messages()["v"].to_pylist() == list(range(5))
    assert log.verify().legal


# Races of processes ---------------------------------------------------------------------------------


def start(*args: object, job: Path = JOB) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(job), *map(str, args)],
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


@pytest.mark.parametrize("seed", range(10 if long_lane() else 1))
def test_producers_that_are_killed_append_each_key_once(tmp_path: Path, seed: int) -> None:
    """Two at once with the same keys; both are killed again and again, and begin with the first key."""
    rng = random.Random(seed)
    log = create_log(tmp_path / "log", VALUES, minimum=(0,))
    log.writer("main", owner="query")
    n = 40

    def reached(seq: int) -> bool:
        log.refresh()
        state = log.core.stream("main")
        return state is not None and state.seq >= seq

    for target in (9 * kills + rng.randrange(4) for kills in range(1, 4)):
        processes = [start(log.path, "main", "query", n, job=PRODUCER) for _ in range(2)]
        try:
            wait_until(partial(reached, target), deadline_s=DEADLINE_S, what="an append")
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    finish([start(log.path, "main", "query", n, job=PRODUCER) for _ in range(2)])
    log.refresh()
    assert_exactly_once(log, n)


def test_processes_on_streams_of_their_own_all_succeed(tmp_path: Path) -> None:
    """Twice as many as cores; eight of them also add columns in `test_columns_at_once.py`."""
    n_streams, n = 16 if long_lane() else 4, 15
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=n_streams)
    finish([start(log.path, f"s{i}", f"q{i}", 0, n) for i in range(n_streams)])
    log.refresh()
    report = log.verify()
    assert report.legal, report.problems
    assert report.messages == n_streams * 2 * n
    assert log.frontier() == Antichain.of(n)
    assert {s.batch for s in log.streams().values()} == {n - 1}


def test_processes_that_create_one_log_at_once_share_it(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa; from spark_timely.log.log import create_log;"
        "log = create_log(sys.argv[1], pa.schema([('v', pa.int64())]), minimum=(0,), streams=4, exist_ok=True);"
        "log.writer(sys.argv[2], owner=sys.argv[2]).append("
        "pa.table({'_time': [1], 'v': [1]}), advance_to=5); print(log.core.log_id)"
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
    assert log.core.unclaimed == 0
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
        assert len({log.core.log_id for log in logs}) == 1
        table = DeltaTable(path)
        assert table.version() == 0
        assert pa.table(table.get_add_actions()).num_rows == 1
        assert open_log(path).core.unclaimed == 3


def test_joiners_race_a_donor_and_the_frontier_never_goes_back(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,))
    log.core.open_stream("main", owner="query")
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
