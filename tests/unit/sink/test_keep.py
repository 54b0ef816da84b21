"""What the sink says of how much a log keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.errors import InvalidOptionError
from spark_timely.log.core import LogCore
from spark_timely.log.log import open_log
from spark_timely.log.machine.since import DAY_US, Keep
from spark_timely.sink.columns import policy_of, roles_of
from spark_timely.time.antichain import Antichain
from tests.unit.sink.driver import BOUNDED, SinkDriver, rows


def kept(driver: SinkDriver) -> Keep | None:
    return open_log(driver.log_path).core.kept()


def test_capture_makes_a_log_that_keeps_a_length(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, keep="5", keepCommitted="0 seconds")
    driver.run([rows([1, 20])])
    assert kept(driver) == Keep(5, 0)
    assert open_log(driver.log_path).allow_compaction([99]) == Antichain.of(14)


def test_capture_changes_what_a_log_keeps(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    assert kept(driver) is None
    driver.options["keep"] = "7"
    driver.run([rows([5])])
    found = kept(driver)
    assert found is not None
    assert (found.length, found.committed) == (7, DAY_US)
    version = open_log(driver.log_path).core.version
    driver.run([rows([9])])
    assert open_log(driver.log_path).core.version == version + 1
    # Left out, it stays as it is.
    del driver.options["keep"]
    driver.run([rows([13])])
    assert kept(driver) == found


def test_vacuum_is_what_the_option_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    commit = LogCore.commit

    def noted(log: LogCore, *given: Any) -> Any:
        seen.append(log.auto_vacuum)
        return commit(log, *given)

    monkeypatch.setattr(LogCore, "commit", noted)
    SinkDriver(tmp_path, **BOUNDED, autoVacuum="off").run([rows([1])])
    SinkDriver(tmp_path / "other", **BOUNDED).run([rows([1])])
    assert seen == [False, True]


REFUSED = {
    "several coordinates": ({"timeColumn": "t,u", "keep": "5"}, "found option 'keep' for times of 2 coordinates"),
    "a date by a number": ({"timeColumn": "d", "keep": "5"}, "keep"),
    "an integer by days": ({"timeColumn": "t", "keep": "5 days"}, "keep"),
    "only by the clock": ({"timeColumn": "t", "keepCommitted": "1 day"}, "found option 'keepCommitted' without 'keep'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lengths_that_mean_nothing_are_refused(name: str) -> None:
    given, text = REFUSED[name]
    schema = StructType().add("t", "long").add("u", "long").add("d", "date")
    options = parse_options(SINK_OPTIONS, {"path": "log", "frontier": "hold", **given})
    roles = roles_of(schema, options, form=None)
    with pytest.raises(InvalidOptionError) as caught:
        policy_of(options, roles.form)
    assert text in str(caught.value)
