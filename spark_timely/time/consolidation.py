"""Sorting, grouping and consolidation of arrays of times, all in lexicographic order of rows.

That order says nothing about what must come before what: for times of several coordinates see
`spark_timely.time.order`. Nothing here modifies or keeps an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.time.arrays import as_diffs, as_times

if TYPE_CHECKING:
    from spark_timely.time.arrays import BoolArray, DiffArray, IntArray, TimesLike

__all__ = ["consolidate", "consolidate_rows", "group_times", "is_sorted", "lexsort", "run_starts", "unique_times"]

# A column whose values span no more than this many slots per row is counted by slot, not sorted.
_DENSE_SLOTS_PER_ROW = 2
_DENSE_SLOTS_FREE = 1 << 16
_SAMPLE = 4096


def lexsort(times: IntArray) -> npt.NDArray[np.intp]:
    """Return the stable permutation that sorts the rows lexicographically.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)

    Returns
    -------
    ndarray of intp, shape (n,)

    Notes
    -----
    Cost: O(n) when the rows are sorted already, else O(k·n log n).

    Examples
    --------
    >>> lexsort(np.array([[2, 0], [1, 9], [1, 3]])).tolist()
    [2, 1, 0]
    """
    if is_sorted(times):
        return np.arange(times.shape[0], dtype=np.intp)
    return _lexsort(times)


def _lexsort(times: IntArray) -> npt.NDArray[np.intp]:
    n, k = times.shape
    packed = _packed(times)
    if packed is not None:
        packed.sort()
        packed &= (1 << (n - 1).bit_length()) - 1
        return packed
    if k == 1:
        return np.argsort(times[:, 0], kind="stable")
    return np.lexsort(tuple(times[:, i] for i in range(k - 1, -1, -1)))


def _packed(times: IntArray) -> npt.NDArray[np.intp] | None:
    """Return one number per row that sorts as the row does and ends in the row's index, where 63 bits hold it.

    Sorting numbers takes a third of the time of sorting indices by them.
    """
    n, k = times.shape
    bits = (n - 1).bit_length()
    room = 1 << (63 - bits)
    lows, spans = [], []
    for i in range(k):  # k coordinates
        low, high = int(times[:, i].min()), int(times[:, i].max())
        lows.append(low)
        spans.append(high - low + 1)
        room //= spans[-1]
        if not room:
            return None
    packed = (times[:, 0] - times.dtype.type(lows[0])).astype(np.intp, copy=False)
    for i in range(1, k):
        packed *= spans[i]
        packed += (times[:, i] - times.dtype.type(lows[i])).astype(np.intp, copy=False)
    packed <<= bits
    packed += np.arange(n, dtype=np.intp)
    return packed


def is_sorted(times: IntArray) -> bool:
    """Tell whether the rows are in lexicographic order; equal neighbours are.

    Notes
    -----
    Cost: O(n·k).

    Examples
    --------
    >>> is_sorted(np.array([[1, 5], [1, 5], [2, 0]]))
    True
    """
    n, k = times.shape
    if n < 2 or k == 0:
        return True
    ordered: BoolArray = times[:-1, k - 1] <= times[1:, k - 1]
    for i in range(k - 2, -1, -1):  # k coordinates, the first one decides last
        left, right = times[:-1, i], times[1:, i]
        ordered = (left < right) | ((left == right) & ordered)
    return bool(ordered.all())


def run_starts(times: IntArray) -> npt.NDArray[np.intp]:
    """Return the index of the first row of each run of equal rows.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)

    Returns
    -------
    ndarray of intp, shape (m,)

    Notes
    -----
    Cost: O(n·k).

    Examples
    --------
    >>> run_starts(np.array([[3], [3], [5], [3]])).tolist()
    [0, 2, 3]
    """
    n, k = times.shape
    if n == 0:
        return np.empty(0, dtype=np.intp)
    first = np.empty(n, dtype=np.bool_)
    first[0] = True
    first[1:] = False
    for i in range(k):  # k coordinates
        first[1:] |= times[1:, i] != times[:-1, i]
    return np.flatnonzero(first)


def unique_times(times: IntArray) -> tuple[IntArray, DiffArray]:
    """Return the distinct times in lexicographic order, and how often each occurs.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)

    Returns
    -------
    times, counts : ndarray, shapes (m, k) and (m,)

    Notes
    -----
    Cost: as `group_times`.

    Examples
    --------
    >>> times, counts = unique_times(np.array([[7], [5], [7]]))
    >>> times.tolist(), counts.tolist()
    ([[5], [7]], [1, 2])
    """
    unique, _, counts = group_times(times)
    return unique, counts


def group_times(
    times: IntArray,
) -> tuple[IntArray, npt.NDArray[np.intp], DiffArray]:
    """Return the distinct times, the number of each row's time among them, and how often each occurs.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)

    Returns
    -------
    unique, inverse, counts : ndarray, shapes (m, k), (n,) and (m,)
        `unique[inverse]` equals `times`; `unique` is in lexicographic order.

    Notes
    -----
    Cost: O(n) when the rows are sorted already, or where the values of each coordinate lie close
    together; else by hashing, O(n + m log m).

    Examples
    --------
    >>> unique, inverse, counts = group_times(np.array([[7], [5], [7]]))
    >>> unique.tolist(), inverse.tolist(), counts.tolist()
    ([[5], [7]], [1, 0, 1], [1, 2])
    """
    n, k = times.shape
    if n < 2 or k == 0:
        single = np.full(min(n, 1), n, dtype=np.int64)
        return times[:1].copy(), np.zeros(n, dtype=np.intp), single
    if is_sorted(times):
        starts = run_starts(times)
        counts = np.diff(starts, append=n).astype(np.int64)
        return times[starts], np.repeat(np.arange(starts.shape[0]), counts), counts
    slots = _slots(times) if k > 1 else None
    if slots is not None:
        codes, spans, lows = slots
        present, codes = _ranked(codes)
        return _times_of(present, spans, lows, times.dtype), codes, np.bincount(codes).astype(np.int64)
    values, codes = _ranked(times[:, 0])
    columns = [values]
    for i in range(1, k):  # k coordinates
        values, ranks = _ranked(times[:, i])
        # Ranks of pairs again, so that numbers stay below the number of rows.
        pairs, codes = _ranked(codes * np.intp(values.shape[0]) + ranks)
        first, second = np.divmod(pairs, values.shape[0])
        columns = [column[first] for column in columns] + [values[second]]
    return np.stack(columns, axis=1), codes, np.bincount(codes).astype(np.int64)


def _slots(times: IntArray) -> tuple[npt.NDArray[np.intp], list[int], list[int]] | None:
    """Give the times row-major numbers over the coordinates' ranges, where these are small."""
    n, k = times.shape
    lows = [int(times[:, i].min()) for i in range(k)]
    spans = [int(times[:, i].max()) - low + 1 for i, low in enumerate(lows)]
    n_slots = 1
    for span in spans:
        n_slots *= span
    if n_slots > max(_DENSE_SLOTS_FREE, _DENSE_SLOTS_PER_ROW * n):
        return None
    codes = np.zeros(n, dtype=np.intp)
    for i in range(k):  # k coordinates
        codes *= spans[i]
        codes += (times[:, i] - times.dtype.type(lows[i])).astype(np.intp, copy=False)
    return codes, spans, lows


def _times_of(slots: IntArray, spans: list[int], lows: list[int], dtype: np.dtype[np.integer]) -> IntArray:
    """Return the times of slot numbers."""
    times = np.empty((slots.shape[0], len(spans)), dtype=dtype)
    for i in range(len(spans) - 1, -1, -1):  # k coordinates
        slots, offset = np.divmod(slots, spans[i])
        times[:, i] = offset.astype(dtype) + dtype.type(lows[i])
    return times


def _ranked(values: IntArray) -> tuple[IntArray, npt.NDArray[np.intp]]:
    """Return the distinct values, sorted, and the number of each value among them."""
    low, high = int(values.min()), int(values.max())
    if high - low < max(_DENSE_SLOTS_FREE, _DENSE_SLOTS_PER_ROW * values.shape[0]):
        code = (values - values.dtype.type(low)).astype(np.intp, copy=False)
        present = np.zeros(high - low + 1, dtype=np.bool_)
        present[code] = True
        slots = np.flatnonzero(present)
        rank = np.cumsum(present, dtype=np.intp)
        rank -= 1
        return slots.astype(values.dtype) + values.dtype.type(low), rank[code]
    if np.unique(values[:: max(1, values.shape[0] // _SAMPLE)]).shape[0] > _SAMPLE // 2:
        # Hardly anything repeats: sorting beats hashing.
        distinct, codes = np.unique(values, return_inverse=True)
        return distinct, codes
    encoded = pa.array(values).dictionary_encode()
    distinct = encoded.dictionary.to_numpy()
    order = np.argsort(distinct)
    rank = np.empty(order.shape[0], dtype=np.intp)
    rank[order] = np.arange(order.shape[0], dtype=np.intp)
    return distinct[order], rank[encoded.indices.to_numpy()]


def consolidate_rows(times: IntArray, diffs: DiffArray) -> tuple[IntArray, DiffArray]:
    """Sum the diffs of equal times and drop those that become zero.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
    diffs : ndarray of int64, shape (n,)

    Returns
    -------
    times, diffs : ndarray, shapes (m, k) and (m,)
        Distinct times in lexicographic order with their non-zero sums.

    Notes
    -----
    Cost: O(n) when sorted already, else O(n log n).

    Examples
    --------
    >>> times, diffs = consolidate_rows(np.array([[3], [1], [3]]), np.array([1, 5, -1]))
    >>> times.tolist(), diffs.tolist()
    ([[1]], [5])
    """
    n = times.shape[0]
    if n == 0:
        return times.copy(), diffs.copy()
    if not times.shape[1]:
        total = diffs.sum(keepdims=True)
        return times[:1][total != 0], total[total != 0]
    if n > 1 and not is_sorted(times):
        order = _lexsort(times)
        times, diffs = times.take(order, axis=0), diffs.take(order)
    starts = run_starts(times)
    sums = np.add.reduceat(diffs, starts)
    kept = sums.nonzero()[0]
    return times.take(starts.take(kept), axis=0), sums.take(kept)


def consolidate(times: TimesLike, diffs: npt.ArrayLike, arity: int | None = None) -> tuple[IntArray, DiffArray]:
    """Sum the diffs of equal times and drop those that become zero.

    Parameters
    ----------
    times : array-like of integers, shape (n, k)
        Not modified.
    diffs : array-like of integers, shape (n,)
    arity : int, optional
        The k that is wanted; needed when there are no times.

    Returns
    -------
    times, diffs : ndarray, shapes (m, k) and (m,)
        Distinct times in lexicographic order with their non-zero sums.

    Raises
    ------
    InvalidShapeError
        If shapes or types do not fit.

    Notes
    -----
    Cost: O(n) when sorted already, else O(n log n).

    Examples
    --------
    >>> times, diffs = consolidate([3, 1, 3], [1, 5, -1])
    >>> times.tolist(), diffs.tolist()
    ([[1]], [5])
    """
    rows = as_times(times, arity)
    return consolidate_rows(rows, as_diffs(diffs, rows.shape[0]))
