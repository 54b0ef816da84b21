"""The source through real queries: contents, triggers, types, restarts."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from chispa import assert_df_equality

import spark_timely
from spark_timely.spark import read_splits, session_settings
from spark_timely.testing import assert_same_rows
from tests.faults.harness import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PAYLOAD = pa.schema([pa.field("key", pa.int64(), nullable=False), ("word", pa.string())])
# What a computation says of its order and of nulls is Spark's.
LOOSE: dict[str, Any] = {"ignore_row_order": True, "ignore_nullable": True}


def make_log(path: str, *, kind: str = "stream", streams: tuple[str, ...] = ("a", "b")) -> spark_timely.Log:
    """Make a log of several streams: times 1 to 8 closed, 9 open."""
    log = spark_timely.create_log(path, PAYLOAD, minimum=(0,), kind=kind, streams=len(streams))
    for place, stream in enumerate(streams):
        writer = log.writer(stream, owner=stream)
        for first in (1, 5):
            times = [time for time in range(first, first + 4) for _ in range(3)]
            keys = [100 * place + time for time in times]
            table = pa.table({"_time": times, "key": keys, "word": [f"w{key % 3}" for key in keys]})
            writer.append(table, advance_to=first + 4)
        writer.append(pa.table({"_time": [9], "key": [9], "word": ["open"]}))
    return log


class Batches:
    """A foreachBatch function that keeps the rows of each micro-batch."""

    def __init__(self) -> None:
        self.tables: dict[int, pa.Table] = {}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.tables[batch_id] = df.toArrow()

    def column(self, name: str) -> list[list[Any]]:
        return [sorted(table.column(name).to_pylist()) for _, table in sorted(self.tables.items())]

    def rows(self) -> pa.Table:
        return pa.concat_tables(self.tables.values())


def run(df: DataFrame, checkpoint: Path, **trigger: Any) -> tuple[Batches, list[dict[str, Any]]]:
    """Run a query to its end; return its micro-batches and the progress of its source."""
    batches = Batches()
    writer = df.writeStream.foreachBatch(batches).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**(trigger or {"availableNow": True})).start()
    query.awaitTermination()
    return batches, [progress["sources"][0] for progress in map(json.loads, (p.json for p in query.recentProgress))]


def replay(spark: SparkSession, log: spark_timely.Log, **options: Any) -> DataFrame:
    return spark.readStream.format("timely").options(**options).load(log.path)


def test_limits_offsets_and_lag_are_what_spark_shows(spark: SparkSession, log_path: str, tmp_path: Path) -> None:
    log = make_log(log_path)
    df = replay(spark, log, maxTimesPerTrigger=3, includeTime=True, workers=2)
    batches, progress = run(df, tmp_path / "checkpoint")
    assert [sorted(set(times)) for times in batches.column("_time")] == [[1, 2, 3], [4, 5, 6], [7, 8]]
    # Spark shows offsets as JSON, and our own report as the latest one.
    ends = [json.loads(p["endOffset"]) if isinstance(p["endOffset"], str) else p["endOffset"] for p in progress]
    assert [end["frontier"] for end in ends] == [[4], [7], [9]]
    lags = [
        json.loads(p["latestOffset"]) if isinstance(p["latestOffset"], str) else p["latestOffset"] for p in progress
    ]
    assert [lag["frontier"] for lag in lags] == [[9], [9], [9]]
    assert [lag["behindRows"] for lag in lags][-1] == 0
    again, _ = run(df, tmp_path / "checkpoint")
    assert again.tables == {}


def test_trigger_once_takes_all_and_the_default_trigger_follows(
    spark: SparkSession, log_path: str, tmp_path: Path
) -> None:
    log = make_log(log_path)
    batches, _ = run(replay(spark, log, maxTimesPerTrigger=1), tmp_path / "once", once=True)
    assert [len(keys) for keys in batches.column("key")] == [48]
    follow = Batches()
    query = (
        replay(spark, log, startingFrontier="latest", includeTime=True)
        .writeStream.foreachBatch(follow)
        .option("checkpointLocation", str(tmp_path / "follow"))
        .start()
    )
    try:
        # An empty micro-batch pins `latest`; what closes after it is delivered.
        wait_until(lambda: 0 in follow.tables, deadline_s=120, what="the first micro-batch")
        for stream in ("a", "b"):
            log.advance(stream, 10)
        wait_until(lambda: follow.rows().num_rows == 2, deadline_s=120, what="the rows at time 9")
    finally:
        query.stop()
    assert follow.rows().column("_time").to_pylist() == [9, 9]


def test_batch_repeated_after_a_lost_commit_file_is_the_same(
    spark: SparkSession, log_path: str, tmp_path: Path
) -> None:
    log, checkpoint = make_log(log_path), tmp_path / "checkpoint"
    first, _ = run(replay(spark, log, maxTimesPerTrigger=4, includeTime=True, workers=3), checkpoint)
    assert sorted(first.tables) == [0, 1]
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    log.compact()
    again, _ = run(replay(spark, log, workers=1, includeTime=True, splitBy="time"), checkpoint)
    assert sorted(again.tables) == [1]
    assert_same_rows(again.tables[1], first.tables[1])
    # And the very first one, whose start is logged nowhere.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
        (checkpoint / "offsets" / name).unlink()
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    once_more, _ = run(replay(spark, log, workers=2, includeTime=True, startingFrontier="[5]"), checkpoint)
    assert_same_rows(once_more.tables[0], first.tables[0])


# What `arrival` does differently needs no Spark: `tests/unit/datasource/test_put_back.py`, and events below.
by_delivery = pytest.mark.parametrize("delivery", ["complete", pytest.param("arrival", marks=pytest.mark.long)])


@by_delivery
def test_log_put_back_while_the_query_was_stopped_is_refused(
    spark: SparkSession, log_path: str, tmp_path: Path, delivery: str
) -> None:
    """By its numbers it is past the query. The state that the query has seen is continued, each row once."""

    def grow(word: str, *frontiers: int) -> None:
        for upper in frontiers:
            for stream in ("a", "b"):
                table = pa.table({"_time": [upper - 1], "key": [upper], "word": [word]})
                spark_timely.open_log(log_path).writer(stream, owner=stream).append(table, advance_to=upper)

    def query() -> DataFrame:
        options = {"delivery": delivery, "maxRowsPerTrigger": 20, "includeTime": True}
        return spark.readStream.format("timely").options(**options).load(log_path)

    make_log(log_path)
    shutil.copytree(log_path, tmp_path / "before")
    grow("seen", 10, 11)
    first, _ = run(query(), tmp_path / "checkpoint")
    shutil.move(log_path, tmp_path / "seen")
    shutil.copytree(tmp_path / "before", log_path)
    grow("other", 12, 14, 17)
    files = sorted(os.walk(log_path))
    for _ in range(2):
        with pytest.raises(Exception, match="could not continue from the checkpoint") as caught:
            run(query(), tmp_path / "checkpoint")
        line = str(caught.value).splitlines()[0]
        assert "DataLossError: [TIMELY_DATA_LOSS] could not continue from the checkpoint: found another" in line
        assert "hint: put back the log that the query has seen" in line
    assert sorted(os.walk(log_path)) == files
    shutil.rmtree(log_path)
    shutil.move(tmp_path / "seen", log_path)
    spark_timely.open_log(log_path).compact()
    grow("next", 12, 13)
    again, _ = run(query(), tmp_path / "checkpoint")
    assert min(again.tables) == max(first.tables) + 1
    upper = None if delivery == "arrival" else [13]
    columns = ["_time", "key", "word"]
    found = pa.concat_tables([first.rows(), again.rows()]).select(columns)
    assert_same_rows(found, spark_timely.open_log(log_path).messages(upper=upper, columns=columns))
    assert run(query(), tmp_path / "checkpoint")[0].tables == {}


@by_delivery
def test_events_captured_again_make_the_same_log(
    spark: SparkSession, log_path: str, tmp_path: Path, delivery: str
) -> None:
    log = make_log(log_path)
    copy = tmp_path / "copy"
    options = {"content": "events", "delivery": delivery, "maxRowsPerTrigger": 20, "workers": 2}
    query = (
        replay(spark, log, **options)
        .writeStream.format("timely")
        .option("path", str(copy))
        .option("frontier", "events")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    made = spark_timely.open_log(copy)
    assert made.domain == log.domain
    assert made.frontier() == log.frontier()
    upper = None if delivery == "arrival" else log.frontier()
    names = ["_time", "key", "word"]
    assert_same_rows(made.messages(upper=upper, columns=names), log.messages(upper=upper, columns=names))
    assert made.verify().legal


def test_splits_are_read_inside_map_in_arrow(spark: SparkSession, log_path: str, tmp_path: Path) -> None:
    log = make_log(log_path)

    def kernel(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in read_splits(batches, columns=["_time", "key"]):
            yield from rows.group_by("_time").aggregate([("key", "sum"), ("key", "count")]).to_batches()

    splits = replay(spark, log, content="splits", splitBy="time", workers=3)
    sums = splits.mapInArrow(kernel, "_time long, key_sum long, key_count long")
    batches, _ = run(sums, tmp_path / "checkpoint")
    found = batches.rows().sort_by("_time")
    assert found.column("_time").to_pylist() == list(range(1, 9))  # each time once: no shuffle was needed
    assert found.column("key_count").to_pylist() == [6] * 8
    assert found.column("key_sum").to_pylist() == [3 * (100 + 2 * time) for time in range(1, 9)]


def test_batch_read_takes_the_same_options(spark: SparkSession, log_path: str) -> None:
    log = make_log(log_path)
    read = spark.read.format("timely")
    assert read.load(log.path).count() == 48
    assert read.option("delivery", "arrival").load(log.path).count() == 50
    options = {"startingFrontier": "[3]", "upTo": "[5]", "includeTime": "true", "includeMetadata": "true"}
    found = spark.read.format("timely").options(**options).load(log.path).toArrow()
    assert found.column_names == ["_stream", "_seq", "_time", "key", "word"]
    assert set(found.column("_time").to_pylist()) == {3, 4}
    counted = spark.read.format("timely").options(columns="word", streamFilter="a").load(log.path)
    assert counted.columns == ["word"]
    assert counted.groupBy("word").count().count() == 3


def test_where_leaves_rows_out_as_sparks_filter_does(spark: SparkSession, log_path: str, tmp_path: Path) -> None:
    log = make_log(log_path)
    options = {"maxTimesPerTrigger": 2, "includeTime": True}
    first, progress = run(replay(spark, log, where="word = 'w1' AND key < 200", **options), tmp_path / "checkpoint")
    plain, same = run(replay(spark, log, **options).where("word = 'w1' AND key < 200"), tmp_path / "plain")
    assert first.tables.keys() == plain.tables.keys()
    for number, rows in plain.tables.items():
        assert_same_rows(first.tables[number], rows)
    assert sum(rows.num_rows for rows in first.tables.values()) > 0
    assert [each["endOffset"] for each in progress] == [each["endOffset"] for each in same]
    # What was left out has been read: another condition begins where the one before it stopped.
    log.writer("a", owner="a").append(pa.table({"_time": [9], "key": [9], "word": ["late"]}), advance_to=10)
    log.writer("b", owner="b").advance(10)
    second, _ = run(replay(spark, log, where="key = 9", **options), tmp_path / "checkpoint")
    assert sorted(second.rows().column("word").to_pylist()) == ["late", "open", "open"]

    def kernel(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in read_splits(batches, columns=["key"]):
            yield from rows.to_batches()

    splits = spark.read.format("timely").options(content="splits", where="word = 'w2'", columns="key").load(log.path)
    found = splits.mapInArrow(kernel, "key long").toArrow()["key"].to_pylist()
    assert sorted(found) == sorted(
        row.key for row in spark.read.format("timely").load(log.path).where("word='w2'").collect()
    )


def test_contents_of_a_collection_and_their_changes(spark: SparkSession, log_path: str, tmp_path: Path) -> None:
    log = spark_timely.create_log(log_path, PAYLOAD, minimum=(0,), kind="collection")
    writer = log.writer(owner="o")
    writer.append(
        pa.table({"_time": [1, 2, 2, 3], "key": [1, 1, 2, 2], "word": ["x", "x", None, None], "_diff": [1, -1, 2, 1]}),
        advance_to=4,
    )
    writer.append(pa.table({"_time": [4], "key": [2], "word": [None], "_diff": [-1]}), advance_to=5)
    batches, _ = run(replay(spark, log, asOf=3, includeTime=True), tmp_path / "checkpoint")
    assert [t.to_pylist() for t in batches.tables.values()] == [
        [{"_time": 3, "_diff": 3, "key": 2, "word": None}],
        [{"_time": 4, "_diff": -1, "key": 2, "word": None}],
    ]
    for time, wanted in ((1, [(1, "x")]), (2, [(2, None)] * 2), (3, [(2, None)] * 3), (4, [(2, None)] * 2)):
        contents = spark_timely.snapshot(spark, log, time)
        assert_df_equality(contents, spark.createDataFrame(wanted, contents.schema), ignore_row_order=True)
        assert_df_equality(
            spark_timely.snapshot(spark, log_path, time, diffs=True),
            spark.createDataFrame(log.snapshot(time).select(["_diff", "key", "word"])),
            **LOOSE,
        )
    updates = spark_timely.consolidate(spark.read.format("timely").load(log_path))
    wanted = spark.createDataFrame([(2, 2, None)], "_diff long, key long, word string")
    assert_df_equality(updates, wanted, **LOOSE)


def test_contents_that_are_negative_fail_the_query(spark: SparkSession, log_path: str) -> None:
    log = spark_timely.create_log(log_path, PAYLOAD, minimum=(0,), kind="collection")
    log.writer(owner="o").append(pa.table({"_time": [1], "key": [1], "word": ["x"], "_diff": [-1]}), advance_to=2)
    with pytest.raises(Exception, match=r"\[TIMELY_NEGATIVE_MULTIPLICITY\] could not take a snapshot") as caught:
        spark_timely.snapshot(spark, log, 1).collect()
    assert re.search("found row=.*x.* with count=-1 — hint: verify the capture: it retracts", str(caught.value))


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_sums_of_diffs_are_exact_or_fail_the_query(spark: SparkSession, log_path: str, ansi: str) -> None:
    most = 2**63 - 1
    log = spark_timely.create_log(log_path, PAYLOAD, minimum=(0,), kind="collection")
    writer = log.writer(owner="o")
    for time, diff in enumerate([most, 1, -5, 6]):
        rows = pa.table({"_time": [time], "key": [1], "word": ["x"], "_diff": [diff]})
        writer.append(rows, advance_to=time + 1)
    fitting = [(1, most), (1, 1), (1, -5), (2, -most), (2, -2), (2, 1), (3, 2**32), (3, -(2**32)), (4, None)]
    beyond = {most + 1: [(1, most), (1, 1)], -most - 2: [(2, -most), (2, -2)], 2 * most: [(3, most), (3, most)]}
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        found = spark_timely.consolidate(spark.createDataFrame(fitting, "key long, _diff long"))
        sums = spark.createDataFrame([(1, most - 4), (2, -most - 1)], "key long, _diff long")
        assert_df_equality(found, sums, **LOOSE)
        for total, rows in beyond.items():
            with pytest.raises(Exception, match=rf"TIMELY_MULTIPLICITY_OVERFLOW\] .*found diff={total} — hint"):
                spark_timely.consolidate(spark.createDataFrame(rows, "key long, _diff long")).collect()
        assert spark_timely.snapshot(spark, log, 2, diffs=True).first().asDict()["_diff"] == most - 4
        with pytest.raises(Exception, match=rf"TIMELY_MULTIPLICITY_OVERFLOW\] .*found diff={most + 2} — hint"):
            spark_timely.snapshot(spark, log, 3).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def test_consolidated_diffs_of_other_types(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [("a", 1, 0.5), ("a", 2, 0.25), ("b", 3, None), ("c", None, 1.0)], "k string, n int, x double"
    )
    whole = spark_timely.consolidate(rows.drop("x"), diff="n")
    assert_df_equality(whole, spark.createDataFrame([("a", 3), ("b", 3)], "k string, n long"), **LOOSE)
    broken = spark_timely.consolidate(rows.drop("n"), diff="x")
    assert_df_equality(broken, spark.createDataFrame([("a", 0.75), ("c", 1.0)], "k string, x double"), **LOOSE)
    names = "`a``b` string, `d``.e` long"
    quoted = spark_timely.consolidate(spark.createDataFrame([("p", 1), ("p", 2)], names), diff="d`.e")
    assert_df_equality(quoted, spark.createDataFrame([("p", 3)], names), ignore_nullable=True)


ALL_TYPES = pa.schema(
    [
        ("bool", pa.bool_()),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        pa.field("long", pa.int64(), nullable=False),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(38, 10)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("list", pa.list_(pa.field("element", pa.timestamp("us", "UTC")))),
        ("map", pa.map_(pa.string(), pa.decimal128(5, 2))),
        ("struct", pa.struct([("a", pa.list_(pa.int32())), ("b", pa.struct([("c", pa.date32())]))])),
    ]
)


def test_every_type_comes_out_as_it_went_in(spark: SparkSession, log_path: str, tmp_path: Path) -> None:
    """One stream of files as we write them, and one that Delta for Spark has written again."""
    moment = dt.datetime(2024, 10, 27, 0, 30, 0, 1, tzinfo=dt.UTC)  # an hour that some zones have twice
    row: dict[str, Any] = {
        "bool": True,
        "byte": -128,
        "short": -(2**15),
        "int": 2**31 - 1,
        "long": -(2**63),
        "float": 1.5,
        "double": float("inf"),
        "decimal": decimal.Decimal("-12345678901234567890.0123456789"),
        "string": "日本\n",
        "binary": b"\x00\xff",
        "date": dt.date(1700, 1, 1),
        "timestamp": moment,
        "local": moment.replace(tzinfo=None),
        "list": [moment, None],
        "map": [("k", decimal.Decimal("1.25"))],
        "struct": {"a": [1, None], "b": {"c": dt.date(9999, 12, 31)}},
    }
    empty = {name: (0 if name == "long" else None) for name in row}
    log = spark_timely.create_log(log_path, ALL_TYPES, times=("timestamp",))
    writer = log.writer(owner="o")

    def append(rows: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(rows, schema=ALL_TYPES)
        writer.append(table.append_column("_time", pa.array([moment] * len(rows), pa.timestamp("us", "UTC"))))

    append([row, empty])
    append([row])
    spark.sql(f"OPTIMIZE delta.`{log_path}`")
    append([row, empty])
    spark_timely.open_log(log_path).advance("main", "2025-01-01T00:00:00Z")
    df = replay(spark, log, includeTime=True)
    assert df.schema["map"].simpleString() == "map:map<string,decimal(5,2)>"
    batches, _ = run(df, tmp_path / "checkpoint")
    wanted = pa.Table.from_pylist([row, empty, row, row, empty], schema=ALL_TYPES)
    found = batches.rows()
    assert set(found.column("_time").cast(pa.timestamp("us", "UTC")).to_pylist()) == {moment}
    # The session's zone is in the types of what Spark gives; the moments are the same.
    assert_same_rows(found.select(ALL_TYPES.names).cast(ALL_TYPES), wanted)


def test_dates_of_a_product_time_are_planned_by_either_way(spark: SparkSession, log_path: str, tmp_path: Path) -> None:
    log = spark_timely.create_log(log_path, pa.schema([("n", pa.int64())]), times=("date", "long"))
    days, rounds = np.meshgrid(np.arange(20), np.arange(5))
    table = pa.table(
        {
            "_time_0": pa.array(days.ravel().astype(np.int32)).view(pa.date32()),
            "_time_1": rounds.ravel(),
            "n": np.arange(100),
        }
    )
    log.writer(owner="o").append(table, advance_to=[["1970-01-11", 0], ["1970-01-01", 3]])
    found = {}
    for split_by in ("bytes", "time"):
        df = replay(spark, log, splitBy=split_by, workers=3, maxTimesPerTrigger=7)
        found[split_by], _ = run(df, tmp_path / split_by)
    assert found["bytes"].column("n") == found["time"].column("n")
    assert sum(len(batch) for batch in found["time"].column("n")) == 30


def test_source_is_found_without_registration(spark: SparkSession, log_path: str) -> None:
    """Spark imports modules named ``pyspark_*`` by itself; registering again changes nothing.

    Spark asks a shell for its Python first, and does not quote the path: with a space in it, it mostly never looks.
    And a second session cannot register there, for Spark asks the first one whether the name is taken.
    """
    spark_timely.register(spark)
    spark_timely.register(spark)
    other, path = spark.newSession(), make_log(log_path).path
    looked = subprocess.run(
        ["sh", "-c", f"command -v {os.environ['PYSPARK_PYTHON']}"], capture_output=True, check=False
    )
    if looked.returncode:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            other.read.format("timely").load(path)
        other = spark
    assert other.read.format("timely").load(path).count() == 48


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": "many"}, "workers"),
        ({"maxTimePerTrigger": "1"}, "did you mean 'maxTimesPerTrigger'?"),
        ({"asOf": "1"}, "found option asOf=1 for a log of kind 'stream'"),
        ({"startingFrontier": "[3]", "upTo": "[2]"}, "could not read a range that ends before it begins"),
    ],
)
def test_first_line_of_an_error_suffices(
    spark: SparkSession, log_path: str, options: dict[str, str], text: str
) -> None:
    log = make_log(log_path)
    with pytest.raises(Exception, match="TIMELY_") as caught:
        spark.readStream.format("timely").options(**options).load(log.path)
    line = str(caught.value).splitlines()[0]
    assert text in line
    assert "hint: " in line


def test_batch_write_is_refused(spark: SparkSession, log_path: str) -> None:
    df = spark.range(1)
    with pytest.raises(Exception, match="only streaming writes can be repeated safely"):
        df.write.format("timely").mode("append").save(log_path)


def test_jvm_gives_its_python_processes_the_path_of_the_session(spark: SparkSession) -> None:
    (row,) = spark.sql("SELECT java_method('java.lang.System', 'getenv', 'PYTHONPATH') AS path").collect()
    # The processes of a format that Spark finds by itself have no other environment than this.
    assert session_settings()["spark.executorEnv.PYTHONPATH"] in row.path.split(os.pathsep)
