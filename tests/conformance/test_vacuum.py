"""Files that were replaced are deleted when nobody can need them, and no others."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_timely.errors import DataLossError, InvalidUsageError, LogFormatError, StorageError
from spark_timely.log import Log
from spark_timely.log import vacuum as rules
from spark_timely.log.log import create_log, open_log
from tests.conformance.logs import VALUES, LogMaker, filled, frozen, rows, stored, written

HOUR = 3600


class Ahead:
    """The wall clock, some seconds ahead."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self.seconds


def grown(log: Log, start: int, stop: int) -> None:
    writer = log.writer(owner="me")
    for at in range(start, stop):
        writer.append(rows((at, at)), advance_to=at + 1)


def live(log: Log) -> set[str]:
    log.refresh()
    return {path for event in rules.EVENTS for path in log.core.store.live.index(event).paths.tolist()}


def replaced(log: Log) -> set[str]:
    """Files on the disk that commits took out; others may be there whose commits failed, or are unclear."""
    return (set(log.core.store.replaced(1 << 62)) & stored(log)) - live(log)


def swept(log: Log, now_ms: int, sweep: rules.Sweep | None = None) -> dict[str, int]:
    """Sweep as upkeep does; return what is left."""
    sweep = sweep or rules.Sweep()
    sweep.run(log.core.states, now_ms=now_ms)
    return sweep.waiting


def values(log: Log) -> list[int]:
    return sorted(log.messages()["v"].to_pylist())


def test_vacuum_leaves_what_is_part_of_the_log(maker: LogMaker) -> None:
    log = maker.create(merge_every=4)
    grown(log, 0, 25)
    old = replaced(log)
    assert len(old) > 10
    before = frozen(log)
    report = log.vacuum()
    assert (report.files, report.young_files) == (0, len(old))
    assert report.gone_at is not None
    assert 23 * HOUR < report.gone_at / 1e6 - time.time() < 25 * HOUR
    would = log.vacuum(older_than="0s", dry_run=True)
    assert frozen(log) == before
    done = maker.another(log).vacuum(older_than="0s")
    assert (would.files, would.bytes, would.dry_run) == (done.files, done.bytes, True)
    assert done.files == len(old)
    assert done.bytes > 0
    assert not replaced(log)
    assert live(log) <= stored(log)
    assert stored(log) == live(log) or maker.kind.startswith("unreliable")
    assert log.vacuum(older_than=dt.timedelta(0)).files == 0
    for handle in (log, maker.another(log)):
        assert values(handle) == list(range(25))
        assert handle.verify().legal


def test_upkeep_deletes_what_was_replaced_long_ago(maker: LogMaker) -> None:
    clock = Ahead()
    log, other = (maker.create(merge_every=4, clock=clock, auto_vacuum=on) for on in (True, False))
    grown(log, 0, 30)
    grown(other, 0, 30)
    old = replaced(log)
    assert len(old) > 30
    clock.seconds = 23 * HOUR
    grown(log, 30, 52)
    assert old <= stored(log)
    clock.seconds = 25 * HOUR
    grown(log, 52, 74)
    grown(other, 30, 74)
    # In memory there is no upkeep of a table.
    assert bool(old & stored(log)) == maker.kind.endswith("memory")
    # What nobody deletes stays for ever, once no checkpoint names it.
    assert len(replaced(other) | stored(other)) > 140
    for handle in (log, maker.another(log), other):
        handle.refresh()
        assert values(handle) == list(range(74))
        assert handle.core.upkeep_problems() == []
        assert handle.verify().legal


def test_files_that_nobody_named_yet_are_kept(maker: LogMaker) -> None:
    log = maker.create(merge_every=None)
    grown(log, 0, 3)
    (file,) = written(log, [(3, 3)], seq=9)
    for _ in range(2):
        assert log.vacuum(older_than="0s", unknown=True).files == 0
    assert log.core.storage.exists(file.path)


def test_retainers_keep_files_for_plans_of_an_hour(maker: LogMaker) -> None:
    clock = Ahead()
    log = maker.create(merge_every=4, clock=clock)
    grown(log, 0, 9)
    log.retain("report", [5], owner="query")
    assert log.vacuum(older_than="0s").files == 0
    clock.seconds = 1.1 * HOUR
    assert log.vacuum(older_than="0s").files > 0
    assert values(log) == list(range(9))


def test_vacuum_of_no_length_is_refused(maker: LogMaker) -> None:
    log = maker.create()
    before = frozen(log)
    with pytest.raises(InvalidUsageError, match=r"could not vacuum log .*: found older_than='7' — hint: write the num"):
        log.vacuum(older_than="7")
    assert frozen(log) == before


def test_copies_of_a_handle_delete_as_it_does(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,), auto_vacuum=False, auto_compact=False)
    assert not pickle.loads(pickle.dumps(log)).core.auto_vacuum
    assert open_log(path).core.auto_vacuum


def test_unknown_files_go_where_they_are_asked_for(path: Path) -> None:
    log = filled(path)
    names = [f"_event=message/{name}.parquet" for name in ("killed", "young")] + ["_event=message/notes.txt"]
    for name in names:
        (path / name).write_bytes(b"abc")
    for name in (names[0], names[2]):
        os.utime(path / name, (0, time.time() - 8 * 24 * HOUR))
    report = log.vacuum(older_than="0s")
    assert (report.files, report.unknown_files, report.unknown_bytes) == (0, 1, 3)
    assert log.vacuum(unknown=True).files == 1
    assert [(path / name).exists() for name in names] == [False, True, True]


def test_files_of_a_restored_table_are_kept(path: Path) -> None:
    log = filled(path)
    version = log.core.version
    log.compact(target_file_size="1kb", min_files=2)
    assert stored(log) - live(log)
    DeltaTable(str(path)).restore(version)
    again = open_log(path)
    report = again.vacuum(older_than="0s")
    # The merged files were replaced by those that are live again.
    assert report.files > 0
    assert stored(again) == live(again)
    assert values(again) == [1, 1, 2, 2, 3, 3]
    assert again.verify().legal


def test_restore_between_the_look_and_the_delete_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path)
    version = log.core.version
    log.compact(min_files=2)
    delete = rules._delete

    def restored_before(states: Any, paths: Any) -> None:
        DeltaTable(str(path)).restore(version)
        states.begin_anew()
        delete(states, paths)

    monkeypatch.setattr(rules, "_delete", restored_before)
    log.vacuum(older_than="0s")
    assert values(open_log(path)) == [1, 1, 2, 2, 3, 3]


def test_table_says_how_long_files_are_kept(path: Path) -> None:
    clock = Ahead()
    log = filled(path, clock=clock)
    log.compact(min_files=2)
    table = DeltaTable(str(path))
    for said, hours in (("interval 1 weeks", 7 * 24), ("interval 3 hours", 3), ("interval 0 seconds", 1)):
        table.alter.set_table_properties({"delta.deletedFileRetentionDuration": said})
        log.refresh()
        clock.seconds = hours * HOUR - 60
        assert log.vacuum(dry_run=True).files == 0
        clock.seconds = hours * HOUR + 60
        assert log.vacuum(dry_run=True).files > 0


def test_names_that_are_not_of_a_log_are_left(path: Path) -> None:
    log = filled(path / "log")
    outside, inside = path / "outside.parquet", path / "log" / "_event=message" / "deep"
    outside.write_bytes(b"abc")
    inside.mkdir()
    (inside / "a.parquet").write_bytes(b"abc")
    named = [
        str(outside),
        "../outside.parquet",
        "_event=message/../../outside.parquet",
        "_event=message/deep/a.parquet",
    ]
    lines = [{"remove": {"path": name, "deletionTimestamp": 1, "dataChange": False, "size": 3}} for name in named]
    entry = path / "log" / "_delta_log" / f"{log.core.version + 1:020d}.json"
    entry.write_text("\n".join(map(json.dumps, lines)) + "\n")
    again = open_log(path / "log")
    assert again.vacuum(older_than="0s").files == 0
    assert swept(again, 1 << 60) == {}
    grown(again, 5, 40)  # past a checkpoint
    assert outside.exists()
    assert (inside / "a.parquet").exists()


def test_upkeep_deletes_a_bounded_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_MOST_NEAR", 20)
    clock = Ahead()
    log = create_log(path, VALUES, minimum=(0,), merge_every=4, clock=clock)
    grown(log, 0, 45)
    old = stored(log) - live(log)
    clock.seconds = 25 * HOUR
    left = []
    for at in range(45, 100):
        grown(log, at, at + 1)
        left.append(len(old & stored(log)))
    steps = [a - b for a, b in pairwise(left)]
    assert left[-1] == 0
    assert max(steps) == 20


def test_tables_with_unknown_features_are_left(path: Path) -> None:
    log = filled(path)
    log.compact(min_files=2)
    DeltaTable(str(path)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    log.refresh()
    before = stored(log)
    with pytest.raises(
        LogFormatError, match=r"which files of log .* nobody needs: found .*delta\.enableChangeDataFeed"
    ):
        log.vacuum(older_than="0s")
    assert swept(log, 1 << 60) == {}
    assert stored(log) == before


def test_what_is_due_soon_is_remembered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path)
    log.compact(min_files=2)
    old = replaced(log)
    monkeypatch.setattr(type(log.core.store), "is_due", lambda store: True)
    moments = [at for at, _ in log.core.store.replaced(1 << 62).values()]
    kept = log.core.store.replaced_kept_ms
    sweep = rules.Sweep()
    assert set(swept(log, min(moments) + kept - 10_000, sweep)) == old == replaced(log)
    monkeypatch.setattr(type(log.core.store), "is_due", lambda store: False)
    assert set(swept(log, min(moments) + kept - 1, sweep)) == old
    assert swept(log, max(moments) + kept, sweep) == {}
    assert not replaced(log)


def test_what_cannot_be_deleted_does_not_add_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_MOST_WAITING", 3)
    clock = Ahead()
    log = create_log(path, VALUES, minimum=(0,), merge_every=4, clock=clock)
    monkeypatch.setattr(type(log.core.storage), "delete_all", refuse)
    grown(log, 0, 21)
    clock.seconds = 25 * HOUR
    grown(log, 21, 45)
    assert len(log.core._sweep.waiting) == 3
    (problem,) = log.core.upkeep_problems()
    assert problem.startswith("deleting replaced files was put off: ")
    assert "found no rights" in problem
    monkeypatch.undo()
    grown(log, 45, 66)
    assert log.core.upkeep_problems() == []
    assert not log.core._sweep.waiting


def refuse(*args: object) -> None:
    msg = "could not delete a file: found no rights"
    raise StorageError(msg, hint="none")


def test_files_that_are_still_named_are_deleted_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_MOST_NEAR", 2)
    log = filled(path)
    log.compact(min_files=2)
    n_old = len(replaced(log))
    monkeypatch.setattr(type(log.core.store), "is_due", lambda store: True)
    sweep = rules.Sweep()
    for turn in range(1, n_old // 2 + 2):
        # The checkpoint names them for a day: what is deleted stands in nobody's way.
        assert len(swept(log, 1 << 60, sweep)) == max(n_old - 2 * turn, 0)
        assert len(replaced(log)) == max(n_old - 2 * turn, 0)


class Overtaken:
    """A call of a table, behind which another handle merges, and deletes what it has replaced."""

    def __init__(self, store: Any, call: str, path: Path) -> None:
        self.call, self.path, self.left = getattr(store, call), path, 1
        setattr(store, call, self)

    def __call__(self, *said: Any, **more: Any) -> Any:
        found = self.call(*said, **more)
        if self.left:
            self.left -= 1
            other = open_log(self.path)
            other.compact()
            assert other.vacuum(older_than="0s").files > 0
        return found


def test_refresh_sees_what_went_behind_its_look(path: Path) -> None:
    log, other = create_log(path, VALUES, minimum=(0,), merge_every=None), open_log(path, merge_every=None)
    grown(other, 0, 12)
    overtaken = Overtaken(log.core.store, "refresh", path)
    assert log.refresh()
    assert overtaken.left == 0
    assert values(log) == list(range(12))


def test_two_vacuums_at_once_leave_each_other_alone(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,), merge_every=None)
    grown(log, 0, 12)
    log.compact()
    grown(log, 12, 24)
    overtaken = Overtaken(log.core.store, "replaced", path)
    log.vacuum(older_than="0s")
    assert overtaken.left == 0
    assert values(log) == list(range(24))
    assert not replaced(log)


def test_file_that_was_deleted_by_hand_is_missed_all_the_same(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,), merge_every=None)
    grown(open_log(path, merge_every=None), 0, 3)
    for file in path.glob("_event=progress/main-*3-*.parquet"):
        file.unlink()
    with pytest.raises(DataLossError, match="found no such file"):
        log.refresh()


def test_decision_sees_what_went_behind_its_look(path: Path) -> None:
    log, other = create_log(path, VALUES, minimum=(0,), streams=2), open_log(path, merge_every=None)
    grown(other, 0, 12)
    overtaken = Overtaken(log.core.store, "refresh", path)
    log.core.open_stream("other", owner="you")
    assert overtaken.left == 0
    assert set(log.streams()) == {"main", "other"}
    assert values(log) == list(range(12))
