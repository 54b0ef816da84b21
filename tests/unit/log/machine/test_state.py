"""States of streams are values: equal where they say the same of the same commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from spark_timely.log.log import create_log, open_log


def test_states_of_two_handles_are_equal_with_and_without_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    writer = create_log(path, pa.schema([("id", pa.int64())]), times=("long", "long"), minimum=(0, 0)).writer(
        owner="me"
    )
    found = []
    for rows in (pa.table({"_time_0": [3, 4], "_time_1": [5, 1], "id": [1, 2]}), None):
        if rows is None:
            writer.advance([[4, 4]])
        else:
            writer.append(rows)
        mine, other = open_log(path).core.stream("main"), open_log(path).core.stream("main")
        assert mine == other
        assert mine is not None
        assert hash(mine) == hash(other)
        assert (mine.bounds is None) == (rows is None)
        found.append(mine)
    assert found[0] != found[1]
    assert found[0] != "main"
