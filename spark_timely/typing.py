"""Classes that the library returns, for annotations in users' code; users never make one themselves.

::

    from spark_timely.typing import CaptureQuery

    def started(df: DataFrame) -> CaptureQuery: ...

Examples
--------
>>> from spark_timely.typing import Cut
>>> Cut.__name__
'Cut'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.lazy import lazy_names

if TYPE_CHECKING:
    from spark_timely.answers.peek import Peek, PeekExplanation
    from spark_timely.answers.subscribe import Subscription
    from spark_timely.compute.drive.handle import Batches
    from spark_timely.compute.response import SubscribeBatch
    from spark_timely.dataflow.stream import Stream
    from spark_timely.log.acceptance import AcceptReport
    from spark_timely.log.compaction import CompactionReport
    from spark_timely.log.cut import Cut
    from spark_timely.log.machine.since import Keep, Retainer
    from spark_timely.log.machine.state import CommitOutcome, StreamState
    from spark_timely.log.timestamp import TimestampExplanation
    from spark_timely.log.vacuum import VacuumReport
    from spark_timely.log.verify import VerifyReport
    from spark_timely.log.writer import StreamWriter
    from spark_timely.spark.answers.mirror import Mirror
    from spark_timely.spark.capture.start import CaptureQuery
    from spark_timely.spark.dataflows.dataflow import DataflowQuery
    from spark_timely.spark.replay.replay import DriverReplay
    from spark_timely.spark.tasks.continual import Difference

_EXPORTS = {
    "AcceptReport": "spark_timely.log.acceptance",
    "Batches": "spark_timely.compute.drive.handle",
    "CaptureQuery": "spark_timely.spark.capture.start",
    "CommitOutcome": "spark_timely.log.machine.state",
    "CompactionReport": "spark_timely.log.compaction",
    "Cut": "spark_timely.log.cut",
    "DataflowQuery": "spark_timely.spark.dataflows.dataflow",
    "Difference": "spark_timely.spark.tasks.continual",
    "DriverReplay": "spark_timely.spark.replay.replay",
    "Keep": "spark_timely.log.machine.since",
    "Mirror": "spark_timely.spark.answers.mirror",
    "Peek": "spark_timely.answers.peek",
    "PeekExplanation": "spark_timely.answers.peek",
    "Retainer": "spark_timely.log.machine.since",
    "Stream": "spark_timely.dataflow.stream",
    "StreamState": "spark_timely.log.machine.state",
    "StreamWriter": "spark_timely.log.writer",
    "SubscribeBatch": "spark_timely.compute.response",
    "Subscription": "spark_timely.answers.subscribe",
    "TimestampExplanation": "spark_timely.log.timestamp",
    "VacuumReport": "spark_timely.log.vacuum",
    "VerifyReport": "spark_timely.log.verify",
}

__all__ = [
    "AcceptReport",
    "Batches",
    "CaptureQuery",
    "CommitOutcome",
    "CompactionReport",
    "Cut",
    "DataflowQuery",
    "Difference",
    "DriverReplay",
    "Keep",
    "Mirror",
    "Peek",
    "PeekExplanation",
    "Retainer",
    "Stream",
    "StreamState",
    "StreamWriter",
    "SubscribeBatch",
    "Subscription",
    "TimestampExplanation",
    "VacuumReport",
    "VerifyReport",
]

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
