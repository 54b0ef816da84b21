"""What the commits of an output tell of themselves: the reason in its progress rows, words for people and then JSON.

It is written with what it tells of or not at all, and read from any process. Besides steps, an output is told so that
it failed, and that its dataflow was dropped: by commits that move nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from spark_timely.errors import DataLossError, OperatorError, StorageError, TimelyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark_timely.dataflow.scope import Sink
    from spark_timely.log.core import LogCore

__all__ = ["Note", "OutputFailure", "failure_of", "newest_note", "notes_of"]

# Of an error's text: that of a job may tell the stacks of several processes.
_MOST_CHARACTERS: Final = 4_000


@dataclass(frozen=True, slots=True)
class OutputFailure:
    """Why an output stands still.

    Attributes
    ----------
    output : str
        Name of the capture.
    operator : str
        Name of the operator that failed; that of the capture where no operator did.
    lower, upper : str or None
        Range of times that was computed, if any was.
    kind : str
        Class of the error.
    message : str
    hint : str or None
        What to do.
    run : str
        Which run of the query it failed in.
    """

    output: str
    operator: str
    lower: str | None
    upper: str | None
    kind: str
    message: str
    hint: str | None
    run: str

    @classmethod
    def of(cls, sink: Sink, error: Exception, run: str) -> OutputFailure:
        """Return what an error of an output is told by."""
        operator, lower, upper, hint = sink.name, None, None, None
        if isinstance(error, OperatorError):
            operator = str(error.operator or sink.name)
            lower, upper = (None if end is None else str(end) for end in (error.lower, error.upper))
        if isinstance(error, TimelyError):
            message, hint = error.message, error.hint
        else:
            message = f"could not run operator {sink.name!r}: found {type(error).__name__}: {error}"
        return cls(sink.name, operator, lower, upper, type(error).__name__, message[:_MOST_CHARACTERS], hint, run)

    @property
    def error(self) -> TimelyError:
        """The failure as an error that can be raised."""
        stored = {"DataLossError": DataLossError, "StorageError": StorageError}.get(self.kind)
        if stored is not None:
            return stored(self.message, hint=self.hint, context={"operator": self.operator})
        return OperatorError(self.message, hint=self.hint, operator=self.operator, lower=self.lower, upper=self.upper)


@dataclass(frozen=True, slots=True)
class Note:
    """What one commit of an output tells.

    Attributes
    ----------
    inputs : dict of str to str
        Ids of the logs that everything up to the output's upper was made from, by path. Those of outputs of the same
        dataflow are not among them, but what they are made from is.
    step : dict or None
        Numbers of the step: tasks, distinct times, rows and bytes by operator.
    failure : OutputFailure or None
        Why the output stands still.
    dropped : str or None
        The run of a query that may not go on with the output.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    step: Mapping[str, Any] | None = None
    failure: OutputFailure | None = None
    dropped: str | None = None

    def text(self, sink: Sink) -> str:
        """Return the reason that is written."""
        told: dict[str, object] = {**(self.step or {}), "inputs": dict(self.inputs)}
        what = sink.name
        if self.failure is not None:
            told["failed"] = asdict(self.failure)
            what += " failed"
        if self.dropped is not None:
            told["dropped"] = self.dropped
            what += " dropped"
        return f"{sink.owner}: {what} {json.dumps(told)}"

    @classmethod
    def of(cls, text: str | None, owner: str) -> Note | None:
        """Read a reason; None for one that a dataflow of this owner did not write.

        Examples
        --------
        >>> Note.of('dataflow flow: capture_2 {"tasks": 1, "inputs": {"/in": "7d"}}', "dataflow flow").inputs
        {'/in': '7d'}
        >>> Note.of("claim of #open at 1", "dataflow flow")
        """
        start = f"{owner}: "
        if text is None or not text.startswith(start):
            return None
        _, found, numbers = text.removeprefix(start).partition(" {")
        if not found:
            return None
        told = json.loads("{" + numbers)
        inputs, failed, dropped = told.pop("inputs", {}), told.pop("failed", None), told.pop("dropped", None)
        return cls(inputs, told or None, None if failed is None else OutputFailure(**failed), dropped)


def notes_of(log: LogCore, sink: Sink) -> Iterator[tuple[int, Note]]:
    """Give the notes of an output, with the numbers of their commits, the newest first.

    Notes
    -----
    Cost: all progress rows of the log are looked at.
    """
    rows = log.progress()
    mine = rows.filter(pc.equal(rows["_stream"], sink.stream))
    # A commit has a row for each time whose count it changed, all with the same text.
    by_seq = dict(zip(mine["_seq"].to_pylist(), mine["_reason"].to_pylist(), strict=True))
    for seq, text in sorted(by_seq.items(), reverse=True):  # one turn per commit
        note = Note.of(text, sink.owner)
        if note is not None:
            yield seq, note


def newest_note(log: LogCore, sink: Sink) -> Note:
    """Return the newest note of an output; an empty one where there is none.

    Notes
    -----
    Free, unless somebody else made the newest commit: an `advance` by hand.
    """
    state = log.stream(sink.stream)
    if state is None or not state.seq:
        return Note()
    return Note.of(state.reason, sink.owner) or next((note for _, note in notes_of(log, sink)), Note())


def failure_of(log: LogCore, sink: Sink, *, run: str | None = None) -> OutputFailure | None:
    """Return why an output stands still; None where it does not, as far as anybody has told.

    Parameters
    ----------
    log : LogCore
    sink : Sink
    run : str, optional
        The run of a query that is asked of; any unless given.
    """
    state = log.stream(sink.stream)
    note = None if state is None else Note.of(state.reason, sink.owner)
    if note is None or note.failure is None or run is None or note.failure.run == run:
        return None if note is None else note.failure
    for _, earlier in notes_of(log, sink):  # another copy failed there too: one turn per note since the last step
        if earlier.failure is None or earlier.failure.run == run:
            return earlier.failure
    return None
