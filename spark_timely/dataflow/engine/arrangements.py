"""Arrangements, indexes by key, of the logs that a dataflow looks into: made and merged in the background.

`steps` asks `Arrangements` where the rows of some keys are that a log has before a range: in an index, and in the files
past it. Where much is past it, a task extends the index. An index is an arrangement of a log (`spark_timely.trace`):
sorted runs, and numbered *spines*, lists of the runs that count. `spark_timely.log.arrangements` finds the newest one
that is of the log as it is; this module makes them.

A spine is written only where none of its number is: of two copies that extend an index one wins. A dataflow that may
not write there looks into indexes that others keep, or into the log itself.

Invariants
----------
1. Times are moved up to what all need that retain the log, and no further: what nobody retains may be asked of the log.
2. Files are deleted once they are replaced; those that no spine names, after a day. A job that was planned before
   finds the newest spine by itself.
"""

from __future__ import annotations

import logging
import os
import time as wall_clock
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_timely.dataflow.engine.cutting import Files, shares_between
from spark_timely.dataflow.engine.tasks import IndexWork, LookupFiles, OutputPlan, Share, Task, TaskResult
from spark_timely.dataflow.remembered import Look
from spark_timely.log.arrangements import Arranged, folder_of, former_folder_of
from spark_timely.log.machine.lost_commits import newest_commits
from spark_timely.log.machine.since import needed_from
from spark_timely.threads import pool, python_ends
from spark_timely.time.antichain import Antichain
from spark_timely.trace.arrangement import Arrangement, columns_text
from spark_timely.trace.folder import (
    delete,
    delete_former,
    greatest_number,
    is_whole,
    newest_spine,
    unknown_runs,
    write_spine,
)
from spark_timely.trace.run import DamagedRunError
from spark_timely.trace.spine import RunFile, Spine, due_merge

if TYPE_CHECKING:
    from spark_timely.dataflow.views import Replay
    from spark_timely.log import Log

__all__ = ["Arrangements", "Indexing"]

_log = logging.getLogger("spark_timely.dataflow")

RunTasks = Callable[[Sequence[OutputPlan], Sequence[Task]], Sequence[TaskResult]]

# So long spines name files that were replaced: they are deleted at once, and once more should that have failed.
_GONE_S: Final = 60.0
# Of the log's files: a run is made of this much at a time, in memory.
_RUN_BYTES: Final = 16 << 20
_ALL_COMMITS: Final = 1 << 40
_MOST_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Indexing:
    """Settings of indexes: from which sizes on logs are indexed, and whether that is done in the background.

    Attributes
    ----------
    least_bytes : int
        A log with less is read.
    tail_bytes : int
        An index is extended when there is more than this past its upper, or more than `tail_files`.
    tail_files : int
    background : bool
        Whether that is done beside the steps of a dataflow, not between them.
    much_bytes : int
        A step that writes as much has its index begun at once: the next one would read all of it.
    """

    least_bytes: int = 1 << 20
    tail_bytes: int = 256 << 10
    tail_files: int = 4
    background: bool = True
    much_bytes: int = 1 << 20


class Arrangements:
    """The indexes of the logs that a dataflow looks into.

    Parameters
    ----------
    logs : mapping of str to Log
        By path.
    files : mapping of str to callable
        Give the files of a log's present snapshot, by path.
    settings : Indexing
    consumer : str
        Under which the dataflow itself retains logs: what it needs is said with each look, and newer.
    """

    def __init__(
        self,
        logs: Mapping[str, Log],
        files: Mapping[str, Callable[[], Files]],
        settings: Indexing | None = None,
        consumer: str = "",
    ) -> None:
        self._logs, self._files, self._consumer = logs, files, consumer
        self._settings = settings or Indexing()
        self._known = Arranged()
        self._threads: ThreadPoolExecutor | None = None
        self._busy: dict[tuple[Look, str], Future[None]] = {}
        self._waiting: dict[tuple[Look, str], Callable[[], None]] = {}
        self._unwritable: set[Look] = set()

    def before(
        self,
        look: Look,
        leaf: Replay,
        lo: Antichain,
        hi: Antichain,
        run_tasks: RunTasks | None,
        needed: Antichain | None = None,
    ) -> LookupFiles:
        """Return where what a log holds before a range is; have its index extended where that is due.

        Parameters
        ----------
        look : Look
        leaf : Replay
        lo, hi : Antichain
            The range.
        run_tasks : callable or None
            Runs tasks; None where nothing is to be made.
        needed : Antichain, optional
            What all outputs of the dataflow that look into the log have done, behind which they never look again; `lo`
            unless given.
        """
        log, files = self._logs[leaf.path], self._files[leaf.path]()
        # A log of the dataflow's own is read as it is, with another least time than the plan may know.
        leaf = replace(leaf, domain=log.domain)
        least = leaf.domain.minimum_frontier
        spine = self._current(look, leaf, log)
        upper = least if spine is None or spine.upper is None else Antichain.of(spine.upper)
        tail, tail_bytes = shares_between(files, upper, hi)
        if spine is not None and spine.upper is None:
            tail, tail_bytes = (), 0
        settings = self._settings
        due = (
            tail_bytes >= settings.least_bytes and len(tail) > 0
            if spine is None
            else tail_bytes > settings.tail_bytes or len(tail) > settings.tail_files
        )
        if run_tasks is not None and (due or (spine is not None and due_merge(spine.runs))):
            self._keep_up(look, leaf, log, files, spine, lo if needed is None else needed, run_tasks, due=due)
            if not settings.background:
                return self.before(look, leaf, lo, hi, None)
        # Tasks may begin anywhere in the range.
        whole, size = shares_between(files, least, hi)
        if spine is None:
            return LookupFiles(leaf, whole, size_bytes=size)
        folder = _folder(log, look)
        index = Arrangement.of_spine(folder, spine, leaf.schema, events=not leaf.updates)
        return LookupFiles(leaf, whole, index, tail, tail_bytes if index.may_tell(lo) else size)

    def is_much(self, size_bytes: int) -> bool:
        """Return whether so much was written that an index of it is begun at once."""
        return size_bytes >= self._settings.much_bytes

    def size_of(self, look: Look, leaf: Replay) -> tuple[int, int]:
        """Return rows and bytes of the runs of an index; 0 where there is none."""
        spine = self._current(look, leaf, self._logs[leaf.path])
        return (0, 0) if spine is None else (spine.rows, spine.size_bytes)

    def begin_waiting(self) -> None:
        """Begin what was found to be due, once the step is done that it would compete with."""
        for key, call in self._waiting.items():  # at most two indexes
            if self._threads is None:
                self._threads = pool("index", 2, initializer=_yield_to_others)
            try:
                self._busy[key] = self._threads.submit(call)
            except RuntimeError:
                if not python_ends():
                    raise
                break  # it is due in the next process too
        self._waiting.clear()

    def end(self) -> None:
        """Wait for what is being made, and begin nothing more."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        self._busy.clear()
        self._waiting.clear()

    # What there is -----------------------------------------------------------------------------------

    def _current(self, look: Look, leaf: Replay, log: Log) -> Spine | None:
        """Return the newest spine of the log's index, if it is one of this log as it is, and its runs are there."""
        folder = folder_of(log, look.key, look.columns)
        if folder is None:
            return None
        for _ in range(_MOST_TRIES):
            newest = self._known.newest(log, folder)
            if newest is None or newest.columns != _columns(leaf, look):
                return None
            if all(is_whole(folder, run) for run in newest.runs):
                return newest
            # Replaced meanwhile; or damaged, and then it is made once more.
            if self._known.newest(log, folder) == newest:
                return None
        return None

    # What is made ------------------------------------------------------------------------------------

    def _keep_up(
        self, look: Look, leaf: Replay, log: Log, files: Files, spine: Spine | None, lo: Antichain,
        run_tasks: RunTasks, *, due: bool,
    ) -> None:  # fmt: skip
        """Begin to extend an index, and to merge its runs."""
        if look in self._unwritable:
            return
        if due and not self._is_busy(look, "extend"):
            frontier = log.frontier()
            since = log.since().elements[0][0] if leaf.updates and log.since().elements else leaf.domain.minimum[0]
            lower = leaf.domain.minimum_frontier if spine is None or spine.upper is None else Antichain.of(spine.upper)
            commits = newest_commits(log.core.ends(), _ALL_COMMITS, log.core.accepted)
            shares, _ = shares_between(files, lower, frontier)
            groups = _groups(files, shares, _RUN_BYTES)
            if frontier != lower:
                self._do(look, "extend", lambda: self._extend(
                    look, leaf, log, spine, groups, lower, frontier, since, commits, run_tasks
                ))  # fmt: skip
        if spine is not None and not self._is_busy(look, "merge"):
            merge = due_merge(spine.runs)
            if merge:
                moves_to = self._may_move_to(leaf, log, spine, lo)
                self._do(look, "merge", lambda: self._merge(look, leaf, log, spine, merge, moves_to, run_tasks))

    def _is_busy(self, look: Look, what: str) -> bool:
        future = self._busy.get((look, what))
        return future is not None and not future.done()

    def _do(self, look: Look, what: str, call: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                call()
            except FileNotFoundError as error:  # replaced since this was planned: the next step looks again
                _log.info("the index of log %r is kept up by the next step: %s", look.path, error)
            except DamagedRunError as error:  # it is made again
                _log.warning("the index of log %r could not be kept up: %s", look.path, error)
            except OSError as error:  # no permission, no space, a place without hard links
                self._unwritable.add(look)
                _log.warning("log %r gets no index, it is read instead: %s", look.path, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the log can be read
                _log.warning("the index of log %r could not be kept up: %s", look.path, error)

        if not self._settings.background:
            guarded()
            return
        self._waiting[look, what] = guarded

    def _extend(
        self, look: Look, leaf: Replay, log: Log, spine: Spine | None, groups: Sequence[tuple[tuple[Share, ...], int]],
        lower: Antichain, upper: Antichain, since: int, commits: Mapping[str, tuple[int, str]], run_tasks: RunTasks,
    ) -> None:  # fmt: skip
        """Make runs of what the log has past an index's upper, and write the spine that has them."""
        folder = _folder(log, look)
        os.makedirs(folder, exist_ok=True)
        lineage = uuid.uuid4().hex if spine is None else spine.lineage
        work = [
            (IndexWork(leaf, look.key, look.columns, folder, _name(), lineage, lower, upper, shares), size)
            for shares, size in groups
        ]
        made = _made(log, work, run_tasks)
        stop = upper.elements[0][0] if upper.elements else None
        newest = newest_spine(folder, None)
        if spine is None:
            number = greatest_number(folder) + 1
            # The runs of an index that was another log's, or of another history.
            now = wall_clock.time()
            gone = () if newest is None else (*newest.gone, *((run.name, now) for run in newest.runs))
            follows = Spine(
                number - 1, log.core.log_id, _columns(leaf, look), {}, since, lower.elements[0][0], (), gone, lineage
            )
            written = follows.extended(made, stop, commits)
            done = write_spine(folder, written)
        else:
            done = False
            for _ in range(_MOST_TRIES):  # a merge may be first
                newest = newest_spine(folder, None)
                if newest is None or newest.upper != spine.upper or newest.lineage != spine.lineage:
                    break
                # The log may have moved times further than the runs that were there.
                moved = since if stop is None else min(since, stop - 1)
                follows = replace(newest, since=max(newest.since, moved))
                done = write_spine(folder, follows.extended(made, stop, commits))
                if done:
                    break
        if done:
            delete_former(former_folder_of(log, look.key, look.columns), wall_clock.time())
        else:
            delete(folder, [run.name for run in made])

    def _merge(
        self, look: Look, leaf: Replay, log: Log, spine: Spine, runs: tuple[RunFile, ...], since: int | None,
        run_tasks: RunTasks,
    ) -> None:  # fmt: skip
        """Make one run of some, and write the spine that has it instead."""
        folder = _folder(log, look)
        least = leaf.domain.minimum_frontier
        name = _name()
        work = IndexWork(
            leaf, look.key, look.columns, folder, name, spine.lineage, least, least, runs=runs, since=since
        )
        (made,) = _made(log, [(work, sum(run.size_bytes for run in runs))], run_tasks)
        done = False
        for _ in range(_MOST_TRIES):  # one that extends it may be first
            newest, now = newest_spine(folder, None), wall_clock.time()
            if newest is None or newest.lineage != spine.lineage:
                break
            following = newest.merged(runs, made if made.rows else None, newest.since if since is None else since, now)
            if following is None:
                break
            following, old = following.tidied(now - _GONE_S)
            done = write_spine(folder, following)
            if done:
                replaced = [gone for gone, _ in following.gone]
                delete(folder, [*old, *replaced, *unknown_runs(folder, following, now)])
                break
        if not done:
            delete(folder, [name])

    def _may_move_to(self, leaf: Replay, log: Log, spine: Spine, lo: Antichain) -> int | None:
        """Return up to where times may be moved (invariant 1); None where they stay, as those of events do."""
        if not leaf.updates:
            return None
        now = wall_clock.time_ns() // 1000
        needed = [needed_from("collection", lo, leaf.domain.minimum)]
        retainers = log.retainers().items()
        needed += [each.needed for name, each in retainers if each.is_alive(now) and name != self._consumer]
        times = [element[0] for antichain in needed for element in antichain.elements]
        if spine.upper is not None:
            times.append(spine.upper - 1)
        return max(min(times, default=spine.since), spine.since)


def _made(log: Log, work: Sequence[tuple[IndexWork, int]], run_tasks: RunTasks) -> list[RunFile]:
    """Make runs: as one job."""
    if not work:
        return []
    leaf = work[0][0].leaf
    plan = OutputPlan(f"index of {leaf.path}", leaf, "", log.core.format, log.core.storage)
    tasks = [Task(0, 0, each.lower, each.upper, size_bytes=size, index=each) for each, size in work]
    return [result.run for result in run_tasks([plan], tasks) if result.run is not None]


def _groups(files: Files, shares: Sequence[Share], most: int) -> list[tuple[tuple[Share, ...], int]]:
    """Put files together as far as one run may be made of them."""
    sizes = dict(zip(map(str, files.paths), files.bounds.sizes.tolist(), strict=True))
    groups: list[tuple[tuple[Share, ...], int]] = []
    for share in shares:
        size = int(sizes[share.path])
        if groups and groups[-1][1] + size <= most:
            groups[-1] = (*groups[-1][0], share), groups[-1][1] + size
        else:
            groups.append(((share,), size))
    return groups


def _folder(log: Log, look: Look) -> str:
    folder = folder_of(log, look.key, look.columns)
    assert folder is not None, "a log elsewhere has no spine"
    return folder


def _columns(leaf: Replay, look: Look) -> str:
    return columns_text(look.key, pa.schema([leaf.schema.field(name) for name in look.columns]))


def _name() -> str:
    return f"run-{uuid.uuid4().hex}.arrow"


def _yield_to_others() -> None:
    """Let the steps of the dataflow come first."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 10)  # on Linux of this thread alone
    except (AttributeError, OSError):
        return
