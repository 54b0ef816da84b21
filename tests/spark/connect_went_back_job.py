"""A query that is damaged between its runs, through Spark Connect, as `connect` runs it."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.went_back import scenario


def main(spark: SparkSession, folder: Path) -> dict[str, object]:
    """Run the case that is written down in the folder."""
    case = json.loads((folder / "case.json").read_text())
    return scenario(spark, folder, case["policy"], case["way"], case["damages"])
