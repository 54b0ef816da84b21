"""What delta-rs writes into a table's log, made aside first: it flushes nothing, and orders nothing for a power cut.

delta-rs 1.6 writes a checkpoint and then the file that points to it, both without a flush, and cannot open a table
whose pointer names a checkpoint that is not there. An entry that it writes may be left empty by a power cut, and
counts as a commit then. So on a local disk it works in a folder of its own, on links to the entries of the log, and
what it made is put into the log by `put_file`: whole, flushed, and in the right order.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import PostCommitHookProperties, Schema

from spark_timely.log.store.delta_calls import DeltaTable, delta_call
from spark_timely.log.store.entries import entry_path, put_file
from spark_timely.log.store.storage import FileStorage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")
# Nobody else writes there, and it may be a place without hard links.
SCRATCH_OPTIONS = {"allow_unsafe_rename": "true"}
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_OF_LOG = re.compile(r"(\d{20})\.(?:json|checkpoint(?:\.\d{10}\.\d{10})?\.parquet)")


@contextmanager
def scratch_table() -> Iterator[Path]:
    """Give an empty folder for a table that nobody else sees; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="spark-timely-") as folder:
        yield Path(folder)


def put_checkpoint(storage: FileStorage, version: int, newest: int) -> int:
    """Write a checkpoint of a version of a table on a local disk, then the pointer to it; both are flushed.

    Parameters
    ----------
    storage : FileStorage
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
    name = f"_delta_log/{version:020d}.checkpoint.parquet"
    with table_at(storage, newest, version) as (table, folder):
        with delta_call(storage.uri):
            table.create_checkpoint()
        made, pointer = (folder / name).read_bytes(), (folder / LAST_CHECKPOINT).read_bytes()
    put_file(storage, name, made, replace=True, always=True)
    # Only now: a table whose pointer names a checkpoint that is not there cannot be opened.
    put_file(storage, LAST_CHECKPOINT, pointer, replace=True, always=True)
    if not storage.exists(name):
        # Stopped for so long that it was tidied away as an old one; without a pointer the folder is listed.
        storage.delete(LAST_CHECKPOINT)
        msg = f"the checkpoint of version {version} tidied away meanwhile"
        raise OSError(msg)
    return int(json.loads(pointer).get("size", 0))


@contextmanager
def table_at(
    storage: FileStorage, first: int, last: int, *, without: Collection[str] = ()
) -> Iterator[tuple[DeltaTable, Path]]:
    """Open a table on a local disk as of a version, by links to its entries in a folder that is removed afterwards.

    Parameters
    ----------
    storage : FileStorage
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
        for entry in _of_log(storage, first, last):  # some hundreds
            if entry in without:
                continue
            os.symlink(storage.full(f"_delta_log/{entry}"), folder / "_delta_log" / entry)
        table = DeltaTable(folder, storage_options=SCRATCH_OPTIONS)
        if table.version() != last:
            msg = f"version {table.version()} where {last} was wanted"
            raise OSError(msg)
        yield table, folder


def _of_log(storage: FileStorage, first: int, last: int) -> Iterable[str]:
    for name in storage.names("_delta_log"):
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


def entry_of_columns(table: DeltaTable, columns: pa.Schema) -> bytes:
    """Return the entry by which delta-rs adds columns to a table.

    Parameters
    ----------
    table : DeltaTable
        Its newest version. Not changed.
    columns : pyarrow.Schema

    Raises
    ------
    DeltaError
        If it cannot add them.
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
        copy, fields = DeltaTable(folder, storage_options=SCRATCH_OPTIONS), list(Schema.from_arrow(columns).fields)
        with delta_call(folder):
            copy.alter.add_columns(fields, post_commithook_properties=NO_HOOKS)
        return (folder / entry_path(1)).read_bytes()
