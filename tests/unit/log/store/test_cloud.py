"""Logs in object stores: how many requests they take, what is refused, and what errors say."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.errors import DataLossError, InvalidOptionError, StorageError
from spark_timely.log import Log, core
from spark_timely.log.files.parquet_reader import expect_columns, read_file
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import cloud
from spark_timely.log.store import delta as delta_store
from spark_timely.log.store.cloud import CloudStorage, cloud_error
from spark_timely.log.upkeep import finish_upkeep

VALUES = pa.schema([("v", pa.int64())])
CALLS = ("get", "get_ranges", "put", "head", "list", "list_with_delimiter", "delete")
NUMBERS = count()
KEYS = {"aws_region": "us-east-1", "aws_access_key_id": "AK", "aws_secret_access_key": "x" * 20}
NOBODY = {**KEYS, "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true"}


def rows(time_: int) -> pa.Table:
    return pa.table({"_time": [time_], "v": [time_]})


@pytest.fixture
def url() -> str:
    return f"memory://cloud-{next(NUMBERS)}/log"


@pytest.fixture
def log(url: str) -> Log:
    return create_log(url, VALUES, minimum=(0,))


def counted(name: str, found: Counter[str]) -> Callable[..., Any]:
    call = getattr(obstore, name)

    def count_and_call(*args: Any, **more: Any) -> Any:
        found[name] += 1
        return call(*args, **more)

    return count_and_call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the client is asked for."""
    found: Counter[str] = Counter()
    for name in CALLS:
        monkeypatch.setattr(obstore, name, counted(name, found))
    return found


def break_calls(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[[str], bool], said: str, *, after: bool = False
) -> None:
    """Let calls about some paths fail, before or after they were done."""
    call = getattr(obstore, name)

    def fail(store: Any, path: Any, *args: Any, **more: Any) -> Any:
        if not broken(str(path)):
            return call(store, path, *args, **more)
        if after:
            call(store, path, *args, **more)
        raise obstore.exceptions.GenericError(said)

    monkeypatch.setattr(obstore, name, fail)


FORBIDDEN = (
    "Generic S3 error: Error performing GET http://h:9/b/x in 1ms - Server returned non-2xx status code: 403 Forbidden:"
    ' <?xml version="1.0"?><Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message>'
    "</Error>\n\nDebug source:\nGeneric {\n    store: \x1b[31mS3\x1b[0m,\n}"
)
BUSY = (
    "Generic S3 error: Error performing PUT http://h:9/b/x in 9s, after 10 retries, max_retries: 10, retry_timeout:"
    " 180s  - Server returned error response: 503 Service Unavailable: <Error><Code>SlowDown</Code></Error>"
)
BROKE_OFF = "Generic S3 error: Error performing GET http://h:9/b/x in 2ms - HTTP error: request or response body error"


# Requests ----------------------------------------------------------------------------------------


def test_append_takes_six_requests(log: Log, asked: Counter[str]) -> None:
    writer = log.writer(owner="me")
    for i in range(15):
        asked.clear()
        writer.append(rows(i), advance_to=i)
        assert asked == {"get": 2, "put": 3, "head": 1}


def test_poll_that_finds_nothing_is_one_request(log: Log, asked: Counter[str]) -> None:
    log.frontier()
    for _ in range(3):
        asked.clear()
        assert not log.refresh()
        assert asked == {"get": 1}


def test_snapshot_of_a_minute_ago_is_looked_at_again(log: Log, asked: Counter[str]) -> None:
    log.core.store._seen = tuple(at - 2 * delta_store._SEEN_S for at in log.core.store._seen)
    asked.clear()
    assert not log.core.store.refresh()
    assert asked == {"get": 1, "head": 1}
    asked.clear()
    assert not log.core.store.refresh()
    assert asked == {"get": 1}


def test_names_behind_the_snapshot_are_looked_at_each_minute(
    log: Log, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (looked,) = log.core.store._whole
    for later, lists in ((59, 0), (61, 1), (119, 0), (122, 1)):
        monkeypatch.setattr(delta_store.time, "monotonic", lambda now=looked + later: now)
        asked.clear()
        assert not log.refresh()
        assert asked["list"] == lists, later


def test_clock_that_was_put_back_is_not_believed(log: Log, asked: Counter[str]) -> None:
    wall, monotonic = log.core.store._seen
    log.core.store._seen = wall + 3600, monotonic
    asked.clear()
    log.core.store.refresh()
    assert asked == {"get": 1, "head": 1}


def test_news_are_one_request_each_and_one_look(log: Log, url: str, asked: Counter[str]) -> None:
    other = open_log(url)
    writer = log.writer(owner="me")
    for i in range(4):
        writer.append(rows(i), advance_to=i)
    asked.clear()
    assert other.core.store.refresh()
    assert asked == {"get": 6, "head": 1}  # an entry opened the stream


def test_opening_takes_few_requests(log: Log, url: str, asked: Counter[str]) -> None:
    writer = log.writer(owner="me")
    for i in range(45):
        writer.append(rows(i), advance_to=i)
    finish_upkeep()
    newest = log.core.store._upkeep._newest
    assert newest is not None
    assert newest[0] > 0
    asked.clear()
    again = open_log(url)
    assert again.frontier().to_json() == [44]
    assert sum(asked.values()) <= 8 + again.core.version - newest[0]
    assert asked["list"] + asked["list_with_delimiter"] == 1


def test_small_file_is_one_request(log: Log, asked: Counter[str]) -> None:
    log.writer(owner="me").append(rows(1))
    asked.clear()
    assert log.messages()["v"].to_pylist() == [1]
    assert asked == {"get": 1}


def test_upkeep_takes_no_request_of_the_append(url: str, asked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Callable[[], None]] = []
    monkeypatch.setattr(core, "run_aside", lambda log, job: jobs.append(job))
    log = create_log(url, VALUES, minimum=(0,), merge_every=20)
    writer = log.writer(owner="me")
    for i in range(60):
        asked.clear()
        writer.append(rows(i), advance_to=i)
        # An entry of a merge may be in the way: then it is read, and the next version is tried.
        assert sum(asked.values()) <= 12
        if len(jobs) > 1:
            jobs.pop(0)()
    while jobs:
        jobs.pop(0)()
    log.refresh()
    assert len(log.core.files()) < 60
    assert log.core.store._upkeep._newest[0] > 40
    assert not log.core.store.problems()
    assert open_log(url).messages()["v"].to_pylist() == list(range(60))
    assert log.verify().legal


def test_checkpoint_reads_no_entry_again(log: Log, asked: Counter[str]) -> None:
    writer = log.writer(owner="me")
    for i in range(15):
        writer.append(rows(i), advance_to=i)
    finish_upkeep()
    asked.clear()
    log.core.tidy()
    assert asked["get"] <= 4
    assert asked["put"] == 2


def test_upkeep_goes_on_beside_the_writers(url: str) -> None:
    log = create_log(url, VALUES, minimum=(0,), merge_every=10)
    writer = log.writer(owner="me")
    for i in range(120):
        writer.append(rows(i), advance_to=i)
    finish_upkeep()
    log.refresh()
    assert len(log.core.states.files("progress")) < 120
    assert log.core.store._upkeep._newest[0] >= 20
    assert open_log(url).messages()["v"].to_pylist() == list(range(120))
    assert not log.core.store.problems()


# A store without conditional puts ------------------------------------------------------------------


@pytest.fixture
def ignoring(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the store ignore the condition of a put, from then on."""

    def start() -> None:
        put = obstore.put
        monkeypatch.setattr(obstore, "put", lambda *args, mode=None, **more: put(*args, **more))
        monkeypatch.setattr(cloud, "_excluding", set())

    return start


def test_store_that_ignores_the_condition_is_not_written(log: Log, url: str, ignoring: Callable[[], None]) -> None:
    log.writer(owner="me").append(rows(1))
    ignoring()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"ignores conditional puts.*hint: .*singleWriter=true") as told:
            log.writer(owner="me").append(rows(2))
        assert told.value.determinate
    assert open_log(url).messages()["v"].to_pylist() == [1]


def test_log_is_not_made_where_the_condition_is_ignored(url: str, ignoring: Callable[[], None]) -> None:
    ignoring()
    with pytest.raises(StorageError, match="ignores conditional puts"):
        create_log(url, VALUES, minimum=(0,))
    assert CloudStorage(url).names() == []


def test_single_writer_writes_where_the_condition_is_ignored(url: str, ignoring: Callable[[], None]) -> None:
    ignoring()
    log = create_log(url, VALUES, minimum=(0,), single_writer=True)
    log.writer(owner="me").append(rows(1))
    # The memory is found by its URL, whatever the options.
    assert open_log(url).messages()["v"].to_pylist() == [1]


def test_store_that_does_not_know_the_condition_is_not_written(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "status code: 501 Not Implemented: <Error><Code>NotImplemented</Code></Error>"
    put = obstore.put

    def refuse(*args: Any, mode: Any = None, **more: Any) -> Any:
        if mode == "create":
            raise obstore.exceptions.GenericError(said)
        return put(*args, **more)

    monkeypatch.setattr(obstore, "put", refuse)
    with pytest.raises(StorageError, match=r"refuses conditional puts .*NotImplemented"):
        create_log(url, VALUES, minimum=(0,))


def test_entry_deleted_during_the_probe_is_no_proof(log: Log, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log.writer(owner="me")
    monkeypatch.setattr(cloud, "_excluding", set())
    storage = CloudStorage(url)
    entry = f"_delta_log/{log.core.version:020d}.json"
    content = bytes(storage.read(entry))
    assert storage.kept(entry) is None
    storage.find(entry)
    storage.delete(entry)
    storage.check_excludes(entry)
    assert bytes(storage.read(entry)) == content
    assert (url, ()) in cloud._excluding
    writer.append(rows(1))


# Errors ------------------------------------------------------------------------------------------


def test_reply_that_was_lost_is_no_second_append(log: Log, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log.writer(owner="me")
    with monkeypatch.context() as patch:
        break_calls(patch, "put", lambda path: path.endswith(".json"), "connection reset", after=True)
        for i in range(3):
            writer.append(rows(i), advance_to=i)
    assert open_log(url).messages()["v"].to_pylist() == [0, 1, 2]
    assert open_log(url).verify().legal


def test_refused_entry_is_no_append(log: Log, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log.writer(owner="me")
    with monkeypatch.context() as patch:
        break_calls(patch, "put", lambda path: path.endswith(".json"), FORBIDDEN)
        with pytest.raises(StorageError, match="SignatureDoesNotMatch: access denied, status=403") as told:
            writer.append(rows(1))
        assert told.value.determinate
    assert open_log(url).messages().num_rows == 0
    assert CloudStorage(url).names("_event=message") == []


@pytest.mark.parametrize(("said", "found"), [(FORBIDDEN, "SignatureDoesNotMatch"), (BUSY, "SlowDown")])
@pytest.mark.parametrize("name", ["get", "get_ranges"])
def test_error_of_the_store_is_no_damage(
    log: Log, monkeypatch: pytest.MonkeyPatch, name: str, said: str, found: str
) -> None:
    table = pa.table({"_time": range(300_000), "v": range(300_000)})
    log.writer(owner="me").append(table)
    (path,) = log.core.states.files("message").paths.tolist()
    with monkeypatch.context() as patch:
        break_calls(patch, name, lambda asked: asked == path, said)
        with pytest.raises(StorageError, match=found) as told:
            read_file(log.core.storage, path, log.core.format.data_schema)
    assert not isinstance(told.value, DataLossError)
    assert "Debug" not in str(told.value)
    assert "\x1b" not in str(told.value)
    assert read_file(log.core.storage, path, log.core.format.data_schema).num_rows == 300_000


def test_file_that_is_not_there_is_lost(log: Log) -> None:
    log.writer(owner="me").append(rows(1))
    (path,) = log.core.states.files("message").paths.tolist()
    log.core.storage.delete(path)
    with pytest.raises(DataLossError, match="no such file"):
        log.messages()


@pytest.mark.parametrize(
    ("said", "what", "found", "determinate"),
    [
        (FORBIDDEN, "write", "SignatureDoesNotMatch: access denied, status=403, host='h:9'", True),
        (BUSY, "write", "SlowDown: that the store is overloaded, status=503, host='h:9'", False),
        (BUSY, "read", "SlowDown", True),
        ("x in 2s, after 3 retries - Connection refused", "write", "that nobody answers", False),
        ("x in 2s, after 0 retries - Connection refused", "write", "that nobody answers", True),
        ("status code: 404 Not Found: <Code>NoSuchBucket</Code>", "read", "NoSuchBucket: no such bucket", True),
        ("<Code>Odd</Code><Message>How odd.</Message>", "read", "Odd: 'How odd.'", True),
        ("operation timed out, retry_timeout: 180s", "write", "no answer in time", False),
        ("failed for key x/a: Access Denied. (code: AccessDenied)", "delete", "AccessDenied: access denied", True),
        (BROKE_OFF, "read", "a connection that broke off, host='h:9'", True),
        ("x after 10 retries - HTTP error: error sending request", "write", "a connection that broke off", False),
        ("retry_timeout: 180s - error decoding", "write", "error decoding", False),
    ],
)
def test_answer_of_a_store_is_told_in_one_line(said: str, what: str, found: str, determinate: bool) -> None:
    error = cloud_error("s3://b/x", what, OSError(said))
    assert found in str(error)
    assert "\n" not in str(error)
    assert error.determinate is determinate


def test_nobody_at_the_endpoint_is_told_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"that nobody answers, host='127\.0\.0\.1:9'"):
        open_log("s3://bucket/nobody", storage_options=NOBODY)
    with pytest.raises(StorageError, match="that nobody answers"):
        CloudStorage("s3://bucket/nobody", NOBODY).write("a/b", b"")
    assert time.monotonic() - begun < 60
    assert not os.listdir(tmp_path)


def test_environment_may_allow_http(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {name: value for name, value in NOBODY.items() if name != "allow_http"}
    for url, found in (("s3://bucket/no-http", "without encryption"), ("s3a://bucket/http", "nobody answers")):
        with pytest.raises(StorageError, match=found):
            CloudStorage(url, options).write("a/b", b"")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


def test_option_that_no_store_has_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="'aws_regoin'"):
        open_log("s3://bucket/log", storage_options={**KEYS, "aws_regoin": "x"})


@pytest.mark.parametrize("size", [0, 1, cloud.WHOLE_BYTES, 3 * cloud.WHOLE_BYTES + 1])
def test_files_of_all_sizes_come_back(url: str, size: int) -> None:
    storage = CloudStorage(url)
    content = os.urandom(size)
    with storage.open_output("a/x") as sink:
        sink.write(content[: size // 2])
        sink.write(content[size // 2 :])
        assert sink.tell() == size
        assert not storage.exists("a/x")
    assert bytes(storage.read("a/x")) == content


def test_file_whose_writing_failed_does_not_appear(url: str) -> None:
    storage = CloudStorage(url)

    def fail() -> None:
        with storage.open_output("a/x") as sink:
            sink.write(b"half")
            msg = "stopped"
            raise KeyError(msg)

    with pytest.raises(KeyError, match="stopped"):
        fail()
    assert storage.names("a") == []


def test_lost_reply_of_a_large_file_is_settled_by_a_look(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, content = CloudStorage(url), bytes(cloud.WHOLE_BYTES + 1)
    with monkeypatch.context() as patch:
        break_calls(patch, "put", lambda path: True, "connection reset", after=True)
        storage.write("a/x", content)
    with monkeypatch.context() as patch:

        def complete_twice(store: Any, path: str, *args: Any, _put: Any = obstore.put, **more: Any) -> Any:
            _put(store, path, *args, **more)
            msg = "not found: <Code>NoSuchUpload</Code>"
            raise FileNotFoundError(msg)

        patch.setattr(obstore, "put", complete_twice)
        storage.write("a/z", content)
        storage.delete("a/z")
    with monkeypatch.context() as patch:
        break_calls(patch, "put", lambda path: True, "connection reset")
        with pytest.raises(StorageError, match="could not write file 'a/y'"):
            storage.write("a/y", content)
    assert storage.names("a") == ["x"]


# Reading by few requests -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> tuple[CloudStorage, str, pa.Table]:
    """A file of a dozen MB in ten row groups: four columns that do not compress."""
    noise = np.random.default_rng(0).integers(-(2**62), 2**62, (4, 400_000))
    table = pa.table({name: pa.array(values) for name, values in zip("abcd", noise, strict=True)})
    storage = CloudStorage(f"memory://cloud-{next(NUMBERS)}/log")
    with storage.open_output("x.parquet") as sink:
        pq.write_table(table, sink, row_group_size=40_000, compression="none", use_dictionary=False)
    return storage, "x.parquet", table


def test_one_column_of_a_large_file_takes_two_requests(
    large: tuple[CloudStorage, str, pa.Table], asked: Counter[str]
) -> None:
    storage, path, table = large
    found = read_file(storage, path, pa.schema([("b", pa.int64())]))
    assert found["b"].equals(table["b"])
    assert asked == {"get": 1, "get_ranges": 1}


def test_all_of_a_large_file_takes_two_requests(large: tuple[CloudStorage, str, pa.Table], asked: Counter[str]) -> None:
    storage, path, table = large
    assert read_file(storage, path, table.schema).equals(table)
    assert asked == {"get": 1, "get_ranges": 1}


def test_row_groups_are_fetched_ahead_up_to_a_bound(
    large: tuple[CloudStorage, str, pa.Table], asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, path, table = large
    monkeypatch.setattr(cloud, "_AHEAD_BYTES", 3 << 20)
    source = storage.open_input(path)
    with pq.ParquetFile(source) as file:
        expect_columns(source, file.metadata, range(10), {"a", "c"})
        batches = list(file.iter_batches(10_000, columns=["a", "c"], use_threads=False))
    assert pa.Table.from_batches(batches).equals(table.select(["a", "c"]))
    # 6.4 MB of two columns.
    assert asked["get"] == 1
    assert 2 <= asked["get_ranges"] <= 4


def test_what_was_not_expected_is_read_too(large: tuple[CloudStorage, str, pa.Table]) -> None:
    storage, path, table = large
    source = storage.open_input(path)
    with pq.ParquetFile(source) as file:
        expect_columns(source, file.metadata, [3], {"a"})
        assert file.read_row_group(7).equals(table.slice(280_000, 40_000))
        assert file.read_row_group(3).equals(table.slice(120_000, 40_000))


def test_middling_file_that_nobody_announced_takes_two_requests(url: str, asked: Counter[str]) -> None:
    storage, content = CloudStorage(url), os.urandom(1 << 20)
    storage.write("x", content)
    asked.clear()
    with storage.open_input("x") as source:
        assert source.size() == 1 << 20
        for start in (5, 1 << 19, 900_000, 1_000_000, (1 << 20) - 3, 0):
            source.seek(start)
            assert source.read(99_999) == content[start : start + 99_999]
    assert asked == {"get": 1, "get_ranges": 1}


def test_error_before_a_put_says_that_nothing_happened(log: Log, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log.writer(owner="me")
    with monkeypatch.context() as patch:
        break_calls(patch, "head", lambda path: True, BUSY)
        with pytest.raises(StorageError, match="SlowDown") as told:
            writer.append(rows(1))
        assert told.value.determinate
    assert open_log(url).messages().num_rows == 0
    assert writer.append(rows(1)).committed
    assert open_log(url).messages()["v"].to_pylist() == [1]


def test_error_behind_an_entry_that_was_put_deletes_nothing(
    log: Log, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look behind a put that took long fails: what the entry names is part of the log."""
    writer = log.writer(owner="me")
    entry = f"{log.core.version + 1:020d}.json"
    with monkeypatch.context() as patch:
        patch.setattr("spark_timely.log.store.delta._SEEN_S", -1.0)
        break_calls(patch, "head", lambda path: entry in CloudStorage(url).names("_delta_log"), BUSY)
        with pytest.raises(StorageError, match="SlowDown") as told:
            writer.append(rows(1))
        assert not told.value.determinate
    assert open_log(url).messages()["v"].to_pylist() == [1]
    assert open_log(url).verify().legal


def test_name_that_is_taken_and_cannot_be_read_may_be_ours(log: Log, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tried again after a lost reply, and the look at whose entry it is fails."""
    writer = log.writer(owner="me")
    put, get, taken = obstore.put, obstore.get, []

    def put_twice(store: Any, path: str, *args: Any, **more: Any) -> Any:
        answer = put(store, path, *args, **more)
        if path.endswith(".json"):
            taken.append(path)
            put(store, path, *args, **more)
        return answer

    def refuse(store: Any, path: str, *args: Any, **more: Any) -> Any:
        if path in taken:
            raise obstore.exceptions.GenericError(FORBIDDEN)
        return get(store, path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", put_twice)
        patch.setattr(obstore, "get", refuse)
        with pytest.raises(StorageError, match="SignatureDoesNotMatch") as told:
            writer.append(rows(1))
        assert not told.value.determinate
    assert open_log(url).messages()["v"].to_pylist() == [1]
    assert open_log(url).verify().legal


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("read", [True, False])
def test_refusal_after_a_lost_reply_is_no_refusal(
    log: Log, url: str, monkeypatch: pytest.MonkeyPatch, done: bool, read: bool
) -> None:
    """An entry that the store has, or has not: its reply got lost, and the next attempt is refused."""
    writer = log.writer(owner="me")
    put, get, asked = obstore.put, obstore.get, list[str]()

    def lose(store: Any, path: str, *args: Any, **more: Any) -> Any:
        if not path.endswith(".json"):
            return put(store, path, *args, **more)
        asked.append(path)
        if len(asked) > 1:
            raise obstore.exceptions.GenericError(FORBIDDEN)
        if done:
            put(store, path, *args, **more)
        raise obstore.exceptions.GenericError(BROKE_OFF)

    def refuse(store: Any, path: str, *args: Any, **more: Any) -> Any:
        if not read and path in asked:
            raise obstore.exceptions.GenericError(FORBIDDEN)
        return get(store, path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", lose)
        patch.setattr(obstore, "get", refuse)
        if done and read:
            assert writer.append(rows(1)).committed
        else:
            with pytest.raises(StorageError, match="SignatureDoesNotMatch") as told:
                writer.append(rows(1))
            assert not told.value.determinate
    assert len(asked) >= 2
    assert open_log(url).messages()["v"].to_pylist() == [1] * done
    assert open_log(url).verify().legal


def test_put_of_a_single_writer_that_fails_is_unclear(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create_log(url, VALUES, minimum=(0,), single_writer=True)
    writer = log.writer(owner="me")
    with monkeypatch.context() as patch:
        break_calls(patch, "put", lambda path: path.endswith(".json"), BUSY, after=True)
        break_calls(patch, "get", lambda path: path.endswith(".json"), FORBIDDEN)
        with pytest.raises(StorageError):
            writer.append(rows(1))
    assert open_log(url).messages()["v"].to_pylist() in ([], [1])
    assert open_log(url).verify().legal


# Answers that break off --------------------------------------------------------------------------


def broken_at_first(
    monkeypatch: pytest.MonkeyPatch, url: str, call: str, said: str, *, times: int, **options: str
) -> tuple[CloudStorage, list[str]]:
    """Return the files of a log where the first calls of a kind fail, and what becomes a list of these calls."""
    storage, asked = CloudStorage(url, options), list[str]()
    storage.write("a/x", b"content")
    done = getattr(obstore, call)

    def ask(store: Any, path: Any, *args: Any, **more: Any) -> Any:
        asked.append(path)
        if len(asked) <= times:
            raise obstore.exceptions.GenericError(said)
        return done(store, path, *args, **more)

    monkeypatch.setattr(obstore, call, ask)
    return storage, asked


TWICE = {
    "get": lambda storage: storage.find("a/x") == b"content",
    "head": lambda storage: storage.exists("a/x"),
    "get_ranges": lambda storage: bytes(storage.fetch("a/x", [1], [3])[0]) == b"on",
    "list": lambda storage: list(storage.ages("a")) == ["x"],
    "list_with_delimiter": lambda storage: storage.names("a") == ["x"],
    "delete": lambda storage: storage.delete("a/x") is None,
}


@pytest.mark.parametrize("call", sorted(TWICE))
def test_answer_that_broke_off_is_asked_for_again(url: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, asked = broken_at_first(monkeypatch, url, call, BROKE_OFF, times=2)
    assert TWICE[call](storage)
    assert len(asked) == 3


@pytest.mark.parametrize("call", sorted(TWICE))
@pytest.mark.parametrize(
    ("said", "options"),
    [(FORBIDDEN, {}), (BUSY, {}), (f"{BROKE_OFF}: operation timed out", {}), (BROKE_OFF, {"max_retries": "0"})],
)
def test_other_failures_are_not_tried_again(
    url: str, call: str, said: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, asked = broken_at_first(monkeypatch, url, call, said, times=1, **options)
    with pytest.raises(StorageError):
        TWICE[call](storage)
    assert len(asked) == 1


def test_answer_that_breaks_off_each_time_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, asked = broken_at_first(monkeypatch, url, "get", BROKE_OFF, times=9)
    with pytest.raises(StorageError, match="could not read file 'a/x'"):
        storage.find("a/x")
    assert len(asked) == 3


def test_many_files_are_deleted_by_few_requests(log: Log, asked: Counter[str]) -> None:
    storage = log.core.storage
    paths = [f"_event=message/{number:04d}.parquet" for number in range(1500)]
    for path in paths[:1400]:
        storage.write(path, b"abc")
    found = dict(storage.sizes("_event=message"))
    assert len(found) == 1400
    assert {size for size, _ in found.values()} == {3}
    assert all(abs(at - time.time()) < 60 for _, at in found.values())
    asked.clear()
    storage.delete_all(paths[:1400])
    assert asked == {"delete": 2}
    assert storage.sizes("_event=message") == {}
    # Some were not there: a store that stops at such a one is asked for each.
    for path in paths[:9]:
        storage.write(path, b"abc")
    storage.delete_all([*paths[5:20], *paths[:5]])
    assert storage.sizes("_event=message") == {}
    storage.delete_all([])


def test_request_that_deletes_many_may_fail(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise obstore.exceptions.GenericError("status code: 403 Forbidden: <Code>AccessDenied</Code>")

    monkeypatch.setattr(obstore, "delete", refuse)
    with pytest.raises(StorageError, match=r"could not delete log .*: found AccessDenied: access denied"):
        log.core.storage.delete_all(["a", "b"])
