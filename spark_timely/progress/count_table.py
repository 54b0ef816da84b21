"""A hash table that counts times, in arrays and compiled: `MutableAntichain` uses it under many changes.

It pays only where loops are compiled, see `spark_timely.progress.kernels`. `MutableAntichain` (`frontier`) has this
table beside dictionaries, because neither is fast under both loads. Batches of 1,000 changes, 1,000 times
held: 18 million changes a second in the table, 3 million in a dictionary; antichains of 100 pairs: 13 and 1.6 million.
Batches of two changes: 3.6 microseconds each in the table, 1.5 in a dictionary. Times are int64 here.

Compiled loops count the times in a hash table, and find the minima of what is counted after each batch. The table is
two arrays: `keys`, of shape (slots, k), and `counts`, of shape (slots,). The number of slots is a power of two.

Invariants
----------
1. A slot is free exactly when its count is zero.
2. At most half of the slots are taken; from the slot that a time hashes to up to its own, none is free.
3. Antichains are in lexicographic order without repetitions: for k = 2 the second coordinates fall as the first rise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_timely.progress.kernels import inlined, njit
from spark_timely.time.antichain import BoolArray, DiffArray, IntArray, Time, minimal

__all__ = ["CountTable", "Ints", "few_minima", "moves"]

Ints = npt.NDArray[np.int64]

_LOW = 0x7FFFFFFF
_HIGH = 0x1FFFFFFFF


@inlined
def _mixed(mixed: int, x: int) -> int:
    """Return the hash of some coordinates and one more."""
    x = mixed ^ x
    # Products of 31 and 33 bits by 32 and 30: they fit 63 bits, so that nothing wraps.
    mixed = ((x & _LOW) * 0x9E3779B1) ^ (((x >> 31) & _HIGH) * 0x2545F491)
    return mixed ^ (mixed >> 29)


@inlined
def _slot(mixed: int, mask: int) -> int:
    """Return the slot at which the search for a time of that hash begins."""
    return (mixed ^ (mixed >> 17)) & mask


# The loop over all changes is written out below instead of calling what is defined here: a call with arrays takes as
# long as counting a time does, and pasting it in makes the compiled code count who holds the arrays.


@njit
def _find(keys: Ints, counts: Ints, rows: Ints, i: int) -> int:
    """Return the slot of a time, or the free one where it belongs."""
    mask, mixed = counts.shape[0] - 1, 0
    for j in range(rows.shape[1]):
        mixed = _mixed(mixed, rows[i, j])
    slot = _slot(mixed, mask)
    while counts[slot] != 0:
        same = True
        for j in range(rows.shape[1]):
            if keys[slot, j] != rows[i, j]:
                same = False
                break
        if same:
            break
        slot = (slot + 1) & mask
    return slot


@njit
def _precedes(left: Ints, i: int, right: Ints, e: int) -> int:
    """Return -1, 0 or 1 as the first time comes before, at or after the second in lexicographic order."""
    for j in range(left.shape[1]):
        if left[i, j] != right[e, j]:
            return -1 if left[i, j] < right[e, j] else 1
    return 0


@njit
def _count(keys: Ints, counts: Ints, rows: Ints, diffs: Ints) -> int:
    """Apply count changes, for which there must be room; return how many slots more are taken."""
    mask, k, more = counts.shape[0] - 1, rows.shape[1], 0
    for i in range(rows.shape[0]):
        mixed = 0
        for j in range(k):
            mixed = _mixed(mixed, rows[i, j])
        slot = _slot(mixed, mask)
        while counts[slot] != 0:
            same = True
            for j in range(k):
                if keys[slot, j] != rows[i, j]:
                    same = False
                    break
            if same:
                break
            slot = (slot + 1) & mask
        if counts[slot] == 0:
            for j in range(k):
                keys[slot, j] = rows[i, j]
            more += diffs[i] != 0
            counts[slot] = diffs[i]
            continue
        counts[slot] += diffs[i]
        if counts[slot] != 0:
            continue
        # The slot is free now: those behind it that could not be found any more move up.
        more -= 1
        at = (slot + 1) & mask
        while counts[at] != 0:
            mixed = 0
            for j in range(k):
                mixed = _mixed(mixed, keys[at, j])
            # How far it is from where its search begins, against how far from the free slot.
            if ((at - _slot(mixed, mask)) & mask) >= ((at - slot) & mask):
                for j in range(k):
                    keys[slot, j] = keys[at, j]
                counts[slot] = counts[at]
                slot = at
            at = (at + 1) & mask
        counts[slot] = 0
    return more


@njit
def _place(elements: Ints, n: int, rows: Ints, i: int) -> int:
    """Return where a time belongs among the first `n` elements of an antichain; -1 if it is beyond one of them."""
    k, low, high = rows.shape[1], 0, n
    while low < high:
        middle = (low + high) // 2
        if _precedes(rows, i, elements, middle) < 0:
            high = middle
        else:
            low = middle + 1
    # Only what comes before it can be less or equal; of two coordinates the last of them has the least second one.
    for e in range(0 if k > 2 else max(low - 1, 0), low):
        less = True
        for j in range(k):
            if elements[e, j] > rows[i, j]:
                less = False
                break
        if less:
            return -1
    return low


@njit
def _is_lost(keys: Ints, counts: Ints, elements: Ints) -> bool:
    """Tell whether some element has no positive count any more."""
    for e in range(elements.shape[0]):  # noqa: SIM110 - compiled code has no generators
        if counts[_find(keys, counts, elements, e)] <= 0:
            return True
    return False


@njit
def _below(keys: Ints, counts: Ints, elements: Ints, rows: Ints) -> BoolArray:
    """Tell for each time whether it has a positive count and is beyond no element of an antichain."""
    found = np.empty(rows.shape[0], dtype=np.bool_)
    for i in range(rows.shape[0]):
        found[i] = _place(elements, elements.shape[0], rows, i) >= 0 and counts[_find(keys, counts, rows, i)] > 0
    return found


@njit
def few_minima(elements: Ints, candidates: Ints) -> Ints:
    """Return the minima of an antichain and of a few more times.

    Notes
    -----
    Cost: O(c·m) for c candidates and m minima; for k = 2 the m are moves within an array, for those that stay.
    """
    n, k = elements.shape[0], elements.shape[1]
    kept = np.empty((n + candidates.shape[0], k), dtype=np.int64)
    kept[:n] = elements
    for i in range(candidates.shape[0]):
        low = _place(kept, n, candidates, i)
        if low < 0:
            continue
        left = low
        for e in range(low, n):
            less = True
            for j in range(k):
                if candidates[i, j] > kept[e, j]:
                    less = False
                    break
            if not less:
                for j in range(k):
                    kept[left, j] = kept[e, j]
                left += 1
        for e in range(left, low, -1):
            for j in range(k):
                kept[e, j] = kept[e - 1, j]
        for j in range(k):
            kept[low, j] = candidates[i, j]
        n = left + 1
    return kept[:n].copy()


@njit
def moves(before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Return what left (-1) and what entered (+1) between two antichains, in lexicographic order."""
    k = before.shape[1]
    times = np.empty((before.shape[0] + after.shape[0], k), dtype=np.int64)
    signs = np.empty(times.shape[0], dtype=np.int64)
    b, a, n = 0, 0, 0
    while b < before.shape[0] or a < after.shape[0]:
        if b == before.shape[0]:
            which = 1
        elif a == after.shape[0]:
            which = -1
        else:
            which = _precedes(before, b, after, a)
        if which == 0:
            b += 1
            a += 1
            continue
        for j in range(k):
            times[n, j] = before[b, j] if which < 0 else after[a, j]
        signs[n] = which
        n += 1
        if which < 0:
            b += 1
        else:
            a += 1
    return times[:n].copy(), signs[:n].copy()


_SLOTS = 64
# Up to this number of comparisons and moves, minima are found by putting one time after the other among them: k > 1.
_FEW_MOVES = 1 << 20
# A table with this number of slots for each time held, or counted at once, is made again.
_SPARSE = 16
# Changes that are counted before there is another look whether there is room for more.
_PIECE = 4096


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

    def _fill(self, times: Ints, counts: Ints, room: int = 0) -> None:
        """Make a table of the times counted, with room for some more."""
        slots = _SLOTS
        while slots < max(4 * times.shape[0], 2 * (times.shape[0] + room)):
            slots *= 2
        self._keys, self._counts = np.empty((slots, times.shape[1]), dtype=np.int64), np.zeros(slots, dtype=np.int64)
        self._n_held = _count(self._keys, self._counts, times, counts)

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
        for first in range(0, rows.shape[0], _PIECE):
            part = rows[first : first + _PIECE]
            if 2 * (self._n_held + part.shape[0]) > self._counts.shape[0]:
                self._fill(*self.items(), part.shape[0])
            self._n_held += _count(self._keys, self._counts, part, diffs[first : first + _PIECE])
        if (self._n_held + rows.shape[0]) * _SPARSE < self._counts.shape[0] > _SLOTS:
            self._fill(*self.items())
        lost = _is_lost(self._keys, self._counts, before)
        if lost:
            kept, candidates = before[:0], self._keys[self._counts > 0]
        else:
            kept, candidates = before, rows[_below(self._keys, self._counts, before, rows)]
            if not candidates.shape[0]:
                return candidates, diffs[:0].copy()
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
        row = np.array([time], dtype=np.int64)
        return int(self._counts[_find(self._keys, self._counts, row, 0)])

    def items(self) -> tuple[Ints, Ints]:
        """Return the times with a count, in any order, and the counts; new arrays.

        Examples
        --------
        >>> CountTable(np.array([[3]]), np.array([2]), np.array([[3]])).items()[1].tolist()
        [2]
        """
        taken = self._counts != 0
        return self._keys[taken], self._counts[taken]
