"""How far the log has a capture: the mark in the note of each commit of an import."""

from __future__ import annotations

import pyarrow.compute as pc

from spark_timely.errors import TimelyInternalError
from spark_timely.log import Log
from spark_timely.log.base import StreamState
from spark_timely.protocol.note import ImportMark, Note

__all__ = ["all_marks", "newest_mark"]


def newest_mark(log: Log, state: StreamState) -> ImportMark:
    """Return how far the log has the capture that became a stream.

    Raises
    ------
    TimelyInternalError
        If the stream has a position and its newest commit has no mark of it.
    """
    if state.batch is None:
        return ImportMark()
    mark = state.note.mark
    if mark is None or mark.position != state.batch:
        msg = f"could not go on with stream {state.stream!r} of log {log.path!r}: found no mark of an import"
        raise TimelyInternalError(msg)
    return mark


def all_marks(log: Log, stream: str) -> list[ImportMark]:
    """Return the marks of all commits of a stream, by position; as many turns as commits."""
    rows = log.progress()
    notes = pc.unique(rows.filter(pc.equal(rows["_stream"], stream))["_note"]).drop_null().to_pylist()
    marks = {mark for note in notes if (mark := Note.parse(note).mark) is not None}
    return sorted(marks, key=lambda mark: mark.position)
