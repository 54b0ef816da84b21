"""Folders of an instance: what is unknown stays and is shown, what was named goes, what went back is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_timely.cli import main
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive import driver as drivers
from spark_timely.compute.drive import folders
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.ledger import Ledger, Mark
from spark_timely.errors import InvalidUsageError, LogFormatError, MissingError, OwnershipError, RolledBackError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from tests.faults.harness import wait_until
from tests.unit.compute.instances import SCHEMA, TOTALS, append, handle, orders, rows


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return orders(tmp_path / "orders", (1, 1, 1, 10), (2, 1, 2, 20), upper=4)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_GONE_S", 0.0)
    monkeypatch.setattr(drivers, "_UPKEEP_S", 0.0)


def names(directory: Path) -> set[str]:
    return {each.name.rpartition("-")[0] or each.name for each in (directory / "collections").iterdir()}


def test_folder_of_somebody_else_stays_and_is_shown(tmp_path: Path, log: Log, capsys: Any) -> None:
    directory = tmp_path / "instance"
    (directory / "collections" / "mine").mkdir(parents=True)
    (directory / "collections" / "mine" / "notes.txt").write_text("mine")
    with handle(directory) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
    with handle(directory) as instance:
        assert instance.unknown_folders() == ["mine"]
        states = {
            row["folder"].rpartition("-")[0] or row["folder"]: row["state"] for row in instance.folders().to_pylist()
        }
        assert states == {"totals": "collection", "mine": "unknown"}
    assert main(["instance", str(directory), "status"]) == 0
    assert "that stay: 1 (status folders lists them)" in capsys.readouterr().out
    assert main(["--json", "instance", str(directory), "status", "folders"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(row["state"] for row in found) == ["collection", "unknown"]
    assert (directory / "collections" / "mine" / "notes.txt").read_text() == "mine"


def test_only_what_somebody_names_is_removed(tmp_path: Path, log: Log, soon: None) -> None:
    directory = tmp_path / "instance"
    for name in ("mine", "yours"):
        (directory / "collections" / name / "below").mkdir(parents=True)
    with handle(directory) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        (folder,) = {row["folder"] for row in instance.folders().to_pylist()} - {"mine", "yours"}
        with pytest.raises(InvalidUsageError, match="a collection has it"):
            instance.remove(folder)
        for name in ("none", "..", ".", "mine/below", "", 5):
            with pytest.raises(MissingError):
                instance.remove(name)  # type: ignore[arg-type]
        Requests(instance.directory).ask("remove", {"id": "mine"})
        wait_until(lambda: names(directory) == {"totals", "yours"}, deadline_s=30, what="the removal")
        wait_until(lambda: not instance._driver.state.ledger.marks, deadline_s=30, what="the end of the mark")
        with handle(directory, read_only=True) as follower, pytest.raises(OwnershipError):
            follower.remove("yours")


def test_what_a_drop_left_is_deleted_by_the_next_start(tmp_path: Path, log: Log, soon: None) -> None:
    directory = tmp_path / "instance"
    old = handle(directory)
    old.index("totals", TOTALS, imports={"orders": log.path}, key="k")
    old.index("kept", TOTALS, imports={"orders": log.path}, key="k")
    old._ended = True  # as if its process were gone
    old._driver.wake.set()
    old._thread.join()
    old.drop("totals")
    assert names(directory) == {"totals", "kept"}
    with handle(directory) as instance:
        wait_until(lambda: names(directory) == {"kept"}, deadline_s=30, what="the deletion")
        instance.await_frontier("kept", 3)


def test_folder_of_a_dataflow_that_never_ran_is_deleted(tmp_path: Path, log: Log, soon: None) -> None:
    directory = tmp_path / "instance"
    with handle(directory) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
    shutil.rmtree(log.path)  # so it is not hosted again
    with handle(directory) as instance:
        wait_until(lambda: instance.show("errors").num_rows == 1, deadline_s=30, what="the error")
        instance.drop("totals")
        wait_until(lambda: not names(directory), deadline_s=30, what="the deletion")


def test_command_log_that_is_lost_is_not_made_again(tmp_path: Path, log: Log) -> None:
    directory = tmp_path / "instance"
    with handle(directory) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
    (folder,) = (directory / "collections").iterdir()
    shutil.move(directory / "commands", tmp_path / "commands")
    for leaves in ((), ("other",)):
        with pytest.raises(RolledBackError, match="found no command log, but collections: ") as caught:
            handle(directory, leaves=leaves)
        assert folder.name in caught.value.message
        assert "leaves=['*']" in str(caught.value.hint)
        assert not (directory / "commands").exists()
    with handle(directory, leaves=[folder.name]) as instance:
        assert instance.unknown_folders() == [folder.name]
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
    assert open_log(folder).frontier().elements == ((4,),)
    shutil.rmtree(directory / "commands")
    shutil.move(tmp_path / "commands", directory / "commands")
    # That of the other instance is none of this one's.
    with handle(directory) as instance:
        instance.await_frontier("totals", 3)


def test_collection_that_is_left_stays_with_its_folder(tmp_path: Path, log: Log, soon: None) -> None:
    directory = tmp_path / "instance"
    with handle(directory) as instance:
        for id_ in ("left", "kept"):
            instance.index(id_, TOTALS, imports={"orders": log.path}, key="k")
        instance.index("reader", "SELECT k FROM left")
    shutil.copytree(directory / "commands", tmp_path / "commands")
    with handle(directory) as instance:
        instance.index("later", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("later", 3)
        (later,) = [row["folder"] for row in instance.folders().to_pylist() if row["export_id"] == "later"]
    shutil.rmtree(directory / "commands")
    shutil.move(tmp_path / "commands", directory / "commands")
    with pytest.raises(RolledBackError, match="went back") as caught:
        handle(directory)
    assert f"'left': 2, 'kept': 2, 'reader': 2}}, and folders that its commands do not name, ['{later}']".replace(
        "}, and", "} and"
    ) in str(caught.value)
    adopts = {"kept": 2}
    with pytest.raises(RolledBackError):
        handle(directory, adopts={"kept": 3}, leaves=["left", "reader", later])
    with pytest.raises(InvalidUsageError, match=r"found that \['reader'\] cannot be without what is left"):
        handle(directory, adopts={**adopts, "reader": 2}, leaves=["left", later])
    before = CommandLog.at(str(directory / "commands"), create=False).log.core.version
    with handle(directory, adopts=adopts, leaves=["left", "reader", "*"]) as instance:
        assert {row["export_id"] for row in instance.folders().to_pylist()} == {"kept", None}
        append(log, (4, 1, 1, 1), upper=5)
        instance.await_frontier("kept", 4)
        assert rows(instance.peek("kept")) == [(1, 2, 11, 1), (2, 1, 20, 1)]
    assert CommandLog.at(str(directory / "commands"), create=False).log.core.version > before
    for _ in range(2):
        with handle(directory, adopts=adopts) as instance:  # nothing is asked again, and an old consent does no harm
            assert instance.unknown_folders() == []
    assert names(directory) == {"left", "kept", "reader", "later"}


def test_index_in_whose_place_is_another_log_is_not_compacted(tmp_path: Path, log: Log, soon: None) -> None:
    directory = tmp_path / "instance"
    with handle(directory) as instance:
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.await_frontier("totals", 3)
        instance.allow_compaction("totals", 3)
    (folder,) = (directory / "collections").iterdir()
    shutil.rmtree(folder)
    mine = create_log(folder, SCHEMA, minimum=(0,))
    mine.writer(owner="me").advance(9)
    with handle(directory) as instance:
        wait_until(lambda: instance.show("errors").num_rows == 1, deadline_s=30, what="the error")
        instance.settle()
    assert open_log(folder).since().elements == ((0,),)


@pytest.mark.parametrize(
    "text",
    [
        '{"folder":"../up","state":"dropped","v":2}',
        '{"folder":"..","state":"dropped","v":2}',
        '{"folder":"a\\u0000b","state":"dropped","v":2}',
        '{"folder":"a","state":"gone","v":2}',
        '{"folder":5,"state":"dropped","v":2}',
        '{"folder":"a","state":"dropped","log_id":5,"v":2}',
        '{"folder":"a","state":"dropped","v":3}',
        "[]",
        "no json",
    ],
)
def test_mark_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LogFormatError):
        Ledger.read([(-2, text)])


def test_marks_keep_their_numbers(tmp_path: Path) -> None:
    ledger = Ledger(7).put(Mark("a", "passing"), Mark("b", "dropped", "7d"), Mark("c", "left"))
    numbers = {text: number for number, text in ledger.rows()}
    fewer = ledger.without("b")
    assert {text: number for number, text in fewer.rows()}.items() <= numbers.items()
    again = fewer.put(Mark("d", "asked"), Mark("a", "proven"))
    assert len({number for number, _ in again.rows()}) == 4
    assert Ledger.read(again.rows()) == again
