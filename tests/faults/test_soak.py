"""Capture, two replays, merging, vacuum and restarts for a long while: nothing grows, nothing is lost.

Half an hour in the long lane, seconds otherwise; `SPARK_TIMELY_SOAK_S` says how long. Sink and source are driven
in Spark's order inside this process, so that its memory and handles are theirs.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_timely as st
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.datasource.spark_readers import TimelyStreamReader
from spark_timely.log.store import checkpoints as delta_upkeep
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.testing.driver import StreamDriver
from tests.unit.sink.driver import SinkDriver

LONG = os.environ.get("SPARK_TIMELY_LONG", "0") not in {"", "0"}
DURATION_S = float(os.environ.get("SPARK_TIMELY_SOAK_S", "1800" if LONG else "7"))
LATENESS, ROWS, LATE = 20, 60, 0.1
SAMPLES = 30
# In steps; some of each also in seconds.
COMPACT_EVERY, VACUUM_EVERY = (400, 150) if LONG else (80, 30)
# What an allocator and the caches of libraries may keep; a leak of a kilobyte per micro-batch is more.
SLACK_MB = 48


def rows_of(step: int) -> pa.Table:
    """Return the rows of a step: times of now, some from anywhere within the lateness."""
    rng = np.random.default_rng(step)
    times = np.full(ROWS, LATENESS + step)
    late = rng.random(ROWS) < LATE
    late[0] = False  # the frontier moves with each step
    times -= np.where(late, rng.integers(0, LATENESS, ROWS), 0)
    return pa.table({"t": times, "id": np.arange(step * ROWS, (step + 1) * ROWS)})


@dataclass
class Replay:
    """A query, and which rows it has delivered."""

    path: Path
    options: dict[str, str]
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __post_init__(self) -> None:
        self.driver = StreamDriver(self._reader, schema=arrow_schema(self._source().schema()))

    def _source(self) -> TimelyDataSource:
        return TimelyDataSource({"path": str(self.path), "pollInterval": "0ms", **self.options})

    def _reader(self) -> TimelyStreamReader:
        source = self._source()
        reader = source.streamReader(source.schema())
        assert isinstance(reader, TimelyStreamReader)
        return reader

    def run(self, *, commit: bool = True) -> bool:
        """Run a micro-batch if there is one; without commit its rows do not count, and it is run again."""
        batch = self.driver.run_one(commit=commit)
        if not commit:
            self.driver.crash()
        if batch is None:
            return False
        offsets = self.driver.checkpoint.offsets
        if len(offsets) > 3:
            offsets[-4] = ""  # Spark keeps a hundred
        if commit:
            ids = batch.rows.column("id").to_numpy()
            if ids.size and ids.max() >= self.seen.size:
                self.seen = np.concatenate([self.seen, np.zeros(ids.max() + 1, np.bool_)])
            assert not self.seen[ids].any(), "delivered twice"
            assert np.unique(ids).size == ids.size
            self.seen[ids] = True
        return True


@dataclass
class Sample:
    """What might grow."""

    memory_mb: float
    handles: int
    live_files: int
    files_on_disk: int
    table_log: int


def sample(log: Path) -> Sample:
    gc.collect()
    pa.default_memory_pool().release_unused()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        len(os.listdir("/proc/self/fd")),
        st.open_log(log).describe()["message_files"],
        sum(1 for _ in log.rglob("*.parquet")),
        len(os.listdir(log / "_delta_log")),
    )


def run_capture(folder: Path, step: int, dice: random.Random) -> None:
    """Capture the rows of a step; the query may be killed before or after its commit, and goes on."""
    query = SinkDriver(folder, timeColumn="t", frontier="bounded", lateness=str(LATENESS))
    tasks = [rows_of(step).slice(0, ROWS // 2), rows_of(step).slice(ROWS // 2)]
    if dice.random() < 0.02:
        query.run(tasks, crash=dice.choice(["before commit", "after commit"]), chunk=ROWS)
    batch = query.run(tasks, chunk=ROWS)
    assert batch == step
    for name in ("offsets", "commits"):
        (query.checkpoint / name / str(step - 5)).unlink(missing_ok=True)


def soak(folder: Path, goes_on: Callable[[], bool], due: Callable[[], bool]) -> tuple[int, list[Sample], list[Replay]]:
    """Run all parts in turn; return the number of steps, samples, and the replays."""
    path, dice, samples, step = folder / "log", random.Random(7), [], 0
    replays: list[Replay] = []
    while goes_on():
        run_capture(folder, step, dice)
        step += 1
        replays = replays or [
            Replay(path, {"maxTimesPerTrigger": "7", "workers": "2"}),
            Replay(path, {"splitBy": "time", "workers": "3"}),
        ]
        for number, replay in enumerate(replays):
            if dice.random() < 0.02:
                replay.driver.crash()
            # The second one comes in fits and starts.
            while (number == 0 or step % 25 == 0) and replay.run(commit=dice.random() > 0.02):
                pass
        if step % COMPACT_EVERY == 0:
            st.open_log(path).compact()
        if step % VACUUM_EVERY == 0:
            DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        if due():
            samples.append(sample(path))
    return step, samples, replays


def expected_digest(folder: Path, steps: int) -> str:
    """Return the hash of a log that took all the rows at once."""
    once = SinkDriver(folder / "once", timeColumn="t", frontier="bounded", lateness=str(LATENESS))
    once.run([pa.concat_tables(rows_of(step) for step in range(steps))], chunk=100_000)
    return str(once.log().verify().digest)


@pytest.mark.timeout(DURATION_S + 900)
def test_nothing_grows_and_nothing_is_lost_in_a_long_run(tmp_path: Path) -> None:
    start = time.monotonic()
    wanted = iter(start + DURATION_S * (n + 1) / SAMPLES for n in range(SAMPLES))
    next_sample = [next(wanted)]

    def due() -> bool:
        if time.monotonic() < next_sample[0]:
            return False
        next_sample[0] = next(wanted, float("inf"))
        return True

    steps, samples, replays = soak(tmp_path, lambda: time.monotonic() < start + DURATION_S, due)
    log = st.open_log(tmp_path / "log")
    report = log.verify()
    assert report.legal, report.problems
    assert report.messages == steps * ROWS
    assert report.digest == expected_digest(tmp_path, steps)
    closed = np.zeros(steps * ROWS, np.bool_)
    closed[log.messages(upper=log.frontier(), columns=["id"])["id"].to_numpy()] = True
    for replay in replays:
        while replay.run():
            pass
        seen = np.zeros_like(closed)
        seen[np.flatnonzero(replay.seen)] = True
        assert np.array_equal(seen, closed)
    # The first third warms up.
    middle, last = samples[SAMPLES // 3 : 2 * SAMPLES // 3], samples[2 * SAMPLES // 3 :]
    told = "\n".join(map(str, samples))
    if middle and last:
        before, after = (statistics.median(s.memory_mb for s in part) for part in (middle, last))
        assert after < before + SLACK_MB, told
        assert max(s.handles for s in last) <= max(s.handles for s in middle) + 8, told
    assert all(s.live_files < 300 for s in samples), told
    assert all(s.files_on_disk < 1200 for s in samples), told
    # What is kept, what may have come since the newest checkpoint, and since the last look at the directory.
    most = delta_upkeep.KEEP_VERSIONS + 2 * delta_upkeep._CHECKPOINT_VERSIONS[1] + 20
    assert all(s.table_log < most for s in samples), told
    Path(os.environ.get("SPARK_TIMELY_SOAK_REPORT", os.devnull)).write_text(f"{steps} steps\n{told}\n")
