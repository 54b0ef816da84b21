"""Frontiers that move: antichains maintained under changing counts.

Invariants
----------
1. The frontier of a `MutableAntichain` is the antichain of minima of the times whose accumulated
   count is positive, after every call.
2. The changes that `update_iter` returns, added to the frontier before, give the frontier after.
3. Counts that come to zero are forgotten; negative ones are remembered, and bound nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from spark_timely.antichain import Antichain
from spark_timely.errors import InvalidShapeError
from spark_timely.order import (
    BoolArray,
    DiffArray,
    IntArray,
    Time,
    TimesLike,
    as_diffs,
    as_times,
    consolidate_rows,
    minimal,
    minimal_elements,
)
from spark_timely.progress.change_batch import ChangeBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Antichain", "ChangeBatch", "MutableAntichain"]

# Changes that are counted as they come, without consolidating them first.
_FEW = 16
# Times whose minima are found on Python integers.
_SOME = 256
# How many times more a heap or a frontier may hold before another way is cheaper.
_MANY = 8


class MutableAntichain:
    """A multiset of times that knows the frontier of those with a positive count.

    Parameters
    ----------
    arity : int
        Number k of coordinates of each time.

    Notes
    -----
    Source: timely `progress/frontier.rs`, `MutableAntichain`.

    Examples
    --------
    >>> frontier = MutableAntichain.from_times([[0]])
    >>> times, diffs = frontier.update_iter([[0], [2]], [-1, 7])
    >>> times.tolist(), diffs.tolist()
    ([[0], [2]], [-1, 1])
    >>> frontier.frontier
    Antichain.of(2)
    """

    __slots__ = ("_arity", "_counts", "_elements", "_frontier", "_heap")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        self._counts: dict[Time, int] = {}
        # The elements of the frontier in lexicographic order, and the same as a value once asked for.
        self._elements: list[Time] = []
        self._frontier: Antichain | None = None
        # For k = 1, and only while it pays: a heap of all times with a positive count, and maybe of others.
        self._heap: list[Time] | None = None

    @classmethod
    def from_times(cls, times: TimesLike, arity: int | None = None) -> MutableAntichain:
        """Return one that counts each of the given times once per occurrence.

        Examples
        --------
        >>> MutableAntichain.from_times([5, 7, 7]).count_for(7)
        2
        """
        rows = as_times(times, arity)
        self = cls(rows.shape[1])
        self.update_iter(rows, np.ones(rows.shape[0], dtype=np.int64))
        return self

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    @property
    def frontier(self) -> Antichain:
        """The minima of the times whose count is positive."""
        if self._frontier is None:
            self._frontier = Antichain.of(*self._elements) if self._elements else Antichain.empty(self._arity)
        return self._frontier

    @property
    def is_empty(self) -> bool:
        """Whether the frontier is empty."""
        return not self._elements

    def counts(self) -> tuple[IntArray, DiffArray]:
        """Return the times with a non-zero count, in lexicographic order, and the counts; copies.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).counts()[1].tolist()
        [1]
        """
        held = sorted(self._counts.items())
        times = as_times([time for time, _ in held], self._arity)
        return times, np.array([count for _, count in held], dtype=np.int64)

    def count_for(self, time: int | Sequence[int]) -> int:
        """Return the accumulated count of one time.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).count_for(6)
        0
        """
        row = (time,) if isinstance(time, int | np.integer) else tuple(time)
        return self._counts.get(row, 0)

    def less_equal(self, time: int | Sequence[int]) -> bool:
        """Tell whether `time` is beyond the frontier.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).less_equal(5)
        True
        """
        return self.frontier.less_equal(time)

    def less_than(self, time: int | Sequence[int]) -> bool:
        """Tell whether some element of the frontier is strictly less than `time`.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).less_than(5)
        False
        """
        return self.frontier.less_than(time)

    def beyond(self, times: TimesLike) -> BoolArray:
        """Tell for each time whether it is beyond the frontier; see `Antichain.beyond`.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).beyond([4, 5]).tolist()
        [False, True]
        """
        return self.frontier.beyond(times)

    def update_iter(self, times: TimesLike, diffs: npt.ArrayLike) -> tuple[IntArray, DiffArray]:
        """Apply count changes and return how the frontier moved.

        After the call the frontier is the set of minimal times whose accumulated count is
        positive. Counts may pass through negative values between calls.

        Parameters
        ----------
        times : array-like of integers, shape (n, k)
            Not modified, not kept.
        diffs : array-like of integers, shape (n,)
            Change of each count, in pointstamps.

        Returns
        -------
        times, diffs : ndarray, shapes (m, k) and (m,)
            Elements that entered (+1) and left (-1) the frontier, sorted by time.

        Raises
        ------
        InvalidShapeError
            If `times` and `diffs` differ in length, or k is not this antichain's arity.

        Notes
        -----
        Cost: O(n), after a consolidation of large batches. Where an element of the frontier went, the
        frontier is found again among the d times held: O(d log d) for k = 2, O(d·f) for f elements of more
        coordinates, and for k = 1 what came since, O(log d) each.
        Source: timely `progress/frontier.rs`, `MutableAntichain::update_iter`.

        Examples
        --------
        >>> frontier = MutableAntichain.from_times([[0]])
        >>> frontier.update_iter(np.array([[0], [2]]), np.array([-1, 7]))[1].tolist()
        [-1, 1]
        """
        rows, changes = self._arrays(times, diffs)
        if rows.shape[0] > _FEW:
            rows, changes = consolidate_rows(rows, changes)
        moves = self._apply(list(zip(_tuples(rows), changes.tolist(), strict=True)))
        if not moves:
            return _NOTHING[self._arity] if self._arity in _NOTHING else _nothing(self._arity)
        moved = as_times([time for time, _ in moves], self._arity)
        return moved, np.array([sign for _, sign in moves], dtype=np.int64)

    def update_pairs(self, changes: Sequence[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply a few count changes given as Python values; the same as `update_iter`, without arrays.

        Parameters
        ----------
        changes : sequence of (time, diff)
            Times are tuples of k Python integers.

        Returns
        -------
        list of (time, sign)
            Elements that entered (+1) and left (-1) the frontier, sorted by time.

        Raises
        ------
        InvalidShapeError
            If a time has not k coordinates; nothing was changed then.

        Notes
        -----
        Cost: O(1) for each change; where an element of the frontier went, O(log d) for k = 1 and
        O(d log d) for k = 2, with d times held.

        Examples
        --------
        >>> frontier = MutableAntichain()
        >>> frontier.update_pairs([((3,), 1), ((5,), 1)])
        [((3,), 1)]
        >>> frontier.update_pairs([((3,), -1)])
        [((3,), -1), ((5,), 1)]
        """
        arity = self._arity
        for time, _ in changes:
            if len(time) != arity:
                msg = f"could not count time={time!r:.200}: found arity={len(time)}, expected arity={arity}"
                raise InvalidShapeError(msg, hint="give each time as a tuple of that many integers")
        return self._apply(changes)

    def _arrays(self, times: TimesLike, diffs: npt.ArrayLike) -> tuple[IntArray, DiffArray]:
        if (
            type(times) is np.ndarray
            and type(diffs) is np.ndarray
            and times.dtype == np.int64
            and diffs.dtype == np.int64
            and times.shape == (diffs.size, self._arity)
            and diffs.ndim == 1
        ):
            return times, diffs
        rows = as_times(times, self._arity)
        return rows, as_diffs(diffs, rows.shape[0])

    def _apply(self, changes: Sequence[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply changes and return how the frontier moved."""
        counts, elements = self._counts, self._elements
        lost, risen = False, []
        # A few changes, or those of distinct times: a dictionary is cheaper here than arrays.
        for time, diff in changes:
            old = counts.get(time, 0)
            new = old + diff
            if new:
                counts[time] = new
            elif old:
                del counts[time]
            if new > 0 >= old:
                risen.append(time)
            elif old > 0 >= new and not lost and _holds(elements, time):
                lost = True
        if self._heap is not None:
            self._feed(risen)
        if lost and not all(counts.get(element, 0) > 0 for element in elements):
            after = self._least(len(risen)) if self._arity == 1 else _minima(self._positive(), self._arity)
        else:
            below = self._below(risen)
            if not below:
                return []
            after = _minima([*elements, *below], self._arity)
        self._elements, self._frontier = after, None
        return _moves(elements, after)

    def _feed(self, risen: list[Time]) -> None:
        """Put times that became positive on the heap, or drop the heap where it no longer pays."""
        heap = self._heap
        if heap is None or _MANY * len(risen) > len(self._counts) or len(heap) > _MANY * (len(self._counts) + _MANY):
            self._heap = None
            return
        for time in risen:
            heappush(heap, time)

    def _least(self, n_risen: int) -> list[Time]:
        """Find the least time with a positive count: k = 1."""
        counts, heap = self._counts, self._heap
        if heap is None:
            if len(counts) < _MANY * (n_risen + 1):
                # So much has come since that to look through all costs no more than it did.
                return _minima(self._positive(), 1)
            heap = self._heap = self._positive()
            heapify(heap)
        while heap and counts.get(heap[0], 0) <= 0:
            heappop(heap)
        return heap[:1]

    def _positive(self) -> list[Time]:
        return [time for time, count in self._counts.items() if count > 0]

    def _below(self, risen: list[Time]) -> list[Time]:
        """Return those of the times that are beyond no element of the frontier and have a positive count now."""
        counts, elements = self._counts, self._elements
        if self._arity > 2 and len(risen) > _FEW:
            beyond = self.frontier.beyond(risen).tolist()
        else:
            beyond = [_is_beyond(time, elements) for time in risen]
        return [
            time for time, is_beyond in zip(risen, beyond, strict=True) if not is_beyond and counts.get(time, 0) > 0
        ]


def _minima(times: list[Time], arity: int) -> list[Time]:
    """Return the minima of times in lexicographic order."""
    if arity == 1:
        return [min(times)] if times else []
    if len(times) <= _FEW:
        return minimal_elements(times)
    if arity == 2 and len(times) <= _SOME:
        kept: list[Time] = []
        for time in sorted(times):
            if not kept or time[1] < kept[-1][1]:
                kept.append(time)
        return kept
    return _tuples(minimal(as_times(times, arity)))


def _tuples(rows: IntArray) -> list[Time]:
    if rows.shape[1] == 1:
        return list(zip(rows[:, 0].tolist()))
    if rows.shape[0] > _FEW and rows.shape[1] == 2:
        return list(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True))
    return list(map(tuple, rows.tolist()))


def _holds(elements: list[Time], time: Time) -> bool:
    """Tell whether a time is an element of a sorted list."""
    if len(elements) <= _MANY:
        return time in elements
    at = bisect_left(elements, time)
    return at < len(elements) and elements[at] == time


def _is_beyond(time: Time, elements: list[Time]) -> bool:
    """Tell whether some element of an antichain in lexicographic order is less or equal to a time."""
    k = len(time)
    if k == 1:
        return bool(elements) and elements[0] <= time
    if k == 2:
        # Second coordinates fall as first ones rise: the last element that may be less or equal is the one to ask.
        at = bisect_right(elements, time) - 1
        return at >= 0 and elements[at][1] <= time[1]
    return any(all(x <= y for x, y in zip(element, time, strict=True)) for element in elements)


def _moves(before: list[Time], after: list[Time]) -> list[tuple[Time, int]]:
    """Return what entered and what left, sorted by time."""
    if len(before) + len(after) <= 2:
        if before == after:
            return []
        moves = [(time, -1) for time in before]
        moves += [(time, 1) for time in after]
    else:
        left, entered = set(before), set(after)
        moves = [(time, -1) for time in left - entered]
        moves += [(time, 1) for time in entered - left]
    moves.sort()
    return moves


def _nothing(arity: int) -> tuple[IntArray, DiffArray]:
    """Return no changes: nobody can alter an empty array, so all callers share it."""
    _NOTHING[arity] = np.empty((0, arity), dtype=np.int64), np.empty(0, dtype=np.int64)
    return _NOTHING[arity]


_NOTHING: dict[int, tuple[IntArray, DiffArray]] = {}
