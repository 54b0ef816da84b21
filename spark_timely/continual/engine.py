"""The engine of a continual task: decides the next step and commits it; an evaluator looks at the rows.

Run by the streaming queries of tasks (`spark_timely.spark.tasks.continual`) and by the runners of compute instances.

A task is a sink with a state (`spark_timely.continual.sink`). Its inputs say at which times it writes, its inputs and
references how far these times are complete, and its output how far it has come. A step evaluates the body at one write
time, or at several together where the body allows it, and compares and appends what it gives. Rows never come here: the
evaluator, such as `spark_timely.spark.tasks.bodies`, gets a `StepPlan` and returns the names of files.

Invariants
----------
1. What is written at a time is what the body gives there: of the inserts of its inputs at that time, the contents of
   its references as of it, and its own output before it as it was committed.
2. A decision is made from one look, the output before all else. An append is refused unless the output is as it was
   then, and was written by the task's own plan. After a lost race the task decides again; it never repeats the append.
3. The first commit says how the task began; later starts adopt it.
4. The output moves past a time only when every input has passed it and nothing is to be written there.
5. Nothing is read that is not retained, unless the log cannot be written to.
6. What fails at several times together is evaluated again at fewer. Only what the body gives at one time alone, rows or
   an error, decides whether it has failed.
"""

from __future__ import annotations

import hashlib
import json
import time as monotonic
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from spark_timely.continual.plan import Evaluator, Expectation, SourcePlan, StepPlan, TaskSource
from spark_timely.continual.sink import SinkState, takes_snapshot
from spark_timely.dataflow.engine.inputs import Inputs, Retained, Retainers, note_of, refreshed
from spark_timely.dataflow.engine.outputs import Outputs, OutputWork, passes
from spark_timely.dataflow.views import least_time
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogMissingError,
    SinceViolationError,
    StorageError,
    TimelyError,
    shown,
)
from spark_timely.log.files.parquet import new_job
from spark_timely.log.machine.since import may_read
from spark_timely.log.store.cloud import open_storage
from spark_timely.masking import masked_logger
from spark_timely.protocol.note import OutputNote, TaskNote
from spark_timely.spark.base.beginnings import beginning
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from spark_timely.work import Appended, is_cancelled

if TYPE_CHECKING:
    from spark_timely.dataflow.engine.cutting import Files
    from spark_timely.dataflow.logs import Sink
    from spark_timely.log import Log
    from spark_timely.log.machine.state import DataFile, StreamState
    from spark_timely.log.store.storage import TableStorage
    from spark_timely.protocol.replay import FileBounds
    from spark_timely.time.antichain import BoolArray, IntArray

__all__ = ["MOST_BYTES", "MOST_TIMES", "AsOf", "TaskEngine", "TaskPlan", "check_roles", "consumer_of", "held_back_by"]

_log = masked_logger("spark_timely.continual")

AsOf: TypeAlias = "int | Literal['earliest', 'latest']"


# How often a task that is read-only asks whether it may write.
_ASK_S: Final = 1.0

MOST_TIMES: Final = 1000
"""Write times of a step at most."""

MOST_BYTES: Final = 1 << 30
"""Of files of inputs that a step of several times reads at most; and of references, times the times that they are
multiplied out over."""


@dataclass(frozen=True)
class TaskPlan:
    """The description of a task for the engine that runs it.

    Attributes
    ----------
    name : str
    sources : tuple of TaskSource
        Inputs and references.
    reads_output : bool
        Whether the body reads what the task has written.
    as_of : int, "earliest" or "latest"
        At which time it begins, where it has not begun.
    snapshot : bool
        Whether the contents of the inputs at that time go through the body.
    forgotten : bool
        Whether contents of a stream log are what it has not forgotten.
    settings : dict of str to str
        What the body is evaluated under, where the task has not begun.
    until : int or None
        It writes at times before this one.
    read_only : bool
        Whether it follows and writes nothing.
    skips : bool
        Whether times that a log has forgotten are skipped; the note says which.
    expectations : tuple of Expectation
    together : bool
        Whether the body is evaluated at several times in one step.
    spread : frozenset of str
        References that are multiplied out over the times of such a step, by alias.
    """

    name: str
    sources: tuple[TaskSource, ...]
    reads_output: bool = False
    as_of: AsOf = "earliest"
    snapshot: bool = False
    forgotten: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    until: int | None = None
    read_only: bool = False
    skips: bool = False
    expectations: tuple[Expectation, ...] = ()
    together: bool = False
    spread: frozenset[str] = frozenset()

    @property
    def inputs(self) -> tuple[TaskSource, ...]:
        """Sources whose changes make write times."""
        return tuple(source for source in self.sources if source.is_input)

    @property
    def references(self) -> tuple[TaskSource, ...]:
        """Sources of which the body sees contents as of the time, and which it therefore waits for."""
        return tuple(source for source in self.sources if source.shown == "contents")

    @property
    def awaited(self) -> tuple[TaskSource, ...]:
        """Sources that must have passed a time before it is written."""
        return self.inputs + self.references


def consumer_of(sink: Sink, log_id: str) -> str:
    """Return the name under which all replicas of a task retain what it needs.

    Parameters
    ----------
    sink : Sink
    log_id : str
        Of the output's log: a task of the same name with another output is another consumer.
    """
    digest = hashlib.sha256(json.dumps([log_id, sink.stream]).encode()).hexdigest()[:8]
    return f"{sink.owner} {digest}"


@dataclass(frozen=True)
class _Look:
    """The states of all logs at one look: the output first, then its sources."""

    state: StreamState
    upper: Antichain
    note: TaskNote | None
    inputs: Antichain
    references: Antichain

    @property
    def takes_snapshot(self) -> bool:
        """Whether the contents of the inputs are still to be written: until the output has passed where it began."""
        note = self.note
        return note is not None and note.as_of is not None and takes_snapshot(note.snapshot, note.as_of, self.upper)


class _Known(NamedTuple):
    """Write times of an input that are known: all in [lower, upper)."""

    lower: int
    upper: int
    times: IntArray


class TaskEngine(OutputWork):
    """Runs a continual task.

    Parameters
    ----------
    plan : TaskPlan
    sink : Sink
        Its output.
    logs : mapping of str to Log
        By path: its output, and all that it reads.
    files_of : callable
        Gives what keeps account of a log's files.
    evaluator : callable
        Gives what evaluates the body, at each step.
    run : str
        The run of the query.
    tries : int
        As of `Outputs`.
    retain : callable, optional
        Gives what retains a log for a consumer of a name.
    may_write : callable
        Whether a task that began read-only may write by now.
    now : callable
        A clock in seconds that never goes back.
    most_times : int
        Write times of a step at most.
    """

    def __init__(
        self,
        plan: TaskPlan,
        sink: Sink,
        logs: Mapping[str, Log],
        *,
        files_of: Callable[[Log], Callable[[], Files]],
        evaluator: Callable[[], Evaluator],
        run: str = "",
        tries: int = 1,
        retain: Callable[[Log, str], Retained] | None = None,
        may_write: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = monotonic.monotonic,
        most_times: int = MOST_TIMES,
    ) -> None:
        self.name = plan.name
        self.plan = plan
        self._most_times = self._at_once = most_times if plan.together else 1
        # May be changed between two steps.
        self.most_bytes = MOST_BYTES
        self._sink = sink
        self._evaluator = evaluator
        self._logs = dict(logs)
        check_roles(plan, sink, self._logs)
        self._files = {path: files_of(log) for path, log in self._logs.items()}
        self._from = Inputs([sink], self._logs)
        consumer = consumer_of(sink, self._logs[sink.path].core.log_id)
        retainers = Retainers(self._logs, retain, consumer, f"task {plan.name!r}", _log)
        super().__init__(Outputs([sink], self._logs, self._from, run, tries=tries, now=now), retainers, now)
        self._writes, self._may_write = not plan.read_only, may_write
        if self._writes:
            self._outputs.claim()
        # Inputs may begin at several times: nothing comes before the first of them.
        self._domain = TimeDomain(sink.view.domain.types, least_time(sink.view))
        self._least, self._most = self._domain.types[0].lo, self._domain.types[0].hi
        self._known: dict[TaskSource, _Known] = {}
        self._storages: dict[str, TableStorage] = {}
        self._frontiers: dict[str, Antichain] = {}
        self._state: StreamState | None = None

    # As work of a query --------------------------------------------------------------------------------

    @property
    def may_move(self) -> bool:  # noqa: D102 - see `Work`
        error = self._outputs.failures.get(self._sink)
        failed = error is not None and not passes(type(error).__name__)
        return not self.dropped and not failed and not (self._state is not None and self._state.closed)

    @property
    def rest(self) -> float | None:  # noqa: D102 - see `Work`
        asks = self._idle and not self._writes and not self._pinned and not self.dropped
        return _ASK_S if asks else super().rest

    def begin(self, *, pinned: bool = False) -> None:  # noqa: D102 - see `Work`
        self._pinned, self._idle, self._frontiers = pinned, False, {}
        if pinned:
            self._outputs.wake(bounded=True)

    def step(self, *, most: int | None = None) -> list[Appended] | None:
        """Take the next step: one commit; None where nothing is to be done."""
        del most  # there is never more than one
        self._outputs.wake(bounded=self._pinned)
        look = self._look()
        done = None if look is None or look.state.closed else self._next(look)
        self._idle = done is None
        return done

    # Looking --------------------------------------------------------------------------------------------

    def _look(self) -> _Look | None:
        """Read the output, then the sources; None where the task may not continue."""
        sink = self._sink
        states = self._outputs.states(refreshed(self._logs, [sink.path]))
        state = self._state = states.get(sink)
        if state is None or self.dropped or sink in self._outputs.failures:
            return None
        fresh = not self._pinned or not self._frontiers
        if fresh:
            paths = list(dict.fromkeys(source.path for source in self.plan.sources))
            for path, error in refreshed(self._logs, paths).items():
                self._failed(state, self._missing(path, error))
                return None
            self._frontiers = {path: self._logs[path].frontier() for path in paths}
        if not self._writes and self._may_write():
            self._writes = True
            self._outputs.claim()
        error_ = self._outputs.refused(sink, state, fresh=fresh) if self._writes else None
        if error_ is not None:
            self._failed(state, error_)
            return None
        inputs, references = self._meet(self.plan.inputs), self._meet(self.plan.references)
        return _Look(state, state.frontier, note_of(state, sink).task, inputs, references)

    @property
    def _awaited_paths(self) -> list[str]:
        return list(dict.fromkeys(source.path for source in self.plan.awaited))

    def _meet(self, sources: Iterable[TaskSource]) -> Antichain:
        found = Antichain.empty(1)
        for source in sources:
            found = found.meet(self._frontiers[source.path])
        return found

    def _missing(self, path: str, error: Exception) -> Exception:
        if not isinstance(error, LogMissingError):
            return error
        return DataLossError(
            f"could not continue task {self.name!r}: found no log {path!r} any more",
            hint="put back the log that was deleted: what the task has written was made from it",
            context={"path": path},
        )

    # Deciding -------------------------------------------------------------------------------------------

    def _next(self, look: _Look) -> list[Appended] | None:
        state = look.state
        try:
            if look.note is None:
                return self._first(look) if self._writes else None
            if not self._writes:
                return None
            if self._must_skip(look):
                return self._skip(look)
            self._hold(look)
            decided = self._sink_state(look, self._touched(look))
            write = decided.process()
            if write is None:
                self._outputs.settle(self._sink, state, note_of(state, self._sink))
                return None
            if write.time is None:
                return self._append(look, (), write.upper, look.note, {"times": 0})
            times = self._times_of_step(look, decided, write.time)
            # The output moves at once to where it would have to wait, or be written to again: a commit less.
            upper = decided.output_progress = Antichain.of(times[-1] + 1)
            after = decided.process()
            upper = upper if after is None or after.time is not None else after.upper
        except (TimelyError, pa.ArrowException, OSError) as error:
            self._failed(state, error)
            return None
        return self._write(look, times, upper)

    def _times_of_step(self, look: _Look, decided: SinkState, first: int) -> tuple[int, ...]:
        """Return the write times of the next step: one, or as many as may be written together."""
        assert look.note is not None
        if self._at_once == 1 or (look.takes_snapshot and first == look.note.as_of):
            return (first,)
        times = decided.ready(self._at_once)
        most = times.shape[0]
        for source in self.plan.sources:
            bounds, room = self._files[source.path]().bounds, self.most_bytes
            if source.is_input:
                read = np.flatnonzero(~bounds.known | (bounds.maxima[:, 0] >= first))
                begins = np.where(bounds.known[read], bounds.minima[read, 0], self._least)
                order = np.argsort(begins)
                # Of how many bytes the first files are, by where they begin: those up to a time are read for it.
                sizes = np.concatenate([[0], np.cumsum(bounds.sizes[read][order])])
                fits = sizes[np.searchsorted(begins[order], times, "right")] <= room
                most = min(most, int(np.count_nonzero(fits)))
            elif source.alias in self.plan.spread:
                most = min(most, room // max(int(bounds.sizes.sum()), 1))
        return tuple(times[: max(most, 1)].tolist())

    def _sink_state(self, look: _Look, touched: IntArray) -> SinkState:
        """Return the sink as it is now: write times that are known, and how far everything is complete."""
        inputs = self._until(look.inputs)
        state = SinkState(self._domain.minimum[0], greatest=self._most)
        state.output_progress = look.upper
        state.append_times_progress = inputs
        state.to_append_progress = inputs.meet(look.references)
        state.add_times(touched)
        return state

    def _until(self, inputs: Antichain) -> Antichain:
        return inputs if self.plan.until is None else inputs.meet(Antichain.of(self.plan.until))

    def _first(self, look: _Look) -> list[Appended] | None:
        """Make the first commit: the empty output moves from its least time to where the task begins (invariant 3)."""
        begun = self._begun(look)
        assert begun.note is not None
        self._hold(begun)
        return self._append(look, (), begun.upper, begun.note, {"begins": True})

    def _begun(self, look: _Look) -> _Look:
        """Return a look as it is once the task has begun."""
        as_of = self._begins_at()
        ((at,),) = look.upper.elements
        if at > self._domain.minimum[0] and (as_of is None or at > as_of):
            _log.warning("task %r begins at %s, where its output is", self.name, self._rendered(at))
            as_of = at
        if as_of is not None and as_of < at:
            as_of = None  # before the least time: nothing that comes after is skipped
        note = TaskNote(as_of, self.plan.snapshot, dict(self._forgotten_by_stream()), dict(self.plan.settings))
        return replace(look, note=note, upper=look.upper if as_of is None else Antichain.of(as_of))

    def _forgotten_by_stream(self) -> Iterator[tuple[str, int]]:
        """Give the stream logs whose contents are what is left of them, by alias, and from when on."""
        for source in self.plan.sources:
            since = self._readable_from(source.path)
            if self.plan.forgotten and since is not None and self._is_whole(source, snapshot=self.plan.snapshot):
                yield source.alias, since

    def _is_whole(self, source: TaskSource, *, snapshot: bool) -> bool:
        """Whether the messages of a stream log are contents: all of them, from the first on."""
        return self._logs[source.path].kind == "stream" and (not source.is_input or snapshot)

    def _begins_at(self) -> int | None:
        """Return the time at which the task begins; None: before all times."""
        chosen = self.plan.as_of
        least = {path: self._readable_from(path) for path in self._awaited_paths}
        floor = max((at for at in least.values() if at is not None), default=None)
        if chosen == "earliest":
            if floor is not None:
                self._say_skipped(floor)
            return floor
        if chosen == "latest":
            found = self._latest()
            return floor if found is None or (floor is not None and found < floor) else found
        if floor is not None and chosen < floor:
            path = next(path for path, at in least.items() if at == floor)
            since, wanted = self._rendered(floor), self._rendered(chosen)
            msg = f"could not begin task {self.name!r} as of {wanted}: found since={since} in log {path!r}"
            raise SinceViolationError(
                msg,
                hint=f"begin as of {since} or later, or say as_of='earliest'",
                as_of=wanted,
                since=since,
                context={"path": path},
            )
        return chosen

    def _readable_from(self, path: str) -> int | None:
        """Return the least time as of which a log tells what the task needs; None: it has forgotten nothing."""
        log = self._logs[path]
        since = log.since()
        return None if since == log.domain.minimum_frontier else int(since.elements[0][0])

    def _latest(self) -> int | None:
        """Return the last time that is complete in all sources; None where there is none."""
        found = self._meet(self.plan.awaited)
        if found.elements:
            ((at,),) = found.elements
            return at - 1 if at > self._domain.minimum[0] else None
        # All are complete: the greatest time of anything.
        bounds = [self._files[path]().bounds for path in self._awaited_paths]
        return max((int(each.maxima[each.known].max()) for each in bounds if each.known.any()), default=None)

    def _say_skipped(self, as_of: int) -> None:
        for source in self.plan.inputs:
            bounds = self._files[source.path]().bounds
            if bounds.known.any() and int(bounds.minima[bounds.known].min()) <= as_of:
                _log.warning(
                    "task %r begins as of %s: a log has forgotten what is before, and what input %r has up to there is"
                    " skipped", self.name, self._rendered(as_of), source.alias,
                )  # fmt: skip

    # Times at which something is written ---------------------------------------------------------------

    def _touched(self, look: _Look, upper: Antichain | None = None) -> IntArray:
        """Return the write times from the output's upper on, and before an upper: of a look, the inputs' frontier.

        What footers do not tell the evaluator is asked, once for all inputs.
        """
        note, at = look.note, look.upper.elements[0][0]
        lower, inputs = at, self._until(look.inputs) if upper is None else upper
        if note is not None and note.as_of is not None:
            lower = max(at, note.as_of + 1)
        elif at <= self._domain.minimum[0]:
            lower = self._least
        stop = inputs.elements[0][0] if inputs.elements else self._most + 1
        before: dict[TaskSource, _Known] = {}
        found: list[IntArray | SourcePlan] = []
        for source in self.plan.inputs:
            known = self._known.get(source)
            if known is None or known.lower > lower:
                known = _Known(lower, lower, np.empty(0, np.int64))
            before[source], begin = known, max(lower, known.upper)
            found.append(self._times_between(source, begin, stop) if begin < stop else np.empty(0, np.int64))
        if look.takes_snapshot and note is not None and upper is None:
            found += [self._snapshot_time(source, note, inputs) for source in self.plan.inputs]
        times = self._known_by_now(found)
        for (source, known), more in zip(before.items(), times, strict=False):
            there = np.concatenate([known.times[known.times >= lower], more])
            self._known[source] = _Known(lower, max(known.upper, stop), there)
        alone = [self._known[source].times for source in before]
        return np.unique(np.concatenate([*(each[each < stop] for each in alone), *times[len(before) :]]))

    def _known_by_now(self, found: Sequence[IntArray | SourcePlan]) -> list[IntArray]:
        """Return the times that are known, and in the place of the others what the evaluator tells."""
        asked = [each for each in found if isinstance(each, SourcePlan)]
        answers = iter(self._evaluator().times(asked) if asked else ())
        return [np.asarray(next(answers), np.int64) if isinstance(each, SourcePlan) else each for each in found]

    def _times_between(self, source: TaskSource, lower: int, stop: int) -> IntArray | SourcePlan:
        """Return the write times of an input in [lower, stop), or what the evaluator is to look at for them."""
        if self._logs[source.path].kind == "stream":
            return self._added_times(source, lower, stop)
        plan = self._source_plan(source, lower, stop)
        return self._added_times(source, lower, stop) if plan.adds_only else plan

    def _added_times(self, source: TaskSource, lower: int | None, stop: int) -> IntArray:
        """Return the write times where no row is ever taken away: rows need not be looked at."""
        if source.shown == "deletes":
            return np.empty(0, np.int64)
        times = self._message_times(source, lower, stop)
        found: IntArray = times[(times >= (self._least if lower is None else lower)) & (times < stop)]
        return found

    def _message_times(self, source: TaskSource, lower: int | None, stop: int) -> IntArray:
        """Return the times of messages in files that may have some in a range, as their footers tell them."""
        files = self._files[source.path]()
        files.look_into(lambda bounds: _may_hold(bounds, lower, stop))
        chosen = np.flatnonzero(_may_hold(files.bounds, lower, stop))
        parts = [counts.times[:, 0] for counts in files.counts(chosen)]
        times: IntArray = np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
        return times

    def _snapshot_time(self, source: TaskSource, note: TaskNote, upper: Antichain) -> IntArray | SourcePlan:
        """Return the time of the snapshot if an input has contents there that are complete; nothing else.

        Or what the evaluator is to look at for it.
        """
        none: IntArray = np.empty(0, np.int64)
        as_of, left = note.as_of, note.forgotten.get(source.alias)
        if as_of is None or upper.less_equal(as_of) or source.shown == "deletes":
            return none
        plan = self._source_plan(source, left, as_of + 1)
        if plan.kind == "stream" or plan.adds_only:
            found = self._added_times(source, left, as_of + 1).shape[0] > 0
            return np.array([as_of], np.int64) if found else none
        return plan

    def _storage_of(self, path: str) -> TableStorage:
        if path not in self._storages:
            options = self._logs[path].core.storage_options
            self._storages[path] = open_storage(path, dict(options) or None)
        return self._storages[path]

    # A step -------------------------------------------------------------------------------------------

    def _stop_of(self, source: TaskSource) -> int:
        """Return before which time a log has its newest complete contents."""
        frontier = self._frontiers[source.path]
        return frontier.elements[0][0] if frontier.elements else self._most + 1

    def _source_plan(self, source: TaskSource, lower: int | None, stop: int, first: int | None = None) -> SourcePlan:
        """Return what is to be read of a log; `first` is the first time of the step."""
        log, files = self._logs[source.path], self._files[source.path]()
        return source_plan(source, log, files, self._storage_of(source.path), lower, stop, first)

    def _write(self, look: _Look, times: tuple[int, ...], upper: Antichain) -> list[Appended] | None:
        assert look.note is not None
        state, log, job = look.state, self._logs[self._sink.path], new_job()
        while True:  # half as many times after each failure
            error: Exception | None = None
            try:
                result = self._evaluator().evaluate(self._step_plan(look, times, job))
                error = result.error
                if error is None:
                    break
                log.core.discard_refused(result.files)
            except Exception as raised:
                log.core.discard_job(self._sink.stream, state.seq + 1, job)
                if is_cancelled(raised):
                    raise
                error = raised
            if len(times) == 1 or isinstance(error, StorageError) or self._is_overtaken(state):
                return self._overtaken_or_failed(state, upper, error)
            _log.info("task %r: %d times together failed, half of them follow: %s", self.name, len(times), error)
            times, job = times[: len(times) // 2], new_job()
            # What comes next is a write time too: the output moves no further.
            upper = Antichain.of(times[-1] + 1)
            self._at_once = len(times)
        numbers: dict[str, object] = {
            "times": len(times), "rows": {self.name: sum(file.n_rows for file in result.files)}
        }  # fmt: skip
        newest = {each.alias: self._stop_of(each) - 1 for each in self.plan.sources if each.shown == "newest"}
        if newest:
            numbers["newest"] = newest
        if result.unmet:
            numbers["unmet"] = dict(result.unmet)
        for name, n in result.unmet.items():
            _log.warning("task %r: %d rows up to %s do not meet %r", self.name, n, self._rendered(times[-1]), name)
        done = self._append(look, result.files, upper, look.note, numbers)
        if done and not done[0].won:
            # Smaller ones are done sooner: a large one would lose for ever.
            self._at_once = max(len(times) // 2, 1)
        elif len(times) == self._at_once:
            self._at_once = min(2 * self._at_once, self._most_times)
        return done

    def _step_plan(self, look: _Look, times: tuple[int, ...], job: str) -> StepPlan:
        assert look.note is not None
        log, first, last = self._logs[self._sink.path], times[0], times[-1]
        whole = look.takes_snapshot and first == look.note.as_of
        sources = tuple(
            self._source_plan(
                source,
                look.note.forgotten.get(source.alias) if whole or not source.is_input else first,
                self._stop_of(source) if source.shown == "newest" else last + 1,
                first,
            )
            for source in self.plan.sources
        )
        own = None
        if self.plan.reads_output:
            mine = TaskSource("output", self._sink.path, "contents")
            own = self._source_plan(mine, None, first)
        return StepPlan(
            self.name, times, sources, own, log.core.format, log.core.storage, self._sink.stream, look.state.seq + 1,
            job, dict(look.note.settings), self.plan.expectations,
        )  # fmt: skip

    def _overtaken_or_failed(self, state: StreamState, upper: Antichain, error: Exception) -> list[Appended] | None:
        """Take a failure for a lost race where the output has moved since: it is decided again."""
        if self._is_overtaken(state):
            _log.info("task %r: another replica was first: %s", self.name, error)
            return self._lost(state, upper)
        self._failed(state, error)
        return None

    def _is_overtaken(self, state: StreamState) -> bool:
        """Whether the output has moved since."""
        log = self._logs[self._sink.path]
        try:
            log.refresh()
            now = log.core.stream(self._sink.stream)
        except TimelyError:
            return False
        return now is not None and now.frontier != state.frontier

    def _lost(self, state: StreamState, upper: Antichain) -> list[Appended]:
        return [Appended(self._sink.name, state.frontier, upper, 0, 0, 1, won=False)]

    def _append(
        self, look: _Look, files: Sequence[DataFile], upper: Antichain, note: TaskNote, numbers: Mapping[str, object]
    ) -> list[Appended] | None:
        """Compare and append (invariant 2)."""
        state = look.state
        made_from = self._from.now(self._sink, note_of(state, self._sink))
        after = self._outputs.append(self._sink, state, files, upper, OutputNote(made_from, numbers, task=note))
        if after is None and self._sink in self._outputs.failures:
            return None
        if after is None:
            return self._lost(state, upper)
        self._state = after
        n_rows = sum(file.n_rows for file in files if file.event == "message")
        return [Appended(self._sink.name, state.frontier, upper, n_rows, len(files), 1, won=True)]

    def _failed(self, state: StreamState, error: Exception) -> None:
        if is_cancelled(error):
            raise error
        self._outputs.fail(self._sink, state if self._writes else None, error)

    # Looking ahead, and back ---------------------------------------------------------------------------

    def next_step(self) -> StepPlan | None:
        """Return the step that would be next, without anything being written; None where nothing waits.

        Raises
        ------
        TimelyError
            If the task could not continue.
        """
        look = self._look()
        for error in self.failures:
            raise error
        if look is None or look.state.closed:
            return None
        look = self._begun(look) if look.note is None else look
        write = self._sink_state(look, self._touched(look)).process()
        return None if write is None or write.time is None else self._step_plan(look, (write.time,), new_job())

    def both_ways(self, most: int) -> tuple[StepPlan, list[StepPlan]] | None:
        """Return a step of many times, and one for each of its times: of those that wait, or of the last ones written.

        Parameters
        ----------
        most : int
            How many times at most.

        Returns
        -------
        (StepPlan, list of StepPlan) or None
            None where there is no time.
        """
        look = self._look()
        for error in self.failures:
            raise error
        if look is None:
            return None
        if not look.state.closed:
            look = self._begun(look) if look.note is None else look
            times = self._sink_state(look, self._touched(look)).ready(most).tolist()
            if look.takes_snapshot and look.note is not None and times[:1] == [look.note.as_of]:
                del times[0]  # always alone
            if times:
                return self._step_plan(look, tuple(times), new_job()), [
                    self._step_plan(look, (time,), new_job()) for time in times
                ]
        alone = self.steps_before(most)
        if not alone or look.note is None:
            return None
        back = replace(look, upper=Antichain.of(alone[0].time))
        return self._step_plan(back, tuple(each.time for each in alone), new_job()), alone

    def steps_before(self, most: int) -> list[StepPlan]:
        """Return the last steps that were written, as they would be evaluated now: at most `most`, the newest last.

        Times that a log has forgotten meanwhile are left out.
        """
        look = self._look()
        if look is None or look.note is None:
            return []
        least = self._domain.minimum[0]
        begins = [at for at in map(self._readable_from, [*self._awaited_paths, self._sink.path]) if at is not None]
        first = max([least, *(at + 1 for at in begins), *([] if look.note.as_of is None else [look.note.as_of + 1])])
        back = replace(look, upper=Antichain.of(first))
        times = self._touched(back, look.upper)[-most:].tolist()
        return [self._step_plan(back, (int(time),), new_job()) for time in times]

    # What is retained ----------------------------------------------------------------------------------

    def _needed(self, look: _Look) -> dict[str, Antichain]:
        """Return what the task still needs of each log, by path: the least, where a log has several roles."""
        note, frontier, least = look.note, look.upper, self._domain.minimum[0]
        assert note is not None
        at = frontier.elements[0][0]
        behind = max(at - 1, least) if at > least else least
        if note.as_of is not None:
            behind = max(behind, note.as_of)
        sources = list(self.plan.sources)
        if self.plan.reads_output:
            sources.append(TaskSource("output", self._sink.path, "contents"))
        needed: dict[str, Antichain] = {}
        for source in sources:
            log = self._logs[source.path]
            at_most = self._stop_of(source) - 1 if source.shown == "newest" else behind
            mine = Antichain.of(max(at_most, log.domain.minimum[0]))
            if source.path != self._sink.path and self._is_whole(source, snapshot=look.takes_snapshot):
                left = note.forgotten.get(source.alias)
                mine = log.domain.minimum_frontier if left is None else Antichain.of(left)
            elif source.path == self._sink.path and log.kind == "stream":
                mine = log.domain.minimum_frontier
            needed[source.path] = mine.meet(needed[source.path]) if source.path in needed else mine
        return needed

    def _hold(self, look: _Look) -> None:
        """Retain what the task needs, and refuse what a log has forgotten of it (invariant 5)."""
        for path, needed in self._needed(look).items():
            if not may_read(self._logs[path].since(), needed):
                raise self._forgotten(path, needed)
            try:
                self._retainers.stand(path, needed, self._sink.owner)
            except SinceViolationError as error:
                raise self._forgotten(path, needed) from error

    def _forgotten(self, path: str, needed: Antichain) -> SinceViolationError:
        log = self._logs[path]
        since, wanted = (log.domain.render_frontier(each) for each in (log.since(), needed))
        whole = log.kind == "stream" and needed == log.domain.minimum_frontier
        hint = (
            "say start(resume='latest') to skip what the log has forgotten, which the output's note will say; or begin"
            " another output"
        )
        return SinceViolationError(
            f"could not continue task {self.name!r}: found since={since} in log {path!r}, of which it needs what is"
            f" from {wanted} on",
            hint=_COLLECTION_HINT if whole else hint,
            as_of=wanted,
            since=since,
            context={"path": path, "operator": self._sink.name},
        )

    def _must_skip(self, look: _Look) -> bool:
        """Whether a log has forgotten what the task needs, and the start consents to skip it."""
        return self.plan.skips and any(
            not may_read(self._logs[path].since(), needed) for path, needed in self._needed(look).items()
        )

    def _skip(self, look: _Look) -> list[Appended] | None:
        """Skip all up to the last complete time; the note says so."""
        assert look.note is not None
        found = self._latest()
        floors = [at for at in map(self._readable_from, self._awaited_paths) if at is not None]
        latest = max([*floors, *([] if found is None else [found])])
        ((at,),) = look.state.frontier.elements
        if latest < at or latest == self._most:
            raise self._forgotten(*next(iter(self._needed(look).items())))
        _log.warning(
            "task %r skips the times from %s to before %s, which a log has forgotten",
            self.name, self._rendered(at), self._rendered(latest + 1),
        )  # fmt: skip
        note = replace(look.note, gaps=(*look.note.gaps, (at, latest + 1)))
        return self._append(look, (), Antichain.of(latest + 1), note, {"skipped": True})

    def _rendered(self, time: int) -> object:
        return self._domain.render_time((time,))


_COLLECTION_HINT = (
    "make a collection of it with latest(), which forgets times and not contents, or say forgotten=True if its contents"
    " are what it has not forgotten"
)


def source_plan(
    source: TaskSource,
    log: Log,
    files: Files,
    storage: TableStorage,
    lower: int | None,
    stop: int,
    first: int | None = None,
) -> SourcePlan:
    """Return what is to be read of a log, and what its files are known to hold.

    Parameters
    ----------
    source : TaskSource
    log : Log
    files : Files
        Of its present snapshot.
    storage : TableStorage
        Of the log.
    lower : int or None
        First time; None: from the beginning on.
    stop : int
        Before which time.
    first : int, optional
        First time of the step, where that is not `lower`.
    """
    bounds = files.bounds
    files.look_into(lambda bounds: _may_hold(bounds, lower, stop))
    chosen = _may_hold(bounds, lower, stop)
    later, early = chosen, chosen
    if first is not None:
        later, early = _may_hold(bounds, first + 1, stop), _may_hold(bounds, lower, min(first + 1, stop))
    return SourcePlan(
        source.alias, source.shown, source.path, log.kind, log.domain, log.schema, storage,
        tuple(map(str, files.paths[chosen])), lower, None if stop > log.domain.types[0].hi else stop,
        int(files.bounds.sizes[chosen].sum()), _n_rows(files, chosen), _n_rows(files, later),
        _adds(files, chosen), _adds(files, early),
    )  # fmt: skip


def _may_hold(bounds: FileBounds, lower: int | None, stop: int) -> BoolArray:
    """Return which files may have rows at times in [lower, stop)."""
    chosen: BoolArray = ~bounds.known | (bounds.minima[:, 0] <= stop - 1)
    return chosen if lower is None else chosen & (~bounds.known | (bounds.maxima[:, 0] >= lower))


def _n_rows(files: Files, chosen: BoolArray) -> int:
    """Return how many rows some files say they have; negative where one does not, and 0 only where there is no file."""
    rows = files.rows[chosen]
    if not rows.shape[0]:
        return 0
    return max(int(rows.sum()), 1) if (rows >= 0).all() else -1


def _adds(files: Files, chosen: BoolArray) -> bool:
    """Return whether some files are known to have no update that takes a row away."""
    return bool((files.least_diffs[chosen] > 0).all())


def check_roles(plan: TaskPlan, sink: Sink, logs: Mapping[str, Log]) -> None:
    """Refuse logs that a task cannot be made from; by the ids of the logs, not by their paths.

    Parameters
    ----------
    plan : TaskPlan
    sink : Sink
    logs : mapping of str to Log
        By path: all that are read, and the output's if it is there.

    Raises
    ------
    InvalidUsageError
        If the output is an input, or times have several coordinates.
    SinceViolationError
        If the contents of a stream log are asked for that has forgotten some.
    """
    attempt = f"could not start task {plan.name!r}"
    own = logs[sink.path].core.log_id if sink.path in logs else None
    # A task that has begun reads what its note says, not what this start asks for.
    state = logs[sink.path].core.stream(sink.stream) if sink.path in logs else None
    note = note_of(state, sink).task
    snapshot = plan.snapshot
    if state is not None and note is not None:
        snapshot = note.as_of is not None and takes_snapshot(note.snapshot, note.as_of, state.frontier)
    for source in plan.sources:
        log = logs[source.path]
        if log.core.log_id == own:
            msg = f"{attempt}: found its output {sink.path!r} as {source.alias!r}"
            raise InvalidUsageError(
                msg,
                hint="name other logs; a body reads the task's own output by the name 'output'",
                context={"path": source.path},
            )
        if log.domain.arity != 1:
            types = [kind.value for kind in log.domain.types]
            msg = f"{attempt}: found times {shown(types)} of several coordinates in log {source.path!r}"
            raise InvalidUsageError(
                msg, hint="give logs whose times have one coordinate", context={"path": source.path}
            )
        whole = log.kind == "stream" and (not source.is_input or snapshot)
        declared = plan.forgotten if note is None else source.alias in note.forgotten
        begins = beginning(log) if whole and not declared else None
        if begins is not None:
            since, least = (log.domain.render_frontier(each) for each in (begins, log.domain.minimum_frontier))
            where = f"in stream log {source.path!r}, whose contents it reads as {source.alias!r}"
            msg = f"{attempt}: found since={since} {where}"
            raise SinceViolationError(
                msg,
                hint=_COLLECTION_HINT,
                as_of=least,
                since=since,
                context={"path": source.path},
            )


def held_back_by(plan: TaskPlan, frontiers: Mapping[str, Antichain], time: int) -> list[TaskSource]:
    """Return the sources that have not passed a time: they hold back what is written there.

    Examples
    --------
    >>> plan = TaskPlan("t", (TaskSource("a", "/a", "inserts"), TaskSource("r", "/r", "contents")))
    >>> [each.alias for each in held_back_by(plan, {"/a": Antichain.of(9), "/r": Antichain.of(4)}, 5)]
    ['r']
    """
    return [source for source in plan.awaited if frontiers[source.path].less_equal(time)]
