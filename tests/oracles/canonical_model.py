"""The canonical hash, by integers and loops, one row and one byte at a time.

Written from the formula in the documentation of `spark_timely.canonical.row_hash` and
`spark_timely.canonical.state`: shares no code with the library.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache

WORD = 2**64
Time = tuple[int, ...]


class MapValue(list):  # type: ignore[type-arg]
    """A map, as a list of (key, value): plain lists are lists."""


class Nanoseconds:
    """A moment or a span in nanoseconds: Python's own types end at microseconds."""

    def __init__(self, kind: str, value: int) -> None:
        self.kind, self.value = kind, value


class Interval:
    """Months, days and nanoseconds."""

    def __init__(self, months: int, days: int, nanoseconds: int) -> None:
        self.parts = (months, days, nanoseconds)


@cache
def constant(lane: int, text: str) -> int:
    """Return the lane's constant for a text."""
    return struct.unpack("<Q", hashlib.sha256(f"spark_timely canonical 1|{lane}|{text}".encode()).digest()[:8])[0]


def mix(x: int, lane: int) -> int:
    """Mix one word."""
    x %= WORD
    x ^= x >> 32
    x = x * (constant(lane, "multiply 1") | 1) % WORD
    x ^= x >> 29
    x = x * (constant(lane, "multiply 2") | 1) % WORD
    return x ^ x >> 32


def final(x: int, lane: int) -> int:
    """Finish a sum."""
    return mix(x + constant(lane, "final"), lane)


def step(lane: int) -> int:
    """Return the distance between the words of one value."""
    return constant(lane, "step") | 1


def integer_words(value: int) -> list[int]:
    """Return two's complement in as few words as hold the value."""
    n = 1
    while not -(2 ** (64 * n - 1)) <= value < 2 ** (64 * n - 1):
        n += 1
    return [value >> 64 * j & WORD - 1 for j in range(n)]


def byte_words(data: bytes) -> list[int]:
    """Return the bytes, an end mark, and padding as words."""
    data += b"\x01"
    data += bytes(-len(data) % 8)
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def moment_words(nanoseconds: int) -> list[int]:
    """Return microseconds, and nanoseconds where some are left over."""
    micros, rest = divmod(nanoseconds, 1000)
    return [micros % WORD, rest] if rest else [micros % WORD]


def span(value: dt.timedelta) -> int:
    """Return a span in nanoseconds."""
    return ((value.days * 86400 + value.seconds) * 10**6 + value.microseconds) * 1000


def kind_and_words(value: object, lane: int) -> tuple[str, list[int]]:
    """Return what a value is and the words that say it."""
    match value:
        case bool():
            return "boolean", [int(value)]
        case int():
            return "integer", integer_words(value)
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            unscaled = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
            scale = -exponent
            if scale < 0:
                unscaled, scale = unscaled * 10**-scale, 0
            while scale and unscaled % 10 == 0:
                unscaled, scale = unscaled // 10, scale - 1
            if scale == 0:
                return "integer", integer_words(unscaled)
            return "decimal", [scale, *integer_words(unscaled)]
        case float():
            bits = struct.unpack("<Q", struct.pack("<d", value))[0]
            if math.isnan(value):
                bits = 0x7FF8000000000000
            return "float", [0 if value == 0 else bits]
        case str():
            return "string", byte_words(value.encode())
        case bytes():
            return "binary", byte_words(value)
        case dt.datetime() if value.tzinfo is not None:
            return "timestamp", moment_words(span(value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)))
        case dt.datetime():
            return "timestamp_ntz", moment_words(span(value - dt.datetime(1970, 1, 1)))
        case dt.date():
            return "date", [(value - dt.date(1970, 1, 1)).days % WORD]
        case dt.time():
            since = dt.timedelta(
                hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
            )
            return "time", moment_words(span(since))
        case dt.timedelta():
            return "duration", moment_words(span(value))
        case Nanoseconds():
            return value.kind, moment_words(value.value)
        case Interval():
            return "interval", [part % WORD for part in value.parts]
        case MapValue():
            entries = (final(contribution(k, "{}", lane) + contribution(v, "{}=", lane), lane) for k, v in value)
            return "map", [final(len(value) + sum(entries), lane)]
        case list():
            elements = (
                mix(contribution(element, "[]", lane) + (i + 1) * step(lane), lane)
                for i, element in enumerate(value)
                if element is not None
            )
            return "list", [final(len(value) + sum(elements), lane)]
        case Mapping():
            return "struct", [final(sum(contribution(v, str(k), lane) for k, v in value.items()), lane)]
    raise TypeError(type(value))


def contribution(value: object, place: str, lane: int) -> int:
    """Return what a value adds to its row, or to the value around it."""
    if value is None:
        return 0
    kind, words = kind_and_words(value, lane)
    key = constant(lane, f"{kind} {place}")
    return sum(mix(word + key + j * step(lane), lane) for j, word in enumerate(words)) % WORD


def row_hash(row: Mapping[str, object]) -> tuple[int, int]:
    """Return both lanes of the hash of a row."""
    high, low = (final(sum(contribution(v, name, lane) for name, v in row.items()), lane) for lane in (0, 1))
    return high, low


def digest(
    rows: Iterable[tuple[Time, Mapping[str, object]] | tuple[Time, Mapping[str, object], int]],
    frontier: Iterable[Time],
    arity: int = 1,
) -> str:
    """Return the canonical hash of rows with their times (and weights) under a final frontier."""
    final_frontier = sorted(frontier)
    sums: dict[Time, list[int]] = {}
    for time, row, *weights in rows:
        if any(all(f <= t for f, t in zip(element, time, strict=True)) for element in final_frontier):
            continue
        weight = weights[0] if weights else 1
        entry = sums.setdefault(time, [0, 0, 0])
        for i, part in enumerate((1, *row_hash(row))):
            entry[i] = (entry[i] + weight * part) % WORD
    closed = sorted((time, entry) for time, entry in sums.items() if any(entry))
    text = b"spark_timely canonical 1\0"
    numbers = [arity, len(closed)]
    for time, entry in closed:
        numbers += [*time, *entry]
    numbers += [len(final_frontier), *(x for element in final_frontier for x in element)]
    return hashlib.sha256(text + b"".join((n % WORD).to_bytes(8, "little") for n in numbers)).hexdigest()
