"""Exact sums of floats: the sum of each group is rounded once, so the order of rows changes nothing.

`aggregates` sums the rows of a time by it; `history.totals` and `history.exact` keep such sums as state.

A double is a whole number of at most 53 bits times a power of two. Cut into digits of some bits each, such numbers are
summed digit by digit in 64-bit integers, which is exact; the digits of the sum are then carried and rounded to the
nearest double, as `math.fsum` does. (Tried: of 432,352 plain sums of doubles 1046 differed in their last bits when
files were read the other way round.)

Digits of 32 bits at fixed places fit any number of rows, and can be added to those of other rows. For rows that are all
in one task digits are as wide as their number allows: these are fewer, mostly two, whose sum one addition rounds.

Invariants
----------
1. The sum of a group is a function of the multiset of its values alone.
2. A group has fewer than 2**30 rows, so that no sum of digits overflows: as many rows as are cut together, times the
   greatest digit, are at most 2**62.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BITS", "MAX_ROWS", "carried", "digits_of", "round_digits", "widest"]

MAX_ROWS: Final = 1 << 30
BITS: Final = 32
"""Of digits that are put together with those of other rows."""

_MASK: Final = np.int64((1 << BITS) - 1)
# Powers of two up to here are doubles, and so are their inverses.
_PLAIN: Final = 992
_BLOCK: Final = 1 << 15
# Whole numbers below are doubles.
_EXACT: Final = 1 << 53
# Narrow enough that sums of a thousand and more of them are doubles too.
_WIDEST: Final = 43

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def widest(n_rows: int) -> int:
    """Return how many bits digits may have where `n_rows` rows are summed in one place.

    Examples
    --------
    >>> widest(10), widest(500_000), widest(MAX_ROWS - 1)
    (43, 43, 32)
    """
    return min(_WIDEST, 62 - n_rows.bit_length())


def digits_of(values: Floats, bits: int | None = None) -> tuple[list[Ints], int]:
    """Cut doubles into digits.

    Parameters
    ----------
    values : ndarray of float64, shape (n,)
        Finite.
    bits : int, optional
        Of a digit, at most `widest`, from the leading bit of the greatest value on. If not given, digits of 32 bits at
        places that do not depend on the values.

    Returns
    -------
    digits : list of ndarray of int64, shape (n,)
        From the greatest place on, each with the sign of its value.
    unit : int
        Of the first: digit i counts in units of 2**(unit - i·bits).

    Notes
    -----
    Cost: a few passes over the values per digit; values of like magnitude have three of 32 bits, two of 43.

    Examples
    --------
    >>> digits, unit = digits_of(np.array([1.5, -2.0**40]))
    >>> [digit.tolist() for digit in digits], unit
    ([[0, -256], [1, 0], [2147483648, 0]], 32)
    """
    greatest = float(np.abs(values).max(initial=0.0))
    if greatest == 0.0:
        return [], 0
    leading = int(np.frexp(greatest)[1])
    width, unit = (BITS, (leading - 1) // BITS * BITS) if bits is None else (bits, leading - bits)
    digits: list[Ints] = []
    for first in range(0, values.shape[0], _BLOCK):  # blocks stay in the processor's cache
        block = slice(first, first + _BLOCK)
        rest = values[block]
        at = 0
        while rest.any():  # at most 67 times: a double's last bit counts 2**-1074
            if at == len(digits):
                digits.append(np.zeros(values.shape[0], dtype=np.int64))
            exponent = unit - width * at
            digit = np.trunc(_scaled(rest, -exponent))
            digits[at][block] = digit
            # Exact: it takes leading bits away.
            rest = rest - _scaled(digit, exponent)
            at += 1
    return digits, unit


def _scaled(values: Floats, exponent: int) -> Floats:
    if abs(exponent) <= _PLAIN:
        return values * 2.0**exponent
    return np.ldexp(values, exponent)


def round_digits(sums: Sequence[Ints], unit: int, bits: int | None = None) -> Floats:
    """Return the doubles nearest to sums of digits; ties go to the even one.

    Parameters
    ----------
    sums : sequence of ndarray of int64, shape (n,)
        Sums of the digits of `digits_of`, of absolute value at most 2**62.
    unit : int
        Of the first.
    bits : int, optional
        Of a digit, as for `digits_of`.

    Returns
    -------
    ndarray of float64, shape (n,)
        Infinite where the sum is past the greatest double.

    Examples
    --------
    >>> round_digits([np.array([1]), np.array([1 << 31])], 0).tolist()
    [1.5]
    """
    width = BITS if bits is None else bits
    if len(sums) <= 2:
        low = sums[1] if len(sums) == 2 else np.zeros_like(sums[0])
        high = sums[0] + (low >> width)
        if high.max(initial=0) < _EXACT and high.min(initial=0) > -_EXACT:
            # Two doubles, and the one addition rounds as it should.
            rounded = high.astype(np.float64) * 2.0**width + (low & ((1 << width) - 1)).astype(np.float64)
            with np.errstate(over="ignore"):
                return np.asarray(np.ldexp(rounded, unit - width))
    if bits is None:
        return _rounded(sums, unit // BITS)
    return _rounded(*_at_places(sums, unit, bits))


def _at_places(sums: Sequence[Ints], unit: int, bits: int) -> tuple[list[Ints], int]:
    """Return sums of digits of 32 bits at fixed places, and the first place, from those of other digits."""
    exponents = [unit - bits * i for i in range(len(sums))]
    last = exponents[-1] // BITS
    first = exponents[0] // BITS + 1
    found = [np.zeros_like(sums[0]) for _ in range(first - last + 1)]
    for digit, exponent in zip(sums, exponents, strict=True):
        place, shift = divmod(exponent, BITS)
        low = (digit & _MASK) << shift
        found[first - place] += low & _MASK
        found[first - place - 1] += (low >> BITS) + ((digit >> BITS) << shift)
    return found, first


def _rounded(sums: Sequence[Ints], place: int) -> Floats:
    """Round digits of 32 bits, of which the first counts in units of 2**(32·place)."""
    n = sums[0].shape[0]
    digits = carried(sums)
    negative = digits[:, 0] < 0
    if negative.any():
        sign = np.where(negative, -1, 1)
        digits = carried([part * sign for part in sums])
    # Two more digits, so that the three behind the leading one's place are always there.
    padded = np.concatenate([digits, np.zeros((n, 3), dtype=np.int64)], axis=1).astype(np.uint64)
    nonzero = padded != 0
    top = nonzero.argmax(axis=1)
    rows = np.arange(n)
    first, second, third = (padded[rows, np.minimum(top + i, padded.shape[1] - 1)] for i in range(3))
    later = np.logical_or.accumulate(nonzero[:, ::-1], axis=1)[:, ::-1]
    sticky = later[rows, np.minimum(top + 3, padded.shape[1] - 1)]
    bits = np.frexp(first.astype(np.float64))[1].astype(np.uint64)
    # The leading 64 bits; whether any bit is set behind them goes into the last one, which decides ties.
    word = ((first << np.uint64(BITS)) | second) << (np.uint64(BITS) - bits) | (third >> bits)
    sticky |= (third & ((np.uint64(1) << bits) - np.uint64(1))) != 0
    word |= sticky.astype(np.uint64)
    exponents = BITS * (place - top) - (BITS - bits.astype(np.int64))
    with np.errstate(over="ignore"):
        rounded = np.ldexp(word.astype(np.float64), exponents)
    rounded[first == 0] = 0.0
    return np.where(negative, -rounded, rounded)


def carried(sums: Sequence[Ints]) -> Ints:
    """Return digits from 0 to 2**32 - 1, with one more in front that has the sign; shape (n, digits + 1).

    Examples
    --------
    >>> carried([np.array([1]), np.array([-1])]).tolist()
    [[0, 0, 4294967295]]
    """
    digits = np.empty((sums[0].shape[0], len(sums) + 1), dtype=np.int64)
    carry = np.zeros(sums[0].shape[0], dtype=np.int64)
    for i in range(len(sums) - 1, -1, -1):
        total = sums[i] + carry
        digits[:, i + 1] = total & _MASK
        carry = total >> BITS
    digits[:, 0] = carry
    return digits
