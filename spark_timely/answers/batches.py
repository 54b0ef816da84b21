"""The state machine of a subscription: chooses the next interval of times from how far its log has come. Pure.

Used by `subscribe`, which returns the batches, and by `follow`, which reads their intervals. Here no row is read.

Two frontiers and a time say what a subscription gives. All times are moved up to the *origin*, its as-of time: of a
subscription as of 5 an update at 3 has the moved time 5, one at 7 keeps it. Given are the updates whose moved times are
beyond the *start* and not beyond the *end*. With the contents at the origin the start is 5, without them 6; of a
subscription that is resumed it is the frontier up to which everything was given.

Invariants
----------
1. Intervals begin at the log's minimum and are contiguous: each begins where the one before it ended. None is empty as
   an interval, some have no rows.
2. No interval ends past the log's frontier, so nothing is given early, and nothing that was given changes.
3. The first interval ends beyond the origin, and no row is before it.
4. What has to stay distinct in the log (`Course.needed`) only moves forward with the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_timely.errors import InvalidBoundsError, TimelyInternalError
from spark_timely.log.machine.since import needed_by_changes
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.log.files.format import LogKind
    from spark_timely.time.domain import TimeDomain

__all__ = ["Batch", "Course", "Interval", "Progress", "course_of", "course_resumed"]


class Batch(NamedTuple):
    """All updates of an interval of times.

    Attributes
    ----------
    lower, upper : Antichain
        The interval: times beyond `lower` and not beyond `upper`. They are complete now.
    rows : pyarrow.Table
        Ordered by time; none where nothing changed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> Batch(Antichain.of(0), Antichain.of(5), pa.table({"v": [1]})).upper
    Antichain.of(5)
    """

    lower: Antichain
    upper: Antichain
    rows: pa.Table


class Interval(NamedTuple):
    """Moved times beyond `lower` and not beyond `upper`: what is to be read next."""

    lower: Antichain
    upper: Antichain


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a subscription, from its beginning to its end. Made by `course_of` and `course_resumed`.

    Attributes
    ----------
    minimum : tuple of int
        That of the log.
    origin : tuple of int
        The time to which earlier ones are moved: the as-of time.
    start : Antichain
        Moved times beyond it are given.
    first : Antichain or None
        Where the first interval ends; None: as far as the log has come.
    end : Antichain or None
        Moved times beyond it are not given; None: there is no end but the log's.
    """

    minimum: tuple[int, ...]
    origin: tuple[int, ...]
    start: Antichain
    first: Antichain | None
    end: Antichain | None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to give, whatever the log holds: as-of and end are the same."""
        return self.start.is_empty or (self.end is not None and self.end.less_equal_frontier(self.start))

    def moved(self, frontier: Antichain, /) -> Antichain:
        """Return a frontier of the log in moved times: a moved time is beyond both or beyond neither."""
        return frontier.join(Antichain.of(self.origin))

    def needed(self, kind: LogKind, reached: Antichain, /) -> Antichain:
        """Return what the log has to keep distinct, so that all that is beyond a frontier can still be given.

        Parameters
        ----------
        kind : {"collection", "stream"}
        reached : Antichain
            In moved times: what is not beyond it was given. The start, before the first interval.

        Returns
        -------
        Antichain
            As `spark_timely.log.machine.since` means it; empty where nothing is needed any more.

        Notes
        -----
        Updates of a collection that since moves stay at or before the origin in the coordinates in which they were, so
        the origin does as a minimum. Messages do not move: those are needed whose moved times are beyond the frontier.

        Examples
        --------
        >>> begun, none = course_of((0,), (5,), snapshot=True), course_of((0,), (5,), snapshot=False)
        >>> [begun.needed(kind, begun.start) for kind in ("collection", "stream")]
        [Antichain.of(5), Antichain.of(0)]
        >>> [none.needed(kind, none.start) for kind in ("collection", "stream")]
        [Antichain.of(5), Antichain.of(6)]
        """
        if reached.is_empty:
            return reached
        if kind == "collection":
            return needed_by_changes(reached, self.origin)
        times = np.asarray(reached.times, np.int64)
        least = np.where(times > np.asarray(self.origin), times, np.asarray(self.minimum))
        return Antichain.from_times(least, reached.arity)


def course_of(
    minimum: tuple[int, ...],
    as_of: tuple[int, ...],
    *,
    snapshot: bool,
    up_to: tuple[int, ...] | None = None,
    domain: TimeDomain | None = None,
) -> Course:
    """Return the course of a subscription that begins as of a time.

    Parameters
    ----------
    minimum : tuple of int
        That of the log.
    as_of : tuple of int
        Not before the minimum.
    snapshot : bool
        Whether the contents at `as_of` are given first, at that time.
    up_to : tuple of int, optional
        Times at and beyond it are not given.
    domain : TimeDomain, optional
        For bounds of the times' types, and for errors; the integers unless given.

    Raises
    ------
    InvalidBoundsError
        If `up_to` is before `as_of`.

    Examples
    --------
    >>> course = course_of((0,), (5,), snapshot=True)
    >>> course.start, course.first
    (Antichain.of(5), Antichain.of(6))
    >>> course_of((0,), (5,), snapshot=False).start, course_of((0,), (5,), snapshot=True, up_to=(5,)).is_empty
    (Antichain.of(6), True)
    """
    end = None
    if up_to is not None:
        if up_to != as_of and all(u <= a for u, a in zip(up_to, as_of, strict=True)):
            said = [domain.render_time(time) if domain else list(time) for time in (up_to, as_of)]
            msg = f"could not subscribe up to {said[0]}: found as_of={said[1]}, which is later"
            raise InvalidBoundsError(
                msg, hint="give a time up_to that is not before as_of: it is exclusive", lower=said[1], upper=said[0]
            )
        end = Antichain.of(tuple(map(max, up_to, as_of)))
    at = Antichain.of(as_of)
    if domain is not None:
        after = domain.successors(as_of)
    else:
        nexts = [(*as_of[:i], x + 1, *as_of[i + 1 :]) for i, x in enumerate(as_of)]
        after = Antichain.of(*nexts)
    if not snapshot:
        return Course(minimum, as_of, after, after, end)
    # Of several coordinates no interval holds the contents alone: what is beyond as_of in one, and earlier in another,
    # moves to times right after it.
    return Course(minimum, as_of, at, after if len(as_of) == 1 else None, end)


def course_resumed(
    minimum: tuple[int, ...],
    progress: Antichain,
    *,
    as_of: tuple[int, ...] | None = None,
    up_to: tuple[int, ...] | None = None,
    domain: TimeDomain | None = None,
) -> Course:
    """Return the course of a subscription that continues where one had given everything not beyond a frontier.

    Times *below* the progress are complete, those at it are not given yet: so it is as of the one before it, without
    the contents (at the minimum there is none before, and everything is still to come).

    Parameters
    ----------
    minimum : tuple of int
        That of the log.
    progress : Antichain
    as_of : tuple of int, optional
        Of the subscription that is continued. Not needed where times have one coordinate.
    up_to, domain
        As of `course_of`.

    Raises
    ------
    InvalidBoundsError
        If `up_to` is before the progress.

    Examples
    --------
    >>> course_resumed((0,), Antichain.of(5)).origin, course_resumed((0,), Antichain.of(5)).start
    ((4,), Antichain.of(5))
    >>> course_resumed((0,), Antichain.of(0)).start
    Antichain.of(0)
    """
    if as_of is None:
        least = progress.times.min(axis=0).tolist() if len(progress) else list(minimum)
        as_of = tuple(max(m, t - 1) if t > m else m for m, t in zip(minimum, least, strict=True))
    start = progress.join(Antichain.of(as_of))
    end = None if up_to is None else Antichain.of(tuple(map(max, up_to, as_of)))
    if up_to is not None and not start.less_equal_frontier(Antichain.of(up_to)):
        said = [domain.render_time(up_to), domain.render_frontier(progress)] if domain else [up_to, progress.to_json()]
        msg = f"could not subscribe up to {said[0]}: found resume_from={said[1]}, which is not before it"
        raise InvalidBoundsError(
            msg, hint="give a later up_to: what is before the progress was given already", lower=said[1], upper=said[0]
        )
    return Course(minimum, as_of, start, start, end)


class Progress:
    """Position of a subscription on its course: gives the next interval, and whether it has ended.

    Parameters
    ----------
    course : Course

    Examples
    --------
    >>> progress = Progress(course_of((0,), (5,), snapshot=True, up_to=(9,)))
    >>> progress.next_interval(Antichain.of(5)) is None  # as_of is still open
    True
    >>> progress.next_interval(Antichain.of(8))
    Interval(lower=Antichain.of(5), upper=Antichain.of(6))
    >>> progress.take(Antichain.of(6))
    Antichain.of(0)
    >>> progress.next_interval(Antichain.of(20)).upper, progress.take(Antichain.of(9)), progress.has_ended
    (Antichain.of(9), Antichain.of(6), True)
    """

    __slots__ = ("_begun", "course", "reached")

    def __init__(self, course: Course) -> None:
        self.course = course
        # In moved times: what is beyond it is still to be given.
        self.reached = course.start
        # An interval from the minimum to the minimum would be empty.
        self._begun = course.first == Antichain.of(course.minimum)

    @property
    def has_begun(self) -> bool:
        """Whether an interval was taken, or all that comes is still to be given from the minimum on."""
        return self._begun

    @property
    def has_ended(self) -> bool:
        """Whether no interval comes any more."""
        end = self.course.end
        if not self._begun:
            return self.course.is_empty and not self.course.start.is_empty
        return self.reached.is_empty or (end is not None and end.less_equal_frontier(self.reached))

    def next_interval(self, frontier: Antichain, /) -> Interval | None:
        """Return the interval to be read next, as far as the log has come; None: wait.

        Parameters
        ----------
        frontier : Antichain
            The log's.
        """
        course = self.course
        if self.has_ended:
            return None
        there = course.moved(frontier)
        upper = there if course.end is None else there.meet(course.end)
        if self._begun:
            return Interval(self.reached, upper) if self.reached.less_than_frontier(upper) else None
        if course.first is None:
            return None if frontier.less_equal(course.origin) else Interval(course.start, upper)
        first = course.first if course.end is None else course.first.meet(course.end)
        return Interval(course.start, first) if first.less_equal_frontier(there) else None

    def take(self, upper: Antichain, /) -> Antichain:
        """Note that what is not beyond a frontier is given; return where the interval begins, for its batch.

        Raises
        ------
        TimelyInternalError
            If the interval would be empty, or go back (invariant 1).
        """
        lower = self.reached if self._begun else Antichain.of(self.course.minimum)
        if not lower.less_than_frontier(upper):
            msg = f"could not move a subscription: found lower={lower.to_json()}, upper={upper.to_json()}"
            raise TimelyInternalError(msg, hint="report this bug of spark-timely: invariant 1 of batches")
        self._begun = True
        self.reached = upper
        return lower
