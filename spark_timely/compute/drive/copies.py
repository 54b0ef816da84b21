"""Making the copies that an instance is asked for, each once its time is complete."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

from spark_timely.compute.drive.context import Context, may_pass, written
from spark_timely.compute.drive.failures import failure_behind
from spark_timely.compute.drive.place import details_of
from spark_timely.compute.observation import CopyToDone
from spark_timely.errors import described

if TYPE_CHECKING:
    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.hosted import Hosted
    from spark_timely.compute.instance import Running

__all__ = ["Copies"]


class Copies:
    """The copy-tos of an instance.

    Parameters
    ----------
    context : Context
    hosted : mapping of int to Hosted
        The dataflows that are hosted, by number, as they are at any time.
    workers : concurrent.futures.Executor
        Where copies are made.
    """

    def __init__(self, context: Context, hosted: Mapping[int, Hosted], workers: Executor) -> None:
        self._context, self._hosted, self._workers = context, hosted, workers
        # By id, with the number of the dataflow.
        self._running: dict[str, tuple[int, Future[int]]] = {}

    def make(self) -> None:
        """Begin the copies whose time is complete, and state those that ended."""
        for running, export in self._context.started_exports("copy-to"):  # one turn per copy
            hosted = self._hosted.get(running.number)
            if hosted is not None and not running.complete:
                self._make(running, hosted, export)

    def _make(self, running: Running, hosted: Hosted, export: Export) -> None:
        instance = self._context.instance
        number, future = self._running.get(export.id, (running.number, None))
        if future is not None and number != running.number:
            self.forget(export.id)  # of another dataflow that had the id
            future = None
        if future is None:
            if not instance.collection(export.id).hydrated:  # else it has its answer, and others of its dataflow not
                self._begin(running, hosted, export)
        elif future.done():
            del self._running[export.id]
            failed = future.exception()
            if failed is None:
                instance.tell(CopyToDone(export.id, running.number, rows=future.result()))
            else:
                instance.tell(CopyToDone(export.id, running.number, error=described(failed), cause=_cause(failed)))

    def _begin(self, running: Running, hosted: Hosted, export: Export) -> None:
        context, dataflow = self._context, running.dataflow
        try:
            path = hosted.path_of(export)
            upper = hosted.uppers().get(export.id) if hosted.has_begun else context.opened(path).frontier()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others continue
            if not may_pass(error):
                context.instance.tell(CopyToDone(export.id, running.number, error=described(error), cause=error))
            return
        if upper is None or not dataflow.as_of.less_than_frontier(upper):
            attempt = f"could not copy to {str(details_of(export)['to'])!r}"
            failure = failure_behind(context, self._hosted, export.id, dataflow.as_of, attempt)
            if failure is not None:
                told = CopyToDone(export.id, running.number, error=failure.message, cause=failure)
                context.instance.tell(told)
            return
        if context.working.copy is None:
            text = "could not copy: found an instance without a session of Spark"
            context.instance.tell(CopyToDone(export.id, running.number, error=text))
            return
        details = details_of(export)
        at = written(dataflow.domain, dataflow.as_of.elements[0])
        future = self._workers.submit(context.working.copy, path, str(details["to"]), at, details)
        future.add_done_callback(lambda _: context.wake.set())
        self._running[export.id] = running.number, future

    def fail(self, number: int, error: BaseException) -> None:
        """Answer the copies of a dataflow that gives nothing any more; those that run are let end."""
        instance = self._context.instance
        running = instance.run(number)
        if running is None:
            return
        for export in running.dataflow.exports:  # one turn per export
            if export.kind == "copy-to" and export.id in running.live and export.id not in self._running:
                instance.tell(CopyToDone(export.id, number, error=described(error), cause=_cause(error)))

    def forget(self, id_: str) -> None:
        """Give no answer for a copy; one that has not begun is not made."""
        copy = self._running.pop(id_, None)
        if copy is not None:
            copy[1].cancel()

    def close(self) -> None:
        """Give no answers any more."""
        for id_ in list(self._running):
            self.forget(id_)


def _cause(error: BaseException) -> Exception | None:
    return error if isinstance(error, Exception) else None
