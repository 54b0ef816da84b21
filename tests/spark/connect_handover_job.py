"""A hand-over through Spark Connect: the sink, foreachBatch and `batch_frontier`; run apart, as all of Connect."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_timely

SCHEMA = pa.schema([("t", pa.int64()), ("id", pa.int64())])


def main(folder: Path) -> dict[str, object]:
    """Hand the union of three logs on, twice, by both ways; then once more. Return what was found."""
    builder = SparkSession.builder.remote("local[2]")
    for name, value in spark_timely.session_settings().items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark_timely.register(spark)
    logs = {name: spark_timely.create_log(folder / name, SCHEMA, times=("long",)) for name in "abc"}
    writers = {name: log.writer(owner=name) for name, log in logs.items()}
    found: dict[str, object] = {}
    for run, news in enumerate([{"a": 10, "b": 6}, {"b": 14, "c": 9}]):
        for name, upper in news.items():
            times = pa.array([upper - 2, upper - 1], pa.int64())
            writers[name].append(pa.table({"_time": times, "t": times, "id": times}), advance_to=upper)
        a, b, c = (spark.readStream.format("timely").load(str(folder / name)) for name in "abc")
        for through in ("sink", "foreachBatch"):
            query = spark_timely.start(
                a.union(b).union(c).where("id % 2 = 0"),
                path=str(folder / through),
                checkpoint=str(folder / f"{through}-checkpoint"),
                through=through,  # type: ignore[arg-type]
                trigger="availableNow",
                time_column="t",
                frontier="source",
            )
            query.await_termination()
            found[f"{through} {run}"] = spark_timely.open_log(folder / through).frontier().to_json()

    checkpoint, told = str(folder / "told-checkpoint"), str(folder / "told-")

    def report(df: DataFrame, batch_id: int) -> None:
        import pathlib

        import spark_timely

        times = [row["t"] for row in df.collect()]
        frontier = spark_timely.batch_frontier(batch_id, checkpoint=checkpoint)
        pathlib.Path(f"{told}{batch_id}").write_text(f"{sorted(times)} {frontier.to_json()}")

    both = spark.readStream.format("timely").load(str(folder / "sink"))
    both = both.union(spark.readStream.format("timely").load(str(folder / "foreachBatch")))
    query = both.writeStream.foreachBatch(report).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    found["told"] = [file.read_text() for file in sorted(folder.glob("told-[0-9]*"))]
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    mixed = both.union(rate.selectExpr("value AS t", "value AS id"))
    options = {"path": str(folder / "mixed"), "checkpoint": str(folder / "mixed-checkpoint"), "trigger": "availableNow"}
    try:
        spark_timely.start(mixed, **options, time_column="t", frontier="source").await_termination()  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - its text is what the test looks at
        found["refused"] = str(error)
    spark.stop()
    return found


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(Path(sys.argv[1]))) + "\n")
