"""Statistics of Parquet files: bounds and null counts for the table's log, numbers of rows by time for the footer.

A file that is added to the table is described by these, and readers choose files by them: `describe_file` and
`describe_progress` make the `DataFile` that a commit adds, `file_statistics` reads the bounds from a footer, and
`encode_counts` packs the distinct times of a file into its footer. `parquet` and captures by Spark's own writer
(`spark_timely.spark.capture.staging`) describe files so; `datasource.catalog`, for the planner of
replays, and `interop.exporting` read the times (`file_times`).

Invariants
----------
1. A bound that is written into the table's log is true; where one is not surely true (floats with NaN, strings of the
   payload, decimals) none is written.
2. Bounds of timestamps are written in microseconds; those that other engines write may be cut to milliseconds, so a
   reader counts a maximum of whole milliseconds as one millisecond more.
3. The footer of a file has its distinct times and how many rows each has, up to 10,000 of them.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import SchemaMismatchError
from spark_timely.log.files.parquet_reader import open_parquet
from spark_timely.log.machine.state import DataFile
from spark_timely.time.antichain import minimal
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow.parquet as pq

    from spark_timely.log.store.storage import Storage
    from spark_timely.time.antichain import IntArray
    from spark_timely.time.domain import TimeDomain

__all__ = [
    "COUNTS_KEY",
    "MAX_DISTINCT_TIMES",
    "Statistics",
    "decode_counts",
    "describe_file",
    "describe_progress",
    "encode_counts",
    "file_statistics",
    "file_times",
    "leaf_paths",
]

COUNTS_KEY = "timely.counts"
MAX_DISTINCT_TIMES = 10_000
_MAX_STATS_COLUMNS = 32
_HEADER = struct.Struct("<BBI")
_DAY_ZERO = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bounds and numbers of nulls of the columns of a file.

    Attributes
    ----------
    lows, highs : dict of str to object
        Bounds as a Delta log writes them, of integer, date and timestamp columns and of `_stream`.
    nulls : dict of str to int
        Number of nulls by column.
    ends : dict of str to (int, int)
        Least and greatest value of columns of numbers, dates and timestamps, as numbers.
    """

    lows: dict[str, object] = field(default_factory=dict)
    highs: dict[str, object] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, column: pa.Field, low: int, high: int) -> None:
        """Add the bounds of a column of numbers, dates or timestamps; a year without four digits has none."""
        self.ends[column.name] = low, high
        shown_low, shown_high = _rendered(column.type, low), _rendered(column.type, high)
        if shown_low is not None and shown_high is not None:
            self.lows[column.name], self.highs[column.name] = shown_low, shown_high

    def time_bounds(self, domain: TimeDomain) -> IntArray | None:
        """Return the least and greatest value of each time coordinate, shape (2, k); None where one is not known."""
        if not all(name in self.ends for name in domain.columns):
            return None
        return np.array([self.ends[name] for name in domain.columns], np.int64).T.copy()

    def to_json(self, n_rows: int) -> str:
        """Return statistics as the JSON text of a Delta log.

        Examples
        --------
        >>> Statistics({"_seq": 1}, {"_seq": 1}, {"_seq": 0}).to_json(2)
        '{"numRecords":2,"minValues":{"_seq":1},"maxValues":{"_seq":1},"nullCount":{"_seq":0}}'
        """
        found = {"numRecords": n_rows, "minValues": self.lows, "maxValues": self.highs, "nullCount": self.nulls}
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def file_statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> Statistics:
    """Read the statistics of a file from its footer.

    Parameters
    ----------
    metadata : pyarrow.parquet.FileMetaData
    schema : pyarrow.Schema
        Of the file; bounds are of its first 32 columns.

    Notes
    -----
    Cost: row groups times columns, both bounded.
    """
    found = Statistics()
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    leaf = 0
    for index, column in enumerate(schema):
        if index < _MAX_STATS_COLUMNS and not pa.types.is_nested(column.type) and groups:
            _add_column(found, column, [group.column(leaf).statistics for group in groups])
        leaf += len(leaf_paths(column.name, column.type))
    return found


def _add_column(found: Statistics, column: pa.Field, of_groups: list[pq.Statistics | None]) -> None:
    """Add what the row groups say of a column, if they all do."""
    known = [each for each in of_groups if each is not None and each.has_null_count]
    if len(known) < len(of_groups):
        return
    found.nulls[column.name] = sum(each.null_count for each in known)
    with_values = [each for each in known if each.num_values]
    if not with_values or not all(each.has_min_max for each in with_values):
        return
    type_ = column.type
    if column.name == "_stream":
        found.lows["_stream"] = min(each.min for each in with_values)
        found.highs["_stream"] = max(each.max for each in with_values)
    elif pa.types.is_signed_integer(type_) or pa.types.is_date32(type_) or _is_microseconds(type_):
        low = min(int(each.min_raw) for each in with_values)
        found.add(column, low, max(int(each.max_raw) for each in with_values))


def _is_microseconds(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) and type_.unit == "us")


def _rendered(type_: pa.DataType, value: int) -> object | None:
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


def leaf_paths(path: str, type_: pa.DataType) -> list[str]:
    """Return the Parquet paths of a nested column's leaves."""
    if pa.types.is_struct(type_):
        return [leaf for f in type_ for leaf in leaf_paths(f"{path}.{f.name}", f.type)]
    if pa.types.is_map(type_):
        pair = (("key", type_.key_type), ("value", type_.item_type))
        return [leaf for name, part in pair for leaf in leaf_paths(f"{path}.key_value.{name}", part)]
    if pa.types.is_nested(type_):
        return leaf_paths(f"{path}.list.element", type_.value_type)
    return [path]


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
        absent = [name for name in domain.columns if name not in schema.names]
        if absent:
            msg = f"could not describe file {path!r} of log {storage.uri!r}: found no column {absent[0]!r}"
            raise SchemaMismatchError(msg, hint="write the log's time columns into each file of messages")
        statistics, exact = file_statistics(metadata, schema), file_times(file)
        bounds = statistics.time_bounds(domain)
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
        stats=statistics.to_json(metadata.num_rows),
        minima=minima,
        bounds=bounds if metadata.num_rows else None,
    )


def describe_progress(
    path: str, size_bytes: int, rows: pa.Table, domain: TimeDomain, *, event: str = "progress"
) -> DataFile:
    """Describe a file of progress by its rows, in the log's progress schema and not empty."""
    times = domain.from_columns(rows)
    streams, seqs = rows.column("_stream"), rows.column("_seq").to_numpy()
    span = pc.min_max(streams).as_py()
    low, high = times.min(axis=0), times.max(axis=0)
    found = Statistics({"_stream": span["min"]}, {"_stream": span["max"]})
    found.add(pa.field("_seq", pa.int64()), int(seqs.min()), int(seqs.max()))
    for name, type_, least, greatest in zip(domain.columns, domain.types, low.tolist(), high.tolist(), strict=True):
        found.add(pa.field(name, type_.arrow), least, greatest)
    found.nulls.update(dict.fromkeys(found.lows, 0))
    return DataFile(
        path=path,
        size_bytes=size_bytes,
        n_rows=rows.num_rows,
        event=event,
        stats=found.to_json(rows.num_rows),
        minima=minimal(times),
        bounds=np.stack([low, high]),
    )


def file_times(file: pq.ParquetFile) -> tuple[IntArray, npt.NDArray[np.int64]] | None:
    """Return the distinct times of a file and their row counts, if its footer tells them."""
    return decode_counts((file.metadata.metadata or {}).get(COUNTS_KEY.encode()))


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
