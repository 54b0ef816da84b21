"""Writes an archive of Spark's classes that the JVMs of the tests map: ``python -m tests.class_archive FILE``.

The tests start dozens of JVMs that live for seconds, and half of what such a one does is to load and check classes. The
archive is of one JDK and one Spark: a file beside it names them, and with others it is written anew. A JVM that it does
not fit does without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pyarrow as pa

_SMALL = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}


def write(file: Path) -> None:
    """Write the archive unless there is one that fits."""
    stamp = file.with_suffix(".of")
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    said = subprocess.run([java, "-version"], capture_output=True, encoding="utf-8", check=True).stderr
    wanted = f"{said}pyspark {metadata.version('pyspark')}\n"
    if file.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    options = f'-XX:ArchiveClassesAtExit="{unfinished}" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable'
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": options}
    command = [sys.executable, "-m", "tests.class_archive"]
    try:
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    stamp.write_text(wanted, encoding="utf-8")


def use() -> None:
    """Have Spark load what most tests use; return once its JVM has ended."""
    from pyspark import SparkContext

    import spark_timely as st

    with tempfile.TemporaryDirectory() as folder:
        spark = st.session("classes", master="local[2]", delta=True, **_SMALL)
        log = st.create_log(f"{folder}/in", pa.schema([("k", pa.string()), ("n", pa.int64())]), minimum=(0,))
        log.writer(owner="test").append(pa.table({"_time": [0, 1], "k": ["a", "b"], "n": [1, 2]}), advance_to=[])
        rows = spark.readStream.format("timely").load(f"{folder}/in")
        query = (
            rows.writeStream.format("timely")
            .option("checkpointLocation", f"{folder}/c")
            .options(frontier="source", timeColumn="n")
        )
        query.trigger(availableNow=True).start(f"{folder}/copy").awaitTermination()
        body = "SELECT k, sum(i.n) AS n FROM i JOIN r USING (k) GROUP BY k"
        logs = {"inputs": {"i": f"{folder}/in"}, "references": {"r": f"{folder}/in"}}
        task = st.ContinualTask("classes", **logs, body=body, output=f"{folder}/out")  # type: ignore[arg-type]
        task.start(spark, trigger="availableNow").await_termination()
        spark.read.parquet(f"{folder}/in/_event=message").write.format("delta").save(f"{folder}/delta")
        spark.read.format("delta").load(f"{folder}/delta").count()
        # Nothing public says when the JVM ends. It writes the archive then, once this process closes its input.
        process = SparkContext._gateway.proc
        spark.stop()
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    write(Path(sys.argv[1])) if len(sys.argv) > 1 else use()
