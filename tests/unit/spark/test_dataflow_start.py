"""What the start of a dataflow refuses before it touches Spark or a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_timely as st
from spark_timely.errors import InvalidUsageError

NO_SPARK: Any = None


def flow(tmp_path: Path, name: str = "flow", **settings: Any) -> st.Dataflow:
    made = st.Dataflow(name, checkpoint=str(tmp_path / "checkpoint"), **settings)
    made.replay(str(tmp_path / "in")).capture(str(tmp_path / f"{name} out"))
    return made


@pytest.fixture(autouse=True)
def log(tmp_path: Path) -> None:
    st.create_log(str(tmp_path / "in"), pa.schema([("n", pa.int64())]), minimum=(0,))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no workers": ({"workers": 0}, "workers=0"),
    "a limit that is no number": ({"max_times_per_step": "7"}, "max_times_per_step='7'"),
    "room below nothing": ({"max_bytes_in_driver": -1}, "max_bytes_in_driver=-1 — hint: give whole numbers from 0 on"),
    "true for a number": ({"max_bytes_per_task": True}, "max_bytes_per_task=True"),
    "something else beside it": ({"beside": ["other"]}, "found 'other' beside it"),
    "a trigger that is none": (
        {"trigger": "sometimes"},
        "start dataflow 'flow': found trigger='sometimes' — hint: give",
    ),
    "a number for a trigger": ({"trigger": 5}, "start dataflow 'flow': found trigger=5 — hint: give"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_start_refuses_settings_that_make_no_sense(tmp_path: Path, what: str) -> None:
    settings, text = REFUSED[what]
    with pytest.raises(InvalidUsageError, match=text):
        flow(tmp_path).start(NO_SPARK, **settings)
    assert not (tmp_path / "flow out").exists()


def test_start_refuses_a_double_name_and_unfit_settings(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="found names \\['flow', 'flow'\\]"):
        flow(tmp_path).start(NO_SPARK, beside=[flow(tmp_path)])
    with pytest.raises(InvalidUsageError, match="nothing that is captured"):
        st.Dataflow("empty", checkpoint="somewhere").start(NO_SPARK)
    with pytest.raises(InvalidUsageError, match="found checkpoint=' '"):
        st.Dataflow("other", checkpoint=" ")


def test_plan_progress_and_numbers_are_there_before_the_start(tmp_path: Path) -> None:
    st.open_log(str(tmp_path / "in")).writer(owner="test").append(
        pa.table({"_time": [1, 4], "n": [1, 2]}), advance_to=3
    )
    made = flow(tmp_path)
    plan = made.explain().splitlines()
    assert "waits [0] to [3]" in plan[-2]
    assert plan[-1] == "    reads replay_1 [0] to [3]"
    assert [(each.done, each.total) for each in made.progress()] == [(0, 1)]
    assert {(each.operator, each.rows, each.lag) for each in made.metrics()} == {
        ("replay_1", 0, 3),
        ("capture_2", 0, 3),
    }
