"""Checkpoints of a table: which are whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.log.log import create_log, open_log
from spark_timely.log.store.checkpoints import read_checkpoints
from spark_timely.log.store.scratch import LAST_CHECKPOINT, put_checkpoint
from spark_timely.log.store.storage import MemoryStorage


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([(1, 1)], True),
        ([(1, 2), (2, 2)], True),
        ([(1, 2)], False),
        ([(1, 2), (1, 3)], False),  # of two that were each cut another way
        ([(2, 3), (1, 1)], True),
    ],
)
def test_checkpoint_is_whole_with_all_of_its_parts(parts: list[tuple[int, int]], *, whole: bool) -> None:
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"add": [1]}), content)
    storage = MemoryStorage()
    storage.write("_delta_log/_last_checkpoint", b'{"version":7,"size":9}')
    for part, of in parts:
        cut = f".{part:010d}.{of:010d}" if of > 1 else ""
        storage.write(f"_delta_log/{7:020d}.checkpoint{cut}.parquet", content.getvalue())
    found = read_checkpoints(storage)
    assert (found.newest, found.lost) == ((7, None) if whole else (None, 7))
    assert found.broken == {}


@pytest.mark.parametrize("died", [False, True])
def test_checkpoint_that_another_process_put_is_no_failure(tmp_path: Path, *, died: bool) -> None:
    """It was as far, and perhaps died before it put the pointer."""
    log = create_log(tmp_path / "log", pa.schema([("v", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="me")
    for time in range(3):
        writer.append({"_time": [time], "v": [time]}, advance_to=time + 1)
    rows = put_checkpoint(log.core.storage, log.core.version, 0)  # type: ignore[arg-type]
    if died:
        log.core.storage.delete(LAST_CHECKPOINT)
    assert put_checkpoint(log.core.storage, log.core.version, 0) == rows  # type: ignore[arg-type]
    assert read_checkpoints(log.core.storage).newest == log.core.version
    log.core.tidy()
    assert not log.core.upkeep_problems()
    assert open_log(log.path).messages()["v"].to_pylist() == [0, 1, 2]
