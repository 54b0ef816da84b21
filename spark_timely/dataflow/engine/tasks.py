"""What one task computes: a piece of an output's range, read, computed and written where it runs.

Invariants
----------
1. The pieces of a range give each of its rows once. Nothing but `TaskResult` leaves the task: names and
   statistics of files, no rows.
2. Files that a task wrote are part of nothing until they are committed; each attempt writes others.
3. What a dataflow writes is a function of its inputs alone, or copies, restarts and other cuts give other answers. Test
   mode (`run_twice`) computes a range twice, with everything in another order, and names an operator that gives other
   rows: its function looks at a clock, draws lots, keeps something from call to call, or depends on which rows come
   together and in what order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.views import Names, Read, Replay, Step, View, Watch, packed, unpacked
from spark_timely.errors import OperatorError, SchemaMismatchError
from spark_timely.log.files.format import conform
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.machine.state import DataFile
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray, unique_times

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage

__all__ = [
    "Counts",
    "OutputPlan",
    "ReadRange",
    "Share",
    "Task",
    "TaskResult",
    "of_shares",
    "plain_error",
    "run_task",
    "run_twice",
    "write_result",
]

# Distinct times that a task tells the driver of at most: bookkeeping stays small.
_MOST_TIMES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a file of a log: the row groups in [start, stop) of `capture.replay.WHOLE` equal parts."""

    path: str
    start: int
    stop: int


ReadRange = Callable[[Replay, Sequence[Share], Antichain, Antichain, Names], pa.Table]
"""Reads the rows of a range from shares of a log's files: time columns, and the payload columns named."""


@dataclass(frozen=True)
class OutputPlan:
    """What tasks need to know of an output.

    Attributes
    ----------
    name : str
        Of the operator, for errors.
    view : View
    stream : str
    form : LogFormat
        Of its log.
    storage : Storage
        Of its log.
    twice : bool
        Whether everything is computed twice and compared.
    evaluation : {"arrow", "sql"}
        What runs it: pyarrow in a task each, or Spark's DataFrames.
    job : str
        In the names of files, so that those of a job that fails are found.
    """

    name: str
    view: View
    stream: str
    form: LogFormat
    storage: Storage
    twice: bool = False
    evaluation: str = "arrow"
    job: str = ""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "view": packed([self.view])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "view": unpacked(state["view"])[0]})


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of an output's range.

    Attributes
    ----------
    output : int
        Number of the step among those of the job, which says whose and which: an output may have several.
    seq : int
        Number of the commit that it writes for.
    lower, upper : Antichain
    shares : dict of str to tuple of Share
        By path of the log: where to look.
    size_bytes : int
        Of the shares.
    piece : int or None
        Number of the piece of which this task computes a part only: see `engine.shuffle`.
    """

    output: int
    seq: int
    lower: Antichain
    upper: Antichain
    shares: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    size_bytes: int = 0
    piece: int | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What became of a task.

    Attributes
    ----------
    files : tuple of DataFile
        Written, and part of nothing yet.
    error : OperatorError or None
        Why there are none.
    counts : dict of str to (int, int)
        Rows and bytes that each operator gave, by its name.
    times : ndarray of int64, shape (n, k), or None
        Distinct times of the rows that were written; None where there are too many to tell.
    """

    files: tuple[DataFile, ...] = ()
    error: OperatorError | None = None
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    times: IntArray | None = None


def run_task(task: Task, output: OutputPlan, read: ReadRange) -> TaskResult:
    """Read, compute and write.

    Parameters
    ----------
    task : Task
    output : OutputPlan
    read : callable

    Returns
    -------
    TaskResult
        With the error of a function of the user: it is that output's alone.

    Raises
    ------
    StorageError
        If files cannot be read or written.
    """
    counts = Counts()
    run = run_twice if output.twice else View.run

    def rows() -> pa.Table:
        return run(output.view, of_shares(task, read), task.lower, task.upper, watch=counts.watch)

    return write_result(task, output, rows, counts)


def of_shares(task: Task, read: ReadRange) -> Read:
    """Return what reads the rows of a log from the shares of a task."""
    return lambda leaf, lo, hi, columns: read(leaf, task.shares.get(leaf.path, ()), lo, hi, columns)


class Counts:
    """Rows and bytes that each operator gave."""

    def __init__(self) -> None:
        self.by_operator: dict[str, tuple[int, int]] = {}

    def watch(self, step: Step, table: pa.Table) -> None:
        """Count what an operator gave."""
        self.add({step[0].name: (table.num_rows, table.nbytes)})

    def add(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Add what was counted elsewhere."""
        for name, (rows, size) in counts.items():  # one turn per operator
            before = self.by_operator.get(name, (0, 0))
            self.by_operator[name] = before[0] + rows, before[1] + size


def write_result(task: Task, output: OutputPlan, rows: Callable[[], pa.Table], counts: Counts) -> TaskResult:
    """Compute rows and write them for an output; an error of a function of the user is a result too."""
    form = output.form
    try:
        table = rows()
        times = form.domain.from_columns(table)
        payload = conform(table.select(form.payload.names), form.payload)
    except OperatorError as error:
        return TaskResult(error=plain_error(error))
    except SchemaMismatchError as error:
        low, high = (form.domain.render_frontier(end) for end in (task.lower, task.upper))
        msg = f"could not run operator {output.name!r} at times from {low} to {high}: {error.message}"
        return TaskResult(error=OperatorError(msg, hint=error.hint, operator=output.name, lower=low, upper=high))
    messages = message_table(form, payload, times, output.stream, task.seq)
    files = write_data_files(
        output.storage, messages, times, stream=output.stream, seq=task.seq, domain=form.domain, job=output.job
    )
    distinct = unique_times(times)[0]
    told = distinct if distinct.shape[0] <= _MOST_TIMES else None
    return TaskResult(tuple(files), None, counts.by_operator, told)


def plain_error(error: OperatorError) -> OperatorError:
    """Return the error without its causes, which need not be picklable."""
    values: dict[str, Any] = {"operator": error.operator, "lower": error.lower, "upper": error.upper}
    return OperatorError(error.message, hint=error.hint, **values)


def run_twice(
    view: View, read: Read, lo: Antichain, hi: Antichain, wanted: Names | None = None, *, watch: Watch | None = None
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

    table = view.run(read, lo, hi, wanted, watch=seen)
    view.run(backwards, lo, hi, wanted, watch=lambda step, rows: second.update({step: _digest(rows)}), in_parts=True)
    for step, digest in first.items():  # one turn per operator and range, inputs before what is made of them
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
