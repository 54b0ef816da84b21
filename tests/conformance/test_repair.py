"""Repair of damaged entries: rebuilt where the commit's files are whole, else empty, and what is lost is said."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.cli import main
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.errors import InvalidUsageError, LogDamagedError, LogMissingError, RolledBackError
from spark_timely.interop.importing import CaptureTypes, StreamImport
from spark_timely.interop.writer import capture_bytes
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import delta as delta_store
from spark_timely.log.store.delta import DeltaStore
from spark_timely.log.store.entries import entry_path, parse_entry
from spark_timely.log.store.repair import RepairReport, RepairStep, repair_log
from spark_timely.log.store.storage import FileStorage
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import VALUES, filled
from tests.property.test_dataflow import runner
from tests.unit.sink.driver import BOUNDED, SinkDriver
from tests.unit.sink.driver import rows as sink_rows

DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda entry: entry.write_bytes(b""),
    "cut": lambda entry: entry.write_bytes(entry.read_bytes()[:-20]),
    "zeros": lambda entry: entry.write_bytes(bytes(len(entry.read_bytes()))),
    "lines": lambda entry: entry.write_bytes(b"".join(entry.read_bytes().splitlines(keepends=True)[:-1])),
}


def entry(path: Path, version: int) -> Path:
    return path / entry_path(version)


def look(path: Path, *, apply: bool = False) -> RepairReport:
    return repair_log(path, apply=apply, pause=lambda _: None)


def only(report: RepairReport) -> RepairStep:
    (step,) = report.steps
    return step


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("damage", DAMAGE)
def test_entry_of_a_commit_whose_files_are_whole_is_rebuilt(path: Path, damage: str) -> None:
    log = filled(path)
    before, version = log.verify(), log.core.version
    DAMAGE[damage](entry(path, version))
    with pytest.raises(LogDamagedError):
        open_log(path)
    left = tree(path)
    step = only(look(path))
    assert (step.version, step.action) == (version, "rebuild")
    assert step.says == "commit 3 of stream 'main' comes back, with 2 messages: all its files are there and whole"
    assert len(step.files) == 2
    assert tree(path) == left, "a look changes nothing"
    assert look(path, apply=True).applied
    again = open_log(path)
    assert again.core.version == version
    assert again.verify().digest == before.digest
    assert again.verify().legal
    assert look(path).steps == ()
    # The handle that was there sees it, and the stream is written further.
    log.writer(owner="me").append(pa.table({"_time": [9], "v": [9]}), advance_to=10)
    assert open_log(path).verify().messages == 7


def test_entry_in_the_middle_is_rebuilt_from_unnamed_files(path: Path) -> None:
    log = filled(path)
    before = log.verify()
    for version in (2, 3):  # two commits of one stream, one behind the other
        entry(path, version).write_bytes(b"")
    report = look(path, apply=True)
    assert [(step.version, step.action) for step in report.steps] == [(2, "rebuild"), (3, "rebuild")]
    assert open_log(path).verify() == before


def test_entry_that_is_missing_is_put_back(path: Path) -> None:
    log = filled(path)
    before = log.verify()
    entry(path, 3).unlink()
    step = only(look(path, apply=True))
    assert (step.found, step.action) == ("missing", "rebuild")
    assert open_log(path).verify() == before


@pytest.mark.parametrize("kind", ["claim", "copy"])
def test_opening_of_a_stream_is_rebuilt(path: Path, kind: str) -> None:
    log = create_log(path, VALUES, minimum=(0,), streams=1 if kind == "copy" else 2)
    log.core.open_stream("a", owner="a")
    log.core.open_stream("b", owner="b")
    entry(path, log.core.version).write_bytes(b"")
    assert only(look(path, apply=True)).action == "rebuild"
    again = open_log(path)
    assert sorted(again.streams()) == ["a", "b"]
    assert again.verify().legal


def test_commit_beside_an_opening_is_not_taken_for_its_stream(path: Path) -> None:
    """One of two attempts at the version won; which one cannot be told from what is left."""
    log = create_log(path, VALUES, minimum=(0,), streams=2)
    log.core.open_stream("a", owner="a")
    before = tree(path)
    log.writer("a", owner="a").append(pa.table({"_time": [1], "v": [1]}), advance_to=2)
    lost = {name: data for name, data in tree(path).items() if name not in before and name.startswith("_event")}
    shutil.rmtree(path)
    for name, data in before.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    again = open_log(path)
    again.core.open_stream("b", owner="b")
    (opened,) = (path / "_event=progress").glob("b-*")
    opened.unlink()
    for name, data in lost.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    entry(path, again.core.version).write_bytes(b"")
    step = only(look(path))
    assert step.action == "empty"
    assert "2 commits that may come next have left files" in step.says


def broken_data(path: Path, log: Log, what: str) -> None:
    names = {kind: path / f"_event={kind}" for kind in ("message", "progress")}
    newest = {kind: next(folder.glob("main-000000000003-*")) for kind, folder in names.items()}
    if what == "message cut":
        newest["message"].write_bytes(newest["message"].read_bytes()[:-9])
    elif what == "message gone":
        newest["message"].unlink()
    elif what == "progress empty":
        newest["progress"].write_bytes(b"")
    elif what == "two attempts":
        (names["progress"] / "main-000000000003-ff.parquet").write_bytes(newest["progress"].read_bytes())
    elif what == "rows of two attempts":
        (names["message"] / "main-000000000003-ff.parquet").write_bytes(newest["message"].read_bytes())
    elif what == "progress gone":
        newest["progress"].unlink()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("message cut", "a file of the commit that comes next is damaged"),
        ("message gone", "0 of 2 messages of the commit that comes next are there"),
        ("progress empty", "a file of the commit that comes next is damaged"),
        ("two attempts", "2 commits that may come next have left files"),
        ("rows of two attempts", "4 of 2 messages of the commit that comes next are there, or of several attempts"),
        ("progress gone", "no commit that comes next has left its progress"),
    ],
)
def test_entry_of_broken_files_becomes_empty_and_is_reported(path: Path, what: str, says: str) -> None:
    log = filled(path)
    version = log.core.version
    broken_data(path, log, what)
    entry(path, version).write_bytes(b"")
    step = only(look(path, apply=True))
    assert step.action == "empty"
    assert says in step.says
    assert "lost" in step.says
    again = open_log(path)
    assert again.core.version == version, "the number of the version stays"
    assert again.frontier() == Antichain.of(2)
    assert again.messages().num_rows == 4
    assert again.verify().legal
    # A handle that knew the commit says that it is gone.
    with pytest.raises(RolledBackError, match=r"'main' at seq=2, this handle has seen 'main' at seq=3"):
        log.refresh()
    again.writer(owner="me").append(pa.table({"_time": [3], "v": [3]}), advance_to=4)
    assert open_log(path).verify().messages == 5


def test_lost_commit_before_later_ones_is_named(path: Path) -> None:
    log = filled(path)
    broken_data(path, log, "nothing")
    for kind in ("message", "progress"):
        next((path / f"_event={kind}").glob("main-000000000002-*")).unlink()
    entry(path, 3).write_bytes(b"")
    assert only(look(path)).says.startswith("commit 2 of stream 'main' is lost: ")


def test_merge_that_lost_its_entry_loses_nothing(path: Path) -> None:
    log = filled(path)
    before = log.verify().digest
    log.compact()
    version = max(int(name[:20]) for name in os.listdir(path / "_delta_log") if name.endswith(".json"))
    for name in os.listdir(path / "_delta_log"):
        if "checkpoint" in name:
            (path / "_delta_log" / name).unlink()
    entry(path, version).write_bytes(b"")
    step = only(look(path, apply=True))
    assert step.action == "empty"
    assert "unless it was upkeep, which loses nothing" in step.says
    assert open_log(path).verify().digest == before


def test_entry_whose_file_was_merged_later_is_not_emptied(path: Path) -> None:
    """The later merge removes what the damaged one added: with an empty entry its sources would count twice."""
    log = filled(path)
    log.compact()
    log.writer(owner="me").append(pa.table({"_time": [5, 6], "v": [5, 6]}), advance_to=6)
    merged = [
        v for v in range(log.core.version + 1) if entry(path, v).exists() and b'"remove"' in entry(path, v).read_bytes()
    ]
    log.compact()
    for name in os.listdir(path / "_delta_log"):
        if "checkpoint" in name:
            (path / "_delta_log" / name).unlink()
    entry(path, merged[0]).write_bytes(b"")
    with pytest.raises(LogDamagedError, match="a later entry removes file"):
        look(path, apply=True)
    assert entry(path, merged[0]).read_bytes() == b""


def test_first_entry_cannot_be_repaired(path: Path) -> None:
    filled(path)
    entry(path, 0).write_bytes(b"")
    with pytest.raises(LogDamagedError, match="it is the first"):
        look(path, apply=True)


def test_entry_that_a_checkpoint_covers_loses_nothing(path: Path) -> None:
    log = filled(path)
    before = log.verify()
    log.core.tidy()
    entry(path, log.core.version).write_bytes(b"")
    assert "nothing is lost" in only(look(path, apply=True)).says
    assert open_log(path).verify() == before


def test_damage_behind_a_whole_checkpoint_is_nothing_to_repair(path: Path) -> None:
    log = filled(path)
    log.core.tidy()
    log.writer(owner="me").append(pa.table({"_time": [9], "v": [9]}), advance_to=10)
    before = log.verify()
    entry(path, 1).write_bytes(b"")
    assert look(path, apply=True).steps == ()
    assert open_log(path).verify() == before


def test_entry_that_is_being_written_is_left_alone(path: Path) -> None:
    log = filled(path)
    whole = entry(path, log.core.version).read_bytes()
    entry(path, log.core.version).write_bytes(whole[:9])
    report = repair_log(path, apply=True, pause=lambda _: entry(path, log.core.version).write_bytes(whole) and None)
    assert report.steps == ()
    assert entry(path, log.core.version).read_bytes() == whole


def test_micro_batch_with_dead_letters_is_rebuilt(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="deadLetter")
    driver.run([sink_rows([9, 9], 0), sink_rows([8], 2)])
    driver.run([sink_rows([1, 12], 3), sink_rows([13], 5)])
    before = driver.log().verify()
    assert before.dead_letters == 1
    entry(driver.log_path, driver.log().core.version).write_bytes(b"")
    assert only(look(driver.log_path)).action == "rebuild"
    left = next((driver.log_path / "_event=dead").glob("*.parquet"))
    aside = left.rename(tmp_path / "aside")
    assert "0 of 1 dead letters" in only(look(driver.log_path)).says
    aside.rename(left)
    look(driver.log_path, apply=True)
    assert driver.log().verify() == before


def test_import_with_dead_letters_is_rebuilt(tmp_path: Path) -> None:
    types = CaptureTypes.parse("u64", "u64", timely="0.32")
    log = create_log(str(tmp_path / "log"), types.payload, times=["long"], minimum=(0,))
    events: list[Any] = [([3], [1]), ([], [2, 3]), {0: -1, 4: 1}]
    data = capture_bytes(events, time="u64", record="u64", timely="0.32")
    StreamImport(log, "w", types, name="x", unstamped="dead-letter").take_whole(io.BytesIO(data))
    version = log.core.version
    log.advance("w", 5)  # a commit without letters
    before = log.verify()
    assert before.dead_letters == 2
    for number in (version + 1, version):
        entry(tmp_path / "log", number).write_bytes(b"")
    assert [step.action for step in look(tmp_path / "log").steps] == ["rebuild", "rebuild"]
    look(tmp_path / "log", apply=True)
    assert open_log(str(tmp_path / "log")).verify() == before


def test_step_of_a_dataflow_with_dead_letters_is_rebuilt(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("gone", pa.bool_())])
    changes = create_log(str(tmp_path / "in"), schema, minimum=(0,))
    rows = pa.table({"_time": [1, 2, 9], "k": ["a"] * 3, "n": [1, 2, 1], "gone": [False, True, False]})
    changes.writer(owner="test").append(rows, advance_to=10)
    flow = Scope("flow")
    flow.replay(changes).latest("k", order_by="n", deleted="gone", tombstones=3).capture(str(tmp_path / "out"))
    engine = Engine("flow", flow.sinks, flow.storage, files_of=catalog_of)
    engine.advance(runner(flow.storage))
    (found,) = (tmp_path / "out" / "_spark_timely").glob("*/_delta_log")
    kept = open_log(str(found.parent))
    before = kept.verify()
    assert before.dead_letters == 1
    entry(found.parent, kept.core.version).write_bytes(b"")
    assert only(look(found.parent)).action == "rebuild"
    look(found.parent, apply=True)
    assert open_log(kept.path).verify() == before


def checkpointed(path: Path, more: int = 1) -> Log:
    """Return a log with a checkpoint, and commits behind it."""
    log = filled(path)
    log.core.tidy()
    for i in range(more):
        log.advance("main", 20 + i)
    return log


def checkpoint_of(path: Path) -> Path:
    return max((path / "_delta_log").glob("*.checkpoint.parquet"))


POINTER = "_delta_log/_last_checkpoint"
LOST: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: checkpoint_of(path).unlink(),
    "cut": lambda path: checkpoint_of(path).write_bytes(checkpoint_of(path).read_bytes()[:-20]),
    "empty": lambda path: checkpoint_of(path).write_bytes(b""),
    "cut, and nothing points to it": lambda path: ((path / POINTER).unlink(), LOST["cut"](path)),
}


@pytest.mark.parametrize("damage", LOST)
def test_checkpoint_is_deleted_where_the_entries_say_the_same(path: Path, damage: str) -> None:
    log = checkpointed(path)
    before, name = log.verify(), checkpoint_of(path).name
    LOST[damage](path)
    found = POINTER if damage == "gone" else name
    with pytest.raises(LogDamagedError, match=f"could not open log .*{found}") as caught:
        DeltaStore(str(path), pause=lambda _: None)
    assert "spark-timely repair" in str(caught.value)
    left = tree(path)
    step = only(look(path))
    assert (step.version, step.action) == (int(name[:20]), "delete")
    assert step.says.startswith("nothing is lost: the entries from version 0 on")
    assert tree(path) == left, "a look changes nothing"
    assert look(path, apply=True).applied
    assert set(left) - set(tree(path)) == set(step.files)
    again = open_log(path)
    assert again.verify() == before
    assert look(path).steps == ()
    again.writer(owner="me").advance(90)
    again.core.tidy()
    assert checkpoint_of(path).name > name
    assert open_log(path).frontier() == Antichain.of(90)


@pytest.mark.parametrize("damage", LOST)
def test_checkpoint_whose_entries_are_gone_is_left(path: Path, damage: str) -> None:
    checkpointed(path)
    entry(path, 1).unlink()
    LOST[damage](path)
    left = tree(path)
    with pytest.raises(LogDamagedError, match="entry version=1, which it stands for, is not there"):
        look(path, apply=True)
    assert tree(path) == left


def test_checkpoint_of_a_version_that_the_log_lost_is_left(path: Path) -> None:
    log = checkpointed(path, more=0)
    (path / POINTER).write_text(json.dumps({"version": log.core.version + 3, "size": 9}))
    with pytest.raises(
        LogDamagedError, match=f"naming a checkpoint of version={log.core.version + 3} that is not there"
    ):
        open_log(path)
    with pytest.raises(
        LogDamagedError, match=f"entry version={log.core.version + 1}, which it stands for, is not there"
    ):
        look(path, apply=True)


def test_entries_that_no_checkpoint_goes_before_are_named(path: Path) -> None:
    checkpointed(path)
    checkpoint_of(path).unlink()
    (path / POINTER).unlink()
    entry(path, 0).unlink()
    with pytest.raises(LogDamagedError, match=f"'{entry_path(1)}' as the first entry, and no checkpoint"):
        open_log(path)


def test_broken_checkpoint_is_repaired_from_an_older_one(path: Path) -> None:
    log = checkpointed(path)
    aside = {name: content for name, content in tree(path).items() if name.startswith("_delta_log/")}
    log.core.tidy()
    log.writer(owner="me").append(pa.table({"_time": [30], "v": [30]}), advance_to=31)
    before = log.verify()
    for name, content in aside.items():  # the older checkpoint stays
        if "checkpoint.parquet" in name:
            (path / name).write_bytes(content)
    entry(path, 0).unlink()
    LOST["cut"](path)
    entry(path, log.core.version).write_bytes(b"")
    report = look(path, apply=True)
    assert [step.action for step in report.steps] == ["delete", "rebuild"]
    assert "the checkpoint of version 4 " in report.steps[0].says
    assert open_log(path).verify() == before


def test_places_where_there_is_nothing_to_repair(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError, match="found no Delta table"):
        look(tmp_path / "none")
    with pytest.raises(InvalidUsageError, match="found a cloud store"):
        look("s3://bucket/log")  # type: ignore[arg-type]


def test_command_line_shows_the_repair_and_then_does_it(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_timely.log.store.delta.LOOKS_S", ())
    log = filled(path)
    assert main(["repair", str(path)]) == 0
    assert capsys.readouterr().out == "no entry and no checkpoint of the table's log is damaged\n"
    entry(path, log.core.version).write_bytes(b"")
    assert main(["repair", str(path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("version 4 is 'empty': the entry of the commit in its place; commit 3 of stream 'main'")
    assert "nothing was changed" in said
    assert main(["stats", str(path)]) == 3
    assert "spark-timely repair" in capsys.readouterr().err
    assert main(["repair", str(path), "--json"]) == 1
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (answer["applied"], answer["steps"][0]["action"]) == (False, "rebuild")
    assert main(["repair", str(path), "--yes"]) == 0
    assert "nothing was changed" not in capsys.readouterr().out
    assert main(["verify", str(path)]) == 0


def test_command_line_says_which_checkpoint_it_deletes(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_timely.log.store.delta.LOOKS_S", ())
    version = checkpointed(path).core.version - 1
    checkpoint_of(path).unlink()
    assert main(["repair", str(path), "--yes"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"checkpoint of version {version} is named, and not there: deleted; nothing is lost")
    assert POINTER in said


# Columns ------------------------------------------------------------------------------------------

NOTE = pa.schema([("note", pa.string())])
OTHER = pa.schema([("other", pa.list_(pa.struct([("x", pa.int16()), ("y", pa.decimal128(9, 2))])))])


def widened(path: Path, columns: pa.Schema = NOTE) -> tuple[Log, int]:
    """Return a log with a column that came later, three commits behind it that have it, and its version."""
    log = filled(path)
    log.add_columns(columns)
    log.refresh()
    version = log.core.version
    for i in (5, 6, 7):
        more = {name: pa.array([None if i == 5 else SAMPLES[name]], columns.field(name).type) for name in columns.names}
        log.writer(owner="me").append(pa.table({"_time": [i], "v": [i], **more}), advance_to=i)
    return log, version


SAMPLES: dict[str, Any] = {"note": "hello", "other": [{"x": 1, "y": 2}]}


def everything(path: Path) -> tuple[Any, ...]:
    log = open_log(path)
    report = log.verify()
    return log.messages().to_pylist(), log.schema, log.core.format, report.digest, report.commits, report.problems


@pytest.mark.parametrize("columns", [NOTE, OTHER, pa.schema([*NOTE, *OTHER])])
def test_lost_columns_come_back_from_the_files_behind_them(path: Path, columns: pa.Schema) -> None:
    log, version = widened(path, columns)
    before, whole = everything(path), entry(path, version).read_bytes()
    entry(path, version).write_bytes(b"")
    step = only(look(path, apply=True))
    assert (step.version, step.action) == (version, "rebuild")
    for name in columns.names:
        assert f"column {name!r} of type" in step.says
    assert "lost" not in step.says
    assert everything(path) == before
    said = [json.loads(line) for text in (whole, entry(path, version).read_bytes()) for line in text.splitlines()]
    schemas = [json.loads(action["metaData"]["schemaString"]) for action in said if "metaData" in action]
    assert schemas[0] == schemas[1]
    log.compact()
    assert everything(path) == before
    assert look(path).steps == ()


def test_lost_column_comes_back_with_a_commit_that_was_lost_too(path: Path) -> None:
    _, version = widened(path)
    before = everything(path)
    for lost in (version, version + 1):
        entry(path, lost).write_bytes(b"")
    report = look(path, apply=True)
    assert [step.action for step in report.steps] == ["rebuild", "empty"]
    assert "commit 4 of stream 'main' comes back" in report.steps[0].says
    assert "column 'note' of type string" in report.steps[0].says
    assert everything(path) == before
    assert open_log(path).compact().merges
    assert everything(path) == before


def test_columns_of_two_lost_entries_come_back(path: Path) -> None:
    log, version = widened(path)
    log.add_columns(OTHER)
    log.refresh()
    second = log.core.version
    row = {"_time": [8], "v": [8], "note": ["x"], "other": pa.array([SAMPLES["other"]], OTHER.field("other").type)}
    log.writer(owner="me").append(pa.table(row), advance_to=9)
    before = everything(path)
    for lost in (version, second):
        entry(path, lost).write_bytes(b"")
    report = look(path, apply=True)
    assert [step.action for step in report.steps] == ["rebuild", "empty"]
    assert everything(path) == before


def test_lost_column_that_a_later_entry_has_needs_nothing(path: Path) -> None:
    log, version = widened(path)
    log.add_columns(OTHER)
    before = everything(path)
    entry(path, version).write_bytes(b"")
    # Files before the later entry have the column: it comes back as of this version, too.
    assert only(look(path, apply=True)).action == "rebuild"
    assert everything(path) == before


def test_rebuilt_commit_brings_a_column_that_was_lost_before(path: Path) -> None:
    """An earlier repair left an entry without actions where the column was added."""
    log, version = widened(path)
    before = everything(path)
    entry(path, version).write_text('{"commitInfo": {"operation": "REPAIR"}}\n')
    assert "note" not in open_log(path).schema.names
    entry(path, log.core.version).write_bytes(b"")
    step = only(look(path, apply=True))
    assert step.says.endswith("so does column 'note' of type string, which they have and the log lacks")
    assert everything(path) == before


@pytest.mark.parametrize("kind", ["zone", "type"])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_lost_column_of_unknown_type_is_named_and_never_merged(path: Path, *, kind: str, rebuilt: bool) -> None:
    log, version = widened(path)
    values = pa.array([0], pa.timestamp("us") if kind == "zone" else pa.time32("ms"))
    for name in log.core.files().paths.tolist():
        rows = pq.read_table(path / name)
        if "note" in rows.schema.names:
            place = rows.schema.get_field_index("note")
            pq.write_table(
                rows.set_column(place, "note", values), path / name, use_deprecated_int96_timestamps=kind == "zone"
            )
    entry(path, version).write_bytes(b"")
    if rebuilt:
        entry(path, version + 1).write_bytes(b"")
    step = look(path, apply=True).steps[0]
    assert step.action == ("rebuild" if rebuilt else "empty")
    assert "not column 'note', which the log lacks: its values stay in '_event=message/" in step.says
    again = open_log(path)
    assert "note" not in again.schema.names
    kept = tree(path)
    with pytest.raises(LogDamagedError, match=r"could not merge file .*found columns=\['note'\]"):
        again.compact()
    assert tree(path) == kept


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [20_000_000, 10**18, 10**26])
def test_pointer_to_a_version_that_never_was_costs_nothing(path: Path, version: int) -> None:
    log = checkpointed(path, more=0)
    (path / POINTER).write_text(json.dumps({"version": version, "size": 1}))
    with pytest.raises(
        LogDamagedError, match=f"entry version={log.core.version + 1}, which it stands for, is not there"
    ):
        look(path, apply=True)


@pytest.mark.parametrize("version", [9, 99_999_999, 10**20 - 1])
@pytest.mark.parametrize("content", ["copy", "empty", "foreign"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_entry_far_behind_all_others_is_refused_by_name(
    path: Path, *, version: int, content: str, checkpoint: bool
) -> None:
    log = filled(path)
    if checkpoint:
        log.core.tidy()
    stray = entry(path, version)
    contents = {"copy": entry(path, log.core.version).read_bytes(), "empty": b"", "foreign": b'{"commitInfo": {}}\n'}
    stray.write_bytes(contents[content])
    left = tree(path)
    first, missing = log.core.version + 1, version - log.core.version - 1
    with pytest.raises(
        LogDamagedError, match=f"{stray.name}', and none of the {missing} entries before it, version={first}"
    ):
        look(path, apply=True)
    assert tree(path) == left
    stray.unlink()
    assert look(path).steps == ()


def test_missing_entries_before_a_numbered_one_are_put_back(path: Path) -> None:
    log = filled(path)
    before = log.verify()
    for version in (2, 3):
        entry(path, version).unlink()
    assert [step.action for step in look(path, apply=True).steps] == ["rebuild", "rebuild"]
    assert open_log(path).verify() == before


@pytest.mark.parametrize(("source", "target"), [(2, 3), (3, 2), (2, 4), (4, 2), (0, 4), (3, 4)])
def test_copy_of_another_entry_is_damage_and_repaired(path: Path, source: int, target: int) -> None:
    log = filled(path)
    before, reader = log.verify(), open_log(path)
    entry(path, target).write_bytes(entry(path, source).read_bytes())
    with pytest.raises(LogDamagedError, match=rf"version={target} is 'an entry made for version={source}'"):
        open_log(path)
    step = only(look(path, apply=True))
    assert (step.version, step.action) == (target, "rebuild")
    assert open_log(path).verify() == before
    reader.refresh()
    assert reader.verify() == before


def test_copy_of_another_entry_is_no_commit_to_handles(path: Path) -> None:
    log = filled(path)
    entry(path, log.core.version + 1).write_bytes(entry(path, log.core.version).read_bytes())
    left = tree(path)
    for use in (log.refresh, lambda: log.writer(owner="me").append(pa.table({"_time": [9], "v": [9]}))):
        with pytest.raises(LogDamagedError, match=f"an entry made for version={log.core.version}"):
            use()
    assert tree(path) == left


def test_every_entry_of_ours_says_its_version(path: Path) -> None:
    """Also one that lost a race, and was put behind the entries of others."""
    log, _ = widened(path)
    slow = open_log(path)
    log.core.open_stream("a", owner="a", donor="main")
    quick, put, raced = open_log(path), delta_store.put_entry, [True]
    quick.writer("a", owner="a")

    def put_late(storage: FileStorage, version: int, content: bytes, *beside: Any) -> bool:
        if raced.pop() if raced else False:
            quick.writer("a", owner="a").append(pa.table({"_time": [20], "v": [20]}))
        return put(storage, version, content, *beside)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_store, "put_entry", put_late)
        slow.writer(owner="me").append(pa.table({"_time": [21], "v": [21]}))
    slow.compact()
    slow.refresh()
    found = {v: parse_entry(entry(path, v).read_bytes(), v).made_for for v in range(slow.core.version + 1)}
    assert found == {v: v for v in range(slow.core.version + 1)}
