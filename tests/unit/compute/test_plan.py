"""Plans as values: strict reading, one text, limits."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import pytest

from spark_timely.compute.plan import (
    MAX_DEPTH,
    MAX_NODES,
    Imported,
    Node,
    Plan,
    SqlTask,
    functions_of,
    imports_of,
    parse_plan,
    plan_text,
    with_functions,
)
from spark_timely.dataflow.operators.collections import AsUpdates, Consolidate, Negate
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.history import Distinct, Latest, Top
from spark_timely.dataflow.operators.joins import Join
from spark_timely.dataflow.operators.rows import Branch, Concat, Filter, Map, Select
from spark_timely.dataflow.views import Operator
from spark_timely.errors import InvalidUsageError
from tests.plans import values_of

A: dict[str, Any] = {"op": "import", "name": "a"}
B: dict[str, Any] = {"op": "import", "name": "b"}
a, b = Node(Imported("a")), Node(Imported("b"))

WRITTEN: dict[str, tuple[Node, dict[str, Any]]] = {
    "import": (a, A),
    "filter": (Node(Filter("n > 1"), a), {"op": "filter", "of": A, "where": "n > 1"}),
    "select": (Node(Select((("k", "k"), ("n", "n"))), a), {"op": "select", "of": A, "columns": ["k", "n"]}),
    "renamed": (
        Node(Select((("m", "n"), ("k", "k"))), a),
        {"op": "select", "of": A, "columns": ["m", "k"], "renamed": {"m": "n"}},
    ),
    "aggregate": (
        Node(Aggregate(("k",), values_of((("s", "sum", "x"), ("n", "count", None))), "history"), a),
        {"op": "aggregate", "of": A, "by": ["k"], "values": {"n": ["count"], "s": ["sum", "x"]}},
    ),
    "aggregate of each time": (
        Node(Aggregate((), values_of((("n", "count", "x"),)), "time"), a),
        {"op": "aggregate", "of": A, "by": [], "values": {"n": ["count", "x"]}, "over": "time"},
    ),
    "latest": (
        Node(Latest(("k",), (("t", "desc"), ("n", "asc"))), a),
        {"op": "latest", "of": A, "by": ["k"], "order_by": ["t", ["n", "asc"]]},
    ),
    "top": (Node(Top(3, (), (("t", "asc"),)), a), {"op": "top", "of": A, "n": 3, "by": [], "order_by": [["t", "asc"]]}),
    "join": (Node(Join(("k",)), a, b), {"op": "join", "of": [A, B], "on": ["k"]}),
    "as-of join": (
        Node(Join(("k",), "left", as_of=True), a, b),
        {"op": "join", "of": [A, B], "on": ["k"], "how": "left", "as_of": True},
    ),
    "distinct": (Node(Distinct(), a), {"op": "distinct", "of": A}),
    "concat": (Node(Concat(), a, b, a), {"op": "concat", "of": [A, B, A]}),
    "as_updates": (Node(AsUpdates(), a), {"op": "as_updates", "of": A}),
    "as_updates by a column": (Node(AsUpdates("n"), a), {"op": "as_updates", "of": A, "diff": "n"}),
    "negate": (Node(Negate(), a), {"op": "negate", "of": A}),
    "consolidate": (Node(Consolidate(), a), {"op": "consolidate", "of": A}),
    "function": (Node(Map("loud"), a), {"op": "function", "of": A, "name": "loud"}),
    "task": (
        Node(SqlTask("SELECT 1 FROM b", (("b", "inserts"),))),
        {"op": "task", "sql": "SELECT 1 FROM b", "inputs": {"b": "inserts"}},
    ),
    "task of all parts": (
        Node(
            SqlTask(
                "SELECT 1",
                (("b", "inserts"), ("a", "deletes"), ("r", "contents"), ("n", "newest")),
                "2013-01-01",
                snapshot=True,
                forgotten=True,
                expect=(("y", "n > 1", "drop"), ("x", "n > 0", "fail")),
                functions=("g", "f"),
                replaces="1:0",
            )
        ),
        {
            "op": "task",
            "sql": "SELECT 1",
            "inputs": {"a": "deletes", "b": "inserts"},
            "references": {"r": "contents", "n": "newest"},
            "as_of": "2013-01-01",
            "snapshot": True,
            "forgotten": True,
            "expect": {"x": ["n > 0", "fail"], "y": ["n > 1", "drop"]},
            "functions": ["f", "g"],
            "replaces": "1:0",
        },
    ),
}


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("name", WRITTEN)
def test_plan_has_one_text_both_ways(name: str) -> None:
    node, written = WRITTEN[name]
    assert plan_text(Plan(node)) == canonical(written)
    assert parse_plan(json.dumps(written, indent=2)) == Plan(node)
    assert parse_plan(Plan(node).text) == Plan(node) == pickle.loads(pickle.dumps(Plan(node)))


def test_every_operator_has_its_text_tested() -> None:
    assert {node.operator.op for node, _ in WRITTEN.values()} == {
        "import", "filter", "select", "aggregate", "latest", "top", "join", "distinct", "concat", "as_updates",
        "negate", "consolidate", "function", "task",
    }  # fmt: skip


def test_what_is_said_otherwise_has_the_same_text() -> None:
    said = {
        "op": "aggregate",
        "of": {"op": "select", "of": A, "columns": ["k"], "renamed": {"x": "n", "k": "k"}},
        "by": ["k"],
        "values": {"s": ["sum", "x"]},
        "over": "history",
    }
    plan = parse_plan(json.dumps(said))
    assert plan.root == Node(
        Aggregate(("k",), values_of((("s", "sum", "x"),)), "history"), Node(Select((("k", "k"), ("x", "n"))), a)
    )
    assert "over" not in plan.text
    order = {"op": "top", "of": A, "n": 1, "by": [], "order_by": [["t", "desc"]]}
    assert parse_plan(json.dumps(order)).text == canonical({**order, "order_by": ["t"]})
    join = {"op": "join", "of": [A, B], "on": ["k"], "how": "inner", "as_of": False}
    assert parse_plan(json.dumps(join)).text == canonical({"op": "join", "of": [A, B], "on": ["k"]})


def test_task_said_otherwise_has_the_same_text() -> None:
    said = {
        "op": "task", "sql": "s", "inputs": ["b", "a"], "references": ["r"], "as_of": "earliest", "snapshot": False,
        "expect": {"x": "n > 0"}, "functions": [],
    }  # fmt: skip
    plan = parse_plan(json.dumps(said))
    assert plan.imports == ("a", "b", "r")
    assert plan.text == canonical(
        {
            "op": "task", "sql": "s", "inputs": {"a": "inserts", "b": "inserts"}, "references": {"r": "contents"},
            "expect": {"x": ["n > 0", "fail"]},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"inputs": {}}, "no inputs"),
        ({"inputs": 5}, "inputs=5"),
        ({"inputs": ["a", "a"]}, "inputs=['a', 'a']"),
        ({"inputs": {"a": "contents"}}, "inputs shown as 'contents'"),
        ({"inputs": {"a": 1}}, "inputs={'a': 1}"),
        ({"inputs": ["a"], "references": {"b": "inserts"}}, "references shown as 'inserts'"),
        ({"inputs": ["a"], "references": ["a"]}, "'a' twice"),
        ({"inputs": ["a"], "as_of": True}, "as_of=True"),
        ({"inputs": ["a"], "as_of": [1]}, "as_of=[1]"),
        ({"inputs": ["a"], "snapshot": 1}, "snapshot=1"),
        ({"inputs": ["a"], "expect": ["x"]}, "expect=['x']"),
        ({"inputs": ["a"], "expect": {"x": ["n > 0"]}}, "expect x=['n > 0']"),
        ({"inputs": ["a"], "expect": {"x": ["n > 0", "hope"]}}, "'hope'"),
        ({"inputs": ["a"], "expect": {"x": ""}}, "expect['x']=''"),
        ({"inputs": ["a"], "functions": ["f", "f"]}, "'f' twice"),
        ({"inputs": ["a"], "replaces": ""}, "replaces=''"),
        ({"inputs": ["a"], "of": A}, "part 'of'"),
        ({"inputs": ["a"], "sql": ""}, "sql=''"),
        ({"inputs": [""]}, "names=''"),
    ],
)
def test_task_that_is_no_task_is_refused(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        parse_plan(json.dumps({"op": "task", "sql": "s", **parts}))
    assert told in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"reads": (("a", "rows"),)}, "a='rows'"),
        ({"as_of": None}, "as_of=None"),
        ({"snapshot": 1}, "snapshot=1"),
        ({"forgotten": None}, "forgotten=None"),
    ],
)
def test_task_made_wrongly_is_refused(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidUsageError, match=told):
        Node(SqlTask(**{"sql": "s", "reads": (("a", "inserts"),), **parts}))


def test_task_is_a_whole_plan() -> None:
    task = Node(SqlTask("s", (("a", "inserts"),)))
    for node in (Node(Distinct(), task), Node(Join(("k",)), a, task), Node(Map("f"), Node(Concat(), a, task))):
        with pytest.raises(InvalidUsageError, match=r"found a continual task at plan\.of") as caught:
            Plan(node)
        assert caught.value.context["node"].startswith("plan.of")


def test_functions_are_found_and_renamed_wherever_they_are() -> None:
    inner = Node(Map("f"), a)
    plan = Plan(Node(Join(("k",)), Node(Map("g"), Node(Concat(), inner, b)), Node(Filter("n > 1"), inner)))
    assert functions_of(plan) == ("f", "g")
    renamed = with_functions(plan, {"f": "f 1", "g": "g 2"})
    assert functions_of(renamed) == ("f 1", "g 2")
    assert with_functions(renamed, {"f 1": "f", "g 2": "g"}) == plan
    assert with_functions(Plan(a), {}) == Plan(a)


def test_names_of_any_kind_keep_their_letters() -> None:
    plan = Plan(Node(Select((("a`b\n", "ß"), ("c", "c"))), Node(Imported('ö "x"'))))
    assert parse_plan(plan.text) == plan
    assert plan.text.isascii()


def test_imports_are_sorted_and_named_once() -> None:
    plan = Plan(Node(Join(("k",)), Node(Concat(), b, a, b), Node(Distinct(), Node(Imported("0")))))
    assert imports_of(plan) == plan.imports == ("0", "a", "b")


LATEST = {"op": "latest", "of": A, "by": ["k"], "order_by": ["t"]}
TOP = {**LATEST, "op": "top", "n": 1}
SUM = {"op": "aggregate", "of": A, "by": ["k"], "values": {"n": ["count"]}}
JOIN = {"op": "join", "of": [A, B], "on": ["k"]}
SELECT = {"op": "select", "of": A, "columns": ["k"]}
REFUSED: list[tuple[object, str]] = [
    ([], "[] at plan"),
    (None, "None at plan"),
    ({}, "no 'op' at plan"),
    ({"op": 3}, "op=3 at plan"),
    ({"op": "map", "of": A}, "op='map' at plan"),
    ({"op": "import"}, "no 'name' for op 'import' at plan"),
    ({"op": "import", "name": ""}, "name='', at plan"),
    ({"op": "import", "name": None}, "name=None at plan"),
    ({**A, "path": "/x"}, "part 'path' of op 'import' at plan"),
    ({**A, "of": B}, "part 'of' of op 'import' at plan"),
    ({"op": "distinct"}, "no 'of' for op 'distinct' at plan"),
    ({"op": "distinct", "of": [A]}, "of=[{'op': 'import', 'name': 'a'}] at plan"),
    ({"op": "distinct", "of": A, "by": []}, "part 'by' of op 'distinct' at plan"),
    ({"op": "filter", "of": A}, "no 'where' for op 'filter' at plan"),
    ({"op": "filter", "of": A, "where": True}, "where=True at plan"),
    ({"op": "filter", "of": {"op": "filter", "of": {}, "where": "x"}, "where": "y"}, "no 'op' at plan.of.of"),
    ({**SELECT, "columns": "k"}, "columns='k' at plan"),
    ({**SELECT, "columns": []}, "no columns, at plan"),
    ({**SELECT, "columns": ["k", "k"]}, "columns with 'k' twice, at plan"),
    ({**SELECT, "columns": [1]}, "columns=[1] at plan"),
    ({**SELECT, "renamed": ["k"]}, "renamed=['k'] at plan"),
    ({**SELECT, "renamed": {"k": 1}}, "renamed={'k': 1} at plan"),
    ({**SELECT, "computed": {"x": "n + 1"}}, "part 'computed' of op 'select' at plan"),
    ({**SUM, "values": {}}, "no values, at plan"),
    ({**SUM, "values": {"n": "count"}}, "values n='count' at plan"),
    ({**SUM, "values": {"n": ["median", "x"]}}, "values n=['median'], at plan"),
    ({**SUM, "values": {"n": ["sum"]}}, "values n=['sum'] of no column, at plan"),
    ({**SUM, "values": {"n": ["sum", "x", "y"]}}, "values n=['sum', 'x', 'y'] at plan"),
    ({**SUM, "values": {"k": ["count"]}}, "columns with 'k' twice, at plan"),
    ({**SUM, "over": "day"}, "over='day', at plan"),
    ({**SUM, "by": "k"}, "by='k' at plan"),
    ({**SUM, "by": ["k", "k"]}, "by with 'k' twice, at plan"),
    ({**LATEST, "order_by": []}, "order_by=[], at plan"),
    ({**LATEST, "order_by": "t"}, "order_by='t' at plan"),
    ({**LATEST, "order_by": [["t", "up"]]}, "order_by=['t', 'up'], at plan"),
    ({**LATEST, "order_by": [["t"]]}, "order_by=['t'] at plan"),
    ({**LATEST, "order_by": ["t", ["t", "asc"]]}, "order_by with 't' twice, at plan"),
    ({**LATEST, "deleted": "x"}, "part 'deleted' of op 'latest' at plan"),
    ({**TOP, "n": 0}, "n=0, at plan"),
    ({**TOP, "n": True}, "n=True at plan"),
    ({**TOP, "n": 1.5}, "n=1.5 at plan"),
    ({**TOP, "n": 1 << 31}, f"n={1 << 31}, at plan"),
    ({**JOIN, "of": [A]}, "1 inputs of op 'join' at plan"),
    ({**JOIN, "of": A}, "of={'op': 'import', 'name': 'a'} at plan"),
    ({**JOIN, "of": [A, {}]}, "no 'op' at plan.of[1]"),
    ({**JOIN, "on": []}, "on=[], at plan"),
    ({**JOIN, "how": "full"}, "how='full', at plan"),
    ({**JOIN, "as_of": "yes"}, "as_of='yes' at plan"),
    ({**JOIN, "strict": True}, "part 'strict' of op 'join' at plan"),
    ({"op": "concat", "of": [A]}, "1 inputs, at plan"),
    ({"op": "concat", "of": [A, {"op": "concat", "of": []}]}, "0 inputs, at plan.of[1]"),
    ({"op": "as_updates", "of": A, "diff": ""}, "diff='', at plan"),
]


@pytest.mark.parametrize(("written", "found"), REFUSED)
def test_what_is_not_known_is_refused_by_name_and_place(written: object, found: str) -> None:
    with pytest.raises(InvalidUsageError) as error:
        parse_plan(json.dumps(written))
    assert f"found {found}" in error.value.message
    assert error.value.message.endswith(f"at {error.value.context['node']}")
    assert error.value.hint


@pytest.mark.parametrize("text", ["", "{", '{"op": "import", "op": "import", "name": "a"}', "[" * 100_000, 7, b"{}"])
def test_what_is_no_json_is_refused(text: Any) -> None:
    with pytest.raises(InvalidUsageError, match=r"could not (read a plan|plan a dataflow): found"):
        parse_plan(text)


def nested(depth: int) -> Node:
    node: Node = a
    for _ in range(depth - 1):
        node = Node(Distinct(), node)
    return node


def test_depth_and_size_are_limited_as_values_and_as_texts() -> None:
    assert parse_plan(Plan(nested(MAX_DEPTH)).text).root == nested(MAX_DEPTH)
    with pytest.raises(InvalidUsageError, match=f"found more than {MAX_DEPTH} nodes one upon another"):
        Plan(nested(MAX_DEPTH + 1))
    text = canonical({"op": "distinct", "of": json.loads(Plan(nested(MAX_DEPTH)).text)})
    with pytest.raises(InvalidUsageError, match=f"found more than {MAX_DEPTH} nodes one upon another"):
        parse_plan(text)
    widest = Plan(Node(Concat(), *(a,) * (MAX_NODES - 1)))
    assert parse_plan(widest.text) == widest
    with pytest.raises(InvalidUsageError, match=f"found {MAX_NODES + 1} nodes"):
        Plan(Node(Concat(), *(a,) * MAX_NODES))
    with pytest.raises(InvalidUsageError, match=f"found {MAX_NODES + 1} nodes"):
        parse_plan(canonical({"op": "concat", "of": [A] * MAX_NODES}))


def test_plan_of_shared_parts_is_refused_soon() -> None:
    node: Node = a
    for _ in range(60):
        node = Node(Concat(), node, node)
    with pytest.raises(InvalidUsageError, match=f"found {MAX_NODES + 1} nodes"):
        Plan(node)


def test_what_is_no_node_is_refused() -> None:
    wrong: Any = "orders"
    with pytest.raises(InvalidUsageError, match="found 'orders' at plan"):
        Plan(wrong)
    with pytest.raises(InvalidUsageError, match=r"found 'orders' at plan\.of"):
        Plan(Node(Distinct(), wrong))


@pytest.mark.parametrize(
    ("operator", "found"),
    [
        (Branch("n > 1"), "could not plan 'Branch': found an operator that no plan has"),
        (Latest(("k",), (("t", "desc"),), deleted="gone"), "could not plan 'latest': found deleted='gone'"),
        (Join(("k",), as_of=True, strict=True), "could not plan 'join': found strict=True"),
        (Map(print), "could not plan 'function': found name=<built-in function print>"),
    ],
)
def test_what_json_has_no_word_for_is_refused_as_a_value_too(operator: Operator, found: str) -> None:
    with pytest.raises(InvalidUsageError, match=re.escape(found)):
        Node(operator, a, b)
