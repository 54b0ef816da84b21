"""Inputs that were deleted and made again under the same path: an output is made from one log, or it stops."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.engine.explain import metrics
from spark_timely.dataflow.engine.outputs import newest_note
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.logs import Sink
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import DataLossError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import runner

SCHEMA = pa.schema([("n", pa.int64())])


def engine(scope: Scope) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of)


def counts(log: str, out: Path, name: str = "flow") -> Scope:
    scope = Scope(name)
    scope.replay(log).aggregate(n=count()).capture(str(out))
    return scope


def ids_of(folder: Path, sink: Sink) -> dict[str, str]:
    return {path: each.id for path, each in newest_note(open_log(str(folder / "out")), sink).inputs.items()}


def remade(path: str, upper: int, n: int = 40) -> Log:
    """Put another log in the place of one."""
    shutil.rmtree(path)
    made = create_log(path, SCHEMA, minimum=(0,))
    made.writer(owner="other").append(
        pa.table({"_time": list(range(n)), "n": [7] * n}), advance_to=upper if upper >= 0 else []
    )
    return made


@pytest.mark.parametrize(("running", "upper"), [(False, 40), (True, 30), (False, -1)])
def test_replaced_input_is_refused_however_far_the_new_one_is(
    tmp_path: Path, log: Log, running: bool, upper: int
) -> None:
    scope = counts(log.path, tmp_path / "out")
    made = engine(scope)
    made.advance(runner(scope.storage))
    before = log.core.log_id
    after = remade(log.path, upper).core.log_id
    if not running:
        scope = counts(log.path, tmp_path / "out")
        made = engine(scope)
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    with pytest.raises(DataLossError, match=f"'capture_3': found log '{log.path}' of id='{after}'.* id='{before}'"):
        made.advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    assert out.frontier() == Antichain.of(30)
    assert sorted(out.messages()["_time"].to_pylist()) == list(range(30))
    assert sorted((tmp_path / "out").rglob("*message*/*.parquet")) == [path for path in files if "message" in str(path)]
    # An output that is new is made from the new log, beside the one that stops.
    both = counts(log.path, tmp_path / "out")
    both.replay(log.path).capture(str(tmp_path / "new"))
    with pytest.raises(DataLossError, match="id="):
        engine(both).advance(runner(both.storage))
    assert open_log(str(tmp_path / "new")).messages()["n"].to_pylist() == [7] * (40 if upper < 0 else upper)


def test_input_replaced_before_a_commit_is_for_a_new_run_alone(tmp_path: Path, log: Log) -> None:
    scope = counts(log.path, tmp_path / "out")
    made = engine(scope)
    remade(log.path, 40)
    with pytest.raises(DataLossError, match=f"made from id='{log.core.log_id}'"):
        made.advance(runner(scope.storage))
    engine(scope).advance(runner(scope.storage))
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(40)


def test_ids_are_found_behind_a_commit_that_somebody_else_made(tmp_path: Path, log: Log) -> None:
    scope = counts(log.path, tmp_path / "out")
    engine(scope).advance(runner(scope.storage))
    open_log(str(tmp_path / "out")).advance("main", [30], reason="by hand")
    remade(log.path, 40)
    with pytest.raises(DataLossError, match=log.core.log_id):
        engine(scope).advance(runner(scope.storage))


def spooled(log: str, folder: Path) -> Scope:
    scope = Scope("flow")
    scope.replay(log).filter("n >= 0").spool(folder / "spool").aggregate(n=count()).capture(str(folder / "out"))
    return scope


def test_spool_is_made_again_from_the_same_input_alone(tmp_path: Path, log: Log) -> None:
    scope = spooled(log.path, tmp_path)
    engine(scope).advance(runner(scope.storage))
    assert ids_of(tmp_path, scope.sinks[1]) == {log.path: log.core.log_id}
    shutil.rmtree(tmp_path / "spool")
    log.writer(owner="test").append(pa.table({"_time": [30], "n": [1]}), advance_to=31)
    scope = spooled(log.path, tmp_path)
    engine(scope).advance(runner(scope.storage))
    assert sorted(open_log(str(tmp_path / "out")).messages()["_time"].to_pylist()) == list(range(31))
    # Now the input is another one, and nothing is left in the spool that would tell.
    remade(log.path, 40)
    shutil.rmtree(tmp_path / "spool")
    scope = spooled(log.path, tmp_path)
    with pytest.raises(DataLossError, match=f"operator {scope.sinks[1].name!r}: found log '{log.path}'"):
        engine(scope).advance(runner(scope.storage))
    assert open_log(str(tmp_path / "spool")).frontier() == Antichain.of(40)
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(31)


def test_spool_that_others_write_too_is_an_input_like_any(tmp_path: Path, log: Log) -> None:
    create_log(str(tmp_path / "spool"), SCHEMA, minimum=(0,), streams=2).writer(owner="me", stream="theirs").append(
        pa.table({"_time": [3], "n": [1000]}), advance_to=100
    )
    scope = spooled(log.path, tmp_path)
    engine(scope).advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    assert max(out.messages()["n"].to_pylist()) == 4
    assert set(newest_note(out, scope.sinks[1]).inputs) == {log.path, str(tmp_path / "spool")}
    shutil.rmtree(tmp_path / "spool")
    scope = spooled(log.path, tmp_path)
    with pytest.raises(DataLossError, match=r"found log .*spool' of id="):
        engine(scope).advance(runner(scope.storage))


def test_numbers_of_a_dataflow_named_like_numbers(tmp_path: Path, log: Log) -> None:
    scope = counts(log.path, tmp_path / "out", name='a {"b": 1} c')
    engine(scope).advance(runner(scope.storage))
    assert {each.operator: each.rows for each in metrics(scope)}["capture_3"] == 30
    assert ids_of(tmp_path, scope.sinks[0]) == {log.path: log.core.log_id}
