"""A lazy multiset of times: changes of counts that are summed up when somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_timely.errors import InvalidShapeError
from spark_timely.time.arrays import (
    DiffArray,
    IntArray,
    Time,
    TimesLike,
    as_diffs,
    as_times,
    concat_times,
    consolidate_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

__all__ = ["ChangeBatch"]

# Below this many entries nothing is compacted before somebody looks.
_LAZY = 32
# Changes that are kept as pairs when they come in arrays.
_FEW = 8
# Pairs that are summed up as pairs.
_SOME = 128


class ChangeBatch:
    """A multiset of (time, count change), compacted only when needed.

    Adding is cheap; looking may cost. `is_empty`, `len`, iteration and `drain` compact first (sum
    the changes of equal times, drop those that become zero), and so does adding, when more than
    half of the entries came since the last time.

    Parameters
    ----------
    arity : int
        Number k of coordinates of each time.

    Notes
    -----
    Cost: adding O(1) amortised per entry; compaction O(n log n) in the entries. A few entries are kept as
    Python values, many as arrays: neither a single change nor a thousand at once pays for the other's form.
    A lone change of zero is dropped like any other; timely keeps it, and then says that the batch is not empty.
    Source: timely `progress/change_batch.rs`.

    Examples
    --------
    >>> batch = ChangeBatch()
    >>> batch.update(17, 1)
    >>> batch.update(17, -1)
    >>> batch.is_empty()
    True
    """

    __slots__ = ("_arity", "_chunks", "_clean", "_few", "_length")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        # Entries as pairs and in chunks of arrays. Compact ones come first, all in one of the two forms, in
        # lexicographic order of times; `_clean` counts them.
        self._few: list[tuple[Time, int]] = []
        self._chunks: list[tuple[IntArray, DiffArray]] = []
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
        if type(time) is not tuple:
            time = (time,) if isinstance(time, int | np.integer) else tuple(time)
        if len(time) != self._arity:
            msg = f"could not count time={time!r:.200}: found arity={len(time)}, expected arity={self._arity}"
            raise InvalidShapeError(msg, hint="give times with the same number of coordinates as the batch")
        self._few.append((time, diff))
        self._length += 1
        if self._length > _LAZY and self._length // 2 >= self._clean:
            self.compact()

    def update_pairs(self, changes: Iterable[tuple[Time, int]]) -> None:
        """Add a few changes given as Python values; the same as `extend`, without arrays.

        Parameters
        ----------
        changes : iterable of (time, diff)
            Times are tuples of k Python integers.

        Raises
        ------
        InvalidShapeError
            If a time has not k coordinates; those before it were added.

        Examples
        --------
        >>> batch = ChangeBatch()
        >>> batch.update_pairs([((5,), 1), ((5,), 1)])
        >>> list(batch)
        [((5,), 2)]
        """
        for time, diff in changes:
            self.update(time, diff)

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
        if rows.shape[0] <= _FEW:
            self._few += zip(map(tuple, rows.tolist()), changes.tolist(), strict=True)
        else:
            self._chunks.append((rows.copy(), changes.copy()))
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
        if self._clean == self._length:
            return
        if not self._chunks and self._length <= _SOME:
            sums: dict[Time, int] = {}
            for time, diff in self._few:
                sums[time] = sums.get(time, 0) + diff
            self._few = sorted(item for item in sums.items() if item[1])
            self._length = self._clean = len(self._few)
            return
        times, diffs = consolidate_rows(*self._joined())
        self._few, self._chunks = [], [(times, diffs)] if times.shape[0] else []
        self._length = self._clean = times.shape[0]

    def _joined(self) -> tuple[IntArray, DiffArray]:
        """Return all entries as arrays, as they stand; arrays that nobody else holds, unless there is one chunk."""
        parts = self._chunks
        if self._few or not parts:
            times = as_times([time for time, _ in self._few], self._arity)
            parts = [*parts, (times, np.array([diff for _, diff in self._few], dtype=np.int64))]
        if len(parts) == 1:
            return parts[0]
        return concat_times(*(times for times, _ in parts)), np.concatenate([diffs for _, diffs in parts])

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
        return iter(self.pairs())

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
        times, diffs = self._joined()
        return (times.copy(), diffs.copy()) if self._chunks else (times, diffs)

    def pairs(self) -> list[tuple[Time, int]]:
        """Return the compacted entries as pairs (time, change) of Python values, in order of times.

        Examples
        --------
        >>> ChangeBatch.from_updates([5], [2]).pairs()
        [((5,), 2)]
        """
        self.compact()
        found = self._few.copy()
        for times, diffs in self._chunks:
            found += zip(map(tuple, times.tolist()), diffs.tolist(), strict=True)
        return found

    def drain(self) -> tuple[IntArray, DiffArray]:
        """Return the compacted entries as `arrays` does, and leave the batch empty.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5], [2])
        >>> batch.drain()[0].tolist(), batch.is_empty()
        ([[5]], True)
        """
        self.compact()
        found = self._joined()
        self.clear()
        return found

    def drain_pairs(self) -> list[tuple[Time, int]]:
        """Return the compacted entries as `pairs` does, and leave the batch empty.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5], [2])
        >>> batch.drain_pairs(), batch.is_empty()
        ([((5,), 2)], True)
        """
        found = self.pairs()
        self.clear()
        return found

    def drain_into(self, other: ChangeBatch) -> None:
        """Move all entries into another batch, leaving this one empty.

        Examples
        --------
        >>> batch, other = ChangeBatch.from_updates([5], [2]), ChangeBatch()
        >>> batch.drain_into(other)
        >>> batch.is_empty(), list(other)
        (True, [((5,), 2)])
        """
        if other is self:
            return
        self.compact()
        if self._chunks:
            other.extend(*self._joined())
        else:
            other.update_pairs(self._few)
        self.clear()

    def copy(self) -> ChangeBatch:
        """Return a batch with the same entries that shares nothing with this one.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5], [2])
        >>> len(batch.copy())
        1
        """
        other = ChangeBatch(self._arity)
        self.compact()
        other._few = self._few.copy()
        other._chunks = [(times.copy(), diffs.copy()) for times, diffs in self._chunks]
        other._length = other._clean = self._length
        return other

    def clear(self) -> None:
        """Drop all entries.

        Examples
        --------
        >>> batch = ChangeBatch.from_updates([5], [2])
        >>> batch.clear()
        >>> batch.is_empty()
        True
        """
        self._few, self._chunks = [], []
        self._length = self._clean = 0
