"""The end of a query that was started by the library: whose stream is closed, and when it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark

from spark_timely import errors
from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.sink.layout import layout_of
from spark_timely.spark.start import CaptureQuery
from tests.unit.sink.driver import SinkDriver, rows

BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}
SCHEMA = spark.StructType().add("t", "long").add("id", "long")


class EndedQuery:
    """Spark's handle of a query that has ended."""

    isActive = False

    def __init__(self, query: str) -> None:
        self.id = query

    def awaitTermination(self, timeout: int | None = None) -> bool:
        """Return at once."""
        del timeout
        return True


def ended(driver: SinkDriver, query: str) -> Any:
    """Return a started query that has ended, and is to close the driver's stream."""
    options = parse_options(SINK_OPTIONS, driver.options)
    return CaptureQuery(EndedQuery(query), options, layout_of(SCHEMA, options, form=None), close=True)


def test_stream_of_another_query_is_not_closed(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])])
    version = driver.log().version
    with pytest.raises(errors.OwnershipError, match="owned by 'query-a', this query is 'query-b'"):
        ended(driver, "query-b").await_termination()
    assert driver.log().version == version
    driver.run([rows([10])])
    assert driver.log().messages()["_time"].to_pylist() == [9, 10]


def test_own_stream_is_closed_and_its_last_micro_batch_still_recognised(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([9])], crash="after commit")
    ended(driver, "query-a").await_termination()
    assert driver.log().frontier().is_empty
    assert driver.log().stream("main").reason == "end of query query-a"
    version = driver.log().version
    driver.run([rows([9])])
    ended(driver, "query-a").await_termination()
    assert driver.log().version == version
