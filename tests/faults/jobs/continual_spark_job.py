"""Two continual tasks in a query that can be killed at a named point: one of them takes three times at once.

The other one has two statements over its own output.

Run as ``python continual_spark_job.py SPEC.json``. Keys of the specification:

``folder``
    Where the logs ``in`` and ``reference`` are, and where everything goes.
``kill``
    ``null``, or ``{"where": "task" | "before" | "after", "commit": n}``: end the driver while a task of Spark's writes
    rows, or on either side of the nth commit of this run to any log.
``marker``
    A file that is written just before the kill, so that the test knows that it struck.
"""

from __future__ import annotations

import json
import os
import random
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_timely as st
from spark_timely.continual.engine import TaskEngine
from tests.faults.harness import strike
from tests.faults.jobs.dataflow_job import _kill_at_commit
from tests.oracles.continual import Began, History, Row, Source, Task, Update, statements

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
BODY = """
    DELETE FROM output WHERE k IN (SELECT k FROM i);
    INSERT INTO output SELECT i.k, max(i.n * 100 + r.n * 10 + (SELECT count(*) FROM output)) AS n
    FROM i JOIN r ON i.k = r.k GROUP BY i.k
"""
MANY = "SELECT k, i.n * 100 + r.n AS n FROM i JOIN r USING (k)"
MANY_OF_LISTS = statements(
    ("insert", lambda seen, time, output: [(k, n * 100 + m) for k, n in seen["i"] for j, m in seen["r"] if j == k]),
)
BODY_OF_LISTS = statements(
    ("delete", lambda seen, time, output: [row for row in output if row[0] in {k for k, _ in seen["i"]}]),
    (
        "insert",
        lambda seen, time, output: list(
            {
                k: (
                    k,
                    max(n * 100 + m * 10 + len(output) for key, n in seen["i"] for j, m in seen["r"] if j == key == k),
                )
                for k, _ in seen["i"]
                if k in {j for j, _ in seen["r"]}
            }.values()
        ),
    ),
)


def write_inputs(folder: Path, rng: random.Random) -> dict[str, dict[int, dict[Row, int]]]:
    """Write both logs, complete; return what the outputs must be."""
    histories = {name: History("stream") for name in ("in", "reference")}
    for name, history in histories.items():
        updates: list[Update] = [(time, (rng.choice("abc"), rng.randrange(9)), 1) for time in range(6) for _ in "xy"]
        history.updates = updates
        columns = {
            "_time": [time for time, _, _ in updates],
            "k": [k for _, (k, _), _ in updates],
            "n": [n for _, (_, n), _ in updates],
        }
        st.create_log(folder / name, SCHEMA, minimum=(0,)).writer(owner="test").append(pa.table(columns), advance_to=[])
    sources = (Source("i", "in", "inserts"), Source("r", "reference", "contents"))
    bodies = {"out": BODY_OF_LISTS, "many": MANY_OF_LISTS}
    return {
        name: Task(sources, histories, [(0, body)], Began()).run(None, "collection") for name, body in bodies.items()
    }


def run(spark: SparkSession, spec: dict[str, Any]) -> None:
    """Run the task until nothing waits, or until it is killed."""
    kill, folder = spec.get("kill"), Path(spec["folder"])
    if kill and kill["where"] == "task":
        _kill_in_task(spec["marker"])
    elif kill:
        _kill_at_commit(kill["where"], kill["commit"], spec["marker"])
    logs: dict[str, Any] = {"inputs": {"i": folder / "in"}, "references": {"r": folder / "reference"}}
    task = st.ContinualTask("killed", **logs, body=BODY, output=folder / "out", schema=SCHEMA)
    many = st.ContinualTask("many", **logs, body=MANY, output=folder / "many")
    with patch.object(TaskEngine, "__init__", partialmethod(TaskEngine.__init__, most_times=3)):
        assert task.start(spark, trigger="availableNow", beside=[many]).await_termination()
    assert "many times together" in many.explain()


def _kill_in_task(marker: str) -> None:
    """Let a task of Spark's end the driver before it gives the second partition of rows to whoever writes them."""
    from spark_timely.spark.tasks import bodies

    written, group = bodies._written, os.getpgid(0)

    def struck(changes: DataFrame, plan: Any) -> Any:
        def passed(batches: Any) -> Any:
            for batch in batches:
                if batch.num_rows:
                    strike(marker, group)
                yield batch

        strikes = plan.time >= 2
        return written(changes.mapInArrow(passed, changes.schema) if strikes else changes, plan)

    bodies._written = struck


def main(spec: dict[str, Any]) -> None:
    """Run the task in a driver of its own."""
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    spark = st.session("continual", master="local[2]", **settings)
    run(spark, spec)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
