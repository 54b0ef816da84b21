"""The capture log: timestamped messages and progress of streams, kept in a Delta table, written and replayed by jobs.

A commit goes from a `CommitRequest` through `decide`, which says by the states of the streams what becomes of it
(`machine`), to Parquet files of messages and progress (`files`), and by the one commit loop into the table (`store`). A
reader goes the other way: the files that are live in the table's snapshot, the states of the streams that the newest
progress files say (`streams`), and the rows (`reader`). A `Log` is one handle on all of it.

Examples
--------
>>> from spark_timely.log import Log
>>> Log.__name__
'Log'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_timely.log.cut import Cut as Cut
    from spark_timely.log.cut import cut as cut
    from spark_timely.log.log import Log as Log
    from spark_timely.log.log import MemoryLog as MemoryLog
    from spark_timely.log.log import create_log as create_log
    from spark_timely.log.log import open_log as open_log
    from spark_timely.log.wait import wait as wait
    from spark_timely.log.writer import StreamWriter as StreamWriter

__all__ = ["Cut", "Log", "MemoryLog", "StreamWriter", "create_log", "cut", "open_log", "wait"]

# Loaded on first use: what reads rows in Spark's tasks needs no Delta.
_MODULES = {
    "Cut": "cut",
    "Log": "log",
    "MemoryLog": "log",
    "StreamWriter": "writer",
    "create_log": "log",
    "cut": "cut",
    "open_log": "log",
    "wait": "wait",
}


def __getattr__(name: str) -> object:
    """Load a name from its module and keep it."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
