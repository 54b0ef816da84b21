"""Deleting replaced files may end between any two, next to writers: nothing that is part of the log is missing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.vacuum import EVENTS
from tests.conformance.logs import VALUES, stored
from tests.faults.harness import JOBS, long_lane

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

N_VALUES = 45


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a log in which many files were replaced."""
    log = create_log(tmp_path / "made", VALUES, minimum=(0,), merge_every=5)
    writer = log.writer(owner="me")
    for value in range(N_VALUES):
        writer.append(pa.table({"_time": [value], "v": [value]}), advance_to=value + 1)
    assert len(stored(log) - live(log)) > 80
    return tmp_path / "made"


def live(log: Log) -> set[str]:
    return {path for event in EVENTS for path in log.core.store.live.index(event).paths.tolist()}


def run(path: Path, way: str, number: int) -> int:
    environment = {**os.environ, "PYTHONPATH": str(JOBS.parents[2])}
    command = [sys.executable, str(JOBS / "vacuum_job.py"), str(path), way, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def check(path: Path) -> Log:
    """Every file of the log is there, and says what it said; return the log."""
    log = open_log(path)
    assert live(log) <= stored(log)
    assert log.verify().legal
    assert sorted(log.messages()["v"].to_pylist()) == list(range(log.frontier().elements[0][0]))
    return log


@pytest.mark.parametrize("way", ["demand", "upkeep"])
def test_vacuum_may_be_killed_between_any_two_files(path: Path, tmp_path: Path, way: str) -> None:
    replaced = len(stored(open_log(path)) - live(open_log(path)))
    for number in range(1, replaced, 1 if long_lane() else replaced // 4):
        copy = tmp_path / f"{way} {number}"
        shutil.copytree(path, copy)
        assert run(copy, way, number) == -signal.SIGKILL
        log = check(copy)
        # What the kill left is deleted the next time.
        assert len(stored(log) - live(log)) >= replaced - number + 1
        assert run(copy, way, 0) == 0
        log = check(copy)
        assert log.frontier().elements[0][0] == (N_VALUES if way == "demand" else 100)
        left = stored(log) - live(log)
        assert not left & set(stored(open_log(path)))
        assert not left or way == "upkeep"
        shutil.rmtree(copy)


def test_vacuum_next_to_writers_takes_nothing_of_theirs(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=3)
    n_commits, running = 300 if long_lane() else 60, threading.Event()
    running.set()

    def write(stream: str) -> None:
        writer = open_log(log.path, merge_every=3).writer(stream, owner=stream)
        for value in range(n_commits):
            writer.append(pa.table({"_time": [value], "v": [value]}), advance_to=value + 1)

    def delete() -> int:
        deleted, mine = 0, open_log(log.path)
        while running.is_set():
            deleted += mine.vacuum(older_than="0s").files
        return deleted

    with ThreadPoolExecutor(5) as pool:
        vacuums = [pool.submit(delete) for _ in range(2)]
        try:
            for writer in [pool.submit(write, name) for name in ("a", "b", "c")]:
                writer.result()
        finally:
            running.clear()
        assert sum(one.result() for one in vacuums) > n_commits
    found = open_log(log.path)
    assert live(found) <= stored(found)
    assert found.verify().legal
    assert sorted(found.messages()["v"].to_pylist()) == sorted(list(range(n_commits)) * 3)
