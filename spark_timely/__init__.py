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

from typing import TYPE_CHECKING

from spark_timely.lazy import lazy_names

if TYPE_CHECKING:
    from spark_timely import errors as errors
    from spark_timely import functions as functions
    from spark_timely.answers.peek import peek as peek
    from spark_timely.answers.subscribe import subscribe as subscribe
    from spark_timely.log.cut import cut as cut
    from spark_timely.log.log import Log as Log
    from spark_timely.log.log import create_log as create_log
    from spark_timely.log.log import open_log as open_log
    from spark_timely.log.wait import wait as wait
    from spark_timely.spark.answers.copy_to import copy_to as copy_to
    from spark_timely.spark.answers.mirror import mirror_to as mirror_to
    from spark_timely.spark.answers.sql import sql as sql
    from spark_timely.spark.capture.foreach_batch import capture as capture
    from spark_timely.spark.capture.start import start as start
    from spark_timely.spark.dataflows.dataflow import Dataflow as Dataflow
    from spark_timely.spark.frames.collection import consolidate as consolidate
    from spark_timely.spark.frames.collection import snapshot as snapshot
    from spark_timely.spark.instance.instance import ComputeInstance as ComputeInstance
    from spark_timely.spark.replay.replay import replay as replay
    from spark_timely.spark.session import credential as credential
    from spark_timely.spark.session import register as register
    from spark_timely.spark.session import session as session
    from spark_timely.spark.tasks.continual import ContinualTask as ContinualTask
    from spark_timely.time.antichain import Antichain as Antichain

__version__ = "0.1.0"

_EXPORTS = {
    "Antichain": "spark_timely.time.antichain",
    "ComputeInstance": "spark_timely.spark.instance.instance",
    "ContinualTask": "spark_timely.spark.tasks.continual",
    "Dataflow": "spark_timely.spark.dataflows.dataflow",
    "Log": "spark_timely.log.log",
    "capture": "spark_timely.spark.capture.foreach_batch",
    "consolidate": "spark_timely.spark.frames.collection",
    "copy_to": "spark_timely.spark.answers.copy_to",
    "create_log": "spark_timely.log.log",
    "credential": "spark_timely.spark.session",
    "cut": "spark_timely.log.cut",
    "errors": "spark_timely.errors:",
    "functions": "spark_timely.functions:",
    "mirror_to": "spark_timely.spark.answers.mirror",
    "open_log": "spark_timely.log.log",
    "peek": "spark_timely.answers.peek",
    "register": "spark_timely.spark.session",
    "replay": "spark_timely.spark.replay.replay",
    "session": "spark_timely.spark.session",
    "snapshot": "spark_timely.spark.frames.collection",
    "sql": "spark_timely.spark.answers.sql",
    "start": "spark_timely.spark.capture.start",
    "subscribe": "spark_timely.answers.subscribe",
    "wait": "spark_timely.log.wait",
}

__all__ = [
    "Antichain",
    "ComputeInstance",
    "ContinualTask",
    "Dataflow",
    "Log",
    "capture",
    "consolidate",
    "copy_to",
    "create_log",
    "credential",
    "cut",
    "errors",
    "functions",
    "mirror_to",
    "open_log",
    "peek",
    "register",
    "replay",
    "session",
    "snapshot",
    "sql",
    "start",
    "subscribe",
    "wait",
]

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
