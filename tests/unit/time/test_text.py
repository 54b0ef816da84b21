"""Text of days, moments and durations: what is read, what is refused, and that what is written is read back."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.time.text import (
    Duration,
    bare_number,
    day_text,
    moment_text,
    parse_day,
    parse_distance,
    parse_duration,
    parse_moment,
)

Least = Literal["minutes", "seconds", "microseconds"]
LONGS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("value", [7, "7", " +7 ", "007", np.int64(7), np.uint8(7)])
def test_a_bare_number_is_no_day_no_moment_and_no_duration(value: Any) -> None:
    assert bare_number(value) == 7
    assert parse_day(value) is None
    assert parse_moment(value) is parse_moment(value, without_zone="utc") is None
    assert parse_distance(value) == Duration(7, "time")
    with pytest.raises(ValueError, match="write the number with its unit: '7 s', '7 ms' or '7 us'"):
        parse_duration(value)


@pytest.mark.parametrize("value", [True, None, 7.0, "7.0", "seven", "9" * 5000, "", b"7", [7], "7 us"])
def test_what_is_no_bare_number(value: Any) -> None:
    assert bare_number(value) is None


@pytest.mark.parametrize(
    "value", [None, True, 1.5, "", "us:", "days:", "us:9x", "2013-02-30", "12:00Z", "9" * 5000, []]
)
def test_what_is_no_moment(value: Any) -> None:
    assert parse_moment(value, without_zone="utc") is None
    assert parse_day(value) is None


def test_a_moment_without_a_zone_is_refused_unless_declared_utc() -> None:
    for naive in ("2013-06-12T22:00", dt.datetime(2013, 6, 12, 22)):
        assert parse_moment(naive) is None
        assert parse_moment(naive, without_zone="utc") == 1_371_074_400_000_000


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (1_371_074_400_000_000, "2013-06-12T22:00Z"),
        (1_371_074_405_000_000, "2013-06-12T22:00:05Z"),
        (1_371_074_400_250_000, "2013-06-12T22:00:00.250Z"),
        (1_371_074_400_000_001, "2013-06-12T22:00:00.000001Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00Z"),
        (-62_135_596_800_000_001, "us:-62135596800000001"),
        (253_402_300_800_000_000, "us:253402300800000000"),
    ],
)
def test_moments_are_written_as_fine_as_they_are(us: int, text: str) -> None:
    assert moment_text(us) == text
    assert parse_moment(text) == parse_moment(moment_text(us, least="seconds")) == us


@given(LONGS)
def test_days_and_moments_are_read_back_as_they_are_written(number: int) -> None:
    assert parse_day(day_text(number)) == number
    for least in get_args(Least):
        assert parse_moment(moment_text(number, least=least)) == number


def test_statistics_of_a_delta_log_have_microseconds() -> None:
    assert moment_text(0, least="microseconds") == "1970-01-01T00:00:00.000000Z"
    assert moment_text(1_500, least="microseconds") == "1970-01-01T00:00:00.001500Z"


@given(st.integers(0, 2**63 - 1))
def test_durations_are_read_back_as_they_are_written(us: int) -> None:
    assert parse_duration(Duration(us).text) == parse_distance(Duration(us).text) == Duration(us)
    assert parse_distance(Duration(us, "time").text) == Duration(us, "time")


@pytest.mark.parametrize(
    "value", ["P1DT", "P", "PT", "1 month", "-5 s", "-5", -5, "0.5us", "5 s 5", "99999999999 weeks"]
)
def test_what_is_no_duration(value: Any) -> None:
    for read in (parse_duration, parse_distance):
        with pytest.raises(ValueError, match=r"."):
            read(value)
