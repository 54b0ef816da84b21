"""Jobs of the tests through Spark Connect: each in a process of its own, whose only session is a remote one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import spark_timely

ROOT = Path(__file__).resolve().parents[2]


def run_connect_job(name: str, folder: Path) -> dict[str, Any]:
    """Run a job that lies beside this file, with a folder of its own; return what its last line says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / "spark" / name), str(folder)],
        cwd=ROOT,
        # SPARK_TESTING: a free port for the server, so that several runs do not meet on one.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("at ")]
    assert done.returncode == 0, "\n".join(told[-40:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def connect_session() -> SparkSession:
    """Return the job's session, with a server of its own and the source registered."""
    builder = SparkSession.builder.remote("local[2]")
    for name, value in spark_timely.session_settings().items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark_timely.register(spark)
    return spark
