"""Operators over all history through Spark Connect, started twice, as `connect` runs it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import spark_timely as st
from spark_timely import functions as tf

SCHEMA = pa.schema([("k", pa.string()), ("changed", pa.int64()), ("op", pa.string())])


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Keep a table current, count, drop duplicates and join as of a time, in two runs; return what came out."""
    log = st.create_log(str(folder / "changes"), SCHEMA, minimum=(0,))
    writer = log.writer(owner="test")
    rounds = ([(0, "a", 5, "I"), (0, "b", 1, "I"), (1, "a", 10, "D")], [(2, "a", 7, "U"), (2, "b", 3, "U")])
    for number, rows in enumerate(rounds):
        columns = dict(zip(("_time", *SCHEMA.names), zip(*rows, strict=True), strict=True))
        writer.append({name: list(values) for name, values in columns.items()}, advance_to=2 + number)
        flow = st.Dataflow("history", checkpoint=str(folder / "checkpoint"))
        changes = flow.replay(log)
        current = changes.latest("k", order_by="changed", deleted="op = 'D'")
        current.capture(str(folder / "current"))
        changes.aggregate(by="k", over="history", n=tf.count()).capture(str(folder / "counts"))
        changes.drop_duplicates("k").capture(str(folder / "first"))
        renamed = current.select("k", now=pc.field("changed"))
        changes.join(renamed, on="k", how="left", as_of=True).capture(str(folder / "joined"))
        # No input of the driver's own: the tasks are Spark's.
        query = flow.start(spark, trigger={"availableNow": True}, workers=2, max_bytes_in_driver=0)
        query.await_termination()
    found: dict[str, object] = {}
    for name in ("current", "counts", "first", "joined"):
        out = st.open_log(str(folder / name))
        rows_of = out.messages().select(["_time", *(["_diff"] * (out.kind == "collection")), *out.schema.names])
        found[name] = sorted(([*row.values()] for row in rows_of.to_pylist()), key=repr)
    found["result"] = sorted(row["k"] for row in query.result(str(folder / "first")).collect())
    found["explain"] = flow.explain()
    return found
