"""A log of an earlier format is raised by its first marked commit: once, at the version that it says, on both ways."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.errors import ForeignChangeError, LogFormatError
from spark_timely.log import Log
from spark_timely.log.files import format as formats
from spark_timely.log.log import create_log, open_log

SCHEMA = pa.schema([("v", pa.int64())])


def rows(time: int) -> pa.Table:
    return pa.table({"_time": [time], "v": [time]})


def entries(path: str) -> list[list[dict[str, Any]]]:
    files = sorted(Path(path, "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.fixture(params=["ours", "delta-rs"])
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return a log as libraries made it that marked nothing, with a row that another program deleted meanwhile."""
    with monkeypatch.context() as patch:
        facts = formats.LogFormat.facts

        def before(self: formats.LogFormat) -> str:
            said = json.loads(facts(self))
            return json.dumps({**{k: v for k, v in said.items() if k != "guardedFrom"}, "version": 2}, sort_keys=True)

        patch.setattr(formats.LogFormat, "facts", before)
        log = create_log(str(tmp_path / "log"), SCHEMA, minimum=(0,), streams=3, merge_every=None)
    if request.param == "delta-rs":  # which commits to such a table
        DeltaTable(log.path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    opened = open_log(log.path)
    assert (opened.core.format.version, opened.core.format.guarded_from) == (2, None)
    return opened


def raised_at(path: str) -> list[int]:
    """Return the versions whose entries say from where the log is guarded, and what they say."""
    found = []
    for version, actions in enumerate(entries(path)):
        for action in actions:
            if "metaData" in action and '\\\\\\"guardedFrom\\\\\\"' in json.dumps(action["metaData"]["schemaString"]):
                found.append(version)
    return found


def test_first_commit_raises_it_once(old: Log) -> None:
    before = old.core.version
    old.writer("a", owner="me").append(rows(1), advance_to=2)
    old.writer("a", owner="me").append(rows(2), advance_to=3)
    fresh = open_log(old.path)
    assert (fresh.core.format.version, fresh.core.format.guarded_from) == (4, before + 1)
    assert raised_at(old.path) == [before + 1]
    assert fresh.messages()["v"].to_pylist() == [1, 2]
    assert fresh.verify().legal
    DeltaTable(old.path).delete("_event = 'message' and v = 1")
    with pytest.raises(ForeignChangeError):
        open_log(old.path).messages()


def test_reading_raises_nothing(old: Log) -> None:
    before = old.core.version
    assert open_log(old.path).frontier().to_json() == [0]
    assert open_log(old.path).messages().num_rows == 0
    assert DeltaTable(old.path).version() == before


def test_what_was_changed_before_is_not_judged(old: Log) -> None:
    # As it was until now: nobody marked what was there.
    table = DeltaTable(old.path)
    table.delete("_event = 'message'")
    old.writer("a", owner="me").append(rows(1), advance_to=2)
    assert open_log(old.path).messages()["v"].to_pylist() == [1]
    assert not open_log(old.path).core.foreign_changes()


def test_writers_at_once_raise_it_once(old: Log) -> None:
    before, failed = old.core.version, []
    handles = {name: open_log(old.path, merge_every=None) for name in ("a", "b", "c")}
    begin = threading.Barrier(3)

    def write(name: str) -> None:
        try:
            begin.wait()
            writer = handles[name].writer(name, owner="me")
            for time in range(5):
                writer.append(rows(time), advance_to=time + 1)
        except Exception as error:  # noqa: BLE001 - shown by the test
            failed.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    (version,) = raised_at(old.path)
    fresh = open_log(old.path)
    assert fresh.core.format.guarded_from == version > before
    assert fresh.messages().num_rows == 15
    assert fresh.verify().legal
    assert not fresh.core.foreign_changes()
    marked = [
        "timelyFiles" in action["commitInfo"]
        for actions in entries(old.path)
        for action in actions
        if "commitInfo" in action
    ]
    assert all(marked[version + 1 :])


def test_handle_of_an_earlier_library_is_refused_behind_it(old: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = open_log(old.path)
    earlier.core.store._raise_format = lambda: None  # type: ignore[attr-defined]
    earlier.writer("a", owner="me")
    assert open_log(old.path).core.format.version == 2
    old.writer("b", owner="me").append(rows(1), advance_to=2)
    version = DeltaTable(old.path).version()
    monkeypatch.setattr(formats, "FORMAT_VERSIONS", (2, 3))
    with pytest.raises(LogFormatError, match="format version=4"):
        earlier.writer("a", owner="me").append(rows(1), advance_to=2)
    assert DeltaTable(old.path).version() == version
