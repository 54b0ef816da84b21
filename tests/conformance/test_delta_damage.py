"""Logs that are damaged, or hold what an illegal writer left: found and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import spark_timely as st
from spark_timely.errors import (
    DataLossError,
    ForeignChangeError,
    LogDamagedError,
    NegativeCountError,
    StorageError,
)
from spark_timely.log import MemoryLog
from spark_timely.log.files.parquet import message_table, write_data_files, write_progress_file
from spark_timely.log.log import Log, create_log, open_log
from spark_timely.log.machine.state import DataFile, batch_rows, next_state
from spark_timely.log.store import delta as delta_store
from spark_timely.log.store.base import MemoryStore
from spark_timely.protocol.note import Note, Opening
from spark_timely.protocol.rules import StreamCounts
from spark_timely.sink.plan import find_log
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import VALUES, LogMaker, filled

# Damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["delete", "cut", "overwrite"])
def test_damaged_message_file_is_named(path: Path, damage: str) -> None:
    log = filled(path)
    name = log.core.files().paths[0]
    file = path / name
    if damage == "delete":
        file.unlink()
    else:
        content = file.read_bytes()
        file.write_bytes(content[:-9] if damage == "cut" else b"x" * len(content))
    with pytest.raises(DataLossError, match=name):
        log.messages()
    report = log.verify()
    assert not report.legal
    assert name in report.problems[0]
    # What the damaged file does not hold can still be read, and the stream goes on.
    log.writer(owner="me").append(pa.table({"_time": [9], "v": [9]}), advance_to=10)
    assert open_log(path).frontier() == Antichain.of(10)


def test_damaged_progress_file_is_named(path: Path) -> None:
    filled(path)
    log = open_log(path)
    index = log.core.progress_files()
    newest = index.paths[(index.stream_lo == "main") & (index.seq_hi == 3)][0]
    (path / newest).unlink()
    with pytest.raises(DataLossError, match=newest):
        log.frontier()


@pytest.mark.parametrize("content", ["{broken", '{"add": {}}\n{"commitInfo": ', "\x00" * 9])
def test_damaged_entry_of_the_tables_log_is_named(path: Path, content: str) -> None:
    log = filled(path)
    entry = path / "_delta_log" / f"{DeltaTable(path).version() + 1:020d}.json"
    entry.write_text(content)
    for use in (lambda: open_log(path), lambda: log.advance("main", 9)):
        with pytest.raises(
            StorageError, match=f"found entry '_delta_log/{entry.name}' of the table's log broken"
        ) as told:
            use()
        assert "\n" not in str(told.value)


def test_damaged_checkpoint_is_named(path: Path) -> None:
    log = filled(path)
    for i in range(4, 60):
        log.advance("main", i)
    newest = max((path / "_delta_log").glob("*.checkpoint.parquet"))
    newest.write_bytes(newest.read_bytes()[:99])
    with pytest.raises(StorageError, match=f"entry '_delta_log/{newest.name}' of the table's log broken"):
        open_log(path)


def entry_of(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def written(log: Log, *times: int) -> None:
    """Append a row at each time as the owner of the stream, a commit for each."""
    for time in times:
        log.writer("main", owner="me").append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)


def append_as_you(log: Log) -> object:
    return log.writer("other", owner="you").append(pa.table({"_time": [50], "v": [50]}), advance_to=51)


def add_a_column(log: Log) -> object:
    return log.add_columns(pa.schema([("w", pa.int64())]))


# What reads, and what writes, from a handle that has not seen what is behind a missing entry.
BEHIND: dict[str, Callable[[Log], object]] = {
    "refresh": lambda log: log.refresh(),
    "append to its stream": lambda log: written(log, 30),
    "append to another stream": append_as_you,
    "advance": lambda log: log.advance("main", 30),
    "compact": lambda log: log.compact(min_files=2),
    "columns": add_a_column,
    "peek": lambda log: st.peek(log, as_of=30, timeout_s=0),
    "wait": lambda log: st.wait(log, time=30, timeout_s=0),
    "subscribe": lambda log: st.subscribe(log, as_of=0).next_batch(timeout_s=0),
}


@pytest.mark.parametrize("missing", [1, 2, 3])
@pytest.mark.parametrize("use", BEHIND)
def test_nothing_is_read_past_a_missing_entry_or_put_there(path: Path, use: str, missing: int) -> None:
    created = create_log(path, VALUES, minimum=(0,), streams=2)
    written(created, 1)
    created.writer("other", owner="you").advance(1)
    behind = open_log(path)
    written(created, *range(2, 9))
    for version in range(behind.core.version + 2, behind.core.version + 2 + missing):
        entry_of(path, version).unlink()
    first = entry_of(path, behind.core.version + 2)
    before = sorted(each.name for each in first.parent.glob("*.json"))
    with pytest.raises(
        LogDamagedError, match=f"found entry '_delta_log/{first.name}' of the table's log broken: .*missing"
    ):
        BEHIND[use](behind)
    assert sorted(each.name for each in first.parent.glob("*.json")) == before
    assert behind.core.has_news()


def test_missing_entry_in_a_store_is_looked_for_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = LogMaker("cloud", tmp_path)
    log = maker.create()
    written(log, 1)
    behind = maker.another(log)
    written(log, 2, 3, 4)
    lost = f"{behind.core.version + 1:020d}.json"
    behind.core.storage.delete(f"_delta_log/{lost}")
    before = behind.core.storage.names("_delta_log")
    monkeypatch.setattr(delta_store, "_SEEN_S", 1e-9)  # a minute is over
    with pytest.raises(LogDamagedError, match=f"'_delta_log/{lost}' .* broken: version=.* is missing, and version="):
        written(behind, 5)
    assert behind.core.storage.names("_delta_log") == before


@pytest.mark.parametrize("at", [1, 3, -2])
@pytest.mark.parametrize(
    "use", [open_log, lambda path: create_log(path, VALUES, exist_ok=True), lambda path: st.peek(path, as_of=1)]
)
def test_missing_entry_is_damage_at_opening(path: Path, use: Callable[[Path], object], at: int) -> None:
    filled(path)
    entry = sorted((path / "_delta_log").glob("*.json"))[at]
    entry.unlink()
    with pytest.raises(
        LogDamagedError, match=f"found entry '_delta_log/{entry.name}' .* broken: version=.* is missing"
    ):
        use(path)


def test_handle_that_has_read_past_a_missing_entry_continues(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,))
    written(log, *range(1, 6))
    reader, content = open_log(path), entry_of(path, 3).read_bytes()
    entry_of(path, 3).unlink()
    written(log, *range(6, 30))
    assert log.messages()["v"].to_pylist() == list(range(1, 30))
    reader.refresh()
    assert reader.messages()["v"].to_pylist() == list(range(1, 30))
    entry_of(path, 3).write_bytes(content)
    assert open_log(path).messages()["v"].to_pylist() == list(range(1, 30))
    assert open_log(path).verify().legal


def test_entry_that_comes_late_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path)
    behind = open_log(path)
    written(log, 20, 21, 22)
    entry = entry_of(path, behind.core.version + 1)
    content = entry.read_bytes()
    entry.unlink()
    monkeypatch.setattr(behind.core.store, "_pause", lambda _: entry.write_bytes(content))
    behind.refresh()
    assert behind.frontier() == log.frontier()


@pytest.mark.parametrize("use", [open_log, lambda url: create_log(url, VALUES), lambda url: find_log(url, {})])
def test_store_that_cannot_be_reached_is_told_in_one_line(use: Callable[[str], Any]) -> None:
    with pytest.raises(StorageError, match=r"hdfs://nn/log.*an unknown scheme") as told:
        use("hdfs://nn/log")
    assert "\n" not in str(told.value)
    assert "\x1b" not in str(told.value)
    assert "x1b" not in str(told.value)


# What an illegal writer leaves --------------------------------------------------------------------


def smuggle(log: MemoryLog, adds: Sequence[DataFile], removes: Sequence[DataFile] = ()) -> None:
    """Commit without any check."""
    log.core.store.transact(adds, [], removes=removes)
    log.core.store.refresh()


FROM_NOWHERE = {
    "a stream from nowhere": None,
    "a stream from one that is not there": Opening("y", 0),
    "a stream from a commit to come": Opening("main", 4),
    "a stream from a claim to come": Opening("#open", 9),
    "a stream from a claim for another": Opening("#open", 1),
}


def illegal(what: str) -> MemoryLog:
    log = MemoryLog.create(VALUES, minimum=(0,), merge_every=None)
    writer = log.writer(owner="me")
    for i in range(1, 4):
        writer.append(pa.table({"_time": [i, i + 1], "v": [i, i]}), advance_to=i)
    state = log.core.stream("main")
    assert state is not None
    store = log.core.store
    assert isinstance(store, MemoryStore)
    live = store.table.files
    if what == "messages behind the frontier":
        times = np.array([[1]])
        table = message_table(log.core.format, pa.table({"v": [0]}), times, "main", 4)
        files = write_data_files(log.core.storage, table, times, stream="main", seq=4, domain=log.domain)
        after = next_state(state, state.counts, n_rows=1, bounds=np.array([[1], [1]]), note=Note())
        smuggle(
            log,
            [*files, write_progress_file(log.core.storage, batch_rows(log.core.format, after), "main", 4, log.domain)],
        )
    elif what == "messages without progress":
        times = np.array([[7]])
        table = message_table(log.core.format, pa.table({"v": [0]}), times, "main", 9)
        smuggle(log, write_data_files(log.core.storage, table, times, stream="main", seq=9, domain=log.domain))
    elif what == "a message file lost":
        smuggle(log, [], [next(f for p, f in live.items() if p.startswith("_event=message/main-000000000002"))])
    elif what == "a message file twice":
        found = next(f for p, f in live.items() if p.startswith("_event=message/main-000000000002"))
        log.core.storage.write("_event=message/copy.parquet", log.core.storage.read(found.path))
        smuggle(log, [DataFile("_event=message/copy.parquet", *(getattr(found, n) for n in found.__slots__[1:]))])
    elif what == "a commit lost":
        smuggle(log, [], [next(f for p, f in live.items() if p.startswith("_event=progress/main-000000000002"))])
    elif what == "progress at an unheld time":
        after = next_state(state, StreamCounts.initial(1), n_rows=0, bounds=None, note=Note())
        smuggle(log, [write_progress_file(log.core.storage, batch_rows(log.core.format, after), "main", 4, log.domain)])
    elif what in FROM_NOWHERE:
        new = replace(state, stream="x", seq=0, n_rows=0, bounds=None, note=Note(opening=FROM_NOWHERE[what]))
        smuggle(log, [write_progress_file(log.core.storage, batch_rows(log.core.format, new), "x", 0, log.domain)])
    elif what == "a copy that its donor did not allow":
        new = replace(
            state,
            stream="x",
            seq=0,
            n_rows=0,
            bounds=None,
            note=Note(opening=Opening("main", 3)),
            counts=StreamCounts.initial(2),
            before=StreamCounts.empty(),
        )
        smuggle(log, [write_progress_file(log.core.storage, batch_rows(log.core.format, new), "x", 0, log.domain)])
    return log


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("nothing", None),
        ("messages behind the frontier", "send a message at time=1"),
        ("messages without progress", "seq=9 have no progress"),
        ("a message file lost", "found 0 messages, its progress says 2"),
        ("a message file twice", "found 4 messages, its progress says 2"),
        ("a commit lost", r"lacks commits \[2\] of 4"),
        ("progress at an unheld time", "raise the count of time=1"),
        *((what, "stream 'x' was opened by nobody") for what in FROM_NOWHERE),
        ("a copy that its donor did not allow", "times that its donor does not hold"),
    ],
)
def test_verify_finds_what_is_illegal(what: str, found: str | None) -> None:
    report = illegal(what).verify()
    if found is None:
        assert report.legal
    else:
        assert not report.legal
        assert any(re.search(found, problem) for problem in report.problems), report.problems


def test_counts_below_zero_are_refused_on_reading() -> None:
    log = illegal("nothing")
    state = log.core.stream("main")
    assert state is not None
    rows = batch_rows(log.core.format, next_state(state, state.counts, n_rows=0, bounds=None, note=Note()))
    place = rows.schema.get_field_index("_count")
    rows = rows.set_column(place, rows.schema.field(place), pa.array([-1], pa.int64()))
    smuggle(log, [write_progress_file(log.core.storage, rows, "main", 4, log.domain)])
    with pytest.raises(NegativeCountError):
        log.frontier()


def test_overwrite_by_others_is_told(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    rows = DeltaTable(log.path).to_pyarrow_table(filters=[("_event", "=", "message")])
    write_deltalake(log.path, rows, mode="overwrite")
    found = rf"found rows changed by another program: version={log.core.version + 1} \(WRITE\) with .* in the place of"
    with pytest.raises(ForeignChangeError, match=rf"{found}.*RESTORE TABLE … TO VERSION AS OF {log.core.version};"):
        open_log(log.path).frontier()
    DeltaTable(log.path).restore(log.core.version)
    assert open_log(log.path).frontier() == log.frontier()
