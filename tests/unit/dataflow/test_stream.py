"""How a dataflow is written down: what operators say of themselves, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from spark_timely.dataflow.aggregates import count, max_of, sum_of
from spark_timely.dataflow.delays import ceil_to, plus, windows
from spark_timely.dataflow.engine.tasks import OutputPlan
from spark_timely.dataflow.engine.tracking import Tracking
from spark_timely.dataflow.operators.rows import FlatMap
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import Replay, View, leaves_of, ordered, packed, unpacked
from spark_timely.errors import CyclicSummaryError, InvalidUsageError, OperatorError, SchemaMismatchError, TimelyError
from spark_timely.log import Log
from spark_timely.log.log import create_log
from spark_timely.testing import rows_of, stream_of
from spark_timely.time.antichain import Antichain

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.float64()), ("tags", pa.list_(pa.string()))])
ROWS = pa.table(
    {
        "_time": pa.array([1, 1, 2, 3], pa.int64()),
        "k": ["a", "b", "a", None],
        "n": [1, 2, 3, 4],
        "v": [0.5, 1.5, 2.5, None],
        "tags": pa.array([["x"], [], None, ["y"]], pa.list_(pa.string())),
    }
)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,))


@pytest.fixture
def stream(log: Log) -> Stream:
    return Scope("flow").replay(log)


def run(view: View, lo: int = 0, hi: int = 99, rows: pa.Table = ROWS) -> list[dict[str, object]]:
    """Run a view over a table; what was asked for is what is read."""

    def read(leaf: Replay, low: Antichain, high: Antichain, columns: tuple[str, ...]) -> pa.Table:
        times = leaf.domain.from_columns(rows)
        return rows.filter(pa.array(low.beyond(times) & ~high.beyond(times))).select(["_time", *columns])

    found = view.run(read, Antichain.of(lo), Antichain.of(hi))
    assert found.schema.names == ["_time", *view.schema.names]
    assert [f.type for f in found.schema][1:] == [f.type for f in view.schema]
    return found.to_pylist()


def test_row_by_row_operators_give_one_row_of_one_row(stream: Stream) -> None:
    kept = stream.filter((pc.field("n") > 1) & (pc.field("_time") < 3))
    assert [row["n"] for row in run(kept.view)] == [2, 3]
    chosen = kept.select("k", m=pc.field("n") * 2, late=pc.field("v") > 2)
    assert run(chosen.view) == [
        {"_time": 1, "k": "b", "m": 4, "late": False},
        {"_time": 2, "k": "a", "m": 6, "late": True},
    ]
    mapped = chosen.map(lambda rows: rows.select(["m", "_time"]).append_column("t", rows["_time"]), columns=["m"])
    assert run(mapped.view) == [{"_time": 1, "m": 4, "t": 1}, {"_time": 2, "m": 6, "t": 2}]
    assert run(kept.concat(kept).view) == run(kept.view) * 2
    assert all(each.view.rowwise for each in (kept, chosen, mapped, mapped.delay(plus(1))))


def test_operators_over_pairs_of_rows_are_not_cut_by_rows(stream: Stream) -> None:
    other = stream.select("k", other=pc.field("n"))
    assert not stream.select("k", "n").join(other, on="k").view.rowwise


def test_views_are_packed_once_however_many_share_them(stream: Stream) -> None:
    shared = stream.filter(pc.field("n") > 1)
    one, two = shared.select("k"), shared.select("n")
    flat, places = packed([one.view, two.view, shared.view])
    assert [each.name for each, _ in flat] == ["replay_1", "filter_2", "select_3", "select_4"]
    assert places == [2, 3, 1]
    found = unpacked((flat, places))
    assert found[0].inputs[0] is found[1].inputs[0] is found[2]


def test_flat_map_says_whether_its_columns_were_named(stream: Stream) -> None:
    def twice(rows: pa.Table) -> pa.Table:
        return pa.table(
            {
                "_row": pa.array([*range(rows.num_rows)] * 2, pa.int64()),
                "n": pa.concat_arrays([rows["n"].combine_chunks()] * 2),
            }
        )

    views = [stream.flat_map(twice, columns=columns).view for columns in (["n"], None)]
    operators = [view.operator for view in views]
    assert [each.columns for each in operators if isinstance(each, FlatMap)] == [("n",), None]
    with pytest.raises(InvalidUsageError, match="found function=3"):
        stream.flat_map(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("columns", "computed", "found"), [((5,), {}, "no column 5"), (("k",), {"m": "n"}, "m='n'")])
def test_select_takes_names_and_expressions(
    stream: Stream, columns: tuple[Any, ...], computed: dict[str, Any], found: str
) -> None:
    with pytest.raises(InvalidUsageError, match=f"could not add operator 'select_2': found {found}"):
        stream.select(*columns, **computed)


def test_select_says_what_it_computes(stream: Stream) -> None:
    assert stream.select("k", m=pc.field("n") * 2).view.operator.describe() == "k, m=multiply_checked(n, 2)"


def test_options_of_a_path_are_those_given_first(log: Log, tmp_path: Path) -> None:
    scope, path = Scope("flow"), str(tmp_path / "out")
    stream = scope.replay(log)
    stream.capture(path, storage_options={"timeout": "7s"})
    stream.capture(path, stream="second", storage_options={"timeout": "9s"})
    assert scope.storage[path]["timeout"] == "7s"


def test_operators_ask_for_the_columns_that_they_need_only(stream: Stream) -> None:
    asked: list[tuple[str, ...]] = []

    def read(leaf: Replay, low: Antichain, high: Antichain, columns: tuple[str, ...]) -> pa.Table:
        asked.append(columns)
        return ROWS.select(["_time", *columns])

    hours = stream.filter(pc.field("n") > 0).delay(ceil_to(10)).aggregate(by="k", worst=max_of("v"))
    hours.view.run(read, Antichain.of(0), Antichain.of(99))
    stream.map(lambda rows: rows.select(["v"]), columns=["v"]).view.run(read, Antichain.of(0), Antichain.of(99))
    assert asked == [("k", "v", "n"), ("v",)]


def test_time_by_time_operators_see_whole_times(stream: Stream) -> None:
    windows = stream.delay(ceil_to(2)).aggregate(by=["k"], n=count(), total=sum_of("v"))
    assert not windows.view.rowwise
    found = sorted(run(windows.view), key=repr)
    assert found == [
        {"_time": 2, "k": "a", "n": 2, "total": 3.0},
        {"_time": 2, "k": "b", "n": 1, "total": 1.5},
        {"_time": 4, "k": None, "n": 1, "total": None},
    ]
    assert run(windows.view, 3, 5) == found[2:]
    right = stream.select("k", w=pc.field("n"))
    pairs = stream.select("k", "v").join(right, on="k")
    assert {(row["_time"], row["k"], row["w"]) for row in run(pairs.view)} == {(1, "a", 1), (1, "b", 2), (2, "a", 3)}
    left = stream.select("k", "v").join(right.filter(pc.field("w") == 2), on="k", how="left")
    assert {(row["_time"], row["k"], row["w"]) for row in run(left.view)} == {
        (1, "a", None), (1, "b", 2), (2, "a", None), (3, None, None),
    }  # fmt: skip


def test_frontier_and_ranges_follow_the_delays(stream: Stream) -> None:
    both = stream.concat(stream.delay(plus(5)))
    leaf = leaves_of(both.view)[0]
    assert both.view.front({leaf: Antichain.of(3)}) == Antichain.of(3)
    assert sorted(lo.to_json() + hi.to_json() for lo, hi in both.view.pre(Antichain.of(6), Antichain.of(8))[leaf]) == [
        [1, 3],
        [6, 8],
    ]
    assert stream.delay(ceil_to(10)).view.front({leaf: Antichain.empty()}).is_empty


def test_the_progress_layer_sees_the_frontiers_that_views_say(log: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    one = scope.replay(log)
    two = scope.replay(create_log(str(tmp_path / "two"), SCHEMA, minimum=(0,)))
    made = [
        one.delay(plus(3)),
        two.delay(ceil_to(4)).concat(one),
        two.delay(ceil_to(4)).delay(plus(1)).delay(ceil_to(7)),
    ]
    for number, each in enumerate(made):
        each.capture(str(tmp_path / f"out{number}"))
    tracking = Tracking("flow", scope.sinks)
    leaves = {leaf.path: leaf for each in made for leaf in leaves_of(each.view)}
    for here, there in [(0, 0), (2, 0), (2, 5), (9, 9), (9, None), (None, None)]:
        known = {
            path: Antichain.empty() if time is None else Antichain.of(time)
            for path, time in zip([one.view.path, two.view.path], (here, there), strict=True)  # type: ignore[attr-defined]
        }
        uppers = {
            sink: sink.view.front({leaf: known[leaf.path] for leaf in leaves_of(sink.view)}) for sink in scope.sinks
        }
        tracking.update({}, known)
        assert {sink: tracking.frontier(sink) for sink in scope.sinks} == uppers
        tracking.update(uppers, known)
    assert len(leaves) == 2
    refused = tracking.update({}, dict.fromkeys(leaves, Antichain.of(1)))
    assert refused.keys() == leaves.keys()
    assert all(
        "could not continue at log" in str(error) and "found frontier=[1]" in str(error) for error in refused.values()
    )
    assert {sink: tracking.frontier(sink) for sink in scope.sinks} == uppers, "what has gone back stays where it was"


def test_frontier_past_the_greatest_time_waits_for_the_input(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "short"), pa.schema([("n", pa.int64())]), times=["short"], minimum=(0,))
    scope = Scope("flow")
    scope.replay(log).delay(plus(100)).capture(str(tmp_path / "out"))
    tracking = Tracking("flow", scope.sinks)
    tracking.update({}, {log.path: Antichain.of(32_667)})
    assert tracking.frontier(scope.sinks[0]) == Antichain.of(32_767)
    tracking.update({}, {log.path: Antichain.of(32_668)})
    assert tracking.frontier(scope.sinks[0]) == Antichain.of(32_767)
    tracking.update({}, {log.path: Antichain.empty()})
    assert tracking.frontier(scope.sinks[0]).is_empty


MISUSE = {
    "filter by a number": (lambda x: x.filter(1), "give SQL text, or an expression such as"),
    "filter by number": (lambda x: x.filter(pc.field("n") + 1), "true or false"),
    "filter by unknown column": (lambda x: x.filter(pc.field("m") > 1), "'filter_2'"),
    "select nothing": (lambda x: x.select(), "name columns"),
    "select twice": (lambda x: x.select("k", k=pc.field("n")), "each column once"),
    "select unknown": (lambda x: x.select("m"), "no column 'm'"),
    "map that fails": (lambda x: x.map(lambda rows: rows.nonsense), "AttributeError"),
    "map to something else": (lambda x: x.map(lambda rows: 3), "of type 'int'"),
    "map of unknown": (lambda x: x.map(lambda rows: rows, columns=["m"]), "no column 'm'"),
    "concat of others": (lambda x: x.concat(x.select("k")), "give all streams the columns"),
    "concat of a table": (lambda x: x.concat(ROWS), "streams of the same dataflow"),
    "delay by number": (lambda x: x.delay(3), "plus"),
    "aggregate nothing": (lambda x: x.aggregate(by="k"), "at least one value"),
    "aggregate by float": (lambda x: x.aggregate(by="v", n=count()), "key 'v' of type=double"),
    "aggregate a function": (lambda x: x.aggregate(by="k", n=len), "count"),
    "aggregate unknown": (lambda x: x.aggregate(by="k", n=sum_of("m")), "'aggregate_2'"),
    "aggregate over a key": (lambda x: x.aggregate(by="k", k=count()), "each column once"),
    "join with doubled": (lambda x: x.join(x, on="k"), "on both sides"),
    "join of two types": (lambda x: x.select("k").join(x.select(k=pc.field("n")), on="k"), "two types"),
    "join of lists": (lambda x: x.select("k", "tags").join(x.select("k", "n"), on="k"), "no lists"),
    "join outer": (lambda x: x.select("k").join(x.select("k", "n"), on="k", how="outer"), "'inner' or 'left'"),
    "capture reserved": (lambda x: x.select(_seq=pc.field("n")).capture("/nowhere"), "_seq"),
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_refused_before_anything_runs(stream: Stream, what: str) -> None:
    make, text = MISUSE[what]
    with pytest.raises(InvalidUsageError, match=text):
        make(stream)  # type: ignore[no-untyped-call]


def test_capture_twice_and_into_what_it_is_made_from_is_refused(stream: Stream, tmp_path: Path, log: Log) -> None:
    out = create_log(str(tmp_path / "out"), SCHEMA, minimum=(0,))
    stream.capture(out)
    with pytest.raises(InvalidUsageError, match="captured into already"):
        stream.capture(out)
    again = stream._scope.replay(out)
    with pytest.raises(CyclicSummaryError, match="made from itself") as error:
        again.capture(log, stream="other")
    assert error.value.path == [log.path, out.path, log.path]


def test_logs_that_do_not_fit_a_dataflow_are_refused(stream: Stream, tmp_path: Path) -> None:
    days = create_log(str(tmp_path / "days"), SCHEMA, times=["date"])
    with pytest.raises(InvalidUsageError, match="times of types \\['date'\\], \\['long'\\]"):
        stream._scope.replay(days)
    with pytest.raises(InvalidUsageError, match="give it a name"):
        Scope(" ")
    with pytest.raises(InvalidUsageError, match="nothing that is captured downstream"):
        _ = stream.probe().frontier


def later(rows: pa.Table) -> pa.Table:
    return rows.set_column(0, "_time", pc.subtract(rows["_time"], 1)) if rows.num_rows else rows


def forgotten(rows: pa.Table) -> pa.Table:
    """Lose the time of the row of time 2."""
    return rows.set_column(0, "_time", pc.if_else(pc.equal(rows["_time"], 2), None, rows["_time"]))


FAILURES = {
    "an exception": (lambda rows: rows.select(["k"]) if not rows.num_rows else 1 / 0, "ZeroDivisionError"),
    "another time": (later, "time _time=0 for a row of _time=1"),
    "no time": (forgotten, "time _time=None for a row of _time=2"),
    "fewer rows": (lambda rows: rows.slice(1) if rows.num_rows else rows, "3 rows for 4"),
    "other columns": (lambda rows: rows.select(["k"] if rows.num_rows else ["n"]), "column 'n' missing"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_failure_of_a_function_names_operator_and_times(stream: Stream, what: str) -> None:
    function, text = FAILURES[what]
    view = stream.map(function).view
    with pytest.raises(OperatorError, match=text) as error:
        run(view)
    assert "could not run operator 'map_2' at times from [0] to [99]" in str(error.value)
    assert (error.value.operator, error.value.lower, error.value.upper) == ("map_2", "[0]", "[99]")


def test_time_delayed_past_the_greatest_is_refused_by_name(stream: Stream) -> None:
    view = stream.delay(plus((1 << 63) - 4)).view
    assert [row["_time"] for row in run(view, 0, (1 << 63) - 2)] == [(1 << 63) - 3] * 2
    with pytest.raises(OperatorError, match=r"could not run operator 'delay_2' .*time=4, which it would delay past"):
        view.run(lambda *_: ROWS.set_column(0, "_time", pa.array([1, 2, 3, 4])), Antichain.of(0), Antichain.empty())


def test_views_are_plain_values(stream: Stream) -> None:
    made = stream.filter(pc.field("n") > 1).delay(ceil_to(2)).aggregate(by="k", n=count())
    copy = pickle.loads(pickle.dumps(made.view))
    assert run(copy) == run(made.view)


def test_a_thousand_operators_in_a_row_are_pickled_and_run(log: Log) -> None:
    scope = Scope("deep")
    stream = scope.replay(log)
    for _ in range(1000):
        stream = stream.step_forward()
    plan = OutputPlan("capture", stream.view, "main", log.core.format, log.core.storage)
    view = cloudpickle.loads(cloudpickle.dumps(plan)).view
    assert sorted(row["_time"] for row in run(view, 1002, 1003)) == [1002]


COLLIDING = {
    "time computed": lambda x: x.select("k", _time=pc.field("n")),
    "time aggregated": lambda x: x.aggregate(by="k", _time=count()),
    "time given": lambda x: x.flat_map(
        lambda rows: rows.append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    ),
    "given twice": lambda x: x.map(lambda rows: pa.Table.from_arrays([rows["n"], rows["n"]], names=["m", "m"])),
}


@pytest.mark.parametrize("what", COLLIDING)
def test_ambiguous_columns_are_refused_where_they_are_made(what: str) -> None:
    rows = stream_of({"_time": [1], "k": ["a"], "n": [5]})
    with pytest.raises(SchemaMismatchError, match=r"could not add operator '\w+_2': found columns .* beside"):
        COLLIDING[what](rows)


def test_join_on_a_column_named_twice_is_a_join_on_it() -> None:
    rows = stream_of({"_time": [1], "k": ["a"], "n": [5]})
    assert rows_of(rows.join(rows.select("k", m=pc.field("n")), on=["k", "k"])) == [
        {"_time": 1, "k": "a", "n": 5, "m": 5}
    ]


def test_spans_past_all_bounds_are_refused() -> None:
    rows = stream_of({"_time": [1]})
    with pytest.raises(InvalidUsageError, match="found 9223372036854775808"):
        rows.delay(ceil_to(1 << 63))
    with pytest.raises(InvalidUsageError, match="found each time in 1000000000 of them"):
        rows.delay(windows(10**9, every=1))
    assert rows_of(rows.delay(windows((1 << 63) - 1))) == [{"_time": (1 << 63) - 1}]


def test_streams_that_part_and_meet_often_are_walked_once() -> None:
    stream = stream_of({"_time": [1]})
    for _ in range(60):
        stream = stream.concat(stream)
    views = ordered(stream.view)
    assert len(views) == 61
    assert views[-1] is stream.view
    assert leaves_of(stream.view) == views[:1]


def test_duplicates_within_no_time_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match="found within=0"):
        stream_of({"_time": [1, 2], "k": [1, 1]}).drop_duplicates("k", within=0)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"tombstones": 5}, InvalidUsageError, "found tombstones=5 without deleted"),
        ({"tombstones": 0, "deleted": "gone"}, InvalidUsageError, "found tombstones=0"),
        ({"tombstones": 5, "deleted": "gone", "order_by": "n asc"}, SchemaMismatchError, "the least the newest"),
        ({"tombstones": 5, "deleted": "gone", "order_by": "k"}, SchemaMismatchError, "order_by='k' of type=string"),
        ({"tombstones": "1 day", "deleted": "gone"}, InvalidUsageError, "found"),
    ],
)
def test_deletions_kept_for_no_known_time_are_refused(
    given: dict[str, Any], error: type[TimelyError], text: str
) -> None:
    rows = stream_of({"_time": [1], "k": ["a"], "n": [1], "gone": [False]})
    with pytest.raises(error, match=text):
        rows.latest("k", **{"order_by": "n", **given})
    updates = stream_of({"_time": [1], "_diff": [1], "k": ["a"], "n": [1], "gone": [False]})
    with pytest.raises(InvalidUsageError, match="for updates of a collection"):
        updates.latest("k", order_by="n", deleted="gone", tombstones=5)


def test_a_deleted_key_is_forgotten_and_its_old_rows_stay_out() -> None:
    rows = stream_of(
        {"_time": [1, 2, 5, 6, 9], "k": ["a"] * 5, "n": [1, 2, 1, 1, 9], "gone": [False, True, False, False, False]}
    )
    kept = rows.latest("k", order_by="n", deleted="gone", tombstones=3)
    assert [(row["_time"], row["_diff"], row["n"]) for row in rows_of(kept.select("n"))] == [
        (1, 1, 1), (2, -1, 1), (9, 1, 9)
    ]  # fmt: skip
