"""Counts of times in arrays: what `MutableAntichain` keeps while it is fed many changes at once.

Only worth its while where loops are compiled, see `spark_timely.progress.kernels`. The table and the dictionaries of
`MutableAntichain` are two representations because neither does for both loads. Batches of 1,000 changes, 1,000 times
held: 18 million changes a second in the table, 3 million in a dictionary; antichains of 100 pairs: 13 and 1.6 million.
Batches of two changes: 3.6 microseconds each in the table, 1.5 in a dictionary. Times are int64 here.

Compiled loops count the times in a hash table and keep the minima of what is counted. The table is
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
from spark_timely.time.arrays import BoolArray, DiffArray, IntArray, Time, minimal

__all__ = ["CountTable", "Ints", "count_of", "count_rows", "few_minima", "held", "moves"]

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


# Loops over many rows are written out below instead of calling what is defined here: a call with arrays takes as
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
def _grown(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return a table of four times as many slots."""
    more = np.empty((4 * counts.shape[0], keys.shape[1]), dtype=np.int64)
    counted = np.zeros(4 * counts.shape[0], dtype=np.int64)
    for slot in range(counts.shape[0]):
        if counts[slot] != 0:
            to = _find(more, counted, keys, slot)
            for j in range(keys.shape[1]):
                more[to, j] = keys[slot, j]
            counted[to] = counts[slot]
    return more, counted


@njit
def _precedes(left: Ints, i: int, right: Ints, e: int) -> int:
    """Return -1, 0 or 1 as the first time comes before, at or after the second in lexicographic order."""
    for j in range(left.shape[1]):
        if left[i, j] != right[e, j]:
            return -1 if left[i, j] < right[e, j] else 1
    return 0


@njit
def _count_while_room(keys: Ints, counts: Ints, n_held: int, rows: Ints, diffs: Ints, first: int) -> tuple[int, int]:
    """Apply count changes from a row on; return the row at which the table was full, and how many slots are taken."""
    mask, room, k = counts.shape[0] - 1, counts.shape[0] // 2, rows.shape[1]
    for i in range(first, rows.shape[0]):
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
        count = counts[slot]
        if count == 0:
            if n_held == room:
                return i, n_held
            if diffs[i] == 0:
                continue
            for j in range(k):
                keys[slot, j] = rows[i, j]
            n_held += 1
        count += diffs[i]
        counts[slot] = count
        if count != 0:
            continue
        # The slot is free now: those behind it that could not be found any more move up.
        n_held -= 1
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
    return rows.shape[0], n_held


@njit
def _mark_beyond(elements: Ints, rows: Ints) -> BoolArray:
    """Tell for each row whether some element of an antichain is less or equal to it."""
    n, m, k = rows.shape[0], elements.shape[0], rows.shape[1]
    beyond = np.empty(n, dtype=np.bool_)
    for i in range(n):
        if m == 0 or k == 0:
            beyond[i] = m > 0
        elif k == 1:
            beyond[i] = elements[0, 0] <= rows[i, 0]
        elif k == 2:
            # Only the last element that does not come after the time in lexicographic order can be less or equal.
            low, high = 0, m
            while low < high:
                middle = (low + high) // 2
                if elements[middle, 0] < rows[i, 0] or (
                    elements[middle, 0] == rows[i, 0] and elements[middle, 1] <= rows[i, 1]
                ):
                    low = middle + 1
                else:
                    high = middle
            beyond[i] = low > 0 and elements[low - 1, 1] <= rows[i, 1]
        else:
            beyond[i] = False
            for e in range(m):
                less = True
                for j in range(k):
                    if elements[e, j] > rows[i, j]:
                        less = False
                        break
                if less:
                    beyond[i] = True
                    break
    return beyond


@njit
def count_rows(
    keys: Ints, counts: Ints, n_held: int, elements: Ints, rows: Ints, diffs: Ints
) -> tuple[Ints, Ints, int, bool, Ints]:
    """Apply count changes, and find the times among which the new minima are.

    Parameters
    ----------
    keys, counts : ndarray of int64, shapes (slots, k) and (slots,)
        The table; changed.
    n_held : int
        How many slots are taken.
    elements : ndarray of int64, shape (m, k)
        The minima of the times with a positive count.
    rows, diffs : ndarray of int64, shapes (n, k) and (n,)

    Returns
    -------
    keys, counts : ndarray
        The table, which may be a larger one.
    n_held : int
    lost : bool
        Whether some element has no positive count any more: then the candidates are all times that have one.
    candidates : ndarray of int64, shape (c, k)
        Else those times that may have come below the elements, in any order, maybe repeated.
    """
    at, n_held = _count_while_room(keys, counts, n_held, rows, diffs, 0)
    while at < rows.shape[0]:
        keys, counts = _grown(keys, counts)
        at, n_held = _count_while_room(keys, counts, n_held, rows, diffs, at)
    lost = False
    for e in range(elements.shape[0]):
        if counts[_find(keys, counts, elements, e)] <= 0:
            lost = True
            break
    if lost:
        return keys, counts, n_held, lost, held(keys, counts, n_held)[0]
    found = _mark_beyond(elements, rows)
    n_found = 0
    for i in range(rows.shape[0]):
        found[i] = not found[i] and counts[_find(keys, counts, rows, i)] > 0
        n_found += found[i]
    return keys, counts, n_held, lost, _chosen(rows, found, n_found)


@njit
def _chosen(rows: Ints, wanted: BoolArray, n: int) -> Ints:
    """Return the wanted rows, of which there are `n`."""
    chosen = np.empty((n, rows.shape[1]), dtype=np.int64)
    at = 0
    for i in range(rows.shape[0]):
        if wanted[i]:
            for j in range(rows.shape[1]):
                chosen[at, j] = rows[i, j]
            at += 1
    return chosen


@njit
def held(keys: Ints, counts: Ints, n_held: int) -> tuple[Ints, Ints, Ints]:
    """Return the times with a positive count, and all times counted with their counts, in any order."""
    times = np.empty((n_held, keys.shape[1]), dtype=np.int64)
    found = np.empty(n_held, dtype=np.int64)
    positive = np.empty(n_held, dtype=np.bool_)
    at, n_positive = 0, 0
    for slot in range(counts.shape[0]):
        if counts[slot] != 0:
            for j in range(keys.shape[1]):
                times[at, j] = keys[slot, j]
            found[at] = counts[slot]
            positive[at] = counts[slot] > 0
            n_positive += positive[at]
            at += 1
    return _chosen(times, positive, n_positive), times, found


@njit
def count_of(keys: Ints, counts: Ints, row: Ints) -> int:
    """Return the count of the one time in `row`."""
    return counts[_find(keys, counts, row, 0)]


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
        if k == 2:
            n = _insert_pair(kept, n, candidates[i, 0], candidates[i, 1])
        else:
            n = _insert(kept, n, candidates, i)
    return kept[:n].copy()


@njit
def _insert_pair(kept: Ints, n: int, first: int, second: int) -> int:
    """Put a time of two coordinates into an antichain of `n` elements, in place; return how many there are then."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if kept[middle, 0] < first or (kept[middle, 0] == first and kept[middle, 1] <= second):
            low = middle + 1
        else:
            high = middle
    if low > 0 and kept[low - 1, 1] <= second:
        return n
    # Those that it is less or equal to follow one another from here.
    at = low
    while at < n and kept[at, 1] >= second:
        at += 1
    if at == low:
        for e in range(n - 1, low - 1, -1):
            kept[e + 1, 0], kept[e + 1, 1] = kept[e, 0], kept[e, 1]
    elif at > low + 1:
        for e in range(at, n):
            kept[e - at + low + 1, 0], kept[e - at + low + 1, 1] = kept[e, 0], kept[e, 1]
    kept[low, 0], kept[low, 1] = first, second
    return n + 1 - (at - low)


@njit
def _insert(kept: Ints, n: int, rows: Ints, i: int) -> int:
    """Put a time of any arity into an antichain of `n` elements, in place; return how many there are then."""
    k = rows.shape[1]
    for e in range(n):
        less = True
        for j in range(k):
            if kept[e, j] > rows[i, j]:
                less = False
                break
        if less:
            return n
    left = 0
    for e in range(n):
        less = True
        for j in range(k):
            if rows[i, j] > kept[e, j]:
                less = False
                break
        if not less:
            for j in range(k):
                kept[left, j] = kept[e, j]
            left += 1
    at = left
    while at > 0 and _precedes(rows, i, kept, at - 1) < 0:
        for j in range(k):
            kept[at, j] = kept[at - 1, j]
        at -= 1
    for j in range(k):
        kept[at, j] = rows[i, j]
    return left + 1


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
