"""The tasks of the Databricks bundle: capture, handover, report, compact and wait.

The jobs of ``jobs.yml`` run this file, each task by its name. It runs on serverless and classic compute alike: it uses
Spark Connect's API alone, and each run takes what is there and ends. Compact and wait are commands of ``spark-timely``:
where the command fails the task fails, so a job's later tasks run only on a yes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import spark_timely
from spark_timely.cli import main as command_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def parser() -> argparse.ArgumentParser:
    """Return the parser of a task's parameters."""
    found = argparse.ArgumentParser(prog="job.py")
    tasks = found.add_subparsers(dest="task", required=True)
    needs = {
        "capture": ["input", "log", "checkpoint", "time-column", "lateness"],
        "handover": ["source", "log", "checkpoint", "time-column"],
        "report": ["log", "time-column"],
        "compact": ["log"],
        "wait": ["log", "time", "timeout"],
    }
    for name, options in needs.items():
        task = tasks.add_parser(name)
        for option in options:
            task.add_argument(f"--{option}", required=True)
        task.add_argument("--storage", type=json.loads, default={}, help="storage options of a URL, as JSON")
        if name in ("capture", "handover", "compact"):
            task.add_argument("--single-writer", choices=["true", "false"], default="false")
        if name == "capture":
            task.add_argument("--format", default="cloudFiles", help="of the files that arrive")
            task.add_argument("--schema", help="their columns; inferred by Auto Loader if not given")
    return found


def capture(spark: SparkSession, options: argparse.Namespace) -> None:
    """Capture the files that have arrived."""
    reader = spark.readStream.format(options.format)
    if options.schema:
        reader = reader.schema(options.schema)
    if options.format == "cloudFiles":
        reader = reader.option("cloudFiles.format", "json")
        reader = reader.option("cloudFiles.schemaLocation", f"{options.checkpoint}/schema")
    into_log(reader.load(options.input), options, frontier="bounded", lateness=options.lateness, lateData="deadLetter")


def handover(spark: SparkSession, options: argparse.Namespace) -> None:
    """Clean what was captured; what is complete there is complete here."""
    orders = spark.readStream.format("timely").options(**storage(spark, options)).load(options.source)
    into_log(orders.dropna(subset=["id"]), options, frontier="source")


def report(spark: SparkSession, options: argparse.Namespace) -> None:
    """Count the orders of each complete time."""
    clean = spark.read.format("timely").options(**storage(spark, options)).load(options.log)
    clean.groupBy(options.time_column).count().orderBy(options.time_column).show(1000)


def into_log(df: DataFrame, options: argparse.Namespace, **rules: str) -> None:
    """Capture all there is, and wait for the end."""
    query = (
        df.writeStream.format("timely")
        .options(path=options.log, timeColumn=options.time_column, singleWriter=options.single_writer)
        .options(**rules, **storage(df.sparkSession, options))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def storage(spark: SparkSession, options: argparse.Namespace) -> dict[str, str]:
    """Return storage options as source and sink take them: by a name, since Spark shows its options."""
    if not options.storage:
        return {}
    spark_timely.credential(spark, "job", options.storage)
    return {"credential": "job"}


def verb(options: argparse.Namespace) -> None:
    """Run a verb of the command line; anything but a yes fails the task."""
    words = [options.task, options.log]
    words += [word for name, value in options.storage.items() for word in ("--storage", f"{name}={value}")]
    if options.task == "wait":
        words += ["--time", options.time, "--timeout", options.timeout]
    elif options.single_writer == "true":
        words.append("--single-writer")
    code = command_line(words)
    if code:
        raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one task."""
    options = parser().parse_args(arguments)
    if options.task in ("compact", "wait"):
        verb(options)
        return
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    spark_timely.register(spark)
    {"capture": capture, "handover": handover, "report": report}[options.task](spark, options)


if __name__ == "__main__":
    main()
