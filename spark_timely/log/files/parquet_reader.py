"""Reads the Parquet files of a log, each in the columns and types that the log has now.

All reading of files goes through here: of whole files or row groups (`read_file`), of parts of large ones
(`read_parts`), of progress (`read_progress`). `spark_timely.log.reader` chooses the files and rows of an answer and
calls it, as merges, exports and the tasks of replays do.

What an older file lacks is null; a file whose bytes have changed is refused by name, as `DataLossError` or, of
progress, `LogDamagedError`. From an object store is fetched, in few requests, what will be read (`expect_columns`).
Needs pyarrow only, so Spark's tasks can use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_timely.errors import DataLossError, LogDamagedError, StorageError, shown
from spark_timely.log.files.format import in_schema
from spark_timely.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from spark_timely.log.store.storage import Storage

__all__ = [
    "BROKEN",
    "corrupt",
    "expect_columns",
    "open_parquet",
    "read_file",
    "read_parts",
    "read_progress",
    "side_by_side",
]

R = TypeVar("R")

BROKEN: Final = (pa.ArrowException, OSError, UnicodeDecodeError, IndexError)
"""What reading a file raises whose bytes have changed: in pages, or in the names and types at its end."""

_READERS = 16  # at once
_ALONE_BYTES = 1 << 20  # up to this one thread decodes a file: about 5 ms


def open_parquet(storage: Storage, path: str) -> pq.ParquetFile:
    """Open a Parquet file of a log for reading; close it after use.

    Raises
    ------
    DataLossError
        If it is missing, or no Parquet file.
    """
    return _parquet(storage.open_input(path), storage.uri, path)


def _parquet(
    source: pa.NativeFile,
    uri: str,
    path: str,
    broken: Callable[[str, str, Exception], StorageError] | None = None,
    *,
    dictionaries: list[str] | None = None,
) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(
            source,
            coerce_int96_timestamp_unit="us",
            pre_buffer=False,
            page_checksum_verification=True,
            read_dictionary=dictionaries,
        )
    except BROKEN as error:
        source.close()
        raise (broken or corrupt)(uri, path, error) from error


def expect_columns(
    source: pa.NativeFile,
    metadata: pq.FileMetaData,
    row_groups: Sequence[int],
    columns: Collection[str],
    *,
    at_once: bool = False,
) -> None:
    """Tell a file of an object store what will be read of it, so that it is fetched in few requests.

    Parameters
    ----------
    source : pyarrow.NativeFile
        As `Storage.open_input` gives it. Nothing happens with one of a local disk.
    metadata : pyarrow.parquet.FileMetaData
        Of the file.
    row_groups : sequence of int
        In the order of reading.
    columns : collection of str
        Of the top level.
    at_once : bool
        Whether all that is read is held in memory anyway.
    """
    expect = getattr(source, "expect", None)
    if expect is None or not row_groups:
        return
    leaves = [metadata.schema.column(i).path.partition(".")[0] for i in range(metadata.num_columns)]
    places = [i for i, name in enumerate(leaves) if name in columns]
    ranges = []
    for group in row_groups:
        for i in places:
            chunk = metadata.row_group(group).column(i)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            ranges.append((start, start + chunk.total_compressed_size))
    expect(ranges, at_once=at_once)


def corrupt(uri: str, path: str, error: Exception) -> DataLossError:
    """Return the error for a file that cannot be read as Parquet."""
    return DataLossError(
        f"could not read file {path!r} of log {uri!r}: found no valid Parquet: {shown(str(error))}",
        hint="restore the file; it was cut off or overwritten",
        context={"file": path, "path": uri},
    )


def read_file(
    storage: Storage,
    path: str,
    schema: pa.Schema,
    row_groups: Sequence[int] | None = None,
    *,
    check: Callable[[pa.Schema], None] | None = None,
    broken: Callable[[str, str, Exception], StorageError] | None = None,
) -> pa.Table:
    """Read a file, or some of its row groups, in a schema; columns that it has not are null, others are left out.

    Parameters
    ----------
    storage : Storage
    path : str
    schema : pyarrow.Schema
    row_groups : sequence of int, optional
    check : callable, optional
        Is given the schema of the file before any row is read, and may raise.
    broken : callable, optional
        Makes the error for a file that is corrupt; `corrupt` unless given.

    Raises
    ------
    DataLossError
        If it is missing or corrupt.
    """
    source = storage.open_input(path)
    with _parquet(source, storage.uri, path, broken) as file:
        try:
            found = file.schema_arrow
            if check is not None:
                check(found)
            present = set(found.names)
            names = [n for n in schema.names if n in present]
            wanted = range(file.metadata.num_row_groups) if row_groups is None else row_groups
            expect_columns(source, file.metadata, wanted, set(names), at_once=True)
            # Handing columns to other threads takes longer than to decode what is small.
            large = sum(file.metadata.row_group(group).total_byte_size for group in wanted) > _ALONE_BYTES
            if row_groups is None:
                table = file.read(columns=names, use_threads=large)
            else:
                table = file.read_row_groups(list(row_groups), columns=names, use_threads=large)
        except BROKEN as error:
            raise (broken or corrupt)(storage.uri, path, error) from error
    return in_schema(table, schema)


def read_parts(storage: Storage, path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read some columns of a file row group by row group, the stream's names as codes.

    Parameters
    ----------
    storage : Storage
    path : str
    schema : pyarrow.Schema
        With `_stream`.

    Raises
    ------
    DataLossError
        If it is missing or corrupt.
    """
    others = pa.schema([field for field in schema if field.name != "_stream"])
    source = storage.open_input(path)
    with _parquet(source, storage.uri, path, dictionaries=["_stream"]) as file:
        try:
            present = set(file.schema_arrow.names)
            names = [name for name in schema.names if name in present]
            groups = range(file.metadata.num_row_groups)
            expect_columns(source, file.metadata, groups, set(names))
            for group in groups:
                alone = _only_text(file.metadata.row_group(group), "_stream")
                wanted = [name for name in names if alone is None or name != "_stream"]
                rows = file.read_row_group(group, columns=wanted, use_threads=False)
                streams: pa.Array | pa.ChunkedArray = pa.nulls(rows.num_rows, pa.string())
                if alone is not None:
                    codes = pa.array(np.zeros(rows.num_rows, np.int32))
                    streams = pa.DictionaryArray.from_arrays(codes, pa.array([alone], pa.string()))
                elif "_stream" in present:
                    streams = rows["_stream"]
                yield in_schema(rows, others).append_column("_stream", streams)
        except BROKEN as error:
            raise corrupt(storage.uri, path, error) from error


def _only_text(group: pq.RowGroupMetaData, name: str) -> str | None:
    """Return the text that all rows of a row group have in a column, if its statistics tell."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == name:
            said = column.statistics
            # A bound that was cut is raised, and equals the other one no more.
            exact = said is not None and said.has_min_max and said.null_count == 0 and said.min == said.max
            return str(said.min) if exact else None
    return None


def read_progress(storage: Storage, path: str, schema: pa.Schema) -> pa.Table:
    """Read a file of progress, or of what the log remembers, in the log's progress schema.

    Parameters
    ----------
    storage : Storage
    path : str
    schema : pyarrow.Schema

    Raises
    ------
    DataLossError
        If it is missing.
    LogDamagedError
        If it is corrupt, a text in it is none, or rows have no stream or number: bytes of the file have changed.

    Notes
    -----
    Cost: one pass over the texts, beside the reading.
    """
    table = read_file(storage, path, schema, broken=_broken_progress)
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _damaged(storage.uri, path, shown(str(error))) from error
    for name in ("_stream", "_seq"):
        if table[name].null_count:
            raise _damaged(storage.uri, path, f"no {name} in {table[name].null_count} rows")
    return table


def _broken_progress(uri: str, path: str, error: Exception) -> StorageError:
    return _damaged(uri, path, f"no valid Parquet: {shown(str(error))}")


def _damaged(uri: str, path: str, found: str) -> LogDamagedError:
    return LogDamagedError(
        f"could not read progress of log {uri!r}: found file {path!r} damaged: {found}",
        hint="restore the file from a copy of the log: bytes of it have changed",
        context={"file": path, "path": uri},
        determinate=True,
    )


def side_by_side(storage: Storage, read: Callable[[str], R], paths: Sequence[str]) -> list[R]:
    """Read several files; at once where each is a journey.

    Parameters
    ----------
    storage : Storage
        That the files are in.
    read : callable
        Reads one, in any thread.
    paths : sequence of str

    Examples
    --------
    >>> from spark_timely.log.store.storage import MemoryStorage
    >>> side_by_side(MemoryStorage(), len, ["a", "bc"])
    [1, 2]
    """
    if storage.local or len(paths) < 2:
        return [read(path) for path in paths]
    return at_once(read, paths, _READERS)
