"""Antichains, sets of incomparable times, as values; and times in arrays, with their order.

Nearly every module above takes `Antichain` from here: uppers, sinces and frontiers are such values. A frontier is an
antichain that bounds the times still to come at a place. What counts and moves (`MutableAntichain`) is in
`spark_timely.progress.frontier`; what an integer means as a date is in `domain`.

Times are arrays of shape (n, k): one time per row, k coordinates; int64, or uint64 where values of 2**63 or more occur.
numpy would make floats of both together: `concat_times` and `one_dtype` bring them into one type.

With k = 1 the order of times is the order of numbers; with k > 1 it is the product order, coordinate by coordinate
(`less_equal`, `beyond`, `minimal`, `advance`): (1, 5) and (2, 3) are incomparable. The lexicographic order of rows is
kept apart from it on purpose: it only sorts (`lexsort`, `group_times`, `consolidate_rows`) and says nothing about what
must come before what.

Invariants
----------
1. No function modifies or keeps an argument.
2. A set of minima is always returned as an antichain in lexicographic order: rows are distinct, none is less or equal
   to another.
3. A frontier argument may be any array of times: an antichain is cheaper, never needed.
4. Elements of an `Antichain` are as in invariant 2: equal antichains have equal elements, arrays and JSON texts.
5. An `Antichain` never changes; its array is read-only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.errors import InvalidShapeError, InvalidUsageError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Times: int64, or uint64.
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
# Diffs, counts, deltas, steps.
DiffArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# A single time as Python values, one integer per coordinate.
Time: TypeAlias = tuple[int, ...]
TimesLike: TypeAlias = "npt.ArrayLike | Iterable[int] | Iterable[tuple[int, ...]]"

_INT64_MAX = (1 << 63) - 1
# Up to as many elements are compared as tuples, and shown.
_FEW_ELEMENTS = 8


def as_times(times: TimesLike, arity: int | None = None) -> IntArray:
    """Bring times into the form that the kernels take: integers of shape (n, k).

    Parameters
    ----------
    times : array-like of integers
        Rows of k coordinates; for k = 1 also a flat sequence. An array of int64 or uint64 that has
        the right shape is returned as it is, not copied.
    arity : int, optional
        The k that is wanted. Needed only to give an empty sequence a shape.

    Returns
    -------
    ndarray of int64 or uint64, shape (n, k)
        uint64 only where the input was uint64, or held a value of 2**63 or more.

    Raises
    ------
    InvalidShapeError
        If the values are not integers, or their shape is not (n, k).

    Examples
    --------
    >>> as_times([3, 5]).tolist()
    [[3], [5]]
    >>> as_times([(1, 2)], arity=2).shape
    (1, 2)
    """
    array = times if isinstance(times, np.ndarray) else _from_sequence(times)
    if array.dtype != np.int64 and array.dtype != np.uint64:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            msg = f"could not read times: expected whole numbers, found dtype={array.dtype!s}"
            raise InvalidShapeError(
                msg,
                hint="pass integers; dates and timestamps go through TimeDomain.from_columns",
            )
        array = array.astype(np.int64)
    if array.ndim == 1 and (arity is None or arity == 1 or array.size == 0):
        array = array.reshape(-1, 1) if array.size else array.reshape(0, 1 if arity is None else arity)
    if array.ndim != 2 or (arity is not None and array.shape[1] != arity):
        msg = (
            f"could not read times: expected shape (n, {'k' if arity is None else arity}), found shape={array.shape!r}"
        )
        raise InvalidShapeError(
            msg,
            hint="give one row per time and one column per coordinate",
        )
    return array


def _from_sequence(times: TimesLike) -> IntArray:
    if isinstance(times, str | bytes | Mapping) or not isinstance(times, Iterable):
        msg = f"could not read times: found {shown(times)}"
        raise InvalidShapeError(msg, hint="give a list or an array of whole numbers")
    values = list(times)
    try:
        array = np.array(values, dtype=np.int64) if values else np.empty(0, dtype=np.int64)
    except OverflowError:
        try:
            array = np.array(values, dtype=np.uint64)
        except OverflowError as error:
            msg = "could not read times: found a value outside the 64-bit integers"
            raise InvalidShapeError(
                msg,
                hint="give times as int64, or as uint64 without negative values",
            ) from error
    except (TypeError, ValueError) as error:
        msg = f"could not read times: found {values!r:.200}"
        raise InvalidShapeError(
            msg,
            hint="give whole numbers, the same number of coordinates in each time",
        ) from error
    if values and array.size and not np.array_equal(array, np.asarray(values)):
        msg = f"could not read times: found {values!r:.200}"
        raise InvalidShapeError(msg, hint="give whole numbers")
    return array


def as_diffs(diffs: npt.ArrayLike, n: int) -> DiffArray:
    """Bring count changes into an int64 array of `n` entries.

    Raises
    ------
    InvalidShapeError
        If the values are not integers, or not `n` of them.

    Examples
    --------
    >>> as_diffs([1, -1], 2).tolist()
    [1, -1]
    """
    try:
        array = np.asarray(diffs)
    except ValueError as error:
        msg = f"could not read diffs: found {shown(diffs)}"
        raise InvalidShapeError(msg, hint="give one whole number for each time") from error
    if array.size and not np.issubdtype(array.dtype, np.integer):
        msg = f"could not read diffs: expected whole numbers, found dtype={array.dtype!s}"
        raise InvalidShapeError(
            msg,
            hint="give signed integers as counts and diffs",
        )
    if array.ndim != 1 or array.shape[0] != n:
        msg = f"could not read diffs: expected shape ({n},), found shape={array.shape!r}"
        raise InvalidShapeError(
            msg,
            hint="give one diff for each time",
        )
    return array.astype(np.int64, copy=False)


def check_same_arity(left: IntArray, right: IntArray) -> None:
    """Refuse times that differ in their number of coordinates.

    Raises
    ------
    InvalidShapeError
        If the arities differ.

    Examples
    --------
    >>> check_same_arity(np.array([[1]]), np.array([[2], [3]]))
    """
    if left.shape[-1] != right.shape[-1]:
        msg = f"could not compare times: found arity={left.shape[-1]} and arity={right.shape[-1]}"
        raise InvalidShapeError(
            msg,
            hint="give times with the same number of coordinates",
        )


def joined_bounds(parts: Sequence[IntArray]) -> IntArray | None:
    """Return the bounds of what is within any of some bounds; None without any.

    Parameters
    ----------
    parts : sequence of ndarray, shape (2, k)
        Least and greatest value of each coordinate.

    Examples
    --------
    >>> joined_bounds([np.array([[3], [5]]), np.array([[1], [4]])]).tolist()
    [[1], [5]]
    """
    if not parts:
        return None
    stacked = np.stack(parts)
    return np.stack([stacked[:, 0].min(axis=0), stacked[:, 1].max(axis=0)])


def concat_times(*parts: IntArray) -> IntArray:
    """Put arrays of times after one another, signed and unsigned ones without loss.

    Plain concatenation of int64 and uint64 would give floats.

    Raises
    ------
    InvalidShapeError
        If the arities differ, or no 64-bit integer type holds all values.

    Examples
    --------
    >>> concat_times(np.array([[1]]), np.array([[2**63]], dtype=np.uint64)).dtype
    dtype('uint64')
    """
    for part in parts[1:]:
        check_same_arity(parts[0], part)
    return np.concatenate(one_dtype(*parts))


def one_dtype(*parts: IntArray) -> Sequence[IntArray]:
    """Return the same times in one type of integers: what numpy compares or joins without floats.

    Raises
    ------
    InvalidShapeError
        If no 64-bit integer type holds all values.

    Examples
    --------
    >>> [part.dtype.name for part in one_dtype(np.array([[1]]), np.array([[2]], dtype=np.uint64))]
    ['uint64', 'uint64']
    """
    if len({part.dtype for part in parts}) < 2:
        return parts
    if all(part.dtype == np.uint64 or not part.size or part.min() >= 0 for part in parts):
        return [part.astype(np.uint64, copy=False) for part in parts]
    if all(part.dtype == np.int64 or not part.size or part.max() <= _INT64_MAX for part in parts):
        return [part.astype(np.int64, copy=False) for part in parts]
    msg = "could not compare times: found negative ones and ones of 2**63 or more"
    raise InvalidShapeError(msg, hint="give times of one order all as int64 or all as uint64")


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


def ranges(starts: IntArray, lengths: IntArray) -> npt.NDArray[np.intp]:
    """Return whole numbers that follow each other from each start on, range after range.

    Parameters
    ----------
    starts, lengths : ndarray of int64, shape (n,)
        Lengths of 0 and more.

    Examples
    --------
    >>> ranges(np.array([7, 5, 0]), np.array([2, 0, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) + np.repeat(starts - (ends - lengths), lengths)


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
    Cost: O(n·m·k). Not differential's `Lattice::advance_by`, after which a time need not be beyond the frontier.

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
            hint="give a frontier with an element: an empty one is complete, nothing can be at or after it",
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


# The antichain --------------------------------------------------------------------------------------------------------


class Antichain:
    """A set of pairwise incomparable times, each of k coordinates.

    Built by `from_times`, `of` and `empty`; the empty one, as a frontier, means complete. There is
    no `<` between antichains: Python would sort by it. Use `less_equal`, `join`, `meet`.

    Notes
    -----
    Small ones are cheap: their elements are kept as tuples of Python integers, and an array is made
    when one is asked for. Hashable, picklable, comparable with `==`.
    Source: timely `progress/frontier.rs`, `Antichain`.

    Examples
    --------
    >>> frontier = Antichain.of((1, 2), (2, 1), (2, 2))
    >>> frontier
    Antichain.of((1, 2), (2, 1))
    >>> frontier.less_equal((1, 3)), frontier.less_equal((0, 9))
    (True, False)
    """

    __slots__ = ("_arity", "_elements", "_times")

    _arity: int
    _elements: tuple[tuple[int, ...], ...] | None
    _times: IntArray | None

    def __init__(self, times: TimesLike = (), arity: int | None = None) -> None:
        if isinstance(times, np.ndarray) and times.shape[0] > _FEW_ELEMENTS:
            array = minimal(as_times(times, arity))
            self._arity = array.shape[1]
            self._elements = None
            self._times = _read_only(array)
            return
        array = as_times(times, arity)
        self._arity = array.shape[1]
        if array.shape[0] > _FEW_ELEMENTS:
            self._elements = None
            self._times = _read_only(minimal(array))
        else:
            self._elements = tuple(minimal_elements(map(tuple, array.tolist())))
            self._times = None

    @classmethod
    def from_times(cls, times: TimesLike, arity: int | None = None) -> Antichain:
        """Return the antichain of the minima of any times.

        Parameters
        ----------
        times : array-like of integers, shape (n, k); for k = 1 also (n,)
            Not kept, not modified.
        arity : int, optional
            The k that is wanted; needed when there are no times.

        Raises
        ------
        InvalidShapeError
            If these are not whole numbers of one arity.

        Examples
        --------
        >>> Antichain.from_times([[7], [5]])
        Antichain.of(5)
        """
        return cls(times, arity)

    @classmethod
    def of(cls, *times: int | Sequence[int]) -> Antichain:
        """Return the antichain of the minima of the given times; integers for k = 1.

        Raises
        ------
        InvalidShapeError
            If no time is given (see `empty`), or their arities differ.

        Examples
        --------
        >>> Antichain.of(5).to_json()
        [5]
        """
        if not times:
            msg = "could not build an antichain: found no times"
            raise InvalidShapeError(
                msg,
                hint="use Antichain.empty(arity) for the empty one",
            )
        rows = [_coordinates(t) for t in times]
        arity = len(rows[0])
        if any(len(row) != arity for row in rows):
            msg = f"could not build an antichain: found times of several arities, times={rows!r:.200}"
            raise InvalidShapeError(
                msg,
                hint="give all times the same number of coordinates",
            )
        return cls._trusted(tuple(minimal_elements(rows)), arity)

    @classmethod
    def empty(cls, arity: int = 1) -> Antichain:
        """Return the empty antichain; as a frontier: complete, nothing more will come.

        Examples
        --------
        >>> Antichain.empty().is_empty
        True
        """
        if isinstance(arity, bool) or not isinstance(arity, int) or arity < 0:
            msg = f"could not build an antichain: found arity={shown(arity)}"
            raise InvalidShapeError(msg, hint="give the number of coordinates of a time")
        return cls._trusted((), arity)

    @classmethod
    def _trusted(cls, elements: tuple[tuple[int, ...], ...], arity: int) -> Antichain:
        self = cls.__new__(cls)
        self._arity = arity
        self._elements = elements
        self._times = None
        return self

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    @property
    def elements(self) -> tuple[tuple[int, ...], ...]:
        """The elements as tuples of Python integers, in lexicographic order."""
        if self._elements is None:
            self._elements = tuple(map(tuple, self.times.tolist()))
        return self._elements

    @property
    def times(self) -> IntArray:
        """The elements as a read-only array of shape (m, k), in lexicographic order.

        int64, or uint64 where an element is 2**63 or more.
        """
        if self._times is None:
            elements = self.elements
            dtype: type[np.int64] | type[np.uint64] = np.int64
            if any(coordinate > _INT64_MAX for element in elements for coordinate in element):
                dtype = np.uint64
            array = np.array(elements, dtype=dtype).reshape(len(elements), self._arity)
            self._times = _read_only(array)
        return self._times

    @property
    def is_empty(self) -> bool:
        """Whether there is no element: as a frontier, complete."""
        return len(self) == 0

    def __len__(self) -> int:
        """Return the number of elements."""
        if self._elements is not None:
            return len(self._elements)
        return int(self.times.shape[0])

    def __bool__(self) -> bool:
        """Return whether there is an element: False means complete."""
        return len(self) > 0

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Iterate over the elements as tuples."""
        return iter(self.elements)

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same elements of the same arity."""
        if not isinstance(other, Antichain):
            return NotImplemented
        return self._arity == other._arity and self.elements == other.elements

    def __hash__(self) -> int:
        """Return a hash that agrees with `==`."""
        return hash((self._arity, self.elements))

    def __repr__(self) -> str:
        """Return the expression that builds this antichain."""
        if self.is_empty:
            return f"Antichain.empty({self._arity})"
        shown = [str(e[0]) if self._arity == 1 else str(e) for e in self.elements[:_FEW_ELEMENTS]]
        more = f", … {len(self) - _FEW_ELEMENTS} more" if len(self) > _FEW_ELEMENTS else ""
        return f"Antichain.of({', '.join(shown)}{more})"

    def __reduce__(self) -> tuple[object, tuple[tuple[tuple[int, ...], ...], int]]:
        """Pickle as the elements."""
        return _rebuild, (self.elements, self._arity)

    def less_equal(self, time: int | Sequence[int]) -> bool:
        """Tell whether `time` is beyond this antichain: some element is less or equal to it.

        Examples
        --------
        >>> Antichain.of(5).less_equal(5), Antichain.of(5).less_equal(4)
        (True, False)
        """
        row = self._row(time)
        return any(_tuple_less_equal(element, row) for element in self.elements)

    def less_than(self, time: int | Sequence[int]) -> bool:
        """Tell whether some element is strictly less than `time`.

        Examples
        --------
        >>> Antichain.of(5).less_than(6), Antichain.of(5).less_than(5)
        (True, False)
        """
        row = self._row(time)
        return any(element != row and _tuple_less_equal(element, row) for element in self.elements)

    def beyond(self, times: TimesLike) -> BoolArray:
        """Tell for each time whether it is beyond this antichain.

        Parameters
        ----------
        times : array-like of integers, shape (n, k)

        Returns
        -------
        ndarray of bool, shape (n,)

        Notes
        -----
        Cost: see `spark_timely.time.antichain.beyond`.

        Examples
        --------
        >>> Antichain.of(5).beyond([4, 5, 6]).tolist()
        [False, True, True]
        """
        return beyond(as_times(times, self._arity), self.times)

    def less_equal_frontier(self, other: Antichain) -> bool:
        """Tell whether every element of `other` is beyond this antichain.

        As frontiers: this one has not passed `other`. Anything is less or equal to the empty one.

        Examples
        --------
        >>> Antichain.of(5).less_equal_frontier(Antichain.of(7))
        True
        >>> Antichain.of(5).less_equal_frontier(Antichain.empty())
        True
        """
        self._same_arity(other)
        if len(self) * len(other) <= _FEW_ELEMENTS * _FEW_ELEMENTS:
            return all(self.less_equal(element) for element in other.elements)
        return bool(beyond(other.times, self.times).all())

    def less_than_frontier(self, other: Antichain) -> bool:
        """Tell whether `less_equal_frontier` holds and the two differ.

        Examples
        --------
        >>> Antichain.of(5).less_than_frontier(Antichain.of(5))
        False
        """
        return self != other and self.less_equal_frontier(other)

    def meet(self, other: Antichain) -> Antichain:
        """Return the greatest antichain less or equal to both: the minima of the union.

        Examples
        --------
        >>> Antichain.of(5).meet(Antichain.of(7))
        Antichain.of(5)
        >>> Antichain.of(5).meet(Antichain.empty())
        Antichain.of(5)
        """
        self._same_arity(other)
        if len(self) + len(other) <= 2 * _FEW_ELEMENTS:
            return Antichain._trusted(tuple(minimal_elements(self.elements + other.elements)), self._arity)
        return Antichain(concat_times(self.times, other.times), self._arity)

    def join(self, other: Antichain) -> Antichain:
        """Return the least antichain greater or equal to both: the minima of pairwise upper bounds.

        A time is beyond the join exactly when it is beyond both.

        Examples
        --------
        >>> Antichain.of((1, 2)).join(Antichain.of((2, 1)))
        Antichain.of((2, 2))
        >>> Antichain.of(5).join(Antichain.empty())
        Antichain.empty(1)
        """
        self._same_arity(other)
        if len(self) * len(other) <= _FEW_ELEMENTS * _FEW_ELEMENTS:
            pairs = (tuple(map(max, mine, theirs)) for mine in self.elements for theirs in other.elements)
            return Antichain._trusted(tuple(minimal_elements(pairs)), self._arity)
        both = concat_times(self.times, other.times)
        bounds = np.maximum(both[: len(self), None, :], both[None, len(self) :, :])
        return Antichain(bounds.reshape(-1, self._arity), self._arity)

    def to_json(self) -> list[int] | list[list[int]]:
        """Return the elements as plain JSON values: integers for k = 1, else lists.

        `[]` is complete. The order is that of the elements, so equal antichains give equal texts.

        Examples
        --------
        >>> Antichain.of((2, 1), (1, 2)).to_json()
        [[1, 2], [2, 1]]
        """
        if self._arity == 1:
            return [element[0] for element in self.elements]
        return [list(element) for element in self.elements]

    @classmethod
    def from_json(cls, value: object, arity: int = 1) -> Antichain:
        """Read what `to_json` gave, as a value or as JSON text.

        Raises
        ------
        InvalidShapeError
            If it is not a list of integers (k = 1) or of lists of k integers.

        Examples
        --------
        >>> Antichain.from_json("[[2, 1], [1, 2]]", arity=2)
        Antichain.of((1, 2), (2, 1))
        """
        if isinstance(value, str | bytes):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise _not_an_antichain(value, arity) from error
        if not isinstance(value, list | tuple):
            raise _not_an_antichain(value, arity)
        rows: list[tuple[int, ...]] = []
        for item in value:
            row = (item,) if arity == 1 and not isinstance(item, list | tuple) else item
            if (
                not isinstance(row, list | tuple)
                or len(row) != arity
                or any(not isinstance(x, int) or isinstance(x, bool) for x in row)
                or any(not -_INT64_MAX - 1 <= x < 1 << 64 for x in row)
            ):
                raise _not_an_antichain(value, arity)
            rows.append(tuple(row))
        return cls._trusted(tuple(minimal_elements(rows)), arity)

    def _row(self, time: int | Sequence[int]) -> tuple[int, ...]:
        row = _coordinates(time)
        if len(row) != self._arity:
            msg = f"could not compare time={row!r} with a frontier of arity={self._arity}"
            raise InvalidShapeError(
                msg,
                hint="give times with the same number of coordinates",
            )
        return row

    def _same_arity(self, other: Antichain) -> None:
        if not isinstance(other, Antichain):
            msg = f"could not compare antichains: found {shown(other)}"
            raise InvalidUsageError(msg, hint="give an Antichain: Antichain.of(5), or the frontier of a log")
        if self._arity != other._arity:
            msg = f"could not compare antichains: found arity={self._arity} and arity={other._arity}"
            raise InvalidShapeError(
                msg,
                hint="give times with the same number of coordinates",
            )


def _coordinates(time: int | Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of one time."""
    if type(time) is int:  # by far the most
        return (time,)
    try:
        # By way of `index`, which takes no fractions; True is a 1.
        return (int(time),) if isinstance(time, int | np.integer) else tuple(map(int, map(index, time)))
    except TypeError as error:
        msg = f"could not read a time: found {shown(time)}"
        raise InvalidShapeError(msg, hint="give a whole number, or one for each coordinate") from error


def _tuple_less_equal(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return all(x <= y for x, y in zip(left, right, strict=True))


def _read_only(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array


def _rebuild(elements: tuple[tuple[int, ...], ...], arity: int) -> Antichain:
    return Antichain._trusted(elements, arity)


def _not_an_antichain(value: object, arity: int) -> InvalidShapeError:
    form = "[5]" if arity == 1 else "[[" + ", ".join("1" * arity) + "]]"
    return InvalidShapeError(
        f"could not read an antichain of arity={arity}: found {value!r:.200}",
        hint=f"give a JSON list of times such as {form}; [] is complete",
    )
