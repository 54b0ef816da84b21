"""What a continual task sees of a log, and the rows of its writes, as the seed says it: a model beside the product.

An input is shown as the rows that came (`InsertsInput`) or went (`DeletesInput`) at each time. Both make write times. A
reference is shown as its contents (`NormalReference`), the task's own output as its contents at the time before
(`SelfReference`). Neither makes write times. A shown collection holds at T what the body sees at T: changes of an input
come at T, and are taken back at T + 1. Write times are taken after the choice of inserts or deletes, and before what
takes them back is added.

`RowSink` gives the product's decisions their rows: updates stay pending until what takes them back cancels them. The
product computes what is written after it has decided, and keeps no rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from spark_timely.continual.sink import GREATEST, SinkState
from spark_timely.errors import InvalidUsageError, OperatorError, shown
from spark_timely.time.antichain import Antichain
from tests.oracles.updates import Updates, check_count

if TYPE_CHECKING:
    import numpy.typing as npt

SnapshotMode: TypeAlias = Literal["include", "exclude"]
"""Whether what a log holds at the time at which it is first read is shown, or only what changes after it."""
Row = TypeVar("Row", bound=Hashable)


def updates_of(times: npt.ArrayLike, rows: pa.Table) -> Updates:
    """Return rows of a log as updates; their column ``_diff``, if there is one, says how often each comes."""
    if "_diff" in rows.schema.names:
        diffs = np.asarray(rows.column("_diff").to_numpy(), np.int64)
        rows = rows.drop_columns(["_diff"])
    else:
        diffs = np.ones(rows.num_rows, np.int64)
    return Updates(np.asarray(times, np.int64), diffs, rows)


def advanced(updates: Updates, as_of: int) -> Updates:
    """Return them with times before `as_of` moved to it, and summed."""
    return Updates(np.maximum(updates.times, as_of), updates.diffs, updates.rows).consolidated()


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
        """
        return advanced(updates, as_of) if self.with_snapshot else updates.where(updates.times > as_of)


class InsertsInput(_Input):
    """An input of which the body sees the rows that came at each time."""

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
        """
        summed = updates.consolidated()
        return _for_one_time(summed.where(summed.diffs > 0), greatest)


class DeletesInput(_Input):
    """An input of which the body sees the rows that went at each time, as many copies as went."""

    __slots__ = ()

    def transform(self, updates: Updates, *, greatest: int = GREATEST) -> tuple[Updates, npt.NDArray[np.int64]]:
        """Return what the body sees, and the write times. See `InsertsInput.transform`.

        Raises
        ------
        MultiplicityOverflowError
            If a row went more often than 64 bits count.
        """
        summed = updates.consolidated()
        gone = summed.where(summed.diffs < 0)
        most = np.flatnonzero(gone.diffs == np.iinfo(np.int64).min)
        if most.shape[0]:
            check_count(gone, int(most[0]), 1 << 63)
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
        return advanced(updates, as_of)


class NormalReference(_Reference):
    """A log of which the body sees the contents."""

    __slots__ = ()

    def suppress_early_progress(self, as_of: int, minimum: int) -> int:
        """Return the time up to which the source says nothing of its progress: as_of."""
        return as_of

    def transform(self, updates: Updates, *, greatest: int = GREATEST) -> tuple[Updates, npt.NDArray[np.int64]]:
        """Return the updates as they are, and no write times."""
        return updates, np.empty(0, np.int64)


class SelfReference(_Reference):
    """The task's own output: at T the body sees what it held at the time before.

    When the result of T is computed, the output is known through T - 1. It is first assumed not to change at T.
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


# Rows of writes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowWrite(Generic[Row]):
    """What to append next: the upper after it; the write time and its rows, each once with its diff."""

    upper: Antichain
    time: int | None = None
    rows: tuple[tuple[Row, int], ...] = ()


class RowSink(SinkState, Generic[Row]):
    """The sink's decisions, with the updates of the result added and the rows of each write given."""

    def __init__(self, minimum: int, *, greatest: int = GREATEST) -> None:
        super().__init__(minimum, greatest=greatest)
        # Updates that the next write contains in any case, summed; later ones by time, and a heap of those times.
        self._due: dict[Row, int] = {}
        self._later: dict[int, dict[Row, int]] = {}
        self._waiting: list[int] = []

    def add_updates(self, updates: Iterable[tuple[Row, int, int]]) -> None:
        """Add updates (row, time, diff) of the result, in any order."""
        for row, time, diff in updates:
            at = self._later.get(time)
            if at is None:
                at = self._later[time] = {}
                heapq.heappush(self._waiting, time)
            _count(at, row, diff)

    def pending(self) -> int:
        """Return how many updates are kept, equal ones of a time counted once."""
        return len(self._due) + sum(map(len, self._later.values()))

    def process(self) -> RowWrite[Row] | None:  # type: ignore[override]
        """Return what to append next with its rows."""
        write = super().process()
        if write is None or write.time is None:
            return None if write is None else RowWrite(write.upper)
        self._advance(write.time)
        return RowWrite(write.upper, write.time, tuple(self._due.items()))

    def _forget(self) -> None:
        super()._forget()
        if self.output_progress.is_empty:
            self._due, self._later, self._waiting = {}, {}, []
            return
        ((start,),) = self.output_progress.elements
        self._advance(start)

    def _advance(self, time: int) -> None:
        """Move updates up to a time to it, and sum them."""
        while self._waiting and self._waiting[0] <= time:  # each time is moved once
            for row, diff in self._later.pop(heapq.heappop(self._waiting)).items():
                _count(self._due, row, diff)


def _count(rows: dict[Row, int], row: Row, diff: int) -> None:
    """Add to the count of a row; a count of zero is none."""
    total = rows.get(row, 0) + diff
    if total:
        rows[row] = total
    else:
        rows.pop(row, None)
