"""A replay that is planned in the driver, and kills itself in a micro-batch."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import spark_timely


def run(spark: SparkSession, spec: dict[str, Any]) -> None:
    """Replay with the options of the specification to the end, or to the micro-batch in which to die."""
    out = Path(spec["out"])

    def load(rows: DataFrame, batch_id: int) -> None:
        found = [list(row) for row in rows.collect()]
        with out.open("a") as file:
            file.write(json.dumps([batch_id, sorted(found)]) + "\n")
        if batch_id == spec.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)

    job = spark_timely.replay(spark, spec["log"], max_times_per_trigger=2)
    job.foreachBatch(load).run(checkpoint=spec["checkpoint"])


def main() -> None:
    """Replay in a driver of its own."""
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    run(spark, json.loads(Path(sys.argv[1]).read_text()))
    spark.stop()


if __name__ == "__main__":
    main()
