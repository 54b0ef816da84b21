"""What a dataflow over histories holds, and from when on, where its inputs begin late or have forgotten.

A sequential program over plain rows, written from the meaning of the operators; shares nothing with the library. A
graph is a nest of tuples: a kind, its parameters, the graphs below. A row is (k, n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Spec = tuple[Any, ...]
Row = tuple[str | None, int | None]
Updates = Counter[tuple[int, Row]]
Contents = Counter[Row]


@dataclass(frozen=True)
class Input:
    """A log: what was ever written, where its frontier is, where it begins, and the time before which it forgot.

    Attributes
    ----------
    forgot : int or None
        Since; None where nothing was forgotten.
    """

    updates: bool
    rows: Updates
    frontier: int
    least: int
    forgot: int | None = None


@dataclass(frozen=True)
class Held:
    """A stream of the graph.

    Attributes
    ----------
    lost : int or None
        The last time of which anything is missing or not told apart; None: everything is there.
    whole : bool
        False where it cannot be computed at all: it needs all events of a log that has forgotten some.
    """

    updates: bool
    rows: Updates
    frontier: int
    least: int
    lost: int | None = None
    whole: bool = True

    @property
    def begins(self) -> int:
        if self.lost is None:
            return self.least
        return self.lost if self.updates else self.lost + 1


def below_of(spec: Spec) -> list[Spec]:
    return [each for each in spec[1:] if isinstance(each, tuple)]


def held(spec: Spec, inputs: Sequence[Input], as_of: int | None = None) -> Held:
    """Return what a stream holds; collections in logs of the dataflow's own begin at `as_of`, if it is given.

    But not what events are looked up in.
    """
    kind, *rest = spec
    if kind == "replay":
        log = inputs[rest[0]]
        lost = None if log.forgot is None else log.forgot - (not log.updates)
        return Held(log.updates, log.rows, log.frontier, log.least, lost)
    below = [held(each, inputs, as_of) for each in below_of(spec)]
    one = below[0]
    if kind in MOVES:
        return _moved(one, lambda time: MOVES[kind](time, rest[1]))
    if kind == "spool":
        return begun(one, as_of)
    if kind == "filter":
        kept = {(t, row): d for (t, row), d in one.rows.items() if row[1] is not None and row[1] > rest[1]}
        return replace(one, rows=Counter(kept))
    if kind == "updates":
        return replace(one, updates=True, whole=one.whole and one.lost is None)
    if kind == "consolidate":
        return one
    if kind == "concat":
        return _joined(below, _sum(one, below[1]), updates=one.updates)
    if kind == "per time":
        counts = Counter((t, row[0]) for t, row in one.rows.elements())
        return replace(one, rows=Counter({(t, (k, n)): 1 for (t, k), n in counts.items()}))
    if kind == "first":
        whole = one.whole and (one.lost is None or rest[1] is not None)
        return replace(one, rows=_firsts(one, lambda row: row[0], rest[1]), whole=whole)
    if kind == "distinct" and not one.updates:
        return replace(one, rows=_firsts(one, lambda row: row, None), whole=one.whole and one.lost is None)
    if kind == "join":
        right = held(below_of(spec)[1], inputs)  # events before as_of are looked up too
        return _joined([one, right], _looked_up(one.rows, right.rows), updates=False)
    source = one if one.updates else replace(one, updates=True, whole=one.whole and one.lost is None)
    return begun(replace(source, rows=_changes(source.rows, SAYS[kind])), as_of)


def begun(stream: Held, as_of: int | None) -> Held:
    """Return a stream as a log of the dataflow's own has it."""
    if not stream.updates or as_of is None or as_of <= min(stream.begins, stream.least):
        return stream
    return replace(stream, lost=max(as_of, stream.begins))


def at(rows: Updates, time: int) -> Contents:
    found: Contents = Counter()
    for (when, row), diff in rows.items():
        if when <= time:
            found[row] += diff
    return Counter({row: d for row, d in found.items() if d})


# Times ------------------------------------------------------------------------------------------------


def _ceil(time: int, width: int) -> int:
    return -(-time // width) * width


MOVES: dict[str, Callable[[int, int], int]] = {
    "plus": lambda time, step: time + step,
    "ceil": _ceil,
    "window": lambda time, width: _ceil(time + 1, width),
}


def _moved(stream: Held, to: Callable[[int], int]) -> Held:
    rows: Updates = Counter()
    for (time, row), diff in stream.rows.items():
        rows[to(time), row] += diff
    lost = None if stream.lost is None else to(stream.lost)
    return replace(stream, rows=rows, frontier=to(stream.frontier), least=to(stream.least), lost=lost)


def _sum(one: Held, two: Held) -> Updates:
    rows: Updates = Counter(one.rows)
    for each, diff in two.rows.items():
        rows[each] += diff
    return rows


def _joined(below: Sequence[Held], rows: Updates, *, updates: bool) -> Held:
    lost = [each.lost for each in below if each.lost is not None]
    frontier, least = min(each.frontier for each in below), min(each.least for each in below)
    return Held(updates, rows, frontier, least, max(lost, default=None), all(each.whole for each in below))


# Operators --------------------------------------------------------------------------------------------


def _place(value: str | int | None) -> tuple[bool, Any]:
    return (value is not None, value if isinstance(value, str) else value or 0)


def _groups(contents: Contents) -> dict[str | None, list[Row]]:
    found: dict[str | None, list[Row]] = {}
    for row in contents.elements():
        found.setdefault(row[0], []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: [_place(value) for value in (row[1], row[0])], reverse=True)
    return found


def _total(rows: list[Row]) -> int | None:
    numbers = [n for _, n in rows if n is not None]
    return sum(numbers) if numbers else None


def _least(rows: list[Row]) -> int | None:
    return min((n for _, n in rows if n is not None), default=None)


SAYS: dict[str, Callable[[Contents], Contents]] = {
    "count": lambda c: Counter({(k, len(rows)): 1 for k, rows in _groups(c).items()}),
    "sum": lambda c: Counter({(k, _total(rows)): 1 for k, rows in _groups(c).items()}),
    "least": lambda c: Counter({(k, _least(rows)): 1 for k, rows in _groups(c).items()}),
    "distinct": lambda c: Counter(dict.fromkeys(c, 1)),
    "latest": lambda c: Counter(rows[0] for rows in _groups(c).values()),
    "current": lambda c: Counter(rows[0] for rows in _groups(c).values() if rows[0][1] != 0),
    "top": lambda c: Counter(row for rows in _groups(c).values() for row in rows[:2]),
    "reduce": lambda c: Counter({(k, _total(rows) or 0): 1 for k, rows in _groups(c).items()}),
}


def _changes(rows: Updates, say: Callable[[Contents], Contents]) -> Updates:
    found: Updates = Counter()
    before: Contents = Counter()
    for time in sorted({time for time, _ in rows}):
        now = say(at(rows, time))
        for row in {*before, *now}:
            if now[row] != before[row]:
                found[time, row] += now[row] - before[row]
        before = now
    return found


def _firsts(stream: Held, key: Callable[[Row], object], within: int | None) -> Updates:
    found: Updates = Counter()
    last: dict[object, int] = {}
    for time, row in sorted(stream.rows.elements(), key=lambda x: (x[0], [_place(value) for value in x[1]])):
        known = last.get(key(row))
        if time >= stream.begins and (known is None or (within is not None and time - known >= within)):
            last[key(row)] = time
            found[time, row] += 1
    return found


def _looked_up(facts: Updates, dimension: Updates) -> Updates:
    found: Updates = Counter()
    for time, (k, _) in facts.elements():
        there = [n for (j, n) in at(dimension, time).elements() if j == k is not None]
        found.update((time, (k, n)) for n in there or [None])
    return found
