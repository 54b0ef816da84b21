"""Peeks against adding up in plain Python: any log, cut, compaction and forgetting; with and without an index."""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.answers import keys, log_peek
from spark_timely.answers import peek as peeks
from spark_timely.answers import plan as plans
from spark_timely.answers.file_cache import KeptFiles
from spark_timely.answers.peek import PeekExplanation, peek
from spark_timely.dataflow.engine.arrangements import Arrangements, Indexing
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.views import Replay
from spark_timely.errors import TimelyError
from spark_timely.log import Log, MemoryLog, create_log
from spark_timely.log.files import parquet
from spark_timely.log.files.footer import Footer
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from spark_timely.trace.arrangement import Arrangement
from spark_timely.trace.keys import KeySet
from tests.oracles.peek_model import Update, counts, in_order, plain
from tests.property.test_dataflow import runner
from tests.support import examples

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("word", pa.string()),
        ("x", pa.float64()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)
PLAIN = ["k", "word", "x"]
NUMBERS = [None, -(1 << 63), 0, 1, 2, 3, 7]
WORDS = [None, "", "a", "ä", "b", "\U0001f600", "a" * 40]
DOUBLES = [None, 0.0, -0.0, 1.5, -math.inf, math.nan]
TAGS = [None, [], ["a"], ["a", None]]
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "k > 0": lambda row: row["k"] is not None and row["k"] > 0,
    "word IS NULL OR word LIKE '%a%'": lambda row: row["word"] is None or "a" in row["word"],
    "x >= 0": lambda row: row["x"] is not None and (math.isnan(row["x"]) or row["x"] >= 0),
    "k IN (1, 7) AND NOT (word = 'a')": lambda row: row["k"] in (1, 7) and row["word"] not in (None, "a"),
}
_TYPES = {"long": 3, "timestamp": 1_371_139_200_000_000, "date": 15_706, "int": -5}


class World:
    """A log that changes as chance has it, and all its updates."""

    def __init__(self, rng: random.Random, folder: str) -> None:
        self.rng = rng
        arity = 2 if rng.random() < 0.2 else 1
        names = [rng.choice(sorted(_TYPES)) for _ in range(arity)]
        self.kind = "collection" if rng.random() < 0.75 else "stream"
        self.least = tuple(_TYPES[name] for name in names)
        options: dict[str, Any] = {"times": tuple(names), "minimum": np.array(self.least), "kind": self.kind}
        on_disk = rng.random() < 0.6
        self.log: Log = (
            create_log(
                f"{folder}/log",
                SCHEMA,
                key=("k",) if self.kind == "collection" and rng.random() < 0.5 else (),
                flush=False,
                **options,
            )
            if on_disk
            else MemoryLog.create(SCHEMA, **options)
        )
        self.indexed = on_disk and arity == 1
        self.writer = self.log.writer(owner="me")
        self.updates: list[Update] = []
        self.open: list[Update] = []  # what may still be taken away
        self.now = self.least
        self.since = self.least
        self.key = rng.choice([("k",), ("word", "k"), ("x",)])
        self.looks: dict[tuple[str, ...], Arrangements] = {}

    def row(self) -> dict[str, Any]:
        values = (("k", NUMBERS), ("word", WORDS), ("x", DOUBLES), ("tags", TAGS))
        return {name: self.rng.choice(some) for name, some in values}

    def commit(self) -> None:
        rng, later = self.rng, []
        for _ in range(rng.choice([0, 1, 3, 30])):
            time = tuple(t + rng.choice([0, 0, 1, 2]) for t in self.now)
            if self.kind == "collection" and self.open and rng.random() < 0.4:
                begun, row, _ = self.open.pop(rng.randrange(len(self.open)))
                row = {**row, "x": -row["x"] if row["x"] == 0 else row["x"]}  # equal all the same
                later.append((tuple(map(max, begun, time)), row, -1))
            else:
                copies = rng.choice([1, 1, 2]) if self.kind == "collection" else 1
                update = time, self.row(), copies
                later.append(update)
                self.open += [update] * copies
        self.updates += later
        table = pa.Table.from_pylist([row for _, row, _ in later], SCHEMA)
        for name, column in self.log.domain.to_columns(
            np.array([time for time, _, _ in later], np.int64).reshape(-1, len(self.now))
        ).items():
            table = table.append_column(name, column)
        if self.kind == "collection":
            table = table.append_column("_diff", pa.array([diff for _, _, diff in later], pa.int64()))
        self.now = tuple(t + rng.choice([1, 2]) for t in self.now)
        self.writer.append(table, advance_to=Antichain.of(self.now))

    def step(self) -> None:
        rng = self.rng
        what = rng.random()
        if what < 0.6 or self.now == self.least:
            self.commit()
        elif what < 0.7:
            self.log.compact(target_file_size=rng.choice([1 << 10, 1 << 20]))
        elif what < 0.8 and self.kind == "collection":
            self.since = tuple(rng.randint(s, n - 1) for s, n in zip(self.since, self.now, strict=True))
            self.log.allow_compaction(Antichain.of(self.since))
            if rng.random() < 0.5:
                self.log.compact(target_file_size=1 << 20)
        else:
            self.indexes()

    def indexes(self) -> None:
        if self.indexed:
            key = self.rng.choice([self.key, self.key, ("k",), ("word", "k"), ("x",)])
            for _ in range(self.rng.choice([1, 1, 4])):  # several runs are merged into one
                self.index(key)
                self.commit()

    def index(self, key: tuple[str, ...]) -> None:
        """Have an index made or extended, as a dataflow has."""
        log = self.log
        look = Look(log.path, key, tuple(SCHEMA.names))
        leaf = Replay("log", log.domain, log.schema, (), log.path, log.kind)
        if key not in self.looks:
            settings = Indexing(0, 0, 0, background=False)
            self.looks[key] = Arrangements({log.path: log}, {log.path: catalog_of(log)}, settings)
        # Where the dataflow stands that keeps it: what is before, it moves together.
        lo = Antichain.of(self.rng.choice([self.now[0], self.rng.randint(self.since[0], self.now[0])]))
        self.looks[key].before(look, leaf, lo, log.frontier(), runner({}))


def draw_keys(rng: random.Random, key: tuple[str, ...]) -> tuple[Any, list[dict[str, Any]] | None]:
    """Return keys as a caller gives them, and one by one."""
    what = {("k",): 0.5, ("word", "k"): 0.7, ("x",): 0.9}[key] if key and rng.random() < 0.5 else rng.random()
    if what < 0.25:
        return None, None
    n = rng.choice([0, 1, 1, 2, 5, 20])
    if what < 0.6:
        values = [rng.choice([*NUMBERS, 99]) for _ in range(n)]
        given = {"k": pa.array(values, pa.int64()) if rng.random() < 0.3 else values}
        return given, [{"k": value} for value in values]
    if what < 0.8:
        pairs = [(rng.choice(WORDS), rng.choice(NUMBERS)) for _ in range(n)]
        found = [dict(zip(("word", "k"), pair, strict=True)) for pair in pairs]
        return (pa.Table.from_pylist(found, pa.schema([SCHEMA.field("word"), SCHEMA.field("k")]))
                if rng.random() < 0.3 else {("word", "k"): pairs}), found  # fmt: skip
    values = [rng.choice(DOUBLES) for _ in range(n)]
    return {"x": values}, [{"x": value} for value in values]


def draw_order(rng: random.Random) -> tuple[Any, list[tuple[str, bool, bool]]]:
    given, found = [], []
    for name in rng.sample(PLAIN, rng.choice([0, 0, 1, 2])):
        descending = rng.random() < 0.5
        nulls_first = not descending
        entry: Any = (name, "desc" if descending else "asc")
        if rng.random() < 0.5:
            nulls_first = rng.random() < 0.5
            entry = (*entry, "first" if nulls_first else "last")
        elif not descending and rng.random() < 0.5:
            entry = name
        given.append(entry)
        found.append((name, descending, nulls_first))
    return given or None, found


def check(world: World, seen: Counter[str]) -> None:
    """Peek once, and compare with the oracle."""
    rng, log = world.rng, world.log
    if world.now == world.least:
        return
    top = tuple(n - 1 for n in world.now)
    at = top
    if rng.random() < 0.6:
        at = tuple(rng.randint(low, high) for low, high in zip(world.since, top, strict=True))
    given_at = None if at == top and len(at) == 1 and rng.random() < 0.5 else np.array(at)
    keys_given, key_rows = draw_keys(rng, world.key if world.looks else ())
    where = rng.choice([None, None, *CONDITIONS])
    order_given, order = draw_order(rng)
    pool = PLAIN if order else SCHEMA.names
    select = rng.sample(pool, rng.randint(1, len(pool)))
    limit = rng.choice([None, None, 0, 1, 2, 5, 1 << 70])
    offset = rng.choice([0, 0, 1, 3, 1 << 70])
    told: list[PeekExplanation] = []
    found = peek(
        rng.choice([log, log.path]) if not isinstance(log, MemoryLog) else log,
        as_of=given_at, keys=keys_given, where=where, select=select, order_by=order_given, limit=limit, offset=offset,
        timeout_s=0, explain=told.append,
    )  # fmt: skip
    (way,) = told
    seen[way.way] += 1
    columns = list(dict.fromkeys([*select, *(name for name, _, _ in order)]))
    expected = counts(world.updates, at, columns, keys=key_rows, holds=CONDITIONS.get(where or "", lambda _: True))
    stop = None if limit is None else offset + limit
    assert found.schema.names == [*select, "_diff"]
    rows = [tuple(plain(value) for value in row.values()) for row in found.to_pylist()]
    assert all(row[-1] > 0 for row in rows), rows
    copies = [row[:-1] for row in rows for _ in range(row[-1])]
    if order:
        assert copies == [row[: len(select)] for row in in_order(expected, columns, order)[offset:stop]], way
        return
    total = sum(expected.values())
    assert len(copies) == len(range(total)[offset:stop]), way
    assert not Counter(copies) - expected, way
    if not offset and limit is None:
        assert Counter(copies) == expected, way
        assert len({row[:-1] for row in rows}) == len(rows)


def run(seed: int, *, patch: pytest.MonkeyPatch, seen: Counter[str]) -> None:
    rng = random.Random(seed)
    small = rng.choice([0, 0, 1 << 20])
    held: dict[Any, KeptFiles] = {}
    patch.setattr(
        peeks, "kept_files",
        lambda *place: held.setdefault(place, KeptFiles(small_bytes=small, budget_bytes=rng.choice([1000, 1 << 26]))),
    )  # fmt: skip
    for name in ("ROW_GROUP_ROWS", "_KEYED_ROW_GROUP_ROWS"):
        patch.setattr(parquet, name, rng.choice([2, 8, 1 << 20]))
    patch.setattr(log_peek, "_MOST_SMALL_BYTES", rng.choice([0, 1 << 24, 1 << 24]))
    patch.setattr(log_peek, "_MOST_AT_ONCE_BYTES", rng.choice([0, 500, 1 << 23]))
    patch.setattr(peeks, "_KEYS_AT_ONCE", rng.choice([1, 2, 1 << 14]))
    with tempfile.TemporaryDirectory() as folder:
        world = World(rng, folder)
        for _ in range(rng.randint(1, 8)):
            world.step()
            for _ in range(rng.choice([0, 1, 4])):
                check(world, seen)
        world.indexes()
        for _ in range(6):
            check(world, seen)


@examples(40, long=1200)
@given(st.integers(0, 1 << 32))
def test_any_peek_is_what_adding_up_gives(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        run(seed, patch=patch, seen=Counter())


def test_draws_are_answered_in_all_ways() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        with pytest.MonkeyPatch.context() as patch:
            run(seed, patch=patch, seen=seen)
    assert min(seen[way] for way in ("index", "log", "nothing")) > 20, seen


# Mistakes that must be found ---------------------------------------------------------------------------


def limit_counts_rows(patch: pytest.MonkeyPatch) -> None:
    """A limit is of rows, not of copies."""
    true = plans._begins

    def wrong(rows: pa.Table) -> Any:
        _, counts_ = true(rows)
        return np.arange(rows.num_rows), counts_

    patch.setattr(plans, "_begins", wrong)


def thinning_without_order(patch: pytest.MonkeyPatch) -> None:
    """What is thinned is cut to any rows, though there is an order."""
    true = plans.Thinning.__init__
    patch.setattr(
        plans.Thinning, "__init__", lambda self, plan: true(self, replace(plan, order=()) if plan.order else plan)
    )


def times_before(patch: pytest.MonkeyPatch) -> None:
    """Updates at the time itself do not count."""
    true = plans.counts_at
    patch.setattr(plans, "counts_at", lambda times, at, **more: true(times, tuple(t - 1 for t in at), **more))


def tail_left_out(patch: pytest.MonkeyPatch) -> None:
    """What is past an index is not read."""
    patch.setattr(peeks, "_tail", lambda *_: None)


def tail_twice(patch: pytest.MonkeyPatch) -> None:
    """What is before an index's upper is read of the log's files too."""
    true = plans.counts_at
    patch.setattr(plans, "counts_at", lambda times, at, *, since=None, lower=None: true(times, at, since=since))


def index_tells_of_all_times(patch: pytest.MonkeyPatch) -> None:
    """An index answers for times that it has moved."""
    patch.setattr(Arrangement, "may_tell", lambda *_: True)


def null_is_in_no_group(patch: pytest.MonkeyPatch) -> None:
    """Row groups with nulls are passed over by their bounds."""
    true = Footer.bounds

    def wrong(self: Any, column: str) -> Any:
        found = true(self, column)
        return None if found is None else (*found[:3], np.zeros(self.n_groups, np.bool_))

    patch.setattr(Footer, "bounds", wrong)


def stops_early(patch: pytest.MonkeyPatch) -> None:
    """Reading stops at enough copies, though later updates may take them away."""
    true = log_peek.plan_scan
    patch.setattr(peeks, "plan_scan", lambda *args, **more: replace(true(*args, **more), only_adds=True))


def stops_early_in_order(patch: pytest.MonkeyPatch) -> None:
    """Reading stops at enough copies, though there is an order."""
    true = log_peek.scan
    patch.setattr(
        peeks, "scan", lambda plan, what, held: true(replace(plan, order=(), columns=plan.columns), what, held)
    )


def two_zeros(patch: pytest.MonkeyPatch) -> None:
    """A key 0.0 does not find -0.0."""

    def wrong(self: KeySet, rows: pa.Table) -> Any:
        wanted = self._keys.to_pylist()
        return np.array(
            [row in wanted and "-0.0" not in str(row) for row in rows.select(self._keys.schema.names).to_pylist()], bool
        )

    patch.setattr(KeySet, "among", wrong)


def key_twice(patch: pytest.MonkeyPatch) -> None:
    """A key that is given twice gives its rows twice."""
    patch.setattr(keys, "_sorted", lambda table: table)

    def each_alone(plan: Any, true: Callable[[Any], pa.Table]) -> pa.Table:
        if plan.keys is None:
            return true(plan)
        return pa.concat_tables(true(replace(plan, keys=plan.keys.slice(row, 1))) for row in range(plan.keys.num_rows))

    look_up, scan = peeks.look_up, log_peek.scan
    patch.setattr(peeks, "look_up", lambda plan, *more: each_alone(plan, lambda one: look_up(one, *more)))
    patch.setattr(peeks, "scan", lambda plan, *more: (each_alone(plan, lambda one: scan(one, *more)[0]), 0))


def counted_before_columns(patch: pytest.MonkeyPatch) -> None:
    """Rows are counted with the columns that are read, and cut to those asked for afterwards."""
    true = plans.counted

    def wrong(plan: Any, parts: Sequence[Any]) -> pa.Table:
        return pa.concat_tables([true(plan, [part]) for part in parts]) if parts else true(plan, parts)

    for module in (peeks, log_peek):
        patch.setattr(module, "counted", wrong)


# With the seed that finds it with the least work, which is tried first.
MUTANTS = [
    (limit_counts_rows, 1), (thinning_without_order, 17), (times_before, 1), (tail_left_out, 17), (tail_twice, 37),
    (index_tells_of_all_times, 37), (null_is_in_no_group, 9), (stops_early, 38), (stops_early_in_order, 22),
    (two_zeros, 1), (key_twice, 1), (counted_before_columns, 54),
]  # fmt: skip


@pytest.mark.parametrize(("mutant", "first"), MUTANTS)
def test_known_mistakes_of_peeks_are_found(mutant: Callable[[pytest.MonkeyPatch], None], first: int) -> None:
    for seed in (first, *range(300)):
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch)
            try:
                run(seed, patch=patch, seen=Counter())
            except (AssertionError, TimelyError):  # a refusal of what is right finds it too
                return
    pytest.fail(f"nothing in 300 draws finds it: {mutant.__doc__}")
