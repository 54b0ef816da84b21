"""A subgraph: a scope of operators that runs as one operator and tracks progress inside.

A `worker` builds its dataflows of them, as timely does. Dataflows over logs have no scopes: they ask `reachability`
alone (`dataflow.engine.tracking`).

A `SubgraphBuilder` collects operators and edges, and freezes them into a `Subgraph`. To it each operator is a `Child`,
which knows when the operator runs and when it is shut down. An operator without operators inside is a *leaf*; its
*statements* are its reports of messages and capabilities, which `LeafStatements` judges by those before.

Child 0 is the outside: the scope's inputs are its outputs (sources), the scope's outputs its inputs
(targets). A turn has six steps:

1. harvest the counts of messages that entered the scope,
2. exchange statements with the peers,
3. give what was exchanged to the tracker; what concerns child 0 is reported as consumed and produced,
4. propagate,
5. give each child with a cause its turn,
6. report what is still possible at the scope's outputs as capabilities.

Invariants
----------
1. Statements of children take effect in the next turn. Those of leaves are exchanged with the peers first; those of
   nested scopes are not, since they were exchanged inside. So children never see each other's statements of the same
   turn.
2. All that was exchanged is applied and reported in one turn: the report that messages were received has also the
   capabilities and messages that they gave.
3. What the outside may still send is never reported as a capability of the scope: the scope would wait
   for itself, for ever.
4. Everything is propagated before any child gets a frontier.
5. Every worker builds the same scopes in the same order: identifiers and progress channels are given in
   sequence, and are the same on all of them.
6. An edge moves no data: it only says where messages go. It is kept twice, to count messages, and for reachability.
7. An operator gets discrete changes of its input frontiers only, and all of them, in order.
8. What a leaf reports is checked against its own earlier statements before anything of it is passed on. The
   scope's counts could not serve: they are behind, and mix the statements of all peers.
9. A nested scope is not checked: it may report capabilities that come from messages which its
   parent never sees. The leaves inside are checked.
10. An operator that was shut down is gone, and gets no progress again.
11. The buffers are empty before an operator's turn and after it, also where it fails: a report of one operator
    is never taken for one of the next.
12. A capability gained, or a message produced, needs one of two: a capability held before the turn at the same
    output, at a time less or equal; or a message consumed in the same turn whose time, taken along a path of the
    operator's own summary to that output, is less or equal.
13. The number of capabilities that an operator holds at a time is never negative, nor is a number of messages that it
    reports as consumed or produced.
14. A report is judged as a whole, before anything of it is passed on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from spark_timely.errors import (
    InvalidUsageError,
    NegativeCountError,
    ProtocolError,
    TimelyInternalError,
    UnheldCapabilityError,
)
from spark_timely.masking import masked_logger
from spark_timely.progress.broadcast import Progcaster, Transport
from spark_timely.progress.change_batch import Buffers, ChangeBatch, PortChanges, Report
from spark_timely.progress.events import ChannelsEvent, EventStream, OperatesEvent, PushProgressEvent, ScheduleEvent
from spark_timely.progress.frontier import PortFrontiers
from spark_timely.progress.operate import InternalSummary, Operate
from spark_timely.progress.reachability import Builder, Location, PortSummaries, Source, Target, Tracker, read_summary
from spark_timely.time.antichain import Time, minimal_elements

__all__ = [
    "Child",
    "LeafStatements",
    "Refines",
    "Subgraph",
    "SubgraphBuilder",
    "WorkerContext",
    "unknown_port",
]

logger = masked_logger(__name__)


@dataclass(eq=False)
class WorkerContext:
    """The services of a worker that a scope uses.

    Parameters
    ----------
    transport : Transport
        Access to the peers.
    events : EventStream, optional
        Where events go.

    Attributes
    ----------
    identifiers, channels : iterator of int
        Numbers of operators and edges, and of progress channels; none is given twice.
    """

    transport: Transport
    events: EventStream | None = None
    identifiers: Iterator[int] = field(default_factory=itertools.count)
    channels: Iterator[int] = field(default_factory=itertools.count)

    @property
    def peers(self) -> int:
        """Number of workers."""
        return self.transport.peers


@dataclass(frozen=True, slots=True)
class Refines:
    """The relation of times inside a scope to those outside.

    A region only groups operators: its times are those outside. Times of a nested scope have one more coordinate,
    last: the round of a loop, counted from 0.

    Parameters
    ----------
    outer_arity : int
        Number of coordinates outside.
    nested : bool

    Notes
    -----
    Source: timely `progress/timestamp.rs`, `Refines`.

    Examples
    --------
    >>> loop = Refines(1, nested=True)
    >>> loop.to_inner((5,)), loop.to_outer((5, 3))
    ((5, 0), (5,))
    """

    outer_arity: int = 1
    nested: bool = False

    @property
    def inner_arity(self) -> int:
        """Number of coordinates inside."""
        return self.outer_arity + self.nested

    def to_inner(self, time: Time) -> Time:
        """Return the least time inside for a time outside."""
        return (*time, 0) if self.nested else time

    def to_outer(self, time: Time) -> Time:
        """Return the time outside to which a time inside belongs; of the steps of a path, those seen outside."""
        return time[: self.outer_arity]


class SubgraphBuilder:
    """Collects the operators and edges of a scope.

    Parameters
    ----------
    worker : WorkerContext
    name : str
    index : int
        Number of the scope in its parent.
    parent_path : tuple of int
    refines : Refines
        How times inside stand to those outside.
    minimum : tuple of int
        Least time inside.
    identifier : int, optional
        Number of the scope in the worker; a new one if not given.

    Notes
    -----
    Cost: constant per operator and edge, and that of reachability for the whole.
    Source: timely `progress/subgraph.rs`, `SubgraphBuilder`.

    Examples
    --------
    >>> from spark_timely.progress.operate import Operator
    >>> from spark_timely.progress.worker import Worker
    >>> scope = Worker().new_dataflow("example")
    >>> source = scope.add_child(Operator("source", inputs=0, outputs=1))
    >>> sink = scope.add_child(Operator("sink", inputs=1, outputs=0))
    >>> scope.connect(Source(source, 0), Target(sink, 0))
    >>> scope.build().children[1].name
    'sink'
    """

    def __init__(
        self,
        worker: WorkerContext,
        name: str,
        *,
        index: int,
        parent_path: tuple[int, ...],
        refines: Refines,
        minimum: Time,
        identifier: int | None = None,
    ) -> None:
        self.worker = worker
        self.name = name
        self.index = index
        self.path = (*parent_path, index)
        self.refines = refines
        self.minimum = minimum
        self.identifier = next(worker.identifiers) if identifier is None else identifier
        self._children: dict[int, Child] = {}
        # Child 0 is the outside; the others are numbered from 1.
        self._allotted = 1
        self._edges: list[tuple[Source, Target]] = []
        self.entries: list[ChangeBatch] = []
        self.outputs = 0
        self._built = False

    @property
    def arity(self) -> int:
        """Number of coordinates of times inside."""
        return self.refines.inner_arity

    @property
    def peers(self) -> int:
        """Number of workers."""
        return self.worker.peers

    def new_input(self, entry: ChangeBatch | None = None) -> Target:
        """Add an input to the scope; return it as a target of the parent's graph.

        Parameters
        ----------
        entry : ChangeBatch, optional
            Where the data path counts messages that enter, by time inside.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> region = Worker().new_dataflow("example").new_scope("region")
        >>> region.new_input()
        Target(node=1, port=0)
        """
        self._check_open("add an input to")
        self.entries.append(ChangeBatch(self.arity) if entry is None else entry)
        return Target(self.index, len(self.entries) - 1)

    def new_output(self) -> Source:
        """Add an output to the scope; return it as a source of the parent's graph.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> region = Worker().new_dataflow("example").new_scope("region")
        >>> region.new_output()
        Source(node=1, port=0)
        """
        self._check_open("add an output to")
        self.outputs += 1
        return Source(self.index, self.outputs - 1)

    def entry(self, port: int) -> ChangeBatch:
        """Return where messages that enter by an input are counted.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> region = Worker().new_dataflow("example").new_scope("region")
        >>> _ = region.new_input()
        >>> region.entry(0).is_empty()
        True
        """
        return self.entries[port]

    def connect(self, source: Source, target: Target) -> None:
        """State that messages of a source are to be expected at a target.

        Sources of node 0 are the scope's inputs, targets of node 0 its outputs.

        Raises
        ------
        InvalidUsageError
            If the scope is built.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> Worker().new_dataflow("example").connect(Source(1, 0), Target(2, 0))
        """
        self._check_open("connect in")
        self._edges.append((source, target))
        events = self.worker.events
        identifier = next(self.worker.identifiers)
        if events is not None:
            events.emit(ChannelsEvent(identifier, self.path, (source.node, source.port), (target.node, target.port)))

    def allocate_child_id(self) -> int:
        """Return the number of a child that will be added.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> Worker().new_dataflow("example").allocate_child_id()
        1
        """
        self._check_open("add a child to")
        self._allotted += 1
        return self._allotted - 1

    def add_child(self, operator: Operate, *, index: int | None = None, identifier: int | None = None) -> int:
        """Add an operator; return its number.

        Parameters
        ----------
        operator : Operate
        index : int, optional
            A number from `allocate_child_id`; the next one if not given.
        identifier : int, optional
            Number in the worker; a new one if not given.

        Raises
        ------
        InvalidUsageError
            If the scope is built, or another operator has the number.
        InvalidShapeError
            If the operator's summary does not fit its inputs and outputs.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> from spark_timely.progress.worker import Worker
        >>> Worker().new_dataflow("example").add_child(Operator("source", inputs=0, outputs=1))
        1
        """
        self._check_open(f"add operator {operator.name!r} to")
        if index is None:
            index = self.allocate_child_id()
        if index in self._children:
            msg = f"could not add operator {operator.name!r} to {self.label}: found {self._children[index].label} there"
            raise InvalidUsageError(msg, hint="take each number from allocate_child_id")
        if identifier is None:
            identifier = next(self.worker.identifiers)
        events = self.worker.events
        if events is not None:
            events.emit(OperatesEvent(identifier, (*self.path, index), operator.name))
        self._children[index] = Child(
            operator, index=index, identifier=identifier, arity=self.arity, peers=self.peers, events=events
        )
        return index

    def new_scope(self, name: str, *, nested: bool = False) -> SubgraphBuilder:
        """Return the builder of a scope inside this one; `add_scope` adds it when it is complete.

        Parameters
        ----------
        name : str
        nested : bool
            Whether its times have one more coordinate, the round of a loop.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> Worker().new_dataflow("example").new_scope("loop", nested=True).minimum
        (0, 0)
        """
        refines = Refines(self.arity, nested)
        return SubgraphBuilder(
            self.worker,
            name,
            index=self.allocate_child_id(),
            parent_path=self.path,
            refines=refines,
            minimum=refines.to_inner(self.minimum),
        )

    def add_scope(self, builder: SubgraphBuilder) -> Subgraph:
        """Build a scope of `new_scope` and add it; return it.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> scope = Worker().new_dataflow("example")
        >>> scope.add_scope(scope.new_scope("region")).path
        (0, 1)
        """
        subgraph = builder.build()
        self.add_child(subgraph, index=builder.index, identifier=builder.identifier)
        return subgraph

    def build(self) -> Subgraph:
        """Freeze the scope.

        Raises
        ------
        InvalidUsageError
            If it was built already, numbers of children have gaps or are doubled, or an edge has an
            unknown end.
        CyclicSummaryError
            If messages could go round and round without their times advancing.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> Worker().new_dataflow("example").build().inputs
        0
        """
        self._check_open("build")
        builder = Builder(self.arity, name=self.label)
        # Nothing flows through the outside.
        builder.add_node(0, self.outputs, len(self.entries))
        for child in self._children.values():
            builder.add_node(child.index, child.inputs, child.outputs, child.summary)
        for edge in self._edges:
            builder.add_edge(*edge)
        tracker, summaries = builder.build()
        self._built = True
        children = [self._children[index] for index in sorted(self._children)]
        entry_edges: list[list[Target]] = [[] for _ in self.entries]
        for source, target in self._edges:
            if source.node:
                children[source.node - 1].edges.setdefault(source.port, []).append(target)
            else:
                entry_edges[source.port].append(target)
        return Subgraph(self, children, entry_edges, tracker, summaries)

    @property
    def label(self) -> str:
        """Name and path, as errors show the scope."""
        return f"scope {self.name!r} {list(self.path)!r}"

    def _check_open(self, attempt: str) -> None:
        if self._built:
            msg = f"could not {attempt} {self.label}: it is built"
            raise InvalidUsageError(msg, hint="add operators, ports and edges before a scope is built")


class Subgraph:
    """A scope that is built; made by `SubgraphBuilder.build`.

    Parameters
    ----------
    builder : SubgraphBuilder
    children : sequence of Child
        Child number i + 1 at place i.
    entry_edges : by input, the targets to which messages that enter go
    tracker : Tracker
    summaries : by input and output, the minimal paths through the scope, in steps inside

    Notes
    -----
    Cost of a turn: that of the statements exchanged and the children that have a cause to run; children
    that have none cost nothing.
    Source: timely `progress/subgraph.rs`.
    """

    local = False
    notify = True

    def __init__(
        self,
        builder: SubgraphBuilder,
        children: Sequence[Child],
        entry_edges: Sequence[Sequence[Target]],
        tracker: Tracker,
        summaries: Sequence[PortSummaries],
    ) -> None:
        self.name, self.path, self.identifier = builder.name, builder.path, builder.identifier
        self.inputs, self.outputs = len(builder.entries), builder.outputs
        self._label = builder.label
        self._children = children
        self._entries, self._entry_edges = builder.entries, entry_edges
        self._refines, self._tracker, self._summaries = builder.refines, tracker, summaries
        worker = builder.worker
        self._progcaster = Progcaster(
            worker.transport,
            channel=next(worker.channels),
            arity=builder.arity,
            path=builder.path,
            identifier=builder.identifier,
            events=worker.events,
        )
        # By node, how many ports may be spoken of: of sources, of targets.
        self._ports = [(self.inputs, self.outputs), *((child.outputs, child.inputs) for child in children)]
        arity = builder.arity
        # Statements, as rows of node, port, side (1 for targets) and time: still to be exchanged, and
        # already exchanged.
        self._local = ChangeBatch(arity + 3)
        self._final = ChangeBatch(arity + 3)
        self._buffers = Buffers(arity)
        # By output: capabilities as the parent knows them.
        self._expressed = PortFrontiers(self._refines.outer_arity)
        # What was exchanged, by statement; and by child and side, how many of its statements have a positive count.
        self._counts: dict[tuple[int, ...], int] = {}
        self._positive: dict[tuple[int, int], int] = {}
        # Children that are to run because of their own last turn, or because a frontier of theirs moved.
        self._awake: set[int] = set()
        self._stage = 0

    # --- Before the first turn -------------------------------------------------------------------

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        """Return the paths through the scope, and the capabilities that operators inside give it.

        Capabilities are those of all peers, and are reported by this call only.

        Raises
        ------
        InvalidUsageError
            If it is called a second time.
        """
        self._advance(0, "get_internal_summary")
        for child in self._children:
            for port, time, count in child.initial:
                self._apply((child.index, port, 0, *time), count)
        self._tracker.propagate_all()
        capabilities = PortChanges(self._refines.outer_arity)
        self._report_outputs(capabilities)
        # Paths in steps outside; several may differ inside only.
        outer = self._refines.to_outer
        summary = [
            {output: minimal_elements(map(outer, paths)) for output, paths in row.items()} for row in self._summaries
        ]
        return summary, capabilities

    def set_external_summary(self, frontier: PortChanges) -> None:
        """Learn the frontiers of the scope's inputs, and tell all children theirs.

        Raises
        ------
        InvalidUsageError
            If it is called a second time, or before `get_internal_summary`.
        """
        self._advance(1, "set_external_summary")
        self._enter_frontiers(frontier)
        self._tracker.propagate_all()
        # The outside's capabilities are nobody's inside (invariant 3): they move no output.
        nothing = PortChanges(self._refines.outer_arity)
        self._report_outputs(nothing)
        if not nothing.is_empty():
            msg = f"scope {self.name!r}: frontiers of the inputs became capabilities of the outputs (invariant 3)"
            raise TimelyInternalError(msg, context={"changes": list(nothing)})
        self._send_frontiers()
        for child in self._children:
            child.begin()
        self._awake.update(range(1, len(self._children) + 1))

    def _advance(self, stage: int, what: str) -> None:
        if self._stage != stage:
            msg = f"could not call {what} of scope {self.name!r}: found stage={self._stage!r}"
            raise InvalidUsageError(msg, hint="call get_internal_summary and then set_external_summary, once each")
        self._stage = stage + 1

    # --- A turn ------------------------------------------------------------------------------------

    def push_external_progress(self, changes: PortChanges) -> None:
        """Learn how the frontiers of the scope's inputs moved; it takes effect in the next turn."""
        self._enter_frontiers(changes)

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        """Take a turn; the module lists its steps.

        Returns
        -------
        bool
            Whether any child called itself active, anything is tracked, or something waits to be sent.

        Raises
        ------
        InvalidUsageError
            If a buffer is not empty, or the scope has not learned its frontiers at the start.
        ProtocolError
            If a leaf, or a peer, breaks the rules.
        """
        if self._stage != 2:
            msg = f"could not run scope {self.name!r}: it has not received its frontiers at the start, or is closed"
            raise InvalidUsageError(msg, hint="call set_external_summary first")
        if not (consumed.is_empty() and internal.is_empty() and produced.is_empty()):
            msg = f"could not run scope {self.name!r}: found buffers with something from another turn"
            raise InvalidUsageError(msg, hint="drain the buffers after each turn")
        self._harvest_entries()
        self._exchange()
        self._apply_exchanged(consumed, produced)
        self._tracker.propagate_all()
        active = self._run_children()
        self._report_outputs(internal)
        if active or self._tracker.tracking_anything() or self.has_unsent:
            return True
        # Whatever is still on its way is covered by something positive here, and there is nothing.
        self._check_counts()
        return False

    @property
    def has_unsent(self) -> bool:
        """Whether anything was said that has not been exchanged, or not been applied."""
        return not (self._local.is_empty() and self._final.is_empty())

    def _harvest_entries(self) -> None:
        """Step 1: messages that entered are at hand inside, and taken from outside.

        The second half is noted with the outside's capabilities, with a minus: so it pairs with the
        messages it belongs to in one batch. Step 3 turns it back.
        """
        for port, entry in enumerate(self._entries):
            for time, count in entry.drain_pairs():
                for target in self._entry_edges[port]:
                    self._local.update((target.node, target.port, 1, *time), count)
                self._local.update((0, port, 0, *time), -count)

    def _exchange(self) -> None:
        """Step 2: send all that was said, and take in what arrived."""
        self._progcaster.send(self._local)
        self._progcaster.receive(self._final)

    def _apply_exchanged(self, consumed: PortChanges, produced: PortChanges) -> None:
        """Step 3: all that was exchanged, at once (invariant 2)."""
        outer = self._refines.to_outer
        for row, diff in self._final.drain_pairs():
            node, port, side = row[:3]
            if not (0 <= node < len(self._ports) and side in (0, 1) and 0 <= port < self._ports[node][side]):
                location = Location(node, port, bool(side))
                msg = f"{self._label} received a statement about unknown {location}, time={row[3:]!r}"
                raise ProtocolError(
                    msg,
                    hint="build the same scopes in the same order on all workers",
                    context={"scope": self.name, "location": location, "time": row[3:]},
                )
            if node:
                self._apply(row, diff)
            elif side:
                # Not tracked: nobody inside will ever say that it was consumed.
                produced.update(port, outer(row[3:]), diff)
            else:
                consumed.update(port, outer(row[3:]), -diff)

    def _run_children(self) -> bool:
        """Step 5: in the order of their numbers, those that have a cause to run."""
        self._send_frontiers()
        causes = sorted({*self._awake, *(node for node, _ in self._positive)})
        active = False
        for index in causes:
            # One by one: if a child's turn is refused, those after it still have their cause.
            self._awake.discard(index)
            child = self._children[index - 1]
            if child.operator is None:
                continue
            statements = self._local if child.local else self._final
            called_active = child.turn(
                outstanding=(index, 1) in self._positive,
                held=(index, 0) in self._positive,
                buffers=self._buffers,
                statements=statements,
            )
            active = active or called_active
            if child.operator is not None and child.recently_active:
                self._awake.add(index)
        return active

    # --- The tracker ---------------------------------------------------------------------------------

    def _enter_frontiers(self, changes: PortChanges) -> None:
        inner = self._refines.to_inner
        for port, time, diff in changes.drain():
            self._tracker.update_source((0, port), inner(time), diff)

    def _apply(self, row: tuple[int, ...], diff: int) -> None:
        """Count a statement, and hand it to the tracker."""
        node, port, side = row[:3]
        before = self._counts.get(row, 0)
        after = before + diff
        if after:
            self._counts[row] = after
        else:
            self._counts.pop(row, None)
        if (before > 0) != (after > 0):
            number = self._positive.get((node, side), 0) + (1 if after > 0 else -1)
            if number:
                self._positive[node, side] = number
            else:
                # Nothing is left: the child has one more turn in which it may be shut down.
                del self._positive[node, side]
                self._awake.add(node)
        self._tracker.update(Location(node, port, bool(side)), row[3:], diff)

    def _send_frontiers(self) -> None:
        """Pass on how frontiers moved, to those who want to know."""
        for node, moves in self._frontier_moves().items():
            child = self._children[node - 1]
            # A child that does not want frontiers gets none at all.
            if child.notify:
                child.receive_frontiers(moves)
                self._awake.add(node)

    def _frontier_moves(self) -> dict[int, list[tuple[int, Time, int]]]:
        """Return by child, how the frontiers of its inputs moved in the last propagation."""
        moves: dict[int, list[tuple[int, Time, int]]] = {}
        for (node, port, is_target), time, diff in self._tracker.drain_pushed():
            if node and is_target:
                moves.setdefault(node, []).append((port, time, diff))
        return moves

    def _output_changes(self) -> list[tuple[int, Time, int]]:
        """Return changes of what is possible at the scope's outputs, the outside's doings left out."""
        return self._tracker.drain_output()

    def _report_outputs(self, internal: PortChanges) -> None:
        """Step 6: several times inside may be one outside, so changes are filtered once more."""
        outer = self._refines.to_outer
        for move in self._expressed.apply((port, outer(time), diff) for port, time, diff in self._output_changes()):
            internal.update(*move)

    # --- What others ask -----------------------------------------------------------------------------

    @property
    def children(self) -> Sequence[Child]:
        """The operators inside; number i + 1 at place i."""
        return self._children

    @property
    def channel(self) -> int:
        """Number of the progress channel."""
        return self._progcaster.channel

    def check_quiescent(self) -> None:
        """Refuse counts below zero, when nothing is on its way any more.

        While batches are on their way a count may be negative: a message may have been consumed by
        one peer before another's announcement arrives here. When everything has arrived that is an
        error of some operator or transport.

        Raises
        ------
        NegativeCountError
            Naming the operator, the port and the time.
        """
        self._check_counts()
        for child in self._children:
            if isinstance(child.operator, Subgraph):
                child.operator.check_quiescent()

    def _check_counts(self) -> None:
        for row, count in self._counts.items():
            if count < 0:
                node, port, side = row[:3]
                child = self._children[node - 1]
                where = f"{child.label}, {'input' if side else 'output'} {port}"
                what = "messages" if side else "capabilities"
                msg = (
                    f"{self._label} came to rest with a negative count: "
                    f"{what} at {where}, time={row[3:]!r}, count={count!r}"
                )
                raise NegativeCountError(
                    msg,
                    hint="look for the operator or peer that consumes or drops more there than there ever was",
                    context={"operator": child.name, "index": node, "port": port},
                    location=where,
                    time=row[3:],
                    count=count,
                )

    def drop_child(self, index: int) -> None:
        """Drop an operator without its being finished.

        Nothing of it is left in this worker. What it held stays held as far as others know: frontiers
        downstream of it stop.

        Raises
        ------
        InvalidUsageError
            If there is no such child.
        """
        if not 1 <= index <= len(self._children):
            msg = f"could not drop child {index!r} of scope {self.name!r}: found {len(self._children)} children"
            raise InvalidUsageError(msg, hint="give the number of a child, from 1")
        self._children[index - 1].drop()

    def close(self) -> None:
        """Close the progress channel, and those of scopes inside: what still arrives is discarded."""
        if self._stage > 2:
            return
        self._stage = 3
        for child in self._children:
            child.drop()
        self._progcaster.close()


class Child:
    """An operator in a scope.

    Parameters
    ----------
    operator : Operate
        Asked once for its shape, its summary and its capabilities.
    index : int
        Number in the scope, from 1.
    identifier : int
        Number in the worker.
    arity : int
        Number of coordinates of times in the scope.
    peers : int
        Number of workers.
    events : EventStream, optional

    Raises
    ------
    InvalidShapeError
        If the summary has not one row per input and one column per output.
    ProtocolError
        If a leaf holds a capability at the start that is not held by every peer, or at no output.

    Examples
    --------
    >>> from spark_timely.progress.operate import Operator
    >>> child = Child(Operator("map", inputs=1, outputs=1), index=1, identifier=4, arity=1, peers=1)
    >>> child.name, child.recently_active
    ('map', True)
    """

    def __init__(
        self,
        operator: Operate,
        *,
        index: int,
        identifier: int,
        arity: int,
        peers: int,
        events: EventStream | None = None,
    ) -> None:
        self.operator: Operate | None = operator
        self.name = operator.name
        self.index = index
        self.identifier = identifier
        self.arity = arity
        self.inputs = operator.inputs
        self.outputs = operator.outputs
        self.local = operator.local
        self.notify = operator.notify
        self._peers = peers
        self._events = events
        # A fresh child gets a first turn without cause.
        self.recently_active = True
        self.dropped = False
        # By output: where its messages go.
        self.edges: dict[int, list[Target]] = {}
        summary, capabilities = operator.get_internal_summary()
        self.initial: Sequence[tuple[int, Time, int]] = capabilities.drain()
        # By input and output, the steps of each path; None for paths everywhere without a step.
        self.summary = None if summary is None else read_summary(self.label, self.inputs, self.outputs, summary, arity)
        # Frontiers of its inputs as it has received or will receive them, and the changes that it has not received yet.
        self._external = PortFrontiers(arity)
        self.external_buffer = PortChanges(arity)
        # Judges what a leaf says; made with its first statement, which not every operator makes soon.
        self._leaf: LeafStatements | None = None
        self._check_initial()

    @property
    def label(self) -> str:
        """Name and index, as errors and warnings show the operator."""
        return f"operator {self.name!r} [{self.index}]"

    def _check_initial(self) -> None:
        for output, time, count in self.initial:
            if not 0 <= output < self.outputs:
                raise unknown_port(self.label, "output", output, self.outputs, time)
            if self.local and (count < 0 or count % self._peers):
                msg = (
                    f"could not add {self.label}: found count={count!r} of capabilities at output {output!r}, "
                    f"time={time!r}, peers={self._peers!r}"
                )
                raise ProtocolError(
                    msg,
                    hint="give a multiple of the number of peers: every peer enters capabilities at the start for all "
                    "peers, and they are never exchanged",
                )

    def receive_frontiers(self, changes: Iterable[tuple[int, Time, int]]) -> None:
        """Note how frontiers of its inputs moved; it receives the discrete changes in its next turn.

        Raises
        ------
        ProtocolError
            If it was shut down.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("sink", inputs=1, outputs=0), index=1, identifier=4, arity=1, peers=1)
        >>> child.receive_frontiers([(0, (3,), 1), (0, (5,), 1)])
        >>> child.external_buffer
        PortChanges([(0, (3,), 1)])
        """
        if self.operator is None:
            if self.dropped:
                return
            moved = list(changes)
            if moved:
                msg = f"could not tell {self.label} of progress: it was shut down, changes={moved!r:.200}"
                raise ProtocolError(
                    msg,
                    hint="look for an operator or peer that used a time that it could no longer use: an empty frontier "
                    "must not come back",
                )
            return
        for move in self._external.apply(changes):
            self.external_buffer.update(*move)

    def frontier(self, port: int) -> tuple[Time, ...]:
        """Return the frontier of an input: the one that the operator has received or receives next.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("sink", inputs=1, outputs=0), index=1, identifier=4, arity=1, peers=1)
        >>> child.frontier(0)
        ()
        """
        return self._external[port].frontier.elements if port in self._external else ()

    def begin(self) -> None:
        """Let the operator learn its frontiers at the start; warn where none of its inputs has any.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> Child(Operator("source", inputs=0, outputs=1), index=1, identifier=4, arity=1, peers=1).begin()
        """
        if self.notify and self.inputs and self.external_buffer.is_empty():
            logger.warning(
                "%s waits for changes of frontiers, and no input of it can receive anything: "
                "found no capability upstream of its %d inputs",
                self.label,
                self.inputs,
            )
        if self.operator is not None:
            self.operator.set_external_summary(self.external_buffer)

    def turn(self, *, outstanding: bool, held: bool, buffers: Buffers, statements: ChangeBatch) -> bool:
        """Run the operator if there is a cause, and shut it down if there will be no more.

        A cause is any of: a frontier moved and it wants to know; it changed a count in its last
        turn, or called itself active; messages are outstanding at an input; it holds a capability.

        Parameters
        ----------
        outstanding : bool
            Whether messages are outstanding at any input, by all that was exchanged.
        held : bool
            Whether a capability is held at any output by any peer, by all that was exchanged.
        buffers : Buffers
            Empty, and left empty.
        statements : ChangeBatch
            Takes what the operator said, as rows of node, port, side and time.

        Returns
        -------
        bool
            Whether the operator called itself active.

        Raises
        ------
        ProtocolError
            If what a leaf says breaks the rules of the protocol; the message names operator, port
            and time.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("idle", inputs=0, outputs=0), index=1, identifier=4, arity=1, peers=1)
        >>> child.turn(outstanding=False, held=False, buffers=Buffers(1), statements=ChangeBatch(4))
        False
        >>> child.name
        'idle(tombstone)'
        """
        operator = self.operator
        if operator is None:
            return False
        moved = self.notify and not self.external_buffer.is_empty()
        active = False
        if moved or self.recently_active or outstanding or held:
            active = self._run(operator, buffers, statements, moved=moved)
        if not active and not held and self.notify and all(e.is_empty for e in self._external.values()):
            self._let_go()
            self.name = f"{self.name}(tombstone)"
        return active

    def _run(self, operator: Operate, buffers: Buffers, statements: ChangeBatch, *, moved: bool) -> bool:
        events = self._events
        if moved and events is not None:
            events.emit(PushProgressEvent(op_id=self.identifier))
        operator.push_external_progress(self.external_buffer)
        if not self.external_buffer.is_empty():
            msg = f"{self.label} left pushed changes unread: {list(self.external_buffer)!r:.200}"
            raise ProtocolError(msg, hint="take all changes that push_external_progress is given")
        if events is not None:
            events.emit(ScheduleEvent(id=self.identifier, start=True))
        if not buffers.are_empty():
            msg = f"could not run {self.label}: found buffers with something of another turn (invariant 11)"
            raise TimelyInternalError(msg)
        try:
            active = operator.pull_internal_progress(buffers.consumed, buffers.internal, buffers.produced)
        except BaseException:
            # A scope has applied inside what it reports, and will not say it again; of a leaf's report nobody knows
            # whether it is whole: dropped, it holds the frontier back.
            if self.local:
                buffers.drain()
            else:
                self._harvest(buffers, statements)
            raise
        worked = self._harvest(buffers, statements)
        self.recently_active = worked or active
        if events is not None:
            events.emit(ScheduleEvent(id=self.identifier, start=False, activity=worked))
        return active

    def _harvest(self, buffers: Buffers, statements: ChangeBatch) -> bool:
        """Check what the operator said, and turn it into statements; return whether there were any."""
        consumed, internal, produced = buffers.drain()
        if not (consumed or internal or produced):
            return False
        self._check_report(consumed, internal, produced)
        worked = False
        for port, time, diff in produced:
            # Without an edge the messages vanish, and do not count as work.
            for target in self.edges.get(port, ()):
                statements.update((target.node, target.port, 1, *time), diff)
                worked = True
        for port, time, diff in internal:
            statements.update((self.index, port, 0, *time), diff)
        for port, time, diff in consumed:
            statements.update((self.index, port, 1, *time), -diff)
        return worked or bool(internal) or bool(consumed)

    def _check_report(self, consumed: Report, internal: Report, produced: Report) -> None:
        for side, report, ports in (
            ("input", consumed, self.inputs),
            ("output", internal, self.outputs),
            ("output", produced, self.outputs),
        ):
            for port, time, _ in report:
                if not 0 <= port < ports:
                    raise unknown_port(self.label, side, port, ports, time)
        if self.local:
            if self._leaf is None:
                own = [(port, time, count // self._peers) for port, time, count in self.initial]
                self._leaf = LeafStatements(self.name, self.index, self.arity, self.summary, own)
            self._leaf.check(consumed, internal, produced)

    # --- The end -------------------------------------------------------------------------------

    def drop(self) -> None:
        """Free the operator without its being finished; what it held stays held, as far as others know.

        Examples
        --------
        >>> from spark_timely.progress.operate import Operator
        >>> child = Child(Operator("source", inputs=0, outputs=1), index=1, identifier=4, arity=1, peers=1)
        >>> child.drop()
        >>> child.operator is None, child.dropped
        (True, True)
        """
        if self.operator is not None:
            self.dropped = True
            self._let_go()

    def _let_go(self) -> None:
        operator, self.operator = self.operator, None
        self._leaf = None
        self.external_buffer.clear()
        if operator is not None:
            operator.close()


def unknown_port(label: str, side: str, port: int, ports: int, time: Time) -> ProtocolError:
    """Return the error for a statement about a port that an operator does not have.

    Examples
    --------
    >>> unknown_port("operator 'map' [1]", "input", 3, 1, (0,)).hint
    'number inputs from 0'
    """
    return ProtocolError(
        f"{label} made a statement about unknown {side} {port!r}, time={time!r}: found {side}s={ports!r}",
        hint=f"number {side}s from 0",
        context={"operator": label, "port": port, "time": time},
    )


class LeafStatements:
    """The accumulated statements of one leaf on one worker, and the judgement of the next ones.

    Parameters
    ----------
    name, index
        Of the operator, for errors.
    arity : int
    summary : by input and output, the steps of each path; None for paths everywhere without a step
    initial : iterable of (output, time, count)
        Capabilities at the start, those of this worker only.

    Notes
    -----
    Cost: for each gain, that of looking up one frontier; where no capability allows it, the messages
    consumed in the turn are looked through.

    Examples
    --------
    >>> leaf = LeafStatements("map", 1, 1, None, [(0, (0,), 1)])
    >>> leaf.check(consumed=[], internal=[(0, (0,), -1)], produced=[(0, (3,), 2)])
    >>> try:
    ...     leaf.check(consumed=[], internal=[], produced=[(0, (4,), 1)])
    ... except UnheldCapabilityError as error:
    ...     print(error.time, error.held)
    (4,) ()
    """

    __slots__ = ("_held", "_index", "_label", "_name", "_summary")

    def __init__(
        self,
        name: str,
        index: int,
        arity: int,
        summary: Sequence[dict[int, list[Time]]] | None,
        initial: Iterable[tuple[int, Time, int]],
    ) -> None:
        self._name = name
        self._index = index
        self._label = f"operator {name!r} [{index}]"
        self._summary = summary
        self._held = PortFrontiers(arity)
        self._held.apply(initial)

    def check(self, consumed: Report, internal: Report, produced: Report) -> None:
        """Judge the report of a turn, and remember it.

        Raises
        ------
        UnheldCapabilityError
            If nothing allows a gain.
        NegativeCountError
            If more was dropped than was held, or something was counted downwards.

        Examples
        --------
        >>> LeafStatements("sink", 1, 1, None, []).check([(0, (3,), 1)], [], [])
        """
        for what, side, counts in (("consumed", "input", consumed), ("produced", "output", produced)):
            for port, time, diff in counts:
                if diff < 0:
                    raise self._negative(what, side, port, time, diff)
        for what, gains in (("gained a capability", internal), ("produced a message", produced)):
            for port, time, diff in gains:
                if diff > 0 and not self._allowed(consumed, port, time):
                    raise self._unheld(what, port, time)
        self._held.apply(internal)
        for port, time, diff in internal:
            if diff < 0 and (count := self._held[port].count_for(time)) < 0:
                what = "capabilities"
                self._held.apply((at, held, -change) for at, held, change in internal)
                raise self._negative(what, "output", port, time, count)

    def _allowed(self, consumed: Report, port: int, time: Time) -> bool:
        held = self._held.get(port)
        if held is not None and held.less_equal(time):
            return True
        for source, at, _ in consumed:
            if self._summary is None:
                if all(a <= t for a, t in zip(at, time, strict=True)):
                    return True
                continue
            # Others trust the summary when they compute frontiers.
            for steps in self._summary[source].get(port, ()):
                if all(a + s <= t for a, s, t in zip(at, steps, time, strict=True)):
                    return True
        return False

    def _unheld(self, what: str, port: int, time: Time) -> UnheldCapabilityError:
        held = self._held.get(port)
        elements = () if held is None else held.frontier.elements
        return UnheldCapabilityError(
            f"{self._label} {what} at output {port!r}, time={time!r}, "
            f"which nothing allows: held={list(elements)!r:.200}",
            hint="hold a capability at the same output before the turn, or consume a message in the same turn on an "
            "input with a path to that output, at a time less or equal",
            context={"operator": self._name, "index": self._index, "port": port},
            time=time,
            held=elements,
        )

    def _negative(self, what: str, side: str, port: int, time: Time, count: int) -> NegativeCountError:
        return NegativeCountError(
            f"{self._label} reported a negative count: {what} at {side} {port!r}, time={time!r}, count={count!r}",
            hint="drop only what the operator holds, and count what it consumed and produced upwards",
            context={"operator": self._name, "index": self._index, "port": port},
            location=f"{self._label}, {side} {port}",
            time=time,
            count=count,
        )
