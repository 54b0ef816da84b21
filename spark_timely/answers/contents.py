"""Contents from updates: sums updates up to a time into rows with their counts, as every peek ends.

Invariants
----------
1. Rows are equal if their canonical hashes of 128 bits are: nulls are equal, NaN equals NaN, -0.0 equals 0.0. Which of
   two equal rows is given does not depend on where they stood: 0.0 is given for both zeros.
2. Sums are exact: on the way they may be larger than 64 bits, so that it does not matter how the updates were cut.
3. A row with count 0 is not given; one with a count below 0, or above 2^63 - 1, is an error that names row and count.
4. Rows are given in the order of their hashes: the same whatever the order of the updates was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.history.keys import one_zero
from spark_timely.log.contents import refusal
from spark_timely.log.reader import exact_sums
from spark_timely.time.arrays import run_starts

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.time.antichain import Antichain
    from spark_timely.time.arrays import BoolArray, IntArray

__all__ = ["DIFF", "counted", "counts_at", "with_counts"]

DIFF: Final = "_diff"


def counts_at(
    times: IntArray,
    at: tuple[int, ...],
    *,
    since: Antichain | None = None,
    lower: int | None = None,
) -> BoolArray:
    """Return which updates count at a time, shape (n,).

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
    at : tuple of int
        The time: updates not later than it in any coordinate count.
    since : Antichain, optional
        Of a stream that has forgotten: messages not beyond it are gone.
    lower : int, optional
        Of times of one coordinate: those before it are counted elsewhere.

    Examples
    --------
    >>> counts_at(np.array([[3], [5], [6]]), (5,)).tolist()
    [True, True, False]
    >>> counts_at(np.array([[1, 9], [2, 2]]), (5, 5)).tolist()
    [False, True]
    """
    found: BoolArray = np.asarray((times <= np.array(at, np.int64)).all(axis=1))
    if since is not None:
        found &= since.beyond(times)
    if lower is not None:
        found &= times[:, 0] >= lower
    return found


def with_counts(rows: pa.Table, diffs: IntArray) -> pa.Table:
    """Return rows with a column of diffs, or of counts, behind them.

    Examples
    --------
    >>> with_counts(pa.table({"v": ["a"]}), np.array([2])).to_pylist()
    [{'v': 'a', '_diff': 2}]
    """
    return rows.append_column(pa.field(DIFF, pa.int64()), pa.array(diffs, pa.int64()))


def counted(path: str, rows: pa.Table, diffs: IntArray) -> pa.Table:
    """Return rows with their counts.

    Parameters
    ----------
    path : str
        Of the log, for errors.
    rows : pyarrow.Table
        One of each update: the columns that rows are counted by. Not modified.
    diffs : ndarray of int64, shape (n,)

    Returns
    -------
    pyarrow.Table
        The rows that are there, each once, and their count in `_diff`.

    Raises
    ------
    NegativeMultiplicityError
        If a row is there fewer than zero times.
    MultiplicityOverflowError
        If a row is there more often than 64 bits count.

    Notes
    -----
    Cost: one hash and one sort of the rows.

    Examples
    --------
    >>> counted("/log", pa.table({"v": ["a", "b", "a", "a"]}), np.array([1, 1, 1, -1])).sort_by("v").to_pylist()
    [{'v': 'a', '_diff': 1}, {'v': 'b', '_diff': 1}]
    >>> counted("/log", pa.table({"v": ["a"]}), np.array([-2]))
    Traceback (most recent call last):
    ...
    spark_timely.errors.NegativeMultiplicityError: [TIMELY_NEGATIVE_MULTIPLICITY] could not peek log '/log': found \
row={'v': 'a'} with count=-2 — hint: ...
    """
    rows = one_zero(rows)
    if rows.num_rows == 1 and diffs[0] > 0:  # one key has one row as a rule
        return with_counts(rows, diffs)
    if not rows.num_rows:
        return with_counts(rows, diffs)
    hashes = RowHasher(rows.schema).hash(rows)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    starts = run_starts(hashes[order].view(np.int64))
    ordered = np.asarray(diffs, np.int64)[order]
    sums, fits = exact_sums(ordered, starts)
    wrong = ~fits | (sums < 0)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        stop = int(starts[first + 1]) if first + 1 < starts.shape[0] else order.shape[0]
        mine = ordered[starts[first] : stop]
        attempt = f"peek log {path!r}"
        raise refusal(attempt, rows.slice(int(order[starts[first]]), 1), _exact(mine))
    kept = sums != 0
    return with_counts(rows.take(pa.array(order[starts[kept]])), sums[kept])


def _exact(diffs: npt.NDArray[np.int64]) -> int:
    """Return the sum of diffs, however large."""
    return (int((diffs >> 32).sum()) << 32) + int((diffs & 0xFFFFFFFF).sum())
