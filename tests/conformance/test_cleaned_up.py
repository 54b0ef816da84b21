"""What other programs changed behind entries that are cleaned up: seen by what the log says of itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_timely.errors import ForeignChangeError, InvalidUsageError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log

SCHEMA = pa.schema([("v", pa.int64())])


def filled(path: Path, kind: Any, since: int | None = None) -> Log:
    """Return a log of six times, four rows each, commits of which reach over three times."""
    log = create_log(str(path / "log"), SCHEMA, minimum=(0,), kind=kind, streams=2, merge_every=None)
    writer = log.writer("a", owner="me")
    for time_ in range(6):
        rows: dict[str, Any] = {
            "_time": [time_, time_ + 1, time_ + 2, time_ + 2],
            "v": [10 * time_ + n for n in range(4)],
        }
        if kind == "collection":
            rows["_diff"] = [1] * 4
        writer.append(pa.table(rows), advance_to=time_ + 1)
    log.writer("b", owner="me").append([], advance_to=6)
    if since is not None:
        log.allow_compaction([since])
        log.compact(logical=True)
    return open_log(str(path / "log"), merge_every=None)


def clean_up(path: str, *, below: int | None = None) -> None:
    """Have delta-rs clean up entries, as those older than an hour are; all behind a checkpoint of now, or the given."""
    table = DeltaTable(path)
    if below is None:
        table.alter.set_table_properties({"delta.appendOnly": "false"})
        table = DeltaTable(path)
        table.create_checkpoint()
    last = table.version() if below is None else below
    old = time.time() - 3 * 86400
    for file in Path(path, "_delta_log").glob("0*"):
        if int(file.name[:20]) < last:
            os.utime(file, (old, old))
    table.cleanup_metadata()
    assert not Path(path, "_delta_log", f"{last - 1:020}.json").exists()


def again(table: DeltaTable) -> None:
    rows = table.to_pyarrow_table(filters=[("_event", "=", "message"), ("v", "=", 52)])
    write_deltalake(table, rows, mode="append")


DEEDS: dict[str, Callable[[DeltaTable], object]] = {
    "a whole stream": lambda table: table.delete("_stream = 'a'"),
    "a stream without messages": lambda table: table.delete("_stream = 'b'"),
    "all that is held": lambda table: table.delete("_time >= 6"),
    "first commits as a whole": lambda table: table.delete("_stream = 'a' AND _seq <= 2"),
    "a commit in the middle": lambda table: table.delete("_stream = 'a' AND _seq = 3"),
    "the newest progress": lambda table: table.delete("_event = 'progress' AND _stream = 'a' AND _seq = 6"),
    "a note": lambda table: table.update({"_reason": "'x'"}, predicate="_event = 'progress' AND _seq = 6"),
    "a held time": lambda table: table.update({"_time": "9"}, predicate="_event = 'progress' AND _seq = 6"),
    "one row": lambda table: table.delete("_event = 'message' AND v = 52"),
    "one early row": lambda table: table.delete("_event = 'message' AND v = 33"),
    "a row again": again,
}


# Of a stream that has forgotten its first commits there is nothing left to delete.
CELLS = [
    (kind, name, since)
    for kind in ("stream", "collection")
    for name in DEEDS
    for since in (None, 4)
    if (kind, name, since) != ("stream", "first commits as a whole", 4)
]


@pytest.mark.parametrize(("kind", "name", "since"), CELLS)
def test_what_is_missing_or_too_much_is_refused(tmp_path: Path, kind: str, name: str, since: int | None) -> None:
    log = filled(tmp_path, kind, since)
    live = open_log(log.path)
    assert live.messages().num_rows
    clean_up(log.path)
    assert not open_log(log.path).core.foreign_changes(), "what is whole is believed"
    DEEDS[name](DeltaTable(log.path))
    clean_up(log.path)
    for handle in (live, open_log(log.path)):
        for ask in (handle.frontier, handle.messages):
            with pytest.raises(ForeignChangeError):
                (handle.refresh(), ask())
    assert open_log(log.path).verify().problems


def test_a_stream_that_joined_and_is_gone_is_missed(tmp_path: Path) -> None:
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,), merge_every=None)
    log.writer("a", owner="me").append([{"_time": 3, "v": 1}], advance_to=2)
    log.core.open_stream("b", owner="me", donor="a")
    log.writer("a", owner="me").append([], advance_to=9)
    assert log.frontier().elements == ((2,),)
    clean_up(log.path)
    assert open_log(log.path).frontier() == log.frontier()
    DeltaTable(log.path).delete("_stream = 'b' AND _event = 'progress'")
    clean_up(log.path)
    with pytest.raises(ForeignChangeError):
        open_log(log.path).frontier()


@pytest.mark.parametrize("upkeep", ["merge", "forget", "sum", "twice"])
def test_own_upkeep_leaves_the_sum_as_it_is(tmp_path: Path, upkeep: str) -> None:
    log = filled(tmp_path, "collection" if upkeep == "sum" else "stream")
    if upkeep != "merge":
        log.allow_compaction([3])
    log.compact(logical=upkeep != "merge")
    if upkeep == "twice":
        log.allow_compaction([5])
        log.compact(logical=True)
    log.writer("a", owner="me").append(
        pa.table({"_time": [9], "v": [1], **({"_diff": [1]} if log.kind == "collection" else {})}), advance_to=9
    )
    clean_up(log.path)
    assert not open_log(log.path).core.foreign_changes()
    DeltaTable(log.path).optimize.compact()
    clean_up(log.path)
    assert not open_log(log.path).core.foreign_changes()
    assert not open_log(log.path).verify().problems
    DeltaTable(log.path).delete("_event = 'message' AND v = 1")
    clean_up(log.path)
    assert open_log(log.path).core.foreign_changes()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"v": "v + 1"}, "_event = 'message' AND v = 50"),
        ({"_time": "100"}, "_event = 'progress' AND _delta = 1 AND _seq = 6"),
    ],
)
@pytest.mark.parametrize("appends", [0, 1])
def test_an_entry_that_is_there_is_judged(tmp_path: Path, changes: Any, where: str, appends: int) -> None:
    """The mark before it names a version whose files nobody can list any more."""
    log = filled(tmp_path, "stream")
    DeltaTable(log.path).create_checkpoint()
    whole = DeltaTable(log.path).version()
    DeltaTable(log.path).update(changes, predicate=where)
    if appends and "v" in changes:
        open_log(log.path).writer("a", owner="me").append([], advance_to=7)
    before = open_log(log.path).core.foreign_changes()
    clean_up(log.path, below=whole)
    found = open_log(log.path).core.foreign_changes()
    assert [(each.version, each.operation) for each in found] == [(whole + 1, "UPDATE")]
    assert found[0].token == before[0].token
    with pytest.raises(ForeignChangeError, match=f"TO VERSION AS OF {whole}"):
        open_log(log.path).frontier()
    DeltaTable(log.path).restore(whole)
    assert open_log(log.path).frontier() == log.frontier()


def test_what_is_put_back_by_hand_is_whole(tmp_path: Path) -> None:
    log = filled(tmp_path, "collection")
    rows = DeltaTable(log.path).to_pyarrow_table(filters=[("_event", "=", "message"), ("v", "=", 52)])
    DeltaTable(log.path).delete("_event = 'message' AND v = 52")
    other = rows.set_column(rows.schema.get_field_index("_diff"), "_diff", pa.array([2], pa.int64()))
    write_deltalake(log.path, other, mode="append")
    assert open_log(log.path).core.foreign_changes()
    DeltaTable(log.path).delete("_event = 'message' AND v = 52")
    write_deltalake(log.path, rows, mode="append")
    assert not open_log(log.path).core.foreign_changes()
    assert not open_log(log.path).verify().problems


@pytest.mark.parametrize("changes", [{"_reason": "'x'"}, {"_delta": "5"}])
def test_a_handle_that_was_refused_continues_once_it_is_restored(tmp_path: Path, changes: Any) -> None:
    log = filled(tmp_path, "stream")
    live = open_log(log.path)
    live.messages()
    writer, whole = open_log(log.path).writer("a", owner="me"), DeltaTable(log.path).version()
    DeltaTable(log.path).update(changes, predicate="_event = 'progress' AND _seq = 6 AND _delta = 1")
    for ask in (live.refresh, live.messages, lambda: writer.append([], advance_to=7)):
        try:
            ask()
        except ForeignChangeError:
            continue
        assert ask == live.refresh
    assert "another program changed rows" in open_log(log.path).verify().problems[0]
    DeltaTable(log.path).restore(whole)
    live.refresh()
    assert live.frontier() == log.frontier()


def test_verify_says_what_it_can(tmp_path: Path) -> None:
    log = filled(tmp_path, "stream")
    table = DeltaTable(log.path)
    rows = table.to_pyarrow_table(filters=[("_event", "=", "message"), ("v", "=", 52)])
    nobody = rows.set_column(rows.schema.get_field_index("_stream"), "_stream", pa.array([None], pa.string()))
    write_deltalake(table, nobody, mode="append")
    assert any("without a stream or a number" in each for each in open_log(log.path).verify().problems)
    DeltaTable(log.path).delete("_event = 'progress'")
    report = open_log(log.path).verify()
    assert not report.legal
    assert report.frontier == log.domain.minimum_frontier


def test_files_that_go_while_they_are_looked_for_are_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path, "stream")
    DeltaTable(log.path).create_checkpoint()
    from spark_timely.log.store import delta

    plain = delta.table_at

    def late(storage: Any, first: int, last: int) -> Any:
        for version in range(last + 1):
            Path(log.path, "_delta_log", f"{version:020}.json").unlink(missing_ok=True)
        for name in Path(log.path, "_delta_log").glob(f"{first:020}.checkpoint*"):
            name.unlink()
        return plain(storage, first, last)

    monkeypatch.setattr(delta, "table_at", late)
    handle = open_log(log.path)
    assert handle.core.store._files_at(handle.core.version - 1) is None  # type: ignore[attr-defined]


def test_a_raised_log_counts_from_what_it_had(tmp_path: Path) -> None:
    log = filled(tmp_path, "stream")
    facts = json.loads(log.core.format.facts())
    assert facts["before"] == [0, 0]
    raised = log.core.format.raised(7, (24, 2))
    assert json.loads(raised.facts())["before"] == [24, 2]


def test_a_stream_of_which_all_rows_are_deleted_is_missed(tmp_path: Path) -> None:
    """Its messages, its progress, and what else names it: it had copied a capability."""
    log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,), merge_every=None)
    log.writer("a", owner="me").append([{"_time": 3, "v": 1}], advance_to=2)
    log.writer("b", owner="me").append([{"_time": 2, "v": 100}], advance_to=2)
    log.writer("a", owner="me").append([], advance_to=9)
    DeltaTable(log.path).delete("_stream = 'b'")
    clean_up(log.path)
    with pytest.raises(ForeignChangeError):
        open_log(log.path).frontier()


def test_a_retainer_that_is_gone_is_missed(tmp_path: Path) -> None:
    log = filled(tmp_path, "stream")
    log.retain("report", [2], owner="nightly")
    clean_up(log.path)
    assert "report" in open_log(log.path).retainers()
    DeltaTable(log.path).delete("_event = 'retain'")
    clean_up(log.path)
    with pytest.raises(ForeignChangeError):
        open_log(log.path).messages()


@pytest.mark.parametrize("between", [False, True])
def test_files_that_a_vacuum_took_from_a_quiet_log_are_no_change(tmp_path: Path, between: bool) -> None:
    """Each night another program orders the files, cleans up, and deletes what it has replaced."""
    log = filled(tmp_path, "stream")
    before = log.messages().num_rows
    for _ in range(2):
        DeltaTable(log.path).optimize.z_order(["_time"])
        if between:
            assert open_log(log.path).messages().num_rows == before
        clean_up(log.path)
        DeltaTable(log.path).optimize.z_order(["_seq"])
        DeltaTable(log.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        assert not open_log(log.path).core.foreign_changes()
        assert open_log(log.path).messages().num_rows == before
    DeltaTable(log.path).delete("_event = 'message' AND v = 52")
    clean_up(log.path)
    assert open_log(log.path).core.foreign_changes()


def files_of(path: str, seq: int) -> list[str]:
    """Return the files of messages of one commit of stream `a`."""
    paths = pa.table(DeltaTable(path).get_add_actions())["path"].to_pylist()
    return [each for each in paths if f"message/a-{seq:012}" in each]


def swap(path: str) -> None:
    """Have another program rewrite two commits in silence: a row of one is lost, one of the other is there twice."""
    table = DeltaTable(path)
    paths = [each for seq in (2, 3) for each in files_of(path, seq)]
    rows = table.to_pyarrow_table(filters=[("_event", "=", "message"), ("_seq", "in", [2, 3])]).sort_by("v")
    rows = pa.concat_tables([rows.slice(1), rows.slice(rows.num_rows - 1)]).drop_columns(["_event"])
    name = "_event=message/part-00000-swapped.c000.snappy.parquet"
    pq.write_table(rows, Path(path, name))
    version, now = table.version() + 1, int(time.time() * 1000)
    add = {
        "path": name,
        "partitionValues": {"_event": "message"},
        "size": Path(path, name).stat().st_size,
        "modificationTime": now,
        "dataChange": False,
        "stats": json.dumps({"numRecords": rows.num_rows}),
    }
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "OPTIMIZE", "timestamp": now}}, {"add": add}]
    actions += [{"remove": {"path": each, "dataChange": False, "deletionTimestamp": now}} for each in paths]
    assert len(paths) == 2
    Path(path, "_delta_log", f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("reopened", [False, True])
def test_own_upkeep_looks_before_it_cleans_up(tmp_path: Path, reopened: bool) -> None:
    log = filled(tmp_path, "stream")
    writer = open_log(log.path).writer("a", owner="me")
    swap(log.path)
    if reopened:
        writer = open_log(log.path).writer("a", owner="me")
    for time_ in range(7, 60):
        writer.append(pa.table({"_time": [time_], "v": [1]}), advance_to=time_)
    assert [each.operation for each in writer.core.foreign_changes()] == ["OPTIMIZE"]
    with pytest.raises(ForeignChangeError):
        open_log(log.path).messages()


def test_numbers_are_asked_where_nobody_looked(tmp_path: Path) -> None:
    log = filled(tmp_path, "stream")
    swap(log.path)
    quiet = open_log(log.path, merge_every=None)
    quiet.writer("a", owner="me").append([], advance_to=7)
    newest = DeltaTable(log.path).version()
    DeltaTable(log.path).create_checkpoint()
    clean_up(log.path, below=newest)
    for _ in range(2):  # and once more behind a commit of a writer that has not looked
        with pytest.raises(ForeignChangeError):
            open_log(log.path).messages()
        writer = open_log(log.path, merge_every=None).writer("b", owner="me")
        writer.append([], advance_to=writer.state.frontier.elements[0][0] + 1)


def test_a_token_is_of_what_a_look_finds_too(tmp_path: Path) -> None:
    log = filled(tmp_path, "stream")
    DeltaTable(log.path).delete("_event = 'message' AND v = 52")
    with pytest.raises(ForeignChangeError) as shown:
        open_log(log.path).messages()
    swap(log.path)
    with pytest.raises(InvalidUsageError, match="OPTIMIZE") as refused:
        open_log(log.path).accept_change(shown.value.context["token"])
    report = open_log(log.path).accept_change(refused.value.context["token"])
    assert report.commits == 3
    assert not open_log(log.path).verify().problems


def test_what_the_token_is_not_of_stays_a_problem(tmp_path: Path) -> None:
    log = filled(tmp_path, "stream")
    DeltaTable(log.path).delete("_event = 'message' AND v = 52")
    [path] = files_of(log.path, 2)
    rows = pq.read_table(Path(log.path, path))
    place = rows.schema.get_field_index("v")
    pq.write_table(rows.set_column(place, "v", pa.array([777] * rows.num_rows, pa.int64())), Path(log.path, path))
    with pytest.raises(ForeignChangeError) as shown:
        open_log(log.path).messages()
    open_log(log.path).accept_change(shown.value.context["token"])
    [problem] = open_log(log.path).verify().problems
    assert "stream 'a' at seq=2: found other messages than were written" in problem
