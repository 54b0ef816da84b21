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
4. An output whose function failed is left where it is; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_timely.antichain import Antichain
from spark_timely.capture.replay import Limits
from spark_timely.dataflow.cutting import Files, cut_range
from spark_timely.dataflow.scope import Sink, open_output
from spark_timely.dataflow.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.tracking import Tracking
from spark_timely.dataflow.views import leaves_of
from spark_timely.errors import ClosedError, OperatorError, TimelyInternalError, UpperMismatchError
from spark_timely.log.delta import DeltaLog, open_log
from spark_timely.log.writer import StreamWriter

if TYPE_CHECKING:
    from spark_timely.log.base import DataFile, StreamState

__all__ = ["Appended", "Engine", "RunTasks"]

_log = logging.getLogger("spark_timely.dataflow")

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
    ) -> None:
        self._sinks = list(sinks)
        self._limits = limits or Limits()
        self._workers = workers
        self._logs: dict[str, DeltaLog] = {}
        for sink in sinks:  # one turn per output
            opened = open_output(sink, storage[sink.path])
            self._logs.setdefault(sink.path, opened).refresh()
        leaves = {leaf.path: leaf for sink in sinks for leaf in leaves_of(sink.view)}
        for path in leaves:
            if path not in self._logs:
                self._logs[path] = open_log(path, storage_options=storage[path] or None)
        own = {sink.path for sink in sinks}
        self._inputs = list(leaves)
        self._outside = [path for path in leaves if path not in own]
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
        """
        done: list[Appended] = []
        failed: dict[Sink, OperatorError] = {}
        fresh = True
        while True:  # each step moves an upper, or learns that another copy did
            ready = self._ready(failed, look_outside=fresh)
            fresh = False
            if not ready:
                break
            done += self._step(ready, failed, run_tasks)
        if failed:
            first, *others = failed.values()
            for other in others:
                first.add_note(str(other))
            raise first
        return done

    def _ready(
        self, failed: Mapping[Sink, OperatorError], *, look_outside: bool
    ) -> list[tuple[Sink, StreamState, Antichain]]:
        """Read uppers, then frontiers; return the outputs behind their views, each with how far it can go."""
        for path in {sink.path for sink in self._sinks}:
            self._logs[path].refresh()
        states = {sink: self._state(sink) for sink in self._sinks}
        if look_outside:
            for path in self._outside:
                self._logs[path].refresh()
        frontiers = {path: self._logs[path].frontier() for path in self._inputs}
        self._tracking.update({sink: state.frontier for sink, state in states.items()}, frontiers)
        found = []
        for sink, state in states.items():  # one turn per output
            # In a product order the two may be incomparable: what is not beyond the join is not beyond the view's.
            upper = state.frontier.join(self._tracking.frontier(sink))
            if upper != state.frontier and sink not in failed:
                found.append((sink, state, upper))
        return found

    def _state(self, sink: Sink) -> StreamState:
        state = self._logs[sink.path].stream(sink.stream)
        if state is None:
            msg = f"output {sink.name!r} has no stream {sink.stream!r} in log {sink.path!r} any more"
            raise TimelyInternalError(msg)
        return state

    def _step(
        self,
        ready: Sequence[tuple[Sink, StreamState, Antichain]],
        failed: dict[Sink, OperatorError],
        run_tasks: RunTasks,
    ) -> list[Appended]:
        outputs, tasks, ends = [], [], []
        for number, (sink, state, upper) in enumerate(ready):  # one turn per output
            log = self._logs[sink.path]
            outputs.append(OutputPlan(sink.name, sink.view, sink.stream, log.format, log.storage))
            end, pieces = cut_range(
                sink.view,
                lambda leaf: self._files[leaf.path](),
                state.frontier,
                upper,
                output=number,
                seq=state.seq + 1,
                limits=self._limits,
                workers=self._workers,
            )
            ends.append(end)
            tasks += pieces
        results = run_tasks(outputs, tasks) if tasks else []
        found: list[list[TaskResult]] = [[] for _ in ready]
        for task, result in zip(tasks, results, strict=True):  # one turn per task
            found[task.output].append(result)
        done = []
        for (sink, state, _), end, mine in zip(ready, ends, found, strict=True):
            files = [file for result in mine for file in result.files]
            error = next((result.error for result in mine if result.error is not None), None)
            if error is not None:
                failed[sink] = error
                self._logs[sink.path]._discard_refused(files)
                continue
            won = self._append(sink, state, files, end)
            n_rows = sum(file.n_rows for file in files)
            done.append(Appended(sink.name, state.frontier, end, n_rows, len(files), len(mine), won))
        return done

    def _append(self, sink: Sink, state: StreamState, files: Sequence[DataFile], upper: Antichain) -> bool:
        """Compare and append; return False if another copy was first."""
        writer = StreamWriter(self._logs[sink.path], sink.stream, sink.owner)
        try:
            writer.compare_and_append_files(files, expected=state, upper=upper, reason=sink.name)
        except (UpperMismatchError, ClosedError) as error:
            _log.info("output %r: another copy of the dataflow was first: %s", sink.name, error)
            return False
        return True
