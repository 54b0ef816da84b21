"""The clock: it ticks when a frontier moved, and once in each run."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.clock import Clock, check_clock_options
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.errors import InvalidOptionError, InvalidUsageError
from spark_timely.log.memory import MemoryLog
from spark_timely.testing import ManualClock


def offset(found: dict[str, object]) -> dict[str, object]:
    """Return an offset as Spark gives it back: through its text."""
    copy: dict[str, object] = json.loads(json.dumps(found))
    return copy


def test_clock_ticks_when_a_frontier_moves_and_once_per_run() -> None:
    logs = [MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,)) for _ in range(2)]
    logs[1].storage._uri = "other"  # type: ignore[attr-defined]
    writer = logs[0].another().writer(owner="test")
    now = ManualClock()
    clock = Clock(logs, run="one", now=now)
    start = offset(clock.initial())
    first = offset(clock.latest(start))
    assert first != start
    assert clock.rows(start, first)["_log"].to_pylist() == ["memory", "other"]
    assert clock.latest(first) == first
    writer.append(pa.table({"_time": [1], "v": [1]}))
    now.advance(1)
    assert clock.latest(first) == first, "rows alone move no frontier"
    writer.advance(4)
    assert clock.latest(first) == first, "not before the poll interval is over"
    now.advance(1)
    second = offset(clock.latest(first))
    assert clock.rows(first, second).to_pylist() == [{"_log": "memory", "_frontier": "[4]"}]
    again = Clock(logs, run="two", now=now)
    third = offset(again.latest(second))
    assert third != second
    assert again.rows(second, third).num_rows == 0
    assert again.latest(third) == third


def test_clock_stands_still_after_available_now() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    now = ManualClock()
    clock = Clock([log.another()], run="one", now=now)
    clock.prepare_available_now()
    log.writer(owner="test").advance(7)
    now.advance(9)
    end = offset(clock.latest(clock.initial()))
    assert end["frontiers"] == {"memory": [0]}
    assert clock.latest(end) == end


def test_what_is_no_clock_is_refused() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    with pytest.raises(InvalidUsageError, match="no offset of a clock"):
        Clock([log], run="").latest({"version": 1, "delivery": "complete"})
    with pytest.raises(InvalidOptionError, match=r"found options \['workers'\]"):
        check_clock_options(parse_options(SOURCE_OPTIONS, {"path": "log", "content": "clock", "workers": 2}))
    with pytest.raises(InvalidOptionError, match=r"found options \['logs', 'run'\] with content='messages'"):
        TimelyDataSource({"path": "log", "run": "a", "logs": "b"}).schema()
    with pytest.raises(InvalidUsageError, match="could not read a clock as a batch"):
        TimelyDataSource({"path": "log", "content": "clock"}).reader(None)  # type: ignore[arg-type]
