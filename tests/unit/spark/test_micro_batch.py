"""How long a micro-batch of dataflows takes, and what it leaves for the next one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.dataflow.stream import Scope
from spark_timely.datasource.clock import Alarm
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows import dataflow
from spark_timely.spark.dataflows.dataflow import _bounds, _MicroBatch, _Part
from spark_timely.work import Bounds
from tests.property.test_dataflow import runner

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize(
    ("trigger", "bounds"),
    [
        ({}, Bounds(10.0, 30)),
        ({"availableNow": True}, Bounds(10.0, 30)),
        ({"processingTime": "0 seconds"}, Bounds(10.0, 30)),
        ({"processingTime": "2 seconds"}, Bounds(10.0, None)),
        ({"processingTime": "1 hour"}, Bounds(3600.0, None)),
    ],
)
def test_micro_batch_may_take_as_long_as_the_triggers_interval(trigger: dict[str, Any], bounds: Bounds) -> None:
    assert _bounds(trigger) == bounds


def micro_batch(folder: Path, monkeypatch: pytest.MonkeyPatch, *, lives: bool) -> _MicroBatch:
    """Return a dataflow of forty steps, as Spark would call it."""
    writer = create_log(str(folder / "in"), SCHEMA, minimum=(0,)).writer(owner="test")
    writer.append(pa.table({"_time": range(40), "n": range(40)}), advance_to=40)
    scope = Scope("flow")
    scope.replay(str(folder / "in")).capture(str(folder / "out"))
    part = _Part("flow", tuple(scope.sinks), scope.storage)
    monkeypatch.setattr(dataflow, "SparkTasks", lambda *_, **__: runner(scope.storage))
    return _MicroBatch(
        (part,), Limits(times=1), None, 1 << 20, False, "run", lives, Bounds(None, 30), str(folder / "c"), {}, 0
    )


def upper(folder: Path) -> object:
    return open_log(str(folder / "out")).frontier().to_json()


def test_micro_batch_asks_for_the_next_one_while_work_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "metadata").write_text("{}")
    run: Any = micro_batch(tmp_path, monkeypatch, lives=True)
    heard = Alarm(str(tmp_path / "c"), "run")
    run(SimpleNamespace(sparkSession=None), 0)
    assert upper(tmp_path) == [30]
    assert heard.rung() == 1
    run(SimpleNamespace(sparkSession=None), 1)
    assert upper(tmp_path) == [40]
    assert heard.rung() == 1


@pytest.mark.parametrize("lives", [True, False])
def test_micro_batch_works_off_all_where_it_cannot_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    run: Any = micro_batch(tmp_path, monkeypatch, lives=lives)
    run(SimpleNamespace(sparkSession=None), 0)
    assert upper(tmp_path) == [40]
    assert not (tmp_path / "c").exists()
