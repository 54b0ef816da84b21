"""A worker: one of the peers that run the same dataflows, turn by turn; and the handles that give it input.

A `Worker` has the dataflows, each a `subgraph.Subgraph`, and their identifiers; workers exchange progress by
`broadcast`. An `InputHandle` is for the program outside of a dataflow: by it the program gives messages and says which
times are complete. Tests that compare the library with timely run such workers; dataflows over logs, those of users,
need none. The worker of a compute instance is another one (`compute.drive.worker`).

Invariants
----------
1. Identifiers, numbers of dataflows and progress channels are given in sequence and never again.
2. All workers build the same dataflows in the same order; they may drop them in any order, and at
   different times: while only some have dropped one, the others at worst wait.
3. Progress that arrives for a dataflow that was dropped or has ended is discarded; for one that is still to be built it
   is kept until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.errors import ClosedError, InvalidShapeError, InvalidUsageError, MissingError, NotBeyondError
from spark_timely.progress.broadcast import LocalTransport, Transport
from spark_timely.progress.change_batch import Buffers, PortChanges
from spark_timely.progress.events import EventSink, EventStream, OperatesEvent, ScheduleEvent
from spark_timely.progress.operate import InternalSummary, Operator
from spark_timely.progress.reachability import Source
from spark_timely.progress.subgraph import Refines, Subgraph, SubgraphBuilder, WorkerContext
from spark_timely.time.antichain import Time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["InputHandle", "Worker"]


class Worker(WorkerContext):
    """Runs dataflows, each a scope of operators.

    Parameters
    ----------
    transport : Transport, optional
        Access to the peers; a worker without any if not given.
    events : callable of one event, optional
        Where events go. It may raise: it is then detached and reported once.

    Examples
    --------
    >>> from spark_timely.progress.worker import InputHandle
    >>> from spark_timely.progress.reachability import Source, Target
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

    def __init__(self, transport: Transport | None = None, *, events: EventSink | None = None) -> None:
        super().__init__(transport or LocalTransport(), None if events is None else EventStream(events))
        self._numbers = 0
        self._dataflows: dict[int, Subgraph] = {}

    @property
    def index(self) -> int:
        """Number of this worker among its peers."""
        return self.transport.index

    @property
    def dataflows(self) -> list[int]:
        """Numbers of the dataflows that run."""
        return list(self._dataflows)

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
            refines=Refines(len(minimum)),
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
            raise InvalidUsageError(msg, hint="let messages come from handles and operators: a dataflow has no outside")
        if self.events is not None:
            self.events.emit(OperatesEvent(builder.identifier, builder.path, builder.name))
        subgraph.get_internal_summary()
        subgraph.set_external_summary(PortChanges(builder.arity))
        self._dataflows[builder.index] = subgraph
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
        buffers = Buffers(1)  # a dataflow has no ports to speak of
        if self.events is not None:
            self.events.emit(ScheduleEvent(id=subgraph.identifier, start=True))
        active = subgraph.pull_internal_progress(buffers.consumed, buffers.internal, buffers.produced)
        if self.events is not None:
            self.events.emit(ScheduleEvent(id=subgraph.identifier, start=False, activity=False))
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
        del self._dataflows[number]
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


class InputHandle:
    """Input to a dataflow from outside, at a time that only moves forward.

    A handle may be advanced, and even closed, before it joins: the dataflow then begins with the
    handle's time. A scope may have any number of them.

    Parameters
    ----------
    minimum : int or tuple of int
        First time.
    name : str

    Examples
    --------
    >>> from spark_timely.progress.worker import Worker
    >>> scope = Worker().new_dataflow("example")
    >>> handle = InputHandle()
    >>> handle.advance_to(3)
    >>> handle.join(scope)
    Source(node=1, port=0)
    >>> handle.time
    (3,)
    """

    def __init__(self, minimum: int | Sequence[int] = 0, *, name: str = "Input") -> None:
        self.name = name
        self._time: Time = _as_time(minimum)
        self._closed = False
        self._operator: _Input | None = None

    @property
    def time(self) -> Time:
        """The time of what is sent next; what was before it is complete."""
        return self._time

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closed

    def advance_to(self, time: int | Sequence[int]) -> None:
        """Say that nothing will be sent any more at times not beyond `time`.

        Raises
        ------
        NotBeyondError
            If `time` is not beyond the handle's time.
        ClosedError
            If the handle is closed.

        Examples
        --------
        >>> handle = InputHandle()
        >>> handle.advance_to(3)
        >>> handle.time
        (3,)
        """
        after = _as_time(time)
        self._check_open("advance")
        if len(after) != len(self._time):
            msg = f"could not advance input {self.name!r} to time={after!r}: its times are like {self._time!r}"
            raise InvalidShapeError(msg, hint="give times with the same number of coordinates as the scope")
        if not all(a <= b for a, b in zip(self._time, after, strict=True)):
            msg = f"could not advance input {self.name!r} to time={after!r}: its time is {self._time!r} already"
            raise NotBeyondError(
                msg,
                hint="give a time at or after the present one: times only move forward",
                time=after,
                frontier=self._time,
            )
        if self._operator is not None and after != self._time:
            self._operator.pending_internal.update(0, self._time, -1)
            self._operator.pending_internal.update(0, after, 1)
        self._time = after

    def send(self, count: int = 1, /) -> None:
        """Count messages that were given to the data path at the handle's time.

        Raises
        ------
        ClosedError
            If the handle is closed.
        InvalidUsageError
            If it has not joined a scope, or the count is negative.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> handle = InputHandle()
        >>> _ = handle.join(Worker().new_dataflow("example"))
        >>> handle.send(3)
        """
        self._check_open("send to")
        if self._operator is None or count < 0:
            what = "it has not joined a scope" if self._operator is None else f"found count={count!r}"
            msg = f"could not send to input {self.name!r}: {what}"
            raise InvalidUsageError(msg, hint="join a scope first, and count upwards")
        self._operator.pending_produced.update(0, self._time, count)

    def close(self) -> None:
        """Say that nothing will be sent any more. Closing twice does nothing.

        Examples
        --------
        >>> handle = InputHandle()
        >>> handle.close()
        >>> handle.closed
        True
        """
        if self._closed:
            return
        self._closed = True
        if self._operator is not None:
            self._operator.pending_internal.update(0, self._time, -1)

    def join(self, scope: SubgraphBuilder) -> Source:
        """Make the handle an operator of a scope; return where its messages come from.

        Raises
        ------
        InvalidUsageError
            If it has joined a scope already, or its times do not fit the scope.

        Examples
        --------
        >>> from spark_timely.progress.worker import Worker
        >>> InputHandle().join(Worker().new_dataflow("example"))
        Source(node=1, port=0)
        """
        if self._operator is not None:
            msg = f"could not join scope {scope.name!r}: input {self.name!r} has joined a scope already"
            raise InvalidUsageError(msg, hint="use one handle for each input")
        minimum = scope.minimum
        if len(minimum) != len(self._time) or not all(a <= b for a, b in zip(minimum, self._time, strict=True)):
            msg = (
                f"could not join scope {scope.name!r}: input {self.name!r} has time={self._time!r}, "
                f"the least time of the scope is {minimum!r}"
            )
            raise InvalidUsageError(msg, hint="give the handle the minimum of the scope")
        self._operator = _Input(self.name, peers=scope.peers, minimum=minimum)
        self._operator.start(None if self._closed else self._time)
        return Source(scope.add_child(self._operator), 0)

    def _check_open(self, attempt: str) -> None:
        if self._closed:
            msg = f"could not {attempt} input {self.name!r}: it is closed"
            raise ClosedError(msg, hint="use another handle: a closed input stays closed")


def _as_time(time: int | Sequence[int]) -> Time:
    return (time,) if isinstance(time, int) else tuple(map(int, time))


class _Input(Operator):
    """The operator behind a handle: it reports what the handle did since its last turn."""

    def __init__(self, name: str, *, peers: int, minimum: Time) -> None:
        super().__init__(name, inputs=0, outputs=1, peers=peers, minimum=minimum)
        self.pending_internal = PortChanges(len(minimum))
        self.pending_produced = PortChanges(len(minimum))
        self._start: Time | None = minimum

    def start(self, time: Time | None) -> None:
        """Begin at a time, or closed.

        Every peer enters the same capabilities for all, and other peers' handles may be elsewhere:
        with peers this one begins at the minimum and moves in its first turn, before anything is sent.
        """
        if self.peers == 1:
            self._start = time
            return
        self.pending_internal.update(0, self.minimum, -1)
        if time is not None:
            self.pending_internal.update(0, time, 1)

    def get_internal_summary(self) -> tuple[InternalSummary, PortChanges]:
        capabilities = PortChanges(len(self.minimum))
        if self._start is not None:
            capabilities.update(0, self._start, self.peers)
        return None, capabilities

    def pull_internal_progress(self, consumed: PortChanges, internal: PortChanges, produced: PortChanges) -> bool:
        for port, time, diff in self.pending_internal.drain():
            internal.update(port, time, diff)
        for port, time, diff in self.pending_produced.drain():
            produced.update(port, time, diff)
        return False
