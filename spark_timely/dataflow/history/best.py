"""The best rows of each key, in an order by columns: the latest, the top n, the least.

It is behind `latest` and `top` of a stream (`operators.history`), and behind `upsert` where whole rows count. `merged`,
`versions` and `tombstones` extend it. `first` differs: it takes the first row by time, and never takes it back.

Over events the state is the result: n rows a key, and what is displaced never comes back. Over a collection what is
taken away may have been among the best, so what the input holds of a key is looked up too.

Invariants
----------
1. Which rows are the best is a function of the rows: of two that are equal in the order their other columns decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.history.base import HIDDEN, Changes, Held, HistoryOperator, Names
from spark_timely.dataflow.history.contents import Boundaries, consolidated
from spark_timely.dataflow.history.keys import key_codes, ranks_of
from spark_timely.dataflow.history.runs import nth_so_far, places_by_number, run_starts_of, sums_so_far, wide
from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["DELETED", "Arrivals", "Best"]

DELETED = f"{HIDDEN}deleted"
"""Whether a row says that its key is gone."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The rows that a state has and those that come in a range of times, in one table.

    Attributes
    ----------
    rows : pyarrow.Table
        n rows, those of the state first.
    codes : ndarray of int64, shape (n,)
        Numbers of keys, from 0 on.
    places : ndarray of int64, shape (n,)
        In the operator's order: the best of a key has the greatest; equal rows have one.
    times : ndarray of int64, shape (n,)
        0 of those of the state, which come before all others.
    is_new : ndarray of bool, shape (n,)
        Which come in the range.
    """

    rows: pa.Table
    codes: IntArray
    places: IntArray
    times: IntArray
    is_new: BoolArray

    def by_time(self) -> IntArray:
        """Return the numbers of the rows, ordered by key, and those of a key as they come."""
        return np.lexsort((self.times, self.is_new, self.codes))

    def rows_at(self, places: IntArray) -> pa.Table:
        """Return rows by their places."""
        return self.rows.take(pa.array(places_by_number(self.places)[places]))


@dataclass(frozen=True)
class Best(HistoryOperator):
    """The n best rows of each key.

    Parameters
    ----------
    by : tuple of str
    order : tuple of (str, bool)
        Columns, and whether the greatest value is the best; after these all other columns decide, the greatest first.
        Null is less than any value.
    n : int
    kind : str
        What it is called: ``latest``, ``top``.
    deleted : bool
        Whether the input has a column `DELETED`: of rows that are equal in the order such a one is the best; it is
        kept, and is no part of the result.
    """

    by: Names
    order: tuple[tuple[str, bool], ...]
    n: int = 1
    kind: str = "top"
    deleted: bool = False

    def describe(self) -> str:
        """Return key, order and number."""
        order = ", ".join(f"{name}{' desc' if greatest else ''}" for name, greatest in self.order)
        return f"{self.n} by {', '.join(self.by)} order by {order}{', deleted' if self.deleted else ''}"

    def shown(self, source: pa.Schema) -> pa.Schema:
        """Return the columns of the input, without that of deletions."""
        return pa.schema([field for field in source if field.name != DELETED])

    def arranges(self, *, of_updates: bool) -> bool:
        """Return whether rows may be taken away."""
        return of_updates

    def show(self, rows: pa.Table) -> pa.Table:
        """Leave out deletions."""
        if not self.deleted:
            return rows
        return rows.filter(pc.invert(rows.column(DELETED))).drop_columns([DELETED])

    def _places(self, rows: pa.Table, codes: IntArray) -> IntArray:
        """Return the places of rows, of each key the best last."""
        order = list(self.order)
        if self.deleted:
            order.append((DELETED, True))
        named = [(name, not greatest) for name, greatest in order if name not in self.by]
        return ranks_of(rows, named, codes=codes, key=self.by)

    def _arrivals(self, before: pa.Table, changes: Changes) -> Arrivals:
        """Return the rows of a state, and those that come after them."""
        rows = pa.concat_tables([before.select(changes.rows.schema.names), changes.rows], promote_options="permissive")
        (codes,) = key_codes([rows.select(self.by)], self.by)
        times = np.concatenate([np.zeros(before.num_rows, np.int64), changes.times])
        is_new = np.arange(rows.num_rows) >= before.num_rows
        return Arrivals(rows, codes, self._places(rows, codes), times, is_new)

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return how the best rows change."""
        if of_updates:
            assert contents is not None
            return self._recomputed(changes, held, contents)
        every = self._arrivals(held.rows, changes)
        counts = np.concatenate([held.counts, np.ones(changes.times.shape[0], np.int64)])
        # Of more equal rows than are the best, n say it all.
        each = np.repeat(np.arange(every.rows.num_rows), np.minimum(counts, self.n))
        order = each[np.lexsort((every.places[each], every.times[each], every.is_new[each], every.codes[each]))]
        arrived, times = every.places[order], every.times[order]
        # What was the n-th best until a better one came is not among the best any more. Of one that comes and is
        # displaced at one time nothing is left.
        worst = nth_so_far(arrived, run_starts_of(every.codes[order]), self.n)
        comes = every.is_new[order] & (arrived > worst)
        goes = comes & (worst >= 0)
        places = np.concatenate([arrived[comes], worst[goes]])
        diffs = np.repeat(np.array([1, -1]), [np.count_nonzero(comes), np.count_nonzero(goes)])
        return consolidated(np.concatenate([times[comes], times[goes]]), places, diffs, every.rows_at(places))

    def _recomputed(self, changes: Changes, held: Held, contents: Held) -> Changes:
        """Return how the best rows change of what is there at each time, where rows may be taken away."""
        boundaries = Boundaries.of(changes, contents, self.by)
        places = self._places(boundaries.rows, boundaries.codes)
        given: list[tuple[IntArray, pa.Table, IntArray]] = []
        for at, rows, counts in boundaries.steps([places], self.n):  # as many as the key with the most times has
            order = np.lexsort((-places[rows], at))
            # Of more equal rows than are wanted, those say it all; their sum may still be beyond 64 bits.
            (most,) = wide(np.minimum(counts[order], self.n))
            better = sums_so_far(most, run_starts_of(at[order])) - most
            taken = np.clip(self.n - better, 0, most).astype(np.int64)
            chosen = taken > 0
            given.append((at[order][chosen], boundaries.rows.take(pa.array(rows[order][chosen])), taken[chosen]))
        return boundaries.changes_of(given, held)
