"""Which logs an output is made from, and whether they are still those that it was made from before.

A log may be deleted, and another one made under its path which is further on already: its frontier alone does not
tell. So the ids of the logs stand in the output's own progress rows, and are compared before anything is written.

Invariants
----------
1. All rows of an output come from the same logs, or it is refused to go on.
2. A log that this dataflow alone writes may be made anew from the same inputs: it is named by what it is made from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.dataflow.view import leaves_of
from spark_timely.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.capture.note import OutputNote
    from spark_timely.dataflow.scope import Sink
    from spark_timely.log.delta import DeltaLog

__all__ = ["Inputs", "other_log"]


class Inputs:
    """The logs that the outputs of a dataflow are made from.

    Parameters
    ----------
    sinks : sequence of Sink
    logs : mapping of str to DeltaLog
        By path: all that are read or written.
    """

    def __init__(self, sinks: Sequence[Sink], logs: Mapping[str, DeltaLog]) -> None:
        self._logs = logs
        self._owned = {(sink.path, sink.stream) for sink in sinks}
        by_path: dict[str, list[Sink]] = {}
        for sink in sinks:
            by_path.setdefault(sink.path, []).append(sink)
        self._by_path = by_path
        self.below = {sink: self._below(sink) for sink in sinks}

    def _below(self, sink: Sink) -> tuple[str, ...]:
        """Return the logs that an output is made from, through other outputs too."""
        found: dict[str, None] = {}
        waiting = [sink]
        while waiting:  # one turn per output and log
            for leaf in leaves_of(waiting.pop().view):
                if leaf.path not in found:
                    found[leaf.path] = None
                    waiting += self._by_path.get(leaf.path, ())
        return tuple(found)

    def spools(self, sink: Sink) -> list[Sink]:
        """Return the outputs of the same dataflow that an output is made from."""
        return [other for path in self.below[sink] for other in self._by_path.get(path, ())]

    def ids(self, sink: Sink) -> dict[str, str]:
        """Return the ids of the logs that an output is made from now, by path (invariant 2)."""
        return {path: self._logs[path].log_id for path in self.below[sink] if not self._is_own(path)}

    def _is_own(self, path: str) -> bool:
        """Whether this dataflow alone writes a log."""
        return path in self._by_path and all((path, stream) in self._owned for stream in self._logs[path].streams())

    def changed(self, sink: Sink, note: OutputNote) -> DataLossError | None:
        """Return why an output cannot go on; None where all its inputs are those that it was made from.

        Parameters
        ----------
        sink : Sink
        note : OutputNote
            The newest of the output. One of before ids were written tells none: the logs of now are taken over.
        """
        for path in self.below[sink]:  # one turn per log
            found, before = self._logs[path].log_id, note.inputs.get(path)
            if before is not None and before != found:
                return other_log(sink, path, found, before)
        return None

    def missing(self, sink: Sink, note: OutputNote) -> DataLossError | None:
        """Return why an output cannot go on, if a log that it was made from is none of its inputs any more.

        For an output whose plan is as it was: of a spool that others write too the plan does not know the id.
        """
        present = {self._logs[path].log_id for path in self.below[sink]}
        for path, before in note.inputs.items():  # one turn per log
            if before not in present:
                msg = (
                    f"could not go on at operator {sink.name!r}: found no log of id={before!r} among its inputs, which "
                    f"the output was made from as {path!r}"
                )
                return DataLossError(
                    msg,
                    hint="replay that log again, capture into another log, or remove this output to make it anew",
                    context={"path": path, "expected": before},
                )
        return None


def other_log(sink: Sink, path: str, found: str, before: str) -> DataLossError:
    """Return the error of an output whose input is another log than the one that it was made from."""
    msg = (
        f"could not go on at operator {sink.name!r}: found log {path!r} of id={found!r} where the output was made "
        f"from id={before!r}"
    )
    return DataLossError(
        msg,
        hint="the input was deleted and another log made in its place: capture into another log, or remove this output "
        "to make it anew from the new input",
        context={"path": path, "found": found, "expected": before},
    )
