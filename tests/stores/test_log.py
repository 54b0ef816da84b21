"""A log in a real object store: how many requests it takes, a store that ignores conditions, and faults."""

from __future__ import annotations

import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import DataLossError, InvalidOptionError, LogMissingError, StorageError
from spark_timely.log import Log
from spark_timely.log import log as logs
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import cloud
from spark_timely.log.store.cloud import CloudStorage
from spark_timely.log.upkeep import finish_upkeep
from tests.faults.harness import long_lane
from tests.stores.conftest import IGNORANT, Place
from tests.stores.proxy import DONE, FAULTS, Plan, Rule

VALUES = pa.schema([("v", pa.int64())])
# Faults are to be met by the library's own means, and soon.
QUICK = {"max_retries": "0", "timeout": "2s"}
BROKEN = tuple(name for name in FAULTS if name not in ("delay", "slow", "strip", "403"))


def rows(*times: int) -> pa.Table:
    return pa.table({"_time": times, "v": times})


@pytest.fixture
def log(place: Place) -> Log:
    return create_log(place.url, VALUES, minimum=(0,), storage_options=place.options)


def values(place: Place) -> list[int]:
    found = open_log(place.url, storage_options=place.server.options())
    assert found.verify().legal
    return found.messages()["v"].to_pylist()


def test_append_takes_six_requests(place: Place, log: Log) -> None:
    writer = log.writer(owner="me")
    for i in range(8):
        with place.proxy.counting() as seen:
            writer.append(rows(i), advance_to=i)
        assert seen.total <= 6, seen
        assert not seen.by_kind["LIST"], seen


def test_poll_takes_one_request_and_no_list(place: Place, log: Log) -> None:
    log.frontier()
    for _ in range(3):
        with place.proxy.counting() as seen:
            log.refresh()
        assert seen.total <= 1, seen
        assert not seen.by_kind["LIST"], seen


def test_opening_takes_eight_requests_and_the_entries(place: Place, log: Log) -> None:
    writer = log.writer(owner="me")
    for i in range(30):
        writer.append(rows(i), advance_to=i)
    finish_upkeep()
    with place.proxy.counting() as seen:
        again = open_log(place.url, storage_options=place.options)
        assert again.frontier().to_json() == [29]
    assert log.core.store._upkeep._newest[0] > 0
    assert seen.total <= 8 + again.core.version - log.core.store._upkeep._newest[0], seen


def test_small_file_takes_two_requests(place: Place, log: Log) -> None:
    log.writer(owner="me").append(rows(*range(20_000)))
    with place.proxy.counting() as seen:
        assert log.messages().num_rows == 20_000
    assert seen.total <= 2, seen


def test_merges_and_checkpoints_do_not_hold_up_appends(place: Place) -> None:
    log = create_log(place.url, VALUES, minimum=(0,), storage_options=place.options, merge_every=20)
    writer = log.writer(owner="me")
    counts, n = [], 65 if long_lane() else 45
    for i in range(n):
        before = len(place.proxy.since(0))
        writer.append(rows(i), advance_to=i)
        made = [r for r in place.proxy.since(before) if r.kind == "PUT" and f"main-{i + 1:012d}" in r.key]
        counts.append(len(made))
    finish_upkeep()
    assert statistics.median(counts) == 2
    log.refresh()
    assert len(log.core.files()) < n
    assert values(place) == list(range(n))


# Conditional puts --------------------------------------------------------------------------------


@IGNORANT
def test_store_that_ignores_conditions_refuses_every_append(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers at once through a proxy that strips the condition, and answers late."""
    create_log(place.url, VALUES, minimum=(0,), storage_options=place.unsigned).writer(owner="a")
    writers = [open_log(place.url, storage_options=place.unsigned).writer(owner="a") for _ in range(2)]
    monkeypatch.setattr(cloud, "_excluding", set())
    with place.proxy.breaking(Rule("strip", kind="PUT", key=r"_delta_log/.*\.json", delay=0.4)):
        for i in range(5 if long_lane() else 2):
            with ThreadPoolExecutor(2) as pool:
                tries = [pool.submit(writer.append, rows(i)) for writer in writers]
            for tried in tries:
                with pytest.raises(StorageError, match="ignores conditional puts"):
                    tried.result()
    assert values(place) == []


@IGNORANT
def test_log_is_not_made_where_conditions_are_ignored(place: Place) -> None:
    with (
        place.proxy.breaking(Rule("strip", kind="PUT", delay=0.4)),
        pytest.raises(StorageError, match="ignores conditional puts"),
    ):
        create_log(place.url, VALUES, minimum=(0,), storage_options=place.unsigned)
    with pytest.raises(LogMissingError):
        open_log(place.url, storage_options=place.server.options())


# Faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", sorted(DONE - {"cut"}))
def test_lost_reply_of_any_request_of_an_append_is_absorbed(place: Place, log: Log, fault: str) -> None:
    writer = log.writer(owner="me")
    writer.append(rows(0), advance_to=0)
    for i in range(1, 8):
        with place.proxy.breaking(Rule(fault, skip=i - 1, times=1, delay=0.1)):
            writer.append(rows(i), advance_to=i)
    assert values(place) == list(range(8))


@pytest.mark.parametrize("seed", range(3 if long_lane() else 2))
def test_rows_are_neither_lost_nor_doubled_under_faults(place: Place, log: Log, seed: int) -> None:
    options = {**place.options, **QUICK}
    writer = open_log(place.url, storage_options=options).writer(owner="me")
    n = 60 if long_lane() else 30
    with place.proxy.planned(Plan(seed, 0.12, faults=BROKEN, delay=0.1)):
        for i in range(n):
            for _ in range(20):
                try:
                    writer.append(rows(i), batch=i)
                    break
                except DataLossError:
                    raise
                except StorageError:
                    continue
            else:
                pytest.fail("twenty failed appends")
        finish_upkeep()
    assert sum(place.proxy.broken.values()) > 20
    assert values(place) == list(range(n))


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "code"), [("503", "SlowDown|ServerBusy"), ("403", "AccessDenied|Authorization")])
def test_error_of_the_store_is_told_by_its_code(place: Place, log: Log, fault: str, code: str) -> None:
    log.writer(owner="me").append(rows(1))
    quick = open_log(place.url, storage_options={**place.options, **QUICK})
    quick.frontier()
    with (
        place.proxy.breaking(Rule(fault, key="_event=message")),
        pytest.raises(StorageError, match=code) as told,
    ):
        quick.messages()
    assert not isinstance(told.value, DataLossError)
    assert "Debug" not in str(told.value)
    assert quick.messages().num_rows == 1


def test_bucket_that_is_not_there_is_named(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = place.url.replace("://", "://no-such-", 1)
    for use in (open_log, lambda url, **more: create_log(url, VALUES, **more)):
        with pytest.raises(StorageError, match=r"NoSuchBucket|ContainerNotFound"):
            use(url, storage_options=place.options)
    assert not list(tmp_path.iterdir())


def test_refused_deletion_hides_no_error_of_a_creation(place: Place) -> None:
    broken = [Rule("403", kind="PUT", key="_delta_log/"), Rule("403", kind="POST")]
    with place.proxy.breaking(*broken), pytest.raises(StorageError, match="could not write"):
        create_log(place.url, VALUES, minimum=(0,), storage_options=place.options)


def test_refused_deletion_fails_no_creation(place: Place, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.writer(owner="me").append(rows(1))
    monkeypatch.setattr(logs, "has_table", lambda _: False)  # as a creation at the same moment finds it
    with place.proxy.breaking(Rule("403", kind="POST")):
        other = create_log(place.url, VALUES, minimum=(0,), storage_options=place.options, exist_ok=True)
    assert place.proxy.broken["403"] > 0
    assert other.messages()["v"].to_pylist() == [1]


def test_large_file_comes_back_and_its_lost_reply_is_absorbed(place: Place) -> None:
    storage = CloudStorage(place.url, place.options)
    content = bytes(range(256)) * (3 * cloud.WHOLE_BYTES // 256 + 1)
    with place.proxy.breaking(Rule("lost", kind="POST", skip=1, times=1), Rule("lost", key="blocklist", times=1)):
        storage.write("x", content)
    assert bytes(storage.read("x")) == content


def test_option_that_is_misspelt_is_refused(place: Place) -> None:
    with pytest.raises(InvalidOptionError, match="could not use storage option 'aws_regoin'"):
        open_log(place.url, storage_options={**place.options, "aws_regoin": "x"})


def test_orders_of_writers_are_kept(place: Place, log: Log) -> None:
    """Four threads on streams of their own, each with a handle of its own."""

    def write(name: str) -> None:
        writer = open_log(place.url, storage_options=place.options).writer(name, owner=name)
        for i in range(10):
            writer.append(rows(i))

    log.writer("a", owner="a")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert Counter(values(place)) == dict.fromkeys(range(10), 4)
