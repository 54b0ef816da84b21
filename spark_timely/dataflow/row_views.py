"""Operators that make each row from one row: filter, select, map, flat_map, concat, delay, inspect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from spark_timely.dataflow.delays import BoundDelay
from spark_timely.dataflow.view import Names, View, function_name, with_times
from spark_timely.errors import OperatorError
from spark_timely.log.files.parquet import conform
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = [
    "ROW",
    "Concat",
    "Delayed",
    "Filter",
    "FlatMapped",
    "Hinted",
    "Inspected",
    "Mapped",
    "Select",
    "check_flat_mapped",
    "check_mapped",
]

ROW = "_row"
"""Column in which the function of `flat_map` says from which row a row is made."""


@dataclass(frozen=True, eq=False)
class Filter(View):
    """The rows for which a condition holds; those for which it is null go.

    Attributes
    ----------
    condition : pyarrow.compute.Expression
    columns : tuple of str
        Payload columns that it looks at.
    text : str
        The condition as it was given, for people.
    sql : str or None
        The condition as SQL, if it was given so.
    """

    condition: pc.Expression = None
    columns: Names = ()
    text: str = ""
    sql: str | None = None

    def describe(self) -> str:
        """Return the condition."""
        return self.text

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns wanted and those of the condition."""
        return (tuple(dict.fromkeys((*wanted, *self.columns))),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Keep rows."""
        return tables[0].filter(self.condition).select(self._times(wanted))


@dataclass(frozen=True, eq=False)
class Select(View):
    """Columns computed from columns, row by row.

    Attributes
    ----------
    expressions : dict of str to pyarrow.compute.Expression
        By column that comes out.
    columns : tuple of str
        Payload columns that they look at.
    """

    expressions: Mapping[str, pc.Expression] = field(default_factory=dict)
    columns: Names = ()

    def describe(self) -> str:
        """Return what is computed."""
        return ", ".join(name if str(x) == name else f"{name}={x}" for name, x in self.expressions.items())

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns of all expressions."""
        return (self.columns,)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Compute the columns."""
        names = self._times(wanted)
        chosen = [self.expressions.get(name, pc.field(name)) for name in names]
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(tables[0]))
        project = acero.Declaration("project", acero.ProjectNodeOptions(chosen, list(names)), [source])
        made = project.to_table(use_threads=False)
        payload = conform(made.select(wanted), pa.schema([self.schema.field(name) for name in wanted]))
        return with_times(made.select(self.domain.columns), payload)


@dataclass(frozen=True, eq=False)
class Mapped(View):
    """What a function makes of the rows: one row each, at its time.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns, gives one of payload columns with as many rows.
    columns : tuple of str
        Payload columns that it gets.
    named : bool
        Whether these were named, or are simply all.
    """

    function: Callable[[pa.Table], pa.Table] = field(default=lambda table: table)
    columns: Names = ()
    named: bool = False

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return (self.columns,)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, and check what it gave."""
        rows = tables[0]
        payload = check_mapped(self.domain, rows, self.function(rows))
        made = conform(payload, self.schema, what="what the function gave")
        return with_times(rows.select(self.domain.columns), made.select(wanted))


def check_mapped(domain: TimeDomain, rows: pa.Table, made: object) -> pa.Table:
    """Return the payload of what a function made of rows, one for one; refuse rows that came, went or moved."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {type(made).__name__!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint="let the function give a pyarrow.Table with one row for each that it got")
    if made.num_rows != rows.num_rows:
        msg = f"{made.num_rows} rows for {rows.num_rows}"
        raise OperatorError(msg, hint="map gives one row for each that it got; use filter to drop rows")
    for name in domain.columns:
        if name in made.schema.names:
            moved = pc.not_equal(made.column(name), rows.column(name))
            if moved.null_count or pc.any(moved).as_py():
                at = pc.index(pc.fill_null(moved, True), value=True).as_py()  # noqa: FBT003 - as Arrow has it
                before, after = rows.column(name)[at].as_py(), made.column(name)[at].as_py()
                msg = f"time {name}={after!r} for a row of {name}={before!r}"
                raise OperatorError(msg, hint="only delay moves times")
    return made.drop_columns([name for name in domain.columns if name in made.schema.names])


@dataclass(frozen=True, eq=False)
class FlatMapped(View):
    """What a function makes of the rows: any number of each, at its time.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns; gives one of payload columns, and of `ROW`: the number of the
        row from which each is made.
    columns : tuple of str
        Payload columns that it gets.
    named : bool
        Whether these were named, or are simply all.
    """

    function: Callable[[pa.Table], pa.Table] = field(default=lambda table: table)
    columns: Names = ()
    named: bool = False

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return (self.columns,)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, and give each row the time of the one that it is made from."""
        rows = tables[0]
        payload, places = check_flat_mapped(rows, self.function(rows))
        made = conform(payload, self.schema, what="what the function gave")
        return with_times(rows.select(self.domain.columns).take(places), made.select(wanted))


def check_flat_mapped(rows: pa.Table, made: object) -> tuple[pa.Table, pa.Array]:
    """Return the payload of what a function made of rows, and the number of the row that each is made from."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {type(made).__name__!r}, not a pyarrow.Table"
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
class Inspected(View):
    """Its input as it is; a function is shown the rows.

    Attributes
    ----------
    function : callable
        Takes a table of time and payload columns, and the range of times that is being computed.
    """

    function: Callable[[pa.Table, Antichain, Antichain], object] = field(default=lambda *_: None)

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return all columns: the function is shown all."""
        return (tuple(self.schema.names),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Hand the rows on."""
        return tables[0].select(self._times(wanted))

    def apply_range(self, tables: Sequence[pa.Table], wanted: Names, lo: Antichain, hi: Antichain) -> pa.Table:
        """Show the rows, and hand them on."""
        self.function(tables[0], lo, hi)
        return self.apply(tables, wanted)


@dataclass(frozen=True, eq=False)
class Hinted(View):
    """Its input as it is, with a hint for the plan of Spark's DataFrames.

    Attributes
    ----------
    kind : {"exchange", "broadcast"}
    columns : tuple of str
        By which rows are exchanged.
    """

    kind: str = "exchange"
    columns: Names = ()

    def describe(self) -> str:
        """Return the columns."""
        return ", ".join(self.columns)

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns wanted, and those by which rows are exchanged."""
        return (tuple(dict.fromkeys((*wanted, *self.columns))),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Hand the rows on."""
        return tables[0].select(self._times(wanted))


@dataclass(frozen=True, eq=False)
class Concat(View):
    """The rows of all inputs."""

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Put the tables behind each other."""
        names = self._times(wanted)
        schema = self.empty().schema
        parts = [table.select(names).cast(pa.schema([schema.field(name) for name in names])) for table in tables]
        return pa.concat_tables(parts)


@dataclass(frozen=True, eq=False)
class Delayed(View):
    """The rows of its input at later times.

    Attributes
    ----------
    delay : BoundDelay
    """

    delay: BoundDelay = None  # type: ignore[assignment]

    def describe(self) -> str:
        """Return the delay."""
        return self.delay.describe()

    def front_of(self, frontiers: Sequence[Antichain]) -> Antichain:
        """Return the frontier behind the delay."""
        return self.delay.front(frontiers[0])

    def back_of(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay."""
        return self.delay.back(frontier)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Move the times."""
        table = tables[0]
        before = self.domain.from_columns(table)
        after, ok = self.delay.forward(before)
        if not ok.all():
            time = self.domain.render_time(before[int(np.flatnonzero(~ok)[0])].tolist())
            msg = f"time={time!r}, which it would delay past the greatest time of its type"
            raise OperatorError(msg, hint="drop such rows before the delay")
        return with_times(pa.table(self.domain.to_columns(after)), table.select(wanted))
