"""Continual tasks through Spark Connect, as `connect` runs it; and through a classic session, as the test does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.testing import assert_same_together
from tests.faults.harness import long_lane

KV = pa.schema([("k", pa.string()), ("n", pa.int64())])


def kv_log(
    path: Path,
    rows: Sequence[tuple[int, tuple[Any, Any], int]],
    *,
    kind: Literal["stream", "collection"] = "stream",
    upper: object = 10,
) -> str:
    """Make a log of keys and numbers from (time, row, diff); return its path."""
    log = st.create_log(path, KV, minimum=(0,), kind=kind)
    columns: dict[str, Any] = {
        "_time": pa.array([time for time, _, _ in rows], pa.int64()),
        "k": pa.array([k for _, (k, _), _ in rows], pa.string()),
        "n": pa.array([n for _, (_, n), _ in rows], pa.int64()),
    }
    if kind == "collection":
        columns["_diff"] = pa.array([diff for *_, diff in rows], pa.int64())
    log.writer(owner="test").append(pa.table(columns), advance_to=upper)
    return str(path)


def updates(path: str | os.PathLike[str]) -> Counter[tuple[Any, ...]]:
    """Return what a log has: times with rows, and how often."""
    log = st.open_log(path)
    found: Counter[tuple[Any, ...]] = Counter()
    for row in log.messages().to_pylist():
        found[row["_time"], *(row[name] for name in log.schema.names)] += row.get("_diff", 1)
    return Counter({row: n for row, n in found.items() if n})


messages = updates


def contents(path: str | os.PathLike[str], time: int) -> Counter[tuple[Any, ...]]:
    """Return what a collection holds as of a time."""
    found: Counter[tuple[Any, ...]] = Counter()
    for (when, *row), n in updates(path).items():
        if when <= time:
            found[tuple(row)] += n
    return Counter({row: n for row, n in found.items() if n})


def write_orders(folder: Path) -> None:
    """Write the logs ``orders`` and ``rates``, both complete."""
    folder.mkdir(parents=True, exist_ok=True)
    orders = [(time, ("ab"[time % 2], time), 1) for time in (1, 2, 4, 5, 7)]
    kv_log(folder / "orders", orders, upper=[])
    changes = [(0, ("a", 2), 1), (0, ("b", 3), 1), (4, ("a", 2), -1), (4, ("a", 5), 1), (6, ("b", 3), -1)]
    kv_log(folder / "rates", changes, kind="collection", upper=[])


def newest(
    inputs: Mapping[str, DataFrame], references: Mapping[str, DataFrame], time: object, output: DataFrame | None
) -> DataFrame | tf.Changes:
    """Keep the newest number of each key."""
    last = inputs["o"].groupBy("k").agg(F.max("n").alias("n"))
    if output is None:
        return last
    return tf.Changes(insert=last, delete=output.join(last.select("k"), "k", "left_semi"))


def multiplied(inputs: Mapping[str, pa.Table], references: Mapping[str, pa.Table], time: object) -> pa.Table:
    """Multiply the number of each order with that of its key."""
    del time
    rates = references["r"].rename_columns(["k", "rate"])
    both = inputs["o"].join(rates, "k", join_type="inner")
    return pa.table({"k": both["k"], "n": pc.multiply(both["n"], both["rate"])})


def multiplied_together(
    inputs: Mapping[str, DataFrame], references: Mapping[str, DataFrame], times: object
) -> DataFrame:
    """Do the same at many times."""
    del times
    there = "o._time >= r._from AND (r._to IS NULL OR o._time < r._to) AND o.k = r.k"
    both = inputs["o"].alias("o").join(references["r"].alias("r"), F.expr(there))
    return both.selectExpr("o.k", "o.n * r.n AS n", "o._time")


def enrich(spark: SparkSession, folder: Path) -> None:
    """Run tasks and an upsert over the orders, in one query: all steps of each, of some many times together."""
    logs = {"inputs": {"o": folder / "orders"}, "references": {"r": folder / "rates"}}
    tasks = [
        st.ContinualTask(
            "enrich", **logs, output=folder / "enriched", body="SELECT o.k, o.n * r.n AS n FROM o JOIN r USING (k)"
        ),
        st.ContinualTask(
            "best",
            inputs=logs["inputs"],
            output=folder / "best",
            body="DELETE FROM output WHERE k IN (SELECT k FROM o);"
            "INSERT INTO output SELECT k, max(n) AS n FROM o GROUP BY k",
        ),
        st.ContinualTask(
            "function", inputs=logs["inputs"], output=folder / "function", body=newest, version="1", deletes=True
        ),
        st.ContinualTask("arrow", **logs, output=folder / "arrow", body=multiplied, version="1", arrow=True, schema=KV),
        st.ContinualTask(
            "times", **logs, output=folder / "times", body=multiplied_together, version="1", many_times=True
        ),
    ]
    upsert = st.ContinualTask.upsert(
        "upsert", input=folder / "orders", output=folder / "upserted", keys="k", sequence_by="n", delete_when="n = 4"
    )
    assert tasks[0].start(spark, trigger="availableNow", beside=[*tasks[1:], upsert]).await_termination(300)
    assert "many times together" in tasks[0].explain()
    assert_same_together(tasks[0], spark)


def many_steps(spark: SparkSession, folder: Path, n: int) -> None:
    """Run two tasks with one alias over different logs, beside a user's view of that name, over many times."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = {name: kv_log(folder / name, [(t, (name, t), 1) for t in range(n)], upper=[n]) for name in "ab"}
    spark.sql("SELECT 'mine' AS k, -1 AS n").createOrReplaceTempView("i")
    before = {table.name for table in spark.catalog.listTables()}
    one, other = (
        st.ContinualTask(name, inputs={"i": log}, output=folder / f"out {name}", body="SELECT k, n FROM i LIMIT 9")
        for name, log in logs.items()
    )
    try:
        assert one.start(spark, trigger="availableNow", beside=[other]).await_termination(3000)
        assert {table.name for table in spark.catalog.listTables()} == before
        assert [tuple(row) for row in spark.table("i").collect()] == [("mine", -1)]
    finally:
        spark.catalog.dropTempView("i")
    for name in logs:
        assert messages(folder / f"out {name}") == Counter({(t, name, t): 1 for t in range(n)})


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Run the tasks; return which views are left."""
    write_orders(folder)
    enrich(spark, folder)
    many_steps(spark, folder / "many", 1000 if long_lane() else 3)
    return {"views": [table.name for table in spark.catalog.listTables()]}
