"""Background upkeep of logs in far stores: one thread per log and process merges files while writers append.

A merge reads and writes files for seconds where a store is far away; an append does not wait for that. What is done
here works on a handle of its own, and commits as any other writer does.

Invariants
----------
1. Of one log no two jobs run at once in a process, and few wait.
2. A process that ends does what waits first. It starts no threads for that any more: what is done side by side
   otherwise is then done one after another.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")

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
            _threads[key] = ThreadPoolExecutor(1, thread_name_prefix="spark-timely-upkeep")
        try:
            _jobs[key] = [*waiting, _threads[key].submit(job)]
        except RuntimeError:  # the interpreter ends
            return False
    return True


def at_once(do: Callable[[_T], _R], items: Sequence[_T], most: int, /) -> list[_R]:
    """Return what a function gives of each item, done in threads; one after another where the interpreter ends.

    Parameters
    ----------
    do : callable
    items : sequence
    most : int
        Threads at most.

    Examples
    --------
    >>> at_once(len, ["a", "bc"], 2)
    [1, 2]
    """
    with ThreadPoolExecutor(min(most, max(1, len(items)))) as pool:
        jobs = [begun(pool, do, item) for item in items]
        return [job.result() for job in jobs]


def python_ends() -> bool:
    """Return whether the interpreter ends: it waits for what runs in pools of threads, which take nothing more.

    That is asked where something has failed: it costs a thread.

    Examples
    --------
    >>> python_ends()
    False
    """
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(int)
        except RuntimeError:
            return True
    return False


def begun(pool: ThreadPoolExecutor, do: Callable[_P, _R], /, *given: _P.args, **more: _P.kwargs) -> Future[_R]:
    """Let a pool do something; do it here where the interpreter ends.

    Examples
    --------
    >>> with ThreadPoolExecutor(1) as pool:
    ...     begun(pool, len, "abc").result()
    3
    """
    try:
        return pool.submit(do, *given, **more)
    except RuntimeError:  # the interpreter ends: it still waits for this thread, and takes no other
        pass
    done: Future[_R] = Future()
    try:
        done.set_result(do(*given, **more))
    except Exception as error:  # noqa: BLE001 - as of a pool: the call for the result raises it
        done.set_exception(error)
    return done


def finish_upkeep() -> None:
    """Wait until all upkeep that this process has begun is done.

    Examples
    --------
    >>> finish_upkeep()
    """
    with _lock:
        mine = [job for key, jobs in _jobs.items() if key[0] == os.getpid() for job in jobs]
    wait(mine)
