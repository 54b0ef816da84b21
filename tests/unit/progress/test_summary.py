"""Path summaries: steps, overflow as "nothing follows", and nested times."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.progress.summary import NestedTimes, PathSummary, Refines, SameTimes, Summary
from spark_timely.time.antichain import Antichain
from tests.oracles import order_model as model

DType = Literal["int64", "uint64"]
RANGES: dict[DType, tuple[int, int]] = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (0, (1 << 64) - 1)}


def near(dtype: DType) -> st.SearchStrategy[int]:
    """Return numbers small, and near the ends of the type."""
    low, high = RANGES[dtype]
    return st.one_of(st.integers(max(low, -3), 3), st.integers(low, low + 3), st.integers(high - 3, high))


@st.composite
def summaries(draw: st.DrawFn) -> tuple[Summary, Summary, list[model.Time]]:
    dtype: DType = draw(st.sampled_from(["int64", "uint64"]))
    arity = draw(st.integers(0, 3))
    limits = None
    if draw(st.booleans()):
        low = draw(st.integers(0 if dtype == "uint64" else -9, 5))
        limits = ((low, low + draw(st.integers(0, 20))),) * arity
    row = st.tuples(*[near(dtype)] * arity)
    steps = st.tuples(*[st.integers(0, 9) if limits else near(dtype)] * arity)
    return (
        Summary(draw(steps), dtype, limits),
        Summary(draw(steps), dtype, limits),
        draw(st.lists(row, max_size=6)),
    )


@given(summaries())
def test_results_in_takes_each_coordinate_a_step_or_nowhere(drawn: tuple[Summary, Summary, list[model.Time]]) -> None:
    summary, _, times = drawn
    ranges = summary.limits or (RANGES[summary.dtype],) * summary.arity
    array = np.array(times, dtype=summary.dtype).reshape(len(times), summary.arity)
    before = array.copy()
    taken, ok = summary.results_in(array)
    assert np.array_equal(array, before)
    assert not np.shares_memory(taken, array) or not array.size
    assert taken.dtype == np.dtype(summary.dtype)
    for time, found, follows in zip(times, taken.tolist(), ok.tolist(), strict=True):
        expected = tuple(t + s for t, s in zip(time, summary.steps, strict=True))
        holds = all(low <= t <= high for t, (low, high) in zip(expected, ranges, strict=True))
        assert summary.results_in_one(time) == (expected if holds else None)
        assert (tuple(found), follows) == ((expected, True) if holds else (time, False))


@given(summaries())
def test_followed_by_takes_a_time_where_both_take_it_in_turn(drawn: tuple[Summary, Summary, list[model.Time]]) -> None:
    first, second, times = drawn
    both = first.followed_by(second)
    for time in times:
        between = first.results_in_one(time)
        in_turn = None if between is None else second.results_in_one(between)
        if both is not None and in_turn is not None:
            assert both.results_in_one(time) == in_turn
        if both is None and first.dtype == "uint64":
            # Times below zero do not exist: what is too long as a step is too far from everywhere.
            assert in_turn is None


@given(summaries())
def test_results_in_is_monotone(drawn: tuple[Summary, Summary, list[model.Time]]) -> None:
    summary, _, times = drawn
    for one in times:
        for other in times:
            left, right = summary.results_in_one(one), summary.results_in_one(other)
            if model.less_equal(one, other) and left is not None and right is not None:
                assert model.less_equal(left, right)


def test_narrower_limits_end_what_follows() -> None:
    limits = ((0, 255), (-3, 3))
    summary = Summary((250, 1), "int64", limits)
    assert summary.results_in_one((5, 2)) == (255, 3)
    assert summary.results_in_one((6, 2)) is None
    assert summary.results_in_one((5, 3)) is None
    assert summary.followed_by(Summary((5, 5), "int64", limits)) == Summary((255, 6), "int64", limits)
    assert summary.followed_by(Summary((6, 0), "int64", limits)) is None
    # From one end of the second coordinate to the other it is 6, and not more.
    assert summary.followed_by(Summary((0, 6), "int64", limits)) is None


def test_times_of_the_other_dtype_are_taken_where_they_fit() -> None:
    taken, ok = Summary((1,), "uint64").results_in([5])
    assert (taken.dtype, taken.tolist(), ok.all()) == (np.uint64, [[6]], True)
    taken, _ = Summary((-6,)).results_in(np.array([5], dtype=np.uint64))
    assert (taken.dtype, taken.tolist()) == (np.int64, [[-1]])
    with pytest.raises(InvalidShapeError, match="found times of int64 that it cannot hold"):
        Summary((1,), "uint64").results_in([-1])
    with pytest.raises(InvalidShapeError, match="found times of uint64 that it cannot hold"):
        Summary((1,)).results_in(np.array([1 << 63], dtype=np.uint64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0.5,),), "found step=0.5"),
        (((True,),), "found step=True"),
        (((-1,), "uint64"), "found step=-1"),
        (((1 << 63,),), "found step=9223372036854775808"),
        (((1,), "int32"), "found dtype='int32'"),
        (((1,), "int64", ((0, 1), (0, 1))), "found 1 steps, limits="),
        (((1,), "uint64", ((-1, 1),)), r"found limits=\(-1, 1\)"),
        (((1,), "int64", ((2, 1),)), r"found limits=\(2, 1\)"),
    ],
)
def test_what_is_no_summary_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        Summary(*arguments)


def test_orders_that_differ_are_refused() -> None:
    pair, one = Summary((1, 2)), Summary((1,))
    with pytest.raises(InvalidShapeError, match="found arity=1"):
        pair.followed_by(one)
    with pytest.raises(InvalidShapeError, match="found arity=1"):
        pair.results_in_one((1,))
    with pytest.raises(InvalidShapeError, match="expected shape"):
        pair.results_in([[1]])
    for other in (Summary((1,), "uint64"), Summary((1,), limits=((0, 5),))):
        with pytest.raises(InvalidShapeError, match="could not put paths together"):
            one.followed_by(other)


def test_summaries_are_values() -> None:
    summary = Summary((1, 2), limits=((0, 5), (0, 5)))
    assert pickle.loads(pickle.dumps(summary)) == summary
    assert len({summary, Summary((1, 2), limits=((0, 5), (0, 5))), Summary((1, 2))}) == 2
    assert isinstance(summary, PathSummary)
    assert Summary.identity(3, dtype="uint64") == Summary((0, 0, 0), "uint64")
    assert Summary((0, 0)).is_identity
    assert not summary.is_identity


def test_antichains_of_summaries_keep_the_shortest_paths() -> None:
    paths = [Summary((1, 0)), Summary((0, 3)), Summary((1, 2)), Summary((0, 3))]
    assert list(Antichain.of(*(path.steps for path in paths))) == [(0, 3), (1, 0)]


@pytest.mark.parametrize("refinement", [SameTimes(1), SameTimes(3), NestedTimes(0), NestedTimes(1), NestedTimes(2)])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_rule_000_23_and_30_times_go_in_and_out_of_a_scope(refinement: Refines, dtype: type[np.int64]) -> None:
    assert isinstance(refinement, Refines)
    rng = np.random.default_rng(0)
    outer = rng.integers(0, 99, (20, refinement.outer_arity)).astype(dtype)
    inner = rng.integers(0, 99, (20, refinement.inner_arity)).astype(dtype)
    there = refinement.to_inner(outer)
    assert there.shape == (20, refinement.inner_arity)
    assert there.dtype == outer.dtype
    assert np.array_equal(refinement.to_outer(there), outer)
    assert (refinement.to_inner(refinement.to_outer(inner)) <= inner).all()
    for time, expected in zip(outer.tolist(), there.tolist(), strict=True):
        assert refinement.to_inner_one(tuple(time)) == tuple(expected)
        assert refinement.to_outer_one(tuple(expected)) == tuple(time)


@pytest.mark.parametrize("refinement", [SameTimes(2), NestedTimes(1), NestedTimes(2)])
def test_rule_000_17_outer_summaries_lead_where_inner_ones_do(refinement: Refines) -> None:
    rng = np.random.default_rng(1)
    inner = rng.integers(0, 99, (20, refinement.inner_arity))
    summary = Summary(tuple(rng.integers(0, 9, refinement.inner_arity).tolist()))
    outside = refinement.summarize(summary)
    assert outside.steps == refinement.summarize_steps(summary.steps)
    seen, _ = outside.results_in(refinement.to_outer(inner))
    assert np.array_equal(seen, refinement.to_outer(summary.results_in(inner)[0]))


def test_a_nested_scopes_summary_keeps_the_outer_limits() -> None:
    inner = Summary((1, 1), "uint64", ((0, 255), (0, 9)))
    assert NestedTimes(1).summarize(inner) == Summary((1,), "uint64", ((0, 255),))


def test_a_loop_only_counts_rounds() -> None:
    """What a turn round a loop does is not seen outside, and ends where rounds can no longer be counted."""
    nested, turn = NestedTimes(1), Summary((0, 1))
    time: tuple[int, ...] | None = nested.to_inner_one((7,))
    for _ in range(3):
        assert time is not None
        time = turn.results_in_one(time)
    assert time == (7, 3)
    assert nested.summarize(turn).is_identity
    assert turn.results_in_one((7, (1 << 63) - 1)) is None
