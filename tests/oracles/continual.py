"""Continual tasks as a sequential program over the whole histories of their logs.

It says what a task writes at each time, and where its output must be. It looks at one time after the other, at plain
lists, and uses nothing of the library. Times are whole numbers, a frontier is a number or None where nothing follows.
A body is a Python function of what is seen; so are the statements of SQL that `statements` puts together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
Change: TypeAlias = tuple[Row, int]
"""A row, and how often it comes; below zero: goes."""
Update: TypeAlias = tuple[int, Row, int]
"""Time, row, diff."""
Frontier: TypeAlias = "int | None"
Seen: TypeAlias = Mapping[str, Sequence[Row]]
Body: TypeAlias = Callable[[Seen, int, Sequence[Row]], Sequence[Change]]
"""Of what is seen under each name, the time, and the output before it."""


@dataclass(frozen=True)
class Source:
    """A log under a name.

    Attributes
    ----------
    alias : str
    log : str
    shown : str
        ``inserts``, ``deletes`` or ``contents``.
    """

    alias: str
    log: str
    shown: str


@dataclass
class History:
    """All that a log was ever given, in any order.

    Attributes
    ----------
    kind : str
        Of a ``stream`` nothing ever goes.
    updates : list of update
    """

    kind: str
    updates: list[Update] = field(default_factory=list)

    def contents(self, time: int, left: int | None = None) -> list[Row]:
        """Return what is there as of a time; where a first time is given, of what came from then on."""
        found: Counter[Row] = Counter()
        for when, row, diff in self.updates:
            if when <= time and (left is None or when >= left):
                found[row] += diff
        assert all(n >= 0 for n in found.values()), "a history that takes away what is not there"
        return in_order(found.elements())

    def changes(self, time: int) -> dict[Row, int]:
        """Return what changes at a time, summed."""
        found: Counter[Row] = Counter()
        for when, row, diff in self.updates:
            if when == time:
                found[row] += diff
        return {row: n for row, n in found.items() if n}

    def seen(self, shown: str, time: int) -> list[Row]:
        """Return the rows that come at a time, or those that go at it."""
        sign = 1 if shown == "inserts" else -1
        wanted = {row: n * sign for row, n in self.changes(time).items() if n * sign > 0}
        return in_order(row for row, n in wanted.items() for _ in range(n))


@dataclass(frozen=True)
class Began:
    """How a task began.

    Attributes
    ----------
    as_of : int or None
        None: before all times.
    snapshot : bool
        Whether what the inputs hold at `as_of` goes through the body.
    left : mapping of str to int
        Names under which the contents are those from a first time on.
    """

    as_of: int | None = None
    snapshot: bool = False
    left: Mapping[str, int] = field(default_factory=dict)


class Task:
    """A task over histories that may still grow.

    Parameters
    ----------
    sources : sequence of Source
    histories : mapping of str to History
        By log.
    bodies : sequence of (int, body)
        Each holds for the times from a first one on, up to the next.
    began : Began
    """

    def __init__(
        self,
        sources: Sequence[Source],
        histories: Mapping[str, History],
        bodies: Sequence[tuple[int, Body]],
        began: Began,
    ) -> None:
        self.sources, self.histories, self.bodies, self.began = sources, histories, bodies, began

    @property
    def inputs(self) -> list[Source]:
        return [source for source in self.sources if source.shown != "contents"]

    def write_times(self) -> list[int]:
        """Return the times at which an input has what is shown of it, and the one of the snapshot."""
        as_of = self.began.as_of
        found: set[int] = set()
        for source in self.inputs:
            history = self.histories[source.log]
            for time in {when for when, _, _ in history.updates}:
                if (as_of is None or time > as_of) and history.seen(source.shown, time):
                    found.add(time)
            if as_of is not None and self.began.snapshot and self._snapshot(source, as_of):
                found.add(as_of)
        return sorted(found)

    def _snapshot(self, source: Source, time: int) -> list[Row]:
        """Return what an input shows at the time of the snapshot: all that it holds. Nothing has gone from nothing."""
        if source.shown == "deletes":
            return []
        return self.histories[source.log].contents(time, self.began.left.get(source.alias))

    def shown(self, source: Source, time: int) -> list[Row]:
        """Return what the body sees of a log at a time."""
        if source.shown == "contents":
            return self.histories[source.log].contents(time, self.began.left.get(source.alias))
        if self.began.snapshot and time == self.began.as_of:
            return self._snapshot(source, time)
        return self.histories[source.log].seen(source.shown, time)

    def run(self, stop: Frontier, kind: str) -> dict[int, dict[Row, int]]:
        """Return what the output has at each time before a frontier at which it has anything: rows, and how often."""
        output: Counter[Row] = Counter()
        found: dict[int, dict[Row, int]] = {}
        for time in self.write_times():
            if stop is not None and time >= stop:
                break
            body = [body for first, body in self.bodies if first <= time][-1]
            seen = {source.alias: self.shown(source, time) for source in self.sources}
            given: Counter[Row] = Counter()
            for row, diff in body(seen, time, in_order(output.elements())):
                assert diff > 0 or kind == "collection", "a stream takes nothing back"
                given[row] += diff
            written = {row: n for row, n in given.items() if n}
            for row, n in written.items():
                output[row] += n
            if written:
                found[time] = written
        return found

    def upper(self, frontiers: Mapping[str, Frontier], until: Frontier = None) -> Frontier:
        """Return where the output is once everything is done that can be.

        Parameters
        ----------
        frontiers : mapping of str to frontier
            By log.
        until : frontier
            Nothing is written from there on.
        """
        inputs = least([*(frontiers[source.log] for source in self.inputs), until])
        references = least([frontiers[source.log] for source in self.sources if source.shown == "contents"])
        waiting = [
            time
            for time in self.write_times()
            if (inputs is None or time < inputs) and references is not None and time >= references
        ]
        found = min(waiting) if waiting else inputs
        as_of = self.began.as_of
        return found if found is None or as_of is None else max(found, as_of)


def least(frontiers: Sequence[Frontier]) -> Frontier:
    """Return the least of some frontiers.

    Examples
    --------
    >>> least([None, 3, 5]), least([None]), least([])
    (3, None, None)
    """
    return min((each for each in frontiers if each is not None), default=None)


def reaches(upper: Frontier, bound: Frontier) -> bool:
    """Tell whether a frontier is at least another.

    Examples
    --------
    >>> reaches(None, 5), reaches(5, None), reaches(5, 5), reaches(4, 5)
    (True, False, True, False)
    """
    return upper is None or (bound is not None and upper >= bound)


def in_order(rows: Any) -> list[Row]:
    """Return rows in an order that does not depend on how they came; null comes first."""
    return sorted(rows, key=lambda row: [(value is not None, value or 0) for value in row])


# Bodies of several statements --------------------------------------------------------------------------

Query: TypeAlias = Callable[[Seen, int, Sequence[Row]], Sequence[Row]]


def statements(*given: tuple[str, Query]) -> Body:
    """Return the body of some statements: each gives rows to ``insert`` or to ``delete``, and sees those before it.

    A row that is deleted goes with all its copies.

    Examples
    --------
    >>> body = statements(("insert", lambda seen, time, out: seen["i"]), ("delete", lambda seen, time, out: out[:1]))
    >>> body({"i": [(1,), (2,)]}, 0, [])
    [((2,), 1)]
    """

    def body(seen: Seen, time: int, output: Sequence[Row]) -> list[Change]:
        before, now = Counter(output), Counter(output)
        for kind, query in given:
            rows = query(seen, time, in_order(now.elements()))
            if kind == "insert":
                now.update(rows)
            else:
                for row in rows:
                    now.pop(row, None)
        return [(row, now[row] - before[row]) for row in in_order(before | now) if now[row] != before[row]]

    return body


def inserts(query: Query) -> Body:
    """Return the body of one statement that inserts."""

    def body(seen: Seen, time: int, output: Sequence[Row]) -> list[Change]:
        return [(row, 1) for row in query(seen, time, output)]

    return body
