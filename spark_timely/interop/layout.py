"""How values of a type lie in bytes, as bincode writes them: read into Arrow and written from it.

All values of a type are read at once: what has a fixed width by arithmetic, the rest after its places
were found. To find them is the only thing that goes from value to value (`starts_of`); that is done
for all blocks of records in step, or one by one where there are few blocks.

Invariants
----------
1. `read` is called for places that `skip` or the arithmetic of fixed widths has found to lie within
   their block: it checks what values may be, not where they end.
2. Whatever the bytes say, no array is made that is larger than a fixed multiple of them: a count is
   compared with the room that is left before anything is made of that size.
3. What is written is what was read, byte for byte.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import SchemaMismatchError, shown
from spark_timely.interop.places import Body, Bytes, Fault, Offsets, Places, put, spread
from spark_timely.interop.schema import Scalar, arrow_type

__all__ = [
    "U32",
    "U64",
    "WRONG_TYPE",
    "Layout",
    "check_ends",
    "check_nanos",
    "cut_short",
    "read_count",
    "read_counts",
    "scalar_layout",
    "starts_of",
    "valid",
    "whole",
]

U32, U64 = np.dtype("<u4"), np.dtype("<u8")
_U64 = struct.Struct("<Q")
_FEW = 16
"""Blocks below which going one by one is quicker than in step: a step costs what some ten values cost."""

WRONG_TYPE = "the declared type is not what the file holds, or the file is damaged"


class Layout(ABC):
    """How values of one type lie in bytes.

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

    @abstractmethod
    def sizes(self, values: pa.Array) -> Offsets:
        """Return the bytes that each value takes; refuse what cannot be written.

        Raises
        ------
        SchemaMismatchError
            If a value is null that has to be there, or an enum has no such variant.
        """

    @abstractmethod
    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        """Write values to places, and return the places after them."""


def cut_short(at: int, room: int) -> Fault:
    """Return the fault of a value that ends outside of its event."""
    return Fault(at, f"a value that needs more than the {room} bytes left of its event", WRONG_TYPE)


def check_ends(at: Offsets, after: Offsets, ends: Offsets) -> None:
    """Refuse values that end outside of their blocks."""
    wrong = after > ends
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise cut_short(int(at[i]), int(ends[i] - at[i]))


def read_counts(body: Body, at: Offsets, ends: Offsets, least: int) -> Offsets:
    """Read the number of elements at each offset, and refuse those for which there is no room."""
    check_ends(at, at + 8, ends)
    counts = body.take(U64, Places.of(at))
    room = ((ends - at - 8) // least).astype(np.uint64)
    wrong = counts > room
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise _too_many(int(at[i]), int(counts[i]), int(ends[i] - at[i] - 8))
    return counts.astype(np.int64)


def _too_many(at: int, count: int, room: int) -> Fault:
    return Fault(at, f"a length of {count} where {room} bytes are left of the event", WRONG_TYPE)


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
    bounds = np.zeros(counts.shape[0] + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    if layout.width is not None:
        after = starts + counts * layout.width
        check_ends(starts, after, ends)
        return Places.of(spread(starts, counts, bounds, layout.width)), bounds, after
    found = np.empty(int(bounds[-1]), np.int64)
    after = starts.copy()
    # Longest first: those that have an n-th element are then the first so many.
    order = np.argsort(-counts, kind="stable")
    ordered, first, limits = counts[order], bounds[:-1][order], ends[order]
    at = starts[order]
    done = 0
    longest = int(ordered[_FEW - 1]) if ordered.shape[0] >= _FEW else 0
    active = np.searchsorted(-ordered, -np.arange(longest), side="left").tolist()
    for done, n in enumerate(active, 1):  # as many turns as the longest but a few blocks have elements
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
    """Integers and floats."""

    def __init__(self, kind: str) -> None:
        self.dtype = np.dtype(f"<{kind[0]}{int(kind[1:]) // 8}")
        self.width = self.least = self.dtype.itemsize
        self.arrow = arrow_type(Scalar(kind))

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        return pa.array(body.take(self.dtype, places)), places.shift(self.width or 0)

    def sizes(self, values: pa.Array) -> Offsets:
        return np.full(len(whole(values)), self.width, np.int64)

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        put(out, places, np.asarray(values, self.dtype))
        return places.shift(self.width or 0)


class _Bool(Layout):
    """A byte that is 0 or 1."""

    width = least = 1
    arrow = pa.bool_()

    def read(self, body: Body, places: Places) -> tuple[pa.Array, Places]:
        values = body.take(np.dtype(np.uint8), places)
        if places.n and int(values.max()) > 1:
            i = int(np.flatnonzero(values > 1)[0])
            raise Fault(int(places.at[i]), f"the byte {values[i]} where a bool is 0 or 1", WRONG_TYPE)
        return pa.array(values.view(np.bool_)), places.shift(1)

    def sizes(self, values: pa.Array) -> Offsets:
        return np.ones(len(whole(values)), np.int64)

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
        bounds = np.zeros(len(values) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
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
    return Fault(int(starts[low]), f"bytes that are no UTF-8, {shown(raw[low].as_py())}", WRONG_TYPE)


def check_nanos(nanos: npt.NDArray[Any], places: Places) -> None:
    """Refuse a duration of which the nanoseconds are a second or more: it would not come out as it went in."""
    wrong = nanos >= 10**9
    if np.any(wrong):
        i = int(np.flatnonzero(wrong)[0])
        raise Fault(int(places.at[i]), f"a duration with {nanos[i]} nanoseconds beside its seconds", WRONG_TYPE)


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
