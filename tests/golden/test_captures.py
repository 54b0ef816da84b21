"""Captures of the real timely: decoded to exactly the events listed, and written again byte for byte."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from spark_timely.interop.chunk import CaptureChunk
from spark_timely.interop.jsonl import chunk_lines, json_chunk
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.writer import CaptureEncoder
from spark_timely.protocol.rules import verify_events
from tests.oracles.golden import captures, concat_chunks, golden_bytes, types_of, vectors

pytestmark = pytest.mark.golden


def read(name: str, chunk_bytes: int | None = None) -> tuple[list[CaptureChunk], CaptureReader]:
    time, record = types_of(name)
    reader = CaptureReader(
        io.BytesIO(golden_bytes(f"capture_{name}.bin")), time=time, record=record, chunk_bytes=chunk_bytes
    )
    return list(reader), reader


def expected(name: str) -> tuple[list[Any], dict[str, Any]]:
    *events, last = vectors(f"capture_{name}.expected.jsonl")
    return events, last["end"]


@pytest.mark.parametrize("chunk_bytes", [None, 100])
@pytest.mark.parametrize("name", captures())
def test_capture_decodes_to_the_events_listed(name: str, chunk_bytes: int | None) -> None:
    time, record = types_of(name)
    chunks, reader = read(name, chunk_bytes)
    events, end = expected(name)
    assert [json.loads(line) for chunk in chunks for line in chunk_lines(chunk, time=time, record=record)] == events
    assert reader.unfinished == end["trailing_bytes"]
    assert reader.event == end["events"]
    assert sum(chunk.n_records for chunk in chunks) == end["records"]


@pytest.mark.parametrize("name", captures())
def test_what_was_decoded_is_encoded_to_the_same_bytes(name: str) -> None:
    time, record = types_of(name)
    data = golden_bytes(f"capture_{name}.bin")
    encoder = CaptureEncoder(time=time, record=record)
    for chunk_bytes in (None, 500):
        chunks, reader = read(name, chunk_bytes)
        assert b"".join(encoder.encode(chunk) for chunk in chunks) == data[: len(data) - reader.unfinished]
        for chunk in chunks:
            assert encoder.encode(chunk) == data[chunk.positions[0] : chunk.positions[-1]]


@pytest.mark.parametrize("name", captures())
def test_lines_of_json_encode_to_the_same_bytes(name: str) -> None:
    time, record = types_of(name)
    data = golden_bytes(f"capture_{name}.bin")
    lines = [json.dumps(line) for line in vectors(f"capture_{name}.expected.jsonl")]
    chunk = json_chunk(lines, time=time, record=record)
    whole = len(data) - expected(name)[1]["trailing_bytes"]
    assert CaptureEncoder(time=time, record=record).encode(chunk) == data[:whole]


@pytest.mark.parametrize("name", captures())
def test_capture_keeps_the_protocol_and_ends_where_timely_says(name: str) -> None:
    chunks, reader = read(name)
    _, end = expected(name)
    if not chunks:
        assert end["events"] == 0
        return
    held = verify_events(reader.times.domain, concat_chunks(chunks).stream_events())
    assert held.closed == end["closed"]
    to_json = reader.times.to_json
    assert [[to_json(time), count] for time, count in zip(held.times.tolist(), held.counts.tolist(), strict=True)] == (
        end["counts"]
    )
    assert [to_json(time) for time in held.frontier] == sorted(end["frontier"])
