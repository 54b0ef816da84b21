"""Policies of progress: pure functions that judge rows as on time or late, and decide how far the frontier moves.

A capture judges every row by the capability that its stream holds *before* the micro-batch, and at the micro-batch's
end states which capabilities it keeps. A `Policy` has the options of both decisions (`frontier`, `lateData`,
`lateness` and others). The sink and the writer in Python judge rows by it (`log.admission`) and move the frontier by it
(`sink.commit`, `log.writer`); `spark.capture.classify` writes its verdicts as SQL for the capture in ``foreachBatch``.
So all give the same result, and so does an attempt that is repeated after a crash. `rules` checks what is stated,
whatever decided it.

A *dead letter* is a row that is kept in the log outside of the stream; a *skewed* row has a time too far in the future.

Invariants
----------
1. A row is judged only by the counts before the micro-batch, the options and the micro-batch's
   recorded wall clock, never by other rows. So it does not matter how rows are spread over tasks.
2. Every row is exactly one of: message at its own time, message at an advanced time, dead letter,
   refused. Refused rows exist only under ``late_data="error"``, and under ``bad_time="error"`` where a row has no time.
3. No message is at a time that the held capability does not cover.
4. What `Policy.downgrade` states is legal after `Policy.judge`: it gives up only capabilities that are held, and
   takes new ones only at times that a held one is less than or equal to.
5. A skewed row never moves the frontier, nor does a dead letter.
6. Whether a row has a usable time is asked first; one that has none is neither late nor skewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_timely.errors import InvalidOptionError, InvalidUsageError, LateDataError, shown
from spark_timely.protocol.note import Mover
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.antichain import Antichain, advance, beyond, consolidate_rows
from spark_timely.time.domain import FoundTimes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.time.antichain import BoolArray, IntArray
    from spark_timely.time.domain import TimeDomain

__all__ = [
    "BadTime",
    "Downgrade",
    "FrontierPolicy",
    "HeldBy",
    "Judgement",
    "LateData",
    "Policy",
    "bad_time_hint",
    "late_cause",
    "late_error",
]

NO_TIME: Final = "no time: found "
"""How the reason of a dead letter begins whose time is null; what its columns hold follows."""

OUT_OF_BOUNDS: Final = "out of bounds: found "
"""The same of one whose time is no time of its type."""


class FrontierPolicy(StrEnum):
    """Say who decides when a captured time is complete.

    Examples
    --------
    >>> FrontierPolicy("bounded") is FrontierPolicy.BOUNDED
    True
    """

    BATCH = "batch"
    BOUNDED = "bounded"
    SOURCE = "source"
    EVENTS = "events"
    HOLD = "hold"
    # Not an option of its own: what `dialect=cdcv2` means.
    STATEMENTS = "statements"


class LateData(StrEnum):
    """Say what becomes of a row that the held capability does not cover.

    Examples
    --------
    >>> LateData("deadLetter") is LateData.DEAD_LETTER
    True
    """

    ERROR = "error"
    DEAD_LETTER = "deadLetter"
    ADVANCE = "advance"


class BadTime(StrEnum):
    """Say what becomes of a row whose time is null or outside of its type's bounds.

    Examples
    --------
    >>> BadTime("deadLetter") is BadTime.DEAD_LETTER
    True
    """

    ERROR = "error"
    DEAD_LETTER = "deadLetter"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Hold the verdict about each of n rows.

    Attributes
    ----------
    times : ndarray of int64, shape (n, k)
        Time under which each row is stored. A dead letter keeps its own time, if it has one; else it stands at the
        minimum.
    bad, late, skewed : ndarray of bool, shape (n,)
        Rows without a usable time, rows behind the held frontier, and rows too far in the future. Never two of them.
    dead, refused : ndarray of bool, shape (n,)
        Rows to set apart, and rows that forbid the micro-batch. Never both.

    Examples
    --------
    >>> import numpy as np
    >>> no = np.array([False])
    >>> Judgement(np.array([[4]]), bad=no, late=no, skewed=no, dead=no, refused=no).message.tolist()
    [True]
    """

    times: IntArray
    bad: BoolArray
    late: BoolArray
    skewed: BoolArray
    dead: BoolArray
    refused: BoolArray

    @property
    def message(self) -> BoolArray:
        """Rows that become messages."""
        return ~(self.dead | self.refused)

    @property
    def moving(self) -> BoolArray:
        """Rows whose times may move the frontier: messages that are not skewed."""
        return self.message & ~self.skewed

    @property
    def plain(self) -> bool:
        """Whether every row is a message at its own time."""
        return not (self.bad.any() or self.late.any() or self.skewed.any())


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Hold one progress statement: changes of capability counts, and why.

    Attributes
    ----------
    times : ndarray of int64, shape (m, k)
        Times whose count changes.
    deltas : ndarray of int64, shape (m,)
        Change of each count, in capabilities.
    reason : str
        Recorded in the log's ``_reason``.

    Examples
    --------
    >>> import numpy as np
    >>> Downgrade(np.array([[0], [1]]), np.array([-1, 1]), "batch").reason
    'batch'
    """

    times: IntArray
    deltas: IntArray
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """Judge rows and move the frontier, as the sink's options say.

    Parameters
    ----------
    domain : TimeDomain
        Types and minimum of the log's times.
    frontier : FrontierPolicy
        What moves the frontier.
    late_data : LateData
        What becomes of late and of skewed rows.
    lateness : int
        How far the frontier stays behind the greatest time seen, in units of the time;
        ``bounded`` only.
    max_future_skew : int or None
        How far a time may lie after the reference (the wall clock for date and timestamp, the
        held time for integers), in units of the time. None allows any time.
    bad_time : BadTime
        What becomes of rows whose time is null or outside of its type's bounds.

    Raises
    ------
    InvalidOptionError
        If the options contradict each other or the type of the time.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> policy = Policy(TimeDomain(("long",)), FrontierPolicy.BOUNDED, lateness=2)
    >>> counts = StreamCounts.initial(3)
    >>> policy.downgrade(counts, greatest=9).times.tolist()
    [[3], [7]]
    """

    domain: TimeDomain
    frontier: FrontierPolicy
    late_data: LateData = LateData.ERROR
    lateness: int = 0
    max_future_skew: int | None = None
    bad_time: BadTime = BadTime.ERROR

    def __post_init__(self) -> None:
        """Refuse combinations that mean nothing."""
        k = self.domain.arity
        if self.frontier is FrontierPolicy.BATCH and (k != 1 or not self.domain.types[0].minimum_is_of_type):
            kinds = ", ".join(kind.value for kind in self.domain.types)
            msg = f"could not use frontier='batch': found a log whose times are of type ({kinds})"
            raise InvalidOptionError(
                msg,
                hint="give timeColumn and another frontier, or another log: micro-batches are counted in integers",
                context={"option": "frontier"},
            )
        if self.frontier is FrontierPolicy.BOUNDED and k != 1:
            msg = f"could not use frontier='bounded': found {k} time columns"
            raise InvalidOptionError(
                msg,
                hint="give exactly one, or use frontier='hold' and move the frontier by advance",
                context={"option": "frontier"},
            )
        if self.max_future_skew is not None and k != 1:
            msg = f"could not use option 'maxFutureSkew': found {k} time columns"
            raise InvalidOptionError(
                msg, hint="give exactly one, or leave the option out", context={"option": "maxFutureSkew"}
            )
        for option, value in (("lateness", self.lateness), ("maxFutureSkew", self.max_future_skew)):
            if value is not None and value < 0:
                msg = f"could not use option {option!r}: found {value!r}"
                raise InvalidOptionError(msg, hint="give zero or more", context={"option": option})

    def skew_limit(self, counts: StreamCounts, at: int) -> int | None:
        """Return the greatest time that is not skewed.

        Parameters
        ----------
        counts : StreamCounts
            Counts before the micro-batch.
        at : int
            The micro-batch's wall clock, in microseconds since the epoch, UTC.

        Returns
        -------
        int or None
            None where every time is allowed: no `max_future_skew`, or an integer time whose
            stream is still at the minimum (nothing is known about its scale yet).

        Examples
        --------
        >>> from spark_timely.time.domain import TimeDomain
        >>> policy = Policy(TimeDomain(("long",)), FrontierPolicy.HOLD, max_future_skew=10)
        >>> policy.skew_limit(StreamCounts.initial(5), at=0)
        15
        """
        if self.max_future_skew is None:
            return None
        (kind,) = self.domain.types
        clock = kind.clock(at)
        if clock is not None:
            reference = clock
        else:
            held = counts.frontier
            reference = int(held.times[0, 0]) if not held.is_empty else self.domain.minimum[0]
            if reference == self.domain.minimum[0]:
                return None
        return min(reference + self.max_future_skew, kind.hi)

    def judge(self, times: IntArray | FoundTimes, counts: StreamCounts, *, at: int) -> Judgement:
        """Say for each row what becomes of it.

        Parameters
        ----------
        times : ndarray of int64, shape (n, k), or FoundTimes
            Each row's own time, where all have one; else what was found. Not modified. Ignored but for its length
            under ``batch``.
        counts : StreamCounts
            Counts before the micro-batch.
        at : int
            The micro-batch's wall clock, in microseconds since the epoch, UTC.

        Returns
        -------
        Judgement
            `times` is the caller's array where no row moves.

        Notes
        -----
        Cost: O(n·f), f = size of the held frontier.

        Examples
        --------
        >>> import numpy as np
        >>> from spark_timely.time.domain import TimeDomain
        >>> policy = Policy(TimeDomain(("long",)), FrontierPolicy.HOLD, LateData.ADVANCE)
        >>> counts = StreamCounts.initial(5)
        >>> policy.judge(np.array([[3], [5], [8]]), counts, at=0).times.ravel().tolist()
        [5, 5, 8]
        """
        held = counts.frontier
        found = times if isinstance(times, FoundTimes) else None
        own = times.times if isinstance(times, FoundTimes) else times
        n = len(own)
        none = np.zeros(n, dtype=bool)
        if self.frontier is FrontierPolicy.BATCH:
            stamped = np.broadcast_to(held.times[:1], (n, 1))
            return Judgement(stamped, bad=none, late=none, skewed=none, dead=none, refused=none)
        sets_bad_apart = self.bad_time is BadTime.DEAD_LETTER
        bad = none if found is None else found.null | found.outside
        if found is not None and sets_bad_apart:
            # Else they are late, as what is behind every frontier.
            bad = bad | found.below
        late = ~beyond(own, held.times) & ~bad
        limit = self.skew_limit(counts, at)
        skewed = none if limit is None else (own[:, 0] > limit) & ~late & ~bad
        outcast = late | skewed
        placed = own
        if self.late_data is LateData.ADVANCE and late.any():
            placed = own.copy()
            placed[late] = advance(own[late], held.times)
        if bad.any():
            placed = np.where(bad[:, None], np.array(self.domain.minimum, np.int64), placed)
        dead = outcast if self.late_data is LateData.DEAD_LETTER else none
        refused = outcast if self.late_data is LateData.ERROR else none
        return Judgement(
            placed,
            bad=bad,
            late=late,
            skewed=skewed,
            dead=dead | bad if sets_bad_apart else dead,
            refused=refused if sets_bad_apart else refused | bad,
        )

    def downgrade(
        self,
        counts: StreamCounts,
        *,
        greatest: int | None = None,
        events: tuple[IntArray, IntArray] | None = None,
        source: Antichain | None = None,
    ) -> Downgrade:
        """Return what the micro-batch states about progress at its end.

        Parameters
        ----------
        counts : StreamCounts
            Counts before the micro-batch.
        greatest : int or None
            Greatest time of the rows that may move the frontier (`Judgement.moving`); None when
            there are none. ``bounded`` only.
        events : pair of ndarrays, shapes (m, k) and (m,), or None
            Times and changes of the progress rows in the data, or of what its statements amount to. ``events``
            and ``statements`` only.
        source : Antichain or None
            Frontier of what the query reads, at the micro-batch's end; None while it is not known.
            ``source`` only.

        Returns
        -------
        Downgrade
            Empty where nothing moves.

        Raises
        ------
        InvalidUsageError
            If the type of the time has no time after the one that ``batch`` completes.

        Examples
        --------
        >>> from spark_timely.time.domain import TimeDomain
        >>> policy = Policy(TimeDomain(("long",), (0,)), FrontierPolicy.BATCH)
        >>> policy.downgrade(StreamCounts.initial(0)).deltas.tolist()
        [-1, 1]
        """
        empty = np.zeros((0, self.domain.arity), dtype=np.int64)
        still = np.zeros(0, dtype=np.int64)
        if self.frontier is FrontierPolicy.HOLD:
            return Downgrade(empty, still, "hold")
        if self.frontier is FrontierPolicy.EVENTS:
            times, deltas = events if events is not None else (empty, still)
            return Downgrade(times, deltas, "events")
        if self.frontier is FrontierPolicy.STATEMENTS:
            times, deltas = events if events is not None else (empty, still)
            return Downgrade(times, deltas, "cdcv2")
        held = counts.frontier
        if self.frontier is FrontierPolicy.SOURCE:
            # Never back: where the stream has been moved on by hand, it stays there.
            target_frontier = held if source is None else held.join(source)
            if target_frontier == held:
                return Downgrade(empty, still, "source")
            return _move_to(counts, target_frontier, f"source: {self.domain.render_frontier(target_frontier)}")
        current = int(held.times[0, 0])
        if self.frontier is FrontierPolicy.BATCH:
            following = self.domain.successor((current,))
            if following is None:
                time = self.domain.render_time((current,))
                msg = f"could not complete time {time!r}: found no later time of type {self.domain.types[0].value!r}"
                raise InvalidUsageError(msg, hint="capture into a new log", context={"time": current})
            target, reason = int(following[0]), "batch"
        else:
            if greatest is None or greatest - self.lateness <= current:
                return Downgrade(empty, still, "bounded")
            target = max(greatest - self.lateness, self.domain.minimum[0])
            kind = self.domain.types[0]
            lateness = kind.render_duration(self.lateness)
            reason = f"bounded: greatest time {kind.render(greatest)}, lateness {lateness}"
        return _move_to(counts, Antichain.of(target), reason)

    def reasons(self, counts: StreamCounts, *, at: int) -> tuple[str, str]:
        """Return the texts recorded with late and with skewed rows.

        Parameters
        ----------
        counts : StreamCounts
            Counts before the micro-batch.
        at : int
            The micro-batch's wall clock, in microseconds since the epoch, UTC.

        Returns
        -------
        late, skewed : str

        Examples
        --------
        >>> from spark_timely.time.domain import TimeDomain
        >>> policy = Policy(TimeDomain(("long",)), FrontierPolicy.HOLD)
        >>> policy.reasons(StreamCounts.initial(5), at=0)[0]
        'late: behind the frontier [5]'
        """
        limit = self.skew_limit(counts, at)
        after = "" if limit is None else f": after {self.domain.types[0].render(limit)}"
        held = self.domain.render_frontier(counts.frontier)
        return f"late: behind the frontier {held}", f"skewed{after}"


@cache
def holding(domain: TimeDomain, /) -> Policy:
    """Return the policy of writers that state their progress themselves: made once for a domain.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> holding(TimeDomain(("long",))).frontier.value
    'hold'
    """
    return Policy(domain, FrontierPolicy.HOLD)


@dataclass(frozen=True, slots=True)
class HeldBy:
    """Say why a stream holds what it holds, for errors about rows that are behind that.

    Attributes
    ----------
    mover : Mover or None
        The row that moved the frontier last, where that is known.
    joins : bool
        Whether the stream is new in a log that did not wait for it.

    Examples
    --------
    >>> HeldBy().mover is None
    True
    """

    mover: Mover | None = None
    joins: bool = False


def bad_time_hint(policy: Policy, hint: str) -> str:
    """Return the hint about a row without a usable time, with the option that sets it apart where there is one.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> bad_time_hint(Policy(TimeDomain(("long",)), FrontierPolicy.HOLD), "fill the column")
    "fill the column, or set badTime to 'deadLetter' to set such rows apart"
    """
    chosen = policy.frontier in (FrontierPolicy.BOUNDED, FrontierPolicy.SOURCE, FrontierPolicy.HOLD)
    return f"{hint}, or set badTime to 'deadLetter' to set such rows apart" if chosen else hint


def late_error(
    policy: Policy,
    counts: StreamCounts,
    *,
    at: int,
    time: tuple[int, ...],
    skewed: bool,
    row: Mapping[str, object],
    stream: str,
    held_by: HeldBy = HeldBy(),
) -> LateDataError:
    """Return the error for a row that ``lateData=error`` refuses.

    Parameters
    ----------
    policy : Policy
        Policy that refused the row.
    counts : StreamCounts
        Counts that it was judged by.
    at : int
        The micro-batch's wall clock, in microseconds since the epoch, UTC.
    time : tuple of int
        The row's own time.
    skewed : bool
        Whether the row is too far in the future; else it is behind the frontier.
    row : mapping
        Names and values of the row, to recognise it by.
    stream : str
        Name of the stream.
    held_by : HeldBy
        Why the frontier is where it is.

    Returns
    -------
    LateDataError
        Names row, time, frontier, what moved the frontier there, and the options that let the row pass.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> policy = Policy(TimeDomain(("long",)), FrontierPolicy.HOLD)
    >>> counts = StreamCounts.initial(5)
    >>> print(late_error(policy, counts, at=0, time=(3,), skewed=False, row={"t": 3}, stream="a"))
    [TIMELY_LATE_DATA] could not capture row {'t': 3} in stream 'a': found time 3 behind the frontier [5] — hint: \
set lateData to 'deadLetter' to set late rows apart, or to 'advance' to move them to the frontier
    """
    domain = policy.domain
    time_shown = domain.render_time(time)
    text = shown(dict(row))
    if skewed:
        limit = policy.skew_limit(counts, at)
        latest = None if limit is None else domain.types[0].render(limit)
        found = f"found time {time_shown!r} after {latest!r}, the latest that maxFutureSkew allows"
        hint = (
            "raise maxFutureSkew, or set lateData to 'deadLetter' to set such rows apart, or to"
            " 'advance' to keep them without moving the frontier"
        )
    else:
        found, hint = late_cause(policy, counts, time=time, held_by=held_by)
        found = f"found time {time_shown!r} behind the frontier {domain.render_frontier(counts.frontier)}{found}"
        hint = (
            f"set lateData to 'deadLetter' to set late rows apart, or to 'advance' to move them to the frontier{hint}"
        )
    return LateDataError(
        f"could not capture row {text} in stream {stream!r}: {found}",
        hint=hint,
        context={"stream": stream},
        time=time_shown,
        frontier=domain.render_frontier(counts.frontier),
    )


def late_cause(policy: Policy, counts: StreamCounts, *, time: tuple[int, ...], held_by: HeldBy) -> tuple[str, str]:
    """Return why a row is late, as it follows its time and the frontier, and what to do about that beside `lateData`.

    Parameters
    ----------
    policy, counts
        By which it was judged.
    time : tuple of int
        The row's own time.
    held_by : HeldBy

    Returns
    -------
    found, hint : str
        Empty where nothing is known.

    Examples
    --------
    >>> from spark_timely.time.domain import TimeDomain
    >>> policy = Policy(TimeDomain(("date",)), FrontierPolicy.HOLD)
    >>> late_cause(policy, StreamCounts.initial(-98615), time=(-98616,), held_by=HeldBy())[0]
    ', and 1700-01-01 is the least time of type date'
    """
    domain = policy.domain
    kind = next(
        (k for k, x in zip(domain.types, time, strict=True) if x < k.lo), None
    )  # integers never are: their column does not hold such
    if kind is not None:
        return (
            f", and {kind.render(kind.lo)} is the least time of type {kind.value}",
            "; set badTime to 'deadLetter' to set apart what has no usable time, or correct the time in the query",
        )
    # Sources move the frontier of `source`, whatever moved it before.
    mover = None if policy.frontier is FrontierPolicy.SOURCE else held_by.mover
    type_ = domain.types[0]
    if mover is not None and counts.frontier == Antichain.of(mover.frontier):
        found = f", to which a row at time {type_.render(mover.time)!r} moved it ({_where_from(mover)})"
        clock = type_.clock(mover.at)
        if clock is not None and mover.frontier > clock:
            ahead = type_.render_duration(mover.time - clock)
            return (
                f"{found}, {ahead} after the wall clock",
                "; keep such rows from moving the frontier with maxFutureSkew='1 day', and see 'My frontier is too far'"
                " in the documentation: a larger lateness does not bring it back",
            )
        needed = type_.render_duration(mover.time - time[0])
        return found, f"; a lateness of {needed!r} would have kept this time open"
    if mover is not None:
        return "", "; no row moved the frontier there: it was advanced, or its query was idle"
    hint = ""
    if held_by.joins:
        hint = (
            "; the stream joins a log that did not wait for it: give streams=2, or as many as there will be, to the"
            " query that makes the log"
        )
    elif policy.frontier is FrontierPolicy.BOUNDED:
        hint = "; a larger lateness keeps more times open"
    if policy.frontier is FrontierPolicy.SOURCE:
        hint += "; the query itself moves times back, as rounding down does: capture the time that the source gives"
    return "", hint


def _where_from(mover: Mover) -> str:
    return ", ".join(part for part in (mover.place, f"commit {mover.seq}") if part)


def _move_to(counts: StreamCounts, target: Antichain, reason: str) -> Downgrade:
    """Give up every held capability for one at each element of `target`."""
    # An element of both, as a product order can have, stays as it is.
    times, deltas = consolidate_rows(
        np.concatenate([counts.times, target.times]),
        np.concatenate([-counts.counts, np.ones(len(target), dtype=np.int64)]),
    )
    return Downgrade(times, deltas, reason)
