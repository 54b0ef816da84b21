"""The stream writer: appends rows of any Python program, as Arrow tables, columns or rows, to a stream of a log.

`Log.writer` makes a `StreamWriter` for users; the command log of an instance, dataflows and imports of CDCv2 write by
one too. It takes rows by `rows`, judges them by `admission`, and commits by `core`. (Spark's micro-batches are written
by `spark_timely.sink`, captures of Timely's format by `spark_timely.interop.writer`.)

Invariants
----------
1. A writer is one owner of one stream; an append of anyone else to the stream is refused.
2. An append is all or nothing, and is never tried again on changed grounds: a writer that lost a race of
   `compare_and_append` gets an error.
3. An append with a key is in the stream once, however often and by which process it is repeated. One without a key is
   in it once, as long as the writer that made it repeats it: a writer remembers each append whose outcome was unclear.
"""

from __future__ import annotations

import operator
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.content import OF_COMMIT
from spark_timely.canonical.row_hash import digest_of
from spark_timely.conf.kinds import check_text, names_of
from spark_timely.errors import (
    ClosedError,
    InvalidUsageError,
    NotBeyondError,
    RolledBackError,
    SchemaMismatchError,
    SinceViolationError,
    StorageError,
    TimelyError,
    UnheldCapabilityError,
    UpperMismatchError,
    shown,
)
from spark_timely.log.admission import Admission, judge_rows
from spark_timely.log.files.format import conform
from spark_timely.log.files.parquet import TARGET_FILE_BYTES, message_table, write_data_files
from spark_timely.log.machine.decide import closed_stream, missing_stream
from spark_timely.log.machine.repetition import Repetition, judge_repetition
from spark_timely.log.machine.state import CommitOutcome, CommitRequest, DataFile, StreamState
from spark_timely.log.rows import RowsLike, table_of
from spark_timely.protocol.note import MicroBatch, Mover, Note
from spark_timely.protocol.policy import BadTime, FrontierPolicy, HeldBy, Policy, holding, late_cause
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress
from spark_timely.time.antichain import Antichain, as_diffs, as_times, beyond, concat_times, consolidate_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.core import LogCore
    from spark_timely.protocol.note import Fence
    from spark_timely.time.antichain import IntArray, TimesLike
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


def forward_to(log: LogCore, state: StreamState, frontier: Antichain) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """Return the changes of counts that move a stream to a frontier beyond its own.

    Raises
    ------
    NotBeyondError
        If it is not.
    """
    if not state.frontier.less_equal_frontier(frontier):
        at, wanted = log.domain.render_frontier(state.frontier), log.domain.render_frontier(frontier)
        msg = f"could not advance stream {state.stream!r} of log {log.path!r} to {wanted}: found it at {at}"
        raise NotBeyondError(
            msg,
            hint="give a frontier beyond the present one: it only moves forward",
            time=frontier.to_json(),
            frontier=state.frontier.to_json(),
        )
    return downgrade_to(state.counts, frontier)


class _Given(NamedTuple):
    """Rows to be appended, and their time columns."""

    table: pa.Table
    names: tuple[str, ...]


class _Rows(NamedTuple):
    """Rows in the columns of the log, before any is judged."""

    given: _Given
    payload: pa.Table
    diffs: npt.NDArray[np.int64] | None


class _Judged(NamedTuple):
    """Rows as a commit is to hold them."""

    messages: pa.Table
    times: IntArray
    letters: tuple[pa.Table, IntArray] | None
    admission: Admission


class _Progress(NamedTuple):
    """The progress that an append is to make, as it was given."""

    advance_to: FrontierLike | None
    changes: tuple[TimesLike, npt.ArrayLike] | None


@dataclass(slots=True, eq=False)
class _Unclear:
    """An append without a key that may have happened.

    Parameters
    ----------
    seq : int
        Number of the commit that it is, if it happened.
    attempt : str
        The random key in that commit's note.
    digest : str
        Of its rows.
    files : list of DataFile
        Part of the log if it happened.
    landed : StreamState or None
        The state right after it; None as long as it is not known to have happened.
    """

    seq: int
    attempt: str
    digest: str
    files: Sequence[DataFile] = field(repr=False)
    landed: StreamState | None = None


_REPEAT: Final = (
    "to repeat the append, call it again on this writer with the same rows, which are added only if they are not there;"
    " another writer, or process, knows an append only by its batch=…"
)
_REPEAT_KEYED: Final = "repeat the append with its batch: its rows are added only if they are not there"


class StreamWriter:
    """Appends to one stream as its owner. Made by `Log.writer`.

    Parameters
    ----------
    core : LogCore
    stream, owner : str
    target_file_size : int
        Bytes after which a new file is begun.
    compression : str
        Codec of Parquet.
    missing_columns : sequence of str
        Columns of the log that rows may lack.
    policy : Policy, optional
        What becomes of late rows, rows of the future and rows without a usable time; all are refused unless given.
    digest_within : int or None
        As in `write_data_files`.

    Raises
    ------
    LogFormatError
        If the table of the log has features that cannot be written.
    """

    def __init__(
        self,
        core: LogCore,
        stream: str,
        owner: str,
        *,
        target_file_size: int = TARGET_FILE_BYTES,
        compression: str = "zstd",
        missing_columns: Sequence[str] = (),
        policy: Policy | None = None,
        digest_within: int | None = OF_COMMIT,
    ) -> None:
        core.check_writable()
        self.core = core
        self.stream = stream
        self.owner = owner
        self._target = target_file_size
        self._compression = compression
        self._missing = tuple(missing_columns)
        self._digest_within = digest_within
        strict = holding(core.domain)
        self._policy = strict if policy is None else policy
        self._asks_clock = self._policy != strict
        # Of the newest commit that this writer knows: a log that has another id, or fewer commits, went back.
        self._log_id, self._seq = core.log_id, -1
        # Appends without a key that may have happened, until they are repeated or cannot happen any more.
        self._unclear: list[_Unclear] = []

    def __repr__(self) -> str:
        """Return log, stream and owner: nothing that would have to be read."""
        return f"{type(self).__name__}({shown(self.core.path)}, stream={self.stream!r}, owner={shown(self.owner)})"

    @property
    def _attempt(self) -> str:
        return f"could not append to stream {self.stream!r} of log {self.core.path!r}"

    @property
    def state(self) -> StreamState:
        """Newest state of the stream in the log's snapshot."""
        state = self.core.stream(self.stream)
        if state is None:
            raise missing_stream(self.core.path, self.stream, self.core.streams())
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
            Key of the append: a whole number from 0 on, greater than those before it; gaps are allowed. Some producers
            have one at hand, such as the offset that they read up to. To repeat an append with its key, its rows and
            its progress never adds them twice, in whatever process and whenever: another process of this owner, after a
            restart, or two at once. Then nothing is done, and `committed` is False. A key that the log has forgotten,
            with the first commits of the stream, is refused by name: the append was made, or the key was left out, and
            which of them cannot be known any more. The newest key is never forgotten.
        reason : str
            Kept with the progress, for people.

        Returns
        -------
        CommitOutcome
            `committed` is False if the append was in the stream already; `state` is the stream's newest state.

        Raises
        ------
        SchemaMismatchError, InvalidUsageError
            If columns do not fit, a time is null or no time of the log, or an argument is of another type.
        UnheldCapabilityError, NegativeCountError
            If a message or the progress uses a time that the stream does not hold.
        RolledBackError
            If the stream has a greater `batch` and not this one, or has this one with other rows or other progress.
        SinceViolationError
            If `batch` is older than what the log remembers of the stream; or, without one, if an append of these rows
            by this writer had an unclear outcome, and the log has forgotten it since.
        UpperMismatchError
            If another process of this owner appended something else meanwhile. Nothing was done.
        StorageError
            If the log cannot be reached. Unless `determinate`, the append may have happened: call it again.
        ClosedError, OwnershipError
            As `LogCore.commit`.

        Notes
        -----
        A repeated append is judged by what the stream held before the first time: its own rows are not late.

        Without `batch` an append is known to this writer alone. Where its outcome was unclear, as after a
        `StorageError` or an interrupt, the writer remembers its rows. The next append of the same rows on this writer
        is taken for its repetition: it adds them only if they are not in the stream, and refuses other progress than
        they came with. A process that was started again remembers nothing; it needs `batch`.

        A stream may have appends with and without `batch`, by one producer. Those without, and `advance`, leave the
        newest key as it is. Keys belong to the owner of the stream: they end when it is taken over.

        Cost: with `batch` the digest of the rows, about 70 ns for each of a few columns. To recognise the newest key
        one small file is read at most, whatever the history; to recognise an earlier one, all progress of the log.

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
        self.core.refresh()
        moves = _Progress(advance_to, progress)
        self._check_moves(moves)
        given = self._in_columns(self._given(rows, time_column))
        note = Note(attempt=secrets.token_hex(8)) if batch is None else self._keyed(batch, given)
        key = None if batch is None else operator.index(batch)
        done = self._done(key, note, given, moves)
        if done is not None:
            return done
        state = self._writable()
        judged = self._judged(given, state)
        note = _with_counts(note, judged.admission)
        if self._policy.frontier is FrontierPolicy.BOUNDED:
            moved_times, moved_deltas, note = self._lateness(state, judged.admission, note)
            p_times, deltas = moved_times, np.asarray(moved_deltas, np.int64)
        elif advance_to is not None:
            p_times, deltas = forward_to(self.core, state, self.core.domain.parse_frontier(advance_to))
        else:
            p_times, deltas = self._changes(progress)
        try:
            outcome = self._commit(state, judged, p_times, deltas, reason, batch=key, note=note, rows=given)
        except (UpperMismatchError, RolledBackError, ClosedError):
            # Perhaps by this very append: of another process, or by an earlier attempt that took effect only now.
            done = self._done(key, note, given, moves)
            if done is None:
                raise
            return done
        if not outcome.committed:
            # Of another process, with these rows; refused if it made other progress.
            self._done(key, note, given, moves)
        return outcome

    def append_following(self, state: StreamState, rows: pa.Table, *, reason: str, note: Note) -> CommitOutcome:
        """Append messages that move no frontier, if the stream is still in a state that was read before.

        Parameters
        ----------
        state : StreamState
        rows : pyarrow.Table
            With the log's time columns.
        reason : str
            For people.
        note : Note
            For programs.

        Raises
        ------
        UpperMismatchError, ClosedError, OwnershipError
            If the stream has moved, or is another's. Nothing was done.
        SchemaMismatchError, InvalidUsageError, UnheldCapabilityError
            As `append`.
        """
        given = self._in_columns(_Given(rows, self.core.domain.columns))
        judged = self._judged(given, state)
        times, deltas = _nothing(self.core.domain.arity)
        return self._commit(state, judged, times, deltas, reason, note=note)

    def _check_moves(self, moves: _Progress) -> None:
        """Refuse progress that is stated where the writer itself derives it from the rows."""
        if self._policy.frontier is FrontierPolicy.BOUNDED and moves != (None, None):
            given = "progress" if moves.advance_to is None else "advance_to"
            msg = f"{self._attempt}: found {given} together with lateness"
            raise InvalidUsageError(
                msg, hint="leave it out: a writer with lateness moves the frontier by the rows; or call advance"
            )

    def _lateness(self, state: StreamState, admission: Admission, note: Note) -> tuple[IntArray, IntArray, Note]:
        """Return the progress of an append by a writer with lateness, and the note with the row that makes it."""
        top = admission.greatest()
        change = self._policy.downgrade(state.counts, greatest=None if top is None else top[0])
        if top is None or not len(change.times):
            return change.times, change.deltas, note
        frontier = int(change.times[change.deltas > 0][0, 0])
        mover = Mover(top[0], frontier, state.seq + 1, admission.at, f"row {top[1]} of the append")
        return change.times, change.deltas, replace(note, mover=mover)

    def _keyed(self, batch: int, given: _Rows) -> Note:
        """Return what the log keeps of an append with a key: the digest of its rows."""
        try:
            fits = not isinstance(batch, bool) and 0 <= operator.index(batch) < 2**63
        except TypeError:
            fits = False
        if not fits:
            msg = f"{self._attempt}: found batch={shown(batch)}"
            raise InvalidUsageError(msg, hint="give a whole number from 0 on, greater than that of the append before")
        return Note(batch=MicroBatch(digest=self._digest(given), n_input=given.payload.num_rows))

    def _done(self, batch: int | None, note: Note, given: _Rows, moves: _Progress) -> CommitOutcome | None:
        """Return the outcome of an append that the stream has already, None if it has not; refuse another one."""
        repeated = None
        if batch is None or not self._holds(batch, note, moves):
            repeated = self._happened(batch, given, moves) if self._unclear else None
            if repeated is None:
                return None
        # The process that committed it may have died before it was on the disk.
        self.core.flush()
        if repeated is not None:
            self._unclear.remove(repeated)
        self._seq = max(self._seq, self.state.seq)
        return CommitOutcome(committed=False, state=self.state)

    def _holds(self, batch: int, note: Note, moves: _Progress) -> bool:
        """Whether the stream has the append of this key already; refuse one that is forgotten, or is another."""
        state = self.state
        if state.owner != self.owner or state.batch is None or batch > state.batch:
            return False
        done = self.core.recorded(self.stream, batch)
        if done is None:
            self._check_remembered(batch, state)
            found = f"found batch={state.batch} in it, and none of this key"
        elif judge_repetition(done.note.batch, note.batch) is not Repetition.SAME:
            found = "found other rows in it"
        elif not self._progressed(done, moves):
            found = f"found it with the same rows and other progress, {self._left(done)}"
        else:
            return True
        msg = f"could not append batch={batch} to stream {self.stream!r} of log {self.core.path!r}: {found}"
        raise RolledBackError(
            msg,
            hint="give keys that increase; to repeat an append, give the key, the rows and the progress of the first"
            " time; to move the frontier further, append no rows under a new key, or call advance",
            context={"path": self.core.path, "stream": self.stream, "batch": batch, "newest": state.batch},
        )

    def _check_remembered(self, batch: int, state: StreamState) -> None:
        """Refuse a key that is forgotten: it is before the base of the stream, as the keys of an owner increase."""
        base = self.core.commits_of({self.stream: self.core.bases().get(self.stream, -1)}).get(self.stream)
        if base is None or base.epoch != state.epoch or base.batch is None or batch > base.batch:
            return
        msg = (
            f"could not append batch={batch} to stream {self.stream!r} of log {self.core.path!r}: found no commit of "
            f"this key, and those before seq={base.seq} forgotten"
        )
        raise SinceViolationError(
            msg,
            hint="leave the append out: it was made, unless its key was left out, which the log does not know any more;"
            f" new rows go under a key greater than batch={state.batch}",
            since=self.core.domain.render_frontier(self.core.since()),
            context={"path": self.core.path, "stream": self.stream, "batch": batch, "newest": state.batch},
        )

    def _happened(self, batch: int | None, given: _Rows, moves: _Progress) -> _Unclear | None:
        """Return the append of these rows whose outcome was unclear and which did happen, None if there is none.

        Those that did not happen, and cannot any more, are forgotten.
        """
        table, digest = given.payload, self._digest(given)
        for each in list(self._unclear):
            if each.landed is None:
                found = self.core.commits_of({self.stream: each.seq}).get(self.stream)
                if found is None:
                    if each.digest == digest and (table.num_rows or moves.changes is not None):
                        self._check_not_forgotten(each)
                    continue  # a write under way may still take effect: the next commit excludes it
                if found.note.attempt != each.attempt:
                    self._unclear.remove(each)
                    self.core.discard_refused(each.files)
                    continue
                each.landed = found
            if each.digest != digest:
                continue
            progressed = self._progressed(each.landed, moves)
            if progressed and batch is None:
                return each
            if table.num_rows and not progressed:
                raise self._other_append(each.landed, f"and other progress, {self._left(each.landed)}")
            if table.num_rows:
                raise self._other_append(each.landed, f"and no batch, now there is batch={batch}")
        return None

    def _check_not_forgotten(self, append: _Unclear) -> None:
        """Refuse an append whose first time may be among the forgotten commits: it would be there twice."""
        if not self.core.has_forgotten(self.stream, append.seq):
            return
        msg = (
            f"{self._attempt}: found that the log has forgotten commit seq={append.seq}, which may have been an append "
            "of these rows, with an unclear outcome"
        )
        raise SinceViolationError(
            msg,
            hint="read the log to see whether they are there; to append them all the same, take another writer",
            since=self.core.domain.render_frontier(self.core.since()),
            context={"path": self.core.path, "stream": self.stream, "seq": append.seq},
        )

    def _left(self, done: StreamState) -> str:
        return f"which left the stream at {self.core.domain.render_frontier(done.frontier)}"

    def _other_append(self, done: StreamState, found: str) -> RolledBackError:
        return RolledBackError(
            f"{self._attempt}: found these rows there, of an append with an unclear outcome at seq={done.seq} {found}",
            hint="repeat the append as it was the first time, to learn that it is there, and then call advance to move"
            " the frontier further; to append equal rows once more, take another writer",
            context={"path": self.core.path, "stream": self.stream, "seq": done.seq},
        )

    def _changes(self, progress: tuple[TimesLike, npt.ArrayLike] | None) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return changes of counts that were given as arrays; none if there are none."""
        if progress is None:
            return _nothing(self.core.domain.arity)
        if not isinstance(progress, list | tuple) or len(progress) != 2:
            msg = f"{self._attempt}: found progress={shown(progress)}"
            raise InvalidUsageError(msg, hint="give times and changes of their counts: progress=([3, 5], [-1, 1])")
        times = as_times(progress[0], self.core.domain.arity)
        return times, as_diffs(progress[1], len(times))

    def _progressed(self, done: StreamState, moves: _Progress) -> bool:
        """Whether a commit made the progress that is asked for."""
        if self._policy.frontier is FrontierPolicy.BOUNDED:
            return True  # the rows made it
        if moves.advance_to is not None:
            times, deltas = downgrade_to(done.before, self.core.domain.parse_frontier(moves.advance_to))
        else:
            times, deltas = self._changes(moves.changes)
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
        note: Note | None = None,
        fence: Fence | None = None,
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
        note : Note, optional
            For programs.
        fence : Fence, optional
            The start of a compute instance that appends, as in `CommitRequest`.

        Raises
        ------
        OwnershipError
            If the stream is another owner's, or a newer start of a compute instance writes it. Nothing was done.
        UpperMismatchError
            If the stream's frontier is another. Nothing was done.
        NotBeyondError
            If `upper` is not beyond `expected`, or a row's time is beyond `upper`.
        """
        check_text(self._attempt, "reason", reason)
        domain = self.core.domain
        want, after = domain.parse_frontier(expected), domain.parse_frontier(upper)
        self.core.refresh()
        given = self._in_columns(self._given(rows, time_column))
        state = self.state
        if state.frontier != want:
            raise self._moved(want, state.frontier)
        if state.closed:
            raise closed_stream(self.core.path, self.stream)
        p_times, deltas = forward_to(self.core, state, after)
        judged = self._judged(given, state)
        times = judged.times
        late = after.beyond(times)
        if late.any():
            row = int(np.flatnonzero(late)[0])
            at = tuple(times[row].tolist())
            msg = (
                f"could not append to stream {self.stream!r} of log {self.core.path!r}: found "
                f"time={domain.render_time(at)!r} in row={row}, beyond upper={domain.render_frontier(after)}"
            )
            raise NotBeyondError(
                msg,
                hint="append rows at times that the append completes, or raise upper",
                time=at,
                frontier=after.to_json(),
            )
        try:
            counted = _with_counts(note or Note(), judged.admission)
            return self._commit(state, judged, p_times, deltas, reason, note=counted, fence=fence)
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
        fence: Fence | None = None,
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
        plans, fence
            As in `CommitRequest`.

        Raises
        ------
        UpperMismatchError, ClosedError
            If the stream has moved. The files are deleted.
        PlanMismatchError, OwnershipError
            If it is the output of another plan, or a newer epoch of a compute instance writes it. The files are
            deleted.
        NotBeyondError
            If `upper` is not beyond the expected state's frontier.
        """
        p_times, deltas = forward_to(self.core, expected, self.core.domain.parse_frontier(upper))
        return self._request(expected, files, p_times, deltas, reason, note or Note(), plans=plans, fence=fence)

    def advance(self, frontier: FrontierLike, *, reason: str = "advance") -> CommitOutcome:
        """Say that nothing follows at times not beyond a frontier. Does nothing where the stream is there already.

        Returns
        -------
        CommitOutcome
            `committed` is False if nothing was done: an advance that is repeated, after a `StorageError` for example,
            is in the stream once.

        Raises
        ------
        NotBeyondError
            If the frontier is not beyond the stream's present one.
        """
        check_text(f"could not advance stream {self.stream!r} of log {self.core.path!r}", "reason", reason)
        target = self.core.domain.parse_frontier(frontier)
        self.core.refresh()
        self._check_kept(self.state)
        if self._is_at(target):
            self.core.flush()
            return CommitOutcome(committed=False, state=self.state)
        state = self._writable()
        p_times, deltas = forward_to(self.core, state, target)
        try:
            return self._commit(state, None, p_times, deltas, reason)
        except (UpperMismatchError, ClosedError):
            # Perhaps by this very advance, whose first attempt took effect only now.
            if not self._is_at(target):
                raise
            return CommitOutcome(committed=False, state=self.state)

    def _is_at(self, target: Antichain) -> bool:
        """Whether the stream is this owner's, and holds one capability at each element of a frontier and no more."""
        state = self.state
        times, deltas = downgrade_to(state.counts, target)
        return state.owner == self.owner and not len(consolidate_rows(times, deltas)[0])

    def close(self, *, reason: str = "close") -> StreamState:
        """Say that nothing follows at all. Does nothing on a closed stream."""
        check_text(f"could not close stream {self.stream!r} of log {self.core.path!r}", "reason", reason)
        self.core.refresh()
        if self.state.closed:
            self.core.flush()
            return self.state
        return self.advance(Antichain.empty(self.core.domain.arity), reason=reason).state

    def _writable(self) -> StreamState:
        state = self.state
        self._check_kept(state)
        if state.closed:
            raise closed_stream(self.core.path, self.stream)
        return state

    def _check_kept(self, state: StreamState) -> None:
        """Refuse a log that lacks what this writer has appended."""
        if self.core.log_id != self._log_id or state.seq < self._seq:
            msg = (
                f"{self._attempt}: found log {self.core.log_id!r} at seq={state.seq}, this writer left log"
                f" {self._log_id!r} at seq={self._seq}"
            )
            raise RolledBackError(
                msg,
                hint="append the rows again with a new writer: the log was restored or replaced, and rows that this one"
                " appended are gone",
                context={"path": self.core.path, "stream": self.stream},
            )

    def _moved(self, expected: Antichain, current: Antichain) -> UpperMismatchError:
        domain = self.core.domain
        return UpperMismatchError(
            f"could not append to stream {self.stream!r} of log {self.core.path!r}: expected upper "
            f"{domain.render_frontier(expected)}, found {domain.render_frontier(current)}",
            hint="read the upper again and drop rows that are not beyond it",
            expected=expected.to_json(),
            current=current.to_json(),
        )

    def _given(self, rows: RowsLike, time_column: str | Sequence[str] | None) -> _Given:
        """Return rows as a table, with the names of their time columns; refuse what is neither."""
        if time_column is None:
            names = self.core.domain.columns
        else:
            names = names_of(self._attempt, "time_column", time_column)
        return _Given(table_of(rows, self.core.format, attempt=self._attempt), names)

    def _in_columns(self, given: _Given) -> _Rows:
        """Return rows in the columns of the log; refuse those that do not fit."""
        form = self.core.format
        table, names = given
        absent = [n for n in names if n not in table.schema.names]
        if absent:
            msg = f"{self._attempt}: found no time column {absent[0]!r}"
            raise SchemaMismatchError(
                msg,
                hint="give the rows the log's time columns, or name others with time_column=…",
                context={"column": absent[0]},
            )
        if self._policy.bad_time is BadTime.ERROR:
            form.domain.from_columns(table, names)
        # A time column beside the one that was named is a column that the log does not know.
        own = set(form.domain.columns).intersection(names) | ({"_diff"} if form.kind == "collection" else set())
        diffs = None
        if form.kind == "collection" and "_diff" in table.schema.names:
            diffs = _diffs(table.column("_diff"))
        places = [i for i, n in enumerate(table.schema.names) if n not in own]
        payload = form.with_absent(table.select(places), allowed=self._missing, attempt=self._attempt)
        return _Rows(given, conform(payload, form.payload), diffs)

    def _judged(self, rows: _Rows, state: StreamState) -> _Judged:
        """Judge rows by what the stream holds; late ones that the writer refuses are left for the log's own check."""
        form, policy = self.core.format, self._policy
        table, names = rows.given
        admission = judge_rows(
            policy,
            state.counts,
            table,
            names,
            # A writer that refuses whatever is odd needs no clock.
            at=self.core.now_us() if self._asks_clock else 0,
            stream=self.stream,
            held_by=HeldBy(mover=state.note.mover),
            late_refused=False,
        )
        payload, times, diffs = admission.messages(rows.payload, rows.diffs)
        messages = message_table(form, payload, times, self.stream, state.seq + 1, diffs)
        letters = None
        if admission.n_dead:
            letters = admission.letters(form, rows.payload, rows.diffs, stream=self.stream, seq=state.seq + 1)
        return _Judged(messages, times, letters, admission)

    def _digest(self, rows: _Rows) -> str:
        """Return the digest of rows as the log keeps them, whatever becomes of them and in whatever commit."""
        form = self.core.format
        found = form.domain.read_columns(*rows.given)
        table = message_table(form, rows.payload, found.times, self.stream, 0, rows.diffs)
        bad = found.null | found.outside
        if bad.any():
            texts = form.domain.found_text(*rows.given)
            table = table.append_column("_found", pc.if_else(pa.array(bad), texts, pa.scalar(None, pa.string())))
        names = [(name, name) for name in table.schema.names if name not in ("_stream", "_seq")]
        return digest_of(table, names).text

    def _commit(
        self,
        state: StreamState,
        judged: _Judged | None,
        p_times: IntArray,
        deltas: npt.NDArray[np.int64],
        reason: str,
        *,
        batch: int | None = None,
        note: Note | None = None,
        fence: Fence | None = None,
        rows: _Rows | None = None,
    ) -> CommitOutcome:
        log = self.core
        # Judged before anything is written, so that a refusal leaves no file behind.
        if judged is not None and len(judged.times):
            self._check_messages(state, judged.times)
        check_progress(state.counts, p_times, deltas, stream=self.stream, seq=state.seq + 1, domain=log.domain)
        files: list[DataFile] = []
        if judged is not None:
            tables = {"message": (judged.messages, judged.times)}
            if judged.letters is not None:
                tables["dead"] = judged.letters
            for event, (table, times) in tables.items():
                files += write_data_files(
                    log.storage,
                    table,
                    times,
                    stream=self.stream,
                    seq=state.seq + 1,
                    domain=log.domain,
                    event=event,
                    target_file_size=self._target,
                    compression=self._compression,
                    digest_within=self._digest_within,
                )
        try:
            return self._request(state, files, p_times, deltas, reason, note or Note(), batch=batch, fence=fence)
        except BaseException as error:
            if note is not None and rows is not None and _is_unclear(error):
                if note.attempt is not None:
                    self._unclear.append(_Unclear(state.seq + 1, note.attempt, self._digest(rows), files))
                if isinstance(error, StorageError) and (note.attempt is not None or batch is not None):
                    repeat = _REPEAT if note.attempt is not None else _REPEAT_KEYED
                    error.hint = repeat if error.hint is None else f"{error.hint}; {repeat}"
            raise

    def _check_messages(self, state: StreamState, times: IntArray) -> None:
        """Refuse messages at times that the stream does not hold, with the cause where it is known."""
        try:
            check_messages(state.counts, times, stream=self.stream, seq=state.seq + 1, domain=self.core.domain)
        except UnheldCapabilityError as error:
            late = times[~beyond(times, state.frontier.times)]
            if not late.shape[0]:
                raise
            time = tuple(late[0].tolist())
            found, hint = late_cause(self._policy, state.counts, time=time, held_by=HeldBy(mover=state.note.mover))
            msg = f"{error.message}{found}"
            raise UnheldCapabilityError(
                msg,
                hint=f"{error.hint}{hint}",
                context=error.context,
                time=error.time,
                held=error.held,
            ) from None

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
        fence: Fence | None = None,
    ) -> CommitOutcome:
        """Commit; delete the files where that is refused, or another attempt of this key came first."""
        log = self.core
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
            fence=fence,
        )
        try:
            outcome = log.commit(request)
        except TimelyError as error:
            if not isinstance(error, StorageError) or error.determinate:
                log.discard_refused(files)
            raise
        if not outcome.committed:
            log.discard_refused(files)
        self._seq = max(self._seq, outcome.state.seq)
        return outcome


def _is_unclear(error: BaseException) -> bool:
    """Whether what was attempted may have happened: an interrupt says nothing of it either."""
    if isinstance(error, Exception):
        return isinstance(error, StorageError) and not error.determinate
    return True


def _with_counts(note: Note, admission: Admission) -> Note:
    """Return the note with the numbers of rows that were treated specially."""
    if admission.n_skewed and admission.policy.domain.arity == 1:
        # Rows that are too far in the future do not count as the greatest time.
        top = admission.greatest()
        note = replace(note, greatest=admission.policy.domain.minimum[0] if top is None else top[0])
    if note.batch is None:
        return replace(note, letters=admission.n_dead)
    n_dead, n_advanced, n_skewed = admission.n_dead, admission.n_advanced, admission.n_skewed
    return replace(note, batch=replace(note.batch, dead=n_dead, advanced=n_advanced, skewed=n_skewed))


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
