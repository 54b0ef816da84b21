"""Types of times: columns, texts, durations, bounds."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain, TimeType

LONG, INT, SHORT, DATE, TIMESTAMP = TimeType
DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("type_", "lo", "hi"),
    [
        (LONG, -(2**63), 2**63 - 1),
        (INT, -(2**31), 2**31 - 1),
        (SHORT, -(2**15), 2**15 - 1),
        (DATE, "1700-01-01", "9999-12-31"),
        (TIMESTAMP, "1700-01-01T00:00Z", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_bounds(type_: TimeType, lo: Any, hi: Any) -> None:
    assert (type_.render(type_.lo), type_.render(type_.hi)) == (lo, hi)
    assert type_.minimum == type_.lo
    assert type_.parse(lo) == type_.lo
    assert type_.parse(hi) == type_.hi
    for outside in (type_.lo - 1, type_.hi + 1):
        with pytest.raises(InvalidUsageError, match=f"could not read a time of type {type_.value}"):
            type_.from_json(outside)
        with pytest.raises(InvalidUsageError, match=f"could not read a time of type {type_.value}"):
            type_.parse(type_.render(outside))


@given(st.sampled_from(TimeType), st.data())
def test_column_and_text_round_trip(type_: TimeType, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(type_.lo, type_.hi), max_size=5))
    column = type_.to_arrow(times)
    assert column.type == type_.arrow
    assert type_.from_arrow(column).tolist() == times
    for time in times:
        assert type_.parse(type_.render(time)) == time
        assert type_.from_json(type_.to_json(time)) == type_.from_json(time) == time
        if type_.minimum_is_of_type:
            assert type_.parse(str(time)) == time
    if type_ in (DATE, TIMESTAMP):
        kind = dt.date if type_ is DATE else dt.datetime
        assert all(isinstance(value, kind) for value in column.to_pylist())
        assert [type_.parse(value) for value in column.to_pylist()] == times


@pytest.mark.parametrize(
    ("type_", "column", "expected"),
    [
        (LONG, pa.array([1, 2], pa.int8()), [1, 2]),
        (LONG, pa.array([1, 2**63 - 1], pa.uint64()), [1, 2**63 - 1]),
        (SHORT, pa.array([1, -2], pa.int64()), [1, -2]),
        (DATE, pa.array([dt.date(1970, 1, 2)], pa.date64()), [1]),
        (TIMESTAMP, pa.array([1], pa.timestamp("s", "UTC")), [1_000_000]),
        (TIMESTAMP, pa.array([1], pa.timestamp("ms", "Asia/Kolkata")), [1_000]),
        (TIMESTAMP, pa.array([-1], pa.timestamp("us", "America/Los_Angeles")), [-1]),
        (TIMESTAMP, pa.array([2_000], pa.timestamp("ns", "UTC")), [2]),
        (TIMESTAMP, pa.chunked_array([[0], [1]], pa.timestamp("us", "UTC")), [0, 1]),
        (LONG, pa.chunked_array([], pa.int64()), []),
        # A date before 1700 gets in: it lies behind every frontier, and is late.
        (DATE, pa.array([dt.date(1600, 1, 1)]), [-135140]),
    ],
)
def test_from_arrow_reads_any_width_unit_and_zone(type_: TimeType, column: pa.Array, expected: list[int]) -> None:
    assert type_.from_arrow(column).tolist() == expected


@pytest.mark.parametrize(
    ("type_", "column", "message"),
    [
        (LONG, pa.array([1, None]), "could not read time column 'time': found null in row=1"),
        (LONG, pa.array([0, 2**63], pa.uint64()), "found 9223372036854775808 in row=1"),
        (SHORT, pa.array([2**15]), "found 32768 in row=0"),
        (INT, pa.array([-(2**31) - 1]), "found -2147483649 in row=0"),
        (LONG, pa.array([1.0]), "could not read time column 'time' of type long: found type=double"),
        (LONG, pa.array(["1"]), "found type=string"),
        (LONG, pa.array([True]), "found type=bool"),
        (LONG, pa.array([dt.date(2013, 1, 1)]), r"found type=date32\[day\]"),
        (DATE, pa.array([1], pa.timestamp("us", "UTC")), "found type=timestamp"),
        (TIMESTAMP, pa.array([1]), "found type=int64"),
        (TIMESTAMP, pa.array([1], pa.timestamp("us")), "without zone names no point in time"),
        (TIMESTAMP, pa.array([1], pa.timestamp("ns", "UTC")), "in row=0, not a time of type timestamp"),
        # Values that Python itself cannot show.
        (TIMESTAMP, pa.array([2**62], pa.timestamp("s", "UTC")), "found 4611686018427387904 in row=0"),
        (TIMESTAMP, pa.array([TIMESTAMP.hi + 1], pa.timestamp("us", "UTC")), "found 253402300800000000 in row=0"),
        (DATE, pa.array([DATE.hi + 1], pa.int32()).view(pa.date32()), "found 2932897 in row=0"),
    ],
)
def test_from_arrow_refuses_naming_the_row(type_: TimeType, column: pa.Array, message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        type_.from_arrow(column)


def test_from_arrow_counts_rows_from_where_the_part_starts() -> None:
    with pytest.raises(InvalidUsageError, match="could not read time column 'hour': found null in row=12") as caught:
        LONG.from_arrow(pa.array([1, 2, None]), name="hour", first_row=10)
    assert caught.value.context == {"column": "hour", "row": 12}


def test_from_arrow_does_not_copy_what_it_can_show() -> None:
    column = pa.array(np.arange(100))
    assert np.shares_memory(LONG.from_arrow(column), column.to_numpy())


def test_to_arrow_refuses_what_the_type_cannot_hold() -> None:
    with pytest.raises(InvalidUsageError, match="could not write a time of type short: found 40000"):
        SHORT.to_arrow([1, 40000])


@pytest.mark.parametrize(
    ("arrow", "type_"),
    [
        (pa.int64(), LONG),
        (pa.uint64(), LONG),
        (pa.uint32(), LONG),
        (pa.int32(), INT),
        (pa.uint16(), INT),
        (pa.int16(), SHORT),
        (pa.uint8(), SHORT),
        (pa.date32(), DATE),
        (pa.timestamp("ns", "UTC"), TIMESTAMP),
    ],
)
def test_from_arrow_type(arrow: pa.DataType, type_: TimeType) -> None:
    assert TimeType.from_arrow_type(arrow) is type_


@pytest.mark.parametrize("arrow", [pa.timestamp("us"), pa.float64(), pa.string(), pa.decimal128(20, 0), pa.bool_()])
def test_from_arrow_type_refuses_others(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidUsageError, match="could not read a time column: found type="):
        TimeType.from_arrow_type(arrow)


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (DATE, "2013-01-01", 15706),
        (DATE, " 2013-01-01 ", 15706),
        (DATE, "days:-3", -3),
        (DATE, dt.date(1970, 1, 2), 1),
        (TIMESTAMP, "us:1771891200000000", 1_771_891_200_000_000),
        (TIMESTAMP, "us:-7", -7),
        (TIMESTAMP, "2013-01-01", 15706 * DAY_US),
        (TIMESTAMP, dt.date(2013, 1, 1), 15706 * DAY_US),
        (TIMESTAMP, "2013-01-01T00:00Z", 15706 * DAY_US),
        (TIMESTAMP, "20130101T000000Z", 15706 * DAY_US),
        (TIMESTAMP, "2013-01-01T00:00:00Z", 15706 * DAY_US),
        (TIMESTAMP, "2013-01-01T05:30:00+05:30", 15706 * DAY_US),
        (TIMESTAMP, "2013-01-01 00:00:00.000001Z", 15706 * DAY_US + 1),
        (TIMESTAMP, "2013-01-01T00:00:00.000001000Z", 15706 * DAY_US + 1),
        (TIMESTAMP, dt.datetime(1970, 1, 2, tzinfo=dt.UTC), DAY_US),
        (LONG, "+5", 5),
        (LONG, np.int64(5), 5),
    ],
)
def test_parse(type_: TimeType, text: Any, expected: int) -> None:
    assert type_.parse(text) == expected


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (LONG, "5.0"),
        (LONG, 5.0),
        (LONG, True),
        (LONG, None),
        (LONG, "2013-01-01"),
        (DATE, "2013-13-01"),
        (DATE, "2013-01-01T00:00:00Z"),
        (DATE, dt.datetime(2013, 1, 1)),
        (DATE, "us:5"),
        (DATE, "days:2013-01-01"),
        (TIMESTAMP, "days:5"),
        (TIMESTAMP, "us:"),
        (TIMESTAMP, "us:1.5"),
        (TIMESTAMP, "2013-01-01T00:00:00"),
        (TIMESTAMP, "2013-01-01T00:00:00.0000001Z"),
        (TIMESTAMP, dt.datetime(2013, 1, 1)),
    ],
)
def test_parse_refuses(type_: TimeType, text: Any) -> None:
    with pytest.raises(InvalidUsageError, match=f"could not read a time of type {type_.value}: found") as caught:
        type_.parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("type_", "number", "written"),
    [
        (DATE, 20270101, "write 2027-01-01, or days:20270101 if days since 1970-01-01 are meant"),
        (DATE, 15706, "write 2013-01-01, or days:15706 "),
        (DATE, 10**9, "write a date such as 2013-01-31, or days:1000000000 "),
        (TIMESTAMP, 20270101, "write 2027-01-01, or us:20270101 if microseconds since 1970-01-01 are meant"),
        (TIMESTAMP, 2027, "write 2027-01-01, or us:2027 "),
        (TIMESTAMP, 1_771_891_200_000_000, "write 2026-02-24T00:00Z, or us:1771891200000000 "),
        (TIMESTAMP, 0, "write 1970-01-01T00:00Z, or us:0 "),
        (TIMESTAMP, 20271301, "write 1970-01-01T00:00:20.271301Z, or us:20271301 "),
        (TIMESTAMP, 1000, "write 1970-01-01T00:00:00.001Z, or us:1000 "),
        (TIMESTAMP, -(2**62), "write a date such as 2013-01-31, or us:-4611686018427387904 "),
    ],
)
def test_issue_14_bare_numbers_are_no_dates_and_no_timestamps(type_: TimeType, number: int, written: str) -> None:
    domain = TimeDomain((type_,))
    two = TimeDomain(("long", type_))
    for read, given_ in (
        *((type_.parse, each) for each in (number, str(number), f" {number} ", np.int64(number))),
        (domain.parse_time, number),
        (domain.parse_time, (number,)),
        (domain.parse_time, f"[{number}]"),
        (domain.parse_frontier, str(number)),
        (domain.parse_frontier, [number]),
        (domain.parse_frontier, f"[{number}]"),
        (domain.parse_frontier, f'["{number}"]'),
        (two.parse_frontier, [[3, number]]),
        (two.parse_time, f"[3, {number}]"),
    ):
        with pytest.raises(InvalidUsageError, match=r"found .*, a number without a unit") as caught:
            read(given_)
        assert str(number) in caught.value.message
        assert written in f"{caught.value.hint} "


def test_what_is_written_with_its_type_may_be_numbers() -> None:
    domain, two = TimeDomain(("timestamp",), (7,)), TimeDomain(("long", "date"))
    assert domain.minimum == (7,)
    assert TimeDomain.from_json(json.dumps(domain.to_json())) == domain
    assert domain.time_from_json(7) == domain.time_from_json("us:7") == domain.parse_time(np.array([7])) == (7,)
    assert domain.frontier_from_json([7]) == domain.parse_frontier(np.array([[7]])) == Antichain.of(7)
    assert two.frontier_from_json("[[3, 15706]]") == Antichain.of((3, 15706))
    # As an offset in a query's progress and a cut are: they name the types of their times.
    offset = {"times": ["timestamp"], "frontier": [7], "content": "rows"}
    assert domain.parse_frontier(offset) == domain.parse_frontier(json.dumps(offset)) == Antichain.of(7)
    for wrong in ({"times": ["long"], "frontier": [7]}, {"frontier": [7]}, {"times": ["timestamp"]}):
        with pytest.raises(InvalidUsageError, match="could not read a frontier: found"):
            domain.parse_frontier(wrong)
    with pytest.raises(InvalidUsageError, match="a number without a unit"):
        domain.frontier_from_json(["7"])


@given(st.lists(st.sampled_from(TimeType), min_size=1, max_size=3), st.data())
def test_frontiers_are_read_back_as_they_are_written(types: list[TimeType], data: st.DataObject) -> None:
    domain = TimeDomain(tuple(types))
    time = st.tuples(*(st.sampled_from([t.lo, t.hi]) | st.integers(t.lo, t.hi) for t in types))
    times = data.draw(st.lists(time, max_size=4))
    frontier = Antichain.of(*times) if times else Antichain.empty(domain.arity)
    assert domain.parse_frontier(domain.render_frontier(frontier)) == frontier
    assert domain.frontier_from_json(json.loads(json.dumps(domain.frontier_to_json(frontier)))) == frontier
    for element in frontier:
        assert domain.parse_time(domain.render_time(element)) == element
        assert domain.time_from_json(domain.time_to_json(element)) == element


def test_outside_the_calendar_is_the_number_with_its_unit() -> None:
    assert DATE.render(10**9) == f"days:{10**9}"
    assert TIMESTAMP.render(2**62) == TIMESTAMP.to_json(2**62) == f"us:{2**62}"


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (TIMESTAMP, "10 minutes", 600_000_000),
        (TIMESTAMP, "1h 30m", 5_400_000_000),
        (TIMESTAMP, "1 hour 30 minutes", 5_400_000_000),
        (TIMESTAMP, "1.5 seconds", 1_500_000),
        (TIMESTAMP, "interval 2 days", 2 * DAY_US),
        (TIMESTAMP, "PT10M", 600_000_000),
        (TIMESTAMP, "P1DT2H3M4.5S", DAY_US + 7_384_500_000),
        (TIMESTAMP, "250ms", 250_000),
        (TIMESTAMP, "0", 0),
        (TIMESTAMP, "17 us", 17),
        (TIMESTAMP, 0, 0),
        (TIMESTAMP, dt.timedelta(seconds=1), 1_000_000),
        (DATE, "2 days", 2),
        (DATE, "48 hours", 2),
        (DATE, "P1W", 7),
        (DATE, "3 d", 3),
        (DATE, dt.timedelta(days=1), 1),
        (LONG, "3", 3),
        (INT, 0, 0),
    ],
)
def test_duration(type_: TimeType, value: Any, expected: int) -> None:
    assert type_.duration(value) == expected


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (TIMESTAMP, 12),
        (TIMESTAMP, "12"),
        (TIMESTAMP, np.int64(12)),
        (DATE, 2),
        (TIMESTAMP, "10 moons"),
        (TIMESTAMP, "10 minutes and"),
        (TIMESTAMP, "1 month"),
        (TIMESTAMP, "P1M"),
        (TIMESTAMP, "P"),
        (TIMESTAMP, "PT"),
        (TIMESTAMP, "P1DT"),
        (TIMESTAMP, ""),
        (TIMESTAMP, "-5"),
        (TIMESTAMP, -5),
        (TIMESTAMP, "0.5 us"),
        (TIMESTAMP, None),
        (TIMESTAMP, True),
        (TIMESTAMP, dt.timedelta(seconds=-1)),
        (DATE, "36 hours"),
        (DATE, "10 minutes"),
        (LONG, "10 minutes"),
        (LONG, "PT10M"),
        (LONG, 1.5),
        (SHORT, dt.timedelta(days=1)),
    ],
)
def test_duration_refuses(type_: TimeType, value: Any) -> None:
    with pytest.raises(InvalidUsageError, match=f"could not read a duration for times of type {type_.value}: found"):
        type_.duration(value)


def test_issue_14_durations_without_a_unit_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match="found 12") as caught:
        TIMESTAMP.duration(12)
    assert caught.value.hint == "write '12 s', '12 ms' or '12 us'"
    with pytest.raises(InvalidUsageError, match="found '12'") as caught:
        DATE.duration("12")
    assert caught.value.hint == "write '12 days'"


@given(st.sampled_from(TimeType), st.data())
def test_durations_are_read_back_as_they_are_written(type_: TimeType, data: st.DataObject) -> None:
    longest = type_.hi if type_.minimum_is_of_type else type_.hi - type_.lo
    span = data.draw(st.sampled_from([0, 1, longest]) | st.integers(0, longest))
    assert type_.duration(type_.render_duration(span)) == span


def test_domain_columns_and_frontiers() -> None:
    one, two = TimeDomain(("timestamp",)), TimeDomain(("long", "date"), (0, 15706))
    assert one.columns == ("_time",)
    assert two.columns == ("_time_0", "_time_1")
    assert one.bound_columns == (("_min_time",), ("_max_time",))
    assert two.bound_columns[1] == ("_max_time_0", "_max_time_1")
    assert two.minimum_frontier == Antichain.of((0, 15706))
    times = np.array([[1, 2], [3, 4]])
    table = pa.table(two.to_columns(times))
    assert table.schema.types == [pa.int64(), pa.date32()]
    assert np.array_equal(two.from_columns(table), times)
    assert np.array_equal(two.from_columns(table.rename_columns(["a", "b"]), ["a", "b"]), times)
    assert two.from_columns(table.to_batches()[0]).shape == (2, 2)


def test_domain_refuses_columns_that_are_not_there() -> None:
    domain = TimeDomain(("long",))
    with pytest.raises(InvalidUsageError, match="could not read time column '_time': found columns=") as caught:
        domain.from_columns(pa.table({"t": [1]}))
    assert caught.value.context == {"column": "_time"}
    with pytest.raises(InvalidUsageError, match="for 1 coordinates"):
        domain.from_columns(pa.table({"t": [1]}), ["t", "t"])
    with pytest.raises(InvalidUsageError, match="found columns=\\['t', 't'\\]"):
        domain.from_columns(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["t", "t"]), ["t"])
    with pytest.raises(InvalidShapeError):
        domain.to_columns([[1, 2]])


@pytest.mark.parametrize(
    ("domain", "text", "expected"),
    [
        (TimeDomain(("long",)), "[5]", Antichain.of(5)),
        (TimeDomain(("long",)), "5", Antichain.of(5)),
        (TimeDomain(("long",)), 5, Antichain.of(5)),
        (TimeDomain(("long",)), "[]", Antichain.empty()),
        (TimeDomain(("long",)), [], Antichain.empty()),
        (TimeDomain(("long",)), Antichain.of(5), Antichain.of(5)),
        (TimeDomain(("long",)), np.array([[5]]), Antichain.of(5)),
        (TimeDomain(("long",)), [(5,)], Antichain.of(5)),
        (TimeDomain(("date",)), '["2013-01-01"]', Antichain.of(15706)),
        (TimeDomain(("date",)), "2013-01-01", Antichain.of(15706)),
        (TimeDomain(("long", "long")), "[[2, 1], [1, 2]]", Antichain.of((1, 2), (2, 1))),
        (TimeDomain(("long", "long")), [2, 1], Antichain.of((2, 1))),
        (TimeDomain(("long", "date")), '[[2, "2013-01-01"]]', Antichain.of((2, 15706))),
        (TimeDomain(("long", "long")), "[]", Antichain.empty(2)),
    ],
)
def test_parse_frontier(domain: TimeDomain, text: Any, expected: Antichain) -> None:
    assert domain.parse_frontier(text) == expected
    assert domain.parse_frontier(domain.render_frontier(expected)) == expected


@pytest.mark.parametrize(
    ("domain", "text"),
    [
        (TimeDomain(("long",)), "[5"),
        (TimeDomain(("long",)), "five"),
        (TimeDomain(("long",)), "[[1, 2]]"),
        (TimeDomain(("long",)), {"a": 1}),
        (TimeDomain(("long",)), None),
        (TimeDomain(("long",)), Antichain.empty(2)),
        (TimeDomain(("long", "long")), "5"),
        (TimeDomain(("long", "long")), "[[1, 2], 3]"),
        (TimeDomain(("date",)), '["soon"]'),
    ],
)
def test_parse_frontier_refuses(domain: TimeDomain, text: Any) -> None:
    with pytest.raises(InvalidUsageError, match="could not read"):
        domain.parse_frontier(text)


def test_successor_ends_at_the_bound() -> None:
    domain = TimeDomain(("date",))
    assert domain.successor(15706) == (15707,)
    assert domain.successor((DATE.hi,)) is None
    assert domain.successors(DATE.hi) == Antichain.empty()
    two = TimeDomain(("short", "long"))
    assert two.successors((1, 2)) == Antichain.of((1, 3), (2, 2))
    assert two.successors((SHORT.hi, 2)) == Antichain.of((SHORT.hi, 3))
    with pytest.raises(InvalidUsageError, match="product order of 2 coordinates"):
        two.successor((1, 2))


def test_domain_json_and_pickle_round_trip() -> None:
    domain = TimeDomain(("long", "timestamp"), (0, "2013-01-01T00:00:00Z"))  # type: ignore[arg-type]
    assert domain.minimum == (0, 15706 * DAY_US)
    text = json.dumps(domain.to_json())
    assert TimeDomain.from_json(text) == domain
    assert TimeDomain.from_json({**json.loads(text), "version": 1}) == domain
    assert pickle.loads(pickle.dumps(domain)) == domain
    assert hash(TimeDomain.from_json(text)) == hash(domain)
    assert TimeDomain("date") == TimeDomain((DATE,))  # type: ignore[arg-type]
    assert domain.render_time((1, 0)) == [1, "1970-01-01T00:00Z"]


@pytest.mark.parametrize("bad", ["[1]", "{}", {"times": "long"}, {"times": ["hour"]}, {"times": []}, "x"])
def test_domain_from_json_refuses(bad: Any) -> None:
    with pytest.raises(InvalidUsageError):
        TimeDomain.from_json(bad)


@pytest.mark.parametrize(
    ("types", "minimum"), [((), ()), (("long",), (0, 0)), (("hour",), ()), (("date",), ("soon",)), (("int",), (2**40,))]
)
def test_domain_refuses_what_is_none(types: Any, minimum: Any) -> None:
    with pytest.raises(InvalidUsageError):
        TimeDomain(types, minimum)


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    deep = "[" * 100_000
    with pytest.raises(InvalidUsageError, match="could not read JSON"):
        TimeDomain().frontier_from_json(deep)
    with pytest.raises(InvalidShapeError):
        Antichain.from_json(deep)
