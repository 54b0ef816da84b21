"""Good and failing runs over object stores in a session that is not ours, with Spark's event log; all is printed.

Run as ``python store_secrets_job.py SPEC.json``. Keys of the specification: ``folder``, on a disk; ``root``, a place
in a store that works; ``good``, its storage options; ``failing``, a list of a URL and storage options that do not work;
``settings``, of the session; ``hadoop``, whether Spark itself can reach the store: if it cannot, checkpoints are on the
disk, and what writes by Spark is left out.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.errors import TimelyError

SCHEMA = pa.schema([("t", pa.int64()), ("word", pa.string())])


def session(spec: dict[str, Any]) -> SparkSession:
    """Return a session as somebody else makes it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = Path(spec["folder"])
    (folder / "events").mkdir(parents=True)
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.compress": "false",  # so that it can be searched
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        **spec["settings"],
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():  # a few
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    st.register(spark)
    return spark


def good(spark: SparkSession, root: str, options: dict[str, str], checkpoints: str, *, hadoop: bool) -> None:
    """Capture and replay in every way, and show the plans."""
    st.credential(spark, "good", options)
    log = st.create_log(f"{root}/log", SCHEMA, times=("long",), storage_options=options)
    log.writer(owner="somebody").append(pa.table({"t": [1, 2], "word": ["a", "b"]}), time_column="t", advance_to=3)
    spark.sql(f"CREATE TABLE words USING timely OPTIONS (path '{root}/log', credential 'good')")
    for rows in (spark.table("words"), spark.read.format("timely").option("credential", "good").load(f"{root}/log")):
        rows.explain(True)
        assert rows.count() == 2
        tried(lambda rows=rows: rows.select("wrod"))  # type: ignore[misc]
    for statement in ("SHOW CREATE TABLE", "DESCRIBE EXTENDED"):
        sys.stdout.write(f"{spark.sql(f'{statement} words').collect()}\n")
    for through in ("sink", "foreachBatch") if hadoop else ("sink",):
        stream = spark.readStream.format("timely").option("credential", "good").load(f"{root}/log")
        query = st.start(
            stream,
            path=f"{root}/{through}",
            checkpoint=f"{checkpoints}/{through}",
            trigger="availableNow",
            through=through,  # type: ignore[arg-type]
            storage_options=options,
            time_column="t",
            frontier="source",
        )
        query.await_termination()
        query.query.explain(True)
        sys.stdout.write(f"{query!r} {[progress.json for progress in query.query.recentProgress]}\n")
        assert st.open_log(f"{root}/{through}", storage_options=options).messages().num_rows == 2
    flow = st.Dataflow("counts", checkpoint=f"{checkpoints}/counts")
    counts = flow.replay(f"{root}/log", storage_options=options).aggregate(n=tf.count())
    counts.capture(f"{root}/counts", storage_options=options)
    run = flow.start(spark, trigger="availableNow", max_bytes_in_driver=0)
    run.await_termination()
    sys.stdout.write(f"{flow.explain()} {run!r}\n")
    assert st.open_log(f"{root}/counts", storage_options=options).messages().num_rows == 2

    def failing(rows: DataFrame, number: int) -> None:
        raise RuntimeError(f"no {rows} {number}")

    stream = spark.readStream.format("timely").option("credential", "good").load(f"{root}/log")
    query = stream.writeStream.foreachBatch(failing).option("checkpointLocation", f"{checkpoints}/failing")
    tried(lambda: query.trigger(availableNow=True).start().awaitTermination())
    sys.stdout.write("GOOD\n")


def bad(spark: SparkSession, number: int, url: str, options: dict[str, str], folder: str, root: str) -> None:
    """Read from, and write to, what cannot be reached or refuses."""
    st.credential(spark, f"bad{number}", options)
    local = f"{folder}/local-{number}"
    log = st.create_log(local, SCHEMA, times=("long",))
    log.writer(owner="somebody").append(pa.table({"t": [1], "word": ["a"]}), time_column="t", advance_to=3)
    rows = spark.readStream.format("timely").load(local)
    tried(lambda: spark.read.format("timely").option("credential", f"bad{number}").load(url).count())
    writer = rows.writeStream.format("timely").options(credential=f"bad{number}", timeColumn="t", frontier="hold")
    writer = writer.option("checkpointLocation", f"{folder}/bad-{number}").trigger(availableNow=True)
    tried(lambda: writer.start(url).awaitTermination())
    for through in ("sink", "foreachBatch"):
        tried(
            lambda through=through: st.start(  # type: ignore[misc]
                rows,
                path=url,
                checkpoint=f"{folder}/bad-{number}-{through}",
                trigger="availableNow",
                through=through,
                storage_options=options,
                time_column="t",
                frontier="hold",
            ).await_termination()
        )
    tried(lambda: st.replay(spark, url, storage_options=options))
    tried(lambda: st.Dataflow("bad", checkpoint=f"{root}/checkpoints/bad").replay(url, storage_options=options))
    sys.stdout.write(f"BAD {number}\n")


def tried(work: Callable[[], object]) -> None:
    """Print the error that some work must raise."""
    try:
        work()
    except (PySparkException, TimelyError):
        traceback.print_exc()
    else:
        raise AssertionError("found no error")


def main() -> None:
    """Run what works, then what does not."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    spark = session(spec)
    at = f"{spec['root']}/checkpoints" if spec["hadoop"] else f"{spec['folder']}/checkpoints"
    good(spark, spec["root"], spec["good"], at, hadoop=spec["hadoop"])
    for number, (url, options) in enumerate(spec["failing"]):  # a few
        bad(spark, number, url, options, spec["folder"], spec["root"])
    # Hadoop's credentials are given as settings here: this call gives everybody their own back.
    conf = [pair for pair in spark.sparkContext.getConf().getAll() if pair[0] not in spec["settings"]]
    sys.stdout.write(f"{spark.sql('SET').collect()} {conf}\n")
    spark.stop()


if __name__ == "__main__":
    main()
