"""Physical compaction of a log: merges small Parquet files into larger ones, and changes no answer.

`Log.compact` and the upkeep after commits (`core`) call it. Logical compaction, by which a log forgets history, is in
`forgetting`; both replace files by the same commit (`replace_files`). Merged rows keep `_stream` and `_seq`, and so the
order of events.

Invariants
----------
1. A merge commits exclusively, exactly on top of a snapshot in which all its sources are live: delta-rs
   does not notice when two commits remove the same file, and each would add its rows again.
2. The rows of the merged file are those of its sources. Merged messages are committed *with* data change:
   OPTIMIZE of delta-rs looks at nothing else when it finds that a file it has read was removed meanwhile,
   and would add the rows a second time (tried with 1.6.6; it does so to a second OPTIMIZE of its own).
   A plain Delta stream over the table of a log therefore needs `skipChangeCommits`, which passes over
   merges. Progress is merged without: rows of it that are there twice count once.
3. A file with columns that the log does not have is never merged: the entry that added them was lost, and the values
   would be lost with the next VACUUM.
4. What logical compaction has written is left as it is: it sums it again itself.
5. Sources are left where they are, for readers that planned before: VACUUM deletes them later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_timely.conf.kinds import check_whole, size_of
from spark_timely.errors import InvalidUsageError, LogDamagedError, LogFormatError
from spark_timely.log.files.parquet import TARGET_FILE_BYTES, write_data_files, write_progress_file
from spark_timely.log.files.parquet_reader import read_file, side_by_side
from spark_timely.log.machine.decide import Attempt, Settled, commit_loop
from spark_timely.log.machine.state import DataFile
from spark_timely.log.streams import as_data_files, discard
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.files.index import FileIndex
    from spark_timely.log.store.base import Store
    from spark_timely.log.streams import StreamStates
    from spark_timely.time.antichain import Antichain, BoolArray


logger = masked_logger(__name__)

# How often a merge is tried while others commit: nobody waits for it.
_PATIENCE = 20
# What a commit may merge by the way: so little that it is hardly noticed. Sizes of files, and how many times
# fewer of them are enough than of the smallest.
_SMALL_TIERS = ((256 * 1024, 1), (2 * 1024 * 1024, 8))
_MERGE_BYTES = 16 * 1024 * 1024
_MERGE_ROWS = 2_000_000
_INLINE_PATIENCE = 3
# How many times more files there must be before those of open times are merged.
_HELD = 4
_PROGRESS_TIERS = ((1_000, 1), (100_000, 3))


@dataclass(frozen=True, slots=True)
class ForgettingReport:
    """Report of a logical compaction.

    Parameters
    ----------
    since : Antichain
        As of which it was done.
    files_removed, files_written : int
    bytes_removed, bytes_written : int
        Removed files stay on disk until a vacuum.
    rows_removed : int
        Of messages; those that were summed to fewer count too.
    lost : int
        Rewritings given up because another writer rewrote the same files meanwhile.
    commits : int
        Commits whose progress is forgotten.
    """

    since: Antichain
    files_removed: int = 0
    files_written: int = 0
    bytes_removed: int = 0
    bytes_written: int = 0
    rows_removed: int = 0
    lost: int = 0
    commits: int = 0

    def __add__(self, other: ForgettingReport) -> ForgettingReport:
        return ForgettingReport(
            self.since,
            self.files_removed + other.files_removed,
            self.files_written + other.files_written,
            self.bytes_removed + other.bytes_removed,
            self.bytes_written + other.bytes_written,
            self.rows_removed + other.rows_removed,
            self.lost + other.lost,
            self.commits + other.commits,
        )


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """Report of a compaction.

    Parameters
    ----------
    files_before, files_after : int
        Live files of messages, dead letters and progress.
    bytes_rewritten : int
    merges : int
        Commits made.
    lost : int
        Merges given up because another writer rewrote the same files meanwhile.
    forgotten : ForgettingReport or None
        What was forgotten before, where that was asked for.
    """

    files_before: int
    files_after: int
    bytes_rewritten: int
    merges: int
    lost: int
    forgotten: ForgettingReport | None = None


# What the name of a file begins with whose updates were summed; the dot keeps it apart from that of any stream.
SUMMED: Final = "summed."


def were_summed(index: FileIndex) -> BoolArray:
    """Return which files a logical compaction wrote, by their names: only what is worth its time hangs on it."""
    return np.array([f"/{SUMMED}" in path for path in index.paths.tolist()], np.bool_)


def compact(
    states: StreamStates, *, target_file_size: int | str = TARGET_FILE_BYTES, min_files: int = 2
) -> CompactionReport:
    """Merge small files of a log, messages ordered by time, and progress per stream.

    Parameters
    ----------
    states : StreamStates
    target_file_size : int or str
        Size of a file that is large enough, in bytes or as text such as ``"64mb"``; files are merged up to about this
        size.
    min_files : int
        Fewest files that are worth a merge.

    Notes
    -----
    Refused by `LogDamagedError` where a file has columns that the log lacks.
    Cost: reads and writes what it merges, one group of up to `target_file_size` bytes at a time.
    """
    store = states.store
    attempt = f"could not compact log {store.path!r}"
    target = size_of(attempt, "target_file_size", target_file_size)
    check_whole(attempt, "min_files", min_files, least=2)
    begin_compaction(states)
    before = len(store.live)
    merged = rewritten = lost = 0
    for event in ("message", "dead"):
        index = states.files(event)
        index = index.select(~were_summed(index))
        for group in _groups(index, target, min_files):
            done = _merge_data(states, index.select(group), event, target)
            merged, lost = merged + done, lost + (not done)
            rewritten += int(index.sizes[group].sum()) if done else 0
    index = states.files("progress")
    for stream in sorted({*index.stream_lo.tolist()} & {*index.stream_hi.tolist()}):
        mine = index.select((index.stream_lo == stream) & (index.stream_hi == stream))
        if len(mine) >= min_files:
            done = _merge_progress(states, mine, stream)
            merged, lost = merged + done, lost + (not done)
            rewritten += int(mine.sizes.sum()) if done else 0
    states.refresh()
    return CompactionReport(before, len(store.live), rewritten, merged, lost)


def begin_compaction(states: StreamStates) -> None:
    """Look at a log before files of it are replaced, and refuse one that may not be, or cannot be written.

    Raises
    ------
    InvalidUsageError
        If its table only takes appends.
    """
    store = states.store
    states.refresh()
    store.check_writable()
    if store.append_only:
        msg = f"could not compact log {store.path!r}: found the table property delta.appendOnly=true"
        raise InvalidUsageError(msg, hint="unset the property: it forbids to replace files")


def merge_progress_files(states: StreamStates, stream: str, every: int) -> None:
    """Merge the small files of progress that the commits of a stream leave behind, once there are enough.

    Called at every `every`-th commit of a stream. They are merged by a hundred, and again when many merged
    ones have come together, so that their number grows with the logarithm of the history.
    """
    index = states.files("progress")
    mine = index.select((index.stream_lo == stream) & (index.stream_hi == stream))
    if len(mine) * 2 >= every:
        for n_rows, share in _PROGRESS_TIERS:
            small = mine.select((mine.rows >= 0) & (mine.rows < n_rows))
            if len(small) * share * 2 >= every:
                _merge_progress(states, small, stream)
                break


def merge_small_files(states: StreamStates, stream: str, every: int) -> None:
    """Merge small files of messages and dead letters of a stream, once there are enough; at most one merge.

    Called at every `every`-th commit of a stream. Files of complete times are merged: a replay that keeps
    up has read them, and will not have to read the others with them. Where the frontier is held and they
    are many, the earliest commits are merged, complete or not.
    """
    if states.store.append_only:
        return
    for event in ("message", "dead"):
        index = states.files(event)
        mine = index.select(
            (index.stream_lo == stream) & (index.stream_hi == stream) & (index.sizes < _SMALL_TIERS[-1][0])
        )
        mine = mine.select(~were_summed(mine))
        chosen = _due(mine, states.counts().frontier, every)
        if chosen is not None:
            _merge_data(states, chosen, event, TARGET_FILE_BYTES, patience=_INLINE_PATIENCE)
            return


def _due(index: FileIndex, frontier: Antichain, every: int) -> FileIndex | None:
    """Return the files of one tier that are enough for a merge, as many as one merge may take."""
    done = index.known & ~frontier.beyond(index.max_times) & (index.rows >= 0)
    low = 0
    for high, share in _SMALL_TIERS:
        tier = (index.sizes >= low) & (index.sizes < high)
        for chosen, wanted in ((tier & done, every), (tier, _HELD * every)):
            if 2 * share * int(chosen.sum()) >= wanted:
                found = index.select(chosen)
                found = found.select(np.argsort(found.seq_lo, kind="stable"))
                fits = (np.cumsum(found.sizes) <= _MERGE_BYTES) & (np.cumsum(found.rows.clip(0)) <= _MERGE_ROWS)
                found = found.select(fits)
                if len(found) > 1:
                    return found
        low = high
    return None


def _groups(index: FileIndex, target: int, min_files: int) -> list[np.ndarray]:
    """Return files to merge together: next to each other in time, together about as large as wanted."""
    small = np.flatnonzero(index.sizes < target // 2)
    order = small[np.lexsort([index.seq_lo[small], *index.min_times[small].T[::-1]])]
    groups: list[np.ndarray] = []
    start, size = 0, 0
    for at in range(len(order)):
        size += int(index.sizes[order[at]])
        if size >= target or at == len(order) - 1:
            if at + 1 - start >= min_files:
                groups.append(order[start : at + 1])
            start, size = at + 1, 0
    return groups


def _merge_data(states: StreamStates, index: FileIndex, event: str, target: int, *, patience: int = _PATIENCE) -> bool:
    form = states.store.format
    schema = form.data_schema if event == "message" else form.dead_schema
    if event == "message":
        states.look_into(lambda files: np.isin(files.paths, index.paths))
    storage, paths = states.store.storage, index.paths.tolist()
    table = pa.concat_tables(side_by_side(storage, lambda path: read_known(states.store, path, schema), paths))
    new = write_instead(states.store, table, index, target, event=event)
    return replace_files(states.store, index, new, patience)


def write_instead(
    store: Store, table: pa.Table, index: FileIndex, target: int, *, event: str = "message", stem: str | None = None
) -> list[DataFile]:
    """Write rows that come in the place of files, in files named by these or by `stem`."""
    form = store.format
    streams = {*index.stream_lo.tolist(), *index.stream_hi.tolist()}
    # The dot keeps the name apart from that of any stream.
    alone = streams.pop() if len(streams) == 1 else "merged."
    return write_data_files(
        store.storage,
        table,
        form.domain.from_columns(table),
        stream=stem or alone,
        seq=int(index.seq_hi.max()),
        domain=form.domain,
        event=event,
        target_file_size=2 * target,
        key=form.key,
        narrow=False,
        digest_within=0,
    )


def read_known(store: Store, path: str, schema: pa.Schema) -> pa.Table:
    """Read a file of messages or dead letters of which the log has all columns (invariant 3).

    Raises
    ------
    LogDamagedError
        If it has others.
    """

    def check(schema: pa.Schema) -> None:
        unknown = list(store.format.unknown_columns(schema))
        if unknown:
            msg = f"could not merge file {path!r} of log {store.path!r}: found columns={unknown!r} that the log lacks"
            raise LogDamagedError(
                msg,
                hint="add them again, with their types, by log.add_columns, since the entry that added them was lost;"
                " the values are in the file, and come back",
                context={"path": store.path, "file": path},
                determinate=True,
            )

    return read_file(store.storage, path, schema, check=check)


def _merge_progress(states: StreamStates, index: FileIndex, stream: str) -> bool:
    store = states.store
    rows = states.distinct_rows_in(index.paths.tolist())
    new = write_progress_file(store.storage, rows, stream, int(index.seq_hi.max()), store.format.domain)
    done = replace_files(store, index, [new])
    if done:
        states.forget_rows(index.paths.tolist())
    return done


@dataclass(frozen=True, slots=True)
class _Merge(Attempt):
    """New files in the place of old ones, for all attempts.

    It is never overtaken: where the old files are gone it may have landed, and been merged by another since. Readers
    that planned before want the files.
    """

    store: Store
    new: Sequence[DataFile]
    sources: Sequence[DataFile]

    def put(self) -> None:
        changes = self.sources[0].event != "progress"
        self.store.transact(self.new, [], removes=self.sources, data_change=changes, exclusive=True)

    def has_landed(self) -> bool:
        return self.new[0].path in self.store.live


def replace_files(store: Store, index: FileIndex, new: list[DataFile], patience: int = _PATIENCE) -> bool:
    """Put new files in the place of old ones; return False if the old ones are gone already, or others do not stop."""
    merge = _Merge(store, new, as_data_files(index))
    turns = iter(range(patience))

    def decide(pending: Sequence[_Merge]) -> Settled[bool] | _Merge:
        if not all(file.path in store.live for file in merge.sources):
            if not pending:
                discard(store.storage, new)
            return Settled(answer=False)
        if next(turns, None) is None:
            logger.warning("log %r: a merge was put off, others commit all the time", store.path)
            return Settled(answer=False)
        return merge

    try:
        return commit_loop(
            f"merge files of log {store.path!r}",
            context={"path": store.path},
            store=store,
            decide=decide,
            done=lambda: True,
        )
    except LogFormatError:
        discard(store.storage, new)
        raise
