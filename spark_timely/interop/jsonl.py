"""Captures as JSON lines: one event per line, for people and for tests.

A line is ``{"messages": [time, [record, …]]}`` or ``{"progress": [[time, delta], …]}``; with the stamps of timely 0.32
``{"messages": [[time, …], [record, …]]}``. For times and records see `spark_timely.interop.time_layout` and
`spark_timely.interop.records`. `Lines` gives the lines of a file that may still grow.

`importing` reads such lines by `JsonLines` as it reads bytes by `reader`; `exporting` writes them by `chunk_lines`.
CDCv2 has lines of its own (`cdcv2.reader`), which `Lines` cuts too.

Invariants
----------
1. A line is given out when it is whole: its newline is there; or what has come of it is a JSON object, since the
   beginning of an object never is one.
2. Memory is bounded by the length of one line, and that by `MAX_EVENT_BYTES`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_timely.errors import CaptureFormatError, TimelyError, shown
from spark_timely.interop.chunk import CaptureChunk, TimelyVersion
from spark_timely.interop.reader import MAX_EVENT_BYTES, Source
from spark_timely.interop.records import Value, is_integer, records_to_rows
from spark_timely.interop.schema import Type, parse_type
from spark_timely.interop.time_layout import time_layout
from spark_timely.interop.writer import CaptureEncoder, PlainEvent, build_chunk

if TYPE_CHECKING:
    from spark_timely.interop.reader import Source


_BLOCK = 1 << 20


class Line(NamedTuple):
    """A line of a file.

    Parameters
    ----------
    number : int
        From 1.
    position : int
        Where it begins, in bytes.
    data : bytes
        Without its end.
    """

    number: int
    position: int
    data: bytes


class Lines:
    r"""Gives the lines of a source, block by block, but for empty ones.

    Parameters
    ----------
    source : Source
    most_bytes : int
        Longest line.

    Examples
    --------
    >>> import io
    >>> lines = Lines(io.BytesIO(b'{"a": 1}\n\n{"b"'))
    >>> [tuple(line) for line in lines.block()], lines.block(), lines.unfinished
    ([(1, 0, b'{"a": 1}')], [], 4)
    """

    def __init__(self, source: Source, *, most_bytes: int = MAX_EVENT_BYTES) -> None:
        self._source = source
        self._most = most_bytes
        self._buffer = memoryview(bytearray(_BLOCK))
        self._rest: list[bytes] = []
        self.number = 1
        """Of the line that comes next."""
        self.position = 0
        """Where it begins."""
        self.unfinished = 0
        """Bytes of it that have come."""
        self._only_end = False  # the line at hand was given out: all that may follow on it is its end

    def block(self) -> list[Line]:
        """Return lines that are whole; none where the source has nothing for now.

        Raises
        ------
        CaptureFormatError
            If a line is longer than any.
        """
        while n := self._source.readinto(self._buffer):
            head, end, tail = bytes(self._buffer[:n]).rpartition(b"\n")
            if not end:
                self._keep(tail)
                continue
            whole = b"".join([*self._rest, head])
            self._rest, self.unfinished = [], 0
            lines = []
            for data in whole.split(b"\n"):
                self._check_end(data)
                self._only_end = False
                if data.strip():
                    lines.append(Line(self.number, self.position, data))
                self.number += 1
                self.position += len(data) + 1
            self._keep(tail)
            if lines:
                return lines
        return self._last()

    def _keep(self, part: bytes) -> None:
        if part:
            self._rest.append(part)
        self.unfinished += len(part)
        if self.unfinished > self._most:
            msg = (
                f"could not read line {self.number} of a file of JSON lines at byte={self.position}: found more than"
                f" {self._most} bytes without an end"
            )
            raise CaptureFormatError(msg, hint="write one event in each line", position=self.position)

    def _last(self) -> list[Line]:
        """Return a last line that has no end and is whole all the same."""
        data = b"".join(self._rest)
        self._check_end(data)
        self._rest = [data] if data else []
        if not data.rstrip().endswith(b"}"):
            return []
        try:
            if not isinstance(json.loads(data), dict):
                return []
        except (ValueError, RecursionError):
            return []
        line = Line(self.number, self.position, data)
        self.position += len(data)
        self._rest, self.unfinished, self._only_end = [], 0, True
        return [line]

    def _check_end(self, data: bytes) -> None:
        """Refuse more on a line that was given out: had it come at once, it would be no line of JSON."""
        if self._only_end and data.strip():
            msg = (
                f"could not read line {self.number} of a file of JSON lines at byte={self.position}: found more behind"
                " its object"
            )
            raise CaptureFormatError(msg, hint="write one event in each line", position=self.position)


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


def chunk_lines(
    chunk: CaptureChunk, *, time: str | Type, record: str | Type, timely: TimelyVersion = "0.31"
) -> Iterator[str]:
    """Yield a line per event; messages have a time (``0.31``), or the list of their times (``0.32``).

    Examples
    --------
    >>> from spark_timely.interop.writer import build_chunk
    >>> chunk = build_chunk([(0, [7]), {0: -1}], time="u64", record="u64")
    >>> list(chunk_lines(chunk, time="u64", record="u64"))
    ['{"messages": [0, [7]]}', '{"progress": [[0, -1]]}']
    """
    chunk.check_stamps(timely)
    layout = time_layout(time)
    rows = records_to_rows(chunk.records, parse_type(record) if isinstance(record, str) else record)
    changed = [layout.to_json(row) for row in chunk.progress_times.tolist()]
    deltas = chunk.progress_deltas.tolist()
    at = [layout.to_json(row) for row in chunk.times.tolist()]
    sizes = iter(chunk.stamp_sizes.tolist())
    done = 0
    for kind, part in chunk.walk():
        if kind:
            stamp = at[done : (done := done + next(sizes))]
            event: dict[str, Value] = {"messages": [stamp[0] if timely == "0.31" else stamp, rows[part]]}
        else:
            event = {"progress": [[t, d] for t, d in zip(changed[part], deltas[part], strict=True)]}
        yield json.dumps(event, ensure_ascii=False, allow_nan=False)


def json_chunk(
    lines: Iterable[str | bytes],
    *,
    time: str | Type,
    record: str | Type,
    timely: TimelyVersion = "0.31",
    first_event: int = 0,
    positions: Sequence[int] | None = None,
) -> CaptureChunk:
    """Read lines that `chunk_lines` wrote. Empty lines are passed over, and a last line ``{"end": …}``.

    Parameters
    ----------
    lines : iterable of str or bytes
    time, record : str or Type
    timely : str
        As in `chunk_lines`.
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
            raise _no_event(first_event + len(events), place, error, timely) from error
    try:
        chunk = build_chunk(events, time=time, record=record, timely=timely, first_event=first_event)
        # Where the last event ends nobody asks.
        return chunk if positions is None else replace(chunk, positions=np.array([*places, 0], np.int64))
    except (ValueError, TypeError, OverflowError):
        for number, event in enumerate(events):  # which of them it was
            try:
                build_chunk([event], time=time, record=record, timely=timely)
            except (ValueError, TypeError, OverflowError) as error:
                raise _no_event(first_event + number, places[number], error, timely) from error
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


def _no_event(number: int, place: int | None, error: Exception, timely: TimelyVersion) -> CaptureFormatError:
    at = "" if place is None else f", byte={place}"
    msg = f"could not read JSON lines at event={number}{at}: {found_by(error)}"
    stamp = "time" if timely == "0.31" else "[time, …]"
    hint = f'write lines as {{"messages": [{stamp}, [record, …]]}} or {{"progress": [[time, delta], …]}}'
    return CaptureFormatError(msg, hint=hint, event=number, position=place)


def _event(found: Value) -> PlainEvent:
    if isinstance(found, dict) and len(found) == 1:
        held = found.get("messages")
        if isinstance(held, list) and len(held) == 2 and isinstance(held[1], list):
            return held[0], held[1]
        pairs = found.get("progress")
        if isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 and is_integer(p[1]) for p in pairs):
            return pairs
    msg = f"found {shown(found)}"
    raise ValueError(msg)


class JsonLines:
    r"""Lines of JSON that are read as the bytes of the capture that they describe.

    Parameters
    ----------
    source : Source
    time, record : str or Type
    timely : str
        As in `chunk_lines`.

    Examples
    --------
    >>> import io
    >>> lines = JsonLines(io.BytesIO(b'{"progress": [[0, -1]]}\n{"pro'), "u64", "u64")
    >>> buffer = memoryview(bytearray(64))
    >>> lines.readinto(buffer), lines.readinto(buffer), lines.unfinished
    (36, 0, 5)
    """

    def __init__(self, source: Source, time: str | Type, record: str | Type, *, timely: TimelyVersion = "0.31") -> None:
        self._lines = Lines(source)
        self._types = (time, record)
        self._encoder = CaptureEncoder(time=time, record=record, timely=timely)
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
                timely=self._encoder.timely,
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
