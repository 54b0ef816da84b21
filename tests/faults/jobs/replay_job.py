"""A replay that is planned in the driver, and kills itself in a micro-batch."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import spark_timely


def main() -> None:
    """Replay with the options of the specification."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    out = Path(spec["out"])

    def load(rows: DataFrame, batch_id: int) -> None:
        found = [list(row) for row in rows.collect()]
        with out.open("a") as file:
            file.write(json.dumps([batch_id, sorted(found)]) + "\n")
        if batch_id == spec["die"]:
            os.kill(os.getpid(), signal.SIGKILL)

    job = spark_timely.replay(spark, spec["log"], max_times_per_trigger=2)
    job.foreachBatch(load).run(checkpoint=spec["checkpoint"])
    spark.stop()


if __name__ == "__main__":
    main()
