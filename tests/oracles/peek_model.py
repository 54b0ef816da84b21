"""Peeks in plain Python: contents by adding up updates row by row, then condition, columns, order, offset and limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cmp_to_key
from typing import Any

Row = Mapping[str, Any]
Update = tuple[tuple[int, ...], Row, int]  # time, row, diff


def plain(value: Any) -> Any:
    """Return a value such that equal values of a log are equal in Python: one zero, one NaN, lists as tuples."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return tuple(map(plain, value)) if isinstance(value, list) else value


def counts(
    updates: Iterable[Update],
    at: Sequence[int],
    columns: Sequence[str],
    *,
    keys: Iterable[Row] | None = None,
    holds: Callable[[Row], bool] = lambda _: True,
) -> Counter[tuple[Any, ...]]:
    """Return how often each row is there, by the columns asked for."""
    wanted = None if keys is None else [{name: plain(value) for name, value in key.items()} for key in keys]
    found: Counter[tuple[Any, ...]] = Counter()
    for time, row, diff in updates:
        if any(t > a for t, a in zip(time, at, strict=True)):
            continue
        if wanted is not None and not any(all(plain(row[n]) == v for n, v in key.items()) for key in wanted):
            continue
        if holds(row):
            found[tuple(plain(row[name]) for name in columns)] += diff
    return Counter({row: n for row, n in found.items() if n})


def compare(one: Any, other: Any, *, descending: bool, nulls_first: bool) -> int:
    if one is None or other is None:
        if one is other:
            return 0
        return -1 if (one is None) == nulls_first else 1
    if one == other:
        return 0
    if "NaN" in (one, other) and isinstance(one if other == "NaN" else other, float):
        less = other == "NaN"
    elif isinstance(one, str):
        less = one.encode() < other.encode()
    else:
        less = one < other
    return -1 if less != descending else 1


def in_order(
    found: Counter[tuple[Any, ...]], columns: Sequence[str], order: Sequence[tuple[str, bool, bool]]
) -> list[tuple[Any, ...]]:
    """Return all copies in an order of (column, descending, nulls first); ties by the other columns, ascending."""
    rest = [(name, False, True) for name in columns if name not in {each[0] for each in order}]

    def of_rows(one: tuple[Any, ...], other: tuple[Any, ...]) -> int:
        for name, descending, nulls_first in [*order, *rest]:
            place = columns.index(name)
            sign = compare(one[place], other[place], descending=descending, nulls_first=nulls_first)
            if sign:
                return sign
        return 0

    return sorted(found.elements(), key=cmp_to_key(of_rows))
