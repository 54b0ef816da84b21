"""Exchange of progress statements between the workers that run one scope.

A statement says how counts of pointstamps changed. A `subgraph.Subgraph` sends those of its operators and receives
those of all workers, by a `Progcaster`. Nothing takes effect before it was exchanged, not even at its own worker.

The broadcast goes by a `Transport`, which carries every batch of a worker to every worker, itself included. It may
delay, and interleave different senders at will, but delivers each sender's batches in the order in which they were
sent, each once. `LocalTransport` is one for workers of one process; dataflows over logs need none.

Invariants
----------
1. A batch has everything that the operators stated since the last batch, together: no part overtakes another.
2. A worker sends in each turn what it has: nothing waits here that others may be waiting for.
3. For one receiver and one sender, batches arrive in order and once. If they did not, frontiers might pass
   times that are still to come.
4. Channels are numbered from 0 in the order in which they are opened, the same on all workers;
   numbers are never used again.
5. A batch for a channel that was open and is gone is discarded; one for a channel that is not open
   yet is kept until it is. The number tells which.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spark_timely.errors import InvalidUsageError, ProtocolError
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.events import EventStream, PointstampChange, ProgressEvent, time_text
from spark_timely.time.antichain import DiffArray, IntArray

__all__ = ["ChannelTable", "LocalTransport", "Progcaster", "ProgressBatch", "Transport"]


@dataclass(frozen=True, slots=True, eq=False)
class ProgressBatch:
    """Statements that a worker made about one scope, to be applied together.

    Parameters
    ----------
    source : int
        Index of the worker that sent it.
    channel : int
        Progress channel of the scope.
    seq_no : int
        0, 1, 2, … for each source and channel.
    rows : ndarray of int64 or uint64, shape (n, 3 + k)
        Node, port, 1 for a target and 0 for a source, and the k coordinates of the time. Read-only.
    diffs : ndarray of int64, shape (n,)
        Changes of the counts. Read-only.

    Examples
    --------
    >>> import numpy as np
    >>> batch = ProgressBatch(0, 0, 0, np.array([[2, 0, 1, 7]]), np.array([3]))
    >>> batch.rows.shape
    (1, 4)
    """

    source: int
    channel: int
    seq_no: int
    rows: IntArray
    diffs: DiffArray

    def __post_init__(self) -> None:
        self.rows.flags.writeable = False
        self.diffs.flags.writeable = False


class Transport(Protocol):
    """One worker's access to its peers.

    A worker sends on a channel only after opening it. What `receive` returned is never returned
    again. After `close`, nothing is received on the channel any more, and batches that still arrive
    are discarded.
    """

    @property
    def index(self) -> int:
        """Number of this worker among its peers."""

    @property
    def peers(self) -> int:
        """Number of workers, this one included."""

    def open(self, channel: int) -> None:
        """Begin to receive on the channel; channels are opened in the order of their numbers."""

    def close(self, channel: int) -> None:
        """Discard what came and will come on the channel."""

    def send(self, batch: ProgressBatch) -> None:
        """Send a batch to every worker, this one included."""

    def receive(self, channel: int) -> list[ProgressBatch]:
        """Return what newly arrived on the channel, each sender's batches in order."""


class ChannelTable:
    """Batches that arrived, by channel: kept, handed out or discarded.

    The part that transports share: it tells channels that are gone from those still to be opened.

    Examples
    --------
    >>> table = ChannelTable()
    >>> import numpy as np
    >>> batch = ProgressBatch(0, 0, 0, np.array([[2, 0, 1, 7]]), np.array([3]))
    >>> table.deliver(batch)        # not open yet: kept
    True
    >>> table.open(0)
    >>> len(table.receive(0))
    1
    >>> table.close(0)
    >>> table.deliver(batch)        # gone: discarded
    False
    """

    __slots__ = ("_next", "_waiting", "discarded")

    def __init__(self) -> None:
        self._next = 0
        # Open channels, and those to come for which something arrived.
        self._waiting: dict[int, deque[ProgressBatch]] = {}
        self.discarded = 0
        """Number of batches that came for channels that are gone."""

    def open(self, channel: int) -> None:
        """Open the next channel.

        Raises
        ------
        InvalidUsageError
            If the channel is not the next one: numbers are given in sequence, and once.

        Examples
        --------
        >>> ChannelTable().open(0)
        """
        if channel != self._next:
            msg = f"could not open progress channel {channel!r}: the next one is {self._next!r}"
            raise InvalidUsageError(msg, hint="open channels in the order of their numbers, each once")
        self._next += 1
        self._waiting.setdefault(channel, deque())

    def close(self, channel: int) -> None:
        """Close a channel; closing one that is not open does nothing.

        Examples
        --------
        >>> table = ChannelTable()
        >>> table.open(0)
        >>> table.close(0)
        """
        if channel < self._next:
            self._waiting.pop(channel, None)

    def deliver(self, batch: ProgressBatch) -> bool:
        """Take in a batch that arrived; return whether it was kept.

        Examples
        --------
        >>> import numpy as np
        >>> ChannelTable().deliver(ProgressBatch(0, 5, 0, np.empty((0, 4), np.int64), np.empty(0, np.int64)))
        True
        """
        queue = self._waiting.get(batch.channel)
        if queue is None:
            if batch.channel < self._next:
                self.discarded += 1
                return False
            queue = self._waiting[batch.channel] = deque()
        queue.append(batch)
        return True

    def receive(self, channel: int) -> list[ProgressBatch]:
        """Return what arrived on an open channel since the last call.

        Examples
        --------
        >>> table = ChannelTable()
        >>> table.open(0)
        >>> table.receive(0)
        []
        """
        queue = self._waiting.get(channel)
        if channel >= self._next or queue is None:
            msg = f"could not receive on progress channel {channel!r}: it is not open"
            raise InvalidUsageError(msg, hint="ask while the dataflow of this channel is built and not dropped")
        if not queue:
            return []
        batches = list(queue)
        queue.clear()
        return batches

    def waiting(self) -> dict[int, int]:
        """Return the number of batches that wait, by channel, for those with any.

        Examples
        --------
        >>> ChannelTable().waiting()
        {}
        """
        return {channel: len(queue) for channel, queue in self._waiting.items() if queue}


class LocalTransport(ChannelTable):
    """The transport of a worker without peers: what it sends has arrived.

    Examples
    --------
    >>> LocalTransport().peers
    1
    """

    index = 0
    peers = 1

    def send(self, batch: ProgressBatch) -> None:
        """Take in a batch of this worker.

        Examples
        --------
        >>> import numpy as np
        >>> transport = LocalTransport()
        >>> transport.open(0)
        >>> transport.send(ProgressBatch(0, 0, 0, np.empty((0, 4), np.int64), np.empty(0, np.int64)))
        >>> len(transport.receive(0))
        1
        """
        self.deliver(batch)


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
    events : EventStream, optional

    Notes
    -----
    Source: timely `progress/broadcast.rs`.

    Examples
    --------
    >>> from spark_timely.progress.broadcast import LocalTransport
    >>> caster = Progcaster(LocalTransport(), channel=0, arity=1, path=(0,), identifier=0)
    >>> said, heard = ChangeBatch(4), ChangeBatch(4)
    >>> said.update((1, 0, 0, 7), -1)
    >>> caster.send(said)
    >>> caster.receive(heard)
    >>> said.is_empty(), list(heard)
    (True, [((1, 0, 0, 7), -1)])
    """

    def __init__(
        self,
        transport: Transport,
        *,
        channel: int,
        arity: int,
        path: tuple[int, ...],
        identifier: int,
        events: EventStream | None = None,
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._arity = arity
        self._path = path
        self._identifier = identifier
        self._events = events
        self._sent = 0
        # By sender: number of the batch that comes next.
        self._expected = [0] * transport.peers
        transport.open(channel)

    @property
    def channel(self) -> int:
        """Number of the progress channel."""
        return self._channel

    def send(self, changes: ChangeBatch) -> None:
        """Send all statements, and leave none.

        Examples
        --------
        >>> from spark_timely.progress.broadcast import LocalTransport
        >>> caster = Progcaster(LocalTransport(), channel=0, arity=1, path=(0,), identifier=0)
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
        >>> from spark_timely.progress.broadcast import LocalTransport
        >>> caster = Progcaster(LocalTransport(), channel=0, arity=1, path=(0,), identifier=0)
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
        >>> from spark_timely.progress.broadcast import LocalTransport
        >>> Progcaster(LocalTransport(), channel=0, arity=1, path=(0,), identifier=0).close()
        """
        self._transport.close(self._channel)

    def _check(self, batch: ProgressBatch) -> None:
        where = f"progress channel {self._channel!r} of scope {list(self._path)!r}"
        if not 0 <= batch.source < len(self._expected):
            msg = f"could not receive on {where}: unknown worker {batch.source!r}, peers={len(self._expected)!r}"
            raise ProtocolError(msg, hint="start all workers of a dataflow with the same number of peers")
        expected = self._expected[batch.source]
        if batch.seq_no != expected:
            msg = f"could not receive on {where}: worker {batch.source!r} sent batch {batch.seq_no!r}, {expected=!r}"
            raise ProtocolError(
                msg,
                hint="let the transport deliver each batch once, in the order in which its sender sent it",
            )
        if batch.rows.ndim != 2 or batch.rows.shape[1] != self._arity + 3:
            msg = f"could not receive on {where}: found statements of shape={batch.rows.shape!r}, arity={self._arity!r}"
            raise ProtocolError(msg, hint="build the same scopes in the same order on all workers")
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
