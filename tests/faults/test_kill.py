"""The driver is killed; the log's contents are as if nothing had happened.

Each case runs a real query in a process group of its own, kills it (SIGKILL) at random moments and at
named points, now and then makes Spark forget its last commit, starts it again until its input is used up,
and compares the canonical hash of the log with that of an undisturbed run, and the rows with an oracle. What is
not to be killed runs in the test's own session.

``SPARK_TIMELY_LONG=1`` makes at least 30 kills instead of 4. The seed is printed; ``SPARK_TIMELY_SEED``
repeats a run's choices.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from tests.faults.harness import STARTED, Job, delete_last_commit, long_lane, numbers, seed_of_run, tell, wait_until
from tests.faults.jobs import capture_job
from tests.oracles.capture_model import CaptureModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(3600)]

LATENESS = 4
OPTIONS = {"timeColumn": "t", "frontier": "bounded", "lateness": str(LATENESS), "lateData": "deadLetter"}


def make_files(folder: Path, n_files: int, rng: random.Random) -> list[list[tuple[int, int]]]:
    """Write one Parquet file per micro-batch: (t, id) rows, a few of them late whatever the cut."""
    folder.mkdir(parents=True)
    batches, number = [], 0
    for index in range(n_files):
        rows = []
        for _ in range(rng.choice([0, 1, 7, 40])):
            behind = rng.choice([0, 0, 1, 2, 3, 4, 12])
            rows.append((2 * index - behind, number))
            number += 1
        table = pa.table(
            {"t": pa.array([t for t, _ in rows], pa.int64()), "id": pa.array([i for _, i in rows], pa.int64())}
        )
        file = folder / f"part-{index:05d}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_700_000_000 + index, 1_700_000_000 + index))  # Spark takes them in this order
        batches.append(rows)
    return batches


def expected_rows(batches: list[list[tuple[int, int]]]) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Return messages and dead letters by the oracle, one file per micro-batch."""
    model = CaptureModel(minimum=-(2**63), policy="bounded", late_data="deadLetter", lateness=LATENESS)
    for rows in batches:
        model.batch([(t, (("id", i),)) for t, i in rows])
    return (
        Counter((t, dict(row)["id"]) for t, row in model.messages),
        Counter((t, dict(row)["id"]) for t, row in model.dead),
    )


def contents(path: Path) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Return messages and dead letters as any reader of the table sees them."""
    from deltalake import DeltaTable

    table = DeltaTable(str(path)).to_pyarrow_dataset().to_table(columns=["_event", "t", "id"])
    rows = table.to_pylist()
    return (
        Counter((row["t"], row["id"]) for row in rows if row["_event"] == "message"),
        Counter((row["t"], row["id"]) for row in rows if row["_event"] == "dead"),
    )


def canonical_hash(path: Path) -> str:
    """Check every stream of the log against the protocol, and return its canonical hash."""
    report = spark_timely.open_log(str(path)).verify()
    assert report.legal, report
    return report.canonical_hash


class Story:
    """One job, killed again and again."""

    def __init__(self, folder: Path, spec: dict[str, Any], rng: random.Random) -> None:
        self.folder, self.spec, self.rng = folder, spec, rng
        self.checkpoint = Path(str(spec["checkpoint"]))
        self.n_kills = 0
        self.n_struck = 0
        self.n_forgotten = 0
        self.lines: list[str] = []

    def _job(self, kill: dict[str, object] | None) -> Job:
        marker = self.folder / f"struck-{self.n_kills:03d}"
        return Job("capture_job.py", {**self.spec, "kill": kill, "marker": str(marker)}, self.folder / "runs", STARTED)

    def finished(self) -> bool:
        """Say whether the last run ended by itself."""
        return self.lines[-1].startswith("ended") if self.lines else False

    def kill_at(self, where: str) -> None:
        """Kill at a named point of the next micro-batch but one."""
        planned = numbers(self.checkpoint / "offsets")
        batch = (planned[-1] if planned else -1) + 1 + self.rng.choice([0, 1, 2])
        job = self._job({"where": where, "batch": batch})
        ended = job.end_within(180)
        struck = (self.folder / f"struck-{self.n_kills:03d}").exists()
        words = job.text()
        job.kill()
        assert ended, f"job did not reach batch {batch}:\n{words}"
        assert struck, f"job ended before it was struck at {where!r} of batch {batch}:\n{words}"
        self._after(f"struck {where} commit of batch {batch}")
        self.n_struck += 1

    def kill_at_random(self) -> None:
        """Kill some time after the query began to plan micro-batches; now and then long before that."""
        planned = numbers(self.checkpoint / "offsets")
        due = (planned[-1] if planned else -1) + self.rng.choice([1, 1, 2, 3])
        job = self._job(None)
        early = self.rng.random() < 0.15
        if early:
            ended = job.end_within(self.rng.uniform(0.5, 4.0))
        else:
            wait_until(
                lambda: job.ended() or max(numbers(self.checkpoint / "offsets"), default=-1) >= due,
                deadline_s=180,
                what=f"micro-batch {due}",
                report=job.text,
            )
            ended = job.end_within(self.rng.uniform(0.0, 0.6))
        job.kill(with_workers=self.rng.random() < 0.5)
        if ended:
            assert "Traceback" not in job.text(), job.text()
            self.lines.append("ended by itself")
            return
        self._after("killed early" if early else "killed at random")

    def _after(self, line: str) -> None:
        self.n_kills += 1
        if self.rng.random() < 0.4:
            forgotten = delete_last_commit(self.checkpoint)
            if forgotten is not None:
                line += f", forgot the commit of batch {forgotten}"
                self.n_forgotten += 1
        self.lines.append(line)

    def finish(self, spark: SparkSession) -> None:
        """Run to the end, undisturbed; then repeat the last micro-batch."""
        capture_job.run(spark, self.spec)
        if delete_last_commit(self.checkpoint) is not None:
            self.n_forgotten += 1
            capture_job.run(spark, self.spec)


def run_story(
    spark: SparkSession, folder: Path, spec: dict[str, Any], rng: random.Random, n_random: int, points: list[str]
) -> Story:
    """Kill at the named points and at random moments, in a random order; then finish."""
    story = Story(folder, spec, rng)
    todo: list[str | None] = [*points, *([None] * n_random)]
    rng.shuffle(todo)
    for point in todo:
        if point is None:
            story.kill_at_random()
        else:
            story.kill_at(point)
        if story.finished():
            break
    story.finish(spark)
    return story


def undisturbed(spark: SparkSession, folder: Path, spec: dict[str, Any]) -> str:
    """Run the same job once, and return its log's canonical hash."""
    capture_job.run(spark, {**spec, "log": str(folder / "log"), "checkpoint": str(folder / "checkpoint")})
    return canonical_hash(folder / "log")


def kills(short: int, long: int) -> int:
    """Return how many random kills this lane makes."""
    return long if long_lane() else short


def test_capture_killed_anywhere_has_the_same_contents(spark: SparkSession, tmp_path: Path) -> None:
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    # Before the log's commit: the replay below, where nothing is there either.
    points = ["after", "before", "write"] * 3 if long_lane() else ["after", "write"]
    n_random = kills(0, 12)
    batches = make_files(tmp_path / "in", 4 + 6 * n_random + 3 * len(points), rng)
    spec: dict[str, Any] = {
        "source": {"files": str(tmp_path / "in")},
        "through": "sink",
        "log": str(tmp_path / "log"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": OPTIONS,
    }
    story = run_story(spark, tmp_path / "story", spec, rng, n_random, points)
    tell("\n".join(story.lines))
    assert story.n_kills == n_random + len(points), f"too little input for all kills, seed {seed}: {story.lines}"
    assert contents(tmp_path / "log") == expected_rows(batches), f"seed {seed}: {story.lines}"
    assert canonical_hash(tmp_path / "log") == undisturbed(spark, tmp_path / "still", spec), (
        f"seed {seed}: {story.lines}"
    )


def make_log(path: Path, rng: random.Random, n_times: int) -> None:
    """Write a complete log of two streams, (t, id) rows, without Spark."""
    log = spark_timely.create_log(
        str(path), pa.schema([("t", pa.int64()), ("id", pa.int64())]), times=("long",), streams=2
    )
    writers = [log.writer(stream=name, owner=f"test {name}") for name in ("even", "odd")]
    number = 0
    for time in range(n_times):
        for writer in writers:
            n_rows = rng.choice([0, 1, 5, 30])
            ids = list(range(number, number + n_rows))
            number += n_rows
            times = [time + rng.choice([0, 0, 1, 5]) for _ in ids]
            table = pa.table(
                {
                    "t": pa.array(times, pa.int64()),
                    "id": pa.array(ids, pa.int64()),
                    "_time": pa.array(times, pa.int64()),
                }
            )
            writer.append(table, advance_to=time + 1)
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("through", ["foreachBatch", pytest.param("sink", marks=pytest.mark.long)])
def test_replay_killed_anywhere_has_the_same_contents(spark: SparkSession, tmp_path: Path, through: str) -> None:
    points, n_random = ["after", "before"] * (2 if long_lane() else 1), kills(0, 6)
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    n_batches = 3 + 6 * n_random + 3 * len(points)
    make_log(tmp_path / "source", rng, 3 * n_batches)
    spec: dict[str, Any] = {
        "source": {"log": str(tmp_path / "source"), "options": {"maxTimesPerTrigger": "3", "workers": "2"}},
        "through": through,
        "log": str(tmp_path / "log"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {**OPTIONS, "lateness": "0", "lateData": "error"},
    }
    story = run_story(spark, tmp_path / "story", spec, rng, n_random, points)
    tell("\n".join(story.lines))
    told = f"seed {seed}: {story.lines}"
    assert story.n_kills == n_random + len(points), told
    assert contents(tmp_path / "log") == contents(tmp_path / "source"), told
    if long_lane():
        assert canonical_hash(tmp_path / "log") == undisturbed(spark, tmp_path / "still", spec), told
