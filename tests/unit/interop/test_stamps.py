"""Stamps: which version of timely a capture is of, and at which time a record of several times, or of none, stands."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import (
    CaptureFormatError,
    ClosedError,
    InvalidUsageError,
    OwnershipError,
    ProtocolError,
    UnheldCapabilityError,
)
from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport, found_version, import_owner
from spark_timely.interop.jsonl import JsonLines, chunk_lines
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.writer import CaptureEncoder, build_chunk, capture_bytes
from spark_timely.log import MemoryLog

PAIR = "product<u64, u64>"


def types_of(time: str = "u64", record: str = "u64", **options: Any) -> CaptureTypes:
    return CaptureTypes.parse(time, record, **{"timely": "0.32", **options})


def data_of(events: list[Any], types: CaptureTypes) -> bytes:
    return capture_bytes(events, time=types.time, record=types.record, timely=types.version)  # type: ignore[arg-type]


def log_of(types: CaptureTypes) -> MemoryLog:
    domain = types.layout.domain
    return MemoryLog.create(types.payload, times=[type_.value for type_ in domain.types], minimum=domain.minimum)


def imported(events: list[Any], types: CaptureTypes, **options: Any) -> tuple[MemoryLog, Any]:
    log = log_of(types)
    done = StreamImport(log, "w", types, name="x", **options).take_whole(io.BytesIO(data_of(events, types)))
    assert log.verify().legal
    return log, done


def refused(events: list[Any], types: CaptureTypes, event: int, **options: Any) -> CaptureFormatError:
    """Return the error, which names an event and its first byte, and leaves the log as it was."""
    log = log_of(types)
    before = log.core.version
    with pytest.raises(CaptureFormatError) as caught:
        StreamImport(log, "w", types, name="x", **options).take_whole(io.BytesIO(data_of(events, types)))
    place = len(data_of(events[:event], types))
    assert (caught.value.event, caught.value.position) == (event, place)
    assert f"at event={event}, byte={place}" in caught.value.message
    assert (log.core.version, dict(log.streams())) == (before, {})
    return caught.value


# Which version ------------------------------------------------------------------------------------

STAMPED, PLAIN = [([0, 9], [1, 2]), {0: -1}], [(9, [1, 2]), {0: -1}]
EITHER = capture_bytes([(0, [7, 8]), {0: -1}], time="u64", record="u64")


def write(path: Path, events: list[Any], timely: Any) -> str:
    path.write_bytes(capture_bytes(events, time="u64", record="u64", timely=timely))
    return str(path)


@pytest.mark.parametrize(("events", "timely"), [(PLAIN, "0.31"), (STAMPED, "0.32")])
def test_file_whose_bytes_fit_one_version_is_taken_as_that(events: list[Any], timely: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x", events, timely)
    types = types_of(timely=None)
    assert found_version(path, types) == timely
    log = log_of(types)
    done = StreamImport(log, "w", types, name="x").take_file(path)
    assert (done.timely, done.closed, done.new_records) == (timely, True, 2)
    known = import_owner(log.core.stream("w"))
    assert known is not None
    assert known.timely == timely


def test_json_lines_fit_one_version_by_their_stamps(tmp_path: Path) -> None:
    types = types_of(timely=None)
    for timely, events in (("0.31", PLAIN), ("0.32", STAMPED)):
        chunk = build_chunk(events, time="u64", record="u64", timely=timely)  # type: ignore[arg-type]
        said = chunk_lines(chunk, time="u64", record="u64", timely=timely)  # type: ignore[arg-type]
        path = tmp_path / f"{timely}.jsonl"
        path.write_text("\n".join(said))
        assert found_version(str(path), types, json_lines=True) == timely


@pytest.mark.parametrize("data", [EITHER, capture_bytes([{0: -1}], time="u64", record="u64"), b""])
def test_bytes_that_fit_both_versions_need_a_declaration(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    log = log_of(types_of())
    before = log.core.version
    with pytest.raises(
        InvalidUsageError, match=r"found that its bytes fit 0\.31 and 0\.32 — hint: declare the version"
    ):
        StreamImport(log, "w", types_of(timely=None), name="x").take_file(str(tmp_path / "x"))
    assert log.core.version == before
    for timely in ("0.31", "0.32"):
        other = log_of(types_of())
        task = StreamImport(other, "w", types_of(timely=timely), name="x", unstamped="drop")
        done = task.take_file(str(tmp_path / "x"))
        n = 2 if data == EITHER else 0
        assert (done.timely, done.new_records, done.dropped) == (timely, *((n, 0) if timely == "0.31" else (0, n)))


def test_illegal_capture_of_one_version_is_not_the_others(tmp_path: Path) -> None:
    # After the close: wrong in 0.31; in 0.32 an empty stamp, which is always legal.
    late = capture_bytes([{0: -1}, (0, [7])], time="u64", record="u64")
    (tmp_path / "x").write_bytes(late)
    with pytest.raises(InvalidUsageError, match=r"fit 0\.31 and 0\.32"):
        found_version(str(tmp_path / "x"), types_of(timely=None))


def test_bytes_of_no_version_are_refused_where_one_came_further(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(capture_bytes(STAMPED, time="u64", record="u64", timely="0.32") + struct.pack("<QIQ", 12, 7, 0))
    with pytest.raises(CaptureFormatError) as caught:
        found_version(str(path), types_of(timely=None))
    assert caught.value.event == 2


def test_capture_that_is_followed_is_never_guessed(tmp_path: Path) -> None:
    log, types = log_of(types_of()), types_of(timely=None)
    path = write(tmp_path / "x", STAMPED, "0.32")
    data = io.BytesIO(Path(path).read_bytes())
    for attempt in (
        lambda task: task.take_whole(data),
        lambda task: task.take_file(path, wait=lambda has_news: has_news()),
        lambda task: task.rehearse(data),
        lambda task: task.open(),
    ):
        with pytest.raises(InvalidUsageError, match="found no version of Timely declared, and none in the log"):
            attempt(StreamImport(log, "w", types, name="x"))
    assert not log.streams()


@pytest.mark.parametrize("timely", ["0.31", "0.32"])
def test_version_is_kept_with_the_stream(timely: str, tmp_path: Path) -> None:
    events = STAMPED if timely == "0.32" else PLAIN
    path = tmp_path / "x"
    data = capture_bytes(events, time="u64", record="u64", timely=timely)  # type: ignore[arg-type]
    path.write_bytes(data[:-36])
    log = log_of(types_of())
    assert StreamImport(log, "w", types_of(timely=timely), name="x").take_file(str(path)).events == 1
    path.write_bytes(data)
    other = "0.31" if timely == "0.32" else "0.32"
    with pytest.raises(OwnershipError, match=f"found it imported as Timely {timely}, not {other}"):
        StreamImport(log, "w", types_of(timely=other), name="x")
    # Without one it is that of the stream, also of what is followed.
    done = StreamImport(log, "w", types_of(timely=None), name="x").take_whole(io.BytesIO(data))
    assert (done.timely, done.closed, done.new_events) == (timely, True, 1)


@pytest.mark.parametrize(
    "types",
    [
        types_of(timely="0.31"),
        types_of(),
        types_of(PAIR, "(string, u64)", stamps="column"),
        types_of(PAIR, "((string, u64), product<u64, u64>, i64)", updates="no"),
        types_of("u64", "(u8, u64, i8)", updates="yes", timely="0.31"),
    ],
)
def test_owner_tells_version_and_what_is_done_with_stamps(types: CaptureTypes) -> None:
    log = log_of(types)
    StreamImport(log, "w", types, name="x").open()
    assert import_owner(log.core.stream("w")) == types


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timely": "0.30"}, "could not use captures of Timely '0.30'"),
        ({"timely": "0.31", "stamps": "column"}, "could not keep stamps of captures of Timely 0.31"),
        ({"stamps": "meet"}, "found stamps='meet'"),
        ({"updates": "yes"}, "could not take records as updates"),
        ({"updates": "maybe"}, "found updates='maybe'"),
        ({"record": "{Stamp: u64}", "stamps": "column"}, "could not keep stamps in a column 'stamp'"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        types_of(**options)


def test_captures_of_0_31_have_no_place_for_stamps() -> None:
    chunk = build_chunk([([1], [7]), ([1, 2], [7])], time="u64", record="u64", timely="0.32")
    with pytest.raises(InvalidUsageError, match=r"as Timely 0.31 has them: found 2 times in message=1"):
        CaptureEncoder(time="u64", record="u64").encode(chunk)
    with pytest.raises(InvalidUsageError, match="found 2 times"):
        list(chunk_lines(chunk, time="u64", record="u64"))
    with pytest.raises(InvalidUsageError, match="in place of a stamp"):
        capture_bytes([(3, [1])], time="u64", record="u64", timely="0.32")


# Bytes --------------------------------------------------------------------------------------------


def event(k: int, words: list[int], *, surplus: int = 0) -> bytes:
    body = b"\x01\0\0\0" + b"".join(word.to_bytes(8, "little") for word in [k, *words])
    return (len(body) + surplus).to_bytes(8, "little") + body + bytes(surplus)


@pytest.mark.parametrize("k", [3, 4, 1 << 20, 1 << 61, (1 << 64) - 1])
def test_number_of_times_is_bounded_by_the_body(k: int) -> None:
    for chunk_bytes in (64, 4096):
        with pytest.raises(CaptureFormatError, match=f"at event=0, byte=12: found a stamp of {k} times where 16"):
            list(CaptureReader(io.BytesIO(event(k, [5, 6, 0])), **U64, chunk_bytes=chunk_bytes))


U64: Any = {"time": "u64", "record": "u64", "timely": "0.32"}


@pytest.mark.parametrize("k", [257, 1 << 61])
def test_number_of_times_without_bytes_is_bounded(k: int) -> None:
    with pytest.raises(CaptureFormatError, match=f"found {k} times without bytes, a stamp has at most 256"):
        list(CaptureReader(io.BytesIO(event(k, [0])), time="()", record="u64", timely="0.32"))
    (chunk,) = CaptureReader(io.BytesIO(event(256, [0])), time="()", record="u64", timely="0.32")
    assert (chunk.stamp_sizes.tolist(), chunk.times.shape) == ([256], (256, 1))


def test_times_need_not_be_sorted_on_the_wire() -> None:
    data = event(3, [7, 1, 3, 0]) + event(0, [0]) + event(2, [9, 9, 1, 5])
    for chunk_bytes in (64, 4096):
        chunks = list(CaptureReader(io.BytesIO(data), **U64, chunk_bytes=chunk_bytes))
        assert [t for chunk in chunks for t in chunk.times[:, 0].tolist()] == [1, 3, 7, 9, 9]
        assert [n for chunk in chunks for n in chunk.stamp_sizes.tolist()] == [3, 0, 2]
    pairs = event(3, [2, 1, 1, 9, 1, 3, 0])
    (chunk,) = CaptureReader(io.BytesIO(pairs), time=PAIR, record="u64", timely="0.32")
    assert chunk.times.tolist() == [[1, 3], [1, 9], [2, 1]]


def test_times_from_2_to_the_63_are_read_and_not_kept() -> None:
    most = (1 << 64) - 1
    events = [([3, most], [1]), ([most, most], []), {0: -1}]
    log, _ = imported(events, types_of())
    assert log.messages().column("_time").to_pylist() == [3]
    data = data_of(events, types_of())
    chunks = list(CaptureReader(io.BytesIO(data), **U64, chunk_bytes=64))
    assert b"".join(CaptureEncoder(**U64).encode(chunk) for chunk in chunks) == data
    assert [t for chunk in chunks for t in chunk.times[:, 0].tolist()] == [3, most, most, most]
    assert "2^63" in refused([([1], [1]), ([most], [1])], types_of(), 1).message
    assert "2^63" in refused([([3, most], [1])], types_of(stamps="column"), 0).message
    update = types_of(record="(u8, u64, i64)")
    assert "2^63" in refused([([1], [(1, most, 1)])], update, 0).message
    # 2^63 - 1 is before it, though a log cannot tell them apart.
    assert "neither at nor after" in refused([([most], [(1, most >> 1, 1)])], update, 0).message


# The rules of counting ----------------------------------------------------------------------------


@pytest.mark.parametrize("stamp", [[4, 6], [6, 4], [4, 4], [1, 2], [4]])
@pytest.mark.parametrize("records", [[], [7]])
def test_every_time_of_a_stamp_must_be_held(stamp: list[int], records: list[int]) -> None:
    types, log = types_of(), log_of(types_of())
    events: list[Any] = [([0], [1]), {0: -1, 5: 1}, (stamp, records)]
    with pytest.raises(UnheldCapabilityError, match="at event=2, ") as caught:
        StreamImport(log, "w", types, name="x").take_whole(io.BytesIO(data_of(events, types)))
    assert caught.value.context["position"] == len(data_of(events[:2], types))
    assert caught.value.time == (min(stamp),)


def test_messages_change_no_counts_and_empty_stamps_need_none() -> None:
    events: list[Any] = [
        ([], [1]),
        ([0, 0, 3, 3], [2]),
        {0: -1, 5: 1},
        ([], [3]),
        ([5, 5, 9], [4]),
        {5: -1},
        ([], [5]),
        ([], []),
    ]
    log, done = imported(events, types_of(), unstamped="drop")
    assert log.frontier().is_empty
    assert sorted(log.messages().column("value").to_pylist()) == [2, 4]
    assert (done.closed, done.new_records, done.dropped) == (True, 2, 3)


# Times of records ---------------------------------------------------------------------------------


def test_records_of_several_ordered_times_stand_at_the_least() -> None:
    log, _ = imported([([3, 3, 7], [1, 2]), ([9], [3]), {0: -1}], types_of())
    rows = log.messages()
    assert sorted(zip(rows["_time"].to_pylist(), rows["value"].to_pylist(), strict=True)) == [(3, 1), (3, 2), (9, 3)]


def test_records_of_several_times_of_a_partial_order_are_refused() -> None:
    events = [([[0, 1]], [1]), ([[0, 1], [1, 0]], []), ([[0, 1], [1, 0], [1, 0]], [2, 3])]
    error = refused(events, types_of(PAIR), 2)
    assert "could not give 2 records of stream 'w' a time: found 3 times in its stamp" in error.message
    assert "--stamps column" in (error.hint or "")
    assert error.context["times"] == 3


def test_stamps_are_kept_whole_in_a_column() -> None:
    events = [([[0, 1], [1, 0], [1, 0]], [1, 2]), ([[4, 4]], [3]), {(0, 0): -1}]
    log, _ = imported(events, types_of(PAIR, stamps="column"))
    rows = log.messages().sort_by("value")
    assert [tuple(row) for row in zip(*(rows[name].to_pylist() for name in log.domain.columns), strict=True)] == [
        (0, 1),
        (0, 1),
        (4, 4),
    ]
    three = [{"t0": 0, "t1": 1}, {"t0": 1, "t1": 0}, {"t0": 1, "t1": 0}]
    assert rows["stamp"].to_pylist() == [three, three, [{"t0": 4, "t1": 4}]]


def test_column_of_stamps_is_bounded_by_the_bytes_it_came_in() -> None:
    times = sorted([i, 1000 - i] for i in range(1000))
    events = [(times, [1] * 1000), {(0, 0): -1}]
    types = types_of(PAIR, "u8", stamps="column")
    assert "too many to stand beside each" in refused(events, types, 0).message
    assert imported([(times, [1] * 100), {(0, 0): -1}], types)[1].new_records == 100


def test_records_without_a_time_are_treated_as_asked_for() -> None:
    events: list[Any] = [([0], [1]), ([], []), ([], [2, 3]), {0: -1}, ([], [4])]
    error = refused(events, types_of(), 2)
    assert "found 0 times in its stamp" in error.message
    assert "--unstamped dead-letter" in (error.hint or "")
    for unstamped, dropped in (("drop", 3), ("dead-letter", 0)):
        log, done = imported(events, types_of(), unstamped=unstamped)
        assert (done.new_records, done.dropped, done.dead) == (1, dropped, 3 - dropped)
        assert log.messages()["value"].to_pylist() == [1]
        letters = log.dead()
        assert sorted(letters["value"].to_pylist()) == ([] if dropped else [2, 3, 4])
        assert set(letters["_reason"].to_pylist()) <= {"no time: the stamp of its message is empty"}
        said = log.core.stream("w").reason
        assert ("3 records without a time left out" in said, "set apart" in said) == (dropped == 3, dropped == 0)
    with pytest.raises(InvalidUsageError, match="found unstamped='keep'"):
        imported(events, types_of(), unstamped="keep")


@pytest.mark.parametrize("commit_bytes", [1, 1 << 20])
def test_dead_letters_come_once_however_often_imported(commit_bytes: int) -> None:
    types = types_of()
    events: list[Any] = [([i] if i % 2 else [], [i]) for i in range(40)]
    data, log = data_of([*events, {0: -1}], types), log_of(types)

    class Slow(io.BytesIO):
        def readinto(self, buffer: memoryview) -> int:
            return super().readinto(buffer[:100])

    for end in (len(data) // 3, len(data) // 2, len(data), len(data)):
        task = StreamImport(log, "w", types, name="x", unstamped="dead-letter", commit_bytes=commit_bytes)
        task.take_whole(Slow(data[:end]))
    log.refresh()
    assert sorted(log.dead()["value"].to_pylist()) == list(range(0, 40, 2))
    assert sorted(log.messages()["value"].to_pylist()) == list(range(1, 40, 2))
    assert log.verify().legal


UPDATE = "((string, u64), product<u64, u64>, i64)"


def test_updates_stand_at_their_own_times() -> None:
    rows = [(("a", 1), (0, 1), 1), (("b", 2), (5, 0), -1)]
    events = [([[0, 1], [1, 0]], rows), ([[2, 2]], [(("c", 3), (9, 2), 2)]), {(0, 0): -1}]
    types = types_of(PAIR, UPDATE)
    assert types.are_updates
    log, _ = imported(events, types)
    table = log.messages()
    times = zip(*(table[name].to_pylist() for name in log.domain.columns), strict=True)
    names = [row["f0"] for row in table["f0"].to_pylist()]
    assert dict(zip(names, times, strict=True)) == {"a": (0, 1), "b": (5, 0), "c": (9, 2)}


@pytest.mark.parametrize("n", [1, 3000])
def test_update_before_all_times_of_its_stamp_is_refused(n: int) -> None:
    stamp = [[0, 5], [3, 3], [5, 0]]
    good = [(("a", i), (5 + i, i % 5), 1) for i in range(n)]
    types = types_of(PAIR, UPDATE)
    assert imported([(stamp, good), {(0, 0): -1}], types)[1].new_records == n
    error = refused([(stamp, good), (stamp, [*good, (("b", 1), (4, 2), 1)]), {(0, 0): -1}], types, 1)
    assert "an update at a time that is neither at nor after one of the 3 times of its stamp" in error.message


def test_updates_with_an_empty_stamp_are_always_refused() -> None:
    events = [([], []), ([], [(("a", 1), (0, 1), 1)])]
    for unstamped in ("refuse", "drop", "dead-letter"):
        error = refused(events, types_of(PAIR, UPDATE), 1, unstamped=unstamped)
        assert "an empty stamp, which holds no updates" in error.message


def test_records_like_updates_can_be_declared_to_be_none() -> None:
    events: list[Any] = [([7], [(1, 3, 1)]), {0: -1}]
    assert "neither at nor after" in refused(events, types_of(record="(u8, u64, i64)"), 0).message
    log, _ = imported(events, types_of(record="(u8, u64, i64)", updates="no"))
    assert log.messages()["_time"].to_pylist() == [7]
    # Those of 0.31 stand at the times of their messages, as they always did.
    types = types_of(record="(u8, u64, i64)", timely="0.31")
    log, _ = imported([(7, [(1, 9, 1)]), {0: -1}], types)
    assert log.messages()["_time"].to_pylist() == [7]
    types = types_of(record="(u8, u64, i64)", timely="0.31", updates="yes")
    log, _ = imported([(7, [(1, 9, 1)]), {0: -1}], types)
    assert log.messages()["_time"].to_pylist() == [9]


def test_updates_may_have_times_of_any_type() -> None:
    for time, at, own in (
        ("i64", -3, -2),
        ("duration", [1, 5], [2, 0]),
        ("product<u8, duration>", [1, [0, 1]], [1, [0, 1]]),
    ):
        types = types_of(time, f"(string, {time}, i64)")
        minimum = types.layout.to_json(types.layout.domain.minimum)
        log, _ = imported([([at], [("a", own, 1)]), [[minimum, -1]]], types)
        found = [log.messages()[name].to_pylist()[0] for name in log.domain.columns]
        assert tuple(found) == types.layout.from_json(own)


def test_json_lines_with_stamps_are_imported(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    events = [{"messages": [[5, 3], [1]]}, {"messages": [[], [2]]}, {"progress": [[0, -1]]}, {"messages": [[3], [4]]}]
    path.write_text("".join(json.dumps(event) + "\n" for event in events[:3]))
    types = types_of()
    log = log_of(types)
    task = StreamImport(log, "w", types, name="x", unstamped="drop")
    done = task.take_file(str(path), wrap=lambda file: JsonLines(file, "u64", "u64", timely="0.32"))
    assert (done.closed, done.dropped, log.messages()["_time"].to_pylist()) == (True, 1, [3])
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.raises(
        UnheldCapabilityError, match=f"at event=3, byte={sum(len(json.dumps(e)) + 1 for e in events[:3])}"
    ):
        StreamImport(log_of(types), "w", types, name="x", unstamped="drop").take_file(
            str(path), wrap=lambda file: JsonLines(file, "u64", "u64", timely="0.32")
        )


# Behind the close ---------------------------------------------------------------------------------

CLOSED: list[Any] = [([0], [1]), {0: -1}]
BEHIND: list[Any] = [([], [n, n]) for n in range(2000)]


class Slow(io.BytesIO):
    """Gives a few bytes at once, so that each event could be a commit."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[:200])


@pytest.mark.parametrize("unstamped", ["drop", "dead-letter"])
def test_records_without_a_time_may_follow_the_close(unstamped: Any) -> None:
    types = types_of()
    log, data = log_of(types), data_of([*CLOSED, *BEHIND], types)
    task = StreamImport(log, "w", types, name="x", unstamped=unstamped, commit_bytes=1)
    done = task.take_whole(Slow(data))
    assert (done.closed, done.new_records) == (True, 1)
    assert (done.dropped, done.dead) == ((4000, 0) if unstamped == "drop" else (0, 4000))
    assert log.dead().num_rows == done.dead
    again = StreamImport(log, "w", types, name="x", unstamped=unstamped).take_whole(io.BytesIO(data))
    assert (again.new_records, again.dead, log.dead().num_rows) == (0, 0, done.dead)
    assert log.verify().legal


def test_records_without_a_time_that_come_after_a_closed_import(tmp_path: Path) -> None:
    types, file = types_of(), tmp_path / "x.bin"
    file.write_bytes(data_of(CLOSED, types))
    log = log_of(types)
    assert StreamImport(log, "w", types, name="x").take_file(str(file)).closed
    file.write_bytes(data_of([*CLOSED, *BEHIND[:3]], types))
    version = log.core.version
    with pytest.raises(ClosedError, match=r"could not set 6 records of 'x' apart: .* — hint: leave them out"):
        StreamImport(log, "w", types, name="x", unstamped="dead-letter").take_file(str(file))
    done = StreamImport(log, "w", types, name="x", unstamped="drop").take_file(str(file))
    assert (done.dropped, done.new_records, log.core.version) == (6, 0, version)
    # A message with a time, and progress, are refused as before.
    for event, error in ((([0], [1]), UnheldCapabilityError), ({7: 1}, ProtocolError)):
        file.write_bytes(data_of([*CLOSED, event], types))
        with pytest.raises(error):
            StreamImport(log, "w", types, name="x", unstamped="drop").take_file(str(file))
    assert log.core.version == version


@pytest.mark.parametrize("change", [1 << 62, -(1 << 62), (1 << 40) + 1, -(1 << 63)])
def test_changes_of_counts_that_could_wrap_are_refused(change: int) -> None:
    types = types_of()
    log, data = log_of(types), data_of([([0], [1]), {0: change}], types)
    with pytest.raises(CaptureFormatError, match=rf"event=1, byte={len(data) - 8}: found a change of {change} cap"):
        StreamImport(log, "w", types, name="x").take_whole(io.BytesIO(data))
    assert not log.streams()


# What an import of an export is given ------------------------------------------------------------

TRIPLE = "(u64, u64, i64)"


def exported(log: Any, folder: Path, version: Any) -> tuple[Any, CaptureTypes]:
    """Return what was written, and the types that it says it is to be imported by."""
    (done,) = export_log(log, folder, timely=version)
    words = iter(done.options)
    given = {name.removeprefix("--"): value for name, value in zip(words, words, strict=True)}
    return done, CaptureTypes.parse(done.time, done.record, **given)


@pytest.mark.parametrize("version", ["0.31", "0.32"])
@pytest.mark.parametrize(
    ("first", "event"),
    [
        ({"record": TRIPLE, "timely": "0.31"}, (3, [(1, 7, 1), (2, 9, 1)])),
        ({"record": TRIPLE, "updates": "no"}, ([3], [(1, 7, 1), (2, 9, 1)])),
        ({"record": TRIPLE}, ([3], [(1, 7, 1), (2, 9, 1)])),
        ({"record": "(u64, u64, i32)", "updates": "yes"}, ([3], [(1, 7, 1), (2, 9, 1)])),
        ({"record": "{k: u64, at: u64, n: i64}"}, ([3], [(1, 7, 1), (2, 9, 1)])),
    ],
)
def test_export_says_how_its_rows_keep_their_times(first: Any, event: Any, version: Any, tmp_path: Path) -> None:
    log, _ = imported([{0: -1, 3: 1}, event, {3: -1}], types_of(**first))
    done, types = exported(log, tmp_path / "out", version)
    again = log_of(types)
    StreamImport(again, "w", types, name="x").take_file(done.path)
    names = ["_time", *log.schema.names]
    assert again.messages().select(names).to_pylist() == log.messages().select(names).to_pylist()
    assert again.verify().digest == log.verify().digest


def test_fields_with_names_are_no_updates() -> None:
    log, _ = imported([([3], [(1, 7, 1)]), {0: -1}], types_of(record="{k: u64, at: u64, n: i64}"))
    assert log.messages()["_time"].to_pylist() == [3]


def test_export_says_that_stamps_are_kept(tmp_path: Path) -> None:
    types = types_of(PAIR, stamps="column")
    log, _ = imported([([(0, 3), (2, 1)], [1]), {(0, 0): -1}], types)
    done, again = exported(log, tmp_path / "out", "0.32")
    assert done.options == ("--timely", "0.32", "--stamps", "column")
    assert again == types


# Columns that came later --------------------------------------------------------------------------


def test_import_continues_where_others_have_added_columns(tmp_path: Path) -> None:
    types, file = types_of(), tmp_path / "x.bin"
    events: list[Any] = [([0], [1]), {0: -1, 1: 1}]
    file.write_bytes(data_of(events, types))
    log = log_of(types)
    StreamImport(log, "w", types, name="x", unstamped="dead-letter").take_file(str(file))
    log.add_columns(pa.schema([("more", pa.string())]))
    file.write_bytes(data_of([*events, ([1], [2]), ([], [8])], types))
    done = StreamImport(log, "w", types, name="x", unstamped="dead-letter").take_file(str(file))
    assert (done.new_records, done.dead) == (1, 1)
    rows = log.messages().select(["_time", "value", "more"]).to_pylist()
    assert rows == [{"_time": 0, "value": 1, "more": None}, {"_time": 1, "value": 2, "more": None}]
    assert log.dead()["more"].to_pylist() == [None]
    assert log.verify().legal
