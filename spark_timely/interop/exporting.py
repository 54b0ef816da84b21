"""Export of a log, or of a part of it, to capture files that timely replays.

``spark-timely export`` calls `export_log`, in the format of timely's events or as lines of JSON; `cdcv2.conversion`
exports to CDCv2, and uses the parts of this module that read a log by stretches of times. `writer` makes the bytes.

Rows go out in lexicographic order of their times, which agrees with every partial order: a time comes after all that
are less. The rows of each time are dealt to all captures. A capture keeps the capabilities that it needs for the times
still to come, and gives them up as soon as it can: so a replay of it learns early what is complete.

Invariants
----------
1. Each capture by itself is a valid stream; together they have each row once, at its time.
2. At its end each capture holds capabilities at the log's frontier: it states no time complete that is not. Until
   then, where the log has kept the stamps of an import, it holds what the stamps still to come need.
3. Files appear under their names when all of them are whole and on the disk, and never before. A file that exists is
   never written over, also if it appeared while the export ran.
4. An export that fails leaves nothing. One that is killed leaves files under temporary names, which the next export
   of the same names that ends well deletes.
5. What is in memory at once is one stretch of rows, whatever the size of the log.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError, SchemaMismatchError, shown
from spark_timely.interop.buffers import Offsets
from spark_timely.interop.chunk import VERSIONS, CaptureChunk, TimelyVersion
from spark_timely.interop.importing import CaptureTypes, import_owner
from spark_timely.interop.jsonl import chunk_lines
from spark_timely.interop.schema import columns_of, parse_type, type_text
from spark_timely.interop.selection import Selection
from spark_timely.interop.stamps import STAMP, are_updates, stamp_keys, stamps_of
from spark_timely.interop.time_layout import TimeLayout, time_text_of
from spark_timely.interop.writer import CaptureEncoder
from spark_timely.log import Log
from spark_timely.log.files.parquet_reader import open_parquet, read_file
from spark_timely.log.files.statistics import file_times
from spark_timely.log.machine.since import as_of_since
from spark_timely.log.reader import check_between, seen_rows
from spark_timely.log.store.storage import NO_LINKS
from spark_timely.protocol.replay import lexicographically_below
from spark_timely.time.antichain import Antichain, DiffArray, IntArray, less_equal, unique_times

STRETCH_ROWS = 1 << 20
_EVENT_RECORDS = 8192


@dataclass(frozen=True, slots=True)
class Exported:
    """A capture that was written.

    Parameters
    ----------
    path : str
    events, records, size_bytes : int
    time, record : str
        The types, as an import takes them.
    options : tuple of str
        What else an import to the same contents is given, as on the command line.
    """

    path: str
    events: int
    records: int
    size_bytes: int
    time: str = ""
    record: str = ""
    options: tuple[str, ...] = ()


def default_types(log: Log, selection: Selection | None = None) -> CaptureTypes:
    """Return the types in which a log is exported: those of its imports, else what its columns are.

    Parameters
    ----------
    log : Log
    selection : Selection, optional
        Columns that are left out, or cast.

    Raises
    ------
    InvalidUsageError
        If a column is chosen that the log does not have.
    SchemaMismatchError
        If it has columns that captures do not have, or that cannot be cast so.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> types = default_types(MemoryLog.create(pa.schema([("n", pa.int64())]), minimum=(0,)))
    >>> types.owner
    'import u64 {n: option<i64>}'
    """
    found = {replace(types, timely=None, updates="auto") for types in _imports(log)}
    known = replace(found.pop(), timely=_version(log)) if len(found) == 1 else None
    stamped = known is not None and known.stamps == "column"
    schema = pa.schema([field for field in log.schema if field.name != STAMP or not stamped])
    if selection is None or (selection.columns is None and not selection.casts):
        if known is not None and set(schema.names) <= set(dict(columns_of(known.record))):
            return known
        selection = Selection()
    # An import knows more than the columns that it became; others may have come later, by another query.
    record = selection.record(schema, None if known is None else known.record)
    if known is None:
        return CaptureTypes(parse_type(time_text_of(log.domain)), record)
    return replace(known, record=record)


def _imports(log: Log) -> list[CaptureTypes]:
    """Return with which types each stream that was imported came."""
    return [types for state in log.streams().values() if (types := import_owner(state)) is not None]


def _version(log: Log) -> TimelyVersion | None:
    """Return the only version of timely whose captures a log was made of, None if there is none or more."""
    versions = {types.timely for types in _imports(log)}
    return versions.pop() if len(versions) == 1 else None


def export_log(
    log: Log,
    folder: str | os.PathLike[str],
    *,
    files: int = 1,
    types: CaptureTypes | None = None,
    columns: Sequence[str] | None = None,
    casts: Mapping[str, str] | None = None,
    timely: TimelyVersion | None = None,
    stream: str | None = None,
    up_to: object | None = None,
    name: str = "capture",
    json_lines: bool = False,
    stretch_rows: int = STRETCH_ROWS,
    report: Callable[[int], None] = lambda n: None,
) -> list[Exported]:
    """Write a log to capture files, `NAME_w0.bin` and so on, all of nearly the same number of records.

    Parameters
    ----------
    log : Log
        A stream log. Dead letters are left out.
    folder : path
        Made, if it is not there.
    files : int
        How many captures.
    types : CaptureTypes, optional
        As in `default_types` unless given.
    columns : sequence of str, optional
        Only these, in this order.
    casts : mapping of str to str, optional
        By the name of a column the type that it becomes; see `spark_timely.interop.selection`.
    timely : str, optional
        Version of timely that is to read them, ``0.31`` or ``0.32``; that of the types or of the log's imports unless
        given, and 0.31 where they say none. Stamps that the log has kept go back to where they were.
    stream : str, optional
        Only this stream of the log.
    up_to : frontier, optional
        Only times not beyond it. The captures then end there, as far as the log has come.
    name : str
        What the files' names begin with.
    json_lines : bool
        Whether to write lines of JSON, `NAME_w0.jsonl`.
    stretch_rows : int
        Rows that are in memory at once, but for those of one time.
    report : callable
        Gets the number of rows of each stretch.

    Returns
    -------
    list of Exported

    Raises
    ------
    InvalidUsageError
        If the log is a collection, a file is there already, a value cannot be written, as a stamp of several times for
        0.31, or columns are chosen or cast that the log, or the given type, does not have.
    SchemaMismatchError
        If the columns do not fit the types, or a value not the type that its column is cast to.
    SinceViolationError
        If the log has forgotten what is not beyond `up_to`.

    Examples
    --------
    >>> import tempfile
    >>> from spark_timely.log import MemoryLog
    >>> log = MemoryLog.create(pa.schema([pa.field("n", pa.int64(), nullable=False)]), minimum=(0,))
    >>> _ = log.writer(owner="me").append(pa.table({"_time": [3, 4], "n": [1, 2]}), advance_to=[])
    >>> [part.records for part in export_log(log, tempfile.mkdtemp(), files=2)]
    [1, 1]
    """
    if log.kind != "stream":
        msg = f"could not export log {log.path!r} as captures: found kind={log.kind!r}"
        raise InvalidUsageError(msg, hint="export the log as CDCv2: it is a collection")
    check_files(log, files)
    selection = Selection.parse(columns, casts)
    types = chosen_types(log, types, selection)
    upper = None if up_to is None else log.domain.parse_frontier(up_to)
    if upper is not None:
        check_between(log.core, None, upper, what=f"export log {log.path!r} up to {log.domain.render_frontier(upper)}")
    left = _left(log, stream, upper)
    times, counts = times_of(log, stream, upper)
    version = timely or types.timely or _version(log) or VERSIONS[0]
    encoder = CaptureEncoder(time=types.time, record=types.record, timely=version)
    _check_times(log, encoder.times)
    suffix = "jsonl" if json_lines else "bin"
    stamped = any(each.stamps == "column" for each in _imports(log))
    held = still_to_come(times, left, _stamp_times(log, stream, upper, times) if stamped else None)
    needed = needed_columns(log, types)
    if stamped and STAMP not in needed:
        needed.append(STAMP)
    with WholeFiles(f"log {log.path!r}", folder, [f"{name}_w{i}.{suffix}" for i in range(files)]) as whole:
        outputs = [
            CaptureOutput(path, file, encoder, types, _import_options(log, types, version, stamped=stamped))
            for path, file in zip(whole.paths, whole.files, strict=True)
        ]
        dealt = 0
        for low, high in stretches(counts, stretch_rows):
            rows, at = rows_between(log, needed, stream, upper, times, low, high)
            keys = None
            if stamped:
                # Those of one stamp together: they are messages then.
                keys = stamp_keys(rows[STAMP])
                order = np.lexsort((keys, at))
                rows, at, keys = rows.take(order), at[order], keys[order]
            rows = selection.cast(rows)
            for i, output in enumerate(outputs):
                mine = slice((i - dealt) % files, None, files)
                part = rows.take(np.arange(rows.num_rows)[mine])
                output.add(part, at[mine], times[low:high], held[low:high], None if keys is None else keys[mine])
            dealt += rows.num_rows
            report(rows.num_rows)
        for output in outputs:
            output.move(left)
        whole.finish()
    return [output.written() for output in outputs]


def _import_options(log: Log, types: CaptureTypes, version: TimelyVersion, *, stamped: bool) -> tuple[str, ...]:
    """Return what an import of the captures needs besides their types: bytes do not say it, or types say otherwise."""
    options = ["--timely", version]
    if stamped and version == "0.32":
        options += ["--stamps", "column"]
    imports = _imports(log)
    at_own_times = bool(imports) and all(each.are_updates for each in imports)
    if version == "0.32" and not at_own_times and are_updates(types.time, types.record, "auto"):
        options += ["--updates", "no"]
    return tuple(options)


def chosen_types(log: Log, types: CaptureTypes | None, selection: Selection) -> CaptureTypes:
    """Return the types of an export: those given, which must be of the chosen columns, or those of `default_types`.

    Raises
    ------
    InvalidUsageError, SchemaMismatchError
        As `export_log`.
    """
    if types is None:
        return default_types(log, selection)
    if selection.columns is not None or selection.casts:
        wanted = default_types(log, selection).record
        if wanted != types.record:
            msg = f"could not export log {log.path!r}: found records of type {type_text(types.record)}"
            hint = f"declare no records beside columns and casts; those are {type_text(wanted)}"
            raise InvalidUsageError(msg, hint=hint)
    return types


def needed_columns(log: Log, types: CaptureTypes) -> list[str]:
    """Return the columns of the log that its records are written from; all, where one is missing."""
    wanted = {name for name, _ in columns_of(types.record)}
    names = log.schema.names
    return [name for name in names if name in wanted] if wanted <= set(names) else names


def check_files(log: Log, files: int) -> None:
    """Refuse what is no number of files; raises `InvalidUsageError`."""
    if isinstance(files, bool) or not isinstance(files, int) or not 1 <= files <= 10_000:
        msg = f"could not export log {log.path!r}: found files={files!r}"
        raise InvalidUsageError(msg, hint="give a number of files from 1 to 10,000")


def _check_times(log: Log, layout: TimeLayout) -> None:
    # What is outside of the type, such as times before its least one, is refused when it is written.
    if layout.arity != log.domain.arity:
        msg = f"could not export log {log.path!r} with times {layout.text}: found {log.domain.arity} coordinates"
        raise SchemaMismatchError(msg, hint=f"declare others: times of type {layout.text} have {layout.arity}")


def _left(log: Log, stream: str | None, upper: Antichain | None) -> Antichain:
    """Return what is still open of what is exported."""
    if stream is None:
        frontier = log.frontier()
    else:
        state = log.core.stream(stream)
        if state is None:
            msg = (
                f"could not export stream {stream!r} of log {log.path!r}: found streams={shown(sorted(log.streams()))}"
            )
            raise InvalidUsageError(msg, hint="correct the name")
        frontier = state.frontier
    if upper is None:
        return frontier
    return Antichain([time for time in frontier if not upper.less_equal(time)], log.domain.arity)


def _wanted(log: Log, table: pa.Table, stream: str | None, upper: Antichain | None) -> tuple[pa.Table, IntArray]:
    """Return those rows of a file that are exported, and their times."""
    if stream is not None:
        table = table.filter(pc.equal(table["_stream"], stream))
    table, times = seen_rows(log.core, table)
    if upper is not None:
        keep = ~upper.beyond(times)
        table, times = table.filter(pa.array(keep)), times[keep]
    return table, times


def times_of(log: Log, stream: str | None, upper: Antichain | None) -> tuple[IntArray, DiffArray]:
    """Return the distinct times in lexicographic order, and how many rows each has."""
    index, since = log.core.files(), log.since()
    log.core.look_into()
    alone = index.lone_streams()
    schema = pa.schema([log.core.format.data_schema.field(name) for name in ("_stream", *log.domain.columns)])
    parts: list[IntArray] = [np.empty((0, log.domain.arity), np.int64)]
    numbers: list[DiffArray] = [np.empty(0, np.int64)]
    for i, path in enumerate(index.paths.tolist()):
        known = None
        if stream is None or alone[i] == stream:
            with open_parquet(log.core.storage, path) as file:
                known = file_times(file)
        if known is None:
            known = unique_times(_wanted(log, read_file(log.core.storage, path, schema), stream, upper)[1])
        moved, left = as_of_since(log.kind, since, known[0])
        keep = np.ones(moved.shape[0], np.bool_) if left is None else left
        if upper is not None:
            keep = keep & ~upper.beyond(moved)
        parts.append(moved[keep])
        numbers.append(known[1][keep])
    times = np.concatenate(parts)
    order = np.lexsort(times.T[::-1])
    times, counts = times[order], np.concatenate(numbers)[order]
    if not times.shape[0]:
        return times, counts
    first = np.flatnonzero(np.concatenate([[True], (times[1:] != times[:-1]).any(axis=1)]))
    return times[first], np.add.reduceat(counts, first)


def still_to_come(times: IntArray, left: Antichain, used: list[IntArray] | None = None) -> list[IntArray]:
    """Return for each time the minima of it, of all that come after it, and of what is left open.

    One turn per distinct time, each over the width of a frontier; `used` are other times that its rows need, in their
    stamps.
    """
    minima = left.times.reshape(-1, times.shape[1])
    held: list[IntArray] = []
    for i in range(times.shape[0] - 1, -1, -1):
        for time in (times[i], *(() if used is None else used[i])):
            if not less_equal(minima, time[None, :]).any():
                minima = np.concatenate([time[None, :], minima[~less_equal(time[None, :], minima)]])
        held.append(minima)
    return held[::-1]


def _stamp_times(log: Log, stream: str | None, upper: Antichain | None, times: IntArray) -> list[IntArray]:
    """Return for each of the distinct times, in their order, the times in the stamps of its rows."""
    schema = pa.schema([log.core.format.data_schema.field(name) for name in ("_stream", *log.domain.columns, STAMP)])
    pairs = np.empty((0, 1 + times.shape[1]), np.int64)
    for path in log.core.files().paths.tolist():
        table, at = _wanted(log, read_file(log.core.storage, path, schema), stream, upper)
        elements, sizes = stamps_of(table[STAMP])
        # All distinct times are among the first ones, in lexicographic order.
        number = np.unique(np.concatenate([times, at]), axis=0, return_inverse=True)[1].ravel()[times.shape[0] :]
        found = np.concatenate([np.repeat(number, sizes)[:, None], elements], axis=1)
        pairs = np.unique(np.concatenate([pairs, found]), axis=0)
    bounds = np.searchsorted(pairs[:, 0], np.arange(times.shape[0] + 1))
    return [pairs[low:high, 1:] for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


def stretches(counts: IntArray, stretch_rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of times that have about `stretch_rows` rows."""
    total = np.concatenate([[0], np.cumsum(counts)])
    low = 0
    while low < counts.shape[0]:
        high = max(low + 1, int(np.searchsorted(total, total[low] + stretch_rows, side="right")) - 1)
        yield low, high
        low = high


def rows_between(
    log: Log,
    columns: list[str],
    stream: str | None,
    upper: Antichain | None,
    times: IntArray,
    low: int,
    high: int,
) -> tuple[pa.Table, IntArray]:
    """Return the rows at a range of times, in the order of these, and the number of each row's time."""
    index = log.core.files()
    first, last = times[low], times[high - 1]
    # By the first coordinate: the others follow no order over a lexicographic range.
    lows, highs = index.min_times, index.max_times
    if log.kind == "collection":
        since = log.since()
        lows, highs = (as_of_since(log.kind, since, bounds)[0] for bounds in (lows, highs))
    may = ~index.known | ((highs[:, 0] >= first[0]) & (lows[:, 0] <= last[0]))
    if stream is not None:
        may &= index.may_hold_stream(stream)
    names = ["_stream", *log.domain.columns, *columns]
    schema = pa.schema([log.core.format.data_schema.field(name) for name in names])
    tables: list[pa.Table] = [pa.schema([f.with_nullable(nullable=True) for f in schema]).empty_table()]
    found: list[IntArray] = [np.empty((0, log.domain.arity), np.int64)]
    for path in index.paths[may].tolist():
        table, at = _wanted(log, read_file(log.core.storage, path, schema), stream, upper)
        inside = ~lexicographically_below(at, first)
        if high < times.shape[0]:
            inside &= lexicographically_below(at, times[high])
        tables.append(table.filter(pa.array(inside)))
        found.append(at[inside])
    rows, at = pa.concat_tables(tables), np.concatenate(found)
    order = np.lexsort(at.T[::-1])
    rows, at = rows.select(columns).take(order), at[order]
    starts = np.concatenate([[True], (at[1:] != at[:-1]).any(axis=1)]) if at.shape[0] else np.empty(0, np.bool_)
    return rows, np.cumsum(starts) - 1


class CaptureOutput:
    """One capture that is being written."""

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        encoder: CaptureEncoder,
        types: CaptureTypes,
        options: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.options = options
        self.file = file
        self.encoder = encoder
        self.types = types
        self.events = self.records = self.size_bytes = 0
        self.arity = encoder.times.arity
        self.held = np.array([encoder.times.domain.minimum], np.int64)

    def add(
        self, rows: pa.Table, at: IntArray, times: IntArray, held: list[IntArray], keys: Offsets | None = None
    ) -> None:
        """Write rows, of which `at` numbers the times and `keys` the stamps, each after what is held then."""
        kinds: list[bool] = []
        message_at: list[int] = []
        counts: list[int] = []
        changes: list[tuple[IntArray, DiffArray]] = []
        firsts: list[int] = []
        starts = _runs(at, keys)
        sizes = np.diff(starts)
        for start, number, size in zip(starts.tolist(), at[starts[:-1]].tolist(), sizes.tolist(), strict=False):
            change = _change(self.held, held[number])
            if change is not None:
                self.held = held[number]
                kinds.append(False)
                changes.append(change)
            for first in range(0, size, _EVENT_RECORDS):
                kinds.append(True)
                message_at.append(number)
                firsts.append(start + first)
                counts.append(min(_EVENT_RECORDS, size - first))
        at_times, stamps = times[np.array(message_at, np.int64)], None
        if keys is not None:
            at_times, stamps = stamps_of(rows[STAMP].take(np.array(firsts, np.int64)))
        self._write(kinds, at_times, np.array(counts, np.int64), rows, changes, stamps)

    def move(self, frontier: Antichain) -> None:
        """Write the progress to a frontier, if it is another than what is held."""
        change = _change(self.held, frontier.times.reshape(-1, self.arity))
        if change is not None:
            nothing = self.encoder.schema.empty_table()
            self._write([False], np.empty((0, self.arity), np.int64), np.empty(0, np.int64), nothing, [change])

    def _write(
        self,
        kinds: list[bool],
        times: IntArray,
        counts: DiffArray,
        rows: pa.Table,
        changes: list[tuple[IntArray, DiffArray]],
        stamps: Offsets | None = None,
    ) -> None:
        if not kinds:
            return
        batches = rows.combine_chunks().to_batches()
        empty = pa.RecordBatch.from_pylist([], schema=rows.schema)
        chunk = CaptureChunk(
            np.array(kinds, np.bool_),
            np.zeros(len(kinds) + 1, np.int64),
            self.events,
            times,
            counts,
            batches[0] if batches else empty,
            np.concatenate([np.empty((0, self.arity), np.int64), *(change[0] for change in changes)]),
            np.concatenate([np.empty(0, np.int64), *(change[1] for change in changes)]),
            np.array([change[1].shape[0] for change in changes], np.int64),
            stamps,
        )
        if self.path.suffix == ".jsonl":
            chunk, timely = self.encoder.fit(chunk), self.encoder.timely
            lines = chunk_lines(chunk, time=self.types.time, record=self.types.record, timely=timely)
            data = "".join(f"{line}\n" for line in lines).encode()
        else:
            data = self.encoder.encode(chunk)
        self.file.write(data)
        self.events += len(kinds)
        self.records += rows.num_rows
        self.size_bytes += len(data)

    def written(self) -> Exported:
        """Return what was written."""
        types = (type_text(self.types.time), type_text(self.types.record))
        return Exported(str(self.path), self.events, self.records, self.size_bytes, *types, self.options)


def _runs(at: IntArray, keys: Offsets | None) -> Offsets:
    """Return where each run of equal values begins, and at last how many there are."""
    if not at.shape[0]:
        return np.zeros(1, np.int64)
    other = at[1:] != at[:-1]
    if keys is not None:
        other |= keys[1:] != keys[:-1]
    return np.concatenate([[0], np.flatnonzero(other) + 1, [at.shape[0]]])


def _change(before: IntArray, after: IntArray) -> tuple[IntArray, DiffArray] | None:
    """Return the times that are newly held and those that are given up, None if nothing changes."""
    old, new = set(map(tuple, before.tolist())), set(map(tuple, after.tolist()))
    if old == new:
        return None
    gained, lost = sorted(new - old), sorted(old - new)
    times = np.array([*gained, *lost], np.int64).reshape(-1, before.shape[1])
    return times, np.repeat(np.array([1, -1], np.int64), [len(gained), len(lost)])


class WholeFiles:
    """Opens files for writing, all for one export.

    Parameters
    ----------
    what : str
        What is exported, for errors.
    folder : path
        Made, if it is not there.
    names : list of str

    Attributes
    ----------
    paths : list of Path
        What the files will be called.
    files : list of binary file

    Raises
    ------
    InvalidUsageError
        If one of them is there, or a name is none of a file.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with WholeFiles("log 'x'", folder, ["a", "b"]) as whole:
    ...     for file in whole.files:
    ...         _ = file.write(b"...")
    ...     before = [path.exists() for path in whole.paths]
    ...     whole.finish()
    >>> before, sorted(os.listdir(folder))
    ([False, False], ['a', 'b'])
    """

    def __init__(self, what: str, folder: str | os.PathLike[str], names: list[str]) -> None:
        self._what = what
        self._folder = Path(folder)
        for name in names:
            if os.path.basename(name) != name or "\0" in name:
                msg = f"could not export {what}: found name={shown(name)}"
                raise InvalidUsageError(msg, hint="give the beginning of a file's name, without directories")
        self.paths = [self._folder / name for name in names]
        for path in self.paths:
            if os.path.lexists(path):
                raise self._there(path)
        token = secrets.token_hex(4)
        self._partial = [path.with_name(f".{path.name}.{token}.partial") for path in self.paths]
        self.files: list[BinaryIO] = []

    def _there(self, path: Path) -> InvalidUsageError:
        msg = f"could not export {self._what}: found {str(path)!r}"
        return InvalidUsageError(msg, hint="give an empty directory, or another --name")

    def __enter__(self) -> WholeFiles:
        """Open all files."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for partial in self._partial:
                self.files.append(partial.open("xb"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Close all files, and leave none that was not finished."""
        for file in self.files:
            # What did not reach the disk belongs to a file that goes; a full disk failed a write, or `finish`.
            with contextlib.suppress(OSError):
                file.close()
        for partial in self._partial:
            partial.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give all files their names.

        Raises
        ------
        InvalidUsageError
            If one of the names is taken by now.
        OSError
            If the disk is full.
        """
        stats: list[os.stat_result] = []
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())
            stats.append(os.fstat(file.fileno()))
            file.close()
        named: list[tuple[Path, os.stat_result]] = []
        try:
            for partial, path, written in zip(self._partial, self.paths, stats, strict=True):
                self._name(partial, path)
                named.append((path, written))
        except BaseException:
            for path, written in named:
                with contextlib.suppress(OSError):
                    if os.path.samestat(path.stat(), written):  # another one's by now, else
                        path.unlink()
            raise
        self._sync_folder()
        # Of others that were killed; an export still under way can no longer get the name.
        left = re.compile(rf"\.({'|'.join(re.escape(path.name) for path in self.paths)})\.[0-9a-f]{{8}}\.partial")
        for name in os.listdir(self._folder):
            if left.fullmatch(name):
                (self._folder / name).unlink(missing_ok=True)

    def _name(self, partial: Path, path: Path) -> None:
        try:
            os.link(partial, path)
        except (FileExistsError, FileNotFoundError):
            raise self._there(path) from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if os.path.lexists(path):
                raise self._there(path) from None
            partial.rename(path)

    def _sync_folder(self) -> None:
        """Bring the names to the disk, where a system lets directories be opened."""
        with contextlib.suppress(OSError):
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
