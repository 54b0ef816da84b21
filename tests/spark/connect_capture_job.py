"""Captures through Spark Connect: the sink and foreachBatch, as `connect` runs them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import spark_timely
from spark_timely.errors import LogMissingError, StreamMissingError
from spark_timely.log.machine.state import CommitOutcome
from spark_timely.log.reader import events_of
from spark_timely.sink.commit import TaskReport
from spark_timely.sink.plan import BatchId, CapturePlan


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Capture the same files both ways, repeat a micro-batch, be refused; return what was found."""
    incoming = folder / "incoming"
    incoming.mkdir()
    for number, times in enumerate([[1, 2, 5], [5, 3, 9], []]):
        table = pa.table({"t": pa.array(times, pa.int64()), "word": [f"w{time}" for time in times]})
        pq.write_table(table, incoming / f"part-{number}.parquet")
        # The file source goes by modification times, and files of one millisecond are in no order.
        os.utime(incoming / f"part-{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
    rows = spark.readStream.schema("t long, word string").option("maxFilesPerTrigger", 1).parquet(str(incoming))
    errors: dict[str, str] = {}
    for through in ("sink", "foreachBatch"):
        keywords: dict[str, object] = {
            "path": str(folder / through),
            "checkpoint": str(folder / f"{through}-checkpoint"),
            "through": through,
            "trigger": "availableNow",
            "time_column": "t",
            "frontier": "bounded",
        }
        try:
            spark_timely.start(rows, **keywords).await_termination()
        except Exception as error:  # noqa: BLE001 - its text is what the test looks at
            errors[through] = str(error)
        keywords |= {"late_data": "deadLetter", "on_finish": "close"}
        spark_timely.start(rows, **keywords).await_termination()
    idle = _silent(rows, folder)
    messages = _messages(spark, folder)
    return {"errors": errors, "idle": idle, "messages": messages, "digests": _digests(rows, folder)}


def _messages(spark: SparkSession, folder: Path) -> list[str]:
    """Capture CDCv2's messages out of order and twice, with a product time; return the frontiers after each run."""
    incoming = folder / "messages"
    time = "struct<a: bigint, b: bigint>"
    columns = f"word string, a bigint, b bigint, n int, _lower array<{time}>, _upper array<{time}>, "
    columns += f"_counts array<struct<time: {time}, n: bigint>>"
    last = (None, None, None, None, [(1, 0), (0, 2)], [], [((1, 1), 1)])
    parts = [
        [("x", 0, 1, 1, None, None, None), last],
        [(None, None, None, None, [(0, 0)], [(1, 0), (0, 2)], [((0, 1), 1)]), ("x", 0, 1, 1, None, None, None)],
        [("y", 1, 1, -2, None, None, None), last, ("x", 0, 1, 1, None, None, None)],
    ]
    frontiers = []
    for part in parts:
        spark.createDataFrame(part, schema=columns).coalesce(1).write.mode("append").parquet(str(incoming))
        spark_timely.start(
            spark.readStream.schema(columns).parquet(str(incoming)),
            path=str(folder / "collection"),
            checkpoint=str(folder / "messages-checkpoint"),
            through="foreachBatch",
            trigger="availableNow",
            dialect="cdcv2",
            time_column="a,b",
            diff_column="n",
        ).await_termination()
        log = spark_timely.open_log(str(folder / "collection"))
        frontiers.append(log.domain.render_frontier(log.frontier()))
    return frontiers


def _digests(rows: DataFrame, folder: Path) -> list[str | None]:
    """Capture in foreachBatch; return the digests of the input that the micro-batches report."""

    def each(df: DataFrame, batch: int) -> None:  # runs in a process of the server
        from spark_timely.spark.capture import foreach_batch

        real = foreach_batch.commit_reports

        def noting(plan: CapturePlan, ident: BatchId, reports: list[TaskReport]) -> CommitOutcome:
            digest = reports[0].digest
            (folder / f"{batch}.digest").write_text("none" if digest is None else digest.text)
            return real(plan, ident, reports)

        foreach_batch.commit_reports = noting  # type: ignore[assignment]
        try:
            foreach_batch.capture(df, batch, path=str(folder / "digests"), app_id="a")
        finally:
            foreach_batch.commit_reports = real

    checkpoint = str(folder / "digests-checkpoint")
    query = rows.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    return [file.read_text() for file in sorted(folder.glob("*.digest"))]


def _silent(rows: DataFrame, folder: Path) -> list[str]:
    """Capture with a query that goes on, until its idle time is over; return the reasons of its commits."""
    path = str(folder / "idle")
    query = spark_timely.start(
        rows,
        path=path,
        checkpoint=str(folder / "idle-checkpoint"),
        time_column="t",
        frontier="bounded",
        lateness=5,
        late_data="deadLetter",
        idle_timeout="1 second",
    )
    deadline = time.monotonic() + 120
    try:
        while True:
            reasons = []
            with suppress(LogMissingError, StreamMissingError):  # until the query's first commits
                reasons = [state.reason for state, _ in events_of(spark_timely.open_log(path).core, "main")]
            if (reasons and reasons[-1].startswith("idle")) or time.monotonic() > deadline:
                return reasons
            time.sleep(0.05)
    finally:
        query.stop()
