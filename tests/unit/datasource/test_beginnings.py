"""Where a query begins does not depend on when it was started: what a stream gives a later batch read gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_timely.log import MemoryLog
from tests.unit.datasource.support import drive, read_all
from tests.unit.datasource.test_planner import make_log, put


def commits(tables: Any) -> list[tuple[str, int]]:
    found = [(row["_stream"], row["_seq"]) for table in tables for row in table.to_pylist()]
    return sorted(pair for pair in found if pair[1] is not None)


def running(log: MemoryLog, **options: Any) -> Iterator[list[tuple[str, int]]]:
    """Give out the commits delivered so far, each time after all that is there was read."""
    driver = drive(log, includeMetadata="true", **options)
    found: list[Any] = []
    while True:
        while (batch := driver.run_one()) is not None and (batch.start != batch.end or batch.rows.num_rows):
            found.append(batch.rows)
        yield commits(found)


@pytest.mark.parametrize("limits", [{}, {"maxRowsPerTrigger": "1"}, {"maxFilesPerTrigger": "1"}])
@pytest.mark.parametrize("delivery", ["complete", "arrival"])
@pytest.mark.parametrize("start_after", [0, 2, 6, 9])
def test_version_to_come_is_waited_for(start_after: int, delivery: str, limits: dict[str, str]) -> None:
    log = make_log(merge_every=None)
    for i in range(start_after):
        put(log, [i], i + 1)
    options = {"delivery": delivery, "startingVersion": "7"}
    query = running(log, **options, **limits)
    next(query)
    for i in range(start_after, 10):
        put(log, [i], i + 1)
        next(query)
        if i == 6:
            log.compact()
    wanted = [("main", seq) for seq in range(7, 11)]
    assert next(query) == wanted
    assert commits([read_all(log, includeMetadata="true", **options)]) == wanted


@pytest.mark.parametrize("delivery", ["complete", "arrival"])
@pytest.mark.parametrize("start_after", [0, 2, 3])
def test_moment_to_come_is_waited_for(start_after: int, delivery: str) -> None:
    reference = make_log()
    for i in range(6):
        put(reference, [i], i + 1)
    # Clocks of logs in these tests tick alike.
    moment = max(r["_at"] for r in reference.core.progress().to_pylist() if r["_stream"] == "main" and r["_seq"] == 4)
    log = make_log()
    for i in range(start_after):
        put(log, [i], i + 1)
    options = {"delivery": delivery, "startingTimestamp": moment.isoformat()}
    query = running(log, **options)
    assert next(query) == []
    assert commits([read_all(log, includeMetadata="true", **options)]) == []
    for i in range(start_after, 6):
        put(log, [i], i + 1)
        next(query)
    found = next(query)
    assert found == commits([read_all(log, includeMetadata="true", **options)])
    assert found == [("main", seq) for seq in range(4, 7)]


def test_moment_that_never_comes_delivers_nothing() -> None:
    for delivery in ("complete", "arrival"):
        log = make_log()
        put(log, [1], 2)
        query = running(log, delivery=delivery, startingTimestamp="2999-01-01")
        next(query)
        put(log, [5], 6)
        assert next(query) == []


def test_rows_before_the_beginning_do_not_count_for_a_limit() -> None:
    log = make_log(streams=2, merge_every=None)
    put(log, [0], 1, "a")
    driver = drive(log, delivery="arrival", startingVersion="5", maxRowsPerTrigger="1", includeMetadata="true")
    driver.run_one()
    for i in range(1, 7):  # the stream's first four commits are before the beginning
        put(log, [i, i], i + 1, "a")
    found = [commits([batch.rows]) for batch in driver.available_now()]
    assert found == [[], [("a", 5)] * 2, [("a", 6)] * 2, [("a", 7)] * 2]


@pytest.mark.parametrize("content", ["messages", "events"])
@pytest.mark.parametrize("delivery", ["complete", "arrival"])
def test_version_of_streams_that_lag_or_open_later(delivery: str, content: str) -> None:
    log = make_log(streams=2, merge_every=None)
    options = {"delivery": delivery, "startingVersion": "3"}
    early, query = running(log, **options), drive(log, **{**options, "content": content})
    next(early)
    for i in range(5):
        put(log, [i], i + 1, "a")
        next(early)
    put(log, [1], 3, "b")
    log.core.open_stream("j", owner="j", donor="a")
    next(early)
    late = running(log, **options)
    next(late)
    for i in range(5):
        put(log, [6 + i], 7 + i, "j")
        put(log, [6 + i], 7 + i, "b")
        next(early)
        next(late)
        query.run_one()
    put(log, [20], 20, "a")
    wanted = commits([read_all(log, includeMetadata="true", **options)])
    assert next(early) == next(late) == wanted
    if delivery == "arrival":
        assert {name: min(s for n, s in wanted if n == name) for name in "abj"} == dict.fromkeys("abj", 3)


def test_start_to_wait_for_is_the_symbolic_offset_itself() -> None:
    log = make_log()
    put(log, [1], 2)
    driver = drive(log, startingVersion="3")
    first = driver.run_one()
    assert first is not None
    assert first.end == first.start
    driver.crash()
    assert driver.run_one() is None
