"""The reader of binary captures that timely's `EventWriter` wrote, from a file, a file that still grows, or a socket.

`importing` reads by `CaptureReader`, which gives out chunks of events (`chunk`). `GrowingFile` is a file that a
producer still writes. `jsonl` reads captures as text, `cdcv2.reader` messages of CDCv2; `writer` is the other way.

A capture is one event after the other, nothing before, between or behind: the length of the body in
eight bytes, then the body. It starts with one capability at the minimum, which it never mentions. Where timely 0.31
writes a time, 0.32 writes the number of times and the times; all else is the same. So the version is declared.

Invariants
----------
1. Only whole events are given out. What comes after the last of them waits for the rest.
2. An event's body is used up to its last byte: bytes that are left mean another type than declared.
3. Memory is bounded by the size of a chunk, or of one event, whichever is more, times a constant of
   the declared type; no length in the bytes is believed before it was compared with that.
4. All that is given out of a growing file is of one and the same file. A producer that is started again truncates its
   file and writes another run over it. So after each read the bytes that were read last are compared once more with
   those in the file: there is no moment at which the file could be replaced without notice.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_timely.errors import CaptureFormatError, shown
from spark_timely.interop.buffers import (
    U32,
    U64,
    WRONG_TYPE,
    Body,
    Fault,
    Offsets,
    Places,
    bounds_of,
    check,
    read_counts,
    spread,
)
from spark_timely.interop.chunk import CaptureChunk, TimelyVersion, timely_version
from spark_timely.interop.layout import layout_of, starts_of
from spark_timely.interop.schema import Type, arrow_schema, columns_of, parse_type, type_text
from spark_timely.interop.time_layout import time_layout
from spark_timely.time.antichain import DiffArray, IntArray

MAX_EVENT_BYTES = 256 << 20
"""Longest event that is read; timely's own are some kilobytes."""

_FIXED_CHUNK = 4 << 20  # a quarter of that costs two fifths more per record: calls of numpy; twice that gains nothing
_CHUNK = 2 << 20  # what has no fixed width is found in all events of a chunk in step: the more the better
_MOST_EMPTY = 1 << 20
_MOST_CHANGE = 1 << 40
_MOST_UNITS = 256
"""Times of no bytes, those of type (), in a stamp: each takes eight bytes of memory, and an event has 28 or more."""
_TRIED = 8
"""Events after which it is tried whether all that follow have the lengths of the last two in turn."""
_LENGTH = struct.Struct("<Q")
_HEAD = 8


class Source(Protocol):
    """A source of bytes: a file opened without buffer, a socket's file."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer from its beginning; return how many bytes, 0 where there are none for now."""


def _bounds(view: memoryview, filled: int) -> Offsets:
    """Return where each whole event begins, and where the last one ends.

    Each length says where the next is: one turn per event. Most captures have messages and progress in turn, all of
    the same lengths; then that is tried for all that follow, at once, and holds as far as the lengths say so.
    """
    unpack = _LENGTH.unpack_from
    starts: list[int] = []
    parts: list[Offsets] = []
    at = 0
    while at + _HEAD <= filled:
        after = at + _HEAD + unpack(view, at)[0]
        if after > filled:
            break
        starts.append(at)
        at = after
        if len(starts) == _TRIED and not parts:
            parts.append(np.array(starts, np.int64))
            first, second = starts[-2] - starts[-3], starts[-1] - starts[-2]
            if at - starts[-1] == first:
                # The next one is to have the second length again, the one after it the first.
                like = _alike(view, filled, at, second, first)
                at += (like.shape[0] // 2) * (first + second)
                parts.append(like)
            starts = []
    parts.append(np.array([*starts, at], np.int64))
    return np.concatenate(parts)


def _alike(view: memoryview, filled: int, at: int, first: int, second: int) -> Offsets:
    """Return where events begin, as long as they have two lengths in turn; in pairs."""
    period = first + second
    n = (filled - at) // period
    if n <= 0:
        return np.empty(0, np.int64)
    said = (
        np.ndarray((n,), "<u8", view, at, (period,)) == first - _HEAD,
        np.ndarray((n,), "<u8", view, at + first, (period,)) == second - _HEAD,
    )
    other = np.flatnonzero(~(said[0] & said[1]))
    n = int(other[0]) if other.shape[0] else n
    pairs = at + period * np.arange(n, dtype=np.int64)
    return np.stack([pairs, pairs + first], axis=1).ravel()


def _room(n_bytes: int) -> memoryview:
    """Return bytes to be written, from Arrow's pool, which keeps what is given back: else the kernel maps each."""
    return memoryview(pa.allocate_buffer(n_bytes)).cast("B")


def _joined(view: memoryview, starts: Offsets, ends: Offsets) -> memoryview:
    """Return the bytes of all stretches one after the other: at once where they are alike and at equal distances."""
    lengths = ends - starts
    n = starts.shape[0]
    if n < 2 or (lengths != lengths[0]).any() or np.ptp(np.diff(starts)):
        return memoryview(b"".join([view[low:high] for low, high in zip(starts.tolist(), ends.tolist(), strict=True)]))
    length, step = int(lengths[0]), int(starts[1] - starts[0])
    out = _room(n * length)
    np.frombuffer(out, np.uint8).reshape(n, length)[:] = np.ndarray(
        (n, length), np.uint8, view, int(starts[0]), (step, 1)
    )
    return out


class CaptureReader:
    """Reads a capture in chunks of whole events.

    Iterating yields what there is, and ends where the source has no more; iterating again continues
    there, so that a file that grows is followed.

    Parameters
    ----------
    source : Source
    time, record : str or Type
        Declared types; see `spark_timely.interop.schema`.
    timely : str
        Version of the crate that wrote it, ``0.31`` or ``0.32``. The bytes do not say it.
    position, event : int
        Position in bytes, and number of the event, where the source stands.
    chunk_bytes : int, optional
        Bytes read at once.
    max_event_bytes : int
        Longest event; a longer one is refused.
    checksum : int, optional
        CRC-32 of what came before `position`, to be carried on; none is kept unless it is given.
    name : str, optional
        What the capture is called, for errors.

    Attributes
    ----------
    position : int
        Where the last event given out ends.
    event : int
        Number of the event that comes next.
    checksum : int or None
        CRC-32 of everything before `position`.

    Raises
    ------
    InvalidUsageError
        If a type cannot be read.

    Examples
    --------
    >>> import io
    >>> from spark_timely.interop.writer import capture_bytes
    >>> data = capture_bytes([(0, [7, 8]), {0: -1}], time="u64", record="u64")
    >>> reader = CaptureReader(io.BytesIO(data), time="u64", record="u64")
    >>> [chunk.records.column("value").to_pylist() for chunk in reader], reader.unfinished
    ([[7, 8]], 0)
    """

    def __init__(
        self,
        source: Source,
        *,
        time: str | Type,
        record: str | Type,
        timely: TimelyVersion = "0.31",
        position: int = 0,
        event: int = 0,
        chunk_bytes: int | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        checksum: int | None = None,
        name: str | None = None,
    ) -> None:
        self._source = source
        self._called = "a capture" if name is None else f"capture {shown(name)}"
        self.times = time_layout(time)
        self.record = parse_type(record) if isinstance(record, str) else record
        self.schema = arrow_schema(self.record)
        self.timely = timely_version(timely)
        self.position = position
        self.event = event
        self._layout = layout_of(self.record)
        self._columns = [layout_of(item) for _, item in columns_of(self.record)]
        default = _CHUNK if self._layout.width is None else _FIXED_CHUNK
        self._view = _room(max(64, chunk_bytes or default))
        self._filled = 0
        self._max = max_event_bytes
        self.checksum = checksum

    @property
    def unfinished(self) -> int:
        """Bytes that came after the last whole event."""
        return self._filled

    def __iter__(self) -> Iterator[CaptureChunk]:
        """Yield chunks as long as the source gives bytes.

        Raises
        ------
        CaptureFormatError
            If an event cannot be of the declared types. What was yielded before holds.
        """
        while True:
            if self._filled == len(self._view):
                self._grow()
            n = self._source.readinto(self._view[self._filled :])
            if not n:
                return
            self._filled += n
            chunk = self._next()
            if chunk is not None:
                yield chunk
            # Not before: what came before such an event holds.
            self._check_length()

    def _grow(self) -> None:
        """Make room for the rest of an event: twice the bytes that have come, not what its length says."""
        larger = _room(2 * len(self._view))
        larger[: self._filled] = self._view[: self._filled]
        self._view = larger

    def _next(self) -> CaptureChunk | None:
        view, filled = self._view, self._filled
        bounds = _bounds(view, filled)
        at = int(bounds[-1])
        chunk = None
        try:
            if at:
                chunk = self._decoded(bounds)
        except Fault as fault:
            raise self._wrong(fault, bounds[:-1].tolist()) from None
        if self.checksum is not None:
            self.checksum = zlib.crc32(view[:at], self.checksum)
        rest = filled - at
        view[:rest] = bytes(view[at:filled])
        self._filled = rest
        self.position += at
        self.event += bounds.shape[0] - 1
        return chunk

    def _check_length(self) -> None:
        """Refuse an event longer than any, as soon as its length has come."""
        if self._filled >= _HEAD and (length := _LENGTH.unpack_from(self._view)[0]) > self._max:
            found = f"an event of {length} bytes, {self._max} at most are read"
            raise self._wrong(Fault(0, found), [0])

    def _wrong(self, fault: Fault, starts: list[int]) -> CaptureFormatError:
        i = max(0, bisect_right(starts, fault.at) - 1)
        event, place = self.event + i, self.position + fault.at
        msg = f"could not read {self._called} at event={event}, byte={place}: found {fault.found}"
        context = {"begins": self.position + starts[i]}
        return CaptureFormatError(msg, hint=fault.hint, context=context, event=event, position=place)

    def _decoded(self, bounds: Offsets) -> CaptureChunk:
        body = Body(self._view[: int(bounds[-1])])
        starts, ends = bounds[:-1], bounds[1:]
        bodies = ends - starts - _HEAD
        check(bodies < 12, lambda i: Fault(starts[i], f"an event of {bodies[i]} bytes"))
        kinds = body.take(U32, Places.of(starts + _HEAD))
        check(kinds > 1, lambda i: Fault(starts[i] + _HEAD, f"an event of kind {kinds[i]}, neither 0 nor 1"))
        is_messages = kinds == 1
        heads, limits = starts[is_messages] + 12, ends[is_messages]
        times, stamps, after = (self._times if self.timely == "0.31" else self._stamps)(body, heads, limits)
        counts, records = self._messages(body, after, limits)
        changed, deltas, entries = self._progress(body, starts[~is_messages] + 12, ends[~is_messages])
        return CaptureChunk(
            is_messages, bounds + self.position, self.event, times, counts, records, changed, deltas, entries, stamps
        )

    def _progress(self, body: Body, at: Offsets, ends: Offsets) -> tuple[IntArray, DiffArray, Offsets]:
        width = self.times.width + 8
        entries = read_counts(body, at, ends, width)
        self._check_left(at + 8 + entries * width, ends)
        starts = spread(at + 8, entries, bounds_of(entries), width)
        places = Places.of(starts)
        times = self.times.read(body, places)
        deltas = body.take(np.dtype("<i8"), places.shift(self.times.width))
        # Their sums, as far as a capture goes, then fit 64 bits.
        check(
            (deltas > _MOST_CHANGE) | (deltas < -_MOST_CHANGE),
            lambda i: Fault(starts[i] + self.times.width, f"a change of {deltas[i]} capabilities"),
        )
        return times, deltas, entries

    def _times(self, body: Body, at: Offsets, ends: Offsets) -> tuple[IntArray, None, Offsets]:
        """Return the times of messages, and where each ends."""
        check(at + self.times.width + 8 > ends, lambda i: _short(at[i], ends[i]))
        return self.times.read(body, Places.of(at)), None, at + self.times.width

    def _stamps(self, body: Body, at: Offsets, ends: Offsets) -> tuple[IntArray, Offsets | None, Offsets]:
        """Return the times of all stamps, how many each has (None: one each), and where each ends."""
        check(at + 16 > ends, lambda i: _short(at[i], ends[i]))
        width = self.times.width
        said = body.take(U64, Places.of(at))
        if width:
            room = ends - at - 16  # the number of records comes behind them
            left = "bytes are left for them"
            check(
                said > (room // width).astype(np.uint64),
                lambda i: Fault(at[i], f"a stamp of {said[i]} times where {room[i]} {left}"),
            )
        else:
            most = f"a stamp has at most {_MOST_UNITS}"
            check(said > _MOST_UNITS, lambda i: Fault(at[i], f"{said[i]} times without bytes, {most}"))
        sizes = said.astype(np.int64)
        after = at + 8 + sizes * width
        if (sizes == 1).all():
            return self.times.read(body, Places.of(at + 8), vast=True), None, after
        places = Places.of(spread(at + 8, sizes, bounds_of(sizes), width))
        times = self.times.read(body, places, vast=True)
        if sizes.max() > 1:
            # Timely writes them sorted, and sorts what it reads.
            event = np.repeat(np.arange(sizes.shape[0]), sizes)
            times = times[np.lexsort((*times.T[::-1], event))]
        return times, sizes, after

    def _messages(self, body: Body, lengths: Offsets, ends: Offsets) -> tuple[Offsets, pa.RecordBatch]:
        """Return how many records each event has, and all of them; the numbers stand at `lengths`."""
        layout = self._layout
        starts = lengths + 8
        if layout.width is None:
            counts = read_counts(body, lengths, ends, layout.least)
            places, _, after = starts_of(layout, body, starts, counts, ends)
            self._check_left(after, ends)
            return counts, self._records(body, places)
        if not layout.width:
            empty = body.take(U64, Places.of(lengths))
            most = f"an event has at most {_MOST_EMPTY}"
            check(empty > _MOST_EMPTY, lambda i: Fault(lengths[i], f"{empty[i]} records without bytes, {most}"))
            self._check_left(starts, ends)
            counts = empty.astype(np.int64)
            return counts, self._records(body, Places(int(counts.sum())))
        counts = read_counts(body, lengths, ends, layout.width)
        self._check_left(starts + counts * layout.width, ends)
        dense = _joined(body.data, starts, ends)
        try:
            return counts, self._records(Body(dense), Places(len(dense) // layout.width, 0, layout.width))
        except Fault as fault:
            block = bounds_of(ends - starts)
            i = int(np.searchsorted(block, fault.at, side="right")) - 1
            raise Fault(fault.at - int(block[i]) + int(starts[i]), fault.found, fault.hint) from None

    def _records(self, body: Body, places: Places) -> pa.RecordBatch:
        columns = []
        for layout in self._columns:
            values, places = layout.read(body, places)
            columns.append(values)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _check_left(self, after: Offsets, ends: Offsets) -> None:
        found = "bytes left over behind what the event says it holds"
        declared = f"time {self.times.text}, record {type_text(self.record)} and Timely {self.timely}"
        hint = f"{WRONG_TYPE}; declared are {declared}"
        check(after != ends, lambda i: Fault(after[i], f"{ends[i] - after[i]} {found}", hint))


def _short(at: int, end: int) -> Fault:
    return Fault(at, f"an event of messages of {end - at + 4} bytes")


_COMPARED = 64 << 10
"""Bytes before each read that are compared once more; costs a hundredth of what reading costs."""


class GrowingFile:
    """Bytes of a file, from its beginning; 0 where there are none for now.

    Parameters
    ----------
    path : str

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "x"
    >>> _ = path.write_text("abc")
    >>> buffer = memoryview(bytearray(8))
    >>> with GrowingFile(str(path)) as file:
    ...     n = file.readinto(buffer)
    ...     _ = path.write_text("xyz!")  # another run
    ...     try:
    ...         file.readinto(buffer)
    ...     except CaptureFormatError as error:
    ...         n, error.position
    (3, 3)
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._position = 0
        self._last = b""

    def __enter__(self) -> GrowingFile:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._file.close()

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer from its beginning; return how many bytes.

        Raises
        ------
        CaptureFormatError
            If the file was truncated, or written again.
        """
        n = self._file.readinto(buffer) or 0
        # After the read: a file that is replaced later does not matter for what was read.
        size = os.fstat(self._file.fileno()).st_size
        if size < self._position + n:
            raise self._replaced(found=f"it cut to {size} bytes")
        if n:
            self._compare()
            self._position += n
            self._last = (self._last + bytes(buffer[max(0, n - _COMPARED) : n]))[-_COMPARED:]
        return n

    def _compare(self) -> None:
        """Compare what was read last with what the file has in its place now."""
        here = self._file.tell()
        self._file.seek(self._position - len(self._last))
        found = self._file.read(len(self._last))
        self._file.seek(here)
        if found != self._last:
            raise self._replaced(found="other bytes in the place of those read before")

    def has_news(self) -> bool:
        """Return whether there is more to read.

        Raises
        ------
        CaptureFormatError
            If the file's name is another's by now, or nobody's: it will not grow.
        """
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            raise self._replaced(found="it gone") from None
        mine = os.fstat(self._file.fileno())
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise self._replaced(found="another file in its place")
        return mine.st_size != self._position

    def _replaced(self, *, found: str) -> CaptureFormatError:
        msg = f"could not continue to read {shown(self.path)} at byte={self._position}: found {found}"
        hint = "import it again: what the log has is compared then; another capture needs another stream"
        return CaptureFormatError(msg, hint=hint, position=self._position)
