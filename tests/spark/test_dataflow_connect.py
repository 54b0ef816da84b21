"""A dataflow through Spark Connect gives what the same program gives on a classic session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(900)]


def test_dataflow_runs_and_goes_on_through_connect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / "spark" / "connect_dataflow_job.py"), str(tmp_path)],
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
    expected: Counter[tuple[int, str]] = Counter()
    for time in [*range(12), *range(10, 22)]:
        expected[-(-time // 10) * 10, f"k{time % 2}"] += 2 * time
    assert found["frontiers"] == [[10], []]
    assert found["rows"] == sorted([time, key, n] for (time, key), n in expected.items())
