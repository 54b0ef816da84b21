"""The driver of a dataflow is killed; its outputs are those of a sequential program.

A real query in a process group of its own is killed (SIGKILL) while a task computes and on either side of a commit to
an output's log, with each of the two triggers that end. Now and then Spark is made to forget a commit, the checkpoint
is deleted, or another copy of the dataflow runs at the same time. In the end the rows of each output are compared with
what loops give, and its commits with those of a dataflow that nobody killed.

``SPARK_TIMELY_LONG=1`` makes 24 kills with each trigger instead of 2. The seed is printed; ``SPARK_TIMELY_SEED``
repeats a run's choices.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import spark_timely
from tests.faults.harness import Job, delete_last_commit, long_lane, seed_of_run, tell
from tests.faults.jobs import dataflow_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(3600)]

Row = tuple[int, str | None, int]
SCHEMA = pa.schema([("key", pa.string()), ("id", pa.int64())])


def make_log(path: Path, n_times: int, rng: random.Random) -> list[Row]:
    """Write a complete log in several commits."""
    writer = spark_timely.create_log(path, SCHEMA, minimum=(0,)).writer(owner="test")
    rows: list[Row] = []
    for start in range(0, n_times, 8):
        some = [(rng.randrange(start, n_times), rng.choice(["a", "ä", None]), rng.randrange(1000)) for _ in range(40)]
        times, keys, ids = zip(*some, strict=True)
        columns = {"_time": pa.array(times, pa.int64()), "key": keys, "id": pa.array(ids, pa.int64())}
        writer.append(pa.table(columns), advance_to=min(start + 8, n_times))
        rows += some
    writer.close()
    return rows


def windows_of(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """Count and add up the rows of each window of six times, one every three: the window's end, key, count, sum."""
    groups: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    for time, key, number in rows:
        for begin in range(-6, time + 1):
            if begin % 3 == 0 and begin <= time < begin + 6:
                groups[begin + 6, key].append(number)
    return Counter((end, key, len(ids), sum(ids)) for (end, key), ids in groups.items())


def totals_of(windows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Add the counts of the windows up to each multiple of twelve, and take the greatest sum."""
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for end, _, n, total in windows:
        later = end
        while later % 12:
            later += 1
        groups[later].append((n, total))
    return Counter((time, sum(n for n, _ in each), max(total for _, total in each)) for time, each in groups.items())


def pairs_of(one: list[Row], two: list[Row]) -> Counter[tuple[Any, ...]]:
    """Pair rows of equal time and key; null is equal to nothing."""
    return Counter(
        (time, key, number, other)
        for time, key, number in one
        for at, name, other in two
        if at == time and name == key and key is not None
    )


def kill_at(folder: Path, spec: dict[str, Any], number: int, kill: dict[str, object]) -> Job:
    """Start the dataflow, to be killed; the marker tells whether it was."""
    return Job("dataflow_job.py", {**spec, "kill": kill, "marker": str(folder / f"struck-{number}")}, folder / "runs")


def commits_of(path: Path) -> list[tuple[object, ...]]:
    """Return of each commit of an output: its number, by which times it moved, and its rows."""
    log = spark_timely.open_log(path)
    moves: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in log.core.progress().to_pylist():
        if row["_delta"]:
            moves[row["_seq"]].append((row["_time"], row["_delta"]))
    messages = log.messages()
    rows: dict[int, list[str]] = defaultdict(list)
    for seq, row in zip(messages["_seq"].to_pylist(), messages.drop_columns(["_seq"]).to_pylist(), strict=True):
        rows[seq].append(repr(sorted(row.items())))
    return [(seq, sorted(moves[seq]), sorted(rows[seq])) for seq in sorted(moves | rows)]


@pytest.mark.parametrize(
    ("trigger", "short"),
    # Before a commit, what the job wrote for it and for the steps after it is on the disk.
    [("availableNow", ["after", "task"]), ("once", ["before", "after"])],
)
def test_dataflow_killed_anywhere_equals_the_sequential_program(
    spark: SparkSession, tmp_path: Path, trigger: str, short: list[str]
) -> None:
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    points = ["before", "after", "task"] * 8 if long_lane() else list(short)
    rng.shuffle(points)
    n_times = 48 * (4 if long_lane() else 1)
    one, two = (make_log(tmp_path / name, n_times, rng) for name in ("one", "two"))
    checkpoint = tmp_path / "checkpoint"
    spec: dict[str, Any] = {"folder": str(tmp_path), "checkpoint": str(checkpoint), "trigger": trigger}
    raced = rng.randrange(len(points))
    told = []
    for number, where in enumerate(points):
        job = kill_at(tmp_path, spec, number, {"where": where, "commit": rng.randrange(3)})
        try:
            if number == raced and long_lane():
                dataflow_job.run(spark, {**spec, "checkpoint": str(tmp_path / "other checkpoint")})
            ended = job.end_within(180)
            words = job.text()
        finally:
            job.kill(with_workers=rng.random() < 0.5)
        assert ended, f"neither killed nor done, seed {seed}:\n{words}"
        struck = (tmp_path / f"struck-{number}").exists()
        assert struck or "Traceback" not in words, f"seed {seed}:\n{words}"
        told.append(f"{'killed' if struck else 'done before it was killed'} {where}")
        line = rng.choice(["as it was", "forgetful", "without its checkpoint"])
        if line == "forgetful":
            told.append(f"forgot batch {delete_last_commit(checkpoint / 'ending')}")
        if line == "without its checkpoint":
            shutil.rmtree(checkpoint, ignore_errors=True)
            told.append("checkpoint deleted")
    tell("\n".join(told))
    dataflow_job.run(spark, spec)
    _check(tmp_path, one, two, f"seed {seed}: {told}")
    _check_commits(spark, tmp_path, spec, f"seed {seed}: {told}")
    if not long_lane():
        assert told[0].startswith("killed"), f"seed {seed}: {told}"


def _check(folder: Path, one: list[Row], two: list[Row], told: str) -> None:
    """Compare the outputs with the oracle."""
    windows = windows_of(one)
    wanted = {
        "windows": (("_time", "key", "n", "total"), windows),
        "totals": (("_time", "n", "most"), totals_of(windows)),
        "pairs": (("_time", "key", "id", "other"), pairs_of(one, two)),
    }
    for name in dataflow_job.OUTPUTS:
        columns, rows = wanted[name]
        log = spark_timely.open_log(folder / name)
        found = log.messages()
        assert Counter(zip(*(found[column].to_pylist() for column in columns), strict=True)) == rows, (name, told)
        assert log.frontier().is_empty, (name, told)
        assert log.verify().legal, (name, told)


def _check_commits(spark: SparkSession, folder: Path, spec: dict[str, Any], told: str) -> None:
    """Compare the commits with those of a run that nobody disturbed, from the same inputs.

    Not of what reads a spool: how far it goes in a step depends on how far the spool is when it is looked at.
    """
    found = {name: commits_of(folder / name) for name in ("windows", "pairs")}
    for name in dataflow_job.OUTPUTS:
        shutil.rmtree(folder / name)
    dataflow_job.run(spark, {**spec, "checkpoint": str(folder / "another checkpoint")})
    for name, commits in found.items():
        assert len(commits) > 3, name
        assert commits == commits_of(folder / name), (name, told)
