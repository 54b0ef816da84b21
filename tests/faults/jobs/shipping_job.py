"""One application on a cluster whose workers have a Python of their own: each way by which rows go through it.

Run as ``python shipping_job.py SPEC.json``. Keys of the specification:

``folder``
    Has ``in`` (files of Parquet), ``inserts`` and ``reference`` (logs); the outputs go here.
``conf``
    Settings of the session.
``connect``
    Whether it is one of Spark Connect, with a server of its own.
``artifacts``
    Files of Python that are added to the session.
``answer``
    File for what was found: by the name of a way, the rows that its log has, or what the error says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import spark_timely as st
from spark_timely import functions as tf
from tests.faults.harness import QUICK

CAPTURE = {"time_column": "t", "frontier": "bounded", "lateness": 0}
BODY = "SELECT i.k, i.n * r.n AS n FROM i JOIN r USING (k)"
WAYS = ("sink", "source", "replay", "capture", "dataflow", "task", "function")


def session(spec: dict[str, Any]) -> SparkSession:
    """Return the session, with what is shipped."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.task.maxFailures": "1",
        **spec["conf"],
    }
    if not spec["connect"]:
        spark = st.session("shipping", master="local-cluster[2,1,1024]", **settings)
    else:
        os.environ["SPARK_TESTING"] = "1"  # a free port for the server
        builder = SparkSession.builder.remote("local-cluster[2,1,1024]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    for file in spec["artifacts"]:
        spark.addArtifacts(file, pyfile=True)
    st.register(spark)
    return spark


def ways(spark: SparkSession, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what is run, by name; each writes into a log of its name, but the source."""

    def place(name: str) -> dict[str, str]:
        return {"path": str(folder / name), "checkpoint": str(folder / f"{name}-checkpoint")}

    def captured(name: str, through: Any) -> None:
        rows = spark.readStream.schema("t LONG, n LONG").parquet(str(folder / "in"))
        st.start(
            rows, **place(name), through=through, trigger="availableNow", **CAPTURE  # type: ignore[arg-type]
        ).await_termination()  # fmt: skip

    def source() -> None:
        frame: DataFrame = spark.read.format("timely").load(str(folder / "inserts"), includeTime=True)
        frame.write.parquet(str(folder / "source"))

    def replay() -> None:
        rows = spark.readStream.format("timely").load(str(folder / "inserts"), includeTime=True)
        out = rows.writeStream.format("parquet").trigger(availableNow=True)
        place = {"path": str(folder / "replay"), "checkpointLocation": str(folder / "replay-checkpoint")}
        out.options(**place).start().awaitTermination()

    def dataflow() -> None:
        flow = st.Dataflow("flow", checkpoint=str(folder / "flow-checkpoint"))
        flow.replay(folder / "inserts").aggregate(by="k", n=tf.sum("n")).capture(folder / "dataflow")
        flow.start(spark, trigger="availableNow", max_bytes_in_driver=0).await_termination()

    def task(name: str, **body: Any) -> None:
        inputs, references = {"i": folder / "inserts"}, {"r": folder / "reference"}
        made = st.ContinualTask(name, inputs=inputs, references=references, output=folder / name, **body)
        made.start(spark, trigger="availableNow").await_termination()

    def joined(inputs: Any, references: Any, time: Any) -> Any:
        import pyarrow.compute as pc

        both = inputs["i"].join(references["r"].rename_columns(["k", "m"]), "k", join_type="inner")
        return both.append_column("x", pc.multiply(both["n"], both["m"])).select(["k", "x"]).rename_columns(["k", "n"])

    return {
        "sink": lambda: captured("sink", "sink"),
        "source": source,
        "replay": replay,
        "capture": lambda: captured("capture", "foreachBatch"),
        "dataflow": dataflow,
        "task": lambda: task("task", body=BODY),
        "function": lambda: task("function", body=joined, version="1", arrow=True),
    }


def main() -> None:
    """Run all ways, and tell."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    spark = session(spec)
    found = {}
    for name, run in ways(spark, Path(spec["folder"])).items():
        try:
            run()
            found[name] = "done"
        except Exception as error:  # noqa: BLE001 - what it says is the answer
            found[name] = f"{type(error).__name__}: {error}"
    Path(spec["answer"]).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
