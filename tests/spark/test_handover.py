"""Completeness from job to job: ``frontier=source`` and `batch_frontier` through real queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.spark import batch_frontier
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("t", pa.int64()), ("id", pa.int64())])


class Producer:
    """Writes a log without Spark."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = str(folder / name)
        self.writer = spark_timely.create_log(self.path, SCHEMA, times=("long",)).writer(owner=f"producer of {name}")
        self.n_rows = 0

    def put(self, times: list[int], frontier: int) -> None:
        """Append rows, and say that the times before `frontier` are complete."""
        ids = range(self.n_rows, self.n_rows + len(times))
        self.n_rows += len(times)
        time = pa.array(times, pa.int64())
        self.writer.append(pa.table({"_time": time, "t": time, "id": pa.array(ids, pa.int64())}), advance_to=frontier)


def read(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.readStream.format("timely").options(**options).load(path)


def hand_over(df: DataFrame, folder: Path, name: str, through: str = "sink") -> spark_timely.Log:
    """Capture what there is now with ``frontier=source``, going on from the checkpoint."""
    log = str(folder / name)
    spark_timely.start(
        df,
        path=log,
        checkpoint=str(folder / f"{name}-checkpoint"),
        trigger="availableNow",
        through=through,  # type: ignore[arg-type]
        time_column="t",
        frontier="source",
    ).await_termination()
    return spark_timely.open_log(log)


def test_plain_code_between_jobs_and_the_end_that_passes_on(spark: SparkSession, tmp_path: Path) -> None:
    left, right = Producer(tmp_path, "left"), Producer(tmp_path, "right")
    names = spark.createDataFrame([(0, "zero"), (1, "one")], "rest long, name string")
    wanted: list[tuple[int, int, str]] = []

    def run() -> tuple[spark_timely.Log, spark_timely.Log]:
        some = read(spark, left.path).where("id % 2 = 0").selectExpr("t", "id", "id % 4 div 2 AS rest")
        first = hand_over(some, tmp_path, "first")
        others = read(spark, right.path).selectExpr("t", "id", "id % 2 AS rest")
        named = read(spark, str(tmp_path / "first")).union(others).join(names, "rest").select("t", "id", "name")
        return first, hand_over(named, tmp_path, "second", "foreachBatch")

    def put(left_rows: list[int], right_rows: list[int], frontier: int) -> None:
        wanted.extend(
            (t, n, "one" if n % 4 == 2 else "zero") for n, t in enumerate(left_rows, left.n_rows) if n % 2 == 0
        )
        wanted.extend((t, n, "one" if n % 2 else "zero") for n, t in enumerate(right_rows, right.n_rows))
        left.put(left_rows, frontier)
        right.put(right_rows, frontier - 1)

    put([1, 1, 2, 3, 4], [1, 2, 9], 5)
    first, second = run()
    assert first.frontier() == Antichain.of(5)
    assert second.frontier() == Antichain.of(4)
    put([7], [12], 10)  # times that come to nothing move the frontier too
    left.writer.close()
    first, second = run()
    assert first.frontier().is_empty
    assert second.frontier() == Antichain.of(9)
    right.writer.close()
    version = first.core.version
    first, second = run()
    assert second.frontier().is_empty
    # A query that has finished starts and ends without ado.
    assert first.core.version == version
    found = second.messages()
    assert sorted(zip(*(found[name].to_pylist() for name in ("t", "id", "name")), strict=True)) == sorted(wanted)
    assert all(log.verify().legal for log in (first, second))


def test_foreach_batch_is_told_what_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    producer = Producer(tmp_path, "log")
    checkpoint = str(tmp_path / "checkpoint")
    seen: list[tuple[list[int], object]] = []

    def report(df: DataFrame, batch_id: int) -> None:
        times = sorted(df.toArrow()["t"].to_pylist())
        seen.append((times, batch_frontier(batch_id, checkpoint=checkpoint).to_json()))

    def run() -> None:
        df = read(spark, producer.path, maxTimesPerTrigger="2")
        writer = df.writeStream.foreachBatch(report).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    producer.put([1, 2, 2, 5], 9)
    run()
    producer.put([9], 10)
    producer.writer.close()
    run()
    assert seen == [([1, 2, 2], [5]), ([5], [9]), ([9], [])]


def test_query_without_completeness_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    producer = Producer(tmp_path, "log")
    producer.put([1, 2], 5)
    log = read(spark, producer.path)
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    cases = [
        ("other", log.union(ticks.selectExpr("value AS t", "value AS id")), "found Spark's rate source that is not"),
        ("state", log.dropDuplicates(["id"]), "found stateful operators in the query: dedupe"),
    ]
    for name, df, text in cases:
        with pytest.raises(Exception, match=r"\[TIMELY_INVALID_USAGE\] could not tell") as found:
            hand_over(df, tmp_path, name)
        assert text in str(found.value)
        assert not list((tmp_path / name).rglob("*"))
