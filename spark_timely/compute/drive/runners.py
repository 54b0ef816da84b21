"""Runners of dataflows: each reads one dataflow's imports, writes its exports, and knows their progress.

The worker (`spark_timely.compute.drive.worker`) has a runner for each dataflow that runs, and lets it take steps.

Exports that keep rows have a log each: an index in the instance's directory, a log where somebody wants it, and for a
subscribe or a copy-to of a plan with operators a log that ends with it. A subscribe or copy-to of an import as it is
needs none: the import's log has all that it wants. The exports are written by operators, or by a continual task.

When a continual task begins is decided in `spark_timely.compute.drive.task_beginnings`.

Invariants
----------
1. What is written has the fence of this start (`Sink.fence`), from before the first step on. An output of a task that
   is there gets it also where no session of Spark can look at the body: no older start appends any more.
2. An import is the log of the id that the command names, or the dataflow does not run.
3. One thread at a time takes steps.
4. What calls a function of Python ends with this process: no command that lasts has its name.
5. What evaluates the body of a task is asked for before each step, and not during one: a session that was lost is no
   failure of the body.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_timely.compute.drive.directory import details_of
from spark_timely.compute.drive.plans import as_collection, build
from spark_timely.compute.drive.runtime import TaskRequest
from spark_timely.compute.drive.task_beginnings import awaited, begins_at, floor_of
from spark_timely.compute.plan import Imported, Node, Plan, SqlTask, functions_of, is_task, parse_plan
from spark_timely.continual.body import SqlBody, check_aliases, check_columns
from spark_timely.continual.engine import MOST_BYTES, TaskEngine, check_roles, consumer_of
from spark_timely.dataflow.body import Body
from spark_timely.dataflow.engine.arrangements import Arrangements, Indexing
from spark_timely.dataflow.engine.cutting import SHUFFLE_BYTES
from spark_timely.dataflow.engine.inputs import Inputs, note_of
from spark_timely.dataflow.engine.outputs import Outputs, check_plans
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.logs import Sink, check_outputs, existing_logs, open_logs
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import Replay, View
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogMissingError,
    OwnershipError,
    SchemaMismatchError,
    SinceViolationError,
    StorageError,
    TimelyInternalError,
    shown,
)
from spark_timely.log.machine.since import may_read
from spark_timely.protocol.replay import Limits
from spark_timely.spark.base.beginnings import readable_from, written_up_to
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.command import Dataflow, Export
    from spark_timely.compute.drive.runtime import ReadyTask
    from spark_timely.compute.drive.state import State
    from spark_timely.compute.instance import Running
    from spark_timely.continual.plan import Evaluator
    from spark_timely.dataflow.engine.arrangements import RunTasks
    from spark_timely.log.log import Log
    from spark_timely.protocol.note import Fence

__all__ = ["Runner", "operators_of", "passed_import", "runner_of"]

_STEP_BYTES: Final = 512 << 20
_TRIES: Final = 6


def runner_of(running: Running, state: State, exports: Mapping[str, Export], /) -> Runner:
    """Return what runs a dataflow.

    Parameters
    ----------
    running : Running
    state : State
    exports : mapping of str to Export
        Of the instance, by id: what the dataflow may import.
    """
    plan = parse_plan(running.dataflow.plan)
    made = _TaskRunner if isinstance(plan.root.operator, SqlTask) else _OperatorRunner
    return made(running, plan, state, exports)


class Runner(ABC):
    """Runs one dataflow of an instance, while it is there. Made by `runner_of`.

    `check_times` and `check`, then `begin`, then `step` as often as there is something to do, then `end`; the checks
    may be left out.

    Attributes
    ----------
    sources : dict of str to str
        Path of the log of each import, by name.
    logs, outputs : dict of str to Log
        Of the imports, by name; of the outputs that are there, by export.
    engine : Engine or TaskEngine or None
        What takes its steps; None before it begins, and of one that has nothing to write.
    consumer : str or None
        Name under which imports are retained for it; None of one without an engine.
    paths : tuple of str
        Of all logs that the engine reads or writes.
    """

    engine: Engine | TaskEngine | None = None
    consumer: str | None = None
    paths: tuple[str, ...] = ()

    def __init__(self, running: Running, plan: Plan, state: State, exports: Mapping[str, Export]) -> None:
        self.number, self.dataflow, self.plan, self._state = running.number, running.dataflow, plan, state
        directory, attempt = state.directory, f"could not run dataflow {self.dataflow.name!r}"
        self.sources = {each.name: directory.source_of(each, exports) for each in self.dataflow.imports}
        self.logs: dict[str, Log] = {}
        self.outputs: dict[str, Log] = {}
        for each in self.dataflow.imports:
            path = self.sources[each.name]
            try:
                log = directory.open_log(path)
            except StorageError:
                if state.fence is None and self.passes_on is None:
                    continue  # a follower reads outputs alone, and may have no credentials of imports
                raise
            said = {"path": path, "import": each.name}
            if each.log_id is not None and log.core.log_id != each.log_id:
                msg = f"{attempt}: found log {log.core.log_id!r} at {path!r}, expected {each.log_id!r}"
                hint = "put the log back that was there, or drop the dataflow and create another one"
                raise DataLossError(msg, hint=hint, context=said)
            if each.export is not None and state.is_of_another(log, each.export):
                msg = f"{attempt}: found a log in {path!r} that the dataflow of {each.export!r} has not written"
                raise DataLossError(msg, hint=f"put the folder of {each.export!r} back", context=said)
            self.logs[each.name] = log

    # What it is ----------------------------------------------------------------------------------

    @property
    def passes_on(self) -> str | None:
        """The import that the plan hands through as it is; None if it has operators."""
        root = self.plan.root.operator
        return root.name if isinstance(root, Imported) else None

    def path_of(self, export: Export) -> str:
        """Return the path of the log that has what an export gives."""
        if export.kind in ("subscribe", "copy-to") and self.passes_on is not None:
            return self.sources[self.passes_on]
        path = self._state.directory.path_of(export)
        if path is None:
            msg = f"could not run dataflow {self.dataflow.name!r}: found no place for export {export.id!r}"
            raise InvalidUsageError(msg, hint="name a path for the log, or a folder of the instance")
        return path

    @property
    def written(self) -> tuple[Export, ...]:
        """Exports that the engine writes."""
        return tuple(each for each in self.dataflow.exports if each.kind in ("index", "log") or self.passes_on is None)

    @property
    def upper_of_imports(self) -> dict[str, Antichain]:
        """The uppers of the imports, as of the last look."""
        return {name: log.frontier() for name, log in self.logs.items()}

    def behind(self, upper: Antichain, /) -> dict[str, Antichain]:
        """Return the imports that an output at `upper` waits for, with how far they are."""
        frontiers = self.upper_of_imports
        return {name: frontier for name, frontier in frontiers.items() if frontier.less_equal_frontier(upper)}

    # Checks --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a dataflow that cannot run as things are, before anything is made.

        Raises
        ------
        TimelyError
            If the plan does not fit its imports, or an output that is there is another's, or of another plan.
        """
        if self._state.fence is not None and self.written:
            self._check(self._state.fence)

    @abstractmethod
    def _check(self, fence: Fence) -> None:
        """Refuse what cannot run."""

    def check_times(self) -> None:
        """Refuse a dataflow whose times are not those of its imports, or that its engine cannot begin or end at.

        And one whose plan does not go with what it exports, or with how long it lasts.

        Raises
        ------
        InvalidUsageError
        """
        dataflow, domain = self.dataflow, self.dataflow.domain
        what = f"could not create dataflow {dataflow.name!r}"
        called = functions_of(self.plan)
        if called and dataflow.lasts:  # invariant 4
            msg = f"{what}: found Python function {called[0]!r}, which is not restartable"
            raise InvalidUsageError(msg, hint="create it as interactive, or say it in SQL")
        for name, log in self.logs.items():
            if log.domain.types != domain.types:
                msg = f"{what}: found times of types {domain.types}, import {name!r} has {log.domain.types}"
                raise InvalidUsageError(msg, hint="describe it with the domain of its imports")
        self._check_own(what)
        if domain.arity > 1 and not dataflow.until.is_empty:
            msg = f"{what}: found up_to={dataflow.until!r}"
            raise InvalidUsageError(msg, hint="times of several coordinates have no such end: leave it out")
        if domain.arity > 1 and self.written and dataflow.as_of != domain.minimum_frontier:
            msg = f"{what}: found as_of={dataflow.as_of!r}"
            hint = f"begin times of several coordinates at their minimum: as_of={domain.minimum}"
            raise InvalidUsageError(msg, hint=hint)
        kept = [export.id for export in dataflow.exports if export.kind in ("index", "log")]
        if kept and not dataflow.until.is_empty:
            msg = f"{what}: found up_to={dataflow.until!r} for export {kept[0]!r}"
            raise InvalidUsageError(msg, hint="an index or log ends with its imports: subscribe for an end of its own")

    @abstractmethod
    def _check_own(self, what: str) -> None:
        """Refuse what only such a dataflow can be wrong in."""

    # Running -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the logs of the outputs, claim them for this start, and make the engine ready.

        Raises
        ------
        TimelyError
            If the plan does not fit its imports, or an output is another's.
        """
        if self.engine is not None or not self.written:
            return
        fence = self._state.fence
        if fence is None:
            msg = f"could not run dataflow {self.dataflow.name!r}: found an instance that may not write"
            raise OwnershipError(msg, hint="allow writes first")
        self.outputs = self._begin(fence)

    @abstractmethod
    def _begin(self, fence: Fence) -> dict[str, Log]:
        """Make outputs and engine, and return the logs of the outputs."""

    def open_outputs(self, *, far: bool = True) -> bool:
        """Open the logs of outputs that are there by now; return whether there were any, or there is news of one.

        Parameters
        ----------
        far : bool
            Whether to look also where a look is a request.
        """
        news = False
        for export in self.written:
            if export.id in self.outputs:
                log = self.outputs[export.id]
                news = news or (log.core.has_news() if log.core.storage.local else far)
                continue
            path = self.path_of(export)
            if not far and not self._state.directory.is_local(path):
                continue
            try:
                self.outputs[export.id] = self._state.directory.open_log(path)
            except LogMissingError:
                continue
            news = True
        return news

    @property
    def has_taken_over(self) -> bool:
        """Whether its outputs have passed the as_of, and what it reads is retained by its engine from now on.

        As of the last look. Where the engine cannot retain an import, or is not to, nothing better comes.
        """
        engine, as_of = self.engine, self.dataflow.as_of
        uppers = [log.frontier() for log in self.outputs.values()]
        if engine is None or not all(upper.is_empty or as_of.less_than_frontier(upper) for upper in uppers):
            return False
        if self._state.runtime.retain is None or all(upper.is_empty for upper in uppers):
            return True
        return all(log.path in engine.unretained or self.consumer in log.retainers() for log in self.logs.values())

    def look(self) -> None:
        """Take notice of what imports have become."""
        _bring_up(self.logs)

    def uppers(self) -> dict[str, Antichain]:
        """Return how far the outputs are, as of a look now, by export."""
        _bring_up(self.outputs)
        return {id_: log.frontier() for id_, log in self.outputs.items()}

    @abstractmethod
    def step(self, run_tasks: RunTasks, max_bytes: int | None = None) -> bool:
        """Take a step if anything is ready, of this number of bytes of an output's imports; return whether there was.

        What fails is in `failures`, and is tried again as long as it may pass.
        """

    @property
    def failures(self) -> list[Exception]:
        """The failures of outputs that stand, as of the newest look."""
        return [] if self.engine is None else list(self.engine.failures)

    @property
    def has_failed(self) -> bool:
        """Whether all outputs stand, as far as is known: the only one, or as many as there are."""
        return len(self.failures) >= len(self.written) if len(self.written) > 1 else bool(self.failures)

    def sizes(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return (export, records, runs, bytes) of each index."""
        return ()

    def release(self) -> None:
        """Let imports forget what is not read any more: it was dropped, and has ended.

        Raises
        ------
        TimelyError
            If one cannot be written. It forgets later: what is retained expires.
        """
        self._state.runtime.functions.forget(functions_of(self.plan))
        outputs, consumer = self.outputs.values(), self.consumer
        if consumer is None:
            return
        for log in (*self.logs.values(), *outputs):
            if self._state.directory.has(log.path) and log in outputs:
                continue  # it is deleted
            log.refresh()
            if consumer in log.retainers():
                log.release(consumer)

    def end(self) -> None:
        """Let go of what is held beside the logs."""
        if self.engine is not None:
            self.engine.end()


class _OperatorRunner(Runner):
    """Runs the operators of a plan, and brings the indexes of its exports up to date."""

    engine: Engine | None = None

    def __init__(self, running: Running, plan: Plan, state: State, exports: Mapping[str, Export]) -> None:
        super().__init__(running, plan, state, exports)
        # What was made and opened to check it, for the engine.
        self._checked: tuple[Scope, dict[str, Log]] | None = None
        self._arranged: dict[str, tuple[Arrangements, Look, Replay]] = {}

    def _check_own(self, what: str) -> None:
        """Refuse an as_of of which an import tells nothing any more."""
        del what
        dataflow, domain = self.dataflow, self.dataflow.domain
        for log in self.logs.values() if domain.arity == 1 else ():
            since = readable_from([log], domain.minimum_frontier)
            if not may_read(since, dataflow.as_of):
                raise passed_import(dataflow, log.path, domain.render_frontier(since))

    def _check(self, fence: Fence) -> None:
        scope, there = self._checked = self._looked_up(fence)
        check_outputs(scope.sinks, scope.storage, there)

    def _begin(self, fence: Fence) -> dict[str, Log]:
        runtime = self._state.runtime
        (scope, there), self._checked = self._checked or self._looked_up(fence), None
        engine = self.engine = Engine(
            scope.name,
            scope.sinks,
            scope.storage,
            files_of=runtime.files_of,
            run=fence.owner,
            tries=_TRIES,
            retain=runtime.retain,
            shuffle_bytes=runtime.keyed_bytes() or SHUFFLE_BYTES,
            opened=there,
        )
        self.consumer, self.paths = engine.consumer, engine.paths
        found = {export.id: engine.log_at(self.path_of(export)) for export in self.written}
        for export in self.written:
            log, key = found[export.id], details_of(export).get("key")
            if export.kind == "index" and key:
                assert isinstance(key, list)
                look = Look(log.path, tuple(str(name) for name in key), tuple(log.schema.names))
                leaf = Replay(export.id, log.domain, log.schema, (), log.path, log.kind)
                made = Arrangements({log.path: log}, {log.path: runtime.files_of(log)}, Indexing())
                self._arranged[export.id] = made, look, leaf
        return found

    def _looked_up(self, fence: Fence) -> tuple[Scope, dict[str, Log]]:
        """Return the operators, and the logs that are there by now; refuse outputs of others."""
        scope = self._scope(fence)
        there = existing_logs(scope.sinks, scope.storage, {log.path: log for log in self.logs.values()})
        check_plans(scope.sinks, there)
        return scope, there

    def _scope(self, fence: Fence) -> Scope:
        """Return the operators and outputs."""
        dataflow, state = self.dataflow, self._state
        scope = Scope(f"{dataflow.name} of instance {fence.instance}")
        streams = {name: scope.replay(log) for name, log in self.logs.items()}
        built = build(self.plan, scope, streams, functions=state.runtime.functions.known)
        for export in self.written:
            stream = built if export.kind == "log" else as_collection(built)
            key = details_of(export).get("key") or ()
            assert isinstance(key, list | tuple)
            missing = [name for name in key if name not in stream.schema.names]
            if missing:
                msg = f"could not run dataflow {dataflow.name!r}: found no column {shown(missing[0])} to index by"
                raise SchemaMismatchError(msg, hint=f"choose among its columns: {shown(list(stream.schema.names))}")
            path = self.path_of(export)
            stream.capture(path, storage_options=state.directory.options(path) or None)
        # Of times of several coordinates it is the minimum.
        begins = dataflow.as_of.elements[0][0] if dataflow.domain.arity == 1 else None
        scope.sinks = [replace(sink, fence=fence, as_of=begins) for sink in scope.sinks]
        return scope

    def step(self, run_tasks: RunTasks, max_bytes: int | None = None) -> bool:
        assert self.engine is not None
        self.engine.limits = Limits(size_bytes=max_bytes or _STEP_BYTES)
        self.engine.run_tasks = run_tasks
        self.engine.begin()
        done = self.engine.step()
        for arranged, look, leaf in self._arranged.values():
            log = self.engine.log_at(leaf.path)
            log.refresh()
            arranged.before(look, leaf, log.domain.minimum_frontier, log.frontier(), run_tasks)
            arranged.begin_waiting()
        return done is not None

    def sizes(self) -> tuple[tuple[str, int, int, int], ...]:
        found = []
        for id_, (arranged, look, leaf) in self._arranged.items():
            rows, size = arranged.size_of(look, leaf)
            found.append((id_, rows, 1 if rows else 0, size))
        return tuple(found)

    def end(self) -> None:
        for arranged, _, _ in self._arranged.values():
            arranged.end()
        super().end()


class _TaskRunner(Runner):
    """Runs a continual task, whose body a session of Spark evaluates."""

    engine: TaskEngine | None = None
    _ready: ReadyTask | None = None
    _evaluator: Evaluator | None = None

    @property
    def _node(self) -> SqlTask:
        assert isinstance(self.plan.root.operator, SqlTask)
        return self.plan.root.operator

    @property
    def _path(self) -> str:
        """Path of the output's log."""
        return self.path_of(self.dataflow.exports[0])

    def _check_own(self, what: str) -> None:
        """Refuse a task that is wrong by what is said of it, whether or not there is Spark."""
        dataflow, node = self.dataflow, self._node
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
        columns = {name: log.schema.names for name, log in self.logs.items()}
        check_columns(body.statements, columns, attempt=f"create dataflow {dataflow.name!r}")
        at = begins_at(node, dataflow.domain)
        if at is not None and dataflow.domain.successor((at,)) is None:
            msg = f"{what}: found as_of={shown(node.as_of)}, after which there is no time"
            raise InvalidUsageError(msg, hint="begin at an earlier time: the task writes after it")
        unread = sorted(set(self.logs) - {name for name, _ in node.reads})
        if unread:
            msg = f"{what}: found import {unread[0]!r}, which its task does not read"
            raise InvalidUsageError(msg, hint="leave it out, or name it among the inputs or references")

    def _check(self, fence: Fence) -> None:
        self._check_beginning()
        ready = self._ready = self._looked_up(fence)
        there = existing_logs([ready.sink], ready.storage, ready.logs)
        check_outputs([ready.sink], ready.storage, there)
        check_plans([ready.sink], there)
        check_roles(ready.plan, ready.sink, there)

    def _check_beginning(self) -> None:
        """Refuse to begin as of a time of which an import tells nothing, or another one than the dataflow says."""
        dataflow, domain, node = self.dataflow, self.dataflow.domain, self._node
        what, at = f"could not create dataflow {dataflow.name!r}", begins_at(node, domain)
        wanted = None if at is None else domain.render_frontier(Antichain.of(at))
        for log in awaited(node, self.logs):
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
        if node.as_of == "earliest":
            said = dataflow.as_of.less_equal_frontier(floor_of(node, self.logs, {}, domain))
        if not said:
            found = domain.render_frontier(dataflow.as_of)
            msg = f"{what}: found as_of={found} of a task that begins at {wanted or 'earliest'}"
            raise InvalidUsageError(msg, hint="say the same time in the task: its as_of is its own")

    def _existing(self) -> Log | None:
        try:
            return self._state.directory.open_log(self._path)
        except LogMissingError:
            return None

    def _looked_up(self, fence: Fence) -> ReadyTask:
        """Have the body made ready."""
        path, task_bodies = self._path, self._state.runtime.task_bodies
        if task_bodies is None:
            msg = f"could not run continual task {self.dataflow.name!r}: found an instance without a session of Spark"
            raise InvalidUsageError(msg, hint="run the instance with spark_timely.ComputeInstance")
        options = self._state.directory.options(path)
        ready = task_bodies(TaskRequest(self._name(fence), self._node, self.logs, path, options))
        return replace(ready, sink=replace(ready.sink, fence=fence))

    def _begin(self, fence: Fence) -> dict[str, Log]:
        """Make the output's log, claim it for a start, and say in it how the task begins; return it."""
        runtime = self._state.runtime
        self._claim(fence)
        ready = self._ready = self._ready or self._looked_up(fence)
        sink = ready.sink
        logs = open_logs([sink], ready.storage, existing_logs([sink], ready.storage, ready.logs))
        output = logs[sink.path]
        self.consumer, self.paths = consumer_of(sink, output.core.log_id), tuple(ready.storage)
        self.engine = TaskEngine(
            ready.plan,
            sink,
            logs,
            files_of=runtime.files_of,
            evaluator=self._at_hand,
            run=fence.owner,
            tries=_TRIES,
            retain=runtime.retain,
        )
        self.engine.begin()
        if note_of(output.core.stream(sink.stream), sink).task is None:
            self.engine.step()  # its first commit: the body does not run
        return {self.dataflow.exports[0].id: output}

    def _claim(self, fence: Fence) -> None:
        """Write the fence into an output that is there and this task's (invariant 1)."""
        log, name = self._existing(), self._name(fence)
        state = None if log is None else log.core.stream("main")
        if log is not None and state is not None and state.owner == f"task {name}":
            leaves = tuple(Replay(alias, each.domain, each.schema, (), each.path, each.kind)
                           for alias, each in self.logs.items())  # fmt: skip
            # What it gives of them is no part of the claim.
            sink = Sink(
                name,
                View(name, log.domain, log.schema, leaves, operator=Body()),
                log.path,
                "main",
                state.owner,
                fence=fence,
            )
            logs = {each.path: each for each in (*self.logs.values(), log)}
            Outputs([sink], logs, Inputs([sink], logs), fence.owner).claim()

    def _name(self, fence: Fence) -> str:
        return f"{self.dataflow.name} of instance {fence.instance}"

    def _at_hand(self) -> Evaluator:
        if self._evaluator is None:
            msg = f"task {self.dataflow.name!r} runs outside of a step, invariant 5 of compute.drive.runners"
            raise TimelyInternalError(msg)
        return self._evaluator

    def step(self, run_tasks: RunTasks, max_bytes: int | None = None) -> bool:
        """Take a step, of one time or of several, if anything is ready; return whether there was.

        Several times read no more than this number of bytes of an input's files.
        """
        del run_tasks
        assert self.engine is not None
        assert self._ready is not None
        self._evaluator = self._ready.evaluator()
        self.engine.most_bytes = max_bytes or MOST_BYTES
        self.engine.begin()
        return self.engine.step() is not None

    def behind(self, upper: Antichain, /) -> dict[str, Antichain]:
        """Return the inputs that an output waits for; where all have passed it, the references.

        A reference holds back what is to be written alone. Once the inputs are beyond the upper there is something.
        """
        found = super().behind(upper)
        if self.engine is None:
            return found
        for kinds in (("inserts", "deletes"), ("contents",)):
            waits = {name: found[name] for name, how in self._node.reads if how in kinds and name in found}
            if waits:
                return waits
        return {}

    def end(self) -> None:
        super().end()
        if self._ready is not None:
            self._ready.end()


def _bring_up(logs: Mapping[str, Log]) -> None:
    """Bring handles up to date."""
    for log in logs.values():
        if not log.core.storage.local or log.core.has_news():
            log.refresh()


def passed_import(dataflow: Dataflow, path: str, since: str, /) -> SinceViolationError:
    """Return the error for a dataflow that is to begin as of a time of which an import tells nothing any more.

    Parameters
    ----------
    dataflow : Dataflow
    path, since : str
        Of the import's log; its since as people read it.
    """
    as_of = dataflow.domain.render_frontier(dataflow.as_of)
    otherwise = "say as_of='earliest'" if is_task(dataflow.plan) else "leave as_of out"
    return SinceViolationError(
        f"could not create dataflow {dataflow.name!r} as of {as_of}: found since={since} in log {path!r}",
        hint=f"begin as of {since} or later, or {otherwise}",
        as_of=as_of,
        since=since,
        context={"path": path},
    )


def operators_of(plan: Plan) -> tuple[tuple[str, str, str], ...]:
    """Return (operator, kind, operators that it reads) of a plan, what is read before what reads it."""
    found: list[tuple[str, str, str]] = []

    def add(node: Node) -> str:
        below = [add(each) for each in node.inputs]
        operator = node.operator
        name = operator.name if isinstance(operator, Imported) else f"{operator.op}_{len(found) + 1}"
        if isinstance(operator, Imported) and any(name == other for other, _, _ in found):
            return name
        found.append((name, operator.op, ",".join(below)))
        return name

    add(plan.root)
    return tuple(found)
