"""The state machine of a continual task's sink: chooses the next write time, and how far the upper moves.

It knows times and frontiers, and does nothing itself. `spark_timely.continual.engine` puts what it has learned into the
state, asks `SinkState.process`, appends, puts the upper that it finds into `output_progress`, and asks again, until
there is nothing to do. (The sink of Spark, which captures streams, is the folder `sink`.)

A *write time* is a time at which an input of the task changes. References have none: they only say, by way of
`to_append_progress`, whether the result of a write time is known already.

Invariants
----------
1. A write never reaches past the first write time that is not written yet: the upper moves up to it, or to one past it
   together with its rows.
2. A write time is acted upon once `append_times_progress` has passed it: before that an earlier one may still come.
3. `output_progress` is a lower bound of the upper in the log. A write time before it was decided already, by this
   process or by another one that runs the same task, and is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_timely.errors import OperatorError
from spark_timely.time.antichain import Antichain, as_times

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.time.antichain import TimesLike

__all__ = ["GREATEST", "SinkState", "Write", "takes_snapshot"]

GREATEST: Final = (1 << 63) - 1
"""The greatest time of type long."""


@dataclass(frozen=True, slots=True)
class Write:
    """The next append.

    Attributes
    ----------
    upper : Antichain
        The output's upper after it.
    time : int or None
        The write time whose result is appended; None where the upper moves alone.
    """

    upper: Antichain
    time: int | None = None


class _TimeSet:
    """A set of times of which the first ones are taken away.

    Kept as sorted arrays, each less than half as long as the one before when it was added: a time is merged about
    log n times, however few come at once.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.int64]] = []

    def add(self, times: npt.NDArray[np.int64]) -> None:
        new = np.unique(times)
        while self._runs and self._runs[-1].shape[0] <= 2 * new.shape[0]:  # there are log n runs
            new = np.union1d(self._runs.pop(), new)
        if new.shape[0]:
            self._runs.append(new)

    def drop_before(self, time: int) -> None:
        kept = [run[np.searchsorted(run, time) :] for run in self._runs]
        self._runs = [run for run in kept if run.shape[0]]

    def clear(self) -> None:
        self._runs = []

    def first(self) -> int | None:
        return min((int(run[0]) for run in self._runs), default=None)

    def sorted(self) -> npt.NDArray[np.int64]:
        return np.unique(np.concatenate(self._runs)) if self._runs else np.empty(0, np.int64)


class SinkState:
    """The state of a replica of a continual task, which decides what it writes next.

    The result of a write time is computed after the decision; `to_append_progress` says up to where inputs and
    references are complete.

    Parameters
    ----------
    minimum : int
        The least time: where all frontiers begin.
    greatest : int
        The greatest time of the output's type.

    Attributes
    ----------
    append_times_progress : Antichain
        Times not beyond it have been added, if they are write times: the frontier of the inputs.
    to_append_progress : Antichain
        The result at times not beyond it is known: the frontier of inputs and references together.
    output_progress : Antichain
        A lower bound of the output's upper.

    Notes
    -----
    Cost: `process` takes O(log n) for n write times.
    Source: Materialize `compute/src/sink/continual_task.rs`, `SinkState`.

    Examples
    --------
    >>> state = SinkState(0)
    >>> state.add_times([2])
    >>> state.append_times_progress = state.to_append_progress = Antichain.of(9)
    >>> state.process()
    Write(upper=Antichain.of(3), time=2)
    >>> state.output_progress = Antichain.of(3)
    >>> state.process()
    Write(upper=Antichain.of(9), time=None)
    """

    __slots__ = ("_greatest", "_times", "append_times_progress", "output_progress", "to_append_progress")

    def __init__(self, minimum: int, *, greatest: int = GREATEST) -> None:
        self.append_times_progress = self.to_append_progress = self.output_progress = Antichain.of(minimum)
        self._greatest = greatest
        self._times = _TimeSet()

    @property
    def append_times(self) -> npt.NDArray[np.int64]:
        """The write times that are known and not yet dropped, sorted."""
        return self._times.sorted()

    def add_times(self, times: TimesLike) -> None:
        """Add write times, in any order; one that was added before changes nothing.

        Parameters
        ----------
        times : array-like of int, shape (n,)
            How often an input changed at a time does not matter: a change that sums to nothing is one.

        Raises
        ------
        InvalidShapeError
            If they are not whole numbers.
        OperatorError
            If one is past the greatest time of the output's type.

        Examples
        --------
        >>> state = SinkState(0)
        >>> state.add_times([5, 3, 5])
        >>> state.append_times.tolist()
        [3, 5]
        """
        found = as_times(times, 1)[:, 0]
        if found.shape[0] and int(found.max()) > self._greatest:
            raise _past_the_greatest(int(found.max()), self._greatest)
        self._times.add(found.astype(np.int64, copy=False))

    def process(self) -> Write | None:
        """Return what to append next, or None where there is nothing until more is known.

        Raises
        ------
        OperatorError
            If the result of the greatest time is to be written: no upper is past it but that of a complete output.

        Notes
        -----
        The answer is the same until the state changes: asking does not write.

        Examples
        --------
        >>> state = SinkState(0)
        >>> state.process() is None
        True
        """
        self._forget()
        time = self._times.first()
        if time is None or self.append_times_progress.less_equal(time):
            # No input changes between the output's upper and here: one step leads there, however far. It does not wait
            # for references. If it did, readers of the output would see the upper come time by time.
            if self.output_progress.less_than_frontier(self.append_times_progress):
                return Write(self.append_times_progress)
            return None
        if self.to_append_progress.less_equal(time):
            # A task that reads its own output waits for this: the output is then known before the write time.
            if self.output_progress.less_than(time):
                return Write(Antichain.of(time))
            return None
        if time >= self._greatest:
            raise _past_the_greatest(time, self._greatest)
        return Write(Antichain.of(time + 1), time)

    def ready(self, most: int) -> npt.NDArray[np.int64]:
        """Return the write times whose results are known, sorted: what `process` would write one after another.

        Parameters
        ----------
        most : int
            How many at most, the first ones.

        Returns
        -------
        ndarray of int64, shape (n,)

        Raises
        ------
        OperatorError
            As `process`, if the greatest time is the first of them.

        Examples
        --------
        >>> state = SinkState(0)
        >>> state.add_times([2, 5, 9])
        >>> state.append_times_progress = Antichain.of(10)
        >>> state.to_append_progress = Antichain.of(6)
        >>> state.ready(8).tolist()
        [2, 5]
        """
        self._forget()
        times = self._times.sorted()
        # Times are sorted: what neither frontier holds back comes first.
        for frontier in (self.append_times_progress, self.to_append_progress):
            if not frontier.is_empty:
                times = times[: np.searchsorted(times, frontier.elements[0][0])]
        if times.shape[0] and int(times[0]) >= self._greatest:
            raise _past_the_greatest(int(times[0]), self._greatest)
        ready: npt.NDArray[np.int64] = times[times < self._greatest][:most]
        return ready

    def _forget(self) -> None:
        """Drop write times before the output's progress."""
        if self.output_progress.is_empty:
            self._times.clear()
            return
        ((start,),) = self.output_progress.elements
        self._times.drop_before(start)


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
    >>> takes_snapshot(True, 5, Antichain.of(5)), takes_snapshot(True, 5, Antichain.of(6))
    (True, False)
    """
    return snapshot and upper.less_equal(as_of)


def _past_the_greatest(time: int, greatest: int) -> OperatorError:
    msg = f"could not write the result of a continual task: found time={time}, and no time after greatest={greatest}"
    return OperatorError(msg, hint="drop rows at this time before the task reads them", lower=[time])
