"""What is found in the Spark that is there, and what is said where something is missing.

The lane ``features`` runs this with earlier ones too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pyspark
import pytest
from pyspark.sql import datasource as of_spark

from spark_timely.errors import InvalidUsageError
from spark_timely.spark.base import compat


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Spark be one that has neither admission control nor Arrow batches for sinks."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delattr(of_spark, "DataSourceStreamArrowWriter", raising=False)
    importlib.reload(compat)
    yield
    monkeypatch.undo()
    importlib.reload(compat)


def test_features_are_those_that_spark_has() -> None:
    assert hasattr(of_spark, "DataSourceStreamArrowWriter") == compat.ARROW_SINK
    assert hasattr(of_spark.DataSourceStreamReader, "getDefaultReadLimit") == compat.ADMISSION_CONTROL
    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    assert (version >= (4, 2), version >= (4, 1)) == (compat.ADMISSION_CONTROL, compat.ARROW_SINK)


def test_sink_is_refused_where_spark_has_no_arrow_writer(earlier: None) -> None:
    assert not compat.ARROW_SINK
    assert not compat.ADMISSION_CONTROL
    with pytest.raises(
        InvalidUsageError, match="found a pyspark without DataSourceStreamArrowWriter, version='"
    ) as told:
        compat.require_arrow_sink()
    assert told.value.hint is not None
    assert told.value.hint.startswith("use Spark 4.1 or later")


def test_sink_is_not_refused_where_spark_has_the_writer() -> None:
    if compat.ARROW_SINK:
        compat.require_arrow_sink()
    else:
        with pytest.raises(InvalidUsageError):
            compat.require_arrow_sink()
