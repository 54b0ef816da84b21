"""Dataflows that begin later than their inputs' least time: behind delays, over inputs that have forgotten, by as_of.

Random graphs over histories, with any least times, restarts and forgetting between, against a sequential program. Each
output begins where the program says, holds what it says from there on, and reaches its inputs' frontier.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.dataflow.aggregates import count, min_of, sum_of
from spark_timely.dataflow.delays import ceil_to, plus, windows
from spark_timely.dataflow.engine.arrangements import Indexing
from spark_timely.dataflow.engine.inputs import check_whole
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import SinceViolationError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from tests.oracles.beginnings_model import MOVES, SAYS, Held, Input, Row, Spec, Updates, at, begun, below_of, held
from tests.property.graphs import MemoryPlace, runner_here
from tests.property.test_dataflow import runner

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
LONG = bool(os.environ.get("SPARK_TIMELY_LONG"))


def built(scope: Scope, spec: Spec, logs: list[Log], folder: Path) -> Stream:
    kind, *rest = spec
    if kind == "replay":
        log = logs[rest[0]]
        return scope.replay(log.another() if isinstance(log, MemoryLog) else log.path)
    below = [built(scope, each, logs, folder) for each in below_of(spec)]
    one = below[0]
    if kind in MOVES:
        return one.delay({"plus": plus, "ceil": ceil_to, "window": windows}[kind](rest[1]))  # type: ignore[operator]
    if kind == "spool":
        return one.spool(str(folder / f"spool{rest[1]}"))
    if kind == "filter":
        return one.filter(f"n > {rest[1]}")
    if kind == "updates":
        return one.as_updates()
    if kind == "consolidate":
        return one.consolidate()
    if kind == "concat":
        return one.concat(below[1])
    if kind == "per time":
        return one.aggregate(by="k", n=count())
    if kind == "first":
        return one.drop_duplicates("k", within=rest[1])
    if kind == "join":
        right = below[1].select("k", m=pc.field("n"))
        return one.join(right, on="k", how="left", as_of=True).select("k", n=pc.field("m"))
    if kind == "count":
        return one.aggregate(by="k", over="history", n=count())
    if kind == "sum":
        return one.aggregate(by="k", over="history", n=sum_of("n"))
    if kind == "least":
        return one.aggregate(by="k", over="history", n=min_of("n"))
    if kind == "current":
        return one.latest("k", order_by="n", deleted="n = 0")
    if kind == "distinct":
        return one.distinct()
    if kind == "latest":
        return one.latest("k", order_by="n")
    if kind == "top":
        return one.top(2, by="k", order_by="n")
    return one.reduce(total, by="k", columns=["n"])


def total(key: object, rows: pa.Table) -> pa.Table:
    del key
    numbers, often = rows["n"].fill_null(0).to_numpy(), rows["_count"].to_numpy()
    return pa.table({"n": pa.array([int((numbers * often).sum())])})


class Drawn:
    """Draws graphs, and knows of each whether it gives updates."""

    def __init__(self, rng: random.Random, kinds: list[str]) -> None:
        self.rng, self.kinds, self.spools = rng, kinds, 0

    def leaf(self) -> tuple[Spec, bool]:
        number = self.rng.randrange(len(self.kinds))
        return ("replay", number), self.kinds[number] == "collection"

    def graph(self, depth: int) -> tuple[Spec, bool]:
        rng = self.rng
        if not depth:
            return self.leaf()
        below, updates = self.graph(depth - 1)
        others = ["filter", "concat", "spool", "updates", "per time", "first", "join"]
        kind = rng.choice([*MOVES, *MOVES, *SAYS, *SAYS, *others])
        if kind in MOVES:
            return (kind, below, rng.randrange(1, 6)), updates
        if kind == "filter":
            return (kind, below, rng.randrange(-1, 3)), updates
        if kind == "spool":
            self.spools += 1
            return (kind, below, self.spools), updates
        if kind == "updates":
            return ("consolidate" if updates else kind, below), True
        if kind == "concat":
            other, of_updates = self.graph(rng.randrange(depth))
            if updates and not of_updates:
                other = "updates", other
            elif of_updates and not updates:
                below = "updates", below
            return (kind, below, other), updates or of_updates
        if kind in SAYS:
            return (kind, below), updates or kind != "distinct"
        if updates:
            return (rng.choice([*SAYS]), below), True
        if kind == "first":
            return (kind, below, rng.choice([None, 1, 3])), False
        if kind == "join":
            right, of_updates = self.graph(rng.randrange(depth))
            return (kind, below, right if of_updates else ("latest", right)), False
        return (kind, below), False


class World:
    """Some logs, and a dataflow over them whose graph is given or drawn; in memory, or on disk, where indexes are."""

    def __init__(self, folder: Path, rng: random.Random, spec: Spec | None = None, **given: Any) -> None:
        self.folder, self.rng = folder, rng
        self.place = MemoryPlace() if given.get("memory") else None
        create = create_log if self.place is None else self.place.create
        self.kinds = given.get("kinds") or [rng.choice(["stream", "collection"]) for _ in range(rng.randrange(1, 3))]
        self.least = given.get("least") or [rng.choice([0, 0, 3, -4]) for _ in self.kinds]
        self.logs = [
            create(str(folder / f"in{i}"), SCHEMA, minimum=(least,), kind=kind)
            for i, (kind, least) in enumerate(zip(self.kinds, self.least, strict=True))
        ]
        self.writers = [log.writer(owner="test") for log in self.logs]
        self.rows: list[Updates] = [Counter() for _ in self.logs]
        self.at = list(self.least)
        self.forgot: list[int | None] = [None for _ in self.logs]
        self.spec = spec or Drawn(rng, self.kinds).graph(rng.randrange(1, 5))[0]
        self.as_of: int | None = given.get("as_of")
        self.limits = Limits(times=rng.choice([None, 1, 2]))
        always, rarely = Indexing(0, 0, 0, background=False, much_bytes=0), Indexing(0, 10**9, 2, background=False)
        self.indexing = rng.choice([always, rarely, Indexing(1 << 40)])
        self.storage: dict[str, dict[str, str]] = {}

    def open(self, path: str) -> Log:
        return open_log(path) if self.place is None else self.place.open(path)

    def write(self, which: int, steps: int, *, most: int = 4) -> None:
        rng, rows = self.rng, self.rows[which]
        made: list[tuple[int, Row, int]] = []
        for _ in range(rng.randrange(most + 1)):
            time = self.at[which] + rng.randrange(4)
            row: Row = (rng.choice(["a", "b", None]), rng.choice([None, 0, 1, 2, 3]))
            diff = 1
            known = [row for (when, row) in rows if when <= time]
            if self.kinds[which] == "collection" and known and rng.random() < 0.5:
                gone = rng.choice(known)
                if all(at(rows, when)[gone] > 0 for when in range(time, max(time, *(t for t, _ in rows)) + 1)):
                    row, diff = gone, -1
            rows[time, row] += diff
            made.append((time, row, diff))
        columns = {"_time": [t for t, _, _ in made], "_diff": [d for *_, d in made]}
        columns |= {name: [row[i] for _, row, _ in made] for i, name in enumerate(SCHEMA.names)}
        fields = [("_time", pa.int64()), ("_diff", pa.int64()), *SCHEMA]
        table = pa.table(columns, pa.schema(fields))
        self.at[which] += steps
        if self.kinds[which] == "stream":
            table = table.drop_columns(["_diff"])
        self.writers[which].append(table, advance_to=self.at[which])

    def forget(self, which: int, to: int) -> None:
        log = self.open(self.logs[which].path)
        log.allow_compaction(to)
        if self.rng.random() < 0.5:
            log.compact(logical=True)

    def wanted(self) -> Held:
        inputs = [
            Input(kind == "collection", self.rows[i], self.at[i], self.least[i], self.forgot[i])
            for i, kind in enumerate(self.kinds)
        ]
        return begun(held(self.spec, inputs, self.as_of), self.as_of)

    def engine(self) -> Engine:
        scope = Scope("flow")
        built(scope, self.spec, self.logs, self.folder).capture(str(self.folder / "out"))
        scope.sinks = [replace(sink, as_of=self.as_of) for sink in scope.sinks]
        self.storage = scope.storage
        engine = Engine(
            "flow", scope.sinks, scope.storage, files_of=catalog_of, limits=self.limits,
            workers=self.rng.choice([None, 1, 3]), indexing=self.indexing, now=ManualClock(),
        )  # fmt: skip
        check_whole(scope.sinks, {path: engine.log_at(path) for path in engine.paths})
        return engine

    def run(self, engine: Engine) -> None:
        engine.advance(runner(self.storage) if self.place is None else runner_here)

    def check(self, *, caught_up: bool) -> None:
        log, wanted = self.open(str(self.folder / "out")), self.wanted()
        upper = log.frontier().elements[0][0]
        assert log.verify().legal
        assert upper <= max(wanted.frontier, wanted.least), "too soon"
        assert not caught_up or upper == wanted.frontier, "stuck"
        found: Updates = Counter()
        for row in log.messages().to_pylist():
            found[row["_time"], (row["k"], row["n"])] += row.get("_diff", 1)
        assert all(time >= wanted.begins for time, _ in found), "before its beginning"
        if not wanted.updates:
            rows = {each: n for each, n in wanted.rows.items() if wanted.begins <= each[0] < upper}
            assert found == rows
            return
        for time in range(wanted.begins, upper):
            assert at(found, time) == at(wanted.rows, time), time


def run_story(world: World) -> None:
    """Let inputs begin and forget, run a dataflow over them, with restarts, and compare."""
    rng = world.rng
    for which in range(len(world.logs)):
        if rng.random() < 0.6:
            world.write(which, rng.randrange(8), most=8)
        if rng.random() < 0.5 and world.at[which] > world.least[which] + 1:
            world.forget(which, rng.randrange(world.least[which] + 1, world.at[which]))
            since = world.open(world.logs[which].path).since().elements[0][0]
            world.forgot[which] = None if since == world.least[which] else since
    if rng.random() < 0.3:
        world.as_of = rng.randrange(-2, 8)
    if not world.wanted().whole:
        with pytest.raises(SinceViolationError, match="could not begin"):
            world.engine()
        return
    engine = world.engine()
    for _ in range(rng.randrange(1, 4)):
        for which in range(len(world.logs)):
            world.write(which, rng.randrange(4))
        if rng.random() < 0.5:
            engine = world.engine()
        world.run(engine)
        world.check(caught_up=False)
    for which in range(len(world.logs)):
        world.write(which, 40 - world.at[which])
    world.run(engine)
    world.check(caught_up=True)
    # What was begun is continued over inputs that forget what nobody needs.
    for which in range(len(world.logs)):
        if rng.random() < 0.5:
            world.forget(which, rng.randrange(max(world.least) + 1, 12))
        world.write(which, 2)
    world.run(rng.choice([engine, world.engine()]))
    world.check(caught_up=True)


@pytest.mark.parametrize("seed", range(5000 if LONG else 9))
def test_graphs_that_begin_late_hold_what_they_should(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, rng, memory=seed % 4 != 0)
    with nullcontext() if world.place is None else world.place.installed():
        run_story(world)


@pytest.mark.parametrize("kind", ["stream", "collection"])
@pytest.mark.parametrize("above", ["count", "distinct", "latest", "top"])
def test_an_operator_behind_a_delay_takes_its_first_step(above: str, kind: str, tmp_path: Path) -> None:
    leaf: Spec = ("replay", 0)
    world = World(tmp_path, random.Random(3), (above, ("plus", leaf, 2)), kinds=[kind], least=[0])
    world.write(0, 3)
    world.run(world.engine())
    world.check(caught_up=True)


@pytest.mark.parametrize("kind", ["stream", "collection"])
def test_operators_before_and_behind_a_delay_move(kind: str, tmp_path: Path) -> None:
    spec: Spec = ("distinct", ("plus", ("distinct", ("replay", 0)), 2))
    world = World(tmp_path, random.Random(3), spec, kinds=[kind], least=[0])
    world.write(0, 3)
    world.run(world.engine())
    world.check(caught_up=True)


def test_events_before_as_of_are_looked_up_before_it(tmp_path: Path) -> None:
    spec: Spec = ("sum", ("join", ("replay", 0), ("latest", ("replay", 1))))
    world = World(tmp_path, random.Random(1), spec, kinds=["stream", "collection"], least=[0, 0], as_of=4)
    for which in (0, 1):
        world.write(which, 6, most=8)
    world.run(world.engine())
    world.check(caught_up=True)
    assert world.wanted().begins == 4


def test_a_sum_of_rows_that_cannot_be_looked_up_is_refused(tmp_path: Path) -> None:
    spec: Spec = ("sum", ("join", ("replay", 0), ("latest", ("replay", 1))))
    world = World(tmp_path, random.Random(1), spec, kinds=["stream", "collection"], least=[0, 0])
    for which in (0, 1):
        world.write(which, 6, most=8)
    world.forget(1, 3)
    with pytest.raises(SinceViolationError, match=r"could not begin operator .*in1'|latest.*needs all updates"):
        world.engine()


@pytest.mark.parametrize("kind", ["stream", "collection"])
@pytest.mark.parametrize("above", ["count", "distinct"])
def test_logs_put_together_hold_what_came_before_the_first(above: str, kind: str, tmp_path: Path) -> None:
    spec: Spec = (above, ("concat", ("replay", 0), ("replay", 1)))
    world = World(tmp_path, random.Random(3), spec, kinds=[kind, kind], least=[3, -4])
    for steps in (6, 7):
        world.write(0, steps, most=8)
        world.write(1, steps + 3, most=8)
        world.run(world.engine())
        world.check(caught_up=True)


@pytest.mark.parametrize("above", ["count", "latest", "consolidate", "filter"])
def test_a_delay_of_what_has_forgotten_begins_later(above: str, tmp_path: Path) -> None:
    delayed: Spec = ("plus", ("replay", 0), 2)
    spec: Spec = (
        ("filter", delayed, 0) if above == "filter" else ("consolidate" if above == "updates" else above, delayed)
    )
    world = World(tmp_path, random.Random(3), spec, kinds=["collection"], least=[0])
    world.write(0, 9, most=8)
    world.forget(0, 5)
    world.forgot[0] = 5
    world.run(world.engine())
    world.check(caught_up=True)
    assert world.wanted().begins == 7
