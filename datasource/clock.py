"""A clock: a source that says which logs moved, and nothing of what is in them.

What drives a dataflow. Spark runs a micro-batch when an offset is another than before; the offset of a clock is
how far each of its logs is, and which run of the query asks. So a micro-batch is run when a frontier moved, and
once at the start of each run, although none moved: an output that is new or was emptied would wait for ever.

Invariants
----------
1. Equal positions have equal JSON text.
2. The rows of a micro-batch depend on its two offsets alone.
"""

from __future__ import annotations

import time as monotonic
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_timely.errors import InvalidOptionError, InvalidUsageError, shown

if TYPE_CHECKING:
    from spark_timely.conf.options import SourceOptions
    from spark_timely.log.base import CaptureLog

__all__ = ["CLOCK_SCHEMA", "Clock", "check_clock_options"]

CLOCK_SCHEMA: Final = pa.schema([pa.field("_log", pa.string(), nullable=False), pa.field("_frontier", pa.string())])
"""Columns of ``content=clock``: path of a log that moved, and its frontier as a JSON antichain."""

_VERSION: Final = 1
_ALLOWED: Final = frozenset({"path", "content", "logs", "run", "poll_interval"})


def check_clock_options(options: SourceOptions, /) -> None:
    """Refuse options that say something about the rows of a log: a clock reads none.

    Raises
    ------
    InvalidOptionError
    """
    other = sorted(options.given - _ALLOWED)
    if other:
        msg = f"could not read a clock: found options {shown(other)}"
        raise InvalidOptionError(
            msg, hint="with content=clock give path, logs, run and pollInterval only", context={"options": other}
        )


class Clock:
    """Says how far some logs are.

    Parameters
    ----------
    logs : sequence of CaptureLog
        Open; refreshed as needed.
    run : str
        Which run of the query asks.
    poll_s : float
        Seconds between two looks at the logs, at least.
    now : callable
        A clock in seconds that never goes back.

    Examples
    --------
    >>> from spark_timely.log.memory import MemoryLog
    >>> log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    >>> clock = Clock([log], run="a")
    >>> clock.latest(clock.initial())["frontiers"]
    {'memory': [0]}
    """

    def __init__(
        self,
        logs: Sequence[CaptureLog],
        *,
        run: str,
        poll_s: float = 0.2,
        now: Callable[[], float] = monotonic.monotonic,
    ) -> None:
        self._logs = sorted(logs, key=lambda log: log.path)
        self._run = run
        self._poll_s = poll_s
        self._now = now
        self._looked: float | None = None
        self._pinned = False

    def initial(self) -> dict[str, object]:
        """Return the offset of a fresh checkpoint."""
        return {"version": _VERSION, "content": "clock", "run": "", "frontiers": {}}

    def prepare_available_now(self) -> None:
        """Fix what the query comes to know: what is there now."""
        self._refresh(at_once=True)
        self._pinned = True

    def latest(self, start: Mapping[str, Any]) -> dict[str, object]:
        """Return how far the logs are; `start` itself where none moved in this run.

        Raises
        ------
        InvalidUsageError
            If `start` is no offset of a clock.
        """
        self._positions(start)
        self._refresh()
        frontiers = {log.path: log.frontier().to_json() for log in self._logs}
        found: dict[str, object] = {**self.initial(), "run": self._run, "frontiers": frontiers}
        return dict(start) if found == dict(start) else found

    def rows(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> pa.RecordBatch:
        """Return a row for each log that moved between two offsets."""
        before, after = self._positions(start), self._positions(end)
        moved = [path for path, frontier in after.items() if before.get(path) != frontier]
        columns = [pa.array(moved, pa.string()), pa.array([str(after[path]) for path in moved], pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=CLOCK_SCHEMA)

    @staticmethod
    def _positions(offset: Mapping[str, Any]) -> Mapping[str, Any]:
        if offset.get("content") != "clock" or offset.get("version") != _VERSION:
            msg = f"could not read the checkpoint: found {shown(dict(offset))}, which is no offset of a clock"
            raise InvalidUsageError(msg, hint="the checkpoint belongs to another query; use a new one")
        frontiers: Mapping[str, Any] = offset["frontiers"]
        return frontiers

    def _refresh(self, *, at_once: bool = False) -> None:
        now = self._now()
        recent = self._looked is not None and now - self._looked < self._poll_s
        if not at_once and (self._pinned or (recent and not any(log.has_news() for log in self._logs))):
            return
        for log in self._logs:
            log.refresh()
        self._looked = now
