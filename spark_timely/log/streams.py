"""Streams of a log: their states, read from the newest progress files of a snapshot, and the commits to them.

A `StreamStates` belongs to one handle on a log (`core`), whose appends and openings of streams are done here. Commits
are decided from the newest `StreamState` of each stream (`machine.state` says what that is); readers take the log's
frontier from them; `compaction`, `forgetting`, `retention` and `vacuum` take the snapshot's files.

Files read before are remembered, and so is the newest commit of each stream that was seen: a log that went back to an
earlier state is refused.

Each commit goes through `commit_loop`: a pure decision from the states of the snapshot, the progress file that says it,
and an attempt at both. Whether an attempt that reported an error happened all the same is found out by looking for its
progress file, whose name no other attempt has.

Invariants
----------
1. The state of a stream is read from its newest progress file; nothing else is trusted.
2. The snapshot does not move between a decision and its commit.
3. A file is deleted only if it is known not to be part of the log.
4. A column is added once, however many add it at once and whatever was reported about an attempt; another type for it
   is refused. It is there before files that have it are committed.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import (
    DataLossError,
    LogDamagedError,
    LogFormatError,
    ProtocolError,
    RolledBackError,
    StorageError,
    TimelyError,
)
from spark_timely.log.files.parquet import write_progress_file
from spark_timely.log.files.parquet_reader import read_progress, side_by_side
from spark_timely.log.foreign import changed_by_others
from spark_timely.log.ledger import joined_file
from spark_timely.log.machine.decide import Attempt, Settled, commit_loop, decide_commit, decide_open
from spark_timely.log.machine.state import (
    OPEN_STREAM,
    CommitOutcome,
    CommitRequest,
    DataFile,
    StreamState,
    batch_rows,
    batch_state,
    distinct_rows,
    newest_states,
    next_state,
    owners_of,
    states_by_seq,
)
from spark_timely.masking import masked_logger
from spark_timely.protocol.note import Note
from spark_timely.protocol.rules import StreamCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from spark_timely.log.files.index import FileIndex, LiveFiles
    from spark_timely.log.store.base import App, Store
    from spark_timely.log.store.storage import Storage
    from spark_timely.protocol.note import Fence
    from spark_timely.time.antichain import Antichain, BoolArray

logger = masked_logger(__name__)

R = TypeVar("R")
T = TypeVar("T")


def _is_its_own(state: StreamState) -> bool:
    """Whether a commit holds the micro-batch whose numbers it carries."""
    return state.note.batch is not None and state.note.batch.seq == state.seq


class StreamStates:
    """The states of a log's streams, by one handle.

    Parameters
    ----------
    store : Store
        Its snapshot is what the states are of.
    keeps_rows : bool
        Whether the rows of own commits are kept, for a merge to come.
    """

    def __init__(self, store: Store, *, keeps_rows: bool = True) -> None:
        self.store = store
        self.lock = threading.RLock()
        self._keeps_rows = keeps_rows
        self._states: dict[str, StreamState] = {}
        # The states whose counts were summed up last, and the sum.
        self._total: tuple[object, StreamCounts] = (None, StreamCounts.empty(store.format.domain.arity))
        # Generation and version of the store: a version that was read again may say something else.
        self._states_at = (-1, -1)
        self._newest_by_path: dict[str, dict[str, StreamState]] = {}
        self._rows_by_path: dict[str, pa.Table] = {}
        # The newest commit of each stream that this handle has seen, and the progress files that may hold it.
        self._known: dict[str, tuple[StreamState, frozenset[str]]] = {}
        # Whether what others changed is read as it is.
        self._lenient = False
        # The changes by others of which a writer that continues was warned.
        self._warned: frozenset[int] = frozenset()
        # Of `kept`: files, and what they say.
        self._said: tuple[tuple[str, ...], object] = ((), None)

    # Snapshot ------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take notice of commits by others; return whether there were any."""
        with self.lock:
            moved = self.store.refresh()
            while True:  # once more where others commit meanwhile
                try:
                    self.newest()
                except DataLossError:
                    # A file that was replaced since the look, and deleted: the next look does not name it.
                    if not self.store.refresh():
                        raise
                    moved = True
                else:
                    return moved

    def begin_anew(self) -> None:
        """Forget what this handle has seen: for one that judges in another way whether a log was restored."""
        with self.lock:
            self._known, self._states, self._newest_by_path, self._rows_by_path = {}, {}, {}, {}
            self._states_at = (-1, -1)

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Read the log as it is, whatever this handle has seen of it before."""
        with self.lock:
            known, lenient = self._known, self._lenient
            self.begin_anew()
            self._lenient = True
        try:
            yield
        finally:
            with self.lock:
                self.begin_anew()
                self._known, self._lenient = known, lenient

    def files(self, event: str) -> FileIndex:
        """Return the files of `message`, `dead` or `progress` rows in the snapshot; of messages only untouched ones.

        Call `look_into` before handing out rows of messages, and before replacing their files.
        """
        with self.lock:
            if self._known:
                self.newest()  # refuses a log that went back
            if event == "message":
                self.check_untouched()
            return self.store.live.index(event)

    def look_into(self, chosen: Callable[[FileIndex], BoolArray] | None = None) -> None:
        """Refuse to hand out rows of files that others made, where these have not the rows of those they replaced.

        Parameters
        ----------
        chosen : callable, optional
            Says of which files rows are wanted, as bounds say; of all unless given.

        Raises
        ------
        ForeignChangeError

        Notes
        -----
        Cost: nothing where all files are ours, or were looked into by this handle; else two or three columns of each
        file that is wanted, however few of its rows are.
        """
        with self.lock:
            self.store.look_into(chosen)
            self.check_untouched()

    def check_untouched(self) -> None:
        """Refuse to hand anything out while what others changed is neither undone nor settled.

        Raises
        ------
        ForeignChangeError
        """
        with self.lock:
            found = () if self._lenient else self.store.foreign_changes()
            if found:
                msg = f"could not read log {self.store.path!r}"
                raise changed_by_others(msg, self.store.path, found)

    def check_may_continue(self, streams: Collection[str], what: Collection[str] = ()) -> None:
        """Refuse a commit that follows from what others changed; of other changes a writer is warned once.

        Parameters
        ----------
        streams : collection of str
            Those whose progress it follows.
        what : collection of str
            Further kinds of events that it follows from.

        Raises
        ------
        ForeignChangeError
        """
        with self.lock:
            found = self.store.foreign_changes()
            own = [
                each
                for each in found
                if each.streams is None
                or not each.streams.isdisjoint(streams)
                or not each.changes.keys().isdisjoint(what)
            ]
            if own:
                msg = f"could not commit to log {self.store.path!r}"
                raise changed_by_others(msg, self.store.path, own)
            versions = frozenset(each.version for each in found)
            if not versions <= self._warned:
                self._warned = versions
                error = changed_by_others(f"readers of log {self.store.path!r} are refused", self.store.path, found)
                logger.warning("%s — hint: %s", error.message, error.hint)

    def _check_kept(self, states: Mapping[str, StreamState]) -> None:
        """Refuse states of a log that lacks commits which this handle has seen, or has others in their place.

        As long as a file that held a commit is part of the log, so is the commit. Where it was merged, or the log was
        restored, the commit is looked for.
        """
        live = self.store.live
        for stream, (seen, files) in self._known.items():
            found = states.get(stream)
            if found is None or found.seq < seen.seq:
                now = "no such stream" if found is None else f"stream {stream!r} at seq={found.seq}"
                raise self._went_back(stream, f"{now}, this handle has seen {stream!r} at seq={seen.seq}")
            if all(path in live for path in files):
                continue
            if self.has_forgotten(stream, seen.seq):
                continue
            other = found if found.seq == seen.seq else self._earlier({stream: seen.seq}).get(stream)
            if other is None or other.identity != seen.identity:
                raise self._went_back(stream, f"another commit seq={seen.seq} of stream {stream!r} than before")
        if self._is_progress_changed():
            return  # what others left is nothing that must be found again
        known = {stream: kept for stream, kept in self._known.items() if all(path in live for path in kept[1])}
        self._known = {
            stream: known[stream]
            if stream in known and known[stream][0].seq == state.seq
            else (state, frozenset(self._holders(stream, state.seq)))
            for stream, state in states.items()
        }

    def _is_progress_changed(self) -> bool:
        """Whether others changed progress, or may have."""
        try:
            return any(each.streams is None or each.streams for each in self.store.foreign_changes())
        except TimelyError as error:
            logger.debug("log %r: its states are not remembered: %s", self.store.path, error)
            return True

    def _went_back(self, stream: str, found: str) -> RolledBackError:
        self.check_untouched()  # where others changed rows, that is what is to be said
        return RolledBackError(
            f"could not read log {self.store.path!r}: found {found}",
            hint="open the log again, which was restored to an earlier state; do again what was done with the commits"
            " that are gone, such as acting on a frontier or appending rows",
            context={"path": self.store.path, "stream": stream},
        )

    @property
    def snapshot(self) -> tuple[int, int]:
        """The identity of the snapshot: different from any other that this handle has had."""
        return self.store.generation, self.store.version

    def remember(
        self,
        before: tuple[int, int],
        states: Sequence[StreamState],
        paths: Sequence[str],
        batches: Sequence[pa.Table],
    ) -> None:
        """Keep what a commit of this handle says, now that the snapshot has it.

        Parameters
        ----------
        before : tuple
            The snapshot that it was decided from.
        states, paths, batches : sequence
            By stream the new state, its progress file, and the rows in it.
        """
        self._known.update({s.stream: (s, frozenset({path})) for s, path in zip(states, paths, strict=True)})
        if self._keeps_rows:  # they are read again when files are merged
            self._rows_by_path.update(zip(paths, batches, strict=True))
        if self.snapshot == (before[0], before[1] + 1) and self._states_at == before:
            # Nobody else committed: the new states are known without reading them.
            self._states = {**self._states, **{s.stream: s for s in states}}
            self._states_at = self.snapshot
            self._newest_by_path.update({path: {s.stream: s} for s, path in zip(states, paths, strict=True)})

    def copied(self, store: Store) -> StreamStates:
        """Return the same states over another handle on the same snapshot."""
        with self.lock:
            other = StreamStates(store, keeps_rows=self._keeps_rows)
            for name in ("_states", "_newest_by_path", "_rows_by_path", "_known"):
                setattr(other, name, dict(getattr(self, name)))
            other._states_at, other._said = self._states_at, self._said
            return other

    def forget_replaced_rows(self, live: LiveFiles) -> None:
        """Let go of the rows of progress files that are no longer part of the log."""
        with self.lock:
            self.forget_rows([path for path in self._rows_by_path if path not in live])

    def forget_rows(self, paths: Iterable[str]) -> None:
        """Let go of the rows of progress files that were merged."""
        for path in paths:
            self._rows_by_path.pop(path, None)

    def kept(self, paths: tuple[str, ...], read: Callable[[], T]) -> T:
        """Return what some files say of the log; they are read again only where they are others than the last time."""
        with self.lock:
            if self._said[0] != paths:
                self._said = paths, read()
            return self._said[1]  # type: ignore[return-value]

    # States --------------------------------------------------------------------------------------

    def newest(self) -> dict[str, StreamState]:
        """Return the newest state of each stream, `#open` included."""
        with self.lock:
            at = self.snapshot
            if self._states_at != at:
                if self._states_at[0] != at[0]:
                    self._newest_by_path, self._rows_by_path = {}, {}
                try:
                    states = self._read_states()
                except (LogFormatError, ProtocolError):
                    self.check_untouched()  # where others changed rows, that is what is to be said
                    raise
                self._check_kept(states)
                self._states, self._states_at = states, at
            return self._states

    @property
    def known_states(self) -> Mapping[str, StreamState]:
        """The states as they were read last; reads nothing."""
        return self._states

    def known(self) -> tuple[int, Antichain] | None:
        """Return how many streams there are and the log's frontier, as was read last; None if nothing was read.

        Reads nothing and waits for nobody.
        """
        states = self._states
        if not states:
            return None
        total = self._total
        counts = total[1] if total[0] is states else self._summed(states)
        return len(states.keys() - {OPEN_STREAM}), counts.frontier

    def _read_states(self) -> dict[str, StreamState]:
        """Find the newest progress batch of each stream; read only files that can hold one.

        A file of one stream is a candidate if no other file of that stream goes further. A file that
        may hold several streams, after a merge by another engine, is always read. Files read before
        are remembered, so that the cost is that of what is new.
        """
        index = self.store.live.index("progress")
        streams = index.lone_streams()
        if not streams:
            self.check_untouched()
            msg = f"could not read log {self.store.path!r}: found no progress rows"
            raise LogDamagedError(
                msg,
                hint="restore the table to the version before the one in which another program replaced or deleted"
                " its rows; what that has added goes into another table",
                context={"path": self.store.path, "version": self.store.version},
                determinate=True,
            )
        newest: dict[str, int] = {}
        candidates: list[int] = []
        for i, stream in enumerate(streams):  # bounded: progress files are merged
            if stream is None or index.seq_hi[i] == np.iinfo(np.int64).max:
                candidates.append(i)
            elif stream not in newest or index.seq_hi[newest[stream]] < index.seq_hi[i]:
                newest[stream] = i
        candidates += newest.values()
        states: dict[str, StreamState] = {}
        paths = [str(index.paths[i]) for i in candidates]
        new = [path for path in paths if path not in self._newest_by_path]
        rows = dict(zip(new, side_by_side(self.store.storage, self.rows_in, new), strict=True))
        remembered: dict[str, dict[str, StreamState]] = {}
        for path in paths:
            found = newest_states(self.store.format, rows[path]) if path in rows else self._newest_by_path[path]
            remembered[path] = found
            for stream, state in found.items():
                if stream not in states or states[stream].seq < state.seq:
                    states[stream] = state
        self._newest_by_path = remembered
        return states

    def rows_in(self, path: str) -> pa.Table:
        """Return the progress rows of a file."""
        rows = self._rows_by_path.get(path)
        if rows is None:
            rows = read_progress(self.store.storage, path, self.store.format.progress_schema)
        return rows

    def distinct_rows_in(self, paths: Sequence[str]) -> pa.Table:
        """Return the progress rows of files, each once: what was kept, and read side by side what was not."""
        tables = side_by_side(self.store.storage, self.rows_in, list(paths))
        return distinct_rows(self.store.format, pa.concat_tables(tables))

    def commits_of(self, wanted: Mapping[str, int]) -> dict[str, StreamState]:
        """Return the states right after one commit each of some streams. See `LogCore.commits_of`."""
        with self.lock:
            newest = self.newest()
            found = {name: newest[name] for name, seq in wanted.items() if name in newest and newest[name].seq == seq}
            earlier = {name: seq for name, seq in wanted.items() if name in newest and seq < newest[name].seq}
            return {**found, **self._earlier(earlier)}

    def _earlier(self, wanted: Mapping[str, int]) -> dict[str, StreamState]:
        """Return the states right after some commits, from the progress files that may hold them."""
        holders: dict[str, list[str]] = {}
        for name, seq in wanted.items():
            for path in self._holders(name, seq):
                holders.setdefault(path, []).append(name)
        parts: dict[str, list[pa.Table]] = {}
        for path, names in holders.items():
            rows = self.rows_in(path)
            for name in names:
                mine = pc.and_(pc.equal(rows["_stream"], name), pc.equal(rows["_seq"], wanted[name]))
                parts.setdefault(name, []).append(rows.filter(mine))
        tables = {name: pa.concat_tables(tables) for name, tables in parts.items()}
        return {
            name: batch_state(self.store.format, distinct_rows(self.store.format, rows))
            for name, rows in tables.items()
            if rows.num_rows
        }

    def holders(self, stream: str, seq: int) -> list[str]:
        """Return the progress files that may hold a commit. As long as they are live it is there, if it was."""
        with self.lock:
            self.newest()
            return self._holders(stream, seq)

    def _holders(self, stream: str, seq: int) -> list[str]:
        index = self.store.live.index("progress")
        return list(index.paths[index.may_hold_commits([(stream, seq, seq + 1)])].tolist())

    def counts(self) -> StreamCounts:
        """Return the capabilities held by all streams together, unclaimed ones included."""
        with self.lock:
            states = self.newest()
            if self._total[0] is not states:
                self._total = states, self._summed(states)
            return self._total[1]

    def _summed(self, states: Mapping[str, StreamState]) -> StreamCounts:
        parts = [state.counts for state in states.values()]  # as many as streams
        times, counts = (np.concatenate(arrays) for arrays in zip(*((c.times, c.counts) for c in parts), strict=True))
        return StreamCounts.from_arrays(times, counts, self.store.format.domain.arity)

    def progress(self) -> pa.Table:
        """Return all progress rows, sorted by stream, seq and time. See `LogCore.progress`."""
        with self.lock:
            index = self.files("progress")
            paths = index.paths.tolist()
            kept = dict(zip(paths, side_by_side(self.store.storage, self.rows_in, paths), strict=True))
            self._rows_by_path = kept
            rows = pa.concat_tables(kept.values()) if kept else self.store.format.progress_schema.empty_table()
        return distinct_rows(self.store.format, rows)

    def recorded(self, stream: str, batch: int, step: int | None = None) -> StreamState | None:
        """Return the state right after the commit of a micro-batch. See `LogCore.recorded`."""
        state = self.newest().get(stream)
        wanted = (batch, step or 0)
        if state is None or state.batch is None:
            return None
        if (state.batch, state.step or 0) == wanted and state.note.batch is not None:
            # What came after it carries its number on, and says which commit it is.
            found = self.commits_of({stream: state.note.batch.seq}).get(stream)
            if found is not None and _is_its_own(found):
                return found
        rows = self.progress()
        mask = pc.and_(pc.equal(rows["_stream"], stream), pc.equal(rows["_batch"], batch))
        mask = pc.and_(mask, pc.equal(pc.fill_null(rows["_step"], 0), wanted[1]))
        rows = rows.filter(pc.and_(mask, pc.equal(rows["_epoch"], state.epoch)))
        # Commits that belong to no micro-batch repeat the numbers of the last one.
        return next((found for found in states_by_seq(self.store.format, rows) if _is_its_own(found)), None)

    def owners(self, stream: str) -> frozenset[str]:
        """Return who owns a stream or has owned it."""
        state = self.newest().get(stream)
        return frozenset() if state is None else owners_of(self.progress(), state)

    def bases(self) -> dict[str, int]:
        """Return the streams whose first commits are forgotten. See `LogCore.bases`."""
        with self.lock:
            if not self.store.format.forgets:
                return {}
            index = self.store.live.index("progress")
            streams = index.lone_streams()
            if None in streams:  # merged by others: what is in them must be read, not as `progress`, which asks this
                rows = self.distinct_rows_in(index.paths.tolist()).select(["_stream", "_seq"])
                rows = rows.group_by("_stream").aggregate([("_seq", "min")])
                first = dict(zip(rows["_stream"].to_pylist(), rows["_seq_min"].to_pylist(), strict=True))
            else:
                first = {}
                for stream, seq in zip(streams, index.seq_lo.tolist(), strict=True):  # bounded: they are merged
                    first[stream] = min(seq, first.get(stream, seq))
            # A number alone may come from a loss: the commit must say it.
            states = self._earlier({stream: seq for stream, seq in sorted(first.items()) if seq > 0})
            return {stream: state.seq for stream, state in states.items() if state.note.base}

    def has_forgotten(self, stream: str, seq: int) -> bool:
        """Return whether a commit is one of those that are forgotten: before the first one of its stream."""
        return seq < self.bases().get(stream, 0)


# Commits --------------------------------------------------------------------------------------------------------------


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
