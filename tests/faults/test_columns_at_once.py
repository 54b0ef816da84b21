"""Eight processes append to one log while some of them add columns: nobody stops, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.log.log import create_log, open_log
from tests.faults.harness import JOBS, wait_until

pytestmark = pytest.mark.faults

TURNS = 24
# The same column three times, once with another type, and a second one; four know of none.
COLUMNS = [["note", "int64"], ["note", "int64"], ["note", "string"], ["more", "float64"], [], [], [], []]


def test_processes_that_add_columns_at_once_all_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    create_log(path, pa.schema([("v", pa.int64())]), minimum=(0,), streams=len(COLUMNS))
    names = [f"s{number}" for number in range(len(COLUMNS))]
    processes = [
        subprocess.Popen(
            [sys.executable, str(JOBS / "columns_job.py"), str(path), name, str(TURNS), *column],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, column in zip(names, COLUMNS, strict=True)
    ]
    try:
        wait_until(
            lambda: all(Path(f"{path}.{name}").exists() for name in names),
            deadline_s=120,
            what="the opening of eight streams",
            report=lambda: str([name for name in names if not Path(f"{path}.{name}").exists()]),
        )
        Path(f"{path}.go").touch()
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    # Whoever was second with the other type was refused that, and went on without.
    told = [output for output in outputs if "could not add column" in output]
    assert told
    assert all("'string'" in output and "'int64'" in output for output in told), told
    log = open_log(path)
    assert sorted(log.schema.names) == ["more", "note", "v"]
    refused = {names[place] for place, output in enumerate(outputs) if "could not add column" in output}
    filled = {name: set() if name in refused else set(column[:1]) for name, column in zip(names, COLUMNS, strict=True)}
    for name in names:
        rows = log.messages(stream=name, columns=["v", "note", "more"])
        assert rows["v"].to_pylist() == list(range(TURNS))
        for column in ("note", "more"):
            has = column in filled[name]
            found = [None if value is None else float(value) for value in rows[column].to_pylist()]
            assert found == [float(i) if has and i >= TURNS // 2 else None for i in range(TURNS)]
    assert log.frontier().elements == ((TURNS,),)
    report = log.verify()
    assert report.legal, report.problems
    live = set(log.core.files().paths.tolist()) | set(log.core.progress_files().paths.tolist())
    assert len(live) < 8 * (TURNS + 1) * 2  # files were merged meanwhile, under both schemas
