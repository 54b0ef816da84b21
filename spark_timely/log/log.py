"""A capture log: create one or open one, read from it, append to it, keep it small.

A `Log` is one handle, with what users do with a log; `create_log` and `open_log` make one, for users as for the
library's own parts. Below it is a `LogCore`: a `Store` that keeps the table, with a snapshot of it; the `StreamStates`
of that snapshot; and functions over both that commit (`streams`), read (`reader`), merge files (`compaction`) and check
(`verify`). What a commit may do is decided by pure functions (`machine`).

Invariants
----------
1. One commit makes a log: its schema, its facts and its unclaimed capabilities, the rights to produce at a time and
   later that the first streams claim.
2. A path that holds anything else is left as it is.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from spark_timely.canonical.content import DIGESTS, OF_COMMIT, budget
from spark_timely.conf.kinds import (
    check_schema,
    check_text,
    check_whole,
    check_word,
    clock_us,
    length_of,
    names_of,
    size_of,
)
from spark_timely.errors import (
    InvalidUsageError,
    LogMissingError,
    SchemaMismatchError,
    StorageError,
    TimelyError,
    shown,
)
from spark_timely.log.acceptance import AcceptReport, accept_change
from spark_timely.log.admission import policy_of
from spark_timely.log.compaction import CompactionReport, compact
from spark_timely.log.core import LogCore
from spark_timely.log.files.format import LogFormat, check_stream_name
from spark_timely.log.files.parquet import TARGET_FILE_BYTES, check_codec, write_progress_file
from spark_timely.log.forgetting import forget, forget_dead
from spark_timely.log.machine.decide import closed_stream, missing_stream
from spark_timely.log.machine.since import Keep, needed_from
from spark_timely.log.machine.state import (
    OPEN_STREAM,
    CommitOutcome,
    CommitRequest,
    StreamState,
    batch_rows,
    initial_state,
    next_state,
)
from spark_timely.log.reader import read_rows, snapshot_of
from spark_timely.log.retention import (
    allow_compaction,
    behind,
    first_files,
    release,
    retention_of,
    set_dead,
    set_keep,
)
from spark_timely.log.store.base import MemoryStore, MemoryTable
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.delta import NO_LOG_HINT, DeltaStore, create_table
from spark_timely.log.store.storage import (
    check_place,
    foreign_names,
    has_table,
    normal_path,
    promised,
)
from spark_timely.log.store.urls import identity
from spark_timely.log.streams import add_columns, discard, drop_unclaimed
from spark_timely.log.vacuum import VacuumReport, vacuum
from spark_timely.log.verify import VerifyReport, verify_log
from spark_timely.log.writer import StreamWriter, forward_to
from spark_timely.notebook import counted, facts_table, page, shown_in_notebook, sized, table
from spark_timely.protocol.note import Note
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from spark_timely.log.files.format import LogKind
    from spark_timely.log.machine.since import Retainer
    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.rows import RowsLike
    from spark_timely.log.store.base import Store
    from spark_timely.log.store.storage import Storage
    from spark_timely.time.domain import FrontierLike, TimeDomain, TimeLike, TimeTypeName


_MOST_STREAMS: Final = 2**31 - 1


class Log:
    """A capture log. `create_log` and `open_log` return one on a Delta table, `MemoryLog.create` one in memory.

    Picklable where its table is one that other processes see: a copy opens the log again, where it is used.

    Parameters
    ----------
    store : Store
    clock : callable
        Wall clock in seconds since 1970.
    merge_every : int or None
        Number of small files of a stream that are merged into one, right after a commit; None leaves
        them alone.
    auto_compact : bool
        Whether files of messages and dead letters are merged so too, not only those of progress.
    auto_vacuum : bool
        Whether files that were replaced are deleted after commits, once the table keeps them no longer.

    Attributes
    ----------
    core : LogCore
        What the library's own parts work with: files, commits, states. No program needs it, and it may change.

    Examples
    --------
    >>> import tempfile
    >>> from spark_timely.log.log import create_log
    >>> log = create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.string())]), minimum=(0,))
    >>> state = log.writer(owner="me").append(pa.table({"_time": [3], "v": ["a"]}), advance_to=4).state
    >>> log.frontier(), log.messages().column("v").to_pylist()
    (Antichain.of(4), ['a'])
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        merge_every: int | None = 100,
        auto_compact: bool = True,
        auto_vacuum: bool = True,
    ) -> None:
        _check_handle(f"could not open log {store.path!r}", clock, merge_every)
        self.core = LogCore(
            store, clock=clock, merge_every=merge_every, auto_compact=auto_compact, auto_vacuum=auto_vacuum
        )

    def __repr__(self) -> str:
        """Return the path, and of the streams and the frontier what this handle has read; reads nothing, never fails.

        Examples
        --------
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), times="date", minimum="2013-01-01")
        >>> log.frontier()
        Antichain.of(15706)
        >>> log
        MemoryLog('memory', streams=0, frontier=2013-01-01)
        """
        try:
            known = self.core.states.known()
            facts = ""
            if known is not None:
                streams, frontier = known
                facts = f", streams={streams}, frontier={self.domain.show_frontier(frontier)}"
            return f"{type(self).__name__}({shown(self.path)}{facts})"
        except Exception:  # noqa: BLE001 - of a store that is not there any more, or is about to change
            return f"{type(self).__name__}(…)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the log and its streams, as of the snapshot in use. Never fails."""
        return shown_in_notebook(self, self._page)

    def _page(self) -> str:
        domain, found = self.domain, self.describe()
        kinds = ", ".join(found["times"])
        columns = ", ".join(f"{name} {kind}" for name, kind in found["columns"].items())
        facts = [
            ("frontier", domain.show_frontier(self.core.states.counts().frontier)),
            ("kind", f"{self.kind}, times of type {kinds}"),
            ("columns", columns),
            ("messages", counted(found["messages"])),
            ("dead letters", counted(found["dead_letters"])),
            ("files", f"{found['message_files']} of messages, {sized(found['bytes'])} in all"),
            ("not yet opened", str(self.core.unclaimed)),
        ]
        streams = [
            (
                name,
                domain.show_frontier(state.frontier),
                state.seq,
                state.owner,
                moment_text(state.at - state.at % 1_000_000, least="seconds"),
            )
            for name, state in self.streams().items()
        ]
        head = ("stream", "frontier", "newest commit", "owner", "committed at")
        return page(f"Log {self.path}", facts_table(facts), table(head, streams))

    def __reduce__(self) -> tuple[Any, ...]:
        core = self.core
        return _reopened, (type(self), core.store, core.merge_every, core.auto_compact, core.auto_vacuum)

    # Facts ---------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Path or URL of the log."""
        return self.core.path

    @property
    def domain(self) -> TimeDomain:
        """Types of its times, and the minimum."""
        return self.core.domain

    @property
    def kind(self) -> LogKind:
        """`stream`, or `collection` with a `_diff`."""
        return self.core.kind

    @property
    def schema(self) -> pa.Schema:
        """Payload columns, with the nullability declared for messages."""
        return self.core.format.payload

    # Snapshot ------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take notice of commits by others; return whether there were any.

        Raises
        ------
        RolledBackError
            If commits that this handle has seen are gone: the log was restored to an earlier state. Then the handle
            says nothing any more; open the log again.
        """
        return self.core.refresh()

    # Streams -------------------------------------------------------------------------------------

    def streams(self) -> MappingProxyType[str, StreamState]:
        """Return the newest state of each stream in the snapshot."""
        return self.core.streams()

    def frontier(self) -> Antichain:
        """Return the minimal times that any stream may still use; empty when the log is complete."""
        return self.core.frontier()

    # Commits -------------------------------------------------------------------------------------

    def writer(
        self,
        stream: str = "main",
        *,
        owner: str | None = None,
        takeover: bool = False,
        target_file_size: int | str = TARGET_FILE_BYTES,
        compression: str = "zstd",
        missing_columns: str | Sequence[str] = (),
        content_digest: Literal["auto", "on", "off"] = "auto",
        late_data: Literal["error", "deadLetter", "advance"] = "error",
        bad_time: Literal["error", "deadLetter"] = "error",
        max_future_skew: int | str | dt.timedelta | None = None,
        lateness: int | str | dt.timedelta | None = None,
    ) -> StreamWriter:
        """Open a stream, unless its owner has done so before, and return what appends to it.

        Parameters
        ----------
        stream : str
            One that is new begins at the log's minimum, as long as the log waits for streams that are not there yet
            (`streams` of `create_log`); after that where the live stream is that is behind most.
        owner : str, optional
            The name of the writer; needed again to continue the stream later. A fresh one if not given.
        takeover : bool
            Whether to take the stream over from another owner, which then cannot append any more. An owner that
            has lost a stream cannot take it back.
        target_file_size : int or str
            Size after which an append begins a new file: bytes, or text such as ``"64mb"``.
        compression : str
            Codec of Parquet: zstd, snappy, gzip, brotli, lz4 or none.
        missing_columns : str or sequence of str
            Columns of the log that rows may lack: they are stored as null. Rows that lack another column that the log
            was made with are refused.
        content_digest : str
            Whether each commit says a digest of its messages, by which `verify` tells that another program changed a
            value: `auto`, where it costs at most 3 %; `on`, always; `off`, never.
        late_data, bad_time, max_future_skew
            What becomes of rows behind the stream's frontier, of rows without a usable time, and which rows are too
            far in the future: as the options `lateData`, `badTime` and `maxFutureSkew` of the sink. Late rows and
            rows without a time are refused unless given.
        lateness : int, str or timedelta, optional
            Lets each append move the frontier to its greatest time less this, as ``frontier=bounded`` of the sink
            does. Rows alone move it then: `append` takes neither `advance_to` nor `progress`.

        Raises
        ------
        InvalidUsageError
            If the codec or the size is none, or the name of the stream or of its owner is no text.
        """
        # Before the stream is opened: what is refused claims no capability.
        check_codec(self.path, compression)
        size = size_of(f"could not write to log {self.path!r}", "target_file_size", target_file_size)
        check_stream_name(stream)
        attempt = f"could not write to log {self.path!r}"
        check_text(attempt, "owner", owner, optional=True)
        missing = names_of(attempt, "missing_columns", missing_columns) if missing_columns else ()
        self.core.format.check_absent(self.core.format.payload.names, allowed=missing, attempt=attempt)
        check_word(attempt, "content_digest", content_digest, DIGESTS)
        policy = policy_of(
            self.domain, attempt, late_data=late_data, bad_time=bad_time, skew=max_future_skew, lateness=lateness
        )
        name = owner if owner is not None else f"producer-{uuid.uuid4()}"
        if takeover:
            self.refresh()
            state = self.core.stream(stream)
            if state is not None and state.owner != name:
                self._take_over(state, name)
        self.core.open_stream(stream, owner=name)
        return StreamWriter(
            self.core,
            stream,
            name,
            target_file_size=size,
            compression=compression,
            missing_columns=missing,
            policy=policy,
            digest_within=budget(content_digest, OF_COMMIT),
        )

    def add_columns(self, columns: pa.Schema) -> None:
        """Add payload columns that may be null; messages that were written without them have nulls there.

        Does nothing about columns that are there already. Writers that append without them continue.

        Parameters
        ----------
        columns : pyarrow.Schema
            Names and types.

        Raises
        ------
        SchemaMismatchError
            If a column is there with another type, or a log cannot have it. The log is as before.
        InvalidUsageError
            If `columns` is no schema.
        LogFormatError
            If the table has features that cannot be written.
        StorageError
            If the log cannot be reached. To repeat the call does no harm.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> log.add_columns(pa.schema([("note", pa.string())]))
        >>> log.schema.names
        ['v', 'note']
        """
        check_schema(f"could not add columns to log {self.path!r}", "columns", columns)
        with self.core.lock:
            add_columns(self.core.store, columns)

    def _take_over(self, state: StreamState, owner: str) -> None:
        nothing = np.empty((0, self.domain.arity), np.int64)
        self.core.commit(
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
        self, stream: str, frontier: FrontierLike, *, reason: str = "advanced by hand", dry_run: bool = False
    ) -> StreamState:
        """Advance a stream in the name of its owner, from outside.

        The owner continues as if it had done so itself; its last micro-batch is still recognised when it
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
        attempt = f"could not advance a stream of log {self.path!r}"
        check_text(attempt, "stream", stream)
        check_text(attempt, "reason", reason)
        target = self.domain.parse_frontier(frontier)
        with self.core.lock:
            self.refresh()
            state = self.core.stream(stream)
            if state is None:
                raise missing_stream(self.path, stream, self.streams())
            if state.closed:
                raise closed_stream(self.path, stream)
            times, deltas = forward_to(self.core, state, target)
            if dry_run:
                held = StreamCounts.from_arrays(target.times, np.ones(len(target), np.int64), self.domain.arity)
                return next_state(state, held, note=state.note, reason=reason)
            outcome = self.core.commit(
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
        attempt = f"could not close a stream of log {self.path!r}"
        check_text(attempt, "stream", stream, optional=True)
        check_text(attempt, "reason", reason)
        self.refresh()
        nothing = Antichain.empty(self.domain.arity)
        if stream is not None:
            state = self.core.stream(stream)
            if state is None:
                raise missing_stream(self.path, stream, self.streams())
            return [] if state.closed else [self.advance(stream, nothing, reason=reason, dry_run=dry_run)]
        closed = [
            self.advance(name, nothing, reason=reason, dry_run=dry_run)
            for name, state in self.streams().items()
            if not state.closed
        ]
        if not dry_run:
            with self.core.lock:
                drop_unclaimed(self.core.states, reason, clock=self.core.now_us())
        return closed

    # Retention -----------------------------------------------------------------------------------

    def since(self) -> Antichain:
        """Return from where the log can be read: its minimum, unless compaction was allowed beyond.

        Contents of a collection are to be had at times beyond it, its changes from frontiers that are later in each
        coordinate; messages of a stream from frontiers beyond it.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,)).since()
        Antichain.of(0)
        """
        return self.core.since()

    def retainers(self) -> MappingProxyType[str, Retainer]:
        """Return who retains what of the log, by the consumer's name; those that have expired too."""
        return self.core.retainers()

    def allow_compaction(self, frontier: FrontierLike, *, by: str = "hand", dry_run: bool = False) -> Antichain:
        """Allow the log to forget: times before the frontier need not stay distinct any more.

        since moves as far as is allowed, but never past what a live retainer needs, past what the log keeps (`keep`),
        nor past what the log's own frontier needs. It never moves back; nothing is rewritten by this.

        Parameters
        ----------
        frontier : frontier
            As `TimeDomain.parse_frontier` takes it; not empty.
        by : str
            A name for the errors of those that come too late.
        dry_run : bool
            Whether to change nothing, and say where since would be.

        Returns
        -------
        Antichain
            since, after it.

        Raises
        ------
        InvalidUsageError
            If the frontier is empty: a log that is no longer needed is deleted.
        LogFormatError, StorageError
            If the log cannot be written. To repeat the call does no harm.

        Notes
        -----
        Cost: one small file and one commit of the table; nothing where since stays.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> log.writer(owner="me").append(pa.table({"_time": [3], "v": [1]}), advance_to=7).state.seq
        1
        >>> log.allow_compaction([5]), log.allow_compaction([9])
        (Antichain.of(5), Antichain.of(7))
        """
        attempt = f"could not allow compaction of log {self.path!r}"
        check_text(attempt, "by", by)
        wanted = self.domain.parse_frontier(frontier)
        if wanted.is_empty:
            msg = f"{attempt}: found the empty frontier"
            raise InvalidUsageError(
                msg,
                hint="give a frontier with a time; a log that nobody needs any more is deleted",
                context={"path": self.path},
            )
        since = allow_compaction(self.core.states, wanted, by=by, clock=self.core.now_us(), dry_run=dry_run).since
        if not dry_run:
            self.core.drop_old_files()
        return since

    def retain(
        self, consumer: str, frontier: FrontierLike, *, owner: str, expiry: str | dt.timedelta = "7 days"
    ) -> Retainer | None:
        """Keep the log readable from a frontier on, for a named consumer: register, move or renew a retainer.

        Parameters
        ----------
        consumer : str
            Its name, one in the log.
        frontier : frontier
            Where the consumer stands; empty releases.
        owner : str
            The one that may move it, until it expires.
        expiry : str or timedelta
            How long it counts unless renewed, such as ``"7 days"``.

        Returns
        -------
        Retainer or None
            None if it was released.

        Raises
        ------
        SinceViolationError
            If since has passed the frontier.
        OwnershipError
            If the name is another owner's.
        InvalidUsageError
            If a name is no text, or the expiry no length of time.

        Notes
        -----
        Cost: two small files and one commit of the table; nothing where it says what is there.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> writer = log.writer(owner="me")
        >>> state = writer.append(pa.table({"_time": [3], "v": [1]}), advance_to=7).state
        >>> log.retain("report", [4], owner="nightly").needed
        Antichain.of(4)
        >>> log.allow_compaction([6])
        Antichain.of(4)
        """
        frontier_ = self.domain.parse_frontier(frontier)
        return self.core.retain_needed(
            consumer, needed_from(self.kind, frontier_, self.domain.minimum), owner=owner, expiry=expiry
        )

    def release(self, consumer: str) -> None:
        """Let a retainer go, whatever query or program owns it.

        Raises
        ------
        InvalidUsageError
            If there is none of that name.
        """
        check_text(f"could not release a consumer of log {self.path!r}", "consumer", consumer)
        release(self.core.states, consumer)
        self.core.drop_old_files()

    def keep(self, length: int | str | dt.timedelta | None, *, committed: str | dt.timedelta = "1 day") -> Keep | None:
        """Set how much of the log stays, however far compaction is allowed; what is before goes by itself from then on.

        Committers move since up to there, with the upkeep after about every hundredth commit. A longer length brings
        nothing back. What retainers need stays in any case.

        Parameters
        ----------
        length : int, str, timedelta or None
            Times less than this before the log's frontier stay, such as ``"7 days"``; a number on integer times. Where
            the log is complete it is counted from the greatest time in it. None: nothing goes by itself.
        committed : str or timedelta
                Nothing goes that was committed less than this ago, by the wall clock; at most a quarter more.

        Returns
        -------
        Keep or None
            What counts now.

        Raises
        ------
        InvalidUsageError
            If it is no length of the log's times, or these have several coordinates.
        LogFormatError, StorageError
            If the log cannot be written. To repeat the call does no harm.

        Notes
        -----
        Cost: one small file and one commit of the table, and all progress is read; nothing where it is so already.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> log.keep(3, committed="0s").length
        3
        >>> state = log.writer(owner="me").append(pa.table({"_time": [3], "v": [1]}), advance_to=7).state
        >>> log.allow_compaction([6])
        Antichain.of(4)
        """
        wanted = None if length is None else _keep_of(self.path, self.domain, length, committed)
        with self.core.lock:
            self.refresh()
            before = retention_of(self.core.states).keep
            if wanted == (None if before is None else replace(before, seen=())):
                return before
            found = set_keep(self.core.states, wanted, clock=self.core.now_us()).keep
            self.core.drop_old_files()
            return found

    def behind(self, length: int | str | dt.timedelta) -> Antichain:
        """Return the frontier that is a length before the log's; of a complete log before its greatest time.

        Parameters
        ----------
        length : int, str or timedelta
            As for `keep`.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), times="date", minimum="2013-01-01")
        >>> log.writer(owner="me").append([], advance_to="2013-06-15").committed
        True
        >>> log.domain.show_frontier(log.behind("2 weeks"))
        '2013-06-01'
        """
        wanted = _keep_of(self.path, self.domain, length, "0s")
        with self.core.lock:
            return behind(self.core.states, wanted.length)

    def keep_dead(self, length: str | dt.timedelta | None) -> None:
        """Set how long dead letters stay, by the wall clock: they go with the upkeep of commits and `compact`.

        Parameters
        ----------
        length : str, timedelta or None
            Such as ``"90 days"``; None: for ever, as at first. They go by files, so some stay longer.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> log.keep_dead("90 days")
        """
        attempt = f"could not set how long log {self.path!r} keeps dead letters"
        dead = None if length is None else length_of(attempt, "length", length, path=self.path)
        set_dead(self.core.states, dead)
        self.core.drop_old_files()

    # Rows ----------------------------------------------------------------------------------------

    def messages(
        self,
        *,
        lower: FrontierLike | None = None,
        upper: FrontierLike | None = None,
        columns: str | Sequence[str] | None = None,
        stream: str | None = None,
    ) -> pa.Table:
        """Return the messages at times beyond `lower` and not beyond `upper`, ordered by time.

        Parameters
        ----------
        lower, upper : frontier, optional
            Open on the side that is not given.
        columns : str or sequence of str, optional
            Which columns; all of `format.data_columns` if not given.
        stream : str, optional
            Only messages of this stream.

        Raises
        ------
        SinceViolationError
            If since has passed a bound. Without a lower one, or with the log's minimum, a stream begins with what it
            has not forgotten, and updates of a collection stand at since where they were before.

        Notes
        -----
        For answers that fit the memory of one process. Reads only files and row groups that may hold
        what is asked for.
        """
        schema = self.core.format.data_schema
        return read_rows(
            self.core, self.core.files(), schema, forgets=True, lower=lower, upper=upper, columns=columns, stream=stream
        )

    def resubmit(
        self,
        seq: int,
        rows: RowsLike | Callable[[pa.Table], RowsLike] | None = None,
        /,
        *,
        stream: str = "main",
        log_id: str | None = None,
        reason: str | None = None,
    ) -> CommitOutcome:
        """Append the dead letters of one commit to their stream again, corrected, once.

        Parameters
        ----------
        seq : int
            Number of the commit that holds the letters: their column `_seq`.
        rows : table, mapping, sequence of mapping or callable, optional
            What to append in place of the letters, at most one row each, as `StreamWriter.append` takes them with the
            log's time columns; or a function that makes it of the letters, a table as `dead` gives it. The letters as
            they are unless given: right for rows of the future whose time has come.
        stream : str
        log_id : str, optional
            Id of the log that the letters were read from; another log in its place is refused then.
        reason : str, optional
            For people.

        Returns
        -------
        CommitOutcome
            `committed` is False where these letters were resubmitted before: nothing was done then.

        Raises
        ------
        UnheldCapabilityError
            If a row's time is behind the stream's frontier. Nothing was done.
        MissingError
            If the commit has no letters, or they are gone.
        RolledBackError
            If the log is not the one with `log_id`.
        SchemaMismatchError, InvalidUsageError
            If the rows do not fit the log, are more than the letters, or the stream is an output.
        StorageError
            If the log cannot be reached. The rows may be appended: call it again, which never appends them twice.

        Notes
        -----
        The frontier stays. Letters stay where they are; `stats` counts the commits that were resubmitted. The rows are
        appended in the name of the stream's owner: a query that runs meanwhile fails in that micro-batch and repeats
        it after a restart.

        Cost: all progress of the log is read, and the files that hold the letters.

        Examples
        --------
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> writer = log.writer(owner="me", bad_time="deadLetter")
        >>> seq = writer.append({"_time": pa.array([None], pa.int64()), "v": [7]}).state.seq
        >>> fixed = {"_time": [3], "v": [7]}
        >>> log.resubmit(seq, fixed).committed, log.resubmit(seq, fixed).committed
        (True, False)
        """
        from spark_timely.log.resubmission import resubmit

        return resubmit(self.core, seq, rows, stream=stream, log_id=log_id, reason=reason)

    def dead(self, *, stream: str | None = None) -> pa.Table:
        """Return the dead letters: rows that were late, with the reason, ordered by time."""
        return read_rows(self.core, self.core.dead_files(), self.core.format.dead_schema, stream=stream)

    def snapshot(self, as_of: TimeLike, /) -> pa.Table:
        """Return the contents of a collection as of a time: rows that count, and how often each.

        Parameters
        ----------
        as_of : time
            One that is closed: nothing can be added at it any more.

        Returns
        -------
        pyarrow.Table
            Payload columns and `_diff`, the sum of the diffs at times less or equal to `as_of`, never
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
        return snapshot_of(self.core, as_of)

    # Whole log -----------------------------------------------------------------------------------

    def verify(self, *, since: FrontierLike | None = None) -> VerifyReport:
        """Check the whole log against the protocol, and compute its canonical hash.

        Of a log that has forgotten, what can no longer be known is not judged.

        Parameters
        ----------
        since : frontier, optional
            Compute the hash of what the log says relative to it: of a stream of messages at times beyond it, of a
            collection of updates moved to it. That one does not change when the log forgets what is before; the hash of
            all that is there does.

        Raises
        ------
        SinceViolationError
            If the log has forgotten more than that.
        NotBeyondError
            If the log's frontier has not passed it.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
        >>> state = log.writer(owner="me").append(pa.table({"_time": [3, 6], "v": [1, 2]}), advance_to=9).state
        >>> before = log.verify(since=[5]).digest
        >>> _ = log.allow_compaction([5]), log.compact(logical=True)
        >>> log.verify(since=[5]).digest == before
        True
        """
        with self.core.as_it_is():
            return verify_log(self.core, since=None if since is None else self.domain.parse_frontier(since))

    def accept_change(self, token: str, /) -> AcceptReport:
        """Accept what another program changed in the log: from then on the messages are as they are.

        Where RESTORE is not possible any more. Progress, since and retainers are put back as they were written. Readers
        from before are refused until they say that they know: queries by `acceptChange`, subscriptions and mirrors by
        `accept_change`, dataflows and tasks by `replaces`; a cut is made again.

        Parameters
        ----------
        token : str
            As the error says it, which refuses the log. Of everything that is changed now, and of nothing else.

        Returns
        -------
        AcceptReport

        Raises
        ------
        InvalidUsageError
            If nothing is changed, or something else than the token stands for.
        LogDamagedError
            If progress cannot be put back, for its files are deleted; if messages are of commits that no stream has
            made; if files are missing.
        StorageError

        Notes
        -----
        Cost: reads all messages. Done twice it is the same as once.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]))
        >>> log.accept_change("9f3b11d2a0c7e845")  # doctest: +ELLIPSIS, +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        spark_timely.errors.InvalidUsageError: could not accept a change of log 'memory': found no change
        """
        with self.core.lock:
            return accept_change(self.core, self.core.states, token)

    def describe(self) -> dict[str, Any]:
        """Return facts about the log, as plain values.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), streams=2)
        >>> log.describe()["frontier"], log.describe()["unclaimed"]
        ('[0]', 2)
        """
        files, dead = self.core.store.live.index("message"), self.core.dead_files()
        domain = self.domain
        return {
            "path": self.path,
            "id": self.core.log_id,
            "format_version": self.core.format.version,
            "table_version": self.core.version,
            "kind": self.kind,
            **domain.to_json(),
            "columns": {f.name: str(f.type) for f in self.schema},
            "nullable": {f.name: f.nullable for f in self.schema},
            "frontier": domain.render_frontier(self.core.states.counts().frontier),
            "unclaimed": self.core.unclaimed,
            "streams": {
                name: {
                    "frontier": domain.render_frontier(state.frontier),
                    "seq": state.seq,
                    "owner": state.owner,
                    "batch": state.batch,
                    "closed": state.closed,
                    "resubmitted": sum(last - first + 1 for first, last in state.note.resubmitted),
                }
                for name, state in self.streams().items()
            },
            "message_files": len(files),
            "messages": int(files.rows.sum()) if (files.rows >= 0).all() else None,
            "dead_letters": int(dead.rows.sum()) if (dead.rows >= 0).all() else None,
            "bytes": self.core.store.live.size_bytes,
        }

    # Upkeep --------------------------------------------------------------------------------------

    def compact(
        self, *, target_file_size: int | str = TARGET_FILE_BYTES, min_files: int = 2, logical: bool = False
    ) -> CompactionReport:
        """Merge small files into larger ones; changes no answer. See `spark_timely.log.compaction`.

        Parameters
        ----------
        target_file_size : int or str
            Size of a file that is large enough: bytes, or text such as ``"64mb"``.
        min_files : int
            Fewest files that are worth a merge, 2 or more.
        logical : bool
            Whether to forget before what `allow_compaction` lets go: messages of a stream at times not beyond since are
            deleted, updates of a collection move to since and are summed. The files that held them stay on disk until
            a vacuum. Versions of this library that do not know since cannot open the log afterwards.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), kind="collection")
        >>> rows = pa.table({"_time": [1, 2, 3], "v": [7, 7, 7], "_diff": [1, 1, 1]})
        >>> state = log.writer(owner="me").append(rows, advance_to=9).state
        >>> log.allow_compaction([5])
        Antichain.of(5)
        >>> log.compact(logical=True).forgotten.rows_removed
        2
        >>> log.messages().select(["_time", "_diff", "v"]).to_pylist()
        [{'_time': 5, '_diff': 3, 'v': 7}]
        """
        with self.core.lock:
            size = size_of(f"could not compact log {self.path!r}", "target_file_size", target_file_size)
            self.refresh()
            self.core.states.check_untouched()
            forgotten = forget(self.core.states, target_file_size=size) if logical else None
            if logical:
                forget_dead(self.core.states, clock=self.core.now_us())
            report = compact(self.core.states, target_file_size=size, min_files=min_files)
            self.core.tidy()
            return replace(report, forgotten=forgotten)

    def vacuum(
        self, *, older_than: str | dt.timedelta | None = None, unknown: bool = False, dry_run: bool = False
    ) -> VacuumReport:
        """Delete files that merges and compaction have replaced, once nobody can need them.

        No answer changes by it. A reader that planned before a file was replaced, and reads it after it was deleted,
        fails and plans once more. Older versions of the table, which only Delta itself reads, may be gone.

        Parameters
        ----------
        older_than : str or timedelta, optional
            How long ago they were replaced, at least; as long as the table keeps them if not given
            (`delta.deletedFileRetentionDuration`, a day for logs), and at least an hour. Where the log has retainers it
            is an hour in any case.
        unknown : bool
            Whether files are deleted too that are a week old and that no entry of the table's log names: those of
            writers that were killed, and what was replaced before by others.
        dry_run : bool
            Whether to delete nothing, and say what would be.

        Returns
        -------
        VacuumReport

        Raises
        ------
        InvalidUsageError
            If `older_than` is no length of time.
        LogFormatError
            If the table has features by which others may need the files.
        StorageError
            If it cannot be read or written. What was deleted was due; to repeat the call does no harm.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), merge_every=2)
        >>> for time in range(4):
        ...     _ = log.writer(owner="me").append(pa.table({"_time": [time], "v": [1]}), advance_to=time + 1)
        >>> report = log.vacuum()
        >>> report.files, report.young_files > 0, log.vacuum(older_than="0s").files == report.young_files
        (0, True, True)
        """
        attempt = f"could not vacuum log {self.path!r}"
        age = None if older_than is None else length_of(attempt, "older_than", older_than, path=self.path) // 1000
        with self.core.lock:
            self.refresh()
            self.core.states.check_untouched()
            now = self.core.now_us()
            readers = bool(retention_of(self.core.states).alive(now))
            return vacuum(
                self.core.states, age_ms=age, unknown=unknown, dry_run=dry_run, now_ms=now // 1000, has_readers=readers
            )


class MemoryLog(Log):
    """A capture log in memory. Several handles may share one table, as processes share a Delta table.

    Examples
    --------
    >>> import pyarrow as pa
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> writer = log.writer(owner="me")
    >>> writer.append(pa.table({"_time": [3], "v": [1]}), advance_to=4).state.seq
    1
    >>> log.frontier()
    Antichain.of(4)
    """

    @classmethod
    def create(
        cls,
        schema: pa.Schema,
        *,
        times: TimeTypeName | Sequence[TimeTypeName] = ("long",),
        minimum: TimeLike | None = None,
        kind: LogKind = "stream",
        streams: int = 1,
        key: str | Sequence[str] = (),
        keep: int | str | dt.timedelta | None = None,
        keep_committed: str | dt.timedelta = "1 day",
        clock: Callable[[], float] = time.time,
        merge_every: int | None = 100,
        auto_compact: bool = True,
        auto_vacuum: bool = True,
    ) -> MemoryLog:
        """Create a log. Parameters as those of `spark_timely.log.log.create_log`."""
        form = LogFormat.build(schema, times=times, minimum=minimum, kind=kind, key=key)
        table = MemoryTable(form)
        _check_streams(streams, table.storage.uri)
        kept = None if keep is None else _keep_of(table.storage.uri, form.domain, keep, keep_committed)
        first = _first_files(table.storage, form, streams, kept, clock)
        MemoryStore(table).transact(first, [(f"timely/{OPEN_STREAM}", 0)])
        return cls(
            MemoryStore(table),
            clock=clock,
            merge_every=merge_every,
            auto_compact=auto_compact,
            auto_vacuum=auto_vacuum,
        )

    def another(self) -> MemoryLog:
        """Return a second handle on the same log."""
        core, store = self.core, self.core.store
        while not isinstance(store, MemoryStore):  # a wrapper of tests
            store = store.inner  # type: ignore[attr-defined]
        return type(self)(
            MemoryStore(store.table),
            clock=core.clock,
            merge_every=core.merge_every,
            auto_compact=core.auto_compact,
            auto_vacuum=core.auto_vacuum,
        )


def _reopened(log: type[Log], store: Store, *options: Any) -> Log:  # noqa: ANN401 - as pickle passes them
    merge_every, auto_compact, auto_vacuum = options
    return log(store, merge_every=merge_every, auto_compact=auto_compact, auto_vacuum=auto_vacuum)


def _check_handle(attempt: str, clock: object, merge_every: object) -> None:
    check_whole(attempt, "merge_every", merge_every, least=1, optional=True)
    if not callable(clock):
        msg = f"{attempt}: found clock={shown(clock)}"
        raise InvalidUsageError(msg, hint="give a function that returns seconds since 1970, such as time.time")


def _check_streams(streams: object, where: str) -> None:
    if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= _MOST_STREAMS:
        msg = f"could not create log {where!r}: found streams={streams!r}"
        raise InvalidUsageError(msg, hint=f"give a number of streams from 1 to {_MOST_STREAMS}")


def _keep_of(path: str, domain: TimeDomain, length: int | str | dt.timedelta, committed: str | dt.timedelta) -> Keep:
    """Read how much a log is to keep."""
    attempt = f"could not set what log {path!r} keeps"
    if domain.arity > 1:
        msg = f"{attempt}: found times of {domain.arity} coordinates, behind which no length can be counted"
        raise InvalidUsageError(
            msg, hint="allow compaction up to a frontier now and then, by log.allow_compaction", context={"path": path}
        )
    try:
        units = domain.types[0].duration(length)
    except InvalidUsageError as error:
        msg = f"{attempt}: found keep={shown(length)}"
        raise InvalidUsageError(msg, hint=error.hint, context={"path": path}) from error
    return Keep(units, length_of(attempt, "committed", committed, path=path))


def _first_files(
    storage: Storage, form: LogFormat, streams: int, keep: Keep | None, clock: Callable[[], float]
) -> list[DataFile]:
    """Write the progress of the commit that makes a log: its unclaimed capabilities; and what it keeps."""
    return [_first_file(storage, form, streams, clock), *first_files(storage, form, keep)]


def _first_file(storage: Storage, form: LogFormat, streams: int, clock: Callable[[], float]) -> DataFile:
    state = initial_state(
        OPEN_STREAM,
        StreamCounts.initial(form.domain.minimum, streams),
        owner=None,
        at=clock_us(f"could not create log {storage.uri!r}", clock),
        reason="created",
        note=Note(),
    )
    return write_progress_file(storage, batch_rows(form, state), OPEN_STREAM, 0, form.domain)


def check_free(path: str, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Refuse a path where `create_log` would find something else than a log; write nothing.

    Parameters
    ----------
    path : str
        As `normal_path` gives it.
    storage_options : mapping, optional

    Raises
    ------
    InvalidUsageError
        If it is a file, or a directory with something else in it.
    LogMissingError
        If it is another Delta table.

    Notes
    -----
    Cost: a look at one directory. With a table in it, the table is opened.
    """
    if not _is_free(path, open_storage(path, storage_options)):
        open_log(path, storage_options=storage_options)


def _is_free(where: str, storage: Storage) -> bool:
    """Return whether there is no Delta table; refuse something else in the directory."""
    if storage.local and os.path.exists(where) and not os.path.isdir(where):
        raise _not_free(where, "a file", "give an empty or new directory")
    names = storage.names()
    if "_delta_log" in names and has_table(storage):
        return False
    # Left behind by a creation that was killed: files of data, a table's log without entries.
    foreign = foreign_names(names)
    if foreign:
        raise _not_free(where, f"{foreign[0]!r} in the directory", "give an empty or new directory")
    return True


def create_log(
    path: str | os.PathLike[str],
    schema: pa.Schema,
    *,
    times: TimeTypeName | Sequence[TimeTypeName] = ("long",),
    minimum: TimeLike | None = None,
    kind: LogKind = "stream",
    streams: int = 1,
    key: str | Sequence[str] = (),
    keep: int | str | dt.timedelta | None = None,
    keep_committed: str | dt.timedelta = "1 day",
    exist_ok: bool = False,
    storage_options: Mapping[str, str] | None = None,
    single_writer: bool = False,
    flush: bool = True,
    clock: Callable[[], float] = time.time,
    merge_every: int | None = 100,
    auto_compact: bool = True,
    auto_vacuum: bool = True,
) -> Log:
    """Create a capture log.

    Parameters
    ----------
    path : str or path
        Empty, or not there yet: a local directory or a cloud URL.
    schema : pyarrow.Schema
        Payload columns, without the time unless it is to be kept there too.
    times : str or sequence of str
        Type of each time coordinate: `long`, `int`, `short`, `date` or `timestamp`. More than one makes
        a product order.
    minimum : time, optional
        Time at which the log starts, such as ``0`` or ``"2013-01-01"``; the types' minima if not given
        (1700-01-01 for date, timestamp).
    kind : str
        `stream`: messages are events. `collection`: messages are updates with a `_diff`.
    streams : int
        Number of streams that may open from the minimum on. The log's frontier waits for all of them.
    key : str or sequence of str
        Of a collection: columns by which merges and compaction order the updates of one time, in row groups of 16,384,
        so that few bytes are read to find a key. A matter of layout: a key may have any number of rows.
    keep : int, str or timedelta, optional
        How much of the log stays: times less than this before its frontier, such as ``"30 days"``; what is before goes
        by itself. Everything stays if not given. See `Log.keep`.
    keep_committed : str or timedelta
        With `keep`: nothing goes that was committed less than this ago, by the wall clock.
    exist_ok : bool
        Whether to open a log that is there already, if it has the same schema, times and kind, and the key if one is
        given; columns that were added since make no difference. What it keeps is changed where `keep` says so.
    storage_options : mapping, optional
        Credentials and settings for cloud URLs, as delta-rs takes them.
    single_writer : bool
        Promises that only one process at a time writes to the log; allows volumes, and file systems
        without hard links.
    flush : bool
        Whether what is written to a local disk is flushed before it is acknowledged. Without it a power cut can take
        the latest commits, or damage the log.
    clock : callable
        Wall clock in seconds.
    merge_every : int or None
        Number of small files of a stream that are merged after a commit; None never merges.
    auto_compact : bool
        Whether small files of messages are merged so too, or only those of progress.
    auto_vacuum : bool
        Whether files that were replaced are deleted after commits, once the table keeps them no longer: a day, or what
        `delta.deletedFileRetentionDuration` says, and at least an hour.

    Returns
    -------
    Log

    Raises
    ------
    InvalidUsageError
        If there is a log already, or something else in the directory; if it is on a volume, and
        `single_writer` is not promised.
    SchemaMismatchError
        If a payload column cannot be kept, or an existing log differs.
    StorageError
        If the log cannot be written.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> log = create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.string())]), minimum=(0,))
    >>> log.frontier(), log.describe()["unclaimed"]
    (Antichain.of(0), 1)
    """
    where = normal_path(path)
    _check_handle(f"could not create log {where!r}", clock, merge_every)
    form = LogFormat.build(schema, times=times, minimum=minimum, kind=kind, key=key)
    _check_streams(streams, where)
    kept = None if keep is None else _keep_of(where, form.domain, keep, keep_committed)
    storage_options = promised(storage_options, where, single_writer=single_writer, flush=flush)
    check_place(where, storage_options)
    open_ = partial(
        open_log,
        where,
        storage_options=storage_options,
        clock=clock,
        merge_every=merge_every,
        auto_compact=auto_compact,
        auto_vacuum=auto_vacuum,
    )
    storage = open_storage(where, storage_options)
    if _is_free(where, storage):
        first = _first_files(storage, form, streams, kept, clock)
        try:
            creation = create_table(storage, form, first, storage_options)
        except StorageError as error:
            if error.determinate:
                discard(storage, first)
            raise
        if creation == "made":
            return open_()
        if creation == "taken":
            discard(storage, first)
        elif not exist_ok:
            msg = f"could not tell whether log {where!r} was created: found one, and an error of the storage before"
            raise StorageError(
                msg, hint="open the log to see what it holds, or create it with exist_ok=True", context={"path": where}
            )
    if not exist_ok:
        hint = "give another path, or exist_ok=True to open a log that is there"
        raise _not_free(where, "a Delta table there already", hint)
    log = open_()
    found = log.core.format
    if (found.domain, found.kind) != (form.domain, form.kind):
        hint = f"give another path, or what it has in place of kind={form.kind!r} times={form.domain.to_json()!r}"
        raise _unlike(where, f"kind={found.kind!r} times={found.domain.to_json()!r}", hint)
    if form.key and found.key != form.key:
        hint = "leave the key out, or give another path: a log keeps its key"
        raise _unlike(where, f"key={list(found.key)!r}", hint)
    if not (found.payload.equals(form.payload) or found.declared.equals(form.payload)):
        hint = "give the schema that the log was created with, or another path"
        raise _unlike(where, f"other payload columns: {_difference(found.payload, form.payload)}", hint)
    if keep is not None:
        log.keep(keep, committed=keep_committed)
    return log


def _unlike(path: str, found: str, hint: str) -> SchemaMismatchError:
    return SchemaMismatchError(f"could not use log {path!r}: found {found}", hint=hint, context={"path": path})


def _not_free(path: str, found: str, hint: str) -> InvalidUsageError:
    return InvalidUsageError(f"could not create log {path!r}: found {found}", hint=hint, context={"path": path})


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    for field in wanted:
        if field.name not in found.names:
            return f"no column {field.name!r}"
        if not found.field(field.name).equals(field):
            return f"column {found.field(field.name)} where {field} was wanted"
    for field in found:
        if field.name not in wanted.names:
            return f"a further column {field.name!r}"
    return "their order differs"


def open_log(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    single_writer: bool = False,
    flush: bool = True,
    clock: Callable[[], float] = time.time,
    merge_every: int | None = 100,
    auto_compact: bool = True,
    auto_vacuum: bool = True,
) -> Log:
    """Open a capture log.

    Parameters
    ----------
    path : str or path
        A local directory or a cloud URL.
    storage_options : mapping, optional
        Credentials and settings for cloud URLs, as delta-rs takes them.
    single_writer : bool
        Promises that only one process at a time writes to the log: this one. Reading needs no promise.
    flush : bool
        Whether what is written to a local disk is flushed before it is acknowledged. Without it a power cut can take
        the latest commits, or damage the log.
    clock : callable
        Wall clock in seconds.
    merge_every : int or None
        Number of small files of a stream that are merged after a commit; None never merges.
    auto_compact : bool
        Whether small files of messages are merged so too, or only those of progress.
    auto_vacuum : bool
        Whether files that were replaced are deleted after commits, once the table keeps them no longer: a day, or what
        `delta.deletedFileRetentionDuration` says, and at least an hour.

    Returns
    -------
    Log

    Raises
    ------
    LogMissingError
        If there is no log: nothing, no Delta table, or one that is no log.
    LogFormatError
        If the log is of a newer version, or uses table features that cannot be read.
    StorageError
        If the storage cannot be reached.

    Examples
    --------
    >>> open_log("/nowhere")
    Traceback (most recent call last):
    ...
    spark_timely.errors.LogMissingError: [TIMELY_LOG_MISSING] could not open log '/nowhere': found nothing \
there — hint: ...
    """
    where = normal_path(path)
    storage_options = promised(storage_options, where, single_writer=single_writer, flush=flush)
    storage = open_storage(where, storage_options)
    if storage.local and not os.path.isdir(where):
        found = "a file" if os.path.exists(where) else "nothing there"
        if not os.path.exists(where) and os.path.islink(where):
            found = f"a link to {shown(os.readlink(where))}, where nothing is"
        msg = f"could not open log {where!r}: found {found}"
        raise LogMissingError(
            msg,
            hint=NO_LOG_HINT,
            context={"path": where},
        )
    store = DeltaStore(where, storage_options)
    return Log(store, clock=clock, merge_every=merge_every, auto_compact=auto_compact, auto_vacuum=auto_vacuum)


_MOST_KEPT = 8


class _Kept(threading.local):
    """Logs that a thread has opened, the latest last."""

    def __init__(self) -> None:
        self.logs: dict[tuple[object, ...], Log] = {}


_kept = _Kept()


def keep_log(
    path: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None, made: Log | None = None
) -> Log:
    """Open a capture log, or take up the handle that this thread opened before, brought up to date.

    For what is done again for each micro-batch by a process that lives longer: to follow a log costs what is
    new in it, to open one what is live in it. At most eight are kept.

    Parameters
    ----------
    path, storage_options
        As for `open_log`.
    made : Log, optional
        The handle by which the log was made just now: it is kept.

    Returns
    -------
    Log

    Raises
    ------
    LogMissingError, LogFormatError, StorageError
        As `open_log`.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> path = create_log(tempfile.mkdtemp() + "/log", pa.schema([("v", pa.string())]), minimum=(0,)).path
    >>> keep_log(path) is keep_log(path)
    True
    """
    # By process: what a fork takes along does not work in it.
    key = (os.getpid(), identity(normal_path(path), storage_options), *sorted((storage_options or {}).items()))
    log = made or _kept.logs.pop(key, None)
    try:
        if log is not None:
            log.refresh()
    except TimelyError:
        log = None  # gone, restored, replaced or damaged: to open it again says which
    _kept.logs[key] = log = log or open_log(path, storage_options=storage_options)
    while len(_kept.logs) > _MOST_KEPT:
        del _kept.logs[next(iter(_kept.logs))]
    return log


def forget_logs() -> None:
    """Let go of the handles that this thread keeps, as a new process has none.

    Examples
    --------
    >>> forget_logs()
    """
    _kept.logs.clear()
