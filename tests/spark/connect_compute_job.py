"""An instance with a session of Spark: an index, a log, peeks, subscribes and copies, a restart, a follower, the next.

The same for classic and Connect: what it returns is to be equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import spark_timely
from spark_timely.log.log import Log, open_log
from spark_timely.spark.dataflows import tasks as dataflow_tasks
from spark_timely.spark.instance.instance import ComputeInstance

TOTALS = "SELECT k, count(*) AS n, sum(v) AS s FROM orders GROUP BY k"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


EXPECTED: dict[str, Any] = {
    "peek": [[1, 2, 40, 1], [2, 1, 20, 1]],
    "keys": [[20, 1]],
    "log": [[1, 1]],
    "subscribe": [[1, 1, 30, 1], [2, 1, 20, 1], [3, 1, 90, 1]],
    "subscribe to some": [[1, 1], [2, 1], [3, 1]],
    "copy": 3,
    "copy, rows": [[1, 1, 30], [2, 1, 20], [3, 1, 90]],
    "copy of some": 2,
    "copy of some, rows": [[1, 1], [2, 1]],
    "restart": [
        [[1, 1, 30, 1], [2, 1, 20, 1], [3, 1, 90, 1]],
        [[1, 1, 30, 1], [2, 2, 25, 1], [3, 1, 90, 1]],
    ],
    "follower": [
        [[1, 1, 30, 1], [2, 1, 20, 1], [3, 1, 90, 1]],
        [[1, 1, 30, 1], [2, 2, 25, 1], [3, 1, 90, 1]],
    ],
    "taken over": [[1, 1, 30, 1], [2, 3, 31, 1], [3, 1, 90, 1]],
    "errors": 0,
    "written": [[[1, 1]], [[1, 1], [2, 1], [3, 1]]],
}


def append(log: Log, *updates: tuple[int, int, int, int], upper: int) -> None:
    columns = {
        name: pa.array([each[at] for each in updates], pa.int64()) for at, name in enumerate(("_time", "_diff", *"kv"))
    }
    log.writer(owner="test").append(pa.table(columns), advance_to=upper)


def rows(table: pa.Table) -> list[list[Any]]:
    return sorted(list(row.values()) for row in table.to_pylist())


def folded(batches: Any, upper: int) -> list[list[Any]]:
    """Return what batches add up to at a frontier."""
    found: dict[tuple[Any, ...], int] = {}
    while True:
        batch = batches.next_batch(timeout_s=120)
        assert batch is not None
        for row in batch.updates.to_pylist():
            key = tuple(value for name, value in row.items() if name not in ("_time", "_diff"))
            found[key] = found.get(key, 0) + row["_diff"]
        if not batch.upper.less_equal((upper - 1,)):
            return sorted([*key, n] for key, n in found.items() if n)


def main(spark: SparkSession, folder: Path, *, small_bytes: int = 0) -> dict[str, Any]:
    """Return all answers, by what was asked; with ``small_bytes=0`` all work is in jobs of Spark."""
    kept, dataflow_tasks.DRIVER_BYTES = dataflow_tasks.DRIVER_BYTES, small_bytes  # type: ignore[misc]
    defaults = dataflow_tasks.SparkTasks.__init__.__kwdefaults__
    kept_default, defaults["max_bytes_in_driver"] = defaults["max_bytes_in_driver"], small_bytes
    try:
        return answers(spark, folder)
    finally:
        dataflow_tasks.DRIVER_BYTES, defaults["max_bytes_in_driver"] = kept, kept_default  # type: ignore[misc]


def answers(spark: SparkSession, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    log = spark_timely.create_log(folder / "orders", SCHEMA, minimum=(0,), kind="collection")
    append(log, (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)
    with ComputeInstance(spark, str(folder / "instance")) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.maintain("big", "SELECT k FROM totals WHERE s > 25", str(folder / "big"))
        instance.await_frontier("big", 3)
        found["peek"] = rows(instance.peek("totals"))
        found["keys"] = rows(instance.peek("totals", keys={"k": [2]}, select=["s"]))
        found["log"] = rows(instance.peek("big"))
        with instance.subscribe("totals") as whole, instance.subscribe("SELECT k FROM totals WHERE s > 15") as some:
            append(log, (4, -1, 1, 10), (4, 1, 3, 90), upper=5)
            found["subscribe"], found["subscribe to some"] = folded(whole, 5), folded(some, 5)
        for name, query in (("copy", "totals"), ("copy of some", "SELECT k, n FROM totals WHERE k < 3")):
            instance.await_frontier("totals", 4)
            found[name] = instance.copy_to(query, str(folder / name), timeout_s=120)
            files = [path for path in (folder / name).iterdir() if path.suffix == ".parquet"]
            found[name + ", rows"] = sorted(row for path in files for row in rows(pq.read_table(path)))
    append(log, (5, 1, 2, 5), upper=6)
    with ComputeInstance(spark, str(folder / "instance")) as instance:
        instance.await_frontier("big", 5)
        found["restart"] = [rows(instance.peek("totals", as_of=at)) for at in (4, 5)]
        with ComputeInstance(spark, str(folder / "instance"), read_only=True) as follower:
            follower.await_frontier("big", 5)
            found["follower"] = [rows(follower.peek("totals", as_of=at)) for at in (4, 5)]
            follower.allow_writes()
            append(log, (6, 1, 2, 6), upper=7)
            follower.await_frontier("big", 6)
            found["taken over"] = rows(follower.peek("totals"))
            found["errors"] = follower.show("errors").num_rows
    found["written"] = [rows(open_log(folder / "big").snapshot(at)) for at in (3, 6)]
    return found
