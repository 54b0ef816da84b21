"""What users get wrong, through Spark Connect, as `connect` runs it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.misuses import misuses, shown_for


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Do everything wrong in turn; return what was shown."""
    shown = [shown_for(misuse, spark, folder / str(number)) for number, misuse in enumerate(misuses())]
    return {"shown": [asdict(one) for one in shown]}
