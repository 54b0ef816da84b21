"""How a dataflow is written down: streams, and the operators that make streams of them.

Everything that can be refused is refused here, naming the operator: before a query is started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.aggregates import Aggregation
from spark_timely.dataflow.delays import Delay
from spark_timely.dataflow.views import (
    Aggregate,
    Concat,
    Delayed,
    Filter,
    Join,
    Mapped,
    Select,
    View,
    check_mapped,
)
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, TimelyError, shown
from spark_timely.log.format import canonical_type

if TYPE_CHECKING:
    import os

    from spark_timely.dataflow.scope import Probe, Scope
    from spark_timely.log.delta import DeltaLog

__all__ = ["Stream"]


class Stream:
    """A stream of a dataflow: rows, each at a time, and a frontier. Made by `Dataflow.replay` and by operators.

    Parameters
    ----------
    scope : Scope
        The dataflow.
    view : View
        What it is.

    Examples
    --------
    >>> import tempfile
    >>> from spark_timely.dataflow.aggregates import count, max_of
    >>> from spark_timely.dataflow.delays import ceil_to
    >>> from spark_timely.dataflow.scope import Scope
    >>> from spark_timely.log.delta import create_log
    >>> schema = pa.schema([("origin", pa.string()), ("delay", pa.int64())])
    >>> flights = Scope("example").replay(create_log(tempfile.mkdtemp() + "/flights", schema))
    >>> late = flights.filter(pc.field("delay") > 15).select("origin", hours=pc.field("delay") / 60)
    >>> late.delay(ceil_to(24)).aggregate(by="origin", n=count(), worst=max_of("hours")).schema.names
    ['origin', 'n', 'worst']
    >>> flights.map(lambda rows: rows.select(["origin"])).concat(late.select("origin")).schema.names
    ['origin']
    >>> flights.join(late, on="origin").schema.names
    ['origin', 'delay', 'hours']
    """

    def __init__(self, scope: Scope, view: View) -> None:
        self._scope = scope
        self.view = view

    @property
    def schema(self) -> pa.Schema:
        """Columns of the payload."""
        return self.view.schema

    def __repr__(self) -> str:
        """Return the operator's name and the columns."""
        return f"Stream({self.view.name!r}, {shown(self.schema.names)})"

    # Row by row --------------------------------------------------------------------------------------

    def filter(self, condition: pc.Expression, /) -> Stream:
        """Keep the rows for which a condition holds; not those for which it is null.

        Parameters
        ----------
        condition : pyarrow.compute.Expression
            Over payload and time columns: ``pc.field("delay") > 15``.

        Raises
        ------
        InvalidUsageError
            If it is no expression, or none of these columns and types.
        """
        name = self._scope.next_name("filter")
        if not isinstance(condition, pc.Expression):
            msg = f"could not add operator {name!r}: found condition={shown(condition)}"
            raise InvalidUsageError(msg, hint="give an expression such as pyarrow.compute.field('delay') > 15")
        columns = self._columns_of(name, condition, pa.bool_())
        return self._made(Filter(name, self.view.domain, self.schema, (self.view,), condition, columns))

    def select(self, *columns: str, **expressions: pc.Expression) -> Stream:
        """Choose columns, and compute others row by row.

        Parameters
        ----------
        *columns : str
            Payload columns to keep.
        **expressions : pyarrow.compute.Expression
            What is computed, by the name of the column that comes out.

        Raises
        ------
        InvalidUsageError
            If a column is missing or named twice, or an expression does not fit.
        """
        name = self._scope.next_name("select")
        wanted: dict[str, pc.Expression] = {}
        for column in columns:
            self._check_column(name, column)
            wanted[column] = pc.field(column)
        for column, expression in expressions.items():
            if column in wanted or not isinstance(expression, pc.Expression):
                msg = f"could not add operator {name!r}: found {column}={shown(expression)}"
                raise InvalidUsageError(msg, hint="give each column once, and expressions such as pc.field('a') + 1")
            wanted[column] = expression
        if not wanted:
            msg = f"could not add operator {name!r}: found no columns"
            raise InvalidUsageError(msg, hint="name columns to keep or to compute")
        used: dict[str, None] = {}
        fields = []
        for column, expression in wanted.items():  # one turn per column
            used.update(dict.fromkeys(self._columns_of(name, expression, None)))
            kept = self.schema.field(column) if column in columns else None
            fields.append(kept or pa.field(column, self._type_of(name, column, expression)))
        return self._made(Select(name, self.view.domain, pa.schema(fields), (self.view,), wanted, tuple(used)))

    def map(self, function: Callable[[pa.Table], pa.Table], /, *, columns: Sequence[str] | None = None) -> Stream:
        """Make one row of each row, by a function of Arrow tables.

        Parameters
        ----------
        function : callable
            Takes a pyarrow Table with the time columns and payload columns of some rows; gives one with
            as many rows in the same order. What it gives may depend on the row alone: which rows come
            together is nothing to rely on. It is called once at once, without rows, for its columns.
        columns : sequence of str, optional
            Payload columns that it gets; all unless given. Naming them spares reading the others.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.
        """
        name = self._scope.next_name("map")
        given = tuple(self.schema.names if columns is None else columns)
        for column in given:
            self._check_column(name, column)
        rows = self.view.empty().select([*self.view.domain.columns, *given])
        try:
            made = check_mapped(self.view.domain, rows, function(rows))
            schema = pa.schema([pa.field(f.name, canonical_type(f.type, f.name)) for f in made.schema])
        except Exception as error:
            text = error.message if isinstance(error, TimelyError) else f"{type(error).__name__}: {error}"
            msg = f"could not add operator {name!r}: called without rows its function gave {text}"
            raise InvalidUsageError(
                msg, hint="let the function give its columns also for a table without rows"
            ) from error
        return self._made(Mapped(name, self.view.domain, schema, (self.view,), function, given))

    def concat(self, *others: Stream) -> Stream:
        """Put streams of the same columns together; the frontier waits for all of them.

        Raises
        ------
        SchemaMismatchError
            If columns or types differ.
        """
        name = self._scope.next_name("concat")
        fields = list(self.schema)
        for other in others:
            self._check_stream(name, other)
            differs = next((f for f in fields if f.name not in other.schema.names), None)
            differs = differs or next((f for f in fields if other.schema.field(f.name).type != f.type), None)
            if differs is not None or len(other.schema) != len(fields):
                msg = f"could not add operator {name!r}: found columns {shown(_types(other.schema))}"
                raise SchemaMismatchError(msg, hint=f"give all streams the columns {shown(_types(self.schema))}")
            both = [f.nullable or other.schema.field(f.name).nullable for f in fields]
            fields = [f.with_nullable(nullable) for f, nullable in zip(fields, both, strict=True)]
        views = (self.view, *(other.view for other in others))
        return self._made(Concat(name, self.view.domain, pa.schema(fields), views))

    # Times -------------------------------------------------------------------------------------------

    def delay(self, by: Delay, /) -> Stream:
        """Move rows to later times.

        Parameters
        ----------
        by : Delay
            `plus` or `ceil_to`.

        Raises
        ------
        InvalidUsageError
            If it does not fit the times.
        """
        name = self._scope.next_name("delay")
        if not hasattr(by, "bind"):
            msg = f"could not add operator {name!r}: found by={shown(by)}"
            raise InvalidUsageError(msg, hint="give plus(…) or ceil_to(…)")
        return self._made(Delayed(name, self.view.domain, self.schema, (self.view,), by.bind(self.view.domain)))

    # Time by time ------------------------------------------------------------------------------------

    def aggregate(self, *, by: str | Sequence[str] = (), **values: Aggregation) -> Stream:
        """Compute values of the groups of each complete time.

        Parameters
        ----------
        by : str or sequence of str
            Columns to group by, besides the time; null is a group of its own.
        **values : Aggregation
            What to compute, by the name of the column that comes out: ``n=count()``.

        Raises
        ------
        InvalidUsageError
            If a column is missing or named twice, or of a type that does not fit.
        """
        name = self._scope.next_name("aggregate")
        keys = (by,) if isinstance(by, str) else tuple(by)
        fields = [self._key(name, key) for key in keys]
        for column, value in values.items():
            if not isinstance(value, Aggregation):
                msg = f"could not add operator {name!r}: found {column}={shown(value)}"
                raise InvalidUsageError(msg, hint="give count(), sum, min or max of a column")
            try:
                fields.append(value.field(column, self.schema))
            except SchemaMismatchError as error:
                msg = f"could not add operator {name!r}: {error.message}"
                raise SchemaMismatchError(msg, hint=error.hint, context=error.context) from error
        names = [f.name for f in fields]
        if not values or len(set(names)) != len(names):
            msg = f"could not add operator {name!r}: found columns {shown(names)}"
            raise InvalidUsageError(msg, hint="give at least one value, and each column once")
        view = Aggregate(name, self.view.domain, pa.schema(fields), (self.view,), keys, dict(values))
        return self._made(view)

    def join(self, other: Stream, /, *, on: str | Sequence[str], how: str = "inner") -> Stream:
        """Pair the rows of two streams that have the same time and agree in some columns.

        A time is joined when it is complete on both sides.

        Parameters
        ----------
        other : Stream
        on : str or sequence of str
            Columns of both; a null agrees with nothing.
        how : {"inner", "left"}
            ``left`` keeps rows of this stream without a partner, with nulls.

        Raises
        ------
        InvalidUsageError
            If a column is missing, on both sides without being joined on, or cannot be joined.
        """
        name = self._scope.next_name("join")
        self._check_stream(name, other)
        keys = (on,) if isinstance(on, str) else tuple(on)
        how_arrow = {"inner": "inner", "left": "left outer"}.get(how)
        if how_arrow is None:
            msg = f"could not add operator {name!r}: found how={shown(how)}"
            raise InvalidUsageError(msg, hint="use 'inner' or 'left'")
        for key in keys:
            if self._key(name, key).type != other._key(name, key).type:
                msg = f"could not add operator {name!r}: found column {key!r} of two types"
                raise SchemaMismatchError(msg, hint="cast one of them")
        doubled = [n for n in self.schema.names if n in other.schema.names and n not in keys]
        if doubled or not keys:
            msg = f"could not add operator {name!r}: found columns {shown(doubled)} on both sides, on={shown(keys)}"
            raise InvalidUsageError(msg, hint="name the columns to join on; rename others with select")
        right = [f for f in other.schema if f.name not in keys]
        if how == "left":
            right = [f.with_nullable(True) for f in right]  # noqa: FBT003 - as Arrow has it
        view = Join(name, self.view.domain, pa.schema([*self.schema, *right]), (self.view, other.view), keys, how_arrow)
        try:
            view.apply([self.view.empty(), other.view.empty()], tuple(view.schema.names))
        except pa.ArrowException as error:
            msg = f"could not add operator {name!r}: {error}"
            raise SchemaMismatchError(msg, hint="Arrow joins no lists, maps and structs") from error
        return self._made(view)

    # Ends --------------------------------------------------------------------------------------------

    def capture(self, log: str | os.PathLike[str] | DeltaLog, /, *, stream: str = "main") -> None:
        """Append the rows of complete times to a log, exactly once, and move its frontier along.

        Parameters
        ----------
        log : path or Log
            Made when the dataflow is started, unless it is there.
        stream : str
            Which stream of the log the dataflow owns.

        Raises
        ------
        InvalidUsageError
            If the dataflow captures into this stream already, or a column cannot be kept.
        CyclicSummaryError
            If the log is one that this stream is made from.
        """
        self._scope.add_sink(self.view, log, stream)

    def probe(self) -> Probe:
        """Return what tells how far the outputs made from this stream are."""
        return self._scope.probe_of(self.view)

    # Checks ------------------------------------------------------------------------------------------

    def _made(self, view: View) -> Stream:
        return Stream(self._scope, view)

    def _check_stream(self, name: str, other: object) -> None:
        if not isinstance(other, Stream) or other._scope is not self._scope:
            msg = f"could not add operator {name!r}: found {shown(other)}"
            raise InvalidUsageError(msg, hint="give streams of the same dataflow")

    def _check_column(self, name: str, column: object) -> None:
        if column not in self.schema.names:
            msg = f"could not add operator {name!r}: found no column {shown(column)}"
            raise SchemaMismatchError(msg, hint=f"the columns are {shown(self.schema.names)}")

    def _key(self, name: str, column: str) -> pa.Field:
        self._check_column(name, column)
        found = self.schema.field(column)
        if pa.types.is_floating(found.type) or pa.types.is_nested(found.type):
            msg = f"could not add operator {name!r}: found key {column!r} of type={found.type}"
            raise SchemaMismatchError(
                msg, hint="floats have two zeros and many NaN, lists have no order: round or cast the column first"
            )
        return found

    def _columns_of(self, name: str, expression: pc.Expression, wanted: pa.DataType | None) -> tuple[str, ...]:
        """Return the payload columns that an expression looks at: those without which it cannot be bound."""
        found = self._type_of(name, "condition", expression)
        if wanted is not None and found != wanted:
            msg = f"could not add operator {name!r}: found a condition of type={found}"
            raise InvalidUsageError(msg, hint="give a condition that is true or false")
        empty = self.view.empty()
        return tuple(n for n in self.schema.names if not _binds(empty.drop_columns(n), expression))

    def _type_of(self, name: str, column: str, expression: pc.Expression) -> pa.DataType:
        try:
            return canonical_type(_evaluated(self.view.empty(), expression), column)
        except (pa.ArrowException, SchemaMismatchError) as error:
            text = error.message if isinstance(error, TimelyError) else str(error)
            msg = f"could not add operator {name!r}: {' '.join(text.split())}"
            raise SchemaMismatchError(msg, hint=f"the columns are {shown(self.schema.names)}") from error


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _binds(empty: pa.Table, expression: pc.Expression) -> bool:
    try:
        _evaluated(empty, expression)
    except pa.ArrowException:
        return False
    return True


def _evaluated(empty: pa.Table, expression: pc.Expression) -> pa.DataType:
    """Return the type of an expression over a table's columns."""
    import pyarrow.acero as acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(empty))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["x"]), [source])
    return project.to_table(use_threads=False).schema.field("x").type
