"""The rules of the capture protocol: checks that each message and progress event may follow those before it.

The log checks each commit by `check_messages` and `check_progress` before it is written (`log.machine.decide`), and
`log.verify` and imports check many events by `verify_events`. `StreamCounts` are the capabilities that a stream holds,
as counts by time. `policy` decides what a capture states; the rules hold for whatever is stated.

A stream starts with one capability at the minimum time. From then on, in the order of its events:

Invariants
----------
1. Progress may raise the count of a time only if some time less or equal to it has a positive count.
2. A message may use a time only if some time less or equal to it has a positive count.
3. No count is below zero after a progress batch: a stream gives up only what it holds.
4. "Count" in 1 and 2 is what had accumulated before the batch. A batch counts as a whole: changes of
   one time are summed first, and their order inside the batch means nothing.

What follows: a stream stays legal if a message moves to before progress that preceded it. The other way it may not:
progress that drops the last capability that a message needs must stay behind that message. Streams that each keep the
rules keep them together too, in any interleaving, when their counts are summed from one capability per stream on.

Source: timely `protocol/replay.rs`, the protocol in the module's description.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_timely.errors import NegativeCountError, UnheldCapabilityError
from spark_timely.protocol.event import (
    Event,
    StreamEvents,
    least_over_steps,
    positive_intervals,
    running_counts,
)
from spark_timely.time.antichain import (
    Antichain,
    DiffArray,
    IntArray,
    TimesLike,
    as_times,
    beyond,
    concat_times,
    consolidate,
    consolidate_rows,
    less_equal,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from spark_timely.time.domain import TimeDomain

__all__ = ["StreamCounts", "check_messages", "check_progress", "verify_events"]

# Pairs of an event and a time held that are compared at once.
_PAIRS = 1 << 22


class _Place(NamedTuple):
    """The place of a broken rule, as far as it is known, and the types of its times: for errors."""

    stream: str | None = None
    seq: int | None = None
    domain: TimeDomain | None = None

    def __str__(self) -> str:
        place = "" if self.stream is None else f" in stream {self.stream!r}"
        return place if self.seq is None else f"{place} at seq={self.seq}"

    def render(self, time: IntArray | tuple[int, ...]) -> object:
        values = tuple(int(x) for x in time)
        if self.domain is not None:
            return self.domain.render_time(values)
        return values[0] if len(values) == 1 else values


@dataclass(frozen=True, slots=True, eq=False)
class StreamCounts:
    """The capabilities that a stream holds: times and how many at each.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
        Distinct times in lexicographic order, read-only.
    counts : ndarray of int64, shape (n,)
        Positive counts, read-only.

    Notes
    -----
    Build it with `initial` or `from_arrays`, which sort and check. Comparable with `==`, picklable.

    Examples
    --------
    >>> counts = StreamCounts.initial((0,))
    >>> counts.frontier, counts.total
    (Antichain.of(0), 1)
    """

    times: IntArray
    counts: DiffArray
    _frontier: list[Antichain] = field(default_factory=list, repr=False)

    @classmethod
    def initial(cls, minimum: int | Sequence[int], count: int = 1) -> StreamCounts:
        """Return what a stream holds at its start: `count` capabilities at the minimum time.

        Examples
        --------
        >>> StreamCounts.initial((0, 0), 2).total
        2
        """
        row = (minimum,) if isinstance(minimum, int | np.integer) else tuple(minimum)
        return cls.from_arrays([row], [count], len(row))

    @classmethod
    def from_arrays(cls, times: TimesLike, counts: npt.ArrayLike, arity: int | None = None) -> StreamCounts:
        """Return the capabilities with the given counts; those of equal times are summed.

        Raises
        ------
        NegativeCountError
            If a count is below zero.
        InvalidShapeError
            If shapes or types do not fit.

        Examples
        --------
        >>> StreamCounts.from_arrays([5, 3, 5], [1, 0, 1]).to_json()
        [[5, 2]]
        """
        return cls._checked(times, counts, arity)

    @classmethod
    def empty(cls, arity: int = 1) -> StreamCounts:
        """Return the counts of a closed stream: nothing held.

        Examples
        --------
        >>> StreamCounts.empty().closed
        True
        """
        return cls._checked(np.empty((0, arity), dtype=np.int64), np.empty(0, dtype=np.int64))

    @classmethod
    def _checked(
        cls,
        times: TimesLike,
        counts: npt.ArrayLike,
        arity: int | None = None,
        place: _Place | None = None,
    ) -> StreamCounts:
        """Consolidate and refuse negative counts; whose they are goes into the error."""
        held, sums = consolidate(times, counts, arity)
        if sums.shape[0] and sums.min() < 0:
            row = int(np.flatnonzero(sums < 0)[0])
            raise _negative(held[row], int(sums[row]), place or _Place())
        held.flags.writeable = False
        sums.flags.writeable = False
        return cls(held, sums)

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return int(self.times.shape[1])

    @property
    def total(self) -> int:
        """Number of capabilities held."""
        return int(self.counts.sum())

    @property
    def closed(self) -> bool:
        """Whether nothing is held: the stream can add nothing more."""
        return len(self.times) == 0

    @property
    def frontier(self) -> Antichain:
        """The minima of the times held."""
        if not self._frontier:
            self._frontier.append(Antichain(self.times, self.arity))
        return self._frontier[0]

    def to_json(self) -> list[list[int | list[int]]]:
        """Return [[time, count], …] as plain JSON values; a time is an integer for k = 1.

        Examples
        --------
        >>> StreamCounts.initial((0, 0)).to_json()
        [[[0, 0], 1]]
        """
        times = self.times[:, 0].tolist() if self.arity == 1 else self.times.tolist()
        return [[time, count] for time, count in zip(times, self.counts.tolist(), strict=True)]

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same capabilities."""
        if not isinstance(other, StreamCounts):
            return NotImplemented
        return np.array_equal(self.times, other.times) and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        """Return a hash that agrees with `==`."""
        return hash((self.times.tobytes(), self.counts.tobytes()))

    def __reduce__(self) -> tuple[object, tuple[IntArray, DiffArray, int]]:
        """Pickle as the arrays."""
        # No method of the class: Spark's pickle would carry that one's code, with the path of its file.
        return _rebuild, (self.times, self.counts, self.arity)


def _rebuild(times: IntArray, counts: DiffArray, arity: int) -> StreamCounts:
    return StreamCounts.from_arrays(times, counts, arity)


def check_progress(
    counts: StreamCounts,
    times: TimesLike,
    deltas: npt.ArrayLike,
    *,
    stream: str | None = None,
    seq: int | None = None,
    domain: TimeDomain | None = None,
) -> StreamCounts:
    """Judge one progress batch, as a whole, and return the counts after it.

    Parameters
    ----------
    counts : StreamCounts
        What the stream holds before the batch.
    times : array-like of integers, shape (n, k)
    deltas : array-like of integers, shape (n,)
        Changes of the counts. Times may repeat; zeros are allowed and mean nothing.
    stream, seq : optional
        Whose batch it is, for the error.
    domain : TimeDomain, optional
        How to write times in the error.

    Returns
    -------
    StreamCounts

    Raises
    ------
    UnheldCapabilityError
        If the count of a time is raised to which no time held before is less or equal (invariant 1).
    NegativeCountError
        If a count would be below zero after the batch (invariant 3).

    Notes
    -----
    Cost: O((n + d) log (n + d)) for d times held.

    Examples
    --------
    >>> held = StreamCounts.initial(0)
    >>> check_progress(held, [0, 5], [-1, 1]).to_json()
    [[5, 1]]
    """
    rows, changes = consolidate(times, deltas, counts.arity)
    raised = rows[changes > 0]
    fits = beyond(raised, counts.times)
    place = _Place(stream, seq, domain)
    if not fits.all():
        attempt = "raise the count of"
        raise _unheld(attempt, raised[int(np.flatnonzero(~fits)[0])], counts, place)
    held, sums = concat_times(counts.times, rows), np.concatenate([counts.counts, changes])
    return StreamCounts._checked(held, sums, place=place)


def check_messages(
    counts: StreamCounts,
    times: TimesLike,
    *,
    stream: str | None = None,
    seq: int | None = None,
    domain: TimeDomain | None = None,
) -> None:
    """Judge the times of messages: each must be beyond a time held (invariant 2).

    Parameters
    ----------
    counts : StreamCounts
        What the stream holds before the progress of the same commit.
    times : array-like of integers, shape (n, k)
        All times of the messages, or only their minima: both give the same.
    stream, seq, domain : optional
        As in `check_progress`.

    Raises
    ------
    UnheldCapabilityError
        Naming the first such row.

    Notes
    -----
    Cost: as `spark_timely.time.antichain.beyond`.

    Examples
    --------
    >>> check_messages(StreamCounts.initial(3), [3, 9])
    """
    rows = as_times(times, counts.arity)
    fits = beyond(rows, counts.frontier.times)
    if not fits.all():
        row = int(np.flatnonzero(~fits)[0])
        attempt = "send a message at"
        raise _unheld(attempt, rows[row], counts, _Place(stream, seq, domain), row)


def verify_events(
    domain: TimeDomain,
    events: StreamEvents | Iterable[Event],
    *,
    start: StreamCounts | None = None,
    stream: str | None = None,
    seqs: npt.ArrayLike | None = None,
) -> StreamCounts:
    """Judge all events of a stream at once, and return what it holds at the end.

    Parameters
    ----------
    domain : TimeDomain
        Type and minimum of the times.
    events : StreamEvents or iterable of events
        In the order of the stream. Columns are judged without a loop over events.
    start : StreamCounts, optional
        What the stream holds at first; one capability at the domain's minimum unless given.
    stream : str, optional
        Name of the stream, for the error.
    seqs : array-like of int, shape (events.n_steps,), optional
        Number of the commit of each progress batch, for the error; the step unless given.

    Returns
    -------
    StreamCounts

    Raises
    ------
    UnheldCapabilityError, NegativeCountError
        For the earliest offence. Its context names stream, seq, time and what was held.

    Notes
    -----
    Cost: k = 1: O(n log n) for n messages and progress entries. Else O(n log n + p), where p counts
    the pairs of an event and a time held when it comes. No loop over events.

    Examples
    --------
    >>> from spark_timely.protocol.event import Messages, Progress
    >>> from spark_timely.time.domain import TimeDomain
    >>> close = Progress(np.array([[0]]), np.array([-1]))
    >>> late = Messages(np.array([[7]]))
    >>> verify_events(TimeDomain(("long",), (0,)), [late, close]).closed
    True
    >>> try:
    ...     verify_events(TimeDomain(("long",), (0,)), [close, late])
    ... except UnheldCapabilityError as error:
    ...     error.message
    'could not send a message at time=7 at seq=1: found capabilities held=[]'
    """
    if not isinstance(events, StreamEvents):
        events = StreamEvents.from_events(events, domain.arity)
    start = StreamCounts.initial(domain.minimum) if start is None else start
    numbers = None if seqs is None else np.asarray(seqs, dtype=np.int64)

    intervals = positive_intervals(events, start.times, start.counts)
    raised, raised_steps = _raised(events)
    times, steps, counts = running_counts(events, start.times, start.counts)
    uses = (
        ("send a message at", events.message_times, events.message_steps),
        ("raise the count of", raised, raised_steps),
    )
    # Of every rule the first step at which it is broken; what comes after that means nothing.
    first = [_first(~_held_at(used, at, intervals, events.n_steps + 1), at) for _, used, at in uses]
    first.append(_first(counts < 0, steps - 1))
    broken = [(int(at), rule, row) for rule, (row, at) in enumerate(first) if row >= 0]
    if broken:
        step, rule, row = min(broken)
        seq = step if numbers is None or step >= numbers.shape[0] else int(numbers[step])
        place = _Place(stream, seq, domain)
        if rule == 2:
            raise _negative(times[row], int(counts[row]), place)
        attempt, used, _ = uses[rule]
        held = _counts_at(intervals, step)
        raise _unheld(attempt, used[row], held, place, row)
    last = np.ones(times.shape[0], dtype=np.bool_)
    last[:-1] = (times[1:] != times[:-1]).any(axis=1)
    return StreamCounts.from_arrays(times[last], counts[last], events.arity)


def _first(broken: npt.NDArray[np.bool_], steps: DiffArray) -> tuple[int, int]:
    """Return row and step of the earliest broken rule; row -1 where none is."""
    rows = np.flatnonzero(broken)
    if not rows.shape[0]:
        return -1, -1
    row = int(rows[np.argmin(steps[rows])])
    return row, int(steps[row])


def _raised(events: StreamEvents) -> tuple[IntArray, DiffArray]:
    """Return the times whose count a batch raises, all its entries summed, and the batch of each."""
    steps = events.progress_steps.astype(events.progress_times.dtype)
    keyed, changes = consolidate_rows(
        np.concatenate([steps[:, None], events.progress_times], axis=1), events.progress_deltas
    )
    raised = keyed[changes > 0]
    return raised[:, 1:], raised[:, 0].astype(np.int64)


def _held_at(
    times: IntArray,
    steps: DiffArray,
    intervals: tuple[IntArray, DiffArray, DiffArray],
    n_steps: int,
) -> npt.NDArray[np.bool_]:
    """Tell for each time whether, at its step, a time less or equal to it has a positive count."""
    lows, begins, ends = intervals
    if not times.shape[0]:
        return np.ones(0, dtype=np.bool_)
    if times.shape[1] == 1:
        least, complete = least_over_steps(lows[:, 0], begins, ends, n_steps)
        fits: npt.NDArray[np.bool_] = ~complete[steps] & (least[steps] <= times[:, 0])
        return fits
    # Pair each interval with the events that fall into it, in pieces of bounded size.
    order = np.argsort(steps, kind="stable")
    ordered = times[order]
    first = np.searchsorted(steps[order], begins)
    sizes = np.searchsorted(steps[order], ends) - first
    found = np.zeros(times.shape[0], dtype=np.bool_)
    total = np.concatenate([[0], np.cumsum(sizes)])
    low = 0
    while low < sizes.shape[0]:  # pieces of about _PAIRS pairs
        high = max(low + 1, int(np.searchsorted(total, total[low] + _PAIRS, side="right")) - 1)
        n = int(total[high] - total[low])
        interval = np.repeat(np.arange(low, high), sizes[low:high])
        event = np.arange(n) - np.repeat(total[low:high] - total[low] - first[low:high], sizes[low:high])
        found[event[less_equal(lows[interval], ordered[event])]] = True
        low = high
    fits = np.empty_like(found)
    fits[order] = found
    return fits


def _counts_at(intervals: tuple[IntArray, DiffArray, DiffArray], step: int) -> StreamCounts:
    """Return the times held at a step, once each."""
    lows, begins, ends = intervals
    held = lows[(begins <= step) & (step < ends)]
    return StreamCounts.from_arrays(held, np.ones(held.shape[0], dtype=np.int64), lows.shape[1])


def _unheld(
    attempt: str, time: IntArray, counts: StreamCounts, place: _Place, row: int | None = None
) -> UnheldCapabilityError:
    held = counts.frontier
    values = tuple(int(x) for x in time)
    shown = [place.render(element) for element in held.elements[:8]]
    more = f" and {len(held) - 8} more" if len(held) > 8 else ""
    if held.is_empty:
        hint = "write to another stream: this one is closed, and nothing can follow"
    else:
        hint = "use a time at or after a held one: a dropped capability does not come back"
    return UnheldCapabilityError(
        f"could not {attempt} time={place.render(time)!r}{place}: found capabilities held={shown!r}{more}",
        hint=hint,
        context={"stream": place.stream, "seq": place.seq, "row": row},
        time=values,
        held=held.elements,
    )


def _negative(time: IntArray, count: int, place: _Place) -> NegativeCountError:
    return NegativeCountError(
        f"could not apply progress{place}: found count={count} after it at time={place.render(time)!r}",
        hint="give up only capabilities that the stream holds, each once",
        location=place.stream,
        time=tuple(int(x) for x in time),
        count=count,
        context={"seq": place.seq},
    )
