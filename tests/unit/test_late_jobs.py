"""Late tasks of a dead attempt write when another attempt has committed: the log stays as it is, file by file.

For each place of the table in docs/internals/designs/copies.md whose tasks are functions of Python: what a task does is
done once more, after everything, as by an executor whose driver was killed. What only Spark itself does late is in
`tests/spark/test_copy_to.py` and `tests/spark/test_mirror.py`.
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.continual.plan import Expectation, StepPlan
from spark_timely.dataflow.engine.arrangements import Indexing
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.log.files import parquet
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.sink.writer import CaptureMessage
from spark_timely.spark.capture import foreach_batch
from spark_timely.spark.dataflows.tasks import catalog_of, run_one
from spark_timely.spark.tasks import arrow_bodies, bodies
from spark_timely.trace.folder import newest_spine
from tests.property.test_dataflow import runner, with_runner
from tests.unit.sink.driver import SCHEMA, SinkDriver, rows
from tests.unit.spark.capture import test_foreach_batch as captures

write_job = captures.write_job  # plays Spark's job

ROWS = pa.schema([("n", pa.int64())])
AT_ONCE = Indexing(least_bytes=1, tail_bytes=1, tail_files=1, background=False)


class Died(BaseException):
    """The driver is gone: nothing tidies up behind it."""


def frozen(log: Log) -> tuple[int, str, dict[str, tuple[int, int, int]]]:
    """Return what must not change: the version, what is in the log, and each of its files on the disk."""
    found = {}
    for path in log.core.live_paths({str(p.relative_to(log.path)) for p in Path(log.path).rglob("*.parquet")}):
        stat = os.stat(f"{log.path}/{path}")
        found[path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return log.core.version, log.verify().canonical_hash, found


def check_late(path: str | Path, late: Callable[[], object]) -> None:
    """Let a late task write; its files are there, and no part of the log."""
    before, files = frozen(open_log(path)), set(Path(path).rglob("*.parquet"))
    late()
    new = {str(each.relative_to(path)) for each in set(Path(path).rglob("*.parquet")) - files}
    log = open_log(path)
    assert new, "the late task has written nothing"
    assert not log.core.live_paths(new)
    assert frozen(log) == before
    assert log.verify().legal


@pytest.fixture
def source(tmp_path: Path) -> Log:
    log = create_log(str(tmp_path / "in"), ROWS, minimum=(0,))
    times = list(range(6))
    log.writer(owner="test").append(pa.table({"_time": times * 2, "n": times * 2}), advance_to=6)
    return log


# Captures ---------------------------------------------------------------------------------------------


def test_late_task_of_the_sink_adds_nothing(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="bounded", lateness="5")
    driver.run([rows([9], 9)])
    driver.run([rows([10], 1), rows([11], 2)], crash="before commit")
    prepared = pickle.dumps(driver.writer(SCHEMA))  # of that micro-batch
    driver.run([rows([10], 1), rows([11], 2)])

    def late() -> None:
        message = pickle.loads(prepared).write(iter(rows([12, 13], 3).to_batches()))
        assert isinstance(message, CaptureMessage)

    check_late(driver.log_path, late)


def test_late_job_of_a_capture_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, jobs, write = tmp_path / "log", list[tuple[tuple[Any, ...], dict[str, Any]]](), foreach_batch.write_files
    captures.run(path, rows([9]), 0)

    def killed(*args: Any, **more: Any) -> None:
        jobs.append((args, more))
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(foreach_batch, "write_files", killed)
        patch.setattr(foreach_batch, "remove", lambda *_: None)
        with pytest.raises(Died):
            captures.run(path, rows([10, 11]), 1)
    captures.run(path, rows([10, 11]), 1)
    ((args, more),) = jobs
    check_late(path, lambda: write(*args, **more))


# Dataflows --------------------------------------------------------------------------------------------


def engine(scope: Scope, run: str) -> Engine:
    made = Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, run=run, indexing=AT_ONCE)
    made.begin()
    return made


def to_end(made: Engine, run: Any) -> None:
    while with_runner(made, run).step() is not None:
        pass


def attempts(scope: Scope, source: Log) -> tuple[Sequence[OutputPlan], Sequence[Task]]:
    """Kill an attempt when its tasks have run, advance to the end by another one, and return the job of the first."""
    jobs: list[tuple[Sequence[OutputPlan], Sequence[Task]]] = []

    def killed(outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        jobs.append((outputs, tasks))
        raise Died

    with pytest.raises(Died):
        to_end(engine(scope, "one"), killed)
    to_end(engine(scope, "two"), runner(scope.storage))
    assert source.frontier() == open_log(scope.sinks[0].path).frontier()
    return jobs[0]


def again(outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
    return [run_one(task, outputs[task.output], {}) for task in tasks]


def test_late_task_of_a_dataflow_adds_nothing(source: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    scope.replay(source).filter("n >= 1").capture(str(tmp_path / "out"))
    outputs, tasks = attempts(scope, source)
    check_late(tmp_path / "out", lambda: again(outputs, tasks))


def test_late_dead_letters_of_an_operator_are_no_part(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    changes = create_log(str(tmp_path / "in"), schema, minimum=(0,))
    table = pa.table({"_time": [0, 0, 1], "k": [1, 1, 2], "n": pa.array([1, None, 3])})
    changes.writer(owner="test").append(table, advance_to=2)
    scope = Scope("flow")
    scope.replay(changes).upsert(keys="k", sequence_by="n").capture(str(tmp_path / "out"))
    outputs, tasks = attempts(scope, changes)
    letters = len(open_log(tmp_path / "out").core.dead_files())
    assert letters
    check_late(tmp_path / "out", lambda: again(outputs, tasks))
    assert len(open_log(tmp_path / "out").core.dead_files()) == letters


def test_late_run_of_an_index_is_named_by_no_spine(source: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    scope.replay(source).drop_duplicates("n").capture(str(tmp_path / "out"))
    run = runner(scope.storage)
    to_end(engine(scope, "zero"), run)
    source.writer(owner="test").append(pa.table({"_time": [6], "n": [100]}), advance_to=7)
    jobs: list[tuple[Sequence[OutputPlan], Sequence[Task]]] = []

    def killed(outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        made = [each for each in tasks if each.index is not None]
        if made:
            jobs.append((outputs, made))
            raise Died
        return run(outputs, tasks)  # type: ignore[no-any-return]

    with pytest.raises(Died):
        to_end(engine(scope, "one"), killed)
    to_end(engine(scope, "two"), run)
    ((outputs, tasks),) = jobs
    (folder,) = {each.index.folder for each in tasks if each.index is not None}
    before, names = newest_spine(folder, None), set(os.listdir(folder))
    again(outputs, tasks)
    assert before is not None
    assert newest_spine(folder, None) == before
    assert not (set(os.listdir(folder)) - names) & {each.name for each in before.runs}
    assert set(os.listdir(folder)) - names


# Bodies of continual tasks -----------------------------------------------------------------------------


@pytest.fixture
def step(tmp_path: Path) -> StepPlan:
    log = create_log(str(tmp_path / "out"), ROWS, minimum=(0,))
    log.writer(owner="test").append(pa.table({"_time": [0], "n": [0]}), advance_to=1)
    log = open_log(tmp_path / "out")
    return StepPlan("task", (1,), (), None, log.core.format, log.core.storage, "main", 2, parquet.new_job())


BODIES: dict[str, Callable[[StepPlan], object]] = {
    "rows": lambda plan: bodies._write_rows(pa.table({"n": [7]}, schema=ROWS), plan, ["n"]),
    "dead letters": lambda plan: bodies._write_dead(
        pa.table({"n": [7]}, schema=ROWS), plan, Expectation("small", "n < 5", "dead_letter")
    ),
    "Arrow rows": lambda plan: arrow_bodies._write(
        [arrow_bodies._Given(1, pa.table({"n": [7]}, schema=ROWS), np.ones(1, np.int64))], plan
    ),
}


@pytest.mark.parametrize("body", BODIES)
def test_late_rows_of_a_body_add_nothing(step: StepPlan, tmp_path: Path, body: str) -> None:
    # The step was taken by another attempt, under the same number.
    open_log(tmp_path / "out").writer(owner="test").append(pa.table({"_time": [1], "n": [1]}), advance_to=2)
    check_late(tmp_path / "out", lambda: BODIES[body](step))


# Mutant -----------------------------------------------------------------------------------------------


def test_names_that_come_twice_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a late task writes under the name that the committed one has."""
    monkeypatch.setattr(secrets, "token_hex", lambda n=8: "0" * 2 * n)
    with pytest.raises(AssertionError):
        test_late_task_of_the_sink_adds_nothing(tmp_path)
