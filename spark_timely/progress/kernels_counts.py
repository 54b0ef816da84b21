"""Compiled loops that count times in a hash table and keep the minima of what is counted.

The table is two arrays: `keys`, of shape (slots, k), and `counts`, of shape (slots,). The number of slots is a
power of two.

Invariants
----------
1. A slot is free exactly when its count is zero.
2. At most half of the slots are taken; from the slot that a time hashes to up to its own, none is free.
3. Antichains are in lexicographic order without repetitions: for k = 2 the second coordinates fall as the first rise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_timely.order import BoolArray
from spark_timely.progress.kernels import njit

__all__ = ["Ints", "count_of", "count_rows", "few_minima", "held", "moves"]

Ints = npt.NDArray[np.int64]

_LOW = 0x7FFFFFFF
_HIGH = 0x1FFFFFFFF


@njit
def _home(rows: Ints, i: int, mask: int) -> int:
    """Return the slot at which the search for a time begins."""
    mixed = 0
    for j in range(rows.shape[1]):
        # Products of 31 and 33 bits by 32 and 30: they fit 63 bits, so that nothing wraps.
        x = mixed ^ rows[i, j]
        mixed = ((x & _LOW) * 0x9E3779B1) ^ (((x >> 31) & _HIGH) * 0x2545F491)
        mixed ^= mixed >> 29
    return (mixed ^ (mixed >> 17)) & mask


@njit
def _find(keys: Ints, counts: Ints, rows: Ints, i: int) -> int:
    """Return the slot of a time, or the free one where it belongs."""
    mask = counts.shape[0] - 1
    slot = _home(rows, i, mask)
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
def _free(keys: Ints, counts: Ints, slot: int) -> None:
    """Free a slot; move up those behind it that could not be found any more."""
    mask = counts.shape[0] - 1
    hole = slot
    at = (hole + 1) & mask
    while counts[at] != 0:
        # How far it is from where its search begins, against how far from the hole.
        if ((at - _home(keys, at, mask)) & mask) >= ((at - hole) & mask):
            for j in range(keys.shape[1]):
                keys[hole, j] = keys[at, j]
            counts[hole] = counts[at]
            hole = at
        at = (at + 1) & mask
    counts[hole] = 0


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
def _is_beyond(elements: Ints, n: int, rows: Ints, i: int) -> bool:
    """Tell whether one of the first `n` elements of an antichain is less or equal to a time."""
    k = rows.shape[1]
    if n == 0 or k == 0:
        return n > 0
    if k == 1:
        return elements[0, 0] <= rows[i, 0]
    if k == 2:
        # Only the last element that does not come after the time in lexicographic order can be less or equal.
        low, high = 0, n
        while low < high:
            middle = (low + high) // 2
            if _precedes(rows, i, elements, middle) < 0:
                high = middle
            else:
                low = middle + 1
        return low > 0 and elements[low - 1, 1] <= rows[i, 1]
    for e in range(n):
        less = True
        for j in range(k):
            if elements[e, j] > rows[i, j]:
                less = False
                break
        if less:
            return True
    return False


@njit
def _precedes(left: Ints, i: int, right: Ints, e: int) -> int:
    """Return -1, 0 or 1 as the first time comes before, at or after the second in lexicographic order."""
    for j in range(left.shape[1]):
        if left[i, j] != right[e, j]:
            return -1 if left[i, j] < right[e, j] else 1
    return 0


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
    for i in range(rows.shape[0]):
        if 2 * (n_held + 1) > counts.shape[0]:
            keys, counts = _grown(keys, counts)
        slot = _find(keys, counts, rows, i)
        if counts[slot] == 0:
            if diffs[i] != 0:
                for j in range(rows.shape[1]):
                    keys[slot, j] = rows[i, j]
                counts[slot] = diffs[i]
                n_held += 1
        else:
            counts[slot] += diffs[i]
            if counts[slot] == 0:
                _free(keys, counts, slot)
                n_held -= 1
    lost = False
    for e in range(elements.shape[0]):
        if counts[_find(keys, counts, elements, e)] <= 0:
            lost = True
            break
    if lost:
        return keys, counts, n_held, lost, held(keys, counts, n_held)[0]
    found = np.empty(rows.shape[0], dtype=np.bool_)
    n_found = 0
    for i in range(rows.shape[0]):
        found[i] = not _is_beyond(elements, elements.shape[0], rows, i) and counts[_find(keys, counts, rows, i)] > 0
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
    Cost: O(c·(log m + m)) for c candidates and m minima, the m being moves of memory for k = 2.
    """
    n, k = elements.shape[0], elements.shape[1]
    kept = np.empty((n + candidates.shape[0], k), dtype=np.int64)
    kept[:n] = elements
    for i in range(candidates.shape[0]):
        if _is_beyond(kept, n, candidates, i):
            continue
        # Where it belongs; those that it is less or equal to come after it, and go.
        low, high = 0, n
        while low < high:
            middle = (low + high) // 2
            if _precedes(kept, middle, candidates, i) < 0:
                low = middle + 1
            else:
                high = middle
        after = low
        at = low
        if k <= 2:
            while at < n and (k < 2 or kept[at, 1] >= candidates[i, 1]):
                at += 1
        else:
            for e in range(low, n):
                less = True
                for j in range(k):
                    if candidates[i, j] > kept[e, j]:
                        less = False
                        break
                if not less:
                    for j in range(k):
                        kept[after, j] = kept[e, j]
                    after += 1
            n, at, after = after, low, low
        gone = at - after
        if gone == 0:
            for e in range(n - 1, after - 1, -1):
                for j in range(k):
                    kept[e + 1, j] = kept[e, j]
        elif gone > 1:
            for e in range(at, n):
                for j in range(k):
                    kept[e - gone + 1, j] = kept[e, j]
        n += 1 - gone
        for j in range(k):
            kept[after, j] = candidates[i, j]
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
