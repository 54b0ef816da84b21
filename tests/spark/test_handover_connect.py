"""Completeness from job to job through Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spark_timely

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(900)]


def test_hand_over_through_connect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / "spark" / "connect_handover_job.py"), str(tmp_path)],
        cwd=ROOT,
        # SPARK_TESTING: a free port for the server, so that several runs do not meet on one.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    # In run 1 nothing was heard of c; in run 2 nothing of a, which is known to be at 10.
    assert (found["run 0"], found["run 1"]) == ([-(2**63)], [9])
    assert found["told"] == [0, [9]]
    for name, times in (("first", [4, 8, 8, 12]), ("second", [4, 8, 8])):
        log = spark_timely.open_log(tmp_path / name)
        assert sorted(log.messages()["t"].to_pylist()) == times
        assert log.frontier().to_json() == [9]
        assert log.verify().legal
