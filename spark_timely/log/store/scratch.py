"""Scratch folder for delta-rs: what it writes is made there, and enters the table's log flushed and in order.

`delta` creates and opens tables so, and `checkpoints` writes checkpoints (`put_checkpoint`).

delta-rs 1.6 writes a checkpoint and then the file that points to it, both without a flush, and cannot open a table
whose pointer names a checkpoint that is not there. An entry that it writes may be left empty by a power cut, and
counts as a commit then. So on a local disk it works in a folder of its own, on links to the entries of the log, and
what it made is put into the log by `TableStorage.put`: whole, flushed, and in the right order.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import weakref
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import PostCommitHookProperties

from spark_timely.log.store.delta_calls import DeltaTable, delta_call
from spark_timely.log.store.entries import check_whole, entry_path
from spark_timely.log.store.storage import OtherPlaceError
from spark_timely.log.store.urls import client_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from deltalake.table import TableAlterer

    from spark_timely.log.store.storage import TableStorage


LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")
# Nobody else writes there, and it may be a place without hard links.
SCRATCH_OPTIONS = {"allow_unsafe_rename": "true"}
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# Checkpoints with a name of their own, whose further files lie elsewhere.
_OF_OTHER_KIND = re.compile(r"\d{20}\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
_OF_LOG = re.compile(r"(\d{20})\.(?:json|checkpoint(?:\.\d{10}\.\d{10})?\.parquet)")


@contextmanager
def scratch_table() -> Iterator[Path]:
    """Give an empty folder for a table that nobody else sees; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="spark-timely-") as folder:
        yield Path(folder)


def mirrored_table(storage: TableStorage) -> MirroredTable:
    """Open the newest version of a table by delta-rs, from copies of what its log needs for that.

    Parameters
    ----------
    storage : TableStorage
        Of the table, where each look is a journey.

    Raises
    ------
    DeltaError, OSError
        If it cannot be opened so: there is none, it is damaged, or it moved meanwhile.
    StorageError
        If the storage cannot be reached.

    Notes
    -----
    Cost: a look at the pointer to the newest checkpoint, a list of what is behind it, and one request for each of
    these, side by side.
    """
    pointer = storage.find(LAST_CHECKPOINT)
    try:
        last = json.loads(pointer or b"{}")
        newest, size = int(last.get("version", 0)), int(last.get("size", 0))
    except (ValueError, AttributeError, TypeError):
        newest, size = 0, 0  # counts as none for delta-rs too
    names = storage.names("_delta_log", after=f"{newest:020d}" if newest else "")
    of_log = [name for name in names if (found := _OF_LOG.fullmatch(name)) and int(found[1]) >= newest]
    if any(_OF_OTHER_KIND.fullmatch(name) for name in names):
        return MirroredTable(storage.full(""), storage_options=client_options(storage.full(""), storage.options))
    where = Path(tempfile.mkdtemp(prefix="spark-timely-"))
    clean = partial(shutil.rmtree, where, ignore_errors=True)
    try:
        (where / "_delta_log").mkdir()
        storage.copy_to([f"_delta_log/{name}" for name in of_log], str(where))
        if pointer is not None:
            (where / LAST_CHECKPOINT).write_bytes(pointer)
        _check_entries(where, of_log)
        table = MirroredTable(where, storage_options=SCRATCH_OPTIONS)
    except BaseException:
        clean()
        raise
    weakref.finalize(table, clean)
    table.checkpoint = (newest, size)
    return table


def _check_entries(where: Path, names: Iterable[str]) -> None:
    """Refuse entries that delta-rs takes for commits although they are empty, lack lines, or are others' copies."""
    for name in names:
        if name.endswith(".json"):
            try:
                check_whole((where / "_delta_log" / name).read_bytes(), int(name[:20]))
            except ValueError as error:
                msg = f"entry {name!r} of the table's log: {error}"
                raise OSError(msg) from error


class MirroredTable(DeltaTable):
    """A handle of delta-rs on copies, which go with it.

    Attributes
    ----------
    checkpoint : tuple of int, int, or None
        Version and size of the newest checkpoint that the table's log points to; None where that was not looked for.
    """

    checkpoint: tuple[int, int] | None = None


def put_checkpoint(storage: TableStorage, version: int, newest: int) -> int:
    """Write a checkpoint of a version of a table, then the pointer to it; both are flushed.

    Parameters
    ----------
    storage : TableStorage
        Of the table, which has features that need nothing beside a checkpoint of one file.
    version : int
        Of which a checkpoint is wanted.
    newest : int
        Version of the newest checkpoint, 0 if there is none.

    Returns
    -------
    int
        Number of rows in the checkpoint.

    Raises
    ------
    DeltaError, OSError, StorageError
        If that could not be done. The table is as before, or has a checkpoint that nothing points to.
    """
    name, entry = (f"_delta_log/{version:020d}.{kind}" for kind in ("checkpoint.parquet", "json"))
    mark = storage.mark(entry) if storage.local else None
    # Another table may be in the place by the time it is made.
    beside = None if mark is None else {entry: mark}
    # Where another process has just put it, or died before it put the pointer, delta-rs would write neither.
    there = {name.rpartition("/")[2]}
    with table_at(storage, newest, version, without=there) as (table, folder):
        with delta_call(storage.uri):
            table.create_checkpoint()
        made, pointer = (folder / name).read_bytes(), (folder / LAST_CHECKPOINT).read_bytes()
    try:
        storage.put(name, made, replace=True, always=True, beside=beside)
        # Only now: a table whose pointer names a checkpoint that is not there cannot be opened.
        storage.put(LAST_CHECKPOINT, pointer, replace=True, always=True, beside=beside and {**beside, name: None})
    except OtherPlaceError as error:
        raise OSError(str(error)) from error
    if not storage.exists(name):
        # Stopped for so long that it was tidied away as an old one; without a pointer the folder is listed.
        storage.delete(LAST_CHECKPOINT)
        msg = f"the checkpoint of version {version} tidied away meanwhile"
        raise OSError(msg)
    return int(json.loads(pointer).get("size", 0))


@contextmanager
def table_at(
    storage: TableStorage, first: int, last: int, *, without: Collection[str] = ()
) -> Iterator[tuple[DeltaTable, Path]]:
    """Open a table as of a version, by links to its entries or copies, in a folder that is removed afterwards.

    Parameters
    ----------
    storage : TableStorage
        Of the table.
    first, last : int
        Versions to be linked: from the checkpoint to begin with, 0 if there is none, to the version wanted.
    without : collection of str
        Names of files that are broken.

    Raises
    ------
    DeltaError, OSError
        If the table cannot be opened so.
    """
    with scratch_table() as folder:
        (folder / "_delta_log").mkdir()
        entries = [name for name in _of_log(storage, first, last) if name not in without]  # some hundreds
        storage.copy_to([f"_delta_log/{name}" for name in entries], str(folder))
        table = DeltaTable(folder, storage_options=SCRATCH_OPTIONS)
        if table.version() != last:
            msg = f"version {table.version()} where {last} was wanted"
            raise OSError(msg)
        yield table, folder


def _of_log(storage: TableStorage, first: int, last: int) -> Iterable[str]:
    for name in storage.names("_delta_log", after=f"{first:020d}" if first else ""):
        match = _OF_LOG.fullmatch(name)
        if match and first <= int(match[1]) <= last:
            yield name


def metadata_action(table: DeltaTable) -> dict[str, Any]:
    """Return the `metaData` action that says what a table is, as of the handle's version."""
    metadata = table.metadata()
    return {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": list(metadata.partition_columns),
        "createdTime": metadata.created_time,
        "configuration": dict(metadata.configuration),
    }


def entry_of_change(table: DeltaTable, change: Callable[[TableAlterer], None]) -> bytes:
    """Return the entry by which delta-rs changes the columns of a table, or what is said of them.

    Parameters
    ----------
    table : DeltaTable
        Its newest version. Not changed.
    change : callable
        What to do.

    Raises
    ------
    DeltaError
        If it cannot do it.
    """
    protocol = table.protocol()
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    actions = [
        {
            "protocol": {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                **{name: found for name, found in features.items() if found is not None},
            }
        },
        {"metaData": metadata_action(table)},
    ]
    with scratch_table() as folder:
        (folder / "_delta_log").mkdir()
        (folder / entry_path(0)).write_text("\n".join(map(json.dumps, actions)) + "\n", encoding="utf-8")
        copy = DeltaTable(folder, storage_options=SCRATCH_OPTIONS)
        with delta_call(folder):
            change(copy.alter)
        return (folder / entry_path(1)).read_bytes()
