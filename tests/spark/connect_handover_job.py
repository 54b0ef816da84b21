"""A hand-over through Spark Connect: the sink, foreachBatch and `batch_frontier`, as `connect` runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_timely
from spark_timely.spark import batch_frontier

SCHEMA = pa.schema([("t", pa.int64()), ("id", pa.int64())])


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Hand the union of three logs on in two runs, then the result; return what was found."""
    logs = {name: spark_timely.create_log(folder / name, SCHEMA, times=("long",)) for name in "abc"}
    writers = {name: log.writer(owner=name) for name, log in logs.items()}
    found: dict[str, object] = {}
    for run, news in enumerate([{"a": 10, "b": 6}, {"b": 14, "c": 9}]):
        for name, upper in news.items():
            times = pa.array([upper - 2, upper - 1], pa.int64())
            writers[name].append(pa.table({"_time": times, "t": times, "id": times}), advance_to=upper)
        a, b, c = (spark.readStream.format("timely").load(str(folder / name)) for name in "abc")
        query = spark_timely.start(
            a.union(b).union(c).where("id % 2 = 0"),
            path=str(folder / "first"),
            checkpoint=str(folder / "first-checkpoint"),
            trigger="availableNow",
            time_column="t",
            frontier="source",
        )
        query.await_termination()
        found[f"run {run}"] = spark_timely.open_log(folder / "first").frontier().to_json()

    checkpoint, second, told = str(folder / "second-checkpoint"), str(folder / "second"), str(folder / "told")

    def pass_on(df: DataFrame, batch_id: int) -> None:
        import pathlib

        import spark_timely

        frontier = batch_frontier(batch_id, checkpoint=checkpoint)
        pathlib.Path(told).write_text(json.dumps([batch_id, frontier.to_json()]))
        spark_timely.capture(df, batch_id, path=second, checkpoint=checkpoint, time_column="t", frontier="source")

    first = spark.readStream.format("timely").load(str(folder / "first"))
    writer = first.writeStream.foreachBatch(pass_on).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    found["told"] = json.loads(Path(told).read_text())
    return found
