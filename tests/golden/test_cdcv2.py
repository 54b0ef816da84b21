"""CDCv2 messages in every order, with copies and with gaps: what comes out is what differential's reader gave."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from spark_timely.interop.cdcv2.reader import CdcReader, Output, message_lines, read_message
from spark_timely.interop.records import records_to_rows
from spark_timely.interop.schema import parse_type
from tests.oracles.golden import vectors

pytestmark = pytest.mark.golden

TIMES = {"u64": "u64", "product": "product<u64, u64>"}
CASES = [(file, i, case) for file in ("cdcv2_iter", "cdcv2_sink") for i, case in enumerate(vectors(f"{file}.jsonl"))]
IDS = [f"{file}-{i}-{case['time']}-{case['mode']}" for file, i, case in CASES]


def plain(time: Any) -> Any:
    return tuple(time) if isinstance(time, list) else (time,)


def rows_of(output: Output, reader: CdcReader) -> list[Any]:
    updates = output.updates
    rows = records_to_rows(updates.rows, parse_type("string"))
    to_json = reader.times.to_json
    found = zip(rows, map(to_json, updates.times.tolist()), updates.diffs.tolist(), strict=True)
    return sorted([list(each) for each in found], key=lambda row: (row[0], plain(row[1]), row[2]))


def outputs_of(case: dict[str, Any], messages: list[Any]) -> tuple[list[Any], CdcReader]:
    types = {"time": TIMES[case["time"]], "record": "string"}
    reader = CdcReader(**types)
    found = []
    for number, message in enumerate(messages, 1):
        output = reader.extend([read_message(json.dumps(message), **types)])
        if output is not None:
            frontier = sorted(plain(reader.times.to_json(time)) for time in output.frontier)
            found.append((number, rows_of(output, reader), frontier))
    return found, reader


def complete_at(case: dict[str, Any]) -> list[Any]:
    """Return the updates that the messages say, by sets alone."""
    return sorted({(u[0], plain(u[1]), u[2]) for m in case["messages"] for u in m.get("updates", [])})


@pytest.mark.parametrize(("file", "i", "case"), CASES, ids=IDS)
def test_each_message_reconstructs_what_differential_gave(file: str, i: int, case: dict[str, Any]) -> None:
    del file, i
    found, reader = outputs_of(case, case["messages"])
    if case["mode"] == "dup_inside_message":
        # Here differential loses updates, or passes too soon; copies are copies wherever they are.
        assert sorted((row[0], plain(row[1]), row[2]) for _, rows, _ in found for row in rows) == complete_at(case)
        assert reader.frontier.is_empty
        return
    wanted = [
        (each["after_messages"], each["updates"], sorted(plain(time) for time in each["frontier"]))
        for each in case["outputs"]
    ]
    assert [(number, sorted(rows, key=str), frontier) for number, rows, frontier in found] == [
        (number, sorted(rows, key=str), frontier) for number, rows, frontier in wanted
    ]
    assert sorted(plain(reader.times.to_json(t)) for t in reader.frontier) == sorted(
        plain(t) for t in case["final_frontier"]
    )
    if case["complete"]:
        rows = sorted((row for _, each, _ in found for row in each), key=str)
        assert rows == sorted(case["all_updates_sorted"], key=str)
        assert reader.pending == 0


@pytest.mark.parametrize(("file", "i", "case"), CASES[::29], ids=IDS[::29])
def test_any_other_order_and_any_batches_give_the_same(file: str, i: int, case: dict[str, Any]) -> None:
    rng = random.Random(f"{file}{i}")
    types = {"time": TIMES[case["time"]], "record": "string"}
    _, wanted = outputs_of(case, case["messages"])
    read = [read_message(json.dumps(message), **types) for message in case["messages"]]
    for _ in range(2):
        reader = CdcReader(**types)
        mixed = read + rng.sample(read, len(read) // 3)
        rng.shuffle(mixed)
        rows = []
        while mixed:
            n = rng.randrange(1, 6)
            output = reader.extend(mixed[:n])
            rows += [] if output is None else rows_of(output, reader)
            mixed = mixed[n:]
        assert (reader.frontier, reader.pending) == (wanted.frontier, wanted.pending)
        complete = [
            row
            for row in complete_at(case)
            if not wanted.frontier.less_equal(wanted.times.from_json(row[1][0] if len(row[1]) == 1 else list(row[1])))
        ]
        assert sorted((row[0], plain(row[1]), row[2]) for row in rows) == complete


@pytest.mark.parametrize(("file", "i", "case"), CASES[::23], ids=IDS[::23])
def test_reader_begun_where_its_output_ended_gives_the_rest(file: str, i: int, case: dict[str, Any]) -> None:
    del file, i
    found, whole = outputs_of(case, case["messages"])
    types = {"time": TIMES[case["time"]], "record": "string"}
    half = CdcReader(**types)
    read = [read_message(json.dumps(message), **types) for message in case["messages"]]
    first = half.extend(read[: len(read) // 2])
    rows = [] if first is None else rows_of(first, half)
    later = CdcReader(**types, frontier=half.frontier)
    second = later.extend(read)
    rows += [] if second is None else rows_of(second, later)
    assert later.frontier == whole.frontier
    assert sorted(rows, key=str) == sorted((row for _, each, _ in found for row in each), key=str)


def test_messages_are_written_as_they_were_read() -> None:
    for _, _, case in CASES:
        types = {"time": TIMES[case["time"]], "record": "string"}
        read = [read_message(json.dumps(message), **types) for message in case["messages"]]
        assert [json.loads(line) for line in message_lines(read, **types)] == [_sorted(m) for m in case["messages"]]


def _sorted(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its antichains and counts in order: these are sets."""
    if "updates" in message:
        return message
    facts = message["progress"]
    return {"progress": {name: sorted(facts[name]) for name in facts}}
