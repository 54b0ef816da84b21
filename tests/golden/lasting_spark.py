"""Golden things that need Spark: captures, replays, queries of dataflows and tasks, mirrors, an instance with tasks.

Queries end by themselves, or are made to fail where they should be in the middle of a run: the micro-batch that failed
is planned, in its checkpoint, and in the log or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import spark_timely
from spark_timely import functions as tf
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.spark.answers.mirror import mirror_to
from spark_timely.spark.capture.foreach_batch import capture
from spark_timely.spark.instance.instance import ComputeInstance
from spark_timely.spark.tasks.continual import ContinualTask
from tests.faults.harness import delete_last_commit
from tests.golden.lasting import Facts, Thing, log_facts, logs_below, rows_hash
from tests.golden.lasting_plain import (
    PLAIN,
    TOTALS,
    at_each_time,
    change,
    doubled,
    feed,
    order,
    orders_in,
    put,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = {"availableNow": True}


def session() -> SparkSession:
    """Return a session as the tests have one."""
    from tests.conftest import QUICK_CHECKPOINTS, SESSION_ZONE

    found = spark_timely.session(
        "spark-timely golden",
        master="local[2]",
        delta=True,
        **{
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": SESSION_ZONE,
            "spark.sql.streaming.checkpointFileManagerClass": QUICK_CHECKPOINTS,
        },
    )
    spark_timely.register(found)
    return found


class KilledError(Exception):
    """Stands for the death of a query."""


def read_all(spark: SparkSession, folder: Path) -> Facts:
    """Return what can be read of each log."""
    del spark
    return logs_below(folder)


# Captures -----------------------------------------------------------------------------------------------


def put_file(folder: Path, index: int, times: Sequence[int]) -> None:
    """Write the rows of a micro-batch as one file, in the order of their numbers."""
    folder.mkdir(exist_ok=True)
    file = folder / f"part-{index}.parquet"
    ids = range(100 * index, 100 * index + len(times))
    pq.write_table(pa.table({"t": pa.array(times, pa.int64()), "id": pa.array(ids, pa.int64())}), file)
    os.utime(file, (1_700_000_000 + index, 1_700_000_000 + index))


def arrivals(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the files of a folder as a stream, one for each micro-batch."""
    reader = spark.readStream.schema("t long, id long").option("maxFilesPerTrigger", 1)
    return reader.option("latestFirst", "false").parquet(str(folder / "in"))


def run_sink(spark: SparkSession, folder: Path, name: str, **options: str) -> None:
    """Capture through the sink what there is."""
    places = {"path": str(folder / name), "checkpointLocation": str(folder / f"{name}-checkpoint")}
    rules = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}
    writer = arrivals(spark, folder).writeStream.format("timely").options(**places, **rules, **options)
    writer.trigger(**NOW).start().awaitTermination()


def run_capture(spark: SparkSession, folder: Path, name: str, *, fails: tuple[str, int] | None = None) -> None:
    """Capture in foreachBatch what there is, up to a failure before or after a micro-batch."""
    checkpoint = str(folder / f"{name}-checkpoint")

    def capture_one(df: DataFrame, batch_id: int) -> None:
        if fails == ("before", batch_id):
            raise KilledError
        capture(
            df, batch_id, path=str(folder / name), checkpoint=checkpoint, time_column="t", frontier="bounded",
            lateness=1, late_data="deadLetter",
        )  # fmt: skip
        if fails == ("after", batch_id):
            raise KilledError

    writer = arrivals(spark, folder).writeStream.foreachBatch(capture_one).option("checkpointLocation", checkpoint)
    query = writer.trigger(**NOW).start()
    if fails is None:
        query.awaitTermination()
        return
    with pytest.raises(StreamingQueryException, match="KilledError"):
        query.awaitTermination()


CDC = (
    "word string, _time bigint, _diff bigint, _lower array<bigint>, _upper array<bigint>,"
    " _counts array<struct<time: bigint, n: bigint>>"
)
CDC_MESSAGES: list[tuple[Any, ...]] = [
    ("a", 1, 1, None, None, None),
    (None, None, None, [0], [2], [(1, 2)]),
    ("b", 1, 1, None, None, None),
    ("c", 2, 1, None, None, None),
    (None, None, None, [2], [4], [(2, 1), (3, 1)]),
    ("a", 3, -1, None, None, None),
]


def run_cdc(spark: SparkSession, folder: Path, batches: range) -> None:
    """Capture CDCv2's messages, two in each micro-batch."""
    for batch in batches:
        df = spark.createDataFrame(CDC_MESSAGES[2 * batch : 2 * batch + 2], CDC)
        capture(df, batch, path=str(folder / "cdcv2"), app_id="golden", dialect="cdcv2")


def write_captures(spark: SparkSession, folder: Path) -> None:
    put_file(folder / "in", 0, [5, 9])
    put_file(folder / "in", 1, [8, 9, 12])
    for name in ("sink", "sink planned"):
        run_sink(spark, folder, name)
    # In the log, while Spark does not know of it.
    delete_last_commit(folder / "sink-checkpoint")
    run_capture(spark, folder, "capture", fails=("after", 1))
    run_capture(spark, folder, "capture planned", fails=("before", 1))
    run_cdc(spark, folder, range(2))
    put_file(folder / "in", 2, [12, 3, 15])
    with pytest.raises(StreamingQueryException, match="TIMELY_LATE_DATA"):
        run_sink(spark, folder, "sink planned")


def proceed_captures(spark: SparkSession, folder: Path) -> None:
    for name in ("sink", "sink planned"):
        run_sink(spark, folder, name, lateData="deadLetter")
    for name in ("capture", "capture planned"):
        run_capture(spark, folder, name)
    run_cdc(spark, folder, range(1, 3))


# Replays ------------------------------------------------------------------------------------------------


class Copies:
    """A function of foreachBatch that writes each micro-batch to a folder of its number, and may die."""

    def __init__(self, folder: Path, *, dies_at: int | None = None) -> None:
        self.folder, self.dies_at = folder, dies_at

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.folder.mkdir(exist_ok=True)
        pq.write_table(df.toArrow(), self.folder / f"{batch_id}.parquet")
        if batch_id == self.dies_at:
            raise KilledError


REPLAYS: dict[str, dict[str, Any]] = {
    "complete": {"maxTimesPerTrigger": 2, "includeTime": True},
    "arrival": {"delivery": "arrival", "maxFilesPerTrigger": 2, "includeTime": True},
    "events": {"content": "events", "maxTimesPerTrigger": 3},
}


def run_replay(spark: SparkSession, folder: Path, name: str, function: Callable[..., None]) -> None:
    """Replay with foreachBatch what there is."""
    options = {option: str(value).lower() for option, value in REPLAYS[name].items()}
    rows = spark.readStream.format("timely").options(**options).load(str(folder / "log"))
    writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(folder / f"{name}-checkpoint"))
    writer.trigger(**NOW).start().awaitTermination()


def run_driver(spark: SparkSession, folder: Path, function: Callable[..., None]) -> None:
    """Replay in the driver what there is."""
    job = spark_timely.replay(spark, folder / "log", max_times_per_trigger=2, include_time=True)
    job.foreachBatch(function).run(checkpoint=folder / "driver-checkpoint")


def hand_over(spark: SparkSession, folder: Path, through: Any) -> None:
    """Capture a replay as far as its log is complete."""
    name = f"handed over through {through}"
    rows = spark.readStream.format("timely").option("includeTime", "true").load(str(folder / "log"))
    spark_timely.start(
        rows.withColumnRenamed("_time", "t"), path=str(folder / name), checkpoint=str(folder / f"{name}-checkpoint"),
        trigger="availableNow", through=through, time_column="t", frontier="source",
    ).await_termination()  # fmt: skip


def write_replays(spark: SparkSession, folder: Path) -> None:
    log = create_log(folder / "log", PLAIN, minimum=(0,))
    for time in range(0, 6, 2):
        put(log, [time, time + 1, time + 3], time + 2)
    for name in REPLAYS:
        with pytest.raises(StreamingQueryException, match="KilledError"):
            run_replay(spark, folder, name, Copies(folder / name, dies_at=1))
    with pytest.raises(KilledError):
        run_driver(spark, folder, Copies(folder / "driver", dies_at=1))
    for through in ("sink", "foreachBatch"):
        hand_over(spark, folder, through)


def read_replays(spark: SparkSession, folder: Path) -> Facts:
    del spark
    found: Facts = {"logs": logs_below(folder)}
    for name in (*REPLAYS, "driver"):
        files = sorted((folder / name).iterdir(), key=lambda file: int(file.stem))
        found[name] = {file.stem: rows_hash(pq.read_table(file)) for file in files}
    return found


def proceed_replays(spark: SparkSession, folder: Path) -> None:
    log = open_log(folder / "log")
    put(log, [6, 6, 7, 12], 8)
    put(log, [8, 10], 12)
    for name in REPLAYS:
        run_replay(spark, folder, name, Copies(folder / name))
    run_driver(spark, folder, Copies(folder / "driver"))
    for through in ("sink", "foreachBatch"):
        hand_over(spark, folder, through)


# Queries of dataflows and tasks -------------------------------------------------------------------------

JOIN = "SELECT o.k, o.v * r.v AS v FROM orders o JOIN rates r USING (k)"
KEPT = "INSERT INTO output SELECT k, v FROM o; DELETE FROM output WHERE v < :time * 4 OR v = 10"
CHANGES = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("op", pa.string()), ("v", pa.string())])


def tables(inputs: dict[str, pa.Table], references: dict[str, pa.Table], time: object) -> pa.Table:
    """Return the rows of a time with how many rows the reference has."""
    del time
    rows = inputs["o"].select(["k", "v"])
    n = references["r"].num_rows
    return rows.append_column("n", pa.array([n] * rows.num_rows, pa.int64()))


def dataflow_of(folder: Path) -> spark_timely.Dataflow:
    flow = spark_timely.Dataflow("counts", checkpoint=str(folder / "counts-checkpoint"))
    orders = flow.replay(folder / "orders")
    orders.aggregate(by="k", over="history", n=tf.count(), s=tf.sum("v")).capture(folder / "counts")
    orders.filter(pc.field("v") > 5).capture(folder / "large")
    return flow


def run_queries(spark: SparkSession, folder: Path) -> None:
    """Run a dataflow, tasks and an upsert until nothing is left."""
    orders, rates = folder / "orders", folder / "rates"
    flows = [
        ContinualTask(
            "eur", inputs={"orders": orders}, references={"rates": rates}, body=JOIN, output=folder / "eur",
            expect={"positive": ("v > 20", "dead_letter")},
        ),
        ContinualTask("kept", inputs={"o": orders}, body=KEPT, output=folder / "kept"),
        ContinualTask(
            "tables", inputs={"o": orders}, references={"r": rates}, body=tables, version="1", arrow=True,
            output=folder / "tables",
        ),
        ContinualTask.upsert(
            "current", input=folder / "changes", output=folder / "current", keys="id", sequence_by="at",
            delete_when="op = 'D'", except_columns=["op"],
        ),
    ]  # fmt: skip
    query = dataflow_of(folder).start(spark, trigger="availableNow", beside=flows)
    assert query.await_termination(300)
    assert query.failures() == []


def upsert_rows(log: Log, rows: Sequence[tuple[Any, ...]], upper: int) -> None:
    columns = {
        name: pa.array([row[place] for row in rows], pa.int64() if place < 3 else pa.string())
        for place, name in enumerate(("_time", *CHANGES.names))
    }
    log.writer(owner="owner").append(pa.table(columns), advance_to=upper)


def write_queries(spark: SparkSession, folder: Path) -> None:
    orders_in(folder)
    rates = create_log(
        folder / "rates", pa.schema([("k", pa.int64()), ("v", pa.int64())]), kind="collection", minimum=(0,)
    )
    order(rates, [(1, 1, 1, 2), (1, 1, 2, 3), (2, -1, 2, 3), (2, 1, 2, 5)], 4)
    changes = create_log(folder / "changes", CHANGES, minimum=(0,))
    upsert_rows(changes, [(1, 7, 10, "I", "a"), (1, 8, 11, "I", "b"), (2, 7, 30, "U", "c"), (3, 8, 25, "D", None)], 4)
    run_queries(spark, folder)
    # Planned by the query, and not yet done.
    delete_last_commit(folder / "counts-checkpoint" / "ending")
    order(rates, [(4, 1, 3, 7)], 5)
    upsert_rows(changes, [(4, 8, 20, "U", "late"), (4, 9, 40, "I", "d")], 5)


def proceed_queries(spark: SparkSession, folder: Path) -> None:
    order(open_log(folder / "orders"), [(4, 1, 3, 11), (5, -1, 2, 20), (5, 1, 2, 50)], 7)
    order(open_log(folder / "rates"), [(5, -1, 1, 2), (5, 1, 1, 4)], 7)
    upsert_rows(open_log(folder / "changes"), [(5, 7, 20, "U", "older"), (6, 9, 50, "D", None)], 7)
    run_queries(spark, folder)


# A dataflow by SQL --------------------------------------------------------------------------------------
#
# Spark evaluated it, as DataFrames: it was written with `evaluation="sql"`, and with `exchange("k")` and `broadcast()`
# before the join.

BY_SQL = ("others", "sums", "counts", "inner", "left", "notified", "mapped")


def by_sql(folder: Path) -> spark_timely.Dataflow:
    flow = spark_timely.Dataflow("by sql", checkpoint=str(folder / "checkpoint"))
    events = flow.replay(folder / "in" / "events")
    words = events.select("k", m=pc.field("n"))
    values = {"n": tf.count(), "s": tf.sum("n"), "lo": tf.min("v")}
    made = {
        "others": events.branch("n > 1 AND k <> 'k2'")[1],
        "sums": events.delay(tf.ceil_to(3)).aggregate(by="k", v=tf.sum("v")),
        "counts": events.aggregate(by="k", **values, hi=tf.max("v")),
        "inner": events.join(words, on="k"),
        "left": events.filter("v IS NULL").join(words.filter("m < 2"), on="k", how="left"),
        "notified": events.unary_notify(at_each_time),
        "mapped": events.map(doubled).concat(events.select("k", "n").filter(pc.field("n") > 1)),
    }
    assert tuple(made) == BY_SQL
    for name, stream in made.items():
        stream.capture(folder / name)
    return flow


def read_by_sql(spark: SparkSession, folder: Path) -> Facts:
    del spark
    return {name: log_facts(folder / name) for name in BY_SQL}


def proceed_by_sql(spark: SparkSession, folder: Path) -> None:
    feed(folder, range(6, 8))
    query = by_sql(folder).start(spark, trigger="availableNow", max_times_per_step=2)
    assert query.await_termination(300)
    assert query.failures() == []


# Mirrors ------------------------------------------------------------------------------------------------


def step_mirrors(spark: SparkSession, folder: Path) -> None:
    for name, key in (("by key", "k"), ("counted", None)):
        mirror_to(spark, folder / "log", folder / name, key=key).step()


def write_mirrors(spark: SparkSession, folder: Path) -> None:
    log = create_log(folder / "log", PLAIN, kind="collection", minimum=(0,))
    change(log, [(0, 1, "a", 1), (1, 1, "b", 2)], 2)
    step_mirrors(spark, folder)
    change(log, [(2, -1, "a", 1), (2, 1, "a", 10)], 3)
    step_mirrors(spark, folder)
    change(log, [(3, -1, "b", 2)], 4)


def read_mirrors(spark: SparkSession, folder: Path) -> Facts:
    found: Facts = {"log": log_facts(folder / "log")}
    for name in ("by key", "counted"):
        table = spark.read.format("delta").load(str(folder / name)).toArrow()
        how = spark.sql(f"DESCRIBE HISTORY delta.`{folder / name}`").select("operation").toArrow()
        found[name] = [rows_hash(table), how["operation"].to_pylist()[::-1]]
    log = open_log(folder / "log")
    found["retained for"] = {name: each.needed.to_json() for name, each in log.retainers().items()}
    return found


def proceed_mirrors(spark: SparkSession, folder: Path) -> None:
    change(open_log(folder / "log"), [(4, 1, "c", 3)], 6)
    step_mirrors(spark, folder)


# An instance --------------------------------------------------------------------------------------------


def write_instance(spark: SparkSession, folder: Path) -> None:
    log = orders_in(folder)
    rates = create_log(
        folder / "rates", pa.schema([("k", pa.int64()), ("v", pa.int64())]), kind="collection", minimum=(0,)
    )
    order(rates, [(1, 1, 1, 2), (1, 1, 2, 3), (2, -1, 2, 3), (2, 1, 2, 5)], 4)
    with ComputeInstance(spark, str(folder / "instance"), moved=True) as instance:
        logs = {"inputs": {"orders": log.path}, "references": {"rates": rates.path}}
        instance.continual_task("eur", JOIN, into=folder / "eur", **logs)
        instance.continual_task("kept", KEPT, inputs={"o": log.path})
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.index("sums", "SELECT k, sum(v) AS s FROM eur GROUP BY k", key="k")
        for name in ("kept", "totals", "sums"):
            instance.await_frontier(name, 3, timeout_s=120)


def read_instance(spark: SparkSession, folder: Path) -> Facts:
    upper = open_log(folder / "orders").frontier().elements[0][0]
    found: Facts = {"eur": log_facts(folder / "eur")}
    with ComputeInstance(spark, str(folder / "instance"), read_only=True) as instance:
        for name in ("kept", "totals", "sums"):
            found[name] = sorted(map(repr, instance.peek(name, as_of=upper - 1).to_pylist()))
    return found


def proceed_instance(spark: SparkSession, folder: Path) -> None:
    order(open_log(folder / "rates"), [(4, 1, 3, 7)], 7)
    order(open_log(folder / "orders"), [(4, 1, 3, 11), (5, -1, 2, 20), (5, 1, 1, 50)], 7)
    with ComputeInstance(spark, str(folder / "instance"), moved=True) as instance:
        for name in ("kept", "totals", "sums"):
            instance.await_frontier(name, 6, timeout_s=120)


THINGS = [
    Thing("captures", write_captures, read_all, proceed_captures),
    Thing("replays", write_replays, read_replays, proceed_replays),
    Thing("queries", write_queries, read_all, proceed_queries),
    Thing("by sql", None, read_by_sql, proceed_by_sql),
    Thing("mirrors", write_mirrors, read_mirrors, proceed_mirrors),
    Thing("instance with tasks", write_instance, read_instance, proceed_instance),
]
