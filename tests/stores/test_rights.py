"""What a job may do in a store with which rights, as MinIO grants them: the table of rights in the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import DataLossError, StorageError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import checkpoints, cloud
from spark_timely.log.store.cloud import CloudStorage
from tests.stores.conftest import Place
from tests.stores.producer import SCHEMA
from tests.stores.proxy import Rule

pytestmark = [pytest.mark.long, pytest.mark.parametrize("server", ["minio"], indirect=True)]

READ = ("ListBucket", "GetObject")
WRITE = (*READ, "PutObject")
ALL = (*WRITE, "DeleteObject", "AbortMultipartUpload")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "object-stores.md"


@pytest.fixture
def having(place: Place) -> Iterator[Callable[..., dict[str, str]]]:
    """Return a function that gives the options of somebody who has these rights, and no others."""
    options = {**place.unsigned, "max_retries": "2"}

    def give(*rights: str) -> dict[str, str]:
        place.server.permit(*rights)
        return options

    yield give
    place.server.permit("*")


@pytest.fixture
def log(place: Place) -> Log:
    """Return a log of three appends, made by one who may do everything."""
    log = create_log(place.url, SCHEMA, minimum=(0,), storage_options=place.options, merge_every=None)
    for value in range(3):
        append(log, value)
    return log


def append(log: Log, value: int) -> None:
    assert log.writer("s0", owner="s0").append(rows(value), advance_to=value).committed


def rows(value: int) -> pa.Table:
    return pa.table({"_time": [value], "v": [value]})


def values(place: Place) -> list[int]:
    found = open_log(place.url, storage_options=place.server.options())
    assert found.verify().legal
    return found.messages()["v"].to_pylist()


def test_list_and_get_are_enough_to_read(place: Place, log: Log, having: Callable[..., dict[str, str]]) -> None:
    reader = open_log(place.url, storage_options=having(*READ))
    assert reader.messages()["v"].to_pylist() == [0, 1, 2]
    assert reader.verify().legal
    append(log, 3)
    assert reader.refresh()
    assert reader.messages()["v"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("right", READ)
def test_nothing_is_read_without_one_of_them(
    place: Place, log: Log, having: Callable[..., dict[str, str]], right: str
) -> None:
    options = having(*(name for name in ALL if name != right))
    with pytest.raises(StorageError, match="AccessDenied") as found:
        open_log(place.url, storage_options=options).messages()
    assert not isinstance(found.value, DataLossError)
    assert log.core.version == 4


def test_who_may_only_read_is_refused_an_append(place: Place, log: Log, having: Callable[..., dict[str, str]]) -> None:
    reader = open_log(place.url, storage_options=having(*READ))
    with pytest.raises(StorageError, match="AccessDenied"):
        reader.writer("s0", owner="s0").append(rows(9), advance_to=9)
    assert values(place) == [0, 1, 2]


def test_all_of_the_rights_are_enough_for_all(place: Place, having: Callable[..., dict[str, str]]) -> None:
    assert set(re.findall(r"`s3:(\w+)`", PAGE.read_text())) == set(ALL)
    options = having(*ALL)
    log = create_log(place.url, SCHEMA, minimum=(0,), storage_options=options, merge_every=None)
    for value in range(12):
        append(log, value)
    assert log.core.store.tidy(now=True)
    assert (log.compact().lost, len(log.core.files())) == (0, 1)
    assert values(place) == list(range(12))
    content = bytes(2 * cloud.WHOLE_BYTES + 1)
    CloudStorage(place.url, options).write("large", content)
    assert CloudStorage(place.url, options).mark("large")[1] == len(content)  # type: ignore[index]
    assert log.core.upkeep_problems() == []


def test_who_may_not_delete_appends_all_the_same(
    place: Place, having: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "KEEP_VERSIONS", 3)
    monkeypatch.setattr(checkpoints, "KEEP_S", -1.0)
    log = create_log(place.url, SCHEMA, minimum=(0,), storage_options=having(*WRITE), merge_every=None)
    for value in range(12):
        append(log, value)
    with place.proxy.counting() as seen:
        log.core.tidy()
    assert seen.by_kind["POST"] == 1, str(seen)  # a deletion of several files, though of one
    assert (
        len([name for name in log.core.storage.names("_delta_log") if name.endswith(".json")]) == log.core.version + 1
    )
    assert "AccessDenied" in log.core.upkeep_problems()[0]
    append(log, 12)
    assert values(place) == list(range(13))


@pytest.mark.parametrize("rights", [WRITE, ALL])
def test_upload_that_fails_is_told_with_and_without_abort(
    place: Place, having: Callable[..., dict[str, str]], rights: tuple[str, ...]
) -> None:
    storage = CloudStorage(place.url, having(*rights))
    storage.write("small", b"x")
    with place.proxy.breaking(Rule("403", kind="POST", skip=1)), pytest.raises(StorageError, match="AccessDenied"):
        storage.write("large", bytes(2 * cloud.WHOLE_BYTES + 1))
    assert not storage.exists("large")
