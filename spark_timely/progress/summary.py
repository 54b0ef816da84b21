"""Path summaries: what a path through a dataflow does to a time, and how times nest.

A path adds a step to each coordinate. Where a time could no longer be held after that, nothing
follows: the answer is None (or False in a mask), never an error and never a wrapped number.

Invariants
----------
1. Monotone: t ≤ u and s ≤ r imply that s takes t to a time ≤ the one to which r takes u, where both are.
2. Composition: where `s.followed_by(r)` is a summary, it takes each time to where r takes what s gave.
3. Nesting: ``to_outer(to_inner(t)) == t``, and ``to_inner(to_outer(u)) ≤ u``, for times t outside and u inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.time.arrays import BoolArray, IntArray, TimesLike, as_times

if TYPE_CHECKING:
    from typing import Self

__all__ = ["NestedTimes", "PathSummary", "Refines", "SameTimes", "Summary"]

_RANGES = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (0, (1 << 64) - 1)}


@runtime_checkable
class PathSummary(Protocol):
    """What a path does to times; see `Summary`, the one that adds steps."""

    @property
    def arity(self) -> int:
        """Number of coordinates of the times."""

    def results_in(self, times: TimesLike) -> tuple[IntArray, BoolArray]:
        """Return where each time is taken, and for which times anything follows."""

    def results_in_one(self, time: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return where one time is taken, None where nothing follows."""

    def followed_by(self, other: Self) -> Self | None:
        """Return the summary of this path and then the other, None where nothing follows."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A step for each coordinate of a time.

    Antichains of summaries are antichains of their steps: ``Antichain.of(*(s.steps for s in found))``.

    Parameters
    ----------
    steps : tuple of int
        One step per coordinate; for uint64 none is negative. The empty tuple is the summary of the times
        without coordinates, of which there is one.
    dtype : {"int64", "uint64"}
        What holds a coordinate.
    limits : tuple of (int, int), optional
        The least and the greatest value of each coordinate, both inclusive, where it is narrower than its dtype.

    Raises
    ------
    InvalidUsageError
        If the dtype is unknown, a step is no whole number that it holds, or the limits do not fit it.
    InvalidShapeError
        If there are not as many limits as steps.

    Notes
    -----
    Source: timely `progress/timestamp.rs`, `PathSummary`.

    Examples
    --------
    >>> loop = Summary((0, 1))
    >>> loop.results_in_one((7, 3))
    (7, 4)
    >>> print(loop.results_in_one((7, 2**63 - 1)))
    None
    >>> Summary((250,), limits=((0, 255),)).followed_by(Summary((6,), limits=((0, 255),))) is None
    True
    """

    steps: tuple[int, ...]
    dtype: Literal["int64", "uint64"] = "int64"
    limits: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _RANGES:
            msg = f"could not build a path summary: found dtype={self.dtype!r}"
            raise InvalidUsageError(msg, hint="coordinates of times are 'int64' or 'uint64'")
        least, greatest = _RANGES[self.dtype]
        for step in self.steps:
            if isinstance(step, bool) or not isinstance(step, int) or not least <= step <= greatest:
                msg = f"could not build a path summary of dtype={self.dtype!r}: found step={step!r}"
                raise InvalidUsageError(msg, hint=f"give whole numbers from {least} to {greatest}")
        if self.limits is None:
            return
        if len(self.limits) != len(self.steps):
            msg = f"could not build a path summary: found {len(self.steps)} steps, limits={self.limits!r:.200}"
            raise InvalidShapeError(msg, hint="give one pair (least, greatest) for each coordinate")
        for low, high in self.limits:
            if not least <= low <= high <= greatest:
                msg = f"could not build a path summary of dtype={self.dtype!r}: found limits={(low, high)!r}"
                raise InvalidUsageError(msg, hint="give (least, greatest), both values that the dtype holds")

    @classmethod
    def identity(cls, arity: int = 1, *, dtype: Literal["int64", "uint64"] = "int64") -> Summary:
        """Return the summary that leaves every time as it is.

        Examples
        --------
        >>> Summary.identity(2).steps
        (0, 0)
        """
        return cls((0,) * arity, dtype)

    @property
    def arity(self) -> int:
        """Number of coordinates of the times."""
        return len(self.steps)

    @property
    def is_identity(self) -> bool:
        """Whether every time is left as it is."""
        return not any(self.steps)

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        return self.limits if self.limits is not None else (_RANGES[self.dtype],) * len(self.steps)

    def results_in(self, times: TimesLike) -> tuple[IntArray, BoolArray]:
        """Return where each time is taken, and for which times anything follows.

        Parameters
        ----------
        times : array-like of integers, shape (n, k)
            Not modified.

        Returns
        -------
        times : ndarray of this summary's dtype, shape (n, k)
            A new array. A row for which nothing follows is left as it was given.
        ok : ndarray of bool, shape (n,)
            False where nothing follows.

        Raises
        ------
        InvalidShapeError
            If the times have another arity, or one that the dtype cannot hold is among them.

        Notes
        -----
        Cost: O(n·k).

        Examples
        --------
        >>> times, ok = Summary((1,)).results_in([5, 2**63 - 1])
        >>> times[ok].tolist(), ok.tolist()
        ([[6]], [True, False])
        """
        rows = self._rows(times)
        ok = np.ones(rows.shape[0], dtype=np.bool_)
        least, greatest = _RANGES[self.dtype]
        for i, (step, (low, high)) in enumerate(zip(self.steps, self._ranges(), strict=True)):  # k coordinates
            column = rows[:, i]
            # Differences of Python integers, cut to what the dtype holds: nothing wraps here.
            first, last = max(low - step, least), min(high - step, greatest)
            if first > last:
                ok[:] = False
                continue
            if first > least:
                ok &= column >= first
            if last < greatest:
                ok &= column <= last
        taken = rows.copy()
        for i, step in enumerate(self.steps):
            np.add(taken[:, i], rows.dtype.type(step), out=taken[:, i], where=ok)
        return taken, ok

    def _rows(self, times: TimesLike) -> IntArray:
        rows = as_times(times, self.arity)
        wanted = np.dtype(self.dtype)
        if rows.dtype == wanted or not rows.size:
            return rows.astype(wanted, copy=False)
        held = int(rows.max()) <= _RANGES["int64"][1] if self.dtype == "int64" else int(rows.min()) >= 0
        if not held:
            msg = f"could not follow a path of dtype={self.dtype!r}: found times of {rows.dtype!s} that it cannot hold"
            raise InvalidShapeError(msg, hint="times and path summaries of one order are all int64 or all uint64")
        return rows.astype(wanted)

    def results_in_one(self, time: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return where one time is taken, None where nothing follows.

        Raises
        ------
        InvalidShapeError
            If the time has another arity.

        Examples
        --------
        >>> Summary((2,)).results_in_one((5,))
        (7,)
        """
        if len(time) != len(self.steps):
            raise _arities(self.steps, time)
        taken = tuple(coordinate + step for coordinate, step in zip(time, self.steps, strict=True))
        for coordinate, (low, high) in zip(taken, self._ranges(), strict=True):
            if not low <= coordinate <= high:
                return None
        return taken

    def followed_by(self, other: Summary) -> Summary | None:
        """Return the summary of this path and then the other, None where nothing follows.

        Nothing follows, as in timely, where the sum of two steps is no value of the dtype or cannot take
        any time within the limits to another one.

        Raises
        ------
        InvalidShapeError
            If the two are of different arity, dtype or limits.

        Examples
        --------
        >>> Summary((0, 1)).followed_by(Summary((2, 1))).steps
        (2, 2)
        >>> print(Summary((2**63 - 1,)).followed_by(Summary((1,))))
        None
        """
        if len(other.steps) != len(self.steps):
            raise _arities(self.steps, other.steps)
        if other.dtype != self.dtype or other.limits != self.limits:
            msg = f"could not put paths together: found {self!r:.200} and {other!r:.200}"
            raise InvalidShapeError(msg, hint="summaries of one order have the same dtype and the same limits")
        least, greatest = _RANGES[self.dtype]
        steps = tuple(mine + theirs for mine, theirs in zip(self.steps, other.steps, strict=True))
        for step, (low, high) in zip(steps, self._ranges(), strict=True):
            if not least <= step <= greatest or abs(step) > high - low:
                return None
        return Summary(steps, self.dtype, self.limits)


def _arities(steps: tuple[int, ...], other: tuple[int, ...]) -> InvalidShapeError:
    return InvalidShapeError(
        f"could not follow a path with steps={steps!r:.200}: found arity={len(other)} in {other!r:.200}",
        hint="times and path summaries of one order have the same number of coordinates",
    )


@runtime_checkable
class Refines(Protocol):
    """How the times inside a nested scope stand to those outside; see `NestedTimes` and `SameTimes`.

    Notes
    -----
    Source: timely `progress/timestamp.rs`, `Refines`.
    """

    @property
    def outer_arity(self) -> int:
        """Number of coordinates outside."""

    @property
    def inner_arity(self) -> int:
        """Number of coordinates inside."""

    def to_inner(self, times: TimesLike) -> IntArray:
        """Return the least time inside for each time outside."""

    def to_inner_one(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """Return the least time inside for one time outside."""

    def to_outer(self, times: TimesLike) -> IntArray:
        """Return the time outside to which each time inside belongs."""

    def to_outer_one(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """Return the time outside to which one time inside belongs."""

    def summarize(self, summary: Summary) -> Summary:
        """Return what a path inside does to times outside."""

    def summarize_steps(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Return the steps outside of a path inside."""


@dataclass(frozen=True, slots=True)
class SameTimes:
    """Times inside are those outside: a region, which only groups operators.

    Parameters
    ----------
    outer_arity : int
        Number of coordinates.

    Examples
    --------
    >>> SameTimes(1).to_inner([5]).tolist()
    [[5]]
    """

    outer_arity: int = 1

    @property
    def inner_arity(self) -> int:
        """Number of coordinates inside: as outside."""
        return self.outer_arity

    def to_inner(self, times: TimesLike) -> IntArray:
        """Return the times; an array of the right form is returned as it is, not copied."""
        return as_times(times, self.outer_arity)

    def to_inner_one(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """Return the time."""
        return time

    def to_outer(self, times: TimesLike) -> IntArray:
        """Return the times; an array of the right form is returned as it is, not copied."""
        return as_times(times, self.outer_arity)

    def to_outer_one(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """Return the time."""
        return time

    def summarize(self, summary: Summary) -> Summary:
        """Return the summary."""
        return summary

    def summarize_steps(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Return the steps."""
        return steps


@dataclass(frozen=True, slots=True)
class NestedTimes:
    """Times inside have one more coordinate, last: the round of a loop, counted from 0.

    Parameters
    ----------
    outer_arity : int
        Number of coordinates outside.

    Examples
    --------
    >>> nested = NestedTimes(1)
    >>> nested.to_inner([5]).tolist(), nested.to_outer([[5, 3]]).tolist()
    ([[5, 0]], [[5]])
    >>> nested.summarize(Summary((1, 7)))
    Summary(steps=(1,), dtype='int64', limits=None)
    """

    outer_arity: int = 1

    @property
    def inner_arity(self) -> int:
        """Number of coordinates inside: one more than outside."""
        return self.outer_arity + 1

    def to_inner(self, times: TimesLike) -> IntArray:
        """Return each time in round 0; a new array.

        Examples
        --------
        >>> NestedTimes(2).to_inner([(1, 2)]).tolist()
        [[1, 2, 0]]
        """
        rows = as_times(times, self.outer_arity)
        inner = np.zeros((rows.shape[0], self.inner_arity), dtype=rows.dtype)
        inner[:, : self.outer_arity] = rows
        return inner

    def to_inner_one(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """Return the time in round 0.

        Examples
        --------
        >>> NestedTimes(1).to_inner_one((5,))
        (5, 0)
        """
        return (*time, 0)

    def to_outer(self, times: TimesLike) -> IntArray:
        """Return each time without its round; a new array.

        Several times inside may belong to one outside: counts of them are to be summed.

        Examples
        --------
        >>> NestedTimes(1).to_outer([(5, 0), (5, 1)]).tolist()
        [[5], [5]]
        """
        return as_times(times, self.inner_arity)[:, : self.outer_arity].copy()

    def to_outer_one(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """Return the time without its round.

        Examples
        --------
        >>> NestedTimes(1).to_outer_one((5, 3))
        (5,)
        """
        return time[:-1]

    def summarize(self, summary: Summary) -> Summary:
        """Return what a path inside does to times outside: the rounds it takes are not seen there.

        Examples
        --------
        >>> NestedTimes(1).summarize(Summary((0, 1))).is_identity
        True
        """
        return Summary(summary.steps[:-1], summary.dtype, summary.limits[:-1] if summary.limits else None)

    def summarize_steps(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Return the steps outside of a path inside.

        Examples
        --------
        >>> NestedTimes(1).summarize_steps((2, 1))
        (2,)
        """
        return steps[:-1]
