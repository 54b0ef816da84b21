"""The writer of binary captures that timely's `EventReader` replays.

`exporting` calls a `CaptureEncoder` for each chunk of events (`chunk`); `reader` is the other way. `build_chunk` and
`capture_bytes` make captures of events in Python, for tests and for JSON. A file is opened and named by `exporting`.

Invariants
----------
1. A chunk that a reader gave out is written with the bytes that it had, but that the times of each stamp are sorted.
2. Nothing is written of a chunk that cannot be written whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.interop.buffers import Offsets, Places, bounds_of
from spark_timely.interop.chunk import CaptureChunk, TimelyVersion, timely_version
from spark_timely.interop.layout import layout_of
from spark_timely.interop.records import fitted, integer, rows_to_records
from spark_timely.interop.schema import Type, arrow_schema, columns_of, parse_type
from spark_timely.interop.time_layout import TimeLayout, log_times, time_layout
from spark_timely.time.antichain import IntArray, as_times

PlainEvent: TypeAlias = "tuple[object, object] | Mapping[object, int] | Sequence[Sequence[object]]"
"""An event that is written in Python: (time, records), for 0.32 (times, records), or the changes of progress."""

_HEAD, _COUNT = struct.Struct("<QI"), struct.Struct("<Q")


class CaptureEncoder:
    """Writes chunks of events as bytes.

    Parameters
    ----------
    time, record : str or Type
        Declared types; see `spark_timely.interop.schema`.
    timely : str
        Version of the crate that is to read it, ``0.31`` or ``0.32``.

    Examples
    --------
    >>> encoder = CaptureEncoder(time="u64", record="u64")
    >>> chunk = build_chunk([{0: -1}], time="u64", record="u64")
    >>> encoder.encode(chunk).hex(" ", 4)
    '1c000000 00000000 00000000 01000000 00000000 00000000 00000000 ffffffff ffffffff'
    """

    def __init__(self, *, time: str | Type, record: str | Type, timely: TimelyVersion = "0.31") -> None:
        self.timely = timely_version(timely)
        self.times = time_layout(time)
        self.record = parse_type(record) if isinstance(record, str) else record
        self.schema = arrow_schema(self.record)
        self._layouts = [layout_of(item) for _, item in columns_of(self.record)]

    def encode(self, chunk: CaptureChunk) -> bytes:
        """Return the bytes of a chunk's events.

        Raises
        ------
        SchemaMismatchError
            If records have other columns, or nulls where there are none.
        InvalidUsageError
            If a time is none of the declared type, or a stamp has not one time where 0.31 is to read it.
        """
        chunk.check_stamps(self.timely)
        data, bounds = self.encode_records(chunk.records)
        view = memoryview(data)
        width = self.times.width
        times = self.times.write(chunk.times).tobytes()
        entries = np.concatenate(
            [
                self.times.write(chunk.progress_times),
                chunk.progress_deltas.astype("<i8").view(np.uint8).reshape(-1, 8),
            ],
            axis=1,
        ).tobytes()
        places = bounds[np.concatenate([[0], np.cumsum(chunk.counts)])].tolist()
        stamps = bounds_of(chunk.stamp_sizes).tolist()
        parts: list[bytes | memoryview] = []
        message = 0
        for kind, part in chunk.walk():
            if kind:
                low, high = places[message], places[message + 1]
                stamp = times[stamps[message] * width : stamps[message + 1] * width]
                if self.timely != "0.31":
                    stamp = _COUNT.pack(stamps[message + 1] - stamps[message]) + stamp
                parts += (
                    _HEAD.pack(12 + len(stamp) + high - low, 1),
                    stamp,
                    _COUNT.pack(part.stop - part.start),
                    view[low:high],
                )
                message += 1
            else:
                body = entries[part.start * (width + 8) : part.stop * (width + 8)]
                parts += (_HEAD.pack(12 + len(body), 0), _COUNT.pack(part.stop - part.start), body)
        return b"".join(parts)

    def fit(self, chunk: CaptureChunk) -> CaptureChunk:
        """Return a chunk whose records have the declared types, as a reader would give them.

        Raises
        ------
        SchemaMismatchError, InvalidUsageError
            As `encode`.
        """
        chunk.check_stamps(self.timely)
        for times in (chunk.times, chunk.progress_times):
            self.times.write(times)
        return replace(chunk, records=self.fitted(chunk.records))

    def fitted(self, records: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        """Return records in the Arrow types of the declared one, checked.

        Raises
        ------
        SchemaMismatchError
            As `encode`.
        """
        return pa.RecordBatch.from_arrays(self._columns(records)[0], schema=self.schema)

    def encode_records(self, records: pa.RecordBatch | pa.Table) -> tuple[bytes, Offsets]:
        """Return the bytes of records one after the other, and the n + 1 bounds between them.

        Raises
        ------
        SchemaMismatchError
            If they have other columns, or nulls where there are none.
        """
        columns, sizes = self._columns(records)
        bounds = bounds_of(sizes)
        out = np.empty(int(bounds[-1]), np.uint8)
        places = self._places(bounds)
        for layout, values in zip(self._layouts, columns, strict=True):
            places = layout.write(values, out, places)
        return out.tobytes(), bounds

    def _columns(self, records: pa.RecordBatch | pa.Table) -> tuple[list[pa.Array], Offsets]:
        """Return the columns in their declared types, checked, and the bytes of each record."""
        columns = [_column(records, name, item) for name, item in columns_of(self.record)]
        sizes = np.zeros(records.num_rows, np.int64)
        for layout, values in zip(self._layouts, columns, strict=True):
            sizes += layout.sizes(values)
        return columns, sizes

    def _places(self, bounds: Offsets) -> Places:
        widths = [layout.width for layout in self._layouts]
        if None in widths:
            return Places.of(bounds[:-1])
        return Places(bounds.shape[0] - 1, 0, sum(width for width in widths if width is not None))


def _column(records: pa.RecordBatch | pa.Table, name: str, type_: Type) -> pa.Array:
    if records.schema.names.count(name) != 1:
        msg = f"could not write records: found columns={shown(records.schema.names)}, and not {name!r} once"
        raise SchemaMismatchError(msg, hint="declare the type that the records have", context={"column": name})
    values = records.column(name)
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return fitted(whole, type_, column=name)


def build_chunk(
    events: Iterable[PlainEvent],
    *,
    time: str | Type,
    record: str | Type,
    timely: TimelyVersion = "0.31",
    first_event: int = 0,
) -> CaptureChunk:
    """Put events that are written in Python into a chunk, for tests and small tools.

    Parameters
    ----------
    events : iterable
        ``(time, records)`` for messages, with records as a list of Python values or a table; with stamps, as 0.32 has
        them, ``([time, …], records)``. ``{time: delta}`` or ``[[time, delta], …]`` for progress.
    time, record : str or Type
    timely : str
        Whether messages have times (``0.31``) or stamps (``0.32``).
    first_event : int

    Examples
    --------
    >>> chunk = build_chunk([(0, [("a", 1)]), {0: -1, 5: 1}], time="u64", record="(string, u64)")
    >>> chunk.n_events, chunk.records.to_pylist()
    (2, [{'f0': 'a', 'f1': 1}])
    """
    layout = time_layout(time)
    type_ = parse_type(record) if isinstance(record, str) else record
    kinds: list[bool] = []
    times: list[tuple[int, ...]] = []
    stamps: list[int] = []
    counts: list[int] = []
    rows: list[object] = []
    changed: list[tuple[int, ...]] = []
    deltas: list[int] = []
    entries: list[int] = []
    for event in events:
        if isinstance(event, tuple):
            at, held = event
            if not isinstance(held, Sequence):
                msg = f"could not build messages: found {shown(held)} in place of a list of records"
                raise InvalidUsageError(msg, hint="give (time, [record, …])")
            kinds.append(True)
            stamp = [_time(layout, at)] if timely_version(timely) == "0.31" else _stamp(layout, at)
            times += stamp
            stamps.append(len(stamp))
            counts.append(len(held))
            rows += held
        else:
            pairs = list(event.items() if isinstance(event, Mapping) else event)
            kinds.append(False)
            changed += [_time(layout, pair[0]) for pair in pairs]
            deltas += [integer(pair[1]) for pair in pairs]
            entries.append(len(pairs))
    return CaptureChunk(
        np.array(kinds, np.bool_),
        np.zeros(len(kinds) + 1, np.int64),
        first_event,
        _array(times, layout),
        np.array(counts, np.int64),
        rows_to_records(rows, type_),
        as_times(np.array(changed, np.int64).reshape(-1, layout.arity)),
        np.array(deltas, np.int64),
        np.array(entries, np.int64),
        None if all(n == 1 for n in stamps) else np.array(stamps, np.int64),
    )


def _stamp(layout: TimeLayout, value: object) -> list[tuple[int, ...]]:
    """Read the times of a stamp, and sort them as Rust does."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        msg = f"could not build messages: found {shown(value)} in place of a stamp"
        raise InvalidUsageError(msg, hint="give ([time, …], [record, …]): messages of 0.32 have any number of times")
    return sorted(layout.from_json(_listed(time), vast=True) for time in value)


def _array(times: list[tuple[int, ...]], layout: TimeLayout) -> IntArray:
    array = np.array(times, np.uint64 if layout.may_be_vast else np.int64)
    return log_times(array.reshape(-1, layout.arity))


def _time(layout: TimeLayout, value: object) -> tuple[int, ...]:
    return layout.from_json(_listed(value))


def _listed(value: object) -> object:
    return [_listed(part) for part in value] if isinstance(value, tuple) else value


def capture_bytes(
    events: Iterable[PlainEvent], *, time: str | Type, record: str | Type, timely: TimelyVersion = "0.31"
) -> bytes:
    """Return the bytes of events that are written in Python; see `build_chunk`.

    Examples
    --------
    >>> len(capture_bytes([(0, [1, 2]), {0: -1}], time="u64", record="u64"))
    80
    >>> len(capture_bytes([([0], [1, 2]), {0: -1}], time="u64", record="u64", timely="0.32"))
    88
    """
    chunk = build_chunk(events, time=time, record=record, timely=timely)
    return CaptureEncoder(time=time, record=record, timely=timely).encode(chunk)
