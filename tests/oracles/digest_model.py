"""The digest ``spark1`` of rows, by integers and loops.

Written from the documentation of `spark_timely.spark.capture.classify` and from the description of xxHash's 64-bit
variant: shares no code with the library or with Spark. A value is a pair of its Spark type's name and its Python value.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import struct
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal

WORD = 2**64
PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)
SEED = 42
Value = tuple[str, object]


def turned(x: int, bits: int) -> int:
    """Rotate to the left."""
    x %= WORD
    return (x << bits | x >> 64 - bits) % WORD


def mixed_in(state: int, word: int) -> int:
    """Return what a word of 8 bytes makes of one of the four sums."""
    return turned(state + word * PRIME_2, 31) * PRIME_1 % WORD


def xxhash64(data: bytes, seed: int) -> int:
    """Return xxHash, 64 bits, of bytes."""
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data) // 8 * 8, 8)]
    n_striped = len(data) // 32 * 4
    state = (seed + PRIME_5) % WORD
    if n_striped:
        sums = [(seed + start) % WORD for start in (PRIME_1 + PRIME_2, PRIME_2, 0, -PRIME_1)]
        for i in range(n_striped):
            sums[i % 4] = mixed_in(sums[i % 4], words[i])
        state = sum(turned(part, bits) for part, bits in zip(sums, (1, 7, 12, 18), strict=True)) % WORD
        for part in sums:
            state = ((state ^ mixed_in(0, part)) * PRIME_1 + PRIME_4) % WORD
    state = (state + len(data)) % WORD
    for word in words[n_striped:]:
        state = (turned(state ^ mixed_in(0, word), 27) * PRIME_1 + PRIME_4) % WORD
    rest = data[len(data) // 8 * 8 :]
    if len(rest) >= 4:
        state = turned(state ^ int.from_bytes(rest[:4], "little") * PRIME_1 % WORD, 23) * PRIME_2 + PRIME_3
        state, rest = state % WORD, rest[4:]
    for byte in rest:
        state = turned(state ^ byte * PRIME_5 % WORD, 11) * PRIME_1 % WORD
    state = (state ^ state >> 33) * PRIME_2 % WORD
    state = (state ^ state >> 29) * PRIME_3 % WORD
    return state ^ state >> 32


def chain(values: Iterable[Value]) -> int:
    """Hash values one after the other, as Spark does: nulls are passed over."""
    state = SEED
    for kind, value in values:
        if value is not None:
            state = xxhash64(as_bytes(kind, value), state)
    return state


def as_bytes(kind: str, value: object) -> bytes:
    """Return the bytes of which Spark takes the hash."""
    match value:
        case bool():
            return struct.pack("<i", value)
        case int():
            return struct.pack("<q", value - WORD if value >= WORD // 2 else value)
        case float():
            value = math.nan if math.isnan(value) else value + 0.0
            return struct.pack("<d", value)
        case str():
            return value.encode()
        case bytes():
            return value
        case Decimal():
            precision, scale = (int(x) for x in kind[8:-1].split(","))
            whole = int(value.scaleb(scale, Context(prec=76)))
            if precision <= 18:
                return struct.pack("<q", whole)
            return whole.to_bytes(_width(whole), "big", signed=True)
        case dt.datetime():
            since = value - dt.datetime(1970, 1, 1, tzinfo=value.tzinfo and dt.UTC)
            return struct.pack("<q", since // dt.timedelta(microseconds=1))
        case dt.date():
            return struct.pack("<i", (value - dt.date(1970, 1, 1)).days)
    raise TypeError(kind)


def _width(whole: int) -> int:
    """Return the least number of bytes that hold a number in two's complement."""
    n = 1
    while not -(2 ** (8 * n - 1)) <= whole < 2 ** (8 * n - 1):
        n += 1
    return n


def name(text: str) -> int:
    """Return the constant of a name."""
    return int.from_bytes(hashlib.sha256(f"spark_timely spark1|{text}".encode()).digest()[:8], "little")


def row_hash(row: Mapping[str, Value]) -> int:
    """Return the hash of a row, or of a struct."""
    names = 0
    for key, (_, value) in row.items():
        names ^= 0 if value is None else name(key)
    return chain([("bigint", names), *(hashable(*row[key]) for key in sorted(row))])


def hashable(kind: str, value: object) -> Value:
    """Return what is chained for a value; lists, maps and structs hold pairs of type and value themselves."""
    if value is None:
        return kind, None
    if isinstance(value, dict):
        if kind == "struct":
            return "bigint", row_hash(value)
        entries = (chain([("bigint", or_zero(*k)), ("bigint", or_zero(*v))]) for k, v in value.items())
        return "bigint", chain(("bigint", x) for x in sorted(entries, key=_signed))
    if isinstance(value, list):
        return "bigint", chain(("bigint", or_zero(*element)) for element in value)
    return kind, value


def or_zero(kind: str, value: object) -> int:
    """Return the hash of an element; 0 for null."""
    return 0 if value is None else chain([hashable(kind, value)])


def _signed(word: int) -> int:
    return word - WORD if word >= WORD // 2 else word


def digest(rows: Iterable[Mapping[str, Value]]) -> str:
    """Return the text of the digest of rows."""
    hashes = [row_hash(row) for row in rows]
    upper = sum(_signed(x) >> 32 for x in hashes) % WORD
    lower = sum((x % 2**32) - (2**32 if x % 2**32 >= 2**31 else 0) for x in hashes) % WORD
    return f"spark1:{len(hashes)}:{upper:016x}{lower:016x}"
