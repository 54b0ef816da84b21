"""Work that is done step by step: its steps, when the next one is due, and pauses after failures.

A `Work` is a dataflow or a continual task: each of its steps appends to its outputs. A query that runs several
(`spark.dataflows.dataflow`) takes a step of each in turn, by `advance_all`. `Backoff` is the pause after a failure,
also for other loops, as those of a compute instance (`compute.drive`). `Bounds` say when a query stops to look for
work, and `is_cancelled` whether a failure is the end of its job by somebody, in the words of Spark.
"""

from __future__ import annotations

import math
import re
import time as monotonic
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_timely.errors import CanceledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.time.antichain import Antichain

__all__ = ["Appended", "Backoff", "Bounds", "Work", "advance_all", "is_cancelled", "rest_of"]


@dataclass(slots=True)
class Backoff:
    """Failures in a row, and when to try again: after half a second, then twice as long each time, a minute at most.

    Parameters
    ----------
    now : callable
        A clock in seconds that never goes back.
    n_failed : int
        Failures in a row.
    first_s, most_s : float
        The first pause, and the longest, in seconds.

    Attributes
    ----------
    again_at : float
        When to try again, by the clock.

    Examples
    --------
    >>> backoff = Backoff(lambda: 10.0)
    >>> backoff.is_due, [backoff.failed() for _ in range(3)], backoff.is_due
    (True, [10.5, 11.0, 12.0], False)
    >>> backoff.passed()
    >>> backoff.n_failed, backoff.is_due
    (0, True)
    """

    now: Callable[[], float] = monotonic.monotonic
    n_failed: int = 0
    first_s: float = 0.5
    most_s: float = 60.0
    again_at: float = -math.inf

    @property
    def pause_s(self) -> float:
        """Seconds from the last failure to the next try; 0 where nothing has failed."""
        return min(self.first_s * 2.0 ** min(self.n_failed - 1, 30), self.most_s) if self.n_failed else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next try may be now."""
        return self.again_at <= self.now()

    def failed(self) -> float:
        """Count a failure; return when to try again."""
        self.n_failed += 1
        self.again_at = self.now() + self.pause_s
        return self.again_at

    def passed(self) -> None:
        """Begin to count again, after a success."""
        self.n_failed, self.again_at = 0, -math.inf

    def hurry(self) -> None:
        """Let the next try be now."""
        self.again_at = -math.inf


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of a step for one output.

    Attributes
    ----------
    output : str
        Name of the operator.
    lower, upper : Antichain
        The range that was computed.
    n_rows, n_files, n_tasks : int
    won : bool
        False if another copy of the dataflow was first.
    """

    output: str
    lower: Antichain
    upper: Antichain
    n_rows: int
    n_files: int
    n_tasks: int
    won: bool


class Work(ABC):
    """A dataflow or a task: `begin`, then `step` until it gives None; again after `rest`, or when an input moves."""

    @property
    @abstractmethod
    def failures(self) -> list[Exception]:
        """The failures that stopped outputs."""

    @property
    @abstractmethod
    def unreported_failures(self) -> list[Exception]:
        """Those of the failures that could not be written into their output's log, and do not pass."""

    @property
    @abstractmethod
    def dropped(self) -> bool:
        """Whether somebody has dropped it from this run of the query."""

    @property
    @abstractmethod
    def may_move(self) -> bool:
        """Whether any output may move again by itself: it is not complete, and depends on none that stopped."""

    @property
    @abstractmethod
    def rest(self) -> float | None:
        """After how many seconds there is something to do although no input moves; None: there is nothing."""

    @abstractmethod
    def begin(self, *, pinned: bool = False) -> None:
        """Begin a series of steps: inputs are looked at again.

        Parameters
        ----------
        pinned : bool
            Whether the frontiers of inputs stay as they are now, or as of the first step, until the next `begin`.
        """

    @abstractmethod
    def step(self, *, most: int | None = None) -> list[Appended] | None:
        """Take a step; what failed is in `failures`.

        Parameters
        ----------
        most : int, optional
            How often at most an output may be appended to.

        Returns
        -------
        list of Appended or None
            What was done, in order. None if nothing was ready.
        """

    @abstractmethod
    def end(self) -> None:
        """Let go of what is held beside the logs; inputs stay retained until that expires."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one call of a query that stays alive.

    Attributes
    ----------
    seconds : float or None
        Seconds after which no dataflow takes a further turn; None: as long as there is work.
    steps : int or None
        Steps, of all dataflows together, after which none takes a further turn: of a job as many as the output has
        that has most.
    """

    seconds: float | None = 10.0
    steps: int | None = 30

    def passed(self, seconds: float, steps: int) -> bool:
        """Return whether either is used up.

        Examples
        --------
        >>> Bounds().passed(9.0, 29), Bounds().passed(9.0, 30), Bounds(3600.0, None).passed(11.0, 100)
        (False, True, False)
        """
        return (self.seconds is not None and seconds >= self.seconds) or (
            self.steps is not None and steps >= self.steps
        )


def advance_all(
    works: Sequence[Work],
    *,
    lives: bool = False,
    bounds: Bounds | None = None,
    now: Callable[[], float] = monotonic.monotonic,
    pause: Callable[[float], None] = monotonic.sleep,
) -> list[Appended]:
    """Take the steps of several works, one of each in turn: a large one does not make the others wait for its end.

    Parameters
    ----------
    works : sequence of Work
    lives : bool
        Whether the query stays alive: inputs are then looked at between jobs, the call ends at its bounds, and
        failures end the query only where nothing is left that may move, or one cannot be written into its output's
        log. Else the frontiers of inputs stay as they are at the start, and what fails for a moment is tried again
        here.
    bounds : Bounds, optional
        Of a query that lives.
    now : callable
        A clock in seconds that never goes back.
    pause : callable
        Waits the given seconds.

    Returns
    -------
    list of Appended
        What was done, in order.

    Raises
    ------
    OperatorError, DataLossError
        If a function of the user failed, or an input was replaced: after all that does not depend on it is done.
    """
    bounds = bounds or Bounds()
    done: list[Appended] = []
    broken: dict[Work, Exception] = {}
    began, n_steps = now(), 0
    for work in works:
        _guarded(work, broken, lambda work=work: work.begin(pinned=not lives))  # type: ignore[misc]
    while True:  # once per job of the dataflow that has most to do
        before = n_steps
        for work in works:
            if work in broken:
                continue
            left = max(bounds.steps - n_steps, 1) if lives and bounds.steps is not None else None
            found = _guarded(work, broken, partial(work.step, most=left))
            if found is not None:
                n_steps += max(Counter(step.output for step in found).values(), default=1)
                done += found
        if n_steps > before:
            if lives and bounds.passed(now() - began, n_steps):
                break
            continue
        rest = None if lives else rest_of([work for work in works if work not in broken])
        if rest is None:
            break
        pause(rest)
    kept = [work for work in works if not work.dropped]
    failures = [*broken.values(), *(error for work in kept for error in work.failures)]
    ends = broken or any(work.unreported_failures for work in kept) or not any(work.may_move for work in kept)
    if failures and (ends or not lives):
        first, *others = failures
        for other in others:
            first.add_note(str(other))
        raise first
    return done


def rest_of(works: Sequence[Work]) -> float | None:
    """Return after how many seconds there is something to do although no input moves; None: there is nothing."""
    rests = [work.rest for work in works]
    return min((rest for rest in rests if rest is not None), default=None)


# What Spark says of a job that was cancelled, classic and Connect; the thread that waits for it may be interrupted
# before. Other errors may have the word too: a column's name.
_CANCELLED: Final = re.compile(
    r"SPARK_JOB_CANCELLED|Job \d+ cancelled|OPERATION_CANCELED"
    r"|java\.lang\.InterruptedException|ClosedByInterruptException"
)


def is_cancelled(error: Exception) -> bool:
    """Return whether a job did not fail but was cancelled, as a query that is stopped does: nothing is tried again."""
    return isinstance(error, CanceledError) or _CANCELLED.search(str(error)) is not None


def _guarded(
    work: Work, broken: dict[Work, Exception], do: Callable[[], list[Appended] | None]
) -> list[Appended] | None:
    """Let what is wrong with one dataflow not concern the others."""
    try:
        return do()
    except Exception as error:
        if is_cancelled(error):
            raise
        broken[work] = error
        return None
