"""The compute instance: a state machine that keeps dataflows, their frontiers, and the answers due to clients.

Overview
--------
An instance decides, and `spark_timely.compute.drive.driver` does. `Instance.handle` takes the commands of clients,
`Instance.tell` the facts that the driver observes: how far outputs and inputs are, answers, batches. `Instance.turn`
gives the responses that are due. Other members say what is to be run now, what waits for an answer, and how far
everything may be compacted. Nothing here reads files, clocks or Spark; the same commands and facts in the same order
give the same responses.

Transport
---------
Commands come from one client at a time; a new session (`CreateTimely`) takes the place of the one before. Facts come
whenever they are known, also late or twice. Responses of a turn are handed out once: if they cannot be sent, nobody
waits for them, and the next session hears everything from the beginning.

Stages
------
1. Before the first `InitializationComplete`: commands are checked and collected. Nothing runs, nothing is answered.
2. *Computing*: commands act as they come. Each turn responds.
3. Another session begins: its commands are collected as in stage 1, while the dataflows of the one before keep running
   without responses. Its `InitializationComplete` compares both and leads back to stage 2.

Read-only is apart from the stages: an instance begins so, and stops being so with the first `AllowWrites`, for ever.

Invariants
----------
1. A refused command changes nothing. A command enters the history before it is handled.
2. A collection has one frontier, from one kind of fact. It is reported at or beyond the as_of first, then only as it
   strictly advances.
3. A collection is hydrated when a frontier strictly beyond its as_of was reported to the client; a copy-to when it has
   answered.
4. A peek has one response. One whose time its collection was already allowed to forget is answered by an error that
   names both; one whose collection is dropped before its time is complete, by an error too.
5. A collection that is dropped before it is complete has one `Dropped`, after what was said of it before. What
   reconciliation drops has none, and what comes and goes before its session computes.
6. Responses about an event stand in the order of the events, and before the frontiers of their turn.
7. All frontiers of a turn are computed before one of them is handed out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import frexp
from typing import Final, cast

from spark_timely.compute.command import (
    NAMES,
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    Dataflow,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from spark_timely.compute.history import SCHEDULING, History
from spark_timely.compute.hydration import HydrationQueue
from spark_timely.compute.introspection import Introspection
from spark_timely.compute.observation import (
    INTROSPECTION_RUN,
    AnswerLatency,
    ArrangementSizes,
    CopyToDone,
    ErrorCount,
    ImportUpper,
    Observation,
    OperatorHydrated,
    Operators,
    PeekAnswer,
    SubscribeProgress,
    Upper,
)
from spark_timely.compute.reconciliation import Reconciliation, check_compatible, reconcile
from spark_timely.compute.response import (
    CopyToResponse,
    Dropped,
    Frontiers,
    PeekResponse,
    Response,
    Status,
    SubscribeBatch,
)
from spark_timely.compute.session import (
    HYDRATION_LIMIT,
    MAX_RESULT_BYTES,
    CollectionKind,
    Session,
)
from spark_timely.errors import (
    MissingError,
    OperatorError,
    OwnershipError,
    SinceViolationError,
    TimelyError,
    TimelyInternalError,
    shown,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain

__all__ = ["CollectionView", "Instance", "PendingPeek", "Running"]

_LONGEST_LAG: Final = (1 << 63) - 1


# Views -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """A dataflow, as the driver of the instance has to know it.

    Attributes
    ----------
    number : int
        Its run: facts about it name this number.
    dataflow : Dataflow
    live : tuple of str
        Ids of its exports that are not dropped, in their order.
    started : bool
    complete : bool
        Whether all of these are complete, or have answered: there is nothing left to do.
    uppers : dict of str to Antichain
        How far each of these is, as it was observed; those not there were not observed.
    """

    number: int
    dataflow: Dataflow
    live: tuple[str, ...]
    started: bool
    complete: bool
    uppers: Mapping[str, Antichain]


@dataclass(frozen=True, slots=True)
class PendingPeek:
    """A peek without an answer.

    Attributes
    ----------
    peek : Peek
    run : int or None
        The dataflow of its collection; None of a path.
    ready : bool
        Whether its time is complete, as far as the instance knows. Of a path the driver has to find out.
    dropped : bool
        Whether its collection is dropped: it is answered from what was there.
    """

    peek: Peek
    run: int | None
    ready: bool
    dropped: bool


@dataclass(frozen=True, slots=True)
class CollectionView:
    """A collection, as it is known.

    Attributes
    ----------
    id : str
    kind : "index", "log", "subscribe", "copy-to" or "introspection"
    run : int
    as_of : Antichain
    reported, upper : Antichain or None
        The frontier that was reported last, and the one that was observed. None for none.
    allowed : Antichain
        What clients allow it to compact to.
    hydrated : bool
    """

    id: str
    kind: CollectionKind
    run: int
    as_of: Antichain
    reported: Antichain | None
    upper: Antichain | None
    allowed: Antichain
    hydrated: bool


# State -------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """A dataflow that is there."""

    number: int
    dataflow: Dataflow
    started: bool = False
    # Those not dropped, in the order of the exports.
    live: dict[str, None] = field(default_factory=dict)
    imports: dict[str, Antichain] = field(default_factory=dict)
    statuses: dict[tuple[str, str], bool] = field(default_factory=dict)


@dataclass
class _Collection:
    """A collection that is there."""

    id: str
    kind: CollectionKind
    run: int
    as_of: Antichain
    domain: TimeDomain
    upper: Antichain | None = None
    reported: Antichain | None = None
    answered: bool = False

    @property
    def shown_frontier(self) -> Antichain:
        """The frontier that is shown; of an unreported one the minimum."""
        return self.domain.minimum_frontier if self.reported is None else self.reported

    @property
    def hydrated(self) -> bool:
        """Invariant 3."""
        if self.kind == "copy-to":
            return self.answered
        return self.reported is not None and self.as_of.less_than_frontier(self.reported)

    @property
    def complete(self) -> bool:
        """Whether nothing more can come of it."""
        if self.kind == "copy-to":
            return self.answered
        return self.upper is not None and self.upper.is_empty


@dataclass
class _Pending:
    """A peek without an answer."""

    peek: Peek
    run: int | None = None
    # What its collection was allowed to compact to as it came.
    since: Antichain | None = None
    dropped: bool = False
    domain: TimeDomain = field(default_factory=TimeDomain)

    @property
    def readable(self) -> bool:
        """Whether its time could be read as it came. From then on it holds that."""
        return self.since is None or self.since.less_equal(self.peek.time)


class Instance:
    """The state of a compute instance.

    Examples
    --------
    >>> from spark_timely.compute.command import Export, Import
    >>> flow = Dataflow(
    ...     "totals", (Import("o", path="/logs/o"),), "{}", (Export("totals", "index"),), Antichain.of(7)
    ... )
    >>> instance = Instance()
    >>> for command in (CreateTimely(1), CreateInstance(), CreateDataflow(flow), Schedule("totals")):
    ...     instance.handle(command)
    >>> instance.turn(), instance.running()
    ((), ())
    >>> instance.handle(InitializationComplete())
    >>> instance.turn(), [each.number for each in instance.running()]
    ((), [1])
    >>> instance.tell(Upper("totals", 1, Antichain.of(9)))
    >>> instance.turn()
    (Frontiers(id='totals', frontier=Antichain.of(9)),)
    """

    def __init__(self) -> None:
        self._session = Session()
        self._incoming: Session | None = None
        self._writes = False
        self._version = 0
        self._next = INTROSPECTION_RUN + 1
        # Runs from this number on are of the session.
        self._first = self._next
        self._runs: dict[int, _Run] = {}
        self._collections: dict[str, _Collection] = {}
        self._queue = HydrationQueue()
        self._peeks: dict[str, _Pending] = {}
        self._outbox: list[Response] = []
        # Collections with a fact since the last turn.
        self._advanced: dict[str, None] = {}
        self._latencies: dict[tuple[str, float], int] = {}
        self._shows = Introspection()
        self._shown_version = -1

    # Commands ------------------------------------------------------------------------------------

    def check(self, command: Command, /) -> None:
        """Raise what `handle` would refuse a command with; change nothing.

        A driver that keeps a command log calls it, writes the command, and then handles it.

        Raises
        ------
        InvalidUsageError
            If it is not its time, or it contradicts what was said before. With ``halt=True`` in its context, no session
            of this kind can succeed: see `check_compatible`.
        OwnershipError
            If a session does not have a greater epoch than the one before.
        MissingError
            If it names a collection that does not exist.
        """
        if type(command) not in NAMES:
            msg = f"could not handle a command: found {shown(command)}"
            raise TimelyInternalError(msg)
        if isinstance(command, CreateTimely):
            if command.epoch <= self.epoch:
                msg = f"could not begin a session: found epoch={command.epoch}, the instance has {self.epoch}"
                raise OwnershipError(msg, hint="a newer session took the instance over: end this one")
            return
        (self._session if self._incoming is None else self._incoming).check(command)
        if isinstance(command, CreateInstance) and self._session.created is not None:
            check_compatible(self._session.created, command)

    def handle(self, command: Command, /) -> None:
        """Take a command. See `spark_timely.compute.command` for what each means.

        Raises
        ------
        TimelyError
            As `check`; then nothing was changed (invariant 1).
        """
        self.check(command)
        self._version += 1
        if isinstance(command, CreateTimely):
            self._begin(command)
        elif isinstance(command, InitializationComplete):
            # Of a session that is computing it says nothing.
            if self._incoming is not None:
                self._end_initialization(self._incoming)
        elif self._incoming is not None:
            self._incoming.add(command)
        else:
            self._session.add(command)
            self._apply(command)

    def _begin(self, command: CreateTimely) -> None:
        self._incoming = Session()
        self._incoming.add(command)
        # Nobody is left to get them.
        self._outbox.clear()

    def _end_initialization(self, incoming: Session) -> None:
        """Reconcile, and begin to compute."""
        incoming.add(InitializationComplete())
        commands = incoming.history.reduced()
        if self._writes and AllowWrites() not in commands:
            commands = (*commands, AllowWrites())
        found = reconcile(self._session.history.reduced(), commands)
        self._outbox.clear()
        self._shows.clear("peeks", self._shows.keys("peeks"))
        self._peeks.clear()
        self._advanced.clear()
        for ids in found.dropped:
            for id_ in sorted(ids & self._collections.keys()):
                self._drop(id_, silent=True)
        self._incoming = None
        self._session = Session(History(commands))
        self._first = self._next
        for command in commands:
            self._session.fold(command)
            self._apply(command, found)
        self._apply_peeks_of(incoming)

    def _apply_peeks_of(self, incoming: Session) -> None:
        """Answer the peeks of an initialization that cannot be waited for any more."""
        for peek in incoming.canceled.values():
            self._session.canceled[peek.id] = peek
            self._outbox.append(PeekResponse(peek.id, "canceled", traceparent=peek.traceparent))
        for peek in incoming.peeks.values():
            if peek.id not in self._session.peeks:
                self._session.peeks[peek.id] = peek
                self._refuse_peek(peek, self._dropped(peek, ""))

    def _apply(self, command: Command, reconciliation: Reconciliation | None = None) -> None:
        """Do what a command says that was taken in."""
        match command:
            case CreateInstance():
                self._create_introspection(command)
            case AllowWrites():
                self._writes = True
            case UpdateConfiguration() if not self.configuration[SCHEDULING]:
                self._start_all()
            case CreateDataflow(dataflow):
                if reconciliation is not None and frozenset(dataflow.export_ids) in reconciliation.kept:
                    self._keep(dataflow)
                else:
                    self._create(dataflow)
            case Schedule(id_):
                self._queue.schedule(id_)
                self._show_states_of(id_)
            case AllowCompaction(id_, frontier):
                if frontier.is_empty:
                    # Of what comes and goes before a session computes, its client has heard nothing.
                    self._drop(id_, silent=reconciliation is not None)
            case Peek():
                self._install(command)
            case CancelPeek(id_):
                pending = self._peeks.pop(id_, None)
                if pending is not None:
                    self._outbox.append(PeekResponse(id_, "canceled", traceparent=pending.peek.traceparent))

    def _create_introspection(self, command: CreateInstance) -> None:
        for id_ in command.introspection.values():
            there = self._collections.get(id_)
            if there is None:
                least = command.domain.minimum_frontier
                there = _Collection(id_, "introspection", INTROSPECTION_RUN, least, command.domain)
                self._collections[id_] = there
            there.reported = None
            self._advanced[id_] = None
            self._show_frontier(there)

    def _create(self, dataflow: Dataflow) -> None:
        run = _Run(self._next, dataflow, live=dict.fromkeys(dataflow.export_ids))
        self._next += 1
        self._runs[run.number] = run
        self._shows.put("dataflows", run.number, [(run.number, dataflow.name)])
        for export in dataflow.exports:
            there = _Collection(export.id, export.kind, run.number, dataflow.as_of, dataflow.domain)
            self._collections[export.id] = there
            self._shows.put("exports", export.id, [(export.id, run.number)])
            self._show_frontier(there)
            self._show_imports(run, export.id)
        if dataflow.interactive or not self.configuration[SCHEDULING]:
            run.started = True
        else:
            self._queue.suspend(run.number, dataflow.export_ids)
        self._show_run(run)

    def _start_all(self) -> None:
        """Start what waits: nobody will schedule it. It does not count against the limit."""
        for run in self._runs.values():
            if not run.started:
                self._queue.take(run.number)
                run.started = True
                self._show_run(run)

    def _keep(self, dataflow: Dataflow) -> None:
        """Continue with a dataflow that runs already, as if it began at the new as_of."""
        number = self._collections[dataflow.export_ids[0]].run
        run = self._runs.pop(number)
        # To the place of its creation.
        self._runs[number] = run
        run.dataflow = dataflow
        run.live = dict.fromkeys(dataflow.export_ids)
        self._shows.put("dataflows", number, [(number, dataflow.name)])
        for id_ in dataflow.export_ids:
            there = self._collections[id_]
            there.as_of, there.reported = dataflow.as_of, None
            self._advanced[id_] = None
            self._show_frontier(there)
        if not run.started:
            if dataflow.interactive or not self.configuration[SCHEDULING]:
                self._queue.take(number)
                run.started = True
            else:
                # It waits for the schedules of this session.
                self._queue.suspend(number, dataflow.export_ids)
        self._outbox += [Status(id_, name, hydrated=True) for (id_, name), done in run.statuses.items() if done]
        self._show_run(run)

    def _drop(self, id_: str, *, silent: bool) -> None:
        """Drop a collection, in the order of the seed (004.28)."""
        there = self._collections.pop(id_)
        run = self._runs[there.run]
        del run.live[id_]
        self._advanced.pop(id_, None)
        at_once = self._queue.drop(id_)
        self._shows.clear("exports", [id_])
        self._shows.clear("frontiers", [id_])
        for relation in ("import_frontiers", "hydration", "errors", "lag"):
            self._shows.clear(relation, [id_])
        for key in [key for key in self._latencies if key[0] == id_]:
            del self._latencies[key]
            self._shows.clear("latency", [key])
        run.statuses = {key: done for key, done in run.statuses.items() if key[0] != id_}
        if not run.live:
            del self._runs[run.number]
            for relation in ("dataflows", "operators", "arrangement_sizes"):
                self._shows.clear(relation, [run.number])
        elif at_once is not None:
            run.started = True
            self._show_run(run)
        if not silent:
            self._report_drop(there)
        for pending in [each for each in self._peeks.values() if each.run == there.run and each.peek.target == id_]:
            if self._is_complete(there, pending.peek.time):
                pending.dropped = True
            else:
                del self._peeks[pending.peek.id]
                upper = there.domain.show_frontier(there.shown_frontier)
                found = f" at {upper}, before the time was complete"
                self._refuse_peek(pending.peek, self._dropped(pending.peek, found, there.domain))

    def _report_drop(self, there: _Collection) -> None:
        if there.kind == "copy-to":
            if not there.answered:
                self._outbox.append(CopyToResponse(there.id, "dropped"))
        elif there.reported is None or not there.reported.is_empty:
            self._outbox.append(Dropped(there.id, there.shown_frontier))

    def _install(self, peek: Peek) -> None:
        """Keep a peek until it is answered."""
        kind, pending = "log", _Pending(peek)
        if peek.collection is not None:
            there = self._collections[peek.collection]
            kind = there.kind
            pending = _Pending(peek, there.run, self._session.allowed[there.id], domain=there.domain)
            time = _time_text(there.domain, peek.time)
        else:
            time = json.dumps(list(peek.time) if len(peek.time) > 1 else peek.time[0])
        self._peeks[peek.id] = pending
        self._shows.put("peeks", peek.id, [(peek.id, peek.target, kind, time)])

    def _refuse_forgotten(self, pending: _Pending) -> None:
        """Answer a peek at a time that its collection was allowed to forget before it came."""
        assert pending.since is not None  # else it is readable
        peek, domain = pending.peek, pending.domain
        at, since = domain.show_frontier(Antichain.of(peek.time)), domain.show_frontier(pending.since)
        error = SinceViolationError(
            f"could not peek {peek.target!r} at {at}: found since={since}",
            hint="peek at since or later; to keep a time from being forgotten, retain it",
            as_of=at,
            since=since,
        )
        self._refuse_peek(peek, error)

    def _dropped(self, peek: Peek, found: str, domain: TimeDomain | None = None) -> MissingError:
        """Return the answer to a peek whose collection was dropped before it could be answered."""
        at = shown(peek.time) if domain is None else domain.show_frontier(Antichain.of(peek.time))
        msg = f"could not peek {peek.target!r} at {at}: found collection {peek.target!r} dropped{found}"
        return MissingError(msg, hint="create it again, or peek into the log that it was made of")

    def _refuse_peek(self, peek: Peek, error: TimelyError) -> None:
        response = PeekResponse(peek.id, "error", error=error.message, traceparent=peek.traceparent, cause=error)
        self._outbox.append(response)

    # Observations --------------------------------------------------------------------------------

    def tell(self, observation: Observation, /) -> None:
        """State a fact. See `spark_timely.compute.observation`.

        Raises
        ------
        TimelyInternalError
            If it contradicts what is known: of a collection of another kind, or a batch that does not continue the one
            before. Nothing was changed.
        """
        match observation:
            case Upper(id_, run, frontier):
                self._tell_upper(id_, run, frontier)
            case ImportUpper(run, name, frontier):
                self._tell_import(run, name, frontier)
            case SubscribeProgress():
                self._tell_batch(observation)
            case CopyToDone():
                self._tell_copy(observation)
            case PeekAnswer():
                self._tell_answer(observation)
            case OperatorHydrated():
                self._tell_operator(observation)
            case Operators(run, rows):
                if run in self._runs:
                    self._shows.put("operators", run, [(run, *row) for row in rows])
            case ArrangementSizes(run, rows):
                if run in self._runs:
                    self._shows.put("arrangement_sizes", run, [(run, *row) for row in rows])
            case ErrorCount(id_, run, count, text):
                if self._there(id_, run) is not None:
                    self._shows.put("errors", id_, [(id_, count, text)] if count else [])
            case AnswerLatency(id_, seconds):
                self._tell_latency(id_, seconds)
            case _:
                msg = f"could not take an observation: found {shown(observation)}"
                raise TimelyInternalError(msg)
        self._version += 1

    def _there(self, id_: str, run: int) -> _Collection | None:
        """Return a collection if it is still of this run."""
        there = self._collections.get(id_)
        return there if there is not None and there.run == run else None

    def _tell_upper(self, id_: str, run: int, frontier: Antichain) -> None:
        there = self._there(id_, run)
        if there is None:
            return
        if there.kind in ("subscribe", "copy-to"):
            msg = f"could not take the upper of {id_!r}: found a {there.kind}, whose frontier is not a log's"
            raise TimelyInternalError(msg)
        _same_arity(id_, there.domain, frontier)
        # What comes late says less.
        if there.upper is None or there.upper.less_than_frontier(frontier):
            there.upper = frontier
            self._advanced[id_] = None

    def _tell_import(self, number: int, name: str, frontier: Antichain) -> None:
        run = self._runs.get(number)
        if run is None:
            return
        if name not in {each.name for each in run.dataflow.imports}:
            msg = f"could not take the upper of import {name!r}: found none in dataflow {run.dataflow.name!r}"
            raise TimelyInternalError(msg)
        before = run.imports.get(name)
        if before is not None and not (before.arity == frontier.arity and before.less_than_frontier(frontier)):
            return
        run.imports[name] = frontier
        for id_ in run.live:
            self._show_imports(run, id_)
            self._show_lag(run, id_)

    def _tell_batch(self, batch: SubscribeProgress) -> None:
        there = self._there(batch.id, batch.run)
        too_large = self._too_large("a batch of subscribe", batch.id, batch.n_bytes)
        error, cause = batch.error, batch.cause
        if error is None and too_large is not None:
            error, cause = too_large.message, too_large
        updates = None if error else batch.updates
        response = SubscribeBatch(batch.id, batch.lower, batch.upper, updates, error, cause)
        if there is None:
            # Dropped in this session: its client may still want it. It was another session's otherwise, or another
            # collection has its id now.
            late = self._first <= batch.run < self._next and batch.id not in self._collections
            if late and self._incoming is None:
                self._outbox.append(response)
            return
        if there.kind != "subscribe":
            msg = f"could not take a batch of {batch.id!r}: found a {there.kind}"
            raise TimelyInternalError(msg)
        _same_arity(batch.id, there.domain, batch.lower)
        _same_arity(batch.id, there.domain, batch.upper)
        before = there.shown_frontier
        first_too_early = there.reported is None and not there.as_of.less_equal_frontier(batch.upper)
        if batch.lower != before or not before.less_than_frontier(batch.upper) or first_too_early:
            msg = (
                f"could not take a batch of subscribe {batch.id!r}: found [{batch.lower!r}, {batch.upper!r}), "
                f"after {before!r}, with as_of={there.as_of!r}"
            )
            raise TimelyInternalError(msg, context={"lower": batch.lower, "upper": batch.upper})
        there.upper = there.reported = batch.upper
        self._show_frontier(there)
        self._show_run(self._runs[there.run])
        if self._incoming is None:
            self._outbox.append(response)

    def _tell_copy(self, done: CopyToDone) -> None:
        there = self._there(done.id, done.run)
        if there is None or there.answered:
            return
        if there.kind != "copy-to":
            msg = f"could not take the answer of copy-to {done.id!r}: found a {there.kind}"
            raise TimelyInternalError(msg)
        there.answered = True
        if self._incoming is None:
            outcome = CopyToResponse(done.id, "rows", rows=done.rows)
            if done.error is not None:
                outcome = CopyToResponse(done.id, "error", error=done.error, cause=done.cause)
            self._outbox.append(outcome)
        self._show_run(self._runs[there.run])

    def _tell_answer(self, answer: PeekAnswer) -> None:
        pending = self._peeks.pop(answer.id, None)
        if pending is None or self._incoming is not None:
            self._shows.clear("peeks", [answer.id] if self._incoming is not None else [])
            return
        peek = pending.peek
        if not pending.readable:
            self._refuse_forgotten(pending)
            return
        too_large = self._too_large("a peek at", peek.target, answer.n_bytes)
        if answer.error is not None:
            response = PeekResponse(
                peek.id, "error", error=answer.error, traceparent=peek.traceparent, cause=answer.cause
            )
            self._outbox.append(response)
        elif too_large is not None:
            self._refuse_peek(peek, too_large)
        else:
            self._outbox.append(PeekResponse(peek.id, "rows", answer.rows, traceparent=peek.traceparent))

    def _tell_operator(self, fact: OperatorHydrated) -> None:
        there = self._there(fact.id, fact.run)
        if there is None or there.run not in self._runs or (there.reported is not None and there.reported.is_empty):
            return
        statuses = self._runs[there.run].statuses
        if statuses.get((fact.id, fact.operator)) == fact.hydrated:
            return
        statuses[fact.id, fact.operator] = fact.hydrated
        if self._incoming is None:
            self._outbox.append(Status(fact.id, fact.operator, fact.hydrated))

    def _tell_latency(self, id_: str, seconds: float) -> None:
        at_most = 2.0 ** frexp(max(seconds, 1e-6))[1]
        found = self._latencies.setdefault((id_, at_most), 0) + 1
        self._latencies[id_, at_most] = found
        self._shows.put("latency", (id_, at_most), [(id_, at_most, found)])

    def _too_large(self, what: str, id_: str, n_bytes: int) -> OperatorError | None:
        limit = self.configuration[MAX_RESULT_BYTES]
        if limit is None or n_bytes <= cast("int", limit):
            return None
        return OperatorError(
            f"could not give the answer of {what} {id_!r}: found {n_bytes} bytes, allowed are {limit}",
            hint="ask for less, or raise max_result_bytes in the instance's configuration",
        )

    def turn(self) -> tuple[Response, ...]:
        """Return the responses that are due, and start what may start.

        Notes
        -----
        Cost: of what changed since the last turn, the collections that hydrate, and the peeks that wait.
        """
        if self._incoming is not None or self._session.created is None:
            return ()
        for pending in [each for each in self._peeks.values() if not each.readable and self._is_ready(each)]:
            del self._peeks[pending.peek.id]
            self._refuse_forgotten(pending)
        responses, self._outbox = self._outbox, []
        moved = [there for id_ in sorted(self._advanced) if _is_news(there := self._collections[id_])]
        frontiers = [Frontiers(there.id, there.upper) for there in moved if there.upper is not None]
        self._advanced.clear()
        for there in moved:
            there.reported = there.upper
            self._show_frontier(there)
        for response in responses:
            if isinstance(response, PeekResponse):
                self._shows.clear("peeks", [response.id])
                self._session.retire_peek(response.id)
        limit = cast("int", self.configuration[HYDRATION_LIMIT])
        released, started = self._queue.turn(lambda id_: self._collections[id_].hydrated, limit, self._waits)
        for number in started:
            self._runs[number].started = True
            self._version += 1
        changed = {there.run for there in moved} | {self._collections[id_].run for id_ in released} | set(started)
        for number in sorted(changed - {INTROSPECTION_RUN}):
            self._show_run(self._runs[number])
        if self._shown_version != self._version:
            self._show_history()
        self._shown_version = self._version
        return (*responses, *frontiers)

    def working(self) -> tuple[str, ...]:
        """Return the collections that count against the limit of how much hydrates at once, in order of their ids."""
        return tuple(sorted(id_ for id_ in self._queue.hydrating if not self._waits(id_)))

    def _waits(self, id_: str) -> bool:
        """Return whether a collection has an import that is not complete at its as_of, as far as was observed."""
        run = self._runs[self._collections[id_].run]
        return any(frontier.less_equal_frontier(run.dataflow.as_of) for frontier in run.imports.values())

    def _is_ready(self, pending: _Pending) -> bool:
        if pending.dropped or pending.peek.collection is None:
            return True
        return self._is_complete(self._collections[pending.peek.collection], pending.peek.time)

    def _is_complete(self, there: _Collection, time: tuple[int, ...]) -> bool:
        return there.upper is not None and not there.upper.less_equal(time)

    # Showing -------------------------------------------------------------------------------------

    def _show_frontier(self, there: _Collection) -> None:
        self._shows.put("frontiers", there.id, _frontier_rows((there.id,), there.domain, there.shown_frontier))

    def _show_imports(self, run: _Run, id_: str) -> None:
        rows: list[tuple[object, ...]] = []
        domain = run.dataflow.domain
        for each in run.dataflow.imports:
            frontier = run.imports.get(each.name, domain.minimum_frontier)
            rows += _frontier_rows((id_, each.name), domain, frontier)
        self._shows.put("import_frontiers", id_, rows)

    def _show_run(self, run: _Run) -> None:
        for id_ in run.live:
            state = self._state_of(self._collections[id_], run)
            self._shows.put("hydration", id_, [(id_, state, state == "hydrated")])
            self._show_lag(run, id_)

    def _show_states_of(self, id_: str) -> None:
        there = self._collections.get(id_)
        if there is not None and there.run in self._runs:
            self._show_run(self._runs[there.run])

    def _state_of(self, there: _Collection, run: _Run) -> str:
        if there.hydrated:
            return "hydrated"
        if run.started:
            return "hydrating"
        return "queued" if self._queue.is_queued(run.number) else "suspended"

    def _show_lag(self, run: _Run, id_: str) -> None:
        frontier = self._collections[id_].reported
        seen = [
            (each.name, run.imports.get(each.name, run.dataflow.domain.minimum_frontier))
            for each in run.dataflow.imports
        ]
        lag = slowest = None
        if frontier is not None and frontier.is_empty:
            lag = 0
        else:
            slowest = _slowest(seen)
            tops = [upper.elements[0][0] for _, upper in seen if upper.arity == 1 and not upper.is_empty]
            if frontier is not None and frontier.arity == 1 and tops:
                lag = min(max(0, max(tops) - frontier.elements[0][0]), _LONGEST_LAG)
        self._shows.put("lag", id_, [(id_, lag, slowest)])

    def _show_history(self) -> None:
        counts = Counter(NAMES[type(command)] for command in self._session.history.commands)
        self._shows.put("history", "", sorted(counts.items()))

    # Views ---------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Of the newest session, also while it is collected; -1 before the first."""
        return self._session.epoch if self._incoming is None else self._incoming.epoch

    @property
    def owner(self) -> str:
        """Id of the client or process that began the newest session."""
        return self._session.owner if self._incoming is None else self._incoming.owner

    @property
    def initialized(self) -> bool:
        """Whether it is computing, and not collecting the commands of a session."""
        return self._incoming is None and self._session.created is not None

    @property
    def read_only(self) -> bool:
        """Whether nothing may be written to logs."""
        return not self._writes

    @property
    def configuration(self) -> Mapping[str, object]:
        """Values of the configuration. The mapping that is given never changes: a step looks once."""
        return self._session.configuration

    @property
    def history(self) -> History:
        """The history of the session that computes. Not to be changed."""
        return self._session.history

    @property
    def introspection(self) -> Introspection:
        """The relations by which the instance shows its state."""
        return self._shows

    @property
    def version(self) -> int:
        """A number that grows with each command and observation, and with each dataflow that starts."""
        return self._version

    def running(self) -> tuple[Running, ...]:
        """Return the dataflows that started, in the order of their creation."""
        return tuple(self._running(run) for run in self._runs.values() if run.started)

    def suspended(self) -> tuple[Running, ...]:
        """Return the dataflows that exist and have not started."""
        return tuple(self._running(run) for run in self._runs.values() if not run.started)

    def run(self, number: int, /) -> Running | None:
        """Return a dataflow; None if it is gone."""
        run = self._runs.get(number)
        return None if run is None else self._running(run)

    def _running(self, run: _Run) -> Running:
        live = [self._collections[id_] for id_ in run.live]
        uppers = {there.id: there.upper for there in live if there.upper is not None}
        complete = all(there.complete for there in live)
        return Running(run.number, run.dataflow, tuple(run.live), run.started, complete, uppers)

    def pending_peeks(self) -> tuple[PendingPeek, ...]:
        """Return the peeks without an answer, in the order in which they came."""
        return tuple(
            PendingPeek(each.peek, each.run, self._is_ready(each), each.dropped)
            for each in self._peeks.values()
            if each.readable
        )

    def has(self, id_: str, /) -> bool:
        """Tell whether a collection exists."""
        return id_ in self._collections

    def collection(self, id_: str, /) -> CollectionView:
        """Return a collection.

        Raises
        ------
        MissingError
            If there is none of this id.
        """
        if id_ not in self._collections:
            msg = f"could not look at collection {shown(id_)}: found none of this id"
            raise MissingError(msg, hint="look at the relation of exports for those that exist")
        there = self._collections[id_]
        return CollectionView(
            id_,
            there.kind,
            there.run,
            there.as_of,
            there.reported,
            there.upper,
            self._session.allowed[id_],
            there.hydrated,
        )

    def collections(self) -> tuple[CollectionView, ...]:
        """Return all collections."""
        return tuple(map(self.collection, self._collections))

    def allowed(self, id_: str, /) -> Antichain:
        """Return what clients allow a collection to compact to.

        Raises
        ------
        MissingError
            If there is none of this id.
        """
        return self.collection(id_).allowed

    def since_of(self, id_: str, /) -> Antichain:
        """Return how far an index or log may be compacted: what clients allow, held back by those that read it here.

        Peeks hold their time, and dataflows that import it what `holds` says.

        Raises
        ------
        MissingError
            If there is none of this id.
        """
        since = self.allowed(id_)
        run = self._collections[id_].run
        for pending in self._peeks.values():
            if pending.run == run and pending.peek.target == id_ and pending.readable:
                since = since.meet(Antichain.of(pending.peek.time))
        for importer in self._runs.values():
            for each in importer.dataflow.imports:
                if each.export == id_ and importer.dataflow.domain.arity == since.arity:
                    since = since.meet(self._held_by(importer))
        return since

    def holds(self, number: int, /) -> Mapping[str, Antichain]:
        """Return from when on each import of a dataflow has to stay readable, by its name.

        The as_of until all exports are hydrated, then where the last of them is.
        """
        run = self._runs.get(number)
        return {} if run is None else dict.fromkeys((each.name for each in run.dataflow.imports), self._held_by(run))

    def _held_by(self, run: _Run) -> Antichain:
        live = [self._collections[id_] for id_ in run.live]
        if not all(there.hydrated for there in live):
            return run.dataflow.as_of
        least = Antichain.empty(run.dataflow.domain.arity)
        return reduce(Antichain.meet, [there.reported for there in live if there.reported is not None], least)


# Small things ------------------------------------------------------------------------------------


def _is_news(there: _Collection) -> bool:
    """Tell whether a frontier is to be reported (invariant 2)."""
    if there.upper is None or there.kind in ("subscribe", "copy-to"):
        return False
    if there.reported is None:
        return there.as_of.less_equal_frontier(there.upper)
    return there.reported.less_than_frontier(there.upper)


def _same_arity(id_: str, domain: TimeDomain, frontier: Antichain) -> None:
    if frontier.arity != domain.arity:
        msg = f"could not take a frontier of {id_!r}: found {frontier!r}, its times have {domain.arity} coordinates"
        raise TimelyInternalError(msg)


def _frontier_rows(begin: tuple[object, ...], domain: TimeDomain, frontier: Antichain) -> list[tuple[object, ...]]:
    return [(*begin, _time_text(domain, time)) for time in frontier]


def _time_text(domain: TimeDomain, time: tuple[int, ...]) -> str:
    return json.dumps(domain.time_to_json(time))


def _slowest(seen: Iterable[tuple[str, Antichain]]) -> str | None:
    """Return the import that holds the others back: the first one that no other is behind of."""
    waiting = [(name, upper) for name, upper in seen if not upper.is_empty]
    for name, upper in waiting:
        if not any(other.arity == upper.arity and other.less_than_frontier(upper) for _, other in waiting):
            return name
    return None
