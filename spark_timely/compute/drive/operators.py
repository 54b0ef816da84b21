"""A dataflow of operators as an instance runs it: the streams of its plan, their engine, and the indexes of exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_timely.compute.drive.place import details_of
from spark_timely.compute.drive.plans import as_collection, build
from spark_timely.dataflow.engine.arranged import Arrangements, Indexing
from spark_timely.dataflow.engine.cutting import SHUFFLE_BYTES
from spark_timely.dataflow.engine.outputs import check_plans
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.logs import check_outputs, existing_logs
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import Replay
from spark_timely.errors import SchemaMismatchError, shown
from spark_timely.protocol.replay import Limits

if TYPE_CHECKING:
    from spark_timely.compute.command import Dataflow, Export
    from spark_timely.compute.drive.surroundings import Surroundings
    from spark_timely.compute.plan import Plan
    from spark_timely.dataflow.engine.arranged import RunTasks
    from spark_timely.log.log import Log
    from spark_timely.protocol.note import Fence
    from spark_timely.time.antichain import Antichain

__all__ = ["OperatorRunner"]

_STEP_BYTES: Final = 512 << 20
_TRIES: Final = 6


class OperatorRunner:
    """Runs the operators of a plan: a `spark_timely.compute.drive.surroundings.Runner`.

    Parameters
    ----------
    dataflow : Dataflow
    plan : Plan
    around : Surroundings
    logs : mapping of str to Log
        Imports, by name.
    written : mapping of str to (Export, str)
        Exports that keep rows, each with the path of its log, by id.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        plan: Plan,
        around: Surroundings,
        logs: Mapping[str, Log],
        written: Mapping[str, tuple[Export, str]],
    ) -> None:
        self._dataflow, self._plan, self._around = dataflow, plan, around
        self._logs, self._written = logs, written
        self.engine: Engine | None = None
        # What was made and opened to check it, for the engine.
        self._checked: tuple[Scope, dict[str, Log]] | None = None
        self._arranged: dict[str, tuple[Arrangements, Look, Replay]] = {}

    @property
    def consumer(self) -> str:
        """Name under which imports are retained."""
        assert self.engine is not None
        return self.engine.consumer

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all logs that the engine reads or writes."""
        return () if self.engine is None else self.engine.paths

    def check(self, fence: Fence, /) -> None:
        """Refuse a plan that does not fit its imports, and outputs of others, before anything is made."""
        scope, there = self._checked = self._looked_up(fence)
        check_outputs(scope.sinks, scope.storage, there)

    def begin(self, fence: Fence, /) -> dict[str, Log]:
        """Make the logs of the outputs, claim them for a start, and return them by export."""
        around = self._around
        (scope, there), self._checked = self._checked or self._looked_up(fence), None
        self.engine = Engine(
            scope.name,
            scope.sinks,
            scope.storage,
            files_of=around.files_of,
            run=fence.owner,
            tries=_TRIES,
            retain=around.retain,
            shuffle_bytes=around.keyed_bytes() or SHUFFLE_BYTES,
            opened=there,
        )
        found = {id_: self.engine.log_at(path) for id_, (_, path) in self._written.items()}
        for id_, (export, _) in self._written.items():  # one turn per output
            log, key = found[id_], details_of(export).get("key")
            if export.kind == "index" and key:
                assert isinstance(key, list)
                look = Look(log.path, tuple(str(name) for name in key), tuple(log.schema.names))
                leaf = Replay(id_, log.domain, log.schema, (), log.path, log.kind)
                made = Arrangements({log.path: log}, {log.path: around.files_of(log)}, Indexing())
                self._arranged[id_] = made, look, leaf
        return found

    def _looked_up(self, fence: Fence) -> tuple[Scope, dict[str, Log]]:
        """Return the operators, and the logs that are there by now; refuse outputs of others."""
        scope = self._scope(fence)
        there = existing_logs(scope.sinks, scope.storage, {log.path: log for log in self._logs.values()})
        check_plans(scope.sinks, there)
        return scope, there

    def _scope(self, fence: Fence) -> Scope:
        """Return the operators and outputs."""
        dataflow = self._dataflow
        scope = Scope(f"{dataflow.name} of instance {fence.instance}")
        streams = {name: scope.replay(log) for name, log in self._logs.items()}
        built = build(self._plan, scope, streams, functions=self._around.functions.known)
        for export, path in self._written.values():  # one turn per output
            stream = built if export.kind == "log" else as_collection(built)
            key = details_of(export).get("key") or ()
            assert isinstance(key, list | tuple)
            missing = [name for name in key if name not in stream.schema.names]
            if missing:
                msg = f"could not run dataflow {dataflow.name!r}: found no column {shown(missing[0])} to index by"
                raise SchemaMismatchError(msg, hint=f"choose among its columns: {shown(list(stream.schema.names))}")
            stream.capture(path, storage_options=self._around.place.options(path) or None)
        # Of times of several coordinates it is the minimum.
        begins = dataflow.as_of.elements[0][0] if dataflow.domain.arity == 1 else None
        scope.sinks = [replace(sink, fence=fence, as_of=begins) for sink in scope.sinks]
        return scope

    def step(self, run_tasks: RunTasks, max_bytes: int | None, /) -> bool:
        """Take a step, of this number of bytes of an output's imports, if anything is ready; return whether there was.

        What fails is in the engine's failures, and is tried again as long as it may pass.
        """
        assert self.engine is not None
        self.engine.limits = Limits(size_bytes=max_bytes or _STEP_BYTES)
        self.engine.begin()
        done = self.engine.step(run_tasks)
        for arranged, look, leaf in self._arranged.values():  # one turn per index
            log = self.engine.log_at(leaf.path)
            log.refresh()
            arranged.before(look, leaf, log.domain.minimum_frontier, log.frontier(), run_tasks)
            arranged.begin_waiting()
        return done is not None

    def behind(self, frontiers: Mapping[str, Antichain], upper: Antichain, /) -> list[str]:
        """Return the imports that are not beyond an output's upper."""
        return [name for name, frontier in frontiers.items() if frontier.less_equal_frontier(upper)]

    def sizes(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return (export, records, runs, bytes) of each index."""
        found = []
        for id_, (arranged, look, leaf) in self._arranged.items():  # one turn per index
            rows, size = arranged.size_of(look, leaf)
            found.append((id_, rows, 1 if rows else 0, size))
        return tuple(found)

    def end(self) -> None:
        """Let go of what is held beside the logs."""
        for arranged, _, _ in self._arranged.values():
            arranged.end()
        if self.engine is not None:
            self.engine.end()
