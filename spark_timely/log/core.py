"""The log over any store: commits, and their upkeep.

Every commit goes through `commit_loop`: refresh the snapshot, decide from it, write the progress file, commit from
that same snapshot. Whether an attempt that reported an error happened all the same is found out by looking for its
progress file, whose name no other attempt has.

Invariants
----------
1. The snapshot does not move between a decision and its commit.
2. A file is deleted only if it is known not to be part of the log.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from spark_timely.errors import StorageError, TimelyError, shown
from spark_timely.log.base import OPEN_STREAM, CommitOutcome, CommitRequest, DataFile, StreamState
from spark_timely.log.facts import LogFacts
from spark_timely.log.files.parquet import write_progress_file
from spark_timely.log.machine.commit_loop import Settled, commit_loop
from spark_timely.log.machine.decide import decide_commit, decide_open
from spark_timely.log.machine.state import batch_rows, next_state
from spark_timely.log.store.base import App, Store
from spark_timely.masking import masked_logger
from spark_timely.protocol.note import Note
from spark_timely.protocol.rules import StreamCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

__all__ = ["LogCore"]

logger = masked_logger(__name__)

R = TypeVar("R")

_TIDYING, _MERGING = "tidying the table's log", "merging small files"


def app_id(stream: str) -> str:
    """Return the app id under which commits of a stream exclude each other."""
    return f"timely/{stream}"


@dataclass(frozen=True, slots=True)
class _StreamAttempt:
    """A commit to one stream, and `#open` or another with it: new states, their progress files, and the messages."""

    log: LogCore
    states: Sequence[StreamState]
    batches: Sequence[pa.Table]
    progress: Sequence[DataFile]
    files: Sequence[DataFile]
    apps: Sequence[App]
    snapshot: tuple[int, int]

    def put(self) -> None:
        self.log.store.transact([*self.progress, *self.files], self.apps)

    def is_shown(self) -> bool:
        """Whether the snapshot has it: then its states are known without reading them."""
        log, path = self.log, self.progress[0].path
        if path not in log.store.live:
            return False
        log._remember(self)
        return True

    def has_landed(self) -> bool:
        """Whether the snapshot has it, and the disk."""
        # Somebody may have merged the file meanwhile; its rows then say whose commit it was.
        landed = self.progress[0].path in self.log.store.live or self.log._is_written(self.states[-1])
        if landed:
            self.log.store.flush()
        return landed

    def is_overtaken(self) -> bool:
        """Whether its number in the stream is another commit's."""
        mine = self.states[-1]
        newest = self.log._all_states().get(mine.stream)
        return newest is not None and newest.seq >= mine.seq

    def discard(self) -> None:
        self.log._discard(self.progress)


class LogCore(LogFacts):
    """A capture log on a store. See `spark_timely.log.base.CaptureLog`.

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
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        merge_every: int | None = 100,
        auto_compact: bool = True,
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self.merge_every = merge_every
        self.auto_compact = auto_compact
        self._put_off: dict[str, str] = {}

    # Commits -------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make the commits of the snapshot outlast a power cut, whoever made them; raises `StorageError`.

        For who acknowledges what another process has committed, and may not have flushed before it died.
        """
        with self._lock:
            self.store.flush()

    def check_writable(self) -> None:
        """Refuse a log that can be read only, where that is known beforehand; raises `LogFormatError`."""

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    def open_stream(
        self,
        name: str,
        *,
        owner: str,
        at: object | None = None,
        donor: str | None = None,
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
        time_ = None if at is None else self.domain.parse_time(at)
        with self._lock:
            clock = self._now()

            def decide(_: object) -> Settled[StreamState] | _StreamAttempt:
                states = self._all_states()
                plan = decide_open(
                    self.path, self.domain, states, name, owner=owner, at=time_, donor=donor, clock=clock
                )
                if isinstance(plan, StreamState):
                    return Settled(plan)
                new = [plan.state]
                apps: list[App] = [(app_id(name), 0)]
                if plan.open_state is not None:
                    new.insert(0, plan.open_state)
                    apps.append((app_id(OPEN_STREAM), plan.open_state.seq))
                if plan.donor is not None:
                    apps.append((app_id(plan.donor.stream), plan.donor.seq))
                return self._written(new, (), apps)

            return self._commit(name, decide, lambda: self._all_states()[name])

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
        stream = request.stream
        with self._lock:
            clock = self._now()

            def decide(_: object) -> Settled[CommitOutcome] | _StreamAttempt:
                states = self._all_states()
                after = decide_commit(self.path, self.domain, states, request, self.recorded, clock, owners=self.owners)
                if after is None:
                    return Settled(self._duplicate(request))
                return self._written([after], request.files, [(app_id(stream), after.seq)])

            outcome = self._commit(
                stream, decide, lambda: CommitOutcome(committed=True, state=self._all_states()[stream])
            )
        if outcome.committed:
            # Apart: whatever comes of it, the commit has happened.
            self._maintain(outcome.state)
        return outcome

    def _duplicate(self, request: CommitRequest) -> CommitOutcome:
        """Tell a repeated micro-batch from the second try of a request whose first try did happen."""
        # Who made the commit may have died before it was on the disk.
        self.store.flush()
        state = self._states[request.stream]
        mine = bool(request.files) and all(f.path in self.store.live for f in request.files)
        return CommitOutcome(committed=mine, state=state)

    def _commit(self, stream: str, decide: Callable[[object], Settled[R] | _StreamAttempt], done: Callable[[], R]) -> R:
        return commit_loop(
            f"commit to stream {stream!r} of log {self.path!r}",
            context={"path": self.path, "stream": stream},
            store=self.store,
            decide=decide,
            done=done,
        )

    def _written(self, states: Sequence[StreamState], files: Sequence[DataFile], apps: Sequence[App]) -> _StreamAttempt:
        """Write the progress of a commit, and return what commits it from the present snapshot."""
        self.check_writable()
        batches = [batch_rows(self.format, s) for s in states]
        progress = [
            write_progress_file(self.storage, rows, s.stream, s.seq, self.domain)
            for s, rows in zip(states, batches, strict=True)
        ]
        return _StreamAttempt(self, states, batches, progress, files, apps, self._snapshot)

    def _remember(self, attempt: _StreamAttempt) -> None:
        """Keep what a commit of this handle says, now that the snapshot has it."""
        states = {state.stream: state for state in attempt.states}
        paths = {state.stream: file.path for state, file in zip(attempt.states, attempt.progress, strict=True)}
        self._known.update({name: (state, frozenset({paths[name]})) for name, state in states.items()})
        if self.merge_every is not None:  # they are read again when files are merged
            self._rows_by_path.update(zip(paths.values(), attempt.batches, strict=True))
        before = attempt.snapshot
        if self._snapshot == (before[0], before[1] + 1) and self._states_at == before:
            # Nobody else committed: the new states are known without reading them.
            self._states = {**self._states, **states}
            self._states_at = self._snapshot
            self._newest_by_path.update({paths[name]: {name: state} for name, state in states.items()})

    def _is_written(self, wanted: StreamState) -> bool:
        found = self.commit_of(wanted.stream, wanted.seq)
        return found is not None and all(
            getattr(found, name) == getattr(wanted, name)
            for name in ("owner", "at", "batch", "step", "n_rows", "reason", "note", "counts", "before")
        )

    def _discard(self, files: Iterable[DataFile]) -> None:
        for file in files:
            try:
                self.storage.delete(file.path)
            except StorageError as error:
                logger.warning("log %r: an unused file stays: %s", self.path, error)

    def _discard_refused(self, files: Sequence[DataFile]) -> None:
        """Delete the files of a commit that was refused, but for those that are part of the log after all."""
        try:
            live = self.live_paths(file.path for file in files)
        except (TimelyError, OSError) as error:
            logger.warning("log %r: %d unused files stay: %s", self.path, len(files), error)
            return
        self._discard(file for file in files if file.path not in live)

    def _drop_unclaimed(self, reason: str) -> None:
        """Give up the capabilities that no stream has claimed."""
        with self._lock:
            clock = self._now()

            def decide(_: object) -> Settled[None] | _StreamAttempt:
                opened = self._all_states().get(OPEN_STREAM)
                if opened is None or opened.closed:
                    return Settled(None)
                nothing = StreamCounts.empty(self.domain.arity)
                after = next_state(opened, nothing, at=max(clock, opened.at + 1), reason=reason, note=Note())
                return self._written([after], (), [(app_id(OPEN_STREAM), after.seq)])

            self._commit(OPEN_STREAM, decide, lambda: None)

    # Upkeep --------------------------------------------------------------------------------------

    def _maintain(self, state: StreamState) -> None:
        """Keep what a commit costs flat. Its failure is a warning: the commit has happened, and upkeep comes again."""
        from spark_timely.log.compaction import merge_progress_files, merge_small_files

        with self._lock:
            # By the number of the commit, so that it does not matter how many processes made them.
            if self.merge_every is not None and state.seq % self.merge_every == 0:
                with self._upkeep(_MERGING):
                    merge_progress_files(self, state.stream, self.merge_every)
                    if self.auto_compact:
                        merge_small_files(self, state.stream, self.merge_every)
                    self._put_off.pop(_MERGING, None)
            with self._upkeep(_TIDYING):
                if self.store.tidy():
                    self._put_off.pop(_TIDYING, None)

    def tidy(self) -> None:
        """Write a checkpoint of the table, and delete old entries of its log. A failure is kept as a problem."""
        with self._lock, self._upkeep(_TIDYING):
            self.store.tidy(now=True)
            self._put_off.pop(_TIDYING, None)

    @contextmanager
    def _upkeep(self, what: str) -> Iterator[None]:
        """Keep the failure of something that nothing hangs on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the commit before it was not touched
            logger.warning("log %r: %s was put off: %s", self.path, what, error)
            self._put_off[what] = f"{what} was put off: {shown(str(error))}"

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
        with self._lock:
            return [*self._put_off.values(), *self.store.problems()]
