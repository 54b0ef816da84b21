"""Create the Delta table of a log: the entry is what delta-rs writes; on a local disk it is put and flushed here."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import TYPE_CHECKING, Literal

from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from spark_timely.errors import StorageError, TimelyError
from spark_timely.log.store.delta_calls import DeltaTable, delta_call
from spark_timely.log.store.entries import entry_path, put_entry, read_entry, signed
from spark_timely.log.store.scratch import CHECKPOINT, SCRATCH_OPTIONS, scratch_table
from spark_timely.log.store.storage import plain
from spark_timely.log.store.storage_options import PROMISE_HINT, delta_options, is_promised, links_missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.log.base import DataFile
    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import FileStorage

__all__ = ["NO_LINKS", "Creation", "add_action", "create_table", "no_links"]

Creation = Literal["made", "taken", "unclear"]
"""Which attempt made the table that is there: this one, surely another one, or one of them."""

# What a file system without hard links says.
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})

# VACUUM without a number takes what nobody knows and is older than the retention of deleted files, also
# what a micro-batch under way has written. Each removed file stays that long in the checkpoints;
# ARCHITECTURE.md tells what that costs.
_CONFIGURATION = {
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}


def create_table(
    storage: FileStorage, form: LogFormat, first: Sequence[DataFile], storage_options: Mapping[str, str] | None = None
) -> Creation:
    """Create the table of a log with its first files, in one commit, unless there is one.

    Parameters
    ----------
    storage : FileStorage
        Where.
    form : LogFormat
    first : sequence of DataFile
        Written and flushed.
    storage_options : mapping, optional

    Returns
    -------
    Creation
        Whether this attempt made the table, surely another one did, or one of them.

    Raises
    ------
    StorageError
        If that could not be done. Unless `determinate`, it may have been done.
    """
    if storage.local and not is_promised(storage_options):
        return _put(storage, form, first)
    path, options = storage.uri, delta_options(storage_options)
    try:
        _create(path, form, first, options)
    except (DeltaError, OSError) as error:
        if links_missing(error):
            raise no_links(path, error) from error
        # Which kind of error tells that somebody was first differs by back end and by timing.
        if _exists(path, options):
            return _created_by(storage, first)
        raise _failed(path, error, determinate=False) from error
    storage.flush([entry_path(0)])
    return "made"


def _put(storage: FileStorage, form: LogFormat, first: Sequence[DataFile]) -> Creation:
    """Create the table on a local disk: by one entry that appears whole, and is flushed."""
    path = storage.uri
    try:
        content = _first_entry(path, form, first)
        os.makedirs(storage.full("_delta_log"), exist_ok=True)
        storage.flush_place()
    except (DeltaError, OSError) as error:
        raise _failed(path, error, determinate=True) from error
    try:
        made = put_entry(storage, 0, content)
    except OSError as error:
        if error.errno in NO_LINKS:
            raise no_links(path, error) from error
        raise _failed(path, error, determinate=False) from error
    if not made:
        return "taken"
    # Stopped for so long that another's table came, and its first entry was tidied away behind a checkpoint?
    return "unclear" if any(CHECKPOINT.fullmatch(name) for name in storage.names("_delta_log")) else "made"


def _first_entry(path: str, form: LogFormat, first: Sequence[DataFile]) -> bytes:
    with delta_call(path), scratch_table() as folder:
        _create(str(folder), form, first, SCRATCH_OPTIONS)
        actions = [json.loads(line) for line in (folder / entry_path(0)).read_text(encoding="utf-8").splitlines()]
    for action in actions:  # a few
        if "commitInfo" in action:
            action["commitInfo"].get("operationParameters", {})["location"] = path
    return signed("\n".join(map(json.dumps, actions)).encode(), 0)


def _failed(path: str, error: Exception, *, determinate: bool) -> StorageError:
    return StorageError(
        f"could not create log {path!r}: found {plain(error)}",
        hint="check the path and the permissions, then try again",
        context={"path": path},
        determinate=determinate,
    )


def _create(path: str, form: LogFormat, first: Sequence[DataFile], options: dict[str, str] | None) -> None:
    with delta_call(path):
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
        with delta_call(path):
            return bool(DeltaTable.is_deltatable(path, storage_options=options))
    except (DeltaError, OSError):
        return False


def _created_by(storage: FileStorage, first: Sequence[DataFile]) -> Creation:
    """Tell whose the table is that is there after an attempt that reported an error, by its first entry."""
    try:
        entry = read_entry(storage, 0)
    except (TimelyError, ValueError):
        return "unclear"
    if entry is None:  # tidied away since, behind a checkpoint
        return "unclear"
    named = {add["path"] for add in entry.adds}
    return "made" if first and all(file.path in named for file in first) else "taken"


def add_action(file: DataFile, *, data_change: bool) -> AddAction:
    """Return a file as delta-rs takes it."""
    return AddAction(
        file.path, file.size_bytes, {"_event": file.event}, int(time.time() * 1000), data_change, file.stats
    )
