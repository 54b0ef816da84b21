"""Run a dataflow: step by step, until nothing that is complete waits any more.

A step: read the uppers; propagate; see which outputs are ready; cut what waits for them into tasks; run all
tasks as one job; append each output's files, if its upper is still what it was. A restart is the same loop: there
is nothing to recover, and outputs at different uppers each go on from their own.

Invariants
----------
1. An output is written by comparing and appending at its upper. Who lost a race throws its files away, looks
   again, and goes on.
2. The driver sees names and statistics of files, never rows.
3. How far the inputs are is read once per `advance`: it comes to an end however fast they move.
4. An output that failed is left where it is; the others go on.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spark_timely.antichain import Antichain
from spark_timely.capture.replay import Limits
from spark_timely.dataflow.cutting import KEYED_BYTES, Files, cut_range
from spark_timely.dataflow.scope import Sink, open_outputs
from spark_timely.dataflow.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.tracking import Tracking
from spark_timely.dataflow.view import leaves_of
from spark_timely.errors import ClosedError, DataLossError, TimelyInternalError, UpperMismatchError
from spark_timely.log.delta import DeltaLog, open_log
from spark_timely.log.writer import StreamWriter
from spark_timely.order import unique_times

if TYPE_CHECKING:
    from spark_timely.log.base import DataFile, StreamState

__all__ = ["Appended", "Engine", "RunTasks", "advance_all"]

_log = logging.getLogger("spark_timely.dataflow")

# What Spark says of a job that was cancelled, classic and Connect. Other errors may have the word too: a column's name.
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled|OPERATION_CANCELED")

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
            If an input has gone back behind what was made from it.
        """
        return [done for step in self.steps(run_tasks) for done in step]

    def steps(self, run_tasks: RunTasks, /) -> Iterator[list[Appended]]:
        """Take the steps of `advance` one by one."""
        failed: dict[Sink, Exception] = {}
        ready = self._ready(failed, fresh=True)
        while ready:  # each step moves an upper, or learns that another copy did
            yield self._step(ready, failed, run_tasks)
            ready = self._ready(failed, fresh=False)
        _raise_all(list(failed.values()))

    def _ready(self, failed: dict[Sink, Exception], *, fresh: bool) -> list[tuple[Sink, StreamState, Antichain]]:
        """Read uppers, then frontiers; return the outputs behind their views, each with how far it can go."""
        for path in {sink.path: None for sink in self._sinks}:
            self._logs[path].refresh()
        states = {sink: self._state(sink) for sink in self._sinks}
        # After all uppers: what another copy wrote was made from no more than what is found now.
        for path in self._inputs if fresh else self._own_inputs:
            self._logs[path].refresh()
        frontiers = {path: self._logs[path].frontier() for path in self._inputs}
        self._tracking.update({sink: state.frontier for sink, state in states.items()}, frontiers)
        found = []
        for sink, state in states.items():  # one turn per output
            upper = self._tracking.frontier(sink)
            if state.frontier.less_equal_frontier(upper):
                if upper != state.frontier and sink not in failed:
                    found.append((sink, state, upper))
            elif fresh:
                failed[sink] = self._gone_back(sink, state.frontier, upper)
        return found

    def _gone_back(self, sink: Sink, upper: Antichain, frontier: Antichain) -> DataLossError:
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

    def _state(self, sink: Sink) -> StreamState:
        state = self._logs[sink.path].stream(sink.stream)
        if state is None:
            msg = f"output {sink.name!r} has no stream {sink.stream!r} in log {sink.path!r} any more"
            raise TimelyInternalError(msg)
        return state

    def _step(
        self,
        ready: Sequence[tuple[Sink, StreamState, Antichain]],
        failed: dict[Sink, Exception],
        run_tasks: RunTasks,
    ) -> list[Appended]:
        outputs, tasks, ends = [], [], []
        for number, (sink, state, upper) in enumerate(ready):  # one turn per output
            log = self._logs[sink.path]
            outputs.append(
                OutputPlan(sink.name, sink.view, sink.stream, log.format, log.storage, self._twice, self._evaluation)
            )
            end, pieces = cut_range(
                sink.view,
                lambda leaf: self._files[leaf.path](),
                state.frontier,
                upper,
                output=number,
                seq=state.seq + 1,
                limits=self._limits,
                workers=self._workers,
                # Spark cuts by itself what it runs.
                whole=self._evaluation == "sql",
                keyed_bytes=self._keyed_bytes,
            )
            ends.append(end)
            tasks += pieces
        found = self._run(outputs, tasks, run_tasks)
        done = []
        for (sink, state, _), end, mine in zip(ready, ends, found, strict=True):
            if isinstance(mine, Exception):
                failed[sink] = mine
                continue
            files = [file for result in mine for file in result.files]
            error = next((result.error for result in mine if result.error is not None), None)
            if error is not None:
                failed[sink] = error
                self._logs[sink.path]._discard_refused(files)
                continue
            won = self._append(sink, state, files, end, f"{sink.owner}: {sink.name} {json.dumps(self._told(mine))}")
            n_rows = sum(file.n_rows for file in files)
            done.append(Appended(sink.name, state.frontier, end, n_rows, len(files), len(mine), won))
        return done

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

    def _append(self, sink: Sink, state: StreamState, files: Sequence[DataFile], upper: Antichain, reason: str) -> bool:
        """Compare and append; return False if another copy was first."""
        writer = StreamWriter(self._logs[sink.path], sink.stream, sink.owner)
        try:
            writer.compare_and_append_files(files, expected=state, upper=upper, reason=reason)
        except (UpperMismatchError, ClosedError) as error:
            _log.info("output %r: another copy of the dataflow was first: %s", sink.name, error)
            return False
        return True


def advance_all(engines: Sequence[Engine], run_tasks: RunTasks) -> list[Appended]:
    """Advance several dataflows, a step of each in turn: a large one does not make the others wait for its end.

    Raises
    ------
    OperatorError, DataLossError
        As `Engine.advance`: after all that does not depend on it is done.
    """
    done: list[Appended] = []
    failures: list[Exception] = []
    running = [engine.steps(run_tasks) for engine in engines]
    while running:  # one turn per step of the dataflow that has most to do
        for steps in list(running):
            try:
                done += next(steps)
            except StopIteration:
                running.remove(steps)
            except Exception as error:
                if _is_cancelled(error):
                    raise
                failures.append(error)
                running.remove(steps)
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
