"""The turns of the dataflows of one query: who takes a step when, for how long, and what is tried again.

Invariants
----------
1. Dataflows take a step in turn, and each looks at its inputs before it: news waits for one step of each of the others.
2. A call comes back. Of a query that ends, since the frontiers of inputs are those of its start; of one that lives,
   since it ends after the turn in which its bounds are passed, and `rest_of` says when to call again.
3. Nobody waits for a failure to pass while another has work to do.
"""

from __future__ import annotations

import re
import time as monotonic
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_timely.dataflow.engine import Appended, Engine, RunTasks

__all__ = ["Bounds", "advance_all", "is_cancelled", "rest_of"]

# What Spark says of a job that was cancelled, classic and Connect; who waits for it may be interrupted before. Other
# errors may have the word too: a column's name.
_CANCELLED: Final = re.compile(
    r"SPARK_JOB_CANCELLED|Job \d+ cancelled|OPERATION_CANCELED"
    r"|java\.lang\.InterruptedException|ClosedByInterruptException"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a call of a query that lives goes on.

    Attributes
    ----------
    seconds : float or None
        After so many seconds no dataflow takes a further turn; None: as long as there is work.
    steps : int or None
        Nor after so many steps, of all dataflows together.
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
    engines: Sequence[Engine],
    run_tasks: RunTasks,
    *,
    lives: bool = False,
    bounds: Bounds | None = None,
    now: Callable[[], float] = monotonic.monotonic,
    pause: Callable[[float], None] = monotonic.sleep,
) -> list[Appended]:
    """Advance several dataflows, a step of each in turn: a large one does not make the others wait for its end.

    Parameters
    ----------
    engines : sequence of Engine
    run_tasks : callable
        As for `Engine.advance`.
    lives : bool
        Whether the query goes on: inputs are then looked at between steps, the call ends at its bounds, and failures
        end the query only where nothing is left that may move, or one cannot be written into its output's log. Else
        the frontiers of inputs stay as they are at the start, and what fails for a moment is tried again here.
    bounds : Bounds, optional
        Of a query that lives.
    now : callable
        A clock in seconds that never goes back.
    pause : callable
        Waits so many seconds.

    Returns
    -------
    list of Appended
        What was done, in order.

    Raises
    ------
    OperatorError, DataLossError
        As `Engine.advance`: after all that does not depend on it is done.
    """
    bounds = bounds or Bounds()
    done: list[Appended] = []
    broken: dict[Engine, Exception] = {}
    began, n_steps = now(), 0
    for engine in engines:
        _guarded(engine, broken, lambda engine=engine: engine.begin(pinned=not lives))  # type: ignore[misc]
    while True:  # one turn per step of the dataflow that has most to do
        before = n_steps
        for engine in engines:
            if engine in broken:
                continue
            found = _guarded(engine, broken, lambda engine=engine: engine.step(run_tasks))  # type: ignore[misc]
            if found is not None:
                n_steps += 1
                done += found
        if n_steps > before:
            if lives and bounds.passed(now() - began, n_steps):
                break
            continue
        rest = None if lives else rest_of([engine for engine in engines if engine not in broken])
        if rest is None:
            break
        pause(rest)
    kept = [engine for engine in engines if not engine.dropped]
    failures = [*broken.values(), *(error for engine in kept for error in engine.failures)]
    ends = broken or any(engine.unreported_failures for engine in kept) or not any(engine.goes_on for engine in kept)
    if failures and (ends or not lives):
        first, *others = failures
        for other in others:
            first.add_note(str(other))
        raise first
    return done


def rest_of(engines: Sequence[Engine]) -> float | None:
    """Return after how many seconds there is something to do although no input moves; None: there is nothing."""
    rests = [engine.rest for engine in engines]
    return min((rest for rest in rests if rest is not None), default=None)


def is_cancelled(error: Exception) -> bool:
    """Return whether a job did not fail but was cancelled, as a query that is stopped does: nothing is tried again."""
    return _CANCELLED.search(str(error)) is not None


def _guarded(
    engine: Engine, broken: dict[Engine, Exception], do: Callable[[], list[Appended] | None]
) -> list[Appended] | None:
    """Let what is wrong with one dataflow not concern the others."""
    try:
        return do()
    except Exception as error:
        if is_cancelled(error):
            raise
        broken[engine] = error
        return None
