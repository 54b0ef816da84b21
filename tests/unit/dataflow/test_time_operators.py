"""Functions of complete times, windows, times as rows: what they give, and what is refused by name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import ceil_to, plus, windows
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import Replay
from spark_timely.errors import InvalidUsageError, OperatorError, SchemaMismatchError
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import rows_of, stream_of
from spark_timely.time.antichain import Antichain, consolidate
from tests.property.test_dataflow import runner

ROWS = {"_time": [5, 1, 3, 1], "k": ["a", "b", "a", "a"], "n": [1, 2, 3, 4]}
NUMBERS = pa.schema([("n", pa.int64())])


def test_function_is_called_once_for_each_complete_time_in_order() -> None:
    called = []

    def largest(time: int, rows: pa.Table) -> pa.Table | None:
        called.append((time, sorted(rows["n"].to_pylist())))
        return rows.filter(pc.equal(rows["n"], pc.max(rows["n"]))) if time != 3 else None

    stream = stream_of(ROWS).unary_notify(largest, columns=["n"])
    called.clear()
    assert rows_of(stream, upper=[5]) == [{"_time": 1, "n": 4}]
    assert called == [(1, [2, 4]), (3, [3])]


def test_error_in_a_function_keeps_its_hint_or_gets_one() -> None:
    def fails(error: Exception) -> str:
        def function(time: int, rows: pa.Table) -> pa.Table:
            if rows.num_rows:
                raise error
            return rows.select(["n"])

        with pytest.raises(OperatorError) as found:
            rows_of(stream_of(ROWS).unary_notify(function, columns=["n"]))
        return str(found.value)

    mine = fails(SchemaMismatchError("could not look: found nothing", hint="look elsewhere"))
    assert mine.endswith("found could not look: found nothing — hint: look elsewhere")
    assert fails(KeyError("k")).endswith(
        "found KeyError: 'k' — hint: correct the function or the data; nothing of these times was written"
    )


def test_function_of_two_streams_gets_both_sides_of_each_time() -> None:
    left = stream_of(ROWS)
    right = stream_of({"_time": [1, 2], "m": [7, 8]}, beside=left)

    def both(time: int, one: pa.Table, two: pa.Table) -> pa.Table:
        return pa.table({"seen": [f"{time}: {one['n'].to_pylist()} {two['m'].to_pylist()}"]})

    found = rows_of(left.binary_notify(right, both, columns=(["n"], None)), upper=[5])
    assert [row["seen"] for row in found] == ["1: [2, 4] [7]", "2: [] [8]", "3: [3] []"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("date32", date(1970, 1, 3)),
        ("timestamp", datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC)),
        ("product", (2, 3)),
    ],
)
def test_time_comes_as_python_has_it(kind: str, expected: object) -> None:
    types = {"date32": pa.date32(), "timestamp": pa.timestamp("us", "UTC")}
    times: dict[str, Any] = {"_time_0": [2], "_time_1": [3]}
    if kind != "product":
        times = {"_time": pa.array([2], pa.int64() if kind == "timestamp" else pa.int32()).cast(types[kind])}
    called = []
    stream = stream_of({**times, "n": [1]}).unary_notify(lambda time, rows: called.append(time) or rows)
    assert len(rows_of(stream, upper=[])) == 1
    assert called[-1] == expected


def at_time(shift: int) -> Any:
    def function(time: int, rows: pa.Table) -> pa.Table:
        return rows.append_column("_time", pa.array([time + shift] * rows.num_rows, pa.int64()))

    return function


def test_row_before_the_complete_time_is_refused_by_name() -> None:
    stream = stream_of(ROWS)
    for later, shift in ((False, -1), (True, -1), (False, 1)):
        with pytest.raises(OperatorError, match=f"'unary_notify_.' at times from .* a row at time={1 + shift} for the"):
            rows_of(stream.unary_notify(at_time(shift), later=later))


def test_rows_at_later_times_wait_in_the_log_until_their_time(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), NUMBERS, minimum=(0,))
    writer = log.writer(owner="test")
    scope = Scope("flow")
    later = scope.replay(log).unary_notify(at_time(10), later=True)
    later.capture(str(tmp_path / "spool"))
    with pytest.raises(
        InvalidUsageError, match="'filter_4': found its input 'unary_notify_2' to give rows at later times"
    ):
        later.filter("n > 1")
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of)
    scope_2 = Scope("other")
    scope_2.replay(str(tmp_path / "spool")).aggregate(n=count()).capture(str(tmp_path / "out"))
    for times, frontier, expected in (
        ([1, 1, 4], 3, []),
        ([3], 12, [(11, 2)]),
        ([12], [], [(11, 2), (13, 1), (14, 1), (22, 1)]),
    ):
        writer.append(pa.table({"_time": times, "n": times}), advance_to=frontier)
        engine.advance(runner(scope.storage))
        spool = open_log(str(tmp_path / "spool"))
        assert spool.frontier() == log.domain.parse_frontier(frontier)
        Engine("other", scope_2.sinks, scope_2.storage, files_of=catalog_of).advance(runner(scope_2.storage))
        found = open_log(str(tmp_path / "out")).messages()
        assert sorted(zip(found["_time"].to_pylist(), found["n"].to_pylist(), strict=True)) == expected
    assert spool.verify().legal


def test_windows_hold_their_beginning_and_not_their_end() -> None:
    stream = stream_of({"_time": [-1, 0, 9, 10], "n": [1, 2, 3, 4]})
    ends = [(row["_time"], row["n"]) for row in rows_of(stream.delay(windows(10)))]
    assert ends == [(0, 1), (10, 2), (10, 3), (20, 4)]
    hopping = [(row["_time"], row["n"]) for row in rows_of(stream.delay(windows(10, every=5)))]
    assert hopping == [(0, 1), (5, 1), (5, 2), (10, 2), (10, 3), (15, 3), (15, 4), (20, 4)]


def test_closed_input_fires_the_windows_left_reading_files_once(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), NUMBERS, minimum=(0,))
    writer = log.writer(owner="test")
    scope = Scope("flow")
    scope.replay(log).delay(windows(12, every=3)).aggregate(n=count()).capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of)
    writer.append(pa.table({"_time": range(8), "n": range(8)}), advance_to=8)
    engine.advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    assert out.frontier() == Antichain.of(9)
    assert sorted(out.messages()["_time"].to_pylist()) == [3, 6]
    writer.close()
    engine.advance(runner(scope.storage))
    out.refresh()
    assert out.frontier().is_empty
    found = dict(zip(out.messages()["_time"].to_pylist(), out.messages()["n"].to_pylist(), strict=True))
    assert found == {3: 3, 6: 6, 9: 8, 12: 8, 15: 5, 18: 2}
    asked = []

    def read(leaf: Replay, lo: Antichain, hi: Antichain, columns: tuple[str, ...]) -> pa.Table:
        asked.append((lo, hi))
        return pa.table({"_time": pa.array([], pa.int64())})

    scope.sinks[0].view.run(read, Antichain.of(9), Antichain.of(18))
    assert asked == [(Antichain.of(-3), Antichain.of(15))]


def test_times_of_rows_are_extracted_and_reduced() -> None:
    rows, times = stream_of(ROWS).times_extract()
    assert rows_of(rows) == rows_of(stream_of(ROWS))
    assert [row["_time"] for row in rows_of(times)] == [1, 1, 3, 5]
    assert rows_of(times.times_reduce(), upper=[5]) == [{"_time": 1, "diff": 2}, {"_time": 3, "diff": 1}]


MISUSE: dict[str, Any] = {
    "windows of no multiple": (lambda x: x.delay(windows(10, every=3)), "size=10, every=3"),
    "no delay": (lambda x: x.delay(), "no delay"),
    "a function that is none": (lambda x: x.unary_notify(3), "found function=3"),
    "a function without columns": (lambda x: x.unary_notify(lambda time, rows: None), "of type 'NoneType'"),
    "streams of two dataflows": (lambda x: x.binary_notify(stream_of(ROWS), len), "streams of the same dataflow"),
    "times of texts": (lambda x: x.times_extract(diff="k"), "column 'k' of type=string"),
    "times without diff": (lambda x: x.times_reduce(), "no column 'diff'"),
    "flat_map without rows": (lambda x: x.flat_map(lambda rows: rows), "none of them an integer '_row'"),
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_refused_naming_the_operator(what: str) -> None:
    make, text = MISUSE[what]
    with pytest.raises(InvalidUsageError, match=text):
        make(stream_of(ROWS))


def test_products_have_no_windows_and_no_next_time() -> None:
    stream = stream_of({"_time_0": [1], "_time_1": [2]})
    for make in (lambda: stream.delay(windows(5)), lambda: stream.delay(ceil_to(5)), stream.step_forward):
        with pytest.raises(InvalidUsageError, match="2 coordinates"):
            make()
    assert rows_of(stream.delay(plus(0, 1)), upper=[]) == [{"_time_0": 1, "_time_1": 3}]


@pytest.mark.parametrize(
    ("places", "found"), [([0, 4], "from 0 to 4"), ([-1], "from -1"), ([None], "from None to None with 1 nulls")]
)
def test_rows_made_of_rows_that_are_not_there_are_refused(places: list[int | None], found: str) -> None:
    def wrong(rows: pa.Table) -> pa.Table:
        made = places if rows.num_rows else []
        return pa.table({"_row": pa.array(made, pa.int64()), "v": pa.array([0] * len(made), pa.int64())})

    with pytest.raises(OperatorError, match=f"'flat_map_2' .*_row {found}"):
        rows_of(stream_of(ROWS).flat_map(wrong))


def test_key_of_another_type_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="no column 'zzz'"):
        stream_of(ROWS).unary_notify(lambda time, rows: rows, columns=["zzz"])


def test_rule_002_60_step_forward_moves_data_and_frontier_by_one(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), NUMBERS, minimum=(0,))
    writer = log.writer(owner="test")
    scope = Scope("flow")
    scope.replay(log).step_forward().capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of)
    written = []
    for i in range(10):
        writer.append(pa.table({"_time": [i], "n": [i]}), advance_to=i + 1)
        engine.advance(runner(scope.storage))
        written.append((i + 1, i))
        out = open_log(str(tmp_path / "out"))
        assert out.frontier() == Antichain.of(i + 2)  # one past the input's: a delay of the rows alone stays behind
        found = out.messages()
        assert sorted(zip(found["_time"].to_pylist(), found["n"].to_pylist(), strict=True)) == written
    writer.close()
    engine.advance(runner(scope.storage))
    out.refresh()
    assert out.frontier().is_empty


def test_rule_002_60_step_forward_copies_no_rows() -> None:
    stream = stream_of({"_time": [3], "n": [1]})
    given = pa.table({"_time": [3], "n": [1]})
    made = stream.step_forward().view.run(lambda *_: given, Antichain.of(0), Antichain.of(9))
    assert made["_time"].to_pylist() == [4]
    assert addresses(made["n"]) == addresses(given["n"])


def test_rule_002_61_the_greatest_time_cannot_be_stepped() -> None:
    stream = stream_of({"_time": [(1 << 63) - 1]}).step_forward()
    with pytest.raises(OperatorError, match=r"'step_forward_2' .*past the greatest time"):
        rows_of(stream)


def addresses(column: pa.ChunkedArray) -> list[int | None]:
    return [buffer and buffer.address for chunk in column.chunks for buffer in chunk.buffers()]


def test_rule_002_62_times_extract_drops_zeros_copies_nothing() -> None:
    rows = {"_time": [0, 1, 1, 2, 2], "n": [0, 1, 1, -2, 1]}
    stream = stream_of(rows)
    passed, times = stream.times_extract(diff="n")
    found = rows_of(times)
    assert all(row["diff"] for row in found)
    summed, diffs = consolidate([row["_time"] for row in found], [row["diff"] for row in found])
    assert list(zip(summed[:, 0].tolist(), diffs.tolist(), strict=True)) == [(1, 2), (2, -1)]
    assert rows_of(times.times_reduce()) == [{"_time": 1, "diff": 2}, {"_time": 2, "diff": -1}]
    given = pa.table(rows)
    seen = passed.view.run(lambda *_: given, Antichain.of(0), Antichain.empty())
    assert addresses(seen["n"]) == addresses(given["n"])


def test_rule_002_62_a_null_counts_nothing() -> None:
    _, times = stream_of({"_time": [1, 2], "n": pa.array([None, 3], pa.int32())}).times_extract(diff="n")
    assert rows_of(times) == [{"_time": 2, "diff": 3}]


def test_rule_002_63_times_reduce_gives_sums_in_order_of_time() -> None:
    stream = stream_of({"_time": [3, 2, 1, 2, 3, 3], "diff": [1] * 6})
    found = [(row["_time"], row["diff"]) for row in rows_of(stream.times_reduce())]
    assert found == [(1, 1), (2, 2), (3, 3)]
    waiting = [(row["_time"], row["diff"]) for row in rows_of(stream.times_reduce(), upper=[3])]
    assert waiting == [(1, 1), (2, 2)]
