"""Rows of one task of the sink: judges them and writes them to Parquet files. Arrow and numpy only.

The `writer` calls `write_rows` once in each task of a micro-batch, with its batches of rows. It gives a `TaskReport` of
the files, of what was late, and of the digest of the rows, by which the `commit` decides. A capture in foreachBatch has
the same done by Spark itself (`spark_timely.spark.capture.classify`).

Invariants
----------
1. At most about `targetFileSize` bytes of rows are held at a time (a sort doubles that for a moment).
2. A task that fails deletes what it wrote; what it could not delete is no part of any log.
3. Of a micro-batch whose number is in the log already only the digest is made; nothing is judged or written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.content import OF_TASK, budget
from spark_timely.canonical.row_hash import RowsDigest, digest_of
from spark_timely.errors import ProtocolError, SchemaMismatchError, StorageError
from spark_timely.log.admission import judge_rows
from spark_timely.log.files.format import conform
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.machine.state import DataFile
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import TableStorage
from spark_timely.protocol.policy import FrontierPolicy
from spark_timely.sink.columns import fingerprint
from spark_timely.sink.commit import TaskReport
from spark_timely.sink.plan import BatchId, CapturePlan, Standing
from spark_timely.time.antichain import IntArray, consolidate_rows, is_sorted, joined_bounds, lexsort, minimal


def write_rows(plan: CapturePlan, ident: BatchId, batches: Iterable[pa.RecordBatch], /) -> TaskReport:
    """Judge the rows of one task, write their files, and report.

    Parameters
    ----------
    plan : CapturePlan
        Made on the driver.
    ident : BatchId
        The micro-batch, as the task knows it.
    batches : iterable of pyarrow.RecordBatch
        Rows; timestamps in any zone.

    Returns
    -------
    TaskReport
        Small, whatever the number of rows.

    Raises
    ------
    LateDataError
        If a row is late or skewed under ``lateData=error``.
    InvalidUsageError
        If a time is null or outside its type's bounds, under ``badTime=error``.
    SchemaMismatchError
        If a value does not fit the log, a diff is null, or a column declared not null holds a null.
    ProtocolError
        If ``frontier=events`` finds rows that are neither messages nor progress.

    Notes
    -----
    Cost: one sort by time where rows do not come in order, one write; memory is bounded by
    `targetFileSize`.
    """
    task = _Task(plan, ident, plan.standing(ident), open_storage(plan.options.path, plan.options.storage_options))
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    try:
        for batch in batches:  # about 10,000 rows each
            if batch.num_rows == 0:
                continue
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= plan.options.target_file_size:
                task.flush(pa.Table.from_batches(held))
                held, held_bytes = [], 0
        if held:
            task.flush(pa.Table.from_batches(held))
    except BaseException:
        task.discard()
        raise
    return task.report()


@dataclass(slots=True)
class _Task:
    """The state of one task: what it has written so far."""

    plan: CapturePlan
    ident: BatchId
    standing: Standing
    storage: TableStorage
    n_seen: int = 0
    n_rows: int = 0
    n_dead: int = 0
    n_advanced: int = 0
    n_skewed: int = 0
    greatest: int | None = None
    mover: str = ""
    files: list[DataFile] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    minima: list[IntArray] = field(default_factory=list)
    bounds: list[IntArray] = field(default_factory=list)
    progress: tuple[IntArray, IntArray] | None = None
    digest: RowsDigest = field(default_factory=RowsDigest)

    def flush(self, rows: pa.Table) -> None:
        """Judge and write one buffer of rows."""
        first_row = self.n_seen
        self.n_seen += rows.num_rows
        roles, policy = self.plan.roles, self.plan.policy
        # Of the rows as they came in: whatever becomes of them.
        self.digest += digest_of(rows, roles.inputs)
        if self.standing.repeated is not None:
            # What is in the log stands, however these rows would be judged now (invariant 3).
            return
        if roles.event is not None:
            rows = self._take_progress(rows)
            if rows.num_rows == 0:
                return
        admission = judge_rows(
            policy,
            self.standing.counts,
            rows,
            roles.times,
            at=self.standing.at,
            stream=self.plan.options.stream,
            held_by=self.plan.held_by(self.standing),
            first_row=first_row,
        )
        payload = conform(roles.payload_of(rows), roles.form.payload, first_row=first_row)
        diffs = self._diffs(rows, first_row)
        self._messages(*admission.messages(payload, diffs))
        if admission.n_dead:
            self.n_dead += admission.n_dead
            letters, times = admission.letters(
                roles.form, payload, diffs, stream=self.plan.options.stream, seq=self._seq
            )
            self._write(letters, times, "dead")
        self.n_advanced += admission.n_advanced
        self.n_skewed += admission.n_skewed
        top = admission.greatest() if policy.frontier is FrontierPolicy.BOUNDED else None
        if top is not None and (self.greatest is None or top[0] > self.greatest):
            self.greatest, self.mover = top[0], f"row {first_row + top[1]} of {_task_name()}"

    def _messages(self, payload: pa.Table, times: IntArray, diffs: IntArray | None) -> None:
        n = payload.num_rows
        if n == 0:
            return
        self.n_rows += n
        self.minima.append(minimal(times))
        self.bounds.append(np.stack([times.min(axis=0), times.max(axis=0)]))
        if not is_sorted(times):
            # Sorted here, before the log's own columns are put beside the payload: less to move.
            order = lexsort(times)
            payload, times = payload.take(order), times[order]
            diffs = None if diffs is None else diffs[order]
        options, form = self.plan.options, self.plan.roles.form
        table = message_table(form, payload, times, options.stream, self._seq, diffs)
        self._write(table, times, "message")

    def _write(self, table: pa.Table, times: IntArray, event: str) -> None:
        options = self.plan.options
        self.files += write_data_files(
            self.storage,
            table,
            times,
            stream=options.stream,
            seq=self._seq,
            domain=self.plan.policy.domain,
            event=event,
            target_file_size=options.target_file_size,
            compression=options.compression,
            begun=self.begun,
            digest_within=budget(options.content_digest, OF_TASK),
        )

    @property
    def _seq(self) -> int:
        """Number that the commit will have: after the newest, or after the opening one (0)."""
        return 1 if self.standing.seq is None else self.standing.seq + 1

    def _diffs(self, rows: pa.Table, first_row: int) -> IntArray | None:
        name = self.plan.roles.diff
        if name is None:
            return None
        column = rows.column(name)
        if column.null_count:
            row = first_row + int(pc.index(column.is_null(), value=True).as_py())
            msg = f"could not read diff column {name!r}: found null in row={row}"
            raise SchemaMismatchError(
                msg, hint="filter such rows out or fill the column: a diff is an integer", context={"column": name}
            )
        return np.asarray(column.to_numpy(), dtype=np.int64)

    def _take_progress(self, rows: pa.Table) -> pa.Table:
        """Keep the progress rows' changes, and return the message rows."""
        roles, domain = self.plan.roles, self.plan.policy.domain
        event = rows.column(str(roles.event))
        is_message = pc.fill_null(pc.equal(event, "message"), fill_value=False)
        is_progress = pc.fill_null(pc.equal(event, "progress"), fill_value=False)
        neither = pc.invert(pc.or_(is_message, is_progress))
        if pc.any(neither).as_py():
            row = int(pc.index(neither, value=True).as_py())
            number = self.n_seen - rows.num_rows + row
            msg = f"could not capture events: found {roles.event}={event[row].as_py()!r} in row={number}"
            raise ProtocolError(
                msg,
                hint="filter other rows out: with frontier='events' a row is a 'message' or a 'progress'",
                context={"row": row},
            )
        if not pc.any(is_progress).as_py():
            return rows
        changes = rows.filter(is_progress)
        delta = changes.column(str(roles.delta))
        if delta.null_count:
            msg = f"could not capture events: found a progress row whose {roles.delta!r} is null"
            raise ProtocolError(msg, hint="give each progress row the change of a count", context={})
        times = domain.from_columns(changes, roles.times)
        deltas = np.asarray(delta.to_numpy(), dtype=np.int64)
        if self.progress is not None:
            times = np.concatenate([self.progress[0], times])
            deltas = np.concatenate([self.progress[1], deltas])
        self.progress = consolidate_rows(times, deltas)
        return rows.filter(is_message)

    def discard(self) -> None:
        """Delete what was written; called when the task fails."""
        for path in self.begun:
            try:
                self.storage.delete(path)
            except StorageError:
                # The first error is the one to report; the file is no part of the log.
                continue

    def report(self) -> TaskReport:
        """Return what was done."""
        k = self.plan.policy.domain.arity
        empty = (np.zeros((0, k), dtype=np.int64), np.zeros(0, dtype=np.int64))
        times, deltas = empty if self.progress is None else self.progress
        return TaskReport(
            ident=self.ident,
            seq=self.standing.seq,
            repeated=self.standing.repeated is not None,
            form=fingerprint(self.plan.roles),
            at=self.standing.at,
            base=self.standing.base,
            n_rows=self.n_rows,
            n_dead=self.n_dead,
            n_advanced=self.n_advanced,
            n_skewed=self.n_skewed,
            minima=minimal(np.concatenate(self.minima)) if self.minima else empty[0],
            bounds=joined_bounds(self.bounds),
            greatest=self.greatest,
            mover=self.mover,
            progress_times=times,
            progress_deltas=deltas,
            files=tuple(self.files),
            digest=self.digest,
        )


def _task_name() -> str:
    """Return what Spark calls this task, for people who look for a row in its source."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "a task" if context is None else f"partition {context.partitionId()}"
