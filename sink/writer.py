"""The sink ``writeStream.format("timely")``: the writer that Spark calls to capture a micro-batch.

It puts `plan`, `rows` and `commit` behind Spark's interface; `spark_timely.datasource.source` makes it when Spark asks.
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

from spark_timely.errors import StorageError, TimelyError, TimelyInternalError
from spark_timely.sink.commit import TaskReport, commit_reports, delete_files, is_refusal
from spark_timely.sink.plan import BatchId, CapturePlan, make_plan, sink_options
from spark_timely.spark.base.checkpoint import checkpoint_state, planned_offsets, require_checkpoint
from spark_timely.spark.base.compat import StreamArrowWriter
from spark_timely.spark.base.shipping import Shipped
from spark_timely.spark.base.worker import settle_planner, settle_worker, short_errors

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


@dataclass(frozen=True, slots=True)
class RefusalMessage(WriterCommitMessage):
    """Carry what a task refuses to the committer, which raises it.

    Raised in the task it would be shown in Spark's report of a failed job, after as many attempts as Spark makes.

    Attributes
    ----------
    error : TimelyError
    """

    error: TimelyError


@short_errors
class TimelyStreamWriter(Shipped, StreamArrowWriter):
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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CaptureMessage | RefusalMessage:
        """Judge and write the rows of one task.

        Parameters
        ----------
        iterator : iterator of pyarrow.RecordBatch
            Rows of the task, none at all included.

        Returns
        -------
        CaptureMessage or RefusalMessage
            Small, whatever the number of rows.

        Raises
        ------
        StorageError
            If the task may succeed when it is tried again.
        """
        from spark_timely.sink.rows import write_rows

        settle_worker()
        try:
            return CaptureMessage(write_rows(self.plan, _as_tasks_know(self.plan.ident), iterator))
        except (StorageError, TimelyInternalError):
            raise
        except TimelyError as error:
            return RefusalMessage(error.with_traceback(None))

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
            See `spark_timely.sink.rows.write_rows` and `spark_timely.sink.commit.commit_reports`. Files are deleted
            where the log surely was not changed.
        """
        settle_planner()
        reports = _reports(messages)
        ident = self._numbered(batchId)
        try:
            for message in messages:  # one per task
                if isinstance(message, RefusalMessage):
                    raise message.error
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


def make_stream_writer(options: Mapping[str, object], schema: StructType, overwrite: bool) -> TimelyStreamWriter:  # noqa: FBT001 - as Spark passes it
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
    parsed = sink_options(options, output_mode="complete" if overwrite else "append")
    location = require_checkpoint(parsed.checkpoint_location)
    known = checkpoint_state(location, storage_options=parsed.storage_options)
    planned = None
    if known.batch is not None:
        planned = planned_offsets(location, known.batch, storage_options=parsed.storage_options)
    ident = BatchId(known.query, known.batch, planned=planned)
    # Spark calls the sink for each micro-batch.
    return TimelyStreamWriter(make_plan(schema, parsed, ident, gapless=True))


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
