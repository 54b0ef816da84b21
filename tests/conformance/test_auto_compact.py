"""Merging of small message files by the way: which, when, and that nobody is disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_timely as st
from spark_timely.conf.options import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.planner import ReplayPlanner
from spark_timely.datasource.reader import read_split
from spark_timely.errors import DataLossError, LogDamagedError, StorageError
from spark_timely.log import Log, compaction
from spark_timely.log.files.parquet import message_table, write_data_files
from spark_timely.log.machine.state import CommitRequest
from spark_timely.log.reader import events_of
from tests.conformance.logs import NOTHING, LogMaker, frozen, rows
from tests.unit.sink.driver import SinkDriver
from tests.unit.sink.driver import rows as sink_rows


@pytest.fixture(params=["memory", "delta"])
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> LogMaker:
    return LogMaker(request.param, tmp_path)


def trickle(log: Log, commits: int, *, lateness: int = 5) -> None:
    writer = log.writer(owner="me")
    for i in range(1, commits + 1):
        at = i + lateness
        writer.append(rows((at, i), (at - i % lateness, i)), advance_to=i)


def test_files_stay_few_and_nothing_changes(maker: LogMaker) -> None:
    merged, plain = maker.create(merge_every=10), maker.create(merge_every=10, auto_compact=False)
    for log in (merged, plain):
        trickle(log, 93)
    assert len(plain.core.files()) == 93
    assert len(plain.core.progress_files()) < 30, "progress is merged all the same"
    assert len(merged.core.files()) < 30
    assert merged.verify().digest == plain.verify().digest
    assert [s.n_rows for s, _ in events_of(merged.core)] == [s.n_rows for s, _ in events_of(plain.core)]


def test_files_of_open_times_are_left_alone_until_they_are_many(maker: LogMaker) -> None:
    log = maker.create(merge_every=10)
    writer = log.writer(owner="me")
    for i in range(1, 26):
        writer.append(rows((i, i)), advance_to=max(0, i - 8))
    index = log.core.files()
    done = ~log.frontier().beyond(index.max_times)
    assert (index.rows[~done] == 1).all(), "a replay that keeps up still has to read these"
    assert (index.rows[done] > 1).any()
    held = maker.create(merge_every=10)
    writer = held.writer(owner="me")
    for i in range(1, 100):
        writer.append(rows((i, i)))
    assert len(held.core.files()) < 60
    assert held.verify().messages == 99


def test_work_of_one_merge_is_bounded(maker: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_MERGE_ROWS", 12)
    read: list[int] = []
    merge = compaction._merge_data

    def watched(log: Any, index: Any, *args: Any, **more: Any) -> bool:
        read.append(int(index.rows.sum()))
        return merge(log, index, *args, **more)

    monkeypatch.setattr(compaction, "_merge_data", watched)
    log = maker.create(merge_every=10)
    trickle(log, 60)
    assert read
    assert max(read) <= 12
    assert len(read) <= 6, "one merge at a time"
    assert log.verify().messages == 120


@pytest.mark.parametrize("error", [StorageError("could not write", determinate=False), OSError("disk full")])
def test_merge_that_fails_leaves_the_commit_alone(
    maker: LogMaker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: Any, **more: Any) -> bool:
        raise error

    log = maker.create(merge_every=10)
    with monkeypatch.context() as broken:
        broken.setattr(compaction, "_merge_data", fail)
        trickle(log, 25)
    assert log.verify().messages == 50
    state = log.core.stream("main")
    assert state is not None
    trickle(maker.another(log), 0)
    writer = maker.another(log).writer(owner="me")
    for i in range(26, 41):
        writer.append(rows((i + 5, i)), advance_to=i)
    assert len(maker.another(log).core.files()) < 25, "tried again later"


def test_lost_race_is_tried_later(maker: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    log = maker.create(merge_every=10, streams=2)
    other = maker.another(log).writer("other", owner="other")
    count = iter(range(1000))
    # Of the class: a merge may have a handle of its own.
    transact = type(log.core.store).transact
    busy = [True]

    def raced(store: Any, adds: Any, apps: Any, **more: Any) -> None:
        if more.get("exclusive") and busy[0]:
            busy[0] = False  # for what the other one merges
            other.append(rows((next(count), 0)))
            busy[0] = True
        transact(store, adds, apps, **more)

    monkeypatch.setattr(type(log.core.store), "transact", raced)
    writer = log.writer("main", owner="me")
    for i in range(1, 31):
        writer.append(rows((i, i)), advance_to=i)
    assert len(log.core.files().select(log.core.files().stream_lo == "main")) == 30, "somebody was first each time"
    busy[0] = False
    for i in range(31, 41):
        writer.append(rows((i, i)), advance_to=i)
    log.refresh()  # where the merge was made by a handle of its own
    index = log.core.files()
    # The other stream holds the log's frontier at the minimum: only because they are many.
    assert (index.stream_lo == "main").sum() < 40
    assert log.verify().legal


@pytest.mark.parametrize("choice", ["inline", "off"])
def test_sink_takes_the_option(tmp_path: Path, choice: str) -> None:
    query = SinkDriver(tmp_path, timeColumn="t", frontier="bounded", lateness="1", autoCompact=choice)
    for i in range(101):
        query.run([sink_rows([i], i)])
    log = query.log()
    # The opening is commit 0: one merge, after the hundredth.
    assert (len(log.core.files()) < 10) == (choice == "inline")
    assert len(log.core.files()) == 101 or choice == "inline"
    assert log.verify().messages == 101


def test_replay_in_flight_survives_a_merge_and_a_vacuum(tmp_path: Path) -> None:
    log = st.create_log(tmp_path / "log", pa.schema([("v", pa.int64())]), minimum=(0,), merge_every=10)
    trickle(log, 9)
    options = parse_options(SOURCE_OPTIONS, {"path": log.path, "pollInterval": "0ms"})

    def planner() -> ReplayPlanner:
        return ReplayPlanner(st.open_log(log.path), options)

    def read(splits: Any) -> list[int]:
        layout = planner().layout
        batches = [b for s in splits for b in read_split(s, layout, storage=log.core.storage, pause=lambda _: None)]
        return sorted(value for batch in batches for value in batch.column("v").to_pylist())

    first = planner()
    start = first.initial()
    end = first.latest(start)
    planned = first.plan(start, end)
    expected = read(planned)
    writer = log.writer(owner="me")
    for i in range(10, 31):
        writer.append(rows((i + 5, i)), advance_to=i)
    live = set(log.core.files().paths.tolist())
    used = {piece.path for split in planned for piece in split.pieces}
    assert used - live, "what was planned was merged meanwhile"
    assert read(planned) == expected
    DeltaTable(log.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(DataLossError, match="missing"):
        read(planned)
    # The micro-batch fails, and is planned again from the offsets that were logged.
    again = planner().plan(start, end)
    assert {piece.path for split in again for piece in split.pieces} <= live
    assert read(again) == expected
    assert np.array_equal(sorted(expected), expected)


# Columns that the log lacks -----------------------------------------------------------------------


def strange(log: Log, columns: pa.Schema, value: Any, at: int) -> None:
    """Commit a file with a column that the log lacks, as one is left behind where the entry of a column was lost."""
    state = log.core.stream("main")
    assert state is not None
    form = log.core.format.extended(columns)
    times = np.array([[at]])
    payload = pa.table({"v": [at], columns.names[0]: pa.array([value], columns.types[0])})
    whole = message_table(form, payload, times, "main", state.seq + 1)
    where: dict[str, Any] = {"stream": "main", "seq": state.seq + 1, "domain": log.domain}
    log.core.commit(
        CommitRequest("main", "me", *NOTHING, files=write_data_files(log.core.storage, whole, times, **where))
    )


@pytest.mark.parametrize("inline", [False, True])
def test_file_with_a_column_that_the_log_lacks_is_not_merged(
    maker: LogMaker, caplog: pytest.LogCaptureFixture, *, inline: bool
) -> None:
    log = maker.create(merge_every=4 if inline else None, auto_compact=inline)
    columns = pa.schema([("note", pa.string())])
    writer = log.writer(owner="me")
    for i in range(1, 3):
        writer.append(rows((i, i)))
    strange(log, columns, "hello", 3)
    if inline:
        # The merge is refused, and the commit it comes with is made.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "_HELD", 1)
            writer.append(rows((4, 4)))
        (problem,) = log.core.upkeep_problems()
        assert "could not merge file" in problem
        assert "found columns=['note'] that the log lacks" in caplog.text  # whole, however long the path is
    else:
        writer.append(rows((4, 4)))
        before = frozen(log)
        with pytest.raises(LogDamagedError, match=r"found columns=\['note'\] that the log lacks.*log.add_columns"):
            log.compact()
        assert frozen(log) == before
    assert len(log.core.files()) == 4
    log.add_columns(columns)
    log.refresh()
    assert log.compact().merges
    assert log.messages(columns=["v", "note"]).to_pylist()[2] == {"v": 3, "note": "hello"}
    assert len(log.core.files()) == 1
