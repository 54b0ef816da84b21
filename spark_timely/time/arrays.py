"""Times and diffs as arrays: their types, and how values from outside are brought into them.

Times are arrays of shape (n, k): one time per row, k coordinates; int64, or uint64 where values of
2**63 or more occur. numpy would make floats of both together: `concat_times` and `one_dtype` bring
them into one type. Nothing here modifies an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_timely.errors import InvalidShapeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "BoolArray",
    "DiffArray",
    "IntArray",
    "Time",
    "TimesLike",
    "as_diffs",
    "as_times",
    "check_same_arity",
    "concat_times",
    "one_dtype",
]

# Times: int64, or uint64.
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
# Diffs, counts, deltas, steps.
DiffArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# A single time as Python values, one integer per coordinate.
Time: TypeAlias = tuple[int, ...]
TimesLike: TypeAlias = "npt.ArrayLike | Iterable[int] | Iterable[tuple[int, ...]]"

_INT64_MAX = (1 << 63) - 1


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
    values = list(times)  # type: ignore[arg-type]
    try:
        array = np.array(values, dtype=np.int64) if values else np.empty(0, dtype=np.int64)
    except OverflowError:
        try:
            array = np.array(values, dtype=np.uint64)
        except OverflowError as error:
            msg = "could not read times: found a value outside the 64-bit integers"
            raise InvalidShapeError(
                msg,
                hint="times are int64, or uint64 without negative values",
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
    array = np.asarray(diffs)
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
    raise InvalidShapeError(msg, hint="times of one order are all int64 or all uint64")
