"""All versions of each key, each with the sequences at which it begins and ends: SCD type 2.

It is behind `upsert` where history is kept (`upsert.upsert_plan`). A *sequence* is the value that orders the changes of
a key, as the number of a source's commit. `MergedVersions` are versions in which a null leaves the value before it.

Invariants
----------
1. The last change of each key and sequence is a version; it ends at the next sequence that the key has, or is valid
   still. A deletion is kept as such a row too, and is no part of the result: it only ends the version before it.
2. A change is put between two that are there: it ends the version before it, and ends where that one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.base import Changes, Held, HistoryOperator, Names
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.contents import Boundaries, consolidated
from spark_timely.dataflow.history.keys import ranks_of
from spark_timely.dataflow.history.merged import EVENT, RESULT, flagged
from spark_timely.dataflow.history.runs import best_so_far, run_starts_of, spread
from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["END", "START", "MergedVersions", "Versions", "nearest_earlier"]

START = "__START_AT"
"""From which sequence on a version is valid."""

END = "__END_AT"
"""The sequence at which it is valid no more; null as long as it is."""


def nearest_earlier(times: IntArray, starts: IntArray) -> IntArray:
    """Return where, within its run, the nearest one before each is that has a lesser number; -1 where there is none.

    Parameters
    ----------
    times : ndarray of int64, shape (n,)
        All different.
    starts : ndarray of int64, shape (m,)
        Where runs begin.

    Notes
    -----
    Cost: O(n log r) for runs of r rows at most.

    Examples
    --------
    >>> nearest_earlier(np.array([3, 1, 4, 2, 5]), np.array([0])).tolist()
    [-1, -1, 1, 1, 3]
    """
    n = times.shape[0]
    length = np.diff(starts, append=n)
    first = spread(starts, starts, n)
    # By steps of powers of two: the least of the last 2, 4, 8, … rows up to each.
    least = [times]
    for level in range(int(length.max(initial=1)).bit_length() - 1):
        below, step = least[-1], 1 << level
        above = below.copy()
        above[step:] = np.minimum(below[step:], below[:-step])
        least.append(above)
    found = np.arange(n) - 1
    for level in range(len(least) - 1, -1, -1):
        step = 1 << level
        skips = (found - step + 1 >= first) & (least[level][np.maximum(found, 0)] > times)
        found = np.where(skips, found - step, found)
    return np.where(found >= first, found, -1)


@dataclass(frozen=True)
class Versions(Best):
    """The versions of each key, of events; `START` and `END` are columns of the input too, the latter null there.

    Examples
    --------
    >>> schema = pa.schema([("k", pa.string()), ("at", pa.int64()), (START, pa.int64()), (END, pa.int64())])
    >>> rows = pa.table([["a", "a"], [5, 9], [5, 9], [None, None]], schema=schema)
    >>> nothing = Held(None, np.zeros(0, np.int64), schema.empty_table())
    >>> versions = Versions(("k",), (("at", True),))
    >>> made = versions.advance(Changes(np.array([1, 2]), np.ones(2, np.int64), rows), nothing, None, of_updates=False)
    >>> sorted(zip(made.times.tolist(), made.diffs.tolist(), made.rows["at"].to_pylist(), made.rows[END].to_pylist()))
    [(1, 1, 5, None), (2, -1, 5, None), (2, 1, 5, 9), (2, 1, 9, None)]
    """

    def describe(self) -> str:
        """Return key and order."""
        return f"{super().describe()}, each with its end"

    arranges = HistoryOperator.arranges  # it is one of events

    def _places(self, rows: pa.Table, codes: IntArray) -> IntArray:
        """Return the places of rows, whatever their ends are."""
        return super()._places(rows.drop_columns([END]), codes)

    def _sequences(self, rows: pa.Table, codes: IntArray) -> IntArray:
        """Return numbers of rows, equal where key and sequence are."""
        return ranks_of(rows.select([*self.by, *dict(self.order)]), (), codes=codes, key=self.by)

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return which versions come, go, and end otherwise than before."""
        every = self._arrivals(held.rows, changes)
        rows, n = every.rows, every.rows.num_rows
        order = np.argsort(every.places, kind="stable")
        place, group = every.places[order], self._sequences(rows, every.codes)[order]
        times, new, runs = every.times[order], every.is_new[order], run_starts_of(every.codes[order])
        # Rows come one after the other, those of one time in any order: they are consolidated.
        arrivals: IntArray = np.empty(n, np.int64)
        arrivals[np.lexsort((times, new))] = np.arange(n)
        before = nearest_earlier(arrivals, runs)
        length = np.diff(runs, append=n)
        backwards = nearest_earlier(arrivals[::-1], n - (runs + length)[::-1])[::-1]
        after = np.where(backwards >= 0, n - 1 - backwards, -1)

        # What is between two neighbours when it comes parts them.
        comes = np.flatnonzero(new)
        version = np.concatenate([before[comes], before[comes], comes])
        following = np.concatenate([after[comes], comes, after[comes]])
        signs = np.repeat(np.array([-1, 1, 1]), comes.shape[0])
        at = np.tile(times[comes], 3)
        # Of those of one sequence the last one is the version.
        is_one = (version >= 0) & ((following < 0) | (group[version] != group[following]))
        version, following, signs, at = version[is_one], following[is_one], signs[is_one], at[is_one]
        if self.deleted:  # where nothing was taken away from nothing, the next one changes nothing
            gone = np.asarray(rows.column(DELETED).to_numpy(), np.bool_)[order]
            following = np.where(gone[version], -1, following)
        numbers = place[version] * (n + 1) + np.where(following >= 0, group[following], n)
        made = _with_ends(rows.take(pa.array(order[version])), rows, order[following], following < 0)
        return consolidated(at, numbers, signs, made)


def _with_ends(versions: pa.Table, rows: pa.Table, following: IntArray, still: BoolArray) -> pa.Table:
    """Return versions that end where the rows that follow them begin."""
    at = versions.schema.get_field_index(END)
    ends = rows.column(START).take(pa.array(following, mask=still))
    return versions.set_column(at, versions.schema.field(at), ends)


@dataclass(frozen=True)
class MergedVersions(Versions):
    """The versions of each key where a null says nothing: each column has the last value since the last deletion.

    Kept are all changes beside the versions: one that comes late may change every version after it.

    Notes
    -----
    Cost: of t times of a key that has r changes O(r t).
    """

    def describe(self) -> str:
        """Return key and order."""
        return f"{super().describe()}, of each column"

    def show(self, rows: pa.Table) -> pa.Table:
        """Leave out all but the versions."""
        return rows.filter(rows.column(RESULT))

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return which versions come and go, and the changes that came."""
        before = held.rows.select(changes.rows.schema.names)
        known = np.flatnonzero(np.asarray(before.column(EVENT).to_numpy(), np.bool_))
        boundaries = Boundaries.of(changes, Held(None, held.counts[known], before.take(pa.array(known))), self.by)
        rows = boundaries.rows
        places, groups = self._places(rows, boundaries.codes), self._sequences(rows, boundaries.codes)
        given: list[tuple[IntArray, pa.Table, IntArray]] = []
        for at, there, _ in boundaries.steps():  # as many as the key with the most times has
            if not at.shape[0]:
                continue
            order = np.lexsort((places[there], at))
            which, versions = self._versions(rows, there[order], groups[there[order]], at[order])
            given.append((at, rows.take(pa.array(there)), np.ones(there.shape[0], np.int64)))
            given.append((which, versions, np.ones(which.shape[0], np.int64)))
        return boundaries.changes_of(given, held)

    def _versions(self, rows: pa.Table, there: IntArray, groups: IntArray, at: IntArray) -> tuple[IntArray, pa.Table]:
        """Return the versions that changes make, in their order: when each is there, and its row."""
        runs = run_starts_of(at)
        n = there.shape[0]
        gone = np.zeros(n, np.bool_)
        if self.deleted:
            gone = np.asarray(rows.column(DELETED).to_numpy(), np.bool_)[there]
        number = np.arange(n)
        deletion = best_so_far(np.where(gone, number, -1), runs)
        lasts = np.append(run_starts_of(at, groups)[1:], n) - 1
        follows = np.minimum(lasts + 1, n - 1)
        still = (lasts + 1 >= n) | (at[follows] != at[lasts])
        is_one = ~gone[lasts]
        lasts, follows, still = lasts[is_one], follows[is_one], still[is_one]
        versions = _with_ends(rows.take(pa.array(there[lasts])), rows, there[follows], still)
        for name in _values(rows.schema.names, self):
            says = np.asarray(rows.column(name).is_valid().to_numpy())[there] & ~gone
            last = best_so_far(np.where(says, number, -1), runs)
            last = np.where(last > deletion, last, -1)[lasts]
            place = versions.schema.get_field_index(name)
            taken = rows.column(name).take(pa.array(there[last], mask=last < 0))
            versions = versions.set_column(place, versions.schema.field(place), taken)
        return at[lasts], flagged(versions, **{EVENT: False, RESULT: True})


def _values(names: Sequence[str], operator: Best) -> Names:
    """Return the columns that have values of their own: neither the key nor the order."""
    apart = {*operator.by, *dict(operator.order), START, END, DELETED, EVENT, RESULT}
    return tuple(name for name in names if name not in apart)
