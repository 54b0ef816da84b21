"""The capture log: timestamped messages and progress of streams, kept in a Delta table, written and replayed by jobs.

A commit goes from a `CommitRequest` through `decide`, which says by the states of the streams what becomes of it
(`machine`), to Parquet files of messages and progress (`files`), and by the one commit loop into the table (`store`). A
reader goes the other way: the files that are live in the table's snapshot, the states of the streams that the newest
progress files say (`streams`), and the rows (`reader`).

A `LogCore` (`core`) is one handle on all of it for the library. A `Log` (`log`) is that handle for users; the sink, the
replay source, the answers and the dataflows open one as well. Upkeep after commits keeps a log small: `compaction`
merges files, `retention` moves since, `forgetting` deletes or sums what is before since, and `vacuum` deletes replaced
files. Rows that other programs changed are the matter of `foreign`, `ledger` and `acceptance`.

Examples
--------
>>> from spark_timely.log import Log
>>> Log.__name__
'Log'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.lazy import lazy_names

if TYPE_CHECKING:
    from spark_timely.log.cut import Cut as Cut
    from spark_timely.log.log import Log as Log
    from spark_timely.log.log import MemoryLog as MemoryLog
    from spark_timely.log.log import create_log as create_log
    from spark_timely.log.log import open_log as open_log
    from spark_timely.log.writer import StreamWriter as StreamWriter

__all__ = ["Cut", "Log", "MemoryLog", "StreamWriter", "create_log", "open_log"]

# Loaded on first use: what reads rows in Spark's tasks needs no Delta.
_EXPORTS = {
    "Cut": "spark_timely.log.cut",
    "Log": "spark_timely.log.log",
    "MemoryLog": "spark_timely.log.log",
    "StreamWriter": "spark_timely.log.writer",
    "create_log": "spark_timely.log.log",
    "open_log": "spark_timely.log.log",
}

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
