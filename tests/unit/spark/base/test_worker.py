"""What a planner process of Spark loads: each query starts one, and a sink several."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_timely.spark.base.worker import settle_planner

# Which process this is, is told by how it was started: by the module's own name, or by Spark's daemon with the name.
PROBE = """
import sys, types
spec, argument = sys.argv[1], sys.argv[2]
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name=spec)
sys.argv = ["started", argument]
from spark_timely.spark.base.worker import settle_planner
settle_planner()
import numpy as np, pyarrow as pa
numbers = pa.array(np.arange(3)).to_numpy().tolist() + pa.array([4]).to_pylist()
assert numbers == [0, 1, 2, 4], numbers
print("pandas" in sys.modules)
import pandas as pd
assert pa.table({"a": [1]}).to_pandas()["a"].tolist() == [1]
settle_planner()
print(pd.Series([1, 2]).sum(), len(sys.meta_path))
"""


def probe(spec: str, argument: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, spec, argument], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("spec", "argument"),
    [
        ("pyspark.sql.streaming.python_streaming_source_runner", ""),
        ("pyspark.daemon", "pyspark.sql.worker.write_into_data_source"),
        ("pyspark.daemon", "pyspark.sql.worker.python_streaming_sink_runner"),
    ],
)
def test_planner_goes_without_pandas_until_somebody_asks_for_it(spec: str, argument: str) -> None:
    loaded, total, finders = probe(spec, argument)
    assert (loaded, total) == ("False", "3")
    # Nothing of ours stays among the finders of modules.
    assert finders == probe("user", "")[2]


@pytest.mark.parametrize(("spec", "argument"), [("pyspark.daemon", "pyspark.worker"), ("user_job", "")])
def test_processes_with_code_of_users_keep_pandas(spec: str, argument: str) -> None:
    # pyarrow loads it by itself there, as it would without us.
    assert probe(spec, argument)[0] == "True"


def test_this_process_is_no_planner() -> None:
    before = list(sys.meta_path)
    settle_planner()
    assert sys.meta_path == before
