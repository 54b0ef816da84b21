"""Events for observers of progress tracking: progress sent and received, operators scheduled, frontiers pushed.

`worker`, `subgraph` and `broadcast` emit them, as timely's logging does. Events of captured streams, which are data,
are those of `protocol.event`.

An observer gives the worker a *sink*: a callable of one argument (``list.append`` is one). A sink that raises is
detached and reported once by Python's logging, and progress continues without it. Where no sink is given nothing is
built and nothing is called.

Lists of pointstamps in a `ProgressEvent` are (node, port, time as text, change of the count);
node 0 is the outside of the scope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_timely.masking import masked_logger

__all__ = [
    "ChannelsEvent",
    "Event",
    "EventSink",
    "EventStream",
    "OperatesEvent",
    "PointstampChange",
    "ProgressEvent",
    "PushProgressEvent",
    "ScheduleEvent",
    "time_text",
]

logger = masked_logger(__name__)

PointstampChange: TypeAlias = "tuple[int, int, str, int]"
"""Node, port, time as text, change."""


@dataclass(frozen=True, slots=True)
class OperatesEvent:
    """An operator was added to a scope, or a dataflow to a worker.

    Parameters
    ----------
    id : int
        Identifier, unique in the worker.
    addr : tuple of int
        Path of indices from the root.
    name : str

    Examples
    --------
    >>> OperatesEvent(id=1, addr=(0, 1), name="input").addr
    (0, 1)
    """

    id: int
    addr: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class ChannelsEvent:
    """Messages of a source are to be expected at a target.

    Parameters
    ----------
    id : int
        Identifier, unique in the worker.
    scope_addr : tuple of int
        Path of the scope that holds both ends.
    source, target : tuple of int
        (node, port) of the output and of the input.

    Examples
    --------
    >>> ChannelsEvent(id=3, scope_addr=(0,), source=(1, 0), target=(2, 0)).target
    (2, 0)
    """

    id: int
    scope_addr: tuple[int, ...]
    source: tuple[int, int]
    target: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PushProgressEvent:
    """An operator is about to receive changes of the frontiers of its inputs.

    Examples
    --------
    >>> PushProgressEvent(op_id=2).op_id
    2
    """

    op_id: int


@dataclass(frozen=True, slots=True)
class ScheduleEvent:
    """An operator begins or ends a turn.

    Parameters
    ----------
    id : int
        Identifier of the operator.
    start : bool
        Whether this is the beginning.
    activity : bool or None
        At the end: whether the turn changed any count. Not whether the operator called itself active.

    Examples
    --------
    >>> ScheduleEvent(id=2, start=False, activity=True).activity
    True
    """

    id: int
    start: bool
    activity: bool | None = None


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A batch of progress statements is sent to all peers, or received from one.

    Parameters
    ----------
    is_send : bool
    source : int
        Index of the worker that sent the batch.
    channel : int
        Progress channel of the scope.
    seq_no : int
        Number of the batch among those of this sender on this channel.
    addr : tuple of int
        Path of the scope.
    identifier : int
        Identifier of the scope as an operator.
    messages : list of (node, port, time, change)
        Changes of the messages outstanding at targets.
    internal : list of (node, port, time, change)
        Changes of the capabilities held at sources.

    Examples
    --------
    >>> event = ProgressEvent(is_send=True, source=0, channel=1, seq_no=0, addr=(0,), identifier=0,
    ...                       messages=[(2, 0, "0", 3)], internal=[(1, 0, "0", -1)])
    >>> event.messages
    [(2, 0, '0', 3)]
    """

    is_send: bool
    source: int
    channel: int
    seq_no: int
    addr: tuple[int, ...]
    identifier: int
    messages: list[PointstampChange] = field(default_factory=list)
    internal: list[PointstampChange] = field(default_factory=list)


Event: TypeAlias = OperatesEvent | ChannelsEvent | PushProgressEvent | ScheduleEvent | ProgressEvent
EventSink: TypeAlias = Callable[[Event], object]


def time_text(time: tuple[int, ...]) -> str:
    """Return a time as events show it: a number for one coordinate, else all in parentheses.

    Examples
    --------
    >>> time_text((3,)), time_text((3, 1))
    ('3', '(3, 1)')
    """
    return str(time[0]) if len(time) == 1 else str(time)


class EventStream:
    """A sink that cannot hurt: detached and reported the first time it raises.

    Parameters
    ----------
    sink : callable of one event

    Examples
    --------
    >>> seen = []
    >>> stream = EventStream(seen.append)
    >>> stream.emit(PushProgressEvent(op_id=2))
    >>> seen, stream.attached
    ([PushProgressEvent(op_id=2)], True)
    """

    __slots__ = ("_sink",)

    def __init__(self, sink: EventSink) -> None:
        self._sink: EventSink | None = sink

    @property
    def attached(self) -> bool:
        """Whether the sink still gets events."""
        return self._sink is not None

    def emit(self, event: Event) -> None:
        """Give the sink an event, if it is still attached.

        Examples
        --------
        >>> EventStream(print).emit(PushProgressEvent(op_id=2))
        PushProgressEvent(op_id=2)
        """
        if self._sink is None:
            return
        try:
            self._sink(event)
        except Exception as error:  # noqa: BLE001 - whatever a sink raises must not stop progress
            self._sink = None
            logger.warning(
                "the sink of progress events raised %s and was detached: %s; progress continues without events",
                type(error).__name__,
                error,
            )
