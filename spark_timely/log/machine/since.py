"""Decisions about `since` and retainers, pure: the history that a log may forget, and the reads that stay possible.

`since` is the frontier from which on a log can be read; a *retainer* is a row by which a named consumer keeps it from
passing a position. `spark_timely.log.retention` reads and commits what is decided here; readers ask `needed_from` and
`check_may_read` whether they come too late.

A reader says what it *needs* as one antichain: times at and beyond it must stay distinct. It can be answered as long as
since has not passed that antichain, and a retainer of its position retains the same antichain; so "may be read" and
"is retained" are one comparison.

Invariants
----------
1. since only moves forward: never past what a live retainer needs, nor past what the log's own frontier needs.
2. Nothing is retained that since has passed.
3. A retainer that has expired blocks nothing. If since passes it, the same decision says so, for its reader's error.
   What a log keeps in any case (`Keep`) counts as one that never expires, and moves with the frontier.
4. A decision is about one state: its commit excludes all others, and after a lost race it is made again.
5. Of several runs of one query the one that began last has its retainer: an earlier one, that lives on, is refused.
6. A retainer that has expired stays, so that its reader learns what became of it; a brief one has no reader that comes
   back, and goes with the next decision that moves since or registers a retainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_timely.errors import InvalidUsageError, OwnershipError, SinceViolationError, shown
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import moment_text

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogKind
    from spark_timely.time.antichain import BoolArray, IntArray
    from spark_timely.time.domain import TimeDomain


UNCLAIMED: Final = "a query that begins"
"""Owner of a retainer whose query has no identity yet, for its checkpoint is empty: any query may take it."""


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
    for element in since.times:
        found |= (times >= element).all(axis=1) & (times > element).any(axis=1)
    return found


def moved_to(since: Antichain) -> tuple[int, ...]:
    """Return the time to which updates move, each coordinate that is lower: the least of since in each coordinate.

    So it is in products of integers: a time, seen from since, is the greater of itself and this per coordinate.

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
    run : str
        Of several runs of its owner the one that has it; empty where all may move it.
    turn : int
        How many runs have begun with it.
    brief : bool
        Whether no reader comes back for it: once it has expired, the next decision removes it (invariant 6).
    """

    name: str
    needed: Antichain
    owner: str
    expires: int
    overrun: str = ""
    run: str = ""
    turn: int = 0
    brief: bool = False

    def is_alive(self, now: int) -> bool:
        """Return whether since may not pass it."""
        return not self.overrun and self.expires > now


DAY_US: Final = 86_400_000_000
# A frontier is noted each time this part of `Keep.committed` has passed. Where the newest that counts is older than it
# need be by a larger part, it is looked up.
_NOTED_PARTS: Final = 8
_STALE_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Keep:
    """The length of history that a log keeps, however far compaction is allowed; committers move since so far.

    Parameters
    ----------
    length : int
        Times that are less than this before the log's frontier stay, in units of its one coordinate.
    committed : int
        Nothing goes that was committed less than this ago by the wall clock, microseconds.
    seen : tuple of (int, Antichain)
        What the log's frontier was at some moments, in their order: whatever was committed later is beyond it.
    """

    length: int
    committed: int = DAY_US
    seen: tuple[tuple[int, Antichain], ...] = ()

    def noted(self, frontier: Antichain, now: int) -> Keep:
        """Return the same with the log's frontier noted, where that is of use: a few are kept, whatever the history.

        Examples
        --------
        >>> keep = Keep(5, committed=80).noted(Antichain.of(3), 100)
        >>> keep.noted(Antichain.of(9), 101) is keep
        True
        >>> keep.noted(Antichain.of(9), 200).seen
        ((100, Antichain.of(3)), (200, Antichain.of(9)))
        """
        # Of a clock that is ahead nothing is believed.
        seen = [(at, there) for at, there in self.seen if at <= now]
        if not self.committed or (
            seen and ((now - seen[-1][0]) * _NOTED_PARTS < self.committed or seen[-1][1] == frontier)
        ):
            return self
        old = [(at, there) for at, there in seen if at <= now - self.committed]
        return replace(self, seen=(*old[-1:], *seen[len(old) :], (now, frontier)))

    def known(self, at: int, frontier: Antichain) -> Keep:
        """Return the same, with what the log's frontier was at a moment.

        Examples
        --------
        >>> Keep(5, seen=((1, Antichain.of(0)), (7, Antichain.of(4)))).known(3, Antichain.of(2)).seen
        ((3, Antichain.of(2)), (7, Antichain.of(4)))
        """
        return replace(self, seen=((at, frontier), *(one for one in self.seen if one[0] > at)))

    def is_stale(self, now: int) -> bool:
        """Return whether what is known would hold since up: nobody noted a frontier for long."""
        then = now - self.committed
        newest = max((at for at, _ in self.seen if at <= then), default=None)
        return bool(self.committed) and (newest is None or (then - newest) * _STALE_PARTS > self.committed)

    def settled(self, frontier: Antichain, now: int) -> Antichain | None:
        """Return the newest frontier that is known to lie before all that was committed lately; None: not known."""
        if not self.committed:
            return frontier
        return next((there for at, there in reversed(self.seen) if at <= now - self.committed), None)

    def floor(self, frontier: Antichain, greatest: int | None, minimum: tuple[int, ...], now: int) -> Antichain:
        """Return how far since may move at most.

        Parameters
        ----------
        frontier : Antichain
            The log's.
        greatest : int or None
            The greatest time in the log, from which is counted where the log is complete; None if it is not known.
        minimum : tuple of int
            The log's.
        now : int
            Wall clock, microseconds.

        Examples
        --------
        >>> Keep(5, committed=0).floor(Antichain.of(12), None, (0,), now=1)
        Antichain.of(7)
        >>> Keep(5).floor(Antichain.of(12), None, (0,), now=1)
        Antichain.of(0)
        """
        settled = self.settled(frontier, now)
        end = greatest if frontier.is_empty else frontier.elements[0][0]
        if settled is None or end is None:
            return Antichain.of(minimum)
        # Of a log that was complete by then nothing is young.
        return Antichain.of(max(end - self.length, minimum[0])).meet(settled)


def _nobody() -> Mapping[str, Retainer]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a log: the whole state that commits of since and of retainers replace.

    Parameters
    ----------
    since : Antichain
        From where the log can be read. A log begins with its minimum: everything.
    seq : int
        Number of the newest commit; -1 before the first.
    moved_by, moved_at : str, int
        By whom since was moved last, and when, in microseconds; empty and 0 before that.
    retainers : mapping of str to Retainer
    keep : Keep or None
        How much stays, however far compaction is allowed; None: only what retainers need.
    dead : int or None
        How long dead letters stay, microseconds by the wall clock; None: for ever.
    """

    since: Antichain
    seq: int = -1
    moved_by: str = ""
    moved_at: int = 0
    retainers: Mapping[str, Retainer] = field(default_factory=_nobody)
    keep: Keep | None = None
    dead: int | None = None

    def alive(self, now: int) -> list[Retainer]:
        """Return the retainers that since may not pass."""
        return [each for each in self.retainers.values() if each.is_alive(now)]


def everything(domain: TimeDomain) -> Retention:
    """Return what a log remembers that never forgot anything."""
    return Retention(domain.minimum_frontier)


def decide_since(
    retention: Retention, wanted: Antichain, own: Antichain, *, by: str, now: int, floor: Antichain | None = None
) -> Retention | None:
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
    floor : Antichain, optional
        How far it may move by what the log keeps, see `Keep.floor`.

    Examples
    --------
    >>> moved = decide_since(Retention(Antichain.of(0)), Antichain.of(9), Antichain.of(7), by="me", now=1)
    >>> moved.since, moved.seq
    (Antichain.of(7), 0)
    """
    allowed = wanted.meet(own) if floor is None else wanted.meet(own).meet(floor)
    for retainer in retention.alive(now):
        allowed = allowed.meet(retainer.needed)
    since = retention.since.join(allowed)
    if since == retention.since:
        return None
    overrun = f"{by} at {moment_text(now, least='seconds')}"
    retainers = {
        name: each if each.overrun or may_read(since, each.needed) else replace(each, overrun=overrun)
        for name, each in _not_gone(retention, now).items()
    }
    return replace(
        retention,
        since=since,
        seq=retention.seq + 1,
        moved_by=by,
        moved_at=now,
        retainers=MappingProxyType(retainers),
    )


def decide_dead(retention: Retention, dead: int | None) -> Retention | None:
    """Decide how long dead letters stay from now on; None if they do so already.

    Examples
    --------
    >>> decided = decide_dead(Retention(Antichain.of(0)), 7)
    >>> decided.dead, decide_dead(decided, 7)
    (7, None)
    """
    return None if dead == retention.dead else replace(retention, seq=retention.seq + 1, dead=dead)


def decide_keep(retention: Retention, keep: Keep | None, frontier: Antichain, *, now: int) -> Retention | None:
    """Decide how much a log keeps from now on; None if it does so already.

    Parameters
    ----------
    retention : Retention
    keep : Keep or None
        With frontiers that are known. None: nothing is kept but for retainers, and nobody moves since by himself.
    frontier : Antichain
        The log's.
    now : int
        Wall clock, microseconds.

    Examples
    --------
    >>> decided = decide_keep(Retention(Antichain.of(0)), Keep(7), Antichain.of(3), now=5)
    >>> decided.keep.length, decided.keep.seen, decide_keep(decided, Keep(7), Antichain.of(4), now=9)
    (7, ((5, Antichain.of(3)),), None)
    """
    before = retention.keep
    if keep is None:
        return None if before is None else replace(retention, seq=retention.seq + 1, keep=None)
    if before is not None:
        if (before.length, before.committed) == (keep.length, keep.committed):
            return None
        both = {**dict(before.seen), **dict(keep.seen)}
        keep = replace(keep, seen=tuple(sorted(both.items(), key=lambda one: one[0])))
    return replace(retention, seq=retention.seq + 1, keep=keep.noted(frontier, now))


def decide_kept(
    retention: Retention,
    frontier: Antichain,
    greatest: int | None,
    own: Antichain,
    *,
    minimum: tuple[int, ...],
    now: int,
) -> Retention | None:
    """Decide how far a committer moves since by itself: as far as the log need not keep; None if nothing changes.

    Parameters
    ----------
    retention : Retention
    frontier, greatest, minimum, now
        As for `Keep.floor`.
    own : Antichain
        As for `decide_since`.

    Examples
    --------
    >>> log = Retention(Antichain.of(0), keep=Keep(5, committed=0))
    >>> decide_kept(log, Antichain.of(12), None, Antichain.of(12), minimum=(0,), now=1).since
    Antichain.of(7)
    """
    if retention.keep is None:
        return None
    keep = retention.keep.noted(frontier, now)
    noted = retention if keep is retention.keep else replace(retention, keep=keep)
    floor = keep.floor(frontier, greatest, minimum, now)
    moved = decide_since(noted, floor, own, by=KEEPER, now=now)
    if moved is None and noted is not retention:
        moved = replace(noted, seq=retention.seq + 1)
    return moved


KEEPER: Final = "keep"
"""Stands where a name would, if committers moved since by what the log keeps."""


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
    run: str = "",
    turn: int | None = None,
    brief: bool = False,
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
    run : str
        Of the owner, where one of its runs alone may move the retainer; empty where all may.
    turn : int or None
        That of the run, once it has begun. None: it begins, and takes the retainer from those before it. A table that
        was restored may have an earlier run's retainer again.
    brief : bool
        As of `Retainer`.

    Raises
    ------
    OwnershipError
        If the name is another owner's, and alive; or if a later run has taken it.
    SinceViolationError
        If since has passed what is to be retained.
    """
    before = retention.retainers.get(name)
    if before is not None and before.owner not in (owner, UNCLAIMED) and before.is_alive(now):
        hint = f"choose another name, or release it first: it expires at {moment_text(before.expires)}"
        raise _of_another(path, before, f"owned by {before.owner!r}, not by {owner!r}", hint)
    others = before is not None and before.run not in ("", run)
    if before is not None and others and run and turn is not None and before.turn >= turn:
        hint = (
            "let one of the two run: the one that begins last has the consumer; a query with a copied checkpoint "
            "needs a consumerId of its own"
        )
        raise _of_another(path, before, "taken over by another run of the query, which began later", hint)
    if needed.is_empty:
        return None if before is None else _without(retention, name)
    if not may_read(retention.since, needed):
        raise passed(path, domain, retention, needed, what=f"retain log {path!r} for consumer {name!r}", consumer=name)
    if turn is None:
        turn = 0 if before is None else before.turn + (1 if before.run != run else 0)
    found = Retainer(name, needed, owner, expires, run=run, turn=turn, brief=brief)
    if found == before:
        return None
    retainers = MappingProxyType(dict(sorted({**_not_gone(retention, now), name: found}.items())))
    return replace(retention, seq=retention.seq + 1, retainers=retainers)


def _of_another(path: str, before: Retainer, found: str, hint: str) -> OwnershipError:
    return OwnershipError(
        f"could not retain log {path!r} for consumer {before.name!r}: found it {found}",
        hint=hint,
        context={"path": path, "consumer": before.name, "owner": before.owner},
    )


def decide_release(path: str, retention: Retention, name: str) -> Retention:
    """Decide to let a retainer go, whatever query or program owns it.

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


def needed_as_of(
    path: str,
    domain: TimeDomain,
    kind: LogKind,
    retention: Retention,
    as_of: Antichain | None,
    *,
    beside: Iterable[Antichain] = (),
    what: str,
) -> Antichain:
    """Return what is to be retained so that a log can be read as of a time; part of the decision that retains it.

    Of a collection that is the time. Of a stream it is since: what it contains is what is left of its messages.

    Parameters
    ----------
    path : str
        Of the log, for the error.
    domain : TimeDomain
    kind : {"collection", "stream"}
    retention : Retention
    as_of : Antichain or None
        Before the log's minimum there is nothing, and nothing is needed. None: all that is there.
    beside : iterable of Antichain
        What is retained with it. Of these, what since has passed already holds nothing up.
    what : str
        As of `check_may_read`.

    Raises
    ------
    SinceViolationError
        If since has passed the time.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> log, times = Retention(Antichain.of(2)), TimeDomain()
    >>> asked = {"what": "begin", "beside": [Antichain.of(1), Antichain.of(4)]}
    >>> needed_as_of("/log", times, "collection", log, Antichain.of(5), **asked)
    Antichain.of(4)
    >>> needed_as_of("/log", times, "stream", log, Antichain.of(5), **asked)
    Antichain.of(2)
    """
    if as_of is not None:
        as_of = as_of.join(domain.minimum_frontier)
        check_may_read(path, domain, retention, as_of, what=what)
    needed = retention.since if as_of is None or kind == "stream" else as_of
    for each in beside:
        if may_read(retention.since, each):
            needed = needed.meet(each)
    return needed


def _not_gone(retention: Retention, now: int) -> dict[str, Retainer]:
    """Return the retainers without the brief ones that have expired (invariant 6)."""
    return {name: each for name, each in retention.retainers.items() if not each.brief or each.is_alive(now)}


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
