"""Other engines rewrite, vacuum and clean up the table of a log, also while we commit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from spark_timely.conf import SOURCE_OPTIONS, parse_options
from spark_timely.datasource.planner import ReplayPlanner
from spark_timely.log import Log
from spark_timely.log.compaction import _merge_progress
from spark_timely.log.files.parquet_reader import read_file
from spark_timely.log.log import create_log, open_log
from spark_timely.log.machine.state import OPEN_STREAM
from spark_timely.log.store import checkpoints as delta_upkeep
from spark_timely.log.streams import StreamStates
from spark_timely.time.antichain import Antichain
from tests.faults.append_query import VALUES, racing

pytestmark = pytest.mark.faults


@pytest.fixture
def table_log(tmp_path: Path) -> Log:
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=2, merge_every=None)
    for name in ("a", "b"):
        writer = log.writer(name, owner=name)
        for i in range(1, 6):
            writer.append(pa.table({"_time": [i, i + 2], "v": [i, i]}), advance_to=i)
    return log


def facts(log: Log) -> tuple[Any, ...]:
    report = log.verify()
    assert report.legal, report.problems
    return report.digest, report.commits, log.core.counts(), dict(log.streams())


def test_optimize_of_delta_rs_changes_no_answer(table_log: Log) -> None:
    before = facts(table_log)
    table = DeltaTable(table_log.path)
    table.optimize.compact()
    assert facts(open_log(table_log.path)) == before
    table_log.refresh()
    assert facts(table_log) == before
    assert len(table_log.core.progress_files()) == 1
    table.update_incremental()
    table.optimize.z_order(["_time", "v"])
    table.create_checkpoint()
    assert facts(open_log(table_log.path)) == before
    table_log.writer("a", owner="a").append(pa.table({"_time": [9], "v": [9]}), advance_to=8)
    state = open_log(table_log.path).core.stream("a")
    assert state is not None
    assert (state.seq, state.frontier) == (6, Antichain.of(8))
    table_log.compact()
    assert table_log.verify().legal


def test_commits_merged_by_optimize_are_found_by_one_read(table_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a replay that was stopped meanwhile finds the commits that its offset names."""
    options = parse_options(SOURCE_OPTIONS, {"path": table_log.path})
    planner = ReplayPlanner(table_log, options)
    offset = planner.latest(planner.initial())
    before = {name: state for name, state in table_log.core.ends().items() if name != OPEN_STREAM}
    for name in ("a", "b"):
        table_log.writer(name, owner=name).append(pa.table({"_time": [9], "v": [9]}), advance_to=9)
    DeltaTable(table_log.path).optimize.compact()
    log = open_log(table_log.path)
    assert log.frontier() == Antichain.of(9)
    read: list[str] = []
    look = StreamStates.rows_in

    def noted(self: StreamStates, path: str) -> pa.Table:
        read.append(path)
        return look(self, path)

    monkeypatch.setattr(StreamStates, "rows_in", noted)
    assert log.core.commits_of({name: state.seq for name, state in before.items()}) == before
    assert len(read) == 1
    following = ReplayPlanner(log, options).latest(offset)
    assert (offset["frontier"], following["frontier"]) == ([5], [9])
    assert len(read) == 2


def test_optimize_of_delta_rs_races_a_compaction(table_log: Log) -> None:
    before = facts(table_log)

    def optimize() -> None:
        DeltaTable(table_log.path).optimize.compact()

    racing(table_log, optimize)
    assert table_log.compact().lost > 0
    assert facts(table_log) == before
    assert facts(open_log(table_log.path)) == before


def test_compaction_races_an_optimize_of_delta_rs(table_log: Log) -> None:
    """It read the files before they were merged, and commits after."""
    before = facts(table_log)
    late = [DeltaTable(table_log.path), DeltaTable(table_log.path)]
    table_log.compact()
    with pytest.raises(CommitFailedError, match="deleted data this operation read"):
        late[0].optimize.compact()
    with pytest.raises(CommitFailedError, match="deleted data this operation read"):
        late[1].optimize.z_order(["v"])
    assert facts(open_log(table_log.path)) == before


def test_merge_of_progress_races_an_optimize_of_delta_rs(table_log: Log) -> None:
    """Nothing stops it here; progress rows that are there twice count once."""
    before = facts(table_log)
    late = DeltaTable(table_log.path)
    index = table_log.core.progress_files()
    assert _merge_progress(table_log.core.states, index.select(index.stream_lo == "a"), "a")
    late.optimize.compact()
    twice = open_log(table_log.path, merge_every=2)
    assert (
        pa.concat_tables(
            [
                read_file(twice.core.storage, p, twice.core.format.progress_schema)
                for p in twice.core.progress_files().paths
            ]
        ).num_rows
        > before[1]
    )
    assert facts(twice) == before
    for i in range(6, 10):
        twice.writer("a", owner="a").append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    assert twice.core.stream("a").frontier == Antichain.of(9)  # type: ignore[union-attr]
    assert open_log(table_log.path).verify().legal


def test_optimize_of_delta_rs_races_an_append(table_log: Log) -> None:
    def optimize() -> None:
        DeltaTable(table_log.path).optimize.compact()

    racing(table_log, optimize)
    table_log.writer("a", owner="a").append(pa.table({"_time": [9], "v": [9]}), advance_to=8)
    report = table_log.verify()
    assert report.legal, report.problems
    assert report.messages == 21


def test_change_of_the_metadata_races_an_append(table_log: Log) -> None:
    def alter() -> None:
        table = DeltaTable(table_log.path)
        table.alter.set_table_description("seen by people")
        table.alter.set_column_metadata("v", {"comment": "a value"})

    racing(table_log, alter)
    writer = table_log.writer("a", owner="a")
    assert writer.append(pa.table({"_time": [9], "v": [9]}), advance_to=8).committed
    assert open_log(table_log.path).verify().legal
    assert facts(open_log(table_log.path)) == facts(table_log)


def test_vacuum_deletes_only_what_is_not_part_of_the_log(table_log: Log) -> None:
    before = facts(table_log)
    table_log.compact()
    orphan = "_event=message/a-000000000099-00.parquet"
    table_log.core.storage.write(orphan, b"left behind by a crash")
    DeltaTable(table_log.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not table_log.core.storage.exists(orphan)
    assert facts(open_log(table_log.path)) == before


def test_table_log_is_kept_short_and_stale_handles_recover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_upkeep, "_CHECKPOINT_VERSIONS", (10, 10))
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 5)
    log = create_log(tmp_path / "log", VALUES, minimum=(0,), streams=2, merge_every=20)
    stale = open_log(log.path)
    stale_writer = stale.writer("b", owner="b")
    writer = log.writer("a", owner="a")
    for i in range(1, 70):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    entries = os.listdir(tmp_path / "log" / "_delta_log")
    assert len(entries) < 50
    assert f"{5:020d}.json" not in entries
    # Its snapshot is older than anything that is left of the table's log.
    assert stale_writer.append(pa.table({"_time": [2], "v": [0]}), advance_to=400).committed
    assert stale.frontier() == Antichain.of(69)
    assert open_log(log.path).verify().messages == 70
    log.refresh()
    assert log.verify().legal


def test_cleanup_of_delta_rs_keeps_the_state(table_log: Log) -> None:
    before = facts(table_log)
    table = DeltaTable(table_log.path)
    table.create_checkpoint()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.update_incremental()
    table.create_checkpoint()
    table.cleanup_metadata()
    assert facts(open_log(table_log.path)) == before
    table_log.refresh()
    assert facts(table_log) == before
