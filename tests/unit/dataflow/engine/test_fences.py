"""Outputs of a compute instance: an older epoch appends nothing once a newer one was there, however late it notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_timely.dataflow.engine.outputs import drop_output, newest_note
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import OwnershipError
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.protocol.note import Fence
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from tests.property.test_dataflow import runner

MATCH = r"found it written by start 2 \(me\) of instance 'one', this is start 1 \(me\) of"


def scope_of(log: Log, folder: Path, epoch: int | None, condition: str = "n < 15") -> Scope:
    scope = Scope("flow")
    scope.replay(log).filter(condition).capture(str(folder / "out"))
    if epoch is not None:
        scope.sinks = [replace(sink, fence=Fence("one", epoch, "me")) for sink in scope.sinks]
    return scope


def engine(scope: Scope, run: str) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=10), run=run)


def version(folder: Path) -> int:
    return open_log(str(folder / "out")).core.version


def test_older_instance_that_is_paused_between_job_and_append(tmp_path: Path, log: Log) -> None:
    old = scope_of(log, tmp_path, 1)
    run = runner(old.storage)
    at: list[int] = []

    def paused(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        found: list[TaskResult] = run(plans, tasks)
        if not at:
            engine(scope_of(log, tmp_path, 2), "new")  # it has nothing computed yet, and moves nothing
            at.append(version(tmp_path))
        return found

    made = engine(old, "old")
    with pytest.raises(OwnershipError, match=MATCH):
        made.advance(paused)
    assert version(tmp_path) == at[0], "not even its failure is written into a log that is another's"
    assert open_log(str(tmp_path / "out")).core.files().paths.size == 0
    new = scope_of(log, tmp_path, 2)
    engine(new, "new").advance(runner(new.storage))
    rows = open_log(str(tmp_path / "out")).messages()["n"].to_pylist()
    assert rows == [n for n in range(15) for _ in range(3)]


def test_older_instance_that_begins_late_is_refused(tmp_path: Path, log: Log) -> None:
    new = scope_of(log, tmp_path, 2)
    engine(new, "new")
    before = version(tmp_path)
    for late in (1, None):
        old = scope_of(log, tmp_path, late)
        with pytest.raises(OwnershipError, match="found it written by start 2"):
            engine(old, "old").advance(runner(old.storage))
    with pytest.raises(OwnershipError):
        drop_output(open_log(str(tmp_path / "out")), scope_of(log, tmp_path, None).sinks[0], "new")
    assert version(tmp_path) == before


def test_fence_of_an_epoch_is_written_once_and_stays_over_steps(tmp_path: Path, log: Log) -> None:
    flow = scope_of(log, tmp_path, 2)
    engine(flow, "one")
    before = version(tmp_path)
    made = engine(flow, "two")
    assert version(tmp_path) == before
    made.advance(runner(flow.storage))
    out = open_log(str(tmp_path / "out"))
    assert newest_note(out, flow.sinks[0]).fence == Fence("one", 2, "me")
    drop_output(out, flow.sinks[0], "two")
    out.refresh()
    note = newest_note(out, flow.sinks[0])
    assert (note.fence, note.dropped) == (Fence("one", 2, "me"), ("two",))
