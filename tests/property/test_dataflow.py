"""Dataflows against a sequential program: random graphs, streams, cuts, restarts, kills and racing copies.

No Spark: the steps of the engine are driven with a runner in this process, over real logs; everything that would
go to an executor is pickled on the way.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as s
from pyspark import cloudpickle

from spark_timely.dataflow.aggregates import count, max_of, sum_of
from spark_timely.dataflow.delays import Shift, ceil_to, plus, windows
from spark_timely.dataflow.engine import cutting
from spark_timely.dataflow.engine.cutting import SHUFFLE_BYTES
from spark_timely.dataflow.engine.shuffle import shuffle_read, shuffle_write
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.engine.tasks import OutputPlan, Task, TaskResult
from spark_timely.dataflow.engine.tracking import Tracking
from spark_timely.dataflow.logs import Sink
from spark_timely.dataflow.operators.grouped import Aggregate
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.dataflow.views import leaves_of
from spark_timely.errors import TimelyError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import StreamState
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import buckets_of, catalog_of, pieces_of, reader_of, run_one
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeType
from spark_timely.work import Bounds, advance_all, rest_of
from tests.oracles.dataflow_model import DONE, Row, Spec, below_of, frontier_of, rows_of
from tests.oracles.replay_model import Frontier, Time, is_beyond, minimal
from tests.support import examples

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.float64())])
Commit = tuple[int, list[Row], Frontier]


class KilledError(Exception):
    """Stands for the death of the process."""


def built(scope: Scope, spec: Spec, logs: Sequence[Log]) -> Stream:
    kind, *rest = spec
    if kind == "replay":
        return scope.replay(logs[rest[0]])
    below = [built(scope, each, logs) for each in below_of(spec)]
    stream = below[0]
    if kind == "filter":
        return stream.filter(f"n > {rest[1]}")
    if kind == "double":
        return stream.map(
            lambda rows: rows.set_column(rows.schema.get_field_index("n"), "n", pc.multiply(rows["n"], 2))
        )
    if kind == "concat":
        return stream.concat(below[1])
    if kind == "plus":
        return stream.delay(plus(*rest[1]))
    if kind == "ceil":
        return stream.delay(ceil_to(rest[1]))
    if kind == "branch":
        return stream.branch(f"n > {rest[1]}")[0 if rest[2] else 1]
    if kind == "flat":
        return stream.flat_map(copies)
    if kind == "windows":
        return stream.delay(windows(rest[1] * rest[2], every=rest[1]))
    if kind == "step":
        return stream.step_forward()
    if kind == "spread":
        return stream.unary_notify(
            lambda _, rows: row_of("all" if rows.num_rows else None, rows.num_rows), columns=["k"]
        )
    if kind == "pairs":
        return stream.binary_notify(below[1], lambda _, one, two: row_of(None, one.num_rows - two.num_rows))
    if kind == "times":
        _, times = stream.times_extract(diff="n")
        nothing = {"k": pc.scalar(pa.scalar(None, pa.string())), "v": pc.scalar(pa.scalar(None, pa.float64()))}
        return times.times_reduce().select(n=pc.field("diff"), **nothing).select("k", "n", "v")
    if kind == "join":
        right = below[1].select("k", m=pc.field("n"), w=pc.field("v"))
        return stream.join(right, on="k").select("k", n=pc.field("n") + pc.field("m"), v=pc.field("w"))
    if kind == "sums":
        return stream.aggregate(by="k", n=sum_of("n"), v=sum_of("v"))
    return stream.aggregate(by="k", n=count(), v=max_of("v"))


def copies(rows: pa.Table) -> pa.Table:
    """Make n modulo 3 rows of each, numbered."""
    times = [name for name in rows.schema.names if name.startswith("_time")]
    often = np.array([0 if n is None else n % 3 for n in rows["n"].to_pylist()], dtype=np.int64)
    places = np.repeat(np.arange(rows.num_rows), often)
    numbers = np.arange(places.size) - np.repeat(np.cumsum(often) - often, often)
    made = rows.take(pa.array(places)).set_column(rows.schema.get_field_index("n"), "n", pa.array(numbers, pa.int64()))
    return made.append_column("_row", pa.array(places, pa.int64())).drop_columns(times)


def row_of(k: str | None, n: int) -> pa.Table:
    return pa.table({"k": pa.array([k]), "n": [n], "v": pa.array([None], pa.float64())}, schema=SCHEMA)


def with_runner(made: Any, run_tasks: Any) -> Any:
    """Return an engine, or several, which have what runs their tasks."""
    for engine in made if isinstance(made, list) else [made]:
        engine.run_tasks = run_tasks
    return made


def runner(storage: dict[str, dict[str, str]], before: Callable[[], None] = lambda: None) -> Any:
    """Return what runs tasks here, in another order, as pickled copies."""

    def run(outputs: Sequence[OutputPlan], tasks: Sequence[Task]) -> list[TaskResult]:
        plans, todo = cloudpickle.loads(cloudpickle.dumps((list(outputs), list(tasks))))
        results = [TaskResult(times=np.empty((0, each.lower.arity), np.int64)) for each in todo]
        blocks: dict[tuple[int, int], list[bytes]] = {}
        pieces = pieces_of(todo)
        for i in reversed(range(len(todo))):
            if todo[i].piece is None:
                results[i] = run_one(todo[i], plans[todo[i].output], storage)
        for first, numbers in pieces.items():
            for i in reversed(numbers) if todo[first].piece is not None else ():
                for block in shuffle_write(todo[i], plans[todo[i].output], reader_of(storage), len(numbers)):
                    blocks.setdefault((first, block.bucket), []).append(block.content)
        for i, (first, bucket) in enumerate(buckets_of(todo)):
            if (first, bucket) in blocks:
                plan, n_buckets = plans[todo[first].output], len(pieces[first])
                content = blocks[first, bucket]
                results[i] = shuffle_read(todo[first], plan, content, reader_of(storage), bucket, n_buckets)
        before()
        return cloudpickle.loads(cloudpickle.dumps([results[i] for i in range(len(todo))]))  # type: ignore[no-any-return]

    return run


class World:
    """Two input logs, outputs, and copies of one dataflow."""

    def __init__(
        self, folder: Path, specs: Sequence[Spec], workers: int | None, max_times: int | None, arity: int = 1
    ) -> None:
        self.folder, self.specs, self.workers, self.limits = folder, specs, workers, Limits(times=max_times)
        self.twice = False
        self.shuffle_bytes = SHUFFLE_BYTES
        least = (0,) * arity
        self.logs = [
            create_log(str(folder / f"in{i}"), SCHEMA, times=["long"] * arity, minimum=least) for i in range(2)
        ]
        self.writers = [log.writer(owner="test") for log in self.logs]
        self.rows: list[list[Row]] = [[], []]
        self.frontiers: list[Frontier] = [frozenset({least})] * 2

    def engine(self) -> Engine:
        scope = Scope("flow")
        for i, spec in enumerate(self.specs):
            built(scope, spec, [open_log(log.path) for log in self.logs]).capture(str(self.folder / f"out{i}"))
        self.storage = scope.storage
        return Engine(
            "flow",
            scope.sinks,
            scope.storage,
            files_of=catalog_of,
            limits=self.limits,
            workers=self.workers,
            twice=self.twice,
            shuffle_bytes=self.shuffle_bytes,
            now=ManualClock(),  # looks take no time: inputs are looked at before each step
        )

    def write(self, commit: Commit) -> None:
        which, rows, frontier = commit
        names = self.logs[which].domain.columns
        columns = [*zip(*[time for time, *_ in rows], strict=True), *zip(*[row[1:] for row in rows], strict=True)]
        schema = pa.schema([*((name, pa.int64()) for name in names), *SCHEMA])
        table = pa.table({f.name: pa.array(columns[i] if rows else (), f.type) for i, f in enumerate(schema)})
        bounds = [list(time) if len(names) > 1 else time[0] for time in sorted(frontier)]
        self.writers[which].append(table, advance_to=bounds)
        self.rows[which] += rows
        self.frontiers[which] = frontier

    def check(self, *, caught_up: bool) -> None:
        for i, spec in enumerate(self.specs):
            if not (self.folder / f"out{i}").exists():
                continue
            log = open_log(str(self.folder / f"out{i}"))
            upper = log.frontier().elements
            wanted = frontier_of(spec, self.frontiers)
            # It may stand at the least time of the output, where nothing below can come.
            bound = [tuple(map(max, time, log.domain.minimum)) for time in wanted]
            assert all(is_beyond(time, upper) for time in bound), "a frontier that passes too soon"
            if caught_up:
                assert all(is_beyond(time, wanted) for time in upper), "stuck"
            found = log.messages().select([*log.domain.columns, "k", "n", "v"]).to_pylist()
            rows = Counter((tuple(row.values())[:-3], *tuple(row.values())[-3:]) for row in found)
            assert rows == Counter(row for row in rows_of(spec, self.rows) if not is_beyond(row[0], upper))
            assert log.verify().legal


def killed_at(engine: Engine, nth: int) -> None:
    """Let an engine die before its nth append."""
    append, left = engine._outputs.append, [nth]

    def dying(*args: Any) -> StreamState | None:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError
        return append(*args)

    engine._outputs.append = dying  # type: ignore[method-assign]


def news_of(world: World, coming: Iterator[Commit], rng: random.Random) -> None:
    """Write what comes next, now and then."""
    commit = next(coming, None) if rng.random() < 0.5 else None
    if commit is not None:
        world.write(commit)


texts = s.sampled_from(["a", "b", "c", None])
numbers = s.none() | s.integers(-50, 50)
floats = s.none() | s.floats(-1e12, 1e12, allow_nan=False) | s.sampled_from([0.1, 1e16, -1e16, 1e-9])


def specs(arity: int) -> s.SearchStrategy[Spec]:
    def larger(below: s.SearchStrategy[Spec]) -> s.SearchStrategy[Spec]:
        one_coordinate = [
            s.tuples(s.just("windows"), below, s.integers(1, 4), s.integers(1, 3)),
            s.tuples(s.just("step"), below),
            s.tuples(s.just("ceil"), below, s.integers(1, 5)),
        ]
        return s.one_of(
            s.tuples(s.just("filter"), below, s.integers(-20, 20)),
            s.tuples(s.just("double"), below),
            s.tuples(s.just("branch"), below, s.integers(-20, 20), s.booleans()),
            s.tuples(s.just("flat"), below),
            s.tuples(s.just("spread"), below),
            s.tuples(s.just("pairs"), below, below),
            s.tuples(s.just("times"), below),
            s.tuples(s.just("concat"), below, below),
            s.tuples(s.just("plus"), below, s.tuples(*[s.integers(0, 4)] * arity)),
            s.tuples(s.just("join"), below, below),
            s.tuples(s.just("sums"), below),
            s.tuples(s.just("counts"), below),
            *(one_coordinate if arity == 1 else []),
        )

    return s.recursive(s.tuples(s.just("replay"), s.integers(0, 1)), larger, max_leaves=3)


@s.composite
def commits(draw: s.DrawFn, arity: int) -> list[Commit]:
    """Draw commits of two logs, each with rows beyond its frontier, and where the frontier goes."""
    frontiers: list[Frontier] = [frozenset({(0,) * arity})] * 2
    found: list[Commit] = []

    def beyond(frontier: Frontier, most: int) -> s.SearchStrategy[Time]:
        steps = s.tuples(*[s.integers(0, most)] * arity)
        start = s.sampled_from(sorted(frontier))
        return s.builds(lambda time, more: tuple(a + b for a, b in zip(time, more, strict=True)), start, steps)

    for _ in range(draw(s.integers(1, 6))):
        which = draw(s.integers(0, 1))
        if frontiers[which] == DONE:
            continue
        times = draw(s.lists(beyond(frontiers[which], 7), max_size=6))
        rows = [(time, draw(texts), draw(numbers), draw(floats)) for time in times]
        done = draw(s.integers(0, 7)) == 0
        nexts = s.lists(beyond(frontiers[which], 5), min_size=1, max_size=1 if arity == 1 else 3)
        frontiers[which] = DONE if done else minimal(draw(nexts))
        found.append((which, rows, frontiers[which]))
    return found


@s.composite
def stories(draw: s.DrawFn) -> tuple[int, list[Spec], list[Commit]]:
    """Draw the number of coordinates of the times, the outputs of a dataflow, and what its inputs get."""
    arity = draw(s.sampled_from([1, 2]))
    return arity, draw(s.lists(specs(arity), min_size=1, max_size=3)), draw(commits(arity))


@pytest.mark.timeout(7200)  # the long lane draws many more
@examples(14, long=800)
@given(
    story=stories(),
    workers=s.sampled_from([None, 1, 2, 3, 8]),
    max_times=s.sampled_from([None, None, 1, 3]),
    twice=s.booleans(),
    shuffle_bytes=s.sampled_from([SHUFFLE_BYTES, 0]),
    seed=s.integers(0, 1 << 30),
)
def test_dataflow_equals_the_sequential_program_despite_kills(
    story: tuple[int, list[Spec], list[Commit]],
    workers: int | None,
    max_times: int | None,
    twice: bool,
    shuffle_bytes: int,
    seed: int,
) -> None:
    rng = random.Random(seed)
    arity, flow, history = story
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), flow, workers, max_times, arity)
        world.twice, world.shuffle_bytes = twice, shuffle_bytes
        engines = [world.engine(), world.engine()]
        coming = iter(history)
        for commit in coming:
            world.write(commit)
            turn = rng.choice(["wait", "advance", "news", "race", "kill", "restart", "emptied"])
            which = rng.randrange(2)
            if turn == "emptied":  # whoever runs must be started again: its output is another log
                shutil.rmtree(world.folder / f"out{rng.randrange(len(flow))}")
                engines = [world.engine(), world.engine()]
            if turn == "restart":
                engines[which] = world.engine()
            if turn == "kill":
                killed_at(engines[which], rng.randrange(3))
            if turn == "news":  # comes while a step runs, of a query that lives and returns before all is done
                news = partial(news_of, world, coming, rng)
                bounds = Bounds(None, rng.randrange(1, 4))
                advance_all(with_runner([engines[which]], runner(world.storage, news)), lives=True, bounds=bounds)
                while rest_of([engines[which]]) is not None:
                    advance_all(with_runner([engines[which]], runner(world.storage)), lives=True, bounds=bounds)
            elif turn == "race":
                other = partial(engines[1 - which].advance, runner(world.storage))
                engines[which].advance(runner(world.storage, other))
            elif turn != "wait":
                try:
                    engines[which].advance(runner(world.storage))
                except KilledError:
                    engines[which] = world.engine()
                    turn = "wait"
                engines[which]._outputs.__dict__.pop("append", None)
            world.check(caught_up=turn != "wait")
        world.engine().advance(runner(world.storage))
        world.check(caught_up=True)


def test_emptied_output_is_made_again_and_a_new_one_catches_up(tmp_path: Path) -> None:
    world = World(tmp_path, [("sums", ("replay", 0))], None, None)
    rng = random.Random(5)
    rows: list[Row] = [((rng.randrange(9),), rng.choice("ab"), rng.randrange(9), rng.random()) for _ in range(50)]
    world.write((0, rows, frozenset({(7,)})))
    world.engine().advance(runner(world.storage))
    shutil.rmtree(tmp_path / "out0")
    world.specs = [*world.specs, ("counts", ("ceil", ("replay", 0), 3))]
    world.engine().advance(runner(world.storage))
    world.check(caught_up=True)


def test_output_that_is_read_again_moves_in_the_same_advance(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "in"), SCHEMA, minimum=(0,))
    log.writer(owner="test").append(
        pa.table({"_time": [1, 1, 2], "k": ["a"] * 3, "n": [1, 2, 3], "v": [0.5] * 3}), advance_to=3
    )
    scope = Scope("flow")
    middle = tmp_path / "middle"
    create_log(str(middle), SCHEMA, minimum=(0,))
    # The later part first: it waits for the earlier one, whose log it reads.
    scope.replay(str(middle)).aggregate(by="k", n=sum_of("n")).capture(str(tmp_path / "end"))
    scope.replay(log).filter(pc.field("n") > 1).capture(str(middle))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of)
    done = engine.advance(runner(scope.storage))
    assert [step.output for step in done] == ["capture_6", "capture_3"]
    end = open_log(str(tmp_path / "end"))
    assert end.frontier().to_json() == [3]
    assert end.messages().select(["_time", "n"]).to_pylist() == [{"_time": 1, "n": 2}, {"_time": 2, "n": 3}]


def test_product_times_are_aggregated_time_by_time(tmp_path: Path) -> None:
    rng = random.Random(3)
    log = create_log(str(tmp_path / "in"), SCHEMA, times=["long", "long"], minimum=(0, 0))
    writer = log.writer(owner="test")
    rows: list[tuple[int, int, str, int]] = []
    for frontier in ([[0, 2], [2, 0]], [[1, 4], [4, 0]], [[2, 4], [4, 1]]):
        mine = []
        while len(mine) < 30:
            time = (rng.randrange(6), rng.randrange(6))
            if log.core.stream("main").frontier.less_equal(time):  # type: ignore[union-attr]
                mine.append((*time, rng.choice("ab"), rng.randrange(9)))
        columns = list(zip(*mine, strict=True))
        table = pa.table(
            {"_time_0": columns[0], "_time_1": columns[1], "k": columns[2], "n": columns[3], "v": [0.0] * 30}
        )
        writer.append(table, advance_to=frontier)
        log.refresh()
        rows += mine
    scope = Scope("flow")
    scope.replay(log).delay(plus(1, 0)).aggregate(by="k", n=sum_of("n")).capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=4), workers=3)
    engine.advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    assert out.frontier().to_json() == [[3, 4], [5, 1]]
    expected: Counter[tuple[int, int, str]] = Counter()
    for a, b, k, n in rows:
        if not out.frontier().less_equal((a + 1, b)):
            expected[a + 1, b, k] += n
    found = {(r["_time_0"], r["_time_1"], r["k"]): r["n"] for r in out.messages().to_pylist()}
    assert found == dict(expected)
    assert len(found) > 10


TRUE_FRONTIER = Tracking.frontier
TRUE_BACK = Shift.back


def early(tracking: Tracking, sink: Sink) -> Antichain:
    found = TRUE_FRONTIER(tracking, sink)
    return Antichain.of(*((time + 1,) for (time,) in found)) if found else found


# What is broken -> (class, attribute, what stands in its place).
MUTANTS: dict[str, tuple[type, str, Any]] = {
    "none": (Tracking, "frontier", TRUE_FRONTIER),
    "a frontier that passes too soon": (Tracking, "frontier", early),
    "a frontier that never moves": (Tracking, "frontier", lambda tracking, sink: Antichain.of(0)),
    "a range that begins too late": (
        Shift,
        "back",
        lambda delay, f: TRUE_BACK(delay, Shift((1,), delay.limits).front(f)),
    ),
    "groups that are cut": (Aggregate, "rowwise", True),
    "delays that are left out of the plan": (
        cutting,
        "paths_of",
        lambda view: [(leaf, ()) for leaf in leaves_of(view)],
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_known_mistakes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    rng = random.Random(1)

    def story() -> None:
        world = World(tmp_path, [("sums", ("ceil", ("plus", ("replay", 0), (2,)), 3))], 3, None)
        for frontier in (4, 8, 11):
            ((now,),) = world.frontiers[0]
            rows: list[Row] = [
                ((rng.randrange(now, now + 9),), rng.choice("ab"), rng.randrange(9), rng.random()) for _ in range(40)
            ]
            world.write((0, rows, frozenset({(frontier,)})))
            world.engine().advance(runner(world.storage))
            world.check(caught_up=True)

    if mutant == "none":
        story()
    else:
        with pytest.raises((AssertionError, TimelyError)):
            story()


@pytest.mark.parametrize("kind", ["timestamp", "date", "short", "int"])
def test_times_of_every_type_go_through_windows_and_joins(tmp_path: Path, kind: str) -> None:
    type_ = TimeType(kind)
    width = {"timestamp": 3_600_000_000, "date": 7}.get(kind, 10)
    base = {"timestamp": 1_357_000_000_000_000, "date": 15_700}.get(kind, 0) // width * width
    log = create_log(str(tmp_path / "in"), SCHEMA, times=[kind], minimum=type_.render(base))
    rng = random.Random(2)
    times = sorted(base + rng.randrange(4 * width) for _ in range(60))
    rows = pa.table({"_time": type_.to_arrow(times), "k": ["a", "b"] * 30, "n": range(60), "v": [0.5] * 60})
    log.writer(owner="test").append(rows, advance_to=[type_.render(base + 3 * width)])
    scope = Scope("flow")
    stream = scope.replay(log)
    span = {"timestamp": "1 hour", "date": "7 days"}.get(kind, width)
    counts = stream.delay(ceil_to(span)).aggregate(by="k", n=count())
    sums = stream.delay(ceil_to(span)).aggregate(by="k", total=sum_of("n"))
    counts.join(sums, on="k").capture(str(tmp_path / "out"))
    Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, workers=2).advance(runner(scope.storage))
    out = open_log(str(tmp_path / "out"))
    assert out.frontier() == Antichain.of(base + 3 * width)
    expected: dict[tuple[int, str], list[int]] = {}
    for n, time in enumerate(times):
        if time <= base + 2 * width:
            expected.setdefault((-(-time // width) * width, "ab"[n % 2]), []).append(n)
    found = out.messages()
    keys = zip(out.domain.from_columns(found)[:, 0].tolist(), found["k"].to_pylist(), strict=True)
    assert dict(zip(keys, zip(found["n"].to_pylist(), found["total"].to_pylist(), strict=True), strict=True)) == {
        key: (len(members), sum(members)) for key, members in expected.items()
    }
