"""Following the log of a table entry by entry, and writing its entries, beside delta-rs."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.errors import LogMissingError
from spark_timely.log import Log
from spark_timely.log.files.index import FileIndex
from spark_timely.log.log import create_log, keep_log, open_log
from spark_timely.log.store import checkpoints as delta_upkeep
from spark_timely.log.store import delta as delta_store
from spark_timely.log.store.cloud import CloudStorage
from spark_timely.log.store.entries import read_entry

VALUES = pa.schema([("v", pa.int64())])
TYPES = {
    "long": pa.int64(),
    "int": pa.int32(),
    "short": pa.int16(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def rows(*times: int, type_: pa.DataType | None = None) -> pa.Table:
    column = pa.array(times, pa.int32() if type_ in (pa.int32(), pa.int16(), pa.date32()) else pa.int64())
    return pa.table({"_time": column.cast(type_) if type_ else column, "v": list(times)})


def facts(index: FileIndex) -> dict[str, tuple[Any, ...]]:
    columns = [getattr(index, name).tolist() for name in FileIndex.__slots__ if name != "modified"]
    return {row[0]: row for row in zip(*columns, strict=True)}


@pytest.mark.parametrize("kind", TYPES)
def test_followed_files_are_those_that_delta_rs_lists(path: Path, kind: str) -> None:
    log = create_log(path, VALUES, times=(kind,), minimum=np.zeros(1, np.int64), streams=2, merge_every=None)
    follower = open_log(path)
    for name in ("a", "s" * 40):  # statistics of texts are cut at 32
        writer = log.writer(name, owner=name)
        for i in range(3):
            writer.append(rows(i, i + 5, type_=TYPES[kind]))
        follower.refresh()

    def check() -> None:
        follower.refresh()
        fresh = open_log(path)
        assert follower.core.version == fresh.core.version
        for event in ("message", "progress", "dead"):
            assert facts(follower.core.states.files(event)) == facts(fresh.core.states.files(event))
        assert len(follower.core.store.live) == len(DeltaTable(path).file_uris())

    check()
    log.compact()
    check()
    DeltaTable(path).optimize.compact()
    check()
    DeltaTable(path).optimize.z_order(["v"])
    check()
    assert follower.verify().legal


def test_commits_are_readable_by_delta_rs_as_its_own(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,), merge_every=None)
    writer = log.writer(owner="me")
    for i in range(3):
        writer.append(rows(i), advance_to=i + 1)
    table = DeltaTable(path)
    assert table.version() == log.core.version == 4
    assert table.transaction_version("timely/main") == 3
    assert {entry["operation"] for entry in table.history()[:3]} == {"WRITE"}
    found = table.to_pyarrow_table(filters=[("_event", "=", "message")])["v"].to_pylist()
    assert sorted(found) == [0, 1, 2]
    entry = read_entry(log.core.storage, 4)
    assert entry is not None
    assert entry.apps == {"timely/main"}
    assert not entry.changes_table
    # delta-rs goes on from there, and so do we.
    table.optimize.compact()
    writer.append(rows(3), advance_to=4)
    assert open_log(path).verify().messages == 4


def test_file_system_without_hard_links_is_written_by_delta_rs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create_log(path, VALUES, minimum=(0,), streams=2)

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    writers = [log.writer(owner="me"), open_log(path).writer("other", owner="other")]
    for i in range(3):
        for writer in writers:  # each is behind what the other did
            writer.append(rows(i), advance_to=i + 1)
    assert "delta-rs" in str(DeltaTable(path).history()[0])
    assert open_log(path).verify().messages == 6
    assert not [name for name in os.listdir(path / "_delta_log") if name.endswith(".tmp")]


def test_writer_stopped_for_long_puts_nothing_into_the_past(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its last look and its commit so much happened that its version came, and was tidied away."""
    monkeypatch.setattr(delta_upkeep, "_CHECKPOINT_VERSIONS", (10, 10))
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 5)
    log = create_log(path, VALUES, minimum=(0,), streams=2)
    slow, quick = log.writer("slow", owner="slow"), open_log(path).writer("quick", owner="quick")
    put, stopped = delta_store.put_entry, [True]

    def put_late(directory: str, version: int, content: bytes, *beside: Any) -> bool:
        if stopped.pop() if stopped else False:
            monkeypatch.setattr(delta_store, "put_entry", put)
            for i in range(1, 80):
                quick.append(rows(i), advance_to=i)
            assert not os.path.exists(path / "_delta_log" / f"{version:020d}.json")
        return put(directory, version, content, *beside)

    monkeypatch.setattr(delta_store, "put_entry", put_late)
    outcome = slow.append(rows(5), advance_to=6)
    assert outcome.committed
    fresh = open_log(path)
    assert fresh.messages(stream="slow")["v"].to_pylist() == [5]
    assert fresh.core.stream("slow") == outcome.state
    report = fresh.verify()
    assert report.legal, report.problems
    assert report.messages == 80


def test_handle_older_than_a_clean_up_puts_nothing_into_the_past(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,), streams=2, merge_every=None)
    slept = open_log(path)
    slept.core.open_stream("b", owner="b")
    other = log.writer("a", owner="a")
    for i in range(3):
        other.append(rows(i))
    DeltaTable(path).create_checkpoint()
    # Others delete in any order: the next entry is gone, and that of the snapshot still there.
    (path / "_delta_log" / f"{slept.core.version + 1:020d}.json").unlink()
    slept.core.store._looked_at -= 2 * delta_store._LONG_S
    slept.writer("b", owner="b").append(rows(7))
    fresh = open_log(path)
    assert sorted(fresh.messages()["v"].to_pylist()) == [0, 1, 2, 7]
    assert fresh.verify().legal


def replace_by_a_longer_one(path: Path, tmp_path: Path) -> None:
    other = create_log(tmp_path / "other", VALUES, minimum=(0,))
    for i in range(5):
        other.writer(owner="other").append(rows(i))
    path.rename(tmp_path / "before")
    (tmp_path / "other").rename(path)


def test_log_replaced_by_a_longer_one_is_noticed(path: Path, tmp_path: Path) -> None:
    """An entry of the next version is there; it is another table's."""
    log = create_log(path, VALUES, minimum=(0,))
    log.writer(owner="me").append(rows(0))
    replace_by_a_longer_one(path, tmp_path)
    with pytest.raises(LogMissingError, match="another table in its place"):
        log.writer(owner="me").append(rows(9))
    assert open_log(path).verify().messages == 5


def test_log_replaced_by_a_longer_one_behind_a_url_is_noticed(path: Path, tmp_path: Path) -> None:
    """Cloud storage tells the size of a file and the second in which it was written."""
    log = create_log(path, VALUES, minimum=(0,))
    log.writer(owner="me").append(rows(0))
    os.utime(path / "_delta_log" / f"{log.core.version:020d}.json", (1_700_000_000, 1_700_000_000))
    store = log.core.store
    store.storage = CloudStorage(f"file://{path}")
    store._mark = store._entry_mark()
    assert not log.refresh()
    replace_by_a_longer_one(path, tmp_path)
    with pytest.raises(LogMissingError, match="another table in its place"):
        log.refresh()


def test_kept_log_is_refreshed_and_replaced_with_its_table(path: Path, tmp_path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,))
    kept = keep_log(path)
    log.writer(owner="me").append(rows(0), advance_to=3)
    assert keep_log(path) is kept
    assert kept.frontier().to_json() == [3]
    path.rename(tmp_path / "before")
    create_log(path, VALUES, minimum=(0,))
    assert keep_log(path).core.log_id != kept.core.log_id
    path.rename(tmp_path / "again")
    with pytest.raises(LogMissingError):
        keep_log(path)
    logs: list[Log] = []
    for number in range(12):
        create_log(tmp_path / str(number), VALUES, minimum=(0,))
        logs.append(keep_log(tmp_path / str(number)))
    assert keep_log(tmp_path / "11") is logs[11]
    assert keep_log(tmp_path / "0") is not logs[0]


def test_checkpoints_come_by_number_and_keep_the_folder_short(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,))
    writer = log.writer(owner="me")
    longest = 0
    for i in range(1, 420):
        writer.advance(i)
        longest = max(longest, len(os.listdir(path / "_delta_log")))
    assert 120 < longest < 220
    assert (path / "_delta_log" / "_last_checkpoint").exists()
    assert open_log(path).frontier().to_json() == [419]
