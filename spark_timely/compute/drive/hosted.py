"""A dataflow that an instance runs: its operators, its engine, and how far its exports are.

Exports that keep rows are outputs of the engine, each with a log of its own: an index in the instance's directory, a
log where somebody wants it, and for a subscribe or a copy-to of a plan with operators a log that ends with it. A
subscribe or copy-to of an import as it is needs no engine: the import's log has all that it wants.

Invariants
----------
1. What is written has the fence of this start (`Sink.fence`), from before the first step on.
2. An import is the log of the id that the command names, or the dataflow does not run.
3. One thread at a time takes steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_timely.compute.drive.place import details_of
from spark_timely.compute.drive.plans import as_collection, build
from spark_timely.compute.plan import ImportNode, Node, Plan, parse_plan
from spark_timely.dataflow.engine.arranged import Arrangements, Indexing
from spark_timely.dataflow.engine.outputs import check_plans
from spark_timely.dataflow.engine.steps import Engine, rest_of
from spark_timely.dataflow.logs import existing_logs
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import Replay
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogMissingError,
    OwnershipError,
    SchemaMismatchError,
    shown,
)
from spark_timely.log.log import Log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.place import Place
    from spark_timely.compute.instance import Running
    from spark_timely.dataflow.engine.arranged import RunTasks
    from spark_timely.dataflow.engine.cutting import Files
    from spark_timely.dataflow.engine.steps import Retained
    from spark_timely.protocol.note import Fence

__all__ = ["Hosted", "Surroundings"]

_STEP_BYTES: Final = 512 << 20
_TRIES: Final = 6


@dataclass(frozen=True)
class Surroundings:
    """What dataflows of an instance have in common.

    Attributes
    ----------
    place : Place
    fence : Fence or None
        Of this start; None while the instance may not write.
    files_of : callable
        Gives what keeps account of a log's files.
    retain : callable, optional
        Gives what retains a log for a consumer.
    """

    place: Place
    fence: Fence | None
    files_of: Callable[[Log], Callable[[], Files]]
    retain: Callable[[Log, str], Retained] | None = None


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
            log = open_log(path, storage_options=around.place.options(path) or None)
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
            self.logs[each.name] = log
        self.engine: Engine | None = None
        # What was made and opened to check it, for the engine.
        self._checked: tuple[Scope, dict[str, Log]] | None = None
        self._out: dict[str, Log] = {}
        self._arranged: dict[str, tuple[Arrangements, Look, Replay]] = {}

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
    def has_begun(self) -> bool:
        """Whether it has an engine that takes steps."""
        return self.engine is not None

    @property
    def consumer(self) -> str | None:
        """Name under which imports are retained for it; None of one without an engine."""
        return None if self.engine is None else self.engine.consumer

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all logs that the engine reads or writes."""
        return () if self.engine is None else self.engine.paths

    @property
    def operators(self) -> tuple[tuple[str, str, str], ...]:
        """(operator, kind, operators that it reads)."""
        return _operators_of(self.plan)

    @property
    def upper_of_imports(self) -> dict[str, Antichain]:
        """How far the imports are, as of the last look."""
        return {name: log.frontier() for name, log in self.logs.items()}

    # Running -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the logs of the outputs, claim them for this start, and make the engine ready.

        Raises
        ------
        TimelyError
            If the plan does not fit its imports, or an output is another's.
        """
        around = self._around
        if self.engine is not None or not self.written:
            return
        if around.fence is None:
            msg = f"could not run dataflow {self.dataflow.name!r}: found an instance that may not write"
            raise OwnershipError(msg, hint="allow writes first")
        (scope, there), self._checked = self._checked or self._looked_up(around.fence), None
        self.engine = Engine(
            scope.name,
            scope.sinks,
            scope.storage,
            files_of=around.files_of,
            run=around.fence.owner,
            tries=_TRIES,
            retain=around.retain,
            opened=there,
        )
        self._out = {export.id: self.engine.log_at(self.path_of(export)) for export in self.written}
        for export in self.written:  # one turn per output
            log, key = self._out[export.id], details_of(export).get("key")
            if export.kind == "index" and key:
                assert isinstance(key, list)
                look = Look(log.path, tuple(str(name) for name in key), tuple(log.schema.names))
                leaf = Replay(export.id, log.domain, log.schema, (), log.path, log.kind)
                made = Arrangements({log.path: log}, {log.path: around.files_of(log)}, Indexing())
                self._arranged[export.id] = made, look, leaf

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
        self._checked = self._looked_up(self._around.fence)

    def _looked_up(self, fence: Fence) -> tuple[Scope, dict[str, Log]]:
        """Return the operators, and the logs that are there by now; refuse outputs of others."""
        scope = self._scope(fence)
        there = existing_logs(scope.sinks, scope.storage, {log.path: log for log in self.logs.values()})
        check_plans(scope.sinks, there)
        return scope, there

    def check_times(self) -> None:
        """Refuse a dataflow whose times are not those of its imports, or that its engine cannot begin or end at.

        Raises
        ------
        InvalidUsageError
        """
        dataflow = self.dataflow
        what = f"could not create dataflow {dataflow.name!r}"
        for name, log in self.logs.items():  # one turn per import
            if log.domain.types != dataflow.domain.types:
                msg = f"{what}: found times of types {dataflow.domain.types}, import {name!r} has {log.domain.types}"
                raise InvalidUsageError(msg, hint="describe it with the domain of its imports")
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

    def _scope(self, fence: Fence) -> Scope:
        """Return the operators and outputs."""
        dataflow = self.dataflow
        scope = Scope(f"{dataflow.name} of instance {fence.instance}")
        streams = {name: scope.replay(log) for name, log in self.logs.items()}
        built = build(self.plan, scope, streams)
        for export in self.written:  # one turn per output
            path = self.path_of(export)
            stream = built if export.kind == "log" else as_collection(built)
            key = details_of(export).get("key") or ()
            assert isinstance(key, list | tuple)
            missing = [name for name in key if name not in stream.schema.names]
            if missing:
                msg = f"could not run dataflow {dataflow.name!r}: found no column {shown(missing[0])} to index by"
                raise SchemaMismatchError(msg, hint=f"choose among its columns: {shown(list(stream.schema.names))}")
            stream.capture(path, storage_options=self._around.place.options(path) or None)
        begins = None
        if dataflow.as_of != dataflow.domain.minimum_frontier:
            ((begins,),) = dataflow.as_of.elements
        scope.sinks = [replace(sink, fence=fence, as_of=begins) for sink in scope.sinks]
        return scope

    def look(self) -> None:
        """Take notice of what imports have become."""
        for log in self.logs.values():
            if not log.storage.local or log.has_news():
                log.refresh()

    def step(self, run_tasks: RunTasks, max_bytes: int | None = None) -> bool:
        """Take a step, of this number of bytes of an output's imports, if anything is ready; return whether there was.

        What fails is in `failures`, and is tried again as long as it may pass.
        """
        assert self.engine is not None
        self.engine.limits = Limits(size_bytes=max_bytes or _STEP_BYTES)
        self.engine.begin()
        done = self.engine.step(run_tasks)
        for arranged, look, leaf in self._arranged.values():  # one turn per index
            log = self._out_at(leaf.path)
            log.refresh()
            arranged.before(look, leaf, log.domain.minimum_frontier, log.frontier(), run_tasks)
            arranged.begin_waiting()
        return done is not None

    def _out_at(self, path: str) -> Log:
        return next(log for log in self._out.values() if log.path == path)

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
    def due_s(self) -> float | None:
        """After how many seconds there is something to do although nothing is new; None: there is nothing."""
        return None if self.engine is None else rest_of([self.engine])

    def sizes(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return (export, records, runs, bytes) of each index."""
        found = []
        for id_, (arranged, look, leaf) in self._arranged.items():  # one turn per index
            rows, size = arranged.size_of(look, leaf)
            found.append((id_, rows, 1 if rows else 0, size))
        return tuple(found)

    def release(self) -> None:
        """Let imports forget what is not read any more: it was dropped, and has ended.

        Raises
        ------
        TimelyError
            If one cannot be written. It forgets later: what is retained expires.
        """
        if self.engine is None:
            return
        for log in (*self.logs.values(), *self._out.values()):  # one turn per log
            if self._around.place.has(log.path) and log in self._out.values():
                continue  # it is deleted
            log.refresh()
            if self.engine.consumer in log.retainers():
                log.release(self.engine.consumer)

    def end(self) -> None:
        """Let go of what is held beside the logs."""
        for arranged, _, _ in self._arranged.values():
            arranged.end()
        if self.engine is not None:
            self.engine.end()


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
