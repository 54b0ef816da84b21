"""A query with a consumerId keeps what it has not read: when it registers, moves, renews, lets go, and is refused."""

from __future__ import annotations

import gc
import json
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.errors import InvalidOptionError, InvalidUsageError, OwnershipError, SinceViolationError, StorageError
from spark_timely.log import MemoryLog
from spark_timely.log.core import LogCore
from spark_timely.log.log import create_log, open_log
from spark_timely.log.retention import retention_of
from spark_timely.testing import ManualClock
from spark_timely.testing.driver import Checkpoint
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import parse_duration
from tests.unit.datasource.support import drive
from tests.unit.datasource.test_planner import PAYLOAD, put, values

DAY = 24 * 3600.0


def make_log(clock: ManualClock | None = None, **facts: Any) -> MemoryLog:
    return MemoryLog.create(PAYLOAD, minimum=(0,), clock=clock or ManualClock(), **facts)


def retained(log: MemoryLog, name: str = "report") -> Antichain | None:
    log.refresh()
    found = log.retainers().get(name)
    return None if found is None else found.needed


@pytest.mark.parametrize("delivery", ["complete", "arrival"])
@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_position_is_retained_before_the_first_plan_and_moves(delivery: str, kind: str) -> None:
    clock = ManualClock()
    log = make_log(kind=kind, clock=clock)
    put(log, [1, 3], 4)
    driver = drive(log, consumerId="report", delivery=delivery, now=clock)
    assert log.retainers() == {}
    driver._started().latestOffset(driver._started().initialOffset(), None)
    assert retained(log) == Antichain.of(0)
    assert values([driver.run_one()]) == [[1, 3]]
    put(log, [5], 6)
    clock.advance(61)
    assert values([driver.run_one()]) == [[5]]
    # What was delivered last may have to be delivered again; changes of a collection need what is before them.
    at = 4 if kind == "stream" else 3
    assert retained(log) == Antichain.of(at)
    assert log.allow_compaction([6]) == Antichain.of(at)
    clock.advance(61)
    driver.run_one()
    assert retained(log) == Antichain.of(at + 2)


def test_retainer_costs_a_commit_in_a_minute_at_most() -> None:
    clock = ManualClock()
    log = make_log(clock=clock)
    driver = drive(log, consumerId="report", now=clock)
    for time_ in range(100):  # in five minutes
        clock.advance(3)
        put(log, [time_], time_ + 1)
        driver.run_one()
    # One to register, one to make it its own, five of as many minutes.
    assert 5 <= retention_of(log.core.states).seq + 1 <= 7


def test_stopped_query_loses_nothing_until_it_expires() -> None:
    clock = ManualClock()
    log = make_log(clock=clock)
    put(log, [1], 2)
    checkpoint = Checkpoint()
    assert values([drive(log, checkpoint=checkpoint, consumerId="report", now=clock).run_one()]) == [[1]]
    for day in range(6):
        clock.advance(DAY)
        put(log, [day + 2], day + 3)
        log.allow_compaction([day + 3])
        log.compact(logical=True)
    assert values(drive(log, checkpoint=checkpoint, consumerId="report", now=clock).available_now()) == [
        [2, 3, 4, 5, 6, 7]
    ]
    clock.advance(8 * DAY)
    put(log, [8], 9)
    assert log.allow_compaction([9], by="the keeper") == Antichain.of(9)
    with pytest.raises(
        SinceViolationError,
        match=r"could not .*found since=\[9\], moved past consumer 'report' by the keeper at .*, after it"
        r" expired at 1970-01-14",
    ):
        drive(log, checkpoint=checkpoint, consumerId="report", now=clock).run_one()


def test_query_without_a_retainer_is_refused_by_name() -> None:
    log = make_log()
    put(log, [1], 2)
    checkpoint = Checkpoint()
    drive(log, checkpoint=checkpoint).run_one()
    put(log, [2], 5)
    log.allow_compaction([5])
    with pytest.raises(SinceViolationError, match=r"read log .* from \[2\]: found since=\[5\], moved by hand"):
        drive(log, checkpoint=checkpoint).run_one()


def test_second_query_of_the_same_name_is_refused() -> None:
    log = make_log()
    put(log, [1], 2)
    checkpoint, other = Checkpoint(), Checkpoint()
    driver = drive(log, checkpoint=checkpoint, consumerId="report")
    driver.run_one()
    put(log, [3], 4)
    driver.run_one()
    with pytest.raises(OwnershipError, match=r"consumer 'report': found it owned by '\w{32}', not by 'a query"):
        drive(log, checkpoint=other, consumerId="report").run_one()
    # The first one continues, also after a restart: its checkpoint says who it is.
    put(log, [5], 6)
    assert values([drive(log, checkpoint=checkpoint, consumerId="report").run_one()]) == [[5]]
    identity = {json.loads(text).get("consumer") for text in checkpoint.offsets}
    assert len(identity) == 1


def test_earlier_run_notices_a_copied_checkpoint() -> None:
    clock = ManualClock()
    log = make_log(clock=clock)
    put(log, [1], 2)
    checkpoint = Checkpoint()
    first = drive(log, checkpoint=checkpoint, consumerId="report", now=clock)
    first.run_one()
    copied = Checkpoint(list(checkpoint.offsets), checkpoint.n_committed)
    put(log, [3], 4)
    copy = drive(log, checkpoint=copied, consumerId="report", now=clock)
    assert values([copy.run_one()]) == [[3]]
    clock.advance(61)
    copy.run_one()
    assert log.allow_compaction([4]) == Antichain.of(4)
    # It would be refused for what since has passed, and nobody could say why.
    for _ in range(2):
        with pytest.raises(
            OwnershipError,
            match=r"could not retain log 'memory' for consumer 'report': found it taken over by another run of the "
            r"query, which began later — hint: .*copied checkpoint needs a consumerId of its own",
        ):
            first.run_one()
    put(log, [5], 6)
    assert values([copy.run_one()]) == [[5]]
    # A restart is a run that begins, and is not hindered: neither by one that died nor by one that lives.
    assert values([drive(log, checkpoint=Checkpoint(list(copied.offsets), 2), consumerId="report").run_one()]) == [[5]]
    with pytest.raises(OwnershipError, match="taken over by another run"):
        copy.run_one()


def test_run_that_began_is_not_moved_by_an_earlier_one() -> None:
    clock = ManualClock()
    log = make_log(clock=clock)
    put(log, [1], 9)
    earlier, later = (
        RetainedPosition(log.another, "report", parse_duration("9 days"), alone=True, now=clock) for _ in range(2)
    )
    earlier.stand(Antichain.of(2), "me")
    later.stand(Antichain.of(3), "me")
    clock.advance(4 * DAY)
    earlier.renew()
    assert retained(log) == Antichain.of(3)
    with pytest.raises(OwnershipError, match="taken over by another run"):
        earlier.stand(Antichain.of(8), "me")
    later.stand(Antichain.of(5), "me")
    assert retained(log) == Antichain.of(5)
    # Nor does it come back once the later one has let go.
    log.release("report")
    clock.advance(4 * DAY)
    earlier.renew()
    assert retained(log) is None


@pytest.mark.parametrize("seed", range(6))
def test_run_that_began_last_is_never_overrun(seed: int) -> None:
    rng, clock = random.Random(seed), ManualClock()
    log = make_log(clock=clock)
    put(log, [1], 1000)
    runs: list[tuple[RetainedPosition, int]] = []
    n_refused = 0
    for _ in range(60):
        clock.advance(rng.choice([1, 70, DAY]))
        log.refresh()
        what = rng.choice(["begin", "move", "move", "look", "forget", "renew"])
        if what == "begin":
            # As after a restart, or of a checkpoint that was copied a while ago.
            at = max(log.since().elements[0][0], (runs[-1][1] if runs else 0) - rng.randrange(5))
            runs.append((RetainedPosition(log.another, "report", parse_duration("9 days"), alone=True, now=clock), at))
            runs[-1][0].stand(Antichain.of(at), "me", log)
        elif what == "move" and runs:
            held, at = runs[-1]
            runs[-1] = held, at + rng.randrange(10)
            held.stand(Antichain.of(runs[-1][1]), "me", log)
        elif what == "look" and len(runs) > 1:
            held, at = rng.choice(runs[:-1])
            with pytest.raises(OwnershipError, match="taken over by another run"):
                held.stand(Antichain.of(at + rng.randrange(50)), "me", log)
            n_refused += 1
        elif what == "forget":
            log.allow_compaction([rng.randrange(1000)])
        elif what == "renew":
            for held, _at in runs:
                held.renew()
        if runs:
            log.refresh()
            assert log.since().less_equal(runs[-1][1:]), "the run that began last was overrun"
    assert n_refused or len(runs) < 2


def test_restored_table_gets_its_retainer_again(tmp_path: Path) -> None:
    clock, path = ManualClock(), f"{tmp_path}/log"
    log = create_log(path, PAYLOAD, minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [1], "v": [1]}), advance_to=9)
    log.refresh()

    def run() -> RetainedPosition:
        return RetainedPosition(lambda: open_log(path), "report", parse_duration("7 days"), alone=True, now=clock)

    def look(held: RetainedPosition) -> Antichain | None:
        log.refresh()
        held.stand(Antichain.of(2), "me", log)
        return retained(log)

    earlier, held, versions = run(), run(), [log.core.version]
    for each in (earlier, held):
        each.stand(Antichain.of(2), "me")
        log.refresh()
        versions.append(log.core.version)
    # To before there was any, and to when an earlier run had it; seen by the query, and by the thread.
    for version in versions[1::-1]:
        DeltaTable(path).restore(version)
        assert look(held) == Antichain.of(2)
        DeltaTable(path).restore(version)
        held.renew()
        assert retained(log) == Antichain.of(2)
    # Let go by hand it stays away until it is renewed.
    log.release("report")
    assert look(held) is None
    clock.advance(4 * DAY)
    assert look(held) == Antichain.of(2)
    with pytest.raises(OwnershipError, match="taken over by another run"):
        look(earlier)
    DeltaTable(path).restore(versions[0])
    log.refresh()
    assert log.allow_compaction([5], by="the keeper") == Antichain.of(5)
    with pytest.raises(SinceViolationError, match=r"consumer 'report': found since=\[5\], moved by the keeper"):
        look(held)


def test_query_that_died_before_its_first_offset_begins_again() -> None:
    log = make_log()
    put(log, [1], 2)
    driver = drive(log, consumerId="report")
    reader = driver._started()
    reader.latestOffset(reader.initialOffset(), None)
    assert retained(log) == Antichain.of(0)
    # Its checkpoint is empty: it is another query, as far as anybody can know.
    assert values([drive(log, consumerId="report").run_one()]) == [[1]]


def test_complete_log_that_was_read_is_released() -> None:
    log = make_log()
    put(log, [1], 2)
    log.close()
    driver = drive(log, consumerId="report")
    batches = driver.available_now()
    assert values(batches) == [[1]]
    driver._started().commit(json.loads(driver.checkpoint.offsets[-1]))
    assert retained(log) is None


def test_checkpoint_from_before_gets_a_retainer() -> None:
    log = make_log()
    put(log, [1], 2)
    checkpoint = Checkpoint()
    drive(log, checkpoint=checkpoint).run_one()
    put(log, [3], 4)
    drive(log, checkpoint=checkpoint, consumerId="report").run_one()
    assert retained(log) == Antichain.of(2)
    assert "consumer" in json.loads(checkpoint.offsets[-1])


def position_of(log: MemoryLog, expiry: str, clock: ManualClock) -> RetainedPosition:
    return RetainedPosition(log.another, "report", parse_duration(expiry), now=clock)


def test_idle_query_is_renewed_as_long_as_it_lives() -> None:
    clock = ManualClock()
    log = make_log(clock=clock)
    put(log, [1], 9)
    held = position_of(log, "9 days", clock)
    held.stand(Antichain.of(2), "me")
    for _ in range(10):
        clock.advance(3 * DAY)
        held.renew()
    assert log.allow_compaction([9]) == Antichain.of(2)
    assert log.retainers()["report"].is_alive(int(clock() * 1_000_000))
    held.end()
    clock.advance(10 * DAY)
    assert log.allow_compaction([9]) == Antichain.of(9)
    # It had stopped, and comes too late.
    clock.advance(1)
    held.renew()
    with pytest.raises(SinceViolationError, match="moved past consumer 'report' by hand"):
        held.stand(Antichain.of(2), "me")


def test_renewal_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, failing = ManualClock(), True
    log = make_log(clock=clock)
    put(log, [1], 9)
    held = position_of(log, "9 days", clock)
    held.stand(Antichain.of(2), "me")
    retain, tried = LogCore.retain_needed, 0

    def may_fail(self: LogCore, *args: object, **more: object) -> object:
        nonlocal tried
        tried += 1
        if failing:
            raise StorageError("no disk", hint="wait")
        return retain(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(LogCore, "retain_needed", may_fail)
    clock.advance(4 * DAY)
    for _ in range(50):
        held.stand(Antichain.of(5), "me")
    assert tried == 1  # not at each look of the query
    failing = False
    clock.advance(61)
    held.stand(Antichain.of(5), "me")
    assert retained(log) == Antichain.of(5)


def test_thread_ends_with_its_query() -> None:
    log = make_log()
    put(log, [1], 9)
    held = RetainedPosition(log.another, "report", parse_duration("90 ms"))
    held.stand(Antichain.of(2), "me")
    before = log.retainers()
    for _ in range(200):
        log.refresh()
        if log.retainers() != before:
            break
        time.sleep(0.01)
    assert log.retainers() != before
    thread = held._thread
    assert thread is not None
    del held
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_log_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log()
    put(log, [1], 2)

    def refuse(self: LogCore, *args: object, **more: object) -> object:
        raise StorageError("no permission", hint="ask")

    monkeypatch.setattr(LogCore, "retain_needed", refuse)
    with pytest.raises(
        StorageError,
        match=r"could not retain log 'memory' for consumerId='report': no permission — hint: let the query",
    ):
        drive(log, consumerId="report").run_one()


def test_batch_read_has_no_consumer(tmp_path: object) -> None:
    path = f"{tmp_path}/log"
    create_log(path, PAYLOAD, minimum=(0,))
    source = TimelyDataSource({"path": path, "consumerId": "report"})
    with pytest.raises(InvalidUsageError, match="could not read the log as a batch: found consumerId='report'"):
        source.reader(source.schema())


@pytest.mark.parametrize("expiry", ["0s", "1us", "2 seconds"])
def test_expiry_that_would_be_renewed_all_the_time_is_refused(expiry: str, tmp_path: object) -> None:
    path = f"{tmp_path}/log"
    create_log(path, PAYLOAD, minimum=(0,))
    with pytest.raises(InvalidOptionError, match=r"found consumerExpiry=.* — hint: give 3 seconds or more"):
        TimelyDataSource({"path": path, "consumerId": "report", "consumerExpiry": expiry}).schema()
