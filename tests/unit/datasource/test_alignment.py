"""Micro-batches that end at multiples: what is held back, what is never cut, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.conf import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.bounds import aligned, alignment_of
from spark_timely.errors import InvalidOptionError
from spark_timely.log import MemoryLog
from spark_timely.testing.driver import Checkpoint
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.unit.datasource.support import ReadsAll, drive, make_options, read_all

PAYLOAD = pa.schema([("v", pa.int64())])


def log_of(times: list[int], to: Any, **facts: Any) -> MemoryLog:
    log = MemoryLog.create(PAYLOAD, minimum=(0,), **facts)
    put(log, times, to)
    return log


def put(log: MemoryLog, times: list[int], to: Any) -> None:
    table = pa.table({"_time": pa.array(times, pa.int64()), "v": times})
    log.writer(owner="o").append(table, advance_to=to)


def seen(batches: Any) -> list[tuple[list[int], list[int] | None]]:
    return [(sorted(batch.rows.column("v").to_pylist()), json.loads(batch.end).get("frontier")) for batch in batches]


def test_end_is_rounded_down_and_the_rest_waits_for_its_multiple() -> None:
    log = log_of([1, 6, 11, 12], 13)
    checkpoint = Checkpoint()
    assert seen(drive(log, checkpoint=checkpoint, alignTo=5).available_now()) == [([1, 6], [10])]
    put(log, [13, 14], 15)
    assert seen(drive(log, checkpoint=checkpoint, alignTo=5).available_now()) == [([11, 12, 13, 14], [15])]


def test_nothing_whole_moves_no_offset_and_none_below_the_origin() -> None:
    log = log_of([3, 4], 4)
    driver = drive(log, alignTo=10, startingFrontier="[3]")
    batch = driver.run_one()
    assert batch is not None
    assert (batch.start, batch.rows.num_rows) == (batch.end, 0)
    assert driver.run_one() is None
    put(log, [9], 10)
    assert seen([driver.run_one()]) == [([3, 4, 9], [10])]


def test_complete_log_is_delivered_to_its_end() -> None:
    assert seen(drive(log_of([1, 6, 7], []), alignTo=5).available_now()) == [([1, 6, 7], [])]


def test_limits_take_whole_multiples_and_report_one_above_them() -> None:
    log = log_of([0, 1, 2, 5, 10, 11, 15], 20)
    batches = drive(log, alignTo=5, maxTimesPerTrigger=2).available_now()
    assert seen(batches) == [([0, 1, 2], [5]), ([5], [10]), ([10, 11], [15]), ([15], [20])]
    assert [(batch.report or {}).get("aboveLimit") for batch in batches] == [0, None, None, None]
    assert seen([drive(log, alignTo=5, maxTimesPerTrigger=2).run_one(ReadsAll())])[0][1] == [20]


@pytest.mark.parametrize("end", [{"upTo": "[12]"}, {"endingVersion": "1"}])
def test_end_that_was_asked_for_is_reached(end: dict[str, str]) -> None:
    log = log_of([1, 6, 11], 12)
    put(log, [13], 14)
    assert seen(drive(log, alignTo=5, **end).available_now()) == [([1, 6, 11], [12])]
    assert sorted(read_all(log, alignTo=5, **end).column("v").to_pylist()) == [1, 6, 11]


def test_end_that_the_log_has_not_reached_is_no_end_yet() -> None:
    log = log_of([1, 6, 11], 12)
    # A commit of that number is still to come, and may close more.
    assert seen(drive(log, alignTo=5, endingVersion="2").available_now()) == [([1, 6], [10])]
    assert seen(drive(log, alignTo=5, upTo="[13]").available_now()) == [([1, 6], [10])]


def test_batch_read_gives_whole_multiples() -> None:
    assert sorted(read_all(log_of([1, 6, 11], 12), alignTo=5).column("v").to_pylist()) == [1, 6]


def test_contents_do_not_wait_for_a_multiple_and_changes_do() -> None:
    log = log_of([1, 2, 6, 7], 8, kind="collection")
    batches = drive(log, alignTo=5, asOf=1).available_now()
    assert seen(batches) == [([1], [2]), ([2], [5])]


def test_step_may_change_with_a_restart() -> None:
    log = log_of([1, 6, 11], 14)
    checkpoint = Checkpoint()
    assert seen(drive(log, checkpoint=checkpoint, alignTo=5).available_now()) == [([1, 6], [10])]
    assert seen(drive(log, checkpoint=checkpoint, alignTo=3).available_now()) == [([11], [12])]
    assert seen(drive(log, checkpoint=checkpoint).available_now()) == [([], [14])]


@pytest.mark.parametrize(
    ("types", "step", "options", "found"),
    [
        (("long", "long"), "5", {}, "for times of 2 coordinates"),
        (
            ("long",),
            "10 minutes",
            {},
            "for times of type 'long' — hint: write a plain number such as '3': integer times have no clock",
        ),
        (("date",), "36 hours", {}, "found alignTo='1 day 12 hours' for times of type 'date'"),
        (("timestamp",), "5", {}, "type 'timestamp' — hint: write '5 s', '5 ms' or '5 us'"),
        (("date",), "5", {}, "type 'date' — hint: write '5 days'"),
        (("long",), "0", {}, "found alignTo='0', which is no step"),
        (("long",), "5", {"delivery": "arrival"}, "found option alignTo='5', which speaks of times"),
    ],
)
def test_step_that_does_not_fit_is_refused(
    types: tuple[str, ...], step: str, options: dict[str, str], found: str
) -> None:
    log = MemoryLog.create(PAYLOAD, times=types)
    with pytest.raises(InvalidOptionError) as told:
        drive(log, alignTo=step, **options).run_one()
    assert found in str(told.value)
    assert told.value.context["option"] == "alignTo"


@pytest.mark.parametrize(("kind", "step", "units"), [("timestamp", "10 minutes", 600_000_000), ("date", "1 week", 7)])
def test_durations_are_counted_in_units_of_the_time(kind: str, step: str, units: int) -> None:
    domain = TimeDomain((kind,))  # type: ignore[arg-type]
    options = parse_options(SOURCE_OPTIONS, {"path": "log", "alignTo": step})
    assert alignment_of(options, domain) == units
    assert aligned(Antichain.of(-1), units, domain) == Antichain.of(-units)


def test_rounding_stops_at_the_bound_of_the_type() -> None:
    domain = TimeDomain(("short",))
    assert aligned(Antichain.of(-32768), 1000, domain) == Antichain.of(-32768)
    assert alignment_of(make_options(), domain) is None
