"""Replays by Spark of a log that forgets: with a consumer nothing is lost, without one it is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.connect_forgetting_job import check, main

pytestmark = pytest.mark.spark


def test_replay_with_a_consumer_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    check(main(spark, tmp_path))
