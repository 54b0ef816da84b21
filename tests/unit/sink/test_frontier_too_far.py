"""The page "My frontier is too far": a row from the future is named, and a query continues without loss."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely import errors
from spark_timely.cli.command import main
from spark_timely.log.log import create_log
from tests.unit.sink.driver import SinkDriver

DAY = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "3 hours"}


def rows(hours: list[int], first: int) -> pa.Table:
    times = [DAY + dt.timedelta(hours=each) for each in hours]
    ids = range(first, first + len(hours))
    return pa.table({"t": pa.array(times, pa.timestamp("us", "UTC")), "id": pa.array(ids, pa.int64())})


def far(first: int) -> pa.Table:
    return rows([24 * 365 * 7000], first)


def test_row_from_the_future_is_named_by_error_and_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([0, 5], 0)])
    driver.run([rows([6], 2), far(3)])
    with pytest.raises(errors.LateDataError, match=r"row at time '90\d\d-.*\(row 0 of a task, commit 2\)") as found:
        driver.run([rows([7], 4)])
    assert "after the wall clock" in found.value.message
    assert "maxFutureSkew" in str(found.value.hint)
    assert "a larger lateness does not bring it back" in str(found.value.hint)
    assert main(["stats", str(driver.log_path)]) == 0
    assert "frontier moved to 90" in capsys.readouterr().out


def test_frontier_that_no_row_moved_is_not_blamed_on_one(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([0, 5], 0)])
    driver.log().writer(owner="query-a").advance("2014-01-01")
    with pytest.raises(errors.LateDataError, match="no row moved the frontier there"):
        driver.run([rows([7], 4)])


def test_writer_names_the_least_time_and_the_row() -> None:
    from spark_timely.log import MemoryLog

    log = MemoryLog.create(pa.schema([("id", pa.int64())]), times="date")
    writer = log.writer(owner="me", lateness="1 day")
    early = {"_time": [dt.date(1600, 1, 1)], "id": [1]}
    with pytest.raises(errors.UnheldCapabilityError, match="1700-01-01 is the least time of type date"):
        writer.append(early)
    writer.append({"_time": [dt.date(2013, 1, 5)], "id": [1]})
    with pytest.raises(errors.UnheldCapabilityError, match=r"row at time '2013-01-05' moved it \(row 0 of the append"):
        writer.append({"_time": [dt.date(2013, 1, 1)], "id": [2]})


def test_query_continues_in_a_new_log_without_loss(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([0, 5], 0)])
    driver.run([far(2)])
    driver.options |= {"lateData": "deadLetter", "maxFutureSkew": "1 day"}
    driver.run([rows([7, 3], 3)])
    old = driver.log()
    assert old.dead().num_rows == 2
    driver.log_path = tmp_path / "new"
    new = create_log(str(driver.log_path), old.schema, times="timestamp")
    writer = new.writer(owner="rebuild", lateness="3 hours", max_future_skew="1 day", late_data="deadLetter")
    names = old.schema.names
    writer.append(pa.concat_tables([old.messages(columns=names), old.dead().select(names)]), time_column="t", batch=0)
    driver.options |= {"path": str(driver.log_path), "takeover": "true", "beginAt": str(driver.next_batch())}
    driver.run([rows([8], 5)])
    driver.run([rows([9], 6)])
    new.refresh()
    assert sorted(new.messages()["id"].to_pylist()) == [0, 1, 3, 4, 5, 6]
    assert new.dead()["id"].to_pylist() == [2]
    assert new.domain.show_frontier(new.frontier()) == "2013-01-01T06:00Z"
