"""Writes the Parquet files of a log: rows of messages with their times, and rows of progress.

The sink's tasks, stream writers, the tasks of dataflows and merges write by it. A writer puts the log's own columns in
front of its rows (`message_table`, `letter_table`) and writes them (`write_data_files`); the files are part of nothing
until a commit adds them. Reading is in `parquet_reader`. Needs pyarrow only, so Spark's tasks can use it.

A file is read by each micro-batch whose range reaches into the file's bounds. In a trickle nearly all rows of a commit
are close together in time and a few are stragglers, from anywhere within the lateness: in one file with them, all rows
would be read again for as long as the late ones are open. So stragglers get files of their own (`narrow_cuts`).
Encodings are chosen by looking at a sample of the rows (`dictionary_columns`).

Invariants
----------
1. Rows of a file are ordered by time; above 128k rows, 16k in a log with a key, a row group ends at a boundary between
   two times wherever one is near enough.
2. A file has the columns of the log's format in their types; `_event` is not inside.
"""

from __future__ import annotations

import itertools
import secrets
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_timely.canonical.content import OF_COMMIT, digest_of_messages, is_worth_it
from spark_timely.errors import InvalidShapeError, InvalidUsageError
from spark_timely.log.files.statistics import COUNTS_KEY, describe_progress, encode_counts, file_statistics, leaf_paths
from spark_timely.log.machine.state import OPEN_STREAM, DataFile
from spark_timely.log.store.storage import not_written
from spark_timely.time.antichain import IntArray, as_times, is_sorted, lexsort, minimal, unique_times
from spark_timely.time.domain import TimeDomain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.store.storage import Storage

ROW_GROUP_ROWS = 128 * 1024
# Of a log with a key: what is read to find one.
_KEYED_ROW_GROUP_ROWS = 16 * 1024
TARGET_FILE_BYTES = 128 * 1024 * 1024
CODECS = ("zstd", "snappy", "gzip", "brotli", "lz4", "none")
# About how much smaller rows are in a file than in memory.
_COMPRESSION = 3
# A stream name cannot contain a dot, and '#' would have to be escaped in the table's log.
_OPEN_FILE_STEM = "open."


def file_name(event: str, stream: str, seq: int, token: str | None = None, *, job: str = "") -> str:
    """Return the relative path of a new file of a commit.

    Examples
    --------
    >>> file_name("message", "main", 7, "ab12")
    '_event=message/main-000000000007-ab12.parquet'
    """
    return f"{_file_stem(event, stream, seq)}{job}{token or secrets.token_hex(8)}.parquet"


def _file_stem(event: str, stream: str, seq: int) -> str:
    stem = _OPEN_FILE_STEM if stream == OPEN_STREAM else stream
    return f"_event={event}/{stem}-{seq:012d}-"


def new_job() -> str:
    """Return a new name of a job, by which `files_of_job` finds what it wrote."""
    return secrets.token_hex(4)


def files_of_job(storage: Storage, stream: str, seq: int, job: str) -> list[str]:
    """Return the files of messages that tasks of a job wrote for a commit, whether or not anybody knows of them.

    Cost: a listing of the folder; in an object store from these names on.
    """
    folder, _, stem = f"{_file_stem('message', stream, seq)}{job}".partition("/")
    found = storage.names(folder, after=stem)
    return [f"{folder}/{name}" for name in found if name.startswith(stem)]


def message_table(
    form: LogFormat, payload: pa.Table, times: IntArray, stream: str, seq: int, diffs: object | None = None
) -> pa.Table:
    """Put our columns in front of payload rows.

    Parameters
    ----------
    form : LogFormat
    payload : pyarrow.Table
        In the log's payload schema (see `conform`).
    times : ndarray of int64, shape (n, k)
    stream, seq
        The commit that the rows belong to.
    diffs : array-like of int64, shape (n,), optional
        Multiplicities, for collections; 1 each if not given.

    Raises
    ------
    InvalidShapeError
        If lengths differ.
    """
    n = payload.num_rows
    times = as_times(times, form.domain.arity)
    if times.shape[0] != n:
        msg = f"could not write rows: found {times.shape[0]} times for {n} rows"
        raise InvalidShapeError(msg)
    columns: dict[str, Any] = {
        "_stream": pa.repeat(pa.scalar(stream, pa.string()), n),
        "_seq": pa.repeat(pa.scalar(seq, pa.int64()), n),
        **form.domain.to_columns(times),
    }
    if form.kind == "collection":
        columns["_diff"] = (
            pa.repeat(pa.scalar(1, pa.int64()), n) if diffs is None else pa.array(np.asarray(diffs, np.int64))
        )
    columns.update(zip(payload.schema.names, payload.columns, strict=True))
    return pa.table({name: columns[name] for name in form.data_columns})


def letter_table(
    form: LogFormat,
    payload: pa.Table,
    times: IntArray,
    stream: str,
    seq: int,
    diffs: object | None = None,
    *,
    reasons: str | pa.Array,
    at: int | None = None,
) -> pa.Table:
    """Put our columns around rows that are set apart: those of messages, the reason and the wall clock.

    Parameters
    ----------
    form, payload, times, stream, seq, diffs
        As in `message_table`. A letter has a time; one that came without stands at the log's minimum.
    reasons : str or pyarrow.Array
        Why: one for all, or one each.
    at : int, optional
        When that was decided, microseconds since the epoch, UTC; now unless given.
    """
    n = payload.num_rows
    clock = time.time_ns() // 1000 if at is None else at
    table = message_table(form, payload, times, stream, seq, diffs)
    table = table.append_column("_reason", pa.repeat(pa.scalar(reasons), n) if isinstance(reasons, str) else reasons)
    table = table.append_column("_at", pa.repeat(pa.scalar(clock, pa.timestamp("us", "UTC")), n))
    return table.select(form.dead_schema.names)


def check_codec(path: str, compression: object) -> None:
    """Refuse a codec that Parquet files of a log cannot have, before anything is written.

    Raises
    ------
    InvalidUsageError
    """
    if not isinstance(compression, str) or compression.lower() not in CODECS:
        msg = f"could not write to log {path!r}: found compression={compression!r}"
        raise InvalidUsageError(msg, hint=f"choose among {', '.join(CODECS)}")


def write_data_files(
    storage: Storage,
    table: pa.Table,
    times: IntArray,
    *,
    stream: str,
    seq: int,
    domain: TimeDomain,
    event: str = "message",
    target_file_size: int = TARGET_FILE_BYTES,
    compression: str = "zstd",
    row_group_rows: int | None = None,
    key: Sequence[str] = (),
    narrow: bool = True,
    begun: list[str] | None = None,
    job: str = "",
    digest_within: int | None = OF_COMMIT,
) -> list[DataFile]:
    """Write rows to as few files as the target size allows, ordered by time.

    Messages far from all others get files of their own, three at most: see `narrow_cuts`.

    Parameters
    ----------
    storage : Storage
    table : pyarrow.Table
        Columns as `message_table` gives them, or any others that the log has. Not modified.
    times : ndarray of int64, shape (n, k)
        Times of the rows; the time columns of `table` say the same.
    stream, seq
        The commit that the rows are meant for; part of the file names.
    domain : TimeDomain
    event : str
        `message` or `dead`.
    target_file_size : int
        Bytes after which a new file is begun, at the end of a row group.
    compression : str
        Codec of Parquet.
    row_group_rows : int, optional
        Rows above which a row group is cut; fewer where there is a key.
    key : sequence of str
        Columns by which rows of one time are ordered, null last; none: they stay in their order.
    narrow : bool
        Whether to keep files of messages narrow in time, at the price of some more.
    begun : list of str, optional
        Gets the path of each file before it is written: a write that fails does not say which there are.
    job : str
        From `new_job`: where the writer may not live to say which files there are.
    digest_within : int or None
        Up to how much work the digest of messages is computed: see `spark_timely.canonical.content`.

    Returns
    -------
    list of DataFile
        Empty for no rows. The files are flushed, and not part of the log yet.

    Raises
    ------
    StorageError
        If a file cannot be written; then none of them is needed.

    Notes
    -----
    Cost: one sort where the rows are not ordered by time already, one copy, one write.
    """
    if table.num_rows == 0:
        return []
    times = as_times(times, domain.arity)
    if row_group_rows is None:
        row_group_rows = _KEYED_ROW_GROUP_ROWS if key else ROW_GROUP_ROWS
    if key:
        by = [(name, "ascending") for name in (*domain.columns, *key)]
        ranks = pc.sort_indices(table, sort_keys=by)
        table, times = table.take(ranks), times[ranks.to_numpy()]
    elif not is_sorted(times):
        order = lexsort(times)
        table, times = table.take(order), times[order]
    digests = event == "message" and is_worth_it(table, digest_within)
    apart = narrow_cuts(times, table.nbytes // _COMPRESSION) if narrow and event == "message" else []
    written: list[DataFile] = []
    for first, stop in itertools.pairwise([0, *apart, len(times)]):
        part, part_times = table.slice(first, stop - first), times[first:stop]
        cuts = _row_groups(part_times, row_group_rows)
        while len(cuts) > 1:
            path = file_name(event, stream, seq, job=job)
            if begun is not None:
                begun.append(path)
            try:
                file, n_groups = _write_file(
                    storage, path, part, part_times, cuts, event=event, domain=domain,
                    target_file_size=target_file_size, compression=compression, digests=digests,
                )  # fmt: skip
            except OSError as error:
                raise not_written(storage.uri, path, error) from error
            written.append(file)
            cuts = cuts[n_groups:]
    storage.flush(file.path for file in written)
    return written


def _write_file(
    storage: Storage,
    path: str,
    table: pa.Table,
    times: IntArray,
    cuts: Sequence[int],
    *,
    event: str,
    domain: TimeDomain,
    target_file_size: int,
    compression: str,
    digests: bool,
) -> tuple[DataFile, int]:
    """Write row groups until the file is large enough; return the file, and how many it has.

    Parameters
    ----------
    table, times
        The rows of all files of a part, in their order.
    cuts : sequence of int
        Where the row groups that are still to be written begin, and the end of the last one.
    """
    n_groups = 0
    metadata: list[pq.FileMetaData] = []
    with storage.open_output(path) as sink:
        writer = pq.ParquetWriter(
            sink,
            table.schema,
            compression=compression,
            use_dictionary=dictionary_columns(table),
            store_schema=False,
            metadata_collector=metadata,
        )
        for low, high in itertools.pairwise(cuts):
            writer.write_table(table.slice(low, high - low), row_group_size=high - low)
            n_groups += 1
            if sink.tell() >= target_file_size:
                break
        first, n_rows = cuts[0], cuts[n_groups] - cuts[0]
        rows, times = table.slice(first, n_rows), times[first : first + n_rows]
        distinct, counts = unique_times(times)
        packed = encode_counts(distinct, counts)
        if packed is not None:
            writer.add_key_value_metadata({COUNTS_KEY: packed.decode()})
        writer.close()
        size = sink.tell()
    described = DataFile(
        path=path,
        size_bytes=size,
        n_rows=n_rows,
        event=event,
        stats=file_statistics(metadata[0], table.schema).to_json(n_rows),
        minima=minimal(distinct),
        bounds=np.stack([times.min(axis=0), times.max(axis=0)]),
        digest=digest_of_messages(rows) if digests else None,
    )
    return described, n_groups


def _row_groups(times: IntArray, row_group_rows: int) -> list[int]:
    """Return where row groups begin and end: at boundaries between times, where one is near enough."""
    n = times.shape[0]
    if n <= row_group_rows:
        return [0, n]
    changes = np.flatnonzero((times[1:] != times[:-1]).any(axis=1)) + 1
    cuts = [0]
    while n - cuts[-1] > row_group_rows:
        limit = cuts[-1] + row_group_rows
        at = int(np.searchsorted(changes, limit, side="right")) - 1
        best = int(changes[at]) if at >= 0 else 0
        cuts.append(best if best > cuts[-1] else limit)
    return [*cuts, n]


def write_progress_file(
    storage: Storage, rows: pa.Table, stream: str, seq: int, domain: TimeDomain, *, event: str = "progress"
) -> DataFile:
    """Write one progress batch, or the merged batches of one stream, to a small file, and flush it.

    Parameters
    ----------
    storage : Storage
    rows : pyarrow.Table
        In the log's progress schema, not empty, sorted by seq.
    stream, seq
        For the file name: the newest batch.
    domain : TimeDomain
    event : str
        `since` and `retain` for rows of that kind, which have the same columns.
    """
    sink = pa.BufferOutputStream()
    # A few rows are read whole: dictionaries, statistics and compression would only cost time. A byte that changes in
    # a number would give another frontier, so pages have checksums: at about 90 bytes a file, and no time that shows.
    few = rows.num_rows <= 16
    pq.write_table(
        rows,
        sink,
        compression="none" if few else "zstd",
        store_schema=False,
        use_dictionary=not few,
        write_statistics=not few,
        write_page_checksum=True,
    )
    content = sink.getvalue()
    path = file_name(event, stream, seq)
    storage.write(path, content)
    storage.flush([path])
    return describe_progress(path, content.size, rows, domain, event=event)


MOST_PARTS = 4
# What a Parquet file of few rows weighs, whatever is in it.
_FILE_BYTES = 2048
# The first cut has to spare this share of what is read: rows spread evenly, or around one time, stay together.
# A further one has to spare a share of what is read of the part that it cuts, and of all that is read.
_FIRST_WORTH, _PART_WORTH, _WORTH = 0.4, 0.3, 0.15


def narrow_cuts(times: IntArray, size_bytes: int) -> list[int]:
    """Return where a new file ought to begin: at most three places, each between two times.

    Parameters
    ----------
    times : ndarray of int64, shape (n, k)
        In lexicographic order. Only the first coordinate decides.
    size_bytes : int
        About how large the rows are in a file.

    Returns
    -------
    list of int
        Ascending row numbers in (0, n).

    Notes
    -----
    A file is taken to be read once, and once more for each step of the frontier through its bounds: as
    many as its distinct times at most, and as many as its span is longer than that of the rows that lie
    densest. Cost: O(n).

    Examples
    --------
    >>> late = np.concatenate([[0, 20, 40], np.full(1000, 60)]).reshape(-1, 1)
    >>> narrow_cuts(late, 100_000), narrow_cuts(np.arange(1000).reshape(-1, 1), 100_000)
    ([3], [])
    """
    keys = times[:, 0].astype(np.float64)  # a span of int64 may not fit int64
    n = keys.shape[0]
    places = np.flatnonzero(times[1:, 0] != times[:-1, 0]) + 1
    if not places.size:
        return []
    half = (n + 1) // 2
    dense = max(2.0 * float((keys[half - 1 :] - keys[: n - half + 1]).min()), 1.0)
    costs = _Costs(keys, places, size_bytes / n, dense)
    cuts = [0, n]
    while len(cuts) <= MOST_PARTS:  # ends: each pass adds a cut
        parts = np.array(list(itertools.pairwise(cuts)))
        read = costs.of(parts[:, 0], parts[:, 1])
        best = [costs.best_cut(a, b) for a, b in parts.tolist()]
        own = _FIRST_WORTH if len(parts) == 1 else _PART_WORTH
        worth = np.maximum(own * read, _WORTH * read.sum())
        saved, place = max((found if found[0] > least else (0.0, 0)) for found, least in zip(best, worth, strict=True))
        if not saved:
            break
        cuts = sorted([*cuts, place])
    return cuts[1:-1]


class _Costs:
    """Bytes that a replay reads of a file of some of the rows."""

    def __init__(
        self, keys: npt.NDArray[np.float64], places: npt.NDArray[np.intp], row_bytes: float, dense: float
    ) -> None:
        self._keys = keys
        self._places = places
        self._row_bytes = row_bytes
        self._dense = dense

    def of(self, first: npt.NDArray[np.intp], stop: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Return the cost of files of the rows from `first` to `stop`."""
        steps = (self._keys[stop - 1] - self._keys[first]) / self._dense
        changes = np.searchsorted(self._places, stop, side="left") - np.searchsorted(self._places, first, side="right")
        cost: npt.NDArray[np.float64] = (_FILE_BYTES + self._row_bytes * (stop - first)) * (
            1 + np.minimum(steps, changes)
        )
        return cost

    def best_cut(self, first: int, stop: int) -> tuple[float, int]:
        """Return how much the best cut between two rows spares, and where it is."""
        low, high = np.searchsorted(self._places, first, side="right"), np.searchsorted(self._places, stop, side="left")
        places = self._places[low:high]
        if not places.size:
            return 0.0, 0
        ends = np.full_like(places, first), np.full_like(places, stop)
        costs = self.of(ends[0], places) + self.of(places, ends[1])
        best = int(np.argmin(costs))
        return float(self.of(ends[0][:1], ends[1][:1])[0] - costs[best]), int(places[best])


SAMPLE_ROWS = 32 * 1024
# This number of rows drawn from the sample mostly says enough: without doubles there, hardly any value repeats.
_DRAWN_ROWS = 2 * 1024
_SURELY, _HARDLY = 0.25, 0.97


def dictionary_columns(table: pa.Table) -> list[str] | bool:
    """Return the Parquet columns whose values repeat; a dictionary of others saves nothing.

    Measured with 500k rows of (time, key, double, text): a dictionary for each column takes 0.24 s of
    work and 10.8 MB, one for the time only 0.11 s and 8.6 MB.

    Parameters
    ----------
    table : pyarrow.Table
        Rows of a file.

    Returns
    -------
    list of str, or bool
        Paths of leaf columns, as Parquet names them; True for all, where there are few rows.

    Notes
    -----
    Cost: one count of distinct values per column, over 2k rows, where that does not tell over at most 32k.

    Examples
    --------
    >>> n = 100_000
    >>> table = pa.table({"id": range(n), "word": ["a", "b"] * (n // 2), "many": [[1]] * n})
    >>> dictionary_columns(table)
    ['word', 'many.list.element']
    """
    n = table.num_rows
    if n < SAMPLE_ROWS // 2:
        return True
    sample = table.slice((n - min(n, SAMPLE_ROWS)) // 2, SAMPLE_ROWS)
    # In no order: values may repeat at any distance.
    drawn = pa.array(np.sort(np.random.default_rng(0).choice(sample.num_rows, _DRAWN_ROWS, replace=False)))
    names: list[str] = []
    for field, column in zip(table.schema, sample.columns, strict=True):
        if pa.types.is_nested(field.type):
            names += leaf_paths(field.name, field.type)
        elif not pa.types.is_boolean(field.type) and _repeats(column, drawn):
            names.append(field.name)
    return names


def _repeats(column: pa.ChunkedArray, drawn: pa.Array) -> bool:
    """Whether values of a sample come twice or more on average."""
    distinct = pc.count_distinct(column.take(drawn)).as_py()
    if _SURELY * len(drawn) < distinct < _HARDLY * len(drawn):
        return bool(2 * pc.count_distinct(column).as_py() <= len(column))
    return bool(2 * distinct <= len(drawn))
