"""Operators that need whole times: aggregate, join, and functions of the rows of a complete time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.aggregates import Aggregation, aggregate_rows
from spark_timely.dataflow.view import Names, View, function_name, with_times
from spark_timely.errors import OperatorError
from spark_timely.log.files.parquet import conform
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray
from spark_timely.time.consolidation import group_times
from spark_timely.time.domain import TimeDomain

__all__ = ["Aggregate", "Join", "Notified", "check_notified", "time_value"]


@dataclass(frozen=True, eq=False)
class Aggregate(View):
    """Values of the groups of each complete time.

    Attributes
    ----------
    by : tuple of str
    aggregations : dict of str to Aggregation
        By column that comes out.
    """

    by: Names = ()
    aggregations: Mapping[str, Aggregation] = field(default_factory=dict)

    def describe(self) -> str:
        """Return keys and values."""
        values = (f"{name}={a.kind}({a.column or ''})" for name, a in self.aggregations.items())
        return f"by {', '.join(self.by) or 'time'}: {', '.join(values)}"

    @property
    def own_rowwise(self) -> bool:
        """A group is made of all rows of its time."""
        return False

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns of keys and of values wanted."""
        used = [a.column for name, a in self.aggregations.items() if name in wanted and a.column is not None]
        return (tuple(dict.fromkeys((*self.by, *used))),)

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Group by time and keys."""
        keys, chosen, schema = self.plan(wanted)
        return aggregate_rows(tables[0], keys, chosen, schema).select(self.names(wanted))

    def plan(self, wanted: Names) -> tuple[Names, dict[str, Aggregation], pa.Schema]:
        """Return what is grouped by, the values wanted, and the columns that come out of the grouping."""
        keys = self._times(self.by)
        chosen = {name: a for name, a in self.aggregations.items() if name in wanted}
        schema = self.empty().schema
        return keys, chosen, pa.schema([schema.field(name) for name in (*keys, *chosen)])

    def names(self, wanted: Names) -> Names:
        """Return the names of time columns and of the columns wanted."""
        return self._times(wanted)


@dataclass(frozen=True, eq=False)
class Join(View):
    """Pairs of rows of one time that agree in some columns.

    Attributes
    ----------
    on : tuple of str
        A null agrees with nothing.
    how : {"inner", "left outer"}
        Whether rows on the left without a partner stay, with nulls.
    """

    on: Names = ()
    how: str = "inner"

    def describe(self) -> str:
        """Return the columns that agree."""
        return f"{self.how} on {', '.join(self.on)}"

    @property
    def own_rowwise(self) -> bool:
        """A pair is made of any two rows of its time."""
        return False

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return of each side the columns that agree, and those wanted."""
        left, right = self.inputs
        return (
            (*self.on, *(n for n in left.schema.names if n in wanted and n not in self.on)),
            (*self.on, *(n for n in right.schema.names if n in wanted and n not in self.on)),
        )

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Join by time and columns."""
        left, right = tables
        names = self._times(wanted)
        joined = left.join(right, keys=list(self._times(self.on)), join_type=self.how, use_threads=False)
        schema = self.empty().schema
        return joined.select(names).cast(pa.schema([schema.field(name) for name in names]))


@dataclass(frozen=True, eq=False)
class Notified(View):
    """What a function makes of the rows of each complete time, in ascending order of times.

    Attributes
    ----------
    function : callable
        Takes the time and a table of payload columns for each input; gives a table or None.
    columns : tuple of tuple of str
        Payload columns that it gets, by input.
    may_be_later : bool
        Whether it may give rows at later times too.
    named : tuple of bool
        Whether the columns were named, or are simply all, by input.
    """

    function: Callable[..., pa.Table | None] = field(default=lambda *_: None)
    columns: tuple[Names, ...] = ()
    may_be_later: bool = False
    named: tuple[bool, ...] = ()

    def describe(self) -> str:
        """Return the name of the function."""
        return function_name(self.function)

    @property
    def own_rowwise(self) -> bool:
        """The function sees all rows of a time."""
        return False

    @property
    def later(self) -> bool:
        """Whether it may give rows at times past the range that it was run for."""
        return self.may_be_later

    def needs(self, wanted: Names) -> tuple[Names, ...]:
        """Return the columns that the function gets."""
        return self.columns

    def apply(self, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Call the function, time by time."""
        made = [self.empty()]
        for time, parts in _by_time(self.domain, tables):  # one turn per complete time
            rows = [part.select(names) for part, names in zip(parts, self.columns, strict=True)]
            given = self.function(time_value(self.domain, time), *rows)
            if given is not None:
                times, payload = check_notified(self.domain, time, given, may_be_later=self.may_be_later)
                made.append(with_times(times, conform(payload, self.schema, what="what the function gave")))
        schema = made[0].schema
        return pa.concat_tables([table.cast(schema) for table in made]).select(self._times(wanted))


def time_value(domain: TimeDomain, time: Sequence[int]) -> object:
    """Return a time as Python has it: an int, a date or a datetime; a tuple of them for several coordinates."""
    values = [kind.to_arrow([x])[0].as_py() for kind, x in zip(domain.types, time, strict=True)]
    return values[0] if len(values) == 1 else tuple(values)


def _by_time(domain: TimeDomain, tables: Sequence[pa.Table]) -> Iterator[tuple[tuple[int, ...], list[pa.Table]]]:
    """Give the rows of each time that any table has rows of, in lexicographic order."""
    lengths = [table.num_rows for table in tables]
    unique, codes, _ = group_times(np.concatenate([domain.from_columns(table) for table in tables]))
    sorted_tables, bounds = [], []
    for table, mine in zip(tables, np.split(codes, np.cumsum(lengths)[:-1]), strict=True):  # one turn per input
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
        msg = f"a value of type {type(made).__name__!r}, not a pyarrow.Table"
        raise OperatorError(msg, hint="let the function give a pyarrow.Table, or None for no rows")
    told = [name for name in domain.columns if name in made.schema.names]
    if not told:
        at: IntArray = np.tile(np.array(time, dtype=np.int64), (made.num_rows, 1))
        return pa.table(domain.to_columns(at)), made
    if len(told) != domain.arity:
        msg = f"time columns {told!r} only"
        raise OperatorError(msg, hint=f"give all of {domain.columns!r}, or none for rows at the time itself")
    times = domain.from_columns(made)
    wrong = ~Antichain.of(tuple(time)).beyond(times) if may_be_later else (times != np.array(time)).any(axis=1)
    if wrong.any():
        given = domain.render_time(times[int(np.flatnonzero(wrong)[0])].tolist())
        msg = f"a row at time={given!r} for the complete time={domain.render_time(time)!r}"
        before = "rows are given at the time that is complete or, with later=True, after it"
        raise OperatorError(msg, hint=before)
    return pa.table(domain.to_columns(times)), made.drop_columns(told)
