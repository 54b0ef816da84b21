"""The binary layout of captured values: reads what Rust's bincode wrote into Arrow arrays, and writes it from them.

`Places` are the offsets of values in bytes. Values of one type are at equal distances, as in a block of records of
fixed width, or anywhere; both are read and written by one call of numpy for all of them, aligned or not.

All values of a type are read at once: what has a fixed width by arithmetic, the rest after its places
were found. To find them is the only thing that goes from value to value (`starts_of`); that is done
for all blocks of records in step, or one by one where there are few blocks.

A time is an integer, a date, a timestamp, a duration, the unit, or a product of those (`TimeLayout`). In a log it has
a coordinate for each but the unit, a duration's in nanoseconds; the unit has none, unless it is alone: then its one
time is 0. In the bytes dates are days and timestamps are microseconds, integers of which the least stands for the least
date of a log, 1700-01-01.

Invariants
----------
1. `read` is called for places that `skip` or the arithmetic of fixed widths has found to be within
   their block: it checks what values may be, not where they end.
2. Whatever the bytes say, no array is made that is larger than a fixed multiple of them: a count is
   compared with the room that is left before anything is made of that size.
3. What is written is what was read, byte for byte.
4. Times of several coordinates are ordered by each of them, as in a log, also where the capture calls them pairs.
5. A time that a log cannot hold, 2^63 or more, is refused, never wrapped.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.interop.schema import (
    UNIT,
    WIRE_KINDS,
    Choice,
    Decimal,
    Map,
    Option,
    Record,
    Scalar,
    Type,
    Vec,
    arrow_type,
    parse_type,
    type_text,
)
from spark_timely.time.arrays import IntArray
from spark_timely.time.domain import TimeDomain, TimeType

Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int64]


WRONG_TYPE = "declare the types that the file holds; if you did, the file is damaged"


class Fault(Exception):
    """Bytes that cannot be of the declared type; caught where their place in the stream is known.

    Parameters
    ----------
    at : int
        Offset of the offending byte in the body.
    found, hint : str
    """

    def __init__(self, at: int, found: str, hint: str = WRONG_TYPE) -> None:
        super().__init__(found)
        self.at = int(at)
        self.found = found
        self.hint = hint


def check(wrong: npt.NDArray[np.bool_], fault: Callable[[int], Fault]) -> None:
    """Raise the fault of the first value that is wrong, if one is."""
    if wrong.any():
        raise fault(int(np.argmax(wrong)))


class Places:
    """Offsets of n values: `base`, `base + stride`, … or any.

    Parameters
    ----------
    n : int
    base, stride : int
        Where values lie at equal distances.
    at : ndarray of int64, shape (n,), optional
        Their offsets, where they do not.
    """

    __slots__ = ("_at", "base", "n", "stride")

    def __init__(self, n: int, base: int = 0, stride: int = 0, at: Offsets | None = None) -> None:
        self.n = n
        self.base = base
        self.stride = stride
        self._at = at

    @classmethod
    def of(cls, at: Offsets) -> Places:
        """Return places anywhere."""
        return cls(at.shape[0], at=at)

    @property
    def even(self) -> bool:
        """Whether the values lie at equal distances."""
        return self._at is None

    @property
    def at(self) -> Offsets:
        """Offset of each value."""
        if self._at is None:
            return np.arange(self.n, dtype=np.int64) * self.stride + self.base
        return self._at

    def shift(self, n_bytes: int) -> Places:
        """Return the places `n_bytes` bytes further on."""
        if self._at is None:
            return Places(self.n, self.base + n_bytes, self.stride)
        return Places(self.n, at=self._at + n_bytes)


class Body:
    """Bytes to read from.

    Parameters
    ----------
    data : bytes-like
        Not copied. Values at equal distances may be views of it, others are copies.
    """

    __slots__ = ("array", "data")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.array: Bytes = np.frombuffer(data, np.uint8)

    def take(self, dtype: np.dtype[Any], places: Places) -> npt.NDArray[Any]:
        """Return the values at places, contiguous."""
        size = dtype.itemsize
        if not places.n:
            return np.empty(0, dtype)
        if places.even:
            view = np.ndarray((places.n,), dtype, self.data, places.base, (places.stride,))
            return np.ascontiguousarray(view)
        at = places.at
        if size == 1:
            return self.array[at].view(dtype)
        # Every offset is the start of a value in this view: an index into it is an offset.
        anywhere = np.ndarray((self.array.shape[0] - size + 1,), dtype, self.data, 0, (1,))
        return anywhere[at]

    def gather(self, starts: Offsets, lengths: Offsets) -> tuple[Bytes, Offsets]:
        """Return stretches of bytes one after the other, and the n + 1 bounds between them."""
        bounds = bounds_of(lengths)
        return self.array[spread(starts, lengths, bounds, 1)], bounds


def put(out: Bytes, places: Places, values: npt.NDArray[Any]) -> None:
    """Write values to places."""
    if not places.n:
        return
    size = values.dtype.itemsize
    if places.even:
        np.ndarray((places.n,), values.dtype, out.data, places.base, (places.stride,))[:] = values
    elif size == 1:
        out[places.at] = values.view(np.uint8)
    else:
        np.ndarray((out.shape[0] - size + 1,), values.dtype, out.data, 0, (1,))[places.at] = values


def bounds_of(counts: Offsets) -> Offsets:
    """Return the number of the first element of each block, and at last the number of all; shape (blocks + 1,)."""
    bounds = np.zeros(counts.shape[0] + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def spread(starts: Offsets, counts: Offsets, bounds: Offsets, width: int) -> Offsets:
    """Return the offsets of all elements of stretches: `counts` elements of `width` bytes from each start.

    Examples
    --------
    >>> spread(np.array([10, 50]), np.array([2, 1]), np.array([0, 2, 3]), 4).tolist()
    [10, 14, 50]
    """
    return np.repeat(starts - bounds[:-1] * width, counts) + np.arange(bounds[-1]) * width


U32, U64 = np.dtype("<u4"), np.dtype("<u8")
_U64 = struct.Struct("<Q")
_FEW = 16
"""Blocks below which going one by one is quicker than in step: a step costs what some ten values cost."""


class Layout(ABC):
    """The layout of values of one type in bytes.

    Attributes
    ----------
    width : int or None
        Bytes of each value; None if they differ.
    least : int
        Bytes of the smallest value.
    arrow : pyarrow.DataType
    """

    width: int | None
    least: int
    arrow: pa.DataType

    @abstractmethod
    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        """Return the values at places, and the places after them. Raises `Fault`."""

    def skip(self, body: Body, at: int, end: int) -> int:
        """Return the offset after the value at one that must end before `end`. Raises `Fault`."""
        after = at + (self.width or 0)
        if after > end:
            raise cut_short(at, end - at)
        return after

    def skip_all(self, body: Body, at: Offsets, ends: Offsets) -> Offsets:
        """As `skip`, for values of as many blocks."""
        after = at + (self.width or 0)
        check_ends(at, after, ends)
        return after

    def sizes(self, values: pa.Array) -> Offsets:
        """Return the bytes that each value takes; refuse what cannot be written.

        Raises
        ------
        SchemaMismatchError
            If a value is null that has to be there, or an enum has no such variant.
        """
        return np.full(len(whole(values)), self.width, np.int64)

    @abstractmethod
    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        """Write values to places, and return the places after them."""


def cut_short(at: int, room: int) -> Fault:
    """Return the fault of a value that ends outside of its event."""
    return Fault(at, f"a value that needs more than the {room} bytes left of its event")


def check_ends(at: Offsets, after: Offsets, ends: Offsets) -> None:
    """Refuse values that end outside of their blocks."""
    check(after > ends, lambda i: cut_short(at[i], ends[i] - at[i]))


def read_counts(body: Body, at: Offsets, ends: Offsets, least: int) -> Offsets:
    """Read the number of elements at each offset, and refuse those for which there is no room."""
    check_ends(at, at + 8, ends)
    counts = body.take(U64, Places.of(at))
    room = ends - at - 8
    check(counts > (room // least).astype(np.uint64), lambda i: _too_many(at[i], counts[i], room[i]))
    return counts.astype(np.int64)


def _too_many(at: int, count: int, room: int) -> Fault:
    return Fault(at, f"a length of {count} where {room} bytes are left of the event")


def read_count(body: Body, at: int, end: int, least: int) -> int:
    """Read one number of elements; as `read_counts`."""
    if at + 8 > end:
        raise cut_short(at, end - at)
    count: int = _U64.unpack_from(body.data, at)[0]
    if count * least > end - at - 8:
        raise _too_many(at, count, end - at - 8)
    return count


def starts_of(
    layout: Layout, body: Body, starts: Offsets, counts: Offsets, ends: Offsets
) -> tuple[Places, Offsets, Offsets]:
    """Find the places of all elements of blocks, each of `counts` elements from `starts`, within `ends`.

    Returns
    -------
    places : Places
        Of all elements, block after block.
    bounds : ndarray of int64, shape (blocks + 1,)
        Number of the first element of each block, and at last the number of all.
    after : ndarray of int64
        Where the last element of each block ends.

    Raises
    ------
    Fault
        If an element would end outside of its block.
    """
    bounds = bounds_of(counts)
    if layout.width is not None:
        after = starts + counts * layout.width
        check_ends(starts, after, ends)
        return Places.of(spread(starts, counts, bounds, layout.width)), bounds, after
    found = np.empty(int(bounds[-1]), np.int64)
    after = starts.copy()
    # Longest first: those that have an n-th element are then the first ones.
    order = np.argsort(-counts, kind="stable")
    ordered, first, limits = counts[order], bounds[:-1][order], ends[order]
    at = starts[order]
    done = 0
    longest = int(ordered[_FEW - 1]) if ordered.shape[0] >= _FEW else 0
    active = np.searchsorted(-ordered, -np.arange(longest), side="left").tolist()
    for done, n in enumerate(active, 1):  # as many as the longest block but a few has elements
        now = at[:n]
        found[first[:n] + done - 1] = now
        at[:n] = layout.skip_all(body, now, limits[:n])
    skip = layout.skip
    for i in np.flatnonzero(ordered > done).tolist():  # few blocks: the rest of each, element by element
        here, end, places = int(at[i]), int(limits[i]), []
        for _ in range(done, int(ordered[i])):
            places.append(here)
            here = skip(body, here, end)
        low = int(first[i]) + done
        found[low : low + len(places)] = places
        at[i] = here
    after[order] = at
    return Places.of(found), bounds, after


def valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell which values are not null."""
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def whole(values: pa.Array) -> pa.Array:
    """Refuse nulls where the type has none."""
    if values.null_count:
        row = int(np.flatnonzero(~valid(values))[0])
        msg = f"could not write values of type {values.type}: found null in row={row}"
        raise SchemaMismatchError(msg, hint="declare what may be null as option<…>")
    return values


class _Number(Layout):
    """Integers and floats, and what is an integer in bytes."""

    def __init__(self, kind: str) -> None:
        plain = WIRE_KINDS.get(kind, kind)
        self.dtype = np.dtype(f"<{plain[0]}{int(plain[1:]) // 8}")
        self.width = self.least = self.dtype.itemsize
        self.arrow = arrow_type(Scalar(kind))
        self.plain = arrow_type(Scalar(plain))

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        return pa.array(body.take(self.dtype, places)).view(self.arrow), places.shift(self.width or 0)

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        put(out, places, np.asarray(values.view(self.plain), self.dtype))
        return places.shift(self.width or 0)


_I128 = np.dtype([("low", "<u8"), ("high", "<i8")])


class _Decimal(Layout):
    """Sixteen bytes, as Arrow has them too: the number without its point."""

    width = least = 16

    def __init__(self, type_: Decimal) -> None:
        self.arrow = arrow_type(type_)
        self.digits = type_.digits
        bound = 10**type_.digits
        self.high, self.low = divmod(bound, 1 << 64)
        self.least_high, self.least_low = divmod(-bound, 1 << 64)

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        values = body.take(_I128, places)
        high, low = values["high"], values["low"]
        wrong = (high > self.high) | ((high == self.high) & (low >= np.uint64(self.low)))
        wrong |= (high < self.least_high) | ((high == self.least_high) & (low <= np.uint64(self.least_low)))
        check(wrong, lambda i: self._too_long(places.at[i], high[i], low[i]))
        raw = pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))
        return pa.Array.from_buffers(self.arrow, places.n, [None, raw]), places.shift(16)

    def _too_long(self, at: int, high: int, low: int) -> Fault:
        number = (int(high) << 64) + int(low)
        return Fault(at, f"the number {number} where a decimal has {self.digits} digits")

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        n = len(values)
        if n:
            put(out, places, np.frombuffer(values.buffers()[1], _I128)[values.offset : values.offset + n])
        return places.shift(16)


class _Bool(Layout):
    """A byte that is 0 or 1."""

    width = least = 1
    arrow = pa.bool_()

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        values = body.take(np.dtype(np.uint8), places)
        check(values > 1, lambda i: Fault(places.at[i], f"the byte {values[i]} where a bool is 0 or 1"))
        return pa.array(values.view(np.bool_)), places.shift(1)

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        put(out, places, values.to_numpy(zero_copy_only=False).view(np.uint8))
        return places.shift(1)


class _Unit(Layout):
    """Nothing, in no bytes."""

    width = least = 0
    arrow = pa.null()

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        del body
        return pa.nulls(places.n), places

    def sizes(self, values: pa.Array) -> Offsets:
        return np.zeros(len(values), np.int64)

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        return places


class _Text(Layout):
    """A string or a byte string: its length in bytes, then these."""

    width = None
    least = 8

    def __init__(self, kind: str) -> None:
        self.arrow = arrow_type(Scalar(kind))

    def skip(self, body: Body, at: int, end: int) -> int:
        return at + 8 + read_count(body, at, end, 1)

    def skip_all(self, body: Body, at: Offsets, ends: Offsets) -> Offsets:
        return at + 8 + read_counts(body, at, ends, 1)

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        lengths = body.take(U64, places).astype(np.int64)
        starts = places.at + 8
        data, bounds = body.gather(starts, lengths)
        buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
        raw = pa.Array.from_buffers(pa.binary(), places.n, buffers)
        if pa.types.is_string(self.arrow):
            try:
                raw = raw.cast(self.arrow)
            except pa.ArrowInvalid:
                raise _not_text(raw, starts) from None
        return raw, Places.of(starts + lengths)

    def sizes(self, values: pa.Array) -> Offsets:
        return np.asarray(pc.binary_length(whole(values)), np.int64) + 8

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        lengths = np.asarray(pc.binary_length(values), np.int64)
        put(out, places, lengths.astype(U64))
        starts = places.at + 8
        bounds = bounds_of(lengths)
        _, offsets, data = values.buffers()
        if data is not None and bounds[-1]:
            first = int(np.frombuffer(offsets, np.int32)[values.offset])
            source = np.frombuffer(data, np.uint8)[first : first + int(bounds[-1])]
            out[spread(starts, lengths, bounds, 1)] = source
        return Places.of(starts + lengths)


def _not_text(raw: pa.Array, starts: Offsets) -> Fault:
    """Find the first value that is no UTF-8, by halves."""
    low, high = 0, len(raw)
    while high - low > 1:
        half = (low + high) // 2
        try:
            raw.slice(low, half - low).cast(pa.string())
            low = half
        except pa.ArrowInvalid:
            high = half
    return Fault(int(starts[low]), f"bytes that are no UTF-8, {shown(raw[low].as_py())}")


def check_nanos(nanos: npt.NDArray[Any], places: Places) -> None:
    """Refuse a duration of which the nanoseconds are a second or more: it would not come out as it went in."""
    found = "nanoseconds beside its seconds"
    check(nanos >= 10**9, lambda i: Fault(places.at[i], f"a duration with {nanos[i]} {found}"))


def scalar_layout(kind: str) -> Layout:
    """Return the layout of a value that holds no others.

    Examples
    --------
    >>> scalar_layout("u32").width
    4
    """
    if kind == "unit":
        return _Unit()
    if kind == "bool":
        return _Bool()
    return _Text(kind) if kind in ("string", "bytes") else _Number(kind)


_U32 = struct.Struct("<I")


class _Option(Layout):
    """A byte 0, or a byte 1 and the value."""

    width = None
    least = 1

    def __init__(self, item: Layout) -> None:
        self.item = item
        self.arrow = item.arrow

    def skip(self, body: Body, at: int, end: int) -> int:
        if at >= end:
            raise cut_short(at, end - at)
        tag = body.data[at]
        if tag > 1:
            raise _no_option(at, tag)
        return self.item.skip(body, at + 1, end) if tag else at + 1

    def skip_all(self, body: Body, at: Offsets, ends: Offsets) -> Offsets:
        after = at + 1
        check_ends(at, after, ends)
        tags = body.array[at]
        check(tags > 1, lambda i: _no_option(at[i], tags[i]))
        held = np.flatnonzero(tags)
        after[held] = self.item.skip_all(body, after[held], ends[held])
        return after

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        at = places.at
        tags = body.array[at]
        held = np.flatnonzero(tags)
        after = at + 1
        values, inner = self.item.read(body, Places.of(after[held]))
        after[held] = inner.at
        return _expanded(values, held, places.n), Places.of(after)

    def sizes(self, values: pa.Array) -> Offsets:
        sizes = np.ones(len(values), np.int64)
        held = np.flatnonzero(valid(values))
        sizes[held] += self.item.sizes(values.drop_null())
        return sizes

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        present = valid(values)
        at = places.at
        out[at] = present.view(np.uint8)
        after = at + 1
        held = np.flatnonzero(present)
        after[held] = self.item.write(values.drop_null(), out, Places.of(after[held])).at
        return Places.of(after)


def _no_option(at: int, tag: int) -> Fault:
    return Fault(at, f"the byte {tag} where an option has 0 or 1")


def _expanded(values: pa.Array, held: npt.NDArray[np.intp], n: int) -> pa.Array:
    """Return n values: those given at their numbers, null elsewhere."""
    if held.shape[0] == n:
        return values
    numbers = np.full(n, -1, np.int64)
    numbers[held] = np.arange(held.shape[0])
    return values.take(pa.array(numbers, mask=numbers < 0))


class _Vec(Layout):
    """The number of elements, then these."""

    width = None
    least = 8

    def __init__(self, item: Layout, arrow: pa.DataType) -> None:
        self.item = item
        self.arrow = arrow

    def skip(self, body: Body, at: int, end: int) -> int:
        count = read_count(body, at, end, self.item.least)
        here = at + 8
        if self.item.width is not None:
            return here + count * self.item.width
        for _ in range(count):
            here = self.item.skip(body, here, end)
        return here

    def skip_all(self, body: Body, at: Offsets, ends: Offsets) -> Offsets:
        counts = read_counts(body, at, ends, self.item.least)
        if self.item.width is not None:
            return at + 8 + counts * self.item.width
        return starts_of(self.item, body, at + 8, counts, ends)[2]

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        counts = body.take(U64, places).astype(np.int64)
        end = np.full(places.n, body.array.shape[0], np.int64)  # they were found to lie within their blocks
        inner, bounds, after = starts_of(self.item, body, places.at + 8, counts, end)
        values, _ = self.item.read(body, inner)
        return self._collected(pa.array(bounds, pa.int32()), values), Places.of(after)

    def _collected(self, bounds: pa.Array, items: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(bounds, items, type=self.arrow)

    def sizes(self, values: pa.Array) -> Offsets:
        offsets, items = _flat(whole(values))
        inner = bounds_of(self.item.sizes(items))
        return inner[offsets[1:]] - inner[offsets[:-1]] + 8

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        offsets, items = _flat(values)
        counts = np.diff(offsets)
        put(out, places, counts.astype(U64))
        starts = places.at + 8
        inner = bounds_of(self.item.sizes(items))
        # Where each element would lie if there was nothing between the vecs, moved to where its vec is.
        at = inner[:-1] + np.repeat(starts - inner[offsets[:-1]], counts)
        self.item.write(items, out, Places.of(at))
        return Places.of(starts + inner[offsets[1:]] - inner[offsets[:-1]])


class _Map(_Vec):
    """The number of pairs, then these: as a vec of pairs."""

    def _collected(self, bounds: pa.Array, items: pa.Array) -> pa.Array:
        return pa.MapArray.from_arrays(bounds, items.field(0), items.field(1), type=self.arrow)


def _flat(values: pa.Array) -> tuple[Offsets, pa.Array]:
    """Return bounds from 0, and the elements of all lists."""
    offsets = np.asarray(values.offsets, np.int64)
    low, high = int(offsets[0]), int(offsets[-1])
    return offsets - low, values.values.slice(low, high - low)


class _Record(Layout):
    """Values of several types one after the other."""

    def __init__(self, items: list[Layout], arrow: pa.DataType, *, nanos: bool) -> None:
        self.items = items
        self.arrow = arrow
        widths = [item.width for item in items]
        self.width = None if None in widths else sum(width for width in widths if width is not None)
        self.least = sum(item.least for item in items)
        self.nanos = nanos

    def skip(self, body: Body, at: int, end: int) -> int:
        if self.width is not None:
            return super().skip(body, at, end)
        for item in self.items:
            at = item.skip(body, at, end)
        return at

    def skip_all(self, body: Body, at: Offsets, ends: Offsets) -> Offsets:
        if self.width is not None:
            return super().skip_all(body, at, ends)
        for item in self.items:
            at = item.skip_all(body, at, ends)
        return at

    def columns(self, body: Body, places: Places) -> tuple[list[pa.Array], Places]:
        """Return an array per item, and the places after the last."""
        found = []
        for item in self.items:
            before = places
            values, places = item.read(body, places)
            found.append(values)
        if self.nanos and places.n:
            check_nanos(np.asarray(found[-1]), before)
        return found, places

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        found, after = self.columns(body, places)
        return pa.StructArray.from_arrays(found, fields=list(self.arrow)), after

    def sizes(self, values: pa.Array) -> Offsets:
        total = np.zeros(len(whole(values)), np.int64)
        for item, part in zip(self.items, self.parts(values), strict=True):
            total += item.sizes(part)
        return total

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        for item, part in zip(self.items, self.parts(values), strict=True):
            places = item.write(part, out, places)
        return places

    @staticmethod
    def parts(values: pa.Array) -> list[pa.Array]:
        return [values.field(i) for i in range(values.type.num_fields)]


class _Choice(Layout):
    """The number of the variant in four bytes, then what it holds."""

    def __init__(self, type_: Choice, items: list[Layout]) -> None:
        self.names = pa.array(type_.names, pa.string())
        self.items = items
        self.empty = [item == UNIT for item in type_.items]
        self.arrow = arrow_type(type_)
        widths = {item.width for item in items}
        width = widths.pop() if len(widths) == 1 else None
        self.width = None if width is None else 4 + width
        self.least = 4 + min(item.least for item in items)

    def skip(self, body: Body, at: int, end: int) -> int:
        if self.width is not None:
            return super().skip(body, at, end)
        if at + 4 > end:
            raise cut_short(at, end - at)
        tag: int = _U32.unpack_from(body.data, at)[0]
        if tag >= len(self.items):
            raise self._unknown(at, tag)
        return self.items[tag].skip(body, at + 4, end)

    def skip_all(self, body: Body, at: Offsets, ends: Offsets) -> Offsets:
        if self.width is not None:
            return super().skip_all(body, at, ends)
        after = at + 4
        check_ends(at, after, ends)
        tags = self._tags(body, Places.of(at))
        for i, item in enumerate(self.items):
            mine = np.flatnonzero(tags == i)
            if mine.shape[0]:
                after[mine] = item.skip_all(body, after[mine], ends[mine])
        return after

    def _tags(self, body: Body, places: Places) -> npt.NDArray[np.int64]:
        tags = body.take(U32, places).astype(np.int64)
        check(tags >= len(self.items), lambda i: self._unknown(places.at[i], tags[i]))
        return tags

    def _unknown(self, at: int, tag: int) -> Fault:
        return Fault(at, f"variant {tag} of an enum of {len(self.items)} variants")

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        tags = self._tags(body, places)
        after = places.at + 4
        found = [self.names.take(pa.array(tags))]
        for i, item in enumerate(self.items):
            mine = np.flatnonzero(tags == i)
            values, inner = item.read(body, Places.of(after[mine]))
            after[mine] = inner.at
            if not self.empty[i]:
                found.append(_expanded(values, mine, places.n))
        return pa.StructArray.from_arrays(found, fields=list(self.arrow)), Places.of(after)

    def _numbers(self, values: pa.Array) -> npt.NDArray[np.int64]:
        numbers = pc.index_in(values.field(0), value_set=self.names)
        if numbers.null_count:
            i = int(np.flatnonzero(~valid(numbers))[0])
            found = values.field(0)[i].as_py()
            msg = f"could not write an enum: found variant={shown(found)} in row={i}"
            raise SchemaMismatchError(msg, hint=f"use its variants: {', '.join(self.names.to_pylist())}")
        return np.asarray(numbers, np.int64)

    def _parts(self, values: pa.Array) -> list[tuple[Layout, npt.NDArray[np.intp], pa.Array]]:
        numbers = self._numbers(values)
        parts: list[tuple[Layout, npt.NDArray[np.intp], pa.Array]] = []
        place = 1
        for i, item in enumerate(self.items):
            mine = np.flatnonzero(numbers == i)
            if self.empty[i]:
                parts.append((item, mine, pa.nulls(len(mine))))
            else:
                parts.append((item, mine, values.field(place).take(pa.array(mine))))
                place += 1
        return parts

    def sizes(self, values: pa.Array) -> Offsets:
        total = np.full(len(whole(values)), 4, np.int64)
        for item, mine, part in self._parts(values):
            total[mine] += item.sizes(part)
        return total

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        put(out, places, self._numbers(values).astype(U32))
        after = places.at + 4
        for item, mine, part in self._parts(values):
            after[mine] = item.write(part, out, Places.of(after[mine])).at
        return Places.of(after)


def layout_of(type_: Type) -> Layout:
    """Return the layout of a type.

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> layout_of(parse_type("(u64, (bool, u16))")).width
    11
    """
    if isinstance(type_, Scalar):
        return scalar_layout(type_.kind)
    if isinstance(type_, Option):
        return _Option(layout_of(type_.item))
    if isinstance(type_, Vec):
        return _Vec(layout_of(type_.item), arrow_type(type_))
    if isinstance(type_, Map):
        return _Map(layout_of(Record(("key", "value"), (type_.key, type_.item), "tuple")), arrow_type(type_))
    if isinstance(type_, Decimal):
        return _Decimal(type_)
    items = [layout_of(item) for item in type_.items]
    if isinstance(type_, Choice):
        return _Choice(type_, items)
    assert isinstance(type_, Record)
    return _Record(items, arrow_type(type_), nanos=type_.kind == "duration")


JsonTime: TypeAlias = "int | list[JsonTime] | None"

_SECOND = 1_000_000_000
_LOG_TYPES = {
    "i64": "long",
    "u64": "long",
    "u32": "long",
    "i32": "int",
    "u16": "int",
    "i16": "short",
    "u8": "short",
    "i8": "short",
    "date_days": "date",
    "timestamp_us": "timestamp",
}
_HI = (1 << 63) - 1
_MOST = (1 << 64) - 1


def log_times(times: IntArray) -> IntArray:
    """Return times as int64 if a log can hold all of them, as uint64 otherwise; not copied.

    Examples
    --------
    >>> log_times(np.array([[5]], np.uint64)).dtype, log_times(np.array([[1 << 63]], np.uint64)).dtype
    (dtype('int64'), dtype('uint64'))
    """
    return times.view(np.int64) if times.dtype == np.uint64 and (times <= _HI).all() else times


def too_late(times: IntArray) -> npt.NDArray[np.bool_]:
    """Tell which times have a coordinate that no log can hold, 2^63 or more.

    Examples
    --------
    >>> too_late(np.array([[5], [1 << 63]], np.uint64)).tolist()
    [False, True]
    """
    if times.dtype != np.uint64:
        return np.zeros(times.shape[0], np.bool_)
    return np.asarray((times > _HI).any(axis=1), np.bool_)


def cut_times(times: IntArray) -> IntArray:
    """Return times with what is too late cut to 2^63 - 1; they are beyond the same times of a log as before.

    Examples
    --------
    >>> cut_times(np.array([[5], [1 << 63]], np.uint64)).tolist()
    [[5], [9223372036854775807]]
    """
    return np.minimum(times, _HI).astype(np.int64) if times.dtype == np.uint64 else times


class TimeLayout:
    """The layout of times of one type in bytes.

    Parameters
    ----------
    declared : str or Type

    Raises
    ------
    InvalidUsageError
        If it is no type of times.

    Examples
    --------
    >>> layout = TimeLayout("Product<u64, u64>")
    >>> layout.width, layout.domain.types, layout.domain.minimum
    (16, (<TimeType.LONG: 'long'>, <TimeType.LONG: 'long'>), (0, 0))
    """

    def __init__(self, declared: str | Type) -> None:
        self.type = parse_type(declared) if isinstance(declared, str) else declared
        self.text = type_text(self.type)
        self.leaves = tuple(_leaves(self.type, self.text))
        self.width = sum(12 if kind == "duration" else _integer(kind).itemsize for kind in self.leaves)
        kinds = self.leaves or ("u64",)
        minimum = [self.bounds(kind)[0] for kind in kinds]
        self.domain = TimeDomain(tuple(TimeType(_LOG_TYPES.get(kind, "long")) for kind in kinds), tuple(minimum))

    @property
    def arity(self) -> int:
        """Number of coordinates."""
        return self.domain.arity

    @property
    def may_be_vast(self) -> bool:
        """Whether there are times of 2^63 or more that an array of uint64 holds."""
        return "u64" in self.leaves and all(kind[0] == "u" for kind in self.leaves)

    def read(self, body: Body, places: Places, *, vast: bool = False) -> IntArray:
        """Return the times at places, shape (n, k). Raises `Fault`.

        Parameters
        ----------
        body : Body
        places : Places
        vast : bool
            Whether times of 2^63 or more are read as well, where all coordinates are unsigned integers; the array is
            of uint64 then.
        """
        vast = vast and self.may_be_vast
        times: IntArray = np.zeros((places.n, self.arity), np.uint64 if vast else np.int64)
        for i, kind in enumerate(self.leaves):
            if kind == "duration":
                seconds = body.take(np.dtype("<u8"), places)
                after = places.shift(8)
                nanos = body.take(np.dtype("<u4"), after)
                check_nanos(nanos, after)
                _refuse_late(seconds >= _HI // _SECOND, seconds, places)
                times[:, i] = seconds.astype(np.int64) * _SECOND + nanos.astype(np.int64)
                places = after.shift(4)
                continue
            values = body.take(_integer(kind), places)
            if kind == "u64" and not vast:
                _refuse_late(values > _HI, values, places)
            elif kind in WIRE_KINDS:
                values = self._from_wire(kind, values, places)
            times[:, i] = values
            places = places.shift(values.dtype.itemsize)
        return log_times(times)

    def _from_wire(self, kind: str, values: npt.NDArray[Any], places: Places) -> npt.NDArray[Any]:
        """Return dates or timestamps for integers, of which the least stands for the least time."""
        low, high = self.bounds(kind)
        least = values == np.iinfo(values.dtype).min
        hint = f"declare the type that the file holds; if you did: a log has {kind} above {low} and up to {high}"
        wrong = ~least & ((values <= low) | (values > high))
        check(wrong, lambda i: Fault(places.at[i], f"the time {values[i]}", hint))
        return np.where(least, values.dtype.type(low), values)

    def write(self, times: IntArray) -> Bytes:
        """Return the bytes of times, shape (n, width).

        Raises
        ------
        InvalidUsageError
            If a time is none of this type, as a negative one where it is unsigned.
        """
        n = times.shape[0]
        out = np.empty(n * self.width, np.uint8)
        offset = 0
        for i, kind in enumerate(self.leaves):
            values = np.ascontiguousarray(times[:, i])
            low, high = self.bounds(kind)
            if kind == "u64" and values.dtype == np.uint64:
                high = _MOST
            wrong = (values < low) | (values > high)
            if wrong.any():
                found = int(values[wrong][0])
                msg = f"could not write times as {self.text}: found {found}"
                raise InvalidUsageError(msg, hint=f"declare another type: {kind} reaches from {low} to {high}")
            if kind == "duration":
                put(out, Places(n, offset, self.width), (values // _SECOND).astype("<u8"))
                put(out, Places(n, offset + 8, self.width), (values % _SECOND).astype("<u4"))
                offset += 12
                continue
            dtype = _integer(kind)
            if kind in WIRE_KINDS:
                values = np.where(values == low, np.iinfo(dtype).min, values)
            put(out, Places(n, offset, self.width), values.astype(dtype))
            offset += dtype.itemsize
        return out.reshape(n, self.width)

    @staticmethod
    def bounds(kind: str) -> tuple[int, int]:
        """Return least and greatest coordinate of a kind that a log can hold."""
        if kind in ("duration", "u64"):
            return 0, _HI
        if kind in WIRE_KINDS:
            type_ = TimeType(_LOG_TYPES[kind])
            return type_.lo, type_.hi
        bits = int(kind[1:])
        return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "i" else (0, (1 << bits) - 1)

    def to_json(self, time: Sequence[int]) -> JsonTime:
        """Return a time as its type is written: an integer, nested lists, null for the unit.

        Examples
        --------
        >>> TimeLayout("product<product<u64, u64>, duration>").to_json([1, 2, 3_000_000_004])
        [[1, 2], [3, 4]]
        """
        return _to_json(self.type, iter(time))

    def from_json(self, value: object, *, vast: bool = False) -> tuple[int, ...]:
        """Read a time that `to_json` gave.

        Parameters
        ----------
        value
        vast : bool
            As in `read`.

        Raises
        ------
        InvalidUsageError
            If it is no time of this type.
        """
        found = list(self._from_json(self.type, value))
        for coordinate, kind in zip(found, self.leaves, strict=True):
            low, high = self.bounds(kind)
            if vast and kind == "u64" and self.may_be_vast:
                high = _MOST
            if not low <= coordinate <= high:
                raise self._no_time(value)
        return tuple(found) or (0,)

    def _from_json(self, type_: Type, value: object) -> Iterator[int]:
        if type_ == UNIT and value is None:
            return
        if isinstance(type_, Record) and isinstance(value, list) and len(value) == len(type_.items):
            if type_.kind == "duration":
                if not all(isinstance(part, int) for part in value) or not 0 <= value[1] < _SECOND:
                    raise self._no_time(value)
                yield value[0] * _SECOND + value[1]
                return
            for item, part in zip(type_.items, value, strict=True):
                yield from self._from_json(item, part)
            return
        if type_ == UNIT or not isinstance(type_, Scalar) or isinstance(value, bool) or not isinstance(value, int):
            raise self._no_time(value)
        if type_.kind in WIRE_KINDS:
            low, high = self.bounds(type_.kind)
            if value == _to_wire(type_.kind, low):
                value = low
            elif not low < value <= high:
                raise self._no_time(value)
        yield value

    def _no_time(self, value: object) -> InvalidUsageError:
        msg = f"could not read a time of type {self.text}: found {shown(value)}"
        return InvalidUsageError(
            msg, hint="write integers bare, products as lists, durations as [seconds, nanoseconds]"
        )


def _integer(kind: str) -> np.dtype[Any]:
    """Return the integer that a coordinate is in bytes."""
    plain = WIRE_KINDS.get(kind, kind)
    return np.dtype(f"<{plain[0]}{int(plain[1:]) // 8}")


def _to_wire(kind: str, coordinate: int) -> int:
    """Return the integer that a date or a timestamp is outside of a log."""
    return int(np.iinfo(_integer(kind)).min) if coordinate == TimeLayout.bounds(kind)[0] else coordinate


@lru_cache(maxsize=256)
def time_layout(declared: str | Type) -> TimeLayout:
    """Return the layout of times of a type, the same one each time: it holds nothing that changes.

    Examples
    --------
    >>> time_layout("u64") is time_layout("u64")
    True
    """
    return TimeLayout(declared)


def _leaves(type_: Type, text: str) -> Iterator[str]:
    if isinstance(type_, Scalar) and type_.kind in _LOG_TYPES:
        yield type_.kind
    elif isinstance(type_, Record) and type_.kind == "duration":
        yield "duration"
    elif isinstance(type_, Record):
        for item in type_.items:
            yield from _leaves(item, text)
    elif type_ != UNIT:
        msg = f"could not use {text!r} as a type of times: found {type_text(type_)!r}"
        hint = "declare times as integers, date_days, timestamp_us, duration, (), or products of those"
        raise InvalidUsageError(msg, hint=hint)


def _to_json(type_: Type, coordinates: Iterator[int]) -> JsonTime:
    if type_ == UNIT:
        return None
    if isinstance(type_, Scalar):
        coordinate = next(coordinates)
        return _to_wire(type_.kind, coordinate) if type_.kind in WIRE_KINDS else coordinate
    assert isinstance(type_, Record)
    if type_.kind == "duration":
        return list(divmod(next(coordinates), _SECOND))
    return [_to_json(item, coordinates) for item in type_.items]


LATE_HINT = "declare the type that the file holds; if you did: times of a log are below 2^63"


def _refuse_late(wrong: npt.NDArray[np.bool_], values: npt.NDArray[Any], places: Places) -> None:
    check(wrong, lambda i: Fault(places.at[i], f"the time {values[i]}", LATE_HINT))


def time_text_of(domain: TimeDomain) -> str:
    """Return a type of times for a log that was not imported: what its coordinates are.

    Examples
    --------
    >>> time_text_of(TimeDomain(("long", "timestamp"), (0, 0)))
    'product<u64, timestamp_us>'
    >>> time_text_of(TimeDomain(("date",)))
    'date_days'
    """
    known = {"date": "date_days", "timestamp": "timestamp_us"}
    widths = {"long": 64, "int": 32, "short": 16}
    parts = [
        known.get(type_.value) or f"{'u' if least >= 0 else 'i'}{widths[type_.value]}"
        for type_, least in zip(domain.types, domain.minimum, strict=True)
    ]
    return parts[0] if len(parts) == 1 else f"product<{', '.join(parts)}>"
