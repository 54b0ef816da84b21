"""The sink, foreachBatch and `start` through Spark Connect: the same log both ways, the same refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import spark_timely

from .connect import run_connect_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(900)]


def test_captures_through_connect_give_the_same_log(tmp_path: Path) -> None:
    found = run_connect_job("connect_capture_job.py", tmp_path)
    for through in ("sink", "foreachBatch"):
        told = [line for line in found["errors"][through].splitlines() if "spark_timely.errors." in line]
        assert "found time 3 behind the frontier [5] — hint: set lateData to 'deadLetter'" in told[-1]
    logs = [spark_timely.open_log(tmp_path / through) for through in ("sink", "foreachBatch")]
    for log in logs:
        assert log.frontier().is_empty
        assert log.messages()["_time"].to_pylist() == [1, 2, 5, 5, 9]
        assert log.dead()["word"].to_pylist() == ["w3"]
        assert log.verify().legal
    assert logs[0].messages().drop_columns("_seq") == logs[1].messages().drop_columns("_seq")
    assert found["messages"] == ["[[0, 0]]", "[[1, 1]]", "[]"]
    collection = spark_timely.open_log(tmp_path / "collection")
    assert collection.messages(columns=["word", "_diff"]).to_pylist() == [
        {"word": "x", "_diff": 1},
        {"word": "y", "_diff": -2},
    ]
    assert collection.verify().legal
    assert found["idle"][-1] == "idle: no micro-batch for 0:00:01, all rows up to 9 are complete"
    idle = spark_timely.open_log(tmp_path / "idle")
    assert idle.frontier().elements == ((10,),)
    assert idle.messages()["_time"].to_pylist() == [1, 2, 3, 5, 5, 9]
