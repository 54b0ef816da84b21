"""The reachability tracker: from pointstamps in a graph of operators it computes the frontiers at all ports.

`dataflow.engine.tracking` asks it up to which times each output of a dataflow can be computed, and each scope
(`subgraph`) asks it for the frontiers of its operators. Its inner loops are `reachability_loops`: this module builds
the graph and translates ports for them.

A pointstamp is a port and a time: a message waits there at a target (an input port), or a capability is held there at a
source (an output port). Paths lead from it to other ports, and the operators on a path change the time (its *path
summary*; one that adds 1 makes 4 of 3). The frontier *implied* at a port is the antichain of the least times that any
pointstamp becomes along any path to the port. A `Builder` takes nodes and edges; the `Tracker` that it builds takes
changes of pointstamps and says how the implied frontiers move.

Ports are named by node, number and side. The loops have ports as vertices, in an order of work, and path summaries as
arcs. `scope_summaries` says what paths through the whole graph do to times.

Invariants
----------
1. After `propagate_all` the implied frontier of every port is exactly that antichain: no path is left out, and
   none is counted whose summary leads past the greatest time.
2. What `pushed` returns, added to what the frontiers were when it was last called, gives what they are.
3. A graph is never built if a cycle in it does not advance times.
4. Ports are numbered node by node, a node's targets before its sources: the *port number*. A vertex is a
   port or an *aid*, which is no port and saves arcs; its *position* is its place in the order of work, see
   `reachability_loops`.
5. A *step* is what a path adds to a time. One aid is between all targets and all sources of a node whose every input
   leads to every output without a step, where inputs + outputs arcs are fewer than inputs × outputs. A tree of aids is
   before a vertex to which many arcs lead, so that the work for one arc that moves is logarithmic in their number.
6. A step of unsigned times may be 2**63 or more. The greatest number that it can be added to is within int64 all the
   same, and so is the sum then: compiled loops add the step modulo 2**64.
7. Times are worked on as int64: unsigned ones moved down by 2**63, which keeps their order and whether a
   sum overflows.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from operator import index
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from spark_timely.errors import CyclicSummaryError, InvalidShapeError, InvalidUsageError
from spark_timely.progress import reachability_loops as loops
from spark_timely.progress.reachability_loops import Held, Ints, Links, Loops, loops_for
from spark_timely.time.antichain import (
    Antichain,
    BoolArray,
    DiffArray,
    IntArray,
    Time,
    consolidate_rows,
    minimal_elements,
)

__all__ = ["Builder", "Changes", "Location", "PortSummaries", "Source", "Target", "Tracker"]


class Source(NamedTuple):
    """An output port: messages leave a node here, and capabilities are held here.

    Node 0 is the outside of the graph: its sources are the graph's inputs.

    Examples
    --------
    >>> Source(node=3, port=0).location
    Location(node=3, port=0, is_target=False)
    """

    node: int
    port: int

    @property
    def location(self) -> Location:
        """The same place as a `Location`."""
        return Location(self.node, self.port, is_target=False)


class Target(NamedTuple):
    """An input port: messages wait here until their node consumes them.

    Node 0 is the outside of the graph: its targets are the graph's outputs.

    Examples
    --------
    >>> Target(node=3, port=0).location
    Location(node=3, port=0, is_target=True)
    """

    node: int
    port: int

    @property
    def location(self) -> Location:
        """The same place as a `Location`."""
        return Location(self.node, self.port, is_target=True)


class Location(NamedTuple):
    """A port of either side.

    Locations of one node sort with its sources before its targets; nothing depends on it.

    Examples
    --------
    >>> str(Location(node=3, port=0, is_target=True))
    'target (3, 0)'
    """

    node: int
    port: int
    is_target: bool

    def __str__(self) -> str:
        """Return side, node and port, as messages show them."""
        return f"{'target' if self.is_target else 'source'} ({self.node}, {self.port})"


Index: TypeAlias = npt.NDArray[np.int32]
Wide: TypeAlias = npt.NDArray[np.int64]

# Ports of a cycle that a message shows at either end.
_SHOWN = 6
# With more arcs to it than this, a vertex gets aids before it.
_FAN = 32
# For fewer ports than one in this number, nodes are looked up, else counted off.
_SPARSE = 8
_HALF = 1 << 63
_HI = _HALF - 1

# With no more inputs than this, and more outputs, paths are followed from the inputs.
_FEW_INPUTS = 8

# By input or output of the graph: the minimal path summaries.
_Label: TypeAlias = dict[int, list[tuple[int, ...]]]


class Shape(NamedTuple):
    """The ports of all nodes, by node."""

    inputs: Wide
    outputs: Wide
    targets: Wide  # port number of each node's first target
    sources: Wide  # port number of each node's first source
    n_ports: int

    @classmethod
    def of(cls, inputs: Wide, outputs: Wide) -> Shape:
        """Return the shape of nodes with these numbers of inputs and outputs."""
        ends = (inputs + outputs).cumsum()
        sources = ends - outputs
        return cls(inputs, outputs, sources - inputs, sources, int(ends[-1]))

    def locations(self, numbers: Wide | Index) -> tuple[Wide, Wide, BoolArray]:
        """Return node, port and side of port numbers."""
        if numbers.shape[0] * _SPARSE < self.n_ports:
            nodes = (np.searchsorted(self.targets, numbers, side="right") - 1).astype(np.int64, copy=False)
        else:
            nodes = np.repeat(np.arange(self.inputs.shape[0]), self.inputs + self.outputs)[numbers]
        is_target = numbers < self.sources[nodes]
        ports: Wide = numbers.astype(np.int64) - np.where(is_target, self.targets[nodes], self.sources[nodes])
        return nodes, ports, is_target


class Arcs(NamedTuple):
    """Arcs between vertices 0…n-1: from vertex, to vertex, row of the table of steps."""

    n: int
    tails: Wide
    heads: Wide
    steps: Wide
    table: npt.NDArray[np.uint64]  # steps, row by row; row 0 holds zeros

    def only(self, keep: BoolArray) -> Arcs:
        """Return the arcs that are kept, of the same vertices."""
        return self._replace(tails=self.tails[keep], heads=self.heads[keep], steps=self.steps[keep])


@dataclass(frozen=True, slots=True)
class Graph:
    """An arranged graph."""

    loops: Loops
    arity: int
    arcs: Arcs  # between positions
    ends: Wide  # by position: end of its component, 0 for one that is a component alone
    positions: Index  # by vertex
    vertices: Index  # by position

    def links(self, arcs: Arcs) -> Links:
        """Return some of the arcs as the loops take them."""
        into, in_first = by_end(arcs.heads, arcs.n)
        out, out_first = by_end(arcs.tails, arcs.n)
        narrow = (in_first, arcs.tails[into], arcs.steps[into], out_first, arcs.heads[out], self.ends)
        compiled = self.loops.compiled
        # Steps of unsigned times may leave int64 (invariant 6).
        steps = arcs.table.ravel()
        limits = (np.uint64(_HI) - steps).view(np.int64)
        taken = steps.view(np.int64) if compiled else steps.tolist()
        links = (working(numbers, compiled=compiled, dtype=np.int32) for numbers in narrow)
        return Links(cast("Ints", taken), working(limits, compiled=compiled), *links)


def working(numbers: IntArray, *, compiled: bool, dtype: type[np.int32 | np.int64] | None = None) -> Ints:
    """Return an array as the loops work on it."""
    return cast("Ints", np.ascontiguousarray(numbers, dtype)) if compiled else numbers.tolist()


def filled(size: int, value: int, *, compiled: bool, dtype: type[np.int32 | np.int64] = np.int64) -> Ints:
    """Return as many times the same number as the loops work on it."""
    return cast("Ints", np.full(size, value, dtype)) if compiled else [value] * size


def by_end(ends: Wide, n: int) -> tuple[Wide, Wide]:
    """Return the order of arcs by one of their ends, and where those of each vertex begin: n + 1 numbers."""
    first = np.zeros(n + 1, np.int64)
    np.bincount(ends, minlength=n).cumsum(out=first[1:])
    return ends.argsort(kind="stable"), first


def internal_arcs(
    shape: Shape, summed: Collection[int], given: Wide, steps: list[tuple[int, ...]], tails: Wide, heads: Wide
) -> Arcs:
    """Put edges and the arcs inside of nodes together.

    `summed` are the nodes whose arcs are `given` (node, input, output, row of `steps`); inside all others
    but node 0 every input leads to every output without a step.
    """
    pairs = shape.inputs * shape.outputs
    pairs[[0, *summed]] = 0
    hubs = np.flatnonzero(pairs > shape.inputs + shape.outputs)
    ins, outs, aids = shape.inputs[hubs], shape.outputs[hubs], shape.n_ports + np.arange(hubs.shape[0])
    pairs[hubs] = 0
    which, outputs = _runs(np.zeros_like(pairs), pairs), shape.outputs.repeat(pairs)
    all_tails = (
        tails,
        shape.targets.repeat(pairs) + which // outputs,
        _runs(shape.targets[hubs], ins),
        aids.repeat(outs),
        shape.targets[given[:, 0]] + given[:, 1],
    )
    all_heads = (
        heads,
        shape.sources.repeat(pairs) + which % outputs,
        aids.repeat(ins),
        _runs(shape.sources[hubs], outs),
        shape.sources[given[:, 0]] + given[:, 2],
    )
    rows = np.zeros(sum(map(len, all_tails)), np.int64)
    rows[rows.shape[0] - given.shape[0] :] = given[:, 3]
    table = np.array(steps, np.uint64).reshape(len(steps), -1)
    return Arcs(shape.n_ports + hubs.shape[0], np.concatenate(all_tails), np.concatenate(all_heads), rows, table)


def _runs(firsts: Wide, lengths: Wide) -> Wide:
    """Return the numbers of runs of that many, one run behind the other."""
    numbers: Wide = np.arange(int(lengths.sum())) + (firsts - lengths.cumsum() + lengths).repeat(lengths)
    return numbers


def _narrowed(arcs: Arcs) -> Arcs:
    """Put aids before vertices with many arcs to them, in a tree."""
    while arcs.heads.shape[0] > _FAN and (counts := np.bincount(arcs.heads, minlength=arcs.n)).max() > _FAN:
        wide = np.flatnonzero((counts > _FAN)[arcs.heads])
        wide = wide[np.argsort(arcs.heads[wide], kind="stable")]
        heads = arcs.heads[wide]
        begins = np.flatnonzero(np.diff(heads, prepend=-1))
        rank = np.arange(heads.shape[0]) - np.repeat(begins, np.diff(begins, append=heads.shape[0]))
        # A new aid begins with each head, and after every `_FAN` of its arcs.
        begin = rank % _FAN == 0
        aids = np.arange(arcs.n, arcs.n + int(begin.sum()))
        narrow = arcs.heads.copy()
        narrow[wide] = arcs.n - 1 + np.cumsum(begin)
        arcs = Arcs(
            arcs.n + aids.shape[0],
            np.concatenate([arcs.tails, aids]),
            np.concatenate([narrow, heads[begin]]),
            np.concatenate([arcs.steps, np.zeros_like(aids)]),
            arcs.table,
        )
    return arcs


def arrange(arcs: Arcs, shape: Shape) -> Graph:
    """Order the vertices so that work is done once per vertex, or component, and change.

    Raises
    ------
    CyclicSummaryError
        If a cycle does not advance times: all its steps are zero.
    """
    arcs = _narrowed(arcs)
    loops, n = loops_for(arcs.n), arcs.n
    order, ends = np.arange(n), np.zeros(n, np.int64)
    if not (arcs.tails < arcs.heads).all():  # else they are in order, as most graphs are given
        which = _components(arcs, loops)
        sizes = np.bincount(which, minlength=1)
        ends = np.repeat(np.where(sizes > 1, np.cumsum(sizes), 0), sizes)
        order = np.argsort(which, kind="stable")
        if ends.any():
            free = arcs.only(~np.asarray(arcs.table.any(axis=1))[arcs.steps] & (which[arcs.tails] == which[arcs.heads]))
            rank = _components(free, loops)
            stuck: BoolArray = np.greater(np.bincount(rank)[rank], 1)
            if stuck.any():
                raise _cycle(free.only(stuck[free.heads] & (rank[free.heads] == rank[free.tails])), shape)
            order = np.lexsort((rank, which))
    positions = np.empty(n, np.int64)
    positions[order] = np.arange(n)
    placed = arcs._replace(tails=positions[arcs.tails], heads=positions[arcs.heads])
    return Graph(loops, arcs.table.shape[1], placed, ends, positions.astype(np.int32), order.astype(np.int32))


def _components(arcs: Arcs, loops: Loops) -> Wide:
    """Return the strongly connected component of each vertex; arcs lead to equal or higher numbers."""
    (out, out_first), (into, in_first) = by_end(arcs.tails, arcs.n), by_end(arcs.heads, arcs.n)
    which = filled(arcs.n, -1, compiled=loops.compiled)
    each = (out_first, arcs.heads[out], in_first, arcs.tails[into], np.zeros(3 * arcs.n, np.int64))
    loops.run.components(arcs.n, *(working(numbers, compiled=loops.compiled) for numbers in each), which)
    return np.asarray(which)


def _cycle(arcs: Arcs, shape: Shape) -> CyclicSummaryError:
    """Return the error that names a cycle of arcs, of which one leads to each vertex that one leaves."""
    # Going back along them must meet a vertex again.
    before = dict(zip(arcs.heads.tolist(), arcs.tails.tolist(), strict=True))
    path = [next(iter(before))]
    seen = {path[0]: 0}
    while (vertex := before[path[-1]]) not in seen:
        seen[vertex] = len(path)
        path.append(vertex)
    ports = np.array([v for v in reversed(path[seen[vertex] :]) if v < shape.n_ports])
    cycle = [Location(*place) for place in zip(*(each.tolist() for each in shape.locations(ports)), strict=True)]
    least = cycle.index(min(cycle))
    cycle = cycle[least:] + cycle[: least + 1]
    shown = [str(place) for place in cycle]
    if len(shown) > 2 * _SHOWN + 1:
        shown = [*shown[:_SHOWN], f"… {len(shown) - 2 * _SHOWN} more …", *shown[-_SHOWN:]]
    return CyclicSummaryError(
        "could not build the graph: found a cycle along which times do not advance, path=" + " → ".join(shown),
        hint="let an operator of the cycle add to the time, or take one of the edges out",
        path=tuple(cycle),
    )


class PortSummaries(dict[int, Antichain]):
    """By output: the antichain of path summaries that lead there; nothing for outputs that are not reached.

    Examples
    --------
    >>> summaries = PortSummaries({0: Antichain.of(2)})
    >>> summaries[0], summaries[1], len(summaries)
    (Antichain.of(2), (), 1)
    """

    def __missing__(self, output: int) -> tuple[()]:
        """Return the empty set of path summaries."""
        return ()


def scope_summaries(graph: Graph, shape: Shape, hi: int) -> tuple[Arcs | None, list[PortSummaries]]:
    """Return what paths from the graph's inputs to its outputs do to times, `hi` being the greatest summary.

    Also the arcs that lead to outputs, if there are any outputs.
    """
    inputs = graph.positions[shape.sources[0] + np.arange(shape.outputs[0])].tolist()
    outputs = graph.positions[shape.targets[0] + np.arange(shape.inputs[0])].tolist()
    found = [PortSummaries() for _ in inputs]
    if not outputs:
        return None, found
    arcs = graph.arcs
    leads = _reached(arcs._replace(tails=arcs.heads, heads=arcs.tails), outputs)
    inner = arcs.only(leads[arcs.heads])
    if not leads[inputs].any():
        return inner, found
    both = leads & _reached(arcs, inputs)
    arcs = arcs.only(both[arcs.heads] & both[arcs.tails])
    ends = np.where(graph.ends > 0, graph.ends, np.arange(1, arcs.n + 1)).tolist()

    @cache
    def antichain(paths: tuple[tuple[int, ...], ...]) -> Antichain:
        return Antichain(paths, graph.arity)

    if len(inputs) <= _FEW_INPUTS < len(outputs):
        labels = _labels(arcs, hi, ends, inputs, 1)
        for output, position in enumerate(outputs):
            for port, paths in labels.get(position, {}).items():
                found[port][output] = antichain(tuple(paths))
        return inner, found
    labels = _labels(arcs._replace(tails=arcs.heads, heads=arcs.tails), hi, ends, outputs, -1)
    # Inputs that see the same outputs alike share one answer.
    shared: dict[int, PortSummaries] = {}
    for port, position in enumerate(inputs):
        label = labels.get(position, {})
        if id(label) not in shared:
            shared[id(label)] = PortSummaries({output: antichain(tuple(label[output])) for output in sorted(label)})
        found[port] = shared[id(label)]
    return inner, found


def _reached(arcs: Arcs, starts: Iterable[int]) -> BoolArray:
    """Return which positions can be reached."""
    order, begins = by_end(arcs.tails, arcs.n)
    heads, first = arcs.heads[order].tolist(), begins.tolist()
    seen = bytearray(arcs.n)
    stack = list(starts)
    while stack:
        position = stack.pop()
        if not seen[position]:
            seen[position] = 1
            stack += heads[first[position] : first[position + 1]]
    return np.frombuffer(seen, dtype=np.bool_)


def _labels(arcs: Arcs, hi: int, ends: list[int], seeds: list[int], sign: int) -> dict[int, _Label]:
    """Return by position, for each seed from which a path leads there, the minimal summaries of such paths.

    Arcs lead to higher positions outside of components (`sign` 1), or to lower ones (-1); `ends` are those of the
    components. A position with one arc to it that has no step shares the label of where the arc comes from.
    """
    order, begins = by_end(arcs.tails, arcs.n)
    heads, steps, first = arcs.heads[order].tolist(), arcs.steps[order].tolist(), begins.tolist()
    table = [tuple(row) for row in arcs.table.tolist()]
    labels: dict[int, _Label] = {seed: {number: [(0,) * len(table[0])]} for number, seed in enumerate(seeds)}
    own, queued = set(seeds), set(seeds)
    # Component by component; inside one again and again, in the order of positions, until nothing changes.
    heap = sorted((sign * ends[seed], 0, sign * seed) for seed in seeds)
    while heap:
        end, sweep, at = heappop(heap)
        position = sign * at
        queued.discard(position)
        label = labels[position]
        for arc in range(first[position], first[position + 1]):
            head, step = heads[arc], table[steps[arc]]
            if head not in labels and not any(step):
                labels[head] = label
                own.discard(position)
            else:
                if head not in own:
                    labels[head] = dict(labels.get(head, {}))
                    own.add(head)
                if not _merge(labels[head], label, step, hi):
                    continue
            if head not in queued:
                queued.add(head)
                again = sweep + (sign * head < at) if sign * ends[head] == end else 0
                heappush(heap, (sign * ends[head], again, sign * head))
    return labels


def _merge(into: _Label, label: _Label, step: tuple[int, ...], hi: int) -> bool:
    """Add what one arc makes of a label to another; tell whether that changed it."""
    changed = False
    for number, paths in label.items():
        longer = [
            row for path in paths if max(row := tuple(x + y for x, y in zip(path, step, strict=True)), default=0) <= hi
        ]
        before = into.get(number)
        if not longer or longer == before:
            continue
        after = minimal_elements([*(before or ()), *longer])
        if after != before:
            into[number] = after
            changed = True
    return changed


# Room for this number of integers of frontiers to begin with, if times have more than one coordinate.
_ROOM = 256
# Moves that nobody reads are summed up after this number of propagations.
_UNREAD = 32
# Where at most one port in this number may have moved, those that may are asked for one by one.
_FEW_MOVED = 8

Paths: TypeAlias = Sequence[Iterable[int | Sequence[int]]] | Mapping[int, Iterable[int | Sequence[int]]]
"""What paths from one input do: for each output, or for those outputs that a path leads to, the steps of each path.

A path has a step for each coordinate; for one coordinate it may be a number.
"""


class Builder:
    """Collects nodes and edges, and builds the tracker of the graph.

    Parameters
    ----------
    arity : int
        Number k of coordinates of each time.
    dtype : {"int64", "uint64"}
        Type of the coordinates: it says where a sum overflows.
    name : str
        What errors call the graph.

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

    __slots__ = ("_arcs", "_arity", "_edges", "_name", "_nodes", "_steps", "_summed", "_unsigned")

    def __init__(self, arity: int = 1, *, dtype: Literal["int64", "uint64"] = "int64", name: str = "the graph") -> None:
        if dtype not in ("int64", "uint64"):
            msg = f"could not start a graph: found dtype={dtype!r}"
            raise InvalidUsageError(msg, hint="use 'int64' or 'uint64'")
        self._name = name
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
        summary: Sequence[Paths] | None = None,
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
            rows = read_summary(f"node {index}", inputs, outputs, summary, self._arity, unsigned=self._unsigned)
            self._summed.add(index)
            for number, by_output in enumerate(rows):
                for output, paths in by_output.items():
                    if paths and not index:
                        msg = f"could not add node 0: found a path through it, from input {number} to output {output}"
                        raise InvalidUsageError(msg, hint="take the path out: node 0 is the outside")
                    for row in minimal_elements(paths) if len(paths) > 1 else paths:
                        self._arcs += (index, number, output, self._steps.setdefault(row, len(self._steps)))
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
        graph = arrange(self._all_arcs(shape), shape)
        hi = (1 << 64) - 1 if self._unsigned else (1 << 63) - 1
        inner, summary = scope_summaries(graph, shape, hi)
        return Tracker(graph, shape, unsigned=self._unsigned, inner=inner), summary

    def _shape(self) -> Shape:
        """Check the nodes, and number the ports."""
        nodes = self._rows(self._nodes, 3)
        if (nodes < 0).any():
            row = nodes[(nodes < 0).any(axis=1)][0].tolist()
            found = f"found a node with index={row[0]}, inputs={row[1]}, outputs={row[2]}"
            raise self._refused(found, "give indexes and numbers of ports that are at least 0")
        order = np.sort(nodes[:, 0])
        n = order.shape[0] + (0 if order.size and order[0] == 0 else 1)
        if not np.array_equal(order, np.arange(n - order.shape[0], n)):
            twice = np.unique(order[1:][order[1:] == order[:-1]]).tolist()[:8]
            missing = sorted({*range(1, n)} - {*order.tolist()})[:8]
            found = f"found nodes that are not numbered 0…n-1 once each, {twice=}, {missing=}"
            raise self._refused(found, "give each node the next number; 0 is the outside")
        ports = np.zeros((n, 2), np.int64)
        ports[nodes[:, 0]] = nodes[:, 1:]
        return Shape.of(ports[:, 0], ports[:, 1])

    def _all_arcs(self, shape: Shape) -> Arcs:
        edges = self._rows(self._edges, 4)
        for ports, counts in ((edges[:, :2], shape.outputs), (edges[:, 2:], shape.inputs)):
            good: BoolArray = (ports[:, 0] >= 0) & (ports[:, 0] < counts.shape[0]) & (ports[:, 1] >= 0)
            good[good] = ports[good, 1] < counts[ports[good, 0]]
            if not good.all():
                row = edges[~good][0].tolist()
                found = f"found the edge {Source(*row[:2]).location} → {Target(*row[2:]).location}, but no such port"
                raise self._refused(found, "add the node, or give it more ports; node 0 is the outside")
        tails = shape.sources[edges[:, 0]] + edges[:, 1]
        heads = shape.targets[edges[:, 2]] + edges[:, 3]
        return internal_arcs(shape, self._summed, self._rows(self._arcs, 4), list(self._steps), tails, heads)

    def _rows(self, flat: list[int], width: int) -> Wide:
        """Return rows of `width` whole numbers."""
        try:
            return np.frombuffer(array("q", flat), dtype=np.int64).reshape(-1, width)
        except (TypeError, OverflowError) as error:
            found = "found nodes or ports that are not numbered by whole numbers"
            raise self._refused(found, "give each node the next number; 0 is the outside") from error

    def _refused(self, found: str, hint: str) -> InvalidUsageError:
        return InvalidUsageError(f"could not build {self._name}: {found}", hint=hint)


def read_summary(
    label: str, inputs: int, outputs: int, summary: Sequence[Paths], arity: int = 1, *, unsigned: bool = False
) -> list[dict[int, list[Time]]]:
    """Return by input and output the steps of each path through a node.

    Raises
    ------
    InvalidShapeError
        If it has not an entry for each input, or an output is not there, or a path has not `arity` steps.
    InvalidUsageError
        If a step is below 0, or past the type of the times.
    """
    found: list[dict[int, list[Time]]] = []
    for paths in summary:
        by_output = dict(paths if isinstance(paths, Mapping) else enumerate(paths))
        if (len(by_output) != outputs and not isinstance(paths, Mapping)) or not all(
            0 <= output < outputs for output in by_output
        ):
            msg = f"could not add {label}: found a summary that does not fit, input={len(found)}, outputs={outputs}"
            raise InvalidShapeError(msg, hint="give one entry per output, or a mapping from outputs that are there")
        rows = {
            output: [(int(path),) if isinstance(path, int | np.integer) else tuple(map(int, path)) for path in each]
            for output, each in by_output.items()
        }
        for row in (row for each in rows.values() for row in each):
            if len(row) != arity:
                msg = f"could not add {label}: found the path summary {row!r} for times of arity={arity}"
                raise InvalidShapeError(msg, hint="give a path summary one step per coordinate of the time")
            if min(row, default=0) < 0 or max(row, default=0) >= 1 << (64 if unsigned else 63):
                msg = f"could not add {label}: found the path summary {row!r}"
                raise InvalidUsageError(msg, hint="give steps of at least 0 within the type of the time")
        found.append(rows)
    if len(found) != inputs:
        msg = f"could not add {label}: found a summary of {len(found)} inputs, inputs={inputs}"
        raise InvalidShapeError(msg, hint="give one entry per input, and in it one per output")
    return found


class Changes(NamedTuple):
    """Changes of frontiers: one row per element that entered (+1) or left (-1) the frontier of a port.

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
    >>> for location, time, diff in tracker.pushed().rows():
    ...     print(location, time, diff)
    source (1, 0) (5,) 1
    target (2, 0) (5,) 1
    """

    nodes: Wide
    ports: Wide
    is_target: BoolArray
    times: IntArray
    diffs: DiffArray

    def rows(self) -> list[tuple[Location, Time, int]]:
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

    def __init__(self, graph: Graph, shape: Shape, *, unsigned: bool, inner: Arcs | None) -> None:
        self._graph, self._shape = graph, shape
        # By side, ports per node and number of the first one: views that are cheap to index.
        self._numbers = (shape.outputs.data, shape.sources.data), (shape.inputs.data, shape.targets.data)
        self._arity = graph.arity
        self._half = _HALF if unsigned else 0
        self._state = _Frontiers(graph, graph.arcs, shape.n_ports)
        # The same without what is at node 0, as far as it leads to the graph's outputs; if there are any.
        self._inner = None if inner is None else _Frontiers(graph, inner, int(shape.inputs[0]))
        # Changes entered: port numbers, times flat and moved to int64, diffs.
        self._ats, self._times, self._diffs = array("q"), array("q"), array("q")
        self._moves: list[_Moves] = []
        self._outward: list[_Moves] = []

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
        self._enter(node, port, time, diff, is_target=False)

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
        self._enter(node, port, time, diff, is_target=True)

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
        self._enter(location.node, location.port, time, diff, is_target=location.is_target)

    def _enter(self, node: int, port: int, time: int | Sequence[int], diff: int, *, is_target: bool) -> None:
        number, row = self._number(node, port, is_target=is_target), self._row(time)
        self._times.extend(row)
        self._ats.append(number)
        self._diffs.append(diff)

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
        shape, row = self._shape, self._row(time)
        first, n = int(shape.inputs[0] + shape.outputs[0]), int(shape.outputs[1:].sum())
        inputs = np.repeat(np.cumsum(shape.inputs[1:]), shape.outputs[1:])
        self._ats.frombytes((first + inputs + np.arange(n)).tobytes())
        self._times += row * n
        self._diffs += array("q", [count]) * n

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
        positions = self._graph.positions[at]
        _add(self._moves, self._state.propagate(positions, times, diffs))
        if self._inner is not None:
            inside = at >= self._shape.inputs[0] + self._shape.outputs[0]
            times = times.reshape(len(at), self._arity)[inside].ravel()
            _add(self._outward, self._inner.propagate(positions[inside], times, diffs[inside]))

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

    def drain_pushed(self) -> list[tuple[Location, Time, int]]:
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

    def drain_output(self) -> list[tuple[int, Time, int]]:
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

    def _changes(self, moves: list[_Moves]) -> Changes:
        rows, diffs = _summed(moves) if moves else (np.zeros((0, self._arity + 1), np.int64), np.zeros(0, np.int64))
        times: IntArray = rows[:, 1:]
        if self._half:
            times = times.astype(np.uint64) ^ np.uint64(_HALF)
        return Changes(*self._shape.locations(rows[:, 0]), times, diffs)

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
        found = self._state.counts(self._position(location))
        return self._antichain([time for time, count in found if count > 0])

    def counts(self, location: Location | Source | Target) -> list[tuple[Time, int]]:
        """Return the pointstamps at a port with their counts, negative ones too, in the order of times.

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
        return self._state.n_holding > 0

    def _row(self, time: int | Sequence[int]) -> array[int]:
        """Return a time moved to int64."""
        half = self._half
        try:
            if isinstance(time, int | np.integer):
                row = array("q", (index(time) - half,))
            else:
                row = array("q", [index(coordinate) - half for coordinate in time])
        except (OverflowError, TypeError, ValueError):
            row = array("q")
        if len(row) != self._arity:
            msg = f"could not update a pointstamp: found time={time!r}, arity={self._arity}"
            raise InvalidShapeError(msg, hint="give whole numbers within the type of the graph, one per coordinate")
        return row

    def _number(self, node: int, port: int, *, is_target: bool) -> int:
        """Return the port number."""
        counts, starts = self._numbers[is_target]
        if not (0 <= node < len(counts) and 0 <= port < counts[node]):
            location = Location(node, port, is_target)
            msg = f"could not update a pointstamp: found the location {location}, but the graph has no such port"
            raise InvalidUsageError(
                msg,
                hint="name a node and a port that were added before the graph was built",
                context={"location": location},
            )
        return starts[node] + port

    def _position(self, location: Location | Source | Target) -> int:
        node, port, is_target = location if isinstance(location, Location) else location.location
        return int(self._graph.positions[self._number(node, port, is_target=is_target)])

    def _antichain(self, elements: list[tuple[int, ...]]) -> Antichain:
        if not elements:
            return Antichain.empty(self._arity)
        return Antichain.of(*(tuple(x + self._half for x in element) for element in elements))


# How implied frontiers moved: rows of port number and time, and +1 or -1 for each; sorted by port, then by time.
_Moves: TypeAlias = tuple[Wide, DiffArray]


def _add(moves: list[_Moves], more: _Moves) -> None:
    """Add moves to those that nobody has read yet."""
    if more[1].shape[0]:
        moves.append(more)
        if len(moves) > _UNREAD:
            moves[:] = [_summed(moves)]


def _summed(moves: list[_Moves]) -> _Moves:
    """Return the net of moves made one after the other."""
    if len(moves) == 1:
        return moves[0]
    rows, diffs = consolidate_rows(*(np.concatenate(each) for each in zip(*moves, strict=True)))
    return rows.astype(np.int64, copy=False), diffs


class _Frontiers:
    """Pointstamps and implied frontiers at all positions; it says how those at the first `n_ports` ports move.

    Notes
    -----
    Memory: about 60 bytes for each vertex, 8k + 40 for each distinct time of a pointstamp, for k > 1 up to four
    times 8k for each element of a frontier; several times as much for a graph of interpreted loops.
    """

    def __init__(self, graph: Graph, arcs: Arcs, n_ports: int) -> None:
        self._graph, self._links, n = graph, graph.links(arcs), arcs.n
        self._every = self._working(np.arange(n_ports, dtype=np.int32))
        self._positions = self._working(graph.positions)
        sizes = (n, loops.NONE), (n, loops.UNTOUCHED), (n, 0), (n, 0), (n // loops.BLOCK + 1, 0)
        rest = [self._filled(size, value, np.int32) for size, value in sizes]
        buckets, points, lasts = (self._filled(size, loops.NONE, np.int32) for size in (1, n, n))
        # Times of one coordinate: two antichains of one element for each position.
        elements = self._filled(4 * n if graph.arity == 1 else _ROOM, 1)
        scalars, pool = self._filled(loops.SCALARS, 0), self._filled(0, 0)
        self._held = Held(scalars, pool, buckets, points, lasts, elements, *rest)

    def _working(self, numbers: IntArray) -> Ints:
        return working(numbers, compiled=self._graph.loops.compiled)

    def _filled(self, size: int, value: int, dtype: type[np.int32 | np.int64] = np.int64) -> Ints:
        return filled(size, value, compiled=self._graph.loops.compiled, dtype=dtype)

    def _make_room(self, size: int) -> None:
        """Move the antichains that are in use to a place for `size` integers, or for more if that is half full."""
        elements = self._filled(size, 0)
        self._graph.loops.run.compact(self._held, self._graph.arity, elements)
        if 2 * self._held.st[loops.TOP] > size:
            longer = self._filled(2 * size, 0)
            longer[:size] = elements
            elements = longer
        self._held = self._held._replace(elements=elements)

    def _enter(self, positions: IntArray, times: IntArray, diffs: DiffArray) -> None:
        """Enter changes of pointstamps, times flat."""
        st, k, n = self._held.st, self._graph.arity, len(diffs)
        width = loops.TIME + k
        if (st[loops.USED] + n) * width > len(self._held.pool):
            # Records without a count are left out. In the order of times each is the last one of its position.
            records = np.array(self._held.pool[: st[loops.USED] * width], np.int64).reshape(-1, width)
            columns = [*range(loops.TIME, width), loops.OWNER]
            keys, counts = consolidate_rows(records[:, columns], records[:, loops.COUNT])
            room = 2 * (len(counts) + n)
            self._held = self._held._replace(
                pool=self._filled(room * width, 0),
                buckets=self._filled(1 << (room // 2).bit_length(), loops.NONE, np.int32),
                points=self._filled(len(self._held.points), loops.NONE, np.int32),
                lasts=self._filled(len(self._held.lasts), loops.NONE, np.int32),
            )
            st[loops.USED] = st[loops.HOLDING] = 0
            self._enter(keys[:, -1], keys[:, :-1].ravel(), counts)
        self._graph.loops.run.enter(self._held, k, n, *map(self._working, (positions, times, diffs)))

    def propagate(self, positions: Index, times: Wide, diffs: Wide) -> _Moves:
        """Enter changes of pointstamps (times flat); return the net moves of the frontiers at the first ports."""
        k, run, st = self._graph.arity, self._graph.loops.run, self._held.st
        self._enter(positions, times, diffs)
        size = len(self._held.elements)
        while not run.carry(self._links, self._held, k):
            self._make_room(size)
            size = 2 * len(self._held.elements)
        count, asked = int(st[loops.MOVED]), self._every
        if count * _FEW_MOVED < len(self._every):
            moved = np.sort(self._graph.vertices[self._held.moved[:count]])
            asked = self._working(moved[moved < len(self._every)])
        rows, size = 2 * min(count, len(asked)), -1
        while rows > size:
            size = rows
            moves, signs = self._filled(size * (k + 1), 0), self._filled(size, 0)
            rows = run.read(self._held, k, asked, self._positions, moves, signs)
        found = np.array(moves[: rows * (k + 1)], np.int64).reshape(rows, k + 1)
        return found, np.array(signs[:rows], np.int64)

    def implications(self, position: int) -> list[Time]:
        """Return the frontier implied at a position."""
        first, k, elements = self._held.fronts[position], self._graph.arity, self._held.elements
        rows = range(elements[first] if first >= 0 else 0)
        return [tuple(int(elements[first + 1 + row * k + j]) for j in range(k)) for row in rows]

    def counts(self, position: int) -> list[tuple[Time, int]]:
        """Return all pointstamps at a position with their counts, in the order of times."""
        found, r, pool = [], self._held.points[position], self._held.pool
        while r >= 0:
            if pool[r + loops.COUNT]:
                time = tuple(int(x) for x in pool[r + loops.TIME : r + loops.TIME + self._graph.arity])
                found.append((time, int(pool[r + loops.COUNT])))
            r = pool[r + loops.NEXT]
        return found

    @property
    def n_holding(self) -> int:
        """Number of times with a positive count, over all positions."""
        return int(self._held.st[loops.HOLDING])
