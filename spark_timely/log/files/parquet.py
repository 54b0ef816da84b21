"""Write, describe and read the Parquet files of a log. Needs pyarrow only, so Spark's tasks can use it.

A file is read by each micro-batch whose range reaches into the file's bounds. In a trickle nearly all rows of a commit
are close together in time and a few are stragglers, from anywhere within the lateness: in one file with them, all rows
would be read again for as long as the late ones are open. So stragglers get files of their own (`narrow_cuts`).
Encodings are chosen by looking at a sample of the rows (`dictionary_columns`).

Invariants
----------
1. Rows of a file are ordered by time; above 128k rows a row group ends at a boundary between two
   times wherever one is near enough.
2. The footer of a file tells its distinct times and how many rows each has, up to 10,000 of them.
3. A file has the columns of the log's format in their types; `_event` is not inside.
"""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_timely.canonical.row_hash import lists_of_views
from spark_timely.errors import DataLossError, InvalidShapeError, SchemaMismatchError, StorageError, shown
from spark_timely.log.files.statistics import (
    COUNTS_KEY,
    decode_counts,
    encode_counts,
    footer_stats,
    stats_json,
)
from spark_timely.log.machine.state import OPEN_STREAM, DataFile
from spark_timely.time.arrays import IntArray, as_times, is_sorted, lexsort, unique_times
from spark_timely.time.order import minimal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage
    from spark_timely.time.domain import TimeDomain


ROW_GROUP_ROWS = 128 * 1024
_DICTIONARY_SAMPLE = 32 * 1024
TARGET_FILE_BYTES = 128 * 1024 * 1024
# About how much smaller rows are in a file than in memory.
_COMPRESSION = 3
# A stream name cannot contain a dot, and '#' would have to be escaped in the table's log.
_OPEN_FILE_STEM = "open."


def file_name(event: str, stream: str, seq: int, token: str | None = None) -> str:
    """Return the relative path of a new file of a commit.

    Examples
    --------
    >>> file_name("message", "main", 7, "ab12")
    '_event=message/main-000000000007-ab12.parquet'
    """
    stem = _OPEN_FILE_STEM if stream == OPEN_STREAM else stream
    return f"_event={event}/{stem}-{seq:012d}-{token or secrets.token_hex(8)}.parquet"


def conform(table: pa.Table, schema: pa.Schema, *, what: str = "rows", first_row: int = 0) -> pa.Table:
    """Bring rows into a schema: columns by name, in its order and types; nothing is guessed.

    Integers are widened, floats too, timestamps are brought to microseconds in UTC; what would lose a
    digit is refused.

    Raises
    ------
    SchemaMismatchError
        If a column is missing, unknown, doubled, of a type that does not fit, or null where the schema
        says that it is not.

    Examples
    --------
    >>> conform(pa.table({"a": pa.array([1], pa.int8())}), pa.schema([("a", pa.int64())])).schema.types
    [DataType(int64)]
    """
    names = table.schema.names
    unknown = [n for n in names if n not in schema.names]
    missing = [f.name for f in schema if f.name not in names]
    if missing or unknown or len(set(names)) != len(names):
        found = f"column {missing[0]!r} missing" if missing else None
        found = found or (f"unknown column {unknown[0]!r}" if unknown else "a column twice")
        msg = f"could not fit {what} to the log: found {found}"
        raise SchemaMismatchError(
            msg,
            hint=f"the log has columns {shown(schema.names)}; select, rename or add columns to match",
            context={"missing": missing, "unknown": unknown},
        )
    columns = []
    for field in schema:
        column = table.column(field.name)
        if column.type != field.type:
            column = _cast(column, field, what)
        if not field.nullable and column.null_count:
            row = first_row + pc.index(column.is_null(), value=True).as_py()
            msg = f"could not fit {what} to the log: found null in column {field.name!r}, row={row}"
            raise SchemaMismatchError(
                msg,
                hint="fill or drop such rows: the log was created with this column not null",
                context={"column": field.name, "row": row},
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, what: str) -> pa.ChunkedArray:
    if not _fits(column.type, field.type):
        msg = f"could not fit {what} to the log: found column {field.name!r} of type={column.type}"
        raise SchemaMismatchError(
            msg,
            hint=f"the log keeps it as {field.type}; cast the column",
            context={"column": field.name},
        )
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        lists = pa.large_list(column.type.value_field)
        column = pa.chunked_array([lists_of_views(chunk) for chunk in column.chunks], lists)
    try:
        fitted = column.cast(field.type, safe=True)
        if _loses_bits(column.type, field.type) and _infinite(fitted) > _infinite(column):
            found = f"found numbers in column {field.name!r} that are infinite as {field.type}"
            msg = f"could not fit {what} to the log: {found}"
            raise SchemaMismatchError(msg, hint="round or cast the column", context={"column": field.name})
        return fitted
    except pa.ArrowInvalid as error:
        msg = (
            f"could not fit {what} to the log: found values in column {field.name!r} that do not fit {field.type}: "
            f"{shown(str(error))}"
        )
        raise SchemaMismatchError(
            msg,
            hint="round or cast the column",
            context={"column": field.name},
        ) from error
    except pa.ArrowNotImplementedError as error:
        msg = f"could not fit {what} to the log: found column {field.name!r} of type={column.type}"
        raise SchemaMismatchError(
            msg,
            hint=f"the log keeps it as {field.type}; cast the column",
            context={"column": field.name},
        ) from error


def _infinite(values: pa.ChunkedArray) -> int:
    """Return how many numbers in a column, at any depth, are infinite: a cast to fewer bits makes more in silence."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _infinite(values.cast(type_.value_type))
    if pa.types.is_floating(type_):
        return int(pc.sum(pc.is_inf(values)).as_py() or 0)
    if pa.types.is_struct(type_):
        return sum(_infinite(pc.struct_field(values, i)) for i in range(type_.num_fields))
    if pa.types.is_map(type_):
        parts = [part for chunk in values.chunks for part in (chunk.keys, chunk.items)]
        return sum(_infinite(pa.chunked_array([part])) for part in parts)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _infinite(pc.list_flatten(values))
    return 0


def _has_inner_views(type_: pa.DataType) -> bool:
    """Whether a list view is inside a column of this type: `lists_of_views` reaches the outermost alone."""
    return any(
        pa.types.is_list_view(inner) or pa.types.is_large_list_view(inner) or _has_inner_views(inner)
        for inner in (type_.field(i).type for i in range(type_.num_fields))
    )


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type may be kept in a column of another, without a change of meaning."""
    families: Sequence[Callable[[pa.DataType], bool]] = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_date,
        lambda t: pa.types.is_timestamp(t) and t.tz is not None,
        lambda t: pa.types.is_timestamp(t) and t.tz is None,
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t),
        lambda t: (
            pa.types.is_binary(t)
            or pa.types.is_large_binary(t)
            or pa.types.is_binary_view(t)
            or pa.types.is_fixed_size_binary(t)
        ),
        pa.types.is_struct,
        pa.types.is_map,
        lambda t: (
            pa.types.is_list(t)
            or pa.types.is_large_list(t)
            or pa.types.is_fixed_size_list(t)
            or pa.types.is_list_view(t)
            or pa.types.is_large_list_view(t)
        ),
    )
    if _has_inner_views(found):
        return False
    if pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return _fits(found.value_type, wanted)
    if pa.types.is_decimal(wanted):
        return pa.types.is_decimal(found) or pa.types.is_integer(found)
    if not any(family(found) and family(wanted) for family in families):
        return False
    if pa.types.is_struct(wanted):
        # Arrow's cast fills fields that are not there with nulls, and leaves others out, without a word.
        names = [{type_.field(i).name for i in range(type_.num_fields)} for type_ in (found, wanted)]
        return names[0] == names[1] and all(
            _fits(found.field(found.get_field_index(inner.name)).type, inner.type)
            for inner in (wanted.field(i) for i in range(wanted.num_fields))
        )
    if pa.types.is_map(wanted):
        return _fits(found.key_type, wanted.key_type) and _fits(found.item_type, wanted.item_type)
    return not pa.types.is_list(wanted) or _fits(found.value_type, wanted.value_type)


def _loses_bits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether floats, at any depth, get fewer bits."""
    if pa.types.is_dictionary(found):
        return _loses_bits(found.value_type, wanted)
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width > wanted.bit_width)
    return found != wanted and pa.types.is_nested(found)


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
    row_group_rows: int = ROW_GROUP_ROWS,
    narrow: bool = True,
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
    row_group_rows : int
        Rows above which a row group is cut.
    narrow : bool
        Whether to keep files of messages narrow in time, at the price of some more.

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
    if not is_sorted(times):
        order = lexsort(times)
        table, times = table.take(order), times[order]
    apart = narrow_cuts(times, table.nbytes // _COMPRESSION) if narrow and event == "message" else []
    written: list[DataFile] = []
    for first, stop in zip([0, *apart], [*apart, len(times)], strict=True):  # four turns at most
        part, part_times = table.slice(first, stop - first), times[first:stop]
        cuts = _row_groups(part_times, row_group_rows)
        start = 0
        while start < len(cuts) - 1:
            path = file_name(event, stream, seq)
            try:
                file, start = _write_file(
                    storage, path, part, part_times, cuts, start, event, domain, target_file_size, compression
                )
            except OSError as error:
                msg = f"could not write file {path!r} of log {storage.uri!r}: found {shown(str(error))}"
                raise StorageError(msg, hint="check space and permissions, then try again", determinate=True) from error
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
    )
    return described, start


def _row_groups(times: IntArray, row_group_rows: int) -> list[int]:
    """Return where row groups begin and end: at boundaries between times, where one is near enough."""
    n = times.shape[0]
    if n <= row_group_rows:
        return [0, n]
    changes = np.flatnonzero((times[1:] != times[:-1]).any(axis=1)) + 1
    cuts = [0]
    while n - cuts[-1] > row_group_rows:  # as many turns as row groups
        limit = cuts[-1] + row_group_rows
        at = int(np.searchsorted(changes, limit, side="right")) - 1
        best = int(changes[at]) if at >= 0 else 0
        cuts.append(best if best > cuts[-1] else limit)
    return [*cuts, n]


def write_progress_file(storage: Storage, rows: pa.Table, stream: str, seq: int, domain: TimeDomain) -> DataFile:
    """Write one progress batch, or the merged batches of one stream, to a small file, and flush it.

    Parameters
    ----------
    storage : Storage
    rows : pyarrow.Table
        In the log's progress schema, not empty, sorted by seq.
    stream, seq
        For the file name: the newest batch.
    domain : TimeDomain
    """
    sink = pa.BufferOutputStream()
    # A few rows are read whole: dictionaries, statistics and compression would only cost time.
    few = rows.num_rows <= 16
    pq.write_table(
        rows,
        sink,
        compression="none" if few else "zstd",
        store_schema=False,
        use_dictionary=not few,
        write_statistics=not few,
    )
    content = sink.getvalue()
    path = file_name("progress", stream, seq)
    storage.write(path, content)
    storage.flush([path])
    return describe_progress(path, content.size, rows, domain)


def describe_progress(path: str, size_bytes: int, rows: pa.Table, domain: TimeDomain) -> DataFile:
    """Describe a file of progress by its rows, in the log's progress schema and not empty."""
    times = domain.from_columns(rows)
    streams, seqs = rows.column("_stream"), rows.column("_seq").to_numpy()
    span = pc.min_max(streams).as_py()
    low, high = times.min(axis=0), times.max(axis=0)
    types = [t.arrow for t in domain.types]
    lows: dict[str, object] = {"_stream": span["min"], "_seq": int(seqs.min())}
    highs: dict[str, object] = {"_stream": span["max"], "_seq": int(seqs.max())}
    _add_time_bounds(domain, types, low, high, lows, highs)
    return DataFile(
        path=path,
        size_bytes=size_bytes,
        n_rows=rows.num_rows,
        event="progress",
        stats=stats_json(rows.num_rows, lows, highs, dict.fromkeys(lows, 0)),
        minima=minimal(times),
        bounds=np.stack([low, high]),
    )


def _add_time_bounds(
    domain: TimeDomain,
    types: Sequence[pa.DataType],
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    lows: dict[str, object],
    highs: dict[str, object],
) -> None:
    from spark_timely.log.files.statistics import render

    for i, name in enumerate(domain.columns):
        shown_low, shown_high = render(types[i], int(low[i])), render(types[i], int(high[i]))
        if shown_low is not None and shown_high is not None:
            lows[name], highs[name] = shown_low, shown_high


def open_parquet(storage: Storage, path: str) -> pq.ParquetFile:
    """Open a Parquet file of a log for reading; close it after use.

    Raises
    ------
    DataLossError
        If it is missing, or no Parquet file.
    """
    source = storage.open_input(path)
    try:
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    except (pa.ArrowInvalid, OSError) as error:
        source.close()
        raise corrupt(storage.uri, path, error) from error


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

    Raises
    ------
    DataLossError
        If it is missing or corrupt.
    """
    with open_parquet(storage, path) as file:
        if check is not None:
            check(file.schema_arrow)
        present = set(file.schema_arrow.names)
        names = [n for n in schema.names if n in present]
        try:
            if row_groups is None:
                table = file.read(columns=names)
            else:
                table = file.read_row_groups(list(row_groups), columns=names)
        except (pa.ArrowInvalid, OSError) as error:
            raise corrupt(storage.uri, path, error) from error
    return in_schema(table, schema)


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring a table as read into a schema: missing columns are null, types of other engines are cast."""
    columns = []
    for field in schema:
        if field.name in table.schema.names:
            column = table.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema([f.with_nullable(nullable=True) for f in schema]))


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
                hint="a file of messages has the log's time columns",
            )
        lows, highs, nulls, bounds = footer_stats(metadata, schema, domain)
        told = file_times(file)
        minima: IntArray
        if metadata.num_rows == 0:
            minima = np.empty((0, domain.arity), np.int64)
        elif told is not None:
            minima = minimal(told[0])
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
    while len(cuts) <= MOST_PARTS:  # each turn adds a cut
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


_SAMPLE_ROWS = 32 * 1024
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
    if n < _SAMPLE_ROWS // 2:
        return True
    sample = table.slice((n - min(n, _SAMPLE_ROWS)) // 2, _SAMPLE_ROWS)
    # In no order: values may repeat at any distance.
    drawn = pa.array(np.sort(np.random.default_rng(0).choice(sample.num_rows, _DRAWN_ROWS, replace=False)))
    names: list[str] = []
    for field, column in zip(table.schema, sample.columns, strict=True):  # one turn per column
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
