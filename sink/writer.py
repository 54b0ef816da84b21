"""The sink ``writeStream.format("timely")``: what Spark calls, and when.

Per micro-batch Spark makes a writer in a prepare process on the driver and pickles it to the tasks;
each task calls `write` once, with zero rows too; another writer, made in a commit process, gets the
tasks' messages and the micro-batch's number. Nothing is shared between the three but what is pickled.
Spark calls `abort` also when `commit` raised, and while an interrupted `commit` may still be running.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from spark_timely.conf.options import SINK_OPTIONS, SinkOptions, parse_options
from spark_timely.errors import InvalidOptionError, InvalidUsageError
from spark_timely.sink.commit import TaskReport, commit_reports, delete_files, is_refusal
from spark_timely.sink.continuity import BatchId
from spark_timely.sink.plan import CapturePlan, make_plan
from spark_timely.spark.base.checkpoint import checkpoint_state, planned_offsets, require_checkpoint
from spark_timely.spark.base.compat import StreamArrowWriter
from spark_timely.spark.base.worker import settle_planner, settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class CaptureMessage(WriterCommitMessage):
    """Carry a task's report to the committer.

    Attributes
    ----------
    report : TaskReport
        Bounded in size, whatever the number of rows.
    """

    report: TaskReport


class TimelyStreamWriter(StreamArrowWriter):
    """Write micro-batches to a log.

    Parameters
    ----------
    plan : CapturePlan
        Plan of the micro-batch, made where the writer was made.

    Notes
    -----
    Picklable. Make it with `make_stream_writer`.
    """

    def __init__(self, plan: CapturePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CaptureMessage:
        """Judge and write the rows of one task.

        Parameters
        ----------
        iterator : iterator of pyarrow.RecordBatch
            Rows of the task, none at all included.

        Returns
        -------
        CaptureMessage
            Small, whatever the number of rows.

        Raises
        ------
        TimelyError
            See `spark_timely.sink.rows.write_rows`.
        """
        from spark_timely.sink.rows import write_rows

        settle_worker()
        return CaptureMessage(write_rows(self.plan, _as_tasks_know(self.plan.ident), iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the micro-batch to the log, once.

        Parameters
        ----------
        messages : list of CaptureMessage
            One per task.
        batchId : int
            Number of the micro-batch.

        Raises
        ------
        TimelyError
            See `spark_timely.sink.commit.commit_reports`. Files are deleted where the log surely was
            not changed.
        """
        settle_planner()
        reports = _reports(messages)
        ident = self._numbered(batchId)
        try:
            commit_reports(self.plan, ident, reports)
        except BaseException as error:
            if is_refusal(error):
                delete_files(self.plan, reports)
            raise

    def _numbered(self, batch: int) -> BatchId:
        """Return the micro-batch under the number that Spark gives the committer."""
        known, options = self.plan.ident, self.plan.options
        if known.batch == batch:
            return known
        location = require_checkpoint(options.checkpoint_location)
        return BatchId(
            known.query, batch, planned=planned_offsets(location, batch, storage_options=options.storage_options)
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the files of a micro-batch that surely is not in the log.

        Parameters
        ----------
        messages : list of CaptureMessage or None
            None for tasks that did not end well.
        batchId : int
            Number of the micro-batch.

        Notes
        -----
        With a message of each task `commit` was called, and may still be at work if it was
        interrupted: then the files stay, as orphans at worst. `commit` itself deletes them where it
        refused.
        """
        if all(message is not None for message in messages):
            return
        delete_files(self.plan, _reports(messages))


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TimelyStreamWriter:  # noqa: FBT001 - as Spark passes it
    """Make the writer of one micro-batch, or refuse the query.

    Parameters
    ----------
    options : mapping
        Options of the sink, names in any case.
    schema : pyspark.sql.types.StructType
        Schema of the data.
    overwrite : bool
        Spark's way to say output mode ``complete``.

    Returns
    -------
    TimelyStreamWriter

    Raises
    ------
    InvalidUsageError
        If the output mode is not append.
    InvalidOptionError
        If options are unknown, missing or contradict each other.
    TimelyError
        See `spark_timely.sink.plan.make_plan`.
    """
    parsed = parse_options(SINK_OPTIONS, options)
    if overwrite:
        msg = f"could not start the sink for log {parsed.path!r}: found output mode 'complete'"
        raise InvalidUsageError(
            msg,
            hint="use outputMode('append'), and aggregate after the replay, where times are complete: a log only grows",
            context={"path": parsed.path},
        )
    _refuse_unseen(parsed)
    location = require_checkpoint(parsed.checkpoint_location)
    known = checkpoint_state(location, storage_options=parsed.storage_options)
    planned = None
    if known.batch is not None:
        planned = planned_offsets(location, known.batch, storage_options=parsed.storage_options)
    ident = BatchId(known.query, known.batch, planned=planned)
    # Spark calls the sink for each micro-batch.
    return TimelyStreamWriter(make_plan(schema, parsed, ident, gapless=True))


def _refuse_unseen(options: SinkOptions) -> None:
    """Refuse options about what a sink does not see: the end of its query, that nothing comes, rows of other tasks."""
    if options.dialect == "cdcv2":
        msg = "could not use option dialect='cdcv2' with format('timely')"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, dialect='cdcv2', through='foreachBatch'), or spark_timely.capture in"
            " foreachBatch: a task of a sink sees neither the rows of other tasks nor the log, so it cannot tell a"
            " copy",
            context={"option": "dialect"},
        )
    if options.idle_timeout is not None:
        msg = "could not use option 'idleTimeout' with format('timely')"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, idle_timeout='10 minutes'): a sink is not called while its query is idle",
            context={"option": "idleTimeout"},
        )
    if options.on_finish == "close":
        msg = "could not use option onFinish='close' with format('timely')"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, on_finish='close'), or close the stream from the command line: a sink"
            " does not see the end of its query",
            context={"option": "onFinish"},
        )


def _as_tasks_know(ident: BatchId) -> BatchId:
    """Return the micro-batch as Spark's tasks know it, completed by what the driver read."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return ident
    query, batch = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(_BATCH_PROPERTY)
    # The properties are of the run that is on; the checkpoint's files were read before it was planned.
    number = int(batch) if batch else ident.batch
    planned = ident.planned if number == ident.batch else None
    return BatchId(query or ident.query, number, ident.step, planned)


def _reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message.report for message in messages if isinstance(message, CaptureMessage)]
