"""A log in an object store that was put back to an earlier state, deleted and made again, or damaged in one object.

A handle that stands where another history went on must not write, whatever version it has seen a moment ago.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_timely.errors import LogDamagedError, LogMissingError, RolledBackError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import cloud
from spark_timely.log.store.storage import Storage
from spark_timely.log.upkeep import finish_upkeep
from spark_timely.time.antichain import Antichain
from tests.faults.harness import long_lane
from tests.stores.conftest import Place

VALUES = pa.schema([("v", pa.int64())])


def rows(time: int) -> pa.Table:
    return pa.table({"_time": [time], "v": [time]})


def make(place: Place, owner: str, n: int) -> Log:
    log = create_log(place.url, VALUES, minimum=(0,), storage_options=place.options, merge_every=None)
    writer = log.writer(owner=owner)
    for time in range(n):
        writer.append(rows(time), advance_to=time + 1)
    finish_upkeep()
    return log


def objects(storage: Storage) -> dict[str, bytes]:
    found = {}
    for folder in storage.names():
        for name in storage.names(folder):
            found[f"{folder}/{name}"] = bytes(storage.read(f"{folder}/{name}"))
    return found


def put_back(storage: Storage, before: dict[str, bytes]) -> None:
    for path in objects(storage):
        if path not in before:
            storage.delete(path)
    for path, content in before.items():
        storage.put(path, content, replace=True)


CALLS: dict[str, Callable[[Log], object]] = {
    "append": lambda log: log.writer(owner="old").append(rows(9), advance_to=9),
    "keyed": lambda log: log.writer(owner="old").append(rows(9), advance_to=9, batch=8),
    "advance": lambda log: log.advance("main", [9]),
    "close": lambda log: log.close(),
    "open": lambda log: log.core.open_stream("other", owner="old", at=50),
    "allow": lambda log: log.allow_compaction([1]),
    "columns": lambda log: log.add_columns(pa.schema([("w", pa.int64())])),
}


@pytest.mark.parametrize("call", sorted(CALLS.keys() - {"columns"}))  # a column fits whatever rows there are
def test_handle_does_not_write_behind_a_log_that_was_put_back(place: Place, call: str) -> None:
    log = make(place, "old", 2)
    before = objects(log.core.storage)
    writer = log.writer(owner="old")
    for time in (2, 3, 4):
        writer.append(rows(time), advance_to=time + 1)
    put_back(open_log(place.url, storage_options=place.options).core.storage, before)
    with pytest.raises(RolledBackError, match=r"found stream 'main' at seq=2, this handle has seen 'main' at seq=5"):
        CALLS[call](log)
    found = open_log(place.url, storage_options=place.options)
    assert found.messages()["v"].to_pylist() == [0, 1]
    assert found.frontier() == Antichain.of(2)
    assert found.verify().legal


# As many versions as the old one has, which tells two logs apart least, one more, and fewer.
@pytest.mark.parametrize(
    ("call", "commits"),
    [
        (call, commits)
        for call in (*CALLS, "tidy")
        for commits in (0, 2, 3)
        if long_lane() or commits == 2 or call in ("append", "tidy")
    ],
)
def test_handle_does_not_write_into_a_log_that_was_made_again(place: Place, call: str, commits: int) -> None:
    log = make(place, "old", 2)
    put_back(open_log(place.url, storage_options=place.options).core.storage, {})
    make(place, "new", commits)
    if call == "tidy":
        log.core.tidy()
    else:
        with pytest.raises(LogMissingError, match=r"found another table in its place — hint: open the log again"):
            CALLS[call](log)
    found = open_log(place.url, storage_options=place.options)
    assert found.messages()["v"].to_pylist() == list(range(commits))
    assert found.frontier() == Antichain.of(commits)
    assert {state.owner for state in found.streams().values()} == {"new"}
    assert found.verify().legal


@pytest.mark.parametrize("damage", ["empty", "copy", "cut"])
def test_entry_that_is_no_commit_is_refused_by_name(place: Place, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_timely.log.store.delta.LOOKS_S", (0.0,))
    log = make(place, "old", 4)
    entry, other = (f"_delta_log/{version:020d}.json" for version in (3, 4))
    content = bytes(log.core.storage.read(entry))
    wrong = {"empty": b"", "copy": bytes(log.core.storage.read(other)), "cut": b"\n".join(content.splitlines()[:-1])}[
        damage
    ]
    log.core.storage.put(entry, wrong, replace=True)
    said = {"empty": "'empty'", "copy": "'an entry made for version=4'", "cut": "'cut: "}[damage]
    with pytest.raises(LogDamagedError, match=rf"version=3 is {said}.* — hint: restore the object by its versions"):
        open_log(place.url, storage_options=place.options)
    log.core.storage.put(entry, content, replace=True)
    assert open_log(place.url, storage_options=place.options).messages().num_rows == 4


def test_first_write_behind_tidied_entries_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    create_log(place.url, VALUES, minimum=(0,), streams=2, storage_options=place.options, merge_every=None)
    idle = open_log(place.url, storage_options=place.options)
    busy = open_log(place.url, storage_options=place.options, merge_every=None)
    writer = busy.writer("busy", owner="busy")
    for time in range(45):
        writer.append(rows(time), advance_to=time + 1)
    busy.core.tidy()
    checkpoint = max(name for name in busy.core.storage.names("_delta_log") if "checkpoint.parquet" in name)
    for name in busy.core.storage.names("_delta_log"):
        if name.endswith(".json") and name[:20] < checkpoint[:20]:
            busy.core.storage.delete(f"_delta_log/{name}")
    # As a process has it that has not written yet: it tries whether the store excludes others, with its newest entry.
    monkeypatch.setattr(cloud, "_excluding", set())
    assert idle.writer("idle", owner="idle").append(rows(99), advance_to=99).committed
    found = open_log(place.url, storage_options=place.options)
    assert sorted(found.messages()["v"].to_pylist()) == [*range(45), 99]
    assert found.frontier() == Antichain.of(45)
    assert found.verify().legal


def test_tidying_stops_at_an_entry_that_was_put_there_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make(place, "old", 60)
    kept = f"{3:020d}.json"
    old = dict.fromkeys(log.core.storage.names("_delta_log"), 10_000.0)
    monkeypatch.setattr(type(log.core.storage), "ages", lambda storage, folder: {**old, kept: 1.0})
    monkeypatch.setattr("spark_timely.log.store.checkpoints.KEEP_VERSIONS", 5)
    log.core.tidy()
    names = sorted(name for name in log.core.storage.names("_delta_log") if name.endswith(".json"))
    assert names[0] == kept
    assert len(names) == 62 - 3
