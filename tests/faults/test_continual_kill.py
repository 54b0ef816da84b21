"""A process that runs a continual task is killed between any two steps; its output is what a sequential program says.

The task reads an input, what goes from it, a reference and its own output, and begins with a snapshot. One process
after the other continues where the last one died, sometimes after the input has grown. After each kill the output is
right at every time before its upper, and what was never part of it changes nothing.

``SPARK_TIMELY_LONG=1`` kills at every step. The seed is printed; ``SPARK_TIMELY_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import spark_timely as st
from spark_timely.errors import LogMissingError
from tests.faults.harness import Job, long_lane, run_forked, seed_of_run, tell
from tests.faults.jobs import continual_job as job
from tests.faults.jobs import continual_spark_job as spark_job
from tests.oracles.continual import Began, History, Row, Task, Update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

UP_TO = 12


def write(folder: Path, name: str, updates: list[Update], to: object) -> None:
    columns: dict[str, Any] = {
        "_time": pa.array([time for time, _, _ in updates], pa.int64()),
        "_diff": pa.array([diff for *_, diff in updates], pa.int64()),
        "k": pa.array([k for _, (k, _), _ in updates], pa.string()),
        "n": pa.array([n for _, (_, n), _ in updates], pa.int64()),
    }
    st.open_log(folder / name).writer(owner="test").append(pa.table(columns), advance_to=to)


def drawn(rng: random.Random) -> dict[str, History]:
    """Draw what the logs have in the end: each key one number, which is replaced, and some that come and go at once."""
    found = {}
    for name in ("in", "reference"):
        held: dict[str, int] = {}
        updates: list[Update] = []
        for time in range(UP_TO):
            for k in rng.sample("abc", rng.randrange(3)):
                if k in held:
                    updates.append((time, (k, held.pop(k)), -1))
                if rng.random() < 0.8:
                    held[k] = rng.randrange(9)
                    updates.append((time, (k, held[k]), 1))
            if rng.random() < 0.3:
                updates += [(time, ("d", time), 1), (time, ("d", time), -1)]
        found[name] = History("collection", updates)
    return found


def between(history: History, lower: int, upper: int) -> list[Update]:
    return [update for update in history.updates if lower <= update[0] < upper]


def found(log: st.Log) -> dict[int, dict[Row, int]]:
    rows: dict[int, Counter[Row]] = {}
    for row in log.messages().to_pylist():
        rows.setdefault(row["_time"], Counter())[row["k"], row["n"]] += row.get("_diff", 1)
    return {time: {row: n for row, n in each.items() if n} for time, each in rows.items() if any(each.values())}


def check(folder: Path, histories: dict[str, History], at: int) -> None:
    """Compare the output with the program; in the logs is what is before a time."""
    try:
        log = st.open_log(folder / "out")
    except LogMissingError:  # it died before the log was made
        return
    state = log.core.stream("main")
    if state is None or state.note.output is None or state.note.output.task is None:
        assert log.messages().num_rows == 0
        return
    assert (state.note.output.task.as_of, state.note.output.task.snapshot) == (1, True)
    program = Task(job.SOURCES, histories, [(0, job.BODY)], Began(1, True))
    ((upper,),) = log.frontier().elements
    assert upper <= at
    assert found(log) == program.run(upper, "collection")
    assert log.verify().legal


def test_task_killed_between_any_two_steps(tmp_path: Path) -> None:
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    histories = drawn(rng)
    for name in histories:
        st.create_log(tmp_path / name, job.SCHEMA, minimum=(0,), kind="collection")
    at, told, killed = 3, tmp_path / "told", list[int]()
    for name, history in histories.items():
        write(tmp_path, name, between(history, 0, at), at)
    number, ended_at = 0, -1
    while ended_at < UP_TO:
        # A later step each time, from the first one on; a process that does less than that ends by itself.
        number = number + 1 if long_lane() else number + rng.randint(8, 40)
        code = run_forked(job.main, str(tmp_path), str(told), number)
        assert code in (0, -signal.SIGKILL), f"seed {seed}"
        check(tmp_path, histories, at)
        killed.append(number if code else -1)
        if not code:
            number, ended_at = 0, at
        if not code or rng.random() < 0.3:
            to = min(at + rng.randint(1, 5), UP_TO)
            for name, history in histories.items():
                write(tmp_path, name, between(history, at, to), to)
            at = to
    tell(f"killed at steps {killed}")
    assert st.open_log(tmp_path / "out").frontier().to_json() == [UP_TO], f"seed {seed}"
    assert sum(step >= 0 for step in killed) >= 3, f"seed {seed}: {killed}"
    commits = st.open_log(tmp_path / "out").core.stream("main")
    assert commits is not None
    # A write time is one commit, however often its process died: a beginning, a move per look, and those.
    times = Task(job.SOURCES, histories, [(0, job.BODY)], Began(1, True)).write_times()
    assert commits.seq <= len(times) + len(killed) + 2, f"seed {seed}"


@pytest.mark.spark
def test_query_of_a_task_killed_is_as_the_program_says(spark: SparkSession, tmp_path: Path) -> None:
    """The driver dies while a task of Spark's computes, or beside a commit; another one continues."""
    seed = seed_of_run()
    tell(f"seed {seed}")
    rng = random.Random(seed)
    wanted = spark_job.write_inputs(tmp_path, rng)
    points = ["before", "after", "task"] * 5
    rng.shuffle(points)
    points = points if long_lane() else points[:1]
    struck = []
    for number, where in enumerate(points):
        marker = tmp_path / f"struck-{number}"
        kill = {"where": where, "commit": rng.randrange(1, 6)}
        given = {"folder": str(tmp_path), "kill": kill, "marker": str(marker)}
        started = Job("continual_spark_job.py", given, tmp_path / "runs")
        try:
            ended = started.end_within(240)
            words = started.text()
        finally:
            started.kill(with_workers=rng.random() < 0.5)
        assert ended, f"neither killed nor done, seed {seed}:\n{words}"
        assert marker.exists() or "Traceback" not in words, f"seed {seed}:\n{words}"
        struck.append(marker.exists())
    assert struck[0], f"seed {seed}"
    spark_job.run(spark, {"folder": str(tmp_path)})
    for name, rows in wanted.items():
        log = st.open_log(tmp_path / name)
        assert found(log) == rows, f"seed {seed}"
        assert log.frontier().is_empty
        assert log.verify().legal
