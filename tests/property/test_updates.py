"""Dataflows over collections against a sequential program: random graphs, cuts, restarts, copies, kills and forgetting.

What a view of updates adds up to at a time is the oracle's subject, never how it is cut into rows: a plain counter by
time and row, moved and summed in Python.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from spark_timely.dataflow.aggregates import count
from spark_timely.dataflow.delays import ceil_to, plus
from spark_timely.dataflow.engine import steps, task_runner
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.operators import collections
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import SinceViolationError, TimelyError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import KilledError, copies, killed_at, runner

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
Time = tuple[int, ...]
Updates = Counter[tuple[Time, Any, Any]]
Spec = tuple[Any, ...]


# The oracle -------------------------------------------------------------------------------------------


def moved(updates: Updates, to: Callable[[Time], Time]) -> Updates:
    found: Updates = Counter()
    for (time, k, n), diff in updates.items():
        found[to(time), k, n] += diff
    return found


def made(spec: Spec, inputs: Sequence[Updates]) -> Updates:
    kind, *rest = spec
    if kind in ("replay", "events"):
        return inputs[rest[0]]
    below = made(rest[0], inputs)
    found: Updates = Counter()
    if kind == "filter":
        return Counter({row: d for row, d in below.items() if row[2] is not None and row[2] > rest[1]})
    if kind == "negate":
        return Counter({row: -d for row, d in below.items()})
    if kind == "double":
        for (time, k, n), diff in below.items():
            found[time, k, None if n is None else 2 * n] += diff
        return found
    if kind == "flat":
        for (time, k, n), diff in below.items():
            for number in range(0 if n is None else n % 3):
                found[time, k, number] += diff
        return found
    if kind == "select":
        for (time, k, _), diff in below.items():
            found[time, k, 7] += diff
        return found
    if kind == "ceil":
        return moved(below, lambda time: (later(spec, time[0]),))
    if kind == "plus":
        return moved(below, lambda time: tuple(a + b for a, b in zip(time, rest[1], strict=True)))
    if kind == "concat":
        for part in (below, made(rest[1], inputs)):
            for row, diff in part.items():
                found[row] += diff
        return found
    assert kind == "consolidate"
    return below


def parts_of(spec: Spec) -> list[Spec]:
    """Return what an operator is made from."""
    return [part for part in spec[1:] if isinstance(part, tuple) and isinstance(part[0], str)]


def goes(spec: Spec, time: int) -> dict[int, list[int]]:
    """Return of each input at which times a row of one time comes out."""
    if spec[0] in ("replay", "events"):
        return {spec[1]: [time]}
    found: dict[int, list[int]] = {}
    for part in parts_of(spec):
        for which, times in goes(part, time).items():
            found.setdefault(which, []).extend(later(spec, each) for each in times)
    return found


def later(spec: Spec, time: int) -> int:
    """Return where an operator moves a time of one coordinate."""
    if spec[0] == "plus":
        return int(time + spec[2][0])
    return int(-(-time // spec[2]) * spec[2]) if spec[0] == "ceil" else time


# The graph --------------------------------------------------------------------------------------------


def built(scope: Scope, spec: Spec, logs: Sequence[Log], spools: Path) -> Stream:
    kind, *rest = spec
    if kind == "replay":
        return scope.replay(logs[rest[0]])
    if kind == "events":
        return scope.replay(logs[rest[0]]).as_updates(rest[1])
    below = built(scope, rest[0], logs, spools)
    if kind == "filter":
        return below.filter(f"n > {rest[1]}")
    if kind == "negate":
        return below.negate()
    if kind == "double":
        return below.map(double)
    if kind == "flat":
        return below.flat_map(copies_of)
    if kind == "select":
        return below.select("k", n=pc.scalar(7))
    if kind == "plus":
        return below.delay(plus(*rest[1]))
    if kind == "ceil":
        return below.delay(ceil_to(rest[1]))
    if kind == "concat":
        return below.concat(built(scope, rest[1], logs, spools))
    return below.consolidate()


def double(rows: pa.Table) -> pa.Table:
    assert "_diff" not in rows.schema.names
    return rows.set_column(rows.schema.get_field_index("n"), "n", pc.multiply(rows["n"], 2))


def copies_of(rows: pa.Table) -> pa.Table:
    return copies(rows.append_column("v", pa.nulls(rows.num_rows, pa.float64()))).drop_columns(["v"])


def random_spec(rng: random.Random, arity: int, depth: int) -> Spec:
    if depth == 0 or rng.random() < 0.15:
        which = rng.randrange(3)
        return ("replay", which) if which < 2 else ("events", which, "often")
    below = random_spec(rng, arity, depth - 1)
    kinds = ["filter", "negate", "double", "flat", "select", "plus", "concat", "consolidate"]
    kind = rng.choice([*kinds, "ceil"] if arity == 1 else kinds)
    if kind == "ceil":
        return (kind, below, rng.randrange(2, 7))
    if kind == "filter":
        return (kind, below, rng.randrange(-3, 6))
    if kind == "plus":
        return (kind, below, tuple(rng.randrange(4) for _ in range(arity)))
    if kind == "concat":
        return (kind, below, random_spec(rng, arity, depth - 1))
    return (kind, below)


class World:
    """Two collections and a stream, the outputs of a dataflow, and what was ever written."""

    def __init__(self, folder: Path, arity: int, rng: random.Random) -> None:
        self.folder, self.arity, self.rng = folder, arity, rng
        self.least = (0,) * arity
        self.columns = ["_time"] if arity == 1 else [f"_time_{i}" for i in range(arity)]
        events = SCHEMA.append(pa.field("often", pa.int32()))
        self.logs = [
            create_log(
                folder / f"in{i}",
                events if i == 2 else SCHEMA,
                times=["long"] * arity,
                minimum=self.least,
                kind="stream" if i == 2 else "collection",
                merge_every=rng.choice([None, 2]),
            )
            for i in range(3)
        ]
        self.writers = [log.writer(owner="test") for log in self.logs]
        self.at = [0, 0, 0]
        self.inputs: list[Updates] = [Counter(), Counter(), Counter()]
        self.specs = [random_spec(rng, arity, rng.randrange(4)) for _ in range(rng.randrange(1, 3))]
        # By output: times before it stand at it, since its inputs had forgotten them; and those that have begun.
        self.began_at = [0] * len(self.specs)
        self.begun: set[int] = set()
        self.workers, self.limits = rng.choice([None, 1, 3]), Limits(times=rng.choice([None, 1, 2]))
        self.storage: dict[str, dict[str, str]] = {}

    def engine(self) -> Engine:
        scope = Scope("flow")
        for i, spec in enumerate(self.specs):
            out = built(scope, spec, [open_log(log.path) for log in self.logs], self.folder)
            out.capture(str(self.folder / f"out{i}"))
        self.storage = scope.storage
        return Engine(
            "flow", scope.sinks, scope.storage, files_of=catalog_of, limits=self.limits, workers=self.workers,
            twice=self.rng.random() < 0.3, now=ManualClock(),
        )  # fmt: skip

    def write(self) -> None:
        rng, which = self.rng, self.rng.randrange(3)
        n, start = rng.randrange(6), self.at[which]
        times = [tuple(start + rng.randrange(5) for _ in range(self.arity)) for _ in range(n)]
        keys = [rng.choice(["a", "é", None]) for _ in range(n)]
        numbers = [rng.choice([None, 0, 1, 2, 5]) for _ in range(n)]
        diffs = [rng.choice([-1, 1, 1, 2, 3]) for _ in range(n)]
        columns: dict[str, Any] = {name: [time[i] for time in times] for i, name in enumerate(self.columns)}
        columns |= {"k": pa.array(keys, pa.string()), "n": pa.array(numbers, pa.int64())}
        columns |= {"often": pa.array(diffs, pa.int32())} if which == 2 else {"_diff": pa.array(diffs, pa.int64())}
        self.at[which] += rng.randrange(4)
        table = pa.table({k: pa.array(v, pa.int64()) if k in self.columns else v for k, v in columns.items()})
        frontier = self.at[which] if self.arity == 1 else [[self.at[which]] * self.arity]
        self.writers[which].append(table, advance_to=frontier)
        for time, k, number, diff in zip(times, keys, numbers, diffs, strict=True):
            self.inputs[which][time, k, number] += diff

    def rewrite(self) -> None:
        """Merge files, by whoever it is; no answer changes."""
        log = self.logs[self.rng.randrange(3)]
        if self.rng.random() < 0.5:
            DeltaTable(log.path).optimize.compact()
        else:
            open_log(log.path).compact()

    def forget(self) -> None:
        """Let a collection forget what no output that has begun still needs; times of one coordinate."""
        which = self.rng.randrange(2)
        log = open_log(self.logs[which].path)
        wanted = self.rng.randrange(self.at[which] + 1)
        for i in self.begun:
            (upper,) = open_log(self.folder / f"out{i}").frontier().elements
            while wanted and max(goes(self.specs[i], wanted).get(which, [-1])) >= upper[0]:
                wanted -= 1
        if wanted > 0:
            log.allow_compaction(wanted)
            if self.rng.random() < 0.7:
                log.compact(logical=True)

    def note_beginnings(self) -> None:
        """Say where outputs would begin that have not: what their inputs have forgotten stands there."""
        for i, spec in enumerate(self.specs):
            path = self.folder / f"out{i}"
            if path.exists() and open_log(path).frontier().elements != (self.least,):
                self.begun.add(i)
                continue
            sinces = [open_log(log.path).since().elements[0][0] for log in self.logs]
            found = [max(goes(spec, since).get(which, [0])) for which, since in enumerate(sinces) if since]
            self.began_at[i] = max(found, default=0)

    def expected_upper(self, spec: Spec) -> int:
        """Return how far an output can be, of one coordinate."""
        if spec[0] in ("replay", "events"):
            return self.at[spec[1]]
        return later(spec, min(self.expected_upper(part) for part in parts_of(spec)))

    def check(self, *, caught_up: bool) -> None:
        for i, spec in enumerate(self.specs):
            path = self.folder / f"out{i}"
            if not path.exists():
                continue
            log = open_log(path)
            assert log.kind == "collection"
            assert log.verify().legal
            upper = log.frontier().elements
            if self.arity == 1:
                bound = self.expected_upper(spec)
                assert upper[0][0] <= bound, "too soon"
                assert not caught_up or upper[0][0] == bound or bound <= self.began_at[i], "stuck"
            found: Updates = Counter()
            for row in log.messages().to_pylist():
                time = tuple(row[name] for name in self.columns)
                found[time, row["k"], row["n"]] += row["_diff"]
            wanted = Counter({row: d for row, d in made(spec, self.inputs).items() if not beyond(upper, row[0])})
            if self.arity == 1:
                to = self.began_at[i]
                assert all(time[0] >= to for time, *_ in found), "before it begins"
                wanted = moved(wanted, lambda time: (max(time[0], to),))  # noqa: B023 - called in this turn
            assert {row: d for row, d in found.items() if d} == {row: d for row, d in wanted.items() if d}


def beyond(frontier: Sequence[Time], time: Time) -> bool:
    return any(all(a <= b for a, b in zip(element, time, strict=True)) for element in frontier)


def run_history(folder: Path, arity: int, rng: random.Random) -> None:
    folder.mkdir(exist_ok=True)
    world = World(folder, arity, rng)
    engines = [world.engine(), world.engine()]
    for _ in range(rng.randrange(2, 9)):
        world.note_beginnings()
        for _ in range(rng.randrange(1, 4)):
            world.write()
        if rng.random() < 0.3:
            world.rewrite()
        if arity == 1 and rng.random() < 0.4:
            world.forget()
        world.note_beginnings()
        turn, which = rng.choice(["wait", "advance", "race", "kill", "restart"]), rng.randrange(2)
        if turn == "restart":
            engines[which] = world.engine()
        if turn == "kill":
            killed_at(engines[which], rng.randrange(3))
        try:
            if turn == "race":
                other = partial(engines[1 - which].advance, runner(world.storage))
                engines[which].advance(runner(world.storage, other))
            elif turn != "wait":
                engines[which].advance(runner(world.storage))
        except KilledError:
            engines[which] = world.engine()
        world.check(caught_up=False)
    world.note_beginnings()
    world.engine().advance(runner(world.storage))
    world.check(caught_up=True)


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("seed", range(300 if os.environ.get("SPARK_TIMELY_LONG") else 4))
def test_collections_add_up_to_what_the_program_says(arity: int, seed: int, tmp_path: Path) -> None:
    run_history(tmp_path, arity, random.Random(seed))


# Wrong designs ----------------------------------------------------------------------------------------


def dropped(patch: pytest.MonkeyPatch) -> None:
    """An output begins at since without what is there."""
    patch.setattr(steps, "first_end", lambda sink, begins: begins)


def as_they_came(patch: pytest.MonkeyPatch) -> None:
    """What an output begins with stands before it begins."""
    patch.setattr(steps, "replace", lambda piece, **_: piece)
    # Read as of since, which is said next, they stand there all the same.
    patch.setattr(steps.Engine, "_forget_before", lambda *_: None)


def counted_once(patch: pytest.MonkeyPatch) -> None:
    """Results are written without their numbers."""
    found = task_runner.message_table
    patch.setattr(task_runner, "message_table", lambda *given: found(*given[:5]))


def zero_kept(patch: pytest.MonkeyPatch) -> None:
    """A sum is that of the rows that add."""
    found = collections.summed_updates

    def wrong(domain: Any, rows: pa.Table) -> pa.Table:
        return found(domain, rows.filter(pc.field("_diff") > 0))

    patch.setattr(collections, "summed_updates", wrong)


# With the seed that finds it with the least work, which is tried first.
@pytest.mark.parametrize(("mutant", "first"), [(counted_once, 9), (zero_kept, 1)])
def test_wrong_designs_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_many() -> None:
        for seed in range(first, first + 200):
            run_history(tmp_path / str(seed), 1, random.Random(seed))

    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run_many()


def begins_where_inputs_have_forgotten(folder: Path) -> None:
    """Check an output of two collections that have forgotten times up to different ones."""
    scope, wanted = Scope("flow"), Counter[str]()
    streams = []
    for which, since in enumerate([2, 5]):
        log = create_log(folder / f"in{which}", pa.schema([("k", pa.string())]), minimum=(0,), kind="collection")
        for time in range(7):
            rows = pa.table({"_time": [time], "_diff": pa.array([1], pa.int64()), "k": [f"{which} {time % 3}"]})
            log.writer(owner="test").append(rows, advance_to=time + 1)
            wanted[f"{which} {time % 3}"] += 1
        log.allow_compaction(since)
        streams.append(scope.replay(log))
    streams[0].concat(streams[1]).capture(str(folder / "out"))
    Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, now=ManualClock()).advance(runner(scope.storage))
    found: Counter[str] = Counter()
    for row in open_log(folder / "out").messages().to_pylist():
        assert row["_time"] >= 5
        found[row["k"]] += row["_diff"]
    assert found == wanted
    assert open_log(folder / "out").since() == Antichain.of(5)
    # It was not said before a crash: the next run says it.
    plain = create_log(folder / "plain", pa.schema([("k", pa.string())]), minimum=(0,))
    plain.writer(owner="test").append(pa.table({"_time": [3, 6], "k": ["a", "b"]}), advance_to=7)
    plain.allow_compaction(5)
    for said in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if not said:
                patch.setattr(steps.Engine, "_forget_before", lambda *_: None)
            scope = Scope("copy")
            scope.replay(plain).filter("k <> 'c'").capture(str(folder / "copy"))
            Engine("copy", scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))
        assert open_log(folder / "copy").since() == Antichain.of(5 if said else 0)
        scope = Scope("count")
        scope.replay(folder / "copy").aggregate(over="history", n=count()).capture(str(folder / "count"))
        with pytest.raises(SinceViolationError, match=r"found since=\[5\] in log '.*copy'"):
            Engine("count", scope.sinks, scope.storage, files_of=catalog_of).advance(runner(scope.storage))


def test_an_output_begins_where_all_inputs_are(tmp_path: Path) -> None:
    begins_where_inputs_have_forgotten(tmp_path)


@pytest.mark.parametrize("mutant", [dropped, as_they_came])
def test_wrong_beginnings_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimelyError)):
        begins_where_inputs_have_forgotten(tmp_path)
