"""What lies inside nodes, and what paths through a whole graph do to times."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from spark_timely.progress.reachability_graph import Arcs, Graph, Shape, Wide
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import BoolArray
from spark_timely.time.order import minimal_elements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["PortSummaries", "internal_arcs", "scope_summaries"]

_STEP = (1 << 63) - 1  # the greatest step of one arc
# With no more inputs than this, and more outputs, paths are followed from the inputs.
_FEW_INPUTS = 8

# By input or output of the graph: the minimal path summaries.
_Label: TypeAlias = dict[int, list[tuple[int, ...]]]


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


def internal_arcs(
    shape: Shape, summed: Collection[int], given: Wide, steps: list[tuple[int, ...]], tails: Wide, heads: Wide
) -> Arcs:
    """Put edges and the arcs inside of nodes together.

    `summed` are the nodes whose arcs are `given` (node, input, output, row of `steps`); inside all others
    but node 0 every input leads to every output without a step.
    """
    parts_tails, parts_heads = [tails], [heads]
    plain = (shape.inputs > 0) & (shape.outputs > 0)
    plain[0] = False
    if summed:
        plain[np.fromiter(summed, np.int64, len(summed))] = False
    nodes = np.flatnonzero(plain)
    n = shape.n_ports
    ins, outs = shape.inputs[nodes], shape.outputs[nodes]
    wide = (ins > 1) & (outs > 1)
    if wide.any():
        hubs = nodes[wide]
        aids = n + np.arange(hubs.shape[0])
        n += hubs.shape[0]
        many_in, many_out = shape.inputs[hubs], shape.outputs[hubs]
        parts_tails += [_runs(shape.targets[hubs], many_in), np.repeat(aids, many_out)]
        parts_heads += [np.repeat(aids, many_in), _runs(shape.sources[hubs], many_out)]
        nodes, ins, outs = nodes[~wide], ins[~wide], outs[~wide]
    if (ins == outs).all():  # one input, one output
        parts_tails.append(shape.targets[nodes])
        parts_heads.append(shape.sources[nodes])
    else:
        parts_tails.append(_either(shape.targets[nodes], ins, outs))
        parts_heads.append(_either(shape.sources[nodes], outs, ins))
    n_plain = sum(part.shape[0] for part in parts_tails)
    rows = np.zeros(n_plain + given.shape[0], np.int32)
    if given.shape[0]:
        parts_tails.append(shape.targets[given[:, 0]] + given[:, 1])
        parts_heads.append(shape.sources[given[:, 0]] + given[:, 2])
        rows[n_plain:] = given[:, 3]
    arcs = Arcs(
        n,
        np.concatenate(parts_tails).astype(np.int32),
        np.concatenate(parts_heads).astype(np.int32),
        rows,
        np.zeros(0, np.int64),
    )
    return _with_table(arcs, steps)


def _runs(starts: Wide, lengths: Wide) -> Wide:
    """Return the numbers from each start on, so many of them, one run after the other."""
    ends = np.cumsum(lengths)
    offsets = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    return np.repeat(starts, lengths) + offsets


def _either(starts: Wide, own: Wide, other: Wide) -> Wide:
    """Return the run of ports where a node has several on this side, else its one port as often as the other has."""
    lengths = np.maximum(own, other)
    runs = _runs(starts, lengths)
    return np.where(np.repeat(own > 1, lengths), runs, np.repeat(starts, lengths))


def _with_table(arcs: Arcs, steps: list[tuple[int, ...]]) -> Arcs:
    """Add the table of steps; a step of 2**63 or more becomes several arcs over aids."""
    if all(max(step, default=0) <= _STEP for step in steps):
        return Arcs(arcs.n, arcs.tails, arcs.heads, arcs.steps, np.array(steps, np.int64).ravel())
    pieces: dict[int, list[int]] = {}
    table = [step if max(step) <= _STEP else (0,) * len(step) for step in steps]
    for row, step in enumerate(steps):
        if max(step) > _STEP:
            pieces[row] = []
            rest = step
            while any(rest):
                piece = tuple(min(x, _STEP) for x in rest)
                rest = tuple(x - y for x, y in zip(rest, piece, strict=True))
                pieces[row].append(len(table))
                table.append(piece)
    tails, heads, rows = arcs.tails.tolist(), arcs.heads.tolist(), arcs.steps.tolist()
    n = arcs.n
    for arc in np.flatnonzero(np.isin(arcs.steps, list(pieces))).tolist():
        head, several, at = heads[arc], pieces[rows[arc]], arc
        rows[arc] = several[0]
        for row in several[1:]:
            # What there is ends at an aid, from which the next piece goes on.
            heads[at] = n
            tails.append(n)
            heads.append(head)
            rows.append(row)
            at = len(heads) - 1
            n += 1
    flat = np.array(table, np.int64).ravel()
    return Arcs(n, np.array(tails, np.int32), np.array(heads, np.int32), np.array(rows, np.int32), flat)


def scope_summaries(graph: Graph, shape: Shape, hi: int) -> tuple[Graph | None, list[PortSummaries]]:
    """Return what paths from the graph's inputs to its outputs do to times, `hi` being the greatest summary.

    Also the part of the graph that leads to outputs, if there are any.
    """
    n_inputs, n_outputs = int(shape.outputs[0]), int(shape.inputs[0])
    empty = [PortSummaries() for _ in range(n_inputs)]
    if not n_outputs:
        return None, empty
    first = np.asarray(graph.first, dtype=np.int64)
    heads, steps = np.asarray(graph.heads, dtype=np.int64), np.asarray(graph.steps, dtype=np.int64)
    tails = np.repeat(np.arange(graph.n), np.diff(first))
    inputs = graph.positions[shape.sources[0] + np.arange(n_inputs)].tolist()
    outputs = graph.positions[shape.targets[0] + np.arange(n_outputs)].tolist()
    onward, back = _Links(graph.n, tails, heads), _Links(graph.n, heads, tails)
    leads = back.reached(outputs)
    inner = _part(graph, tails, leads[heads])
    if not leads[inputs].any():
        return inner, empty
    both = leads & onward.reached(inputs)
    inside = both[heads] & both[tails]
    tails, heads, steps = tails[inside], heads[inside], steps[inside]
    rows = np.asarray(graph.table, dtype=np.int64).reshape(-1, graph.arity).tolist()
    table = [tuple(row) for row in rows]
    ends = np.maximum(np.asarray(graph.component_end, dtype=np.int64), np.arange(1, graph.n + 1)).tolist()

    @cache
    def antichain(paths: tuple[tuple[int, ...], ...]) -> Antichain:
        return Antichain(paths, graph.arity)

    if n_inputs <= _FEW_INPUTS < n_outputs:
        links = _Links(graph.n, tails, heads, steps)
        labels = _labels(links, table, hi, _runs_of(ends, both), inputs)
        for output, position in enumerate(outputs):
            for port, paths in labels.get(position, {}).items():
                empty[port][output] = antichain(tuple(paths))
        return inner, empty
    links = _Links(graph.n, heads, tails, steps)
    labels = _labels(links, table, hi, _runs_of(ends, both)[::-1], outputs)
    # Inputs that see the same outputs alike share one answer.
    shared: dict[int, PortSummaries] = {}
    found = []
    for position in inputs:
        label = labels.get(position, {})
        if id(label) not in shared:
            shared[id(label)] = PortSummaries({output: antichain(tuple(label[output])) for output in sorted(label)})
        found.append(shared[id(label)])
    return inner, found


class _Links:
    """Arcs grouped by where they start."""

    def __init__(self, n: int, tails: Wide, heads: Wide, steps: Wide | None = None) -> None:
        order = np.argsort(tails, kind="stable")
        self.heads: list[int] = heads[order].tolist()
        self.steps: list[int] = [] if steps is None else steps[order].tolist()
        self.first: list[int] = np.concatenate([[0], np.cumsum(np.bincount(tails, minlength=n))]).tolist()
        self.n = n

    def reached(self, starts: Iterable[int]) -> BoolArray:
        """Return which positions can be reached."""
        seen = bytearray(self.n)
        stack = list(starts)
        for position in stack:
            seen[position] = 1
        while stack:
            position = stack.pop()
            for head in self.heads[self.first[position] : self.first[position + 1]]:
                if not seen[head]:
                    seen[head] = 1
                    stack.append(head)
        return np.frombuffer(seen, dtype=np.bool_)


def _runs_of(ends: list[int], keep: BoolArray) -> list[range]:
    """Return the positions kept, component by component."""
    runs = []
    at = 0
    for position in np.flatnonzero(keep).tolist():
        if position >= at:
            at = ends[position]
            runs.append(range(position, at))
    return runs


def _part(graph: Graph, tails: Wide, keep: BoolArray) -> Graph:
    """Return the graph with only some of its arcs."""
    first = np.concatenate([[0], np.cumsum(np.bincount(tails[keep], minlength=graph.n))]).astype(np.int32)
    heads, steps = (np.asarray(each, dtype=np.int32)[keep] for each in (graph.heads, graph.steps))
    return graph.with_arcs(first, heads, steps)


def _labels(
    links: _Links, table: list[tuple[int, ...]], hi: int, runs: list[range], seeds: list[int]
) -> dict[int, _Label]:
    """Return by position, for each seed from which a path leads there, the minimal summaries of such paths.

    `runs` are the components in an order that links follow. A position with one link to it that has no step
    shares the label of where the link comes from.
    """
    labels: dict[int, _Label] = {}
    own: set[int] = set()
    zero = (0,) * len(table[0])
    for number, position in enumerate(seeds):
        labels[position] = {number: [zero]}
        own.add(position)

    def pass_on(position: int) -> list[int]:
        """Add what each link makes of a position's label; return the positions whose labels changed."""
        label = labels.get(position)
        changed: list[int] = []
        if label is None:
            return changed
        for link in range(links.first[position], links.first[position + 1]):
            head, step = links.heads[link], table[links.steps[link]]
            if head not in labels and step == zero:
                labels[head] = label
                own.discard(position)
                changed.append(head)
                continue
            if head not in own:
                labels[head] = dict(labels.get(head, {}))
                own.add(head)
            if _merge(labels[head], label, step, hi):
                changed.append(head)
        return changed

    for run in runs:
        if len(run) == 1:
            pass_on(run[0])
            continue
        # Inside a component a label may change again after it was passed on; outside it may not.
        again = deque(run)
        queued = set(run)
        while again:
            position = again.popleft()
            queued.discard(position)
            for head in pass_on(position):
                if head in run and head not in queued:
                    queued.add(head)
                    again.append(head)
    return labels


def _merge(into: _Label, label: _Label, step: tuple[int, ...], hi: int) -> bool:
    """Add what one link makes of a label to another; tell whether that changed it."""
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
