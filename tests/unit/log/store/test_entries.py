"""What an entry of a table's log says to the judge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_timely.log.store.entries import Entry, Removed, marks, parse_entry


def parsed(*actions: dict[str, Any]) -> Entry:
    return parse_entry("\n".join(map(json.dumps, actions)).encode())


def test_an_entry_says_of_each_file_whether_rows_change() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 4, "cardinality": 2}
    entry = parsed(
        {"add": {"path": "_event=message/a%20b", "partitionValues": {"_event": "message"}, "dataChange": False}},
        {"add": {"path": "c", "partitionValues": {"_event": "dead"}, "dataChange": True, "deletionVector": vector}},
        {"remove": {"path": "d%20e", "dataChange": False, "partitionValues": {"_event": "since"}}},
        {"remove": {"path": "c", "dataChange": True, "deletionVector": {**vector, "offset": None}}},
        {"remove": {"path": "f"}},
    )
    assert [add["dataChange"] for add in entry.adds] == [False, True]
    assert entry.vectors == {"c": "ux@4"}
    assert entry.removed == [
        Removed("d e", "since", data_change=False, vector=""),
        Removed("c", "", data_change=True, vector="ux@0"),
        Removed("f", "", data_change=True, vector=""),
    ]
    assert entry.removes == ["d e", "c", "f"]
    assert (entry.ours, entry.judged, entry.operation, entry.timestamp, entry.restored) == (False, None, "", None, None)


def test_an_entry_of_ours_is_known_by_its_mark() -> None:
    files = [{"add": {"path": "b%20c", "partitionValues": {}}}, {"remove": {"path": "a"}}]
    info = {"operation": "WRITE", "timestamp": 7, **marks(["b c"], ["a"], 4), "timelyActions": 3}
    entry = parsed({"commitInfo": info}, *files)
    assert (entry.ours, entry.judged, entry.operation, entry.timestamp) == (True, 4, "WRITE", 7)
    # Of other files, in whatever way they differ, it is another's mark.
    del info["timelyActions"]
    for others in ([], files[:1], [files[0], {"remove": {"path": "b"}}], [{"remove": {"path": "b c"}}, files[1]]):
        assert not parsed({"commitInfo": info}, *others).ours
    assert parsed({"commitInfo": {**marks([], [], None)}}).judged is None
    assert parsed({"commitInfo": {**marks([], [], 9, [7, 3])}}).unlooked == {3, 7}
    assert parsed({"commitInfo": {**marks([], [], 9)}}).unlooked == frozenset()
    assert "timelyUnlooked" not in marks([], [], None, [3])


@pytest.mark.parametrize(
    ("parameters", "version"),
    [({"version": "5", "timestamp": None}, 5), ({"version": 5}, 5), ({"timestamp": "2026-01-01"}, None), (None, None)],
)
def test_a_restore_says_the_version_that_it_goes_back_to(parameters: Any, version: int | None) -> None:
    entry = parsed({"commitInfo": {"operation": "restore", "operationParameters": parameters}})
    assert (entry.operation, entry.restored) == ("RESTORE", version)
    assert parsed({"commitInfo": {"operation": "CLONE", "operationParameters": parameters}}).restored is None
