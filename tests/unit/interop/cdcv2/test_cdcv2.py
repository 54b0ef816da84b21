"""CDCv2: what contradicts itself is refused; a collection goes out and comes back, whatever happens on the way."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import (
    CaptureFormatError,
    InvalidUsageError,
    MultiplicityOverflowError,
    OwnershipError,
    ProtocolError,
    SchemaMismatchError,
)
from spark_timely.interop.cdcv2.conversion import CdcImport, collection_messages, export_collection
from spark_timely.interop.cdcv2.reader import CdcReader, message_lines, read_message
from spark_timely.interop.cdcv2.statements import Statement
from spark_timely.interop.importing import CaptureTypes
from spark_timely.log import MemoryLog
from spark_timely.time.antichain import Antichain
from spark_timely.trace.updates import Updates

TYPES = {"time": "u64", "record": "string"}


def message(line: object) -> Updates | Statement:
    return read_message(json.dumps(line), **TYPES)


def updates(*rows: tuple[str, int, int]) -> dict[str, object]:
    return {"updates": [list(row) for row in rows]}


def progress(lower: list[int], upper: list[int], counts: dict[int, int]) -> dict[str, object]:
    return {"progress": {"lower": lower, "upper": upper, "counts": [[t, n] for t, n in counts.items()]}}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([updates(("a", 1, 1), ("a", 1, 2))], "diffs 1 and 2 of one record"),
        ([updates(("a", 1, 1)), updates(("a", 1, -1))], "diffs -1 and 1 of one record"),
        ([updates(("a", 1, 0))], "a diff of 0"),
        ([progress([0], [5], {1: 1}), updates(("a", 1, 1), ("b", 1, 1))], "2 updates where 1 were stated"),
        ([updates(("a", 1, 1)), progress([0], [5], {2: 1})], "1 updates where 0 were stated"),
        ([progress([0], [5], {1: 1}), progress([0], [3], {1: 2})], "statements of 1 and of 2 updates"),
        ([progress([0], [5], {1: 2}), progress([1], [9], {1: 1})], "statements of 2 and of 1 updates"),
        # Silence is a statement too: of none.
        ([progress([0], [5], {1: 2}), progress([0], [9], {7: 1})], "statements of 2 and of 0 updates"),
        ([progress([0], [5], {2: 1}), progress([1], [9], {2: 1, 3: 1})], "statements of 0 and of 1 updates"),
        ([progress([5], [9], {6: 1}), progress([0], [], {1: 1})], "statements of 0 and of 1 updates"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_messages_that_contradict_one_another_are_refused(lines: list[object], said: str, *, together: bool) -> None:
    reader = CdcReader(**TYPES)
    read = list(map(message, lines[:-1])) if not together else []
    for each in read:
        reader.extend([each])
    with pytest.raises(ProtocolError) as caught:
        reader.extend([message(line) for line in (lines if together else lines[-1:])])
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{",
        '{"updates": [["a", 1]]}',
        '{"updates": [["a", -1, 1]]}',
        '{"updates": [[7, 1, 1]]}',
        '{"updates": [["a", 1, 1.5]]}',
        '{"progress": {"lower": [0], "upper": [1]}}',
        '{"progress": {"lower": 0, "upper": [1], "counts": []}}',
        '{"progress": {"lower": [0], "upper": [1], "counts": [[1, 1]]}}',
        '{"progress": {"lower": [2], "upper": [], "counts": [[1, 1]]}}',
        '{"progress": {"lower": [0], "upper": [], "counts": [[1, -1]]}}',
        '{"progress": {"lower": [0], "upper": [], "counts": [[1, 1], [1, 1]]}}',
        '{"progress": {"lower": [0], "upper": [], "counts": [[1]]}}',
    ],
)
def test_line_that_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(CaptureFormatError, match="could not read a CDCv2 message: found"):
        read_message(line, **TYPES)


def test_reader_keeps_only_what_is_not_complete() -> None:
    reader = CdcReader(**TYPES)
    for t in range(200):
        reader.extend([message(updates((f"r{t}", t, 1))), message(progress([t], [t + 1], {t: 1}))])
        assert reader.pending == 0
        reader.extend([message(updates((f"r{t}", t, 1)))])  # a copy that comes late
        assert reader.pending == 0
    assert reader.frontier.to_json() == [200]


def collection(arity: int = 1, upper: int = 40) -> MemoryLog:
    schema = pa.schema(
        [
            pa.field("k", pa.string(), nullable=False),
            pa.field("n", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ]
    )
    log = MemoryLog.create(schema, times=["long"] * arity, minimum=[0] * arity, kind="collection")
    rng = random.Random(arity)
    rows = [
        (
            [rng.randrange(50) for _ in range(arity)],
            f"k{rng.randrange(4)}",
            rng.choice([None, [], [1, 2]]),
            rng.choice([1, -1, 2]),
        )
        for _ in range(600)
    ]
    table = {name: [row[0][i] for row in rows] for i, name in enumerate(log.domain.columns)}
    table |= {"k": [row[1] for row in rows], "n": [row[2] for row in rows], "_diff": [row[3] for row in rows]}
    typed = pa.table(
        {name: pa.array(v, schema.field(name).type if name in schema.names else None) for name, v in table.items()}
    )
    log.writer(owner="me").append(typed, advance_to=[upper] if arity == 1 else [[upper, 0], [0, upper]])
    return log


def contents(log: MemoryLog, upper: object) -> dict[object, int]:
    """Return the sum of diffs per time and record, by a dictionary."""
    found: dict[object, int] = {}
    for row in log.messages(upper=upper).to_pylist():
        key = (tuple(row[name] for name in log.domain.columns), row["k"], None if row["n"] is None else tuple(row["n"]))
        found[key] = found.get(key, 0) + row["_diff"]
    return {key: n for key, n in found.items() if n}


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("files", [1, 3])
def test_collection_comes_back_from_a_careless_messenger(arity: int, files: int, tmp_path: Path) -> None:
    log = collection(arity)
    time, record = ("u64", "product<u64, u64>")[arity - 1], "{k: string, n: option<vec<i64>>}"
    types = CaptureTypes.parse(time, record)
    written = export_collection(log, tmp_path, files=files, types=types, stretch_rows=50)
    wanted = contents(log, log.frontier().to_json())
    assert sum(each.records for each in written) == len(wanted)
    lines = [line for each in written for line in Path(each.path).read_text().splitlines()]
    rng = random.Random(files)
    other = MemoryLog.create(types.payload, times=["long"] * arity, minimum=[0] * arity, kind="collection")
    for _ in range(3):  # the consumer is killed twice; the messenger begins again, in another order, with copies
        task = CdcImport(other, "main", types)
        sent = lines + rng.sample(lines, len(lines) // 3)
        rng.shuffle(sent)
        for first in range(0, len(sent) if task.frontier == log.frontier() else len(sent) * 2 // 3, 5):
            task.extend([read_message(line, time=time, record=record) for line in sent[first : first + 5]])
    task = CdcImport(other, "main", types)
    task.extend([read_message(line, time=time, record=record) for line in lines])
    assert (other.frontier(), task.pending) == (log.frontier(), 0)
    assert contents(other, other.frontier().to_json()) == wanted
    assert other.messages().num_rows == len(wanted)
    assert other.verify().legal


@pytest.mark.parametrize("diffs", [(1, 1), (1, -1), ((1 << 63) - 1, 1)])
def test_both_zeros_are_one_record_and_no_sum_wraps_around(diffs: tuple[int, int]) -> None:
    log = MemoryLog.create(pa.schema([("x", pa.float64())]), kind="collection", minimum=(0,))
    rows = pa.table({"_time": [1, 1], "_diff": diffs, "x": [-0.0, 0.0]})
    log.writer(owner="me").append(rows, advance_to=2)
    types = {"time": "u64", "record": "{x: f64}"}
    if sum(diffs) >= 1 << 63:
        with pytest.raises(MultiplicityOverflowError, match=f"count={1 << 63}"):
            list(collection_messages(log))
        return
    lines = list(message_lines(collection_messages(log), **types))
    output = CdcReader(**types).extend([read_message(line, **types) for line in lines])
    assert output is not None
    assert output.frontier == Antichain.of(2)
    found = zip(output.updates.rows["x"].to_pylist(), output.updates.diffs.tolist(), strict=True)
    assert list(found) == ([(0.0, 2)] if sum(diffs) else [])


def test_part_of_a_collection_ends_where_it_was_asked_to() -> None:
    log = collection()
    (*_, last) = collection_messages(log, up_to=17)
    assert isinstance(last, Statement)
    assert last.upper.to_json() == [17]
    (*_, last) = collection_messages(log, up_to=99)
    assert last.upper.to_json() == [40]  # what is open is not said to be complete


def test_streams_and_collections_are_told_apart(tmp_path: Path) -> None:
    stream = MemoryLog.create(pa.schema([("k", pa.string())]), minimum=(0,))
    with pytest.raises(InvalidUsageError, match="found kind='stream'"):
        list(collection_messages(stream))
    with pytest.raises(InvalidUsageError, match="found kind='stream'"):
        CdcImport(stream, "main", CaptureTypes.parse("u64", "string"))


def test_stream_that_is_no_import_of_these_types_is_refused() -> None:
    types = CaptureTypes.parse("u64", "string")
    log = MemoryLog.create(types.payload, minimum=(0,), kind="collection")
    log.writer(owner="me")
    with pytest.raises(OwnershipError):
        CdcImport(log, "main", types)


def test_refused_messages_open_no_stream_and_make_no_log() -> None:
    types = CaptureTypes.parse("u64", "string")
    log = MemoryLog.create(types.payload, minimum=(0,), kind="collection")
    made: list[MemoryLog] = []

    def make() -> MemoryLog:
        made.append(log)
        return log

    for target in (log, make):
        with pytest.raises(ProtocolError, match="not consolidated"):
            CdcImport(target, "w", types).extend([message(updates(("a", 1, 1))), message(updates(("a", 1, 2)))])
    assert (dict(log.streams()), made) == ({}, [])
    task = CdcImport(make, "w", types)
    task.extend([message(updates(("a", 1, 1)))])
    assert (task.pending, made) == (1, [])
    task.extend([message(progress([0], [], {1: 1}))])
    assert (task.added, log.frontier().is_empty, made) == (1, True, [log])


def test_messages_are_lines_and_lines_are_messages() -> None:
    line = {"progress": {"lower": [0], "upper": [], "counts": [[1, 2], [5, 1]]}}
    assert [json.loads(each) for each in message_lines([message(line)], **TYPES)] == [line]


def test_log_that_begins_later_refuses_what_it_could_not_hold() -> None:
    # It was passed over as a copy, and the log was complete without it.
    types = CaptureTypes.parse("u64", "string")
    lines = [updates(("a", 5, 1)), progress([0], [], {5: 1})]
    for line in lines:
        log = MemoryLog.create(types.payload, minimum=100, kind="collection")
        with pytest.raises(ProtocolError, match="found an update at time=5") as caught:
            CdcImport(log, "main", types).extend([message(line)])
        assert "begins at 100" in caught.value.hint
        assert log.frontier().elements == ((100,),)
    task = CdcImport(log, "main", types)
    task.extend([message(progress([0], [101], {})), message(progress([101], [], {}))])
    assert task.frontier.is_empty


def test_log_with_times_of_more_coordinates_is_refused() -> None:
    types = CaptureTypes.parse("u64", "string")
    log = MemoryLog.create(types.payload, times=("long", "long"), minimum=(0, 0), kind="collection")
    with pytest.raises(SchemaMismatchError, match="times of 2 coordinates"):
        CdcImport(log, "main", types)
