"""Events of a capture in columns: some of a stream, in its order.

Invariants
----------
1. What a chunk holds says which bytes it came from: to write it gives these bytes.
2. Events keep their order; progress entries keep theirs, repeats and zeros included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.errors import InvalidShapeError
from spark_timely.interop.places import Offsets
from spark_timely.protocol.event import StreamEvents
from spark_timely.time.arrays import DiffArray, IntArray

__all__ = ["CaptureChunk", "concat_chunks"]


@dataclass(frozen=True, slots=True, eq=False)
class CaptureChunk:
    """Events of a stream, one after the other.

    Parameters
    ----------
    is_messages : ndarray of bool, shape (e,)
        Kind of each event: messages, or progress.
    positions : ndarray of int64, shape (e + 1,)
        Where each event begins in the stream, in bytes, and where the last ends; zeros where it has no bytes.
    first_event : int
        Number of the first event in the stream.
    times : ndarray of int64, shape (m, k)
        Time of each event of messages.
    counts : ndarray of int64, shape (m,)
        Records of each event of messages.
    records : pyarrow.RecordBatch
        All records.
    progress_times, progress_deltas : ndarray of int64, shapes (p, k) and (p,)
        All entries of progress.
    progress_counts : ndarray of int64, shape (e - m,)
        Entries of each event of progress.
    """

    is_messages: npt.NDArray[np.bool_]
    positions: Offsets
    first_event: int
    times: IntArray
    counts: Offsets
    records: pa.RecordBatch
    progress_times: IntArray
    progress_deltas: DiffArray
    progress_counts: Offsets

    @property
    def n_events(self) -> int:
        """Number of events."""
        return int(self.is_messages.shape[0])

    @property
    def n_records(self) -> int:
        """Number of records."""
        return int(self.records.num_rows)

    @property
    def record_times(self) -> IntArray:
        """Time of each record, shape (n, k)."""
        return np.repeat(self.times, self.counts, axis=0)

    def stream_events(self) -> StreamEvents:
        """Return the events as the protocol judges them, an event of messages by its time alone."""
        steps = np.cumsum(~self.is_messages, dtype=np.int64)
        entries = self.progress_counts.shape[0]
        return StreamEvents(
            self.times,
            steps[self.is_messages],
            self.progress_times,
            self.progress_deltas,
            np.repeat(np.arange(entries, dtype=np.int64), self.progress_counts),
            entries,
        )

    def walk(self) -> Iterator[tuple[bool, slice]]:
        """Yield for each event whether it is one of messages, and the slice of its records or entries.

        One turn per event: for texts, tests and errors.
        """
        ends = [np.cumsum(self.progress_counts).tolist(), np.cumsum(self.counts).tolist()]
        starts, seen = [0, 0], [0, 0]
        for kind in self.is_messages.tolist():
            end = ends[kind][seen[kind]]
            yield kind, slice(starts[kind], end)
            starts[kind] = end
            seen[kind] += 1


def concat_chunks(chunks: list[CaptureChunk]) -> CaptureChunk:
    """Put chunks of one stream, each following the one before it, into one.

    Raises
    ------
    InvalidShapeError
        If there is none, or one does not follow.
    """
    if not chunks:
        msg = "could not join chunks: found none"
        raise InvalidShapeError(msg, hint="give one or more")
    if len(chunks) == 1:
        return chunks[0]
    for left, right in pairwise(chunks):
        if left.first_event + left.n_events != right.first_event or left.positions[-1] != right.positions[0]:
            msg = f"could not join chunks: found event {right.first_event} after {left.first_event + left.n_events - 1}"
            raise InvalidShapeError(msg, hint="give them in the order of the stream, each once")
    records = pa.Table.from_batches([chunk.records for chunk in chunks]).combine_chunks().to_batches()
    return CaptureChunk(
        np.concatenate([chunk.is_messages for chunk in chunks]),
        np.concatenate([chunks[0].positions, *(chunk.positions[1:] for chunk in chunks[1:])]),
        chunks[0].first_event,
        np.concatenate([chunk.times for chunk in chunks]),
        np.concatenate([chunk.counts for chunk in chunks]),
        records[0] if records else chunks[0].records,
        np.concatenate([chunk.progress_times for chunk in chunks]),
        np.concatenate([chunk.progress_deltas for chunk in chunks]),
        np.concatenate([chunk.progress_counts for chunk in chunks]),
    )
