"""Check of a collection's contents: a row that is contained fewer than zero times makes a read fail.

Every reader that shows contents asks here: peeks, snapshots, the beginning of a subscription, references of tasks. In
a job of Spark, where no process has all rows, the query fails by the same words (`refusal_words`).

Invariants
----------
1. Contents that have a row fewer than zero times, or more often than 64 bits count, are refused whole: no reader shows
   a part of them, or the negative count.
2. The error names the row, and its count, however large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_timely.errors import MultiplicityOverflowError, NegativeMultiplicityError, TimelyError, shown
from spark_timely.trace.updates import Updates, one_zero

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.time.arrays import BoolArray, IntArray

__all__ = ["check_contents", "contents_of", "refusal_words"]

_NEGATIVE: Final = "verify the capture: it retracts a row that it never added"
_OVERFLOW: Final = "correct what was captured: a row is contained at most 2^63 − 1 times"


def contents_of(attempt: str, updates: Updates) -> Updates:
    """Return the rows that are there, each once, with their counts.

    Parameters
    ----------
    attempt : str
        For the error: what cannot be done, as in ``peek log '/log'``.
    updates : Updates
        All that count, whatever their times are.

    Returns
    -------
    Updates
        In the order of the rows' hashes: the same whatever the order of the updates was.

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
    >>> import pyarrow as pa
    >>> held = Updates.contents(pa.table({"v": ["a", "b", "a", "a"]}), np.array([1, 1, 1, -1]))
    >>> contents_of("peek log '/log'", held).rows.sort_by("v").to_pylist()
    [{'v': 'a'}, {'v': 'b'}]
    """
    if len(updates) == 1 and updates.diffs[0] > 0:  # one key has one row as a rule
        return Updates.contents(one_zero(updates.rows), updates.diffs)
    try:
        found = updates.timeless().consolidated()
    except MultiplicityOverflowError as error:
        count = error.diff
        assert isinstance(count, int)
        raise _refusal(attempt, str(error.data), count) from None
    check_contents(attempt, found.rows, found.diffs)
    return found


def check_contents(attempt: str, rows: pa.Table, counts: IntArray, chosen: BoolArray | None = None) -> None:
    """Refuse contents in which a row is there fewer than zero times.

    Parameters
    ----------
    attempt : str
        For the error: what cannot be done, as in ``peek log '/log'``.
    rows : pyarrow.Table
        Each once.
    counts : ndarray of int64, shape (n,)
        How often each is there.
    chosen : ndarray of bool, shape (n,), optional
        Which rows are contents; all unless given.

    Raises
    ------
    NegativeMultiplicityError

    Examples
    --------
    >>> import pyarrow as pa
    >>> check_contents("peek log '/log'", pa.table({"v": ["a", "b"]}), np.array([2, -1]))
    Traceback (most recent call last):
    ...
    spark_timely.errors.NegativeMultiplicityError: [TIMELY_NEGATIVE_MULTIPLICITY] could not peek log '/log': found \
row={'v': 'b'} with count=-1 — hint: ...
    """
    wrong = counts < 0 if chosen is None else (counts < 0) & chosen
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        (row,) = rows.slice(first, 1).to_pylist()
        raise _refusal(attempt, shown(row), int(counts[first]))


def _refusal(attempt: str, row: str, count: int) -> TimelyError:
    """Return the error for contents with a row that is there fewer than zero times, or too often.

    Parameters
    ----------
    attempt : str
    row : str
        As text.
    count : int
        However large.
    """
    msg = f"could not {attempt}: found row={row} with count={count}"
    if count < 0:
        return NegativeMultiplicityError(msg, hint=_NEGATIVE, data=row, diff=count)
    return MultiplicityOverflowError(msg, hint=_OVERFLOW, data=row, diff=count)


def refusal_words(attempt: str) -> tuple[str, str, str]:
    """Return what is before the row, before its count and after it, where a job of Spark refuses contents.

    Examples
    --------
    >>> refusal_words("peek log '/log'")[0]
    "[TIMELY_NEGATIVE_MULTIPLICITY] could not peek log '/log': found row="
    """
    begin = f"[{NegativeMultiplicityError.condition}] could not {attempt}: found row="
    return begin, " with count=", f" — hint: {_NEGATIVE}"
