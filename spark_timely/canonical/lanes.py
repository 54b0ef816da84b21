"""What the canonical hash is made of: its two lanes, and what words of numbers, strings and decimals add to them.

The formula is in `spark_timely.canonical.row_hash`; the names here are those that it uses. Byte strings count word by
word, short and long; decimals by value, whatever the scale they are written in.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "LANES",
    "STEP",
    "Lanes",
    "Words",
    "add_lanes",
    "add_words",
    "byte_words",
    "decimal_words",
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


# Words of a string that are taken column by column; the rest of long ones is taken flat.
_SHORT_WORDS = 8
_FLAT_WORDS = 1 << 20
# What is kept of a word of which 0…8 bytes belong to the string, and the end mark to set.
_KEEP = np.array([(1 << 8 * i) - 1 for i in range(9)], dtype=np.uint64)
_END = np.array([1 << 8 * i for i in range(8)] + [0], dtype=np.uint64)


def byte_words(
    data: pa.Buffer | None,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    kind: str,
    place: str,
) -> Lanes:
    """Return what byte strings in a buffer contribute, `starts` ascending."""
    first, end = int(starts[0]), int(starts[-1] + lengths[-1])
    # A copy with room behind it, because a word is always read whole.
    region = np.zeros(end - first + 8, dtype=np.uint8)
    if data is not None and end > first:
        region[:-8] = np.frombuffer(data, dtype=np.uint8, count=end - first, offset=first)
    starts = starts - first
    # The 8 bytes from each place on, as a word; reading them unaligned is what makes this fast.
    word_at = np.ndarray((region.shape[0] - 7,), dtype="<u8", buffer=region, strides=(1,))
    lanes = zeros(starts.shape[0])
    n_words = (lengths >> 3) + 1
    fewest, most = int(n_words.min()), int(n_words.max())
    same = int(lengths.min()) == int(lengths.max())
    for j in range(min(most, _SHORT_WORDS)):
        rows = None if j < fewest else np.flatnonzero(n_words > j)
        at, length = (starts, lengths) if rows is None else (starts[rows], lengths[rows])
        words = word_at[at + 8 * j]
        if same:
            left = min(int(lengths[0]) - 8 * j, 8)
            if left < 8:
                words &= _KEEP[left]
                words |= _END[left]
        elif j >= fewest - 1:
            left_over = np.minimum(length - 8 * j, 8)
            words &= _KEEP[left_over]
            words |= _END[left_over]
        add_words(lanes, words, kind, place, j, rows)
    if most > _SHORT_WORDS:
        long = np.flatnonzero(n_words > _SHORT_WORDS)
        _add_long(lanes, word_at, starts[long], lengths[long], long, kind, place)
    return lanes


def _add_long(
    into: Lanes,
    word_at: Words,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    rows: npt.NDArray[np.intp],
    kind: str,
    place: str,
) -> None:
    """Add the words of long strings from the ninth on, all strings' words in one sequence."""
    ends = np.cumsum((lengths >> 3) + 1 - _SHORT_WORDS)
    begins = np.concatenate([[0], ends[:-1]])
    for low in range(0, int(ends[-1]), _FLAT_WORDS):
        flat = np.arange(low, min(low + _FLAT_WORDS, int(ends[-1])), dtype=np.int64)
        string = np.searchsorted(ends, flat, side="right")
        j = flat - begins[string] + _SHORT_WORDS
        words = word_at[starts[string] + 8 * j]
        left_over = np.minimum(lengths[string] - 8 * j, 8)
        words &= _KEEP[left_over]
        words |= _END[left_over]
        heads = np.flatnonzero(np.diff(string, prepend=-1))
        for lane in LANES:
            keys = j.view(np.uint64) * STEP[lane] + key_of(lane, kind, place)
            into[lane][rows[string[heads]]] += np.add.reduceat(mix(words + keys, lane), heads)


def decimal_words(array: pa.Array, type_: pa.DataType, place: str) -> Lanes:
    """Return what decimals contribute: those that are whole count as integers."""
    n = len(array)
    n_words = type_.bit_width // 64
    # Two's complement, low word first.
    words = np.frombuffer(
        array.buffers()[1], dtype="<u8", count=n * n_words, offset=array.offset * n_words * 8
    ).reshape(n, n_words)
    if type_.scale == 0:
        lanes = zeros(n)
        _add_integer_words(lanes, words, "integer", place, 0, None)
        return lanes
    words, scales = _without_trailing_zeros(words, type_.scale)
    lanes = zeros(n)
    whole = np.flatnonzero(scales == 0)
    _add_integer_words(lanes, words[whole], "integer", place, 0, whole)
    broken = np.flatnonzero(scales)
    add_words(lanes, scales[broken].astype(np.uint64), "decimal", place, 0, broken)
    _add_integer_words(lanes, words[broken], "decimal", place, 1, broken)
    return lanes


def _add_integer_words(
    into: Lanes,
    words: Words,
    kind: str,
    place: str,
    first: int,
    rows: npt.NDArray[np.intp] | None,
) -> None:
    """Add the words of integers, as few of each as hold its value."""
    if rows is None:
        rows = np.arange(words.shape[0], dtype=np.intp)
    needed = np.ones(words.shape[0], dtype=np.bool_)
    for j in range(words.shape[1] - 1, -1, -1):  # 2 or 4 words
        if j:
            # Word j is needed when it does not merely repeat the sign of the one below, or
            # when a word above it is needed.
            sign = (words[:, j - 1].view(np.int64) >> 63).view(np.uint64)
            above = needed if j < words.shape[1] - 1 else np.zeros_like(needed)
            needed = above | (words[:, j] != sign)
            at = np.flatnonzero(needed)
        else:
            at = np.arange(words.shape[0], dtype=np.intp)
        if at.shape[0]:
            add_words(into, words[at, j], kind, place, first + j, rows[at])


def _without_trailing_zeros(words: Words, scale: int) -> tuple[Words, npt.NDArray[np.int64]]:
    """Divide by ten while that leaves no rest, at most `scale` times; also return what is left of it."""
    n, n_words = words.shape
    negative = words[:, n_words - 1] >> np.uint64(63) == 1
    magnitude = _negated(words, negative)
    # 32-bit limbs, high first, so that the division by a power of ten below 2**32 fits 64 bits.
    limbs = np.empty((2 * n_words, n), dtype=np.uint64)
    for j in range(n_words):
        limbs[2 * (n_words - 1 - j)] = magnitude[:, j] >> np.uint64(32)
        limbs[2 * (n_words - 1 - j) + 1] = magnitude[:, j] & np.uint64(0xFFFFFFFF)
    scales = np.full(n, scale, dtype=np.int64)
    zero = ~limbs.any(axis=0)
    scales[zero] = 0
    steps = [8] * (scale // 8) + [4, 2, 1]  # at most 9 + 3 rounds
    for step in steps:
        rows = np.flatnonzero(scales >= step)
        if not rows.shape[0]:
            continue
        quotient, rest = _divided(limbs[:, rows], np.uint64(10**step))
        even = rest == 0
        limbs[:, rows[even]] = quotient[:, even]
        scales[rows[even]] -= step
    result = np.empty((n, n_words), dtype=np.uint64)
    for j in range(n_words):
        high = limbs[2 * (n_words - 1 - j)]
        result[:, j] = (high << np.uint64(32)) | limbs[2 * (n_words - 1 - j) + 1]
    return _negated(result, negative), scales


def _negated(words: Words, rows: npt.NDArray[np.bool_]) -> Words:
    """Negate, in two's complement, the given rows."""
    result = words.copy()
    if not rows.any():
        return result
    carry = rows.astype(np.uint64)
    for j in range(words.shape[1]):  # 2 or 4 words
        flipped = ~words[:, j] + carry
        result[rows, j] = flipped[rows]
        carry &= (flipped == 0).astype(np.uint64)
    return result


def _divided(limbs: Words, divisor: np.uint64) -> tuple[Words, Words]:
    quotient = np.empty_like(limbs)
    rest = np.zeros(limbs.shape[1], dtype=np.uint64)
    for i in range(limbs.shape[0]):  # 4 or 8 limbs
        current = (rest << np.uint64(32)) | limbs[i]
        quotient[i], rest = np.divmod(current, divisor)
    return quotient, rest
