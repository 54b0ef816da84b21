"""Run a dataflow: step by step, until nothing that is complete waits any more.

A step: read the uppers; propagate; see which outputs are ready; cut what waits for them into tasks; run all
tasks as one job; append each output's files, if its upper is still what it was. A restart is the same loop: there
is nothing to recover, and outputs at different uppers each go on from their own.

Invariants
----------
1. Who lost a race for an output throws its files away, looks again, and goes on.
2. The driver sees names and statistics of files, never rows.
3. How far the inputs are is read once per `advance`: it comes to an end however fast they move.
4. An output that failed is left where it is, with what depends on it; the others go on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.antichain import Antichain
from spark_timely.capture.note import OutputNote
from spark_timely.capture.replay import Limits
from spark_timely.dataflow.cutting import KEYED_BYTES, Files, cut_range
from spark_timely.dataflow.inputs import Inputs, other_log
from spark_timely.dataflow.notes import newest_note
from spark_timely.dataflow.outputs import Outputs
from spark_timely.dataflow.scope import Sink, open_outputs
from spark_timely.dataflow.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.tracking import Tracking
from spark_timely.dataflow.view import leaves_of
from spark_timely.errors import DataLossError, LogMissingError, TimelyError
from spark_timely.log.delta import DeltaLog, open_log
from spark_timely.sorting import unique_times

if TYPE_CHECKING:
    from spark_timely.log.base import DataFile, StreamState

    Ready = tuple[Sink, StreamState, Antichain]

__all__ = ["Appended", "Engine", "RunTasks", "advance_all"]

_log = logging.getLogger("spark_timely.dataflow")

# What Spark says of a job that was cancelled, classic and Connect; who waits for it may be interrupted before. Other
# errors may have the word too: a column's name.
_CANCELLED = re.compile(
    r"SPARK_JOB_CANCELLED|Job \d+ cancelled|OPERATION_CANCELED"
    r"|java\.lang\.InterruptedException|ClosedByInterruptException"
)

RunTasks = Callable[[Sequence[OutputPlan], Sequence[Task]], Sequence[TaskResult]]
"""Runs tasks, as one job, and gives their results in the same order."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What a step did to one output.

    Attributes
    ----------
    output : str
        Name of the operator.
    lower, upper : Antichain
        The range that was computed.
    n_rows, n_files, n_tasks : int
    won : bool
        False if another copy of the dataflow was first.
    """

    output: str
    lower: Antichain
    upper: Antichain
    n_rows: int
    n_files: int
    n_tasks: int
    won: bool


class Engine:
    """Runs the outputs of a dataflow.

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
    evaluation : {"arrow", "sql"}
        What runs the outputs.
    keyed_bytes : int
        A piece of whole times with more is computed by key, where its operators allow that.
    run
        As of `Outputs`.

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
        files_of: Callable[[DeltaLog], Callable[[], Files]],
        limits: Limits | None = None,
        workers: int | None = None,
        twice: bool = False,
        evaluation: str = "arrow",
        keyed_bytes: int = KEYED_BYTES,
        run: str = "",
    ) -> None:
        self.name = name
        self._sinks = list(sinks)
        self._limits = limits or Limits()
        self._workers = workers
        self._twice = twice
        self._evaluation = evaluation
        self._keyed_bytes = keyed_bytes
        self._logs: dict[str, DeltaLog] = {sink.path: log for sink, log in open_outputs(sinks, storage).items()}
        leaves = {leaf.path: leaf for sink in sinks for leaf in leaves_of(sink.view)}
        for path in leaves:
            if path not in self._logs:
                self._logs[path] = open_log(path, storage_options=storage[path] or None)
        own = {sink.path for sink in sinks}
        self._inputs = list(leaves)
        self._own_inputs = [path for path in leaves if path in own]
        self._files = {path: files_of(self._logs[path]) for path in leaves}
        self._tracking = Tracking(name, sinks)
        self._from = Inputs(sinks, self._logs)
        self._outputs = Outputs(sinks, self._logs, run)
        self._states: dict[Sink, StreamState] = {}

    @property
    def failures(self) -> list[Exception]:
        """Why outputs stand still."""
        return list(self._outputs.failures.values())

    @property
    def untold(self) -> list[Exception]:
        """Those of the failures that could not be written into their output's log."""
        return self._outputs.untold

    @property
    def dropped(self) -> bool:
        """Whether somebody has dropped the dataflow from this run of the query."""
        return self._outputs.dropped

    @property
    def goes_on(self) -> bool:
        """Whether any output may move again by itself: it is not complete, and depends on none that stands still."""
        failed = self._outputs.failures
        return not self.dropped and any(
            not state.closed and sink not in failed and not any(spool in failed for spool in self._from.spools(sink))
            for sink, state in self._states.items()
        )

    def advance(self, run_tasks: RunTasks, /) -> list[Appended]:
        """Take steps until no output is ready.

        Parameters
        ----------
        run_tasks : callable
            Runs the tasks of a step as one job.

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
        """
        return advance_all([self], run_tasks)

    def steps(self, run_tasks: RunTasks, /) -> Iterator[list[Appended]]:
        """Take the steps of `advance` one by one; what failed is in `failures` afterwards."""
        self._outputs.begin()
        ready = self._ready(fresh=True)
        while ready:  # each step moves an upper, lets an output stand still, or learns that another copy was first
            yield self._step(ready, run_tasks)
            ready = self._ready(fresh=False)
        if not self.dropped:
            self._check_remade()

    def _ready(self, *, fresh: bool) -> list[Ready]:
        """Read uppers, then frontiers; return the outputs behind their views, each with how far it can go."""
        self._look(self._inputs if fresh else self._own_inputs)
        if self.dropped:
            return []
        found = []
        for sink, state in self._states.items():  # one turn per output
            if sink in self._outputs.failures:
                continue
            changed = self._from.changed(sink, newest_note(self._logs[sink.path], sink))
            if changed is not None:
                self._outputs.fail(sink, state, changed)
                continue
            upper = self._tracking.frontier(sink)
            if state.frontier.less_equal_frontier(upper):
                if upper != state.frontier:
                    found.append((sink, state, upper))
            elif fresh and not self._from.spools(sink):
                self._outputs.fail(sink, state, _gone_back(sink, state.frontier, upper))
        return found

    def _look(self, inputs: Sequence[str]) -> None:
        """Read the uppers, and after all of them the frontiers of logs that are read.

        What another copy wrote was made from no more than what is found so.
        """
        broken = self._refreshed({sink.path: None for sink in self._sinks})
        self._states = self._outputs.states(broken)
        broken = self._refreshed(inputs)
        frontiers = {path: self._logs[path].frontier() for path in self._inputs if path not in broken}
        uppers = {sink: state.frontier for sink, state in self._states.items()}
        refused = self._tracking.update(uppers, frontiers)
        for sink in self._sinks:  # one turn per output
            found: Exception | None = refused.get(sink)
            for leaf in leaves_of(sink.view):
                error = broken.get(leaf.path) or refused.get(leaf.path)
                if isinstance(error, LogMissingError):
                    error = self._missing(sink, leaf.path, error)
                found = found or error
            if found is not None:
                self._outputs.fail(sink, self._states.get(sink), found)

    def _refreshed(self, paths: Iterable[str]) -> dict[str, Exception]:
        """Take notice of what others did to logs; return those where that failed."""
        broken: dict[str, Exception] = {}
        for path in paths:  # one turn per log
            try:
                self._logs[path].refresh()
                self._logs[path].frontier()
            except TimelyError as error:
                broken[path] = error
        return broken

    def _missing(self, sink: Sink, path: str, error: Exception) -> Exception:
        """Return what is to be said of an input that is gone: another log may be in its place."""
        log = self._logs[path]
        try:
            found = open_log(path, storage_options=log.storage_options or None).log_id
        except TimelyError:
            return error
        return other_log(sink, path, found, log.log_id)

    def _check_remade(self) -> None:
        """Refuse outputs past what they capture, where that was made anew: after all has been made.

        An output of this dataflow that was removed is made again from its start; who reads it waits meanwhile.
        """
        if not self._past_what_they_read():
            return
        # Another copy may have been further than the inputs were when this one looked.
        self._look(self._inputs)
        for sink in self._past_what_they_read():
            state = self._states[sink]
            self._outputs.fail(sink, state, _gone_back(sink, state.frontier, self._tracking.frontier(sink)))

    def _past_what_they_read(self) -> list[Sink]:
        failed = self._outputs.failures
        return [
            sink
            for sink, state in self._states.items()
            if sink not in failed
            and not any(spool in failed for spool in self._from.spools(sink))
            and not state.frontier.less_equal_frontier(self._tracking.frontier(sink))
        ]

    def _step(self, ready: Sequence[Ready], run_tasks: RunTasks) -> list[Appended]:
        # As of the snapshots that files are taken from: an output that is read again may be looked at before the end.
        inputs = {sink: self._from.ids(sink) for sink, _, _ in ready}
        outputs: list[OutputPlan] = []
        tasks: list[Task] = []
        planned: list[Ready] = []
        for sink, state, upper in ready:  # one turn per output
            log = self._logs[sink.path]
            try:
                end, pieces = cut_range(
                    sink.view,
                    lambda leaf: self._files[leaf.path](),
                    state.frontier,
                    upper,
                    output=len(outputs),
                    seq=state.seq + 1,
                    limits=self._limits,
                    workers=self._workers,
                    # Spark cuts by itself what it runs.
                    whole=self._evaluation == "sql",
                    keyed_bytes=self._keyed_bytes,
                )
            except (TimelyError, pa.ArrowException, OSError) as error:
                self._outputs.fail(sink, state, error)
                continue
            outputs.append(
                OutputPlan(sink.name, sink.view, sink.stream, log.format, log.storage, self._twice, self._evaluation)
            )
            planned.append((sink, state, end))
            tasks += pieces
        found = self._run(outputs, tasks, run_tasks)
        done = []
        for (sink, state, end), mine in zip(planned, found, strict=True):
            if isinstance(mine, Exception):
                self._outputs.fail(sink, state, mine)
                continue
            files = [file for result in mine for file in result.files]
            failed = next((result.error for result in mine if result.error is not None), None)
            if failed is not None:
                self._logs[sink.path]._discard_refused(files)
                self._outputs.fail(sink, state, failed)
                continue
            won = self._append(sink, state, files, end, OutputNote(inputs[sink], self._told(mine)))
            if won is not None:
                n_rows = sum(file.n_rows for file in files)
                done.append(Appended(sink.name, state.frontier, end, n_rows, len(files), len(mine), won))
        return done

    def _append(
        self, sink: Sink, state: StreamState, files: Sequence[DataFile], upper: Antichain, note: OutputNote
    ) -> bool | None:
        return self._outputs.append(sink, state, files, upper, note)

    def _run(
        self, outputs: Sequence[OutputPlan], tasks: Sequence[Task], run_tasks: RunTasks
    ) -> list[list[TaskResult] | Exception]:
        """Run all tasks as one job; where that fails, those of each output as a job of their own."""
        found: list[list[TaskResult] | Exception] = [[] for _ in outputs]
        todo = [list(tasks)] if tasks else []
        while todo:  # one turn, and one more per output after a failure
            together = todo.pop()
            concerned = list({task.output: None for task in together})
            try:
                results = run_tasks(outputs, together)
            except Exception as error:
                if _is_cancelled(error):
                    raise
                if len(concerned) > 1:
                    _log.warning("a step of %d outputs failed, each is run apart: %s", len(concerned), error)
                    todo = [[task for task in together if task.output == number] for number in concerned]
                else:
                    found[concerned[0]] = error
                continue
            for task, result in zip(together, results, strict=True):  # one turn per task
                mine = found[task.output]
                assert isinstance(mine, list)
                mine.append(result)
        return found

    @staticmethod
    def _told(results: Sequence[TaskResult]) -> dict[str, object]:
        """Return what a step did, for the output's log: it tells where rows come and go, from any process."""
        rows: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for result in results:  # one turn per task
            for name, (n, size) in result.counts.items():  # one turn per operator
                rows[name] = rows.get(name, 0) + n
                sizes[name] = sizes.get(name, 0) + size
        times = [result.times for result in results]
        known = [part for part in times if part is not None]
        n_times = None
        if len(known) == len(times):
            n_times = unique_times(np.concatenate(known))[0].shape[0] if known else 0
        return {"tasks": len(results), "times": n_times, "rows": rows, "bytes": sizes}


def _gone_back(sink: Sink, upper: Antichain, frontier: Antichain) -> DataLossError:
    domain = sink.view.domain
    msg = (
        f"could not go on at operator {sink.name!r}: found its output at {domain.render_frontier(upper)}, "
        f"and what it captures at {domain.render_frontier(frontier)} only"
    )
    return DataLossError(
        msg,
        hint="an input was replaced or restored to an earlier state, the output was moved by hand, or the dataflow "
        "was changed: rows would be missed; capture into another log, or remove this output to make it anew",
        context={"path": sink.path},
    )


def advance_all(engines: Sequence[Engine], run_tasks: RunTasks, *, lives: bool = False) -> list[Appended]:
    """Advance several dataflows, a step of each in turn: a large one does not make the others wait for its end.

    Parameters
    ----------
    engines : sequence of Engine
    run_tasks : callable
        As for `Engine.advance`.
    lives : bool
        Whether the query shall live on as long as anything does not depend on what failed, and all failures are told
        in the outputs' logs.

    Raises
    ------
    OperatorError, DataLossError
        As `Engine.advance`: after all that does not depend on it is done.
    """
    done: list[Appended] = []
    broken: list[Exception] = []
    running = [(engine, engine.steps(run_tasks)) for engine in engines]
    while running:  # one turn per step of the dataflow that has most to do
        for each in list(running):
            try:
                done += next(each[1])
            except StopIteration:
                running.remove(each)
            except Exception as error:
                if _is_cancelled(error):
                    raise
                broken.append(error)
                running.remove(each)
    kept = [engine for engine in engines if not engine.dropped]
    failures = [*broken, *(error for engine in kept for error in engine.failures)]
    ends = broken or any(engine.untold for engine in kept) or not any(engine.goes_on for engine in kept)
    if failures and (ends or not lives):
        _raise_all(failures)
    return done


def _is_cancelled(error: Exception) -> bool:
    """Whether a job did not fail but was cancelled, as a query that is stopped does: nothing is to be tried again."""
    return _CANCELLED.search(str(error)) is not None


def _raise_all(failures: Sequence[Exception]) -> None:
    if failures:
        first, *others = failures
        for other in others:
            first.add_note(str(other))
        raise first
