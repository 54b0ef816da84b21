"""The frontiers of captured streams, one by one and merged, by the counts alone.

A capture begins with one capability at the minimum, which it never mentions; several replayed together begin with
one each. The events are those that the real timely wrote, the frontiers those that it derived.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from spark_timely.progress.change_batch import ChangeBatch
from spark_timely.progress.frontier import MutableAntichain
from spark_timely.time.antichain import as_times
from tests.oracles import order_model as model
from tests.oracles.golden import FOLDER, STAMPED, as_row, capture_file, vectors, version_of

pytestmark = pytest.mark.golden


def _found(kind: str) -> list[str]:
    pattern = re.compile(rf"capture_(\w+)\.{kind}\.jsonl(\.gz)?")
    return sorted(
        f"{version}{m[1]}"
        for version in ("", STAMPED)
        for m in {pattern.fullmatch(file.name.removesuffix(".gz")) for file in (FOLDER / version).iterdir()}
        if m
    )


# Seconds and nanoseconds are one time, not two coordinates: it is compared as a number of nanoseconds.
DURATIONS = {"g2_duration", "j5_duration_stamps"}
MINIMUM = {"g4_i64": (-(1 << 63),), "g3_unit": (), "j4_i64_stamps": (-(1 << 63),), "j3_unit_stamps": ()}
PRODUCT = re.compile(r"(d\d|h1|h2|h4|i1|i2|i3)_")


def _time(name: str, time: Any) -> model.Time:
    if name.removeprefix(STAMPED) in DURATIONS:
        seconds, nanos = time
        return (seconds * 10**9 + nanos,)
    return as_row(time)


def _minimum(name: str) -> model.Time:
    name = name.removeprefix(STAMPED)
    return MINIMUM.get(name, (0, 0) if PRODUCT.match(name) else (0,))


def _changes(name: str, event: dict[str, Any]) -> list[tuple[model.Time, int]]:
    return [(_time(name, time), diff) for time, diff in event.get("progress", [])]


def _arrays(changes: list[tuple[model.Time, int]], arity: int) -> tuple[Any, Any]:
    return as_times([t for t, _ in changes], arity), np.array([d for _, d in changes], dtype=np.int64)


@pytest.mark.parametrize("name", _found("expected"))
def test_stream_ends_at_the_frontier_and_counts_of_timely(name: str) -> None:
    *events, last = vectors(capture_file(name, "expected.jsonl"))
    end, minimum = last["end"], _minimum(name)
    state, total = MutableAntichain.from_times([minimum], len(minimum)), ChangeBatch(len(minimum))
    counts = {minimum: 1}
    before = [minimum]
    for event in events:
        if "messages" in event:
            at = event["messages"][0]
            for time in at if version_of(name) == "0.32" else [at]:  # each, where there are several
                assert state.less_equal(_time(name, time)), (event, state.frontier)
        changes = _changes(name, event)
        times, diffs = _arrays(changes, len(minimum))
        moves = state.update_iter(times, diffs)
        total.extend(times, diffs)
        # The oracle knows sets and loops only.
        for time, diff in changes:
            counts[time] = counts.get(time, 0) + diff
        after = model.minima(time for time, count in counts.items() if count > 0)
        assert list(state.frontier) == after, event
        moved = list(zip(map(tuple, moves[0].tolist()), moves[1].tolist(), strict=True))
        assert moved == model.consolidate([(t, -1) for t in before] + [(t, 1) for t in after])
        before = after
    assert list(state.frontier) == sorted(_time(name, t) for t in end["frontier"])
    held, left = state.counts()
    found = list(zip(map(tuple, held.tolist()), left.tolist(), strict=True))
    assert found == sorted((_time(name, t), n) for t, n in end["counts"])
    assert state.is_empty == end["closed"]
    # Only the first capability is given up without having been mentioned.
    assert sum(diff for _, diff in total) == (-1 if end["closed"] else sum(n for _, n in end["counts"]) - 1)


@pytest.mark.parametrize("name", _found("merged"))
def test_merged_streams_move_the_frontier_where_timely_says(name: str) -> None:
    interleavings = [line for line in vectors(capture_file(name, "merged.jsonl")) if "interleaving" in line]
    assert len(interleavings) == 3
    streams = [
        [event for event in vectors(capture_file(f"{name}_w{i}", "expected.jsonl")) if "end" not in event]
        for i in range(1 + max(interleavings[0]["order"]))
    ]
    minimum = _minimum(name)
    for line in interleavings:
        state = MutableAntichain.from_times([minimum] * len(streams), len(minimum))
        seen = [[-1, list(state.frontier)]]
        readers = [iter(stream) for stream in streams]
        for step, stream in enumerate(line["order"]):
            changes = _changes(name, next(readers[stream]))
            _, diffs = state.update_iter(*_arrays(changes, len(minimum)))
            if diffs.size:
                seen.append([step, list(state.frontier)])
        assert all(next(reader, None) is None for reader in readers)
        assert seen == [[step, [as_row(t) for t in frontier]] for step, frontier in line["frontiers"]]
