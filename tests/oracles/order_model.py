"""Orders of times and what is built on them, by definition: sets, loops, Python integers.

Shares no code with the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Time = tuple[int, ...]


def less_equal(a: Time, b: Time) -> bool:
    """Compare coordinate by coordinate."""
    return all(x <= y for x, y in zip(a, b, strict=True))


def is_beyond(time: Time, frontier: Iterable[Time]) -> bool:
    """Say whether some element of the frontier is less or equal to the time."""
    return any(less_equal(element, time) for element in frontier)


def minima(times: Iterable[Time]) -> list[Time]:
    """Return the times below which there is no other, sorted."""
    distinct = set(times)
    return sorted(t for t in distinct if not any(s != t and less_equal(s, t) for s in distinct))


def least_upper_bound(a: Time, b: Time) -> Time:
    """Return the coordinates' maxima."""
    return tuple(map(max, a, b))


def advance(time: Time, frontier: Sequence[Time]) -> Time:
    """Return the lexicographically least of the least upper bounds with the frontier's elements."""
    return min(least_upper_bound(time, element) for element in frontier)


def advance_by(time: Time, frontier: Sequence[Time]) -> Time:
    """Return the greatest lower bound of the least upper bounds with the frontier's elements."""
    if not frontier:
        return time
    bounds = [least_upper_bound(time, element) for element in frontier]
    return tuple(min(coordinates) for coordinates in zip(*bounds, strict=True))


def consolidate(entries: Iterable[tuple[Time, int]]) -> list[tuple[Time, int]]:
    """Sum what belongs to equal times; drop zeros; sort."""
    totals: Counter[Time] = Counter()
    for time, diff in entries:
        totals[time] += diff
    return sorted((time, diff) for time, diff in totals.items() if diff)
