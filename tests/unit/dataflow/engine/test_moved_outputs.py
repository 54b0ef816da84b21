"""Outputs that somebody else advanced, closed or wrote to: what the dataflow had not computed yet is never skipped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.engine.explain import outputs
from spark_timely.dataflow.engine.outputs import check_plans
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import DataLossError, OwnershipError, PlanMismatchError
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from spark_timely.work import advance_all
from tests.property.test_dataflow import runner, with_runner


def engine(scope: Scope, run: str = "run", **settings: object) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, run=run, **settings)  # type: ignore[arg-type]


def counts(log: Log, folder: Path, replaces: str | None = None, more: str = "n >= 0") -> Scope:
    scope = Scope("flow")
    scope.replay(log).filter(more).aggregate(n=count()).capture(str(folder / "out"), replaces=replaces)
    return scope


def run(scope: Scope) -> None:
    engine(scope).advance(runner(scope.storage))


def out_of(folder: Path) -> Log:
    return open_log(str(folder / "out"))


def grow(log: Log, upper: int | None) -> None:
    """Append one row at each time up to another frontier, or close."""
    first = log.frontier().elements[0][0]
    times = list(range(first, first + 1 if upper is None else upper))
    log.writer(owner="test").append(pa.table({"_time": times, "n": times}), advance_to=[] if upper is None else upper)


def times_in(folder: Path) -> list[int]:
    return sorted(out_of(folder).messages()["_time"].to_pylist())


def consent_of(error: BaseException) -> str:
    found = str(error).rpartition("replaces='")[2].partition("'")[0]
    assert found.startswith("1:")
    return found


def hand_advanced(folder: Path) -> None:
    out_of(folder).advance("main", [40], reason="by hand")


def hand_advanced_by_its_name(folder: Path) -> None:
    out_of(folder).writer("main", owner="dataflow flow").advance(40)


def hand_appended(folder: Path) -> None:
    out_of(folder).writer("main", owner="dataflow flow").append(pa.table({"_time": [35], "n": [7]}))


MOVES = {
    "advanced": (hand_advanced, r"output at \[40\], where the dataflow left it at \[30\]"),
    "advanced by its name": (hand_advanced_by_its_name, r"output at \[40\], where the dataflow left it at \[30\]"),
    "appended": (hand_appended, r"output at \[30\], with 1 row by others, where the dataflow left it at \[30\]"),
}


@pytest.mark.parametrize("grown", [False, True], ids=["input behind", "input past it"])
@pytest.mark.parametrize("what", MOVES)
def test_second_run_refuses_a_moved_output_by_name(tmp_path: Path, log: Log, what: str, grown: bool) -> None:
    move, found = MOVES[what]
    scope = counts(log, tmp_path)
    run(scope)
    move(tmp_path)
    if grown:
        grow(log, 50)
    before = out_of(tmp_path)
    for _ in range(2):  # that it was said does not make it right
        scope = counts(log, tmp_path)
        with pytest.raises(DataLossError, match=f"operator 'capture_4': found its {found}") as caught:
            run(scope)
        assert "moved by hand" in str(caught.value)
    after = out_of(tmp_path)
    assert after.frontier() == before.frontier()
    assert after.messages().equals(before.messages())


@pytest.mark.parametrize("what", MOVES)
def test_running_query_refuses_a_moved_output_beside_others(tmp_path: Path, log: Log, what: str) -> None:
    move, found = MOVES[what]
    scope = counts(log, tmp_path)
    scope.replay(log).capture(str(tmp_path / "rows"))
    made = engine(scope)
    made.advance(runner(scope.storage))
    move(tmp_path)
    before = out_of(tmp_path)
    grow(log, 50)
    advance_all(with_runner([made], runner(scope.storage)), lives=True)
    assert [str(error) for error in made.failures if "capture_4" in str(error)]
    with pytest.raises(DataLossError, match=found):
        raise made.failures[0]
    (told, well) = (state.failure for state in outputs(scope))
    assert (told is None, well) == (False, None)
    assert open_log(str(tmp_path / "rows")).frontier() == Antichain.of(50)
    assert out_of(tmp_path).frontier() == before.frontier()
    assert out_of(tmp_path).messages().equals(before.messages())


@pytest.mark.parametrize("lives", [False, True])
def test_output_closed_by_hand_is_refused_as_its_input_closes(tmp_path: Path, log: Log, lives: bool) -> None:
    scope = counts(log, tmp_path)
    made = engine(scope)
    made.advance(runner(scope.storage))
    out_of(tmp_path).close("main")
    version = out_of(tmp_path).core.version
    grow(log, None)
    if not lives:
        scope = counts(log, tmp_path)
        made = engine(scope)
    with pytest.raises(DataLossError, match=r"output at \[\], where the dataflow left it at \[30\]"):
        advance_all(with_runner([made], runner(scope.storage)), lives=lives)
    assert out_of(tmp_path).core.version == version
    # Closed by the dataflow itself it is complete.
    shutil.rmtree(tmp_path / "out")
    for _ in range(2):
        scope = counts(log, tmp_path)
        run(scope)
    assert times_in(tmp_path) == list(range(31))
    assert out_of(tmp_path).frontier().is_empty


def test_change_between_the_look_and_the_append_is_noticed(tmp_path: Path, log: Log) -> None:
    scope = counts(log, tmp_path)
    job = runner(scope.storage)
    left = [hand_advanced]

    def moved(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        found: list[TaskResult] = job(plans, tasks)
        if out_of(tmp_path).frontier() == Antichain.of(10) and left:
            left.pop()(tmp_path)
        return found

    made = engine(scope, limits=Limits(times=10))
    with pytest.raises(DataLossError, match=r"output at \[40\], where the dataflow left it at \[10\]"):
        made.advance(moved)
    assert not left
    assert times_in(tmp_path) == list(range(10))
    grow(log, 50)
    with pytest.raises(DataLossError, match=r"left it at \[10\]"):
        run(counts(log, tmp_path))
    assert times_in(tmp_path) == list(range(10))


def test_stream_taken_over_is_refused_before_computing(tmp_path: Path, log: Log) -> None:
    scope = counts(log, tmp_path)
    made = engine(scope)
    made.advance(runner(scope.storage))
    out_of(tmp_path).writer("main", owner="import", takeover=True).append(
        pa.table({"_time": [31], "n": [7]}), advance_to=40
    )
    version = out_of(tmp_path).core.version
    for upper in (None, 50):
        if upper is not None:
            grow(log, upper)
        with pytest.raises(OwnershipError, match="owned by 'import', not by 'dataflow flow'"):
            made.advance(lambda *_: pytest.fail("computed for nothing"))
    with pytest.raises(OwnershipError, match="owned by 'import'"):
        engine(counts(log, tmp_path))
    assert out_of(tmp_path).core.version == version


def test_output_advanced_before_its_first_step_begins_there(tmp_path: Path, log: Log) -> None:
    scope = counts(log, tmp_path)
    engine(scope)  # makes the log
    out_of(tmp_path).advance("main", [20], reason="history is not wanted")
    run(scope)
    assert times_in(tmp_path) == list(range(20, 30))
    # Also ahead of what there is: it waits.
    shutil.rmtree(tmp_path / "out")
    scope = counts(log, tmp_path)
    made = engine(scope)
    out_of(tmp_path).advance("main", [40], reason="from the next month on")
    assert made.advance(runner(scope.storage)) == []
    grow(log, 50)
    made.advance(runner(scope.storage))
    assert times_in(tmp_path) == list(range(40, 50))
    # Who closes it leaves nothing to begin with.
    shutil.rmtree(tmp_path / "out")
    scope = counts(log, tmp_path)
    engine(scope)
    out_of(tmp_path).close("main")
    with pytest.raises(DataLossError, match=r"output at \[\], before its first step"):
        run(scope)


def test_commit_by_others_that_changes_nothing_is_ignored(tmp_path: Path, log: Log) -> None:
    run(counts(log, tmp_path))
    for upper in (35, 40):
        out_of(tmp_path).advance("main", out_of(tmp_path).frontier(), reason="by hand, to where it is")
        out_of(tmp_path).compact()
        grow(log, upper)
        run(counts(log, tmp_path))
    assert times_in(tmp_path) == list(range(40))


@pytest.mark.parametrize("what", MOVES)
def test_consent_holds_for_one_state_of_the_output_alone(tmp_path: Path, log: Log, what: str) -> None:
    move, _ = MOVES[what]
    run(counts(log, tmp_path))
    move(tmp_path)
    moved_to = out_of(tmp_path).frontier().elements[0][0]
    with pytest.raises(DataLossError) as caught:
        run(counts(log, tmp_path))
    mine = outputs(counts(log, tmp_path))[0].plan
    with pytest.raises(DataLossError, match="moved by hand"):  # the plan itself is no consent
        run(counts(log, tmp_path, replaces=mine))
    consent = consent_of(caught.value)
    scope = counts(log, tmp_path, replaces=consent)
    check_plans(scope.sinks, {path: open_log(path) for path in scope.storage})
    run(scope)  # waits until its input is there
    grow(log, 50)
    run(counts(log, tmp_path, replaces=consent))  # may stay in the code
    wanted = [*range(30), *range(moved_to, 50)]
    assert times_in(tmp_path) == sorted([*wanted, 35] if what == "appended" else wanted)
    out_of(tmp_path).advance("main", [60], reason="by hand, again")
    with pytest.raises(DataLossError, match=r"output at \[60\], where the dataflow left it at \[50\]"):
        run(counts(log, tmp_path, replaces=consent))


@pytest.mark.parametrize("what", ["advanced", "appended", "closed"])
def test_consent_does_not_cover_a_later_move(tmp_path: Path, log: Log, what: str) -> None:
    run(counts(log, tmp_path))
    hand_advanced(tmp_path)
    with pytest.raises(DataLossError) as caught:
        run(counts(log, tmp_path))
    consent = consent_of(caught.value)
    run(counts(log, tmp_path, replaces=consent))  # waits until its input is there
    found = r"output at \[60\], "
    if what == "advanced":
        out_of(tmp_path).advance("main", [60], reason="by hand, again")
    elif what == "closed":
        out_of(tmp_path).close("main")
        found = r"output at \[\], "
    else:
        out_of(tmp_path).writer("main", owner="dataflow flow").append(pa.table({"_time": [45], "n": [7]}))
        found = r"output at \[40\], with 1 row by others, "
    for upper in (50, 70):
        grow(log, upper)
        with pytest.raises(DataLossError, match=f"{found}where the dataflow left it at \\[40\\]"):
            run(counts(log, tmp_path, replaces=consent))
    assert times_in(tmp_path) == [*range(30), *([45] if what == "appended" else [])]


def test_change_of_the_plan_is_no_consent_to_a_move(tmp_path: Path, log: Log) -> None:
    first = counts(log, tmp_path)
    run(first)
    hand_advanced(tmp_path)
    grow(log, 50)
    plan = outputs(first)[0].plan
    with pytest.raises(PlanMismatchError, match=f"replaces='{plan}'"):
        run(counts(log, tmp_path, more="n >= 1"))
    with pytest.raises(DataLossError, match=r"where the dataflow left it at \[30\]") as caught:
        run(counts(log, tmp_path, more="n >= 1", replaces=plan))
    run(counts(log, tmp_path, more="n >= 1", replaces=consent_of(caught.value)))
    assert times_in(tmp_path) == [*range(30), *range(40, 50)]


def test_moved_spool_stops_with_all_that_is_made_from_it(tmp_path: Path, log: Log) -> None:
    def both(*names: str) -> Scope:
        scope = Scope("flow")
        rows = scope.replay(log).filter("n >= 0").spool(tmp_path / "spool")
        for name in names:
            rows.aggregate(n=count()).capture(str(tmp_path / name))
        return scope

    run(both("out"))
    open_log(str(tmp_path / "spool")).advance("main", [40], reason="by hand")
    grow(log, 50)
    scope = both("out", "new")
    with pytest.raises(DataLossError, match=r"operator 'capture_3': found its output at \[40\]"):
        run(scope)
    # The spool declares times complete that nobody has computed: they may not be missing further down.
    assert out_of(tmp_path).frontier() == Antichain.of(30)
    assert open_log(str(tmp_path / "new")).frontier() == Antichain.of(0)
    shutil.rmtree(tmp_path / "spool")
    run(both("out", "new"))
    assert times_in(tmp_path) == list(range(50))
    assert open_log(str(tmp_path / "new")).messages()["_time"].to_pylist() == list(range(50))
