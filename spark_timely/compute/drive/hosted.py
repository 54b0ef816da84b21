"""A dataflow that an instance runs: what it reads, what writes its exports, and how far these are.

Exports that keep rows have a log each: an index in the instance's directory, a log where somebody wants it, and for a
subscribe or a copy-to of a plan with operators a log that ends with it. A `Runner` writes them: operators, or a
continual task. A subscribe or copy-to of an import as it is needs none: the import's log has all that it wants.

Invariants
----------
1. What is written has the fence of this start (`Sink.fence`), from before the first step on.
2. An import is the log of the id that the command names, or the dataflow does not run.
3. One thread at a time takes steps.
4. What calls a function of Python ends with this process: no command that lasts has its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_timely.compute.drive.operators import OperatorRunner
from spark_timely.compute.drive.surroundings import Surroundings
from spark_timely.compute.drive.task import TaskRunner, check_task
from spark_timely.compute.plan import ImportNode, Node, Plan, TaskNode, functions_of, is_task, parse_plan
from spark_timely.dataflow.engine.steps import rest_of
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogMissingError,
    OwnershipError,
    SinceViolationError,
    StorageError,
)
from spark_timely.log.log import Log, open_log
from spark_timely.log.machine.since import may_read
from spark_timely.spark.base.beginnings import readable_from
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.command import Dataflow, Export
    from spark_timely.compute.drive.surroundings import Runner
    from spark_timely.compute.instance import Running
    from spark_timely.continual.engine import TaskEngine
    from spark_timely.dataflow.engine.arranged import RunTasks
    from spark_timely.dataflow.engine.steps import Engine

__all__ = ["Hosted", "Surroundings", "passed_import"]


class Hosted:
    """One dataflow of an instance, while it is there.

    Parameters
    ----------
    running : Running
    around : Surroundings
    exports : mapping of str to Export
        Of the instance, by id: what the dataflow may import.
    """

    def __init__(self, running: Running, around: Surroundings, exports: Mapping[str, Export]) -> None:
        self.number, self.dataflow = running.number, running.dataflow
        self._around = around
        self.sources = {each.name: around.place.source_of(each, exports) for each in self.dataflow.imports}
        self.plan = parse_plan(self.dataflow.plan)
        self.logs: dict[str, Log] = {}
        for each in self.dataflow.imports:  # one turn per import
            path = self.sources[each.name]
            try:
                log = open_log(path, storage_options=around.place.options(path) or None)
            except StorageError:
                if around.fence is None and self.passes_on is None:
                    continue  # whoever follows reads outputs alone, and may have no credentials of imports
                raise
            if each.log_id is not None and log.log_id != each.log_id:
                msg = (
                    f"could not run dataflow {self.dataflow.name!r}: found log {log.log_id!r} at {path!r}, expected "
                    f"{each.log_id!r}"
                )
                raise DataLossError(
                    msg,
                    hint="put the log back that was there, or drop the dataflow and create another one",
                    context={"path": path, "import": each.name},
                )
            if each.export is not None and around.is_of_another(log, each.export):
                attempt = f"could not run dataflow {self.dataflow.name!r}"
                msg = f"{attempt}: found a log in {path!r} that the dataflow of {each.export!r} has not written"
                raise DataLossError(
                    msg,
                    hint=f"put the folder of {each.export!r} back",
                    context={"path": path, "import": each.name},
                )
            self.logs[each.name] = log
        self._runner: Runner | None = None
        self._out: dict[str, Log] = {}

    # What it is ----------------------------------------------------------------------------------

    @property
    def passes_on(self) -> str | None:
        """The import that the plan hands through as it is; None if it has operators."""
        return self.plan.root.name if isinstance(self.plan.root, ImportNode) else None

    def path_of(self, export: Export) -> str:
        """Return the path of the log that has what an export gives."""
        if export.kind in ("subscribe", "copy-to") and self.passes_on is not None:
            return self.sources[self.passes_on]
        path = self._around.place.path_of(export)
        if path is None:
            msg = f"could not run dataflow {self.dataflow.name!r}: found no place for export {export.id!r}"
            raise InvalidUsageError(msg, hint="name a path for the log, or a folder of the instance")
        return path

    @property
    def written(self) -> tuple[Export, ...]:
        """Exports that the engine writes."""
        return tuple(each for each in self.dataflow.exports if each.kind in ("index", "log") or self.passes_on is None)

    @property
    def engine(self) -> Engine | TaskEngine | None:
        """What takes its steps; None before it begins, and of one that has nothing to write."""
        return None if self._runner is None else self._runner.engine

    @property
    def has_begun(self) -> bool:
        """Whether it has an engine that takes steps."""
        return self.engine is not None

    @property
    def consumer(self) -> str | None:
        """Name under which imports are retained for it; None of one without an engine."""
        return None if self._runner is None or self.engine is None else self._runner.consumer

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all logs that the engine reads or writes."""
        return () if self._runner is None else self._runner.paths

    @property
    def operators(self) -> tuple[tuple[str, str, str], ...]:
        """(operator, kind, operators that it reads)."""
        return _operators_of(self.plan)

    @property
    def upper_of_imports(self) -> dict[str, Antichain]:
        """How far the imports are, as of the last look."""
        return {name: log.frontier() for name, log in self.logs.items()}

    def behind(self, upper: Antichain, /) -> dict[str, Antichain]:
        """Return the imports that an output at `upper` waits for, with how far they are."""
        frontiers = self.upper_of_imports
        if self._runner is not None:
            return {name: frontiers[name] for name in self._runner.behind(frontiers, upper)}
        return {name: frontier for name, frontier in frontiers.items() if frontier.less_equal_frontier(upper)}

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
        fence = self._around.fence
        if fence is None:
            msg = f"could not run dataflow {self.dataflow.name!r}: found an instance that may not write"
            raise OwnershipError(msg, hint="allow writes first")
        self._runner = self._runner or self._made()
        self._out = self._runner.begin(fence)

    def _made(self) -> Runner:
        """Return what writes its exports."""
        around, dataflow, root = self._around, self.dataflow, self.plan.root
        if isinstance(root, TaskNode):
            return TaskRunner(dataflow, root, around, self.logs, {each.id: self.path_of(each) for each in self.written})
        written = {each.id: (each, self.path_of(each)) for each in self.written}
        return OperatorRunner(dataflow, self.plan, around, self.logs, written)

    def open_outputs(self, *, far: bool = True) -> bool:
        """Open the logs of outputs that are there by now; return whether there were any, or there is news of one.

        Parameters
        ----------
        far : bool
            Whether to look also where a look is a request.
        """
        news = False
        for export in self.written:  # one turn per output
            if export.id in self._out:
                log = self._out[export.id]
                news = news or (log.has_news() if log.storage.local else far)
                continue
            path = self.path_of(export)
            if not far and not self._around.place.is_local(path):
                continue
            try:
                self._out[export.id] = open_log(path, storage_options=self._around.place.options(path) or None)
            except LogMissingError:
                continue
            news = True
        return news

    def check(self) -> None:
        """Refuse a dataflow that cannot run as things are, before anything is made.

        Raises
        ------
        TimelyError
            If the plan does not fit its imports, or an output that is there is another's, or of another plan.
        """
        if self._around.fence is None or not self.written:
            return
        self._runner = self._made()
        self._runner.check(self._around.fence)

    def _check_functions(self) -> None:
        """Refuse a lasting dataflow that calls functions of Python (invariant 4)."""
        called = functions_of(self.plan)
        if called and self.dataflow.lasts:
            msg = (
                f"could not create dataflow {self.dataflow.name!r}: found Python function {called[0]!r}, which is not "
                "restartable"
            )
            raise InvalidUsageError(msg, hint="create it as interactive, or say it in SQL")

    def check_times(self) -> None:
        """Refuse a dataflow whose times are not those of its imports, or that its engine cannot begin or end at.

        And one whose plan does not go with what it exports, or with how long it lasts.

        Raises
        ------
        InvalidUsageError
        """
        dataflow = self.dataflow
        what = f"could not create dataflow {dataflow.name!r}"
        self._check_functions()
        if isinstance(self.plan.root, TaskNode):
            check_task(dataflow, self.plan.root, self.logs)
        for name, log in self.logs.items():  # one turn per import
            if log.domain.types != dataflow.domain.types:
                msg = f"{what}: found times of types {dataflow.domain.types}, import {name!r} has {log.domain.types}"
                raise InvalidUsageError(msg, hint="describe it with the domain of its imports")
        if dataflow.domain.arity == 1 and not isinstance(self.plan.root, TaskNode):
            self._check_as_of()
        if dataflow.domain.arity > 1 and not dataflow.until.is_empty:
            msg = f"{what}: found until={dataflow.until!r}"
            raise InvalidUsageError(msg, hint="times of several coordinates have no such end: leave it out")
        if dataflow.domain.arity > 1 and self.written and dataflow.as_of != dataflow.domain.minimum_frontier:
            msg = f"{what}: found as_of={dataflow.as_of!r}"
            raise InvalidUsageError(
                msg, hint=f"begin times of several coordinates at their minimum: as_of={dataflow.domain.minimum}"
            )
        kept = [export.id for export in dataflow.exports if export.kind in ("index", "log")]
        if kept and not dataflow.until.is_empty:
            msg = f"{what}: found until={dataflow.until!r} for export {kept[0]!r}"
            raise InvalidUsageError(msg, hint="an index or log ends with its imports: subscribe for an end of its own")

    def _check_as_of(self) -> None:
        """Refuse an as_of of which an import tells nothing any more."""
        dataflow = self.dataflow
        for log in self.logs.values():  # one turn per import
            since = readable_from([log], dataflow.domain.minimum_frontier)
            if not may_read(since, dataflow.as_of):
                raise passed_import(dataflow, log.path, dataflow.domain.render_frontier(since))

    @property
    def has_taken_over(self) -> bool:
        """Whether its outputs have passed the as_of, and what it reads is retained by its engine from now on.

        As of the last look. Where the engine cannot retain an import, or is not to, nothing better comes.
        """
        engine, as_of = self.engine, self.dataflow.as_of
        uppers = [log.frontier() for log in self._out.values()]
        if engine is None or not all(upper.is_empty or as_of.less_than_frontier(upper) for upper in uppers):
            return False
        if self._around.retain is None or all(upper.is_empty for upper in uppers):
            return True
        return all(log.path in engine.unretained or self.consumer in log.retainers() for log in self.logs.values())

    def look(self) -> None:
        """Take notice of what imports have become."""
        for log in self.logs.values():
            if not log.storage.local or log.has_news():
                log.refresh()

    def step(self, run_tasks: RunTasks, max_bytes: int | None = None) -> bool:
        """Take a step, of this number of bytes of an output's imports, if anything is ready; return whether there was.

        What fails is in `failures`, and is tried again as long as it may pass.
        """
        assert self._runner is not None
        return self._runner.step(run_tasks, max_bytes)

    def uppers(self) -> dict[str, Antichain]:
        """Return how far the outputs are, as of a look now, by export."""
        found = {}
        for id_, log in self._out.items():  # one turn per output
            if not log.storage.local or log.has_news():
                log.refresh()
            found[id_] = log.frontier()
        return found

    @property
    def failures(self) -> list[Exception]:
        """Why outputs stand, the newest look."""
        return [] if self.engine is None else list(self.engine.failures)

    @property
    def has_failed(self) -> bool:
        """Whether all outputs stand, as far as can be told: the only one, or as many as there are."""
        return len(self.failures) >= len(self.written) if len(self.written) > 1 else bool(self.failures)

    @property
    def due_s(self) -> float | None:
        """After how many seconds there is something to do although nothing is new; None: there is nothing."""
        return None if self.engine is None else rest_of([self.engine])

    def sizes(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return (export, records, runs, bytes) of each index."""
        return () if self._runner is None else self._runner.sizes()

    def release(self) -> None:
        """Let imports forget what is not read any more: it was dropped, and has ended.

        Raises
        ------
        TimelyError
            If one cannot be written. It forgets later: what is retained expires.
        """
        self._around.functions.forget(functions_of(self.plan))
        consumer = self.consumer
        if consumer is None:
            return
        for log in (*self.logs.values(), *self._out.values()):  # one turn per log
            if self._around.place.has(log.path) and log in self._out.values():
                continue  # it is deleted
            log.refresh()
            if consumer in log.retainers():
                log.release(consumer)

    def end(self) -> None:
        """Let go of what is held beside the logs."""
        if self._runner is not None:
            self._runner.end()


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


def _operators_of(plan: Plan) -> tuple[tuple[str, str, str], ...]:
    """Return (operator, kind, operators that it reads) of a plan, what is read before what reads it."""
    found: list[tuple[str, str, str]] = []

    def add(node: Node) -> str:
        below = [add(each) for each in node.inputs]
        name = node.name if isinstance(node, ImportNode) else f"{node.op}_{len(found) + 1}"
        if isinstance(node, ImportNode) and any(name == operator for operator, _, _ in found):
            return name
        found.append((name, node.op, ",".join(below)))
        return name

    add(plan.root)
    return tuple(found)
