"""Captures as JSON lines: one event per line, for people and for tests.

A line is ``{"messages": [time, [record, …]]}`` or ``{"progress": [[time, delta], …]}``. Integers are
plain and may reach 2^64 − 1; tuples are lists, structs objects, durations ``[seconds, nanoseconds]``; a
missing option and the unit are null; of enums, a variant that holds nothing is its name, any other an
object of its name and what it holds; byte strings are base64; floats that JSON lacks are ``"NaN"``,
``"Infinity"`` and ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from spark_timely.errors import CaptureFormatError, TimelyError, shown
from spark_timely.interop.chunk import CaptureChunk
from spark_timely.interop.lines import Lines
from spark_timely.interop.schema import UNIT, Choice, Option, Record, Scalar, Type, Vec, arrow_schema, columns_of
from spark_timely.interop.schema import parse_type as _parse_type
from spark_timely.interop.times import time_layout

if TYPE_CHECKING:
    from spark_timely.interop.reader import Source
    from spark_timely.interop.writer import PlainEvent

__all__ = ["JsonLines", "chunk_lines", "found_by", "json_chunk", "json_value", "records_to_rows", "rows_to_records"]

Value: TypeAlias = object
_LINES_BYTES = 1 << 20
_MOST_F32 = float(np.finfo(np.float32).max)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def json_value(value: Value, type_: Type) -> Value:
    """Return what Arrow's `to_pylist` gives for a value of a type, as JSON writes it.

    Examples
    --------
    >>> json_value({"f0": "a", "f1": b"xy"}, _parse_type("(string, bytes)"))
    ['a', 'eHk=']
    """
    if value is None:
        return None
    if isinstance(type_, Option):
        return json_value(value, type_.item)
    if isinstance(type_, Vec):
        assert isinstance(value, list)
        return [json_value(item, type_.item) for item in value]
    if isinstance(type_, Record):
        assert isinstance(value, dict)
        items = [json_value(value[name], item) for name, item in zip(type_.names, type_.items, strict=True)]
        return dict(zip(type_.names, items, strict=True)) if type_.kind == "struct" else items
    if isinstance(type_, Choice):
        assert isinstance(value, dict)
        name = value["variant"]
        item = type_.items[type_.names.index(name)]
        return name if item == UNIT else {name: json_value(value[name], item)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def arrow_value(value: Value, type_: Type) -> Value:
    """Return what JSON, or plain Python, gives for a value of a type, as `pyarrow.array` takes it.

    Raises
    ------
    ValueError
        If it is no value of the type.
    """
    if isinstance(type_, Option):
        return None if value is None else arrow_value(value, type_.item)
    if isinstance(type_, Vec) and isinstance(value, list | tuple):
        return [arrow_value(item, type_.item) for item in value]
    if isinstance(type_, Record):
        if isinstance(value, Mapping) and set(value) == set(type_.names):
            value = [value[name] for name in type_.names]
        if isinstance(value, list | tuple) and len(value) == len(type_.items):
            return {
                name: arrow_value(item, inner)
                for name, item, inner in zip(type_.names, value, type_.items, strict=True)
            }
    if isinstance(type_, Choice):
        return _arrow_variant(value, type_)
    if isinstance(type_, Scalar) and _SCALAR[type_.kind](value):
        if type_.kind in ("f32", "f64") and isinstance(value, str):
            return _FLOATS[value]
        if type_.kind == "bytes" and isinstance(value, str):
            return base64.b64decode(value, validate=True)
        return value
    msg = f"found {shown(value)}"
    raise ValueError(msg)


def _arrow_variant(value: Value, type_: Choice) -> dict[str, Value]:
    if isinstance(value, str) and value in type_.names and type_.items[type_.names.index(value)] == UNIT:
        return {"variant": value}
    if isinstance(value, Mapping) and len(value) == 1:
        name = next(iter(value))
        if name in type_.names:
            return {"variant": name, name: arrow_value(value[name], type_.items[type_.names.index(name)])}
    msg = f"found {shown(value)} where an enum of {', '.join(type_.names)} was declared"
    raise ValueError(msg)


def _is_integer(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def loads(line: str | bytes) -> object:
    """Read JSON that says one thing: no name twice in an object, no number that becomes infinite.

    Raises
    ------
    ValueError
        If it is no JSON, or says two things.

    Examples
    --------
    >>> loads('{"a": [1, 0.5]}')
    {'a': [1, 0.5]}
    >>> loads('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    ValueError: found name 'a' twice
    """
    return json.loads(line, object_pairs_hook=_once, parse_float=_finite)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        msg = f"found name {shown(next(name for name in names if names.count(name) > 1))} twice"
        raise ValueError(msg)
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        msg = f"found {shown(text)}, which no float holds"
        raise ValueError(msg)
    return value


def _is_float(value: Value) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in list(_FLOATS)


def _is_f32(value: Value) -> bool:
    return _is_float(value) and not (isinstance(value, int | float) and abs(value) > _MOST_F32)


_SCALAR: dict[str, Callable[[Value], bool]] = {
    **{f"{sign}{bits}": _is_integer for sign in "ui" for bits in (8, 16, 32, 64)},
    "bool": lambda value: isinstance(value, bool),
    "f32": _is_f32,
    "f64": _is_float,
    "string": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, str | bytes),
    "unit": lambda value: value is None,
}


def rows_to_records(rows: Sequence[Value], type_: Type) -> pa.RecordBatch:
    """Put records that are plain Python or JSON values into columns.

    Raises
    ------
    ValueError
        If one is no value of the type (pyarrow's own errors are of this class).

    Examples
    --------
    >>> rows_to_records([("a", 1)], _parse_type("(string, u64)")).num_columns
    2
    """
    schema = arrow_schema(type_)
    columns = columns_of(type_)
    whole = len(columns) == 1 and not (isinstance(type_, Record) and type_.kind in ("tuple", "struct"))
    values = [arrow_value(row, type_) for row in rows]
    arrays = []
    for name, item in columns:
        column = values if whole else [value[name] for value in values]  # type: ignore[index]
        try:
            array = pa.array(column, schema.field(name).type)
        except (pa.ArrowException, OverflowError) as error:
            msg = f"found {shown(str(error))}"
            raise ValueError(msg) from error
        if array.null_count and not isinstance(item, Option) and item != UNIT:
            msg = "found null"
            raise ValueError(msg)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def records_to_rows(records: pa.RecordBatch, type_: Type) -> list[Value]:
    """Return records as JSON values.

    Examples
    --------
    >>> type_ = _parse_type("(string, u64)")
    >>> records_to_rows(rows_to_records([("a", 1)], type_), type_)
    [['a', 1]]
    """
    if isinstance(type_, Record) and type_.kind in ("tuple", "struct"):
        return [json_value(row, type_) for row in records.to_pylist()]
    return [json_value(value, type_) for value in records.column(0).to_pylist()]


def chunk_lines(chunk: CaptureChunk, *, time: str | Type, record: str | Type) -> Iterator[str]:
    """Yield a line per event.

    Examples
    --------
    >>> from spark_timely.interop.writer import build_chunk
    >>> chunk = build_chunk([(0, [7]), {0: -1}], time="u64", record="u64")
    >>> list(chunk_lines(chunk, time="u64", record="u64"))
    ['{"messages": [0, [7]]}', '{"progress": [[0, -1]]}']
    """
    layout = time_layout(time)
    rows = records_to_rows(chunk.records, _parse_type(record) if isinstance(record, str) else record)
    changed = [layout.to_json(row) for row in chunk.progress_times.tolist()]
    deltas = chunk.progress_deltas.tolist()
    at = iter(chunk.times.tolist())
    for kind, part in chunk.walk():
        if kind:
            event: dict[str, Value] = {"messages": [layout.to_json(next(at)), rows[part]]}
        else:
            event = {"progress": [[t, d] for t, d in zip(changed[part], deltas[part], strict=True)]}
        yield json.dumps(event, ensure_ascii=False, allow_nan=False)


def json_chunk(
    lines: Iterable[str | bytes],
    *,
    time: str | Type,
    record: str | Type,
    first_event: int = 0,
    positions: Sequence[int] | None = None,
) -> CaptureChunk:
    """Read lines that `chunk_lines` wrote. Empty lines are passed over, and a last line ``{"end": …}``.

    Parameters
    ----------
    lines : iterable of str or bytes
    time, record : str or Type
    first_event : int
        Number of the first event.
    positions : sequence of int, optional
        Where each line begins, in bytes, for errors.

    Raises
    ------
    CaptureFormatError
        If a line is no event of the declared types; it names the event, and its position.

    Examples
    --------
    >>> json_chunk(['{"progress": [[0, -1]]}'], time="u64", record="u64").progress_deltas.tolist()
    [-1]
    """
    from spark_timely.interop.writer import build_chunk

    events: list[PlainEvent] = []
    places: list[int | None] = []
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        place = None if positions is None else positions[i]
        try:
            found = loads(line)
            if not (isinstance(found, dict) and set(found) == {"end"}):
                events.append(_event(found))
                places.append(place)
        except (ValueError, RecursionError) as error:  # of which UnicodeDecodeError is one
            raise _no_event(first_event + len(events), place, error) from error
    try:
        chunk = build_chunk(events, time=time, record=record, first_event=first_event)
        # Where the last event ends nobody asks.
        return chunk if positions is None else replace(chunk, positions=np.array([*places, 0], np.int64))
    except (ValueError, TypeError, OverflowError):
        for number, event in enumerate(events):  # which of them it was
            try:
                build_chunk([event], time=time, record=record)
            except (ValueError, TypeError, OverflowError) as error:
                raise _no_event(first_event + number, places[number], error) from error
        raise


def found_by(error: Exception) -> str:
    """Return what an error found, without what it attempted.

    Examples
    --------
    >>> found_by(ValueError("could not read a: found b")), found_by(ValueError("no JSON"))
    ('found b', 'found no JSON')
    """
    said = error.message if isinstance(error, TimelyError) else " ".join(str(error).splitlines())
    return said[said.index("found ") :] if "found " in said else f"found {said}"


def _no_event(number: int, place: int | None, error: Exception) -> CaptureFormatError:
    at = "" if place is None else f", byte={place}"
    msg = f"could not read JSON lines at event={number}{at}: {found_by(error)}"
    hint = 'a line is {"messages": [time, [record, …]]} or {"progress": [[time, delta], …]}'
    return CaptureFormatError(msg, hint=hint, event=number, position=place)


def _event(found: Value) -> PlainEvent:
    if isinstance(found, dict) and len(found) == 1:
        held = found.get("messages")
        if isinstance(held, list) and len(held) == 2 and isinstance(held[1], list):
            return held[0], held[1]
        pairs = found.get("progress")
        if isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 and _is_integer(p[1]) for p in pairs):
            return pairs
    msg = f"found {shown(found)}"
    raise ValueError(msg)


class JsonLines:
    r"""Lines of JSON that are read as the bytes of the capture that they describe.

    Parameters
    ----------
    source : Source
    time, record : str or Type

    Examples
    --------
    >>> import io
    >>> lines = JsonLines(io.BytesIO(b'{"progress": [[0, -1]]}\n{"pro'), "u64", "u64")
    >>> buffer = memoryview(bytearray(64))
    >>> lines.readinto(buffer), lines.readinto(buffer), lines.unfinished
    (36, 0, 5)
    """

    def __init__(self, source: Source, time: str | Type, record: str | Type) -> None:
        from spark_timely.interop.writer import CaptureEncoder

        self._lines = Lines(source)
        self._types = (time, record)
        self._encoder = CaptureEncoder(time=time, record=record)
        self._events = 0
        self._ready = memoryview(b"")
        self._recent: list[CaptureChunk] = []

    @property
    def unfinished(self) -> int:
        """Bytes of a last line that is not whole yet."""
        return self._lines.unfinished

    def place_of(self, event: int) -> int | None:
        """Return where the line of an event begins, None if it was read long ago."""
        for chunk in self._recent:  # two
            if 0 <= (i := event - chunk.first_event) < chunk.n_events:
                return int(chunk.positions[i])
        return None

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer with the bytes of events; 0 at the end of the source.

        Raises
        ------
        CaptureFormatError
            If a line is no event.
        """
        while not self._ready:
            lines = self._lines.block()
            if not lines:
                return 0
            time, record = self._types
            chunk = json_chunk(
                [line.data for line in lines],
                time=time,
                record=record,
                first_event=self._events,
                positions=[line.position for line in lines],
            )
            self._events += chunk.n_events
            # What is judged at once begins in the block before at the earliest.
            self._recent = [*self._recent[-1:], chunk]
            self._ready = memoryview(self._encoder.encode(chunk))
        part = self._ready[: len(buffer)]
        buffer[: len(part)] = part
        self._ready = self._ready[len(part) :]
        return len(part)
