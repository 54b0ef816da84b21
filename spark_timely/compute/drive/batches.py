"""The batches of a subscribe of an instance, as they wait for whoever takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_timely.compute.response import SubscribeBatch
from spark_timely.errors import OperatorError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["END", "Batches"]

END: Final = object()
"""Says that nothing comes any more."""

# Batches that nobody has taken yet.
_MOST_WAITING: Final = 64
_MOST_WAITING_BYTES: Final = 64 << 20


class Batches:
    """The batches of a subscribe: an iterator of `SubscribeBatch`. Made by `Handle.subscribe`.

    Parameters
    ----------
    id_ : str
    on_end : callable
        Is called with these batches when nobody takes them any more.
    on_room : callable
        Is called when there is room for another batch, and was none.
    """

    def __init__(self, id_: str, on_end: Callable[[Batches], object], on_room: Callable[[], object]) -> None:
        self.id, self._on_end, self._on_room = id_, on_end, on_room
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
        """Return the next batch; None where the time is over, or nothing comes any more.

        Raises
        ------
        OperatorError
            If the batch is an error: it was too large, or the instance has ended with one.
        """
        if self._ended:
            return None
        try:
            found = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if found is END:
            self._ended = True
            return None
        if isinstance(found, Exception):
            self._ended = True
            raise found
        assert isinstance(found, SubscribeBatch)
        had_room = self.has_room
        self._count(found, -1)
        if not had_room and self.has_room:
            self._on_room()
        if found.upper.is_empty:
            self.close()  # nothing comes any more
        if found.error is not None:
            raise OperatorError(found.error, hint="see the error, and the instance's configuration: max_result_bytes")
        return found

    def close(self) -> None:
        """End it. May be called again."""
        if not self._ended:
            self._ended = True
            self._on_end(self)

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
