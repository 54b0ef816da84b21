"""Delays: monotone functions that move times forward, and the inverse that frontiers need.

A user gives a `Delay` in words: `plus("1 hour")`, `ceil_to("1 day")`, or several by `windows("1 day")`. Bound to the
types of a dataflow's times it is a function g of arrays, a `BoundDelay`. The operator `DelayBy` (`operators.times`)
moves rows by it; `engine.cutting` and `engine.tracking` move bounds of files and frontiers by it.

Invariants
----------
1. Monotone: t ≤ u implies g(t) ≤ g(u), and g(t) ≥ t. A g(t) past the greatest time of its type does not exist: a row at
   t is an error. Such a row may still come, and a step must then find it. So for frontiers g(t) is the greatest time
   there, coordinate by coordinate, and the frontier stays at it until the input is complete.
2. `back` is exact: g(t), taken so, is beyond F exactly when t is beyond ``back(F)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from spark_timely.errors import InvalidUsageError, shown
from spark_timely.time.antichain import Antichain, BoolArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.conf.given import DistanceLike
    from spark_timely.time.domain import TimeDomain

__all__ = ["BoundDelay", "CeilTo", "Chain", "Delay", "Delays", "Shift", "ceil_to", "plus", "windows"]


# Each window that a time is in is an operator of its own.
_MOST_WINDOWS: Final = 1_000


class BoundDelay(Protocol):
    """A delay of the times of one domain."""

    def forward(self, times: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where each time goes, and for which anything follows."""

    def front(self, frontier: Antichain) -> Antichain:
        """Return the frontier behind the delay."""

    def back(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay that stands for one behind it (invariant 2)."""

    def describe(self) -> str:
        """Return what it does, for people."""


class Delay(Protocol):
    """A delay as the user gives it, in words that only a time domain can read."""

    def bind(self, domain: TimeDomain) -> BoundDelay:
        """Return the delay of the times of a domain."""


class Delays(Protocol):
    """Several delays as the user gives them."""

    def delays(self, domain: TimeDomain) -> Sequence[Delay]:
        """Return them; a row goes all ways."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Adds a step to each coordinate.

    Attributes
    ----------
    added : tuple of int
        Zero or more each.
    limits : tuple of (int, int)
        Least and greatest value of each coordinate, inclusive.
    text : str
        What is added as people write it; the numbers if empty.

    Examples
    --------
    >>> hour = Shift((3,), ((0, 10),))
    >>> hour.front(Antichain.of(4)), hour.front(Antichain.of(9)), hour.back(Antichain.of(4))
    (Antichain.of(7), Antichain.of(10), Antichain.of(1))
    """

    added: tuple[int, ...]
    limits: tuple[tuple[int, int], ...]
    text: str = ""

    def describe(self) -> str:
        """Return what is added."""
        return "+ " + (self.text or ", ".join(map(str, self.added)))

    def forward(self, times: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where each time goes, and for which anything follows; the others stay as they are."""
        ok = np.ones(times.shape[0], dtype=np.bool_)
        for i, (step, (_, high)) in enumerate(zip(self.added, self.limits, strict=True)):  # k coordinates
            ok &= times[:, i] <= high - step
        return times + np.where(ok[:, None], np.array(self.added), 0), ok

    def front(self, frontier: Antichain) -> Antichain:
        """Return the frontier behind the delay."""
        moved = [
            tuple(min(x + step, high) for x, step, (_, high) in zip(time, self.added, self.limits, strict=True))
            for time in frontier
        ]
        return Antichain.of(*moved) if moved else frontier

    def back(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay that stands for one behind it."""
        rows = [
            tuple(max(x - step, low) for x, step, (low, _) in zip(time, self.added, self.limits, strict=True))
            for time in frontier
        ]
        return Antichain.of(*rows) if rows else frontier


@dataclass(frozen=True, slots=True)
class CeilTo:
    """Raises each time to the next multiple, counted from 0; multiples stay where they are.

    Attributes
    ----------
    width : int
        Positive.
    limits : tuple of int
        Least and greatest time, inclusive.
    text : str
        The width as people write it; the number if empty.

    Examples
    --------
    >>> tens = CeilTo(10, (-100, 100))
    >>> tens.front(Antichain.of(11)), tens.back(Antichain.of(20)), tens.back(Antichain.of(21))
    (Antichain.of(20), Antichain.of(11), Antichain.of(21))
    """

    width: int
    limits: tuple[int, int]
    text: str = ""

    def describe(self) -> str:
        """Return the width."""
        return f"up to multiples of {self.text or self.width}"

    def forward(self, times: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where each time goes, and for which anything follows; the others stay as they are."""
        ok = times[:, 0] <= self.limits[1] // self.width * self.width
        over = times % self.width
        missing = np.where((over > 0) & ok[:, None], self.width - over, 0)
        return times + missing, ok

    def front(self, frontier: Antichain) -> Antichain:
        """Return the frontier behind the delay."""
        times, ok = self.forward(np.minimum(frontier.times, self.limits[1]))
        return Antichain.from_times(np.where(ok[:, None], times, self.limits[1]), frontier.arity)

    def back(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay that stands for one behind it."""
        rows = [(max((-(-time // self.width) - 1) * self.width + 1, self.limits[0]),) for (time,) in frontier]
        return Antichain.of(*rows) if rows else frontier


@dataclass(frozen=True, slots=True)
class Chain:
    """Delays, one after the other.

    Attributes
    ----------
    parts : tuple of BoundDelay
        Not empty.

    Examples
    --------
    >>> window = Chain((Shift((1,), ((0, 100),)), CeilTo(10, (0, 100))))
    >>> window.front(Antichain.of(10)), window.back(Antichain.of(20))
    (Antichain.of(20), Antichain.of(10))
    """

    parts: tuple[BoundDelay, ...]

    def describe(self) -> str:
        """Return the delays."""
        return ", ".join(part.describe() for part in self.parts)

    def forward(self, times: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where each time goes, and for which anything follows; the others go anywhere."""
        ok = np.ones(times.shape[0], dtype=np.bool_)
        for part in self.parts:
            times, fits = part.forward(times)
            ok &= fits
        return times, ok

    def front(self, frontier: Antichain) -> Antichain:
        """Return the frontier behind the delays."""
        for part in self.parts:
            frontier = part.front(frontier)
        return frontier

    def back(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delays that stands for one behind them."""
        for part in reversed(self.parts):
            frontier = part.back(frontier)
        return frontier


@dataclass(frozen=True, slots=True)
class _Plus:
    steps: tuple[object, ...]

    def bind(self, domain: TimeDomain) -> BoundDelay:
        if len(self.steps) != domain.arity:
            msg = f"could not delay times by {shown(list(self.steps))}: found {domain.arity} coordinates"
            raise InvalidUsageError(msg, hint="give plus one step for each coordinate of the time")
        added = tuple(kind.duration(step) for kind, step in zip(domain.types, self.steps, strict=True))
        return _shift(domain, added)


@dataclass(frozen=True, slots=True)
class _CeilTo:
    width: object

    def bind(self, domain: TimeDomain) -> BoundDelay:
        if domain.arity != 1:
            msg = f"could not delay times up to multiples of {shown(self.width)}: found {domain.arity} coordinates"
            raise InvalidUsageError(msg, hint="use ceil_to for times of one coordinate only")
        kind = domain.types[0]
        width = kind.duration(self.width)
        if not 1 <= width <= max(kind.hi, 1):
            span, most = kind.render_duration(width), kind.render_duration(kind.hi)
            msg = f"could not delay times up to multiples of {shown(self.width)}: found a width of {span}"
            raise InvalidUsageError(msg, hint=f"give ceil_to a positive span, at most {most}")
        return CeilTo(width, (kind.lo, kind.hi), kind.render_duration(width))


@dataclass(frozen=True, slots=True)
class _Window:
    """To the end of the window that began `place` widths before the one that begins last."""

    every: object
    place: int

    def bind(self, domain: TimeDomain) -> BoundDelay:
        last = _CeilTo(self.every).bind(domain)
        first = _shift(domain, (1,))
        step = domain.types[0].duration(self.every) * self.place
        return Chain((first, last, _shift(domain, (step,))) if step else (first, last))


@dataclass(frozen=True, slots=True)
class _Hopping:
    """Ends of the windows of a size that begin at every multiple of another: as many delays as windows overlap."""

    size: object
    every: object

    def delays(self, domain: TimeDomain) -> list[Delay]:
        if domain.arity != 1:
            msg = f"could not cut times into windows: found {domain.arity} coordinates"
            raise InvalidUsageError(msg, hint="use windows for times of one coordinate only")
        size, every = (domain.types[0].duration(each) for each in (self.size, self.every))
        if every < 1 or size < every or size % every:
            msg = f"could not cut times into windows: found size={shown(self.size)}, every={shown(self.every)}"
            raise InvalidUsageError(msg, hint="let the size be a multiple of the span between two beginnings")
        if size // every > _MOST_WINDOWS:
            msg = f"could not cut times into windows: found each time in {size // every} of them"
            raise InvalidUsageError(msg, hint=f"let them begin less often: at most {_MOST_WINDOWS} may overlap")
        return [_Window(self.every, place) for place in range(size // every)]


def _shift(domain: TimeDomain, added: tuple[int, ...]) -> Shift:
    text = ", ".join(kind.render_duration(step) for kind, step in zip(domain.types, added, strict=True))
    return Shift(added, tuple((kind.lo, kind.hi) for kind in domain.types), text)


def plus(*steps: DistanceLike) -> Delay:
    """Return the delay that adds a step to a time: one per coordinate.

    Parameters
    ----------
    *steps : int, str or datetime.timedelta
        Numbers for integer times, lengths with their unit for dates and timestamps: ``plus("1 hour")``. Not
        negative.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> plus("2 days").bind(TimeDomain(("date",))).front(Antichain.of(5))
    Antichain.of(7)
    """
    return _Plus(steps)


def ceil_to(width: DistanceLike, /) -> Delay:
    """Return the delay that raises a time to the next multiple of a span, counted from 0 or 1970-01-01 UTC.

    Multiples stay where they are: rows of the times (0, 10] move to 10. For windows that hold their
    beginning and not their end, [0, 10), delay by `plus` of one unit first.

    Parameters
    ----------
    width : int, str or datetime.timedelta
        Positive; a number for integer times, a length with its unit for dates and timestamps:
        ``ceil_to("1 hour")``.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> ceil_to(10).bind(TimeDomain(("long",))).forward(np.array([[10], [11]]))[0].tolist()
    [[10], [20]]
    """
    return _CeilTo(width)


def windows(size: DistanceLike, /, *, every: DistanceLike | None = None) -> Delays:
    """Return the delays that put a row at the end of each window that holds it.

    A window holds its beginning and not its end: of ``windows(10)`` the rows of the times [0, 10) move to
    10. Windows begin at the multiples of `every`, counted from 0 or 1970-01-01 UTC.

    Parameters
    ----------
    size : int, str or datetime.timedelta
        A number for integer times, a length with its unit for dates and timestamps: ``windows("1 hour")``.
    every : int, str or datetime.timedelta, optional
        Span between the beginnings of two windows, of which the size is a multiple. The size unless given:
        windows that do not overlap.

    Examples
    --------
    >>> from spark_timely.testing import rows_of, stream_of
    >>> rows = stream_of({"_time": [3, 12], "v": ["a", "b"]})
    >>> [(row["_time"], row["v"]) for row in rows_of(rows.delay(windows(10, every=5)))]
    [(5, 'a'), (10, 'a'), (15, 'b'), (20, 'b')]
    """
    return _Hopping(size, size if every is None else every)
