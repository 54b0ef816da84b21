"""Stamps of timely 0.32: from a message with several times, the one time that each record gets in a log.

An import calls `place_records`; an export reads the column of stamps that an import has kept, by `stamps_of`, to write
the stamps again. A message of timely 0.31 is one with a stamp of one time.

A message of timely 0.32 has a stamp, a sorted multiset of times. Each of them is one that the stream may use; the
contents are only promised to be at or after *some* of them. A row of a log has one time:

- Records that are updates ``(data, time, diff)`` have their own, whatever the stamp. It must be at or after a time of
  the stamp.
- Other records get the time of the stamp: the only one, or of several that are totally ordered the least.
- Of several times of a partial order none is right. Their meet may be before the frontier, and a row for each time
  would be more records than there are. Such records are refused, or get the first time in Rust's order, beside a column
  with the stamp.
- A stamp without times gives none. Its records are refused, left out and counted, or set apart as dead letters: rows
  that the log keeps outside of the stream, for people to look at.

Invariants
----------
1. A row is at or after a time of its message's stamp, so a stream that may use the stamp may use the row's time.
2. A column of stamps is not larger than a fixed multiple of the bytes that the messages came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_timely.errors import CaptureFormatError, InvalidUsageError, shown
from spark_timely.interop.buffers import Offsets, bounds_of
from spark_timely.interop.chunk import CaptureChunk
from spark_timely.interop.schema import Record, Scalar, Type, columns_of, type_text
from spark_timely.interop.time_layout import LATE_HINT, TimeLayout, cut_times, too_late
from spark_timely.time.antichain import IntArray, less_equal

Stamps: TypeAlias = Literal["refuse", "column"]
Updates: TypeAlias = Literal["auto", "yes", "no"]
Unstamped: TypeAlias = Literal["refuse", "drop", "dead-letter"]

STAMP = "stamp"
"""Name of the column that keeps stamps."""

_DIFFS = [Scalar(f"i{bits}") for bits in (8, 16, 32, 64)]
_HI = (1 << 63) - 1
_SECOND = 1_000_000_000
_PAIRS = 1 << 18
"""Pairs of a record and a time that are compared at once."""
_TIMES_PER_BYTE = 16
"""Times in a column of stamps for each byte of a message: a stamp stands there once for each record."""


def are_updates(time: Type, record: Type, updates: Updates) -> bool:
    """Return whether records are updates: three fields, of which the second has the times' type, the third is a diff.

    Parameters
    ----------
    time, record : Type
    updates : str
        ``yes`` or ``no`` where that is declared; ``auto`` takes the tuple ``(data, time, i64)`` for updates, as
        differential has them, and nothing whose fields have names.

    Raises
    ------
    InvalidUsageError
        If they are declared to be updates and cannot be.

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> are_updates(parse_type("u64"), parse_type("((string, u64), u64, i64)"), "auto")
    True
    >>> are_updates(parse_type("u64"), parse_type("(string, u64)"), "auto")
    False
    """
    if updates == "no":
        return False
    like = (
        isinstance(record, Record)
        and record.kind in (("tuple",) if updates == "auto" else ("tuple", "struct"))
        and len(record.items) == 3
        and _leaves(record.items[1]) == _leaves(time) is not None
        and record.items[2] in ([Scalar("i64")] if updates == "auto" else _DIFFS)
    )
    if updates == "yes" and not like:
        msg = f"could not take records as updates: found type {type_text(record)} with times {type_text(time)}"
        raise InvalidUsageError(msg, hint=f"declare them as (data, {type_text(time)}, i64)")
    return like


def _leaves(type_: Type) -> tuple[str, ...] | None:
    try:
        return TimeLayout(type_).leaves
    except InvalidUsageError:
        return None


def stamp_type(layout: TimeLayout) -> pa.DataType:
    """Return the type of the column that keeps stamps: lists of times, of structs for several coordinates.

    Examples
    --------
    >>> stamp_type(TimeLayout("product<u64, i8>"))
    ListType(list<element: struct<t0: int64 not null, t1: int64 not null> not null>)
    """
    item = pa.int64()
    if layout.arity > 1:
        item = pa.struct([pa.field(f"t{i}", pa.int64(), nullable=False) for i in range(layout.arity)])
    return pa.list_(pa.field("element", item, nullable=False))


def stamp_column(times: IntArray, sizes: Offsets) -> pa.Array:
    """Return stamps as a column.

    Parameters
    ----------
    times : ndarray of int64, shape (s, k)
    sizes : ndarray of int64, shape (n,)
        How many of them each row has.

    Examples
    --------
    >>> stamp_column(np.array([[1], [2]]), np.array([2, 0])).to_pylist()
    [[1, 2], []]
    """
    parts = [pa.array(np.ascontiguousarray(times[:, i])) for i in range(times.shape[1])]
    fields = [pa.field(f"t{i}", pa.int64(), nullable=False) for i in range(len(parts))]
    items = parts[0] if len(parts) == 1 else pa.StructArray.from_arrays(parts, fields=fields)
    type_ = pa.list_(pa.field("element", items.type, nullable=False))
    return pa.ListArray.from_arrays(pa.array(bounds_of(sizes).astype(np.int32)), items, type=type_)


def stamps_of(column: pa.Array | pa.ChunkedArray) -> tuple[IntArray, Offsets]:
    """Return the times and sizes that `stamp_column` made a column of.

    Examples
    --------
    >>> times, sizes = stamps_of(stamp_column(np.array([[1, 5], [2, 3]]), np.array([0, 2])))
    >>> times.tolist(), sizes.tolist()
    ([[1, 5], [2, 3]], [0, 2])
    """
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    offsets = np.asarray(whole.offsets, np.int64)
    items = whole.values.slice(offsets[0], offsets[-1] - offsets[0])
    struct = pa.types.is_struct(items.type)
    parts = [items.field(i) for i in range(items.type.num_fields)] if struct else [items]
    return np.stack([np.asarray(part, np.int64) for part in parts], axis=1), np.diff(offsets)


def stamp_keys(column: pa.Array | pa.ChunkedArray) -> Offsets:
    """Return a number for each stamp of a column, the same for equal ones.

    Examples
    --------
    >>> stamp_keys(stamp_column(np.array([[1], [2], [1]]), np.array([2, 0, 1]))).tolist()
    [0, 1, 2]
    """
    times, sizes = stamps_of(column)
    # Their bytes say whether they are equal; Arrow numbers distinct byte strings.
    data = pa.py_buffer(np.ascontiguousarray(times))
    bounds = pa.py_buffer(bounds_of(sizes) * (8 * times.shape[1]))
    texts = pa.Array.from_buffers(pa.large_binary(), sizes.shape[0], [None, bounds, data])
    return np.asarray(texts.dictionary_encode().indices, np.int64)


@dataclass(frozen=True, slots=True)
class StampRules:
    """The rules for records whose stamp has not one time.

    Parameters
    ----------
    layout : TimeLayout
    record : Type
    updates : bool
        Whether records are updates ``(data, time, diff)``.
    column : bool
        Whether to keep stamps in a column.
    unstamped : str
        What to do with plain records without a time: ``refuse``, ``drop``, ``dead-letter``.
    """

    layout: TimeLayout
    record: Type
    updates: bool = False
    column: bool = False
    unstamped: Unstamped = "refuse"


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Records of a chunk with their times in a log.

    Parameters
    ----------
    records : pyarrow.RecordBatch
    times : ndarray of int64, shape (n, k)
    dead : pyarrow.RecordBatch or None
        Records without a time, where they are set apart.
    dropped : int
        How many records without a time were left out.
    """

    records: pa.RecordBatch
    times: IntArray
    dead: pa.RecordBatch | None = None
    dropped: int = 0


def place_records(
    chunk: CaptureChunk,
    rules: StampRules,
    stream: str,
    *,
    place_of: Callable[[int], int | None] | None = None,
) -> Placed:
    """Give each record of a chunk its time in a log.

    Parameters
    ----------
    chunk : CaptureChunk
        Judged: each time of a stamp may be used.
    rules : StampRules
    stream : str
        For errors.
    place_of : callable, optional
        As in `spark_timely.interop.chunk.judge_chunk`.

    Raises
    ------
    CaptureFormatError
        For the first message whose records have no time; it names its event, its first byte, and how many times its
        stamp has.

    Notes
    -----
    Cost: O(n) for messages with one time. Updates in a partial order are compared with the times of their stamps until
    one is found: mostly the first.

    Examples
    --------
    >>> from spark_timely.interop.schema import parse_type
    >>> from spark_timely.interop.writer import build_chunk
    >>> chunk = build_chunk([([3, 5, 5], [7, 8])], time="u64", record="u64", timely="0.32")
    >>> place_records(chunk, StampRules(TimeLayout("u64"), parse_type("u64")), "w0").times.tolist()
    [[3], [3]]
    """
    return _Placing(chunk, rules, stream, place_of).placed()


class _Placing:
    """One chunk that is placed."""

    def __init__(
        self,
        chunk: CaptureChunk,
        rules: StampRules,
        stream: str,
        place_of: Callable[[int], int | None] | None,
    ) -> None:
        self.chunk = chunk
        self.rules = rules
        self.stream = stream
        self._place_of = place_of
        self.sizes = chunk.stamp_sizes
        self.bounds = bounds_of(self.sizes)
        self.message: Offsets = np.repeat(np.arange(chunk.counts.shape[0]), chunk.counts)
        """Number of each record's message."""

    def placed(self) -> Placed:
        chunk, rules = self.chunk, self.rules
        if chunk.stamps is None and chunk.times.dtype == np.int64 and not rules.updates and not rules.column:
            return Placed(chunk.records, chunk.record_times)
        held = chunk.counts > 0
        if rules.updates:
            self._refuse(held & (self.sizes == 0), "an empty stamp, which holds no updates", _UPDATES_HINT)
            return Placed(self._with_stamps(slice(None)), self._own_times())
        if rules.layout.arity > 1 and not rules.column:
            self._refuse(held & (self.sizes > 1), "{} times in its stamp, of which none is the records' time", _HINT)
        empty = held & (self.sizes == 0)
        if rules.unstamped == "refuse":
            self._refuse(empty, "0 times in its stamp", _UNSTAMPED_HINT)
        first = self.bounds[:-1]
        late = held & ~empty
        late[late] = too_late(chunk.times)[first[late]]
        self._refuse(late, "a time of 2^63 or more", LATE_HINT)
        if not empty.any():
            return Placed(self._with_stamps(slice(None)), self._times(first[self.message]))
        there = ~empty[self.message]
        times = self._times(first[self.message[there]])
        records = self._with_stamps(np.flatnonzero(there))
        if rules.unstamped == "drop":
            return Placed(records, times, dropped=int((~there).sum()))
        return Placed(records, times, self._with_stamps(np.flatnonzero(~there)))

    def _times(self, rows: Offsets) -> IntArray:
        """Return times of stamps that were found not to be too late."""
        found: IntArray = self.chunk.times[rows].astype(np.int64, copy=False)
        return found

    def _own_times(self) -> IntArray:
        """Return the times that updates have themselves, each found to be allowed by the stamp of its message."""
        name, type_ = columns_of(self.rules.record)[1]
        own = np.zeros((self.chunk.n_records, self.rules.layout.arity), np.int64)
        late = np.zeros(own.shape[0], np.bool_)
        for i, (values, wrong) in enumerate(_coordinates(self.chunk.records.column(name), type_)):
            own[:, i] = values
            late |= wrong
        self._refuse_rows(late, "an update at a time of 2^63 or more", LATE_HINT)
        lows, vast = cut_times(self.chunk.times), too_late(self.chunk.times)
        ok = self._allowed(own, lows, vast, self.bounds[:-1][self.message])
        if self.chunk.stamps is not None and not ok.all():
            ok[~ok] = self._allowed_by_any(own, lows, vast, np.flatnonzero(~ok))
        found = "an update at a time that is neither at nor after one of the {} times of its stamp"
        self._refuse_rows(~ok, found, _OTHER_HINT)
        return own

    @staticmethod
    def _allowed(own: IntArray, lows: IntArray, vast: npt.NDArray[np.bool_], at: Offsets) -> npt.NDArray[np.bool_]:
        return np.asarray(less_equal(lows[at], own) & ~vast[at], np.bool_)

    def _allowed_by_any(
        self, own: IntArray, lows: IntArray, vast: npt.NDArray[np.bool_], rows: Offsets
    ) -> npt.NDArray[np.bool_]:
        """Tell for each of some rows whether any time of its stamp allows it, in pieces of about `_PAIRS` pairs."""
        message = self.message[rows]
        total = bounds_of(self.sizes[message])
        found = np.zeros(rows.shape[0], np.bool_)
        low = 0
        while low < rows.shape[0]:
            high = max(low + 1, int(np.searchsorted(total, total[low] + _PAIRS, side="right")) - 1)
            sizes = self.sizes[message[low:high]]
            pair = np.repeat(np.arange(low, high), sizes)
            at = np.arange(int(sizes.sum())) - np.repeat(total[low:high] - total[low], sizes)
            at += self.bounds[:-1][message[pair]]
            found[pair[self._allowed(own[rows[pair]], lows, vast, at)]] = True
            low = high
        return found

    def _with_stamps(self, rows: slice | npt.NDArray[np.intp]) -> pa.RecordBatch:
        """Return some of the records, with the column of stamps if that is wanted."""
        records = self.chunk.records
        if not isinstance(rows, slice):
            records = records.take(pa.array(rows))
        if not self.rules.column:
            return records
        chunk = self.chunk
        held = chunk.counts > 0
        late = held.copy()
        message = np.repeat(np.arange(self.sizes.shape[0]), self.sizes)
        late &= np.bincount(message[too_late(chunk.times)], minlength=late.shape[0]) > 0
        self._refuse(late, "a time of 2^63 or more in its stamp", LATE_HINT)
        n_bytes = np.diff(chunk.positions)[chunk.is_messages]
        many = chunk.counts * self.sizes
        found = "{} times in its stamp, which are too many to stand beside each of its records"
        self._refuse(many > _TIMES_PER_BYTE * np.maximum(n_bytes, 0), found, _MANY_HINT)
        mine = self.message[rows]
        sizes = self.sizes[mine]
        bounds = bounds_of(sizes)
        at = np.repeat(self.bounds[:-1][mine] - bounds[:-1], sizes) + np.arange(bounds[-1])
        column = stamp_column(self._times(at), sizes)
        fields = [*records.schema, pa.field(STAMP, column.type, nullable=False)]
        schema = pa.schema(fields, metadata=records.schema.metadata)
        return pa.RecordBatch.from_arrays([*records.columns, column], schema=schema)

    def _refuse_rows(self, wrong: npt.NDArray[np.bool_], found: str, hint: str) -> None:
        messages = np.zeros(self.sizes.shape[0], np.bool_)
        messages[self.message[wrong]] = True
        self._refuse(messages, found, hint)

    def _refuse(self, wrong: npt.NDArray[np.bool_], found: str, hint: str) -> None:
        """Refuse the first message that is wrong, if one is."""
        if not wrong.any():
            return
        i = int(np.argmax(wrong))
        number = int(np.flatnonzero(self.chunk.is_messages)[i])
        event = self.chunk.first_event + number
        place = int(self.chunk.positions[number]) if self._place_of is None else self._place_of(event)
        size = int(self.sizes[i])
        said = found.format(size)
        what = f"{self.chunk.counts[i]} records of stream {shown(self.stream)}"
        msg = f"could not give {what} a time: found {said}, at event={event}, byte={place}"
        context = {"stream": self.stream, "times": size}
        raise CaptureFormatError(msg, hint=hint, context=context, event=event, position=place)


_HINT = (
    "keep whole stamps in a column (--stamps column), or capture updates (data, time, diff), which have their own times"
)
_UNSTAMPED_HINT = "leave such records out, or set them apart: --unstamped drop, --unstamped dead-letter"
_UPDATES_HINT = (
    "correct what writes the capture: an update without a time in its stamp could change what is complete; records that"
    " are no updates: --updates no"
)
_OTHER_HINT = "declare the types that the file holds; records that are no updates (data, time, diff): --updates no"
_MANY_HINT = "capture smaller messages, or leave out --stamps column"


def _coordinates(values: pa.Array, type_: Type) -> Iterator[tuple[IntArray, npt.NDArray[np.bool_]]]:
    """Yield the coordinates of times that stand in a column, and which of them no log can hold."""
    if isinstance(type_, Scalar):
        if type_.kind != "unit":
            found = np.asarray(values)
            wrong = found > _HI if type_.kind == "u64" else np.zeros(found.shape[0], np.bool_)
            yield np.where(wrong, 0, found).astype(np.int64), wrong
        return
    assert isinstance(type_, Record)
    if type_.kind == "duration":
        seconds, nanos = (np.asarray(values.field(i), np.uint64) for i in range(2))
        wrong = seconds >= _HI // _SECOND
        yield np.where(wrong, 0, seconds).astype(np.int64) * _SECOND + nanos.astype(np.int64), wrong
        return
    for i, item in enumerate(type_.items):
        yield from _coordinates(values.field(i), item)
