"""Completeness from job to job through Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import spark_timely

from .connect import run_connect_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(900)]


def test_hand_over_through_connect(tmp_path: Path) -> None:
    found = run_connect_job("connect_handover_job.py", tmp_path)
    # In run 1 nothing was heard of c; in run 2 nothing of a, which is known to be at 10.
    assert (found["run 0"], found["run 1"]) == ([-(2**63)], [9])
    assert found["told"] == [0, [9]]
    for name, times in (("first", [4, 8, 8, 12]), ("second", [4, 8, 8])):
        log = spark_timely.open_log(tmp_path / name)
        assert sorted(log.messages()["t"].to_pylist()) == times
        assert log.frontier().to_json() == [9]
        assert log.verify().legal
