"""The protocol of a captured stream, judged event by event with a dictionary.

Written from the rules alone: shares no code with the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Time = tuple[int, ...]
# ("messages", times) or ("progress", [(time, delta), …])
Event = tuple[str, list[Time]] | tuple[str, list[tuple[Time, int]]]


class UnheldError(AssertionError):
    """A time is used to which no held time is less or equal."""


class NegativeError(AssertionError):
    """More was given up than was held."""


def less_equal(a: Time, b: Time) -> bool:
    """Compare two times coordinate by coordinate."""
    return all(x <= y for x, y in zip(a, b, strict=True))


def minima(times: Iterable[Time]) -> list[Time]:
    """Return the times below which there is no other, sorted."""
    distinct = set(times)
    return sorted(t for t in distinct if not any(s != t and less_equal(s, t) for s in distinct))


def held_below(counts: Counter[Time], time: Time) -> bool:
    """Say whether some time less or equal to this one has a positive count."""
    return any(count > 0 and less_equal(held, time) for held, count in counts.items())


def judge(events: Sequence[Event], start: dict[Time, int]) -> dict[Time, int]:
    """Return the counts at the end, or raise at the first event that breaks a rule."""
    counts: Counter[Time] = Counter(start)
    for kind, content in events:
        if kind == "messages":
            for time in content:
                if not held_below(counts, time):
                    raise UnheldError(f"message at {time}")
            continue
        net: Counter[Time] = Counter()
        for time, delta in content:
            net[time] += delta
        for time, delta in net.items():
            if delta > 0 and not held_below(counts, time):
                raise UnheldError(f"count of {time} raised")
        for time, delta in net.items():
            counts[time] += delta
            if counts[time] < 0:
                raise NegativeError(f"count of {time} is {counts[time]}")
    return {time: count for time, count in counts.items() if count}


def frontiers(events: Sequence[Event], start: dict[Time, int]) -> list[list[Time]]:
    """Return the frontier at the start and after each progress batch."""
    counts: Counter[Time] = Counter(start)
    trace = [minima(t for t, c in counts.items() if c > 0)]
    for kind, content in events:
        if kind == "progress":
            for time, delta in content:
                counts[time] += delta
            trace.append(minima(t for t, c in counts.items() if c > 0))
    return trace
