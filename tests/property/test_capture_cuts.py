"""The sink's decisions against a model by loops: any cut, any late-data policy, no Spark and no files."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.protocol.policy import FrontierPolicy, LateData, Policy
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress
from spark_timely.testing.strategies import MINIMA, Arrivals, arrivals
from spark_timely.time.domain import TimeDomain
from tests.oracles.capture_model import CaptureModel, LateRowError


def cut(rows: list[int], rng: random.Random) -> list[list[int]]:
    """Cut rows into micro-batches at random, empty ones included."""
    batches: list[list[int]] = [[]]
    for row in rows:
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            batches.append([])
        batches[-1].append(row)
    return batches


class Captured:
    """What the policy makes of a stream, micro-batch by micro-batch, the protocol checked at each."""

    def __init__(self, policy: Policy, kind: str) -> None:
        self.policy = policy
        self.counts = StreamCounts.initial((MINIMA[kind],))
        self.messages: list[int] = []
        self.dead: list[int] = []
        self.refused: list[int] = []

    def batch(self, rows: list[int], at: int = 0) -> None:
        times = np.array(rows, dtype=np.int64).reshape(-1, 1)
        verdict = self.policy.judge(times, self.counts, at=at)
        assert not (verdict.dead & verdict.refused).any()
        kept = verdict.times[verdict.message]
        check_messages(self.counts, kept)
        self.messages.extend(kept[:, 0].tolist())
        self.dead.extend(times[verdict.dead][:, 0].tolist())
        self.refused.extend(times[verdict.refused][:, 0].tolist())
        moving = verdict.times[verdict.moving]
        down = self.policy.downgrade(self.counts, greatest=int(moving.max()) if len(moving) else None)
        self.counts = check_progress(self.counts, down.times, down.deltas)

    @property
    def frontier(self) -> int:
        ((element,),) = self.counts.frontier.times.tolist()
        return int(element)


@given(drawn=arrivals(), late_data=st.sampled_from(list(LateData)), rng=st.randoms(use_true_random=False))
def test_bounded_capture_equals_the_model_for_any_cut(drawn: Arrivals, late_data: LateData, rng: random.Random) -> None:
    policy = Policy(TimeDomain((drawn.kind,)), FrontierPolicy.BOUNDED, late_data, lateness=drawn.lateness)
    captured = Captured(policy, drawn.kind)
    model = CaptureModel(MINIMA[drawn.kind], "bounded", late_data.value, drawn.lateness)
    for rows in cut([time for (time,), _ in drawn.rows], rng):
        try:
            model.batch([(time, ()) for time in rows])
        except LateRowError:
            captured.batch(rows)
            assert captured.refused, "the model refuses a row of this micro-batch"
            return
        captured.batch(rows)
        assert not captured.refused
        assert captured.frontier == model.frontier
    assert Counter(captured.messages) == Counter(time for time, _ in model.messages)
    assert Counter(captured.dead) == Counter(time for time, _ in model.dead)


@given(drawn=arrivals(late=False), rng=st.randoms(use_true_random=False))
def test_capture_without_late_rows_does_not_depend_on_the_cut(drawn: Arrivals, rng: random.Random) -> None:
    policy = Policy(TimeDomain((drawn.kind,)), FrontierPolicy.BOUNDED, LateData.ERROR, lateness=drawn.lateness)
    rows = [time for (time,), _ in drawn.rows]
    fine, coarse, drawn_cut = (Captured(policy, drawn.kind) for _ in range(3))
    for row in rows:
        fine.batch([row])
    coarse.batch(rows)
    for batch in cut(rows, rng):
        drawn_cut.batch(batch)
    for captured in (fine, coarse, drawn_cut):
        assert not captured.refused
        assert Counter(captured.messages) == Counter(rows)
    assert fine.frontier == coarse.frontier == drawn_cut.frontier


@given(drawn=arrivals(), rng=st.randoms(use_true_random=False), late_data=st.sampled_from(["deadLetter", "advance"]))
def test_each_row_is_one_of_message_dead_letter_advanced(drawn: Arrivals, rng: random.Random, late_data: str) -> None:
    policy = Policy(TimeDomain((drawn.kind,)), FrontierPolicy.BOUNDED, LateData(late_data), lateness=drawn.lateness)
    captured = Captured(policy, drawn.kind)
    rows = [time for (time,), _ in drawn.rows]
    for batch in cut(rows, rng):
        captured.batch(batch)
    assert len(captured.messages) + len(captured.dead) == len(rows)
    if late_data == "advance":
        assert not captured.dead
    else:
        assert Counter(captured.messages) + Counter(captured.dead) == Counter(rows)


@pytest.mark.parametrize("late_data", list(LateData))
@given(drawn=arrivals(), rng=st.randoms(use_true_random=False), skew=st.integers(0, 30))
def test_skewed_rows_never_move_the_frontier(
    late_data: LateData, drawn: Arrivals, rng: random.Random, skew: int
) -> None:
    rows = [time for (time,), _ in drawn.rows]
    if drawn.kind not in {"date", "timestamp"} or not rows:
        return
    unit = 86_400_000_000 if drawn.kind == "date" else 1
    now = min(rows) * unit + unit // 2  # the wall clock is that of the earliest row
    policy = Policy(
        TimeDomain((drawn.kind,)),
        FrontierPolicy.BOUNDED,
        late_data,
        lateness=drawn.lateness,
        max_future_skew=skew,
    )
    captured = Captured(policy, drawn.kind)
    for batch in cut(rows, rng):
        captured.batch(batch, at=now)
        assert captured.frontier <= max(MINIMA[drawn.kind], now // unit + skew - drawn.lateness)
    assert len(captured.messages) + len(captured.dead) + len(captured.refused) == len(rows)
