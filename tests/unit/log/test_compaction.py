"""When the small files that commits leave behind are merged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_timely.log import MemoryLog


def test_files_are_merged_where_half_of_the_commits_left_one() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), merge_every=20)
    writer = log.writer(owner="me")
    found = []
    for time in range(1, 41):
        if time % 2:
            writer.append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)
        else:
            writer.advance(time + 1)
        log.refresh()
        found.append(log.describe()["message_files"])
    assert (found[18], found[19], found[38], found[39]) == (10, 1, 11, 1)
    assert log.messages()["v"].to_pylist() == list(range(1, 41, 2))


def test_larger_files_are_merged_where_an_eighth_is_there() -> None:
    log = MemoryLog.create(pa.schema([("v", pa.binary())]), minimum=(0,), merge_every=20)
    writer = log.writer(owner="me")
    sizes = {1: 9, 2: 300_000, 3: 2_100_000, 4: 9, 5: 1_900_000, 6: 2_100_000, 7: 9}
    noise = np.random.default_rng(0)
    for time in range(1, 21):
        if time in sizes:
            row = pa.table({"_time": [time], "v": [noise.bytes(sizes[time])]})
            writer.append(row, advance_to=time + 1)
        else:
            writer.advance(time + 1)
    log.refresh()
    index = log.core.files()
    found = sorted(map(tuple, np.column_stack([index.min_times, index.max_times]).tolist()))
    assert found == [(1, 1), (2, 5), (3, 3), (4, 4), (6, 6), (7, 7)]
    assert [len(v) for v in log.messages()["v"].to_pylist()] == list(sizes.values())


@pytest.mark.parametrize("stream", ["main", "m" * 40])
def test_merged_files_are_merged_again_however_long_the_name(stream: str) -> None:
    log = MemoryLog.create(pa.schema([("v", pa.int64())]), minimum=(0,), merge_every=4)
    writer = log.writer(stream, owner="me")
    for time in range(1, 41):
        writer.append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)
    log.refresh()
    assert log.describe()["message_files"] == 1
    assert log.core.files().lone_streams() == [stream]
