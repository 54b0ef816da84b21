"""The core of an open log, for the library's own parts: its table, states of its streams, commits, upkeep.

A `spark_timely.log.log.Log` is what users hold; its `core` is this. What plans, commits or follows asks the core: the
sink commits by `LogCore.commit`, the replay source and the answers read `files` and `frontier`. The core holds a
`StreamStates` (`streams`), and decides when the upkeep of `compaction`, `forgetting` and `vacuum` is due.

Invariants
----------
1. A commit has happened before its upkeep begins, and no failure of upkeep is one of a commit.
2. Upkeep is put off while another program's change is neither undone nor accepted.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_timely.conf.kinds import check_text, clock_us, length_of
from spark_timely.errors import ForeignChangeError, InvalidUsageError, StorageError, TimelyError, described, shown
from spark_timely.log.compaction import merge_progress_files, merge_small_files
from spark_timely.log.files.parquet import files_of_job
from spark_timely.log.files.parquet_reader import side_by_side
from spark_timely.log.foreign import describe_change
from spark_timely.log.forgetting import forget_dead, forget_inline
from spark_timely.log.machine.since import check_may_read, needed_as_of
from spark_timely.log.machine.state import OPEN_STREAM, CommitOutcome, CommitRequest, StreamState, distinct_rows
from spark_timely.log.retention import (
    drop_old_files,
    files_before,
    move_kept,
    retain,
    retain_several,
    retained_bytes,
    retention_of,
)
from spark_timely.log.store.urls import identity
from spark_timely.log.streams import StreamStates, append, discard, open_stream
from spark_timely.log.upkeep import run_aside
from spark_timely.log.vacuum import Sweep
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from spark_timely.log.files.format import LogFormat, LogKind
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.judge import ForeignChange
    from spark_timely.log.machine.since import Keep, Retainer, Retention
    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.retention import Retaining
    from spark_timely.log.store.base import Store
    from spark_timely.log.store.storage import Storage
    from spark_timely.protocol.note import Fence
    from spark_timely.protocol.rules import StreamCounts
    from spark_timely.time.antichain import Antichain, BoolArray
    from spark_timely.time.domain import FrontierLike, TimeDomain, TimeLike

logger = masked_logger(__name__)

_TIDYING: Final = "tidying the table's log"
_MERGING: Final = "merging small files"
_DELETING: Final = "deleting replaced files"


class LogCore:
    """One handle on a log, for the library's own parts.

    Parameters
    ----------
    store : Store
    clock, merge_every, auto_compact, auto_vacuum
        As of `spark_timely.log.log.Log`.

    Attributes
    ----------
    states : StreamStates
        Of the store's snapshot.
    upkeep_beside : bool
        Whether a commit returns without waiting for upkeep; far away all do.
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
        self.states = StreamStates(store, keeps_rows=merge_every is not None)
        self.lock = self.states.lock
        self.clock = clock
        self.merge_every = merge_every
        self.auto_compact = auto_compact
        self.auto_vacuum = auto_vacuum
        self.upkeep_beside = False
        self._put_off: dict[str, str] = {}

    # Facts ---------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The table that keeps the log, and the snapshot of it."""
        return self.states.store

    @store.setter
    def store(self, store: Store) -> None:
        self.states.store = store

    @property
    def storage_options(self) -> Mapping[str, str]:
        """Credentials and settings for cloud URLs, as they were given."""
        return self.store.storage_options

    @property
    def path(self) -> str:
        """Path or URL of the log."""
        return self.store.path

    @property
    def log_id(self) -> str:
        """Identity of the log: another one in its place has another."""
        return self.store.table_id

    @property
    def storage(self) -> Storage:
        """Access to the log's files."""
        return self.store.storage

    @property
    def format(self) -> LogFormat:
        """Columns and types of the log. Picklable."""
        return self.store.format

    @property
    def domain(self) -> TimeDomain:
        """Types of its times, and the minimum."""
        return self.store.format.domain

    @property
    def kind(self) -> LogKind:
        """`stream`, or `collection` with a `_diff`."""
        return self.store.format.kind

    @property
    def version(self) -> int:
        """Table version of the snapshot in use."""
        return self.store.version

    @property
    def generation(self) -> int:
        """Number of times that everything was read again: versions mean something else after that."""
        return self.store.generation

    @property
    def accepted(self) -> tuple[str, ...]:
        """Tokens of the changes by other programs that were accepted, in their order, as of the snapshot."""
        return self.store.format.accepted

    # Snapshot ------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take notice of commits by others; return whether there were any.

        Raises
        ------
        RolledBackError
            If commits that this handle has seen are gone: the log was restored to an earlier state. Then the handle
            says nothing any more; open the log again.
        """
        return self.states.refresh()

    def begin_anew(self) -> None:
        """Forget what this handle has seen: for one that judges in another way whether a log was restored."""
        self.states.begin_anew()

    def as_it_is(self) -> AbstractContextManager[None]:
        """Read the log as it is, whatever this handle has seen of it before."""
        return self.states.as_it_is()

    def has_news(self) -> bool:
        """Return whether others have committed, where a look costs nothing: on a local disk; else False."""
        return self.store.has_news()

    def files(self) -> FileIndex:
        """Return the files of messages in the snapshot, with bounds of what is in each.

        Call `look_into` before handing out rows of them.
        """
        return self.states.files("message")

    def look_into(self, chosen: Callable[[FileIndex], BoolArray] | None = None) -> None:
        """Refuse to hand out rows of files that another program made, where these have other rows than it replaced.

        Parameters
        ----------
        chosen : callable, optional
            Says of which files rows are wanted, as bounds say; of all unless given.

        Raises
        ------
        ForeignChangeError
        """
        self.states.look_into(chosen)

    def foreign_changes(self) -> tuple[ForeignChange, ...]:
        """Return what other programs changed in the log, and nobody undid, as of the snapshot: readers refuse it."""
        with self.lock:
            return self.store.foreign_changes()

    def dead_files(self) -> FileIndex:
        """Return the files of dead letters in the snapshot."""
        return self.states.files("dead")

    def ledger_files(self) -> FileIndex:
        """Return the files in the snapshot that say of messages and streams what progress does not."""
        return self.states.files("ledger")

    def progress_files(self) -> FileIndex:
        """Return the files of progress rows in the snapshot."""
        return self.states.files("progress")

    def live_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of the paths that are part of the log, after a refresh.

        For who wants to delete files of a commit whose outcome is unclear: these must stay.
        """
        with self.lock:
            self.store.refresh()
            return {path for path in paths if path in self.store.live}

    # Streams -------------------------------------------------------------------------------------

    def streams(self) -> MappingProxyType[str, StreamState]:
        """Return the newest state of each stream in the snapshot."""
        with self.lock:
            return MappingProxyType({n: s for n, s in sorted(self.states.newest().items()) if n != OPEN_STREAM})

    def stream(self, name: str) -> StreamState | None:
        """Return the newest state of one stream, None if there is none of that name."""
        return None if name == OPEN_STREAM else self.states.newest().get(name)

    def known_stream(self, name: str) -> StreamState | None:
        """Return the state of one stream as it was read last, None if it was not; reads nothing."""
        return None if name == OPEN_STREAM else self.states.known_states.get(name)

    def ends(self) -> MappingProxyType[str, StreamState]:
        """Return the newest state of each stream, `#open` included."""
        return MappingProxyType(self.states.newest())

    def commits_of(self, wanted: Mapping[str, int]) -> dict[str, StreamState]:
        """Return the states right after one commit each of some streams, without those that the snapshot lacks.

        Parameters
        ----------
        wanted : mapping of str to int
            By stream, `#open` too, the number of the commit.

        Notes
        -----
        Free for the newest commits; for earlier ones the progress files that may hold them are read, once each.
        """
        return self.states.commits_of(wanted)

    def positions(self) -> dict[str, int]:
        """Return the number of the next commit of each stream, `#open` included."""
        return {name: state.seq + 1 for name, state in sorted(self.states.newest().items())}

    @property
    def unclaimed(self) -> int:
        """Number of capabilities that wait for a stream."""
        opened = self.states.newest().get(OPEN_STREAM)
        return 0 if opened is None else opened.counts.total

    def counts(self) -> StreamCounts:
        """Return the capabilities held by all streams together, unclaimed ones included."""
        self.states.check_untouched()
        return self.states.counts()

    def frontier(self) -> Antichain:
        """Return the minimal times that any stream may still use; empty when the log is complete."""
        return self.counts().frontier

    def progress(self) -> pa.Table:
        """Return all progress rows, sorted by stream, seq and time.

        Notes
        -----
        Files read before are remembered: the cost is that of new ones, and one sort.
        """
        return self.states.progress()

    def progress_rows(self, paths: Iterable[str]) -> pa.Table:
        """Return the rows of some of the progress files, sorted by stream, seq and time, each once.

        Notes
        -----
        For who follows a log: nothing is remembered.
        """
        with self.lock:
            found = side_by_side(self.storage, self.states.rows_in, list(paths))
        return distinct_rows(self.format, pa.concat_tables([self.format.progress_schema.empty_table(), *found]))

    def recorded(self, stream: str, batch: int, step: int | None = None) -> StreamState | None:
        """Return the state right after the commit of a micro-batch, None if it is not in the log.

        Its `before` is what the rows of the micro-batch were judged by.

        Parameters
        ----------
        stream : str
        batch : int
        step : int, optional
            0 if not given.

        Notes
        -----
        For the newest micro-batch the progress file that holds it is read, unless it is the newest commit; earlier
        ones are looked up among all progress rows.
        """
        return self.states.recorded(stream, batch, step)

    def bases(self) -> dict[str, int]:
        """Return the streams whose first commits are forgotten, with the number of the first that is not.

        Notes
        -----
        Nothing is read, but for a log that has forgotten commits: then a progress file of each such stream.
        """
        return self.states.bases()

    def has_forgotten(self, stream: str, seq: int) -> bool:
        """Return whether a commit is one of those that are forgotten: before the first one of its stream."""
        return self.states.has_forgotten(stream, seq)

    def owners(self, stream: str) -> frozenset[str]:
        """Return who owns a stream or has owned it."""
        return self.states.owners(stream)

    # Commits -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all commits of the snapshot, also those of others, outlast a power cut; raises `StorageError`.

        For a caller that acknowledges what another process has committed, and may not have flushed before it died.
        """
        with self.lock:
            self.store.flush()

    def check_writable(self) -> None:
        """Refuse a table with features that cannot be written; raises `LogFormatError`."""
        self.store.check_writable()

    def now_us(self) -> int:
        """Return the wall clock that this handle uses, in microseconds since the epoch, UTC."""
        return clock_us(f"could not tell the time of log {self.path!r}", self.clock)

    def open_stream(
        self,
        name: str,
        *,
        owner: str,
        at: TimeLike | None = None,
        donor: str | None = None,
        fence: Fence | None = None,
    ) -> StreamState:
        """Open a stream: claim a capability of `#open`, or copy one that a live stream holds.

        Does nothing if the owner has opened the stream before.

        Parameters
        ----------
        name : str
            One or more of A–Z, a–z, 0–9 and `_`.
        owner : str
            Query or producer that will append.
        at : time, optional
            Where the stream begins: the log's minimum if not given, for a copy the donor's least time.
        donor : str, optional
            The stream to copy from. Without it a capability is claimed, as long as there are any, else
            copied from the live stream that is behind most.
        fence : Fence, optional
            Of the start of a compute instance: a stream that is opened now is its from the beginning on.

        Returns
        -------
        StreamState

        Raises
        ------
        OwnershipError
            If another owner has a stream of that name.
        ClosedError
            If the log is complete.
        NotBeyondError
            If no capability allows the time.
        StorageError
            If the log cannot be written.
        """
        attempt = f"could not open a stream of log {self.path!r}"
        check_text(attempt, "owner", owner)
        check_text(attempt, "donor", donor, optional=True)
        time_ = None if at is None else self.domain.parse_time(at)
        with self.lock:
            return open_stream(self.states, name, owner=owner, at=time_, donor=donor, clock=self.now_us(), fence=fence)

    def commit(self, request: CommitRequest) -> CommitOutcome:
        """Append files and progress to a stream, all or nothing.

        Parameters
        ----------
        request : CommitRequest

        Returns
        -------
        CommitOutcome
            `committed=False` if the log held this micro-batch already: then the request's files are
            not part of the log, and may be deleted.

        Raises
        ------
        StreamMissingError, OwnershipError, RolledBackError, ClosedError, UpperMismatchError
            If the stream does not exist, is another's, is ahead of the micro-batch, is closed, or has
            moved since `expected_seq`.
        UnheldCapabilityError, NegativeCountError
            If the commit would break the protocol.
        LogFormatError
            If the table has features that cannot be written. Nothing was done.
        StorageError
            If the log cannot be reached. Unless `determinate`, the commit may have happened; repeat it
            with the same batch, or ask `live_paths`.

        Notes
        -----
        Cost: one small file and one commit of the table, whatever the history.
        """
        if not isinstance(request, CommitRequest):
            msg = f"could not commit to log {self.path!r}: found request={shown(request)}"
            raise InvalidUsageError(msg, hint="give a CommitRequest; rows are appended by log.writer().append(rows)")
        with self.lock:
            outcome = append(self.states, request, clock=self.now_us())
        if outcome.committed:
            # Apart: whatever comes of it, the commit has happened.
            self._maintain(outcome.state)
        return outcome

    def discard_refused(self, files: Sequence[DataFile]) -> None:
        """Delete the files of a commit that was refused, but for those that are part of the log after all."""
        try:
            live = self.live_paths(file.path for file in files)
        except (TimelyError, OSError) as error:
            logger.warning("log %r: %d unused files stay: %s", self.path, len(files), error)
            return
        discard(self.storage, (file for file in files if file.path not in live))

    def discard_job(self, stream: str, seq: int, job: str) -> None:
        """Delete what a job that failed has written for a commit: nobody else knows the names of all of it.

        Tasks that still run write what stays behind until a vacuum.
        """
        try:
            written = files_of_job(self.storage, stream, seq, job)
            live = self.live_paths(written) if written else set()
        except (TimelyError, OSError) as error:
            logger.warning("log %r: unused files may stay: %s", self.path, error)
            return
        for path in written:
            if path not in live:
                with suppress(StorageError):  # gone, or left to a vacuum
                    self.storage.delete(path)

    # Retention -----------------------------------------------------------------------------------

    def since(self) -> Antichain:
        """Return from where the log can be read: its minimum, unless compaction was allowed beyond."""
        with self.lock:
            self.states.check_untouched()
            return retention_of(self.states).since

    def check_may_read(self, needed: Antichain, *, what: str, consumer: str | None = None) -> None:
        """Refuse an answer that needs what the log has forgotten, as of the snapshot.

        Parameters
        ----------
        needed : Antichain
            By `needed_from` or `needed_by_contents`.
        what : str
            What cannot be done, for the error.
        consumer : str, optional
            Whose retainer kept it, for the error.

        Raises
        ------
        SinceViolationError
        """
        with self.lock:
            retention = retention_of(self.states)
        check_may_read(self.path, self.domain, retention, needed, what=what, consumer=consumer)

    def retainers(self) -> MappingProxyType[str, Retainer]:
        """Return who retains what of the log, by the consumer's name; those that have expired too."""
        with self.lock:
            return MappingProxyType(dict(retention_of(self.states).retainers))

    def retention_seq(self) -> int:
        """Return the number of the newest commit of since, retainers or what is kept; -1 where there is none.

        It falls where the table was restored to an earlier version, and nowhere else.
        """
        with self.lock:
            return retention_of(self.states).seq

    def retain_needed(
        self,
        consumer: str,
        needed: Antichain,
        *,
        owner: str,
        expiry: str | dt.timedelta = "7 days",
        run: str = "",
        turn: int | None = None,
    ) -> Retainer | None:
        """Keep the log readable for a named consumer, as `retain`, by what it needs.

        Parameters
        ----------
        consumer, owner, expiry
            As of `retain`.
        needed : Antichain
            As `spark_timely.log.machine.since` says it of contents, of changes and of messages; empty releases.
        run : str
            Of the owner, where one of its runs alone may move the retainer; empty where all may.
        turn : int, optional
            That of the run, as the retainer had it when it began. Unless given it begins, and takes the retainer from
            those before it. Once a later one has, it is refused: `OwnershipError`.
        """
        attempt = f"could not retain log {self.path!r}"
        check_text(attempt, "consumer", consumer)
        check_text(attempt, "owner", owner)
        if not consumer.strip():
            msg = f"{attempt}: found consumer={shown(consumer)}"
            raise InvalidUsageError(msg, hint="give the consumer a name", context={"path": self.path})
        length = length_of(attempt, "expiry", expiry, path=self.path)
        if not length:
            msg = f"{attempt}: found expiry={shown(expiry)}"
            raise InvalidUsageError(msg, hint="give a length of time, such as '7 days'", context={"path": self.path})
        now = self.now_us()
        expires = now + length
        after = retain(self.states, consumer, needed, owner=owner, expires=expires, clock=now, run=run, turn=turn)
        self.drop_old_files()
        return after.retainers.get(consumer)

    def retain_as_of(
        self,
        consumer: str,
        as_of: Antichain | None,
        *,
        owner: str,
        expiry_us: int,
        beside: Iterable[Antichain] = (),
        what: str,
    ) -> Retainer | None:
        """Keep the log readable as of a time, by one decision with the look at since: refused only if that passed it.

        The retainer is brief: once it has expired it is removed.

        Parameters
        ----------
        consumer, owner
            As of `retain`; no text of theirs is checked here.
        as_of : Antichain or None
            Of one time. None: all that is there.
        expiry_us : int
            How long it counts unless renewed, microseconds.
        beside : iterable of Antichain
            What the retainer is to keep as well, as far as that can be read.
        what : str
            What cannot be done without it, for the error.

        Returns
        -------
        Retainer or None
            What it needs is of a stream all that the decision found, of a collection the time. None if somebody has
            released it by now.

        Raises
        ------
        SinceViolationError
            If since has passed the time.
        OwnershipError
            If the name is another owner's.
        LogFormatError, StorageError
            If the log cannot be written.

        Notes
        -----
        Cost: as of `retain`.

        Examples
        --------
        >>> from spark_timely.log import MemoryLog
        >>> from spark_timely.time.antichain import Antichain
        >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), kind="collection")
        >>> log.core.retain_as_of("me", Antichain.of(4), owner="me", expiry_us=10**9, what="begin").needed
        Antichain.of(4)
        """
        now, others = self.now_us(), tuple(beside)

        def needed(retention: Retention) -> Antichain:
            return needed_as_of(self.path, self.domain, self.kind, retention, as_of, beside=others, what=what)

        expires = now + expiry_us
        after = retain(self.states, consumer, needed, owner=owner, expires=expires, clock=now, brief=True)
        self.drop_old_files()
        return after.retainers.get(consumer)

    def retain_several(
        self, wanted: Sequence[Retaining]
    ) -> tuple[MappingProxyType[str, Retainer], dict[str, TimelyError]]:
        """Register, move, renew or release several retainers in one commit; one that is refused holds no other back.

        Parameters
        ----------
        wanted : sequence of Retaining
            Their names differ, and no text of theirs is checked here.

        Returns
        -------
        mapping of str to Retainer
            All of the log, after it.
        dict of str to TimelyError
            Those that were refused, by name: `OwnershipError`, `SinceViolationError`.

        Raises
        ------
        LogFormatError, StorageError
            If the log cannot be written.

        Notes
        -----
        Cost: as `retain`, whatever their number.
        """
        after, refused = retain_several(self.states, wanted, clock=self.now_us())
        self.drop_old_files()
        return MappingProxyType(dict(after.retainers)), refused

    def files_before(self, frontier: FrontierLike) -> tuple[int, int]:
        """Return how many files of messages lie before a frontier as a whole, and how many bytes they have."""
        with self.lock:
            return files_before(self.states, self.domain.parse_frontier(frontier))

    def retained_bytes(self) -> dict[str, int]:
        """Return what each live retainer costs: about how many bytes could be forgotten if it alone were gone."""
        with self.lock:
            return retained_bytes(self.states, clock=self.now_us())

    def kept(self) -> Keep | None:
        """Return how much of the log stays, however far compaction is allowed; None if that was not set."""
        with self.lock:
            return retention_of(self.states).keep

    def drop_old_files(self) -> None:
        """Take files away from the table that are before since as a whole."""
        with self.lock, self._upkeep(_MERGING):
            if not self.store.append_only:
                drop_old_files(self.states)

    # Upkeep --------------------------------------------------------------------------------------

    def _maintain(self, state: StreamState) -> None:
        """Keep what a commit costs flat. Its failure is a warning: the commit has happened, and upkeep comes again."""
        with self.lock, self._upkeep(_TIDYING):
            # By the number of the commit, so that it does not matter how many processes made them.
            merges = self.merge_every is not None and state.seq % self.merge_every == 0
            beside = self.upkeep_beside or not self.storage.local
            if beside and not merges and not self.store.is_due():
                return
            other = self.store.aside() if beside else None
            if other is None:
                self._keep_up(self.states, state.stream, merges=merges)
                return
            states = self.states.copied(other)

            def keep_up() -> None:
                with self._upkeep(_TIDYING):
                    self._keep_up(states, state.stream, merges=merges)
                    self.states.forget_replaced_rows(states.store.live)

            run_aside(
                (identity(self.path, self.storage_options), tuple(sorted(self.store.storage_options.items()))), keep_up
            )

    def _keep_up(self, states: StreamStates, stream: str, *, merges: bool) -> None:
        due = merges or states.store.is_due()
        try:
            # Before the entries and files go that show what others did.
            if due:
                states.look_into()
            else:
                states.check_untouched()
        except ForeignChangeError:
            return  # what others changed, and what it was before, are evidence; `upkeep_problems` says so
        if merges and self.merge_every is not None:
            with self._upkeep(_MERGING):
                merge_progress_files(states, stream, self.merge_every)
                move_kept(states, clock=self.now_us())
                if self.auto_compact:
                    forget_inline(states, stream, self.merge_every)
                    forget_dead(states, clock=self.now_us(), patience=3)
                    merge_small_files(states, stream, self.merge_every)
                self._put_off.pop(_MERGING, None)
        if self.auto_vacuum and ((merges and self._sweep.waiting) or states.store.is_due()):
            with self._upkeep(_DELETING):
                # Before the checkpoint that names them no longer.
                self._sweep.run(states, now_ms=self.now_us() // 1000)
                self._put_off.pop(_DELETING, None)
        with self._upkeep(_TIDYING):
            if states.store.tidy():
                self._put_off.pop(_TIDYING, None)

    @cached_property
    def _sweep(self) -> Sweep:
        """What was replaced and is deleted later: most handles never do upkeep."""
        return Sweep()

    def tidy(self) -> None:
        """Write a checkpoint of the table, and delete old entries of its log. A failure is kept as a problem."""
        with self.lock, self._upkeep(_TIDYING):
            self.states.look_into()
            self.store.tidy(now=True)
            self._put_off.pop(_TIDYING, None)

    @contextmanager
    def _upkeep(self, what: str) -> Iterator[None]:
        """Keep the failure of something that nothing hangs on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the commit before it was not touched
            logger.warning("log %r: %s was put off: %s", self.path, what, error)
            self._put_off[what] = f"{what} was put off: {shown(described(error))}"

    def upkeep_problems(self) -> list[str]:
        """Return what is wrong with the upkeep of the log: what this handle could not do, and what nobody did.

        Rows and progress are as they should be; it may cost time or space, or what a power cut can take.

        Returns
        -------
        list of str
            One line each; empty if all is well. `spark-timely stats` shows them.

        Notes
        -----
        Cost: one look at the directory of the table's log.
        """
        with self.lock:
            others = [f"another program changed rows: {describe_change(each)}" for each in self.store.foreign_changes()]
            return [*others, *self._put_off.values(), *self.store.problems()]
