"""Calls that are wrong, and that a type checker finds; checked by `make types`, never run.

Each line with a mistake says which error is expected there. mypy runs with `warn_unused_ignores`: a call that is not an
error any more fails the check.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.spark import batch_frontier, read_splits, table_path


def starts(df: DataFrame) -> None:
    st.start(df, path="p", checkpoint="c", latenes="3")  # type: ignore[call-arg]
    st.start(df, path="p", checkpoint="c", timeColumn="t")  # type: ignore[call-arg]
    st.start(df, path="p", checkpoint="c", time="t")  # type: ignore[call-arg]
    st.start(df, path="p")  # type: ignore[call-arg]
    st.start(df, path=5, checkpoint="c")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", trigger=5)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", trigger=["once"])  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", trigger={"availableNw": True})  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", trigger={"availableNow": "yes"})  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", trigger={"processingTime": 10})  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", on_finish="stop")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", on_finish=True)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", through="foreach")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", idle_timeout=10)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", query_name=5)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", storage_options="x")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", storage_options={"timeout": 5})  # type: ignore[dict-item]
    st.start(df, path="p", checkpoint="c", frontier="watermark")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", late_data="drop")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", late_data=None)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", lateness=1.5)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", max_future_skew=[1])  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", time_column=5)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", stream=5)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", streams="2")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", diff_column=1)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", merge_schema="yes")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", takeover="yes")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", begin_at="7")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", target_file_size=1.5)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", dialect="cdcv1")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", single_writer="true")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", flush=None)  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", compression="lzma")  # type: ignore[arg-type]
    st.start(df, path="p", checkpoint="c", auto_compact=False)  # type: ignore[arg-type]
    st.start(df, "p", checkpoint="c")  # type: ignore[call-arg]
    st.start("df", path="p", checkpoint="c")  # type: ignore[arg-type]


def captures(df: DataFrame) -> None:
    st.capture(df, "3", path="p", checkpoint="c")  # type: ignore[arg-type]
    st.capture(df, 3, path="p", checkpoint="c", latenes="3")  # type: ignore[call-arg]
    st.capture(df, 3, path="p", checkpoint="c", frontier="watermark")  # type: ignore[arg-type]
    st.capture(df, 3, path="p", checkpoint="c", late_data="drop")  # type: ignore[arg-type]
    st.capture(df, 3, path="p", checkpoint="c", on_finish="close")  # type: ignore[call-arg]
    st.capture(df, 3, path="p", checkpoint="c", idle_timeout="1 hour")  # type: ignore[call-arg]
    st.capture(df, 3, path="p", checkpoint="c", step="1")  # type: ignore[arg-type]
    st.capture(df, 3, path="p", app_id=5)  # type: ignore[arg-type]


def logs(path: str, schema: pa.Schema) -> None:
    st.create_log(path, schema, times="datetime")  # type: ignore[arg-type]
    st.create_log(path, schema, times=["long", "datetime"])  # type: ignore[list-item]
    st.create_log(path, schema, kind="table")  # type: ignore[arg-type]
    st.create_log(path, schema, minimum=0.5)  # type: ignore[arg-type]
    st.create_log(path, schema, streams="2")  # type: ignore[arg-type]
    st.create_log(path, schema, storage_options="x")  # type: ignore[arg-type]
    st.create_log(5, schema)  # type: ignore[arg-type]
    st.open_log(5)  # type: ignore[arg-type]
    st.open_log(path, mode="r")  # type: ignore[call-arg]
    log = st.open_log(path)
    log.messages(stream=5)  # type: ignore[arg-type]
    log.messages(columns=5)  # type: ignore[arg-type]
    log.messages(lower=0.5)  # type: ignore[arg-type]
    log.messages("main")  # type: ignore[call-arg]
    log.dead(stream=["main"])  # type: ignore[arg-type]
    log.snapshot(0.5)  # type: ignore[arg-type]
    log.advance("main", 0.5)  # type: ignore[arg-type]
    log.advance("main", 5, reason=5)  # type: ignore[arg-type]
    log.close(5)  # type: ignore[arg-type]
    log.compact(target_file_size=1.5)  # type: ignore[arg-type]
    log.writer(owner=5)  # type: ignore[arg-type]
    log.writer(owner="me", target_file_size=[1])  # type: ignore[arg-type]


def appends(path: str, rows: pa.Table) -> None:
    writer = st.open_log(path).writer(owner="me")
    writer.append(5)  # type: ignore[arg-type]
    writer.append("rows")  # type: ignore[arg-type]
    writer.append([1, 2])  # type: ignore[list-item]
    writer.append(None)  # type: ignore[arg-type]
    writer.append({5: [1]})  # type: ignore[dict-item]
    writer.append(rows, time="t")  # type: ignore[call-arg]
    writer.append(rows, time_column=5)  # type: ignore[arg-type]
    writer.append(rows, advance_to=0.5)  # type: ignore[arg-type]
    writer.append(rows, progress=[3])  # type: ignore[arg-type]
    writer.append(rows, batch="1")  # type: ignore[arg-type]
    writer.append(rows, reason=5)  # type: ignore[arg-type]
    writer.compare_and_append(5, expected=3, upper=4)  # type: ignore[arg-type]
    writer.compare_and_append(rows, expected=3)  # type: ignore[call-arg]
    writer.compare_and_append(rows, expected=0.5, upper=4)  # type: ignore[arg-type]
    writer.advance(0.5)  # type: ignore[arg-type]


def completeness(path: str) -> None:
    st.wait(path, time=0.5)  # type: ignore[arg-type]
    st.wait(path, frontier=0.5)  # type: ignore[arg-type]
    st.wait(path, time=3, timeout_s="1 minute")  # type: ignore[arg-type]
    st.wait(path, time=3, poll_s="1 s")  # type: ignore[arg-type]
    st.cut(None)  # type: ignore[arg-type]
    st.cut([5])  # type: ignore[list-item]
    st.cut([path], frontier=0.5)  # type: ignore[arg-type]
    st.Antichain.of(None)  # type: ignore[arg-type]
    st.Antichain.of(1.5)  # type: ignore[arg-type]
    st.Antichain.of(5).meet(5)  # type: ignore[arg-type]


def dataflows(spark: SparkSession, path: str) -> None:
    st.Dataflow("a")  # type: ignore[call-arg]
    st.Dataflow("a", checkpoint=5)  # type: ignore[arg-type]
    flow = st.Dataflow("a", checkpoint="c")
    flow.start(spark, trigger=5)  # type: ignore[arg-type]
    flow.start(spark, trigger={"availableNw": True})  # type: ignore[arg-type]
    flow.start(spark, workers="2")  # type: ignore[arg-type]
    flow.start(spark, max_times_per_steps=2)  # type: ignore[call-arg]
    flow.start(spark, beside=["b"])  # type: ignore[list-item]
    flow.start("spark")  # type: ignore[arg-type]
    rows = flow.replay(5)  # type: ignore[arg-type]
    rows.aggregate(by=5)  # type: ignore[call-overload]
    rows.aggregate(n="count")  # type: ignore[call-overload]
    rows.join("other", on="k")  # type: ignore[arg-type]
    rows.join(rows, on="k", how="outer")  # type: ignore[arg-type]
    rows.capture(5)  # type: ignore[arg-type]
    rows.capture(path, stream=5)  # type: ignore[arg-type]
    rows.capture(path, replace="1:a")  # type: ignore[call-arg]
    query = flow.start(spark, trigger=timedelta(seconds=10))
    query.await_frontier(0.5)  # type: ignore[arg-type]
    query.await_termination("60")  # type: ignore[arg-type]
    query.drop(5)  # type: ignore[arg-type]
    tf.sum(5)  # type: ignore[arg-type]


def sessions(spark: SparkSession, path: str) -> None:
    st.session(5)  # type: ignore[arg-type]
    st.session("a", delta="yes")  # type: ignore[arg-type]
    st.register(path)  # type: ignore[arg-type]
    table_path(spark, 5)  # type: ignore[arg-type]
    st.snapshot(spark, path, 0.5)  # type: ignore[call-overload]
    st.snapshot(spark, 5)  # type: ignore[call-overload]
    read_splits(5)  # type: ignore[arg-type]
    read_splits([], columns=5)  # type: ignore[arg-type]
    batch_frontier("3", checkpoint="c")  # type: ignore[arg-type]
