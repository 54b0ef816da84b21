"""Graphs that are deep, and graphs with many ways through them: nothing recurses, and each operator is visited once."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import plus
from spark_timely.dataflow.engine.cutting import paths_of
from spark_timely.dataflow.engine.explain import explain, html, metrics, outputs, progress
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.task_runner import run_twice
from spark_timely.dataflow.fingerprint import plans_of
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import joined, leaves_of, packed, steps_of, unpacked
from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import rows_of, stream_of
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import runner

DEPTH = 400


@pytest.fixture
def shallow() -> Iterator[None]:
    """Let anything that goes deeper than half as many calls as there are operators fail."""
    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(used + DEPTH // 2)
    yield
    sys.setrecursionlimit(before)


def chain(stream: Stream, n: int) -> Stream:
    for number in range(n):
        stream = stream.filter(f"n >= {-number}")
    return stream


def ladder(stream: Stream, n: int) -> Stream:
    for number in range(n // 3):
        one, other = stream.branch(f"n > {number % 30}")
        stream = one.concat(other)
    return stream


def delays(stream: Stream, n: int) -> Stream:
    for number in range(n // 2):
        stream = stream.delay(plus(1)).filter(f"n >= {-number}")
    return stream


GRAPHS = {"chain": chain, "ladder": ladder, "delays": delays}


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.usefixtures("shallow")
def test_deep_graph_runs_and_is_described(build: Callable[[Stream, int], Stream], log: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    stream = build(scope.replay(log), DEPTH)
    stream.capture(str(tmp_path / "out"))
    stream.aggregate(n=count()).capture(str(tmp_path / "counts"))
    Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, workers=2).advance(runner(scope.storage))
    found = open_log(str(tmp_path / "out")).messages()
    assert sorted(found["n"].to_pylist()) == sorted(log.messages()["n"].to_pylist())
    assert all(state.upper == state.frontier for state in outputs(scope))
    assert explain(scope).count("\n") > DEPTH // 2
    assert len(metrics(scope)) > DEPTH
    assert [each.done for each in progress(scope, lambda _: catalog_of(log)())] == [90, 90]
    assert "<" in html(scope, "flow")
    assert len(repr(stream.view)) < 100
    assert set(plans_of(scope.sinks, {log.path: log.core.log_id})) == set(scope.sinks)
    (copy,) = unpacked(pickle.loads(cloudpickle.dumps(packed([stream.view]))))
    assert len(steps_of(copy, Antichain.of(0), Antichain.of(9), ("n",))) > DEPTH // 2


@pytest.mark.usefixtures("shallow")
def test_operators_over_history_in_a_chain_do_not_recurse(log: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    stream = scope.replay(log)
    for number in range(DEPTH // 2):
        stream = stream.distinct().filter(f"n >= {-number}")
    stream.capture(str(tmp_path / "out"))
    assert len(scope.sinks) == DEPTH // 2 + 1
    assert "capture" in explain(scope)


def test_ladder_costs_as_many_pieces_as_it_has_rows() -> None:
    stream = stream_of({"_time": [1, 1, 2], "n": [5, 40, None]})
    watched: list[int] = []
    view = ladder(stream, 300).view
    scope = stream._scope
    table = view.run(
        scope.read,
        Antichain.of(0),
        Antichain.of(9),
        watch=lambda _, rows: watched.append(rows["n"].num_chunks),  # type: ignore[attr-defined]
    )
    assert sorted(table.to_pydict()["n"], key=str) == [40, 5, None]
    assert len(watched) == 301
    assert max(watched) <= 3
    assert run_twice(view, scope.read, Antichain.of(0), Antichain.of(9)).num_rows == 3  # type: ignore[attr-defined]


def test_rows_of_concat_count_as_often_as_they_come() -> None:
    stream = stream_of({"_time": [1, 2], "n": [5, 6]})
    doubled = stream
    for _ in range(6):
        doubled = doubled.concat(doubled)
    assert [row["n"] for row in rows_of(doubled)] == [5] * 64 + [6] * 64


def test_ways_through_steps_that_commute_are_few() -> None:
    stream = stream_of({"_time": [1], "n": [5]})
    for _ in range(40):
        stream = stream.delay(plus(1), plus(2))
    ways = paths_of(stream.view)
    assert len(ways) == 41
    assert {delay.added for _, (delay,) in ways} == {(n,) for n in range(40, 81)}  # type: ignore[attr-defined]
    assert leaves_of(stream.view) == [ways[0][0]]


def test_joined_tables_keep_rows_and_their_order_in_few_pieces() -> None:
    sizes = [5000, 0, 1, 1, 300, 7000, *range(40)]
    tables = [pa.table({"n": pa.array(range(size), pa.int64())}) for size in sizes]
    found = joined(tables)
    assert found.equals(pa.concat_tables(tables))
    assert found["n"].num_chunks <= 5
    assert joined([tables[1]] * 30).num_rows == 0
