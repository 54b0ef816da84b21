"""What drives an instance: it keeps the command log, runs the dataflows, answers peeks, and states what it sees.

The instance itself is `spark_timely.compute.instance`, and decides; this does. Whoever has a session of Spark hands
over how tasks are run and copies made. Steps run in threads, one per dataflow at a time; all else runs in turns, under
one lock, each of which looks, begins what is due, and hands out responses.

Invariants
----------
1. A command that lasts is in the command log before it is handled. That a collection may be compacted is written within
   a second; what was not is allowed once more by whoever said it.
2. Nothing is written, and nothing reported, before all outputs that are there have the fence of this start.
3. The command log's holder is looked at before each turn: a start that was replaced ends, and says by whom.
4. An upper that is stated was read from the output's log.
5. What fails for one dataflow, peek or subscribe ends nothing else. Storage that cannot be reached for a moment ends
   nothing at all: the turn is taken again.
6. What this process has of its own, its subscribes and peeks, continues where it was, whatever the command log brings:
   a follower takes up changes one by one, and taking over is no new session.
"""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time as monotonic
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_timely.answers.finishing import row_sizes
from spark_timely.answers.peek import peek
from spark_timely.answers.subscribe import Subscription, subscribe
from spark_timely.compute.as_of import DataflowFacts, ExportFacts, ImportFacts, choose_as_of, stepped_back
from spark_timely.compute.command import (
    AllowCompaction,
    AllowWrites,
    Command,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    Dataflow,
    Export,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
    parse_command,
)
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.hosted import Hosted, Surroundings
from spark_timely.compute.drive.place import Place, check_described, details_of
from spark_timely.compute.drive.working import Working
from spark_timely.compute.history import reduced, rows_of
from spark_timely.compute.instance import Instance, PendingPeek, Running
from spark_timely.compute.introspection import RELATIONS
from spark_timely.compute.observation import (
    AnswerLatency,
    ArrangementSizes,
    CopyToDone,
    ErrorCount,
    ImportUpper,
    Operators,
    PeekAnswer,
    SubscribeProgress,
    Upper,
)
from spark_timely.compute.response import Response
from spark_timely.dataflow.engine.outputs import pause_s
from spark_timely.errors import (
    DataLossError,
    InvalidOptionError,
    InvalidUsageError,
    LogDamagedError,
    LogMissingError,
    MissingError,
    NotBeyondError,
    OwnershipError,
    StorageError,
    TimelyError,
    WaitTimeoutError,
    described,
    shown,
)
from spark_timely.log.log import Log, MemoryLog, keep_log, open_log
from spark_timely.log.store.cloud import open_storage
from spark_timely.masking import masked_logger
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.time.domain import TimeDomain, TimeLike

__all__ = ["Driver", "keys_of_text", "text_of_keys"]

_log = masked_logger("spark_timely.compute")

# Between two looks at logs on a disk, where nothing happens; a look at those in a store is a request.
_POLL_S: Final = 0.01
_FAR_POLL_S: Final = 1.0
# Compactions of logs, and of the command log.
_UPKEEP_S: Final = 1.0
_ANSWERERS: Final = 4
# More than hydrate at once unless somebody says otherwise: what is small does not wait for what is large.
_STEPS_AT_ONCE: Final = 8
# How long what was dropped stays, for those who began to read it.
_GONE_S: Final = 60.0


class _Watched:
    """A log that somebody waits for news of."""

    def __init__(self, log: Log, now: Callable[[], float]) -> None:
        self.log, self._now, self._looked_at = log, now, now()
        self._failed = False

    def has_news(self) -> bool:
        """Return whether there may be news; what is far, or cannot be looked at, is asked once a second."""
        if self._failed or not self.log.storage.local:
            if self._now() - self._looked_at < _FAR_POLL_S:
                return False
        elif not self.log.has_news():
            return False
        self._looked_at = self._now()
        before = self.log.version
        failed, self._failed = self._failed, True
        self.log.refresh()
        self._failed = False
        return failed or self.log.version != before


class Driver:
    """Drives one instance.

    Parameters
    ----------
    place : Place
    working : Working
    read_only : bool
        Whether it only follows: it answers from what another start writes, until it takes over (`allow_writes`).
    moved : bool
        Whether the directory was meant to be moved to where it is.
    create : bool
        Whether to make the instance where there is none.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(
        self,
        place: Place,
        working: Working,
        *,
        read_only: bool = False,
        moved: bool = False,
        create: bool = True,
        now: Callable[[], float] = monotonic.monotonic,
    ) -> None:
        self.place, self._working, self._now = place, working, now
        self._lock = threading.RLock()
        self._commands = CommandLog.at(
            place.commands, storage_options=place.storage_options or None, create=create and not read_only
        )
        self._follows, self._moved = read_only, moved
        self.owner = uuid.uuid4().hex
        self.instance = Instance()
        self._around = Surroundings(place, None, working.files_of, working.retain)
        self._hosted: dict[int, Hosted] = {}
        # What was opened to check a dataflow that is being created.
        self._checked: Hosted | None = None
        self._broken: dict[int, tuple[BaseException, int, float]] = {}
        self._dirty: dict[int, None] = {}  # in the order in which they came
        self._due: dict[int, float] = {}
        self._running: tuple[Running, ...] = ()
        self._running_at = -1
        self._subscribes = False
        self._busy: dict[int, Future[bool]] = {}
        self._told_errors: dict[int, str] = {}
        self._watched: dict[str, _Watched] = {}
        self._readers: dict[str, set[int]] = {}
        self._peeks: dict[str, tuple[Future[None], float]] = {}
        self._asked_paths: set[str] = set()
        self._tried: dict[str, object] = {}
        self._paths: dict[str, str | None] = {}
        # By id, with the run of the dataflow.
        self._subscriptions: dict[str, tuple[int, Subscription]] = {}
        self._copies: dict[str, tuple[int, Future[int]]] = {}
        self._gone: deque[tuple[float, str]] = deque()
        self._compacted: dict[str, Antichain] = {}
        self._seen = -1
        self._store_due = False
        self._upkeep_at = now()
        # Failures in a row: of steps by dataflow, of subscribes by id with when to try again, of the command log.
        self._steps_failed: dict[int, int] = {}
        self._resting: dict[str, tuple[int, float]] = {}
        self._unreachable = 0
        self._again_at = now()
        self._followed_at = now()
        self._workers = ThreadPoolExecutor(32, thread_name_prefix="spark_timely-step")
        self._answerers = ThreadPoolExecutor(_ANSWERERS, thread_name_prefix="spark_timely-answer")
        self.wake = threading.Event()
        self.error: Exception | None = None
        self._ended = False
        self._begin()

    # Starting ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the command log over, and do what it says; or follow it."""
        if not self._follows:
            self._take_over()
        rows = self._commands.rows()
        # Reduced: of an id that was dropped and given again, only what is there now.
        self._begin_session(list(reduced(parse_command(text) for _, text in rows)))
        if not self._follows:
            self._store()
            self._sweep()

    def _sweep(self) -> None:
        """Have folders deleted that no command names: of what was dropped, or never got its command."""
        place = self.place.collections
        found = open_storage(place, dict(self.place.storage_options) or None).folders()
        # Looked for before this: what a newer start makes is not among them.
        if not self._commands.is_mine():
            return
        used = {self.place.path_of(each) for each in self._live_exports().values()}
        for folder in found:  # one turn per folder
            if f"{place}/{folder}" not in used:
                self._gone.append((self._now() + _GONE_S, f"{place}/{folder}"))

    def _take_over(self) -> None:
        above = 0
        for export in self._exports_of([parse_command(text) for _, text in self._commands.rows()]).values():
            above = max(above, self._epoch_of(export))
        fence = self._commands.take_over(above=above, moved=self._moved)
        self._around = replace(self._around, fence=fence)
        self._follows = False

    def _epoch_of(self, export: Export) -> int:
        """Return the epoch that an output names; 0 if there is none."""
        path = self.place.path_of(export)
        if path is None:
            return 0
        try:
            log = open_log(path, storage_options=self.place.options(path) or None)
        except LogMissingError:
            return 0
        state = log.stream("main")
        note = None if state is None else state.note.output
        mine = note is not None and note.fence is not None and note.fence.instance == self._commands.instance
        return note.fence.epoch if mine and note is not None and note.fence is not None else 0

    @staticmethod
    def _exports_of(commands: Iterable[Command]) -> dict[str, Export]:
        return {
            export.id: export
            for command in commands
            if isinstance(command, CreateDataflow)
            for export in command.dataflow.exports
        }

    def _begin_session(self, commands: list[Command]) -> None:
        """Hand the instance the commands of a session: those that last, and what this process has of its own."""
        found = [each for each in commands if not isinstance(each, CreateTimely | InitializationComplete)]
        created = next((each for each in found if isinstance(each, CreateInstance)), CreateInstance())
        epoch = max(self.instance.epoch + 1, 0 if self._around.fence is None else self._around.fence.epoch)
        session: list[Command] = [CreateTimely(epoch, self.owner), created]
        chosen = self._chosen([each.dataflow for each in found if isinstance(each, CreateDataflow)])
        for command in found:  # one turn per command
            if isinstance(command, CreateDataflow):
                session.append(CreateDataflow(chosen[command.dataflow.export_ids]))
            elif not isinstance(command, CreateInstance | AllowWrites):
                session.append(command)
        session.append(InitializationComplete())
        if not self._follows:
            session.append(AllowWrites())
        for told in session:
            self.instance.handle(told)

    def _chosen(self, dataflows: list[Dataflow]) -> dict[tuple[str, ...], Dataflow]:
        """Return dataflows with the as_of from which they are right after a restart.

        What was written is there and continues, so nothing is gained by a later one: it is what the dataflow was
        allowed to compact to, but before its uppers and those of whatever reads it, and not before that of what it
        reads itself. One that has not written anything begins as a new one does.
        """
        exports = {each.id: each for dataflow in dataflows for each in dataflow.exports}
        made_by = {id_: dataflow for dataflow in dataflows for id_ in dataflow.export_ids}
        order = [
            made_by[id_]
            for id_ in TopologicalSorter(
                {id_: {each for each in dataflow.own_imports if each in exports} for id_, dataflow in made_by.items()}
            ).static_order()
        ]
        order = list(dict.fromkeys(order))
        uppers = {each: self._uppers_of(each) for each in order}
        highest: dict[Dataflow, Antichain] = {}
        for dataflow in reversed(order):  # one turn per dataflow, those that read others first
            bound = Antichain.empty(dataflow.domain.arity)
            for upper in uppers[dataflow]:
                bound = bound.meet(stepped_back(upper, dataflow.domain))
            for reader in order:
                if reader in highest and any(made_by[each] is dataflow for each in reader.own_imports):
                    bound = bound.meet(highest[reader])
            highest[dataflow] = bound
        found: dict[tuple[str, ...], Dataflow] = {}
        for dataflow in order:  # one turn per dataflow, those that are read first
            as_of = dataflow.as_of if highest[dataflow].is_empty else dataflow.as_of.meet(highest[dataflow])
            for each in dataflow.own_imports:
                as_of = as_of.join(found[made_by[each].export_ids].as_of)
            if not uppers[dataflow]:
                as_of = self._begun_at(dataflow.at(as_of), exports)
            found[dataflow.export_ids] = dataflow.at(as_of)
        return found

    def _uppers_of(self, dataflow: Dataflow) -> list[Antichain]:
        """Return how far the outputs are that have been written."""
        found = []
        for export in dataflow.exports:  # one turn per export
            path = self.place.path_of(export)
            if path is None:
                continue
            try:
                upper = self._opened(path).frontier()
            except TimelyError:  # it is said by the dataflow, when it is to run
                continue
            if upper != dataflow.domain.minimum_frontier:
                found.append(upper)
        return found

    def _begun_at(self, dataflow: Dataflow, exports: Mapping[str, Export]) -> Antichain:
        """Return from when on a dataflow can begin that has not: as it says, or where its imports begin by now."""
        as_of = dataflow.as_of
        for each in dataflow.imports:  # one turn per import
            try:
                log = self._opened(self.place.source_of(each, exports))
            except TimelyError:
                continue
            if log.domain.arity == as_of.arity:
                as_of = as_of.join(log.since())
        return as_of

    def _facts_of(self, dataflow: Dataflow) -> DataflowFacts | None:
        """Return what the choice of an as_of depends on; None where a log cannot be read."""
        exports = {each.id: each for each in dataflow.exports} | self._live_exports()
        imports, outputs = [], []
        try:
            for each in dataflow.imports:  # one turn per import
                path = self.place.source_of(each, exports)
                try:
                    log = self._opened(path)
                    since, upper = log.since(), log.frontier()
                    written = upper != log.domain.minimum_frontier
                except LogMissingError:
                    if each.export is None:
                        raise
                    since = upper = dataflow.domain.minimum_frontier
                    written = False
                if each.export is not None and self.instance.has(each.export) and exports[each.export].kind == "index":
                    # It is no promise that what may be forgotten was not forgotten yet.
                    since = since.join(self.instance.allowed(each.export))
                imports.append(ImportFacts(each.name, since, upper, None if written else each.export))
            for export in dataflow.exports:  # one turn per export
                path_of = self.place.path_of(export)
                upper_of: Antichain | None = None
                if path_of is not None:
                    try:
                        upper_of = self._opened(path_of).frontier()
                    except LogMissingError:
                        upper_of = None
                outputs.append(ExportFacts(export.id, export.kind, upper_of))
        except TimelyError as error:
            _log.warning("the as_of of dataflow %r cannot be chosen: %s", dataflow.name, error)
            return None
        return DataflowFacts(_key(dataflow), tuple(imports), tuple(outputs), dataflow.domain)

    def opened(self, path: str) -> Log:
        """Return a log, opened or as it is now: a handle that the calling thread keeps."""
        return self._opened(path)

    def _opened(self, path: str) -> Log:
        return keep_log(path, storage_options=self.place.options(path) or None)

    def _live_exports(self) -> dict[str, Export]:
        return {each.id: each for running in self._all_runs() for each in running.dataflow.exports}

    def _all_runs(self) -> tuple[Running, ...]:
        return (*self.instance.running(), *self.instance.suspended())

    # Looking -------------------------------------------------------------------------------------

    def exports(self) -> dict[str, Export]:
        """Return the exports of all dataflows that are there, by id."""
        with self._lock:
            return self._live_exports()

    def has(self, id_: str) -> bool:
        """Return whether there is a collection of an id."""
        with self._lock:
            return self.instance.has(id_)

    def path_of(self, id_: str) -> str | None:
        """Return the path of the log of an export; None if it keeps no rows."""
        with self._lock:
            export = self._live_exports().get(id_)
            return None if export is None else self.place.path_of(export)

    def frontier(self, id_: str) -> Antichain:
        """Return how far a collection is, as it was reported last; the minimum where nothing was."""
        with self._lock:
            reported = self.instance.collection(id_).reported
            return self.domain_of(id_).minimum_frontier if reported is None else reported

    def try_again(self) -> None:
        """Try at once what failed and waits for its next try: the reason may be gone."""
        with self._lock:
            now = self._now()
            self._broken = {number: (error, tries, now) for number, (error, tries, _) in self._broken.items()}
            self._resting.clear()
            self.wake.set()

    def may_write(self) -> bool:
        """Return whether this start is open, and the one that writes."""
        with self._lock:
            return not self._ended and self.error is None and not self._follows and self._commands.is_mine()

    def schema_of(self, id_: str) -> pa.Schema:
        """Return the columns of a collection that keeps rows."""
        with self._lock:
            self.instance.collection(id_)
            if id_ in self._relations():
                return RELATIONS[self._relations()[id_]]
            path = self.place.path_of(self._live_exports()[id_])
            if path is None:
                msg = f"could not tell the columns of {id_!r}: found that it keeps no rows"
                raise MissingError(msg, hint="ask for an index, or a log")
            return self._opened(path).schema

    def domain_of(self, id_: str) -> TimeDomain:
        """Return what times a collection has.

        Raises
        ------
        MissingError
            If there is none.
        """
        with self._lock:
            self.instance.collection(id_)
            for running in self._all_runs():
                if id_ in running.dataflow.export_ids:
                    return running.dataflow.domain
            return self._created().domain

    def time_of(self, target: str, at: TimeLike | None) -> tuple[int, ...]:
        """Return the time of a peek: as given, or the newest that is complete.

        Raises
        ------
        NotBeyondError
            If none is given, and none is complete.
        """
        with self._lock:
            if not self.instance.has(target):
                log = self._opened(target)
                domain, upper = log.domain, log.frontier()
            elif target in self._relations():
                return self._created().domain.minimum
            else:
                there = self.instance.collection(target)
                domain = self.domain_of(target)
                upper = domain.minimum_frontier if there.upper is None else there.upper
        if at is not None:
            return domain.parse_time(at)
        if upper.is_empty:
            return tuple(kind.hi for kind in domain.types)
        newest = upper.elements[0][0] - 1
        if domain.arity > 1 or newest < domain.minimum[0]:
            msg = f"could not peek {target!r}: found no time that is complete, upper={domain.render_frontier(upper)}"
            raise NotBeyondError(msg, hint="give at=… to wait for it", time=domain.minimum, frontier=upper.to_json())
        return (newest,)

    def shown(self, relation: str) -> pa.Table:
        """Return the rows of a relation of the introspection."""
        with self._lock:
            return self.instance.introspection.table(relation)

    def why(self, id_: str) -> str:
        """Say what a collection waits for, from it to the first cause."""
        with self._lock:
            lines: list[str] = []
            self._why(id_, lines, set())
            return "\n".join(lines)

    def _why(self, id_: str, lines: list[str], seen: set[str]) -> None:
        """Add the lines of a collection, and of the import that is behind."""
        if id_ in seen:
            return
        seen.add(id_)
        view = self.instance.collection(id_)
        domain = self.domain_of(id_)
        upper = domain.minimum_frontier if view.upper is None else view.upper
        lines.append(f"{id_}: upper={domain.render_frontier(upper)}, as_of={domain.render_frontier(view.as_of)}")
        text = self._told_errors.get(view.run)
        if text:
            lines.append(f"{id_}: it has failed: {text}")
            return
        running = self.instance.run(view.run)
        if running is None:
            return
        if not running.started:
            lines.append(f"{id_}: it waits to be scheduled, or for its turn to hydrate")
            return
        hosted = self._hosted.get(view.run)
        if hosted is None:
            lines.append(f"{id_}: it is about to begin")
            return
        imports = hosted.upper_of_imports
        # Before its as_of is complete it gives nothing.
        begun = upper.join(view.as_of)
        behind = [(name, frontier) for name, frontier in imports.items() if frontier.less_equal_frontier(begun)]
        if not behind:
            lines.append(f"{id_}: it has work to do")
        for name, frontier in behind:  # one turn per import
            source = next(each for each in hosted.dataflow.imports if each.name == name)
            at = domain.render_frontier(frontier)
            if source.export is not None:
                lines.append(f"{id_}: import {name!r} is at {at}")
                self._why(source.export, lines, seen)
            else:
                lines.append(f"{id_}: import {name!r} is at {at}: nothing more is complete in log {source.path!r}")

    def _created(self) -> CreateInstance:
        return next(
            (each for each in self.instance.history.commands if isinstance(each, CreateInstance)), CreateInstance()
        )

    # Commands ------------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """Whether it only follows what another start writes."""
        return self._follows

    def choose_as_of(self, dataflow: Dataflow) -> Dataflow:
        """Return a dataflow that is to be created, with the latest as_of at which it can answer at once.

        Raises
        ------
        SinceViolationError
            If an import has forgotten what is needed.
        LogMissingError
            If one is not there.
        """
        with self._lock:
            exports = self._live_exports()
            for each in dataflow.imports:  # what is not there is said by its own error
                if each.path is not None:
                    self._opened(self.place.source_of(each, exports))
            facts = self._facts_of(dataflow)
            if facts is None:
                msg = f"could not create dataflow {dataflow.name!r}: found an import that cannot be read"
                raise InvalidUsageError(msg, hint="the program's log says why")
            unwritten = {
                id_: running.dataflow.as_of for running in self._all_runs() for id_ in running.dataflow.export_ids
            }
            return dataflow.at(choose_as_of(facts, unwritten=unwritten).as_of)

    def handle(self, command: Command, *more: Schedule) -> None:
        """Take a command: write it into the command log if it lasts, then do it.

        Parameters
        ----------
        command : Command
        *more : Schedule
            Of the exports of a dataflow that is created: written in the same commit, so that none waits for ever.

        Raises
        ------
        TimelyError
            If it is refused, or cannot be written. Then nothing was changed.
        """
        with self._lock:
            self._check_open()
            self.instance.check(command)
            if isinstance(command, CreateTimely | CreateInstance | InitializationComplete | AllowWrites):
                msg = f"could not take a command: found {type(command).__name__}, which the instance says by itself"
                raise InvalidUsageError(msg, hint="open the instance again, or call allow_writes")
            checked = self._check_dataflow(command.dataflow) if isinstance(command, CreateDataflow) else None
            if isinstance(command, UpdateConfiguration):
                _check_configuration(command.values)
            history, exports = self.instance.history, self._live_exports() if isinstance(command, Peek) else {}
            lasts = history.lasts(command)
            if lasts and self._follows:
                msg = f"could not take a command: found {type(command).__name__} in an instance that only follows"
                raise OwnershipError(msg, hint="send it to the instance that writes, or allow writes here")
            compacts = isinstance(command, AllowCompaction) and not command.frontier.is_empty
            if lasts and not compacts:
                self._commands.store(rows_of((*history.lasting(), command, *more)))
            for each in (command, *more):  # one turn per command
                self.instance.handle(each)
            if isinstance(command, Peek) and command.collection in exports:
                # Known from now on: it is answered also where the collection is dropped meanwhile.
                self._paths[command.id] = self.place.path_of(exports[command.collection])
            self._store_due = self._store_due or lasts
            if checked is not None:
                self._checked = checked
                self._settle()  # its logs are there when this returns: others may import them
                self._checked = None
            self.wake.set()

    def _check_dataflow(self, dataflow: Dataflow) -> Hosted:
        """Refuse a dataflow that cannot run, before it is written down; return what it is hosted by."""
        running = Running(-1, dataflow, dataflow.export_ids, started=False, complete=False, uppers={})
        there = self._live_exports()
        check_described(dataflow, self.place, there)
        exports = there | {each.id: each for each in dataflow.exports}
        hosted = Hosted(running, self._around, exports)
        hosted.check_times()
        if self._follows:
            if hosted.written:
                msg = f"could not create dataflow {dataflow.name!r}: found an instance that only follows"
                raise OwnershipError(msg, hint="subscribe to what is maintained as it is, or allow writes here")
            return hosted
        hosted.check()
        return hosted

    def allow_writes(self) -> None:
        """Take over as the instance that writes, from whichever start did; there is no way back."""
        with self._lock:
            self._check_open()
            if not self._follows:
                return
            self._take_over()
            try:
                for number in list(self._hosted):  # they are hosted again, to be written
                    self._let_go(number)
                self._broken.clear()
                self._seen = -1
                self._follow(to_write=True)
                self.instance.handle(AllowWrites())
                self._store()
            except Exception as error:
                # It holds the command log, and may not know all that is in it: another start reads it.
                self.error = error
                raise
            self.wake.set()

    def _store(self) -> None:
        self._commands.store(rows_of(self.instance.history.lasting()))
        self._store_due = False

    def _follow(self, *, to_write: bool = False) -> None:
        """Take what the command log has that is new, and nothing else (invariant 6).

        Parameters
        ----------
        to_write : bool
            Whether this start writes from now on: then what has written nothing begins where it can begin by now.
        """
        wanted = reduced(parse_command(text) for _, text in self._commands.rows())
        flows = {each.dataflow.export_ids: each.dataflow for each in wanted if isinstance(each, CreateDataflow)}
        there = {each.dataflow.export_ids: each.dataflow for each in self._all_runs() if each.dataflow.lasts}
        changed = {ids for ids, mine in there.items() if not _is_same(mine, flows.get(ids))}
        chosen = self._chosen(list(flows.values())) if to_write or not flows.keys() <= there.keys() - changed else {}
        if to_write:
            changed |= {
                ids
                for ids, flow in flows.items()
                if ids in there and there[ids].as_of != chosen[ids].as_of and not self._uppers_of(flow)
            }
        # An id of what only this process has may be in use by now.
        taken = {id_ for ids in flows.keys() - there.keys() for id_ in ids}
        self._drop_here([*(id_ for ids in changed for id_ in ids), *taken])
        for each in wanted:  # one turn per command
            self._take_up(each, chosen)

    def _take_up(self, command: Command, chosen: Mapping[tuple[str, ...], Dataflow]) -> None:
        """Do what a command of the command log says, unless it is done."""
        instance = self.instance
        match command:
            case UpdateConfiguration(values):
                if any(instance.configuration.get(name) != value for name, value in values.items()):
                    instance.handle(command)
            case CreateDataflow(dataflow):
                ids = dataflow.export_ids
                if any(each.dataflow.export_ids == ids for each in self._all_runs()):
                    for id_ in ids:
                        self._take_up(AllowCompaction(id_, dataflow.as_of), chosen)
                    return
                as_of = chosen[ids].as_of
                for each in dataflow.own_imports:
                    if self._live_exports()[each].kind == "index":
                        as_of = as_of.join(instance.allowed(each))
                instance.handle(CreateDataflow(dataflow.at(as_of)))
            case Schedule(id_):
                if any(id_ in each.live for each in instance.suspended()):
                    instance.handle(command)
            case AllowCompaction(id_, frontier):
                if frontier.is_empty:
                    self._drop_here([id_])
                elif instance.has(id_) and not frontier.less_equal_frontier(instance.allowed(id_)):
                    instance.handle(command)

    def _drop_here(self, ids: Iterable[str]) -> None:
        """Drop exports, those of dataflows that read them first."""
        for id_ in ids:  # one turn per export
            if id_ not in self._live_exports() or not self.instance.has(id_):
                continue
            self._drop_here(
                [other for each in self._all_runs() if id_ in each.dataflow.own_imports for other in each.live]
            )
            self.instance.handle(AllowCompaction(id_, Antichain.empty(self.domain_of(id_).arity)))

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self._ended:
            msg = f"could not use the instance in {self.place.directory!r}: found it closed"
            raise InvalidUsageError(msg, hint="open it again")

    # Turns ---------------------------------------------------------------------------------------

    def turn(self) -> tuple[bool, tuple[Response, ...]]:
        """Look, begin what is due, and return whether anything happened, and the responses.

        Raises
        ------
        OwnershipError
            If another start took the instance over.
        """
        with self._lock:
            self._check_open()
            if self._unreachable and self._now() < self._again_at:
                return False, ()
            try:
                found = self._turn()
            except Exception as error:
                if not _may_pass(error):
                    self.error = error
                    raise
                if not self._unreachable:
                    _log.warning("the instance in %r cannot be looked at: %s", self.place.directory, error)
                self._unreachable += 1
                self._again_at = self._now() + pause_s(self._unreachable)
                return False, ()
            self._unreachable = 0
            return found

    def _turn(self) -> tuple[bool, tuple[Response, ...]]:
        if not self._follows:
            self._check_held()
        elif self._commands.log.has_news() or not self._commands.log.storage.local:
            self._follow()
        before = self.instance.version
        busy = self._look()
        self._settle()
        busy = self._collect() or busy
        self._begin_steps()
        self._answer_peeks()
        busy = self._give_batches() or busy
        self._begin_copies()
        responses = self.instance.turn()
        self._upkeep()
        return busy or bool(responses) or self.instance.version != before, responses

    def _check_held(self) -> None:
        if self._commands.is_mine():
            return
        holder = self._commands.holder()
        msg = f"could not continue the instance in {self.place.directory!r}: found it taken over by {shown(holder)}"
        raise OwnershipError(msg, hint="follow the newer start, or end this one")

    def _look(self) -> bool:
        """Look for news of imports; note which dataflows have work."""
        news = False
        for path, watched in self._watched.items():  # one turn per log
            try:
                if not watched.has_news():
                    continue
            except Exception as error:  # noqa: BLE001 - those who read it say so
                _log.debug("log %r cannot be looked at: %s", path, error)
            news = True
            self._dirty |= dict.fromkeys(self._readers.get(path, ()))
        return news

    def _settle(self) -> None:
        """Host the dataflows that are there, and let go of those that are not."""
        if self._seen == self.instance.version and not self._broken:
            return
        self._seen = self.instance.version
        runs = {each.number: each for each in self._all_runs()}
        for number in [number for number in self._hosted if number not in runs]:
            self._let_go(number, dropped=True)
        for number in [number for number in self._broken if number not in runs]:
            del self._broken[number]
        exports = self._live_exports()
        kinds = {each.kind for each in exports.values()}
        self._subscribes = not kinds.isdisjoint(("subscribe", "copy-to"))
        for number, running in runs.items():  # one turn per dataflow
            if number not in self._hosted and self._is_due(number):
                self._host(running, exports)

    def _is_due(self, number: int) -> bool:
        return number not in self._broken or self._broken[number][2] <= self._now()

    def _host(self, running: Running, exports: Mapping[str, Export]) -> None:
        tries = self._broken.pop(running.number, (None, 0, 0.0))[1]
        hosted = None
        try:
            hosted = self._checked
            if hosted is None or hosted.dataflow != running.dataflow:
                hosted = Hosted(running, self._around, exports)
            hosted.number = running.number
            if self._follows:
                hosted.open_outputs()
            else:
                hosted.begin()
            watch = {
                path: self._watched.get(path)
                or _Watched(open_log(path, storage_options=self.place.options(path) or None), self._now)
                for path in hosted.sources.values()
            }
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            self._break(running, error, tries)
            if hosted is not None:
                hosted.end()
            if isinstance(error, OwnershipError) and not self._follows:
                self._check_held()
            return
        self._hosted[running.number] = hosted
        self._dirty.setdefault(running.number)
        self._tell_error(running.number, running.live, None)
        for path, watched in watch.items():  # one turn per import
            self._readers.setdefault(path, set()).add(running.number)
            self._watched.setdefault(path, watched)
        self.instance.tell(Operators(running.number, hosted.operators))
        self._guarded(running.number, hosted, self._tell_uppers)

    def _break(self, running: Running, error: Exception, tries: int) -> None:
        self._broken[running.number] = error, tries + 1, self._now() + pause_s(tries + 1)
        if tries == 0:
            _log.error("dataflow %r does not run: %s", running.dataflow.name, error)
        self._tell_error(running.number, running.live, error)

    def _guarded(self, number: int, hosted: Hosted, act: Callable[[int, Hosted], None]) -> None:
        """Do something for one dataflow; what fails is shown, and done again later (invariant 5)."""
        try:
            act(number, hosted)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            self._tell_error(number, hosted.dataflow.export_ids, error)
            self._due[number] = self._now() + _FAR_POLL_S
            if isinstance(error, OwnershipError) and not self._follows:
                self._check_held()

    def _let_go(self, number: int, *, dropped: bool = False) -> None:
        """Host a dataflow no longer; where it was dropped, what it kept for itself is deleted later."""
        hosted = self._hosted[number]
        if number in self._busy and not self._busy[number].done():
            return  # its step ends first; nothing of it is reported
        del self._hosted[number]
        self._busy.pop(number, None)
        self._dirty.pop(number, None)
        self._due.pop(number, None)
        for readers in self._readers.values():
            readers.discard(number)
        for path in [path for path, readers in self._readers.items() if not readers]:
            del self._readers[path]
            self._watched.pop(path, None)
        # Another one of the same name and outputs is the same consumer.
        again = any(other.consumer == hosted.consumer for other in self._hosted.values())
        try:
            hosted.end()
            if dropped and not again and not self._follows:
                hosted.release()
        except Exception as error:  # noqa: BLE001 - it is only in the way
            _log.warning("dataflow %r has not let go of everything: %s", hosted.dataflow.name, error)
        if not dropped:
            return  # a subscribe continues where it is: it reads a log
        self._told_errors.pop(number, None)
        self._steps_failed.pop(number, None)
        there = self._live_exports()
        for export in hosted.dataflow.exports:  # one turn per export
            self._compacted.pop(export.id, None)
            if details_of(export).get("folder") is not None and not self._follows:
                self._gone.append((self._now() + _GONE_S, self.place.below(str(details_of(export)["folder"]))))
            if export.id in there:
                continue  # another one has the id by now
            self._forget_answers(export.id)

    def _forget_answers(self, id_: str) -> None:
        """Let go of what gave the answers of a subscribe or copy-to."""
        self._resting.pop(id_, None)
        subscription, copy = self._subscriptions.pop(id_, None), self._copies.pop(id_, None)
        if subscription is not None:
            subscription[1].close()
        if copy is not None:
            copy[1].cancel()

    # Steps ---------------------------------------------------------------------------------------

    def _begin_steps(self) -> None:
        """Begin a step of each dataflow that has work, first come first served, as many at once as is allowed."""
        now = self._now()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._dirty.setdefault(number)
        if self._follows:
            self._tell_followed()
            return
        if not self._dirty:
            return
        configured = self.instance.configuration.get("steps_at_once")
        most = configured if isinstance(configured, int) and configured > 0 else _STEPS_AT_ONCE
        started = {each.number for each in self._started()}
        for number in list(self._dirty):  # one turn per dataflow with work
            if len(self._busy) >= most:
                return
            hosted = self._hosted.get(number)
            if hosted is None:
                del self._dirty[number]  # it has work once it is hosted
                continue
            if number in self._busy or number not in started:
                continue
            del self._dirty[number]
            if hosted.engine is None:
                self._guarded(number, hosted, self._look_at)
                continue
            # As it is now: what is configured during a step is of the next one.
            future = self._workers.submit(self._step, hosted, self.instance.configuration.get("max_bytes_per_step"))
            future.add_done_callback(lambda _: self.wake.set())
            self._busy[number] = future

    def _started(self) -> tuple[Running, ...]:
        """Return the dataflows that started; asked for often, and seldom another answer."""
        if self._running_at != self.instance.version:
            self._running, self._running_at = self.instance.running(), self.instance.version
        return self._running

    def _step(self, hosted: Hosted, max_bytes: object) -> bool:
        options = {path: self.place.options(path) for path in hosted.paths}
        run_tasks = self._working.tasks(hosted.dataflow.name, options)
        more = hosted.step(run_tasks, max_bytes if isinstance(max_bytes, int) else None)
        hosted.look()
        return more

    def _collect(self) -> bool:
        """State what steps that ended have brought."""
        done = [number for number, future in self._busy.items() if future.done()]
        for number in done:  # one turn per step
            future, hosted = self._busy.pop(number), self._hosted.get(number)
            if hosted is None:
                continue
            if self.instance.run(number) is None:
                self._let_go(number, dropped=True)
                continue
            error = future.exception()
            if error is not None:
                tries = self._steps_failed[number] = self._steps_failed.get(number, 0) + 1
                _log.warning("a step of dataflow %r has failed: %s", hosted.dataflow.name, described(error))
                self._seen = -1
                self._let_go(number)
                self._broken[number] = error, tries, self._now() + pause_s(tries)
                self._tell_error(number, hosted.dataflow.export_ids, error)
                continue
            self._steps_failed.pop(number, None)
            if future.result():
                self._dirty.setdefault(number)
            due = hosted.due_s
            if due is not None:
                self._due[number] = self._now() + due
            self._guarded(number, hosted, self._tell_uppers)
        return bool(done)

    def _look_at(self, number: int, hosted: Hosted) -> None:
        hosted.look()
        self._tell_imports(number, hosted)

    def _tell_uppers(self, number: int, hosted: Hosted) -> None:
        for failed in hosted.failures:
            if isinstance(failed, OwnershipError) and not self._follows:
                self._check_held()
        uppers = hosted.uppers()
        for export in hosted.dataflow.exports:  # one turn per export
            if export.id not in uppers or export.kind in ("subscribe", "copy-to"):
                continue
            self.instance.tell(Upper(export.id, number, uppers[export.id]))
            path = hosted.path_of(export)
            self._dirty |= dict.fromkeys(self._readers.get(path, set()) - {number})
        self._tell_imports(number, hosted)
        sizes = hosted.sizes()
        if sizes:
            self.instance.tell(ArrangementSizes(number, sizes))
        failures = hosted.failures
        self._tell_error(number, hosted.dataflow.export_ids, failures[0] if failures else None)

    def _tell_imports(self, number: int, hosted: Hosted) -> None:
        for name, upper in hosted.upper_of_imports.items():  # one turn per import
            self.instance.tell(ImportUpper(number, name, upper))

    def _tell_followed(self) -> None:
        """State how far the outputs are that another start writes."""
        far = self._now() - self._followed_at >= _FAR_POLL_S
        if far:
            self._followed_at = self._now()
        dirty, self._dirty = self._dirty, {}

        def tell(number: int, hosted: Hosted) -> None:
            if hosted.open_outputs(far=far) or number in dirty:
                hosted.look()
                self._tell_uppers(number, hosted)

        for number, hosted in self._hosted.items():  # one turn per dataflow
            if number not in self._due:
                self._guarded(number, hosted, tell)

    def _tell_error(self, number: int, ids: Iterable[str], error: BaseException | None) -> None:
        text = "" if error is None else described(error)
        if self._told_errors.get(number, "") == text:
            return
        self._told_errors[number] = text
        for id_ in ids:
            self.instance.tell(ErrorCount(id_, number, int(bool(text)), text))

    # Answers -------------------------------------------------------------------------------------

    def _answer_peeks(self) -> None:
        pending = self.instance.pending_peeks()
        ids = {each.peek.id for each in pending}
        for gone in (self._peeks.keys() | self._paths.keys()) - ids:
            self._peeks.pop(gone, None)
            self._tried.pop(gone, None)
            self._paths.pop(gone, None)
        for path in self._asked_paths - {str(each.peek.path) for each in pending}:
            self._asked_paths.remove(path)
            if not self._readers.get(path):
                self._readers.pop(path, None)
                self._watched.pop(path, None)
        for each in pending:  # one turn per peek that waits
            running = self._peeks.get(each.peek.id)
            if running is not None and not running[0].done():
                continue
            state = self._state_of(each)
            if running is not None and self._tried.get(each.peek.id) == state:
                continue
            self._tried[each.peek.id] = state
            began = self._now() if running is None else running[1]
            future = self._answerers.submit(self._answer, each, began)
            self._peeks[each.peek.id] = future, began

    def _state_of(self, pending: PendingPeek) -> object:
        """Return what has to change before a peek is worth another try."""
        if pending.peek.collection is not None:
            return pending.ready
        path = str(pending.peek.path)
        self._asked_paths.add(path)
        watched = self._watched.get(path)
        if watched is None:
            try:
                watched = self._watched[path] = _Watched(
                    open_log(path, storage_options=self.place.options(path) or None), self._now
                )
            except Exception as error:  # noqa: BLE001 - it is the answer, once it is asked for there
                return str(error)
            self._readers.setdefault(path, set())
        return watched.log.version

    def _answer(self, pending: PendingPeek, began: float) -> None:
        """Try to answer a peek; one that has to wait is tried again."""
        asked = pending.peek
        try:
            rows = self._rows_of(asked)
        except (WaitTimeoutError, NotBeyondError):
            if pending.ready:
                with self._lock:
                    # It is complete as far as is known: nothing else says when to try again.
                    self._tried.pop(asked.id, None)
                return
            self.wake.set()
            return
        except Exception as error:  # noqa: BLE001 - it is the answer
            answer = PeekAnswer(asked.id, error=described(error))
        else:
            size = int(row_sizes(rows.drop_columns(["_diff"])).sum()) if rows.num_rows else 0
            answer = PeekAnswer(asked.id, rows=rows, n_bytes=size)
        with self._lock:
            self.instance.tell(answer)
            if asked.collection is not None and self.instance.has(asked.collection):
                self.instance.tell(AnswerLatency(asked.target, self._now() - began))
        self.wake.set()

    def _rows_of(self, asked: Peek) -> pa.Table:
        plan = json.loads(asked.plan)
        options: dict[str, Any] = {str(name): value for name, value in plan.items()}
        if isinstance(options.get("keys"), str):
            options["keys"] = keys_of_text(options["keys"])
        with self._lock:
            relation = self._relations().get(asked.collection or "")
            if relation is not None:
                table = self.instance.introspection.table(relation)
            else:
                path = asked.path or self._paths[asked.id]
        if relation is not None:
            return peek(_as_log(table), at=0, timeout_s=0, **options)
        assert path is not None
        at = written(self._opened(path).domain, asked.time)
        return peek(
            path, at=at, timeout_s=0, job=self._working.job, storage_options=self.place.options(path) or None, **options
        )

    def _relations(self) -> dict[str, str]:
        """Return the relations of the introspection by the id of their collection."""
        return {id_: name for name, id_ in self._created().introspection.items()}

    def _give_batches(self) -> bool:
        """State the batches of subscribes that are complete."""
        given = False
        for running in self._started() if self._subscribes else ():  # one turn per dataflow
            hosted = self._hosted.get(running.number)
            if hosted is None:
                continue
            for export in running.dataflow.exports:  # one turn per export
                upper = running.uppers.get(export.id)
                if (
                    export.kind == "subscribe"
                    and export.id in running.live
                    and not (upper is not None and upper.is_empty)
                ):
                    given = self._give_batch(running, hosted, export) or given
        return given

    def _give_batch(self, running: Running, hosted: Hosted, export: Export) -> bool:
        if export.id in self._resting and self._now() < self._resting[export.id][1]:
            return False
        try:
            given = self._next_batch(running, hosted, export)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others continue
            self._tell_error(running.number, [export.id], error)
            if _may_pass(error):
                tries = self._resting.get(export.id, (0, 0.0))[0] + 1
                self._resting[export.id] = tries, self._now() + pause_s(tries)
                return False
            # It never passes: whoever waits for the next batch learns of it, and of the end.
            self._end_subscribe(running, export, None, error)
            return True
        self._resting.pop(export.id, None)
        return given

    def _next_batch(self, running: Running, hosted: Hosted, export: Export) -> bool:
        """State the next batch of a subscribe; return whether there was one."""
        number, subscription = self._subscriptions.get(export.id, (running.number, None))
        if subscription is not None and number != running.number:
            self._forget_answers(export.id)  # of another dataflow that had the id
            subscription = None
        if subscription is None:
            subscription = self._subscribed(running, hosted, export)
            if subscription is None:
                return False
            self._subscriptions[export.id] = running.number, subscription
        began = self._now()
        try:
            batch = subscription.next_batch(timeout_s=0)
        except Exception:
            if subscription.has_ended:
                self._subscriptions.pop(export.id)
            raise
        if batch is None:
            if subscription.has_ended:
                self._end_subscribe(running, export, subscription.schema.empty_table(), None)
            return subscription.has_ended
        size = int(row_sizes(batch.rows).sum()) if batch.rows.num_rows else 0
        upper = Antichain.empty(batch.upper.arity) if subscription.has_ended else batch.upper
        self.instance.tell(SubscribeProgress(export.id, running.number, batch.lower, upper, batch.rows, size))
        self.instance.tell(AnswerLatency(export.id, self._now() - began))
        return True

    def _end_subscribe(
        self, running: Running, export: Export, rows: pa.Table | None, error: BaseException | None
    ) -> None:
        """State the end of a subscribe that has nothing more to give, or that failed for good."""
        domain = running.dataflow.domain
        reported = self.instance.collection(export.id).reported
        lower = domain.minimum_frontier if reported is None else reported
        text = None if error is None else described(error)
        upper = Antichain.empty(domain.arity)
        self.instance.tell(SubscribeProgress(export.id, running.number, lower, upper, rows, 0, text))

    def _subscribed(self, running: Running, hosted: Hosted, export: Export) -> Subscription | None:
        """Begin a subscription, or continue one that broke off; None where its log cannot be read yet."""
        details = details_of(export)
        path = hosted.path_of(export)
        as_of = running.dataflow.as_of.elements[0]
        until = running.dataflow.until
        asked: dict[str, Any] = {
            name: details[name] for name in ("envelope", "key", "snapshot", "progress") if name in details
        }
        if hosted.engine is not None:
            upper = hosted.uppers().get(export.id)
            if upper is None or not running.dataflow.as_of.less_than_frontier(upper):
                return None
        reported = self.instance.collection(export.id).reported
        if reported is not None:
            asked["resume_from"] = reported
        if reported is None or len(as_of) > 1:
            asked["as_of"] = written(running.dataflow.domain, as_of)
        return subscribe(
            path,
            up_to=None if until.is_empty else written(running.dataflow.domain, until.elements[0]),
            poll_s=0,
            storage_options=self.place.options(path) or None,
            **asked,
        )

    def _begin_copies(self) -> None:
        """Begin the copy-tos whose time is complete, and state those that ended."""
        for running in self._started() if self._subscribes else ():  # one turn per dataflow
            hosted = self._hosted.get(running.number)
            if hosted is None or running.complete or self._follows:
                continue
            for export in running.dataflow.exports:  # one turn per export
                if export.kind == "copy-to" and export.id in running.live:
                    self._copy(running, hosted, export)

    def _copy(self, running: Running, hosted: Hosted, export: Export) -> None:
        number, future = self._copies.get(export.id, (running.number, None))
        if future is not None and number != running.number:
            self._forget_answers(export.id)  # of another dataflow that had the id
            future = None
        if future is None:
            if self.instance.collection(export.id).hydrated:
                return  # it has its answer, and others of its dataflow have not
            try:
                path = hosted.path_of(export)
                upper = hosted.uppers().get(export.id) if hosted.engine is not None else self._opened(path).frontier()
            except Exception as error:  # noqa: BLE001 - whatever it is, the others continue
                if not _may_pass(error):
                    self.instance.tell(CopyToDone(export.id, running.number, error=described(error)))
                return
            if upper is None or not running.dataflow.as_of.less_than_frontier(upper):
                return
            if self._working.copy is None:
                text = "could not copy: found an instance without a session of Spark"
                self.instance.tell(CopyToDone(export.id, running.number, error=text))
                return
            details = details_of(export)
            at = written(running.dataflow.domain, running.dataflow.as_of.elements[0])
            future = self._workers.submit(self._working.copy, path, str(details["to"]), at, details)
            future.add_done_callback(lambda _: self.wake.set())
            self._copies[export.id] = running.number, future
        elif future.done():
            del self._copies[export.id]
            failed = future.exception()
            if failed is None:
                self.instance.tell(CopyToDone(export.id, running.number, rows=future.result()))
            else:
                self.instance.tell(CopyToDone(export.id, running.number, error=described(failed)))

    # Upkeep --------------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        """Once a second: write down compactions, allow those of indexes, delete what was dropped."""
        if self._follows or self._now() - self._upkeep_at < _UPKEEP_S:
            return
        self._upkeep_at = self._now()
        if self._store_due:
            try:
                self._store()
            except StorageError as error:
                _log.warning("what may be compacted is not written down yet: %s", error)
        for running in self._all_runs():  # one turn per dataflow
            for export in running.dataflow.exports:
                if export.kind == "index" and export.id in running.live:
                    self._compact(export)
        while self._gone and self._gone[0][0] <= self._now():
            self._delete(self._gone.popleft()[1])

    def _compact(self, export: Export) -> None:
        """Let an index's log forget what nobody asks for any more."""
        since, path = self.instance.since_of(export.id), self.place.path_of(export)
        if path is None or since.is_empty or self._compacted.get(export.id) == since:
            return
        try:
            log = self._opened(path)
            # Never past what is complete: a peek at the newest time is answered.
            allowed = since.meet(_stepped_back(log.frontier(), log))
            log.allow_compaction(allowed, by=f"instance {self._commands.instance}")
        except Exception as error:  # noqa: BLE001 - it is tried again in a second
            _log.debug("index %r is not compacted: %s", export.id, error)
            return
        self._compacted[export.id] = since

    def _delete(self, folder: str) -> None:
        lasting = [each for running in self._all_runs() if running.dataflow.lasts for each in running.dataflow.exports]
        if folder in {self.place.path_of(each) for each in lasting}:
            return  # never: a folder's name is given once
        try:
            storage = open_storage(folder, self.place.options(folder) or None)
            if storage.local:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                storage.delete_all([f"{below}/{name}" for below in storage.folders() for name in storage.sizes(below)])
        except Exception as error:  # noqa: BLE001 - it is only in the way
            _log.warning("what was dropped stays in %r: %s", folder, error)

    def next_look_s(self) -> float:
        """Return how many seconds to wait at most before the next turn."""
        now = self._now()
        if self._unreachable:
            return max(self._again_at - now, 0.001)
        far = all(not watched.log.storage.local for watched in self._watched.values())
        rest = _FAR_POLL_S if far and not self._commands.log.storage.local else _POLL_S
        return max(min([rest, *(due - now for due in self._due.values())]), 0.001)

    def close(self) -> None:
        """End: nothing more is begun, and what runs is waited for."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            mine = False
            try:
                mine = self.error is None and not self._follows and self._commands.is_mine()
                if mine and self._store_due:
                    self._store()
            except TimelyError as error:
                _log.warning("what may be compacted is not written down: %s", error)
        self.wake.set()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._answerers.shutdown(wait=True, cancel_futures=True)
        there = {each.number for each in self._all_runs()}
        for number in list(self._hosted):
            # What is interactive ends with this process.
            self._let_go(number, dropped=mine and (number not in there or self._hosted[number].dataflow.interactive))
        for id_ in {*self._subscriptions, *self._copies}:
            self._forget_answers(id_)
        while mine and self._gone:
            self._delete(self._gone.popleft()[1])


def written(domain: TimeDomain, time: tuple[int, ...]) -> TimeLike:
    """Return a time as people write it, which is how readers of logs take it."""
    found: TimeLike = domain.time_to_json(time)
    return found


def _may_pass(error: BaseException) -> bool:
    """Whether storage could not be reached, which may be another thing in a moment."""
    return isinstance(error, StorageError) and not isinstance(error, DataLossError | LogDamagedError)


def _is_same(mine: Dataflow, other: Dataflow | None) -> bool:
    """Whether another dataflow does the same, from whichever time on."""
    return other is not None and mine.at(other.as_of) == other


def _check_configuration(values: Mapping[str, object]) -> None:
    for name in ("steps_at_once", "max_bytes_per_step"):
        value = values.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            msg = f"could not configure the instance: found {name}={shown(value)}"
            raise InvalidOptionError(msg, hint="give a whole number, 1 or more, or null for the usual one")


def _key(dataflow: Dataflow) -> str:
    return json.dumps(dataflow.export_ids)


def _stepped_back(frontier: Antichain, log: Log) -> Antichain:
    if frontier.is_empty or frontier.arity > 1:
        return frontier
    return Antichain.of(max(frontier.elements[0][0] - 1, log.domain.minimum[0]))


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
