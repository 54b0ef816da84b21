"""What the commits of an output say of it, found in its log: see `spark_timely.protocol.note.OutputNote`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from spark_timely.protocol.note import Note, OutputNote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.dataflow.logs import Sink
    from spark_timely.log.base import StreamState
    from spark_timely.log.core import LogCore
    from spark_timely.protocol.note import OutputFailure

__all__ = ["failure_of", "newest_note", "note_of", "steps_of"]


def steps_of(log: LogCore, sink: Sink) -> list[Mapping[str, object]]:
    """Return the numbers of the steps of an output, the oldest first.

    Notes
    -----
    Cost: all progress rows of the log are looked at; one turn per commit of the output.
    """
    rows = log.progress()
    mine = rows.filter(pc.and_(pc.equal(rows["_stream"], sink.stream), pc.equal(rows["_query"], sink.owner)))
    notes = (Note.parse(text).output for text in mine["_note"].drop_null().to_pylist())
    return [note.step for note in notes if note is not None and note.step is not None]


def newest_note(log: LogCore, sink: Sink) -> OutputNote:
    """Return the newest note of an output; an empty one where there is none."""
    return note_of(log.stream(sink.stream), sink)


def note_of(state: StreamState | None, sink: Sink) -> OutputNote:
    """Return what a state of an output's stream says of the output; an empty note where that is nothing."""
    note = None if state is None or state.owner != sink.owner else state.note.output
    return OutputNote() if note is None else note


def failure_of(log: LogCore, sink: Sink, *, run: str | None = None) -> OutputFailure | None:
    """Return why an output waits; None where it does not, as far as its log says.

    Parameters
    ----------
    log : LogCore
    sink : Sink
    run : str, optional
        The run of a query that is asked for; any unless given.
    """
    note = newest_note(log, sink)
    return note.failure if run is None else next((each for each in note.failures if each.run == run), None)
