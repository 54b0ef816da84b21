"""Subscriptions as a user has them: where they begin and end, rows and progress, positions, names, refusals."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.answers import follow
from spark_timely.answers.retainers import Positions
from spark_timely.answers.subscribe import Subscription, subscribe
from spark_timely.errors import (
    DataLossError,
    InvalidBoundsError,
    InvalidUsageError,
    LogMissingError,
    OwnershipError,
    ResultTooLargeError,
    RolledBackError,
    SinceViolationError,
)
from spark_timely.log import Log, MemoryLog
from spark_timely.log.cut import Cut
from spark_timely.log.log import create_log, open_log
from spark_timely.time.antichain import Antichain

SCHEMA = pa.schema([("v", pa.string())])
at = Antichain.of


def log_of(kind: str = "collection", **options: Any) -> MemoryLog:
    return MemoryLog.create(SCHEMA, kind=kind, **{"minimum": 0, **options})  # type: ignore[arg-type]


def append(log: Log, *rows: tuple[Any, str, int], to: Any) -> None:
    columns: dict[str, Any] = {
        name: pa.array(
            [row[0][i] if log.domain.arity > 1 else row[0] for row in rows],
            log.core.format.data_schema.field(name).type,
        )
        for i, name in enumerate(log.domain.columns)
    }
    if log.kind == "collection":
        columns["_diff"] = pa.array([diff for *_, diff in rows], pa.int64())
    columns["v"] = pa.array([v for _, v, _ in rows], pa.string())
    log.writer(owner="me").append(pa.table(columns), advance_to=to)


@pytest.fixture
def log() -> MemoryLog:
    """Contents: a from 1 to 3, b from 2 on, c twice from 4 on; complete below 6."""
    made = log_of()
    append(made, (1, "a", 1), (2, "b", 1), (3, "a", -1), (4, "c", 2), to=6)
    return made


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def all_of(subscription: Subscription) -> list[tuple[Any, ...]]:
    with subscription:
        return rows(subscription.fetch(timeout_s=0))


# Where it begins and ends -----------------------------------------------------------------------------


def test_begins_at_the_newest_complete_time(log: MemoryLog) -> None:
    with subscribe(log) as subscription:
        assert subscription.as_of == 5
        assert sorted(rows(subscription.fetch())) == [(5, 1, "b"), (5, 2, "c")]
        assert subscription.position == at(6)


def test_contents_stand_at_as_of_and_changes_at_their_times(log: MemoryLog) -> None:
    assert sorted(all_of(subscribe(log, as_of=2))) == [(2, 1, "a"), (2, 1, "b"), (3, -1, "a"), (4, 2, "c")]
    assert all_of(subscribe(log, as_of=2, snapshot=False)) == [(3, -1, "a"), (4, 2, "c")]


def test_as_of_that_lies_ahead_is_waited_for(log: MemoryLog) -> None:
    with subscribe(log, as_of=7) as subscription:
        assert subscription.next_batch(timeout_s=0) is None
        append(log, (6, "d", 1), (7, "b", -1), to=7)
        assert subscription.next_batch(timeout_s=0) is None
        append(log, to=8)
        batch = next(subscription)
        assert (batch.lower, batch.upper) == (at(0), at(8))
        assert sorted(rows(batch.rows)) == [(7, 1, "d"), (7, 2, "c")]


def test_up_to_is_exclusive_and_ends_it(log: MemoryLog) -> None:
    subscription = subscribe(log, as_of=2, up_to=4)
    found = [row for batch in subscription for row in rows(batch.rows)]
    assert sorted(found) == [(2, 1, "a"), (2, 1, "b"), (3, -1, "a")]
    assert subscription.has_ended
    assert (subscription.position, list(subscription)) == (at(4), [])


@pytest.mark.parametrize("time", [2, 9])
def test_up_to_that_is_as_of_ends_without_rows(log: MemoryLog, time: int) -> None:
    subscription = subscribe(log, as_of=time, up_to=time)
    assert subscription.has_ended
    assert list(subscription) == []
    assert subscription.fetch().num_rows == 0
    assert subscription.position is None


def test_up_to_before_as_of_is_refused(log: MemoryLog) -> None:
    with pytest.raises(InvalidBoundsError, match=r"up to 1: found as_of=2"):
        subscribe(log, as_of=2, up_to=1)


def test_complete_log_ends_it(log: MemoryLog) -> None:
    subscription = subscribe(log, as_of=4)
    append(log, (9, "e", 1), to=[])
    found = list(subscription)
    assert [batch.upper for batch in found] == [at(5), at(6), Antichain.empty(1)]
    assert rows(found[-1].rows) == [(9, 1, "e")]
    assert subscription.has_ended


def test_complete_log_begins_at_its_last_time(log: MemoryLog) -> None:
    append(log, (9, "e", 1), to=[])
    with subscribe(log) as subscription:
        assert subscription.as_of == 9
        assert sorted(row[2] for row in rows(subscription.fetch())) == ["b", "c", "e"]
        assert list(subscription) == []


def test_log_in_which_nothing_is_complete_begins_at_its_minimum() -> None:
    log = log_of()
    with subscribe(log) as subscription:
        assert subscription.as_of == 0
        assert subscription.fetch(timeout_s=0).num_rows == 0
        append(log, (0, "a", 1), to=1)
        assert rows(subscription.fetch()) == [(0, 1, "a")]


def test_at_least_is_the_earliest_that_can_be_read(log: MemoryLog) -> None:
    log.allow_compaction([3])
    for as_of_at_least, as_of in ((1, 3), (3, 3), (4, 4), (9, 9)):
        with subscribe(log, as_of_at_least=as_of_at_least) as subscription:
            assert subscription.as_of == as_of


def test_messages_of_a_stream_are_rows_that_come() -> None:
    log = log_of("stream")
    append(log, (1, "a", 1), (1, "a", 1), (2, "b", 1), to=3)
    assert sorted(all_of(subscribe(log, as_of=1))) == [(1, 2, "a"), (2, 1, "b")]


def test_times_are_given_as_the_log_has_them(tmp_path: Path) -> None:
    day = dt.date(2013, 1, 5)
    log = create_log(tmp_path / "log", SCHEMA, times="date", minimum="2013-01-01", kind="collection")
    append(log, (day, "a", 1), to="2013-01-06")
    with subscribe(log.path, as_of="2013-01-05", progress=True) as subscription:
        assert subscription.as_of == "2013-01-05"
        found = rows(subscription.fetch())
        assert found == [
            (day, True, None, None),
            (day, False, 1, "a"),
            (day + dt.timedelta(days=1), True, None, None),
        ]
        stored = json.dumps(subscription.domain.frontier_to_json(subscription.position))
    append(log, (dt.date(2013, 1, 6), "b", 1), to="2013-01-09")
    assert all_of(subscribe(log.path, resume_from=stored)) == [(dt.date(2013, 1, 6), 1, "b")]


def test_product_times_earlier_in_one_coordinate_are_moved_up() -> None:
    log = log_of(times=("long", "long"), minimum=(0, 0))
    append(log, ((1, 1), "a", 1), ((3, 0), "b", 1), ((0, 9), "c", 1), to=(4, 4))
    with subscribe(log, as_of=(2, 2)) as subscription:
        (batch,) = [subscription.next_batch(timeout_s=0)]
        assert batch is not None
        assert (batch.lower, batch.upper) == (at((0, 0)), at((4, 4)))
        assert sorted(rows(batch.rows)) == [(2, 2, 1, "a"), (2, 9, 1, "c"), (3, 2, 1, "b")]
    assert sorted(all_of(subscribe(log, as_of=(2, 2), snapshot=False))) == [(2, 9, 1, "c"), (3, 2, 1, "b")]
    again = subscribe(log, as_of=(2, 2), resume_from=[[3, 2], [2, 3]])
    assert sorted(all_of(again)) == [(2, 9, 1, "c"), (3, 2, 1, "b")]


def test_product_times_need_as_of_to_begin_and_to_resume() -> None:
    log = log_of(times=("long", "long"), minimum=(0, 0))
    for options in ({}, {"resume_from": [[1, 1]]}):
        with pytest.raises(InvalidUsageError, match="as_of"):
            subscribe(log, **options)


# Rows and progress ------------------------------------------------------------------------------------


def test_progress_rows_begin_at_as_of_and_end_at_the_upper(log: MemoryLog) -> None:
    with subscribe(log, as_of=2, progress=True) as subscription:
        first = rows(next(subscription).rows)
        assert (first[0], first[-1]) == ((2, True, None, None), (3, True, None, None))
        assert sorted(first[1:-1]) == [(2, False, 1, "a"), (2, False, 1, "b")]
        assert rows(next(subscription).rows) == [
            (3, False, -1, "a"),
            (4, False, 2, "c"),
            (6, True, None, None),
        ]
        append(log, to=9)
        assert rows(next(subscription).rows) == [(9, True, None, None)]


def test_progress_of_one_that_is_resumed_begins_before_it(log: MemoryLog) -> None:
    assert all_of(subscribe(log, resume_from=4, progress=True)) == [
        (3, True, None, None),
        (4, True, None, None),
        (4, False, 2, "c"),
        (6, True, None, None),
    ]


def test_fetch_moves_the_position_with_the_last_row_of_a_batch(log: MemoryLog) -> None:
    with subscribe(log, as_of=2, order_by="v") as subscription:
        assert rows(subscription.fetch(1)) == [(2, 1, "a")]
        assert subscription.position is None
        assert rows(subscription.fetch(2)) == [(2, 1, "b"), (3, -1, "a")]
        assert subscription.position == at(3)
        rest = subscription.next_batch(timeout_s=0)
        assert rest is not None
        assert (rest.lower, rest.upper, rows(rest.rows)) == (at(3), at(6), [(4, 2, "c")])
        assert subscription.position == at(6)
        assert subscription.fetch(0).num_rows == 0
        assert subscription.fetch(timeout_s=0).schema == subscription.schema
    with subscribe(log, as_of=2) as subscription:
        assert subscription.fetch(2**63).num_rows == 4


def test_envelope_of_a_log_with_a_key() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64()), ("k", pa.string())]), minimum=0, kind="collection", key="k")
    table = pa.table({"_time": [1, 2, 2], "_diff": [1, -1, 1], "v": [1, 1, 2], "k": ["a", "a", "a"]})
    log.writer(owner="me").append(table, advance_to=3)
    found = all_of(subscribe(log, as_of=1, envelope="upsert", progress=True))
    assert found == [
        (1, True, None, None, None),
        (1, False, "upsert", "a", 1),
        (2, True, None, None, None),
        (2, False, "upsert", "a", 2),
        (3, True, None, None, None),
    ]


def test_columns_may_be_nested() -> None:
    payload = pa.schema([("k", pa.string()), ("l", pa.list_(pa.int64())), ("s", pa.struct([("x", pa.float64())]))])
    log = MemoryLog.create(payload, minimum=0, kind="collection")
    some, others = {"k": "a", "l": [1, 2], "s": {"x": -0.0}}, {"k": "a", "l": None, "s": {"x": None}}
    updates = [(1, 1, some), (2, -1, {**some, "s": {"x": 0.0}}), (2, 1, others)]
    table = pa.Table.from_pylist([{"_time": t, "_diff": d, **row} for t, d, row in updates])
    log.writer(owner="me").append(table.cast(pa.schema([*list(table.schema)[:2], *payload])), advance_to=3)
    assert all_of(subscribe(log, as_of=2)) == [(2, 1, "a", None, {"x": None})]
    assert [row[1:5] for row in all_of(subscribe(log, as_of=1, envelope="debezium", key="k"))] == [
        ("insert", "a", None, None),
        ("upsert", "a", [1, 2], {"x": 0.0}),
    ]


def test_column_that_is_added_comes_with_later_batches(log: MemoryLog) -> None:
    with subscribe(log) as subscription:
        assert subscription.fetch().column_names == ["_time", "_diff", "v"]
        log.add_columns(pa.schema([("w", pa.int64())]))
        table = pa.table({"_time": [6], "_diff": [1], "v": ["d"], "w": [7]})
        log.writer(owner="me").append(table, advance_to=7)
        assert rows(subscription.fetch()) == [(6, 1, "d", 7)]


def test_interval_too_large_ends_it_and_moves_its_frontier_alone(log: MemoryLog) -> None:
    subscription = subscribe(log, as_of=2, max_bytes=40)
    assert [next(subscription).rows.num_rows for _ in range(2)] == [2, 2]
    append(log, (6, "x" * 100, 1), to=7)
    with pytest.raises(ResultTooLargeError, match=r"max_bytes=40") as error:
        next(subscription)
    assert (error.value.context["limit_bytes"], error.value.limit_name) == (40, "max_bytes")
    assert (subscription.position, subscription.frontier) == (at(6), at(7))
    assert subscription.has_ended
    assert list(subscription) == []
    assert len(all_of(subscribe(log, resume_from=subscription.position, max_bytes="1kb"))) == 1


def test_size_does_not_depend_on_how_others_read(log: MemoryLog) -> None:
    some = [subscribe(log, as_of=1, max_bytes=size) for size in (1000, 17, 16)]
    assert rows(next(some[0]).rows) == rows(next(some[1]).rows) == [(1, 1, "a")]
    with pytest.raises(ResultTooLargeError):
        next(some[2])
    for each in some:
        each.close()


# Positions and names ----------------------------------------------------------------------------------


def test_resumed_gives_what_the_other_had_not(log: MemoryLog) -> None:
    with subscribe(log, as_of=1) as first:
        next(first)
        position = first.position
    assert position == at(2)
    assert all_of(subscribe(log, resume_from=position)) == [(2, 1, "b"), (3, -1, "a"), (4, 2, "c")]
    assert all_of(subscribe(log, resume_from=0))[0] == (1, 1, "a")


def test_resumed_where_nothing_is_new_waits(log: MemoryLog) -> None:
    with subscribe(log, resume_from=6) as subscription:
        batch = subscription.next_batch(timeout_s=0)
        assert batch is not None
        assert (batch.lower, batch.upper, batch.rows.num_rows) == (at(0), at(6), 0)
        assert subscription.next_batch(timeout_s=0) is None


def test_progress_that_the_log_has_not_reached_is_refused(log: MemoryLog) -> None:
    for progress in (7, []):
        with pytest.raises(RolledBackError, match=r"upper=\[6\]"):
            subscribe(log, resume_from=progress)


def test_progress_before_the_minimum_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="begins at 5"):
        subscribe(log_of(minimum=5), resume_from=4)
    with pytest.raises(InvalidUsageError, match="begins at 5"):
        subscribe(log_of(minimum=5), as_of=4)


def test_resumed_at_the_end_of_a_complete_log_ends(log: MemoryLog) -> None:
    append(log, to=[])
    assert [batch.rows.num_rows for batch in subscribe(log, resume_from=[])] == [0]


def test_name_retains_what_was_acknowledged_not_what_was_given(log: MemoryLog) -> None:
    with subscribe(log, as_of=1, name="x") as subscription:
        subscription.fetch()
        assert log.allow_compaction([9]) == at(1)
        with pytest.raises(InvalidUsageError, match=r"progress=\[7\], given was \[6\]"):
            subscription.acknowledge(7)
        subscription.acknowledge(3)
    assert log.allow_compaction([9]) == at(2)
    with subscribe(log, resume_from=3, name="x") as subscription:
        assert rows(subscription.fetch()) == [(3, -1, "a"), (4, 2, "c")]
        subscription.acknowledge(6)
        subscription.acknowledge(4)
    assert log.allow_compaction([9]) == at(5)


def test_acknowledged_after_the_end_is_written_too(log: MemoryLog) -> None:
    with subscribe(log, as_of=1, up_to=5, name="x") as subscription:
        list(subscription)
    subscription.acknowledge(5)
    assert log.allow_compaction([9]) == at(4)


def test_nothing_is_acknowledged_before_a_batch_or_with_no_name(log: MemoryLog) -> None:
    with subscribe(log, name="x") as named, subscribe(log) as unnamed:
        with pytest.raises(InvalidUsageError, match="given was nothing"):
            named.acknowledge(1)
        with pytest.raises(InvalidUsageError, match="without a name"):
            unnamed.acknowledge(1)
        assert (named.name, unnamed.name) == ("x", None)


@pytest.mark.parametrize("how", ["acknowledge", "batch"])
def test_older_holder_of_a_name_is_refused(log: MemoryLog, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    older = subscribe(log, as_of=1, name="x")
    next(older)
    monkeypatch.setattr(follow, "_followers", {})  # as in another process
    newer = subscribe(log, resume_from=older.position, name="x")
    assert newer._follower is not older._follower
    with pytest.raises(OwnershipError, match="subscription 'x'"):
        older.acknowledge(2) if how == "acknowledge" else [next(older), append(log, to=7), next(older)]
    assert rows(newer.fetch()) == [(2, 1, "b"), (3, -1, "a"), (4, 2, "c")]
    newer.acknowledge(6)
    older.close()
    newer.close()
    assert log.allow_compaction([9]) == at(5)


def test_expired_name_that_was_passed_is_named_when_it_resumes() -> None:
    now = [1_000_000.0]
    log = log_of(clock=lambda: now[0])
    append(log, (1, "a", 1), (2, "b", 1), to=5)
    with subscribe(log, as_of=1, name="nightly report", expiry="1 hour") as subscription:
        next(subscription)
    now[0] += 7200
    log.allow_compaction([9])
    with pytest.raises(SinceViolationError, match=r"'nightly report'.*expired.*upper=\[5\]"):
        subscribe(log, resume_from=2, name="nightly report")
    with pytest.raises(SinceViolationError, match=r"since=\[4\].*upper=\[5\]"):
        subscribe(log, resume_from=2)


@pytest.mark.parametrize("change", ["made again", "put back"])
def test_cut_of_another_history_is_refused(tmp_path: Path, change: str) -> None:
    def begun() -> Log:
        made = create_log(tmp_path / "log", SCHEMA, minimum=(0,), kind="collection")
        append(made, (1, "a", 1), to=3)
        return made

    made = begun()
    version = made.core.version
    append(made, (4, "b", 1), to=6)
    with subscribe(tmp_path / "log", as_of=1, name="x") as subscription:
        assert subscription.cut is None
        subscription.fetch()
        stored, position = str(subscription.cut), subscription.position
        subscription.acknowledge(6)
    append(made, (7, "c", 1), to=8)
    with subscribe(tmp_path / "log", resume_from=stored, name="x", up_to=8) as resumed:
        assert rows(resumed.fetch()) == [(7, 1, "c")]
    with subscribe(tmp_path / "log", resume_from=Cut.from_json(stored), up_to=8) as resumed:
        assert rows(resumed.fetch()) == [(7, 1, "c")]
    if change == "made again":
        shutil.rmtree(tmp_path / "log")
        made = begun()
    else:
        DeltaTable(tmp_path / "log").restore(version)
        made = open_log(tmp_path / "log")
    append(made, (4, "other", 1), to=9)
    with pytest.raises(DataLossError, match="found id=" if change == "made again" else "commit"):
        subscribe(tmp_path / "log", resume_from=stored, name="x")
    with pytest.raises(DataLossError, match="found no position of name 'x' in it"):
        subscribe(tmp_path / "log", resume_from=position, name="x")


def test_time_passed_by_compaction_is_chosen_again(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Positions.begin

    def late(self: Positions, name: str, needed: Antichain, expiry: Any) -> Any:
        if len(passed) < 3:
            other = log.another()
            append(other, to=other.frontier().elements[0][0] + 1)
            passed.append(other.allow_compaction([99]))
        return begin(self, name, needed, expiry)

    passed: list[Antichain] = []
    monkeypatch.setattr(Positions, "begin", late)
    with subscribe(log, name="x") as subscription:
        assert sorted(rows(subscription.fetch())) == [(8, 1, "b"), (8, 2, "c")]
    assert passed == [at(6), at(7), at(8)]
    log.release("x")
    passed.clear()
    with pytest.raises(SinceViolationError):
        subscribe(log, as_of=8, name="y")


def test_unnamed_retains_while_it_lives(log: MemoryLog) -> None:
    with subscribe(log, as_of=3), subscribe(log, as_of=2):
        assert log.allow_compaction([9]) == at(2)
    log.refresh()
    assert log.retainers() == {}


def test_as_of_before_since_is_refused_with_both_frontiers(log: MemoryLog) -> None:
    log.allow_compaction([4])
    log.refresh()
    version = log.core.version
    with pytest.raises(SinceViolationError, match=r"as of 3: found since=\[4\].*upper=\[6\]"):
        subscribe(log, as_of=3)
    with pytest.raises(SinceViolationError, match=r"since=\[4\]"):
        subscribe(log, as_of=3, name="x")
    log.refresh()
    assert log.core.version == version


def test_forgetful_stream_is_refused_with_contents_unless_said() -> None:
    log = log_of("stream")
    append(log, (1, "a", 1), (3, "b", 1), (4, "c", 1), to=6)
    log.allow_compaction([3])
    with pytest.raises(SinceViolationError, match=r"forgotten messages.*forgotten=True"):
        subscribe(log, as_of=3)
    assert all_of(subscribe(log, as_of=3, forgotten=True)) == [(3, 1, "b"), (4, 1, "c")]
    assert all_of(subscribe(log, as_of=3, snapshot=False)) == [(4, 1, "c")]
    assert all_of(subscribe(log, as_of=2, snapshot=False)) == [(3, 1, "b"), (4, 1, "c")]
    for options in ({"forgotten": True}, {"snapshot": False}):
        with pytest.raises(SinceViolationError, match=r"since=\[3\].*upper=\[6\]"):
            subscribe(log, as_of=1, **options)
    with subscribe(log, as_of_at_least=0, snapshot=False) as subscription:
        assert subscription.as_of == 2


def test_stream_that_has_forgotten_is_followed_while_it_forgets() -> None:
    log = log_of("stream")
    append(log, (1, "a", 1), (3, "b", 1), to=6)
    log.allow_compaction([3])
    with subscribe(log, forgotten=True) as subscription:
        log.allow_compaction([9])
        assert rows(subscription.fetch()) == [(5, 1, "b")]
        append(log, (6, "c", 1), to=8)
        assert rows(subscription.fetch()) == [(6, 1, "c")]


# Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"as_of": 1, "as_of_at_least": 1}, "as_of=1, as_of_at_least=1"),
        ({"resume_from": 1, "as_of_at_least": 1}, "as_of_at_least=1, resume_from=1"),
        ({"as_of": "soon"}, "soon"),
        ({"up_to": "soon"}, "soon"),
        ({"resume_from": "soon"}, "soon"),
        ({"snapshot": 1}, "snapshot=1"),
        ({"forgotten": "no"}, "forgotten='no'"),
        ({"name": " "}, "name=' '"),
        ({"name": 7}, "name=7"),
        ({"name": "x", "expiry": "soon"}, "expiry='soon'"),
        ({"name": "x", "expiry": "0 days"}, "expiry='0 days'"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_bytes": "much"}, "max_bytes='much'"),
        ({"poll_s": -1}, "poll_s=-1"),
        ({"poll_s": float("nan")}, "poll_s=nan"),
        ({"poll_s": "1 s"}, "poll_s='1 s'"),
        ({"envelope": "upsert"}, "key=None"),
    ],
)
def test_argument_that_does_not_fit_is_refused_before_a_commit(
    log: MemoryLog, options: dict[str, Any], said: str
) -> None:
    log.refresh()
    version = log.core.version
    with pytest.raises(InvalidUsageError) as error:
        subscribe(log, **options)
    assert said in str(error.value)
    log.refresh()
    assert log.core.version == version


@pytest.mark.parametrize(("n", "timeout_s"), [(-1, None), (1.5, None), (None, -1), (None, "soon")])
def test_fetch_refuses_what_is_no_number(log: MemoryLog, n: Any, timeout_s: Any) -> None:
    with subscribe(log) as subscription, pytest.raises(InvalidUsageError, match="could not fetch"):
        subscription.fetch(n, timeout_s=timeout_s)


def test_target_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError):
        subscribe(tmp_path / "none")
    with pytest.raises(InvalidUsageError, match="target=7"):
        subscribe(7)  # type: ignore[arg-type]


def test_log_is_read_by_path_or_by_a_handle_that_stays(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=0, kind="collection")
    append(log, (1, "a", 1), to=2)
    handle = open_log(log.path)
    version = handle.core.version
    for target in (log.path, tmp_path / "log", handle):
        assert all_of(subscribe(target)) == [(1, 1, "a")]
    assert handle.core.version == version


def test_shown_it_says_the_log_and_how_far_it_was_given(log: MemoryLog) -> None:
    subscription = subscribe(log, as_of=1)
    assert repr(subscription) == "Subscription('memory', position=nothing)"
    next(subscription)
    subscription.close()
    assert repr(subscription) == "Subscription('memory', position=2, closed)"
