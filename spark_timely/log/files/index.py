"""Index of a log's live files: the statistics of each file in arrays, updated by every commit.

A store keeps one `LiveFiles` up to date as it follows the table (`spark_timely.log.store.delta`), and gives out a
`FileIndex`. The reader, upkeep and the planner of replays (`spark_timely.datasource.catalog`) choose files by it. (An
index by key is another thing: see `spark_timely.log.arrangements`.)

Invariants
----------
1. Bounds are inclusive and never too narrow: a file without statistics may contain anything.
2. Order of the files means nothing.
3. An index that was given out never changes: what comes later is written behind its end.
4. The cost of adding files grows with the files added, that of removing some with the live files; neither grows with
   the history.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_timely.errors import InvalidUsageError
from spark_timely.log.files.format import EVENTS
from spark_timely.time.domain import TimeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.time.antichain import Antichain, BoolArray, IntArray


_LOW, _HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max
# Writers cut bounds of texts at this many characters; the upper one is then raised.
_TEXT_LIMIT = 32


@dataclass(frozen=True, slots=True, eq=False)
class FileIndex:
    """Files of one kind of event in one snapshot, with bounds of their contents.

    Parameters
    ----------
    paths : ndarray of object (str), shape (n,)
        Relative to the log.
    sizes : ndarray of int64, shape (n,)
        Bytes.
    rows : ndarray of int64, shape (n,)
        Number of rows, −1 where unknown.
    stream_lo, stream_hi : ndarray of object (str), shape (n,)
        Least and greatest stream name in the file; equal where it holds one stream. Empty and
        U+10FFFF where unknown.
    seq_lo, seq_hi : ndarray of int64, shape (n,)
        Least and greatest commit number; the bounds of int64 where unknown.
    min_times, max_times : ndarray of int64, shape (n, k)
        Least and greatest value of each coordinate; only meaningful where `known`.
    known : ndarray of bool, shape (n,)
        Whether the bounds of the times are known.
    events : ndarray of object (str), shape (n,)
    modified : ndarray of int64, shape (n,)
        Milliseconds since 1970 of the file's last change.
    least_diffs : ndarray of int64, shape (n,)
        Least diff of the updates of a collection; the least int64 where unknown.
    """

    paths: npt.NDArray[np.object_]
    sizes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    stream_lo: npt.NDArray[np.object_]
    stream_hi: npt.NDArray[np.object_]
    seq_lo: npt.NDArray[np.int64]
    seq_hi: npt.NDArray[np.int64]
    min_times: IntArray
    max_times: IntArray
    known: BoolArray
    events: npt.NDArray[np.object_]
    modified: npt.NDArray[np.int64]
    least_diffs: npt.NDArray[np.int64]

    @classmethod
    @functools.cache
    def empty(cls, arity: int) -> FileIndex:
        """Return an index of no files."""
        return cls.of_paths((), "", arity)

    @classmethod
    def of_paths(cls, paths: Sequence[str], event: str, arity: int) -> FileIndex:
        """Return an index of files of which nothing is known but their paths."""
        n = len(paths)
        times = np.zeros((n, arity), np.int64)
        return cls(
            paths=_objects(paths),
            sizes=np.zeros(n, np.int64),
            rows=np.full(n, -1, np.int64),
            stream_lo=_objects([""] * n),
            stream_hi=_objects([chr(0x10FFFF)] * n),
            seq_lo=np.full(n, _LOW, np.int64),
            seq_hi=np.full(n, _HIGH, np.int64),
            min_times=times,
            max_times=times,
            known=np.zeros(n, np.bool_),
            events=_objects([event] * n),
            modified=np.zeros(n, np.int64),
            least_diffs=np.full(n, _LOW, np.int64),
        )

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, chosen: npt.NDArray[Any]) -> FileIndex:
        """Return the files of a mask or an array of positions."""
        return FileIndex(*(getattr(self, name)[chosen] for name in self.__slots__))

    def of_event(self, event: str) -> FileIndex:
        """Return the files of `message`, `progress` or `dead` rows."""
        return self.select(self.events == event)

    def lone_streams(self) -> list[str | None]:
        """Return for each file the stream whose rows alone it surely holds; None where it may hold others."""
        bounds = zip(self.stream_lo.tolist(), self.stream_hi.tolist(), strict=True)
        return [low if low and low == high else None for low, high in bounds]

    def may_hold_stream(self, stream: str) -> BoolArray:
        """Return which files may have rows of a stream, shape (n,)."""
        return np.asarray((self.stream_lo <= stream) & (self.stream_hi >= stream), dtype=np.bool_)

    def may_hold_commits(self, ranges: Iterable[tuple[str, int, int]]) -> BoolArray:
        """Return which files may hold rows of some commits: of each stream those from a number on, and before another.

        Examples
        --------
        >>> FileIndex.of_paths(["a"], "message", 1).may_hold_commits([("main", 4, 5)]).tolist()
        [True]
        """
        chosen = np.zeros(len(self), dtype=np.bool_)
        for name, first, stop in ranges:
            if first < stop:
                chosen |= self.may_hold_stream(name) & (self.seq_hi >= first) & (self.seq_lo < stop)
        return chosen

    def may_hold_times(self, lower: Antichain | None, upper: Antichain | None) -> BoolArray:
        """Return which files may have times beyond `lower` and not beyond `upper`, shape (n,).

        A file is left out only if its greatest values are not beyond `lower`, or its least values are
        beyond `upper`.
        """
        chosen = np.ones(len(self), dtype=np.bool_)
        if lower is not None:
            chosen &= lower.beyond(self.max_times)
        if upper is not None:
            chosen &= ~upper.beyond(self.min_times)
        return chosen | ~self.known


def joined(parts: Sequence[FileIndex], arity: int) -> FileIndex:
    """Return the files of several indexes, one after the other."""
    every = [FileIndex.empty(arity), *parts]
    return FileIndex(*(np.concatenate([getattr(part, name) for part in every]) for name in FileIndex.__slots__))


def index_files(form: LogFormat, listing: pa.Table) -> FileIndex:
    """Build the index from a store's listing of live files.

    Parameters
    ----------
    form : LogFormat
    listing : pyarrow.Table
        Columns `path`, `size_bytes`, `num_records`, `modification_time`, `partition` (struct), `min`
        and `max` (structs, typed as the table).

    Notes
    -----
    Cost: linear in the number of files, all in arrays but for the texts.
    """
    n = listing.num_rows
    event = pc.struct_field(listing["partition"], "_event") if n else pa.array([], pa.string())
    stream_lo, stream_hi = _column(listing, "min", "_stream"), _column(listing, "max", "_stream")
    seq_lo, seq_hi = _column(listing, "min", "_seq"), _column(listing, "max", "_seq")
    known = np.ones(n, dtype=np.bool_)
    lows, highs = [], []
    for type_, name in zip(form.domain.types, form.domain.columns, strict=True):
        low, high = _column(listing, "min", name), _column(listing, "max", name)
        if low is None or high is None:
            known[:] = False
            lows.append(np.zeros(n, np.int64))
            highs.append(np.zeros(n, np.int64))
            continue
        known &= _valid(low) & _valid(high)
        lows.append(_integers(low))
        highs.append(_raised(_integers(high), type_))
    k = form.domain.arity
    paths = _texts(listing["path"], n, "")
    return FileIndex(
        paths=paths,
        sizes=_numbers(listing["size_bytes"], n, 0),
        rows=_numbers(listing["num_records"], n, -1),
        stream_lo=_texts(stream_lo, n, ""),
        stream_hi=_raised_texts(_texts(stream_hi, n, chr(0x10FFFF)), paths),
        seq_lo=_numbers(seq_lo, n, _LOW),
        seq_hi=_numbers(seq_hi, n, _HIGH),
        min_times=np.stack(lows, axis=1).reshape(n, k),
        max_times=np.stack(highs, axis=1).reshape(n, k),
        known=known,
        events=_texts(event, n, ""),
        modified=_numbers(listing["modification_time"], n, 0),
        least_diffs=_numbers(_column(listing, "min", "_diff"), n, _LOW),
    )


def index_adds(form: LogFormat, adds: Sequence[Mapping[str, Any]]) -> FileIndex:
    """Build the index of files from the `add` actions of a table's log.

    Parameters
    ----------
    form : LogFormat
    adds : sequence of mapping
        As the Delta protocol has them, paths decoded.

    Raises
    ------
    ValueError
        If statistics are no JSON.

    Notes
    -----
    Cost: some microseconds per file; for what one commit adds.
    """
    n, k = len(adds), form.domain.arity
    stats = [json.loads(add.get("stats") or "{}") for add in adds]
    lows, highs = ([said.get(side) or {} for said in stats] for side in ("minValues", "maxValues"))
    known = np.ones(n, dtype=np.bool_)
    bounds = np.zeros((2, n, k), dtype=np.int64)
    for place, (type_, name) in enumerate(zip(form.domain.types, form.domain.columns, strict=True)):
        for side, values in enumerate((lows, highs)):
            for i in range(n):
                found = _parsed(type_, values[i].get(name))
                known[i] &= found is not None
                bounds[side, i, place] = found or 0
        bounds[1, :, place] = _raised(bounds[1, :, place], type_)
    paths = _objects([add["path"] for add in adds])
    return FileIndex(
        paths=paths,
        sizes=np.array([add.get("size") or 0 for add in adds], np.int64),
        rows=np.array([said.get("numRecords", -1) for said in stats], np.int64),
        stream_lo=_objects([said.get("_stream", "") for said in lows]),
        stream_hi=_raised_texts(_objects([said.get("_stream", chr(0x10FFFF)) for said in highs]), paths),
        seq_lo=np.array([said.get("_seq", _LOW) for said in lows], np.int64),
        seq_hi=np.array([said.get("_seq", _HIGH) for said in highs], np.int64),
        min_times=bounds[0],
        max_times=bounds[1],
        known=known,
        events=_objects([add["partitionValues"].get("_event") or "" for add in adds]),
        modified=np.array([add.get("modificationTime") or 0 for add in adds], np.int64),
        least_diffs=np.array([said.get("_diff", _LOW) for said in lows], np.int64),
    )


def _parsed(type_: TimeType, value: object) -> int | None:
    """Return a bound as a number; None, which is unknown, for what is no time of the type."""
    if isinstance(value, int):
        return value
    try:
        return None if value is None else type_.parse(value)
    except InvalidUsageError:
        return None


def _objects(values: Sequence[str]) -> npt.NDArray[np.object_]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _column(listing: pa.Table, side: str, name: str) -> pa.ChunkedArray | None:
    """Return one statistic of all files, None if no file has it."""
    type_ = listing.schema.field(side).type if side in listing.schema.names else None
    if type_ is None or not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
        return None
    return pc.struct_field(listing[side], name)


def _valid(column: pa.ChunkedArray) -> BoolArray:
    return np.asarray(column.is_valid().to_numpy(), dtype=np.bool_)


def _integers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32())
    return _numbers(column, len(column), 0)


def _raised(values: npt.NDArray[np.int64], type_: TimeType) -> npt.NDArray[np.int64]:
    """Count a maximum that may be cut to milliseconds as one millisecond more."""
    if type_ is not TimeType.TIMESTAMP:
        return values
    return np.where((values % 1000 == 0) & (values < _HIGH - 1000), values + 999, values)


def _numbers(column: pa.ChunkedArray | None, n: int, absent: int) -> npt.NDArray[np.int64]:
    if column is None:
        return np.full(n, absent, np.int64)
    column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(absent)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _texts(column: pa.ChunkedArray | None, n: int, absent: str) -> npt.NDArray[np.object_]:
    out = np.full(n, absent, dtype=object)
    if column is None or not n:
        return out
    if column.null_count:
        column = column.fill_null(absent)
    out[:] = column.to_pylist()
    return out


def _raised_texts(values: npt.NDArray[np.object_], paths: npt.NDArray[np.object_]) -> npt.NDArray[np.object_]:
    """Let a text that may have been cut stand for all that begin with it, unless our file name tells."""
    for i, value in enumerate(values):
        if len(value) >= _TEXT_LIMIT and not paths[i].rpartition("/")[2].startswith(f"{value}-"):
            values[i] = value + chr(0x10FFFF)
    return values


_FIRST_ROOM = 64


class LiveFiles:
    """The files of one snapshot, by kind of event.

    Parameters
    ----------
    arity : int
        Coordinates of the log's times.

    Examples
    --------
    >>> len(LiveFiles(1)), "a.parquet" in LiveFiles(1), len(LiveFiles(1).index("message"))
    (0, False, 0)
    """

    def __init__(self, arity: int) -> None:
        self._arity = arity
        self._parts = {event: _Part(arity) for event in EVENTS}

    def __len__(self) -> int:
        return sum(len(part.places) for part in self._parts.values())

    def __contains__(self, path: object) -> bool:
        return any(path in part.places for part in self._parts.values())

    def copied(self) -> LiveFiles:
        """Return the same files in an object of its own."""
        other = LiveFiles(self._arity)
        for part in self._parts.values():
            other.add(part.index())
        return other

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(int(part.index().sizes.sum()) for part in self._parts.values())

    def index(self, event: str) -> FileIndex:
        """Return the files of `message`, `progress`, `dead` or `since` rows."""
        return self._part(event).index()

    def add(self, files: FileIndex) -> None:
        """Take files in; one that is known by its path is replaced."""
        self.remove(path for path in files.paths.tolist() if path in self)
        for event in dict.fromkeys(files.events.tolist()):
            self._part(event).add(files.of_event(event))

    def remove(self, paths: Iterable[str]) -> None:
        """Forget files; a path that is not known means nothing."""
        gone = set(paths)
        if gone:
            for part in self._parts.values():
                part.remove(gone)

    def _part(self, event: str) -> _Part:
        part = self._parts.get(event)
        if part is None:
            part = self._parts[event] = _Part(self._arity)
        return part


class _Part:
    """Files of one kind of event, in arrays with room at their ends."""

    def __init__(self, arity: int) -> None:
        self.places: dict[str, int] = {}
        # Made with the first file: a log rarely has files of every kind.
        self._room: dict[str, npt.NDArray[Any]] = {}
        self._index: FileIndex | None = FileIndex.empty(arity)

    def index(self) -> FileIndex:
        if self._index is None:
            n = len(self.places)
            self._index = FileIndex(**{name: array[:n] for name, array in self._room.items()})
        return self._index

    def add(self, files: FileIndex) -> None:
        n = len(self.places)
        stop = n + len(files)
        if not self._room or stop > len(self._room["sizes"]):
            self._room = _arrays(self.index(), max(_FIRST_ROOM, 2 * stop))
        for name, array in self._room.items():
            array[n:stop] = getattr(files, name)
        self.places.update(zip(files.paths.tolist(), range(n, stop), strict=True))
        self._index = None

    def remove(self, paths: set[str]) -> None:
        found = [self.places[path] for path in paths if path in self.places]
        if not found:
            return
        left = self.index().select(np.delete(np.arange(len(self.places)), found))
        # Into new arrays: those before belong to callers that got an index.
        self._room = _arrays(left, max(_FIRST_ROOM, 2 * len(left)))
        self.places = {path: place for place, path in enumerate(left.paths.tolist())}
        self._index = None


def _arrays(files: FileIndex, room: int) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the columns of an index, with room for `room` files."""
    copies, n = {}, len(files)
    for name in FileIndex.__slots__:  # a dozen
        column = getattr(files, name)
        copies[name] = np.empty((room, *column.shape[1:]), dtype=column.dtype)
        copies[name][:n] = column
    return copies
