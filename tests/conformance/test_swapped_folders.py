"""A log whose folder is swapped for another one: a commit goes where its files are, or nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_timely.errors import TimelyError
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import delta
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.scratch import put_checkpoint
from spark_timely.log.store.storage import FileStorage

SCHEMA = pa.schema([("k", pa.int64())])


@pytest.mark.parametrize("moment", ["before the link", "after the link"])
def test_commit_goes_where_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    for name in ("a", "b"):
        log = create_log(tmp_path / name, SCHEMA, minimum=(0,), flush=False)
        log.writer(owner="me").append(pa.table({"_time": [0], "k": [1]}), advance_to=1)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    log = open_log(link)
    writer = log.writer(owner="me")
    put = delta.put_entry

    def swapped(*arguments: object) -> bool:
        def swap() -> None:
            (tmp_path / "next").symlink_to(tmp_path / "b")
            os.replace(tmp_path / "next", link)

        if moment == "before the link":
            swap()
            return put(*arguments)  # type: ignore[arg-type]
        done = put(*arguments)  # type: ignore[arg-type]
        swap()
        return done

    monkeypatch.setattr(delta, "put_entry", swapped)
    with pytest.raises(TimelyError):
        writer.append(pa.table({"_time": [1], "k": [2]}), advance_to=2)
    found = {name: open_log(tmp_path / name) for name in ("a", "b")}
    assert all(log.verify().legal for log in found.values())
    assert found["b"].messages()["k"].to_pylist() == [1]
    # After the link it is there: the writer cannot see it, and says that it does not know.
    assert found["a"].messages()["k"].to_pylist() == ([1] if moment == "before the link" else [1, 2])


@pytest.mark.parametrize("file", [".checkpoint.parquet", "_last_checkpoint"])
def test_checkpoint_goes_where_its_entries_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    for name in ("a", "b"):
        log = create_log(tmp_path / name, SCHEMA, minimum=(0,), flush=False)
        log.writer(owner="me").append(pa.table({"_time": [0], "k": [1]}), advance_to=1)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    storage = open_storage(str(link))
    put = FileStorage.put

    def swapped(self: FileStorage, path: str, content: bytes, **options: Any) -> None:
        if path.endswith(file):
            (tmp_path / "next").symlink_to(tmp_path / "b")
            os.replace(tmp_path / "next", link)
        put(self, path, content, **options)

    monkeypatch.setattr(FileStorage, "put", swapped)
    assert isinstance(storage, FileStorage)
    with pytest.raises(OSError, match="is not there any more"):
        put_checkpoint(storage, open_log(tmp_path / "a").core.version, 0)
    assert not list((tmp_path / "b" / "_delta_log").glob("*checkpoint*"))
    assert not list((tmp_path / "a" / "_delta_log").glob("_last*"))
    assert all(open_log(tmp_path / name).verify().legal for name in ("a", "b"))
