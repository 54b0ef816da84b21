"""One or several jobs of a hand-over in one driver, until they have used their input up or are killed.

Run as ``python handover_job.py SPEC.json``. Keys of the specification: ``folder``, where everything lies;
``jobs``, some of ``capture``, ``clean`` and ``merge``; ``trigger``, ``availableNow`` or ``continuous``; ``connect``,
whether through Spark Connect.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_timely
from spark_timely.typing import CaptureQuery
from tests.spark.connect import connect_session

LATENESS = 4


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the input, one file per micro-batch."""
    return (
        spark.readStream.schema("t long, id long")
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", "false")
        .parquet(str(folder / "in"))
    )


def replay(spark: SparkSession, path: Path, n_times: int | None) -> DataFrame:
    """Return the closed times of a log, a few per micro-batch."""
    reader = spark.readStream.format("timely")
    return (reader if n_times is None else reader.option("maxTimesPerTrigger", n_times)).load(str(path))


def frames(spark: SparkSession, folder: Path, name: str, n_times: int | None) -> tuple[DataFrame, dict[str, object]]:
    """Return what a job captures, and with which options: plain Spark between two logs."""
    source: dict[str, object] = {"time_column": "t", "frontier": "source"}
    if name == "capture":
        options = {"frontier": "bounded", "lateness": LATENESS, "late_data": "deadLetter"}
        return files(spark, folder), {**source, **options}
    if name == "clean":
        raw = replay(spark, folder / "raw", n_times)
        return raw.where("id % 3 != 0").selectExpr("t", "id", "id % 2 AS kind"), source
    both = replay(spark, folder / "clean", n_times).union(
        replay(spark, folder.parent / "other", n_times).selectExpr("t", "id", "id % 2 AS kind")
    )
    kinds = spark.createDataFrame([(0, "even"), (1, "odd")], "kind long, name string")
    return both.join(kinds, "kind").select("t", "id", "name"), {**source, "through": "foreachBatch"}


LOGS = {"capture": "raw", "clean": "clean", "merge": "merged"}


def begin(spark: SparkSession, folder: Path, name: str, *, trigger: str, n_times: int | None = 3) -> CaptureQuery:
    """Start one job, going on from its checkpoint."""
    df, options = frames(spark, folder, name, n_times)
    return spark_timely.start(
        df,
        path=str(folder / LOGS[name]),
        checkpoint=str(folder / f"{name}-checkpoint"),
        trigger="availableNow" if trigger == "availableNow" else "100 milliseconds",
        **options,  # type: ignore[arg-type]
    )


def session(*, connect: bool) -> SparkSession:
    """Return the driver's session."""
    if connect:
        os.environ["SPARK_TESTING"] = "1"  # a free port for the server
        return connect_session()
    return spark_timely.session(
        "hand-over",
        master="local[2]",
        **{
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
        },
    )


def main(spec: dict[str, object]) -> None:
    """Run the jobs."""
    spark = session(connect=bool(spec["connect"]))
    folder, jobs = Path(str(spec["folder"])), list(spec["jobs"])  # type: ignore[call-overload]
    queries: list[StreamingQuery] = [begin(spark, folder, name, trigger=str(spec["trigger"])).query for name in jobs]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
