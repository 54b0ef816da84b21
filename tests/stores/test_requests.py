"""What costs how many requests, counted by the proxy: each test fails above its number."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.clock import Alarm, Clock
from spark_timely.datasource.planner import ReplayPlanner
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.wait import idle_poll_s
from tests.stores.conftest import Place
from tests.stores.producer import SCHEMA


@pytest.fixture
def log(place: Place) -> Log:
    """Return a log of three appends, as its writer has it."""
    log = create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.options, merge_every=None)
    for value in range(3):
        append(log, value)
    return log


def append(log: Log, value: int) -> None:
    log.writer("s0", owner="s0").append(pa.table({"_time": [value], "v": [value]}), advance_to=value)


def test_append_takes_at_most_six_requests(place: Place, log: Log) -> None:
    writer = log.writer("s0", owner="s0")
    with place.proxy.counting() as seen:
        assert writer.append(pa.table({"_time": [9], "v": [9]}), advance_to=9).committed
    assert seen.total <= 6, str(seen)


def test_look_at_a_log_without_news_takes_one_request(place: Place, log: Log) -> None:
    log.refresh()
    with place.proxy.counting() as seen:
        log.refresh()
    assert seen.total <= 1, str(seen)
    assert seen.by_kind["LIST"] == 0, str(seen)


def test_opening_takes_eight_requests_and_one_an_entry(place: Place, log: Log) -> None:
    entries = log.core.version + 1
    with place.proxy.counting() as seen:
        open_log(place.url, storage_options=place.options)
    assert seen.total <= 8 + entries, str(seen)


def test_small_file_is_read_by_two_requests(place: Place, log: Log) -> None:
    reader = open_log(place.url, storage_options=place.options)
    with place.proxy.counting() as seen:
        assert reader.messages().num_rows == 3
    read = [request for request in seen.requests if "_event=message" in request.key]
    assert len(read) <= 2 * 3, str(seen)


# Queries without news, by a clock of the test: Spark asks every 10 ms, or as often as the trigger says ---------------


class Asked:
    """A clock that each question to a query moves on."""

    def __init__(self, every_s: float) -> None:
        self.time, self.every_s = 0.0, every_s

    def now(self) -> float:
        return self.time

    def ask(self, query: ReplayPlanner | Clock, offset: dict[str, object], *, for_s: float) -> dict[str, object]:
        """Ask a query for its next offset for some seconds, or until it has one."""
        for _ in range(round(for_s / self.every_s)):
            self.time += self.every_s
            found = query.latest(offset)
            if found != offset:
                return found
        return offset


def replay(place: Place, asked: Asked, **options: str) -> ReplayPlanner:
    given = parse_options(SOURCE_OPTIONS, {"path": place.url, **options})
    return ReplayPlanner(open_log(place.url, storage_options=place.options), given, now=asked.now)


def test_idle_replay_takes_a_request_a_second(place: Place, log: Log) -> None:
    asked = Asked(0.01)
    query = replay(place, asked)
    offset = query.latest(query.initial())
    with place.proxy.counting() as seen:
        assert asked.ask(query, offset, for_s=10) == offset
    assert 10 <= seen.total <= 13, str(seen)
    assert seen.by_kind["LIST"] == 0, str(seen)
    append(log, 9)
    before = asked.time
    assert asked.ask(query, offset, for_s=10) != offset
    assert asked.time - before <= 1.0 + asked.every_s


def test_idle_replay_asks_as_often_as_its_option_says(place: Place, log: Log) -> None:
    asked = Asked(0.01)
    query = replay(place, asked, pollInterval="500ms")
    offset = query.latest(query.initial())
    with place.proxy.counting() as seen:
        assert asked.ask(query, offset, for_s=10) == offset
    assert 19 <= seen.total <= 20, str(seen)


def test_trigger_with_an_interval_is_answered_by_a_look(place: Place, log: Log) -> None:
    asked = Asked(0.3)
    query = replay(place, asked)
    offset = query.latest(query.initial())
    asked.ask(query, offset, for_s=10)
    append(log, 9)
    before = asked.time
    assert asked.ask(query, offset, for_s=10) != offset
    assert asked.time == before + asked.every_s


def test_idle_dataflow_takes_two_requests_a_second(place: Place, log: Log) -> None:
    """One for its log, one for its alarm, which is kept in the store too."""
    asked = Asked(0.01)
    alarm = Alarm(f"{place.url} checkpoint", "one", place.options, now=asked.now, wall=asked.now)
    clock = Clock([log], run="one", idle_poll_s=idle_poll_s([log]), alarm=alarm, now=asked.now)
    offset = clock.latest(clock.initial())
    with place.proxy.counting() as seen:
        assert asked.ask(clock, offset, for_s=10) == offset
    assert 20 <= seen.total <= 26, str(seen)
    assert seen.by_kind["LIST"] == 0, str(seen)
