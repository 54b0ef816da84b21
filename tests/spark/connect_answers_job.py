"""Answers through Spark Connect: SQL at one time, copies in files, table functions, a peek by a job.

Its server has no Delta: a mirror is refused by name.
"""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import spark_timely
from spark_timely.answers import peek as peeks
from spark_timely.answers.file_cache import KeptFiles
from spark_timely.errors import InvalidUsageError
from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.answers import copy_to as copies
from spark_timely.spark.answers.copy_folder import begin
from spark_timely.spark.answers.copy_to import copy_to
from spark_timely.spark.answers.peek_job import peek_job
from spark_timely.spark.answers.sql import sql
from spark_timely.spark.base.tags import home_of, tagged
from tests.faults.harness import wait_until
from tests.spark.held import held_rows


def attempts(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what becomes of a folder whose copy died and left its job behind."""
    marker, failed = folder.with_name("goes-on"), list[str]()
    own = begin(open_storage(folder), "copy", home_of(spark))

    def job() -> None:
        try:
            with tagged(spark, own.tag):
                copies._written(held_rows(spark, marker), f"file://{folder}/{own.folder}", "parquet", 1_000_000)
        except Exception as error:  # noqa: BLE001 - nobody is there to be told
            failed.append(str(error))

    late = threading.Thread(target=job)
    late.start()
    done = f"{own.folder}/_temporary/0/task_*/part-*.parquet"
    wait_until(lambda: bool(list(folder.glob(done))), deadline_s=60, what="the first task's file")
    found: dict[str, Any] = {}
    try:
        copy_to(spark, spark.range(100), folder)
    except InvalidUsageError as error:
        found["refused"] = error.message.partition(": ")[2]
        found["refused"] = found["refused"].replace(own.token, "TOKEN").replace(spark.session_id, "SESSION")
        call = re.search(r"end what is left of the job by (.*), then delete the folder", str(error.hint))
    assert call is not None
    # Deleted, and copied into at once: the old job is at it.
    shutil.rmtree(folder)
    end, copies.end_tagged = copies.end_tagged, lambda *_: None
    try:
        found["at once"] = copy_to(spark, spark.range(100), folder)
    finally:
        copies.end_tagged = end
    # As the hint says it, from another client.
    endpoint = str(spark.client._builder.endpoint)
    ended = eval(call[1].replace("HOST:PORT", endpoint), {"SparkSession": SparkSession})
    late.join(60)
    found["ended"] = [len(ended), len(failed), "OPERATION_CANCELED" in failed[0]]
    found["rows"] = spark.read.parquet(str(folder)).count()
    return found


def main(spark: SparkSession, folder: str) -> dict[str, Any]:
    """Return what each of them gives."""
    place, found = Path(folder), dict[str, Any]()
    logs = {}
    for name, upper in (("orders", 5), ("rates", 3)):
        schema = pa.schema([("k", pa.int64()), (name, pa.string())])
        log = logs[name] = spark_timely.create_log(place / name, schema, minimum=(0,), kind="collection")
        n = list(range(upper))
        rows = {
            "_time": pa.array(n),
            "_diff": pa.array([1] * upper),
            "k": pa.array(n),
            name: [f"{name} {k}" for k in n],
        }
        log.writer(owner="tests").append(pa.table(rows), advance_to=upper)
    frame = sql(spark, "SELECT k, orders, rates, :time AS at FROM orders JOIN rates USING (k)", names=logs)
    logs["rates"].writer(owner="tests").append(
        pa.table({"_time": [3], "_diff": [1], "k": [3], "rates": ["late"]}), advance_to=4
    )
    again = sql(spark, "SELECT count(*) AS n FROM orders JOIN rates USING (k)", names=logs)
    found["joined"] = sorted(list(row) for row in frame.where("k > 0").collect())
    found["again"] = [list(row) for row in again.collect()]
    found["all"] = frame.count()
    for format_ in ("parquet", "csv"):
        found[format_] = copy_to(spark, logs["orders"], place / format_, format=format_, where="k >= 2")
    found["attempts"] = attempts(spark, place / "attempts")
    files = [path for path in (place / "parquet").iterdir() if path.suffix == ".parquet"]
    found["copied"] = sorted(k for path in files for k in pq.read_table(path)["k"].to_pylist())
    found["names"] = sorted({path.suffix for path in (place / "csv").iterdir() if not path.name.startswith(".")})
    path = logs["rates"].path
    found["frontiers"] = [
        list(row) for row in spark.sql(f"SELECT upper, owner FROM timely_frontiers('{path}')").collect()
    ]
    progress = spark.sql(f"SELECT time, sum(delta) FROM timely_progress('{path}') WHERE owner = 'tests' GROUP BY time")
    found["progress"] = sorted(list(row) for row in progress.collect())
    kept_files, peeks.kept_files = peeks.kept_files, lambda *_: KeptFiles(small_bytes=0)
    try:
        options = {"order_by": [("k", "desc")], "limit": 2}
        rows = peeks.peek(logs["orders"], scan_limit=0, job=peek_job(spark), **options)
    finally:
        peeks.kept_files = kept_files
    found["peek"] = rows["k"].to_pylist()
    found["mirror"] = []
    for _ in range(2):  # without a table, and with one
        try:
            spark_timely.mirror_to(spark, logs["rates"], place / "mirror", key="k").step()
        except InvalidUsageError as error:
            found["mirror"].append(error.message.partition(": ")[2])
        found["mirror"].append((place / "mirror").exists())
        write_deltalake(place / "mirror", pa.table({"k": [1]}), mode="overwrite")
    return found
