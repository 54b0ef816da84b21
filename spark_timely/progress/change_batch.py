"""A lazy multiset of times: changes of counts that are summed up when somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_timely.order import DiffArray, IntArray, TimesLike, as_diffs, as_times, concat_times, consolidate_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

__all__ = ["ChangeBatch"]

# Below this many entries nothing is compacted before somebody looks.
_LAZY = 32


class ChangeBatch:
    """A multiset of (time, count change), compacted only when needed.

    Adding is cheap; looking may cost. `is_empty`, `len`, iteration and `drain` compact first (sum
    the changes of equal times, drop those that come to zero), and so does adding, when more than
    half of the entries came since the last time.

    Parameters
    ----------
    arity : int
        Number k of coordinates of each time.

    Notes
    -----
    Cost: adding O(1) amortised per entry; compaction O(n log n) in the entries.
    As in timely, a batch of one entry is taken as compact: a lone change of zero survives.
    Source: timely `progress/change_batch.rs`.

    Examples
    --------
    >>> batch = ChangeBatch()
    >>> batch.update(17, 1)
    >>> batch.update(17, -1)
    >>> batch.is_empty()
    True
    """

    __slots__ = ("_arity", "_clean", "_diffs", "_length", "_times")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        # Entries in chunks, of which only the first may be compact; `_clean` counts its entries.
        self._times: list[IntArray] = []
        self._diffs: list[DiffArray] = []
        self._length = 0
        self._clean = 0

    @classmethod
    def from_updates(cls, times: TimesLike, diffs: npt.ArrayLike, arity: int = 1) -> ChangeBatch:
        """Return a batch that holds the given changes.

        Examples
        --------
        >>> len(ChangeBatch.from_updates([3, 3, 4], [1, 1, 0]))
        1
        """
        batch = cls(arity)
        batch.extend(times, diffs)
        return batch

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    def update(self, time: int | Sequence[int], diff: int) -> None:
        """Add one change.

        Examples
        --------
        >>> batch = ChangeBatch(arity=2)
        >>> batch.update((1, 2), 4)
        >>> list(batch)
        [((1, 2), 4)]
        """
        row = (time,) if isinstance(time, int | np.integer) else tuple(time)
        self.extend([row], [diff])

    def extend(self, times: TimesLike, diffs: npt.ArrayLike) -> None:
        """Add many changes.

        Parameters
        ----------
        times : array-like of integers, shape (n, k)
            Not modified; copied.
        diffs : array-like of integers, shape (n,)

        Raises
        ------
        InvalidShapeError
            If shapes or types do not fit.

        Examples
        --------
        >>> batch = ChangeBatch()
        >>> batch.extend([5, 6], [1, -1])
        >>> len(batch)
        2
        """
        rows = as_times(times, self._arity)
        changes = as_diffs(diffs, rows.shape[0])
        if not rows.shape[0]:
            return
        self._times.append(rows.copy())
        self._diffs.append(changes.copy())
        self._length += rows.shape[0]
        if self._length > _LAZY and self._length // 2 >= self._clean:
            self.compact()

    def compact(self) -> None:
        """Sum the changes of equal times, drop zeros, sort by time.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5, 4, 5], [1, 1, 1])
        >>> batch.compact()
        >>> list(batch)
        [((4,), 1), ((5,), 2)]
        """
        if self._clean < self._length and self._length > 1:
            times, diffs = consolidate_rows(concat_times(*self._times), np.concatenate(self._diffs))
            self._times, self._diffs = ([times], [diffs]) if times.shape[0] else ([], [])
            self._length = times.shape[0]
        self._clean = self._length

    def is_empty(self) -> bool:
        """Tell whether nothing is left once compacted.

        Cheap when the batch is known to hold something: more than half of it compact.

        Examples
        --------
        >>> ChangeBatch().is_empty()
        True
        """
        if self._clean > self._length // 2:
            return False
        self.compact()
        return self._length == 0

    def __len__(self) -> int:
        """Return the number of entries once compacted."""
        self.compact()
        return self._length

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Iterate over (time, change) once compacted, in lexicographic order of times."""
        times, diffs = self.arrays()
        return zip(map(tuple, times.tolist()), diffs.tolist(), strict=True)

    def __repr__(self) -> str:
        """Return the entries as they stand."""
        return f"ChangeBatch({list(self)!r})"

    def arrays(self) -> tuple[IntArray, DiffArray]:
        """Return the compacted entries as arrays of shapes (n, k) and (n,); copies.

        Examples
        --------
        >>> ChangeBatch.from_updates([5], [2]).arrays()[1].tolist()
        [2]
        """
        self.compact()
        if not self._times:
            return np.empty((0, self._arity), dtype=np.int64), np.empty(0, dtype=np.int64)
        return self._times[0].copy(), self._diffs[0].copy()

    def drain(self) -> tuple[IntArray, DiffArray]:
        """Return the compacted entries as `arrays` does, and leave the batch empty.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5], [2])
        >>> batch.drain()[0].tolist(), batch.is_empty()
        ([[5]], True)
        """
        times, diffs = self.arrays()
        self.clear()
        return times, diffs

    def drain_into(self, other: ChangeBatch) -> None:
        """Move all entries into another batch, leaving this one empty.

        Examples
        --------
        >>> batch, other = ChangeBatch.from_updates([5], [2]), ChangeBatch()
        >>> batch.drain_into(other)
        >>> batch.is_empty(), list(other)
        (True, [((5,), 2)])
        """
        if self._length:
            other.extend(*self.drain())

    def copy(self) -> ChangeBatch:
        """Return a batch with the same entries that shares nothing with this one.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5], [2])
        >>> len(batch.copy())
        1
        """
        return ChangeBatch.from_updates(*self.arrays(), arity=self._arity)

    def clear(self) -> None:
        """Drop all entries.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5], [2])
        >>> batch.clear()
        >>> batch.is_empty()
        True
        """
        self._times, self._diffs = [], []
        self._length = self._clean = 0
