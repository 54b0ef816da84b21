"""Plans of dataflows, built: a plan becomes operators over the streams of its imports.

`spark_timely.compute.drive.runners` builds what it runs, and `description` checks by `shape_of` what could be built.
The plan as a value is in `spark_timely.compute.plan`, the operators in `spark_timely.dataflow.operators`.

The kind of an import decides what is made of it. The messages of a stream log are *events*, those of a collection
*updates*. Operators of rows (filter, select, concat), `distinct` and the left side of an as-of join take events as
events; all operators over all history take either, and give updates. Where a plan means a relation, as one of SQL does,
a stream log stands for all its messages so far: each is added once, at its time, and nothing is ever taken away. So
events that are put together with updates are taken as updates, and so are those that an index keeps (`as_collection`):
only a collection has contents at a time. On the right side of an as-of join they are not: to pair with all messages so
far is hardly ever meant, so the plan has to say it, by ``as_updates`` or ``latest``.

Invariants
----------
1. The output at a time is a function of what the imports hold at times up to it. So a condition over updates does not
   look at their times: these are not the times of rows, but of changes.
2. An error names the node of the plan that it is of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.compute.plan import Imported, Node, Plan, SqlTask, places
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.operators.history import Latest, Top
from spark_timely.dataflow.operators.rows import Concat, Filter, Map, Select
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import Replay
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError, shown
from spark_timely.predicate import parse_predicate
from spark_timely.time.domain import TimeDomain

if TYPE_CHECKING:
    from spark_timely.dataflow.operators.history import Order

__all__ = ["Function", "Shape", "as_collection", "build", "shape_of"]

Function: TypeAlias = Callable[[pa.Table], pa.Table]
"""Makes one row of each row, as `Stream.map` has it."""

_NO_FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType({})

# Columns of these names are made under others: `Stream.aggregate` takes values by name, and fingerprints have it so.
_TAKEN = ("by", "over")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a stream: its columns, and whether its rows are events or updates.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of the payload.
    kind : "stream" or "collection"
        What a log of it is: events, or updates of a collection.
    """

    schema: pa.Schema
    kind: Literal["stream", "collection"]


def build(
    plan: Plan,
    scope: Scope,
    imports: Mapping[str, Stream],
    /,
    *,
    functions: Mapping[str, Function] = _NO_FUNCTIONS,
) -> Stream:
    """Return the stream that a plan makes of streams.

    Parameters
    ----------
    plan : Plan
    scope : Scope
        The dataflow that the streams are of.
    imports : mapping of str to Stream
        By the names in the plan. Others are left alone.
    functions : mapping of str to callable, optional
        By the names in the plan. Others are left alone.

    Returns
    -------
    Stream
        Its columns are `Stream.schema`; ``Stream.view.rows_kind`` says whether it is a collection. See `as_collection`.

    Raises
    ------
    InvalidUsageError
        If an import or function is not there, or a node cannot be made of what it is given; the context's ``node`` says
        which.
    SchemaMismatchError
        If a column is missing, or of a type that does not fit.

    Examples
    --------
    >>> from spark_timely.compute.plan import parse_plan
    >>> from spark_timely.testing import rows_of, stream_of
    >>> text = '{"op": "filter", "of": {"op": "import", "name": "orders"}, "where": "euro > 10"}'
    >>> orders = stream_of({"_time": [1, 2], "euro": [5, 20]})
    >>> rows_of(build(parse_plan(text), orders._scope, {"orders": orders}))
    [{'_time': 2, 'euro': 20}]
    """
    for name, stream in imports.items():
        if not isinstance(stream, Stream) or stream._scope is not scope:
            msg = f"could not build a plan: found import {name!r}={shown(stream)}"
            raise InvalidUsageError(msg, hint="give streams of the same dataflow")
    return _built(plan.root, "plan", scope, imports, functions)


def as_collection(stream: Stream, /) -> Stream:
    """Return a stream as a collection: updates as they are, events each added once.

    An index and whatever is peeked have contents at a time: only a collection has these.

    Examples
    --------
    >>> from spark_timely.testing import rows_of, stream_of
    >>> rows_of(as_collection(stream_of({"_time": [1], "n": [5]})))
    [{'_time': 1, '_diff': 1, 'n': 5}]
    """
    return stream if stream.view.updates else stream.as_updates()


def shape_of(
    plan: Plan,
    imports: Mapping[str, Shape],
    /,
    *,
    domain: TimeDomain | None = None,
    functions: Mapping[str, Function] = _NO_FUNCTIONS,
) -> Shape:
    """Return columns and kind of what a plan makes, without any log: refuses what `build` refuses.

    Parameters
    ----------
    plan : Plan
    imports : mapping of str to Shape
    domain : TimeDomain, optional
        What times there are; one of type long unless given.
    functions : mapping of str to callable, optional

    Examples
    --------
    >>> from spark_timely.compute.plan import parse_plan
    >>> text = '{"op": "distinct", "of": {"op": "import", "name": "orders"}}'
    >>> shape_of(parse_plan(text), {"orders": Shape(pa.schema([("k", pa.string())]), "collection")}).kind
    'collection'
    """
    scope = Scope("plan")
    times = TimeDomain() if domain is None else domain
    # Logs without a place: nothing is read of them.
    given = {
        name: Stream(scope, Replay(scope.next_name("replay"), times, shape.schema, (), name, shape.kind))
        for name, shape in imports.items()
    }
    made = build(plan, scope, given, functions=functions)
    return Shape(made.schema, made.view.rows_kind)


def _built(
    node: Node, place: str, scope: Scope, imports: Mapping[str, Stream], functions: Mapping[str, Function]
) -> Stream:
    """Return the stream of a node; the depth of plans is limited."""
    below = [_built(each, where, scope, imports, functions) for where, each in places(place, node)]
    operator = node.operator
    try:
        if isinstance(operator, Imported):
            return _imported(operator.name, imports)
        if isinstance(operator, Map):
            return scope.apply(replace(operator, function=_named(str(operator.function), functions)), *below)
        return _made(node, scope, below)
    except TimelyError as error:
        error.locate(f"at {place} ({operator.op})", node=place)
        raise


def _imported(name: str, imports: Mapping[str, Stream]) -> Stream:
    if name not in imports:
        msg = f"could not import {name!r}: found no such name"
        raise InvalidUsageError(msg, hint=f"use one of the imports {shown(sorted(imports))}")
    return imports[name]


def _named(name: str, functions: Mapping[str, Function]) -> Function:
    if name not in functions:
        msg = f"could not call Python function {name!r}: found none of this name in this process"
        raise InvalidUsageError(msg, hint=f"give it with functions={{{name!r}: …}}, each time it is asked for")
    return functions[name]


def _made(node: Node, scope: Scope, below: list[Stream]) -> Stream:
    """Return what an operator makes."""
    match node.operator:
        case Filter(where=str(where)) if below[0].view.updates:
            # Only over the payload (invariant 1).
            types = {field.name: field.type for field in below[0].schema}
            parse_predicate(where, types, what="filter a collection")
        case Select(columns=columns):
            return _selected(below[0], columns)
        case Aggregate() as operator:
            return _aggregated(scope, below[0], operator)
        case Latest(order_by=order) | Top(order_by=order):
            _check_order(below[0], order)
        case Concat() if any(stream.view.updates for stream in below):
            below = [as_collection(stream) for stream in below]
        case SqlTask(reads=reads):
            msg = f"could not build a stream: found a continual task over {shown([name for name, _ in reads])}"
            raise InvalidUsageError(msg, hint="an instance runs it by itself; import what it exports")
    return scope.apply(node.operator, *below)


def _selected(stream: Stream, columns: tuple[tuple[str, Any], ...]) -> Stream:
    for _, old in columns:
        if old not in stream.schema.names:
            msg = f"could not select: found no column {shown(old)}"
            raise SchemaMismatchError(msg, hint=f"use one of the columns {shown(stream.schema.names)}")
    kept = [new for new, old in columns if new == old]
    made = stream.select(*kept, **{new: pc.field(old) for new, old in columns if new != old})
    wanted = [new for new, _ in columns]
    return made if made.schema.names == wanted else made.select(*wanted)


def _aggregated(scope: Scope, stream: Stream, operator: Aggregate) -> Stream:
    names = [*stream.schema.names, *operator.by, *operator.values]
    other = {name: _fresh(name, names) for name in operator.values if name in _TAKEN}
    values = {other.get(name, name): each for name, each in operator.values.items()}
    made = scope.apply(replace(operator, values=values), stream)
    if not other:
        return made
    back = {new: old for old, new in other.items()}
    return _selected(made, tuple((back.get(name, name), name) for name in made.schema.names))


def _fresh(name: str, taken: list[str]) -> str:
    while name in taken:
        name = f"{name}_"
    return name


def _check_order(stream: Stream, order: Order) -> None:
    """Refuse columns that are not there, and names which as texts could stand for a column and its direction."""
    for column, way in cast("Sequence[tuple[str, str]]", order):
        if column not in stream.schema.names:
            msg = f"could not order: found no column {shown(column)}"
            raise SchemaMismatchError(msg, hint=f"use one of the columns {shown(stream.schema.names)}")
        if way == "asc" and (" " in column or f"{column} asc" in stream.schema.names):
            msg = (
                f"could not order by {shown(column)}, the least first: found a name that {column!r} and 'asc' would be"
            )
            raise SchemaMismatchError(msg, hint="rename the column with select: one word, and no other begins with it")
