"""State of a stream, the commit that a producer asks for, and the progress rows that record a state.

A `StreamState` is what a stream's newest commit says: the capabilities that it holds (its rights to produce at a time
and later), its owner, its note. A producer asks for a commit by a `CommitRequest`, with the `DataFile`s that it wrote,
and gets a `CommitOutcome`; `decide` is between. The sink, stream writers and dataflows are such producers.
`batch_rows` writes a state as progress rows, `newest_states` reads it back; `streams` keeps those of one handle.

Invariants
----------
1. Per stream, commits are numbered 0, 1, 2, …; each is all or nothing; in each the messages come before the progress.
2. Messages and progress of a commit are judged by the counts before it; the log holds no commit that breaks the
   protocol.
3. The newest commit of a stream states it whole: all its non-zero counts, its owner, and the last micro-batch.
   It is the batch with the greatest `_seq`, whatever file it is in.
4. A progress batch is never empty, and lists every time with a non-zero count before or after it.
5. The rows of a batch carry the same owner, micro-batch, bounds and wall clock; its first row, that of the least
   time, carries the note.
6. A batch has one row per time. Where a file was rewritten by two others at once (OPTIMIZE of delta-rs
   does not notice that), its rows are there twice, and count once.
7. A stream's commits before its *base commit*, whose note says that it is one, are forgotten: where another program
   has brought rows of them back, they do not count. A base commit is the commit that it was, but for that word.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.content import added, digest_text
from spark_timely.errors import shown
from spark_timely.protocol.note import Note, sealed, unsealed
from spark_timely.protocol.rules import StreamCounts
from spark_timely.time.antichain import IntArray, joined_bounds, minimal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.protocol.note import Fence
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.domain import TimeDomain


OPEN_STREAM = "#open"
"""Pseudo-stream that holds the capabilities which no stream has claimed yet."""


@dataclass(frozen=True, slots=True, eq=False)
class DataFile:
    """A Parquet file of rows that is written, and not yet part of the log.

    Parameters
    ----------
    path : str
        Relative to the log.
    size_bytes : int
    n_rows : int
    event : str
        `message`, `dead` or `progress`.
    stats : str
        Statistics of the file as a Delta log keeps them (JSON).
    minima : ndarray of int64, shape (m, k)
        Minimal times of the rows: an antichain.
    bounds : ndarray of int64, shape (2, k), or None
        Least and greatest value of each coordinate; None without rows.
    digest : int or None
        Of the messages, see `spark_timely.canonical.content`; None if it was not computed.

    Notes
    -----
    Small and picklable: it travels from Spark's tasks to the committer.
    """

    path: str
    size_bytes: int
    n_rows: int
    event: str
    stats: str
    minima: IntArray
    bounds: IntArray | None
    digest: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StreamState:
    """The state of a stream, as its newest commit says it.

    Parameters
    ----------
    stream : str
    seq : int
        Number of the newest commit; the opening one is 0.
    counts : StreamCounts
        Capabilities held after the commit.
    before : StreamCounts
        Capabilities held before it: a repeated micro-batch is judged by these.
    owner : str or None
        Query or producer that may append.
    batch, step : int or None
        Last micro-batch, and step within it; None for the opening commit and for producers outside
        of Spark.
    epoch : int
        Raised when the stream is taken over, and where its owner continues although micro-batches are missing.
    n_rows : int or None
        Messages of the commit. None where the commit belongs to no micro-batch but carries the
        numbers of the last one on, as `advance` from the command line does.
    bounds : ndarray of int64, shape (2, k), or None
        Least and greatest value of each coordinate of the times of the messages; None without any.
    at : int
        Wall clock of the commit, microseconds since 1970 in UTC.
    reason : str
        Why progress was made, for people.
    note : Note
        What the commit says to programs.
    domain : TimeDomain or None
        Types of the times, to show them.
    noted : str or None
        The note as it was read; None of a state that was not read.
    """

    stream: str
    seq: int
    counts: StreamCounts
    before: StreamCounts
    owner: str | None
    batch: int | None
    step: int | None
    epoch: int
    n_rows: int | None
    bounds: IntArray | None
    at: int
    reason: str
    note: Note
    domain: TimeDomain | None = None
    noted: str | None = None

    def __repr__(self) -> str:
        """Return stream, number, frontier and owner on one line; times as people write them."""
        at = self.frontier
        frontier = at.to_json() if self.domain is None else self.domain.show_frontier(at)
        batch = "" if self.batch is None else f", batch={self.batch}"
        return f"StreamState({self.stream!r}, seq={self.seq}, frontier={frontier}, owner={shown(self.owner)}{batch})"

    @property
    def frontier(self) -> Antichain:
        """Minimal times that the stream may still use; empty when it is closed."""
        return self.counts.frontier

    @property
    def closed(self) -> bool:
        """Whether the stream holds nothing more."""
        return self.counts.closed

    @property
    def rows(self) -> int:
        """Messages of the newest commit."""
        return self.n_rows or 0

    @property
    def identity(self) -> str:
        """The identity of this commit: another history of the log has another one at its stream and number.

        A hash of what the progress rows say of it, which merges of files leave as it is. The wall clock in them, to the
        microsecond, differs even where the rows do not. The note counts as far as its micro-batch.
        """
        noted = self.note.batch
        values = [
            [self.stream, self.seq, self.owner, self.epoch, self.batch, self.step, self.n_rows, self.at, self.reason],
            None if self.bounds is None else np.asarray(self.bounds).tolist(),
            [self.counts.times.tolist(), self.counts.counts.tolist()],
            None if noted is None else [noted.seq, noted.offsets, noted.digest],
        ]
        return hashlib.sha256(json.dumps(values, separators=(",", ":")).encode()).hexdigest()[:16]

    def seal(self, note: str) -> str:
        """Return a hash of all that the progress rows of the commit say, and its note: one row less is another.

        Parameters
        ----------
        note : str
            As `unsealed` gives it: whether it is the first commit that the stream still has is no part of it.
        """
        before = [self.before.times.tolist(), self.before.counts.tolist()]
        return hashlib.sha256(json.dumps([self.identity, before, note]).encode()).hexdigest()[:16]

    @property
    def is_as_written(self) -> bool:
        """Whether the progress rows that say it are those that were written; also where they do not say what was."""
        if self.noted is None:
            return True
        note, seal = unsealed(self.noted)
        return seal is None or seal == self.seal(note)

    def _values(self) -> tuple[object, ...]:
        bounds = None if self.bounds is None else tuple(map(tuple, np.asarray(self.bounds).tolist()))
        others = (
            getattr(self, item.name)
            for item in dataclasses.fields(self)
            if item.name not in ("bounds", "domain", "noted")
        )
        return (*others, bounds)

    def __eq__(self, other: object) -> bool:
        """Return whether both say the same of the same commit."""
        if not isinstance(other, StreamState):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        """Return a hash that agrees with `==`."""
        return hash((self.stream, self.seq, self.owner, self.batch, self.step))


def _no_files() -> tuple[DataFile, ...]:
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class CommitRequest:
    """One commit that a producer wants: files, and a change of its stream's counts.

    Parameters
    ----------
    stream, owner : str
    progress_times : ndarray of int64, shape (n, k)
        Times whose counts change. The counts are judged as a whole, order and repeats mean nothing.
    progress_deltas : ndarray of int64, shape (n,)
    batch, step : int, optional
        Micro-batch and step, by which a repeated commit is recognised; both or none.
    expected_seq : int, optional
        Number of the newest commit that the producer knew when it decided about its rows.
    files : sequence of DataFile
        Messages and dead letters, written already.
    reason : str
        For people.
    note : Note
        For programs; what lasts of the stream's present note is added to it.
    at : int, optional
        Wall clock, microseconds; the log's clock if not given.
    message_minima : ndarray of int64, shape (m, k), optional
        Minimal times of the messages; taken from the files if not given.
    n_rows : int, optional
        Number of messages; taken from the files if not given.
    bounds : ndarray of int64, shape (2, k), optional
        Bounds of the messages' times; taken from the files if not given.
    carry : bool
        Whether this commit belongs to no micro-batch, and carries the last one's numbers on.
    takeover : bool
        Whether the stream may be another's, and changes its owner by this commit; of no effect where it is
        the owner's own.
    new_epoch : bool
        Whether the owner begins an epoch with this commit, because micro-batches before it are missing.
    plans : tuple of str
        Fingerprints of plans: the stream's newest note has one of these, or none, or the commit is refused. The first
        is the committer's own. Not asked for if empty.
    fence : Fence or None
        The start of a compute instance that commits. The stream's newest note has none that it may not follow, or the
        commit is refused; where the note has one and this is None it is refused too.
    """

    stream: str
    owner: str
    progress_times: IntArray
    progress_deltas: IntArray
    batch: int | None = None
    step: int | None = None
    expected_seq: int | None = None
    files: Sequence[DataFile] = field(default_factory=_no_files)
    reason: str = ""
    note: Note = field(default_factory=Note)
    at: int | None = None
    message_minima: IntArray | None = None
    n_rows: int | None = None
    bounds: IntArray | None = None
    carry: bool = False
    takeover: bool = False
    new_epoch: bool = False
    plans: tuple[str, ...] = ()
    fence: Fence | None = None

    def minima(self, arity: int) -> IntArray:
        """Return minimal times of the messages, an array of shape (m, k)."""
        if self.message_minima is not None:
            return np.asarray(self.message_minima, dtype=np.int64).reshape(-1, arity)
        parts = [f.minima for f in self.files if f.event == "message" and f.n_rows]
        return minimal(np.concatenate(parts)) if parts else np.empty((0, arity), np.int64)

    def rows(self) -> int:
        """Return the number of messages."""
        if self.n_rows is not None:
            return self.n_rows
        return sum(f.n_rows for f in self.files if f.event == "message")

    def time_bounds(self) -> IntArray | None:
        """Return the bounds of the messages' times, shape (2, k), or None without messages."""
        if self.bounds is not None:
            return self.bounds
        return joined_bounds([f.bounds for f in self.files if f.event == "message" and f.bounds is not None])

    def content(self) -> str | None:
        """Return the digest of the messages for the note; None without messages, or if not all files have one."""
        found = [file.digest for file in self.files if file.event == "message" and file.n_rows]
        digests = [digest for digest in found if digest is not None]
        return digest_text(added(*digests)) if digests and len(digests) == len(found) else None


@dataclass(frozen=True, slots=True, eq=False)
class CommitOutcome:
    """The outcome of a commit that was not refused.

    Parameters
    ----------
    committed : bool
        False if the log held this very micro-batch or append already, or is where it was to be advanced to: nothing
        was done, and the files of the request are not part of the log.
    state : StreamState
        The stream's newest state.
    """

    committed: bool
    state: StreamState

    @property
    def duplicate(self) -> bool:
        """Whether there was nothing to do."""
        return not self.committed


def initial_state(
    stream: str,
    counts: StreamCounts,
    *,
    owner: str | None,
    at: int,
    reason: str,
    note: Note,
    domain: TimeDomain | None = None,
) -> StreamState:
    """Return the state of a stream right after its opening commit."""
    return StreamState(
        stream=stream,
        seq=0,
        counts=counts,
        before=StreamCounts.empty(counts.arity),
        owner=owner,
        batch=None,
        step=None,
        epoch=0,
        n_rows=0,
        bounds=None,
        at=at,
        reason=reason,
        note=note,
        domain=domain,
    )


def next_state(state: StreamState, counts: StreamCounts, *, note: Note, **changes: object) -> StreamState:
    """Return the state after one more commit. Its note is that commit's own, what lasts included."""
    return replace(
        state,
        seq=state.seq + 1,
        before=state.counts,
        counts=counts,
        note=note,
        **changes,  # type: ignore[arg-type]
    )


def batch_rows(form: LogFormat, state: StreamState) -> pa.Table:
    """Return the progress rows that write down a state: one per time that is or was held.

    Parameters
    ----------
    form : LogFormat
    state : StreamState
        State after the commit; its `before` is the state that it follows.

    Returns
    -------
    pyarrow.Table
        In the log's progress schema; at least one row.
    """
    domain = form.domain
    times, counts, deltas = _changes(state)
    n = len(times)
    values: dict[str, object] = {
        "_stream": state.stream,
        "_seq": state.seq,
        "_reason": state.reason,
        "_at": state.at,
        "_query": state.owner,
        "_batch": state.batch,
        "_step": state.step,
        "_rows": state.n_rows,
        "_epoch": state.epoch,
    }
    if state.bounds is not None:
        for names, bound in zip(domain.bound_columns, state.bounds.tolist(), strict=True):
            values.update(zip(names, bound, strict=True))
    note = state.note.text()
    note = sealed(note, state.seal(unsealed(note)[0]))
    columns: dict[str, object] = {
        "_delta": deltas,
        "_count": counts,
        "_note": np.array([note, *[None] * (n - 1)], dtype=object),
        **{name: times[:, i] for i, name in enumerate(domain.columns)},
    }
    # A number is a valid value for a date or a timestamp column.
    arrays = [
        pa.array(columns[c.name].tolist(), c.type)  # type: ignore[attr-defined]
        if c.name in columns
        else pa.array([values.get(c.name)] * n, c.type)
        for c in form.progress_schema
    ]
    return pa.Table.from_arrays(arrays, schema=form.progress_schema)


def _changes(state: StreamState) -> tuple[IntArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return every time held before or after, with its count after and its change."""
    after = dict(zip(map(tuple, state.counts.times.tolist()), state.counts.counts.tolist(), strict=True))
    before = dict(zip(map(tuple, state.before.times.tolist()), state.before.counts.tolist(), strict=True))
    times = sorted(after.keys() | before.keys())
    counts = [after.get(t, 0) for t in times]
    deltas = [after.get(t, 0) - before.get(t, 0) for t in times]
    rows = np.array(times, np.int64).reshape(len(times), state.counts.arity)
    return rows, np.array(counts, np.int64), np.array(deltas, np.int64)


def batch_state(form: LogFormat, rows: pa.Table) -> StreamState:
    """Return the state that one progress batch writes down.

    Parameters
    ----------
    rows : pyarrow.Table
        All rows of one (stream, seq), in the progress schema.
    """
    domain = form.domain
    times = domain.from_columns(rows)
    counts = rows.column("_count").to_numpy()
    deltas = rows.column("_delta").to_numpy()
    first = {name: rows.column(name)[0].as_py() for name in _SCALARS}
    noted = rows.column("_note").drop_null()
    low, high = domain.bound_columns
    head = rows.slice(0, 1)
    known = not any(head.column(name).null_count for name in low)
    bounds = np.concatenate([domain.from_columns(head, names) for names in (low, high)]) if known else None
    return StreamState(
        stream=first["_stream"],
        seq=first["_seq"],
        counts=StreamCounts.from_arrays(times, counts, domain.arity),
        before=StreamCounts.from_arrays(times, counts - deltas, domain.arity),
        owner=first["_query"],
        batch=first["_batch"],
        step=first["_step"],
        epoch=first["_epoch"] or 0,
        n_rows=first["_rows"],
        bounds=bounds,
        at=rows.column("_at")[0].value if rows.column("_at")[0].is_valid else 0,
        reason=first["_reason"] or "",
        note=Note.parse(noted[0].as_py() if len(noted) else None),
        domain=domain,
        noted=noted[0].as_py() if len(noted) else None,
    )


_SCALARS = ("_stream", "_seq", "_query", "_batch", "_step", "_rows", "_reason", "_epoch")


def distinct_rows(form: LogFormat, rows: pa.Table) -> pa.Table:
    """Return progress rows sorted by stream, seq and time, each once, without those that were forgotten.

    Notes
    -----
    Cost: one sort.
    """
    if rows.num_rows < 2:
        return rows
    keys = ["_stream", "_seq", *form.domain.columns]
    if form.forgets:
        rows = _from_bases_on(rows)
    rows = rows.sort_by([(name, "ascending") for name in keys]).combine_chunks()
    if rows.num_rows < 2:
        return rows
    differs = np.zeros(rows.num_rows - 1, dtype=np.bool_)
    for name in keys:
        column = rows[name]
        differs |= np.asarray(pc.not_equal(column.slice(1), column.slice(0, rows.num_rows - 1)).to_numpy(), np.bool_)
    return rows if differs.all() else rows.filter(pa.array(np.concatenate([[True], differs])))


_ALONE_ROWS = 1 << 14  # up to this one thread groups rows
_BASE = '"base":true'
"""As the note of a base commit has it; in a text inside of it the quotes are escaped."""


def _from_bases_on(rows: pa.Table) -> pa.Table:
    """Return progress rows without those before the base commits among them (invariant 7)."""
    marked = pc.fill_null(pc.match_substring(rows["_note"], _BASE), fill_value=False)
    if not pc.any(marked).as_py():
        return rows
    bases: dict[str, int] = {}
    found = rows.select(["_stream", "_seq"]).filter(marked)
    for stream, seq in zip(found["_stream"].to_pylist(), found["_seq"].to_pylist(), strict=True):
        bases[stream] = max(seq, bases.get(stream, 0))
    names, codes = stream_codes(rows["_stream"])
    first = np.array([bases.get(name, 0) for name in names], np.int64)
    seqs = rows["_seq"].to_numpy()
    kept = seqs >= first[codes]
    # Rows of the base commit as it was before it became one: those with the note that says so come first.
    later = np.asarray(~marked.to_numpy(zero_copy_only=False), np.bool_) if isinstance(marked, pa.Array) else None
    later = ~np.asarray(marked.to_numpy(), np.bool_) if later is None else later
    order = np.argsort(later[kept], kind="stable")
    return rows.filter(pa.array(kept)).take(pa.array(order))


def newest_states(form: LogFormat, rows: pa.Table) -> dict[str, StreamState]:
    """Return the newest state of each stream that some progress rows name.

    Notes
    -----
    Cost: one pass over the rows, and one batch per stream.
    """
    if rows.num_rows == 0:
        return {}
    if rows.num_rows == 1:
        state = batch_state(form, rows)
        return {state.stream: state}
    of_streams = rows.select(["_stream", "_seq"]).group_by("_stream", use_threads=rows.num_rows > _ALONE_ROWS)
    newest = of_streams.aggregate([("_seq", "max")])
    found: dict[str, StreamState] = {}
    for stream, seq in zip(newest["_stream"].to_pylist(), newest["_seq_max"].to_pylist(), strict=True):
        mask = pc.and_(pc.equal(rows["_stream"], stream), pc.equal(rows["_seq"], seq))
        found[stream] = batch_state(form, distinct_rows(form, rows.filter(mask)))
    return found


def owners_of(rows: pa.Table, newest: StreamState) -> frozenset[str]:
    """Return the owners of a stream, present and past: of each commit that the log remembers, and all that it names.

    Parameters
    ----------
    rows : pyarrow.Table
        The progress rows of the log.
    newest : StreamState
        Of the stream. Its note has all former owners, also those whose commits are forgotten.

    Notes
    -----
    Cost: one pass over the rows.
    """
    names = pc.unique(rows.filter(pc.equal(rows["_stream"], newest.stream))["_query"]).to_pylist()
    return frozenset(name for name in (*names, newest.owner, *newest.note.former) if name is not None)


def stream_codes(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct names of streams in a column, and for each row the position of its name among them."""
    names = column.combine_chunks().dictionary_encode()
    if isinstance(names, pa.ChunkedArray):  # above 2 GB
        names = names.combine_chunks()
    return names.dictionary.to_pylist(), np.asarray(names.indices.to_numpy(), np.int64)


def states_by_seq(form: LogFormat, rows: pa.Table) -> list[StreamState]:
    """Return the state after each batch of progress rows, by stream and seq.

    Notes
    -----
    One object per commit: for tools and tests, not for a hot path.
    """
    if rows.num_rows == 0:
        return []
    rows = distinct_rows(form, rows)
    _, codes = stream_codes(rows["_stream"])
    seqs = rows["_seq"].to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], (codes[1:] != codes[:-1]) | (seqs[1:] != seqs[:-1])]))
    ends = np.append(starts[1:], rows.num_rows)
    return [batch_state(form, rows.slice(a, b - a)) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
