"""Frontiers under changing counts: the same by every way that counts can be kept, and by definition."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spark_timely.errors import InvalidShapeError
from spark_timely.progress import frontier as module
from spark_timely.progress.count_table import CountTable
from spark_timely.progress.frontier import MutableAntichain
from spark_timely.progress.subgraph import Refines
from spark_timely.time.antichain import Antichain, as_times
from tests.faults.harness import long_lane
from tests.modules import ROOT
from tests.oracles import order_model as model

Changes = list[tuple[model.Time, int]]
WAYS = ("pairs", "arrays", "table")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how changes are handed over; `table` makes every batch of arrays a large one."""
    if request.param == "table":
        monkeypatch.setattr(module, "_LARGE", 1)
        monkeypatch.setattr(module, "_tables", CountTable)
    return str(request.param)


def feed(state: MutableAntichain, changes: Changes, way: str) -> Changes:
    """Apply changes in the way asked for; return the moves of the frontier."""
    if way == "pairs":
        return state.update_pairs(changes)
    times, diffs = state.update_iter(
        as_times([t for t, _ in changes], state.arity), np.array([d for _, d in changes], dtype=np.int64)
    )
    assert times.shape == (diffs.size, state.arity)
    return list(zip(map(tuple, times.tolist()), diffs.tolist(), strict=True))


class Oracle:
    """Counts and minima by definition."""

    def __init__(self) -> None:
        self.counts: Counter[model.Time] = Counter()
        self.frontier: list[model.Time] = []

    def feed(self, changes: Changes) -> Changes:
        before = self.frontier
        for time, diff in changes:
            self.counts[time] += diff
        self.frontier = model.minima(t for t, count in self.counts.items() if count > 0)
        return model.consolidate([(t, -1) for t in before] + [(t, 1) for t in self.frontier])


def agree(state: MutableAntichain, oracle: Oracle) -> None:
    assert list(state.frontier) == oracle.frontier
    assert state.is_empty == (not oracle.frontier)
    held, counts = state.counts()
    assert list(zip(map(tuple, held.tolist()), counts.tolist(), strict=True)) == model.consolidate(
        oracle.counts.items()
    )


def drawn(rng: random.Random, arity: int, span: int, n: int, low: int = 0) -> Changes:
    return [(tuple(rng.randint(low, low + span) for _ in range(arity)), rng.randint(-2, 3)) for _ in range(n)]


@pytest.mark.parametrize("arity", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(50 if long_lane() else 2))
def test_any_changes_move_the_frontier_as_defined(way: str, arity: int, seed: int) -> None:
    rng = random.Random(1000 * arity + seed)
    state, oracle = MutableAntichain(arity), Oracle()
    low = rng.choice([0, -5, -(1 << 63), (1 << 63) - 20])
    for _ in range(30):
        changes = drawn(rng, arity, rng.choice([2, 9]), rng.choice([0, 1, 2, 5, 40]), low)
        assert feed(state, changes, way) == oracle.feed(changes)
        agree(state, oracle)
        for time, _ in changes:
            assert state.count_for(time) == oracle.counts[time]
            assert state.less_equal(time) == model.is_beyond(time, oracle.frontier)
            assert state.less_than(time) == any(f != time and model.less_equal(f, time) for f in oracle.frontier)


@pytest.mark.parametrize("arity", [1, 2, 3])
def test_ways_taken_in_turn_leave_the_same_counts(arity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches after large ones bring the counts back from the table, and large ones there again."""
    monkeypatch.setattr(module, "_LARGE", 20)
    monkeypatch.setattr(module, "_tables", CountTable)
    rng = random.Random(arity)
    state, oracle = MutableAntichain(arity), Oracle()
    seen = set()
    for _ in range(150):
        changes = drawn(rng, arity, 4, rng.choice([1, 1, 1, 2, 30]))
        assert feed(state, changes, rng.choice(WAYS)) == oracle.feed(changes)
        agree(state, oracle)
        seen.add(state._table is not None)
    assert seen == {True, False}


def test_unsigned_times_above_the_signed_ones_are_counted(way: str) -> None:
    top = (1 << 64) - 1
    state, oracle = MutableAntichain(2), Oracle()
    batches: list[Changes] = [
        [((0, 5), 1), ((3, 3), 1)],
        [((0, top), 2), ((top, 0), 1)],
        [((0, 5), -1), ((top, top), 1)],
        [((3, 3), -1), ((0, top), -2)],
        [((top, 0), -1)],
    ]
    for changes in batches:
        assert feed(state, changes, way) == oracle.feed(changes)
        agree(state, oracle)
    assert list(state.frontier) == [(top, top)]


def test_counts_below_zero_bound_nothing_and_are_remembered(way: str) -> None:
    state = MutableAntichain()
    assert feed(state, [((3,), -1)], way) == []
    assert state.is_empty
    assert state.count_for(3) == -1
    assert feed(state, [((3,), 1), ((5,), 1)], way) == [((5,), 1)]
    assert feed(state, [((3,), 1)], way) == [((3,), 1), ((5,), -1)]


def test_changes_that_cancel_in_a_batch_move_no_frontier(way: str) -> None:
    state = MutableAntichain.from_times([[2, 2]])
    assert feed(state, [((1, 1), 1), ((2, 2), -1), ((1, 1), -1), ((2, 2), 1)], way) == []
    assert list(state.frontier) == [(2, 2)]


def test_a_wrong_arity_is_refused_and_changes_nothing() -> None:
    for arity in (1, 2):
        state, wrong = MutableAntichain(arity), (1,) * (3 - arity)
        for no_time in (wrong, 1, None):
            with pytest.raises(InvalidShapeError, match=f"could not count time=.*expected arity={arity}"):
                state.update_pairs([((1,) * arity, 1), ((1,) * arity, 1), (no_time, 1)])  # type: ignore[list-item]
        with pytest.raises(InvalidShapeError, match="expected shape"):
            state.update_iter(np.array([wrong]), np.array([1]))
        with pytest.raises(InvalidShapeError, match="could not count time="):
            state.count_for(wrong)
        assert state.counts()[1].size == 0
    with pytest.raises(InvalidShapeError, match="could not read diffs"):
        MutableAntichain().update_iter([1, 2], [1])


def test_arrays_of_any_layout_are_counted_and_left_alone(way: str) -> None:
    wide = np.arange(12).reshape(6, 2)[::-1]
    frozen = wide.copy()
    frozen.flags.writeable = False
    signs = np.ones(12, dtype=np.int64)[::2]
    for times in (wide, np.asfortranarray(wide), frozen, wide.astype(np.int32), wide.astype(np.uint64)):
        state = MutableAntichain(2)
        moved, entered = state.update_iter(times, signs)
        assert (moved.tolist(), entered.tolist()) == ([[0, 1]], [1])
        assert np.array_equal(times, wide)
    del way


def test_what_update_iter_returned_is_the_callers(way: str) -> None:
    state = MutableAntichain(2)
    first, _ = state.update_iter(np.array([[1, 2], [2, 1]]), np.array([1, 1]))
    first[:] = 99
    assert list(state.frontier) == [(1, 2), (2, 1)]
    assert feed(state, [((1, 2), -1)], way) == [((1, 2), -1)]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_copy_shares_nothing(way: str, copied: Callable[[MutableAntichain], MutableAntichain]) -> None:
    state = MutableAntichain(2)
    feed(state, [((1, 2), 1), ((2, 1), 1)], way)
    other = copied(state)
    feed(state, [((1, 2), -1)], way)
    assert list(other.frontier) == [(1, 2), (2, 1)]
    assert list(state.frontier) == [(2, 1)]


def test_from_times_counts_each_occurrence() -> None:
    state = MutableAntichain.from_times([5, 7, 7])
    assert [state.count_for(t) for t in (5, 6, 7)] == [1, 0, 2]
    assert MutableAntichain.from_times((), 2).frontier == Antichain.empty(2)
    assert state.beyond([4, 5]).tolist() == [False, True]


@pytest.mark.parametrize("arity", [2, 3])
def test_a_wide_frontier_comes_and_goes_at_once(way: str, arity: int) -> None:
    n = 1500  # more than are compared one by one
    times = np.stack([np.arange(n), np.arange(n)[::-1], *[np.zeros(n, dtype=np.int64)] * (arity - 2)], axis=1)
    state = MutableAntichain(arity)
    ones = np.ones(n, dtype=np.int64)
    if way == "pairs":
        state.update_pairs([(tuple(t), 1) for t in times.tolist()])
    else:
        state.update_iter(times, ones)
    assert np.array_equal(state.frontier.times, times)
    moved, signs = state.update_iter(times[::2], -ones[::2])
    assert np.array_equal(moved, times[::2])
    assert (signs == -1).all()
    assert len(state.frontier) == n // 2
    moved, signs = state.update_iter(np.zeros((1, arity), dtype=np.int64), ones[:1])
    assert moved.shape[0] == 1 + n // 2
    assert state.frontier == Antichain.of((0,) * arity)


def test_rule_000_27_and_44_only_frontier_changes_come_out(way: str) -> None:
    """Counts go up and down; who is told hears of the first and of the last at a minimal time, and of nothing else."""
    state = MutableAntichain()
    said = [
        feed(state, changes, way)
        for changes in (
            [((3,), 2)],
            [((3,), 5), ((4,), 1)],
            [((3,), -6), ((9,), 1)],
            [((4,), 1), ((4,), -2)],
            [((3,), -1)],
            [((9,), -1)],
        )
    ]
    assert said == [[((3,), 1)], [], [], [], [((3,), -1), ((9,), 1)], [((9,), -1)]]


def test_rule_000_18_and_40_a_shared_outer_time_is_reported_once(way: str) -> None:
    """What goes outward is counted there: rounds of a loop come and go, the outer time stays until the last is gone."""
    nested, expressed = Refines(1, nested=True), MutableAntichain()
    rounds: list[Changes] = [
        [((5, 0), 1)],
        [((5, 0), -1), ((5, 1), 1), ((6, 0), 1)],
        [((5, 1), -1), ((5, 2), 2)],
        [((5, 2), -1)],
        [((5, 2), -1)],
    ]
    said = [feed(expressed, [(nested.to_outer(t), diff) for t, diff in inner], way) for inner in rounds]
    assert said == [[((5,), 1)], [], [], [], [((5,), -1), ((6,), 1)]]


def test_steps_forward_of_one_of_many_do_not_look_at_all() -> None:
    """With one line of times a heap finds the next, also of those that came after it was made."""
    state = MutableAntichain()
    state.update_iter(np.arange(500).reshape(-1, 1), np.ones(500, dtype=np.int64))
    for t in range(1000):
        assert state.update_pairs([((t,), -1), ((t + 500,), 1)]) == [((t,), -1), ((t + 1,), 1)]
    assert state._heap is not None
    # Much new at once makes looking through all the cheaper way.
    state.update_iter(np.arange(20_000, 40_000).reshape(-1, 1), np.ones(20_000, dtype=np.int64))
    assert state._heap is None
    assert state.update_pairs([((1000,), -1)]) == [((1000,), -1), ((1001,), 1)]


def _run(seed: int, arity: int) -> str:
    """Return a digest of all moves of a workload of large and small batches."""
    rng = np.random.default_rng(seed)
    state, digest = MutableAntichain(arity), hashlib.sha256()
    for n in rng.choice([1, 3, 200], 60).tolist():
        times, diffs = rng.integers(-30, 30, (n, arity)), rng.integers(-2, 4, n)
        for part in state.update_iter(times, diffs):
            digest.update(part.tobytes())
    digest.update(repr(state.counts()).encode())
    return digest.hexdigest()


def test_without_numba_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\n"
        "from tests.unit.progress.test_frontier import _run\n"
        "from spark_timely.progress import frontier, kernels\n"
        "from spark_timely.progress.count_table import CountTable\n"
        "assert not kernels.COMPILED and 'numba' not in sys.modules\n"
        "for tables in (None, CountTable):\n"
        "    frontier._tables, frontier._WORTH_LOADING = tables, 0\n"
        "    print(*(_run(arity, arity) for arity in (1, 2, 3)))\n"
    )
    environment: dict[str, Any] = {**os.environ, "SPARK_TIMELY_NO_NUMBA": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    dictionaries, uncompiled = run.stdout.splitlines()
    monkeypatch.setattr(module, "_tables", CountTable)
    compiled = " ".join(_run(arity, arity) for arity in (1, 2, 3))
    assert dictionaries == uncompiled == compiled


def test_numba_is_loaded_only_when_large_batches_came() -> None:
    code = (
        "import sys, numpy as np\n"
        "from spark_timely.progress import frontier\n"
        "state = frontier.MutableAntichain()\n"
        "ones = np.ones(1000, dtype=np.int64)\n"
        "state.update_iter(np.arange(1000).reshape(-1, 1), ones)\n"
        "assert 'numba' not in sys.modules and state._table is None\n"
        "frontier._WORTH_LOADING = 1500\n"
        "state.update_iter(np.arange(1000).reshape(-1, 1), ones)\n"
        "print('numba' in sys.modules, state._table is not None, state.count_for(7))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() in (["True", "True", "2"], ["False", "False", "2"])
