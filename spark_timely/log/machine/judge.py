"""Detection of foreign changes: finds the entries of a log's Delta table by which other programs changed its rows.

A `Judge` follows the table's log, and compares two sets of files: those that are live, and those that would be if
nobody but this library had changed any row. Maintenance by others, such as OPTIMIZE, changes both alike. Where the sets
differ, the rows of the difference decide whether a change is *open*: neither undone nor accepted, and so refused. What
was put back is open no more, however that was done.

The guard of each handle (`spark_timely.log.store.guard`) makes a judge and feeds it; reads, commits and `acceptance`
learn from its `Judgement`. `strange` checks the rows of files that a judge takes for maintenance.

Invariants
----------
1. What is found depends on the entries alone: not on how they were cut into looks, nor on where following began, as
   long as the entries back to a version that was found whole can be read.
2. Whatever goes wrong while files are read, what was taken in is judged at the next look.
3. Both sets hold the same files but for `_Difference`, which is empty as a rule: an entry costs as much as it has
   actions, and files are read only where another program's entry changed rows.
4. RESTORE is judged as the state was that it went back to, known by its files: what was open there is open again, and
   nothing else. So the RESTORE that heals closes what it heals, and a log that went back is no loss.
5. Of an entry that rewrites files which differ already only one claim is believed: that the rows are the same. So the
   new files differ as the old ones did.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import DataLossError, TimelyError
from spark_timely.log.machine.ledger import Ledger
from spark_timely.log.machine.since import is_later
from spark_timely.log.machine.state import OPEN_STREAM, StreamState, states_by_seq
from spark_timely.protocol.note import Note, as_base
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.store.entries import Entry


REMEMBERED: Final = 50_000
"""How many versions, and how many files that are live no more, a judge remembers: what is older is read again."""

# How often a look weighs what is open before it has taken in all: each costs what is open by then. What comes after is
# weighed together.
_WEIGHED_APART: Final = 100
# Between a path and its deletion vector: no path has it.
_MASKED_BY: Final = "\n"
_PUTS_BACK: Final = ("RESTORE", "CLONE")
_JUDGED_EVENTS: Final = ("message", "progress", "since", "retain")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One entry of the table's log, as the judge takes it.

    Parameters
    ----------
    version : int
    entry : Entry
    added : FileIndex
        Of the files that it adds, in their order: `index_adds`.
    """

    version: int
    entry: Entry
    added: FileIndex


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Reads that the judge may ask for: rarely, and only where entries alone do not suffice.

    Parameters
    ----------
    rows : callable
        Takes the path of a file, the name of its deletion vector ('' without) and its kind of event, and returns its
        rows, in the schema of messages or of progress; None if the file is gone.
    step : callable
        Takes a version, and returns its entry; None if it was cleaned up.
    files : callable
        Takes a version, and returns the files that were live at it; None if that is no longer known.
    keys : callable
        Takes the path of a file of messages, and returns stream, number and times of its rows, part by part; raises
        `DataLossError` if the file is gone.
    """

    rows: Callable[[str, str, str], pa.Table | None]
    step: Callable[[int], Step | None]
    files: Callable[[int], Sequence[FileIndex] | None]
    keys: Callable[[str], Iterable[pa.Table]]


class Watcher(Protocol):
    """Learns what entries do to files of messages; does no I/O while it does."""

    def take(
        self, step: Step, out: Sequence[tuple[FileIndex, int]] | None, new: frozenset[str], *, whole: bool
    ) -> None:
        """Take notice of an entry of another program: see `spark_timely.log.machine.strange`."""

    def vouched(self, step: Step, live: Container[str]) -> None:
        """Take notice of an entry of ours, and of what was live before it."""

    def right(self, paths: Iterable[str]) -> None:
        """Take notice of files that have the rows of those in whose place they are."""


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """An entry of another program that changed rows, and was neither undone nor settled.

    Parameters
    ----------
    version : int
    operation : str
        As its writer calls it.
    timestamp : int or None
        Milliseconds since 1970, by its writer's clock.
    changes : mapping of str to (int, int)
        By kind of event the rows of the files that it took out, and of those that it put in; −1 if not known. Kinds in
        which nothing is open any more are left out.
    restored_at : int or None
        The version of the RESTORE that brought back what had been undone.
    streams : frozenset of str, or None
        Streams whose progress differs by it; None where that may be any.
    restore_to : int or None
        The newest version before at which nothing was open; None if that is not known.
    token : str
        Of all that is open in the log, to accept it. Empty where it cannot be accepted.
    """

    version: int
    operation: str
    timestamp: int | None
    changes: Mapping[str, tuple[int, int]]
    restored_at: int | None = None
    streams: frozenset[str] | None = frozenset()
    restore_to: int | None = None
    token: str = ""


class Judgement(NamedTuple):
    """Findings of a look at the table's log.

    Attributes
    ----------
    open : tuple of ForeignChange
        By version. While there is one, nothing is delivered.
    state : str
        What tells this difference from any other: its entries and its files. Empty where nothing is open.
    commits : tuple of (str, str, int, int), or None
        Ranges of streams and of numbers in which each commit is that may have other messages; None where it may be any.
    put_back : mapping of str to (frozenset of str, frozenset of str)
        By kind of event but messages the files that are missing, and those that should not be there.
    housekeeping : tuple of ForeignChange
        Entries since the look before in which others changed dead letters: to be said, never refused.
    """

    open: tuple[ForeignChange, ...]
    housekeeping: tuple[ForeignChange, ...]
    state: str = ""
    commits: tuple[tuple[str, str, int, int], ...] | None = ()
    put_back: Mapping[str, tuple[frozenset[str], frozenset[str]]] = MappingProxyType({})


class _GoneError(Exception):
    """A file is deleted, or masked by a vector, that would have to be read."""


class Course(NamedTuple):
    """The entries from where a log is judged that is opened.

    Attributes
    ----------
    begin : int
        The version before the first of them.
    steps : tuple of Step
    marked : bool
        Whether an entry of ours says that it was whole there; else the entry of that version is cleaned up.
    """

    begin: int
    steps: tuple[Step, ...]
    marked: bool


class Numbers(NamedTuple):
    """Numbers of live messages, by commit, that differ from what progress says.

    Attributes
    ----------
    differing : mapping of (str, int) to (int, int)
        By stream and number how many there should be, and how many there are. Commits that may be forgotten in part are
        left out.
    beyond : mapping of str to int
        Streams with messages of commits that progress does not have, with the greatest such number.
    """

    differing: Mapping[tuple[str, int], tuple[int, int]]
    beyond: Mapping[str, int]


class _Known(NamedTuple):
    """A file that is known: its statistics, its kind of event, and how many of its rows a vector masks."""

    files: FileIndex
    place: int
    event: str
    masked: int


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A foreign entry that is no maintenance, and what it did to files."""

    version: int
    operation: str
    timestamp: int | None
    changes: Mapping[str, tuple[int, int]]
    # Files that it took out or put in, and what was made of them.
    touched: frozenset[str]
    restored_at: int | None = None

    def rewritten(self, out: AbstractSet[str], into: frozenset[str]) -> _Suspect:
        """Return the same after files were rewritten."""
        return replace(self, touched=self.touched | into) if out & self.touched else self


@dataclass(frozen=True, slots=True)
class _Difference:
    """The files that are missing, those that are there and should not be, and the entries that may have done it."""

    missing: Mapping[str, _Known]
    extra: frozenset[str]
    suspects: tuple[_Suspect, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra)

    def followed_by(self, out: Mapping[str, _Known], into: frozenset[str]) -> _Difference:
        """Return the difference after files were replaced in what is live alone."""
        taken = {key: known for key, known in out.items() if key not in self.extra}
        missing = {key: known for key, known in {**self.missing, **taken}.items() if key not in into}
        extra = (self.extra - out.keys()) | (into - self.missing.keys())
        if not missing and not extra:
            return NOTHING
        return _Difference(missing, extra, tuple(each.rewritten(out.keys(), into) for each in self.suspects))

    def without(self, keys: Iterable[str]) -> _Difference:
        """Return the difference without some files."""
        if not self:
            return self
        gone = frozenset(keys)
        missing = {key: known for key, known in self.missing.items() if key not in gone}
        extra = self.extra - gone
        return replace(self, missing=missing, extra=extra) if missing or extra else NOTHING


NOTHING: Final = _Difference(MappingProxyType({}), frozenset(), ())


def _involved(difference: _Difference) -> list[_Suspect]:
    """Return the suspects that touched what differs, or what another of them has touched.

    Of three that changed the rows of one file, one after the other, the files of the first one and of the last differ.
    """
    files = {*difference.missing, *difference.extra}
    found: list[_Suspect] = []
    left = list(difference.suspects)
    while True:  # at most once per suspect
        more = [each for each in left if not files.isdisjoint(each.touched)]
        if not more:
            return found
        found += more
        left = [each for each in left if files.isdisjoint(each.touched)]
        files.update(*(each.touched for each in more))


@dataclass(slots=True)
class _Move:
    """The files that an entry takes out and puts in, of one kind of event."""

    out: set[str] = field(default_factory=set)
    into: set[str] = field(default_factory=set)
    changes_data: bool = False


class Judge:
    """The judge of a table's log up to a version: it knows which entries of others are open.

    Made by `whole_at` or `opened`. Does no I/O but through `Evidence`.

    Attributes
    ----------
    version : int
        Up to which all was judged.
    clear : int
        The newest version at which nothing was open and no file had a vector, as far as looks have found: what
        `timelyJudged` of the next commit of this handle may say.
    strange : Watcher or None
        Learns what others made, if there is one.
    """

    def __init__(self, form: LogFormat, version: int, *, raised: int = 0, remembered: int = REMEMBERED) -> None:
        self.form = form
        self.version = version
        self.clear = version
        self.strange: Watcher | None = None
        self._raised = raised
        self._remembered = remembered
        # Live files by path, as keys: the path, and its vector where it has one.
        self._live: dict[str, str] = {}
        self._known: dict[str, _Known] = {}
        # Known files that are live no more, those first that went first.
        self._gone: dict[str, None] = {}
        self._difference = NOTHING
        self._mark = 0
        self._n_masked = 0
        # Per version what tells its files from those of any other, and the difference at it.
        self._history: dict[int, tuple[int, _Difference]] = {}
        self._versions: dict[int, int] = {}
        self._waiting: list[Step] = []
        self._dirty = False
        self._open: tuple[ForeignChange, ...] = ()
        # Of which streams progress differs; None where that is not known.
        self._streams: frozenset[str] | None = frozenset()
        self._housekeeping: list[ForeignChange] = []

    @classmethod
    def whole_at(
        cls,
        form: LogFormat,
        version: int,
        files: Iterable[FileIndex],
        *,
        raised: int = 0,
        remembered: int = REMEMBERED,
    ) -> Judge:
        """Return a judge that begins where nothing was open.

        Parameters
        ----------
        form : LogFormat
        version : int
        files : iterable of FileIndex
            Those that were live at the version. None of them has a vector.
        raised : int
            The version at which the log began to be guarded: nothing at or before it is judged.
        remembered : int
            See `REMEMBERED`.

        Notes
        -----
        Cost: a few arrays and dicts, about a microsecond per file.
        """
        judge = cls(form, version, raised=raised, remembered=remembered)
        for index in files:
            paths = index.paths.tolist()
            known = map(_Known, repeat(index), range(len(paths)), index.events.tolist(), repeat(0))
            judge._live.update(zip(paths, paths, strict=True))
            judge._known.update(zip(paths, known, strict=True))
        judge._mark = sum(map(hash, judge._live))
        judge._remember()
        return judge

    @staticmethod
    def since_newest_mark(version: int, raised: int, step: Callable[[int], Step | None]) -> Course:
        """Return the newest version that an entry of ours says to be whole, and the entries after it up to a version.

        Parameters
        ----------
        version : int
        raised : int
            The version at which the log began to be guarded: it counts as whole.
        step : callable
            Takes a version, and returns its entry; None if it was cleaned up.
        """
        steps: list[Step] = []
        begin, at = raised, version
        while at > begin:  # back to the newest mark
            found = step(at)
            if found is None:
                return Course(at, tuple(steps[::-1]), marked=False)
            steps.append(found)
            begin = max(begin, _judged(found))
            at -= 1
        return Course(begin, tuple(steps[::-1]), marked=True)

    @classmethod
    def opened(
        cls,
        form: LogFormat,
        course: Course,
        evidence: Evidence,
        *,
        raised: int = 0,
        remembered: int = REMEMBERED,
    ) -> Judge | Numbers | None:
        """Return a judge of a log that is opened: the entries from where it was whole wait to be judged.

        It begins at the mark; else behind entries of ours after it; else, where files of neither are known any more, as
        early as the files are known, if numbers say that they are whole, or behind an entry that put the table back.

        Parameters
        ----------
        form : LogFormat
        course : Course
            As `since_newest_mark` has found it.
        evidence : Evidence
        raised, remembered : int
            See `whole_at`.

        Returns
        -------
        Judge, Numbers or None
            What is not whole where it would begin; None where progress, or since, is not known there.

        Notes
        -----
        Cost: the files at one version, as a rule. By numbers: progress is read, and of each file of several commits
        which they are.
        """
        whole, tried = course.marked, False
        numbers: Numbers | None = None
        judge: Judge | None = None
        for number in range(len(course.steps) + 1):  # ends at the first as a rule
            behind = course.steps[number - 1] if number else None
            if behind is not None:
                whole = whole and behind.entry.changes_nothing
                if tried and not whole and behind.entry.operation not in _PUTS_BACK:
                    continue
            files = evidence.files(course.begin + number)
            if files is None:
                tried = tried or (number < len(course.steps) and not whole and not _is_quiet(course.steps[number]))
                continue
            judge = cls.whole_at(form, course.begin + number, files, raised=raised, remembered=remembered)
            if not whole:
                try:
                    numbers = judge._numbers(judge._known, set(judge._live), evidence)
                except _GoneError:
                    # Deleted since: later files tell as much, unless an entry says that it changed rows.
                    tried = number < len(course.steps) and not _is_quiet(course.steps[number])
                    continue
                tried = True
            if whole or (numbers is not None and not any(numbers)):
                judge.take(course.steps[number:])
                return judge
        if tried and judge is not None and judge.version < course.begin + len(course.steps):
            files = evidence.files(course.begin + len(course.steps))
            judge = (
                None if files is None else cls.whole_at(form, course.begin + len(course.steps), files, raised=raised)
            )
            numbers = None if judge is None else judge._numbers(judge._known, set(judge._live), evidence)
        return numbers

    @classmethod
    def count(cls, form: LogFormat, version: int, files: Iterable[FileIndex], evidence: Evidence) -> Numbers | None:
        """Return where messages and progress differ at a version; None where progress, or since, is not whole."""
        judge = cls.whole_at(form, version, files)
        try:
            return judge._numbers(judge._known, set(judge._live), evidence)
        except _GoneError:
            return None

    def copied(self) -> Judge:
        """Return the same in an object of its own."""
        other = Judge(self.form, self.version, raised=self._raised, remembered=self._remembered)
        for name, value in vars(self).items():  # a dozen
            shared = not isinstance(value, dict | set | list)
            setattr(other, name, value if shared else value.copy())
        return other

    def take(self, steps: Iterable[Step]) -> None:
        """Take in entries, to be judged at the next look; those that were taken in before are passed over.

        Raises
        ------
        ValueError
            If one between is missing.
        """
        for step in steps:
            newest = self._waiting[-1].version if self._waiting else self.version
            if step.version <= newest:
                continue
            if step.version != newest + 1:
                msg = f"entry of version={step.version} behind version={newest}"
                raise ValueError(msg)
            self._waiting.append(step)

    def look(self, evidence: Evidence) -> Judgement:
        """Judge what was taken in, as of its end.

        Notes
        -----
        Cost: linear in the actions of the entries. Files are read where another program's entry changed rows of
        progress, since or retainers, or rows of a stream that may be forgotten; or after a RESTORE to a version that
        this judge does not remember.
        """
        apart: bool | None = None
        n_open = 0
        while self._waiting:
            if self._dirty and not self._waiting[0].entry.ours and n_open < _WEIGHED_APART:
                apart = self._is_open_in_the_end(evidence) if apart is None else apart
                if apart:
                    self._weigh_if_changed(evidence)
                    n_open += bool(self._open)
            self._judge(self._waiting[0], evidence)
            self._waiting.pop(0)
        self._weigh_if_changed(evidence)
        if not self._open and not self._n_masked:
            self.clear = self.version
        said, self._housekeeping = tuple(self._housekeeping), []
        if not self._open:
            return Judgement((), said)
        return Judgement(self._open, said, self._state(), self._commits(), self._put_back())

    def _is_open_in_the_end(self, evidence: Evidence) -> bool:
        """Return whether anything is open when all is taken in, asked between two entries that may have changed rows.

        Then each of them is weighed: some may have done no harm, and neither the version to go back to nor the token
        may depend on which entries a look takes in together. As long as nothing is open, only what is left counts.
        """
        trial = self.copied()
        trial.strange = None
        for step in trial._waiting:
            trial._judge(step, evidence)
        trial._weigh_if_changed(evidence)
        return bool(trial._open)

    def _weigh_if_changed(self, evidence: Evidence) -> None:
        if self._dirty:
            self._weigh(evidence)
            self._dirty = False
            self._remember()

    def _commits(self) -> tuple[tuple[str, str, int, int], ...]:
        """Return what statistics say of the messages that differ: the streams and numbers between which they are."""
        keys = [key for side in self._parts("message") for key in side]
        ends = [(known.files, known.place) for known in map(self._known.__getitem__, keys)]
        found = ((str(f.stream_lo[i]), str(f.stream_hi[i]), int(f.seq_lo[i]), int(f.seq_hi[i])) for f, i in ends)
        return tuple(sorted(set(found)))

    def _state(self) -> str:
        """Return what tells the difference from any other; of messages alone, if they differ: the rest is put back."""
        found = {event: self._parts(event) for event in _JUDGED_EVENTS}
        found = {"message": found["message"]} if any(found["message"]) else found
        versions = [each.version for each in self._open if not found.keys().isdisjoint(each.changes)]
        parts = {event: [sorted(side) for side in sides] for event, sides in found.items()}
        return hashlib.sha256(json.dumps([versions, parts], sort_keys=True).encode()).hexdigest()

    def _parts(self, event: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the files of a kind of event that are missing, and those that should not be there."""
        return tuple(  # type: ignore[return-value]
            frozenset(key for key in keys if self._known[key].event == event)
            for keys in (self._difference.missing, self._difference.extra)
        )

    def _put_back(self) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
        found = {event: self._parts(event) for event in _JUDGED_EVENTS if event != "message"}
        return {event: sides for event, sides in found.items() if any(sides)}

    def _judge(self, step: Step, evidence: Evidence) -> None:
        """Take one entry in. What it needs is read before anything is changed (invariant 2)."""
        entry = step.entry
        adds = self._added(step)
        moves = self._moves(entry, adds)
        # What a file is known to hold stays: statistics may have been computed again.
        new = {key: known for key, known in adds.items() if key not in self._known or self._rows_known(key) < 0}
        mark = self._mark_after(moves)
        housekeeping = None
        if entry.ours:
            difference = self._after_ours(step, moves)
        elif entry.operation == "RESTORE":
            difference = self._after_restore(step, moves, mark, new, evidence)
        elif entry.operation == "CLONE" and self._is_whole_after(moves, new, evidence):
            # The state of another table, whose entries are not here: a log that is copied again and again.
            difference = NOTHING
        else:
            difference = self._after_others(step, moves, new, evidence)
            dead = moves.get("dead")
            if dead is not None and not self._is_maintenance(dead, new, evidence):
                changes = {"dead": self._counts(dead, new)}
                housekeeping = ForeignChange(step.version, entry.operation, entry.timestamp, changes)
        self._tell(step, moves)
        touched = any(move.out for move in moves.values()) or "since" in moves
        self._dirty = self._dirty or difference != self._difference or bool(difference and touched)
        self._known.update(new)
        self._replace(moves, mark)
        self._difference, self.version = difference, step.version
        self._remember()
        if housekeeping is not None:
            self._housekeeping.append(housekeeping)

    def _tell(self, step: Step, moves: Mapping[str, _Move]) -> None:
        """Tell what keeps strange files what an entry did to messages."""
        move = moves.get("message")
        if self.strange is None:
            return
        if step.entry.ours:
            self.strange.vouched(step, self._live)
        elif move is not None and move.into:
            out = [(known.files, known.place) for known in map(self._known.__getitem__, move.out)]
            # Of what a vector masked neither statistics nor the file tell what was there.
            masked = any(map(_vector, move.out))
            new = frozenset(map(_path, move.into - self._known.keys()))
            self.strange.take(step, None if masked else out, new, whole=not self._difference)

    def _added(self, step: Step) -> dict[str, _Known]:
        found = {}
        events = step.added.events.tolist()
        for place, add in enumerate(step.entry.adds):
            said = add.get("deletionVector")
            key = _key(add["path"], step.entry.vectors.get(add["path"], ""))
            found[key] = _Known(step.added, place, events[place], int(said["cardinality"]) if said else 0)
        return found

    def _moves(self, entry: Entry, adds: Mapping[str, _Known]) -> dict[str, _Move]:
        """Return by kind of event what an entry takes out of the live files, and puts in."""
        moves: dict[str, _Move] = {}
        for removed in entry.removed:
            key = self._live.get(removed.path)
            if key != _key(removed.path, removed.vector):
                key = None
            event = removed.event if key is None else self._known[key].event
            move = moves.setdefault(event, _Move())
            move.changes_data = move.changes_data or removed.data_change
            # What is live no more was taken out by another: it has no rows to take.
            if key is not None:
                move.out.add(key)
        for (key, known), add in zip(adds.items(), entry.adds, strict=True):
            move = moves.setdefault(known.event, _Move())
            move.changes_data = move.changes_data or add.get("dataChange") is not False
            before = self._live.get(_path(key))
            if before == key:  # statistics that were computed again, or a file that is taken out and put in
                move.out.discard(key)
                continue
            if before is not None:
                move.out.add(before)
            move.into.add(key)
        return moves

    def _mark_after(self, moves: Mapping[str, _Move]) -> int:
        taken = sum(hash(key) for move in moves.values() for key in move.out)
        return self._mark + sum(hash(key) for move in moves.values() for key in move.into) - taken

    def _replace(self, moves: Mapping[str, _Move], mark: int) -> None:
        for move in moves.values():
            for key in move.out:
                del self._live[_path(key)]
                self._n_masked -= _MASKED_BY in key
                self._gone[key] = None
        for move in moves.values():
            for key in move.into:
                self._live[_path(key)] = key
                self._n_masked += _MASKED_BY in key
                self._gone.pop(key, None)
        self._mark = mark

    def _after_ours(self, step: Step, moves: Mapping[str, _Move]) -> _Difference:
        """Return the difference after an entry of ours: what it did would have been done in any case."""
        difference = self._difference
        rewritten = [event for event, move in moves.items() if move.out & difference.extra]
        if rewritten and _judged(step) == step.version - 1:
            # Its writer, whose snapshot that was, had looked into what it rewrote.
            return NOTHING
        for event, move in moves.items():
            if event in ("since", "retain"):
                # It says the whole state, and excludes all others: its writer had found the state before to be ours.
                difference = difference.without(move.out | move.into)
            elif event in rewritten:
                difference = difference.followed_by(self._of(move.out), frozenset(move.into))
            else:
                difference = difference.without(move.into)
        return difference

    def _after_others(
        self, step: Step, moves: Mapping[str, _Move], new: Mapping[str, _Known], evidence: Evidence
    ) -> _Difference:
        """Return the difference after an entry of another program that is no RESTORE."""
        difference, entry = self._difference, step.entry
        touched: set[str] = set()
        changes: dict[str, tuple[int, int]] = {}
        for event, move in moves.items():
            if event not in _JUDGED_EVENTS or not (move.out or move.into):
                continue
            kept = self._is_maintenance(move, new, evidence)
            if kept and not move.out & difference.extra:
                difference = difference.without(move.into)
                continue
            difference = difference.followed_by(self._of(move.out), frozenset(move.into))
            if not kept:
                touched |= move.out | move.into
                changes[event] = self._counts(move, new)
        if not difference or not touched:
            return difference
        suspect = _Suspect(step.version, entry.operation, entry.timestamp, changes, frozenset(touched))
        return replace(difference, suspects=(*difference.suspects, suspect))

    def _of(self, keys: Iterable[str]) -> dict[str, _Known]:
        return {key: self._known[key] for key in keys}

    def _counts(self, move: _Move, new: Mapping[str, _Known]) -> tuple[int, int]:
        """Return how many rows an entry takes out and puts in of one kind; −1 where statistics do not say."""
        out, into = ([self._rows_known(key, new) for key in keys] for keys in (move.out, move.into))
        return -1 if -1 in out else sum(out), -1 if -1 in into else sum(into)

    def _is_maintenance(self, move: _Move, new: Mapping[str, _Known], evidence: Evidence) -> bool:
        """Return whether an entry says that it changes no rows of a kind, and takes as many out as it puts in."""
        if move.changes_data:
            return False
        out = self._sum_of_rows(move.out, new, evidence)
        return out is not None and out == self._sum_of_rows(move.into, new, evidence)

    def _sum_of_rows(self, keys: Iterable[str], new: Mapping[str, _Known], evidence: Evidence) -> int | None:
        total = 0
        for key in keys:
            rows = self._rows_known(key, new)
            if rows < 0:
                table = evidence.rows(_path(key), _vector(key), (new.get(key) or self._known[key]).event)
                if table is None:
                    return None
                rows = table.num_rows
            total += rows
        return total

    def _rows_known(self, key: str, new: Mapping[str, _Known] = MappingProxyType({})) -> int:
        known = new.get(key) or self._known[key]
        rows = int(known.files.rows[known.place])
        return rows if rows < 0 else rows - known.masked

    def _after_restore(
        self, step: Step, moves: Mapping[str, _Move], mark: int, new: Mapping[str, _Known], evidence: Evidence
    ) -> _Difference:
        """Return the difference at the version that a RESTORE went back to (invariant 4)."""
        wanted = step.entry.restored
        if wanted is not None and wanted <= self._raised:
            return NOTHING
        found = self._remembered_at(wanted, mark)
        if found is None:
            found = self._from_before(wanted, mark, evidence)
        if found is None:
            if self._is_whole_after(moves, new, evidence):
                return NOTHING
            return self._after_others(step, moves, new, evidence)
        for key, known in found.missing.items():
            self._known.setdefault(key, known)
        suspects = tuple(replace(suspect, restored_at=step.version) for suspect in found.suspects)
        return replace(found, suspects=suspects) if found else NOTHING

    def _is_whole_after(self, moves: Mapping[str, _Move], new: Mapping[str, _Known], evidence: Evidence) -> bool:
        """Return whether numbers say that an entry leaves a state that is whole."""
        live = set(self._live.values())
        for move in moves.values():
            live = (live - move.out) | move.into
        return self._is_whole({**self._known, **new}, live, evidence)

    def _remembered_at(self, wanted: int | None, mark: int) -> _Difference | None:
        """Return the difference at a version with just these files, at the wanted one if it has them."""
        at = self._history.get(wanted) if wanted is not None else None
        if at is not None and at[0] == mark:
            return at[1]
        version = self._versions.get(mark)
        return None if version is None or version not in self._history else self._history[version][1]

    def _from_before(self, wanted: int | None, mark: int, evidence: Evidence) -> _Difference | None:
        """Return the difference at a version before all that is remembered, from marks that lie before it."""
        first = next(iter(self._history))
        steps: list[Step] = []
        tried, at = first, first
        while at > self._raised:
            step = evidence.step(at)
            if step is None:
                return None
            steps.append(step)
            at -= 1
            begin = self._raised if at == self._raised else _judged(step)
            if begin >= tried or begin < self._raised or (wanted is not None and begin > wanted):
                continue
            while at > begin:
                step = evidence.step(at)
                if step is None:
                    return None
                steps.append(step)
                at -= 1
            files = evidence.files(begin)
            if files is None:
                continue
            tried = begin
            judge = type(self).whole_at(self.form, begin, files, raised=self._raised, remembered=self._remembered)
            found = judge._remembered_at(wanted, mark)
            for each in reversed(steps):  # one at a time: each version's difference is wanted
                judge._judge(each, evidence)
                found = judge._remembered_at(wanted, mark) or found if judge._mark == mark else found
            if found is not None:
                return found
        return None

    def _remember(self) -> None:
        self._history[self.version] = (self._mark, self._difference)
        self._versions[self._mark] = self.version
        while len(self._history) > self._remembered:
            version = next(iter(self._history))
            mark, _ = self._history.pop(version)
            if self._versions.get(mark) == version:
                del self._versions[mark]
        while len(self._gone) > self._remembered:
            key = next(iter(self._gone))
            del self._gone[key]
            if key not in self._difference.missing:
                del self._known[key]

    def _weigh(self, evidence: Evidence) -> None:
        """Compare what the rows of the difference say; what says the same is no difference (invariant 3)."""
        parts: dict[str, tuple[set[str], set[str]]] = {event: (set(), set()) for event in _JUDGED_EVENTS}
        for side, keys in enumerate((self._difference.missing, self._difference.extra)):
            for key in keys:
                parts[self._known[key].event][side].add(key)
        same: dict[str, Callable[[], bool]] = {
            "message": lambda: (
                self._is_settled(*parts["message"], evidence) or self._is_same_messages(*parts["message"], evidence)
            ),
            "progress": lambda: self._is_same_progress(*parts["progress"], evidence),
            "since": lambda: self._is_same_since(evidence),
        }
        difference = self._difference
        for event, decide in same.items():
            keys = set().union(*parts[event], *(parts["retain"] if event == "since" else ()))
            if keys and decide():
                difference = difference.without(keys)
        self._difference = difference
        self._open = self._described(difference)

    def _described(self, difference: _Difference) -> tuple[ForeignChange, ...]:
        if not difference:
            return ()
        # Its own version is the newest one here, and others differ at it.
        whole = max((at for at, (_, there) in self._history.items() if not there and at != self.version), default=None)
        events = {self._known[key].event for key in (*difference.missing, *difference.extra)}
        found = [
            ForeignChange(
                suspect.version,
                suspect.operation,
                suspect.timestamp,
                MappingProxyType({event: counts for event, counts in suspect.changes.items() if event in events}),
                suspect.restored_at,
                self._streams if "progress" in suspect.changes and "progress" in events else frozenset(),
                whole,
            )
            for suspect in _involved(difference)
        ]
        return tuple(sorted(found, key=lambda each: each.version))

    def _would_be_live(self, event: str) -> list[str]:
        """Return the files of a kind of event that would be live if nobody but us had changed any row."""
        live = [key for key in self._live.values() if self._known[key].event == event]
        missing = [key for key in self._difference.missing if self._known[key].event == event]
        return [key for key in live if key not in self._difference.extra] + missing

    def _are_live(self, event: str) -> list[str]:
        return [key for key in self._live.values() if self._known[key].event == event]

    def _is_settled(self, missing: set[str], extra: set[str], evidence: Evidence) -> bool:
        """Return whether both have the same rows of a stream that may not be forgotten."""
        if self.form.kind != "stream":
            return False
        since = self._since(evidence)
        if since is None or since == self.form.domain.minimum_frontier:
            return False
        # Rows that stay for sure, and rows that may: of files that reach to both sides, or of which nothing is known.
        stay, may_stay, mixed = [0, 0], [0, 0], False
        read: tuple[list[str], list[str]] = ([], [])
        for side, keys in enumerate((missing, extra)):
            for key in keys:
                known = self._known[key]
                place, rows = slice(known.place, known.place + 1), self._rows_known(key)
                sure = bool(known.files.known[known.place])
                if sure and not since.beyond(known.files.max_times[place])[0]:
                    continue
                read[side].append(key)
                above = sure and bool(since.beyond(known.files.min_times[place])[0])
                mixed = mixed or not above
                stay[side] += max(rows, 0) if above else 0
                may_stay[side] += rows if rows >= 0 else 1 << 62
        if not any(read):
            return True
        # One entry that rewrote files of rows that stay has changed rows; of several one may have changed them back.
        several = sum("message" in each.changes for each in self._difference.suspects) > 1
        if not (mixed or several) or stay[0] > may_stay[1] or stay[1] > may_stay[0]:
            return False
        kept = [self._kept_rows(keys, since, evidence) for keys in read]
        return kept[0] is not None and kept[1] is not None and kept[0].equals(kept[1])

    def _is_same_messages(self, missing: set[str], extra: set[str], evidence: Evidence) -> bool:
        """Return whether both have the same rows after several entries: what one took out another may have put back."""
        if sum("message" in each.changes for each in _involved(self._difference)) < 2:
            return False  # its files are not read: an entry that rewrites rows has changed some
        rows = [[self._rows_known(key) for key in keys] for keys in (missing, extra)]
        if min(*rows[0], *rows[1], 0) < 0 or sum(rows[0]) != sum(rows[1]):
            return False
        kept = [self._kept_rows(sorted(keys), None, evidence) for keys in (missing, extra)]
        same = kept[0] is not None and kept[1] is not None and kept[0].equals(kept[1])
        if same and self.strange is not None:
            self.strange.right(map(_path, extra))
        return same

    def _kept_rows(self, keys: Sequence[str], since: Antichain | None, evidence: Evidence) -> pa.Table | None:
        """Return the messages in files that stay, by hash, and how often each is there; None if a file is gone."""
        parts: list[pa.Table] = []
        for key in keys:
            table = evidence.rows(_path(key), _vector(key), "message")
            if table is None:
                return None
            times = self.form.domain.from_columns(table)
            if since is not None:
                kept = since.beyond(times)
                table, times = table.filter(pa.array(kept)), times[kept]
            hashes = RowHasher(self.form.payload).hash(table).view(np.int64)
            columns = {f"time {i}": times[:, i] for i in range(times.shape[1])}
            columns |= {f"hash {i}": hashes[:, i] for i in range(hashes.shape[1])}
            own = [name for name in ("_stream", "_seq", "_diff") if name in table.schema.names]
            parts.append(pa.table({**{name: table[name] for name in own}, **columns}))
        if not any(part.num_rows for part in parts):
            return pa.table({"n": pa.array([], pa.int64())})  # without files, or without rows: there is no more to tell
        names = parts[0].schema.names
        found = pa.concat_tables(parts).group_by(names).aggregate([([], "count_all")])
        return found.sort_by([(name, "ascending") for name in found.schema.names]).combine_chunks()

    def _is_same_progress(self, missing: set[str], extra: set[str], evidence: Evidence) -> bool:
        """Return whether each progress row is as it was known, and none is missing; how often does not matter."""
        changed = [self._tables(keys, evidence) for keys in (missing, extra)]
        self._streams = None
        if changed[0] is None or changed[1] is None:
            return False
        streams = {name for tables in changed for table in tables or () for name in table["_stream"].to_pylist()}
        common = [key for key in self._are_live("progress") if key not in extra and self._may_hold(key, streams)]
        others = self._tables(common, evidence)
        if others is None:
            return False
        before, after = (_progress_rows([*tables, *others], streams) for tables in (changed[0], changed[1]))
        bases = _bases(before)
        wanted, found = _from_bases_on(before, bases, before), _from_bases_on(after, bases, before)
        self._streams = frozenset(row.stream for row in wanted ^ found)
        return wanted == found

    def _may_hold(self, key: str, streams: set[str]) -> bool:
        index, place = self._known[key].files, self._known[key].place
        return any(index.stream_lo[place] <= stream <= index.stream_hi[place] for stream in streams)

    def _tables(self, keys: Iterable[str], evidence: Evidence) -> list[pa.Table] | None:
        found = []
        for key in keys:
            table = evidence.rows(_path(key), _vector(key), "progress")
            if table is None:
                return None
            found.append(table)
        return found

    def _is_same_since(self, evidence: Evidence) -> bool:
        """Return whether the newest rows of since, and those of retainers with their number, say what they should."""
        would = self._newest_since(self._would_be_live("since"), self._would_be_live("retain"), evidence)
        return would is not None and would == self._newest_since(
            self._are_live("since"), self._are_live("retain"), evidence
        )

    def _newest_since(
        self, since: Sequence[str], retain: Sequence[str], evidence: Evidence
    ) -> tuple[frozenset[tuple[object, ...]], frozenset[tuple[object, ...]]] | None:
        tables = self._newest_tables(since, evidence)
        others = self._tables(retain, evidence)
        if tables is None or others is None:
            return None
        rows = [row for table in tables for row in _values(table)]
        seq = max((int(str(row[1])) for row in rows), default=None)
        return tuple(  # type: ignore[return-value]
            frozenset(row for row in part if row[1] == seq)
            for part in (rows, [row for table in others for row in _values(table)])
        )

    def _newest_tables(self, keys: Sequence[str], evidence: Evidence) -> list[pa.Table] | None:
        """Return the rows of the files that may have the newest number."""
        ends = {key: (k.files.seq_lo[k.place], k.files.seq_hi[k.place]) for key in keys for k in (self._known[key],)}
        least = max((low for low, _ in ends.values()), default=0)
        return self._tables([key for key in keys if ends[key][1] >= least], evidence)

    def _since(self, evidence: Evidence) -> Antichain | None:
        """Return since as our commits have put it; None if that cannot be read any more."""
        keys = self._would_be_live("since")
        if not keys:
            return self.form.domain.minimum_frontier
        return self._since_in(self._newest_tables(keys, evidence))

    def _since_in(self, tables: Sequence[pa.Table] | None) -> Antichain | None:
        if not tables or not any(table.num_rows for table in tables):
            return None
        rows = pa.concat_tables(tables)
        rows = rows.filter(pc.equal(rows["_seq"], pc.max(rows["_seq"])))
        return Antichain.from_times(self.form.domain.from_columns(rows), self.form.domain.arity)

    def _is_whole(self, known: Mapping[str, _Known], live: set[str], evidence: Evidence) -> bool:
        """Return whether each commit that live progress names has as many messages as it says, and no others are live.

        Asked where no entry leads from a mark to a state: values may have changed unseen. Commits that may be
        forgotten, in whole or in part, are passed over.
        """
        try:
            numbers = self._numbers(known, live, evidence)
        except _GoneError:
            return False
        return numbers is not None and not any(numbers)

    def _numbers(self, known: Mapping[str, _Known], live: set[str], evidence: Evidence) -> Numbers | None:
        """Return where live messages and progress differ; None where progress is not whole, or since is not known.

        Raises
        ------
        _GoneError
            If a file is deleted that would have to be read.
        """
        events = (*_JUDGED_EVENTS, "ledger")
        by_event = {event: [key for key in live if known[key].event == event] for event in events}
        parts = {event: self._tables(by_event[event], evidence) for event in events if event != "message"}
        if None in parts.values():
            raise _GoneError
        progress, ledger_rows = parts["progress"], parts["ledger"]
        since = self.form.domain.minimum_frontier
        if by_event["since"]:
            found = self._since_in(parts["since"])
            if found is None or not self._has_all_retainers(parts["since"] or (), parts["retain"] or ()):
                return None
            since = found
        if not progress:
            return None
        ledger = Ledger.of(self.form, ledger_rows or ())
        newest = self._newest_of_whole(progress, ledger)
        there = self._counted(known, by_event["message"], evidence)
        if newest is None:
            return None
        wanted, most = self._wanted(progress, since)
        wanted.update((commit, rows) for commit, rows in ledger.counts.items() if commit in wanted)
        most.update((commit, rows) for commit, rows in ledger.counts.items() if commit in most)
        first = {stream: min(seq for name, seq in (*wanted, *most) if name == stream) for stream in newest}
        beyond: dict[str, int] = {}
        differing: dict[tuple[str, int], tuple[int, int]] = {}
        for (stream, seq), rows in there.items():
            if stream not in newest or seq > newest[stream].seq:
                beyond[stream] = max(seq, beyond.get(stream, seq))
            elif (stream, seq) in most:
                if rows > most[stream, seq]:
                    differing[stream, seq] = (most[stream, seq], rows)
            elif seq >= first[stream] and rows != wanted.get((stream, seq), 0):
                differing[stream, seq] = (wanted.get((stream, seq), 0), rows)
        differing |= {commit: (n_rows, 0) for commit, n_rows in wanted.items() if n_rows and commit not in there}
        should = ledger.messages(self.form, newest)
        if should is not None and should != there.total():
            differing["", -1] = (should, there.total())
        return Numbers(differing, beyond)

    def _has_all_retainers(self, since: Sequence[pa.Table], retain: Sequence[pa.Table]) -> bool:
        """Return whether there are as many retainers as the newest rows of since say."""
        rows = pa.concat_tables(since)
        newest = pc.max(rows["_seq"]).as_py()
        wanted = pc.max(rows.filter(pc.equal(rows["_seq"], newest))["_count"]).as_py() or 0
        every = [table.filter(pc.equal(table["_seq"], newest)) for table in retain]
        notes = {note for table in every for note in table["_note"].to_pylist()}
        return self.form.before is None or len(notes) == wanted

    def _counted(
        self, known: Mapping[str, _Known], keys: Iterable[str], evidence: Evidence
    ) -> Counter[tuple[str, int]]:
        """Return how many messages each commit has in files."""
        there: Counter[tuple[str, int]] = Counter()
        for key in keys:
            index, place, _, masked = known[key]
            if index.rows[place] >= 0 and index.seq_lo[place] == index.seq_hi[place] and index.lone_streams()[place]:
                there[index.stream_lo[place], int(index.seq_lo[place])] += int(index.rows[place]) - masked
                continue
            if _vector(key):
                raise _GoneError
            try:
                for part in evidence.keys(_path(key)):
                    found = part.group_by(["_stream", "_seq"]).aggregate([([], "count_all")])
                    names = found["_stream"].cast(pa.string()).to_pylist()
                    commits = zip(names, found["_seq"].to_pylist(), strict=True)
                    there.update(dict(zip(commits, found["count_all"].to_pylist(), strict=True)))
            except DataLossError as error:
                raise _GoneError from error
        return there

    def _newest_of_whole(self, tables: Sequence[pa.Table], ledger: Ledger) -> dict[str, StreamState] | None:
        """Return the newest state of each stream; None where a commit, a part of one, or a stream is missing."""
        newest: dict[str, StreamState] = {}
        try:
            states = states_by_seq(self.form, pa.concat_tables(tables))
        except TimelyError:
            return None
        whole = True
        for state in states:
            before = newest.get(state.stream)
            follows = before is None or (before.seq + 1 == state.seq and before.counts == state.before)
            begins = before is not None or not state.seq or state.note.base
            whole = whole and follows and begins and state.is_as_written
            newest[state.stream] = state
        if self.form.before is None:
            return newest  # from an earlier library, and nobody knows how many there were
        claimed = newest[OPEN_STREAM].note.total if OPEN_STREAM in newest else 0
        n_streams = len(newest.keys() - {OPEN_STREAM})
        whole = whole and OPEN_STREAM in newest and n_streams == self.form.before[1] + claimed + len(ledger.joined)
        return newest if whole else None

    def _wanted(
        self, tables: Sequence[pa.Table], since: Antichain
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        """Return how many messages each commit has; and how many at most those that may be forgotten in part."""
        domain = self.form.domain
        rows = pa.concat_tables(tables)
        bases = _bases(_progress_rows(tables, set(rows["_stream"].to_pylist())))
        (low, _) = domain.bound_columns
        bounded = np.ones(rows.num_rows, np.bool_)
        for name in low:
            bounded &= np.asarray(rows[name].is_valid().to_numpy(), np.bool_)
        stays = np.zeros(rows.num_rows, np.bool_)
        lows = domain.from_columns(rows.filter(pa.array(bounded)), low)
        minimum = since == domain.minimum_frontier
        if bounded.any():
            later = since.beyond(lows) if self.form.kind == "stream" or minimum else is_later(since, lows)
            stays[bounded] = later
        found: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]] = ({}, {})
        named = zip(rows["_stream"].to_pylist(), rows["_seq"].to_pylist(), rows["_rows"].to_pylist(), strict=True)
        for (stream, seq, n_rows), has_bounds, stay in zip(named, bounded.tolist(), stays.tolist(), strict=True):
            if seq >= bases.get(stream, seq):
                found[not (stay or not has_bounds)][stream, seq] = n_rows or 0
        return found


def newest_since(form: LogFormat, files: FileIndex, evidence: Evidence) -> Antichain | None:
    """Return since where messages may be forgotten; None where none may, or it cannot be read."""
    if form.kind != "stream" or not len(files):
        return None
    tables = [evidence.rows(path, "", "since") for path in files.paths.tolist()]
    found = Judge(form, 0)._since_in([table for table in tables if table is not None])
    return None if found == form.domain.minimum_frontier else found


def wanted_messages(form: LogFormat, progress: Sequence[pa.Table], since: Antichain) -> dict[tuple[str, int], int]:
    """Return how many messages each commit has by progress that may not be forgotten in part."""
    return Judge(form, 0)._wanted(progress, since)[0]


def _is_quiet(step: Step) -> bool:
    """Return whether an entry is ours, or says of all that it does to judged kinds that it changes no rows."""
    entry, events = step.entry, step.added.events.tolist()
    added = [add for add, event in zip(entry.adds, events, strict=True) if event in _JUDGED_EVENTS]
    loud = any(each.data_change and each.event in _JUDGED_EVENTS for each in entry.removed)
    return step.entry.changes_nothing or not (loud or any(add.get("dataChange") is not False for add in added))


def _judged(step: Step) -> int:
    """Return up to which version an entry says that nothing was open; −1 if it does not say."""
    entry = step.entry
    return entry.judged if entry.ours and entry.judged is not None else -1


def _key(path: str, vector: str) -> str:
    return f"{path}{_MASKED_BY}{vector}" if vector else path


def _path(key: str) -> str:
    return key.partition(_MASKED_BY)[0]


def _vector(key: str) -> str:
    return key.partition(_MASKED_BY)[2]


def _values(table: pa.Table) -> list[tuple[object, ...]]:
    """Return the rows of a table, stream and number first; times as numbers, for not each is a Python value."""
    names = ["_stream", "_seq", *sorted(set(table.schema.names) - {"_stream", "_seq"})]
    columns = []
    for name in names:
        column = table[name]
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_temporal(column.type):
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


class _Row(NamedTuple):
    """A progress row: whose, its number, its note, and the rest."""

    stream: str
    seq: int
    note: str | None
    others: tuple[object, ...]


def _progress_rows(tables: Sequence[pa.Table], streams: set[str]) -> set[_Row]:
    found = set()
    for table in tables:
        notes = table["_note"].to_pylist()
        rest = table.drop_columns(["_note"])
        for note, (stream, seq, *others) in zip(notes, _values(rest), strict=True):
            if stream in streams:
                found.add(_Row(str(stream), int(str(seq)), note, tuple(others)))
    return found


def _bases(rows: Iterable[_Row]) -> dict[str, int]:
    """Return the number of the base commit of each stream that has one."""
    bases: dict[str, int] = {}
    for row in rows:
        if row.note is not None and '"base":true' in row.note and Note.parse(row.note).base:
            bases[row.stream] = max(row.seq, bases.get(row.stream, 0))
    return bases


def _from_bases_on(rows: Iterable[_Row], bases: Mapping[str, int], known: AbstractSet[_Row]) -> set[_Row]:
    """Return rows without those that are forgotten, and without base commits as they were before they became ones."""
    found = set()
    for row in rows:
        base = bases.get(row.stream, -1)
        if row.seq < base:
            continue
        if row.seq == base and row.note is not None:
            as_base = row._replace(note=_as_base(row.note))
            if as_base != row and as_base in known:
                continue
        found.add(row)
    return found


def _as_base(note: str) -> str:
    try:
        return as_base(note)
    except (ValueError, TypeError):
        return note  # none of ours
