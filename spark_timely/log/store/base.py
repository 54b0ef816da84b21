"""The store interface: snapshots and atomic commits of the table that keeps a log; and the store in memory.

A store is one handle on a table: a snapshot, and commits made from that snapshot. A `LogCore` has one; `streams`,
`compaction`, `forgetting` and `retention` commit by it. `spark_timely.log.store.delta` is the one for Delta tables.
`MemoryStore` is a table in this process, for `MemoryLog` and for tests without a disk: the reference for what a store
does. (A `Storage`, in `storage`, is below: it knows files, and nothing of tables.)

Invariants
----------
1. A commit adds and removes files all or nothing, and appears to every handle in one order.
2. A commit fails with `LostRaceError` if, since the handle's snapshot, another commit carried one of
   its app ids, added columns, or raised the format; or any commit at all happened, where it is exclusive.
3. A handle sees other commits, and its own, only when it is refreshed.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Protocol

from spark_timely.log.files.format import EVENTS
from spark_timely.log.files.index import LiveFiles, index_adds
from spark_timely.log.machine.decide import LostRaceError
from spark_timely.log.machine.judge import Judgement
from spark_timely.log.store.storage import MemoryStorage, Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.judge import ForeignChange
    from spark_timely.log.machine.state import DataFile
    from spark_timely.time.antichain import BoolArray


App = tuple[str, int]


class Store(Protocol):
    """One handle on the table of a log."""

    @property
    def path(self) -> str:
        """Where the table is."""

    @property
    def table_id(self) -> str:
        """Identity of the table."""

    @property
    def storage(self) -> Storage:
        """Access to its files."""

    @property
    def storage_options(self) -> Mapping[str, str]:
        """Credentials and settings for cloud URLs, as they were given."""

    @property
    def format(self) -> LogFormat:
        """Format of the log, as of the snapshot."""

    @property
    def append_only(self) -> bool:
        """Whether the table refuses that files of data are replaced."""

    @property
    def version(self) -> int:
        """Table version of the snapshot."""

    @property
    def generation(self) -> int:
        """How often everything was read again: versions mean something else after that."""

    @property
    def live(self) -> LiveFiles:
        """The live files of the snapshot."""

    def has_news(self) -> bool:
        """Return whether there is a later version, where a look costs nothing; else False."""

    def check_writable(self) -> None:
        """Refuse a table with features that cannot be written; raises `LogFormatError`."""

    def refresh(self, *, after_put: bool = False) -> bool:
        """Move the snapshot to the newest version; return whether it moved.

        Straight after a commit, which was a look too, one's own commit is enough: a journey is spared.
        """

    def transact(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        *,
        removes: Sequence[DataFile] = (),
        data_change: bool = True,
        exclusive: bool = False,
    ) -> None:
        """Commit from the snapshot.

        Raises
        ------
        LostRaceError
            If the commit was not accepted; it may still have happened in an earlier, unclear attempt.
        LogFormatError
            If the table cannot be written at all: nothing happened.
        StorageError
            If it is unclear whether it happened.
        """

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns that may be null and that the table does not have, in a commit from the snapshot.

        Raises
        ------
        LostRaceError
            If others added columns since.
        StorageError
            If it is unclear whether it happened.
        """

    def change_facts(self, form: LogFormat, *, exclusive: bool = False) -> None:
        """Give the log other facts, in a commit from the snapshot.

        Parameters
        ----------
        form : LogFormat
            Of the snapshot, but for what is only a fact.
        exclusive : bool
            Whether nothing may come between.

        Raises
        ------
        LostRaceError
            If others changed columns or facts since.
        StorageError
            If it is unclear whether it happened.
        """

    def foreign_changes(self) -> tuple[ForeignChange, ...]:
        """Return what other programs changed in the log, and nobody undid, as of the snapshot.

        Raises
        ------
        StorageError
            If what is needed to tell cannot be read.
        """

    def judgement(self) -> Judgement:
        """Return what `foreign_changes` does, with what it takes to put progress back."""

    def look_into(self, chosen: Callable[[FileIndex], BoolArray] | None = None) -> None:
        """Look into files of messages that others made, before the first row of one is handed out.

        What is found is among `foreign_changes` from then on.

        Parameters
        ----------
        chosen : callable, optional
            Says of which files rows are wanted; of all unless given. It is asked of the files that others made, and of
            those in whose place they are.

        Raises
        ------
        StorageError
            If what is needed to tell cannot be read.
        """

    def flush(self) -> None:
        """Make all commits of the snapshot, also those of others, outlast a power cut.

        For a caller that acknowledges what another process has committed, and may not have flushed before it died.

        Raises
        ------
        StorageError
            If that could not be done.
        """

    def tidy(self, *, now: bool = False) -> bool:
        """Keep the table's own bookkeeping small; called after each commit, does something now and then.

        Parameters
        ----------
        now : bool
            Whether to do all that there is to do.

        Returns
        -------
        bool
            Whether something was due.

        Raises
        ------
        StorageError
            If that could not be done. The log is as good as before.
        """

    def is_due(self) -> bool:
        """Return whether `tidy` has something to do."""

    def replaced(self, before: int) -> Mapping[str, tuple[int, int]]:
        """Return the files that commits took out of the table up to a moment, as far as is known.

        Parameters
        ----------
        before : int
            Milliseconds since 1970.

        Returns
        -------
        mapping
            By path, when they were taken out, in milliseconds, and how many bytes they have. They may be deleted
            already, or part of the table again.

        Raises
        ------
        LogFormatError
            If the table has features by which they may be needed.
        StorageError
            If it cannot be read.
        """

    @property
    def replaced_kept_ms(self) -> int:
        """How many milliseconds the table keeps files that were replaced."""

    def aside(self) -> Store | None:
        """Return a second handle on the same snapshot for upkeep beside this one; None where nothing takes long."""

    def problems(self) -> list[str]:
        """Return what is wrong with the upkeep of the table, as sentences for people."""


_FORMAT = "#format"
"""Marks a commit that changed the format; no app id has such a name."""


class MemoryTable:
    """A table in this process, shared by handles. Thread-safe."""

    def __init__(self, form: LogFormat, name: str = "memory") -> None:
        self.form = form
        self.storage = MemoryStorage(name)
        self.table_id = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.files: dict[str, DataFile] = {}
        self.commits: list[frozenset[str]] = []
        self.replaced: dict[str, tuple[int, int]] = {}


class MemoryStore:
    """A handle on a `MemoryTable`: the reference for what a store does."""

    def __init__(self, table: MemoryTable) -> None:
        self.table = table
        self.path = table.storage.uri
        self.table_id = table.table_id
        self.storage = table.storage
        self.storage_options: Mapping[str, str] = {}
        self.append_only = False
        self.generation = 0
        self.version = -1
        self.format = table.form
        self.live = LiveFiles(table.form.domain.arity)
        self.refresh()

    def has_news(self) -> bool:
        """Return False: a look costs nothing."""
        return False

    def check_writable(self) -> None:
        """Do nothing: there are no features."""

    def refresh(self, *, after_put: bool = False) -> bool:
        """Move the snapshot to the newest version."""
        del after_put
        with self.table.lock:
            newest = len(self.table.commits) - 1
            if newest == self.version:
                return False
            self.version = newest
            self.format = self.table.form
            files = dict(self.table.files)
        known = {path for event in EVENTS for path in self.live.index(event).paths.tolist()}
        self.live.remove(known - files.keys())
        self.live.add(index_adds(self.format, [_action(file) for path, file in files.items() if path not in known]))
        return True

    def transact(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        *,
        removes: Sequence[DataFile] = (),
        data_change: bool = True,
        exclusive: bool = False,
    ) -> None:
        """Commit from the snapshot."""
        del data_change
        ids = frozenset(app for app, _ in apps)
        with self.table.lock:
            since = self.table.commits[self.version + 1 :]
            if (exclusive and since) or any(ids & other or _FORMAT in other for other in since):
                raise self._lost()
            now = time.time_ns() // 1_000_000
            for file in removes:
                self.table.files.pop(file.path, None)
                self.table.replaced[file.path] = (now, file.size_bytes)
            for file in adds:
                self.table.files[file.path] = file
            self.table.commits.append(ids)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns, in a commit from the snapshot."""
        self._change(self.format.extended(columns))

    def change_facts(self, form: LogFormat, *, exclusive: bool = False) -> None:
        """Give the log other facts, in a commit from the snapshot."""
        self._change(form, exclusive=exclusive)

    def foreign_changes(self) -> tuple[ForeignChange, ...]:
        """Return nothing: no other program sees the table."""
        return ()

    def judgement(self) -> Judgement:
        """Return nothing: no other program sees the table."""
        return Judgement((), ())

    def look_into(self, chosen: Callable[[FileIndex], BoolArray] | None = None) -> None:
        """Do nothing: no other program sees the table."""

    def _change(self, form: LogFormat, *, exclusive: bool = False) -> None:
        with self.table.lock:
            since = self.table.commits[self.version + 1 :]
            if (exclusive and since) or any(_FORMAT in other for other in since):
                raise self._lost()
            self.table.form = form
            self.table.commits.append(frozenset({_FORMAT}))

    def _lost(self) -> LostRaceError:
        msg = f"could not commit to {self.path!r}: found version={len(self.table.commits) - 1}"
        return LostRaceError(msg, hint="refresh and decide again", determinate=True)

    def flush(self) -> None:
        """Do nothing: what is in this process ends with it."""

    def tidy(self, *, now: bool = False) -> bool:
        """Do nothing: there is no bookkeeping."""
        return False

    def is_due(self) -> bool:
        """Return False: there is no bookkeeping."""
        return False

    def replaced(self, before: int) -> Mapping[str, tuple[int, int]]:
        """Return the files that commits took out of the table up to a moment."""
        with self.table.lock:
            return {path: said for path, said in self.table.replaced.items() if said[0] <= before}

    @property
    def replaced_kept_ms(self) -> int:
        """How many milliseconds files that were replaced are kept: a day, as on a disk."""
        return 86_400_000

    def aside(self) -> Store | None:
        """Return None: nothing takes long."""
        return None

    def problems(self) -> list[str]:
        """Return nothing: there is no bookkeeping."""
        return []


def _action(file: DataFile) -> dict[str, object]:
    """Return a file as the log of a Delta table would name it."""
    return {
        "path": file.path,
        "size": file.size_bytes,
        "partitionValues": {"_event": file.event},
        "stats": file.stats,
    }
