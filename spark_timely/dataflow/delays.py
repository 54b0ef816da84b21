"""Delays: monotone functions of times, and what is known of them backwards.

Invariants
----------
1. Monotone: t ≤ u implies g(t) ≤ g(u), and g(t) ≥ t. Where g(t) would be past the greatest time of its
   type, nothing follows.
2. `back` is exact: g(t) is beyond F exactly when t is beyond ``back(F)``; a g(t) past the greatest time
   counts as beyond every frontier but the empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from spark_timely.antichain import Antichain
from spark_timely.errors import InvalidUsageError, shown
from spark_timely.order import BoolArray, IntArray

if TYPE_CHECKING:
    from spark_timely.timestamp import TimeDomain

__all__ = ["BoundDelay", "CeilTo", "Delay", "Shift", "ceil_to", "plus"]


class BoundDelay(Protocol):
    """A delay of the times of one domain."""

    @property
    def steps(self) -> tuple[int, ...] | None:
        """What it adds to each coordinate, where that is all it does: its path summary."""

    def forward(self, times: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where each time goes, and for which anything follows."""

    def front(self, frontier: Antichain) -> Antichain:
        """Return the frontier behind the delay."""

    def back(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay that stands for one behind it (invariant 2)."""


class Delay(Protocol):
    """A delay as the user gives it, in words that only a time domain can read."""

    def bind(self, domain: TimeDomain) -> BoundDelay:
        """Return the delay of the times of a domain."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Adds a step to each coordinate.

    Attributes
    ----------
    added : tuple of int
        Zero or more each.
    limits : tuple of (int, int)
        Least and greatest value of each coordinate, inclusive.

    Examples
    --------
    >>> hour = Shift((3,), ((0, 10),))
    >>> hour.front(Antichain.of(4)), hour.front(Antichain.of(9)), hour.back(Antichain.of(4))
    (Antichain.of(7), Antichain.empty(1), Antichain.of(1))
    """

    added: tuple[int, ...]
    limits: tuple[tuple[int, int], ...]

    @property
    def steps(self) -> tuple[int, ...] | None:
        """What is added: its path summary."""
        return self.added

    def forward(self, times: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where each time goes, and for which anything follows; the others stay as they are."""
        ok = np.ones(times.shape[0], dtype=np.bool_)
        for i, (step, (_, high)) in enumerate(zip(self.added, self.limits, strict=True)):  # k coordinates
            ok &= times[:, i] <= high - step
        return times + np.where(ok[:, None], np.array(self.added), 0), ok

    def front(self, frontier: Antichain) -> Antichain:
        """Return the frontier behind the delay."""
        times, ok = self.forward(frontier.times)
        return Antichain.from_times(times[ok], frontier.arity)

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

    Examples
    --------
    >>> tens = CeilTo(10, (-100, 100))
    >>> tens.front(Antichain.of(11)), tens.back(Antichain.of(20)), tens.back(Antichain.of(21))
    (Antichain.of(20), Antichain.of(11), Antichain.of(21))
    """

    width: int
    limits: tuple[int, int]

    @property
    def steps(self) -> tuple[int, ...] | None:
        """None: it adds more to some times than to others."""
        return None

    def forward(self, times: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where each time goes, and for which anything follows; the others stay as they are."""
        ok = times[:, 0] <= self.limits[1] // self.width * self.width
        over = times % self.width
        missing = np.where((over > 0) & ok[:, None], self.width - over, 0)
        return times + missing, ok

    def front(self, frontier: Antichain) -> Antichain:
        """Return the frontier behind the delay."""
        times, ok = self.forward(frontier.times)
        return Antichain.from_times(times[ok], frontier.arity)

    def back(self, frontier: Antichain) -> Antichain:
        """Return the frontier before the delay that stands for one behind it."""
        rows = [(max((-(-time // self.width) - 1) * self.width + 1, self.limits[0]),) for (time,) in frontier]
        return Antichain.of(*rows) if rows else frontier


@dataclass(frozen=True, slots=True)
class _Plus:
    steps: tuple[object, ...]

    def bind(self, domain: TimeDomain) -> BoundDelay:
        if len(self.steps) != domain.arity:
            msg = f"could not delay times by {shown(list(self.steps))}: found {domain.arity} coordinates"
            raise InvalidUsageError(msg, hint="give plus one step for each coordinate of the time")
        added = tuple(kind.duration(step) for kind, step in zip(domain.types, self.steps, strict=True))
        return Shift(added, tuple((kind.lo, kind.hi) for kind in domain.types))


@dataclass(frozen=True, slots=True)
class _CeilTo:
    width: object

    def bind(self, domain: TimeDomain) -> BoundDelay:
        if domain.arity != 1:
            msg = f"could not delay times up to multiples of {shown(self.width)}: found {domain.arity} coordinates"
            raise InvalidUsageError(msg, hint="ceil_to is for times of one coordinate")
        kind = domain.types[0]
        width = kind.duration(self.width)
        if width < 1:
            msg = f"could not delay times up to multiples of {shown(self.width)}: found a width of {width}"
            raise InvalidUsageError(msg, hint="give ceil_to a positive span")
        return CeilTo(width, (kind.lo, kind.hi))


def plus(*steps: object) -> Delay:
    """Return the delay that adds a step to a time: one per coordinate.

    Parameters
    ----------
    *steps : int, str or datetime.timedelta
        In units of the time, for dates and timestamps also words: ``plus("1 hour")``. Not negative.

    Examples
    --------
    >>> from spark_timely.timestamp import TimeDomain
    >>> plus("2 days").bind(TimeDomain(("date",))).front(Antichain.of(5))
    Antichain.of(7)
    """
    return _Plus(steps)


def ceil_to(width: object, /) -> Delay:
    """Return the delay that raises a time to the next multiple of a span, counted from 0 or 1970-01-01 UTC.

    Multiples stay where they are: rows of the times (0, 10] come to be at 10. For windows that hold their
    beginning and not their end, [0, 10), delay by `plus` of one unit first.

    Parameters
    ----------
    width : int, str or datetime.timedelta
        Positive; in units of the time, for dates and timestamps also words: ``ceil_to("1 hour")``.

    Examples
    --------
    >>> from spark_timely.timestamp import TimeDomain
    >>> ceil_to(10).bind(TimeDomain(("long",))).forward(np.array([[10], [11]]))[0].tolist()
    [[10], [20]]
    """
    return _CeilTo(width)
