"""One process that retains, lets a log forget, appends and compacts, and is killed before the n-th step that writes.

A step is a call that makes, names, removes or flushes a file or a folder of the log, or writes to one; a write is also
cut in the middle. After each action its number is added to a file: so much was acknowledged.
"""

from __future__ import annotations

import builtins
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_timely.log import Log
from spark_timely.log.log import open_log
from spark_timely.log.store import storage as storage_module
from spark_timely.log.store.storage import FileStorage

FIRST_BATCHES = 10


def rows_of(batch: int, kind: str) -> dict[str, list[int]]:
    """Return the rows of a batch as columns: at its time, twice, and later; three values in all."""
    rows = {"_time": [batch, batch + 2, batch], "v": [batch % 3, batch % 3, (batch + 1) % 3]}
    return rows | {"_diff": [1, 1, 2]} if kind == "collection" else rows


def append(log: Log, batch: int) -> None:
    """Append a batch by its number, and complete its time."""
    log.writer("a", owner="me").append(rows_of(batch, log.kind), advance_to=batch + 1, batch=batch)


ACTIONS: tuple[Callable[[Log], object], ...] = (
    lambda log: log.retain("new", [6], owner="new"),
    lambda log: log.retain("kept", [5], owner="kept"),
    lambda log: log.allow_compaction([9], by="me"),
    lambda log: append(log, 10),
    lambda log: log.compact(logical=True),
    lambda log: log.release("kept"),
    lambda log: log.allow_compaction([9], by="me"),
    lambda log: append(log, 11),
    lambda log: append(log, 12),
    lambda log: log.compact(logical=True),
    lambda log: log.retain("new", [], owner="new"),
    lambda log: log.allow_compaction([99], by="me"),
    lambda log: append(log, 13),
    lambda log: log.compact(logical=True),
)
# How many batches there are before each action, and in the end; and the positions that are retained.
BATCHES = (10, 10, 10, 10, 11, 11, 11, 11, 12, 13, 13, 13, 13, 14, 14)
RETAINED: tuple[dict[str, int], ...] = (
    {"kept": 4},
    {"kept": 4, "new": 6},
    *[{"kept": 5, "new": 6}] * 4,
    *[{"new": 6}] * 5,
    *[{}] * 4,
)


def opened(path: str) -> Log:
    """Open the log with a clock that stands, so that what it holds is the same in each run."""
    return open_log(path, clock=lambda: 1_000_000.0, merge_every=4)


class Steps:
    """Counts the steps of this process, and kills it before one of them.

    Parameters
    ----------
    root : str
        Only what is below it counts.
    at : int or None
        The step, from 0; None for none.
    """

    def __init__(self, root: str, at: int | None) -> None:
        self.root, self.at, self.n = os.path.realpath(root), at, 0

    def step(self, where: object) -> bool:
        """Count a step; return whether it is the one."""
        if not os.path.realpath(os.fspath(where)).startswith(self.root):  # type: ignore[call-overload]
            return False
        self.n += 1
        return self.n - 1 == self.at

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Count from now on."""
        for name in ("link", "unlink", "remove", "rename", "replace", "mkdir", "rmdir", "fsync"):
            setattr(os, name, self.watched(getattr(os, name), by_number=name == "fsync"))
        open_output, open_file = FileStorage.open_output, builtins.open

        def output(storage: FileStorage, path: str) -> Any:
            if self.step(storage.full(path)):
                self.die()
            return Cut(open_output(storage, path), storage.full(path), self)

        def opened_file(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wxa+"):
                return open_file(path, mode, *args, **kwargs)
            if self.step(path):
                self.die()
            return Cut(open_file(path, mode, *args, **kwargs), path, self)

        FileStorage.open_output = output  # type: ignore[method-assign,assignment]
        storage_module.open = opened_file  # type: ignore[attr-defined]

    def watched(self, call: Callable[..., Any], *, by_number: bool) -> Callable[..., Any]:
        def watched(first: Any, *args: Any, **kwargs: Any) -> Any:
            if self.step(os.readlink(f"/proc/self/fd/{first}") if by_number else first):
                self.die()
            return call(first, *args, **kwargs)

        return watched


class Cut:
    """A file that is written, of whose content half is there when the process dies."""

    def __init__(self, file: Any, path: str, steps: Steps) -> None:
        self._file, self._path, self._steps = file, path, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: Any) -> Any:
        if self._steps.step(self._path):
            whole = bytes(content)
            self._file.write(whole[: len(whole) // 2])
            self._file.flush()
            self._steps.die()
        return self._file.write(content)


def act(log: Log, number: int) -> None:
    """Do one action."""
    ACTIONS[number](log)


def main(path: str, told: str, at: int | None) -> None:
    """Do all actions, and note each one that was acknowledged; at the end, how many steps there were."""
    log = opened(path)
    steps = Steps(path, at)
    steps.watch()
    for number in itertools.count():
        if number == len(ACTIONS):
            break
        act(log, number)
        with Path(told).open("a") as file:
            file.write(f"{number}\n")
    Path(f"{told}.steps").write_text(str(steps.n))
