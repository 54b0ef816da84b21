"""Equal operators are one node; those that are not, and would keep in one folder, need names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count, sum_of
from spark_timely.dataflow.delays import plus
from spark_timely.dataflow.engine.explain import explain, outputs
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.logs import Sink, open_logs
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import InvalidUsageError, TimelyInternalError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import stream_of
from tests.property.test_dataflow import runner

Build = Callable[[Stream], Stream]
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


@pytest.fixture
def rows(tmp_path: Path) -> Log:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    log.writer(owner="test").append(pa.table({"_time": [1, 1, 2], "k": ["a", "a", "b"], "v": [1, 1, 2]}), advance_to=5)
    log.refresh()
    return log


def run(scope: Scope) -> None:
    Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))


def add(rows: pa.Table, n: int = 1) -> pa.Table:
    return pa.table({"k": rows["k"], "v": pc.add(rows["v"], n)})


class Adds:
    def rows(self, rows: pa.Table) -> pa.Table:
        return add(rows)


ADDS = Adds()
OPERATORS: dict[str, Build] = {
    "filter by text": lambda s: s.filter("v > 1"),
    "filter": lambda s: s.filter(pc.field("v") > pc.scalar(1.5)),
    "branch": lambda s: s.branch("v > 1")[1],
    "select": lambda s: s.select("k", v=pc.field("v") + 1),
    "map": lambda s: s.map(add, columns=["k", "v"]),
    "map by a bound method": lambda s: s.map(ADDS.rows),
    "delays": lambda s: s.delay(plus(1), plus(2)),
    "concat": lambda s: s.concat(s),
    "aggregate": lambda s: s.aggregate(by="k", n=count(), s=sum_of("v")),
    "over history": lambda s: s.aggregate(by="k", over="history", n=count()),
    "distinct": lambda s: s.distinct(),
    "drop_duplicates": lambda s: s.drop_duplicates("k", within=3),
    "latest": lambda s: s.latest("k", order_by="v", deleted="v > 7"),
    "top": lambda s: s.top(2, by="k", order_by="v asc"),
    "upsert": lambda s: s.upsert(keys="k", sequence_by="v"),
    "join": lambda s: s.join(s.select("k", w=pc.field("v")), on="k"),
    "join as of": lambda s: s.join(s.latest("k", order_by="v").select("k", w=pc.field("v")), on="k", as_of=True),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_operator_written_twice_is_one_node(operator: Build) -> None:
    stream = stream_of({"_time": [1], "k": ["a"], "v": [1]})
    assert operator(stream).view is operator(stream).view


def test_nodes_differ_by_parameter_function_and_input() -> None:
    stream = stream_of({"_time": [1], "k": ["a"], "v": [1]})
    other = stream.filter("v > 1")
    made = [
        other,
        stream.filter("v > 2"),
        stream.filter(pc.field("v") > pc.scalar(1)),
        stream.filter(pc.field("v") > pc.scalar(pa.scalar(1, pa.int32()))),
        stream.map(lambda rows: add(rows)),
        stream.map(lambda rows: add(rows)),
        stream.map(partial(add, n=1)),
        stream.map(partial(add, n=1)),
        stream.map(Adds().rows),
        stream.map(Adds().rows),
        stream.map(add),
        other.map(add),
        stream.top(1, by="k", order_by="v"),
        stream.top(2, by="k", order_by="v"),
        stream.latest("k", order_by="v"),
        stream.distinct(),
        other.distinct(),
    ]
    assert len({each.view for each in made}) == len(made)


@pytest.mark.parametrize("part", ["distinct", "latest", "top", "over history", "upsert", "join as of"])
def test_operator_written_twice_under_one_output_moves(part: str, rows: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    operator = OPERATORS[part]
    stream = scope.replay(rows)
    both = operator(stream).concat(operator(stream))
    both.aggregate(by="k", over="history", c=count()).capture(str(tmp_path / "out"))
    run(scope)
    out = open_log(str(tmp_path / "out"))
    assert out.frontier() == rows.frontier()
    assert {row["k"] for row in out.messages().to_pylist()} == {"a", "b"}


def _two_lambdas(stream: Stream) -> list[Stream]:
    return [stream.map(lambda rows, n=n: add(rows, n)) for n in (1, 2)]


def _two_partials(stream: Stream) -> list[Stream]:
    return [stream.map(partial(add, n=1)), stream.map(partial(add, n=2))]


def _one_inspected(stream: Stream) -> list[Stream]:
    return [stream, stream.inspect(lambda *_: None)]


ALIKE = [_two_lambdas, _two_partials, _one_inspected]


@pytest.mark.parametrize("alike", ALIKE)
@pytest.mark.parametrize("names", [(None, None), ("one", None), (None, "two"), ("one", "one"), ("one", "two")])
def test_operators_of_one_folder_need_a_name_each(
    alike: Callable[[Stream], list[Stream]], names: tuple[str | None, str | None], rows: Log, tmp_path: Path
) -> None:
    scope = Scope("flow")
    one, other = (x.distinct(name=name) for x, name in zip(alike(scope.replay(rows)), names, strict=True))
    both = one.concat(other)
    if names != ("one", "two"):
        with pytest.raises(InvalidUsageError, match="which would keep in one folder — hint: give each"):
            both.capture(str(tmp_path / "out"))
        assert not scope.sinks
        return
    both.capture(str(tmp_path / "out"))
    run(scope)
    assert open_log(str(tmp_path / "out")).frontier() == rows.frontier()
    folders = [sink.path.rpartition("-") for sink in scope.sinks if sink.kept]
    assert [name for *_, name in folders] == ["one", "two"]
    assert len({fingerprint for fingerprint, *_ in folders}) == 1


def test_what_two_operators_look_into_takes_their_names(rows: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    one, other = _two_lambdas(scope.replay(rows).as_updates())
    tops = [each.top(1, by="k", order_by="v", name=name) for each, name in ((one, "one"), (other, "two"))]
    tops[0].concat(tops[1]).capture(str(tmp_path / "out"))
    assert sorted(sink.path.rpartition("-")[2] for sink in scope.sinks if sink.kept) == ["one", "one", "two", "two"]
    run(scope)
    found = open_log(str(tmp_path / "out")).messages().to_pylist()
    assert sorted((row["k"], row["v"]) for row in found) == [("a", 2), ("a", 3), ("b", 3), ("b", 4)]


@pytest.mark.parametrize("alike", ALIKE)
def test_alike_operators_that_keep_nothing_are_not_refused(
    alike: Callable[[Stream], list[Stream]], rows: Log, tmp_path: Path
) -> None:
    scope = Scope("flow")
    one, other = alike(scope.replay(rows))
    one.filter("v > 0").concat(other.filter("v > 0")).capture(str(tmp_path / "out"))
    run(scope)
    assert open_log(str(tmp_path / "out")).messages().num_rows == 6


@pytest.mark.parametrize("alike", ALIKE)
def test_alike_operators_of_different_outputs_are_not_refused(
    alike: Callable[[Stream], list[Stream]], rows: Log, tmp_path: Path
) -> None:
    scope = Scope("flow")
    for place, each in enumerate(alike(scope.replay(rows))):
        each.distinct().filter("v > 0").capture(str(tmp_path / f"out{place}"))
    run(scope)
    for place in range(2):
        assert open_log(str(tmp_path / f"out{place}")).frontier() == rows.frontier()


def test_streams_of_one_log_have_folders_whatever_their_order(rows: Log, tmp_path: Path) -> None:
    found = []
    for order in ((0, 1), (1, 0)):
        scope = Scope("flow")
        parts = [each.distinct().filter("v > 0") for each in _two_lambdas(scope.replay(rows))]
        for place in order:
            parts[place].capture(str(tmp_path / "out"), stream=("main", "late")[place])
        sinks = {sink.stream: sink for sink in scope.sinks if not sink.kept}
        kept = {sink.path for sink in scope.sinks if sink.kept}
        found.append([{leaf.path for leaf in sinks[stream].view.inputs} for stream in ("main", "late")])  # type: ignore[attr-defined]
        assert len(kept) == 2
    assert found[0] == found[1]
    run(scope)
    assert open_log(str(tmp_path / "out")).messages().num_rows == 4


def test_name_of_no_folder_is_refused(rows: Log) -> None:
    stream = Scope("flow").replay(rows)
    with pytest.raises(InvalidUsageError, match=r"could not add operator 'distinct_2': found name='a/b'"):
        stream.distinct(name="a/b")
    with pytest.raises(InvalidUsageError, match="found name='a' without as_of=True"):
        stream.join(stream.select("k"), on="k", name="a")


def test_column_of_an_aggregate_may_be_called_name(rows: Log) -> None:
    stream = Scope("flow").replay(rows)
    made = stream.aggregate(by="k", over="history", a=count(), name=sum_of("v"))
    assert made.schema.names == ["k", "a", "name"]
    assert stream.aggregate(by="k", over="history", name="kept", a=count()).schema.names == ["k", "a"]


def test_what_is_captured_beside_another_is_kept_apart(rows: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    stream = scope.replay(rows).as_updates()
    ones = stream.filter("v = 1")
    ones.capture(str(tmp_path / "parts"), stream="ones")
    best = ones.top(5, by="k", order_by="v")
    best.filter("v > 0").capture(str(tmp_path / "out"))
    stream.filter("v = 2").capture(str(tmp_path / "parts"), stream="twos")
    run(scope)
    found = open_log(str(tmp_path / "out")).messages().to_pylist()
    assert [(row["k"], row["v"], row["_diff"]) for row in found] == [("a", 1, 2)]


def test_two_writers_of_a_stream_are_refused(rows: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    out = str(tmp_path / "out")
    stream = scope.replay(rows)
    stream.distinct().filter("v > 0").capture(out)
    folder = next(sink.path for sink in scope.sinks if sink.kept)
    with pytest.raises(InvalidUsageError, match="captured into already"):
        stream.filter("v > 1").capture(folder)
    other = Scope("flow")
    other.replay(rows).filter("v > 1").capture(folder)
    with pytest.raises(InvalidUsageError, match="could not write stream 'main' of log"):
        other.replay(rows).distinct().filter("v > 0").capture(out)
    assert len(other.sinks) == 1
    doubled = [*scope.sinks, Sink("other", stream.view, out, "main", "dataflow flow")]
    with pytest.raises(InvalidUsageError, match="found two operators that do, 'capture_4' and 'other'"):
        open_logs(doubled, scope.storage)
    assert not (tmp_path / "out").exists()


def test_output_that_can_never_move_is_an_error_not_a_wait(rows: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    scope.replay(rows).distinct().filter("v > 0").capture(str(tmp_path / "out"))
    kept, _ = scope.sinks
    create_log(str(tmp_path / "out"), SCHEMA, minimum=(0,))
    # A second stream that nobody opens holds the log where it is.
    create_log(kept.path, kept.view.schema, minimum=(0,), streams=2)
    engine = Engine(scope.name, scope.sinks, scope.storage, files_of=catalog_of)
    said = r"operator 'capture_4' is at \[0\], its inputs at \[5\].*invariant 9 of dataflow.engine.steps"
    with pytest.raises(TimelyInternalError, match=said):
        engine.advance(runner(scope.storage))
    assert "  stopped: " in explain(scope)


def test_what_can_never_move_is_named_before_it_has_stopped(rows: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    scope.replay(rows).distinct().filter("v > 0").capture(str(tmp_path / "out"))
    kept, _ = scope.sinks
    create_log(str(tmp_path / "out"), SCHEMA, minimum=(0,))
    create_log(kept.path, kept.view.schema, minimum=(0,), streams=2)
    Engine(scope.name, scope.sinks[:1], scope.storage, files_of=catalog_of).advance(runner(scope.storage))
    open_logs(scope.sinks, scope.storage)
    assert [state.stuck_before for state in outputs(scope)] == [None, rows.frontier()]
    assert "| upper [0], stuck" in explain(scope)
    assert "error: its inputs are at [5], nothing below can move" in explain(scope)
    assert "nothing waits" in explain(scope).split("capture_4")[0]


def test_log_that_others_write_too_is_a_wait(rows: Log, tmp_path: Path) -> None:
    scope = Scope("flow")
    shared = str(tmp_path / "shared")
    create_log(shared, SCHEMA, minimum=(0,), streams=2)
    scope.replay(rows).spool(shared).filter("v > 0").capture(str(tmp_path / "out"))
    run(scope)
    assert [state.stuck_before for state in outputs(scope)] == [None, None]
    assert open_log(str(tmp_path / "out")).frontier().elements == ((0,),)
