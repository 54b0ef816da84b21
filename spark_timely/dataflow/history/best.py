"""The best rows of each key, in an order by columns: the latest, the top n, the least.

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
from spark_timely.dataflow.history.keys import key_codes, nth_so_far, ranks_of, run_starts_of
from spark_timely.time.arrays import IntArray

__all__ = ["DELETED", "Best"]

DELETED = f"{HIDDEN}deleted"
"""Whether a row says that its key is gone."""


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

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return how the best rows change."""
        if of_updates:
            assert contents is not None
            return self._recomputed(changes, held, contents)
        rows = pa.concat_tables(
            [held.rows.select(changes.rows.schema.names), changes.rows], promote_options="permissive"
        )
        (codes,) = key_codes([rows.select(self.by)], self.by)
        counts = np.concatenate([held.counts, np.ones(changes.times.shape[0], np.int64)])
        times = np.concatenate([np.zeros(held.counts.shape[0], np.int64), changes.times])
        later = np.concatenate([np.zeros(held.counts.shape[0], np.int64), np.ones(changes.times.shape[0], np.int64)])
        places = self._places(rows, codes)
        example: IntArray = np.zeros(int(places.max(initial=-1)) + 1, np.int64)
        example[places] = np.arange(rows.num_rows)
        # Of more equal rows than are the best, n say it all.
        each = np.repeat(np.arange(rows.num_rows), np.minimum(counts, self.n))
        order = each[np.lexsort((places[each], times[each], later[each], codes[each]))]
        arrivals = places[order]
        # What was the n-th best until a better one came is not among the best any more. Of one that comes and is
        # displaced at one time nothing is left.
        worst = nth_so_far(arrivals, run_starts_of(codes[order]), self.n)
        comes = (later[order] == 1) & (arrivals > worst)
        goes = comes & (worst >= 0)
        at, numbers = times[order], np.concatenate([arrivals[comes], worst[goes]])
        diffs = np.concatenate([np.ones(int(comes.sum()), np.int64), np.full(int(goes.sum()), -1, np.int64)])
        taken = rows.take(pa.array(example[numbers]))
        return consolidated(np.concatenate([at[comes], at[goes]]), numbers, diffs, taken)

    def _recomputed(self, changes: Changes, held: Held, contents: Held) -> Changes:
        """Return how the best rows change of what is there at each time, where rows may be taken away."""
        boundaries = Boundaries.of(changes, contents, self.by)
        places = self._places(boundaries.rows, boundaries.codes)
        given: list[tuple[IntArray, pa.Table, IntArray]] = []
        for at, rows, counts in boundaries.steps([places], self.n):  # as many as the key with the most times has
            order = np.lexsort((-places[rows], at))
            starts = run_starts_of(at[order])
            # Of more equal rows than are wanted, those say it all; their sum may still be beyond 64 bits.
            most = np.minimum(counts[order], self.n)
            wide = most.astype(object) if self.n * order.shape[0] >= 1 << 62 else most
            before = np.cumsum(wide) - wide
            base = np.repeat(before[starts], np.diff(starts, append=order.shape[0]))
            taken = np.clip(self.n - (before - base), 0, most).astype(np.int64)
            chosen = taken > 0
            given.append((at[order][chosen], boundaries.rows.take(pa.array(rows[order][chosen])), taken[chosen]))
        return boundaries.changes_of(given, held)
