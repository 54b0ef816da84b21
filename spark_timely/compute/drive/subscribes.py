"""Giving the batches of an instance's subscribes: each is read in a thread, one at a time of a subscribe.

Invariants
----------
1. What a subscribe gives follows on what it gave before, whatever became of the reading between.
2. Where nothing has moved nothing is read; a look once a second finds what nobody said.
3. A subscribe whose batches nobody takes holds up only itself.
4. One that has given all that there is ends with the failure of what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_timely.answers.finishing import row_sizes
from spark_timely.answers.subscribe import Batch, Subscription, subscribe
from spark_timely.compute.drive.context import FAR_POLL_S, Context, may_pass, written
from spark_timely.compute.drive.failures import failure_behind
from spark_timely.compute.drive.place import details_of
from spark_timely.compute.observation import AnswerLatency, SubscribeProgress
from spark_timely.dataflow.engine.outputs import pause_s
from spark_timely.errors import described
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.hosted import Hosted
    from spark_timely.compute.instance import Running
    from spark_timely.log.cut import Cut

__all__ = ["Subscribes"]

_READERS: Final = 4


@dataclass
class _Reading:
    """A subscribe of the dataflow of a number, and how its reading stands."""

    number: int
    began_at: float
    subscription: Subscription | None = None
    future: Future[Batch | None] | None = None
    is_due: bool = True
    tries: int = 0
    again_at: float = 0.0
    # Where a subscription broke off: a position alone would be believed of another log at that path.
    cut: Cut | None = None

    def read(self, begin: Callable[[], Subscription]) -> Batch | None:
        """Return the next batch if it is there; one thread at a time."""
        if self.subscription is None:
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
    context : Context
    hosted : mapping of int to Hosted
        The dataflows that are hosted, by number, as they are at any time.
    """

    def __init__(self, context: Context, hosted: Mapping[int, Hosted]) -> None:
        self._context, self._hosted = context, hosted
        self._there: dict[str, _Reading] = {}
        self._moved: set[int] = set()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="spark_timely-subscribe")

    def moved(self, number: int) -> None:
        """Take notice that what a dataflow gives may have moved."""
        self._moved.add(number)

    def has_begun(self, id_: str, number: int) -> bool:
        """Return whether the subscribe of a dataflow is read by a subscription, which retains what it reads."""
        reading = self._there.get(id_)
        return reading is not None and reading.number == number and reading.subscription is not None

    def give(self) -> bool:
        """State the batches that were read, and read on where there may be more; return whether any was stated."""
        given = False
        for running, export in self._context.started_exports("subscribe"):  # one turn per subscribe
            hosted, upper = self._hosted.get(running.number), running.uppers.get(export.id)
            if hosted is not None and not (upper is not None and upper.is_empty):
                given = self._give(running, hosted, export) or self._fail_behind(running, export) or given
        self._moved.clear()
        return given

    def _give(self, running: Running, hosted: Hosted, export: Export) -> bool:
        now, number = self._context.now(), running.number
        reading = self._there.get(export.id)
        if reading is not None and reading.number != number:
            self.forget(export.id)  # of another dataflow that had the id
            reading = None
        if reading is None:
            reading = self._there[export.id] = _Reading(number, now)
        reading.is_due = reading.is_due or number in self._moved
        if reading.future is not None:
            if not reading.future.done():
                return False
            future, reading.future = reading.future, None
            if self._take(running, export, reading, future):
                return True  # whether there is room for another one shows once this one is handed out
        is_late = now - reading.began_at >= FAR_POLL_S
        if now < reading.again_at or not (reading.is_due or is_late) or not self._context.wants(export.id):
            return False
        reading.is_due, reading.began_at = False, now
        begin = None
        if reading.subscription is None:
            begin = self._beginning(running, hosted, export, reading.cut)
            if begin is None:
                return False  # it cannot be read yet
        reading.future = self._readers.submit(reading.read, begin or _begun)
        reading.future.add_done_callback(lambda _: self._context.wake.set())
        return False

    def _take(self, running: Running, export: Export, reading: _Reading, future: Future[Batch | None]) -> bool:
        """State what was read; return whether it was anything."""
        error, subscription = future.exception(), reading.subscription
        if error is not None:
            if subscription is not None and subscription.has_ended:
                reading.subscription, reading.cut = None, subscription.cut or reading.cut
            self._context.tell_error(running.number, [export.id], error)
            if may_pass(error):
                reading.tries += 1
                reading.again_at, reading.is_due = self._context.now() + pause_s(reading.tries), True
                return False
            # It never passes: whoever waits for the next batch learns of it, and of the end.
            self._end(running, export, None, error)
            return True
        assert subscription is not None
        if reading.tries:
            reading.tries = 0
            self._context.tell_error(running.number, [export.id], None)  # it has passed
        batch = future.result()
        if batch is None:
            if subscription.has_ended:
                self._end(running, export, subscription.schema.empty_table(), None)
            return subscription.has_ended
        reading.is_due = True  # there may be more
        size = int(row_sizes(batch.rows).sum()) if batch.rows.num_rows else 0
        upper = Antichain.empty(batch.upper.arity) if subscription.has_ended else batch.upper
        instance = self._context.instance
        instance.tell(SubscribeProgress(export.id, running.number, batch.lower, upper, batch.rows, size))
        instance.tell(AnswerLatency(export.id, self._context.now() - reading.began_at))
        return True

    def fail(self, number: int, error: BaseException) -> None:
        """End the subscribes of a dataflow that gives nothing any more."""
        running = self._context.instance.run(number)
        if running is None:
            return
        for export in running.dataflow.exports:  # one turn per export
            upper = running.uppers.get(export.id)
            if export.kind == "subscribe" and export.id in running.live and (upper is None or not upper.is_empty):
                self._end(running, export, None, error)

    def _fail_behind(self, running: Running, export: Export) -> bool:
        """End a subscribe that waits for what has failed (invariant 4); return whether it was one."""
        reading = self._there.get(export.id)
        if not self._context.failed or (reading is not None and reading.future is not None):
            return False
        upper = running.uppers.get(export.id, running.dataflow.domain.minimum_frontier)
        needed, attempt = upper.join(running.dataflow.as_of), f"could not continue subscribe {export.id!r}"
        error = failure_behind(self._context, self._hosted, export.id, needed, attempt)
        if error is not None:
            self._end(running, export, None, error)
        return error is not None

    def _end(self, running: Running, export: Export, rows: pa.Table | None, error: BaseException | None) -> None:
        """State the end of a subscribe that has nothing more to give, or that failed for good."""
        domain, instance = running.dataflow.domain, self._context.instance
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
        self, running: Running, hosted: Hosted, export: Export, cut: Cut | None
    ) -> Callable[[], Subscription] | None:
        """Return what begins a subscription, or continues one that broke off; None where its log has nothing yet."""
        details, dataflow = details_of(export), running.dataflow
        path = hosted.path_of(export)
        as_of, until = dataflow.as_of.elements[0], dataflow.until
        asked: dict[str, Any] = {
            name: details[name] for name in ("envelope", "key", "snapshot", "progress") if name in details
        }
        if hosted.has_begun:
            upper = hosted.uppers().get(export.id)
            if upper is None or not dataflow.as_of.less_than_frontier(upper):
                return None
        reported = self._context.instance.collection(export.id).reported
        if reported is not None:
            asked["resume_from"] = cut or reported
        if reported is None or len(as_of) > 1:
            asked["as_of"] = written(dataflow.domain, as_of)
        up_to = None if until.is_empty else written(dataflow.domain, until.elements[0])
        options = self._context.place.options(path) or None
        return lambda: subscribe(path, up_to=up_to, poll_s=0, storage_options=options, **asked)

    def forget(self, id_: str) -> None:
        """End what gave the batches of a subscribe."""
        reading = self._there.pop(id_, None)
        if reading is not None:
            reading.end()

    def try_again(self) -> None:
        """Read at once what waits for its next try."""
        for reading in self._there.values():
            reading.again_at = 0.0

    def close(self, *, wait: bool = True) -> None:
        """Give nothing more; what is read is waited for unless said otherwise."""
        self._readers.shutdown(wait=wait, cancel_futures=True)
        for id_ in list(self._there):
            self.forget(id_)


def _begun() -> Subscription:
    msg = "a subscription that began has none, invariant 1 of drive.subscribes"
    raise AssertionError(msg)
