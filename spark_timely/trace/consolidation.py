"""Consolidation: sum the diffs of what is equal, drop what comes to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.sorting import consolidate_rows
from spark_timely.time_arrays import DiffArray, IntArray, TimesLike, as_diffs, as_times

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["consolidate"]


def consolidate(times: TimesLike, diffs: npt.ArrayLike, arity: int | None = None) -> tuple[IntArray, DiffArray]:
    """Sum the diffs of equal times and drop those that come to zero.

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
