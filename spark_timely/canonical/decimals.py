"""The words of decimals in the canonical hash: by value, whatever the scale they are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spark_timely.canonical.lanes import Lanes, Words, add_words, zeros

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["decimal_words"]


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
