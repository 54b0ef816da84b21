"""The engine's loop: plans the steps of outputs that are ready, runs their tasks, and appends what they wrote.

A step takes one output from its upper to a later one, in one commit; a job computes one or more steps of outputs that
are ready. `Engine` runs jobs for a streaming query (`spark_timely.spark.dataflows`) and for a dataflow of a compute
instance (`compute.drive.runners`), which give it the function that runs tasks.

A job: read the uppers; propagate; see which outputs are ready; plan the next steps of each, one behind the other; cut
them into tasks; run all tasks at once; append the files of each step, if its output's upper is still what it was. A
restart is the same loop: there is nothing to recover, and outputs at different uppers each continue from their own.

Invariants
----------
1. A copy that lost a race for an output deletes its files, looks again, and continues.
2. The engine sees names and statistics of files, never rows.
3. How far the inputs are is read before each job, unless they were *pinned*, as in a query that ends. Then it is read
   once, so that steps end however fast the inputs move.
4. An output that failed is left where it is, with what depends on it; the others continue.
5. Dataflows run a job in turn, and each looks at its inputs before it: news waits for one job of each of the others. A
   job has several steps only as long as jobs take no more than about a second.
6. A call returns. In a query that ends, because the frontiers of inputs are those of its start. In one that lives,
   because it ends after the turn in which its bounds are passed; `spark_timely.work.rest_of` says when to call again.
7. No dataflow waits for a failure to pass while another has work to do.
8. How many steps a job has changes no commit: each is what a job of its own would have given, of the same look at the
   inputs. A step is appended only to the state that the step before it made. If one is not appended, for whatever
   reason, the later ones of its output are thrown away.
9. Where nothing is ready each output is as far as its inputs let it go, or it waits for a log that others hold.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time as monotonic
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_timely.dataflow.engine.arrangements import Arrangements, Indexing
from spark_timely.dataflow.engine.cutting import SHUFFLE_BYTES, Files, cut_range
from spark_timely.dataflow.engine.inputs import (
    Beginnings,
    Inputs,
    Retained,
    Retainers,
    check_whole,
    first_end,
    note_of,
    other_log,
    refreshed,
)
from spark_timely.dataflow.engine.outputs import Outputs, OutputWork, passes
from spark_timely.dataflow.engine.tasks import LookupFiles, OutputPlan, Task, TaskResult
from spark_timely.dataflow.engine.tracking import Tracking, stuck_outputs
from spark_timely.dataflow.logs import Sink, open_logs
from spark_timely.dataflow.remembered import Look, looks_of
from spark_timely.dataflow.views import leaves_of
from spark_timely.errors import (
    DataLossError,
    LogMissingError,
    SinceViolationError,
    TimelyError,
    TimelyInternalError,
)
from spark_timely.log import Log
from spark_timely.log.files.parquet import new_job
from spark_timely.log.log import open_log
from spark_timely.log.machine.since import may_read
from spark_timely.log.store.clones import of_clone
from spark_timely.protocol.note import OutputNote
from spark_timely.protocol.replay import Limits
from spark_timely.time.antichain import Antichain, unique_times
from spark_timely.work import Appended, advance_all, is_cancelled

if TYPE_CHECKING:
    from spark_timely.log.machine.state import DataFile, StreamState

    Ready = tuple[Sink, StreamState, Antichain]

__all__ = [
    "MOST_TOGETHER",
    "Engine",
    "RunTasks",
    "steps_after",
]

_log = logging.getLogger("spark_timely.dataflow")

# Looks at inputs take at most one part in this number of the time: in the cloud each takes a while.
_LOOK_SHARE: Final = 10

MOST_TOGETHER: Final = 20
"""Steps of an output that a job has at most."""

# How long a job should take at most: news waits for it in a query that lives, and only others' turns in one that ends.
_JOB_S: Final = 1.0
_PINNED_JOB_S: Final = 2.0

RunTasks = Callable[[Sequence[OutputPlan], Sequence[Task]], Sequence[TaskResult]]
"""Runs tasks, as one job, and gives their results in the same order. Has for each step of the job its output's plan."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A step of a job: the range [lower, upper) of an output, `ahead` steps after the output's newest commit.

    With `begins` the first, of an output whose inputs have forgotten what is before that.
    """

    sink: Sink
    ahead: int
    lower: Antichain
    upper: Antichain
    begins: Antichain | None = None


def steps_after(together: int, n_steps: int, took_s: float, *, within_s: float) -> int:
    """Return how many steps of an output the next job may have.

    Twice as many as long as such a job would take no longer than it should; as many as fit where it took longer.

    Parameters
    ----------
    together : int
        How many the last job might have.
    n_steps : int
        How many it had: fewer, where no more waited.
    took_s, within_s : float
        How long it took, and how long one should take at most, in seconds.

    Examples
    --------
    >>> [steps_after(4, 4, took_s, within_s=2.0) for took_s in (0.9, 1.6, 2.0, 5.0, 60.0)]
    [8, 5, 4, 1, 1]
    >>> steps_after(16, 1, 0.1, within_s=2.0), steps_after(16, 16, 0.1, within_s=2.0)
    (16, 20)
    """
    growth = min(2.0, within_s / took_s) if took_s > 0 else 2.0
    if n_steps < together and growth >= 1.0:
        return together
    return max(1, min(int(n_steps * growth), MOST_TOGETHER))


class Engine(OutputWork):
    """Runs the outputs of a dataflow. `run_tasks` runs the tasks of its jobs; it is set before the first step.

    Parameters
    ----------
    name : str
        Of the dataflow.
    sinks : sequence of Sink
        Not empty.
    storage : mapping of str to dict
        Storage options by path of the log.
    files_of : callable
        Gives what keeps account of a log's files: a function of no arguments that gives its `Files`.
    limits : Limits
        How much of each output one step takes.
    workers : int or None
        Tasks per output and step at most; by bytes if not given.
    twice : bool
        Whether everything is computed twice, and refused where that makes a difference.
    shuffle_bytes : int
        A piece of whole times with more is computed by key, where its operators allow that.
    run, tries
        As of `Outputs`.
    retain : callable, optional
        Gives what retains a log for a consumer of a name: inputs keep what outputs have not read. Nothing is retained
        unless given.
    most_together : int
        Steps of an output that a job has at most. Where outputs read outputs of the same dataflow, each step has a job
        of its own.
    indexing : Indexing, optional
        How logs that outputs look into are indexed.
    opened : mapping of str to Log, optional
        Handles that `spark_timely.dataflow.logs.existing_logs` gave: the engine's own from now on.
    now : callable
        A clock in seconds that never goes back.

    Raises
    ------
    OwnershipError
        If an output belongs to another dataflow.
    SchemaMismatchError
        If an output's log has other columns.
    """

    def __init__(
        self,
        name: str,
        sinks: Sequence[Sink],
        storage: Mapping[str, dict[str, str]],
        *,
        files_of: Callable[[Log], Callable[[], Files]],
        limits: Limits | None = None,
        workers: int | None = None,
        twice: bool = False,
        shuffle_bytes: int = SHUFFLE_BYTES,
        run: str = "",
        tries: int = 1,
        most_together: int = MOST_TOGETHER,
        retain: Callable[[Log, str], Retained] | None = None,
        indexing: Indexing | None = None,
        opened: Mapping[str, Log] | None = None,
        now: Callable[[], float] = monotonic.monotonic,
    ) -> None:
        self.name = name
        self._sinks = list(sinks)
        # May be changed between two steps.
        self.limits = limits or Limits()
        self._workers = workers
        self._twice = twice
        self._keyed_bytes = shuffle_bytes
        self._logs = open_logs(sinks, storage, opened)
        leaves = {leaf.path: leaf for sink in sinks for leaf in leaves_of(sink.view)}
        own = {sink.path for sink in sinks}
        self._inputs = list(leaves)
        self._own_inputs = [path for path in leaves if path in own]
        self._beginnings = Beginnings(sinks, self._logs)
        # The logs of operators over all history are read as their state: how is known by their path.
        self._own = self._beginnings.own
        read = dict.fromkeys([*leaves, *(leaf.path for leaf in self._own.values())])
        self._files = {path: files_of(self._logs[path]) for path in read}
        self._tracking = Tracking(name, sinks)
        self._from = Inputs(sinks, self._logs)
        self._states: dict[Sink, StreamState] = {}
        self._frontiers: dict[str, Antichain] = {}  # of inputs, as of the newest look
        # Another dataflow of this name has other outputs: it is another consumer.
        outputs = sorted([self._logs[sink.path].core.log_id, sink.stream] for sink in sinks)
        self._consumer = f"dataflow {name} {hashlib.sha256(json.dumps(outputs).encode()).hexdigest()[:8]}"
        retainers = Retainers(self._logs, retain, self._consumer, f"dataflow {name!r}", _log)
        super().__init__(Outputs(sinks, self._logs, self._from, run, tries=tries, now=now), retainers, now)
        self._outputs.claim()
        self._arranged = Arrangements(self._logs, self._files, indexing, self._consumer)
        for sink in sinks:
            # As indexes are: a merge of the small files of a hundred steps is as much work as four steps.
            self._logs[sink.path].core.upkeep_beside = (indexing or Indexing()).background
        self._looks = {sink: looks_of(sink.view, self._own.get(sink)) for sink in sinks}
        self._forgotten: set[Sink] = set()
        self._most_together = most_together
        self._together = 1
        # How far a reader goes depends on how far its spool is when it is looked at: after each step of the spool.
        spools = {sink: self._from.spools(sink) for sink in sinks}
        # And what an operator over all history makes of a range depends on what it made of those before.
        self._one_by_one = {sink for sink in sinks if spools[sink]}.union(*spools.values(), self._own)
        # Whether inputs were looked at and no step taken since; when, and how long it took.
        self._looked = False
        self._looked_at, self._look_s = -math.inf, 0.0
        self.run_tasks: RunTasks

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the logs that it reads or writes."""
        return tuple(self._logs)

    @property
    def consumer(self) -> str:
        """Name under which inputs are retained for it."""
        return self._consumer

    def log_at(self, path: str) -> Log:
        """Return the handle of a log that it reads or writes."""
        return self._logs[path]

    @property
    def may_move(self) -> bool:
        """Whether any output may move again by itself: it is not complete, and depends on none that stopped."""
        failed = {sink for sink, error in self._outputs.failures.items() if not passes(type(error).__name__)}
        return not self.dropped and any(
            not (sink in self._states and self._states[sink].closed)
            and sink not in failed
            and not any(spool in failed for spool in self._from.spools(sink))
            for sink in self._sinks
        )

    def advance(self, run_tasks: RunTasks, /) -> list[Appended]:
        """Take steps until no output is ready.

        Parameters
        ----------
        run_tasks : callable
            Runs the tasks of a job.

        Returns
        -------
        list of Appended
            What was done, in order.

        Raises
        ------
        OperatorError
            If a function of the user failed: after all that does not depend on it is done.
        DataLossError
            If an input was replaced, or has gone back behind what was made from it.
        PlanMismatchError
            If an output was made by another plan.
        """
        self.run_tasks = run_tasks
        return advance_all([self])

    def begin(self, *, pinned: bool = False) -> None:
        """Begin a series of steps: inputs are looked at again, now if they are pinned."""
        self._pinned, self._idle, self._looked, self._looked_at = pinned, False, pinned, -math.inf
        if pinned:
            self._outputs.wake(bounded=True)
            self._look_at_inputs()

    def step(self, *, most: int | None = None) -> list[Appended] | None:
        """Run a job, of one step of each output that is ready or of some; what failed is in `failures`."""
        woken = self._outputs.wake(bounded=self._pinned)
        fresh = self._looked and not woken
        if not fresh:
            fresh = woken or (not self._pinned and self._now() - self._looked_at >= _LOOK_SHARE * self._look_s)
            if fresh:
                self._look_at_inputs()
            elif self._idle:
                return None
            else:
                self._look(self._own_inputs)
        self._looked = False
        # A job moves an upper, stops an output, or learns that another copy was first.
        ready = self._ready(fresh=fresh)
        self._idle = not ready
        if ready:
            return self._job(ready, MOST_TOGETHER if most is None else most)
        if not self.dropped:
            self._check_remade()
            self._check_stuck()
            self._retain_inputs()  # an output that is complete needs nothing any more
        return None

    def _look_at_inputs(self) -> None:
        began = self._now()
        self._look(self._inputs)
        self._retain_inputs()
        self._looked_at = self._now()
        self._look_s = self._looked_at - began

    def _retain_inputs(self) -> None:
        """Keep in each input what the outputs have not read; where that cannot be, it is said once."""
        if not self._retainers.are_kept or len(self._states) < len(self._sinks):
            return
        needed: dict[str, Antichain] = {}
        for sink, state in self._states.items():
            for need in self._beginnings.needs(sink, state, state.frontier):
                path, mine, since = need.leaf.path, need.needed, self._logs[need.leaf.path].since()
                if path != sink.path and not may_read(since, mine):
                    if self._beginnings.later(sink, state) is None:
                        continue  # it is refused for good (`check_since`): to keep the log for it would be for nothing
                    # An output that begins where its inputs are.
                    mine = since
                needed[path] = mine.meet(needed[path]) if path in needed else mine
        owner = f"dataflow {self.name}"
        for path, antichain in needed.items():
            try:
                self._retainers.stand(path, antichain, owner)
            except SinceViolationError as error:
                # since has moved after the look: the next one finds what can be retained, or that too much is gone.
                _log.debug("dataflow %r does not retain log %r yet: %s", self.name, path, error)

    def end(self) -> None:  # noqa: D102 - see `Work`
        super().end()
        self._arranged.end()

    def _ready(self, *, fresh: bool) -> list[Ready]:
        """Return the outputs behind their views, each with how far it can go.

        `fresh` says that the inputs were looked at after the outputs.
        """
        if self.dropped:
            return []
        found = []
        errors = {sink: self._outputs.refused(sink, state, fresh=fresh) for sink, state in self._states.items()}
        # What such a log declares complete was not computed, or from another input: nothing is made from it either.
        wrong = {sink for sink, error in errors.items() if error is not None}
        for sink, state in self._states.items():
            if sink in self._outputs.failures:
                continue
            note = note_of(state, sink)
            error = errors[sink]
            if error is not None:
                self._outputs.fail(sink, state, error)
                continue
            if not wrong.isdisjoint(self._from.spools(sink)):
                continue
            upper = self._tracking.frontier(sink)
            if state.frontier.less_equal_frontier(upper):
                if self._beginnings.waits(sink, state):
                    continue
                begins = self._beginnings.later(sink, state)
                if begins is not None and not first_end(sink, begins).less_equal_frontier(upper):
                    continue  # waits until its inputs are so far
                if upper != state.frontier:
                    found.append((sink, state, upper))
                else:
                    self._outputs.settle(sink, state, note)
            elif fresh and _may_not_wait(note) and not self._from.spools(sink):
                self._outputs.fail(sink, state, _gone_back(sink, state.frontier, upper))
        return found

    def _look(self, inputs: Sequence[str]) -> None:
        """Read the uppers, and after all of them the frontiers of logs that are read.

        What another copy wrote was made from no more than what is found so.
        """
        broken = refreshed(self._logs, {sink.path: None for sink in self._sinks})
        self._states = self._outputs.states(broken)
        for sink, state in self._states.items():
            self._forget_before(sink, state)
        broken = refreshed(self._logs, inputs)
        frontiers = {path: self._logs[path].core.frontier() for path in self._inputs if path not in broken}
        uppers = {sink: state.frontier for sink, state in self._states.items()}
        self._frontiers = frontiers
        refused = self._tracking.update(uppers, frontiers)
        for sink in self._sinks:
            found: Exception | None = refused.get(sink)
            for leaf in leaves_of(sink.view):
                error = broken.get(leaf.path) or refused.get(leaf.path)
                if isinstance(error, LogMissingError):
                    error = self._missing(sink, leaf.path, error)
                found = found or error
            if found is not None:
                self._outputs.fail(sink, self._states.get(sink), found)

    def _missing(self, sink: Sink, path: str, error: Exception) -> Exception:
        """Return what is to be said of an input that is gone: another log may be in its place."""
        log = self._logs[path]
        try:
            other = open_log(path, storage_options=log.core.storage_options or None)
        except TimelyError:
            return error
        found, clone = other.core.log_id, of_clone(other.core.storage)
        return DataLossError(
            f"could not continue at operator {sink.name!r}: {other_log(path, found, log.core.log_id, clone)}",
            hint="put back the input, which was deleted and another log made in its place, capture into another log, "
            "or remove this output to compute it again; a restart says how its rows can stay",
            context={"path": path, "found": found, "expected": log.core.log_id},
        )

    def _check_remade(self) -> None:
        """Refuse outputs past what they capture, where that was made again: after all has been made.

        An output of this dataflow that was removed is made again from its start; its readers wait meanwhile.
        """
        if not self._past_what_they_read():
            return
        # Another copy may have been further than the inputs were when this one looked.
        self._look(self._inputs)
        for sink in self._past_what_they_read():
            state = self._states[sink]
            self._outputs.fail(sink, state, _gone_back(sink, state.frontier, self._tracking.frontier(sink)))

    def _check_stuck(self) -> None:
        """Stop outputs that can never move, though their inputs have something for them."""
        uppers = {sink: state.frontier for sink, state in self._states.items()}
        stuck = stuck_outputs(self._sinks, uppers, self._frontiers, self._logs, self._outputs.failures)
        for sink, goal in stuck.items():
            domain = sink.view.domain
            upper, far = domain.render_frontier(uppers[sink]), domain.render_frontier(goal)
            msg = (
                f"operator {sink.name!r} is at {upper}, its inputs at {far}, and nothing that the dataflow writes "
                "between them can move, invariant 9 of dataflow.engine.steps"
            )
            self._outputs.fail(sink, self._states[sink], TimelyInternalError(msg))

    def _past_what_they_read(self) -> list[Sink]:
        failed = self._outputs.failures
        return [
            sink
            for sink, state in self._states.items()
            if sink not in failed
            and _may_not_wait(note_of(state, sink))
            and not any(spool in failed for spool in self._from.spools(sink))
            and not state.frontier.less_equal_frontier(self._tracking.frontier(sink))
        ]

    def _job(self, ready: Sequence[Ready], most: int) -> list[Appended]:
        began = self._now()
        # As of the snapshots that files are taken from: an output that is read again may be looked at before the end.
        inputs = {sink: self._from.now(sink, note_of(state, sink)) for sink, state, _ in ready}
        steps, outputs, tasks = self._plan(ready, min(self._together, most))
        found = self._run(steps, outputs, tasks)
        states = {sink: state for sink, state, _ in ready}
        done: list[Appended] = []
        for place, (step, mine) in enumerate(zip(steps, found, strict=True)):
            sink = step.sink
            if sink not in states:
                continue  # thrown away with a step before it
            state = states.pop(sink)
            files = [] if isinstance(mine, Exception) else [file for result in mine for file in result.files]
            failed = mine if isinstance(mine, Exception) else next((r.error for r in mine if r.error is not None), None)
            if isinstance(mine, Exception) or failed is not None:
                assert failed is not None
                self._throw_away(sink, files, steps[place + 1 :], found[place + 1 :])
                self._outputs.fail(sink, state, failed)
                continue
            metrics, n_dead = self._metrics(mine), sum(file.n_rows for file in files if file.event == "dead")
            begins = self._beginnings.said(sink, state, step.begins)
            note = OutputNote(inputs[sink], metrics, begins=begins)
            after = self._outputs.append(sink, state, files, step.upper, note)
            if after is not None and begins is not None:
                self._forget_before(sink, after)
            if after is not None and n_dead:
                _log.warning(
                    "output %r set %d rows apart: they are dead letters of log %r, with the reason",
                    sink.name, n_dead, sink.path,
                )  # fmt: skip
            if after is not None or sink not in self._outputs.failures:
                n_rows = sum(file.n_rows for file in files if file.event == "message")
                won = after is not None
                done.append(Appended(sink.name, step.lower, step.upper, n_rows, len(files), len(mine), won))
            if self._looks[sink] and after is not None:
                self._index_own(sink, after, sum(file.size_bytes for file in files))
            # Nothing was committed since that the next step does not know: no copy's step, no failure and no drop.
            if after is not None and after.seq == state.seq + 1:
                states[sink] = after
            else:
                self._throw_away(sink, [], steps[place + 1 :], found[place + 1 :])
        if any(self._looks.values()):
            self._arranged.begin_waiting()  # what is due would compete with the step, and its commit
        if len(states) == len(ready):
            n_steps = 1 + max((step.ahead for step in steps), default=0)
            within_s = _PINNED_JOB_S if self._pinned else _JOB_S
            self._together = min(
                steps_after(self._together, n_steps, self._now() - began, within_s=within_s), self._most_together
            )
        else:
            self._together = 1  # what was thrown away was computed for nothing
        return done

    def _forget_before(self, sink: Sink, state: StreamState) -> None:
        """Say of an output that begins later that it cannot be read as of a time before that: nothing is there.

        A look for outputs whose beginning was committed, and this not. What is retained stays readable, and empty.
        """
        log, begins = self._logs[sink.path], note_of(state, sink).begins
        if not begins or sink in self._forgotten:
            return
        self._forgotten.add(sink)
        try:
            if len(log.streams()) == 1 and not may_read(Antichain.from_times(begins), log.since()):
                log.allow_compaction(Antichain.from_times(begins), by=f"dataflow {self.name}")
        except TimelyError as error:
            _log.warning("output %r begins at %s, which its log does not say: %s", sink.name, begins, error)

    def _index_own(self, sink: Sink, state: StreamState, size_bytes: int) -> None:
        """Have the index of what an output remembers extended, after a large step: the next would read all of it."""
        own = self._own.get(sink)
        for look, leaf in self._looks[sink].items():
            if leaf is own and self._arranged.is_much(size_bytes):
                needed = self._needed(look, state.frontier)
                self._arranged.before(look, leaf, state.frontier, state.frontier, self.run_tasks, needed)

    def _before(self, sink: Sink, lo: Antichain, hi: Antichain) -> dict[Look, LookupFiles]:
        """Return where what an output looks up before a range is."""
        found = {}
        for look, leaf in self._looks[sink].items():
            found[look] = self._arranged.before(look, leaf, lo, hi, self.run_tasks, self._needed(look, lo))
        return found

    def _needed(self, look: Look, lo: Antichain) -> Antichain:
        """Return what all outputs that look into a log have done, behind which they never look again."""
        for other, looks in self._looks.items():
            if other in self._states and any(each.path == look.path for each in looks):
                lo = lo.meet(self._states[other].frontier)
        return lo

    def _plan(self, ready: Sequence[Ready], most: int) -> tuple[list[_Planned], list[OutputPlan], list[Task]]:
        """Plan the next steps of each output, each as if the one before it were there, and cut them into tasks.

        Returns
        -------
        steps : list of _Planned
            The first of all outputs, then the second.
        outputs : list of OutputPlan
            Of each step.
        tasks : list of Task
            Of all steps, known by their number.
        """
        steps: list[_Planned] = []
        outputs: list[OutputPlan] = []
        tasks: list[Task] = []
        plans: dict[Sink, OutputPlan] = {}
        job = new_job()
        sizes: dict[Sink, int] = {}
        waiting = [(sink, state, state.frontier, upper) for sink, state, upper in ready]
        for ahead in range(most):
            left = []
            for sink, state, lower, upper in waiting:
                seq, begins = state.seq + 1 + ahead, None
                try:
                    begins = self._beginnings.later(sink, state)
                    if begins is None:
                        end, size, pieces = self._cut_next(sink, state, (lower, upper), len(steps), seq)
                    else:
                        end, size, pieces = self._cut_beginning(sink, begins, lower, len(steps), seq)
                except (TimelyError, pa.ArrowException, OSError) as error:
                    # Of a later step the next job says it, which begins there.
                    if not ahead:
                        self._outputs.fail(sink, state, error)
                    continue
                sizes[sink] = sizes.get(sink, 0) + size
                most_bytes = None if begins is not None else self.limits.size_bytes
                if ahead and most_bytes is not None and sizes[sink] > most_bytes:
                    continue
                steps.append(_Planned(sink, ahead, lower, end, begins))
                outputs.append(self._output_plan(plans, sink, job))
                tasks += pieces
                if begins is None and end not in (lower, upper) and sink not in self._one_by_one:
                    left.append((sink, state, end, upper))
            waiting = left
        return steps, outputs, tasks

    def _cut_beginning(
        self, sink: Sink, begins: Antichain, lower: Antichain, number: int, seq: int
    ) -> tuple[Antichain, int, list[Task]]:
        """Cut the first step of an output that begins later; of its range nothing is left, or of updates their sum."""
        self._beginnings.check_as_of(sink)
        check_whole([sink], self._logs)
        self._beginnings.say(sink, begins)
        end = first_end(sink, begins)
        if end == begins:
            return end, 0, []
        _, _, pieces = cut_range(
            sink.view,
            lambda leaf: self._files[leaf.path](),
            lower,
            end,
            output=number,
            seq=seq,
            limits=Limits(),
            workers=self._workers,
            by_key=sink in self._own,
            before=self._before(sink, lower, end),
        )
        return end, 0, [replace(piece, moved_to=begins.elements[0]) for piece in pieces]

    def _cut_next(
        self, sink: Sink, state: StreamState, ends: tuple[Antichain, Antichain], number: int, seq: int
    ) -> tuple[Antichain, int, list[Task]]:
        """Cut the next step of an output: return where it ends, its bytes, and its tasks."""
        lower, upper = ends
        if note_of(state, sink).upper is None:
            check_whole([sink], self._logs)
        self._beginnings.check_since(sink, state, lower)
        self._check_alone(sink)
        return cut_range(
            sink.view,
            lambda leaf: self._files[leaf.path](),
            lower,
            upper,
            output=number,
            seq=seq,
            limits=self.limits,
            workers=self._workers,
            shuffle_bytes=self._keyed_bytes,
            by_key=sink in self._own,
            before=self._before(sink, lower, upper),
        )

    def _output_plan(self, plans: dict[Sink, OutputPlan], sink: Sink, job: str) -> OutputPlan:
        if sink not in plans:
            core = self._logs[sink.path].core
            plans[sink] = OutputPlan(
                sink.name, sink.view, sink.stream, core.format, core.storage, self._twice, job, self._own.get(sink)
            )
        return plans[sink]

    def _check_alone(self, sink: Sink) -> None:
        """Refuse a state that others write into: what they say would be taken for what the operator gave."""
        log = self._logs[sink.path]
        others = sorted(name for name in log.core.streams() if name != sink.stream)
        if sink in self._own and others:
            msg = (
                f"could not continue at operator {sink.name!r}: found streams {others!r} in log {sink.path!r}, which "
                "is what the operator remembers"
            )
            raise DataLossError(
                msg,
                hint="capture into another log, and leave this one to the dataflow: an operator over all history reads "
                "all of the log that it writes",
                context={"path": sink.path, "streams": ", ".join(others)},
            )

    def _throw_away(
        self,
        sink: Sink,
        files: Sequence[DataFile],
        steps: Sequence[_Planned],
        found: Sequence[list[TaskResult] | Exception],
    ) -> None:
        """Delete files that are no part of an output's log, and those of its steps among later ones (invariant 8)."""
        later = [
            file
            for step, results in zip(steps, found, strict=True)
            if step.sink is sink and not isinstance(results, Exception)
            for result in results
            for file in result.files
        ]
        if files or later:
            self._logs[sink.path].core.discard_refused([*files, *later])

    def _run(
        self, steps: Sequence[_Planned], outputs: Sequence[OutputPlan], tasks: Sequence[Task]
    ) -> list[list[TaskResult] | Exception]:
        """Run all tasks as one job; where that fails, those of each output; where that fails, those of each step."""
        found: list[list[TaskResult] | Exception] = [[] for _ in steps]
        todo = [list(tasks)] if tasks else []
        broken: set[Sink] = set()
        while todo:  # once; after a failure again per output, and per step of those that fail
            together = todo.pop(0)
            concerned = list({task.output: None for task in together})
            sinks = list({steps[number].sink: None for number in concerned})
            if not broken.isdisjoint(sinks):
                continue  # behind a step that failed by itself
            try:
                results = self.run_tasks(outputs, together)
            except Exception as error:
                for number, seq in {(task.output, task.seq): None for task in together}:
                    core = self._logs[steps[number].sink.path].core
                    core.discard_job(outputs[number].stream, seq, outputs[number].job)
                if is_cancelled(error):
                    raise
                if len(sinks) > 1:
                    _log.warning("a job of %d outputs failed, each is run apart: %s", len(sinks), error)
                    todo = [[task for task in together if steps[task.output].sink is sink] for sink in sinks]
                elif len(concerned) > 1:
                    _log.warning("a job of %d steps failed, each is run apart: %s", len(concerned), error)
                    todo = [[task for task in together if task.output == number] for number in concerned] + todo
                else:
                    found[concerned[0]] = error
                    broken.update(sinks)
                continue
            for task, result in zip(together, results, strict=True):
                mine = found[task.output]
                assert isinstance(mine, list)
                mine.append(result)
        return found

    @staticmethod
    def _metrics(results: Sequence[TaskResult]) -> dict[str, object]:
        """Return what a step did, for the output's log: it tells where rows come and go, from any process."""
        rows: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for result in results:
            for name, (n, size) in result.counts.items():
                rows[name] = rows.get(name, 0) + n
                sizes[name] = sizes.get(name, 0) + size
        times = [result.times for result in results]
        known = [part for part in times if part is not None]
        n_times = None
        if len(known) == len(times):
            n_times = unique_times(np.concatenate(known))[0].shape[0] if known else 0
        metrics = {"tasks": len(results), "times": n_times, "rows": rows, "bytes": sizes}
        dead = sum(file.n_rows for result in results for file in result.files if file.event == "dead")
        return {**metrics, "dead": dead} if dead else metrics


def _may_not_wait(note: OutputNote) -> bool:
    """Whether an output was made from inputs that were as far as it is, so that they cannot be behind it."""
    return note.upper is not None and not note.consented


def _gone_back(sink: Sink, upper: Antichain, frontier: Antichain) -> DataLossError:
    domain = sink.view.domain
    msg = (
        f"could not continue at operator {sink.name!r}: found its output at {domain.render_frontier(upper)}, "
        f"and what it captures at {domain.render_frontier(frontier)} only"
    )
    return DataLossError(
        msg,
        hint="capture into another log, or remove this output to make it again: an input was replaced or restored "
        "to an earlier state, or the dataflow was changed, and rows would be missed",
        context={"path": sink.path},
    )
