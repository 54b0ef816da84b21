"""Operators over all history, as functions of tables, against a sequential program.

Histories of events and of collections, with keys and values of all types. They are cut into ranges of times, and each
range into groups of keys; rows come in any order and in any chunks. What a state adds up to is compared at every time.
Wrong operators that look right are kept as mutants, which must be found.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import avg_of, count, max_of, min_of, sum_of
from spark_timely.dataflow.exact_sum import BITS, digits_of
from spark_timely.dataflow.history import best, contents, totals
from spark_timely.dataflow.history.asof import join_as_of
from spark_timely.dataflow.history.base import HIDDEN, Changes, Held, HistoryOperator
from spark_timely.dataflow.history.best import DELETED, Best
from spark_timely.dataflow.history.exact import sums_as_bytes
from spark_timely.dataflow.history.first import First
from spark_timely.dataflow.history.reduce import Reduce
from spark_timely.dataflow.history.runs import nth_so_far
from spark_timely.dataflow.history.totals import Totals
from spark_timely.errors import MultiplicityOverflowError, OperatorError
from spark_timely.testing import rows_of, stream_of
from tests.oracles.totals_model import (
    Beyond,
    average,
    decimal_average,
    decimal_sum,
    float_average,
    float_sum,
)

Row = tuple[Any, ...]
Contents = Counter[Row]
Said = Callable[[Contents, Callable[[Row], Row]], Contents]
Updates = Counter[tuple[int, Row]]  # by time and row, in the order of the columns below

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [-(1 << 63), -3, 0, 2, (1 << 63) - 1]),
    "text": (pa.string(), ["", "a", "b", "é", "\U0001f600", "ｅ"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\xff", b"a"]),
    "bool": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, d, tzinfo=dt.UTC) for d in (1, 2)]),
    "decimal": (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("10.00"), Decimal("9.99")]),
    "double": (pa.float64(), [float("-inf"), -0.0, 0.0, 1.5, float("inf"), float("nan")]),
    "list": (pa.list_(pa.int64()), [[], [1], [1, 2]]),
}
DOUBLES = [
    0.1, -0.1, 1.0, 1 / 3, 1e16, -1e16, 1e308, 1.7e308, -1.7e308, 5e-324, -5e-324, 2.5e-310, 2.0**-1022,
    -(2.0**53), -0.0,
]  # fmt: skip
WHOLE = [10**38 - 1, -(10**38) + 1, 4 * 10**37, -(4 * 10**37), 3 * 10**18, -(1 << 64), 1 << 63]
VALUES |= {
    "wild": (pa.float64(), DOUBLES),
    "odd": (pa.float64(), [*DOUBLES, *DOUBLES, float("nan"), float("inf"), float("-inf")]),
    "single": (pa.float32(), [0.5, -0.25, 2.0**-149, 2.0**127, float("nan")]),
    "wide": (pa.decimal128(38, 0), [Decimal(n) for n in (7, -1, 0, 3, 10**33, -(6 * 10**33), *WHOLE[3:], WHOLE[0])]),
    "fine": (pa.decimal128(38, 38), [Decimal(n).scaleb(-38) for n in (-1, 0, 0, 1, 2, 5, *WHOLE[2:])]),
    "cents": (pa.decimal128(18, 2), [Decimal(n).scaleb(-2) for n in (-1, 0, 1, 5, 10**18 - 1, 1 - 10**18)]),
}
KEYS = ["long", "text", "bytes", "bool", "date", "timestamp", "decimal"]
ORDERED = ["long", "text", "bytes", "bool", "date", "timestamp", "decimal", "double"]
LONGS = [-5, 0, 1, 5]


@dataclass(frozen=True)
class Shape:
    """The columns of a history: two of the key, one that decides, a number, one beside them, and what was done."""

    k: str
    v: str
    w: str
    deleted: bool = False
    numbers: Sequence[int] = tuple(LONGS)

    @property
    def schema(self) -> pa.Schema:
        types = [VALUES[self.k][0], pa.string(), VALUES[self.v][0], pa.int64(), VALUES[self.w][0]]
        return pa.schema(
            [
                *zip(["k", "l", "v", "n", "w"], types, strict=True),
                pa.field(DELETED if self.deleted else "gone", pa.bool_(), False),
            ]
        )

    def row(self, rng: random.Random) -> Row:
        def one(values: Sequence[Any]) -> Any:
            return None if rng.random() < 0.2 else rng.choice(values)

        k, v, w = (one(VALUES[name][1]) for name in (self.k, self.v, self.w))
        return (k, rng.choice(["x", "y"]), v, one(self.numbers), w, rng.random() < 0.3)


def plain(value: Any) -> Any:
    """Return a value that can be counted: NaN is equal to itself, and −0.0 is not 0.0."""
    if isinstance(value, float):
        return ("double", "nan" if value != value else struct.pack(">d", value))
    return tuple(value) if isinstance(value, list) else value


def plain_row(row: Iterable[Any]) -> Row:
    return tuple(plain(value) for value in row)


def place(value: Any) -> tuple[Any, ...]:
    """Return where a value of `plain` is in the order: null, values, NaN; the bytes of a text."""
    if value is None:
        return (0,)
    if isinstance(value, tuple) and value[:1] == ("double",):
        if value[1] == "nan":
            return (2,)
        (number,) = struct.unpack(">d", value[1])
        return (1, number, value[1][0] < 128)
    return (1, value.encode() if isinstance(value, str) else value)


# The oracle -------------------------------------------------------------------------------------------


def at(updates: Updates, time: int) -> Contents:
    found: Contents = Counter()
    for (when, row), diff in updates.items():
        if when <= time:
            found[row] += diff
    return Counter({row: d for row, d in found.items() if d})


def by_key(contents: Contents, key: Callable[[Row], Row]) -> dict[Row, list[Row]]:
    found: dict[Row, list[Row]] = {}
    for row in contents.elements():
        found.setdefault(key(row), []).append(row)
    return found


def least(values: list[Any], *, greatest: bool) -> Any:
    """Return the least or greatest of values of `plain`; of floats NaN only where there is nothing else."""
    zero, minus = plain(0.0), plain(-0.0)
    some = [zero if value == minus else value for value in values if value is not None]
    numbers = [value for value in some if place(value) != (2,)] or some
    return (max if greatest else min)(numbers, key=place, default=None)


def totals_of(contents: Contents, key: Callable[[Row], Row]) -> Contents:
    found: Contents = Counter()
    for k, rows in by_key(contents, key).items():
        numbers = [row[3] for row in rows if row[3] is not None]
        values = [row[2] for row in rows]
        ends = least(values, greatest=False), least(values, greatest=True)
        found[(*k, len(rows), sum(numbers) if numbers else None, len(numbers), *ends)] = 1
    return found


def summed(contents: Contents, key: Callable[[Row], Row]) -> Contents:
    return Counter({(*row[: len(row) - 5], row[-4]): 1 for row in totals_of(contents, key)})


def number_of(value: Any) -> Any:
    """Return what `plain` was given."""
    if not isinstance(value, tuple):
        return value
    return float("nan") if value[1] == "nan" else struct.unpack(">d", value[1])[0]


Value = Callable[[list[Any]], Any]


def of_values(place: int, *said: Value) -> Said:
    """Return the program that says something of the values in one place of the rows of a key, in this order."""

    def say(contents: Contents, key: Callable[[Row], Row]) -> Contents:
        found: Contents = Counter()
        for k, rows in by_key(contents, key).items():
            values = [number_of(row[place]) for row in rows]
            found[plain_row((*k, *(each(values) for each in said)))] = 1
        return found

    return say


def how_many(values: list[Any]) -> int:
    return len(values)


def not_null(values: list[Any]) -> int:
    return sum(value is not None for value in values)


def whole_sum(values: list[Any]) -> int | None:
    some = [value for value in values if value is not None]
    return sum(some) if some else None


def bests(contents: Contents, key: Callable[[Row], Row], n: int, *, least_first: bool, deleted: bool) -> Contents:
    found: Contents = Counter()
    for rows in by_key(contents, key).values():
        rest = sorted(rows, key=lambda r: [place(r[i]) for i in (0, 1, 3, 4, 5)], reverse=True)
        if deleted:
            rest.sort(key=lambda r: r[5], reverse=True)
        rest.sort(key=lambda r: place(r[2]), reverse=not least_first)
        found.update(row[:5] if deleted else row for row in rest[:n] if not (deleted and row[5]))
    return found


def firsts_of(updates: Updates, key: Callable[[Row], Row], within: int | None) -> Updates:
    found: Updates = Counter()
    last: dict[Row, int] = {}
    for time, row in sorted(updates.elements(), key=lambda x: (x[0], [place(v) for v in x[1]])):
        if key(row) not in last or (within is not None and time - last[key(row)] >= within):
            last[key(row)] = time
            found[time, row] += 1
    return found


def of_all_rows(contents: Contents, key: Callable[[Row], Row]) -> Contents:
    """Say of each key of how many rows each number is, in the order of numbers."""
    found: Contents = Counter()
    for k, rows in by_key(contents, key).items():
        often = Counter(row[3] for row in rows)
        for rank, number in enumerate(sorted(often, key=place)):
            found[(*k, rank // 2, often[number])] += 1
    return found


def numbered(key: dict[str, Any], rows: pa.Table) -> pa.Table:
    """Give what `of_all_rows` says."""
    n = rows.num_rows
    return pa.table({"rank": pa.array([i // 2 for i in range(n)], pa.int32()), "often": rows["_count"]})


# An operator, driven in steps -------------------------------------------------------------------------


def table(rows: Sequence[Row], schema: pa.Schema, rng: random.Random) -> pa.Table:
    """Return rows in chunks of any size."""
    cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(3)))
    parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    # Of no columns, too, there are as many rows.
    whole = pa.schema([pa.field("_", pa.int64()), *schema])
    tables = []
    for part in parts:
        columns = [pa.nulls(len(part), pa.int64())]
        columns += [pa.array([row[i] for row in part], field.type) for i, field in enumerate(schema)]
        tables.append(pa.Table.from_arrays(columns, schema=whole))
    return pa.concat_tables(tables).select(schema.names)


class State:
    """What a log holds of an operator: raw rows by what they are equal to, and updates."""

    def __init__(self) -> None:
        self.raw: dict[Row, Row] = {}
        self.updates: Updates = Counter()

    def add(self, time: int, row: Row, diff: int) -> None:
        self.raw.setdefault(plain_row(row), row)
        self.updates[time, plain_row(row)] += diff

    def held(self, before: int, schema: pa.Schema, rng: random.Random, *, events: bool) -> Held:
        if events:
            found = [(t, row) for (t, row), d in self.updates.items() if t < before for _ in range(d)]
        else:
            found = [(d, row) for row, d in at(self.updates, before - 1).items()]
        rng.shuffle(found)
        numbers = np.array([number for number, _ in found], np.int64)
        rows = table([self.raw[row] for _, row in found], schema, rng)
        return Held(numbers, np.ones(len(found), np.int64), rows) if events else Held(None, numbers, rows)


def history_of(rng: random.Random, shape: Shape, *, of_updates: bool) -> State:
    """Return a history, in which no row is ever there less than 0 times."""
    state, pool = State(), [shape.row(rng) for _ in range(rng.randrange(1, 9))]
    for time in range(rng.randrange(1, 9)):
        for _ in range(rng.choice([0, 0, 1, 2, 4])):
            there = at(state.updates, time)
            if of_updates and there and rng.random() < 0.5:
                row = rng.choice(list(there))
                state.add(time, state.raw[row], -rng.randrange(1, there[row] + 1))
            else:
                row_ = rng.choice(pool) if rng.random() < 0.7 else shape.row(rng)
                state.add(time, row_, rng.choice([1, 1, 2, 3]) if of_updates else 1)
    return state


def steps_of(rng: random.Random, until: int) -> list[tuple[int, int]]:
    """Cut times into ranges."""
    way = rng.randrange(3)
    if way < 2:
        return [(0, until)] if way else [(t, t + 1) for t in range(until)]
    cuts = sorted({0, until, *(rng.randrange(until + 1) for _ in range(3))})
    return list(itertools.pairwise(cuts))


def driven(operator: HistoryOperator, history: State, shape: Shape, rng: random.Random, *, of_updates: bool) -> State:
    """Return the state of an operator after a history, cut in any way."""
    source = shape.schema
    columns = operator.needs(source)
    needed = pa.schema([source.field(name) for name in columns])
    numbers = [source.get_field_index(name) for name in columns]
    events = not operator.gives_updates(of_updates=of_updates)
    state_schema, state, contents = operator.state(source), State(), State()
    for lo, hi in steps_of(rng, 9):
        rows = [
            (t, tuple(history.raw[r][i] for i in numbers), d) for (t, r), d in history.updates.items() if lo <= t < hi
        ]
        # Each as often as it counts, or at once; and some more that come to nothing.
        rows = [one for t, r, d in rows for one in ([(t, r, d)] if of_updates else [(t, r, 1)] * d) if d]
        if of_updates and rows and rng.random() < 0.3:
            t, r, _ = rng.choice(rows)
            rows += [(t, r, 2), (t, r, -2)]
        rng.shuffle(rows)
        n_groups = rng.choice([1, 1, 3])
        places = [columns.index(name) for name in operator.by]
        given: list[tuple[int, Row, int]] = []
        for group in range(n_groups):
            mine = [each for each in rows if hash(tuple(plain(each[1][i]) for i in places)) % n_groups == group]
            if not mine:
                continue
            changes = Changes(
                np.array([t for t, _, _ in mine], np.int64), np.array([d for _, _, d in mine], np.int64),
                table([r for _, r, _ in mine], needed, rng),
            )  # fmt: skip
            held = state.held(lo, state_schema, rng, events=events)
            before = None
            if operator.arranges(of_updates=of_updates):
                before = contents.held(lo, needed, rng, events=False)
            made = operator.advance(changes, held, before, of_updates=of_updates)
            assert made.rows.schema.names == state_schema.names
            assert made.times.shape == made.diffs.shape == (made.rows.num_rows,)
            found = [tuple(row.values()) for row in made.rows.to_pylist()]
            given += zip(made.times.tolist(), found, made.diffs.tolist(), strict=True)
            assert all(lo <= t < hi for t, _, _ in given), "outside the range"
        if not events:
            assert len({(t, plain_row(r)) for t, r, _ in given}) == len(given), "not consolidated"
            assert all(d for _, _, d in given), "nothing said at length"
        for t, r, d in given:
            state.add(t, r, d)
        for t, r, d in rows:
            contents.add(t, r, d)
    return state


def shown(operator: HistoryOperator, source: pa.Schema, state: State, time: int) -> Contents:
    """Return the result at a time."""
    held = at(state.updates, time)
    names = operator.state(source).names
    rows = pa.table({"_count": list(held.values())}).append_column("_", pa.nulls(len(held)))
    for i, name in enumerate(names):
        rows = rows.append_column(
            name, pa.array([state.raw[r][i] for r in held], operator.state(source).field(name).type)
        )
    if names != operator.shown(source).names:
        rows = operator.show(rows)
    assert rows.schema.names[2:] == operator.shown(source).names
    found: Contents = Counter()
    for row in rows.drop_columns(["_"]).to_pylist():
        number, *values = row.values()
        found[plain_row(values)] += number
    return Counter({row: d for row, d in found.items() if d})


REDUCED = pa.schema([("rank", pa.int32()), ("often", pa.int64())])
VALUED = {"a": count(), "b": sum_of("n"), "c": count("n"), "d": min_of("v"), "e": max_of("v")}


def collections_of(by: tuple[str, ...]) -> dict[str, tuple[HistoryOperator, Said]]:
    order, back = (("v", True),), (("v", False),)
    return {
        "totals": (Totals(by, VALUED), totals_of),
        "sum": (Totals(by, {"s": sum_of("n")}), summed),
        "count": (Totals(by, {"s": count()}), lambda c, k: Counter({(*g, len(r)): 1 for g, r in by_key(c, k).items()})),
        "distinct": (Totals(by, {}, "distinct"), lambda c, k: Counter(dict.fromkeys(by_key(c, k), 1))),
        "latest": (Best(by, order), partial(bests, n=1, least_first=False, deleted=False)),
        "current": (Best(by, order, 1, "latest", True), partial(bests, n=1, least_first=False, deleted=True)),
        "top": (Best(by, order, 3), partial(bests, n=3, least_first=False, deleted=False)),
        "reduce": (Reduce(by, numbered, ("n",), REDUCED), of_all_rows),
        "lowest": (Best(by, back, 2), partial(bests, n=2, least_first=True, deleted=False)),
        "average": (Totals(by, {"a": avg_of("n")}), of_values(3, average)),
        "averages": (
            Totals(by, {"a": avg_of("n"), "m": count("n"), "s": sum_of("n"), "b": avg_of("n")}),
            of_values(3, average, not_null, whole_sum, average),
        ),
        **{each: of_decimals(by, each) for each in DECIMALS},
    }


DECIMALS = ["decimal", "wide", "fine", "cents"]


def of_decimals(by: tuple[str, ...], name: str) -> tuple[HistoryOperator, Said]:
    digits = VALUES[name][0].precision, VALUES[name][0].scale
    wanted = {"a": avg_of("v"), "s": sum_of("v")} if name != "cents" else {"a": avg_of("v"), "b": avg_of("v")}
    means, sums = (partial(each, precision=digits[0], scale=digits[1]) for each in (decimal_average, decimal_sum))
    return Totals(by, wanted), of_values(2, means, means if name == "cents" else sums)


def floats_of(by: tuple[str, ...]) -> dict[str, tuple[HistoryOperator, Said]]:
    """Return sums of floats: of events alone."""
    both = {"n": count(), "s": sum_of("v"), "a": avg_of("v"), "m": count("v")}
    many = Totals(by, both), of_values(2, how_many, float_sum, float_average, not_null)
    return {
        "wild": (Totals(by, {"s": sum_of("v")}), of_values(2, float_sum)),
        "wild average": (Totals(by, {"a": avg_of("v"), "b": avg_of("v")}), of_values(2, float_average, float_average)),
        "odd": many,
        "double": many,
        "single": many,
    }


def refusal_of(drive: Callable[[], State]) -> str | None:
    try:
        drive()
    except OperatorError as error:
        return error.message
    return None


def check_collection(
    name: str, seed: int, *, of_updates: bool, change: Callable[[HistoryOperator], HistoryOperator] | None = None
) -> None:
    rng = random.Random(f"{name} {seed} {of_updates}")
    by = rng.choice([("k",), ("k", "l"), ("l",), ()])
    kind = name.partition(" ")[0]
    v = kind if kind in {*DECIMALS, *floats_of(())} else rng.choice(ORDERED)
    many = [*LONGS, (1 << 63) - 1, -(1 << 63)] if name == "average" else LONGS
    shape = Shape(rng.choice(KEYS), v, rng.choice(ORDERED), name == "current", many)
    history = history_of(rng, shape, of_updates=of_updates)
    operator, oracle = {**collections_of(by), **floats_of(by)}[name]
    operator = change(operator) if change else operator
    numbers = [shape.schema.get_field_index(each) for each in by]
    try:
        wanted = [oracle(at(history.updates, time), lambda row: tuple(row[i] for i in numbers)) for time in range(9)]
    except Beyond:
        wanted = []
    drive = partial(driven, operator, history, shape, rng, of_updates=of_updates)
    if not wanted:
        refusal = refusal_of(drive)
        assert refusal is not None, "a sum that does not fit"
        assert "beyond decimal(" in refusal
        assert all(f"{each}=" in refusal for each in by), "it names the key"
        return
    state = drive()
    # Columns beside the key are in the order of the input; those of the key are equal.
    for time in range(9):
        assert shown(operator, shape.schema, state, time) == wanted[time], (name, by, time)


def check_events(seed: int, change: Callable[[HistoryOperator], HistoryOperator] | None = None) -> None:
    rng = random.Random(f"first {seed}")
    by, within = rng.choice([("k",), ("k", "l"), ()]), rng.choice([None, None, 1, 2, 3, 5])
    shape = Shape(rng.choice(KEYS), rng.choice(ORDERED), rng.choice(ORDERED))
    history = history_of(rng, shape, of_updates=False)
    operator: HistoryOperator = First(by, within)
    operator = change(operator) if change else operator
    state = driven(operator, history, shape, rng, of_updates=False)
    numbers = [shape.schema.get_field_index(each) for each in by]
    assert state.updates == firsts_of(history.updates, lambda row: tuple(row[i] for i in numbers), within)


def check_join(seed: int, join: Callable[..., Any] = join_as_of) -> None:
    rng = random.Random(f"join {seed}")
    on, how, strict = rng.choice([("k",), ("k", "l")]), rng.choice(["inner", "left"]), rng.random() < 0.5
    shape = Shape(rng.choice(KEYS), rng.choice([*VALUES]), rng.choice([*VALUES]))
    facts, dimension = history_of(rng, shape, of_updates=False), history_of(rng, shape, of_updates=True)
    source = shape.schema
    others = [name for name in ("v", "n", "w") if name not in on]
    of_dimension = pa.schema([source.field(name) for name in [*on, *others]])
    of_facts = pa.schema([*(source.field(name) for name in on), ("id", pa.int64())])
    numbers = [source.get_field_index(name) for name in of_dimension.names]
    changed, found, wanted = State(), Counter(), Counter()
    for (t, row), d in dimension.updates.items():
        changed.add(t, tuple(dimension.raw[row][i] for i in numbers), d)
    known = [
        (t, (*(facts.raw[row][source.get_field_index(name)] for name in on), i))
        for i, (t, row) in enumerate(facts.updates.elements())
    ]
    for t, row in known:
        key = plain_row(row[:-1])
        there = [r for r in at(changed.updates, t - strict).elements() if r[: len(on)] == key and None not in key]
        wanted.update((t, plain_row(row) + r[len(on) :]) for r in there)
        if how == "left" and not there:
            wanted[t, plain_row(row) + (None,) * len(others)] += 1
    for lo, hi in steps_of(rng, 9):
        mine = [(t, row) for t, row in known if lo <= t < hi]
        updates = [(t, changed.raw[r], d) for (t, r), d in changed.updates.items() if lo <= t < hi and d]
        rng.shuffle(mine)
        rng.shuffle(updates)
        changes = Changes(
            np.array([t for t, _, _ in updates], np.int64), np.array([d for _, _, d in updates], np.int64),
            table([row for _, row, _ in updates], of_dimension, rng),
        )  # fmt: skip
        held = changed.held(lo, of_dimension, rng, events=False)
        times = np.array([t for t, _ in mine], np.int64)
        times, rows = join(
            times, table([row for _, row in mine], of_facts, rng), held, changes, on=on, how=how, strict=strict
        )
        assert rows.schema.names == [*on, "id", *others]
        found.update((t, plain_row(r.values())) for t, r in zip(times.tolist(), rows.to_pylist(), strict=True))
    assert found == wanted


SEEDS = 400 if os.environ.get("SPARK_TIMELY_LONG") else 40
COLLECTIONS = [*collections_of(())]


@pytest.mark.parametrize("name", [*COLLECTIONS, *floats_of(())])
def test_operators_of_events(name: str) -> None:
    for seed in range(SEEDS):
        check_collection(name, seed, of_updates=False)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_operators_of_updates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        monkeypatch.setattr(contents, "_TURNS", 1 + 63 * (seed % 2))
        check_collection(name, seed, of_updates=True)


@pytest.mark.parametrize("name", ["latest", "top", "totals"])
def test_rows_left_out_that_matter_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_TURNS", 1)
    found = contents.Boundaries._looked_at

    def too_few(self: Any, counts: Any, keys: Any, changed: Any, sequences: Any, n: int) -> Any:
        return found(self, counts, keys, changed, sequences, 0 if sequences else n)

    monkeypatch.setattr(contents.Boundaries, "_looked_at", too_few)
    with pytest.raises(AssertionError):
        check_seeds(lambda seed: check_collection(name, seed, of_updates=True))


def test_drop_duplicates_of_events() -> None:
    for seed in range(2 * SEEDS):
        check_events(seed)


def test_join_as_of_a_collection() -> None:
    for seed in range(2 * SEEDS):
        check_join(seed)


# Wrong operators that look right ----------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong(HistoryOperator):
    """An operator whose input, state or answer is spoilt."""

    right: HistoryOperator
    before: Callable[[Changes, Held], tuple[Changes, Held]] = lambda changes, held: (changes, held)
    after: Callable[[Changes], Changes] = lambda made: made

    @property
    def by(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.right.by

    kind = property(lambda self: self.right.kind)  # type: ignore[assignment]

    def describe(self) -> str:
        return self.right.describe()

    def state(self, source: pa.Schema) -> pa.Schema:
        return self.right.state(source)

    def shown(self, source: pa.Schema) -> pa.Schema:
        return self.right.shown(source)

    def needs(self, source: pa.Schema) -> tuple[str, ...]:
        return self.right.needs(source)

    def gives_updates(self, *, of_updates: bool) -> bool:
        return self.right.gives_updates(of_updates=of_updates)

    def arranges(self, *, of_updates: bool) -> bool:
        return self.right.arranges(of_updates=of_updates)

    def show(self, rows: pa.Table) -> pa.Table:
        return self.right.show(rows)

    def advance(self, changes: Changes, held: Held, contents: Held | None, *, of_updates: bool) -> Changes:
        changes, held = self.before(changes, held)
        return self.after(self.right.advance(changes, held, contents, of_updates=of_updates))


def without_tombstones(changes: Changes, held: Held) -> tuple[Changes, Held]:
    there = ~np.asarray(held.rows.column(DELETED).to_numpy())
    return changes, Held(None, held.counts[there], held.rows.filter(pa.array(there)))


def of_visible_alone(changes: Changes, held: Held) -> tuple[Changes, Held]:
    """Take a key for one row, and a sum of 0 for none."""
    rows = held.rows
    some = np.asarray(rows.column("s").fill_null(0).to_numpy()) != 0
    for name in (name for name in rows.schema.names if name.startswith(HIDDEN)):
        rows = rows.set_column(
            rows.schema.get_field_index(name), rows.schema.field(name), pa.array(some.astype(np.int64))
        )
    return changes, Held(None, held.counts, rows)


def at_one_time(changes: Changes, held: Held) -> tuple[Changes, Held]:
    return replace(changes, times=np.full_like(changes.times, changes.times.max())), held


def rows_of_zero(made: Changes) -> Changes:
    """Give a row of 0 where a key vanishes."""
    rows = made.rows
    taken = [(t, d, tuple(row.values())) for t, d, row in zip(made.times, made.diffs, rows.to_pylist(), strict=True)]
    kept = {(t, row[:-1]) for t, d, row in taken if d > 0}
    taken += [(t, np.int64(1), (*row[:-1], 0)) for t, d, row in taken if d < 0 and (t, row[:-1]) not in kept]
    found = table([row for _, _, row in taken], rows.schema, random.Random(0))
    return Changes(np.array([t for t, _, _ in taken], np.int64), np.array([d for _, d, _ in taken], np.int64), found)


def with_column(held: Held, name: str, values: Sequence[Any]) -> Held:
    rows = held.rows
    place, field = rows.schema.get_field_index(name), rows.schema.field(name)
    return replace(held, rows=rows.set_column(place, field, pa.array(values, field.type)))


def mean_times_count(changes: Changes, held: Held) -> tuple[Changes, Held]:
    """Take for the sum what the average that is shown makes of it."""
    rows = held.rows.to_pylist()
    sums = [Decimal(0 if row["a"] is None else int(row["a"] * row["_kept_n_a"])) for row in rows]
    return changes, with_column(held, "_kept_sum_a", sums)


def rounded_sum(changes: Changes, held: Held) -> tuple[Changes, Held]:
    """Take for the exact sum the one that is shown."""
    sums = np.nan_to_num(held.rows.column("s").fill_null(0.0).to_numpy())
    digits, unit = digits_of(sums)
    return changes, with_column(held, "_kept_sum_s", sums_as_bytes(digits, unit // BITS, len(sums)).to_pylist())


def forgotten(what: str) -> Callable[[Changes, Held], tuple[Changes, Held]]:
    return lambda changes, held: (changes, with_column(held, f"_kept_{what}_s", [0] * held.rows.num_rows))


def last_seen(changes: Changes, held: Held) -> tuple[Changes, Held]:
    """Take each held row to have come once more, just before."""
    assert held.times is not None
    return changes, replace(held, times=np.maximum(held.times, changes.times.min() - 1))


MUTANTS: dict[str, tuple[str, bool, Callable[[HistoryOperator], HistoryOperator]]] = {
    "latest without tombstones": ("current", False, lambda o: Wrong(o, before=without_tombstones)),
    "sum from its own output alone": ("sum", True, lambda o: Wrong(o, before=of_visible_alone)),
    "count with rows of 0": ("count", True, lambda o: Wrong(o, after=rows_of_zero)),
    "times of a step as one": ("count", False, lambda o: Wrong(o, before=at_one_time)),
    "times of a step as one, latest": ("latest", True, lambda o: Wrong(o, before=at_one_time)),
    "average from what is shown": ("average", True, lambda o: Wrong(o, before=mean_times_count)),
    "float sum from what is shown": ("wild", False, lambda o: Wrong(o, before=rounded_sum)),
    "NaN lost at the next step": ("odd", False, lambda o: Wrong(o, before=forgotten("nan"))),
    "infinity lost at the next step": ("odd", False, lambda o: Wrong(o, before=forgotten("inf"))),
    "number of nulls lost": ("wild", False, lambda o: Wrong(o, before=forgotten("n"))),
    "top that forgets": ("top", False, lambda o: replace(o, n=2)),  # type: ignore[type-var]
}


def check_seeds(check: Callable[[int], None]) -> None:
    for seed in range(SEEDS):
        check(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_collections_are_found(name: str) -> None:
    operator, of_updates, change = MUTANTS[name]
    with pytest.raises((AssertionError, OperatorError)):
        check_seeds(partial(check_collection, operator, of_updates=of_updates, change=change))


def summed_one_by_one(values: Sequence[float], change: Callable[[HistoryOperator], HistoryOperator]) -> list[float]:
    """Return the sums after each of some values, of which each is a step."""
    operator = change(Totals((), {"s": sum_of("x")}))
    rows = [pa.table({"x": [value]}) for value in values]
    held, found = Held(None, np.zeros(0, np.int64), operator.state(rows[0].schema).empty_table()), []
    for time, row in enumerate(rows):
        made = operator.advance(Changes(np.array([time]), np.ones(1, np.int64), row), held, None, of_updates=False)
        if made.rows.num_rows:
            held = Held(None, np.ones(1, np.int64), made.rows.filter(pa.array(made.diffs > 0)))
        found += held.rows.column("s").to_pylist()
    return found


def test_rounded_sums_of_floats_are_mostly_wrong() -> None:
    rng, wrong = random.Random(7), []
    for _ in range(SEEDS):
        values = [rng.uniform(-1, 1) * 10 ** rng.randrange(6) for _ in range(20)]
        wanted = [float_sum(values[: n + 1]) for n in range(20)]
        assert summed_one_by_one(values, lambda o: o) == wanted
        wrong.append(summed_one_by_one(values, lambda o: Wrong(o, before=rounded_sum)) != wanted)
    assert sum(wrong) > SEEDS / 2


def beyond_wraps(patch: pytest.MonkeyPatch) -> None:
    """A decimal that does not fit is cut to 38 digits."""
    right = totals.decimals_of

    def wrapped(numbers: Any, type_: pa.Decimal128Type, nothing: Any) -> pa.Array:
        most = 10**type_.precision
        cut = np.array([(abs(n) % most) * (1 if n > 0 else -1) for n in numbers.tolist()], object)
        return right(cut, type_, nothing)

    patch.setattr(totals, "fits", lambda numbers, type_: np.ones(numbers.shape[0], np.bool_))
    patch.setattr(totals, "decimals_of", wrapped)


def halves_to_even(patch: pytest.MonkeyPatch) -> None:
    """Halves of a decimal average go to the even one."""

    def rounded(sums: Any, counts: Any, places: int) -> Any:
        made = [round(Fraction(s * 10**places, c)) for s, c in zip(sums.tolist(), counts.tolist(), strict=True)]
        return np.array(made, object)

    patch.setattr(totals, "rounded_quotients", rounded)


@pytest.mark.parametrize("mutant", [beyond_wraps, halves_to_even])
def test_wrong_decimals_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_seeds(partial(check_collection, "fine", of_updates=True))


WITHIN: dict[str, Callable[[HistoryOperator], HistoryOperator]] = {
    "never again": lambda o: replace(o, within=None),  # type: ignore[type-var]
    "one less": lambda o: replace(o, within=o.within and o.within - 1),  # type: ignore[type-var,attr-defined]
    "one more": lambda o: replace(o, within=o.within and o.within + 1),  # type: ignore[type-var,attr-defined]
    "since it was last seen": lambda o: Wrong(o, before=last_seen),
    "of this step alone": lambda o: Wrong(
        o, before=lambda c, h: (c, Held(np.zeros(0, np.int64), h.counts[:0], h.rows.slice(0, 0)))
    ),
}


@pytest.mark.parametrize("name", WITHIN)
def test_wrong_first_rows_are_found(name: str) -> None:
    with pytest.raises(AssertionError):
        check_seeds(partial(check_events, change=WITHIN[name]))


def test_ties_broken_by_arrival_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = best.ranks_of

    def by_order_alone(rows: pa.Table, order: Sequence[tuple[str, bool]], **more: Any) -> Any:
        return right(rows.select([name for name, _ in order]), order, **more)

    monkeypatch.setattr(best, "ranks_of", by_order_alone)
    with pytest.raises(AssertionError):
        check_seeds(partial(check_collection, "latest", of_updates=False))


def test_wrong_joins_are_found() -> None:
    def with_nulls(times: Any, facts: pa.Table, held: Held, changes: Changes, **more: Any) -> Any:
        """Let nulls agree: of texts by a text that stands for them."""
        if not pa.types.is_string(facts.schema.field("k").type):
            return join_as_of(times, facts, held, changes, **more)

        def filled(rows: pa.Table) -> pa.Table:
            return rows.set_column(rows.schema.get_field_index("k"), "k", rows.column("k").fill_null("?"))

        return join_as_of(
            times,
            filled(facts),
            replace(held, rows=filled(held.rows)),
            replace(changes, rows=filled(changes.rows)),
            **more,
        )

    def always_strict(*given: Any, **more: Any) -> Any:
        return join_as_of(*given, **{**more, "strict": True})

    for wrong in (with_nulls, always_strict):
        with pytest.raises(AssertionError):
            check_seeds(partial(check_join, join=wrong))


def test_huge_counts_change_no_best_row() -> None:
    big = 1 << 62
    rows = {"_time": [1] * 4, "_diff": [big] * 4, "k": ["a"] * 4, "v": [1, 2, 3, 4]}
    (found,) = rows_of(stream_of(rows).top(1, by="k", order_by="v"))
    assert (found["v"], found["_diff"]) == (4, 1)
    most = rows_of(stream_of(rows).top(big + 1, by="k", order_by="v"))
    assert {(row["v"], row["_diff"]) for row in most} == {(4, big), (3, 1)}


def test_sums_have_64_bits_and_no_more() -> None:
    least = -(1 << 63)
    (found,) = rows_of(
        stream_of({"_time": [1], "k": ["a"], "v": [least]}).aggregate(by="k", over="history", s=sum_of("v"))
    )
    assert found["s"] == least
    rows = {"_time": [1, 1], "_diff": [1 << 62, 1 << 62], "k": ["a", "a"], "v": [1, 2]}
    with pytest.raises(OperatorError, match=r"number of rows of k='a' beyond 64 bits at time=1"):
        rows_of(stream_of(rows).aggregate(by="k", over="history", n=count()))


def test_the_nth_greatest_so_far_of_any_runs() -> None:
    rng = random.Random(5)
    for _ in range(400):
        runs = [[rng.randrange(rng.choice([2, 9, 1 << 40])) for _ in range(rng.randrange(1, 30))] for _ in range(4)]
        places = np.array([place for run in runs for place in run], np.int64)
        starts = np.cumsum([0, *(len(run) for run in runs[:-1])])
        n = rng.choice([1, 2, 3, 7, 20, 1 << 40])
        said = [sorted(run[:i], reverse=True)[n - 1] if i >= n else -1 for run in runs for i in range(len(run))]
        assert nth_so_far(places, starts, n).tolist() == said
    assert nth_so_far(np.zeros(0, np.int64), np.zeros(0, np.int64), 3).tolist() == []


@pytest.mark.parametrize("n", [1, 3, 5, 40, 1 << 62])
def test_the_best_of_keys_with_many_rows(n: int) -> None:
    rng = random.Random(n)
    shape, by = Shape("bool", "long", "text"), ("k",)
    operator, seen = Best(by, (("v", True),), n), State()
    for time in range(9):
        for _ in range(rng.randrange(20)):
            k, other, v, number, w, gone = shape.row(rng)
            seen.add(time, (k, other, rng.randrange(100) if v is not None else None, number, w, gone), 1)
    state = driven(operator, seen, shape, rng, of_updates=False)
    for time in range(9):
        said = bests(at(seen.updates, time), lambda row: row[:1], n, least_first=False, deleted=False)
        assert shown(operator, shape.schema, state, time) == said


MANY = 1 << 62


@pytest.mark.parametrize("turns", [[MANY] * 4, [MANY], [MANY, MANY - 1]])
@pytest.mark.parametrize("held", [0, MANY])
def test_counts_beyond_64_bits_are_refused_by_name(turns: list[int], held: int) -> None:
    rows = pa.table({"k": ["a"] * len(turns), "v": [1] * len(turns)})
    changes = Changes(np.full(len(turns), 3), np.array(turns), rows)
    contents = Held(None, np.full(int(held > 0), held), rows.slice(0, int(held > 0)))
    empty = Held(None, np.zeros(0, np.int64), rows.slice(0, 0))
    calls: list[Callable[[], Any]] = [
        lambda: Best(("k",), (("v", True),), 2).advance(changes, empty, contents, of_updates=True),
        lambda: Reduce(("k",), numbered, ("v",), REDUCED).advance(
            changes, Held(None, np.zeros(0, np.int64), pa.schema([("k", pa.string()), *REDUCED]).empty_table()),
            contents, of_updates=True,
        ),
    ]  # fmt: skip
    if sum(turns) + held >= 1 << 63:
        facts = pa.table({"k": ["a"]})
        calls.append(lambda: join_as_of(np.array([3]), facts, contents, changes, on=("k",), how="left", strict=False))
        for call in calls:
            with pytest.raises(
                (OperatorError, MultiplicityOverflowError), match=f"{sum(turns) + held}|{sum(turns)}"
            ) as found:
                call()
            assert "2^63" in str(found.value.hint)
    else:
        assert calls[0]().diffs.sum() == 2
        assert calls[1]().rows["often"].to_pylist() == [sum(turns) + held]
