"""One process that runs a continual task without Spark, killed before the n-th step that writes to the task's log.

What it writes to its inputs, to retain them, counts too. See `forgetting_job` for what a step is; a commit of the
output is two more, before it and after it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_timely.continual.engine import TaskEngine, TaskPlan
from spark_timely.continual.plan import TaskSource
from spark_timely.dataflow.body import Body
from spark_timely.dataflow.logs import Sink, open_logs
from spark_timely.dataflow.stream import Scope
from spark_timely.dataflow.views import View
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.log import Log
from spark_timely.log.core import LogCore
from spark_timely.log.log import open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.text import parse_duration
from tests.continual import PythonBodies
from tests.faults.jobs.forgetting_job import Steps
from tests.oracles.continual import Row, Seen, Source, statements

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
SOURCES = (Source("i", "in", "inserts"), Source("gone", "in", "deletes"), Source("r", "reference", "contents"))


def _keys(seen: Seen, time: int, output: Any) -> list[Row]:
    keys = {k for k, _ in [*seen["i"], *seen["gone"]]}
    return [row for row in output if row[0] in keys]


def _numbered(seen: Seen, time: int, output: Any) -> list[Row]:
    """Return a row for each that came, which depends on all that is seen."""
    return [(k, n * 100 + len(seen["r"]) * 10 + len(output)) for k, n in seen["i"]]


BODY = statements(("delete", _keys), ("insert", _numbered))


def engine_of(folder: str) -> TaskEngine:
    """Return the engine of the task in a folder with its logs."""
    scope = Scope("task")
    paths = {name: str(Path(folder) / name) for name in ("in", "reference", "out")}
    leaves = tuple(scope.replay(paths[source.log]).view for source in SOURCES)
    view = View("task", leaves[0].domain, SCHEMA, leaves, operator=Body("1", deletes=True))
    sink = Sink("task", view, paths["out"], "main", "task task")
    plan = TaskPlan(
        "task",
        tuple(TaskSource(each.alias, paths[each.log], each.shown) for each in SOURCES),  # type: ignore[arg-type]
        reads_output=True,
        as_of=1,
        snapshot=True,
    )
    bodies = PythonBodies(BODY)

    def retained(log: Log, consumer: str) -> RetainedPosition:
        return RetainedPosition(partial(open_log, log.path), consumer, parse_duration("30 days"))

    logs = open_logs([sink], {path: {} for path in paths.values()})
    return TaskEngine(plan, sink, logs, files_of=catalog_of, evaluator=lambda: bodies, retain=retained)


def main(folder: str, told: str, at: int | None) -> None:
    """Run the task until nothing waits; the file says how many steps there were."""
    steps = Steps(folder, at)
    steps.watch()
    commit = LogCore.commit

    def watched(log: LogCore, request: Any) -> Any:
        if log.path.endswith("out") and steps.step(log.path):
            steps.die()
        outcome = commit(log, request)
        if log.path.endswith("out") and steps.step(log.path):
            steps.die()
        return outcome

    LogCore.commit = watched  # type: ignore[method-assign]
    engine = engine_of(folder)
    engine.begin()
    while engine.step() is not None:
        pass
    engine.end()
    for error in engine.failures:
        raise error
    Path(told).write_text(str(steps.n))


def _none(*_: Any) -> Any:
    raise AssertionError
