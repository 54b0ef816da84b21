"""Queries and jobs of Spark, above the source and the sink: captures, replays, dataflows, continual tasks, answers.

Each feature has a folder: `capture`, `replay`, `dataflows`, `tasks`, `answers`, `instance`. `frames` has the logs
as DataFrames, which most of them read. `session` prepares a session: `patches` has Spark's readers and writers refuse
what cannot work, `table_functions` are for Spark's SQL. What the source and the sink need of Spark is in `base`.

The names here are for jobs that do by themselves what `spark_timely` does for others: they read splits on their own,
write with a frontier on their own, or prepare a session that somebody else makes.

Examples
--------
>>> from spark_timely.spark import table_path
>>> table_path.__name__
'table_path'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.lazy import lazy_names

if TYPE_CHECKING:
    from spark_timely.datasource.reader import read_splits
    from spark_timely.spark.base.source_frontier import batch_frontier
    from spark_timely.spark.replay.batch_frame import batch_frame
    from spark_timely.spark.session import session_settings, table_path

__all__ = ["batch_frame", "batch_frontier", "read_splits", "session_settings", "table_path"]

_EXPORTS = {
    "batch_frame": "spark_timely.spark.replay.batch_frame",
    "batch_frontier": "spark_timely.spark.base.source_frontier",
    "read_splits": "spark_timely.datasource.reader",
    "session_settings": "spark_timely.spark.session",
    "table_path": "spark_timely.spark.session",
}

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
