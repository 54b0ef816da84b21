"""`ChangeBatch`: changes of counts that wait to be applied, as a multiset of times or pointstamps.

An operator reports what it consumed, produced and holds in three `PortChanges`, together `Buffers`. `subgraph` collects
such reports in a `ChangeBatch`, and `broadcast` sends them. A `MutableAntichain` (`frontier`) takes the changes of a
port and has the counts themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from spark_timely.errors import InvalidShapeError
from spark_timely.time.antichain import DiffArray, IntArray, Time, TimesLike, as_diffs, as_times

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

__all__ = ["Buffers", "ChangeBatch", "PortChanges", "Report"]


class ChangeBatch:
    """A multiset of (time, count change): changes of equal times are summed, and dropped when the sum is zero.

    Parameters
    ----------
    arity : int
        Number k of coordinates of each time.

    Notes
    -----
    Cost: O(1) per change; looking sorts the distinct times. Changes come from operators and peers one by one, or are
    taken one by one, so they are kept in a dictionary: nothing is gained by arrays in between.
    A lone change of zero is dropped like any other; timely keeps it, and then says that the batch is not empty.
    Source: timely `progress/change_batch.rs`, which sums up when somebody looks.

    Examples
    --------
    >>> batch = ChangeBatch()
    >>> batch.update(17, 1)
    >>> batch.update(17, -1)
    >>> batch.is_empty()
    True
    """

    __slots__ = ("_arity", "_counts")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        self._counts: dict[Time, int] = {}

    def update(self, time: int | Sequence[int], diff: int) -> None:
        """Change one count.

        Parameters
        ----------
        time : int or sequence of int
            A time of k coordinates; a number only if k is 1.
        diff : int

        Raises
        ------
        InvalidShapeError
            If the time has not k coordinates.

        Examples
        --------
        >>> batch = ChangeBatch(arity=2)
        >>> batch.update((1, 2), 3)
        >>> list(batch)
        [((1, 2), 3)]
        """
        if type(time) is not tuple:
            time = (time,) if isinstance(time, int | np.integer) else tuple(time)
        if len(time) != self._arity:
            msg = f"could not count time={time!r:.200}: found arity={len(time)}, expected arity={self._arity}"
            raise InvalidShapeError(msg, hint="give times with the same number of coordinates as the batch")
        count = self._counts.get(time, 0) + diff
        if count:
            self._counts[time] = count
        else:
            self._counts.pop(time, None)

    def extend(self, times: TimesLike, diffs: npt.ArrayLike) -> None:
        """Change many counts.

        Parameters
        ----------
        times : array-like of integers, shape (n, k)
        diffs : array-like of integers, shape (n,)

        Raises
        ------
        InvalidShapeError
            If the shapes do not fit each other, or the batch.

        Examples
        --------
        >>> batch = ChangeBatch()
        >>> batch.extend([5, 6, 5], [1, 1, 1])
        >>> batch.pairs()
        [((5,), 2), ((6,), 1)]
        """
        rows = as_times(times, self._arity)
        for time, diff in zip(map(tuple, rows.tolist()), as_diffs(diffs, rows.shape[0]).tolist(), strict=True):
            self.update(time, diff)

    def is_empty(self) -> bool:
        """Tell whether no count changes.

        Examples
        --------
        >>> ChangeBatch().is_empty()
        True
        """
        return not self._counts

    def __len__(self) -> int:
        """Return the number of times whose count changes."""
        return len(self._counts)

    def __iter__(self) -> Iterator[tuple[Time, int]]:
        """Iterate over (time, change), in lexicographic order of times."""
        return iter(self.pairs())

    def __repr__(self) -> str:
        """Return the changes."""
        return f"ChangeBatch({list(self)!r})"

    def pairs(self) -> list[tuple[Time, int]]:
        """Return (time, change) of all, in lexicographic order of times.

        Examples
        --------
        >>> ChangeBatch().pairs()
        []
        """
        return sorted(self._counts.items())

    def drain(self) -> tuple[IntArray, DiffArray]:
        """Return times, shape (n, k), and changes, shape (n,), in lexicographic order, and leave nothing.

        Examples
        --------
        >>> batch = ChangeBatch()
        >>> batch.update(5, 1)
        >>> times, diffs = batch.drain()
        >>> times.tolist(), diffs.tolist(), batch.is_empty()
        ([[5]], [1], True)
        """
        pairs = self.drain_pairs()
        times = as_times([time for time, _ in pairs], self._arity)
        return times, np.array([diff for _, diff in pairs], dtype=np.int64)

    def drain_pairs(self) -> list[tuple[Time, int]]:
        """Return what `pairs` does, and leave nothing.

        Examples
        --------
        >>> batch = ChangeBatch()
        >>> batch.update(5, 1)
        >>> batch.drain_pairs(), batch.is_empty()
        ([((5,), 1)], True)
        """
        found = self.pairs()
        self.clear()
        return found

    def clear(self) -> None:
        """Forget all changes.

        Examples
        --------
        >>> ChangeBatch().clear()
        """
        self._counts = {}


class PortChanges:
    """Changes of counts at the ports of one side of an operator.

    One multiset for all ports, not one for each: ports at which nothing happens cost nothing, and
    the scope keeps and reuses the same few for all its operators.

    Parameters
    ----------
    arity : int
        Number of coordinates of each time.

    Examples
    --------
    >>> changes = PortChanges()
    >>> changes.update(1, 7, 2)
    >>> changes.update(0, 5, -1)
    >>> list(changes)
    [(0, (5,), -1), (1, (7,), 2)]
    """

    __slots__ = ("_arity", "_batch")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        # The port is the first coordinate of each entry.
        self._batch = ChangeBatch(arity + 1)

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    def update(self, port: int, time: int | Sequence[int], diff: int) -> None:
        """Change one count.

        Examples
        --------
        >>> changes = PortChanges(arity=2)
        >>> changes.update(0, (1, 2), 1)
        """
        self._batch.update((port, time) if isinstance(time, int) else (port, *time), diff)

    def is_empty(self) -> bool:
        """Tell whether no count changes.

        Examples
        --------
        >>> PortChanges().is_empty()
        True
        """
        return self._batch.is_empty()

    def __iter__(self) -> Iterator[tuple[int, Time, int]]:
        """Iterate over (port, time, change), in order of ports and times."""
        for row, diff in self._batch.pairs():
            yield row[0], row[1:], diff

    def __repr__(self) -> str:
        """Return the changes."""
        return f"PortChanges({list(self)!r:.200})"

    def drain(self) -> list[tuple[int, Time, int]]:
        """Return (port, time, change) of all, and leave nothing.

        Examples
        --------
        >>> changes = PortChanges()
        >>> changes.update(0, 5, 1)
        >>> changes.drain(), changes.is_empty()
        ([(0, (5,), 1)], True)
        """
        return [(row[0], row[1:], diff) for row, diff in self._batch.drain_pairs()]

    def clear(self) -> None:
        """Forget all changes.

        Examples
        --------
        >>> PortChanges().clear()
        """
        self._batch.clear()


Report: TypeAlias = list[tuple[int, Time, int]]
"""What an operator said of one side: port, time, change; sums of equal ones, none zero."""


class Buffers:
    """Buffers that operators fill in their turns: kept by the scope, used by one child after the other.

    Examples
    --------
    >>> Buffers(arity=1).consumed.is_empty()
    True
    """

    __slots__ = ("consumed", "internal", "produced")

    def __init__(self, arity: int) -> None:
        self.consumed = PortChanges(arity)
        self.internal = PortChanges(arity)
        self.produced = PortChanges(arity)

    def are_empty(self) -> bool:
        """Tell whether nothing is left from the last turn.

        Examples
        --------
        >>> Buffers(arity=1).are_empty()
        True
        """
        return self.consumed.is_empty() and self.internal.is_empty() and self.produced.is_empty()

    def drain(self) -> tuple[Report, Report, Report]:
        """Return what was consumed, gained or dropped, and produced; leave nothing.

        Examples
        --------
        >>> Buffers(arity=1).drain()
        ([], [], [])
        """
        return self.consumed.drain(), self.internal.drain(), self.produced.drain()
