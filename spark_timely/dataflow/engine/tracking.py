"""Tracking of a dataflow: its graph in the progress layer, and the range of times that waits at each output.

`steps` gives it the uppers of outputs and the frontiers of inputs, and asks how far each output may go
(`Tracking.frontier`). `stuck_outputs` finds outputs that can never move; `explain` asks it too.

The inputs' logs and the outputs' are nodes at which capabilities, rights to produce at a time and later, are held: of
an input at each element of its log's frontier, of an output at its upper. Views that leave times as they are hand them
on. A delay has no path through it: a capability of its own is held there, where the frontier of its input takes it. A
path summary would end at the greatest number of 64 bits, where a delay stays until its input is complete.

The graph is small, static and known to one process: the tracker alone is asked. No other worker exchanges progress
with it, and it runs no operator.

A log that others write too may wait for them, for as long as they like. In a log that a dataflow keeps for itself
nobody else writes. If it lets nobody past what its writers have done, its readers are *stuck*: that is an internal
error, and is reported as one instead of a wait without end.

Invariants
----------
1. Before a frontier is asked for, what it depends on was read: uppers of outputs first, then frontiers of inputs.
2. Frontiers only move forward.
3. What the progress layer finds is what `View.front` gives of the same frontiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_timely.dataflow.operators.times import DelayBy
from spark_timely.dataflow.views import Replay, View, leaves_of, ordered
from spark_timely.errors import DataLossError
from spark_timely.progress.reachability import Builder, Source, Target
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from spark_timely.dataflow.logs import Sink
    from spark_timely.log import Log
    from spark_timely.time.domain import TimeDomain

__all__ = ["Tracking", "stuck_outputs"]


class Tracking:
    """The frontiers of a dataflow's views, from those of its logs.

    Parameters
    ----------
    name : str
    sinks : sequence of Sink

    Notes
    -----
    Cost: the graph is built once; a look costs what moved.
    """

    def __init__(self, name: str, sinks: Sequence[Sink]) -> None:
        minimum = tuple(kind.lo for kind in sinks[0].view.domain.types)
        builder = Builder(len(minimum), name=f"dataflow {name!r}")
        self._nodes: dict[View | Sink, int] = {}
        for sink in sinks:
            nodes: list[View | Sink] = [*ordered(sink.view), sink]
            for node in nodes:
                if node in self._nodes:
                    continue
                below = node.inputs if isinstance(node, View) else (node.view,)
                self._nodes[node] = len(self._nodes) + 1
                builder.add_node(
                    self._nodes[node],
                    len(below) or 1,  # the input of a log is for the outputs of this very dataflow that it reads again
                    1,
                    [[[]]] if _delays(node) else None,
                    [(self._nodes[source], 0) for source in below],
                )
        self._inputs = [leaf for leaf in self._nodes if isinstance(leaf, Replay)]
        for sink in sinks:
            for leaf in self._inputs:
                if leaf.path == sink.path:
                    builder.add_edge((self._nodes[sink], 0), (self._nodes[leaf], 0))
        self._tracker, _ = builder.build()
        # Where capabilities are held.
        self._delays = [node for node in self._nodes if _delays(node)]
        holding: list[View | Sink] = [*self._inputs, *self._delays, *sinks]
        self._held = dict.fromkeys(holding, Antichain.empty(len(minimum)))
        for node in holding:
            self._hold(node, Antichain.of(minimum))
        self._settle()

    def update(
        self, uppers: Mapping[Sink, Antichain], frontiers: Mapping[str, Antichain]
    ) -> dict[Sink | str, DataLossError]:
        """Take in how far outputs and inputs are; what is not given stays where it is.

        Parameters
        ----------
        uppers : mapping of Sink to Antichain
        frontiers : mapping of str to Antichain
            Of logs that are read, by path.

        Returns
        -------
        dict
            Outputs and inputs that have gone back, with what is to be said of it; they stay where they were.
        """
        refused: dict[Sink | str, DataLossError] = {}
        for sink, upper in uppers.items():
            if self._held[sink].less_equal_frontier(upper):
                self._hold(sink, upper)
            else:
                refused[sink] = _went_back(sink.path, sink.view.domain, upper, self._held[sink])
        for leaf in self._inputs:
            frontier = frontiers.get(leaf.path, self._held[leaf])
            if self._held[leaf].less_equal_frontier(frontier):
                self._hold(leaf, frontier)
            else:
                refused[leaf.path] = _went_back(leaf.path, leaf.domain, frontier, self._held[leaf])
        self._settle()
        return refused

    def _hold(self, at: View | Sink, frontier: Antichain) -> bool:
        """Hold a capability at each element of a frontier, and no others; return whether these are others."""
        before, self._held[at] = self._held[at], frontier
        for sign, elements in ((1, frontier), (-1, before)) if frontier != before else ():
            for time in elements:
                self._tracker.update_source(Source(self._nodes[at], 0), time, sign)
        return frontier != before

    def _settle(self) -> None:
        """Hold at each delay what the frontier of its input becomes behind it."""
        self._tracker.propagate_all()
        while self._delays and self._hold_behind_delays():
            self._tracker.propagate_all()  # as many passes as logs of this dataflow follow each other, not as delays

    def _hold_behind_delays(self) -> bool:
        """Hold at all delays at once what the frontiers of the logs say; return whether any moved."""
        known: dict[View, Antichain] = {}
        moved = False
        for node in self._nodes:  # each after its inputs
            if isinstance(node, Replay):
                known[node] = self._held[node].meet(self._before(node))
            elif isinstance(node, View):
                known[node] = node.operator.front_of([known[source] for source in node.inputs])
                moved |= _delays(node) and self._hold(node, known[node])
        return moved

    def _before(self, node: View | Sink) -> Antichain:
        """Return the frontier at the input of a delay or an output."""
        return self._tracker.implications(Target(self._nodes[node], 0))

    def frontier(self, sink: Sink) -> Antichain:
        """Return the frontier of what an output captures: times not beyond it are complete."""
        return self._before(sink)


def _delays(node: View | Sink) -> bool:
    return isinstance(node, View) and isinstance(node.operator, DelayBy)


def _went_back(path: str, domain: TimeDomain, frontier: Antichain, before: Antichain) -> DataLossError:
    found, last = domain.render_frontier(frontier), domain.render_frontier(before)
    msg = f"could not continue at log {path!r}: found frontier={found} after {last}"
    hint = "start the dataflow again: the log was replaced, or restored to an earlier state"
    return DataLossError(msg, hint=hint, context={"path": path})


def stuck_outputs(
    sinks: Sequence[Sink],
    uppers: Mapping[Sink, Antichain],
    frontiers: Mapping[str, Antichain],
    logs: Mapping[str, Log],
    excused: Collection[Sink] = (),
) -> dict[Sink, Antichain]:
    """Return the outputs that can never move, each with how far its inputs would let it go.

    Parameters
    ----------
    sinks : sequence of Sink
        Of one dataflow.
    uppers : mapping of Sink to Antichain
        How far outputs are, read before `frontiers`; one without is not judged, nor is what is made from it.
    frontiers : mapping of str to Antichain
        Of the logs that are read, by path.
    logs : mapping of str to Log
        As of then.
    excused : collection of Sink
        Outputs that stopped, which is reported as it is.

    Notes
    -----
    Cost: two walks over each output's operators.
    """
    writers: dict[str, list[Sink]] = {}
    for sink in sinks:
        writers.setdefault(sink.path, []).append(sink)
    goals: dict[Sink, Antichain] = {}
    moving: set[Sink] = set()
    found: dict[Sink, Antichain] = {}
    for sink, leaves in _each_after_its_inputs(sinks, writers):
        below = [other for leaf in leaves for other in writers.get(leaf.path, ())]
        known = sink in uppers and all(leaf.path in frontiers for leaf in leaves)
        if not known or sink in excused or any(other in moving for other in below):
            moving.add(sink)  # or will, or says itself why not
            continue
        now = sink.view.front({leaf: frontiers[leaf.path] for leaf in leaves})
        if not now.less_equal_frontier(uppers[sink]):
            moving.add(sink)
            continue
        far: dict[Replay, Antichain] = {}
        for leaf in leaves:
            far[leaf] = frontiers[leaf.path]
            mine = writers.get(leaf.path, [])
            if mine and all(other.kept for other in mine):
                others = _held_by_others(logs[leaf.path], {other.stream for other in mine})
                far[leaf] = far[leaf].join(_meet([*(goals[other] for other in mine), *others]))
        goals[sink] = sink.view.front(far).join(uppers[sink])
        if goals[sink] != uppers[sink]:
            found[sink] = goals[sink]
    return found


def _held_by_others(log: Log, streams: Collection[str]) -> list[Antichain]:
    """Return how far streams of a log are that others write."""
    states = (log.core.stream(name) for name in log.streams() if name not in streams)
    return [state.frontier for state in states if state is not None]


def _meet(frontiers: Sequence[Antichain]) -> Antichain:
    first, *others = frontiers
    for other in others:
        first = first.meet(other)
    return first


def _each_after_its_inputs(
    sinks: Sequence[Sink], writers: Mapping[str, Sequence[Sink]]
) -> list[tuple[Sink, list[Replay]]]:
    found: dict[Sink, list[Replay]] = {}
    leaves = {sink: leaves_of(sink.view) for sink in sinks}
    waiting = [(sink, False) for sink in reversed(sinks)]
    while waiting:  # at most twice per output and use
        sink, ready = waiting.pop()
        if sink in found:
            continue
        if ready:
            found[sink] = leaves[sink]
        else:
            waiting.append((sink, True))
            waiting += [(other, False) for leaf in leaves[sink] for other in writers.get(leaf.path, ())]
    return list(found.items())
