"""What costs how many requests, counted by the proxy: each test fails above its number."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
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
    entries = log.version + 1
    with place.proxy.counting() as seen:
        open_log(place.url, storage_options=place.options)
    assert seen.total <= 8 + entries, str(seen)


def test_small_file_is_read_by_two_requests(place: Place, log: Log) -> None:
    reader = open_log(place.url, storage_options=place.options)
    with place.proxy.counting() as seen:
        assert reader.messages().num_rows == 3
    read = [request for request in seen.requests if "_event=message" in request.key]
    assert len(read) <= 2 * 3, str(seen)
