"""What a log may forget, and which answers are still to be had: decisions about since and retainers, pure.

A reader says what it *needs* as one antichain: times at and beyond it must stay told apart. Answers are to be had as
long as since has not passed it, and who retains a position retains the same antichain; so "may be read" and "is
retained" are one comparison.

Invariants
----------
1. since only moves forward: never past what a live retainer needs, nor past what the log's own frontier needs.
2. Nothing is retained that since has passed.
3. A retainer that has expired blocks nothing. If since passes it, the same decision says so, for its reader's error.
4. A decision is about one state: its commit excludes all others, and after a lost race it is made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from spark_timely.errors import InvalidUsageError, OwnershipError, SinceViolationError, shown
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogKind
    from spark_timely.time.arrays import BoolArray, IntArray
    from spark_timely.time.domain import TimeDomain


def needed_by_contents(time: tuple[int, ...]) -> Antichain:
    """Return what the contents of a collection at a time need.

    Examples
    --------
    >>> needed_by_contents((5,))
    Antichain.of(5)
    """
    return Antichain.of(time)


def needed_by_changes(frontier: Antichain, minimum: tuple[int, ...]) -> Antichain:
    """Return what the changes of a collection at times beyond a frontier need: its minimal predecessors.

    Updates before since stand *at* since. So that none of them is taken for a change, since must be lower than each
    element of the frontier in every coordinate, but for those at the minimum, before which nothing was.

    Parameters
    ----------
    frontier : Antichain
    minimum : tuple of int
        The log's.

    Notes
    -----
    "Strictly less" would not do for product times: an update at (1, 0) moves to (1, 1) under since {(0, 1)}, and would
    come again to who stands at {(1, 1)}. The least upper bound of the predecessors would, but retains too much: of
    {(0, 5), (5, 0)} everything for ever.

    Examples
    --------
    >>> needed_by_changes(Antichain.of(5), (0,)), needed_by_changes(Antichain.of(0), (0,))
    (Antichain.of(4), Antichain.of(0))
    >>> needed_by_changes(Antichain.of((0, 5), (5, 0)), (0, 0))
    Antichain.of((0, 4), (4, 0))
    """
    least = np.asarray(minimum, np.int64)
    times = np.asarray(frontier.times, np.int64)
    # Not `max(t - 1, least)`: the minimum may be the least int64.
    return Antichain.from_times(np.where(times > least, times - (times > least), least), frontier.arity)


def needed_from(kind: LogKind, frontier: Antichain, minimum: tuple[int, ...]) -> Antichain:
    """Return what a replay needs that stands at a frontier; of a stream, whose messages never move, the frontier.

    The same is needed to tell rows at times not beyond a frontier from the others, wherever the reading begins.

    Examples
    --------
    >>> needed_from("stream", Antichain.of(5), (0,)), needed_from("collection", Antichain.of(5), (0,))
    (Antichain.of(5), Antichain.of(4))
    """
    return frontier if kind == "stream" else needed_by_changes(frontier, minimum)


def is_later(since: Antichain, times: IntArray) -> BoolArray:
    """Return which times are later than a time of since: rows there are neither moved nor summed, shape (n,).

    Examples
    --------
    >>> is_later(Antichain.of(5), np.array([[4], [5], [6]])).tolist()
    [False, False, True]
    >>> is_later(Antichain.of((2, 2)), np.array([[2, 2], [0, 9], [2, 3]])).tolist()
    [False, False, True]
    """
    found = np.zeros(times.shape[0], np.bool_)
    for element in since.times:  # one turn per time of since
        found |= (times >= element).all(axis=1) & (times > element).any(axis=1)
    return found


def moved_to(since: Antichain) -> tuple[int, ...]:
    """Return the time to which updates move, each coordinate that is lower: the least of since in each coordinate.

    So it is in products of integers: what a time cannot be told from, seen from since, is the greatest of both.

    Examples
    --------
    >>> moved_to(Antichain.of((1, 4), (3, 2)))
    (1, 2)
    """
    found: tuple[int, ...] = tuple(np.asarray(since.times, np.int64).min(axis=0).tolist())
    return found


def as_of_since(kind: LogKind, since: Antichain, times: IntArray) -> tuple[IntArray, BoolArray | None]:
    """Return what is left of rows at these times: where they stand, and which; None is for all of them.

    The rows of a file that was not rewritten yet, seen so, are those of one that was.

    Parameters
    ----------
    kind : str
        Of a stream, rows at times not beyond since are gone; those of a collection move to since.
    since : Antichain
    times : ndarray of int64, shape (n, k)

    Examples
    --------
    >>> as_of_since("collection", Antichain.of(5), np.array([[3], [7]]))[0].tolist()
    [[5], [7]]
    >>> as_of_since("stream", Antichain.of(5), np.array([[3], [7]]))[1].tolist()
    [False, True]
    """
    if kind == "stream":
        kept = since.beyond(times)
        return times, None if kept.all() else kept
    return np.maximum(times, np.array([moved_to(since)], np.int64)), None


def may_read(since: Antichain, needed: Antichain) -> bool:
    """Return whether what is needed can still be answered.

    Examples
    --------
    >>> since = Antichain.of(5)
    >>> may_read(since, needed_by_contents((5,))), may_read(since, needed_by_changes(Antichain.of(5), (0,)))
    (True, False)
    """
    return since.less_equal_frontier(needed)


@dataclass(frozen=True, slots=True)
class Retainer:
    """A consumer, and what it needs of a log.

    Parameters
    ----------
    name : str
        Of the consumer.
    needed : Antichain
        What it needs, see `needed_from`.
    owner : str
        The query, dataflow or program that may move it.
    expires : int
        When it blocks nothing any more, unless renewed before: microseconds since 1970, UTC.
    overrun : str
        By whom since was moved past it, and when, once that has happened; empty before.
    """

    name: str
    needed: Antichain
    owner: str
    expires: int
    overrun: str = ""

    def is_alive(self, now: int) -> bool:
        """Return whether since may not pass it."""
        return not self.overrun and self.expires > now


def _nobody() -> Mapping[str, Retainer]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Retention:
    """What a log remembers: the whole state that commits of since and of retainers replace.

    Parameters
    ----------
    since : Antichain
        From where the log can be read. A log begins with its minimum: everything.
    seq : int
        Number of the newest commit; -1 before the first.
    moved_by, moved_at : str, int
        By whom since was moved last, and when, in microseconds; empty and 0 before that.
    retainers : mapping of str to Retainer
    """

    since: Antichain
    seq: int = -1
    moved_by: str = ""
    moved_at: int = 0
    retainers: Mapping[str, Retainer] = field(default_factory=_nobody)

    def alive(self, now: int) -> list[Retainer]:
        """Return the retainers that since may not pass."""
        return [each for each in self.retainers.values() if each.is_alive(now)]


def everything(domain: TimeDomain) -> Retention:
    """Return what a log remembers that never forgot anything."""
    return Retention(domain.minimum_frontier)


def decide_since(retention: Retention, wanted: Antichain, own: Antichain, *, by: str, now: int) -> Retention | None:
    """Decide how far since moves; None if it stays.

    Parameters
    ----------
    retention : Retention
    wanted : Antichain
        How far it may, not empty.
    own : Antichain
        What the log's own frontier needs, see `needed_from`; empty if the log is complete.
    by : str
    now : int
        Wall clock, microseconds.

    Examples
    --------
    >>> moved = decide_since(Retention(Antichain.of(0)), Antichain.of(9), Antichain.of(7), by="me", now=1)
    >>> moved.since, moved.seq
    (Antichain.of(7), 0)
    """
    allowed = wanted.meet(own)
    for retainer in retention.alive(now):  # as many turns as consumers
        allowed = allowed.meet(retainer.needed)
    since = retention.since.join(allowed)
    if since == retention.since:
        return None
    overrun = f"{by} at {moment_text(now, least='seconds')}"
    retainers = {
        name: each if each.overrun or may_read(since, each.needed) else replace(each, overrun=overrun)
        for name, each in retention.retainers.items()
    }
    return Retention(since, retention.seq + 1, by, now, MappingProxyType(retainers))


def decide_retain(
    path: str,
    domain: TimeDomain,
    retention: Retention,
    name: str,
    needed: Antichain,
    *,
    owner: str,
    expires: int,
    now: int,
) -> Retention | None:
    """Decide about a retainer that is registered, moved or renewed; None if it says what is there already.

    Parameters
    ----------
    path : str
        Of the log, for errors.
    domain : TimeDomain
    retention : Retention
    name, owner : str
    needed : Antichain
        Empty releases: nothing is needed any more.
    expires, now : int
        Microseconds since 1970.

    Raises
    ------
    OwnershipError
        If the name is another owner's, and alive.
    SinceViolationError
        If since has passed what is to be retained.
    """
    before = retention.retainers.get(name)
    if before is not None and before.owner != owner and before.is_alive(now):
        msg = (
            f"could not retain log {path!r} for consumer {name!r}: found it owned by {before.owner!r}, not by {owner!r}"
        )
        raise OwnershipError(
            msg,
            hint=f"choose another name, or release it first: it expires at {moment_text(before.expires)}",
            context={"path": path, "consumer": name, "owner": before.owner},
        )
    if needed.is_empty:
        return None if before is None else _without(retention, name)
    if not may_read(retention.since, needed):
        raise passed(path, domain, retention, needed, what=f"retain log {path!r} for consumer {name!r}", consumer=name)
    found = Retainer(name, needed, owner, expires)
    if found == before:
        return None
    retainers = MappingProxyType(dict(sorted({**retention.retainers, name: found}.items())))
    return replace(retention, seq=retention.seq + 1, retainers=retainers)


def decide_release(path: str, retention: Retention, name: str) -> Retention:
    """Decide to let a retainer go, whoever owns it.

    Raises
    ------
    InvalidUsageError
        If there is none of that name.
    """
    if name not in retention.retainers:
        msg = (
            f"could not release consumer {name!r} of log {path!r}: found consumers={shown(sorted(retention.retainers))}"
        )
        raise InvalidUsageError(msg, hint="give the name of one of them", context={"path": path, "consumer": name})
    return _without(retention, name)


def _without(retention: Retention, name: str) -> Retention:
    left = {other: each for other, each in retention.retainers.items() if other != name}
    return replace(retention, seq=retention.seq + 1, retainers=MappingProxyType(left))


def check_may_read(
    path: str, domain: TimeDomain, retention: Retention, needed: Antichain, *, what: str, consumer: str | None = None
) -> None:
    """Refuse an answer that needs what the log has forgotten.

    Parameters
    ----------
    path, domain, retention
        Of the log.
    needed : Antichain
    what : str
        For the error: what cannot be done, as in ``read log '/log' from 5``.
    consumer : str, optional
        Whose retainer it was.

    Raises
    ------
    SinceViolationError
    """
    if not may_read(retention.since, needed):
        raise passed(path, domain, retention, needed, what=what, consumer=consumer)


def passed(
    path: str, domain: TimeDomain, retention: Retention, needed: Antichain, *, what: str, consumer: str | None = None
) -> SinceViolationError:
    """Return the error for an answer that needs what the log has forgotten."""
    mine = None if consumer is None else retention.retainers.get(consumer)
    who = (
        f", moved by {retention.moved_by} at {moment_text(retention.moved_at, least='seconds')}"
        if retention.moved_by
        else ""
    )
    if mine is not None and mine.overrun:
        who = f", moved past consumer {consumer!r} by {mine.overrun}, after it expired at {moment_text(mine.expires)}"
    msg = f"could not {what}: found since={domain.render_frontier(retention.since)}{who}"
    return SinceViolationError(
        msg,
        hint="begin at since or later, a query with a new checkpoint; to keep a position from being passed, retain it",
        as_of=domain.render_frontier(needed),
        since=domain.render_frontier(retention.since),
        context={"path": path},
    )
