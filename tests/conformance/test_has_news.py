"""Whether others have committed, seen without opening the table: also by a handle that is far behind."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log


@pytest.fixture
def log(log_path: str) -> Log:
    made = create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(0,), merge_every=None)
    made.writer(owner="me").append(pa.table({"_time": [1], "v": [1]}), advance_to=2)
    return made


def test_news_are_seen_however_far_behind_a_handle_is(log: Log) -> None:
    reader, version = open_log(log.path), log.core.version
    assert not reader.core.has_news()
    for time in range(3, 90):
        log.advance("main", time)
    # What `tidy` does once enough is there: entries behind a checkpoint go.
    entries = Path(log.path, "_delta_log")
    for name in os.listdir(entries):
        if name.endswith(".json") and int(name[:20]) <= version + 2:
            os.remove(entries / name)
    assert not (entries / f"{version + 1:020d}.json").exists()
    assert reader.core.has_news()
    reader.refresh()
    assert (reader.core.version, reader.frontier()) == (log.core.version, log.frontier())
    assert not reader.core.has_news()


@pytest.mark.parametrize("content", ["", "[]", '{"size": 1}', '{"version": null}'])
def test_damaged_pointer_to_the_checkpoint_tells_no_news(log: Log, content: str) -> None:
    Path(log.path, "_delta_log", "_last_checkpoint").write_text(content)
    assert not log.core.has_news()
