"""Reachability from its definition: every pointstamp is carried along every path until nothing new comes.

Shares no code with the library. Times and steps are tuples; a graph is a dictionary from a place to what
lies one arc further: pairs of a place and a step. Places are anything hashable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

Place = Hashable
Time = tuple[int, ...]
Arcs = Mapping[Place, list[tuple[Place, Time]]]


def less_equal(a: Time, b: Time) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def minima(times: Iterable[Time]) -> set[Time]:
    """Return the minimal ones among some times."""
    distinct = set(times)
    return {t for t in distinct if not any(s != t and less_equal(s, t) for s in distinct)}


def carried(arcs: Arcs, start: Mapping[Place, set[Time]], greatest: int) -> dict[Place, set[Time]]:
    """Return the minimal times at each place, of those at the start and all that paths make of them.

    Nothing comes out of a path on which a coordinate would pass `greatest`.
    """
    reached: dict[Place, set[Time]] = {place: minima(times) for place, times in start.items() if times}
    moved = set(reached)
    while moved:
        place = moved.pop()
        for head, step in arcs.get(place, []):
            further = {tuple(x + s for x, s in zip(t, step, strict=True)) for t in reached[place]}
            further = {t for t in further if max(t, default=0) <= greatest}
            before = reached.get(head, set())
            after = minima(before | further)
            if after != before:
                reached[head] = after
                moved.add(head)
    return reached


def held(counts: Mapping[tuple[Place, Time], int]) -> dict[Place, set[Time]]:
    """Return by place the times whose count is positive."""
    found: dict[Place, set[Time]] = {}
    for (place, time), count in counts.items():
        if count > 0:
            found.setdefault(place, set()).add(time)
    return found


def stands_still(arcs: Arcs) -> bool:
    """Tell whether some cycle has no step: from a place along arcs without a step back to it."""
    still = {tail: [head for head, step in out if not any(step)] for tail, out in arcs.items()}
    for start in still:
        seen: set[Place] = set()
        stack = list(still[start])
        while stack:
            place = stack.pop()
            if place == start:
                return True
            if place not in seen:
                seen.add(place)
                stack += still.get(place, [])
    return False
