"""k captures imported, exported to m, imported again: the same canonical hash, whatever k and m."""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.interop.exporting import export_log
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.jsonl import JsonLines
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import MemoryLog
from tests.oracles.golden import captures, concat_chunks, golden_bytes, types_of, vectors

TYPES = {
    1: CaptureTypes.parse("u64", "(string, u64)", timely="0.31"),
    2: CaptureTypes.parse("product<u64, u64>", "u64", timely="0.31"),
}


def log_of(types: CaptureTypes, data: list[bytes], commit_bytes: int = 1 << 20) -> MemoryLog:
    domain = types.layout.domain
    times = [type_.value for type_ in domain.types]
    log = MemoryLog.create(types.payload, times=times, minimum=domain.minimum, streams=max(1, len(data)))
    tasks = [StreamImport(log, f"w{i}", types, name=f"w{i}", commit_bytes=commit_bytes) for i in range(len(data))]
    for task, each in zip(tasks, data, strict=True):
        task.take_whole(io.BytesIO(each))
    return log


def again(log: MemoryLog, types: CaptureTypes, files: int, *, stretch_rows: int, json_lines: bool = False) -> MemoryLog:
    """Export a log to files, judge each of them by itself, and import them into a fresh log."""
    with tempfile.TemporaryDirectory() as folder:
        written = export_log(log, folder, files=files, stretch_rows=stretch_rows, json_lines=json_lines)
        sizes = [each.records for each in written]
        assert sum(sizes) == log.messages().num_rows
        assert max(sizes) - min(sizes) <= 1
        if json_lines:
            domain = types.layout.domain
            other = MemoryLog.create(
                types.payload,
                times=[type_.value for type_ in domain.types],
                minimum=domain.minimum,
                streams=files,
            )
            tasks = [StreamImport(other, f"w{i}", types, name="x") for i in range(files)]
            for task, each in zip(tasks, written, strict=True):
                task.take_file(each.path, wrap=lambda file: JsonLines(file, types.time, types.record))
            return other
        data = [Path(each.path).read_bytes() for each in written]
        for each in data:
            judged_alone(each, types)
        assert sorted(p.name for p in Path(folder).iterdir()) == sorted(Path(each.path).name for each in written)
        return log_of(types, data)


def judged_alone(data: bytes, types: CaptureTypes) -> None:
    """Check a capture by the two rules of the protocol, event by event, without the library's checker."""
    counts: Counter[tuple[int, ...]] = Counter({types.layout.domain.minimum: 1})
    chunks = list(CaptureReader(io.BytesIO(data), time=types.time, record=types.record))
    if not chunks:
        return
    chunk = concat_chunks(chunks)
    message = 0

    def held(time: Any) -> bool:
        return any(n > 0 and all(a <= b for a, b in zip(low, time, strict=True)) for low, n in counts.items())

    for kind, part in chunk.walk():
        if kind:
            assert held(tuple(chunk.times[message].tolist()))
            message += 1
            continue
        changes = list(zip(map(tuple, chunk.progress_times[part].tolist()), chunk.progress_deltas[part], strict=True))
        for time, delta in changes:
            assert delta < 0 or held(time)
        for time, delta in changes:
            counts[time] += int(delta)
        assert min(counts.values()) >= 0


@st.composite
def streams(draw: st.DrawFn, arity: int) -> list[Any]:
    """Return the events of a legal capture: capabilities are copied to later times, used and given up."""
    counts = {(0,) * arity: 1}
    events: list[Any] = []

    def later(time: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(x + draw(st.integers(0, 3)) for x in time)

    def plain(time: tuple[int, ...]) -> Any:
        return time[0] if arity == 1 else list(time)

    for _ in range(draw(st.integers(0, 10))):
        if not counts:
            break
        at = draw(st.sampled_from(sorted(counts)))
        if draw(st.booleans()):
            n = draw(st.integers(0, 4))
            rows = [(draw(st.sampled_from("abc")), i) if arity == 1 else draw(st.integers(0, 5)) for i in range(n)]
            events.append((plain(later(at)), rows))
        else:
            change: Counter[tuple[int, ...]] = Counter({at: -1})
            for _ in range(draw(st.integers(0, 2))):
                change[later(at)] += 1
            for time, delta in change.items():
                counts[time] = counts.get(time, 0) + delta
                if not counts[time]:
                    del counts[time]
            events.append([[plain(time), delta] for time, delta in change.items()])
    if draw(st.booleans()):
        events.append([[plain(time), -n] for time, n in counts.items()])
    return events


@pytest.mark.parametrize("arity", [1, 2])
@given(data=st.data())
@settings(max_examples=max(8, settings().max_examples // 12))
def test_any_captures_survive_the_way_there_and_back(arity: int, data: st.DataObject) -> None:
    types = TYPES[arity]
    time, record = ("u64", "(string, u64)") if arity == 1 else ("product<u64, u64>", "u64")
    made = data.draw(st.lists(streams(arity), min_size=1, max_size=4))
    log = log_of(types, [capture_bytes(events, time=time, record=record) for events in made])
    wanted = log.verify()
    assert wanted.legal, wanted.problems
    other = again(
        log,
        types,
        data.draw(st.integers(1, 4)),
        stretch_rows=data.draw(st.integers(1, 9)),
        json_lines=data.draw(st.booleans()),
    )
    found = other.verify()
    assert (found.legal, found.digest, found.frontier) == (True, wanted.digest, log.frontier())


GROUPS = ["c_4workers", "c2_3workers", "d2_product_2workers"]


@pytest.mark.golden
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("files", [1, 4])
def test_captures_of_several_workers_survive_the_round_trip(group: str, files: int) -> None:
    names = [name for name in captures() if name.startswith(group)]
    types = CaptureTypes.parse(*types_of(names[0]), timely="0.31")
    log = log_of(types, [golden_bytes(f"capture_{name}.bin") for name in names], commit_bytes=2000)
    other = again(log, types, files, stretch_rows=500)
    assert other.verify().digest == log.verify().digest
    # All of it is what timely says that the streams hold together, time by time.
    merged = [line for line in vectors(f"capture_{group}.merged.jsonl") if "time" in line]
    rows = other.messages()
    columns = [rows.column(name).to_pylist() for name in other.domain.columns]
    payload = [rows.column(name).to_pylist() for name in other.schema.names]
    found: dict[Any, list[Any]] = {}
    for i in range(rows.num_rows):
        key = columns[0][i] if len(columns) == 1 else tuple(column[i] for column in columns)
        values = [int(v) if not isinstance(v, str) else v for v in (column[i] for column in payload)]
        found.setdefault(key, []).append(values[0] if len(values) == 1 else values)
    wanted = {
        (line["time"] if isinstance(line["time"], int) else tuple(line["time"])): line["data_sorted"] for line in merged
    }
    assert {key: sorted(value) for key, value in found.items()} == wanted


@pytest.mark.golden
@pytest.mark.parametrize("name", [name for name in captures() if not name.startswith((*GROUPS, "e2", "e4", "e5"))])
def test_every_golden_capture_survives_the_way_there_and_back(name: str) -> None:
    types = CaptureTypes.parse(*types_of(name), timely="0.31")
    log = log_of(types, [golden_bytes(f"capture_{name}.bin")])
    other = again(log, types, 2, stretch_rows=100)
    assert other.verify().digest == log.verify().digest
    *_, last = vectors(f"capture_{name}.expected.jsonl")
    assert log.messages().num_rows == last["end"]["records"]
    assert log.frontier().is_empty == last["end"]["closed"]


def test_export_moves_on_as_soon_as_it_can() -> None:
    # Whoever replays an export learns what is complete while it goes, not at the end.
    types = TYPES[2]
    rows = [([t, 9 - t], [t]) for t in range(10)]
    data = capture_bytes([*rows, {(0, 0): -1}], time="product<u64, u64>", record="u64")
    log = log_of(types, [data])
    with tempfile.TemporaryDirectory() as folder:
        (written,) = export_log(log, folder, stretch_rows=3)
        chunk = concat_chunks(
            list(CaptureReader(io.BytesIO(Path(written.path).read_bytes()), time=types.time, record=types.record))
        )
    counts: Counter[tuple[int, ...]] = Counter({(0, 0): 1})
    message = 0
    for kind, part in chunk.walk():
        if kind:
            held = [time for time, n in counts.items() if n]
            # All times are incomparable: what is held is exactly what is still to come.
            assert sorted(held) == sorted(map(tuple, chunk.times[message:].tolist()))
            message += 1
        else:
            for time, delta in zip(chunk.progress_times[part].tolist(), chunk.progress_deltas[part], strict=True):
                counts[tuple(time)] += int(delta)
    assert not any(counts.values())
