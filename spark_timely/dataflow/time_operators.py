"""Operators on streams that move times or need whole ones: delay, aggregate, join, functions of complete times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.aggregates import Aggregation, sum_of
from spark_timely.dataflow.building import Building
from spark_timely.dataflow.delays import plus
from spark_timely.dataflow.row_views import Concat, Delayed, Filter, Select
from spark_timely.dataflow.time_views import Aggregate, Join, Notified, check_notified, time_value
from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown

if TYPE_CHECKING:
    from spark_timely.dataflow.delays import Delay, Delays

__all__ = ["TimeOperators"]


class TimeOperators(Building):
    """Operators that move times, or make rows from all rows of a complete time."""

    # Times -------------------------------------------------------------------------------------------

    def delay(self, *by: Delay | Delays) -> Self:
        """Move rows to later times.

        Parameters
        ----------
        *by : Delay
            `plus`, `ceil_to` or `windows`. With several of them a row goes all ways.

        Raises
        ------
        InvalidUsageError
            If one does not fit the times.

        Examples
        --------
        >>> from spark_timely.dataflow.delays import ceil_to
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [3, 10, 11]}).delay(ceil_to(10)))
        [{'_time': 10}, {'_time': 10}, {'_time': 20}]
        """
        name = self._scope.next_name("delay")
        domain = self.view.domain
        delays: list[Delay] = []
        for each in by:
            if hasattr(each, "delays"):
                delays += each.delays(domain)
            elif hasattr(each, "bind"):
                delays.append(each)
            else:
                msg = f"could not add operator {name!r}: found by={shown(each)}"
                raise InvalidUsageError(msg, hint="give plus(…), ceil_to(…) or windows(…)")
        if not delays:
            msg = f"could not add operator {name!r}: found no delay"
            raise InvalidUsageError(msg, hint="give plus(…), ceil_to(…) or windows(…)")
        bound = [each.bind(domain) for each in delays]
        if len(bound) == 1:
            return self._made(Delayed(name, domain, self.schema, (self.view,), bound[0]))
        parts = [
            self._made(Delayed(f"{name}_{number}", domain, self.schema, (self.view,), each)).view
            for number, each in enumerate(bound, 1)
        ]
        return self._made(Concat(name, domain, self.schema, tuple(parts)))

    def step_forward(self) -> Self:
        """Move rows to the next time each: what is said at a time is known at the next one.

        For times of one coordinate. A row at the greatest time of the type is an error.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows_of(stream_of({"_time": [3, 10]}).step_forward())
        [{'_time': 4}, {'_time': 11}]
        """
        name = self._scope.next_name("step_forward")
        domain = self.view.domain
        if domain.arity != 1:
            msg = f"could not add operator {name!r}: found times of {domain.arity} coordinates"
            raise InvalidUsageError(msg, hint="say with delay(plus(…)) what is added to each coordinate")
        return self._made(Delayed(name, domain, self.schema, (self.view,), plus(1).bind(domain)))

    def times_extract(self, *, diff: str | None = None) -> tuple[Self, Self]:
        """Return the stream itself, and a stream of the times of its rows.

        Parameters
        ----------
        diff : str, optional
            A column of integers: how often each row counts. Once unless given.

        Returns
        -------
        rows, times : Stream
            The second has a row for each row, with column ``diff``.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> _, times = stream_of({"_time": [1, 1], "v": ["a", "b"]}).times_extract()
        >>> rows_of(times)
        [{'_time': 1, 'diff': 1}, {'_time': 1, 'diff': 1}]
        """
        name = self._scope.next_name("times_extract")
        if diff is not None:
            self._check_column(name, diff)
            if not pa.types.is_signed_integer(self.schema.field(diff).type):
                msg = f"could not add operator {name!r}: found column {diff!r} of type={self.schema.field(diff).type}"
                raise SchemaMismatchError(msg, hint="name a column of integers")
        count = pc.field(diff).cast(pa.int64()) if diff is not None else pc.scalar(1)
        schema = pa.schema([pa.field("diff", pa.int64())])
        used = () if diff is None else (diff,)
        return self, self._made(Select(name, self.view.domain, schema, (self.view,), {"diff": count}, used))

    def times_reduce(self) -> Self:
        """Give one row for each complete time: the sum of column ``diff``; none where it is 0.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> _, times = stream_of({"_time": [1, 1, 4, 4], "n": [1, 1, 1, -1]}).times_extract(diff="n")
        >>> rows_of(times.times_reduce())
        [{'_time': 1, 'diff': 2}]
        """
        name = self._scope.next_name("times_reduce")
        self._check_column(name, "diff")
        sums = {"diff": sum_of("diff")}
        schema = pa.schema([sums["diff"].field("diff", self.schema)])
        summed = self._made(Aggregate(f"{name}_sum", self.view.domain, schema, (self.view,), (), sums))
        nonzero = pc.field("diff") != 0
        return self._made(Filter(name, self.view.domain, schema, (summed.view,), nonzero, ("diff",), "diff != 0"))

    # Time by time ------------------------------------------------------------------------------------

    def aggregate(self, *, by: str | Sequence[str] = (), **values: Aggregation) -> Self:
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

        Examples
        --------
        >>> from spark_timely.dataflow.aggregates import count
        >>> from spark_timely.testing import rows_of, stream_of
        >>> rows = stream_of({"_time": [1, 1, 2], "k": ["a", "a", "a"], "n": [5, 6, 7]})
        >>> rows_of(rows.aggregate(by="k", n=count(), total=sum_of("n")), upper=[2])
        [{'_time': 1, 'k': 'a', 'n': 2, 'total': 11}]
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
        return self._made(Aggregate(name, self.view.domain, pa.schema(fields), (self.view,), keys, dict(values)))

    def join(self, other: Self, /, *, on: str | Sequence[str], how: str = "inner") -> Self:
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

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> left = stream_of({"_time": [1, 2], "k": ["a", "a"], "n": [5, 6]})
        >>> right = stream_of({"_time": [1], "k": ["a"], "m": [7]}, beside=left)
        >>> rows_of(left.join(right, on="k"))
        [{'_time': 1, 'k': 'a', 'n': 5, 'm': 7}]
        """
        name = self._scope.next_name("join")
        self._check_stream(name, other)
        keys = (on,) if isinstance(on, str) else tuple(dict.fromkeys(on))
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

    def unary_notify(
        self,
        function: Callable[[object, pa.Table], pa.Table | None],
        /,
        *,
        columns: Sequence[str] | None = None,
        later: bool = False,
    ) -> Self:
        """Make rows from the rows of each complete time, by a function that is called once for each.

        Parameters
        ----------
        function : callable
            Takes the time, as Python has it (int, date or datetime; a tuple for product times), and a pyarrow
            Table with the payload of all rows of that time, in no particular order. Gives a table of payload
            columns, or None for no rows. Called in ascending order of the times that a task has, for times
            with rows only; it keeps nothing from one time to the next. It is called once at once, with the
            least time and without rows, for its columns.
        columns : sequence of str, optional
            Payload columns that it gets; all unless given.
        later : bool
            Whether it may give rows at later times, by giving time columns too. Such a stream can
            only be captured: the log keeps the rows until their times are complete.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> def widest(time, rows):
        ...     return pa.table({"hour": pa.array([time % 24] * bool(rows), pa.int64()),
        ...                      "span": pa.array([pc.max(rows["n"]).as_py()] * bool(rows), pa.int64())})
        >>> rows_of(stream_of({"_time": [25, 25, 26], "n": [5, 6, 7]}).unary_notify(widest))
        [{'_time': 25, 'hour': 1, 'span': 6}, {'_time': 26, 'hour': 2, 'span': 7}]
        """
        return self._notified("unary_notify", [self], function, [columns], later=later)

    def binary_notify(
        self,
        other: Self,
        function: Callable[[object, pa.Table, pa.Table], pa.Table | None],
        /,
        *,
        columns: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
        later: bool = False,
    ) -> Self:
        """Make rows from the rows of two streams at each time that is complete on both sides.

        Parameters
        ----------
        other : Stream
        function : callable
            As in `unary_notify`, with a table for each side; one of them may be without rows.
        columns : pair of sequences of str, optional
            Payload columns that it gets of each side; all unless given.
        later : bool
            As in `unary_notify`.

        Raises
        ------
        InvalidUsageError
            If a column is missing, or the function fails without rows.

        Examples
        --------
        >>> from spark_timely.testing import rows_of, stream_of
        >>> def missing(time, planned, seen):
        ...     return planned.filter(pc.invert(pc.is_in(planned["id"], seen["id"].combine_chunks())))
        >>> planned = stream_of({"_time": [1, 1], "id": [7, 8]})
        >>> rows_of(planned.binary_notify(stream_of({"_time": [1], "id": [8]}, beside=planned), missing))
        [{'_time': 1, 'id': 7}]
        """
        return self._notified("binary_notify", [self, other], function, list(columns), later=later)

    def _notified(
        self,
        kind: str,
        streams: Sequence[Self],
        function: Callable[..., pa.Table | None],
        columns: Sequence[Sequence[str] | None],
        *,
        later: bool,
    ) -> Self:
        name = self._scope.next_name(kind)
        for stream in streams:
            self._check_stream(name, stream)
        self._check_function(name, function)
        given = tuple(stream._given(name, names) for stream, names in zip(streams, columns, strict=True))
        empty = [stream.view.empty().select(names) for stream, names in zip(streams, given, strict=True)]
        domain = self.view.domain

        def columns_of() -> pa.Table:
            made = function(time_value(domain, domain.minimum), *empty)
            return check_notified(domain, domain.minimum, made, may_be_later=later)[1]

        schema = self._tried(name, columns_of)
        inputs = tuple(stream.view for stream in streams)
        named = tuple(names is not None for names in columns)
        return self._made(Notified(name, domain, schema, inputs, function, given, later, named))
