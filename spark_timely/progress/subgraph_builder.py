"""Building a scope: operators and edges are collected, then frozen into a `Subgraph`.

Invariants
----------
1. Every worker builds the same scopes in the same order: identifiers and progress channels are given in
   sequence, and are the same on all of them.
2. An edge is a statement, moves no data, and is kept twice: to count messages, and for reachability.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from spark_timely.errors import InvalidUsageError
from spark_timely.progress.broadcast import Progcaster, ProgressMode
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.child import Child
from spark_timely.progress.events import ChannelsEvent, EventStream, OperatesEvent
from spark_timely.progress.location import Source, Target
from spark_timely.progress.operate import Operate, Time
from spark_timely.progress.reachability import Builder
from spark_timely.progress.subgraph import Subgraph
from spark_timely.progress.summary import NestedTimes, Refines, SameTimes

if TYPE_CHECKING:
    from spark_timely.progress.transport import Transport

__all__ = ["SubgraphBuilder", "WorkerContext"]


class WorkerContext(Protocol):
    """What a scope needs of the worker that runs it; `Worker` is one."""

    @property
    def transport(self) -> Transport:
        """Access to the peers."""

    @property
    def events(self) -> EventStream | None:
        """Where events go, if anywhere."""

    @property
    def mode(self) -> ProgressMode:
        """When statements are sent."""

    def new_identifier(self) -> int:
        """Return a number never given before by this worker."""

    def new_channel(self) -> int:
        """Return the number of the next progress channel."""


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
        self.identifier = worker.new_identifier() if identifier is None else identifier
        self._children: list[Child] = []
        # Child 0 is the outside; the others are numbered from 1.
        self._allotted = 1
        self._edges: list[tuple[Source, Target]] = []
        self._entries: list[ChangeBatch] = []
        self._outputs = 0
        self._built = False

    @property
    def arity(self) -> int:
        """Number of coordinates of times inside."""
        return self.refines.inner_arity

    @property
    def peers(self) -> int:
        """Number of workers."""
        return self.worker.transport.peers

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
        self._entries.append(ChangeBatch(self.arity) if entry is None else entry)
        return Target(self.index, len(self._entries) - 1)

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
        self._outputs += 1
        return Source(self.index, self._outputs - 1)

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
        return self._entries[port]

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
        identifier = self.worker.new_identifier()
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
            If the scope is built.
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
        if identifier is None:
            identifier = self.worker.new_identifier()
        events = self.worker.events
        if events is not None:
            events.emit(OperatesEvent(identifier, (*self.path, index), operator.name))
        self._children.append(
            Child(
                operator,
                index=index,
                identifier=identifier,
                arity=self.arity,
                peers=self.peers,
                events=events,
            )
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
        refines: Refines = NestedTimes(self.arity) if nested else SameTimes(self.arity)
        return SubgraphBuilder(
            self.worker,
            name,
            index=self.allocate_child_id(),
            parent_path=self.path,
            refines=refines,
            minimum=refines.to_inner_one(self.minimum),
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
        self._check_children()
        inputs = len(self._entries)
        builder = Builder(self.arity)
        # Nothing flows through the outside.
        builder.add_node(0, self._outputs, inputs)
        for child in self._children:
            builder.add_node(child.index, child.inputs, child.outputs, child.summary)
        entry_edges: list[list[Target]] = [[] for _ in range(inputs)]
        for source, target in self._edges:
            self._check_edge(source, target)
            if source.node:
                self._children[source.node - 1].edges.setdefault(source.port, []).append(target)
            else:
                entry_edges[source.port].append(target)
            builder.add_edge(source, target)
        tracker, scope_summary = builder.build()
        self._built = True
        return Subgraph(
            name=self.name,
            path=self.path,
            inputs=inputs,
            outputs=self._outputs,
            children=self._children,
            entries=self._entries,
            entry_edges=entry_edges,
            refines=self.refines,
            tracker=tracker,
            scope_summary=scope_summary,
            progcaster=Progcaster(
                self.worker.transport,
                channel=self.worker.new_channel(),
                arity=self.arity,
                path=self.path,
                identifier=self.identifier,
                mode=self.worker.mode,
                events=self.worker.events,
            ),
        )

    def _check_open(self, attempt: str) -> None:
        if self._built:
            msg = f"could not {attempt} scope {self.name!r} {list(self.path)!r}: it is built"
            raise InvalidUsageError(msg, hint="operators, ports and edges are fixed once a scope is built")

    def _check_children(self) -> None:
        self._children.sort(key=lambda child: child.index)
        numbers = [child.index for child in self._children]
        if numbers == list(range(1, len(numbers) + 1)):
            return
        doubled = sorted({n for n, m in pairwise(numbers) if n == m})
        missing = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
        outside = [n for n in numbers if n < 1]
        names = {child.index: child.name for child in self._children}
        msg = (
            f"could not build scope {self.name!r} {list(self.path)!r}: numbers of children have gaps or are doubled, "
            f"missing={missing!r:.200}, doubled={[(n, names[n]) for n in doubled]!r:.200}, outside={outside!r:.200}"
        )
        raise InvalidUsageError(msg, hint="take each number from allocate_child_id, and add a child for each")

    def _check_edge(self, source: Source, target: Target) -> None:
        inputs, outputs = len(self._entries), self._outputs
        for side, (node, port) in (("source", source), ("target", target)):
            if node == 0:
                ports = inputs if side == "source" else outputs
            elif 0 < node <= len(self._children):
                child = self._children[node - 1]
                ports = child.outputs if side == "source" else child.inputs
            else:
                ports = -1
            if not 0 <= port < ports:
                found = f"{len(self._children)} children" if ports < 0 else f"{ports} ports there"
                msg = (
                    f"could not build scope {self.name!r} {list(self.path)!r}: edge from {tuple(source)!r} to "
                    f"{tuple(target)!r} has an unknown {side}, found {found}"
                )
                raise InvalidUsageError(
                    msg, hint="an edge leads from (node, output) to (node, input); node 0 is the outside"
                )
