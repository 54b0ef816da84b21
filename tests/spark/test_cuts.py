"""Consistent cuts and aligned micro-batches through real queries."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import functions

import spark_timely

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def make_orders(path: str) -> spark_timely.Log:
    """Make a log of twelve small files, times 0 to 11 complete."""
    log = spark_timely.create_log(path, pa.schema([("key", pa.int64())]), minimum=(0,), merge_every=None)
    writer = log.writer(owner="o")
    for time in range(12):
        keys = list(range(5 * time, 5 * time + 5))
        writer.append(pa.table({"_time": [time] * 5, "key": keys}), advance_to=time + 1)
    return log


def test_cut_reads_several_logs_as_of_one_frontier(spark: SparkSession, tmp_path: Path) -> None:
    orders = make_orders(str(tmp_path / "orders"))
    schema = pa.schema([("name", pa.string())])
    accounts = spark_timely.create_log(tmp_path / "accounts", schema, minimum=(0,), kind="collection")
    writer = accounts.writer(owner="o")
    writer.append(pa.table({"_time": [1, 2, 2], "name": ["a", "b", "b"], "_diff": [1, 1, 1]}), advance_to=3)
    writer.append(pa.table({"_time": [3, 5, 8], "name": ["a", "b", "c"], "_diff": [-1, -1, 1]}), advance_to=6)
    text = str(spark_timely.cut([orders, accounts]))
    assert json.loads(text)["frontier"] == [6]
    before = spark_timely.snapshot(spark, text)

    def check(frames: tuple[DataFrame, ...]) -> None:
        messages, contents = frames
        keys = spark.range(30).withColumnRenamed("id", "key")
        assert_df_equality(messages.select("key"), keys, ignore_row_order=True, ignore_nullable=True)
        assert_df_equality(contents, spark.createDataFrame([("b",)], "name string"), ignore_nullable=True)

    check(before)
    # The same rows after later writes, compaction and the end of a log.
    writer.append(pa.table({"_time": [6], "name": ["d"], "_diff": [1]}), advance_to=9)
    orders.compact()
    accounts.compact()
    orders.close()
    check(spark_timely.snapshot(spark, text))
    _, diffs = spark_timely.snapshot(spark, json.loads(text), diffs=True)
    assert_df_equality(diffs, spark.createDataFrame([(1, "b")], "_diff long, name string"), ignore_nullable=True)
    # Another log in the place of one: refused, by a DataFrame too that was made and not computed before.
    made, _ = spark_timely.snapshot(spark, text)
    shutil.rmtree(orders.path)
    make_orders(orders.path)
    for use in (made.count, lambda: spark_timely.snapshot(spark, text)):
        with pytest.raises(Exception, match="the log was deleted and created again"):
            use()


def test_cut_that_is_not_reached_is_refused_by_the_query(spark: SparkSession, tmp_path: Path) -> None:
    orders = make_orders(str(tmp_path / "orders"))
    ahead = spark_timely.cut([orders], frontier=13)
    with pytest.raises(Exception, match=r"at a cut of frontier=\[13\]: found frontier=\[12\]"):
        spark_timely.snapshot(spark, ahead)[0].count()
    orders.advance("main", 20)
    assert spark_timely.snapshot(spark, ahead)[0].count() == 60


def test_micro_batches_end_at_whole_windows(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    log = spark_timely.create_log(path, pa.schema([("n", pa.int64())]), times=("timestamp",))
    start = dt.datetime(2013, 6, 1, 12, 0, tzinfo=dt.UTC)
    times = [start + dt.timedelta(minutes=4 * n) for n in range(10)]
    rows = pa.table({"_time": pa.array(times, pa.timestamp("us", "UTC")), "n": range(10)})
    log.writer(owner="o").append(rows, advance_to=start + dt.timedelta(minutes=37))
    counts: list[dict[Any, int]] = []

    def keep(df: DataFrame, batch_id: int) -> None:
        del batch_id
        grouped = df.groupBy(functions.window("_time", "10 minutes").start.alias("at")).count()
        counts.append({each["at"]: each["count"] for each in grouped.collect()})

    frame = spark.readStream.format("timely").option("includeTime", "true").option("alignTo", "10 minutes")
    query = frame.option("maxTimesPerTrigger", "4").load(path).writeStream.foreachBatch(keep)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    ends = [json.loads(progress.json)["sources"][0]["endOffset"] for progress in query.recentProgress]
    frontiers = [(json.loads(end) if isinstance(end, str) else end)["frontier"] for end in ends]
    minutes = [(f[0] - int(start.timestamp() * 1_000_000)) // 60_000_000 for f in frontiers]
    assert minutes == [10, 20, 30]
    # Each window in one micro-batch, whole: 0, 4, 8 | 12, 16 | 20, 24, 28; what is after 30 waits.
    assert [sorted(batch.values()) for batch in counts] == [[3], [2], [3]]
