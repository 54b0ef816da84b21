"""Continual tasks of instances without Spark: Python functions stand for bodies, by the text of the SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_timely.compute.drive.runtime import ReadyTask, TaskRequest
from spark_timely.continual.engine import TaskPlan
from spark_timely.continual.plan import StepPlan, TaskSource
from spark_timely.dataflow.body import Body
from spark_timely.dataflow.logs import Sink
from spark_timely.dataflow.views import Replay, View
from spark_timely.errors import InvalidUsageError
from tests.continual import PythonBodies
from tests.oracles.continual import Row

COPIES = "SELECT * FROM orders"
"""Each row that is added."""

JOINS = "SELECT o.k, o.v * r.v AS v FROM orders o JOIN rates r USING (k)"
"""Each row that is added, times what the reference has for its key."""


def copies(seen: Mapping[str, Sequence[Row]], time: int, own: Sequence[Row]) -> list[tuple[Row, int]]:
    del time, own
    return [(row, 1) for row in seen["orders"]]


def joins(seen: Mapping[str, Sequence[Row]], time: int, own: Sequence[Row]) -> list[tuple[Row, int]]:
    del time, own
    return [((k, v * rate), 1) for k, v in seen["orders"] for key, rate in seen["rates"] if key == k]


@dataclass
class Stand:
    """Makes tasks ready: what `spark_timely.spark.instance.tasks` is with Spark.

    Attributes
    ----------
    wanted : int
        How often a body was looked at.
    written : callable
        Called once a step has its files, and before they are appended.
    fails_at : set of int
        Times at which a body fails.
    broken, unready : Exception or None
        Raised where what evaluates bodies is asked for, and where a body is to be looked at.
    """

    wanted: int = 0
    written: Callable[[StepPlan], None] = lambda plan: None
    fails_at: set[int] = field(default_factory=set)
    broken: Exception | None = None
    unready: Exception | None = None

    def __call__(self, request: TaskRequest) -> ReadyTask:
        self.wanted += 1
        if self.unready is not None:
            raise self.unready
        bodies: dict[str, Any] = {COPIES: copies, JOINS: joins}
        if request.node.sql not in bodies:
            msg = f"could not start task {request.name!r}: found a body that nothing stands for"
            raise InvalidUsageError(msg, hint="use one of those that there are")
        sources = tuple(TaskSource(name, request.logs[name].path, how) for name, how in request.node.reads)  # type: ignore[arg-type]
        leaves = tuple(
            Replay(name, log.domain, log.schema, (), log.path, log.kind) for name, log in request.logs.items()
        )
        domain = leaves[0].domain
        as_of: Any = request.node.as_of
        plan = TaskPlan(
            request.name,
            sources,
            as_of=as_of if as_of in ("earliest", "latest") else domain.parse_time(as_of)[0],
            snapshot=request.node.snapshot,
            together=True,
        )
        schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
        view = View(request.name, domain, schema, leaves, operator=Body(request.node.sql))
        sink = Sink(request.name, view, request.output, "main", f"task {request.name}")
        made = PythonBodies(bodies[request.node.sql], fails_at=self.fails_at, written=lambda plan: self.written(plan))
        logs = {log.path: log for log in request.logs.values()}
        storage = {path: {} for path in (*logs, request.output)}

        def at_hand() -> PythonBodies:
            if self.broken is not None:
                raise self.broken
            return made

        return ReadyTask(plan, sink, logs, storage, at_hand)
