"""A dataflow as a sequential program over plain rows: what each stream holds, and where its frontier is.

Written from the meaning of the operators, time by time; shares nothing with the library. A row is
(time, k, n, v), a time a tuple of its coordinates; a frontier is a set of times, `DONE` when nothing follows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.oracles.replay_model import Frontier, Time, minimal

Row = tuple[Time, str | None, int | None, float | None]
Spec = tuple[Any, ...]
DONE: Frontier = frozenset()


def below_of(spec: Spec) -> list[Spec]:
    """Return the specifications of an operator's inputs: what begins with a kind."""
    return [each for each in spec[1:] if isinstance(each, tuple) and isinstance(each[0], str)]


def rows_of(spec: Spec, logs: Sequence[Sequence[Row]]) -> list[Row]:
    """Return all rows of a stream, from all rows of the logs."""
    kind, *rest = spec
    if kind == "replay":
        return list(logs[rest[0]])
    below = [rows_of(each, logs) for each in below_of(spec)]
    rows = below[0]
    if kind == "filter":
        return [row for row in rows if row[2] is not None and row[2] > rest[1]]
    if kind == "double":
        return [(t, k, None if n is None else 2 * n, v) for t, k, n, v in rows]
    if kind == "concat":
        return rows + below[1]
    if kind == "plus":
        return [(_plus(t, rest[1]), *others) for t, *others in rows]
    if kind == "ceil":
        return [((math.ceil(t / rest[1]) * rest[1],), *others) for (t,), *others in rows]
    if kind == "branch":
        return [row for row in rows if (row[2] is not None and row[2] > rest[1]) == rest[2]]
    if kind == "flat":
        return [(t, k, i, v) for t, k, n, v in rows if n is not None for i in range(n % 3)]
    if kind == "windows":
        return [((end,), *others) for (t,), *others in rows for end in _ends(t, rest[1], rest[1] * rest[2])]
    if kind == "step":
        return [((t + 1,), *others) for (t,), *others in rows]
    if kind == "spread":
        return [(t, "all", sum(row[0] == t for row in rows), None) for t in sorted({row[0] for row in rows})]
    if kind == "pairs":
        both = sorted({row[0] for row in rows + below[1]})
        counts = [(t, sum(row[0] == t for row in rows), sum(row[0] == t for row in below[1])) for t in both]
        return [(t, None, left - right, None) for t, left, right in counts]
    if kind == "times":
        sums = {t: sum(n for u, _, n, _ in rows if u == t and n is not None) for t, *_ in rows}
        return [(t, None, n, None) for t, n in sums.items() if n != 0]
    if kind == "join":
        return [
            (t, k, None if n is None or m is None else n + m, w)
            for t, k, n, _ in rows
            for u, j, m, w in below[1]
            if t == u and k is not None and k == j
        ]
    groups: dict[tuple[Time, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[0], row[1]].append(row)
    return [(t, k, *(_sums(group) if kind == "sums" else _counts(group))) for (t, k), group in groups.items()]


def _plus(time: Time, steps: Time) -> Time:
    return tuple(a + b for a, b in zip(time, steps, strict=True))


def _ends(time: int, every: int, size: int) -> list[int]:
    """Return the ends of the windows [b, b + size), b a multiple of `every`, that hold a time."""
    return [end for end in range(time + 1, time + size + 1) if (end - size) % every == 0]


def _sums(group: list[Row]) -> tuple[int | None, float | None]:
    ns = [n for _, _, n, _ in group if n is not None]
    vs = [v for _, _, _, v in group if v is not None]
    return (sum(ns) if ns else None), (math.fsum(vs) if vs else None)


def _counts(group: list[Row]) -> tuple[int, float | None]:
    vs = [v for _, _, _, v in group if v is not None]
    return len(group), (max(vs) if vs else None)


def frontier_of(spec: Spec, frontiers: Sequence[Frontier]) -> Frontier:
    """Return the frontier of a stream, from those of the logs."""
    kind, *rest = spec
    if kind == "replay":
        return frontiers[rest[0]]
    # What may come from any input may come.
    below = minimal(time for each in below_of(spec) for time in frontier_of(each, frontiers))
    if kind == "plus":
        return frozenset(_plus(time, rest[1]) for time in below)
    if kind not in ("windows", "step", "ceil") or not below:
        return below
    ((least,),) = below
    if kind == "windows":
        return frozenset({(min(_ends(least, rest[1], rest[1] * rest[2])),)})
    return frozenset({(least + 1 if kind == "step" else math.ceil(least / rest[1]) * rest[1],)})
