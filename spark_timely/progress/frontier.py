"""Frontiers that move: antichains maintained under changing counts.

Invariants
----------
1. The frontier of a `MutableAntichain` is the antichain of minima of the times whose accumulated
   count is positive, after every call.
2. The changes that `update_iter` returns, added to the frontier before, give the frontier after.
3. Counts that come to zero are forgotten; negative ones are remembered, and bound nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_timely.antichain import Antichain
from spark_timely.order import (
    BoolArray,
    DiffArray,
    IntArray,
    TimesLike,
    as_diffs,
    as_times,
    consolidate_rows,
)
from spark_timely.progress.change_batch import ChangeBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Antichain", "ChangeBatch", "MutableAntichain"]

# Changes that are counted as they come, without consolidating them first.
_FEW = 32


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

    __slots__ = ("_arity", "_counts", "_frontier")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        self._counts: dict[tuple[int, ...], int] = {}
        self._frontier = Antichain.empty(arity)

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
        return self._frontier

    @property
    def is_empty(self) -> bool:
        """Whether the frontier is empty."""
        return self._frontier.is_empty

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
        return self._frontier.less_equal(time)

    def less_than(self, time: int | Sequence[int]) -> bool:
        """Tell whether some element of the frontier is strictly less than `time`.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).less_than(5)
        False
        """
        return self._frontier.less_than(time)

    def beyond(self, times: TimesLike) -> BoolArray:
        """Tell for each time whether it is beyond the frontier; see `Antichain.beyond`.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).beyond([4, 5]).tolist()
        [False, True]
        """
        return self._frontier.beyond(times)

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
        Cost: O(n), after a consolidation of large batches. Where an element of the frontier went,
        the frontier is found again among all d times held: O(d·f) for f elements, O(d) for k = 1.
        Source: timely `progress/frontier.rs`, `MutableAntichain::update_iter`.

        Examples
        --------
        >>> frontier = MutableAntichain.from_times([[0]])
        >>> frontier.update_iter(np.array([[0], [2]]), np.array([-1, 7]))[1].tolist()
        [-1, 1]
        """
        rows = as_times(times, self._arity)
        changes = as_diffs(diffs, rows.shape[0])
        if rows.shape[0] > _FEW:
            rows, changes = consolidate_rows(rows, changes)
        before = self._frontier
        gone, appeared = self._count(rows, changes)
        if gone:
            self._frontier = self._minima()
        else:
            new = [row for row in appeared if self._counts.get(row, 0) > 0]
            if new:
                self._frontier = Antichain.of(*before.elements, *new)
        return _moves(before, self._frontier)

    def _count(self, rows: IntArray, changes: DiffArray) -> tuple[bool, list[tuple[int, ...]]]:
        """Apply the changes; tell whether an element of the frontier went, and what came below none."""
        counts, frontier = self._counts, self._frontier
        elements = frozenset(frontier.elements)
        gone, appeared = False, []
        # Distinct times, or a few: a dictionary is cheaper here than arrays of all times held.
        for row, change in zip(map(tuple, rows.tolist()), changes.tolist(), strict=True):
            old = counts.get(row, 0)
            new = old + change
            if new:
                counts[row] = new
            elif old:
                del counts[row]
            if new > 0 >= old:
                if not frontier.less_equal(row):
                    appeared.append(row)
            elif old > 0 >= new and row in elements:
                gone = True
        return gone, appeared

    def _minima(self) -> Antichain:
        positive = [time for time, count in self._counts.items() if count > 0]
        if self._arity == 1 and positive:
            return Antichain.of(min(positive))
        return Antichain(as_times(positive, self._arity), self._arity)


def _moves(before: Antichain, after: Antichain) -> tuple[IntArray, DiffArray]:
    """Return what entered and what left, sorted by time."""
    if before == after:
        return as_times((), before.arity), np.empty(0, dtype=np.int64)
    left, entered = set(before.elements), set(after.elements)
    moves = sorted([(t, -1) for t in left - entered] + [(t, 1) for t in entered - left])
    times = as_times([time for time, _ in moves], before.arity)
    return times, np.array([sign for _, sign in moves], dtype=np.int64)
