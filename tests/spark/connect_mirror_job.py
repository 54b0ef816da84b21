"""Mirrors through a Spark Connect server that has Delta: a process of its own, since other jobs' server has none.

Run as ``python connect_mirror_job.py SPEC.json``; ``folder`` of the specification is where everything goes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

import spark_timely
from spark_timely.errors import TimelyError
from spark_timely.spark import session_settings
from spark_timely.spark.answers.mirror import Mirror

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def connect_session() -> SparkSession:
    """Return a Connect session with a server of its own that knows Delta."""
    os.environ["SPARK_TESTING"] = "1"  # a free port for the server, so that several runs do not meet on one
    settings = session_settings(delta=True)
    paths = [settings["spark.executorEnv.PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    builder = configure_spark_with_delta_pip(SparkSession.builder.remote("local[2]"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    spark: SparkSession = builder.getOrCreate()
    spark_timely.register(spark)
    return spark


def failure(mirror: Mirror) -> TimelyError:
    """Return the error of a step that must fail."""
    try:
        mirror.step()
    except TimelyError as error:
        return error
    raise AssertionError("the step did not fail")


def main(folder: Path) -> dict[str, object]:
    """Return what mirrors did and what their tables hold."""
    spark = connect_session()
    log = spark_timely.create_log(folder / "log", SCHEMA, minimum=(0,), kind="collection")
    writer = log.writer(owner="tests")
    mirrors = {
        "keyed": spark_timely.mirror_to(spark, log, folder / "keyed", key="k"),
        "counted": spark_timely.mirror_to(spark, log, folder / "counted"),
    }
    found: dict[str, list[object]] = {name: [] for name in mirrors}
    writer.append(pa.table({"_time": [0, 0], "_diff": [1, 1], "k": [1, 2], "v": ["a", "b"]}), advance_to=1)
    for name, mirror in mirrors.items():
        found[name].append(mirror.step().how)
    rows = {"_time": [1, 1, 1], "_diff": [-1, 1, 1], "k": [1, 1, 3], "v": ["a", "A", "c"]}
    writer.append(pa.table(rows), advance_to=2)
    for name, mirror in mirrors.items():
        found[name] += [mirror.step().how, mirror.step().how]
        table = spark.read.format("delta").load(str(folder / name)).orderBy("k")
        found[name].append([list(row) for row in table.collect()])
    writer.append(pa.table({"_time": [2], "_diff": [1], "k": [1], "v": ["twice"]}), advance_to=3)
    violated = str(failure(mirrors["keyed"]))
    spark.sql(f"DELETE FROM delta.`{folder}/counted` WHERE k = 2")
    foreign = type(failure(mirrors["counted"])).__name__
    spark.stop()
    return {**found, "violated": violated, "foreign": foreign}


if __name__ == "__main__":
    result = main(Path(json.loads(Path(sys.argv[1]).read_text())["folder"]))
    sys.stdout.write(f"\nFOUND {json.dumps(result)}\n")
