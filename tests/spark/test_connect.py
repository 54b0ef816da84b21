"""The source and the sink through Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import spark_timely

from .connect import run_connect_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(900)]


def test_capture_and_replay_through_connect(tmp_path: Path) -> None:
    found = run_connect_job("connect_job.py", tmp_path)
    times = [sorted(row["_time"] for row in batch) for batch in found["batches"]]
    assert times == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10]]
    assert found["end"]["frontier"] == [11]
    assert found["read"] == 11
    assert found["cut"] == 7
    assert found["counts"] == [["w0", 4], ["w1", 4], ["w2", 3]]
    log = spark_timely.open_log(tmp_path / "log")
    assert log.frontier().to_json() == [11]
    assert log.messages().num_rows == 12
    assert log.verify().legal
