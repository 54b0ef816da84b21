"""A run: updates of a collection, sorted by the hash of their key, in one file that is mapped into memory.

An index is several runs (`spine`). `dataflow.engine.task_runner` writes and merges them; `arrangement` looks into them.

A file in Arrow's format, uncompressed, so that a look reads the pages alone that it needs. Its columns are `_hash` (of
the key), `_time`, `_diff`, then those of the rows. Batches are bounded, and no hash is in two of them.

Invariants
----------
1. A run has its updates summed: two rows of it are equal in row and time only where 64 bits do not hold their sum.
2. What a look finds is by hash: rows of other keys may be among it, which the caller separates by their values.
3. A file has its name once it is whole.
4. A file is looked into once its checksum has been compared: whatever changes a bit of it makes it another file.
5. A file says which index it was made for: that of another log, or by another key, is not looked into.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_timely.trace.folder import delete
from spark_timely.trace.updates import Updates, places_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_timely.trace.spine import RunFile

__all__ = ["DamagedRunError", "Run", "in_pieces", "mapped_run", "merge_pieces", "write_run"]

PIECE_ROWS: Final = 1 << 20
"""Rows of a batch, about: what a merge holds in memory at once."""

_PIECE_BYTES: Final = 256 << 20

# Runs that a process keeps mapped: what is looked into rarely is mapped again.
_MOST_MAPPED: Final = 256

_LINEAGE: Final = b"timely.lineage"
_HASH, _TIME, _DIFF = "_hash", "_time", "_diff"


def in_pieces(updates: Updates, piece_rows: int = PIECE_ROWS) -> Iterator[Updates]:
    """Cut consolidated updates in pieces for `write_run`."""
    n, hashes = len(updates), updates.hashes
    assert hashes is not None
    if updates.rows.nbytes > _PIECE_BYTES:
        piece_rows = min(piece_rows, max(1, n * _PIECE_BYTES // updates.rows.nbytes))
    first = 0
    while first < n:
        stop = int(np.searchsorted(hashes, hashes[min(first + piece_rows, n) - 1], "right"))
        yield updates.slice(first, stop - first)
        first = stop


def write_run(path: str, pieces: Iterable[Updates], *, lineage: str = "", flush: bool = True) -> tuple[int, int, int]:
    """Write a run.

    Parameters
    ----------
    path : str
        A name that nothing has.
    pieces : iterable of Updates
        Each consolidated, in the order of their hashes, and no hash in two of them; empty ones may be among them.
    lineage : str
        Of the index that it is made for.
    flush : bool
        Whether it has to outlast a power cut.

    Returns
    -------
    rows, size_bytes, checksum : int
        All 0, and no file, where there are none.
    """
    unfinished = f"{path}.tmp"
    n_rows = 0
    writer = None
    firsts: list[int] = []
    lasts: list[int] = []
    try:
        with pa.OSFile(unfinished, "wb") as sink:
            for piece in pieces:
                if piece.hashes is None or not len(piece):
                    continue
                batch = _batch(piece, lineage)
                if writer is None:
                    writer = pa.ipc.new_file(sink, batch.schema)
                writer.write_batch(batch)
                n_rows += batch.num_rows
                firsts.append(int(piece.hashes[0]))
                lasts.append(int(piece.hashes[-1]))
            if writer is not None:
                writer.close()
        if writer is None:
            os.unlink(unfinished)
            return 0, 0, 0
        size = os.path.getsize(unfinished)
        checksum = _checksum(pa.memory_map(unfinished))
        if flush:
            handle = os.open(unfinished, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        os.replace(unfinished, path)
        if flush:
            _flush_folder(os.path.dirname(path))
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
    return n_rows, size, checksum


def _checksum(file: pa.MemoryMappedFile) -> int:
    """Return the CRC-32 of a file: 0.15 s a GB, once it is in memory."""
    file.seek(0)
    return zlib.crc32(file.read_buffer())


def _flush_folder(folder: str) -> None:
    """Have the names in a folder outlast a power cut."""
    handle = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _batch(piece: Updates, lineage: str) -> pa.RecordBatch:
    rows = piece.rows.combine_chunks()
    (batch,) = rows.to_batches(max_chunksize=rows.num_rows) if rows.num_columns else (None,)
    columns = [] if batch is None else batch.columns
    arrays = [pa.array(piece.hashes), pa.array(piece.times[:, 0]), pa.array(piece.diffs), *columns]
    fields = [pa.field(_HASH, pa.uint64()), pa.field(_TIME, pa.int64()), pa.field(_DIFF, pa.int64()), *rows.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, {_LINEAGE: lineage.encode()}))


def _piece(batch: pa.RecordBatch) -> Updates:
    """Return what `_batch` was made of."""
    hashes, times, diffs = (np.asarray(batch.column(place).to_numpy()) for place in range(3))
    table = pa.Table.from_batches([batch])
    return Updates(table.select(table.schema.names[3:]), times.reshape(-1, 1), diffs, hashes)


class DamagedRunError(OSError):
    """The file of a run is not what was written."""


class Run:
    """A run, mapped into memory.

    Parameters
    ----------
    path : str
    size_bytes, checksum : int
        That the file must have.
    lineage : str
        Of the index that it must be made for.

    Raises
    ------
    DamagedRunError
        If it has others, or is made for another one.
    OSError
        If the file is not there.

    Notes
    -----
    Cost: the file is read once, to compare its checksum.
    """

    def __init__(self, path: str, size_bytes: int, checksum: int, lineage: str = "") -> None:
        found = os.path.getsize(path)
        if found != size_bytes:
            msg = f"{path!r} has {found} bytes, not {size_bytes}"
            raise DamagedRunError(msg)
        file = pa.memory_map(path)
        if _checksum(file) != checksum:
            msg = f"{path!r} has another checksum than what was written"
            raise DamagedRunError(msg)
        file.seek(0)
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowException as error:
            msg = f"{path!r} is no run: {error}"
            raise DamagedRunError(msg) from error
        if (reader.schema.metadata or {}).get(_LINEAGE) != lineage.encode():
            msg = f"{path!r} is a run of another index"
            raise DamagedRunError(msg)
        self.lineage = lineage
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        batches = [batch.replace_schema_metadata() for batch in batches]
        self._size_bytes = size_bytes
        self._pieces = [_piece(batch) for batch in batches]
        self._hashes = [np.asarray(batch.column(0).to_numpy()) for batch in batches]
        self._firsts = np.array([hashes[0] for hashes in self._hashes], np.uint64)

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self._size_bytes

    @property
    def n_rows(self) -> int:
        """How many updates it has."""
        return sum(hashes.shape[0] for hashes in self._hashes)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        schema: pa.Schema = self._pieces[0].rows.schema
        return schema

    def look_up(self, hashes: npt.NDArray[np.uint64]) -> Iterator[Updates]:
        """Give the updates of some hashes.

        Parameters
        ----------
        hashes : ndarray of uint64, shape (n,)
            Ascending, each once.

        Notes
        -----
        Cost: a binary search for each hash; the pages alone are read that these touch.
        """
        if hashes.shape[0] == 1:  # what a reader asks for one key waits for nothing else
            number = int(np.searchsorted(self._firsts[1:], hashes[0], "right"))
            first = self._hashes[number].searchsorted(hashes[0], "left")
            stop = self._hashes[number].searchsorted(hashes[0], "right")
            if first < stop:
                yield self._pieces[number].slice(int(first), int(stop - first))
            return
        ends = np.empty(self._firsts.shape[0] + 1, np.intp)
        ends[0], ends[-1] = 0, hashes.shape[0]
        ends[1:-1] = np.searchsorted(hashes, self._firsts[1:])
        for number in np.flatnonzero(ends[1:] > ends[:-1]).tolist():
            mine = hashes[ends[number] : ends[number + 1]]
            places = places_of(mine, self._hashes[number])
            if places.shape[0]:
                yield self._pieces[number].take(places)

    def between(self, first: int, last: int) -> Iterator[Updates]:
        """Give the updates whose hash is not below `first` and not above `last`, in the order of hashes; no copies."""
        for number, hashes in enumerate(self._hashes):
            low = int(np.searchsorted(hashes, np.uint64(first), "left"))
            high = int(np.searchsorted(hashes, np.uint64(last), "right"))
            if low < high:
                yield self._pieces[number].slice(low, high - low)

    def cuts(self, n: int) -> list[int]:
        """Return n - 1 hashes or fewer that part the run in about equal pieces."""
        every = self.n_rows
        found: list[int] = []
        begin = 0
        for hashes in self._hashes:
            inside = [every * i // n - begin for i in range(1, n)]
            found += [int(hashes[at]) for at in inside if 0 <= at < hashes.shape[0]]
            begin += hashes.shape[0]
        return sorted(set(found))


def merge_pieces(runs: Sequence[Run], since: int | None, *, piece_rows: int = PIECE_ROWS) -> Iterator[Updates]:
    """Give the updates of some runs as those of one, piece by piece: what `write_run` takes.

    Parameters
    ----------
    runs : sequence of Run
        Not empty.
    since : int or None
        Times before it are moved to it.
    piece_rows : int
        Rows of a piece, about.

    Notes
    -----
    Cost: each row is read and written once; a few pieces are held in memory.
    """
    largest = max(runs, key=lambda run: run.n_rows)
    n_rows = sum(run.n_rows for run in runs)
    n_bytes = sum(run.size_bytes for run in runs)
    cuts = largest.cuts(max(1, -(-n_rows // piece_rows), n_bytes // _PIECE_BYTES))
    ends = [0, *cuts, 1 << 64]
    for first, stop in itertools.pairwise(ends):
        if first == stop:
            continue
        parts = [part for run in runs for part in run.between(first, stop - 1)]
        if parts:
            every = Updates.concat(parts)
            yield (every if since is None else every.advanced((since,))).consolidated(partial=True)


# By folder and name: the run, and what the file was like when it was mapped.
_mapped: OrderedDict[tuple[str, str], tuple[Run, tuple[int, int, int]]] = OrderedDict()
_lock = Lock()


def mapped_run(folder: str, file: RunFile, lineage: str = "") -> Run:
    """Return a run of the index of a lineage, mapped.

    Raises
    ------
    OSError
        If its file is not there, is damaged, or a run of another index: then it is deleted, so that the index is made
        once more.
    """
    key, path = (folder, file.name), os.path.join(folder, file.name)
    # A file that somebody writes into is no error of memory that is mapped: it would simply be other bytes.
    state = os.stat(path)
    mark = state.st_ino, state.st_size, state.st_mtime_ns
    with _lock:
        found = _mapped.get(key)
        if found is not None and found[1] == mark and found[0].lineage == lineage:
            _mapped.move_to_end(key)
            return found[0]
    try:
        run = Run(path, file.size_bytes, file.checksum, lineage)
        if run.n_rows != file.rows:
            msg = f"{path!r} has {run.n_rows} updates, not {file.rows}"
            raise DamagedRunError(msg)
    except DamagedRunError:
        delete(folder, [file.name])
        raise
    with _lock:
        _mapped[key] = run, mark
        while len(_mapped) > _MOST_MAPPED:
            _mapped.popitem(last=False)
    return run
