"""``frontier=source``: how far the sources are, by the checkpoint's files, is how far the log is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely import errors
from spark_timely.log.log import create_log
from spark_timely.sink.writer import TimelyStreamWriter
from spark_timely.spark.base.schema import spark_schema
from spark_timely.time.antichain import Antichain
from tests.unit.sink.driver import SinkDriver, refused, rows
from tests.unit.spark.base.test_source_frontier import offset

SOURCE = {"timeColumn": "t", "frontier": "source"}
NONE = rows([])
SCHEMA = spark_schema(NONE.schema)
BEGIN = '{"version": 1, "delivery": "complete", "times": ["long"], "begin": {"frontier": [3]}}'


def test_log_is_as_far_as_the_source_that_is_behind(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    steps = [
        ([1, 9], (offset([10]), BEGIN), -(2**63)),
        ([], (offset([10]), "-"), -(2**63)),
        ([2], (offset([10]), offset([3])), 3),
        ([3], (offset([12]), offset([3])), 3),
        ([], (offset([12]), offset([11])), 11),
        ([11, 12], (offset([]), offset([11])), 11),
        ([], (offset([]), offset([13])), 13),
    ]
    for times, sources, frontier in steps:
        version = driver.log().core.version if driver.log_path.exists() else -1
        driver.run([rows(times)], sources=sources)
        log = driver.log()
        assert log.core.version > version  # a micro-batch without rows is committed too
        assert log.frontier() == Antichain.of(frontier)
    assert sorted(log.messages()["_time"].to_pylist()) == [1, 2, 3, 9, 11, 12]
    assert log.verify().legal
    reasons = [row["_reason"] for row in log.core.progress().to_pylist() if row["_seq"] == 5]
    assert set(reasons) == {"source: [11]"}


def test_end_of_all_sources_closes_the_stream_once(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    driver.run([rows([1])], sources=[offset([]), offset([4])])
    assert not driver.log().frontier().is_empty
    driver.run([rows([4])], sources=[offset([]), offset([])], crash="after commit")
    log = driver.log()
    assert log.frontier().is_empty
    driver.run([rows([4])], sources=["never looked at"])
    assert driver.log().core.version == log.core.version
    assert driver.log().messages()["_time"].to_pylist() == [1, 4]
    # Nothing follows a complete source; whatever does is refused.
    with refused(driver, errors.ClosedError, "found it closed"):
        driver.run([rows([5])], sources=[offset([]), offset([])])


def test_empty_source_that_is_complete_makes_a_complete_log(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    driver.run([NONE], sources=[offset([])])
    assert driver.log().frontier().is_empty
    assert driver.log().messages().num_rows == 0


@pytest.mark.parametrize("crash", ["before commit", "after commit"])
def test_repeated_micro_batch_decides_the_same(tmp_path: Path, crash: str) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    driver.run([rows([1])], sources=[offset([5])])
    driver.run([rows([7], 1)], sources=[offset([8])], crash=crash)
    driver.run([rows([7], 1)])
    log = driver.log()
    assert log.frontier() == Antichain.of(8)
    assert log.messages()["_time"].to_pylist() == [1, 7]
    state = log.core.stream("main")
    assert state is not None
    assert state.batch == 1


def test_log_that_was_moved_by_hand_never_goes_back(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE, lateData="deadLetter")
    driver.run([rows([1])], sources=[offset([5])])
    driver.log().advance("main", [9])
    driver.run([rows([7, 9], 1)], sources=[offset([8])])
    assert driver.log().frontier() == Antichain.of(9)
    assert driver.log().dead()["t"].to_pylist() == [7]
    driver.run([NONE], sources=[offset([10])])
    assert driver.log().frontier() == Antichain.of(10)


def test_time_that_the_query_moved_back_is_late(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    driver.run([rows([15])], sources=[offset([16])])
    with refused(
        driver, errors.LateDataError, "found time 10 behind the frontier [16]", "the query itself moves times"
    ):
        driver.run([rows([10])], sources=[offset([18])])


def test_product_times_meet_and_join(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **{**SOURCE, "timeColumn": "t,id"})
    pair = ("long", "long")
    driver.run([rows([1, 2], 3)], sources=[offset([[2, 5]], pair), offset([[4, 1]], pair)])
    assert driver.log().frontier() == Antichain.of((2, 5), (4, 1))
    driver.run([rows([2, 4], 5)], sources=[offset([[2, 6], [3, 5]], pair), offset([[4, 1]], pair)])
    assert driver.log().frontier() == Antichain.of((2, 6), (3, 5), (4, 1))
    driver.run([rows([])], sources=[offset([], pair), offset([[4, 1]], pair)])
    assert driver.log().frontier() == Antichain.of((4, 1))
    driver.run([rows([])], sources=[offset([], pair), offset([], pair)])
    assert driver.log().frontier() == Antichain.empty(2)
    assert driver.log().verify().legal


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ('{"logOffset":17}', errors.InvalidUsageError, "found a file source that is not timely"),
        (offset([5], delivery="arrival"), errors.InvalidUsageError, "delivery='arrival'"),
        (offset([5], content="events"), errors.InvalidUsageError, "content='events'"),
        (offset([5], ("date",)), errors.InvalidUsageError, "times of types (date) and (long)"),
    ],
)
def test_query_of_sources_without_frontiers_is_refused_first(
    tmp_path: Path, line: str, kind: type[errors.TimelyError], text: str, *, exists: bool
) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    if exists:
        driver.run([rows([1])], sources=[offset([1])])
    (driver.checkpoint / "offsets" / str(driver.next_batch())).write_text(f"v1\n{{}}\n{offset([5])}\n{line}")
    with refused(driver, kind, text):
        driver.writer(SCHEMA)
    with refused(driver, kind, text):
        driver.run([rows([9])])


def test_sources_of_other_times_than_the_logs_are_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    with refused(driver, errors.InvalidOptionError, "sources with times of type (timestamp), the log's are (long)"):
        driver.run([rows([1])], sources=[offset([1_700_000_000_000_000], ("timestamp",))])
    (driver.checkpoint / "offsets" / "0").unlink()
    with refused(driver, errors.InvalidOptionError, "times of type (long, long), the log's are (long)"):
        driver.run([rows([1])], sources=[offset([[1, 2]], ("long", "long"))])


def test_state_that_appears_in_the_first_micro_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    real = driver.writer

    def writer(schema: Any, *, overwrite: bool = False) -> TimelyStreamWriter:
        made = real(schema, overwrite=overwrite)
        (driver.checkpoint / "state" / "0").mkdir(parents=True, exist_ok=True)
        return made

    monkeypatch.setattr(driver, "writer", writer)
    with pytest.raises(errors.InvalidUsageError, match="found stateful operators in the query"):
        driver.run([rows([1])], sources=[offset([5])])
    assert not (driver.log_path / "_delta_log").exists()


def test_checkpoint_without_a_micro_batch_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    with refused(driver, errors.StorageError, "found no micro-batch in checkpoint"):
        driver.writer(SCHEMA)


def test_log_of_other_times_made_before_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **SOURCE)
    create_log(str(driver.log_path), pa.schema([("t", pa.int32()), ("id", pa.int64())]), times=("int",))
    narrow = rows([1]).cast(pa.schema([("t", pa.int32()), ("id", pa.int64())]))
    with refused(driver, errors.InvalidOptionError, "sources with times of type (long), the log's are (int)"):
        driver.run([narrow], sources=[offset([5])])
