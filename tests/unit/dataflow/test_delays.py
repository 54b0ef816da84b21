"""Delays: what they do to times, and that `back` is exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as s

from spark_timely.dataflow.delays import BoundDelay, CeilTo, Shift, ceil_to, plus
from spark_timely.errors import InvalidUsageError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

LOW, HIGH = -40, 40
delays = s.one_of(
    s.builds(lambda n: Shift((n,), ((LOW, HIGH),)), s.integers(0, 30)),
    s.builds(lambda w: CeilTo(w, (LOW, HIGH)), s.integers(1, 30)),
)
EVERY = np.arange(LOW, HIGH + 1).reshape(-1, 1)


@given(delays, s.integers(LOW, HIGH))
def test_back_names_exactly_the_times_that_go_beyond_a_frontier(delay: BoundDelay, frontier: int) -> None:
    moved, ok = delay.forward(EVERY)
    wanted = ~ok | (moved[:, 0] >= frontier)
    assert (delay.back(Antichain.of(frontier)).beyond(EVERY) == wanted).all()
    assert delay.back(Antichain.empty()).is_empty


@given(delays, s.integers(LOW, HIGH))
def test_front_bounds_what_may_come_and_is_reached(delay: BoundDelay, frontier: int) -> None:
    moved, ok = delay.forward(EVERY[EVERY[:, 0] >= frontier])
    least = int(moved[ok][:, 0].min()) if ok.any() else HIGH
    assert delay.front(Antichain.of(frontier)) == Antichain.of(least)
    assert delay.front(Antichain.empty()).is_empty


@given(delays)
def test_delays_are_monotone_and_never_go_back(delay: BoundDelay) -> None:
    moved, ok = delay.forward(EVERY)
    assert (moved[ok] >= EVERY[ok]).all()
    assert (np.diff(moved[ok][:, 0]) >= 0).all()
    assert (np.diff(ok.astype(int)) <= 0).all()


def test_ceil_to_at_the_ends_of_64_bits_wraps_nowhere() -> None:
    delay = ceil_to(10).bind(TimeDomain(("long",)))
    low, high = -(1 << 63), (1 << 63) - 1
    moved, ok = delay.forward(np.array([[low], [high - 7], [high]]))
    assert moved[:, 0].tolist()[:2] == [low + 8, high - 7]
    assert ok.tolist() == [True, True, False]
    assert delay.back(Antichain.of(low)) == Antichain.of(low)


def test_spans_are_read_in_the_units_of_the_time() -> None:
    assert plus("1 hour").bind(TimeDomain(("timestamp",))).front(Antichain.of(1)) == Antichain.of(3_600_000_001)
    assert ceil_to("1 day").bind(TimeDomain(("timestamp",))).front(Antichain.of(1)) == Antichain.of(86_400_000_000)
    assert plus(1, 2).bind(TimeDomain(("long", "long"))).back(Antichain.of((3, 3))) == Antichain.of((2, 1))


@pytest.mark.parametrize(
    ("delay", "types", "text"),
    [
        (plus(-1), ("long",), "not negative"),
        (plus(1), ("long", "long"), "one step for each coordinate"),
        (ceil_to(0), ("long",), "positive span"),
        (ceil_to(2), ("long", "long"), "times of one coordinate"),
        (plus("1 hour"), ("long",), "plain number"),
        (plus(3_600), ("timestamp",), "found 3600 — hint: write '3600 s', '3600 ms' or '3600 us'"),
        (ceil_to(7), ("date",), "found 7 — hint: write '7 days'"),
    ],
)
def test_delay_that_does_not_fit_the_times_is_refused(delay: object, types: tuple[str, ...], text: str) -> None:
    with pytest.raises(InvalidUsageError, match=text):
        delay.bind(TimeDomain(types))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("text", "said"), [("", "+ 3"), ("3 hours", "+ 3 hours")])
def test_shift_says_what_is_added_as_it_was_written(text: str, said: str) -> None:
    assert Shift((3,), ((0, 10),), text).describe() == said
