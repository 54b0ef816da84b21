"""Every capture log gives back what was appended: reads, snapshots, after compaction, of any type.

The logs are in memory, in a Delta table, and both over a store that fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.errors import (
    InvalidUsageError,
    NegativeMultiplicityError,
    NotBeyondError,
    SchemaMismatchError,
    StreamMissingError,
)
from spark_timely.log import Log
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.machine.state import CommitRequest
from spark_timely.log.reader import events_of, frontier_at
from spark_timely.log.streams import StreamStates
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import NOTHING, LogMaker, clock, frozen, rows

# Reading ------------------------------------------------------------------------------------------


def test_messages_between_frontiers(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    writer.append(rows((5, 1), (0, 2), (9, 3)))
    writer.append(rows((5, 4), (2, 5)))
    assert log.messages(lower=2, upper=9)["v"].to_pylist() == [5, 1, 4]
    assert log.messages(lower=[])["v"].to_pylist() == []
    assert log.messages(upper=[]).num_rows == 5
    assert log.messages(columns=["v"]).schema.names == ["v"]
    assert log.messages(stream="nobody").num_rows == 0
    with pytest.raises(SchemaMismatchError, match="no column 'w'"):
        log.messages(columns=["w"])


def test_dead_letters_are_kept_apart(maker: LogMaker) -> None:
    log = maker.create()
    log.core.open_stream("main", owner="query")
    table = rows((1, 7))
    times = log.domain.from_columns(table)
    whole = message_table(log.core.format, table.select(["v"]), times, "main", 1)
    whole = whole.append_column("_reason", pa.array(["late"]))
    files = write_data_files(log.core.storage, whole, times, stream="main", seq=1, domain=log.domain, event="dead")
    log.core.commit(CommitRequest("main", "query", np.array([[0], [5]]), np.array([-1, 1]), batch=0, files=files))
    # Again, behind the frontier: dead letters are exempt from the protocol.
    whole = message_table(log.core.format, table.select(["v"]), times, "main", 2).append_column(
        "_reason", pa.array(["late"])
    )
    more = write_data_files(log.core.storage, whole, times, stream="main", seq=2, domain=log.domain, event="dead")
    log.core.commit(CommitRequest("main", "query", *NOTHING, batch=1, files=more))
    assert log.messages().num_rows == 0
    assert log.dead().select(["_time", "v", "_reason"]).to_pylist() == [{"_time": 1, "v": 7, "_reason": "late"}] * 2
    log.compact()
    assert log.dead().num_rows == 2
    report = log.verify()
    assert (report.messages, report.dead_letters, report.legal) == (0, 2, True)


def test_history_tells_frontiers(maker: LogMaker) -> None:
    now = clock()
    log = maker.create(clock=now)
    now.advance(1)
    writer = log.writer(owner="me")
    for i in range(1, 5):
        now.advance(1)
        writer.advance(i * 10)
    assert [frontier_at(log.core, seq=i).to_json() for i in range(6)] == [[0], [10], [20], [30], [40], [40]]
    assert [frontier_at(log.core, timestamp=f"us:{s}000000").to_json() for s in (-1, 0, 1, 2, 4, 99)] == [
        [0],
        [0],
        [0],
        [10],
        [30],
        [40],
    ]
    assert frontier_at(log.core, seq=2, stream="main") == Antichain.of(20)
    with pytest.raises(InvalidUsageError, match="give one of them"):
        frontier_at(log.core)
    with pytest.raises(StreamMissingError):
        frontier_at(log.core, seq=0, stream="z")


def test_history_keeps_the_order_of_commits_despite_the_clock(maker: LogMaker) -> None:
    now = clock()
    now.set(100)
    log = maker.create(clock=now)
    writer = log.writer(owner="me")
    writer.advance(5)
    now.set(2)
    writer.advance(9)
    writer.advance(12)
    # The stream is opened by the first append.
    assert [state.at for state, _ in events_of(log.core, "main")] == [100_000_000 + i for i in range(4)]


def test_states_of_streams_are_read_from_what_is_new_alone(maker: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("a", "b", "c")
    log = maker.create(streams=3, merge_every=None)
    for name in names:
        log.writer(name, owner=name).advance(1)
    follower = maker.another(log)
    assert set(follower.streams()) == set(names)
    read: list[str] = []
    rows_of = StreamStates.rows_in
    monkeypatch.setattr(StreamStates, "rows_in", lambda states, path: rows_of(states, read.append(path) or path))
    log.writer("b", owner="b").advance(2)
    read.clear()
    follower.refresh()
    assert follower.core.stream("b").frontier == Antichain.of(2)  # type: ignore[union-attr]
    assert len(read) == 1


def test_history_counts_in_a_joiner_whose_clock_is_ahead(maker: LogMaker) -> None:
    now = clock()
    log = maker.create(clock=now)
    writer = log.writer("a", owner="a")
    writer.advance(5)
    now.set(100)
    log.core.open_stream("b", owner="b")
    now.set(2)
    writer.advance(9)
    # At second 3 the donor was past 5; the joiner had its copy before, whatever its clock said.
    assert frontier_at(log.core, timestamp="1970-01-01T00:00:03Z") == Antichain.of(5)


# Collections --------------------------------------------------------------------------------------


def test_rule_001_13_contents_are_of_all_streams_in_any_order(maker: LogMaker) -> None:
    """Two producers, each with times of its own and out of order: the newest complete time has the sum of both."""
    parts = {"a": [(3, "x", 1), (0, "y", 2), (2, "x", -1), (1, "x", 1)], "b": [(2, "y", -1), (1, "z", 1), (4, "z", 5)]}
    found = []
    for order in (["a", "b"], ["b", "a"]):
        log = maker.create(pa.schema([("k", pa.string())]), kind="collection", streams=2)
        for name in order:
            writer = log.writer(name, owner=name)
            for time, k, diff in parts[name]:
                writer.append(pa.table({"_time": [time], "k": [k], "_diff": [diff]}))
            writer.advance(4)
        (newest,) = log.frontier().elements
        found.append(sorted((row["k"], row["_diff"]) for row in log.snapshot(newest[0] - 1).to_pylist()))
    assert found == [[("x", 1), ("y", 1), ("z", 1)]] * 2


def test_snapshot_sums_diffs(maker: LogMaker) -> None:
    log = maker.create(pa.schema([("k", pa.string()), ("tags", pa.list_(pa.int64()))]), kind="collection")
    writer = log.writer(owner="me")
    columns = ("_time", "k", "tags", "_diff")

    def updates(*found: tuple[Any, ...]) -> pa.Table:
        return pa.table({n: [row[i] for row in found] for i, n in enumerate(columns)}).cast(
            pa.schema(
                [("_time", pa.int64()), ("k", pa.string()), ("tags", pa.list_(pa.int64())), ("_diff", pa.int64())]
            )
        )

    writer.append(updates((0, "a", [1], 2), (1, "b", None, 1), (1, None, [], 1)), advance_to=2)
    writer.append(updates((2, "a", [1], -2), (3, "b", None, 4)), advance_to=4)

    def contents(time: int) -> list[tuple[Any, ...]]:
        return sorted(((r["k"], r["tags"], r["_diff"]) for r in log.snapshot(time).to_pylist()), key=repr)

    assert contents(0) == [("a", [1], 2)]
    assert contents(1) == sorted([("a", [1], 2), ("b", None, 1), (None, [], 1)], key=repr)
    assert contents(3) == sorted([("b", None, 5), (None, [], 1)], key=repr)
    log.compact()
    assert contents(3) == sorted([("b", None, 5), (None, [], 1)], key=repr)
    with pytest.raises(NotBeyondError, match="still open"):
        log.snapshot(4)
    writer.append(updates((4, "b", None, -9)), advance_to=5)
    with pytest.raises(NegativeMultiplicityError, match="count=-4"):
        log.snapshot(4)
    assert log.verify().legal


def test_snapshot_of_a_stream_is_refused(maker: LogMaker) -> None:
    with pytest.raises(InvalidUsageError, match="kind='stream'"):
        maker.create().snapshot(0)


# Compaction ---------------------------------------------------------------------------------------


def facts(log: Log) -> tuple[Any, ...]:
    report = log.verify()
    assert report.legal, report.problems
    return (
        report.digest,
        report.commits,
        log.messages().to_pylist(),
        log.core.counts(),
        [(s.stream, s.seq, s.counts, s.before, s.batch, m.num_rows) for s, m in events_of(log.core)],
        [frontier_at(log.core, seq=i) for i in range(5)],
    )


def test_compaction_changes_no_answer(maker: LogMaker) -> None:
    log = maker.create(streams=2, merge_every=None)
    writers = [log.writer(name, owner=name) for name in ("a", "b")]
    for i in range(1, 8):
        for writer in writers:
            writer.append(rows((i + 3, i), (i - 1, i)), advance_to=i)
    before = facts(log)
    report = log.compact()
    assert report.files_after < report.files_before
    assert facts(log) == before
    assert facts(maker.another(log)) == before
    again = log.compact()
    assert again.files_before == again.files_after == report.files_after
    assert facts(log) == before


@pytest.mark.parametrize("min_files", [3, 4])
def test_compaction_merges_no_fewer_files_than_asked_for(maker: LogMaker, min_files: int) -> None:
    log = maker.create(merge_every=None)
    writer = log.writer(owner="me")
    for i in range(1, 4):
        writer.append(rows((i, i)), advance_to=i)
    log.compact(min_files=min_files)
    assert len(log.core.files().paths) == (1 if min_files == 3 else 3)


@pytest.mark.parametrize("more", [0, 1])
def test_compaction_merges_no_fewer_progress_files_than_asked(maker: LogMaker, more: int) -> None:
    log = maker.create(merge_every=None)
    writer = log.writer(owner="me")
    for i in range(1, 6):
        writer.advance(i)
    there = [path for path in log.core.progress_files().paths if "/main-" in path]
    assert len(there) > 3
    log.compact(min_files=len(there) + more)
    assert len([path for path in log.core.progress_files().paths if "/main-" in path]) == (len(there) if more else 1)


def test_compaction_loses_to_another_cleanly(maker: LogMaker) -> None:
    log = maker.create(merge_every=None)
    writer = log.writer(owner="me")
    for i in range(1, 6):
        writer.append(rows((i, i)), advance_to=i)
    before = facts(log)
    other = maker.another(log)
    # Both plan from the same snapshot.
    index = other.core.files()
    from spark_timely.log.compaction import _merge_data

    log.compact()
    assert not _merge_data(other.core.states, index, "message", 1 << 20)
    assert facts(log) == before


def test_small_files_are_merged_by_the_way(maker: LogMaker) -> None:
    log = maker.create(merge_every=5)
    writer = log.writer(owner="me")
    for i in range(1, 42):
        writer.append(rows((i, i)), advance_to=i)
    assert len(log.core.files()) < 12
    assert len(log.core.progress_files()) < 12
    other = maker.another(log)
    state = other.core.stream("main")
    assert state is not None
    assert (state.seq, state.frontier) == (41, Antichain.of(41))
    report = other.verify()
    assert report.legal, report.problems
    assert (report.messages, report.commits) == (41, 44)


def test_stale_handle_goes_on_after_compaction(maker: LogMaker) -> None:
    log = maker.create(merge_every=None)
    writer = log.writer(owner="me")
    for i in range(1, 6):
        writer.append(rows((i, i)), advance_to=i)
    maker.another(log).compact()
    writer.append(rows((6, 6)), advance_to=7)
    assert log.frontier() == Antichain.of(7)
    assert log.verify().messages == 6


# Rows ---------------------------------------------------------------------------------------------


def test_empty_and_single_row_appends(maker: LogMaker) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    assert writer.append(rows()).state.rows == 0
    assert writer.append(rows((3, 1))).state.rows == 1
    assert writer.append(rows((3, 1)).to_batches()[0], advance_to=9).state.rows == 1
    assert log.messages().num_rows == 2
    assert log.verify().legal


def test_times_may_come_from_payload_columns(maker: LogMaker) -> None:
    log = maker.create(pa.schema([("hour", pa.int64()), ("v", pa.int64())]))
    writer = log.writer(owner="me")
    writer.append(pa.table({"v": [1, 2], "hour": [4, 3]}), time_column="hour", advance_to=5)
    assert log.messages(columns=["_time", "hour", "v"]).to_pylist() == [
        {"_time": 3, "hour": 3, "v": 2},
        {"_time": 4, "hour": 4, "v": 1},
    ]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (pa.table({"v": [1]}), "no time column '_time'"),
        (pa.table({"_time": [1], "w": [1]}), "found no column 'v'"),
        (pa.table({"_time": [1], "v": [1], "w": [1]}), "unknown column 'w'"),
        (pa.table({"_time": [1], "v": ["x"]}), "column 'v' of type=string"),
        (pa.table({"_time": [1], "v": [1.5]}), "column 'v' of type=double"),
        (pa.table({"_time": pa.array([1, None], pa.int64()), "v": [1, 1]}), "null in row=1"),
        (pa.table({"_time": [1.5], "v": [1]}), "_time"),
        (pa.table({"_time": ["x"], "v": [1]}), "_time"),
        (pa.table({"_time": pa.array([1 << 63], pa.uint64()), "v": [1]}), "row=0"),
        (pa.table([[1], [1], [2]], names=["_time", "v", "v"]), "twice"),
    ],
)
def test_rows_that_do_not_fit_are_refused(maker: LogMaker, table: pa.Table, found: str) -> None:
    log = maker.create()
    writer = log.writer(owner="me")
    before = frozen(log)
    with pytest.raises(InvalidUsageError, match=found):
        writer.append(table)
    assert frozen(log) == before


def test_null_in_a_column_declared_not_null_is_refused(maker: LogMaker) -> None:
    log = maker.create(pa.schema([pa.field("v", pa.int64(), nullable=False)]))
    writer = log.writer(owner="me")
    with pytest.raises(SchemaMismatchError, match="null in column 'v', row=1"):
        writer.append(pa.table({"_time": [1, 1], "v": pa.array([1, None], pa.int64())}))
    assert log.describe()["nullable"] == {"v": False}
    assert maker.another(log).schema.field("v").nullable is False


def test_payload_of_many_types_comes_back(maker: LogMaker) -> None:
    import datetime as dt
    from decimal import Decimal

    utc = dt.UTC
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "ünïcödé": (pa.string(), ["ä", None, "𝄞"]),
        "i8": (pa.int8(), [-128, None, 127]),
        "f": (pa.float64(), [float("inf"), None, -0.0]),
        "b": (pa.bool_(), [True, None, False]),
        "bin": (pa.binary(), [b"\x00", None, b""]),
        "dec": (pa.decimal128(38, 10), [Decimal("1.5"), None, Decimal("-1e-10")]),
        "d": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "ts": (
            pa.timestamp("us", "UTC"),
            [dt.datetime(1700, 1, 1, tzinfo=utc), None, dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=utc)],
        ),
        "ntz": (pa.timestamp("us"), [dt.datetime(2020, 1, 1), None, dt.datetime(1900, 1, 1)]),
        "l": (pa.list_(pa.struct([("x", pa.int32())])), [[{"x": 1}, None], None, []]),
        "m": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], None, []]),
        "s": (pa.struct([("x", pa.struct([("y", pa.string())]))]), [{"x": {"y": "z"}}, None, {"x": None}]),
    }
    schema = pa.schema([(name, type_) for name, (type_, _) in values.items()])
    log = maker.create(schema)
    table = pa.table({name: pa.array(found, type_) for name, (type_, found) in values.items()})
    writer = log.writer(owner="me")
    writer.append(table.append_column("_time", pa.array([1, 2, 3])), advance_to=9)
    writer.append(table.append_column("_time", pa.array([9, 9, 9])), advance_to=10)
    digest = log.verify().digest
    log.compact()
    back = maker.another(log).messages(upper=9, columns=list(values))
    assert back.to_pylist() == table.to_pylist()
    assert log.verify().digest == digest


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("long", [-(1 << 63), 0, (1 << 63) - 1]),
        ("int", [-(1 << 31), 0, (1 << 31) - 1]),
        ("short", [-(1 << 15), 0, (1 << 15) - 1]),
        ("date", ["1700-01-01", "2013-05-06", "9999-12-31"]),
        ("timestamp", ["1700-01-01T00:00:00Z", "2013-05-06T07:08:09.123456Z", "9999-12-31T23:59:59.999999Z"]),
    ],
)
def test_times_of_every_type_to_the_bounds(maker: LogMaker, kind: str, values: list[Any]) -> None:
    log = maker.create(times=(kind,), minimum=None)
    domain = log.domain
    numbers = np.array([[domain.types[0].parse(v)] for v in values])
    assert log.frontier() == Antichain(numbers[:1])
    writer = log.writer(owner="me")
    table = pa.table({**domain.to_columns(numbers), "v": [0, 1, 2]})
    writer.append(table, advance_to=values[1])
    writer.append(table.slice(1), advance_to=values[2])
    other = maker.another(log)
    assert other.frontier() == Antichain(numbers[2:])
    index = other.core.files()
    assert index.known.all()
    assert (index.min_times.min(), index.max_times.max()) == (numbers[0, 0], numbers[2, 0])
    assert other.messages(lower=values[1], upper=values[2])["v"].to_pylist() == [1, 1]
    digest = other.verify().digest
    other.compact()
    assert other.verify().digest == digest
    assert frontier_at(other.core, seq=1) == Antichain(numbers[1:2])
