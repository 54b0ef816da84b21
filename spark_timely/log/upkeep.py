"""Background upkeep of logs: one thread per log and process merges files while writers append.

A merge reads and writes files for seconds where a store is far away; an append does not wait for that. After a commit
`LogCore` hands its upkeep to `run_aside` where the log is in an object store, or is written by a dataflow that indexes
in the background. A job works on a handle of its own, and commits as any other writer does.

Invariants
----------
1. Of one log no two jobs run at once in a process, and few wait.
2. A process that ends does what waits first.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from spark_timely.threads import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from concurrent.futures import ThreadPoolExecutor

_MOST_WAITING = 2
_lock = threading.Lock()
_threads: dict[tuple[int, Hashable], ThreadPoolExecutor] = {}
_jobs: dict[tuple[int, Hashable], list[Future[None]]] = {}


def run_aside(log: Hashable, job: Callable[[], None], /) -> bool:
    """Let a job be done by the thread of a log; return False where it is not done: too many wait, or Python ends.

    Parameters
    ----------
    log : hashable
        What tells the log from others.
    job : callable
        Raises nothing.

    Examples
    --------
    >>> done = []
    >>> run_aside("a log", lambda: done.append(1))
    True
    >>> finish_upkeep()
    >>> done
    [1]
    """
    key = (os.getpid(), log)  # threads are not taken along by a fork
    with _lock:
        waiting = [found for found in _jobs.get(key, ()) if not found.done()]
        if len(waiting) >= _MOST_WAITING:
            return False
        if key not in _threads:
            _threads[key] = pool("upkeep", 1)
        try:
            _jobs[key] = [*waiting, _threads[key].submit(job)]
        except RuntimeError:  # the interpreter ends
            return False
    return True


def finish_upkeep() -> None:
    """Wait until all upkeep that this process has begun is done.

    Examples
    --------
    >>> finish_upkeep()
    """
    with _lock:
        mine = [job for key, jobs in _jobs.items() if key[0] == os.getpid() for job in jobs]
    wait(mine)
