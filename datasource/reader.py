"""The reader of a split, in an executor: Parquet files of the log in, Arrow record batches out.

The readers of `spark_readers` run it in their tasks, and so do tasks of dataflows and continual tasks. No Spark here
and no state: what is read depends on the split and the layout alone, and reading a split again gives the same rows.
With ``content=splits`` a user's own function in ``mapInArrow`` calls `read_splits`.

Several engines write a log's files: this library, Spark, the OPTIMIZE of delta-spark (INT96 timestamps without zone)
and of delta-rs (large or view types). The values are the same, the Arrow types are not: `conform_array` gives columns
the types that were declared.

Invariants
----------
1. A row is given out exactly when its own time, or its own commit, is in the split's range: bounds of
   files and row groups only spare work.
2. Every record batch has exactly the layout's schema: timestamps in UTC, no dictionaries, columns that
   a file does not have are null.
3. Under ``arrival`` the rows of a split come in the order of their commits, progress rows of a commit
   after its messages.
"""

from __future__ import annotations

import time as clock
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_timely.datasource.splits import ReplayLayout, Split, split_from
from spark_timely.errors import DataLossError, InvalidUsageError, SchemaMismatchError
from spark_timely.log.files.footer import Footer
from spark_timely.log.files.parquet_reader import expect_columns
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import checked_options
from spark_timely.masking import masked_logger
from spark_timely.protocol.replay import Piece, lexicographically_below, part_of, surely_holds, within
from spark_timely.spark.base.worker import settle_worker
from spark_timely.time.antichain import beyond
from spark_timely.trace.updates import DIFF, Updates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from spark_timely.log.store.storage import Storage
    from spark_timely.time.antichain import BoolArray, IntArray
    from spark_timely.time.domain import TimeDomain
    from spark_timely.trace.keys import KeySet


BATCH_ROWS: Final = 100_000

# A file that is not there may be a store's delay; then it is lost, or a vacuum took it.
_RETRIES_S: Final = (0.1, 0.4, 1.5)

_log = masked_logger("spark_timely.datasource")


def read_split(
    split: Split,
    layout: ReplayLayout,
    /,
    *,
    storage: Storage | None = None,
    batch_rows: int = BATCH_ROWS,
    pause: Callable[[float], None] = clock.sleep,
    keys: KeySet | None = None,
) -> Iterator[pa.RecordBatch]:
    """Give out the rows of one split.

    Parameters
    ----------
    split : Split
    layout : ReplayLayout
        Of the rows.
    storage : Storage, optional
        Where the files are; by the path of the log unless given.
    batch_rows : int
        About how many rows per record batch.
    pause : callable
        Waits the given seconds between attempts to open a file that is missing.
    keys : KeySet, optional
        Row groups that surely have none of them are not read; rows of others may come all the same.

    Yields
    ------
    pyarrow.RecordBatch
        With exactly `layout.schema`, none empty.

    Raises
    ------
    DataLossError
        If a file is missing and stays so.
    StorageError
        If a file cannot be read.

    Notes
    -----
    Cost: only row groups are decoded whose bounds reach into the range, only columns that are needed.
    Row groups that lie in it as a whole are passed on without looking at their rows.
    """
    files = _Files(split, layout, storage or open_storage(split.root), pause, keys)
    if split.commits is not None:
        yield from _in_order(files, split, layout, batch_rows)
        return
    if split.consolidate:
        yield from _contents(split, layout, files, batch_rows)
    else:
        yield from files.rows(batch_rows)
    if split.progress:
        yield from (batch for batch in progress_rows(split).to_batches() if batch.num_rows)


def _contents(split: Split, layout: ReplayLayout, files: _Files, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Give out contents: equal rows once, with the sum of their diffs.

    A row of the contents comes from no one commit, so `_stream` and `_seq` are null. The diffs are needed
    for the sums, whether or not they are asked for.
    """
    wanted = layout.schema
    names = [name for name in wanted.names if name not in _COMMIT_COLUMNS]
    fields = [wanted.field(name) for name in names if name != "_diff"]
    files.layout = layout.with_schema(pa.schema([*fields, pa.field("_diff", pa.int64())]))
    table = pa.Table.from_batches(files.rows(batch_rows), files.layout.schema)
    rows = table.select([field.name for field in fields])
    # Their times, where they are asked for, are columns as any other. Other splits may have more of a row.
    held = Updates.contents(rows, np.asarray(table.column(DIFF).to_numpy(), np.int64))
    summed = held.consolidated(partial=True).as_table()
    for batch in summed.select(names).combine_chunks().to_batches(batch_rows):
        columns = [
            pa.nulls(batch.num_rows, field.type) if field.name in _COMMIT_COLUMNS else batch.column(field.name)
            for field in wanted
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


_COMMIT_COLUMNS: Final = ("_stream", "_seq")


def read_splits(
    batches: Iterable[pa.RecordBatch],
    *,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[pa.Table]:
    """Read the rows behind the splits of ``content=splits``, inside ``mapInArrow``.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        What ``mapInArrow`` passes to its function.
    columns : sequence of str, optional
        Columns to read, in this order: of the payload, and the times and, of a collection log,
        ``_diff``. All unless given.
    storage_options : mapping of str to str, optional
        Settings and credentials of a cloud store: splits travel as data and hold none.

    Yields
    ------
    pyarrow.Table
        The rows of one split, possibly none. With ``splitBy=time`` no other split of the micro-batch
        has rows of these times.

    Raises
    ------
    InvalidUsageError
        If the batches are no splits, or a column is wanted that they do not have.
    DataLossError, StorageError
        If a file is missing or cannot be read.

    Examples
    --------
    ::

        from spark_timely.spark import read_splits

        def kernel(batches):
            for rows in read_splits(batches, columns=["key", "value"]):
                yield from rows.group_by("key").aggregate([("value", "sum")]).to_batches()

        splits = spark.readStream.format("timely").option("content", "splits").load(path)
        sums = splits.mapInArrow(kernel, "key long, value_sum double")
    """
    for batch in batches:
        if "_plan" not in batch.schema.names:
            msg = f"could not read splits: found columns={batch.schema.names!r:.200}"
            raise InvalidUsageError(msg, hint="read the log with option content=splits, and keep its columns")
        for plan in batch.column(batch.schema.get_field_index("_plan")).to_pylist():  # one per split
            split, layout = split_from(plan)
            if columns is not None:
                missing = [name for name in columns if name not in layout.schema.names]
                if missing:
                    msg = f"could not read splits: found no column {missing[0]!r} in {layout.schema.names!r:.200}"
                    raise InvalidUsageError(msg, hint="name columns of the log")
                layout = layout.with_schema(pa.schema([layout.schema.field(name) for name in columns]))
            rows = read_split(
                split, layout, storage=open_storage(split.root, checked_options(storage_options, split.root))
            )
            table = pa.Table.from_batches(rows, layout.schema)
            settle_worker()  # here all that a task needs is loaded
            yield table


def open_data(
    storage: Storage, path: str, /, *, root: str, fail_on_data_loss: bool, pause: Callable[[float], None] | None
) -> pa.NativeFile | None:
    """Open a data file, tried again a few times where it is not there.

    Parameters
    ----------
    storage : Storage
    path : str
    root : str
        The log, for messages.
    fail_on_data_loss : bool
    pause : callable or None
        Waits the given seconds between attempts; None is for one attempt.

    Returns
    -------
    pyarrow.NativeFile or None
        None where the file is missing and is to be passed over.

    Raises
    ------
    DataLossError
        If the file is missing and stays so.
    """
    for delay in (*(() if pause is None else _RETRIES_S), None):
        try:
            return storage.open_input(path)
        except DataLossError as error:
            if delay is not None and pause is not None:
                pause(delay)
            elif fail_on_data_loss:
                raise missing_file(root, path) from error
    warn_of_missing_file(root, path)
    return None


def missing_file(root: str, path: str, /) -> DataLossError:
    """Return what is raised where a data file of a log is missing."""
    msg = f"could not read the log {root!r}: found data file {path!r} missing"
    return DataLossError(
        msg,
        hint="start the query again if files were vacuumed during the read; to continue without "
        "its rows, set failOnDataLoss=false",
        context={"path": path},
    )


def warn_of_missing_file(root: str, path: str, /) -> None:
    """Say that the rows of a file that is missing are left out."""
    _log.warning("data file %r of log %r is missing, its rows are left out", path, root)


class _Files:
    """The pieces of a split, read one after the other."""

    def __init__(
        self,
        split: Split,
        layout: ReplayLayout,
        storage: Storage,
        pause: Callable[[float], None],
        keys: KeySet | None = None,
    ) -> None:
        self.split = split
        self.keys = keys
        self.layout = layout
        self.storage = storage
        self.pause = pause
        self.domain = layout.domain
        self.times = layout.domain.columns
        self.range: tuple[IntArray, IntArray] | None = None
        self._source: pa.NativeFile | None = None
        if split.lower is not None and split.upper is not None:
            self.range = (self._frontier(split.lower), self._frontier(split.upper))
        self.as_of = None if split.as_of is None else np.array([split.as_of], dtype=np.int64)

    def _frontier(self, elements: tuple[tuple[int, ...], ...]) -> IntArray:
        return np.array(elements, dtype=np.int64).reshape(len(elements), self.domain.arity)

    def rows(self, batch_rows: int, *, sort: bool = False) -> Iterator[pa.RecordBatch]:
        """Give out all rows, with `sort` also the columns to sort them by."""
        for number in range(len(self.split.pieces)):
            yield from self.piece(number, batch_rows, sort=sort)

    def piece(self, number: int, batch_rows: int, *, sort: bool = False) -> Iterator[pa.RecordBatch]:
        """Give out the rows of one piece."""
        piece = self.split.pieces[number]
        file = self._open(piece.path)
        if file is None:
            return
        with file:
            batches = self._read(file, Piece(number, piece.start, piece.stop), batch_rows, sort=sort)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except (pa.ArrowException, OSError) as error:
                    raise self._unreadable(piece.path, error) from error
                yield batch

    def _open(self, path: str) -> pq.ParquetFile | None:
        source = open_data(
            self.storage,
            path,
            root=self.split.root,
            fail_on_data_loss=self.layout.fail_on_data_loss,
            pause=self.pause,
        )
        if source is None:
            return None
        self._source = source
        try:
            # What is far away is fetched in few large requests as we say: see `expect_columns`.
            return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> DataLossError:
        return DataLossError(
            f"could not read the log {self.split.root!r}: found data file {path!r} corrupt ({error})",
            hint="restore the file from a copy",
            context={"path": path},
        )

    def _read(self, file: pq.ParquetFile, piece: Piece, batch_rows: int, *, sort: bool) -> Iterator[pa.RecordBatch]:
        groups = part_of(file.metadata.num_row_groups, piece)
        for run, whole in self._runs(file, groups, alone=self.split.pieces[piece.file].commit is not None):
            shape = _Shape(self, file.schema_arrow, whole=whole, sort=sort)
            rows = sum(file.metadata.row_group(group).num_rows for group in run)
            if not rows:
                continue
            expect_columns(self._source, file.metadata, run, set(shape.columns))
            # Row groups of a little more than a batch are not cut into a large and a tiny one.
            size = -(-rows // max(1, round(rows / batch_rows)))
            for batch in file.iter_batches(size, row_groups=run, columns=shape.columns, use_threads=False):
                made = shape.make(batch)
                if made.num_rows:
                    yield made

    def _runs(self, file: pq.ParquetFile, groups: range, *, alone: bool) -> list[tuple[list[int], bool]]:
        """Group neighbouring row groups by what must be done: runs of (row groups, all rows wanted).

        A file that was planned for its one commit (`alone`) is wanted as a whole.
        """
        if not groups:
            return []
        wanted = np.ones(len(groups), dtype=np.bool_)
        whole = np.full(len(groups), alone and self.split.commits is not None)
        bounds = None if self.range is None else self._bounds(file, groups)
        if self.range is not None and bounds is None:
            whole[:] = False  # rows decide
        if bounds is not None and self.range is not None:
            minima, maxima = bounds
            lower, upper = self.range
            wanted &= beyond(maxima, lower) & ~beyond(minima, upper)
            inside = surely_holds(minima, maxima, lower, upper)
            whole = inside if self.split.commits is None else whole & inside
            if self.split.first is not None:
                first = np.array(self.split.first)
                wanted &= ~lexicographically_below(maxima, first)
                whole &= ~lexicographically_below(minima, first)
            if self.split.last is not None:
                last = np.array(self.split.last)
                wanted &= lexicographically_below(minima, last)
                whole &= lexicographically_below(maxima, last)
        if self.split.streams is not None:
            whole[:] = False
        if self.keys is not None and wanted.any():
            wanted &= Footer(file.metadata, file.schema_arrow).may_have(self.keys)[groups.start : groups.stop]
        runs: list[tuple[list[int], bool]] = []
        for place in np.flatnonzero(wanted).tolist():
            group, all_rows = groups[place], bool(whole[place])
            if runs and runs[-1][1] == all_rows and runs[-1][0][-1] == group - 1:
                runs[-1][0].append(group)
            else:
                runs.append(([group], all_rows))
        return runs

    def _bounds(self, file: pq.ParquetFile, groups: range) -> tuple[IntArray, IntArray] | None:
        """Read the bounds of the times of row groups, or None where the file does not say them."""
        metadata = file.metadata
        places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        minima = np.empty((len(groups), self.domain.arity), dtype=np.int64)
        maxima = np.empty_like(minima)
        for coordinate, (name, kind) in enumerate(zip(self.times, self.domain.types, strict=True)):
            field = file.schema_arrow.get_field_index(name)
            if name not in places or file.schema_arrow.field(field).type != kind.arrow:
                return None
            for place, group in enumerate(groups):
                statistics = metadata.row_group(group).column(places[name]).statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                minima[place, coordinate] = statistics.min_raw
                maxima[place, coordinate] = statistics.max_raw
        if self.as_of is not None:
            minima, maxima = np.maximum(minima, self.as_of), np.maximum(maxima, self.as_of)
        return minima, maxima


class _Shape:
    """The conversion of one file's record batches into those of the layout."""

    def __init__(self, files: _Files, found: pa.Schema, *, whole: bool, sort: bool) -> None:
        self._files = files
        layout, split = files.layout, files.split
        self._schema = sorted_schema(layout) if sort else layout.schema
        # Output column -> column of the file, where the names differ.
        self._source = {field.name: name for name, field in _SORT_FIELDS.items()}
        self._select = not whole
        self._moved = files.as_of is not None
        present = set(found.names)
        wanted = {name for name in self._schema.names if name in present}
        if self._select and files.range is not None:
            wanted |= set(files.times)
        if self._select and split.streams is not None:
            wanted.add("_stream")
        if self._select and split.commits is not None:
            wanted |= {"_stream", "_seq"}
        if sort:
            wanted |= {"_stream", "_seq"}
        if self._moved:
            wanted |= set(files.times)
        self._where = layout.where
        if self._where is not None:
            wanted |= set(self._where.schema.names)
        # Parquet gives columns in the order of the file, whatever is asked for.
        self.columns = [name for name in found.names if name in wanted]

    def make(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Choose rows and columns."""
        files = self._files
        times: IntArray | None = None
        if self._moved or (self._select and files.range is not None):
            times = self._times(batch)
        if self._select:
            batch, times = _chosen(batch, times, self._mask(batch, times))
        if self._where is not None:
            needed = [self._column(batch, field, {}, batch.num_rows) for field in self._where.schema]
            holds = self._where.predicate().holds(pa.RecordBatch.from_arrays(needed, schema=self._where.schema))
            batch, times = _chosen(batch, times, holds.to_numpy(zero_copy_only=False))
        n = batch.num_rows
        moved = {}
        if self._moved and times is not None:
            moved = files.domain.to_columns(times)
        columns = [self._column(batch, field, moved, n) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _times(self, batch: pa.RecordBatch) -> IntArray:
        times, as_of = times_of(batch, self._files.domain), self._files.as_of
        return times if as_of is None else np.maximum(times, as_of)

    def _mask(self, batch: pa.RecordBatch, times: IntArray | None) -> BoolArray:
        files, split = self._files, self._files.split
        mask = np.ones(batch.num_rows, dtype=np.bool_)
        if times is not None and files.range is not None:
            mask = within(times, *files.range)
            if split.first is not None:
                mask &= ~lexicographically_below(times, np.array(split.first))
            if split.last is not None:
                mask &= lexicographically_below(times, np.array(split.last))
        if split.streams is not None:
            chosen = pc.is_in(batch.column("_stream"), pa.array(split.streams, pa.string()))
            mask &= chosen.to_numpy(zero_copy_only=False)
        if split.commits is not None:
            streams = conform_array(batch.column("_stream"), pa.string()).dictionary_encode()
            seqs = batch.column("_seq").to_numpy()
            codes = streams.indices.to_numpy()
            ranges = {stream: (first, last) for stream, first, last in split.commits}
            found = [ranges.get(stream, (0, 0)) for stream in streams.dictionary.to_pylist()]
            low, high = np.array(found, dtype=np.int64).reshape(-1, 2).T
            mask &= (seqs >= low[codes]) & (seqs < high[codes])
        return mask

    def _column(self, batch: pa.RecordBatch, field: pa.Field, moved: Mapping[str, pa.Array], n: int) -> pa.Array:
        if field.name == "_event":
            return pa.repeat(pa.scalar("message", pa.string()), n)
        if field.name in moved:
            return moved[field.name]
        place = batch.schema.get_field_index(self._source.get(field.name, field.name))
        if place < 0 or field.name == "_delta":
            return pa.nulls(n, field.type)
        return conform_array(batch.column(place), field.type)


def _chosen(batch: pa.RecordBatch, times: IntArray | None, mask: BoolArray) -> tuple[pa.RecordBatch, IntArray | None]:
    """Return some of the rows, and their times."""
    n = int(np.count_nonzero(mask))
    if n == batch.num_rows:
        return batch, times
    first = int(mask.argmax())
    # Files are sorted by time: mostly the rows wanted lie together, and need no copy.
    if mask[first : first + n].all():
        return batch.slice(first, n), None if times is None else times[first : first + n]
    return batch.filter(pa.array(mask)), None if times is None else times[mask]


_SORT_FIELDS: Final = {
    "_stream": pa.field("_sort_stream", pa.string()),
    "_seq": pa.field("_sort_seq", pa.int64()),
}
"""Columns that rows are sorted by under ``arrival``, besides those that the query gets."""


def _in_order(files: _Files, split: Split, layout: ReplayLayout, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Give out rows in the order of their commits (invariant 3)."""
    schema = sorted_schema(layout)
    progress = progress_rows(split) if split.progress else schema.empty_table()
    if all(piece.commit is not None for piece in split.pieces):
        # Each file is of one commit and they were planned in order: nothing to sort.
        progress = progress.sort_by([("_sort_stream", "ascending"), ("_sort_seq", "ascending")])
        places = _commit_order(progress)
        done = 0
        for number, piece in enumerate(split.pieces):
            before = bisect_left(places, piece.commit or ("", 0))
            yield from _without_sort(progress.slice(done, before - done), layout)
            done = before
            yield from files.piece(number, batch_rows)
        yield from _without_sort(progress.slice(done), layout)
        return
    # A merged file holds many commits sorted by time: the split is sorted in memory.
    tables = [pa.Table.from_batches(files.rows(batch_rows, sort=True), schema), progress]
    kinds = np.repeat([0, 1], [table.num_rows for table in tables])
    rows = pa.concat_tables(tables).append_column("_sort_kind", pa.array(kinds))
    order = [("_sort_stream", "ascending"), ("_sort_seq", "ascending"), ("_sort_kind", "ascending")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order))
    for first in range(0, rows.num_rows, batch_rows):
        yield from _without_sort(rows.slice(first, batch_rows), layout)


def sorted_schema(layout: ReplayLayout, /) -> pa.Schema:
    """Return the layout's schema and the columns that rows are sorted by under ``arrival``."""
    return pa.schema([*layout.schema, *_SORT_FIELDS.values()])


def progress_rows(split: Split, /) -> pa.Table:
    """Return the progress rows that travel with a split."""
    with pa.ipc.open_stream(split.progress) as stream:
        return stream.read_all()


def _commit_order(progress: pa.Table) -> list[tuple[str, int]]:
    # Progress rows of the commits of one micro-batch: bookkeeping, not data.
    return list(zip(progress.column("_sort_stream").to_pylist(), progress.column("_sort_seq").to_pylist(), strict=True))


def _without_sort(rows: pa.Table, layout: ReplayLayout) -> Iterator[pa.RecordBatch]:
    if rows.num_rows:
        for batch in rows.select(layout.schema.names).combine_chunks().to_batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=layout.schema)


def times_of(batch: pa.RecordBatch, domain: TimeDomain, /) -> IntArray:
    """Return the times of rows of a file, shape (n, k), whichever engine wrote it."""
    pairs = zip(domain.columns, domain.types, strict=True)
    return domain.from_columns(pa.table({name: conform_array(batch.column(name), kind.arrow) for name, kind in pairs}))


def conform_array(array: pa.Array, wanted: pa.DataType, /) -> pa.Array:
    """Return a column in the type that was declared for it.

    Parameters
    ----------
    array : pyarrow.Array
        As a file has it. Not modified.
    wanted : pyarrow.DataType
        Plain types: no dictionaries, timestamps in microseconds.

    Returns
    -------
    pyarrow.Array
        Itself where it fits.

    Raises
    ------
    SchemaMismatchError
        If a value does not fit.

    Notes
    -----
    Cost: nothing where the types are equal; O(1) for a timestamp that lacks its zone; else one pass.
    A timestamp without zone is taken as UTC, which is what Parquet's INT96 holds.

    Examples
    --------
    >>> import pyarrow as pa
    >>> column = pa.array([0], pa.timestamp("us"))
    >>> str(conform_array(column, pa.timestamp("us", "UTC")).type)
    'timestamp[us, tz=UTC]'
    """
    found = array.type
    if found == wanted:
        return array
    if pa.types.is_dictionary(found):
        return conform_array(array.dictionary_decode(), wanted)
    if (
        pa.types.is_timestamp(found)
        and pa.types.is_timestamp(wanted)
        and found.unit == wanted.unit
        and (found.tz is None or wanted.tz is not None)
    ):
        return array.view(wanted)
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        msg = f"could not read a column: found type {str(found)!r}, declared is {str(wanted)!r} ({error})"
        raise SchemaMismatchError(
            msg, hint="write the log with spark-timely or Delta only: what wrote the file does not keep the schema"
        ) from error
