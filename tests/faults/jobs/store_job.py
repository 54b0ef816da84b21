"""Captures, replays, a hand-over and dataflows with logs and checkpoints at one place: a folder, or an object store.

Run as ``python store_job.py SPEC.json``. Keys of the specification: ``root``, the place; ``input``, a local folder with
files of rows (t, id); ``disk``, a local folder for what a store cannot keep; ``settings``, of the session; ``steps``,
some of `STEPS`. Credentials are in the environment. Each step uses up what there is, and continues from its checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.spark import batch_frame

LATENESS = 4


class Steps:
    """What the job does; each method is a step.

    Parameters
    ----------
    spark : SparkSession
    spec : dict
    """

    def __init__(self, spark: SparkSession, spec: dict[str, str]) -> None:
        self.spark, self.root, self.input, self.disk = spark, spec["root"], spec["input"], spec["disk"]

    def capture(self) -> None:
        """Files into the log `raw`, by the sink."""
        files = self.spark.readStream.schema("t long, id long").option("maxFilesPerTrigger", 1).parquet(self.input)
        self._capture(files, "raw", frontier="bounded", lateness=LATENESS, late_data="deadLetter")

    def clean(self) -> None:
        """From `raw` into `clean`, by the sink."""
        self._capture(self._replayed("raw").where("id % 3 != 0"), "clean", frontier="source")

    def merge(self) -> None:
        """From `clean` and `raw` into `merged`, in foreachBatch: Spark writes the files itself."""
        both = self._replayed("clean").union(self._replayed("raw").where("id % 3 = 0"))
        kinds = self.spark.createDataFrame([(0, "even"), (1, "odd")], "kind long, name string")
        named = both.selectExpr("t", "id", "id % 2 AS kind").join(kinds, "kind").select("t", "id", "name")
        self._capture(named, "merged", frontier="source", through="foreachBatch")

    def sums(self) -> None:
        """Sums of `raw` into `sums`, by a dataflow."""
        flow = st.Dataflow("sums", checkpoint=f"{self.root}/checkpoints/sums")
        windows = flow.replay(f"{self.root}/raw").delay(tf.windows(6, every=3))
        windows.aggregate(n=tf.count(), total=tf.sum("id")).capture(f"{self.root}/sums")
        # In the executors: a driver that does the little work by itself would show nothing.
        query = flow.start(self.spark, trigger="availableNow", max_times_per_step=7, max_bytes_in_driver=0)
        query.await_termination()

    def copy(self) -> None:
        """Micro-batches of `raw` into Parquet, through the source."""
        self._run(self._replayed("raw").writeStream.foreachBatch(self._writes("copy")), "copy")

    def frames(self) -> None:
        """Micro-batches of `raw` into Parquet, as frames of splits: Spark reads the files itself."""
        write = self._writes("frames")

        def load(splits: DataFrame, number: int) -> None:
            write(batch_frame(splits.sparkSession, splits), number)

        self._run(self._replayed("raw", content="splits").writeStream.foreachBatch(load), "frames")

    def driver(self) -> None:
        """Micro-batches of `raw` into Parquet, planned in the driver; its checkpoint is on a disk."""
        job = st.replay(self.spark, f"{self.root}/raw", max_times_per_trigger=5).foreachBatch(self._writes("driver"))
        job.run(checkpoint=f"{self.disk}/driver-checkpoint")

    def read(self) -> None:
        """Print the rows of the copies, and of `raw` by a batch query."""
        found = {name: self.spark.read.parquet(f"{self.root}/{name}/*") for name in ("copy", "frames", "driver")}
        found["batch"] = self.spark.read.format("timely").load(f"{self.root}/raw")
        rows = {name: sorted(map(list, frame.select("t", "id").collect())) for name, frame in found.items()}
        sys.stdout.write(f"\nROWS {json.dumps(rows)}\n")

    def _replayed(self, log: str, **options: str) -> DataFrame:
        return (
            self.spark.readStream.format("timely").options(maxTimesPerTrigger="5", **options).load(f"{self.root}/{log}")
        )

    def _capture(self, rows: DataFrame, log: str, **options: object) -> None:
        st.start(
            rows,
            path=f"{self.root}/{log}",
            checkpoint=f"{self.root}/checkpoints/{log}",
            trigger="availableNow",
            time_column="t",
            **options,  # type: ignore[arg-type]
        ).await_termination()

    def _run(self, writer: object, name: str) -> None:
        writer = writer.option("checkpointLocation", f"{self.root}/checkpoints/{name}")  # type: ignore[attr-defined]
        writer.trigger(availableNow=True).start().awaitTermination()

    def _writes(self, name: str) -> Callable[[DataFrame, int], None]:
        def write(rows: DataFrame, number: int) -> None:
            rows.select("t", "id").write.mode("overwrite").parquet(f"{self.root}/{name}/{number}")

        return write


STEPS = ("capture", "clean", "merge", "sums", "copy", "frames", "driver", "read")


def main() -> None:
    """Take the steps, in a session of their own."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    spark = st.session("store", master="local[2]", **{**settings, **spec["settings"]})
    steps = Steps(spark, spec)
    for name in spec.get("steps", STEPS):  # a few
        getattr(steps, name)()
        sys.stdout.write(f"\nDID {name}\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
