"""Checkpoints of a table: which are whole."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.log.store.checkpoints import read_checkpoints
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
