"""A handle on the Delta table of a log, through delta-rs.

What was found about delta-rs 1.6, and shapes this module:

 - App ids are compared only against commits after the handle's snapshot, and the numbers not at all.
   So a decision and its commit share one snapshot.
 - A handle does not know its own commit until it is updated.
 - Adding a column makes every commit from an older snapshot fail, whatever it appends, by the class of
   error that also stands for a lost race. A column that is there already is added without a complaint.
 - Removing a file twice is not noticed, not even across a rebase. So whatever removes files commits
   exclusively: exactly on top of its snapshot, or not at all.
 - Updating and committing cost time in proportion to the live files (3 µs each), and to the entries in
   the directory of the table's log (8 µs each): it is listed every time. So that directory is kept
   short here, by count, because at many commits a second no retention by age is short enough. A
   handle that falls behind what was deleted gets an error, never a wrong answer, and is opened anew.

Invariants
----------
1. Nothing updates the handle between a decision and its commit.
2. What is deleted from the table's log is older than a checkpoint by many versions.
"""

from __future__ import annotations

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
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from spark_timely.errors import InvalidUsageError, LogFormatError, LogMissingError, StorageError, shown
from spark_timely.log.format import LogFormat
from spark_timely.log.place import PROMISE_HINT, check_place, links_missing
from spark_timely.log.storage import FileStorage, open_storage, plain
from spark_timely.log.store import App, LostRaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_timely.log.base import DataFile

__all__ = ["DeltaStore", "create_table"]

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
# VACUUM without a number takes what nobody knows and is older than the retention of deleted files, also
# what a micro-batch under way has written. Each removed file stays that long in the checkpoints;
# ARCHITECTURE.md tells what that costs.
_CONFIGURATION = {
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
_LOG_FILE = re.compile(r"(\d{20})\.(json|crc|checkpoint\.parquet)")
# Versions kept behind the newest checkpoint, and how many more make a clean-up worth its listing.
_KEEP_VERSIONS = 100
_TIDY_VERSIONS = 50
# For so long after a refresh, a look at the next version's file tells whether there is more. Far
# shorter than _KEEP_VERSIONS commits can take, after which that file could be gone again.
_TRUST_S = 0.05
_COMMIT_RETRIES = 30
_OPEN_TRIES = 3


def create_table(
    path: str, form: LogFormat, first: Sequence[DataFile], storage_options: Mapping[str, str] | None = None
) -> bool:
    """Create the table of a log with its first files, in one commit; return False if there is one.

    Raises
    ------
    StorageError
        If that could not be done.
    """
    options = dict(storage_options or {}) or None
    try:
        create_table_with_add_actions(
            path,
            Schema.from_arrow(form.table_schema),
            [_add(file, data_change=True) for file in first],
            mode="error",
            partition_by=["_event"],
            configuration=_CONFIGURATION,
            storage_options=options,
            # No retries: where somebody else was first, delta-rs 1.6 would retry as version 1, and succeed.
            commit_properties=CommitProperties(app_transactions=[Transaction("timely/#open", 0)], max_commit_retries=0),
        )
    except (DeltaError, OSError) as error:
        if links_missing(error):
            raise _no_links(path, error) from error
        # Which kind of error tells that somebody was first differs by back end and by timing.
        if _exists(path, options):
            return _created_by(path, options, first)
        msg = f"could not create log {path!r}: found {plain(error)}"
        raise StorageError(
            msg,
            hint="check the path and the permissions, then try again",
            context={"path": path},
            determinate=False,
        ) from error
    return True


def _no_links(path: str, error: Exception) -> StorageError:
    return StorageError(
        f"could not commit to log {path!r}: found a file system without hard links, by which a commit takes its name"
        f" only if nobody else has it: {plain(error)}",
        hint=f"write to another file system; {PROMISE_HINT}",
        context={"path": path, "option": "singleWriter"},
        determinate=True,
    )


def _exists(path: str, options: dict[str, str] | None) -> bool:
    try:
        return bool(DeltaTable.is_deltatable(path, storage_options=options))
    except (DeltaError, OSError):
        return False


def _created_by(path: str, options: dict[str, str] | None, first: Sequence[DataFile]) -> bool:
    """Whether the table was created by the very attempt that reported an error."""
    try:
        listing = pa.table(DeltaTable(path, storage_options=options).get_add_actions())
    except (DeltaError, OSError):
        return False
    live = set(listing["path"].to_pylist())
    return bool(first) and all(file.path in live for file in first)


class DeltaStore:
    """A handle on the Delta table of a log.

    Parameters
    ----------
    path : str
        As `spark_timely.log.storage.normal_path` gives it.
    storage_options : mapping, optional
        Passed on to delta-rs.
    monotonic : callable
        Clock in seconds that never goes back.

    Raises
    ------
    LogMissingError
        If there is no table, or one that is no log.
    LogFormatError
        If the log is of a newer version, or uses table features that cannot be read.
    StorageError
        If the storage cannot be reached.
    """

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.options = dict(storage_options or {}) or None
        self._storage = open_storage(path, storage_options)
        self._monotonic = monotonic
        self._table = self._open()
        self._refreshed_at = monotonic()
        self._tidied_at = self._table.version()
        self._listing: tuple[int, pa.Table] | None = None
        self._read_table()

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
        return str(self._known[2].get("delta.appendOnly", "false")).lower() == "true"

    @property
    def version(self) -> int:
        """Table version of the snapshot."""
        return self._version

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

    def _read_table(self) -> None:
        """Read what is fixed for a snapshot: schema, format, features."""
        table = self._table
        self._version = table.version()
        protocol = table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        refused = sorted({_REFUSED_FEATURES[f] for f in features if f in _REFUSED_FEATURES})
        metadata = table.metadata()
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            refused.append("column mapping")
        if refused:
            raise self._features(", ".join(dict.fromkeys(refused)))
        self._has_vectors = "deletionVectors" in features
        known = set(protocol.writer_features or ()) <= _WRITTEN_FEATURES
        self._writable = known and protocol.min_writer_version in (1, 2, 3, 4, 5, 7)
        self._id = str(metadata.id)
        self._schema = table.schema()
        self._known = self._fixed()
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
        self._refuse_vectors()

    def _fixed(self) -> tuple[str, tuple[str | int | None, ...], dict[str, str]]:
        """Return what decides how the table is to be read and written; microseconds."""
        table = self._table
        protocol = table.protocol()
        readers, writers = protocol.reader_features or (), protocol.writer_features or ()
        features = (protocol.min_writer_version, *readers, None, *writers)
        return table.schema().to_json(), tuple(features), dict(table.metadata().configuration)

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
            self._table.optimize.compact(partition_filters=[("_event", "=", "none")])
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

    def _refuse_vectors(self) -> None:
        if not self._has_vectors:
            return
        vectors = pa.table(self._table.deletion_vectors())
        if vectors.num_rows:
            msg = f"could not open log {self.path!r}: found deletion vectors on {vectors.num_rows} files"
            raise LogFormatError(
                msg,
                hint="purge them: REORG TABLE … APPLY (PURGE), and set delta.enableDeletionVectors=false",
                context={"path": self.path},
            )

    def refresh(self, *, force: bool = False) -> bool:
        """Move the snapshot to the newest version; return whether it moved."""
        now = self._monotonic()
        if not force and now - self._refreshed_at < _TRUST_S and not self.has_next():
            return False
        before = self._version
        try:
            self._table.update_incremental()
        except (DeltaError, OSError):
            # The handle fell behind what is left of the table's log, or the table is gone: look anew.
            self._table = self._open()
            self._listing = None
        self._refreshed_at = now
        if self._table.version() == before:
            return False
        if str(self._table.metadata().id) != self._id:
            msg = f"could not read log {self.path!r}: found another table in its place"
            raise LogMissingError(
                msg, hint="the log was deleted and made anew; open it again", context={"path": self.path}
            )
        if self._fixed() != self._known or self._has_vectors:
            self._read_table()
        self._version = self._table.version()
        return True

    def has_next(self) -> bool:
        """Return whether the version after the snapshot's is there: one look at one file."""
        return self._storage.exists(f"_delta_log/{self._version + 1:020d}.json")

    def has_later(self) -> bool:
        """Return whether there is a later version, however far behind the snapshot is.

        The version after the snapshot's may have been tidied away; then there is a later checkpoint. One
        look at one file more than `has_next`.
        """
        return self.has_next() or self._checkpoint() > self._version

    def _checkpoint(self) -> int:
        """Return the version of the newest checkpoint, -1 where none can be told."""
        try:
            last = json.loads(self._storage.read("_delta_log/_last_checkpoint").to_pybytes())
            return int(last["version"])
        except (StorageError, ValueError, KeyError, TypeError):
            return -1

    def listing(self) -> pa.Table:
        """Return the live files of the snapshot."""
        if self._listing is None or self._listing[0] != self._version:
            self._listing = (self._version, pa.table(self._table.get_add_actions()))
        return self._listing[1]

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
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [_add(file, data_change=data_change) for file in adds]
        actions += [RemoveAction(f.path, data_change, now, f.size_bytes, {"_event": f.event}) for f in removes]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._schema,
                ["_event"],
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(app, number) for app, number in apps],
                    max_commit_retries=0 if exclusive else _COMMIT_RETRIES,
                ),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
            )
        except CommitFailedError as error:
            if _is_unwritable(str(error)):  # found before anything is written
                raise self._unwritable(str(error)) from error
            if links_missing(error):
                raise _no_links(self.path, error) from error
            msg = f"could not commit to log {self.path!r} at version={self._version}: found {plain(error)}"
            raise LostRaceError(
                msg,
                hint="refresh and decide anew",
                context={"path": self.path},
                determinate=False,
            ) from error
        except (DeltaError, OSError) as error:
            if links_missing(error):
                raise _no_links(self.path, error) from error
            msg = f"could not commit to log {self.path!r} at version={self._version}: found {plain(error)}"
            raise StorageError(
                msg,
                hint="read the log to see whether it happened, then try again",
                context={"path": self.path},
                determinate=False,
            ) from error
        finally:
            self._refreshed_at = float("-inf")

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns, in a commit from the snapshot."""
        try:
            self._table.alter.add_columns(
                list(Schema.from_arrow(columns).fields),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
            )
        except CommitFailedError as error:
            if _is_unwritable(str(error)):
                raise self._unwritable(str(error)) from error
            msg = f"could not add columns to log {self.path!r} at version={self._version}: found {plain(error)}"
            raise LostRaceError(
                msg,
                hint="refresh and decide anew",
                context={"path": self.path},
                determinate=False,
            ) from error
        except (DeltaError, OSError) as error:
            msg = f"could not add columns to log {self.path!r} at version={self._version}: found {plain(error)}"
            raise StorageError(
                msg,
                hint="read the log to see whether it happened, then try again",
                context={"path": self.path},
                determinate=False,
            ) from error
        finally:
            self._refreshed_at = float("-inf")

    def tidy(self) -> None:
        """Delete entries of the table's log far behind its newest checkpoint, by count."""
        if self._version - self._tidied_at < _TIDY_VERSIONS:
            return
        self._tidied_at = self._version
        checkpoint = self._checkpoint()
        if checkpoint < 0:
            return
        names = self._storage.names("_delta_log")
        if f"{checkpoint:020d}.checkpoint.parquet" not in names:
            return
        limit = checkpoint - _KEEP_VERSIONS
        for name in names:  # at most a few hundred, because this is done regularly
            match = _LOG_FILE.fullmatch(name)
            if match and int(match[1]) < limit:
                try:
                    self._storage.delete(f"_delta_log/{name}")
                except StorageError as error:
                    logger.warning("log %r: an old entry of its table log stays: %s", self.path, error)
                    return


def _add(file: DataFile, *, data_change: bool) -> AddAction:
    return AddAction(
        file.path, file.size_bytes, {"_event": file.event}, int(time.time() * 1000), data_change, file.stats
    )


def _is_unwritable(text: str) -> bool:
    low = text.lower()
    return "table features" in low or "unsupported" in low


def _is_feature_error(text: str) -> bool:
    low = text.lower()
    return "feature" in low or "unsupported" in low or "column mapping" in low
