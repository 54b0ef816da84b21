"""The order of times, on arrays: less or equal, beyond, minima, moving times forward.

Times are arrays of shape (n, k): one time per row, k coordinates. With k = 1 the order of times
is the order of numbers; with k > 1 it is the product order, coordinate by coordinate. Two other
orders exist and are kept apart from it on purpose: the lexicographic order of rows only sorts
(`spark_timely.time.arrays`) and says nothing about what must come before what.

Invariants
----------
1. Nothing here modifies or keeps an argument.
2. A set of minima is always returned as an antichain in lexicographic order: rows are distinct,
   none is less or equal to another.
3. A frontier argument may be any array of times: an antichain is cheaper, never needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_timely.errors import InvalidUsageError
from spark_timely.time.arrays import check_same_arity, lexsort, one_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_timely.time.arrays import BoolArray, IntArray


# A frontier of up to this many elements is compared element by element; above it one sorted
# sweep (k = 2) is cheaper.
_FEW = 6
# Up to this many rows the minima are found on Python integers: building an array costs more.
_TINY = 8
# Rows that are compared at once, so that they stay in the processor's cache.
_CHUNK = 1 << 16


def less_equal(a: IntArray, b: IntArray) -> BoolArray:
    """Tell for each row whether `a` is less or equal to `b` in the product order.

    Parameters
    ----------
    a, b : ndarray of int64 or uint64, shapes (n, k) and (n, k)
        Broadcast against each other over the leading axes, so one row may be held against many.

    Returns
    -------
    ndarray of bool, shape (n,)
        True where every coordinate of `a` is at most that of `b`.

    Notes
    -----
    Cost: O(n·k). Source: timely `order.rs`, `PartialOrder::less_equal`.

    Examples
    --------
    >>> less_equal(np.array([[1, 2], [2, 1]]), np.array([[1, 3]])).tolist()
    [True, False]
    """
    a, b = np.asarray(a), np.asarray(b)
    check_same_arity(a, b)
    if a.shape[-1] == 0:
        return np.ones(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), dtype=np.bool_)
    result: BoolArray = a[..., 0] <= b[..., 0]
    for i in range(1, a.shape[-1]):  # k coordinates
        result &= a[..., i] <= b[..., i]
    return result


def beyond(times: IntArray, frontier: IntArray) -> BoolArray:
    """Tell for each time whether it is beyond the frontier: some element is less or equal to it.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
    frontier : ndarray of int64 or uint64, shape (m, k)
        Any times; an empty frontier is complete, and no time is beyond it.

    Returns
    -------
    ndarray of bool, shape (n,)

    Notes
    -----
    Cost: O(n) for k = 1; O((n + m)·log m) for k = 2; O(n·m·k) else, and always when m is small.
    Source: timely `progress/frontier.rs`, `AntichainRef::less_equal`.

    Examples
    --------
    >>> beyond(np.array([[0, 9], [2, 2], [3, 0]]), np.array([[1, 2], [3, 0]])).tolist()
    [False, True, True]
    """
    check_same_arity(times, frontier)
    n, k = times.shape
    m = frontier.shape[0]
    if m == 0:
        return np.zeros(n, dtype=np.bool_)
    if k == 0:
        return np.ones(n, dtype=np.bool_)
    if k == 1:
        result: BoolArray = times[:, 0] >= frontier[:, 0].min()
        return result
    if m == 1:
        return less_equal(frontier, times)
    if k == 2 and m > _FEW:
        # In lexicographic order, with the running minimum of the second coordinate, the last
        # element whose first coordinate fits is also the one with the least second coordinate.
        order = lexsort(frontier)
        first = frontier[order, 0]
        least = np.minimum.accumulate(frontier[order, 1])
        at = np.searchsorted(first, times[:, 0], side="right") - 1
        return (at >= 0) & (least[np.maximum(at, 0)] <= times[:, 1])
    result = np.zeros(n, dtype=np.bool_)
    for element in frontier:  # m antichain elements
        result |= less_equal(element[None, :], times)
    return result


def minimal_elements(elements: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the minima of a few times given as tuples, in lexicographic order.

    The same as `minimal` on Python integers, for the antichains of one to four elements that are
    built all the time: no array is made.

    Notes
    -----
    Cost: O(n log n) for k ≤ 2, O(n·m·k) for n times and m minima else.

    Examples
    --------
    >>> minimal_elements([(2, 2), (1, 3), (2, 1), (1, 3)])
    [(1, 3), (2, 1)]
    """
    kept: list[tuple[int, ...]] = []
    # In lexicographic order a row is never less or equal to one before it, unless equal.
    for element in sorted(elements):
        if len(element) <= 2 and kept:
            # Second coordinates fall from one kept to the next: the last one decides.
            if len(element) == 2 and element[1] < kept[-1][1]:
                kept.append(element)
            continue
        for other in kept:
            if all(x <= y for x, y in zip(other, element, strict=True)):
                break
        else:
            kept.append(element)
    return kept


def minimal(times: IntArray) -> IntArray:
    """Return the antichain of minima of `times`, in lexicographic order.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
        In any order, with repetitions.

    Returns
    -------
    ndarray, shape (m, k)
        A new array: the distinct times to which no other is less or equal.

    Notes
    -----
    Cost: O(n) for k = 1; O(n log m) for k = 2 and m minima, O(n log n) where most rows are
    minimal; O(n·m·k) for k > 2.

    Examples
    --------
    >>> minimal(np.array([[2, 2], [1, 3], [2, 1], [1, 3]])).tolist()
    [[1, 3], [2, 1]]
    """
    n, k = times.shape
    if n <= 1 or k == 0:
        return times[:1].copy()
    if k == 1:
        least: IntArray = times.min(axis=0, keepdims=True)
        return least
    if n <= _TINY:
        return np.array(minimal_elements(map(tuple, times.tolist())), dtype=times.dtype)
    # Most rows lie above minima of earlier rows: piece by piece, only the others are sorted.
    minima = _sorted_minima(times[:_CHUNK])
    low = _CHUNK
    while low < n:
        # As many rows as there are minima: these are sorted again with every piece.
        high = low + max(_CHUNK, minima.shape[0])
        piece = times[low:high]
        piece = piece[~beyond(piece, minima)]
        if piece.shape[0]:
            minima = _sorted_minima(np.concatenate([minima, piece]))
        low = high
    return minima


def _sorted_minima(times: IntArray) -> IntArray:
    times = times[lexsort(times)]
    if times.shape[1] == 2:
        # Row i is minimal when its second coordinate is below that of every row before it.
        second = times[:, 1]
        least = np.minimum.accumulate(second)
        keep = np.empty(times.shape[0], dtype=np.bool_)
        keep[0] = True
        keep[1:] = second[1:] < least[:-1]
        return times[keep]
    minima: list[IntArray] = []
    while times.shape[0]:  # m rounds: the first row left is a minimum
        minima.append(times[0])
        times = times[~less_equal(times[:1], times)]
    return np.array(minima, dtype=times.dtype)


def advance(times: IntArray, frontier: IntArray) -> IntArray:
    """Move each time forward until it is beyond the frontier, as little as possible.

    For k = 1 that is the greater of time and frontier. In a product order a time may have to
    reach one of several elements: of the least upper bounds with each, the lexicographically
    least is taken, so that the answer never depends on an order of arrival. A time that is beyond
    the frontier already stays as it is.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
    frontier : ndarray of int64 or uint64, shape (m, k)

    Returns
    -------
    ndarray, shape (n, k)
        A new array; every row is beyond the frontier.

    Raises
    ------
    InvalidUsageError
        If the frontier is empty: no time is beyond it.

    Notes
    -----
    Cost: O(n·m·k). Not what logical compaction does, see `advance_by`.

    Examples
    --------
    >>> advance(np.array([[3], [7]]), np.array([[5]])).tolist()
    [[5], [7]]
    >>> advance(np.array([[1, 1], [9, 0]]), np.array([[1, 4], [3, 0]])).tolist()
    [[1, 4], [9, 0]]
    """
    check_same_arity(times, frontier)
    if frontier.shape[0] == 0:
        msg = "could not advance times: found an empty frontier"
        raise InvalidUsageError(
            msg,
            hint="an empty frontier is complete, nothing can be at or after it",
        )
    times, frontier = one_dtype(times, frontier)
    best = np.maximum(times, frontier[:1])
    for element in frontier[1:]:  # m antichain elements
        other = np.maximum(times, element[None, :])
        less = _lexicographically_less(other, best)
        best[less] = other[less]
    return best


def _lexicographically_less(left: IntArray, right: IntArray) -> BoolArray:
    k = left.shape[1]
    less: BoolArray = left[:, k - 1] < right[:, k - 1]
    for i in range(k - 2, -1, -1):  # k coordinates, the first one decides last
        less = (left[:, i] < right[:, i]) | ((left[:, i] == right[:, i]) & less)
    return less


def advance_by(times: IntArray, frontier: IntArray) -> IntArray:
    """Move each time to the greatest one that no time beyond the frontier can tell from it.

    The result t' satisfies, for every time u beyond the frontier: t ≤ u exactly when t' ≤ u.
    It is the greatest lower bound of the least upper bounds with each element; in a product
    order it need not itself be beyond the frontier (see `advance` for that). An empty frontier
    distinguishes nothing and leaves the times as they are.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
    frontier : ndarray of int64 or uint64, shape (m, k)

    Returns
    -------
    ndarray, shape (n, k)
        A new array.

    Notes
    -----
    Cost: O(n·m·k). Source: differential `lattice.rs`, `Lattice::advance_by`.

    Examples
    --------
    >>> advance_by(np.array([[1, 1]]), np.array([[1, 4], [3, 0]])).tolist()
    [[1, 1]]
    >>> advance_by(np.array([[0, 0]]), np.array([[1, 4], [3, 2]])).tolist()
    [[1, 2]]
    """
    check_same_arity(times, frontier)
    if frontier.shape[0] == 0:
        return times.copy()
    times, frontier = one_dtype(times, frontier)
    result = np.maximum(times, frontier[:1])
    for element in frontier[1:]:  # m antichain elements
        np.minimum(result, np.maximum(times, element[None, :]), out=result)
    return result
