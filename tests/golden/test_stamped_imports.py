"""Captures of the real timely 0.32, imported: each record at the time that a plain model gives it, or refused there."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from spark_timely.errors import CaptureFormatError
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.schema import columns_of
from spark_timely.log import MemoryLog
from tests.oracles import stamp_model
from tests.oracles.golden import capture_file, golden_bytes, stamped_captures, types_of, vectors

pytestmark = pytest.mark.golden

# Times that the model compares as they are: integers from 0 on, and products of them.
NAMES = [name for name in stamped_captures() if types_of(name)[0] in ("u64", "product<u64, u64>")]
TOO_LATE = "v032/j1_odd_stamps"  # one of its stamps has the time 2^64 - 1


def imported(name: str, *, commit_bytes: int = 1 << 20, stamps: str = "refuse", unstamped: str = "refuse") -> Any:
    types = CaptureTypes.parse(*types_of(name), timely="0.32", stamps=stamps)
    domain = types.layout.domain
    log = MemoryLog.create(types.payload, times=[type_.value for type_ in domain.types], minimum=domain.minimum)
    task = StreamImport(log, "w", types, name="x", commit_bytes=commit_bytes, unstamped=unstamped)  # type: ignore[arg-type]
    done = task.take_whole(io.BytesIO(golden_bytes(capture_file(name, "bin"))))
    return log, types, done


def rows_of(table: Any, log: MemoryLog, types: CaptureTypes) -> list[tuple[tuple[int, ...], Any]]:
    """Return rows as (time, record as JSON)."""
    columns = [table.column(name).to_pylist() for name in log.domain.columns]
    payload = [name for name, _ in columns_of(types.record)]
    values = [[plain(value) for value in table.column(name).to_pylist()] for name in payload]
    records = [list(row) if len(row) > 1 else row[0] for row in zip(*values, strict=True)]
    return list(zip(zip(*columns, strict=True), records, strict=True))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [plain(part) for part in value.values()]
    return int(value) if value is not None and not isinstance(value, str) else value


def key(pair: Any) -> str:
    return json.dumps(pair)


@pytest.mark.parametrize("options", ["refuse", "column", "dead-letter", "drop"])
@pytest.mark.parametrize("name", NAMES)
def test_records_of_stamped_captures_are_where_a_model_has_them(name: str, options: str) -> None:
    *events, last = vectors(capture_file(name, "expected.jsonl"))
    time, _ = types_of(name)
    minimum = (0,) if time == "u64" else (0, 0)
    keep, set_apart = options != "refuse", options in ("dead-letter", "drop")
    given: dict[str, Any] = {"stamps": "column" if keep else "refuse", "unstamped": options if set_apart else "refuse"}
    updates = name.startswith("v032/i")
    wanted = stamp_model.run(events, minimum, updates=updates, keep=keep, unstamped=set_apart)
    if wanted.refused is not None:
        with pytest.raises(CaptureFormatError) as caught:
            imported(name, **given)
        assert (caught.value.event, caught.value.context["times"]) == wanted.refused
        return
    if name == TOO_LATE and keep:  # no column of a log holds it
        with pytest.raises(CaptureFormatError, match=r"2\^63"):
            imported(name, **given)
        return
    for commit_bytes in (1 << 20, 500):
        log, types, done = imported(name, commit_bytes=commit_bytes, **given)
        rows = log.messages()
        assert sorted(map(key, rows_of(rows, log, types))) == sorted(map(key, wanted.rows))
        assert log.frontier().is_empty == last["end"]["closed"]
        assert log.verify().legal
        assert (done.dropped, done.dead) == (
            len(wanted.unstamped) if options == "drop" else 0,
            len(wanted.unstamped) if options == "dead-letter" else 0,
        )
        letters = rows_of(log.dead(), log, types) if log.dead().num_rows else []
        assert sorted(key(row) for _, row in letters) == sorted(map(key, wanted.unstamped))[: done.dead]
        if keep:
            found = [
                [list(time.values()) if isinstance(time, dict) else [time] for time in stamp]
                for stamp in rows.column("stamp").to_pylist()
            ]
            assert sorted(map(key, found)) == sorted(map(key, wanted.stamps))


def test_vectors_have_what_the_rules_are_for() -> None:
    found = dict.fromkeys(("updates", "empty", "several", "partial"), 0)
    for name in NAMES:
        *events, _ = vectors(capture_file(name, "expected.jsonl"))
        sizes = [len(event["messages"][0]) for event in events if "messages" in event and event["messages"][1]]
        found["updates"] += name.startswith("v032/i") and max(sizes) > 1
        found["empty"] += 0 in sizes
        found["several"] += types_of(name)[0] == "u64" and max(sizes, default=0) > 1
        found["partial"] += types_of(name)[0] != "u64" and max(sizes, default=0) > 1
    assert all(found.values()), found
