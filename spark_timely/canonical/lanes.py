"""What the canonical hash is made of: its two lanes, their constants, and how words are mixed in.

The formula stands in `spark_timely.canonical.row_hash`; the names here are those that it uses.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "LANES",
    "STEP",
    "Lanes",
    "Words",
    "add_lanes",
    "add_words",
    "final",
    "hash_constant",
    "key_of",
    "mix",
    "one_word",
    "wrapped",
    "zeros",
]

Words: TypeAlias = npt.NDArray[np.uint64]
# One array per lane.
Lanes: TypeAlias = tuple[Words, Words]

LANES = (0, 1)
_MASK64 = (1 << 64) - 1


@lru_cache(maxsize=4096)
def hash_constant(lane: int, text: str) -> np.uint64:
    """Return the constant of a lane that belongs to a text.

    Examples
    --------
    >>> hex(hash_constant(0, "step"))
    '0x6a6f3e70afa02df5'
    """
    digest = hashlib.sha256(f"spark_timely canonical 1|{lane}|{text}".encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


_ONE = np.uint64(1)
_MULTIPLY_1 = tuple(hash_constant(lane, "multiply 1") | _ONE for lane in LANES)
_MULTIPLY_2 = tuple(hash_constant(lane, "multiply 2") | _ONE for lane in LANES)
STEP = tuple(hash_constant(lane, "step") | _ONE for lane in LANES)
_FINAL = tuple(hash_constant(lane, "final") for lane in LANES)
_SHIFT_32, _SHIFT_29 = np.uint64(32), np.uint64(29)


def mix(x: Words, lane: int) -> Words:
    """Mix in place; the argument must be an array of its own."""
    scratch = x >> _SHIFT_32
    x ^= scratch
    x *= _MULTIPLY_1[lane]
    np.right_shift(x, _SHIFT_29, out=scratch)
    x ^= scratch
    x *= _MULTIPLY_2[lane]
    np.right_shift(x, _SHIFT_32, out=scratch)
    x ^= scratch
    return x


def final(x: Words, lane: int) -> Words:
    """Return `final(x)` of the formula; the argument stays as it is."""
    return mix(x + _FINAL[lane], lane)


def key_of(lane: int, kind: str, place: str, j: int = 0) -> np.uint64:
    """Return what is added to the j-th words of a kind at a place before they are mixed."""
    base = int(hash_constant(lane, f"{kind} {place}"))
    return np.uint64((base + j * int(STEP[lane])) & _MASK64)


def zeros(n: int) -> Lanes:
    """Return the sums of n rows to which nothing was added yet."""
    return np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.uint64)


def one_word(words: Words, kind: str, place: str) -> Lanes:
    """Return what values of one word each contribute."""
    return (
        mix(words + key_of(0, kind, place), 0),
        mix(words + key_of(1, kind, place), 1),
    )


def add_lanes(into: Lanes, part: Lanes) -> None:
    """Add what another part of the same rows contributes."""
    for lane in LANES:
        np.add(into[lane], part[lane], out=into[lane])


def add_words(
    into: Lanes,
    words: Words,
    kind: str,
    place: str,
    j: int,
    rows: npt.NDArray[np.intp] | None = None,
) -> None:
    """Add what the j-th words contribute, of all rows or of the given distinct ones."""
    for lane in LANES:
        part = mix(words + key_of(lane, kind, place, j), lane)
        if rows is None:
            np.add(into[lane], part, out=into[lane])
        else:
            into[lane][rows] += part


def wrapped(sums: Lanes, kind: str, place: str) -> Lanes:
    """Return what nested values contribute, from the sums of what is in them."""
    return (
        mix(final(sums[0], 0) + key_of(0, kind, place), 0),
        mix(final(sums[1], 1) + key_of(1, kind, place), 1),
    )
