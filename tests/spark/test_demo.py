"""The demo, on seven days of June: its answers are those of pandas, and it notices if they are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

import spark_timely

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOUR = pd.Timedelta(hours=1)


@pytest.fixture(scope="module")
def data(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("flights_data")


@pytest.fixture(scope="module")
def story(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("flights")


@pytest.fixture(scope="module")
def flights(data: ModuleType) -> pd.DataFrame:
    loaded: pd.DataFrame = data.load_flights()
    return loaded


def test_arrivals_of_the_year_are_what_the_header_says(data: ModuleType, flights: pd.DataFrame) -> None:
    assert len(flights) == 336_776
    assert int(flights.cancelled.sum()) == 8_255
    assert flights.known_at.is_monotonic_increasing
    assert (flights.known_at > flights.hour).all()
    assert (flights.known_at[flights.cancelled] - flights.hour[flights.cancelled] == HOUR).all()
    hours = data.behind(flights)
    assert hours.max() == 19
    assert int((hours > 12).sum()) == 2


def test_hours_are_utc_of_new_york_clocks_in_winter_and_summer(flights: pd.DataFrame) -> None:
    # Flights leave from 5 in the morning; nearly none between 1 and 4, on either side of the change of clocks.
    for month, utc_offset in ((1, 5), (7, 4)):
        hours = flights.hour[flights.hour.dt.month == month].dt.hour
        local = (hours - utc_offset) % 24
        assert ((local >= 1) & (local < 4)).mean() < 0.005
        assert (local == 6).mean() > 0.04


def test_demo_agrees_with_pandas_and_draws_its_picture(
    spark: SparkSession, story: ModuleType, flights: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, report = story.Plan.week(), story.Report()
    folder = tmp_path / "a demo"
    demo = story.Demo(spark, folder)
    story.tell(demo, plan, flights, report)

    out = capsys.readouterr().out
    assert report.failed == [], out
    assert "✗" not in out
    assert "✓ one hash" in out
    assert "✓ another job replays" in out
    assert "aggregate_2 of replay_1: by origin: flights=count()" in out
    assert "100%" in out
    assert (folder / "flights.png").read_bytes().startswith(b"\x89PNG")

    # Again without the demo's own oracle: what the log holds, against the package's table.
    start, end = (pd.Timestamp(moment, tz="UTC") for moment in (plan.start, plan.runs[-1].until))
    stretch = flights[(flights.known_at >= start) & (flights.known_at < end)]
    log = spark_timely.open_log(demo.log)
    messages, dead = log.messages().to_pandas(), log.dead().to_pandas()
    assert len(messages) + len(dead) == len(stretch)
    keys = ["hour", "known_at", "origin", "carrier", "flight"]
    held = pd.concat([messages[keys], dead[keys]]).astype({"hour": stretch.hour.dtype, "known_at": stretch.hour.dtype})
    found, wanted = (part.sort_values(keys).reset_index(drop=True) for part in (held, stretch[keys]))
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)
    assert dead[["carrier", "flight"]].to_numpy().tolist() == [["MQ", 3694]]
    assert log.verify().legal
    assert log.frontier().is_empty


def test_demo_fails_where_an_answer_differs(story: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    report = story.Report()
    report.check("right", 1, 1)
    report.check("wrong", 1, 2)
    assert report.failed == ["wrong"]
    assert "found 1, expected 2" in capsys.readouterr().out


def test_demo_removes_nothing_but_its_own_files(story: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert story.empty_folder(folder) == folder
    (folder / "old").touch()
    story.empty_folder(folder)
    assert not (folder / "old").exists()
    (tmp_path / "precious").touch()
    with pytest.raises(SystemExit, match="--out"):
        story.empty_folder(tmp_path)
    assert (tmp_path / "precious").exists()


def test_inbox_never_writes_over_a_file(data: ModuleType, flights: pd.DataFrame, tmp_path: Path) -> None:
    inbox = data.Inbox(tmp_path / "inbox")
    rng = np.random.default_rng(0)
    assert inbox.deliver(flights[:500], every="3h", name="a", rng=rng) == len(os.listdir(inbox.path))
    with pytest.raises(FileExistsError):
        inbox.deliver(flights[:500], every="3h", name="a", rng=rng)
