"""Workers whose Python lacks the library: shipped in one of three ways it works, else one line says how to ship it.

All on ``local-cluster``: its executors start a Python whose environment has all packages but this one. The driver has
its own environment behind the same path.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import tarfile
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely as st
from tests.faults.harness import STARTED, Job
from tests.faults.jobs import shipping_job

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(3600)]

ROOT = Path(st.__file__).parents[1]
N_TIMES = 4
DEADLINE_S = 1500.0  # seven ways, and what fails is tried six times
KEYS = "abcd"


def environment(folder: Path, *, library: bool) -> Path:
    """Make an environment of links to the packages of this one, with the library's files or without any."""
    base = Path(sys.base_prefix) / "bin" / "python3"
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if entry.suffix != ".pth" and "spark_timely" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    if library:
        with zipfile.ZipFile(zipped(folder.parent)) as files:
            files.extractall(packages)
    return folder


def zipped(folder: Path) -> Path:
    """Write the library as a file for ``--py-files``."""
    file = folder / "library.zip"
    parts = {
        "spark_timely": "spark_timely",
        **{name: f"spark_timely/{name}" for name in ("datasource", "sink", "conf")},
    }
    with zipfile.ZipFile(file, "w") as found:
        for part, name in parts.items():
            for module in (ROOT / part).rglob("*.py"):
                found.write(module, f"{name}/{module.relative_to(ROOT / part)}")
        found.write(ROOT / "pyspark_timely.py", "pyspark_timely.py")
    return file


def two_faced(folder: Path, lacking: Path) -> Path:
    """Return a Python that on executors is another one than on the driver, as the same path is on other machines."""
    file = folder / "python"
    # Set by Spark's workers for the executors that they start.
    file.write_text(
        f'#!/bin/sh\n[ -n "$SPARK_EXECUTOR_DIRS" ] && exec "{lacking / "bin" / "python3"}" "$@"\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    file.chmod(0o755)
    return file


def write_inputs(folder: Path) -> None:
    """Write files for the captures, and logs for all else."""
    (folder / "in").mkdir(parents=True)
    pq.write_table(pa.table({"t": list(range(20)), "n": list(range(20))}), folder / "in" / "a.parquet")
    columns = pa.schema([("k", pa.string()), ("n", pa.int64())])
    inserts = st.create_log(folder / "inserts", columns, minimum=(0,)).writer(owner="test")
    reference = st.create_log(folder / "reference", columns, minimum=(0,), kind="collection").writer(owner="test")
    for time in range(N_TIMES):
        rows = {"_time": [time] * len(KEYS), "k": list(KEYS), "n": [time + n for n in range(len(KEYS))]}
        inserts.append(pa.table(rows), advance_to=time + 1)
        row = {"_time": [time], "_diff": [1], "k": [KEYS[time]], "n": [time + 1]}
        reference.append(pa.table(row), advance_to=time + 1)


def wanted() -> dict[str, Counter[Any]]:
    """Return what each way must give, counted by hand."""
    captured: Counter[Any] = Counter((t, t) for t in range(20))
    rows: Counter[Any] = Counter((t, k, t + n) for t in range(N_TIMES) for n, k in enumerate(KEYS))
    joined: Counter[Any] = Counter(
        (t, k, (t + n) * (n + 1)) for t in range(N_TIMES) for n, k in enumerate(KEYS) if n <= t
    )
    return {
        "sink": captured, "capture": captured, "source": rows, "replay": rows, "dataflow": rows,
        "task": joined, "function": joined,
    }  # fmt: skip


def found(folder: Path, way: str) -> Counter[Any]:
    """Return what a way gave."""
    if way in ("source", "replay"):
        parts = [pq.read_table(part).to_pylist() for part in (folder / way).glob("*.parquet")]
        return Counter((row["_time"], row["k"], row["n"]) for part in parts for row in part)
    rows = st.open_log(folder / way).messages().to_pylist()
    if way in ("sink", "capture"):
        return Counter((row["t"], row["n"]) for row in rows)
    return Counter((row["_time"], row["k"], row["n"]) for row in rows)


def run(folder: Path, environment_of_driver: Mapping[str, str] = MappingProxyType({}), **spec: Any) -> dict[str, str]:
    """Run the application; return what it tells of each way."""
    write_inputs(folder / "data")
    python = two_faced(folder, environment(folder / "lacking", library=False))
    answer = folder / "answer.json"
    conf = {"spark.executorEnv.PYTHONPATH": "", **spec.pop("conf", {})}
    given = {"folder": str(folder / "data"), "connect": False, "artifacts": [], "answer": str(answer), **spec}
    variables = {**STARTED, "PYSPARK_PYTHON": str(python), "PYTHONPATH": "", **environment_of_driver}
    job = Job("shipping_job.py", {**given, "conf": conf}, folder / "runs", variables)
    try:
        job.finish(DEADLINE_S)
    finally:
        job.kill()
    told: dict[str, str] = json.loads(answer.read_text())
    return told


def check(folder: Path, told: dict[str, str]) -> None:
    assert told == dict.fromkeys(shipping_job.WAYS, "done")
    for way, rows in wanted().items():
        assert found(folder / "data", way) == rows, way


def test_files_of_python_reach_workers(tmp_path: Path) -> None:
    told = run(tmp_path, conf={"spark.submit.pyFiles": str(zipped(tmp_path))})
    check(tmp_path, told)


@pytest.mark.parametrize(
    "connect", [pytest.param(True, marks=pytest.mark.connect, id="connect"), pytest.param(False, id="classic")]
)
def test_artifacts_reach_workers(tmp_path: Path, connect: bool) -> None:
    told = run(tmp_path, connect=connect, artifacts=[str(zipped(tmp_path))])
    check(tmp_path, told)


def test_packed_environment_runs_tasks(tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(environment(tmp_path / "whole", library=True), ".")
    told = run(
        tmp_path,
        {"PYSPARK_PYTHON": "./environment/bin/python3"},
        conf={"spark.archives": f"{packed}#environment"},
    )
    check(tmp_path, told)


def test_workers_without_the_library_name_the_cure(tmp_path: Path) -> None:
    told = run(tmp_path)
    # A capture in foreachBatch needs no Python of workers: Spark's own writer writes there.
    assert told.pop("capture") == "done"
    assert found(tmp_path / "data", "capture") == wanted()["capture"]
    assert set(told) == {*shipping_job.WAYS} - {"capture"}
    for way, line in told.items():
        said = re.search(r"\[TIMELY_INVALID_USAGE\] could not run a task .*", line)
        assert said, (way, line)
        assert "found no spark_timely — hint: install spark-timely" in said[0], (way, line)
        assert "--py-files" in said[0], (way, line)
        assert str(tmp_path / "lacking") in said[0], (way, line)
