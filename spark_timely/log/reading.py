"""Read a log from Python: messages, events, contents at a time, history.

Invariants
----------
1. What is read depends on the snapshot and the bounds given, never on how the files were cut.
2. Nothing is read at a time that is still open, where the answer is meant to be final.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import (
    InvalidUsageError,
    NotBeyondError,
    SchemaMismatchError,
    shown,
)
from spark_timely.log.base import CommitOutcome, CommitRequest, StreamState
from spark_timely.log.columns import add_columns
from spark_timely.log.compaction import CompactionReport, compact
from spark_timely.log.core import LogCore
from spark_timely.log.files.parquet import TARGET_FILE_BYTES, read_file
from spark_timely.log.machine.decide import closed_stream, missing_stream
from spark_timely.log.machine.history import history_of
from spark_timely.log.machine.state import distinct_rows, next_state, states_by_seq
from spark_timely.log.snapshot import snapshot_of
from spark_timely.log.writer import StreamWriter, downgrade_to
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.antichain import Antichain
from spark_timely.time.types import TimeType

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Sequence

    from spark_timely.log.verify import VerifyReport

__all__ = ["ReadableLog"]


class ReadableLog(LogCore):
    """A log with everything that a Python program reads from it and does to it."""

    # Writing -------------------------------------------------------------------------------------

    def writer(
        self,
        stream: str = "main",
        *,
        owner: str | None = None,
        at: object | None = None,
        donor: str | None = None,
        takeover: bool = False,
        target_file_size: int = TARGET_FILE_BYTES,
        compression: str = "zstd",
    ) -> StreamWriter:
        """Open a stream, unless its owner has done so before, and return what appends to it.

        Parameters
        ----------
        stream : str
        owner : str, optional
            Who appends; needed again to go on with the stream later. A fresh one if not given.
        at, donor
            As in `open_stream`.
        takeover : bool
            Whether to take the stream over where it is another's, who then cannot append any more. Who has
            lost a stream does not get it back.
        target_file_size : int
            Bytes after which an append begins a new file.
        compression : str
            Codec of Parquet.
        """
        name = owner if owner is not None else f"producer-{uuid.uuid4()}"
        if takeover:
            self.refresh()
            state = self.stream(stream)
            if state is not None and state.owner != name:
                self._take_over(state, name)
        self.open_stream(stream, owner=name, at=at, donor=donor)
        return StreamWriter(self, stream, name, target_file_size=target_file_size, compression=compression)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add payload columns that may be null; messages that were written without them have nulls there.

        Does nothing about columns that are there already. Whoever appends without them goes on.

        Parameters
        ----------
        columns : pyarrow.Schema
            Names and types.

        Raises
        ------
        SchemaMismatchError
            If a column is there with another type, or a log cannot have it. The log is as before.
        LogFormatError
            If the table has features that cannot be written.
        StorageError
            If the log cannot be reached. To repeat the call does no harm.

        Examples
        --------
        >>> from spark_timely.log.memory import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> log.add_columns(pa.schema([("note", pa.string())]))
        >>> log.schema.names
        ['v', 'note']
        """
        with self._lock:
            add_columns(self, columns)

    def _take_over(self, state: StreamState, owner: str) -> None:
        nothing = np.empty((0, self.domain.arity), np.int64)
        self.commit(
            CommitRequest(
                stream=state.stream,
                owner=owner,
                progress_times=nothing,
                progress_deltas=np.empty(0, np.int64),
                reason=f"taken over from {state.owner}",
                takeover=True,
            )
        )

    def advance(
        self, stream: str, frontier: object, *, reason: str = "advanced by hand", dry_run: bool = False
    ) -> StreamState:
        """Advance a stream in the name of its owner, from outside.

        The owner goes on as if it had done so itself; its last micro-batch is still recognised when it
        is repeated. A row that comes at a time passed here is late.

        Parameters
        ----------
        stream : str
        frontier : frontier
            Where to, as `TimeDomain.parse_frontier` takes it: on a log of dates or timestamps no bare number.
        reason : str
            Kept with the progress, for people.
        dry_run : bool
            Whether to change nothing, and return the state that the stream would have.

        Raises
        ------
        StreamMissingError, ClosedError
        NotBeyondError
            If the frontier is not beyond the stream's present one.
        """
        target = self.domain.parse_frontier(frontier)
        with self._lock:
            self.refresh()
            state = self.stream(stream)
            if state is None:
                raise missing_stream(self.path, stream, self.streams())
            if state.closed:
                raise closed_stream(self.path, stream)
            if not state.frontier.less_equal_frontier(target):
                msg = (
                    f"could not advance stream {stream!r} of log {self.path!r} to "
                    f"{self.domain.render_frontier(target)}: found it at {self.domain.render_frontier(state.frontier)}"
                )
                raise NotBeyondError(
                    msg,
                    hint="a frontier only moves forward",
                    time=target.to_json(),
                    frontier=state.frontier.to_json(),
                )
            times, deltas = downgrade_to(state.counts, target)
            if dry_run:
                held = StreamCounts.from_arrays(target.times, np.ones(len(target), np.int64), self.domain.arity)
                return next_state(state, held, note=state.note, reason=reason)
            outcome: CommitOutcome = self.commit(
                CommitRequest(
                    stream=stream,
                    owner=state.owner or "",
                    progress_times=times,
                    progress_deltas=deltas,
                    expected_seq=state.seq,
                    reason=reason,
                    carry=True,
                )
            )
            return outcome.state

    def close(
        self, stream: str | None = None, *, reason: str = "closed by hand", dry_run: bool = False
    ) -> list[StreamState]:
        """Close a stream, or all of them and the capabilities that none has claimed.

        Parameters
        ----------
        stream : str, optional
            Only this stream.
        reason : str
            Kept with the progress, for people.
        dry_run : bool
            Whether to change nothing, and return the states that the streams would have.

        Returns
        -------
        list of StreamState
            Of the streams closed by this call.
        """
        self.refresh()
        nothing = Antichain.empty(self.domain.arity)
        if stream is not None:
            state = self.stream(stream)
            if state is None:
                raise missing_stream(self.path, stream, self.streams())
            return [] if state.closed else [self.advance(stream, nothing, reason=reason, dry_run=dry_run)]
        closed = [
            self.advance(name, nothing, reason=reason, dry_run=dry_run)
            for name, state in self.streams().items()
            if not state.closed
        ]
        if not dry_run:
            self._drop_unclaimed(reason)
        return closed

    def compact(self, *, target_file_size: int = TARGET_FILE_BYTES, min_files: int = 2) -> CompactionReport:
        """Merge small files into larger ones; changes no answer. See `spark_timely.log.compaction`."""
        with self._lock:
            return compact(self, target_file_size=target_file_size, min_files=min_files)

    # Progress ------------------------------------------------------------------------------------

    def progress_rows(self, paths: Iterable[str]) -> pa.Table:
        """Return the rows of some of the progress files, sorted by stream, seq and time, each once.

        Notes
        -----
        For who follows a log: nothing is remembered.
        """
        with self._lock:
            found = [self._progress_rows(path) for path in paths]
        return distinct_rows(self.format, pa.concat_tables([self.format.progress_schema.empty_table(), *found]))

    # Messages ------------------------------------------------------------------------------------

    def messages(
        self,
        *,
        lower: object | None = None,
        upper: object | None = None,
        columns: Sequence[str] | None = None,
        stream: str | None = None,
    ) -> pa.Table:
        """Return the messages at times beyond `lower` and not beyond `upper`, ordered by time.

        Parameters
        ----------
        lower, upper : frontier, optional
            Open on the side that is not given.
        columns : sequence of str, optional
            Which columns; all of `format.data_columns` if not given.
        stream : str, optional
            Only messages of this stream.

        Notes
        -----
        For answers that fit the memory of one process. Reads only files and row groups that may hold
        what is asked for.
        """
        return self._rows("message", self.format.data_schema, lower, upper, columns, stream)

    def dead(self, *, stream: str | None = None) -> pa.Table:
        """Return the dead letters: rows that were late, with the reason, ordered by time."""
        return self._rows("dead", self.format.dead_schema, None, None, None, stream)

    def _rows(
        self,
        event: str,
        schema: pa.Schema,
        lower: object | None,
        upper: object | None,
        columns: Sequence[str] | None,
        stream: str | None,
    ) -> pa.Table:
        low = None if lower is None else self.domain.parse_frontier(lower)
        high = None if upper is None else self.domain.parse_frontier(upper)
        unknown = [c for c in columns or () if c not in schema.names]
        if unknown:
            msg = f"could not read log {self.path!r}: found no column {unknown[0]!r}"
            raise SchemaMismatchError(
                msg,
                hint=f"it has columns {shown(schema.names)}",
                context={"column": unknown[0]},
            )
        wanted = list(schema.names) if columns is None else list(dict.fromkeys(columns))
        needed = list(dict.fromkeys([*wanted, "_stream", "_seq", *self.domain.columns]))
        part = pa.schema([schema.field(n) for n in needed])
        index = self._index(event)
        chosen = index.may_hold_times(low, high)
        if stream is not None:
            chosen &= index.may_hold_stream(stream)
        parts = [self._range_of(path, part, low, high, stream) for path in index.paths[chosen].tolist()]
        table = (
            pa.concat_tables(parts)
            if parts
            else pa.schema([f.with_nullable(nullable=True) for f in part]).empty_table()
        )
        keys = [(n, "ascending") for n in (*self.domain.columns, "_stream", "_seq")]
        return table.sort_by(keys).select(wanted)

    def _range_of(
        self, path: str, schema: pa.Schema, low: Antichain | None, high: Antichain | None, stream: str | None
    ) -> pa.Table:
        table = read_file(self.storage, path, schema)
        keep = np.ones(table.num_rows, dtype=np.bool_)
        if low is not None or high is not None:
            times = self.domain.from_columns(table)
            if low is not None:
                keep &= low.beyond(times)
            if high is not None:
                keep &= ~high.beyond(times)
        if stream is not None:
            keep &= np.asarray(pc.equal(table["_stream"], stream).to_numpy(), np.bool_)
        return table if keep.all() else table.filter(pa.array(keep))

    def events(self, stream: str | None = None) -> Iterator[tuple[StreamState, pa.Table]]:
        """Return each commit, by stream and in the order of its commits: state after it, and its messages.

        Messages come before the progress of the same commit: they are judged by the state's `before`.

        Notes
        -----
        Holds the files of one commit in memory, and the last merged file that was read.
        """
        if stream is not None and self.stream(stream) is None:
            raise missing_stream(self.path, stream, self.streams())
        rows = self.progress()
        if stream is not None:
            rows = rows.filter(pc.equal(rows["_stream"], stream))
        index = self.files()
        read: dict[str, pa.Table] = {}
        for state in states_by_seq(self.format, rows):
            holds = index.may_hold_stream(state.stream) & (index.seq_lo <= state.seq) & (index.seq_hi >= state.seq)
            paths = index.paths[holds].tolist() if state.rows or state.n_rows is None else []
            read = {path: table for path, table in read.items() if path in paths}
            parts = []
            for path in paths:
                if path not in read:
                    read[path] = read_file(self.storage, path, self.format.data_schema)
                table = read[path]
                mine = pc.and_(pc.equal(table["_stream"], state.stream), pc.equal(table["_seq"], state.seq))
                parts.append(table.filter(mine))
            empty = pa.schema([f.with_nullable(nullable=True) for f in self.format.data_schema]).empty_table()
            yield state, (pa.concat_tables(parts) if parts else empty)

    def snapshot(self, time: object) -> pa.Table:
        """Return the contents of a collection at a time: rows that count, and how often each.

        Parameters
        ----------
        time
            A time that is closed: nothing can be added at it any more.

        Returns
        -------
        pyarrow.Table
            Payload columns and `_diff`, the sum of the diffs at times less or equal to `time`, never
            zero. In no particular order.

        Raises
        ------
        InvalidUsageError
            If the log is no collection.
        NotBeyondError
            If the time is still open.
        NegativeMultiplicityError
            If a row would be contained fewer than zero times.
        MultiplicityOverflowError
            If a row would be contained more than 2^63 − 1 times.
        """
        return snapshot_of(self, time)

    # History -------------------------------------------------------------------------------------

    def frontier_at(
        self, *, seq: int | None = None, timestamp: str | dt.datetime | None = None, stream: str | None = None
    ) -> Antichain:
        """Return the frontier as it was after a commit, or at a moment of the wall clock.

        Parameters
        ----------
        seq : int, optional
            Number of a commit: each stream is taken after its commit of that number, or after its newest
            where it has fewer.
        timestamp : str or datetime, optional
            Moment of the wall clock, such as ``"2013-06-12T08:00Z"`` or ``"us:1371024000000000"``: each stream is
            taken after the last of its commits up to then.
        stream : str, optional
            The frontier of this stream alone.

        Notes
        -----
        A stream that joined by a copy is counted in as soon as its donor's next commit is, whatever its
        wall clock says: what a moment saw as complete was so.
        """
        if (seq is None) == (timestamp is None):
            msg = f"could not look up a frontier of log {self.path!r}: found seq={seq!r} timestamp={timestamp!r}"
            raise InvalidUsageError(
                msg,
                hint="give one of them",
            )
        history = history_of(self)
        moment = None if timestamp is None else TimeType.TIMESTAMP.parse(timestamp)
        kind, bound = ("version", int(seq or 0) + 1) if moment is None else ("timestamp", moment + 1)
        if stream is None:
            return history.frontier(kind, bound, None)
        if stream not in history.names:
            raise missing_stream(self.path, stream, self.streams())
        position = history.before(kind, bound)
        if position[stream] == 0:
            return self.domain.minimum_frontier
        times, counts = history.held(position, [stream])
        return Antichain.from_times(times[counts > 0], self.domain.arity)

    # Whole log -----------------------------------------------------------------------------------

    def verify(self) -> VerifyReport:
        """Check the whole log against the protocol, and compute its canonical hash.

        See `spark_timely.log.verify.verify_log`.
        """
        from spark_timely.log.verify import verify_log

        with self.as_it_is():
            return verify_log(self)

    def describe(self) -> dict[str, Any]:
        """Return facts about the log, as plain values.

        Examples
        --------
        >>> from spark_timely.log.memory import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), streams=2)
        >>> log.describe()["frontier"], log.describe()["unclaimed"]
        ('[0]', 2)
        """
        files, dead = self.files(), self.dead_files()
        domain = self.domain
        return {
            "path": self.path,
            "id": self.log_id,
            "format_version": self.format.version,
            "table_version": self.version,
            "kind": self.kind,
            **domain.to_json(),
            "columns": {f.name: str(f.type) for f in self.schema},
            "nullable": self.nullable,
            "frontier": domain.render_frontier(self.frontier()),
            "unclaimed": self.unclaimed,
            "streams": {
                name: {
                    "frontier": domain.render_frontier(state.frontier),
                    "seq": state.seq,
                    "owner": state.owner,
                    "batch": state.batch,
                    "closed": state.closed,
                }
                for name, state in self.streams().items()
            },
            "message_files": len(files),
            "messages": int(files.rows.sum()) if (files.rows >= 0).all() else None,
            "dead_letters": int(dead.rows.sum()) if (dead.rows >= 0).all() else None,
            "bytes": self.store.live.size_bytes,
        }
