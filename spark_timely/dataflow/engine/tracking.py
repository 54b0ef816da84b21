"""Which ranges wait at which output: the dataflow as a scope of the progress layer.

The inputs' logs and the outputs' are operators that hold capabilities: an input at each element of its
log's frontier, an output at its upper. Views that leave times as they are hand them on. A delay has no path
through it: it holds a capability of its own, where the frontier of its input takes it. A path summary would end at the
greatest number of 64 bits, where a delay stays until its input is complete.

Invariants
----------
1. What a frontier is asked of was read before: uppers of outputs first, then the frontiers of inputs.
2. Frontiers only move forward.
3. What the progress layer finds is what `View.front` gives of the same frontiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_timely.dataflow.views import Delayed, Replay, View, ordered
from spark_timely.errors import DataLossError
from spark_timely.progress.change_batch import PortChanges
from spark_timely.progress.frontier import MutableAntichain
from spark_timely.progress.operate import InternalSummary, Operator
from spark_timely.progress.reachability import Source, Target
from spark_timely.progress.worker import Worker
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.dataflow.delays import BoundDelay
    from spark_timely.dataflow.logs import Sink
    from spark_timely.time.arrays import Time
    from spark_timely.time.domain import TimeDomain

__all__ = ["Tracking"]


class _Passing(Operator):
    """A view that hands times on as they are; it holds nothing."""

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        return self.summary, PortChanges(len(self.minimum))


class _Holding(Operator):
    """Holds a capability at each element of a frontier that only moves forward."""

    def __init__(self, name: str, inputs: int, start: Antichain, minimum: Time, summary: InternalSummary) -> None:
        super().__init__(name, inputs=inputs, outputs=1, minimum=minimum, summary=summary)
        self.held = start
        self._stated = start
        self._input = MutableAntichain(len(minimum))
        self.busy = False

    @property
    def input_frontier(self) -> Antichain:
        """Frontier of its input, as of the last statement."""
        return self._input.frontier

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        capabilities = PortChanges(len(self.minimum))
        for time in self.held:
            capabilities.update(0, time, 1)
        return self.summary, capabilities

    def move(self, frontier: Antichain) -> bool:
        """Hold the elements of another frontier from the next turn on; refuse one that is not beyond."""
        if not self.held.less_equal_frontier(frontier):
            return False
        self.held = frontier
        return True

    def push_external_progress(self, changes: PortChanges) -> None:
        self._input.update_pairs([(time, diff) for _, time, diff in changes.drain()])
        self.observe()

    def observe(self) -> None:
        """React to a frontier of the input that moved."""

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        self.busy = self.held != self._stated
        if self.busy:
            for time in self._stated:
                internal.update(0, time, -1)
            for time in self.held:
                internal.update(0, time, 1)
            self._stated = self.held
        return False


class _Following(_Holding):
    """A delay: holds what the frontier of its input becomes behind it."""

    def __init__(self, name: str, delay: BoundDelay, start: Antichain, minimum: Time) -> None:
        super().__init__(name, 1, start, minimum, [[[]]])
        self._delay = delay

    def observe(self) -> None:
        self.held = self._delay.front(self.input_frontier)


class Tracking:
    """The frontiers of a dataflow's views, from those of its logs.

    Parameters
    ----------
    name : str
    sinks : sequence of Sink

    Notes
    -----
    Cost: the scope is built once; a look costs what moved.
    """

    def __init__(self, name: str, sinks: Sequence[Sink]) -> None:
        domain = sinks[0].view.domain
        minimum = tuple(kind.lo for kind in domain.types)
        start = Antichain.of(minimum)
        self._worker = Worker()
        self._scope = self._worker.new_dataflow(name, minimum=minimum)
        self._minimum, self._start = minimum, start
        self._nodes: dict[View, int] = {}
        self._inputs: dict[Replay, _Holding] = {}
        self._holding: list[_Holding] = []
        self._outputs: dict[Sink, _Holding] = {}
        self._targets: dict[str, list[int]] = {}
        made: dict[Sink, int] = {}
        for sink in sinks:  # one turn per output
            for view in ordered(sink.view):  # one turn per operator
                if view not in self._nodes:
                    self._add(view)
            node = self._nodes[sink.view]
            output = _Holding(sink.name, 1, start, minimum, None)
            made[sink] = self._scope.add_child(output)
            self._scope.connect(Source(node, 0), Target(made[sink], 0))
            self._outputs[sink] = output
            self._holding.append(output)
        for sink, number in made.items():
            for leaf in self._inputs:
                if leaf.path == sink.path:
                    self._scope.connect(Source(number, 0), Target(self._nodes[leaf], 0))
        self._number = self._worker.add(self._scope)
        self._subgraph = self._worker.dataflow(self._number)
        self._settle()

    def _add(self, view: View) -> None:
        """Add the operator of a view whose inputs are there."""
        operator: Operator
        if isinstance(view, Replay):
            # Its input is for the outputs of this very dataflow that it reads again.
            held = _Holding(view.name, 1, self._start, self._minimum, None)
            held.notify = False
            self._inputs[view] = held
            self._holding.append(held)
            operator = held
        elif isinstance(view, Delayed):
            follower = _Following(view.name, view.delay, self._start, self._minimum)
            self._holding.append(follower)
            operator = follower
        else:
            summary = [[[tuple(0 for _ in self._minimum)]] for _ in view.inputs]
            operator = _Passing(
                view.name, inputs=len(view.inputs), outputs=1, minimum=self._minimum, summary=summary, notify=False
            )
        number = self._nodes[view] = self._scope.add_child(operator)
        for port, source in enumerate(view.inputs):
            self._scope.connect(Source(self._nodes[source], 0), Target(number, port))

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
            if not self._outputs[sink].move(upper):
                refused[sink] = _went_back(sink.path, sink.view.domain, upper, self._outputs[sink].held)
        for leaf, held in self._inputs.items():
            if leaf.path in frontiers and not held.move(frontiers[leaf.path]):
                refused[leaf.path] = _went_back(leaf.path, leaf.domain, frontiers[leaf.path], held.held)
        self._settle()
        return refused

    def _settle(self) -> None:
        """Give turns until nobody has anything to say."""
        while self._number in self._worker.dataflows:  # as many turns as delays behind each other, and two
            self._worker.step_one(self._number)
            if not any(held.busy for held in self._holding) and not self._subgraph.has_unsent:
                return

    def frontier(self, sink: Sink) -> Antichain:
        """Return the frontier of what an output captures: times not beyond it are complete."""
        return self._outputs[sink].input_frontier


def _went_back(path: str, domain: TimeDomain, frontier: Antichain, before: Antichain) -> DataLossError:
    found, last = domain.render_frontier(frontier), domain.render_frontier(before)
    msg = f"could not continue at log {path!r}: found frontier={found} after {last}"
    hint = "start the dataflow again: the log was replaced, or restored to an earlier state"
    return DataLossError(msg, hint=hint, context={"path": path})
