"""Plans as streams: what each node makes, of events and of updates, and errors that name the node."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.compute.drive.plans import Shape, as_collection, build, shape_of
from spark_timely.compute.plan import Imported, Node, Plan, parse_plan
from spark_timely.compute.sql import plan_of_sql
from spark_timely.dataflow.operators.collections import AsUpdates, Consolidate, Negate
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.history import Distinct, Latest, Top
from spark_timely.dataflow.operators.joins import Join
from spark_timely.dataflow.operators.rows import Concat, Filter, Select
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError
from spark_timely.testing import rows_of, stream_of
from spark_timely.time.domain import TimeDomain, TimeType
from tests.plans import values_of

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("by", pa.int32())])
SHAPES = {
    "s": Shape(SCHEMA, "stream"),
    "c": Shape(SCHEMA, "collection"),
    "b": Shape(pa.schema([("k", pa.string()), ("m", pa.int64())]), "collection"),
    "self": Shape(
        pa.schema([("self", pa.int64()), ("a b", pa.int64()), ("x", pa.int64()), ("x asc", pa.int64())]), "stream"
    ),
}
s, c, b = Node(Imported("s")), Node(Imported("c")), Node(Imported("b"))
COUNT = (("v", "count", None),)
STREAM, COLLECTION = "stream", "collection"

SHOWN: list[tuple[Node, str, list[str]]] = [
    (s, STREAM, ["k", "n", "x", "by"]),
    (c, COLLECTION, ["k", "n", "x", "by"]),
    (Node(Filter("n > 1 AND _time > 0"), s), STREAM, ["k", "n", "x", "by"]),
    (Node(Filter("N > 1"), c), COLLECTION, ["k", "n", "x", "by"]),
    (Node(Select((("m", "n"), ("k", "k"), ("m2", "n"))), s), STREAM, ["m", "k", "m2"]),
    (Node(Select((("n", "x"), ("x", "n"))), c), COLLECTION, ["n", "x"]),
    (Node(Select((("x", "self"), ("self", "x"))), Node(Imported("self"))), STREAM, ["x", "self"]),
    (Node(Aggregate(("k",), values_of(COUNT), "history"), s), COLLECTION, ["k", "v"]),
    (Node(Aggregate((), values_of(COUNT), "history"), c), COLLECTION, ["v"]),
    (Node(Aggregate(("k",), values_of(COUNT), "time"), s), STREAM, ["k", "v"]),
    (
        Node(Aggregate(("by",), values_of((("over", "sum", "n"), ("self", "max", "n"))), "history"), s),
        COLLECTION,
        ["by", "over", "self"],
    ),
    (
        Node(Aggregate(("k",), values_of((("by", "count", None), ("by_", "count", "n"))), "history"), s),
        COLLECTION,
        ["k", "by", "by_"],
    ),
    (Node(Latest(("k",), (("n", "desc"),)), s), COLLECTION, ["k", "n", "x", "by"]),
    (Node(Top(2, (), (("n", "asc"), ("x", "desc"))), c), COLLECTION, ["k", "n", "x", "by"]),
    (
        Node(Top(2, (), (("a b", "desc"), ("self", "asc"))), Node(Imported("self"))),
        COLLECTION,
        ["self", "a b", "x", "x asc"],
    ),
    (Node(Join(("k",), "left", as_of=True), s, b), STREAM, ["k", "n", "x", "by", "m"]),
    (Node(Join(("k",)), s, Node(Select((("k", "k"), ("m", "n"))), s)), STREAM, ["k", "n", "x", "by", "m"]),
    (Node(Distinct(), Node(Select((("k", "k"),)), s)), STREAM, ["k"]),
    (Node(Distinct(), Node(Select((("k", "k"),)), c)), COLLECTION, ["k"]),
    (Node(Concat(), s, s), STREAM, ["k", "n", "x", "by"]),
    (Node(Concat(), s, c), COLLECTION, ["k", "n", "x", "by"]),
    (Node(AsUpdates(), s), COLLECTION, ["k", "n", "x", "by"]),
    (Node(AsUpdates("n"), s), COLLECTION, ["k", "x", "by"]),
    (Node(Negate(), c), COLLECTION, ["k", "n", "x", "by"]),
    (Node(Consolidate(), c), COLLECTION, ["k", "n", "x", "by"]),
]


@pytest.mark.parametrize(("node", "kind", "columns"), SHOWN)
def test_what_comes_out_has_the_kind_and_columns_of_the_operator(node: Node, kind: str, columns: list[str]) -> None:
    found = shape_of(Plan(node), SHAPES)
    assert (found.kind, found.schema.names) == (kind, columns)


def test_every_operator_is_built() -> None:
    assert {type(node.operator) for node, _, _ in SHOWN} == {
        Imported, Filter, Select, Aggregate, Latest, Top, Join, Distinct, Concat, AsUpdates, Negate, Consolidate,
    }  # fmt: skip


REFUSED: list[tuple[Node, str, str]] = [
    (Node(Distinct(), Node(Imported("z"))), "could not import 'z': found no such name", "plan.of (import)"),
    (
        Node(Filter("z > 1"), Node(Distinct(), Node(Select((("z", "z"),)), s))),
        "found no column 'z'",
        "plan.of.of (select)",
    ),
    (Node(Select((("K", "K"),)), s), "could not select: found no column 'K'", "plan (select)"),
    (Node(Filter("z > 1"), s), "found no column 'z' in condition", "plan (filter)"),
    (Node(Filter("n = k"), s), "found a comparison of types int64 and string", "plan (filter)"),
    (Node(Filter("abs(n) > 1"), s), "found 'ABS(n)' in condition", "plan (filter)"),
    (Node(Filter("n"), s), "found type=int64 where true or false belongs", "plan (filter)"),
    (Node(Filter("_time > 1"), c), "could not filter a collection: found no column '_time'", "plan (filter)"),
    (Node(Aggregate(("x",), values_of(COUNT), "history"), s), "found key 'x' of type=double", "plan (aggregate)"),
    (Node(Aggregate(("z",), values_of(COUNT), "history"), s), "found no column 'z'", "plan (aggregate)"),
    (
        Node(Aggregate(("k",), values_of((("v", "sum", "k"),)), "history"), s),
        "found sum of column 'k' of type=string",
        "plan (aggregate)",
    ),
    (
        Node(Aggregate(("k",), values_of((("v", "sum", "x"),)), "history"), c),
        "found a sum of updates of column 'x'",
        "plan (aggregate)",
    ),
    (Node(Aggregate(("k",), values_of(COUNT), "time"), c), "found updates of", "plan (aggregate)"),
    (Node(Latest(("k",), (("z", "desc"),)), s), "could not order: found no column 'z'", "plan (latest)"),
    (Node(Latest(("x",), (("n", "desc"),)), s), "found key 'x' of type=double", "plan (latest)"),
    (Node(Top(1, ("z",), (("n", "desc"),)), s), "found no column 'z'", "plan (top)"),
    (
        Node(Top(1, (), (("a b", "asc"),)), Node(Imported("self"))),
        "could not order by 'a b', the least first",
        "plan (top)",
    ),
    (
        Node(Top(1, (), (("x", "asc"),)), Node(Imported("self"))),
        "could not order by 'x', the least first",
        "plan (top)",
    ),
    (Node(Join(("k",), as_of=True), c, b), "found updates of 'replay_2' on the left", "plan (join)"),
    (Node(Join(("k",), as_of=True), s, Node(Select((("k", "k"),)), s)), "found events of", "plan (join)"),
    (Node(Join(("k",), as_of=True), s, c), "found columns ['n', 'x', 'by'] on both sides", "plan (join)"),
    (Node(Join(("k",)), c, b), "found updates of 'replay_2', which it cannot take back", "plan (join)"),
    (Node(Join(("m",), as_of=True), s, b), "found no column 'm'", "plan (join)"),
    (Node(Distinct(), s), "found key 'x' of type=double", "plan (distinct)"),
    (Node(Concat(), s, b), "found columns", "plan (concat)"),
    (Node(Concat(), s, Node(AsUpdates(), c)), "found updates of", "plan.of[1] (as_updates)"),
    (Node(AsUpdates("k"), s), "found column 'k' of type=string", "plan (as_updates)"),
    (Node(Negate(), s), "found events of", "plan (negate)"),
    (Node(Consolidate(), s), "found events of", "plan (consolidate)"),
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
    assert shape_of(Plan(Node(Filter("n > 1"), c)), SHAPES, domain=domain).kind == COLLECTION
    with pytest.raises(InvalidUsageError, match=r"found times of 2 coordinates, at plan \(latest\)"):
        shape_of(Plan(Node(Latest(("k",), (("n", "desc"),)), s)), SHAPES, domain=domain)


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
    assert made(Node(Concat(), s, c)) == made(Node(Concat(), Node(AsUpdates(), s), c))
    assert made(Node(Concat(), c, Node(Negate(), c), c)) == Counter(
        {(1, 2, "a", 1): 2, (1, -2, "a", 1): 1, (2, -1, "a", 1): 2, (2, 1, "a", 1): 1, (3, 1, "b", 2): 2,
         (3, -1, "b", 2): 1}
    )  # fmt: skip
    _, streams = given()
    assert [row["_diff"] for row in rows_of(as_collection(streams["s"]))] == [1, 1, 1, 1]
    assert as_collection(streams["c"]) is streams["c"]


def test_columns_come_in_the_order_of_the_plan() -> None:
    node = Node(Select((("m", "n"), ("k", "k"), ("n", "k"))), s)
    assert made(node) == Counter({(1, 5, "a", "a"): 2, (2, None, "b", "b"): 1, (3, 7, "a", "a"): 1})
    scope, streams = given()
    assert build(Plan(node), scope, streams).schema.types == [pa.int64(), pa.string(), pa.string()]


@pytest.mark.parametrize("over", ["history", "time"])
def test_rows_are_counted_under_two_names(over: Any) -> None:
    node = Node(Aggregate(("k",), values_of((("by", "count", None), ("v", "count", None), ("w", "sum", "n"))), over), s)
    found = {row[:1] + row[-4:] for row in made(node) if row[0] < 3}
    assert found == {(1, "a", 2, 2, 10), (2, "b", 1, 1, None)}


def test_text_of_a_query_is_built_as_its_plan() -> None:
    scope, streams = given()
    names = {name: stream.schema for name, stream in streams.items()}
    plan = plan_of_sql("SELECT k, COUNT(*) AS v FROM (SELECT * FROM s UNION ALL SELECT * FROM c) GROUP BY k", names)
    stream = build(parse_plan(json.dumps(json.loads(plan.text), indent=1)), scope, streams)
    assert rows_of(stream, upper=[2]) == [{"_time": 1, "_diff": 1, "k": "a", "v": 4}]
