"""Exact arithmetic on columns: decimals as whole numbers, sums of floats as bytes, quotients rounded once.

`totals` computes sums and averages by it, and keeps the bytes in its state. The digits of a sum of floats are made by
`dataflow.exact_sum`; this module writes them down, and divides.

Whole numbers are of 64 bits, or Python's integers in an array of objects where some do not fit.

The exact sum of floats is kept as bytes: 32-bit words, the least first, of which the first is a header: the place of
the last digit, and the sign. Behind it are the digits of the magnitude, as `exact_sum` has them, from the last that is
not 0 to the first that is not.

Invariants
----------
1. Equal sums have equal bytes; 0 has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.dataflow.exact_sum import BITS, Floats, Ints, carried
from spark_timely.time.antichain import IntArray, ranges

__all__ = [
    "Numbers",
    "decimals_of",
    "digits_of_bytes",
    "fits",
    "float_quotients",
    "greatest",
    "quotients",
    "rounded_quotients",
    "sums_as_bytes",
    "whole_numbers",
]

Numbers = IntArray
"""Of int64, or of Python's integers."""

_MOST: Final = (1 << 63) - 1
_MASK: Final = (1 << 64) - 1
# Places of digits count from here on.
_LEAST_PLACE: Final = -1024
# Whole numbers below are doubles; the last bit of the least double; bits of a quotient.
_EXACT: Final = 1 << 53
_LAST: Final = -1074
_BITS: Final = 56


def greatest(numbers: Numbers) -> int:
    """Return the greatest magnitude."""
    return max(abs(int(numbers.max(initial=0))), abs(int(numbers.min(initial=0))))


def whole_numbers(column: pa.ChunkedArray) -> Numbers:
    """Return integers, or decimals in units of their last place; 0 of null.

    Examples
    --------
    >>> from decimal import Decimal
    >>> whole_numbers(pa.chunked_array([pa.array([Decimal("1.50"), None])])).tolist()
    [150, 0]
    """
    if not pa.types.is_decimal(column.type):
        return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)
    if not len(column):
        return np.zeros(0, np.int64)
    # Taken, so that it begins where its buffers begin.
    plain = pa.concat_arrays([*column.fill_null(0).chunks, pa.array([0], column.type)])
    pairs = np.frombuffer(plain.buffers()[1], np.int64, 2 * len(plain)).reshape(-1, 2)[:-1]
    low, high = pairs[:, 0], pairs[:, 1]
    if np.array_equal(high, low >> 63):
        return low.copy()
    return np.asarray(high.astype(object) * (1 << 64) + low.view(np.uint64).astype(object))


def decimals_of(numbers: Numbers, type_: pa.Decimal128Type, nothing: npt.NDArray[np.bool_]) -> pa.Array:
    """Return whole numbers as decimals, of which each is a unit of the last place.

    Parameters
    ----------
    numbers : ndarray, shape (n,)
        Of as many digits as the type has.
    type_ : pyarrow.Decimal128Type
    nothing : ndarray of bool, shape (n,)
        Which are null.

    Examples
    --------
    >>> decimals_of(np.array([-150, 7]), pa.decimal128(9, 2), np.array([False, True])).to_pylist()
    [Decimal('-1.50'), None]
    """
    n = numbers.shape[0]
    pairs = np.empty((n, 2), np.int64)
    if numbers.dtype == object:
        pairs[:, 0] = (numbers & _MASK).astype(np.uint64).view(np.int64)
        pairs[:, 1] = (numbers >> 64).astype(np.int64)
    else:
        pairs[:, 0], pairs[:, 1] = numbers, numbers >> 63
    return pa.Array.from_buffers(type_, n, [pa.array(~nothing).buffers()[1], pa.py_buffer(pairs)])


def fits(numbers: Numbers, type_: pa.DataType) -> npt.NDArray[np.bool_]:
    """Return which whole numbers a type has room for.

    Examples
    --------
    >>> fits(np.array([999, 1000]), pa.decimal128(3, 1)).tolist()
    [True, False]
    """
    low, high = -_MOST - 1, _MOST
    if pa.types.is_decimal(type_):
        high = 10**type_.precision - 1
        low = -high
    if numbers.dtype != object and high >= _MOST:
        return np.ones(numbers.shape[0], np.bool_)
    return np.asarray((numbers <= high) & (numbers >= low), np.bool_)


# Quotients --------------------------------------------------------------------------------------------


def rounded_quotients(sums: Numbers, counts: IntArray, places: int) -> Numbers:
    """Return sums divided by counts, in whole units of more places behind the point; halves are rounded away from zero.

    Parameters
    ----------
    sums : ndarray, shape (n,)
    counts : ndarray of int64, shape (n,)
        Greater than 0.
    places : int

    Examples
    --------
    >>> rounded_quotients(np.array([1, -1, 2]), np.array([2, 2, 3]), 0).tolist()
    [1, -1, 1]
    """
    scale = 2 * 10**places
    if sums.dtype == object or greatest(sums) * scale + 2 * greatest(counts) > _MOST:
        sums, counts = sums.astype(object), counts.astype(object)
    found = (abs(sums) * scale + counts) // (2 * counts)
    return np.asarray(np.where(sums < 0, -found, found))


def quotients(sums: Numbers, counts: IntArray) -> Floats:
    """Return the doubles nearest to sums divided by counts; ties go to the even one.

    Parameters
    ----------
    sums : ndarray, shape (n,)
        Of less than a thousand bits.
    counts : ndarray of int64, shape (n,)
        Greater than 0.

    Examples
    --------
    >>> quotients(np.array([1, (1 << 60) + 1]), np.array([3, 1 << 60])).tolist()
    [0.3333333333333333, 1.0]
    """
    if sums.dtype != object and greatest(sums) < _EXACT and greatest(counts) < _EXACT:
        return sums / counts + 0.0
    magnitudes = abs(sums.astype(object))
    bits = np.frexp(magnitudes.astype(np.float64))[1].astype(np.int64)
    found = _nearest(np.asarray(magnitudes), bits, 0, counts)
    return np.where(np.asarray(sums < 0, np.bool_), -found, found) + 0.0


def float_quotients(sums: Sequence[Ints], place: int, counts: IntArray) -> Floats:
    """Return the doubles nearest to sums of digits divided by counts; ties go to the even one.

    Parameters
    ----------
    sums : sequence of ndarray of int64, shape (n,)
        Sums of digits, of which the first counts in units of 2**(32·place).
    place : int
    counts : ndarray of int64, shape (n,)
        Greater than 0.

    Examples
    --------
    >>> float_quotients([np.array([1]), np.array([1 << 31])], 0, np.array([2])).tolist()
    [0.75]
    """
    if not sums:
        return np.zeros(counts.shape[0])
    digits, negative = _magnitudes(sums)
    width = digits.shape[1]
    magnitudes: Numbers = np.zeros(digits.shape[0], object)
    for i in range(width):
        magnitudes = magnitudes * (1 << BITS) + digits[:, i].astype(object)
    top = (digits != 0).argmax(axis=1)
    leading = digits[np.arange(digits.shape[0]), top]
    bits = BITS * (width - 1 - top) + np.frexp(leading.astype(np.float64))[1].astype(np.int64)
    found = _nearest(magnitudes, bits, BITS * (place + 1 - len(sums)), counts)
    return np.where(negative, -found, found) + 0.0


def _nearest(magnitudes: Numbers, bits: IntArray, exponent: int, counts: IntArray) -> Floats:
    """Return the doubles nearest to magnitude · 2**exponent / count.

    Parameters
    ----------
    magnitudes : ndarray of Python's integers, shape (n,)
        Not negative.
    bits : ndarray of int64, shape (n,)
        Of each, or one more.
    exponent : int
    counts : ndarray of int64, shape (n,)
    """
    # Quotients of 55 to 58 bits, or as fine as two bits behind the last of the least double; the rest goes into the
    # last bit. So a number that is no double is rounded once: as a whole number, or below 2**-1022 by its exponent;
    # where both round, halves are still distinct from what is beside them.
    shift = np.minimum(_BITS - bits + np.frexp(counts.astype(np.float64))[1], exponent - (_LAST - 2))
    left, right = np.maximum(shift, 0).astype(object), np.maximum(-shift, 0).astype(object)
    over, under = np.left_shift(magnitudes, left), np.left_shift(counts.astype(object), right)
    whole = over // under
    words = whole.astype(np.int64) | np.asarray(whole * under != over, np.bool_)
    with np.errstate(over="ignore"):
        return np.ldexp(words.astype(np.float64), (exponent - shift).astype(np.int32))


# Sums of floats as bytes ------------------------------------------------------------------------------


def _magnitudes(sums: Sequence[Ints]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return digits from 0 to 2**32 - 1, with one more in front, of the magnitudes; and which are negative."""
    negative = carried(sums)[:, 0] < 0
    sign = np.where(negative, -1, 1)
    return carried([part * sign for part in sums]), negative


def sums_as_bytes(sums: Sequence[Ints], place: int, n: int) -> pa.Array:
    r"""Return sums of digits as bytes, which are equal where the sums are.

    Parameters
    ----------
    sums : sequence of ndarray of int64, shape (n,)
        Of absolute value at most 2**62, of which the first counts in units of 2**(32·place).
    place : int
    n : int

    Examples
    --------
    >>> sums_as_bytes([np.array([0, -1]), np.array([0, 0])], 0, 2).to_pylist()
    [b'', b'\x01\x08\x00\x00\x01\x00\x00\x00']
    """
    if not sums:
        return pa.array([b""] * n, pa.binary())
    digits, negative = _magnitudes(sums)
    width = digits.shape[1]
    nonzero = digits != 0
    some = nonzero.any(axis=1)
    top, last = nonzero.argmax(axis=1), width - 1 - nonzero[:, ::-1].argmax(axis=1)
    lengths = np.where(some, last - top + 1, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths + some)]).astype(np.int64)
    words = np.zeros(int(offsets[-1]), "<u4")
    words[offsets[:-1][some]] = ((place + 1 - last - _LEAST_PLACE) << 1 | negative)[some]
    rows = np.repeat(np.arange(n), lengths)
    behind = ranges(np.zeros_like(lengths), lengths)
    words[offsets[rows] + 1 + behind] = digits[rows, last[rows] - behind]
    found = pa.Array.from_buffers(pa.large_binary(), n, [None, pa.py_buffer(offsets * 4), pa.py_buffer(words)])
    return found.cast(pa.binary())


def digits_of_bytes(column: pa.ChunkedArray, rows: IntArray) -> tuple[list[Ints], int]:
    """Return the digits of sums that are kept as bytes.

    Parameters
    ----------
    column : pyarrow.ChunkedArray of binary
        Of `sums_as_bytes`.
    rows : ndarray of int64, shape (n,)
        Which; one that is not there is 0.

    Returns
    -------
    digits : list of ndarray of int64, shape (n,)
        With the sign of the sum.
    place : int
        Of the first.

    Examples
    --------
    >>> kept = pa.chunked_array([sums_as_bytes([np.array([5, -1]), np.array([0, 7])], 1, 2)])
    >>> digits, place = digits_of_bytes(kept, np.array([0, 2, 1]))
    >>> [digit.tolist() for digit in digits], place
    ([[5, 0, 0], [0, 0, -4294967289]], 1)
    """
    taken = column.take(pa.array(rows, mask=rows >= len(column))).cast(pa.large_binary())
    # Behind it nothing, so that it is one array, which begins where its buffers begin.
    plain = pa.concat_arrays([*taken.chunks, pa.array([b""], pa.large_binary())])
    _, ends, content = plain.buffers()
    offsets = np.frombuffer(ends, np.int64, len(plain) + 1) // 4
    starts, lengths = offsets[:-1], np.diff(offsets)
    some = np.flatnonzero(lengths)
    if not some.shape[0]:
        return [], 0
    words = np.frombuffer(content, "<u4", int(offsets[-1])).astype(np.int64)
    headers = words[starts[some]]
    lowest = (headers >> 1) + _LEAST_PLACE
    n_digits = lengths[some] - 1
    place, least = int((lowest + n_digits).max()) - 1, int(lowest.min())
    digits: Ints = np.zeros((place - least + 1, rows.shape[0]), np.int64)
    of = np.repeat(np.arange(some.shape[0]), n_digits)
    behind = ranges(np.zeros_like(n_digits), n_digits)
    found = words[starts[some][of] + 1 + behind] * np.where(headers & 1, -1, 1)[of]
    digits[place - (lowest[of] + behind), some[of]] = found
    return list(digits), place
