"""The memory of Spark's Python workers while something runs, as Linux tells it.

What a process has taken for itself counts. Pages of files that it has mapped do not: the system takes them back when
memory is short.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

PERIOD_S = 0.02
# Spark forks its workers from one process; where it does not fork, each is a process of its own.
_WORKERS = (b"pyspark.daemon", b"pyspark.worker", b"pyspark/daemon.py", b"pyspark/worker.py")


class WorkerMemory:
    """Look at the own memory of the Python workers below this process, again and again, in a thread.

    Attributes
    ----------
    largest, together : int
        Bytes: the most of any one worker, and the most of all of them at one look. What they share, such as the code
        that they have from the process that forked them, is counted in each.
    looks : int
        How often a worker was seen: without one the figures say nothing.
    """

    def __init__(self) -> None:
        self.largest = self.together = self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="worker-memory", daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(PERIOD_S):
            found = workers_below(os.getpid())
            self.looks += bool(found)
            self.largest = max([self.largest, *found.values()])
            self.together = max(self.together, sum(found.values()))


def workers_below(root: int) -> dict[int, int]:
    """Return the bytes that the Python workers below a process have taken for themselves, by their ids."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in brackets, may have spaces in it; then come the state and the parent.
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # it is gone
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if any(name in command for name in _WORKERS):
                status = Path(f"/proc/{pid}/status").read_text()
                found[pid] = int(status.partition("RssAnon:")[2].split()[0]) * 1024
        except (OSError, IndexError, ValueError):
            continue
    return found
