"""A handle on an instance: commands as methods, answers as values, and a thread that takes its turns.

Whoever follows an instance needs no Spark: it answers peeks and subscribes from what another process maintains.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
import time as monotonic
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from spark_timely.compute.command import (
    AllowCompaction,
    CancelPeek,
    Command,
    CreateDataflow,
    Dataflow,
    Export,
    Import,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from spark_timely.compute.drive.driver import Driver
from spark_timely.compute.drive.peeks import text_of_keys
from spark_timely.compute.drive.place import Place, details_of
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.drive.task import beginning_of, settled
from spark_timely.compute.drive.working import Working
from spark_timely.compute.plan import Plan, TaskNode, functions_of, imports_of, parse_plan, with_functions
from spark_timely.compute.response import (
    CopyToResponse,
    Dropped,
    PeekResponse,
    Response,
    SubscribeBatch,
)
from spark_timely.compute.sql import plan_of_sql
from spark_timely.continual.plan import Deletes, Newest
from spark_timely.errors import (
    CanceledError,
    InvalidUsageError,
    LogMissingError,
    MissingError,
    OperatorError,
    TimelyError,
    WaitTimeoutError,
    shown,
)
from spark_timely.log.log import Log
from spark_timely.log.store.storage import normal_path
from spark_timely.masking import masked_logger
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from types import TracebackType

    from spark_timely.compute.drive.plans import Function
    from spark_timely.time.domain import FrontierLike, TimeLike

__all__ = ["Batches", "Handle"]

_log = masked_logger("spark_timely.compute")

_END: Final = object()
# Between two looks at requests on a disk; one into a store is paid for.
_REQUESTS_S: Final = 0.25
_FAR_REQUESTS_S: Final = 1.0
# Batches of a subscribe that nobody has taken yet.
_MOST_WAITING: Final = 64
_MOST_WAITING_BYTES: Final = 64 << 20
# As many turns look at everything that was there at the start.
_SETTLED: Final = 2


class Batches:
    """The batches of a subscribe: an iterator of `SubscribeBatch`. Made by `Handle.subscribe`."""

    def __init__(self, handle: Handle, id_: str) -> None:
        self._handle, self.id = handle, id_
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
        if found is _END:
            self._ended = True
            return None
        if isinstance(found, Exception):
            self._ended = True
            raise found
        assert isinstance(found, SubscribeBatch)
        had_room = self.has_room
        self._count(found, -1)
        if not had_room and self.has_room:
            self._handle._driver.wake.set()
        if found.upper.is_empty:
            self.close()  # nothing comes any more
        if found.error is not None:
            raise OperatorError(found.error, hint="see the error, and the instance's configuration: max_result_bytes")
        return found

    def close(self) -> None:
        """End it. May be called again."""
        if not self._ended:
            self._ended = True
            self._handle._end_batches(self)

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

    def _put(self, found: object) -> None:
        if isinstance(found, SubscribeBatch):
            self._count(found, 1)
        self._queue.put(found)


class Handle:
    """A compute instance that this process runs, or follows.

    Parameters
    ----------
    directory : str
        Of the instance: a path or a cloud URL. Made if it is not there.
    working : Working
        How work is done.
    read_only : bool
        Whether to follow what another process maintains: nothing is written, and what is answered is as far as that
        one is. `allow_writes` takes over.
    moved : bool
        Whether the directory was meant to be moved: a copy is refused unless this says so.
    storage_options : mapping of str to str, optional
        Of the directory.
    options_of : mapping of str to mapping, optional
        Storage options of logs elsewhere, by path. They are never written into the command log.
    on_response : callable, optional
        Is called with each response, in order.
    """

    def __init__(
        self,
        directory: str,
        working: Working,
        *,
        read_only: bool = False,
        moved: bool = False,
        storage_options: Mapping[str, str] | None = None,
        options_of: Mapping[str, Mapping[str, str]] | None = None,
        on_response: Callable[[Response], object] | None = None,
    ) -> None:
        self.place = Place(str(directory), dict(storage_options or {}), dict(options_of or {}))
        self._functions = working.functions
        self._driver = Driver(self.place, working, read_only=read_only, moved=moved)
        self._driver.context.wants = self._has_room
        self._on_response = on_response
        self._changed = threading.Condition()
        self._answers: dict[str, PeekResponse] = {}
        self._asked: set[str] = set()
        # Copies that somebody waits for, with their answers, and those that nobody waits for any more.
        self._copied: dict[str, CopyToResponse | None] = {}
        self._left: set[str] = set()
        self._batches: dict[str, Batches] = {}
        self._ended = False
        self._requests = Requests(self.place)
        self._requests_at = -math.inf
        self._requests_failed = False
        self._turns = 0
        self._thread = threading.Thread(target=self._run, name="spark_timely-instance", daemon=True)
        self._thread.start()

    # Turns ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        driver = self._driver
        while not self._ended:
            try:
                busy, responses = driver.turn()
            except Exception as error:  # noqa: BLE001 - those who wait learn of it
                if not self._ended:
                    _log.error("the instance in %r has ended: %s", self.place.directory, error)
                self._tell_end(error)
                return
            if responses:
                self._take(responses)
            self._drop_left()
            if self._turns < _SETTLED:
                with self._changed:
                    self._turns += 1
                    self._changed.notify_all()
            self._take_requests()
            if not busy:
                driver.wake.wait(driver.next_look_s())
                driver.wake.clear()

    def _take_requests(self) -> None:
        """Do what other processes asked for; a few looks in a second."""
        rest = _REQUESTS_S if self._requests.local else _FAR_REQUESTS_S
        if self._driver.read_only or monotonic.monotonic() - self._requests_at < rest:
            return
        try:
            self._requests.take(self)
            self._requests_failed = False
        except Exception as error:  # noqa: BLE001 - they stay, and are taken at another look
            say = _log.debug if self._requests_failed else _log.warning
            say("requests in %r cannot be taken: %s", self.place.directory, error)
            self._requests_failed = True
        self._requests_at = monotonic.monotonic()  # after a look that took long, others come first

    def _drop_left(self) -> None:
        """Drop copies that ended after nobody waited any more."""
        with self._changed:
            ended = [name for name in self._left if self._copied.get(name) is not None]
            for name in ended:
                self._left.remove(name)
                del self._copied[name]
        for name in ended:
            try:
                self.drop(name, missing_ok=True)
            except TimelyError as error:
                _log.debug("copy %r is not dropped: %s", name, error)

    def _take(self, responses: Sequence[Response]) -> None:
        with self._changed:
            for response in responses:  # one turn per response
                match response:
                    case PeekResponse():
                        if response.id in self._asked:
                            self._answers[response.id] = response
                    case CopyToResponse():
                        if response.id in self._copied:
                            self._copied[response.id] = response
                    case SubscribeBatch(id_):
                        if id_ in self._batches:
                            self._batches[id_]._put(response)
                    case Dropped(id_):
                        if id_ in self._batches:
                            self._batches.pop(id_)._put(_END)
                if self._on_response is not None:
                    try:
                        self._on_response(response)
                    except Exception as error:  # noqa: BLE001 - whatever it is, the others are answered
                        _log.error("a response could not be handed out, the instance continues: %s", error)
            self._changed.notify_all()

    def _has_room(self, id_: str) -> bool:
        """Return whether whoever takes the batches of a subscribe would take another one."""
        batches = self._batches.get(id_)
        return batches is None or batches.has_room

    def _end_batches(self, batches: Batches) -> None:
        """Drop a subscribe whose batches nobody takes any more."""
        with self._changed:
            if self._batches.get(batches.id) is not batches:
                return
            del self._batches[batches.id]
        if self._ended or self._driver.error is not None:
            return  # it has ended with the instance
        try:
            self.drop(batches.id, missing_ok=True)
        except TimelyError:
            if not self._ended and self._driver.error is None:
                raise

    def _tell_end(self, error: Exception) -> None:
        with self._changed:
            for batches in self._batches.values():
                batches._put(error)
            self._batches.clear()
            self._changed.notify_all()

    def _wait(self, found: Callable[[], bool], timeout_s: float | None) -> bool:
        if threading.current_thread() is self._thread:
            msg = "could not wait for an answer: found a call of on_response, which answers wait for"
            raise InvalidUsageError(msg, hint="hand the response to another thread, and wait there")
        deadline = None if timeout_s is None else monotonic.monotonic() + timeout_s
        with self._changed:
            while not found():
                if self._driver.error is not None:
                    raise self._driver.error
                if self._ended:
                    msg = f"could not wait for the instance in {self.place.directory!r}: found it closed"
                    raise InvalidUsageError(msg, hint="open it again")
                left = None if deadline is None else deadline - monotonic.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(1.0 if left is None else min(left, 1.0))
        return True

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
        until: TimeLike | None = None,
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
        until : time, optional
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
        logs: dict[str, Log] = {}
        plan, reads = self._planned(name, query, dict(imports or {}), logs)
        return self._create(name, plan, reads, logs, exports, as_of, until, functions, interactive=interactive)

    def _create(
        self,
        name: str,
        plan: Plan,
        reads: Sequence[Import],
        logs: Mapping[str, Log],
        exports: Sequence[Export],
        as_of: TimeLike | None = None,
        until: TimeLike | None = None,
        functions: Mapping[str, Function] | None = None,
        *,
        interactive: bool = False,
    ) -> Dataflow:
        """Create a dataflow over logs that are open, by the names of its imports."""
        if not logs:
            msg = f"could not create dataflow {name!r}: found no imports"
            raise InvalidUsageError(msg, hint="name at least one collection in the query")
        domain = next(iter(logs.values())).domain
        times = {each.domain.types for each in logs.values()}
        if len(times) > 1:
            msg = f"could not create dataflow {name!r}: found imports with times of different types"
            raise InvalidUsageError(msg, hint="import logs with the same types of times")
        least = [min(each.domain.minimum[place] for each in logs.values()) for place in range(domain.arity)]
        domain = type(domain)(domain.types, tuple(least))
        begins = domain.minimum_frontier if as_of is None else Antichain.of(domain.parse_time(as_of))
        ends = Antichain.empty(domain.arity) if until is None else Antichain.of(domain.parse_time(until))
        names = self._named(name, plan, functions or {}, interactive=interactive)
        try:
            plan = with_functions(plan, names)
            if isinstance(plan.root, TaskNode):
                plan = Plan(settled(plan.root, logs, domain, unwritten=self._unwritten(reads, logs)))
            made = Dataflow(name, tuple(reads), plan.text, tuple(exports), begins, ends, domain, interactive)
            if isinstance(plan.root, TaskNode):
                if as_of is not None:
                    msg = f"could not create dataflow {name!r}: found as_of={shown(as_of)} beside a continual task"
                    raise InvalidUsageError(msg, hint="say it in the task: its as_of is its own")
                made = made.at(beginning_of(plan.root, logs, self._output_of(made), domain))
            elif as_of is None:
                made = self._driver.choose_as_of(made)
            self._driver.handle(CreateDataflow(made), *(Schedule(export.id) for export in made.exports))
        except BaseException:
            self._functions.forget(names.values())
            raise
        return made

    def _named(self, name: str, plan: Plan, functions: Mapping[str, Function], *, interactive: bool) -> dict[str, str]:
        """Keep the functions of Python that a plan calls, and return the names under which they are kept."""
        what, called = f"could not create dataflow {name!r}", functions_of(plan)
        if called and not interactive:
            msg = f"{what}: found Python function {called[0]!r}, which is not restartable"
            raise InvalidUsageError(msg, hint="create it as interactive, or say it in SQL")
        for each in called:
            if not callable(functions.get(each)):
                msg = f"{what}: found functions[{each!r}]={shown(functions.get(each))}, which the plan calls"
                raise InvalidUsageError(msg, hint=f"give a function of a pyarrow.Table: functions={{{each!r}: …}}")
        unused = sorted(set(functions) - set(called))
        if unused:
            msg = f"{what}: found function {unused[0]!r}, which the plan does not call"
            raise InvalidUsageError(msg, hint="leave it out, or name it in a node of op 'function'")
        return self._functions.add(functions)

    def _unwritten(self, reads: Sequence[Import], logs: Mapping[str, Log]) -> dict[str, Antichain]:
        """Return the as_of of collections of the instance in which nothing is written yet, by the import's name."""
        context, found = self._driver.context, {}
        for each in reads:  # one turn per import
            log = logs[each.name]
            if each.export is not None and log.kind == "collection" and log.frontier() == log.domain.minimum_frontier:
                with context.lock:
                    found[each.name] = context.instance.collection(each.export).as_of
        return found

    def _output_of(self, dataflow: Dataflow) -> Log | None:
        """Return the log of the one export of a continual task; None if it is not there yet."""
        path = self.place.path_of(dataflow.exports[0])
        try:
            return None if path is None else self._driver.context.opened(path)
        except LogMissingError:
            return None

    def _planned(
        self, name: str, query: str | Plan, given: Mapping[str, str], logs: dict[str, Log]
    ) -> tuple[Plan, tuple[Import, ...]]:
        """Return the plan of a query, and its imports; the logs of these are opened."""
        exports, relations = self._driver.facts.exports(), self._driver.facts.relations()

        def opened(word: str) -> Log:
            if word not in logs:
                if word in given:
                    path = given[word]
                elif word in exports and (found := self._driver.facts.path_of(word)) is not None:
                    path = found
                elif word in relations:
                    logs[word] = self._driver.open_relation(word)
                    return logs[word]
                else:
                    msg = f"could not create dataflow {name!r}: found nothing for {word!r}"
                    raise MissingError(
                        msg, hint=f"say what it stands for with imports=…; exports are {shown(sorted(exports))}"
                    )
                logs[word] = self._driver.context.opened(path)
            return logs[word]

        if isinstance(query, Plan):
            plan = query
        elif query.lstrip().startswith("{"):
            plan = parse_plan(query)
        else:
            named = [id_ for id_ in (*exports, *relations) if id_ in query]
            schemas = {word: opened(word).schema for word in (*given, *named)}
            plan = plan_of_sql(query, schemas)
        reads = []
        own = {self._driver.facts.path_of(id_): id_ for id_, each in exports.items() if each.kind == "index"}
        for word in imports_of(plan):  # one turn per import
            log = opened(word)
            if log.path in own:  # named by its path: nobody drops it as long as it is read
                reads.append(Import(word, export=own[log.path]))
            elif word in given:
                reads.append(Import(word, path=log.path, log_id=log.log_id))
            else:
                reads.append(Import(word, export=word))
        for word in logs.keys() - set(imports_of(plan)):
            del logs[word]
        return plan, tuple(reads)

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
        details: dict[str, object] = {"folder": self.place.new_folder(id_)}
        details["key"] = [key] if isinstance(key, str) else list(key)
        if request is not None:
            details["request"] = request
        return self.dataflow(id_, query, [Export(id_, "index", json.dumps(details))], imports=imports, as_of=as_of)

    def maintain(
        self,
        id_: str,
        query: str | Plan,
        into: str,
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
        into : str
            Path of the log.
        request : str, optional
            The request that asks for it.
        """
        details = {"path": str(into)} | ({} if request is None else {"request": request})
        export = Export(id_, "log", json.dumps(details))
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
            Of the output's log; it is in the directory of the instance unless given.
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
        logs: dict[str, Log] = {}
        reads = []
        shows: list[tuple[str, str]] = []
        for given, usual in ((inputs, "inserts"), (references or {}, "contents")):
            for alias, log in given.items():  # one turn per log
                if alias in logs:
                    msg = f"could not create dataflow {id_!r}: found {alias!r} as an input and a reference"
                    raise InvalidUsageError(msg, hint="give each a name of its own")
                odd = "deletes" if isinstance(log, Deletes) else "newest" if isinstance(log, Newest) else usual
                reads.append(self._read(id_, alias, log.log if isinstance(log, Deletes | Newest) else log, logs))
                shows.append((alias, odd))
        if not logs:
            msg = f"could not create dataflow {id_!r}: found no inputs"
            raise InvalidUsageError(msg, hint="name at least one: the task writes where an input has rows")
        domain = next(iter(logs.values())).domain
        begins: Any = as_of if as_of in ("earliest", "latest") else domain.time_to_json(domain.parse_time(as_of))
        met = [(name, *((each, "fail") if isinstance(each, str) else each)) for name, each in (expect or {}).items()]
        node = TaskNode(
            sql, tuple(shows), begins, snapshot, forgotten, tuple(met), tuple(functions), replaces,
        )  # fmt: skip
        details = {"folder": self.place.new_folder(id_)} if into is None else {"path": normal_path(into)}
        details |= {} if request is None else {"request": request}
        export = Export(id_, "log", json.dumps(details))
        return self._create(id_, Plan(node), reads, logs, [export])

    def _read(self, id_: str, alias: str, log: object, logs: dict[str, Log]) -> Import:
        """Return an import of an export, given by its id or its path, or of any other log; open its log."""
        facts, path = self._driver.facts, log.path if isinstance(log, Log) else log
        exports = facts.exports()
        if not isinstance(path, str | os.PathLike) or not str(path):
            msg = f"could not create dataflow {id_!r}: found {alias!r}={shown(path)}"
            raise InvalidUsageError(msg, hint="give the id of an export of the instance, or the path of a log")
        own = {facts.path_of(each): each for each in exports}
        export = path if path in exports else own.get(normal_path(path))
        if export is None:
            logs[alias] = self._driver.context.opened(normal_path(path))
            return Import(alias, path=logs[alias].path, log_id=logs[alias].log_id)
        found = facts.path_of(str(export))
        if found is None:
            msg = f"could not create dataflow {id_!r}: found that export {export!r}, its {alias!r}, keeps no rows"
            raise InvalidUsageError(msg, hint="import an index, or a log")
        logs[alias] = self._driver.context.opened(found)
        return Import(alias, export=str(export))

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
        """Subscribe to what a query gives; ends with this process.

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
        """
        name = id_ or f"subscribe-{uuid.uuid4().hex[:12]}"
        details: dict[str, object] = {"snapshot": snapshot}
        plan = self._whole(query)
        if not isinstance(plan, Plan) or plan.root.op != "import":
            details["folder"] = self.place.new_folder(name)
        batches = Batches(self, name)
        with self._changed:
            if name in self._batches:
                msg = f"could not subscribe: found id {name!r} in use"
                raise InvalidUsageError(msg, hint="choose another id, or close the subscribe of this one")
            self._batches[name] = batches
        try:
            self.dataflow(
                name,
                plan,
                [Export(name, "subscribe", json.dumps(details))],
                imports=imports,
                as_of=as_of,
                until=up_to,
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
        folder: str,
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
        folder : str
            Empty, or not there yet.
        imports, as_of
            As for `dataflow`.
        format : {"parquet", "csv"}
        timeout_s : float, optional

        Raises
        ------
        OperatorError
            If it failed.
        WaitTimeoutError
            If it takes longer; it continues.
        """
        name = f"copy-{uuid.uuid4().hex[:12]}"
        details: dict[str, object] = {"to": str(folder), "format": format}
        plan = self._whole(query)
        if not isinstance(plan, Plan) or plan.root.op != "import":
            details["folder"] = self.place.new_folder(name)
        export = Export(name, "copy-to", json.dumps(details))
        with self._changed:
            self._copied[name] = None
        try:
            self.dataflow(name, plan, [export], imports=imports, as_of=as_of, interactive=True, functions=functions)
            if not self._wait(lambda: self._copied[name] is not None, timeout_s):
                msg = f"could not wait for a copy to {folder!r}: found no answer after {timeout_s:g} seconds"
                raise WaitTimeoutError(msg, hint="wait longer")
            answer = self._copied[name]
        except WaitTimeoutError:
            with self._changed:
                self._left.add(name)
            self._driver.wake.set()
            raise
        except BaseException:
            with self._changed:
                del self._copied[name]
            raise
        with self._changed:
            del self._copied[name]
        self.drop(name, missing_ok=True)
        if answer is None or answer.outcome != "rows" or answer.rows is None:
            msg = f"could not copy to {folder!r}: found it dropped" if answer is None else str(answer.error)
            raise OperatorError(msg, hint="see the error, and choose an empty folder")
        return answer.rows

    def _whole(self, query: str | Plan) -> str | Plan:
        """Return what the id of an export stands for: all of it."""
        facts = self._driver.facts
        if isinstance(query, str) and (query in facts.exports() or query in facts.relations()):
            return parse_plan(json.dumps({"op": "import", "name": query}))
        if isinstance(query, str) and query.lstrip().startswith("{"):
            return parse_plan(query)
        return query

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
            self.send(AllowCompaction(id_, Antichain.empty(self._driver.facts.domain_of(id_).arity)))
        except MissingError:
            if not missing_ok:
                raise

    def allow_compaction(self, id_: str, frontier: FrontierLike, /) -> None:
        """Let an index forget what tells times before a frontier apart."""
        self.send(AllowCompaction(id_, self._driver.facts.domain_of(id_).parse_frontier(frontier)))

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
        target: str,
        /,
        *,
        at: TimeLike | None = None,
        timeout_s: float = 60.0,
        keys: Mapping[Any, Sequence[Any]] | pa.Table | None = None,
        **asked: object,
    ) -> pa.Table:
        """Return the rows that a collection has at a time: an index, a log, or a relation of the introspection.

        Parameters
        ----------
        target : str
            Id of a collection, or the path of any log.
        at : time, optional
            Waited for; the newest that is complete unless given.
        timeout_s : float
        keys : mapping or pyarrow.Table, optional
            ``{"k": [1, 2]}``, ``{("a", "b"): [(1, "x")]}``, or a table of the keys' columns.
        **asked
            `where`, `select`, `order_by`, `limit`, `offset` as of `spark_timely.peek`.

        Raises
        ------
        MissingError
            If there is no such collection.
        OperatorError
            If the answer is an error.
        CanceledError, WaitTimeoutError
            If it was canceled; if there is no answer in time, and it is canceled then.
        """
        if not self._driver.facts.has(target) and "/" not in target:
            msg = f"could not peek {target!r}: found no collection of this id"
            raise MissingError(msg, hint=f"choose among {shown(sorted(self._driver.facts.exports()))}, or give a path")
        known = {name: value for name, value in asked.items() if value is not None}
        if keys is not None:
            known["keys"] = text_of_keys(_table_of(keys))
        time = self._driver.facts.time_of(target, at)
        id_ = uuid.uuid4().hex
        collection = self._driver.facts.has(target)
        command = Peek(
            id_, time, collection=target if collection else None, path=None if collection else target,
            plan=json.dumps(known),
        )  # fmt: skip
        with self._changed:
            self._asked.add(id_)
        try:
            self.send(command)
            if not self._wait(lambda: id_ in self._answers, timeout_s):
                self.send(CancelPeek(id_))
                msg = f"could not peek {target!r}: found no answer after {timeout_s:g} seconds"
                raise WaitTimeoutError(msg, hint="wait longer, or peek at an earlier time")
            answer = self._answers.pop(id_)
        finally:
            with self._changed:
                self._asked.discard(id_)
                self._answers.pop(id_, None)
        if answer.outcome == "canceled":
            msg = f"could not peek {target!r}: found that it was canceled"
            raise CanceledError(msg, hint="peek again")
        if answer.outcome == "error" or not isinstance(answer.rows, pa.Table):
            raise OperatorError(str(answer.error), hint="see the error")
        return answer.rows

    def has(self, id_: str, /) -> bool:
        """Return whether there is a collection of an id."""
        return self._driver.facts.has(id_)

    def schema_of(self, id_: str, /) -> pa.Schema:
        """Return the columns of a collection.

        Raises
        ------
        MissingError, LogMissingError
            If there is none, or it is not written yet.
        """
        return self._driver.facts.schema_of(id_)

    def settle(self, *, timeout_s: float = 30.0) -> None:
        """Wait until what is there at the start was looked at."""
        self._wait(lambda: self._turns >= _SETTLED, timeout_s)

    def show(self, relation: str, /) -> pa.Table:
        """Return the rows of a relation of the introspection: see `spark_timely.compute.introspection.RELATIONS`."""
        return self._driver.facts.shown(relation)

    def frontier(self, id_: str, /) -> Antichain:
        """Return how far a collection is, as it was reported last; the minimum where nothing was."""
        return self._driver.facts.frontier(id_)

    def await_frontier(self, id_: str, time: TimeLike, /, *, timeout_s: float = 60.0) -> Antichain:
        """Wait until a time is complete in a collection, and return its frontier.

        Raises
        ------
        WaitTimeoutError
            If it is not in time; the error names what the collection waits for.
        """
        wanted = self._driver.facts.domain_of(id_).parse_time(time)
        if not self._wait(lambda: not self.frontier(id_).less_equal(wanted), timeout_s):
            msg = f"could not wait for {id_!r}: found it at {self.frontier(id_)!r} after {timeout_s:g} seconds"
            raise WaitTimeoutError(msg, hint=self.why(id_))
        return self.frontier(id_)

    def may_write(self) -> bool:
        """Return whether this process is the one that maintains the instance, and has not ended."""
        return not self._ended and self._driver.may_write()

    def request_of(self, id_: str, /) -> str | None:
        """Return which request an export was made for; None if there is no such export, or none was."""
        export = self._driver.facts.exports().get(id_)
        found = None if export is None else details_of(export).get("request")
        return None if found is None else str(found)

    def description_of(self, id_: str, /) -> str | None:
        """Return what an export is, as text; None if there is none. An index has a folder that no other one has."""
        export = self._driver.facts.exports().get(id_)
        return None if export is None else json.dumps([export.kind, export.details])

    def configured(self, names: Iterable[str], /) -> dict[str, object]:
        """Return values of the configuration by name; None for what has none."""
        values = self._driver.instance.configuration
        return {name: values.get(name) for name in names}

    def why(self, id_: str, /) -> str:
        """Say what a collection waits for: from it to the first cause, one line each."""
        return self._driver.facts.why(id_)

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
                batches._put(_END)
            self._batches.clear()
            self._changed.notify_all()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


def _table_of(keys: Mapping[Any, Sequence[Any]] | pa.Table) -> pa.Table:
    if isinstance(keys, pa.Table):
        return keys
    try:
        if any(isinstance(name, tuple) for name in keys):
            ((names, values),) = keys.items()
            return pa.table(dict(zip(names, map(pa.array, zip(*values, strict=True)), strict=True)))
        return pa.table({name: pa.array(list(values)) for name, values in keys.items()})
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        msg = f"could not peek: found keys={shown(keys)}"
        raise InvalidUsageError(msg, hint="give {'column': [value, …]}, or a pyarrow.Table") from error
