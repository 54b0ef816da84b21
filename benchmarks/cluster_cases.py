"""A continual task on two executors, which are processes of their own, beside two threads of the driver.

A process has one context of Spark's: each side is run by one of its own, several times. What is counted is from the
start of the query until it has ended, once the side has done the same before: executors have their classes loaded then.

Run as ``python -m benchmarks.cluster_cases MASTER FOLDER OUT`` this is one side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import spark_timely as st

from .report import Case, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("task_local_cluster_vs_local",)
CLUSTER, LOCAL = "local-cluster[2,1,1024]", "local[2]"
TIMES, ROWS, KEYS = 10, 1000, 100
WARM, COUNTED, REPEATS = 3, 4, 3
DEADLINE_S = 600
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
BODY = "SELECT i.k, i.n * r.n AS n FROM i JOIN r USING (k)"


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure both sides in turn, and compare what they wrote with what numpy gives."""
    if not wanted(NAMES[0]):
        return []
    case = Case(
        NAMES[0],
        f"a task that joins {TIMES} times of {ROWS} rows to {KEYS}, start and end of its query included, on"
        f" {CLUSTER}; peer: on {LOCAL}; each in a process of its own, after {WARM} runs that are not counted",
        3.0,
        higher_is_better=False,
    )
    for number in range(REPEATS):
        folder = scratch / f"cluster-{number}"
        _write(folder)
        order = [CLUSTER, LOCAL] if number % 2 else [LOCAL, CLUSTER]
        took = {master: _side(master, folder / f"side-{master[:7]}", folder) for master in order}
        case.ours += took[CLUSTER]
        case.peer += took[LOCAL]
    return [case]


def _rows(time: int) -> dict[str, np.ndarray]:
    n = np.arange(ROWS, dtype=np.int64)
    return {"k": n % (2 * KEYS), "n": n + time}


def _write(folder: Path) -> None:
    """Write an input of several times, and a reference that half of its keys have."""
    inserts = st.create_log(str(folder / "inserts"), COLUMNS, minimum=(0,)).writer(owner="bench")
    reference = st.create_log(str(folder / "reference"), COLUMNS, minimum=(0,), kind="collection")
    keys = np.arange(KEYS, dtype=np.int64)
    reference.writer(owner="bench").append(
        pa.table({"_time": np.zeros(KEYS, np.int64), "k": keys, "n": keys + 1}), advance_to=1
    )
    reference.close("main")
    for time in range(TIMES):
        inserts.append(pa.table({"_time": np.full(ROWS, time), **_rows(time)}), advance_to=time + 1)


def _check(folder: Path) -> None:
    """Fail unless each output is what numpy gives."""
    wanted = []
    for time in range(TIMES):
        k, n = _rows(time).values()
        kept = k < KEYS
        wanted += list(zip([time] * int(kept.sum()), k[kept].tolist(), (n * (k + 1))[kept].tolist(), strict=True))
    for path in sorted(folder.glob("out-*")):
        table = st.open_log(str(path)).messages().select(["_time", "k", "n"])
        found = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        if sorted(found) != sorted(wanted):
            msg = f"{path} has other rows than numpy gives"
            raise RuntimeError(msg)


def _side(master: str, out: Path, folder: Path) -> list[float]:
    """Run one side in a process; return the seconds of the runs that count."""
    command = [sys.executable, "-m", "benchmarks.cluster_cases", master, str(folder), str(out)]
    here = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S, env=here).stdout
    _check(out)
    took: list[float] = json.loads(said.splitlines()[-1])
    return took


def main(master: str, folder: Path, out: Path) -> None:
    """Be one side: run the task again and again, each time into another log."""
    spark = st.session(
        "bench",
        master=master,
        **{"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"},
    )
    spark.sparkContext.setLogLevel("ERROR")

    def once(number: int) -> None:
        inputs, references = {"i": folder / "inserts"}, {"r": folder / "reference"}
        output = out / f"out-{number}"
        task = st.ContinualTask(f"t{number}", inputs=inputs, references=references, body=BODY, output=output)
        task.start(spark, trigger="availableNow").await_termination()

    took = [seconds(lambda number=number: once(number)) for number in range(WARM + COUNTED)]  # type: ignore[misc]
    spark.stop()
    sys.stdout.write(json.dumps(took[WARM:]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
