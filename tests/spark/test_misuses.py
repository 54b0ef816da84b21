"""What users get wrong is refused where they call it, with the message in the first line."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.misuses import Misuse, check, misuses, shown_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("own_catalog")]


@pytest.mark.parametrize("misuse", list(misuses()), ids=lambda misuse: misuse.name)
def test_misuse_is_refused_early_in_the_first_line(spark: SparkSession, tmp_path: Path, misuse: Misuse) -> None:
    check(misuse, shown_for(misuse, spark, tmp_path / "place"))
