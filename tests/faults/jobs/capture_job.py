"""A capture or replay job that can be killed at a named point.

Run as ``python capture_job.py SPEC.json``. Keys of the specification:

``source``
    ``{"files": folder}``: Parquet files, one per micro-batch; or ``{"log": path, "options": {…}}``.
``through``
    ``sink`` or ``foreachBatch``.
``log``, ``checkpoint``, ``options``
    Where to, and the sink's options by their names in Spark.
``kill``
    ``null``, or ``{"where": "write" | "before" | "after", "batch": n}``: end the driver while a task
    writes, just before the log is asked to commit, or between the log's commit and Spark's commit file.
``marker``
    A file that is written just before the kill, so that the test knows that it struck.
``refuse``
    ``{"calls": […], "code": errno}``: system calls that fail for the job and all that it starts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import spark_timely
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.log.core import LogCore
from tests.faults.harness import strike
from tests.faults.no_links import refuse

DRIVER_GROUP = os.getpgid(0)


class KillingWriter:
    """The sink's writer with a kill point in it."""

    def __init__(self, inner: object, kill: dict[str, object], marker: str, group: int) -> None:
        self.inner, self.kill, self.marker, self.group = inner, kill, marker, group

    def write(self, iterator: Iterator[pa.RecordBatch]) -> object:
        """Write, or die after the first record batch was taken."""
        if self.kill["where"] == "write" and not Path(self.marker).exists():
            first = next(iter(iterator), None)
            batches = [] if first is None else [first]
            message = self.inner.write(iter(batches))  # files are written, nobody hears of it
            del message
            strike(self.marker, self.group)
        return self.inner.write(iterator)

    def commit(self, messages: list[object], batch_id: int) -> None:
        """Commit, or die on either side of it."""
        due = batch_id >= self.kill["batch"] and not Path(self.marker).exists()
        if due and self.kill["where"] == "before":
            strike(self.marker, self.group)
        self.inner.commit(messages, batch_id)
        if due and self.kill["where"] == "after":
            strike(self.marker, self.group)

    def abort(self, messages: list[object], batch_id: int) -> None:
        """Pass on."""
        self.inner.abort(messages, batch_id)


def killing_source(kill: dict[str, object], marker: str, group: int) -> type:
    """Return a data source like ours whose writer has a kill point."""
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class Writer(KillingWriter, DataSourceStreamArrowWriter):
        pass

    class Killing(TimelyDataSource):
        @classmethod
        def name(cls) -> str:
            return "timely_killing"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
            return Writer(super().streamWriter(schema, overwrite), kill, marker, group)

    return Killing


def run(spark: SparkSession, spec: dict[str, Any]) -> None:
    """Run the query until its input is used up, or until it is killed."""
    source = spec["source"]
    if "files" in source:
        schema = spark.read.parquet(source["files"]).schema
        df = (
            spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", 1)
            .option("latestFirst", "false")
            .parquet(source["files"])
        )
    else:
        df = spark.readStream.format("timely").options(**source.get("options", {})).load(source["log"])
    kill, log, checkpoint = spec.get("kill"), spec["log"], spec["checkpoint"]
    if spec["through"] == "sink":
        name = "timely"
        if kill:
            spark.dataSource.register(killing_source(kill, spec["marker"], DRIVER_GROUP))
            name = "timely_killing"
        writer = df.writeStream.format(name).options(**spec["options"], path=log)
    else:
        options = {"_".join(_words(name)): value for name, value in spec["options"].items()}

        def into_log(batch: DataFrame, batch_id: int) -> None:
            due = bool(kill) and batch_id >= kill["batch"] and not Path(spec["marker"]).exists()
            if due and kill["where"] in {"before", "write"}:
                _kill_inside(kill["where"], spec["marker"])
            spark_timely.capture(batch, batch_id, path=log, checkpoint=checkpoint, **options)
            if due and kill["where"] == "after":
                strike(spec["marker"], DRIVER_GROUP)

        writer = df.writeStream.foreachBatch(into_log)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def _words(name: str) -> list[str]:
    """Split a camelCase name."""
    words = [""]
    for letter in name:
        if letter.isupper():
            words.append("")
        words[-1] += letter.lower()
    return words


def _kill_inside(where: str, marker: str) -> None:
    """Make the next commit of the log kill the driver: its files are written by then."""

    if where == "write":
        strike(marker, DRIVER_GROUP)

    def die(*_: object, **__: object) -> None:
        strike(marker, DRIVER_GROUP)

    LogCore.commit = die


def main(spec: dict[str, Any]) -> None:
    """Run the query in a driver of its own."""
    if "refuse" in spec:
        refuse(*spec["refuse"]["calls"], code=spec["refuse"]["code"])
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    spark = spark_timely.session("kill", master="local[2]", **{**settings, **spec.get("conf", {})})
    run(spark, spec)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
