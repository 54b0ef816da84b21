"""A log whose folder is swapped for another one: a commit goes where its files are, or nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.errors import TimelyError
from spark_timely.log.log import create_log, open_log
from spark_timely.log.store import delta

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
