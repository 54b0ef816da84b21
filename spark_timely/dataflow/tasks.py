"""What one task computes: a piece of an output's range, read, computed and written where it runs.

Invariants
----------
1. The pieces of a range give each of its rows once. Nothing but `TaskResult` leaves the task: names and
   statistics of files, no rows.
2. Files that a task wrote are part of nothing until they are committed; each attempt writes others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_timely.antichain import Antichain
from spark_timely.dataflow.views import Names, Replay, View
from spark_timely.errors import OperatorError, SchemaMismatchError
from spark_timely.log.base import DataFile
from spark_timely.log.files import conform, message_table, write_data_files

if TYPE_CHECKING:
    from spark_timely.log.format import LogFormat
    from spark_timely.log.storage import Storage

__all__ = ["OutputPlan", "ReadRange", "Share", "Task", "TaskResult", "run_task"]


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
    """

    name: str
    view: View
    stream: str
    form: LogFormat
    storage: Storage


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of an output's range.

    Attributes
    ----------
    output : int
        Number of the output among those of the job.
    seq : int
        Number of the commit that it writes for.
    lower, upper : Antichain
    shares : dict of str to tuple of Share
        By path of the log: where to look.
    size_bytes : int
        Of the shares.
    """

    output: int
    seq: int
    lower: Antichain
    upper: Antichain
    shares: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What became of a task.

    Attributes
    ----------
    files : tuple of DataFile
        Written, and part of nothing yet.
    error : OperatorError or None
        Why there are none.
    """

    files: tuple[DataFile, ...] = ()
    error: OperatorError | None = None


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

    def of_log(leaf: Replay, lo: Antichain, hi: Antichain, columns: Names) -> pa.Table:
        return read(leaf, task.shares.get(leaf.path, ()), lo, hi, columns)

    view, form = output.view, output.form
    try:
        rows = view.run(of_log, task.lower, task.upper)
        times = form.domain.from_columns(rows)
        payload = conform(rows.select(form.payload.names), form.payload)
    except OperatorError as error:
        return TaskResult(error=_plain(error))
    except SchemaMismatchError as error:
        low, high = (form.domain.render_frontier(end) for end in (task.lower, task.upper))
        msg = f"could not run operator {output.name!r} at times from {low} to {high}: {error.message}"
        return TaskResult(error=OperatorError(msg, hint=error.hint, operator=output.name, lower=low, upper=high))
    table = message_table(form, payload, times, output.stream, task.seq)
    files = write_data_files(output.storage, table, times, stream=output.stream, seq=task.seq, domain=form.domain)
    return TaskResult(files=tuple(files))


def _plain(error: OperatorError) -> OperatorError:
    """Return the error without its causes, which need not be picklable."""
    values: dict[str, Any] = {"operator": error.operator, "lower": error.lower, "upper": error.upper}
    return OperatorError(error.message, hint=error.hint, **values)
