"""A beginning or an end that is said by commit number or moment, followed while the log grows up to it.

Invariants
----------
1. Once the commits before the bound are all there, their frontier stays what it was found to be.
2. Until then each look costs the progress that is new: what lies before the bound in every stream is summed up
   by the newest commit there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.datasource.recent import RecentProgress

if TYPE_CHECKING:
    from spark_timely.log.base import CaptureLog
    from spark_timely.time.antichain import Antichain

__all__ = ["CommitBound"]


class CommitBound:
    """What the commits before a bound made.

    Parameters
    ----------
    log : CaptureLog
        Refreshed by others.
    kind : {"version", "timestamp"}
    bound : int
        Commits with a lower number, or at an earlier moment in microseconds since 1970, are before it.
    streams : tuple of str or None
        The streams that count; all unless given.
    """

    def __init__(self, log: CaptureLog, kind: str, bound: int, streams: tuple[str, ...] | None) -> None:
        self._log = log
        self._kind, self._bound, self._streams = kind, bound, streams
        self._recent = RecentProgress(log)
        self._position: dict[str, int] = {}
        self._version: int | None = None
        self._found: tuple[Antichain, bool] | None = None

    def frontier(self) -> Antichain:
        """Return the frontier that the commits before the bound made, as far as they are there."""
        return self._look()[0]

    def reached(self) -> bool:
        """Return whether they are all there: whether their frontier stays as it is."""
        return self._look()[1]

    def _look(self) -> tuple[Antichain, bool]:
        if self._found is not None and (self._found[1] or self._version == self._log.version):
            return self._found
        # What `#open` has, and who came from whom, counts whichever streams were chosen.
        history = self._recent.since(self._position, None, moments=True)
        reached = history.reached(self._kind, self._bound, self._streams)
        self._found = history.frontier(self._kind, self._bound, self._streams), reached
        self._version = self._log.version
        present = history.present()
        before = history.before(self._kind, self._bound)
        self._position = {name: min(seq, present[name]) for name, seq in before.items()}
        return self._found
