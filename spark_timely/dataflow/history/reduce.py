"""The operator `reduce`: a user's function over all rows of a key, called again whenever they change.

`Stream.reduce` makes it. The function sees a key's rows after each time at which they change; what it gave before is
taken back. `reduced_schema` asks the function for the columns that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.base import HIDDEN, Changes, Held, HistoryOperator, Names
from spark_timely.dataflow.history.contents import Boundaries, consolidated
from spark_timely.dataflow.history.keys import key_codes, key_text, ranks_of
from spark_timely.dataflow.history.runs import run_starts_of
from spark_timely.errors import InvalidUsageError, OperatorError, described, kind_of, shown
from spark_timely.time.antichain import IntArray

__all__ = ["COUNT", "Function", "Reduce", "reduced_schema"]

COUNT: Final = "_count"
"""Column in which the function finds how often a row is there."""

Function = Callable[[Mapping[str, Any], pa.Table], pa.Table]


@dataclass(frozen=True)
class Reduce(HistoryOperator):
    """A user's function over the rows of a key, at each time at which they change.

    The function gets the key as a dict, and the distinct rows of the key with a column `COUNT`; in the order of their
    columns, nulls first, whatever the order in which they came. It gives any number of rows, without the key. A key of
    which no row is left has no result: the function is not called for it. It must be a function of what it gets.

    Parameters
    ----------
    by : tuple of str
    function : callable
    columns : tuple of str
        That the function gets, besides `COUNT`.
    result : pyarrow.Schema
        Columns that the function gives: as of `reduced_schema`.

    Examples
    --------
    >>> rows = pa.table({"k": ["a", "a"], "n": [2, 5]})
    >>> def range_of(key, rows):
    ...     numbers = rows["n"].to_pylist()
    ...     return pa.table({"range": pa.array([max(numbers) - min(numbers)] if numbers else [], pa.int64())})
    >>> schema = pa.schema([("range", pa.int64())])
    >>> operator = Reduce(("k",), range_of, ("n",), schema)
    >>> nothing = Held(None, np.zeros(0, np.int64), operator.state(rows.schema).empty_table())
    >>> before = Held(None, np.zeros(0, np.int64), rows.slice(0, 0))
    >>> made = operator.advance(Changes(np.array([1, 4]), np.ones(2, np.int64), rows), nothing, before, of_updates=True)
    >>> list(zip(made.times.tolist(), made.diffs.tolist(), made.rows["range"].to_pylist()))
    [(1, 1, 0), (4, -1, 0), (4, 1, 3)]
    """

    by: Names
    function: Function
    columns: Names
    result: pa.Schema

    kind = "reduce"

    def describe(self) -> str:
        """Return the key, the module and the name of the function, and the columns that it gets and gives."""
        function = getattr(self.function, "func", self.function)  # of functools.partial
        name = getattr(function, "__qualname__", type(function).__qualname__)
        gives = ", ".join(f"{field.name}: {field.type}" for field in self.result)
        return f"by {', '.join(self.by)}: {function.__module__}.{name} of {', '.join(self.columns)} gives {gives}"

    def check(self, source: pa.Schema, *, of_updates: bool) -> None:
        """Refuse columns that would stand for two things.

        Raises
        ------
        InvalidUsageError
        """
        given = self.result.names
        doubled = [name for name in given if name in self.by or name.startswith(HIDDEN) or given.count(name) > 1]
        if doubled:
            msg = f"could not reduce: found columns {shown(doubled)} in what the function gives"
            raise InvalidUsageError(msg, hint="give each column once, without the key, which is put before them")

    def state(self, source: pa.Schema) -> pa.Schema:
        """Return the key, then what the function gives."""
        return pa.schema([*(source.field(name) for name in self.by), *self.result])

    def needs(self, source: pa.Schema) -> Names:
        """Return the key, and the columns that the function gets."""
        return tuple(dict.fromkeys((*self.by, *self.columns)))

    def arranges(self, *, of_updates: bool) -> bool:
        """Return that it needs all rows of a key."""
        return True

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Call the function for each key and time at which its rows change; return what changes in what it gave.

        Raises
        ------
        OperatorError
            If a row would be there less than 0 times, if the function fails, or gives other columns than before.
        """
        assert contents is not None
        (codes,) = key_codes([changes.rows.select(self.by)], self.by)
        numbers = ranks_of(changes.rows, (), codes=codes, key=self.by)
        changes = consolidated(changes.times, numbers, changes.diffs, changes.rows)
        boundaries = Boundaries.of(changes, contents, self.by)
        keys = boundaries.rows.select(self.by)
        given: list[tuple[IntArray, pa.Table, IntArray]] = []
        for at, rows, counts in boundaries.steps():  # as many as the key with the most times has
            if not at.shape[0]:
                continue
            starts = run_starts_of(at)
            ends = np.append(starts[1:], at.shape[0])
            n_made, tables = [], []
            for low, high in zip(starts, ends, strict=True):  # a call of the function each
                mine = boundaries.rows.select(self.columns).take(pa.array(rows[low:high]))
                made = self._made(keys, int(rows[low]), mine, counts[low:high], int(boundaries.times[at[low]]))
                tables.append(made)
                n_made.append(made.num_rows)
            results = pa.concat_tables(tables)
            of_key = keys.take(pa.array(np.repeat(rows[starts], n_made))) if self.by else None
            every = {name: of_key.column(name) for name in self.by} if of_key is not None else {}
            every |= {name: results.column(name) for name in self.result.names}
            given.append((np.repeat(at[starts], n_made), pa.table(every), np.ones(results.num_rows, np.int64)))
        return boundaries.changes_of(given, held)

    def _made(self, keys: pa.Table, row: int, rows: pa.Table, counts: IntArray, time: int) -> pa.Table:
        """Return what the function gives for a key at a time."""
        key = {name: keys.column(name)[row].as_py() for name in self.by}
        where = f"for {key_text(keys, row)} at time={time}"
        try:
            made = self.function(key, _with_counts(rows, counts))
        except Exception as error:
            msg = f"{described(error)} of the function {where}"
            raise OperatorError(
                msg, hint="correct the function or the data; nothing of these times was written"
            ) from error
        hint = "let the function give the same columns for all keys, and for a table without rows"
        if not isinstance(made, pa.Table):
            msg = f"a value of type {kind_of(made)!r} of the function {where}, not a pyarrow.Table"
            raise OperatorError(msg, hint=hint)
        if sorted(made.schema.names) != sorted(self.result.names):
            msg = f"columns {shown(made.schema.names)} of the function {where}, not {shown(self.result.names)}"
            raise OperatorError(msg, hint=hint)
        try:
            return made.select(self.result.names).cast(self.result)
        except (pa.ArrowException, ValueError) as error:
            msg = f"{described(error)} in what the function gave {where}"
            raise OperatorError(msg, hint=hint) from error


def _with_counts(rows: pa.Table, counts: IntArray) -> pa.Table:
    """Return rows, which may have no columns, with how often each is there."""
    return pa.table({**{name: rows.column(name) for name in rows.schema.names}, COUNT: pa.array(counts, pa.int64())})


def reduced_schema(function: Function, source: pa.Schema, by: Names, columns: Names) -> pa.Schema:
    """Return the columns that a function gives when it is called without rows, for a key of nulls.

    Parameters
    ----------
    function : callable
        As of `Reduce`.
    source : pyarrow.Schema
        Of the input.
    by, columns : tuple of str

    Returns
    -------
    pyarrow.Schema

    Raises
    ------
    InvalidUsageError
        If it gives no table. What it raises itself goes through.

    Examples
    --------
    >>> source = pa.schema([("k", pa.string()), ("n", pa.int64())])
    >>> reduced_schema(lambda key, rows: rows.select(["n"]), source, ("k",), ("n",)).names
    ['n']
    """
    fields = [*(source.field(name) for name in columns), pa.field(COUNT, pa.int64())]
    made = function(dict.fromkeys(by), pa.schema(fields).empty_table())
    if not isinstance(made, pa.Table):
        msg = f"could not reduce: found a value of type {kind_of(made)!r}, not a pyarrow.Table"
        raise InvalidUsageError(msg, hint="let the function give a pyarrow.Table, also for a table without rows")
    return made.schema
