"""The source and the sink through Spark Connect."""

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


def test_capture_and_replay_through_connect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / "spark" / "connect_job.py"), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("at ")]
    assert done.returncode == 0, "\n".join(told[-40:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
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
