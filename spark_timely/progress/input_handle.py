"""The handle by which a program outside of a dataflow gives it input, and says which times are complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.errors import ClosedError, InvalidShapeError, InvalidUsageError, NotBeyondError
from spark_timely.progress.location import Source
from spark_timely.progress.operate import InternalSummary, Operator, PortChanges, Time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.progress.subgraph_builder import SubgraphBuilder

__all__ = ["InputHandle"]


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
