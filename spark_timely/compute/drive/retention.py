"""Retention of an instance: retains imports for accepted requests, and compacts indexes.

To *retain* a log is to keep it readable from a frontier on, by a retainer in it. Imports of requests that are accepted
are retained here until the dataflow that reads them retains them by itself. Used by the driver, in whose turns the
indexes are compacted too, and by `recovery`.

Invariants
----------
1. A request is refused because of a since only if the since had passed its as_of in the state from which the decision
   was made.
2. From that decision on, until the request's end, a retainer of this process is alive and at or before what the request
   needs: unless the import cannot be written, or the process did not run for as long as the retainer counts.
3. Retainers take no lock of the instance. A thread that has it calls `end` and `move` alone, which wait for no
   commit: another thread writes what follows from them.
4. One retainer of a process and import covers all requests. It is written under the import's lock alone.
5. No export is allowed to forget the newest time that it can answer (`may_forget`): else it could never answer again.
   So an index is not compacted past what is complete. A log that this instance does not write is not compacted.
"""

from __future__ import annotations

import threading
import time as clock
import uuid
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final

from spark_timely.compute.as_of import stepped_back
from spark_timely.errors import LogFormatError, LogMissingError, StorageError, TimelyError, described
from spark_timely.log.log import open_log
from spark_timely.log.machine.since import may_read
from spark_timely.log.retention import Retaining
from spark_timely.masking import masked_logger
from spark_timely.threads import aside
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from spark_timely.compute.command import Dataflow, Export
    from spark_timely.compute.drive.state import State
    from spark_timely.log.log import Log
    from spark_timely.time.domain import TimeDomain

__all__ = ["Accepted", "Compaction", "ImportRetainers", "Wanted", "may_forget"]

_log = masked_logger("spark_timely.compute")

_EXPIRY_S: Final = 600.0
# Between two commits that move one retainer on, and before what failed is tried again.
_LEAST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """An import that is to be retained.

    Attributes
    ----------
    path : str
        Of its log.
    as_of : Antichain or None
        None: from its since on, whatever that is.
    options : mapping of str to str
        Storage options.
    """

    path: str
    as_of: Antichain | None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


class Accepted:
    """An accepted request, with what is retained for it. Made by `ImportRetainers.begin`.

    Attributes
    ----------
    warnings : list of str
        What could not be retained, and why.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []


class _Import:
    """An import, with what each request needs of it and what its retainer says."""

    def __init__(self, wanted: Wanted) -> None:
        self.path, self._options = wanted.path, dict(wanted.options)
        self.lock = threading.Lock()
        self.users = 0
        self.needs: dict[Accepted, Antichain] = {}
        self.written: Antichain | None = None
        self.written_at = self.failed_at = -float("inf")
        self._log: Log | None = None

    def log(self) -> Log:
        """Return a handle on its log, for this alone."""
        if self._log is None:
            self._log = open_log(self.path, storage_options=self._options or None)
        return self._log

    def looked_at(self) -> Log:
        """Return a handle on the log that is there now."""
        try:
            self.log().refresh()
        except LogMissingError:
            self._log = None
            raise
        except TimelyError:
            self._log = None  # restored, replaced or damaged: to open it again says which
        return self.log()

    @property
    def needed(self) -> Antichain | None:
        """The frontier that all requests need together; None where there is none."""
        needs = list(self.needs.values())
        return reduce(Antichain.meet, needs) if needs else None

    def due_at(self, renew_s: float) -> float:
        """Return when its retainer is to be written; infinity where there is none."""
        if self.written is None:
            return float("inf")
        needed = self.needed
        rest = 0.0 if needed is None else renew_s if needed == self.written else min(_LEAST_S, renew_s)
        return max(self.written_at + rest, self.failed_at + _LEAST_S)


class ImportRetainers:
    """The retainers of one process for the requests of an instance.

    Parameters
    ----------
    instance : str
        Its id.
    expiry_s : float
        How long a retainer counts unless it is renewed.
    wall : callable
        Wall clock in seconds: when retainers expire.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(
        self,
        instance: str,
        *,
        expiry_s: float = _EXPIRY_S,
        wall: Callable[[], float] = clock.time,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.owner = f"instance {instance}"
        self.consumer = f"{self.owner} {uuid.uuid4().hex[:12]}"
        self._expiry_s, self._wall, self._now = expiry_s, wall, now
        self._lock = threading.Lock()
        self._imports: dict[str, _Import] = {}
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, _end_thread, self._wake, self._ended).atexit = False

    # Requests ------------------------------------------------------------------------------------

    def begin(self, wanted: Sequence[Wanted], *, domain: TimeDomain) -> Accepted:
        """Retain the imports of a request, each by one decision with the look at its since.

        An import that is not there, or has other times, is passed over: the request is refused for that elsewhere.

        Parameters
        ----------
        wanted : sequence of Wanted
        domain : TimeDomain
            Of the request.

        Returns
        -------
        Accepted
            To be given to `end`.

        Raises
        ------
        SinceViolationError
            If one has forgotten what is needed. Then nothing is retained for this request.

        Notes
        -----
        Cost: a look at each import; a commit where what others have retained does not cover it.
        """
        accepted = Accepted()
        try:
            for each in wanted:
                self._begin(accepted, each, domain)
        except BaseException:
            self.end(accepted)
            raise
        finally:
            self._write_soon()
        return accepted

    def _begin(self, accepted: Accepted, wanted: Wanted, domain: TimeDomain) -> None:
        with self._lock:
            entry = self._imports.setdefault(wanted.path, _Import(wanted))
            entry.users += 1
        try:
            with entry.lock:
                log = entry.looked_at()
                if log.domain.types != domain.types:
                    return
                needed = self._retained(entry, log, wanted.as_of)
                # One log may be imported under several names.
                entry.needs[accepted] = needed.meet(entry.needs.get(accepted, needed))
        except LogMissingError:
            pass
        except (StorageError, LogFormatError) as error:
            accepted.warnings.append(
                f"import {wanted.path!r} is not retained, and may forget what is asked for before it is read:"
                f" {described(error)}"
            )
        finally:
            with self._lock:
                entry.users -= 1
            self._forget_idle()

    def _retained(self, entry: _Import, log: Log, as_of: Antichain | None) -> Antichain:
        """Return what is retained for a request: covered by what is retained already, or written now."""
        found, half = log.retainers().get(self.consumer), self._expiry_s / 2
        is_whole = as_of is None or log.kind == "stream"
        as_of = None if as_of is None else as_of.join(log.domain.minimum_frontier)
        if found is not None and found.is_alive(int((self._wall() + half) * 1_000_000)):
            needed = log.since() if as_of is None or is_whole else as_of
            if found.needed.less_equal_frontier(needed) and (as_of is None or may_read(log.since(), as_of)):
                return needed
        try:
            retainer = log.core.retain_as_of(
                self.consumer,
                as_of,
                owner=self.owner,
                expiry_us=int(self._expiry_s * 1_000_000),
                beside=list(entry.needs.values()),
                what=f"read log {log.path!r}",
            )
        except StorageError as error:
            if not error.determinate and entry.written is None:  # it may be there: looked for when it is to go
                entry.written, entry.written_at = log.domain.minimum_frontier, self._now()
            raise
        found_since = log.since() if retainer is None else retainer.needed
        needed = found_since if as_of is None or is_whole else as_of
        entry.written, entry.written_at = (needed if retainer is None else retainer.needed), self._now()
        return needed

    def move(self, accepted: Accepted, as_of: Antichain, /) -> None:
        """Retain collections for a request from a later time on: it was begun from their since on."""
        for entry in self._there():
            needed = entry.needs.get(accepted)
            if needed is not None and entry.log().kind == "collection" and needed.arity == as_of.arity:
                entry.needs[accepted] = needed.join(as_of)
        self._write_soon()

    def end(self, accepted: Accepted, /) -> None:
        """Let go what is retained for a request. May be called again."""
        for entry in self._there():
            entry.needs.pop(accepted, None)
        self._write_soon()

    def end_all(self, *, but: Collection[Accepted] = ()) -> None:
        """Let go what is retained for all requests but some."""
        for entry in self._there():
            for accepted in [each for each in list(entry.needs) if each not in but]:
                entry.needs.pop(accepted, None)
        self._write_soon()

    def close(self, *, but: Collection[Accepted] = ()) -> None:
        """Let go what is retained for all requests but some, which stays until it expires; renew nothing any more."""
        self.end_all(but=but)
        _end_thread(self._wake, self._ended)
        if self._thread is not None:
            self._thread.join()
        self.write_due()

    def _there(self) -> list[_Import]:
        with self._lock:
            return list(self._imports.values())

    def _forget_idle(self) -> None:
        """Know nothing any more of imports of which nothing is retained."""
        with self._lock:
            for path, entry in list(self._imports.items()):
                if not entry.users and not entry.needs and entry.written is None:
                    del self._imports[path]

    # Writing -------------------------------------------------------------------------------------

    def write_due(self) -> float:
        """Move, renew and release what is due; return in how many seconds something is due next."""
        due_at, renew_s = float("inf"), self._expiry_s / 3
        for entry in self._there():
            with entry.lock:
                if entry.due_at(renew_s) <= self._now():
                    self._write(entry)
                due_at = min(due_at, entry.due_at(renew_s))
        self._forget_idle()
        return max(due_at - self._now(), 0.0)

    def _write(self, entry: _Import) -> None:
        """Bring the retainer of an import to what is needed; what fails is tried again until it has expired."""
        try:
            log = entry.log()
            log.refresh()
            for accepted, mine in list(entry.needs.items()):
                if not may_read(log.since(), mine):  # this process did not run for long: the read says so, by name
                    entry.needs.pop(accepted, None)
            needed = entry.needed
            now, expires = self._now(), int((self._wall() + self._expiry_s) * 1_000_000)
            wanted = Antichain.empty(log.domain.arity) if needed is None else needed
            log.core.retain_several([Retaining(self.consumer, wanted, self.owner, expires, brief=True)])
        except LogMissingError:
            entry.written = None
        except Exception as error:  # noqa: BLE001 - whatever it is, the other imports are retained
            _log.debug("the retainer of import %r is not written, which is tried again: %s", entry.path, error)
            entry.failed_at = self._now()
            if entry.failed_at - entry.written_at >= self._expiry_s:
                entry.written = None
        else:
            entry.written, entry.written_at = needed, now

    def _write_soon(self) -> None:
        """Have the thread look at what is due, if anything ever is."""
        self._wake.set()
        with self._lock:
            if self._thread is None and self._imports and not self._ended.is_set():
                self._thread = aside("retain", _write_until, weakref.ref(self), self._wake, self._ended)


def _end_thread(wake: threading.Event, ended: threading.Event) -> None:
    ended.set()
    wake.set()


def _write_until(retainers: weakref.ref[ImportRetainers], wake: threading.Event, ended: threading.Event) -> None:
    """Write what is due until the retainers are closed, or nobody refers to them any more."""
    rest: float | None = 0.0
    while not ended.is_set():
        wake.wait(None if rest is None else min(rest, threading.TIMEOUT_MAX))
        wake.clear()
        held = retainers()
        if held is None or ended.is_set():
            return
        due_s = held.write_due()
        rest = None if due_s == float("inf") else due_s
        del held


# What indexes may forget ----------------------------------------------------------------------------


def may_forget(state: State, id_: str, frontier: Antichain, /, dataflow: Dataflow | None = None) -> Antichain:
    """Return how far a collection may be compacted of what was asked: at most to the newest time that it can answer.

    That is the last complete one, or its as_of before that is complete. What is complete as a whole may forget anything
    that is asked, and a relation of the introspection, which is always peeked at the minimum, nothing.

    Parameters
    ----------
    state : State
    id_ : str
    frontier : Antichain
        What was asked; not empty.
    dataflow : Dataflow, optional
        That the collection is an export of; the one that is there unless given.

    Raises
    ------
    StorageError
        If its log cannot be looked at.
    """
    of = dataflow or state.dataflow_of(id_)
    if of is None:
        return frontier.meet(state.created().domain.minimum_frontier)
    path = state.directory.path_of(next(each for each in of.exports if each.id == id_))
    log = None if path is None else state.own_log(path, of.name)
    upper = of.domain.minimum_frontier if log is None else log.frontier()
    return frontier.meet(of.as_of.join(stepped_back(upper, of.domain)))


class Compaction:
    """The compaction of indexes: their logs forget what nobody asks for any more.

    Parameters
    ----------
    state : State
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._compacted: dict[str, Antichain] = {}

    def forget(self, id_: str) -> None:
        """Know nothing any more of an export."""
        self._compacted.pop(id_, None)

    def compact(self) -> None:
        """Let the logs of indexes forget what nobody asks for any more."""
        for running in self._state.runs():
            for export in running.dataflow.exports:
                if export.kind == "index" and export.id in running.live:
                    self._compact(export, running.dataflow.name)

    def _compact(self, export: Export, name: str) -> None:
        state = self._state
        since, path = state.instance.since_of(export.id), state.directory.path_of(export)
        if path is None or since.is_empty or self._compacted.get(export.id) == since:
            return
        try:
            log = state.own_log(path, name)
            if log is None:
                return  # not made yet, or another one in its place
            allowed = since.meet(stepped_back(log.frontier(), log.domain))
            reached = log.allow_compaction(allowed, by=f"instance {state.commands.instance}")
        except Exception as error:  # noqa: BLE001 - it is tried again in a second
            _log.debug("index %r is not compacted: %s", export.id, error)
            return
        if since.less_equal_frontier(reached):  # else somebody retains it, or it is not complete up to there yet
            self._compacted[export.id] = since
