"""The tracker: takes changes of pointstamps, says how implied frontiers move."""

from __future__ import annotations

from array import array
from itertools import pairwise
from operator import index
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.progress.location import Location, Source, Target
from spark_timely.progress.reachability_graph import Graph, Index, Shape, Wide
from spark_timely.progress.reachability_state import Moves, new_state
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import BoolArray, DiffArray, IntArray, TimesLike, as_diffs, as_times
from spark_timely.time.consolidation import consolidate_rows, run_starts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

__all__ = ["Changes", "Tracker"]

_HALF = 1 << 63
# Moves that nobody reads are summed up after so many propagations.
_UNREAD = 32


class Changes(NamedTuple):
    """How frontiers moved: one row per element that entered (+1) or left (-1) the frontier of a port.

    Rows are sorted by node, a node's targets before its sources, by port, by time.

    Examples
    --------
    >>> from spark_timely.progress.reachability import Builder
    >>> builder = Builder()
    >>> builder.add_node(1, 0, 1)
    >>> builder.add_node(2, 1, 0, sources=[(1, 0)])
    >>> tracker, _ = builder.build()
    >>> tracker.update_source(Source(1, 0), 5, 1)
    >>> tracker.propagate_all()
    >>> for location, times, diffs in tracker.pushed().groups():
    ...     print(location, times.tolist(), diffs.tolist())
    source (1, 0) [[5]] [1]
    target (2, 0) [[5]] [1]
    """

    nodes: Wide
    ports: Wide
    is_target: BoolArray
    times: IntArray
    diffs: DiffArray

    def groups(self) -> Iterator[tuple[Location, IntArray, DiffArray]]:
        """Iterate over the ports concerned, each with its times and diffs."""
        n = self.nodes.shape[0]
        if not n:
            return
        keys = np.stack([self.nodes, ~self.is_target, self.ports], axis=1)
        starts = [*run_starts(keys).tolist(), n]
        for start, end in pairwise(starts):
            location = Location(int(self.nodes[start]), int(self.ports[start]), bool(self.is_target[start]))
            yield location, self.times[start:end], self.diffs[start:end]

    def rows(self) -> list[tuple[Location, tuple[int, ...], int]]:
        """Return the rows as plain values: location, time, diff."""
        columns = (self.nodes, self.ports, self.is_target, self.times, self.diffs)
        return [
            (Location(node, port, side), tuple(time), diff)
            for node, port, side, time, diff in zip(*(column.tolist() for column in columns), strict=True)
        ]


class Tracker:
    """Tracks pointstamps in a graph and the frontiers that they imply; built by `Builder.build`.

    Changes of pointstamps are entered by the `update…` methods, and have no effect before `propagate_all`.
    Counts may be negative for a while: a time bounds something only while its count is positive.

    Notes
    -----
    Source: timely `progress/reachability.rs`, `Tracker`.

    Examples
    --------
    >>> from spark_timely.progress.reachability import Builder
    >>> builder = Builder()
    >>> builder.add_node(1, 0, 1)
    >>> builder.add_node(2, 1, 0, sources=[(1, 0)])
    >>> tracker, _ = builder.build()
    >>> tracker.update_source(Source(1, 0), 5, 1)
    >>> tracker.update_target(Target(2, 0), 3, 1)
    >>> tracker.propagate_all()
    >>> tracker.implications(Target(2, 0))
    Antichain.of(3)
    >>> tracker.tracking_anything()
    True
    """

    __slots__ = (
        "_arity",
        "_ats",
        "_diffs",
        "_graph",
        "_half",
        "_inner",
        "_moves",
        "_outward",
        "_shape",
        "_sources",
        "_state",
        "_targets",
        "_times",
    )

    def __init__(self, graph: Graph, shape: Shape, *, unsigned: bool, inner: Graph | None) -> None:
        self._graph = graph
        self._shape = shape
        self._arity = graph.arity
        self._half = _HALF if unsigned else 0
        self._state = new_state(graph)
        # The same without what is at node 0, as far as it leads to the graph's outputs; if there are any.
        self._inner = None if inner is None else new_state(inner)
        self._ats = array("q")  # port numbers
        self._times = array("q")  # flat, moved to int64
        self._diffs = array("q")
        self._moves: list[Moves] = []
        self._outward: list[Moves] = []

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return self._arity

    @property
    def n_locations(self) -> int:
        """Number of ports of all nodes."""
        return self._shape.n_ports

    def update_source(self, source: Source | tuple[int, int], time: int | Sequence[int], diff: int) -> None:
        """Change the count of capabilities at one time; takes effect with `propagate_all`.

        Raises
        ------
        InvalidUsageError
            If there is no such source.
        InvalidShapeError
            If `time` does not have k coordinates, or is not of the tracker's type.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_source(Source(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.pointstamps(Source(1, 0))
        Antichain.of(5)
        """
        node, port = source
        self._update(self._number(node, port, is_target=False), time, diff)

    def update_target(self, target: Target | tuple[int, int], time: int | Sequence[int], diff: int) -> None:
        """Change the count of messages at one time; takes effect with `propagate_all`.

        Raises
        ------
        InvalidUsageError
            If there is no such target.
        InvalidShapeError
            If `time` does not have k coordinates, or is not of the tracker's type.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.pointstamps(Target(1, 0))
        Antichain.of(5)
        """
        node, port = target
        self._update(self._number(node, port, is_target=True), time, diff)

    def update(self, location: Location, time: int | Sequence[int], diff: int) -> None:
        """Change one count at a port of either side; see `update_source` and `update_target`.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update(Location(1, 0, is_target=True), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.implications(Source(1, 0))
        Antichain.of(5)
        """
        self._update(self._number(*location[:2], is_target=location.is_target), time, diff)

    def update_many(
        self,
        nodes: npt.ArrayLike,
        ports: npt.ArrayLike,
        is_target: npt.ArrayLike,
        times: TimesLike,
        diffs: npt.ArrayLike,
    ) -> None:
        """Change many counts; they take effect with `propagate_all`.

        Parameters
        ----------
        nodes, ports, is_target : array-like, shape (n,)
            Where; single values stand for all rows.
        times : array-like of integers, shape (n, k)
        diffs : array-like of integers, shape (n,)
            A single value stands for all rows.

        Raises
        ------
        InvalidUsageError
            If there is no such port; nothing was entered.
        InvalidShapeError
            If shapes or types do not fit.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_many([1, 1], 0, [True, False], [5, 3], 1)
        >>> tracker.propagate_all()
        >>> tracker.implications(Target(1, 0)), tracker.implications(Source(1, 0))
        (Antichain.of(5), Antichain.of(3))
        """
        rows = self._moved(as_times(times, self._arity))
        n = rows.shape[0]
        node = np.broadcast_to(np.asarray(nodes, np.int64), n)
        port = np.broadcast_to(np.asarray(ports, np.int64), n)
        side = np.broadcast_to(np.asarray(is_target, np.bool_), n)
        known = (node >= 0) & (node < self._shape.inputs.shape[0]) & (port >= 0)
        within = np.where(known, node, 0)
        known &= port < np.where(side, self._shape.inputs[within], self._shape.outputs[within])
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            raise _unknown(Location(int(node[row]), int(port[row]), bool(side[row])))
        changes = as_diffs(np.broadcast_to(np.asarray(diffs), n), n)
        at = np.where(side, self._shape.targets[node], self._shape.sources[node]) + port
        self._ats.frombytes(at.astype(np.int64).tobytes())
        self._times.frombytes(rows.tobytes())
        self._diffs.frombytes(changes.tobytes())

    def initialize(self, time: int | Sequence[int], *, count: int = 1) -> None:
        """Enter capabilities at one time at every source of every node but 0, `count` at each.

        With the number of peers as count: what a graph starts with before any operator has spoken.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.initialize(0, count=2)
        >>> tracker.propagate_all()
        >>> tracker.counts(Source(1, 0))
        [((0,), 2)]
        """
        outputs = self._shape.outputs[1:]
        n = int(outputs.sum())
        at = np.arange(n) + np.repeat(self._shape.sources[1:] - (np.cumsum(outputs) - outputs), outputs)
        row = self._moved(as_times([_row(time)], self._arity))
        self._ats.frombytes(at.astype(np.int64).tobytes())
        self._times.frombytes(np.repeat(row, n, axis=0).tobytes())
        self._diffs.frombytes(np.full(n, count, np.int64).tobytes())

    def propagate_all(self) -> None:
        """Let all changes entered take effect: bring every implied frontier up to date.

        Notes
        -----
        Cost: O(changes entered + frontier changes × edges that they pass), whatever the size of the graph.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.implications(Source(1, 0))
        Antichain.empty(1)
        >>> tracker.propagate_all()
        >>> tracker.implications(Source(1, 0))
        Antichain.of(5)
        """
        if not self._ats:
            return
        at: Wide = np.frombuffer(self._ats, dtype=np.int64)
        times: Wide = np.frombuffer(self._times, dtype=np.int64)
        diffs: Wide = np.frombuffer(self._diffs, dtype=np.int64)
        self._ats, self._times, self._diffs = array("q"), array("q"), array("q")
        positions: Index = self._graph.positions[at]
        moves = self._state.propagate(positions, times, diffs, self._shape.n_ports)
        if moves.diffs.shape[0]:
            self._moves.append(moves)
            if len(self._moves) > _UNREAD:
                self._moves = [_summed(self._moves)]
        outputs = int(self._shape.inputs[0])
        if self._inner is not None:
            inside = at >= outputs + self._shape.outputs[0]
            times = times.reshape(-1, self._arity)[inside].ravel()
            moves = self._inner.propagate(positions[inside], times, diffs[inside], outputs)
            if moves.diffs.shape[0]:
                self._outward.append(moves)
                if len(self._outward) > _UNREAD:
                    self._outward = [_summed(self._outward)]

    def pushed(self) -> Changes:
        """Return how the implied frontiers moved since the last call, at all ports; the net moves only.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.pushed().nodes.tolist(), tracker.pushed().nodes.tolist()
        ([1, 1], [])
        """
        moves, self._moves = self._moves, []
        return self._changes(moves)

    def drain_pushed(self) -> list[tuple[Location, tuple[int, ...], int]]:
        """Return what `pushed` does as plain values: location, time, diff.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_source(Source(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.drain_pushed()
        [(Location(node=1, port=0, is_target=False), (5,), 1)]
        """
        return self.pushed().rows() if self._moves else []

    def pushed_output(self) -> Changes:
        """Return how the frontiers at the graph's outputs moved since the last call, without the outside's part.

        They are implied by the pointstamps inside the graph alone, not by those at node 0: the capabilities of
        the outside, at its sources, and messages that have left. So a graph never takes these for its own.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(0, 1, 1)
        >>> builder.add_node(1, 1, 1, sources=[(0, 0)])
        >>> builder.add_edge(Source(1, 0), Target(0, 0))
        >>> tracker, _ = builder.build()
        >>> tracker.update_source(Source(0, 0), 3, 1)
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.implications(Target(0, 0)), tracker.pushed_output().times.tolist()
        (Antichain.of(3), [[5]])
        """
        moves, self._outward = self._outward, []
        return self._changes(moves)

    def drain_output(self) -> list[tuple[int, tuple[int, ...], int]]:
        """Return what `pushed_output` does as plain values: output, time, diff.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(0, 1, 1)
        >>> builder.add_node(1, 1, 1, sources=[(0, 0)])
        >>> builder.add_edge(Source(1, 0), Target(0, 0))
        >>> tracker, _ = builder.build()
        >>> tracker.update_source(Source(0, 0), 3, 1)
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.drain_output()
        [(0, (5,), 1)]
        """
        return [(place.port, time, diff) for place, time, diff in self.pushed_output().rows()] if self._outward else []

    def _changes(self, moves: list[Moves]) -> Changes:
        ports, times, diffs = moves[0] if len(moves) == 1 else _summed(moves) if moves else _no_moves(self._arity)
        nodes, numbers, is_target = self._shape.locations(ports)
        return Changes(nodes, numbers, is_target, self._moved_back(times), diffs)

    def implications(self, location: Location | Source | Target) -> Antichain:
        """Return the frontier implied at a port: no time that is not beyond it can appear there any more.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.implications(Source(1, 0))
        Antichain.of(5)
        """
        return self._antichain(self._state.implications(self._position(location)))

    def pointstamps(self, location: Location | Source | Target) -> Antichain:
        """Return the frontier of the pointstamps at a port: of what is held there itself.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.pointstamps(Source(1, 0))
        Antichain.empty(1)
        """
        return self._antichain(self._state.pointstamps(self._position(location)))

    def counts(self, location: Location | Source | Target) -> list[tuple[tuple[int, ...], int]]:
        """Return the pointstamps at a port with their counts, negative ones too. Cost: O(all times held anywhere).

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_target(Target(1, 0), 5, -1)
        >>> tracker.propagate_all()
        >>> tracker.counts(Target(1, 0)), tracker.tracking_anything()
        ([((5,), -1)], False)
        """
        found = self._state.counts(self._position(location))
        return [(tuple(x + self._half for x in time), count) for time, count in found]

    def tracking_anything(self) -> bool:
        """Tell whether any count of a pointstamp is positive.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.tracking_anything()
        False
        """
        return self._state.held > 0

    def holds_messages(self, node: int) -> bool:
        """Tell whether any count at a target of the node is positive: messages are on their way to it.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_target(Target(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.holds_messages(1), tracker.holds_capabilities(1)
        (True, False)
        """
        start = int(self._shape.targets[node])
        return self._holds(start, int(self._shape.inputs[node]))

    def holds_capabilities(self, node: int) -> bool:
        """Tell whether any count at a source of the node is positive: it may still produce something.

        Examples
        --------
        >>> from spark_timely.progress.reachability import Builder
        >>> builder = Builder()
        >>> builder.add_node(1, 1, 1)
        >>> tracker, _ = builder.build()
        >>> tracker.update_source(Source(1, 0), 5, 1)
        >>> tracker.propagate_all()
        >>> tracker.holds_messages(1), tracker.holds_capabilities(1)
        (False, True)
        """
        start = int(self._shape.sources[node])
        return self._holds(start, int(self._shape.outputs[node]))

    def _holds(self, start: int, ports: int) -> bool:
        return self._state.holds(self._graph.positions[start : start + ports])

    def _update(self, number: int, time: int | Sequence[int], diff: int) -> None:
        half, times = self._half, self._times
        try:
            row: Sequence[int] = (time,) if isinstance(time, int | np.integer) else time
            for coordinate in row:
                times.append(index(coordinate) - half)
            fits = len(row) == self._arity
        except (OverflowError, TypeError, ValueError):
            fits = False
        if not fits:
            del times[len(self._ats) * self._arity :]
            msg = f"could not update a pointstamp: found time={time!r}, arity={self._arity}"
            raise InvalidShapeError(
                msg, hint="times are whole numbers within the type of the graph, one per coordinate"
            )
        self._ats.append(number)
        self._diffs.append(int(diff))

    def _number(self, node: int, port: int, *, is_target: bool) -> int:
        """Return the port number."""
        shape = self._shape
        counts, starts = (shape.inputs, shape.targets) if is_target else (shape.outputs, shape.sources)
        if not (0 <= node < counts.shape[0] and 0 <= port < counts[node]):
            raise _unknown(Location(node, port, is_target))
        return int(starts[node]) + port

    def _position(self, location: Location | Source | Target) -> int:
        if isinstance(location, Location):
            number = self._number(location.node, location.port, is_target=location.is_target)
        else:
            number = self._number(location.node, location.port, is_target=isinstance(location, Target))
        return int(self._graph.positions[number])

    def _moved(self, rows: IntArray) -> Wide:
        """Move times to int64."""
        if not self._half:
            if rows.dtype == np.uint64 and rows.size and int(np.max(rows)) >= _HALF:
                msg = "could not update pointstamps: found a time of 2**63 or more in a graph of int64 times"
                raise InvalidShapeError(msg, hint="build the graph with dtype='uint64'")
            return rows.astype(np.int64, copy=False)
        if rows.dtype != np.uint64 and rows.size and rows.min() < 0:
            msg = "could not update pointstamps: found a negative time in a graph of uint64 times"
            raise InvalidShapeError(msg, hint="build the graph with dtype='int64'")
        return (rows.astype(np.uint64, copy=False) ^ np.uint64(_HALF)).view(np.int64)

    def _moved_back(self, rows: Wide) -> IntArray:
        if not self._half:
            return rows
        return np.ascontiguousarray(rows).view(np.uint64) ^ np.uint64(_HALF)

    def _antichain(self, elements: list[tuple[int, ...]]) -> Antichain:
        if not elements:
            return Antichain.empty(self._arity)
        return Antichain.of(*(tuple(x + self._half for x in element) for element in elements))


def _row(time: int | Sequence[int]) -> tuple[int, ...]:
    return (int(time),) if isinstance(time, int | np.integer) else tuple(map(int, time))


def _no_moves(arity: int) -> Moves:
    return Moves(np.zeros(0, np.int32), np.zeros((0, arity), np.int64), np.zeros(0, np.int64))


def _summed(moves: list[Moves]) -> Moves:
    """Return the net of moves made one after the other."""
    keys = [np.column_stack([each.ports.astype(np.int64), each.times]) for each in moves]
    rows, diffs = consolidate_rows(np.concatenate(keys), np.concatenate([each.diffs for each in moves]))
    return Moves(rows[:, 0].astype(np.int32), rows[:, 1:].astype(np.int64), diffs)


def _unknown(location: Location) -> InvalidUsageError:
    return InvalidUsageError(
        f"could not update a pointstamp: found the location {location}, but the graph has no such port",
        hint="name a node and a port that were added before the graph was built",
        context={"location": location},
    )
