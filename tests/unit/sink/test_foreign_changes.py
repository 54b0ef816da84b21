"""A query that writes continues, and warns, while others changed rows that it does not depend on; else it stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_timely.errors import ForeignChangeError, TimelyError
from tests.unit.sink.driver import BOUNDED, SinkDriver, rows


def test_query_continues_whose_progress_is_untouched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1, 2])])
    whole = driver.log().core.version
    DeltaTable(str(driver.log_path)).delete("_event = 'message' and id = 0")
    driver.run([rows([3])])
    other = SinkDriver(tmp_path, query="query-b", checkpoint="other", **BOUNDED, stream="other")
    other.run([rows([9])])
    assert any("rows changed by another program" in record.message for record in caplog.records)
    with pytest.raises(ForeignChangeError, match=rf"version={whole + 1} \(DELETE\)"):
        driver.log().messages()
    DeltaTable(str(driver.log_path)).restore(whole)
    assert driver.log().messages().num_rows == 2


def test_query_stops_whose_progress_another_changed(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1, 2])])
    driver.run([rows([3])])
    table = DeltaTable(str(driver.log_path))
    table.delete("_event = 'progress' and _seq = 2")
    before = DeltaTable(str(driver.log_path)).version()
    with pytest.raises(TimelyError):
        driver.run([rows([5])])
    assert DeltaTable(str(driver.log_path)).version() == before
