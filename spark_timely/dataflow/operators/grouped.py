"""Operators of whole times: values of groups, and functions of all rows of a time.

They need all rows of a time, which is complete then. `Aggregate` computes values of each group, of a time or over all
history; `UnaryNotify` and `BinaryNotify` call a user's function with the rows of one time of one or two streams. They
are `aggregate`, `unary_notify` and `binary_notify` of a `Stream`; plans and SQL have `Aggregate` too. The other
operator of whole times is the join, in `joins`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.aggregates import Aggregation, aggregate_rows
from spark_timely.dataflow.history.totals import Totals
from spark_timely.dataflow.operators.checks import check_column, check_events, check_function, key_of, tried
from spark_timely.dataflow.operators.plan_json import Choice, Texts, Values, check_once, in_plan
from spark_timely.dataflow.operators.texts import columns_text, function_name, function_text
from spark_timely.dataflow.remembered import over_history
from spark_timely.dataflow.views import Names, Operator, View, time_value, with_times
from spark_timely.errors import InvalidUsageError, OperatorError, SchemaMismatchError, kind_of, shown
from spark_timely.log.files.format import conform
from spark_timely.time.antichain import Antichain, IntArray, group_times
from spark_timely.time.domain import TimeDomain

__all__ = ["Aggregate", "BinaryNotify", "UnaryNotify"]


@dataclass(frozen=True, eq=False)
class Aggregate(Operator):
    """Values of the groups of each complete time, or of all rows up to each time.

    Attributes
    ----------
    by : tuple of str
    values : dict of str to Aggregation
        By column that comes out.
    over : "time" or "history"
    name : str or None
        Of what is kept of all history.
    """

    by: Names = field(default=(), metadata=in_plan(Texts()))
    values: Mapping[str, Aggregation] = field(default_factory=dict, metadata=in_plan(Values()))
    over: str = field(default="time", metadata=in_plan(Choice(default="history", among=("history", "time"))))
    name: str | None = None

    method = op = "aggregate"
    # A group is made of all rows of its time.
    rowwise = False

    def check_plan(self) -> None:
        """Refuse a value that is called as a key."""
        check_once(self.op, "columns", [*self.by, *self.values])

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Find keys and values."""
        (source,) = inputs
        if self.over not in ("time", "history"):
            msg = f"could not add operator {name!r}: found over={shown(self.over)}"
            raise InvalidUsageError(msg, hint="use 'time' or 'history'")
        if self.over == "time":
            check_events(name, source)
        fields = [key_of(name, source, key) for key in self.by]
        for column, value in self.values.items():
            if not isinstance(value, Aggregation):
                msg = f"could not add operator {name!r}: found {column}={shown(value)}"
                raise InvalidUsageError(msg, hint="give count(), sum, avg, min or max of a column")
            try:
                fields.append(value.field(column, source.schema, over=self.over))
            except SchemaMismatchError as error:
                msg = f"could not add operator {name!r}: {error.message}"
                raise SchemaMismatchError(msg, hint=error.hint, context=error.context) from error
        names = [f.name for f in fields]
        if not self.values or len(set(names)) != len(names):
            msg = f"could not add operator {name!r}: found columns {shown(names)}"
            raise InvalidUsageError(msg, hint="give at least one value, and each column once")
        if self.over == "history":
            return over_history(name, source, Totals(self.by, dict(self.values)), self.name)
        return self.view(name, pa.schema(fields), source)

    def describe(self) -> str:
        """Return keys and values."""
        values = (f"{name}={a.kind}({a.column or ''})" for name, a in self.values.items())
        return f"by {', '.join(self.by) or 'time'}: {', '.join(values)}"

    def hashed(self, view: View) -> tuple[str, object]:
        """Return keys and values, in the order in which they were given."""
        return "aggregate", [self.by, [[name, each.kind, each.column] for name, each in self.values.items()]]

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns of keys and of values wanted."""
        used = [a.column for name, a in self.values.items() if name in wanted and a.column is not None]
        return (tuple(dict.fromkeys((*self.by, *used))),)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Group by time and keys."""
        keys, chosen, schema = self.plan(view, wanted)
        return aggregate_rows(tables[0], keys, chosen, schema).select(view.with_carried(wanted))

    def plan(self, view: View, wanted: Names) -> tuple[Names, dict[str, Aggregation], pa.Schema]:
        """Return what is grouped by, the values wanted, and the columns that come out of the grouping."""
        keys = view.with_carried(self.by)
        chosen = {name: a for name, a in self.values.items() if name in wanted}
        schema = view.empty().schema
        return keys, chosen, pa.schema([schema.field(name) for name in (*keys, *chosen)])


@dataclass(frozen=True, eq=False)
class _Notify(Operator):
    """A user's function of the rows of each complete time, called in ascending order of times.

    Attributes
    ----------
    function : callable
        Takes the time and a table of payload columns for each input; gives a table or None.
    columns : tuple of (tuple of str or None)
        Payload columns that it gets, by input; None: all.
    later : bool
        Whether it may give rows at later times too.
    """

    function: Callable[..., pa.Table | None]
    columns: tuple[Names | None, ...]
    later: bool = False

    # The function sees all rows of a time.
    rowwise = False

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Call the function with the least time and without rows, for its columns."""
        check_events(name, *inputs)
        check_function(name, self.function)
        given = self._given(inputs)
        for source, names in zip(inputs, given, strict=True):
            for column in names:
                check_column(name, source, column)
        empty = [source.empty().select(names) for source, names in zip(inputs, given, strict=True)]
        domain = inputs[0].domain

        def columns_given() -> pa.Table:
            made = self.function(time_value(domain, domain.minimum), *empty)
            return check_notified(domain, domain.minimum, made, may_be_later=self.later)[1]

        return self.view(name, tried(name, columns_given), *inputs)

    def _given(self, inputs: Sequence[View]) -> tuple[Names, ...]:
        named = zip(inputs, self.columns, strict=True)
        return tuple(tuple(source.schema.names) if names is None else names for source, names in named)

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    def hashed(self, view: View) -> tuple[str, object]:
        """Return the function by its name, the columns that it gets, where they were named, and gives."""
        return "notify", [function_text(self.function), self.columns, self.later, columns_text(view.schema)]

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return self._given(view.inputs)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, time by time."""
        made = [view.empty()]
        given = self._given(view.inputs)
        for time, parts in _by_time(view.domain, tables):
            rows = [part.select(names) for part, names in zip(parts, given, strict=True)]
            found = self.function(time_value(view.domain, time), *rows)
            if found is not None:
                times, payload = check_notified(view.domain, time, found, may_be_later=self.later)
                made.append(with_times(times, conform(payload, view.schema, what="what the function gave")))
        schema = made[0].schema
        return pa.concat_tables([table.cast(schema) for table in made]).select(view.with_carried(wanted))


class UnaryNotify(_Notify):
    """A user's function of the rows of each complete time of one input."""

    method = "unary_notify"


class BinaryNotify(_Notify):
    """A user's function of the rows of two inputs at each time that is complete on both sides."""

    method = "binary_notify"


def _by_time(domain: TimeDomain, tables: Sequence[pa.Table]) -> Iterator[tuple[tuple[int, ...], list[pa.Table]]]:
    """Give the rows of each time that any table has rows of, in lexicographic order."""
    lengths = [table.num_rows for table in tables]
    unique, codes, _ = group_times(np.concatenate([domain.from_columns(table) for table in tables]))
    sorted_tables, bounds = [], []
    for table, mine in zip(tables, np.split(codes, np.cumsum(lengths)[:-1]), strict=True):
        order = np.argsort(mine, kind="stable")
        sorted_tables.append(table.take(pa.array(order)))
        bounds.append(np.searchsorted(mine[order], np.arange(unique.shape[0] + 1)))
    for i, time in enumerate(unique.tolist()):
        parts = [t.slice(int(b[i]), int(b[i + 1] - b[i])) for t, b in zip(sorted_tables, bounds, strict=True)]
        yield tuple(time), parts


def check_notified(
    domain: TimeDomain, time: Sequence[int], made: object, *, may_be_later: bool
) -> tuple[pa.Table, pa.Table]:
    """Return times and payload of what a function made of a complete time; refuse rows before it."""
    if not isinstance(made, pa.Table):
        msg = f"a value of type {kind_of(made)!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint="let the function give a pyarrow.Table, or None for no rows")
    names = [name for name in domain.columns if name in made.schema.names]
    if not names:
        at: IntArray = np.tile(np.array(time, dtype=np.int64), (made.num_rows, 1))
        return pa.table(domain.to_columns(at)), made
    if len(names) != domain.arity:
        msg = f"time columns {names!r} only"
        raise OperatorError(msg, hint=f"give all of {domain.columns!r}, or none for rows at the time itself")
    times = domain.from_columns(made)
    wrong = ~Antichain.of(tuple(time)).beyond(times) if may_be_later else (times != np.array(time)).any(axis=1)
    if wrong.any():
        given = domain.render_time(times[int(np.flatnonzero(wrong)[0])].tolist())
        msg = f"a row at time={given!r} for the complete time={domain.render_time(time)!r}"
        before = "give rows at the time that is complete or, with later=True, after it"
        raise OperatorError(msg, hint=before)
    return pa.table(domain.to_columns(times)), made.drop_columns(names)
