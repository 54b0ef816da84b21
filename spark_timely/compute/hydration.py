"""The hydration queue: which dataflows start, and how many hydrate at once.

The instance (`spark_timely.compute.instance`) puts dataflows in and starts what a turn gives. *Hydrated* is a
collection whose first complete output is there. A dataflow that is created is suspended at first. It is queued when all
its exports are scheduled, and leaves the queue, first in, first out, while fewer collections hydrate than the limit
allows. A collection hydrates from its start until it is hydrated: what that means is decided by the instance.

Invariants
----------
1. A dataflow is suspended as long as exports miss their schedule, or queued, or started: one of the three. It starts
   once.
2. It is queued by the schedule of the last export that misses one. Where the last that misses one is dropped instead,
   it starts at once, past queue and limit, and does not count. Where all exports are dropped, it never starts.
3. The limit is of collections. Before a dataflow starts, fewer hydrate than the limit, not counting those that wait for
   an import. All exports of a dataflow start together, so the limit can be passed: with a limit of 4, while 3 hydrate,
   a dataflow of 3 exports starts, and 6 hydrate. Those that wait can pass it too, once they wait no longer.
4. A turn first takes out what is hydrated, then starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["HydrationQueue"]


class HydrationQueue:
    """Suspended dataflows, those that may start, and the collections that hydrate.

    Examples
    --------
    >>> queue = HydrationQueue()
    >>> queue.suspend(1, ["a", "b"])
    >>> queue.schedule("a"), queue.queued
    (False, ())
    >>> queue.schedule("b"), queue.queued
    (True, (1,))
    >>> queue.turn(lambda id: False, limit=1)
    ((), (1,))
    >>> sorted(queue.hydrating)
    ['a', 'b']
    """

    def __init__(self) -> None:
        # By dataflow: all exports that are not dropped, and of these those that miss their schedule.
        self._exports: dict[int, set[str]] = {}
        self._missing: dict[int, set[str]] = {}
        self._number: dict[str, int] = {}
        # An ordered set: a dataflow whose exports are dropped leaves it anywhere.
        self._queue: dict[int, None] = {}
        self._hydrating: dict[str, None] = {}

    @property
    def queued(self) -> tuple[int, ...]:
        """Numbers of the dataflows that wait for their turn, in order."""
        return tuple(self._queue)

    @property
    def hydrating(self) -> frozenset[str]:
        """Collections that count against the limit."""
        return frozenset(self._hydrating)

    def is_queued(self, number: int, /) -> bool:
        """Tell whether a dataflow waits for its turn."""
        return number in self._queue

    def suspend(self, number: int, ids: Iterable[str]) -> None:
        """Take a dataflow in that waits for the schedule of each of its exports; also one that was queued already."""
        self._queue.pop(number, None)
        self._exports[number] = set(ids)
        self._missing[number] = set(self._exports[number])
        self._number.update(dict.fromkeys(self._exports[number], number))

    def schedule(self, id_: str, /) -> bool:
        """Give a collection its schedule; return whether its dataflow is queued by it. Others are ignored."""
        number = self._number.get(id_)
        if number is None or id_ not in self._missing.get(number, ()):
            return False
        self._missing[number].remove(id_)
        if self._missing[number]:
            return False
        del self._missing[number]
        self._queue[number] = None
        return True

    def drop(self, id_: str, /) -> int | None:
        """Take a collection out; return the dataflow that starts at once by it (invariant 2), else None."""
        self._hydrating.pop(id_, None)
        number = self._number.pop(id_, None)
        if number is None:
            return None
        left = self._exports[number]
        left.discard(id_)
        missing = self._missing.get(number)
        if not left:
            self._forget(number)
            self._queue.pop(number, None)
            return None
        if missing is None or id_ not in missing:
            return None
        missing.remove(id_)
        if missing:
            return None
        self._forget(number)
        return number

    def take(self, number: int, /) -> None:
        """Take a dataflow out that starts past queue and limit, or is not there."""
        self._queue.pop(number, None)
        if number in self._exports:
            self._forget(number)

    def turn(
        self, hydrated: Callable[[str], bool], limit: int, waits: Callable[[str], bool] = lambda _: False
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Take out what is hydrated, then start what may.

        Parameters
        ----------
        hydrated : callable
            Whether a collection is hydrated, by its id.
        limit : int
            How many collections may hydrate, 0 or more.
        waits : callable
            Whether a collection waits for an import, by its id.

        Returns
        -------
        released, started : tuple of str, tuple of int
            Collections that do not count any more, and numbers of dataflows that start, in order.
        """
        released = tuple(filter(hydrated, self._hydrating))
        for id_ in released:
            del self._hydrating[id_]
        started: list[int] = []
        working = sum(not waits(id_) for id_ in self._hydrating) if self._queue else 0
        while self._queue and working < limit:
            number = next(iter(self._queue))
            del self._queue[number]
            exports = sorted(self._exports[number])
            self._hydrating.update(dict.fromkeys(exports))
            working += sum(not waits(id_) for id_ in exports)
            self._forget(number)
            started.append(number)
        return released, tuple(started)

    def _forget(self, number: int) -> None:
        """Leave a dataflow to itself: it started, or never will."""
        for id_ in self._exports.pop(number):
            self._number.pop(id_, None)
        self._missing.pop(number, None)
