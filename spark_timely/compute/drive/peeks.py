"""The peeks and copies of an instance: reads that are made once, and answered with rows or with files.

The driver lets them take steps in its turns. Which rows a log has at a time is found by `spark_timely.answers.peek`;
here is which log that is, and when to ask it. Peeks are answered in threads of their own, and tried again when there is
news. Copies are made once their time is complete. Reads that continue are in `spark_timely.compute.drive.subscribes`.

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
import difflib
import json
import os
import uuid
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_timely.answers.keys import keys_of
from spark_timely.answers.peek import peek
from spark_timely.answers.plan import row_sizes
from spark_timely.compute.command import Peek
from spark_timely.compute.drive.causes import failed_before, failure_behind
from spark_timely.compute.drive.directory import details_of
from spark_timely.compute.drive.state import State, may_pass, written
from spark_timely.compute.observation import AnswerLatency, CopyToDone, PeekAnswer
from spark_timely.errors import (
    DataLossError,
    InvalidOptionError,
    InvalidUsageError,
    LogMissingError,
    MissingError,
    NotBeyondError,
    TimelyError,
    WaitTimeoutError,
    described,
    shown,
)
from spark_timely.log.log import MemoryLog
from spark_timely.log.store.storage import normal_path
from spark_timely.log.timestamp import newest_complete
from spark_timely.threads import pool

if TYPE_CHECKING:
    from spark_timely.answers.keys import KeysLike
    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.runners import Runner
    from spark_timely.compute.drive.worker import Worker
    from spark_timely.compute.instance import PendingPeek, Running
    from spark_timely.time.domain import TimeLike

__all__ = ["Copies", "Peeks", "keys_of_text", "text_of_keys"]

_ANSWERERS: Final = 4
# What a peek may ask for, beside a time and keys.
_ASKED: Final = ("where", "select", "order_by", "limit", "offset", "max_bytes", "scan_limit", "forgotten")


@dataclass
class _Asked:
    """A peek that waits for its answer: where it reads, and how its newest try stands.

    Attributes
    ----------
    path : str or None
        Of the log of its collection; None of a log elsewhere, and of a relation.
    name : str
        Of the dataflow that writes there.
    began_at : float
        When it was tried first.
    future : Future or None
        The newest try.
    seen : object
        What that one saw: it is tried again where this has changed. None: it is tried again in any case.
    """

    path: str | None = None
    name: str = ""
    began_at: float = 0.0
    future: Future[None] | None = None
    seen: object = None


class Peeks:
    """The peeks that wait for an answer.

    Parameters
    ----------
    state : State
    worker : Worker
    """

    def __init__(self, state: State, worker: Worker) -> None:
        self._state, self._worker = state, worker
        self._answerers = pool("answer", _ANSWERERS)
        self._waiting: dict[str, _Asked] = {}

    def know(self, asked: Peek, path: str | None, name: str) -> None:
        """Know from now on where a peek reads: it is answered also where the collection is dropped meanwhile."""
        self._waiting[asked.id] = _Asked(path, name)

    # What is asked -------------------------------------------------------------------------------

    def command(
        self, target: str | os.PathLike[str], as_of: TimeLike | None, keys: KeysLike | None, asked: Mapping[str, object]
    ) -> Peek:
        """Return the command that asks for a collection's rows, as `Handle.peek` is asked for them."""
        path = self._path_of(target)
        target = str(target)
        plan = _asked_of(target, asked)
        if keys is not None:
            plan["keys"] = text_of_keys(self._keys_of(target, path, keys))
        time = self._time_of(path or target, as_of)
        return Peek(uuid.uuid4().hex, time, collection=None if path else target, path=path, plan=json.dumps(plan))

    def _path_of(self, target: str | os.PathLike[str]) -> str | None:
        """Return the path that a peek reads; None of a collection of the instance."""
        state = self._state
        if not isinstance(target, str | os.PathLike) or not str(target):
            msg = f"could not peek: found target {shown(target)}"
            raise InvalidUsageError(msg, hint="give the id of a collection, or the path of a log")
        with state.lock:
            if isinstance(target, str) and state.instance.has(target):
                return None
        path = normal_path(target)
        if isinstance(target, str) and "/" not in target:
            try:
                state.opened(path)
            except LogMissingError as error:
                msg = f"could not peek {target!r}: found no collection of this id"
                hint = f"choose among {shown(sorted(state.exports()))}, or give a path"
                raise MissingError(msg, hint=hint) from error
        return path

    def _keys_of(self, target: str, path: str | None, keys: KeysLike) -> pa.Table:
        """Return the keys of a peek as a table: of the columns' types, where the collection has columns already."""
        attempt = f"could not peek {target!r}"
        if isinstance(keys, Mapping) and len(keys) > 1:
            keys = _table_of(attempt, keys)
        try:
            schema = self._state.schema_of(target) if path is None else self._state.opened(path).schema
        except MissingError:
            # Nothing is written yet: the answer, which is waited for, takes them as they are then.
            return keys if isinstance(keys, pa.Table) else _table_of(attempt, keys)
        found = keys_of(attempt, keys, schema)
        assert found is not None
        return found

    def _time_of(self, target: str, as_of: TimeLike | None) -> tuple[int, ...]:
        """Return the time of a peek: as given, or the newest that is complete.

        Raises
        ------
        NotBeyondError
            If none is given, and none is complete.
        OperatorError
            If it is because of a failure that none is complete.
        """
        state = self._state
        with state.lock:
            if not state.instance.has(target):
                log = state.opened(target)
                domain, upper = log.domain, log.frontier()
            elif target in state.relations():
                return state.created().domain.minimum
            else:
                there = state.instance.collection(target)
                domain = state.domain_of(target)
                upper = domain.minimum_frontier if there.upper is None else there.upper
            if as_of is None and upper.less_equal(domain.minimum):
                failed = failure_behind(self._worker, target, upper, f"could not peek {target!r}")
                if failed is not None:
                    raise failed
        if as_of is not None:
            return domain.parse_time(as_of)
        newest = newest_complete(domain, upper)
        if newest is None:
            msg = f"could not peek {target!r}: found no time that is complete, upper={domain.render_frontier(upper)}"
            raise NotBeyondError(msg, hint="give as_of=… to wait for it", time=domain.minimum, frontier=upper.to_json())
        return newest

    # Answers -------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Begin to answer the peeks for which something has moved."""
        state = self._state
        pending = state.instance.pending_peeks()
        for gone in self._waiting.keys() - {each.peek.id for each in pending}:
            del self._waiting[gone]
        relations = state.relations() if pending else {}
        self._worker.watches.keep_for_peeks({str(each.peek.path) for each in pending})
        for each in pending:
            waiting = self._waiting.setdefault(each.peek.id, _Asked())
            if waiting.future is not None and not waiting.future.done():
                continue
            seen: object = each.ready
            if each.peek.collection is not None:
                if not each.ready and each.peek.collection not in relations:
                    self._answer_failed(each.peek, each.peek.collection)
                    continue  # what its log has is nobody's yet
            else:
                seen = self._worker.watches.version_for_peek(str(each.peek.path))
            if waiting.future is None:
                waiting.began_at = state.now()
            elif waiting.seen == seen:
                continue
            waiting.seen = seen
            waiting.future = self._answerers.submit(self._answer, each, waiting)

    def _answer_failed(self, asked: Peek, collection: str) -> None:
        """Answer a peek that waits for what has failed (invariant 4)."""
        failed = failed_before(self._worker, collection, asked.time)
        if failed is None:
            return
        id_, error = failed
        at = shown(written(self._state.domain_of(collection), asked.time))
        what = f"{id_!r}" if id_ == collection else f"{id_!r}, which it waits for,"
        msg = f"could not peek {collection!r} at {at}: found that {what} has failed: {described(error)}"
        self._state.instance.tell(PeekAnswer(asked.id, error=msg))
        self._state.wake.set()

    def _answer(self, pending: PendingPeek, waiting: _Asked) -> None:
        """Try to answer a peek; one that has to wait is tried again."""
        state, asked = self._state, pending.peek
        try:
            rows = self._rows_of(asked, waiting)
        except (WaitTimeoutError, NotBeyondError):
            if pending.ready:
                with state.lock:
                    # It is complete as far as is known: nothing else says when to try again.
                    waiting.seen = None
                return
            state.wake.set()
            return
        except Exception as error:  # noqa: BLE001 - it is the answer (invariant 1)
            answer = PeekAnswer(asked.id, error=described(error), cause=_named(error, asked, waiting.path))
        else:
            size = int(row_sizes(rows.drop_columns(["_diff"])).sum()) if rows.num_rows else 0
            answer = PeekAnswer(asked.id, rows=rows, n_bytes=size)
        with state.lock:
            state.instance.tell(answer)
            if asked.collection is not None and state.instance.has(asked.collection):
                state.instance.tell(AnswerLatency(asked.target, state.now() - waiting.began_at))
        state.wake.set()

    def _rows_of(self, asked: Peek, waiting: _Asked) -> pa.Table:
        state = self._state
        plan = json.loads(asked.plan)
        options: dict[str, Any] = {str(name): value for name, value in plan.items()}
        if isinstance(options.get("keys"), str):
            options["keys"] = keys_of_text(options["keys"])
        with state.lock:
            relation = state.relations().get(asked.collection or "")
            table = None if relation is None else state.instance.introspection.table(relation)
        if table is not None:
            return peek(_as_log(table), as_of=0, timeout_s=0, **options)
        path = asked.path or waiting.path
        assert path is not None
        log = state.opened(path) if asked.collection is None else state.own_log(path, waiting.name)
        if log is None:
            msg = f"could not peek {asked.collection!r}: found a log in {path!r} that its dataflow has not written"
            raise DataLossError(msg, hint="see why and errors: its output was replaced", context={"path": path})
        at = written(log.domain, asked.time)
        return peek(
            path,
            as_of=at,
            timeout_s=0,
            job=state.runtime.job,
            storage_options=state.directory.options(path) or None,
            **options,
        )

    def close(self) -> None:
        """Answer nothing more; what runs is waited for."""
        self._answerers.shutdown(wait=True, cancel_futures=True)


class Copies:
    """The copy-tos of an instance.

    Parameters
    ----------
    state : State
    worker : Worker
    """

    def __init__(self, state: State, worker: Worker) -> None:
        self._state, self._worker = state, worker
        # By id, with the number of the dataflow.
        self._running: dict[str, tuple[int, Future[int]]] = {}

    def make(self) -> None:
        """Begin the copies whose time is complete, and state those that ended."""
        for running, export in self._state.started_exports("copy-to"):
            runner = self._worker.runner(running.number)
            if runner is not None and not running.complete:
                self._make(running, runner, export)

    def _make(self, running: Running, runner: Runner, export: Export) -> None:
        instance = self._state.instance
        number, future = self._running.get(export.id, (running.number, None))
        if future is not None and number != running.number:
            self.forget(export.id)  # of another dataflow that had the id
            future = None
        if future is None:
            if not instance.collection(export.id).hydrated:  # else it has its answer, and others of its dataflow not
                self._begin(running, runner, export)
        elif future.done():
            del self._running[export.id]
            failed = future.exception()
            if failed is None:
                instance.tell(CopyToDone(export.id, running.number, rows=future.result()))
            else:
                instance.tell(CopyToDone(export.id, running.number, error=described(failed), cause=_cause(failed)))

    def _begin(self, running: Running, runner: Runner, export: Export) -> None:
        state, dataflow = self._state, running.dataflow
        try:
            path = runner.path_of(export)
            upper = runner.uppers().get(export.id) if runner.engine is not None else state.opened(path).frontier()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others continue
            if not may_pass(error):
                state.instance.tell(CopyToDone(export.id, running.number, error=described(error), cause=error))
            return
        if upper is None or not dataflow.as_of.less_than_frontier(upper):
            attempt = f"could not copy to {str(details_of(export)['to'])!r}"
            failure = failure_behind(self._worker, export.id, dataflow.as_of, attempt)
            if failure is not None:
                done = CopyToDone(export.id, running.number, error=failure.message, cause=failure)
                state.instance.tell(done)
            return
        if state.runtime.copy is None:
            text = "could not copy: found an instance without a session of Spark"
            state.instance.tell(CopyToDone(export.id, running.number, error=text))
            return
        details = details_of(export)
        at = written(dataflow.domain, dataflow.as_of.elements[0])
        future = self._worker.threads.submit(state.runtime.copy, path, str(details["to"]), at, details)
        future.add_done_callback(lambda _: state.wake.set())
        self._running[export.id] = running.number, future

    def fail(self, number: int, error: BaseException) -> None:
        """Answer the copies of a dataflow that gives nothing any more; those that run are let end."""
        instance = self._state.instance
        running = instance.run(number)
        if running is None:
            return
        for export in running.dataflow.exports:
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


def _named(error: Exception, asked: Peek, path: str | None) -> Exception:
    """Return an error with the collection in the place of its log, whose path nobody has asked for."""
    if isinstance(error, TimelyError) and asked.collection is not None and path is not None:
        error.relabel(f"log {path!r}", repr(asked.collection))
    return error


def _cause(error: BaseException) -> Exception | None:
    return error if isinstance(error, Exception) else None


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


def _table_of(attempt: str, keys: object) -> pa.Table:
    """Return keys in lists as a table, of types that follow from the values."""
    hint = "give {'column': [value, …]}, or a pyarrow.Table"
    lists = isinstance(keys, Mapping) and all(
        isinstance(values, Collection) and not isinstance(values, str | bytes | Mapping) for values in keys.values()
    )
    if not isinstance(keys, Mapping) or not keys or not lists:
        msg = f"{attempt}: found keys={shown(keys)}"
        raise InvalidUsageError(msg, hint=hint)
    try:
        if any(isinstance(name, tuple) for name in keys):
            ((names, values),) = keys.items()
            columns = list(zip(*values, strict=True)) or [()] * len(names)
            return pa.table(dict(zip(names, map(pa.array, columns), strict=True)))
        return pa.table({name: pa.array(list(values)) for name, values in keys.items()})
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        msg = f"{attempt}: found keys={shown(keys)}"
        raise InvalidUsageError(msg, hint=hint) from error


def _asked_of(target: str, asked: Mapping[str, object]) -> dict[str, object]:
    """Return what a peek asks, as JSON has it."""
    for name, value in asked.items():  # a few
        if name not in _ASKED:
            near = difflib.get_close_matches(name, _ASKED, n=1)
            meant = f"did you mean {near[0]!r}? It is " if near else "it is "
            msg = f"could not peek {target!r}: found unknown option {name!r}"
            raise InvalidOptionError(msg, hint=f"{meant}one of {', '.join(_ASKED)}")
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            msg = f"could not peek {target!r}: found {name}={shown(value)}"
            raise InvalidUsageError(msg, hint="give texts and numbers, or lists of them") from error
    return {name: value for name, value in asked.items() if value is not None}
