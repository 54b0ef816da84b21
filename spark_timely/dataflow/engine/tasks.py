"""A task: one piece of an output's range, read, computed and written in the process where it runs.

A range is cut by files and row groups (`Share`), or by keys. A task reads its piece, runs the views over it, looks up
what logs and indexes have of earlier times where an operator asks for it (`Lookups`), writes files, and returns their
names. Runs of an index are written by a task too.

Invariants
----------
1. The pieces of a range give each of its rows once. Nothing but `TaskResult` leaves the task: names and
   statistics of files, no rows.
2. Files that a task wrote are part of nothing until they are committed; each attempt writes others.
3. What a dataflow writes is a function of its inputs alone, or copies, restarts and other cuts give other answers. Test
   mode looks for operators that break this: see `run_twice`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from spark_timely.canonical.content import OF_TASK
from spark_timely.canonical.row_hash import RowHasher
from spark_timely.dataflow.history.base import Held
from spark_timely.dataflow.remembered import Look
from spark_timely.dataflow.views import Before as GivesBefore
from spark_timely.dataflow.views import (
    Look as LooksAt,
)
from spark_timely.dataflow.views import (
    LookError,
    Names,
    Read,
    Replay,
    Step,
    View,
    Watch,
    packed,
    unpacked,
)
from spark_timely.errors import OperatorError, SchemaMismatchError, TimelyInternalError
from spark_timely.log.files.format import conform
from spark_timely.log.files.parquet import letter_table, message_table, write_data_files
from spark_timely.log.machine.state import DataFile
from spark_timely.time.antichain import Antichain
from spark_timely.time.arrays import IntArray, unique_times
from spark_timely.trace.arrangement import Arrangement
from spark_timely.trace.keys import EVERY_KEY, KeyRange, KeySet, key_hashes
from spark_timely.trace.run import in_pieces, mapped_run, merge_pieces, write_run
from spark_timely.trace.spine import RunFile
from spark_timely.trace.updates import DIFF, Updates

if TYPE_CHECKING:
    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage

__all__ = [
    "Counts",
    "Lookups",
    "OutputPlan",
    "ReadRange",
    "Share",
    "Task",
    "TaskResult",
    "held_of",
    "of_shares",
    "plain_error",
    "run_task",
    "run_twice",
    "write_result",
]

_log = logging.getLogger("spark_timely.dataflow")

# Distinct times that a task tells the driver of at most: bookkeeping stays small.
_MOST_TIMES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a file of a log: the row groups in [start, stop) of `protocol.replay.WHOLE` equal parts.

    Updates of a collection are seen with their times moved up to `as_of`, where the log has forgotten.
    """

    path: str
    start: int
    stop: int
    as_of: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """The places that have what a log holds before a range: index and files.

    Attributes
    ----------
    leaf : Replay
        How the log is read, with the least time that it has itself.
    whole : tuple of Share
        All of it.
    index : Arrangement or None
        Has all of it up to its upper.
    tail : tuple of Share
        What is at or after the index's upper.
    size_bytes : int
        Of the files that a look reads.
    """

    leaf: Replay
    whole: tuple[Share, ...]
    index: Arrangement | None = None
    tail: tuple[Share, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class IndexWork:
    """A run of an index to make: of what a log has in a range of times, or of other runs.

    Attributes
    ----------
    leaf : Replay
    key, columns : tuple of str
    folder, name : str
        Of the file.
    lineage : str
        Of the index.
    lower, upper : Antichain
        Which times of the log.
    shares : tuple of Share
        Where they are.
    runs : tuple of RunFile
        To merge, instead; in the same folder.
    since : int or None
        Times before it are moved to it.
    """

    leaf: Replay
    key: Names
    columns: Names
    folder: str
    name: str
    lineage: str
    lower: Antichain
    upper: Antichain
    shares: tuple[Share, ...] = ()
    runs: tuple[RunFile, ...] = ()
    since: int | None = None


class ReadRange(Protocol):
    """Reads the rows of a range from shares of a log's files: columns that views carry, and the payload columns named.

    With `keep` the rows of these keys alone.
    """

    def __call__(  # noqa: D102 - see above
        self,
        leaf: Replay,
        shares: Sequence[Share],
        lo: Antichain,
        hi: Antichain,
        columns: Names,
        keep: KeySet | None = None,
        /,
    ) -> pa.Table: ...


@dataclass(frozen=True)
class OutputPlan:
    """The description of an output for its tasks.

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
    job : str
        In the names of files, so that those of a job that fails are found.
    own : Replay or None
        Its log, as it is read where it is the state of an operator over all history.
    """

    name: str
    view: View
    stream: str
    form: LogFormat
    storage: Storage
    twice: bool = False
    job: str = ""
    own: Replay | None = None

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
    moved_to : tuple of int or None
        Time up to which the rows are moved that it gives: of updates, the contents at which an output begins.
    keys : KeyRange
        Of which an operator over all history computes anything.
    before : dict of Look to Before
        Where what logs hold before the range is.
    index : IndexWork or None
        Instead of all else: a run of an index to make.
    """

    output: int
    seq: int
    lower: Antichain
    upper: Antichain
    shares: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    size_bytes: int = 0
    piece: int | None = None
    moved_to: tuple[int, ...] | None = None
    keys: KeyRange = EVERY_KEY
    before: Mapping[Look, Before] = field(default_factory=dict)
    index: IndexWork | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task.

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
    run : RunFile or None
        Of an index, that was made.
    """

    files: tuple[DataFile, ...] = ()
    error: OperatorError | None = None
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    times: IntArray | None = None
    run: RunFile | None = None


def run_task(task: Task, output: OutputPlan, read: ReadRange, *, look: LooksAt | None = None) -> TaskResult:
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


@dataclass(frozen=True, slots=True)
class Apart:
    """Rows of a range that an operator does not believe.

    Attributes
    ----------
    times : ndarray of int64, shape (n,)
        Of one coordinate.
    rows : pyarrow.Table
        n rows, with the columns of the output.
    why : str
    """

    times: IntArray
    rows: pa.Table
    why: str


class Lookups:
    """Gives what logs hold of some keys before a range: `views.Before`, of a task.

    Parameters
    ----------
    task : Task
    output : OutputPlan
    read : callable

    Notes
    -----
    Cost: with an index what it has of these keys, and all that is past its upper; else all that a log holds before the
    range is read, batch by batch. Of an index whose files are replaced meanwhile the newest state is taken; one that
    cannot be read is none.
    """

    def __init__(self, task: Task, output: OutputPlan, read: ReadRange) -> None:
        self._task, self._output, self._read = task, output, read
        self.apart: Apart | None = None

    def set_apart(self, times: IntArray, rows: pa.Table, why: str) -> None:
        """Keep rows that are not believed, until the task's result is written."""
        self.apart = Apart(times, rows, why)

    @property
    def keys(self) -> KeyRange:
        """The range of keys of which the task computes anything."""
        return self._task.keys

    @property
    def moved_to(self) -> tuple[int, ...] | None:
        """Time up to which what comes is moved."""
        return self._task.moved_to

    def __call__(self, leaf: Replay | None, lo: Antichain, keys: pa.Table, columns: Names) -> Held:
        """Return what a log holds before `lo` of the keys in a table; None is the output's own log."""
        try:
            return self._held(leaf, lo, keys, columns)
        except Exception as error:
            raise LookError(error) from error

    def _held(self, leaf: Replay | None, lo: Antichain, keys: pa.Table, columns: Names) -> Held:
        at = self._output.own if leaf is None else leaf
        key = tuple(keys.schema.names)
        found = [] if at is None else [look for look in self._task.before if (look.path, look.key) == (at.path, key)]
        look = next((each for each in found if set(columns) <= set(each.columns)), None)
        if at is None or look is None:
            msg = f"output {self._output.name!r} looks into a log by {key!r}, and the plan of its task has none"
            raise TimelyInternalError(msg)
        before = self._task.before[look]
        at = before.leaf
        if (key and not keys.num_rows) or lo == at.domain.minimum_frontier:
            return held_of(at, at.empty().select([*at.carried, *columns]), columns)
        wanted = KeySet(keys, key)
        for index in _states(before.index, lo):  # as planned; as it is now
            try:
                held = index.opened().before(wanted, lo, list(columns))
                # Each state has a tail of its own: what the log has at times that are not before its upper.
                begin = index.upper.join(at.domain.minimum_frontier)
                if before.tail and begin.elements:
                    rows = self._read(at, before.tail, begin, lo, columns, wanted)
                    held = Updates.concat([held, Updates.of_table(rows, at.domain, columns)])
                return _held(at, held)
            except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
                _log.info("an index of log %r by %s is not used: %s", at.path, ", ".join(key), error)
        rows = self._read(at, before.whole, at.domain.minimum_frontier, lo, columns, wanted)
        return held_of(at, rows, columns)


def _states(index: Arrangement | None, lo: Antichain) -> Iterator[Arrangement]:
    """Give an index as it was planned, and then, asked for more, as it is now; only where it can tell what is asked."""
    if index is None:
        return
    if index.may_tell(lo):
        yield index
    newer = index.newest()
    if newer is not None and newer.may_tell(lo):
        yield newer


def updates_of(leaf: Replay, rows: pa.Table, key: Names, columns: Names) -> Updates:
    """Return rows of a log as the runs of an index have them."""
    return replace(Updates.of_table(rows, leaf.domain, columns), hashes=key_hashes(rows, key))


def make_run(work: IndexWork, read: ReadRange) -> TaskResult:
    """Make a run of an index; the file is part of nothing yet."""
    path = os.path.join(work.folder, work.name)
    if work.runs:
        pieces = merge_pieces([mapped_run(work.folder, run, work.lineage) for run in work.runs], work.since)
    else:
        rows = read(work.leaf, work.shares, work.lower, work.upper, work.columns)
        updates = updates_of(work.leaf, rows, work.key, work.columns)
        moved = updates if work.since is None else updates.advanced((work.since,))
        pieces = iter(in_pieces(moved.consolidated(partial=True)))
    return TaskResult(run=RunFile(work.name, *write_run(path, pieces, lineage=work.lineage)))


def held_of(view: View, rows: pa.Table, columns: Names) -> Held:
    """Return what rows of a log hold together: of updates the contents, without their times."""
    return _held(view, Updates.of_table(rows, view.domain, columns))


def _held(view: View, every: Updates) -> Held:
    if not view.updates:
        return Held(every.times[:, 0], every.diffs, every.rows)
    # What is too often there is refused by what looks at it, which knows its key.
    contents = every.timeless().consolidated(partial=True)
    return Held(None, contents.diffs, contents.rows)


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
    look: LooksAt | None = None,
    before: GivesBefore | None = None,
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
