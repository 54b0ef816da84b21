"""How far the log has a capture: a mark in the reason of each commit of an import."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow.compute as pc

from spark_timely.errors import TimelyInternalError
from spark_timely.log.base import StreamState
from spark_timely.log.core import LogCore

__all__ = ["Mark", "all_marks", "newest_mark"]


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a commit of an import came.

    Parameters
    ----------
    position, events : int
        Bytes and events of the capture.
    checksum : int
        CRC-32 of everything before the position.

    Examples
    --------
    >>> Mark.of_reason(Mark(36, 1, 7).reason("w0.bin"))
    Mark(position=36, events=1, checksum=7)
    """

    position: int = 0
    events: int = 0
    checksum: int = 0

    def reason(self, name: str) -> str:
        """Return it as the reason of a commit, with what the capture is called."""
        # Names of files may have bytes that are no text.
        text = name.encode("utf-8", "backslashreplace").decode()
        facts = {"import": text, "bytes": self.position, "events": self.events, "crc32": self.checksum}
        return json.dumps(facts, ensure_ascii=False)

    @classmethod
    def of_reason(cls, reason: str) -> Mark | None:
        """Read a reason; None if it is not that of an import."""
        try:
            facts = json.loads(reason)
            return cls(facts["bytes"], facts["events"], facts["crc32"])
        except (ValueError, TypeError, KeyError):
            return None


def newest_mark(log: LogCore, state: StreamState) -> Mark:
    """Return how far the log has the capture that became a stream.

    Raises
    ------
    TimelyInternalError
        If the stream's newest commit with a position tells of none.
    """
    if state.batch is None:
        return Mark()
    recorded = log.recorded(state.stream, state.batch)
    mark = None if recorded is None else Mark.of_reason(recorded.reason)
    if mark is None or mark.position != state.batch:
        msg = f"could not go on with stream {state.stream!r} of log {log.path!r}: found no mark of an import"
        raise TimelyInternalError(msg)
    return mark


def all_marks(log: LogCore, stream: str) -> list[Mark]:
    """Return the marks of all commits of a stream, by position; as many turns as commits."""
    rows = log.progress()
    reasons = pc.unique(rows.filter(pc.equal(rows["_stream"], stream))["_reason"]).to_pylist()
    marks = {mark for reason in reasons if reason is not None and (mark := Mark.of_reason(reason)) is not None}
    return sorted(marks, key=lambda mark: mark.position)
