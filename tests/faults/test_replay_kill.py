"""A replay in the driver that is killed between the written offsets and the end of a micro-batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import spark_timely
from tests.faults.harness import Job
from tests.faults.jobs import replay_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_killed_micro_batch_comes_again_the_same(spark: SparkSession, tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("key", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="o")
    writer.append(pa.table({"_time": [0, 1, 2, 3, 4], "key": [10, 11, 12, 13, 14]}), advance_to=5)
    out = tmp_path / "out.jsonl"
    spec = {"log": log.path, "out": str(out), "checkpoint": str(tmp_path / "checkpoint")}
    job = Job("replay_job.py", {**spec, "die": 1}, tmp_path / "runs")
    assert job.end_within(240), job.text()
    # What comes after the kill is in no micro-batch that was planned before it.
    writer.append(pa.table({"_time": [5, 6], "key": [15, 16]}), advance_to=7)
    replay_job.run(spark, spec)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [number for number, _ in found] == [0, 1, 1, 2, 3]
    assert found[1] == found[2]
    assert sum((rows for _, rows in found[2:]), found[0][1]) == [[key] for key in range(10, 17)]
