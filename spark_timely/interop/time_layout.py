"""The binary layout of captured times, as `TimeLayout`: reads them into arrays, writes them, and says them in JSON.

`reader`, `writer` and `jsonl` use it for the times of events, `cdcv2.reader` for those of messages. `layout` does the
same for records, which may be of more types.

A time is an integer, a date, a timestamp, a duration, the unit, or a product of those. In a log it has a coordinate for
each of them, a duration's in nanoseconds; the unit has none, unless it is alone: then its one time is 0. In the bytes
dates are days and timestamps are microseconds, as signed integers. The least integer stands for the least date of a
log, 1700-01-01.

Invariants
----------
1. Times of several coordinates are ordered by each of them, as in a log, also where the capture calls them pairs.
2. A time that a log cannot hold, 2^63 or more, is refused, never wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_timely.errors import InvalidUsageError, shown
from spark_timely.interop.buffers import Body, Bytes, Fault, Places, check, put
from spark_timely.interop.layout import check_nanos
from spark_timely.interop.schema import UNIT, WIRE_KINDS, Record, Scalar, Type, parse_type, type_text
from spark_timely.time.antichain import IntArray
from spark_timely.time.domain import TimeDomain, TimeType

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
