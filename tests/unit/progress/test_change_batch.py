"""Change batches: summed, the same from single changes and from arrays."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from spark_timely.errors import InvalidShapeError
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.time.antichain import as_times
from tests.oracles import order_model as model


@pytest.mark.parametrize("arity", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_added_in_whatever_way_the_sums_are_held(arity: int, seed: int) -> None:
    rng = random.Random(100 * arity + seed)
    batch, sums = ChangeBatch(arity), Counter[model.Time]()
    for _ in range(60):
        n = rng.choice([1, 1, 2, 9, 200])
        changes = [(tuple(rng.randint(0, 4) for _ in range(arity)), rng.randint(-2, 2)) for _ in range(n)]
        if rng.randrange(2):
            for time, diff in changes:
                batch.update(time, diff)
        else:
            batch.extend(as_times([t for t, _ in changes], arity), [d for _, d in changes])
        for time, diff in changes:
            sums[time] += diff
        expected = model.consolidate(sums.items())
        match rng.randrange(8):
            case 0:
                assert batch.pairs() == expected
            case 1:
                assert batch.is_empty() == (not expected)
            case 2:
                assert len(batch) == len(expected)
            case 4:
                assert batch.drain_pairs() == expected
                sums.clear()
            case 5:
                times, diffs = batch.drain()
                assert times.shape == (len(expected), arity)
                assert list(zip(map(tuple, times.tolist()), diffs.tolist(), strict=True)) == expected
                sums.clear()
    assert list(batch) == model.consolidate(sums.items())


def test_a_lone_zero_is_dropped() -> None:
    batch = ChangeBatch()
    batch.extend([3], [0])
    assert batch.is_empty()
    batch.update(3, 0)
    assert (len(batch), batch.pairs(), batch.drain()[0].shape) == (0, [], (0, 1))


def test_what_was_handed_over_is_copied() -> None:
    for n in (3, 20, 300):
        times, diffs = np.arange(n).reshape(-1, 1), np.ones(n, dtype=np.int64)
        batch = ChangeBatch()
        batch.extend(times, diffs)
        times[:], diffs[:] = 0, 9
        assert batch.pairs() == [((t,), 1) for t in range(n)]


def test_memory_stays_with_the_distinct_times() -> None:
    """Nobody looks, and still ten thousand changes of a few times do not pile up."""
    batch = ChangeBatch()
    for i in range(10_000):
        batch.update(i % 5, 1)
        assert len(batch._counts) <= 5
    for _ in range(100):
        batch.extend(np.arange(50).reshape(-1, 1), np.ones(50, dtype=np.int64))
        assert len(batch._counts) <= 50


def test_unsigned_times_are_kept() -> None:
    top = (1 << 64) - 1
    batch = ChangeBatch()
    batch.update(top, 1)
    batch.extend(np.array([[top]] * 20, dtype=np.uint64), np.ones(20, dtype=np.int64))
    assert batch.pairs() == [((top,), 21)]
    assert batch.drain()[0].dtype == np.uint64


def test_a_wrong_arity_is_refused() -> None:
    batch = ChangeBatch(2)
    with pytest.raises(InvalidShapeError, match="found arity=1, expected arity=2"):
        batch.update(3, 1)
    with pytest.raises(InvalidShapeError, match="could not read times"):
        batch.extend([[1]], [1])
    assert batch.is_empty()
