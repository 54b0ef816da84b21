"""Bare numbers where a log's times are dates or timestamps: refused at every door, and the log is as it was."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_timely
from spark_timely import functions as tf
from spark_timely.datasource.bounds import first_offset
from spark_timely.errors import InvalidOptionError, InvalidUsageError, WaitTimeoutError
from spark_timely.interop.exporting import export_log
from spark_timely.log import Log
from spark_timely.log.cut import Cut
from spark_timely.log.log import create_log
from spark_timely.log.reader import frontier_at
from spark_timely.testing import stream_of
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.unit.datasource.support import make_options

SCHEMA = pa.schema([("v", pa.int64())])
NOON = dt.datetime(2013, 6, 12, 12, tzinfo=dt.UTC)
NOON_US = 1_371_038_400_000_000
NO_ROWS = pa.table({"_time": pa.array([], pa.timestamp("us", "UTC")), "v": pa.array([], pa.int64())})

# Each takes a time or a frontier of a log of timestamps.
DOORS: dict[str, Callable[[Log, Any], object]] = {
    "advance": lambda log, time: log.advance("main", time),
    "dry run": lambda log, time: log.advance("main", time, dry_run=True),
    "writer": lambda log, time: log.writer(owner="o").advance(time),
    "append": lambda log, time: log.writer(owner="o").append(NO_ROWS, advance_to=time),
    "expected": lambda log, time: log.writer(owner="o").compare_and_append(NO_ROWS, expected=time, upper=NOON),
    "upper": lambda log, time: log.writer(owner="o").compare_and_append(NO_ROWS, expected=NOON, upper=time),
    "open": lambda log, time: log.core.open_stream("b", owner="p", at=time),
    "lower bound": lambda log, time: log.messages(lower=time),
    "upper bound": lambda log, time: log.messages(upper=time),
    "snapshot": lambda log, time: log.snapshot(time),
    "history": lambda log, time: frontier_at(log.core, timestamp=time),
    "cut": lambda log, time: spark_timely.cut([log], frontier=time),
    "wait for a time": lambda log, time: spark_timely.wait(log, time=time, timeout_s=0),
    "wait for a frontier": lambda log, time: spark_timely.wait(log, frontier=time, timeout_s=0),
    "upTo": lambda log, time: first_offset(make_options(upTo=time), log.domain, log.kind),
    "startingFrontier": lambda log, time: first_offset(make_options(startingFrontier=time), log.domain, log.kind),
    "asOf": lambda log, time: first_offset(make_options(asOf=time), log.domain, log.kind),
    "export": lambda log, time: export_log(log, f"{log.path}.out", up_to=time),
    "minimum": lambda log, time: create_log(f"{log.path}.new", SCHEMA, times=("timestamp",), minimum=time),
}
COLLECTIONS = ("snapshot", "asOf")
OPTIONS = ("upTo", "startingFrontier", "asOf")


BARE = (2027, 20270101, "2027", "20270101", 0, np.int64(2027), [2013], "[2013]")


def make(path: str, *, kind: str = "stream") -> Log:
    log = create_log(path, SCHEMA, times=("timestamp",), kind=kind)
    log.writer(owner="o").advance(NOON)
    return log


@pytest.fixture
def log(log_path: str) -> Log:
    return make(log_path)


@pytest.mark.parametrize("door", DOORS)
def test_issue_14_bare_numbers_are_refused_and_change_nothing(log_path: str, door: str) -> None:
    log = make(log_path, kind="collection" if door in COLLECTIONS else "stream")
    before = log.core.version
    for bare in BARE:
        with pytest.raises(InvalidUsageError) as caught:
            DOORS[door](log, bare)
        number = str(bare).strip("[]")
        assert number in str(caught.value)
        # A moment of the wall clock is no list, and an option is no number of numpy.
        if (door, str(bare)[0]) != ("history", "[") and not (door in OPTIONS and isinstance(bare, np.int64)):
            assert f"us:{number} if microseconds since 1970-01-01 are meant" in str(caught.value)
    log.refresh()
    assert log.core.version == before
    assert not Path(f"{log.path}.new").exists()
    assert not Path(f"{log.path}.out").exists()


@pytest.mark.parametrize("door", OPTIONS)
def test_the_refusal_names_the_option(log_path: str, door: str) -> None:
    log = make(log_path, kind="collection" if door in COLLECTIONS else "stream")
    with pytest.raises(
        InvalidOptionError, match=rf"found 2013, .*, in option {door}=\[2013\] — hint: write 2013-01-01"
    ):
        DOORS[door](log, "[2013]")


@pytest.mark.parametrize(
    "written",
    [
        "2013-06-12T12:00Z",
        "2013-06-12T14:00+02:00",
        f"us:{NOON_US}",
        NOON,
        Antichain.of(NOON_US),
        np.array([[NOON_US]]),
        {"times": ["timestamp"], "frontier": [NOON_US]},
    ],
)
def test_every_written_form_is_the_same_time(log: Log, written: Any) -> None:
    assert spark_timely.cut([log], frontier=written).frontier == Antichain.of(NOON_US)
    assert spark_timely.wait(log, frontier=written, timeout_s=0) == Antichain.of(NOON_US)


def test_a_day_is_its_midnight_and_cuts_may_have_numbers(log: Log) -> None:
    midnight = NOON_US - 12 * 3_600_000_000
    made = spark_timely.cut([log], frontier="2013-06-12")
    assert made.frontier == Antichain.of(midnight)
    assert str(made).count('"2013-06-12T00:00:00Z"') == 1
    assert Cut.from_json(str(made).replace('"2013-06-12T00:00:00Z"', str(midnight))) == made


@pytest.mark.parametrize("limit", ["60", "1 minute", dt.timedelta(minutes=1), -1])
def test_issue_14_a_limit_has_its_unit_in_its_name(log: Log, limit: Any) -> None:
    for name in ("timeout_s", "poll_s"):
        with pytest.raises(InvalidUsageError, match=f"could not wait for a log: found {name}="):
            spark_timely.wait(log, time="2013-06-12", **{name: limit})


def test_messages_show_times_and_limits_as_people_write_them(log: Log) -> None:
    with pytest.raises(WaitTimeoutError) as caught:
        spark_timely.wait(log, time=NOON, timeout_s=0)
    assert "to pass time='2013-06-12T12:00Z': found frontier=[\"2013-06-12T12:00Z\"] after 0 seconds" in str(
        caught.value
    )


def test_delays_of_timestamps_are_written_with_their_unit() -> None:
    rows = stream_of({"_time": [NOON], "v": [1]})
    with pytest.raises(InvalidUsageError, match="found 3600 — hint: write '3600 s', '3600 ms' or '3600 us'"):
        rows.delay(tf.plus(3600))
    described = [
        each.bind(TimeDomain(("timestamp",))).describe()
        for each in (tf.plus("12 hours"), tf.ceil_to(dt.timedelta(days=1)))
    ]
    assert described == ["+ 12 hours", "up to multiples of 1 day"]
