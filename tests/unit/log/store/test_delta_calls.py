"""Calls of delta-rs: panics and forks are errors of ours, and no text holds a secret."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import InvalidOptionError, StorageError
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import delta_calls
from spark_timely.log.store.cloud import CloudStorage
from spark_timely.log.store.delta_calls import DeltaTable, delta_call
from spark_timely.masking import keep_secret

SCHEMA = pa.schema([("v", pa.int64())])
PanicException = type("PanicException", (BaseException,), {})


def in_a_fork(call: Callable[[], object]) -> str:
    """Return what a call says in a forked process."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            call()
            told = "nothing"
        except BaseException as error:  # noqa: BLE001 - a panic is no Exception
            told = f"{type(error).__name__}: {error}"
        os.write(writable, told.encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(child, 0)
    return told


@pytest.mark.parametrize("call", ["open", "create", "handle", "files"])
def test_forked_process_is_told_to_be_spawned(tmp_path: Path, call: str) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,))
    open_log(log.path)
    options = {"endpoint": "http://127.0.0.1:9", "max_retries": "0", "allow_http": "true", "skip_signature": "true"}
    files = CloudStorage("s3://bucket/x", options)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: open_log(log.path),
        "create": lambda: create_log(tmp_path / "other", SCHEMA),
        "handle": lambda: DeltaTable(log.path),
        "files": lambda: files.read("x"),
    }
    told = in_a_fork(calls[call])
    assert told.startswith("InvalidUsageError: [TIMELY_INVALID_USAGE] could not use log")
    assert "'spawn'" in told
    assert not (tmp_path / "other" / "_delta_log").is_dir() or not list((tmp_path / "other" / "_delta_log").iterdir())


def test_call_of_others_before_the_fork_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create_log(tmp_path / "log", SCHEMA, minimum=(0,))
    open_log(log.path)
    monkeypatch.setattr(delta_calls, "_called_in", None)  # as if somebody else had called it
    said = in_a_fork(lambda: open_log(log.path))
    assert said.startswith("InvalidUsageError: [TIMELY_INVALID_USAGE] could not use log")


def test_panic_is_an_error_that_except_exception_sees() -> None:
    found = r"could not use log 'here': found that .* failed: not a number"
    with pytest.raises(StorageError, match=found) as caught, delta_call("here"):
        raise PanicException("not a\nnumber")
    assert not caught.value.determinate


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_and_exits_pass(kind: type[BaseException]) -> None:
    with pytest.raises(kind), delta_call("here"):
        raise kind


def test_error_of_a_call_that_is_kept_for_later_holds_no_secret() -> None:
    secret = "hunter" + "2"
    keep_secret({"account_key": secret})
    kept: list[Exception] = []
    try:
        with delta_call("here"):
            raise OSError(secret)
    except OSError as error:
        kept.append(error)
    assert secret not in "".join(traceback.format_exception(kept[0]))


@pytest.mark.parametrize("value", [5, None, True, b"x"])
@pytest.mark.parametrize("call", [open_log, CloudStorage, lambda path, **options: create_log(path, SCHEMA, **options)])
def test_option_of_the_storage_that_is_no_text_is_refused(
    tmp_path: Path, call: Callable[..., Any], value: object
) -> None:
    keyword = "options" if call is CloudStorage else "storage_options"
    with pytest.raises(InvalidOptionError, match="storage option 'aws_region': found type="):
        call(str(tmp_path / "log"), **{keyword: {"aws_region": value}})
    with pytest.raises(InvalidOptionError, match="found a name of type=int"):
        call(str(tmp_path / "log"), **{keyword: {5: "x"}})
    assert not list(tmp_path.iterdir())


def test_files_are_reached_through_calls(tmp_path: Path) -> None:
    storage = CloudStorage(f"file://{tmp_path}")  # no local path: reached as a cloud store is
    storage.write("a/x.txt", b"content")
    assert storage.read("a/x.txt").to_pybytes() == b"content"
    assert storage.names("a") == ["x.txt"]
    assert storage.exists("a/x.txt")
    storage.delete("a/x.txt")
    assert not storage.exists("a/x.txt")
