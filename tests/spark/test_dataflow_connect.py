"""A dataflow through Spark Connect gives what the same program gives on a classic session."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.spark.connect import run_connect_job

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(900)]


def test_dataflow_runs_and_goes_on_through_connect(tmp_path: Path) -> None:
    found = run_connect_job("connect_dataflow_job.py", tmp_path)
    expected: Counter[tuple[int, str]] = Counter()
    for time in [*range(12), *range(10, 22)]:
        expected[-(-time // 10) * 10, f"k{time % 2}"] += 2 * time
    assert found["frontiers"] == [[10], []]
    doubled = [2 * time for time in [*range(12), *range(10, 22)]]
    assert found["large"] == sorted(n for n in doubled if n > 20)
    sums: Counter[tuple[int, str]] = Counter()
    for time in [*range(12), *range(10, 22)]:
        if time > 5:
            sums[time // 5 * 5 + 5, f"k{time % 2}"] += time
    assert found["sql"] == sorted([time, key, n] for (time, key), n in sums.items())
    assert found["captured"] == {
        "capture_5": len(expected),
        "capture_8": len(found["large"]),
    }
    assert found["rows"] == sorted([time, key, n] for (time, key), n in expected.items())
