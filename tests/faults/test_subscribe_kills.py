"""A consumer that stores rows and position together is killed at any moment, and resumes by its name: each row is there
once, while others append to the log, merge it, and let it forget whatever nobody retains."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.answers.subscribe import subscribe
from spark_timely.errors import SinceViolationError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.time.antichain import Antichain
from tests.faults.harness import JOBS, long_lane, seed_of_run, tell, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

N_BEFORE, UP_TO = 5, 400 if long_lane() else 60
VALUES = pa.schema([("v", pa.int64())])


def run(path: str, store: Path, number: int) -> int:
    environment = {**os.environ, "PYTHONPATH": str(JOBS.parents[2])}
    command = [sys.executable, str(JOBS / "subscribe_job.py"), path, str(store), str(UP_TO), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def append(log: Log, time: int, kind: str) -> None:
    columns = {"_time": [time, time], "v": [time, time % 3]}
    if kind == "collection":
        columns["_diff"] = [1, 1]
    log.writer(owner="me").append(pa.table(columns), advance_to=time + 1)


@pytest.mark.parametrize("kind", ["collection", "stream"])
def test_killed_consumer_loses_and_repeats_nothing(tmp_path: Path, kind: str) -> None:
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), kind=kind, merge_every=5)  # type: ignore[arg-type]
    for time in range(N_BEFORE):
        append(log, time, kind)
    # It has the name before anything may be forgotten.
    subscribe(log.path, as_of=0, name="job").close()
    ended = threading.Event()

    def write() -> None:
        mine = open_log(log.path, merge_every=5)
        for time in range(N_BEFORE, UP_TO):
            append(mine, time, kind)
            if ended.wait(0.25 if long_lane() else 0.1):
                return

    def forget() -> list[int]:
        mine, passed = open_log(log.path), []
        while not ended.wait(0.05):
            mine.refresh()
            if mine.frontier().elements[0][0] > 0:
                passed.append(mine.allow_compaction(mine.frontier()).elements[0][0])
                mine.compact(logical=rng.random() < 0.5)
        return passed

    store, kills, tries = tmp_path / "store.json", 0, 0
    with ThreadPoolExecutor(2) as pool:
        writing, forgetting = pool.submit(write), pool.submit(forget)
        try:
            while True:  # as many turns as kills, and one
                tries += 1
                last = writing.done()
                number = (
                    0 if last and tries > (60 if long_lane() else 8) else tries if tries < 6 else rng.randint(1, 40)
                )
                code = run(log.path, store, number)
                kills += code != 0
                if code == 0:
                    break
        finally:
            ended.set()
        writing.result()
        passed = forgetting.result()
    tell(f"{kills} kills, {tries} tries, {UP_TO} times")
    assert kills >= 5
    # It was let forget behind the consumer, so that what was not retained would have been missed.
    assert max(passed) > 0
    rows = [tuple(row) for row in json.loads(store.read_text())["rows"]]
    expected = [(time, v) for time in range(UP_TO) for v in (time, time % 3)]
    got = [(time, v) for time, diff, v in rows for _ in range(diff)]
    assert sorted(got) == sorted(expected)
    assert len({(time, v) for time, _, v in rows}) == len(rows)


def test_name_that_expired_by_the_clock_is_named(tmp_path: Path) -> None:
    """By the clock of the machine: its consumer was killed, and comes back when others had the log forget."""
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), kind="collection")
    for time in range(4):
        append(log, time, "collection")
    environment = {**os.environ, "PYTHONPATH": str(JOBS.parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", _DIES, log.path],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    log.refresh()
    held = log.retainers()["till"].needed
    assert log.allow_compaction([4], by="nightly") == held  # it still counts
    stored = done.stdout.strip()
    wait_until(
        lambda: log.allow_compaction([3], by="nightly") == Antichain.of(3), deadline_s=60, what="the end of its expiry"
    )
    for name in ("till", None):
        with pytest.raises(SinceViolationError, match=r"since=\[3\]|moved past consumer 'till' by nightly") as error:
            subscribe(log.path, name=name, resume_from=stored)
        assert name is None or "expired" in str(error.value)


_DIES = """
import os, signal, sys
from spark_timely.answers.subscribe import subscribe
changes = subscribe(sys.argv[1], name="till", as_of=0, expiry="3 seconds")
next(changes)
print(changes.cut, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
