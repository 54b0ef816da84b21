"""Compatibility with versions and kinds of Spark: which interfaces there are for sources, sinks and sessions.

Spark 4.2 gave Python sources admission control: a start offset and a read limit for `latestOffset`,
default limits, Trigger.AvailableNow, and a report of the newest offset. Before, `latestOffset` has no
arguments and the rest does not exist. Spark 4.1 gave Python sinks rows as Arrow batches; before, there is no sink here.
Source, sink and the runners above them ask here: which interfaces Spark has, and whether a session is Connect's.
Features are detected, versions never compared: Databricks' packages have features of later versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import PySparkException

from spark_timely.errors import InvalidUsageError

__all__ = [
    "ADMISSION_CONTROL",
    "ARROW_SINK",
    "AvailableNow",
    "StreamArrowWriter",
    "built_in_functions",
    "carrier_limit",
    "is_remote",
    "reads_all",
    "require_arrow_sink",
]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow

    ADMISSION_CONTROL: bool
    ARROW_SINK: bool
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow

        ADMISSION_CONTROL = True
    except ImportError:

        class AvailableNow:
            """Stands for the interface that this Spark does not have."""

        ADMISSION_CONTROL = False

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter

        ARROW_SINK = True
    except ImportError:

        class StreamArrowWriter:
            """Stands for the base of sinks that this Spark does not have."""

        ARROW_SINK = False


def require_arrow_sink() -> None:
    """Refuse a streaming write where Spark gives a sink no Arrow batches.

    Raises
    ------
    InvalidUsageError
        If Spark is older than 4.1, or a package of Databricks that has no such sink.
    """
    if not ARROW_SINK:
        msg = (
            "could not start the sink: found a pyspark without DataSourceStreamArrowWriter,"
            f" version={pyspark.__version__!r}"
        )
        raise InvalidUsageError(
            msg,
            hint="use Spark 4.1 or later, on Databricks environment version 5 or Databricks Runtime 18 or later",
            context={"version": pyspark.__version__},
        )


def carrier_limit(*, limited: bool) -> ReadLimit:
    """Return the read limit to offer Spark by default.

    Spark knows five limits, none of them on times, and passes one back unless the trigger overrides
    it. So one is used as a carrier that says "as the options say"; its number means nothing.

    Parameters
    ----------
    limited : bool
        Whether options limit a micro-batch.
    """
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    return ReadMaxRows(max_rows=(1 << 63) - 1) if limited else ReadAllAvailable()


def reads_all(limit: object, /) -> bool:
    """Return whether Spark asks for everything there is, whatever the options say (Trigger.Once)."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return isinstance(limit, ReadAllAvailable)


def is_remote(spark: SparkSession, /) -> bool:
    """Tell whether a session is a client of Spark Connect."""
    return ".connect." in type(spark).__module__


_BUILT_IN: dict[str, frozenset[str]] = {}


def built_in_functions(spark: SparkSession, /) -> frozenset[str]:
    """Return the names of functions that mean Spark's own in this session, in lower case.

    Those of Spark are asked for once for each version. Where the session finds its own functions first, they hide
    Spark's.
    """
    version = spark.version
    if version not in _BUILT_IN:
        rows = spark.sql("SHOW SYSTEM FUNCTIONS").collect()
        _BUILT_IN[version] = frozenset(str(row[0]).lower() for row in rows)
    try:
        first = spark.conf.get("spark.sql.functionResolution.sessionOrder") == "first"
    except PySparkException:
        first = True  # a Spark without this setting
    if not first:
        return _BUILT_IN[version]
    own = spark.sql("SHOW USER FUNCTIONS").collect()
    return _BUILT_IN[version] - {str(row[0]).lower().rpartition(".")[2] for row in own}
