"""The example of late rows: Spark's counts differ with the batch size, the dataflow's do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def story(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("late_data")


def test_batch_size_changes_the_answer_of_spark_alone(
    spark: SparkSession, story: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flights, report = story.arrivals(), story.Report()
    ways = story.tell(spark, tmp_path, flights, report)
    out = capsys.readouterr().out
    assert report.failed == [], out
    assert out.count("✓") == 3
    spark_says = [sum(counts.values()) for counts in ways["spark"].values()]
    assert len(set(spark_says)) > 1, "Spark's answer did not depend on the batch size: the example says that it does"
    first, *others = ways["dataflow"].values()
    assert first
    assert others == [first, first]
