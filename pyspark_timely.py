"""Where Spark looks for data sources: it imports every ``pyspark_*`` module and takes ``DefaultSource``."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("spark_timely.datasource.source") is not None:
    from spark_timely.datasource.source import TimelyDataSource as DefaultSource

    __all__ = ["DefaultSource"]
