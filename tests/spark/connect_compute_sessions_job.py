"""Sessions of an instance through Connect: pools that are clones, one that is lost, and jobs that are interrupted."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import spark_timely
from spark_timely.errors import CanceledError
from spark_timely.spark.instance.instance import ComputeInstance
from tests.spark.connect_compute_job import SCHEMA, TOTALS, append, rows

EXPECTED: dict[str, Any] = {
    "pools": [True, True, True, ["None"]],
    "anew": [[[1, 2, 15, 1]], 1, 1, 0],
    "interrupted": [True, 0],
}


def pools(spark: SparkSession) -> list[str]:
    """Return in which pools the tasks of a job are."""

    def look(batches: Any) -> Any:
        from pyspark import TaskContext

        for batch in batches:
            own = TaskContext.get()
            assert own is not None
            yield pa.RecordBatch.from_pylist(
                [{"pool": str(own.getLocalProperty("spark.scheduler.pool"))}] * batch.num_rows
            )

    return sorted({row["pool"] for row in spark.range(2).repartition(2).mapInArrow(look, "pool string").collect()})


def main(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what was found, by what was tried."""
    found: dict[str, Any] = {}
    log = spark_timely.create_log(folder / "orders", SCHEMA, minimum=(0,), kind="collection")
    append(log, (1, 1, 1, 10), upper=2)
    mine: Any = spark.cloneSession()  # type: ignore[attr-defined]
    made: list[Any] = []

    def new_session() -> SparkSession:
        made.append(spark.cloneSession())  # type: ignore[attr-defined]
        return made[-1]  # type: ignore[no-any-return]

    with ComputeInstance(mine, str(folder / "instance"), new_session=new_session) as instance:
        jobs = instance._jobs
        first, second = jobs.run("a", pools), jobs.run("b", pools)
        copies = jobs.run("copies", pools, fresh=True)
        found["pools"] = [
            first != second,
            jobs.run("a", pools) == first,
            copies == [f"{jobs._pool}-copies"],
            pools(mine),
        ]
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 1)
        mine.client.release_session()  # as a server does after an hour
        for clone in jobs._clones.values():
            clone.client.release_session()
        append(log, (2, 1, 1, 5), upper=3)
        instance.await_frontier("totals", 2)
        n_copied = instance.copy_to("totals", str(folder / "copy"), timeout_s=120)
        found["anew"] = [rows(instance.peek("totals")), n_copied, len(made), instance.show("errors").num_rows]
    for session in (mine, *made):
        session.client.close()  # the end of the process would ask for it when the server is gone
    found["interrupted"] = interrupted(spark, folder)
    return found


def interrupted(spark: SparkSession, folder: Path) -> list[Any]:
    """Return whether a job ended by being interrupted, and how many jobs were left behind."""
    begun = folder / "begun"

    def slow(batches: Any) -> Any:
        for batch in batches:
            begun.with_name(f"begun-{os.getpid()}").touch()
            time.sleep(600)
            yield batch

    instance = ComputeInstance(spark, str(folder / "instance"))
    ended: list[bool] = []

    def ask() -> None:
        try:
            instance._jobs.run("slow", lambda session: session.range(1).mapInArrow(slow, "id long").collect())
        except CanceledError as error:
            ended.append("OPERATION_CANCELED" in str(error.__cause__))

    asked = threading.Thread(target=ask)
    asked.start()
    for _ in range(1200):
        if list(folder.glob("begun-*")):
            break
        time.sleep(0.05)
    left = instance._jobs.interrupt()
    asked.join()
    instance.close(timeout_s=0)
    return [*ended, len(left)]
