"""The worker of an instance: runs the steps of its dataflows in threads, and watches the logs that they wait for.

A step takes what is new in the imports of one dataflow to its outputs. In each of its turns the driver lets the worker
look for news, begin steps in threads, and collect those that have ended. In a process that follows another one no step
runs, and outputs are only looked at. How one dataflow takes a step is in `spark_timely.compute.drive.runners`. Why an
output does not move, `spark_timely.compute.drive.causes` finds out.

Invariants
----------
1. An upper that is stated was read from the output's log.
2. What fails for one dataflow ends nothing else: it is shown, and tried again.
3. One step at a time of a dataflow. What is dropped while a step of it runs is let go after the step, and nothing of it
   is stated.
4. Where a step finds that an output has another owner, the worker looks whether another process has the instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_timely.compute.drive.runners import Runner, operators_of, runner_of
from spark_timely.compute.drive.state import FAR_POLL_S, State, may_pass
from spark_timely.compute.observation import ArrangementSizes, ImportUpper, Operators, Upper
from spark_timely.dataflow.engine.outputs import passes
from spark_timely.errors import LogMissingError, OwnershipError, described
from spark_timely.masking import masked_logger
from spark_timely.threads import pool
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from spark_timely.compute.command import Dataflow, Export
    from spark_timely.compute.instance import Running
    from spark_timely.log.log import Log

__all__ = ["Watches", "Worker"]

_log = masked_logger("spark_timely.compute")

# More than hydrate at once unless somebody says otherwise: what is small does not wait for what is large.
_STEPS_AT_ONCE: Final = 8
_MOST_STEPS: Final = 32
# A log that was looked for so often is missing; and a failure of a job that came so often comes again.
_LOOKS_MISSING: Final = 3
_MOST_FAILURES: Final = 6


class _Watched:
    """A log that somebody waits for news of.

    Attributes
    ----------
    readers : set of int
        The dataflows that read it.
    is_asked : bool
        Whether a peek waits for it.
    """

    def __init__(self, log: Log, now: Callable[[], float]) -> None:
        self.log, self._now, self._looked_at = log, now, now()
        self.readers: set[int] = set()
        self.is_asked = self._failed = False

    def has_news(self) -> bool:
        """Return whether there may be news; what is far, or cannot be looked at, is asked once a second."""
        if self._failed or not self.log.core.storage.local:
            if self._now() - self._looked_at < FAR_POLL_S:
                return False
        elif not self.log.core.has_news():
            return False
        self._looked_at = self._now()
        before = self.log.core.version
        failed, self._failed = self._failed, True
        self.log.refresh()
        self._failed = False
        return failed or self.log.core.version != before


class Watches:
    """The logs, by path, that dataflows read or peeks wait for.

    Parameters
    ----------
    state : State
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._watched: dict[str, _Watched] = {}

    def _of(self, path: str) -> _Watched:
        """Return what watches a log, opened where none does yet."""
        return self._watched.get(path) or _Watched(self._state.directory.open_log(path), self._state.now)

    def _sweep(self) -> None:
        """Watch nothing that nobody waits for."""
        self._watched = {path: each for path, each in self._watched.items() if each.readers or each.is_asked}

    def add(self, number: int, paths: Iterable[str]) -> None:
        """Watch logs for a dataflow.

        Raises
        ------
        TimelyError
            If one cannot be opened. Then nothing is watched that was not.
        """
        opened = {path: self._of(path) for path in paths}
        self._watched |= opened
        for each in opened.values():
            each.readers.add(number)

    def remove(self, number: int) -> None:
        """Watch nothing for a dataflow any more."""
        for each in self._watched.values():
            each.readers.discard(number)
        self._sweep()

    def readers(self, path: str) -> AbstractSet[int]:
        """Return which dataflows read a log."""
        return self._watched[path].readers if path in self._watched else set()

    def look(self) -> tuple[bool, dict[int, None]]:
        """Return whether any log has news, and which dataflows read those that have."""
        news, found = False, dict[int, None]()
        for path, watched in self._watched.items():
            try:
                if not watched.has_news():
                    continue
            except Exception as error:  # noqa: BLE001 - those who read it say so
                _log.debug("log %r cannot be looked at: %s", path, error)
            news = True
            found |= dict.fromkeys(watched.readers)
        return news, found

    def version_for_peek(self, path: str) -> object:
        """Return what changes where a log has news that a peek waits for; it is watched from now on."""
        try:
            watched = self._watched[path] = self._of(path)
        except Exception as error:  # noqa: BLE001 - it is the answer, once it is asked for there
            return str(error)
        watched.is_asked = True
        return watched.log.core.version

    def keep_for_peeks(self, paths: AbstractSet[str]) -> None:
        """Watch logs no longer that no peek waits for, except these."""
        for path, watched in self._watched.items():
            watched.is_asked = watched.is_asked and path in paths
        self._sweep()

    @property
    def only_far(self) -> bool:
        """Whether all logs are in stores, where each look is a request."""
        return all(not watched.log.core.storage.local for watched in self._watched.values())


@dataclass
class _Flow:
    """A dataflow that is there: what runs it, what is due, and what has failed so far.

    Attributes
    ----------
    runner : Runner or None
        None while it does not run.
    backoff : Backoff or None
        When it is tried again, where it could not begin.
    step : Future or None
        The step that runs now, or has ended and was not collected.
    due_at : float or None
        When it has work although nothing is new.
    look_failed : bool
        Whether the last look at it failed.
    failed_looks, failed_steps : int
        Looks in a row at which outputs had failed; steps in a row that failed as a whole.
    """

    number: int
    dataflow: Dataflow
    runner: Runner | None = None
    backoff: Backoff | None = None
    step: Future[bool] | None = None
    due_at: float | None = None
    look_failed: bool = False
    failed_looks: int = 0
    failed_steps: int = 0


class Worker:
    """Runs the dataflows of an instance, in this process.

    Parameters
    ----------
    state : State
    on_failed : callable
        Is called with the number of a dataflow that has failed for good, as things are, and with the error.
    on_dropped : callable
        Is called with each export of a dataflow that is let go because it was dropped, and with whether another export
        has its id by now.

    Attributes
    ----------
    state : State
    moved : set of int
        Dataflows whose outputs or imports may have moved; each look empties it.
    watches : Watches
    threads : concurrent.futures.ThreadPoolExecutor
        Where steps run, and copies.
    """

    def __init__(
        self,
        state: State,
        *,
        on_failed: Callable[[int, BaseException], None],
        on_dropped: Callable[[Export, bool], None],
    ) -> None:
        self.state, self._on_failed, self._on_dropped = state, on_failed, on_dropped
        self.moved: set[int] = set()
        self.watches = Watches(state)
        self.threads = pool("step", _MOST_STEPS)
        self._flows: dict[int, _Flow] = {}
        self._with_work: dict[int, None] = {}  # in the order in which it came
        self._seen = -1  # version of the instance
        self._followed_at = state.now()

    def runner(self, number: int) -> Runner | None:
        """Return what runs a dataflow; None while it does not run."""
        flow = self._flows.get(number)
        return None if flow is None else flow.runner

    def runners(self) -> list[Runner]:
        """Return what runs the dataflows that have begun here."""
        return [flow.runner for flow in self._flows.values() if flow.runner is not None]

    # Dataflows that are there --------------------------------------------------------------------

    def look(self) -> bool:
        """Look for news of imports; note which dataflows have work."""
        news, readers = self.watches.look()
        self._with_work |= readers
        return news

    def settle(self, checked: Runner | None = None) -> None:
        """Begin the dataflows that are there, and let go of those that are not.

        Parameters
        ----------
        checked : Runner, optional
            What was made to check a dataflow that is being created.
        """
        instance = self.state.instance
        if self._seen == instance.version and not any(flow.backoff for flow in self._flows.values()):
            return
        self._seen = instance.version
        runs = {each.number: each for each in self.state.runs()}
        for flow in [flow for number, flow in self._flows.items() if number not in runs]:
            if flow.runner is None:
                self._forget(flow)
            else:
                self._let_go(flow, flow.runner, dropped=True)
        readable = self.state.readable()
        for number, running in runs.items():
            flow = self._flows.setdefault(number, _Flow(number, running.dataflow))
            if flow.runner is None and (flow.backoff is None or flow.backoff.is_due):
                self._begin(flow, running, readable, checked)

    def _begin(self, flow: _Flow, running: Running, readable: Mapping[str, Export], checked: Runner | None) -> None:
        flow.dataflow = running.dataflow
        runner = checked if checked is not None and checked.dataflow == running.dataflow else None
        try:
            runner = runner or runner_of(running, self.state, readable)
            runner.number = running.number
            if self.state.follows:
                runner.open_outputs()
            else:
                runner.begin()
            self.watches.add(running.number, [runner.sources[name] for name in runner.logs])
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            self._put_off(flow, running, error)
            if runner is not None:
                runner.end()
            self._check_held_after(error)
            return
        flow.runner, flow.backoff = runner, None
        self._with_work.setdefault(running.number)
        self.state.tell_error(running.number, running.live, None)
        self.state.instance.tell(Operators(running.number, operators_of(runner.plan)))
        self._guarded(flow, runner, self._tell_uppers)

    def _put_off(self, flow: _Flow, running: Running, error: Exception) -> None:
        """Say that a dataflow could not begin, and let it be tried again."""
        backoff = flow.backoff = flow.backoff or Backoff(self.state.now)
        tries = backoff.n_failed
        backoff.failed()
        if tries == 0:
            _log.error("dataflow %r does not run: %s", running.dataflow.name, error)
        self.state.tell_error(running.number, running.live, error)
        for export in running.dataflow.exports:  # what was written stays readable as far as it is
            if export.id in running.live and export.kind in ("index", "log"):
                self._tell_upper_of(running, export)
        # A log that another start is about to make is there in a moment.
        if _lasts(error, tries) and (tries >= _LOOKS_MISSING or not isinstance(error, LogMissingError)):
            self._on_failed(running.number, error)

    def _tell_upper_of(self, running: Running, export: Export) -> None:
        """State how far an output is that nothing writes now, if it is this instance's."""
        path = self.state.directory.path_of(export)
        try:
            log = None if path is None else self.state.own_log(path, running.dataflow.name)
        except Exception as error:  # noqa: BLE001 - the next try says so
            _log.debug("output %r cannot be looked at: %s", export.id, error)
            return
        if log is not None:
            self.state.instance.tell(Upper(export.id, running.number, log.frontier()))

    def _guarded(self, flow: _Flow, runner: Runner, act: Callable[[_Flow, Runner], None]) -> None:
        """Do something for one dataflow; what fails is shown, and done again later (invariant 2)."""
        failed_before, flow.look_failed = flow.look_failed, False
        try:
            act(flow, runner)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            flow.look_failed = True
            self.state.tell_error(flow.number, runner.dataflow.export_ids, error)
            flow.due_at = self.state.now() + FAR_POLL_S
            self._check_held_after(error)
        else:
            if failed_before and not runner.failures:
                self.state.tell_error(flow.number, runner.dataflow.export_ids, None)

    def _check_held_after(self, error: Exception) -> None:
        if isinstance(error, OwnershipError) and not self.state.follows:
            self.state.check_held()

    def _let_go(self, flow: _Flow, runner: Runner, *, dropped: bool = False) -> None:
        """Run a dataflow no longer, as soon as no step of it runs.

        Parameters
        ----------
        flow : _Flow
        runner : Runner
            What runs it.
        dropped : bool
            Whether it is gone for good. A subscribe of one that is not continues where it is: it reads a log.
        """
        if flow.step is not None and not flow.step.done():
            return  # its step ends first (invariant 3)
        flow.runner = flow.step = flow.due_at = None
        flow.look_failed = False
        self._with_work.pop(flow.number, None)
        self.watches.remove(flow.number)
        # Another one of the same name and outputs is the same consumer.
        again = any(other.consumer == runner.consumer for other in self.runners())
        try:
            runner.end()
            if dropped and not again and not self.state.follows:
                runner.release()
        except Exception as error:  # noqa: BLE001 - it is only in the way
            _log.warning("dataflow %r has not let go of everything: %s", runner.dataflow.name, error)
        if dropped:
            self._forget(flow)

    def _forget(self, flow: _Flow) -> None:
        """Keep nothing of a dataflow that is gone for good."""
        del self._flows[flow.number]
        self.state.errors.pop(flow.number, None)
        self.state.failed.pop(flow.number, None)
        there = self.state.exports()
        for export in flow.dataflow.exports:
            self._on_dropped(export, export.id in there)

    def _running(self) -> list[tuple[_Flow, Runner]]:
        return [(flow, flow.runner) for flow in self._flows.values() if flow.runner is not None]

    def begin_again(self) -> None:
        """Let go of all dataflows: they begin again as is right now."""
        for flow, runner in self._running():
            self._let_go(flow, runner)
        for flow in self._flows.values():
            flow.backoff = None
        self._seen = -1

    def try_again(self) -> None:
        """Try at once what waits for its next try."""
        for flow in self._flows.values():
            if flow.backoff is not None:
                flow.backoff.hurry()

    # Steps ---------------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """Begin a step of each dataflow that has work, first come first served, as many at once as is allowed."""
        state, now = self.state, self.state.now()
        for each in self._flows.values():
            if each.due_at is not None and each.due_at <= now:
                each.due_at = None
                self._with_work.setdefault(each.number)
        if state.follows:
            self._tell_followed()
            return
        if not self._with_work:
            return
        configured = state.instance.configuration.get("steps_at_once")
        most = configured if isinstance(configured, int) and configured > 0 else _STEPS_AT_ONCE
        n_running = sum(flow.step is not None for flow in self._flows.values())
        started = {each.number for each in state.started()}
        for number in list(self._with_work):
            if n_running >= most:
                return
            flow, runner = self._flows.get(number), self.runner(number)
            if flow is None or runner is None:
                del self._with_work[number]  # it has work once it has begun
                continue
            if flow.step is not None or number not in started:
                continue
            del self._with_work[number]
            if runner.engine is None:
                self._guarded(flow, runner, self._look_at)
                continue
            # As it is now: what is configured during a step is of the next one.
            most_bytes = state.instance.configuration.get("max_bytes_per_step")
            flow.step = self.threads.submit(self._step, runner, most_bytes)
            flow.step.add_done_callback(lambda _: state.wake.set())
            n_running += 1

    def _step(self, runner: Runner, max_bytes: object) -> bool:
        options = {path: self.state.directory.options(path) for path in runner.paths}
        run_tasks = self.state.runtime.tasks(runner.dataflow.name, options)
        more = runner.step(run_tasks, max_bytes if isinstance(max_bytes, int) else None)
        runner.look()
        return more

    def collect(self) -> bool:
        """State what steps that ended have brought; return whether any ended."""
        ended = False
        for flow, runner in self._running():
            step = flow.step
            if step is None or not step.done():
                continue
            ended, flow.step = True, None
            error = step.exception()
            if self.state.instance.run(flow.number) is None:
                self._let_go(flow, runner, dropped=True)
            elif error is not None:
                self._fail(flow, runner, error)
            else:
                flow.failed_steps = 0
                if step.result():
                    self._with_work.setdefault(flow.number)
                rest = None if runner.engine is None else runner.engine.rest
                if rest is not None:
                    flow.due_at = self.state.now() + rest
                self._guarded(flow, runner, self._tell_uppers)
        return ended

    def _fail(self, flow: _Flow, runner: Runner, error: BaseException) -> None:
        """Begin a dataflow once more whose step has failed as a whole."""
        flow.failed_steps += 1
        _log.warning("a step of dataflow %r has failed: %s", flow.dataflow.name, described(error))
        self._seen = -1
        self._let_go(flow, runner)
        flow.backoff = Backoff(self.state.now, flow.failed_steps - 1)
        flow.backoff.failed()
        self.state.tell_error(flow.number, flow.dataflow.export_ids, error)
        if _lasts(error, flow.failed_steps):
            self._on_failed(flow.number, error)

    # Telling -------------------------------------------------------------------------------------

    def _look_at(self, flow: _Flow, runner: Runner) -> None:
        runner.look()
        self._tell_imports(flow.number, runner)

    def _tell_uppers(self, flow: _Flow, runner: Runner) -> None:
        instance, number, failures = self.state.instance, flow.number, runner.failures
        for failed in failures:
            self._check_held_after(failed)
        uppers = runner.uppers()
        for export in runner.dataflow.exports:
            if export.id not in uppers or export.kind in ("subscribe", "copy-to"):
                continue
            instance.tell(Upper(export.id, number, uppers[export.id]))
            self._with_work |= dict.fromkeys(self.watches.readers(runner.path_of(export)) - {number})
        self._tell_imports(number, runner)
        sizes = runner.sizes()
        if sizes:
            instance.tell(ArrangementSizes(number, sizes))
        self.state.tell_error(number, runner.dataflow.export_ids, failures[0] if failures else None)
        flow.failed_looks = flow.failed_looks + 1 if failures else 0
        lasting = next((error for error in failures if _lasts(error, flow.failed_looks)), None)
        if lasting is not None:
            self._on_failed(number, lasting)

    def _tell_imports(self, number: int, runner: Runner) -> None:
        self.moved.add(number)
        for name, upper in runner.upper_of_imports.items():
            self.state.instance.tell(ImportUpper(number, name, upper))

    def _tell_followed(self) -> None:
        """State how far the outputs are that another start writes."""
        now = self.state.now()
        far = now - self._followed_at >= FAR_POLL_S
        if far:
            self._followed_at = now
        have_work, self._with_work = self._with_work, {}

        def tell(flow: _Flow, runner: Runner) -> None:
            if runner.open_outputs(far=far) or flow.number in have_work:
                runner.look()
                self._tell_uppers(flow, runner)

        for flow, runner in self._running():
            if flow.due_at is None:
                self._guarded(flow, runner, tell)

    def next_due_s(self) -> float | None:
        """Return in how many seconds something is due although nothing is new; None if nothing is."""
        due = [flow.due_at for flow in self._flows.values() if flow.due_at is not None]
        return min(due) - self.state.now() if due else None

    def end(self, *, dropped: bool) -> None:
        """Let go of all dataflows.

        Parameters
        ----------
        dropped : bool
            Whether what is interactive is dropped: it is of this process.
        """
        there = {each.number for each in self.state.runs()}
        for flow, runner in self._running():
            is_gone = flow.number not in there or flow.dataflow.interactive
            self._let_go(flow, runner, dropped=dropped and is_gone)


def _lasts(error: BaseException, tries: int) -> bool:
    """Return whether a failure comes again as long as things are as they are."""
    return not may_pass(error) and (tries >= _MOST_FAILURES or not passes(type(error).__name__))
