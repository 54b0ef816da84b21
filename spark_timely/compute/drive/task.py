"""A continual task as an instance runs it: the body, evaluated by whoever has Spark, and the engine of the task.

Its as_of is its own: it is recorded in the first commit of its output, which is made as soon as the task is hosted and
before any of its body runs. What the dataflow may forget later does not move it.

Invariants
----------
1. What is written has the fence of this start (`Sink.fence`), from before the first step on. An output that is there
   gets it although the body cannot be looked at, where there is no session: no older start appends any more.
2. What evaluates the body is asked for before each step, and not during one: a session that was lost is no failure of
   the body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from spark_timely.compute.as_of import stepped_back
from spark_timely.compute.drive.working import TaskRequest
from spark_timely.continual.body import SqlBody, check_aliases, check_columns
from spark_timely.continual.engine import MOST_BYTES, TaskEngine, check_roles, consumer_of
from spark_timely.dataflow.body import Body
from spark_timely.dataflow.engine.inputs import Inputs
from spark_timely.dataflow.engine.outputs import Outputs, check_plans, note_of
from spark_timely.dataflow.logs import Sink, check_outputs, existing_logs, open_logs
from spark_timely.dataflow.views import Replay
from spark_timely.errors import InvalidUsageError, LogMissingError, SinceViolationError, TimelyInternalError, shown
from spark_timely.log.log import open_log
from spark_timely.spark.base.beginnings import forgotten_until, readable_from, written_up_to
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.command import Dataflow
    from spark_timely.compute.drive.surroundings import Surroundings
    from spark_timely.compute.drive.working import ReadyTask
    from spark_timely.compute.plan import TaskNode
    from spark_timely.continual.plan import Bodies
    from spark_timely.dataflow.engine.arranged import RunTasks
    from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
    from spark_timely.log.log import Log
    from spark_timely.protocol.note import Fence
    from spark_timely.time.domain import TimeDomain

__all__ = ["TaskRunner", "beginning_of", "check_task", "recorded_beginning", "settled"]

_TRIES: Final = 6


class TaskRunner:
    """Runs a continual task: a `spark_timely.compute.drive.surroundings.Runner`.

    Parameters
    ----------
    dataflow : Dataflow
    node : TaskNode
    around : Surroundings
    logs : mapping of str to Log
        Imports, by name.
    written : mapping of str to str
        Path of the output's log, by its one export.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        node: TaskNode,
        around: Surroundings,
        logs: Mapping[str, Log],
        written: Mapping[str, str],
    ) -> None:
        self._dataflow, self._node, self._around, self._logs = dataflow, node, around, logs
        ((self._export, self._path),) = written.items()
        self.engine: TaskEngine | None = None
        self._ready: ReadyTask | None = None
        self._bodies: Bodies | None = None
        self._consumer = ""

    @property
    def consumer(self) -> str:
        """Name under which imports are retained."""
        return self._consumer

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all logs that the engine reads or writes."""
        return () if self._ready is None or self.engine is None else tuple(self._ready.storage)

    def check(self, fence: Fence, /) -> None:
        """Refuse a body that does not fit its imports, a time that is forgotten, and the output of another one."""
        self._check_beginning()
        self._ready = self._looked_up(fence)
        there = existing_logs([self._ready.sink], self._ready.storage, self._ready.logs)
        check_outputs([self._ready.sink], self._ready.storage, there)
        check_plans([self._ready.sink], there)
        check_roles(self._ready.plan, self._ready.sink, there)

    def _check_beginning(self) -> None:
        """Refuse to begin as of a time of which an import tells nothing, or another one than the dataflow says."""
        dataflow, domain = self._dataflow, self._dataflow.domain
        what, at = f"could not create dataflow {dataflow.name!r}", _begins_at(self._node, domain)
        wanted = None if at is None else domain.render_frontier(Antichain.of(at))
        for log in _awaited(self._node, self._logs):  # one turn per import
            since = readable_from([log], domain.minimum_frontier)
            if at is not None and not since.less_equal(at):
                shown_since = domain.render_frontier(since)
                msg = f"{what} as of {wanted}: found since={shown_since} in log {log.path!r}"
                hint = f"begin as of {shown_since} or later, or say as_of='earliest'"
                raise SinceViolationError(msg, hint=hint, as_of=wanted, since=shown_since, context={"path": log.path})
        output = self._existing()
        if output is not None and written_up_to(output) is not None:
            return  # it continues
        said = dataflow.as_of == Antichain.of(at) if at is not None else True
        if self._node.as_of == "earliest":
            said = dataflow.as_of.less_equal_frontier(_floor(self._node, self._logs, {}, domain))
        if not said:
            found = domain.render_frontier(dataflow.as_of)
            msg = f"{what}: found as_of={found} of a task that begins at {wanted or 'earliest'}"
            raise InvalidUsageError(msg, hint="say the same time in the task: its as_of is its own")

    def _existing(self) -> Log | None:
        try:
            return open_log(self._path, storage_options=self._around.place.options(self._path) or None)
        except LogMissingError:
            return None

    def _looked_up(self, fence: Fence) -> ReadyTask:
        """Have the body made ready."""
        around = self._around
        if around.task_bodies is None:
            msg = f"could not run continual task {self._dataflow.name!r}: found an instance without a session of Spark"
            raise InvalidUsageError(msg, hint="run the instance with spark_timely.ComputeInstance")
        options = around.place.options(self._path)
        ready = around.task_bodies(TaskRequest(self._name(fence), self._node, self._logs, self._path, options))
        return replace(ready, sink=replace(ready.sink, fence=fence))

    def begin(self, fence: Fence, /) -> dict[str, Log]:
        """Make the output's log, claim it for a start, and say in it how the task begins; return it."""
        around = self._around
        self._claim(fence)
        ready = self._ready = self._ready or self._looked_up(fence)
        sink = ready.sink
        logs = open_logs([sink], ready.storage, existing_logs([sink], ready.storage, ready.logs))
        output = logs[sink.path]
        self._consumer = consumer_of(sink, output.log_id)
        self.engine = TaskEngine(
            ready.plan,
            sink,
            logs,
            files_of=around.files_of,
            bodies=self._at_hand,
            run=fence.owner,
            tries=_TRIES,
            retain=around.retain,
        )
        self.engine.begin()
        if note_of(output.stream(sink.stream), sink).task is None:
            self.engine.step(_no_tasks)  # its first commit: the body does not run
        return {self._export: output}

    def _claim(self, fence: Fence) -> None:
        """Write the fence into an output that is there and this task's (invariant 1)."""
        log, name = self._existing(), self._name(fence)
        state = None if log is None else log.stream("main")
        if log is not None and state is not None and state.owner == f"task {name}":
            leaves = tuple(Replay(alias, each.domain, each.schema, (), each.path, each.kind)
                           for alias, each in self._logs.items())  # fmt: skip
            # What it gives of them is no part of the claim.
            sink = Sink(name, Body(name, log.domain, log.schema, leaves), log.path, "main", state.owner, fence=fence)
            logs = {each.path: each for each in (*self._logs.values(), log)}
            Outputs([sink], logs, Inputs([sink], logs), fence.owner).claim()

    def _name(self, fence: Fence) -> str:
        return f"{self._dataflow.name} of instance {fence.instance}"

    def _at_hand(self) -> Bodies:
        if self._bodies is None:
            msg = f"task {self._dataflow.name!r} runs outside of a step, invariant 2 of compute.drive.task"
            raise TimelyInternalError(msg)
        return self._bodies

    def step(self, run_tasks: RunTasks, max_bytes: int | None, /) -> bool:
        """Take a step, of one time or of several, if anything is ready; return whether there was.

        Several times read no more than this number of bytes of an input's files.
        """
        del run_tasks
        assert self.engine is not None
        assert self._ready is not None
        self._bodies = self._ready.bodies()
        self.engine.most_bytes = max_bytes or MOST_BYTES
        self.engine.begin()
        return self.engine.step(_no_tasks) is not None

    def behind(self, frontiers: Mapping[str, Antichain], upper: Antichain, /) -> list[str]:
        """Return the inputs that an output waits for; where all have passed it, the references.

        A reference holds back what is to be written alone. Once the inputs are beyond the upper there is something.
        """
        inputs = [name for name, how in self._node.reads if how in ("inserts", "deletes")]
        references = [name for name, how in self._node.reads if how == "contents"]
        for names in (inputs, references):
            found = [name for name in names if frontiers[name].less_equal_frontier(upper)]
            if found:
                return found
        return []

    def sizes(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return nothing: a log has no index."""
        return ()

    def end(self) -> None:
        """Let go of what is held beside the logs."""
        if self.engine is not None:
            self.engine.end()
        if self._ready is not None:
            self._ready.end()


def _no_tasks(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> Sequence[TaskResult]:
    """Run no task of operators: a continual task has none."""
    del plans, tasks
    msg = "a continual task was given tasks of operators"
    raise TimelyInternalError(msg)


def check_task(dataflow: Dataflow, node: TaskNode, logs: Mapping[str, Log], /) -> None:
    """Refuse a continual task that is wrong by what is said of it, whether or not there is Spark.

    Parameters
    ----------
    dataflow : Dataflow
    node : TaskNode
        The root of its plan.
    logs : mapping of str to Log
        Imports, by name.

    Raises
    ------
    InvalidUsageError
        If it exports anything but one log, is interactive, or has a body that is no SQL for a task.
    """
    attempt = f"create dataflow {dataflow.name!r}"
    what = f"could not {attempt}"
    kinds = [export.kind for export in dataflow.exports]
    if kinds != ["log"]:
        msg = f"{what}: found exports of kinds {shown(kinds)} of a continual task"
        raise InvalidUsageError(msg, hint="give it one export, a log; other dataflows import it")
    if dataflow.domain.arity != 1:
        msg = f"{what}: found times of {dataflow.domain.arity} coordinates for a continual task"
        raise InvalidUsageError(msg, hint="give logs whose times have one coordinate")
    inputs = [name for name, how in node.reads if how in ("inserts", "deletes")]
    references = [name for name, _ in node.reads if name not in inputs]
    check_aliases(dataflow.name, inputs, references)
    body = SqlBody.parse(node.sql, task=dataflow.name, inputs=inputs, references=references)
    check_columns(body.statements, {name: log.schema.names for name, log in logs.items()}, attempt=attempt)
    at = _begins_at(node, dataflow.domain)
    if at is not None and dataflow.domain.successor((at,)) is None:
        msg = f"{what}: found as_of={shown(node.as_of)}, after which there is no time"
        raise InvalidUsageError(msg, hint="begin at an earlier time: the task writes after it")
    unread = sorted(set(logs) - {name for name, _ in node.reads})
    if unread:
        msg = f"{what}: found import {unread[0]!r}, which its task does not read"
        raise InvalidUsageError(msg, hint="leave it out, or name it among the inputs or references")


def _begins_at(node: TaskNode, domain: TimeDomain) -> int | None:
    """Return the time at which a task is said to begin; None where the logs decide."""
    if node.as_of in ("earliest", "latest"):
        return None
    (at,) = domain.parse_time(node.as_of)
    return at


def recorded_beginning(log: Log, /) -> Antichain | None:
    """Return where the task that writes a log has recorded that it begins, as long as the log has not passed that.

    None where it has passed it, or nothing is recorded: a task that began before all times skips nothing.

    Parameters
    ----------
    log : Log
        Of the output.
    """
    state = log.stream("main")
    note = None if state is None or state.note.output is None else state.note.output.task
    if note is None or note.as_of is None or not log.frontier().less_equal(note.as_of):
        return None
    return Antichain.of(note.as_of)


def _awaited(node: TaskNode, logs: Mapping[str, Log]) -> list[Log]:
    return [logs[name] for name, how in node.reads if how != "newest"]


def _floor(
    node: TaskNode, logs: Mapping[str, Log], unwritten: Mapping[str, Antichain], domain: TimeDomain
) -> Antichain:
    """Return the least time as of which all logs that a task waits for can be read."""
    found = [unwritten[name] for name, how in node.reads if how != "newest" and name in unwritten]
    return reduce(Antichain.join, found, readable_from(_awaited(node, logs), domain.minimum_frontier))


def settled(
    node: TaskNode, logs: Mapping[str, Log], domain: TimeDomain, /, *, unwritten: Mapping[str, Antichain]
) -> TaskNode:
    """Return a task that says when it begins, as far as that is known by now and the logs do not say it.

    Parameters
    ----------
    node : TaskNode
    logs : mapping of str to Log
        Imports, by name.
    domain : TimeDomain
    unwritten : mapping of str to Antichain
        As_of of the dataflows that write imports which are empty yet, by the import's name: rule 1 of
        `spark_timely.compute.as_of`.

    Returns
    -------
    TaskNode
        One of ``latest`` begins at the last time that is complete by now. It stays as it is where no time is, or all
        are: the engine finds out.
    """
    if node.as_of not in ("earliest", "latest"):
        return node
    awaited, floor = _awaited(node, logs), _floor(node, logs, unwritten, domain)
    complete = reduce(Antichain.meet, (log.frontier() for log in awaited))
    if node.as_of == "latest" and not complete.is_empty and not complete.less_equal(domain.minimum):
        floor = floor.join(stepped_back(complete, domain))
    elif floor == reduce(Antichain.join, filter(None, map(forgotten_until, awaited)), domain.minimum_frontier):
        return node
    begins: Any = domain.time_to_json(floor.elements[0])
    return replace(node, as_of=begins)


def beginning_of(node: TaskNode, logs: Mapping[str, Log], output: Log | None, domain: TimeDomain, /) -> Antichain:
    """Return from when on the output of a task is right, by what is known before it begins: its dataflow's as_of.

    Parameters
    ----------
    node : TaskNode
        As `settled` gave it.
    logs : mapping of str to Log
        Imports, by name.
    output : Log or None
        None where it is not there yet.
    domain : TimeDomain

    Returns
    -------
    Antichain
        What was recorded, as long as the output has not passed it (rule 2 of `spark_timely.compute.as_of`); then the
        time before its upper. Of a task that has not begun, the time that it is to begin at.
    """
    recorded = None if output is None else recorded_beginning(output)
    if recorded is not None:
        return recorded
    upper = None if output is None else written_up_to(output)
    if upper is not None:
        return domain.minimum_frontier if upper.is_empty else stepped_back(upper, domain)
    at = _begins_at(node, domain)
    return _floor(node, logs, {}, domain) if at is None else Antichain.of(at)
