"""Commits to a log: open a stream, append rows and progress, add columns.

Each goes through `commit_loop`: a pure decision from the states of the snapshot, the progress file that says it, and
an attempt at both. Whether an attempt that reported an error happened all the same is found out by looking for its
progress file, whose name no other attempt has.

Invariants
----------
1. The snapshot does not move between a decision and its commit.
2. A file is deleted only if it is known not to be part of the log.
3. A column is added once, however many add it at once and whatever was reported about an attempt; another type for it
   is refused. It is there before files that have it are committed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from spark_timely.errors import StorageError
from spark_timely.log.files.parquet import write_progress_file
from spark_timely.log.ledger import joined_file
from spark_timely.log.machine.decide import Attempt, Settled, commit_loop, decide_commit, decide_open
from spark_timely.log.machine.state import (
    OPEN_STREAM,
    CommitOutcome,
    CommitRequest,
    DataFile,
    StreamState,
    batch_rows,
    next_state,
)
from spark_timely.masking import masked_logger
from spark_timely.protocol.note import Note
from spark_timely.protocol.rules import StreamCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.store.base import App, Store
    from spark_timely.log.store.storage import Storage
    from spark_timely.log.streams import StreamStates
    from spark_timely.protocol.note import Fence


logger = masked_logger(__name__)

R = TypeVar("R")


def app_id(stream: str) -> str:
    """Return the app id under which commits of a stream exclude each other."""
    return f"timely/{stream}"


def open_stream(
    states: StreamStates,
    name: str,
    *,
    owner: str,
    at: tuple[int, ...] | None,
    donor: str | None,
    clock: int,
    fence: Fence | None = None,
) -> StreamState:
    """Open a stream. See `spark_timely.log.core.LogCore.open_stream`; `clock` is in microseconds since 1970."""
    store = states.store

    def decide(_: object) -> Settled[StreamState] | _StreamAttempt:
        domain = store.format.domain
        plan = decide_open(
            store.path, domain, states.newest(), name, owner=owner, at=at, donor=donor, clock=clock, fence=fence
        )
        if isinstance(plan, StreamState):
            return Settled(plan)
        new = [plan.state]
        apps: list[App] = [(app_id(name), 0)]
        if plan.open_state is not None:
            states.check_may_continue({OPEN_STREAM})
            new.insert(0, plan.open_state)
            apps.append((app_id(OPEN_STREAM), plan.open_state.seq))
        if plan.donor is not None:
            states.check_may_continue({plan.donor.stream})
            apps.append((app_id(plan.donor.stream), plan.donor.seq))
            store.check_writable()
            return _written(states, new, [joined_file(store, name)], apps)
        return _written(states, new, (), apps)

    return _committed(states, name, decide, lambda: states.newest()[name])


def append(states: StreamStates, request: CommitRequest, *, clock: int) -> CommitOutcome:
    """Append files and progress to a stream. See `spark_timely.log.core.LogCore.commit`."""
    store, stream = states.store, request.stream

    def decide(_: object) -> Settled[CommitOutcome] | _StreamAttempt:
        newest = states.newest()
        after = decide_commit(
            store.path, store.format.domain, newest, request, states.recorded, clock, owners=states.owners
        )
        if after is not None:
            return _written(states, [after], request.files, [(app_id(stream), after.seq)])
        # This very micro-batch is there. The writer that committed it may have died before it was on the disk.
        store.flush()
        # The second attempt at a request whose first one did happen, or an earlier request.
        mine = bool(request.files) and all(file.path in store.live for file in request.files)
        return Settled(CommitOutcome(committed=mine, state=newest[stream]))

    return _committed(states, stream, decide, lambda: CommitOutcome(committed=True, state=states.newest()[stream]))


def drop_unclaimed(states: StreamStates, reason: str, *, clock: int) -> None:
    """Give up the capabilities that no stream has claimed."""

    def decide(_: object) -> Settled[None] | _StreamAttempt:
        opened = states.newest().get(OPEN_STREAM)
        if opened is None or opened.closed:
            return Settled(None)
        nothing = StreamCounts.empty(states.store.format.domain.arity)
        after = next_state(
            opened, nothing, at=max(clock, opened.at + 1), reason=reason, note=Note(total=opened.note.total)
        )
        return _written(states, [after], (), [(app_id(OPEN_STREAM), after.seq)])

    _committed(states, OPEN_STREAM, decide, lambda: None)


def add_columns(store: Store, columns: pa.Schema) -> None:
    """Add those of the columns that a log does not have. See `spark_timely.log.log.Log.add_columns`."""

    def decide(_: object) -> Settled[None] | _NewColumns:
        wanted = store.format.extended(columns)
        names = wanted.merged[len(store.format.merged) :]
        if not names:
            return Settled(None)
        store.check_writable()
        return _NewColumns(store, pa.schema([wanted.payload.field(name) for name in names]))

    commit_loop(
        f"add columns to log {store.path!r}",
        context={"path": store.path},
        store=store,
        decide=decide,
        done=lambda: None,
    )


def as_data_files(index: FileIndex) -> list[DataFile]:
    """Return live files as a commit names them that removes them."""
    none = np.empty((0, index.min_times.shape[1]), np.int64)
    rows = zip(index.paths.tolist(), index.sizes.tolist(), index.rows.tolist(), index.events.tolist(), strict=True)
    return [DataFile(path, size, n, event, "{}", none, None) for path, size, n, event in rows]


def discard(storage: Storage, files: Iterable[DataFile]) -> None:
    """Delete files that are not part of a log; what cannot be deleted stays, with a warning."""
    for file in files:
        try:
            storage.delete(file.path)
        except StorageError as error:
            logger.warning("log %r: an unused file stays: %s", storage.uri, error)


def _committed(
    states: StreamStates, stream: str, decide: Callable[[Any], Settled[R] | _StreamAttempt], done: Callable[[], R]
) -> R:
    path = states.store.path

    def checked(tried: Sequence[_StreamAttempt]) -> Settled[R] | _StreamAttempt:
        states.check_may_continue({stream})
        return decide(tried)

    return commit_loop(
        f"commit to stream {stream!r} of log {path!r}",
        context={"path": path, "stream": stream},
        store=states.store,
        decide=checked,
        done=done,
    )


def _written(
    states: StreamStates, new: Sequence[StreamState], files: Sequence[DataFile], apps: Sequence[App]
) -> _StreamAttempt:
    """Write the progress files of new states, and return the attempt to commit them from the present snapshot."""
    store = states.store
    store.check_writable()
    batches = [batch_rows(store.format, state) for state in new]
    progress = [
        write_progress_file(store.storage, rows, state.stream, state.seq, store.format.domain)
        for state, rows in zip(new, batches, strict=True)
    ]
    return _StreamAttempt(states, new, batches, progress, files, apps, states.snapshot)


@dataclass(frozen=True, slots=True)
class _StreamAttempt(Attempt):
    """New states of a stream, and of `#open` or a donor with it: their progress files, and files of messages."""

    states: StreamStates
    new: Sequence[StreamState]
    batches: Sequence[pa.Table]
    progress: Sequence[DataFile]
    files: Sequence[DataFile]
    apps: Sequence[App]
    before: tuple[int, int]

    def put(self) -> None:
        self.states.store.transact([*self.progress, *self.files], self.apps)

    def is_shown(self) -> bool:
        if self.progress[0].path not in self.states.store.live:
            return False
        self.states.remember(self.before, self.new, [file.path for file in self.progress], self.batches)
        return True

    def has_landed(self) -> bool:
        # A merge may have replaced the file meanwhile; its rows then say whose commit it was.
        landed = self.progress[0].path in self.states.store.live or self._is_recorded()
        if landed:
            self.states.store.flush()
        return landed

    def _is_recorded(self) -> bool:
        wanted = self.new[-1]
        found = self.states.commits_of({wanted.stream: wanted.seq}).get(wanted.stream)
        if found is None:
            self._check_remembered(wanted)
            return False
        # It may have become a base since.
        found = replace(found, note=replace(found.note, base=wanted.note.base))
        return all(
            getattr(found, name) == getattr(wanted, name)
            for name in ("owner", "at", "batch", "step", "n_rows", "reason", "note", "counts", "before")
        )

    def _check_remembered(self, wanted: StreamState) -> None:
        """Refuse to say that it did not happen: decided again it might be done twice."""
        if self.states.has_forgotten(wanted.stream, wanted.seq):
            path, stream = self.states.store.path, wanted.stream
            msg = (
                f"could not tell whether a commit to stream {stream!r} of log {path!r} happened: found seq={wanted.seq}"
                " forgotten meanwhile"
            )
            raise StorageError(
                msg,
                hint="read the log to see whether the commit happened",
                context={"path": path, "stream": stream, "seq": wanted.seq},
            )

    def is_overtaken(self) -> bool:
        # Its number in the stream is another commit's.
        wanted = self.new[-1]
        newest = self.states.newest().get(wanted.stream)
        return newest is not None and newest.seq >= wanted.seq

    def discard(self) -> None:
        ledger = [file for file in self.files if file.event == "ledger"]
        discard(self.states.store.storage, [*self.progress, *ledger])


@dataclass(frozen=True, slots=True)
class _NewColumns(Attempt):
    """Columns that a log does not have yet."""

    store: Store
    columns: pa.Schema

    def put(self) -> None:
        self.store.add_columns(self.columns)

    def has_landed(self) -> bool:
        payload = self.store.format.payload
        return all(column.name in payload.names and payload.field(column.name) == column for column in self.columns)

    def is_overtaken(self) -> bool:
        return any(name in self.store.format.payload.names for name in self.columns.names)
