"""What differs between versions and kinds of Spark: the only place that looks at it.

Spark 4.2 gave Python sources admission control: a start offset and a read limit for `latestOffset`,
default limits, Trigger.AvailableNow, and a report of the newest offset. Before, `latestOffset` has no
arguments and the rest does not exist. Features are detected, versions never compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["ADMISSION_CONTROL", "AvailableNow", "carrier_limit", "is_remote", "reads_all"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow

    ADMISSION_CONTROL: bool
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow

        ADMISSION_CONTROL = True
    except ImportError:

        class AvailableNow:
            """Stands for the interface that this Spark does not have."""

        ADMISSION_CONTROL = False


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
