"""A process that maintains an instance is killed at any moment, and the next one continues from its command log; one
that was stopped and replaced writes nothing when it continues."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_timely.log.log import open_log
from tests.faults.harness import JOBS, alive, long_lane, seed_of_run, tell, wait_until
from tests.faults.jobs.instance_job import N_COMMANDS, state_after, state_of
from tests.unit.compute.instances import append, handle, orders, rows

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]


def begun(folder: Path, spec: dict[str, Any]) -> subprocess.Popen[str]:
    file = folder / "spec.json"
    file.write_text(json.dumps(spec))
    environment = {**os.environ, "PYTHONPATH": str(JOBS.parents[2])}
    command = [sys.executable, str(JOBS / "instance_job.py"), str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_killed_instance_continues_from_its_command_log(tmp_path: Path) -> None:
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    log = orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), upper=4)
    spec = {
        "directory": str(tmp_path / "instance"),
        "log": log.path,
        "out": str(tmp_path / "out"),
        "acknowledged": str(tmp_path / "acknowledged"),
        "time": 3,
    }
    kills, least, totals = 0, 100 if long_lane() else 6, {1: [2, 40], 2: [1, 20]}
    for turn in range(10 * least):  # until all is done, and it was killed often enough
        more = kills < least
        number = (turn + 1 if turn < 4 else rng.randint(5, 150)) if more else 0
        by_time = more and turn >= 4 and rng.random() < 0.4
        job = begun(tmp_path, {**spec, "number": 0 if by_time else number})
        if by_time:  # between anything else
            try:
                job.wait(rng.uniform(0.2, 2.5))
            except subprocess.TimeoutExpired:
                job.kill()
        _, words = job.communicate(timeout=300)
        assert job.returncode in (0, -signal.SIGKILL), words
        kills += job.returncode != 0
        if job.returncode == 0 and more:
            (tmp_path / "acknowledged").unlink()  # from the beginning, in another directory
            spec |= {"directory": f"{tmp_path}/instance{turn}", "out": f"{tmp_path}/out{turn}-"}
        elif job.returncode == 0:
            break
        k, v, time = rng.randint(1, 2), rng.randint(1, 9), int(str(spec["time"])) + 1
        append(log, (time, 1, k, v), upper=time + 1)
        totals[k] = [totals[k][0] + 1, totals[k][1] + v]
        spec["time"] = time
    tell(f"{kills} kills")
    assert kills >= least
    with handle(Path(str(spec["directory"]))) as instance:
        assert state_of(instance) == state_after(N_COMMANDS)
        for export in state_after(N_COMMANDS)[0]:
            instance.await_frontier(export, spec["time"])
            assert rows(instance.peek(export)) == sorted((k, *total, 1) for k, total in totals.items())


def test_process_that_was_stopped_and_replaced_is_refused(tmp_path: Path) -> None:
    log = orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), upper=4)
    spec = {
        "pause": True,
        "directory": str(tmp_path / "instance"),
        "log": log.path,
        "out": str(tmp_path / "out"),
        "ready": str(tmp_path / "ready"),
        "said": str(tmp_path / "said"),
        "time": 3,
    }
    old = begun(tmp_path, spec)
    try:
        wait_until((tmp_path / "ready").exists, deadline_s=120, what="the first answers")
        append(log, (4, 1, 1, 1), upper=5)
        wait_until(lambda: state_of_process(old.pid) == "T", deadline_s=120, what="the pause")
        with handle(tmp_path / "instance") as new:
            for export in ("log", "x"):
                new.await_frontier(export, 4)
            append(log, (5, 1, 2, 7), upper=6)
            new.await_frontier("log", 5)
            os.kill(old.pid, signal.SIGCONT)
            _, words = old.communicate(timeout=120)
            assert old.returncode == 0, words
            assert (tmp_path / "said").read_text().startswith("OwnershipError"), words
            assert "taken over by Fence" in (tmp_path / "said").read_text()
            new.await_frontier("x", 5)
            expected = {3: [(1, 1, 10, 1), (2, 1, 20, 1)], 4: [(1, 2, 11, 1), (2, 1, 20, 1)]}
            expected[5] = [(1, 2, 11, 1), (2, 2, 27, 1)]
            for time, there in expected.items():
                assert rows(open_log(tmp_path / "out").snapshot(time)) == there
                assert rows(new.peek("x", as_of=time)) == there
            assert new.error is None
    finally:
        if alive(old.pid):
            old.kill()
            old.wait()


def state_of_process(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
