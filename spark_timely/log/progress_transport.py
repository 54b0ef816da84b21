"""Transport of progress statements between processes, in batches, through a capture log.

Each worker writes a stream of its own, and reads those of all workers. A batch is one commit, at the time
that is its number in the stream: so a stream's frontier tells how many batches there are, and a reader asks
for those from the first that it has not seen.

Invariants
----------
1. What is in a stream is there once, in the order in which its worker sent it: the log refuses a commit that
   another has overtaken, and a worker owns its stream.
2. A batch is read whole: it is one commit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.errors import InvalidUsageError, ProtocolError, SchemaMismatchError
from spark_timely.progress.broadcast import ChannelTable, ProgressBatch
from spark_timely.time.arrays import IntArray

if TYPE_CHECKING:
    from spark_timely.log import Log


PROGRESS_SCHEMA = pa.schema(
    [
        ("channel", pa.int64()),
        ("batch", pa.int64()),
        ("node", pa.int64()),
        ("port", pa.int64()),
        ("target", pa.bool_()),
        ("time", pa.list_(pa.int64())),
        ("change", pa.int64()),
    ]
)
"""Payload of a log of progress statements; its times are of type ``long``, from 0."""

_COLUMNS = ["_time", *PROGRESS_SCHEMA.names]


class LogTransport:
    """One worker's access to its peers, through a log that all of them can reach.

    Parameters
    ----------
    log : Log
        Created with `PROGRESS_SCHEMA`, ``times=("long",)``, ``minimum=(0,)`` and one stream per worker. Each
        worker has its own handle.
    index, peers : int
        Number of this worker, and of all.
    name : str
        Streams are called ``name_0``, ``name_1``, …

    Raises
    ------
    InvalidUsageError
        If the index is not one of the peers.
    SchemaMismatchError
        If the log has other columns.
    ProtocolError
        If this worker's stream has batches already: a worker starts with a stream of its own.

    Notes
    -----
    Cost: one commit per batch sent; a receive without news costs what the log takes to see that there is none.
    A worker that is started again needs a new log, like all its peers: what it received before is gone.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(PROGRESS_SCHEMA, minimum=(0,), streams=2)
    >>> one, two = LogTransport(log, 0, 2), LogTransport(log.another(), 1, 2)
    >>> one.open(0); two.open(0)
    >>> one.send(ProgressBatch(0, 0, 0, np.array([[2, 0, 1, 7]]), np.array([3])))
    >>> [batch.rows.tolist() for batch in two.receive(0)]
    [[[2, 0, 1, 7]]]
    """

    def __init__(self, log: Log, index: int, peers: int, *, name: str = "progress") -> None:
        if not 0 <= index < peers:
            msg = f"could not connect worker {index!r}: found peers={peers!r}"
            raise InvalidUsageError(msg, hint="number the workers from 0")
        missing = [field for field in PROGRESS_SCHEMA.names if field not in log.schema.names]
        if missing:
            msg = f"could not connect worker {index!r} through log {log.path!r}: it has no columns {missing!r}"
            raise SchemaMismatchError(msg, hint="create the log with PROGRESS_SCHEMA")
        self._log = log
        self._index = index
        self._peers = peers
        self._streams = [f"{name}_{number}" for number in range(peers)]
        self._writer = log.writer(stream=self._streams[index], owner=f"{name}-worker-{index}")
        if self._writer.frontier.elements != ((0,),):
            msg = f"could not connect worker {index!r}: stream {self._streams[index]!r} has batches already"
            raise ProtocolError(msg, hint="give workers that are started again a new log")
        self._sent = 0
        # By worker: number of the batch to be read next.
        self._next = [0] * peers
        self.channels = ChannelTable()

    @property
    def index(self) -> int:
        """Number of this worker among its peers."""
        return self._index

    @property
    def peers(self) -> int:
        """Number of workers, this one included."""
        return self._peers

    def open(self, channel: int) -> None:
        """Begin to receive on the channel."""
        self.channels.open(channel)

    def close(self, channel: int) -> None:
        """Discard what came and will come on the channel."""
        self.channels.close(channel)

    def finish(self) -> None:
        """Close this worker's stream: it sends nothing more."""
        self._writer.close(reason="worker finished")

    def send(self, batch: ProgressBatch) -> None:
        """Append a batch to this worker's stream.

        Raises
        ------
        ProtocolError
            If the batch is another worker's.
        InvalidUsageError
            If a coordinate of a time is 2**63 or more.
        StorageError
            If the log could not be written.
        """
        if batch.source != self._index:
            msg = f"could not send a progress batch: worker {self._index!r} found source={batch.source!r}"
            raise ProtocolError(msg, hint="send statements of this worker only")
        rows = batch.rows
        if rows.dtype == np.uint64 and rows.size and int(rows.max()) >= 1 << 63:
            msg = f"could not send a progress batch: found a coordinate of {int(rows.max())!r}"
            raise InvalidUsageError(
                msg, hint="use times whose coordinates are below 2**63 with a transport through a log"
            )
        n = rows.shape[0]
        table = pa.table(
            {
                "_time": np.full(n, self._sent, np.int64),
                "channel": np.full(n, batch.channel, np.int64),
                "batch": np.full(n, batch.seq_no, np.int64),
                "node": rows[:, 0].astype(np.int64),
                "port": rows[:, 1].astype(np.int64),
                "target": rows[:, 2].astype(np.bool_),
                "time": _lists(rows[:, 3:].astype(np.int64)),
                "change": batch.diffs,
            }
        )
        self._writer.append(table, advance_to=self._sent + 1, reason="progress")
        self._sent += 1

    def receive(self, channel: int) -> list[ProgressBatch]:
        """Return what newly arrived on the channel, each sender's batches in order."""
        self._poll()
        return self.channels.receive(channel)

    def _poll(self) -> None:
        """Take in what the log holds and was not read yet."""
        self._log.refresh()
        for source, stream in enumerate(self._streams):  # bounded by the workers
            state = self._log.stream(stream)
            if state is None:
                continue
            first = self._next[source]
            if not state.closed and state.frontier.elements[0][0] == first:
                continue
            rows = self._log.messages(stream=stream, lower=first, columns=_COLUMNS)
            for batch in _batches(source, rows):
                self.channels.deliver(batch)
                self._next[source] += 1


def _lists(times: IntArray) -> pa.ListArray:
    n, arity = times.shape
    return pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32) * arity, pa.array(times.ravel()))


def _batches(source: int, rows: pa.Table) -> list[ProgressBatch]:
    """Cut the rows of a stream, ordered by time, into the batches that they were sent as."""
    if not rows.num_rows:
        return []
    numbers = rows["_time"].to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), rows.num_rows]
    found = []
    for start, end in pairwise(bounds):  # bounded by the batches
        part = rows.slice(start, end - start).combine_chunks()
        times = part["time"].combine_chunks()
        flat = times.flatten().to_numpy(zero_copy_only=False)
        columns = [part[name].to_numpy().astype(np.int64)[:, None] for name in ("node", "port", "target")]
        statements = np.hstack([*columns, flat.reshape(end - start, -1)])
        found.append(
            ProgressBatch(
                source,
                part["channel"][0].as_py(),
                part["batch"][0].as_py(),
                statements,
                part["change"].to_numpy().copy(),
            )
        )
    return found
