"""Captures of any type: what is written is read again, however the bytes come; mutated bytes do no harm."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.interop.chunk import VERSIONS, TimelyVersion
from spark_timely.interop.jsonl import chunk_lines, json_chunk
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.records import records_to_rows
from spark_timely.interop.schema import UNIT, Choice, Option, Record, Scalar, Type, Vec, parse_type, type_text
from spark_timely.interop.time_layout import TimeLayout
from spark_timely.interop.writer import CaptureEncoder, build_chunk
from tests.modules import ROOT
from tests.oracles.golden import concat_chunks
from tests.property import fuzzing

SCALARS = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "bool", "f32", "f64", "string", "bytes"]
NAMES = ("a", "b", "c", "d")


def _record(items: list[Type], kind: str) -> Type:
    names = tuple(f"f{i}" for i in range(len(items))) if kind == "tuple" else NAMES[: len(items)]
    return parse_type(type_text(Record(names, tuple(items), kind)))


types = st.recursive(
    st.sampled_from(SCALARS).map(Scalar) | st.just(parse_type("duration")),
    lambda inner: st.one_of(
        inner.map(lambda item: parse_type(f"option<{type_text(item)}>")),
        inner.map(Vec),
        st.builds(_record, st.lists(inner, min_size=1, max_size=4), st.sampled_from(["tuple", "struct"])),
        st.lists(inner | st.just(UNIT), min_size=1, max_size=3).map(
            lambda items: Choice(("A", "B", "C")[: len(items)], tuple(items))
        ),
    ),
    max_leaves=6,
)


def values_of(type_: Type) -> st.SearchStrategy[Any]:
    """Return a strategy of JSON values of a type."""
    if isinstance(type_, Option):
        return st.none() | values_of(type_.item)
    if isinstance(type_, Vec):
        return st.lists(values_of(type_.item), max_size=3)
    if isinstance(type_, Record):
        if type_.kind == "duration":
            return st.lists(st.integers(0, 10**9 - 1), min_size=2, max_size=2)
        held = st.tuples(*map(values_of, type_.items)).map(list)
        return held.map(lambda row: dict(zip(type_.names, row, strict=True))) if type_.kind == "struct" else held
    if isinstance(type_, Choice):
        variants = zip(type_.names, type_.items, strict=True)
        return st.one_of([_variant(name, item) for name, item in variants])
    kind = type_.kind
    if kind == "bool":
        return st.booleans()
    if kind in ("f32", "f64"):
        return st.floats(width=int(kind[1:]), allow_nan=False, allow_infinity=False) | st.just("-Infinity")
    if kind == "string":
        return st.text(max_size=5)
    if kind == "bytes":
        return st.sampled_from(["", "AA==", "eHk="])
    bits = int(kind[1:])
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "i" else st.integers(0, (1 << bits) - 1)


def _variant(name: str, item: Type) -> st.SearchStrategy[Any]:
    return st.just(name) if item == UNIT else values_of(item).map(lambda value: {name: value})


TIMES = {"u64": st.integers(0, 9), "product<u64, i8>": st.lists(st.integers(0, 9), min_size=2, max_size=2)}


@st.composite
def captures(draw: st.DrawFn) -> tuple[str, str, TimelyVersion, list[Any]]:
    """Return type of times, type of records, version of timely, and events."""
    type_ = draw(types)
    time = draw(st.sampled_from(sorted(TIMES)))
    timely: TimelyVersion = draw(st.sampled_from(VERSIONS))
    stamps = TIMES[time] if timely == "0.31" else st.lists(TIMES[time], max_size=3).map(sorted)
    messages = st.tuples(stamps, st.lists(values_of(type_), max_size=6))
    progress = st.lists(st.tuples(TIMES[time], st.integers(-3, 3)).map(list), max_size=3)
    events = draw(st.lists(messages | progress, max_size=8)) * draw(st.sampled_from([1, 1, 7]))
    return time, type_text(type_), timely, events


@given(captures(), st.integers(64, 400))
@settings(max_examples=max(40, settings().max_examples // 3))
def test_any_capture_is_read_as_it_was_written(
    capture: tuple[str, str, TimelyVersion, list[Any]], chunk_bytes: int
) -> None:
    time, record, timely, events = capture
    given: Any = {"time": time, "record": record, "timely": timely}
    chunk = build_chunk(events, **given)
    encoder = CaptureEncoder(**given)
    data = encoder.encode(chunk)
    lines = list(chunk_lines(chunk, **given))
    reader = CaptureReader(io.BytesIO(data), **given, chunk_bytes=chunk_bytes)
    read = list(reader)
    assert (reader.unfinished, reader.event, reader.position) == (0, len(events), len(data))
    assert [line for part in read for line in chunk_lines(part, **given)] == lines
    if read:
        assert encoder.encode(concat_chunks(read)) == data
    again = json_chunk(lines, **given)
    assert encoder.encode(again) == data
    # An independent reading of what the lines should say.
    layout = TimeLayout(time)
    for event, line in zip(events, map(json.loads, lines), strict=True):
        if isinstance(event, tuple):
            assert line["messages"][0] == event[0]
            assert len(line["messages"][1]) == len(event[1])
        else:
            assert [[layout.to_json(layout.from_json(at)), delta] for at, delta in event] == line["progress"]
    rows = [row for event in events if isinstance(event, tuple) for row in event[1]]
    assert records_to_rows(chunk.records, parse_type(record)) == json.loads(json.dumps(rows), parse_int=int) or (
        "f32" in record
    )


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.lists(st.sampled_from([0, 1, 5]), min_size=1, max_size=4)),
        min_size=1,
        max_size=5,
    ),
    st.integers(64, 3000),
)
def test_events_of_lengths_that_repeat_are_found_where_they_are(
    runs: list[tuple[int, list[int]]], chunk_bytes: int
) -> None:
    # Stretches in which the same lengths come in turn, in periods of any length, and break off anywhere.
    sizes = [size for times, period in runs for size in period * times]
    encoder = CaptureEncoder(time="u64", record="u8")
    data = encoder.encode(build_chunk([(i, [7] * n) for i, n in enumerate(sizes)], time="u64", record="u8"))
    for cut in (len(data), len(data) - 1, len(data) // 2):
        reader = CaptureReader(io.BytesIO(data[:cut]), time="u64", record="u8", chunk_bytes=chunk_bytes)
        found = list(reader)
        counts = [n for chunk in found for n in chunk.counts.tolist()]
        assert counts == sizes[: len(counts)]
        assert [t for chunk in found for t in chunk.times[:, 0].tolist()] == list(range(len(counts)))
        assert reader.position == sum(28 + n for n in counts)
        assert reader.unfinished == cut - reader.position
        assert reader.unfinished < 28 + (sizes[len(counts)] if len(counts) < len(sizes) else 1)


@pytest.mark.parametrize("timely", VERSIONS)
@pytest.mark.parametrize("case", range(len(fuzzing.FUZZED)))
def test_mutated_captures_are_read_or_refused_with_their_place(case: int, timely: TimelyVersion) -> None:
    time, record, data = fuzzing.seeds(timely)[case]
    rng = random.Random(case)
    read = [
        fuzzing.harmless(time, record, fuzzing.mutated(data, rng), rng.choice(fuzzing.CHUNKS), timely)
        for _ in range(100)
    ]
    assert 0 < sum(read) < len(read)  # some of both, or the mutations are no test


@given(st.sampled_from(fuzzing.FUZZED), st.sampled_from(VERSIONS), st.binary(max_size=200))
@settings(max_examples=max(100, settings().max_examples))
def test_any_bytes_at_all_are_refused_or_read(types_: tuple[str, str], timely: TimelyVersion, data: bytes) -> None:
    fuzzing.harmless(*types_, data, None, timely)


@pytest.mark.parametrize("kind", sorted(fuzzing.WEIGHTS))
def test_mutated_inputs_of_every_kind_are_refused_or_read(kind: str) -> None:
    fuzzer = fuzzing.Fuzzer(seed=7)
    for _ in range(150):
        fuzzer.one(kind)
    assert set(fuzzer.counts) == {f"{kind} read", f"{kind} refused"}  # some of both, or the mutations are no test


@pytest.mark.parametrize("n", [2_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_mutated_inputs_in_bounded_memory(n: int) -> None:
    # In a process that may have no more memory than `FUZZ_BYTES` beyond what it begins with.
    code = [sys.executable, "-m", "tests.property.fuzzing", "--inputs", str(n)]
    run = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=6 * 3600)
    assert run.returncode == 0, run.stdout[-300:] + run.stderr[-3000:]
    found = json.loads(run.stdout)
    assert sum(found["counts"].values()) == n
    assert found["resident_growth"] <= fuzzing.FUZZ_BYTES
    assert found["arrow_left"] < 1 << 20
