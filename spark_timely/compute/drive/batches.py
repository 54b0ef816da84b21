"""The batches of a subscribe of an instance, as they wait for whoever takes them.

Invariants
----------
1. Whoever waits for a batch learns of the end, whatever ended it: each thread that waits does.
2. Nobody waits in the thread that hands batches in.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_timely.compute.response import SubscribeBatch
from spark_timely.errors import OperatorError, TimelyError
from spark_timely.log.arguments import seconds_of

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["END", "Batches", "raised"]

END: Final = object()
"""Says that nothing comes any more."""

# Batches that nobody has taken yet.
_MOST_WAITING: Final = 64
_MOST_WAITING_BYTES: Final = 64 << 20
_LONGEST_S: Final = threading.TIMEOUT_MAX


def raised(text: str, cause: Exception | None, /) -> TimelyError:
    """Return what to raise for an answer that is an error: the error itself, if it is one of this package.

    Parameters
    ----------
    text : str
    cause : Exception or None

    Examples
    --------
    >>> from spark_timely.errors import MissingError
    >>> type(raised("found none", MissingError("found none", hint="make one"))).__name__
    'MissingError'
    >>> type(raised("no such file", OSError("no such file"))).__name__
    'OperatorError'
    """
    if isinstance(cause, TimelyError):
        return cause
    error = OperatorError(text, hint="see the error")
    error.__cause__ = cause
    return error


class Batches:
    """The batches of a subscribe: an iterator of `SubscribeBatch`. Made by `Handle.subscribe`.

    The subscribe ends with `close`, at the end of a ``with`` block, and when nothing in the program refers to its
    batches any more. That last one does not hold where the instance has an `on_response`: the batches go there too.

    Parameters
    ----------
    id_ : str
    on_end : callable
        Is called with these batches when nobody takes them any more.
    on_room : callable
        Is called when there is room for another batch, and was none.
    on_wait : callable
        Is called before a batch is waited for; raises in a thread that must not wait (invariant 2).
    """

    def __init__(
        self,
        id_: str,
        on_end: Callable[[Batches], object],
        on_room: Callable[[], object],
        on_wait: Callable[[], object],
    ) -> None:
        self.id, self._on_end, self._on_room, self._on_wait = id_, on_end, on_room, on_wait
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._lock, self._n_waiting, self._waiting_bytes = threading.Lock(), 0, 0
        self._ended = False

    def __iter__(self) -> Iterator[SubscribeBatch]:
        return self

    def __next__(self) -> SubscribeBatch:
        """Return the next batch; end with the last one, or when it is closed."""
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def next_batch(self, *, timeout_s: float | None = None) -> SubscribeBatch | None:
        """Return the next batch; None where the time is over, or nothing comes any more: `has_ended` tells which.

        Nothing comes any more after the last batch, `close`, a drop of the subscribe, and `close` of the instance,
        which gives what was there before first.

        Parameters
        ----------
        timeout_s : float, optional
            How many seconds to wait at most. 0 takes what is there.

        Raises
        ------
        InvalidUsageError
            If it would wait in a call of `on_response`, which hands batches in; if the time is no number of seconds.
        TimelyError
            If the batch is an error: the one that ended the subscribe, such as `SinceViolationError`; an
            `OperatorError` if it is none of this package, or the batch was too large. If the instance has ended with
            an error, that one.
        """
        wait_s = seconds_of(f"could not wait for a batch of {self.id!r}", "timeout_s", timeout_s, optional=True)
        if self._ended:
            return None
        if wait_s:
            self._on_wait()
        try:
            # A queue takes no endless time as a number, nor one that the system cannot count.
            found = self._queue.get(timeout=None if wait_s > _LONGEST_S else wait_s)
        except queue.Empty:
            return None
        if found is END:
            self._finish()
            return None
        if isinstance(found, Exception):
            self._finish()
            raise found
        assert isinstance(found, SubscribeBatch)
        had_room = self.has_room
        self._count(found, -1)
        if not had_room and self.has_room:
            self._on_room()
        if found.upper.is_empty:
            self.close()  # nothing comes any more
        if found.error is not None:
            raise raised(found.error, found.cause)
        return found

    def close(self) -> None:
        """End it. May be called again."""
        if not self._ended:
            self._finish()
            self._on_end(self)

    def _finish(self) -> None:
        """Say that nothing comes any more, also to those who wait in other threads (invariant 1)."""
        self._ended = True
        self._queue.put(END)

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more: then `next_batch` returns None at once."""
        return self._ended

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    @property
    def has_room(self) -> bool:
        """Whether another batch would be taken: nothing is read for one who lets 64 of them, or 64 MiB, lie."""
        return self._n_waiting < _MOST_WAITING and self._waiting_bytes < _MOST_WAITING_BYTES

    def _count(self, batch: SubscribeBatch, sign: int) -> None:
        size = batch.updates.nbytes if isinstance(batch.updates, pa.Table) else 0
        with self._lock:
            self._n_waiting += sign
            self._waiting_bytes += sign * size

    def put(self, found: object) -> None:
        """Hand a batch in; an error, or `END`, after which nothing comes."""
        if isinstance(found, SubscribeBatch):
            self._count(found, 1)
        self._queue.put(found)
