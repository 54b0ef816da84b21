"""Counts of times in arrays: what `MutableAntichain` keeps while it is fed many changes at once.

Only worth its while where loops are compiled, see `spark_timely.progress.kernels`. The table and the dictionaries of
`MutableAntichain` are two representations because neither does for both loads. Batches of 1,000 changes, 1,000 times
held: 18 million changes a second in the table, 3 million in a dictionary; antichains of 100 pairs: 13 and 1.6 million.
Batches of two changes: 3.6 microseconds each in the table, 1.5 in a dictionary. Times are int64 here.
"""

from __future__ import annotations

import numpy as np

from spark_timely.progress.kernels_counts import Ints, count_of, count_rows, few_minima, held, moves
from spark_timely.time.arrays import DiffArray, IntArray, Time
from spark_timely.time.order import minimal

__all__ = ["CountTable"]

_SLOTS = 64
# Up to this number of comparisons and moves, minima are found by putting one time after the other among them: k > 1.
_FEW_MOVES = 1 << 20
# A table with this number of slots for each time held is made again.
_SPARSE = 16


class CountTable:
    """Counts of times, and the minima of those with a positive count.

    Parameters
    ----------
    times, counts : ndarray of int64, shapes (n, k) and (n,)
        Distinct times, and their counts, none of which is zero.
    elements : ndarray of int64, shape (m, k)
        The minima of the times with a positive count.

    Examples
    --------
    >>> table = CountTable(np.array([[3], [5]]), np.array([1, 1]), np.array([[3]]))
    >>> moved, signs = table.update(np.array([[3]]), np.array([-1]))
    >>> moved.tolist(), signs.tolist(), table.elements.tolist()
    ([[3], [5]], [-1, 1], [[5]])
    """

    __slots__ = ("_counts", "_keys", "_n_held", "elements")

    def __init__(self, times: Ints, counts: Ints, elements: Ints) -> None:
        self.elements = elements
        """The minima of the times with a positive count, in lexicographic order."""
        self._fill(times, counts)

    def _fill(self, times: Ints, counts: Ints) -> None:
        slots = _SLOTS
        while slots < 4 * times.shape[0]:
            slots *= 2
        none = times[:0]
        keys, counted = np.empty((slots, times.shape[1]), dtype=np.int64), np.zeros(slots, dtype=np.int64)
        self._keys, self._counts, self._n_held, _, _ = count_rows(keys, counted, 0, none, times, counts)

    def __len__(self) -> int:
        """Return how many times have a count."""
        return self._n_held

    def update(self, rows: Ints, diffs: DiffArray) -> tuple[IntArray, DiffArray]:
        """Apply count changes and return how the minima moved; see `MutableAntichain.update_iter`.

        Notes
        -----
        Cost: O(n); where a minimum has no count any more, also O(d) for d times held, and O(d log d) for k > 1.

        Examples
        --------
        >>> table = CountTable(np.array([[3]]), np.array([1]), np.array([[3]]))
        >>> table.update(np.array([[4]]), np.array([1]))[0].shape
        (0, 1)
        """
        before = self.elements
        self._keys, self._counts, self._n_held, lost, candidates = count_rows(
            self._keys, self._counts, self._n_held, before, rows, diffs
        )
        if self._counts.shape[0] > _SLOTS and self._n_held * _SPARSE < self._counts.shape[0]:
            self._fill(*self.items())
        if not lost and not candidates.shape[0]:
            return candidates, diffs[:0].copy()
        kept = before[:0] if lost else before
        if before.shape[1] == 1 or candidates.shape[0] * (kept.shape[0] + candidates.shape[0]) <= _FEW_MOVES:
            self.elements = few_minima(kept, candidates)
        else:
            self.elements = minimal(np.concatenate([kept, candidates])).astype(np.int64, copy=False)
        return moves(before, self.elements)

    def count_for(self, time: Time) -> int:
        """Return the count of one time.

        Examples
        --------
        >>> CountTable(np.array([[3]]), np.array([2]), np.array([[3]])).count_for((3,))
        2
        """
        if any(not -(1 << 63) <= coordinate < 1 << 63 for coordinate in time):
            return 0
        return int(count_of(self._keys, self._counts, np.array([time], dtype=np.int64)))

    def items(self) -> tuple[Ints, Ints]:
        """Return the times with a count, in any order, and the counts; new arrays.

        Examples
        --------
        >>> CountTable(np.array([[3]]), np.array([2]), np.array([[3]])).items()[1].tolist()
        [2]
        """
        _, times, counts = held(self._keys, self._counts, self._n_held)
        return times, counts
