"""A handle on the Delta table of a log: opened by delta-rs, followed entry by entry.

What was found about delta-rs 1.6, and shapes this module:

 - App ids are compared only against commits after the handle's snapshot, and the numbers not at all.
   So a decision and its commit share one snapshot.
 - A handle does not know its own commit until it is updated.
 - Adding a column makes every commit from an older snapshot fail, whatever it appends, by the class of
   error that also stands for a lost race. A column that is there already is added without a complaint.
 - Removing a file twice is not noticed, not even across a rebase. So whatever removes files commits
   exclusively: exactly on top of its snapshot, or not at all.
 - Updating, and committing, cost time in proportion to the live files (2.5 µs each: 50 ms at 20,000), because
   the list of them is made anew each time, and to the entries in the directory of the table's log (8 µs each).

So a table is opened by delta-rs, and from then on only the entries that come are read. On a local disk
commits are written here too, as delta-rs does it there: a complete file gets its name by a hard link, or
fails because the name is taken. Elsewhere delta-rs commits: it knows how each store makes that safe.

Invariants
----------
1. Nothing moves the snapshot between a decision and its commit.
2. What is deleted from the table's log is older than a checkpoint by many versions, and goes in order. So
   where the entry of the snapshot still is what it was, no entry after it has come and gone; and one that was
   put after it before that was found has its place. Where it is not, everything is read anew.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from spark_timely.errors import InvalidUsageError, LogFormatError, LogMissingError, StorageError, TimelyError, shown
from spark_timely.log.delta_create import add_action, no_links
from spark_timely.log.entries import entry_path, put_entry, read_entry, render_entry
from spark_timely.log.format import LogFormat
from spark_timely.log.index import index_adds, index_files
from spark_timely.log.live import LiveFiles
from spark_timely.log.place import check_place, is_promised, links_missing
from spark_timely.log.storage import FileStorage, open_storage, plain
from spark_timely.log.store import App, LostRaceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.log.base import DataFile

__all__ = ["DeltaStore"]

logger = logging.getLogger(__name__)

_REFUSED_FEATURES = {
    "columnMapping": "column mapping",
    "typeWidening": "type widening",
    "typeWidening-preview": "type widening",
}
# Writer features that delta-rs 1.6 commits to (tried). A commit to a table with any other fails, and
# says so by the class of error that also stands for a lost race.
_WRITTEN_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
_LOG_FILE = re.compile(r"(\d{20})\.(json|crc|checkpoint\.parquet)")
# Versions kept behind the newest checkpoint, for handles that have not looked for a while.
_KEEP_VERSIONS = 100
# Commits between two checkpoints: more where a checkpoint is large, so that what it costs per commit does not
# grow with the files, up to what a cold open is willing to read.
_CHECKPOINT_VERSIONS = (50, 200)
_FILES_PER_VERSION = 100
# Who has not looked for so long opens the table anew: others clean up by age, an hour at the least, and not in order.
_LONG_S = 1200.0
_COMMIT_RETRIES = 30
_OPEN_TRIES = 3
# What a file system without hard links says.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class DeltaStore:
    """A handle on the Delta table of a log.

    Parameters
    ----------
    path : str
        As `spark_timely.log.storage.normal_path` gives it.
    storage_options : mapping, optional
        Passed on to delta-rs.

    Raises
    ------
    LogMissingError
        If there is no table, or one that is no log.
    LogFormatError
        If the log is of a newer version, or uses table features that cannot be read.
    StorageError
        If the storage cannot be reached.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.options = dict(storage_options or {}) or None
        self._storage = open_storage(path, storage_options)
        # Where the place lacks links and a single writer is promised, delta-rs knows what to do.
        self._links = self._storage.local and not is_promised(storage_options)
        self._looked_at = time.time()
        self._load(self._open())
        self._tidied_at, self._tidy_after = self._version, _CHECKPOINT_VERSIONS[0]

    @property
    def table_id(self) -> str:
        """Identity of the table."""
        return self._id

    @property
    def storage(self) -> FileStorage:
        """Access to its files."""
        return self._storage

    @property
    def format(self) -> LogFormat:
        """Format of the log, as of the snapshot."""
        return self._format

    @property
    def append_only(self) -> bool:
        """Whether somebody set `delta.appendOnly`, which forbids to replace files of data."""
        return str(self._configuration.get("delta.appendOnly", "false")).lower() == "true"

    @property
    def version(self) -> int:
        """Table version of the snapshot."""
        return self._version

    @property
    def live(self) -> LiveFiles:
        """The live files of the snapshot."""
        return self._live

    def _open(self) -> DeltaTable:
        for _ in range(_OPEN_TRIES - 1):
            try:
                return DeltaTable(self.path, storage_options=self.options)
            except TableNotFoundError:
                break
            except (DeltaError, OSError) as error:
                # An entry that was listed may have been deleted since, behind a newer checkpoint.
                logger.debug("log %r: opened again after %s", self.path, error)
        try:
            return DeltaTable(self.path, storage_options=self.options)
        except TableNotFoundError as error:
            msg = f"could not open log {self.path!r}: found no Delta table"
            raise LogMissingError(
                msg,
                hint="check the path; create_log or a capture makes a new log",
                context={"path": self.path},
            ) from error
        except (DeltaError, OSError) as error:
            text = str(error)
            if _is_feature_error(text):
                raise self._features(text) from error
            entry = self._broken_entry()
            broken = "" if entry is None else f"entry {entry!r} of the table's log broken: "
            msg = f"could not open log {self.path!r}: found {broken}{plain(error)}"
            hint = "check the storage and the table's log, then try again"
            raise StorageError(
                msg,
                hint=hint if entry is None else "restore the entry; without it the log cannot be told",
                context={"path": self.path, "file": entry},
                determinate=True,
            ) from error

    def _broken_entry(self) -> str | None:
        """Look for the entry of the table's log that cannot be read: a few hundred small files."""
        try:
            names = [n for n in self._storage.names("_delta_log") if _LOG_FILE.fullmatch(n) and not n.endswith(".crc")]
            newest = max((n for n in names if n.endswith(".parquet")), default="")
            for name in names:
                if name[:20] < newest[:20]:
                    continue
                path = f"_delta_log/{name}"
                content = self._storage.read(path)
                try:
                    if name.endswith(".parquet"):
                        pq.read_metadata(pa.BufferReader(content))
                    else:
                        for line in content.to_pybytes().splitlines():
                            json.loads(line)
                except (ValueError, OSError, pa.ArrowException):
                    return path
        except StorageError as error:
            logger.debug("log %r: its table log cannot be looked through: %s", self.path, error)
        return None

    def _features(self, found: str) -> LogFormatError:
        return LogFormatError(
            f"could not open log {self.path!r}: found table features that cannot be read: {found:.200}",
            hint="a log is a plain Delta table; rewrite it without the feature",
            context={"path": self.path},
        )

    def _load(self, table: DeltaTable) -> None:
        """Take everything from a handle of delta-rs: schema, format, features, files."""
        # What it holds per file is needed no more where commits are written here.
        self._table: DeltaTable | None = None if self._links else table
        self._version = table.version()
        protocol = table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        refused = sorted({_REFUSED_FEATURES[f] for f in features if f in _REFUSED_FEATURES})
        metadata = table.metadata()
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            refused.append("column mapping")
        if refused:
            raise self._features(", ".join(dict.fromkeys(refused)))
        known = set(protocol.writer_features or ()) <= _WRITTEN_FEATURES
        self._writable = known and protocol.min_writer_version in (1, 2, 3, 4, 5, 7)
        self._id = str(metadata.id)
        self._schema = table.schema()
        self._configuration = dict(metadata.configuration)
        event = next((f for f in self._schema.fields if f.name == "_event"), None)
        arrow = pa.schema(self._schema.to_arrow())
        self._format = LogFormat.from_table(arrow, event.metadata if event is not None else {}, self.path)
        if list(metadata.partition_columns) != ["_event"]:
            msg = f"could not open log {self.path!r}: found partition columns={metadata.partition_columns!r}"
            raise LogFormatError(
                msg,
                hint="a log is partitioned by _event; restore the table",
                context={"path": self.path},
            )
        if "deletionVectors" in features:
            self._refuse_vectors(table)
        self._live = LiveFiles(self._format.domain.arity)
        self._live.add(index_files(self._format, pa.table(table.get_add_actions())))
        self._mark = self._entry_mark()

    def _entry_mark(self) -> tuple[int, ...] | None:
        """Return what tells the entry of the snapshot's version from any other file in its place; None: none there."""
        found = self._storage.mark(entry_path(self._version))
        return None if found is None else (self._version, *found)

    def check_writable(self) -> None:
        """Refuse a place without a promise, and features that delta-rs cannot commit to. Free where all are known.

        Raises
        ------
        InvalidOptionError
            If the log is on a volume, and nobody promised a single writer.
        LogFormatError
        """
        check_place(self.path, self.options)
        if self._writable:
            return
        try:
            # A newer delta-rs may know more features: it is asked, by a merge of no files at all.
            DeltaTable(self.path, storage_options=self.options).optimize.compact(
                partition_filters=[("_event", "=", "none")]
            )
        except CommitFailedError as error:
            if _is_unwritable(str(error)):
                raise self._unwritable(str(error)) from error
        except (DeltaError, OSError) as error:
            logger.debug("log %r: whether it can be written is left to the commit: %s", self.path, error)
        else:
            self._writable = True

    def _unwritable(self, found: str) -> LogFormatError:
        return LogFormatError(
            f"could not write log {self.path!r}: found table features that cannot be written: {shown(found)}",
            hint="a log is a plain Delta table; drop the feature (ALTER TABLE … DROP FEATURE), or capture into another",
            context={"path": self.path},
        )

    def _refuse_vectors(self, table: DeltaTable) -> None:
        vectors = pa.table(table.deletion_vectors())
        if vectors.num_rows:
            msg = f"could not open log {self.path!r}: found deletion vectors on {vectors.num_rows} files"
            raise LogFormatError(
                msg,
                hint="purge them: REORG TABLE … APPLY (PURGE), and set delta.enableDeletionVectors=false",
                context={"path": self.path},
            )

    def refresh(self) -> bool:
        """Move the snapshot to the newest version; return whether it moved."""
        before, now = self._version, time.time()
        try:
            whole = abs(now - self._looked_at) < _LONG_S and self._follow()
        except (ValueError, LookupError, TypeError) as error:
            # An entry that cannot be read: delta-rs reads it, or says what is wrong with it.
            logger.debug("log %r: opened again after %s", self.path, error)
            whole = False
        if not whole:
            self._reload()
        self._looked_at = now
        return self._version != before

    def _follow(self) -> bool:
        """Take in the entries behind the snapshot; return False where that is not enough."""
        while True:  # one turn per entry
            entry = read_entry(self._storage, self._version + 1)
            # After that look, whether it found one or not (invariant 2).
            if self._mark is None or self._entry_mark() != self._mark:
                return False
            if entry is None:
                return True
            if entry.changes_table:
                return False
            added = index_adds(self._format, entry.adds)
            self._live.remove(entry.removes)
            self._live.add(added)
            self._version += 1
            self._mark = self._entry_mark()

    def _reload(self) -> None:
        table = self._open()
        if str(table.metadata().id) != self._id:
            msg = f"could not read log {self.path!r}: found another table in its place"
            raise LogMissingError(
                msg, hint="the log was deleted and made anew; open it again", context={"path": self.path}
            )
        if (table.version(), self._mark) != (self._version, None):
            self._load(table)

    def has_later(self) -> bool:
        """Return whether there is a later version, however far behind the snapshot is.

        The version after the snapshot's may have been tidied away: then the snapshot's own entry was before.
        Two looks at one file each.
        """
        return self._storage.exists(entry_path(self._version + 1)) or self._entry_mark() != self._mark

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
        if removes and not exclusive:
            msg = "could not commit: found removes without exclusive=True"
            raise InvalidUsageError(msg)
        try:
            if self._links and self._writable and self._mark is not None:
                self._put(adds, apps, removes, data_change=data_change, exclusive=exclusive)
            else:
                self._commit(adds, apps, removes, data_change=data_change, exclusive=exclusive)
        except (DeltaError, OSError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> TimelyError:
        """Return what the error of a commit means."""
        lost = isinstance(error, CommitFailedError)
        if lost and _is_unwritable(str(error)):  # found before anything is written
            return self._unwritable(str(error))
        if links_missing(error):
            return no_links(self.path, error)
        if lost:
            return self._lost(found=plain(error))
        return StorageError(
            f"could not commit to log {self.path!r} at version={self._version}: found {plain(error)}",
            hint="read the log to see whether it happened, then try again",
            context={"path": self.path},
            determinate=False,
        )

    def _lost(self, *, found: str) -> LostRaceError:
        return LostRaceError(
            f"could not commit to log {self.path!r} at version={self._version}: found {found}",
            hint="refresh and decide anew",
            context={"path": self.path},
            determinate=False,
        )

    def _put(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        removes: Sequence[DataFile],
        *,
        data_change: bool,
        exclusive: bool,
    ) -> None:
        """Write the entry here: flat, however many files are live."""
        content = render_entry(adds, removes, dict(apps), data_change=data_change, read_version=self._version)
        ids = {app for app, _ in apps}
        if self._entry_mark() != self._mark:
            raise self._lost(found="another entry in place of the snapshot's")
        for version in range(self._version + 1, self._version + 2 + _COMMIT_RETRIES):
            try:
                done = put_entry(self.path, version, content)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._links = False
                raise self._lost(found="no hard links") from error
            if done:
                if self._entry_mark() != self._mark:
                    # Stopped for so long that the versions behind were tidied away: was it put in the past?
                    msg = "entries that were tidied away meanwhile"
                    raise OSError(msg)
                return
            other = read_entry(self._storage, version)
            if exclusive or other is None or other.changes_table or other.apps & ids:
                raise self._lost(found=f"version={version} taken")
        raise self._lost(found="that others commit all the time")

    def _commit(
        self,
        adds: Sequence[DataFile],
        apps: Sequence[App],
        removes: Sequence[DataFile],
        *,
        data_change: bool,
        exclusive: bool,
    ) -> None:
        """Let delta-rs write the entry."""
        table = self._handle()
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [add_action(file, data_change=data_change) for file in adds]
        actions += [RemoveAction(f.path, data_change, now, f.size_bytes, {"_event": f.event}) for f in removes]
        table.create_write_transaction(
            actions,
            "append",
            self._schema,
            ["_event"],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, number) for app, number in apps],
                max_commit_retries=0 if exclusive else _COMMIT_RETRIES,
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )

    def _handle(self) -> DeltaTable:
        """Return a handle of delta-rs on the snapshot."""
        try:
            if self._table is not None and self._table.version() < self._version:
                self._table.update_incremental()
        except (DeltaError, OSError):
            self._table = None  # it fell behind what is left of the table's log
        if self._table is None:
            self._table = self._open()
        if self._table.version() != self._version:
            raise self._lost(found=f"version={self._table.version()}")
        return self._table

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns, in a commit from the snapshot."""
        try:
            self._handle().alter.add_columns(
                list(Schema.from_arrow(columns).fields),
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=False, cleanup_expired_logs=False
                ),
            )
        except (DeltaError, OSError) as error:
            raise self._failed(error) from error

    def tidy(self) -> None:
        """Write a checkpoint where one is due, and delete entries of the table's log far behind it, by count."""
        if self._version - self._tidied_at < self._tidy_after:
            return
        self._tidied_at = self._version
        checkpoint, size = self._checkpoint()
        low, high = _CHECKPOINT_VERSIONS
        self._tidy_after = min(max(low, size // _FILES_PER_VERSION), high)
        if self._version - checkpoint >= self._tidy_after:
            table = self._open()
            table.create_checkpoint()
            checkpoint = table.version()
        limit = checkpoint - _KEEP_VERSIONS
        for name in self._storage.names("_delta_log"):  # some hundreds, because this is done regularly
            match = _LOG_FILE.fullmatch(name)
            if match and int(match[1]) < limit:
                # In order of their versions (invariant 2).
                try:
                    self._storage.delete(f"_delta_log/{name}")
                except StorageError as error:
                    logger.warning("log %r: an old entry of its table log stays: %s", self.path, error)
                    return

    def _checkpoint(self) -> tuple[int, int]:
        """Return version and size of the newest checkpoint; (0, 0) if there is none."""
        try:
            last = json.loads(self._storage.read("_delta_log/_last_checkpoint").to_pybytes())
            version, size = int(last["version"]), int(last.get("size", 0))
        except (TimelyError, ValueError, KeyError, TypeError):
            return 0, 0
        known = self._storage.exists(f"_delta_log/{version:020d}.checkpoint.parquet")
        return (version, size) if known else (0, 0)


def _is_unwritable(text: str) -> bool:
    low = text.lower()
    return "table features" in low or "unsupported" in low


def _is_feature_error(text: str) -> bool:
    low = text.lower()
    return "feature" in low or "unsupported" in low or "column mapping" in low
