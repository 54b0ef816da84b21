"""Plans of outputs: another one under the same name is refused, unless it is said to replace the first."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count, sum_of
from spark_timely.dataflow.engine import outputs as dataflow_outputs
from spark_timely.dataflow.engine.explain import explain, outputs
from spark_timely.dataflow.engine.outputs import check_plans, newest_note
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import DataLossError, InvalidUsageError, OperatorError, OwnershipError, PlanMismatchError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import StreamState
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from spark_timely.work import advance_all
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("n", pa.int64())])


def engine(scope: Scope, run: str = "run") -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=10), run=run)


def step_of(made: Engine, scope: Scope) -> None:
    made.begin()
    with_runner(made, runner(scope.storage)).step()


def kept(log: Log, folder: Path, condition: str, replaces: str | None = None) -> Scope:
    scope = Scope("flow")
    scope.replay(log).filter(condition).capture(str(folder / "out"), replaces=replaces)
    return scope


def plan_of(scope: Scope, number: int = 0) -> str:
    plan = outputs(scope)[number].plan
    assert plan is not None
    return plan


def content(folder: Path, name: str = "out") -> tuple[int, int, list[str]]:
    log = open_log(str(folder / name))
    state = log.core.stream("main")
    assert state is not None
    return state.seq, log.core.version, sorted(str(path) for path in (folder / name).rglob("*.parquet"))


def more(log: Log, frontier: int | None) -> None:
    at = log.frontier().elements[0][0]
    log.writer(owner="test").append(
        pa.table({"_time": [at], "n": [at]}), advance_to=[] if frontier is None else frontier
    )


def test_other_dataflow_of_one_name_is_refused_writing_nothing(tmp_path: Path, log: Log) -> None:
    first, second = kept(log, tmp_path, "n < 15"), kept(log, tmp_path, "n >= 15")
    engines = [engine(first), engine(second)]  # both begin before either has written
    step_of(engines[0], first)
    before = content(tmp_path)
    mine, other = plan_of(first), plan_of(second)
    assert mine != other
    with pytest.raises(PlanMismatchError) as caught:
        engines[1].advance(runner(second.storage))
    error = caught.value
    assert isinstance(error, OwnershipError)
    assert (error.expected, error.found) == (other, mine)
    assert f"found plan='{mine}' of 'dataflow flow', expected plan='{other}'" in error.message
    assert "it was made by ['filter n < 15'], now there is ['filter n >= 15']" in error.message
    assert f"say replaces='{mine}' where" in str(error)
    assert content(tmp_path) == before
    engines[0].advance(runner(first.storage))
    assert open_log(str(tmp_path / "out")).messages()["n"].to_pylist() == [n for n in range(15) for _ in range(3)]
    with pytest.raises(PlanMismatchError):
        check_plans(second.sinks, {path: open_log(path) for path in second.storage})
    check_plans(first.sinks, {path: open_log(path) for path in first.storage})


def test_other_plan_is_refused_by_the_commit_however_late(
    tmp_path: Path, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The look finds no plan, the rows are computed, and only then the other dataflow appends."""
    first, second = kept(log, tmp_path, "n < 15"), kept(log, tmp_path, "n >= 15")
    run = runner(second.storage)

    def beaten(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        found: list[TaskResult] = run(plans, tasks)
        if not open_log(str(tmp_path / "out")).core.files().paths.size:
            step_of(engine(first), first)
        return found

    made = engine(second)
    with caplog.at_level("INFO", "spark_timely.dataflow"), pytest.raises(PlanMismatchError, match="filter n < 15"):
        made.advance(beaten)
    assert "another copy" not in caplog.text, "a race that was lost, and a look that noticed afterwards"
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(10)
    assert len(open_log(str(tmp_path / "out")).core.files().paths) == len(
        list((tmp_path / "out").rglob("*message*/*.parquet"))
    )


def test_commit_that_is_refused_is_the_failure_of_its_step(tmp_path: Path, log: Log) -> None:
    first, second = kept(log, tmp_path, "n < 15"), kept(log, tmp_path, "n >= 15")
    run = runner(second.storage)

    def beaten(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        found: list[TaskResult] = run(plans, tasks)
        step_of(engine(first), first)
        return found

    made = engine(second)
    with_runner(made, beaten).step()
    assert [type(error) for error in made.failures] == [PlanMismatchError]


def test_meant_change_replaces_the_plan_and_refuses_the_old_copy(tmp_path: Path, log: Log) -> None:
    old = kept(log, tmp_path, "n < 15")
    running = engine(old, "old")
    running.advance(runner(old.storage))
    new = kept(log, tmp_path, "n >= 15", replaces=plan_of(old))
    check_plans(new.sinks, {path: open_log(path) for path in new.storage})
    made = engine(new, "new")
    # Before it has anything to compute: nothing moves, and the old copy is refused all the same.
    more(log, 31)
    before = content(tmp_path)
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(30)
    with pytest.raises(PlanMismatchError, match=f"found plan='{plan_of(new)}'.* expected plan='{plan_of(old)}'"):
        advance_all(with_runner([running], runner(old.storage)), lives=True)
    with pytest.raises(PlanMismatchError):
        engine(old, "restarted").advance(runner(old.storage))
    assert content(tmp_path) == before
    made.advance(runner(new.storage))
    # The code may keep on naming the plan before.
    more(log, 32)
    engine(kept(log, tmp_path, "n >= 15", replaces=plan_of(old))).advance(runner(new.storage))
    rows = open_log(str(tmp_path / "out")).messages()["n"].to_pylist()
    assert sorted(rows) == [n for n in range(15) for _ in range(3)] + [30, 31]


def test_plan_that_was_taken_back_is_lost_to_a_copy_that_runs(tmp_path: Path, log: Log) -> None:
    """Consent is given when a dataflow begins, not for as long as it runs."""
    old = kept(log, tmp_path, "n < 15")
    engine(old).advance(runner(old.storage))
    new = kept(log, tmp_path, "n >= 15", replaces=plan_of(old))
    made = engine(new)
    engine(kept(log, tmp_path, "n < 15", replaces=plan_of(new)))
    with pytest.raises(PlanMismatchError, match=f"found plan='{plan_of(old)}'"):
        made.advance(runner(new.storage))


def test_plan_that_replaces_itself_writes_nothing(tmp_path: Path, log: Log) -> None:
    scope = kept(log, tmp_path, "n < 15")
    engine(scope).advance(runner(scope.storage))
    before = content(tmp_path)
    engine(kept(log, tmp_path, "n < 15", replaces=plan_of(scope)))
    assert content(tmp_path) == before


def test_plan_is_replaced_although_the_old_copy_appends(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = kept(log, tmp_path, "n < 15")
    running = engine(old)
    running.advance(runner(old.storage))
    more(log, 31)
    append, left = dataflow_outputs._append, [running]

    def beaten(*args: Any, **more: Any) -> StreamState:
        if left:
            left.pop().advance(runner(old.storage))
        return append(*args, **more)

    monkeypatch.setattr(dataflow_outputs, "_append", beaten)
    new = kept(log, tmp_path, "n >= 15", replaces=plan_of(old))
    made = engine(new)
    out = open_log(str(tmp_path / "out"))
    assert (out.frontier(), newest_note(out, new.sinks[0]).plan) == (Antichain.of(31), plan_of(new))
    more(log, 32)
    made.advance(runner(new.storage))
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(32)


def test_failure_of_the_old_plan_is_none_of_the_new_one(tmp_path: Path, log: Log) -> None:
    def failing(rows: pa.Table) -> pa.Table:
        if rows.num_rows and pc.max(rows["n"]).as_py() >= 15:
            raise ValueError(rows.num_rows)
        return rows.select(["n"])

    old = Scope("flow")
    old.replay(log).map(failing).capture(str(tmp_path / "out"))
    with pytest.raises(OperatorError):
        engine(old).advance(runner(old.storage))
    assert [state.failure is None for state in outputs(old)] == [False]
    engine(kept(log, tmp_path, "n < 15", replaces=plan_of(old)))
    assert [state.failure for state in outputs(old)] == [None]
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(10)


def test_plan_that_replaces_another_than_the_logs_is_refused(tmp_path: Path, log: Log) -> None:
    first = kept(log, tmp_path, "n < 15")
    engine(first).advance(runner(first.storage))
    before = content(tmp_path)
    wrong = "1:" + "0" * 32
    second = kept(log, tmp_path, "n >= 15", replaces=wrong)
    match = f"found plan='{plan_of(first)}'.* expected plan='{plan_of(second)}' or replaces='{wrong}'"
    with pytest.raises(PlanMismatchError, match=match):
        check_plans(second.sinks, {path: open_log(path) for path in second.storage})
    with pytest.raises(PlanMismatchError, match=f"found plan='{plan_of(first)}'"):
        engine(second).advance(runner(second.storage))
    assert content(tmp_path) == before
    # Where there is nothing yet, there is nothing to refuse.
    shutil.rmtree(tmp_path / "out")
    engine(second).advance(runner(second.storage))
    assert newest_note(open_log(str(tmp_path / "out")), second.sinks[0]).plan == plan_of(second)


@pytest.mark.parametrize("replaces", ["", "2", "1:xyz", 7, "1:" + "0" * 33])
def test_what_is_no_fingerprint_is_refused_at_once(tmp_path: Path, log: Log, replaces: str) -> None:
    with pytest.raises(InvalidUsageError, match="found replaces="):
        kept(log, tmp_path, "n < 15", replaces=replaces)


def test_plan_survives_advance_by_hand_a_failure_and_a_takeover(tmp_path: Path, log: Log) -> None:
    first, second = kept(log, tmp_path, "n < 15"), kept(log, tmp_path, "n >= 15")
    engine(first).advance(runner(first.storage))
    mine = plan_of(first)
    out = open_log(str(tmp_path / "out"))
    out.advance("main", [31], reason="by hand")
    assert newest_note(out, first.sinks[0]).plan == mine
    with pytest.raises(DataLossError, match="moved by hand"):
        engine(first).advance(runner(first.storage))
    out.refresh()
    note = newest_note(out, first.sinks[0])
    assert (note.plan, note.failure is None) == (mine, False)
    with pytest.raises(PlanMismatchError, match=mine):
        engine(second).advance(runner(second.storage))
    out.writer("main", owner="somebody", takeover=True).advance(40)
    state = out.core.stream("main")
    assert state is not None
    assert state.note.output is not None
    assert state.note.output.plan == mine


def test_output_without_a_step_has_no_plan_and_can_be_mended(tmp_path: Path, log: Log) -> None:
    def failing(rows: pa.Table) -> pa.Table:
        if rows.num_rows:
            raise ValueError(rows.num_rows)
        return rows.select(["n"])

    first = Scope("flow")
    first.replay(log).map(failing).capture(str(tmp_path / "out"))
    with pytest.raises(OperatorError):
        engine(first).advance(runner(first.storage))
    second = kept(log, tmp_path, "n < 15")
    engine(second).advance(runner(second.storage))
    assert open_log(str(tmp_path / "out")).messages().num_rows == 45


def test_other_outputs_continue_beside_one_of_a_changed_plan(tmp_path: Path, log: Log) -> None:
    for n, refused in ((15, False), (16, True)):
        scope = kept(log, tmp_path, f"n < {n}")
        scope.replay(log).aggregate(n=count()).capture(str(tmp_path / "counts"))
        if refused:
            more(log, 31)
            with pytest.raises(PlanMismatchError, match="filter n < 16"):
                advance_all(with_runner([engine(scope)], runner(scope.storage)), lives=True)
        else:
            engine(scope).advance(runner(scope.storage))
    assert open_log(str(tmp_path / "counts")).frontier() == Antichain.of(31)
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(30)


def spooled(
    log: Log, folder: Path, n: int, spool: str = "spool", replaces: Sequence[str | None] = (None, None)
) -> Scope:
    scope = Scope("flow")
    rows = scope.replay(log).filter(f"n < {n}").spool(folder / spool, replaces=replaces[0])
    rows.aggregate(n=count()).capture(str(folder / "out"), replaces=replaces[1])
    return scope


def test_spool_is_named_by_what_it_is_made_from(tmp_path: Path, log: Log) -> None:
    first = spooled(log, tmp_path, 15)
    engine(first).advance(runner(first.storage))
    # Another place for the same rows is the same plan; the spool is made anew, the output goes on.
    more(log, 31)
    moved = spooled(log, tmp_path, 15, "elsewhere")
    assert [plan_of(moved, i) for i in (0, 1)] == [plan_of(first, i) for i in (0, 1)]
    engine(moved).advance(runner(moved.storage))
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(31)
    # Other rows are another plan, of both; each says what it replaces.
    other = spooled(log, tmp_path, 16, "elsewhere")
    assert not {plan_of(other, i) for i in (0, 1)} & {plan_of(first, i) for i in (0, 1)}
    with pytest.raises(PlanMismatchError):
        engine(other).advance(runner(other.storage))
    more(log, 32)
    meant = spooled(log, tmp_path, 16, "elsewhere", [plan_of(first, 0), plan_of(first, 1)])
    engine(meant).advance(runner(meant.storage))
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(32)


def test_spool_that_others_write_too_may_not_be_another_one(tmp_path: Path, log: Log) -> None:
    for name in ("spool", "elsewhere"):
        create_log(str(tmp_path / name), SCHEMA, minimum=(0,), streams=2).writer(owner="me", stream="theirs").append(
            pa.table({"_time": [3], "n": [1000]}), advance_to=100
        )
    scope = spooled(log, tmp_path, 15)
    engine(scope).advance(runner(scope.storage))
    moved = spooled(log, tmp_path, 15, "elsewhere")
    with pytest.raises(DataLossError, match=r"'capture_6': found no log of id=.* made from as '.*/spool'"):
        engine(moved).advance(runner(moved.storage))
    # Somebody who joins a spool later makes no other plan of it.
    shutil.rmtree(tmp_path / "out")
    alone = spooled(log, tmp_path, 15, "alone")
    engine(alone).advance(runner(alone.storage))
    open_log(str(tmp_path / "alone")).writer(owner="me", stream="theirs").append(
        pa.table({"_time": [33], "n": [0]}), advance_to=100
    )
    more(log, 35)
    again = spooled(log, tmp_path, 15, "alone")
    engine(again).advance(runner(again.storage))
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(35)


def test_consent_to_a_replaced_input_is_what_its_error_names(tmp_path: Path, log: Log) -> None:
    first = kept(log, tmp_path, "n < 15")
    engine(first).advance(runner(first.storage))
    mine = plan_of(first)
    shutil.rmtree(log.path)
    made = create_log(log.path, SCHEMA, minimum=(0,))
    made.writer(owner="other").append(pa.table({"_time": [31], "n": [7]}), advance_to=40)
    again = kept(made, tmp_path, "n < 15")
    again.replay(made).capture(str(tmp_path / "rows"))
    # It stops alone, and says so in its log, as every output whose input was replaced.
    going = engine(again, "next")
    check_plans(again.sinks, going._logs)
    advance_all(with_runner([going], runner(again.storage)), lives=True)
    assert open_log(str(tmp_path / "rows")).frontier() == Antichain.of(40)
    failure = newest_note(open_log(str(tmp_path / "out")), again.sinks[0]).failure
    assert failure is not None
    assert isinstance(failure.error, DataLossError)
    assert failure.run == "next"
    assert f"found log '{log.path}' of id=" in failure.message
    # The code is the same, so its plan is no consent.
    with pytest.raises(DataLossError, match="of id="):
        engine(kept(made, tmp_path, "n < 15", replaces=mine)).advance(runner(again.storage))
    assert failure.hint is not None
    consent = failure.hint.rpartition("replaces='")[2].partition("'")[0]
    meant = kept(made, tmp_path, "n < 15", replaces=consent)
    engine(meant).advance(runner(meant.storage))
    out = open_log(str(tmp_path / "out"))
    assert out.frontier() == Antichain.of(40)
    assert out.messages().num_rows == 46
    assert newest_note(out, meant.sinks[0]).inputs[log.path].id == made.core.log_id


def test_complete_output_is_as_it_is_whatever_replaces_it(tmp_path: Path, log: Log) -> None:
    first = kept(log, tmp_path, "n < 15")
    more(log, None)
    engine(first).advance(runner(first.storage))
    before = content(tmp_path)
    second = kept(log, tmp_path, "n >= 15", replaces=plan_of(first))
    assert engine(second).advance(runner(second.storage)) == []
    assert content(tmp_path) == before


def test_new_column_leaves_plans_that_do_not_name_it(tmp_path: Path, log: Log) -> None:
    def both(scope: Scope) -> Scope:
        scope.replay(log.path).aggregate(n=count()).capture(str(tmp_path / "counts"))
        scope.replay(log.path).map(lambda rows: rows.select(["n"])).capture(str(tmp_path / "rows"))
        scope.replay(log.path).unary_notify(lambda _, rows: rows.select(["n"])).capture(str(tmp_path / "times"))
        return scope

    before = both(Scope("flow"))
    engine(before).advance(runner(before.storage))
    log.add_columns(pa.schema([("late", pa.bool_())]))
    more(log, 31)
    after = both(Scope("flow"))
    engine(after).advance(runner(after.storage))
    assert [each.plan for each in outputs(after)] == [each.made_by for each in outputs(after)]


def test_plan_is_shown_and_so_is_another_one_in_the_log(tmp_path: Path, log: Log) -> None:
    first, second = kept(log, tmp_path, "n < 15"), kept(log, tmp_path, "n >= 15")
    assert f"| plan {plan_of(first)} | upper [0]" in explain(first)
    engine(first).advance(runner(first.storage))
    assert f"| plan {plan_of(first)} | upper [30]" in explain(first)
    assert f"| plan {plan_of(second)}, its log was made by {plan_of(first)} | upper [30]" in explain(second)
    made_by = plan_of(first)
    shutil.rmtree(log.path)
    assert f"| plan unknown: an input is missing, its log was made by {made_by} | upper [30]" in explain(first)


def test_outline_in_the_note_is_short_whatever_the_plan(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    rows = scope.replay(log)
    for number in range(40):
        rows = rows.filter(pc.field("n") != number).filter(f"n <> {number}")
    rows.filter("n IN (" + ", ".join(map(str, range(500))) + ")").capture(str(tmp_path / "out"))
    engine(scope).advance(runner(scope.storage))
    outline = newest_note(open_log(str(tmp_path / "out")), scope.sinks[0]).outline
    assert outline is not None
    assert len(outline) <= 510
    assert outline.splitlines()[0] == f"replay of log {log.core.log_id[:8]}"
    assert outline.splitlines()[-1] == "…"


def test_a_collection_is_not_taken_over_by_another_plan(log: Log, tmp_path: Path) -> None:
    def flow(condition: str, **given: Any) -> Scope:
        scope = Scope("flow")
        scope.replay(log).as_updates().filter(condition).capture(str(tmp_path / "out"), **given)
        return scope

    first = flow("n < 15")
    engine(first).advance(runner(first.storage))
    with pytest.raises(PlanMismatchError, match="found plan=") as found:
        engine(flow("n >= 15")).advance(runner(first.storage))
    assert "replaces=" not in str(found.value.hint)
    assert "take back what was never added" in str(found.value.hint)
    with pytest.raises(InvalidUsageError, match="for a collection"):
        flow("n >= 15", replaces=plan_of(first))


def test_what_another_dataflow_remembers_there_is_named(log: Log, tmp_path: Path) -> None:
    def flow(name: str, stream: str) -> Scope:
        scope = Scope(name)
        found = scope.replay(log).aggregate(over="history", m=count(), n=sum_of("n")).select("m")
        found.capture(str(tmp_path / "out"), stream=stream)
        return scope

    engine(flow("one", "a"))
    with pytest.raises(OwnershipError, match="flow one") as found:
        engine(flow("two", "b"))
    assert "what the same operator of the other dataflow remembers" in str(found.value.hint)
