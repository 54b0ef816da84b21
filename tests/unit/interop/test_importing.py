"""Import: each capture becomes a stream, once; what breaks the protocol is refused with event and byte."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import (
    CaptureFormatError,
    ClosedError,
    NegativeCountError,
    NotBeyondError,
    OwnershipError,
    SchemaMismatchError,
    UnheldCapabilityError,
    UpperMismatchError,
)
from spark_timely.interop.importing import CaptureTypes, StreamImport, import_owner
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import Log, MemoryLog
from spark_timely.log.core import LogCore
from spark_timely.log.reader import frontier_at
from tests.oracles.golden import golden_bytes

TYPES = CaptureTypes.parse("u64", "(string, u64)", timely="0.31")
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


def digest(log: Log) -> str:
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
            seq = -1 if log.core.stream("w") is None else log.core.stream("w").seq
            done = StreamImport(log, "w", TYPES, name="x", commit_bytes=100).take_file(str(file))
            events += done.new_events
            assert done.events == events
            assert done.position + done.unfinished == cut
            if again:
                assert (done.new_events, log.core.stream("w").seq) == (0, seq)
        assert log.core.stream("w").closed == (cut == len(DATA))
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

    def wait(has_news: Callable[[], bool]) -> bool:
        looks.append(log.frontier().to_json())
        file.write_bytes(DATA[: 50 + 40 * len(looks)])
        return has_news()

    done = StreamImport(log, "w", TYPES, name="x").take_file(str(file), wait=wait)
    assert (done.closed, done.new_events) == (True, len(EVENTS))
    assert looks[0] == [0]
    assert [7] in looks


@pytest.mark.parametrize("cut", [100, 200])
def test_another_capture_in_place_of_an_imported_one_is_refused(cut: int, tmp_path: Path) -> None:
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


RUNS = [
    capture_bytes(
        [event for i in range(20) for event in ((i, [base + i]), {i: -1, i + 1: 1})], time="u64", record="u64"
    )
    for base in (0, 1000)
]
NUMBERS = CaptureTypes.parse("u64", "u64", timely="0.31")


def values(log: MemoryLog) -> list[int]:
    log.refresh()
    return sorted(int(value) for value in log.messages().column("value").to_pylist())


@pytest.mark.parametrize("longer", [True, False])
def test_file_rewritten_while_followed_is_not_joined(tmp_path: Path, *, longer: bool) -> None:
    first, second = RUNS
    file, log = tmp_path / "x.bin", log_of(NUMBERS)
    file.write_bytes(first[: len(first) // 2])
    looks = []

    def wait(has_news: Callable[[], bool]) -> bool:
        looks.append(1)
        file.write_bytes(second if longer else second[:100])  # the same file, cut to nothing and filled again
        return has_news() and len(looks) < 5

    with pytest.raises(CaptureFormatError, match=r"at byte=880: found (other bytes|it cut to 100 bytes).*event=20"):
        StreamImport(log, "w", NUMBERS, name="x").take_file(str(file), wait=wait)
    assert values(log) == list(range(10))
    assert log.verify().legal


@pytest.mark.parametrize("found", ["another file in its place", "it gone"])
def test_import_does_not_wait_for_a_file_that_is_no_longer_there(found: str, tmp_path: Path) -> None:
    file, log = tmp_path / "x.bin", log_of(NUMBERS)
    file.write_bytes(RUNS[0][:100])

    looks = []

    def wait(has_news: Callable[[], bool]) -> bool:
        looks.append(1)
        if "another" in found:
            (tmp_path / "new").write_bytes(RUNS[0])
            (tmp_path / "new").replace(file)
        else:
            file.unlink(missing_ok=True)
        return has_news() and len(looks) < 5

    with pytest.raises(CaptureFormatError, match=found):
        StreamImport(log, "w", NUMBERS, name="x").take_file(str(file), wait=wait)
    if "another" in found:  # the new file has what the old one had, and more
        StreamImport(log, "w", NUMBERS, name="x").take_file(str(file))
        assert values(log) == list(range(20))


def test_all_that_was_imported_is_compared_not_only_its_end(tmp_path: Path) -> None:
    first, second = RUNS
    file, log = tmp_path / "x.bin", log_of(NUMBERS)
    # The last commit has a progress alone, of the same bytes in both runs.
    for size in (5 * 88, 5 * 88 + 36, 6 * 88):
        file.write_bytes(first[:size])
        StreamImport(log, "w", NUMBERS, name="x").take_file(str(file))
    file.write_bytes(second)
    with pytest.raises(CaptureFormatError, match="found other bytes"):
        StreamImport(log, "w", NUMBERS, name="x").take_file(str(file))
    assert values(log) == list(range(6))


@pytest.mark.parametrize("opened", [True, False])
def test_two_captures_imported_into_one_stream_are_not_one(*, opened: bool) -> None:
    log = log_of(NUMBERS)
    tasks = [StreamImport(log.another(), "w", NUMBERS, name=name) for name in "ab"]
    if opened:  # then both are at the same commit, with as many rows at the same times
        for task in tasks:
            task.open()
    tasks[0].take_whole(io.BytesIO(RUNS[0]))
    with pytest.raises((CaptureFormatError, UpperMismatchError), match="could not continue the import of 'b'"):
        tasks[1].take_whole(io.BytesIO(RUNS[1]))
    assert values(log) == list(range(20))


def test_import_overtaken_before_its_opening_does_not_continue() -> None:
    log = log_of(NUMBERS)
    late = StreamImport(log.another(), "w", NUMBERS, name="late")
    begun, whole = (capture_bytes([(0, [i]) for i in range(n)], time="u64", record="u64") for n in (1, 3))
    StreamImport(log, "w", NUMBERS, name="x").take_whole(io.BytesIO(begun))
    with pytest.raises(UpperMismatchError):
        late.take_whole(io.BytesIO(whole))
    assert values(log) == [0]
    assert StreamImport(log, "w", NUMBERS, name="late").take_whole(io.BytesIO(whole)).new_records == 2


@pytest.mark.parametrize("commit_bytes", [(1 << 20, 1 << 20), (100, 300), (300, 100)])
def test_two_imports_of_one_capture_at_once_add_it_once(commit_bytes: tuple[int, int]) -> None:
    log = log_of(NUMBERS)
    tasks = [StreamImport(log.another(), "w", NUMBERS, name="x", commit_bytes=n) for n in commit_bytes]
    for task in tasks:
        task.open()

    class InTurns(io.BytesIO):
        def readinto(self, buffer: memoryview) -> int:
            return super().readinto(buffer[:176])

    reader = tasks[0]._reader(InTurns(RUNS[0]))
    stretch = next(tasks[0]._stretches(reader))
    with contextlib.suppress(UpperMismatchError):  # where they were cut at other places
        tasks[1].take_whole(InTurns(RUNS[0]))
        tasks[0]._commit(stretch, reader)
    log.refresh()
    StreamImport(log, "w", NUMBERS, name="x").take_whole(io.BytesIO(RUNS[0]))
    assert values(log) == list(range(20))
    assert log.verify().legal


def test_shorter_other_capture_is_known_by_the_earlier_commits() -> None:
    log = log_of(NUMBERS)
    for end in (88, 880, len(RUNS[0])):
        StreamImport(log, "w", NUMBERS, name="x").take_whole(io.BytesIO(RUNS[0][:end]))
    task = StreamImport(log, "w", NUMBERS, name="x")
    with pytest.raises(CaptureFormatError, match="found other bytes than the 88 bytes"):
        task.take_whole(io.BytesIO(RUNS[1][:200]))
    done = task.take_whole(io.BytesIO(RUNS[0][:200]))
    assert (done.new_events, done.missing) == (0, len(RUNS[0]) - 200)


def test_log_is_made_when_there_is_something_to_commit() -> None:
    made: list[MemoryLog] = []

    def make() -> MemoryLog:
        made.append(log_of(NUMBERS))
        return made[-1]

    task = StreamImport(make, "w", NUMBERS, name="x")
    bad = capture_bytes([{0: -1}, (0, [1])], time="u64", record="u64")
    with pytest.raises(UnheldCapabilityError):
        task.take_whole(io.BytesIO(bad))
    with pytest.raises(CaptureFormatError):
        task.take_whole(io.BytesIO(bytes(1000)))
    assert not made
    assert task.take_whole(io.BytesIO(RUNS[0])).new_events == 40
    assert [values(log) for log in made] == [list(range(20))]


def test_rehearsal_refuses_as_the_import_and_changes_nothing() -> None:
    log = log_of(NUMBERS)
    task = StreamImport(log, "w", NUMBERS, name="x")
    bad = capture_bytes([(0, [1])] * 50 + [{0: -2}], time="u64", record="u64")
    with pytest.raises(NegativeCountError, match="at event=50, "):
        task.rehearse(io.BytesIO(bad))
    task.rehearse(io.BytesIO(RUNS[0]))
    assert not log.streams()
    task.take_whole(io.BytesIO(RUNS[0]))
    assert values(log) == list(range(20))


def test_name_that_is_no_text_is_kept_as_one_can() -> None:
    log = log_of(NUMBERS)
    StreamImport(log, "w", NUMBERS, name="\udcff.bin").take_whole(io.BytesIO(RUNS[0]))
    assert "\\udcff.bin" in log.core.stream("w").note.mark.name


def test_close_by_hand_between_two_commits_is_refused() -> None:
    log = log_of(NUMBERS)
    task = StreamImport(log, "w", NUMBERS, name="x")
    task.take_whole(io.BytesIO(RUNS[0][:88]))
    log.another().close("w")
    with pytest.raises(ClosedError):
        task.take_whole(io.BytesIO(RUNS[0]))
    assert values(log) == [0]


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("crash", range(9))
def test_import_that_crashes_at_any_commit_goes_on(
    crash: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    log, left = log_of(NUMBERS), [crash]
    file = tmp_path / "x.bin"
    file.write_bytes(RUNS[0])

    def crashing(patch: pytest.MonkeyPatch, name: str) -> None:
        whole = getattr(LogCore, name)

        def call(self: LogCore, *args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0 and not after:
                raise KeyboardInterrupt
            done = whole(self, *args, **options)
            if left[0] < 0:
                raise KeyboardInterrupt
            return done

        patch.setattr(LogCore, name, call)

    def until_the_crash() -> None:
        for end in range(200, len(RUNS[0]) + 200, 200):
            file.write_bytes(RUNS[0][:end])
            StreamImport(log, "w", NUMBERS, name="x").take_file(str(file))

    with monkeypatch.context() as patch:
        crashing(patch, "open_stream")
        crashing(patch, "commit")
        with pytest.raises(KeyboardInterrupt):
            until_the_crash()
    file.write_bytes(RUNS[0])
    done = StreamImport(log.another(), "w", NUMBERS, name="x").take_file(str(file))
    assert (done.position, done.events) == (len(RUNS[0]), 40)
    assert values(log) == list(range(20))
    assert log.verify().legal


def test_compaction_between_two_commits_changes_nothing() -> None:
    log = log_of(NUMBERS)
    task = StreamImport(log, "w", NUMBERS, name="x")
    for end in (88, 176, 300, len(RUNS[0])):
        task.take_whole(io.BytesIO(RUNS[0][:end]))
        log.another().compact()
    assert values(log) == list(range(20))
    assert log.verify().legal


def test_advance_by_hand_does_not_make_the_import_forget() -> None:
    log = log_of()
    StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(DATA[:150]))
    position = log.core.stream("w").batch
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
    # Of the whole stretch nothing, and no stream either, which would keep the log's frontier where it is.
    assert (log.messages().num_rows, dict(log.streams())) == (0, {})


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
        StreamImport(log, "w", CaptureTypes.parse("u32", "(string, u64)", timely="0.31"), name="x")
    with pytest.raises(SchemaMismatchError):
        StreamImport(log, "w", CaptureTypes.parse("u64", "(string, string)", timely="0.31"), name="x")
    with pytest.raises(SchemaMismatchError):
        StreamImport(log, "w", CaptureTypes.parse("i64", "(string, u64)", timely="0.31"), name="x")


@pytest.mark.parametrize(
    ("time", "events", "default", "minimum", "unsigned"),
    [
        ("i64", [{0: -1, 5: 1}, (5, [1]), {5: -1}], "0", f"{-(1 << 63)}", "u64"),
        ("i32", [(3, [1]), [[4, 1]], {0: -1}, {4: -1}], "0", f"{-(1 << 31)}", "u32"),
        ("Product<i64, u32>", [{(0, 0): -1}], "[0, 0]", f"[{-(1 << 63)}, 0]", "product<u64, u32>"),
    ],
)
def test_rule_003_12_start_at_the_signed_default_is_named(
    time: str, events: list[Any], default: str, minimum: str, unsigned: str
) -> None:
    types = CaptureTypes.parse(time, "u64", timely="0.31")
    log = log_of(types)
    before = log.core.version
    data = capture_bytes(events, time=time, record="u64")
    with pytest.raises(NegativeCountError) as found:
        StreamImport(log, "w", types, name="x").take_whole(io.BytesIO(data))
    text = str(found.value)
    assert f"the capture seems to start at {default}, the default of type" in text
    assert f"a stream starts at the minimum, {minimum}:" in text
    assert f"declare the times as {unsigned!r}" in text
    assert (log.core.version, log.core.stream("w")) == (before, None)
    # What the hint says goes through, from the default, which is the minimum there.
    other = imported(data, types=CaptureTypes.parse(unsigned, "u64", timely="0.31"))
    assert other.core.stream("w").closed


@pytest.mark.parametrize("capture", ["u64 again", "i64 after the minimum"])
def test_rule_003_12_other_drops_of_too_much_are_no_such_start(capture: str) -> None:
    time, events = {
        "u64 again": ("u64", [{0: -2}]),
        "i64 after the minimum": ("i64", [{-(1 << 63): -1, 0: 1}, {0: -2}]),
    }[capture]
    with pytest.raises(NegativeCountError, match="give up only capabilities that the stream holds"):
        imported(capture_bytes(events, time=time, record="u64"), types=CaptureTypes.parse(time, "u64", timely="0.31"))


def test_rule_003_12_a_capture_of_timely_starts_at_the_minimum() -> None:
    log = imported(golden_bytes("capture_g4_i64.bin"), types=CaptureTypes.parse("i64", "i64", timely="0.31"))
    assert sorted(log.messages()["_time"].to_pylist()) == [-5] * 3
    assert log.core.stream("w").closed
    assert frontier_at(log.core, seq=0).to_json() == [-(1 << 63)]


def test_capture_is_refused_when_no_stream_holds_the_minimum() -> None:
    log = log_of(streams=1)
    StreamImport(log, "w", TYPES, name="x").take_whole(io.BytesIO(DATA[:150]))
    with pytest.raises(NotBeyondError):
        StreamImport(log, "v", TYPES, name="y")


@pytest.mark.parametrize(
    ("time", "record"),
    [("u64", "u64"), ("product<u64, u64>", "(vec<u8>, option<(u8, string)>)"), ("duration", "enum{A, B(u64)}")],
)
def test_owner_tells_the_types_of_an_import(time: str, record: str) -> None:
    types = CaptureTypes.parse(time, record, timely="0.31")
    log = log_of(types)
    StreamImport(log, "w", types, name="x").open()
    assert import_owner(log.core.stream("w")) == types
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,))
    log.writer(owner="import of mine")
    assert import_owner(log.core.stream("main")) is None


def test_records_that_no_table_can_keep_are_refused_first() -> None:
    with pytest.raises(SchemaMismatchError, match="null"):
        _ = CaptureTypes.parse("u64", "(u64, ())", timely="0.31").payload


def test_nested_records_of_every_kind_are_kept() -> None:
    record = "(option<u64>, vec<(u8, u64)>, enum{A, B(u32)}, duration, bytes, f32)"
    types = CaptureTypes.parse("product<u64, i8>", record, timely="0.31")
    rows = [[None, [[1, 1 << 63]], "A", [1, 2], "AA==", 0.5], [7, [], {"B": 3}, [0, 0], "", "NaN"]]
    data = capture_bytes([([0, -128], rows), {(0, -128): -1}], time="product<u64, i8>", record=record)
    log = imported(data, types=types)
    assert log.messages().num_rows == 2
    assert log.verify().legal
