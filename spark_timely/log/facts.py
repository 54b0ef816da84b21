"""What a log says: its facts, the files of its snapshot, and the states of its streams.

Invariants
----------
1. Nothing here writes.
2. The state of a stream is read from its newest progress file; nothing else is trusted.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import RolledBackError, TimelyInternalError
from spark_timely.log.base import OPEN_STREAM, StreamState
from spark_timely.log.files.parquet import read_file
from spark_timely.log.machine.state import batch_state, distinct_rows, newest_states, owners_of, states_by_seq
from spark_timely.protocol.rules import StreamCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.store.base import Store
    from spark_timely.log.store.storage import Storage
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.domain import TimeDomain

__all__ = ["LogFacts"]


def _is_its_own(state: StreamState) -> bool:
    """Whether a commit holds the micro-batch whose numbers it carries."""
    return state.note.batch is not None and state.note.batch.seq == state.seq


class LogFacts:
    """What a log on a store says; the part of `spark_timely.log.base.CaptureLog` that writes nothing.

    Parameters
    ----------
    store : Store
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.RLock()
        self._states: dict[str, StreamState] = {}
        # Generation and version of the store: a version that was read anew may say something else.
        self._states_at = (-1, -1)
        self._newest_by_path: dict[str, dict[str, StreamState]] = {}
        self._rows_by_path: dict[str, pa.Table] = {}
        # The newest commit of each stream that this handle has seen, and the progress files that may hold it.
        self._known: dict[str, tuple[StreamState, frozenset[str]]] = {}

    # Facts ---------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Where the log is."""
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
    def kind(self) -> str:
        """`stream`, or `collection` with a `_diff`."""
        return self.store.format.kind

    @property
    def schema(self) -> pa.Schema:
        """Payload columns, with the nullability declared for messages."""
        return self.store.format.payload

    @property
    def nullable(self) -> dict[str, bool]:
        """Whether each payload column may be null in a message."""
        return {f.name: f.nullable for f in self.schema}

    @property
    def version(self) -> int:
        """Table version of the snapshot in use."""
        return self.store.version

    @property
    def generation(self) -> int:
        """How often everything was read anew: versions mean something else after that."""
        return self.store.generation

    # Snapshot ------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take notice of commits by others; return whether there were any.

        Raises
        ------
        RolledBackError
            If commits that this handle has seen are gone: the log was restored to an earlier state. Then the handle
            says nothing any more; open the log again.
        """
        with self._lock:
            moved = self.store.refresh()
            self._all_states()
            return moved

    def begin_anew(self) -> None:
        """Forget what this handle has seen: for one that judges in another way whether a log was restored."""
        with self._lock:
            self._known, self._states, self._newest_by_path, self._rows_by_path = {}, {}, {}, {}
            self._states_at = (-1, -1)

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Read the log as it is, whatever this handle has seen of it before."""
        with self._lock:
            known = self._known
            self.begin_anew()
        try:
            yield
        finally:
            with self._lock:
                self.begin_anew()
                self._known = known

    def has_news(self) -> bool:
        """Return whether others have committed, where that can be told at no cost; else False."""
        return False

    def files(self) -> FileIndex:
        """Return the files of messages in the snapshot, with bounds of what is in each."""
        return self._index("message")

    def dead_files(self) -> FileIndex:
        """Return the files of dead letters in the snapshot."""
        return self._index("dead")

    def progress_files(self) -> FileIndex:
        """Return the files of progress rows in the snapshot."""
        return self._index("progress")

    def _index(self, event: str) -> FileIndex:
        with self._lock:
            if self._known:
                self._all_states()  # refuses a log that went back
            return self.store.live.index(event)

    def _check_kept(self, states: Mapping[str, StreamState]) -> None:
        """Refuse states of a log that lacks commits which this handle has seen, or has others in their place.

        As long as a file that held a commit is part of the log, so is the commit. Where it was merged, or the log was
        restored, the commit is looked for.
        """
        live = self.store.live
        for stream, (seen, files) in self._known.items():  # as many turns as streams
            found = states.get(stream)
            if found is None or found.seq < seen.seq:
                now = "no such stream" if found is None else f"stream {stream!r} at seq={found.seq}"
                raise self._went_back(stream, f"{now}, this handle has seen {stream!r} at seq={seen.seq}")
            if all(path in live for path in files):
                continue
            other = found if found.seq == seen.seq else self._earlier({stream: seen.seq}).get(stream)
            if other is None or other.identity != seen.identity:
                raise self._went_back(stream, f"another commit seq={seen.seq} of stream {stream!r} than before")
        known = {stream: kept for stream, kept in self._known.items() if all(path in live for path in kept[1])}
        self._known = {
            stream: known[stream]
            if stream in known and known[stream][0].seq == state.seq
            else (state, frozenset(self._holders(stream, state.seq)))
            for stream, state in states.items()
        }

    def _went_back(self, stream: str, found: str) -> RolledBackError:
        return RolledBackError(
            f"could not read log {self.path!r}: found {found}",
            hint="the log was restored to an earlier state: open it again; what was done with the commits that are"
            " gone, such as a frontier that was acted on or rows that were appended, is to be done again",
            context={"path": self.path, "stream": stream},
        )

    def live_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of the paths that are part of the log, after a refresh.

        For who wants to delete files of a commit whose outcome is unclear: these must stay.
        """
        with self._lock:
            self.store.refresh()
            return {path for path in paths if path in self.store.live}

    # States --------------------------------------------------------------------------------------

    def _all_states(self) -> dict[str, StreamState]:
        """Return the newest state of each stream, `#open` included."""
        with self._lock:
            at = self._snapshot
            if self._states_at != at:
                if self._states_at[0] != at[0]:
                    self._newest_by_path, self._rows_by_path = {}, {}
                states = self._read_states()
                self._check_kept(states)
                self._states, self._states_at = states, at
            return self._states

    @property
    def _snapshot(self) -> tuple[int, int]:
        """What tells the snapshot from any other that this handle has had."""
        return self.store.generation, self.store.version

    def _read_states(self) -> dict[str, StreamState]:
        """Find the newest progress batch of each stream; read only files that can hold one.

        A file of one stream is a candidate if no other file of that stream goes further. A file that
        may hold several streams, after a merge by another engine, is always read. Files read before
        are remembered, so that the cost is that of what is new.
        """
        index = self.store.live.index("progress")
        if not len(index):
            msg = f"could not read log {self.path!r}: found no progress rows, invariant 2"
            raise TimelyInternalError(msg)
        newest: dict[str, int] = {}
        candidates: list[int] = []
        for i in range(len(index)):  # bounded: progress files are merged
            stream = index.one_stream(i)
            if stream is None or index.seq_hi[i] == np.iinfo(np.int64).max:
                candidates.append(i)
            elif stream not in newest or index.seq_hi[newest[stream]] < index.seq_hi[i]:
                newest[stream] = i
        candidates += newest.values()
        states: dict[str, StreamState] = {}
        remembered: dict[str, dict[str, StreamState]] = {}
        for i in candidates:
            path = index.paths[i]
            found = self._newest_by_path.get(path)
            if found is None:
                found = newest_states(self.format, self._progress_rows(path))
            remembered[path] = found
            for stream, state in found.items():
                if stream not in states or states[stream].seq < state.seq:
                    states[stream] = state
        self._newest_by_path = remembered
        return states

    def _progress_rows(self, path: str) -> pa.Table:
        rows = self._rows_by_path.get(path)
        if rows is None:
            rows = read_file(self.storage, path, self.format.progress_schema)
        return rows

    def streams(self) -> MappingProxyType[str, StreamState]:
        """Return the newest state of each stream in the snapshot."""
        with self._lock:
            return MappingProxyType({n: s for n, s in sorted(self._all_states().items()) if n != OPEN_STREAM})

    def stream(self, name: str) -> StreamState | None:
        """Return the newest state of one stream, None if there is none of that name."""
        return None if name == OPEN_STREAM else self._all_states().get(name)

    def ends(self) -> MappingProxyType[str, StreamState]:
        """Return the newest state of each stream, `#open` included."""
        return MappingProxyType(self._all_states())

    def commit_of(self, stream: str, seq: int) -> StreamState | None:
        """Return the state right after one commit of a stream, None if the snapshot does not have it.

        Parameters
        ----------
        stream : str
            `#open` too.
        seq : int

        Notes
        -----
        Free for the newest commit; for earlier ones the progress files that may hold it are read, mostly one.
        """
        return self.commits_of({stream: seq}).get(stream)

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
        with self._lock:
            newest = self._all_states()
            found = {name: newest[name] for name, seq in wanted.items() if name in newest and newest[name].seq == seq}
            earlier = {name: seq for name, seq in wanted.items() if name in newest and seq < newest[name].seq}
            return {**found, **self._earlier(earlier)}

    def _earlier(self, wanted: Mapping[str, int]) -> dict[str, StreamState]:
        """Return the states right after some commits, from the progress files that may hold them."""
        holders: dict[str, list[str]] = {}
        for name, seq in wanted.items():  # one turn per stream
            for path in self._holders(name, seq):
                holders.setdefault(path, []).append(name)
        parts: dict[str, list[pa.Table]] = {}
        for path, names in holders.items():  # one turn per file
            rows = self._progress_rows(path)
            for name in names:
                mine = pc.and_(pc.equal(rows["_stream"], name), pc.equal(rows["_seq"], wanted[name]))
                parts.setdefault(name, []).append(rows.filter(mine))
        tables = {name: pa.concat_tables(tables) for name, tables in parts.items()}
        return {
            name: batch_state(self.format, distinct_rows(self.format, rows))
            for name, rows in tables.items()
            if rows.num_rows
        }

    def holders(self, stream: str, seq: int) -> list[str]:
        """Return the progress files that may hold a commit: as long as they are live it is there, if it was.

        Notes
        -----
        Nothing is read.
        """
        with self._lock:
            self._all_states()
            return self._holders(stream, seq)

    def _holders(self, stream: str, seq: int) -> list[str]:
        index = self.store.live.index("progress")
        chosen = index.may_hold_stream(stream) & (index.seq_lo <= seq) & (index.seq_hi >= seq)
        return list(index.paths[chosen].tolist())

    def positions(self) -> dict[str, int]:
        """Return the number of the next commit of each stream, `#open` included."""
        return {name: state.seq + 1 for name, state in sorted(self._all_states().items())}

    @property
    def unclaimed(self) -> int:
        """Number of capabilities that wait for a stream."""
        opened = self._all_states().get(OPEN_STREAM)
        return 0 if opened is None else opened.counts.total

    def counts(self) -> StreamCounts:
        """Return the capabilities held by all streams together, unclaimed ones included."""
        total = StreamCounts.empty(self.domain.arity)
        for state in self._all_states().values():  # as many turns as streams
            total = total.plus(state.counts)
        return total

    def frontier(self) -> Antichain:
        """Return the minimal times that any stream may still use; empty when the log is complete."""
        return self.counts().frontier

    def progress(self) -> pa.Table:
        """Return all progress rows, sorted by stream, seq and time.

        Notes
        -----
        Files read before are remembered: the cost is that of new ones, and one sort.
        """
        with self._lock:
            index = self.progress_files()
            kept = {path: self._progress_rows(path) for path in index.paths.tolist()}
            self._rows_by_path = kept
            rows = pa.concat_tables(kept.values()) if kept else self.format.progress_schema.empty_table()
        return distinct_rows(self.format, rows)

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
        Free for the newest commit; earlier ones are looked up among all progress rows.
        """
        state = self._all_states().get(stream)
        wanted = (batch, step or 0)
        if state is None or state.batch is None:
            return None
        if (state.batch, state.step or 0) == wanted and _is_its_own(state):
            return state
        rows = self.progress()
        mask = pc.and_(pc.equal(rows["_stream"], stream), pc.equal(rows["_batch"], batch))
        mask = pc.and_(mask, pc.equal(pc.fill_null(rows["_step"], 0), wanted[1]))
        rows = rows.filter(pc.and_(mask, pc.equal(rows["_epoch"], state.epoch)))
        # One turn per commit since: those that belong to no micro-batch carry the numbers of the last one on.
        return next((found for found in states_by_seq(self.format, rows) if _is_its_own(found)), None)

    def owners(self, stream: str) -> frozenset[str]:
        """Return who owns a stream or has owned it."""
        return owners_of(self.progress(), stream)
