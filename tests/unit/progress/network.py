"""Workers of one process: their batches arrive at once, or one by one as a test likes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from spark_timely.errors import InvalidUsageError, ProtocolError
from spark_timely.progress.broadcast import ChannelTable, ProgressBatch


class MemoryNetwork:
    """Workers of one process, connected through queues.

    Parameters
    ----------
    peers : int
        Number of workers.
    automatic : bool
        Whether batches arrive at once. If not they arrive by `deliver`, in whatever interleaving of
        senders the caller likes.
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
        """Return (sender, receiver) of each pair between which something is in flight."""
        return [link for link, queue in self._queues.items() if queue]

    def deliver(self, sender: int, receiver: int) -> bool:
        """Let the oldest batch between two workers arrive; return whether there was one."""
        queue = self._queues[sender, receiver]
        if not queue:
            return False
        self.transports[receiver].channels.deliver(queue.popleft())
        return True

    def deliver_all(self) -> None:
        """Let everything arrive."""
        for link in self.links():
            while self.deliver(*link):
                pass

    def post(self, batch: ProgressBatch, receivers: Iterable[int]) -> None:
        """Put a batch on its way to some workers."""
        for receiver in receivers:
            self._queues[batch.source, receiver].append(batch)
            if self.automatic:
                self.deliver(batch.source, receiver)


class MemoryTransport:
    """One worker's end of a `MemoryNetwork`."""

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
        """Begin to receive on the channel."""
        self.channels.open(channel)

    def close(self, channel: int) -> None:
        """Discard what came and will come on the channel."""
        self.channels.close(channel)

    def send(self, batch: ProgressBatch) -> None:
        """Send a batch to every worker, this one included.

        Raises
        ------
        ProtocolError
            If the batch is another worker's.
        """
        if batch.source != self._index:
            msg = f"could not send a progress batch: worker {self._index!r} found source={batch.source!r}"
            raise ProtocolError(msg, hint="let a worker speak for itself only")
        self._network.post(batch, range(self.peers))

    def receive(self, channel: int) -> list[ProgressBatch]:
        """Return what newly arrived on the channel."""
        return self.channels.receive(channel)
