"""Answering the peeks of an instance: in threads of their own, tried again when there is news.

Invariants
----------
1. What fails is the answer to its peek, and ends nothing else.
2. A peek that waits costs nothing until what it waits for has moved.
3. What is answered of a collection is of a log that this instance has written, whatever is at its path.
4. A peek does not wait for what cannot come: where the dataflow of its collection, or one that this waits for, has
   failed for good before the peek's time, that failure is the answer.
"""

from __future__ import annotations

import base64
import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_timely.answers.finishing import row_sizes
from spark_timely.answers.peek import peek
from spark_timely.compute.drive.context import Context, written
from spark_timely.compute.drive.failures import failed_before
from spark_timely.compute.drive.resuming import own_log
from spark_timely.compute.observation import AnswerLatency, PeekAnswer
from spark_timely.errors import DataLossError, NotBeyondError, TimelyError, WaitTimeoutError, described, shown
from spark_timely.log.log import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_timely.compute.command import Peek
    from spark_timely.compute.drive.hosted import Hosted
    from spark_timely.compute.drive.watching import Watches
    from spark_timely.compute.instance import PendingPeek
    from spark_timely.time.domain import TimeDomain

__all__ = ["Peeks", "keys_of_text", "text_of_keys"]

_ANSWERERS: Final = 4


class Peeks:
    """The peeks that wait for an answer.

    Parameters
    ----------
    context : Context
    watches : Watches
    hosted : mapping of int to Hosted
        The dataflows that run, by number.
    """

    def __init__(self, context: Context, watches: Watches, hosted: Mapping[int, Hosted]) -> None:
        self._context, self._watches, self._hosted = context, watches, hosted
        self._answerers = ThreadPoolExecutor(_ANSWERERS, thread_name_prefix="spark_timely-answer")
        self._running: dict[str, tuple[Future[None], float]] = {}
        # What a peek saw when it was tried last; the path of what it asks, and the dataflow that writes there.
        self._tried: dict[str, object] = {}
        self._paths: dict[str, tuple[str | None, str]] = {}

    def know(self, asked: Peek, path: str | None, name: str) -> None:
        """Know from now on where a peek reads: it is answered also where the collection is dropped meanwhile."""
        self._paths[asked.id] = path, name

    def answer(self) -> None:
        """Begin to answer the peeks for which something has moved."""
        context = self._context
        pending = context.instance.pending_peeks()
        ids = {each.peek.id for each in pending}
        for gone in (self._running.keys() | self._paths.keys()) - ids:
            self._running.pop(gone, None)
            self._tried.pop(gone, None)
            self._paths.pop(gone, None)
        relations = context.relations() if pending else {}
        self._watches.keep_for_peeks({str(each.peek.path) for each in pending})
        for each in pending:  # one turn per peek that waits
            running = self._running.get(each.peek.id)
            if running is not None and not running[0].done():
                continue
            state: object = each.ready
            if each.peek.collection is not None:
                if not each.ready and each.peek.collection not in relations:
                    self._answer_failed(each.peek, each.peek.collection)
                    continue  # what its log has is nobody's yet
            else:
                state = self._watches.version_for_peek(str(each.peek.path))
            if running is not None and self._tried.get(each.peek.id) == state:
                continue
            self._tried[each.peek.id] = state
            began = context.now() if running is None else running[1]
            self._running[each.peek.id] = self._answerers.submit(self._answer, each, began), began

    def _answer_failed(self, asked: Peek, collection: str) -> None:
        """Answer a peek that waits for what has failed (invariant 4)."""
        failed = failed_before(self._context, self._hosted, collection, asked.time)
        if failed is None:
            return
        id_, error = failed
        at = shown(written(self._domain_of(collection), asked.time))
        what = f"{id_!r}" if id_ == collection else f"{id_!r}, which it waits for,"
        msg = f"could not peek {collection!r} at {at}: found that {what} has failed: {described(error)}"
        self._context.instance.tell(PeekAnswer(asked.id, error=msg))
        self._context.wake.set()

    def _domain_of(self, collection: str) -> TimeDomain:
        return next(each.dataflow.domain for each in self._context.runs() if collection in each.live)

    def _answer(self, pending: PendingPeek, began: float) -> None:
        """Try to answer a peek; one that has to wait is tried again."""
        context, asked = self._context, pending.peek
        try:
            rows = self._rows_of(asked)
        except (WaitTimeoutError, NotBeyondError):
            if pending.ready:
                with context.lock:
                    # It is complete as far as is known: nothing else says when to try again.
                    self._tried.pop(asked.id, None)
                return
            context.wake.set()
            return
        except Exception as error:  # noqa: BLE001 - it is the answer (invariant 1)
            answer = PeekAnswer(asked.id, error=described(error), cause=self._named(error, asked))
        else:
            size = int(row_sizes(rows.drop_columns(["_diff"])).sum()) if rows.num_rows else 0
            answer = PeekAnswer(asked.id, rows=rows, n_bytes=size)
        with context.lock:
            context.instance.tell(answer)
            if asked.collection is not None and context.instance.has(asked.collection):
                context.instance.tell(AnswerLatency(asked.target, context.now() - began))
        context.wake.set()

    def _named(self, error: Exception, asked: Peek) -> Exception:
        """Return an error with the collection in the place of its log, whose path nobody has asked for."""
        path, _ = self._paths.get(asked.id, (None, ""))
        if isinstance(error, TimelyError) and asked.collection is not None and path is not None:
            error.relabel(f"log {path!r}", repr(asked.collection))
        return error

    def _rows_of(self, asked: Peek) -> pa.Table:
        context = self._context
        plan = json.loads(asked.plan)
        options: dict[str, Any] = {str(name): value for name, value in plan.items()}
        if isinstance(options.get("keys"), str):
            options["keys"] = keys_of_text(options["keys"])
        with context.lock:
            relation = context.relations().get(asked.collection or "")
            if relation is not None:
                table = context.instance.introspection.table(relation)
            else:
                path, name = (asked.path, "") if asked.path else self._paths[asked.id]
        if relation is not None:
            return peek(_as_log(table), at=0, timeout_s=0, **options)
        assert path is not None
        log = context.opened(path) if asked.collection is None else own_log(context, path, name)
        if log is None:
            msg = f"could not peek {asked.collection!r}: found a log in {path!r} that its dataflow has not written"
            raise DataLossError(msg, hint="see why and errors: its output was replaced", context={"path": path})
        at = written(log.domain, asked.time)
        return peek(
            path,
            at=at,
            timeout_s=0,
            job=context.working.job,
            storage_options=context.place.options(path) or None,
            **options,
        )

    def close(self, *, wait: bool = True) -> None:
        """Answer nothing more; what runs is waited for unless said otherwise."""
        self._answerers.shutdown(wait=wait, cancel_futures=True)


def keys_of_text(text: str, /) -> pa.Table:
    """Return the keys of a peek, of the text that `text_of_keys` gave."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


def text_of_keys(keys: pa.Table, /) -> str:
    """Return the keys of a peek as text that stands in its plan: values of all types, as they are.

    Examples
    --------
    >>> keys_of_text(text_of_keys(pa.table({"k": [b"1"]}))).to_pylist()
    [{'k': b'1'}]
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    return base64.b64encode(sink.getvalue()).decode()


def _as_log(table: pa.Table) -> MemoryLog:
    """Return rows as a collection, to peek into."""
    log = MemoryLog.create(table.schema, kind="collection", minimum=(0,))
    ones = pa.array([1] * table.num_rows, pa.int64())
    times = pa.array([0] * table.num_rows, pa.int64())
    log.writer(owner="instance").append(table.append_column("_time", times).append_column("_diff", ones), advance_to=1)
    return log
