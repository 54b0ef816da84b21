"""Outputs: where they begin, what they refuse to miss, what a failure costs, and what is left open at the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import plus, windows
from spark_timely.dataflow.engine.explain import explain, metrics, outputs, progress
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.datasource.catalog import FileView
from spark_timely.errors import (
    DataLossError,
    NotBeyondError,
    OperatorError,
    OwnershipError,
    PlanMismatchError,
    SchemaMismatchError,
)
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from spark_timely.work import advance_all
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("n", pa.int64())])


def engine(scope: Scope, **settings: object) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, **settings)  # type: ignore[arg-type]


def times_of(path: Path) -> list[int]:
    return sorted(open_log(str(path)).messages()["_time"].to_pylist())


def test_two_outputs_in_one_log_begin_where_both_have_rows(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    rows = scope.replay(log)
    rows.delay(plus(10)).capture(str(tmp_path / "out"), stream="late")
    rows.capture(str(tmp_path / "out"), stream="plain")
    made = engine(scope)
    made.advance(runner(scope.storage))
    assert times_of(tmp_path / "out") == sorted([t + shift for t in range(30) for shift in (0, 10) for _ in range(3)])
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(30)


def test_spool_is_read_in_the_same_advance_and_keeps_early_rows(tmp_path: Path, log: Log) -> None:
    def in_five(time: int, rows: pa.Table) -> pa.Table:
        return rows.append_column("_time", pa.array([time + 5] * rows.num_rows, pa.int64()))

    scope = Scope("flow")
    spooled = scope.replay(log).unary_notify(in_five, later=True).spool(tmp_path / "spool")
    spooled.filter("n >= 20").capture(str(tmp_path / "rows"))
    spooled.delay(windows(10)).aggregate(n=count()).capture(str(tmp_path / "windows"))
    done = engine(scope, limits=Limits(times=8)).advance(runner(scope.storage))
    assert {step.output for step in done} == {sink.name for sink in scope.sinks}
    assert times_of(tmp_path / "spool") == [t + 5 for t in range(30) for _ in range(3)]
    assert times_of(tmp_path / "rows") == [t + 5 for t in range(20, 25) for _ in range(3)]
    found = open_log(str(tmp_path / "windows"))
    assert found.frontier() == Antichain.of(40)
    counts = dict(zip(found.messages()["_time"].to_pylist(), found.messages()["n"].to_pylist(), strict=True))
    assert counts == {10: 15, 20: 30, 30: 30}
    again = Scope("flow")
    assert again.replay(log).unary_notify(in_five, later=True).spool(tmp_path / "spool").schema == SCHEMA
    with pytest.raises(OwnershipError, match="owned by 'dataflow flow', not by 'dataflow other'"):
        Scope("other").replay(log).spool(tmp_path / "spool")


def test_log_that_begins_behind_the_first_rows_is_refused(tmp_path: Path, log: Log) -> None:
    create_log(str(tmp_path / "out"), SCHEMA, minimum=(5,))
    scope = Scope("flow")
    scope.replay(log).capture(str(tmp_path / "out"))
    with pytest.raises(NotBeyondError, match=r"operator 'capture_2': .* and rows from 0 on would be lost"):
        engine(scope)
    # A stream that joins a log that is under way would miss what went before.
    other = create_log(str(tmp_path / "other"), SCHEMA, minimum=(0,))
    other.writer(owner="somebody", stream="theirs").advance(7)
    scope = Scope("flow")
    scope.replay(log).capture(str(tmp_path / "other"))
    with pytest.raises(NotBeyondError, match=r"at time 0: found no live stream .* and rows from 0 on would be lost"):
        engine(scope)
    other.refresh()
    assert set(other.streams()) == {"theirs"}


def test_output_past_what_it_captures_is_refused(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    scope.replay(log).capture(str(tmp_path / "out"))
    engine(scope).advance(runner(scope.storage))
    open_log(str(tmp_path / "out")).advance("main", [40], reason="by hand")
    with pytest.raises(
        DataLossError, match=r"'capture_2': found its output at \[40\], where the dataflow left it at \["
    ):
        engine(scope).advance(runner(scope.storage))


def test_changed_dataflow_that_would_miss_rows_is_refused(tmp_path: Path, log: Log) -> None:
    """Also where the change is meant: to replace a plan makes no rows anew."""
    replaces = None
    for shift, refused in ((10, False), (4, True)):
        scope = Scope("flow")
        scope.replay(log).delay(plus(shift)).capture(str(tmp_path / "out"), replaces=replaces)
        (replaces,) = (state.plan for state in outputs(scope))
        if refused:
            with pytest.raises(DataLossError, match="or the dataflow was changed"):
                engine(scope).advance(runner(scope.storage))
        else:
            engine(scope).advance(runner(scope.storage))


@pytest.mark.parametrize("way", ["select", "add the column"])
def test_input_with_a_new_column_is_refused_after_a_restart(tmp_path: Path, log: Log, way: str) -> None:
    def flow(*columns: str, replaces: str | None = None) -> Scope:
        scope = Scope("flow")
        rows = scope.replay(log.path).filter("n >= 0")
        (rows.select(*columns) if columns else rows).capture(str(tmp_path / "out"), replaces=replaces)
        return scope

    first = flow()
    running = engine(first)
    running.advance(runner(first.storage))
    plan = outputs(first)[0].plan
    late = pa.schema([("late", pa.string())])
    log.add_columns(late)
    rows = pa.table({"_time": [30], "n": [1], "late": ["x"]})
    log.writer(owner="test").append(rows, advance_to=40)
    running.advance(runner(first.storage))  # a query that lives keeps the columns with which it began
    with pytest.raises(SchemaMismatchError, match=r"with other columns or times: without \['late'\]") as caught:
        engine(flow())
    assert "add_columns" in str(caught.value)
    assert ".select('n')" in str(caught.value)
    columns = ["n"] if way == "select" else []
    if way == "add the column":
        open_log(str(tmp_path / "out")).add_columns(late)
    with pytest.raises(PlanMismatchError, match=f"replaces='{plan}'"):
        engine(flow(*columns)).advance(runner(first.storage))
    log.writer(owner="test").append(pa.table({"_time": [40], "n": [1], "late": ["x"]}), advance_to=50)
    engine(flow(*columns, replaces=plan)).advance(runner(first.storage))
    made = open_log(str(tmp_path / "out"))
    assert made.frontier() == Antichain.of(50)
    assert times_of(tmp_path / "out") == times_of(Path(log.path))
    if way == "add the column":
        assert made.messages()["late"].to_pylist()[-2:] == [None, "x"]


def test_job_that_fails_is_run_apart_for_each_output(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    rows = scope.replay(log)
    rows.filter("n >= 0").capture(str(tmp_path / "bad"))
    rows.aggregate(n=count()).capture(str(tmp_path / "good"))
    run = runner(scope.storage)
    jobs = []

    def dying(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        jobs.append(sorted({plans[task.output].name for task in tasks}))
        if any(plans[task.output].name == "capture_3" for task in tasks):
            msg = "a worker process was killed"
            raise RuntimeError(msg)
        found: list[TaskResult] = run(plans, tasks)
        return found

    with pytest.raises(RuntimeError, match="killed"):
        engine(scope).advance(dying)
    assert sorted(jobs) == [["capture_3"], ["capture_3", "capture_5"], ["capture_5"]]
    assert open_log(str(tmp_path / "bad")).frontier() == Antichain.of(0)
    assert open_log(str(tmp_path / "good")).frontier() == Antichain.of(30)


@pytest.mark.parametrize(
    "msg",
    [
        "Job 3 cancelled part of cancelled job group",
        "An error occurred while calling o9.collectToPython.\n: java.lang.InterruptedException\n\tat java.base",
    ],
)
def test_job_that_was_cancelled_is_not_tried_again(tmp_path: Path, log: Log, msg: str) -> None:
    scope = Scope("flow")
    for name in ("one", "two"):
        scope.replay(log).capture(str(tmp_path / name))
    jobs = []

    def stopped(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        jobs.append(tasks)
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError):
        advance_all(with_runner([engine(scope)], stopped), lives=True)
    assert len(jobs) == 1
    state = open_log(str(tmp_path / "one")).core.stream("main")
    assert state is not None
    assert state.seq == 0, "who is stopped has not failed"


def test_failure_over_a_column_named_cancelled_is_run_apart(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    for name in ("one", "two"):
        scope.replay(log).capture(str(tmp_path / name))
    jobs: list[int] = []

    def failing(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        del plans
        jobs.append(len({task.output for task in tasks}))
        msg = "could not cast column 'cancelled'"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="cast column"):
        advance_all(with_runner([engine(scope)], failing))
    assert jobs == [2, 1, 1]


def test_rule_001_16_open_inputs_complete_and_lose_nothing(tmp_path: Path, log: Log) -> None:
    """A program that ends without advancing its inputs: times that are not complete wait, in every run."""
    writer = log.writer(owner="test")
    writer.append(pa.table({"_time": [30, 31], "n": [1, 2]}))
    for _ in range(2):  # the second run finds nothing to do
        scope = Scope("flow")
        scope.replay(log).aggregate(n=count()).capture(str(tmp_path / "out"))
        engine(scope).advance(runner(scope.storage))
        assert times_of(tmp_path / "out") == list(range(30))
        assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(30)
    # Whoever goes on with the input, or closes it, makes them complete.
    log.close("main")
    scope = Scope("flow")
    scope.replay(log).aggregate(n=count()).capture(str(tmp_path / "out"))
    engine(scope).advance(runner(scope.storage))
    assert times_of(tmp_path / "out") == [*range(30), 30, 31]


def test_dataflows_of_a_query_take_turns_and_fail_apart(tmp_path: Path, log: Log) -> None:
    scopes = {name: Scope(name) for name in ("large", "small", "broken")}
    for name, scope in scopes.items():
        scope.replay(log).map(lambda rows, name=name: check(rows, name)).capture(str(tmp_path / name))
    limits = {name: Limits(times=None if name == "small" else 5) for name in scopes}
    engines = [engine(scope, limits=limits[name], most_together=2) for name, scope in scopes.items()]
    jobs = []
    run = runner({path: {} for scope in scopes.values() for path in scope.storage})

    def noted(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        jobs.append(Path(plans[0].storage.uri.removeprefix("file://")).name)
        found: list[TaskResult] = run(plans, tasks)
        return found

    with pytest.raises(OperatorError, match=r"'map_2' .*found ValueError: broken"):
        advance_all(with_runner(engines, noted))
    assert jobs == ["large", "small", "broken", *["large"] * 3], "one step, two, two and one"
    assert {name: open_log(str(tmp_path / name)).frontier() for name in scopes} == {
        "large": Antichain.of(30),
        "small": Antichain.of(30),
        "broken": Antichain.of(0),
    }


def check(rows: pa.Table, name: str) -> pa.Table:
    if name == "broken" and rows.num_rows:
        raise ValueError(name)
    return rows


counter = itertools.count()


def numbered(rows: pa.Table) -> pa.Table:
    return pa.table({"n": pa.array([next(counter) for _ in range(rows.num_rows)], pa.int64())})


def first_of(time: int, rows: pa.Table) -> pa.Table:
    return rows.slice(0, 1)


def of_all(rows: pa.Table) -> pa.Table:
    return pa.table({"n": pa.array([rows.num_rows] * rows.num_rows, pa.int64())})


FUNCTIONS = {
    "keeps something": lambda x: x.map(numbered),
    "depends on the order": lambda x: x.unary_notify(first_of),
    "depends on which rows come together": lambda x: x.map(of_all),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_function_that_is_not_deterministic_is_found_and_named(tmp_path: Path, log: Log, what: str) -> None:
    writer = log.writer(owner="test")
    writer.append(pa.table({"_time": [30, 30, 30], "n": [1, 2, 3]}), advance_to=31)
    scope = Scope("flow")
    made = FUNCTIONS[what](scope.replay(log).filter("_time >= 20"))
    made.capture(str(tmp_path / "out"))
    made.inspect(lambda *_: None).aggregate(n=count()).capture(str(tmp_path / "counts"))
    with pytest.raises(OperatorError, match=f"operator {made.view.name!r} at times .*other rows the second time"):
        engine(scope, twice=True).advance(runner(scope.storage))
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(0)


def done_of(scope: Scope, catalogs: dict[str, Callable[[], FileView]]) -> list[tuple[str, int, int]]:
    found = progress(scope, lambda leaf: catalogs[leaf.path]())
    return [(each.operator, each.done, each.total) for each in found]


def test_plan_and_numbers_are_told_from_the_logs(tmp_path: Path, log: Log) -> None:
    other = create_log(str(tmp_path / "other"), SCHEMA, minimum=(0,))
    other.writer(owner="test").append(pa.table({"_time": [2, 3], "n": [2, 3]}), advance_to=20)
    scope = Scope("flow")
    some = scope.replay(log).filter("n < 25")
    some.aggregate(by="n", m=count()).capture(str(tmp_path / "alone"))
    some.concat(scope.replay(other)).capture(str(tmp_path / "both"))
    before = outputs(scope)
    assert [(o.upper, o.frontier, o.lag) for o in before] == [
        (Antichain.of(0), Antichain.of(30), 30),
        (Antichain.of(0), Antichain.of(20), 20),
    ]
    assert [o.held_by for o in before] == [(log.path,), (other.path,)]
    catalogs = {path: catalog_of(each) for path, each in ((log.path, log), (other.path, other))}
    assert done_of(scope, catalogs) == [("capture_4", 0, 90), ("capture_7", 0, 62)]
    made, run = engine(scope, limits=Limits(times=12), workers=2, most_together=1), runner(scope.storage)
    made.begin()
    with_runner(made, run).step()
    assert done_of(scope, catalogs) == [("capture_4", 36, 90), ("capture_7", 38, 62)]
    steps = [with_runner(made, run).step() for _ in range(3)]
    assert [step is None for step in steps] == [False, False, True]
    assert done_of(scope, catalogs) == [("capture_4", 90, 90), ("capture_7", 62, 62)]
    told = explain(scope).splitlines()
    assert told[0] == "dataflow 'flow'"
    assert f"  replay_1: {log.path} | frontier [30]" in told
    assert "  filter_2 of replay_1: n < 25 | frontier [30]" in told
    assert "  aggregate_3 of filter_2: by n: m=count() | frontier [30]" in told
    assert told[-1].endswith(f"| upper [20], nothing waits, held by {other.path} | cut by rows")
    found = {(each.operator, each.output): each for each in metrics(scope)}
    assert {key: each.rows for key, each in found.items()} == {
        ("replay_1", "capture_4"): 90,
        ("filter_2", "capture_4"): 75,
        ("aggregate_3", "capture_4"): 25,
        ("capture_4", "capture_4"): 25,
        ("replay_1", "capture_7"): 60,
        ("filter_2", "capture_7"): 60,
        ("replay_5", "capture_7"): 2,
        ("concat_6", "capture_7"): 62,
        ("capture_7", "capture_7"): 62,
    }
    assert (found["capture_4", "capture_4"].times, found["capture_4", "capture_4"].steps) == (25, 3)
    # Two columns of 64 bits, and what Arrow needs beside them.
    assert 90 * 16 <= found["replay_1", "capture_4"].size_bytes < 90 * 20
    assert {each.lag for each in found.values()} == {0}
