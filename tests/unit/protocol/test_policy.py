"""The sink's decisions, compared with a loop over rows and with the protocol's checker."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import InvalidOptionError, InvalidUsageError, LateDataError
from spark_timely.protocol.policy import FrontierPolicy, Judgement, LateData, Policy, bad_time_hint, late_error
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress
from spark_timely.time.domain import TimeDomain

LONG = TimeDomain(("long",))
COUNTED = TimeDomain(("long",), (0,))
PAIR = TimeDomain(("long", "long"), (0, 0))
DAY_US = 86_400_000_000
LATE = st.sampled_from(list(LateData))


def naive(time: tuple[int, ...], held: list[tuple[int, ...]], limit: int | None, late_data: LateData) -> str:
    """Say what becomes of one row, by loops."""
    late = not any(all(f <= t for f, t in zip(element, time, strict=True)) for element in held)
    skewed = not late and limit is not None and time[0] > limit
    if not (late or skewed):
        return "message"
    return {LateData.ERROR: "refused", LateData.DEAD_LETTER: "dead", LateData.ADVANCE: "message"}[late_data]


@given(
    times=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12),
    held=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    late_data=LATE,
)
def test_judge_product_order_agrees_with_a_loop(
    times: list[tuple[int, int]], held: list[tuple[int, int]], late_data: LateData
) -> None:
    counts = StreamCounts.from_arrays(held, [1] * len(held), 2)
    array = np.array(times, dtype=np.int64).reshape(-1, 2)
    verdict = Policy(PAIR, FrontierPolicy.HOLD, late_data).judge(array, counts, at=0)
    elements = list(counts.frontier.elements)
    expected = [naive(time, elements, None, late_data) for time in times]
    found = [
        "dead" if dead else "refused" if refused else "message"
        for dead, refused in zip(verdict.dead, verdict.refused, strict=True)
    ]
    assert found == expected
    assert (verdict.message == ~(verdict.dead | verdict.refused)).all()
    check_messages(counts, verdict.times[verdict.message])
    # Rows that are no messages by advancing keep their own times.
    assert (verdict.times[~verdict.late] == array[~verdict.late]).all()
    assert (verdict.times[verdict.dead] == array[verdict.dead]).all()


@given(
    times=st.lists(st.integers(-5, 40), max_size=12),
    held=st.integers(0, 20),
    lateness=st.integers(0, 5),
    skew=st.none() | st.integers(0, 10),
    late_data=LATE,
)
def test_bounded_any_batch_is_legal_and_moves_as_a_loop_says(
    times: list[int], held: int, lateness: int, skew: int | None, late_data: LateData
) -> None:
    policy = Policy(LONG, FrontierPolicy.BOUNDED, late_data, lateness, skew)
    counts = StreamCounts.initial(held)
    limit = None if skew is None else held + skew
    assert policy.skew_limit(counts, 0) == limit
    verdict = policy.judge(np.array(times, dtype=np.int64).reshape(-1, 1), counts, at=0)
    if late_data is LateData.ERROR and verdict.refused.any():
        assert any(t < held or (limit is not None and t > limit) for t in times)
        return
    moving = verdict.times[verdict.moving, 0]
    move = policy.downgrade(counts, greatest=int(moving.max()) if len(moving) else None)
    after = check_progress(counts, move.times, move.deltas)
    good = [t for t in times if limit is None or t <= limit]
    assert after.frontier.elements == ((max([held, *(t - lateness for t in good)]),),)
    assert after.total == 1
    check_messages(counts, verdict.times[verdict.message])


def test_judge_without_late_rows_gives_the_callers_array() -> None:
    times = np.array([[5], [9]])
    verdict = Policy(LONG, FrontierPolicy.HOLD).judge(times, StreamCounts.initial(5), at=0)
    assert np.shares_memory(verdict.times, times)
    assert verdict.plain


def test_judge_time_equal_to_a_frontier_element_is_not_late() -> None:
    verdict = Policy(LONG, FrontierPolicy.HOLD).judge(np.array([[5]]), StreamCounts.initial(5), at=0)
    assert not verdict.late.any()


def test_judge_advance_copies_and_leaves_its_input_alone() -> None:
    times = np.array([[1], [9]])
    verdict = Policy(LONG, FrontierPolicy.HOLD, LateData.ADVANCE).judge(times, StreamCounts.initial(5), at=0)
    assert verdict.times.ravel().tolist() == [5, 9]
    assert times.ravel().tolist() == [1, 9]


def test_judge_advance_product_takes_the_lexicographically_least() -> None:
    counts = StreamCounts.from_arrays([(1, 4), (3, 0)], [1, 1], 2)
    verdict = Policy(PAIR, FrontierPolicy.HOLD, LateData.ADVANCE).judge(np.array([[0, 0], [2, 1]]), counts, at=0)
    assert verdict.times.tolist() == [[1, 4], [2, 4]]


def test_batch_stamps_all_rows_and_closes_its_time_also_empty() -> None:
    policy = Policy(COUNTED, FrontierPolicy.BATCH)
    counts = StreamCounts.initial(7)
    assert policy.judge(np.empty((3, 1), dtype=np.int64), counts, at=0).times.ravel().tolist() == [7, 7, 7]
    move = policy.downgrade(counts)
    assert check_progress(counts, move.times, move.deltas).frontier.elements == ((8,),)
    assert move.reason == "batch"


def test_batch_at_the_types_limit_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"could not complete time 32767: found no later time of type 'short'"):
        Policy(TimeDomain(("short",)), FrontierPolicy.BATCH).downgrade(StreamCounts.initial(32767))


def test_bounded_at_the_types_limits_does_not_wrap() -> None:
    policy = Policy(LONG, FrontierPolicy.BOUNDED, lateness=2**63 - 1)
    counts = StreamCounts.initial(-(2**63))
    assert policy.downgrade(counts, greatest=-(2**63)).times.shape == (0, 1)
    assert policy.downgrade(counts, greatest=2**63 - 1).times.ravel().tolist() == [-(2**63), 0]
    zero = Policy(LONG, FrontierPolicy.BOUNDED)
    move = zero.downgrade(counts, greatest=2**63 - 1)
    assert check_progress(counts, move.times, move.deltas).frontier.elements == ((2**63 - 1,),)


def test_bounded_gives_up_everything_held_for_one_capability() -> None:
    counts = StreamCounts.from_arrays([3, 8], [2, 1], 1)
    move = Policy(LONG, FrontierPolicy.BOUNDED).downgrade(counts, greatest=5)
    assert check_progress(counts, move.times, move.deltas).to_json() == [[5, 1]]


def test_hold_never_moves() -> None:
    assert len(Policy(LONG, FrontierPolicy.HOLD).downgrade(StreamCounts.initial(3), greatest=99).times) == 0


@pytest.mark.parametrize(
    ("frontier", "reason"), [(FrontierPolicy.EVENTS, "events"), (FrontierPolicy.STATEMENTS, "cdcv2")]
)
def test_what_the_data_say_of_progress_is_passed_on(frontier: FrontierPolicy, reason: str) -> None:
    times, deltas = np.array([[0], [4]]), np.array([-1, 1])
    move = Policy(LONG, frontier).downgrade(StreamCounts.initial(0), events=(times, deltas))
    assert (move.times.tolist(), move.deltas.tolist(), move.reason) == ([[0], [4]], [-1, 1], reason)
    nothing = Policy(LONG, frontier).downgrade(StreamCounts.initial(0))
    assert (len(nothing.times), nothing.reason) == (0, reason)


@pytest.mark.parametrize(
    ("kind", "at", "held", "expected"),
    [
        ("timestamp", 1_000, 0, 1_010),
        ("date", 20 * DAY_US + 5, 0, 30),
        ("long", 1_000, 7, 17),
        ("long", 1_000, -(2**63), None),
        ("long", 1_000, 2**63 - 3, 2**63 - 1),
    ],
)
def test_skew_limit_follows_the_clock_or_the_held_time(kind: str, at: int, held: int, expected: int | None) -> None:
    policy = Policy(TimeDomain((kind,)), FrontierPolicy.HOLD, max_future_skew=10)
    assert policy.skew_limit(StreamCounts.initial(held), at) == expected


def test_skewed_row_is_kept_and_does_not_move_the_frontier() -> None:
    policy = Policy(LONG, FrontierPolicy.BOUNDED, LateData.ADVANCE, max_future_skew=10)
    counts = StreamCounts.initial(5)
    verdict = policy.judge(np.array([[6], [99]]), counts, at=0)
    assert verdict.times.ravel().tolist() == [6, 99]
    assert verdict.message.all()
    assert verdict.moving.tolist() == [True, False]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"domain": PAIR, "frontier": "bounded"}, "could not use frontier='bounded': found 2 time columns — hint: "),
        ({"domain": PAIR, "frontier": "batch"}, "could not use frontier='batch': found a log whose times are of type"),
        ({"domain": TimeDomain(("date",)), "frontier": "batch"}, "of type (date) — hint: give timeColumn"),
        ({"domain": PAIR, "frontier": "hold", "max_future_skew": 1}, "could not use option 'maxFutureSkew': found 2"),
        ({"domain": LONG, "frontier": "bounded", "lateness": -1}, "could not use option 'lateness': found -1"),
    ],
)
def test_policy_that_means_nothing_is_refused(options: dict[str, object], text: str) -> None:
    frontier = FrontierPolicy(str(options.pop("frontier")))
    with pytest.raises(InvalidOptionError) as found:
        Policy(frontier=frontier, **options)  # type: ignore[arg-type]
    assert text in str(found.value)


def test_late_error_names_row_time_frontier_and_option() -> None:
    policy = Policy(TimeDomain(("timestamp",)), FrontierPolicy.BOUNDED, lateness=5)
    counts = StreamCounts.initial(60_000_000)
    error = late_error(policy, counts, at=0, time=(0,), skewed=False, row={"id": 7}, stream="a")
    assert str(error) == (
        "[TIMELY_LATE_DATA] could not capture row {'id': 7} in stream 'a': found time '1970-01-01T00:00Z' behind the"
        " frontier [\"1970-01-01T00:01Z\"] — hint: set lateData to 'deadLetter' to set late rows apart, or"
        " to 'advance' to move them to the frontier; a larger lateness keeps more times open"
    )
    assert error.frontier == '["1970-01-01T00:01Z"]'
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(error, LateDataError)


def test_late_error_of_a_skewed_row_names_the_limit() -> None:
    policy = Policy(LONG, FrontierPolicy.BOUNDED, max_future_skew=10)
    error = late_error(policy, StreamCounts.initial(5), at=0, time=(99,), skewed=True, row={}, stream="a")
    assert "found time 99 after 15, the latest that maxFutureSkew allows — hint: raise maxFutureSkew" in str(error)


def test_reasons_are_recorded_with_their_limits() -> None:
    policy = Policy(LONG, FrontierPolicy.BOUNDED, max_future_skew=10)
    assert policy.reasons(StreamCounts.initial(5), at=0) == ("late: behind the frontier [5]", "skewed: after 15")


def test_policy_survives_pickling() -> None:
    policy = Policy(PAIR, FrontierPolicy.HOLD, LateData.ADVANCE)
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_only_messages_that_are_not_skewed_move_the_frontier() -> None:
    no, late, skewed = (np.array(each) for each in ([False] * 3, [False, True, False], [False, False, True]))
    times = np.array([[4], [2], [9]])
    found = Judgement(times, bad=no, late=late, skewed=skewed, dead=late, refused=no)
    assert found.moving.tolist() == [True, False, False]


def test_hint_names_the_option_only_where_there_is_one() -> None:
    assert bad_time_hint(Policy(LONG, FrontierPolicy.BATCH), "fill the column") == "fill the column"
