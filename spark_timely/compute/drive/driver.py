"""The driver of an instance: keeps the command log, runs the dataflows, answers peeks, and reports what it sees.

A `Handle` (`spark_timely.compute.drive.handle`) makes the driver, sends it commands, and has it take turns. The
instance itself is `spark_timely.compute.instance`, and decides; the driver does. A session of Spark hands over how
tasks are run and copies made (`runtime`). Steps run in threads, one per dataflow at a time; all else runs in turns,
under one lock, each of which looks, begins what is due, and hands out responses.

A *start* is one process that took the instance over. It has a number and an owner, its *fence*, which is in each commit
that it makes: where a newer start has put its own fence, an older one is refused.

Invariants
----------
1. A command that lasts is in the command log before it is handled. That a collection may be compacted is written within
   a second; what was not written is allowed again by its client.
2. Nothing is written, and nothing reported, before all outputs that are there have the fence of this start.
3. Which start holds the command log is looked at before each turn, in a store once a second: a start that was replaced
   ends, and says by which one. What it writes until then is refused.
4. Each folder of the instance has a command or a mark (`spark_timely.compute.ledger`) in the command log before it is
   made, until it is gone.
5. What fails for one dataflow, peek or subscribe ends nothing else. Storage that cannot be reached for a moment ends
   nothing at all: the turn is taken again.
6. What this process has of its own, its subscribes and peeks, continues where it was, whatever the command log brings:
   a follower takes up changes one by one, and taking over is no new session.
"""

from __future__ import annotations

import time as monotonic
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

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
)
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive.directory import Directory, check_described
from spark_timely.compute.drive.folders import Folders
from spark_timely.compute.drive.peeks import Copies, Peeks
from spark_timely.compute.drive.recovery import (
    Consent,
    check_commands_there,
    follow,
    judged,
    resumed,
    uppers_of,
    without_too_much,
)
from spark_timely.compute.drive.relations import Relations
from spark_timely.compute.drive.retention import Accepted, Compaction, ImportRetainers, Wanted, may_forget
from spark_timely.compute.drive.runners import Runner, passed_import, runner_of
from spark_timely.compute.drive.state import FAR_POLL_S, State, may_pass
from spark_timely.compute.drive.subscribes import Subscribes
from spark_timely.compute.drive.worker import Worker
from spark_timely.compute.history import reduced, rows_of
from spark_timely.compute.instance import Running
from spark_timely.compute.introspection import RELATIONS
from spark_timely.compute.ledger import Ledger, commands_of
from spark_timely.compute.plan import SqlTask, parse_plan
from spark_timely.compute.session import DEFAULTS
from spark_timely.errors import (
    InvalidOptionError,
    InvalidUsageError,
    OwnershipError,
    SinceViolationError,
    StorageError,
    TimelyError,
    shown,
)
from spark_timely.masking import masked_logger
from spark_timely.time.domain import TimeDomain, TimeType
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from spark_timely.compute.drive.runtime import Runtime
    from spark_timely.compute.response import Response
    from spark_timely.log.log import Log
    from spark_timely.time.antichain import Antichain

__all__ = ["Driver"]

_log = masked_logger("spark_timely.compute")

_NEW: Final = CreateInstance({name: f"timely_{name}" for name in RELATIONS}, domain=TimeDomain((TimeType.TIMESTAMP,)))
# Between two looks at logs on a disk: as long as something happens, and once nothing has for a while.
_POLL_S: Final = 0.01
_IDLE_POLL_S: Final = 0.02
_IDLE_AFTER_S: Final = 5.0
# Names of the configuration, beside those of the instance itself.
_OF_STEPS: Final = ("steps_at_once", "max_bytes_per_step")
# Compactions of logs, and of the command log.
_UPKEEP_S: Final = 1.0


class Driver:
    """Drives one instance.

    Parameters
    ----------
    directory : Directory
    runtime : Runtime
    read_only : bool
        Whether it only follows: it answers from what another start writes, until it takes over (`allow_writes`).
    moved : bool
        Whether the directory was meant to be moved to where it is.
    consent : Consent
        What becomes of outputs where the command log went back.
    """

    def __init__(
        self,
        directory: Directory,
        runtime: Runtime,
        *,
        read_only: bool,
        moved: bool,
        consent: Consent,
    ) -> None:
        directory.check("follow" if read_only else "run", create=not read_only)
        if not read_only:
            check_commands_there(directory, consent)
        options = directory.storage_options or None
        commands = CommandLog.at(directory.commands, storage_options=options, create=not read_only)
        now = self._now = monotonic.monotonic
        self.state = State(directory, runtime, commands, now, follows=read_only)
        self.directory, self.instance, self.wake = directory, self.state.instance, self.state.wake
        self._lock, self._commands = self.state.lock, commands
        self._moved, self._consent = moved, consent
        self._owner = uuid.uuid4().hex
        worker = self.worker = Worker(self.state, on_failed=self._fail, on_dropped=self._forget)
        self.peeks = Peeks(self.state, worker)
        self._subscribes, self._copies = Subscribes(self.state, worker), Copies(self.state, worker)
        self._relations = Relations(self.state, worker.threads)
        self.folders = Folders(self.state, worker, self._store)
        self._compaction = Compaction(self.state)
        self._retainers = ImportRetainers(commands.instance)
        # By the number of the dataflow: what is retained for it, as long as it does not do that by itself.
        self._accepted: dict[int, Accepted] = {}
        self._warnings: dict[int, tuple[str, ...]] = {}
        self._store_due = False
        self._followed = -1  # version of the command log
        self._busy_at = now()
        self._upkeep_at = now()
        self._unreachable = Backoff(now)
        self.error: Exception | None = None
        self._ended = False
        self._begin()

    # Starting ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the command log over, and do what it says; or follow it."""
        if not self.state.follows:
            self._take_over()
        # Reduced: of an id that was dropped and given again, only what is there now.
        self._begin_session(list(reduced(commands_of(self._commands.rows()))))
        if not self.state.follows:
            self._store()
            self.folders.begin()

    def _take_over(self) -> None:
        if self.state.runtime.check is not None:
            self.state.runtime.check(self.directory)  # refused: the process that maintains it continues
        judge = partial(judged, self.directory, self._commands.instance, self._consent)
        fence = self._commands.take_over(judge=judge, moved=self._moved)
        self.state.ledger = Ledger.read(self._commands.rows()).begun(fence.epoch)
        self.state.follows = False

    def _begin_session(self, commands: list[Command]) -> None:
        """Hand the instance the commands of a session: those that last, and what this process has of its own."""
        found = [each for each in commands if not isinstance(each, CreateTimely | InitializationComplete)]
        created = next((each for each in found if isinstance(each, CreateInstance)), _NEW)
        epoch = max(self.instance.epoch + 1, 0 if self.state.fence is None else self.state.fence.epoch)
        for opening in (CreateTimely(epoch, self._owner), created):
            self.instance.handle(opening)
        flows = [each.dataflow for each in found if isinstance(each, CreateDataflow)]
        accepted = {} if self.state.follows else self._retain_unwritten(flows, self.state.readable())
        chosen = resumed(self.state, flows)
        for command in without_too_much(self.state, found, chosen.values()):
            if isinstance(command, CreateDataflow):
                self.instance.handle(CreateDataflow(chosen[command.dataflow.export_ids]))
            elif not isinstance(command, CreateInstance | AllowWrites):
                self.instance.handle(command)
        self.instance.handle(InitializationComplete())
        if not self.state.follows:
            self.instance.handle(AllowWrites())
        self._keep_accepted(accepted)

    def _retain_unwritten(
        self, dataflows: list[Dataflow], readable: Mapping[str, Export]
    ) -> dict[tuple[str, ...], Accepted]:
        """Retain the imports of dataflows that have written nothing, from their since on, before their as_of is chosen.

        Rule 5 of `spark_timely.compute.as_of`. By the ids of their exports.
        """
        exports = {**readable} | {each.id: each for flow in dataflows for each in flow.exports}
        found = {}
        for flow in dataflows:
            if uppers_of(self.state, flow):
                continue
            try:
                wanted = self._wanted(flow, exports, as_of=None)
                found[flow.export_ids] = self._retainers.begin(wanted, domain=flow.domain)
            except TimelyError as error:  # it is said by the dataflow, when it is to run
                _log.debug("imports of dataflow %r are not retained: %s", flow.name, error)
        return found

    def _keep_accepted(self, accepted: Mapping[tuple[str, ...], Accepted]) -> None:
        """Know what is retained for dataflows that are there by now, as of the time that was chosen."""
        runs = {each.dataflow.export_ids: each for each in self.state.runs()}
        for ids, each in accepted.items():
            if ids not in runs:
                self._retainers.end(each)
                continue
            self._accepted[runs[ids].number] = each
            self._retainers.move(each, runs[ids].dataflow.as_of)
            for warning in each.warnings:
                _log.warning("dataflow %r: %s", runs[ids].dataflow.name, warning)

    def _wanted(self, dataflow: Dataflow, exports: Mapping[str, Export], as_of: Antichain | None) -> list[Wanted]:
        """Return what is to be retained so that a dataflow can begin."""
        task = parse_plan(dataflow.plan).root.operator
        timeless: set[str] = set()
        if isinstance(task, SqlTask):
            # What is read as it is by then has no time; and a task whose output is there continues where that is.
            timeless = {name for name, how in task.reads if how == "newest"}
            as_of = None if uppers_of(self.state, dataflow) else as_of
        found = []
        for each in dataflow.imports:
            path = self.directory.source_of(each, exports)
            found.append(Wanted(path, None if each.name in timeless else as_of, self.directory.options(path)))
        return found

    def try_again(self) -> None:
        """Try at once what failed and waits for its next try: the reason may be gone."""
        with self._lock:
            self.worker.try_again()
            self._subscribes.try_again()
            self.wake.set()

    def may_write(self) -> bool:
        """Return whether this start is open, and the one that writes."""
        with self._lock:
            return not self._ended and self.error is None and not self.state.follows and self._commands.is_mine()

    # Commands ------------------------------------------------------------------------------------

    def open_relation(self, id_: str) -> Log:
        """Return the log of a relation of the introspection: see `spark_timely.compute.drive.relations`."""
        with self.opened():
            return self._relations.open(id_)

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
        if isinstance(command, CreateDataflow):
            self._create(command, *more)
            return
        with self._lock:
            self._check(command)
            self._do(command, *more)

    def _create(self, command: CreateDataflow, *more: Schedule) -> None:
        """Take a dataflow: check it, retain its imports outside of the lock, then write it down and do it."""
        dataflow = command.dataflow
        with self._lock:
            self._check(command)
            runner, exports = self._check_dataflow(dataflow), self.state.readable()
        with ExitStack() as undo:
            undo.callback(runner.end)
            try:
                wanted = self._wanted(dataflow, exports, dataflow.as_of)
                accepted = self._retainers.begin(wanted, domain=dataflow.domain)
            except SinceViolationError as error:
                raise passed_import(dataflow, str(error.context["path"]), str(error.context["since"])) from error
            undo.callback(self._retainers.end, accepted)
            with self._lock:
                self._check(command)
                check_described(dataflow, self.directory, self.state.exports())
                self._do(command, *more)
                undo.pop_all()
                number = self.instance.collection(dataflow.export_ids[0]).run
                self._accepted[number], self._warnings[number] = accepted, tuple(accepted.warnings)
                self.worker.settle(runner)  # its logs are there when this returns: others may import them
        for warning in accepted.warnings:
            _log.warning("dataflow %r: %s", dataflow.name, warning)

    def _check(self, command: Command) -> None:
        """Refuse a command that does not go with what is there."""
        self._check_open()
        self.instance.check(command)
        if isinstance(command, CreateTimely | CreateInstance | InitializationComplete | AllowWrites):
            msg = f"could not take a command: found {type(command).__name__}, which the instance says by itself"
            raise InvalidUsageError(msg, hint="open the instance again, or call allow_writes")
        if isinstance(command, UpdateConfiguration):
            _check_configuration(command.values)
        if self.state.follows and self.instance.history.lasts(command):
            msg = f"could not take a command: found {type(command).__name__} in an instance that only follows"
            raise OwnershipError(msg, hint="send it to the instance that writes, or allow writes here")

    def _do(self, command: Command, *more: Schedule) -> None:
        """Write a command down if it lasts, and do it."""
        history, exports = self.instance.history, self.state.exports() if isinstance(command, Peek) else {}
        lasts = history.lasts(command)
        compacts = isinstance(command, AllowCompaction) and not command.frontier.is_empty
        if isinstance(command, AllowCompaction) and compacts:
            command = replace(command, frontier=may_forget(self.state, command.id, command.frontier))
        ledger = self.state.ledger
        if isinstance(command, CreateDataflow | AllowCompaction):
            ledger = ledger.put(*self.folders.marks_of(command, lasts=lasts))
        if lasts and not compacts:
            self._commands.store([*ledger.rows(), *rows_of((*history.lasting(), command, *more))])
        elif ledger.marks.keys() != self.state.ledger.marks.keys():
            self._commands.add(ledger.rows())
        self.state.ledger = ledger
        for each in (command, *more):
            self.instance.handle(each)
        if isinstance(command, Peek) and command.collection in exports:
            # Known from now on: it is answered also where the collection is dropped meanwhile.
            path, flow = self.directory.path_of(exports[command.collection]), self.state.dataflow_of(command.collection)
            self.peeks.know(command, path, "" if flow is None else flow.name)
        self._store_due = self._store_due or lasts
        self.wake.set()

    def warnings_of(self, id_: str) -> tuple[str, ...]:
        """Return what was warned of when the dataflow of an export was created by this process."""
        with self._lock:
            return self._warnings.get(self.instance.collection(id_).run, ())

    def _check_dataflow(self, dataflow: Dataflow) -> Runner:
        """Refuse a dataflow that cannot run, before it is written down; return what is to run it."""
        running = Running(-1, dataflow, dataflow.export_ids, started=False, complete=False, uppers={})
        there = self.state.exports()
        check_described(dataflow, self.directory, there)
        for export in dataflow.exports:
            name = self.directory.name_of(export)
            if name in self.state.ledger.marks:
                msg = f"could not create dataflow {dataflow.name!r}: found folder {name!r}, which another one had"
                raise InvalidUsageError(msg, hint="take one from Directory.new_folder")
        exports = self.state.readable() | {each.id: each for each in dataflow.exports}
        runner = runner_of(running, self.state, exports)
        runner.check_times()
        if self.state.follows and runner.written:
            msg = f"could not create dataflow {dataflow.name!r}: found an instance that only follows"
            raise OwnershipError(msg, hint="subscribe to what is maintained as it is, or allow writes here")
        runner.check()
        return runner

    def allow_writes(self) -> None:
        """Take over as the instance that writes, from whichever start did; there is no way back."""
        with self.opened():
            if not self.state.follows:
                return
            commands = reduced(commands_of(self._commands.rows()))
            readable = self.state.readable()
        flows = [each.dataflow for each in commands if isinstance(each, CreateDataflow)]
        accepted = self._retain_unwritten(flows, readable)
        with self.opened():
            try:
                self._take_over()
            except BaseException:
                self._retainers.end_all(but=self._accepted.values())
                raise
            try:
                self.worker.begin_again()  # to be written
                follow(self.state, to_write=True)
                self.instance.handle(AllowWrites())
                self._store()
            except Exception as error:
                # It holds the command log, and may not know all that is in it: another start reads it.
                self.error = error
                self._retainers.end_all()
                raise
            self._keep_accepted(accepted)
            self.wake.set()

    def write_down(self) -> None:
        """Write down at once what may be compacted, rather than within a second."""
        with self.opened():
            if self._store_due and not self.state.follows:
                self._store()

    def _store(self, ledger: Ledger | None = None) -> None:
        """Write the history down, and another ledger where one is given."""
        ledger = self.state.ledger if ledger is None else ledger
        self._commands.store([*ledger.rows(), *rows_of(self.instance.history.lasting())])
        self.state.ledger, self._store_due = ledger, False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have the lock of an instance that has not ended."""
        with self._lock:
            self._check_open()
            yield

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self._ended:
            msg = f"could not use the instance in {self.directory.path!r}: found it closed"
            raise InvalidUsageError(msg, hint="open it again")

    # Turns ---------------------------------------------------------------------------------------

    def turn(self) -> tuple[bool, tuple[Response, ...]]:
        """Look, begin what is due, and return whether anything happened, and the responses.

        Raises
        ------
        OwnershipError
            If another start took the instance over.
        """
        with self.opened():
            if not self._unreachable.is_due:
                return False, ()
            try:
                found = self._turn()
            except Exception as error:
                if not may_pass(error):
                    self.error = error
                    self._retainers.end_all(but=self._lasting())
                    raise
                if self.is_reachable:
                    _log.warning("the instance in %r cannot be looked at: %s", self.directory.path, error)
                self._unreachable.failed()
                return False, ()
            self._unreachable.passed()
            if found[0]:
                self._busy_at = self._now()
            return found

    @property
    def is_reachable(self) -> bool:
        """Whether the last turn could look at all that is there."""
        return not self._unreachable.n_failed

    def _turn(self) -> tuple[bool, tuple[Response, ...]]:
        if not self.state.follows:
            self.state.check_held(within_s=FAR_POLL_S)
        elif (version := self._commands.version(within_s=FAR_POLL_S)) != self._followed:
            follow(self.state)
            self._followed = version  # not before: what failed on the way is taken up again
        before = self.instance.version
        busy = self.worker.look()
        self.worker.settle()
        busy = self.worker.collect() or busy
        self.worker.begin_steps()
        self.peeks.answer()
        busy = self._subscribes.give() or busy
        self._copies.make()
        self._let_go()
        busy = self._relations.keep() or busy
        responses = self.instance.turn()
        self._keep_up()
        return busy or bool(responses) or self.instance.version != before, responses

    def _let_go(self) -> None:
        """Let go what was retained for requests that have ended, or retain it by themselves by now."""
        for number, accepted in list(self._accepted.items()):
            running = self.instance.run(number)
            if running is None or self._has_begun(running):
                del self._accepted[number]
                self._retainers.end(accepted)
        if len(self._warnings) > len(self.state.runs()):
            runs = {each.number for each in self.state.runs()}
            self._warnings = {number: each for number, each in self._warnings.items() if number in runs}

    def _has_begun(self, running: Running) -> bool:
        """Return whether a dataflow retains what it reads by itself, or needs nothing any more."""
        runner = self.worker.runner(running.number)
        left = [each for each in running.dataflow.exports if each.id in running.live]
        for export in left:
            upper = running.uppers.get(export.id)
            is_done = upper is not None and upper.is_empty
            if export.kind == "copy-to":
                is_done = self.instance.collection(export.id).hydrated
            if is_done or (runner is not None and runner.has_taken_over):
                continue
            if export.kind != "subscribe" or not self._subscribes.has_begun(export.id, running.number):
                return False
        return True

    def _fail(self, number: int, error: BaseException) -> None:
        """Answer those who wait for what a dataflow gives that has failed for good; peeks with the next look."""
        self.state.failed[number] = error
        self._subscribes.fail(number, error)
        self._copies.fail(number, error)

    def _forget(self, export: Export, given_again: bool) -> None:  # noqa: FBT001 - as it is called
        """Let go of what was kept for an export that was dropped."""
        self._compaction.forget(export.id)
        if not given_again:
            self._subscribes.forget(export.id)
            self._copies.forget(export.id)

    # Upkeep and the end --------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        """Once a second: write down compactions, allow those of indexes, delete what was dropped."""
        if self.state.follows or self._now() - self._upkeep_at < _UPKEEP_S:
            return
        self._upkeep_at = self._now()
        if self._store_due:
            try:
                self._store()
            except StorageError as error:
                _log.warning("what may be compacted is not written down yet: %s", error)
        self._compaction.compact()
        self.folders.sweep()
        self.folders.delete()

    def next_look_s(self) -> float:
        """Return how many seconds to wait at most before the next turn."""
        now = self._now()
        if not self.is_reachable:
            return max(self._unreachable.again_at - now, 0.001)
        is_far = self.worker.watches.only_far and not self._commands.log.core.storage.local
        due = self.worker.next_due_s()
        near_s = _POLL_S if now - self._busy_at < _IDLE_AFTER_S else _IDLE_POLL_S
        rest = FAR_POLL_S if is_far else near_s
        return max(rest if due is None else min(rest, due), 0.001)

    def close(self) -> None:
        """End: nothing more is begun, and what runs is waited for."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            mine = False
            self._let_go()
            try:
                mine = self.error is None and not self.state.follows and self._commands.is_mine()
                if mine and self._store_due:
                    self._store()
            except TimelyError as error:
                _log.warning("what may be compacted is not written down: %s", error)
        self.wake.set()
        self.worker.threads.shutdown(wait=True, cancel_futures=True)
        self.peeks.close()
        self._subscribes.close()
        self._copies.close()
        self.worker.end(dropped=mine)  # what is interactive ends with this process
        self._retainers.close(but=self._lasting())
        if mine:
            try:
                self.folders.sweep(ended=True)
                self.folders.delete(all_of_them=True)
            except TimelyError as error:
                _log.warning("what was dropped is not deleted yet: %s", error)

    def _lasting(self) -> list[Accepted]:
        """Return what is retained for dataflows that another start continues: it stays until it expires."""
        runs = {each.number for each in self.state.runs() if each.dataflow.lasts}
        return [accepted for number, accepted in self._accepted.items() if number in runs]


def _check_configuration(values: Mapping[str, object]) -> None:
    """Refuse names that mean nothing, here alone: a command log may have some, of another version."""
    known = (*DEFAULTS, *_OF_STEPS)
    unknown = [name for name in values if name not in known]
    if unknown:
        msg = f"could not configure the instance: found {unknown[0]}={shown(values[unknown[0]])}"
        raise InvalidOptionError(msg, hint=f"choose among {', '.join(known)}")
    for name in _OF_STEPS:
        value = values.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            msg = f"could not configure the instance: found {name}={shown(value)}"
            raise InvalidOptionError(msg, hint="give a whole number, 1 or more, or null for the usual one")
