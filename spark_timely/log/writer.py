"""Append to a stream from any Python program: tables of Arrow and of what speaks Arrow, columns, rows.

Invariants
----------
1. A writer is one owner of one stream; whoever else appends to the stream is refused.
2. An append is all or nothing, and is never tried again on changed grounds: a writer that lost a race of
   `compare_and_append` gets an error.
3. An append with a key is in the stream once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.canonical.row_hash import digest_of
from spark_timely.errors import (
    InvalidUsageError,
    NotBeyondError,
    RolledBackError,
    SchemaMismatchError,
    StorageError,
    TimelyError,
    UpperMismatchError,
    shown,
)
from spark_timely.log.arguments import check_text, names_of
from spark_timely.log.commit import discard_refused
from spark_timely.log.files.format import conform
from spark_timely.log.files.parquet import TARGET_FILE_BYTES, message_table, write_data_files
from spark_timely.log.machine.decide import closed_stream, missing_stream
from spark_timely.log.machine.repetition import Repetition, judge_repetition
from spark_timely.log.machine.state import CommitOutcome, CommitRequest, DataFile, StreamState
from spark_timely.log.rows import RowsLike, table_of
from spark_timely.protocol.note import MicroBatch, Note
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray, TimesLike, as_diffs, as_times, concat_times, consolidate_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.streams import CaptureLog
    from spark_timely.time.domain import FrontierLike


def downgrade_to(counts: StreamCounts, frontier: Antichain) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """Return the progress that leaves one capability at each element of a frontier, and no other.

    Returns
    -------
    times, deltas : ndarray, shapes (n, k) and (n,)

    Examples
    --------
    >>> times, deltas = downgrade_to(StreamCounts.initial(0), Antichain.of(5))
    >>> times.tolist(), deltas.tolist()
    ([[0], [5]], [-1, 1])
    """
    times = np.concatenate([counts.times, frontier.times.reshape(-1, counts.arity)])
    deltas = np.concatenate([-counts.counts, np.ones(len(frontier), np.int64)])
    return times, deltas


class _Given(NamedTuple):
    """Rows to be appended, and their time columns."""

    table: pa.Table
    names: tuple[str, ...]


class StreamWriter:
    """Appends to one stream as its owner. Made by `Log.writer`.

    Parameters
    ----------
    log : CaptureLog
    stream, owner : str
    target_file_size : int
        Bytes after which a new file is begun.
    compression : str
        Codec of Parquet.

    Raises
    ------
    LogFormatError
        If the table of the log has features that cannot be written.
    """

    def __init__(
        self,
        log: CaptureLog,
        stream: str,
        owner: str,
        *,
        target_file_size: int = TARGET_FILE_BYTES,
        compression: str = "zstd",
    ) -> None:
        log.check_writable()
        self.log = log
        self.stream = stream
        self.owner = owner
        self._target = target_file_size
        self._compression = compression
        # Of the newest commit that this writer knows: a log that has another id, or fewer commits, went back.
        self._log_id, self._seq = log.log_id, -1

    def __repr__(self) -> str:
        """Return log, stream and owner: nothing that would have to be read."""
        return f"{type(self).__name__}({shown(self.log.path)}, stream={self.stream!r}, owner={shown(self.owner)})"

    @property
    def _attempt(self) -> str:
        return f"could not append to stream {self.stream!r} of log {self.log.path!r}"

    @property
    def state(self) -> StreamState:
        """Newest state of the stream in the log's snapshot."""
        state = self.log.stream(self.stream)
        if state is None:
            raise missing_stream(self.log.path, self.stream, self.log.streams())
        return state

    @property
    def frontier(self) -> Antichain:
        """Minimal times that the stream may still use."""
        return self.state.frontier

    def append(
        self,
        rows: RowsLike,
        /,
        *,
        time_column: str | Sequence[str] | None = None,
        advance_to: FrontierLike | None = None,
        progress: tuple[TimesLike, npt.ArrayLike] | None = None,
        batch: int | None = None,
        reason: str = "append",
    ) -> CommitOutcome:
        """Append messages, and then make progress, in one commit.

        Parameters
        ----------
        rows : table, mapping or sequence of mapping
            A table of pyarrow, pandas, polars, DuckDB or whatever else offers one through Arrow's C interface; a dict
            of columns; or a list of rows, each a dict. Payload columns by name, with the log's time columns (`_time`
            …) unless `time_column` is given; on a collection log also `_diff`, 1 each if absent. Columns are brought
            into the log's types where that loses nothing.
        time_column : str or sequence of str, optional
            Payload columns that are the times; they stay in the payload.
        advance_to : frontier, optional
            Frontier of the stream after the append: nothing follows at times not beyond it.
        progress : (times, deltas), optional
            Changes of the stream's counts instead of `advance_to`.
        batch : int, optional
            Key of the append, greater than those before it, from 0 on. To repeat an append with its key, its
            rows and its progress never adds them twice, whatever was reported about the first time: then nothing is
            done, and `committed` is False.
        reason : str
            Kept with the progress, for people.

        Returns
        -------
        CommitOutcome

        Raises
        ------
        SchemaMismatchError, InvalidUsageError
            If columns do not fit, a time is null or no time of the log, or an argument is of another type.
        UnheldCapabilityError, NegativeCountError
            If a message or the progress uses a time that the stream does not hold.
        RolledBackError
            If the stream has a greater `batch` and not this one, or has this one with other rows or other progress.
        ClosedError, OwnershipError, StorageError
            As `CaptureLog.commit`.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> writer = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,)).writer(owner="me")
        >>> rows = pa.table({"_time": [3], "v": [1]})
        >>> [writer.append(rows, advance_to=4, batch=17).committed for _ in range(2)]
        [True, False]
        """
        check_text(self._attempt, "reason", reason)
        if advance_to is not None and progress is not None:
            msg = f"{self._attempt}: found both advance_to and progress"
            raise InvalidUsageError(msg, hint="give one of them, or none")
        self.log.refresh()
        given = self._given(rows, time_column)
        note = Note()
        if batch is not None:
            note = self._keyed(batch, given)
            if self._holds(batch, note, advance_to, progress):
                self.log.flush()
                return CommitOutcome(committed=False, state=self.state)
        state = self._writable()
        table, times = self._messages(given, state)
        if advance_to is not None:
            p_times, deltas = self._downgrade(state, self.log.domain.parse_frontier(advance_to))
        else:
            p_times, deltas = self._changes(progress)
        return self._commit(state, table, times, p_times, deltas, reason, batch=batch, note=note)

    def _keyed(self, batch: int, given: _Given) -> Note:
        """Return what the log keeps of an append with a key: the digest of its rows."""
        if isinstance(batch, bool) or not isinstance(batch, int) or not 0 <= batch < 2**63:
            msg = f"{self._attempt}: found batch={shown(batch)}"
            raise InvalidUsageError(msg, hint="give a whole number from 0 on, greater than that of the append before")
        table, _ = self._messages(given, self.state)
        names = [(name, name) for name in table.schema.names if name not in ("_stream", "_seq")]
        return Note(batch=MicroBatch(digest=digest_of(table, names).text, n_input=table.num_rows))

    def _holds(
        self, batch: int, note: Note, advance_to: object | None, progress: tuple[TimesLike, npt.ArrayLike] | None
    ) -> bool:
        """Whether the stream has the append of this key already; refuse one that cannot be told, or is another."""
        state = self.state
        if state.owner != self.owner or state.batch is None or batch > state.batch:
            return False
        done = self.log.recorded(self.stream, batch)
        if done is None:
            found = f"found batch={state.batch} in it, and none of this key"
        elif judge_repetition(done.note.batch, note.batch) is not Repetition.SAME:
            found = "found other rows in it"
        elif not self._progressed(done, advance_to, progress):
            held = self.log.domain.render_frontier(done.frontier)
            found = f"found it with the same rows and other progress, which left the stream at {held}"
        else:
            return True
        msg = f"could not append batch={batch} to stream {self.stream!r} of log {self.log.path!r}: {found}"
        raise RolledBackError(
            msg,
            hint="give keys that increase; to repeat an append, give the key, the rows and the progress of the first"
            " time; to move the frontier further, append no rows under a new key, or call advance",
            context={"path": self.log.path, "stream": self.stream, "batch": batch, "newest": state.batch},
        )

    def _changes(self, progress: tuple[TimesLike, npt.ArrayLike] | None) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return changes of counts that were given as arrays; none if there are none."""
        if progress is None:
            return _nothing(self.log.domain.arity)
        if not isinstance(progress, list | tuple) or len(progress) != 2:
            msg = f"{self._attempt}: found progress={shown(progress)}"
            raise InvalidUsageError(msg, hint="give times and changes of their counts: progress=([3, 5], [-1, 1])")
        times = as_times(progress[0], self.log.domain.arity)
        return times, as_diffs(progress[1], len(times))

    def _progressed(
        self, done: StreamState, advance_to: object | None, progress: tuple[TimesLike, npt.ArrayLike] | None
    ) -> bool:
        """Whether a commit made the progress that is asked for."""
        if advance_to is not None:
            times, deltas = downgrade_to(done.before, self.log.domain.parse_frontier(advance_to))
        else:
            times, deltas = self._changes(progress)
        # What the commit left, without what was to be left: nothing.
        held = [(done.before.times, done.before.counts), (times, deltas), (done.counts.times, -done.counts.counts)]
        left, _ = consolidate_rows(concat_times(*(t for t, _ in held)), np.concatenate([n for _, n in held]))
        return not len(left)

    def compare_and_append(
        self,
        rows: RowsLike,
        /,
        *,
        expected: FrontierLike,
        upper: FrontierLike,
        time_column: str | Sequence[str] | None = None,
        reason: str = "compare and append",
    ) -> CommitOutcome:
        """Append all messages of a range of times, if the stream's frontier is as expected.

        Parameters
        ----------
        rows : table, mapping or sequence of mapping
            As in `append`; times are beyond `expected` and not beyond `upper`.
        expected : frontier
            Frontier that the stream is believed to have.
        upper : frontier
            Frontier of the stream afterwards.
        time_column : str or sequence of str, optional
        reason : str

        Raises
        ------
        UpperMismatchError
            If the stream's frontier is another. Nothing was done.
        NotBeyondError
            If `upper` is not beyond `expected`, or a row's time is beyond `upper`.
        """
        check_text(self._attempt, "reason", reason)
        domain = self.log.domain
        want, after = domain.parse_frontier(expected), domain.parse_frontier(upper)
        self.log.refresh()
        given = self._given(rows, time_column)
        state = self.state
        if state.frontier != want:
            raise self._moved(want, state.frontier)
        if state.closed:
            raise closed_stream(self.log.path, self.stream)
        p_times, deltas = self._downgrade(state, after)
        table, times = self._messages(given, state)
        late = after.beyond(times)
        if late.any():
            row = int(np.flatnonzero(late)[0])
            at = tuple(times[row].tolist())
            msg = (
                f"could not append to stream {self.stream!r} of log {self.log.path!r}: found "
                f"time={domain.render_time(at)!r} in row={row}, beyond upper={domain.render_frontier(after)}"
            )
            raise NotBeyondError(
                msg,
                hint="append rows at times that the append completes, or raise upper",
                time=at,
                frontier=after.to_json(),
            )
        try:
            return self._commit(state, table, times, p_times, deltas, reason)
        except UpperMismatchError as error:
            current = self.state.frontier
            if current == want:
                raise
            raise self._moved(want, current) from error

    def compare_and_append_files(
        self,
        files: Sequence[DataFile],
        /,
        *,
        expected: StreamState,
        upper: object,
        reason: str = "compare and append",
        note: Note | None = None,
        plans: Sequence[str] = (),
    ) -> CommitOutcome:
        """Append files that were written for the next commit of a state, if the stream is still in it.

        Parameters
        ----------
        files : sequence of DataFile
            Written below the log; with all messages of the times that the append completes.
        expected : StreamState
            The state that they were written for.
        upper : frontier
            Frontier of the stream afterwards.
        reason : str
            For people.
        note : Note, optional
            For programs.
        plans : sequence of str
            As in `CommitRequest`.

        Raises
        ------
        UpperMismatchError, ClosedError
            If the stream has moved. The files are deleted.
        PlanMismatchError
            If it is the output of another plan. The files are deleted.
        NotBeyondError
            If `upper` is not beyond the expected state's frontier.
        """
        p_times, deltas = self._downgrade(expected, self.log.domain.parse_frontier(upper))
        return self._request(expected, files, p_times, deltas, reason, note or Note(), plans=plans)

    def advance(self, frontier: FrontierLike, *, reason: str = "advance") -> CommitOutcome:
        """Say that nothing follows at times not beyond a frontier.

        Raises
        ------
        NotBeyondError
            If the frontier is not beyond the stream's present one.
        """
        check_text(f"could not advance stream {self.stream!r} of log {self.log.path!r}", "reason", reason)
        self.log.refresh()
        state = self._writable()
        p_times, deltas = self._downgrade(state, self.log.domain.parse_frontier(frontier))
        return self._commit(state, None, None, p_times, deltas, reason)

    def close(self, *, reason: str = "close") -> StreamState:
        """Say that nothing follows at all. Does nothing on a closed stream."""
        check_text(f"could not close stream {self.stream!r} of log {self.log.path!r}", "reason", reason)
        self.log.refresh()
        if self.state.closed:
            return self.state
        return self.advance(Antichain.empty(self.log.domain.arity), reason=reason).state

    def _writable(self) -> StreamState:
        state = self.state
        if self.log.log_id != self._log_id or state.seq < self._seq:
            msg = (
                f"could not append to stream {self.stream!r} of log {self.log.path!r}: found log {self.log.log_id!r} at"
                f" seq={state.seq}, this writer left log {self._log_id!r} at seq={self._seq}"
            )
            raise RolledBackError(
                msg,
                hint="append the rows again with a new writer: the log was restored or replaced, and rows that this one"
                " appended are gone",
                context={"path": self.log.path, "stream": self.stream},
            )
        if state.closed:
            raise closed_stream(self.log.path, self.stream)
        return state

    def _moved(self, expected: Antichain, current: Antichain) -> UpperMismatchError:
        domain = self.log.domain
        return UpperMismatchError(
            f"could not append to stream {self.stream!r} of log {self.log.path!r}: expected upper "
            f"{domain.render_frontier(expected)}, found {domain.render_frontier(current)}",
            hint="read the upper again and drop rows that are not beyond it",
            expected=expected.to_json(),
            current=current.to_json(),
        )

    def _downgrade(self, state: StreamState, frontier: Antichain) -> tuple[IntArray, npt.NDArray[np.int64]]:
        if not state.frontier.less_equal_frontier(frontier):
            domain = self.log.domain
            msg = (
                f"could not advance stream {self.stream!r} of log {self.log.path!r} to "
                f"{domain.render_frontier(frontier)}: found it at {domain.render_frontier(state.frontier)}"
            )
            raise NotBeyondError(
                msg,
                hint="give a frontier beyond the present one: it only moves forward",
                time=frontier.to_json(),
                frontier=state.frontier.to_json(),
            )
        return downgrade_to(state.counts, frontier)

    def _given(self, rows: RowsLike, time_column: str | Sequence[str] | None) -> _Given:
        """Return rows as a table, with the names of their time columns; refuse what is neither."""
        if time_column is None:
            names = self.log.domain.columns
        else:
            names = names_of(self._attempt, "time_column", time_column)
        return _Given(table_of(rows, self.log.format, attempt=self._attempt), names)

    def _messages(self, given: _Given, state: StreamState) -> tuple[pa.Table, IntArray]:
        """Return the rows as the log keeps them, and their times."""
        form = self.log.format
        table, names = given
        absent = [n for n in names if n not in table.schema.names]
        if absent:
            msg = f"{self._attempt}: found no time column {absent[0]!r}"
            raise SchemaMismatchError(
                msg,
                hint="give the rows the log's time columns, or name others with time_column=…",
                context={"column": absent[0]},
            )
        times = form.domain.from_columns(table, names)
        # A time column beside the one that was named is a column that the log does not know.
        own = set(form.domain.columns).intersection(names) | ({"_diff"} if form.kind == "collection" else set())
        diffs = None
        if form.kind == "collection" and "_diff" in table.schema.names:
            diffs = _diffs(table.column("_diff"))
        places = [i for i, n in enumerate(table.schema.names) if n not in own]
        payload = conform(_with_merged(table.select(places), form), form.payload)
        return message_table(form, payload, times, self.stream, state.seq + 1, diffs), times

    def _commit(
        self,
        state: StreamState,
        table: pa.Table | None,
        times: IntArray | None,
        p_times: IntArray,
        deltas: npt.NDArray[np.int64],
        reason: str,
        *,
        batch: int | None = None,
        note: Note | None = None,
    ) -> CommitOutcome:
        log = self.log
        # Judged before anything is written, so that a refusal leaves no file behind.
        if times is not None and len(times):
            check_messages(state.counts, times, stream=self.stream, seq=state.seq + 1, domain=log.domain)
        check_progress(state.counts, p_times, deltas, stream=self.stream, seq=state.seq + 1, domain=log.domain)
        files: list[DataFile] = []
        if table is not None and times is not None:
            files = write_data_files(
                log.storage,
                table,
                times,
                stream=self.stream,
                seq=state.seq + 1,
                domain=log.domain,
                target_file_size=self._target,
                compression=self._compression,
            )
        return self._request(state, files, p_times, deltas, reason, note or Note(), batch=batch)

    def _request(
        self,
        state: StreamState,
        files: Sequence[DataFile],
        p_times: IntArray,
        deltas: npt.NDArray[np.int64],
        reason: str,
        note: Note,
        *,
        batch: int | None = None,
        plans: Sequence[str] = (),
    ) -> CommitOutcome:
        """Commit; delete the files where that is refused, or another attempt of this key came first."""
        log = self.log
        request = CommitRequest(
            stream=self.stream,
            owner=self.owner,
            progress_times=p_times,
            progress_deltas=deltas,
            expected_seq=state.seq,
            files=files,
            reason=reason,
            note=note,
            batch=batch,
            step=None if batch is None else 0,
            plans=tuple(plans),
        )
        try:
            outcome = log.commit(request)
        except TimelyError as error:
            if not isinstance(error, StorageError) or error.determinate:
                discard_refused(log, files)
            raise
        if not outcome.committed:
            discard_refused(log, files)
        self._seq = max(self._seq, outcome.state.seq)
        return outcome


def _with_merged(rows: pa.Table, form: LogFormat) -> pa.Table:
    """Fill the columns that came after the log was made with nulls, where rows do not have them."""
    for name in form.merged:  # one turn per such column
        if name not in rows.schema.names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, form.payload.field(name).type))
    return rows


def _nothing(arity: int) -> tuple[IntArray, npt.NDArray[np.int64]]:
    return np.empty((0, arity), np.int64), np.empty(0, np.int64)


def _diffs(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    if not pa.types.is_integer(column.type) or column.null_count:
        msg = f"could not read column '_diff': found type={column.type} with {column.null_count} nulls"
        raise SchemaMismatchError(
            msg,
            hint="give an integer as _diff in every row",
            context={"column": "_diff"},
        )
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)
