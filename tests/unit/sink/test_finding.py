"""A query that looks for its log while another one makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_timely.errors import LogMissingError
from spark_timely.log import log as log_module
from spark_timely.log.log import create_log
from spark_timely.sink.plan import find_log


def test_log_made_between_two_looks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, looks = str(tmp_path / "log"), 0
    found = log_module.keep_log

    def keep_log(where: str, **given: Any) -> Any:
        nonlocal looks
        looks += 1
        try:
            return found(where, **given)
        except LogMissingError:
            create_log(path, pa.schema([("n", pa.int64())]))
            raise

    monkeypatch.setattr(log_module, "keep_log", keep_log)
    log = find_log(path, {})
    assert log is not None
    assert log.path == path
    assert looks == 2


def test_what_is_no_log_is_refused_or_left_to_be_made(tmp_path: Path) -> None:
    assert find_log(str(tmp_path / "nothing"), {}) is None
    other = str(tmp_path / "other")
    write_deltalake(other, pa.table({"n": [1]}))
    with pytest.raises(LogMissingError, match="no capture log"):
        find_log(other, {})
