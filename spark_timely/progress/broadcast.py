"""Exchange of progress statements between the workers that run one scope.

Each worker tells all workers, itself included, what its operators said, and hears what theirs said.
Nothing takes effect, at the worker that said it neither, before it was exchanged.

A transport carries every batch of a worker to every worker, itself included. It may delay, and
interleave different senders at will, but delivers each sender's batches in the order in which they
were sent, each once.

Invariants
----------
1. What is sent is everything that was said since the last batch, together: no part of it overtakes
   another, and batches arrive in the order in which they were sent.
2. A worker sends when others may be waiting for it: see `Progcaster.must_send`.
3. For one receiver and one sender, batches arrive in order and once. Broken, frontiers may pass
   times that are still to come.
4. Channels are numbered from 0 in the order in which they are opened, the same on all workers;
   numbers are never used again.
5. A batch for a channel that was open and is gone is discarded; one for a channel that is not open
   yet is kept until it is. The number tells which.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from spark_timely.errors import InvalidUsageError, ProtocolError
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.events import EventStream, PointstampChange, ProgressEvent, time_text
from spark_timely.time.arrays import DiffArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_timely.time.arrays import Time

__all__ = [
    "ChannelTable",
    "MemoryNetwork",
    "MemoryTransport",
    "Progcaster",
    "ProgressBatch",
    "ProgressMode",
    "Transport",
]


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
    """What arrived on which channel: kept, handed out or discarded.

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


class MemoryNetwork:
    """Workers of one process, connected through queues.

    Parameters
    ----------
    peers : int
        Number of workers.
    automatic : bool
        Whether batches arrive at once. If not they arrive by `deliver`, in whatever interleaving of
        senders the caller likes.

    Examples
    --------
    >>> import numpy as np
    >>> network = MemoryNetwork(2, automatic=False)
    >>> one, two = network.transports
    >>> one.open(0); two.open(0)
    >>> one.send(ProgressBatch(0, 0, 0, np.array([[2, 0, 1, 7]]), np.array([3])))
    >>> network.in_flight, two.receive(0)
    (2, [])
    >>> network.deliver(0, 1)
    True
    >>> len(two.receive(0))
    1
    """

    def __init__(self, peers: int = 1, *, automatic: bool = True) -> None:
        if peers < 1:
            msg = f"could not connect workers: found peers={peers!r}"
            raise InvalidUsageError(msg, hint="a network has at least one worker")
        self.peers = peers
        self.automatic = automatic
        # By sender and receiver: first in, first out (invariant 3).
        self._queues: dict[tuple[int, int], deque[ProgressBatch]] = {
            (sender, receiver): deque() for sender in range(peers) for receiver in range(peers)
        }
        self.transports = [MemoryTransport(self, index) for index in range(peers)]

    @property
    def in_flight(self) -> int:
        """Number of batches that were sent and have not arrived, counted once per receiver."""
        return sum(map(len, self._queues.values()))

    def links(self) -> list[tuple[int, int]]:
        """Return (sender, receiver) of each pair between which something is in flight.

        Examples
        --------
        >>> MemoryNetwork(2).links()
        []
        """
        return [link for link, queue in self._queues.items() if queue]

    def deliver(self, sender: int, receiver: int) -> bool:
        """Let the oldest batch between two workers arrive; return whether there was one.

        Examples
        --------
        >>> MemoryNetwork(2).deliver(0, 1)
        False
        """
        queue = self._queues[sender, receiver]
        if not queue:
            return False
        self.transports[receiver].channels.deliver(queue.popleft())
        return True

    def deliver_all(self) -> None:
        """Let everything arrive.

        Examples
        --------
        >>> MemoryNetwork(2).deliver_all()
        """
        for link in self.links():
            while self.deliver(*link):
                pass

    def post(self, batch: ProgressBatch, receivers: Iterable[int]) -> None:
        """Put a batch on its way to some workers.

        Examples
        --------
        >>> import numpy as np
        >>> network = MemoryNetwork(1)
        >>> network.post(ProgressBatch(0, 0, 0, np.empty((0, 4), np.int64), np.empty(0, np.int64)), [0])
        """
        for receiver in receivers:
            self._queues[batch.source, receiver].append(batch)
            if self.automatic:
                self.deliver(batch.source, receiver)


class MemoryTransport:
    """One worker's end of a `MemoryNetwork`.

    Examples
    --------
    >>> MemoryNetwork(2).transports[1].index
    1
    """

    def __init__(self, network: MemoryNetwork, index: int) -> None:
        self._network = network
        self._index = index
        self.channels = ChannelTable()

    @property
    def index(self) -> int:
        """Number of this worker among its peers."""
        return self._index

    @property
    def peers(self) -> int:
        """Number of workers, this one included."""
        return self._network.peers

    def open(self, channel: int) -> None:
        """Begin to receive on the channel.

        Examples
        --------
        >>> MemoryNetwork().transports[0].open(0)
        """
        self.channels.open(channel)

    def close(self, channel: int) -> None:
        """Discard what came and will come on the channel.

        Examples
        --------
        >>> MemoryNetwork().transports[0].close(0)
        """
        self.channels.close(channel)

    def send(self, batch: ProgressBatch) -> None:
        """Send a batch to every worker, this one included.

        Raises
        ------
        ProtocolError
            If the batch is another worker's.

        Examples
        --------
        >>> import numpy as np
        >>> worker = MemoryNetwork().transports[0]
        >>> worker.open(0)
        >>> worker.send(ProgressBatch(0, 0, 0, np.empty((0, 4), np.int64), np.empty(0, np.int64)))
        """
        if batch.source != self._index:
            msg = f"could not send a progress batch: worker {self._index!r} found source={batch.source!r}"
            raise ProtocolError(msg, hint="let a worker speak for itself only")
        self._network.post(batch, range(self.peers))

    def receive(self, channel: int) -> list[ProgressBatch]:
        """Return what newly arrived on the channel.

        Examples
        --------
        >>> worker = MemoryNetwork().transports[0]
        >>> worker.open(0)
        >>> worker.receive(0)
        []
        """
        return self.channels.receive(channel)


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
    >>> from spark_timely.progress.broadcast import MemoryNetwork
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
        >>> from spark_timely.progress.broadcast import MemoryNetwork
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
        >>> from spark_timely.progress.broadcast import MemoryNetwork
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
        >>> from spark_timely.progress.broadcast import MemoryNetwork
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
        >>> from spark_timely.progress.broadcast import MemoryNetwork
        >>> Progcaster(MemoryNetwork().transports[0], channel=0, arity=1, path=(0,), identifier=0).close()
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
