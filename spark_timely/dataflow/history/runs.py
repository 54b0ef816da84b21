"""Runs of equal keys in sorted arrays: where they begin, and sums, maxima and ranks along them.

The operators of this folder sort their rows by key and time; all rows of a key are then one run, and what is true of it
so far is computed for all keys at once. A run is given by where it begins (`run_starts_of`); it ends where the next one
does. (The run of an index is another thing, a file: `spark_timely.trace.run`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["best_so_far", "nth_so_far", "places_by_number", "run_starts_of", "spread", "sums_so_far", "wide"]


def run_starts_of(*sorted_keys: IntArray | BoolArray) -> IntArray:
    """Return where runs of equal keys begin.

    Examples
    --------
    >>> run_starts_of(np.array([1, 1, 2]), np.array([5, 6, 6])).tolist()
    [0, 1, 2]
    """
    n = sorted_keys[0].shape[0]
    if not n:
        return np.zeros(0, np.int64)
    begins = np.ones(n, np.bool_)
    begins[1:] = False
    for key in sorted_keys:
        begins[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(begins)


def spread(values: IntArray, starts: IntArray, n: int) -> IntArray:
    """Return for each of n elements the value of its run.

    Parameters
    ----------
    values : ndarray, shape (m,)
        One for each run.
    starts : ndarray of int64, shape (m,)
        Where runs begin; the first at 0.
    n : int

    Examples
    --------
    >>> spread(np.array([7, 8]), np.array([0, 2]), 3).tolist()
    [7, 7, 8]
    """
    return np.repeat(values, np.diff(starts, append=n))


def places_by_number(numbers: IntArray) -> IntArray:
    """Return where each number stands, one place of several; 0 for a number that does not occur.

    Parameters
    ----------
    numbers : ndarray of int64, shape (n,)
        At least -1: the last element is for that.

    Examples
    --------
    >>> places_by_number(np.array([2, 0, 2])).tolist()
    [1, 0, 2, 0]
    """
    places: IntArray = np.zeros(int(numbers.max(initial=0)) + 2, np.int64)
    places[numbers] = np.arange(numbers.shape[0])
    return places


def sums_so_far(values: IntArray, starts: IntArray, base: IntArray | int = 0) -> IntArray:
    """Return sums along runs, each from its base on.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Of integers, or of Python's where they may not fit.
    starts : ndarray of int64, shape (m,)
        Where runs begin.
    base : ndarray, shape (m,), or int

    Examples
    --------
    >>> sums_so_far(np.array([1, 2, 3]), np.array([0, 2]), np.array([10, 20])).tolist()
    [11, 13, 23]
    """
    if not values.shape[0]:
        return values
    total = np.cumsum(values)
    before = total[starts] - values[starts]
    return np.asarray(total + spread(base - before, starts, values.shape[0]))


def best_so_far(places: IntArray, starts: IntArray) -> IntArray:
    """Return the greatest so far along runs.

    Parameters
    ----------
    places : ndarray of int64, shape (n,)
        At least -1.
    starts : ndarray of int64, shape (m,)
        Where runs begin.

    Examples
    --------
    >>> best_so_far(np.array([1, 0, 0, 3, 2]), np.array([0, 2])).tolist()
    [1, 1, 0, 3, 3]
    """
    if not places.shape[0]:
        return places
    # Each run is lifted above the one before it, so that no maximum reaches from one into the next.
    lift = spread(np.arange(starts.shape[0]), starts, places.shape[0]) * (int(places.max()) + 2)
    return np.asarray(np.maximum.accumulate(places + lift) - lift)


def nth_so_far(places: IntArray, starts: IntArray, n: int) -> IntArray:
    """Return the n-th greatest of what was before each along runs; -1 where fewer than n were.

    Parameters
    ----------
    places : ndarray of int64, shape (rows,)
        At least 0.
    starts : ndarray of int64, shape (m,)
        Where runs begin.
    n : int
        At least 1.

    Notes
    -----
    Cost: O(rows) for n = 1; else O(r log r) of the r rows of runs that are longer than n, whatever n is: a wavelet
    matrix (Claude, Navarro and Ordóñez 2015) tells how many values of a stretch have a bit, bit by bit.

    Examples
    --------
    >>> nth_so_far(np.array([4, 9, 7, 8, 1]), np.array([0, 4]), 2).tolist()
    [-1, -1, 4, 7, -1]
    """
    n_rows = places.shape[0]
    if n == 1:
        found = np.concatenate([[-1], best_so_far(places, starts)[:-1]])[:n_rows]
        found[starts] = -1
        return np.asarray(found)
    found = np.full(n_rows, -1, np.int64)
    long = np.flatnonzero(spread(np.diff(starts, append=n_rows), starts, n_rows) > n)
    if not long.shape[0]:
        return found
    first = np.searchsorted(long, spread(starts, starts, n_rows)[long])
    asked = np.flatnonzero(np.arange(long.shape[0]) - first >= n)
    values, ranks = np.unique(places[long], return_inverse=True)
    found[long[asked]] = values[_nth_greatest(ranks, first[asked], asked, n)]
    return found


def _nth_greatest(ranks: IntArray, left: IntArray, right: IntArray, n: int) -> IntArray:
    """Return the n-th greatest number of each of some stretches, by a wavelet matrix.

    Parameters
    ----------
    ranks : ndarray of int64, shape (r,)
        From 0 on.
    left, right : ndarray of int64, shape (m,)
        Where stretches begin, and end without this element; each has n elements or more.
    n : int

    Returns
    -------
    ndarray of int64, shape (m,)
    """
    answer, wanted = np.zeros(left.shape[0], np.int64), np.full(left.shape[0], n)
    for bit in range(int(ranks.max()).bit_length() - 1, -1, -1):
        has_bit = (ranks >> bit) & 1
        n_without = np.concatenate([[0], np.cumsum(1 - has_bit)])
        n_with = (right - left) - (n_without[right] - n_without[left])
        is_with = n_with >= wanted
        answer |= is_with.astype(np.int64) << bit
        wanted = np.where(is_with, wanted, wanted - n_with)
        # Numbers without the bit are put before those with it, each in their order: so is each stretch.
        left, right = (np.where(is_with, n_without[-1] + end - n_without[end], n_without[end]) for end in (left, right))
        ranks = np.concatenate([ranks[has_bit == 0], ranks[has_bit == 1]])
    return answer


def wide(*numbers: IntArray) -> list[IntArray]:
    """Return numbers of which no sum is beyond 64 bits: as they are, or as Python's.

    Examples
    --------
    >>> [each.dtype.name for each in wide(np.array([1]), np.array([1 << 62, 1 << 62]))]
    ['object', 'object']
    """
    most = sum(float(np.abs(each.astype(np.float64)).sum()) for each in numbers)
    return list(numbers) if most < 2.0**62 else [each.astype(object) for each in numbers]
