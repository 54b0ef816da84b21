"""Dataflows over tables at hand: to try operators and to test functions, without logs and without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import Names, Replay
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain, TimeType

if TYPE_CHECKING:
    from spark_timely.dataflow.views import View

__all__ = ["rows_of", "stream_of"]


class _TableScope(Scope):
    """A dataflow whose inputs are tables."""

    def __init__(self) -> None:
        super().__init__("tables")
        self.tables: dict[View, pa.Table] = {}


def stream_of(rows: pa.Table | Mapping[str, object], /, *, beside: Stream | None = None) -> Stream:
    """Return a stream of the rows of a table.

    Parameters
    ----------
    rows : pyarrow.Table or mapping
        With a column ``_time``, or ``_time_0``, ``_time_1``, … for product times.
    beside : Stream, optional
        A stream made so, in the same dataflow: to join with it.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> rows = stream_of({"_time": [1, 2], "n": [10, 20]})
    >>> rows_of(rows.filter(pc.field("n") > 10))
    [{'_time': 2, 'n': 20}]
    """
    table = rows if isinstance(rows, pa.Table) else pa.table(dict(rows))
    times = [name for name in table.schema.names if name == "_time" or name.startswith("_time_")]
    kinds = tuple(TimeType.from_arrow_type(table.schema.field(name).type) for name in times)
    domain = TimeDomain(kinds)
    scope = _TableScope() if beside is None else beside._scope
    assert isinstance(scope, _TableScope)
    schema = pa.schema([field for field in table.schema if field.name not in times])
    leaf = Replay(scope.next_name("replay"), domain, schema, (), f"table {len(scope.tables) + 1}")
    scope.tables[leaf] = table
    return Stream(scope, leaf)


def rows_of(stream: Stream, /, *, lower: object = None, upper: object = ()) -> list[dict[str, object]]:
    """Return the rows of a stream at a range of times, in the order of their times.

    Parameters
    ----------
    stream : Stream
        Made of `stream_of`.
    lower, upper : frontier, optional
        All times unless given.

    Returns
    -------
    list of dict
        Ordered by time, and among the rows of a time by what they hold.

    Examples
    --------
    >>> rows_of(stream_of({"_time": [2, 1]}), upper=[2])
    [{'_time': 1}]
    """
    view = stream.view
    scope = stream._scope
    assert isinstance(scope, _TableScope)
    domain = view.domain
    tables = scope.tables

    def read(leaf: Replay, lo: Antichain, hi: Antichain, columns: Names) -> pa.Table:
        rows = tables[leaf]
        times = domain.from_columns(rows)
        return rows.filter(pa.array(lo.beyond(times) & ~hi.beyond(times))).select([*domain.columns, *columns])

    least = Antichain.of(tuple(kind.lo for kind in domain.types))
    lo = least if lower is None else domain.parse_frontier(lower)
    hi = domain.parse_frontier(list(upper) if isinstance(upper, Sequence) else upper)
    found: list[dict[str, object]] = view.run(read, lo, hi).to_pylist()

    def place(row: dict[str, object]) -> list[tuple[bool, object]]:
        values = enumerate(row.values())
        return [(value is None, value if i < domain.arity else str(value)) for i, value in values]

    return sorted(found, key=place)
