"""Capture, replay and complete aggregation, through Spark, against Spark's own Delta and stateful operators."""

from __future__ import annotations

import shutil
import time
import uuid
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import spark_timely as st
from spark_timely.spark import batch_frame, read_splits
from spark_timely.spark.capture import foreach_batch, staging

from .data import LATENESS, N_EPOCHS, N_FILES, N_KEYS
from .report import Case, alternate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from .data import Events

SCHEMA = "epoch long, key long, value double, text string"
# For both sides alike. Spark's default way to write a checkpoint file on a local disk starts a process per file,
# 130 ms a micro-batch where this way takes 40; it would hide what is measured.
PEER_SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
# In the order in which they run.
NAMES = (
    "capture_foreach_batch_vs_delta_sink",
    "capture_foreach_batch_sorted_vs_delta_sink",
    "capture_sink_vs_delta_sink",
    "capture_digest_flush_vs_without",
    "replay_messages_vs_delta_stream",
    "replay_batch_frame_vs_delta_foreach",
    "replay_driver_vs_delta_stream",
    "replay_where_vs_filter",
    "complete_aggregate_splits_vs_stateful",
    "complete_aggregate_splits_vs_stateful_into_parquet",
)


class SparkCases:
    """The Spark comparisons over one session and one set of events.

    Every run writes into a folder of its own, which is removed after its answer was checked.
    """

    def __init__(self, spark: SparkSession, data: Events, scratch: Path, repeats: int) -> None:
        self.spark = spark
        self.data = data
        self.scratch = scratch
        self.repeats = repeats

    def run(self, wanted: Callable[[str], bool]) -> list[Case]:
        """Run the cases whose names are wanted, in a fixed order."""
        todo = (
            self.capture_foreach_batch,
            lambda: self.capture_foreach_batch(in_order=True),
            self.capture_sink,
            self.digest_and_flush,
            self.replay_messages,
            self.replay_batch_frame,
            self.replay_driver,
            self.replay_where,
            self.complete_aggregate,
            self.complete_aggregate_parquet,
        )
        return [measure() for name, measure in zip(NAMES, todo, strict=True) if wanted(name)]

    # -- sources and checks

    def _folder(self, name: str) -> Path:
        return self.scratch / f"{name}-{uuid.uuid4().hex[:8]}"

    def _arrivals(self, *, in_order: bool = False) -> DataFrame:
        path = self._sorted_events() if in_order else self.data.path
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(path))

    def _sorted_events(self) -> Path:
        """Return the same files, the rows of each in the order of their times; made once."""
        folder = self.scratch / "sorted-events"
        if not folder.exists():
            folder.mkdir()
            for number, file in enumerate(sorted(self.data.path.iterdir())):
                rows = pq.read_table(file).sort_by("epoch")
                pq.write_table(rows, folder / f"part-{number:04d}.parquet", row_group_size=max(1, len(rows) // 10))
        return folder

    def _check(self, rows: DataFrame, what: str) -> None:
        found = rows.agg(F.count("*").alias("n"), F.sum("key").alias("keys")).first()
        if found is None or (found["n"], found["keys"]) != (self.data.n_rows, self.data.key_sum):
            message = f"{what}: expected {self.data.n_rows} rows, key sum {self.data.key_sum}; found {found}"
            raise AssertionError(message)

    @staticmethod
    def _finish(query: StreamingQuery, batches: int) -> None:
        query.awaitTermination()
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        if len(done) != batches:
            message = f"expected {batches} micro-batches, ran {len(done)}"
            raise AssertionError(message)

    # -- capture

    def _delta_sink(self, *, in_order: bool = False) -> float:
        folder = self._folder("delta-sink")

        def work() -> None:
            query = (
                self._arrivals(in_order=in_order)
                .writeStream.format("delta")
                .option("checkpointLocation", str(folder / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(folder / "table"))
            )
            self._finish(query, N_FILES)

        took = seconds(work)
        self._check(self.spark.read.format("delta").load(str(folder / "table")), "Delta sink")
        shutil.rmtree(folder)
        return took

    def _check_log(self, log: Path, what: str) -> None:
        rows = self.spark.read.format("delta").load(str(log)).where("_event = 'message'")
        self._check(rows, what)
        frontier = st.open_log(str(log)).frontier().to_json()
        if frontier != [N_EPOCHS - 1 - LATENESS]:
            message = f"{what}: the frontier is {frontier}"
            raise AssertionError(message)

    def _capture_sink(self) -> float:
        folder = self._folder("capture-sink")

        def work() -> None:
            query = (
                self._arrivals()
                .writeStream.format("timely")
                .option("checkpointLocation", str(folder / "checkpoint"))
                .option("timeColumn", "epoch")
                .option("frontier", "bounded")
                .option("lateness", LATENESS)
                .trigger(availableNow=True)
                .start(str(folder / "log"))
            )
            self._finish(query, N_FILES)

        took = seconds(work)
        self._check_log(folder / "log", "format('timely')")
        shutil.rmtree(folder)
        return took

    def _capture_foreach_batch(self, *, flush: bool = True, in_order: bool = False) -> float:
        folder = self._folder("capture-foreach")
        log, checkpoint = str(folder / "log"), str(folder / "checkpoint")

        def each(rows: DataFrame, batch_id: int) -> None:
            st.capture(
                rows,
                batch_id,
                path=log,
                checkpoint=checkpoint,
                time_column="epoch",
                frontier="bounded",
                lateness=LATENESS,
                flush=flush,
            )

        def work() -> None:
            query = (
                self._arrivals(in_order=in_order)
                .writeStream.foreachBatch(each)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            self._finish(query, N_FILES)

        took = seconds(work)
        self._check_log(folder / "log", "capture in foreachBatch")
        shutil.rmtree(folder)
        return took

    def capture_foreach_batch(self, *, in_order: bool = False) -> Case:
        """Compare `capture` in foreachBatch with Spark's Delta sink, ten micro-batches each."""
        case = Case(
            f"capture_foreach_batch{'_sorted' if in_order else ''}_vs_delta_sink",
            f"10 micro-batches{' of rows in the order of their times' if in_order else ''} into a log by st.capture in "
            "foreachBatch; peer: Spark's Delta sink",
            1.6 if in_order else 1.4,
            settings=dict(PEER_SETTINGS),
        )
        alternate(
            case,
            lambda: self._capture_foreach_batch(in_order=in_order),
            lambda: self._delta_sink(in_order=in_order),
            self.repeats,
        )
        return case

    def digest_and_flush(self) -> Case:
        """Compare `capture` with itself without digest and flush; not on a disk in memory, which flushes nothing."""
        case = Case(
            "capture_digest_flush_vs_without",
            "10 micro-batches into a log by st.capture; peer: the same without digest of the rows and without flush",
            1.1,
            higher_is_better=False,
            settings=dict(PEER_SETTINGS),
        )

        def without() -> float:
            with patch.object(foreach_batch, "counted", lambda data, storage, *_: staging.counted(data, storage)):
                return self._capture_foreach_batch(flush=False)

        alternate(case, self._capture_foreach_batch, without, self.repeats)
        return case

    def capture_sink(self) -> Case:
        """Compare `format("timely")` with Spark's Delta sink, ten micro-batches each."""
        case = Case(
            "capture_sink_vs_delta_sink",
            "10 micro-batches into a log by writeStream.format('timely'); peer: Spark's Delta sink",
            1.2,
            settings=dict(PEER_SETTINGS),
        )
        alternate(case, self._capture_sink, self._delta_sink, self.repeats)
        return case

    # -- replay

    def captured(self) -> tuple[Path, Path]:
        """Return a closed log and a Delta table that both hold the events, made once."""
        log, table = self.scratch / "captured-log", self.scratch / "captured-delta"
        if not log.exists():
            checkpoint = str(self._folder("captured-checkpoint"))
            query = st.start(
                self._arrivals(),
                path=str(log),
                checkpoint=checkpoint,
                trigger="availableNow",
                on_finish="close",
                time_column="epoch",
                frontier="bounded",
                lateness=LATENESS,
            )
            query.await_termination()
        if not table.exists():
            query = (
                self._arrivals()
                .writeStream.format("delta")
                .option("checkpointLocation", str(self._folder("captured-checkpoint")))
                .trigger(availableNow=True)
                .start(str(table))
            )
            query.awaitTermination()
        return log, table

    def _to_noop(self, rows: DataFrame) -> float:
        folder = self._folder("noop")
        counted = []

        def work() -> None:
            query = (
                rows.writeStream.format("noop")
                .option("checkpointLocation", str(folder))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            counted.append(sum(progress.numInputRows for progress in query.recentProgress))

        took = seconds(work)
        if counted != [self.data.n_rows]:
            message = f"replay to noop: expected {self.data.n_rows} rows, delivered {counted}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return took

    def replay_messages(self) -> Case:
        """Compare replay of whole rows with Spark's Delta stream, both into `noop`."""
        log, table = self.captured()
        self._check(self.spark.read.format("timely").load(str(log)), "replay")
        case = Case(
            "replay_messages_vs_delta_stream",
            "whole rows to noop, one micro-batch; peer: Spark's Delta stream",
            0.8,
            settings={"workers": 2, **PEER_SETTINGS},
        )
        alternate(
            case,
            lambda: self._to_noop(self.spark.readStream.format("timely").option("workers", 2).load(str(log))),
            lambda: self._to_noop(self.spark.readStream.format("delta").load(str(table))),
            self.repeats,
        )
        return case

    def _foreach_to_noop(self, rows: DataFrame, frame: Callable[[DataFrame], DataFrame]) -> float:
        folder = self._folder("foreach")

        def each(given: DataFrame, batch_id: int) -> None:
            del batch_id
            frame(given).write.format("noop").mode("overwrite").save()

        def work() -> None:
            query = (
                rows.writeStream.foreachBatch(each)
                .option("checkpointLocation", str(folder))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        took = seconds(work)
        shutil.rmtree(folder)
        return took

    def _driver_to_noop(self, log: Path) -> float:
        folder = self._folder("driver")

        def each(rows: DataFrame, batch_id: int) -> None:
            del batch_id
            rows.write.format("noop").mode("overwrite").save()

        def work() -> None:
            st.replay(self.spark, log).foreachBatch(each).run(checkpoint=folder)

        took = seconds(work)
        shutil.rmtree(folder)
        return took

    def replay_batch_frame(self) -> Case:
        """Compare rows of splits by `batch_frame` with Spark's Delta stream, both in foreachBatch into `noop`."""
        log, table = self.captured()
        splits = self.spark.readStream.format("timely").option("content", "splits").load(str(log))
        self._check(batch_frame(self.spark, self._splits(log)), "batch_frame")
        case = Case(
            "replay_batch_frame_vs_delta_foreach",
            "whole rows to noop in foreachBatch by batch_frame; peer: Spark's Delta stream in foreachBatch",
            0.95,
            settings=dict(PEER_SETTINGS),
        )
        alternate(
            case,
            lambda: self._foreach_to_noop(splits, lambda given: batch_frame(given.sparkSession, given)),
            lambda: self._foreach_to_noop(self.spark.readStream.format("delta").load(str(table)), lambda given: given),
            self.repeats,
        )
        return case

    def _splits(self, log: Path) -> DataFrame:
        return self.spark.read.format("timely").option("content", "splits").load(str(log))

    def replay_driver(self) -> Case:
        """Compare a replay that is planned in the driver with Spark's Delta stream, both into `noop`."""
        log, table = self.captured()
        checked: list[DataFrame] = []
        folder = self._folder("driver")
        st.replay(self.spark, log).foreachBatch(lambda rows, _: checked.append(rows)).run(checkpoint=folder)
        shutil.rmtree(folder)
        (rows,) = checked
        self._check(rows, "replay in the driver")
        case = Case(
            "replay_driver_vs_delta_stream",
            "whole rows to noop, one micro-batch that is planned in the driver; peer: Spark's Delta stream",
            1.4,
            settings=dict(PEER_SETTINGS),
        )
        alternate(
            case,
            lambda: self._driver_to_noop(log),
            lambda: self._to_noop(self.spark.readStream.format("delta").load(str(table))),
            self.repeats,
        )
        return case

    def replay_where(self) -> Case:
        """Compare a batch read with the option `where` with Spark's own filter after the same read."""
        log, table = self.captured()
        wanted = f"key < {N_KEYS // 20}"
        read = self.spark.read.format("timely").option("workers", 2)
        expected = self.spark.read.format("delta").load(str(table)).where(wanted).count()

        def run(rows: DataFrame) -> float:
            counted = []

            def work() -> None:
                found = rows.agg(F.count("*").alias("n"), F.sum("value"), F.max("text")).first()
                counted.append(None if found is None else found["n"])

            took = seconds(work)
            if counted != [expected]:
                message = f"rows where {wanted}: expected {expected}, counted {counted}"
                raise AssertionError(message)
            return took

        case = Case(
            "replay_where_vs_filter",
            "a twentieth of the rows, aggregated, read as a batch with `where`; peer: with Spark's filter",
            None,
            settings={"workers": 2, **PEER_SETTINGS},
        )
        alternate(
            case,
            lambda: run(read.option("where", wanted).load(str(log))),
            lambda: run(self.spark.read.format("timely").option("workers", 2).load(str(log)).where(wanted)),
            self.repeats,
        )
        return case

    # -- complete aggregation

    def _groups_to(self, groups: DataFrame, sink: str, *, complete: bool, what: str) -> float:
        """Run a query of groups into a sink, and check what came out of it.

        Every group is counted where it leaves the query, by Spark's own observed metrics.
        """
        folder = self._folder(f"groups-{sink}")
        place = F.col("epoch") * N_KEYS + F.col("key")
        observed = groups.observe(
            "groups", F.count("*").alias("groups"), F.sum("n").alias("rows"), F.sum(place).alias("places")
        )
        found: list[Any] = []

        def work() -> None:
            writer = (
                observed.writeStream.format(sink)
                .outputMode("append")
                .option("checkpointLocation", str(folder / "checkpoint"))
                .trigger(availableNow=True)
            )
            query = writer.start() if sink == "noop" else writer.start(str(folder / "out"))
            query.awaitTermination()
            found.extend(progress.observedMetrics.get("groups") for progress in query.recentProgress)

        took = seconds(work)
        said = [row for row in found if row is not None and row["groups"]]
        n_groups, n_rows, places = (sum(row[name] for row in said) for name in ("groups", "rows", "places"))
        if complete:
            right = (n_groups, n_rows, places) == (self.data.n_groups, self.data.n_rows, self.data.place_sum)
            right = right and len(said) == N_FILES
        else:
            # Spark's watermark keeps the last epochs open, and loses epoch 0 and late rows by itself: what it
            # does give must be nearly all, and no more.
            right = 0.98 * self.data.n_groups <= n_groups <= self.data.n_groups and places <= self.data.place_sum
        if sink != "noop":
            rows = self.spark.read.format(sink).load(str(folder / "out"))
            right = right and rows.count() == rows.select("epoch", "key").distinct().count() == n_groups
        if not right:
            message = f"{what}: expected {self.data.n_groups} groups of {self.data.n_rows} rows; found {said}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return took

    def _complete_aggregate(self, log: Path, sink: str) -> float:
        def kernel(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in read_splits(batches, columns=["epoch", "key", "value"]):
                sums = rows.group_by(["epoch", "key"], use_threads=False).aggregate(
                    [([], "count_all"), ("value", "sum")]
                )
                named = sums.rename_columns({"count_all": "n", "value_sum": "total"}).select(
                    ["epoch", "key", "n", "total"]
                )
                yield from named.to_batches()

        groups = (
            self.spark.readStream.format("timely")
            .option("content", "splits")
            .option("splitBy", "time")
            .option("workers", 2)
            .option("maxTimesPerTrigger", N_EPOCHS // N_FILES)
            .load(str(log))
            .mapInArrow(kernel, "epoch long, key long, n long, total double")
        )
        return self._groups_to(groups, sink, complete=True, what="complete aggregate over splits")

    def _stateful_aggregate(self, sink: str) -> float:
        groups = (
            self._arrivals()
            .select(F.timestamp_seconds("epoch").alias("at"), "key", "value")
            .withWatermark("at", f"{LATENESS} seconds")
            .groupBy("at", "key")
            .agg(F.count("*").alias("n"), F.sum("value").alias("total"))
            .select(F.unix_seconds("at").alias("epoch"), "key", "n", "total")
        )
        return self._groups_to(groups, sink, complete=False, what="Spark's stateful aggregation")

    def _compare_aggregates(self, name: str, aim: float | None, sink: str) -> Case:
        log, _ = self.captured()
        case = Case(
            name,
            f"count and sum per time and key of complete times, ten micro-batches, into {sink}; "
            "peer: withWatermark + groupBy, default state store",
            aim,
            settings={"workers": 2, "splitBy": "time", **PEER_SETTINGS},
        )
        alternate(
            case, lambda: self._complete_aggregate(log, sink), lambda: self._stateful_aggregate(sink), self.repeats
        )
        return case

    def complete_aggregate(self) -> Case:
        """Compare count and sum per complete time and key with Spark's watermark aggregation, both into `noop`."""
        return self._compare_aggregates("complete_aggregate_splits_vs_stateful", 4.0, "noop")

    def complete_aggregate_parquet(self) -> Case:
        """Compare the same with both sides writing their groups as Parquet files, which costs both alike."""
        return self._compare_aggregates("complete_aggregate_splits_vs_stateful_into_parquet", None, "parquet")


_reported: dict[str, set[int]] = {}
"""By run of a query, the micro-batches that `last_micro_batch` has returned."""


def last_micro_batch(query: StreamingQuery, deadline_s: float) -> float:
    """Return the seconds of the micro-batches that ran since this was asked last, once they are reported."""
    seen = _reported.setdefault(str(query.runId), set())
    deadline = time.perf_counter() + deadline_s
    while time.perf_counter() < deadline:
        ran = [p for p in query.recentProgress if "addBatch" in p.durationMs and p.batchId not in seen]
        # While one runs it is perhaps the one that is asked for: an idle one before it may be reported already.
        if ran and not query.status["isTriggerActive"]:
            seen |= {p.batchId for p in ran}
            return sum(p.durationMs["triggerExecution"] for p in ran) / 1000
        time.sleep(0.005)
    message = f"no micro-batch was reported within {deadline_s} s"
    raise AssertionError(message)
