"""Inputs of an output: whether they are those that it was made from, what is retained in them, and where it begins.

`steps` and the engine of a continual task ask `Inputs` before they write, and by `Retainers` keep in the logs what is
not read yet. `outputs` records in notes what an output was made from, as `Inputs` finds it. `Beginnings` says from
which time on an output has rows.

A log may be deleted, and another one made under its path; or it may be put back to an earlier state, and grow again by
other commits. Its frontier alone does not show that. So the ids of the logs and their newest commits are in the notes
of the output's own progress rows, and are compared before anything is written (see `spark_timely.log.machine.state`).

Invariants
----------
1. All rows of an output come from the same logs, and from one history of each, or the output stops.
2. A log that this dataflow alone writes may be made again from the same inputs: it is named by what it is made from.
3. A commit that was found in a log is looked for again only when a file that held it is no longer part of the log.
4. Where an output begins, a log is asked, not a plan. A log has a minimum of its own. That may be later than the
   minimum of the logs that it is made from, as behind a delay; or earlier, as where a person made it or other outputs
   are in it. What it has forgotten, and where what is in it begins, is in its since and in the notes of its streams.
5. An output has begun once it took a step: then a note has its upper. It takes its first step after the outputs that
   it reads.
6. A collection in which events are looked up as of their times begins where its inputs do, whatever as_of, the time at
   which the dataflow begins: events before as_of are looked up too.
7. What an output holds is whole. Events begin after the last time to which any forgotten row would have gone. Updates
   begin at the time to which those at since go: these represent all that was before. What a compute instance has
   accepted begins as of its time, or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from spark_timely.dataflow.engine.cutting import paths_of
from spark_timely.dataflow.remembered import dimensions_of, remembers
from spark_timely.dataflow.views import Replay, least_time, leaves_of
from spark_timely.errors import RolledBackError, SinceViolationError, TimelyError
from spark_timely.log.acceptance import describe_others
from spark_timely.log.machine.lost_commits import ACCEPTED, newest_commits, other_commits
from spark_timely.log.machine.since import may_read, needed_from
from spark_timely.log.store.clones import of_clone
from spark_timely.log.store.urls import same_place
from spark_timely.protocol.note import InputNote, OutputNote
from spark_timely.spark.base.beginnings import beginning
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from logging import Logger

    from spark_timely.dataflow.logs import Sink
    from spark_timely.log import Log
    from spark_timely.log.machine.lost_commits import Commits
    from spark_timely.log.machine.state import StreamState
    from spark_timely.time.antichain import IntArray

__all__ = [
    "Beginnings",
    "Inputs",
    "Need",
    "Retained",
    "Retainers",
    "check_whole",
    "first_end",
    "note_of",
    "other_log",
    "refreshed",
]


_log = logging.getLogger("spark_timely.dataflow")


def refreshed(logs: Mapping[str, Log], paths: Iterable[str]) -> dict[str, Exception]:
    """Take notice of what others did to logs; return those where that failed, with the error."""
    broken: dict[str, Exception] = {}
    for path in paths:
        core = logs[path].core
        try:
            try:
                core.refresh()
                core.frontier()
            except RolledBackError:
                # What was read of it is in the notes of the outputs: they judge, also after a restart.
                core.begin_anew()
                core.refresh()
                core.frontier()
        except TimelyError as error:
            broken[path] = error
    return broken


def note_of(state: StreamState | None, sink: Sink) -> OutputNote:
    """Return what a state of an output's stream says of the output; an empty note where that is nothing."""
    note = None if state is None or state.owner != sink.owner else state.note.output
    return OutputNote() if note is None else note


@dataclass(frozen=True, slots=True)
class Need:
    """The part of a log that a step of an output needs.

    Attributes
    ----------
    leaf : Replay
        How the log is read.
    at : Antichain
        From when on.
    needed : Antichain
        Times at and beyond it must stay distinct: see `spark_timely.log.machine.since`.
    """

    leaf: Replay
    at: Antichain
    needed: Antichain


class Beginnings:
    """The beginnings of a dataflow's outputs, and what they need of the logs that they read.

    Parameters
    ----------
    sinks : sequence of Sink
    logs : mapping of str to Log
        By path: all that are read or written.

    Attributes
    ----------
    own : dict of Sink to Replay
        Outputs that are the state of an operator over all history, and how their logs are read.
    """

    def __init__(self, sinks: Sequence[Sink], logs: Mapping[str, Log]) -> None:
        self._logs = logs
        self._written: dict[str, list[Sink]] = {}
        for sink in sinks:
            self._written.setdefault(sink.path, []).append(sink)
        self._looked_into = _looked_into(sinks, self._written)
        self.own = {sink: _own(sink, logs[sink.path]) for sink in sinks if remembers(sink.view) is not None}

    def needs(self, sink: Sink, state: StreamState, lower: Antichain) -> list[Need]:
        """Return what a step of an output from `lower` on needs: of each way from a log, and of its own state."""
        found = []
        for leaf, delays in paths_of(sink.view):
            log = self._logs[leaf.path]
            at = lower
            for delay in reversed(delays):
                at = delay.back(at)
            at = at.join(log.core.domain.minimum_frontier)  # before which nothing is
            found.append(Need(leaf, at, needed_from(log.core.kind, at, log.core.domain.minimum)))
        if sink in self.own:
            found.append(Need(self.own[sink], lower, self._state_needs(sink, state)))
        return found

    def _state_needs(self, sink: Sink, state: StreamState) -> Antichain:
        """Return what the state of an operator over all history needs to be read as of its frontier."""
        log, frontier = self._logs[sink.path], state.frontier
        if self.own[sink].updates:
            return needed_from("collection", frontier, log.core.domain.minimum)
        kept = remembers(sink.view)
        back = None if kept is None else kept.history.looks_back
        if back is None or not frontier.elements:
            return frontier if not frontier.elements else log.core.domain.minimum_frontier
        ((time,),) = frontier.elements
        needed = Antichain.of(max(time - back, log.core.domain.minimum[0]))
        begins = note_of(state, sink).begins
        return needed if begins is None else needed.join(Antichain.from_times(begins, 1))

    def waits(self, sink: Sink, state: StreamState) -> bool:
        """Return whether an output may not begin before another one that it reads has begun (invariant 5)."""
        return not _has_begun(sink, state) and any(
            not _has_begun(other, self._logs[other.path].core.stream(other.stream))
            for leaf in leaves_of(sink.view)
            for other in self._written.get(leaf.path, ())
        )

    def later(self, sink: Sink, state: StreamState) -> Antichain | None:
        """Return where an output begins that is to begin later, or whose inputs have forgotten; None for any other.

        Also None for one that has begun, or was moved past its least time by hand, where it then begins.
        """
        domain, (least, *others) = sink.view.domain, least_time(sink.view)
        if _has_begun(sink, state) or others or not state.frontier.less_equal((least,)):
            return None
        begins: list[Antichain] = []
        if sink.as_of is not None and sink.view.updates and sink.as_of > least and sink.path not in self._looked_into:
            begins.append(Antichain.of(sink.as_of))
        for leaf, delays in paths_of(sink.view):
            since = beginning(self._logs[leaf.path])
            if since is None or since == self._logs[leaf.path].core.domain.minimum_frontier:
                continue
            ((time,),) = since.elements
            # The last time of which anything is forgotten: of updates, at since stands all that was before it too.
            at: IntArray = np.array([[time if leaf.updates else time - 1]], np.int64)
            goes = True
            for delay in delays:
                at, fits = delay.forward(at)
                goes = goes and bool(fits[0])
            if goes:
                lost = int(at[0, 0])
                begins.append(Antichain.of(lost) if sink.view.updates else domain.successors(lost))
        # The last of them: the end of all times is after any.
        return max(begins, key=lambda each: each.elements or ((1 << 64,),), default=None)

    def say(self, sink: Sink, begins: Antichain) -> None:
        """Warn that an output begins later than its inputs did, where it was not asked to."""
        if sink.as_of is not None and begins == Antichain.of(sink.as_of):
            return
        logs = {leaf.path: self._logs[leaf.path] for leaf in leaves_of(sink.view)}
        said = {path: log.core.domain.render_frontier(log.core.since()) for path, log in logs.items()}
        at = sink.view.domain.render_frontier(begins)
        _log.warning("output %r begins at %s: its inputs have forgotten what is before since=%s", sink.name, at, said)

    def said(self, sink: Sink, state: StreamState, begins: Antichain | None) -> tuple[tuple[int, ...], ...] | None:
        """Return what the note of an output's first step says of where it begins; None where it has all.

        That is what its inputs have forgotten, or what it was moved past by hand. Where one of them lacks something and
        it is not known from when on nothing, it is the least time, by which others know that something is missing.
        """
        if begins is not None:
            return begins.elements
        if _has_begun(sink, state):
            return None
        if not state.frontier.less_equal(least_time(sink.view)):
            return state.frontier.elements
        logs = [self._logs[leaf.path] for leaf in leaves_of(sink.view)]
        lacks = any(beginning(log) == log.core.domain.minimum_frontier for log in logs)
        return sink.view.domain.minimum_frontier.elements if lacks else None

    def check_as_of(self, sink: Sink) -> None:
        """Refuse an output of a compute instance that would begin after the time as of which it was accepted."""
        if sink.fence is None or sink.as_of is None:
            return
        for leaf, _ in paths_of(sink.view):
            log = self._logs[leaf.path]
            if may_read(log.core.since(), log.core.domain.minimum_frontier.join(Antichain.of(sink.as_of))):
                continue
            as_of, since = (leaf.domain.render_frontier(each) for each in (Antichain.of(sink.as_of), log.core.since()))
            msg = f"could not begin operator {sink.name!r} as of {as_of}: found since={since} in log {leaf.path!r}"
            raise SinceViolationError(
                msg,
                hint=f"begin as of {since} or later; to have an input retained, let the instance write to its log",
                as_of=as_of,
                since=since,
                context={"path": leaf.path, "operator": sink.name},
            )

    def check_since(self, sink: Sink, state: StreamState, lower: Antichain) -> None:
        """Refuse a step that needs what an input, or its own state, has forgotten: rows would be missed or be wrong.

        Raises
        ------
        SinceViolationError
        """
        for need in self.needs(sink, state, lower):
            log, leaf = self._logs[need.leaf.path], need.leaf
            if not may_read(log.core.since(), need.needed):
                since, wanted = (leaf.domain.render_frontier(each) for each in (log.core.since(), need.at))
                msg = (
                    f"could not continue at operator {sink.name!r}: found since={since} in log {leaf.path!r}, of which "
                    f"it needs what is from {wanted} on"
                )
                raise SinceViolationError(
                    msg,
                    hint="remove the output, or capture into another log, which begins where the input has all that it "
                    "needs; to keep what a dataflow needs, retain it",
                    as_of=wanted,
                    since=since,
                    context={"path": leaf.path, "operator": sink.name},
                )


def first_end(sink: Sink, begins: Antichain) -> Antichain:
    """Return where the first step ends of an output whose inputs have forgotten their beginning.

    Events begin there, whole. Updates add up to what is there: all up to that time stand at it.
    """
    return sink.view.domain.successors(begins.elements[0]) if sink.view.updates and begins.elements else begins


def check_whole(sinks: Sequence[Sink], logs: Mapping[str, Log]) -> None:
    """Refuse outputs that have not begun, need all events from the beginning on, and whose inputs have not all of them.

    Those are what operators over all history remember, and collections that are made of events.

    Parameters
    ----------
    sinks : sequence of Sink
    logs : mapping of str to Log
        By path: all that are read or written.

    Raises
    ------
    SinceViolationError
    """
    for sink in sinks:
        kept = remembers(sink.view)
        needs_all = sink.is_whole if kept is None else kept.history.looks_back is None
        if not needs_all or _has_begun(sink, logs[sink.path].core.stream(sink.stream)):
            continue
        found = _with_gap(sink, {other.path: other for other in sinks}, logs, events=True)
        if found is None:
            continue
        leaf, begins = found
        name, least = sink.view.name, logs[leaf.path].core.domain.minimum_frontier
        first, since = (leaf.domain.render_frontier(each) for each in (least, begins))
        # Without the since, of a copy of a log with times of other types: in which times it begins is not known.
        gap = f"since={since} in" if begins != least else "a copy of a log that had forgotten,"
        rows = "updates" if leaf.updates else "messages"
        msg = (
            f"could not begin operator {name!r}: found {gap} log {leaf.path!r}, of which it needs all {rows} from the "
            "beginning on"
        )
        raise SinceViolationError(
            msg,
            hint="begin from a log that has not forgotten, or from a collection, which forgets times, not contents",
            as_of=first,
            since=since,
            context={"path": leaf.path, "operator": name},
        )


def _has_begun(sink: Sink, state: StreamState | None) -> bool:
    """Whether an output took a step (invariant 5)."""
    return note_of(state, sink).upper is not None


def _with_gap(
    sink: Sink, written: Mapping[str, Sink], logs: Mapping[str, Log], *, events: bool
) -> tuple[Replay, Antichain] | None:
    """Return a log below an output that has not all that events are made of, and from when on; None if there is none.

    That are events, and the collections that events are looked up in; with `events` False all logs, as those below such
    a collection. A log that a dataflow or a query wrote, or a dataflow will write, from one that had forgotten has no
    more than that one.
    """
    waiting = _asked(sink, events=events)
    seen: set[tuple[Replay, bool]] = set()
    while waiting:
        leaf, of_events = waiting.pop()
        if (leaf, of_events) in seen:
            continue
        seen.add((leaf, of_events))
        log = logs[leaf.path]
        begins = beginning(log)
        if begins is not None:
            return leaf, begins
        own = written.get(leaf.path)
        if own is not None and not _has_begun(own, log.core.stream(own.stream)):
            waiting += _asked(own, events=of_events)
    return None


def _asked(sink: Sink, *, events: bool) -> list[tuple[Replay, bool]]:
    """Return the logs of which an output needs all, the last one first; and whether of what is below events alone."""
    dimensions = dimensions_of(sink.view)
    return [
        (leaf, events and not leaf.updates)
        for leaf in reversed(leaves_of(sink.view))
        if not events or not leaf.updates or leaf in dimensions
    ]


def _looked_into(sinks: Sequence[Sink], written: Mapping[str, Sequence[Sink]]) -> set[str]:
    """Return the paths of the outputs that events are looked up in, and of those that these are made from."""
    found: set[str] = set()
    waiting = [leaf.path for sink in sinks for leaf in dimensions_of(sink.view)]
    while waiting:
        path = waiting.pop()
        if path in written and path not in found:
            found.add(path)
            waiting += [leaf.path for sink in written[path] for leaf in leaves_of(sink.view)]
    return found


def _own(sink: Sink, log: Log) -> Replay:
    """Return an output's log as it is read."""
    view = sink.view
    return Replay(sink.name, log.core.domain, view.schema, (), sink.path, view.rows_kind)


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
        return path in self._by_path and all(
            (path, stream) in self._owned for stream in self._logs[path].core.streams()
        )

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
