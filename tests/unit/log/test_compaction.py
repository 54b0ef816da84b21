"""When the small files that commits leave behind are merged."""

from __future__ import annotations

import pyarrow as pa

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
