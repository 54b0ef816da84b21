"""Outputs of a running dataflow: their uppers, their failures, and the commits that record either.

An output is a stream of a log that the dataflow owns (`dataflow.logs.Sink`). `steps` and the engine of a continual task
append by `Outputs` and pass failures to it; `explain` reads from the log what it wrote (`newest_note`, `steps_of`).
`inputs` next to it knows what an output was made from.

Invariants
----------
1. An output is written by comparing and appending at its upper. A report on it, of a failure or that its dataflow was
   dropped, is such a commit too, which moves nothing: so after a drop nothing of that run is appended any more.
2. An output whose function failed is left alone for the rest of the query's run, unless another copy of the dataflow
   gets past. Other failures may pass by themselves: they are tried again after pauses that grow, whether or not an
   input moves.
3. No failure goes unreported: one that cannot be written into the output's log ends the query, after some tries.
4. An output is written by one plan, whose fingerprint its notes have; commits are refused where they have another. A
   plan that replaces another writes its own first, so that a process with the old one is refused from then on. Two
   questions are kept apart: whether the code is another, asked with the inputs that the output was made from; and
   whether these inputs changed.
5. From its first step on an output is where the dataflow itself brought it, with no rows but its own, or it stops: what
   it was moved past would never be computed. What is wrong without its beginning (`Sink.is_whole`) also begins there.
6. Of two epochs, starts of one compute instance, the lower one appends nothing once the higher one has claimed the
   output: that is compared in the same decision as the upper.
7. An error may name a text by which a user consents to continue (``replaces=``). The consent covers what that error
   named and nothing else: either that the code is another, or all that was found of the output and its inputs at once.
"""

from __future__ import annotations

import logging
import time as monotonic
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow.compute as pc

from spark_timely import errors
from spark_timely.dataflow.body import Body
from spark_timely.dataflow.engine.inputs import Inputs, note_of
from spark_timely.dataflow.fingerprint import plans_of
from spark_timely.dataflow.views import least_time
from spark_timely.errors import (
    ClosedError,
    DataLossError,
    OperatorError,
    OwnershipError,
    PlanMismatchError,
    TimelyError,
    UpperMismatchError,
)
from spark_timely.log.machine.decide import check_owner, check_plan
from spark_timely.log.machine.lost_commits import is_accepted
from spark_timely.log.writer import StreamWriter
from spark_timely.protocol.note import InputNote, Note, OutputFailure, OutputNote
from spark_timely.time.antichain import Antichain
from spark_timely.work import Backoff, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_timely.dataflow.engine.inputs import Retainers
    from spark_timely.dataflow.fingerprint import Plan
    from spark_timely.dataflow.logs import Sink
    from spark_timely.log import Log
    from spark_timely.log.machine.state import DataFile, StreamState

__all__ = [
    "TRIES",
    "OutputWork",
    "Outputs",
    "check_plans",
    "drop_output",
    "failure_of",
    "newest_note",
    "passes",
    "steps_of",
]

_log = logging.getLogger("spark_timely.dataflow")

# Others commit to an output a few times at most while a report on it is written.
_MOST_TRIES = 20

TRIES: Final = 6
"""How often in a row a query that ends tries what fails for a moment."""


def passes(kind: str, /) -> bool:
    """Return whether a failure may pass by itself, by the name of its class: of a job or of the storage.

    Examples
    --------
    >>> [passes(kind) for kind in ("StorageError", "OSError", "OperatorError", "DataLossError")]
    [True, True, False, False]
    """
    return kind == "StorageError" or kind not in errors.__all__


class Outputs:
    """The outputs of a dataflow.

    Parameters
    ----------
    sinks : sequence of Sink
    logs : mapping of str to Log
        By path: all that are read or written.
    inputs : Inputs
        Of the same outputs and logs.
    run : str
        The run of the query.
    tries : int
        How often in a row a failure that may pass is tried, by a query that ends, and where no query is known.
    now : callable
        A clock in seconds that never goes back.

    Attributes
    ----------
    failures : dict of Sink to Exception
        Outputs that stopped.
    dropped : bool
        Whether this run may not continue.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        logs: Mapping[str, Log],
        inputs: Inputs,
        run: str,
        *,
        tries: int = 1,
        now: Callable[[], float] = monotonic.monotonic,
    ) -> None:
        self._sinks, self._logs, self._inputs, self._run = sinks, logs, inputs, run
        self._plans = plans_of(sinks, inputs.ids())
        self._standing: dict[Sink, Antichain] = {}
        self.failures: dict[Sink, Exception] = {}
        self._unreported: set[Sink] = set()
        self._most, self._now = tries, now
        # Of outputs whose last step has failed, those that stand (invariant 2) too.
        self._backoffs: dict[Sink, Backoff] = {}
        self.dropped = False

    @property
    def unreported_failures(self) -> list[Exception]:
        """Failures that could not be written into their output's log, and will not pass or were tried often enough."""
        return [self.failures[sink] for sink in self._unreported if self._is_final(sink)]

    def _is_final(self, sink: Sink) -> bool:
        return not passes(type(self.failures[sink]).__name__) or self._backoffs[sink].n_failed >= self._most

    def _waiting(self, *, bounded: bool) -> dict[Sink, Backoff]:
        """Return the outputs that are tried again, and when; of a query that ends those alone that it waits for."""
        return {
            sink: self._backoffs[sink]
            for sink in self.failures
            if sink not in self._standing and not (bounded and self._is_final(sink))
        }

    def due(self, *, bounded: bool) -> float | None:
        """Return when the next output is tried again; None if none is. See `wake`."""
        return min((each.again_at for each in self._waiting(bounded=bounded).values()), default=None)

    def wake(self, *, bounded: bool) -> bool:
        """Forget failures that are due to be tried again; return whether there were any (invariant 2).

        Parameters
        ----------
        bounded : bool
            Whether those are left alone that will not pass, or were tried often enough: the query ends.
        """
        woken = [sink for sink, backoff in self._waiting(bounded=bounded).items() if backoff.is_due]
        for sink in woken:
            self._forget(sink)
        return bool(woken)

    def _forget(self, sink: Sink) -> None:
        self.failures.pop(sink, None)
        self._unreported.discard(sink)

    def claim(self) -> None:
        """Write this plan into the outputs that have the plan, or are in the state, which it replaces.

        And the epoch of a compute instance into all of them. See invariants 4, 6 and 7.

        Raises
        ------
        OwnershipError
            If a newer epoch was here.
        """
        for sink in self._sinks:
            if sink.fence is not None:
                _report(self._logs[sink.path], sink, partial(_fenced, sink))
            _report(self._logs[sink.path], sink, partial(self._claim, sink))

    def _claim(self, sink: Sink, state: StreamState) -> _Report | None:
        """Return how this plan takes an output over; None if it does not, or need not."""
        before = note_of(state, sink)
        if sink.replaces is None or before.plan is None:
            return None
        plan = _as_made(self._plans, self._inputs, sink, before)
        if before.plan != plan.fingerprint:
            if before.plan != sink.replaces:
                return None
            note = replace(before, inputs=self._inputs.kept(sink, before))
        else:
            found = self._inputs.found(sink, before)
            said = [*self._inputs.changes(sink, before, found), *_moved(sink, state)]
            if not said or sink.replaces != before.consent(state.frontier.elements, found):
                return None
            # As it is, with the inputs as they are. Later moves are no part of it.
            plan, upper = self._plans[sink], state.frontier.elements
            note = replace(before, inputs=self._inputs.now(sink), upper=upper, others=0, consented=True)
        note = _with_plan(replace(note, step=None, failures=()), plan)
        return note, f"takes over from {sink.replaces}", (plan.fingerprint, before.plan)

    def refused(self, sink: Sink, state: StreamState, *, fresh: bool) -> TimelyError | None:
        """Return why an output may not continue from a state, whatever its inputs have for it; None if it may.

        Parameters
        ----------
        sink : Sink
        state : StreamState
        fresh : bool
            Whether the inputs were looked at after the output.

        Returns
        -------
        TimelyError or None
            The output is another's by now, has another plan, others moved it, it was made from other inputs, or one
            of them cannot be read.
        """
        note = note_of(state, sink)
        plan = _as_made(self._plans, self._inputs, sink, note)
        try:
            check_owner(sink.path, state, sink.owner)
            _check_plan(sink, state, _allowed(sink, plan) if state.closed else (plan.fingerprint,), plan)
            found = self._inputs.found(sink, note, fresh=fresh)
        except TimelyError as error:
            return error
        return _changed(sink, state, self._inputs.changes(sink, note, found), found)

    def states(self, broken: Mapping[str, Exception]) -> dict[Sink, StreamState]:
        """Return how far each output is whose log could be looked at.

        Parameters
        ----------
        broken : mapping of str to Exception
            Logs that could not be, by path.
        """
        found: dict[Sink, StreamState] = {}
        for sink in self._sinks:
            error = broken.get(sink.path)
            state = None if error is not None else self._logs[sink.path].core.stream(sink.stream)
            if state is None:
                self.fail(sink, None, error or _no_stream(sink))
                continue
            found[sink] = state
            self.dropped = self.dropped or self._is_dropped(sink)
            if self._standing.get(sink, state.frontier) != state.frontier:
                del self._standing[sink]
                self._forget(sink)
        return found

    def _is_dropped(self, sink: Sink) -> bool:
        """Whether the output says that this run may not append any more."""
        return self._run in newest_note(self._logs[sink.path], sink).dropped

    def append(
        self, sink: Sink, state: StreamState, files: Sequence[DataFile], upper: Antichain, note: OutputNote
    ) -> StreamState | None:
        """Compare and append. The note says what the output is made from now; runs that were dropped stay so.

        Returns
        -------
        StreamState or None
            The newest after the append, which is another copy's if that was quick; None if another copy was first, or
            if the append failed: then `failures` has the output. Files that surely are not part of the log are deleted.
        """
        log = self._logs[sink.path]
        plan = self._plans[sink]
        newest = newest_note(log, sink)
        begins = newest.begins if note.begins is None else note.begins
        note = _with_plan(replace(note, dropped=newest.dropped, begins=begins, upper=upper.elements), plan)
        plans = (plan.fingerprint,)
        try:
            after = _append(log, sink, state, note, "", files=files, upper=upper, plans=plans)
        except (UpperMismatchError, ClosedError) as error:
            _log.info("output %r: another copy of the dataflow was first: %s", sink.name, error)
            return None
        except TimelyError as error:
            self.fail(sink, state, error)
            return None
        self._backoffs.pop(sink, None)
        return after

    def settle(self, sink: Sink, state: StreamState, note: OutputNote) -> None:
        """Tell that an output of which nothing waits does not fail any more, where its newest note says it does."""
        self._backoffs.pop(sink, None)
        others = tuple(failure for failure in note.failures if failure.run != self._run)
        if others == note.failures:
            return
        well = replace(note, step=None, failures=others)
        try:
            _append(self._logs[sink.path], sink, state, well, "is well again")
        except (UpperMismatchError, ClosedError):
            return
        except TimelyError as error:
            _log.warning("output %r: that it is well again cannot be written into its log: %s", sink.name, error)

    def fail(self, sink: Sink, state: StreamState | None, error: Exception) -> None:
        """Stop an output, and write the reason into its log.

        Parameters
        ----------
        sink : Sink
        state : StreamState or None
            In which it stands; None if that is not known.
        error : Exception
        """
        if sink in self.failures:
            return
        self.failures[sink] = error
        self._backoffs.setdefault(sink, Backoff(self._now)).failed()
        if isinstance(error, OperatorError) and state is not None:
            self._standing[sink] = state.frontier
        # The log of an output that this plan does not write stays as it is.
        if state is None or isinstance(error, OwnershipError) or not self._record_failure(sink, state, error):
            self._unreported.add(sink)

    def _record_failure(self, sink: Sink, state: StreamState, error: Exception) -> bool:
        """Write a failure into the log of its output; return whether everybody can see it, or need not."""
        log = self._logs[sink.path]
        failure = OutputFailure.of(sink.name, error, self._run)
        try:
            before = newest_note(log, sink)
            if before.failure == failure:
                return True
            n_failed = self._backoffs[sink].n_failed
            if n_failed > 1 and any(_is_like(each, failure) for each in before.failures):
                # Reported when it failed first: a job says it in other words each time.
                _log.warning("%s: output %r failed again, %d times: %s", sink.owner, sink.name, n_failed, error)
                return True
            _log.error("%s: output %r stopped: %s", sink.owner, sink.name, error)

            def said(now: StreamState) -> _Report | None:
                if now.frontier != state.frontier or self._is_dropped(sink):
                    return None  # another copy got past, or nobody waits for this one
                return note_of(now, sink).failed(failure), "failed", ()

            return _report(log, sink, said)
        except TimelyError as other:
            _log.warning("output %r: its failure cannot be written into its log: %s", sink.name, other)
        return False


class OutputWork(Work):
    """Work whose steps append to outputs: a dataflow, or a continual task.

    Parameters
    ----------
    outputs : Outputs
    retainers : Retainers
        Of what it reads.
    now : callable
        A clock in seconds that never goes back.
    """

    def __init__(self, outputs: Outputs, retainers: Retainers, now: Callable[[], float]) -> None:
        self._outputs, self._retainers, self._now = outputs, retainers, now
        # Whether inputs are looked at once in a series of steps; whether the newest step found nothing to do.
        self._pinned, self._idle = False, False

    @property
    def failures(self) -> list[Exception]:  # noqa: D102 - see `Work`
        return list(self._outputs.failures.values())

    @property
    def unreported_failures(self) -> list[Exception]:  # noqa: D102 - see `Work`
        return self._outputs.unreported_failures

    @property
    def dropped(self) -> bool:  # noqa: D102 - see `Work`
        return self._outputs.dropped

    @property
    def unretained(self) -> frozenset[str]:
        """Paths of logs that it cannot retain, and does not try to any more."""
        return frozenset(self._retainers.given_up)

    @property
    def rest(self) -> float | None:  # noqa: D102 - see `Work`
        if self.dropped:
            return None
        due = self._outputs.due(bounded=self._pinned)
        if not self._idle:
            return 0.0
        return None if due is None else max(due - self._now(), 0.0)

    def end(self) -> None:  # noqa: D102 - see `Work`
        self._retainers.end()


def _is_like(before: OutputFailure, failure: OutputFailure) -> bool:
    """Return whether two failures are of one operator, kind and run."""
    return replace(before, message="", hint=None) == replace(failure, message="", hint=None)


def _append(
    log: Log,
    sink: Sink,
    state: StreamState,
    note: OutputNote,
    what: str,
    *,
    files: Sequence[DataFile] = (),
    upper: Antichain | None = None,
    plans: Sequence[str] = (),
) -> StreamState:
    writer = StreamWriter(log.core, sink.stream, sink.owner)
    outcome = writer.compare_and_append_files(
        files,
        expected=state,
        upper=state.frontier if upper is None else upper,
        reason=f"{sink.owner}: {sink.name} {what}".rstrip(),
        note=Note(output=replace(note, fence=sink.fence)),
        plans=plans,
        fence=sink.fence,
    )
    return outcome.state


def _fenced(sink: Sink, state: StreamState) -> _Report | None:
    """Return the note that has an instance's epoch; None if it is there."""
    note = note_of(state, sink)
    return None if note.fence == sink.fence else (replace(note, step=None), "is an instance's", ())


# What is to be said of an output, what happened, and the plans that the output may have; any unless given.
_Report: TypeAlias = "tuple[OutputNote, str, Sequence[str]]"


def _report(
    log: Log, sink: Sink, said: Callable[[StreamState], _Report | None], tries: Iterable[int] = range(_MOST_TRIES)
) -> bool:
    """Write what is to be said of an output in its newest state, in a commit that moves nothing (invariant 1).

    Returns
    -------
    bool
        Whether it was written, or nothing is to be said. If not, the output is closed or gone, or others were first
        each time.
    """
    for _ in tries:
        state = log.core.stream(sink.stream)
        if state is None or state.closed:
            return False
        report = said(state)
        if report is None:
            return True
        note, what, plans = report
        try:
            _append(log, sink, state, note, what, plans=plans)
        except (UpperMismatchError, PlanMismatchError, ClosedError):
            log.core.refresh()
        else:
            return True
    return False


def check_plans(sinks: Sequence[Sink], logs: Mapping[str, Log]) -> None:
    """Refuse outputs that were made by other plans, and not by those that they are to replace.

    A look, to refuse early: what counts is what a commit finds. Whether inputs were replaced or put back, or others
    moved an output, is left to the engine, which stops such outputs alone.

    Parameters
    ----------
    sinks : sequence of Sink
    logs : mapping of str to Log
        By path: all that are read, and those that are written and are there.

    Raises
    ------
    PlanMismatchError
    """
    inputs = Inputs(sinks, logs)
    plans = plans_of(sinks, inputs.ids())
    for sink in sinks:
        state = logs[sink.path].core.stream(sink.stream) if sink.path in logs else None
        if state is not None and state.owner == sink.owner:  # another owner is refused for that
            plan = _as_made(plans, inputs, sink, note_of(state, sink))
            _check_plan(sink, state, _allowed(sink, plan), plan)


def _check_plan(sink: Sink, state: StreamState, plans: Sequence[str], plan: Plan) -> None:
    try:
        check_plan(sink.path, state, plans, plan.outline)
    except PlanMismatchError as error:
        if sink.can_be_taken_over:
            raise
        raise PlanMismatchError(
            error.message,
            hint="start the dataflow as it was, capture into another log, or remove this output to make it again: it "
            "is a collection, from which another plan would take back what was never added",
            context=error.context,
            expected=error.expected,
            found=error.found,
        ) from None


def _as_made(plans: Mapping[Sink, Plan], inputs: Inputs, sink: Sink, note: OutputNote) -> Plan:
    """Return the plan of an output with the inputs that it was made from: another one only where the code is."""
    replaced = inputs.replaced(sink, note)
    return plans_of(list(plans), {**inputs.ids(), **replaced})[sink] if replaced else plans[sink]


def _with_plan(note: OutputNote, plan: Plan) -> OutputNote:
    return replace(note, plan=plan.fingerprint, outline=plan.outline)


def _allowed(sink: Sink, plan: Plan) -> tuple[str, ...]:
    """Return the plans that an output may have when a dataflow begins."""
    return (plan.fingerprint,) if sink.replaces is None else (plan.fingerprint, sink.replaces)


def drop_output(log: Log, sink: Sink, run: str) -> None:
    """Let no run of a query of this name append to an output any more (invariant 1). Its frontier stays where it is."""
    log.refresh()
    # Tried again as often as others commit meanwhile.
    _report(log, sink, lambda state: (note_of(state, sink).without(run), "dropped", ()), count())


def _moved(sink: Sink, state: StreamState) -> list[str]:
    """Return what is said of an output that others moved or wrote to; nothing if nobody did (invariant 5)."""
    note, upper = note_of(state, sink), state.frontier.elements
    if note.upper is None:
        if not state.closed and (not sink.is_whole or state.frontier.less_equal(least_time(sink.view))):
            return []  # it begins where it is
        left = "before its first step"
    elif note.upper == upper and not note.others:
        return []
    else:
        by_others = f"with {note.others} row{'s' * (note.others > 1)} by others, " if note.others else ""
        left = f"{by_others}where the dataflow left it at {_rendered(sink, note.upper)}"
    return [f"found its output at {_rendered(sink, upper)}, {left}"]


def _changed(
    sink: Sink, state: StreamState, inputs: Sequence[str], found: Mapping[str, InputNote]
) -> DataLossError | None:
    """Return the error of an output that others moved, or that was made from other inputs; None if neither.

    It names all that was found, for its consent covers all of it (invariant 7).
    """
    output = _moved(sink, state)
    if not inputs and not output:
        return None
    causes, ways = [], ["capture into another log", "remove this output to compute it again"]
    if inputs and all(is_accepted(each.commits) for each in found.values() if each.commits):
        causes.append("its rows would have been others")
    elif inputs:
        causes.append("an input was restored to an earlier state, or a copy of it or another log took its place")
        ways.insert(0, "put back the input that the output was made from")
    if output:
        causes.append("the output was moved by hand, and what was not computed before would be missing")
    hint = f"{', '.join(ways[:-1])}, or {ways[-1]}: {', and '.join(causes)}"
    if not state.closed and sink.can_be_taken_over and note_of(state, sink).plan is not None:
        consent = note_of(state, sink).consent(state.frontier.elements, found)
        hint += (
            "; if its rows are to stay and later times to come from the inputs as they are, say "
            f"{'ContinualTask' if isinstance(sink.view.operator, Body) else 'capture'}(…, replaces={consent!r})"
        )
    return DataLossError(
        f"could not continue at operator {sink.name!r}: {'; '.join([*inputs, *output])}",
        hint=hint,
        context={"path": sink.path, "stream": sink.stream},
    )


def _rendered(sink: Sink, elements: Sequence[tuple[int, ...]]) -> str:
    domain = sink.view.domain
    return domain.render_frontier(Antichain.from_times(elements, domain.arity))


def _no_stream(sink: Sink) -> DataLossError:
    msg = f"could not continue at operator {sink.name!r}: found no stream {sink.stream!r} in log {sink.path!r} any more"
    return DataLossError(
        msg,
        hint="start the dataflow again: the output was replaced",
        context={"path": sink.path, "stream": sink.stream},
    )


def steps_of(log: Log, sink: Sink) -> list[Mapping[str, object]]:
    """Return the numbers of the steps of an output, the oldest first.

    Notes
    -----
    Cost: all progress rows of the log are looked at; one turn per commit of the output.
    """
    rows = log.core.progress()
    mine = rows.filter(pc.and_(pc.equal(rows["_stream"], sink.stream), pc.equal(rows["_query"], sink.owner)))
    notes = (Note.parse(text).output for text in mine["_note"].drop_null().to_pylist())
    return [note.step for note in notes if note is not None and note.step is not None]


def newest_note(log: Log, sink: Sink) -> OutputNote:
    """Return the newest note of an output; an empty one where there is none."""
    return note_of(log.core.stream(sink.stream), sink)


def failure_of(log: Log, sink: Sink, *, run: str | None = None) -> OutputFailure | None:
    """Return why an output waits; None where it does not, as far as its log says.

    Parameters
    ----------
    log : Log
    sink : Sink
    run : str, optional
        The run of a query that is asked for; any unless given.
    """
    note = newest_note(log, sink)
    return note.failure if run is None else next((each for each in note.failures if each.run == run), None)
