"""What users get wrong is refused where they call it, with the message in the first line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.misuses import Misuse, check, misuses, shown_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session with Spark's own catalog in place of Delta's."""
    before = spark.conf.get("spark.sql.catalog.spark_catalog")
    spark.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    yield spark
    spark.conf.set("spark.sql.catalog.spark_catalog", str(before))


@pytest.mark.parametrize("misuse", list(misuses()), ids=lambda misuse: misuse.name)
def test_misuse_is_refused_early_in_the_first_line(spark: SparkSession, tmp_path: Path, misuse: Misuse) -> None:
    check(misuse, shown_for(misuse, spark, tmp_path / "place"))
