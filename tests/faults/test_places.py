"""Logs in places that cannot give a file a name only if the name is free: refused clearly, or written by promise."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_timely
from spark_timely.cli import main
from spark_timely.errors import InvalidOptionError
from spark_timely.log.store import storage as place
from tests.faults.harness import JOBS, Job
from tests.oracles.canonical_model import digest
from tests.unit.sink.driver import SinkDriver, rows

pytestmark = pytest.mark.faults

SCHEMA = pa.schema([("v", pa.int64())])


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def run(folder: Path, code: int, *calls: str) -> dict[str, Any]:
    """Run the job where these calls fail, and return what it tells."""
    log = spark_timely.create_log(folder / "old", SCHEMA, streams=2)
    log.writer(owner="o").append(pa.table({"_time": [1], "v": [1]}), advance_to=2)
    environment = {**os.environ, "PYTHONPATH": str(JOBS.parents[2])}
    command = [sys.executable, str(JOBS / "place_job.py"), str(folder), str(code), *calls]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_places_without_hard_links_need_a_promise(tmp_path: Path, code: int) -> None:
    found = run(tmp_path, code, "link")
    assert found["link"] == code, "the file system refuses links"
    for attempt in ("create", "append"):
        told = found[attempt]
        assert told["error"] == "StorageError"
        assert "found a file system without hard links" in told["text"]
        assert "singleWriter=true" in told["text"]
        assert told["determinate"] is True
    assert found["create"]["files"] == []
    assert found["append"]["unchanged"] is True
    values = [((time,), {"v": v}) for n in range(25) for time, v in ((n, n), (n + 1, -n))]
    assert found["fresh"] == {"legal": True, "hash": digest(values, [(25,)]), "messages": 50}
    old = [((1,), {"v": 1}), ((5,), {"v": 5}), ((6,), {"v": -5}), ((7,), {"v": 7}), ((8,), {"v": -7})]
    assert found["old"] == {"legal": True, "hash": digest(old, [(6,)]), "messages": 5}


def test_places_without_rename_are_refused_despite_a_promise(tmp_path: Path) -> None:
    found = run(tmp_path, errno.EPERM, "link", "rename")
    assert found["promised"]["error"] == "StorageError"
    assert not [name for name in found["promised"]["files"] if name.endswith(".json")]
    assert found["append"]["unchanged"] is True
    assert spark_timely.open_log(tmp_path / "old").verify().messages == 1


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that passes for a volume, with a log of one message in it."""
    log = spark_timely.create_log(tmp_path / "log", SCHEMA)
    log.writer(owner="o").append(pa.table({"_time": [1, 3], "v": [1, 3]}), advance_to=2)
    monkeypatch.setattr(place, "_MOUNTS", re.compile(re.escape(str(tmp_path))))
    return tmp_path


def test_log_on_a_volume_is_read_and_not_written(volume: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = volume / "log"
    before = files(volume)
    log = spark_timely.open_log(path)
    assert log.verify().messages == 2
    for attempt in (
        lambda: log.writer(owner="o"),
        lambda: log.advance("main", 3),
        lambda: log.close(),
        lambda: log.compact(),
        lambda: log.core.open_stream("other", owner="p"),
        lambda: spark_timely.create_log(volume / "other", SCHEMA),
    ):
        with pytest.raises(InvalidOptionError, match=r"found a Databricks volume.*singleWriter=true"):
            attempt()
    assert main(["frontier", str(path)]) == 0
    assert main(["advance", str(path), "3"]) == 2
    assert "--single-writer" in capsys.readouterr().err
    assert files(volume) == before


def test_sink_refuses_a_volume_before_any_task(volume: Path) -> None:
    before = files(volume)
    driver = SinkDriver(volume / "query", timeColumn="t", frontier="hold")
    with pytest.raises(InvalidOptionError, match="found a Databricks volume"):
        driver.run([rows([1, 2])])
    assert [name for name in files(volume) if not name.startswith("query/checkpoint")] == before


def test_log_on_a_volume_is_written_by_promise(volume: Path) -> None:
    path = volume / "log"
    assert main(["advance", str(path), "3", "--single-writer"]) == 0
    log = spark_timely.open_log(path, single_writer=True)
    log.writer(owner="o").append(pa.table({"_time": [4], "v": [4]}), advance_to=4)
    assert log.verify().canonical_hash == digest([((1,), {"v": 1}), ((3,), {"v": 3})], [(4,)])
    driver = SinkDriver(volume / "query", timeColumn="t", frontier="hold", singleWriter="true")
    driver.run([rows([1, 2]), rows([3])])
    assert driver.log().messages().num_rows == 3


def test_delta_rs_keeps_the_first_commit_under_the_promise(tmp_path: Path) -> None:
    """It looks before it renames: what the promise excludes is only a writer that comes between the two."""
    path = tmp_path / "log"
    spark_timely.create_log(path, SCHEMA, streams=2, single_writer=True)
    first, second = (spark_timely.open_log(path, single_writer=True) for _ in range(2))
    first.writer("a", owner="o").append(pa.table({"_time": [1], "v": [1]}))
    version = DeltaTable(str(path)).version()
    second.writer("b", owner="o").append(pa.table({"_time": [1], "v": [2]}))
    assert DeltaTable(str(path)).version() > version
    assert sorted(spark_timely.open_log(path).messages()["v"].to_pylist()) == [1, 2]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("through", ["sink", "foreachBatch"])
def test_spark_captures_without_hard_links_by_promise(tmp_path: Path, through: str) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    for n in range(3):
        table = pa.table({"t": [n, n + 1], "id": [2 * n, 2 * n + 1]})
        pq.write_table(table, tmp_path / "in" / f"part-{n}.parquet")
    spec: dict[str, object] = {
        "source": {"files": str(tmp_path / "in")},
        "through": through,
        "log": str(tmp_path / "log"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {"timeColumn": "t", "frontier": "hold", "singleWriter": "true"},
        "refuse": {"calls": ["link"], "code": errno.EOPNOTSUPP},
    }
    Job("capture_job.py", spec, tmp_path / "runs").finish()
    log = spark_timely.open_log(tmp_path / "log")
    assert sorted(log.messages()["id"].to_pylist()) == list(range(6))
    assert log.verify().legal
