"""Three jobs hand completeness on, each killed at random: the last one ends as if nothing had happened.

capture -> ``frontier=source`` -> ``frontier=source``, with a filter, a union of two logs and a join with a static
table between them. The jobs run in drivers of their own, continuously or under AvailableNow, are killed
(SIGKILL), made to forget their last commit now and then, and started again. All the while a watcher sees to
it that no log is further than what it was made from. In the end closed times and contents are what a program by
loops says, and in the long lane equal those of one undisturbed run.

``SPARK_TIMELY_LONG=1`` makes twelve rounds instead of one, half of them through Spark Connect. The seed is printed;
``SPARK_TIMELY_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.time.antichain import Antichain
from tests.faults.harness import JOBS, Job, delete_last_commit, long_lane, numbers, seed_of_run, tell
from tests.faults.test_kill import canonical_hash, expected_rows, make_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(3600)]

PAIR = pa.schema([("t", pa.int64()), ("id", pa.int64())])
NAMES = ["capture", "clean", "merge"]


@pytest.fixture(scope="module")
def jobs() -> ModuleType:
    """Return the module of the jobs, to run them in this process too."""
    spec = importlib.util.spec_from_file_location("handover_job", JOBS / "handover_job.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Watcher:
    """Looks at the logs again and again, and fails if one is further than what it was made from."""

    def __init__(self, folder: Path) -> None:
        self.logs = {name: spark_timely.open_log(folder / name) for name in ("merged", "clean", "raw")}
        self.logs["other"] = spark_timely.open_log(folder.parent / "other")
        self.n_steps = 0
        self.last: list[Antichain] = []

    def look(self) -> None:
        """Read the frontiers, the last job's first: those before it can only have moved on since."""
        found = []
        for log in self.logs.values():
            log.refresh()
            found.append(log.frontier())
        merged, clean, raw, other = found
        assert merged.less_equal_frontier(clean.meet(other)), f"merged {merged}, from clean {clean} and other {other}"
        assert clean.less_equal_frontier(raw), f"clean {clean}, from raw {raw}"
        if found != self.last:
            self.n_steps += 1
            self.last = found


class Story:
    """The three jobs, killed again and again."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        make_logs(folder)
        self.watcher = Watcher(folder)
        self.lines: list[str] = []
        self.n_kills = 0

    def round(self, groups: list[list[str]], trigger: str, *, connect: bool) -> None:
        """Run groups of jobs, each in a driver of its own; kill each some time after it got on."""
        due = {}
        started = []
        for group in groups:
            job = Job(
                "handover_job.py",
                {"folder": str(self.folder), "jobs": group, "trigger": trigger, "connect": connect},
                self.folder / "-".join(group),
            )
            started.append((group, job))
            due[job] = {name: self._planned(name) + self.rng.choice([2, 3, 5]) for name in group}
        end = time.monotonic() + 180
        killing = dict.fromkeys(due, 0.0)
        try:
            while started:
                self.watcher.look()
                for group, job in list(started):
                    over, now = job.ended(), time.monotonic()
                    begun = all(numbers(self.folder / f"{name}-checkpoint" / "commits") for name in group)
                    far = any(self._planned(name) >= batch for name, batch in due[job].items())
                    # It may live on what was killed, and never get as far as it was to.
                    alone = len(started) < len(groups)
                    if not killing[job] and begun and (far or alone):
                        killing[job] = now + self.rng.uniform(0.0, 0.8 if far else 3.0)
                    if alone:
                        end = min(end, now + 40.0)
                    if over or (killing[job] and time.monotonic() >= killing[job]) or time.monotonic() > end:
                        self._end(group, job, over=over)
                        started.remove((group, job))
                time.sleep(0.01)
        finally:
            for _, job in started:
                job.kill()

    def _end(self, group: list[str], job: Job, *, over: bool) -> None:
        job.kill(with_workers=self.rng.random() < 0.5)
        # On a very busy machine a worker may be too slow for Spark: that is a crash as good as any.
        assert not over or "Traceback" not in job.text() or "failed to connect back" in job.text(), job.text()
        done = [len(numbers(self.folder / f"{name}-checkpoint" / "commits")) for name in group]
        line = f"{'+'.join(group)} {'ended' if over else 'killed'} after {'+'.join(map(str, done))} micro-batches"
        self.n_kills += not over
        for name in group:
            if self.rng.random() < 0.5:
                forgotten = delete_last_commit(self.folder / f"{name}-checkpoint")
                line += f", {name} forgot batch {forgotten}"
        self.lines.append(line)

    def _planned(self, name: str) -> int:
        return max(numbers(self.folder / f"{name}-checkpoint" / "offsets"), default=-1)


def make_logs(folder: Path) -> None:
    """Make the logs that jobs read: a query needs one to be there."""
    spark_timely.create_log(folder / "raw", PAIR, times=("long",))
    spark_timely.create_log(folder / "clean", PAIR.append(pa.field("kind", pa.int64())), times=("long",))
    spark_timely.create_log(folder / "merged", PAIR.append(pa.field("name", pa.string())), times=("long",))


def make_other(path: Path, n_times: int) -> list[tuple[int, int]]:
    """Write the second log, which nobody kills: one row in each of some times, complete."""
    rows = [(time, 1000 + time) for time in range(0, n_times, 3)]
    writer = spark_timely.create_log(path, PAIR, times=("long",)).writer(owner="test")
    for start in range(0, n_times, 5):
        some = [(time, number) for time, number in rows if start <= time < start + 5]
        times, ids = (pa.array([row[place] for row in some], pa.int64()) for place in (0, 1))
        writer.append(pa.table({"_time": times, "t": times, "id": ids}), advance_to=start + 5)
    writer.close()
    return rows


def finish(
    spark: SparkSession, jobs: ModuleType, folder: Path, *, n_times: int | None, look: Callable[[], None] = lambda: None
) -> None:
    """Run the jobs one after the other to the end, then close the first log: the end passes on."""
    for close in (False, True):
        if close:
            spark_timely.open_log(folder / "raw").close("main")
        for name in NAMES if not close else NAMES[1:]:
            jobs.begin(spark, folder, name, trigger="availableNow", n_times=n_times).await_termination()
            look()


def test_jobs_killed_anywhere_hand_on_what_undisturbed_ones_do(
    spark: SparkSession, jobs: ModuleType, tmp_path: Path
) -> None:
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    n_rounds = 12 if long_lane() else 1
    folder = tmp_path / "story"
    batches = make_files(folder / "in", 8 * n_rounds, rng)
    others = make_other(tmp_path / "other", 2 * len(batches))
    story = Story(folder, rng)
    for number in range(n_rounds):
        # Each in a driver of its own, or two of them in one; the short lane has one round of the latter.
        groups = [["capture"], ["clean", "merge"]] if number % 2 == 0 else [[name] for name in NAMES]
        story.round(groups, "continuous" if number % 3 != 2 else "availableNow", connect=number % 4 >= 2)
    finish(spark, jobs, folder, n_times=7 if long_lane() else None, look=story.watcher.look)
    told = f"seed {seed}: {story.lines}"
    tell(told)
    assert story.n_kills > n_rounds // 2, told
    assert story.watcher.n_steps >= 3, told

    messages, dead = expected_rows(batches)
    wanted = Counter({(t, n, "odd" if n % 2 else "even"): m for (t, n), m in messages.items() if n % 3})
    wanted.update((t, n, "odd" if n % 2 else "even") for t, n in others)
    merged = spark_timely.open_log(folder / "merged")
    found = merged.messages()
    assert Counter(zip(*(found[name].to_pylist() for name in ("t", "id", "name")), strict=True)) == wanted, told
    assert merged.frontier().is_empty, told
    assert spark_timely.open_log(folder / "raw").dead().num_rows == sum(dead.values()), told

    assert merged.verify().legal, told
    if not long_lane():
        return
    still = tmp_path / "still"
    still.mkdir()
    make_logs(still)
    (still / "in").symlink_to(folder / "in")
    finish(spark, jobs, still, n_times=None)
    for name in ("clean", "merged"):
        assert canonical_hash(folder / name) == canonical_hash(still / name), told
