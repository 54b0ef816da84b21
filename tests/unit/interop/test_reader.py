"""The reader of captures: what is whole is given out, what is wrong is refused with its place."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.errors import CaptureFormatError, SchemaMismatchError
from spark_timely.interop.chunk import CaptureChunk
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.schema import arrow_schema, parse_type
from spark_timely.interop.writer import CaptureEncoder, build_chunk, capture_bytes

U64 = {"time": "u64", "record": "u64"}


# Buffers do not keep the pool alive that they came from.
_POOLS: list[pa.MemoryPool] = []


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Give the greatest number of bytes that Python and Arrow's pool held at once, at the end."""
    usual, peak = pa.default_memory_pool(), list[int]()
    _POOLS.append(pa.proxy_memory_pool(usual))
    pa.set_memory_pool(_POOLS[-1])
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1] + _POOLS[-1].max_memory())
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


def messages(time: int, count: int, body: bytes, *, length: int | None = None) -> bytes:
    payload = struct.pack("<IQQ", 1, time, count) + body
    return struct.pack("<Q", len(payload) if length is None else length) + payload


def reader_of(data: bytes, *, time: str = "u64", record: str = "u64", chunk_bytes: int | None = None) -> CaptureReader:
    return CaptureReader(io.BytesIO(data), time=time, record=record, chunk_bytes=chunk_bytes)


def refused(data: bytes, *, time: str = "u64", record: str = "u64") -> CaptureFormatError:
    """Return the error, the same whatever the size of chunks."""
    errors = []
    for chunk_bytes in (4096, 64, 100):
        with pytest.raises(CaptureFormatError) as caught:
            list(reader_of(data, time=time, record=record, chunk_bytes=chunk_bytes))
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    assert errors[0].hint
    return errors[0]


GOOD = capture_bytes([(0, [1, 2, 3]), {0: -1, 5: 1}], **U64)


def test_prefix_of_a_capture_is_read_to_its_last_whole_event() -> None:
    for cut in range(len(GOOD) + 1):
        reader = reader_of(GOOD[:cut], chunk_bytes=4096)
        whole = [position for position in (0, 52, len(GOOD)) if position <= cut][-1]
        assert sum(chunk.n_events for chunk in reader) == [0, 52, len(GOOD)].index(whole)
        assert (reader.position, reader.unfinished) == (whole, cut - whole)


def test_file_that_grows_is_read_on() -> None:
    file = io.BytesIO()
    reader = CaptureReader(file, **U64, chunk_bytes=64)
    seen = 0
    for i in range(len(GOOD)):
        file.seek(i)
        file.write(GOOD[i : i + 1])
        file.seek(i)
        seen += sum(chunk.n_events for chunk in reader)
        assert seen == reader.event
    assert (seen, reader.unfinished) == (2, 0)


def test_reading_goes_on_from_a_position() -> None:
    reader = CaptureReader(io.BytesIO(GOOD[52:]), **U64, position=52, event=1)
    (chunk,) = reader
    assert (chunk.first_event, chunk.positions.tolist(), reader.event) == (1, [52, len(GOOD)], 2)


@pytest.mark.parametrize(
    ("data", "position", "found"),
    [
        (struct.pack("<Q", 1 << 60), 0, "an event of 1152921504606846976 bytes"),
        (struct.pack("<QI", 4, 0), 0, "an event of 4 bytes"),
        (struct.pack("<QIQ", 12, 7, 0), 8, "an event of kind 7"),
        (struct.pack("<QIQ", 12, 0, 1 << 61), 12, "a length of 2305843009213693952 where 0 bytes are left"),
        (struct.pack("<QIQQ", 20, 0, 0, 0), 20, "8 bytes left over"),
        (struct.pack("<QIQQq", 28, 0, 1, 1 << 63, 1), 20, "the time 9223372036854775808"),
        (struct.pack("<QIQ", 12, 1, 0), 12, "an event of messages of 12 bytes"),
        (messages(0, 2, b"12345678"), 20, "a length of 2 where 8 bytes are left"),
        (messages(0, 1 << 63, b"12345678"), 20, "a length of 9223372036854775808 where 8"),
        (messages(0, 1, b"123456789"), 36, "1 bytes left over"),
    ],
)
def test_hostile_events_are_refused_with_event_and_byte(data: bytes, position: int, found: str) -> None:
    error = refused(GOOD + data)
    assert (error.event, error.position) == (2, len(GOOD) + position)
    assert f"event=2, byte={len(GOOD) + position}: found {found}" in error.message


@pytest.mark.parametrize(
    ("record", "body", "at", "found"),
    [
        ("bool", b"\x01\x02", 1, "the byte 2 where a bool"),
        ("(u8, bool)", b"\x09\x01\x09\x03", 3, "the byte 3 where a bool"),
        ("option<u8>", b"\x00\x02\x01", 1, "the byte 2 where an option"),
        ("option<u64>", b"\x00\x01\x01", 2, "a value that needs more than the 1 bytes left"),
        ("string", struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 2) + b"\xff\xfe", 17, "bytes that are no UTF-8"),
        ("bytes", struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 1 << 62), 9, "a length of 4611686018427387904"),
        ("vec<u16>", struct.pack("<QQ", 0, 1 << 62), 8, "a length of 4611686018427387904"),
        ("vec<string>", struct.pack("<QQ", 0, 1 << 40), 8, "a length of 1099511627776"),
        ("enum{A, B}", struct.pack("<II", 1, 2), 4, "variant 2 of an enum of 2"),
        ("enum{A, B(string)}", struct.pack("<II", 0, 9), 4, "variant 9 of an enum of 2"),
        ("duration", struct.pack("<QIQI", 1, 5, 1, 10**9), 20, "a duration with 1000000000 nanoseconds"),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_byte(record: str, body: bytes, at: int, found: str) -> None:
    first = capture_bytes([{0: 0}], time="u64", record=record)
    for copies in (1, 30):  # few blocks, and enough for many at once
        good = messages(0, 0, b"") * copies
        error = refused(first + good + messages(0, 2, body), record=record)
        assert error.position == len(first + good) + 28 + at
        assert (error.event, f"found {found}" in error.message) == (1 + copies, True), error.message


@pytest.mark.parametrize("blocks", [1, 40])
def test_fault_in_any_of_many_blocks_is_found_at_its_place(blocks: int) -> None:
    good = capture_bytes([(0, ["a", "bc"])], time="u64", record="string")
    body = struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 5) + b"bc"
    data = good * (blocks // 2) + messages(0, 2, body) + good * (blocks - blocks // 2)
    error = refused(data, record="string")
    assert (error.event, error.position) == (blocks // 2, len(good) * (blocks // 2) + 28 + 9)


def test_wrong_type_that_fits_by_chance_is_refused() -> None:
    # timely reads the first field of each pair and forgets the rest.
    data = capture_bytes([(0, [(1, 2), (3, 4)])], time="u64", record="(u64, u64)")
    assert "16 bytes left over" in refused(data).message


def test_absurd_lengths_cost_no_memory() -> None:
    hostile = messages(0, 1 << 50, b"", length=200 << 20)  # within what an event may have, but does not come
    deep = struct.pack("<Q", 3) * 3
    with peak_memory() as peak:
        reader = reader_of(hostile)
        assert list(reader) == []
        assert reader.unfinished == len(hostile)
        with pytest.raises(CaptureFormatError):
            list(reader_of(messages(0, 1 << 50, deep), record="vec<vec<vec<u64>>>"))
        with pytest.raises(CaptureFormatError):
            list(reader_of(messages(0, 1 << 30, b""), record="()"))
    assert 4 << 20 <= peak[0] < 16 << 20


def test_memory_does_not_grow_with_the_file() -> None:
    event = capture_bytes([(0, list(range(1000)))], **U64)

    class Endless(io.RawIOBase):
        def __init__(self, events: int) -> None:
            self.left = events

        def readinto(self, buffer: memoryview) -> int:
            n = min(len(buffer) // len(event), self.left)
            buffer[: n * len(event)] = event * n
            self.left -= n
            return n * len(event)

    peaks = []
    for events in (1000, 20_000):
        with peak_memory() as peak:
            assert sum(chunk.n_records for chunk in CaptureReader(Endless(events), **U64)) == 1000 * events
        peaks += peak
    assert 4 << 20 <= peaks[1] < 1.2 * peaks[0]


def test_event_larger_than_a_chunk_is_read_whole() -> None:
    data = capture_bytes([(0, ["x" * 3000, "y" * 5000]), {0: -1}], time="u64", record="string")
    chunks = list(reader_of(data, record="string", chunk_bytes=64))
    assert [chunk.n_records for chunk in chunks if chunk.n_records] == [2]


def test_values_of_fixed_width_are_not_copied_twice() -> None:
    (chunk,) = reader_of(capture_bytes([(0, list(range(1000)))], **U64))
    values = np.asarray(chunk.records.column("value"))
    assert values.tolist() == list(range(1000))
    assert not values.flags.owndata


@pytest.mark.parametrize(
    "sizes",
    [[0, 0, 0], [0, 2, 0], [3, 3, 3, 3], [3, 3, 2], [2, 3, 3]],
    ids=["all empty", "empty and not", "alike", "shorter at the end", "longer after the first"],
)
@pytest.mark.parametrize("between", [False, True], ids=["messages alone", "progress between"])
def test_events_alike_and_not_give_the_records_that_they_hold(sizes: list[int], between: bool) -> None:
    events: list[object] = []
    for i, n in enumerate(sizes):
        events.append((i, [10 * i + k for k in range(n)]))
        if between:
            events.append({i: -1, i + 1: 1})
    (chunk,) = reader_of(capture_bytes(events, **U64))  # type: ignore[arg-type]
    assert chunk.records["value"].to_pylist() == [10 * i + k for i, n in enumerate(sizes) for k in range(n)]


def chunk_of(values: pa.Array, record: str) -> CaptureChunk:
    empty = build_chunk([(0, [])], time="u64", record=record)
    records = pa.RecordBatch.from_arrays([values], schema=pa.schema([("value", values.type)]))
    return CaptureChunk(
        empty.is_messages, empty.positions, 0, empty.times, np.array([len(values)]), records, *progress_of(empty)
    )


def progress_of(chunk: CaptureChunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return chunk.progress_times, chunk.progress_deltas, chunk.progress_counts


@pytest.mark.parametrize(
    ("values", "record"),
    [
        (pa.array([1, None], pa.uint64()), "u64"),
        (pa.array(["a", None]), "string"),
        (pa.array([[1], None], pa.list_(pa.int64())), "vec<i64>"),
        (pa.array([True, None]), "bool"),
        (pa.array([300], pa.int64()), "u8"),
        (pa.array([-1], pa.int64()), "u64"),
        (pa.array([{"variant": "C"}], pa.struct([("variant", pa.string())])), "enum{A, B}"),
        (
            pa.array([{"variant": "B", "B": None}], pa.struct([("variant", pa.string()), ("B", pa.uint8())])),
            "enum{A, B(u8)}",
        ),
    ],
)
def test_what_the_type_cannot_hold_is_not_written(values: pa.Array, record: str) -> None:
    with pytest.raises(SchemaMismatchError):
        CaptureEncoder(time="u64", record=record).encode(chunk_of(values, record))


def test_slices_are_written_as_what_they_show() -> None:
    type_ = "(string, option<u8>, vec<string>, bool)"
    rows = [(f"r{i}", i if i % 2 else None, ["x"] * (i % 3), i % 2 == 0) for i in range(20)]
    whole = build_chunk([(0, rows)], time="u64", record=type_)
    encoder = CaptureEncoder(time="u64", record=type_)
    data, bounds = encoder.encode_records(whole.records)
    part, _ = encoder.encode_records(whole.records.slice(7, 9))
    assert part == data[bounds[7] : bounds[16]]
    assert whole.records.schema.equals(arrow_schema(parse_type(type_)))
