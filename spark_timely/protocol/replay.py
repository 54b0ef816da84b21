"""Plans of a replay, on arrays: the files that a range of times needs, how much fits a micro-batch, and its splits.

Pure functions of plain values: no files, no Spark, no clock. `datasource.planner` and `datasource.reader` ask them for
replays by Spark, `dataflow.engine.cutting` for the tasks of a dataflow; those open the files and know the options.

A range [lower, upper) holds the times that are beyond the frontier `lower` and not beyond the frontier `upper`.

Invariants
----------
1. What a range holds depends on `lower` and `upper` alone: files, splits and limits never add or
   drop a row.
2. Choosing files is cautious: a file without bounds may hold anything, and bounds may be too wide, never too
   narrow. Each row is taken or not by its own time.
3. `admit` takes whole times, the first ones of the range in lexicographic order: of the times 3, 5 and 8 of [0, 10),
   two are 3 and 5. The new frontier consists of the minima of the times not taken and of `upper`, here 8; so exactly
   the times taken are between `lower` and it.
4. The pieces of a file cover it once: every row group belongs to exactly one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_timely.time.antichain import beyond, group_times, lexsort, minimal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from spark_timely.time.antichain import BoolArray, IntArray

__all__ = [
    "WHOLE",
    "Admission",
    "FileBounds",
    "Limits",
    "Piece",
    "TimeCounts",
    "admit",
    "admit_commits",
    "cut_bytes",
    "cut_times",
    "default_splits",
    "lexicographically_below",
    "may_hold",
    "part_of",
    "surely_holds",
    "within",
]

# Of how many files the exact times are asked for at first, and of how many bytes if that is less; both are doubled
# until a limit is reached. A large file may have a million times, and be enough by itself.
_FIRST_FILES: Final = 8
_FIRST_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one micro-batch; None is no limit.

    Attributes
    ----------
    times, files, rows : int or None
        Numbers of distinct times, of files touched, of messages.
    size_bytes : int or None
        Bytes of the files' share that belongs to the times taken.
    align : int or None
        Times between two multiples of it are taken together or not at all; for one coordinate.

    Examples
    --------
    >>> Limits(times=3).unlimited, Limits().unlimited
    (False, True)
    """

    times: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    rows: int | None = None
    align: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.times is None and self.files is None and self.size_bytes is None and self.rows is None


@dataclass(frozen=True, slots=True)
class FileBounds:
    """Bounds of some files, known without opening them.

    Attributes
    ----------
    sizes : ndarray of int64, shape (n,)
        Bytes.
    minima, maxima : ndarray of int64, shape (n, k)
        Bounds of the times, each coordinate by itself; meaningless where not `known`.
    known : ndarray of bool, shape (n,)
        Where the bounds hold. A file without bounds may hold any time.
    """

    sizes: npt.NDArray[np.int64]
    minima: IntArray
    maxima: IntArray
    known: BoolArray


@dataclass(frozen=True, slots=True)
class TimeCounts:
    """The distinct times of one file and how many messages it has at each.

    Attributes
    ----------
    times : ndarray of int64, shape (m, k)
        Distinct, in any order.
    rows : ndarray of int64, shape (m,)
        Positive.
    """

    times: IntArray
    rows: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Admission:
    """The part of a range that one micro-batch takes.

    Attributes
    ----------
    frontier : ndarray of int64, shape (m, k)
        Where the micro-batch ends: an antichain in lexicographic order.
    n_times, n_files, n_rows, size_bytes : int
        What it takes; all zero where nothing was counted because nothing was limited.
    oversized : tuple of int or None
        The one time taken, where it alone is above a limit: a time is never cut.
    """

    frontier: IntArray
    n_times: int = 0
    n_files: int = 0
    n_rows: int = 0
    size_bytes: int = 0
    oversized: tuple[int, ...] | None = None


def within(times: IntArray, lower: IntArray, upper: IntArray) -> BoolArray:
    """Tell for each time whether it is in the range [lower, upper).

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
    lower, upper : ndarray of int64, shapes (a, k) and (b, k)
        Frontiers; an empty `upper` is complete and cuts off nothing.

    Returns
    -------
    ndarray of bool, shape (n,)

    Notes
    -----
    Cost: that of two calls of `order.beyond`.

    Examples
    --------
    >>> import numpy as np
    >>> within(np.array([[1], [2], [3]]), np.array([[2]]), np.array([[3]])).tolist()
    [False, True, False]
    """
    result: BoolArray = beyond(times, lower) & ~beyond(times, upper)
    return result


def may_hold(files: FileBounds, lower: IntArray, upper: IntArray) -> BoolArray:
    """Tell for each file whether it may hold a time in [lower, upper).

    Never wrong when it says no (invariant 2): a time is beyond `lower` only if the upper bounds
    are, and not beyond `upper` only if the lower bounds are not.

    Parameters
    ----------
    files : FileBounds
    lower, upper : ndarray of int64, shapes (a, k) and (b, k)

    Returns
    -------
    ndarray of bool, shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> files = FileBounds(np.array([9, 9]), np.array([[0], [5]]), np.array([[4], [8]]), np.array([True, True]))
    >>> may_hold(files, np.array([[3]]), np.array([[5]])).tolist()
    [True, False]
    """
    if lower.shape[0] == 0:
        return np.zeros(files.known.shape[0], dtype=np.bool_)
    result: BoolArray = ~files.known | (beyond(files.maxima, lower) & ~beyond(files.minima, upper))
    return result


def surely_holds(minima: IntArray, maxima: IntArray, lower: IntArray, upper: IntArray) -> BoolArray:
    """Tell for each box of times whether all of it is in [lower, upper).

    Parameters
    ----------
    minima, maxima : ndarray of int64, shape (n, k)
        Bounds of each box, coordinate by coordinate, inclusive.
    lower, upper : ndarray of int64, shapes (a, k) and (b, k)

    Returns
    -------
    ndarray of bool, shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> surely_holds(np.array([[2]]), np.array([[4]]), np.array([[2]]), np.array([[5]])).tolist()
    [True]
    """
    result: BoolArray = beyond(minima, lower) & ~beyond(maxima, upper)
    return result


def lexicographically_below(times: IntArray, bound: IntArray) -> BoolArray:
    """Tell for each time whether it comes before `bound` in lexicographic order.

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
    bound : ndarray of int64, shape (k,)

    Returns
    -------
    ndarray of bool, shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> lexicographically_below(np.array([[1, 9], [2, 0], [2, 1]]), np.array([2, 1])).tolist()
    [True, True, False]
    """
    k = times.shape[1]
    below: BoolArray = times[:, k - 1] < bound[k - 1]
    for i in range(k - 2, -1, -1):  # k coordinates, the first decides last
        below = (times[:, i] < bound[i]) | ((times[:, i] == bound[i]) & below)
    return below


def admit(
    files: FileBounds,
    counts_of: Callable[[npt.NDArray[np.intp]], Sequence[TimeCounts]],
    lower: IntArray,
    upper: IntArray,
    limits: Limits,
) -> Admission:
    """Choose how far one micro-batch goes: the longest prefix of times within the limits.

    Parameters
    ----------
    files : FileBounds
        Every file that may hold a time of the range, and possibly others.
    counts_of : callable
        Gives the exact times of the files with these numbers, in this order. Called for few files
        at a time and never twice for one file: it opens them.
    lower, upper : ndarray of int64, shapes (a, k) and (b, k)
        The range from which to take.
    limits : Limits
        All that are given hold at once. At least one time, or all of one multiple, is taken, even above a limit.

    Returns
    -------
    Admission

    Notes
    -----
    Cost: O(n log n) in the files, and opens only files that can hold a time of the prefix or the
    first times after it. The result is the same as if all had been opened: an unopened file has
    no time below its lower bounds, neither in the lexicographic nor in the product order.

    Examples
    --------
    >>> import numpy as np
    >>> files = FileBounds(np.array([90]), np.array([[1]]), np.array([[3]]), np.array([True]))
    >>> exact = [TimeCounts(np.array([[1], [3]]), np.array([10, 20]))]
    >>> taken = admit(files, lambda numbers: [exact[i] for i in numbers], np.array([[0]]), np.array([[9]]),
    ...               Limits(rows=15))
    >>> taken.frontier.tolist(), taken.n_rows
    ([[3]], 10)
    """
    if limits.unlimited or lower.shape[0] == 0:
        return Admission(upper)
    waiting = np.flatnonzero(may_hold(files, lower, upper))
    corners = np.where(files.known[waiting, None], files.minima[waiting], np.iinfo(np.int64).min)
    order = lexsort(corners)
    waiting, corners = waiting[order], corners[order]
    ledger = _Ledger(files, counts_of, lower, upper)
    ends = np.cumsum(files.sizes[waiting])
    opened, step, room = 0, _FIRST_FILES, _FIRST_BYTES
    while True:  # O(log n) rounds: each opens up to twice as much as the one before
        reach = int(np.searchsorted(ends, room + (ends[opened - 1] if opened else 0), side="right"))
        stop = min(max(reach, opened + 1), opened + step, waiting.shape[0])
        ledger.open(waiting[opened:stop])
        opened, step, room = stop, step * 2, room * 2
        prefix = ledger.prefix(limits)
        if opened == waiting.shape[0]:
            break
        # Times before the first unopened file are final; the prefix is, when it ends before them.
        settled = int(np.count_nonzero(lexicographically_below(ledger.times, corners[opened])))
        if prefix < settled:
            break
    if prefix == ledger.times.shape[0]:
        return ledger.admission(prefix, upper, limits)
    rest, corners = waiting[opened:], corners[opened:]
    while True:  # each round opens at least one file
        step = limits.align or 1
        frontier = minimal(np.concatenate([ledger.times[prefix:] // step * step, upper]))
        below = ~beyond(corners, frontier)
        if not below.any():
            return ledger.admission(prefix, frontier, limits)
        ledger.open(rest[below])
        rest, corners = rest[~below], corners[~below]


class _Ledger:
    """The times of the opened files, summed over them and in lexicographic order."""

    def __init__(
        self,
        files: FileBounds,
        counts_of: Callable[[npt.NDArray[np.intp]], Sequence[TimeCounts]],
        lower: IntArray,
        upper: IntArray,
    ) -> None:
        self._files = files
        self._counts_of = counts_of
        self._lower, self._upper = lower, upper
        k = lower.shape[1]
        self._times: list[IntArray] = [np.empty((0, k), dtype=np.int64)]
        self._rows: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
        self._shares: list[npt.NDArray[np.float64]] = [np.empty(0, dtype=np.float64)]
        self._firsts: list[IntArray] = []
        self.times: IntArray = self._times[0]
        self._sums: dict[str, npt.NDArray[np.float64]] = {}

    def open(self, numbers: npt.NDArray[np.intp]) -> None:
        """Add the exact times of these files."""
        for number, counts in zip(numbers, self._counts_of(numbers), strict=True):
            inside = within(counts.times, self._lower, self._upper)
            if not inside.any():
                continue
            times, rows = counts.times[inside], counts.rows[inside]
            total = max(int(counts.rows.sum()), 1)
            self._times.append(times)
            self._rows.append(rows)
            self._shares.append(self._files.sizes[number] * (rows / total))
            self._firsts.append(times[lexsort(times)[:1]])
        everything = np.concatenate(self._times)
        unique, inverse, _ = group_times(everything)
        n = unique.shape[0]
        files = np.zeros(n)
        if self._firsts:
            # A file counts from the first of its times on.
            _, places, _ = group_times(np.concatenate([unique, *self._firsts]))
            files += np.bincount(places[n:], minlength=n)
        self.times = unique
        self._sums = {
            "rows": np.cumsum(np.bincount(inverse, np.concatenate(self._rows), minlength=n)),
            "size_bytes": np.cumsum(np.bincount(inverse, np.concatenate(self._shares), minlength=n)),
            "files": np.cumsum(files),
            "times": np.arange(1, n + 1, dtype=np.float64),
        }

    def prefix(self, limits: Limits) -> int:
        """Return how many times fit all limits: at least one, if there is one."""
        n = self.times.shape[0]
        fitting = n
        for name, sums in self._sums.items():
            limit = getattr(limits, name)
            if limit is not None:
                # Shares of bytes are fractions, and sums of floats: half a byte too many is none.
                fitting = min(fitting, int(np.searchsorted(sums, limit + 0.5 + 1e-7, side="right")))
        fitting = max(fitting, min(n, 1))
        if limits.align is None or fitting == n:
            return fitting
        multiples = self.times[:, 0] // limits.align
        return max(self._first(limits), int(np.searchsorted(multiples, multiples[fitting], side="left")))

    def _first(self, limits: Limits) -> int:
        """Return how many times are taken together at the least."""
        if limits.align is None:
            return 1
        multiples = self.times[:, 0] // limits.align
        return int(np.searchsorted(multiples, multiples[0], side="right"))

    def admission(self, prefix: int, frontier: IntArray, limits: Limits) -> Admission:
        """Describe the choice of the first `prefix` times."""
        if prefix == 0:
            return Admission(frontier)
        taken = {name: round(float(sums[prefix - 1])) for name, sums in self._sums.items()}
        above = prefix <= self._first(limits) and any(
            (limit := getattr(limits, name)) is not None and number > limit for name, number in taken.items()
        )
        return Admission(
            frontier,
            n_times=prefix,
            n_files=taken["files"],
            n_rows=taken["rows"],
            size_bytes=taken["size_bytes"],
            oversized=tuple(self.times[0].tolist()) if above else None,
        )


def admit_commits(
    rows: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    files: npt.NDArray[np.int64],
    limits: Limits,
) -> int:
    """Return how many of these commits, taken from the first on, stay within the limits.

    Parameters
    ----------
    rows, sizes, files : ndarray of int64, shape (n,)
        Messages, bytes and files of each commit, in the order in which they are taken.
    limits : Limits
        Limits of times do not apply.

    Returns
    -------
    int
        At least one where there is a commit: a commit is never cut.

    Examples
    --------
    >>> import numpy as np
    >>> admit_commits(np.array([5, 5, 5]), np.array([9, 9, 9]), np.array([1, 1, 1]), Limits(rows=11))
    2
    """
    n = rows.shape[0]
    fitting = n
    for values, limit in ((rows, limits.rows), (sizes, limits.size_bytes), (files, limits.files)):
        if limit is not None:
            fitting = min(fitting, int(np.searchsorted(np.cumsum(values), limit, side="right")))
    return max(fitting, min(n, 1))


# A piece is a range of this many equal shares of a file; far more than a file has row groups.
WHOLE: Final = 1 << 30

# Compressed bytes that one split should read by default, and how many splits at most: a task costs
# tens of milliseconds, whatever it reads.
_SPLIT_BYTES: Final = 32 << 20
_MOST_SPLITS: Final = 16

# Splits at most where a number is given: beyond it is a mistake, and making them would keep the driver busy.
_MOST_CUTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Piece:
    """A share of one file: the row groups whose middle is in [start, stop) of `WHOLE` equal parts.

    Attributes
    ----------
    file : int
        Number of the file among those that were cut.
    start, stop : int
        Shares of `WHOLE`; (0, WHOLE) is all of the file.
    """

    file: int
    start: int = 0
    stop: int = WHOLE

    def share_of(self, size_bytes: int) -> int:
        """Return about how many of `size_bytes` bytes are in the piece."""
        return size_bytes * (self.stop - self.start) // WHOLE


def default_splits(size_bytes: int) -> int:
    """Return how many splits to make of this many bytes, where nobody said.

    Examples
    --------
    >>> default_splits(1), default_splits(100 << 20), default_splits(1 << 40)
    (1, 4, 16)
    """
    return max(1, min(_MOST_SPLITS, -(-size_bytes // _SPLIT_BYTES)))


def cut_bytes(sizes: npt.NDArray[np.int64], n_splits: int) -> list[list[Piece]]:
    """Cut files, laid end to end, into splits of equal numbers of bytes.

    Parameters
    ----------
    sizes : ndarray of int64, shape (n,)
        Bytes of each file, in the order in which splits should get them.
    n_splits : int
        At least 1; more than 10,000 count as 10,000.

    Returns
    -------
    list of list of Piece
        At most `n_splits` lists, none empty. A file that a boundary crosses is in several.

    Notes
    -----
    Cost: O(n + splits).

    Examples
    --------
    >>> import numpy as np
    >>> [[piece.file for piece in split] for split in cut_bytes(np.array([10, 10, 10]), 2)]
    [[0, 1], [1, 2]]
    """
    n = sizes.shape[0]
    if n == 0:
        return []
    # A file of unknown or no size still has to be read by someone.
    ends = np.cumsum(np.maximum(sizes, 1))
    starts = ends - np.maximum(sizes, 1)
    total = int(ends[-1])
    n_splits = min(n_splits, total, _MOST_CUTS)
    splits: list[list[Piece]] = []
    for split in range(n_splits):
        low, high = total * split // n_splits, total * (split + 1) // n_splits
        first = int(np.searchsorted(ends, low, side="right"))
        last = int(np.searchsorted(starts, high, side="left"))
        pieces = [
            Piece(
                number,
                _share(low, int(starts[number]), int(ends[number])),
                _share(high, int(starts[number]), int(ends[number])),
            )
            for number in range(first, last)
        ]
        pieces = [piece for piece in pieces if piece.start < piece.stop]
        if pieces:
            splits.append(pieces)
    return splits


def _share(place: int, start: int, end: int) -> int:
    # Whole numbers, and the same for the end of one split and the start of the next (invariant 1).
    return min(max((place - start) * WHOLE // (end - start), 0), WHOLE)


def part_of(n_groups: int, piece: Piece) -> range:
    """Return the numbers of the row groups that belong to a piece of a file with `n_groups` of them.

    Examples
    --------
    >>> part_of(4, Piece(0, 0, WHOLE // 2)), part_of(4, Piece(0, WHOLE // 2, WHOLE))
    (range(0, 2), range(2, 4))
    """

    # Group g is in the piece when its middle is: start <= (2g + 1) / 2n < stop. From 0, for a share of 0, to n.
    def first(share: int) -> int:
        return -(-(2 * n_groups * share - WHOLE) // (2 * WHOLE))

    return range(first(piece.start), first(piece.stop))


def cut_times(times: IntArray, weights: npt.NDArray[np.int64], n_splits: int) -> IntArray:
    """Choose lexicographic bounds that give each split whole times and about the same weight.

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
        Times with repetitions, in any order.
    weights : ndarray of int64, shape (n,)
        Rows at each.
    n_splits : int
        At least 1.

    Returns
    -------
    ndarray of int64, shape (m, k)
        At most ``n_splits - 1`` distinct times in lexicographic order: split i holds the times
        from bound i - 1 on and before bound i.

    Notes
    -----
    Cost: that of `order.group_times`.

    Examples
    --------
    >>> import numpy as np
    >>> cut_times(np.array([[1], [2], [3], [4]]), np.array([1, 1, 1, 1]), 2).tolist()
    [[3]]
    """
    unique, inverse, _ = group_times(times)
    if unique.shape[0] < 2 or n_splits < 2:
        return unique[:0]
    before = np.cumsum(np.bincount(inverse, weights, minlength=unique.shape[0]))
    wanted = before[-1] * np.arange(1, n_splits) / n_splits
    # The bound goes where the weight before it comes nearest to the wanted one.
    places = np.searchsorted(before, wanted, side="left")
    left = np.where(places > 0, before[np.maximum(places - 1, 0)], 0.0)
    nearer = (before[places] - wanted) <= (wanted - left)
    places = np.unique(places + nearer)
    return unique[places[(places > 0) & (places < unique.shape[0])]]
