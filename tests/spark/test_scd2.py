"""The example of versions: made in one go and live they are equal, late reports included."""

from __future__ import annotations

import datetime as dt
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
    return example("scd2")


def test_versions_are_those_of_pandas_in_one_go_and_live(
    spark: SparkSession, story: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Five weeks of the year, of which one has the last reports of an airport alone.
    everything = story.reports()
    found = everything[everything["_time"] <= dt.date(2013, 2, 3)].reset_index(drop=True)
    assert story.late(found) > 1000
    report = story.Report()
    made = story.tell(spark, tmp_path, found, report)
    story.show(tmp_path / "aircraft-all", found, report)
    out = capsys.readouterr().out
    assert report.failed == [], out
    assert out.count("✓") == 5
    # Without the example's own oracle: no version of an aircraft overlaps the next, and every landing begins one.
    following = made["begins"].shift(-1).where(made["tailnum"] == made["tailnum"].shift(-1))
    assert (made["ends"].isna() <= following.isna()).all()
    assert (made["ends"][following.notna()] <= following[following.notna()]).all()
    landed = found[~found["cancelled"]].drop_duplicates(["tailnum", "landed"])
    assert len(landed) - 50 < len(made) <= len(landed)
    assert "MCO   05 Jan 20:40   08 Jan 16:12         LGA" in out
    assert "MCO   05 Jan 20:40   06 Jan 23:49         LGA" in out
