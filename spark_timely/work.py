"""Work that is taken step by step, and the pauses after steps that failed."""

from __future__ import annotations

import math
import time as monotonic
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Backoff"]


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
