"""Truncates: changes that empty a whole table, among the changes to its keys.

`upsert` puts `Truncated` around the operator that keeps the keys, where the user says which changes are truncates. Such
a change deletes all keys up to its place in the order of changes; also keys of which no change came yet. So rows are
looked up as those of one key: a step reads all that is there, in one task.

Invariants
----------
1. To empty the table is to delete every key at the sequence of that change, before all else of this sequence; also keys
   that come later.
2. Of the changes that empty the table the last one, in their order, is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.dataflow.history.base import HIDDEN, Changes, Held, HistoryOperator, Names
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.contents import consolidated
from spark_timely.dataflow.history.keys import key_codes, ranks_of
from spark_timely.dataflow.history.merged import flagged

if TYPE_CHECKING:
    from spark_timely.time.antichain import IntArray

__all__ = ["TRUNCATES", "Truncated"]

TRUNCATES = f"{HIDDEN}truncates"
"""Whether a row says that all keys of a lower sequence are gone."""


@dataclass(frozen=True)
class Truncated(HistoryOperator):
    """Another operator's state of events, some of which empty the table.

    Parameters
    ----------
    by : tuple of str
        Nothing: all keys are one.
    keys : tuple of str
        The key of the operator in it.
    sequence : tuple of str
        Columns that order the changes; the operator in it puts a row of `TRUNCATES` before the others that are equal.
    inner : HistoryOperator
        Takes rows of `DELETED` for deletions.

    Notes
    -----
    Cost: O(n log n) of the n rows that are there, at each step and for each time at which the table is emptied.
    """

    by: Names
    keys: Names
    sequence: Names
    inner: HistoryOperator

    @property
    def kind(self) -> str:
        """What it is called."""
        return self.inner.kind

    def describe(self) -> str:
        """Return what is kept."""
        return f"{self.inner.describe()}, emptied"

    def show(self, rows: pa.Table) -> pa.Table:
        """Leave out what empties the table, and what the other operator leaves out."""
        return self.inner.show(rows.filter(pc.invert(rows.column(TRUNCATES))))

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return what changes in the state, one stretch of times after the other that begins with an empty table."""
        names = changes.rows.schema.names
        there = held.rows.select(names)
        empties, emptied = (np.asarray(rows.column(TRUNCATES).to_numpy(), np.bool_) for rows in (changes.rows, there))
        last = there.filter(pa.array(emptied))
        there = there.filter(pa.array(~emptied))
        given = [self._lasts(changes, empties, last, of_updates=of_updates)]
        comes = np.flatnonzero(given[0].diffs > 0)
        comes = comes[np.argsort(given[0].times[comes])]
        news = changes.rows.filter(pa.array(~empties))
        times = changes.times[~empties]
        cuts = np.searchsorted(given[0].times[comes], times, side="right")
        for turn in range(comes.shape[0] + 1):
            mine = news.filter(pa.array(cuts == turn))
            at = times[cuts == turn]
            if turn:
                last = given[0].rows.slice(int(comes[turn - 1]), 1)
                begins = int(given[0].times[comes[turn - 1]])
                gone = self._deletions(last, pa.concat_tables([there.select(self.keys), mine.select(self.keys)]), names)
            elif not mine.num_rows:
                continue
            else:
                begins = int(at.min())
                gone = self._deletions(last, mine.select(self.keys), names)
            rows = pa.concat_tables([mine, gone], promote_options="permissive")
            if not rows.num_rows:
                continue
            at = np.concatenate([at, np.full(gone.num_rows, begins, np.int64)])
            now = Held(None, np.ones(there.num_rows, np.int64), there)
            made = self.inner.advance(
                Changes(at, np.ones(at.shape[0], np.int64), rows), now, None, of_updates=of_updates
            )
            kept = np.flatnonzero(~np.asarray(made.rows.column(TRUNCATES).to_numpy(), np.bool_))
            made = Changes(made.times[kept], made.diffs[kept], made.rows.take(pa.array(kept)))
            given.append(made)
            there = self._added(there, made)
        return Changes(
            np.concatenate([each.times for each in given]),
            np.concatenate([each.diffs for each in given]),
            pa.concat_tables([each.rows.select(names) for each in given], promote_options="permissive"),
        )

    def _lasts(self, changes: Changes, empties: npt.NDArray[np.bool_], last: pa.Table, *, of_updates: bool) -> Changes:
        """Return how the last of the changes that empty the table changes."""
        rows = changes.rows.filter(pa.array(empties))
        if not rows.num_rows:
            return Changes(changes.times[:0], changes.diffs[:0], rows)
        found = Changes(changes.times[empties], changes.diffs[empties], rows)
        order = tuple((name, True) for name in self.sequence)
        held = Held(None, np.ones(last.num_rows, np.int64), last)
        return Best((), order).advance(found, held, None, of_updates=of_updates)

    def _deletions(self, last: pa.Table, keys: pa.Table, names: Names) -> pa.Table:
        """Return a deletion of each key at the sequence of a change that empties the table."""
        (codes,) = key_codes([keys], self.keys)
        keys = keys.take(pa.array(np.unique(codes, return_index=True)[1]))
        n = keys.num_rows if last.num_rows else 0
        alike = last.take(pa.array(np.zeros(n, np.int64)))
        columns = []
        for name in names:
            if name in self.keys:
                columns.append(keys.column(name).slice(0, n))
            elif name in self.sequence or name.startswith(HIDDEN):
                columns.append(alike.column(name))
            else:
                columns.append(pa.chunked_array([pa.nulls(n, last.schema.field(name).type)]))
        made = pa.table(
            columns, schema=pa.schema([last.schema.field(name).with_nullable(nullable=True) for name in names])
        )
        return flagged(made, **{DELETED: True, TRUNCATES: True})

    def _added(self, there: pa.Table, made: Changes) -> pa.Table:
        """Return the rows that are there after changes."""
        rows = pa.concat_tables([there, made.rows.select(there.schema.names)], promote_options="permissive")
        (codes,) = key_codes([rows.select(self.keys)], self.keys)
        diffs = np.concatenate([np.ones(there.num_rows, np.int64), made.diffs])
        still: IntArray = np.zeros(rows.num_rows, np.int64)
        return consolidated(still, ranks_of(rows, (), codes=codes, key=self.keys), diffs, rows).rows
