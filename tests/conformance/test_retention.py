"""Every capture log keeps the rules of since and retainers, also over stores that fail."""

from __future__ import annotations

import datetime as dt
import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.errors import InvalidUsageError, OwnershipError, SinceViolationError
from spark_timely.log import Log
from spark_timely.log.files.parquet import write_data_files
from spark_timely.log.machine.since import (
    Keep,
    Retention,
    decide_release,
    decide_retain,
    decide_since,
    everything,
    needed_from,
)
from spark_timely.log.machine.state import CommitRequest
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import LogMaker, frozen, rows
from tests.faults.harness import long_lane

HOUR = 3600
DAY = 24 * HOUR


def moved(maker: LogMaker, to: int, **options: Any) -> Log:
    """Return a log with a row at each time below `to`, which is its frontier."""
    log = maker.create(**options)
    table = rows(*((time, time) for time in range(to)))
    if log.kind == "collection":
        table = table.append_column("_diff", pa.array([1] * to))
    log.writer(owner="me").append(table, advance_to=to)
    return log


def test_log_fresh_forgets_nothing(maker: LogMaker) -> None:
    log = moved(maker, 5)
    before = frozen(log)
    assert log.since() == Antichain.of(0)
    assert log.retainers() == {}
    assert log.allow_compaction([0]) == Antichain.of(0)
    assert frozen(log) == before


def test_since_moves_as_far_as_the_frontier_needs(maker: LogMaker) -> None:
    stream, collection = moved(maker, 5), moved(maker, 5, kind="collection")
    assert stream.allow_compaction([3], by="the keeper") == Antichain.of(3)
    assert stream.allow_compaction([2]) == Antichain.of(3)  # never back
    assert stream.allow_compaction([99]) == Antichain.of(5)
    # A reader at the frontier of a collection must tell times before it from those to come.
    assert collection.allow_compaction([99]) == Antichain.of(4)
    for log in (stream, collection):
        other = maker.another(log)
        assert other.since() == log.since()
        assert other.verify().legal
        # Not rewritten, and seen as if it were.
        assert other.messages().num_rows == (0 if log is stream else 5)


def test_complete_log_may_forget_all_but_by_a_time(maker: LogMaker) -> None:
    log = moved(maker, 5)
    log.close()
    assert log.allow_compaction([99]) == Antichain.of(99)
    before = frozen(log)
    with pytest.raises(InvalidUsageError, match=r"could not allow compaction of log .*: found the empty frontier"):
        log.allow_compaction([])
    assert frozen(log) == before


def test_retainers_hold_since_until_they_expire(maker: LogMaker) -> None:
    clock = ManualClock()
    log = moved(maker, 9, clock=clock)
    first = log.retain("report", [4], owner="query", expiry="7 days")
    assert first is not None
    assert first.needed == Antichain.of(4)
    log.retain("audit", [6], owner="other", expiry=dt.timedelta(days=1))
    assert log.allow_compaction([8]) == Antichain.of(4)
    log.retain("report", [7], owner="query", expiry="7 days")
    assert maker.another(log).allow_compaction([8]) == Antichain.of(6)
    clock.advance(DAY)
    log.refresh()
    assert log.allow_compaction([8], by="the keeper") == Antichain.of(7)
    assert log.retainers()["audit"].overrun == "the keeper at 1970-01-02T00:00:00Z"
    with pytest.raises(
        SinceViolationError, match=r"'audit': found since=\[7\], moved past consumer 'audit' by the keep"
    ):
        log.retain("audit", [6], owner="other")
    log.retain("audit", [7], owner="other")  # a fresh start
    assert log.retain("report", [], owner="query") is None
    assert list(maker.another(log).retainers()) == ["audit"]
    log.release("audit")
    assert maker.another(log).retainers() == {}
    with pytest.raises(InvalidUsageError, match=r"could not release consumer 'audit' of log .*: found consumers=\[\]"):
        log.release("audit")


def test_names_of_consumers_are_of_one_owner(maker: LogMaker) -> None:
    log = moved(maker, 5)
    log.retain("日本 'x'", [2], owner="query")
    before = frozen(log)
    with pytest.raises(OwnershipError, match=r"found it owned by 'query', not by 'thief' — hint: .*release it first"):
        maker.another(log).retain("日本 'x'", [3], owner="thief")
    with pytest.raises(InvalidUsageError, match=r"found expiry='7'"):
        log.retain("other", [3], owner="query", expiry="7")
    with pytest.raises(InvalidUsageError, match=r"found expiry='0 days'"):
        log.retain("other", [3], owner="query", expiry="0 days")
    assert frozen(log) == before
    assert log.retainers()["日本 'x'"].needed == Antichain.of(2)


def test_since_survives_what_else_happens_to_a_log(maker: LogMaker) -> None:
    log = moved(maker, 5, merge_every=2)
    log.retain("report", [2], owner="query")
    log.allow_compaction([3])
    writer = log.writer(owner="me")
    for time in range(5, 12):
        writer.append(rows((time, time)), advance_to=time + 1)
    log.compact()
    log.add_columns(pa.schema([("note", pa.string())]))
    for handle in (log, maker.another(log)):
        assert handle.since() == Antichain.of(2)
        assert handle.retainers()["report"].needed == Antichain.of(2)
        assert handle.verify().legal


def test_files_of_earlier_commits_leave_the_table(maker: LogMaker) -> None:
    log = moved(maker, 90)
    for time in range(1, 40):
        log.retain("report", [time], owner="query")
    assert len(log.core.store.live.index("since")) <= 17
    assert len(log.core.store.live.index("retain")) <= 17
    assert maker.another(log).retainers()["report"].needed == Antichain.of(39)
    log.release("report")
    assert maker.another(log).retainers() == {}


def test_product_times_are_retained_by_their_predecessors(maker: LogMaker) -> None:
    log = maker.create(times=("long", "long"), kind="collection")
    writer = log.writer(owner="me")
    table = rows(((1, 1), 1), ((2, 0), 2), names=("_time_0", "_time_1")).append_column("_diff", pa.array([1, 1]))
    writer.append(table, advance_to=[(0, 9), (9, 0)])
    assert log.frontier() == Antichain.of((0, 9), (9, 0))
    retainer = log.retain("report", [(0, 5), (5, 0)], owner="query")
    assert retainer is not None
    assert retainer.needed == Antichain.of((0, 4), (4, 0))
    assert log.allow_compaction([(3, 3)]) == Antichain.of((0, 4), (3, 3), (4, 0))
    assert maker.another(log).since() == Antichain.of((0, 4), (3, 3), (4, 0))


@pytest.mark.parametrize("seed", range(4 if long_lane() else 2))
def test_handles_that_take_turns_do_what_one_would(maker: LogMaker, seed: int) -> None:
    rng = random.Random(seed)
    clock = ManualClock()
    kind = rng.choice(["stream", "collection"])
    log = moved(maker, 30, kind=kind, clock=clock)
    handles = [log, maker.another(log), maker.another(log)]
    model = everything(log.domain)
    own = needed_from(log.kind, log.frontier(), log.domain.minimum)
    for _ in range(14):
        clock.advance(rng.choice([1, 60]))
        handle, now = rng.choice(handles), int(clock() * 1_000_000)
        what, name, at = rng.choice(["allow", "retain", "retain", "release"]), rng.choice("ab"), rng.randrange(35)
        expected, refusal = outcome(log, model, own, what, name, at, now)
        with nullcontext() if refusal is None else pytest.raises(refusal):
            if what == "allow":
                handle.allow_compaction([at], by="me")
            elif what == "retain":
                handle.retain(name, [at], owner="query", expiry="90 s")
            else:
                handle.release(name)
        model = expected
        seen = maker.another(log)
        assert seen.since() == model.since, f"seed {seed}"
        assert seen.retainers() == model.retainers, f"seed {seed}"


def outcome(
    log: Log, model: Retention, own: Antichain, what: str, name: str, at: int, now: int
) -> tuple[Retention, type[Exception] | None]:
    """Return the state after one call by itself, and what it is refused by."""
    try:
        if what == "allow":
            return decide_since(model, Antichain.of(at), own, by="me", now=now) or model, None
        if what == "retain":
            needed = needed_from(log.kind, Antichain.of(at), log.domain.minimum)
            after = decide_retain(
                log.path, log.domain, model, name, needed, owner="query", expires=now + 90_000_000, now=now
            )
            return after or model, None
        return decide_release(log.path, model, name), None
    except (SinceViolationError, InvalidUsageError) as error:
        return model, type(error)


def grown(log: Log, start: int, stop: int) -> None:
    """Append a row at each of some times, in a commit of its own."""
    writer = log.writer(owner="me")
    for time in range(start, stop):
        table = rows((time, time))
        if log.kind == "collection":
            table = table.append_column("_diff", pa.array([1]))
        writer.append(table, advance_to=time + 1)


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_committers_move_since_by_what_is_kept(maker: LogMaker, kind: str) -> None:
    log = maker.create(kind=kind, keep=5, keep_committed="0s", merge_every=3, clock=ManualClock())
    assert log.core.kept() == maker.another(log).core.kept() == Keep(5, 0)
    grown(log, 0, 15)
    found = log.since().elements[0][0]
    assert 6 <= found <= 10
    # The floor for others too; and what retainers need stays in any case.
    assert maker.another(log).allow_compaction([99]) == Antichain.of(10)
    log.retain("report", [12], owner="query")
    grown(log, 15, 24)
    assert maker.another(log).since() == Antichain.of(12 if kind == "stream" else 11)
    log.release("report")
    grown(log, 24, 30)
    assert 21 <= maker.another(log).since().elements[0][0] <= 25
    log.compact(logical=True)
    assert log.core.files().min_times.min() == log.since().elements[0][0]
    assert maker.another(log).verify().legal


def test_what_was_committed_lately_is_kept(maker: LogMaker) -> None:
    clock = ManualClock()
    log = maker.create(keep=5, merge_every=2, clock=clock)
    for time in range(16):
        grown(log, time, time + 1)
        clock.advance(1)
    assert log.since() == maker.another(log).allow_compaction([99]) == Antichain.of(0)
    clock.advance(1.5 * DAY)
    grown(log, 16, 20)
    found = log.since().elements[0][0]
    assert 12 <= found <= 15
    clock.advance(1.5 * DAY)
    log.refresh()
    assert log.allow_compaction([99]) == Antichain.of(15)


def test_what_commits_said_that_are_forgotten_is_not_asked(maker: LogMaker) -> None:
    clock = ManualClock()
    log = maker.create(merge_every=4, clock=clock)
    for time in range(40):
        grown(log, time, time + 1)
        clock.advance(HOUR)
    log.allow_compaction([30])
    log.compact(logical=True)
    assert log.core.bases()
    # By the wall clock all but the latest would be old enough; when the forgotten ones were is not known.
    log.keep(1, committed="20 hours")
    assert maker.another(log).allow_compaction([99]) == Antichain.of(30)
    clock.advance(20 * HOUR)
    log.refresh()
    assert log.allow_compaction([99]) == Antichain.of(39)


def test_what_is_kept_can_be_changed(maker: LogMaker) -> None:
    clock = ManualClock()
    log = moved(maker, 50, clock=clock)
    assert log.core.kept() is None
    clock.advance(2 * DAY)
    # What was there before counts at once, by the wall clock of its commits.
    kept = log.keep(20)
    assert kept is not None
    assert kept.seen[0] == (int(clock() * 1e6) - DAY * 1_000_000, Antichain.of(50))
    assert log.allow_compaction([99]) == Antichain.of(30)
    before = frozen(log)
    assert log.keep("20", committed=dt.timedelta(days=1)) == kept
    assert frozen(log) == before
    log.keep(40)
    assert log.allow_compaction([99]) == Antichain.of(30)  # raised: nothing comes back
    maker.another(log).keep(10)
    log.refresh()
    assert log.allow_compaction([99]) == Antichain.of(40)
    assert log.keep(None) is None
    assert maker.another(log).core.kept() is None
    assert log.allow_compaction([99]) == Antichain.of(50)


def test_lengths_that_mean_nothing_are_refused(maker: LogMaker) -> None:
    log, two = moved(maker, 5), maker.create(times=("long", "long"))
    before, other = frozen(log), frozen(two)
    with pytest.raises(InvalidUsageError, match=r"could not set what log .* keeps: found keep='7 days' — hint: "):
        log.keep("7 days")
    with pytest.raises(InvalidUsageError, match=r"found committed='7' — hint: write the number with its unit"):
        log.keep(7, committed="7")
    with pytest.raises(InvalidUsageError, match=r"found times of 2 coordinates, behind which no length can be counted"):
        two.keep(7)
    assert (frozen(log), frozen(two)) == (before, other)
    made = maker.made
    with pytest.raises(InvalidUsageError, match=r"found keep='x'"):
        maker.create(keep="x")
    assert maker.made == made + 1


def test_dates_are_kept_by_days(maker: LogMaker) -> None:
    log = maker.create(times=("date",), minimum="2013-01-01")
    log.keep("2 weeks", committed="0s")
    log.writer(owner="me").append(pa.table({"_time": [dt.date(2013, 3, 1)], "v": [1]}), advance_to="2013-03-02")
    assert log.allow_compaction("2013-03-01") == log.domain.parse_frontier("2013-02-16")
    assert log.domain.types[0].render_duration(log.core.kept().length) == "14 days"  # type: ignore[union-attr]


def test_dead_letters_go_by_the_clock(maker: LogMaker) -> None:
    clock = ManualClock(now=1_000_000.0)
    log = moved(maker, 5, clock=clock)
    for number in range(3):
        set_apart(log, number, clock)
        clock.advance(DAY)
    log.keep_dead("2 days")
    assert maker.another(log).dead().num_rows == 3
    log.compact(logical=True, min_files=99)
    assert log.dead()["v"].to_pylist() == [1, 2]
    clock.advance(10 * DAY)
    other = maker.another(log)
    other.compact(logical=True)
    log.refresh()
    assert log.dead().num_rows == 0
    assert log.messages().num_rows == 5
    assert log.verify().legal
    log.keep_dead(None)
    set_apart(log, 9, clock)
    clock.advance(1000 * DAY)
    log.compact(logical=True)
    assert log.dead()["v"].to_pylist() == [9]
    with pytest.raises(InvalidUsageError, match=r"could not set how long .* keeps dead letters: found length='often'"):
        log.keep_dead("often")


def set_apart(log: Log, value: int, clock: ManualClock) -> None:
    """Append a dead letter."""
    log.refresh()
    state = log.core.stream("main")
    assert state is not None
    columns = {
        "_stream": ["main"],
        "_seq": [state.seq + 1],
        "_time": [0],
        "_reason": ["late"],
        "_at": [int(clock() * 1_000_000)],
        "v": [value],
    }
    table = pa.Table.from_arrays(
        [pa.array(columns[field.name]).cast(field.type) for field in log.core.format.dead_schema],
        schema=log.core.format.dead_schema,
    )
    times = log.domain.from_columns(table)
    files = write_data_files(
        log.core.storage, table, times, stream="main", seq=state.seq + 1, domain=log.domain, event="dead"
    )
    nothing = np.empty((0, 1), np.int64), np.empty(0, np.int64)
    log.core.commit(CommitRequest("main", "me", *nothing, files=files))
