"""What fails stands still with what depends on it, is told in its log, and keeps nothing else from going on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import ceil_to, plus, windows
from spark_timely.dataflow.engine.explain import explain, metrics, outputs
from spark_timely.dataflow.engine.outputs import drop_output, failure_of
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import LogMissingError, OperatorError, StorageError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.note import OutputFailure
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of, run_one
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeType
from spark_timely.work import advance_all, rest_of
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("n", pa.int64())])


def engine(scope: Scope, run: str = "run", **settings: Any) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, run=run, **settings)


def more(log: Log, upper: int | None) -> None:
    """Let the input go on by a row, and close it if no upper is given."""
    at = log.frontier().elements[0][0]
    log.refresh()
    log.writer(owner="test").append(pa.table({"_time": [at], "n": [at]}), advance_to=[] if upper is None else upper)
    log.refresh()


def frontier(path: Path) -> Antichain:
    return open_log(str(path)).frontier()


class Broken:
    """A function that fails until it is mended, and counts its calls with rows."""

    def __init__(self) -> None:
        self.calls, self.mended = 0, False

    def __call__(self, rows: pa.Table) -> pa.Table:
        if rows.num_rows:
            self.calls += 1
            if not self.mended and pc.max(rows["n"]).as_py() >= 15:
                msg = "fifteen"
                raise ValueError(msg)
        return rows.select(["n"])


def flow_of(log: str, folder: Path, function: Callable[[pa.Table], pa.Table]) -> Scope:
    """Return a dataflow of an output that fails, one made from it, and one that is not."""
    scope = Scope("flow")
    rows = scope.replay(log)
    rows.map(function).spool(folder / "bad").aggregate(n=count()).capture(str(folder / "below"))
    rows.aggregate(n=count()).capture(str(folder / "good"))
    return scope


def in_process(scope: Scope) -> Callable[[Sequence[OutputPlan], Sequence[Task]], list[TaskResult]]:
    """Run tasks here, with the functions themselves: copies would not count their calls."""
    return lambda plans, tasks: [run_one(task, plans[task.output], scope.storage) for task in tasks]


def test_others_continue_beside_a_failure_not_tried_again(tmp_path: Path, log: Log) -> None:
    function = Broken()
    scope = flow_of(log.path, tmp_path, function)
    made = engine(scope)
    for upper in (30, 31, 32):
        advance_all(with_runner([made], in_process(scope)), lives=True)
        assert (frontier(tmp_path / "bad"), frontier(tmp_path / "below")) == (Antichain.of(0), Antichain.of(0))
        assert frontier(tmp_path / "good") == Antichain.of(upper)
        assert [str(error) for error in made.failures] == [str(made.failures[0])]
        more(log, upper + 1)
    assert function.calls == 1
    bad = open_log(str(tmp_path / "bad"))
    assert bad.core.files().paths.size == 0
    assert list(bad.core.storage.names("_event=message")) == []
    assert bad.verify().legal
    # A restart tries again, and goes on where the outputs are.
    function.mended = True
    scope = flow_of(log.path, tmp_path, function)
    assert failure_of(open_log(str(tmp_path / "bad")), scope.sinks[0]) is not None
    advance_all(with_runner([engine(scope, "next")], in_process(scope)), lives=True)
    assert {frontier(tmp_path / name) for name in ("bad", "below", "good")} == {Antichain.of(33)}
    assert failure_of(open_log(str(tmp_path / "bad")), scope.sinks[0]) is None
    assert open_log(str(tmp_path / "bad")).messages().num_rows == 93


@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize("delay", [plus(10), ceil_to(1000), windows(40, every=20)])
def test_row_that_cannot_be_delayed_is_refused_also_late(tmp_path: Path, delay: Any, kind: str) -> None:
    """The output does not close before its input does: else nobody would look at what comes then."""
    log = create_log(tmp_path / "in", pa.schema([("n", pa.int64())]), times=(kind,), minimum=(0,))
    writer = log.writer(owner="o")
    scope = Scope("late")
    scope.replay(log).delay(delay).capture(tmp_path / "out")
    high = TimeType(kind).hi
    writer.append(pa.table({"_time": TimeType(kind).to_arrow([5]), "n": [1]}), advance_to=high - 2)
    engine(scope).advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    assert out.frontier() == Antichain.of(high)
    writer.append(pa.table({"_time": TimeType(kind).to_arrow([high - 1]), "n": [2]}), advance_to=high)
    writer.close()
    with pytest.raises(OperatorError, match=f"time={high - 1}, which it would delay past the greatest time"):
        engine(scope).advance(runner(scope.storage))
    out.refresh()
    assert out.frontier() == Antichain.of(high)


def test_failure_is_told_in_plan_and_numbers_from_any_process(tmp_path: Path, log: Log) -> None:
    scope = flow_of(log.path, tmp_path, Broken())
    with pytest.raises(OperatorError, match=r"'map_2' at times from \[0\] to \[30\]: found ValueError: fifteen"):
        engine(scope).advance(runner(scope.storage))
    told = flow_of(log.path, tmp_path, lambda rows: rows)
    failure = failure_of(open_log(str(tmp_path / "bad")), told.sinks[0], run="run")
    assert failure is not None
    assert (failure.output, failure.operator, failure.lower, failure.upper) == ("capture_3", "map_2", "[0]", "[30]")
    assert isinstance(failure.error, OperatorError)
    assert failure_of(open_log(str(tmp_path / "bad")), told.sinks[0], run="another") is None
    assert [state.failure for state in outputs(told)] == [failure, None, None]
    lines = [line for line in explain(told).splitlines() if "stopped: " in line]
    assert lines == [f"    stopped: {failure.error}"]
    assert "found ValueError: fifteen" in lines[0]
    found = {(each.operator, each.output): each.failure for each in metrics(told)}
    assert found["map_2", "capture_3"] == found["capture_3", "capture_3"] == failure.message
    assert found["capture_8", "capture_8"] is None


@dataclass(frozen=True)
class Frozen(Exception):
    why: str


def test_function_may_raise_an_exception_that_cannot_be_changed(tmp_path: Path, log: Log) -> None:
    def fail(rows: pa.Table) -> pa.Table:
        if rows.num_rows:
            raise Frozen("row 7 has no colour")
        return rows.select(["n"])

    scope = flow_of(log.path, tmp_path, fail)
    with pytest.raises(
        OperatorError, match=r"'map_2' at times from \[0\] to \[30\]: found Frozen: row 7 has no colour"
    ):
        engine(scope).advance(runner(scope.storage))
    failure = failure_of(open_log(str(tmp_path / "bad")), scope.sinks[0])
    assert failure is not None
    assert (failure.operator, failure.lower, failure.upper) == ("map_2", "[0]", "[30]")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def test_exception_without_a_text_is_named_by_its_type(tmp_path: Path, log: Log) -> None:
    def fail(rows: pa.Table) -> pa.Table:
        if rows.num_rows:
            raise Mute
        return rows.select(["n"])

    scope = flow_of(log.path, tmp_path, fail)
    with pytest.raises(OperatorError, match=r"'map_2' at times from .* found Mute: its text cannot be shown"):
        engine(scope).advance(runner(scope.storage))
    failure = failure_of(open_log(str(tmp_path / "bad")), scope.sinks[0])
    assert failure is not None
    assert "Mute" in failure.message


def test_query_ends_where_nothing_is_left_that_could_go_on(tmp_path: Path, log: Log) -> None:
    function = Broken()
    scope = flow_of(log.path, tmp_path, function)
    made = engine(scope)
    advance_all(with_runner([made], in_process(scope)), lives=True)
    assert made.may_move
    more(log, None)
    with pytest.raises(OperatorError, match="fifteen"):  # the one that did not fail is complete
        advance_all(with_runner([made], in_process(scope)), lives=True)
    assert not made.may_move
    assert frontier(tmp_path / "good").is_empty


def test_other_dataflows_continue_and_one_that_recovers_too(tmp_path: Path, log: Log) -> None:
    broken, fine = Scope("broken"), Scope("fine")
    function = Broken()
    broken.replay(log).map(function).capture(str(tmp_path / "bad"))
    fine.replay(log).capture(str(tmp_path / "good"))
    engines = [engine(broken), engine(fine)]
    both = Scope("both")
    both.storage = {**broken.storage, **fine.storage}
    for upper in (30, 31):
        advance_all(with_runner(engines, in_process(both)), lives=True)
        assert (frontier(tmp_path / "bad"), frontier(tmp_path / "good")) == (Antichain.of(0), Antichain.of(upper))
        more(log, upper + 1)
    # Another copy, with the function mended, gets past: this one goes on behind it.
    again, other = Scope("broken"), Broken()
    other.mended = True
    again.replay(log).map(other).capture(str(tmp_path / "bad"))
    engine(again, "other").advance(runner(again.storage))
    assert frontier(tmp_path / "bad") == Antichain.of(32)
    more(log, 33)
    function.mended = True
    advance_all(with_runner(engines, in_process(both)), lives=True)
    assert (frontier(tmp_path / "bad"), frontier(tmp_path / "good")) == (Antichain.of(33), Antichain.of(33))
    assert engines[0].failures == []


def test_two_copies_that_fail_are_told_each(tmp_path: Path, log: Log) -> None:
    scope = flow_of(log.path, tmp_path, Broken())
    for run in ("one", "two"):
        with pytest.raises(OperatorError):
            engine(scope, run).advance(runner(scope.storage))
    bad = open_log(str(tmp_path / "bad"))
    found = [failure_of(bad, scope.sinks[0], run=run) for run in ("one", "two", "three")]
    assert [None if each is None else each.run for each in found] == ["one", "two", None]


class Dying:
    """Runs tasks; jobs of one output fail as long as it is not mended."""

    def __init__(self, scope: Scope, output: str, mended: Callable[[], bool]) -> None:
        self.run, self.output, self.mended, self.jobs = runner(scope.storage), output, mended, 0

    def __call__(self, plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        if {plans[task.output].name for task in tasks} == {self.output}:
            self.jobs += 1
        if not self.mended() and any(plans[task.output].name == self.output for task in tasks):
            msg = f"a worker process was killed in job {self.jobs}"
            raise RuntimeError(msg)
        found: list[TaskResult] = self.run(plans, tasks)
        return found


def good_and_bad(log: Log, folder: Path) -> Scope:
    scope = Scope("flow")
    rows = scope.replay(log)
    rows.filter("n >= 0").capture(str(folder / "bad"))
    rows.aggregate(n=count()).capture(str(folder / "good"))
    return scope


def test_failed_job_is_tried_after_growing_pauses_and_noted_once(tmp_path: Path, log: Log) -> None:
    scope, clock = good_and_bad(log, tmp_path), ManualClock()
    mended: list[bool] = []
    dying = Dying(scope, "capture_3", lambda: bool(mended))
    made = engine(scope, now=clock)
    rests = []
    for upper in (31, 32, 33, 34):
        advance_all(with_runner([made], dying), lives=True, now=clock)
        rest = rest_of([made])
        assert rest is not None
        rests.append(rest)
        more(log, upper)
        before = dying.jobs
        clock.advance(rest * 0.75)
        # An input moved: the others go on, it is not tried too soon.
        advance_all(with_runner([made], dying), lives=True, now=clock)
        assert dying.jobs == before
        assert frontier(tmp_path / "good") == Antichain.of(upper)
        clock.advance(rest * 0.25)
    assert rests == [0.5, 1.0, 2.0, 4.0]
    bad = open_log(str(tmp_path / "bad"))
    state = bad.core.stream("main")
    assert state is not None
    assert state.seq == 1, "told once, though each job says it in other words"
    failure = failure_of(bad, scope.sinks[0])
    assert failure is not None
    assert (failure.kind, failure.operator) == ("RuntimeError", "capture_3")
    mended.append(True)  # no input moves
    advance_all(with_runner([made], dying), lives=True, now=clock)
    assert frontier(tmp_path / "bad") == Antichain.of(34)
    assert rest_of([made]) is None
    bad.refresh()
    assert failure_of(bad, scope.sinks[0]) is None
    # The next failure begins with the first pause.
    mended.clear()
    more(log, 35)
    advance_all(with_runner([made], dying), lives=True, now=clock)
    assert rest_of([made]) == 0.5


def test_query_whose_only_output_fails_for_a_moment_lives_on(tmp_path: Path, log: Log) -> None:
    scope, clock = Scope("flow"), ManualClock()
    scope.replay(log).capture(str(tmp_path / "out"))
    dying = Dying(scope, "capture_2", lambda: clock() >= 0.5)
    made = engine(scope, now=clock)
    advance_all(with_runner([made], dying), lives=True, now=clock)
    assert made.may_move
    clock.advance(0.5)
    advance_all(with_runner([made], dying), lives=True, now=clock)
    assert frontier(tmp_path / "out") == Antichain.of(30)


def test_ending_query_retries_while_others_work_and_then_fails(tmp_path: Path, log: Log) -> None:
    scope, clock = good_and_bad(log, tmp_path), ManualClock()
    good: list[Antichain] = []

    def pause(seconds: float) -> None:
        good.append(frontier(tmp_path / "good"))
        clock.advance(seconds)

    dying = Dying(scope, "capture_3", lambda: False)
    with pytest.raises(
        RuntimeError, match="a worker process was killed in job 5"
    ):  # of two steps together, then of one
        advance_all(
            with_runner([engine(scope, now=clock, tries=4, limits=Limits(times=10))], dying), now=clock, pause=pause
        )
    assert clock() == 0.5 + 1 + 2
    assert set(good) == {Antichain.of(30)}, "nothing is waited for before the others are done"
    # One that passes in time is not seen by anybody who looks at the end.
    again = Dying(scope, "capture_3", lambda: clock() >= 5)
    advance_all(with_runner([engine(scope, now=clock, tries=4)], again), now=clock, pause=pause)
    assert frontier(tmp_path / "bad") == Antichain.of(30)
    assert failure_of(open_log(str(tmp_path / "bad")), scope.sinks[0]) is None


def test_failure_of_a_function_is_waited_for_by_nobody(tmp_path: Path, log: Log) -> None:
    scope = flow_of(log.path, tmp_path, Broken())

    def pause(seconds: float) -> None:
        raise AssertionError(seconds)

    with pytest.raises(OperatorError, match="fifteen"):
        advance_all(with_runner([engine(scope, tries=4)], in_process(scope)), pause=pause)


def test_input_unreadable_for_a_moment_is_looked_at_again(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, clock = good_and_bad(log, tmp_path), ManualClock()
    made = engine(scope, now=clock)
    advance_all(with_runner([made], runner(scope.storage)), lives=True, now=clock)
    looks = []

    def unreachable() -> bool:
        looks.append(clock())
        msg = "could not reach the storage"
        raise StorageError(msg)

    monkeypatch.setattr(made._logs[log.path].core, "refresh", unreachable)
    advance_all(with_runner([made], runner(scope.storage)), lives=True, now=clock)
    bad = open_log(str(tmp_path / "bad"))
    assert failure_of(bad, scope.sinks[0], run="run") is not None
    assert rest_of([made]) == 0.5
    monkeypatch.undo()
    clock.advance(0.5)
    advance_all(with_runner([made], runner(scope.storage)), lives=True, now=clock)
    assert looks == [0.0]
    assert made.failures == []
    assert rest_of([made]) is None
    bad.refresh()
    assert failure_of(bad, scope.sinks[0], run="run") is None, "told although nothing was appended"


def test_unreachable_output_ends_the_query_after_some_tries(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, clock = good_and_bad(log, tmp_path), ManualClock()
    made = engine(scope, now=clock, tries=3)

    def unreachable() -> bool:
        msg = "could not reach the storage"
        raise StorageError(msg)

    monkeypatch.setattr(made._logs[str(tmp_path / "bad")].core, "refresh", unreachable)
    for _ in range(2):
        advance_all(with_runner([made], runner(scope.storage)), lives=True, now=clock)
        clock.advance(rest_of([made]) or 0.0)
    assert frontier(tmp_path / "good") == Antichain.of(30)
    with pytest.raises(StorageError, match="could not reach"):
        advance_all(with_runner([made], runner(scope.storage)), lives=True, now=clock)


def test_failure_that_cannot_be_told_ends_the_query(tmp_path: Path, log: Log) -> None:
    scope = flow_of(log.path, tmp_path, lambda rows: rows.select(["n"]))
    made = engine(scope)
    advance_all(with_runner([made], runner(scope.storage)), lives=True)
    shutil.rmtree(tmp_path / "below")
    more(log, 31)
    with pytest.raises(LogMissingError, match="below"):
        advance_all(with_runner([made], runner(scope.storage)), lives=True)
    assert frontier(tmp_path / "good") == frontier(tmp_path / "bad") == Antichain.of(31)


def test_failure_beside_another_copy_that_commits_is_still_told(tmp_path: Path, log: Log) -> None:
    scope = flow_of(log.path, tmp_path, Broken())
    made = engine(scope)
    append = made._outputs._record_failure

    def raced(sink: object, state: object, error: Exception) -> bool:
        open_log(str(tmp_path / "bad")).advance("main", [0], reason="by hand")
        return append(sink, state, error)  # type: ignore[arg-type]

    made._outputs._record_failure = raced  # type: ignore[method-assign, assignment]
    advance_all(with_runner([made], runner(scope.storage)), lives=True)
    assert failure_of(open_log(str(tmp_path / "bad")), scope.sinks[0], run="run") is not None
    assert made.unreported_failures == []


def test_dropped_dataflow_appends_nothing_and_others_continue(tmp_path: Path, log: Log) -> None:
    gone, stays = Scope("gone"), Scope("stays")
    for name in ("one", "two"):
        gone.replay(log).capture(str(tmp_path / name))
    stays.replay(log).capture(str(tmp_path / "other"))
    engines = [engine(gone), engine(stays)]
    storage = {**gone.storage, **stays.storage}
    advance_all(with_runner(engines, runner(storage)), lives=True)
    more(log, 31)

    def drop() -> None:  # while the job runs
        for sink in gone.sinks:
            drop_output(open_log(sink.path), sink, "run")

    advance_all(with_runner(engines, runner(storage, drop)), lives=True)
    assert engines[0].dropped
    assert not engines[1].dropped
    assert {frontier(tmp_path / name) for name in ("one", "two")} == {Antichain.of(30)}
    assert frontier(tmp_path / "other") == Antichain.of(31)
    out = open_log(str(tmp_path / "one"))
    assert {f"_event=message/{name}" for name in out.core.storage.names("_event=message")} == set(
        out.core.files().paths.tolist()
    )
    assert out.verify().legal
    # Another run goes on with it, and the one that it was dropped from does not come back.
    engine(gone, "next").advance(runner(gone.storage))
    more(log, 32)
    advance_all(with_runner(engines, runner(storage)), lives=True)
    assert {frontier(tmp_path / name) for name in ("one", "two")} == {Antichain.of(31)}
    assert frontier(tmp_path / "other") == Antichain.of(32)


def test_drop_is_seen_behind_commits_of_another_run(tmp_path: Path, log: Log) -> None:
    gone = Scope("gone")
    gone.replay(log).capture(str(tmp_path / "one"))
    made = engine(gone)
    drop_output(open_log(str(tmp_path / "one")), gone.sinks[0], "run")
    engine(gone, "next").advance(runner(gone.storage))
    more(log, 31)
    # Also by an engine of that run which is made after it.
    late = Engine("gone", gone.sinks, gone.storage, files_of=catalog_of, run="run")
    for each in (made, late):
        assert each.advance(runner(gone.storage)) == []
        assert each.dropped
    assert frontier(tmp_path / "one") == Antichain.of(30)


def test_failure_is_written_and_read_as_it_is() -> None:
    failure = OutputFailure("capture_2", "map_1", "[0]", "[4]", "OperatorError", "could not", None, "run")
    error = failure.error
    assert isinstance(error, OperatorError)
    assert (error.operator, error.lower, error.upper) == ("map_1", "[0]", "[4]")
    stored = OutputFailure(
        "capture_2", "capture_2", None, None, "DataLossError", "could not", "restore it", "run"
    ).error
    assert isinstance(stored, StorageError)
    assert stored.hint == "restore it"
