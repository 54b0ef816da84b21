"""Cutting of work: how far a step of an output goes, and the tasks into which its range of times is divided.

`steps` calls `cut_range` when it plans a step; `inputs` and `explain` ask `paths_of` by which delays rows come from a
log. It sees files by bounds, sizes and times (`Files`), never their rows. `shuffle`, next to it, divides one piece by
key, while it runs.

Everything is decided in the times of the output: what is known of the files of the logs below is moved
forward along each path of delays.

Invariants
----------
1. A view that is not row-wise, as an aggregate of a time, is cut between whole times only: each task's range is one
   between two frontiers, and together they are the range of the step. A row-wise view may be cut anywhere.
2. How a range is cut changes no row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from spark_timely.dataflow.delays import BoundDelay, Shift
from spark_timely.dataflow.engine.shuffle import goes_by_key, shuffled_aggregate
from spark_timely.dataflow.engine.tasks import LookupFiles, Share, Task
from spark_timely.dataflow.operators.times import DelayBy
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.views import Replay, View
from spark_timely.protocol.replay import (
    WHOLE,
    FileBounds,
    Limits,
    TimeCounts,
    admit,
    cut_bytes,
    cut_times,
    default_splits,
    lexicographically_below,
    may_hold,
    within,
)
from spark_timely.time.antichain import Antichain, BoolArray, IntArray, minimal
from spark_timely.trace.keys import EVERY_KEY

__all__ = ["SHUFFLE_BYTES", "Files", "cut_range", "paths_of", "shares_between"]

Delays = tuple[BoundDelay, ...]

# A piece of whole times of more bytes than this is computed by key, if it can be: one process would have to hold it.
SHUFFLE_BYTES: Final = 128 << 20

# Steps are added up to this: they are numbers of 64 bits.
_MOST_STEPS: Final = 1 << 62

# Tasks for a range of whole times whose size alone asks for several: at most.
_MOST_TASKS: Final = 16


class Files(Protocol):
    """The known bounds and sizes of a log's files."""

    @property
    def bounds(self) -> FileBounds:
        """Sizes and bounds of times, without opening any."""

    @property
    def paths(self) -> npt.NDArray[np.object_]:
        """Relative to the log."""

    @property
    def rows(self) -> IntArray:
        """The number of rows of each; -1 where unknown."""

    @property
    def least_diffs(self) -> IntArray:
        """The least diff of the updates of each; the least int64 where unknown."""

    @property
    def as_of(self) -> IntArray | None:
        """Time up to which times are moved, shape (1, k): of a collection that has forgotten."""

    def counts(self, numbers: npt.NDArray[np.intp], /) -> Sequence[TimeCounts]:
        """Return the exact times of some files, by number; opens them."""

    def look_into(self, chosen: Callable[[FileBounds], BoolArray], /) -> None:
        """Refuse to give out rows of files in which another program changed rows; `chosen` says which are wanted."""


def paths_of(view: View) -> list[tuple[Replay, Delays]]:
    """Return how rows come from the logs below to a view: each log with the delays between, in their order.

    Steps that follow each other are one: of k pairs of them, put together each time, there are k + 1 ways through, not
    two to the power of k.
    """
    found: dict[tuple[Replay, Delays], None] = {}
    seen: set[tuple[View, Delays]] = set()
    waiting: list[tuple[View, Delays]] = [(view, ())]
    while waiting:  # once per operator and distinct delays behind it
        at, delays = waiting.pop()
        if (at, delays) in seen:
            continue
        seen.add((at, delays))
        if isinstance(at, Replay):
            found[at, delays] = None
        if isinstance(at.operator, DelayBy):
            delays = _before(at.operator.delay, delays)
        waiting += [(source, delays) for source in at.inputs]
    return list(found)


def _before(delay: BoundDelay, delays: Delays) -> Delays:
    """Return delays with another one before them."""
    first = delays[0] if delays else None
    if isinstance(delay, Shift) and isinstance(first, Shift):
        added = tuple(one + other for one, other in zip(delay.added, first.added, strict=True))
        if max(added) <= _MOST_STEPS:
            return (Shift(added, delay.limits), *delays[1:])
    return (Shift(delay.added, delay.limits) if isinstance(delay, Shift) else delay, *delays)


@dataclass(frozen=True, slots=True)
class _Moved:
    """The files of one log, as they are seen behind delays."""

    leaf: Replay
    delays: Delays
    files: Files
    bounds: FileBounds

    @classmethod
    def of(cls, leaf: Replay, delays: Delays, files: Files) -> _Moved:
        return cls(leaf, delays, files, _moved(delays, files.bounds))

    def look_into(self, lo: Antichain, hi: Antichain) -> None:
        """Refuse a range in whose files another program changed rows."""
        self.files.look_into(lambda bounds: may_hold(_moved(self.delays, bounds), lo.times, hi.times))

    def counts(self, numbers: npt.NDArray[np.intp]) -> list[TimeCounts]:
        moved = []
        for counts in self.files.counts(numbers):
            times, ok = _forward(self.delays, counts.times)
            moved.append(TimeCounts(times[ok], counts.rows[ok]))
        return moved


def _moved(delays: Delays, bounds: FileBounds) -> FileBounds:
    low, low_ok = _forward(delays, bounds.minima)
    high, high_ok = _forward(delays, bounds.maxima)
    return FileBounds(bounds.sizes, low, high, bounds.known & low_ok & high_ok)


def _forward(delays: Delays, times: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    ok = np.ones(times.shape[0], dtype=np.bool_)
    for delay in delays:
        times, fits = delay.forward(times)
        ok &= fits
    return times, ok


class _Range:
    """The files that a range may need, of all logs below."""

    def __init__(self, parts: Sequence[_Moved], lo: Antichain, hi: Antichain) -> None:
        self.parts, self.lo, self.hi = parts, lo, hi
        chosen = [np.flatnonzero(may_hold(part.bounds, lo.times, hi.times)) for part in parts]
        self.owners = np.repeat(np.arange(len(parts)), [len(numbers) for numbers in chosen])
        self.numbers = np.concatenate(chosen)

        def joined(name: str) -> npt.NDArray[np.int64]:
            arrays = [getattr(part.bounds, name)[numbers] for part, numbers in zip(parts, chosen, strict=True)]
            return np.concatenate(arrays)

        self.bounds = FileBounds(joined("sizes"), joined("minima"), joined("maxima"), joined("known").astype(np.bool_))

    def counts(self, places: npt.NDArray[np.intp]) -> Sequence[TimeCounts]:
        """Return the exact times of files, by their place here."""
        found: dict[int, TimeCounts] = {}
        for owner in np.unique(self.owners[places]).tolist():
            mine = places[self.owners[places] == owner]
            found.update(zip(mine.tolist(), self.parts[owner].counts(self.numbers[mine]), strict=True))
        return [found[place] for place in places.tolist()]

    def files(self, places: npt.NDArray[np.intp]) -> dict[str, npt.NDArray[np.intp]]:
        """Return the numbers of files by log: one file may be here for several paths."""
        found: dict[str, npt.NDArray[np.intp]] = {}
        for owner in np.unique(self.owners[places]).tolist():
            path = self.parts[owner].leaf.path
            mine = self.numbers[places[self.owners[places] == owner]]
            found[path] = np.union1d(found[path], mine) if path in found else mine
        return found

    def files_of(self, path: str) -> Files:
        return next(part.files for part in self.parts if part.leaf.path == path)


def cut_range(
    view: View,
    files_of: Callable[[Replay], Files],
    lo: Antichain,
    hi: Antichain,
    *,
    output: int,
    seq: int,
    limits: Limits,
    workers: int | None,
    shuffle_bytes: int = SHUFFLE_BYTES,
    by_key: bool = False,
    before: Mapping[Look, LookupFiles] | None = None,
) -> tuple[Antichain, int, list[Task]]:
    """Choose how far a step goes, and cut it into tasks.

    Parameters
    ----------
    view : View
    files_of : callable
        Gives the files of a log below.
    lo, hi : Antichain
        What waits.
    output, seq : int
        Of the tasks.
    limits : Limits
    workers : int or None
        Tasks, at most and unless they would be too large; by bytes if not given.
    shuffle_bytes : int
        A piece with more is computed by key, where the view allows it.
    by_key : bool
        Whether tasks are of ranges of keys, as those of an operator over all history are: a small range is read by all,
        a large one goes through a shuffle.
    before : mapping of Look to LookupFiles, optional
        Where what logs hold before the range is.

    Returns
    -------
    upper : Antichain
        Where the step ends.
    size_bytes : int
        Of the files' share that belongs to the times taken; of the files where nothing was counted.
    tasks : list of Task
        None where there is nothing to read.

    Notes
    -----
    Cost: one pass over arrays of the files. Files are opened only where limits, or more than one task of
    whole times, ask for exact times.
    """
    parts = [_Moved.of(leaf, delays, files_of(leaf)) for leaf, delays in paths_of(view)]
    chosen = _Range(parts, lo, hi)
    # Limited by bytes alone, and all of it within: no file need be opened to know that.
    taken = int(chosen.bounds.sizes.sum())
    small = limits.size_bytes is not None and taken <= limits.size_bytes
    if not limits.unlimited and not (small and limits.times is None):
        admitted = admit(chosen.bounds, chosen.counts, lo.times, hi.times, limits)
        hi, taken = Antichain.from_times(admitted.frontier, hi.arity), admitted.size_bytes
        chosen = _Range(parts, lo, hi)
    for part in parts:
        part.look_into(lo, hi)
    if not chosen.numbers.shape[0]:
        return hi, 0, []
    before = {} if before is None else before
    if by_key:
        size = int(chosen.bounds.sizes.sum())
        n_tasks = workers or default_splits(size)
        if size > shuffle_bytes and goes_by_key(view):
            n_tasks = max(n_tasks, -(-size // max(shuffle_bytes // 2, 1 << 20)))
            split = _cut_rows(chosen, output, seq, n_tasks)
            return hi, taken, [replace(each, piece=0, before=before) for each in split]
        found = chosen.files(np.arange(chosen.numbers.shape[0]))
        task = _whole(chosen, found, Task(output, seq, lo, hi, before=before))
        # Each reads all of the range, and computes its keys.
        return hi, taken, [replace(task, keys=keys) for keys in EVERY_KEY.cut(n_tasks)]
    size = int(chosen.bounds.sizes.sum())
    n_tasks = workers or default_splits(size)
    if view.rowwise:
        return hi, taken, _cut_rows(chosen, output, seq, n_tasks)
    # Whole times lie in memory: rather some tasks more than one that is too large.
    n_tasks = max(n_tasks, min(_MOST_TASKS, -(-size // max(shuffle_bytes, 1 << 20))))
    ends = [lo, *_cuts(chosen, n_tasks), hi]
    tasks = []
    for number, (low, high) in enumerate(itertools.pairwise(ends)):
        piece = _Range(parts, low, high)
        found = piece.files(np.arange(piece.numbers.shape[0]))
        if not found:
            continue
        task = _whole(piece, found, Task(output, seq, low, high, before=before))
        if task.size_bytes > shuffle_bytes and shuffled_aggregate(view) is not None:
            shares = _cut_rows(piece, output, seq, workers or default_splits(task.size_bytes))
            tasks += [replace(part, piece=number) for part in shares]
        else:
            tasks.append(task)
    return hi, taken, tasks


def _cuts(chosen: _Range, n_tasks: int) -> list[Antichain]:
    """Return frontiers between which there is about the same number of rows."""
    if n_tasks < 2:
        return []
    kept = []
    for place in range(chosen.numbers.shape[0]):  # what is outside is let go of at once
        (counts,) = chosen.counts(np.array([place]))
        inside = within(counts.times, chosen.lo.times, chosen.hi.times)
        kept.append(TimeCounts(counts.times[inside], counts.rows[inside]))
    times = np.concatenate([each.times for each in kept])
    weights = np.concatenate([each.rows for each in kept])
    found = []
    for bound in cut_times(times, weights, n_tasks):
        rest = times[~lexicographically_below(times, bound)]
        # What is between two of these are the times between two bounds, in any order of times.
        found.append(Antichain.from_times(minimal(np.concatenate([rest, chosen.hi.times])), chosen.hi.arity))
    return found


def _cut_rows(chosen: _Range, output: int, seq: int, n_tasks: int) -> list[Task]:
    """Cut files anywhere: rows do not need each other."""
    by_log = chosen.files(np.arange(chosen.numbers.shape[0]))
    flat: list[tuple[str, str]] = []
    sizes: list[npt.NDArray[np.int64]] = []
    for path, numbers in by_log.items():
        files = chosen.files_of(path)
        flat += [(path, str(name)) for name in files.paths[numbers]]
        sizes.append(files.bounds.sizes[numbers])
    every = np.concatenate(sizes)
    tasks = []
    for pieces in cut_bytes(every, n_tasks):
        shares: dict[str, tuple[Share, ...]] = {}
        for piece in pieces:
            path, name = flat[piece.file]
            share = Share(name, piece.start, piece.stop, _moved_to(chosen.files_of(path)))
            shares[path] = (*shares.get(path, ()), share)
        size = sum(piece.share_of(int(every[piece.file])) for piece in pieces)
        tasks.append(Task(output, seq, chosen.lo, chosen.hi, shares, size))
    return tasks


def _moved_to(files: Files) -> tuple[int, ...] | None:
    return None if files.as_of is None else tuple(files.as_of[0].tolist())


def _whole(piece: _Range, found: dict[str, npt.NDArray[np.intp]], task: Task) -> Task:
    shares, size = {}, 0
    for path, numbers in found.items():
        files = piece.files_of(path)
        shares[path] = tuple(Share(str(name), 0, WHOLE, _moved_to(files)) for name in files.paths[numbers])
        size += int(files.bounds.sizes[numbers].sum())
    size += sum(each.size_bytes for each in task.before.values())
    return replace(task, shares=shares, size_bytes=size)


def shares_between(files: Files, lo: Antichain, hi: Antichain) -> tuple[tuple[Share, ...], int]:
    """Return the files that may hold rows of a range, whole, and their bytes."""

    def chosen(bounds: FileBounds) -> BoolArray:
        return may_hold(bounds, lo.times, hi.times)

    files.look_into(chosen)
    numbers = np.flatnonzero(chosen(files.bounds))
    shares = tuple(Share(str(name), 0, WHOLE, _moved_to(files)) for name in files.paths[numbers])
    return shares, int(files.bounds.sizes[numbers].sum())
