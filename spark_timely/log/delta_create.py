"""Create the Delta table of a log, through delta-rs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from spark_timely.errors import StorageError
from spark_timely.log.place import PROMISE_HINT, links_missing
from spark_timely.log.storage import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.log.base import DataFile
    from spark_timely.log.format import LogFormat

__all__ = ["add_action", "create_table", "no_links"]

# VACUUM without a number takes what nobody knows and is older than the retention of deleted files, also
# what a micro-batch under way has written. Each removed file stays that long in the checkpoints;
# ARCHITECTURE.md tells what that costs.
_CONFIGURATION = {
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}


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
            [add_action(file, data_change=True) for file in first],
            mode="error",
            partition_by=["_event"],
            configuration=_CONFIGURATION,
            storage_options=options,
            # No retries: where somebody else was first, delta-rs 1.6 would retry as version 1, and succeed.
            commit_properties=CommitProperties(app_transactions=[Transaction("timely/#open", 0)], max_commit_retries=0),
        )
    except (DeltaError, OSError) as error:
        if links_missing(error):
            raise no_links(path, error) from error
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


def no_links(path: str, error: Exception) -> StorageError:
    """Return the error for a file system without hard links, on which nothing was committed."""
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


def add_action(file: DataFile, *, data_change: bool) -> AddAction:
    """Return a file as delta-rs takes it."""
    return AddAction(
        file.path, file.size_bytes, {"_event": file.event}, int(time.time() * 1000), data_change, file.stats
    )
