"""What a capture log is: its values and the operations that every implementation offers.

Invariants
----------
1. Per stream, commits are numbered 0, 1, 2, …; each is all or nothing; in each the messages come
   before the progress.
2. Messages and progress of a commit are judged by the counts before it; the log holds no commit
   that breaks the protocol.
3. The newest commit of a stream tells its whole state: all its non-zero counts, its owner, and
   the last micro-batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from spark_timely.protocol.note import Note
from spark_timely.time.arrays import IntArray
from spark_timely.time.order import minimal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.store.storage import Storage
    from spark_timely.protocol.rules import StreamCounts
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.domain import TimeDomain

__all__ = [
    "OPEN_STREAM",
    "CaptureLog",
    "CommitOutcome",
    "CommitRequest",
    "DataFile",
    "StreamState",
]

OPEN_STREAM = "#open"
"""Pseudo-stream that holds the capabilities which no stream has claimed yet."""


@dataclass(frozen=True, slots=True, eq=False)
class DataFile:
    """A Parquet file of rows that is written, and not yet part of the log.

    Parameters
    ----------
    path : str
        Relative to the log.
    size_bytes : int
    n_rows : int
    event : str
        `message`, `dead` or `progress`.
    stats : str
        Statistics of the file as a Delta log keeps them (JSON).
    minima : ndarray of int64, shape (m, k)
        Minimal times of the rows: an antichain.
    bounds : ndarray of int64, shape (2, k), or None
        Least and greatest value of each coordinate; None without rows.

    Notes
    -----
    Small and picklable: it travels from Spark's tasks to the committer.
    """

    path: str
    size_bytes: int
    n_rows: int
    event: str
    stats: str
    minima: IntArray
    bounds: IntArray | None


@dataclass(frozen=True, slots=True, eq=False)
class StreamState:
    """What the newest commit of a stream says about the stream.

    Parameters
    ----------
    stream : str
    seq : int
        Number of the newest commit; the opening one is 0.
    counts : StreamCounts
        Capabilities held after the commit.
    before : StreamCounts
        Capabilities held before it: a repeated micro-batch is judged by these.
    owner : str or None
        Query or producer that may append.
    batch, step : int or None
        Last micro-batch, and step within it; None for the opening commit and for producers outside
        of Spark.
    epoch : int
        Raised when the stream is taken over, and where its owner continues although micro-batches are missing.
    n_rows : int or None
        Messages of the commit. None where the commit belongs to no micro-batch but carries the
        numbers of the last one on, as `advance` from the command line does.
    bounds : ndarray of int64, shape (2, k), or None
        Least and greatest value of each coordinate of the times of the messages; None without any.
    at : int
        Wall clock of the commit, microseconds since 1970 in UTC.
    reason : str
        Why progress was made, for people.
    note : Note
        What the commit says to programs.
    """

    stream: str
    seq: int
    counts: StreamCounts
    before: StreamCounts
    owner: str | None
    batch: int | None
    step: int | None
    epoch: int
    n_rows: int | None
    bounds: IntArray | None
    at: int
    reason: str
    note: Note

    @property
    def frontier(self) -> Antichain:
        """Minimal times that the stream may still use; empty when it is closed."""
        return self.counts.frontier

    @property
    def closed(self) -> bool:
        """Whether the stream holds nothing more."""
        return self.counts.closed

    @property
    def rows(self) -> int:
        """Messages of the newest commit."""
        return self.n_rows or 0

    @property
    def identity(self) -> str:
        """What tells this commit from any other of its stream and number, as another history of the log has one.

        A hash of what the progress rows say of it, which merges of files leave as it is. The wall clock in them, to the
        microsecond, differs even where the rows do not. The note counts as far as its micro-batch.
        """
        noted = self.note.batch
        told = [
            [self.stream, self.seq, self.owner, self.epoch, self.batch, self.step, self.n_rows, self.at, self.reason],
            None if self.bounds is None else np.asarray(self.bounds).tolist(),
            [self.counts.times.tolist(), self.counts.counts.tolist()],
            None if noted is None else [noted.seq, noted.offsets, noted.digest],
        ]
        return hashlib.sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()[:16]

    def _values(self) -> tuple[object, ...]:
        bounds = None if self.bounds is None else tuple(map(tuple, np.asarray(self.bounds).tolist()))
        others = (getattr(self, item.name) for item in dataclasses.fields(self) if item.name != "bounds")
        return (*others, bounds)

    def __eq__(self, other: object) -> bool:
        """Return whether both say the same of the same commit."""
        if not isinstance(other, StreamState):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        """Return a hash that agrees with `==`."""
        return hash((self.stream, self.seq, self.owner, self.batch, self.step))


def _no_files() -> tuple[DataFile, ...]:
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class CommitRequest:
    """One commit that a producer wants: files, and a change of its stream's counts.

    Parameters
    ----------
    stream, owner : str
    progress_times : ndarray of int64, shape (n, k)
        Times whose counts change. The counts are judged as a whole, order and repeats mean nothing.
    progress_deltas : ndarray of int64, shape (n,)
    batch, step : int, optional
        Micro-batch and step, by which a repeated commit is recognised; both or none.
    expected_seq : int, optional
        Number of the newest commit that the producer knew when it decided about its rows.
    files : sequence of DataFile
        Messages and dead letters, written already.
    reason : str
        For people.
    note : Note
        For programs; what lasts of the stream's present note is added to it.
    at : int, optional
        Wall clock, microseconds; the log's clock if not given.
    message_minima : ndarray of int64, shape (m, k), optional
        Minimal times of the messages; taken from the files if not given.
    n_rows : int, optional
        Number of messages; taken from the files if not given.
    bounds : ndarray of int64, shape (2, k), optional
        Bounds of the messages' times; taken from the files if not given.
    carry : bool
        Whether this commit belongs to no micro-batch, and carries the last one's numbers on.
    takeover : bool
        Whether the stream may be another's, and changes its owner by this commit; of no effect where it is
        the owner's own.
    new_epoch : bool
        Whether the owner begins an epoch with this commit, because micro-batches before it are missing.
    plans : tuple of str
        Fingerprints of plans: the stream's newest note has one of these, or none, or the commit is refused. The first
        is the committer's own. Not asked for if empty.
    """

    stream: str
    owner: str
    progress_times: IntArray
    progress_deltas: IntArray
    batch: int | None = None
    step: int | None = None
    expected_seq: int | None = None
    files: Sequence[DataFile] = field(default_factory=_no_files)
    reason: str = ""
    note: Note = field(default_factory=Note)
    at: int | None = None
    message_minima: IntArray | None = None
    n_rows: int | None = None
    bounds: IntArray | None = None
    carry: bool = False
    takeover: bool = False
    new_epoch: bool = False
    plans: tuple[str, ...] = ()

    def minima(self, arity: int) -> IntArray:
        """Return minimal times of the messages, an array of shape (m, k)."""
        if self.message_minima is not None:
            return np.asarray(self.message_minima, dtype=np.int64).reshape(-1, arity)
        parts = [f.minima for f in self.files if f.event == "message" and f.n_rows]
        return minimal(np.concatenate(parts)) if parts else np.empty((0, arity), np.int64)

    def rows(self) -> int:
        """Return the number of messages."""
        if self.n_rows is not None:
            return self.n_rows
        return sum(f.n_rows for f in self.files if f.event == "message")

    def time_bounds(self) -> IntArray | None:
        """Return the bounds of the messages' times, shape (2, k), or None without messages."""
        if self.bounds is not None:
            return self.bounds
        parts = [f.bounds for f in self.files if f.event == "message" and f.bounds is not None]
        if not parts:
            return None
        stacked = np.stack(parts)
        return np.stack([stacked[:, 0].min(axis=0), stacked[:, 1].max(axis=0)])


@dataclass(frozen=True, slots=True, eq=False)
class CommitOutcome:
    """What became of a commit that was not refused.

    Parameters
    ----------
    committed : bool
        False if the log holds this very micro-batch already: nothing was done, and the files of the
        request are not part of the log.
    state : StreamState
        The stream's newest state.
    """

    committed: bool
    state: StreamState

    @property
    def duplicate(self) -> bool:
        """Whether the log held this micro-batch already."""
        return not self.committed


class CaptureLog(Protocol):
    """The operations of a capture log; `spark_timely.log.log.Log` has them, and more."""

    @property
    def path(self) -> str:
        """Where the log is."""

    @property
    def log_id(self) -> str:
        """Identity of the log: another one in its place has another."""

    @property
    def storage(self) -> Storage:
        """Access to the log's files."""

    @property
    def format(self) -> LogFormat:
        """Columns and types of the log."""

    @property
    def domain(self) -> TimeDomain:
        """Types of its times, and the minimum."""

    @property
    def kind(self) -> str:
        """`stream` or `collection`."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the payload, with the nullability declared for them."""

    @property
    def version(self) -> int:
        """Table version of the snapshot in use."""

    @property
    def generation(self) -> int:
        """How often everything was read again: versions mean something else after that."""

    @property
    def unclaimed(self) -> int:
        """Number of capabilities that wait for a stream."""

    def refresh(self) -> bool:
        """Take notice of commits by others; return whether there were any."""

    def has_news(self) -> bool:
        """Return whether others have committed, where that can be told at no cost; else False."""

    def streams(self) -> Mapping[str, StreamState]:
        """Return the newest state of each stream."""

    def stream(self, name: str) -> StreamState | None:
        """Return the newest state of one stream, None if there is none of that name."""

    def ends(self) -> Mapping[str, StreamState]:
        """Return the newest state of each stream, `#open` included."""

    def commits_of(self, wanted: Mapping[str, int]) -> Mapping[str, StreamState]:
        """Return the states right after one commit each of some streams, without those that the snapshot lacks."""

    def recorded(self, stream: str, batch: int, step: int | None = None) -> StreamState | None:
        """Return the state right after the commit of a micro-batch, None if it is not in the log."""

    def frontier(self) -> Antichain:
        """Return the minimal times that any stream may still use; empty when the log is complete."""

    def owners(self, stream: str) -> frozenset[str]:
        """Return who owns a stream or has owned it."""

    def add_columns(self, columns: pa.Schema) -> None:
        """Add payload columns that may be null, where they are not there yet."""

    def flush(self) -> None:
        """Make the commits of the snapshot outlast a power cut, whoever made them."""

    def check_writable(self) -> None:
        """Refuse a log that can be read only, where that is known beforehand; raises `LogFormatError`."""

    def live_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of the paths that are part of the log, after a refresh."""

    def open_stream(self, name: str, *, owner: str, at: object | None = None, donor: str | None = None) -> StreamState:
        """Claim a capability for a new stream, or take a copy of one that a live stream holds."""

    def commit(self, request: CommitRequest) -> CommitOutcome:
        """Append files and progress to a stream, all or nothing."""

    def files(self) -> FileIndex:
        """Return the files of messages, with bounds of what is in each."""

    def dead_files(self) -> FileIndex:
        """Return the files of dead letters."""

    def positions(self) -> Mapping[str, int]:
        """Return the number of the next commit of each stream, `#open` included."""

    def progress(self) -> pa.Table:
        """Return all progress rows, sorted by stream and seq."""

    def progress_files(self) -> FileIndex:
        """Return the files of progress rows, with bounds of what is in each."""

    def progress_rows(self, paths: Iterable[str]) -> pa.Table:
        """Return the rows of some files of progress, sorted by stream and seq, each once."""

    def events(self, stream: str | None = None) -> Iterator[tuple[StreamState, pa.Table]]:
        """Return each commit in order: state after it, and its messages."""
