"""A worker: one of the peers that run the same dataflows, turn by turn.

Invariants
----------
1. Identifiers, numbers of dataflows and progress channels are given in sequence and never again.
2. All workers build the same dataflows in the same order; they may drop them in any order, and at
   different times: while only some have dropped one, the others at worst wait.
3. What arrives for a dataflow that is gone is discarded, whether it was dropped or came to its end; what
   arrives for one that is still to be built is kept until it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.errors import InvalidUsageError, MissingError
from spark_timely.progress.broadcast import ProgressMode
from spark_timely.progress.child import Buffers
from spark_timely.progress.events import EventSink, EventStream, OperatesEvent, ScheduleEvent
from spark_timely.progress.operate import PortChanges, Time
from spark_timely.progress.subgraph import Subgraph
from spark_timely.progress.subgraph_builder import SubgraphBuilder
from spark_timely.progress.summary import SameTimes
from spark_timely.progress.transport import MemoryNetwork, Transport

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Worker"]


class Worker:
    """Runs dataflows, each a scope of operators.

    Parameters
    ----------
    transport : Transport, optional
        Access to the peers; a worker without any if not given.
    events : callable of one event, optional
        Where events go. It may raise: it is then detached and reported once.
    mode : ProgressMode
        When statements are sent to peers.

    Examples
    --------
    >>> from spark_timely.progress.input_handle import InputHandle
    >>> from spark_timely.progress.location import Source, Target
    >>> from spark_timely.progress.operate import Operator
    >>> worker = Worker()
    >>> scope = worker.new_dataflow("example")
    >>> handle = InputHandle()
    >>> sink = scope.add_child(Operator("sink", inputs=1, outputs=0))
    >>> scope.connect(handle.join(scope), Target(sink, 0))
    >>> dataflow = worker.add(scope)
    >>> handle.advance_to(5)
    >>> _ = [worker.step() for _ in range(3)]
    >>> worker.dataflow(dataflow).children[0].frontier(0)
    ((5,),)
    >>> handle.close()
    >>> while worker.step():
    ...     pass
    >>> worker.dataflows
    []
    """

    def __init__(
        self,
        transport: Transport | None = None,
        *,
        events: EventSink | None = None,
        mode: ProgressMode = ProgressMode.EAGER,
    ) -> None:
        self.transport: Transport = MemoryNetwork().transports[0] if transport is None else transport
        self.events = None if events is None else EventStream(events)
        self.mode = mode
        self._identifiers = 0
        self._channels = 0
        self._numbers = 0
        self._dataflows: dict[int, Subgraph] = {}
        self._known_as: dict[int, int] = {}
        self._buffers: dict[int, Buffers] = {}

    @property
    def index(self) -> int:
        """Number of this worker among its peers."""
        return self.transport.index

    @property
    def peers(self) -> int:
        """Number of workers, this one included."""
        return self.transport.peers

    @property
    def dataflows(self) -> list[int]:
        """Numbers of the dataflows that run."""
        return list(self._dataflows)

    def new_identifier(self) -> int:
        """Return a number never given before by this worker.

        Examples
        --------
        >>> Worker().new_identifier()
        0
        """
        self._identifiers += 1
        return self._identifiers - 1

    def new_channel(self) -> int:
        """Return the number of the next progress channel.

        Examples
        --------
        >>> Worker().new_channel()
        0
        """
        self._channels += 1
        return self._channels - 1

    def new_dataflow(self, name: str = "Dataflow", *, minimum: Time = (0,)) -> SubgraphBuilder:
        """Return the builder of a dataflow; `add` makes it run.

        Parameters
        ----------
        name : str
        minimum : tuple of int
            Least time; its length is the number of coordinates of times.

        Examples
        --------
        >>> Worker().new_dataflow("example", minimum=(0, 0)).arity
        2
        """
        self._numbers += 1
        return SubgraphBuilder(
            self,
            name,
            index=self._numbers - 1,
            parent_path=(),
            refines=SameTimes(len(minimum)),
            minimum=minimum,
        )

    def add(self, builder: SubgraphBuilder) -> int:
        """Build a dataflow and begin to run it; return its number.

        Raises
        ------
        InvalidUsageError
            If it has inputs or outputs, which lead nowhere, or belongs to another worker.

        Examples
        --------
        >>> worker = Worker()
        >>> worker.add(worker.new_dataflow("example"))
        0
        """
        if builder.worker is not self or len(builder.path) != 1:
            msg = f"could not add dataflow {builder.name!r}: it was begun as {list(builder.path)!r} by another"
            raise InvalidUsageError(msg, hint="build each dataflow with new_dataflow of the worker that runs it")
        subgraph = builder.build()
        if subgraph.inputs or subgraph.outputs:
            subgraph.close()
            msg = (
                f"could not add dataflow {builder.name!r}: found inputs={subgraph.inputs!r}, "
                f"outputs={subgraph.outputs!r}"
            )
            raise InvalidUsageError(msg, hint="a dataflow has no outside: messages come from handles and operators")
        if self.events is not None:
            self.events.emit(OperatesEvent(builder.identifier, builder.path, builder.name))
        subgraph.get_internal_summary()
        subgraph.set_external_summary(PortChanges(builder.arity))
        self._dataflows[builder.index] = subgraph
        self._known_as[builder.index] = builder.identifier
        self._buffers[builder.index] = Buffers(builder.arity)
        return builder.index

    def dataflow(self, number: int) -> Subgraph:
        """Return a dataflow that runs.

        Raises
        ------
        MissingError
            If it came to its end, was dropped, or never was.

        Examples
        --------
        >>> worker = Worker()
        >>> worker.dataflow(worker.add(worker.new_dataflow("example"))).name
        'example'
        """
        try:
            return self._dataflows[number]
        except KeyError:
            what = "never was" if number >= self._numbers or number < 0 else "came to its end or was dropped"
            msg = f"could not find dataflow {number!r}: it {what}, running={self.dataflows!r:.200}"
            raise MissingError(
                msg, hint="ask for a dataflow that runs: numbers of dataflows are never used again"
            ) from None

    def step(self) -> bool:
        """Give each dataflow a turn; return whether any is left that is not complete.

        A dataflow that is complete is dropped.

        Examples
        --------
        >>> Worker().step()
        False
        """
        for number in self.dataflows:
            self.step_one(number)
        return bool(self._dataflows)

    def step_one(self, number: int) -> bool:
        """Give one dataflow a turn; return whether it is not complete.

        Examples
        --------
        >>> worker = Worker()
        >>> worker.step_one(worker.add(worker.new_dataflow("example")))
        False
        """
        subgraph = self.dataflow(number)
        buffers = self._buffers[number]
        identifier = self._known_as[number]
        if self.events is not None:
            self.events.emit(ScheduleEvent(id=identifier, start=True))
        active = subgraph.pull_internal_progress(buffers.consumed, buffers.internal, buffers.produced)
        if self.events is not None:
            self.events.emit(ScheduleEvent(id=identifier, start=False, activity=False))
        if not active:
            self.drop(number)
        return active

    def drop(self, number: int) -> None:
        """Drop a dataflow, complete or not: its operators are freed and its channels closed.

        Raises
        ------
        MissingError
            If it does not run.

        Examples
        --------
        >>> worker = Worker()
        >>> worker.drop(worker.add(worker.new_dataflow("example")))
        >>> worker.dataflows
        []
        """
        subgraph = self.dataflow(number)
        del self._dataflows[number], self._buffers[number], self._known_as[number]
        subgraph.close()

    def check_quiescent(self) -> None:
        """Refuse negative counts in any dataflow, when nothing is on its way between workers.

        Raises
        ------
        NegativeCountError
            Naming operator, port and time.

        Examples
        --------
        >>> Worker().check_quiescent()
        """
        for subgraph in self._dataflows.values():
            subgraph.check_quiescent()

    def __iter__(self) -> Iterator[Subgraph]:
        """Iterate over the dataflows that run."""
        return iter(list(self._dataflows.values()))
