"""Exchange of progress statements between the workers that run one scope.

Each worker tells all workers, itself included, what its operators said, and hears what theirs said.
Nothing takes effect, at the worker that said it neither, before it was exchanged.

Invariants
----------
1. What is sent is everything that was said since the last batch, together: no part of it overtakes
   another, and batches arrive in the order in which they were sent.
2. A worker sends when others may be waiting for it: see `Progcaster.must_send`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from spark_timely.errors import ProtocolError
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.events import EventStream, PointstampChange, ProgressEvent, time_text
from spark_timely.progress.transport import ProgressBatch, Transport

if TYPE_CHECKING:
    from spark_timely.progress.operate import Time

__all__ = ["Progcaster", "ProgressMode"]


class ProgressMode(enum.Enum):
    """When a worker sends what it has to say.

    Examples
    --------
    >>> ProgressMode("demand")
    <ProgressMode.DEMAND: 'demand'>
    """

    EAGER = "eager"
    """In each turn."""

    DEMAND = "demand"
    """Only when it can make a difference to what was exchanged: fewer batches, the same frontiers.

    Rules 000.33 (a batch may wait) and 000.50 (announcements do not) are about this mode.
    """


class Progcaster:
    """Sends and receives the progress statements of one scope.

    Parameters
    ----------
    transport : Transport
        Its channel is opened here, and closed by `close`.
    channel : int
    arity : int
        Number of coordinates of times in the scope.
    path : tuple of int
        Path of the scope.
    identifier : int
        Number of the scope in the worker.
    mode : ProgressMode
    events : EventStream, optional

    Notes
    -----
    Source: timely `progress/broadcast.rs`.

    Examples
    --------
    >>> from spark_timely.progress.transport import MemoryNetwork
    >>> caster = Progcaster(MemoryNetwork().transports[0], channel=0, arity=1, path=(0,), identifier=0)
    >>> said, heard = ChangeBatch(4), ChangeBatch(4)
    >>> said.update((1, 0, 0, 7), -1)
    >>> caster.send(said)
    >>> caster.receive(heard)
    >>> said.is_empty(), list(heard)
    (True, [((1, 0, 0, 7), -1)])
    """

    __slots__ = (
        "_arity",
        "_channel",
        "_events",
        "_expected",
        "_identifier",
        "_path",
        "_sent",
        "_transport",
        "mode",
    )

    def __init__(
        self,
        transport: Transport,
        *,
        channel: int,
        arity: int,
        path: tuple[int, ...],
        identifier: int,
        mode: ProgressMode = ProgressMode.EAGER,
        events: EventStream | None = None,
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._arity = arity
        self._path = path
        self._identifier = identifier
        self.mode = mode
        self._events = events
        self._sent = 0
        # By sender: number of the batch that comes next.
        self._expected = [0] * transport.peers
        transport.open(channel)

    @property
    def channel(self) -> int:
        """Number of the progress channel."""
        return self._channel

    def must_send(self, changes: ChangeBatch, in_frontier: Callable[[int, int, int, Time], bool]) -> bool:
        """Tell whether statements must be sent now; if not, all of them may wait, for ever if need be.

        They must be sent if one of them

        - drops something that is in the frontier of what was exchanged, at its location: peers may
          be waiting for just that,
        - speaks of the outside (node 0): the scope's parent waits for the receipt, or
        - announces messages: an operator is run when messages for it have been announced, and could
          wait for ever for those whose announcement waits here.

        Parameters
        ----------
        changes : ChangeBatch
            Rows of node, port, side and time.
        in_frontier : callable of node, port, side and time
            Whether the time is in the frontier of the counts that were exchanged at a location.

        Examples
        --------
        >>> from spark_timely.progress.transport import MemoryNetwork
        >>> caster = Progcaster(MemoryNetwork().transports[0], channel=0, arity=1, path=(0,), identifier=0,
        ...                     mode=ProgressMode.DEMAND)
        >>> said = ChangeBatch(4)
        >>> said.update((1, 0, 0, 7), -1)
        >>> caster.must_send(said, lambda node, port, side, time: time == (5,))
        False
        """
        if changes.is_empty():
            return False
        if self.mode is ProgressMode.EAGER:
            return True
        for row, diff in changes.pairs():
            node, port, side = row[:3]
            if node == 0 or (diff > 0 and side) or (diff < 0 and in_frontier(node, port, side, row[3:])):
                return True
        return False

    def send(self, changes: ChangeBatch) -> None:
        """Send all statements, and leave none.

        Examples
        --------
        >>> from spark_timely.progress.transport import MemoryNetwork
        >>> caster = Progcaster(MemoryNetwork().transports[0], channel=0, arity=1, path=(0,), identifier=0)
        >>> caster.send(ChangeBatch(4))     # nothing said, nothing sent
        """
        rows, diffs = changes.drain()
        if not rows.shape[0]:
            return
        batch = ProgressBatch(self._transport.index, self._channel, self._sent, rows, diffs)
        self._sent += 1
        if self._events is not None:
            self._emit(batch, is_send=True)
        self._transport.send(batch)

    def receive(self, into: ChangeBatch) -> None:
        """Add what arrived from all workers.

        Raises
        ------
        ProtocolError
            If a batch of some worker is missing, doubled or out of order.

        Examples
        --------
        >>> from spark_timely.progress.transport import MemoryNetwork
        >>> caster = Progcaster(MemoryNetwork().transports[0], channel=0, arity=1, path=(0,), identifier=0)
        >>> caster.receive(ChangeBatch(4))
        """
        for batch in self._transport.receive(self._channel):
            self._check(batch)
            if self._events is not None:
                self._emit(batch, is_send=False)
            into.extend(batch.rows, batch.diffs)

    def close(self) -> None:
        """Close the channel: what still arrives is discarded.

        Examples
        --------
        >>> from spark_timely.progress.transport import MemoryNetwork
        >>> Progcaster(MemoryNetwork().transports[0], channel=0, arity=1, path=(0,), identifier=0).close()
        """
        self._transport.close(self._channel)

    def _check(self, batch: ProgressBatch) -> None:
        where = f"progress channel {self._channel!r} of scope {list(self._path)!r}"
        if not 0 <= batch.source < len(self._expected):
            msg = f"could not receive on {where}: unknown worker {batch.source!r}, peers={len(self._expected)!r}"
            raise ProtocolError(msg, hint="all workers of a dataflow are started with the same number of peers")
        expected = self._expected[batch.source]
        if batch.seq_no != expected:
            msg = f"could not receive on {where}: worker {batch.source!r} sent batch {batch.seq_no!r}, {expected=!r}"
            raise ProtocolError(
                msg,
                hint="a transport delivers each batch once, in the order in which its sender sent it",
            )
        if batch.rows.ndim != 2 or batch.rows.shape[1] != self._arity + 3:
            msg = f"could not receive on {where}: found statements of shape={batch.rows.shape!r}, arity={self._arity!r}"
            raise ProtocolError(msg, hint="all workers build the same scopes in the same order")
        self._expected[batch.source] += 1

    def _emit(self, batch: ProgressBatch, *, is_send: bool) -> None:
        messages: list[PointstampChange] = []
        internal: list[PointstampChange] = []
        # Bounded by the batch; only where somebody listens.
        for row, diff in zip(np.asarray(batch.rows).tolist(), batch.diffs.tolist(), strict=True):
            entry = (row[0], row[1], time_text(tuple(row[3:])), diff)
            (messages if row[2] else internal).append(entry)
        if self._events is not None:
            self._events.emit(
                ProgressEvent(
                    is_send=is_send,
                    source=batch.source,
                    channel=batch.channel,
                    seq_no=batch.seq_no,
                    addr=self._path,
                    identifier=self._identifier,
                    messages=messages,
                    internal=internal,
                )
            )
