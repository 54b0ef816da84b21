"""CDCv2's statements about progress: how many updates there are at which times, and what is complete by them.

Invariants
----------
1. Up to `known` it is known how many updates there are; a statement that does not join on to that waits. Each
   statement waits once, however often it comes.
2. A time is complete when as many updates are there as were stated, and all times before it are complete too.
   The frontier is the minima of the times that miss some and of `known`; it never moves back.
3. What is kept are the counts of times that are not complete, and statements that wait: nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from spark_timely.errors import ProtocolError
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import as_times
from spark_timely.time.order import minimal

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Ledger", "Statement", "Time"]

Time: TypeAlias = tuple[int, ...]
_Key: TypeAlias = tuple[Antichain, Antichain, frozenset[tuple[Time, int]]]


@dataclass(frozen=True, slots=True)
class Statement:
    """How many updates there are at the times of a range.

    Parameters
    ----------
    lower, upper : Antichain
        Times beyond `lower` and not beyond `upper`.
    counts : mapping
        Number of updates at those times that have any.
    """

    lower: Antichain
    upper: Antichain
    counts: Mapping[Time, int]


class Ledger:
    """Keeps statements, and tells what is complete by them.

    Parameters
    ----------
    frontier : Antichain
        What is complete already: of times not beyond it nothing is kept.
    shown : callable
        Returns a time as errors show it.

    Examples
    --------
    >>> ledger = Ledger(Antichain.of(0))
    >>> ledger.take([Statement(Antichain.of(0), Antichain.of(5), {(3,): 2})])
    >>> ledger.advance({(3,): 1}), ledger.advance({(3,): 2})
    (Antichain.of(3), Antichain.of(5))
    """

    def __init__(self, frontier: Antichain, *, shown: Callable[[Time], object] = list) -> None:
        self.frontier = frontier
        self.known = frontier
        self._shown = shown
        self._expected: dict[Time, int] = {}
        self._waiting: dict[_Key, Statement] = {}

    @property
    def size(self) -> int:
        """Number of counts and statements that are kept."""
        return len(self._expected) + sum(1 + len(statement.counts) for statement in self._waiting.values())

    @property
    def waiting(self) -> list[Statement]:
        """Statements that do not join on to what is known."""
        return list(self._waiting.values())

    def take(self, statements: Iterable[Statement]) -> None:
        """Take statements; each tells what it told, however often.

        Raises
        ------
        ProtocolError
            If two differ about a time that is still open.

        Notes
        -----
        Cost: a sort; more only where times are of several coordinates, and ranges overlap in many ways.
        """
        for statement in statements:
            key = (statement.lower, statement.upper, frozenset(statement.counts.items()))
            self._waiting.setdefault(key, statement)
        # A chain of them, in whatever order it came, joins on in one pass.
        left = sorted(self._waiting.items(), key=lambda item: sorted(item[0][0].elements))
        while left:
            rest = [item for item in left if not self._joined(item[1])]
            if len(rest) == len(left):
                break
            left = rest
        self._waiting = dict(left)

    def _joined(self, statement: Statement) -> bool:
        """Apply a statement, unless it has to wait."""
        if not statement.lower.less_equal_frontier(self.known):
            if not statement.upper.less_equal_frontier(self.known):
                return False
            self._agree(statement)
            return True
        self._agree(statement)
        if not statement.upper.less_equal_frontier(self.known):
            for time, count in statement.counts.items():
                if self.known.less_equal(time):
                    self._expected[time] = count
            self.known = self.known.join(statement.upper)
        return True

    def _agree(self, statement: Statement) -> None:
        """Compare a statement with what was stated before of times that are still open; silence is a statement too."""
        if self.known.less_equal_frontier(statement.lower):
            # Of its times nothing was stated: most statements.
            return
        said = statement.counts
        for time, count in said.items():
            known = self._expected.get(time, 0)
            stated = time in self._expected or not self.known.less_equal(time)
            if known != count and stated and self.frontier.less_equal(time):
                raise self.wrong(time, f"statements of {known} and of {count} updates")
        arity = self.frontier.arity
        missing = as_times([time for time in self._expected if time not in said], arity)
        missing = missing[statement.lower.beyond(missing) & ~statement.upper.beyond(missing)]
        for time in map(tuple, missing.tolist()):
            if known := self._expected[time]:
                raise self.wrong(time, f"statements of {known} and of 0 updates")

    def wrong(self, time: Time, found: str) -> ProtocolError:
        """Return the error for what cannot be true of a time."""
        msg = f"could not read CDCv2 messages at time={self._shown(time)!r}: found {found}"
        hint = "messages may come twice and in any order, but say the same; updates must be consolidated before"
        return ProtocolError(msg, hint=hint, context={"time": time})

    def advance(self, present: Mapping[Time, int]) -> Antichain:
        """Return how far everything is complete, and forget what is.

        Parameters
        ----------
        present : mapping
            Number of distinct updates that are there at each open time that is not beyond `known`.

        Raises
        ------
        ProtocolError
            If there are more at a time than were stated.
        """
        expected = self._expected
        for time, count in present.items():  # as many turns as open times of which the number of updates is known
            if count > expected.get(time, 0):
                raise self.wrong(time, f"{count} updates where {expected.get(time, 0)} were stated")
        missing = [time for time, count in expected.items() if present.get(time, 0) < count]
        bounds = [*missing, *self.known.elements]
        arity = self.frontier.arity
        self.frontier = (
            Antichain.from_times(minimal(np.array(bounds, np.int64)), arity) if bounds else Antichain.empty(arity)
        )
        self._forget()
        return self.frontier

    def pass_over(self, frontier: Antichain) -> None:
        """Take everything up to a frontier as complete, since whoever holds the data has said so."""
        self.known = self.known.join(frontier)
        self.frontier = self.frontier.join(frontier)
        self._forget()

    def _forget(self) -> None:
        times = list(self._expected)
        kept = self.frontier.beyond(as_times(times, self.frontier.arity)).tolist()
        self._expected = {time: self._expected[time] for time in compress(times, kept)}

    def to_json(self) -> dict[str, Any]:
        """Return everything that is kept, as plain values.

        Examples
        --------
        >>> Ledger(Antichain.of(4)).to_json()
        {'frontier': [4], 'known': [4], 'expected': [], 'waiting': []}
        """
        return {
            "frontier": self.frontier.to_json(),
            "known": self.known.to_json(),
            "expected": _pairs(self._expected),
            "waiting": [[s.lower.to_json(), s.upper.to_json(), _pairs(s.counts)] for s in self._waiting.values()],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], *, arity: int, shown: Callable[[Time], object] = list) -> Ledger:
        """Return the ledger that `to_json` told.

        Examples
        --------
        >>> ledger = Ledger(Antichain.of(0))
        >>> ledger.take([Statement(Antichain.of(7), Antichain.of(9), {(8,): 1})])
        >>> Ledger.from_json(ledger.to_json(), arity=1).waiting == ledger.waiting
        True
        """
        ledger = cls(_antichain(found["frontier"], arity), shown=shown)
        ledger.known = _antichain(found["known"], arity)
        ledger._expected = _counts(found["expected"])
        ledger.take(Statement(_antichain(a, arity), _antichain(b, arity), _counts(c)) for a, b, c in found["waiting"])
        return ledger


def _pairs(counts: Mapping[Time, int]) -> list[list[object]]:
    return [[list(time), count] for time, count in sorted(counts.items())]


def _counts(pairs: Iterable[tuple[list[int], int]]) -> dict[Time, int]:
    return {tuple(time): count for time, count in pairs}


def _antichain(found: list[Any], arity: int) -> Antichain:
    return Antichain.from_times(np.array(found, np.int64).reshape(-1, arity), arity)
