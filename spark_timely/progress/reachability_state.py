"""What is held at each vertex of a graph: pointstamps, and the frontiers that they imply.

`State` owns the arrays that the kernels of `kernels_reach` work on, makes room when they ask for it, and
reads their results. It speaks of positions and of times moved to int64; `reachability` speaks of ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from spark_timely.progress.reachability_graph import Graph, Index, Wide, working

if TYPE_CHECKING:
    from spark_timely.progress.kernels_reach import Ints

__all__ = ["Moves", "State"]

_HI = (1 << 63) - 1


class Moves(NamedTuple):
    """How frontiers of implications moved: position, time (rows of k) and +1 or -1, in no order."""

    positions: Index
    times: Wide
    diffs: Wide


class State:
    """Pointstamps and implications over one graph.

    Notes
    -----
    Memory: about 60 bytes per vertex, and as much again per distinct time held at one.
    """

    __slots__ = ("_big", "_buckets", "_compiled", "_flips", "_graph", "_heap", "_lists", "_marks", "_rec", "_st")

    def __init__(self, graph: Graph) -> None:
        from spark_timely.progress import kernels_reach as kernels
        from spark_timely.progress.kernels import COMPILED

        self._graph = graph
        self._compiled = COMPILED
        n = graph.n
        # Arrays that are not yet written to take no memory; lists do.
        room = (2 * n if COMPILED else n) + 64
        scalars = np.zeros(kernels.SCALARS, np.int64)
        scalars[kernels.FREE] = -1
        self._st = working(scalars, compiled=COMPILED)
        self._flips = self._unset(0), self._unset(0)
        self._heap = self._unset(0)
        self._rec = self._unset(0)
        self._big = self._wide(0)
        self._lists = self._filled(4 * n, -1)
        # By position: how many positive counts, chain of entries to be settled, whether there are any.
        self._marks = (
            self._filled(2 * n, 0),
            self._filled(n, -1),
            self._filled(n, 0),
            self._filled(n // kernels.BLOCK + 1, 0),
        )
        self._set_room(room)

    def _filled(self, size: int, value: int) -> Ints:
        return cast("Ints", np.full(size, value, np.int32) if self._compiled else [value] * size)

    def _unset(self, size: int) -> Ints:
        return cast("Ints", np.empty(size, np.int32) if self._compiled else [0] * size)

    def _wide(self, size: int) -> Ints:
        return cast("Ints", np.empty(size, np.int64) if self._compiled else [0] * size)

    def _set_room(self, room: int) -> None:
        """Make room for so many entries, keeping those there are."""
        from spark_timely.progress import kernels_reach as kernels

        k, used = self._graph.arity, self._st[kernels.USED]
        rec, big = self._unset(room * kernels.RECORD), self._wide(room * (kernels.TIME + k))
        flips, touched = self._unset(room), self._unset(room)
        heap = self._unset(room if self._graph.cyclic else 0)
        if used:
            _copy(self._rec, rec, used * kernels.RECORD)
            _copy(self._big, big, used * (kernels.TIME + k))
            _copy(self._flips[0], flips, self._st[kernels.FLIPS])
            _copy(self._flips[1], touched, self._st[kernels.TOUCHED])
            _copy(self._heap, heap, self._st[kernels.HEAP])
        self._rec, self._big, self._heap, self._flips = rec, big, heap, (flips, touched)
        self._st[kernels.ROOM] = room
        n_buckets = 1 << max(4, (int(room) // 2).bit_length())
        self._st[kernels.MASK] = n_buckets - 1
        self._buckets = self._filled(n_buckets, -1)
        kernels.rehash(k, self._rec, self._big, self._buckets, self._st)

    def propagate(self, positions: Index, times: Wide, diffs: Wide) -> Moves:
        """Enter changes of pointstamps (times flat) and return the net moves of all frontiers of implications."""
        from spark_timely.progress import kernels_reach as kernels

        graph, compiled = self._graph, self._compiled
        updates = [working(each, compiled=compiled) for each in (positions, times, diffs)]
        time = self._wide(graph.arity)
        sizes, pending, dirty, blocks = self._marks
        while True:
            done = kernels.propagate(
                graph.n,
                graph.arity,
                _HI,
                graph.first,
                graph.heads,
                graph.steps,
                graph.table,
                graph.component_end,
                self._rec,
                self._big,
                self._buckets,
                self._lists,
                sizes,
                self._heap,
                *self._flips,
                pending,
                dirty,
                blocks,
                time,
                self._st,
                positions.shape[0],
                *updates,
            )
            if done == kernels.DONE:
                break
            self._set_room(2 * self._st[kernels.ROOM])
        flips = np.array(_part(self._flips[0], 0, self._st[kernels.TOUCHED]), dtype=np.int64)
        entries = flips >> 1
        owners, rows = self._fields(entries)
        return Moves(owners, rows, 2 * (flips & 1) - 1)

    def _fields(self, entries: Wide) -> tuple[Index, Wide]:
        """Return owners and times of records."""
        from spark_timely.progress import kernels_reach as kernels

        width = kernels.TIME + self._graph.arity
        if self._compiled:
            rec, big = np.asarray(self._rec), np.asarray(self._big)
            return rec[entries * kernels.RECORD], big.reshape(-1, width)[entries, kernels.TIME :]
        owners = [self._rec[e * kernels.RECORD] for e in entries.tolist()]
        rows = [list(_part(self._big, e * width + kernels.TIME, (e + 1) * width)) for e in entries.tolist()]
        return (
            np.array(owners, np.int32),
            np.array(rows, np.int64).reshape(len(rows), self._graph.arity),
        )

    def implications(self, position: int) -> list[tuple[int, ...]]:
        """Return the frontier implied at a position."""
        return self._front(position)

    def pointstamps(self, position: int) -> list[tuple[int, ...]]:
        """Return the frontier of the pointstamps at a position."""
        return self._front(position + self._graph.n)

    def _front(self, owner: int) -> list[tuple[int, ...]]:
        from spark_timely.progress import kernels_reach as kernels

        width = kernels.TIME + self._graph.arity
        found = []
        entry = self._lists[2 * owner]
        while entry >= 0:
            found.append(tuple(map(int, _part(self._big, entry * width + kernels.TIME, (entry + 1) * width))))
            entry = self._rec[entry * kernels.RECORD + kernels.NEXT]
        return found

    def counts(self, position: int) -> list[tuple[tuple[int, ...], int]]:
        """Return all pointstamps at a position with their counts. Cost: O(all entries held)."""
        from spark_timely.progress import kernels_reach as kernels

        width = kernels.TIME + self._graph.arity
        used = self._st[kernels.USED]
        free = set()
        entry = self._st[kernels.FREE]
        while entry >= 0:
            free.add(entry)
            entry = self._rec[entry * kernels.RECORD + kernels.CHAIN]
        owners = np.array(_part(self._rec, 0, used * kernels.RECORD))[:: kernels.RECORD]
        found = []
        for e in np.flatnonzero(owners == position + self._graph.n).tolist():
            if e not in free:
                row = list(map(int, _part(self._big, e * width, (e + 1) * width)))
                found.append((tuple(row[kernels.TIME :]), row[kernels.COUNT]))
        return sorted(found)

    @property
    def held(self) -> int:
        """Number of elements of all frontiers of pointstamps."""
        from spark_timely.progress import kernels_reach as kernels

        return int(self._st[kernels.HELD])

    def holds(self, positions: Index) -> bool:
        """Tell whether there is a pointstamp with a positive count at any of the positions."""
        n = self._graph.n
        if self._compiled:
            return bool((np.asarray(self._lists)[2 * (positions + n)] >= 0).any())
        return any(self._lists[2 * (p + n)] >= 0 for p in positions.tolist())


def _copy(source: Ints, target: Ints, length: int) -> None:
    if isinstance(target, np.ndarray):
        target[:length] = np.asarray(source)[:length]
    else:
        target_list = cast("list[int]", target)
        target_list[:length] = _part(source, 0, length)


def _part(values: Ints, start: int, end: int) -> list[int]:
    """Return part of an array or a list."""
    return cast("list[int]", cast("list[int]", values)[start:end])
