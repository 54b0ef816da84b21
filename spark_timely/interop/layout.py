"""The binary layout of captured values: reads what Rust's bincode wrote into Arrow arrays, and writes it from them.

`layout_of` makes a `Layout` for each type that `schema` can declare: numbers, texts, options, vecs, records, enums and
what they hold. `reader` reads records by it, and `writer` writes them; the layout of times is `time_layout`.

All values of a type are read at once. Where values have a fixed width their offsets are arithmetic. Else `starts_of`
finds them first, the only work from value to value: of many blocks of records in step, the n-th value of all blocks at
once; of few blocks one by one.

Invariants
----------
1. `read` gets only offsets of values that are within their block, by `skip` or by fixed widths. So it checks what
   values may be, not where they end.
2. What was read and is written again is the same, byte for byte.
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
from spark_timely.interop.buffers import (
    U32,
    U64,
    Body,
    Bytes,
    Fault,
    Offsets,
    Places,
    bounds_of,
    check,
    check_ends,
    cut_short,
    put,
    read_count,
    read_counts,
    spread,
)
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
)

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
