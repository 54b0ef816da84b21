"""`MutableAntichain`: a frontier that is maintained while the counts of times change.

`subgraph` keeps one for each port of an operator (`PortFrontiers`). It counts in dictionaries, and under many changes
in a `count_table`; `reachability_loops` keeps the same for all ports of a graph at once. A frontier that does not
change is an `Antichain` (`time.antichain`).

Invariants
----------
1. The frontier of a `MutableAntichain` is the antichain of minima of the times whose accumulated
   count is positive, after every call.
2. The changes that `update_iter` returns, added to the frontier before, give the frontier after.
3. Counts that become zero are forgotten; negative ones are remembered, and bound nothing.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from spark_timely.errors import InvalidShapeError
from spark_timely.time.antichain import (
    Antichain,
    BoolArray,
    DiffArray,
    IntArray,
    Time,
    TimesLike,
    as_diffs,
    as_times,
    consolidate_rows,
    minimal,
    minimal_elements,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from spark_timely.progress.count_table import CountTable

__all__ = ["MutableAntichain", "PortFrontiers"]

# Changes whose minima and times are cheaper as Python values.
_FEW = 16
# Changes that are consolidated first, or counted in a table.
_LARGE = 64
# Changes in large batches after which numba is loaded: they took about as long as loading it does.
_WORTH_LOADING = 400_000
# Above every time: the frontier of nothing, for k = 1.
_NEVER = 1 << 64
# Times whose minima are found on Python integers.
_SOME = 256
# How many times more a heap or a frontier may hold before another way is cheaper.
_MANY = 8


class MutableAntichain:
    """A multiset of times that knows the frontier of those with a positive count.

    Parameters
    ----------
    arity : int
        Number k of coordinates of each time.

    Notes
    -----
    Source: timely `progress/frontier.rs`, `MutableAntichain`.

    Examples
    --------
    >>> frontier = MutableAntichain.from_times([[0]])
    >>> times, diffs = frontier.update_iter([[0], [2]], [-1, 7])
    >>> times.tolist(), diffs.tolist()
    ([[0], [2]], [-1, 1])
    >>> frontier.frontier
    Antichain.of(2)
    """

    __slots__ = ("_arity", "_elements", "_frontier", "_heap", "_least", "_line", "_points", "_table")

    def __init__(self, arity: int = 1) -> None:
        self._arity = arity
        # The counts: by number for k = 1, by time else; or all of them in the table.
        self._line: dict[int, int] = {}
        self._points: dict[Time, int] = {}
        self._table: CountTable | None = None
        # The frontier: for k = 1 its element, or `_NEVER`; else its elements in lexicographic order; in the table if
        # there is one; and as a value once asked for.
        self._least = _NEVER
        self._elements: list[Time] = []
        self._frontier: Antichain | None = None
        # For k = 1, and only while it pays: a heap of all times with a positive count, and maybe of others.
        self._heap: list[int] | None = None

    @classmethod
    def from_times(cls, times: TimesLike, arity: int | None = None) -> MutableAntichain:
        """Return one that counts each of the given times once per occurrence.

        Examples
        --------
        >>> MutableAntichain.from_times([5, 7, 7]).count_for(7)
        2
        """
        rows = as_times(times, arity)
        self = cls(rows.shape[1])
        self.update_iter(rows, np.ones(rows.shape[0], dtype=np.int64))
        return self

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    @property
    def frontier(self) -> Antichain:
        """The minima of the times whose count is positive."""
        if self._frontier is None:
            elements = self._held_elements() if self._table is None else _tuples(self._table.elements)
            self._frontier = Antichain._trusted(tuple(elements), self._arity)
        return self._frontier

    @property
    def is_empty(self) -> bool:
        """Whether the frontier is empty."""
        return not len(self._held_elements() if self._table is None else self._table.elements)

    def _held_elements(self) -> list[Time]:
        if self._arity != 1:
            return self._elements
        return [] if self._least == _NEVER else [(self._least,)]

    def counts(self) -> tuple[IntArray, DiffArray]:
        """Return the times with a non-zero count, in lexicographic order, and the counts; copies.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).counts()[1].tolist()
        [1]
        """
        if self._table is not None:
            return consolidate_rows(*self._table.items())
        if self._arity == 1:
            line = sorted(self._line.items())
            return as_times([time for time, _ in line], 1), np.array([count for _, count in line], dtype=np.int64)
        points = sorted(self._points.items())
        times = as_times([time for time, _ in points], self._arity)
        return times, np.array([count for _, count in points], dtype=np.int64)

    def count_for(self, time: int | Sequence[int]) -> int:
        """Return the accumulated count of one time.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).count_for(6)
        0
        """
        row = (int(time),) if isinstance(time, int | np.integer) else tuple(map(int, time))
        if len(row) != self._arity:
            raise _wrong_arity(row, self._arity)
        if self._table is not None:
            return self._table.count_for(row)
        return self._line.get(row[0], 0) if self._arity == 1 else self._points.get(row, 0)

    def less_equal(self, time: int | Sequence[int]) -> bool:
        """Tell whether `time` is beyond the frontier.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).less_equal(5)
        True
        """
        return self.frontier.less_equal(time)

    def less_than(self, time: int | Sequence[int]) -> bool:
        """Tell whether some element of the frontier is strictly less than `time`.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).less_than(5)
        False
        """
        return self.frontier.less_than(time)

    def beyond(self, times: TimesLike) -> BoolArray:
        """Tell for each time whether it is beyond the frontier; see `Antichain.beyond`.

        Examples
        --------
        >>> MutableAntichain.from_times([5]).beyond([4, 5]).tolist()
        [False, True]
        """
        return self.frontier.beyond(times)

    def update_iter(self, times: TimesLike, diffs: npt.ArrayLike) -> tuple[IntArray, DiffArray]:
        """Apply count changes and return how the frontier moved.

        After the call the frontier is the set of minimal times whose accumulated count is
        positive. Counts may pass through negative values between calls.

        Parameters
        ----------
        times : array-like of integers, shape (n, k)
            Not modified, not kept.
        diffs : array-like of integers, shape (n,)
            Change of each count, in pointstamps.

        Returns
        -------
        times, diffs : ndarray, shapes (m, k) and (m,)
            Elements that entered (+1) and left (-1) the frontier, sorted by time; the times are int64, or uint64
            where one is 2**63 or more.

        Raises
        ------
        InvalidShapeError
            If `times` and `diffs` differ in length, or k is not this antichain's arity.

        Notes
        -----
        Cost: O(n), after a consolidation of large batches. Where an element of the frontier went, the
        frontier is found again among the d times held: O(d log d) for k = 2, O(d·f) for f elements of more
        coordinates, and for k = 1 what came since, O(log d) each.
        Source: timely `progress/frontier.rs`, `MutableAntichain::update_iter`.

        Examples
        --------
        >>> frontier = MutableAntichain.from_times([[0]])
        >>> frontier.update_iter(np.array([[0], [2]]), np.array([-1, 7]))[1].tolist()
        [-1, 1]
        """
        rows, changes = self._arrays(times, diffs)
        n = rows.shape[0]
        if self._table is not None or n >= _LARGE:
            table = self._table_for(rows)
            if table is not None:
                moves = table.update(_plain(rows.astype(np.int64, copy=False)), _plain(changes))
                if moves[1].size:
                    self._frontier = None
                return moves
            rows, changes = consolidate_rows(rows, changes)
        moved = self._apply(list(zip(_tuples(rows), changes.tolist(), strict=True)))
        if not moved:
            return _nothing(self._arity)
        moved_times = as_times([time for time, _ in moved], self._arity)
        return moved_times, np.array([sign for _, sign in moved], dtype=np.int64)

    def update_pairs(self, changes: Sequence[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply a few count changes given as Python values; the same as `update_iter`, without arrays.

        Parameters
        ----------
        changes : sequence of (time, diff)
            Times are tuples of k Python integers.

        Returns
        -------
        list of (time, sign)
            Elements that entered (+1) and left (-1) the frontier, sorted by time.

        Raises
        ------
        InvalidShapeError
            If a time has not k coordinates; nothing was changed then.

        Notes
        -----
        Cost: O(1) for each change; where an element of the frontier went, O(log d) for k = 1 and
        O(d log d) for k = 2, with d times held.

        Examples
        --------
        >>> frontier = MutableAntichain()
        >>> frontier.update_pairs([((3,), 1), ((5,), 1)])
        [((3,), 1)]
        >>> frontier.update_pairs([((3,), -1)])
        [((3,), -1), ((5,), 1)]
        """
        if self._table is not None:
            self._check(changes)
            rows, diffs = [time for time, _ in changes], [diff for _, diff in changes]
            times, signs = self.update_iter(as_times(rows, self._arity), np.array(diffs, dtype=np.int64))
            return list(zip(_tuples(times), signs.tolist(), strict=True))
        return self._apply(changes)

    def _apply(self, changes: Sequence[tuple[Time, int]]) -> list[tuple[Time, int]]:
        return self._apply_line(changes) if self._arity == 1 else self._apply_points(changes)

    def _check(self, changes: Sequence[tuple[Time, int]]) -> None:
        for time, _ in changes:
            if not isinstance(time, tuple) or len(time) != self._arity:
                raise _wrong_arity(time, self._arity)

    def _arrays(self, times: TimesLike, diffs: npt.ArrayLike) -> tuple[IntArray, DiffArray]:
        if (
            type(times) is np.ndarray
            and type(diffs) is np.ndarray
            and times.dtype == np.int64
            and diffs.dtype == np.int64
            and times.shape == (diffs.size, self._arity)
            and diffs.ndim == 1
        ):
            return times, diffs
        rows = as_times(times, self._arity)
        return rows, as_diffs(diffs, rows.shape[0])

    def _apply_line(self, changes: Sequence[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply changes and return how the frontier moved: k = 1."""
        counts, before = self._line, self._least
        least, touched = before, False
        try:
            for (time,), diff in changes:
                count = counts.get(time, 0) + diff
                if count:
                    counts[time] = count
                elif diff:
                    del counts[time]
                # What is above the frontier cannot move it.
                if time <= before:
                    touched = True
                    if time < least and diff > 0:
                        least = time
        except (TypeError, ValueError):
            for change in changes:  # undone up to the first one that is no time of this arity
                self._check([change])
                (time,), diff = change
                counts[time] = counts.get(time, 0) - diff
                if not counts[time]:
                    del counts[time]
            raise
        heap = self._heap
        if heap is not None:
            for (time,), diff in changes:
                if diff > 0:
                    heappush(heap, time)
            if len(heap) > _MANY * (len(counts) + _MANY) or len(changes) > len(counts) // _MANY:
                self._heap = None  # looking through all is cheaper now
        if not touched:
            return []
        if least < before and counts.get(least, 0) <= 0:
            # It came and went again.
            least = min((time for (time,), _ in changes if time < before and counts.get(time, 0) > 0), default=before)
        if least == before and counts.get(before, 0) <= 0:
            least = self._next_least()
        if least == before:
            return []
        self._least, self._frontier = least, None
        if before == _NEVER:
            return [((least,), 1)]
        if least == _NEVER:
            return [((before,), -1)]
        if before < least:
            return [((before,), -1), ((least,), 1)]
        return [((least,), 1), ((before,), -1)]

    def _next_least(self) -> int:
        """Find the least time with a positive count: k = 1."""
        counts, heap = self._line, self._heap
        if heap is None:
            least = min(counts, default=_NEVER) if len(counts) <= _FEW else _NEVER
            if counts.get(least, 0) > 0:
                return least
            heap = self._heap = [time for time, count in counts.items() if count > 0]
            heapify(heap)
        while heap and counts.get(heap[0], 0) <= 0:
            heappop(heap)
        return heap[0] if heap else _NEVER

    def _apply_points(self, changes: Sequence[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply changes and return how the frontier moved: k > 1, or 0."""
        self._check(changes)
        counts, elements = self._points, self._elements
        lost, risen = False, []
        for time, diff in changes:
            old = counts.get(time, 0)
            new = old + diff
            if new:
                counts[time] = new
            elif old:
                del counts[time]
            if new > 0 >= old:
                risen.append(time)
            elif old > 0 >= new and not lost and _holds(elements, time):
                lost = True
        if lost and not all(counts.get(element, 0) > 0 for element in elements):
            after = _minima([time for time, count in counts.items() if count > 0], self._arity)
        else:
            below = self._below(risen)
            if not below:
                return []
            after = _minima([*elements, *below], self._arity)
        self._elements, self._frontier = after, None
        return _moves(elements, after)

    def _below(self, risen: list[Time]) -> list[Time]:
        """Return those of the times that are beyond no element of the frontier and have a positive count now."""
        counts, elements = self._points, self._elements
        if self._arity > 2 and len(risen) > _FEW:
            beyond = self.frontier.beyond(risen).tolist()
        else:
            beyond = [_is_beyond(time, elements) for time in risen]
        return [
            time for time, is_beyond in zip(risen, beyond, strict=True) if not is_beyond and counts.get(time, 0) > 0
        ]

    def _table_for(self, rows: IntArray) -> CountTable | None:
        """Return the table that is to take the changes, None where the dictionaries are."""
        fits = rows.dtype == np.int64 or not rows.size or int(rows.max()) < 1 << 63
        if self._table is not None:
            if not fits:
                self._leave_table()
            return self._table
        make = _table_class(rows.shape[0])
        if make is None or not fits:
            return None
        held, counts = self.counts()
        if held.dtype != np.int64:
            return None
        times = held.astype(np.int64, copy=False)
        found = self._held_elements()
        elements = np.array(found, dtype=np.int64).reshape(len(found), self._arity)
        self._table = make(times, counts, elements)
        self._line, self._points, self._heap, self._elements, self._least = {}, {}, None, [], _NEVER
        return self._table

    def _leave_table(self) -> None:
        """Go back to a dictionary."""
        table, self._table = self._table, None
        if table is None:
            return
        times, counts = table.items()
        held = zip(_tuples(times), counts.tolist(), strict=True)
        if self._arity == 1:
            self._line = {time: count for (time,), count in held}
            self._least = int(table.elements[0, 0]) if table.elements.size else _NEVER
        else:
            self._points = dict(held)
            self._elements = _tuples(table.elements)


class PortFrontiers(dict[int, MutableAntichain]):
    """A counted antichain for each port at which anything was counted.

    Parameters
    ----------
    arity : int
        Number of coordinates of each time.

    Examples
    --------
    >>> frontiers = PortFrontiers(1)
    >>> frontiers.apply([(0, (3,), 1), (2, (5,), 1), (0, (4,), 1)])
    [(0, (3,), 1), (2, (5,), 1)]
    """

    def __init__(self, arity: int) -> None:
        self._arity = arity

    def apply(self, changes: Iterable[tuple[int, Time, int]]) -> list[tuple[int, Time, int]]:
        """Apply count changes by port; return how the frontiers moved."""
        by_port: dict[int, list[tuple[Time, int]]] = {}
        for port, time, diff in changes:
            by_port.setdefault(port, []).append((time, diff))
        moved = []
        for port, pairs in by_port.items():
            if port not in self:
                self[port] = MutableAntichain(self._arity)
            moved += [(port, time, sign) for time, sign in self[port].update_pairs(pairs)]
        return moved


def _plain(array: DiffArray) -> DiffArray:
    """Return an array in the one layout that is compiled for."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable else array.copy()


def _table_class(n: int) -> type[CountTable] | None:
    """Return what counts large batches, once enough changes came in them that loading numba is worth it."""
    global _in_large, _tables
    if _tables is None and _in_large >= 0:
        _in_large += n
        if _in_large > _WORTH_LOADING:
            from spark_timely.progress.kernels import COMPILED

            _in_large = -1
            if COMPILED:
                from spark_timely.progress.count_table import CountTable

                _tables = CountTable
    return _tables


_tables: type[CountTable] | None = None
# Changes that came in large batches to this process; negative once it is known whether there is numba.
_in_large = 0


def _minima(times: list[Time], arity: int) -> list[Time]:
    """Return the minima of times in lexicographic order."""
    if len(times) <= (_SOME if arity <= 2 else _FEW):
        return minimal_elements(times)
    return _tuples(minimal(as_times(times, arity)))


def _tuples(rows: IntArray) -> list[Time]:
    if rows.shape[1] == 1:
        return list(zip(rows[:, 0].tolist()))
    if rows.shape[0] > _FEW and rows.shape[1] == 2:
        return list(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True))
    return list(map(tuple, rows.tolist()))


def _holds(elements: list[Time], time: Time) -> bool:
    """Tell whether a time is an element of a sorted list."""
    if len(elements) <= _MANY:
        return time in elements
    at = bisect_left(elements, time)
    return at < len(elements) and elements[at] == time


def _is_beyond(time: Time, elements: list[Time]) -> bool:
    """Tell whether some element of an antichain in lexicographic order is less or equal to a time."""
    k = len(time)
    if k == 1:
        return bool(elements) and elements[0] <= time
    if k == 2:
        # Second coordinates fall as first ones rise: the last element that may be less or equal is the one to ask.
        at = bisect_right(elements, time) - 1
        return at >= 0 and elements[at][1] <= time[1]
    return any(all(x <= y for x, y in zip(element, time, strict=True)) for element in elements)


def _moves(before: list[Time], after: list[Time]) -> list[tuple[Time, int]]:
    """Return what entered and what left, sorted by time."""
    if len(before) + len(after) <= 2:
        if before == after:
            return []
        moves = [(time, -1) for time in before]
        moves += [(time, 1) for time in after]
    else:
        left, entered = set(before), set(after)
        moves = [(time, -1) for time in left - entered]
        moves += [(time, 1) for time in entered - left]
    moves.sort()
    return moves


@functools.cache
def _nothing(arity: int) -> tuple[IntArray, DiffArray]:
    """Return no changes: nobody can alter an empty array, so all callers share it."""
    return np.empty((0, arity), dtype=np.int64), np.empty(0, dtype=np.int64)


def _wrong_arity(time: Time, arity: int) -> InvalidShapeError:
    return InvalidShapeError(
        f"could not count time={time!r:.200}: expected arity={arity}",
        hint="give each time as a tuple of that many integers",
    )
