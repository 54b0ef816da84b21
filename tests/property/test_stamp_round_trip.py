"""Captures with stamps imported, exported, imported again: the same rows, stamps and frontier, whatever the files."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.errors import InvalidUsageError
from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.jsonl import JsonLines, chunk_lines
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import MemoryLog
from tests.oracles import stamp_model
from tests.oracles.golden import capture_file, golden_bytes, stamped_captures, types_of

Time = tuple[int, ...]
TIMES = {1: "u64", 2: "product<u64, u64>"}


def plain(time: Time) -> Any:
    return time[0] if len(time) == 1 else list(time)


@st.composite
def streams(draw: st.DrawFn, arity: int, *, updates: bool) -> list[Any]:
    """Return the events of a legal capture as JSON: stamps of held times or later ones, doubles, and none at all."""
    counts = {(0,) * arity: 1}
    events: list[Any] = []

    def later(time: Time) -> Time:
        return tuple(x + draw(st.integers(0, 3)) for x in time)

    def records(stamp: list[Time]) -> list[Any]:
        n = draw(st.integers(0, 3))
        if not updates:
            return [[draw(st.sampled_from("abc")), i] for i in range(n)]
        return [
            [draw(st.sampled_from("ab")), plain(later(draw(st.sampled_from(stamp)))), i]
            for i in range(n if stamp else 0)
        ]

    for _ in range(draw(st.integers(0, 10))):
        if draw(st.booleans()):
            k = draw(st.sampled_from([0, 1, 1, 2, 3])) if counts else 0
            stamp = sorted(later(draw(st.sampled_from(sorted(counts)))) for _ in range(k))
            events.append({"messages": [list(map(plain, stamp)), records(stamp)]})
        elif counts:
            at = draw(st.sampled_from(sorted(counts)))
            change = {at: -1}
            for _ in range(draw(st.integers(0, 2))):
                time = later(at)
                change[time] = change.get(time, 0) + 1
            events.append({"progress": [[plain(time), delta] for time, delta in change.items()]})
            for time, delta in change.items():
                counts[time] = counts.get(time, 0) + delta
                if not counts[time]:
                    del counts[time]
    return events


def python(events: list[Any]) -> list[Any]:
    return [tuple(event["messages"]) if "messages" in event else event["progress"] for event in events]


def log_of(types: CaptureTypes, captures: list[Any]) -> MemoryLog:
    domain = types.layout.domain
    times = [type_.value for type_ in domain.types]
    log = MemoryLog.create(types.payload, times=times, minimum=domain.minimum, streams=max(1, len(captures)))
    for i, capture in enumerate(captures):
        task = StreamImport(log, f"w{i}", types, name="x", unstamped="drop", commit_bytes=300)
        if isinstance(capture, bytes):
            task.take_whole(io.BytesIO(capture))
        else:
            wrap = lambda file: JsonLines(file, types.time, types.record, timely=types.version)  # noqa: E731
            task.take_file(str(capture), wrap=wrap)
    return log


def lines_of(data: bytes, types: CaptureTypes) -> list[Any]:
    time, record = types.time, types.record
    reader = CaptureReader(io.BytesIO(data), time=time, record=record, timely="0.32")
    return [json.loads(line) for c in reader for line in chunk_lines(c, time=time, record=record, timely="0.32")]


def rows_of(log: MemoryLog) -> list[str]:
    rows = log.messages()
    columns = [rows[name].to_pylist() for name in (*log.domain.columns, *log.schema.names)]
    return sorted(str(row) for row in zip(*columns, strict=True))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("arity", [1, 2])
@given(data=st.data())
@settings(max_examples=max(8, settings().max_examples // 12))
def test_stamped_captures_survive_the_way_there_and_back(
    data: st.DataObject, arity: int, *, updates: bool, kept: bool
) -> None:
    if arity == 2 and not updates:
        kept = True  # else several times are refused
    record = f"(string, {TIMES[arity]}, i64)" if updates else "(string, u64)"
    types = CaptureTypes.parse(TIMES[arity], record, timely="0.32", stamps="column" if kept else "refuse")
    made = data.draw(st.lists(streams(arity, updates=updates), min_size=1, max_size=3))
    minimum = (0,) * arity
    models = [stamp_model.run(events, minimum, updates=updates, keep=kept, unstamped=True) for events in made]
    captures = [capture_bytes(python(events), time=types.time, record=record, timely="0.32") for events in made]
    log = log_of(types, captures)
    assert log.messages().num_rows == sum(len(model.rows) for model in models)
    lines = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        written = export_log(
            log,
            folder,
            files=data.draw(st.integers(1, 4)),
            json_lines=lines,
            stretch_rows=data.draw(st.integers(1, 9)),
        )
        sizes = [each.records for each in written]
        assert (sum(sizes), max(sizes) - min(sizes) <= 1) == (log.messages().num_rows, True)
        paths = [Path(each.path) for each in written]
        for path in paths:
            text = [json.loads(line) for line in path.read_text().splitlines()] if lines else []
            events = text or lines_of(b"" if lines else path.read_bytes(), types)
            judged = stamp_model.run(events, minimum, updates=updates, keep=kept)
            assert judged.refused is None
            held = {time for time, n in judged.counts.items() if n}
            assert held == set(log.frontier().elements)
        other = log_of(types, paths if lines else [path.read_bytes() for path in paths])
    assert rows_of(other) == rows_of(log)
    assert other.verify().digest == log.verify().digest
    assert other.frontier() == log.frontier()


NAMES = [name for name in stamped_captures() if not name.startswith(("v032/e2", "v032/e4", "v032/e5", "v032/j1"))]


@pytest.mark.golden
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("files", [1, 3])
def test_golden_captures_with_stamps_survive_the_round_trip(name: str, files: int) -> None:
    types = CaptureTypes.parse(*types_of(name), timely="0.32", stamps="column")
    log = log_of(types, [golden_bytes(capture_file(name, "bin"))])
    with tempfile.TemporaryDirectory() as folder:
        written = export_log(log, folder, files=files, stretch_rows=100)
        other = log_of(types, [Path(each.path).read_bytes() for each in written])
    assert other.verify().digest == log.verify().digest
    assert rows_of(other) == rows_of(log)
    assert other.frontier() == log.frontier()


def test_stamps_that_0_31_has_no_place_for_are_not_exported() -> None:
    types = CaptureTypes.parse("u64", "u64", timely="0.32", stamps="column")
    for stamp in ([3], [3, 4]):
        log = log_of(types, [capture_bytes([(stamp, [1])], time="u64", record="u64", timely="0.32")])
        with tempfile.TemporaryDirectory() as folder:
            if len(stamp) == 1:
                (written,) = export_log(log, folder, timely="0.31")
                (chunk,) = CaptureReader(io.BytesIO(Path(written.path).read_bytes()), time="u64", record="u64")
                assert chunk.times.tolist() == [[3]]
                continue
            with pytest.raises(InvalidUsageError, match="found 2 times in message=0"):
                export_log(log, folder, timely="0.31")
            assert not list(Path(folder).iterdir())


@pytest.mark.parametrize("timely", ["0.31", "0.32"])
def test_export_writes_the_version_that_is_asked_for(timely: Any, tmp_path: Path) -> None:
    other = "0.32" if timely == "0.31" else "0.31"
    events = [([3], [1, 2]), {0: -1}]
    types = CaptureTypes.parse("u64", "u64", timely=timely)
    data = capture_bytes(
        events if timely == "0.32" else [(3, [1, 2]), {0: -1}], time="u64", record="u64", timely=timely
    )
    log = log_of(types, [data])
    for name, given_, version in (("a", None, timely), ("b", other, other)):
        (written,) = export_log(log, tmp_path / name, timely=given_)
        found = Path(written.path).read_bytes()
        reader = CaptureReader(io.BytesIO(found), time="u64", record="u64", timely=version)
        assert [chunk.record_times.ravel().tolist() for chunk in reader] == [[3, 3]]
        assert len(found) == 132 + (8 if version == "0.32" else 0)
