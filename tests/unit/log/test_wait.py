"""Waiting for a frontier: reached, in vain, by hand-moved clocks."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_timely
from spark_timely.errors import InvalidUsageError, LogMissingError, WaitTimeoutError
from spark_timely.log import MemoryLog
from spark_timely.log.wait import Throttle, passes, wait_for, wait_until
from spark_timely.time.antichain import Antichain

SCHEMA = pa.schema([("v", pa.int64())])


class Clock:
    """A clock that only waiting moves; what happens meanwhile is written beside it."""

    def __init__(self, events: dict[float, Callable[[], object]] | None = None) -> None:
        self.time = 0.0
        self.pauses: list[float] = []
        self.events = dict(events or {})

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses.append(seconds)
        self.time += seconds
        for at in [at for at in self.events if at <= self.time]:
            self.events.pop(at)()


def memory(streams: int = 1) -> MemoryLog:
    log = MemoryLog.create(SCHEMA, minimum=(0,), streams=streams)
    log.writer(owner="o").advance(3)
    return log


def looked(log: MemoryLog, clock: Clock, *, timeout_s: float = 10, poll_s: float = 2, **wanted: Any) -> bool:
    # Another handle: what the writer does is seen by looking only.
    seen = [log.another()]
    reached = passes(log.domain, **wanted)
    return wait_for(seen, reached, timeout_s=timeout_s, poll_s=poll_s, now=clock.now, pause=clock.pause)


@pytest.mark.parametrize(("timeout_s", "left"), [(0.0, [0.0]), (5.0, [5.0, 3.0, 1.0, 0.0])])
def test_last_look_knows_that_it_is_the_last(timeout_s: float, left: list[float]) -> None:
    clock, seen = Clock(), list[float]()

    def look(seconds: float) -> bool:
        seen.append(seconds)
        return False

    assert not wait_until(look, timeout_s=timeout_s, poll_s=2, now=clock.now, pause=clock.pause)
    assert seen == left


def test_throttle_is_due_at_first_per_interval_and_for_news() -> None:
    clock, news = Clock(), [False]
    throttle = Throttle(2.0, now=clock.now)

    def due(least_s: float = 0.0) -> bool:
        return throttle.due(lambda: news[0], least_s=least_s)

    assert due()
    assert due()  # nothing was done
    throttle.done()
    assert not due()
    news[0] = True
    assert due()
    assert not due(least_s=5.0)
    clock.time = 2.0
    news[0] = False
    assert due()
    assert not due(least_s=5.0)
    clock.time = 5.0
    assert due(least_s=5.0)


def test_throttle_does_not_ask_for_news_without_need() -> None:
    def asked() -> bool:
        raise AssertionError("asked for news")

    clock = Clock()
    throttle = Throttle(2.0, now=clock.now)
    assert throttle.due(asked)
    throttle.done()
    clock.time = 1.0
    assert not throttle.due(asked, least_s=1.5)
    clock.time = 2.0
    assert throttle.due(asked)


def looks(throttle: Throttle, clock: Clock, *, every_s: float, n: int, moved: bool = False) -> list[float]:
    """Ask `n` times, look where that is due; return when."""
    found = []
    for _ in range(n):
        if throttle.due():
            found.append(clock.time)
            throttle.done(moved=moved)
        clock.time = round(clock.time + every_s, 6)
    return found


def test_throttle_waits_longer_while_nothing_is_new() -> None:
    clock = Clock()
    throttle = Throttle(0.25, idle_s=1.0, now=clock.now)
    assert looks(throttle, clock, every_s=0.01, n=501) == [0.0, 0.5, 1.5, 2.5, 3.5, 4.5]
    assert looks(throttle, clock, every_s=0.01, n=80, moved=True) == [5.5, 5.75]


def test_throttle_holds_up_nobody_who_pauses() -> None:
    clock = Clock()
    throttle = Throttle(0.25, idle_s=1.0, now=clock.now)
    assert looks(throttle, clock, every_s=0.25, n=5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert looks(throttle, clock, every_s=0.125, n=5) == [1.25, 1.5, 1.75]


def test_reached_already_does_not_wait() -> None:
    clock = Clock()
    assert looked(memory(), clock, time=2, timeout_s=0)
    assert clock.pauses == []


def test_reached_later_is_seen_at_the_next_look() -> None:
    log = memory()
    clock = Clock({3.0: lambda: log.advance("main", 5), 5.0: lambda: log.advance("main", 6)})
    assert looked(log, clock, time=5)
    assert clock.time == 6.0


def test_time_on_the_frontier_is_not_complete() -> None:
    log = memory()
    assert not looked(log, Clock(), time=3, timeout_s=0)
    assert looked(log, Clock(), frontier=3, timeout_s=0)
    assert not looked(log, Clock(), frontier=4, timeout_s=0)


def test_last_look_comes_when_the_time_is_over() -> None:
    log = memory()
    clock = Clock({5.0: lambda: log.advance("main", 9)})
    assert looked(log, clock, time=5, timeout_s=5, poll_s=4)
    assert clock.pauses == [4.0, 1.0]
    late = Clock({5.1: lambda: log.advance("main", 20)})
    assert not looked(log, late, time=12, timeout_s=5, poll_s=4)
    assert late.time == 5.0


def test_complete_log_has_passed_every_time() -> None:
    log = memory()
    assert not looked(log, Clock(), frontier=[], timeout_s=0)
    log.close()
    assert looked(log, Clock(), frontier=[], timeout_s=0)
    assert looked(log, Clock(), time=2**62, timeout_s=0)


def test_stream_that_is_still_to_open_is_waited_for() -> None:
    assert not looked(memory(streams=2), Clock(), time=0, timeout_s=0)


def test_all_of_several_logs_are_waited_for() -> None:
    one, other = memory(), memory()
    clock = Clock({1.0: lambda: one.advance("main", 8), 7.0: lambda: other.advance("main", 8)})
    reached = passes(one.domain, time=7)
    logs = [one.another(), other.another()]
    assert wait_for(logs, reached, timeout_s=9, poll_s=1, now=clock.now, pause=clock.pause)
    assert clock.time == 7.0


def test_wait_returns_the_frontier_or_says_how_far_it_was(tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "a", SCHEMA, minimum=(0,))
    log.writer(owner="o").advance(3)
    assert spark_timely.wait(tmp_path / "a", time=2) == Antichain.of(3)
    with pytest.raises(WaitTimeoutError, match=r"to pass time=3: found frontier=\[3\] after 0 seconds") as told:
        spark_timely.wait(log, time=3, timeout_s=0)
    assert isinstance(told.value, TimeoutError)
    assert told.value.frontier == "[3]"
    # A handle sees what others did since.
    spark_timely.open_log(tmp_path / "a").advance("main", 7)
    assert spark_timely.wait(log, frontier=Antichain.of(5)) == Antichain.of(7)


def test_without_a_timeout_what_is_reached_is_returned(tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("v", pa.int64())]), minimum=(0,))
    log.writer(owner="me").advance(5)
    assert spark_timely.wait(log, time=4, timeout_s=None) == Antichain.of(5)


def test_endless_pause_is_one_that_the_system_can_count() -> None:
    def pause(seconds: float) -> None:
        assert seconds <= threading.TIMEOUT_MAX
        found.append(True)

    found: list[bool] = []
    assert wait_until(lambda _: bool(found), timeout_s=math.inf, poll_s=math.inf, pause=pause)


def test_wait_for_a_cut_waits_for_all_its_logs(tmp_path: Path) -> None:
    logs = [spark_timely.create_log(tmp_path / name, SCHEMA, minimum=(0,)) for name in "ab"]
    for log in logs:
        log.writer(owner="o").advance(3)
    cut = spark_timely.cut(logs, frontier=5)
    logs[0].advance("main", 9)
    with pytest.raises(WaitTimeoutError, match=r"2 logs at a cut of frontier=\[5\]: found frontier=\[3\]"):
        spark_timely.wait(cut, timeout_s=0)
    logs[1].advance("main", 6)
    assert spark_timely.wait(cut) == Antichain.of(6)


@pytest.mark.parametrize(
    "wanted",
    [{}, {"time": 1, "frontier": 1}, {"time": "x"}, {"frontier": [[1, 2]]}, {"time": 1, "timeout_s": -1.0},
     {"time": 1, "timeout_s": float("nan")}, {"time": 1, "timeout_s": True}, {"time": 1, "timeout_s": "1 minute"},
     {"time": 1, "poll_s": 0.0}, {"time": 1, "poll_s": None}, {"time": 1, "poll_s": float("nan")}],
)  # fmt: skip
def test_what_cannot_be_waited_for_is_refused(tmp_path: Path, wanted: dict[str, Any]) -> None:
    log = spark_timely.create_log(tmp_path / "a", SCHEMA, minimum=(0,))
    with pytest.raises(InvalidUsageError):
        spark_timely.wait(log, **wanted)


def test_log_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError):
        spark_timely.wait(tmp_path / "none", time=1)
    log = spark_timely.create_log(tmp_path / "a", SCHEMA, minimum=(0,))
    with pytest.raises(InvalidUsageError, match="a cut has its own frontier"):
        spark_timely.wait(spark_timely.cut([log]), time=1)
