"""The first row of each key: deduplication of rows that come again.

It is behind `drop_duplicates` of a stream, and `distinct` over events (`operators.history`). A key may come again after
a while: with ``within`` a row passes if none of its key passed shortly before. Rows that passed are events and are
never taken back, unlike those of `best`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.dataflow.history.base import Changes, Held, HistoryOperator, Names
from spark_timely.dataflow.history.keys import key_codes, ranks_of
from spark_timely.dataflow.history.runs import run_starts_of, spread
from spark_timely.errors import TimelyInternalError
from spark_timely.time.antichain import IntArray

__all__ = ["First"]

_LEAST = np.iinfo(np.int64).min
_MOST = (1 << 64) - 1


@dataclass(frozen=True)
class First(HistoryOperator):
    """Of the events of each key the first by time, and of several at one time the least by all columns.

    Its result are events: nothing that comes later takes it back. So its state is what it gave.

    Parameters
    ----------
    by : tuple of str
    within : int or None
        In units of the times: a row passes if no row of its key passed at a time less than that before. None: if none
        ever passed.

    Examples
    --------
    >>> nothing = Held(np.zeros(0, np.int64), np.zeros(0, np.int64), pa.table({"k": pa.array([], pa.string())}))
    >>> rows = Changes(np.array([3, 2, 9]), np.ones(3, np.int64), pa.table({"k": ["a", "a", "a"]}))
    >>> First(("k",)).advance(rows, nothing, None, of_updates=False).times.tolist()
    [2]
    >>> First(("k",), within=5).advance(rows, nothing, None, of_updates=False).times.tolist()
    [2, 9]
    """

    by: Names
    within: int | None = None

    kind = "drop_duplicates"

    def describe(self) -> str:
        """Return the key, and how far it looks back."""
        return f"by {', '.join(self.by)}{'' if self.within is None else f' within {self.within}'}"

    def gives_updates(self, *, of_updates: bool) -> bool:
        """Return that they are events."""
        return False

    @property
    def looks_back(self) -> int | None:
        """How far."""
        return self.within

    def looks_at(self, source: pa.Schema) -> Names:
        """Return the key."""
        return self.by

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        """Return the rows that pass, at their times."""
        if of_updates or held.times is None:
            msg = "the first row by time is one of events"
            raise TimelyInternalError(msg)
        codes, before = key_codes([changes.rows.select(self.by), held.rows.select(self.by)], self.by)
        n_keys = 1 + max(int(codes.max(initial=-1)), int(before.max(initial=-1)))
        ever: npt.NDArray[np.bool_] = np.zeros(n_keys, np.bool_)
        ever[before] = True
        newest: IntArray = np.full(n_keys, _LEAST, np.int64)
        np.maximum.at(newest, before, held.times)
        late = ~ever[codes]
        if self.within is not None:
            late |= _apart(changes.times, newest[codes]) >= np.uint64(self.within)
        left = np.flatnonzero(late)
        # Of each key and time the least row.
        order = left[np.lexsort((changes.times[left], codes[left]))]
        starts = run_starts_of(codes[order], changes.times[order])
        if starts.shape[0] < order.shape[0]:
            rows = changes.rows.take(pa.array(order))
            order = order[np.lexsort((ranks_of(rows, ()), changes.times[order], codes[order]))]
        left = order[starts]
        firsts = run_starts_of(codes[left])
        taken = left[firsts if self.within is None else _chained(codes[left], changes.times[left], firsts, self.within)]
        return Changes(changes.times[taken], np.ones(taken.shape[0], np.int64), changes.rows.take(pa.array(taken)))


def _apart(later: IntArray, earlier: IntArray) -> npt.NDArray[np.uint64]:
    """Return how far apart times are: as unsigned numbers the difference fits, whatever the two are."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _chained(codes: IntArray, times: IntArray, firsts: IntArray, within: int) -> IntArray:
    """Return the first of each key, the first that is far enough from it, and so on.

    Parameters
    ----------
    codes, times : ndarray of int64, shape (n,)
        Sorted; no two equal.
    firsts : ndarray of int64, shape (m,)
        Where keys begin.
    within : int

    Notes
    -----
    Cost: O(n log n), however many pass: what 2, 4, 8, … steps reach follows one from the other.
    """
    n = codes.shape[0]
    if not n:
        return firsts
    since = _apart(times, np.full(n, times.min(), np.int64))
    known = np.unique(since)
    # The place among all times of the first that is far enough; behind the last where none is.
    far = np.uint64(min(within, _MOST))
    wanted = np.where(since > np.uint64(_MOST) - far, known.shape[0], np.searchsorted(known, since + far))
    width = known.shape[0] + 1
    places = codes * width + np.searchsorted(known, since)
    following = np.searchsorted(places, codes * width + wanted)
    end_of_key = spread(np.append(firsts[1:], n), firsts, n)
    jump = np.append(np.where(following < end_of_key, following, n), n)
    reached: npt.NDArray[np.bool_] = np.zeros(n + 1, np.bool_)
    reached[firsts] = True
    while (jump < n).any():  # twice as far each time
        reached[jump[np.flatnonzero(reached)]] = True
        jump = jump[jump]
    return np.flatnonzero(reached[:n])
