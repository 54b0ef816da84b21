"""The rules of counting with stamps: a model that looks at one event after the other finds the same one wrong."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_timely.errors import CaptureFormatError, ProtocolError
from spark_timely.interop.chunk import judge_chunk
from spark_timely.interop.reader import CaptureReader
from spark_timely.interop.schema import parse_type
from spark_timely.interop.stamps import StampRules, place_records
from spark_timely.interop.time_layout import TimeLayout
from spark_timely.interop.writer import capture_bytes
from spark_timely.protocol.rules import StreamCounts
from tests.oracles import stamp_model

TIMES = {1: "u64", 2: "product<u64, u64>"}


@st.composite
def streams(draw: st.DrawFn, arity: int) -> list[Any]:
    """Return events as JSON, legal or not: progress mostly moves on, stamps are of any times."""
    coordinate = st.integers(0, 4)
    time: Any = coordinate if arity == 1 else st.lists(coordinate, min_size=2, max_size=2)
    records = st.lists(st.tuples(st.integers(0, 9), time, st.just(1)).map(list), max_size=3)
    held: list[Any] = [0 if arity == 1 else [0, 0]]
    events: list[Any] = []
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.booleans()) or not held:
            stamp = sorted(draw(st.lists(time, max_size=3)))
            events.append({"messages": [stamp, draw(records)]})
        else:
            lost = held.pop(draw(st.integers(0, len(held) - 1)))
            gained = draw(st.lists(time, max_size=2))
            held += gained
            events.append({"progress": [[lost, -1], *([each, 1] for each in gained)]})
    return events


def found_by_model(events: list[Any], arity: int, **options: bool) -> tuple[str, int | None, stamp_model.Result | None]:
    try:
        result = stamp_model.run(events, (0,) * arity, **options)  # type: ignore[arg-type]
    except stamp_model.IllegalError as error:
        return "illegal", int(error.args[0]), None
    return ("fine", None, result) if result.refused is None else ("refused", result.refused[0], result)


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("column", [True, False])
@given(data=st.data())
@settings(max_examples=max(60, settings().max_examples // 2))
def test_rules_of_stamps_are_those_of_a_model(data: st.DataObject, arity: int, *, updates: bool, column: bool) -> None:
    events = data.draw(streams(arity))
    record = f"(u8, {TIMES[arity]}, i64)"
    apart = not updates and data.draw(st.booleans())
    wanted, event, result = found_by_model(events, arity, updates=updates, keep=column, unstamped=apart)
    plain = [tuple(each["messages"]) if "messages" in each else each["progress"] for each in events]
    bytes_ = capture_bytes(plain, time=TIMES[arity], record=record, timely="0.32")
    chunk_bytes = data.draw(st.sampled_from([64, 4096]))
    reader = CaptureReader(io.BytesIO(bytes_), time=TIMES[arity], record=record, timely="0.32", chunk_bytes=chunk_bytes)
    layout = TimeLayout(TIMES[arity])
    rules = StampRules(layout, parse_type(record), updates, column, "drop" if apart else "refuse")
    counts = StreamCounts.initial((0,) * arity)
    times: list[tuple[int, ...]] = []
    dropped = 0
    said: tuple[str, int | None] = ("fine", None)
    # Chunk by chunk, as an import does; within a chunk what is illegal comes first.
    try:
        for chunk in reader:
            counts = judge_chunk(chunk, counts, layout, "w")
            placed = place_records(chunk, rules, "w")
            times += map(tuple, placed.times.tolist())
            dropped += placed.dropped
    except ProtocolError as error:
        said = ("illegal", error.context["event"])  # type: ignore[assignment]
    except CaptureFormatError as error:
        said = ("refused", error.event)  # type: ignore[assignment]
    if said[0] == "illegal" and wanted == "refused":
        # The model, which looks at one event after the other, met what has no time first.
        assert event is not None
        assert event < said[1]  # type: ignore[operator]
        return
    assert said == (wanted, event)
    if result is not None and wanted == "fine":
        assert times == [time for time, _ in result.rows]
        assert dropped == len(result.unstamped)
        held = dict(zip(map(tuple, counts.times.tolist()), counts.counts.tolist(), strict=True))
        assert held == {time: n for time, n in result.counts.items() if n}
