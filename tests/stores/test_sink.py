"""A query that writes into a log in an object store by the sink: how many requests a micro-batch costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_timely
from tests.faults.harness import tell
from tests.stores.conftest import Place
from tests.stores.proxy import Request

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BATCHES, TASKS = 6, 2
# The log is made in commits of its own, and each of the sink's processes opens it once.
BEFORE = 2


def by_commit(requests: list[Request]) -> list[list[Request]]:
    """Return the requests up to each entry of the table's log that was put, it included."""
    found: list[list[Request]] = [[]]
    for request in requests:
        found[-1].append(request)
        if request.kind == "PUT" and "/_delta_log/" in request.key and request.status in (200, 201):
            found.append([])
    return found[:-1]


def test_captured_micro_batch_takes_fifteen_requests(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    spark_timely.credential(spark, "store", place.options)
    for number in range(BATCHES):
        rows = spark.range(100 * number, 100 * number + 100, 1, 1)
        rows.write.mode("append").parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    query = (
        source.repartition(TASKS)
        .writeStream.format("timely")
        .options(path=place.url, credential="store", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with place.proxy.counting() as seen:
        query.awaitTermination()
    log = spark_timely.open_log(place.url, storage_options=place.server.options())
    assert sorted(log.messages()["id"].to_pylist()) == list(range(100 * BATCHES))
    assert len(log.core.files()) == BATCHES * TASKS
    batches = by_commit(seen.requests)[-BATCHES + BEFORE :]
    tell(f"requests of each micro-batch: {[len(batch) for batch in batches]}")
    assert max(map(len, batches)) <= 15, str(seen)
    assert not [request for batch in batches for request in batch if request.kind == "LIST"], str(seen)
