"""The engine: who is ready, what a failure costs, what is owned, how work is cut, which steps share a job."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import plus
from spark_timely.dataflow.engine import steps as engine_steps
from spark_timely.dataflow.engine.cutting import cut_range
from spark_timely.dataflow.engine.outputs import drop_output, newest_note
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import OperatorError, OwnershipError, SchemaMismatchError, StorageError
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.protocol.replay import WHOLE, FileBounds, Limits, TimeCounts
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.work import advance_all
from tests.property.test_dataflow import runner, with_runner

SCHEMA = pa.schema([("n", pa.int64())])


def engine(scope: Scope, **settings: object) -> Engine:
    return Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of, **settings)  # type: ignore[arg-type]


def broken(rows: pa.Table) -> pa.Table:
    if rows.num_rows and pc.max(rows["n"]).as_py() >= 15:
        msg = "fifteen"
        raise ValueError(msg)
    return rows.select(["n"])


def test_failure_stops_its_output_alone_and_leaves_no_file(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    rows = scope.replay(log)
    rows.map(broken).capture(str(tmp_path / "bad"))
    rows.aggregate(n=count()).capture(str(tmp_path / "good"))
    made = engine(scope, limits=Limits(times=10), workers=2)
    with pytest.raises(
        OperatorError, match="operator 'map_2' at times from \\[10\\] to \\[20\\]: found ValueError: fifteen"
    ):
        made.advance(runner(scope.storage))
    bad, good = open_log(str(tmp_path / "bad")), open_log(str(tmp_path / "good"))
    assert (bad.frontier(), good.frontier()) == (Antichain.of(10), Antichain.of(30))
    on_disk = {f"_event=message/{name}" for name in bad.core.storage.names("_event=message")}
    assert on_disk == set(bad.core.files().paths.tolist())


def test_who_loses_a_race_deletes_its_files_and_goes_on(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    scope.replay(log).filter(pc.field("n") >= 0).capture(str(tmp_path / "out"))
    first, second = engine(scope, limits=Limits(times=10)), engine(scope)
    turns = []

    def other() -> None:
        if not turns:
            turns.append(second.advance(runner(scope.storage)))

    done = first.advance(runner(scope.storage, other))
    assert [step.won for step in done] == [False]
    assert [(step.won, step.n_rows, step.upper.to_json()) for step in turns[0]] == [(True, 90, [30])]
    out = open_log(str(tmp_path / "out"))
    on_disk = {f"_event=message/{name}" for name in out.core.storage.names("_event=message")}
    assert on_disk == set(out.core.files().paths.tolist())


def test_steps_take_what_the_limits_allow(tmp_path: Path, log: Log) -> None:
    scope = Scope("flow")
    scope.replay(log).capture(str(tmp_path / "out"))
    done = engine(scope, limits=Limits(times=12)).advance(runner(scope.storage))
    assert [step.upper.to_json() for step in done] == [[12], [24], [30]]
    assert [step.n_rows for step in done] == [36, 36, 18]
    assert engine(scope).advance(runner(scope.storage)) == []


def test_output_of_another_dataflow_or_columns_is_refused(tmp_path: Path, log: Log) -> None:
    mine, other, changed = Scope("mine"), Scope("other"), Scope("mine")
    mine.replay(log).capture(str(tmp_path / "out"))
    other.replay(log).capture(str(tmp_path / "out"))
    changed.replay(log).select(m=pc.field("n")).capture(str(tmp_path / "out"))
    engine(mine)
    with pytest.raises(OwnershipError, match="owned by 'dataflow mine', not by 'dataflow other'"):
        engine(other)
    with pytest.raises(SchemaMismatchError, match=r"operator 'capture_3': found log .* with other columns"):
        engine(changed)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_whole_times_are_cut_into_ranges_that_follow_each_other(log: Log, workers: int) -> None:
    view = Scope("flow").replay(log).aggregate(n=count()).view
    files = catalog_of(log)
    lo, hi = Antichain.of(2), Antichain.of(27)
    upper, _, tasks = cut_range(view, lambda _: files(), lo, hi, output=0, seq=1, limits=Limits(), workers=workers)
    assert upper == hi
    assert len(tasks) == workers
    assert [tasks[0].lower, *(task.upper for task in tasks)] == [*(task.lower for task in tasks), hi]
    assert all(share.start == 0 and share.stop == WHOLE for task in tasks for share in task.shares[log.path])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_rows_are_cut_by_bytes_and_each_part_is_read_once(log: Log, workers: int) -> None:
    view = Scope("flow").replay(log).view
    files = catalog_of(log)
    _, _, tasks = cut_range(
        view, lambda _: files(), Antichain.of(0), Antichain.of(30), output=0, seq=1, limits=Limits(), workers=workers
    )
    assert len(tasks) == workers
    covered: dict[str, list[tuple[int, int]]] = {}
    for task in tasks:
        for share in task.shares[log.path]:
            covered.setdefault(share.path, []).append((share.start, share.stop))
    assert len(covered) == 3
    for pieces in covered.values():
        ends = sorted(pieces)
        assert ends[0][0] == 0
        assert ends[-1][1] == WHOLE
        assert all(left[1] == right[0] for left, right in itertools.pairwise(ends))


class Untouched:
    """Files of a log that nobody else writes to."""

    def look_into(self, chosen: object) -> None:
        """Find nothing."""


@pytest.mark.parametrize("rowwise", [True, False])
def test_files_of_a_log_read_by_two_paths_are_those_of_either(log: Log, rowwise: bool) -> None:
    """By the first path the range needs one of the two files, by the second path, which is delayed, the other."""

    class Two(Untouched):
        bounds = FileBounds(np.array([10, 10]), np.array([[0], [5]]), np.array([[0], [5]]), np.ones(2, np.bool_))
        paths = np.array(["early", "late"], dtype=object)
        as_of = None

    rows = Scope("flow").replay(log)
    both = rows.concat(rows.delay(plus(5)))
    view = (both if rowwise else both.aggregate(n=count())).view
    ends = Antichain.of(5), Antichain.of(6)
    _, _, tasks = cut_range(view, lambda _: Two(), *ends, output=0, seq=1, limits=Limits(), workers=1)  # type: ignore[arg-type, return-value]
    assert [[share.path for share in task.shares[log.path]] for task in tasks] == [["early", "late"]]


def test_range_within_a_limit_of_bytes_opens_no_file(log: Log) -> None:
    view = Scope("flow").replay(log).view
    files = catalog_of(log)()

    class Closed(Untouched):
        bounds, paths, as_of = files.bounds, files.paths, None

        def counts(self, numbers: object) -> list[object]:
            raise AssertionError(numbers)

    hi = Antichain.of(30)
    limits = Limits(size_bytes=int(files.bounds.sizes.sum()))
    upper, size, tasks = cut_range(
        view,
        lambda _: Closed(),
        Antichain.of(0),
        hi,
        output=0,
        seq=1,
        limits=limits,
        workers=1,  # type: ignore[arg-type, return-value]
    )
    assert (upper, size, len(tasks)) == (hi, limits.size_bytes, 1)
    smaller = Limits(size_bytes=limits.size_bytes - 1)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        cut_range(view, lambda _: Closed(), Antichain.of(0), hi, output=0, seq=1, limits=smaller, workers=1)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("n_times", "pieces"), [(10, [None] * 5), (1, [0] * 3)])
def test_tasks_too_large_become_more_or_are_joined_by_key(log: Log, n_times: int, pieces: list[int | None]) -> None:
    """Ten files of 64 MB: with a time each there are more tasks than were asked for; with one time in all, by key."""
    times = np.arange(10)[:, None] % n_times

    class Large(Untouched):
        bounds = FileBounds(np.full(10, 64 << 20), times, times, np.ones(10, np.bool_))
        paths = np.array([f"file{i}" for i in range(10)], dtype=object)
        as_of = None

        def counts(self, numbers: np.ndarray) -> list[TimeCounts]:
            return [TimeCounts(times[i : i + 1], np.array([100])) for i in numbers]

    view = Scope("flow").replay(log).filter("n > 0").aggregate(by="n", m=count()).view
    workers = 3 if n_times == 1 else 1
    ends = Antichain.of(0), Antichain.of(30)
    _, _, tasks = cut_range(view, lambda _: Large(), *ends, output=0, seq=1, limits=Limits(), workers=workers)
    assert [task.piece for task in tasks] == pieces
    covered: dict[str, int] = {}
    for task in tasks:
        for share in task.shares[log.path]:
            covered[share.path] = covered.get(share.path, 0) + share.stop - share.start
    assert covered == {f"file{i}": WHOLE for i in range(10)}


class Jobs:
    """Runs jobs; keeps the ranges of the steps of each, and lets each step take some seconds."""

    def __init__(self, scope: Scope, clock: ManualClock, step_s: Callable[[int], float] = lambda _: 0.0) -> None:
        self.run, self.clock, self.step_s = runner(scope.storage), clock, step_s
        self.steps: list[list[tuple[int, int]]] = []

    def __call__(self, plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        ranges = {task.output: (task.lower.elements[0][0], task.upper.elements[0][0]) for task in tasks}
        self.steps.append(list(ranges.values()))
        self.clock.advance(len(ranges) * self.step_s(len(self.steps)))
        found: list[TaskResult] = self.run(plans, tasks)
        return found

    @property
    def sizes(self) -> list[int]:
        return [len(each) for each in self.steps]


def made_of(tmp_path: Path, log: Log, times: int = 1, **settings: object) -> tuple[Scope, Engine, ManualClock]:
    scope, clock = Scope("flow"), ManualClock()
    scope.replay(log).capture(str(tmp_path / "out"))
    return scope, engine(scope, limits=Limits(times=times), now=clock, **settings), clock


def only_named_files(path: Path) -> bool:
    log = open_log(str(path))
    return {f"_event=message/{name}" for name in log.core.storage.names("_event=message")} == set(
        log.core.files().paths.tolist()
    )


def test_jobs_have_more_steps_as_long_as_they_are_quick(tmp_path: Path, log: Log) -> None:
    scope, made, clock = made_of(tmp_path, log)
    jobs = Jobs(scope, clock, lambda _: 0.1)
    done = advance_all(with_runner([made], jobs), now=clock)
    assert jobs.sizes == [1, 2, 4, 8, 15]
    assert [time for job in jobs.steps for time in job] == [(time, time + 1) for time in range(30)]
    assert [(step.lower.to_json(), step.n_rows, step.n_tasks, step.won) for step in done] == [
        ([time], 3, 1, True) for time in range(30)
    ]
    assert open_log(str(tmp_path / "out")).core.stream("main").seq == 30  # type: ignore[union-attr]


def test_steps_of_a_job_take_a_second_while_news_may_come(tmp_path: Path, log: Log) -> None:
    scope, made, clock = made_of(tmp_path, log)
    # From the tenth job on the same work takes four times as long.
    jobs = Jobs(scope, clock, lambda job: 0.3 if job < 8 else 1.2)
    advance_all(with_runner([made], jobs), lives=True, now=clock)
    while made.rest == 0.0:
        advance_all(with_runner([made], jobs), lives=True, now=clock)
    assert jobs.sizes == [1, 2, 3, 3, 3, 3, 3, 3, *[1] * 9]


def test_steps_of_a_job_stay_within_the_bytes_of_one(tmp_path: Path, log: Log) -> None:
    size = int(log.core.files().sizes.sum())
    scope, clock = Scope("flow"), ManualClock()
    scope.replay(log).capture(str(tmp_path / "out"))
    jobs = Jobs(scope, clock)
    # A time has a thirtieth of the bytes, about: three and a half of them.
    limits = Limits(times=1, size_bytes=size * 7 // 60)
    engine(scope, limits=limits, now=clock).advance(jobs)
    assert jobs.sizes[:3] == [1, 2, 3]
    assert max(jobs.sizes) == 3
    assert sum(jobs.sizes) == 30


def test_drop_between_two_appends_of_a_job_ends_it(tmp_path: Path, log: Log) -> None:
    scope, made, clock = made_of(tmp_path, log, run="one")
    append, left = made._outputs.append, [5]

    def dropping(*args: object) -> object:
        left[0] -= 1
        if not left[0]:
            drop_output(open_log(str(tmp_path / "out")), scope.sinks[0], "one")
        return append(*args)  # type: ignore[arg-type]

    made._outputs.append = dropping  # type: ignore[method-assign, assignment]
    jobs = Jobs(scope, clock)
    done = made.advance(jobs)
    assert jobs.sizes == [1, 2, 4]
    assert [step.won for step in done] == [True] * 4 + [False]
    assert made.dropped
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(4)
    assert only_named_files(tmp_path / "out")


def test_steps_before_one_whose_job_fails_stand(tmp_path: Path, log: Log) -> None:
    scope, clock = Scope("flow"), ManualClock()
    for name in ("out", "other"):
        scope.replay(log).capture(str(tmp_path / name))
    made = engine(scope, limits=Limits(times=1), now=clock, run="one")
    jobs, tried = Jobs(scope, clock), []

    def dying(plans: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        mine = [task for task in tasks if plans[task.output].name == "capture_2"]
        if any(task.lower == Antichain.of(4) for task in mine):
            tried.append([task.lower.elements[0][0] for task in mine])
            msg = "a worker process was killed"
            raise RuntimeError(msg)
        return jobs(plans, tasks)

    with pytest.raises(RuntimeError, match="a worker process was killed"):
        made.advance(dying)
    assert tried == [[3, 4, 5, 6], [3, 4, 5, 6], [4]], "as one job, for each output, for each step until one fails"
    out = open_log(str(tmp_path / "out"))
    failure = newest_note(out, scope.sinks[0]).failure
    assert failure is not None
    assert "a worker process was killed" in failure.message
    assert out.frontier() == Antichain.of(4)
    assert open_log(str(tmp_path / "other")).frontier() == Antichain.of(30)
    assert all(only_named_files(tmp_path / name) for name in ("out", "other"))
    engine(scope, limits=Limits(times=1), now=clock).advance(jobs)
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(30)


def test_step_that_cannot_be_planned_fails_where_it_is_the_first(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, made, clock = made_of(tmp_path, log)
    asked = []

    def unreadable(view: object, files: object, lo: Antichain, hi: Antichain, **settings: object) -> object:
        asked.append(lo.elements[0][0])
        if lo == Antichain.of(5):
            msg = "could not open a file"
            raise StorageError(msg)
        return cut_range(view, files, lo, hi, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(engine_steps, "cut_range", unreadable)
    jobs = Jobs(scope, clock)
    with pytest.raises(StorageError, match="could not open a file"):
        made.advance(jobs)
    assert asked == [0, 1, 2, 3, 4, 5, 5]
    assert open_log(str(tmp_path / "out")).frontier() == Antichain.of(5)
