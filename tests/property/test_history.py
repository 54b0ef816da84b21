"""Operators over all history against a sequential program: random histories, cuts, copies, kills and forgetting.

The program knows nothing of steps: what an operator gives at a time is said from all rows up to it. Outputs are
compared at every time up to their upper, and nothing is beyond it.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from spark_timely.dataflow import remembered
from spark_timely.dataflow.aggregates import avg_of, count, max_of, min_of, sum_of
from spark_timely.dataflow.engine import arrangements, lookups, shuffle, task_runner
from spark_timely.dataflow.engine.arrangements import Indexing
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.exact_sum import BITS, digits_of
from spark_timely.dataflow.history import best, totals
from spark_timely.dataflow.history.base import Changes, Held
from spark_timely.dataflow.history.exact import sums_as_bytes
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.errors import DataLossError, OperatorError, StorageError, TimelyError
from spark_timely.log import arrangements as log_arrangements
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import RoomError, catalog_of, reader_of
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from spark_timely.trace import keys
from spark_timely.trace.arrangement import OpenArrangement
from spark_timely.trace.folder import delete, write_spine
from spark_timely.trace.run import mapped_run, merge_pieces, write_run
from spark_timely.trace.spine import RunFile, Spine
from tests.faults.harness import long_lane
from tests.oracles.tombstones_model import said
from tests.oracles.totals_model import average, decimal_average, decimal_sum, float_average, float_sum
from tests.property.test_dataflow import KilledError, killed_at, runner

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("op", pa.string())])
Row = tuple[Any, ...]
Contents = Counter[Row]
Updates = Counter[tuple[int, Row]]  # by time and row, which is (k, n, op)


# The oracle -------------------------------------------------------------------------------------------


def at(updates: Updates, time: int) -> Contents:
    found: Contents = Counter()
    for (when, row), diff in updates.items():
        if when <= time:
            found[row] += diff
    return Counter({row: d for row, d in found.items() if d})


def place(value: Any) -> tuple[bool, Any]:
    return (value is not None, value.encode() if isinstance(value, str) else value or 0)


def by_key(contents: Contents) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in contents.elements():
        found.setdefault(row[0], []).append(row)
    return found


def counted(contents: Contents) -> Contents:
    return Counter({(k, len(rows)): 1 for k, rows in by_key(contents).items()})


def summed(contents: Contents) -> Contents:
    found = {}
    for k, rows in by_key(contents).items():
        numbers = [n for _, n, _ in rows if n is not None]
        found[k, sum(numbers) if numbers else None, min(numbers, default=None), max(numbers, default=None)] = 1
    return Counter(found)


def plainly_summed(contents: Contents) -> Contents:
    return Counter({row[:2]: 1 for row in summed(contents)})


def current(contents: Contents, *, deleted: bool) -> Contents:
    found: Contents = Counter()
    for rows in by_key(contents).values():
        newest = max(rows, key=lambda r: (place(r[1]), deleted and r[2] == "D", place(r[0]), place(r[2])))
        if not (deleted and newest[2] == "D"):
            found[newest] += 1
    return found


def greatest(contents: Contents, n: int) -> Contents:
    found: Contents = Counter()
    for rows in by_key(contents).values():
        ordered = sorted(rows, key=lambda r: (place(r[1]), place(r[0]), place(r[2])), reverse=True)
        found.update(ordered[:n])
    return found


def firsts(updates: Updates, until: int, within: int | None) -> Updates:
    found: Updates = Counter()
    last: dict[Any, int] = {}
    for time, row in sorted(updates.elements(), key=lambda x: (x[0], [place(v) for v in x[1]])):
        k = row[0]
        if time < until and (k not in last or (within is not None and time - last[k] >= within)):
            last[k] = time
            found[time, row] += 1
    return found


def joined(facts: Updates, dimension: Updates, until: int, *, how: str, strict: bool) -> Updates:
    found: Updates = Counter()
    for time, (k, n, op) in facts.elements():
        if time >= until:
            continue
        there = [row for row in at(dimension, time - 1 if strict else time).elements() if row[0] == k is not None]
        for row in there:
            found[time, (k, n, op, row[1], row[2])] += 1
        if how == "left" and not there:
            found[time, (k, n, op, None, None)] += 1
    return found


def averaged(contents: Contents) -> Contents:
    return Counter({(k, average([n for _, n, _ in rows])): 1 for k, rows in by_key(contents).items()})


# What the number of a row stands for, where decimals, bytes or floats are summed.
PRICES = {None: None, 0: Decimal("-0.01"), 1: Decimal("0.03"), 2: Decimal("9999999.99"), 5: Decimal("-1234567.89")}
FLOATS = {None: None, 0: 0.1, 1: 1e16, 2: 1.0, 5: -1e16}
PRICED = pa.schema([("k", pa.string()), ("d", pa.decimal128(9, 2)), ("b", pa.binary())])


def priced(rows: pa.Table) -> pa.Table:
    numbers = rows["n"].to_pylist()
    texts = [None if op is None else op.encode() for op in rows["op"].to_pylist()]
    return pa.table([rows["k"], pa.array(map(PRICES.get, numbers), PRICED.field(1).type), texts], schema=PRICED)


def floating(rows: pa.Table) -> pa.Table:
    return pa.table({"k": rows["k"], "x": pa.array(map(FLOATS.get, rows["n"].to_pylist()), pa.float64())})


def with_nan(rows: pa.Table) -> pa.Table:
    """Make a 5 of a row that deletes NaN, and a 1 infinite."""
    odd = {(5, "D"): math.nan, (1, "D"): math.inf}
    pairs = zip(rows["n"].to_pylist(), rows["op"].to_pylist(), strict=True)
    return pa.table({"k": rows["k"], "x": pa.array([odd.get(pair, FLOATS[pair[0]]) for pair in pairs], pa.float64())})


def prices(contents: Contents) -> Contents:
    found: Contents = Counter()
    for k, rows in by_key(contents).items():
        cents = [PRICES[n] for _, n, _ in rows]
        some = [value for value in cents if value is not None]
        texts = [op.encode() for *_, op in rows if op is not None]
        sums = decimal_sum(cents, 9, 2), decimal_average(cents, 9, 2)
        found[k, *sums, min(some, default=None), max(some, default=None), min(texts, default=None)] = 1
    return found


def float_sums(contents: Contents, *, odd: bool) -> Contents:
    found: Contents = Counter()
    for k, rows in by_key(contents).items():
        values = [FLOATS[n] for _, n, _ in rows]
        if odd:
            values = [
                {(5, "D"): math.nan, (1, "D"): math.inf}.get((n, op), value)
                for (_, n, op), value in zip(rows, values, strict=True)
            ]
        found[k, plain(float_sum(values)), plain(float_average(values))] = 1
    return found


def plain(value: Any) -> Any:
    """Return a value that is equal to itself."""
    return "nan" if value != value else value


def largest(key: object, rows: pa.Table) -> pa.Table:
    """Return the sum of a key's numbers and how many rows there are."""
    del key
    numbers, counts = rows["n"].fill_null(0).to_numpy(), rows["_count"].to_numpy()
    return pa.table({"n": pa.array([int((numbers * counts).sum())]), "rows": pa.array([int(counts.sum())])})


# The graphs: what is built, and what the program says -------------------------------------------------

Built = Callable[[Stream, Stream], Stream]
Said = Callable[[Contents], Contents]

COLLECTIONS: dict[str, tuple[Built, Said]] = {
    "count": (lambda s, _: s.aggregate(by="k", over="history", n=count()), counted),
    "all": (lambda s, _: s.aggregate(over="history", n=count()), lambda c: Counter({(c.total(),): 1} if c else {})),
    "sums": (
        lambda s, _: s.aggregate(by="k", over="history", n=sum_of("n"), lo=min_of("n"), hi=max_of("n")),
        summed,
    ),
    "sum": (lambda s, _: s.aggregate(by="k", over="history", n=sum_of("n")), plainly_summed),
    "busy": (
        lambda s, _: s.aggregate(by="k", over="history", n=count()).filter("n > 2"),
        lambda c: Counter({row: 1 for row in counted(c) if row[1] > 2}),
    ),
    "average": (lambda s, _: s.aggregate(by="k", over="history", n=avg_of("n")), averaged),
    "prices": (
        lambda s, _: s.map(priced).aggregate(
            by="k", over="history", s=sum_of("d"), a=avg_of("d"), lo=min_of("d"), hi=max_of("d"), t=min_of("b")
        ),
        prices,
    ),
    "floats": (
        lambda s, _: s.map(floating).aggregate(by="k", over="history", s=sum_of("x"), a=avg_of("x")),
        partial(float_sums, odd=False),
    ),
    "odd floats": (
        lambda s, _: s.map(with_nan).aggregate(by="k", over="history", s=sum_of("x"), a=avg_of("x")),
        partial(float_sums, odd=True),
    ),
    "latest": (lambda s, _: s.latest("k", order_by="n"), lambda c: current(c, deleted=False)),
    "current": (lambda s, _: s.latest("k", order_by="n", deleted="op = 'D'"), lambda c: current(c, deleted=True)),
    "top": (lambda s, _: s.top(2, by="k", order_by="n"), lambda c: greatest(c, 2)),
    "of_keys": (
        lambda s, _: s.latest("k", order_by="n", deleted="op = 'D'").aggregate(over="history", n=count()),
        lambda c: Counter({(current(c, deleted=True).total(),): 1} if current(c, deleted=True) else {}),
    ),
    "reduced": (
        lambda s, _: s.reduce(largest, by="k", columns=["n"]),
        lambda c: Counter({(k, sum(n or 0 for _, n, _ in rows), len(rows)): 1 for k, rows in by_key(c).items()}),
    ),
    "values": (
        lambda s, _: s.select("k").as_updates().distinct() if not s.view.updates else s.select("k").distinct(),
        lambda c: Counter({(row[0],): 1 for row in c}),
    ),
}
EVENTS: dict[str, tuple[Built, Callable[[Updates, Updates, int], Updates]]] = {
    "first": (lambda s, _: s.drop_duplicates("k"), lambda a, _, to: firsts(a, to, None)),
    "within": (lambda s, _: s.drop_duplicates("k", within=3), lambda a, _, to: firsts(a, to, 3)),
    "joined": (
        lambda s, d: s.join(d.select("k", "x", "y"), on="k", how="left", as_of=True),
        lambda a, b, to: joined(a, b, to, how="left", strict=False),
    ),
    "strictly": (
        lambda s, d: s.join(d, on="k", as_of=True, strict=True),
        lambda a, b, to: joined(a, b, to, how="inner", strict=True),
    ),
}


FORGETFUL: dict[str, tuple[Built, int]] = {
    "ending": (lambda s, _: s.latest("k", order_by="n", deleted="op = 'D'", tombstones=3), 3),
    "soon": (lambda s, _: s.latest("k", order_by="n", deleted="op = 'D'", tombstones=1), 1),
}
KEPT = "_kept_deleted"


class World:
    """A log, a dimension beside it, the outputs of a dataflow, and what was ever written."""

    def __init__(self, folder: Path, rng: random.Random, kind: str, names: list[str], type_: str = "long") -> None:
        self.folder, self.rng, self.names, self.kind = folder, rng, names, kind
        self.type_ = type_
        other = pa.schema([("k", pa.string()), ("x", pa.int64()), ("y", pa.string())])
        # A dimension where it is looked into: what else is written says nothing.
        self.kinds = [kind, "collection"] if {"joined", "strictly"} & {*names} else [kind]
        self.logs = [
            create_log(
                folder / f"in{i}", schema, times=[type_], minimum=(self.time(0),), kind=self.kinds[i],
                merge_every=rng.choice([None, 2]),
            )
            for i, schema in enumerate([SCHEMA, other][: len(self.kinds)])
        ]  # fmt: skip
        self.writers = [log.writer(owner="test") for log in self.logs]
        self.at = [0, 0]
        self.inputs: list[Updates] = [Counter(), Counter()]
        self.workers, self.limits = rng.choice([None, 1, 3]), Limits(times=rng.choice([None, 1, 2]))
        # An index from the first row on, extended after each step or now and then; or none.
        self.indexing = rng.choice(
            [
                Indexing(0, 0, 0, background=False, much_bytes=rng.choice([0, 1 << 20])),
                Indexing(0, 10**9, 2, background=False),
                Indexing(10**9),
            ]
        )
        self.storage: dict[str, dict[str, str]] = {}
        self.outputs: dict[str, Log] = {}

    def lose(self) -> None:
        """Lose or damage a file of an index: no answer changes."""
        files = [file for file in self.folder.rglob("key-*/*") if file.is_file()]
        if files:
            file = self.rng.choice(files)
            content = bytearray(file.read_bytes())
            how = self.rng.randrange(3)
            if how == 0:
                file.unlink()
            elif how == 1 or not content:
                file.write_bytes(content[: self.rng.randrange(40)])
            else:
                content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
                file.write_bytes(content)

    def time(self, number: int) -> Any:
        """Return a time as a value of its type."""
        if self.type_ == "date":
            return dt.date(2026, 1, 1) + dt.timedelta(days=number)
        if self.type_ == "timestamp":
            return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number)
        return number

    def number(self, time: Any) -> int:
        if self.type_ == "long":
            return int(time)
        apart = time - self.time(0)
        return int(apart / (dt.timedelta(days=1) if self.type_ == "date" else dt.timedelta(microseconds=1)))

    def engine(self) -> Engine:
        scope = Scope("flow")
        for name in self.names:
            streams = [scope.replay(log.path) for log in self.logs]
            made = {**COLLECTIONS, **EVENTS, **FORGETFUL}[name][0](streams[0], streams[-1])  # type: ignore[dict-item]
            made.capture(str(self.folder / name))
        self.storage = scope.storage
        return Engine(
            "flow", scope.sinks, scope.storage, files_of=catalog_of, limits=self.limits, workers=self.workers,
            twice=self.rng.random() < 0.3, indexing=self.indexing, now=ManualClock(),
            shuffle_bytes=self.rng.choice([0, 128 << 20]),
        )  # fmt: skip

    def may_go(self, which: int, time: int, row: Row) -> bool:
        """Whether a row may be taken away at a time: it is there then, and ever after."""
        later = {when for (when, other) in self.inputs[which] if other == row and when > time}
        return all(at(self.inputs[which], when)[row] > 0 for when in {time, *later})

    def write(self) -> None:
        rng, which = self.rng, self.rng.randrange(len(self.logs))
        start = self.at[which]
        rows: list[tuple[int, Row, int]] = []
        for _ in range(rng.randrange(7)):
            time = start + rng.randrange(5)
            row: Row = (rng.choice(["a", "é", None]), rng.choice([None, 0, 1, 2, 5]), rng.choice(["I", "I", "D", None]))
            if not FORGETFUL.keys().isdisjoint(self.names):
                row = (row[0], rng.choice([None, time, time, time + 2, time - rng.randrange(8)]), row[2])
            diff = 1 if self.kinds[which] == "stream" else rng.choice([1, 1, 2])
            known = [row for _, row in self.inputs[which]]
            if self.kinds[which] == "collection" and known and rng.random() < 0.5:
                gone = rng.choice(known)
                if self.may_go(which, time, gone):
                    row, diff = gone, -1
            self.inputs[which][time, row] += diff
            rows.append((time, row, diff))
        self.at[which] += rng.randrange(4)
        names = self.logs[which].schema.names
        columns: dict[str, Any] = {"_time": [self.time(time) for time, _, _ in rows]}
        columns |= {name: [row[i] for _, row, _ in rows] for i, name in enumerate(names)}
        columns["_diff"] = [diff for *_, diff in rows]
        schema = {"_time": self.logs[which].domain.types[0].arrow, "_diff": pa.int64()}
        schema |= {field.name: field.type for field in self.logs[which].schema}
        table = pa.table({name: pa.array(column, schema[name]) for name, column in columns.items()})
        if self.kinds[which] == "stream":
            table = table.drop_columns(["_diff"])
        self.writers[which].append(table, advance_to=self.time(self.at[which]))

    def rewrite(self) -> None:
        """Merge files of any log, by whoever it is; no answer changes."""
        paths = [log.path for log in self.logs] + [str(self.folder / name) for name in self.names]
        path = self.rng.choice([path for path in paths if Path(path).exists()])
        if self.rng.random() < 0.5:
            DeltaTable(path).optimize.compact()
        else:
            open_log(path).compact()

    def forget(self) -> None:
        """Let a collection forget times, not contents: an input or an output, up to where all outputs are."""
        uppers = [self.upper(name) for name in self.names]
        paths = [log.path for log, kind in zip(self.logs, self.kinds, strict=True) if kind == "collection"]
        paths += [str(self.folder / name) for name in self.names if name in COLLECTIONS]
        path = self.rng.choice([*paths, ""])
        if not path or not Path(path).exists() or min(uppers, default=0) < 2:
            return
        log = open_log(path)
        log.allow_compaction(self.time(self.rng.randrange(1, min(uppers))))
        if self.rng.random() < 0.7:
            log.compact(logical=True)

    def upper(self, name: str) -> int:
        path = self.folder / name
        return self.upper_of(open_log(path)) if path.exists() else 0

    def upper_of(self, log: Any) -> int:
        return self.number(self.decoded(log.frontier().elements[0][0]))

    def decoded(self, encoded: int) -> Any:
        return self.logs[0].domain.types[0].to_arrow([encoded])[0].as_py()

    def check(self, *, caught_up: bool) -> None:
        for name in self.names:
            if not (self.folder / name).exists():
                continue
            log = self.outputs.get(name)
            if log is None or caught_up:
                log = self.outputs[name] = open_log(self.folder / name)
            log.refresh()
            upper = self.upper_of(log)
            assert log.verify().legal
            bound = min(self.at) if name in ("joined", "strictly") else self.at[0]
            assert upper <= bound, "too soon"
            assert not caught_up or upper == bound, "stuck"
            since = self.number(self.decoded(log.since().elements[0][0]))
            found: Updates = Counter()
            for row in log.messages().to_pylist():
                time = self.number(row.pop("_time"))
                diff = row.pop("_diff", 1)
                found[time, tuple(plain(row[name]) for name in log.schema.names)] += diff
            if name in EVENTS:
                wanted = EVENTS[name][1](self.inputs[0], self.inputs[1], upper)
                assert found == wanted
                continue
            assert log.kind == "collection"
            if name in FORGETFUL:
                self.check_forgetful(name, found, since, upper)
                continue
            for time in range(since, upper):
                assert at(found, time) == COLLECTIONS[name][1](at(self.inputs[0], time)), (name, time)

    def check_forgetful(self, name: str, found: Updates, since: int, upper: int) -> None:
        """Check what is left of rows with deletions, what was set apart, and that what is not needed is gone."""
        rows = [(time, (k, n, op == "D", op)) for time, (k, n, op) in self.inputs[0].elements()]
        after, late = said([each for each in rows if each[0] < upper], FORGETFUL[name][1], (1 << 63) - 1, upper)
        for time in range(since, upper):
            assert at(found, time) == Counter((k, n, op) for k, n, gone, op in after[time] if not gone), (name, time)
        (kept,) = [open_log(path.parent) for path in (self.folder / name).glob("_spark_timely/*/_delta_log")]
        if kept.frontier() != open_log(self.folder / name).frontier():
            return
        letters = kept.dead().to_pylist()
        assert Counter((row["_time"], (row["k"], row["n"], row[KEPT], row["op"])) for row in letters) == late
        assert all("older than the deletions that are kept" in row["_reason"] for row in letters)
        states: Counter[Row] = Counter()
        for row in kept.messages().to_pylist():
            if row["_time"] < upper:
                states[row["k"], row["n"], row[KEPT], row["op"]] += row["_diff"]
        assert Counter({row: n for row, n in states.items() if n}) == (after[upper - 1] if upper else Counter())


def run_history(folder: Path, rng: random.Random, kind: str, names: list[str], type_: str = "long") -> None:
    folder.mkdir(exist_ok=True)
    world = World(folder, rng, kind, names, type_)
    engines: list[Engine | None] = [None, None]

    def engine(which: int) -> Engine:
        found = engines[which] = engines[which] or world.engine()
        return found

    for _ in range(rng.randrange(2, 8)):
        for _ in range(rng.randrange(1, 4)):
            world.write()
        turn, which = rng.choice(["wait", "advance", "race", "kill", "restart"]), rng.randrange(2)
        if turn == "restart":
            engines[which] = None
        if turn == "kill":
            killed_at(engine(which), rng.randrange(3))
        try:
            if turn == "race":
                other = partial(engine(1 - which).advance, runner(world.storage))
                engine(which).advance(runner(world.storage, other))
            elif turn != "wait":
                engine(which).advance(runner(world.storage))
        except KilledError:
            engines[which] = None
        world.check(caught_up=False)
        if rng.random() < 0.3:
            world.rewrite()
        if rng.random() < 0.3:
            world.forget()
        if rng.random() < 0.2:
            world.lose()
    world.engine().advance(runner(world.storage))
    world.check(caught_up=True)


N = 200 if long_lane() else 1
EITHER = [name for name in COLLECTIONS if "floats" not in name]


@pytest.mark.parametrize("seed", range(N))
@pytest.mark.parametrize("name", [*COLLECTIONS, *EVENTS])
def test_histories_of_events(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    run_history(tmp_path, rng, "stream", [name], rng.choice(["long", "long", "date", "timestamp"])
                if name != "within" else "long")  # fmt: skip


@pytest.mark.parametrize("seed", range(N))
@pytest.mark.parametrize("name", [*FORGETFUL])
def test_histories_with_ends(name: str, seed: int, tmp_path: Path) -> None:
    run_history(tmp_path, random.Random(f"{name} {seed}"), "stream", [name])


@pytest.mark.parametrize("seed", range(N))
@pytest.mark.parametrize("name", EITHER)
def test_histories_of_collections(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    run_history(tmp_path, rng, "collection", [name], rng.choice(["long", "date"]))


# Wrong designs ----------------------------------------------------------------------------------------


def no_memory(patch: pytest.MonkeyPatch) -> None:
    """An operator that is given nothing of what was before."""
    patch.setattr(lookups.Lookups, "__call__", lambda self, leaf, lo, keys, columns: empty_held(self, leaf, columns))


def sees_its_own_range(patch: pytest.MonkeyPatch) -> None:
    """What is there at the times of a range counts as being there before it."""
    found = lookups.Lookups.__call__

    def later(self: Any, leaf: Any, lo: Any, keys: Any, columns: Any) -> Any:
        return found(
            self, leaf, self._task.upper if leaf is not None and self._task.upper.elements else lo, keys, columns
        )

    patch.setattr(lookups.Lookups, "__call__", later)


def every_task_all_keys(patch: pytest.MonkeyPatch) -> None:
    """Tasks do not keep to their ranges of keys."""
    patch.setattr(keys.KeyRange, "holds", lambda self, hashes: np.ones(hashes.shape[0], np.bool_))


def no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """A row that deletes is not remembered."""
    found = best.Best.advance

    def forgets(self: Any, changes: Changes, held: Held, contents: Any, *, of_updates: bool) -> Changes:
        if self.deleted:
            kept = np.flatnonzero(~np.asarray(held.rows.column(best.DELETED).to_numpy()))
            held = Held(held.times, held.counts[kept], held.rows.take(pa.array(kept)))
        return found(self, changes, held, contents, of_updates=of_updates)

    patch.setattr(best.Best, "advance", forgets)


def sum_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A sum of 0 is taken for one of nothing, as it is where the state is the visible sum alone."""
    found = totals.Totals.show

    def without(self: Any, rows: pa.Table) -> pa.Table:
        shown = found(self, rows)
        return shown.filter(pc.field("n") != 0) if self.values.keys() == {"n"} else shown

    patch.setattr(totals.Totals, "show", without)


def average_is_enough(patch: pytest.MonkeyPatch) -> None:
    """An average goes on from what it gave, as if that were whole."""
    shows_itself(patch, "_kept_sum_n", lambda row: Decimal(round(row["n"] or 0) * row["_kept_n_n"]))


def float_sum_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A sum of floats goes on from what it gave."""

    def packed(row: dict[str, Any]) -> bytes:
        digits, unit = digits_of(np.array([row["s"] or 0.0]))
        return bytes(sums_as_bytes(digits, unit // BITS, 1)[0].as_py())

    shows_itself(patch, "_kept_sum_s", packed)


def shows_itself(patch: pytest.MonkeyPatch, column: str, kept: Callable[[dict[str, Any]], Any]) -> None:
    """Make a hidden column of what is shown."""
    found = totals.Totals.advance

    def advance(self: Any, changes: Changes, held: Held, contents: Any, *, of_updates: bool) -> Changes:
        rows = held.rows
        at_, field = rows.schema.get_field_index(column), rows.schema.field(column)
        rows = rows.set_column(at_, field, pa.array([kept(row) for row in rows.to_pylist()], field.type))
        return found(self, changes, replace(held, rows=rows), contents, of_updates=of_updates)

    patch.setattr(totals.Totals, "advance", advance)


def nan_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """How many values were NaN is not carried to the next step."""
    shows_itself(patch, "_kept_nan_s", lambda row: 0)


def tail_unread(patch: pytest.MonkeyPatch) -> None:
    """What is past the upper of an index is not read."""
    found = lookups.Lookups.__init__

    def short(self: Any, task: Any, *given: Any) -> None:
        before = {look: replace(each, tail=() if each.index else each.tail) for look, each in task.before.items()}
        found(self, replace(task, before=before), *given)

    patch.setattr(lookups.Lookups, "__init__", short)


def rows_in_any_bucket(patch: pytest.MonkeyPatch) -> None:
    """What goes through the shuffle is spread by its number, not by its key."""

    def spread(rows: pa.Table, by: Any, n_buckets: int) -> Any:
        del by
        return shuffle._packed(rows, np.arange(rows.num_rows) % n_buckets, n_buckets)

    patch.setattr(shuffle, "_blocks_of_rows", spread)


def empty_held(given: Any, leaf: Any, columns: Any) -> Held:
    at = given._output.own if leaf is None else leaf
    return lookups.held_of(at, at.empty().select([*at.carried, *columns]), columns)


def equal_hash_is_equal_key(patch: pytest.MonkeyPatch) -> None:
    """Rows that a run has under a hash that was asked for are taken for rows of the key: here few hashes are apart."""
    found = OpenArrangement.before

    def as_if(self: Any, wanted: Any, frontier: Any, columns: Any) -> Any:
        key = self.names.key
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(keys.KeySet, "among", lambda _, rows: np.ones(rows.num_rows, np.bool_))
            updates = found(self, wanted, frontier, columns)
        rows = updates.rows
        for name in set(key) & set(columns):
            # All of a hash get the values of the first key that has it.
            hashes = keys.key_hashes(rows, key)
            _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
            place_ = rows.schema.get_field_index(name)
            rows = rows.set_column(place_, rows.schema.field(name), rows.column(name).take(pa.array(first[which])))
        return replace(updates, rows=rows)

    few_hashes(patch)
    patch.setattr(OpenArrangement, "before", as_if)


def few_hashes(patch: pytest.MonkeyPatch) -> None:
    """Not wrong: keys that are different have equal hashes, as they may."""
    found = keys.key_hashes

    def few(rows: pa.Table, by: Any) -> Any:
        return found(rows, by) % np.uint64(2) * np.uint64(1 << 62)

    for module in (keys, task_runner, shuffle, remembered):
        patch.setattr(module, "key_hashes", few)


# With the first seed to try: where it finds the mistake, with the least work.
@pytest.mark.parametrize(
    ("mutant", "kind", "name", "first"),
    [
        (equal_hash_is_equal_key, "stream", "count", 3),
        (no_memory, "stream", "count", 16),
        (no_memory, "stream", "first", 16),
        (no_memory, "collection", "top", 6),
        (no_memory, "stream", "joined", 19),
        (sees_its_own_range, "stream", "strictly", 15),
        (every_task_all_keys, "stream", "count", 3),
        (no_tombstones, "stream", "current", 2),
        (sum_is_enough, "collection", "sum", 18),
        (average_is_enough, "collection", "average", 6),
        (float_sum_is_enough, "stream", "floats", 3),
        (nan_is_forgotten, "stream", "odd floats", 2),
        (tail_unread, "stream", "count", 5),
        (rows_in_any_bucket, "stream", "count", 1),
    ],
)
def test_wrong_designs_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    name: str,
    first: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_many() -> None:
        for seed in range(first, first + 300):
            run_history(tmp_path / str(seed), random.Random(seed), kind, [name])

    mutant(monkeypatch)
    with pytest.raises((AssertionError, TimelyError)):
        run_many()


@pytest.mark.parametrize("seed", range(2 * N))
def test_histories_where_keys_share_a_hash(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_hashes(monkeypatch)
    run_history(tmp_path, random.Random(seed), "stream", ["count", "top", "current", "joined"])


# Indexes ----------------------------------------------------------------------------------------------

RATES = pa.schema([("k", pa.string()), ("rate", pa.int64())])


def joined_with(folder: Path, name: str, rates: str, limits: Limits | None = None) -> list[tuple[int, str, int]]:
    """Return what a new dataflow gives of facts joined with rates."""
    scope = Scope(name)
    scope.replay(str(folder / "facts")).join(scope.replay(rates), on="k", as_of=True).capture(str(folder / name))
    indexing = Indexing(0, 0, 0, background=False)
    engine = Engine(
        name, scope.sinks, scope.storage, files_of=catalog_of, indexing=indexing, now=ManualClock(),
        limits=limits or Limits(),
    )  # fmt: skip
    engine.advance(runner(scope.storage))
    rows = open_log(folder / name).messages().to_pylist()
    return sorted((row["_time"], row["k"], row["rate"]) for row in rows)


def test_an_index_is_of_one_history_of_its_log(tmp_path: Path) -> None:
    rates = create_log(tmp_path / "rates", RATES, minimum=(0,), kind="collection", merge_every=None)
    facts = create_log(tmp_path / "facts", pa.schema([("k", pa.string())]), minimum=(0,))
    facts.writer(owner="me").append(pa.table({"_time": [5, 6], "k": ["a", "b"]}), advance_to=9)

    def changed(time: int, k: str, rate: int) -> None:
        rows = pa.table({"_time": [time], "_diff": pa.array([1], pa.int64()), "k": [k], "rate": [rate]})
        open_log(tmp_path / "rates").writer(owner="me").append(rows, advance_to=time + 1)

    changed(1, "a", 10)
    version = open_log(tmp_path / "rates").core.version
    changed(8, "b", 20)
    assert joined_with(tmp_path, "one", rates.path) == [(5, "a", 10)]
    assert list((tmp_path / "rates").rglob("spine-*.json"))
    DeltaTable(rates.path).restore(version)
    changed(3, "b", 30)
    changed(8, "c", 40)
    assert joined_with(tmp_path, "two", rates.path) == [(5, "a", 10), (6, "b", 30)]
    # A copy is another log of the same id and history, until either of them grows.
    shutil.copytree(tmp_path / "rates", tmp_path / "copy")
    changed(9, "a", 50)
    open_log(tmp_path / "copy").writer(owner="me").append(
        pa.table({"_time": [9], "_diff": pa.array([1], pa.int64()), "k": ["a"], "rate": [60]}), advance_to=11
    )
    facts.writer(owner="me").append(pa.table({"_time": [9], "k": ["a"]}), advance_to=10)
    assert joined_with(tmp_path, "three", rates.path)[2:] == [(9, "a", 10), (9, "a", 50)]
    assert joined_with(tmp_path, "four", str(tmp_path / "copy"))[2:] == [(9, "a", 10), (9, "a", 60)]


def test_a_log_in_an_object_store_has_no_index(tmp_path: Path) -> None:
    """As docs/how-to/history.md says: all of it is read in each step, and nothing is written beside it."""
    rates = create_log(f"memory://{tmp_path}/rates", RATES, minimum=(0,), kind="collection")
    near = create_log(tmp_path / "near", RATES, minimum=(0,), kind="collection")
    facts = create_log(tmp_path / "facts", pa.schema([("k", pa.string())]), minimum=(0,))
    scope, indexes = Scope("flow"), set()
    for log in (rates, near):
        rows = pa.table({"_time": [1], "_diff": pa.array([1], pa.int64()), "k": ["a"], "rate": [1]})
        log.writer(owner="me").append(rows, advance_to=9)
        joined = scope.replay(facts.path).join(scope.replay(log.path), on="k", as_of=True)
        joined.capture(str(tmp_path / f"of {log is near}"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=1), now=ManualClock(),
                    indexing=Indexing(0, 0, 0, background=False))  # fmt: skip

    def seen(outputs: Any, todo: Any) -> Any:
        for task in todo:
            for before in task.before.values():
                whole = sum(share.path.count("/") > 0 for share in before.whole)
                indexes.add((before.leaf.path == near.path, before.index is not None, whole > 0))
        return runner(scope.storage)(outputs, todo)

    for time in (2, 3, 4):
        facts.writer(owner="me").append(pa.table({"_time": [time], "k": ["a"]}), advance_to=time + 1)
        engine.advance(seen)
    assert indexes >= {(True, True, True), (False, False, True)}
    assert (False, True, True) not in indexes
    for place in ("of True", "of False"):
        assert open_log(tmp_path / place).messages()["rate"].to_pylist() == [1, 1, 1]
    assert not [name for name in rates.core.storage.names() if name.startswith("_spark_timely")]


def test_two_dataflows_share_an_index(tmp_path: Path) -> None:
    rates = create_log(tmp_path / "rates", RATES, minimum=(0,), kind="collection")
    rows = pa.table({"_time": [1], "_diff": pa.array([1], pa.int64()), "k": ["a"], "rate": [1]})
    rates.writer(owner="me").append(rows, advance_to=9)
    facts = create_log(tmp_path / "facts", pa.schema([("k", pa.string())]), minimum=(0,))
    facts.writer(owner="me").append(pa.table({"_time": [2], "k": ["a"]}), advance_to=3)
    assert joined_with(tmp_path, "one", rates.path) == joined_with(tmp_path, "two", rates.path) == [(2, "a", 1)]
    assert len(list((tmp_path / "rates" / "_spark_timely").iterdir())) == 1


def test_who_may_not_write_an_index_reads_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(arrangements.Arrangements, "_extend", refused)
    rates = create_log(tmp_path / "rates", RATES, minimum=(0,), kind="collection")
    rows = pa.table({"_time": [1], "_diff": pa.array([1], pa.int64()), "k": ["a"], "rate": [1]})
    rates.writer(owner="me").append(rows, advance_to=9)
    facts = create_log(tmp_path / "facts", pa.schema([("k", pa.string())]), minimum=(0,))
    facts.writer(owner="me").append(pa.table({"_time": [2], "k": ["a"]}), advance_to=3)
    assert joined_with(tmp_path, "one", rates.path) == [(2, "a", 1)]
    assert not (tmp_path / "rates" / "_spark_timely").exists()
    assert "gets no index" in caplog.text


def test_a_state_has_one_writer(tmp_path: Path) -> None:
    log = create_log(tmp_path / "in", pa.schema([("k", pa.string())]), minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [1], "k": ["a"]}), advance_to=2)
    scope = Scope("flow")
    scope.replay(log).aggregate(by="k", over="history", n=count()).capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, now=ManualClock())
    engine.advance(runner(scope.storage))
    open_log(tmp_path / "out").core.open_stream("more", owner="somebody", at=2)
    log.writer(owner="me").append(pa.table({"_time": [2], "k": ["a"]}), advance_to=3)
    with pytest.raises(DataLossError, match="'more'"):
        engine.advance(runner(scope.storage))


def test_columns_that_are_never_null_are_summed(tmp_path: Path) -> None:
    columns = pa.schema([("k", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    log = create_log(tmp_path / "in", columns, minimum=(0,))
    scope = Scope("flow")
    scope.replay(log).aggregate(by="k", over="history", s=sum_of("n"), a=avg_of("n")).capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, now=ManualClock())
    for time, n in enumerate([1, 2, 6]):
        log.writer(owner="me").append(pa.table({"_time": [time], "k": ["a"], "n": [n]}), advance_to=time + 1)
        engine.advance(runner(scope.storage))
    rows = open_log(tmp_path / "out").messages().to_pylist()
    found = {row["_time"]: (row["s"], row["a"]) for row in rows if row["_diff"] > 0}
    assert found == {0: (1, 1.0), 1: (3, 1.5), 2: (9, 3.0)}


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"half"), flipped])
def test_a_lost_run_is_made_again(damage: Callable[[Path], object], tmp_path: Path) -> None:
    test_two_dataflows_share_an_index(tmp_path)
    folder = next((tmp_path / "rates" / "_spark_timely").iterdir())
    (run,) = folder.glob("run-*")
    damage(run)
    assert joined_with(tmp_path, "three", str(tmp_path / "rates")) == [(2, "a", 1)]
    assert joined_with(tmp_path, "four", str(tmp_path / "rates")) == [(2, "a", 1)]
    newest = Spine.from_json(max(folder.glob("spine-*")).read_bytes())
    assert [(folder / each.name).stat().st_size for each in newest.runs] == [each.size_bytes for each in newest.runs]


class Counting:
    """A dataflow that counts, with an index of its output, and a log that it counts."""

    def __init__(self, folder: Path, indexing: Indexing, retain: Any = None, **settings: Any) -> None:
        self.log = create_log(folder / "in", pa.schema([("k", pa.string())]), minimum=(0,))
        self.writer, self.time, self.out = self.log.writer(owner="me"), 0, folder / "out"
        self.scope = Scope("flow")
        self.scope.replay(self.log).aggregate(by="k", over="history", n=count()).capture(str(self.out))
        self.engine = Engine(
            "flow", self.scope.sinks, self.scope.storage, files_of=catalog_of, indexing=indexing, now=ManualClock(),
            retain=retain, **settings,
        )  # fmt: skip

    def more(self, *keys: str) -> None:
        self.time += 1
        rows = pa.table({"_time": [self.time] * len(keys), "k": keys})
        self.writer.append(rows, advance_to=self.time + 1)

    def step(self, run: Any = None) -> None:
        self.engine.advance(run or runner(self.scope.storage))

    def spine(self) -> Spine:
        return Spine.from_json(max(self.out.glob("_spark_timely/key-*/spine-*")).read_bytes())

    def counts(self) -> Contents:
        rows = open_log(self.out).messages().to_pylist()
        found = Counter[Row]()
        for row in rows:
            found[row["k"], row["n"]] += row["_diff"]
        return Counter({row: n for row, n in found.items() if n})


class Rates:
    """A collection with an index by `k` that facts are joined with, one fact a dataflow."""

    def __init__(self, folder: Path, *changes: tuple[int, str, int, int]) -> None:
        self.folder, self.n = folder, 0
        self.log = create_log(folder / "rates", RATES, minimum=(0,), kind="collection", merge_every=None)
        self.facts = create_log(folder / "facts", pa.schema([("k", pa.string())]), minimum=(0,))
        self.writer = self.log.writer(owner="me")
        for change in changes:
            self.change(*change)

    def change(self, time: int, k: str, rate: int, diff: int = 1) -> None:
        rows = pa.table({"_time": [time], "_diff": pa.array([diff], pa.int64()), "k": [k], "rate": [rate]})
        self.writer.append(rows, advance_to=time + 1)

    def ask(self, time: int, *keys: str) -> None:
        """Add facts at a time that is complete in the collection."""
        rows = pa.table({"_time": [time] * len(keys), "k": keys})
        self.facts.writer(owner="me").append(rows, advance_to=time + 1)

    def answers(self) -> list[tuple[int, str, int]]:
        self.n += 1
        # One time a step: what is before a step's range is looked up.
        return joined_with(self.folder, f"flow{self.n}", self.log.path, Limits(times=1))

    @property
    def index(self) -> Path:
        (found,) = (self.folder / "rates" / "_spark_timely").iterdir()
        return found

    def spine(self) -> Spine:
        return Spine.from_json(max(self.index.glob("spine-*.json")).read_bytes())

    def write(self, spine: Spine) -> None:
        """Write a spine as the newest one, with the right checksum, whatever it says."""
        (self.index / f"spine-{spine.number:020d}.json").write_text(spine.to_json())


CHANGES = [(1, "a", 10, 1), (2, "b", 20, 1), (3, "a", 10, -1), (4, "a", 11, 1), (5, "c", 30, 1), (6, "b", 20, -1)]


def indexed(folder: Path) -> Rates:
    """Return rates whose index has several runs, and facts at two times."""
    rates = Rates(folder, *CHANGES[:4])
    rates.ask(2, "a", "b")
    rates.answers()
    for change in CHANGES[4:]:
        rates.change(*change)
    rates.ask(6, "a", "b", "c")
    return rates


ANSWERS = [(2, "a", 10), (2, "b", 20), (6, "a", 11), (6, "c", 30)]


def test_a_reader_whose_retention_expired_reads_the_log(tmp_path: Path) -> None:
    """It was away longer than what it retained: the index has moved past it, the log has not, or has too."""
    world = Counting(tmp_path, Indexing(0, 0, 0, background=False))
    for _ in range(3):
        world.more("a", "b")
        world.step()
    clock = ManualClock()
    held = open_log(world.out, clock=clock)
    held.retain("report", [2], owner="report", expiry="1 day")
    facts = create_log(tmp_path / "facts", pa.schema([("k", pa.string())]), minimum=(0,))
    facts.writer(owner="me").append(pa.table({"_time": [2, 3], "k": ["a", "b"]}), advance_to=4)

    def joined(name: str, indexing: Indexing) -> tuple[list[Row], list[bool]]:
        """Return what a dataflow gives of the counts at the times of facts, and of each look whether an index told."""
        scope, told = Scope(name), []
        scope.replay(facts.path).join(scope.replay(str(world.out)), on="k", as_of=True).capture(str(tmp_path / name))
        engine = Engine(name, scope.sinks, scope.storage, files_of=catalog_of, indexing=indexing, now=ManualClock(),
                        limits=Limits(times=1))  # fmt: skip

        def seen(outputs: Any, todo: Any) -> Any:
            told.extend(
                before.index.may_tell(task.lower)
                for task in todo for before in task.before.values() if before.index is not None
            )  # fmt: skip
            return runner(scope.storage)(outputs, todo)

        engine.advance(seen)
        rows = open_log(tmp_path / name).messages().to_pylist()
        return sorted((row["_time"], row["k"], row["n"]) for row in rows), told

    def unindexed(name: str) -> list[Row]:
        return joined(name, Indexing(10**9))[0]

    wanted = [(2, "a", 2), (3, "b", 3)]
    assert unindexed("before") == wanted
    # The retention has expired: nobody holds the times of the index back any more, and merges move them.
    clock.advance(2 * 86_400)
    for _ in range(9):
        world.more("a", "b")
        world.step()
    assert world.spine().since > 3
    found, told = joined("late", Indexing(0, 0, 0, background=False))
    assert found == wanted
    assert told, "it has no index at all"
    assert not all(told), "the index could not tell, the log did"
    # Lost as a whole, it is made again, from what the log has.
    shutil.rmtree(next(world.out.glob("_spark_timely/key-*")))
    found, _ = joined("again", Indexing(0, 0, 0, background=False))
    assert found == wanted
    assert list(world.out.glob("_spark_timely/key-*/run-*"))


def swapped(spine: Spine, *runs: RunFile) -> Spine:
    return replace(spine, number=spine.number + 1, runs=runs)


WRONG_SPINES: dict[str, Callable[[Spine], Spine]] = {
    "since beyond upper": lambda s: replace(swapped(s, *s.runs), since=(s.upper or 0) + 3),
    "since at upper": lambda s: replace(swapped(s, *s.runs), since=s.upper or 0),
    "the first run left out": lambda s: swapped(s, *s.runs[1:]),
    "the last run left out": lambda s: swapped(s, *s.runs[:-1]),
    "upper past the runs": lambda s: replace(swapped(s, *s.runs), upper=(s.upper or 0) + 1),
    "a run twice": lambda s: swapped(s, s.runs[0], *s.runs),
    "a gap": lambda s: swapped(s, s.runs[0], *(replace(run, lower=(run.lower or 0) + 1) for run in s.runs[1:])),
    "an overlap": lambda s: swapped(s, replace(s.runs[0], upper=(s.runs[0].upper or 0) + 1), *s.runs[1:]),
    "a run that ends before it begins": lambda s: swapped(s, *s.runs[:-1], replace(s.runs[-1], upper=0)),
    "a run with no rows": lambda s: swapped(s, *s.runs[:-1], replace(s.runs[-1], rows=0)),
}


@pytest.fixture(scope="module")
def several_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rates, Path]:
    """Return rates with an index of several runs, and a copy of their folder, to be put back in its place."""
    rates = indexed(tmp_path_factory.mktemp("several runs") / "now")
    rates.answers()
    # Fewer than runs are merged for.
    rates.change(8, "d", 1)
    rates.ask(8, "a", "b", "c", "d")
    rates.answers()
    before = rates.folder.with_name("before")
    shutil.copytree(rates.folder, before)
    return rates, before


@pytest.mark.parametrize("wrong", WRONG_SPINES)
def test_a_wrong_spine_is_refused_and_the_log_read(wrong: str, several_runs: tuple[Rates, Path]) -> None:
    rates, before = several_runs
    shutil.rmtree(rates.folder)
    shutil.copytree(before, rates.folder)
    spine = rates.spine()
    assert len(spine.runs) > 1
    made = WRONG_SPINES[wrong](spine)
    with pytest.raises(ValueError, match="found no spine"):
        Spine.from_json(made.to_json())
    rates.write(made)
    assert rates.answers() == [*ANSWERS, (8, "a", 11), (8, "c", 30), (8, "d", 1)]


@pytest.mark.parametrize("of", ["another log", "another key", "another place", "no Arrow"])
def test_a_wrong_run_is_refused_and_the_log_read(of: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    rates, other = indexed(tmp_path), indexed(tmp_path / "other")
    rates.answers()
    other.change(7, "z", 99)
    other.answers()
    if of == "another key":
        scope = Scope("by rate")
        facts = create_log(tmp_path / "numbers", pa.schema([("rate", pa.int64())]), minimum=(0,))
        facts.writer(owner="me").append(pa.table({"_time": [6], "rate": [30]}), advance_to=7)
        scope.replay(facts.path).join(scope.replay(other.log.path), on="rate", as_of=True).capture(str(tmp_path / "n"))
        engine = Engine(
            "by rate", scope.sinks, scope.storage, files_of=catalog_of, indexing=Indexing(0, 0, 0, background=False),
            now=ManualClock(),
        )  # fmt: skip
        engine.advance(runner(scope.storage))
    # Folders are named by the key: that by `k` is named as ours.
    theirs = (tmp_path / "other" / "rates" / "_spark_timely").iterdir()
    (folder,) = (each for each in theirs if (each.name != rates.index.name) == (of == "another key"))
    spine = rates.spine()
    run = Spine.from_json(max(folder.glob("spine-*.json")).read_bytes()).runs[-1]
    name = "run-strange.arrow"
    if of == "no Arrow":
        (rates.index / name).write_bytes(b"x" * 100)
        made = RunFile(name, 1, 100, zlib.crc32(b"x" * 100))
    elif of == "another place":
        shutil.copy(rates.index / spine.runs[0].name, rates.index / name)
        made = replace(spine.runs[0], name=name, rows=spine.runs[-1].rows)
    else:
        shutil.copy(folder / run.name, rates.index / name)
        made = replace(run, name=name)
    wrong = replace(made, lower=spine.runs[-1].lower, upper=spine.runs[-1].upper)
    rates.write(swapped(spine, *spine.runs[:-1], wrong))
    assert rates.spine().runs[-1].name == name, "the spine is good, its run is not"
    assert rates.answers() == ANSWERS
    assert not (rates.index / name).exists(), "it would be refused again and again"
    assert rates.answers() == ANSWERS
    assert name not in {each.name for each in rates.spine().runs}


@pytest.mark.parametrize("least_bytes", [0, 10**9])
@pytest.mark.parametrize("strict", [False, True])
def test_a_row_there_less_than_0_times_is_named(least_bytes: int, strict: bool, tmp_path: Path) -> None:
    """It was taken away before anybody looked; merges of runs have moved its time."""
    rates = Rates(tmp_path)
    scope = Scope("flow")
    view = scope.replay(rates.facts.path).join(scope.replay(rates.log.path), on="k", as_of=True, strict=strict)
    view.capture(str(tmp_path / "out"))
    engine = Engine(
        "flow", scope.sinks, scope.storage, files_of=catalog_of, now=ManualClock(),
        indexing=Indexing(least_bytes, 0, 0, background=False),
    )  # fmt: skip
    for time in range(1, 8):
        rates.change(time, *(("é", 10, -1) if time == 2 else ("b", time, 1)))
        rates.ask(time, "b")
        engine.advance(runner(scope.storage))
    if not least_bytes:
        assert rates.spine().since > 2
        assert len(rates.spine().runs) < 7
    rates.change(9, "b", 9)
    rates.ask(9, "é", "b")
    before = [(log.refresh(), log.core.version)[1] for log in (rates.log, rates.facts)]
    upper = open_log(tmp_path / "out").frontier()
    with pytest.raises(OperatorError, match="a row of k='é' that is there -1 times before time=9 — hint: correct the"):
        engine.advance(runner(scope.storage))
    assert [(log.refresh(), log.core.version)[1] for log in (rates.log, rates.facts)] == before
    out = open_log(tmp_path / "out")
    assert out.frontier() == upper
    assert {row["k"] for row in out.messages().to_pylist()} == {"b"}


@pytest.mark.parametrize("error", [StorageError("no network"), RoomError("too large")])
def test_a_state_that_cannot_be_read_blames_no_operator(error: Exception, tmp_path: Path) -> None:
    world = Counting(tmp_path, Indexing(10**9))
    world.more("a")
    world.step()
    world.more("a")

    def broken(outputs: Any, todo: Any) -> list[Any]:
        def read(leaf: Any, *given: Any) -> pa.Table:
            if leaf.path == str(world.out):
                raise error
            return reader_of(world.scope.storage)(leaf, *given)

        return [task_runner.run_task(task, outputs[task.output], read) for task in todo]

    with pytest.raises(type(error)):
        world.step(broken)
    assert world.counts() == {("a", 1): 1}


def test_what_a_look_reads_is_part_of_a_tasks_size(tmp_path: Path) -> None:
    world, sizes = Counting(tmp_path, Indexing(10**9)), []

    def seen(outputs: Any, todo: Any) -> Any:
        sizes.append([task.size_bytes for task in todo])
        return runner(world.scope.storage)(outputs, todo)

    for _ in range(2):
        world.more("a")
        world.step(seen)
    held = sum(file.stat().st_size for file in world.out.glob("_event=message/*.parquet"))
    assert sizes[1][0] > sizes[0][0] + held / 3


def test_a_job_finds_runs_that_were_replaced_meanwhile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = Counting(tmp_path, Indexing(0, 0, 0, background=False))
    for _ in range(4):
        world.more("a", "b")
        world.step()
    (folder,) = world.out.glob("_spark_timely/key-*")
    world.more("a")

    def replaced(outputs: Any, todo: Any) -> Any:
        """Merge all runs once the job is planned, and let nobody read the log."""
        if todo[0].index is not None:
            return runner(world.scope.storage)(outputs, todo)
        spine = world.spine()
        pieces = merge_pieces([mapped_run(str(folder), each, spine.lineage) for each in spine.runs], spine.since)
        made = RunFile("run-other", *write_run(str(folder / "run-other"), pieces, lineage=spine.lineage))
        following = spine.merged(spine.runs, made, spine.since, 0.0)
        assert following is not None
        write_spine(str(folder), following)
        delete(str(folder), [each.name for each in spine.runs])

        def read(leaf: Any, shares: Any, lo: Any, *given: Any) -> pa.Table:
            assert leaf.path != str(world.out) or lo != leaf.domain.minimum_frontier
            return reader_of(world.scope.storage)(leaf, shares, lo, *given)

        return [task_runner.run_task(task, outputs[task.output], read) for task in todo]

    world.step(replaced)
    assert world.counts() == {("a", 5): 1, ("b", 4): 1}


@pytest.mark.parametrize("checked", [True, False])
def test_index_is_made_again_once_times_moved_to_its_upper(
    checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Counting(tmp_path, Indexing(0, 10**9, 2, background=False))
    for _ in range(5):
        world.more("a", "b")
        world.step()
    upper = world.spine().upper
    assert upper is not None
    out = open_log(world.out)
    # The index is behind its log, which forgets as far as it may, and says no more what was before.
    assert out.frontier().elements[0][0] > upper
    assert out.allow_compaction(upper) == Antichain.of(upper)
    if not checked:
        monkeypatch.setattr(log_arrangements, "may_read", lambda *_: True)
    seen: list[Held] = []
    found = lookups.Lookups._held

    def held(self: Any, *given: Any) -> Held:
        seen.append(found(self, *given))
        return seen[-1]

    monkeypatch.setattr(lookups.Lookups, "_held", held)
    world.more("a")
    world.step()
    assert (seen[0].rows.num_rows == 1) == checked


def test_a_large_step_leaves_its_index_behind(tmp_path: Path) -> None:
    world = Counting(tmp_path, Indexing(0, 10**9, 10**9, background=True, much_bytes=1))
    world.more("a", "b")
    world.step()
    world.engine.end()
    assert world.spine().upper == 2
    assert world.spine().rows == 2
    small = Counting(tmp_path / "small", Indexing(0, 10**9, 10**9, background=True))
    small.more("a", "b")
    small.step()
    small.engine.end()
    assert not list((tmp_path / "small").glob("out/_spark_timely/key-*/spine-*"))


def test_what_a_dataflow_retains_itself_holds_no_times_back(tmp_path: Path) -> None:
    class Kept:
        """Retains what it was told first, and no more."""

        def __init__(self, log: Any, consumer: str) -> None:
            self.log, self.consumer, self.done = log, consumer, False

        def stand(self, needed: Any, identity: Any, log: Any = None) -> None:
            del identity, log
            if not self.done:
                self.log.core.retain_needed(self.consumer, needed, owner="dataflow flow", expiry="1 day")
                self.done = True

        def end(self) -> None:
            pass

    world = Counting(tmp_path, Indexing(0, 0, 0, background=False), Kept)
    for _ in range(9):
        world.more("a", "b")
        world.step()
    assert open_log(world.out).retainers()
    assert world.spine().since > 4
    assert world.spine().rows < 8
    assert len(list(world.out.glob("_spark_timely/key-*/run-*"))) == len(world.spine().runs)
    open_log(world.out).retain("somebody", [3], owner="somebody", expiry="1 day")
    since = world.spine().since
    for _ in range(9):
        world.more("a", "b")
        world.step()
    assert world.spine().since == since


def test_a_key_too_large_for_a_task_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Counting(tmp_path, Indexing(10**9), workers=2, shuffle_bytes=0)
    world.more(*(["hot"] * 500 + [str(number) for number in range(100)]))
    monkeypatch.setattr(shuffle, "_BUCKET_BYTES", 8000)
    with pytest.raises(OperatorError, match=r"500 rows of k='hot', about 0 MiB, among \d+ keys"):
        world.step()
    assert world.counts() == {}
    monkeypatch.setattr(shuffle, "_BUCKET_BYTES", 1 << 30)
    fresh = Counting(tmp_path / "other", Indexing(10**9), workers=2, shuffle_bytes=0)
    fresh.more(*(["hot"] * 500 + [str(number) for number in range(100)]))
    fresh.step()
    assert fresh.counts() == {("hot", 500): 1, **{(str(number), 1): 1 for number in range(100)}}


def test_large_blocks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"k": [str(number % 7) for number in range(1000)], "v": range(1000)})
    whole = list(shuffle._blocks_of_rows(rows, ["k"], 3))
    monkeypatch.setattr(shuffle, "_BLOCK_BYTES", 500)
    cut = list(shuffle._blocks_of_rows(rows, ["k"], 3))
    assert len(cut) > 20 > 3 >= len(whole)
    tables = [pa.concat_tables(shuffle.tables_of([content for _, content in each])) for each in (whole, cut)]
    assert tables[0].sort_by("v") == tables[1].sort_by("v")
    for bucket in range(3):
        keys = {k for b, content in cut if b == bucket for k in shuffle.tables_of([content])[0]["k"].to_pylist()}
        assert keys == {
            k for b, content in whole if b == bucket for k in shuffle.tables_of([content])[0]["k"].to_pylist()
        }


@pytest.mark.parametrize("name", ["latest", "reduced", "sums", "first", "kept"])
def test_outputs_that_were_moved_before_they_began_are_refused(name: str, tmp_path: Path) -> None:
    log = create_log(tmp_path / "in", SCHEMA, minimum=(0,), kind="stream")

    def engine() -> Engine:
        scope = Scope("flow")
        made = scope.replay(log)
        built = made.as_updates() if name == "kept" else {**COLLECTIONS, **EVENTS}[name][0](made, made)  # type: ignore[operator]
        built.capture(str(tmp_path / "out"))
        return Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, now=ManualClock())

    engine()
    open_log(tmp_path / "out").advance("main", 2)
    log.writer(owner="test").append(pa.table({"_time": [0], "k": ["a"], "n": [1], "op": ["I"]}), advance_to=4)
    made = engine()
    with pytest.raises(DataLossError, match=r"found its output at \[2\], before its first step") as found:
        made.advance(runner({log.path: {}, str(tmp_path / "out"): {}}))
    assert "replaces" not in str(found.value.hint)
    assert open_log(tmp_path / "out").messages().num_rows == 0


@pytest.mark.parametrize("name", ["latest", "reduced", "sums", "top"])
@pytest.mark.parametrize("at_once", [True, False])
def test_zeros_are_one_value_of_a_collection(name: str, at_once: bool, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.float64())])
    log = create_log(tmp_path / "in", schema, minimum=(0,), kind="collection")
    build: dict[str, Callable[[Stream], Stream]] = {
        "latest": lambda s: s.latest("k", order_by="n"),
        "reduced": lambda s: s.reduce(lambda _, rows: pa.table({"rows": [rows.num_rows]}), by="k"),
        "sums": lambda s: s.aggregate(by="k", over="history", n=count(), hi=max_of("n")),
        "top": lambda s: s.top(2, by="k", order_by="n"),
    }
    scope = Scope("flow")
    build[name](scope.replay(log)).capture(str(tmp_path / "out"))
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of, now=ManualClock())
    writer = log.writer(owner="test")
    said = {"latest": (0.0,), "reduced": (1,), "sums": (2, 0.0), "top": (0.0,)}[name]
    for time, (number, diff) in enumerate([(0.0, 1), (-0.0, 1), (-0.0, -1), (-0.0, -1), (-0.0, 1), (0.0, -1)]):
        writer.append(pa.table({"_time": [time], "_diff": [diff], "k": ["a"], "n": [number]}), advance_to=time + 1)
        if not at_once:
            engine.advance(runner(scope.storage))
    engine.advance(runner(scope.storage))
    out = open_log(tmp_path / "out")
    assert out.snapshot(1).select(out.schema.names).to_pylist()[0] == dict(
        zip(out.schema.names, ("a", *said), strict=True)
    )
    assert "-0.0" not in str(out.messages().to_pylist())
    assert out.snapshot(3).num_rows == out.snapshot(5).num_rows == 0
    assert out.verify().legal
