"""URLs of object stores: one place has one identity, however it is written, and two places never have."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import AzureStore

import spark_timely
from spark_timely.dataflow.engine.inputs import Inputs
from spark_timely.errors import DataLossError, InvalidUsageError, StorageError
from spark_timely.log import MemoryLog
from spark_timely.log.cut import Cut
from spark_timely.log.store import cloud
from spark_timely.log.store.storage import normal_path
from spark_timely.log.store.urls import identity, same_place
from spark_timely.protocol.note import InputNote
from spark_timely.spark.base.checkpoint import LogCommit, read_entries, write_entry
from spark_timely.spark.base.checkpoint import find_entry as find

LAKE = {"azure_storage_account_name": "lake"}
ONE_PLACE = {
    "S3": ["s3://Logs/A/b", "s3a://Logs/A/b", "S3://Logs/A/b/", "S3A://Logs//A///b//"],
    "Azure": [
        "az://logs/A/b",
        "abfss://logs@lake.dfs.core.windows.net/A/b",
        "abfs://logs@LAKE.dfs.core.windows.net/A//b/",
        "ABFSS://logs@lake.blob.core.windows.net/A/b",
        "abfs://logs/A/b",
        "adl://logs/A/b/",
        "azure://logs/A/b",
    ],
    "Google": ["gs://logs/A/b", "gcs://logs/A/b", "GS://logs/A/b/"],
}
OTHER_PLACES = [
    "s3://Logs/A/b",
    "s3://logs/A/b",
    "s3://Logs/a/b",
    "s3://Logs/A/b/c",
    "gs://Logs/A/b",
    "az://Logs/A/b",
    "abfss://Logs@other.dfs.core.windows.net/A/b",
    "abfss://Logs@lake.dfs.core.windows.net/a/b",
    "/Logs/A/b",
]


@pytest.mark.parametrize("store", ONE_PLACE)
def test_one_place_has_one_identity(store: str) -> None:
    urls = ONE_PLACE[store]
    assert len({identity(url, LAKE) for url in urls}) == 1
    assert len({identity(normal_path(url), LAKE) for url in urls}) == 1
    assert all(same_place(one, other, LAKE) for one, other in combinations(urls, 2))


def test_other_places_have_other_identities() -> None:
    assert len({identity(url, LAKE) for url in OTHER_PLACES}) == len(OTHER_PLACES)
    assert not any(same_place(one, other, LAKE) for one, other in combinations(OTHER_PLACES, 2))


def test_paths_of_a_disk_are_as_they_were() -> None:
    assert not same_place("/data/Log", "/data/log")
    assert identity("/data/log") == "/data/log"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("S3a://Bucket//A/b//", "s3a://Bucket/A/b"),
        ("AZ://c/P", "az://c/P"),
        ("abfss://c@Lake.DFS.core.windows.net/P/", "abfss://c@lake.dfs.core.windows.net/P"),
        ("s3://bucket/", "s3://bucket"),
    ],
)
def test_path_keeps_its_scheme_and_loses_slashes(url: str, found: str) -> None:
    assert normal_path(url) == found == normal_path(found)


@pytest.mark.parametrize(
    ("url", "found"), [("s3:///log", "no bucket"), ("s3://b/a#1", "'#'"), ("gs://b/a?x=1", r"'\?'")]
)
def test_url_that_names_another_place_is_refused(url: str, found: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"could not use path .* found {found}") as caught:
        normal_path(url)
    assert "x=1" not in str(caught.value)  # it may be a secret, whatever its name is


def test_account_in_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "Lake")
    assert identity("az://logs/a") == identity("abfss://logs@lake.dfs.core.windows.net/a")
    assert not same_place("az://logs/a", "abfss://logs@other.dfs.core.windows.net/a")


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("abfss://logs@Mine.dfs.core.windows.net/a", "mine"),
        ("abfss://logs@127.0.0.1:10000/a", "lake"),
        ("az://logs/a", "lake"),
    ],
)
def test_account_of_a_url_of_azure_is_the_one_meant(url: str, account: str) -> None:
    options = {**LAKE, "azure_storage_account_key": "a2V5"}
    store = cloud._opened(url, tuple(options.items()), patient=True)
    assert isinstance(store, AzureStore)
    assert store.config["account_name"] == account
    assert (store.prefix, store.config["container_name"]) == ("a", "logs")


_OLD = json.dumps(
    {"v": 1, "query": "q", "logs": [{"path": "s3a://b/log", "stream": "main", "id": "1", "commits": [[4, 7, 0]]}]}
)


def test_checkpoint_of_the_former_text_is_found(tmp_path: Path) -> None:
    (tmp_path / "timely-logs").write_text(_OLD)
    entries = read_entries(str(tmp_path), "q")
    for path in ("s3://b/log", "s3a://b/log"):
        # Deleted, or replaced by another log: that is noticed by what the query wrote down of the place.
        assert find(entries, path, "main", None) == find(entries, path, "main", "2") == entries[0]
    assert find(entries, "s3://b/other", "main", None) is None
    assert find(entries, "s3://b/log", "other", None) is None


def test_checkpoint_of_the_former_text_is_continued(tmp_path: Path) -> None:
    (tmp_path / "timely-logs").write_text(_OLD)
    write_entry(str(tmp_path), "q", path="s3://b/log", stream="main", log_id="1", commit=LogCommit(5, 8, 0))
    (entry,) = read_entries(str(tmp_path), "q")
    assert (entry.path, entry.commits) == ("s3://b/log", (LogCommit(4, 7, 0), LogCommit(5, 8, 0)))


def test_id_decides_between_entries_of_one_place(tmp_path: Path) -> None:
    facts = json.loads(_OLD)
    facts["logs"].append({**facts["logs"][0], "path": "s3://b/log", "id": "2"})
    (tmp_path / "timely-logs").write_text(json.dumps(facts))
    entries = read_entries(str(tmp_path), "q")
    for path in ("s3://b/log", "s3a://b/log"):
        assert [find(entries, path, "main", log_id).log_id for log_id in ("1", "2", "3")] == ["1", "2", "2"]  # type: ignore[union-attr]


def test_cut_knows_its_log_by_another_url(tmp_path: Path) -> None:
    log = spark_timely.create_log(tmp_path / "log", pa.schema([("v", pa.int64())]), minimum=(0,))
    made: dict[str, Any] = spark_timely.cut([log]).to_json()
    cut = Cut.from_json({**made, "logs": [{**made["logs"][0], "path": "s3://b/log"}]})
    here: Any = SimpleNamespace(
        path="s3a://b/log", core=SimpleNamespace(log_id="another", storage_options={}, storage=log.core.storage)
    )
    with pytest.raises(DataLossError, match="the log was deleted and created again"):
        cut.check_log(here)


def test_input_under_another_url_is_known_to_be_replaced() -> None:
    storage = MemoryLog.create(pa.schema([("v", pa.int64())])).core.storage
    log: Any = SimpleNamespace(path="s3://b/log", core=SimpleNamespace(log_id="2", storage_options={}, storage=storage))
    inputs = Inputs([], {"s3://b/log": log})
    sink: Any = "sink"
    inputs.below = {sink: ("s3://b/log",)}
    note: Any = SimpleNamespace(inputs={"s3a://b/log": InputNote("1")})
    assert inputs.replaced(sink, note) == {"s3://b/log": "1"}
    (said,) = inputs.changes(sink, note, {"s3://b/log": InputNote("2")})
    assert "'1'" in said


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("hdfs://name-node/logs/a", "mount the file system, give the local path and promise singleWriter=true"),
        ("viewfs://cluster/logs/a", "mount the file system"),
        ("wasbs://logs@lake.blob.core.windows.net/a", "write abfss://container@account"),
        ("https://lake.blob.core.windows.net/logs/a", "write s3://bucket.*abfss://container@account"),
        ("s3n://bucket/a", "write s3://bucket"),
        ("odd://bucket/a", "write s3://, gs:// or abfss://"),
    ],
)
def test_scheme_that_nobody_serves_says_what_to_do(url: str, hint: str) -> None:
    for use in (spark_timely.open_log, lambda path: spark_timely.create_log(path, pa.schema([("v", pa.int64())]))):
        with pytest.raises(StorageError, match=f"found an unknown scheme — hint: {hint}") as caught:
            use(url)
        assert caught.value.determinate
