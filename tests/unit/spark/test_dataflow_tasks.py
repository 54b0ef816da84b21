"""Where the tasks of a job run: small ones in this process, all others in Spark; the same either way."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count, sum_of
from spark_timely.dataflow.delays import windows
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import OperatorError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows import tasks as dataflow_tasks
from spark_timely.spark.dataflows.tasks import Room, RoomError, SparkTasks, catalog_of
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Tasks(SparkTasks):
    """Runs tasks here where they are small, and else as a job, of which it keeps the number of tasks."""

    def __init__(self, storage: dict[str, dict[str, str]], **settings: Any) -> None:
        no_spark: Any = None
        super().__init__(no_spark, storage, **settings)
        self.job, self.jobs = runner(storage), list[int]()

    def _run_in_spark(self, spark: Any, outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        self.jobs.append(len(tasks))
        found: list[TaskResult] = self.job(outputs, tasks)
        return found


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    times = np.arange(10).repeat(4)
    made.writer(owner="test").append(pa.table({"_time": times, "k": ["a", "b"] * 20, "n": times}), advance_to=10)
    made.refresh()
    return made


def engine(scope: Scope, **settings: Any) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, **settings)


def steps_of(stream: Stream) -> Stream:
    return stream.filter("n > 2").delay(windows(4, every=2)).aggregate(by="k", n=count(), total=sum_of("n"))


def on_disk(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("_event=message/*.parquet"))


def content(path: Path) -> list[dict[str, object]]:
    return open_log(str(path)).messages().drop_columns(["_stream"]).to_pylist()


def test_small_job_without_functions_runs_where_it_is_planned(tmp_path: Path, log: Log) -> None:
    found = {}
    for name, most in (("here", dataflow_tasks.DRIVER_BYTES), ("jobs", 0)):
        scope = Scope("flow")
        steps_of(scope.replay(log)).capture(str(tmp_path / name))
        tasks = Tasks(scope.storage, max_bytes_in_driver=most)
        engine(scope, limits=Limits(times=2), workers=2).advance(tasks)
        assert bool(tasks.jobs) == (name == "jobs")
        found[name] = content(tmp_path / name)
    assert found["here"] == found["jobs"]
    assert len(found["here"]) > 5


def test_functions_of_the_user_and_large_inputs_are_jobs(tmp_path: Path, log: Log) -> None:
    def show(rows: pa.Table, lo: Antichain, hi: Antichain) -> None:
        assert lo.less_equal_frontier(hi)
        assert rows.num_columns == 3

    def each_once(rows: pa.Table) -> pa.Table:
        return rows.select(["n"]).append_column("_row", pa.array(range(rows.num_rows), pa.int64()))

    streams: dict[str, Any] = {
        "map": lambda rows: rows.map(lambda table: table.select(["n"])),
        "flat": lambda rows: rows.flat_map(each_once),
        "shown": lambda rows: rows.inspect(show),
        "notified": lambda rows: rows.unary_notify(lambda _, table: table),
        "below": lambda rows: rows.map(lambda table: table.select(["n"])).filter("n > 3").aggregate(n=count()),
        "large": lambda rows: rows,
    }
    for name, made in streams.items():
        scope = Scope("flow")
        made(scope.replay(log)).capture(str(tmp_path / name))
        size = int(log.core.files().sizes.sum())
        tasks = Tasks(scope.storage, max_bytes_in_driver=size if name == "large" else size + 1)
        engine(scope, workers=1).advance(tasks)
        assert tasks.jobs == [1], name


def test_once_a_second_a_job_tells_whether_the_query_was_stopped(tmp_path: Path, log: Log) -> None:
    scope, clock = Scope("flow"), ManualClock()
    scope.replay(log).capture(str(tmp_path / "out"))
    tasks = Tasks(scope.storage, now=clock)
    made = engine(scope, limits=Limits(times=1), workers=1, most_together=1)
    made.begin()
    jobs = []
    for _ in range(10):
        with_runner(made, tasks).step()
        clock.advance(0.3)
        jobs.append(len(tasks.jobs))
    assert jobs == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]


def test_error_of_an_operator_is_the_same_here_and_in_a_job(tmp_path: Path, log: Log) -> None:
    times = pa.array([10, 10], pa.int64())
    log.writer(owner="test").append(pa.table({"_time": times, "k": ["a"] * 2, "n": [1 << 62] * 2}), advance_to=11)
    texts = []
    for most in (dataflow_tasks.DRIVER_BYTES, 0):
        scope = Scope("flow")
        scope.replay(log).aggregate(by="k", total=sum_of("n")).capture(str(tmp_path / f"out{most}"))
        tasks = Tasks(scope.storage, max_bytes_in_driver=most)
        with pytest.raises(OperatorError, match="does not fit 64 bits") as caught:
            engine(scope, limits=Limits(times=5)).advance(tasks)
        texts.append((str(caught.value), caught.value.hint, caught.value.operator))
        assert open_log(str(tmp_path / f"out{most}")).frontier() == Antichain.of(10)
        assert bool(tasks.jobs) == (not most)
    assert texts[0] == texts[1]


def test_what_fails_here_leaves_no_file_and_is_tried_by_spark(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scope = Scope("flow")
    rows = scope.replay(log)
    rows.capture(str(tmp_path / "good"))
    rows.filter("n > 3").capture(str(tmp_path / "bad"))
    run_one = dataflow_tasks.run_one

    def failing(task: Task, output: OutputPlan, options: Any, **settings: Any) -> TaskResult:
        if output.storage.uri.endswith("bad"):
            msg = "not seen from here"
            raise OSError(msg)
        return run_one(task, output, options, **settings)

    monkeypatch.setattr(dataflow_tasks, "run_one", failing)
    # One after the other: the first is done when the second fails.
    monkeypatch.setattr(dataflow_tasks, "_DRIVER_THREADS", 1)
    tasks = Tasks(scope.storage)
    before: list[list[str]] = []
    job = tasks.job
    tasks.job = lambda *given: (before.append(on_disk(tmp_path / "good")), job(*given))[1]
    with caplog.at_level(logging.WARNING, logger="spark_timely.dataflow"):
        engine(scope, workers=1).advance(tasks)
    assert "a job of 2 tasks is left to Spark: not seen from here" in caplog.text
    assert (tasks.jobs, before) == ([2], [[]])
    assert len(on_disk(tmp_path / "good")) == len(on_disk(tmp_path / "bad")) == 1
    assert len(content(tmp_path / "good")) == 40


def test_rows_that_need_much_memory_are_left_to_spark(tmp_path: Path) -> None:
    """A megabyte of file may be millions of equal rows, and a join of two thousand rows millions of pairs."""
    logs = [create_log(str(tmp_path / name), SCHEMA, minimum=(0,)) for name in ("equal", "pairs")]
    for log, n in zip(logs, (1_200_000, 1_200), strict=True):
        rows = pa.table({"_time": np.zeros(n, np.int64), "k": pa.repeat("a", n), "n": np.zeros(n, np.int64)})
        log.writer(owner="test").append(rows, advance_to=1)
        assert int(log.core.files().sizes.sum()) < dataflow_tasks.DRIVER_BYTES
    equal, pairs = (log.path for log in logs)
    streams: dict[str, Any] = {
        "equal": lambda scope: scope.replay(equal).aggregate(by="k", n=count()),
        "pairs": lambda scope: (
            scope.replay(pairs).join(scope.replay(pairs).select("k", m=pc.field("n")), on="k").filter("n > 0")
        ),
        "sums": lambda scope: scope.replay(pairs).aggregate(by="k", n=count()),
    }
    for name, made in streams.items():
        scope = Scope("flow")
        made(scope).capture(str(tmp_path / f"{name} out"))
        tasks = Tasks(scope.storage)
        engine(scope, workers=1).advance(tasks)
        assert tasks.jobs == ([] if name == "sums" else [1]), name


def test_room_counts_the_rows_that_views_may_have(log: Log) -> None:
    scope = Scope("flow")
    rows = scope.replay(log)
    paths = rows.delay(windows(4, every=2)).concat(rows)
    joined = paths.join(rows.select("k", m=pc.field("n")), on="k", how="left").view
    few, many = (pa.table({"n": range(n)}) for n in (600, 1_800))
    room = Room()
    room.look(paths.view, [many, many])
    room.look(joined, [few, many.slice(0, 1_600)])
    with pytest.raises(RoomError, match="might make 1080600 rows"):
        room.look(joined, [few, many])
    room.take(pa.record_batch({"n": pa.array(range(1 << 20))}))
    with pytest.raises(RoomError, match="1048577 rows of"):
        room.take(pa.record_batch({"n": pa.array(range(1))}))
