"""The Spark jobs of the flights demo.

Functions that run in Spark's workers are made inside others, so that they travel by value: the workers
have the library, not the examples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import flights_data
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from flights_plan import Delay, Run
from flights_report import Report, short, shown_path
from pyspark.errors import StreamingQueryException

import spark_timely
from spark_timely import functions as tf
from spark_timely.canonical.state import CanonicalState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

DELAYS = "hour TIMESTAMP, origin STRING, flights LONG, departed LONG, minutes LONG, worst INT"
SUMS = "time_0 LONG, count LONG, sum_0 LONG, sum_1 LONG"


def start_spark(messages: Path, report: Report) -> SparkSession:
    """Start Spark; what it writes to standard error goes to a file."""
    report.say(f"Spark starts; its own messages go to {shown_path(messages)}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
        "spark.sql.files.openCostInBytes": "65536",  # the files are small: a task takes many of them
    }
    terminal = os.dup(2)
    with messages.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            return spark_timely.session("flights", master="local[2]", **settings)
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


class Query:
    """A streaming query that continues from its checkpoint where a worker did not come up.

    Spark gives a Python worker ten seconds to start, which on a very busy machine may be too short. What
    was done before stays done, so starting again is all there is to do.
    """

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self.start = start
        self.restarts = 0
        self.running = start()

    def over(self, seconds: float) -> bool:
        """Wait for some seconds, and return whether the query has ended."""
        try:
            return self.running.awaitTermination(seconds)
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or self.restarts == 3:
                raise
            self.restarts += 1
            self.running = self.start()
            return False

    def finish(self) -> None:
        """Wait until the query has ended."""
        while not self.over(60):
            pass


@dataclass(frozen=True)
class Demo:
    """The jobs of the demo, and where they keep what they write."""

    spark: SparkSession
    out: Path

    @property
    def inbox(self) -> flights_data.Inbox:
        """The folder in which files of flights arrive."""
        return flights_data.Inbox(self.out / "inbox")

    @property
    def log(self) -> str:
        """The capture log."""
        return str(self.out / "log")

    @property
    def delays_log(self) -> str:
        """The log that the dataflow captures."""
        return str(self.out / "delays")

    def capture(self, run: Run, total: int, report: Report) -> None:
        """Capture all that has arrived, from the checkpoint on."""
        query = Query(
            lambda: (
                self.spark.readStream.schema(flights_data.SPARK_SCHEMA)
                .option("maxFilesPerTrigger", run.files_per_trigger)
                .parquet(str(self.inbox.path))
                .writeStream.format("timely")
                .option("path", self.log)
                .option("timeColumn", "hour")
                .option("frontier", "bounded")
                .option("lateness", "12 hours")
                .option("lateData", "deadLetter")
                .option("checkpointLocation", str(self.out / "checkpoints" / "capture"))
                .trigger(availableNow=True)
                .start()
            )
        )

        captured: dict[int, int] = {}

        def rows() -> int:
            captured.update((progress.batchId, progress.numInputRows) for progress in query.running.recentProgress)
            return sum(captured.values())

        report.watch(run.title, total, done=rows, over=query.over, note=self.frontier)

    def frontier(self) -> str:
        """Return the frontier as text. Anybody may look, at any time, from any process."""
        try:
            log = spark_timely.open_log(self.log)
        except spark_timely.errors.LogMissingError:
            return ""
        return "frontier " + ", ".join(short(moment) for moment in moments(log.frontier().times[:, 0]))

    def settle(self, name: str, answer: dict[tuple[pd.Timestamp, str], Delay]) -> list[pd.Timestamp]:
        """Put the delays of all newly complete hours into `answer`; return these hours.

        An hour arrives whole, and in one worker (``splitBy=time``): a plain group-by on Arrow data
        gives the final numbers. No watermark, no state store, no shuffle.
        """
        before = set(answer)
        reported: dict[tuple[pd.Timestamp, str], int] = {}

        def delays(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            rows = list(batches)
            if not rows:
                return
            table = pa.Table.from_batches(rows)
            numbers = [("hour", "count"), ("dep_delay", "count"), ("dep_delay", "sum"), ("dep_delay", "max")]
            found = table.group_by(["hour", "origin"]).aggregate(numbers)
            yield from found.rename_columns(["hour", "origin", "flights", "departed", "minutes", "worst"]).to_batches()

        def keep(batch: DataFrame, batch_id: int) -> None:
            final = batch.mapInArrow(delays, DELAYS).toArrow()
            for hour, origin, *numbers in zip(*(column.to_pylist() for column in final.columns), strict=True):
                flights, departed, minutes, worst = numbers
                key = (pd.Timestamp(hour).tz_convert("UTC"), origin)
                # foreachBatch may see one micro-batch again, after a failure; but no hour in two of them.
                if key in before or reported.setdefault(key, batch_id) != batch_id:
                    raise SystemExit(f"{key} was reported twice, the second time in micro-batch {batch_id}")
                answer[key] = (flights, departed, minutes or 0, worst)  # no sum where none departed

        query = Query(
            lambda: (
                self.spark.readStream.format("timely")
                .option("splitBy", "time")
                .option("workers", 2)
                .load(self.log)
                .select("hour", "origin", "dep_delay")
                .writeStream.foreachBatch(keep)
                .option("checkpointLocation", str(self.out / "checkpoints" / name))
                .trigger(availableNow=True)
                .start()
            )
        )
        query.finish()
        return sorted({hour for hour, _ in answer.keys() - before})

    def replay(self, name: str, total: int, report: Report, **options: object) -> Replay:
        """Replay the log into its canonical hash.

        Rows are hashed in the workers that read them; only sums per hour travel to the driver.
        """
        log = spark_timely.open_log(self.log)
        columns = log.schema.names
        parts: dict[int, CanonicalState] = {}

        def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            from spark_timely.canonical.state import CanonicalState

            part = CanonicalState(columns)
            for batch in batches:
                times = batch.column("_time").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
                part.add(batch, times.to_numpy())
            yield from part.to_arrow().to_batches()

        def merge(batch: DataFrame, batch_id: int) -> None:
            parts[batch_id] = CanonicalState.from_arrow(batch.mapInArrow(sums, SUMS).toArrow())

        def rows() -> int:
            return sum(int(part.counts.sum()) for part in list(parts.values()))

        query = Query(
            lambda: (
                self.spark.readStream.format("timely")
                .options(includeTime=True, **options)
                .load(self.log)
                .writeStream.foreachBatch(merge)
                .option("checkpointLocation", str(self.out / "checkpoints" / name))
                .trigger(availableNow=True)
                .start()
            )
        )
        report.watch(name, total, done=rows, over=query.over)
        state = CanonicalState()
        for part in parts.values():
            state.merge(part)
        return Replay(state.digest(log.frontier()), rows(), len(parts))

    def delays(self, total: int, report: Report) -> dict[tuple[pd.Timestamp, str], Delay]:
        """Run the delays as a dataflow into a log of their own; return what another job finds in it."""
        flow = spark_timely.Dataflow("delays", checkpoint=str(self.out / "checkpoints" / "dataflow"))
        delays = flow.replay(self.log).aggregate(
            by="origin",
            flights=tf.count(),
            departed=tf.count("dep_delay"),
            minutes=tf.sum("dep_delay"),
            worst=tf.max("dep_delay"),
        )
        delays.capture(self.delays_log)
        query = Query(lambda: flow.start(self.spark, trigger="availableNow", max_times_per_step=2000).query)

        def rows() -> int:
            return flow.progress()[0].done

        report.watch("dataflow", total, done=rows, over=query.over)
        report.say("", *flow.explain().splitlines(), "")
        answer: dict[tuple[pd.Timestamp, str], Delay] = {}
        seen: dict[tuple[pd.Timestamp, str], int] = {}

        def keep(batch: DataFrame, batch_id: int) -> None:
            for row in batch.toArrow().to_pylist():
                key = (pd.Timestamp(row["_time"]).tz_convert("UTC"), row["origin"])
                if seen.setdefault(key, batch_id) != batch_id:  # the same one may come again after a failure
                    raise SystemExit(f"{key} came twice")
                answer[key] = (row["flights"], row["departed"], row["minutes"] or 0, row["worst"])

        replay = Query(
            lambda: (
                self.spark.readStream.format("timely")
                .option("includeTime", value=True)
                .load(self.delays_log)
                .writeStream.foreachBatch(keep)
                .option("checkpointLocation", str(self.out / "checkpoints" / "of_dataflow"))
                .trigger(availableNow=True)
                .start()
            )
        )
        replay.finish()
        return answer

    def corrections(self, pattern: str, files_per_trigger: int) -> Counter[tuple[object, str]]:
        """Return how often plain Spark prints each number, in arrival order, over the same files."""
        from pyspark.sql import functions as F

        printed: Counter[tuple[object, str]] = Counter()

        def see(batch: DataFrame, batch_id: int) -> None:
            table = batch.toArrow()
            printed.update(zip(table["hour"].to_pylist(), table["origin"].to_pylist(), strict=True))

        query = Query(
            lambda: (
                self.spark.readStream.schema(flights_data.SPARK_SCHEMA)
                .option("pathGlobFilter", pattern)
                .option("maxFilesPerTrigger", files_per_trigger)
                .parquet(str(self.inbox.path))
                .groupBy("hour", "origin")
                .agg(F.count("*"), F.avg("dep_delay"), F.max("dep_delay"))
                .writeStream.outputMode("update")
                .foreachBatch(see)
                .option("checkpointLocation", str(self.out / "checkpoints" / "arrival_order"))
                .trigger(availableNow=True)
                .start()
            )
        )
        query.finish()
        return printed


@dataclass(frozen=True, slots=True)
class Replay:
    """What one replay gave."""

    digest: str
    rows: int
    micro_batches: int


def frontiers(log: spark_timely.Log) -> list[pd.Timestamp]:
    """Return the frontier after each micro-batch, by the progress rows, which any Delta reader finds in the log."""
    progress = DeltaTable(log.path).to_pyarrow_dataset().filter(pc.field("_event") == "progress")
    rows = progress.to_table(["_batch", "_count", "_time", "_rows"]).to_pandas()
    # Commits of no micro-batch, the opening and the closing one, count no rows.
    held = rows[rows["_batch"].notna() & rows["_rows"].notna() & (rows["_count"] > 0)]
    return held.groupby("_batch")["_time"].min().sort_index().to_list()


def moments(times: np.ndarray) -> pd.DatetimeIndex:
    """Return times of the log, which are microseconds, as moments."""
    return pd.DatetimeIndex(pd.to_datetime(times, unit="us", utc=True))
