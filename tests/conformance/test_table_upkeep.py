"""Upkeep of the table under a log: checkpoints, old entries, damage, features; and what is said where it fails."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_timely.cli import main
from spark_timely.errors import LogDamagedError, LogFormatError, RolledBackError, SinceViolationError, StorageError
from spark_timely.log import Log, MemoryLog
from spark_timely.log.compaction import merge_progress_files
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import checkpoints as delta_upkeep
from spark_timely.log.store import delta as delta_store
from spark_timely.log.store import scratch as delta_scratch
from spark_timely.log.store.delta import DeltaStore
from spark_timely.log.store.entries import entry_path, parse_entry, put_entry
from spark_timely.log.store.storage import FileStorage
from spark_timely.log.writer import StreamWriter
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import VALUES, filled, stored
from tests.faults.harness import long_lane
from tests.faults.unreliable import UnreliableStore


def rows(*times: int) -> pa.Table:
    return pa.table({"_time": list(times), "v": list(times)})


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that were waited for, without waiting."""
    found: list[float] = []
    monkeypatch.setattr(delta_store, "_pause", found.append)
    return found


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tidy after five commits, and keep ten entries."""
    monkeypatch.setattr(delta_upkeep, "_CHECKPOINT_VERSIONS", (5, 5))
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 10)


def entries(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path / "_delta_log") if name.endswith(".json"))


def next_entry(path: Path) -> Path:
    return path / "_delta_log" / f"{DeltaTable(path).version() + 1:020d}.json"


# Damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "\n", "{broken", '{"add": {}}\n{"commitInfo": ', "\x00" * 9, "[1]\n"])
@pytest.mark.parametrize("use", ["open", "refresh", "append"])
def test_entry_that_says_nothing_is_damage_and_no_commit(
    path: Path, content: str, use: str, pauses: list[float]
) -> None:
    log = filled(path)
    entry, before = next_entry(path), None
    entry.write_text(content)
    before = stored(log)
    uses: dict[str, Callable[[], object]] = {
        "open": lambda: open_log(path),
        "refresh": log.refresh,
        "append": lambda: log.writer(owner="me").append(rows(9)),
    }
    with pytest.raises(
        LogDamagedError, match=rf"entry '_delta_log/{entry.name}' .*version={log.core.version + 1}"
    ) as told:
        uses[use]()
    assert told.value.determinate
    assert "spark-timely repair" in str(told.value)
    assert pauses == list(delta_store.LOOKS_S)
    assert stored(log) == before
    assert entry.read_text() == content


def test_entry_that_lost_whole_lines_is_damage(path: Path, pauses: list[float]) -> None:
    log = filled(path)
    entry = path / entry_path(log.core.version)
    reader = open_log(path)
    entry.write_bytes(b"".join(entry.read_bytes().splitlines(keepends=True)[:-1]))
    for use in (reader.refresh, lambda: open_log(path)):
        with pytest.raises(LogDamagedError, match="cut: 3 of 4 actions"):
            use()
    assert pauses


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda whole: b"".join(whole.splitlines(keepends=True)[:-1]), "cut: 3 of 4 actions"),
        (lambda whole: whole.splitlines(keepends=True)[0], "cut: 1 of 4 actions"),
        (lambda whole: b"".join(whole.splitlines(keepends=True)[:-1]) + b"\n" * 100, "cut: 3 of 4 actions"),
        (lambda whole: b"\n" * len(whole), "empty"),
        (lambda whole: b" \r\n" * len(whole), "empty"),
    ],
)
def test_opening_notices_a_damaged_entry_behind_the_newest(
    path: Path, damage: Callable[[bytes], bytes], found: str, pauses: list[float]
) -> None:
    """The library that opens the table takes such an entry for a commit that did less, or nothing."""
    log = filled(path)
    entry = path / entry_path(log.core.version)
    log.writer(owner="me").append(rows(9))
    log.writer(owner="me").append(rows(10))
    entry.write_bytes(damage(entry.read_bytes()))
    with pytest.raises(LogDamagedError, match=rf"entry '_delta_log/{entry.name}' .*{found}"):
        open_log(path)
    assert pauses == list(delta_store.LOOKS_S)


@pytest.mark.parametrize("late", [1, 4])
def test_entry_that_is_being_written_is_looked_at_again(path: Path, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == late:
            entry.write_bytes(whole)

    monkeypatch.setattr(delta_store, "_pause", pause)
    filled(path)
    reader, entry = open_log(path), next_entry(path)
    open_log(path).advance("main", 9)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:7])
    reader.refresh()
    assert len(looks) == late
    assert reader.frontier() == Antichain.of(9)


def test_states_of_a_version_that_was_read_anew_are_dropped(path: Path) -> None:
    """What a version holds may change: an entry was repaired, or the table restored with the same number of commits."""
    log = filled(path)
    other = open_log(path)
    other.advance("main", 8)
    log.refresh()
    assert log.frontier() == Antichain.of(8)
    entry = path / entry_path(log.core.version)
    info = json.dumps({"commitInfo": {"operation": "REPAIR"}})
    entry.unlink()
    entry.write_text(info + "\n")
    for use in (log.refresh, log.frontier, log.core.files, log.refresh):  # however often
        with pytest.raises(RolledBackError, match="at seq=3, this handle has seen 'main' at seq=4"):
            use()
    assert open_log(path).frontier() == Antichain.of(3)


WRITTEN: list[tuple[int, ...]] = [(), (5,), (5, 6), (8,), (8, 9), (8, 9, 10, 11)]


@pytest.mark.parametrize(
    ("written", "how", "optimized"),
    [
        *((written, "copy", "never") for written in WRITTEN),
        *((written, "restore", "after") for written in WRITTEN[1::2]),
        *((written, how, "before") for written in WRITTEN[::3] for how in ("copy", "restore")),
        ((8, 9), "copy", "after"),
        ((8, 9), "restore", "never"),
    ],
)
def test_handle_refuses_a_log_restored_and_written_again(
    path: Path, tmp_path: Path, optimized: str, how: str, written: tuple[int, ...]
) -> None:
    """However far it was written again, and whoever merged its files."""
    log = filled(path)
    if optimized == "before":
        DeltaTable(path).optimize.compact()
    before, version = tmp_path / "before", DeltaTable(path).version()
    shutil.copytree(path, before)
    open_log(path).advance("main", 8)
    log.refresh()
    writer = log.writer(owner="me")
    assert log.frontier() == Antichain.of(8)
    if how == "copy":
        shutil.rmtree(path)
        shutil.copytree(before, path)
    else:
        DeltaTable(path).restore(version)
    for time in written:
        open_log(path).advance("main", time)
    if optimized == "after":
        DeltaTable(path).optimize.compact()
    stored_before = sorted(path.rglob("*"))
    uses: list[Callable[[], object]] = [
        *(log.refresh, log.frontier, log.messages, log.core.files, log.core.progress, log.dead, log.streams),
        lambda: writer.append(rows(20), advance_to=20),
    ]
    for use in (*uses, *uses):
        with pytest.raises(RolledBackError, match=r"commit seq=4|has seen 'main' at seq=4"):
            use()
    assert sorted(path.rglob("*")) == stored_before
    assert log.verify().legal, "a log is checked as it is"
    with pytest.raises(RolledBackError, match="seq=4"):
        log.frontier()
    assert open_log(path).frontier() == Antichain.of(written[-1] if written else 3)


def test_handle_keeps_a_log_whose_files_others_merge(path: Path) -> None:
    log = filled(path)
    for time in range(8, 20):
        open_log(path, merge_every=3).advance("main", time)
        if time % 4 == 0:
            DeltaTable(path).optimize.compact()
        log.refresh()
        assert log.frontier() == Antichain.of(time)
        open_log(path).compact()
        log.refresh()
        assert log.messages().num_rows == 6


def test_handle_refuses_a_table_that_was_restored_under_it(path: Path) -> None:
    log = filled(path)
    assert log.messages().num_rows == 6
    table = DeltaTable(path)
    table.restore(table.version() - 2)
    for use in (log.refresh, log.frontier, log.messages, log.streams):
        with pytest.raises(RolledBackError, match="open the log again, which was restored to an earlier state"):
            use()
    assert open_log(path).messages().num_rows < 6


# Checkpoints and old entries ------------------------------------------------------------------------


@pytest.mark.usefixtures("_soon")
def test_handles_that_commit_once_tidy_up_too(path: Path) -> None:
    create_log(path, VALUES, minimum=(0,))
    longest = 0
    for i in range(1, 41):
        open_log(path).writer(owner="me").append(rows(i), advance_to=i)
        longest = max(longest, len(entries(path)))
    assert longest <= 10 + 2 * 5
    log = open_log(path)
    assert log.verify().messages == 40
    assert not log.core.upkeep_problems()


def test_progress_of_handles_that_commit_once_is_merged(path: Path) -> None:
    create_log(path, VALUES, minimum=(0,))
    for i in range(1, 31):
        open_log(path, merge_every=10).writer(owner="me").append(rows(i), advance_to=i)
    log = open_log(path)
    assert len(log.core.progress_files()) <= 14
    assert len(log.core.files()) <= 14
    assert log.verify().messages == 30


@pytest.mark.usefixtures("_soon")
def test_checkpoint_is_not_read_again_to_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta-rs has read all of it: it may be large."""
    log = filled(path)
    for time in range(10, 20):
        log.advance("main", time)
    assert (path / "_delta_log" / "_last_checkpoint").exists()
    names: list[str] = []
    read = FileStorage.read

    def noted(self: FileStorage, name: str) -> pa.Buffer:
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(FileStorage, "read", noted)
    assert open_log(path).core.version == log.core.version
    assert any(name.startswith("_delta_log/") for name in names)
    assert not any(".checkpoint." in name for name in names)


def test_compact_writes_a_checkpoint_and_deletes_old_entries(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path)
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 2)
    log.compact()
    assert (path / "_delta_log" / f"{log.core.version:020d}.checkpoint.parquet").exists()
    assert entries(path)[0] == f"{log.core.version - 2:020d}.json"
    assert open_log(path).verify().messages == 6


def cut_checkpoint(storage: FileStorage, version: int, newest: int) -> int:
    size = delta_scratch.put_checkpoint(storage, version, newest)
    name = storage.full(f"_delta_log/{version:020d}.checkpoint.parquet")
    with open(name, "rb") as file:
        content = file.read()
    with open(name, "wb") as file:
        file.write(content[:99])
    return size


def no_checkpoint(storage: FileStorage, version: int, newest: int) -> int:
    del storage, version, newest
    raise DeltaError("No space left on device (os error 28)")


def unflushed_checkpoint(storage: FileStorage, version: int, newest: int) -> int:
    storage.flush = failing_flush  # type: ignore[method-assign]
    return delta_scratch.put_checkpoint(storage, version, newest)


def failing_flush(paths: Any, *, always: bool = False) -> None:
    if always:
        raise StorageError("could not flush: found an input/output error", determinate=True)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("fails", [no_checkpoint, cut_checkpoint, unflushed_checkpoint])
def test_nothing_is_deleted_before_its_replacement_reads_back(
    path: Path, fails: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log(path, VALUES, minimum=(0,))
    monkeypatch.setattr(delta_upkeep, "put_checkpoint", fails)
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 2)
    log = open_log(path)
    for i in range(1, 30):
        assert log.writer(owner="me").append(rows(i), advance_to=i).committed
    assert entries(path) == [f"{i:020d}.json" for i in range(31)]
    assert any("put off" in problem for problem in log.core.upkeep_problems())


@pytest.mark.usefixtures("_soon")
def test_nothing_is_deleted_while_the_pointer_is_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_log(path, VALUES, minimum=(0,))
    first: list[bytes] = []

    def overtaken(storage: FileStorage, version: int, newest: int) -> tuple[int, int]:
        found = delta_scratch.put_checkpoint(storage, version, newest)
        pointer = path / "_delta_log" / "_last_checkpoint"
        first.append(pointer.read_bytes())
        pointer.write_bytes(first[0])  # another handle was late with it
        return found

    monkeypatch.setattr(delta_upkeep, "put_checkpoint", overtaken)
    monkeypatch.setattr(delta_upkeep, "KEEP_VERSIONS", 2)
    log = open_log(path)
    for i in range(1, 30):
        assert log.writer(owner="me").append(rows(i), advance_to=i).committed
    assert len(first) > 3
    newest = json.loads(first[0])["version"]
    assert next(name for name in entries(path) if name.endswith(".json")) == f"{newest - 2:020d}.json"


@pytest.mark.usefixtures("_soon")
def test_failing_upkeep_is_a_warning_and_no_unclear_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    create_log(path, VALUES, minimum=(0,))
    tried: list[int] = []

    def fail(storage: FileStorage, version: int, newest: int) -> int:
        tried.append(version)
        return no_checkpoint(storage, version, newest)

    monkeypatch.setattr(delta_upkeep, "put_checkpoint", fail)
    log = open_log(path)
    writer = log.writer(owner="me")
    with caplog.at_level(logging.WARNING):
        for i in range(1, 61):
            assert writer.append(rows(i), advance_to=i).committed
    assert "No space left on device" in caplog.text
    assert tried == list(range(5, 62, 10)), "not at each commit"
    assert any("No space left on device" in problem for problem in log.core.upkeep_problems())
    # Another process sees it too, by the state of the table.
    main(["stats", str(path)])
    assert re.search("warning +no checkpoint since version 0, 61 commits ago", capsys.readouterr().out)
    main(["stats", str(path), "--json"])
    assert "no checkpoint since version 0" in json.loads(capsys.readouterr().out)["warnings"][0]
    monkeypatch.undo()
    main(["compact", str(path)])
    assert "warning" not in capsys.readouterr().out
    log.core.tidy()
    assert log.core.upkeep_problems() == []
    assert log.verify().messages == 60


def test_any_failure_of_upkeep_leaves_the_commit_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path)

    def fail(store: DeltaStore, *, now: bool = False) -> bool:
        raise MemoryError

    monkeypatch.setattr(DeltaStore, "tidy", fail)
    assert log.writer(owner="me").append(rows(9), advance_to=10).committed
    assert log.core.upkeep_problems() == ["tidying the table's log was put off: 'MemoryError'"]


# Features and properties ----------------------------------------------------------------------------


def newest_engine(path: Path) -> str:
    (first, *_) = (path / entry_path(DeltaTable(path).version())).read_text().splitlines()
    return str(json.loads(first)["commitInfo"]["engineInfo"])


@pytest.mark.parametrize(
    ("name", "value", "engine"),
    [
        ("delta.targetFileSize", "64mb", "spark-timely"),
        ("delta.enableChangeDataFeed", "false", "spark-timely"),
        ("delta.enableChangeDataFeed", "true", "delta-rs"),
        ("delta.brandNew", "1", "delta-rs"),
        ("who.asked", "me", "delta-rs"),
    ],
)
def test_own_entries_need_every_property_to_be_known(
    path: Path, name: str, value: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    DeltaTable(path).alter.set_table_properties({name: value}, raise_if_not_exists=False)
    log = open_log(path)
    log.writer(owner="me").append(rows(9), advance_to=10)
    assert newest_engine(path).startswith(engine)
    assert log.verify().legal
    # So are checkpoints.
    own: list[int] = []
    put = delta_upkeep.put_checkpoint
    monkeypatch.setattr(delta_upkeep, "put_checkpoint", lambda *of: own.append(of[1]) or put(*of))
    log.core.tidy()
    assert own == ([log.core.version] if engine == "spark-timely" else [])
    assert (path / "_delta_log" / f"{log.core.version:020d}.checkpoint.parquet").exists()


def with_metadata(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Commit a change of the table's metadata, as another engine would."""
    first = [json.loads(line) for line in (path / entry_path(0)).read_text().splitlines()]
    (action,) = (a for a in first if "metaData" in a)
    edit(action["metaData"])
    next_entry(path).write_text(json.dumps(action) + "\n")


@pytest.mark.parametrize(
    ("mark", "found"),
    [
        ("delta.invariants", r"delta\.invariants of column 'v'"),
        ("delta.generationExpression", r"delta\.generationExpression of column 'v'"),
        ("delta.identity.start", r"delta\.identity\.start of column 'v'"),
        (None, r"constraint 'positive' \(v > 0\)"),
    ],
)
def test_table_that_wants_its_rows_judged_is_refused_by_name(path: Path, mark: str | None, found: str) -> None:
    log = filled(path)

    def edit(metadata: dict[str, Any]) -> None:
        if mark is None:
            metadata["configuration"]["delta.constraints.positive"] = "v > 0"
            return
        schema = json.loads(metadata["schemaString"])
        schema["fields"][-1]["metadata"][mark] = "{}"
        metadata["schemaString"] = json.dumps(schema)

    with_metadata(path, edit)
    before = stored(log)
    for use in (lambda: log.writer(owner="me"), lambda: log.advance("main", 9), lambda: open_log(path).compact()):
        with pytest.raises(LogFormatError, match=found):
            use()
    assert stored(log) == before
    assert open_log(path).messages().num_rows == 6


def test_unknown_mark_of_a_column_goes_through_delta_rs(path: Path) -> None:
    log = filled(path)

    def edit(metadata: dict[str, Any]) -> None:
        schema = json.loads(metadata["schemaString"])
        schema["fields"][-1]["metadata"]["brand.new"] = "1"
        metadata["schemaString"] = json.dumps(schema)

    with_metadata(path, edit)
    log.advance("main", 9)
    assert newest_engine(path).startswith("delta-rs")


# Creation whose outcome is unclear -------------------------------------------------------------------


def first_files(path: Path) -> list[str]:
    return sorted(os.listdir(path / "_event=progress"))


@pytest.mark.parametrize("readable", [True, False])
def test_creation_that_was_reported_failed_keeps_its_file(
    path: Path, readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where delta-rs creates the table: not on a local disk, but by promise and in the cloud."""
    create = delta_store.create_table_with_add_actions

    def report_failure(*args: Any, **more: Any) -> None:
        create(*args, **more)
        if not readable:
            monkeypatch.setattr(FileStorage, "read", unreachable)
        raise OSError("the connection was lost")

    def unreachable(storage: FileStorage, name: str) -> None:
        raise StorageError("could not read: found no connection", determinate=True)

    monkeypatch.setattr(delta_store, "create_table_with_add_actions", report_failure)
    if readable:
        log = create_log(path, VALUES, minimum=(0,), single_writer=True)
        assert log.core.unclaimed == 1
    else:
        with pytest.raises(StorageError, match="could not tell whether log") as told:
            create_log(path, VALUES, minimum=(0,), single_writer=True)
        assert not told.value.determinate
    monkeypatch.undo()
    assert len(first_files(path)) == 1
    assert open_log(path).frontier() == Antichain.of(0)


def test_creation_of_which_nothing_is_known_deletes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_and_fail(*args: Any) -> bool:
        put_entry(*args)
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(delta_store, "put_entry", put_and_fail)
    with pytest.raises(StorageError, match="input/output error") as told:
        create_log(path, VALUES, minimum=(0,))
    assert not told.value.determinate
    assert open_log(path).frontier() == Antichain.of(0)


@pytest.mark.parametrize("single_writer", [False, True])
def test_creation_that_surely_lost_deletes_its_own_file(
    path: Path, single_writer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else made the table between the look and the creation."""
    create = delta_store.create_table_with_add_actions

    def first_another(*args: Any, **more: Any) -> None:
        monkeypatch.undo()
        create_log(path, VALUES, minimum=(0,), single_writer=single_writer)
        create(*args, **more)

    monkeypatch.setattr(delta_store, "create_table_with_add_actions", first_another)
    log = create_log(path, VALUES, minimum=(0,), single_writer=single_writer, exist_ok=True)
    assert len(first_files(path)) == 1
    assert log.core.unclaimed == 1


# Commits whose outcome is unclear --------------------------------------------------------------------


@pytest.mark.parametrize("later", [0, 2])
def test_unclear_commit_that_was_merged_is_reported_as_done(later: int) -> None:
    """Its progress file is gone then; the merged rows say that it is there, be it the newest commit or not."""
    log = MemoryLog.create(VALUES, minimum=(0,), merge_every=None)
    writer = log.writer(owner="me")
    writer.append(rows(1), advance_to=2)
    inner, merged = log.core.store, []

    class Unclear(UnreliableStore):
        def transact(self, *args: Any, **more: Any) -> None:
            self.inner.transact(*args, **more)
            if not merged:
                other = log.another()
                for i in range(later):
                    other.writer(owner="me").append(rows(5 + i))
                merge_progress_files(other.core.states, "main", 2)
                merged.append(other)
                raise StorageError("could not commit: found a lost connection", determinate=False)

    log.core.store = Unclear(inner)
    outcome = writer.append(rows(3), advance_to=4)
    assert outcome.committed
    assert merged
    log.core.store = inner
    log.refresh()
    assert sorted(log.messages()["v"].to_pylist()) == sorted([1, 3, *range(5, 5 + later)])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("since", [4, 7])
def test_unclear_commit_that_was_forgotten_is_not_done_twice(since: int, *, fails: bool) -> None:
    """It has become the base, or is before it; who was paused that long may have been told that it is done."""
    log = MemoryLog.create(VALUES, minimum=(0,), merge_every=None)
    writer = log.writer(owner="me")
    writer.append(rows(1), advance_to=2)
    inner, later = log.core.store, []

    class Unclear(UnreliableStore):
        def transact(self, *args: Any, **more: Any) -> None:
            self.inner.transact(*args, **more)
            if not later:
                later.append(log.another())
                for to in (6, 7):
                    later[0].writer(owner="me").append(rows(30 + to), advance_to=to)
                assert later[0].allow_compaction([since]) == Antichain.of(since)
                later[0].compact(logical=True)
                if fails:
                    raise StorageError("could not commit: found a lost connection", determinate=False)

    log.core.store = Unclear(inner)
    if since == 4:
        assert writer.append(rows(20), advance_to=4).committed
    else:
        with pytest.raises(StorageError, match="found seq=2 forgotten meanwhile") as told:
            writer.append(rows(20), advance_to=4)
        assert not told.value.determinate
        log.core.store = inner
        for _ in range(2):
            with pytest.raises(SinceViolationError, match="has forgotten commit seq=2, which may have been an append"):
                writer.append(rows(20))
    log.core.store = inner
    assert log.core.bases() == {"main": 2 if since == 4 else 3}
    assert writer.append(rows(21)).committed
    log.refresh()
    assert sorted(log.messages()["v"].to_pylist()) == [20, 21, 36, 37]


# Appends with a key ----------------------------------------------------------------------------------


def keyed(path: Path | None) -> tuple[Any, StreamWriter]:
    log = MemoryLog.create(VALUES, minimum=(0,)) if path is None else create_log(path, VALUES, minimum=(0,))
    return log, log.writer(owner="me")


@pytest.mark.parametrize("kind", ["memory", "delta"])
def test_append_with_a_key_repeated_is_there_once(kind: str, path: Path) -> None:
    log, writer = keyed(None if kind == "memory" else path)
    for key, to in ((3, 5), (7, 9)):
        assert writer.append(rows(to - 1, to), advance_to=to, batch=key).committed
    before = stored(log)
    for key, to in ((7, 9), (3, 5), (7, 9)):
        # Its times were passed since: it is no late row, but the same append.
        outcome = writer.append(rows(to - 1, to), advance_to=to, batch=key)
        assert not outcome.committed
        assert outcome.state.seq == 2
    assert stored(log) == before
    assert sorted(log.messages()["v"].to_pylist()) == [4, 5, 8, 9]
    writer.append(rows(10), advance_to=[], batch=8)
    assert not writer.append(rows(10), advance_to=[], batch=8).committed, "also where it closed the stream"


def test_key_with_other_rows_or_out_of_order_is_refused() -> None:
    log, writer = keyed(None)
    writer.append(rows(4, 5), batch=3)
    with pytest.raises(RolledBackError, match="found other rows in it"):
        writer.append(pa.table({"_time": [4, 5], "v": [4, 6]}), batch=3)
    with pytest.raises(RolledBackError, match="found batch=3 in it, and none of this key"):
        writer.append(rows(4), batch=2)
    assert log.messages()["v"].to_pylist() == [4, 5]


@pytest.mark.parametrize("kind", ["memory", "delta"])
@pytest.mark.parametrize("later", [0, 1])
def test_key_is_refused_with_other_progress_alone(kind: str, later: int, path: Path) -> None:
    log, writer = keyed(None if kind == "memory" else path)
    writer.append(rows(4, 5), advance_to=4, batch=2)
    for i in range(later):
        writer.append(rows(8), advance_to=8, batch=3 + i)
    before = stored(log)
    for other in ({"advance_to": 50}, {"advance_to": 3}, {"advance_to": []}, {}, {"progress": ([[0], [5]], [-1, 1])}):
        with pytest.raises(RolledBackError, match=r"other progress, which left the stream at \[4\]"):
            writer.append(rows(4, 5), batch=2, **other)
    for same in ({"advance_to": [4]}, {"progress": ([[0], [4], [9]], [-1, 1, 0])}):
        assert not writer.append(rows(4, 5), batch=2, **same).committed
    assert stored(log) == before


def test_key_without_progress_is_repeated_without_progress() -> None:
    _, writer = keyed(None)
    writer.append(rows(4, 5), batch=2)
    assert not writer.append(rows(4, 5), batch=2).committed
    with pytest.raises(RolledBackError, match="other progress"):
        writer.append(rows(4, 5), batch=2, advance_to=3)


@pytest.mark.parametrize("key", [-1, True, 1.5, "1", 2**63])
def test_key_is_a_whole_number(key: Any) -> None:
    _, writer = keyed(None)
    with pytest.raises(ValueError, match="found batch="):
        writer.append(rows(4), batch=key)


def test_append_with_a_key_is_never_doubled_by_unclear_outcomes() -> None:
    for seed in range(1000 if long_lane() else 20):
        log = MemoryLog.create(VALUES, minimum=(0,), merge_every=3)
        writer = log.writer(owner="me")
        inner = log.core.store
        log.core.store = UnreliableStore(inner, seed=seed, happens=0.5, reports_failure=0.7)
        for key in range(6):
            for _ in range(100):
                try:
                    writer.append(rows(key, key), batch=key)
                except StorageError:
                    continue
                break
        log.core.store = inner
        log.refresh()
        assert sorted(log.messages()["v"].to_pylist()) == sorted([*range(6), *range(6)])
        assert log.verify().legal


# Flushing --------------------------------------------------------------------------------------------


def test_entry_parts() -> None:
    with pytest.raises(ValueError, match="empty"):
        parse_entry(b" \n\n")
    with pytest.raises(ValueError, match="no action: 3"):
        parse_entry(b"3\n")


def flushes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths that are flushed from now on."""
    found: list[str] = []
    flush = os.fsync

    def noted(descriptor: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def kinds(path: Path, found: list[str]) -> list[str]:
    """Return what was flushed, without names that are drawn at random."""
    names = [os.path.relpath(name, path) for name in found]
    return [os.path.dirname(name) + "/*" if os.path.splitext(name)[1] else name for name in names]


def test_commit_flushes_rows_progress_entry_and_their_folders(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path)
    found = flushes(monkeypatch)
    log.writer(owner="me").append(rows(9), advance_to=10)
    assert kinds(path, found) == [
        "_event=message/*",
        "_event=message",
        "_event=progress/*",
        "_event=progress",
        "_delta_log/*",
        "_delta_log",
    ]


def test_log_that_is_not_to_be_flushed_is_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = flushes(monkeypatch)
    log = filled(path, flush=False)
    assert found == []
    assert log.core.upkeep_problems()[0].startswith("files are not flushed, as was asked for")
    assert open_log(path).core.upkeep_problems() == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_place_that_cannot_flush_folders_is_warned_of_once(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flush = os.fsync

    def refuse(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(code, os.strerror(code))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    with caplog.at_level(logging.WARNING):
        log = filled(path)
    assert [record.getMessage() for record in caplog.records] == [
        f"log {str(path)!r}: the file system cannot flush folders: a power cut can take the latest commits"
    ]
    assert log.verify().messages == 6
    assert log.core.upkeep_problems() == [
        "the file system cannot flush folders: a power cut can take the latest commits"
    ]


def test_disk_that_fails_to_flush_rows_refuses_the_append(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path)
    before = stored(log)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="could not flush") as told:
        log.writer(owner="me").append(rows(9))
    assert told.value.determinate
    monkeypatch.undo()
    assert len(stored(log)) - len(before) <= 1, "the file that could not be flushed may stay"
    assert open_log(path).verify().messages == 6


def test_entry_with_an_unflushed_name_leaves_the_commit_unclear(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: Log = filled(path)
    flush = os.fsync

    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("_delta_log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError) as told:
        log.writer(owner="me").append(rows(9), advance_to=10)
    assert not told.value.determinate
    monkeypatch.undo()
    # It is there, and its files with it.
    assert open_log(path).verify().messages == 7


@pytest.mark.parametrize("gone", ["entry", "folder"])
def test_entries_tidied_away_while_others_flush_are_no_error(
    path: Path, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: Log = filled(path)
    flush = FileStorage.flush
    calls: list[int] = []

    def behind(storage: FileStorage, paths: Any, **options: Any) -> None:
        calls.append(len(paths))
        if len(calls) == 1:
            first = next_entry(path).parent / entries(path)[0]
            first.unlink() if gone == "entry" else shutil.rmtree(first.parent)
        flush(storage, paths, **options)

    monkeypatch.setattr(FileStorage, "flush", behind)
    if gone == "entry":
        log.core.store.flush()
        assert calls == [calls[0], calls[0] - 1]
    else:
        with pytest.raises(StorageError, match="could not flush"):
            log.core.store.flush()


def test_only_a_refused_commit_says_the_table_is_unwritable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create_log(path, VALUES, minimum=(0,))
    real = DeltaStore._put

    def then_fail(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise DeltaError("unsupported reply of the store")

    monkeypatch.setattr(DeltaStore, "_put", then_fail)
    # The commit happened all the same: nobody may believe the words of an error.
    assert log.writer(owner="me").append(rows(1), advance_to=1).committed
    monkeypatch.undo()
    assert open_log(path).frontier().to_json() == [1]
