"""The digest of stored messages, by integers and loops, one value and one byte at a time.

Written from the documentation of `spark_timely.canonical.content`: shares no code with the library.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal

from tests.oracles.canonical_model import WORD, constant
from tests.oracles.canonical_model import contribution as nested_contribution

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def odd(text: str) -> int:
    """Return the odd constant of a text."""
    return constant(0, text) | 1


def folded(x: int, bits: int) -> int:
    """Return a word with its upper bits in its lower ones."""
    return x ^ x >> bits


def text_terms(data: bytes, place: str) -> int:
    """Return what a string's words contribute."""
    data += b"\1"
    data += b"\0" * (-len(data) % 8)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    total = 0
    for j, word in enumerate(words):
        product = word * odd(f"content {min(j, 8)} {place}") % WORD
        if j < 8 or j == len(words) - 1:
            total += product
        else:
            total += folded((product + j * odd("content step")) % WORD, 32) * odd("content turn")
    return total


def contribution(value: object, place: str, scale: int = 0) -> int:
    """Return what a value contributes at a place; `scale` is that of its column, of decimals."""
    if value is None:
        return 0
    words: list[int]
    match value:
        case list() | dict():
            return nested_contribution(value, place, 0)
        case str():
            return constant(0, f"content {place}") + text_terms(value.encode(), place)
        case bytes():
            return constant(0, f"content {place}") + text_terms(value, place)
        case float():
            bits = (
                0x7FF8000000000000 if math.isnan(value) else int.from_bytes(struct.pack("<d", value or 0.0), "little")
            )
            words = [int.from_bytes(bits.to_bytes(8, "little"), "big")]
        case Decimal():
            unscaled = int(value.scaleb(scale)) % WORD**2
            words = [unscaled % WORD, unscaled // WORD]
        case dt.datetime():
            words = [(value - EPOCH) // dt.timedelta(microseconds=1) % WORD]
        case dt.date():
            words = [(value - EPOCH.date()).days % WORD]
        case int():
            words = [value % WORD]
        case _:
            raise TypeError(value)
    return constant(0, f"content {place}") + sum(word * odd(f"content {j} {place}") for j, word in enumerate(words))


def digest(rows: Iterable[Mapping[str, object]], scales: Mapping[str, int] | None = None) -> int:
    """Return the digest of rows, each with its time columns and its diff."""
    total = 0
    for row in rows:
        x = sum(contribution(value, name, (scales or {}).get(name, 0)) for name, value in row.items()) % WORD
        total += folded(folded(x, 32) * odd("content turn") % WORD, 29)
    return total % WORD
