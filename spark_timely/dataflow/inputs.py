"""Which logs an output is made from, and whether they are still those that it was made from before.

A log may be deleted, and another one made under its path; or it may be put back to an earlier state, and grow again by
other commits. Its frontier alone does not tell. So the ids of the logs and their newest commits are in the output's own
progress rows, and are compared before anything is written.

A log's commits are in one order, and to put it back takes the last ones away. So of very many streams the commits that
were made last are enough. Not noticed is a log that lost only commits whose writers' clocks were far behind, of more
streams than are compared; nor one whose files were changed in place.

Invariants
----------
1. All rows of an output come from the same logs, and from one history of each, or the output stops.
2. A log that this dataflow alone writes may be made anew from the same inputs: it is named by what it is made from.
3. A commit that was found is looked for again only when a file that held it is no longer part of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_timely.dataflow.view import leaves_of
from spark_timely.errors import DataLossError
from spark_timely.protocol.note import InputNote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.dataflow.scope import Sink
    from spark_timely.log.delta import DeltaLog
    from spark_timely.protocol.note import OutputNote
    from spark_timely.time.antichain import Antichain

    Commits = Mapping[str, tuple[int, str]]

__all__ = ["Inputs", "other_log"]

# Of the commits of all inputs in the note of an output, about; and of one beside its stream's name.
_MOST_BYTES: Final = 16 * 1024
_COMMIT_BYTES: Final = 32


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
        self._room = _MOST_BYTES // max((len(paths) for paths in self.below.values()), default=1)
        # By log: its newest commits as of a snapshot. By output and log: commits that were found, and their files.
        self._newest: dict[str, tuple[tuple[int, int], Commits]] = {}
        self._found: dict[tuple[Sink, str], tuple[Commits, frozenset[str]]] = {}

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

    def now(self, sink: Sink, before: OutputNote | None = None) -> dict[str, InputNote]:
        """Return the logs that an output is made from now, by path, with their newest commits (invariant 2).

        Parameters
        ----------
        sink : Sink
        before : OutputNote, optional
            The newest of the output, which was found to be as it should: commits that another copy has seen and this
            one has not are kept.
        """
        found: dict[str, InputNote] = {}
        for path in self.below[sink]:  # one turn per log
            if self._is_own(path):
                continue
            log, commits = self._logs[path], self._commits(path)
            noted = None if before is None else self._noted(before, path)
            ends = log.ends()
            ahead = {
                stream: (seq, identity)
                for stream, (seq, identity) in ({} if noted is None else noted.commits).items()
                if stream not in ends or ends[stream].seq < seq
            }
            if not ahead:
                self._note_found(sink, path, commits)
            found[path] = InputNote(log.log_id, {**commits, **ahead})
        return found

    def kept(self, sink: Sink, before: OutputNote) -> dict[str, InputNote]:
        """Return the logs that an output is made from now; what is known of those that it was made from stays."""
        kept = {}
        for path, now in self.now(sink).items():  # one turn per log
            noted = self._noted(before, path)
            kept[path] = noted if noted is not None and noted.id == now.id else now
        return kept

    def _is_own(self, path: str) -> bool:
        """Whether this dataflow alone writes a log."""
        return path in self._by_path and all((path, stream) in self._owned for stream in self._logs[path].streams())

    def _noted(self, note: OutputNote, path: str) -> InputNote | None:
        """Return what an output says of a log: by its path, else by its id, for it may have been moved."""
        log_id = self._logs[path].log_id
        return note.inputs.get(path) or next((each for each in note.inputs.values() if each.id == log_id), None)

    def _commits(self, path: str) -> Commits:
        """Return the newest commits of a log's streams; of too many those that were made last."""
        log = self._logs[path]
        snapshot = log.generation, log.version
        known = self._newest.get(path)
        if known is None or known[0] != snapshot:
            room, found = self._room, dict[str, tuple[int, str]]()
            for state in sorted(log.ends().values(), key=lambda state: state.at, reverse=True):  # one turn per stream
                room -= len(state.stream) + _COMMIT_BYTES
                if found and room < 0:
                    break
                found[state.stream] = state.seq, state.identity
            known = self._newest[path] = snapshot, found
        return known[1]

    def changed(self, sink: Sink, note: OutputNote, upper: Antichain, *, fresh: bool = True) -> DataLossError | None:
        """Return why an output cannot continue; None where all its inputs are those that it was made from.

        Parameters
        ----------
        sink : Sink
        note : OutputNote
            The newest of the output.
        upper : Antichain
            Where the output is.
        fresh : bool
            Whether the inputs were looked at after the output. Else another copy may know more of them.

        Raises
        ------
        TimelyError
            If a log cannot be read.
        """
        for path in self.below[sink]:  # one turn per log
            noted, log = self._noted(note, path), self._logs[path]
            if noted is None:
                continue
            if noted.id != log.log_id:
                return other_log(sink, path, log.log_id, noted.id)
            lost = self._lost(sink, path, noted.commits, fresh=fresh)
            if lost is not None:
                return _went_back(sink, path, lost, note.consent(upper.elements))
        return None

    def _lost(self, sink: Sink, path: str, commits: Commits, *, fresh: bool) -> str | None:
        """Return what is said of a commit that a log does not have any more; None if it has all of them."""
        log = self._logs[path]
        known, files = self._found.get((sink, path), (None, frozenset[str]()))
        if known == commits and all(file in log.store.live for file in files):
            return None
        newest = log.ends()
        for stream in sorted(commits, reverse=True):  # one turn per stream, `#open` last
            seq, identity = commits[stream]
            if not fresh and (stream not in newest or newest[stream].seq < seq):
                continue
            found = log.commit_of(stream, seq)
            if found is None:
                return f"found log {path!r} without commit {seq} of stream {stream!r}"
            if found.identity != identity:
                return f"found another commit {seq} of stream {stream!r} in log {path!r}"
        if fresh:
            self._note_found(sink, path, commits)
        return None

    def _note_found(self, sink: Sink, path: str, commits: Commits) -> None:
        files = (self._logs[path].holders(stream, seq) for stream, (seq, _) in commits.items())
        self._found[sink, path] = commits, frozenset(file for held in files for file in held)

    def missing(self, sink: Sink, note: OutputNote) -> DataLossError | None:
        """Return why an output cannot go on, if a log that it was made from is none of its inputs any more.

        For an output whose plan is as it was: of a spool that others write too the plan does not know the id.
        """
        present = {self._logs[path].log_id for path in self.below[sink]}
        for path, before in note.inputs.items():  # one turn per log
            if before.id not in present:
                msg = (
                    f"could not go on at operator {sink.name!r}: found no log of id={before.id!r} among its inputs, "
                    f"which the output was made from as {path!r}"
                )
                return DataLossError(
                    msg,
                    hint="replay that log again, capture into another log, or remove this output to make it anew",
                    context={"path": path, "expected": before.id},
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


def _went_back(sink: Sink, path: str, lost: str, consent: str) -> DataLossError:
    msg = f"could not continue at operator {sink.name!r}: {lost}, which the output was made from"
    return DataLossError(
        msg,
        hint="the input was restored to an earlier state, or a copy of it took its place: put back the one that has "
        "the commit, capture into another log, or remove this output to compute it again; if its rows are to stay "
        f"and later times to come from the input as it is, say capture(…, replaces={consent!r})",
        context={"path": path},
    )
