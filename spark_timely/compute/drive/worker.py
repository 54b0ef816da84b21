"""The worker of an instance: runs the steps of its dataflows in threads, and watches the logs that they wait for.

A step takes what is new in the imports of one dataflow to its outputs. In each of its turns the driver lets the worker
look for news, begin steps in threads, and collect those that have ended. Of a process that follows another one no step
runs: its outputs are looked at only. The worker also knows why an output does not move (`why`, `failure_behind`).

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
from typing import TYPE_CHECKING, Final

from spark_timely.compute.drive.runners import Runner, operators_of, runner_of
from spark_timely.compute.drive.runtime import has_lost_session
from spark_timely.compute.drive.state import FAR_POLL_S, State, may_pass
from spark_timely.compute.observation import ArrangementSizes, ImportUpper, Operators, Upper
from spark_timely.dataflow.engine.outputs import passes
from spark_timely.errors import LogMissingError, OperatorError, OwnershipError, described
from spark_timely.masking import masked_logger
from spark_timely.threads import pool
from spark_timely.work import Backoff

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from spark_timely.compute.command import Dataflow, Export
    from spark_timely.compute.instance import Running
    from spark_timely.log.log import Log
    from spark_timely.time.antichain import Antichain

__all__ = ["Watches", "Worker"]

_log = masked_logger("spark_timely.compute")

# More than hydrate at once unless somebody says otherwise: what is small does not wait for what is large.
_STEPS_AT_ONCE: Final = 8
_MOST_STEPS: Final = 32
# A log that was looked for so often is missing; and a failure of a job that came so often comes again.
_LOOKS_MISSING: Final = 3
_MOST_FAILURES: Final = 6


class _Watched:
    """A log that somebody waits for news of."""

    def __init__(self, log: Log, now: Callable[[], float]) -> None:
        self.log, self._now, self._looked_at = log, now, now()
        self._failed = False

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
    """The logs that dataflows read, by path, with the numbers of these; and those that peeks wait for.

    Parameters
    ----------
    state : State
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._watched: dict[str, _Watched] = {}
        self._readers: dict[str, set[int]] = {}
        self._asked: set[str] = set()

    def _new(self, path: str) -> _Watched:
        return _Watched(self._state.directory.open_log(path), self._state.now)

    def add(self, number: int, paths: Iterable[str]) -> None:
        """Watch logs for a dataflow.

        Raises
        ------
        TimelyError
            If one cannot be opened. Then nothing is watched that was not.
        """
        opened = {path: self._watched.get(path) or self._new(path) for path in paths}
        self._watched |= opened
        for path in opened:
            self._readers.setdefault(path, set()).add(number)

    def remove(self, number: int) -> None:
        """Watch nothing for a dataflow any more."""
        for readers in self._readers.values():
            readers.discard(number)
        for path in [path for path, readers in self._readers.items() if not readers]:
            del self._readers[path]
            if path not in self._asked:
                self._watched.pop(path, None)

    def readers(self, path: str) -> AbstractSet[int]:
        """Return which dataflows read a log."""
        return self._readers.get(path, set())

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
            found |= dict.fromkeys(self.readers(path))
        return news, found

    def version_for_peek(self, path: str) -> object:
        """Return what changes where a log has news that a peek waits for; it is watched from now on."""
        self._asked.add(path)
        watched = self._watched.get(path)
        if watched is None:
            try:
                watched = self._watched[path] = self._new(path)
            except Exception as error:  # noqa: BLE001 - it is the answer, once it is asked for there
                return str(error)
        return watched.log.core.version

    def keep_for_peeks(self, paths: AbstractSet[str]) -> None:
        """Watch logs no longer that no peek waits for, except these."""
        for path in self._asked - paths:
            self._asked.remove(path)
            if not self._readers.get(path):
                self._watched.pop(path, None)

    @property
    def only_far(self) -> bool:
        """Whether all logs are in stores, where each look is a request."""
        return all(not watched.log.core.storage.local for watched in self._watched.values())


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
    runners : dict of int to Runner
        What runs the dataflows that have begun here, by number.
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
        self._state, self._on_failed, self._on_dropped = state, on_failed, on_dropped
        self.runners: dict[int, Runner] = {}
        self.moved: set[int] = set()
        self.watches = Watches(state)
        self.threads = pool("step", _MOST_STEPS)
        # Dataflows that do not run here, as they failed, and when each is tried again.
        self._broken: dict[int, tuple[Dataflow, Backoff]] = {}
        self._dirty: dict[int, None] = {}  # in the order in which they came
        self._due: dict[int, float] = {}
        self._busy: dict[int, Future[bool]] = {}
        self._steps_failed: dict[int, int] = {}
        # Looks in a row at which outputs had failed.
        self._failed_looks: dict[int, int] = {}
        self._looks_failed: set[int] = set()
        self._seen = -1
        self._followed_at = state.now()

    # Dataflows that are there --------------------------------------------------------------------

    def look(self) -> bool:
        """Look for news of imports; note which dataflows have work."""
        news, dirty = self.watches.look()
        self._dirty |= dirty
        return news

    def settle(self, checked: Runner | None = None) -> None:
        """Begin the dataflows that are there, and let go of those that are not.

        Parameters
        ----------
        checked : Runner, optional
            What was made to check a dataflow that is being created.
        """
        instance = self._state.instance
        if self._seen == instance.version and not self._broken:
            return
        self._seen = instance.version
        runs = {each.number: each for each in self._state.runs()}
        for number in [number for number in self.runners if number not in runs]:
            self.let_go(number, dropped=True)
        for number in [number for number in self._broken if number not in runs]:
            self._forget(number, self._broken.pop(number)[0])
        readable = self._state.readable()
        for number, running in runs.items():
            if number not in self.runners and (number not in self._broken or self._broken[number][1].is_due):
                self._begin(running, readable, checked)

    def _begin(self, running: Running, readable: Mapping[str, Export], checked: Runner | None) -> None:
        _, backoff = self._broken.pop(running.number, (None, Backoff(self._state.now)))
        runner = checked if checked is not None and checked.dataflow == running.dataflow else None
        try:
            runner = runner or runner_of(running, self._state, readable)
            runner.number = running.number
            if self._state.follows:
                runner.open_outputs()
            else:
                runner.begin()
            self.watches.add(running.number, [runner.sources[name] for name in runner.logs])
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            self._broken[running.number] = running.dataflow, backoff
            self._break(running, error, backoff)
            if runner is not None:
                runner.end()
            self._check_held_after(error)
            return
        self.runners[running.number] = runner
        self._dirty.setdefault(running.number)
        self._state.tell_error(running.number, running.live, None)
        self._state.instance.tell(Operators(running.number, operators_of(runner.plan)))
        self._guarded(running.number, runner, self._tell_uppers)

    def _break(self, running: Running, error: Exception, backoff: Backoff) -> None:
        tries = backoff.n_failed
        backoff.failed()
        if tries == 0:
            _log.error("dataflow %r does not run: %s", running.dataflow.name, error)
        self._state.tell_error(running.number, running.live, error)
        for export in running.dataflow.exports:  # what was written stays readable as far as it is
            if export.id in running.live and export.kind in ("index", "log"):
                self._tell_upper_of(running, export)
        # A log that another start is about to make is there in a moment.
        if _lasts(error, tries) and (tries >= _LOOKS_MISSING or not isinstance(error, LogMissingError)):
            self._on_failed(running.number, error)

    def _tell_upper_of(self, running: Running, export: Export) -> None:
        """State how far an output is that nothing writes now, if it is this instance's."""
        path = self._state.directory.path_of(export)
        try:
            log = None if path is None else self._state.own_log(path, running.dataflow.name)
        except Exception as error:  # noqa: BLE001 - the next try says so
            _log.debug("output %r cannot be looked at: %s", export.id, error)
            return
        if log is not None:
            self._state.instance.tell(Upper(export.id, running.number, log.frontier()))

    def _guarded(self, number: int, runner: Runner, act: Callable[[int, Runner], None]) -> None:
        """Do something for one dataflow; what fails is shown, and done again later (invariant 2)."""
        try:
            act(number, runner)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others run
            self._looks_failed.add(number)
            self._state.tell_error(number, runner.dataflow.export_ids, error)
            self._due[number] = self._state.now() + FAR_POLL_S
            self._check_held_after(error)
        else:
            if number in self._looks_failed and not runner.failures:
                self._state.tell_error(number, runner.dataflow.export_ids, None)
            self._looks_failed.discard(number)

    def _check_held_after(self, error: Exception) -> None:
        if isinstance(error, OwnershipError) and not self._state.follows:
            self._state.check_held()

    def let_go(self, number: int, *, dropped: bool = False) -> None:
        """Run a dataflow no longer, as soon as no step of it runs.

        Parameters
        ----------
        number : int
        dropped : bool
            Whether it is gone for good. A subscribe of one that is not continues where it is: it reads a log.
        """
        runner = self.runners[number]
        if number in self._busy and not self._busy[number].done():
            return  # its step ends first (invariant 3)
        del self.runners[number]
        self._busy.pop(number, None)
        self._dirty.pop(number, None)
        self._due.pop(number, None)
        self._looks_failed.discard(number)
        self.watches.remove(number)
        # Another one of the same name and outputs is the same consumer.
        again = any(other.consumer == runner.consumer for other in self.runners.values())
        try:
            runner.end()
            if dropped and not again and not self._state.follows:
                runner.release()
        except Exception as error:  # noqa: BLE001 - it is only in the way
            _log.warning("dataflow %r has not let go of everything: %s", runner.dataflow.name, error)
        if dropped:
            self._forget(number, runner.dataflow)

    def _forget(self, number: int, dataflow: Dataflow) -> None:
        """Keep nothing of a dataflow that is gone for good."""
        self._state.errors.pop(number, None)
        self._state.failed.pop(number, None)
        self._steps_failed.pop(number, None)
        self._failed_looks.pop(number, None)
        there = self._state.exports()
        for export in dataflow.exports:
            self._on_dropped(export, export.id in there)

    def begin_again(self) -> None:
        """Let go of all dataflows: they begin again as is right now."""
        for number in list(self.runners):
            self.let_go(number)
        self._broken.clear()
        self._seen = -1

    def try_again(self) -> None:
        """Try at once what waits for its next try."""
        for _, backoff in self._broken.values():
            backoff.hurry()

    # Steps ---------------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """Begin a step of each dataflow that has work, first come first served, as many at once as is allowed."""
        state, now = self._state, self._state.now()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._dirty.setdefault(number)
        if state.follows:
            self._tell_followed()
            return
        if not self._dirty:
            return
        configured = state.instance.configuration.get("steps_at_once")
        most = configured if isinstance(configured, int) and configured > 0 else _STEPS_AT_ONCE
        started = {each.number for each in state.started()}
        for number in list(self._dirty):
            if len(self._busy) >= most:
                return
            runner = self.runners.get(number)
            if runner is None:
                del self._dirty[number]  # it has work once it has begun
                continue
            if number in self._busy or number not in started:
                continue
            del self._dirty[number]
            if runner.engine is None:
                self._guarded(number, runner, self._look_at)
                continue
            # As it is now: what is configured during a step is of the next one.
            most_bytes = state.instance.configuration.get("max_bytes_per_step")
            future = self.threads.submit(self._step, runner, most_bytes)
            future.add_done_callback(lambda _: state.wake.set())
            self._busy[number] = future

    def _step(self, runner: Runner, max_bytes: object) -> bool:
        options = {path: self._state.directory.options(path) for path in runner.paths}
        run_tasks = self._state.runtime.tasks(runner.dataflow.name, options)
        more = runner.step(run_tasks, max_bytes if isinstance(max_bytes, int) else None)
        runner.look()
        return more

    def collect(self) -> bool:
        """State what steps that ended have brought; return whether any ended."""
        done = [number for number, future in self._busy.items() if future.done()]
        for number in done:
            future, runner = self._busy.pop(number), self.runners.get(number)
            if runner is None:
                continue
            if self._state.instance.run(number) is None:
                self.let_go(number, dropped=True)
                continue
            error = future.exception()
            if error is not None:
                self._fail(number, runner, error)
                continue
            self._steps_failed.pop(number, None)
            if future.result():
                self._dirty.setdefault(number)
            due = None if runner.engine is None else runner.engine.rest
            if due is not None:
                self._due[number] = self._state.now() + due
            self._guarded(number, runner, self._tell_uppers)
        return bool(done)

    def _fail(self, number: int, runner: Runner, error: BaseException) -> None:
        """Begin a dataflow once more whose step has failed as a whole."""
        tries = self._steps_failed[number] = self._steps_failed.get(number, 0) + 1
        _log.warning("a step of dataflow %r has failed: %s", runner.dataflow.name, described(error))
        self._seen = -1
        self.let_go(number)
        backoff = Backoff(self._state.now, tries - 1)
        backoff.failed()
        self._broken[number] = runner.dataflow, backoff
        self._state.tell_error(number, runner.dataflow.export_ids, error)
        if _lasts(error, tries):
            self._on_failed(number, error)

    # Telling -------------------------------------------------------------------------------------

    def _look_at(self, number: int, runner: Runner) -> None:
        runner.look()
        self._tell_imports(number, runner)

    def _tell_uppers(self, number: int, runner: Runner) -> None:
        instance = self._state.instance
        for failed in runner.failures:
            self._check_held_after(failed)
        uppers = runner.uppers()
        for export in runner.dataflow.exports:
            if export.id not in uppers or export.kind in ("subscribe", "copy-to"):
                continue
            instance.tell(Upper(export.id, number, uppers[export.id]))
            self._dirty |= dict.fromkeys(self.watches.readers(runner.path_of(export)) - {number})
        self._tell_imports(number, runner)
        sizes = runner.sizes()
        if sizes:
            instance.tell(ArrangementSizes(number, sizes))
        failures = runner.failures
        self._state.tell_error(number, runner.dataflow.export_ids, failures[0] if failures else None)
        tries = self._failed_looks[number] = self._failed_looks.get(number, 0) + 1 if failures else 0
        lasting = next((error for error in failures if _lasts(error, tries)), None)
        if lasting is not None:
            self._on_failed(number, lasting)

    def _tell_imports(self, number: int, runner: Runner) -> None:
        self.moved.add(number)
        for name, upper in runner.upper_of_imports.items():
            self._state.instance.tell(ImportUpper(number, name, upper))

    def _tell_followed(self) -> None:
        """State how far the outputs are that another start writes."""
        now = self._state.now()
        far = now - self._followed_at >= FAR_POLL_S
        if far:
            self._followed_at = now
        dirty, self._dirty = self._dirty, {}

        def tell(number: int, runner: Runner) -> None:
            if runner.open_outputs(far=far) or number in dirty:
                runner.look()
                self._tell_uppers(number, runner)

        for number, runner in self.runners.items():
            if number not in self._due:
                self._guarded(number, runner, tell)

    def next_due_s(self) -> float | None:
        """Return in how many seconds something is due although nothing is new; None if nothing is."""
        now = self._state.now()
        return min((due - now for due in self._due.values()), default=None)

    def end(self, *, dropped: bool) -> None:
        """Let go of all dataflows.

        Parameters
        ----------
        dropped : bool
            Whether what is interactive is dropped: it is of this process.
        """
        there = {each.number for each in self._state.runs()}
        for number in list(self.runners):
            is_gone = number not in there or self.runners[number].dataflow.interactive
            self.let_go(number, dropped=dropped and is_gone)

    # What they wait for --------------------------------------------------------------------------

    def failed_before(self, id_: str, time: tuple[int, ...]) -> tuple[str, BaseException] | None:
        """Return the export that an export waits for before a time, and why it has failed; None if none has.

        Parameters
        ----------
        id_ : str
            The export that waits, which may be the one that has failed.
        time : tuple of int
            What is waited for is that this time is complete.
        """
        if not self._state.failed:
            return None
        made_by = {each: running for running in self._state.runs() for each in running.live}
        waiting, seen = [id_], set[str]()
        while waiting:
            id_ = waiting.pop()
            running = made_by.get(id_)
            if running is None or id_ in seen:
                continue
            seen.add(id_)
            upper = running.uppers.get(id_, running.dataflow.domain.minimum_frontier)
            if not upper.less_equal(time):
                continue  # it has the time
            there = self.runners.get(running.number)
            # Where some of several exports have failed, nobody says which: the others continue.
            if running.number in self._state.failed and (there is None or there.has_failed):
                return id_, self._state.failed[running.number]
            if there is not None:
                behind = there.behind(upper.join(running.dataflow.as_of))
                waiting += [each.export for each in there.dataflow.imports if each.name in behind and each.export]
        return None

    def failure_behind(self, id_: str, frontier: Antichain, attempt: str) -> OperatorError | None:
        """Return the error for an export that can get no further than a frontier; None where it may.

        Parameters
        ----------
        id_ : str
        frontier : Antichain
            Up to where it is: it gets further where any of these times becomes complete.
        attempt : str
            ``could not …``, for the error.
        """
        found = None
        for time in frontier.elements:  # one, as a rule
            found = self.failed_before(id_, time)
            if found is None:
                return None
        if found is None:
            return None
        failed, cause = found
        if has_lost_session(cause):
            return None  # another session continues it, and all that waits for it
        msg = f"{attempt}: found that {failed!r}, which it waits for, has failed: {described(cause)}"
        error = OperatorError(msg, hint=f"see why({failed!r}) of the instance, and ask again when it continues")
        error.__cause__ = cause
        return error

    def failure_of(self, id_: str, attempt: str) -> OperatorError | None:
        """Return the error of what needs an export that has failed before it had any time; None if it has not."""
        with self._state.lock:
            return self.failure_behind(id_, self._state.domain_of(id_).minimum_frontier, attempt)

    def why(self, id_: str) -> str:
        """Say what a collection waits for, from it to the first cause."""
        with self._state.lock:
            lines: list[str] = []
            seen: set[str] = set()
            waiting: list[tuple[str, str]] = [("", id_)]
            while waiting:
                line, export = waiting.pop()
                if line:
                    lines.append(line)
                if export and export not in seen:
                    seen.add(export)
                    waiting += reversed(self._why(export))
            return "\n".join(lines)

    def _why(self, id_: str) -> list[tuple[str, str]]:
        """Return the lines of a collection, each with the import that is behind."""
        instance = self._state.instance
        view = instance.collection(id_)
        domain = self._state.domain_of(id_)
        upper = domain.minimum_frontier if view.upper is None else view.upper
        as_of = domain.render_frontier(view.as_of)
        lines = [(f"{id_}: upper={domain.render_frontier(upper)}, as_of={as_of}", "")]
        text = self._state.errors.get(view.run)
        running = instance.run(view.run)
        runner = self.runners.get(view.run)
        if text:
            return [*lines, (f"{id_}: it has failed: {text}", "")]
        if running is None:
            return lines
        if not running.started:
            others = instance.working()
            after = f"its turn to hydrate, after {', '.join(others[:8])}"
            return [
                *lines,
                (
                    f"{id_}: it waits " + (f"for {after}" if others else "to be scheduled, or for its turn to hydrate"),
                    "",
                ),
            ]
        if runner is None:
            return [*lines, (f"{id_}: it is about to begin", "")]
        # Before its as_of is complete it gives nothing.
        behind = runner.behind(upper.join(view.as_of))
        if not behind:
            lines.append((f"{id_}: it has work to do", ""))
        for name, frontier in behind.items():
            source = next(each for each in runner.dataflow.imports if each.name == name)
            at = domain.render_frontier(frontier)
            if source.export is not None:
                lines.append((f"{id_}: import {name!r} is at {at}", source.export))
            else:
                said = f"nothing more is complete in log {source.path!r}"
                lines.append((f"{id_}: import {name!r} is at {at}: {said}", ""))
        return lines


def _lasts(error: BaseException, tries: int) -> bool:
    """Return whether a failure comes again as long as things are as they are."""
    return not may_pass(error) and (tries >= _MOST_FAILURES or not passes(type(error).__name__))
