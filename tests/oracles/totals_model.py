"""Sums and averages of a group, said from all of its values: by Python's integers, fractions, decimals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from fractions import Fraction
from typing import TypeVar

__all__ = ["Beyond", "average", "decimal_average", "decimal_sum", "float_average", "float_sum"]

_Value = TypeVar("_Value")
# Wide enough that nothing is rounded before it is asked for.
_WIDE = Context(prec=400, rounding=ROUND_HALF_UP)


class Beyond(Exception):
    """No decimal of 38 digits, or of the result's type, is the answer."""


def _there(values: Iterable[_Value | None]) -> list[_Value]:
    return [value for value in values if value is not None]


def _double(exact: Fraction) -> float:
    try:
        return float(exact) + 0.0
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def average(values: Iterable[int | None]) -> float | None:
    """Return the double nearest to the mean of integers; None of none."""
    some = _there(values)
    return _double(Fraction(sum(some), len(some))) if some else None


def _plain(values: list[float]) -> float | None:
    """Return what infinities and NaN make of a sum; None where there are none."""
    odd = {"nan" if math.isnan(value) else value for value in values if not math.isfinite(value)}
    if not odd:
        return None
    return odd.pop() if len(odd) == 1 and "nan" not in odd else math.nan  # type: ignore[return-value]


def float_sum(values: Iterable[float | None]) -> float | None:
    """Return the double nearest to the sum of doubles; None of none."""
    some = _there(values)
    if not some:
        return None
    odd = _plain(some)
    return _double(sum(map(Fraction, some), Fraction())) if odd is None else odd


def float_average(values: Iterable[float | None]) -> float | None:
    """Return the double nearest to the mean of doubles; None of none."""
    some = _there(values)
    if not some:
        return None
    odd = _plain(some)
    return _double(sum(map(Fraction, some), Fraction()) / len(some)) if odd is None else odd


def _fitted(value: Decimal, digits: int) -> Decimal:
    if len(value.as_tuple().digits) > digits and value:
        raise Beyond
    return value


def decimal_sum(values: Iterable[Decimal | None], precision: int, scale: int) -> Decimal | None:
    """Return the sum of decimals(precision, scale), a decimal of ten more digits, or 38."""
    some = _there(values)
    if not some:
        return None
    with localcontext(_WIDE):
        return _fitted(sum(some, Decimal(0)).quantize(Decimal(1).scaleb(-scale)), min(precision + 10, 38))


def decimal_average(values: Iterable[Decimal | None], precision: int, scale: int) -> Decimal | None:
    """Return the mean of decimals(precision, scale) to four more places behind the point, halves away from zero."""
    some = _there(values)
    if not some:
        return None
    with localcontext(_WIDE):
        _fitted(sum(some, Decimal(0)).quantize(Decimal(1).scaleb(-scale)), min(precision + 10, 38))
        # The quotient itself is rounded once, from a fraction.
        exact = sum(map(Fraction, some), Fraction()) / len(some)
        units = abs(exact) * 10 ** min(scale + 4, 38)
        whole = int(units + Fraction(1, 2))
        digits = Decimal(whole if exact >= 0 else -whole).scaleb(-min(scale + 4, 38))
        return _fitted(digits, min(precision + 4, 38))
