"""The example of sources that take turns: our answers are those of pandas, and Spark's are what the text says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pandas as pd
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def story(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("across_runs")


def test_example_is_complete_where_spark_stalls_or_errs(
    spark: SparkSession, story: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flights, report = story.flights_of_the_day(), story.Report()
    ways = story.tell(spark, tmp_path, flights, report)
    out = capsys.readouterr().out
    assert report.failed == [], out
    assert out.count("✓") == 4
    # Without the example's own oracle: up to 16:00 every airport has said what it had.
    everything = flights.groupby("hour").size().to_dict()
    complete = {hour: n for hour, n in everything.items() if hour < pd.Timestamp("2013-06-12 16:00", tz="UTC")}
    assert ways["timely"] == complete
    assert len(complete) == 6
    assert ways["min"] == {}
    assert any(count != everything[hour] for hour, count in ways["max"].items())
    picture = story.across_runs_picture.draw(tmp_path / "a.png", flights, story.RUNS, ways, start=story.START)
    assert picture.read_bytes().startswith(b"\x89PNG")
