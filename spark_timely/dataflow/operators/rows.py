"""Operators of rows: conditions, columns, functions of the user, and streams put together.

None of them needs more than one row at a time, so views of them run on any cut of a range (`Operator.rowwise`).
`Filter`, `Branch`, `Select`, `Map` and `FlatMap` take one stream, `Concat` several; `Inspect` shows rows to a function.
They are methods of `Stream`; plans and SQL have some of them. Operators that need all rows of a time are in `grouped`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from spark_timely.dataflow.operators.checks import (
    check_column,
    check_function,
    columns_of,
    condition_of,
    seen_of,
    tried,
    type_of,
    types_of,
)
from spark_timely.dataflow.operators.plan_json import Columns, Text, in_plan
from spark_timely.dataflow.operators.texts import columns_text, expression_text, function_name, function_text
from spark_timely.dataflow.views import Before, Names, Operator, View, joined, with_times
from spark_timely.errors import InvalidUsageError, OperatorError, SchemaMismatchError, kind_of, shown
from spark_timely.log.files.format import conform
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = ["ROW", "Branch", "Concat", "Filter", "FlatMap", "Inspect", "Map", "Select"]

ROW = "_row"
"""Column in which the function of `flat_map` says from which row a row is made."""


@dataclass(frozen=True, eq=False)
class Filter(Operator):
    """The rows for which a condition holds; those for which it is null go.

    Attributes
    ----------
    where : str or pyarrow.compute.Expression
        The condition: SQL, or an expression.
    text : str
        The condition for people, where it is not as it was given.
    condition : pyarrow.compute.Expression
        Once it is bound.
    columns : tuple of str
        Payload columns that it looks at, once it is bound.
    """

    where: str | pc.Expression = field(metadata=in_plan(Text()))
    text: str = ""
    condition: pc.Expression = field(default=None, compare=False)  # follows from the others, and from the input
    columns: Names = field(default=(), compare=False)

    method = op = "filter"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Read the condition."""
        (source,) = inputs
        condition, columns = condition_of(name, source, self.where)
        return replace(self, condition=condition, columns=columns).view(name, source.schema, source)

    def describe(self) -> str:
        """Return the condition."""
        return self.text or str(self.where)

    def hashed(self, view: View) -> tuple[str, object]:
        """Return the condition as it was given."""
        return "filter", self.where if isinstance(self.where, str) else expression_text(self.condition)

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns wanted and those of the condition."""
        return (tuple(dict.fromkeys((*wanted, *self.columns))),)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Keep rows."""
        return tables[0].filter(self.condition).select(view.with_carried(wanted))


@dataclass(frozen=True, eq=False)
class Branch(Filter):
    """One of two parts of a stream: the rows for which a condition holds, or all others.

    Attributes
    ----------
    holds : bool
        Which part. Rows for which the condition is null are among the others.
    """

    holds: bool = True

    method = "branch"
    op = ""

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Read the condition, and let it never be null: so each row goes one way."""
        (source,) = inputs
        kept, columns = condition_of(name, source, self.where)
        condition = pc.coalesce(kept, pc.scalar(False))  # noqa: FBT003 - as Arrow has it
        bound = replace(self, condition=condition if self.holds else ~condition, columns=columns)
        return bound.view(f"{name}_{'holds' if self.holds else 'others'}", source.schema, source)

    def describe(self) -> str:
        """Return the condition."""
        return f"{'' if self.holds else 'not '}{self.where}"

    def hashed(self, view: View) -> tuple[str, object]:
        """Return the condition of this part."""
        if not isinstance(self.where, str):
            return "filter", expression_text(self.condition)
        return "filter", f"{'' if self.holds else 'NOT '}coalesce(({self.where}), false)"


@dataclass(frozen=True, eq=False)
class Select(Operator):
    """Columns that are kept or computed, row by row.

    Attributes
    ----------
    columns : tuple of (str, str or pyarrow.compute.Expression)
        The name that comes out, and what computes it, or that name again for a column that is kept; in a plan the name
        of any column. Once it is bound, what computes it.
    used : tuple of str
        Payload columns that they look at, once it is bound.
    """

    columns: tuple[tuple[str, str | pc.Expression], ...] = field(metadata=in_plan(Columns()))
    used: Names = field(default=(), compare=False)

    method = op = "select"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Find the columns, and what is computed."""
        (source,) = inputs
        wanted: dict[str, pc.Expression] = {}
        kept: set[str] = set()
        for column, each in self.columns:
            if each is column or (isinstance(each, str) and each == column):
                check_column(name, source, column)
                kept.add(column)
            elif column in wanted or not isinstance(each, pc.Expression):
                msg = f"could not add operator {name!r}: found {column}={shown(each)}"
                raise InvalidUsageError(msg, hint="give each column once, and expressions such as pc.field('a') + 1")
            wanted[column] = pc.field(column) if column in kept else each
        if not wanted:
            msg = f"could not add operator {name!r}: found no columns"
            raise InvalidUsageError(msg, hint="name columns to keep or to compute")
        used: dict[str, None] = {}
        fields = []
        for column, expression in wanted.items():
            used.update(dict.fromkeys(columns_of(name, source, expression)))
            found = source.schema.field(column) if column in kept else None
            fields.append(found or pa.field(column, type_of(name, source, column, expression)))
        return Select(tuple(wanted.items()), tuple(used)).view(name, pa.schema(fields), source)

    def describe(self) -> str:
        """Return what is computed."""
        return ", ".join(name if str(x) == name else f"{name}={x}" for name, x in self.columns)

    def hashed(self, view: View) -> tuple[str, object]:
        """Return all columns, as expressions."""
        return "select", [[name, expression_text(each)] for name, each in self.columns]

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns of all expressions."""
        return (self.used,)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Compute the columns."""
        names = view.with_carried(wanted)
        expressions = dict(self.columns)
        chosen = [expressions.get(name, pc.field(name)) for name in names]
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(tables[0]))
        project = acero.Declaration("project", acero.ProjectNodeOptions(chosen, list(names)), [source])
        made = project.to_table(use_threads=False)
        payload = conform(made.select(wanted), pa.schema([view.schema.field(name) for name in wanted]))
        return with_times(made.select(view.carried), payload)


@dataclass(frozen=True, eq=False)
class Map(Operator):
    """A user's function of rows that gives one row for each, at its time.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns, gives one of payload columns with as many rows. In a plan its name.
    columns : tuple of str or None
        Payload columns that it gets; None: all.
    """

    function: Callable[[pa.Table], pa.Table] | str = field(metadata=in_plan(Text("name")))
    columns: Names | None = None

    method = "map"
    op = "function"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Call the function without rows, for its columns."""
        (source,) = inputs
        check_function(name, self.function)
        given = self._given(source)
        for column in given:
            check_column(name, source, column)
        rows = seen_of(source, given)
        return self.view(name, tried(name, lambda: self._called(source, rows)[0]), source)

    def _given(self, source: View) -> Names:
        return tuple(source.schema.names) if self.columns is None else self.columns

    def _called(self, source: View, rows: pa.Table) -> tuple[pa.Table, pa.Array | None]:
        """Return what the function makes of rows, checked, and from which row each is made; None: one from each."""
        return check_mapped(source.domain, rows, self.function(rows)), None  # type: ignore[operator]  # of a plan it is bound

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def hashed(self, view: View) -> tuple[str, object]:
        """Return the function by its name, and the columns that it gets, where they were named, and gives."""
        return self.method, [function_text(self.function), self.columns, columns_text(view.schema)]

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return (self._given(view.inputs[0]),)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, check what it gave, and give each row the time of the one that it is made from."""
        (source,), (rows,) = view.inputs, tables
        payload, places = self._called(source, rows.select(source.seen(self._given(source))))
        made = conform(payload, view.schema, what="what the function gave")
        carried = rows.select(view.carried)
        return with_times(carried if places is None else carried.take(places), made.select(wanted))


@dataclass(frozen=True, eq=False)
class FlatMap(Map):
    """A user's function of rows that gives any number of rows for each, at its time.

    Its function gives, besides payload columns, `ROW`: the number of the row from which each is made.
    """

    method = "flat_map"
    op = ""

    def _called(self, source: View, rows: pa.Table) -> tuple[pa.Table, pa.Array | None]:
        return check_flat_mapped(rows, self.function(rows))  # type: ignore[operator]  # as above


def check_mapped(domain: TimeDomain, rows: pa.Table, made: object) -> pa.Table:
    """Return the payload of what a function made of rows, one for one; refuse rows that came, went or moved."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {kind_of(made)!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint="let the function give a pyarrow.Table with one row for each that it got")
    if made.num_rows != rows.num_rows:
        msg = f"{made.num_rows} rows for {rows.num_rows}"
        raise OperatorError(msg, hint="use filter to drop rows: map gives one row for each that it got")
    for name in domain.columns:
        if name in made.schema.names:
            moved = pc.not_equal(made.column(name), rows.column(name))
            if moved.null_count or pc.any(moved).as_py():
                at = pc.index(pc.fill_null(moved, True), value=True).as_py()  # noqa: FBT003 - as Arrow has it
                before, after = rows.column(name)[at].as_py(), made.column(name)[at].as_py()
                msg = f"time {name}={after!r} for a row of {name}={before!r}"
                raise OperatorError(msg, hint="leave the time columns as they are: only delay moves times")
    return made.drop_columns([name for name in domain.columns if name in made.schema.names])


def check_flat_mapped(rows: pa.Table, made: object) -> tuple[pa.Table, pa.Array]:
    """Return the payload of what a function made of rows, and the number of the row that each is made from."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {kind_of(made)!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint=f"let the function give a pyarrow.Table with a column {ROW!r}")
    hint = f"say in column {ROW!r} from which row each is made, counted from 0: pc.list_parent_indices does for lists"
    if ROW not in made.schema.names or not pa.types.is_integer(made.schema.field(ROW).type):
        msg = f"columns {made.schema.names!r}, none of them an integer {ROW!r}"
        raise OperatorError(msg, hint=hint)
    places = made.column(ROW).cast(pa.int64()).combine_chunks()
    ends = pc.min_max(places).as_py()
    if places.null_count or (len(places) and not 0 <= ends["min"] <= ends["max"] < rows.num_rows):
        msg = f"{ROW} from {ends['min']} to {ends['max']} with {places.null_count} nulls for {rows.num_rows} rows"
        raise OperatorError(msg, hint=hint)
    return made.drop_columns([ROW]), places


@dataclass(frozen=True, eq=False)
class Inspect(Operator):
    """Its input as it is; a function is shown the rows.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns, and the range of times that is being computed.
    """

    function: Callable[[pa.Table, Antichain, Antichain], object]

    method = "inspect"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Check the function."""
        check_function(name, self.function)
        return self.view(name, inputs[0].schema, *inputs)

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def hashed(self, view: View) -> None:
        """Return that it makes no difference."""

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return all columns: the function is shown all."""
        return (tuple(view.schema.names),)

    def apply_range(
        self, view: View, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain, before: Before | None
    ) -> pa.Table:
        """Show the rows, and hand them on."""
        self.function(tables[0], lo, hi)
        return tables[0].select(view.with_carried(wanted))


@dataclass(frozen=True, eq=False)
class Concat(Operator):
    """The rows of all inputs."""

    method = op = "concat"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Check that all have the same columns."""
        first = inputs[0]
        fields = list(first.schema)
        for other in inputs[1:]:
            if other.updates != first.updates:
                events = other.name if first.updates else first.name
                msg = f"could not add operator {name!r}: found events of {events!r} beside updates of a collection"
                raise InvalidUsageError(msg, hint="make updates of them: as_updates()")
            differs = next((f for f in fields if f.name not in other.schema.names), None)
            differs = differs or next((f for f in fields if other.schema.field(f.name).type != f.type), None)
            if differs is not None or len(other.schema) != len(fields):
                msg = f"could not add operator {name!r}: found columns {shown(types_of(other.schema))}"
                raise SchemaMismatchError(msg, hint=f"give all streams the columns {shown(types_of(first.schema))}")
            both = [f.nullable or other.schema.field(f.name).nullable for f in fields]
            fields = [f.with_nullable(nullable) for f, nullable in zip(fields, both, strict=True)]
        return self.view(name, pa.schema(fields), *inputs)

    def hashed(self, view: View) -> tuple[str, object]:
        """Return its kind: its inputs say all."""
        return "concat", None

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Put the tables behind each other."""
        names = view.with_carried(wanted)
        schema = view.empty().schema
        parts = [table.select(names).cast(pa.schema([schema.field(name) for name in names])) for table in tables]
        return joined(parts)
