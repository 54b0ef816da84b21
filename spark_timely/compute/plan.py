"""The plan of a dataflow, as a value: a tree of operators over imports, with one JSON text.

Users write one as JSON, or SQL becomes one (`spark_timely.compute.sql`); a `CreateDataflow` has its text, and
`spark_timely.compute.drive.plans` builds it. (The plan of a peek is `spark_timely.answers.plan`, that of a step of a
continual task `spark_timely.continual.plan`.) The operators are those of `spark_timely.dataflow.operators`; their
fields say what of each is in the JSON.

A plan says what is to be computed and nothing of where: imports are names, and the streams behind them are given where
the plan is built. It can be kept in the log of commands, compared, and shown to people.

Invariants
----------
1. Equal plans have equal texts, and `parse_plan` of a text gives an equal plan. The order of an object's keys, which
   JSON does not keep, means nothing: values of an aggregate are in the order of their names, columns of a selection in
   that of a list.
2. A white list: a part that is not known is refused by its name, whether it would do harm or not.
3. Depth and size are limited, so a walk of a plan may recurse.
4. A continual task is the whole plan, or no part of it: it is run by itself, and not as an operator.
5. A function of Python is a name here. What it stands for is in the process that gave it, and in no text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_timely.compute.command import keys_once
from spark_timely.dataflow.operators.collections import AsUpdates, Consolidate, Negate
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.history import Distinct, Latest, Top
from spark_timely.dataflow.operators.joins import Join
from spark_timely.dataflow.operators.plan_json import (
    Flag,
    JsonField,
    JsonNode,
    Text,
    Texts,
    are_texts,
    check_name,
    check_names,
    checked_operator,
    in_plan,
    node_of,
    read_operator,
    unreadable,
    wrong,
)
from spark_timely.dataflow.operators.rows import Concat, Filter, Map, Select
from spark_timely.dataflow.views import Operator
from spark_timely.errors import InvalidUsageError, shown

__all__ = [
    "MAX_DEPTH",
    "MAX_NODES",
    "Imported",
    "Node",
    "Plan",
    "SqlTask",
    "functions_of",
    "imports_of",
    "is_task",
    "parse_plan",
    "plan_text",
    "with_functions",
]

MAX_DEPTH: Final = 64
"""How many operators may stand one upon another."""

MAX_NODES: Final = 1000
"""How many operators and imports a plan may have."""

_ROOT: Final = "plan"

# How a body sees a log: as one of its inputs, or of its references.
_INPUTS: Final = ("inserts", "deletes")
_REFERENCES: Final = ("contents", "newest")
_OTHERWISE: Final = ("fail", "drop", "dead_letter")


@dataclass(frozen=True, eq=False)
class Imported(Operator):
    """An import, by the name that the dataflow gives it.

    Attributes
    ----------
    name : str
    """

    name: str = field(metadata=in_plan(Text()))

    op = "import"


class _Reads(JsonField[tuple[tuple[str, str], ...]]):
    """Inputs and references of a task, an object of each; a list of names is short for the usual way."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> tuple[tuple[str, str], ...]:
        """Take both."""
        return (*_shown_logs(node, "inputs", _INPUTS), *_shown_logs(node, "references", _REFERENCES))

    def write(self, name: str, value: tuple[tuple[str, str], ...]) -> dict[str, object]:
        """Return inputs, and references if there are any."""
        inputs, references = ({each: how for each, how in value if how in known} for known in (_INPUTS, _REFERENCES))
        return {"inputs": inputs, **({"references": references} if references else {})}

    def checked(self, op: str, name: str, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Refuse names that are there twice, and no inputs; sort them."""
        check_names(op, "names", tuple(each for each, _ in value))
        for each, how in value:
            if how not in (*_INPUTS, *_REFERENCES):
                raise wrong(op, f"{each}={shown(how)}", f"choose among {', '.join((*_INPUTS, *_REFERENCES))}")
        if not any(how in _INPUTS for _, how in value):
            raise wrong(op, "no inputs", "name at least one: the task writes where an input has rows")
        return tuple(sorted(value))


def _shown_logs(node: JsonNode, name: str, known: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return names of what a task reads, each with how it is seen."""
    hint = f'give names, or an object such as {{"orders": "{known[0]}"}}'
    found = node.take_or(name, {})
    given = dict.fromkeys(found, known[0]) if are_texts(found) else found
    if not isinstance(given, dict) or not are_texts(list(given.values())) or len(given) != len(found):
        raise unreadable(node.place, f"{name}={shown(found)}", hint)
    other = next((how for how in given.values() if how not in known), None)
    if other is not None:
        raise unreadable(node.place, f"{name} shown as {shown(other)}", f"choose among {', '.join(known)}")
    return tuple(given.items())


class _Begins(JsonField[int | str]):
    """The beginning of a task: a word, or a time."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> int | str:
        """Take it."""
        value = node.take_or(name, self.default)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise unreadable(node.place, f"{name}={shown(value)}", "say 'earliest', 'latest' or a time")
        return value

    def checked(self, op: str, name: str, value: int | str) -> int | str:
        """Refuse anything else."""
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise wrong(op, f"{name}={shown(value)}", "say 'earliest', 'latest' or a time")
        return value


class _Expected(JsonField[tuple[tuple[str, str, str], ...]]):
    """Conditions on what a task writes, by their names; in JSON a condition alone is one that fails."""

    __slots__ = ()

    def read(self, node: JsonNode, name: str) -> tuple[tuple[str, str, str], ...]:
        """Take an object."""
        found: list[tuple[str, str, str]] = []
        for each, value in node.take(name, dict, "an object").items():
            pair = [value, "fail"] if isinstance(value, str) else value
            if not are_texts(pair) or len(pair) != 2:
                hint = 'give a condition, or a condition and what becomes of other rows: ["n > 0", "drop"]'
                raise unreadable(node.place, f"{name} {each}={shown(value)}", hint)
            found.append((each, pair[0], pair[1]))
        return tuple(found)

    def write(self, name: str, value: tuple[tuple[str, str, str], ...]) -> dict[str, object]:
        """Return an object."""
        return {name: {each: [condition, otherwise] for each, condition, otherwise in value}}

    def checked(self, op: str, name: str, value: tuple[tuple[str, str, str], ...]) -> tuple[tuple[str, str, str], ...]:
        """Refuse names that are there twice, no conditions and unknown ends; sort them."""
        check_names(op, name, tuple(each for each, _, _ in value))
        for each, condition, otherwise in value:
            check_name(op, f"{name}[{each!r}]", condition)
            if otherwise not in _OTHERWISE:
                raise wrong(op, f"{name}[{each!r}]={shown(otherwise)}", f"choose among {', '.join(_OTHERWISE)}")
        return tuple(sorted(value))


@dataclass(frozen=True, eq=False)
class SqlTask(Operator):
    """A continual task: SQL that is run at each time at which an input has rows. It is the root of its plan.

    What the parts mean is said by `spark_timely.ContinualTask`. What it reads has the names of imports.

    Attributes
    ----------
    sql : str
        The body.
    reads : tuple of (str, str)
        Import, and how the body sees it: ``inserts`` or ``deletes`` of an input, ``contents`` or ``newest`` of a
        reference.
    as_of : int or str
        ``earliest``, ``latest``, or a time as JSON has it.
    snapshot, forgotten : bool
    expect : tuple of (str, str, str)
        Name, condition, and what becomes of a row for which it does not hold.
    functions : tuple of str
    replaces : str or None

    Examples
    --------
    >>> task = SqlTask("SELECT * FROM orders JOIN rates USING (k)", (("rates", "contents"), ("orders", "inserts")))
    >>> plan = Plan(Node(task))
    >>> plan.imports, plan.root.operator.reads
    (('orders', 'rates'), (('orders', 'inserts'), ('rates', 'contents')))
    """

    sql: str = field(metadata=in_plan(Text()))
    reads: tuple[tuple[str, str], ...] = field(metadata=in_plan(_Reads()))
    as_of: int | str = field(default="earliest", metadata=in_plan(_Begins(default="earliest")))
    snapshot: bool = field(default=False, metadata=in_plan(Flag(default=False)))
    forgotten: bool = field(default=False, metadata=in_plan(Flag(default=False)))
    expect: tuple[tuple[str, str, str], ...] = field(default=(), metadata=in_plan(_Expected(default=())))
    functions: tuple[str, ...] = field(default=(), metadata=in_plan(Texts(default=(), as_set=True)))
    replaces: str | None = field(default=None, metadata=in_plan(Text(default=None)))

    op = "task"


_OPERATORS: Final[Mapping[str, type[Operator]]] = {
    kind.op: kind
    for kind in (
        Imported, Filter, Select, Aggregate, Latest, Top, Join, Distinct, Concat, AsUpdates, Negate, Consolidate, Map,
        SqlTask,
    )
}  # fmt: skip
_LEAVES: Final = (Imported, SqlTask)
_OF_SEVERAL: Final = (Join, Concat)


class Node:
    """An operator, or an import: in_plan of a plan.

    Parameters
    ----------
    operator : Operator
        Not bound; a function of `Map` is a name.
    *inputs : Node
        What it is made from, in order. A task has its imports without.

    Raises
    ------
    InvalidUsageError
        If no plan can have such an operator.

    Examples
    --------
    >>> Node(Filter("n > 1"), Node(Imported("orders")))
    Node({"of": {"name": "orders", "op": "import"}, "op": "filter", "where": "n > 1"})
    """

    __slots__ = ("inputs", "operator")

    def __init__(self, operator: Operator, *inputs: Node) -> None:
        self.operator = checked_operator(operator)
        if isinstance(self.operator, SqlTask):
            inputs = tuple(Node(Imported(name)) for name, _ in self.operator.reads)
        if isinstance(operator, Concat) and len(inputs) < 2:
            raise wrong(operator.op, f"{len(inputs)} inputs", "give at least two")
        self.inputs = inputs

    def __repr__(self) -> str:
        """Return its JSON."""
        return f"Node({json.dumps(_json_of(self), sort_keys=True)})"

    def __eq__(self, other: object) -> bool:
        """Return whether both have one text."""
        return isinstance(other, Node) and _json_of(self) == _json_of(other)

    def __hash__(self) -> int:
        """Return the hash of its text."""
        return hash(json.dumps(_json_of(self), sort_keys=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a dataflow.

    Attributes
    ----------
    root : Node
        What comes out.

    Examples
    --------
    >>> plan = Plan(Node(Distinct(), Node(Filter("euro > 10"), Node(Imported("orders")))))
    >>> plan.imports, parse_plan(plan.text) == plan
    (('orders',), True)
    """

    root: Node

    def __post_init__(self) -> None:
        """Check depth and size."""
        for number, (place, depth, node) in enumerate(_walked(self.root)):  # ends at the first that is one too many
            if not isinstance(node, Node):
                msg = f"could not plan a dataflow: found {shown(node)} at {place}"
                raise InvalidUsageError(msg, hint="give nodes of spark_timely.compute.plan")
            if depth > MAX_DEPTH or number >= MAX_NODES:
                raise _too_large(place, None if depth > MAX_DEPTH else number + 1)
            if isinstance(node.operator, SqlTask) and depth > 1:  # invariant 4
                msg = f"could not plan a dataflow: found a continual task at {place}, which other operators read"
                hint = "make a dataflow of the task alone, and another one that imports its export"
                raise InvalidUsageError(msg, hint=hint, context={"node": place})

    @property
    def text(self) -> str:
        """Its one text, canonical JSON."""
        return plan_text(self)

    @property
    def imports(self) -> tuple[str, ...]:
        """Names of what it reads, sorted, each once."""
        return imports_of(self)


def imports_of(plan: Plan, /) -> tuple[str, ...]:
    """Return the names of what a plan reads, sorted, each once.

    Examples
    --------
    >>> imports_of(Plan(Node(Concat(), *(Node(Imported(name)) for name in "bab"))))
    ('a', 'b')
    """
    operators = [node.operator for _, _, node in _walked(plan.root)]
    return tuple(sorted({each.name for each in operators if isinstance(each, Imported)}))


def functions_of(plan: Plan, /) -> tuple[str, ...]:
    """Return the names of the functions of Python that a plan calls, sorted, each once.

    Examples
    --------
    >>> functions_of(Plan(Node(Distinct(), Node(Map("loud"), Node(Imported("words"))))))
    ('loud',)
    """
    operators = [node.operator for _, _, node in _walked(plan.root)]
    return tuple(sorted({str(each.function) for each in operators if isinstance(each, Map)}))


def is_task(text: str, /) -> bool:
    """Return whether the text of a plan is that of a continual task; of a plan that cannot be read it is not.

    Examples
    --------
    >>> is_task(Plan(Node(SqlTask("SELECT * FROM a", (("a", "inserts"),)))).text), is_task('{"op": "magic"}')
    (True, False)
    """
    found = json.loads(text)
    return isinstance(found, dict) and found.get("op") == SqlTask.op


def with_functions(plan: Plan, names: Mapping[str, str], /) -> Plan:
    """Return a plan whose functions of Python have other names.

    Parameters
    ----------
    plan : Plan
    names : mapping of str to str
        Of all functions that it calls.

    Examples
    --------
    >>> with_functions(Plan(Node(Map("loud"), Node(Imported("words")))), {"loud": "loud 1"}).text
    '{"name":"loud 1","of":{"name":"words","op":"import"},"op":"function"}'
    """

    def renamed(node: Node) -> Node:
        operator = node.operator
        if isinstance(operator, Map):
            operator = Map(names[str(operator.function)])
        return Node(operator, *map(renamed, node.inputs))

    return Plan(renamed(plan.root)) if functions_of(plan) else plan


def _walked(root: Node) -> Iterator[tuple[str, int, Node]]:
    """Yield place, depth and node of all nodes of a tree."""
    waiting = [(_ROOT, 1, root)]
    while waiting:
        place, depth, node = waiting.pop()
        yield place, depth, node
        if isinstance(node, Node):
            waiting += [(where, depth + 1, each) for where, each in places(place, node)]


def places(place: str, node: Node) -> list[tuple[str, Node]]:
    """Return the inputs of a node, each with where it is in the text.

    Examples
    --------
    >>> places("plan", Node(Join(("k",)), Node(Imported("a")), Node(Imported("b"))))[1][0]
    'plan.of[1]'
    """
    if isinstance(node.operator, SqlTask):
        parts = ["inputs" if how in _INPUTS else "references" for _, how in node.operator.reads]
        return [(f"{place}.{part}", each) for part, each in zip(parts, node.inputs, strict=True)]
    listed = isinstance(node.operator, _OF_SEVERAL)
    return [(f"{place}.of[{i}]" if listed else f"{place}.of", each) for i, each in enumerate(node.inputs)]


# Text --------------------------------------------------------------------------------------------


def plan_text(plan: Plan, /) -> str:
    """Return the text of a plan: JSON with sorted keys, without spaces and without what is not said otherwise.

    Examples
    --------
    >>> plan_text(Plan(Node(Latest(("id",), (("at", "desc"),)), Node(Imported("orders")))))
    '{"by":["id"],"of":{"name":"orders","op":"import"},"op":"latest","order_by":["at"]}'
    """
    return json.dumps(_json_of(plan.root), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _json_of(node: Node) -> dict[str, object]:
    operator = node.operator
    below: dict[str, object] = {}
    if not isinstance(operator, _LEAVES):
        inputs = [_json_of(each) for each in node.inputs]
        below["of"] = inputs if isinstance(operator, _OF_SEVERAL) else inputs[0]
    return {"op": operator.op, **below, **node_of(operator)}


def parse_plan(text: str, /) -> Plan:
    """Return the plan that a text says.

    Parameters
    ----------
    text : str
        JSON: an object for each node, with ``op``, ``of`` (a node, or a list of them) and the operator's own parts.

    Raises
    ------
    InvalidUsageError
        If it is no JSON, has a part that is not known or lacks one, or is too deep or too large. Says where.

    Examples
    --------
    >>> parse_plan('{"op": "negate", "of": {"op": "import", "name": "orders"}}').root
    Node({"of": {"name": "orders", "op": "import"}, "op": "negate"})
    """
    if not isinstance(text, str):
        msg = f"could not read a plan: found {shown(text)}"
        raise InvalidUsageError(msg, hint="give JSON as a text")
    try:
        found = json.loads(text, object_pairs_hook=keys_once)
    except RecursionError as error:
        raise _too_large(_ROOT) from error
    except ValueError as error:
        msg = f"could not read a plan: found {shown(text)}, which is no JSON ({shown(str(error))})"
        raise InvalidUsageError(msg, hint="give JSON, with each key once") from error
    return Plan(_Reader().node(found, _ROOT, 1))


class _Reader:
    """Reads nodes, and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def node(self, found: object, place: str, depth: int) -> Node:
        """Return the node that a value of JSON says."""
        if depth > MAX_DEPTH:
            raise _too_large(place)
        self._count += 1
        if self._count > MAX_NODES:
            raise _too_large(place, self._count)
        if not isinstance(found, dict):
            raise unreadable(place, shown(found), 'give an object, such as {"op": "import", "name": "orders"}')
        node = JsonNode(found, place)
        op = node.take("op", str, "a text")
        if op not in _OPERATORS:
            raise unreadable(place, f"op={shown(op)}", f"use one of {', '.join(sorted(_OPERATORS))}")
        node.op, kind = op, _OPERATORS[op]
        try:
            inputs = [self.node(each, where, depth + 1) for where, each in self._below(kind, node)]
            made = Node(read_operator(kind, node), *inputs)
        except InvalidUsageError as error:
            if "node" not in error.context:
                error.locate(f"at {place}", node=place)
            raise
        node.close()
        return made

    def _below(self, kind: type[Operator], node: JsonNode) -> list[tuple[str, object]]:
        """Return what JSON has for inputs, with their places."""
        if kind in _LEAVES:
            return []
        if kind not in _OF_SEVERAL:
            return [(f"{node.place}.of", node.take("of", dict, "a node"))]
        found = node.take("of", list, "a list of nodes")
        if kind is Join and len(found) != 2:
            raise unreadable(node.place, f"{len(found)} inputs of op {node.op!r}", "give two: left and right")
        return [(f"{node.place}.of[{i}]", each) for i, each in enumerate(found)]


def _too_large(place: str, nodes: int | None = None) -> InvalidUsageError:
    found = f"more than {MAX_DEPTH} nodes one upon another" if nodes is None else f"{nodes} nodes"
    msg = f"could not plan a dataflow: found {found} at {place}"
    hint = f"use at most {MAX_NODES} nodes, {MAX_DEPTH} of them one upon another; export what is between, and import it"
    return InvalidUsageError(msg, hint=hint, context={"node": place})
