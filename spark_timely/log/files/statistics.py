"""Statistics of files as a Delta log keeps them, and exact counts per time in Parquet footers.

Invariants
----------
1. A bound that is written is true; where one is not surely true (floats with NaN, strings, decimals)
   none is written.
2. Bounds of timestamps are written in microseconds; those that other engines write may be cut to
   milliseconds, so a reader counts a maximum of whole milliseconds as one millisecond more.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from spark_timely.time.domain import TimeDomain
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.time.arrays import IntArray


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
        width = _leaves(column.type)
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


def _leaves(type_: pa.DataType) -> int:
    """Return how many Parquet columns a column of this type has."""
    if not pa.types.is_nested(type_):
        return 1
    return sum(_leaves(type_.field(i).type) for i in range(type_.num_fields))
