"""What a type checker sees of the public names; checked by `make types`, never run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import assert_type

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_timely
from spark_timely.conf import SINK_OPTIONS, SOURCE_OPTIONS, SinkGiven, SinkOptions, SourceOptions, parse_options
from spark_timely.errors import NotBeyondError, StorageError, TimelyError
from spark_timely.spark import batch_frontier, read_splits, session_settings
from spark_timely.typing import CaptureQuery, Cut, DataflowQuery


def options() -> None:
    assert_type(parse_options(SINK_OPTIONS, {"path": "a"}), SinkOptions)
    assert_type(parse_options(SOURCE_OPTIONS, {"path": "a"}), SourceOptions)
    assert_type(parse_options(SINK_OPTIONS, {"path": "a"}).time_column, tuple[str, ...])
    assert_type(parse_options(SOURCE_OPTIONS, {"path": "a"}).workers, int | None)


def errors() -> None:
    error: TimelyError = NotBeyondError("could not", time=3, frontier=[5])
    assert_type(error.hint, str | None)
    assert_type(StorageError("could not").determinate, bool)
    assert_type(spark_timely.errors.TimelyError("could not").context, dict[str, object])


def logs(path: str, schema: pa.Schema) -> None:
    assert_type(spark_timely.create_log(path, schema, times=("long",)), spark_timely.Log)
    log = spark_timely.open_log(path)
    assert_type(log, spark_timely.Log)
    assert_type(log.frontier(), spark_timely.Antichain)
    assert_type(spark_timely.cut([log, path]), Cut)
    assert_type(spark_timely.wait(log, time=3), spark_timely.Antichain)


def spark(df: DataFrame, path: str) -> None:
    assert_type(spark_timely.session("app"), SparkSession)
    assert_type(session_settings(), dict[str, str])
    assert_type(spark_timely.start(df, path=path, checkpoint=path), CaptureQuery)
    assert_type(read_splits([], columns=["a"]), Iterator[pa.Table])
    assert_type(spark_timely.snapshot(df.sparkSession, spark_timely.cut([path])), tuple[DataFrame, ...])
    spark_timely.capture(df, 3, path=path, checkpoint=path, time_column="t", frontier="bounded")
    options: SinkGiven = {"time_column": ["a", "b"], "lateness": timedelta(hours=3), "target_file_size": "64mb"}
    spark_timely.capture(df, 3, path=path, checkpoint=path, **options)
    spark_timely.start(df, path=path, checkpoint=path, idle_timeout="10 minutes", storage_options={"a": "b"}, **options)


def triggers(df: DataFrame, path: str) -> None:
    flow = spark_timely.Dataflow("flow", checkpoint=path)
    for trigger in ("availableNow", "10 seconds", timedelta(seconds=10)):
        spark_timely.start(df, path=path, checkpoint=path, trigger=trigger)
        flow.start(df.sparkSession, trigger=trigger)
    spark_timely.start(df, path=path, checkpoint=path, trigger={"availableNow": True})
    assert_type(flow.start(df.sparkSession, trigger={"processingTime": "1 minute"}), DataflowQuery)


class Frame:
    """What polars offers, as far as it matters here."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return requested_schema


def rows(path: str, table: pa.Table) -> None:
    writer = spark_timely.open_log(path).writer(owner="me", target_file_size="64mb")
    columns = {"_time": [1, 2], "v": ["a", "b"]}
    for each in (table, table.to_reader()):
        writer.append(each, time_column="v", advance_to=3)
    writer.append(Frame(), advance_to="2013-06-13T16:00Z")
    writer.append(columns, advance_to=[3], batch=7)
    writer.append([{"_time": 1, "v": "a"}], advance_to=date(2013, 6, 13))
    writer.append(columns, progress=([3], [-1]))
    assert_type(writer.compare_and_append(columns, expected=[(1, 2)], upper=[]).committed, bool)
    assert_type(batch_frontier(3, checkpoint=path), spark_timely.Antichain)
