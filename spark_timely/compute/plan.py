"""The plan of a dataflow, as a value: a tree of operators over imports, with one JSON text.

A plan says what is to be computed and nothing of where: imports are names, and the streams behind them are given where
the plan is built. It can be kept in the log of commands, compared, and shown to people.

Invariants
----------
1. Equal plans have equal texts, and `parse_plan` of a text gives an equal plan. What JSON does not keep, the order of
   an object's keys, says nothing: values of an aggregate stand in the order of their names, columns of a selection in
   that of a list.
2. A white list: a part that is not known is refused by its name, whether it would do harm or not.
3. Depth and size are limited, so a walk of a plan may recurse.
4. A continual task is the whole plan, or no part of it: it is run by itself, and not as an operator.
5. A function of Python is a name here. What it stands for is in the process that gave it, and in no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, TypeAlias

from spark_timely.errors import InvalidUsageError, shown

__all__ = [
    "MAX_DEPTH",
    "MAX_NODES",
    "AggregateNode",
    "AsUpdatesNode",
    "ConcatNode",
    "ConsolidateNode",
    "DistinctNode",
    "FilterNode",
    "FunctionNode",
    "ImportNode",
    "JoinNode",
    "LatestNode",
    "NegateNode",
    "Node",
    "Plan",
    "SelectNode",
    "TaskNode",
    "TopNode",
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
_KINDS: Final = ("count", "sum", "avg", "min", "max")
_Value: TypeAlias = tuple[str, str, str | None]
_Order: TypeAlias = tuple[str, str]
_Expected: TypeAlias = tuple[str, str, str]

# How a body sees a log: as one of its inputs, or of its references.
_INPUTS: Final = ("inserts", "deletes")
_REFERENCES: Final = ("contents", "newest")
_OTHERWISE: Final = ("fail", "drop", "dead_letter")


class Node:
    """An operator, or an import: part of a plan.

    Attributes
    ----------
    op : str
        What it is called in the text.
    """

    __slots__ = ()
    op: ClassVar[str]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it is made from, in order."""
        raise NotImplementedError

    def parts(self) -> dict[str, object]:
        """Return what its text says beside `op` and its inputs; what is not said otherwise is left out."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ImportNode(Node):
    """An import, by the name that the dataflow gives it.

    Attributes
    ----------
    name : str
    """

    name: str
    op: ClassVar[str] = "import"

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_name(self, "name", self.name)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Nothing."""
        return ()

    def parts(self) -> dict[str, object]:
        """Return the name."""
        return {"name": self.name}


@dataclass(frozen=True, slots=True)
class FilterNode(Node):
    """Rows for which a condition holds.

    Attributes
    ----------
    of : Node
    where : str
        SQL text, as `Stream.filter` takes it.
    """

    of: Node
    where: str
    op: ClassVar[str] = "filter"

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_name(self, "where", self.where)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What is filtered."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return the condition."""
        return {"where": self.where}


@dataclass(frozen=True, slots=True)
class SelectNode(Node):
    """Columns, in this order and under these names.

    Attributes
    ----------
    of : Node
    columns : tuple of (str, str)
        The name that comes out, and the column that it is. In JSON a list of the names that come out, and an object
        ``renamed`` for those that are called otherwise in the input.
    """

    of: Node
    columns: tuple[tuple[str, str], ...]
    op: ClassVar[str] = "select"

    def __post_init__(self) -> None:
        """Check what was given."""
        for new, old in self.columns:
            _check_name(self, "columns", new)
            _check_name(self, "columns", old)
        _check_once(self, "columns", [new for new, _ in self.columns])
        if not self.columns:
            raise _wrong(self, "no columns", "name the columns that come out")

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What columns are chosen of."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return columns, and those renamed if there are any."""
        renamed = {new: old for new, old in self.columns if new != old}
        return {"columns": [new for new, _ in self.columns], **({"renamed": renamed} if renamed else {})}


@dataclass(frozen=True, slots=True)
class AggregateNode(Node):
    """Values of groups: of all rows there are, or of those of each time.

    Attributes
    ----------
    of : Node
    by : tuple of str
    values : tuple of (str, str, str or None)
        The name that comes out, what is computed (count, sum, avg, min or max), and of which column; None counts rows.
        Kept in the order of their names.
    over : "history" or "time"
    """

    of: Node
    by: tuple[str, ...]
    values: tuple[_Value, ...]
    over: Literal["history", "time"] = "history"
    op: ClassVar[str] = "aggregate"

    def __post_init__(self) -> None:
        """Check and sort what was given."""
        _check_names(self, "by", self.by)
        for name, kind, column in self.values:
            _check_name(self, "values", name)
            if kind not in _KINDS:
                raise _wrong(self, f"values {name}={shown([kind])}", f"choose among {', '.join(_KINDS)}")
            if column is None and kind != "count":
                raise _wrong(self, f"values {name}={shown([kind])} of no column", "name the column after what it is")
            if column is not None:
                _check_name(self, "values", column)
        _check_once(self, "values", [name for name, _, _ in self.values])
        _check_once(self, "columns", [*self.by, *(name for name, _, _ in self.values)])
        if not self.values:
            raise _wrong(self, "no values", "give at least one; for the keys alone use op 'distinct'")
        if self.over not in ("history", "time"):
            raise _wrong(self, f"over={shown(self.over)}", "say 'history' or 'time'")
        object.__setattr__(self, "values", tuple(sorted(self.values, key=lambda value: value[0])))

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What is aggregated."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return groups, values and over what."""
        values = {name: [kind] if column is None else [kind, column] for name, kind, column in self.values}
        return {"by": list(self.by), "values": values, **({} if self.over == "history" else {"over": self.over})}


@dataclass(frozen=True, slots=True)
class LatestNode(Node):
    """The newest row of each key.

    Attributes
    ----------
    of : Node
    by : tuple of str
    order_by : tuple of (str, "desc" or "asc")
        Columns, and whether the greatest value is the newest, or the least. In JSON a column alone is ``desc``.
    """

    of: Node
    by: tuple[str, ...]
    order_by: tuple[_Order, ...]
    op: ClassVar[str] = "latest"

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_names(self, "by", self.by)
        _check_order(self, self.order_by)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What rows are chosen of."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return key and order."""
        return {"by": list(self.by), "order_by": _order_parts(self.order_by)}


@dataclass(frozen=True, slots=True)
class TopNode(Node):
    """The first n rows of each key.

    Attributes
    ----------
    of : Node
    n : int
    by : tuple of str
    order_by : tuple of (str, "desc" or "asc")
        Columns, and whether the greatest value is the first, or the least. In JSON a column alone is ``desc``.
    """

    of: Node
    n: int
    by: tuple[str, ...]
    order_by: tuple[_Order, ...]
    op: ClassVar[str] = "top"

    def __post_init__(self) -> None:
        """Check what was given."""
        if isinstance(self.n, bool) or not isinstance(self.n, int) or not 1 <= self.n < 1 << 31:
            raise _wrong(self, f"n={shown(self.n)}", "give how many rows to keep of each key: at least 1")
        _check_names(self, "by", self.by)
        _check_order(self, self.order_by)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What rows are chosen of."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return number, key and order."""
        return {"n": self.n, "by": list(self.by), "order_by": _order_parts(self.order_by)}


@dataclass(frozen=True, slots=True)
class JoinNode(Node):
    """Rows of two inputs that agree in some columns: of the same time, or as of the time of the left one.

    Attributes
    ----------
    left, right : Node
    on : tuple of str
    how : "inner" or "left"
    as_of : bool
        Whether the right side is a collection, of which all rows are paired that are there at the time of a row.
    """

    left: Node
    right: Node
    on: tuple[str, ...]
    how: Literal["inner", "left"] = "inner"
    as_of: bool = False
    op: ClassVar[str] = "join"

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_names(self, "on", self.on)
        if not self.on:
            raise _wrong(self, "on=[]", "name the columns to join on")
        if self.how not in ("inner", "left"):
            raise _wrong(self, f"how={shown(self.how)}", "say 'inner' or 'left'")
        if not isinstance(self.as_of, bool):
            raise _wrong(self, f"as_of={shown(self.as_of)}", "say true or false")

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Both sides."""
        return (self.left, self.right)

    def parts(self) -> dict[str, object]:
        """Return columns and kind."""
        how = {} if self.how == "inner" else {"how": self.how}
        return {"on": list(self.on), **how, **({"as_of": True} if self.as_of else {})}


@dataclass(frozen=True, slots=True)
class ConcatNode(Node):
    """All rows of several inputs.

    Attributes
    ----------
    of : tuple of Node
        At least two.
    """

    of: tuple[Node, ...]
    op: ClassVar[str] = "concat"

    def __post_init__(self) -> None:
        """Check what was given."""
        if len(self.of) < 2:
            raise _wrong(self, f"{len(self.of)} inputs", "give at least two")

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What is put together."""
        return self.of

    def parts(self) -> dict[str, object]:
        """Return nothing: its inputs are all."""
        return {}


@dataclass(frozen=True, slots=True)
class _Simple(Node):
    of: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it is made from."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return nothing: its input is all."""
        return {}


@dataclass(frozen=True, slots=True)
class DistinctNode(_Simple):
    """Each row once.

    Attributes
    ----------
    of : Node
    """

    op: ClassVar[str] = "distinct"


@dataclass(frozen=True, slots=True)
class NegateNode(_Simple):
    """The negation of its input: what that adds is taken away, and the reverse.

    Attributes
    ----------
    of : Node
    """

    op: ClassVar[str] = "negate"


@dataclass(frozen=True, slots=True)
class ConsolidateNode(_Simple):
    """One update for each row that changes at a time.

    Attributes
    ----------
    of : Node
    """

    op: ClassVar[str] = "consolidate"


@dataclass(frozen=True, slots=True)
class AsUpdatesNode(Node):
    """Events as updates of a collection.

    Attributes
    ----------
    of : Node
    diff : str or None
        A column that says how often each row is added. Once unless given.
    """

    of: Node
    diff: str | None = None
    op: ClassVar[str] = "as_updates"

    def __post_init__(self) -> None:
        """Check what was given."""
        if self.diff is not None:
            _check_name(self, "diff", self.diff)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The events."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return the column, if there is one."""
        return {} if self.diff is None else {"diff": self.diff}


@dataclass(frozen=True, slots=True)
class FunctionNode(Node):
    """A function of Python that is called for each row, as in `Stream.map`.

    Attributes
    ----------
    of : Node
    name : str
        Of the function, as the process that gave it calls it.
    """

    of: Node
    name: str
    op: ClassVar[str] = "function"

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_name(self, "name", self.name)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What the function is given."""
        return (self.of,)

    def parts(self) -> dict[str, object]:
        """Return the name."""
        return {"name": self.name}


@dataclass(frozen=True, slots=True)
class TaskNode(Node):
    """A continual task: SQL that is run at each time at which an input has rows. It is the root of its plan.

    What the parts mean is said by `spark_timely.ContinualTask`. What it reads has the names of imports.

    Attributes
    ----------
    sql : str
        The body.
    reads : tuple of (str, str)
        Import, and how the body sees it: ``inserts`` or ``deletes`` of an input, ``contents`` or ``newest`` of a
        reference. Kept in the order of their names. In JSON two objects, ``inputs`` and ``references``; a list of
        names is short for inserts, and for contents.
    as_of : int or str
        ``earliest``, ``latest``, or a time as JSON has it.
    snapshot, forgotten : bool
    expect : tuple of (str, str, str)
        Name, condition, and what becomes of a row for which it does not hold; kept in the order of their names.
    functions : tuple of str
    replaces : str or None

    Examples
    --------
    >>> task = TaskNode("SELECT * FROM orders JOIN rates USING (k)", (("rates", "contents"), ("orders", "inserts")))
    >>> Plan(task).imports, task.reads
    (('orders', 'rates'), (('orders', 'inserts'), ('rates', 'contents')))
    """

    sql: str
    reads: tuple[tuple[str, str], ...]
    as_of: int | str = "earliest"
    snapshot: bool = False
    forgotten: bool = False
    expect: tuple[_Expected, ...] = ()
    functions: tuple[str, ...] = ()
    replaces: str | None = None
    op: ClassVar[str] = "task"

    def __post_init__(self) -> None:
        """Check and sort what was given."""
        _check_name(self, "sql", self.sql)
        _check_names(self, "names", tuple(name for name, _ in self.reads))
        for name, how in self.reads:
            if how not in (*_INPUTS, *_REFERENCES):
                raise _wrong(self, f"{name}={shown(how)}", f"choose among {', '.join((*_INPUTS, *_REFERENCES))}")
        if not any(how in _INPUTS for _, how in self.reads):
            raise _wrong(self, "no inputs", "name at least one: the task writes where an input has rows")
        if isinstance(self.as_of, bool) or not isinstance(self.as_of, int | str):
            raise _wrong(self, f"as_of={shown(self.as_of)}", "say 'earliest', 'latest' or a time")
        for flag in ("snapshot", "forgotten"):
            if not isinstance(getattr(self, flag), bool):
                raise _wrong(self, f"{flag}={shown(getattr(self, flag))}", "say true or false")
        _check_names(self, "expect", tuple(name for name, _, _ in self.expect))
        for name, condition, otherwise in self.expect:
            _check_name(self, f"expect[{name!r}]", condition)
            if otherwise not in _OTHERWISE:
                raise _wrong(self, f"expect[{name!r}]={shown(otherwise)}", f"choose among {', '.join(_OTHERWISE)}")
        _check_names(self, "functions", self.functions)
        if self.replaces is not None:
            _check_name(self, "replaces", self.replaces)
        object.__setattr__(self, "reads", tuple(sorted(self.reads)))
        object.__setattr__(self, "expect", tuple(sorted(self.expect)))
        object.__setattr__(self, "functions", tuple(sorted(self.functions)))

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads: imports."""
        return tuple(ImportNode(name) for name, _ in self.reads)

    def parts(self) -> dict[str, object]:
        """Return the body, what it reads, and the options that are not as usual."""
        references = {name: how for name, how in self.reads if how in _REFERENCES}
        options: dict[str, object] = {
            "references": references,
            "snapshot": self.snapshot,
            "forgotten": self.forgotten,
            "expect": {name: [condition, otherwise] for name, condition, otherwise in self.expect},
            "functions": list(self.functions),
            "replaces": self.replaces,
        }
        said = {name: value for name, value in options.items() if value}
        begins = {} if self.as_of == "earliest" else {"as_of": self.as_of}
        return {"sql": self.sql, "inputs": {name: how for name, how in self.reads if how in _INPUTS}, **begins, **said}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a dataflow.

    Attributes
    ----------
    root : Node
        What comes out.

    Examples
    --------
    >>> plan = Plan(AggregateNode(FilterNode(ImportNode("orders"), "euro > 10"), ("k",), (("n", "count", None),)))
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
            if isinstance(node, TaskNode) and depth > 1:  # invariant 4
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
    >>> imports_of(Plan(ConcatNode((ImportNode("b"), ImportNode("a"), ImportNode("b")))))
    ('a', 'b')
    """
    return tuple(sorted({node.name for _, _, node in _walked(plan.root) if isinstance(node, ImportNode)}))


def functions_of(plan: Plan, /) -> tuple[str, ...]:
    """Return the names of the functions of Python that a plan calls, sorted, each once.

    Examples
    --------
    >>> functions_of(Plan(DistinctNode(FunctionNode(ImportNode("words"), "loud"))))
    ('loud',)
    """
    return tuple(sorted({node.name for _, _, node in _walked(plan.root) if isinstance(node, FunctionNode)}))


def is_task(text: str, /) -> bool:
    """Return whether the text of a plan is that of a continual task; of a plan that cannot be read it is not.

    Examples
    --------
    >>> is_task(Plan(TaskNode("SELECT * FROM a", (("a", "inserts"),))).text), is_task('{"op": "magic"}')
    (True, False)
    """
    found = json.loads(text)
    return isinstance(found, dict) and found.get("op") == TaskNode.op


def with_functions(plan: Plan, names: Mapping[str, str], /) -> Plan:
    """Return a plan whose functions of Python have other names.

    Parameters
    ----------
    plan : Plan
    names : mapping of str to str
        Of all functions that it calls.

    Examples
    --------
    >>> with_functions(Plan(FunctionNode(ImportNode("words"), "loud")), {"loud": "loud 1"}).root
    FunctionNode(of=ImportNode(name='words'), name='loud 1')
    """
    return Plan(_with_functions(plan.root, names)) if functions_of(plan) else plan


def _with_functions(node: Node, names: Mapping[str, str]) -> Node:
    changed: dict[str, Any] = {}
    for part in ("of", "left", "right"):  # where nodes have their inputs
        found = getattr(node, part, None)
        if isinstance(found, Node):
            changed[part] = _with_functions(found, names)
        elif found is not None:
            changed[part] = tuple(_with_functions(each, names) for each in found)
    if isinstance(node, FunctionNode):
        changed["name"] = names[node.name]
    return replace(node, **changed) if changed else node  # type: ignore[type-var]  # each node is a dataclass


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
    >>> places("plan", JoinNode(ImportNode("a"), ImportNode("b"), ("k",)))[1][0]
    'plan.of[1]'
    """
    if isinstance(node, TaskNode):
        parts = ["inputs" if how in _INPUTS else "references" for _, how in node.reads]
        return [(f"{place}.{part}", each) for part, each in zip(parts, node.inputs, strict=True)]
    listed = isinstance(node, JoinNode | ConcatNode)
    return [(f"{place}.of[{i}]" if listed else f"{place}.of", each) for i, each in enumerate(node.inputs)]


# Text --------------------------------------------------------------------------------------------


def plan_text(plan: Plan, /) -> str:
    """Return the text of a plan: JSON with sorted keys, without spaces and without what is not said otherwise.

    Examples
    --------
    >>> plan_text(Plan(LatestNode(ImportNode("orders"), ("id",), (("at", "desc"),))))
    '{"by":["id"],"of":{"name":"orders","op":"import"},"op":"latest","order_by":["at"]}'
    """
    return json.dumps(_json_of(plan.root), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _json_of(node: Node) -> dict[str, object]:
    inputs = [] if isinstance(node, TaskNode) else [_json_of(each) for each in node.inputs]
    below: dict[str, object] = {}
    if inputs:
        below["of"] = inputs if isinstance(node, JoinNode | ConcatNode) else inputs[0]
    return {"op": node.op, **below, **node.parts()}


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
    >>> parse_plan('{"op": "filter", "of": {"op": "import", "name": "orders"}, "where": "euro > 10"}').root
    FilterNode(of=ImportNode(name='orders'), where='euro > 10')
    """
    if not isinstance(text, str):
        msg = f"could not read a plan: found {shown(text)}"
        raise InvalidUsageError(msg, hint="give JSON as a text")
    try:
        found = json.loads(text, object_pairs_hook=_once)
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
            raise _misread(place, shown(found), 'give an object, such as {"op": "import", "name": "orders"}')
        facts = _Facts(found, place, lambda value, where: self.node(value, where, depth + 1))
        op = facts.text("op")
        if op not in _READ:
            raise _misread(place, f"op={shown(op)}", f"use one of {', '.join(sorted(_READ))}")
        facts.op = op
        try:
            made = _READ[op](facts)
        except InvalidUsageError as error:
            if "node" not in error.context:
                error.locate(f"at {place}", node=place)
            raise
        facts.close()
        return made


class _Facts:
    """The parts of one node, each to be taken once."""

    def __init__(self, found: dict[str, Any], place: str, node: Callable[[object, str], Node]) -> None:
        self._left, self._place, self._node = dict(found), place, node
        self.op = ""

    def _take(self, name: str, kind: type, written: str) -> Any:  # noqa: ANN401 - of the kind asked for
        if name not in self._left:
            of = f" for op {self.op!r}" if self.op else ""
            raise _misread(self._place, f"no {name!r}{of}", f"give {written}")
        value = self._left.pop(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _misread(self._place, f"{name}={shown(value)}", f"give {written}")
        return value

    def has(self, name: str) -> bool:
        """Return whether a part is given."""
        return name in self._left

    def text(self, name: str) -> str:
        """Return a text."""
        found: str = self._take(name, str, "a text")
        return found

    def number(self, name: str) -> int:
        """Return a whole number."""
        found: int = self._take(name, int, "a whole number")
        return found

    def flag(self, name: str) -> bool:
        """Return true or false."""
        found: bool = self._take(name, bool, "true or false")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        found = self._take(name, list, "a list of texts")
        if not all(isinstance(each, str) for each in found):
            raise _misread(self._place, f"{name}={shown(found)}", "give a list of texts")
        return tuple(found)

    def order(self) -> tuple[_Order, ...]:
        """Return columns and their directions."""
        found = []
        hint = 'give columns, the greatest first, or pairs such as ["price", "asc"]'
        for each in self._take("order_by", list, "a list of columns"):
            pair = [each, "desc"] if isinstance(each, str) else each
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise _misread(self._place, f"order_by={shown(each)}", hint)
            found.append((pair[0], pair[1]))
        return tuple(found)

    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return columns that come out, each with what it is called in the input."""
        names = list(self.texts("columns")) if self.has("columns") else []
        renamed = self._take("renamed", dict, "an object of texts") if self.has("renamed") else {}
        if not all(isinstance(old, str) for old in renamed.values()):
            raise _misread(self._place, f"renamed={shown(renamed)}", "give an object of texts")
        names += sorted(set(renamed) - set(names))
        return tuple((name, renamed.get(name, name)) for name in names)

    def values(self) -> tuple[_Value, ...]:
        """Return values of an aggregate."""
        found: list[_Value] = []
        for name, value in self._take("values", dict, 'an object such as {"n": ["count"]}').items():
            known = isinstance(value, list) and len(value) in (1, 2) and all(isinstance(each, str) for each in value)
            if not known:
                hint = 'give a list: ["count"], or what to compute and of which column, ["sum", "euro"]'
                raise _misread(self._place, f"values {name}={shown(value)}", hint)
            found.append((name, value[0], value[1] if len(value) == 2 else None))
        return tuple(found)

    def shown_logs(self, name: str, usual: str) -> tuple[tuple[str, str], ...]:
        """Return names of what a task reads, each with how it is seen."""
        hint = f'give names, or an object such as {{"orders": "{usual}"}}'
        found = self._left.pop(name, {})
        given = dict.fromkeys(found, usual) if _are_texts(found) else found
        if not isinstance(given, dict) or not _are_texts(list(given.values())) or len(given) != len(found):
            raise _misread(self._place, f"{name}={shown(found)}", hint)
        known = _INPUTS if usual in _INPUTS else _REFERENCES
        wrong = next((how for how in given.values() if how not in known), None)
        if wrong is not None:
            raise _misread(self._place, f"{name} shown as {shown(wrong)}", f"choose among {', '.join(known)}")
        return tuple(given.items())

    def begins(self) -> int | str:
        """Return when a task begins."""
        value = self._left.pop("as_of", "earliest")
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise _misread(self._place, f"as_of={shown(value)}", "say 'earliest', 'latest' or a time")
        return value

    def expected(self) -> tuple[_Expected, ...]:
        """Return conditions on what a task writes."""
        found: list[_Expected] = []
        for name, value in (self._take("expect", dict, "an object") if self.has("expect") else {}).items():
            each = [value, "fail"] if isinstance(value, str) else value
            if not _are_texts(each) or len(each) != 2:
                hint = 'give a condition, or a condition and what becomes of other rows: ["n > 0", "drop"]'
                raise _misread(self._place, f"expect {name}={shown(value)}", hint)
            found.append((name, each[0], each[1]))
        return tuple(found)

    def of(self) -> Node:
        """Return the input."""
        return self._node(self._take("of", dict, "a node"), f"{self._place}.of")

    def all_of(self) -> tuple[Node, ...]:
        """Return the inputs."""
        found = self._take("of", list, "a list of nodes")
        return tuple(self._node(each, f"{self._place}.of[{i}]") for i, each in enumerate(found))

    def two(self) -> tuple[Node, Node]:
        """Return both sides of a join."""
        found = self.all_of()
        if len(found) != 2:
            raise _misread(self._place, f"{len(found)} inputs of op 'join'", "give two: left and right")
        return found[0], found[1]

    def close(self) -> None:
        """Refuse what nobody took."""
        if self._left:
            name = min(self._left)
            raise _misread(self._place, f"part {shown(name)} of op {self.op!r}", "leave it out: it is not known")


def _read_join(facts: _Facts) -> Node:
    left, right = facts.two()
    how: Any = facts.text("how") if facts.has("how") else "inner"
    return JoinNode(left, right, facts.texts("on"), how, facts.flag("as_of") if facts.has("as_of") else False)


def _read_aggregate(facts: _Facts) -> Node:
    over: Any = facts.text("over") if facts.has("over") else "history"
    return AggregateNode(facts.of(), facts.texts("by"), facts.values(), over)


def _read_task(facts: _Facts) -> Node:
    reads = (*facts.shown_logs("inputs", "inserts"), *facts.shown_logs("references", "contents"))
    return TaskNode(
        facts.text("sql"),
        reads,
        facts.begins(),
        snapshot=facts.flag("snapshot") if facts.has("snapshot") else False,
        forgotten=facts.flag("forgotten") if facts.has("forgotten") else False,
        expect=facts.expected(),
        functions=facts.texts("functions") if facts.has("functions") else (),
        replaces=facts.text("replaces") if facts.has("replaces") else None,
    )


_READ: Final[Mapping[str, Callable[[_Facts], Node]]] = {
    "import": lambda facts: ImportNode(facts.text("name")),
    "filter": lambda facts: FilterNode(facts.of(), facts.text("where")),
    "select": lambda facts: SelectNode(facts.of(), facts.columns()),
    "aggregate": _read_aggregate,
    "latest": lambda facts: LatestNode(facts.of(), facts.texts("by"), facts.order()),
    "top": lambda facts: TopNode(facts.of(), facts.number("n"), facts.texts("by"), facts.order()),
    "join": _read_join,
    "distinct": lambda facts: DistinctNode(facts.of()),
    "concat": lambda facts: ConcatNode(facts.all_of()),
    "as_updates": lambda facts: AsUpdatesNode(facts.of(), facts.text("diff") if facts.has("diff") else None),
    "negate": lambda facts: NegateNode(facts.of()),
    "consolidate": lambda facts: ConsolidateNode(facts.of()),
    "function": lambda facts: FunctionNode(facts.of(), facts.text("name")),
    "task": _read_task,
}


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(each, str) for each in found)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key is there twice"
        raise ValueError(msg)
    return found


# Checks ------------------------------------------------------------------------------------------


def _wrong(node: Node, found: str, hint: str) -> InvalidUsageError:
    return InvalidUsageError(f"could not plan {node.op!r}: found {found}", hint=hint)


def _misread(place: str, found: str, hint: str) -> InvalidUsageError:
    msg = f"could not read a plan: found {found} at {place}"
    return InvalidUsageError(msg, hint=hint, context={"node": place})


def _too_large(place: str, nodes: int | None = None) -> InvalidUsageError:
    found = f"more than {MAX_DEPTH} nodes one upon another" if nodes is None else f"{nodes} nodes"
    msg = f"could not plan a dataflow: found {found} at {place}"
    hint = f"use at most {MAX_NODES} nodes, {MAX_DEPTH} of them one upon another; export what is between, and import it"
    return InvalidUsageError(msg, hint=hint, context={"node": place})


def _check_name(node: Node, part: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise _wrong(node, f"{part}={shown(value)}", "give a text that is not empty")


def _check_names(node: Node, part: str, values: tuple[str, ...]) -> None:
    for value in values:
        _check_name(node, part, value)
    _check_once(node, part, values)


def _check_once(node: Node, part: str, names: tuple[str, ...] | list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _wrong(node, f"{part} with {shown(twice[0])} twice", "name each once")


def _check_order(node: Node, order: tuple[_Order, ...]) -> None:
    _check_names(node, "order_by", tuple(column for column, _ in order))
    for column, way in order:
        if way not in ("asc", "desc"):
            raise _wrong(node, f"order_by={shown([column, way])}", "say 'asc' or 'desc'")
    if not order:
        raise _wrong(node, "order_by=[]", "name the columns that say which row is newer or greater")


def _order_parts(order: tuple[_Order, ...]) -> list[object]:
    return [column if way == "desc" else [column, way] for column, way in order]
