"""Write, describe and read the Parquet files of a log. Needs pyarrow only, so Spark's tasks can use it.

A file is read by each micro-batch whose range reaches into the file's bounds. In a trickle nearly all rows of a commit
are close together in time and a few are stragglers, from anywhere within the lateness: in one file with them, all rows
would be read again for as long as the late ones are open. So stragglers get files of their own (`narrow_cuts`).
Encodings are chosen by looking at a sample of the rows (`dictionary_columns`).

Invariants
----------
1. Rows of a file are ordered by time; above 128k rows, 16k in a log with a key, a row group ends at a boundary between
   two times wherever one is near enough.
2. The footer of a file tells its distinct times and how many rows each has, up to 10,000 of them.
3. A file has the columns of the log's format in their types; `_event` is not inside.
4. A bound that is written into the table's log is true; where one is not surely true (floats with NaN, strings of the
   payload, decimals) none is written.
5. Bounds of timestamps are written in microseconds; those that other engines write may be cut to milliseconds, so a
   reader counts a maximum of whole milliseconds as one millisecond more.
"""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import secrets
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_timely.canonical.content import OF_COMMIT, digest_of_messages, is_worth_it
from spark_timely.errors import (
    DataLossError,
    InvalidShapeError,
    InvalidUsageError,
    LogDamagedError,
    SchemaMismatchError,
    StorageError,
    shown,
)
from spark_timely.log.files.format import in_schema
from spark_timely.log.machine.state import OPEN_STREAM, DataFile
from spark_timely.log.store.storage import not_written
from spark_timely.threads import at_once
from spark_timely.time.arrays import IntArray, as_times, is_sorted, lexsort, minimal, unique_times
from spark_timely.time.domain import TimeDomain
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage


R = TypeVar("R")

ROW_GROUP_ROWS = 128 * 1024
# Of a log with a key: what is read to find one.
_KEYED_ROW_GROUP_ROWS = 16 * 1024
TARGET_FILE_BYTES = 128 * 1024 * 1024
CODECS = ("zstd", "snappy", "gzip", "brotli", "lz4", "none")
# About how much smaller rows are in a file than in memory.
_COMPRESSION = 3
_READERS = 16  # at once
_ALONE_BYTES = 1 << 20  # up to this one thread decodes a file: about 5 ms
# A stream name cannot contain a dot, and '#' would have to be escaped in the table's log.
_OPEN_FILE_STEM = "open."


def file_name(event: str, stream: str, seq: int, token: str | None = None, *, job: str = "") -> str:
    """Return the relative path of a new file of a commit.

    Examples
    --------
    >>> file_name("message", "main", 7, "ab12")
    '_event=message/main-000000000007-ab12.parquet'
    """
    return f"{_file_stem(event, stream, seq)}{job}{token or secrets.token_hex(8)}.parquet"


def _file_stem(event: str, stream: str, seq: int) -> str:
    stem = _OPEN_FILE_STEM if stream == OPEN_STREAM else stream
    return f"_event={event}/{stem}-{seq:012d}-"


def new_job() -> str:
    """Return a new name of a job, by which `files_of_job` finds what it wrote."""
    return secrets.token_hex(4)


def files_of_job(storage: Storage, stream: str, seq: int, job: str) -> list[str]:
    """Return the files of messages that tasks of a job wrote for a commit, whether or not anybody knows of them.

    Cost: a listing of the folder; in an object store from these names on.
    """
    folder, _, stem = f"{_file_stem('message', stream, seq)}{job}".partition("/")
    found = storage.names(folder, after=stem)
    return [f"{folder}/{name}" for name in found if name.startswith(stem)]


def message_table(
    form: LogFormat, payload: pa.Table, times: IntArray, stream: str, seq: int, diffs: object | None = None
) -> pa.Table:
    """Put our columns in front of payload rows.

    Parameters
    ----------
    form : LogFormat
    payload : pyarrow.Table
        In the log's payload schema (see `conform`).
    times : ndarray of int64, shape (n, k)
    stream, seq
        The commit that the rows belong to.
    diffs : array-like of int64, shape (n,), optional
        Multiplicities, for collections; 1 each if not given.

    Raises
    ------
    InvalidShapeError
        If lengths differ.
    """
    n = payload.num_rows
    times = as_times(times, form.domain.arity)
    if times.shape[0] != n:
        msg = f"could not write rows: found {times.shape[0]} times for {n} rows"
        raise InvalidShapeError(msg)
    columns: dict[str, Any] = {
        "_stream": pa.repeat(pa.scalar(stream, pa.string()), n),
        "_seq": pa.repeat(pa.scalar(seq, pa.int64()), n),
        **form.domain.to_columns(times),
    }
    if form.kind == "collection":
        columns["_diff"] = (
            pa.repeat(pa.scalar(1, pa.int64()), n) if diffs is None else pa.array(np.asarray(diffs, np.int64))
        )
    columns.update(zip(payload.schema.names, payload.columns, strict=True))
    return pa.table({name: columns[name] for name in form.data_columns})


def letter_table(
    form: LogFormat,
    payload: pa.Table,
    times: IntArray,
    stream: str,
    seq: int,
    diffs: object | None = None,
    *,
    reasons: str | pa.Array,
    at: int | None = None,
) -> pa.Table:
    """Put our columns around rows that are set apart: those of messages, the reason and the wall clock.

    Parameters
    ----------
    form, payload, times, stream, seq, diffs
        As in `message_table`. A letter has a time; one that came without stands at the log's minimum.
    reasons : str or pyarrow.Array
        Why: one for all, or one each.
    at : int, optional
        When that was decided, microseconds since the epoch, UTC; now unless given.
    """
    n = payload.num_rows
    clock = time.time_ns() // 1000 if at is None else at
    table = message_table(form, payload, times, stream, seq, diffs)
    table = table.append_column("_reason", pa.repeat(pa.scalar(reasons), n) if isinstance(reasons, str) else reasons)
    table = table.append_column("_at", pa.repeat(pa.scalar(clock, pa.timestamp("us", "UTC")), n))
    return table.select(form.dead_schema.names)


def check_codec(path: str, compression: object) -> None:
    """Refuse a codec that Parquet files of a log cannot have, before anything is written.

    Raises
    ------
    InvalidUsageError
    """
    if not isinstance(compression, str) or compression.lower() not in CODECS:
        msg = f"could not write to log {path!r}: found compression={compression!r}"
        raise InvalidUsageError(msg, hint=f"choose among {', '.join(CODECS)}")


def write_data_files(
    storage: Storage,
    table: pa.Table,
    times: IntArray,
    *,
    stream: str,
    seq: int,
    domain: TimeDomain,
    event: str = "message",
    target_file_size: int = TARGET_FILE_BYTES,
    compression: str = "zstd",
    row_group_rows: int | None = None,
    key: Sequence[str] = (),
    narrow: bool = True,
    begun: list[str] | None = None,
    job: str = "",
    digest_within: int | None = OF_COMMIT,
) -> list[DataFile]:
    """Write rows to as few files as the target size allows, ordered by time.

    Messages far from all others get files of their own, three at most: see `narrow_cuts`.

    Parameters
    ----------
    storage : Storage
    table : pyarrow.Table
        Columns as `message_table` gives them, or any others that the log has. Not modified.
    times : ndarray of int64, shape (n, k)
        Times of the rows; the time columns of `table` say the same.
    stream, seq
        The commit that the rows are meant for; part of the file names.
    domain : TimeDomain
    event : str
        `message` or `dead`.
    target_file_size : int
        Bytes after which a new file is begun, at the end of a row group.
    compression : str
        Codec of Parquet.
    row_group_rows : int, optional
        Rows above which a row group is cut; fewer where there is a key.
    key : sequence of str
        Columns by which rows of one time are ordered, null last; none: they stay in their order.
    narrow : bool
        Whether to keep files of messages narrow in time, at the price of some more.
    begun : list of str, optional
        Gets the path of each file before it is written: a write that fails does not say which there are.
    job : str
        From `new_job`: where the writer may not live to say which files there are.
    digest_within : int or None
        Up to how much work the digest of messages is computed: see `spark_timely.canonical.content`.

    Returns
    -------
    list of DataFile
        Empty for no rows. The files are flushed, and not part of the log yet.

    Raises
    ------
    StorageError
        If a file cannot be written; then none of them is needed.

    Notes
    -----
    Cost: one sort where the rows are not ordered by time already, one copy, one write.
    """
    if table.num_rows == 0:
        return []
    times = as_times(times, domain.arity)
    if row_group_rows is None:
        row_group_rows = _KEYED_ROW_GROUP_ROWS if key else ROW_GROUP_ROWS
    if key:
        by = [(name, "ascending") for name in (*domain.columns, *key)]
        ranks = pc.sort_indices(table, sort_keys=by)
        table, times = table.take(ranks), times[ranks.to_numpy()]
    elif not is_sorted(times):
        order = lexsort(times)
        table, times = table.take(order), times[order]
    digests = event == "message" and is_worth_it(table, digest_within)
    apart = narrow_cuts(times, table.nbytes // _COMPRESSION) if narrow and event == "message" else []
    written: list[DataFile] = []
    for first, stop in zip([0, *apart], [*apart, len(times)], strict=True):
        part, part_times = table.slice(first, stop - first), times[first:stop]
        cuts = _row_groups(part_times, row_group_rows)
        start = 0
        while start < len(cuts) - 1:
            path = file_name(event, stream, seq, job=job)
            if begun is not None:
                begun.append(path)
            try:
                file, start = _write_file(
                    storage,
                    path,
                    part,
                    part_times,
                    cuts,
                    start,
                    event,
                    domain,
                    target_file_size,
                    compression,
                    digests=digests,
                )
            except OSError as error:
                raise not_written(storage.uri, path, error) from error
            written.append(file)
    storage.flush(file.path for file in written)
    return written


def _write_file(
    storage: Storage,
    path: str,
    table: pa.Table,
    times: IntArray,
    cuts: Sequence[int],
    start: int,
    event: str,
    domain: TimeDomain,
    target_file_size: int,
    compression: str,
    *,
    digests: bool,
) -> tuple[DataFile, int]:
    """Write row groups from the one numbered `start` on; return the file and the next row group."""
    first = cuts[start]
    metadata_out: list[pq.FileMetaData] = []
    with storage.open_output(path) as sink:
        writer = pq.ParquetWriter(
            sink,
            table.schema,
            compression=compression,
            use_dictionary=dictionary_columns(table),
            store_schema=False,
            metadata_collector=metadata_out,
        )
        while start < len(cuts) - 1:
            low, high = cuts[start], cuts[start + 1]
            writer.write_table(table.slice(low, high - low), row_group_size=high - low)
            start += 1
            if sink.tell() >= target_file_size:
                break
        part = times[first : cuts[start]]
        distinct, counts = unique_times(part)
        packed = encode_counts(distinct, counts)
        if packed is not None:
            writer.add_key_value_metadata({COUNTS_KEY.decode(): packed.decode()})
        writer.close()
        size = sink.tell()
    lows, highs, nulls, _ = footer_stats(metadata_out[0], table.schema, domain)
    described = DataFile(
        path=path,
        size_bytes=size,
        n_rows=len(part),
        event=event,
        stats=stats_json(len(part), lows, highs, nulls),
        minima=minimal(distinct),
        bounds=np.stack([part.min(axis=0), part.max(axis=0)]),
        digest=digest_of_messages(table.slice(first, len(part))) if digests else None,
    )
    return described, start


def _row_groups(times: IntArray, row_group_rows: int) -> list[int]:
    """Return where row groups begin and end: at boundaries between times, where one is near enough."""
    n = times.shape[0]
    if n <= row_group_rows:
        return [0, n]
    changes = np.flatnonzero((times[1:] != times[:-1]).any(axis=1)) + 1
    cuts = [0]
    while n - cuts[-1] > row_group_rows:
        limit = cuts[-1] + row_group_rows
        at = int(np.searchsorted(changes, limit, side="right")) - 1
        best = int(changes[at]) if at >= 0 else 0
        cuts.append(best if best > cuts[-1] else limit)
    return [*cuts, n]


def write_progress_file(
    storage: Storage, rows: pa.Table, stream: str, seq: int, domain: TimeDomain, *, event: str = "progress"
) -> DataFile:
    """Write one progress batch, or the merged batches of one stream, to a small file, and flush it.

    Parameters
    ----------
    storage : Storage
    rows : pyarrow.Table
        In the log's progress schema, not empty, sorted by seq.
    stream, seq
        For the file name: the newest batch.
    domain : TimeDomain
    event : str
        `since` and `retain` for rows of that kind, which have the same columns.
    """
    sink = pa.BufferOutputStream()
    # A few rows are read whole: dictionaries, statistics and compression would only cost time. A byte that changes in
    # a number would give another frontier, so pages have checksums: at about 90 bytes a file, and no time that shows.
    few = rows.num_rows <= 16
    pq.write_table(
        rows,
        sink,
        compression="none" if few else "zstd",
        store_schema=False,
        use_dictionary=not few,
        write_statistics=not few,
        write_page_checksum=True,
    )
    content = sink.getvalue()
    path = file_name(event, stream, seq)
    storage.write(path, content)
    storage.flush([path])
    return describe_progress(path, content.size, rows, domain, event=event)


def describe_progress(
    path: str, size_bytes: int, rows: pa.Table, domain: TimeDomain, *, event: str = "progress"
) -> DataFile:
    """Describe a file of progress by its rows, in the log's progress schema and not empty."""
    times = domain.from_columns(rows)
    streams, seqs = rows.column("_stream"), rows.column("_seq").to_numpy()
    span = pc.min_max(streams).as_py()
    low, high = times.min(axis=0), times.max(axis=0)
    lows: dict[str, object] = {"_stream": span["min"], "_seq": int(seqs.min())}
    highs: dict[str, object] = {"_stream": span["max"], "_seq": int(seqs.max())}
    for name, type_, least, greatest in zip(domain.columns, domain.types, low.tolist(), high.tolist(), strict=True):
        shown_low, shown_high = render(type_.arrow, least), render(type_.arrow, greatest)
        if shown_low is not None and shown_high is not None:
            lows[name], highs[name] = shown_low, shown_high
    return DataFile(
        path=path,
        size_bytes=size_bytes,
        n_rows=rows.num_rows,
        event=event,
        stats=stats_json(rows.num_rows, lows, highs, dict.fromkeys(lows, 0)),
        minima=minimal(times),
        bounds=np.stack([low, high]),
    )


def open_parquet(storage: Storage, path: str) -> pq.ParquetFile:
    """Open a Parquet file of a log for reading; close it after use.

    Raises
    ------
    DataLossError
        If it is missing, or no Parquet file.
    """
    return _parquet(storage.open_input(path), storage.uri, path)


BROKEN: Final = (pa.ArrowException, OSError, UnicodeDecodeError, IndexError)
"""What reading a file raises whose bytes have changed: in pages, or in the names and types at its end."""


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


def file_times(file: pq.ParquetFile) -> tuple[IntArray, npt.NDArray[np.int64]] | None:
    """Return the distinct times of a file and their row counts, if its footer tells them."""
    return decode_counts((file.metadata.metadata or {}).get(COUNTS_KEY))


def describe_file(storage: Storage, path: str, *, domain: TimeDomain, event: str = "message") -> DataFile:
    """Describe a Parquet file that another writer wrote, such as Spark, from its footer.

    Parameters
    ----------
    storage : Storage
    path : str
        Relative to the log.
    domain : TimeDomain
    event : str

    Raises
    ------
    DataLossError
        If it is missing or corrupt.
    SchemaMismatchError
        If it has no time columns.

    Notes
    -----
    Cost: one footer; where that does not tell the minimal times (k > 1, or no statistics), also the
    time columns.
    """
    with open_parquet(storage, path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        absent = [n for n in domain.columns if n not in schema.names]
        if absent:
            msg = f"could not describe file {path!r} of log {storage.uri!r}: found no column {absent[0]!r}"
            raise SchemaMismatchError(
                msg,
                hint="write the log's time columns into each file of messages",
            )
        lows, highs, nulls, bounds = footer_stats(metadata, schema, domain)
        exact = file_times(file)
        minima: IntArray
        if metadata.num_rows == 0:
            minima = np.empty((0, domain.arity), np.int64)
        elif exact is not None:
            minima = minimal(exact[0])
        elif domain.arity == 1 and bounds is not None:
            minima = bounds[:1]
        else:
            times = domain.from_columns(file.read(columns=list(domain.columns)))
            minima = minimal(times)
            bounds = np.stack([times.min(axis=0), times.max(axis=0)])
    with storage.open_input(path) as source:
        size = source.size()
    return DataFile(
        path=path,
        size_bytes=size,
        n_rows=metadata.num_rows,
        event=event,
        stats=stats_json(metadata.num_rows, lows, highs, nulls),
        minima=minima,
        bounds=bounds if metadata.num_rows else None,
    )


MOST_PARTS = 4
# What a Parquet file of few rows weighs, whatever is in it.
_FILE_BYTES = 2048
# The first cut has to spare this share of what is read: rows spread evenly, or around one time, stay together.
# A further one has to spare a share of what is read of the part that it cuts, and of all that is read.
_FIRST_WORTH, _PART_WORTH, _WORTH = 0.4, 0.3, 0.15


def narrow_cuts(times: IntArray, size_bytes: int) -> list[int]:
    """Return where a new file ought to begin: at most three places, each between two times.

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
        In lexicographic order. Only the first coordinate decides.
    size_bytes : int
        About how large the rows are in a file.

    Returns
    -------
    list of int
        Ascending row numbers in (0, n).

    Notes
    -----
    A file is taken to be read once, and once more for each step of the frontier through its bounds: as
    many as its distinct times at most, and as many as its span is longer than that of the rows that lie
    densest. Cost: O(n).

    Examples
    --------
    >>> late = np.concatenate([[0, 20, 40], np.full(1000, 60)]).reshape(-1, 1)
    >>> narrow_cuts(late, 100_000), narrow_cuts(np.arange(1000).reshape(-1, 1), 100_000)
    ([3], [])
    """
    keys = times[:, 0].astype(np.float64)  # a span of int64 may not fit int64
    n = keys.shape[0]
    places = np.flatnonzero(times[1:, 0] != times[:-1, 0]) + 1
    if not places.size:
        return []
    half = (n + 1) // 2
    dense = max(2.0 * float((keys[half - 1 :] - keys[: n - half + 1]).min()), 1.0)
    costs = _Costs(keys, places, size_bytes / n, dense)
    cuts = [0, n]
    while len(cuts) <= MOST_PARTS:  # ends: each pass adds a cut
        parts = np.array(list(itertools.pairwise(cuts)))
        read = costs.of(parts[:, 0], parts[:, 1])
        best = [costs.best_cut(a, b) for a, b in parts.tolist()]
        own = _FIRST_WORTH if len(parts) == 1 else _PART_WORTH
        worth = np.maximum(own * read, _WORTH * read.sum())
        saved, place = max((found if found[0] > least else (0.0, 0)) for found, least in zip(best, worth, strict=True))
        if not saved:
            break
        cuts = sorted([*cuts, place])
    return cuts[1:-1]


class _Costs:
    """Bytes that a replay reads of a file of some of the rows."""

    def __init__(
        self, keys: npt.NDArray[np.float64], places: npt.NDArray[np.intp], row_bytes: float, dense: float
    ) -> None:
        self._keys = keys
        self._places = places
        self._row_bytes = row_bytes
        self._dense = dense

    def of(self, first: npt.NDArray[np.intp], stop: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Return the cost of files of the rows from `first` to `stop`."""
        steps = (self._keys[stop - 1] - self._keys[first]) / self._dense
        changes = np.searchsorted(self._places, stop, side="left") - np.searchsorted(self._places, first, side="right")
        cost: npt.NDArray[np.float64] = (_FILE_BYTES + self._row_bytes * (stop - first)) * (
            1 + np.minimum(steps, changes)
        )
        return cost

    def best_cut(self, first: int, stop: int) -> tuple[float, int]:
        """Return how much the best cut between two rows spares, and where it is."""
        low, high = np.searchsorted(self._places, first, side="right"), np.searchsorted(self._places, stop, side="left")
        places = self._places[low:high]
        if not places.size:
            return 0.0, 0
        ends = np.full_like(places, first), np.full_like(places, stop)
        costs = self.of(ends[0], places) + self.of(places, ends[1])
        best = int(np.argmin(costs))
        return float(self.of(ends[0][:1], ends[1][:1])[0] - costs[best]), int(places[best])


SAMPLE_ROWS = 32 * 1024
# This number of rows drawn from the sample mostly says enough: without doubles there, hardly any value repeats.
_DRAWN_ROWS = 2 * 1024
_SURELY, _HARDLY = 0.25, 0.97


def dictionary_columns(table: pa.Table) -> list[str] | bool:
    """Return the Parquet columns whose values repeat; a dictionary of others saves nothing.

    Measured with 500k rows of (time, key, double, text): a dictionary for each column takes 0.24 s of
    work and 10.8 MB, one for the time only 0.11 s and 8.6 MB.

    Parameters
    ----------
    table : pyarrow.Table
        Rows of a file.

    Returns
    -------
    list of str, or bool
        Paths of leaf columns, as Parquet names them; True for all, where there are few rows.

    Notes
    -----
    Cost: one count of distinct values per column, over 2k rows, where that does not tell over at most 32k.

    Examples
    --------
    >>> n = 100_000
    >>> table = pa.table({"id": range(n), "word": ["a", "b"] * (n // 2), "many": [[1]] * n})
    >>> dictionary_columns(table)
    ['word', 'many.list.element']
    """
    n = table.num_rows
    if n < SAMPLE_ROWS // 2:
        return True
    sample = table.slice((n - min(n, SAMPLE_ROWS)) // 2, SAMPLE_ROWS)
    # In no order: values may repeat at any distance.
    drawn = pa.array(np.sort(np.random.default_rng(0).choice(sample.num_rows, _DRAWN_ROWS, replace=False)))
    names: list[str] = []
    for field, column in zip(table.schema, sample.columns, strict=True):
        if pa.types.is_nested(field.type):
            names += _leaf_paths(field.name, field.type)
        elif not pa.types.is_boolean(field.type) and _repeats(column, drawn):
            names.append(field.name)
    return names


def _repeats(column: pa.ChunkedArray, drawn: pa.Array) -> bool:
    """Whether values of a sample come twice or more on average."""
    distinct = pc.count_distinct(column.take(drawn)).as_py()
    if _SURELY * len(drawn) < distinct < _HARDLY * len(drawn):
        return bool(2 * pc.count_distinct(column).as_py() <= len(column))
    return bool(2 * distinct <= len(drawn))


def _leaf_paths(path: str, type_: pa.DataType) -> list[str]:
    """Return the Parquet paths of a nested column's leaves."""
    if pa.types.is_struct(type_):
        return [leaf for f in type_ for leaf in _leaf_paths(f"{path}.{f.name}", f.type)]
    if pa.types.is_map(type_):
        pair = (("key", type_.key_type), ("value", type_.item_type))
        return [leaf for name, part in pair for leaf in _leaf_paths(f"{path}.key_value.{name}", part)]
    if pa.types.is_nested(type_):
        return _leaf_paths(f"{path}.list.element", type_.value_type)
    return [path]


COUNTS_KEY = b"timely.counts"
MAX_DISTINCT_TIMES = 10_000
_MAX_STATS_COLUMNS = 32
_HEADER = struct.Struct("<BBI")
_DAY_ZERO = dt.date(1970, 1, 1).toordinal()


def encode_counts(times: IntArray, counts: npt.NDArray[np.int64]) -> bytes | None:
    """Pack distinct times and their row counts for a footer; None above 10,000 distinct times.

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
        Distinct, in lexicographic order.
    counts : ndarray of int64, shape (n,)

    Returns
    -------
    bytes or None
        ASCII text: version, arity and number, then differences of the times per coordinate and the
        counts, compressed.

    Examples
    --------
    >>> times, counts = decode_counts(encode_counts(np.array([[5], [9]]), np.array([2, 1])))
    >>> times.tolist(), counts.tolist()
    ([[5], [9]], [2, 1])
    """
    n, k = times.shape
    if n > MAX_DISTINCT_TIMES:
        return None
    body = np.empty((k + 1, n), dtype="<i8")
    # Differences may wrap around at the bounds of int64; adding them up wraps back.
    with np.errstate(over="ignore"):
        body[:k] = np.diff(times.T, axis=1, prepend=np.zeros((k, 1), np.int64))
    body[k] = counts
    return base64.b64encode(_HEADER.pack(1, k, n) + zlib.compress(body.tobytes(), 1))


def decode_counts(text: bytes | str | None) -> tuple[IntArray, npt.NDArray[np.int64]] | None:
    """Unpack what `encode_counts` packed; None if there is nothing, or of a later version.

    Examples
    --------
    >>> decode_counts(None) is None
    True
    """
    if not text:
        return None
    raw = base64.b64decode(text)
    version, k, n = _HEADER.unpack_from(raw)
    if version != 1:
        return None
    body = np.frombuffer(zlib.decompress(raw[_HEADER.size :]), dtype="<i8").reshape(k + 1, n)
    with np.errstate(over="ignore"):
        times = np.ascontiguousarray(np.cumsum(body[:k], axis=1).T.astype(np.int64))
    return times, body[k].astype(np.int64)


def stats_json(
    n_rows: int,
    lows: Mapping[str, object],
    highs: Mapping[str, object],
    nulls: Mapping[str, int],
) -> str:
    """Return statistics as the JSON text of a Delta log.

    Examples
    --------
    >>> stats_json(2, {"_seq": 1}, {"_seq": 1}, {"_seq": 0})
    '{"numRecords":2,"minValues":{"_seq":1},"maxValues":{"_seq":1},"nullCount":{"_seq":0}}'
    """
    return json.dumps(
        {"numRecords": n_rows, "minValues": dict(lows), "maxValues": dict(highs), "nullCount": dict(nulls)},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def footer_stats(
    metadata: pq.FileMetaData, schema: pa.Schema, domain: TimeDomain
) -> tuple[dict[str, Any], dict[str, Any], dict[str, int], IntArray | None]:
    """Collect statistics from a Parquet footer.

    Parameters
    ----------
    metadata : pyarrow.parquet.FileMetaData
    schema : pyarrow.Schema
        Schema of the file.
    domain : TimeDomain

    Returns
    -------
    lows, highs : dict
        Bounds as a Delta log writes them, of integer, date and timestamp columns and of `_stream`.
    nulls : dict
        Number of nulls by column.
    bounds : ndarray of int64, shape (2, k), or None
        Least and greatest value of each time coordinate; None if the footer does not tell.

    Notes
    -----
    Cost: row groups times columns, both bounded.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    raw: dict[str, tuple[int, int]] = {}
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    leaf = 0
    for index, column in enumerate(schema):
        width = len(_leaf_paths(column.name, column.type))
        if index < _MAX_STATS_COLUMNS and width == 1 and not pa.types.is_nested(column.type) and groups:
            found = [g.column(leaf).statistics for g in groups]
            _add_column(column, found, lows, highs, nulls, raw)
        leaf += width
    columns = domain.columns
    if all(name in raw for name in columns):
        bounds = np.array([[raw[n][0] for n in columns], [raw[n][1] for n in columns]], dtype=np.int64)
        return lows, highs, nulls, bounds
    return lows, highs, nulls, None


def _add_column(
    column: pa.Field,
    found: list[Any],
    lows: dict[str, Any],
    highs: dict[str, Any],
    nulls: dict[str, int],
    raw: dict[str, tuple[int, int]],
) -> None:
    if any(s is None or not s.has_null_count for s in found):
        return
    nulls[column.name] = sum(s.null_count for s in found)
    with_values = [s for s in found if s.num_values]
    if not with_values or any(not s.has_min_max for s in with_values):
        return
    type_ = column.type
    if column.name == "_stream":
        lows["_stream"] = min(s.min for s in with_values)
        highs["_stream"] = max(s.max for s in with_values)
        return
    unit = pa.types.is_timestamp(type_) and type_.unit == "us"
    if not (pa.types.is_signed_integer(type_) or pa.types.is_date32(type_) or unit):
        return
    low = min(int(s.min_raw) for s in with_values)
    high = max(int(s.max_raw) for s in with_values)
    raw[column.name] = (low, high)
    if pa.types.is_signed_integer(type_):
        lows[column.name], highs[column.name] = low, high
        return
    shown_low, shown_high = render(type_, low), render(type_, high)
    if shown_low is not None and shown_high is not None:
        lows[column.name], highs[column.name] = shown_low, shown_high


def render(type_: pa.DataType, value: int) -> object | None:
    """Return a number as the statistics of a Delta log write it; None where a year has no four digits."""
    if pa.types.is_date32(type_):
        ordinal = value + _DAY_ZERO
        return dt.date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= dt.date.max.toordinal() else None
    if pa.types.is_timestamp(type_):
        days = value // 86_400_000_000
        if not 1 <= days + _DAY_ZERO <= dt.date.max.toordinal():
            return None
        text = moment_text(value, least="microseconds")
        return text if type_.tz is not None else text.removesuffix("Z")
    return value
