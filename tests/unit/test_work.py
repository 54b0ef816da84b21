"""Pauses after failures."""

from __future__ import annotations

from spark_timely.testing.driver import ManualClock
from spark_timely.work import Backoff


def test_pauses_grow_to_a_minute_and_begin_anew_after_a_success() -> None:
    clock = ManualClock()
    backoff = Backoff(clock)
    assert backoff.is_due
    pauses = [backoff.failed() - clock() for _ in range(10_000)]
    assert [pauses[n - 1] for n in (1, 2, 5, 7, 8, 9, 10_000)] == [0.5, 1.0, 8.0, 32.0, 60.0, 60.0, 60.0]
    clock.advance(59.5)
    assert not backoff.is_due
    clock.advance(0.5)
    assert backoff.is_due
    backoff.passed()
    assert backoff.failed() - clock() == 0.5


def test_hurry_tries_at_once_and_counts_on() -> None:
    clock = ManualClock()
    backoff = Backoff(clock)
    backoff.failed()
    backoff.hurry()
    assert (backoff.is_due, backoff.n_failed) == (True, 1)
    assert backoff.failed() - clock() == 1.0


def test_first_and_longest_pause_may_be_others() -> None:
    clock = ManualClock()
    backoff = Backoff(clock, first_s=1.0, most_s=5.0)
    assert [backoff.failed() - clock() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
