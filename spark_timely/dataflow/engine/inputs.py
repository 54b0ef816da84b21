"""Inputs of an output: checks that the logs that it reads are still those that it was made from.

A log may be deleted, and another one made under its path; or it may be put back to an earlier state, and grow again by
other commits. Its frontier alone does not tell. So the ids of the logs and their newest commits are in the output's own
progress rows, and are compared before anything is written (see `spark_timely.log.machine.rollback`).

Invariants
----------
1. All rows of an output come from the same logs, and from one history of each, or the output stops.
2. A log that this dataflow alone writes may be made again from the same inputs: it is named by what it is made from.
3. A commit that was found is looked for again only when a file that held it is no longer part of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from spark_timely.dataflow.views import leaves_of
from spark_timely.errors import SinceViolationError, TimelyError
from spark_timely.log.acceptance import describe_others
from spark_timely.log.machine.rollback import ACCEPTED, newest_commits, other_commits
from spark_timely.log.store.clones import of_clone
from spark_timely.log.store.urls import same_place
from spark_timely.protocol.note import InputNote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from logging import Logger

    from spark_timely.dataflow.logs import Sink
    from spark_timely.log import Log
    from spark_timely.log.machine.rollback import Commits
    from spark_timely.protocol.note import OutputNote
    from spark_timely.time.antichain import Antichain

__all__ = ["Inputs", "Retained", "Retainers", "other_log"]

# Of the commits of all inputs in the note of an output, about.
_MOST_BYTES: Final = 16 * 1024


class Inputs:
    """The logs that the outputs of a dataflow are made from.

    Parameters
    ----------
    sinks : sequence of Sink
    logs : mapping of str to Log
        By path: all that are read or written.
    """

    def __init__(self, sinks: Sequence[Sink], logs: Mapping[str, Log]) -> None:
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
        while waiting:
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
        for path in self.below[sink]:
            if self._is_own(path):
                continue
            log, commits = self._logs[path], self._commits(path)
            noted = None if before is None else self._noted(before, path)
            ends = log.core.ends()
            ahead = {
                stream: (seq, identity)
                for stream, (seq, identity) in ({} if noted is None else noted.commits).items()
                if (
                    seq > len(log.core.accepted) if stream == ACCEPTED else stream not in ends or ends[stream].seq < seq
                )
            }
            if not ahead:
                self._note_found(sink, path, commits)
            found[path] = InputNote(log.core.log_id, {**commits, **ahead})
        return found

    def kept(self, sink: Sink, before: OutputNote) -> dict[str, InputNote]:
        """Return the logs that an output is made from now; what it says of those that it was made from stays.

        Also where another log is at such a path: that the plan may change is no consent to another input.
        """
        return {path: self._noted(before, path) or now for path, now in self.now(sink).items()}

    def _is_own(self, path: str) -> bool:
        """Whether this dataflow alone writes a log."""
        return path in self._by_path and all((path, stream) in self._owned for stream in self._logs[path].streams())

    def _noted(self, note: OutputNote, path: str) -> InputNote | None:
        """Return what an output says of a log: by its path, else by its id, for it may have been moved."""
        log_id = self._logs[path].core.log_id
        return self._noted_at(note, path) or next((each for each in note.inputs.values() if each.id == log_id), None)

    def _noted_at(self, note: OutputNote, path: str) -> InputNote | None:
        """Return what an output says of the log at a place, however the place was written then."""
        if path in note.inputs:
            return note.inputs[path]
        options = self._logs[path].core.storage_options
        return next((each for other, each in note.inputs.items() if same_place(other, path, options)), None)

    def _commits(self, path: str) -> Commits:
        """Return the newest commits of a log's streams; of too many those that were made last."""
        log = self._logs[path]
        snapshot = log.core.generation, log.core.version
        known = self._newest.get(path)
        if known is None or known[0] != snapshot:
            known = self._newest[path] = snapshot, newest_commits(log.core.ends(), self._room, log.core.accepted)
        return known[1]

    def ids(self) -> dict[str, str]:
        """Return the ids of all logs, by path."""
        return {path: log.core.log_id for path, log in self._logs.items()}

    def replaced(self, sink: Sink, note: OutputNote) -> dict[str, str]:
        """Return the ids of logs that an output was made from, by path, where another log is now."""
        noted = {path: self._noted_at(note, path) for path in self.below[sink] if path in self._logs}
        return {path: each.id for path, each in noted.items() if each and each.id != self._logs[path].core.log_id}

    def found(self, sink: Sink, note: OutputNote, *, fresh: bool = True) -> dict[str, InputNote]:
        """Return the logs that an output is made from as they are, with the commits that it was not made from.

        Parameters
        ----------
        sink : Sink
        note : OutputNote
            The newest of the output.
        fresh : bool
            Whether the inputs were looked at after the output. Else another copy may know more of them.

        Returns
        -------
        dict of str to InputNote
            By path; of each stream whose commit is another one that one's identity, which is empty where there is no
            commit of its number.

        Raises
        ------
        TimelyError
            If a log cannot be read.
        """
        found = {}
        for path in self.below[sink]:
            noted, log_id = self._noted(note, path), self._logs[path].core.log_id
            if noted is not None and noted.id == log_id:
                found[path] = InputNote(log_id, self._differing(sink, path, noted.commits, fresh=fresh))
            elif noted is not None or not self._is_own(path):
                found[path] = InputNote(log_id)
        return found

    def changes(self, sink: Sink, note: OutputNote, found: Mapping[str, InputNote]) -> list[str]:
        """Return what is said of inputs that are not those that an output was made from, and why.

        For an output whose plan is as it was: a log that is none of its inputs any more was replaced although the code
        names the same ones, as of a spool that others write too the plan does not know the id.

        Parameters
        ----------
        sink : Sink
        note : OutputNote
            The newest of the output.
        found : dict of str to InputNote
            The inputs as `found` gives them.
        """
        said = []
        for path, now in found.items():
            noted = self._noted(note, path)
            if noted is not None and noted.id != now.id:
                said.append(other_log(path, now.id, noted.id, of_clone(self._logs[path].core.storage)))
            elif now.commits:
                said.append(describe_others(self._logs[path].core, now.commits, "the output was made from"))
        present = {self._logs[path].core.log_id for path in self.below[sink]}
        for path, before in note.inputs.items():
            if before.id not in present and not any(
                same_place(path, other, self._logs[other].core.storage_options) for other in self.below[sink]
            ):
                said.append(f"found no log of id={before.id!r} among its inputs, which it was made from as {path!r}")
        return said

    def _differing(self, sink: Sink, path: str, commits: Commits, *, fresh: bool) -> Commits:
        """Return those of an output's commits that a log does not have, with the identity of what it has instead."""
        log = self._logs[path]
        known, files = self._found.get((sink, path), (None, frozenset[str]()))
        n_accepted = commits.get(ACCEPTED, (0, ""))[0]
        same = known == commits and n_accepted == len(log.core.accepted)
        if same and all(file in log.core.store.live for file in files):
            return {}
        newest = log.core.ends()
        wanted = {
            stream: commit
            for stream, commit in commits.items()
            if fresh or stream == ACCEPTED or (stream in newest and newest[stream].seq >= commit[0])
        }
        differing = other_commits(log.core, wanted)
        if not fresh and n_accepted > len(log.core.accepted):
            differing.pop(ACCEPTED, None)
        if fresh and not differing:
            self._note_found(sink, path, commits)
        return differing

    def _note_found(self, sink: Sink, path: str, commits: Commits) -> None:
        files = (self._logs[path].core.states.holders(stream, seq) for stream, (seq, _) in commits.items())
        self._found[sink, path] = commits, frozenset(file for held in files for file in held)


def other_log(path: str, found: str, before: str, cloned: str = "") -> str:
    """Return what is said of an input that is another log than the one that an output was made from."""
    return f"found log {path!r} of id={found!r}{cloned} where the output was made from id={before!r}"


class Retained(Protocol):
    """A retainer of a log for a consumer: `spark_timely.datasource.retaining.RetainedPosition` is one."""

    def stand(self, needed: Antichain, identity: str | None, log: Log | None = None) -> None:
        """Retain what is needed from now on; `log` shows what has become of what was retained."""

    def end(self) -> None:
        """Stop renewing."""


class Retainers:
    """The retainers of logs that are read: each keeps in its log what is not read yet.

    Parameters
    ----------
    logs : mapping of str to Log
        By path.
    retain : callable or None
        Gives what retains a log for a consumer of a name; None: nothing is retained.
    consumer : str
    what : str
        ``dataflow 'flow'``, for warnings.
    warnings : logging.Logger

    Attributes
    ----------
    given_up : set of str
        Paths of logs that cannot be retained.
    """

    def __init__(
        self,
        logs: Mapping[str, Log],
        retain: Callable[[Log, str], Retained] | None,
        consumer: str,
        what: str,
        warnings: Logger,
    ) -> None:
        self._logs, self._retain, self._consumer, self._what, self._warnings = logs, retain, consumer, what, warnings
        self._retained: dict[str, Retained] = {}
        self.given_up: set[str] = set()

    @property
    def are_kept(self) -> bool:
        """Whether anything is to be retained."""
        return self._retain is not None

    def stand(self, path: str, needed: Antichain, owner: str) -> None:
        """Retain what is needed of a log from now on; where that cannot be, it is said once.

        Raises
        ------
        SinceViolationError
            If the log has forgotten some of it by now.
        """
        if self._retain is None or path in self.given_up:
            return
        log = self._logs[path]
        try:
            if path not in self._retained:
                self._retained[path] = self._retain(log, self._consumer)
            self._retained[path].stand(needed, owner, log)
        except SinceViolationError:
            raise
        except TimelyError as error:
            self.given_up.add(path)
            self._warnings.warning(
                "%s does not retain log %r, which may forget what it needs: %s", self._what, path, error
            )

    def end(self) -> None:
        """Renew nothing any more; what is retained expires."""
        for retained in self._retained.values():
            retained.end()
