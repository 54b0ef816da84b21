"""Physical compaction: merge small files into larger ones. Changes no answer.

Merged rows keep `_stream` and `_seq`, so the order of events can still be told.

Invariants
----------
1. A merge commits exclusively, exactly on top of a snapshot in which all its sources are live: delta-rs
   does not notice when two commits remove the same file, and each would add its rows again.
2. The rows of the merged file are those of its sources. Merged messages are committed *with* data change:
   OPTIMIZE of delta-rs looks at nothing else when it finds that a file it has read was removed meanwhile,
   and would add the rows a second time (tried with 1.6.6; it does so to a second OPTIMIZE of its own).
   A plain Delta stream over the table of a log therefore needs `skipChangeCommits`, which passes over
   merges. Progress is merged without: rows of it that are there twice count once.
3. Sources are left where they are, for readers that planned before: VACUUM deletes them later.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.errors import InvalidUsageError, LogFormatError, StorageError
from spark_timely.log.base import DataFile
from spark_timely.log.files import TARGET_FILE_BYTES, read_file, write_data_files, write_progress_file
from spark_timely.log.state import distinct_rows
from spark_timely.log.store import LostRaceError

if TYPE_CHECKING:
    from spark_timely.log.core import LogCore
    from spark_timely.log.index import FileIndex

__all__ = ["CompactionReport", "compact", "merge_small_files"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 20
_MAX_UNCLEAR = 3
# What a commit may merge by the way: so little that it is hardly noticed.
_TINY_BYTES = 256 * 1024
_PROGRESS_TIERS = ((1_000, 1), (100_000, 3))


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction did.

    Parameters
    ----------
    files_before, files_after : int
        Live files of messages, dead letters and progress.
    bytes_rewritten : int
    merges : int
        Commits made.
    lost : int
        Merges given up because another writer rewrote the same files meanwhile.
    """

    files_before: int
    files_after: int
    bytes_rewritten: int
    merges: int
    lost: int


def compact(log: LogCore, *, target_file_size: int = TARGET_FILE_BYTES, min_files: int = 2) -> CompactionReport:
    """Merge small files of a log, messages ordered by time, and progress per stream.

    Parameters
    ----------
    log : LogCore
    target_file_size : int
        Bytes of a file that is large enough; files are merged up to about this size.
    min_files : int
        Fewest files that are worth a merge.

    Notes
    -----
    Cost: reads and writes what it merges, one group of up to `target_file_size` bytes at a time.
    """
    if target_file_size < 1 or min_files < 2:
        msg = f"could not compact log {log.path!r}: found target_file_size={target_file_size} min_files={min_files}"
        raise InvalidUsageError(
            msg,
            hint="target_file_size is at least 1 byte, min_files at least 2",
        )
    log.refresh()
    log.check_writable()
    if log.store.append_only:
        msg = f"could not compact log {log.path!r}: found the table property delta.appendOnly=true"
        raise InvalidUsageError(msg, hint="unset the property; it forbids that files are replaced")
    before = len(log._all_files())
    merged = rewritten = lost = 0
    for event in ("message", "dead"):
        index = log._all_files().of_event(event)
        for group in _groups(index, target_file_size, min_files):
            done = _merge_data(log, index.select(group), event, target_file_size)
            merged, lost = merged + done, lost + (not done)
            rewritten += int(index.sizes[group].sum()) if done else 0
    index = log.progress_files()
    for stream in sorted({*index.stream_lo.tolist()} & {*index.stream_hi.tolist()}):
        mine = index.select((index.stream_lo == stream) & (index.stream_hi == stream))
        if len(mine) >= min_files:
            done = _merge_progress(log, mine, stream)
            merged, lost = merged + done, lost + (not done)
            rewritten += int(mine.sizes.sum()) if done else 0
    log.refresh()
    return CompactionReport(before, len(log._all_files()), rewritten, merged, lost)


def merge_small_files(log: LogCore, stream: str, every: int) -> None:
    """Merge the tiny files that many small commits of a stream leave behind, once there are enough.

    Called at every `every`-th commit of a stream.

    Progress files are merged by a hundred, and again when many merged ones have come together, so that
    their number grows with the logarithm of the history. Message files are merged while they are tiny.
    """
    index = log.progress_files()
    mine = index.select((index.stream_lo == stream) & (index.stream_hi == stream))
    if len(mine) * 2 >= every:
        for n_rows, share in _PROGRESS_TIERS:
            small = mine.select((mine.rows >= 0) & (mine.rows < n_rows))
            if len(small) * share * 2 >= every:
                _merge_progress(log, small, stream)
                break
    if log.store.append_only:
        return
    index = log.files()
    chosen = (index.stream_lo == stream) & (index.stream_hi == stream) & (index.sizes < _TINY_BYTES)
    if chosen.sum() * 2 >= every:
        _merge_data(log, index.select(chosen), "message", TARGET_FILE_BYTES)


def _groups(index: FileIndex, target: int, min_files: int) -> list[np.ndarray]:
    """Return files to merge together: next to each other in time, together about as large as wanted."""
    small = np.flatnonzero(index.sizes < target // 2)
    order = small[np.lexsort([index.seq_lo[small], *index.min_times[small].T[::-1]])]
    groups: list[np.ndarray] = []
    start, size = 0, 0
    for at in range(len(order)):  # one turn per small file
        size += int(index.sizes[order[at]])
        if size >= target or at == len(order) - 1:
            if at + 1 - start >= min_files:
                groups.append(order[start : at + 1])
            start, size = at + 1, 0
    return groups


def _sources(index: FileIndex) -> list[DataFile]:
    none = np.empty((0, index.min_times.shape[1]), np.int64)
    rows = zip(index.paths.tolist(), index.sizes.tolist(), index.rows.tolist(), index.events.tolist(), strict=True)
    return [DataFile(path, size, n, event, "{}", none, None) for path, size, n, event in rows]


def _merge_data(log: LogCore, index: FileIndex, event: str, target: int) -> bool:
    form = log.format
    schema = form.data_schema if event == "message" else form.dead_schema
    table = pa.concat_tables([read_file(log.storage, path, schema) for path in index.paths.tolist()])
    times = form.domain.from_columns(table)
    streams = set(index.stream_lo.tolist()) | set(index.stream_hi.tolist())
    # The dot keeps the name apart from that of any stream.
    stream = streams.pop() if len(streams) == 1 else "merged."
    new = write_data_files(
        log.storage,
        table,
        times,
        stream=stream,
        seq=int(index.seq_hi.max()),
        domain=form.domain,
        event=event,
        target_file_size=2 * target,
    )
    return _replace(log, index, new)


def _merge_progress(log: LogCore, index: FileIndex, stream: str) -> bool:
    rows = pa.concat_tables([log._progress_rows(path) for path in index.paths.tolist()])
    rows = distinct_rows(log.format, rows)
    new = write_progress_file(log.storage, rows, stream, int(index.seq_hi.max()), log.domain)
    done = _replace(log, index, [new])
    if done:
        for path in index.paths.tolist():
            log._rows_by_path.pop(path, None)
    return done


def _replace(log: LogCore, index: FileIndex, new: list[DataFile]) -> bool:
    """Put new files in the place of old ones; return False if the old ones are gone already."""
    sources = _sources(index)
    event = sources[0].event
    wanted = {f.path for f in sources}
    unclear = 0
    for _ in range(_ATTEMPTS):
        log.store.refresh(force=True)
        live = set(log._all_files().paths.tolist())
        if new[0].path in live:
            return True
        if not wanted <= live:
            # Where an attempt was unclear it may still land, but only on top of a version that is gone.
            log._discard(new)
            return False
        try:
            log.store.transact(new, [], removes=sources, data_change=event != "progress", exclusive=True)
        except LogFormatError:
            log._discard(new)
            raise
        except LostRaceError:
            continue
        except StorageError:
            unclear += 1
            if unclear == _MAX_UNCLEAR:
                raise
    log.store.refresh(force=True)
    if new[0].path in set(log._all_files().paths.tolist()):
        return True
    logger.warning("log %r: a merge was put off, others commit all the time", log.path)
    return False
