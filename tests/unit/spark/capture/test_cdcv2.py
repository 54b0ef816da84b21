"""CDCv2 in foreachBatch: which files of statements may go."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.capture import cdcv2


def test_files_of_later_commits_and_other_streams_are_kept(tmp_path: Path) -> None:
    """Another process may have gone on while this one was held up between its commit and its tidying."""
    tokens = ("0123456789abcdef", "fedcba9876543210")
    streams = ("a", "ab", "a-", "a-0", "a-000000000001", "a-000000000001-0123456789abcdef.json")
    names = [f"{stream}-{seq:012d}-{token}.json" for stream in streams for seq in (4, 5, 6) for token in tokens]
    (tmp_path / "_cdcv2").mkdir()
    for name in names:
        (tmp_path / "_cdcv2" / name).touch()
    plan: Any = SimpleNamespace(options=SimpleNamespace(stream="a"))
    nothing: Any = None
    task = cdcv2._Task(nothing, plan, nothing, open_storage(tmp_path, {}))
    task.forget_before(5, names[2])
    assert {path.name for path in (tmp_path / "_cdcv2").iterdir()} == {names[2], *names[4:]}
