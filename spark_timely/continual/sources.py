"""What a continual task sees of a log: the changes of an input, or the contents of a reference, as updates.

An input is shown as the rows that came (`InsertsInput`) or went (`DeletesInput`) at each time. Both make write times. A
reference is shown as its contents (`NormalReference`), the task's own output as its contents at the time before
(`SelfReference`). Neither makes write times.

A shown collection holds at T what the body sees at T. For an input these are the changes of T alone: they come at T,
and are taken back at T + 1.

Invariants
----------
1. A time is shown once it is closed, and summed first: what is shown does not depend on how the log was cut into
   files. One row more and one row less of the same row at a time are no change.
2. Write times are taken after the choice of inserts or deletes, and before what takes them back is added: a time with
   changes of the other sign alone is none, and neither is T + 1.
3. No array of what is passed on unchanged is copied.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.continual.sink import GREATEST
from spark_timely.errors import InvalidUsageError, MultiplicityOverflowError, OperatorError, shown
from spark_timely.log.reader import exact_sums
from spark_timely.time.arrays import lexsort, run_starts

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.time.antichain import Antichain

__all__ = [
    "DeletesInput",
    "InsertsInput",
    "NormalReference",
    "SelfReference",
    "SnapshotMode",
    "Source",
    "Updates",
    "kind_of",
    "takes_snapshot",
]

SnapshotMode: TypeAlias = Literal["include", "exclude"]
"""Whether what a log holds at the time at which it is first read is shown, or only what changes after it."""

_DIFF = "_diff"


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of a collection whose times have one coordinate.

    Attributes
    ----------
    times, diffs : ndarray of int64, shape (n,)
        Not modified by anything here.
    rows : pyarrow.Table
        n rows, the payload alone.
    """

    times: npt.NDArray[np.int64]
    diffs: npt.NDArray[np.int64]
    rows: pa.Table

    @classmethod
    def of(cls, times: npt.ArrayLike, rows: pa.Table) -> Updates:
        """Return rows of a log as updates.

        Parameters
        ----------
        times : array-like of int, shape (n,)
        rows : pyarrow.Table
            Of a collection log with column ``_diff``. Of a stream log without: each of its rows is added once.

        Examples
        --------
        >>> Updates.of([1, 2], pa.table({"v": ["a", "b"]})).diffs.tolist()
        [1, 1]
        >>> Updates.of([1], pa.table({"_diff": [-2], "v": ["a"]})).rows.schema.names
        ['v']
        """
        if _DIFF in rows.schema.names:
            diffs = np.asarray(rows.column(_DIFF).to_numpy(), np.int64)
            rows = rows.drop_columns([_DIFF])
        else:
            diffs = np.ones(rows.num_rows, np.int64)
        return cls(np.asarray(times, np.int64), diffs, rows)

    @classmethod
    def concat(cls, *parts: Updates) -> Updates:
        """Return updates of equal columns behind each other; at least one part.

        Examples
        --------
        >>> one = Updates.of([1], pa.table({"v": ["a"]}))
        >>> Updates.concat(one, one).times.tolist()
        [1, 1]
        """
        return cls(
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.diffs for part in parts]),
            pa.concat_tables([part.rows for part in parts]),
        )

    def where(self, wanted: npt.NDArray[np.bool_]) -> Updates:
        """Return some of them; these very updates where all are wanted.

        Examples
        --------
        >>> both = Updates.of([1, 2], pa.table({"v": ["a", "b"]}))
        >>> both.where(both.times > 1).rows.to_pylist()
        [{'v': 'b'}]
        """
        if wanted.all():
            return self
        return self._take(np.flatnonzero(wanted))

    def consolidated(self) -> Updates:
        """Return one update of each row that changes at a time: the sum of all of that time, none where it is 0.

        Raises
        ------
        MultiplicityOverflowError
            If a sum does not fit 64 bits.

        Notes
        -----
        Cost: one hash of the rows, one sort.

        Examples
        --------
        >>> rows = pa.table({"_diff": [1, 1, -1], "v": ["a", "b", "a"]})
        >>> found = Updates.of([1, 1, 1], rows).consolidated()
        >>> found.rows.to_pylist(), found.diffs.tolist()
        ([{'v': 'b'}], [1])
        """
        if not self.times.shape[0]:
            return self
        keys = [self.times[:, None]]
        if self.rows.num_columns:
            keys.append(RowHasher(self.rows.schema).hash(self.rows).view(np.int64))
        together: npt.NDArray[np.int64] = np.concatenate(keys, axis=1)
        order = lexsort(together)
        starts = run_starts(together[order])
        sums, fits = exact_sums(self.diffs[order], starts)
        if not fits.all():
            at = int(order[starts[np.flatnonzero(~fits)[0]]])
            raise _too_often(self, at)
        kept = np.flatnonzero(sums)
        found = self._take(order[starts[kept]])
        return Updates(found.times, sums[kept], found.rows)

    def advanced(self, as_of: int) -> Updates:
        """Return them with times before `as_of` moved to it, and summed.

        Examples
        --------
        >>> rows = pa.table({"_diff": [1, 1, -1], "v": ["a", "b", "a"]})
        >>> found = Updates.of([1, 2, 3], rows).advanced(3)
        >>> found.times.tolist(), found.rows.to_pylist()
        ([3], [{'v': 'b'}])
        """
        return Updates(np.maximum(self.times, as_of), self.diffs, self.rows).consolidated()

    def _take(self, places: npt.NDArray[np.intp]) -> Updates:
        # Arrow takes no rows of a table without columns.
        rows = self.rows.take(pa.array(places)) if self.rows.num_columns else self.rows.slice(0, places.shape[0])
        return Updates(self.times[places], self.diffs[places], rows)


@dataclass(frozen=True, slots=True)
class _Input:
    """An input: its changes of one sign, each at its time alone.

    Attributes
    ----------
    with_snapshot : bool
        Whether all that the log holds at as_of is shown at as_of, as one change.
    """

    with_snapshot: bool = False

    @property
    def snapshot_mode(self) -> SnapshotMode:
        """Whether the contents at as_of are read."""
        return "include" if self.with_snapshot else "exclude"

    def suppress_early_progress(self, as_of: int, minimum: int) -> int:
        """Return the time up to which the source says nothing of its progress: as_of."""
        return as_of

    def snapshot(self, updates: Updates, as_of: int) -> Updates:
        """Return what is read of a log at as_of and later, of updates whose times are closed.

        Parameters
        ----------
        updates : Updates
            All from the log's beginning. Without snapshot those at as_of and before may be missing: they are not read.
        as_of : int
            With snapshot they are moved to it and summed.

        Examples
        --------
        >>> updates = Updates.of([1, 2, 3], pa.table({"v": ["a", "b", "c"]}))
        >>> InsertsInput(with_snapshot=True).snapshot(updates, 2).times.tolist()
        [2, 2, 3]
        >>> InsertsInput(with_snapshot=False).snapshot(updates, 2).times.tolist()
        [3]
        """
        return updates.advanced(as_of) if self.with_snapshot else updates.where(updates.times > as_of)


class InsertsInput(_Input):
    """An input of which the body sees the rows that came at each time.

    Examples
    --------
    >>> log = Updates.of([1], pa.table({"v": [1]}))
    >>> seen, times = InsertsInput().transform(log)
    >>> seen.times.tolist(), seen.diffs.tolist(), times.tolist()
    ([1, 2], [1, -1], [1])
    """

    __slots__ = ()

    def transform(self, updates: Updates, *, greatest: int = GREATEST) -> tuple[Updates, npt.NDArray[np.int64]]:
        """Return what the body sees, and the write times.

        Parameters
        ----------
        updates : Updates
            All of some closed times. Need not be summed.
        greatest : int
            The greatest time of their type.

        Returns
        -------
        updates : Updates
            A collection that holds at each time the rows that came at it.
        times : ndarray of int64, shape (m,)
            Times at which rows came, sorted, each once.

        Raises
        ------
        OperatorError
            If rows came at the greatest time: they cannot be taken back at the time after it.

        Examples
        --------
        >>> rows = pa.table({"_diff": [1, -1, -1], "v": ["a", "a", "b"]})
        >>> InsertsInput().transform(Updates.of([1, 1, 2], rows))[1].tolist()
        []
        """
        summed = updates.consolidated()
        return _for_one_time(summed.where(summed.diffs > 0), greatest)


class DeletesInput(_Input):
    """An input of which the body sees the rows that went at each time, as many copies as went.

    Examples
    --------
    >>> log = Updates.of([1, 2], pa.table({"_diff": [3, -2], "v": ["a", "a"]}))
    >>> seen, times = DeletesInput().transform(log)
    >>> seen.times.tolist(), seen.diffs.tolist(), times.tolist()
    ([2, 3], [2, -2], [2])
    """

    __slots__ = ()

    def transform(self, updates: Updates, *, greatest: int = GREATEST) -> tuple[Updates, npt.NDArray[np.int64]]:
        """Return what the body sees, and the write times. See `InsertsInput.transform`.

        Raises
        ------
        MultiplicityOverflowError
            If a row went more often than 64 bits count.

        Examples
        --------
        >>> DeletesInput().transform(Updates.of([1], pa.table({"v": ["a"]})))[1].tolist()
        []
        """
        summed = updates.consolidated()
        gone = summed.where(summed.diffs < 0)
        most = np.flatnonzero(gone.diffs == np.iinfo(np.int64).min)
        if most.shape[0]:
            raise _too_often(gone, int(most[0]))
        return _for_one_time(Updates(gone.times, -gone.diffs, gone.rows), greatest)


@dataclass(frozen=True, slots=True)
class _Reference:
    """A log that is read as contents; its changes make no write times."""

    @property
    def snapshot_mode(self) -> SnapshotMode:
        """Contents are read whole, at every start."""
        return "include"

    def snapshot(self, updates: Updates, as_of: int) -> Updates:
        """Return what is read of a log at as_of and later: earlier updates are moved to as_of and summed."""
        return updates.advanced(as_of)


class NormalReference(_Reference):
    """A log of which the body sees the contents.

    Examples
    --------
    >>> NormalReference().snapshot_mode, NormalReference().suppress_early_progress(5, 0)
    ('include', 5)
    """

    __slots__ = ()

    def suppress_early_progress(self, as_of: int, minimum: int) -> int:
        """Return the time up to which the source says nothing of its progress: as_of."""
        return as_of

    def transform(self, updates: Updates, *, greatest: int = GREATEST) -> tuple[Updates, npt.NDArray[np.int64]]:
        """Return the updates as they are, and no write times.

        Examples
        --------
        >>> log = Updates.of([1], pa.table({"v": ["a"]}))
        >>> NormalReference().transform(log)[0] is log
        True
        """
        return updates, np.empty(0, np.int64)


class SelfReference(_Reference):
    """The task's own output: at T the body sees what it held at the time before.

    When the result of T is computed, the output is known through T - 1. It is first assumed not to change at T.

    Examples
    --------
    >>> SelfReference().suppress_early_progress(5, 0), SelfReference().suppress_early_progress(0, 0)
    (4, 0)
    """

    __slots__ = ()

    def suppress_early_progress(self, as_of: int, minimum: int) -> int:
        """Return the time up to which the source says nothing of its progress: before as_of, or the minimum.

        At the first start the output is closed up to as_of and holds nothing, so what is before as_of is known.
        Stepped forward it is known at as_of, without which nothing could be written at as_of.
        """
        return max(as_of - 1, minimum)

    def transform(self, updates: Updates, *, greatest: int = GREATEST) -> tuple[Updates, npt.NDArray[np.int64]]:
        """Return the updates at the next time each, and no write times. Rows are not copied.

        Raises
        ------
        OperatorError
            If an update has the greatest time.

        Examples
        --------
        >>> SelfReference().transform(Updates.of([3], pa.table({"v": ["a"]})))[0].times.tolist()
        [4]
        """
        stepped = Updates(_stepped(updates.times, greatest), updates.diffs, updates.rows)
        return stepped, np.empty(0, np.int64)


Source: TypeAlias = InsertsInput | DeletesInput | NormalReference | SelfReference


def kind_of(
    log: str,
    *,
    inputs: Collection[str],
    output: str,
    with_snapshot: bool = False,
    deletes: bool = False,
) -> Source:
    """Return how a task sees a log, by the log's identity.

    Parameters
    ----------
    log : str
        Identity of the log that is named somewhere in the task.
    inputs : collection of str
        Identities of the logs named there as inputs.
    output : str
        Identity of the task's output.
    with_snapshot : bool
        For an input; see `takes_snapshot`.
    deletes : bool
        For an input: whether the rows that went are asked for.

    Raises
    ------
    InvalidUsageError
        If the output is an input too: each result would make the next one.

    Examples
    --------
    >>> kind_of("a", inputs={"a"}, output="b"), kind_of("b", inputs={"a"}, output="b")
    (InsertsInput(with_snapshot=False), SelfReference())
    """
    is_input = log in inputs
    if log == output:
        if is_input:
            msg = f"could not read the inputs of a continual task: found output={shown(log)} among them"
            raise InvalidUsageError(msg, hint="name the output in the body, which sees it as it was before")
        return SelfReference()
    if not is_input:
        return NormalReference()
    return DeletesInput(with_snapshot) if deletes else InsertsInput(with_snapshot)


def takes_snapshot(snapshot: bool, as_of: int, upper: Antichain) -> bool:  # noqa: FBT001 - the option itself
    """Tell whether a start shows the inputs' contents at as_of: until the output's upper has passed as_of.

    Parameters
    ----------
    snapshot : bool
        The task's option.
    as_of : int
        Of the first start, as the output's log has it.
    upper : Antichain
        The output's upper.

    Notes
    -----
    Later starts never read them: what a restart costs does not depend on how much was written to the inputs before.

    Examples
    --------
    >>> from spark_timely.time.antichain import Antichain
    >>> takes_snapshot(True, 5, Antichain.of(5)), takes_snapshot(True, 5, Antichain.of(6))
    (True, False)
    """
    return snapshot and upper.less_equal(as_of)


def _for_one_time(changes: Updates, greatest: int) -> tuple[Updates, npt.NDArray[np.int64]]:
    """Return changes that are taken back at the next time, and the times at which they are."""
    times = np.unique(changes.times)
    if not times.shape[0]:
        return changes, times
    back = Updates(_stepped(changes.times, greatest), -changes.diffs, changes.rows)
    return Updates.concat(changes, back), times


def _stepped(times: npt.NDArray[np.int64], greatest: int) -> npt.NDArray[np.int64]:
    if times.shape[0] and int(times.max()) >= greatest:
        msg = f"could not read a log of a continual task: found time={times.max()}, and no time after it in its type"
        raise OperatorError(msg, hint="drop rows at this time before the task reads them", lower=[int(times.max())])
    return times + 1


def _too_often(updates: Updates, at: int) -> MultiplicityOverflowError:
    time, row = int(updates.times[at]), updates.rows.slice(at, 1).to_pylist()[0]
    msg = f"could not sum the updates of a log: found row={shown(row)} more often than 64 bits count, time={time}"
    return MultiplicityOverflowError(msg, hint="correct what produces the changes", data=row)
