"""Exact numbers of columns against Python's fractions: decimals, quotients, and sums of floats as bytes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.dataflow.exact_sum import BITS, digits_of
from spark_timely.dataflow.history.exact import (
    decimals_of,
    digits_of_bytes,
    fits,
    float_quotients,
    quotients,
    rounded_quotients,
    sums_as_bytes,
    whole_numbers,
)

COUNTS = [1, 2, 3, 7, 10**6, (1 << 53) + 1, (1 << 62) + 1, (1 << 63) - 1]


def nearest(exact: Fraction) -> float:
    try:
        return float(exact) + 0.0
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def a_double(rng: random.Random) -> float:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice([5e-324, -5e-324, 1e-310, 2.2250738585072014e-308, -1e-308, 1.7976931348623157e308, -0.0])
    if kind == 1:  # around the least of all
        return rng.choice([-1, 1]) * math.ldexp(rng.getrandbits(rng.randrange(1, 54)), rng.randrange(-1074, -1050))
    if kind == 2:
        return rng.choice([1.0, -3.0, 0.1, 2.0**53, -(2.0**53)])
    return math.ldexp(rng.getrandbits(53), rng.randrange(-1074, 970))


def a_whole(rng: random.Random, bits: int) -> int:
    return rng.choice([-1, 1]) * rng.getrandbits(rng.randrange(1, bits))


def exactly(digits: Sequence[np.ndarray], place: int, row: int) -> Fraction:
    return sum((int(d[row]) * Fraction(2) ** (BITS * (place - i)) for i, d in enumerate(digits)), Fraction())


def test_quotients_of_sums_of_floats_are_the_nearest() -> None:
    rng = random.Random(1)
    for _ in range(300):
        values = [a_double(rng) for _ in range(4)]
        counts = [rng.choice(COUNTS) for _ in values]
        digits, unit = digits_of(np.array(values))
        found = float_quotients([3 * digit for digit in digits], unit // BITS, np.array(counts)).tolist()
        wanted = [nearest(3 * Fraction(value) / n) for value, n in zip(values, counts, strict=True)]
        assert list(map(repr, found)) == list(map(repr, wanted)), (values, counts)


@pytest.mark.parametrize("bits", [50, 64, 127])
def test_quotients_of_whole_numbers_are_the_nearest(bits: int) -> None:
    rng = random.Random(bits)
    for _ in range(100):
        sums, counts = [a_whole(rng, bits) for _ in range(4)], [rng.choice(COUNTS) for _ in range(4)]
        given = np.array(sums, np.int64 if bits < 65 else object)
        pairs = [Fraction(s, n) for s, n in zip(sums, counts, strict=True)]
        assert quotients(given, np.array(counts)).tolist() == list(map(nearest, pairs))
        for places in (0, 4):
            units = [exact * 10**places for exact in pairs]
            wanted = [int(abs(unit) + Fraction(1, 2)) * (1 if unit >= 0 else -1) for unit in units]
            assert rounded_quotients(given, np.array(counts), places).tolist() == wanted


def test_sums_as_bytes_are_equal_where_sums_are() -> None:
    rng = random.Random(3)
    for _ in range(200):
        values = [a_double(rng) for _ in range(5)]
        digits, unit = digits_of(np.array(values))
        place = unit // BITS
        kept = sums_as_bytes(digits, place, 5)
        # Of more digits than are needed, at the front and behind, and not carried: the same.
        zeros = [np.zeros(5, np.int64)]
        other = [np.ones(5, np.int64), *(d.copy() for d in digits), *zeros] if digits else zeros
        if digits:
            other[1] -= 1 << BITS
        assert sums_as_bytes(other, place + 1, 5) == kept
        found, first = digits_of_bytes(
            pa.chunked_array([kept.slice(0, 2), kept.slice(2)]), np.array([4, 5, 0, 1, 2, 3])
        )
        wanted = [values[4], 0.0, *values[:4]]
        assert [exactly(found, first, row) for row in range(6)] == list(map(Fraction, wanted))


def test_decimals_are_whole_numbers_and_back() -> None:
    type_ = pa.decimal128(38, 3)
    numbers = [0, -1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 1 << 64, 10**38 - 1, 1 - 10**38]
    column = decimals_of(np.array(numbers, object), type_, np.array([False] * 7 + [True]))
    assert column.to_pylist() == [*(Decimal(f"{n}e-3") for n in numbers[:7]), None]
    assert whole_numbers(pa.chunked_array([column.slice(3), column.slice(1, 2)])).tolist() == [
        *numbers[3:7],
        0,
        -1,
        1 << 63,
    ]
    small = whole_numbers(pa.chunked_array([column.slice(0, 2)]))
    assert (small.dtype, small.tolist()) == (np.int64, [0, -1])
    assert whole_numbers(pa.chunked_array([], type_)).tolist() == []
    assert decimals_of(small, type_, np.array([False, True])).to_pylist() == [Decimal(0), None]


def test_decimals_fit_up_to_their_digits() -> None:
    for digits in (2, 18, 19, 38):
        ends = [10**digits - 1, 10**digits, -(10**digits) + 1, -(10**digits)]
        for type_ in (object, np.int64) if digits <= 18 else (object,):
            assert fits(np.array(ends, type_), pa.decimal128(digits, 1)).tolist() == [True, False, True, False]
    least, most = -(1 << 63), (1 << 63) - 1
    wide = np.array([least, most, least - 1, most + 1], object)
    assert fits(wide, pa.int64()).tolist() == [True, True, False, False]
    assert fits(np.array([least, most]), pa.int64()).tolist() == [True, True]
