"""One follower for each log: what is shared, what is read again, who waits, and when the thread ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.answers import follow
from spark_timely.answers.follow import Follower, follower_of
from spark_timely.answers.subscribe import Subscription, subscribe
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogMissingError,
    RolledBackError,
    SinceViolationError,
    StorageError,
)
from spark_timely.log import Log, MemoryLog
from spark_timely.log.log import create_log
from spark_timely.time.antichain import Antichain
from tests.faults.harness import wait_until

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture(params=["memory", "local", "cloud"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    options: dict[str, Any] = {"minimum": (0,), "kind": "collection", "merge_every": None}
    if request.param == "memory":
        return MemoryLog.create(SCHEMA, **options)
    root = tmp_path if request.param == "local" else f"memory://{tmp_path}"
    return create_log(f"{root}/log", SCHEMA, **options)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_until(
        lambda: not any(t.name == "spark_timely-subscribe" for t in threading.enumerate()),
        deadline_s=20,
        what="the end of all followers",
    )


def append(log: Log, time_: int, *values: int) -> None:
    rows = pa.table({"_time": [time_] * len(values), "_diff": [1] * len(values), "v": pa.array(values, pa.int64())})
    log.writer(owner="me").append(rows, advance_to=time_ + 1)


def target_of(log: Log) -> Any:
    return log if isinstance(log, MemoryLog) else log.path


def begun(log: Log, **options: Any) -> Subscription:
    return subscribe(
        target_of(log), poll_s=options.pop("poll_s", 0.001), storage_options=log.core.storage_options, **options
    )


def values(table: pa.Table) -> list[int]:
    found: list[int] = table["v"].to_pylist()
    return found


def test_subscriptions_share_a_follower_and_what_it_reads(log: Log) -> None:
    append(log, 0, 1)
    some = [begun(log) for _ in range(4)]
    assert len({id(each._follower) for each in some}) == 1
    follower = some[0]._follower
    assert [values(each.fetch()) for each in some] == [[1]] * 4
    assert follower.reads == 1
    append(log, 1, 2, 3)
    batches = [next(each) for each in some]
    assert follower.reads == 2
    assert all(batch.rows is batches[0].rows for batch in batches)
    assert follower._kept == {}
    for each in some:
        each.close()


def test_different_as_of_give_the_same_from_where_they_meet(log: Log) -> None:
    for time_ in range(4):
        append(log, time_, time_)
    early, late = begun(log, as_of=1), begun(log, as_of=3)
    assert sorted(values(early.fetch())) == [0, 1, 2, 3]
    assert sorted(values(late.fetch())) == [0, 1, 2, 3]
    reads = early._follower.reads
    append(log, 4, 4)
    first, second = next(early), next(late)
    assert first == second
    assert first.rows.to_pylist() == [{"_time": 4, "_diff": 1, "v": 4}]
    assert early._follower.reads == reads + 1
    early.close()
    late.close()


def test_one_that_is_behind_reads_again_what_is_not_kept(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_KEPT_BYTES", 1)
    append(log, 0, 1)
    quick, slow = begun(log), begun(log)
    quick.fetch(), slow.fetch()
    for time_ in range(1, 6):
        append(log, time_, time_)
        assert values(quick.fetch()) == [time_]
    assert len(quick._follower._kept) == 1
    assert values(slow.fetch()) == [1, 2, 3, 4, 5]
    quick.close()
    slow.close()


def test_interval_of_many_bytes_is_cut_at_whole_times(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_CUT_BYTES", 1)
    append(log, 0, 1)
    subscription = begun(log)
    subscription.fetch()
    for time_ in range(1, 5):
        append(log, time_, time_, time_ + 10)
    found = [subscription.next_batch(timeout_s=0) for _ in range(4)]
    assert [None if each is None else each.upper for each in found] == [Antichain.of(t) for t in (2, 3, 4, 5)]
    assert [sorted(values(each.rows)) for each in found if each is not None] == [[t, t + 10] for t in range(1, 5)]
    assert subscription.next_batch(timeout_s=0) is None
    subscription.close()


def test_one_with_an_end_does_not_cut_what_others_get(log: Log) -> None:
    append(log, 0, 1)
    ends, stays = begun(log, as_of=0, up_to=2), begun(log, as_of=0)
    ends.fetch(), stays.fetch()
    for time_ in range(1, 4):
        append(log, time_, time_)
    assert values(ends.fetch()) == [1]
    assert next(stays).upper == Antichain.of(4)
    assert ends.fetch().num_rows == 0
    assert ends.has_ended
    stays.close()


def test_who_waits_is_woken_by_a_commit(log: Log) -> None:
    append(log, 0, 1)
    some = [begun(log) for _ in range(5)]
    for each in some:
        each.fetch()
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(next, each) for each in some]
        wait_until(lambda: some[0]._follower._waiting == 5, deadline_s=20, what="waiting")
        append(log, 1, 7)
        assert [values(each.result(timeout=20).rows) for each in waiting] == [[7]] * 5
    for each in some:
        each.close()


def test_who_waits_ends_when_it_is_closed_by_another_thread(log: Log) -> None:
    append(log, 0, 1)
    subscription = begun(log)
    subscription.fetch()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, subscription)
        wait_until(lambda: subscription._follower._waiting == 1, deadline_s=20, what="waiting")
        subscription.close()
        assert waiting.result(timeout=20) == []


def test_who_waits_is_woken_by_what_another_one_has_seen(log: Log) -> None:
    append(log, 0, 1)
    # The thread never looks.
    waits, asks = begun(log, poll_s=1000), begun(log, poll_s=1000)
    waits.fetch(), asks.fetch()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, waits)
        wait_until(lambda: waits._follower._waiting == 1, deadline_s=20, what="waiting")
        append(log, 1, 7)
        with begun(log) as new:
            assert sorted(values(new.fetch())) == [1, 7]
        assert values(waiting.result(timeout=20).rows) == [7]
    assert values(asks.fetch(timeout_s=0)) == [7]
    waits.close()
    asks.close()


def test_wait_is_over_after_its_time(log: Log) -> None:
    append(log, 0, 1)
    with begun(log) as subscription:
        subscription.fetch()
        assert subscription.fetch(timeout_s=0.02).num_rows == 0
        assert subscription.next_batch(timeout_s=0.02) is None
        assert not subscription.has_ended


def test_poll_interval_of_zero_looks_again_and_again(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    with begun(log, poll_s=0) as subscription, ThreadPoolExecutor(1) as pool:
        subscription.fetch()
        for time_ in range(1, 5):
            waiting = pool.submit(next, subscription)
            append(log, time_, time_)
            assert values(waiting.result(timeout=20).rows) == [time_]


def test_subscription_that_nobody_closed_is_let_go(log: Log) -> None:
    append(log, 0, 1)
    subscription = begun(log)
    subscription.fetch()
    follower, gone = subscription._follower, weakref.ref(subscription)
    del subscription
    gc.collect()
    assert gone() is None
    wait_until(lambda: not follower.is_followed(), deadline_s=20, what="letting go")
    wait_until(lambda: follower._thread is None, deadline_s=20, what="the end of the thread")
    log.refresh()
    assert log.retainers() == {}


def test_follower_begins_again_with_the_next_subscription(log: Log) -> None:
    append(log, 0, 1)
    with begun(log) as first:
        assert values(first.fetch()) == [1]
    append(log, 1, 2)
    with begun(log, as_of=0) as second:
        assert sorted(values(second.fetch())) == [1, 2]


def test_log_made_anew_in_the_same_place_is_followed_as_another(tmp_path: Path) -> None:
    import shutil

    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    old = begun(log)
    old.fetch()
    shutil.rmtree(tmp_path / "log")
    again = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    append(again, 0, 9)
    with begun(again) as new:
        assert values(new.fetch()) == [9]
        with pytest.raises(LogMissingError, match="another table in its place"):
            old.fetch(timeout_s=0)
        old.close()


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> Callable[[], int]:
    """Let the next looks fail; return how often they did."""
    own, left = Log.refresh, [times]

    def refresh(log: Log) -> bool:
        if left[0] > 0 and threading.current_thread().name != "writer":
            left[0] -= 1
            raise error
        return own(log)

    monkeypatch.setattr(Log, "refresh", refresh)
    return lambda: times - left[0]


def test_storage_that_fails_for_a_moment_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    with begun(log) as subscription:
        subscription.fetch()
        append(log, 1, 2)
        failed = failing(monkeypatch, StorageError("could not read: found no network"), 3)
        assert values(subscription.fetch(timeout_s=20)) == [2]
        assert failed() == 3


def test_storage_that_fails_for_long_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    monkeypatch.setattr(follow, "_PATIENCE_S", 0.0)
    with begun(log) as subscription:
        subscription.fetch()
        append(log, 1, 2)
        failing(monkeypatch, StorageError("could not read: found no network"), 1)
        with pytest.raises(StorageError, match="no network"):
            subscription.fetch(timeout_s=20)
        assert values(subscription.fetch(timeout_s=20)) == [2]


@pytest.mark.parametrize("error", [RolledBackError("could not read: found it restored"), ValueError("a bug")])
def test_error_of_the_thread_reaches_who_waits(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    subscription = begun(log)
    subscription.fetch()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, subscription)
        wait_until(lambda: subscription._follower._waiting == 1, deadline_s=20, what="waiting")
        failing(monkeypatch, error, 1)
        with pytest.raises(type(error)):
            waiting.result(timeout=20)
        # The thread lives on.
        append(log, 1, 2)
        assert values(subscription.fetch(timeout_s=20)) == [2]
    subscription.close()


def test_file_replaced_since_the_look_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    with begun(log) as subscription:
        subscription.fetch()
        append(log, 1, 2)
        own, turns = follow.read_interval, [0]

        def read(*args: Any) -> pa.Table:
            turns[0] += 1
            if turns[0] == 1:
                log.compact()
                raise DataLossError("could not read file: found nothing there")
            return own(*args)

        monkeypatch.setattr(follow, "read_interval", read)
        assert values(subscription.fetch()) == [2]
        assert turns[0] == 2


def test_file_that_is_lost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    with begun(log) as subscription:
        subscription.fetch()
        append(log, 1, 2)

        def read(*_: Any) -> pa.Table:
            raise DataLossError("could not read file: found nothing there")

        monkeypatch.setattr(follow, "read_interval", read)
        with pytest.raises(DataLossError):
            subscription.fetch()
        assert subscription.position == Antichain.of(1)


def test_what_compaction_has_passed_is_an_error_never_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    monkeypatch.setattr(follow.Positions, "cover", lambda *_: None)
    with begun(log) as subscription:
        subscription.fetch()
        for time_ in range(1, 5):
            append(log, time_, time_)
        log.allow_compaction([9])
        with pytest.raises(SinceViolationError, match=r"since=\[4\].*upper=\[5\]"):
            subscription.fetch()


def test_unnamed_that_was_passed_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection", clock=lambda: now[0])
    for time_ in range(5):
        append(log, time_, time_)
    with begun(log, as_of=1) as old:
        # As of a process that slept for an hour: its thread did not renew.
        monkeypatch.setattr(follow.Positions, "write_due", lambda _: None)
        now[0] += 3600
        assert log.allow_compaction([3]) == Antichain.of(3)
        with begun(log, as_of=3) as new:
            assert log.allow_compaction([9]) == Antichain.of(3)
            assert sorted(values(new.fetch())) == [0, 1, 2, 3, 4]
            with pytest.raises(SinceViolationError, match=r"since=\[3\]"):
                old.fetch()


def test_log_may_forget_what_an_unnamed_one_was_given() -> None:
    now = [1_000_000.0]
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection", clock=lambda: now[0])
    follower = Follower(log.another(), log.another, now=lambda: now[0])
    append(log, 0, 1)
    from spark_timely.answers.batches import Progress, course_of
    from spark_timely.answers.envelopes import RowForm

    course = course_of((0,), (0,), snapshot=True)
    subscriber = follower.attach(lambda _: follow.Subscriber(Progress(course), RowForm(), 0.001))
    for time_ in range(1, 6):
        append(log, time_, time_)
        while (found := follower.next_updates(subscriber, 0)) is not None:
            subscriber.progress.take(found.interval.upper)
    assert log.allow_compaction([9]) == Antichain.of(0)
    now[0] += 30
    follower._cover()
    follower.positions.write_due()
    assert log.allow_compaction([9]) == Antichain.of(5)
    follower.detach(subscriber)


def test_follower_is_one_for_each_log_and_process(log: Log) -> None:
    append(log, 0, 1)
    with begun(log) as subscription:
        assert follower_of(target_of(log), dict(log.core.storage_options)) is subscription._follower
        with begun(log) as other:
            assert other._follower is subscription._follower
        if not isinstance(log, MemoryLog):
            with subscribe(f"{log.path}/", storage_options=log.core.storage_options) as other:
                assert other._follower is subscription._follower


def test_hundred_threads_get_every_change_once(log: Log) -> None:
    append(log, 0, 0)
    n_commits, n_threads = 8, 20
    subscriptions = [begun(log, as_of=0, up_to=n_commits + 1) for _ in range(n_threads)]

    def write() -> None:
        for time_ in range(1, n_commits + 1):
            append(log, time_, time_)
            time.sleep(0.001)

    with ThreadPoolExecutor(n_threads) as pool:
        found = [pool.submit(lambda each: [batch.rows for batch in each], each) for each in subscriptions]
        write()
        for each in found:
            assert values(pa.concat_tables(each.result(timeout=60))) == list(range(n_commits + 1))


def test_large_file_is_read_by_row_groups_of_the_times(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows = 300_000
    times = pa.array([row // 1000 for row in range(n_rows)], pa.int64())
    columns = {"_time": times, "_diff": pa.array([1] * n_rows), "v": pa.array(range(n_rows))}
    log.writer(owner="me").append(pa.table(columns), advance_to=300)
    own, groups = follow.read_file, []

    def read(storage: Any, path: str, schema: pa.Schema, wanted: list[int] | None = None) -> pa.Table:
        groups.append(wanted)
        return own(storage, path, schema, wanted)

    monkeypatch.setattr(follow, "read_file", read)
    with begun(log, resume_from=299) as subscription:
        assert sorted(values(subscription.fetch())) == list(range(299_000, 300_000))
    assert len(groups) == 1
    assert groups[0] is not None
    last = max(groups[0])
    assert last > 0
    assert groups[0] == [last]


def test_subscription_is_refused_in_a_process_forked_off(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    append(log, 0, 1)
    with begun(log) as subscription:
        process = follow.os.getpid()
        monkeypatch.setattr(follow.os, "getpid", lambda: process + 1)
        with pytest.raises(InvalidUsageError, match="another process"):
            subscription.fetch(timeout_s=0)
        monkeypatch.undo()
        assert values(subscription.fetch(timeout_s=0)) == [1]


def test_process_that_ends_writes_what_was_acknowledged(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
    for time_ in range(4):
        append(log, time_, time_)
    program = """
import sys
from spark_timely.answers.subscribe import subscribe

named, unnamed = subscribe(sys.argv[1], as_of=0, name="x"), subscribe(sys.argv[1], as_of=0)
named.fetch(), unnamed.fetch()
named.acknowledge(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, log.path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    log.refresh()
    assert {name: each.needed for name, each in log.retainers().items()} == {"x": Antichain.of(2)}
