"""Logical compaction of a log: rewrites files, so that history which `since` gives up is deleted or summed.

`Log.compact` with ``logical=True`` and the upkeep after commits (`core`) call it. `retention` says how far since may
move, and moves it; this module then forgets what is before. `compaction` merges files and forgets nothing.

Of a stream messages at times not beyond since are deleted. Of a collection updates move to since, and equal rows of one
stream are summed. Of the progress of either the first commits go (`machine.base`). Readers see messages that were not
rewritten in the same way (`reader.seen_rows`), so no answer changes.

Invariants
----------
1. As a merge, a rewriting commits exclusively, on top of a snapshot in which all its sources are live.
2. Before the first one the log gets a format that libraries refuse which do not know since.
3. Rows at times later than a time of since are neither moved nor summed: a replay may have delivered them one by one.
4. A summed row has the greatest `_seq` of its parts, and their stream. A sum beyond 64 bits stays as its parts.
5. A file is rewritten in whole or not at all; how the work is cut changes no sum.
6. No answer hangs on whether a file was rewritten. What it costs may: names of files count for that alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.canonical.row_hash import RowHasher
from spark_timely.errors import LogFormatError
from spark_timely.log.compaction import (
    SUMMED,
    ForgettingReport,
    begin_compaction,
    read_known,
    replace_files,
    were_summed,
    write_instead,
)
from spark_timely.log.files.parquet import TARGET_FILE_BYTES, write_progress_file
from spark_timely.log.files.parquet_reader import read_file, side_by_side
from spark_timely.log.ledger import after_forgetting
from spark_timely.log.machine.base import choose_base, first_of_newest_batch, with_base
from spark_timely.log.machine.decide import Attempt, Settled, commit_loop
from spark_timely.log.machine.since import as_of_since, is_later, may_read, moved_to, needed_from
from spark_timely.log.machine.state import batch_state, distinct_rows
from spark_timely.log.retention import retention_of
from spark_timely.log.streams import as_data_files, discard
from spark_timely.masking import masked_logger
from spark_timely.trace.updates import hash_lanes, summed_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.machine.state import DataFile
    from spark_timely.log.store.base import Store
    from spark_timely.log.streams import StreamStates
    from spark_timely.time.antichain import Antichain, BoolArray

logger = masked_logger(__name__)

# How often a rewriting is tried while others commit: nobody waits for it.
_PATIENCE: Final = 20
_INLINE_PATIENCE: Final = 3
# Files of several streams have no common order: this number is looked at until one is found that goes.
_MOST_LOOKED: Final = 16
# Files that one commit takes out of the log: its entry names them.
_MOST_REMOVED: Final = 2_000
# Bytes of files that are summed at once; of more each part of the rows, by their hash, in a turn of its own.
_SUMMED_BYTES: Final = 2 * TARGET_FILE_BYTES
# Inline, what was summed before is summed again once what came after it is this much of it; and no more at once than is
# hardly noticed.
_INLINE_SHARE: Final = 0.5
_INLINE_BYTES: Final = 64 * 1024 * 1024


def forget(states: StreamStates, *, target_file_size: int = TARGET_FILE_BYTES) -> ForgettingReport:
    """Rewrite all files of messages that hold anything that may be forgotten.

    Parameters
    ----------
    states : StreamStates
    target_file_size : int
        Bytes after which a new file begins.

    Notes
    -----
    Refused where the table may only be appended to. Cost: files of a stream whose messages all go are not read; others
    are read once, of a collection as often as their bytes are more than 256 MiB.
    """
    store = states.store
    begin_compaction(states)
    since = retention_of(states).since
    report = ForgettingReport(since)
    form = store.format
    if since == form.domain.minimum_frontier:
        return report
    for stream in states.newest():
        report = replace(report, commits=report.commits + forget_commits(states, stream))
    index = states.files("message")
    if form.kind == "collection":
        chosen = unsettled(index, since)
        return report + _sum_files(states, index.select(chosen), since, target_file_size) if chosen.any() else report
    gone, mixed = forgotten_files(index, since)
    paths = index.paths[gone]
    for first in range(0, len(paths), _MOST_REMOVED):
        part = index.select(np.flatnonzero(gone)[first : first + _MOST_REMOVED])
        report += _replaced(states, part, [], since)
    for number in np.flatnonzero(mixed).tolist():
        report += _cut_file(states, index.select(np.array([number])), since, target_file_size)
    return report


def forget_inline(states: StreamStates, stream: str, every: int) -> None:
    """Forget what costs little: called with upkeep at every `every`-th commit of a stream.

    Of a stream whole files go, or what goes of one. Of a collection all that came since is summed, and with it each
    file that was summed before and is at most twice as large as what is summed already: so each row is summed a few
    times in its life, and what is kept is at most half as much again as what would be left. More than 64 MiB together
    is left to `forget`.
    """
    store = states.store
    if store.append_only:
        return
    since = retention_of(states).since
    if since == store.format.domain.minimum_frontier:
        return
    forget_commits(states, stream, at_least=every, patience=_INLINE_PATIENCE)
    index = states.files("message")
    if store.format.kind == "stream":
        gone, mixed = forgotten_files(index, since)
        part = index.select(np.flatnonzero(gone)[:_MOST_REMOVED])
        if len(part):
            _replaced(states, part, [], since, patience=_INLINE_PATIENCE)
            return
        # Small files were merged with later ones: one of which half the times are gone is cut.
        low, high = index.min_times[:, 0].astype(np.float64), index.max_times[:, 0].astype(np.float64)
        share = (moved_to(since)[0] - low) / np.maximum(high - low, 1.0)
        share[~mixed | ~index.known | (index.sizes > _INLINE_BYTES)] = 0.0
        if len(share) and share.max() >= _INLINE_SHARE:
            _cut_file(states, index.select(np.array([share.argmax()])), since, TARGET_FILE_BYTES, _INLINE_PATIENCE)
        return
    part = index.select(unsettled(index, since))
    before = were_summed(part)
    # Those that lie behind since as a whole, with what is known of them.
    new = np.flatnonzero(~before & part.known & (part.rows >= 0) & ~is_later(since, part.max_times))
    new = new[np.argsort(part.seq_lo[new], kind="stable")]
    new = new[np.cumsum(part.sizes[new]) <= _INLINE_BYTES]
    rows, size, chosen = int(part.rows[new].sum()), int(part.sizes[new].sum()), list(new)
    if not rows:
        return
    old = np.flatnonzero(before)
    for number in old[np.argsort(part.rows[old], kind="stable")].tolist():
        size += int(part.sizes[number])
        if rows < _INLINE_SHARE * part.rows[number] or size > _INLINE_BYTES:
            break
        rows += int(part.rows[number])
        chosen.append(number)
    _sum_files(states, part.select(np.array(chosen)), since, TARGET_FILE_BYTES, patience=_INLINE_PATIENCE)


def forget_dead(states: StreamStates, *, clock: int, patience: int = _PATIENCE) -> int:
    """Let files of dead letters go that were all set apart longer ago than such stay.

    Parameters
    ----------
    states : StreamStates
    clock : int
        Wall clock, microseconds.

    Returns
    -------
    int
        How many files.

    Notes
    -----
    Cost: one column of the oldest files, up to the first that stays.
    """
    store = states.store
    dead = retention_of(states).dead
    index = states.files("dead")
    if dead is None or not len(index) or store.append_only:
        return 0
    index = index.select(np.argsort(index.seq_lo, kind="stable"))
    schema = pa.schema([store.format.dead_schema.field("_at")])
    gone: list[int] = []
    for number, path in enumerate(index.paths[:_MOST_REMOVED].tolist()):
        last = pc.max(read_file(store.storage, path, schema)["_at"])
        if not last.is_valid or last.value >= clock - dead:
            if len(gone) or number > _MOST_LOOKED:
                break
            continue
        gone.append(number)
    if not gone:
        return 0
    found = _replaced(states, index.select(np.array(gone)), [], retention_of(states).since, patience=patience)
    return found.files_removed


def forgotten_files(index: FileIndex, since: Antichain) -> tuple[BoolArray, BoolArray]:
    """Return which files of a stream hold only messages that go, and which may hold some, shape (n,) each."""
    gone = index.known & ~since.beyond(index.max_times)
    return gone, ~gone & (~index.known | ~since.beyond(index.min_times))


def unsettled(index: FileIndex, since: Antichain) -> BoolArray:
    """Return which files of a collection may hold rows that can be moved or summed, shape (n,).

    Of one file alone whose rows all stand at since already nothing can: all that could be was summed. A file that was
    not summed may stand there too: the name of one that was tells them apart, and at worst it is summed once more.
    """
    chosen = ~index.known | ~is_later(since, index.min_times)
    if chosen.sum() == 1 and len(since) == 1:
        alone = index.select(chosen)
        at = np.asarray(since.times[0])
        settled = alone.known[0] and (alone.min_times[0] == at).all() and (alone.max_times[0] == at).all()
        if settled and were_summed(alone)[0]:
            return np.zeros(len(index), np.bool_)
    return chosen


def _cut_file(
    states: StreamStates, index: FileIndex, since: Antichain, target: int, patience: int = _PATIENCE
) -> ForgettingReport:
    """Write a file of a stream without the messages that go."""
    form = states.store.format
    (path,) = index.paths.tolist()
    states.look_into(lambda files: np.isin(files.paths, index.paths))
    table = read_known(states.store, path, form.data_schema)
    _, kept = as_of_since(form.kind, since, form.domain.from_columns(table))
    if kept is None:
        return ForgettingReport(since)
    new = write_instead(states.store, table.filter(pa.array(kept)), index, target)
    return _replaced(states, index, new, since, patience=patience)


def _sum_files(
    states: StreamStates, index: FileIndex, since: Antichain, target: int, *, patience: int = _PATIENCE
) -> ForgettingReport:
    """Write files of a collection in which rows stand at since, equal ones of a stream summed."""
    store = states.store
    form = store.format
    paths = index.paths.tolist()
    states.look_into(lambda files: np.isin(files.paths, index.paths))
    n_parts = max(1, -(-int(index.sizes.sum()) // _SUMMED_BYTES))
    new: list[DataFile] = []
    try:
        for part in range(n_parts):
            tables = side_by_side(store.storage, lambda path: _part_of(store, path, part, n_parts), paths)  # noqa: B023 - called in this turn
            table, later = summed(form, pa.concat_tables(tables), since)
            new += write_instead(store, table, index, target, stem=SUMMED)
            # Apart: so that what was summed is not read again before since has moved.
            new += write_instead(store, later, index, target)
    except BaseException:
        discard(store.storage, new)
        raise
    return _replaced(states, index, new, since, patience=patience)


def _part_of(store: Store, path: str, part: int, n_parts: int) -> pa.Table:
    table = read_known(store, path, store.format.data_schema)
    if n_parts == 1:
        return table
    hashes = RowHasher(store.format.payload).hash(table)
    return table.filter(pa.array(hashes[:, 0] % np.uint64(n_parts) == part))


def summed(form: LogFormat, table: pa.Table, since: Antichain) -> tuple[pa.Table, pa.Table]:
    """Move updates of a collection to since, and sum equal rows of one stream.

    Parameters
    ----------
    form : LogFormat
    table : pyarrow.Table
        In the log's schema of messages. Not modified.
    since : Antichain

    Returns
    -------
    summed, later : pyarrow.Table
        Rows that were moved and summed; and as they were those that are later than since (invariant 3).

    Notes
    -----
    Cost: one hash of the rows, one sort.

    Examples
    --------
    >>> from spark_timely.log.files.format import LogFormat
    >>> from spark_timely.time.antichain import Antichain
    >>> form = LogFormat.build(pa.schema([("v", pa.string())]), minimum=(0,), kind="collection")
    >>> rows = pa.table(
    ...     {"_stream": ["a"] * 4, "_seq": [1, 2, 3, 4], "_time": [1, 2, 6, 6], "_diff": [1, 2, 1, 1], "v": ["x"] * 4},
    ...     schema=form.data_schema,
    ... )
    >>> moved, later = summed(form, rows, Antichain.of(5))
    >>> moved.to_pylist(), later["_seq"].to_pylist()
    ([{'_stream': 'a', '_seq': 2, '_time': 5, '_diff': 3, 'v': 'x'}], [3, 4])
    """
    times = form.domain.from_columns(table)
    later = is_later(since, times)
    rest, table, times = table.filter(pa.array(later)), table.filter(pa.array(~later)), times[~later]
    if not table.num_rows:
        return table, rest
    moved, _ = as_of_since("collection", since, times)
    streams = table["_stream"].combine_chunks().dictionary_encode()
    codes = np.asarray(streams.indices.to_numpy(), np.int64)[:, None]
    keys = np.concatenate([moved, codes, hash_lanes(table.select(form.payload.names))], axis=1)
    # The newest commit of equal updates stands for all of them.
    newest = np.argsort(-np.asarray(table["_seq"].to_numpy(), np.int64), kind="stable")
    found = summed_by(keys[newest], np.asarray(table["_diff"].to_numpy(), np.int64)[newest])
    table = _with(table, form.domain.to_columns(moved))
    rows = _with(table.take(pa.array(newest[found.first])), {"_diff": pa.array(found.sums)})
    # What 64 bits do not hold stays as its parts: later updates may take from it.
    return pa.concat_tables([rows, table.take(pa.array(newest[found.beyond]))]), rest


def _with(table: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    for name, column in columns.items():
        number = table.schema.get_field_index(name)
        table = table.set_column(number, table.schema.field(number), column)
    return table


def forget_commits(states: StreamStates, stream: str, *, at_least: int = 1, patience: int = _PATIENCE) -> int:
    """Let a stream's first commits go, as many as nobody may read any more: one becomes its base.

    Parameters
    ----------
    states : StreamStates
    stream : str
        `#open` too.
    at_least : int
        Fewer are not worth it.

    Returns
    -------
    int
        How many went.

    Notes
    -----
    Cost: the progress files that may hold them are read, unless this handle has made them, and written as one.
    """
    store = states.store
    form, since = store.format, retention_of(states).since
    newest = states.newest().get(stream)
    index = states.files("progress")
    mine = index.select(index.may_hold_stream(stream))
    if newest is None or since == form.domain.minimum_frontier or newest.seq - int(mine.seq_lo.min()) < at_least:
        return 0
    rows = pa.concat_tables(side_by_side(store.storage, states.rows_in, mine.paths.tolist()))
    rows = distinct_rows(form, rows.filter(pc.equal(rows["_stream"], stream)))
    seqs = np.unique(np.asarray(rows["_seq"].to_numpy(), np.int64))

    def may_go(seq: int) -> bool:
        # A reader whose position is behind it, and which may read what follows, must find it.
        at = batch_state(form, rows.filter(pc.equal(rows["_seq"], seq))).frontier
        return not may_read(since, needed_from(form.kind, at, form.domain.minimum))

    base = choose_base(seqs, may_go, newest, first_of_newest_batch(rows, newest))
    gone = int((seqs < base).sum())
    if gone < at_least:
        return 0
    old = mine.select(mine.seq_lo <= base)
    table = with_base(states.distinct_rows_in(old.paths.tolist()), stream, base)
    say_that_it_forgets(states)
    new = write_progress_file(store.storage, table, stream, int(old.seq_hi.max()), form.domain)
    if not replace_files(store, old, [new], patience):
        return 0
    states.forget_rows(old.paths.tolist())
    return gone


@dataclass(frozen=True, slots=True)
class _SaysThatItForgets(Attempt):
    store: Store

    def put(self) -> None:
        self.store.change_facts(replace(self.store.format, forgets=True))

    def has_landed(self) -> bool:
        return self.store.format.forgets


def say_that_it_forgets(states: StreamStates) -> None:
    """Put it into the facts of the log that it forgets (invariant 2)."""
    store = states.store
    commit_loop(
        f"change the facts of log {store.path!r}",
        context={"path": store.path},
        store=store,
        decide=lambda _: Settled(None) if store.format.forgets else _SaysThatItForgets(store),
        done=lambda: None,
    )


@dataclass(frozen=True, slots=True)
class _Rewriting(Attempt):
    """New files, or none, in the place of old ones, for all attempts."""

    store: Store
    new: Sequence[DataFile]
    sources: Sequence[DataFile]

    def put(self) -> None:
        come, go = after_forgetting(self.store, self.new, self.sources)
        removes = [*self.sources, *as_data_files(go)]
        self.store.transact([*self.new, *come], [], removes=removes, data_change=True, exclusive=True)

    def has_landed(self) -> bool:
        if self.new:
            return self.new[0].path in self.store.live
        # They are gone, by this commit or another one, and nothing was to take their place.
        return not any(file.path in self.store.live for file in self.sources)


def _replaced(
    states: StreamStates, index: FileIndex, new: list[DataFile], since: Antichain, *, patience: int = _PATIENCE
) -> ForgettingReport:
    """Put new files in the place of old ones, unless others have done so."""
    store = states.store
    if not new:  # else they were read before
        states.look_into(lambda files: np.isin(files.paths, index.paths))
    rewriting = _Rewriting(store, new, as_data_files(index))
    turns = iter(range(patience))
    done = ForgettingReport(
        since,
        len(index),
        len(new),
        int(index.sizes.sum()),
        sum(file.size_bytes for file in new),
        int(index.rows.clip(0).sum()) - sum(file.n_rows for file in new),
    )

    def decide(pending: Sequence[_Rewriting]) -> Settled[ForgettingReport] | _Rewriting:
        there = all(file.path in store.live for file in rewriting.sources)
        # A log that was put back remembers more again.
        allowed = since.less_equal_frontier(retention_of(states).since)
        if not there or not allowed or next(turns, None) is None:
            if not pending:
                discard(store.storage, new)
            return Settled(ForgettingReport(since, lost=1))
        return rewriting

    try:
        say_that_it_forgets(states)
        return commit_loop(
            f"forget messages of log {store.path!r}",
            context={"path": store.path},
            store=store,
            decide=decide,
            done=lambda: done,
        )
    except LogFormatError:
        discard(store.storage, new)
        raise
