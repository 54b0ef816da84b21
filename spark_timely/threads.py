"""Threads and pools of threads: the one place that starts them.

No other module of the library makes a thread. There are three kinds:

- A thread of its own (`aside`) is a daemon: a process that ends does not wait for it. The log shows whether a commit
  that it had begun was made, as after a kill. Watches and loops run so, as that of `spark.capture.idle`.
- Cached threads (`CachedThreads`) are daemons that wait for the next call, as those of a peek.
- A pool (`pool`, `at_once`) is for work that must be finished, as reading files: a process that ends waits for it. The
  pool then takes nothing more, and `begun` and `at_once` do in the caller's thread what it refuses.

A child that was forked has none of these: a module that keeps a pool keeps it by the id of its process, or makes
another there (`os.register_at_fork`). The name of each thread is `spark_timely-` and what it does.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["CachedThreads", "ahead", "aside", "at_once", "begun", "pool", "python_ends"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")


def aside(name: str, act: Callable[_P, object], /, *given: _P.args, **more: _P.kwargs) -> threading.Thread:
    """Begin a thread.

    Parameters
    ----------
    name : str
        What it does: ``subscribe``.
    act : callable
        Nobody learns of what it raises but the process's own report of it.

    Examples
    --------
    >>> done = []
    >>> aside("example", done.append, 1).join()
    >>> done
    [1]
    """
    thread = threading.Thread(target=act, args=given, kwargs=more, name=f"spark_timely-{name}", daemon=True)
    thread.start()
    return thread


class CachedThreads:
    """Daemon threads that wait for the next call when one is done: no call waits for another one.

    A child that was forked begins without any.

    Parameters
    ----------
    name : str
        What they do: ``peek``.
    idle_s : float, optional
        After how many seconds a thread that waits ends; by `end` alone unless given.

    Examples
    --------
    >>> threads = CachedThreads("example")
    >>> threads.submit(len, "abc").result()
    3
    >>> threads.end()
    """

    def __init__(self, name: str, /, *, idle_s: float | None = None) -> None:
        self._name, self._idle_s = name, idle_s
        self._begin()

    def _begin(self) -> None:
        self._process, self._lock, self._ended = os.getpid(), threading.Lock(), False
        self._waiting: list[queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]] = []

    @property
    def n_waiting(self) -> int:
        """Threads that wait for a call."""
        return len(self._waiting)

    def submit(self, do: Callable[_P, _R], /, *given: _P.args, **more: _P.kwargs) -> Future[_R]:
        """Call a function in a thread that waits, or in another one.

        The thread waits again before its result is there. A result that the caller sets before that stays.
        """
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            inbox = self._waiting.pop() if self._waiting else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            aside(self._name, self._run, inbox)
        future: Future[_R] = Future()
        inbox.put((future, partial(do, *given, **more)))
        return future

    def _run(self, inbox: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
        while True:
            try:
                call = inbox.get(timeout=self._idle_s)
            except queue.Empty:
                with self._lock:
                    if inbox in self._waiting:
                        self._waiting.remove(inbox)
                        return
                continue  # it was taken just now: its call is about to come
            if call is None:
                return
            future, do = call
            result: object = None
            failed: BaseException | None = None
            try:
                result = do()
            except BaseException as error:  # noqa: BLE001 - who waits for the result gets it
                failed = error
            with self._lock:
                ended = self._ended
                if not ended:
                    self._waiting.append(inbox)
            with suppress(InvalidStateError):
                if failed is None:
                    future.set_result(result)
                else:
                    future.set_exception(failed)
            del call, future, do, result, failed  # as long as this waits for another one
            if ended:
                return

    def end(self) -> None:
        """Let each thread end once it has nothing to do."""
        with self._lock:
            self._ended = True
            waiting, self._waiting = self._waiting, []
        for inbox in waiting:
            inbox.put(None)


def pool(name: str, most: int, /, *, initializer: Callable[[], object] | None = None) -> ThreadPoolExecutor:
    """Return a pool of threads, which begin when there is something to do.

    Parameters
    ----------
    name : str
        What they do: ``index``.
    most : int
    initializer : callable, optional
        Called by each of them first.

    Examples
    --------
    >>> with pool("example", 2) as threads:
    ...     threads.submit(len, "abc").result()
    3
    """
    return ThreadPoolExecutor(most, thread_name_prefix=f"spark_timely-{name}", initializer=initializer)


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
    with pool("part", min(most, max(1, len(items)))) as threads:
        jobs = [begun(threads, do, item) for item in items]
        return [job.result() for job in jobs]


def ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yield items of which the next one is made in a thread while the caller works on the one before.

    Parameters
    ----------
    items : iterator
        Without None. What it raises is raised when its turn comes.

    Examples
    --------
    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    with pool("ahead", 1) as threads:
        coming = begun(threads, next, items, None)
        while (item := coming.result()) is not None:
            coming = begun(threads, next, items, None)
            yield item


def python_ends() -> bool:
    """Return whether the interpreter ends: it waits for what runs in pools of threads, which take nothing more.

    That is asked where something has failed: it costs a thread.

    Examples
    --------
    >>> python_ends()
    False
    """
    with pool("end", 1) as threads:
        try:
            threads.submit(int)
        except RuntimeError:
            return True
    return False


def begun(threads: ThreadPoolExecutor, do: Callable[_P, _R], /, *given: _P.args, **more: _P.kwargs) -> Future[_R]:
    """Let a pool do something; do it here where the interpreter ends.

    Examples
    --------
    >>> with pool("example", 1) as threads:
    ...     begun(threads, len, "abc").result()
    3
    """
    try:
        return threads.submit(do, *given, **more)
    except RuntimeError:  # the interpreter ends: it still waits for this thread, and takes no other
        pass
    done: Future[_R] = Future()
    try:
        done.set_result(do(*given, **more))
    except Exception as error:  # noqa: BLE001 - as of a pool: the call for the result raises it
        done.set_exception(error)
    return done
