"""A checkpoint in a store is asked for several things at once: each way there and back is a micro-batch's wait."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from spark_timely.log.store.storage import FileStorage
from spark_timely.spark.base import checkpoint
from spark_timely.spark.base.checkpoint import CheckpointState, checkpoint_state, planned_offsets

T = TypeVar("T")

# Who waits alone waits in vain.
WAIT_S = 10.0


class Store(FileStorage):
    """A folder that answers when it was asked for a number of things at once."""

    local = False

    def __init__(self, folder: Path, at_once: int) -> None:
        super().__init__(str(folder))
        self.all_asked = threading.Barrier(at_once)

    def _answer(self, answer: Callable[[], T]) -> T:
        self.all_asked.wait(WAIT_S)
        return answer()

    def names(self, directory: str = "", *, after: str = "") -> list[str]:
        return self._answer(lambda: FileStorage.names(self, directory, after=after))

    def find(self, path: str) -> bytes | None:
        return self._answer(lambda: FileStorage.find(self, path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text(json.dumps({"id": "a query"}))
    (tmp_path / "offsets").mkdir()
    for number in range(3):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
    return tmp_path


@pytest.mark.parametrize("at_once", [0, 3])
def test_state_is_asked_for_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    if at_once:
        monkeypatch.setattr(checkpoint, "open_storage", lambda *_, **__: Store(folder, at_once))
    assert checkpoint_state(str(folder)) == CheckpointState("a query", 2)
    (folder / "metadata").unlink()
    assert checkpoint_state(str(folder)) == CheckpointState(None, None)


@pytest.mark.parametrize("at_once", [0, 2])
def test_offsets_are_asked_for_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    if at_once:
        monkeypatch.setattr(checkpoint, "open_storage", lambda *_, **__: Store(folder, at_once))
    last, before = planned_offsets(str(folder), 2), planned_offsets(str(folder), 1)
    assert last is not None
    assert before is not None
    assert (last.source, last.before) == ("2", before.hash)
    assert planned_offsets(str(folder), 3) is None
