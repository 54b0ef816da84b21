"""The latest row of each key, with deletions remembered for a limited time; rows that come too late are set apart.

It is behind `latest` and `upsert` of a stream where `tombstones` says how long deletions are kept
(`operators.history`); `best` keeps them for ever. Rows that are set apart become *dead letters* of the operator's log:
rows beside its contents, with the reason.

A deletion is kept until the times of the log are further than its own by `keeps`. Its end is written together with it,
at the later time at which it falls due: so a key that was deleted and never changes again is looked at no more. After
its end nothing is known of the key. A row that is older than all deletions that are still known may then be one that
was deleted: it is not believed, and not lost either.

Invariants
----------
1. What is known of a key is the newest of the rows that its state has: deletions stay there until they end.
2. A row is set apart only if it is older, by more than `keeps`, than the time at which it comes, and nothing is known
   of its key just before that time. So no row that was deleted ever comes back.
3. As long as no such row comes, the result is that of `Best`, which remembers deletions for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.history.base import Changes, Held, HistoryOperator
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.contents import consolidated
from spark_timely.dataflow.history.runs import best_so_far, places_by_number, run_starts_of, spread
from spark_timely.errors import TimelyInternalError
from spark_timely.time.antichain import BoolArray, IntArray
from spark_timely.time.domain import TimeType

__all__ = ["LatestWithin"]

_LEAST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class LatestWithin(Best):
    """The newest row of each key, of events, with deletions that are kept for a while.

    Parameters
    ----------
    keeps : int
        How long, in units of the times: a deletion whose first order column says o is known before time o + keeps + 1.
    type_ : TimeType
        Of the times, and of the first column of the order.

    Examples
    --------
    >>> schema = pa.schema([("k", pa.string()), ("at", pa.int64()), (DELETED, pa.bool_())])
    >>> rows = pa.table([["a", "a"], [5, 6], [False, True]], schema=schema)
    >>> nothing = Held(None, np.zeros(0, np.int64), schema.empty_table())
    >>> latest = LatestWithin(("k",), (("at", True),), 1, "latest", True, keeps=10, type_=TimeType.LONG)
    >>> made = latest.advance(Changes(np.array([5, 7]), np.ones(2, np.int64), rows), nothing, None, of_updates=False)
    >>> sorted(zip(made.times.tolist(), made.diffs.tolist(), made.rows[DELETED].to_pylist()))
    [(5, 1, False), (7, -1, False), (7, 1, True), (17, -1, True)]
    """

    keeps: int = 0
    type_: TimeType = TimeType.LONG

    @property
    def later(self) -> bool:
        """Ends of deletions."""
        return True

    def describe(self) -> str:
        """Return key, order, and how long deletions are kept."""
        return f"{super().describe()} kept {self.keeps}"

    arranges = HistoryOperator.arranges  # it is one of events

    @property
    def why_apart(self) -> str:
        """Why rows are set apart."""
        return (
            f"older than the deletions that are kept ({self.keeps} units of time before the row's own), and nothing is "
            "known of its key"
        )

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return how the newest rows change, with the ends of deletions; and which rows are set apart."""
        if of_updates or held.times is not None:
            msg = "deletions are kept for a while of events only, in a state of updates"
            raise TimelyInternalError(msg)
        # A deletion that ended before the range is not among what is held; an end in the range is still to come.
        every = self._arrivals(held.rows, changes)
        rows, places, times, new = every.rows, every.places, every.times, every.is_new
        said, dated = self._said(rows)
        gone = np.asarray(rows.column(DELETED).to_numpy(), np.bool_)
        ends, ending = _plus(said, self.keeps, self.type_.hi)
        # Null is older than all: such a deletion ends where it comes.
        ends[~dated], ending[~dated] = _LEAST, True
        old = new & ending & (ends <= times)

        # Of each key and time the newest of all so far, with those that will be set apart: whatever is believed after
        # such a row is newer than it, so it hides nothing.
        order = every.by_time()
        codes = every.codes[order]
        firsts = run_starts_of(codes, new[order], times[order])
        if not firsts.shape[0]:
            return Changes(changes.times, changes.diffs, rows)
        best = best_so_far(places[order], run_starts_of(codes))
        after = places_by_number(places)[best[np.append(firsts[1:], order.shape[0]) - 1]]
        key, time, of_range = codes[firsts], times[order][firsts], new[order][firsts]
        n = firsts.shape[0]
        begins = np.zeros(n, np.bool_)
        begins[run_starts_of(key)] = True
        before = np.where(begins, -1, np.roll(after, 1))
        # What was there before the range is believed; a row that comes is if it is not old, or if its key is known.
        # Nothing is known any more from the end of a deletion on.
        over = (before >= 0) & gone[before] & ending[before] & (ends[before] <= time)
        # An equal row may have come earlier or later: whether it is old is another question each time.
        young = np.maximum.reduceat(np.where(old[order], -1, places[order]), firsts)
        comes = (after != before) & (young == places[after])
        known = _known(begins, over, comes)
        known_before = ~begins & np.roll(known, 1) & ~over
        place_of: IntArray = np.empty(rows.num_rows, np.int64)
        place_of[order] = spread(np.arange(n), firsts, order.shape[0])
        apart = old & ~known_before[place_of]

        # What is believed now comes, a deletion with its end; what was goes, but for a deletion that ends by itself: to
        # take back its end, an update of some time before that, would make files that reach over all these times.
        believed = known & of_range & (after != before)
        goes = believed & known_before & ~(gone[before] & ending[before])
        ended = believed & gone[after] & ending[after]
        taken = np.concatenate([after[believed], before[goes], after[ended]])
        at = np.concatenate([time[believed], time[goes], np.maximum(ends[after[ended]], time[ended])])
        diffs = np.where(np.arange(taken.shape[0]) < np.count_nonzero(believed), 1, -1)
        made = consolidated(at, places[taken], diffs, rows.take(pa.array(taken)))
        return replace(made, apart=np.flatnonzero(apart[new]))

    def _said(self, rows: pa.Table) -> tuple[IntArray, BoolArray]:
        """Return what the first column of the order says, as times are encoded, and where it says anything."""
        column = rows.column(self.order[0][0])
        whole = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
        said: IntArray = np.array(whole.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)
        return said, np.asarray(column.is_valid().to_numpy(), np.bool_)


def _plus(values: IntArray, keeps: int, last: int) -> tuple[IntArray, BoolArray]:
    """Return the first time after a value at which it is out of date, and where there is such a time."""
    most = last - keeps - 1
    if most < _LEAST:
        return values, np.zeros(values.shape[0], np.bool_)
    there = values <= most
    # As unsigned numbers what is added fits, and the sum is right as a signed one.
    ends = np.where(there, values, most).view(np.uint64) + np.uint64(keeps + 1)
    return ends.view(np.int64), there


def _known(begins: BoolArray, over: BoolArray, comes: BoolArray) -> BoolArray:
    """Return after which times of keys something is known: something came since it was last over."""
    n = np.arange(begins.shape[0])
    came = np.maximum.accumulate(np.where(comes, n, -1))
    ended = np.maximum.accumulate(np.where(begins | over, n, -1))
    return came >= ended
