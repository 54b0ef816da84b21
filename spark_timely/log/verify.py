"""Checks a whole log against the capture protocol and reports every violation, reading one row group at a time.

`Log.verify` and ``spark-timely verify`` call it: `verify_log` reads all messages and progress, and gives a
`VerifyReport` with the problems, the counts, and the hash of what the log says. `tally_of` counts the messages of each
commit, for `acceptance` too. `repair` mends what is damaged below, in the entries of the table.

Invariants
----------
1. A log is legal if every stream keeps the protocol (`protocol.rules`), each stream opens with a capability that was
   unclaimed or that another stream held, and each commit has as many messages, and at such times, as its progress
   rows say. A capability is the right to produce at a time and later.
2. All violations are reported, not only the first one.
3. In a log that has forgotten, the number of messages of a commit and what is in them are judged only where none of
   them may have been deleted, moved or summed.
4. What is in messages is judged by the digest that their commit says. Commits that say none are counted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_timely.canonical.content import added, digest_from, digest_text, row_hashes
from spark_timely.canonical.state import CanonicalState
from spark_timely.errors import (
    DataLossError,
    LogDamagedError,
    LogFormatError,
    NotBeyondError,
    ProtocolError,
    described,
)
from spark_timely.log.files.format import in_schema
from spark_timely.log.files.parquet_reader import BROKEN, corrupt, open_parquet
from spark_timely.log.foreign import describe_change
from spark_timely.log.ledger import ledger_tables
from spark_timely.log.machine.ledger import accepted_rows
from spark_timely.log.machine.since import as_of_since, is_later, needed_from
from spark_timely.log.machine.state import OPEN_STREAM, StreamState, states_by_seq, stream_codes
from spark_timely.protocol.event import StreamEvents
from spark_timely.protocol.rules import StreamCounts, verify_events
from spark_timely.time.antichain import IntArray, minimal, unique_times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from spark_timely.log.core import LogCore
    from spark_timely.time.antichain import Antichain


_MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The report of a check of a log.

    Parameters
    ----------
    path : str
    table_version : int
    frontier : Antichain
    digest : str
        Canonical hash of the closed times and the frontier: equal for logs that say the same.
    messages, dead_letters, commits, streams, files : int
    problems : tuple of str
        Offences against the protocol, missing files; empty for a legal log.
    counts_alone : int
        Commits with messages of which only the number and the bounds of their times could be judged, or not even
        these: they say no digest, or the log has forgotten in part what they brought.
    """

    path: str
    table_version: int
    frontier: Antichain
    digest: str
    messages: int
    dead_letters: int
    commits: int
    streams: int
    files: int
    problems: tuple[str, ...]
    counts_alone: int = 0

    @property
    def legal(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems

    @property
    def canonical_hash(self) -> str:
        """The digest by its full name."""
        return self.digest


def _check_relative(log: LogCore, since: Antichain) -> None:
    """Refuse a hash relative to what the log has passed, or has not reached."""
    domain = log.domain
    what = f"compute the hash of log {log.path!r} relative to {domain.render_frontier(since)}"
    log.check_may_read(since, what=what)
    needed = needed_from(log.kind, log.frontier(), domain.minimum)
    if since.is_empty or not since.less_equal_frontier(needed):
        msg = f"could not {what}: found frontier={domain.render_frontier(log.frontier())}"
        raise NotBeyondError(
            msg,
            hint="give a since that the frontier has passed",
            time=since.to_json(),
            frontier=log.frontier().to_json(),
        )


class Tally:
    """Messages per commit, gathered file by file: how many, bounds, minimal times, and digests of those in `said`."""

    def __init__(self, arity: int, said: Collection[tuple[str, int]]) -> None:
        self.arity = arity
        self.said = said
        self.digests: dict[tuple[str, int], int] = {}
        self.rows: dict[tuple[str, int], int] = {}
        self.bounds: dict[tuple[str, int], IntArray] = {}
        self.minima: dict[tuple[str, int], IntArray] = {}

    def add(self, table: pa.Table, times: IntArray) -> None:
        """Count rows; one turn per commit that they belong to."""
        names, codes = stream_codes(table["_stream"])
        seqs = np.asarray(table["_seq"].to_numpy(), np.int64)
        hashes: npt.NDArray[np.uint64] | None = None
        keys = np.stack([codes, seqs], axis=1)
        commits, _ = unique_times(keys)
        single = len(commits) == 1
        for code, seq in commits.tolist():
            chosen = slice(None) if single else (codes == code) & (seqs == seq)
            part, key = times[chosen], (names[code], seq)
            if key in self.said:
                hashes = row_hashes(table) if hashes is None else hashes
                self.digests[key] = added(self.digests.get(key, 0), int(hashes[chosen].sum()))
            bounds = np.stack([part.min(axis=0), part.max(axis=0)])
            least = minimal(part)
            if key in self.rows:
                known = self.bounds[key]
                bounds = np.stack([np.minimum(known[0], bounds[0]), np.maximum(known[1], bounds[1])])
                least = minimal(np.concatenate([self.minima[key], least]))
            self.rows[key] = self.rows.get(key, 0) + len(part)
            self.bounds[key], self.minima[key] = bounds, least


def verify_log(log: LogCore, *, since: Antichain | None = None) -> VerifyReport:
    """Check a log as a whole, and compute its canonical hash.

    Parameters
    ----------
    log : LogCore
    since : Antichain, optional
        Compute the hash of what the log says relative to it: of a stream of messages at times beyond it, of a
        collection of updates moved to it. That one is the same before and after the log has forgotten what is before.

    Returns
    -------
    VerifyReport

    Notes
    -----
    Cost: reads all messages, row group by row group; remembers a few numbers per commit.
    """
    unread: str | None = None
    try:
        log.refresh()
        log.progress(), log.frontier(), log.since()
    except (LogFormatError, ProtocolError, LogDamagedError, pa.ArrowException) as error:
        if not log.foreign_changes():
            raise
        unread = described(error)  # others left progress so: what there is to say is said
    form, domain = log.format, log.domain
    if since is not None and unread is None:
        _check_relative(log, since)
    log.look_into()
    problems = [f"another program changed rows: {describe_change(each)}" for each in log.foreign_changes()]
    states = [] if unread is not None else states_by_seq(form, log.progress())
    state = CanonicalState(form.payload, domain.arity)

    def also(table: pa.Table, times: IntArray) -> None:
        diffs = table["_diff"].to_numpy() if form.kind == "collection" else None
        if since is not None:
            times, kept = as_of_since(form.kind, since, times)
            if kept is not None:
                table, times = table.filter(pa.array(kept)), times[kept]
        state.add(table, times, diffs)

    tally, lost = tally_of(log, states, also)
    problems += lost
    if unread is not None:
        return _unreadable(log, state, tally, [*problems, unread])
    dead = log.dead_files()
    for path in dead.paths.tolist():
        if not log.storage.exists(path):
            problems.append(f"file {path!r} of dead letters is missing")
    by_stream: dict[str, list[StreamState]] = {}
    for one in states:
        by_stream.setdefault(one.stream, []).append(one)
    accepted = accepted_states(log)
    for name, commits in by_stream.items():
        problems += _check_stream(log, name, commits, tally, by_stream, accepted)
    known = {(s.stream, s.seq) for s in states}
    bases = {name: commits[0].seq for name, commits in by_stream.items() if commits[0].note.base}
    problems += [
        f"messages of stream {s!r} at seq={q} have no progress rows"
        for s, q in tally.rows
        if (s, q) not in known and q >= bases.get(s, 0)
    ]
    frontier = log.frontier()
    return VerifyReport(
        path=log.path,
        table_version=log.version,
        frontier=frontier,
        digest=state.digest(frontier),
        messages=sum(tally.rows.values()),
        dead_letters=int(dead.rows.clip(min=0).sum()),
        commits=len(states),
        streams=len(by_stream) - (OPEN_STREAM in by_stream),
        files=len(log.files()) + len(dead),
        problems=tuple(problems[:_MAX_PROBLEMS]),
        counts_alone=_counts_alone(log, [accepted.get((s.stream, s.seq), s) for s in states]),
    )


def _unreadable(log: LogCore, state: CanonicalState, tally: Tally, problems: list[str]) -> VerifyReport:
    """Return the report of a log whose progress cannot be read: as if no time was complete."""
    frontier = log.domain.minimum_frontier
    return VerifyReport(
        path=log.path,
        table_version=log.version,
        frontier=frontier,
        digest=state.digest(frontier),
        messages=sum(tally.rows.values()),
        dead_letters=0,
        commits=0,
        streams=0,
        files=len(log.files()),
        problems=tuple(problems[:_MAX_PROBLEMS]),
    )


def tally_of(
    log: LogCore, states: Sequence[StreamState], also: Callable[[pa.Table, IntArray], None] | None = None
) -> tuple[Tally, list[str]]:
    """Count the messages of a log by commit; return what is missing or corrupt besides.

    Parameters
    ----------
    log : LogCore
    states : sequence of StreamState
        After each commit: of those that say a digest one is made.
    also : callable, optional
        Is given each row group, and the times of its rows.
    """
    form, problems = log.format, []
    tally = Tally(form.domain.arity, {(s.stream, s.seq) for s in states if digest_from(s.note.content) is not None})
    for path in log.files().paths.tolist():
        try:
            for table in row_groups(log, path, form.data_schema):
                owned = pc.and_(pc.is_valid(table["_stream"]), pc.is_valid(table["_seq"]))
                if not pc.all(owned).as_py():
                    problems.append(f"file {path!r} has messages without a stream or a number")
                    table = table.filter(owned)
                times = form.domain.from_columns(table)
                tally.add(table, times)
                if also is not None:
                    also(table, times)
        except DataLossError as error:
            problems.append(described(error))
    return tally, problems


def judged_states(log: LogCore) -> list[StreamState]:
    """Return the state after each commit all whose messages are there as they were written."""
    lasting = _lasting(log)
    return [state for state in states_by_seq(log.format, log.progress()) if lasting(state)]


def accepted_states(log: LogCore) -> dict[tuple[str, int], StreamState]:
    """Return commits as they say the messages that they have since a change of theirs was accepted."""
    newest_last = accepted_rows(log.format, ledger_tables(log.storage, log.format, log.ledger_files()))
    return {(state.stream, state.seq): state for rows in newest_last for state in states_by_seq(log.format, rows)}


def _counts_alone(log: LogCore, states: Sequence[StreamState]) -> int:
    """Return how many commits have messages whose digest is not known, or is that of rows that have changed since."""
    lasting = _lasting(log)
    return sum(1 for one in states if one.rows and (digest_from(one.note.content) is None or not lasting(one)))


def row_groups(log: LogCore, path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Iterate over the row groups of a file of the log, in a schema.

    Raises
    ------
    DataLossError
        If the file is missing or corrupt.
    """
    with open_parquet(log.storage, path) as file:
        try:
            present = set(file.schema_arrow.names)
        except BROKEN as error:
            raise corrupt(log.storage.uri, path, error) from error
        names = [n for n in schema.names if n in present]
        for group in range(file.metadata.num_row_groups):
            yield in_schema(_row_group(file, group, names, log, path), schema)


def _row_group(file: pq.ParquetFile, group: int, names: list[str], log: LogCore, path: str) -> pa.Table:
    try:
        return file.read_row_group(group, columns=names)
    except BROKEN as error:
        raise corrupt(log.storage.uri, path, error) from error


def _check_stream(
    log: LogCore,
    name: str,
    commits: list[StreamState],
    tally: Tally,
    by_stream: dict[str, list[StreamState]],
    accepted: Mapping[tuple[str, int], StreamState],
) -> list[str]:
    """Return what is wrong with one stream; of commits with accepted changes only whether these are all."""
    problems: list[str] = []
    lasting = _lasting(log)
    seqs = [s.seq for s in commits]
    base = seqs[0] if commits[0].note.base else 0
    if seqs != list(range(base, base + len(seqs))):
        gaps = sorted(set(range(base, max(seqs) + 1)) - set(seqs))
        problems.append(f"stream {name!r} lacks commits {gaps[:5]} of {max(seqs) + 1}, or has some twice")
        return problems
    if not base:
        problems += _check_opening(log, name, commits[0], by_stream)
    for earlier, later in itertools.pairwise(commits):
        if earlier.counts != later.before:
            problems.append(f"stream {name!r} at seq={later.seq}: its counts do not follow from those before")
    for one in commits:
        said = accepted.get((name, one.seq), one)
        problem = _wrong_messages(log, said, (name, one.seq), tally, lasts=lasting(said))
        problems += [f"stream {name!r} at seq={one.seq}: {problem}"] if problem else []
    try:
        _check_protocol(log, name, commits, tally, accepted)
    except ProtocolError as error:
        problems.append(error.message)
    return problems


def _wrong_messages(log: LogCore, one: StreamState, key: tuple[str, int], tally: Tally, *, lasts: bool) -> str | None:
    """Return what is wrong with the messages of a commit; of one that may be forgotten in part only that it has more.

    `one` is what the commit says, or what was accepted of it.
    """
    n_rows = tally.rows.get(key, 0)
    if n_rows != one.rows and (lasts or (log.kind == "stream" and n_rows > (one.rows or 0))):
        return f"found {n_rows} messages, its progress says {one.rows}"
    if not lasts or not n_rows:
        return None
    if one.bounds is not None and not np.array_equal(tally.bounds[key], one.bounds):
        return f"found times within {tally.bounds[key].tolist()}, its progress says {one.bounds.tolist()}"
    if digest_from(one.note.content) not in (None, tally.digests.get(key)):
        return (
            f"found other messages than were written: their digest is {digest_text(tally.digests[key])}, its progress"
            f" says {one.note.content}"
        )
    return None


def _check_protocol(
    log: LogCore,
    name: str,
    commits: list[StreamState],
    tally: Tally,
    accepted: Mapping[tuple[str, int], StreamState],
) -> None:
    """Replay the commits of a stream by the rules of the protocol: those whose messages are as they were written."""
    first, rest = commits[0], commits[1:]  # the first one has no messages, or what it followed is forgotten
    seqs = np.array([s.seq for s in rest], np.int64)
    times = [tally.minima.get((name, s.seq)) if (name, s.seq) not in accepted else None for s in rest]
    none = np.empty((0, log.domain.arity), np.int64)
    sent = [none if each is None else each for each in times]
    changed = [np.concatenate([s.before.times, s.counts.times]) for s in rest]
    deltas = [np.concatenate([-s.before.counts, s.counts.counts]) for s in rest]
    events = StreamEvents.from_commits(
        [s.seq for s in rest],
        np.concatenate([none, *sent]),
        np.repeat(seqs, [len(each) for each in sent]),
        np.concatenate([none, *changed]),
        np.concatenate([np.empty(0, np.int64), *deltas]),
        np.repeat(seqs, [len(each) for each in changed]),
        log.domain.arity,
    )
    verify_events(log.domain, events, start=first.counts, stream=name, seqs=seqs)


def _lasting(log: LogCore) -> Callable[[StreamState], bool]:
    """Return what tells whether all messages of a commit are there as they were written (invariant 3)."""
    since = log.since()
    if not log.format.forgets:
        return lambda _: True

    def lasting(state: StreamState) -> bool:
        if state.bounds is None:
            return True
        least = state.bounds[:1]
        return bool((since.beyond(least) if log.kind == "stream" else is_later(since, least))[0])

    return lasting


def _check_opening(log: LogCore, name: str, first: StreamState, by_stream: dict[str, list[StreamState]]) -> list[str]:
    """Return what is wrong with how a stream came to be."""
    if name == OPEN_STREAM:
        expected = StreamCounts.initial(log.domain.minimum, first.counts.total)
        return [] if first.counts == expected else ["the log does not start at its minimum"]
    given: StreamState | None = None
    opening, held = first.note.opening, None
    if opening is not None:
        commits = by_stream.get(opening.source, [])
        if commits and commits[0].note.base and opening.seq < commits[0].seq:
            return []  # forgotten
        given = next((commit for commit in commits if commit.seq == opening.seq), None)
        if given is not None and opening.source != OPEN_STREAM:
            held = given.counts
        elif given is not None and given.note.claimed == name:
            held = given.before
    if held is None:
        return [f"stream {name!r} was opened by nobody: opening={opening!r}"]
    if first.counts.total != 1 or not held.frontier.beyond(first.counts.times).all():
        return [f"stream {name!r} was opened at times that its donor does not hold"]
    return []
