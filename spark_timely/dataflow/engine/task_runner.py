"""Runner of a task of a dataflow: reads its piece of a range, computes the views over it, and writes what they give.

`run_task` runs in the process of the task: `spark_timely.spark.dataflows.tasks` calls it on an executor of Spark, or in
the driver where the work is small. It returns the names of the files that it wrote; `outputs` appends them. Runs, the
files of an index, are written by a task too (`make_run`). The task as a value is in `tasks`.

Invariants
----------
1. Files that a task wrote are part of nothing until they are committed; each attempt writes others.
2. What a dataflow writes is a function of its inputs alone: else copies, restarts and other cuts would give other
   answers. Test mode looks for operators that break this: see `run_twice`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_timely.canonical.content import OF_TASK
from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.engine.lookups import Apart, Lookups
from spark_timely.dataflow.engine.tasks import IndexWork, OutputPlan, ReadRange, Task, TaskResult
from spark_timely.dataflow.views import Before, Look, Names, Read, Replay, Step, View, Watch
from spark_timely.errors import OperatorError, SchemaMismatchError, TimelyInternalError
from spark_timely.log.files.format import conform
from spark_timely.log.files.parquet import letter_table, message_table, write_data_files
from spark_timely.log.machine.state import DataFile
from spark_timely.time.antichain import Antichain, unique_times
from spark_timely.trace.keys import key_hashes
from spark_timely.trace.run import in_pieces, mapped_run, merge_pieces, write_run
from spark_timely.trace.spine import RunFile
from spark_timely.trace.updates import DIFF, Updates

__all__ = ["Counts", "of_shares", "plain_error", "run_task", "run_twice", "write_result"]

# Distinct times that a task tells the driver of at most: bookkeeping stays small.
_MOST_TIMES: Final = 10_000


def run_task(task: Task, output: OutputPlan, read: ReadRange, *, look: Look | None = None) -> TaskResult:
    """Read, compute and write.

    Parameters
    ----------
    task : Task
    output : OutputPlan
    read : callable
    look : callable, optional
        Is shown what each operator gets; it may refuse that.

    Returns
    -------
    TaskResult
        With the error of a function of the user: it is that output's alone; or with the run of an index.

    Raises
    ------
    StorageError
        If files cannot be read or written.
    """
    if task.index is not None:
        return make_run(task.index, read)
    counts = Counts()
    run = run_twice if output.twice else View.run
    before = Lookups(task, output, read)
    ends = task.lower, task.upper

    def rows() -> pa.Table:
        return run(output.view, of_shares(task, read), *ends, watch=counts.watch, look=look, before=before)

    return write_result(task, output, rows, counts, before)


def of_shares(task: Task, read: ReadRange) -> Read:
    """Return what reads the rows of a log from the shares of a task."""
    return lambda leaf, lo, hi, columns: read(leaf, task.shares.get(leaf.path, ()), lo, hi, columns)


def make_run(work: IndexWork, read: ReadRange) -> TaskResult:
    """Make a run of an index; the file is part of nothing yet."""
    path = os.path.join(work.folder, work.name)
    if work.runs:
        pieces = merge_pieces([mapped_run(work.folder, run, work.lineage) for run in work.runs], work.since)
    else:
        rows = read(work.leaf, work.shares, work.lower, work.upper, work.columns)
        updates = Updates.of_table(rows, work.leaf.domain, work.columns)
        updates = replace(updates, hashes=key_hashes(rows, work.key))
        moved = updates if work.since is None else updates.advanced((work.since,))
        pieces = iter(in_pieces(moved.consolidated(partial=True)))
    return TaskResult(run=RunFile(work.name, *write_run(path, pieces, lineage=work.lineage)))


class Counts:
    """Rows and bytes that each operator gave."""

    def __init__(self) -> None:
        self.by_operator: dict[str, tuple[int, int]] = {}

    def watch(self, step: Step, table: pa.Table) -> None:
        """Count what an operator gave."""
        self.add({step[0].name: (table.num_rows, table.nbytes)})

    def add(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Add what was counted elsewhere."""
        for name, (rows, size) in counts.items():
            before = self.by_operator.get(name, (0, 0))
            self.by_operator[name] = before[0] + rows, before[1] + size


def write_result(
    task: Task, output: OutputPlan, rows: Callable[[], pa.Table], counts: Counts, before: Lookups | None = None
) -> TaskResult:
    """Compute rows and write them for an output; an error of a function of the user is a result too.

    Rows that were set apart meanwhile are written too, as dead letters of the same commit.
    """
    form, updates = output.form, output.view.updates
    if updates != (form.kind == "collection"):
        msg = f"operator {output.name!r} gives {output.view.rows_kind!r} rows for a log of kind={form.kind!r}"
        raise TimelyInternalError(msg)
    try:
        table = rows()
        times = form.domain.from_columns(table)
        if task.moved_to is not None:
            times = np.maximum(times, np.array(task.moved_to, np.int64))
        payload = conform(table.select(form.payload.names), form.payload)
    except OperatorError as error:
        return TaskResult(error=plain_error(error))
    except SchemaMismatchError as error:
        low, high = (form.domain.render_frontier(end) for end in (task.lower, task.upper))
        msg = f"could not run operator {output.name!r} at times from {low} to {high}: {error.message}"
        return TaskResult(error=OperatorError(msg, hint=error.hint, operator=output.name, lower=low, upper=high))
    diffs = np.asarray(table.column(DIFF).to_numpy(), np.int64) if updates else None
    messages = message_table(form, payload, times, output.stream, task.seq, diffs)
    # Rows of later times have files of their own: until then readers would read them again and again.
    later = task.upper.beyond(times)
    files = [
        file
        for chosen in ((~later, later) if later.any() else (~later,))
        for file in write_data_files(
            output.storage, messages if chosen.all() else messages.filter(pa.array(chosen)), times[chosen],
            stream=output.stream, seq=task.seq, domain=form.domain, job=output.job,
            digest_within=OF_TASK,
        )
    ]  # fmt: skip
    if before is not None and before.apart is not None:
        files += _write_dead(task, output, before.apart)
    distinct = unique_times(times)[0]
    few = distinct if distinct.shape[0] <= _MOST_TIMES else None
    return TaskResult(tuple(files), counts=counts.by_operator, times=few)


def _write_dead(task: Task, output: OutputPlan, apart: Apart) -> list[DataFile]:
    """Write rows that were set apart, and why."""
    form, n = output.form, apart.rows.num_rows
    if not n:
        return []
    order = np.argsort(apart.times, kind="stable")
    times = apart.times[order].reshape(-1, 1)
    payload = conform(apart.rows.take(pa.array(order)).select(form.payload.names), form.payload)
    diffs = np.ones(n, np.int64) if output.view.updates else None
    table = letter_table(form, payload, times, output.stream, task.seq, diffs, reasons=apart.why)
    return write_data_files(
        output.storage, table, times, stream=output.stream, seq=task.seq,
        domain=form.domain, event="dead", job=output.job,
    )  # fmt: skip


def plain_error(error: OperatorError) -> OperatorError:
    """Return the error without its causes, which need not be picklable."""
    values: dict[str, Any] = {"operator": error.operator, "lower": error.lower, "upper": error.upper}
    return OperatorError(error.message, hint=error.hint, **values)


def run_twice(
    view: View,
    read: Read,
    lo: Antichain,
    hi: Antichain,
    wanted: Names | None = None,
    *,
    watch: Watch | None = None,
    look: Look | None = None,
    before: Before | None = None,
) -> pa.Table:
    """Run a view twice, and refuse an operator that gives other rows the second time.

    The second time the rows of the logs come in the opposite order, and each operator that goes row by row gets them in
    two parts.

    Parameters
    ----------
    view : View
    read : callable
    lo, hi : Antichain
    wanted : tuple of str, optional
    watch : callable, optional
        Is shown what operators gave the first time.
    look : callable, optional
        Is shown what they get, the first time.
    before : Before, optional
        As for `View.run`.

    Returns
    -------
    pyarrow.Table
        As of the first time.

    Raises
    ------
    OperatorError
        If an operator's function is not deterministic, or fails.

    Notes
    -----
    Cost: that of two runs, and a hash of each row that any operator gives.
    """
    first: dict[Step, tuple[int, int]] = {}
    second: dict[Step, tuple[int, int]] = {}

    def seen(step: Step, table: pa.Table) -> None:
        first[step] = _digest(table)
        if watch is not None:
            watch(step, table)

    def backwards(leaf: Replay, low: Antichain, high: Antichain, columns: Names) -> pa.Table:
        table = read(leaf, low, high, columns)
        return table.take(pa.array(np.arange(table.num_rows - 1, -1, -1)))

    table = view.run(read, lo, hi, wanted, watch=seen, look=look, before=before)

    def seen_again(step: Step, rows: pa.Table) -> None:
        second[step] = _digest(rows)

    view.run(backwards, lo, hi, wanted, watch=seen_again, in_parts=True, before=before)
    for step, digest in first.items():  # inputs before what is made of them
        if digest != second[step]:
            at, low, high, _ = step
            found = f"other rows the second time: {digest[0]} rows, then {second[step][0]}"
            raise at.failure(
                found,
                low,
                high,
                hint="let its function depend on the rows alone that it is given: not on order, clocks or chance",
            )
    return table


def _digest(table: pa.Table) -> tuple[int, int]:
    """Return the number of rows, and a hash of them that does not depend on their order."""
    hashes = RowHasher(table.schema).hash(table)
    return table.num_rows, hash(tuple(hashes.sum(axis=0, dtype=np.uint64).ravel().tolist()))
