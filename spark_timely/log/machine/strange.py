"""Check of message files that other programs rewrote: they must hold the rows of the files that they replaced.

Such a file is *strange* until it was looked into. The guard of a handle (`spark_timely.log.store.guard`) has one
`Strange`, and asks it before rows are handed out; `judge`, beside it, finds entries that say that they changed rows.

An entry's word that it changes no rows is not believed, and as many rows may be others. So before the first row of such
a file is handed out, the rows of each commit are counted in it, with the bounds of their times, and in the files in
whose place it is.

Invariants
----------
1. Maintenance is never refused. Where it is no longer known which files were replaced, only rows are refused that are
   too many or too few for their commit, where no other file may have them. Rows that the log may have forgotten count
   nowhere.
2. A file is read for this once by a handle and its copies, and only where its rows are wanted, or those in whose place
   it is.
3. A handle does not vouch for files that it has not looked into: the mark in each of its commits names them, for
   readers of the mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import DataLossError
from spark_timely.log.files.format import has_our_name
from spark_timely.log.files.index import FileIndex, joined
from spark_timely.log.machine.judge import (
    ForeignChange,
    newest_since,
    wanted_messages,
)
from spark_timely.log.machine.ledger import Ledger
from spark_timely.threads import ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import LiveFiles
    from spark_timely.log.machine.judge import Course, Evidence, Step
    from spark_timely.log.store.entries import Removed
    from spark_timely.time.antichain import Antichain, BoolArray, IntArray
    from spark_timely.time.domain import TimeDomain


MOST_UNLOOKED: Final = 64
"""How many versions a mark names into whose files nobody has looked; older ones are believed as their entries are."""

# How many files a handle remembers to have looked into, and how many entries of others; older ones are believed.
_REMEMBERED: Final = 50_000
_MOST_MADE: Final = 1000
# Where more files than this were replaced, one listing of the version before says what is known of them.
_FEW: Final = 8
# There are places for as many commits as this, however few the rows are.
_COUNTED: Final = 1 << 16
# Rows of one commit one after the other, on the average, from which on runs are worth it.
_RUN: Final = 8


# Counts ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Numbers of messages of each commit, and the bounds of their times: in order of stream and number.

    Attributes
    ----------
    streams : ndarray of object (str or None), shape (n,)
    seqs, rows : ndarray of int64, shape (n,)
    lows, highs : ndarray of int64, shape (n, k)
    """

    streams: np.ndarray
    seqs: IntArray
    rows: IntArray
    lows: IntArray
    highs: IntArray

    @classmethod
    def joined(cls, parts: Sequence[Counts], arity: int) -> Counts:
        """Return the sum of counts, in any order and each commit in any number of them."""
        none = np.empty((0, arity), np.int64)
        streams = np.concatenate([np.empty(0, object), *(part.streams for part in parts)])
        seqs = np.concatenate([np.empty(0, np.int64), *(part.seqs for part in parts)])
        rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
        lows = np.concatenate([none, *(part.lows for part in parts)])
        highs = np.concatenate([none, *(part.highs for part in parts)])
        if not len(seqs):
            return cls(streams, seqs, rows, lows, highs)
        names = [*sorted({*streams.tolist()} - {None}), None]
        numbers = {name: number for number, name in enumerate(names)}
        codes = np.array([numbers[name] for name in streams.tolist()], np.int64)
        order = np.lexsort([seqs, codes])
        codes, seqs = codes[order], seqs[order]
        first = np.flatnonzero(np.append(True, (codes[1:] != codes[:-1]) | (seqs[1:] != seqs[:-1])))
        every = np.empty(len(names), object)
        every[:] = names
        return cls(
            every[codes[first]],
            seqs[first],
            np.add.reduceat(rows[order], first),
            np.minimum.reduceat(lows[order], first),
            np.maximum.reduceat(highs[order], first),
        )

    def may_be(self, others: Counts, *, exactly: bool) -> bool:
        """Return whether the others are as many of the same commits, at times within these bounds."""
        same = np.array_equal(self.streams, others.streams) and np.array_equal(self.seqs, others.seqs)
        if not same or not np.array_equal(self.rows, others.rows):
            return False
        if exactly:
            return np.array_equal(self.lows, others.lows) and np.array_equal(self.highs, others.highs)
        return bool((self.lows <= others.lows).all() and (self.highs >= others.highs).all())


def count(domain: TimeDomain, rows: pa.Table, since: Antichain | None) -> Counts:
    """Count rows by commit.

    Parameters
    ----------
    domain : TimeDomain
    rows : pyarrow.Table
        `_stream`, `_seq` and the times.
    since : Antichain or None
        Only times beyond it count; all unless given.

    Notes
    -----
    Cost: some passes over arrays of numbers; a sort where the numbers of the commits lie far apart.
    """
    streams = rows["_stream"].combine_chunks()
    if not pa.types.is_dictionary(streams.type):
        streams = streams.dictionary_encode()
    names = np.array([*streams.dictionary.to_pylist(), None], object)
    alone = len(names) == 2 and not streams.null_count
    seqs = np.asarray((rows["_seq"].fill_null(-1) if rows["_seq"].null_count else rows["_seq"]).to_numpy(), np.int64)
    codes = np.broadcast_to(np.int64(0), (len(seqs),))
    if not alone:  # what is null stands for the name behind all others
        codes = np.asarray(streams.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False), np.int64)
    times = domain.from_columns(rows)
    if since is not None and len(times) and not since.beyond(times.min(axis=0, keepdims=True))[0]:
        kept = since.beyond(times)
        codes, seqs, times = codes[kept], seqs[kept], times[kept]
    if not len(seqs):
        none = np.empty((0, domain.arity), np.int64)
        return Counts(np.empty(0, object), np.empty(0, np.int64), np.empty(0, np.int64), none, none)
    # Commits that were put behind one another: their runs are few, and each is reduced at once.
    ends = seqs[1:] != seqs[:-1]
    starts = _starts(ends if alone else ends | (codes[1:] != codes[:-1]))
    lows: IntArray = times
    highs: IntArray = times
    n_rows: IntArray = np.broadcast_to(np.int64(1), (len(seqs),))
    if len(starts) * _RUN <= len(seqs):
        n_rows = np.diff(starts, append=len(seqs))
        codes, seqs = codes[starts], seqs[starts]
        lows, highs = _bounds_of(times, starts)
    least = int(seqs.min())
    span = int(seqs.max()) - least + 1
    n_keys = span * (1 if alone else len(names))
    if n_keys > max(_COUNTED, len(seqs)):
        order = np.lexsort([seqs, codes])
        codes, seqs = codes[order], seqs[order]
        first = _starts((codes[1:] != codes[:-1]) | (seqs[1:] != seqs[:-1]))
        return Counts(
            names[codes[first]],
            seqs[first],
            np.add.reduceat(n_rows[order], first),
            np.minimum.reduceat(lows[order], first),
            np.maximum.reduceat(highs[order], first),
        )
    # A place for each commit that there may be: one pass for each number, in any order of theirs.
    keys = seqs - least if alone else codes * span + (seqs - least)
    counted = np.zeros(n_keys, np.int64)
    np.add.at(counted, keys, n_rows)
    least_times = np.full((domain.arity, n_keys), np.iinfo(np.int64).max)
    greatest_times = np.full((domain.arity, n_keys), np.iinfo(np.int64).min)
    for place in range(domain.arity):
        np.minimum.at(least_times[place], keys, lows[:, place])
        np.maximum.at(greatest_times[place], keys, highs[:, place])
    there = np.flatnonzero(counted)
    return Counts(
        names[there // span], there % span + least, counted[there], least_times[:, there].T, greatest_times[:, there].T
    )


def _starts(ends: BoolArray) -> IntArray:
    """Return where runs start, given for all rows but the last whether a run ends with them."""
    return np.concatenate([[0], np.flatnonzero(ends) + 1])


def _bounds_of(times: IntArray, starts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the bounds of the times of runs."""
    if times.shape[1] > 1:
        return np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
    column = times[:, 0]  # twice as fast as along an axis
    return np.minimum.reduceat(column, starts)[:, None], np.maximum.reduceat(column, starts)[:, None]


def count_by_statistics(index: FileIndex, since: Antichain | None) -> tuple[Counts, BoolArray]:
    """Count the rows of files by their statistics; return too which files have none that suffice."""
    counted = np.array([stream is not None for stream in index.lone_streams()], np.bool_)
    counted &= (index.seq_lo == index.seq_hi) & (index.rows >= 0) & index.known
    chosen = counted.copy()
    if since is not None and len(index):
        above, may_be_above = since.beyond(index.min_times), since.beyond(index.max_times)
        # Of a file that reaches to both sides of since a part counts.
        counted &= above | ~may_be_above
        chosen = counted & above
    chosen &= index.rows > 0
    part = index.select(chosen)
    return Counts(part.stream_lo, part.seq_lo, part.rows, part.min_times, part.max_times), ~counted


# Files of others ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """The files of messages that one entry of another program took out and put in.

    Parameters
    ----------
    version : int
    operation : str
    timestamp : int or None
    replaced : sequence of (FileIndex, int), or None
        The files that it took out, by index and place; None where it went back to a state, or vectors masked rows of
        these.
    known : bool
        Whether statistics of these are there, rather than their paths alone.
    made : FileIndex
        The files that it put in, and that were not known before.
    whole : int or None
        The version before it, if nothing was open there.
    """

    version: int
    operation: str
    timestamp: int | None
    replaced: Sequence[tuple[FileIndex, int]] | None
    known: bool
    made: FileIndex
    whole: int | None

    @property
    def out(self) -> list[str]:
        return [] if self.replaced is None else [str(files.paths[place]) for files, place in self.replaced]

    def index(self, arity: int) -> FileIndex:
        """Return the files that were replaced."""
        places: dict[int, tuple[FileIndex, list[int]]] = {}
        for files, place in self.replaced or ():
            places.setdefault(id(files), (files, []))[1].append(place)
        return joined([files.select(np.array(each)) for files, each in places.values()], arity)

    def change(self) -> ForeignChange:
        changes = MappingProxyType({"message": (-1, -1)})
        return ForeignChange(self.version, self.operation, self.timestamp, changes, restore_to=self.whole)


class _Wrong(NamedTuple):
    """A change that is open while some files are live; the entry that made the last of them; the files since then."""

    change: ForeignChange
    version: int
    since: frozenset[str]


def _since_files(live: LiveFiles) -> frozenset[str]:
    return frozenset(live.index("since").paths.tolist())


def _is_message(removed: Removed) -> bool:
    """Return whether a file that is removed is one of messages; its folder tells where the action does not."""
    return (removed.event or removed.path.removeprefix("_event=").partition("/")[0]) == "message"


class Strange:
    """The message files that others made, as a handle follows the table, and what was found in them.

    A file is strange if another program's entry put it in and its name is none of ours; until it was looked into by
    this handle, or by one whose mark it has read.
    """

    def __init__(self) -> None:
        # By version what others made, and versions of which only that is known.
        self._made: dict[int, _Made] = {}
        self._named: frozenset[int] = frozenset()
        # Entries that are known to have changed rows: what is made of theirs is compared with what they left.
        self.passed: frozenset[int] = frozenset()
        # Of these entries that are cleaned up: whether what they made is right numbers have to tell.
        self.unread: frozenset[int] = frozenset()
        # Those among these that are to be looked at, or more; None: not known yet.
        self._listed: frozenset[int] | None = None
        # By path the version that made a file.
        self._origin: dict[str, int] = {}
        # Files that have the rows which they should; and such that have not, together.
        self._good: dict[str, None] = {}
        self._bad: dict[frozenset[str], _Wrong] = {}

    def copied(self) -> Strange:
        """Return the same in an object of its own."""
        other = Strange()
        other._named, other._listed = self._named, self._listed
        other.unread, other.passed = self.unread, self.passed
        for name in ("_made", "_origin", "_good", "_bad"):
            setattr(other, name, dict(getattr(self, name)))
        return other

    def forget(self) -> None:
        """Forget what others made, but not what was found: no two files have one name."""
        self._made, self._named, self._origin, self._listed = {}, frozenset(), {}, None
        self.unread = frozenset()

    # Following

    def begin(self, course: Course, version: int, raised: int = 0) -> None:
        """Take over what nobody had looked into where a judge begins.

        Parameters
        ----------
        course : Course
        version : int
            Where the judge begins: of entries up to there it says nothing.
        raised : int
            The version at which the log began to be guarded.
        """
        marks = [step.entry for step in reversed(course.steps) if step.entry.ours and step.entry.judged is not None]
        mark = max(marks, key=lambda entry: entry.judged or 0, default=None)  # the newest of those that say the same
        named = {each.version for each in course.steps if each.version <= version and not each.entry.changes_nothing}
        named |= frozenset() if mark is None else mark.unlooked
        self._named, self.unread = frozenset(each for each in named if each > raised), frozenset()

    def take(
        self, step: Step, out: Sequence[tuple[FileIndex, int]] | None, new: frozenset[str], *, whole: bool
    ) -> None:
        """Take notice of an entry of another program.

        Parameters
        ----------
        step : Step
        out : sequence of (FileIndex, int), or None
            The live files of messages that it took out, by index and place; None where vectors masked rows of theirs.
        new : frozenset of str
            The files of messages that it put in and that were never seen live.
        whole : bool
            Whether nothing was open before it.
        """
        self._listed = None  # what was live before may be so again
        new = frozenset(path for path in new if path not in self._origin)
        if all(map(has_our_name, new)):
            return
        entry = step.entry
        made = step.added.select(np.array([path in new for path in step.added.paths.tolist()], np.bool_))
        known = entry.operation not in ("RESTORE", "CLONE")
        self._keep(
            _Made(
                step.version,
                entry.operation,
                entry.timestamp,
                out if known else None,
                known,
                made,
                step.version - 1 if whole else None,
            )
        )

    def _keep(self, made: _Made) -> None:
        self._made[made.version] = made
        self._listed = None
        while len(self._made) > _MOST_MADE:
            for path in self._made.pop(next(iter(self._made))).made.paths.tolist():
                self._origin.pop(path, None)
        for path in made.made.paths.tolist():
            self._origin.setdefault(path, made.version)

    def vouched(self, step: Step, live: Container[str]) -> None:
        """Take notice of an entry of ours: what is live and its writer has looked into is strange no more.

        Parameters
        ----------
        step : Step
        live : container of str
            The paths that were live before it.
        """
        entry = step.entry
        # Files that were live behind its writer's snapshot only are not what it speaks of.
        if not (self._named or self._made) or not entry.ours or entry.judged != step.version - 1:
            return
        self._named &= entry.unlooked
        for version in list(self._made if self._listed is None else self._listed):
            if version not in entry.unlooked:
                paths = self._made[version].made.paths.tolist()
                self.right(path for path in paths if path in live)

    def right(self, paths: Iterable[str]) -> None:
        """Take notice of files that have the rows of those in whose place they are."""
        self._listed = None
        self._good.update(dict.fromkeys(paths))
        for path in list(islice(self._good, max(len(self._good) - _REMEMBERED, 0))):
            del self._good[path]

    def unlooked(self, judged: int, live: LiveFiles) -> tuple[int, ...]:
        """Return the versions up to one that made live files into which nobody has looked, as far as is known."""
        found = self._named | self._waiting(live)
        return tuple(sorted(version for version in found if version <= judged)[-MOST_UNLOOKED:])

    def _waiting(self, live: LiveFiles) -> frozenset[int]:
        """Return the entries that are to be looked at, or more: files may have gone since."""
        if self._listed is None:
            found = set[int]()
            takers = self._takers(live)
            for version, made in self._made.items():
                if version not in found and self._waits(made, live):
                    found |= self._group(version, live, takers)
            self._listed = frozenset(found)
        return self._listed

    def _waits(self, made: _Made, live: LiveFiles) -> bool:
        return any(self._is_strange(path) and path in live for path in made.made.paths.tolist())

    def _is_strange(self, path: str) -> bool:
        return path not in self._good and not has_our_name(path)

    def open(self, form: LogFormat, live: LiveFiles, evidence: Evidence) -> tuple[ForeignChange, ...]:
        """Return what was found wrong in live files; where since has moved meanwhile these are looked into again."""
        found = {}
        for paths, wrong in list(self._bad.items()):  # none, as a rule
            if not all(path in live for path in paths):
                continue
            if wrong.since != _since_files(live) and wrong.version in self._made:
                del self._bad[paths]
                since = newest_since(form, live.index("since"), evidence)
                self._look_into(self._group(wrong.version, live, self._takers(live)), form, live, evidence, since)
            if paths in self._bad:
                found[wrong.change.version] = wrong.change
        return tuple(found[version] for version in sorted(found))

    def state(self, live: LiveFiles) -> str:
        """Return what tells what is wrong in live files from anything else that may be."""
        return "\n".join(sorted(str(sorted(paths)) for paths in self._bad if all(path in live for path in paths)))

    # Looking

    def look(
        self,
        form: LogFormat,
        live: LiveFiles,
        evidence: Evidence,
        chosen: Callable[[FileIndex], BoolArray] | None = None,
    ) -> None:
        """Look into the strange files of which rows are wanted, or of those in whose place they are.

        Parameters
        ----------
        form : LogFormat
        live : LiveFiles
        evidence : Evidence
        chosen : callable, optional
            Says of which files rows are wanted; of all unless given.

        Notes
        -----
        Cost: two or three columns of these files, and of replaced ones whose statistics do not tell.
        """
        for version in sorted(self._named - self.unread):
            self._read(form, version, evidence)
        waiting = self._waiting(live)
        if not waiting:
            return
        since: Antichain | None = None
        done: set[int] = set()
        takers = self._takers(live)
        for version in sorted(waiting):
            if version in done or version in self.passed or not self._waits(self._made[version], live):
                continue
            group = self._group(version, live, takers)
            done |= group
            if chosen is not None and not self._is_wanted(form, group, chosen):
                continue
            if since is None:
                since = newest_since(form, live.index("since"), evidence)
            self._look_into(group, form, live, evidence, since)

    def _look_into(
        self, group: set[int], form: LogFormat, live: LiveFiles, evidence: Evidence, since: Antichain | None
    ) -> None:
        entries = [self._made[version] for version in sorted(group)]
        paths = [path for each in entries for path in each.made.paths.tolist() if path in live]
        if frozenset(paths) in self._bad:
            return
        right = _Look(form, live, evidence, since, entries).is_right()
        if right:
            self.right(paths)
        elif right is not None:
            # The first of them is the one before which nothing is wrong.
            self._bad[frozenset(paths)] = _Wrong(entries[0].change(), max(group), _since_files(live))

    def _read(self, form: LogFormat, version: int, evidence: Evidence) -> None:
        """Read what an entry made of which a mark says that nobody has looked into it."""
        step = None if version in self._made else evidence.step(version)
        if step is None and version not in self._made:
            self.unread |= {version}  # cleaned up: numbers are left to tell
            return
        if step is not None and not step.entry.ours:
            chosen = (step.added.events == "message") & np.array(
                [path not in self._origin for path in step.added.paths.tolist()], np.bool_
            )
            before = evidence.step(version - 1)
            whole = before is not None and before.entry.ours and before.entry.judged == version - 2
            known = step.entry.operation not in ("RESTORE", "CLONE")
            out = [each for each in step.entry.removed if _is_message(each)]
            known = known and not any(each.vector for each in out)
            files = FileIndex.of_paths([each.path for each in out], "message", form.domain.arity)
            self._keep(
                _Made(
                    version,
                    step.entry.operation,
                    step.entry.timestamp,
                    [(files, place) for place in range(len(files))] if known else None,
                    known=False,
                    made=step.added.select(chosen),
                    whole=version - 1 if whole else None,
                )
            )
        self._named, self._listed = self._named - {version}, None

    def believed(self) -> None:
        """Take notice that numbers are right where entries are cleaned up that nobody has looked into."""
        self._named, self.unread, self._listed = self._named - self.unread, frozenset(), None

    def _group(self, version: int, live: LiveFiles, takers: Mapping[str, int]) -> set[int]:
        """Return the entries that are looked at together: those that made of each other's files."""
        group, waiting = set[int](), [version]
        while waiting:
            at = waiting.pop()
            if at in group or at in self.passed:
                continue
            group.add(at)
            made = self._made[at]
            waiting += [self._origin[path] for path in made.out if path in self._origin and path not in self._good]
            waiting += [takers[path] for path in made.made.paths.tolist() if path in takers and path not in live]
        return group

    def _takers(self, live: LiveFiles) -> dict[str, int]:
        """Return by path of another's file that is live no more which entry took it, of those of which something is."""
        takers: dict[str, int] = {}
        for version in sorted(self._made, reverse=True):
            made = self._made[version]
            if any(path in live or path in takers for path in made.made.paths.tolist()):
                takers.update({path: version for path in made.out if path in self._origin and path not in live})
        return takers

    def _is_wanted(self, form: LogFormat, group: set[int], chosen: Callable[[FileIndex], BoolArray]) -> bool:
        for made in map(self._made.__getitem__, sorted(group)):
            parts = (made.made, made.index(form.domain.arity))
            if made.replaced is None or any(len(part) and bool(chosen(part).any()) for part in parts):
                return True
        return False


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """A look at what some entries of others made of each other's files."""

    form: LogFormat
    live: LiveFiles
    evidence: Evidence
    since: Antichain | None
    group: Sequence[_Made]

    def is_right(self) -> bool | None:
        """Return whether what is live has the rows of what was replaced; None if a live file is gone."""
        arity = self.form.domain.arity
        made = joined([each.made for each in self.group], arity)
        paths = set(made.paths.tolist())
        live = made.select(np.array([path in self.live for path in made.paths.tolist()], np.bool_))
        found = self._read(live)
        if found is None:
            return None  # the reader of the file reports that it is missing
        taken = {path for each in self.group for path in each.out}
        wanted = None
        if all(path in taken or path in self.live for path in paths) and all(
            each.replaced is not None for each in self.group
        ):
            wanted = self._wanted(paths)
        if wanted is not None:
            counts, exactly = wanted
            return counts.may_be(found, exactly=exactly)
        return self._is_right_by_progress(live, found)

    def _read(self, files: FileIndex) -> Counts | None:
        """Count the rows of files; None if one is gone."""
        parts = (part for path in files.paths.tolist() for part in self.evidence.keys(path))
        try:
            # To read and to count take equally long: each on a core of its own.
            found = [count(self.form.domain, part, self.since) for part in ahead(parts)]
        except DataLossError:
            return None
        return Counts.joined(found, self.form.domain.arity)

    def _wanted(self, made: set[str]) -> tuple[Counts, bool] | None:
        """Count the rows of the files that were replaced, by their statistics or by reading them; None if one is gone.

        Returns
        -------
        counts : Counts
        exactly : bool
            Whether the bounds of the times are known exactly.
        """
        parts: list[Counts] = []
        exactly = True
        for each in self.group:
            index = each.index(self.form.domain.arity)
            index = index.select(np.array([path not in made for path in index.paths.tolist()], np.bool_))
            if not each.known and len(index) > _FEW:
                index = self._described(each.version - 1, index)
            counts, left = count_by_statistics(index, self.since)
            exactly = exactly and bool(left.all())
            read = self._read(index.select(left))
            if read is None:
                return None
            parts += [counts, read]
        return Counts.joined(parts, self.form.domain.arity), exactly

    def _described(self, version: int, index: FileIndex) -> FileIndex:
        """Return files with their statistics, if those of a version are still known."""
        files = self.evidence.files(version)
        if files is None:
            return index
        paths = set(index.paths.tolist())
        every = joined(files, self.form.domain.arity)
        found = every.select(np.array([path in paths for path in every.paths.tolist()], np.bool_))
        return found if len(found) == len(paths) else index

    def _is_right_by_progress(self, files: FileIndex, found: Counts) -> bool:
        """Return whether commits that no other live file may have are as progress says: as many rows, at such times."""
        progress = []
        for path in self.live.index("progress").paths.tolist():
            rows = self.evidence.rows(path, "", "progress")
            if rows is None:
                return True  # the reader of progress reports that
            progress.append(rows)
        since = self.form.domain.minimum_frontier if self.since is None else self.since
        wanted = wanted_messages(self.form, progress, since)
        ledger = [self.evidence.rows(path, "", "ledger") for path in self.live.index("ledger").paths.tolist()]
        restated = Ledger.of(self.form, [rows for rows in ledger if rows is not None]).counts
        wanted |= {commit: n_rows for commit, n_rows in restated.items() if commit in wanted}
        index = self.live.index("message")
        others = index.select(~np.isin(index.paths, files.paths))
        elsewhere = _may_have(others, wanted)
        commits = list(zip(found.streams.tolist(), found.seqs.tolist(), strict=True))
        there = dict(zip(commits, found.rows.tolist(), strict=True))
        if any(there.get(commit, 0) != n_rows for commit, n_rows in wanted.items() if commit not in elsewhere):
            return False
        bounds = {commit: said for commit, said in self._bounds(progress).items() if commit not in restated}
        return all(
            (low, high) == bounds.get(commit, (low, high))
            for commit, low, high in zip(commits, found.lows.tolist(), found.highs.tolist(), strict=True)
            if commit in wanted and commit not in elsewhere
        )

    def _bounds(self, progress: Sequence[pa.Table]) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
        """Return the bounds of the times of commits, as progress says."""
        domain = self.form.domain
        low, high = domain.bound_columns
        rows = pa.concat_tables(progress)
        rows = rows.filter(reduce(pc.and_, (rows[name].is_valid() for name in (*low, *high))))
        commits = zip(rows["_stream"].to_pylist(), rows["_seq"].to_pylist(), strict=True)
        bounds = zip(domain.from_columns(rows, low).tolist(), domain.from_columns(rows, high).tolist(), strict=True)
        return dict(zip(commits, bounds, strict=True))


def _may_have(index: FileIndex, commits: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return those of some commits of which one of the files may have rows."""
    seqs: dict[str, list[int]] = {}
    for stream, seq in commits:
        seqs.setdefault(stream, []).append(seq)
    found = set()
    for stream, each in seqs.items():  # two passes over arrays for each
        chosen = index.may_hold_stream(stream)
        numbers = np.sort(np.array(each, np.int64))
        # How many files begin at or before a number, less those that end before it.
        begun = np.searchsorted(np.sort(index.seq_lo[chosen]), numbers, "right")
        ended = np.searchsorted(np.sort(index.seq_hi[chosen]), numbers, "left")
        found |= {(stream, seq) for seq in numbers[begun > ended].tolist()}
    return found
