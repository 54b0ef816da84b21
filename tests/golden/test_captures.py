"""Captures of the real timely, 0.31 and 0.32: decoded to exactly the events listed, and written again byte for byte."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from spark_timely.errors import CaptureFormatError, ProtocolError
from spark_timely.interop.chunk import CaptureChunk, TimelyVersion, judge_chunk
from spark_timely.interop.jsonl import chunk_lines, json_chunk
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.writer import CaptureEncoder
from spark_timely.protocol.rules import StreamCounts, verify_events
from tests.oracles import stamp_model
from tests.oracles.golden import (
    STAMPED,
    capture_file,
    captures,
    concat_chunks,
    golden_bytes,
    stamped_captures,
    types_of,
    vectors,
    version_of,
)

pytestmark = pytest.mark.golden

ALL = [*captures(), *stamped_captures()]
UNSORTED = f"{STAMPED}j2_unsorted_stamps"
AMBIGUOUS = [name for name in stamped_captures() if name.startswith(f"{STAMPED}k")]


def read(
    name: str, chunk_bytes: int | None = None, timely: TimelyVersion | None = None
) -> tuple[list[CaptureChunk], CaptureReader]:
    time, record = types_of(name)
    source = io.BytesIO(golden_bytes(capture_file(name, "bin")))
    timely = timely or version_of(name)
    reader = CaptureReader(source, time=time, record=record, timely=timely, chunk_bytes=chunk_bytes)
    return list(reader), reader


def expected(name: str, kind: str = "expected") -> tuple[list[Any], dict[str, Any]]:
    *events, last = vectors(capture_file(name, f"{kind}.jsonl"))
    return events, last["end"]


def lines(chunks: list[CaptureChunk], name: str, timely: TimelyVersion | None = None) -> list[Any]:
    time, record = types_of(name)
    timely = timely or version_of(name)
    return [
        json.loads(line) for chunk in chunks for line in chunk_lines(chunk, time=time, record=record, timely=timely)
    ]


@pytest.mark.parametrize("chunk_bytes", [None, 100])
@pytest.mark.parametrize("name", ALL)
def test_capture_decodes_to_the_events_listed(name: str, chunk_bytes: int | None) -> None:
    chunks, reader = read(name, chunk_bytes)
    events, end = expected(name)
    assert lines(chunks, name) == events
    assert reader.unfinished == end["trailing_bytes"]
    assert reader.event == end["events"]
    assert sum(chunk.n_records for chunk in chunks) == end["records"]


@pytest.mark.parametrize("name", ALL)
def test_what_was_decoded_is_encoded_to_the_same_bytes(name: str) -> None:
    time, record = types_of(name)
    data = golden_bytes(capture_file(name, "bin"))
    encoder = CaptureEncoder(time=time, record=record, timely=version_of(name))
    if name == UNSORTED:  # by hand: timely itself would write it so
        data = stamp_model.with_sorted_stamps(data)
    for chunk_bytes in (None, 500):
        chunks, reader = read(name, chunk_bytes)
        assert b"".join(encoder.encode(chunk) for chunk in chunks) == data[: len(data) - reader.unfinished]
        for chunk in chunks:
            assert encoder.encode(chunk) == data[chunk.positions[0] : chunk.positions[-1]]


@pytest.mark.parametrize("name", ALL)
def test_lines_of_json_encode_to_the_same_bytes(name: str) -> None:
    time, record = types_of(name)
    data, timely = golden_bytes(capture_file(name, "bin")), version_of(name)
    if name == UNSORTED:
        data = stamp_model.with_sorted_stamps(data)
    said = [json.dumps(line) for line in vectors(capture_file(name, "expected.jsonl"))]
    chunk = json_chunk(said, time=time, record=record, timely=timely)
    whole = len(data) - expected(name)[1]["trailing_bytes"]
    assert CaptureEncoder(time=time, record=record, timely=timely).encode(chunk) == data[:whole]


@pytest.mark.parametrize("name", ALL)
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


def test_unsorted_stamps_are_other_bytes_than_sorted_ones() -> None:
    data = golden_bytes(capture_file(UNSORTED, "bin"))
    sorted_ = stamp_model.with_sorted_stamps(data)
    assert sorted_ != data
    assert stamp_model.events(sorted_) == stamp_model.events(data)


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_bytes_good_in_both_versions_are_read_as_declared(name: str) -> None:
    time, record = types_of(name)
    data = golden_bytes(capture_file(name, "bin"))
    for timely, kind in (("0.31", "expected031"), ("0.32", "expected")):
        events, end = expected(name, kind)
        chunks, reader = read(name, 100, timely)  # type: ignore[arg-type]
        assert lines(chunks, name, timely) == events  # type: ignore[arg-type]
        assert (reader.event, reader.unfinished) == (end["events"], 0)
        held = verify_events(reader.times.domain, concat_chunks(chunks).stream_events())
        assert held.closed
        encoder = CaptureEncoder(time=time, record=record, timely=timely)  # type: ignore[arg-type]
        assert b"".join(map(encoder.encode, chunks)) == data


@pytest.mark.parametrize("name", [name for name in ALL if name not in AMBIGUOUS])
def test_whole_captures_do_not_read_as_the_other_version(name: str) -> None:
    if not any("messages" in event for event in expected(name)[0]):
        assert lines(read(name, timely="0.31")[0], name, "0.31") == lines(read(name, timely="0.32")[0], name, "0.32")
        return
    with pytest.raises(CaptureFormatError):
        read(name, timely="0.31" if version_of(name) == "0.32" else "0.32")


@pytest.mark.parametrize("name", stamped_captures())
def test_stamps_are_those_that_a_plain_decoder_finds(name: str) -> None:
    if types_of(name)[0] not in ("u64", "product<u64, u64>"):
        return
    arity = 1 if types_of(name)[0] == "u64" else 2
    wanted = [event.stamp for event in stamp_model.events(golden_bytes(capture_file(name, "bin")), arity) if event]
    for chunk_bytes in (None, 100):
        found = []
        for chunk in read(name, chunk_bytes)[0]:
            at = iter(map(tuple, chunk.times.tolist()))
            found += [[next(at) for _ in range(n)] for n in chunk.stamp_sizes.tolist()]
        assert found == wanted


def judged(reader: CaptureReader) -> None:
    counts = StreamCounts.initial(reader.times.domain.minimum)
    for chunk in reader:
        counts = judge_chunk(chunk, counts, reader.times, "w0")


@pytest.mark.parametrize("case", list(vectors(f"{STAMPED}illegal/illegal.jsonl")), ids=lambda case: case["file"])
@pytest.mark.parametrize("chunk_bytes", [None, 100])
def test_illegal_captures_are_refused_where_they_are_wrong(case: dict[str, Any], chunk_bytes: int | None) -> None:
    data = golden_bytes(f"{STAMPED}illegal/{case['file']}")
    reader = CaptureReader(
        io.BytesIO(data), time=case["time"], record=case["record"], timely="0.32", chunk_bytes=chunk_bytes
    )
    with pytest.raises((CaptureFormatError, ProtocolError)) as caught:
        judged(reader)
    context = caught.value.context
    assert (context["event"], context.get("begins", context["position"])) == (case["event"], case["byte"])
    # Within the event, not only at its first byte.
    length = int.from_bytes(data[case["byte"] : case["byte"] + 8], "little")
    assert case["byte"] <= context["position"] <= case["byte"] + 8 + length


GROUPS = sorted({name.rpartition("_w")[0] for name in stamped_captures() if name.rpartition("_w")[2].isdigit()})


@pytest.mark.parametrize("group", GROUPS)
def test_stamped_streams_of_workers_hold_what_timely_merged(group: str) -> None:
    found: dict[str, list[Any]] = {}
    for name in stamped_captures():
        if name.rpartition("_w")[0] == group:
            for event in lines(read(name)[0], name):
                stamp, records = event.get("messages", ([], []))
                found.setdefault(json.dumps(stamp), []).extend(records)
    merged = [line for line in vectors(capture_file(group, "merged.jsonl")) if "stamp" in line]
    wanted = {json.dumps(line["stamp"]): line["data_sorted"] for line in merged}
    assert len(wanted) == len(merged) > 0
    assert {stamp: sorted(records) for stamp, records in found.items() if records} == {
        stamp: records for stamp, records in wanted.items() if records
    }
