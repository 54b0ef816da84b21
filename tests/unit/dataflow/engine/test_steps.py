"""The engine: who is ready, what a failure costs, what is owned, how work is cut."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import plus
from spark_timely.dataflow.engine.cutting import cut_range
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import OperatorError, OwnershipError, SchemaMismatchError
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.protocol.replay import WHOLE, FileBounds, Limits, TimeCounts
from spark_timely.spark.dataflow_tasks import catalog_of
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import runner

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
    on_disk = {f"_event=message/{name}" for name in bad.storage.names("_event=message")}
    assert on_disk == set(bad.files().paths.tolist())


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
    on_disk = {f"_event=message/{name}" for name in out.storage.names("_event=message")}
    assert on_disk == set(out.files().paths.tolist())


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


@pytest.mark.parametrize("rowwise", [True, False])
def test_files_of_a_log_read_by_two_paths_are_those_of_either(log: Log, rowwise: bool) -> None:
    """By the first path the range needs one of the two files, by the second path, which is delayed, the other."""

    class Two:
        bounds = FileBounds(np.array([10, 10]), np.array([[0], [5]]), np.array([[0], [5]]), np.ones(2, np.bool_))
        paths = np.array(["early", "late"], dtype=object)

    rows = Scope("flow").replay(log)
    both = rows.concat(rows.delay(plus(5)))
    view = (both if rowwise else both.aggregate(n=count())).view
    ends = Antichain.of(5), Antichain.of(6)
    _, _, tasks = cut_range(view, lambda _: Two(), *ends, output=0, seq=1, limits=Limits(), workers=1)  # type: ignore[arg-type, return-value]
    assert [[share.path for share in task.shares[log.path]] for task in tasks] == [["early", "late"]]


def test_range_within_a_limit_of_bytes_opens_no_file(log: Log) -> None:
    view = Scope("flow").replay(log).view
    files = catalog_of(log)()

    class Closed:
        bounds, paths = files.bounds, files.paths

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

    class Large:
        bounds = FileBounds(np.full(10, 64 << 20), times, times, np.ones(10, np.bool_))
        paths = np.array([f"file{i}" for i in range(10)], dtype=object)

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
