"""The example of jobs in a row: its checks hold, and the last table is what a program by loops says."""

from __future__ import annotations

from collections import defaultdict
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
    return example("handover")


def test_example_hands_completeness_on_despite_failures(
    spark: SparkSession, story: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = story.tell(spark, tmp_path, story.Report())
    out = capsys.readouterr().out
    assert "✗" not in out, out
    for night in far[:-1]:
        assert night["both"] <= min(night["flights"], night["weather"])
    assert far[1]["both"] == far[0]["weather"], "held back by the silent weather"
    assert far[2]["both"] == far[1]["both"], "the second job did not run"
    assert far[3]["both"] == far[2]["flights"], "held back by the silent flights"

    # Without the example's own oracle, hour by hour.
    delays = defaultdict(list)
    for row in story.week(story.flights_data.load_flights()).itertuples():
        if not row.cancelled:
            delays[row.hour, row.origin].append(row.dep_delay)
    wind = {(row.hour, row.origin): row.wind for row in story.load_weather().itertuples()}
    wanted = {key: (len(d), sum(d) / len(d), wind[key]) for key, d in delays.items() if key in wind}
    folders = [str(path) for path in (tmp_path / "nights" / "table").glob("[0-9]*")]
    found = spark.read.parquet(*folders).toArrow().to_pandas()
    assert len(found) == len(wanted) > 300
    for row in found.itertuples():
        n, delay, strongest = wanted[row.hour, row.origin]
        assert (row.n, row.wind) == (n, strongest)
        assert abs(row.delay - delay) < 1e-9
    names = [night.what for night in story.NIGHTS]
    picture = story.handover_picture.draw(tmp_path / "a.png", far, names, start=story.START)
    assert picture.read_bytes().startswith(b"\x89PNG")
