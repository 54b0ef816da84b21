"""Arguments of another type than is wanted: each is refused by its name, with a hint, before anything is done."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_timely
from spark_timely.conf.kinds import seconds_of
from spark_timely.errors import InvalidOptionError, InvalidShapeError, InvalidUsageError, TimelyError
from spark_timely.log import MemoryLog
from spark_timely.log.log import Log
from spark_timely.log.reader import events_of, frontier_at

SCHEMA = pa.schema([("v", pa.int64())])
ROWS = pa.table({"_time": [3], "v": [1]})

Call = Callable[[Any], object]


def writing(**options: Any) -> Call:
    return lambda log: log.writer("main", owner="me").append(ROWS, **options)


# What is called with a log, what is found, and the class if it is another one.
WRONG: dict[str, tuple[Call, str, type[TimelyError]]] = {
    what: (call, text, InvalidUsageError)
    for what, (call, text) in {
        "a number for the reason": (writing(reason=5), "found reason=5 — hint: give a text as reason"),
        "no reason": (writing(reason=None), "found reason=None — hint: give a text"),
        "progress of one array": (writing(progress=[3]), "found progress=[3] — hint: give times and changes"),
        "progress that is a number": (writing(progress=5), "found progress=5 — hint: give times and changes"),
        "progress that is a text": (writing(progress="ab"), "found progress='ab' — hint: give times and changes"),
        "progress that is a mapping": (writing(progress={3: -1, 4: 1}), "found progress={3: -1, 4: 1}"),
        "a number for the time column": (writing(time_column=5), "found time_column=5 — hint: give a name or a list"),
        "a number among time columns": (writing(time_column=["v", 5]), "found time_column=['v', 5]"),
        "a key that is a text": (writing(batch="1"), "found batch='1' — hint: give a whole number"),
        "both ways to advance": (writing(advance_to=4, progress=([3], [1])), "found both advance_to and progress"),
        "bytes for a frontier": (writing(advance_to=b""), "found b'' — hint: give a whole number"),
        "a reason of advance": (lambda log: log.writer("main", owner="me").advance(5, reason=5), "found reason=5"),
        "a reason of close": (lambda log: log.writer("main", owner="me").close(reason=b""), "found reason=b''"),
        "rows of compare and append": (
            lambda log: log.writer("main", owner="me").compare_and_append([5], expected=0, upper=4),
            "found rows=[5]",
        ),
        "reason of compare and append": (
            lambda log: log.writer("main", owner="me").compare_and_append(ROWS, expected=0, upper=4, reason=[]),
            "found reason=[]",
        ),
        "a number for the owner": (lambda log: log.writer(owner=5), "found owner=5 — hint: give a text as owner"),
        "what becomes of late rows": (
            lambda log: log.writer(owner="me", late_data="drop"),
            "found late_data='drop' — hint",
        ),
        "what becomes of bad times": (lambda log: log.writer(owner="me", bad_time=None), "found bad_time=None — hint"),
        "a number of no commit": (lambda log: log.resubmit(-1), "found seq=-1 — hint: give a"),
        "true for a commit": (lambda log: log.resubmit(True), "found seq=True — hint: give a"),
        "a number for a stream": (lambda log: log.writer(5, owner="me"), "found stream=5 — hint: use a name"),
        "a size that is none": (lambda log: log.writer(owner="me", target_file_size="big"), "target_file_size='big'"),
        "true for a size": (lambda log: log.writer(owner="me", target_file_size=True), "target_file_size=True"),
        "a list for the donor": (lambda log: log.core.open_stream("b", owner="me", donor=["main"]), "donor=['main']"),
        "owner of a stream": (
            lambda log: log.core.open_stream("b", owner=None),
            "found owner=None — hint: give a text",
        ),
        "a fraction for a time": (
            lambda log: log.core.open_stream("b", owner="me", at=1.5),
            "found 1.5 — hint: give a whole",
        ),
        "advance of no stream": (lambda log: log.advance(["main"], 4), "found stream=['main'] — hint: give a text"),
        "advance for no reason": (lambda log: log.advance("main", 4, reason=5), "found reason=5 — hint: give a text"),
        "close of a number": (lambda log: log.close(5), "found stream=5 — hint: give a text as stream"),
        "close for no reason": (lambda log: log.close(reason=5), "found reason=5 — hint: give a text as reason"),
        "what is no request": (
            lambda log: log.core.commit({"stream": "a"}),
            "found request={'stream': 'a'} — hint: give a",
        ),
        "messages of a number": (lambda log: log.messages(stream=5), "found stream=5 — hint: give a text as stream"),
        "columns that are a number": (lambda log: log.messages(columns=5), "found columns=5 — hint: give a name or"),
        "columns with a number": (lambda log: log.messages(columns=["v", 5]), "found columns=['v', 5] — hint: give a"),
        "columns that are bytes": (lambda log: log.messages(columns=b"v"), "found columns=b'v' — hint: give a name"),
        "lower that is bytes": (lambda log: log.messages(lower=b""), "found b'' — hint: give a whole number"),
        "dead of a list": (lambda log: log.dead(stream=["main"]), "found stream=['main'] — hint: give a text"),
        "events of a list": (
            lambda log: list(events_of(log.core, ["main"])),
            "found stream=['main'] — hint: give a text",
        ),
        "a text for a number": (
            lambda log: frontier_at(log.core, seq="x"),
            "found seq='x' — hint: give a whole number of 0",
        ),
        "a number below zero": (
            lambda log: frontier_at(log.core, seq=-1),
            "found seq=-1 — hint: give a whole number of 0",
        ),
        "a number for a moment": (
            lambda log: frontier_at(log.core, timestamp=5),
            "found 5, a number without a unit — hint",
        ),
        "frontier of a list": (
            lambda log: frontier_at(log.core, seq=0, stream=["main"]),
            "found stream=['main'] — hint",
        ),
        "compaction to nothing": (lambda log: log.compact(target_file_size=0), "found target_file_size=0 — hint: give"),
        "compaction to a word": (
            lambda log: log.compact(target_file_size="big"),
            "found target_file_size='big' — hint",
        ),
        "compaction of one file": (
            lambda log: log.compact(min_files=1),
            "found min_files=1 — hint: give a whole number",
        ),
        "compaction of words": (lambda log: log.compact(min_files="2"), "found min_files='2' — hint: give a whole"),
        "no columns to add": (lambda log: log.add_columns(None), "found columns=None — hint: give a pyarrow.Schema"),
        "a text to add": (lambda log: log.add_columns("x"), "found columns='x' — hint: give a pyarrow.Schema"),
        "a snapshot of a stream": (lambda log: log.snapshot(b""), "found kind='stream' — hint: read the messages"),
        "a cut of nothing": (lambda _: spark_timely.cut(None), "found logs=None — hint: give a list of logs"),
        "a cut of a number": (lambda _: spark_timely.cut(5), "found logs=5 — hint: give a list of logs"),
        "a cut of numbers": (lambda _: spark_timely.cut([5]), "found path=5 — hint: give the path"),
        "a cut at bytes": (lambda log: spark_timely.cut([log], frontier=b""), "found b'' — hint: give a whole number"),
        "a wait for nothing": (lambda _: spark_timely.wait(None, time=3), "found path=None — hint: give the path"),
        "a wait for bytes": (
            lambda log: spark_timely.wait(log, time=b"", timeout_s=0),
            "found b'' — hint: give a whole",
        ),
    }.items()
} | {
    "times that are words": (
        writing(progress=(["x"], [1])),
        "found ['x'] — hint: give whole numbers",
        InvalidShapeError,
    ),
    "times that are none": (writing(progress=(None, [1])), "found None — hint: give a list", InvalidShapeError),
    "counts that are words": (writing(progress=([3], ["x"])), "hint: give signed integers", InvalidShapeError),
    "counts of two depths": (writing(progress=([3, 4], [1, [2]])), "hint: give one whole number", InvalidShapeError),
    "more counts than times": (writing(progress=([3], [1, 2])), "hint: give one diff for each", InvalidShapeError),
}


@pytest.mark.parametrize("what", WRONG)
def test_argument_of_another_type_is_refused_by_its_name(what: str) -> None:
    call, text, kind = WRONG[what]
    log = MemoryLog.create(SCHEMA, minimum=(0,), streams=2)
    log.core.open_stream("main", owner="me")
    log.core.open_stream("other", owner="other")
    before = log.core.version, log.core.progress().to_pylist()
    with pytest.raises(kind) as caught:
        call(log)
    assert text in str(caught.value)
    assert caught.value.message.startswith("could not ")
    assert (log.core.version, log.core.progress().to_pylist()) == before


@pytest.mark.parametrize(
    "shows", [math.nan, math.inf, -1.0, 1e300, -(10**400), 10**400, "now"], ids=lambda s: str(s)[:9]
)
def test_clock_that_went_wrong_is_refused_at_a_commit(shows: Any) -> None:
    now: list[Any] = [1.0]
    log = MemoryLog.create(SCHEMA, minimum=(0,), clock=lambda: now[0])
    log.writer(owner="me").advance(3)
    now[0], before = shows, (log.core.version, log.core.progress().to_pylist())
    with pytest.raises(
        InvalidUsageError, match=r"found clock\(\)=.*hint: give a clock that returns seconds since 1970"
    ):
        log.writer(owner="me").advance(4)
    assert (log.core.version, log.core.progress().to_pylist()) == before


@pytest.mark.parametrize(
    "given", [math.nan, -1, -math.inf, -(10**400), "1 minute", None, True, dt.timedelta(1)], ids=str
)
def test_length_of_time_that_is_no_number_is_refused(given: Any) -> None:
    with pytest.raises(
        InvalidUsageError, match=r"could not wait: found timeout_s=.*hint: give a number of seconds, 0 or"
    ):
        seconds_of("could not wait", "timeout_s", given)


@pytest.mark.parametrize("given", [0, 2.5, math.inf, np.int32(3), np.float32(0.5), 10**400], ids=lambda s: str(s)[:9])
def test_length_of_time_is_a_number_of_seconds(given: Any) -> None:
    assert seconds_of("could not wait", "timeout_s", given) == (math.inf if str(given)[9:] else given)


OPENING: dict[str, tuple[dict[str, Any], str]] = {
    "a text for the schema": ({"schema": "x"}, "found schema='x' — hint: give a pyarrow.Schema as schema"),
    "a dict for the schema": ({"schema": {"v": "long"}}, "found schema={'v': 'long'} — hint: give a pyarrow.Schema"),
    "a number for the times": ({"times": 5}, "found times=5 — hint: give the type of each time coordinate"),
    "a number among the times": ({"times": ["long", 5]}, "found types=('long', 5) — hint: choose among the types"),
    "no kind": ({"kind": None}, "found kind=None — hint: give kind='stream'"),
    "a moment for the minimum of numbers": (
        {"minimum": (dt.datetime(2020, 1, 1),)},
        "and times='long' — hint: say times=\"timestamp\", and give the moment its zone",
    ),
    "a day for the minimum of numbers": ({"minimum": "2020-01-01"}, "and times='long' — hint: say times=\"date\""),
    "a moment for a day": (
        {"minimum": (dt.datetime(2020, 1, 1, tzinfo=dt.UTC),), "times": "date"},
        "and times='date' — hint: say times=\"timestamp\"",
    ),
    "a fraction for the minimum": ({"minimum": 0.5}, "found minimum=0.5 — hint: give a whole number"),
    "true for the streams": ({"streams": True}, "found streams=True — hint: give a number of streams"),
    "a clock that is none": ({"clock": 5}, "found clock=5 — hint: give a function that returns seconds"),
    **{
        f"a clock at {seconds}": (
            {"clock": lambda seconds=seconds: seconds},
            f"found clock()={seconds} — hint: give a clock",
        )
        for seconds in (float("nan"), float("inf"), -float("inf"), -1.0, 1e300, 253_402_300_800, None, True)
    },
    "merges of none": ({"merge_every": 0}, "found merge_every=0 — hint: give a whole number of 1 or more"),
    "merges of a word": ({"merge_every": "x"}, "found merge_every='x' — hint: give a whole number of 1 or more"),
}


@pytest.mark.parametrize("what", OPENING)
def test_log_of_another_making_is_not_created(tmp_path: Path, what: str) -> None:
    given, text = OPENING[what]
    path = tmp_path / "log"
    with pytest.raises(InvalidUsageError) as caught:
        spark_timely.create_log(path, **{"schema": SCHEMA, **given})
    assert text in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("options", ["x", 5, ["aws_region"], {"aws_region": 5}, {5: "x"}], ids=repr)
def test_storage_options_of_another_type_are_refused(tmp_path: Path, options: Any) -> None:
    spark_timely.create_log(tmp_path / "log", SCHEMA)
    for call in (
        lambda: spark_timely.create_log(tmp_path / "new", SCHEMA, storage_options=options),
        lambda: spark_timely.open_log(tmp_path / "log", storage_options=options),
        lambda: spark_timely.cut([tmp_path / "log"], storage_options=options),
        lambda: spark_timely.wait(tmp_path / "log", time=3, timeout_s=0, storage_options=options),
    ):
        with pytest.raises(InvalidOptionError, match=r"could not use (a )?storage option.* — hint: give"):
            call()
    assert not (tmp_path / "new").exists()


def test_handle_is_not_made_with_what_fails_after_a_commit(tmp_path: Path) -> None:
    spark_timely.create_log(tmp_path / "log", SCHEMA)
    for given in ({"merge_every": 0}, {"merge_every": "x"}, {"clock": None}):
        with pytest.raises(InvalidUsageError, match=r"could not open log .* — hint: give a"):
            spark_timely.open_log(tmp_path / "log", **given)


def test_sizes_are_taken_as_text_and_one_column_by_its_name() -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,))
    writer = log.writer(owner="me", target_file_size="64kb")
    for _ in range(3):
        writer.append(ROWS)
    assert log.messages(columns="v").to_pylist() == [{"v": 1}] * 3
    assert log.compact(target_file_size="64mb").files_after < 5
    assert log.compact(target_file_size=np.int64(1)).merges == 0
    assert isinstance(log, Log)


WRONG_TIMES: dict[str, Callable[[], object]] = {
    "from_times(None)": lambda: spark_timely.Antichain.from_times(None),
    "from_times(5)": lambda: spark_timely.Antichain.from_times(5),
    "from_times(text)": lambda: spark_timely.Antichain.from_times("12"),
    "from_times(bytes)": lambda: spark_timely.Antichain.from_times(b"12"),
    "from_times(dict)": lambda: spark_timely.Antichain.from_times({1: 2}),
    "of(None)": lambda: spark_timely.Antichain.of(None),
    "of(text)": lambda: spark_timely.Antichain.of("x"),
    "of(fraction)": lambda: spark_timely.Antichain.of(1.5),
    "of(a time of fractions)": lambda: spark_timely.Antichain.of((1.5,)),
    "empty(text)": lambda: spark_timely.Antichain.empty("x"),
    "less_equal(None)": lambda: spark_timely.Antichain.of(1).less_equal(None),
    "meet(number)": lambda: spark_timely.Antichain.of(1).meet(5),
    "join(None)": lambda: spark_timely.Antichain.of(1).join(None),
    "less_equal_frontier(list)": lambda: spark_timely.Antichain.of(1).less_equal_frontier([1]),
}


@pytest.mark.parametrize("what", WRONG_TIMES)
def test_antichain_of_what_is_no_time_is_refused(what: str) -> None:
    with pytest.raises(InvalidUsageError, match=r"could not .*found .* — hint: "):
        WRONG_TIMES[what]()
