"""A handle on an instance: commands as methods, answers as values, and a thread that takes its turns.

`ComputeInstance` (`spark_timely.spark.instance`) is a handle that runs an instance; the command line follows by one.
A process that follows an instance needs no Spark: it answers peeks and subscribes from what another process maintains.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time as monotonic
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from spark_timely.compute.command import (
    AllowCompaction,
    CancelPeek,
    Command,
    Dataflow,
    Export,
    UpdateConfiguration,
)
from spark_timely.compute.drive.causes import why
from spark_timely.compute.drive.description import Descriptions, check_query, check_text
from spark_timely.compute.drive.directory import Directory, details_of
from spark_timely.compute.drive.driver import Driver
from spark_timely.compute.drive.recovery import Consent
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.drive.runtime import Runtime
from spark_timely.compute.drive.subscribes import END, Batches, raised
from spark_timely.compute.response import (
    CopyToResponse,
    Dropped,
    PeekResponse,
    Response,
    SubscribeBatch,
)
from spark_timely.conf.kinds import names_of, seconds_of
from spark_timely.errors import (
    CanceledError,
    InvalidUsageError,
    MissingError,
    OperatorError,
    TimelyError,
    WaitTimeoutError,
    shown,
)
from spark_timely.log.store.storage import normal_path
from spark_timely.masking import masked_logger
from spark_timely.threads import aside, python_ends
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from types import TracebackType

    from spark_timely.answers.keys import KeysLike
    from spark_timely.compute.drive.plans import Function
    from spark_timely.compute.plan import Plan
    from spark_timely.continual.plan import Deletes, Newest
    from spark_timely.log.log import Log
    from spark_timely.time.domain import FrontierLike, TimeLike

__all__ = ["FOLDERS", "Batches", "Handle"]

FOLDERS: Final = pa.schema(
    [
        pa.field("folder", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("export_id", pa.string()),
        pa.field("log_id", pa.string()),
        pa.field("instance", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)
"""Columns of `Handle.folders`."""

_log = masked_logger("spark_timely.compute")

# Between two looks at requests on a disk; one into a store is paid for.
_REQUESTS_S: Final = 0.25
_FAR_REQUESTS_S: Final = 1.0
_SETTLED: Final = 2


class Handle:
    """A compute instance that this process runs, or follows.

    Parameters
    ----------
    directory : str
        Of the instance: a path or a cloud URL. Made if it is not there.
    runtime : Runtime
        How work is done.
    read_only : bool
        Whether to follow what another process maintains: nothing is written, and what is answered is as far as that
        one is. `allow_writes` takes over.
    moved : bool
        Whether the directory was meant to be moved: a copy is refused unless this says so.
    adopts : mapping of str to int, optional
        Where the command log went back: collections that continue as later starts wrote them, each with the start that
        the error names.
    leaves : iterable of str, optional
        Where the command log went back, or is lost: collections whose dataflows are dropped while what they wrote
        stays, and folders that stay; ``*`` stands for all folders that no command names.
    storage_options : mapping of str to str, optional
        Of the directory.
    options_of : mapping of str to mapping, optional
        Storage options of logs elsewhere, by path. They are never written into the command log.
    on_response : callable, optional
        Is called with each response, in order, by the thread that takes turns: it must not wait for an answer or a
        batch. With it the batches of a subscribe are kept until somebody closes them.
    """

    def __init__(
        self,
        directory: str,
        runtime: Runtime,
        *,
        read_only: bool = False,
        moved: bool = False,
        adopts: Mapping[str, int] | None = None,
        leaves: Iterable[str] = (),
        storage_options: Mapping[str, str] | None = None,
        options_of: Mapping[str, Mapping[str, str]] | None = None,
        on_response: Callable[[Response], object] | None = None,
    ) -> None:
        self.directory = Directory(normal_path(directory), dict(storage_options or {}), dict(options_of or {}))
        consent = Consent(dict(adopts or {}), frozenset(leaves))
        self._driver = Driver(self.directory, runtime, read_only=read_only, moved=moved, consent=consent)
        self._state = self._driver.state
        self._state.wants = self._has_room
        self._descriptions = Descriptions(self._driver, self._wait_elsewhere)
        self._on_response = on_response
        self._changed = threading.Condition()
        # Peeks and copies that somebody waits for, with their answers, and copies that nobody waits for any more.
        self._asked: dict[str, PeekResponse | CopyToResponse | None] = {}
        self._left: set[str] = set()
        # What gives the batches of each subscribe; None where nothing refers to them any more. They are kept here
        # only where `on_response` takes them as well.
        self._batches: dict[str, Callable[[], Batches | None]] = {}
        # Ids of subscribes whose batches were forgotten; a finalizer adds them, so there is no lock.
        self._forgotten: deque[str] = deque()
        # Subscribes that this handle drops, and whether it has: until the turn after that nobody else is given their
        # ids, since responses name no more than an id.
        self._ending: dict[str, bool] = {}
        self._ended = False
        self._requests = Requests(self.directory)
        self._requests_at = -math.inf
        self._requests_failed = False
        self._turns = 0
        self._thread_error: Exception | None = None
        self._thread = aside("instance", self._run)

    # Turns ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        driver = self._driver
        while not self._ended:
            dropped = [name for name, is_dropped in list(self._ending.items()) if is_dropped]
            try:
                busy, responses = driver.turn()
            except Exception as error:  # noqa: BLE001 - those who wait learn of it
                ends = isinstance(error, RuntimeError) and python_ends()  # the next start continues
                if not self._ended and not ends:
                    _log.error("the instance in %r has ended: %s", self.directory.path, error)
                self._tell_end(self._ended_with_python() if ends else error)
                return
            if responses:
                self._take(responses)
            if dropped and driver.is_reachable:
                with self._changed:
                    for name in dropped:  # all that was stated of them is handed out now
                        self._ending.pop(name, None)
                    self._changed.notify_all()
            self._drop_left()
            self._drop_forgotten()
            if self._turns < _SETTLED:
                with self._changed:
                    self._turns += 1
                    self._changed.notify_all()
            self._take_requests()
            if not busy:
                driver.wake.wait(driver.next_look_s())
                driver.wake.clear()

    def _ended_with_python(self) -> InvalidUsageError:
        msg = f"could not continue the instance in {self.directory.path!r}: found that the main thread has ended"
        return InvalidUsageError(msg, hint="close the instance, or wait for its answers, before that")

    def _take_requests(self) -> None:
        """Do what other processes asked for; a few looks in a second."""
        rest = _REQUESTS_S if self._requests.local else _FAR_REQUESTS_S
        if self._state.follows or monotonic.monotonic() - self._requests_at < rest:
            return
        try:
            self._requests.take(self)
            self._requests_failed = False
        except Exception as error:  # noqa: BLE001 - they stay, and are taken at another look
            say = _log.debug if self._requests_failed else _log.warning
            say("requests in %r cannot be taken: %s", self.directory.path, error)
            self._requests_failed = True
        self._requests_at = monotonic.monotonic()  # after a look that took long, others come first

    def _drop_left(self) -> None:
        """Drop copies that ended after nobody waited any more."""
        with self._changed:
            ended = [name for name in self._left if self._asked.get(name) is not None]
            for name in ended:
                self._left.remove(name)
                del self._asked[name]
        for name in ended:
            try:
                self.drop(name, missing_ok=True)
            except TimelyError as error:
                _log.debug("copy %r is not dropped: %s", name, error)

    def _drop_forgotten(self) -> None:
        """Drop subscribes whose batches nothing refers to any more.

        All of it is under the lock: no other subscribe has the id before this one is dropped.
        """
        if not self._forgotten:
            return
        with self._changed:
            while self._forgotten:
                name = self._forgotten.popleft()
                batches = self._batches.get(name)
                if batches is None or batches() is not None:
                    continue  # it has ended, or is another one
                del self._batches[name]
                try:
                    self._drop_subscribe(name)
                except TimelyError as error:
                    _log.debug("subscribe %r is not dropped: %s", name, error)

    def _drop_subscribe(self, name: str) -> None:
        """Drop a subscribe whose batches this handle does not give any more."""
        try:
            self.drop(name, missing_ok=True)
        except BaseException:
            self._ending.pop(name, None)
            raise
        self._ending[name] = True
        self._driver.wake.set()

    def _take(self, responses: Sequence[Response]) -> None:
        with self._changed:
            for response in responses:
                match response:
                    case PeekResponse() | CopyToResponse():
                        if response.id in self._asked:
                            self._asked[response.id] = response
                    case SubscribeBatch(id_):
                        self._put(self._batches.get(id_), response)
                    case Dropped(id_):
                        self._put(self._batches.pop(id_, None), END)
                if self._on_response is not None:
                    try:
                        self._on_response(response)
                    except Exception as error:  # noqa: BLE001 - whatever it is, the others are answered
                        _log.error("a response could not be handed out, the instance continues: %s", error)
            self._changed.notify_all()

    def _has_room(self, id_: str) -> bool:
        """Return whether the reader of a subscribe's batches would take another one."""
        found = self._batches.get(id_)
        if found is None:
            return True  # `on_response` alone takes them
        batches = found()
        return batches is not None and batches.has_room

    @staticmethod
    def _put(of: Callable[[], Batches | None] | None, found: object) -> None:
        """Hand a batch, an error or the end to those who take batches, if anybody does."""
        batches = None if of is None else of()
        if batches is not None:
            batches.put(found)

    def _end_batches(self, batches: Batches) -> None:
        """Drop a subscribe whose batches nobody takes any more."""
        with self._changed:
            found = self._batches.get(batches.id)
            if found is None or found() is not batches:
                return
            del self._batches[batches.id]
            self._ending[batches.id] = False
        if self._ended or self._driver.error is not None:
            return  # it has ended with the instance
        try:
            self._drop_subscribe(batches.id)
        except TimelyError:
            if not self._ended and self._driver.error is None:
                raise

    def _tell_end(self, error: Exception) -> None:
        with self._changed:
            self._thread_error = error
            for batches in self._batches.values():
                self._put(batches, error)
            self._batches.clear()
            self._changed.notify_all()

    def _check_thread(self) -> None:
        """Refuse to wait in the thread that is waited for."""
        if threading.current_thread() is self._thread:
            msg = "could not wait for an answer: found a call of on_response, which answers wait for"
            raise InvalidUsageError(msg, hint="hand the response to another thread, and wait there")

    def _wait(self, found: Callable[[], bool], timeout_s: float | None) -> bool:
        self._check_thread()
        deadline = None if timeout_s is None else monotonic.monotonic() + timeout_s
        with self._changed:
            while not found():
                if self._thread_error is not None:
                    raise self._thread_error
                if self._driver.error is not None:
                    raise self._driver.error
                if self._ended:
                    msg = f"could not wait for the instance in {self.directory.path!r}: found it closed"
                    raise InvalidUsageError(msg, hint="open it again")
                left = None if deadline is None else deadline - monotonic.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(1.0 if left is None else min(left, 1.0))
        return True

    def _wait_elsewhere(self, found: Callable[[], bool], timeout_s: float) -> None:
        """Wait as `_wait`, but not in the thread that is waited for: what another process asks is answered at once."""
        if threading.current_thread() is not self._thread:
            self._wait(found, timeout_s)

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Keep the answer of a peek or copy while somebody waits for it; of a copy that was left, until it is there."""
        with self._changed:
            self._asked[name] = None
        try:
            yield
        finally:
            with self._changed:
                if name not in self._left:
                    del self._asked[name]

    # Commands ------------------------------------------------------------------------------------

    def send(self, command: Command, /) -> None:
        """Send any command; see `spark_timely.compute.command`.

        Raises
        ------
        TimelyError
            If it is refused. Then nothing was changed.
        """
        self._driver.handle(command)

    def dataflow(
        self,
        name: str,
        query: str | Plan,
        exports: Sequence[Export],
        *,
        imports: Mapping[str, str] | None = None,
        as_of: TimeLike | None = None,
        up_to: TimeLike | None = None,
        interactive: bool = False,
        functions: Mapping[str, Function] | None = None,
    ) -> Dataflow:
        """Create a dataflow that is scheduled, and return it as it was created.

        Parameters
        ----------
        name : str
            For people.
        query : str or Plan
            SQL, as `spark_timely.compute.sql` reads it; a plan, or its JSON.
        exports : sequence of Export
        imports : mapping of str to str, optional
            What names in the query stand for: paths of logs. Names that are not here are ids of exports.
        as_of : time, optional
            From which time on it is right; the newest at which it can answer at once unless given.
        up_to : time, optional
            Where it ends, exclusive.
        interactive : bool
            Whether it ends with this process.
        functions : mapping of str to callable, optional
            What the names of ``function`` nodes of the plan stand for: functions of pyarrow tables, as `Stream.map`
            takes them. They are in this process alone, so only an interactive dataflow may have some.

        Raises
        ------
        TimelyError
            If it is refused. Then nothing was changed.
        """
        return self._descriptions.dataflow(
            name, query, exports, imports, as_of, up_to, functions, interactive=interactive
        )

    def index(
        self,
        id_: str,
        query: str | Plan,
        /,
        *,
        key: str | Sequence[str] = (),
        imports: Mapping[str, str] | None = None,
        as_of: TimeLike | None = None,
        request: str | None = None,
    ) -> Dataflow:
        """Maintain a collection in the instance, and an index of it by a key.

        Parameters
        ----------
        id_ : str
            By which it is peeked and imported.
        query, imports, as_of
            As for `dataflow`.
        key : str or sequence of str
            Columns of the index. Without any it has none, and peeks read the log.
        request : str, optional
            The request that asks for it.
        """
        check_text("could not create an index", "id", id_)
        names = list(names_of(f"could not create index {id_!r}", "key", key))
        export = _export(id_, "index", request, folder=self.directory.new_folder(id_), key=names)
        return self.dataflow(id_, query, [export], imports=imports, as_of=as_of)

    def maintain(
        self,
        id_: str,
        query: str | Plan,
        into: str | os.PathLike[str],
        /,
        *,
        imports: Mapping[str, str] | None = None,
        as_of: TimeLike | None = None,
        request: str | None = None,
    ) -> Dataflow:
        """Maintain what a query gives in a log of its own, for anybody to read.

        Parameters
        ----------
        id_ : str
        query, imports, as_of
            As for `dataflow`.
        into : path
            Of the log. A relative one is of this process, and is kept as an absolute one.
        request : str, optional
            The request that asks for it.
        """
        check_text("could not maintain a log", "id", id_)
        export = _export(id_, "log", request, path=normal_path(into))
        return self.dataflow(id_, query, [export], imports=imports, as_of=as_of)

    def continual_task(
        self,
        id_: str,
        sql: str,
        /,
        *,
        inputs: Mapping[str, str | os.PathLike[str] | Log | Deletes],
        references: Mapping[str, str | os.PathLike[str] | Log | Newest] | None = None,
        into: str | os.PathLike[str] | None = None,
        as_of: TimeLike | Literal["earliest", "latest"] = "earliest",
        snapshot: bool = False,
        expect: Mapping[str, str | tuple[str, str]] | None = None,
        forgotten: bool = False,
        functions: Sequence[str] = (),
        replaces: str | None = None,
        request: str | None = None,
    ) -> Dataflow:
        """Maintain what SQL gives at each time at which an input has rows: see `spark_timely.ContinualTask`.

        What is written at a time is never changed by later changes of the references. Other dataflows import it by its
        id.

        Parameters
        ----------
        id_ : str
        sql : str
            The body, in Spark's SQL.
        inputs, references : mapping of str to str, path, Log, `deletes` or `newest`
            By the name that the body has for it: the id of an export of the instance, or a log.
        into : path, optional
            Of the output's log; it is in the directory of the instance unless given. A relative one is of this
            process, and is kept as an absolute one.
        as_of, snapshot, expect, forgotten, functions, replaces
            As of `spark_timely.ContinualTask`.
        request : str, optional
            The request that asks for it.

        Raises
        ------
        TimelyError
            If it is refused: by what the body says, by Spark, or for what it reads or writes. Then nothing was changed.

        Examples
        --------
        ::

            instance.continual_task(
                "eur",
                "SELECT o.id, o.amount * r.rate AS eur FROM orders o JOIN rates r USING (currency)",
                inputs={"orders": "/data/orders"},
                references={"rates": "/data/rates"},
            )
        """
        check_text("could not create a continual task", "id", id_)
        place = {"folder": self.directory.new_folder(id_)} if into is None else {"path": normal_path(into)}
        return self._descriptions.task(
            _export(id_, "log", request, **place),
            sql,
            inputs,
            references or {},
            as_of,
            expect or {},
            snapshot=snapshot,
            forgotten=forgotten,
            functions=tuple(functions),
            replaces=replaces,
        )

    def subscribe(
        self,
        query: str | Plan,
        /,
        *,
        imports: Mapping[str, str] | None = None,
        as_of: TimeLike | None = None,
        up_to: TimeLike | None = None,
        snapshot: bool = True,
        id_: str | None = None,
        functions: Mapping[str, Function] | None = None,
    ) -> Batches:
        """Subscribe to what a query gives; ends with this process, and when nothing refers to its batches any more.

        Parameters
        ----------
        query : str or Plan
            As for `dataflow`; the id of an export stands for all of it.
        imports, as_of
            As for `dataflow`.
        up_to : time, optional
            Where it ends, exclusive.
        snapshot : bool
            Whether the contents at `as_of` come first.
        id_ : str, optional

        Returns
        -------
        Batches
            Keep it as long as you want batches. Where the instance has an `on_response`, which is given them too, the
            subscribe does not end by itself: close it.
        """
        if id_ is not None:
            check_text("could not subscribe", "id_", id_)
        check_query("could not subscribe", query)
        name = id_ or f"subscribe-{uuid.uuid4().hex[:12]}"
        plan, export = self._descriptions.passing(name, "subscribe", query, snapshot=snapshot)
        batches = Batches(name, self._end_batches, self._driver.wake.set, self._check_thread)
        with self._changed:
            if name in self._batches and self._batches[name]() is None:
                self._forgotten.append(name)
                self._drop_forgotten()
            if name in self._ending:
                self._wait(lambda: name not in self._ending, None)
            if name in self._batches:
                msg = f"could not subscribe: found id {name!r} in use"
                raise InvalidUsageError(msg, hint="choose another id, or close the subscribe of this one")
            if self._on_response is None:
                self._batches[name] = weakref.ref(batches)
                # Takes no lock: it runs in any thread, between any two steps of it.
                weakref.finalize(batches, self._forgotten.append, name).atexit = False
            else:
                self._batches[name] = lambda: batches
        try:
            self.dataflow(
                name,
                plan,
                [export],
                imports=imports,
                as_of=as_of,
                up_to=up_to,
                interactive=True,
                functions=functions,
            )
        except BaseException:
            with self._changed:
                self._batches.pop(name, None)
            raise
        return batches

    def copy_to(
        self,
        query: str | Plan,
        folder: str | os.PathLike[str],
        /,
        *,
        imports: Mapping[str, str] | None = None,
        as_of: TimeLike | None = None,
        format: str = "parquet",
        timeout_s: float | None = None,
        functions: Mapping[str, Function] | None = None,
    ) -> int:
        """Copy what a query gives at a time into plain files, and return how many rows.

        Parameters
        ----------
        query : str or Plan
            As for `subscribe`.
        folder : path
            Empty, or not there yet.
        imports, as_of
            As for `dataflow`.
        format : {"parquet", "csv"}
        timeout_s : float, optional

        Raises
        ------
        TimelyError
            If it failed, by the error that it failed by; `OperatorError` if that is none of this package.
        WaitTimeoutError
            If it takes longer; it continues.
        """
        if not isinstance(folder, str | os.PathLike) or not str(folder):
            msg = f"could not copy: found folder {shown(folder)}"
            raise InvalidUsageError(msg, hint="name a folder that is empty, or not there yet")
        folder = str(folder)
        attempt = f"could not copy to {folder!r}"
        wait_s = seconds_of(attempt, "timeout_s", timeout_s, optional=True)
        check_query(attempt, query)
        name = f"copy-{uuid.uuid4().hex[:12]}"
        plan, export = self._descriptions.passing(name, "copy-to", query, to=folder, format=format)
        with self._asking(name):
            self.dataflow(name, plan, [export], imports=imports, as_of=as_of, interactive=True, functions=functions)
            if not self._wait(lambda: self._asked[name] is not None, wait_s):
                with self._changed:
                    self._left.add(name)
                self._driver.wake.set()
                msg = f"could not wait for a copy to {folder!r}: found no answer after {wait_s:g} seconds"
                raise WaitTimeoutError(msg, hint="wait longer")
            answer = self._asked[name]
        self.drop(name, missing_ok=True)
        assert isinstance(answer, CopyToResponse)
        if answer.outcome == "error":
            raise raised(str(answer.error), answer.cause)
        if answer.rows is None:
            msg = f"could not copy to {folder!r}: found it dropped"
            raise OperatorError(msg, hint="copy again")
        return answer.rows

    def drop(self, id_: str, /, *, missing_ok: bool = False) -> None:
        """Drop a collection; a dataflow ends with the last of its exports.

        Raises
        ------
        MissingError
            If there is none.
        InvalidUsageError
            If another dataflow imports it.
        """
        try:
            self.send(AllowCompaction(id_, Antichain.empty(self._state.domain_of(id_).arity)))
        except MissingError:
            if not missing_ok:
                raise

    def allow_compaction(self, id_: str, frontier: FrontierLike, /) -> Antichain:
        """Let an index forget what tells times before a frontier apart, and return what was taken.

        At most the newest time that can be answered is taken, and what was allowed before stays allowed. The empty
        frontier drops it.
        """
        given = self._state.domain_of(id_).parse_frontier(frontier)
        self.send(AllowCompaction(id_, given))
        with self._state.lock:
            return given if given.is_empty else self._state.instance.allowed(id_)

    def write_down(self) -> None:
        """Have all that was allowed to be compacted in the command log when this returns, rather than in a second."""
        self._driver.write_down()

    def configure(self, **values: object) -> None:
        """Change values of the configuration: see `UpdateConfiguration`."""
        self.send(UpdateConfiguration(values))

    def allow_writes(self) -> None:
        """Take over from the process that maintains the instance now; that one ends."""
        self._driver.allow_writes()

    # Answers -------------------------------------------------------------------------------------

    def peek(
        self,
        target: str | os.PathLike[str],
        /,
        *,
        as_of: TimeLike | None = None,
        timeout_s: float = 60.0,
        keys: KeysLike | None = None,
        **asked: object,
    ) -> pa.Table:
        """Return the rows that a collection has as of a time: an index, a log, or a relation of the introspection.

        Parameters
        ----------
        target : str or path
            Id of a collection, or the path of any log: it is one where no collection has this id.
        as_of : time, optional
            Waited for; the newest that is complete unless given.
        timeout_s : float
        keys : mapping or pyarrow.Table, optional
            ``{"k": [1, 2]}``, ``{("a", "b"): [(1, "x")]}``, or a table of the keys' columns.
        **asked
            `where`, `select`, `order_by`, `limit`, `offset`, `max_bytes`, `scan_limit`, `forgotten` as of
            `spark_timely.peek`.

        Raises
        ------
        InvalidOptionError
            If something else is asked.
        InvalidUsageError, SchemaMismatchError
            If the keys are none of the collection's columns, or what is asked is refused as by `spark_timely.peek`.
        MissingError
            If there is no such collection.
        TimelyError
            If the answer is an error of the library.
        OperatorError
            If it is another one.
        CanceledError, WaitTimeoutError
            If it was canceled; if there is no answer in time, and it is canceled then.
        """
        command, attempt = self._driver.peeks.command(target, as_of, keys, asked), f"could not peek {str(target)!r}"
        seconds_of(attempt, "timeout_s", timeout_s)
        id_ = command.id
        with self._asking(id_):
            self.send(command)
            if not self._wait(lambda: self._asked[id_] is not None, timeout_s):
                self.send(CancelPeek(id_))
                msg = f"{attempt}: found no answer after {timeout_s:g} seconds"
                waits = "" if command.collection is None else f": {self.why(command.collection)}"
                raise WaitTimeoutError(msg, hint=f"wait longer, or peek at an earlier time{waits}")
            answer = self._asked[id_]
        assert isinstance(answer, PeekResponse)
        if answer.outcome == "canceled":
            msg = f"{attempt}: found that it was canceled"
            raise CanceledError(msg, hint="peek again")
        if answer.outcome == "error":
            raise raised(str(answer.error), answer.cause if isinstance(answer.cause, Exception) else None)
        assert isinstance(answer.rows, pa.Table)
        return answer.rows

    def warnings_of(self, id_: str, /) -> tuple[str, ...]:
        """Return what was warned of when a collection was created by this process: imports that are not retained.

        Raises
        ------
        MissingError
            If there is none.
        """
        return self._driver.warnings_of(id_)

    def has(self, id_: str, /) -> bool:
        """Return whether there is a collection of an id."""
        with self._state.lock:
            return self._state.instance.has(id_)

    def schema_of(self, id_: str, /) -> pa.Schema:
        """Return the columns of a collection.

        Raises
        ------
        MissingError, LogMissingError
            If there is none, or it is not written yet.
        """
        return self._state.schema_of(id_)

    def settle(self, *, timeout_s: float = 30.0) -> None:
        """Wait until what is there at the start was looked at."""
        seconds_of(f"could not wait for the instance in {self.directory.path!r}", "timeout_s", timeout_s)
        self._wait(lambda: self._turns >= _SETTLED, timeout_s)

    def show(self, relation: str, /) -> pa.Table:
        """Return the rows of a relation of the introspection: see `spark_timely.compute.introspection.RELATIONS`."""
        with self._state.lock:
            return self._state.instance.introspection.table(relation)

    def frontier(self, id_: str, /) -> Antichain:
        """Return how far a collection is, as it was reported last; the minimum where nothing was."""
        with self._state.lock:
            reported = self._state.instance.collection(id_).reported
            return self._state.domain_of(id_).minimum_frontier if reported is None else reported

    def await_frontier(self, id_: str, time: TimeLike, /, *, timeout_s: float = 60.0) -> Antichain:
        """Wait until a time is complete in a collection, and return its frontier.

        Raises
        ------
        WaitTimeoutError
            If it is not in time; the error names what the collection waits for.
        """
        attempt = f"could not wait for {id_!r}"
        seconds_of(attempt, "timeout_s", timeout_s)
        wanted = self._state.domain_of(id_).parse_time(time)
        if not self._wait(lambda: not self.frontier(id_).less_equal(wanted), timeout_s):
            msg = f"{attempt}: found it at {self.frontier(id_)!r} after {timeout_s:g} seconds"
            raise WaitTimeoutError(msg, hint=self.why(id_))
        return self.frontier(id_)

    def may_write(self) -> bool:
        """Return whether this process is the one that maintains the instance, and has not ended."""
        return not self._ended and self._driver.may_write()

    def request_of(self, id_: str, /) -> str | None:
        """Return which request an export was made for; None if there is no such export, or none was."""
        export = self._state.exports().get(id_)
        found = None if export is None else details_of(export).get("request")
        return None if found is None else str(found)

    def description_of(self, id_: str, /) -> str | None:
        """Return what an export is, as text; None if there is none. An index has a folder that no other one has."""
        export = self._state.exports().get(id_)
        return None if export is None else json.dumps([export.kind, export.details])

    def configured(self, names: Iterable[str], /) -> dict[str, object]:
        """Return values of the configuration by name; None for what has none."""
        values = self._state.instance.configuration
        return {name: values.get(name) for name in names}

    # Folders -------------------------------------------------------------------------------------

    def folders(self) -> pa.Table:
        """Return what the folders of the instance are, one row each.

        Their state is ``collection``; ``passing`` (of what ends with the process), ``dropped``, ``asked`` or
        ``proven``, all of which are deleted; ``left``, which stays; or ``unknown``, which stays too: no command names
        it. The other columns are of the log in it.
        """
        with self._driver.opened():
            return pa.Table.from_pylist([asdict(each) for each in self._driver.folders.states()], FOLDERS)

    def unknown_folders(self) -> list[str]:
        """Return the names of the folders that are ``unknown``, without a look into them."""
        with self._driver.opened():
            return self._driver.folders.unknown()

    def remove(self, folder: str, /) -> None:
        """Delete a folder that no collection has, as `folders` names it, with all that is in it.

        It is gone some seconds after this returns. Nothing else deletes a folder that the instance does not know.

        Raises
        ------
        MissingError
            If there is none of that name.
        InvalidUsageError
            If a collection has it.
        """
        with self._driver.opened():
            self._driver.folders.remove(folder)

    def state_of_folder(self, folder: str, /) -> str | None:
        """Return the state of a folder, as `folders` has it; None if there is none of that name."""
        found = self.folders().select(["folder", "state"]).to_pylist()
        return next((str(each["state"]) for each in found if each["folder"] == folder), None)

    def why(self, id_: str, /) -> str:
        """Say what a collection waits for: from it to the first cause, one line each."""
        return why(self._driver.worker, id_)

    # The end -------------------------------------------------------------------------------------

    @property
    def error(self) -> Exception | None:
        """Why it ended by itself; None if it did not."""
        return self._driver.error

    def close(self) -> None:
        """End it; what is maintained continues with the next start. May be called again.

        A step, copy or peek that runs is waited for.
        """
        if threading.current_thread() is self._thread:
            msg = "could not close the instance: found a call of on_response, which it would wait for"
            raise InvalidUsageError(msg, hint="close it in another thread")
        self._ended = True
        self._driver.wake.set()
        self._thread.join()
        self._driver.close()
        with self._changed:
            for batches in self._batches.values():
                self._put(batches, END)
            self._batches.clear()
            self._changed.notify_all()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


def _export(id_: str, kind: Literal["index", "log"], request: str | None, **details: object) -> Export:
    """Return an export, with the request that asks for it."""
    return Export(id_, kind, json.dumps(details if request is None else details | {"request": request}))
