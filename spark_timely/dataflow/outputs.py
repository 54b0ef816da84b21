"""The outputs of a dataflow while it runs: how far they are, which stand still and why, whether it was dropped.

Invariants
----------
1. An output is written by comparing and appending at its upper. What is told of it, a failure or that its dataflow was
   dropped, is such a commit too, which moves nothing: so who has dropped a dataflow knows that nothing of that run
   is appended any more.
2. An output whose function failed is left alone for the rest of the run, unless another copy gets past; other
   failures may pass by themselves, and are tried again in the next micro-batch.
3. No failure stays untold: one that cannot be written into the output's log ends the query.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_timely.capture.note import Note, OutputFailure, OutputNote
from spark_timely.dataflow.notes import newest_note
from spark_timely.errors import ClosedError, DataLossError, OperatorError, TimelyError, UpperMismatchError
from spark_timely.log.writer import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.antichain import Antichain
    from spark_timely.dataflow.scope import Sink
    from spark_timely.log.base import DataFile, StreamState
    from spark_timely.log.delta import DeltaLog

__all__ = ["Outputs", "drop_output"]

_log = logging.getLogger("spark_timely.dataflow")

# Others commit to an output a few times at most while something is told of it.
_MOST_TRIES = 20


class Outputs:
    """The outputs of a dataflow.

    Parameters
    ----------
    sinks : sequence of Sink
    logs : mapping of str to DeltaLog
        By path.
    run : str
        The run of the query.

    Attributes
    ----------
    failures : dict of Sink to Exception
        Outputs that stand still.
    untold : list of Exception
        Those of the failures that could not be written into their output's log.
    dropped : bool
        Whether this run may not go on.
    """

    def __init__(self, sinks: Sequence[Sink], logs: Mapping[str, DeltaLog], run: str) -> None:
        self._sinks, self._logs, self._run = sinks, logs, run
        self._standing: dict[Sink, Antichain] = {}
        self.failures: dict[Sink, Exception] = {}
        self.untold: list[Exception] = []
        self.dropped = False

    def begin(self) -> None:
        """Forget failures that may pass by themselves (invariant 2)."""
        self.failures = {sink: error for sink, error in self.failures.items() if sink in self._standing}
        self.untold = [error for error in self.untold if error in self.failures.values()]

    def states(self, broken: Mapping[str, Exception]) -> dict[Sink, StreamState]:
        """Return how far each output is whose log could be looked at.

        Parameters
        ----------
        broken : mapping of str to Exception
            Logs that could not be, by path.
        """
        found: dict[Sink, StreamState] = {}
        for sink in self._sinks:  # one turn per output
            error = broken.get(sink.path)
            state = None if error is not None else self._logs[sink.path].stream(sink.stream)
            if state is None:
                self.fail(sink, None, error or _no_stream(sink))
                continue
            found[sink] = state
            self.dropped = self.dropped or self._is_dropped(sink)
            if self._standing.get(sink, state.frontier) != state.frontier:
                del self._standing[sink]
                self.failures.pop(sink, None)
        return found

    def _is_dropped(self, sink: Sink) -> bool:
        """Whether the output says that this run may not append any more."""
        return self._run in newest_note(self._logs[sink.path], sink).dropped

    def append(
        self, sink: Sink, state: StreamState, files: Sequence[DataFile], upper: Antichain, note: OutputNote
    ) -> bool | None:
        """Compare and append. The note says what the output is made from now; runs that were dropped stay so.

        Returns
        -------
        bool or None
            False if another copy was first; None if it failed.
        """
        log = self._logs[sink.path]
        note = replace(note, dropped=newest_note(log, sink).dropped)
        try:
            _append(log, sink, state, note, f"{sink.owner}: {sink.name}", files=files, upper=upper)
        except (UpperMismatchError, ClosedError) as error:
            _log.info("output %r: another copy of the dataflow was first: %s", sink.name, error)
            return False
        except TimelyError as error:
            self.fail(sink, state, error)
            return None
        return True

    def fail(self, sink: Sink, state: StreamState | None, error: Exception) -> None:
        """Let an output stand still, and tell why.

        Parameters
        ----------
        sink : Sink
        state : StreamState or None
            In which it stands; None if that is not known.
        error : Exception
        """
        if sink in self.failures:
            return
        self.failures[sink] = error
        if isinstance(error, OperatorError) and state is not None:
            self._standing[sink] = state.frontier
        if state is None or not self._tell(sink, state, error):
            self.untold.append(error)

    def _tell(self, sink: Sink, state: StreamState, error: Exception) -> bool:
        """Write a failure into the log of its output; return whether everybody can see it, or need not."""
        log = self._logs[sink.path]
        failure = OutputFailure.of(sink.name, error, self._run)
        try:
            before = newest_note(log, sink)
            if before.failure == failure:
                return True
            _log.error("%s: output %r stands still: %s", sink.owner, sink.name, error)
            for _ in range(_MOST_TRIES):
                if _say(log, sink, state, before.failed(failure), f"{sink.owner}: {sink.name} failed"):
                    return True
                log.refresh()
                now = log.stream(sink.stream)
                if now is None or now.closed:
                    return False
                if now.frontier != state.frontier or self._is_dropped(sink):
                    return True  # another copy got past, or nobody waits for this one
                state, before = now, newest_note(log, sink)
        except TimelyError as other:
            _log.warning("output %r: its failure cannot be written into its log: %s", sink.name, other)
        return False


def _append(
    log: DeltaLog,
    sink: Sink,
    state: StreamState,
    note: OutputNote,
    reason: str,
    *,
    files: Sequence[DataFile] = (),
    upper: Antichain | None = None,
) -> None:
    StreamWriter(log, sink.stream, sink.owner).compare_and_append_files(
        files,
        expected=state,
        upper=state.frontier if upper is None else upper,
        reason=reason,
        note=Note(output=note),
    )


def _say(log: DeltaLog, sink: Sink, state: StreamState, note: OutputNote, reason: str) -> bool:
    """Write a note that moves nothing; return False if somebody else was first."""
    try:
        _append(log, sink, state, note, reason)
    except (UpperMismatchError, ClosedError):
        return False
    return True


def drop_output(log: DeltaLog, sink: Sink, run: str) -> None:
    """Let no run of a query of this name append to an output any more (invariant 1). Its frontier stays where it is."""
    while True:  # as many turns as others commit meanwhile
        log.refresh()
        state = log.stream(sink.stream)
        if state is None or state.closed:
            return
        if _say(log, sink, state, newest_note(log, sink).without(run), f"{sink.owner}: {sink.name} dropped"):
            return


def _no_stream(sink: Sink) -> DataLossError:
    msg = f"could not go on at operator {sink.name!r}: found no stream {sink.stream!r} in log {sink.path!r} any more"
    return DataLossError(
        msg,
        hint="the output was replaced: start the dataflow again",
        context={"path": sink.path, "stream": sink.stream},
    )
