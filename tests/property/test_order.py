"""Order kernels, antichains and change batches against their definitions."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.frontier import MutableAntichain
from spark_timely.time import antichain as order
from spark_timely.time.antichain import Antichain, consolidate
from tests.oracles import order_model as model
from tests.support import examples

BOUNDS = [-(2**63), 2**63 - 1, 0, -1]


def coordinates(unsigned: bool) -> st.SearchStrategy[int]:
    if unsigned:
        return st.integers(0, 5) | st.sampled_from([2**64 - 1, 2**63, 2**63 - 1])
    return st.integers(-3, 5) | st.sampled_from(BOUNDS)


@st.composite
def many_times(draw: st.DrawFn, max_size: int = 12) -> tuple[int, np.dtype[Any], list[list[model.Time]]]:
    """Draw arity, dtype, and three lists of times."""
    arity = draw(st.sampled_from([1, 1, 2, 2, 3]))
    unsigned = draw(st.booleans())
    time = st.tuples(*[coordinates(unsigned)] * arity)
    lists = [draw(st.lists(time, max_size=max_size)) for _ in range(3)]
    return arity, np.dtype(np.uint64 if unsigned else np.int64), lists


def array(times: list[model.Time], arity: int, dtype: np.dtype[Any]) -> order.IntArray:
    return np.array(times, dtype=dtype).reshape(len(times), arity)


def rows(times: order.IntArray) -> list[model.Time]:
    return list(map(tuple, times.tolist()))


@given(many_times())
def test_kernels_equal_to_definitions(drawn: tuple[int, np.dtype[Any], list[list[model.Time]]]) -> None:
    arity, dtype, (times, frontier, _) = drawn
    left, right = array(times, arity, dtype), array(frontier, arity, dtype)
    kept = left.copy(), right.copy()
    assert order.beyond(left, right).tolist() == [model.is_beyond(t, frontier) for t in times]
    assert rows(order.minimal(left)) == model.minima(times)
    assert order.minimal_elements(times) == model.minima(times)
    assert rows(left[order.lexsort(left)]) == sorted(times)
    assert order.is_sorted(left) == (sorted(times) == times)
    unique, inverse, counts = order.group_times(left)
    assert rows(unique) == sorted(set(times))
    assert rows(unique[inverse]) == times
    assert counts.tolist() == [Counter(times)[t] for t in sorted(set(times))]
    assert [a.tolist() for a in order.unique_times(left)] == [unique.tolist(), counts.tolist()]
    if frontier:
        advanced = order.advance(left, right)
        assert rows(advanced) == [model.advance(t, frontier) for t in times]
        assert order.beyond(advanced, right).all()
    assert np.array_equal(left, kept[0])
    assert np.array_equal(right, kept[1])
    for result in (order.minimal(left), unique):
        assert not np.shares_memory(result, left)
        assert result.dtype == dtype


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3]), st.sampled_from([3, 60, 2**50]), st.integers(0, 400))
def test_kernels_on_larger_arrays_equal_to_definitions(seed: int, arity: int, spread: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    array_ = rng.integers(-spread, spread, (n, arity))
    if arity > 1 and seed % 2:  # wide antichains
        array_[:, -1] = -array_[:, :-1].sum(axis=1) + rng.integers(0, 3, n)
    times = rows(array_)
    frontier = order.minimal(array_[: n // 2])
    assert rows(frontier) == model.minima(times[: n // 2])
    assert rows(order.minimal(array_)) == model.minima(times)
    assert order.beyond(array_, frontier).tolist() == [model.is_beyond(t, rows(frontier)) for t in times]
    unique, inverse, counts = order.group_times(array_)
    assert rows(unique) == sorted(set(times))
    assert rows(unique[inverse]) == times
    assert counts.sum() == n


@pytest.mark.parametrize("arity", [1, 2, 3])
@pytest.mark.parametrize("shape", ["near", "far", "sorted", "wide", "one"])
def test_kernels_beyond_a_chunk_equal_to_those_of_numpy(arity: int, shape: str) -> None:
    rng = np.random.default_rng(arity)
    n = 200_000
    times = rng.integers(0, 50 if arity == 3 else 500, (n, arity))
    if shape == "far":
        times = times * 10**12
    elif shape == "sorted":
        times = times[np.lexsort(times.T[::-1])]
    elif shape == "wide" and arity == 2:
        times = np.column_stack([np.arange(n), np.arange(n)[::-1]])[rng.permutation(n)]
    elif shape == "one":
        times = np.full((n, arity), 7)
    unique, inverse, counts = order.group_times(times)
    expected, expected_counts = np.unique(times, axis=0, return_counts=True)
    assert np.array_equal(unique, expected)
    assert np.array_equal(counts, expected_counts)
    assert np.array_equal(unique[inverse], times)
    minima = order.minimal(times)
    # An antichain, of times, and every time is beyond it.
    assert order.beyond(times, minima).all()
    assert np.array_equal(order.minimal(minima), minima)
    pieces = np.concatenate([order.minimal(times[i : i + 1000]) for i in range(0, n, 1000)])
    assert np.array_equal(order.minimal(pieces), minima)
    assert np.isin(minima[:, 0], times[:, 0]).all()


@given(many_times(max_size=5))
def test_antichains_equal_to_definitions(drawn: tuple[int, np.dtype[Any], list[list[model.Time]]]) -> None:
    arity, _, (a, b, times) = drawn
    one, other = Antichain.from_times(a, arity), Antichain.from_times(b, arity)
    left, right = model.minima(a), model.minima(b)
    assert list(one) == left
    assert len(one) == len(left)
    assert one.is_empty == (not left)
    assert (one == other) == (left == right)
    assert list(one.meet(other)) == model.minima(left + right)
    assert list(one.join(other)) == model.minima(model.least_upper_bound(x, y) for x in left for y in right)
    assert one.less_equal_frontier(other) == all(model.is_beyond(t, left) for t in right)
    assert one.less_than_frontier(other) == (left != right and all(model.is_beyond(t, left) for t in right))
    for time in times:
        assert one.less_equal(time) == model.is_beyond(time, left)
        assert one.less_than(time) == any(s != time and model.less_equal(s, time) for s in left)
    if times:
        assert one.beyond(times).tolist() == [model.is_beyond(t, left) for t in times]
    for copy in (
        Antichain.from_json(one.to_json(), arity),
        pickle.loads(pickle.dumps(one)),
        Antichain.from_times(one.times, arity),
        Antichain.from_times(a[::-1], arity),
        eval(repr(one)),
    ):
        assert copy == one
        assert hash(copy) == hash(one)
        assert copy.to_json() == one.to_json()
        assert rows(copy.times) == left
    assert not one.times.flags.writeable


@examples(40, long=2000)
@given(st.integers(0, 2**32), st.sampled_from([2, 3]), st.integers(9, 60))
def test_large_antichains_equal_to_definitions(seed: int, arity: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 20, (n, arity)) for _ in range(2))
    for part in (a, b):
        part[:, -1] = 40 - part[:, :-1].sum(axis=1)
    one, other = Antichain.from_times(a), Antichain.from_times(b)
    left, right = model.minima(rows(a)), model.minima(rows(b))
    assert list(one) == left
    assert list(one.meet(other)) == model.minima(left + right)
    assert list(one.join(other)) == model.minima(model.least_upper_bound(x, y) for x in left for y in right)
    assert one.less_equal_frontier(other) == all(model.is_beyond(t, left) for t in right)


def _changes(arity: int) -> st.SearchStrategy[list[tuple[model.Time, int]]]:
    time = st.tuples(*[st.integers(0, 4)] * arity)
    return st.lists(st.tuples(time, st.integers(-3, 3)), max_size=40)


@given(st.data())
def test_mutable_antichain_equal_to_definition(data: st.DataObject) -> None:
    arity = data.draw(st.sampled_from([1, 2, 3]))
    state, counts = MutableAntichain(arity), Counter[model.Time]()
    for batch in data.draw(st.lists(_changes(arity), max_size=6)):
        before = model.minima(t for t, c in counts.items() if c > 0)
        for time, diff in batch:
            counts[time] += diff
        after = model.minima(t for t, c in counts.items() if c > 0)
        times, diffs = state.update_iter(order.as_times([t for t, _ in batch], arity), [d for _, d in batch])
        assert list(state.frontier) == after
        moves = [(t, -1) for t in before] + [(t, 1) for t in after]
        assert list(zip(rows(times), diffs.tolist(), strict=True)) == model.consolidate(moves)
        held, totals = state.counts()
        assert list(zip(rows(held), totals.tolist(), strict=True)) == model.consolidate(counts.items())


@given(st.data())
def test_consolidate_equal_to_definition(data: st.DataObject) -> None:
    arity = data.draw(st.sampled_from([1, 2, 3]))
    entries = data.draw(_changes(arity))
    times, diffs = consolidate(order.as_times([t for t, _ in entries], arity), [d for _, d in entries])
    assert list(zip(rows(times), diffs.tolist(), strict=True)) == model.consolidate(entries)


@given(st.data())
def test_change_batch_holds_the_sums(data: st.DataObject) -> None:
    arity = data.draw(st.sampled_from([1, 2]))
    batch, entries = ChangeBatch(arity), []
    for part in data.draw(st.lists(_changes(arity), max_size=5)):
        batch.extend(order.as_times([t for t, _ in part], arity), [d for _, d in part])
        entries += part
    expected = model.consolidate(entries)
    assert list(batch) == expected
    assert batch.is_empty() == (not expected)
    times, diffs = batch.drain()
    assert list(zip(rows(times), diffs.tolist(), strict=True)) == expected
    assert len(batch) == 0


@settings(max_examples=30)
@given(many_times(max_size=4))
def test_concat_times_keeps_every_value(drawn: tuple[int, np.dtype[Any], list[list[model.Time]]]) -> None:
    arity, dtype, (a, b, _) = drawn
    small = [tuple(abs(x) % 7 for x in t) for t in b]
    joined = order.concat_times(array(a, arity, dtype), array(small, arity, np.dtype(np.int64)))
    assert rows(joined) == a + small
    assert joined.dtype.kind in "iu"


def test_signed_and_unsigned_that_no_type_holds_are_refused() -> None:
    with pytest.raises(InvalidShapeError, match="found negative ones and ones of 2"):
        order.concat_times(np.array([[-1]]), np.array([[2**63]], dtype=np.uint64))


@pytest.mark.parametrize("bad", [[0.5], ["a"], [[1], [1, 2]], [2**64], [None], [-1, 2**63], np.array([1.0])])
def test_as_times_refuses_what_is_no_time(bad: Any) -> None:
    with pytest.raises(InvalidShapeError, match="could not read times"):
        order.as_times(bad)


def test_as_times_shapes() -> None:
    given_ = np.array([[1], [2]])
    assert order.as_times(given_) is given_
    assert order.as_times([], 2).shape == (0, 2)
    assert order.as_times([1, 2], 1).shape == (2, 1)
    assert order.as_times([2**63]).dtype == np.uint64
    assert order.as_times(np.array([1, 2], dtype=np.int16)).dtype == np.int64
    with pytest.raises(InvalidShapeError, match=r"expected shape \(n, 2\), found shape=\(2, 1\)"):
        order.as_times([[1], [2]], 2)
    with pytest.raises(InvalidShapeError, match="could not read diffs"):
        order.as_diffs([1, 2], 3)
    with pytest.raises(InvalidShapeError, match="could not read diffs"):
        order.as_diffs([0.5], 1)


def test_arities_that_differ_are_refused() -> None:
    pair, one = np.array([[1, 2]]), np.array([[1]])
    for kernel in (order.less_equal, order.beyond, order.advance, order.concat_times):
        with pytest.raises(InvalidShapeError, match="found arity="):
            kernel(pair, one)
    for call in ("meet", "join", "less_equal_frontier"):
        with pytest.raises(InvalidShapeError, match="found arity="):
            getattr(Antichain.of(1), call)(Antichain.of((1, 2)))
    with pytest.raises(InvalidShapeError, match="with a frontier of arity=1"):
        Antichain.of(1).less_equal((1, 2))


def test_advance_to_an_empty_frontier_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="found an empty frontier"):
        order.advance(np.array([[1]]), np.empty((0, 1), dtype=np.int64))


@pytest.mark.parametrize("bad", ["5", "[[1, 2]", 5, {"a": 1}, [1.5], [True], ["5"], [[1, 2, 3]], [None], [2**64]])
def test_antichain_from_json_refuses_what_is_none(bad: Any) -> None:
    with pytest.raises(InvalidShapeError, match="could not read an antichain of arity=1"):
        Antichain.from_json(bad)


def test_antichain_of_nothing_or_mixed_arities_is_refused() -> None:
    with pytest.raises(InvalidShapeError, match="found no times"):
        Antichain.of()
    with pytest.raises(InvalidShapeError, match="several arities"):
        Antichain.of((1,), (1, 2))


def test_antichains_have_no_order_to_sort_by() -> None:
    with pytest.raises(TypeError):
        Antichain.of(1) < Antichain.of(2)  # type: ignore[operator]  # noqa: B015
