"""What a leaf operator may say, judged by what it said before.

Invariants
----------
1. A capability gained, or a message produced, needs one of: a capability held before the turn at the same
   output, at a time less or equal; a message consumed in the same turn whose time, taken along a path of the
   operator's own summary to that output, is less or equal.
2. An operator never holds fewer than no capabilities, and counts what it consumed and produced upwards.
3. A report is judged as a whole, before anything of it is passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from spark_timely.errors import NegativeCountError, ProtocolError, UnheldCapabilityError
from spark_timely.progress.frontier import MutableAntichain
from spark_timely.time.arrays import Time

__all__ = ["LeafStatements", "Report", "unknown_port"]

Report: TypeAlias = list[tuple[int, Time, int]]
"""What an operator said of one side: port, time, change; sums of equal ones, none zero."""


def unknown_port(label: str, side: str, port: int, ports: int, time: Time) -> ProtocolError:
    """Return the error for a statement about a port that an operator does not have.

    Examples
    --------
    >>> unknown_port("operator 'map' [1]", "input", 3, 1, (0,)).hint
    'inputs are numbered from 0'
    """
    return ProtocolError(
        f"{label} made a statement about unknown {side} {port!r}, time={time!r}: found {side}s={ports!r}",
        hint=f"{side}s are numbered from 0",
        context={"operator": label, "port": port, "time": time},
    )


class LeafStatements:
    """The accumulated statements of one leaf on one worker, and the judgement of the next ones.

    Parameters
    ----------
    name, index
        Of the operator, for errors.
    arity : int
    summary : by input and output, the steps of each path; None for paths everywhere without a step
    initial : iterable of (output, time, count)
        Capabilities at the start, those of this worker only.

    Notes
    -----
    Cost: for each gain, that of looking up one frontier; where no capability allows it, the messages
    consumed in the turn are looked through.

    Examples
    --------
    >>> leaf = LeafStatements("map", 1, 1, None, [(0, (0,), 1)])
    >>> leaf.check(consumed=[], internal=[(0, (0,), -1)], produced=[(0, (3,), 2)])
    >>> try:
    ...     leaf.check(consumed=[], internal=[], produced=[(0, (4,), 1)])
    ... except UnheldCapabilityError as error:
    ...     print(error.time, error.held)
    (4,) ()
    """

    __slots__ = ("_arity", "_held", "_index", "_name", "_summary")

    def __init__(
        self,
        name: str,
        index: int,
        arity: int,
        summary: Sequence[dict[int, list[Time]]] | None,
        initial: Iterable[tuple[int, Time, int]],
    ) -> None:
        self._name = name
        self._index = index
        self._arity = arity
        self._summary = summary
        # By output.
        self._held: dict[int, MutableAntichain] = {}
        self._count(initial)

    def check(self, consumed: Report, internal: Report, produced: Report) -> None:
        """Judge the report of a turn, and remember it.

        Raises
        ------
        UnheldCapabilityError
            If nothing allows a gain.
        NegativeCountError
            If more was dropped than was held, or something was counted downwards.

        Examples
        --------
        >>> LeafStatements("sink", 1, 1, None, []).check([(0, (3,), 1)], [], [])
        """
        for what, side, counts in (("consumed", "input", consumed), ("produced", "output", produced)):
            for port, time, diff in counts:
                if diff < 0:
                    raise self._negative(what, side, port, time, diff)
        for what, gains in (("gained a capability", internal), ("produced a message", produced)):
            for port, time, diff in gains:
                if diff > 0 and not self._allowed(consumed, port, time):
                    raise self._unheld(what, port, time)
        self._count(internal)
        for port, time, diff in internal:
            if diff < 0 and (count := self._held[port].count_for(time)) < 0:
                what = "capabilities"
                self._count([(at, held, -change) for at, held, change in internal])
                raise self._negative(what, "output", port, time, count)

    def _count(self, changes: Iterable[tuple[int, Time, int]]) -> None:
        by_port: dict[int, list[tuple[Time, int]]] = {}
        for port, time, diff in changes:
            by_port.setdefault(port, []).append((time, diff))
        for port, counts in by_port.items():
            held = self._held.get(port)
            if held is None:
                held = self._held[port] = MutableAntichain(self._arity)
            held.update_pairs(counts)

    def _allowed(self, consumed: Report, port: int, time: Time) -> bool:
        held = self._held.get(port)
        if held is not None and held.less_equal(time):
            return True
        for source, at, _ in consumed:
            if self._summary is None:
                if all(a <= t for a, t in zip(at, time, strict=True)):
                    return True
                continue
            # Others trust the summary when they compute frontiers.
            for steps in self._summary[source].get(port, ()):
                if all(a + s <= t for a, s, t in zip(at, steps, time, strict=True)):
                    return True
        return False

    def _unheld(self, what: str, port: int, time: Time) -> UnheldCapabilityError:
        held = self._held.get(port)
        elements = () if held is None else held.frontier.elements
        return UnheldCapabilityError(
            f"operator {self._name!r} [{self._index}] {what} at output {port!r}, time={time!r}, "
            f"which nothing allows: held={list(elements)!r:.200}",
            hint="it takes a capability held at the same output before the turn, or a message consumed in the same "
            "turn on an input with a path to that output, at a time less or equal",
            context={"operator": self._name, "index": self._index, "port": port},
            time=time,
            held=elements,
        )

    def _negative(self, what: str, side: str, port: int, time: Time, count: int) -> NegativeCountError:
        return NegativeCountError(
            f"operator {self._name!r} [{self._index}] reported a negative count: {what} at {side} {port!r}, "
            f"time={time!r}, count={count!r}",
            hint="an operator drops only what it holds, and counts what it consumed and produced upwards",
            context={"operator": self._name, "index": self._index, "port": port},
            location=f"operator {self._name!r} [{self._index}], {side} {port}",
            time=time,
            count=count,
        )
