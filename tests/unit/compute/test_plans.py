"""Plans as streams: what each node makes, of events and of updates, and errors that name the node."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.drive.plans import Shape, as_collection, build, shape_of
from spark_timely.compute.plan import (
    AggregateNode,
    AsUpdatesNode,
    ConcatNode,
    ConsolidateNode,
    DistinctNode,
    FilterNode,
    ImportNode,
    JoinNode,
    LatestNode,
    NegateNode,
    Node,
    Plan,
    SelectNode,
    TopNode,
    parse_plan,
)
from spark_timely.compute.sql import plan_of_sql
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError
from spark_timely.testing import rows_of, stream_of
from spark_timely.time.domain import TimeDomain, TimeType

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("by", pa.int32())])
SHAPES = {
    "s": Shape(SCHEMA, "stream"),
    "c": Shape(SCHEMA, "collection"),
    "b": Shape(pa.schema([("k", pa.string()), ("m", pa.int64())]), "collection"),
    "self": Shape(
        pa.schema([("self", pa.int64()), ("a b", pa.int64()), ("x", pa.int64()), ("x asc", pa.int64())]), "stream"
    ),
}
s, c, b = ImportNode("s"), ImportNode("c"), ImportNode("b")
COUNT = (("v", "count", None),)
STREAM, COLLECTION = "stream", "collection"

SHOWN: list[tuple[Node, str, list[str]]] = [
    (s, STREAM, ["k", "n", "x", "by"]),
    (c, COLLECTION, ["k", "n", "x", "by"]),
    (FilterNode(s, "n > 1 AND _time > 0"), STREAM, ["k", "n", "x", "by"]),
    (FilterNode(c, "N > 1"), COLLECTION, ["k", "n", "x", "by"]),
    (SelectNode(s, (("m", "n"), ("k", "k"), ("m2", "n"))), STREAM, ["m", "k", "m2"]),
    (SelectNode(c, (("n", "x"), ("x", "n"))), COLLECTION, ["n", "x"]),
    (SelectNode(ImportNode("self"), (("x", "self"), ("self", "x"))), STREAM, ["x", "self"]),
    (AggregateNode(s, ("k",), COUNT), COLLECTION, ["k", "v"]),
    (AggregateNode(c, (), COUNT), COLLECTION, ["v"]),
    (AggregateNode(s, ("k",), COUNT, "time"), STREAM, ["k", "v"]),
    (AggregateNode(s, ("by",), (("over", "sum", "n"), ("self", "max", "n"))), COLLECTION, ["by", "over", "self"]),
    (AggregateNode(s, ("k",), (("by", "count", None), ("by_", "count", "n"))), COLLECTION, ["k", "by", "by_"]),
    (LatestNode(s, ("k",), (("n", "desc"),)), COLLECTION, ["k", "n", "x", "by"]),
    (TopNode(c, 2, (), (("n", "asc"), ("x", "desc"))), COLLECTION, ["k", "n", "x", "by"]),
    (TopNode(ImportNode("self"), 2, (), (("a b", "desc"), ("self", "asc"))), COLLECTION, ["self", "a b", "x", "x asc"]),
    (JoinNode(s, b, ("k",), "left", as_of=True), STREAM, ["k", "n", "x", "by", "m"]),
    (JoinNode(s, SelectNode(s, (("k", "k"), ("m", "n"))), ("k",)), STREAM, ["k", "n", "x", "by", "m"]),
    (DistinctNode(SelectNode(s, (("k", "k"),))), STREAM, ["k"]),
    (DistinctNode(SelectNode(c, (("k", "k"),))), COLLECTION, ["k"]),
    (ConcatNode((s, s)), STREAM, ["k", "n", "x", "by"]),
    (ConcatNode((s, c)), COLLECTION, ["k", "n", "x", "by"]),
    (AsUpdatesNode(s), COLLECTION, ["k", "n", "x", "by"]),
    (AsUpdatesNode(s, "n"), COLLECTION, ["k", "x", "by"]),
    (NegateNode(c), COLLECTION, ["k", "n", "x", "by"]),
    (ConsolidateNode(c), COLLECTION, ["k", "n", "x", "by"]),
]


@pytest.mark.parametrize(("node", "kind", "columns"), SHOWN)
def test_what_comes_out_has_the_kind_and_columns_of_the_operator(node: Node, kind: str, columns: list[str]) -> None:
    found = shape_of(Plan(node), SHAPES)
    assert (found.kind, found.schema.names) == (kind, columns)


def test_every_operator_is_built() -> None:
    assert {type(node) for node, _, _ in SHOWN} == {
        ImportNode, FilterNode, SelectNode, AggregateNode, LatestNode, TopNode, JoinNode, DistinctNode, ConcatNode,
        AsUpdatesNode, NegateNode, ConsolidateNode,
    }  # fmt: skip


REFUSED: list[tuple[Node, str, str]] = [
    (DistinctNode(ImportNode("z")), "could not import 'z': found no such name", "plan.of (import)"),
    (FilterNode(DistinctNode(SelectNode(s, (("z", "z"),))), "z > 1"), "found no column 'z'", "plan.of.of (select)"),
    (SelectNode(s, (("K", "K"),)), "could not select: found no column 'K'", "plan (select)"),
    (FilterNode(s, "z > 1"), "found no column 'z' in condition", "plan (filter)"),
    (FilterNode(s, "n = k"), "found a comparison of types int64 and string", "plan (filter)"),
    (FilterNode(s, "abs(n) > 1"), "found 'ABS(n)' in condition", "plan (filter)"),
    (FilterNode(s, "n"), "found type=int64 where true or false belongs", "plan (filter)"),
    (FilterNode(c, "_time > 1"), "could not filter a collection: found no column '_time'", "plan (filter)"),
    (AggregateNode(s, ("x",), COUNT), "found key 'x' of type=double", "plan (aggregate)"),
    (AggregateNode(s, ("z",), COUNT), "found no column 'z'", "plan (aggregate)"),
    (AggregateNode(s, ("k",), (("v", "sum", "k"),)), "found sum of column 'k' of type=string", "plan (aggregate)"),
    (AggregateNode(c, ("k",), (("v", "sum", "x"),)), "found a sum of updates of column 'x'", "plan (aggregate)"),
    (AggregateNode(c, ("k",), COUNT, "time"), "found updates of", "plan (aggregate)"),
    (LatestNode(s, ("k",), (("z", "desc"),)), "could not order: found no column 'z'", "plan (latest)"),
    (LatestNode(s, ("x",), (("n", "desc"),)), "found key 'x' of type=double", "plan (latest)"),
    (TopNode(s, 1, ("z",), (("n", "desc"),)), "found no column 'z'", "plan (top)"),
    (TopNode(ImportNode("self"), 1, (), (("a b", "asc"),)), "could not order by 'a b', the least first", "plan (top)"),
    (TopNode(ImportNode("self"), 1, (), (("x", "asc"),)), "could not order by 'x', the least first", "plan (top)"),
    (JoinNode(c, b, ("k",), as_of=True), "found updates of 'replay_2' on the left", "plan (join)"),
    (JoinNode(s, SelectNode(s, (("k", "k"),)), ("k",), as_of=True), "found events of", "plan (join)"),
    (JoinNode(s, c, ("k",), as_of=True), "found columns ['n', 'x', 'by'] on both sides", "plan (join)"),
    (JoinNode(c, b, ("k",)), "found updates of 'replay_2', which it cannot take back", "plan (join)"),
    (JoinNode(s, b, ("m",), as_of=True), "found no column 'm'", "plan (join)"),
    (DistinctNode(s), "found key 'x' of type=double", "plan (distinct)"),
    (ConcatNode((s, b)), "found columns", "plan (concat)"),
    (ConcatNode((s, AsUpdatesNode(c))), "found updates of", "plan.of[1] (as_updates)"),
    (AsUpdatesNode(s, "k"), "found column 'k' of type=string", "plan (as_updates)"),
    (NegateNode(s), "found events of", "plan (negate)"),
    (ConsolidateNode(s), "found events of", "plan (consolidate)"),
]


@pytest.mark.parametrize(("node", "found", "place"), REFUSED)
def test_error_names_the_node_of_the_plan_once(node: Node, found: str, place: str) -> None:
    with pytest.raises(TimelyError) as error:
        shape_of(Plan(node), SHAPES)
    assert found in error.value.message
    assert error.value.message.endswith(f", at {place}")
    assert error.value.message.count(" at plan") == 1
    assert error.value.context["node"] == place.partition(" ")[0]
    assert isinstance(error.value, InvalidUsageError | SchemaMismatchError)
    assert error.value.hint


def test_condition_that_is_only_read_is_refused_when_built() -> None:
    plan = plan_of_sql("SELECT k FROM s WHERE n = 1 = true", {"s": SCHEMA})
    with pytest.raises(InvalidUsageError, match=r"found '`n` = 1' in condition .*, at plan\.of \(filter\)"):
        shape_of(plan, SHAPES)


def test_operators_over_history_want_times_of_one_coordinate() -> None:
    domain = TimeDomain((TimeType.LONG, TimeType.LONG))
    assert shape_of(Plan(FilterNode(c, "n > 1")), SHAPES, domain=domain).kind == COLLECTION
    with pytest.raises(InvalidUsageError, match=r"found times of 2 coordinates, at plan \(latest\)"):
        shape_of(Plan(LatestNode(s, ("k",), (("n", "desc"),))), SHAPES, domain=domain)


def test_imports_are_streams_of_the_same_dataflow() -> None:
    stream = stream_of({"_time": [1], "k": ["a"]})
    other: dict[str, Any] = {"k": stream_of({"_time": [1], "k": ["a"]}), "s": "/data/log"}
    for name, each in other.items():
        with pytest.raises(InvalidUsageError, match=f"found import {name!r}="):
            build(Plan(s), stream._scope, {"s": stream, name: each})
    assert build(Plan(s), stream._scope, {"s": stream, "more": stream}) is stream


def given() -> tuple[Scope, dict[str, Stream]]:
    events = stream_of({"_time": [1, 1, 2, 3], "k": ["a", "a", "b", "a"], "n": [5, 5, None, 7]})
    updates = stream_of({"_time": [1, 2, 3], "_diff": [2, -1, 1], "k": ["a", "a", "b"], "n": [1, 1, 2]}, beside=events)
    return events._scope, {"s": events, "c": updates}


def made(node: Node) -> Counter[tuple[Any, ...]]:
    scope, streams = given()
    return Counter(tuple(row.values()) for row in rows_of(build(parse_plan(Plan(node).text), scope, streams)))


def test_events_beside_updates_are_all_messages_so_far() -> None:
    assert made(ConcatNode((s, c))) == made(ConcatNode((AsUpdatesNode(s), c)))
    assert made(ConcatNode((c, NegateNode(c), c))) == Counter(
        {(1, 2, "a", 1): 2, (1, -2, "a", 1): 1, (2, -1, "a", 1): 2, (2, 1, "a", 1): 1, (3, 1, "b", 2): 2,
         (3, -1, "b", 2): 1}
    )  # fmt: skip
    _, streams = given()
    assert [row["_diff"] for row in rows_of(as_collection(streams["s"]))] == [1, 1, 1, 1]
    assert as_collection(streams["c"]) is streams["c"]


def test_columns_come_in_the_order_of_the_plan() -> None:
    node = SelectNode(s, (("m", "n"), ("k", "k"), ("n", "k")))
    assert made(node) == Counter({(1, 5, "a", "a"): 2, (2, None, "b", "b"): 1, (3, 7, "a", "a"): 1})
    scope, streams = given()
    assert build(Plan(node), scope, streams).schema.types == [pa.int64(), pa.string(), pa.string()]


@pytest.mark.parametrize("over", ["history", "time"])
def test_rows_are_counted_under_two_names(over: Any) -> None:
    node = AggregateNode(s, ("k",), (("by", "count", None), ("v", "count", None), ("w", "sum", "n")), over)
    found = {row[:1] + row[-4:] for row in made(node) if row[0] < 3}
    assert found == {(1, "a", 2, 2, 10), (2, "b", 1, 1, None)}


def test_text_of_a_query_is_built_as_its_plan() -> None:
    scope, streams = given()
    names = {name: stream.schema for name, stream in streams.items()}
    plan = plan_of_sql("SELECT k, COUNT(*) AS v FROM (SELECT * FROM s UNION ALL SELECT * FROM c) GROUP BY k", names)
    stream = build(parse_plan(json.dumps(json.loads(plan.text), indent=1)), scope, streams)
    assert rows_of(stream, upper=[2]) == [{"_time": 1, "_diff": 1, "k": "a", "v": 4}]
