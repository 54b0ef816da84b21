"""One application on real executors that runs queries one after the other, with blows to their tasks on the way.

Run as ``python executor_job.py SPEC.json``. Keys of the specification:

``master``, ``conf``
    Where to run, and settings.
``queries``
    One after the other, each with ``source`` (``{"files": folder}`` or ``{"log": path, "options": {…}}``), ``through``
    (``sink`` or ``foreachBatch``), ``log``, ``checkpoint``, ``options`` (the sink's, by their names in Spark), and
    ``blows``. Or a continual task: ``log``, ``blows``, and ``task`` with ``input``, ``reference`` and ``body``.

A blow falls once, on the first task 0 that comes by in a micro-batch from ``batch`` on. ``where`` is ``write``, when
the task has written its files and nobody has heard of it, ``read``, when it has given out its first rows (all of
them, for a ``race``), or ``body``, when any task has joined its first rows, and writes them next. ``how`` says what
happens:

``kill``
    The task writes the id of its executor to the file ``marker``, and waits for the test to kill that.
``fail``
    It fails, and Spark runs it again.
``race``
    It waits until another attempt at the same task, a speculative one, has come as far; then both end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import spark_timely
from spark_timely.datasource.source import TimelyDataSource
from tests.faults.harness import QUICK

SPEC = json.loads(Path(sys.argv[1]).read_text()) if __name__ == "__main__" else {}
DEADLINE_S = 120.0


def wait_for(marker: str, what: str) -> None:
    """Wait until a file is there; a task that waits in vain fails the job."""
    end = time.monotonic() + DEADLINE_S
    while not Path(marker).exists():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not happen within {DEADLINE_S} s")
        time.sleep(0.02)


def executor_id() -> int:
    """Return the id of the executor that this worker works for: its parent is a daemon, whose parent it is."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def due(blows: list[dict[str, Any]], where: str) -> dict[str, Any] | None:
    """Return the blow that this task takes, or the race in which it runs against one that waits."""
    context = TaskContext.get()
    if context is None or context.partitionId() != 0:
        return None
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    for blow in blows:
        if blow["where"] != where or batch < blow["batch"]:
            continue
        taken = claimed(blow, batch, context.attemptNumber())
        if taken is not None:
            return taken
    return None


def claimed(blow: dict[str, Any], batch: int, attempt: int) -> dict[str, Any] | None:
    """Return a blow if this task is the first that comes to it, or runs a race against that."""
    content = json.dumps({"executor": executor_id(), "batch": batch, "attempt": attempt})
    try:
        # Linked into place, whole: only one attempt wins, and the test never reads a part.
        own = f"{blow['marker']}.{os.getpid()}"
        Path(own).write_text(content)
        os.link(own, blow["marker"])
    except FileExistsError:
        found = json.loads(Path(blow["marker"]).read_text())
        # Which attempt comes first is open: on a busy machine the speculative one may.
        if blow["how"] == "race" and found["batch"] == batch and found["attempt"] != attempt:
            return {**blow, "how": "arrive"}
        return None
    return blow


def take(blow: dict[str, Any] | None) -> None:
    """Do what the blow says."""
    if blow is None:
        return
    if blow["how"] == "fail":
        raise RuntimeError("failed on purpose")
    if blow["how"] == "kill":
        wait_for(f"{blow['marker']}.never", "the death of the executor")
    if blow["how"] == "race":
        wait_for(f"{blow['marker']}.second", "a speculative attempt")
    if blow["how"] == "arrive":
        Path(f"{blow['marker']}.second").write_text("here")


def struck_source(blows: list[dict[str, Any]]) -> type:
    """Return a data source like ours whose reader and writer take blows."""
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    from spark_timely.datasource.spark_readers import TimelyStreamReader

    class Writer(DataSourceStreamArrowWriter):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            message = self.inner.write(iterator)
            take(due(blows, "write"))
            return message

        def commit(self, messages: list[Any], batch_id: int) -> None:
            self.inner.commit(messages, batch_id)

        def abort(self, messages: list[Any], batch_id: int) -> None:
            self.inner.abort(messages, batch_id)

    class Reader(TimelyStreamReader):
        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            blow = due(blows, "read")
            for number, batch in enumerate(TimelyStreamReader.read(self, partition)):
                yield batch
                if number == 0 and blow is not None and blow["how"] in {"kill", "fail"}:
                    take(blow)
            take(blow)

    class Struck(TimelyDataSource):
        @classmethod
        def name(cls) -> str:
            return "timely_struck"

        def streamReader(self, schema: StructType) -> Any:
            options = self._source_options()
            return Reader(options, self._read_layout(options, schema))

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            return Writer(TimelyDataSource.streamWriter(self, schema, overwrite))

    return Struck


def run_task(spark: SparkSession, query: dict[str, Any]) -> None:
    """Run a continual task whose body calls a function that takes blows."""
    task, blows = query["task"], query["blows"]

    def struck(number: int) -> int:
        for blow in blows:
            take(claimed(blow, -1, 0))
        return number

    spark.udf.register("struck", struck, "bigint")
    made = spark_timely.ContinualTask(
        "executors",
        inputs={"i": task["input"]},
        references={"r": task["reference"]},
        body=task["body"],
        functions=["struck"],
        output=query["log"],
        checkpoint=query["checkpoint"],
    )
    made.start(spark, trigger="availableNow").await_termination()


def run_query(spark: SparkSession, query: dict[str, Any]) -> None:
    """Run one query until its input is used up."""
    if "task" in query:
        run_task(spark, query)
        return
    spark.dataSource.register(struck_source(query["blows"]))
    source, options = query["source"], query["options"]
    if "files" in source:
        stream = spark.readStream.schema("t LONG, id LONG").option("maxFilesPerTrigger", 1)
        # Both tasks have rows, and those of a killed executor have to be fetched again.
        df = stream.parquet(source["files"]).repartition(2, "id")
    else:
        df = spark.readStream.format("timely_struck").options(**source["options"]).load(source["log"])
    writer = df.writeStream
    if query["through"] == "sink":
        writer = writer.format("timely_struck").options(**options, path=query["log"])
    else:
        keywords = {"".join(f"_{x.lower()}" if x.isupper() else x for x in name): options[name] for name in options}

        def into_log(batch: DataFrame, batch_id: int) -> None:
            spark_timely.capture(batch, batch_id, path=query["log"], checkpoint=query["checkpoint"], **keywords)

        writer = writer.foreachBatch(into_log)
    writer.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Run the queries."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.executor.extraJavaOptions": QUICK,
    }
    spark = spark_timely.session("executors", master=SPEC["master"], **{**settings, **SPEC["conf"]})
    for query in SPEC["queries"]:
        run_query(spark, query)
    spark.stop()


if __name__ == "__main__":
    main()
