"""The graph that reachability works on: ports as vertices in an order of work, path summaries as arcs.

Invariants
----------
1. Ports are numbered node by node, a node's targets before its sources: the *port number*. A vertex is a
   port or an aid; its *position* is its place in the order of work.
2. An aid stands between all targets and all sources of a node whose every input leads to every output
   without a step: inputs + outputs arcs take the place of inputs × outputs. For times of one coordinate,
   whose implied frontiers are computed from the arcs to a vertex, aids keep these few.
3. Steps are within [0, 2**63): a greater one, of unsigned times, is taken in several arcs over aids.
4. Times are worked on as int64: unsigned ones moved down by 2**63, which keeps their order and whether a
   sum overflows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from spark_timely.errors import CyclicSummaryError
from spark_timely.progress.location import Location
from spark_timely.progress.reachability_loops import Loops, loops_for
from spark_timely.time.arrays import BoolArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_timely.progress.kernels_reach import Ints

__all__ = ["Arcs", "Graph", "Index", "Shape", "Wide", "arrange_graph", "working"]

Index: TypeAlias = npt.NDArray[np.int32]
Wide: TypeAlias = npt.NDArray[np.int64]

# Ports of a cycle that a message shows at either end.
_SHOWN = 6
# With more arcs to it than this, a vertex gets aids before it.
_FAN = 32
# For fewer ports than one in so many, nodes are looked up, else counted off.
_SPARSE = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """The ports of all nodes, by node."""

    inputs: Wide
    outputs: Wide
    targets: Wide  # port number of each node's first target
    sources: Wide  # port number of each node's first source
    n_ports: int

    @classmethod
    def of(cls, inputs: Wide, outputs: Wide) -> Shape:
        """Return the shape of nodes with so many inputs and outputs."""
        both = inputs + outputs
        ends = np.cumsum(both)
        targets = ends - both
        return cls(inputs, outputs, targets, targets + inputs, int(ends[-1]) if ends.size else 0)

    def locations(self, numbers: Wide | Index) -> tuple[Wide, Wide, BoolArray]:
        """Return node, port and side of port numbers."""
        if numbers.shape[0] * _SPARSE < self.n_ports:
            nodes = (np.searchsorted(self.targets, numbers, side="right") - 1).astype(np.int64, copy=False)
        else:
            nodes = np.repeat(np.arange(self.inputs.shape[0]), self.inputs + self.outputs)[numbers]
        is_target = numbers < self.sources[nodes]
        ports: Wide = numbers.astype(np.int64) - np.where(is_target, self.targets[nodes], self.sources[nodes])
        return nodes, ports, is_target

    def location(self, number: int) -> Location:
        """Return the place of one port number."""
        nodes, ports, is_target = self.locations(np.array([number]))
        return Location(int(nodes[0]), int(ports[0]), bool(is_target[0]))


@dataclass(frozen=True, slots=True)
class Arcs:
    """The arcs of a graph before it is arranged: from vertex, to vertex, row of the table of steps."""

    n: int
    tails: Index
    heads: Index
    steps: Index
    table: Wide  # steps, row by row, flat; row 0 holds zeros

    def only(self, keep: BoolArray) -> Arcs:
        """Return the arcs that are kept, of the same vertices."""
        return Arcs(self.n, self.tails[keep], self.heads[keep], self.steps[keep], self.table)


@dataclass(frozen=True, slots=True)
class Graph:
    """An arranged graph, as the kernels take it: arrays if they are compiled, else lists. See the invariants."""

    loops: Loops
    n: int
    arity: int
    first: Ints
    heads: Ints
    steps: Ints
    table: Ints
    in_first: Ints  # the same arcs by head; only for times of one coordinate
    in_tails: Ints
    in_steps: Ints
    component_end: Ints  # by position; 0 for a vertex that is a component alone
    cyclic: bool
    positions: Index  # by vertex
    vertices: Index  # by position

    def with_arcs(self, first: Index, heads: Index, steps: Index) -> Graph:
        """Return a graph of the same vertices in the same order, with only some of the arcs."""
        arcs = [working(each, compiled=self.loops.compiled) for each in (first, heads, steps)]
        turned = _turned(self.loops, self.n, self.arity == 1, *arcs)
        return replace(
            self,
            first=arcs[0],
            heads=arcs[1],
            steps=arcs[2],
            in_first=turned[0],
            in_tails=turned[1],
            in_steps=turned[2],
        )


def working(array: IntArray, *, compiled: bool) -> Ints:
    """Return an array as the kernels work on it."""
    return cast("Ints", array if compiled else array.tolist())


def _filled(size: int, value: int = 0, *, compiled: bool) -> Ints:
    """Return so many equal numbers, as the kernels work on them."""
    return cast("Ints", np.full(size, value, np.int32) if compiled else [value] * size)


def _turned(loops: Loops, n: int, wanted: bool, first: Ints, heads: Ints, steps: Ints) -> tuple[Ints, Ints, Ints]:  # noqa: FBT001
    """Return the arcs by head, or nothing."""
    n_arcs = first[n] if wanted else 0
    in_first, in_tails, in_steps, fill = (
        _filled(size, compiled=loops.compiled) for size in (n + 1 if wanted else 0, n_arcs, n_arcs, n)
    )
    if wanted:
        loops.arranging.turn(n, first, heads, steps, in_first, in_tails, in_steps, fill)
    return in_first, in_tails, in_steps


def _narrowed(arcs: Arcs) -> Arcs:
    """Put aids before vertices with many arcs to them, in a tree: so that one that moves costs a logarithm."""
    while arcs.heads.shape[0] > _FAN and (counts := np.bincount(arcs.heads, minlength=arcs.n)).max() > _FAN:
        wide = np.flatnonzero((counts > _FAN)[arcs.heads])
        wide = wide[np.argsort(arcs.heads[wide], kind="stable")]
        heads = arcs.heads[wide]
        begins = np.flatnonzero(np.diff(heads, prepend=-1))
        rank = np.arange(heads.shape[0]) - np.repeat(begins, np.diff(begins, append=heads.shape[0]))
        # A new aid begins with each head, and after every so many of its arcs.
        aid = arcs.n - 1 + np.cumsum(rank % _FAN == 0)
        into = heads[rank % _FAN == 0]
        n_aids = into.shape[0]
        narrow = arcs.heads.copy()
        narrow[wide] = aid
        arcs = Arcs(
            arcs.n + n_aids,
            np.concatenate([arcs.tails, np.arange(arcs.n, arcs.n + n_aids, dtype=np.int32)]),
            np.concatenate([narrow, into]),
            np.concatenate([arcs.steps, np.zeros(n_aids, np.int32)]),
            arcs.table,
        )
    return arcs


def arrange_graph(arcs: Arcs, arity: int, named: Callable[[int], Location | None]) -> Graph:
    """Order the vertices so that work is done once per vertex, or component, and change.

    Raises
    ------
    CyclicSummaryError
        If a cycle does not advance times: all its steps are zero. `named` tells which ports are on it.
    """
    if arity == 1:
        arcs = _narrowed(arcs)
    loops = loops_for(arcs.n)
    kernels, compiled = loops.arranging, loops.compiled

    def ints(size: int, value: int = 0) -> Ints:
        return _filled(size, value, compiled=compiled)

    n, n_arcs = arcs.n, arcs.tails.shape[0]
    tails, heads = working(arcs.tails, compiled=compiled), working(arcs.heads, compiled=compiled)
    steps = working(arcs.steps, compiled=compiled)
    first, by_tail, order = ints(n + 1), ints(n_arcs), ints(n)
    cyclic = kernels.arrange(n, n_arcs, tails, heads, first, by_tail, ints(n), order) < n
    component_end = np.zeros(n, np.int32)
    if cyclic:
        which = ints(n, -1)
        count = kernels.components(n, heads, first, by_tail, ints(n, -1), ints(n), ints(n), ints(n), ints(n), which)
        component = (count - 1 - np.asarray(which)).astype(np.int32)
        starts = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(component, minlength=count), out=starts[1:])
        lengths = np.diff(starts)
        component_end = np.repeat(np.where(lengths > 1, starts[1:], 0), lengths).astype(np.int32)
        degrees = ints(n)
        bad = kernels.settle_order(
            n,
            count,
            heads,
            steps,
            first,
            by_tail,
            working(component, compiled=compiled),
            working(starts, compiled=compiled),
            working(starts[:-1].copy(), compiled=compiled),
            degrees,
            order,
        )
        if bad >= 0:
            raise _cycle(arcs, component == bad, np.asarray(degrees) > 0, named)
    position, out_first, out_heads, out_steps = ints(n), ints(n + 1), ints(n_arcs), ints(n_arcs)
    kernels.renumber(n, heads, steps, first, by_tail, order, position, out_first, out_heads, out_steps)
    return Graph(
        loops,
        n,
        arity,
        out_first,
        out_heads,
        out_steps,
        working(arcs.table, compiled=compiled),
        *_turned(loops, n, arity == 1, out_first, out_heads, out_steps),
        working(component_end, compiled=compiled),
        cyclic,
        np.asarray(position, dtype=np.int32),
        np.asarray(order, dtype=np.int32),
    )


def _cycle(
    arcs: Arcs,
    member: BoolArray,
    left: BoolArray,
    named: Callable[[int], Location | None],
) -> CyclicSummaryError:
    """Return the error that names a cycle among the members that are left over."""
    inside = member & left
    arc = np.flatnonzero((arcs.steps == 0) & inside[arcs.heads] & inside[arcs.tails])
    # Each vertex that is left has such an arc to it: going back along them must meet a vertex again.
    before = dict(zip(arcs.heads[arc].tolist(), arcs.tails[arc].tolist(), strict=True))
    path = [next(iter(before))]
    seen = {path[0]: 0}
    while (vertex := before[path[-1]]) not in seen:
        seen[vertex] = len(path)
        path.append(vertex)
    cycle = [place for v in reversed(path[seen[vertex] :]) if (place := named(v)) is not None]
    least = cycle.index(min(cycle))
    cycle = cycle[least:] + cycle[: least + 1]
    told = [str(place) for place in cycle]
    if len(told) > 2 * _SHOWN + 1:
        told = [*told[:_SHOWN], f"… {len(told) - 2 * _SHOWN} more …", *told[-_SHOWN:]]
    return CyclicSummaryError(
        "could not build the graph: found a cycle along which times do not advance, path=" + " → ".join(told),
        hint="let an operator of the cycle add to the time, or take one of the edges out",
        path=tuple(cycle),
    )
