"""Deletions that are remembered for a while, against a program that goes row by row: random histories, cut in any way.

What is written up to a time must add up, at that time and at every one after it, to what is remembered: the ends of
deletions are written before they fall due. Wrong operators that look right are kept as mutants, which must be found.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.dataflow.history import tombstones
from spark_timely.dataflow.history.base import Changes, Held
from spark_timely.dataflow.history.best import DELETED
from spark_timely.dataflow.history.tombstones import LatestWithin
from spark_timely.time.domain import TimeType
from tests.oracles.tombstones_model import Row, said

SCHEMA = pa.schema([("k", pa.string()), ("o", pa.int64()), pa.field(DELETED, pa.bool_(), False), ("w", pa.string())])
UNTIL = 40
N = 20_000 if os.environ.get("SPARK_TIMELY_LONG") else 300


def latest(keeps: int, type_: TimeType = TimeType.LONG) -> LatestWithin:
    return LatestWithin(("k",), (("o", True),), 1, "latest", True, keeps=keeps, type_=type_)


def table(rows: list[Row]) -> pa.Table:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def history_of(rng: random.Random) -> list[tuple[int, Row]]:
    rows = []
    for _ in range(rng.randrange(1, 30)):
        time = rng.randrange(25)
        order = rng.choice([time, time, time - rng.randrange(12), time + rng.randrange(4), None])
        rows.append((time, (rng.choice(["a", "b", None]), order, rng.random() < 0.4, rng.choice(["x", "y", None]))))
    return rows


def driven(
    operator: LatestWithin, history: list[tuple[int, Row]], rng: random.Random
) -> tuple[Counter[tuple[int, Row]], Counter[tuple[int, Row]]]:
    """Return all updates that an operator gives in steps, and what it sets apart."""
    updates: Counter[tuple[int, Row]] = Counter()
    apart: Counter[tuple[int, Row]] = Counter()
    cuts = sorted({0, 25, *(rng.randrange(26) for _ in range(rng.choice([0, 3, 25])))})
    for lo, hi in itertools.pairwise(cuts):
        rows = [(time, row) for time, row in history if lo <= time < hi]
        rng.shuffle(rows)
        for keys in rng.choice([[["a", "b", None]], [["a"], ["b", None]]]):
            mine = [(time, row) for time, row in rows if row[0] in keys]
            if not mine:
                continue
            there: Counter[Row] = Counter()
            for (time, row), diff in updates.items():
                if time < lo:
                    there[row] += diff
            held = [row for row, diff in there.items() if diff]
            assert all(there[row] == 1 for row in held)
            rng.shuffle(held)
            given = Held(None, np.ones(len(held), np.int64), table(held))
            times = np.array([time for time, _ in mine], np.int64)
            changes = Changes(times, np.ones(len(mine), np.int64), table([row for _, row in mine]))
            made = operator.advance(changes, given, None, of_updates=False)
            assert (made.times >= lo).all()
            for time, diff, row in zip(made.times.tolist(), made.diffs.tolist(), made.rows.to_pylist(), strict=True):
                updates[time, tuple(row.values())] += diff
            if made.apart is not None:
                apart.update(mine[number] for number in made.apart.tolist())
    return updates, apart


def compare(operator: LatestWithin, seed: int) -> None:
    rng = random.Random(seed)
    history = history_of(rng)
    last = operator.type_.hi
    after, late = said(history, operator.keeps, last, UNTIL)
    updates, apart = driven(operator, history, rng)
    assert apart == late
    found: Counter[Row] = Counter()
    for time in range(UNTIL):
        for (when, row), diff in updates.items():
            if when == time:
                found[row] += diff
        assert Counter({row: n for row, n in found.items() if n}) == after[time], time


def compare_all(n: int, keeps: int = 3) -> None:
    for seed in range(n):
        compare(latest(keeps), seed)


@pytest.mark.parametrize("keeps", [1, 3, 10, (1 << 62), (1 << 64) - 1])
def test_what_is_remembered_of_random_histories(keeps: int) -> None:
    compare_all(N if keeps < 11 else N // 10, keeps)


def test_no_deletion_ends_after_the_greatest_time() -> None:
    short = TimeType.SHORT
    for order, n in ((short.hi - 10, 2), (short.hi - 9, 1), (short.hi, 1)):
        changes = Changes(np.array([short.hi]), np.ones(1, np.int64), table([("a", order, True, "x")]))
        changes = replace(changes, times=np.array([order]))
        held = Held(None, np.zeros(0, np.int64), table([]))
        made = latest(9, short).advance(changes, held, None, of_updates=False)
        assert made.times.tolist()[:n] == [order, short.hi][:n]
        assert made.times.shape[0] == n


def ends_unsaid(patch: pytest.MonkeyPatch) -> None:
    """A deletion is never forgotten."""
    patch.setattr(tombstones, "_plus", lambda values, keeps, last: (values, np.zeros(values.shape[0], np.bool_)))


def a_time_too_early(patch: pytest.MonkeyPatch) -> None:
    """A deletion is forgotten one unit of time before it should be."""
    found = tombstones._plus
    patch.setattr(tombstones, "_plus", lambda values, keeps, last: found(values, keeps - 1, last))


def believes_all(patch: pytest.MonkeyPatch) -> None:
    """What is too late is taken for new."""
    found = LatestWithin.advance

    def advance(self: LatestWithin, *given: Any, of_updates: bool) -> Changes:
        return replace(found(self, *given, of_updates=of_updates), apart=np.zeros(0, np.int64))

    patch.setattr(LatestWithin, "advance", advance)


def known_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A key that was known once is taken for known."""
    found = tombstones._known
    patch.setattr(tombstones, "_known", lambda begins, over, comes: found(begins, np.zeros_like(over), comes))


@pytest.mark.parametrize("mutant", [ends_unsaid, a_time_too_early, believes_all, known_for_ever])
def test_wrong_ways_to_forget_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        compare_all(N)
