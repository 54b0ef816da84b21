"""Running the dataflows of an instance: hosting those that are there, and their steps, each in a thread.

Invariants
----------
1. An upper that is stated was read from the output's log.
2. What fails for one dataflow ends nothing else: it is shown, and tried again.
3. One step at a time of a dataflow. What is dropped while a step of it runs is let go after the step, and nothing of it
   is stated.
4. Whoever finds an output taken over looks whether the instance was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_timely.compute.drive.context import FAR_POLL_S, Context, may_pass
from spark_timely.compute.drive.hosted import Hosted, Surroundings
from spark_timely.compute.drive.resuming import is_of_another, own_log
from spark_timely.compute.observation import ArrangementSizes, ImportUpper, Operators, Upper
from spark_timely.dataflow.engine.outputs import passes, pause_s
from spark_timely.errors import LogMissingError, OwnershipError, described
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.watching import Watches
    from spark_timely.compute.instance import Running

__all__ = ["Hosting"]

_log = masked_logger("spark_timely.compute")

# More than hydrate at once unless somebody says otherwise: what is small does not wait for what is large.
_STEPS_AT_ONCE: Final = 8
_MOST_STEPS: Final = 32
# A log that was looked for so often is missing; and a failure of a job that came so often comes again.
_LOOKS_MISSING: Final = 3
_MOST_FAILURES: Final = 6


class Hosting:
    """The dataflows of an instance, as they run in this process.

    Parameters
    ----------
    context : Context
    watches : Watches
    hosted : dict of int to Hosted
        What is hosted, by number; others look into it.
    on_moved : callable
        Is called with the number of a dataflow whose outputs or imports may have moved.
    on_failed : callable
        Is called with the number of a dataflow that has failed for good, as things are, and with the error.
    on_dropped : callable
        Is called with each export of a dataflow that is let go because it was dropped, and with whether another export
        has its id by now.
    """

    def __init__(
        self,
        context: Context,
        watches: Watches,
        hosted: dict[int, Hosted],
        *,
        on_moved: Callable[[int], None],
        on_failed: Callable[[int, BaseException], None],
        on_dropped: Callable[[Export, bool], None],
    ) -> None:
        self._context, self._watches, self._hosted = context, watches, hosted
        self._on_moved, self._on_failed, self._on_dropped = on_moved, on_failed, on_dropped
        working = context.working
        self.around = Surroundings(
            context.place,
            None,
            working.files_of,
            working.retain,
            working.task_bodies,
            working.functions,
            working.keyed_bytes,
            is_of_another=partial(is_of_another, context),
        )
        self.checked: Hosted | None = None
        """What was opened to check a dataflow that is being created."""
        self.workers = ThreadPoolExecutor(_MOST_STEPS, thread_name_prefix="spark_timely-step")
        # Why a dataflow is not hosted, how often in a row it failed, and when to try again.
        self._broken: dict[int, tuple[BaseException, int, float]] = {}
        self._dirty: dict[int, None] = {}  # in the order in which they came
        self._due: dict[int, float] = {}
        self._busy: dict[int, Future[bool]] = {}
        self._steps_failed: dict[int, int] = {}
        # Looks in a row at which outputs had failed.
        self._failed_looks: dict[int, int] = {}
        self._looks_failed: set[int] = set()
        self._seen = -1
        self._followed_at = context.now()

    # Hosting -------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Look for news of imports; note which dataflows have work."""
        news, dirty = self._watches.look()
        self._dirty |= dirty
        return news

    def settle(self) -> None:
        """Host the dataflows that are there, and let go of those that are not."""
        instance = self._context.instance
        if self._seen == instance.version and not self._broken:
            return
        self._seen = instance.version
        runs = {each.number: each for each in self._context.runs()}
        for number in [number for number in self._hosted if number not in runs]:
            self.let_go(number, dropped=True)
        for number in [number for number in self._broken if number not in runs]:
            del self._broken[number]
        readable = self._context.readable()
        for number, running in runs.items():  # one turn per dataflow
            if number not in self._hosted and self._is_due(number):
                self._host(running, readable)

    def _is_due(self, number: int) -> bool:
        return number not in self._broken or self._broken[number][2] <= self._context.now()

    def _host(self, running: Running, readable: Mapping[str, Export]) -> None:
        tries = self._broken.pop(running.number, (None, 0, 0.0))[1]
        hosted = None
        try:
            hosted = self.checked
            if hosted is None or hosted.dataflow != running.dataflow:
                hosted = Hosted(running, self.around, readable)
            hosted.number = running.number
            if self._context.follows:
                hosted.open_outputs()
            else:
                hosted.begin()
            opened = self._watches.open(hosted.sources[name] for name in hosted.logs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            self._break(running, error, tries)
            if hosted is not None:
                hosted.end()
            self._check_held_after(error)
            return
        self._hosted[running.number] = hosted
        self._dirty.setdefault(running.number)
        self._context.tell_error(running.number, running.live, None)
        self._watches.add(running.number, opened)
        self._context.instance.tell(Operators(running.number, hosted.operators))
        self._guarded(running.number, hosted, self._tell_uppers)

    def _break(self, running: Running, error: Exception, tries: int) -> None:
        self._broken[running.number] = error, tries + 1, self._context.now() + pause_s(tries + 1)
        if tries == 0:
            _log.error("dataflow %r does not run: %s", running.dataflow.name, error)
        self._context.tell_error(running.number, running.live, error)
        for export in running.dataflow.exports:  # what was written stays readable as far as it is
            if export.id in running.live and export.kind in ("index", "log"):
                self._tell_upper_of(running, export)
        # A log that another start is about to make is there in a moment.
        if _lasts(error, tries) and (tries >= _LOOKS_MISSING or not isinstance(error, LogMissingError)):
            self._on_failed(running.number, error)

    def _tell_upper_of(self, running: Running, export: Export) -> None:
        """State how far an output is that nothing writes now, if it is this instance's."""
        path = self._context.place.path_of(export)
        try:
            log = None if path is None else own_log(self._context, path, running.dataflow.name)
        except Exception as error:  # noqa: BLE001 - the next try says so
            _log.debug("output %r cannot be looked at: %s", export.id, error)
            return
        if log is not None:
            self._context.instance.tell(Upper(export.id, running.number, log.frontier()))

    def _guarded(self, number: int, hosted: Hosted, act: Callable[[int, Hosted], None]) -> None:
        """Do something for one dataflow; what fails is shown, and done again later (invariant 2)."""
        try:
            act(number, hosted)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            self._looks_failed.add(number)
            self._context.tell_error(number, hosted.dataflow.export_ids, error)
            self._due[number] = self._context.now() + FAR_POLL_S
            self._check_held_after(error)
        else:
            if number in self._looks_failed and not hosted.failures:
                self._context.tell_error(number, hosted.dataflow.export_ids, None)
            self._looks_failed.discard(number)

    def _check_held_after(self, error: Exception) -> None:
        if isinstance(error, OwnershipError) and not self._context.follows:
            self._context.check_held()

    def let_go(self, number: int, *, dropped: bool = False) -> None:
        """Host a dataflow no longer, as soon as no step of it runs.

        Parameters
        ----------
        number : int
        dropped : bool
            Whether it is gone for good. A subscribe of one that is not continues where it is: it reads a log.
        """
        hosted = self._hosted[number]
        if number in self._busy and not self._busy[number].done():
            return  # its step ends first (invariant 3)
        del self._hosted[number]
        self._busy.pop(number, None)
        self._dirty.pop(number, None)
        self._due.pop(number, None)
        self._looks_failed.discard(number)
        self._watches.remove(number)
        # Another one of the same name and outputs is the same consumer.
        again = any(other.consumer == hosted.consumer for other in self._hosted.values())
        try:
            hosted.end()
            if dropped and not again and not self._context.follows:
                hosted.release()
        except Exception as error:  # noqa: BLE001 - it is only in the way
            _log.warning("dataflow %r has not let go of everything: %s", hosted.dataflow.name, error)
        if not dropped:
            return
        self._context.errors.pop(number, None)
        self._context.failed.pop(number, None)
        self._steps_failed.pop(number, None)
        self._failed_looks.pop(number, None)
        there = self._context.exports()
        for export in hosted.dataflow.exports:  # one turn per export
            self._on_dropped(export, export.id in there)

    def host_again(self) -> None:
        """Let go of all dataflows: they are hosted again as is right now."""
        for number in list(self._hosted):
            self.let_go(number)
        self._broken.clear()
        self._seen = -1

    def try_again(self) -> None:
        """Try at once what waits for its next try."""
        now = self._context.now()
        self._broken = {number: (error, tries, now) for number, (error, tries, _) in self._broken.items()}

    # Steps ---------------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """Begin a step of each dataflow that has work, first come first served, as many at once as is allowed."""
        context, now = self._context, self._context.now()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._dirty.setdefault(number)
        if context.follows:
            self._tell_followed()
            return
        if not self._dirty:
            return
        configured = context.instance.configuration.get("steps_at_once")
        most = configured if isinstance(configured, int) and configured > 0 else _STEPS_AT_ONCE
        started = {each.number for each in context.started()}
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
            if not hosted.has_begun:
                self._guarded(number, hosted, self._look_at)
                continue
            # As it is now: what is configured during a step is of the next one.
            most_bytes = context.instance.configuration.get("max_bytes_per_step")
            future = self.workers.submit(self._step, hosted, most_bytes)
            future.add_done_callback(lambda _: context.wake.set())
            self._busy[number] = future

    def _step(self, hosted: Hosted, max_bytes: object) -> bool:
        place = self._context.place
        options = {path: place.options(path) for path in hosted.paths}
        run_tasks = self._context.working.tasks(hosted.dataflow.name, options)
        more = hosted.step(run_tasks, max_bytes if isinstance(max_bytes, int) else None)
        hosted.look()
        return more

    def collect(self) -> bool:
        """State what steps that ended have brought; return whether any ended."""
        done = [number for number, future in self._busy.items() if future.done()]
        for number in done:  # one turn per step
            future, hosted = self._busy.pop(number), self._hosted.get(number)
            if hosted is None:
                continue
            if self._context.instance.run(number) is None:
                self.let_go(number, dropped=True)
                continue
            error = future.exception()
            if error is not None:
                self._fail(number, hosted, error)
                continue
            self._steps_failed.pop(number, None)
            if future.result():
                self._dirty.setdefault(number)
            due = hosted.due_s
            if due is not None:
                self._due[number] = self._context.now() + due
            self._guarded(number, hosted, self._tell_uppers)
        return bool(done)

    def _fail(self, number: int, hosted: Hosted, error: BaseException) -> None:
        """Host a dataflow once more whose step has failed as a whole."""
        tries = self._steps_failed[number] = self._steps_failed.get(number, 0) + 1
        _log.warning("a step of dataflow %r has failed: %s", hosted.dataflow.name, described(error))
        self._seen = -1
        self.let_go(number)
        self._broken[number] = error, tries, self._context.now() + pause_s(tries)
        self._context.tell_error(number, hosted.dataflow.export_ids, error)
        if _lasts(error, tries):
            self._on_failed(number, error)

    # Telling -------------------------------------------------------------------------------------

    def _look_at(self, number: int, hosted: Hosted) -> None:
        hosted.look()
        self._tell_imports(number, hosted)

    def _tell_uppers(self, number: int, hosted: Hosted) -> None:
        instance = self._context.instance
        for failed in hosted.failures:
            self._check_held_after(failed)
        uppers = hosted.uppers()
        for export in hosted.dataflow.exports:  # one turn per export
            if export.id not in uppers or export.kind in ("subscribe", "copy-to"):
                continue
            instance.tell(Upper(export.id, number, uppers[export.id]))
            self._dirty |= dict.fromkeys(self._watches.readers(hosted.path_of(export)) - {number})
        self._tell_imports(number, hosted)
        sizes = hosted.sizes()
        if sizes:
            instance.tell(ArrangementSizes(number, sizes))
        failures = hosted.failures
        self._context.tell_error(number, hosted.dataflow.export_ids, failures[0] if failures else None)
        tries = self._failed_looks[number] = self._failed_looks.get(number, 0) + 1 if failures else 0
        lasting = next((error for error in failures if _lasts(error, tries)), None)
        if lasting is not None:
            self._on_failed(number, lasting)

    def _tell_imports(self, number: int, hosted: Hosted) -> None:
        self._on_moved(number)
        for name, upper in hosted.upper_of_imports.items():  # one turn per import
            self._context.instance.tell(ImportUpper(number, name, upper))

    def _tell_followed(self) -> None:
        """State how far the outputs are that another start writes."""
        now = self._context.now()
        far = now - self._followed_at >= FAR_POLL_S
        if far:
            self._followed_at = now
        dirty, self._dirty = self._dirty, {}

        def tell(number: int, hosted: Hosted) -> None:
            if hosted.open_outputs(far=far) or number in dirty:
                hosted.look()
                self._tell_uppers(number, hosted)

        for number, hosted in self._hosted.items():  # one turn per dataflow
            if number not in self._due:
                self._guarded(number, hosted, tell)

    def next_due_s(self) -> float | None:
        """Return in how many seconds something is due although nothing is new; None if nothing is."""
        now = self._context.now()
        return min((due - now for due in self._due.values()), default=None)

    def end(self, *, dropped: bool) -> None:
        """Let go of all dataflows.

        Parameters
        ----------
        dropped : bool
            Whether what is interactive is dropped: it is of this process.
        """
        there = {each.number for each in self._context.runs()}
        for number in list(self._hosted):
            is_gone = number not in there or self._hosted[number].dataflow.interactive
            self.let_go(number, dropped=dropped and is_gone)


def _lasts(error: BaseException, tries: int) -> bool:
    """Return whether a failure comes again as long as things are as they are."""
    return not may_pass(error) and (tries >= _MOST_FAILURES or not passes(type(error).__name__))
