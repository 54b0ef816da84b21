"""Cut what a micro-batch reads into splits, by bytes or by whole times.

Pure functions of plain values: no files, no Spark.

Invariants
----------
1. The pieces of a file cover it once: every row group belongs to exactly one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_timely.time.consolidation import group_times

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.time.arrays import IntArray

__all__ = ["WHOLE", "Piece", "cut_bytes", "cut_times", "default_splits", "part_of"]

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
    """A share of one file: the row groups whose middle lies in [start, stop) of `WHOLE` equal parts.

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
        """Return about how many of so many bytes are in the piece."""
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
        At least 1; more than 10,000 count as so many.

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

    # Group g lies in the piece when its middle does: start <= (2g + 1) / 2n < stop. From 0, for a share of 0, to n.
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
