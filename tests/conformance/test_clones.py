"""Copies of a log: a deep clone by Delta is another log, a copy of all bytes is the same one."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.dataflow.engine.inputs import other_log
from spark_timely.datasource.letters import Letters
from spark_timely.datasource.planner import ReplayPlanner
from spark_timely.errors import DataLossError, RolledBackError, TimelyError
from spark_timely.log.cut import cut
from spark_timely.log.log import Log, open_log
from spark_timely.log.resubmission import resubmit
from spark_timely.log.store.clones import of_clone
from spark_timely.log.store.entries import entry_path
from tests.conformance.logs import filled
from tests.unit.datasource.support import layout_of, make_options
from tests.unit.sink.driver import SinkDriver, refused, rows

Actions = list[dict[str, Any]]


def actions_of(path: Path) -> Actions:
    """Return the protocol, the metadata and the live files of a table that has no checkpoint."""
    entries = sorted((path / "_delta_log").glob("*.json"))
    found = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    live = set(DeltaTable(str(path)).file_uris())
    files = {each["add"]["path"]: each for each in found if "add" in each}
    kept = [each for file, each in files.items() if any(uri.endswith(file) for uri in live)]
    return [*([each for each in found if kind in each][-1] for kind in ("protocol", "metaData")), *kept]


def clone(source: Path, target: Path) -> None:
    """Do what Delta's DEEP CLONE does: one entry with copies of all live files, in a table with an id of its own."""
    actions, version = actions_of(source), DeltaTable(str(source)).version()
    parameters = {"source": f"delta.`file:{source}`", "sourceVersion": version, "isShallow": False}
    said: Actions = [{"commitInfo": {"timestamp": 1, "operation": "CLONE", "operationParameters": parameters}}]
    for each in actions:
        if "metaData" in each:
            each["metaData"]["id"] = str(uuid.uuid4())
        elif "add" in each:
            (target / each["add"]["path"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / each["add"]["path"], target / each["add"]["path"])
    (target / "_delta_log").mkdir(parents=True, exist_ok=True)
    (target / entry_path(0)).write_text("".join(f"{json.dumps(each)}\n" for each in [*said, *actions]))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Log, Log]:
    """Return a log, and a deep clone of it."""
    source = filled(tmp_path / "log")
    clone(tmp_path / "log", tmp_path / "clone")
    return source, open_log(tmp_path / "clone")


def test_deep_clone_is_another_log_with_the_same_in_it(pair: tuple[Log, Log]) -> None:
    source, made = pair
    assert made.core.log_id != source.core.log_id
    assert made.verify().canonical_hash == source.verify().canonical_hash
    assert made.frontier() == source.frontier()
    made.writer(owner="me").append(pa.table({"_time": [7], "v": [7]}), advance_to=8)
    assert made.verify().legal
    assert made.frontier() != source.frontier()
    assert of_clone(source.core.storage) == ""
    assert of_clone(made.core.storage) == f", a clone of 'file:{source.path}' at version {source.core.version}"


def by_source(source: Log, made: Log) -> None:
    options = make_options()
    one, two = (ReplayPlanner(log, options, layout_of(log, options)) for log in (source, made))
    begun = one.latest(one.initial())
    two.latest(begun)


def by_cut(source: Log, made: Log) -> None:
    at, path = cut([source]), source.path
    shutil.rmtree(path)
    shutil.move(made.path, path)
    at.check_log(open_log(path))


def by_letters(source: Log, made: Log) -> None:
    start = Letters(source).initial()
    Letters(made).plan(start, Letters(made).latest(start))


def by_resubmission(source: Log, made: Log) -> None:
    resubmit(made.core, 1, None, stream="main", log_id=source.core.log_id, reason="")


@pytest.mark.parametrize("read", [by_source, by_cut, by_letters, by_resubmission])
def test_who_knew_the_source_is_told_of_the_clone(pair: tuple[Log, Log], read: Callable[[Log, Log], None]) -> None:
    source, made = pair
    with pytest.raises((DataLossError, RolledBackError)) as found:
        read(source, made)
    message = found.value.message
    assert repr(source.core.log_id) in message or read is by_letters
    assert f"{made.core.log_id!r}, a clone of 'file:{source.path}' at version" in message


def test_input_that_is_a_clone_is_named_so(pair: tuple[Log, Log]) -> None:
    source, made = pair
    assert f"{made.core.log_id!r}, a clone of 'file:" in other_log(
        made.path, made.core.log_id, source.core.log_id, of_clone(made.core.storage)
    )


def test_sink_with_a_checkpoint_of_the_source_names_it(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="bounded", lateness="5")
    assert driver.run([rows([10], 0)]) == 0
    before = driver.log()
    path = Path(driver.log_path)
    clone(path, tmp_path / "clone")
    shutil.move(path, tmp_path / "moved")
    shutil.move(tmp_path / "clone", path)
    with refused(driver, RolledBackError, "found another log", f"a clone of 'file:{path}'", repr(before.core.log_id)):
        driver.run([rows([11], 1)])


def test_copy_of_all_bytes_keeps_the_id(tmp_path: Path) -> None:
    source = filled(tmp_path / "log")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    made = open_log(tmp_path / "copy")
    assert (made.core.log_id, of_clone(made.core.storage)) == (source.core.log_id, "")
    at = cut([source])
    at.check_log(made)  # of the same history
    made.writer(owner="me").append(pa.table({"_time": [7], "v": [7]}), advance_to=8)
    source.writer(owner="me").append(pa.table({"_time": [6], "v": [6]}), advance_to=8)
    with pytest.raises(TimelyError, match="found another commit 4 of stream 'main'"):
        cut([source]).check_log(made)
