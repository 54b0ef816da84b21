"""What is held at each vertex of a graph: pointstamps, and the frontiers that they imply.

A state owns the arrays that the kernels of `kernels_reach_work` work on, makes room in them, and reads the
results. It speaks of positions and of times moved to int64; `reachability_tracker` speaks of ports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from spark_timely.progress.reachability_graph import Graph, Index, Wide, working

if TYPE_CHECKING:
    from spark_timely.progress.kernels_reach import Ints

__all__ = ["Moves", "State", "new_state"]

_HI = (1 << 63) - 1
# Where no more than one port of so many may have moved, these are asked for one by one.
_SPARSE = 8

Time: TypeAlias = tuple[int, ...]


class Moves(NamedTuple):
    """How frontiers of implications moved: port number, time (rows of k) and +1 or -1; sorted."""

    ports: Index
    times: Wide
    diffs: Wide


def new_state(graph: Graph) -> State:
    """Return the state of a graph without pointstamps."""
    return _TotalState(graph) if graph.arity == 1 else _PartialState(graph)


class State(ABC):
    """Multisets of times in a pool of records; see the kernels.

    Parameters
    ----------
    graph : Graph
    owners : int
        Number of multisets; the last `graph.n` of them are pointstamps, by position.
    room : int
        Records to begin with.
    """

    def __init__(self, graph: Graph, owners: int, room: int) -> None:
        kernels = graph.loops.working
        self._kernels = kernels
        self._compiled = graph.loops.compiled
        self._graph = graph
        self._first_pointstamp = owners - graph.n
        self._width = kernels.TIME + graph.arity
        scalars = np.zeros(kernels.SCALARS, np.int64)
        scalars[kernels.FREE] = -1
        self._st = working(scalars, compiled=self._compiled)
        self._lists = self._narrow(2 * owners, -1)
        self._sizes = self._narrow(owners, 0)
        self._dirty = self._narrow(graph.n, 0)
        self._blocks = self._narrow(graph.n // kernels.BLOCK + 1, 0)
        self._time = self._wide(graph.arity)
        self._rec, self._big = self._narrow(0), self._wide(0)
        self._flips, self._touched, self._heap = self._narrow(0), self._narrow(0), self._narrow(0)
        self._buckets = self._narrow(0)
        self._set_room(room)

    def _narrow(self, size: int, value: int | None = None) -> Ints:
        """Return so many 32-bit integers; without a value they may be anything, and take no memory yet."""
        if not self._compiled:
            return cast("Ints", [value or 0] * size)
        return cast("Ints", np.empty(size, np.int32) if value is None else np.full(size, value, np.int32))

    def _wide(self, size: int) -> Ints:
        return cast("Ints", np.empty(size, np.int64) if self._compiled else [0] * size)

    def _set_room(self, room: int) -> None:
        """Make room for so many records, keeping those there are."""
        kernels, st = self._kernels, self._st
        rec, big = self._narrow(room * kernels.RECORD), self._wide(room * self._width)
        flips, touched = self._narrow(room), self._narrow(room)
        heap = self._narrow(room if self._graph.cyclic and self._graph.arity > 1 else 0)
        _copy(self._rec, rec, st[kernels.USED] * kernels.RECORD)
        _copy(self._big, big, st[kernels.USED] * self._width)
        _copy(self._flips, flips, st[kernels.FLIPS])
        _copy(self._touched, touched, st[kernels.TOUCHED])
        _copy(self._heap, heap, st[kernels.HEAP])
        self._rec, self._big, self._flips, self._touched, self._heap = rec, big, flips, touched, heap
        n_buckets = 1 << max(4, (room // 2).bit_length())
        self._buckets = self._narrow(n_buckets, -1)
        st[kernels.ROOM] = room
        st[kernels.MASK] = n_buckets - 1
        kernels.rehash(self._graph.arity, rec, big, self._buckets, st)

    @abstractmethod
    def propagate(self, positions: Index, times: Wide, diffs: Wide, n_ports: int) -> Moves:
        """Enter changes of pointstamps (times flat); return the net moves of the frontiers at the first ports."""

    @abstractmethod
    def implications(self, position: int) -> list[Time]:
        """Return the frontier implied at a position."""

    def pointstamps(self, position: int) -> list[Time]:
        """Return the frontier of the pointstamps at a position."""
        return self._front(position + self._first_pointstamp)

    def _front(self, owner: int) -> list[Time]:
        kernels = self._kernels
        found = []
        entry = self._lists[2 * owner]
        while entry >= 0:
            found.append(
                tuple(map(int, _part(self._big, entry * self._width + kernels.TIME, (entry + 1) * self._width)))
            )
            entry = self._rec[entry * kernels.RECORD + kernels.NEXT]
        return found

    def counts(self, position: int) -> list[tuple[Time, int]]:
        """Return all pointstamps at a position with their counts. Cost: O(all records)."""
        kernels = self._kernels
        free = set()
        entry = self._st[kernels.FREE]
        while entry >= 0:
            free.add(entry)
            entry = self._rec[entry * kernels.RECORD + kernels.CHAIN]
        owners = np.array(_part(self._rec, 0, self._st[kernels.USED] * kernels.RECORD))[:: kernels.RECORD]
        found = []
        for e in np.flatnonzero(owners == position + self._first_pointstamp).tolist():
            if e not in free:
                row = list(map(int, _part(self._big, e * self._width, (e + 1) * self._width)))
                found.append((tuple(row[kernels.TIME :]), row[kernels.COUNT]))
        return sorted(found)

    @property
    def held(self) -> int:
        """Number of elements of all frontiers of pointstamps."""
        return int(self._st[self._kernels.HELD])

    def holds(self, positions: Index) -> bool:
        """Tell whether there is a pointstamp with a positive count at any of the positions."""
        owners = positions + self._first_pointstamp
        if self._compiled:
            return bool((np.asarray(self._lists)[2 * owners] >= 0).any())
        return any(self._lists[2 * owner] >= 0 for owner in owners.tolist())


class _TotalState(State):
    """For times of one coordinate: the frontier of a vertex is a time, or none.

    Notes
    -----
    Memory: about 60 bytes per vertex, and 60 per distinct time of a pointstamp.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, graph.n, 64)
        n = graph.n
        # What is implied, and whether anything is; what was before a call; which may have moved in it.
        self._frontiers = self._narrow(n, 0), self._wide(n), self._wide(n), self._narrow(n, 0), self._narrow(n)
        size = len(cast("list[int]", graph.heads)) + n if graph.cyclic else 0
        cyclic = n if graph.cyclic else 0
        self._positions = working(graph.positions, compiled=self._compiled)
        self._search = self._narrow(cyclic, 0), self._narrow(cyclic), self._wide(size), self._narrow(size)

    def propagate(self, positions: Index, times: Wide, diffs: Wide, n_ports: int) -> Moves:
        """See `State.propagate`."""
        kernels, graph, st = self._kernels, self._graph, self._st
        n_updates = positions.shape[0]
        room = int(st[kernels.USED]) + n_updates - int(st[kernels.VACANT])
        if room > st[kernels.ROOM]:
            self._set_room(max(room, 2 * int(st[kernels.ROOM])))
        updates = [working(each, compiled=self._compiled) for each in (positions, times, diffs)]
        count = kernels.propagate_total(
            graph.n,
            _HI,
            graph.first,
            graph.heads,
            graph.steps,
            graph.in_first,
            graph.in_tails,
            graph.in_steps,
            graph.table,
            graph.component_end,
            self._rec,
            self._big,
            self._buckets,
            self._lists,
            self._sizes,
            self._flips,
            self._touched,
            self._dirty,
            self._blocks,
            *self._frontiers,
            *self._search,
            self._time,
            st,
            n_updates,
            *updates,
        )
        st[kernels.TOUCHED] = 0
        n_asked, asked = n_ports, np.zeros(0, np.int32)
        if count * _SPARSE < n_ports:
            asked = np.sort(graph.vertices[np.array(_part(self._frontiers[4], 0, count), np.int64)])
            asked = asked[asked < n_ports]
            n_asked = asked.shape[0]
        size = 2 * min(count, n_asked)
        rows = self._narrow(size), self._wide(size), self._wide(size)
        asking = working(asked, compiled=self._compiled), self._positions
        number = kernels.read_total(count, *self._frontiers, n_asked, *asking, *rows)
        where, at, signs = (_part(each, 0, number) for each in rows)
        return Moves(np.array(where, np.int32), np.array(at, np.int64).reshape(-1, 1), np.array(signs, np.int64))

    def implications(self, position: int) -> list[Time]:
        """See `State.implications`."""
        has, implied = self._frontiers[:2]
        return [(int(implied[position]),)] if has[position] else []


class _PartialState(State):
    """For times of any number of coordinates: implications are multisets like pointstamps.

    Notes
    -----
    Memory: about 60 bytes per vertex, and 60 per vertex and distinct time that is implied there.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, 2 * graph.n, graph.n + 64)
        # By position, the chain of records to be settled.
        self._pending = self._narrow(graph.n, -1)

    def propagate(self, positions: Index, times: Wide, diffs: Wide, n_ports: int) -> Moves:
        """See `State.propagate`."""
        kernels, graph, st = self._kernels, self._graph, self._st
        updates = [working(each, compiled=self._compiled) for each in (positions, times, diffs)]
        while (
            kernels.propagate_partial(
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
                self._sizes,
                self._heap,
                self._flips,
                self._touched,
                self._pending,
                self._dirty,
                self._blocks,
                self._time,
                st,
                positions.shape[0],
                *updates,
            )
            != kernels.DONE
        ):
            self._set_room(2 * int(st[kernels.ROOM]))
        flips = np.array(_part(self._flips, 0, st[kernels.TOUCHED]), dtype=np.int64)
        owners, rows = self._fields(flips >> 1)
        ports = graph.vertices[owners]
        columns: list[Wide | Index] = [rows[:, j] for j in range(graph.arity - 1, -1, -1)]
        order = np.lexsort([*columns, ports])
        order = order[: np.searchsorted(ports[order], n_ports)]
        return Moves(ports[order], rows[order], (2 * (flips & 1) - 1)[order])

    def _fields(self, entries: Wide) -> tuple[Index, Wide]:
        """Return owners and times of records."""
        kernels, width = self._kernels, self._width
        if self._compiled:
            rec, big = np.asarray(self._rec), np.asarray(self._big)
            return rec[entries * kernels.RECORD], big.reshape(-1, width)[entries, kernels.TIME :]
        owners = [self._rec[e * kernels.RECORD] for e in entries.tolist()]
        rows = [list(_part(self._big, e * width + kernels.TIME, (e + 1) * width)) for e in entries.tolist()]
        return np.array(owners, np.int32), np.array(rows, np.int64).reshape(len(rows), self._graph.arity)

    def implications(self, position: int) -> list[Time]:
        """See `State.implications`."""
        return self._front(position)


def _copy(source: Ints, target: Ints, length: int) -> None:
    if length:
        cast("list[int]", target)[:length] = _part(source, 0, length)


def _part(values: Ints, start: int, end: int) -> list[int]:
    """Return part of an array or a list."""
    return cast("list[int]", values)[start:end]
