"""Operators of collections: events as updates, their negation, and one update for each row that changes.

A collection is a stream whose rows have a column `_diff`, how often each is added. `AsUpdates` makes one of events,
`Negate` turns its diffs round, and `Consolidate` sums those of equal rows and times. They are methods of `Stream`;
`dataflow.remembered` takes `AsUpdates` where an operator has to look into its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.operators.checks import check_events, check_integers, check_updates
from spark_timely.dataflow.operators.plan_json import Text, in_plan
from spark_timely.dataflow.views import DIFF, Names, Operator, View, with_times
from spark_timely.errors import OperatorError
from spark_timely.time.domain import TimeDomain
from spark_timely.trace.updates import Updates

__all__ = ["AsUpdates", "Consolidate", "Negate", "summed_updates"]


@dataclass(frozen=True, eq=False)
class AsUpdates(Operator):
    """The rows of a stream as updates: each is added once, or as often as a column says.

    Attributes
    ----------
    diff : str or None
        A column of integers; it is no longer part of the payload.
    """

    diff: str | None = field(default=None, metadata=in_plan(Text(default=None)))

    method = op = "as_updates"

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Leave the column out."""
        (source,) = inputs
        check_events(name, source)
        if self.diff is not None:
            check_integers(name, source, self.diff)
        return self.view(name, pa.schema([field for field in source.schema if field.name != self.diff]), source)

    def gives_updates(self, inputs: Sequence[View]) -> bool:
        """They are."""
        return True

    def describe(self) -> str:
        """Return the column."""
        return self.diff or ""

    def hashed(self, view: View) -> tuple[str, object]:
        """Return the column."""
        return "as_updates", self.diff

    def needs(self, view: View, wanted: Names) -> tuple[Names, ...]:
        """Return the columns wanted, and the one that says how often."""
        return (wanted if self.diff is None else (*wanted, self.diff),)

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Put the numbers beside the times; rows that count nothing go."""
        rows = tables[0]
        if self.diff is None:
            diffs = pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)])
        else:
            diffs = rows.column(self.diff).cast(pa.int64())
        if diffs.null_count:
            msg = f"null in column {self.diff!r}, at row {pc.index(diffs.is_null(), value=True).as_py()}"
            raise OperatorError(msg, hint="fill or drop such rows: an update says how often its row is added")
        times = rows.select(view.domain.columns).append_column(DIFF, diffs)
        return with_times(times, rows.select(wanted)).filter(pc.field(DIFF) != 0)


class _OfUpdates(Operator):
    """An operator of updates that has no parameters."""

    def bind(self, name: str, inputs: Sequence[View]) -> View:
        """Check that there are updates."""
        check_updates(name, inputs[0])
        return self.view(name, inputs[0].schema, *inputs)

    def hashed(self, view: View) -> tuple[str, object]:
        """Return its kind: its input says all."""
        return self.method, None


@dataclass(frozen=True, eq=False)
class Negate(_OfUpdates):
    """Updates that take back what those of its input add."""

    method = op = "negate"

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Change the sign."""
        rows = tables[0].select(view.with_carried(wanted))
        number = rows.schema.get_field_index(DIFF)
        try:
            negated = pc.negate_checked(rows.column(DIFF))
        except pa.ArrowInvalid as error:
            msg = f"a row that counts {-(1 << 63)} times, the opposite of which does not fit 64 bits"
            raise OperatorError(msg, hint="consolidate the updates before") from error
        return rows.set_column(number, rows.schema.field(number), negated)


@dataclass(frozen=True, eq=False)
class Consolidate(_OfUpdates):
    """One update of each row that changes at a time: the sum of all of that time; none where it is 0."""

    method = op = "consolidate"
    # A sum is made of all updates of its time.
    rowwise = False

    def apply(self, view: View, tables: Sequence[pa.Table], wanted: Names) -> pa.Table:
        """Sum equal rows."""
        return summed_updates(view.domain, tables[0].select(view.with_carried(wanted)))


def summed_updates(domain: TimeDomain, rows: pa.Table) -> pa.Table:
    """Return updates, as a view has them, with equal rows of a time summed, without those that sum to 0.

    Parameters
    ----------
    domain : TimeDomain
    rows : pyarrow.Table
        Time columns, `DIFF`, payload. Not modified.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> rows = pa.table({"_time": [1, 1, 1, 2], "_diff": [1, -1, 2, 1], "v": ["a", "a", "b", "a"]})
    >>> summed_updates(TimeDomain.from_json({"times": ["long"]}), rows).to_pylist()
    [{'_time': 1, '_diff': 2, 'v': 'b'}, {'_time': 2, '_diff': 1, 'v': 'a'}]
    """
    payload = rows.schema.names[domain.arity + 1 :]
    return Updates.of_table(rows, domain, payload).consolidated().with_times(domain).cast(rows.schema)
