"""The subscribes of an instance: a thread reads each one, and queues its batches for the client.

In each turn the driver calls `Subscribes.give`: batches that were read are stated to the instance, whose responses the
handle puts into the `Batches` that the client iterates over. The log is read by `spark_timely.answers.subscribe`, as
outside of an instance.

Invariants
----------
1. Each batch of a subscribe begins where the one before it ended, also where reading failed between and began again.
2. Where nothing has moved nothing is read; a look once a second finds what was not reported.
3. A subscribe whose batches are not taken holds up only itself.
4. One that has given all that there is ends with the failure of what it waits for.
5. Each thread that waits for a batch learns of the end, whatever ended it.
6. The thread that hands batches in never waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_timely.answers.plan import row_sizes
from spark_timely.answers.subscribe import Batch, Subscription, subscribe
from spark_timely.compute.drive.causes import failure_behind
from spark_timely.compute.drive.directory import details_of
from spark_timely.compute.drive.state import FAR_POLL_S, State, may_pass, written
from spark_timely.compute.observation import AnswerLatency, SubscribeProgress
from spark_timely.compute.response import SubscribeBatch
from spark_timely.conf.kinds import seconds_of
from spark_timely.errors import OperatorError, TimelyError, described
from spark_timely.threads import pool
from spark_timely.time.antichain import Antichain
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from types import TracebackType

    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.runners import Runner
    from spark_timely.compute.drive.worker import Worker
    from spark_timely.compute.instance import Running
    from spark_timely.log.cut import Cut

__all__ = ["END", "Batches", "Subscribes", "raised"]

END: Final = object()
"""Says that nothing comes any more."""

_READERS: Final = 4
# Batches that nobody has taken yet.
_MOST_WAITING: Final = 64
_MOST_WAITING_BYTES: Final = 64 << 20
_LONGEST_S: Final = threading.TIMEOUT_MAX


@dataclass
class _Reading:
    """A subscribe of the dataflow of a number, and how its reading stands."""

    number: int
    began_at: float
    backoff: Backoff
    subscription: Subscription | None = None
    future: Future[Batch | None] | None = None
    is_due: bool = True
    # Where a subscription broke off: a position alone would be believed of another log at that path.
    cut: Cut | None = None

    def read(self, begin: Callable[[], Subscription] | None) -> Batch | None:
        """Return the next batch if it is there, of a subscription that begins where there is none; one at a time."""
        if self.subscription is None:
            assert begin is not None
            self.subscription = begin()
        return self.subscription.next_batch(timeout_s=0)

    def end(self) -> None:
        """Close the subscription, once it is not read any more."""

        def close(_: object) -> None:
            if self.subscription is not None:
                self.subscription.close()

        if self.future is None:
            close(None)
        else:
            self.future.add_done_callback(close)


class Subscribes:
    """The subscribes of an instance.

    Parameters
    ----------
    state : State
    worker : Worker
    """

    def __init__(self, state: State, worker: Worker) -> None:
        self._state, self._worker = state, worker
        self._there: dict[str, _Reading] = {}
        self._readers = pool("read", _READERS)

    def has_begun(self, id_: str, number: int) -> bool:
        """Return whether the subscribe of a dataflow is read by a subscription, which retains what it reads."""
        reading = self._there.get(id_)
        return reading is not None and reading.number == number and reading.subscription is not None

    def give(self) -> bool:
        """State the batches that were read, and read on where there may be more; return whether any was stated."""
        given = False
        for running, export in self._state.started_exports("subscribe"):
            runner, upper = self._worker.runner(running.number), running.uppers.get(export.id)
            if runner is not None and not (upper is not None and upper.is_empty):
                given = self._give(running, runner, export) or self._fail_behind(running, export) or given
        self._worker.moved.clear()
        return given

    def _give(self, running: Running, runner: Runner, export: Export) -> bool:
        now, number = self._state.now(), running.number
        reading = self._there.get(export.id)
        if reading is not None and reading.number != number:
            self.forget(export.id)  # of another dataflow that had the id
            reading = None
        if reading is None:
            reading = self._there[export.id] = _Reading(number, now, Backoff(self._state.now))
        reading.is_due = reading.is_due or number in self._worker.moved
        if reading.future is not None:
            if not reading.future.done():
                return False
            future, reading.future = reading.future, None
            if self._take(running, export, reading, future):
                return True  # whether there is room for another one shows once this one is handed out
        is_late = now - reading.began_at >= FAR_POLL_S
        if not reading.backoff.is_due or not (reading.is_due or is_late) or not self._state.wants(export.id):
            return False
        reading.is_due, reading.began_at = False, now
        begin = None
        if reading.subscription is None:
            begin = self._beginning(running, runner, export, reading.cut)
            if begin is None:
                return False  # it cannot be read yet
        reading.future = self._readers.submit(reading.read, begin)
        reading.future.add_done_callback(lambda _: self._state.wake.set())
        return False

    def _take(self, running: Running, export: Export, reading: _Reading, future: Future[Batch | None]) -> bool:
        """State what was read; return whether it was anything."""
        error, subscription = future.exception(), reading.subscription
        if error is not None:
            if subscription is not None and subscription.has_ended:
                reading.subscription, reading.cut = None, subscription.cut or reading.cut
            self._state.tell_error(running.number, [export.id], error)
            if may_pass(error):
                reading.backoff.failed()
                reading.is_due = True
                return False
            # It never passes: a thread that waits for the next batch learns of it, and of the end.
            self._end(running, export, None, error)
            return True
        assert subscription is not None
        if reading.backoff.n_failed:
            reading.backoff.passed()
            self._state.tell_error(running.number, [export.id], None)  # it has passed
        batch = future.result()
        if batch is None:
            if subscription.has_ended:
                self._end(running, export, subscription.schema.empty_table(), None)
            return subscription.has_ended
        reading.is_due = True  # there may be more
        size = int(row_sizes(batch.rows).sum()) if batch.rows.num_rows else 0
        upper = Antichain.empty(batch.upper.arity) if subscription.has_ended else batch.upper
        instance = self._state.instance
        instance.tell(SubscribeProgress(export.id, running.number, batch.lower, upper, batch.rows, size))
        instance.tell(AnswerLatency(export.id, self._state.now() - reading.began_at))
        return True

    def fail(self, number: int, error: BaseException) -> None:
        """End the subscribes of a dataflow that gives nothing any more."""
        running = self._state.instance.run(number)
        if running is None:
            return
        for export in running.dataflow.exports:
            upper = running.uppers.get(export.id)
            if export.kind == "subscribe" and export.id in running.live and (upper is None or not upper.is_empty):
                self._end(running, export, None, error)

    def _fail_behind(self, running: Running, export: Export) -> bool:
        """End a subscribe that waits for what has failed (invariant 4); return whether it was one."""
        reading = self._there.get(export.id)
        if not self._state.failed or (reading is not None and reading.future is not None):
            return False
        upper = running.uppers.get(export.id, running.dataflow.domain.minimum_frontier)
        needed, attempt = upper.join(running.dataflow.as_of), f"could not continue subscribe {export.id!r}"
        error = failure_behind(self._worker, export.id, needed, attempt)
        if error is not None:
            self._end(running, export, None, error)
        return error is not None

    def _end(self, running: Running, export: Export, rows: pa.Table | None, error: BaseException | None) -> None:
        """State the end of a subscribe that has nothing more to give, or that failed for good."""
        domain, instance = running.dataflow.domain, self._state.instance
        reported = instance.collection(export.id).reported
        lower = domain.minimum_frontier if reported is None else reported
        text = None if error is None else described(error)
        upper = Antichain.empty(domain.arity)
        instance.tell(
            SubscribeProgress(
                export.id, running.number, lower, upper, rows, 0, text, error if isinstance(error, Exception) else None
            )
        )
        self.forget(export.id)

    def _beginning(
        self, running: Running, runner: Runner, export: Export, cut: Cut | None
    ) -> Callable[[], Subscription] | None:
        """Return what begins a subscription, or continues one that broke off; None where its log has nothing yet."""
        details, dataflow = details_of(export), running.dataflow
        path = runner.path_of(export)
        as_of, until = dataflow.as_of.elements[0], dataflow.until
        asked: dict[str, Any] = {
            name: details[name] for name in ("envelope", "key", "snapshot", "progress") if name in details
        }
        if runner.engine is not None:
            upper = runner.uppers().get(export.id)
            if upper is None or not dataflow.as_of.less_than_frontier(upper):
                return None
        reported = self._state.instance.collection(export.id).reported
        if reported is not None:
            asked["resume_from"] = cut or reported
        if reported is None or len(as_of) > 1:
            asked["as_of"] = written(dataflow.domain, as_of)
        up_to = None if until.is_empty else written(dataflow.domain, until.elements[0])
        options = self._state.directory.options(path) or None
        return lambda: subscribe(path, up_to=up_to, poll_s=0, storage_options=options, **asked)

    def forget(self, id_: str) -> None:
        """End what gave the batches of a subscribe."""
        reading = self._there.pop(id_, None)
        if reading is not None:
            reading.end()

    def try_again(self) -> None:
        """Read at once what waits for its next try."""
        for reading in self._there.values():
            reading.backoff.hurry()

    def close(self) -> None:
        """Give nothing more; what is read is waited for."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        for id_ in list(self._there):
            self.forget(id_)


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
        Is called before a batch is waited for; raises in a thread that must not wait (invariant 6).
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
        """Say that nothing comes any more, also to those who wait in other threads (invariant 5)."""
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
