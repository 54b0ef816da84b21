"""Times of captures: how they lie in bytes, and what they are in a log.

A time is an integer, a duration, the unit, or a product of those. In a log it has a coordinate for each
integer and each duration (in nanoseconds); the unit has none, unless it is alone: then its one time is 0.

Invariants
----------
1. Coordinates are compared one by one, as in a log: pairs of times are products, whatever they are called.
2. A time that a log cannot hold, 2^63 or more, is refused, never wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_timely.errors import InvalidUsageError, shown
from spark_timely.interop.layout import Body, Bytes, Fault, Places, check_nanos, put
from spark_timely.interop.schema import UNIT, Record, Scalar, Type, parse_type, type_text
from spark_timely.time.arrays import IntArray
from spark_timely.time.domain import TimeDomain, TimeType

__all__ = ["TimeLayout", "time_layout", "time_text_of"]

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
}
_HI = (1 << 63) - 1


class TimeLayout:
    """How times of one type lie in bytes.

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
        self.width = sum(12 if kind == "duration" else int(kind[1:]) // 8 for kind in self.leaves)
        kinds = self.leaves or ("u64",)
        minimum = [-(1 << (int(kind[1:]) - 1)) if kind[0] == "i" else 0 for kind in kinds]
        self.domain = TimeDomain(tuple(TimeType(_LOG_TYPES.get(kind, "long")) for kind in kinds), tuple(minimum))

    @property
    def arity(self) -> int:
        """Number of coordinates."""
        return self.domain.arity

    def read(self, body: Body, places: Places) -> IntArray:
        """Return the times at places, shape (n, k). Raises `Fault`."""
        times = np.zeros((places.n, self.arity), np.int64)
        for i, kind in enumerate(self.leaves):
            if kind == "duration":
                seconds = body.take(np.dtype("<u8"), places)
                after = places.shift(8)
                nanos = body.take(np.dtype("<u4"), after)
                check_nanos(nanos, after)
                _refuse(seconds >= _HI // _SECOND, seconds, places)
                times[:, i] = seconds.astype(np.int64) * _SECOND + nanos.astype(np.int64)
                places = after.shift(4)
                continue
            values = body.take(np.dtype(f"<{kind[0]}{int(kind[1:]) // 8}"), places)
            if kind == "u64":
                _refuse(values > _HI, values, places)
            times[:, i] = values
            places = places.shift(int(kind[1:]) // 8)
        return times

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
            wrong = (values < low) | (values > high)
            if wrong.any():
                found = int(values[wrong][0])
                msg = f"could not write times as {self.text}: found {found}"
                raise InvalidUsageError(msg, hint=f"{kind} reaches from {low} to {high}; declare another type")
            if kind == "duration":
                put(out, Places(n, offset, self.width), (values // _SECOND).astype("<u8"))
                put(out, Places(n, offset + 8, self.width), (values % _SECOND).astype("<u4"))
                offset += 12
                continue
            dtype = np.dtype(f"<{kind[0]}{int(kind[1:]) // 8}")
            put(out, Places(n, offset, self.width), values.astype(dtype))
            offset += dtype.itemsize
        return out.reshape(n, self.width)

    @staticmethod
    def bounds(kind: str) -> tuple[int, int]:
        """Return least and greatest coordinate of a kind that a log can hold."""
        if kind in ("duration", "u64"):
            return 0, _HI
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

    def from_json(self, value: object) -> tuple[int, ...]:
        """Read a time that `to_json` gave.

        Raises
        ------
        InvalidUsageError
            If it is no time of this type.
        """
        found = list(self._from_json(self.type, value))
        for coordinate, kind in zip(found, self.leaves, strict=True):
            low, high = self.bounds(kind)
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
        yield value

    def _no_time(self, value: object) -> InvalidUsageError:
        msg = f"could not read a time of type {self.text}: found {shown(value)}"
        return InvalidUsageError(msg, hint="integers stay bare, products are lists, durations [seconds, nanoseconds]")


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
        raise InvalidUsageError(msg, hint="times are integers, duration, (), or products of those")


def _to_json(type_: Type, coordinates: Iterator[int]) -> JsonTime:
    if type_ == UNIT:
        return None
    if isinstance(type_, Scalar):
        return next(coordinates)
    assert isinstance(type_, Record)
    if type_.kind == "duration":
        return list(divmod(next(coordinates), _SECOND))
    return [_to_json(item, coordinates) for item in type_.items]


def _refuse(wrong: npt.NDArray[np.bool_], values: npt.NDArray[Any], places: Places) -> None:
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        hint = "times of a log are below 2^63; if they should be, the declared type is not what the file holds"
        raise Fault(int(places.at[i]), f"the time {values[i]}", hint)


def time_text_of(domain: TimeDomain) -> str:
    """Return a type of times for a log that was not imported: what its coordinates are.

    Dates are days since 1970, timestamps microseconds.

    Examples
    --------
    >>> time_text_of(TimeDomain(("long", "timestamp"), (0, 0)))
    'product<u64, u64>'
    >>> time_text_of(TimeDomain(("date",)))
    'i32'
    """
    widths = {"long": 64, "int": 32, "short": 16, "date": 32, "timestamp": 64}
    parts = [
        f"{'u' if least >= 0 else 'i'}{widths[type_.value]}"
        for type_, least in zip(domain.types, domain.minimum, strict=True)
    ]
    return parts[0] if len(parts) == 1 else f"product<{', '.join(parts)}>"
