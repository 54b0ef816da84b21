"""Spark's jobs with logs and checkpoints in an object store: they say what the same jobs say on a disk.

Through Hadoop's S3A, which Spark downloads. Drivers and the store are killed; the answer stays the same.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import spark_timely
from tests.faults.harness import Job, seed_of_run, tell
from tests.faults.test_kill import make_files
from tests.stores.conftest import Place
from tests.stores.hadoop import environment, jars, s3a_settings
from tests.stores.servers import MissingError, Server

LOGS = ("raw", "clean", "merged", "sums")
COPIES = ("batch", "copy", "driver", "frames")
FILES = 8

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.faults,
    pytest.mark.timeout(3600),
    pytest.mark.parametrize("server", ["minio"], indirect=True),
]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with input files, and with the logs that undisturbed jobs have made of them on a disk."""
    folder = tmp_path_factory.mktemp("local")
    make_files(folder / "in", FILES, random.Random(18))
    spec = {"root": str(folder / "root"), "input": str(folder / "in"), "disk": str(folder / "disk"), "settings": {}}
    (folder / "said").write_text(Job("store_job.py", dict(spec), folder / "runs").finish())
    return folder


@pytest.fixture
def in_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs find the store, through the proxy, in their environment."""
    for name, value in environment(place.options).items():  # a few
        monkeypatch.setenv(name, value)


@pytest.fixture
def spec(place: Place, local: Path, tmp_path: Path, in_environment: None) -> dict[str, object]:
    """Return what a job is to do in the store."""
    del in_environment
    try:
        settings = {"spark.jars": jars(), **s3a_settings(place.proxy.address)}
    except MissingError as error:  # Spark's own JARs for S3, which are downloaded: without a network there are none
        pytest.skip(str(error))
    root = place.url.replace("s3://", "s3a://").replace(" ", "-")
    return {"root": root, "input": str(local / "in"), "disk": str(tmp_path / "disk"), "settings": settings}


def rows_of(said: str) -> dict[str, list[list[int]]]:
    return json.loads(re.findall(r"^ROWS (.*)$", said, re.MULTILINE)[-1])  # type: ignore[no-any-return]


def hashes(root: str, options: dict[str, str] | None = None) -> dict[str, tuple[str, object]]:
    """Return each log's hash and frontier; fail where a log breaks a rule."""
    found: dict[str, tuple[str, object]] = {}
    for name in LOGS:  # four
        log = spark_timely.open_log(f"{root}/{name}", storage_options=options)
        report = log.verify()
        assert report.legal, (name, report.problems)
        found[name] = report.canonical_hash, log.frontier().to_json()
    return found


def assert_same(said: str, spec: dict[str, object], place: Place, local: Path) -> None:
    assert hashes(str(spec["root"]), place.server.options()) == hashes(str(local / "root"))
    wanted = rows_of((local / "said").read_text())
    assert wanted["batch"]
    assert sorted(wanted) == list(COPIES)
    assert all(rows == wanted["batch"] for rows in wanted.values())
    assert rows_of(said) == wanted


def test_jobs_say_on_a_store_what_they_say_on_a_disk(
    place: Place, local: Path, spec: dict[str, object], tmp_path: Path
) -> None:
    said = Job("store_job.py", spec, tmp_path / "runs").finish()
    tell(f"{place.proxy.total} requests")
    assert_same(said, spec, place, local)


def until_done(
    spec: dict[str, object], folder: Path, strike: Callable[[Job, int], None], n_strikes: int, place: Place
) -> str:
    """Run the job again and again, struck after a number of requests that is drawn, and once more undisturbed."""
    seed = seed_of_run()
    tell(f"SPARK_TIMELY_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(n_strikes):
        before = place.proxy.total
        due = before + round(10 ** rng.uniform(1.5, 3.2))
        job = Job("store_job.py", spec, folder)
        try:
            while place.proxy.total < due and not job.ended():
                time.sleep(0.01)
            tell(
                f"struck after {place.proxy.total - before} requests, last did {re.findall('DID .*', job.text())[-1:]}"
            )
            strike(job, rng.randrange(3))
        finally:
            job.kill()
    return Job("store_job.py", spec, folder).finish()


def test_killed_drivers_lose_nothing(place: Place, local: Path, spec: dict[str, object], tmp_path: Path) -> None:
    def strike(job: Job, draw: int) -> None:
        job.kill(with_workers=draw > 0)

    n = int(os.environ.get("SPARK_TIMELY_KILLS", "4"))
    said = until_done(spec, tmp_path / "runs", strike, n, place)
    assert_same(said, spec, place, local)


def test_killed_store_loses_nothing(
    server: Server, place: Place, local: Path, spec: dict[str, object], tmp_path: Path
) -> None:
    def strike(job: Job, draw: int) -> None:
        server.kill()
        time.sleep(draw)  # shorter, and longer, than clients try again
        server.start()
        job.end_within(20 + 20 * draw)

    n = int(os.environ.get("SPARK_TIMELY_KILLS", "3"))
    said = until_done(spec, tmp_path / "runs", strike, n, place)
    assert_same(said, spec, place, local)
