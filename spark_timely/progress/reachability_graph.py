"""The graph that reachability works on: ports as vertices in an order of work, path summaries as arcs.

Also what paths through the whole graph do to times: `scope_summaries`.

Invariants
----------
1. Ports are numbered node by node, a node's targets before its sources: the *port number*. A vertex is a
   port or an aid; its *position* is its place in the order of work, see `reachability_loops`.
2. An aid stands between all targets and all sources of a node whose every input leads to every output without a
   step: inputs + outputs arcs take the place of inputs × outputs. Aids in a tree stand before a vertex to which
   many arcs lead, so that one that moves costs a logarithm.
3. Steps are within [0, 2**63): a greater one, of unsigned times, is taken in three arcs over aids.
4. Times are worked on as int64: unsigned ones moved down by 2**63, which keeps their order and whether a
   sum overflows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from spark_timely.errors import CyclicSummaryError
from spark_timely.progress.location import Location
from spark_timely.progress.reachability_loops import Ints, Links, Loops, loops_for
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import BoolArray, IntArray
from spark_timely.time.order import minimal_elements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = [
    "Arcs",
    "Graph",
    "Index",
    "PortSummaries",
    "Shape",
    "Wide",
    "arrange",
    "filled",
    "internal_arcs",
    "scope_summaries",
    "working",
]

Index: TypeAlias = npt.NDArray[np.int32]
Wide: TypeAlias = npt.NDArray[np.int64]

# Ports of a cycle that a message shows at either end.
_SHOWN = 6
# With more arcs to it than this, a vertex gets aids before it.
_FAN = 32
# For fewer ports than one in this number, nodes are looked up, else counted off.
_SPARSE = 8
# The greatest step of one arc.
_STEP = (1 << 63) - 1


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
    table: Wide  # steps, row by row; row 0 holds zeros

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
        narrow = (in_first, arcs.tails[into], arcs.steps[into], out_first, arcs.heads[out], arcs.steps[out], self.ends)
        compiled = self.loops.compiled
        table = working(arcs.table.ravel(), compiled=compiled)
        return Links(table, *(working(numbers, compiled=compiled, dtype=np.int32) for numbers in narrow))


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
    plain = (shape.inputs > 0) & (shape.outputs > 0)
    plain[[0, *summed]] = False
    hubs = (plain & (shape.inputs > 1) & (shape.outputs > 1)).nonzero()[0]
    plain[hubs] = False
    aids, one = shape.n_ports + np.arange(hubs.shape[0]), np.ones(hubs.shape[0], np.int64)
    # Runs of vertices that lead to one vertex, or to which one leads.
    runs = (
        (shape.targets[plain], shape.targets[hubs], aids),
        (shape.inputs[plain], shape.inputs[hubs], one),
        (shape.sources[plain], aids, shape.sources[hubs]),
        (shape.outputs[plain], one, shape.outputs[hubs]),
    )
    lows, ins, highs, outs = (np.concatenate(each) for each in runs)
    lengths = np.maximum(ins, outs)
    within = np.arange(int(lengths.sum())) - (lengths.cumsum() - lengths).repeat(lengths)
    lows = lows.repeat(lengths) + within * (ins > 1).repeat(lengths)
    highs = highs.repeat(lengths) + within * (outs > 1).repeat(lengths)
    rows = np.zeros(tails.shape[0] + within.shape[0] + given.shape[0], np.int64)
    rows[rows.shape[0] - given.shape[0] :] = given[:, 3]
    n = shape.n_ports + hubs.shape[0]
    tails = np.concatenate([tails, lows, shape.targets[given[:, 0]] + given[:, 1]])
    heads = np.concatenate([heads, highs, shape.sources[given[:, 0]] + given[:, 2]])
    if all(max(step, default=0) <= _STEP for step in steps):
        return Arcs(n, tails, heads, rows, np.array(steps, np.int64).reshape(len(steps), -1))
    # Invariant 3: row r becomes rows 3r, 3r + 1 and 3r + 2.
    pieces = [[min(max(x - i * _STEP, 0), _STEP) for x in step] for step in steps for i in range(3)]
    wide = np.flatnonzero(np.array([max(step) > _STEP for step in steps])[rows])
    between = n + np.arange(2 * wide.shape[0]).reshape(2, -1)
    last = heads[wide]
    heads[wide] = between[0]
    return Arcs(
        n + between.size,
        np.concatenate([tails, *between]),
        np.concatenate([heads, between[1], last]),
        np.concatenate([3 * rows, 3 * rows[wide] + 1, 3 * rows[wide] + 2]),
        np.array(pieces, np.int64),
    )


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
        sizes = np.bincount(which, minlength=1)[::-1]
        ends = np.repeat(np.where(sizes > 1, np.cumsum(sizes), 0), sizes)
        order = np.argsort(-which, kind="stable")
        if ends.any():
            free = arcs.only(~np.asarray(arcs.table.any(axis=1))[arcs.steps] & (which[arcs.tails] == which[arcs.heads]))
            rank = _components(free, loops)
            stuck: BoolArray = np.greater(np.bincount(rank)[rank], 1)
            if stuck.any():
                raise _cycle(free.only(stuck[free.heads] & (rank[free.heads] == rank[free.tails])), shape)
            order = np.lexsort((-rank, -which))
    positions = np.empty(n, np.int64)
    positions[order] = np.arange(n)
    placed = arcs._replace(tails=positions[arcs.tails], heads=positions[arcs.heads])
    return Graph(loops, arcs.table.shape[1], placed, ends, positions.astype(np.int32), order.astype(np.int32))


def _components(arcs: Arcs, loops: Loops) -> Wide:
    """Return the strongly connected component of each vertex; arcs lead to equal or lower numbers."""
    order, first = by_end(arcs.tails, arcs.n)
    which = working(np.full(arcs.n, -1), compiled=loops.compiled)
    each = (first, arcs.heads[order], np.zeros(5 * arcs.n, np.int64))
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
