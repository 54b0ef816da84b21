"""A dataflow through Spark Connect, started twice, as `connect` runs it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import spark_timely as st
from spark_timely import functions as tf


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Run a dataflow, go on after more input; return what came out."""
    log = st.create_log(str(folder / "in"), pa.schema([("k", pa.string()), ("n", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="test")
    frontiers = []
    for first, upper in ((0, 10), (10, [])):
        times = [first + step for step in range(12)]
        keys = [f"k{time % 2}" for time in times]
        writer.append(pa.table({"_time": times, "k": keys, "n": times}), advance_to=upper)
        flow = st.Dataflow("flow", checkpoint=str(folder / "checkpoint"))
        doubled = flow.replay(log).map(lambda rows: rows.set_column(2, "n", pc.multiply(rows["n"], 2)))
        doubled.delay(tf.ceil_to(10)).aggregate(by="k", n=tf.sum("n")).capture(str(folder / "out"))
        sizes = doubled.filter("n > 20 AND k LIKE 'k%'").unary_notify(lambda time, rows: rows.slice(0, rows.num_rows))
        sizes.capture(str(folder / "large"))
        other = st.Dataflow("other", checkpoint=str(folder / "unused"))
        few = other.replay(log).filter("n > 5").delay(tf.windows(5))
        few.aggregate(by="k", n=tf.sum("n")).capture(str(folder / "windows"))
        query = flow.start(spark, trigger={"availableNow": True}, workers=2, max_bytes_per_task=1, beside=[other])
        query.await_termination()
        frontiers.append(query.frontier.to_json())
    rows = {each.operator: each.rows for each in flow.metrics() if each.operator == each.output}
    large = sorted(row["n"] for row in query.result(str(folder / "large")).collect())
    windows = st.open_log(str(folder / "windows")).messages().select(["_time", "k", "n"]).to_pylist()
    # More steps than a micro-batch has: the clock, another process than the engine, is asked for the next one.
    many = st.create_log(str(folder / "many"), pa.schema([("n", pa.int64())]), minimum=(0,))
    many.writer(owner="test").append(pa.table({"_time": range(33), "n": range(33)}), advance_to=33)
    steps = st.Dataflow("steps", checkpoint=str(folder / "checkpoint of steps"))
    steps.replay(many).capture(str(folder / "steps"))
    lives = steps.start(spark, trigger={"processingTime": "0 seconds"}, max_times_per_step=1, workers=1)
    frontiers.append(lives.await_frontier(32, timeout_s=240).to_json())
    lives.stop()
    # With reports of progress the client's library may wait for ever after a micro-batch.
    assert spark.conf.get("spark.connect.progress.reportInterval") == "-1"
    found = st.open_log(str(folder / "out")).messages().select(["_time", "k", "n"]).to_pylist()
    return {
        "captured": rows,
        "large": large,
        "windows": sorted([list(row.values()) for row in windows]),
        "frontiers": frontiers,
        "rows": sorted([list(row.values()) for row in found]),
    }
