"""The same late rows in batches of other sizes: Spark's answer depends on the batch size, a dataflow's does not.

Run it with ``make late-data``, or ``python examples/late_data.py``. The flights of two days of June 2013 arrive as
they become known, up to ten hours late; both sides wait two hours for the rest of an hour, and count its flights.

1. Plain Spark counts with a watermark, one, three and twelve files at a time. Each query decides for itself what is too
   late, by what its micro-batches happened to hold: each size loses other flights, and none says which.
2. The flights are captured once. What is too late is decided there, once, and kept as dead letters. A dataflow counts
   from the log, six and twenty hours at a time and all at once: the outputs are equal to the last row.

Our counts are compared with pandas; the exit code is 1 if they differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import flights_data
import numpy as np
import pandas as pd
from flights import empty_folder
from flights_jobs import start_spark
from flights_report import Report
from pyspark.sql import functions as F

import spark_timely
from spark_timely import functions as tf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START, END = (pd.Timestamp(day, tz="UTC") for day in ("2013-06-12", "2013-06-14"))
# Hours that everybody calls final by the end: the last ones are still open for Spark.
CERTAIN = END - pd.Timedelta(hours=8)
WAIT = "2 hours"
NOW = {"availableNow": True}
Counts = dict[pd.Timestamp, int]


def arrivals() -> pd.DataFrame:
    """Return the flights of the two days, in the order in which they became known."""
    flights = flights_data.load_flights()
    known = (flights["known_at"] >= START) & (flights["known_at"] < END) & (flights["hour"] >= START)
    return flights[known].reset_index(drop=True)


def spark_counts(spark: SparkSession, inbox: Path, files: int, out: Path) -> Counts:
    """Count flights per hour with Spark's watermark; return what it calls final."""
    final: Counts = {}

    def keep(batch: DataFrame, batch_id: int) -> None:
        del batch_id
        final.update({pd.Timestamp(row["hour"]).tz_convert("UTC"): row["n"] for row in batch.toArrow().to_pylist()})

    rows = spark.readStream.schema(flights_data.SPARK_SCHEMA).option("maxFilesPerTrigger", files).parquet(str(inbox))
    counts = rows.withWatermark("hour", WAIT).groupBy("hour").agg(F.count("*").alias("n"))
    query = counts.writeStream.outputMode("append").foreachBatch(keep).trigger(**NOW)
    query.option("checkpointLocation", str(out / f"spark-{files}")).start().awaitTermination()
    return {hour: n for hour, n in final.items() if hour < CERTAIN}


def captured(spark: SparkSession, inbox: Path, out: Path) -> str:
    """Capture the flights, three files at a time, and return the path of the log."""
    log = str(out / "log")
    rows = spark.readStream.schema(flights_data.SPARK_SCHEMA).option("maxFilesPerTrigger", 3).parquet(str(inbox))
    query = rows.writeStream.format("timely").option("path", log).option("timeColumn", "hour")
    query = query.option("frontier", "bounded").option("lateness", WAIT).option("lateData", "deadLetter")
    query.option("checkpointLocation", str(out / "capture")).trigger(**NOW).start().awaitTermination()
    return log


def dataflow_counts(spark: SparkSession, log: str, hours: int | None, out: Path) -> tuple[Counts, str]:
    """Count flights per hour in a dataflow, `hours` of them per step; return the counts, and a hash of the output."""
    folder = out / f"dataflow-{hours}"
    flow = spark_timely.Dataflow(f"hours {hours}", checkpoint=str(folder / "checkpoint"))
    flow.replay(log).aggregate(n=tf.count()).capture(str(folder / "counts"))
    flow.start(spark, trigger=NOW, max_times_per_step=hours).await_termination()
    counts = spark_timely.open_log(str(folder / "counts"))
    found = counts.messages().to_pandas()
    final = dict(zip(found["_time"].dt.tz_convert("UTC"), found["n"].astype(int), strict=True))
    return {hour: n for hour, n in final.items() if hour < CERTAIN}, counts.verify().digest


@contextmanager
def quiet_partitions(spark: SparkSession) -> Iterator[None]:
    """Let Spark's state have one partition: it is a handful of rows."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def tell(spark: SparkSession, out: Path, flights: pd.DataFrame, report: Report) -> dict[str, dict[object, Counts]]:
    """Count in both ways, at several sizes; return what each calls final."""
    inbox = flights_data.Inbox(out / "inbox")
    n_files = inbox.deliver(flights, every="4h", name="flights", rng=np.random.default_rng(2013))
    certain = flights[flights["hour"] < CERTAIN]
    report.step(1, f"Plain Spark, watermark of {WAIT}: {len(certain):,} flights in {n_files} files")
    ways: dict[str, dict[object, Counts]] = {"spark": {}, "dataflow": {}}
    with quiet_partitions(spark):
        for files in (1, 3, n_files):
            ways["spark"][files] = spark_counts(spark, inbox.path, files, out)
    table = [
        [f"{files} files at a time", f"{sum(counts.values()):,}", f"{len(certain) - sum(counts.values()):,}"]
        for files, counts in ways["spark"].items()
    ]
    report.table(["Spark", "flights counted", "lost in silence"], table)

    log = captured(spark, inbox.path, out)
    opened = spark_timely.open_log(log)
    messages, dead = opened.messages().to_pandas(), opened.dead().to_pandas()
    report.step(2, f"Captured once: {len(messages):,} flights, and {len(dead)} dead letters that anybody can read")
    digests = set()
    for hours in (6, 20, None):
        ways["dataflow"][hours], digest = dataflow_counts(spark, log, hours, out)
        digests.add(digest)
    counted = [[f"{hours or 'all'} hours at a time", f"{sum(c.values()):,}"] for hours, c in ways["dataflow"].items()]
    report.table(["dataflow", "flights counted"], counted)
    report.check("one canonical hash of the outputs, whatever the size", len(digests), 1)
    truth = messages[messages["hour"] < CERTAIN].groupby("hour").size().to_dict()
    report.check(
        "and the counts are those of pandas over the captured flights",
        [counts == truth for counts in ways["dataflow"].values()],
        [True] * 3,
    )
    report.check("no flight is lost: captured + dead letters", len(messages) + len(dead), len(flights))
    return ways


def main(arguments: list[str] | None = None) -> int:
    """Run the example; return 0 if all our answers are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    build = Path(__file__).parents[1] / "build" / "late-data"
    parser.add_argument("--out", type=Path, default=build, help="where to write")
    out = empty_folder(parser.parse_args(arguments).out.resolve())
    report = Report()
    report.title("spark-timely: late is decided once, not by each query for itself")
    spark = start_spark(out / "spark.log", report)
    try:
        tell(spark, out, arrivals(), report)
    finally:
        spark.stop()
    if report.failed:
        print(f"\nNot as it should be: {'; '.join(report.failed)}")
        return 1
    print("\nOur answers agree with pandas.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
