"""Which times can still appear where: a graph of operators, and the frontiers implied at all their ports.

A pointstamp is a time at a port that something is held at: a message waiting at a target, a capability at a
source. From each of them, paths through the graph lead to other ports, and what lies on a path does
something to the time (its path summary). The frontier *implied* at a port is the minimum, over all pointstamps
and all paths from them to the port, of what the paths make of the times. A `Builder` takes nodes and edges; the
`Tracker` that it builds takes changes of pointstamps and says how the implied frontiers move.

Invariants
----------
1. After `propagate_all` the implied frontier of every port is exactly that minimum: no path is left out, and
   none is counted whose summary leads past the greatest time.
2. What `pushed` returns, added to what the frontiers were when it was last called, gives what they are.
3. A graph is never built if a cycle in it does not advance times.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.progress.location import Location, Source, Target
from spark_timely.progress.reachability_graph import Arcs, Shape, Wide, arrange_graph
from spark_timely.progress.reachability_scope import PortSummaries, internal_arcs, scope_summaries
from spark_timely.progress.reachability_tracker import Changes, Tracker
from spark_timely.time.order import minimal_elements

__all__ = ["Builder", "Changes", "PortSummaries", "Tracker"]

# What one step of a path summary may be given as: a whole number (k = 1), or k of them.
Steps: TypeAlias = "int | Sequence[int]"
# For one input: per output, or by output, the minimal path summaries.
FromInput: TypeAlias = "Sequence[Iterable[Steps]] | Mapping[int, Iterable[Steps]]"


class Builder:
    """Collects nodes and edges, and builds the tracker of the graph.

    Parameters
    ----------
    arity : int
        Number k of coordinates of each time.
    dtype : {"int64", "uint64"}
        Type of the coordinates: it says where a sum overflows.

    Notes
    -----
    Node 0 is the outside: its sources are the graph's inputs, its targets the graph's outputs, and nothing
    flows through it. It need not be added if it has no ports.
    Cost: a call is O(1) in the common case (a summary that is not given, one edge per input).
    Source: timely `progress/reachability.rs`, `Builder`.

    Examples
    --------
    A loop: node 1 joins what comes in with what comes back, node 2 adds 1 to the time on the way back.

    >>> builder = Builder()
    >>> builder.add_node(0, 0, 1)
    >>> builder.add_node(1, 2, 1)
    >>> builder.add_node(2, 1, 1, [[[(1,)]]])
    >>> builder.add_edge(Source(0, 0), Target(1, 0))
    >>> builder.add_edge(Source(1, 0), Target(2, 0))
    >>> builder.add_edge(Source(2, 0), Target(1, 1))
    >>> tracker, scope_summary = builder.build()
    >>> tracker.update_source(Source(0, 0), 5, 1)
    >>> tracker.propagate_all()
    >>> tracker.implications(Target(2, 0)), tracker.implications(Target(1, 1))
    (Antichain.of(5), Antichain.of(6))
    """

    __slots__ = ("_arcs", "_arity", "_edges", "_nodes", "_steps", "_summed", "_unsigned")

    def __init__(self, arity: int = 1, *, dtype: Literal["int64", "uint64"] = "int64") -> None:
        if dtype not in ("int64", "uint64"):
            msg = f"could not start a graph: found dtype={dtype!r}"
            raise InvalidUsageError(msg, hint="use 'int64' or 'uint64'")
        self._arity = arity
        self._unsigned = dtype == "uint64"
        # Flat lists: nothing is as cheap to add to.
        self._nodes: list[int] = []  # index, inputs, outputs
        self._edges: list[int] = []  # node and port of a source, node and port of a target
        self._arcs: list[int] = []  # inside nodes with a summary: node, input, output, row of the table of steps
        self._summed: set[int] = set()  # nodes with a summary
        self._steps: dict[tuple[int, ...], int] = {(0,) * arity: 0}

    def add_node(
        self,
        index: int,
        inputs: int,
        outputs: int,
        summary: Sequence[FromInput] | None = None,
        sources: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add a node, and on request the edges that lead to its inputs.

        Parameters
        ----------
        index : int
            Nodes may come in any order, each once; in the end they are 0…n-1.
        inputs, outputs : int
            Numbers of ports.
        summary : sequence, optional
            For each input what paths through the node do to times: per output, or as a mapping from outputs
            (no path to the others), the path summaries, each a tuple of k steps (for k = 1 also a number).
            None: a time may come out as it came in, from any input at any output; node 0: nothing flows.
        sources : sequence of Source or (node, port), optional
            Where the edge to each input, from input 0 on, comes from: the same as `add_edge` for each.

        Raises
        ------
        InvalidShapeError
            If `summary` does not fit the numbers of ports, or a step the arity.
        InvalidUsageError
            If a step is negative: no path leads back in time.

        Examples
        --------
        >>> builder = Builder()
        >>> builder.add_node(1, 0, 1)
        >>> builder.add_node(2, 1, 1, sources=[(1, 0)])
        >>> builder.build()[0].n_locations
        3
        """
        self._nodes += (index, inputs, outputs)
        if summary is not None:
            self._add_summary(index, inputs, outputs, summary)
        port = 0
        for node, output in sources:
            self._edges += (node, output, index, port)
            port += 1  # noqa: SIM113 - counting is cheaper

    def add_edge(self, source: Source | tuple[int, int], target: Target | tuple[int, int]) -> None:
        """Add an edge: what the source produces is to be expected at the target.

        Nodes may be added later. Several edges may leave a source, and several lead to a target.

        Examples
        --------
        >>> Builder().add_edge(Source(1, 0), Target(2, 0))
        """
        node, port = source
        target_node, target_port = target
        self._edges += (node, port, target_node, target_port)

    def add_nodes(self, indexes: npt.ArrayLike, inputs: npt.ArrayLike, outputs: npt.ArrayLike) -> None:
        """Add many nodes without a summary of their own; see `add_node`.

        Examples
        --------
        >>> builder = Builder()
        >>> builder.add_nodes([1, 2, 3], 1, 1)
        """
        columns = np.broadcast_arrays(np.asarray(indexes, dtype=np.int64), inputs, outputs)
        self._nodes += np.stack(columns, axis=1).astype(np.int64).ravel().tolist()

    def add_edges(self, edges: npt.ArrayLike) -> None:
        """Add many edges: an array of rows of source node, source port, target node, target port.

        Examples
        --------
        >>> Builder().add_edges([[1, 0, 2, 0], [2, 0, 3, 0]])
        """
        rows = np.asarray(edges, dtype=np.int64)
        if rows.size and (rows.ndim != 2 or rows.shape[1] != 4):
            msg = f"could not add edges: found shape={rows.shape!r}"
            raise InvalidShapeError(msg, hint="give rows of source node, source port, target node, target port")
        self._edges += rows.ravel().tolist()

    def build(self) -> tuple[Tracker, list[PortSummaries]]:
        """Build the tracker.

        Returns
        -------
        tracker : Tracker
            Without any pointstamp.
        scope_summary : list of PortSummaries
            For each input of the graph (source of node 0), by output (target of node 0) the antichain of
            what paths from the one to the other do to times. In the form that `add_node` takes.

        Raises
        ------
        CyclicSummaryError
            If a cycle does not advance times; it is named.
        InvalidUsageError
            If a node is missing or given twice, or an edge ends at a port that is not there.

        Notes
        -----
        Cost: O(nodes + ports + edges + summaries given). The scope summary comes on top where the graph has
        both inputs and outputs.

        Examples
        --------
        >>> builder = Builder()
        >>> builder.add_node(0, 1, 1)
        >>> builder.add_node(1, 1, 1, [[[2]]], sources=[(0, 0)])
        >>> builder.add_edge(Source(1, 0), Target(0, 0))
        >>> builder.build()[1]
        [{0: Antichain.of(2)}]
        """
        shape = self._shape()
        arcs = self._all_arcs(shape)

        def named(vertex: int) -> Location | None:
            return shape.location(vertex) if vertex < shape.n_ports else None

        graph = arrange_graph(arcs, self._arity, named)
        hi = (1 << 64) - 1 if self._unsigned else (1 << 63) - 1
        inner, summary = scope_summaries(graph, shape, hi)
        return Tracker(graph, shape, unsigned=self._unsigned, inner=inner), summary

    def _add_summary(self, index: int, inputs: int, outputs: int, summary: Sequence[FromInput]) -> None:
        if len(summary) != inputs:
            msg = f"could not add node {index}: found a summary of {len(summary)} inputs, inputs={inputs}"
            raise InvalidShapeError(msg, hint="give one entry per input, and in it one per output")
        for number, of_input in enumerate(summary):
            pairs: Iterable[tuple[int, Iterable[Steps]]]
            if isinstance(of_input, list | tuple) or not isinstance(of_input, Mapping):
                pairs, fits = enumerate(of_input), len(of_input) == outputs
            else:
                pairs, fits = of_input.items(), all(0 <= output < outputs for output in of_input)
            if not fits:
                msg = (
                    f"could not add node {index}: found a summary that does not fit, input={number}, outputs={outputs}"
                )
                raise InvalidShapeError(msg, hint="give one entry per output, or a mapping from outputs that are there")
            for output, paths in pairs:
                rows = [self._step(index, path) for path in paths]
                if rows and not index:
                    msg = f"could not add node 0: found a path through it, from input {number} to output {output}"
                    raise InvalidUsageError(msg, hint="node 0 is the outside: nothing flows through it")
                for row in minimal_elements(rows) if len(rows) > 1 else rows:
                    self._arcs += (index, number, output, self._steps.setdefault(row, len(self._steps)))
        self._summed.add(index)

    def _step(self, index: int, path: Steps) -> tuple[int, ...]:
        row = (int(path),) if isinstance(path, int | np.integer) else tuple(map(int, path))
        if len(row) != self._arity:
            msg = f"could not add node {index}: found the path summary {row!r} for times of arity={self._arity}"
            raise InvalidShapeError(msg, hint="a path summary has one step per coordinate of the time")
        if min(row, default=0) < 0 or max(row, default=0) >= 1 << (64 if self._unsigned else 63):
            msg = f"could not add node {index}: found the path summary {row!r}"
            raise InvalidUsageError(
                msg, hint="steps are at least 0, and within the type of the time: no path leads back"
            )
        return row

    def _shape(self) -> Shape:
        """Check the nodes, and number the ports."""
        nodes = _numbers(self._nodes, 3)
        indexes = nodes[:, 0]
        outside = indexes.size == 0 or 0 not in indexes[:1]
        if indexes.size and outside:
            outside = not (indexes == 0).any()
        n = indexes.shape[0] + (1 if outside else 0)
        if (nodes < 0).any():
            row = nodes[(nodes < 0).any(axis=1)][0].tolist()
            msg = f"could not build the graph: found a node with index={row[0]}, inputs={row[1]}, outputs={row[2]}"
            raise InvalidUsageError(msg, hint="indexes and numbers of ports are at least 0")
        if (indexes.size and int(indexes.max()) >= n) or np.bincount(indexes, minlength=n).max(initial=0) > 1:
            raise _not_in_sequence(indexes, n)
        inputs, outputs = np.zeros(n, np.int64), np.zeros(n, np.int64)
        inputs[indexes] = nodes[:, 1]
        outputs[indexes] = nodes[:, 2]
        return Shape.of(inputs, outputs)

    def _all_arcs(self, shape: Shape) -> Arcs:
        edges = _numbers(self._edges, 4)
        sources, targets = edges[:, :2], edges[:, 2:]
        _check_ports(sources, shape.outputs, edges)
        _check_ports(targets, shape.inputs, edges)
        tails = shape.sources[sources[:, 0]] + sources[:, 1]
        heads = shape.targets[targets[:, 0]] + targets[:, 1]
        given = _numbers(self._arcs, 4)
        return internal_arcs(shape, self._summed, given, list(self._steps), tails, heads)


def _numbers(flat: list[int], width: int) -> Wide:
    """Return rows of so many whole numbers."""
    try:
        numbers: Wide = np.frombuffer(array("q", flat), dtype=np.int64)
    except (TypeError, OverflowError) as error:
        msg = "could not build the graph: found nodes or ports that are not numbered by whole numbers"
        raise InvalidUsageError(msg, hint="give each node the next number; 0 is the outside") from error
    return numbers.reshape(-1, width)


def _check_ports(ports: Wide, counts: Wide, edges: Wide) -> None:
    nodes, numbers = ports[:, 0], ports[:, 1]
    if not nodes.size:
        return
    if nodes.min() >= 0 and nodes.max() < counts.shape[0] and numbers.min() >= 0 and (numbers < counts[nodes]).all():
        return
    good = (nodes >= 0) & (nodes < counts.shape[0]) & (numbers >= 0)
    good[good] = numbers[good] < counts[nodes[good]]
    row = edges[~good][0].tolist()
    source, target = Source(*row[:2]).location, Target(*row[2:]).location
    msg = f"could not build the graph: found the edge {source} → {target}, but no such port"
    raise InvalidUsageError(msg, hint="add the node, or give it more ports")


def _not_in_sequence(indexes: Wide, n: int) -> InvalidUsageError:
    numbers, counts = np.unique(indexes, return_counts=True)
    twice = numbers[counts > 1].tolist()
    missing = sorted(set(range(1, n)) - set(numbers.tolist()))[:8]
    found = f"twice={twice[:8]}, missing={missing}"
    return InvalidUsageError(
        f"could not build the graph: found nodes that are not numbered 0…n-1 once each, {found}",
        hint="give each node the next number; 0 is the outside",
    )
