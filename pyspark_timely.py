"""Entry point for Spark: it imports every ``pyspark_*`` module and takes its ``DefaultSource``."""

from __future__ import annotations

from spark_timely.datasource.source import TimelyDataSource as DefaultSource

__all__ = ["DefaultSource"]
