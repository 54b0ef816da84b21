"""Operators on streams that go row by row: filter, branch, select, map, flat_map, inspect, concat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.building import Building, types_of
from spark_timely.dataflow.row_views import (
    Concat,
    Filter,
    FlatMapped,
    Hinted,
    Inspected,
    Mapped,
    Select,
    check_flat_mapped,
    check_mapped,
)
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.predicate import parse_predicate

if TYPE_CHECKING:
    from spark_timely.time.antichain import Antichain

__all__ = ["RowOperators"]


class RowOperators(Building):
    """Operators whose rows are each made from one row."""

    def filter(self, condition: str | pc.Expression, /) -> Self:
        """Keep the rows for which a condition holds; not those for which it is null.

        Parameters
        ----------
        condition : str or pyarrow.compute.Expression
            Over payload and time columns: SQL text as Spark's ``where`` takes it, such as
            ``"delay > 15 AND origin IN ('JFK', 'LGA')"``, or ``pc.field("delay") > 15``. Of SQL there are
            comparisons, ``AND``, ``OR``, ``NOT``, ``IS [NOT] NULL``, ``[NOT] IN``, ``[NOT] BETWEEN``,
            ``[NOT] LIKE``, ``+``, ``-``, ``*``, and literals.

        Raises
        ------
        InvalidUsageError
            If it is no condition, or none of these columns and types.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [1, 1, 2], "n": [5, 20, None]}).filter("n > 15"))
        [{'_time': 1, 'n': 20}]
        """
        name = self._scope.next_name("filter")
        kept, columns, text = self._condition(name, condition)
        sql = condition if isinstance(condition, str) else None
        return self._made(Filter(name, self.view.domain, self.schema, (self.view,), kept, columns, text, sql))

    def branch(self, condition: str | pc.Expression, /) -> tuple[Self, Self]:
        """Part a stream in two: the rows for which a condition holds, and all others.

        Parameters
        ----------
        condition : str or pyarrow.compute.Expression
            As in `filter`. Rows for which it is null are among the others.

        Returns
        -------
        holds, others : Stream

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> late, others = stream_of({"_time": [1, 1, 2], "n": [5, 20, None]}).branch("n > 15")
        >>> [row["n"] for row in rows_of(late)], [row["n"] for row in rows_of(others)]
        ([20], [5, None])
        """
        name = self._scope.next_name("branch")
        kept, columns, text = self._condition(name, condition)
        # Never null, so that each row goes one way.
        holds = pc.coalesce(kept, pc.scalar(False))  # noqa: FBT003 - as Arrow has it
        sql = f"coalesce(({text}), false)" if isinstance(condition, str) else None
        make = [
            (f"{name}_holds", holds, text, sql),
            (f"{name}_others", ~holds, f"not {text}", sql and f"NOT {sql}"),
        ]
        one, other = (
            self._made(Filter(part, self.view.domain, self.schema, (self.view,), each, columns, said, as_sql))
            for part, each, said, as_sql in make
        )
        return one, other

    def _condition(self, name: str, condition: object) -> tuple[pc.Expression, tuple[str, ...], str]:
        if isinstance(condition, str):
            types = {field.name: field.type for field in self.view.empty().schema}
            expression = parse_predicate(condition, types, what=f"add operator {name!r}").expression
        elif isinstance(condition, pc.Expression):
            expression = condition
        else:
            msg = f"could not add operator {name!r}: found condition={shown(condition)}"
            raise InvalidUsageError(
                msg, hint="give SQL text, or an expression such as pyarrow.compute.field('delay') > 15"
            )
        return expression, self._columns_of(name, expression, pa.bool_()), str(condition)

    def select(self, *columns: str, **expressions: pc.Expression) -> Self:
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

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows = stream_of({"_time": [1], "k": ["a"], "n": [5]})
        >>> rows_of(rows.select("k", twice=pc.field("n") * 2))
        [{'_time': 1, 'k': 'a', 'twice': 10}]
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

    def map(self, function: Callable[[pa.Table], pa.Table], /, *, columns: Sequence[str] | None = None) -> Self:
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

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows = stream_of({"_time": [1, 2], "word": ["to", "be"]})
        >>> rows_of(rows.map(lambda t: pa.table({"loud": pc.utf8_upper(t["word"])})))
        [{'_time': 1, 'loud': 'TO'}, {'_time': 2, 'loud': 'BE'}]
        """
        name = self._scope.next_name("map")
        self._check_function(name, function)
        given = self._given(name, columns)
        rows = self.view.empty().select([*self.view.domain.columns, *given])
        schema = self._tried(name, lambda: check_mapped(self.view.domain, rows, function(rows)))
        named = columns is not None
        return self._made(Mapped(name, self.view.domain, schema, (self.view,), function, given, named))

    def flat_map(self, function: Callable[[pa.Table], pa.Table], /, *, columns: Sequence[str] | None = None) -> Self:
        """Make any number of rows of each row, by a function of Arrow tables; they have its time.

        Parameters
        ----------
        function : callable
            Takes a pyarrow Table as in `map`; gives one with a column ``_row`` besides its own: the number,
            counted from 0, of the row from which each is made. What it makes of a row may depend on this
            row alone.
        columns : sequence of str, optional
            Payload columns that it gets; all unless given.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> def words(rows):
        ...     parts = pc.utf8_split_whitespace(rows["text"]).combine_chunks()
        ...     return pa.table({"_row": pc.list_parent_indices(parts), "word": pc.list_flatten(parts)})
        >>> rows_of(stream_of({"_time": [1, 2], "text": ["to be", "or"]}).flat_map(words))
        [{'_time': 1, 'word': 'be'}, {'_time': 1, 'word': 'to'}, {'_time': 2, 'word': 'or'}]
        """
        name = self._scope.next_name("flat_map")
        self._check_function(name, function)
        given = self._given(name, columns)
        rows = self.view.empty().select([*self.view.domain.columns, *given])
        schema = self._tried(name, lambda: check_flat_mapped(rows, function(rows))[0])
        named = columns is not None
        return self._made(FlatMapped(name, self.view.domain, schema, (self.view,), function, given, named))

    def inspect(self, function: Callable[[pa.Table, Antichain, Antichain], object], /) -> Self:
        """Show the rows to a function, and hand them on.

        Parameters
        ----------
        function : callable
            Takes a pyarrow Table with time and payload columns of some rows, and the range that is being
            computed: lower and upper frontier. What it gives back means nothing. It runs where the rows are,
            in Spark's workers, before they are written: at least once, and again when a task is repeated. Not at all
            where nothing downstream is captured.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> seen = []
        >>> rows = stream_of({"_time": [1, 2]}).inspect(lambda rows, lower, upper: seen.append((rows.num_rows, upper)))
        >>> _ = rows_of(rows, upper=[2])
        >>> seen
        [(1, Antichain.of(2))]
        """
        name = self._scope.next_name("inspect")
        self._check_function(name, function)
        return self._made(Inspected(name, self.view.domain, self.schema, (self.view,), function))

    def exchange(self, *by: str) -> Self:
        """Hint that rows be brought together by some columns; changes no row.

        With ``evaluation="sql"`` Spark repartitions them: before an expensive function, or a join on the same columns.
        Else nothing is moved, for a task reads what it needs.

        Parameters
        ----------
        *by : str
            Columns; all of the payload unless given.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [1], "k": ["a"]}).exchange("k"))
        [{'_time': 1, 'k': 'a'}]
        """
        name = self._scope.next_name("exchange")
        columns = self._given(name, by or None)
        return self._made(Hinted(name, self.view.domain, self.schema, (self.view,), "exchange", columns))

    def broadcast(self) -> Self:
        """Hint that a stream is small enough to be brought to each task of a join; changes no row.

        Of effect with ``evaluation="sql"`` only.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [1], "k": ["a"]}).broadcast())
        [{'_time': 1, 'k': 'a'}]
        """
        name = self._scope.next_name("broadcast")
        return self._made(Hinted(name, self.view.domain, self.schema, (self.view,), "broadcast"))

    def concat(self, *others: Self) -> Self:
        """Put streams of the same columns together; the frontier waits for all of them.

        Raises
        ------
        SchemaMismatchError
            If columns or types differ.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> one = stream_of({"_time": [1], "n": [5]})
        >>> rows_of(one.concat(stream_of({"_time": [2], "n": [6]}, beside=one)))
        [{'_time': 1, 'n': 5}, {'_time': 2, 'n': 6}]
        """
        name = self._scope.next_name("concat")
        fields = list(self.schema)
        for other in others:
            self._check_stream(name, other)
            differs = next((f for f in fields if f.name not in other.schema.names), None)
            differs = differs or next((f for f in fields if other.schema.field(f.name).type != f.type), None)
            if differs is not None or len(other.schema) != len(fields):
                msg = f"could not add operator {name!r}: found columns {shown(types_of(other.schema))}"
                raise SchemaMismatchError(msg, hint=f"give all streams the columns {shown(types_of(self.schema))}")
            both = [f.nullable or other.schema.field(f.name).nullable for f in fields]
            fields = [f.with_nullable(nullable) for f, nullable in zip(fields, both, strict=True)]
        views = (self.view, *(other.view for other in others))
        return self._made(Concat(name, self.view.domain, pa.schema(fields), views))
