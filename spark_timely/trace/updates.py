"""Updates: rows with their times and diffs, as one value; the one function that sums them, and the judge of contents.

Rows of logs, of arrangements and of operators are held in memory as `Updates`: by readers of logs, by peeks, by tasks
of dataflows and of continual tasks. A stream's messages are updates that each add their row once. Contents are updates
at one time: every reader that shows them asks here (`contents_of`). In a job of Spark, where no process has all rows,
the query fails by the same words (`refusal_words`).

Invariants
----------
1. Rows are equal if their canonical hashes of 128 bits are: nulls are equal, NaN equals NaN, -0.0 equals 0.0. Sums have
   0.0 for both zeros: which of two equal rows is given does not depend on their places. For zeros within lists and
   structs, the order of a map's entries and the bits of NaN, that of any of the equal rows may be given.
2. Sums are exact. On the way they may be larger than 64 bits: how updates were cut changes no answer.
3. A sum that 64 bits do not hold is refused, by row and exact sum. Where more may follow (`partial`) it stays as the
   updates that it is of. It is never wrapped, rounded or dropped.
4. Nothing here modifies its arrays or tables.
5. Contents that have a row fewer than zero times, or more often than 64 bits count, are refused whole: no reader shows
   a part of them, or the negative count. The error names the row, and its count, however large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import (
    MultiplicityOverflowError,
    NegativeMultiplicityError,
    TimelyError,
    TimelyInternalError,
    shown,
)
from spark_timely.time.antichain import lexsort, ranges, run_starts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from spark_timely.time.antichain import BoolArray, IntArray
    from spark_timely.time.domain import TimeDomain

__all__ = [
    "DIFF",
    "Sums",
    "Updates",
    "check_contents",
    "contents_of",
    "exact_sums",
    "hash_lanes",
    "one_zero",
    "places_of",
    "refusal_words",
    "summed_by",
]

DIFF: Final = "_diff"
"""Column of updates: how often a row is added, or taken away where it is negative."""

_NEGATIVE: Final = "verify the capture: it retracts a row that it never added"
_OVERFLOW: Final = "correct what was captured: a row is contained at most 2^63 − 1 times"


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """Rows that change at times.

    Attributes
    ----------
    rows : pyarrow.Table
        n rows, the payload alone.
    times : ndarray of int64, shape (n, k)
        As `TimeDomain.from_columns` gives them. Contents at one time have times without coordinates, k = 0.
    diffs : ndarray of int64, shape (n,)
        How often each row is added; negative where it is taken away.
    hashes : ndarray of uint64, shape (n,), or None
        Of updates that are arranged by a key, the first half of the hash of each row's key.

    Examples
    --------
    >>> updates = Updates(pa.table({"v": ["a", "b", "a"]}), np.array([[1], [1], [2]]), np.array([1, 1, -1]))
    >>> updates.at((2,)).consolidated().rows.to_pylist()
    [{'v': 'b'}]
    """

    rows: pa.Table
    times: IntArray
    diffs: IntArray
    hashes: npt.NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        """Check that all parts are of as many updates."""
        n = self.diffs.shape[0]
        if self.times.ndim != 2 or self.times.shape[0] != n or self.rows.num_rows != n:
            msg = f"updates of {self.rows.num_rows} rows with times {self.times.shape} and diffs {self.diffs.shape}"
            raise TimelyInternalError(msg)
        if self.hashes is not None and self.hashes.shape[0] != n:
            msg = f"{n} updates with {self.hashes.shape[0]} hashes"
            raise TimelyInternalError(msg)

    @classmethod
    def of_table(cls, table: pa.Table, domain: TimeDomain, columns: Sequence[str]) -> Updates:
        """Return rows of a log, or of an operator: its times, its column of diffs if it has one, and some columns.

        Examples
        --------
        >>> from spark_timely.time.domain import TimeDomain
        >>> made = Updates.of_table(pa.table({"_time": [3], "v": ["a"]}), TimeDomain(("long",)), ["v"])
        >>> made.times.tolist(), made.diffs.tolist()
        ([[3]], [1])
        """
        n, rows = table.num_rows, table.select(list(columns))
        has_diffs = DIFF in table.schema.names and DIFF not in rows.schema.names
        diffs = np.asarray(table.column(DIFF).to_numpy(), np.int64) if has_diffs else np.ones(n, np.int64)
        return cls(rows, domain.from_columns(table), diffs)

    @classmethod
    def contents(cls, rows: pa.Table, diffs: IntArray | None = None) -> Updates:
        """Return rows at one time, each once unless diffs are given."""
        n = rows.num_rows
        return cls(rows, np.empty((n, 0), np.int64), np.ones(n, np.int64) if diffs is None else diffs)

    @classmethod
    def concat(cls, parts: Sequence[Updates]) -> Updates:
        """Put updates behind each other; at least one part, all with hashes or none.

        Examples
        --------
        >>> one = Updates.contents(pa.table({"v": ["a"]}))
        >>> Updates.concat([one, one]).diffs.tolist()
        [1, 1]
        """
        if len(parts) == 1:
            return parts[0]
        hashes = [part.hashes for part in parts if part.hashes is not None]
        # Arrow forgets how many rows tables without columns have.
        without = pa.table({"_": pa.nulls(sum(map(len, parts)))}).select([])
        return cls(
            pa.concat_tables([part.rows for part in parts]) if parts[0].rows.num_columns else without,
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.diffs for part in parts]),
            np.concatenate(hashes) if hashes else None,
        )

    def __len__(self) -> int:
        """Return how many updates they are."""
        return int(self.diffs.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        hashes = 0 if self.hashes is None else self.hashes.nbytes
        return int(self.times.nbytes + self.diffs.nbytes + self.rows.nbytes + hashes)

    def select(self, columns: Iterable[str]) -> Updates:
        """Return them with some columns of their rows; these very updates where they have no others."""
        names = list(columns)
        return self if names == self.rows.schema.names else replace(self, rows=self.rows.select(names))

    def take(self, places: npt.NDArray[np.integer]) -> Updates:
        """Return some of them, by their numbers; of those that stand beside each other nothing is copied."""
        n = places.shape[0]
        if n and int(places[-1]) - int(places[0]) == n - 1 and bool((places[1:] > places[:-1]).all()):
            return self.slice(int(places[0]), n)
        # Arrow takes no rows of a table without columns.
        rows = self.rows.take(pa.array(places)) if self.rows.num_columns else self.rows.slice(0, n)
        hashes = None if self.hashes is None else self.hashes[places]
        return Updates(rows, self.times[places], self.diffs[places], hashes)

    def slice(self, first: int, n: int) -> Updates:
        """Return `n` of them from a number on; nothing is copied."""
        mine = slice(first, first + n)
        hashes = None if self.hashes is None else self.hashes[mine]
        return Updates(self.rows.slice(first, n), self.times[mine], self.diffs[mine], hashes)

    def where(self, wanted: BoolArray) -> Updates:
        """Return some of them; these very updates where all are wanted.

        Examples
        --------
        >>> both = Updates.contents(pa.table({"v": ["a", "b"]}))
        >>> both.where(np.array([False, True])).rows.to_pylist()
        [{'v': 'b'}]
        """
        return self if wanted.all() else self.take(np.flatnonzero(wanted))

    def at(self, time: Sequence[int]) -> Updates:
        """Return those that count at a time, as contents: those not later than it in any coordinate.

        Examples
        --------
        >>> rows = pa.table({"v": ["a", "b"]})
        >>> Updates(rows, np.array([[1, 9], [2, 2]]), np.array([1, 1])).at((5, 5)).rows.to_pylist()
        [{'v': 'b'}]
        """
        return self.where(np.asarray((self.times <= self._as_time(time)).all(axis=1))).timeless()

    def timeless(self) -> Updates:
        """Return them all as contents."""
        return replace(self, times=self.times[:, :0])

    def _as_time(self, time: Sequence[int]) -> IntArray:
        found = np.array(time, np.int64)
        if found.shape != self.times.shape[1:]:
            msg = f"a time {time!r} for times of {self.times.shape[1]} coordinates"
            raise TimelyInternalError(msg)
        return found

    def advanced(self, since: Sequence[int]) -> Updates:
        """Return them with what is before a time moved up to it, coordinate by coordinate.

        Examples
        --------
        >>> Updates(pa.table({"v": ["a", "b"]}), np.array([[1], [7]]), np.array([1, 1])).advanced((5,)).times.tolist()
        [[5], [7]]
        """
        return replace(self, times=np.maximum(self.times, self._as_time(since)))

    def as_table(self) -> pa.Table:
        """Return the rows with their diffs behind them, in the column `DIFF`.

        Examples
        --------
        >>> Updates.contents(pa.table({"v": ["a"]})).as_table().to_pylist()
        [{'v': 'a', '_diff': 1}]
        """
        return self.rows.append_column(pa.field(DIFF, pa.int64()), pa.array(self.diffs, pa.int64()))

    def with_times(self, domain: TimeDomain) -> pa.Table:
        """Return time columns, diffs, then the rows: what `of_table` takes.

        Examples
        --------
        >>> from spark_timely.time.domain import TimeDomain
        >>> updates = Updates(pa.table({"v": ["a"]}), np.array([[3]]), np.array([2]))
        >>> updates.with_times(TimeDomain(("long",))).to_pylist()
        [{'_time': 3, '_diff': 2, 'v': 'a'}]
        """
        times = domain.to_columns(self.times)
        names = [*times, DIFF, *self.rows.schema.names]
        return pa.table([*times.values(), pa.array(self.diffs, pa.int64()), *self.rows.columns], names=names)

    def consolidated(self, *, group: IntArray | None = None, partial: bool = False) -> Updates:
        """Return one update of each row that changes at a time: the sum of all of that time; none where it is 0.

        Parameters
        ----------
        group : ndarray of int64, shape (n,) or (n, g), optional
            Numbers that are equal exactly where rows are to be taken for equal, which then stay as they are; those of
            the canonical hash unless given.
        partial : bool
            Whether more updates of these times may be put to them. A sum that 64 bits do not hold then stays as its
            parts, behind all others; else it is refused.

        Returns
        -------
        Updates
            In the order of times and numbers; those with hashes of keys in the order of these.

        Raises
        ------
        MultiplicityOverflowError
            If 64 bits do not hold a sum: it names the row, the time and the exact sum.

        Notes
        -----
        Cost: one hash and one sort of the rows. Of updates with hashes of keys one sort of these; rows are hashed where
        a key has several.

        Examples
        --------
        >>> rows = pa.table({"v": ["a", "b", "a"]})
        >>> Updates(rows, np.array([[1], [1], [1]]), np.array([1, 1, -1])).consolidated().rows.to_pylist()
        [{'v': 'b'}]
        """
        if not len(self):
            return self
        if self.hashes is not None and group is None:
            return self._by_key(partial=partial)
        numbers = self.numbers() if group is None else group.reshape(len(self), -1)
        summed = summed_by(np.concatenate([self.times, numbers], axis=1), self.diffs)
        found = replace(self.take(summed.first), diffs=summed.sums)
        if summed.beyond.shape[0]:
            if not partial:
                self.check(summed)
            found = Updates.concat([found, self.take(summed.beyond)])
        return found if group is not None else replace(found, rows=one_zero(found.rows))

    def numbers(self) -> IntArray:
        """Return the hashes of the rows as numbers, shape (n, 2)."""
        return hash_lanes(self.rows)

    def _by_key(self, *, partial: bool) -> Updates:
        assert self.hashes is not None
        order = np.argsort(self.hashes, kind="stable")
        ordered = self.hashes[order]
        same = ordered[1:] == ordered[:-1]
        if not same.any():
            found = self.take(order[self.diffs[order] != 0])
            return replace(found, rows=one_zero(found.rows))
        several = np.concatenate([same, [False]]) | np.concatenate([[False], same])
        # What has its hash alone stays; of the others equal rows of a time are put together.
        among = np.flatnonzero(several)
        picked = order[among]
        lanes = self.take(picked).numbers()
        # Hashes are in their order already: sorting by them as signed numbers only groups them.
        keys = np.concatenate([ordered[among].view(np.int64)[:, None], self.times[picked], lanes], axis=1)
        summed = summed_by(keys, self.diffs[picked])
        if not partial:
            self.take(picked).check(summed)
        chosen = among[summed.first]
        diffs = self.diffs[order]
        diffs[chosen] = summed.sums
        kept = ~several & (diffs != 0)
        kept[chosen] = kept[among[summed.beyond]] = True
        places = np.flatnonzero(kept)
        found = replace(self.take(order[places]), diffs=diffs[places])
        return replace(found, rows=one_zero(found.rows))

    def check(self, summed: Sums) -> None:
        """Refuse sums of these updates that 64 bits do not hold.

        Raises
        ------
        MultiplicityOverflowError
        """
        if not summed.beyond.shape[0]:
            return
        rest = self.take(summed.beyond)
        numbers = np.concatenate([rest.times, rest.numbers()], axis=1)
        count = _exact_sum(rest.diffs[(numbers == numbers[0]).all(axis=1)])
        (row,) = rest.rows.slice(0, 1).to_pylist()
        time = "".join(f", time={each}" for each in rest.times[0].tolist())
        msg = f"could not sum updates: found row={shown(row)} with count={count}{time}"
        hint = "correct what produces the changes: a row counts at most 2^63 − 1 times"
        raise MultiplicityOverflowError(msg, hint=hint, data=shown(row), diff=count)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """The sums of numbers that belong together.

    Attributes
    ----------
    first : ndarray of int, shape (m,)
        Place of the first of each group whose sum is neither 0 nor beyond 64 bits, in the order of the groups' keys.
    sums : ndarray of int64, shape (m,)
    beyond : ndarray of int, shape (b,)
        Places of all numbers of groups whose sum is beyond 64 bits, group by group.
    order, starts : ndarray of int
        Which place comes when, group by group, and where groups begin in it, the others among them.
    """

    first: npt.NDArray[np.intp]
    sums: IntArray
    beyond: npt.NDArray[np.intp]
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]


def summed_by(keys: IntArray, diffs: IntArray) -> Sums:
    """Sum numbers of equal keys.

    Parameters
    ----------
    keys : ndarray of int64, shape (n, c)
    diffs : ndarray of int64, shape (n,)

    Notes
    -----
    Cost: one sort of the keys.

    Examples
    --------
    >>> found = summed_by(np.array([[2], [1], [2], [3]]), np.array([1, 5, -1, 1]))
    >>> found.first.tolist(), found.sums.tolist()
    ([1, 3], [5, 1])
    """
    order = lexsort(keys) if keys.shape[1] else np.arange(keys.shape[0])
    # Without a column of keys all belong together.
    starts = run_starts(keys[order]) if keys.shape[1] else np.arange(min(1, keys.shape[0]))
    sums, fits = exact_sums(diffs[order], starts)
    kept = fits & (sums != 0)
    beyond = order[np.repeat(~fits, np.diff(starts, append=order.shape[0]))]
    return Sums(order[starts[kept]], sums[kept], beyond, order, starts)


def exact_sums(diffs: IntArray, starts: npt.NDArray[np.intp]) -> tuple[IntArray, BoolArray]:
    """Return the sum of each group, and whether 64 bits hold it.

    Parameters
    ----------
    diffs : ndarray of int64, shape (n,)
        Group by group.
    starts : ndarray of int, shape (m,)
        Where groups begin.

    Examples
    --------
    >>> sums, fits = exact_sums(np.array([1, 2, 2**62, 2**62]), np.array([0, 2]))
    >>> sums[0].item(), fits.tolist()
    (3, [True, False])
    """
    if not starts.shape[0]:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    # Neither sum of halves overflows before 2**31 rows.
    high = np.add.reduceat(diffs >> 32, starts)
    low = np.add.reduceat(diffs & 0xFFFFFFFF, starts)
    carried = high + (low >> 32)
    fits = (carried >= -(2**31)) & (carried < 2**31)
    return (carried << 32) | (low & 0xFFFFFFFF), fits


def _exact_sum(diffs: IntArray) -> int:
    """Return the sum of numbers, however large."""
    return (int((diffs >> 32).sum()) << 32) + int((diffs & 0xFFFFFFFF).sum())


def places_of(wanted: npt.NDArray[np.uint64], hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return where numbers stand among others, in ascending order.

    Parameters
    ----------
    wanted : ndarray of uint64, shape (m,)
        Ascending, each once.
    hashes : ndarray of uint64, shape (n,)
        Ascending.

    Notes
    -----
    Cost: a binary search for each number that is wanted.

    Examples
    --------
    >>> places_of(np.array([3, 4, 9], np.uint64), np.array([1, 3, 3, 9], np.uint64)).tolist()
    [1, 2, 3]
    """
    low = np.searchsorted(hashes, wanted, "left")
    # Mostly a key has one row, or none: the end is looked for only where the next one is equal.
    inside = low < hashes.shape[0]
    low, wanted = low[inside], wanted[inside]
    hit = hashes[low] == wanted
    low, wanted = low[hit], wanted[hit]
    following = np.minimum(low + 1, hashes.shape[0] - 1)
    more = (hashes[following] == wanted) & (following > low)
    n = np.ones(low.shape[0], np.intp)
    n[more] = np.searchsorted(hashes, wanted[more], "right") - low[more]
    return ranges(low, n)


def hash_lanes(rows: pa.Table) -> IntArray:
    """Return numbers of rows, shape (n, 2), that are equal exactly where rows are, in the order of canonical hashes."""
    if not rows.num_columns:
        return np.zeros((rows.num_rows, 0), np.int64)
    return (RowHasher(rows.schema).hash(rows) ^ np.uint64(1 << 63)).view(np.int64)


def one_zero(rows: pa.Table) -> pa.Table:
    """Return rows with 0.0 for −0.0: updates take the two for one value."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            rows = rows.set_column(number, field, pc.add(rows.column(number), pa.scalar(0.0, field.type)))
    return rows


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
