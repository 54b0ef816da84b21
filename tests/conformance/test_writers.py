"""A writer that lives on knows the log that it left."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_timely.errors import RolledBackError
from spark_timely.log.log import create_log, open_log


def test_writer_that_lives_on_notices_a_log_that_went_back(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    writer = create_log(path, pa.schema([("v", pa.int64())]), minimum=(0,)).writer("main", owner="me")
    for key in range(5):
        assert writer.append(pa.table({"_time": [key], "v": [key]}), advance_to=key + 1, batch=key).committed
    table = DeltaTable(path)
    table.restore(table.version() - 2)
    version = open_log(path).version
    for rows in (pa.table({"_time": [5], "v": [5]}), pa.table({"_time": [9], "v": [9]})):
        with pytest.raises(RolledBackError, match=r"'main' at seq=3, this handle has seen 'main' at seq=5"):
            writer.append(rows, advance_to=10, batch=5)
    assert open_log(path).version == version
    again = open_log(path).writer("main", owner="me")
    assert again.append(pa.table({"_time": [3, 4], "v": [3, 4]}), advance_to=5, batch=5).committed
