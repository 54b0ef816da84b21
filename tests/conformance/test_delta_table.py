"""A log as a Delta table: what is refused, what survives handling by others; damage: `test_delta_damage.py`."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake

from spark_timely.errors import (
    InvalidUsageError,
    LogFormatError,
    LogMissingError,
    SchemaMismatchError,
    StorageError,
)
from spark_timely.log.files.format import LogFormat
from spark_timely.log.files.index import index_files
from spark_timely.log.log import MemoryLog, create_log, open_log
from spark_timely.log.machine.decide import LostRaceError
from spark_timely.log.store.delta import DeltaStore
from spark_timely.sink.plan import find_log
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import VALUES, filled

# Creating -----------------------------------------------------------------------------------------


def test_create_again_is_refused_unless_allowed(path: Path) -> None:
    log = create_log(path, VALUES, minimum=(0,), streams=2)
    with pytest.raises(InvalidUsageError, match="a Delta table there already"):
        create_log(path, VALUES, minimum=(0,))
    same = create_log(path, VALUES, minimum=(0,), exist_ok=True)
    assert (same.core.log_id, same.core.unclaimed) == (log.core.log_id, 2)


@pytest.mark.parametrize(
    ("schema", "options", "found"),
    [
        (VALUES, {"times": ("date",), "minimum": None}, "found kind='stream' times="),
        (VALUES, {"minimum": (1,)}, "found kind='stream' times="),
        (VALUES, {"kind": "collection"}, "in place of kind='collection'"),
        (pa.schema([("w", pa.int64())]), {}, "no column 'w'"),
        (pa.schema([("v", pa.string())]), {}, "column .*v: int64.* where .*string"),
        (pa.schema([("v", pa.int64()), ("w", pa.int64())]), {}, "no column 'w'"),
        (pa.schema([]), {}, "a further column 'v'"),
    ],
)
def test_create_over_another_log_is_refused(path: Path, schema: pa.Schema, options: dict[str, Any], found: str) -> None:
    create_log(path, VALUES, minimum=(0,))
    with pytest.raises(SchemaMismatchError, match=found):
        create_log(path, schema, exist_ok=True, **({"minimum": (0,)} | options))


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "a\\b"])
def test_path_that_delta_decodes_never_reaches_a_neighbour(tmp_path: Path, name: str) -> None:
    neighbour = filled(tmp_path / "a b")
    for make in (open_log, lambda path: create_log(path, VALUES)):
        with pytest.raises(InvalidUsageError, match="rename the directory"):
            make(tmp_path / name)
    assert os.listdir(tmp_path) == ["a b"]
    assert neighbour.verify().legal


@pytest.mark.parametrize("name", ["50%", "a#b", "a?b", "a=b", "ü日", "[x]*", "q'u;o,te", "a:b", "_event=x", "%zz"])
def test_log_at_a_path_with_other_signs(tmp_path: Path, name: str) -> None:
    log = filled(tmp_path / name)
    log.compact()
    assert open_log(tmp_path / name).messages().num_rows == 6
    assert open_log((tmp_path / name).as_uri()).verify().legal
    assert os.listdir(tmp_path) == [name]


def test_create_leaves_other_things_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidUsageError, match=r"found 'notes.txt' in the directory"):
        create_log(tmp_path, VALUES)
    with pytest.raises(InvalidUsageError, match="found a file"):
        create_log(tmp_path / "notes.txt", VALUES)
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("left", [None, "_commit_8c1f.json.tmp", f"{0:020d}.json#1", f".{0:020d}.json.3f.tmp"])
def test_place_where_a_creation_was_killed_is_free(path: Path, left: str | None) -> None:
    (path / "_delta_log").mkdir(parents=True)
    (path / "_event=message").mkdir()
    if left is not None:
        (path / "_delta_log" / left).write_text("{")
    assert find_log(str(path), {}) is None
    with pytest.raises(LogMissingError, match="found no Delta table"):
        open_log(path)
    log = create_log(path, VALUES, minimum=(0,))
    log.writer(owner="me").append(pa.table({"_time": [1], "v": [1]}))
    found = find_log(str(path), {})
    assert found is not None
    assert found.messages()["v"].to_pylist() == [1]
    assert found.verify().legal


@pytest.mark.parametrize("left", [f"{7:020d}.json", f"{10:020d}.checkpoint.parquet", "_last_checkpoint"])
def test_table_that_lost_its_beginning_is_no_free_place(path: Path, left: str) -> None:
    (path / "_delta_log").mkdir(parents=True)
    (path / "_delta_log" / left).write_text("{}")
    with pytest.raises(InvalidUsageError, match="found a Delta table there already"):
        create_log(path, VALUES)
    with pytest.raises((LogMissingError, StorageError)):
        find_log(str(path), {})
    assert [p.name for p in (path / "_delta_log").iterdir()] == [left]


def test_killed_creation_among_other_things_is_refused(path: Path) -> None:
    (path / "_delta_log").mkdir(parents=True)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidUsageError, match=r"found 'notes.txt' in the directory"):
        create_log(path, VALUES)
    with pytest.raises(LogMissingError, match=r"found 'notes.txt', and no log"):
        find_log(str(path), {})


@pytest.mark.parametrize("streams", [0, -1, 1.5, True, "2", 2**31, 2**63])
def test_create_wants_streams(path: Path, streams: Any) -> None:
    with pytest.raises(InvalidUsageError, match="give a number of streams from 1 to 2147483647"):
        create_log(path, VALUES, streams=streams)
    assert not path.exists()
    with pytest.raises(InvalidUsageError, match="give a number of streams from 1 to 2147483647"):
        MemoryLog.create(VALUES, streams=streams)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"compression": "x"}, "compression='x' — hint: choose"),
        ({"compression": 5}, "compression=5 — hint: choose"),
        ({"target_file_size": "64 stones"}, "target_file_size='64 stones' — hint: give a size such as"),
        ({"target_file_size": 0}, "target_file_size=0 — hint: give target_file_size of at least 1 byte"),
    ],
)
def test_writer_refuses_its_options_before_it_opens_a_stream(path: Path, wrong: dict[str, Any], found: str) -> None:
    log = create_log(path, VALUES, minimum=(0,))
    with pytest.raises(InvalidUsageError, match=found):
        log.writer("a", owner="o", **wrong)
    assert log.core.stream("a") is None
    assert sorted(each.name for each in path.iterdir()) == ["_delta_log", "_event=progress"]


def test_create_is_one_commit_with_the_unclaimed_capabilities(path: Path) -> None:
    create_log(path, VALUES, minimum=(0,), streams=3)
    table = DeltaTable(path)
    assert table.version() == 0
    (row,) = table.to_pyarrow_table().to_pylist()
    assert (row["_event"], row["_stream"], row["_time"], row["_delta"], row["_count"]) == ("progress", "#open", 0, 3, 3)
    facts = json.loads(table.schema().fields[0].metadata["timely.log"])
    assert facts.pop("guardedFrom") == 0
    assert facts.pop("before") == [0, 0]
    assert facts == {"version": 4, "kind": "stream", "times": ["long"], "minimum": [0], "nullable": {"v": True}}
    assert table.metadata().partition_columns == ["_event"]


# Opening ------------------------------------------------------------------------------------------


def test_open_of_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError, match="found nothing there"):
        open_log(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogMissingError, match="found no Delta table"):
        open_log(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogMissingError, match="found a file"):
        open_log(tmp_path / "file")
    write_deltalake(tmp_path / "plain", pa.table({"a": [1]}))
    with pytest.raises(LogMissingError, match="a Delta table that is no capture log"):
        open_log(tmp_path / "plain")
    with pytest.raises(InvalidUsageError, match="path of the log"):
        open_log("")


def edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Change the actions of the table's first commit."""
    create_log(path, VALUES, minimum=(0,))
    entry = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        edit(action)
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
    return path


def test_log_of_a_newer_version_is_refused(path: Path) -> None:
    def newer(action: dict[str, Any]) -> None:
        if "metaData" in action:
            text = action["metaData"]["schemaString"]
            action["metaData"]["schemaString"] = text.replace('\\"version\\": 4', '\\"version\\": 5')

    with pytest.raises(LogFormatError, match=r"format version=5, this library uses 2, 3 and 4 — hint: upgrade"):
        open_log(edited(path, newer))


@pytest.mark.parametrize(
    ("protocol", "found"),
    [
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"]}, "type widening"),
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["brandNew"]}, "brandNew"),
        ({"minReaderVersion": 9, "minWriterVersion": 9}, "reader version 9"),
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"]}, "column mapping"),
    ],
)
def test_table_features_that_cannot_be_read_are_refused(path: Path, protocol: dict[str, Any], found: str) -> None:
    def raised(action: dict[str, Any]) -> None:
        if "protocol" in action:
            features = {"writerFeatures": protocol["readerFeatures"]} if "readerFeatures" in protocol else {}
            action["protocol"] = protocol | features

    with pytest.raises(LogFormatError, match=f"table features that cannot be read: .*{found}"):
        open_log(edited(path, raised))


def raise_protocol(path: Path, *features: str, writer: int = 7) -> None:
    """Change the table's protocol as another engine would."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": writer}
    if writer == 7:
        protocol["writerFeatures"] = ["appendOnly", "invariants", *features]  # type: ignore[assignment]
    version = DeltaTable(path).version() + 1
    (path / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")


def files_below(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*.*")}


UNWRITABLE = [
    ("domainMetadata", 7),
    ("rowTracking", 7),
    ("inCommitTimestamp", 7),
    ("clustering", 7),
    ("icebergCompatV2", 7),
    ("brandNew", 7),
    ("identityColumns", 6),
]


@pytest.mark.parametrize(("feature", "writer"), UNWRITABLE)
def test_table_features_that_we_cannot_write_are_refused(path: Path, feature: str, writer: int) -> None:
    filled(path, streams=2)
    raise_protocol(path, feature, writer=writer)
    log, before = open_log(path), files_below(path)
    refused = pytest.raises(LogFormatError, match=r"table features that cannot be written: .*hint: .*DROP FEATURE")
    for use in (
        lambda: log.writer(owner="me"),
        lambda: log.writer("other", owner="you"),
        lambda: log.advance("main", 9),
        log.close,
        log.compact,
    ):
        with refused:
            use()
    assert files_below(path) == before
    assert log.messages().num_rows == 6
    assert log.verify().legal


@pytest.mark.parametrize("known_beforehand", [True, False])
def test_features_that_come_while_a_writer_is_open_are_refused(
    path: Path, known_beforehand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(path)
    writer = log.writer(owner="me")
    raise_protocol(path, "rowTracking")
    if not known_beforehand:
        monkeypatch.setattr(DeltaStore, "check_writable", lambda self: None)
    before = files_below(path)
    with pytest.raises(LogFormatError, match="RowTracking"):
        log.advance("main", 9)
    assert files_below(path) == before
    with pytest.raises(LogFormatError):
        log.compact()
    assert files_below(path) == before
    with pytest.raises(LogFormatError, match="RowTracking"):
        writer.append(pa.table({"_time": [9], "v": [9]}))
    assert files_below(path) == before
    assert log.messages().num_rows == 6


def test_features_that_can_be_written_need_no_question(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    raise_protocol(path, "changeDataFeed", "checkConstraints", "generatedColumns")
    monkeypatch.setattr(DeltaTable, "optimize", None)
    log = open_log(path)
    log.writer(owner="me").append(pa.table({"_time": [9], "v": [9]}))
    assert log.verify().legal


@pytest.mark.parametrize("what", ["commit", "columns"])
def test_commit_through_delta_rs_from_a_stale_snapshot_loses(path: Path, what: str) -> None:
    # As on a store without hard links; its handle is made when it is needed, and finds the newest version.
    first = filled(path)
    store = first.core.store
    assert isinstance(store, DeltaStore)
    store._links, store._table = False, None
    open_log(path).writer(owner="me").append(pa.table({"_time": [9], "v": [9]}))
    version = DeltaTable(path).version()
    calls = {
        "commit": lambda: store.transact([], [("mine", 1)], exclusive=True),
        "columns": lambda: store.add_columns(pa.schema([("w", pa.int64())])),
    }
    with pytest.raises(LostRaceError, match=f"found version={version} — hint: refresh"):
        calls[what]()
    assert DeltaTable(path).version() == version


def test_refresh_follows_the_entries_of_others_one_by_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = filled(path), open_log(path)
    writer = other.writer(owner="me")
    for i in range(3):
        writer.append(pa.table({"_time": [9], "v": [i]}))
    # Nothing needs delta-rs, which reads the whole table.
    monkeypatch.setattr(DeltaStore, "_open", lambda _: pytest.fail("the table was opened"))
    log.refresh()
    assert log.core.version == other.core.version
    assert sorted(log.core.files().paths.tolist()) == sorted(other.core.files().paths.tolist())


def test_store_that_refuses_for_ever_is_quoted(path: Path) -> None:
    log = filled(path)

    def refuse(*args: Any, **more: Any) -> None:
        raise LostRaceError("could not commit: found a quota")

    log.core.store.transact = refuse  # type: ignore[method-assign]
    before = files_below(path)
    with pytest.raises(StorageError, match=r"found 100 lost races, the last: .*a quota") as raised:
        log.advance("main", 9)
    assert raised.value.determinate
    assert files_below(path) == before


def test_table_with_features_that_do_no_harm_is_used(path: Path) -> None:
    log = filled(path)
    table = DeltaTable(path)
    table.alter.add_feature([TableFeatures.DeletionVectors], allow_protocol_versions_increase=True)
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    log.writer(owner="me").append(pa.table({"_time": [9], "v": [9]}), advance_to=10)
    log.compact()
    report = open_log(path).verify()
    assert report.legal, report.problems
    assert (report.messages, report.frontier) == (7, Antichain.of(10))


def test_table_that_only_takes_appends_is_not_compacted(path: Path) -> None:
    create_log(path, VALUES, minimum=(0,))
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    log = open_log(path, merge_every=4)
    writer = log.writer(owner="me")
    for i in range(1, 13):
        writer.append(pa.table({"_time": [i], "v": [i]}), advance_to=i)
    assert len(log.core.files()) == 12
    assert len(log.core.progress_files()) < 12
    with pytest.raises(InvalidUsageError, match=r"delta\.appendOnly=true"):
        log.compact()
    assert open_log(path).verify().legal


def test_log_that_was_deleted_and_made_anew_is_noticed(path: Path) -> None:
    log = filled(path)
    shutil.rmtree(path)
    create_log(path, VALUES, minimum=(0,))
    with pytest.raises((LogMissingError, StorageError)):
        log.writer(owner="me").append(pa.table({"_time": [9], "v": [9]}))
    assert open_log(path).messages().num_rows == 0


def test_column_added_by_alter_is_part_of_the_payload(path: Path) -> None:
    log = filled(path)
    DeltaTable(path).alter.add_columns([Field("w", "string")])
    writer = log.writer(owner="me")
    # Who has appended without it so far goes on; columns that the log was made with are still asked for.
    writer.append(pa.table({"_time": [9], "v": [9]}))
    with pytest.raises(SchemaMismatchError, match="found no column 'v'"):
        writer.append(pa.table({"_time": [9], "w": ["x"]}))
    writer.append(pa.table({"_time": [9], "v": [9], "w": ["x"]}))
    assert log.messages()["w"].to_pylist() == [None] * 7 + ["x"]
    assert log.verify().legal


def test_handles_can_be_pickled(path: Path) -> None:
    log = filled(path)
    copy = pickle.loads(pickle.dumps(log))
    assert copy.path == log.path
    assert copy.messages().equals(log.messages())
    assert pickle.loads(pickle.dumps(log.core.format)) == log.core.format
    assert pickle.loads(pickle.dumps(log.core.storage)).uri == log.path


def test_describe_is_plain(path: Path) -> None:
    facts = filled(path, streams=2).describe()
    assert json.loads(json.dumps(facts))["messages"] == 6
    assert facts["streams"]["main"]["frontier"] == "[3]"
    assert (facts["frontier"], facts["unclaimed"], facts["message_files"]) == ("[0]", 1, 3)


# Statistics of other engines ----------------------------------------------------------------------


def listing(*files: dict[str, Any]) -> pa.Table:
    typed = pa.struct([("_stream", pa.string()), ("_seq", pa.int64()), ("_time", pa.timestamp("us", "UTC"))])
    schema = pa.schema(
        [
            ("path", pa.string()),
            ("size_bytes", pa.int64()),
            ("modification_time", pa.int64()),
            ("num_records", pa.int64()),
            ("partition", pa.struct([("_event", pa.string())])),
            ("min", typed),
            ("max", typed),
        ]
    )
    plain = {"size_bytes": 1, "modification_time": 0, "num_records": 1, "partition": {"_event": "message"}}
    return pa.Table.from_pylist([plain | f for f in files], schema=schema)


def test_index_takes_cut_statistics_as_what_they_may_stand_for() -> None:
    form = LogFormat.build(VALUES, times=("timestamp",))
    long = "x" * 32

    def stats(stream: str, seq: int, time: int) -> dict[str, Any]:
        at = pa.array([time], pa.timestamp("us", "UTC"))[0].as_py()
        return {"_stream": stream, "_seq": seq, "_time": at}

    index = index_files(
        form,
        listing(
            {"path": "p0", "min": stats("a", 1, 1_000), "max": stats("a", 2, 5_000)},
            {"path": "p1", "min": stats("a", 1, 1_001), "max": stats("b", 2, 5_001)},
            {"path": "p2", "min": stats(long, 1, 0), "max": stats(long, 2, 0)},
            {
                "path": f"_event=message/{long}-000000000002-ab.parquet",
                "min": stats(long, 1, 0),
                "max": stats(long, 2, 0),
            },
            {"path": "p4", "min": None, "max": None, "num_records": None},
        ),
    )
    assert index.max_times[:, 0].tolist()[:2] == [5_999, 5_001]
    assert index.known.tolist() == [True, True, True, True, False]
    assert index.may_hold_stream("a").tolist() == [True, True, False, False, True]
    assert index.may_hold_stream(long + "y").tolist() == [False, False, True, False, True]
    assert index.rows.tolist() == [1, 1, 1, 1, -1]
    assert index.may_hold_times(Antichain.of(5_500), None).tolist() == [True, False, False, False, True]
    assert index.may_hold_times(None, Antichain.of(1_001)).tolist() == [True, False, True, True, True]
    assert index.may_hold_times(Antichain.empty(), None).tolist() == [False] * 4 + [True]
    assert len(index.of_event("progress")) == 0


def test_index_without_any_statistics_may_hold_anything(path: Path) -> None:
    log = filled(path)
    table = DeltaTable(path)
    bare = pa.table(table.get_add_actions()).drop(["min", "max"])
    index = index_files(log.core.format, bare)
    assert not index.known.any()
    assert index.may_hold_stream("any").all()
    assert index.may_hold_times(Antichain.of(1 << 60), None).all()


@pytest.mark.parametrize(("hours", "taken"), [(20, False), (30, True)])
def test_vacuum_leaves_files_of_a_slow_micro_batch(path: Path, hours: int, taken: bool) -> None:
    log = filled(path)
    # Written, and not part of the log yet.
    under_way = path / "_event=message" / "main-000000000004-ab.parquet"
    under_way.write_bytes(b"x")
    written = time.time() - hours * 3600
    os.utime(under_way, (written, written))
    DeltaTable(path).vacuum(dry_run=False, full=True)
    assert under_way.exists() != taken
    assert log.verify().legal


def test_state_is_found_without_statistics(path: Path) -> None:
    log = filled(path, streams=2)
    states, frontier = dict(log.streams()), log.frontier()
    entries = sorted((path / "_delta_log").glob("*.json"))
    for entry in entries:
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            if "add" in action:
                action["add"]["stats"] = json.dumps({"numRecords": 1})
        entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
    bare = open_log(path)
    assert dict(bare.streams()) == states
    assert bare.frontier() == frontier
    assert bare.messages(lower=3)["v"].to_pylist() == [2, 3, 3]
    assert bare.verify().legal


def test_number_of_messages_is_unknown_where_a_file_lacks_it(path: Path) -> None:
    log = filled(path)
    assert log.describe()["message_files"] > 1
    assert log.describe()["messages"] == log.messages().num_rows
    for entry in sorted((path / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        found = [each["add"] for each in actions if each.get("add", {}).get("path", "").startswith("_event=message")]
        for add in found:
            del add["stats"]
        entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
        if found:
            break
    assert open_log(path).describe()["messages"] is None


def test_files_are_plain_parquet(path: Path) -> None:
    log = filled(path)
    table = pq.read_table(path / log.core.files().paths[0], partitioning=None)
    assert table.schema.names == ["_stream", "_seq", "_time", "v"]
    assert str(table.schema.field("_stream").type) == "string"


# Clones -------------------------------------------------------------------------------------------


def _with_paths_of(content: str, root: Path) -> str:
    """Return an entry whose files are where they are, as a shallow clone names them."""
    actions = [json.loads(line) for line in content.splitlines()]
    for action in actions:
        for said in (action.get("add"), action.get("remove")):
            if said is not None:
                said["path"] = f"file://{root}/{said['path']}"
    return "\n".join(json.dumps(action) for action in actions)


def test_shallow_clone_is_refused_by_the_file_that_it_lacks(path: Path, tmp_path: Path) -> None:
    log = filled(path)
    clone = tmp_path / "clone"
    (clone / "_delta_log").mkdir(parents=True)
    for entry in sorted((path / "_delta_log").glob("*.json")):
        content = entry.read_text().replace("timelyActions", "actions").replace(log.core.log_id, "0" * 36)
        (clone / "_delta_log" / entry.name).write_text(_with_paths_of(content, path))
    with pytest.raises(LogFormatError, match=r"found file 'file://.*\.parquet', which is outside of its folder"):
        open_log(clone)
    assert log.messages().num_rows == open_log(path).messages().num_rows


def test_file_from_elsewhere_is_refused_by_a_handle_that_follows(path: Path, tmp_path: Path) -> None:
    log, other = filled(path), create_log(tmp_path / "other", VALUES, minimum=(0,))
    other.writer(owner="me").append({"_time": [3], "v": [1]})
    handle, version = open_log(path), log.core.version + 1
    content = (tmp_path / "other" / "_delta_log" / f"{other.core.version:020d}.json").read_text()
    content = _with_paths_of(content, tmp_path / "other").replace("timelyActions", "actions").replace("timelyV", "v")
    (path / "_delta_log" / f"{version:020d}.json").write_text(content)
    for _ in range(2):  # it stays refused
        with pytest.raises(LogFormatError, match="outside of its folder"):
            handle.refresh()
    with pytest.raises(LogFormatError, match="outside of its folder"):
        open_log(path)
