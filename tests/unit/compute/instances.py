"""Instances without Spark, for tests: tasks run in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.runtime import Runtime
from spark_timely.log import Log
from spark_timely.log.log import create_log
from spark_timely.spark.dataflows.tasks import catalog_of, run_one

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TOTALS = "SELECT k, count(*) AS n, sum(v) AS s FROM orders GROUP BY k"


def tasks(name: str, options: Mapping[str, Mapping[str, str]]) -> Callable[..., Any]:
    del name
    return lambda plans, todo: [run_one(task, plans[task.output], options) for task in todo]


def runtime(**changed: Any) -> Runtime:
    values: dict[str, Any] = {"tasks": tasks, "files_of": catalog_of, **changed}
    return Runtime(**values)


def handle(directory: Path, **options: Any) -> Handle:
    made = options.pop("runtime", None) or runtime()
    return Handle(str(directory), made, **options)


def orders(path: Path, *updates: tuple[int, int, int, int], upper: int) -> Log:
    """Return a collection of (time, diff, k, v)."""
    log = create_log(path, SCHEMA, kind="collection", minimum=(0,), flush=False)
    append(log, *updates, upper=upper)
    return log


def append(log: Log, *updates: tuple[int, int, int, int], upper: int) -> None:
    columns = {
        name: pa.array([update[place] for update in updates], pa.int64())
        for place, name in enumerate(("_time", "_diff", "k", "v"))
    }
    log.writer(owner="test").append(pa.table(columns), advance_to=upper)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())
