"""Import: each capture becomes a stream, once; what breaks the protocol is refused with event and byte."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import (
    CaptureFormatError,
    NegativeCountError,
    NotBeyondError,
    OwnershipError,
    SchemaMismatchError,
    UnheldCapabilityError,
)
from spark_timely.exchange.declared import CaptureTypes, import_owner
from spark_timely.exchange.importing import StreamImport
from spark_timely.exchange.writer import capture_bytes
from spark_timely.log.memory import MemoryLog
from spark_timely.log.reading import ReadableLog

TYPES = CaptureTypes.parse("u64", "(string, u64)")
EVENTS = [
    (0, [("a", 1), ("b", 1 << 63)]),
    {0: -1, 3: 1},
    (5, [("c", 3)]),
    (3, [("a", 4)]),
    [[3, -1], [7, 2]],
    {7: -1},
    (9, [("d", 5)]),
    {7: -1},
]
DATA = capture_bytes(EVENTS, time="u64", record="(string, u64)")


def log_of(types: CaptureTypes = TYPES, streams: int = 1) -> MemoryLog:
    domain = types.layout.domain
    return MemoryLog.create(
        types.payload, times=[type_.value for type_ in domain.types], minimum=domain.minimum, streams=streams
    )


def digest(log: ReadableLog) -> str:
    report = log.verify()
    assert report.legal, report.problems
    return report.digest


def imported(data: bytes, *, commit_bytes: int = 1 << 20, types: CaptureTypes = TYPES) -> MemoryLog:
    log = log_of(types)
    StreamImport(log, "w", types, name="x", commit_bytes=commit_bytes).take_whole(io.BytesIO(data))
    return log


def test_import_has_every_record_at_its_time_and_closes() -> None:
    log = imported(DATA)
    rows = log.messages(columns=["_time", "f0", "f1"]).to_pylist()
    assert sorted((r["_time"], r["f0"], int(r["f1"])) for r in rows) == [
        (0, "a", 1),
        (0, "b", 1 << 63),
        (3, "a", 4),
        (5, "c", 3),
        (9, "d", 5),
    ]
    assert log.frontier().is_empty
    assert log.verify().legal


@pytest.mark.parametrize("commit_bytes", [1, 60, 150])
def test_answer_does_not_depend_on_how_the_capture_is_cut(commit_bytes: int) -> None:
    assert digest(imported(DATA, commit_bytes=commit_bytes)) == digest(imported(DATA))


@pytest.mark.parametrize("seed", range(6))
def test_import_of_a_growing_file_goes_on_where_it_was(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    file, log = tmp_path / "x.bin", log_of()
    cuts = sorted(rng.sample(range(1, len(DATA)), 5))
    events = 0
    for cut in [*cuts, len(DATA), len(DATA)]:
        file.write_bytes(DATA[:cut])
        for again in range(2):
            # Each time a fresh process: all it knows is in the log.
            seq = -1 if log.stream("w") is None else log.stream("w").seq
            done = StreamImport(log, "w", TYPES, name="x", commit_bytes=100).take_file(str(file))
            events += done.new_events
            assert done.events == events
            assert done.position + done.unfinished == cut
            if again:
                assert (done.new_events, log.stream("w").seq) == (0, seq)
        assert log.stream("w").closed == (cut == len(DATA))
    assert events == len(EVENTS)
    assert digest(log) == digest(imported(DATA))


def test_unfinished_capture_keeps_the_frontier_where_it_is() -> None:
    log = log_of()
    done = StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(DATA[:-1]))
    assert (done.closed, done.unfinished > 0, done.frontier.to_json()) == (False, True, [7])
    assert log.frontier().to_json() == [7]
    assert log.messages().num_rows == 5


def test_file_is_followed_while_there_is_reason_to_look_again(tmp_path: Path) -> None:
    file, log = tmp_path / "x.bin", log_of()
    file.write_bytes(DATA[:50])
    looks = []

    def again() -> bool:
        looks.append(log.frontier().to_json())
        file.write_bytes(DATA[: 50 + 40 * len(looks)])
        return True

    done = StreamImport(log, "w", TYPES, name="x").take_file(str(file), again=again)
    assert (done.closed, done.new_events) == (True, len(EVENTS))
    assert looks[0] == [0]
    assert [7] in looks


@pytest.mark.parametrize("cut", [100, 200])
def test_another_capture_in_the_place_of_what_was_imported_is_refused(cut: int, tmp_path: Path) -> None:
    file, log = tmp_path / "x.bin", log_of()
    file.write_bytes(DATA[:cut])
    StreamImport(log, "w", TYPES, name="x").take_file(str(file))
    before = digest(log)
    for other in (DATA[: cut // 2], DATA.replace(b"a", b"z")):
        file.write_bytes(other)
        with pytest.raises(CaptureFormatError, match=r"than the \d+ bytes that the log has"):
            StreamImport(log, "w", TYPES, name="x").take_file(str(file))
        if len(other) == len(DATA):
            with pytest.raises(CaptureFormatError, match="found other bytes"):
                StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(other))
    assert digest(log) == before


def test_advance_by_hand_does_not_make_the_import_forget() -> None:
    log = log_of()
    StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(DATA[:150]))
    position = log.stream("w").batch
    log.advance("w", 3)
    assert StreamImport(log, "w", TYPES, name="x").position == position
    done = StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(DATA))
    assert done.closed


ILLEGAL = {
    "message after close": ([{0: -1}, (3, [("a", 1)])], UnheldCapabilityError, 1),
    "message before what is held": ([{0: -1, 5: 1}, (9, []), (4, [("a", 1)])], UnheldCapabilityError, 2),
    "gain without a capability": ([{0: -1, 5: 1}, {4: 1}], UnheldCapabilityError, 1),
    "capability taken again": ([{0: -1}, {0: 1}], UnheldCapabilityError, 1),
    "given up twice": ([{0: -1, 5: 1}, {5: -2}], NegativeCountError, 1),
    "given up and never held": ([(0, []), {5: -1}], NegativeCountError, 1),
}


@pytest.mark.parametrize("case", sorted(ILLEGAL))
@pytest.mark.parametrize("events_before", [0, 3])
def test_broken_protocol_is_refused_with_event_and_byte(case: str, events_before: int) -> None:
    events, kind, number = ILLEGAL[case]
    before = [(0, [("x", 1)])] * events_before
    data = capture_bytes([*before, *events], time="u64", record="(string, u64)")
    place = len(capture_bytes([*before, *events[:number]], time="u64", record="(string, u64)"))
    log = log_of()
    with pytest.raises(kind) as caught:
        StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(data))
    assert f"at event={number + events_before}, byte={place}" in str(caught.value)
    assert caught.value.context["event"] == number + events_before
    assert log.messages().num_rows == 0  # of the whole stretch nothing
    assert log.stream("w").seq == 0


def test_what_was_committed_before_the_fault_stays_and_is_legal() -> None:
    log = log_of()
    task = StreamImport(log, "w", TYPES, name="x", commit_bytes=1)
    bad = DATA + capture_bytes([(0, [("late", 1)])], time="u64", record="(string, u64)")

    class Slow(io.BytesIO):
        def readinto(self, buffer: memoryview) -> int:
            return super().readinto(buffer[:40])

    with pytest.raises(UnheldCapabilityError, match=f"byte={len(DATA)}"):
        task.take_whole(Slow(bad))
    assert digest(log) == digest(imported(DATA))


def test_other_types_than_those_of_the_first_import_are_refused() -> None:
    log = log_of()
    StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(DATA[:100]))
    with pytest.raises(OwnershipError):
        StreamImport(log, "w", CaptureTypes.parse("u32", "(string, u64)"), name="x")
    with pytest.raises(SchemaMismatchError):
        StreamImport(log, "w", CaptureTypes.parse("u64", "(string, string)"), name="x")
    with pytest.raises(SchemaMismatchError):
        StreamImport(log, "w", CaptureTypes.parse("i64", "(string, u64)"), name="x")


def test_capture_that_comes_when_nobody_holds_the_minimum_is_refused() -> None:
    log = log_of(streams=1)
    StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(DATA[:150]))
    with pytest.raises(NotBeyondError):
        StreamImport(log, "v", TYPES, name="y")


@pytest.mark.parametrize(
    ("time", "record"),
    [("u64", "u64"), ("product<u64, u64>", "(vec<u8>, option<(u8, string)>)"), ("duration", "enum{A, B(u64)}")],
)
def test_owner_tells_the_types_of_an_import(time: str, record: str) -> None:
    types = CaptureTypes.parse(time, record)
    log = log_of(types)
    StreamImport(log, "w", types, name="x")
    assert import_owner(log.stream("w")) == types
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    log.writer(owner="import of mine")
    assert import_owner(log.stream("main")) is None


def test_records_that_a_table_cannot_keep_are_refused_before_anything_is_made() -> None:
    with pytest.raises(SchemaMismatchError, match="null"):
        _ = CaptureTypes.parse("u64", "(u64, ())").payload


def test_nested_records_of_every_kind_are_kept() -> None:
    record = "(option<u64>, vec<(u8, u64)>, enum{A, B(u32)}, duration, bytes, f32)"
    types = CaptureTypes.parse("product<u64, i8>", record)
    rows = [[None, [[1, 1 << 63]], "A", [1, 2], "AA==", 0.5], [7, [], {"B": 3}, [0, 0], "", "NaN"]]
    data = capture_bytes([([0, -128], rows), {(0, -128): -1}], time="product<u64, i8>", record=record)
    log = imported(data, types=types)
    assert log.messages().num_rows == 2
    assert log.verify().legal
