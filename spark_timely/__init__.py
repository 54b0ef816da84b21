"""spark-timely: capture of Spark streams with statements about their progress, and replay by other jobs.

One Spark job captures a stream into a log (a Delta table) together with the statements about
which times are complete; any other job replays it, with any number of workers, and knows exactly
which times are complete.

Names are loaded on first use, so that ``import spark_timely`` is cheap and works in processes that
have neither Spark nor Delta: the planner and committer processes of Spark import this package over
and over again.

Examples
--------
>>> import spark_timely
>>> spark_timely.Antichain.from_times([[3]]).to_json()
[3]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_timely import errors as errors
    from spark_timely.answers.peek import peek as peek
    from spark_timely.answers.peek import start_peek as start_peek
    from spark_timely.answers.subscribe import subscribe as subscribe
    from spark_timely.answers.timestamp import explain_timestamp as explain_timestamp
    from spark_timely.dataflow.aggregates import avg_of as avg
    from spark_timely.dataflow.aggregates import count as count
    from spark_timely.dataflow.aggregates import max_of as max
    from spark_timely.dataflow.aggregates import min_of as min
    from spark_timely.dataflow.aggregates import sum_of as sum
    from spark_timely.dataflow.delays import ceil_to as ceil_to
    from spark_timely.dataflow.delays import plus as plus
    from spark_timely.dataflow.delays import windows as windows
    from spark_timely.datasource.reader import read_splits as read_splits
    from spark_timely.log.cut import Cut as Cut
    from spark_timely.log.cut import cut as cut
    from spark_timely.log.log import Log as Log
    from spark_timely.log.log import create_log as create_log
    from spark_timely.log.log import open_log as open_log
    from spark_timely.log.wait import wait as wait
    from spark_timely.spark.at_one_time import sql as sql
    from spark_timely.spark.base.source_frontier import batch_frontier as batch_frontier
    from spark_timely.spark.batch_frame import batch_frame as batch_frame
    from spark_timely.spark.bodies import Changes as Changes
    from spark_timely.spark.capture.foreach_batch import capture as capture
    from spark_timely.spark.collection import consolidate as consolidate
    from spark_timely.spark.collection import snapshot as snapshot
    from spark_timely.spark.collection import snapshot_at as snapshot_at
    from spark_timely.spark.compute import ComputeInstance as ComputeInstance
    from spark_timely.spark.continual import ContinualTask as ContinualTask
    from spark_timely.spark.continual import deletes as deletes
    from spark_timely.spark.continual import newest as newest
    from spark_timely.spark.copy_to import copy_to as copy_to
    from spark_timely.spark.dataflow import Dataflow as Dataflow
    from spark_timely.spark.dataflow import DataflowQuery as DataflowQuery
    from spark_timely.spark.mirror import mirror_to as mirror_to
    from spark_timely.spark.replay import DriverReplay as DriverReplay
    from spark_timely.spark.replay import replay as replay
    from spark_timely.spark.session import credential as credential
    from spark_timely.spark.session import register as register
    from spark_timely.spark.session import session as session
    from spark_timely.spark.session import session_settings as session_settings
    from spark_timely.spark.session import table_path as table_path
    from spark_timely.spark.start import CaptureQuery as CaptureQuery
    from spark_timely.spark.start import start as start
    from spark_timely.time.antichain import Antichain as Antichain

__version__ = "0.1.0"

# Public name -> "module" or "module:attribute" that provides it.
_EXPORTS: dict[str, str] = {
    "Antichain": "spark_timely.time.antichain",
    "CaptureQuery": "spark_timely.spark.start",
    "Changes": "spark_timely.spark.bodies",
    "ComputeInstance": "spark_timely.spark.compute",
    "ContinualTask": "spark_timely.spark.continual",
    "Cut": "spark_timely.log.cut",
    "Dataflow": "spark_timely.spark.dataflow",
    "DataflowQuery": "spark_timely.spark.dataflow",
    "DriverReplay": "spark_timely.spark.replay",
    "Log": "spark_timely.log.log",
    "avg": "spark_timely.dataflow.aggregates:avg_of",
    "batch_frame": "spark_timely.spark.batch_frame",
    "batch_frontier": "spark_timely.spark.base.source_frontier",
    "capture": "spark_timely.spark.capture.foreach_batch",
    "ceil_to": "spark_timely.dataflow.delays",
    "consolidate": "spark_timely.spark.collection",
    "copy_to": "spark_timely.spark.copy_to",
    "count": "spark_timely.dataflow.aggregates",
    "create_log": "spark_timely.log.log",
    "credential": "spark_timely.spark.session",
    "cut": "spark_timely.log.cut",
    "deletes": "spark_timely.spark.continual",
    "errors": "spark_timely.errors:",
    "explain_timestamp": "spark_timely.answers.timestamp",
    "max": "spark_timely.dataflow.aggregates:max_of",
    "min": "spark_timely.dataflow.aggregates:min_of",
    "mirror_to": "spark_timely.spark.mirror",
    "newest": "spark_timely.spark.continual",
    "open_log": "spark_timely.log.log",
    "peek": "spark_timely.answers.peek",
    "plus": "spark_timely.dataflow.delays",
    "read_splits": "spark_timely.datasource.reader",
    "register": "spark_timely.spark.session",
    "replay": "spark_timely.spark.replay",
    "session": "spark_timely.spark.session",
    "session_settings": "spark_timely.spark.session",
    "snapshot": "spark_timely.spark.collection",
    "snapshot_at": "spark_timely.spark.collection",
    "sql": "spark_timely.spark.at_one_time",
    "start": "spark_timely.spark.start",
    "start_peek": "spark_timely.answers.peek",
    "subscribe": "spark_timely.answers.subscribe",
    "sum": "spark_timely.dataflow.aggregates:sum_of",
    "table_path": "spark_timely.spark.session",
    "wait": "spark_timely.log.wait",
    "windows": "spark_timely.dataflow.delays",
}

__all__ = [
    "Antichain",
    "CaptureQuery",
    "Changes",
    "ComputeInstance",
    "ContinualTask",
    "Cut",
    "Dataflow",
    "DataflowQuery",
    "DriverReplay",
    "Log",
    "avg",
    "batch_frame",
    "batch_frontier",
    "capture",
    "ceil_to",
    "consolidate",
    "copy_to",
    "count",
    "create_log",
    "credential",
    "cut",
    "deletes",
    "errors",
    "explain_timestamp",
    "max",
    "min",
    "mirror_to",
    "newest",
    "open_log",
    "peek",
    "plus",
    "read_splits",
    "register",
    "replay",
    "session",
    "session_settings",
    "snapshot",
    "snapshot_at",
    "sql",
    "start",
    "start_peek",
    "subscribe",
    "sum",
    "table_path",
    "wait",
    "windows",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module and keep it."""
    target = _EXPORTS.get(name)
    if target is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    module_name, colon, attribute = target.partition(":")
    module = import_module(module_name)
    value: object = module if colon and not attribute else getattr(module, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
