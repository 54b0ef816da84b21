"""How values that hold others lie in bytes: options, lists, records, enums. See `spark_timely.interop.layout`."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import SchemaMismatchError, shown
from spark_timely.interop.layout import (
    U32,
    U64,
    WRONG_TYPE,
    Layout,
    check_ends,
    check_nanos,
    cut_short,
    read_count,
    read_counts,
    scalar_layout,
    starts_of,
    valid,
    whole,
)
from spark_timely.interop.places import Body, Bytes, Fault, Offsets, Places, put
from spark_timely.interop.schema import UNIT, Choice, Option, Record, Scalar, Type, Vec, arrow_type

__all__ = ["layout_of"]

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
        if tags.shape[0] and tags.max() > 1:
            i = int(np.flatnonzero(tags > 1)[0])
            raise _no_option(int(at[i]), int(tags[i]))
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
    return Fault(at, f"the byte {tag} where an option has 0 or 1", WRONG_TYPE)


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
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values, type=self.arrow), Places.of(after)

    def sizes(self, values: pa.Array) -> Offsets:
        offsets, items = _flat(whole(values))
        inner = np.zeros(len(items) + 1, np.int64)
        np.cumsum(self.item.sizes(items), out=inner[1:])
        return inner[offsets[1:]] - inner[offsets[:-1]] + 8

    def write(self, values: pa.Array, out: Bytes, places: Places) -> Places:
        offsets, items = _flat(values)
        counts = np.diff(offsets)
        put(out, places, counts.astype(U64))
        starts = places.at + 8
        inner = np.zeros(len(items) + 1, np.int64)
        np.cumsum(self.item.sizes(items), out=inner[1:])
        # Where each element would lie if there was nothing between the vecs, moved to where its vec is.
        at = inner[:-1] + np.repeat(starts - inner[offsets[:-1]], counts)
        self.item.write(items, out, Places.of(at))
        return Places.of(starts + inner[offsets[1:]] - inner[offsets[:-1]])


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
        for i, item in enumerate(self.items):  # as many turns as variants
            mine = np.flatnonzero(tags == i)
            if mine.shape[0]:
                after[mine] = item.skip_all(body, after[mine], ends[mine])
        return after

    def _tags(self, body: Body, places: Places) -> npt.NDArray[np.int64]:
        tags = body.take(U32, places).astype(np.int64)
        if places.n and int(tags.max()) >= len(self.items):
            i = int(np.flatnonzero(tags >= len(self.items))[0])
            raise self._unknown(int(places.at[i]), int(tags[i]))
        return tags

    def _unknown(self, at: int, tag: int) -> Fault:
        return Fault(at, f"variant {tag} of an enum of {len(self.items)} variants", WRONG_TYPE)

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
            raise SchemaMismatchError(msg, hint=f"its variants are {', '.join(self.names.to_pylist())}")
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
    items = [layout_of(item) for item in type_.items]
    if isinstance(type_, Choice):
        return _Choice(type_, items)
    assert isinstance(type_, Record)
    return _Record(items, arrow_type(type_), nanos=type_.kind == "duration")
