"""Events of captured streams, messages and progress: in order, one by one, or many as columns.

A stream is a sequence of two kinds of events: messages, rows that each have a time; and progress,
changes of the counts of capabilities. `Messages` and `Progress` are one event each; `StreamEvents`
holds all events of a stream in columns, so that `rules` checks them without a loop over events. `log.verify` fills it
from a log, `interop.chunk` from a capture. Events for observers of a scope are those of `progress.events`.

Invariants
----------
1. A progress batch is all that one progress event changes. Batches are numbered 0, 1, 2, … in the order of the stream;
   a batch without entries has a number all the same.
2. A message is judged by the counts after the first `message_steps` progress batches of its stream; a progress batch by
   those before it. A message with `message_steps` 2 comes after batches 0 and 1. Nothing else about the order of events
   has a meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_timely.errors import InvalidShapeError
from spark_timely.time.antichain import as_diffs, as_times, concat_times, consolidate_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from spark_timely.time.antichain import DiffArray, IntArray, TimesLike

__all__ = [
    "Event",
    "Messages",
    "Progress",
    "StreamEvents",
    "least_over_steps",
    "positive_intervals",
    "running_counts",
]


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Rows with their times: may be sent where a capability at or before each time is held.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
        Time of each row.
    rows : pyarrow.Table, optional
        The rows; None where only times matter.

    Examples
    --------
    >>> Messages(np.array([[3]])).times.shape
    (1, 1)
    """

    times: IntArray
    rows: pa.Table | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """Changes of the counts of capabilities, which take effect together.

    Parameters
    ----------
    times : ndarray of int64 or uint64, shape (n, k)
    deltas : ndarray of int64, shape (n,)

    Examples
    --------
    >>> Progress(np.array([[0], [1]]), np.array([-1, 1])).deltas.sum()
    np.int64(0)
    """

    times: IntArray
    deltas: DiffArray


Event: TypeAlias = Messages | Progress


@dataclass(frozen=True, slots=True, eq=False)
class StreamEvents:
    """All events of one stream, in columns.

    Parameters
    ----------
    message_times : ndarray of int64 or uint64, shape (m, k)
        Times of messages; the minima of each commit's messages suffice for a check.
    message_steps : ndarray of int64, shape (m,)
        How many progress batches come before each message.
    progress_times : ndarray of int64 or uint64, shape (p, k)
    progress_deltas : ndarray of int64, shape (p,)
    progress_steps : ndarray of int64, shape (p,)
        Number of the progress batch of each entry, ascending.
    n_steps : int
        How many progress batches there are.

    Examples
    --------
    >>> events = StreamEvents.from_events(
    ...     [Messages(np.array([[3]])), Progress(np.array([[0], [5]]), np.array([-1, 1]))], arity=1
    ... )
    >>> events.n_steps, events.message_steps.tolist()
    (1, [0])
    """

    message_times: IntArray
    message_steps: DiffArray
    progress_times: IntArray
    progress_deltas: DiffArray
    progress_steps: DiffArray
    n_steps: int

    def __post_init__(self) -> None:
        """Check that the columns fit together."""
        m, p = self.message_times.shape[0], self.progress_times.shape[0]
        fits = (
            self.message_times.shape[1:] == self.progress_times.shape[1:]
            and self.message_steps.shape == (m,)
            and self.progress_deltas.shape == (p,)
            and self.progress_steps.shape == (p,)
            and bool((self.progress_steps[:-1] <= self.progress_steps[1:]).all())
            and (p == 0 or 0 <= int(self.progress_steps[0]) <= int(self.progress_steps[-1]) < self.n_steps)
            and (m == 0 or 0 <= int(self.message_steps.min()) <= int(self.message_steps.max()) <= self.n_steps)
        )
        if not fits:
            msg = (
                f"could not read a stream's events: found {m} messages and {p} progress entries whose "
                f"columns or steps do not fit together, n_steps={self.n_steps}"
            )
            raise InvalidShapeError(msg, hint="give columns of equal length, steps ascending from 0")

    @property
    def arity(self) -> int:
        """Number of coordinates of each time."""
        return int(self.progress_times.shape[1])

    @classmethod
    def from_events(cls, events: Iterable[Event], arity: int) -> StreamEvents:
        """Put events into columns.

        Raises
        ------
        InvalidShapeError
            If a time has another arity.

        Examples
        --------
        >>> StreamEvents.from_events([], arity=2).n_steps
        0
        """
        message_times: list[IntArray] = [np.empty((0, arity), dtype=np.int64)]
        progress_times: list[IntArray] = [np.empty((0, arity), dtype=np.int64)]
        deltas: list[DiffArray] = [np.empty(0, dtype=np.int64)]
        message_steps, n_entries = [0], [0]
        messages_at, n_steps = [0], 0
        for event in events:
            times = as_times(event.times, arity)
            if isinstance(event, Messages):
                message_times.append(times)
                message_steps.append(times.shape[0])
                messages_at.append(n_steps)
            else:
                progress_times.append(times)
                deltas.append(as_diffs(event.deltas, times.shape[0]))
                n_entries.append(times.shape[0])
                n_steps += 1
        return cls(
            _concatenated(message_times),
            np.repeat(np.array(messages_at, dtype=np.int64), message_steps),
            _concatenated(progress_times),
            np.concatenate(deltas),
            np.repeat(np.arange(-1, n_steps, dtype=np.int64), n_entries),
            n_steps,
        )

    @classmethod
    def from_commits(
        cls,
        seqs: npt.ArrayLike,
        message_times: TimesLike,
        message_seqs: npt.ArrayLike,
        progress_times: TimesLike,
        progress_deltas: npt.ArrayLike,
        progress_seqs: npt.ArrayLike,
        arity: int,
    ) -> StreamEvents:
        """Put the commits of a log's stream into columns: in each, messages come before progress.

        Parameters
        ----------
        seqs : array-like of int, shape (c,)
            The commits of the stream; each counts as one progress batch.
        message_times, message_seqs : array-like, shapes (m, k) and (m,)
            Times of messages, or minima of them, and the commit of each.
        progress_times, progress_deltas, progress_seqs : array-like, shapes (p, k), (p,) and (p,)
            The progress entries, and the commit of each. In any order.
        arity : int

        Raises
        ------
        InvalidShapeError
            If a message or a progress entry names a commit that is not among `seqs`.

        Examples
        --------
        >>> StreamEvents.from_commits([0, 7], [3], [7], [0, 5], [-1, 1], [7, 7], 1).message_steps.tolist()
        [1]
        """
        commits = np.unique(np.asarray(seqs, dtype=np.int64))
        times = as_times(progress_times, arity)
        deltas = as_diffs(progress_deltas, times.shape[0])
        steps = _steps_of(np.asarray(progress_seqs, dtype=np.int64), commits)
        order = np.argsort(steps, kind="stable")
        return cls(
            as_times(message_times, arity),
            _steps_of(np.asarray(message_seqs, dtype=np.int64), commits),
            times[order],
            deltas[order],
            steps[order],
            commits.shape[0],
        )


def _steps_of(seqs: DiffArray, commits: DiffArray) -> DiffArray:
    steps = np.searchsorted(commits, seqs).astype(np.int64)
    known = steps < commits.shape[0]
    known[known] = commits[steps[known]] == seqs[known]
    if not known.all():
        msg = f"could not read a stream's events: found seq={int(seqs[~known][0])}, which is no commit of it"
        raise InvalidShapeError(msg, hint="name every commit in seqs")
    return steps


def _concatenated(parts: Sequence[IntArray]) -> IntArray:
    parts = [part for part in parts if part.shape[0]] or parts[:1]
    return concat_times(*parts)


def positive_intervals(
    events: StreamEvents, held: IntArray, held_counts: DiffArray
) -> tuple[IntArray, DiffArray, DiffArray]:
    """Return when each time has a positive count, as intervals of steps.

    Step s stands for the state after s progress batches: 0 is the start, `events.n_steps` the end.

    Parameters
    ----------
    events : StreamEvents
    held : ndarray of int64 or uint64, shape (n, k)
        Times held at the start.
    held_counts : ndarray of int64, shape (n,)

    Returns
    -------
    times, begins, ends : ndarray, shapes (i, k), (i,) and (i,)
        The count of times[j] is positive at the steps begins[j] to ends[j], the latter exclusive.

    Notes
    -----
    Cost: O(n log n), no loop over steps.

    Examples
    --------
    >>> batch = Progress(np.array([[0], [5]]), np.array([-1, 1]))
    >>> events = StreamEvents.from_events([batch], arity=1)
    >>> times, begins, ends = positive_intervals(events, np.array([[0]]), np.array([1]))
    >>> times.tolist(), begins.tolist(), ends.tolist()
    ([[0], [5]], [0, 1], [1, 2])
    """
    times, steps, counts = running_counts(events, held, held_counts)
    n = times.shape[0]
    positive = counts > 0
    last = np.ones(n, dtype=np.bool_)
    last[:-1] = (times[1:] != times[:-1]).any(axis=1)
    until = np.full(n, events.n_steps + 1, dtype=np.int64)
    until[:-1][~last[:-1]] = steps[1:][~last[:-1]]
    return times[positive], steps[positive], until[positive]


def running_counts(
    events: StreamEvents, held: IntArray, held_counts: DiffArray
) -> tuple[IntArray, DiffArray, DiffArray]:
    """Return the count of each time after each step that changes it.

    Returns
    -------
    times, steps, counts : ndarray, shapes (n, k), (n,) and (n,)
        Sorted by time, then step; steps as in `positive_intervals`.

    Notes
    -----
    Cost: O(n log n).

    Examples
    --------
    >>> events = StreamEvents.from_events([Progress(np.array([[0]]), np.array([-1]))], arity=1)
    >>> running_counts(events, np.array([[0]]), np.array([1]))[2].tolist()
    [1, 0]
    """
    times = concat_times(held, events.progress_times)
    steps = np.concatenate([np.zeros(held.shape[0], dtype=np.int64), events.progress_steps + 1]).astype(times.dtype)
    # Time and step together as one row: equal ones are summed first, a batch counts as a whole.
    keyed, changes = consolidate_rows(
        np.concatenate([times, steps[:, None]], axis=1),
        np.concatenate([held_counts, events.progress_deltas]),
    )
    times, at = keyed[:, :-1], keyed[:, -1].astype(np.int64)
    n = times.shape[0]
    first = np.ones(n, dtype=np.bool_)
    first[1:] = (times[1:] != times[:-1]).any(axis=1)
    totals = np.cumsum(changes)
    starts = np.flatnonzero(first)
    before = np.repeat(totals[starts] - changes[starts], np.diff(starts, append=n))
    return times, at, totals - before


def least_over_steps(
    lows: IntArray, begins: DiffArray, ends: DiffArray, n_steps: int
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Return the least value at each step among intervals of steps that carry a value each.

    Parameters
    ----------
    lows : ndarray of int64 or uint64, shape (i,)
    begins, ends : ndarray of int64, shape (i,)
        Interval of each value, `ends` exclusive; none empty.
    n_steps : int

    Returns
    -------
    least : ndarray, shape (n_steps,)
    uncovered : ndarray of bool, shape (n_steps,)
        True where no interval reaches; `least` means nothing there.

    Notes
    -----
    Cost: O((i + n_steps) log n_steps): each interval is laid on a doubling table as two overlapping
    pieces, then the table is passed down level by level.

    Examples
    --------
    >>> least_over_steps(np.array([7, 3]), np.array([0, 1]), np.array([3, 2]), 4)[0].tolist()[:3]
    [7, 3, 7]
    """
    top = np.iinfo(lows.dtype).max
    sizes = ends - begins
    levels = np.zeros(sizes.shape[0], dtype=np.int64)
    n_levels = max(1, int(n_steps).bit_length())
    for level in range(1, n_levels):  # log n_steps
        levels[sizes >= 1 << level] = level
    least = np.full(n_steps, top, dtype=lows.dtype)
    covered = np.zeros(n_steps, dtype=np.bool_)
    for level in range(n_levels - 1, -1, -1):
        at = levels == level
        for starts in (begins[at], ends[at] - (1 << level)):
            np.minimum.at(least, starts, lows[at])
            covered[starts] = True
        if level:
            # An entry of this level stands for 2**level steps: hand it to the two halves.
            half = 1 << (level - 1)
            np.minimum(least[half:], least[:-half].copy(), out=least[half:])
            covered[half:] |= covered[:-half].copy()
    return least, ~covered
