"""Export: balanced captures that end where the log is, or nothing at all."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import InvalidUsageError, SchemaMismatchError
from spark_timely.interop.cdcv2.conversion import export_collection
from spark_timely.interop.chunk import CaptureChunk
from spark_timely.interop.exporting import default_types, export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.schema import type_text
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import MemoryLog
from tests.oracles.golden import concat_chunks

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64())])


def log_of(times: list[int], *, upper: object, minimum: int = 0) -> MemoryLog:
    log = MemoryLog.create(SCHEMA, minimum=(minimum,), streams=2)
    rows = {"_time": pa.array(times, pa.int64()), "k": [str(t) for t in times], "n": [t or None for t in times]}
    log.writer("a", owner="me").append(pa.table(rows), advance_to=upper)
    return log


def read(path: str, types: CaptureTypes) -> CaptureChunk:
    with open(path, "rb", buffering=0) as file:
        return concat_chunks(list(CaptureReader(file, time=types.time, record=types.record)))


def held(chunk: CaptureChunk) -> dict[int, int]:
    counts = {0: 1}
    for time, delta in zip(chunk.progress_times[:, 0].tolist(), chunk.progress_deltas.tolist(), strict=True):
        counts[time] = counts.get(time, 0) + delta
    return {time: n for time, n in counts.items() if n}


def test_capture_ends_at_the_frontier_of_the_log(tmp_path: Path) -> None:
    log = log_of([0, 1, 5, 9, 9], upper=6)
    log.writer("b", owner="you").advance(3)
    (whole,) = export_log(log, tmp_path / "whole")
    chunk = read(whole.path, default_types(log))
    assert held(chunk) == {3: 1}
    assert chunk.times[:, 0].tolist() == [0, 1, 5, 9]
    (part,) = export_log(log, tmp_path / "part", stream="a")
    assert held(read(part.path, default_types(log))) == {6: 1}
    (part,) = export_log(log, tmp_path / "upto", up_to=2)
    assert held(read(part.path, default_types(log))) == {}
    (part,) = export_log(log, tmp_path / "beyond", up_to=7)
    assert held(read(part.path, default_types(log))) == {3: 1}  # 3 to 6 may still come


def test_nothing_is_exported_of_an_empty_log_but_its_progress(tmp_path: Path) -> None:
    log = log_of([], upper=[])
    log.writer("b", owner="you").close()
    written = export_log(log, tmp_path, files=3)
    assert [(each.records, each.events) for each in written] == [(0, 1)] * 3
    assert held(read(written[0].path, default_types(log))) == {}


def test_large_times_are_cut_into_events_of_bounded_size(tmp_path: Path) -> None:
    log = log_of([4] * 20_000, upper=[])
    (written,) = export_log(log, tmp_path)
    chunk = read(written.path, default_types(log))
    assert chunk.counts.max() <= 8192
    assert chunk.counts.sum() == 20_000


def test_types_are_those_of_the_columns_unless_declared(tmp_path: Path) -> None:
    log = log_of([1, 2], upper=[])
    assert type_text(default_types(log).record) == "{k: string, n: option<i64>}"
    types = CaptureTypes.parse("u8", "{n: u16, k: bytes}", timely="0.31")
    (written,) = export_log(log, tmp_path, types=types)
    assert read(written.path, types).records.to_pylist() == [{"n": 1, "k": b"1"}, {"n": 2, "k": b"2"}]


@pytest.mark.parametrize(
    ("time", "record", "kind"),
    [
        ("u64", "{k: string, n: i64}", SchemaMismatchError),  # n is null somewhere
        ("u64", "{k: u64, n: option<i64>}", SchemaMismatchError),  # were they digits, they would be text still
        ("u64", "{k: string, n: option<f64>}", SchemaMismatchError),
        ("u64", "{k: string, n: option<u8>}", SchemaMismatchError),
        ("u64", "{k: string, m: option<u8>}", SchemaMismatchError),
        ("u64", "{k: vec<u8>, n: option<i64>}", SchemaMismatchError),
        ("u8", "{k: string, n: option<i64>}", InvalidUsageError),
        ("product<u64, u64>", "{k: string, n: option<i64>}", SchemaMismatchError),
    ],
)
@pytest.mark.parametrize("json_lines", [True, False])
def test_what_does_not_fit_the_types_leaves_no_file(
    time: str, record: str, kind: type[Exception], *, json_lines: bool, tmp_path: Path
) -> None:
    log = log_of([0, 5, 300], upper=[])
    with pytest.raises(kind):
        export_log(
            log,
            tmp_path,
            files=2,
            types=CaptureTypes.parse(time, record, timely="0.31"),
            stretch_rows=1,
            json_lines=json_lines,
        )
    assert not list(tmp_path.iterdir())


def test_times_before_those_of_the_type_are_refused(tmp_path: Path) -> None:
    log = log_of([-5, 5], upper=[], minimum=-10)
    with pytest.raises(InvalidUsageError, match="found -"):
        export_log(log, tmp_path, types=CaptureTypes.parse("u64", "{k: string, n: option<i64>}", timely="0.31"))
    (written,) = export_log(log, tmp_path)
    assert read(written.path, default_types(log)).times[:, 0].tolist() == [-5, 5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"files": 0}, "found files=0"),
        ({"files": True}, "found files=True"),
        ({"stream": "c"}, r"found streams=\['a'\]"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        export_log(log_of([1], upper=[]), tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "capture_w1.bin").write_text("mine")
    with pytest.raises(InvalidUsageError, match=r"capture_w1\.bin"):
        export_log(log_of([1], upper=[]), tmp_path, files=2)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("capture_w1.bin", "mine")]


def full_disk(monkeypatch: pytest.MonkeyPatch, name: str, nth: int) -> None:
    """Let the nth call of a function of the system fail."""
    real, calls = getattr(os, name), [0]

    def call(*arguments: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("name", ["fsync", "link"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_disk_full_at_the_end_leaves_no_part_of_the_captures(
    name: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of([1, 2, 3], upper=[])
    with monkeypatch.context() as patch:
        full_disk(patch, name, nth)
        with pytest.raises(OSError, match="No space left"):
            export_log(log, tmp_path, files=3)
    assert not list(tmp_path.iterdir())  # two captures of three would be replayed as if they were all
    assert sum(each.records for each in export_log(log, tmp_path, files=3)) == 3


def test_export_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".capture_w0.bin.0123abcd.partial").write_bytes(b"a part")
    (tmp_path / ".other_w0.bin.0123abcd.partial").write_bytes(b"of another export")
    export_log(log_of([1], upper=[]), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".other_w0.bin.0123abcd.partial", "capture_w0.bin"]


@pytest.mark.parametrize("links", [True, False])
def test_two_exports_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool) -> None:
    log, other = log_of([1, 2], upper=[]), log_of([7], upper=[])
    if not links:

        def link(*arguments: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", link)

    def meanwhile(n: int) -> None:
        if not (tmp_path / "capture_w0.bin").exists():
            export_log(other, tmp_path)

    with pytest.raises(InvalidUsageError, match=r"found .*capture_w0\.bin"):
        export_log(log, tmp_path, report=meanwhile)
    assert [file.name for file in tmp_path.iterdir()] == ["capture_w0.bin"]
    assert read(str(tmp_path / "capture_w0.bin"), default_types(other)).times[:, 0].tolist() == [7]


def test_columns_that_came_after_the_import_are_exported_too(tmp_path: Path) -> None:
    types = CaptureTypes.parse("u64", "(string, u64)", timely="0.31")
    log = MemoryLog.create(types.payload, minimum=(0,), streams=2)
    data = capture_bytes([(0, [("a", 1)]), {0: -1}], time="u64", record="(string, u64)")
    StreamImport(log, "w", types, name="x").take_whole(io.BytesIO(data))
    assert default_types(log) == types
    log.add_columns(pa.schema([("more", pa.int64())]))
    rows = {"_time": [3], "f0": ["b"], "f1": pa.array([2], pa.decimal128(20, 0)), "more": [7]}
    log.writer("b", owner="me").append(pa.table(rows), advance_to=[])
    assert type_text(default_types(log).record) == "{f0: string, f1: u64, more: option<i64>}"
    (written,) = export_log(log, tmp_path)
    assert read(written.path, default_types(log)).records.column("more").to_pylist() == [None, 7]


def test_more_captures_than_rows_and_texts_of_all_kinds(tmp_path: Path) -> None:
    texts = ["", "\x00", "ß漢\U0001f980", "a\nb"]
    log = MemoryLog.create(SCHEMA, minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [1] * 4, "k": texts, "n": [None] * 4}), advance_to=[])
    for lines in (False, True):
        written = export_log(log, tmp_path, files=9, json_lines=lines)
        assert [each.records for each in written] == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    types = default_types(log)
    back = [each for i in range(9) for each in read(str(tmp_path / f"capture_w{i}.bin"), types).records.to_pylist()]
    assert [each["k"] for each in back] == texts


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "x\0"])
def test_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="found name="):
        export_log(log_of([1], upper=[]), tmp_path / "out", name=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("nth", [1, 2])
def test_collection_leaves_no_part_of_its_files(nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    rows = pa.table({"_time": [1, 2], "k": ["a", "b"], "n": [1, 2], "_diff": [1, 1]})
    log.writer(owner="me").append(rows, advance_to=[])
    with monkeypatch.context() as patch:
        full_disk(patch, "fsync", nth)
        with pytest.raises(OSError, match="No space left"):
            export_collection(log, tmp_path, files=2)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidUsageError, match="found files=0"):
        export_collection(log, tmp_path, files=0)
    assert sum(each.records for each in export_collection(log, tmp_path, files=2)) == 2


def test_collection_is_no_capture(tmp_path: Path) -> None:
    log = MemoryLog.create(SCHEMA, minimum=(0,), kind="collection")
    with pytest.raises(InvalidUsageError, match="found kind='collection'"):
        export_log(log, tmp_path)
