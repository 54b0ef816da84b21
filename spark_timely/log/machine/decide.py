"""Decisions about commits, as pure functions, and the loop that makes and attempts them until one holds.

`streams` asks `decide_commit` and `decide_open` what becomes of a stream; merges, retention and forgetting commit by
`commit_loop` too. (`judge` decides nothing about our commits: it finds changes by others. `since` decides what a log
may forget.)

A decision holds for the snapshot it was made from: refresh the snapshot, decide, attempt the commit, settle an unclear
outcome, repeat. Whatever a log commits, rows of a stream, a merge of files or a new column, is decided from a snapshot,
which others may overtake. A lost race throws the decision away. An error of the storage says nothing of whether the
commit happened: the next snapshot does, and an attempt that may still happen is remembered until it cannot any more.
What a store does to put one attempt behind commits of others that do not conflict with it is part of that attempt.

Invariants
----------
1. Only the owner of a stream appends to it, and nobody to a closed one. A query that takes a stream over becomes its
   owner, once: a query that lost it cannot take it back, so no micro-batch of any query is in it twice.
2. A micro-batch that the log holds already is recognised before anything else is judged, by what it was planned
   from: it is done, and another one under its number is an error.
3. What is appended keeps the protocol, judged by the counts before the commit.
4. A new stream gets an unclaimed capability, which the pseudo-stream `#open` gives up, or a copy at a time that a live
   stream's capability allows. A capability is the right to produce at a time and later.
5. The output of a dataflow is appended to by the plan that its newest note names; another plan takes its place only by
   naming it.
6. The snapshot does not move between a decision and its attempt.
7. No error says that nothing happened, once an attempt was made that may have happened: callers would delete files
   that are part of the log.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import numpy as np

from spark_timely.errors import (
    ClosedError,
    DataLossError,
    InvalidUsageError,
    LogFormatError,
    NotBeyondError,
    OwnershipError,
    PlanMismatchError,
    StorageError,
    StreamMissingError,
    UpperMismatchError,
    described,
    shown,
)
from spark_timely.log.files.format import check_stream_name
from spark_timely.log.machine.repetition import Repetition, judge_repetition, refused_repetition
from spark_timely.log.machine.state import OPEN_STREAM, CommitRequest, StreamState, initial_state, next_state
from spark_timely.protocol.note import MicroBatch, Note, Opening, OutputNote
from spark_timely.protocol.rules import (
    StreamCounts,
    check_messages,
    check_progress,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.protocol.note import Fence
    from spark_timely.time.domain import TimeDomain


Recorded = Callable[[str, int, int | None], StreamState | None]


def missing_stream(path: str, name: str, known: Mapping[str, StreamState]) -> StreamMissingError:
    """Return the error for a stream that is not in the log."""
    return StreamMissingError(
        f"could not use stream {name!r} of log {path!r}: found streams={shown(sorted(set(known) - {OPEN_STREAM}))}",
        hint="open the stream first, or correct its name",
        context={"path": path, "stream": name},
    )


def closed_stream(path: str, name: str) -> ClosedError:
    """Return the error for an append to a closed stream."""
    return ClosedError(
        f"could not append to stream {name!r} of log {path!r}: found it closed",
        hint="write to another stream or another log: a closed stream stays closed",
        context={"path": path, "stream": name},
    )


def decide_commit(
    path: str,
    domain: TimeDomain,
    states: Mapping[str, StreamState],
    request: CommitRequest,
    recorded: Recorded,
    at: int,
    *,
    owners: Callable[[str], Collection[str]],
) -> StreamState | None:
    """Judge one commit; return the state after it, or None if the log holds this micro-batch already.

    Parameters
    ----------
    path : str
        Of the log, for errors.
    domain : TimeDomain
    states : mapping
        Newest state of each stream in the snapshot.
    request : CommitRequest
    recorded : callable
        Finds the state right after the commit of (stream, batch, step), or None.
    at : int
        Wall clock in microseconds, where the request does not say.
    owners : callable
        Finds who owns a stream or has owned it; asked where a stream is to be taken over.

    Raises
    ------
    StreamMissingError, OwnershipError, RolledBackError, ClosedError, UpperMismatchError
        If the stream is not there, another's or a newer instance's, ahead of the micro-batch, closed, or moved.
    PlanMismatchError
        If the stream is an output of a dataflow with another plan.
    UnheldCapabilityError, NegativeCountError
        If the commit breaks the protocol.
    """
    name = request.stream
    state = states.get(name)
    if state is None or name == OPEN_STREAM:
        raise missing_stream(path, name, states)
    taken = state.owner != request.owner
    if taken:
        _check_takeover(path, state, request, owners)
    elif request.batch is not None and not request.carry and _is_duplicate(path, state, request, recorded):
        return None
    if not taken:
        _check_fence(path, state, request.fence)
    check_plan(path, state, request.plans, None if request.note.output is None else request.note.output.outline)
    if state.closed:
        raise closed_stream(path, name)
    if request.expected_seq is not None and request.expected_seq != state.seq:
        msg = (
            f"could not append to stream {name!r} of log {path!r}: found it at seq={state.seq}, the rows were "
            f"judged at seq={request.expected_seq}"
        )
        raise UpperMismatchError(
            msg,
            hint="read the stream again and repeat the append: another commit came first",
            expected=request.expected_seq,
            current=state.seq,
            context={"path": path, "stream": name},
        )
    _check_written_for(path, state, request)
    minima = request.minima(domain.arity)
    if len(minima):
        check_messages(state.counts, minima, stream=name, seq=state.seq + 1, domain=domain)
    times = np.asarray(request.progress_times, dtype=np.int64).reshape(-1, domain.arity)
    counts = check_progress(state.counts, times, request.progress_deltas, stream=name, seq=state.seq + 1, domain=domain)
    batch: int | None = request.batch
    step: int | None = request.step or 0
    if request.batch is None:
        # The numbers last until the stream changes hands; the note says which commit holds that micro-batch.
        batch, step = (None, None) if taken else (state.batch, state.step)
    return next_state(
        state,
        counts,
        note=_note(state, request, taken=taken),
        # Later than the commit before it, also where a clock was set back.
        at=max(at, state.at + 1) if request.at is None else request.at,
        reason=request.reason,
        batch=batch,
        step=step,
        n_rows=None if request.carry else request.rows(),
        bounds=None if request.carry else request.time_bounds(),
        owner=request.owner,
        epoch=state.epoch + (1 if taken or request.new_epoch else 0),
    )


def _note(state: StreamState, request: CommitRequest, *, taken: bool) -> Note:
    """Return the note of the commit: its own, and what lasts of the one before."""
    own = replace(request.note, content=request.content(), total=request.rows())
    bounds = request.time_bounds()
    if request.batch is not None:
        own = replace(own, batch=replace(own.batch or MicroBatch(), seq=state.seq + 1))
    skewed = own.batch is not None and own.batch.skewed > 0
    if own.greatest is None and bounds is not None and bounds.shape[1] == 1 and not skewed:
        own = replace(own, greatest=int(bounds[1, 0]))
    note = own.following(state.note, owner=state.owner if taken else None)
    if taken and note.output is not None and note.output.fence is not None:
        # The instance that wrote it is refused as another owner from now on.
        note = replace(note, output=replace(note.output, fence=request.fence))
    if own.output is None and note.output is not None and note.output.upper is not None:
        # The dataflow says itself what its output is made from; these messages are not by it.
        note = replace(note, output=replace(note.output, others=note.output.others + request.rows()))
    return note


def _check_takeover(
    path: str, state: StreamState, request: CommitRequest, owners: Callable[[str], Collection[str]]
) -> None:
    """Refuse an append to another's stream, unless it takes the stream over."""
    if not request.takeover:
        check_owner(path, state, request.owner)
    name = request.stream
    if request.carry:
        msg = f"could not take over stream {name!r} of log {path!r}: found carry=True"
        raise InvalidUsageError(msg, hint="take over without carry: the numbers are of another owner's micro-batch")
    if request.owner not in owners(name):
        return
    found = f"taken over from {request.owner!r}, it is owned by {state.owner!r}"
    hint = "continue under another name, with a new checkpoint: an owner that lost a stream cannot take it back"
    raise _of_another(path, state, found, hint)


def _of_another(path: str, state: StreamState, found: str, hint: str) -> OwnershipError:
    return OwnershipError(
        f"could not append to stream {state.stream!r} of log {path!r}: found it {found}",
        hint=hint,
        context={"path": path, "stream": state.stream, "owner": state.owner},
    )


def check_owner(path: str, state: StreamState, owner: str) -> None:
    """Refuse a stream that is another's; raises `OwnershipError`."""
    if state.owner != owner:
        hint = "choose another stream name, or take this stream over (takeover): one owner writes it"
        raise _of_another(path, state, f"owned by {state.owner!r}, not by {owner!r}", hint)


def check_plan(path: str, state: StreamState, plans: Sequence[str], outline: str | None) -> None:
    """Refuse a stream whose newest note names another plan than those that are allowed.

    Parameters
    ----------
    path : str
        Of the log, for errors.
    state : StreamState
    plans : sequence of str
        As in `CommitRequest`.
    outline : str or None
        Of the first of them, for the error.

    Raises
    ------
    PlanMismatchError
    """
    before = state.note.output
    if not plans or before is None or before.plan is None or before.plan in plans:
        return
    mine, *replaced = plans
    old, new = Counter((before.outline or "").splitlines()), Counter((outline or "").splitlines())
    gone, come = list((old - new).elements()), list((new - old).elements())
    differs = f"; it was made by {shown(gone)}, now there is {shown(come)}" if new and (gone or come) else ""
    also = f" or replaces={replaced[0]!r}" if replaced else ""
    msg = (
        f"could not append to stream {state.stream!r} of log {path!r}: found plan={before.plan!r} of "
        f"{state.owner!r}, expected plan={mine!r}{also}{differs}"
    )
    raise PlanMismatchError(
        msg,
        hint=f"start the dataflow as it was, or give this one another name and other outputs; if the change is meant, "
        f"say replaces={before.plan!r} where the output is named: capture(…), ContinualTask(…)",
        context={"path": path, "stream": state.stream},
        expected=mine,
        found=before.plan,
    )


def _check_fence(path: str, state: StreamState, fence: Fence | None) -> None:
    """Refuse a commit unless it is of the compute instance that writes the stream, and no newer process replaced it."""
    before = None if state.note.output is None else state.note.output.fence
    if before is None or (fence is not None and fence.may_follow(before)):
        return
    mine = "none" if fence is None else f"start {fence.epoch} ({fence.owner}) of instance {fence.instance!r}"
    found = f"written by start {before.epoch} ({before.owner}) of instance {before.instance!r}, this is {mine}"
    hint = "an instance that was replaced ends; to write the log otherwise, take the stream over under another name"
    raise _of_another(path, state, found, hint)


def _is_duplicate(path: str, state: StreamState, request: CommitRequest, recorded: Recorded) -> bool:
    """Whether the log holds this very micro-batch already; refuse another one under a number that it has."""
    if state.batch is None or request.batch is None:
        return False
    wanted, newest = (request.batch, request.step or 0), (state.batch, state.step or 0)
    if wanted > newest:
        return False
    # Steps of the newest micro-batch are all repeated after a crash, not only the last one.
    done = recorded(state.stream, *wanted) if wanted[0] == newest[0] else None
    if done is not None:
        same = judge_repetition(done.note.batch, request.note.batch)
        if same is Repetition.UNKNOWN:
            # Of a producer that says nothing of its rows.
            same = Repetition.SAME if _looks_alike(done, request) else Repetition.OTHER
        if same is not Repetition.OTHER:
            return True
    noted = state.note.batch if done is None else done.note.batch
    raise refused_repetition(path, state.stream, wanted, newest, noted, repeated=request.note.batch)


def _looks_alike(done: StreamState, request: CommitRequest) -> bool:
    bounds = request.time_bounds()
    if done.bounds is None or bounds is None:
        same = done.bounds is bounds
    else:
        same = bool(np.array_equal(done.bounds, bounds))
    return same and done.rows == request.rows()


def _check_written_for(path: str, state: StreamState, request: CommitRequest) -> None:
    """Refuse files whose rows say that they belong to another commit: a few files each."""
    for file in request.files:
        stats = json.loads(file.stats)
        low, high = stats.get("minValues", {}), stats.get("maxValues", {})
        for name, wanted in (("_seq", state.seq + 1), ("_stream", request.stream)):
            found = [v[name] for v in (low, high) if v.get(name, wanted) != wanted]
            if found:
                msg = (
                    f"could not append to stream {request.stream!r} of log {path!r} at seq={state.seq + 1}: found file "
                    f"{file.path!r} with rows of {name}={found[0]!r}"
                )
                raise UpperMismatchError(
                    msg,
                    hint="read the stream again and write the rows for its next commit: another commit came first",
                    expected=found[0],
                    current=wanted,
                    context={"path": path, "stream": request.stream},
                )


@dataclass(frozen=True, slots=True, eq=False)
class StreamOpening:
    """The opening of a stream: the states to write, and the streams that this must not race with.

    Parameters
    ----------
    state : StreamState
        State of the new stream after its opening commit.
    open_state : StreamState or None
        State of `#open` after it, where the stream claims a capability.
    donor : StreamState or None
        The stream whose capability is copied. Its seq is restated in the commit, so that the donor's
        next commit and this one cannot both go unnoticed.
    """

    state: StreamState
    open_state: StreamState | None
    donor: StreamState | None


def decide_open(
    path: str,
    domain: TimeDomain,
    states: Mapping[str, StreamState],
    name: str,
    *,
    owner: str,
    at: tuple[int, ...] | None,
    donor: str | None,
    clock: int,
    fence: Fence | None = None,
) -> StreamOpening | StreamState:
    """Decide how to open a stream; return its state if its owner opened it before.

    Parameters
    ----------
    path, domain, states
        As in `decide_commit`.
    name, owner : str
    at : tuple of int, optional
        Time of the new stream's capability; the minimum for a claim, else the least time that the
        donor holds.
    donor : str, optional
        Copy from this stream, even if `#open` has capabilities left.
    clock : int
        Wall clock in microseconds.
    fence : Fence, optional
        Of the start of a compute instance that opens it: the new stream is its from the beginning on.

    Raises
    ------
    OwnershipError
        If another owner has a stream of that name.
    ClosedError
        If the log is complete, or the donor is closed.
    NotBeyondError
        If no capability allows the time.
    StreamMissingError
        If there is no such donor.
    """
    check_stream_name(name)
    if not owner:
        msg = f"could not open stream {name!r} of log {path!r}: found no owner"
        raise InvalidUsageError(msg, hint="name the query or producer")
    state = states.get(name)
    if state is not None:
        if state.owner == owner:
            return state
        msg = f"could not open stream {name!r} of log {path!r}: found it owned by {state.owner!r}, not by {owner!r}"
        raise OwnershipError(
            msg,
            hint="choose another stream name, or stop the owner: one query or producer writes a stream",
            context={"path": path, "stream": name, "owner": state.owner},
        )
    opened = states.get(OPEN_STREAM)
    if donor is None and opened is not None and not opened.closed:
        return _claim(path, domain, opened, name, owner=owner, at=at, clock=clock, fence=fence)
    given = _donor(path, domain, states, donor, at)
    time = at if at is not None else given.frontier.elements[0]
    if not given.frontier.less_equal(time):
        raise _not_held(path, domain, name, given, time)
    new = initial_state(
        name,
        StreamCounts.initial(time),
        owner=owner,
        at=clock,
        reason=f"copy of {given.stream} at {given.seq}",
        note=_opening(given.stream, given.seq, fence),
        domain=domain,
    )
    return StreamOpening(new, None, given)


def _claim(
    path: str,
    domain: TimeDomain,
    opened: StreamState,
    name: str,
    *,
    owner: str,
    at: tuple[int, ...] | None,
    clock: int,
    fence: Fence | None,
) -> StreamOpening:
    time = at if at is not None else domain.minimum
    if not opened.frontier.less_equal(time):
        raise _not_held(path, domain, name, opened, time)
    given_up = np.array([domain.minimum], np.int64)
    left = check_progress(opened.counts, given_up, [-1], stream=OPEN_STREAM, seq=opened.seq + 1)
    after = next_state(
        opened,
        left,
        at=max(clock, opened.at + 1),
        reason=f"claimed by {name}",
        n_rows=0,
        bounds=None,
        note=Note(claimed=name, total=opened.note.total + 1),
    )
    new = initial_state(
        name,
        StreamCounts.initial(time),
        owner=owner,
        at=clock,
        reason=f"claim of {OPEN_STREAM} at {after.seq}",
        note=_opening(OPEN_STREAM, after.seq, fence),
        domain=domain,
    )
    return StreamOpening(new, after, None)


def _opening(donor: str, seq: int, fence: Fence | None) -> Note:
    """Return the note of the commit that opens a stream."""
    return Note(opening=Opening(donor, seq), output=None if fence is None else OutputNote(fence=fence))


def _donor(
    path: str,
    domain: TimeDomain,
    states: Mapping[str, StreamState],
    donor: str | None,
    at: tuple[int, ...] | None,
) -> StreamState:
    live = [s for name, s in sorted(states.items()) if name != OPEN_STREAM and not s.closed]
    if donor is not None:
        state = states.get(donor)
        if state is None or donor == OPEN_STREAM:
            raise missing_stream(path, donor, states)
        if state.closed:
            msg = f"could not join log {path!r} from stream {donor!r}: found it closed"
            raise ClosedError(
                msg,
                hint="name a stream that is open: a closed one holds nothing that could be copied",
                context={"path": path, "stream": donor},
            )
        return state
    if not live:
        msg = f"could not open a stream of log {path!r}: found the log complete"
        raise ClosedError(
            msg,
            hint="write to another log: no stream can join a complete one",
            context={"path": path},
        )
    allowing = live if at is None else [s for s in live if s.frontier.less_equal(at)]
    if at is not None and not allowing:
        msg = (
            f"could not open a stream of log {path!r} at time {domain.render_time(at)!r}: found no live stream "
            "that holds an earlier or equal time"
        )
        raise NotBeyondError(
            msg,
            hint="give a time that is still open: a stream can join at no other",
            time=at,
            context={"path": path},
        )
    return min(allowing, key=lambda s: (s.frontier.elements[0], s.stream))


def _not_held(path: str, domain: TimeDomain, name: str, state: StreamState, time: tuple[int, ...]) -> NotBeyondError:
    return NotBeyondError(
        f"could not open stream {name!r} of log {path!r} at time {domain.render_time(time)!r}: found that "
        f"{state.stream!r} holds {domain.render_frontier(state.frontier)}",
        hint="choose a time beyond one that is held",
        time=time,
        frontier=state.frontier.to_json(),
        context={"path": path, "stream": name},
    )


MOST_ATTEMPTS: Final = 100
"""Lost races after which a commit is given up."""

_MOST_UNCLEAR: Final = 3

R = TypeVar("R")


class LostRaceError(StorageError):
    """A commit was not accepted from this snapshot. Refresh, decide again, commit again.

    Never seen by callers of a log.
    """


class Refreshed(Protocol):
    """Anything with a snapshot that is refreshed."""

    def refresh(self, *, after_put: bool = False) -> bool:
        """Move the snapshot to the newest version, or, straight after a commit, to that; return whether it moved."""


class Attempt(ABC):
    """One try at a commit. What it needs is written, and not yet part of the log."""

    __slots__ = ()

    @abstractmethod
    def put(self) -> None:
        """Commit from the snapshot; raises as `spark_timely.log.store.base.Store.transact`."""

    @abstractmethod
    def has_landed(self) -> bool:
        """Return whether the log has it for good, whatever was reported about it."""

    def is_shown(self) -> bool:
        """Return whether the snapshot, refreshed after a commit that was reported as done, has it."""
        return self.has_landed()

    def is_overtaken(self) -> bool:
        """Return whether it cannot happen any more, because others took its place."""
        return False

    def discard(self) -> None:  # noqa: B027 - some have no files of their own
        """Delete what was written for it alone: it did not happen, and will not."""


A = TypeVar("A", bound=Attempt)


@dataclass(frozen=True, slots=True)
class Settled(Generic[R]):
    """A decision that there is nothing to commit.

    Parameters
    ----------
    answer
        What the call returns.
    """

    answer: R


def commit_loop(
    what: str,
    *,
    context: Mapping[str, object],
    store: Refreshed,
    decide: Callable[[Sequence[A]], Settled[R] | A],
    done: Callable[[], R],
) -> R:
    """Commit what is decided, until it is in the log or there is nothing to commit.

    Parameters
    ----------
    what : str
        What is attempted, for errors: ``commit to stream 'main' of log '/log'``.
    context : mapping
        For errors: the log's path, and more.
    store : Store
        Its `refresh` moves the snapshot to the newest version.
    decide : callable
        Decides from the snapshot. Is given the attempts before that may still happen.
    done : callable
        Returns the answer, once an attempt is in the snapshot.

    Raises
    ------
    StorageError
        If the log cannot be reached, or others were first `MOST_ATTEMPTS` times. Unless `determinate`, the commit may
        have happened.
    TimelyError
        What `decide` refuses, if no attempt before it may have happened.

    Examples
    --------
    >>> from spark_timely.log import MemoryLog
    >>> import pyarrow as pa
    >>> store = MemoryLog.create(pa.schema([("v", pa.int64())])).core.store
    >>> commit_loop("commit", context={"path": "/log"}, store=store, decide=lambda _: Settled(7), done=lambda: 0)
    7
    """
    tried: list[A] = []
    unclear, last = 0, ""
    try:
        for _ in range(MOST_ATTEMPTS):
            store.refresh()
            if any(attempt.has_landed() for attempt in tried):
                return done()
            tried = [attempt for attempt in tried if not attempt.is_overtaken()]
            try:
                found = decide(tried)
            except DataLossError:
                # A file that was replaced since the look, and deleted: the next look does not name it.
                if not store.refresh():
                    raise
                continue
            if isinstance(found, Settled):
                return found.answer
            tried.append(found)
            try:
                found.put()
            except StorageError as error:
                lost = isinstance(error, LostRaceError)
                if error.determinate and not lost:
                    tried.pop()
                    found.discard()
                    raise
                last = f", the last: {shown(str(error.__cause__ or error))}"
                if lost and error.determinate:
                    # Nothing was put: what the next look refuses, such as another log in its place, is then certain.
                    tried.pop()
                    found.discard()
                    continue
                store.refresh()
                # A lost race may be that with an earlier attempt of this very commit.
                if any(attempt.has_landed() for attempt in tried):
                    return done()
                if lost:
                    tried.pop()
                    found.discard()
                    continue
                # A write that is still under way may yet land: nothing is deleted. To try again is safe, because
                # all attempts exclude each other.
                unclear += 1
                if unclear == _MOST_UNCLEAR:
                    raise
            except LogFormatError:
                tried.pop()
                found.discard()
                raise
            else:
                store.refresh(after_put=True)
                # Reported as done, and not there: merged meanwhile, or a store that reports falsely.
                if found.is_shown() or any(attempt.has_landed() for attempt in tried):
                    return done()
        msg = f"could not {what}: found {MOST_ATTEMPTS} lost races{last}"
        raise StorageError(
            msg,
            hint="try again: too many others commit at once",
            context=context,
            determinate=not tried,
        )
    except Exception as error:
        stored = error if isinstance(error, StorageError) else None
        if not tried or (stored is not None and not stored.determinate):
            raise
        said = shown(described(error))
        message = f"could not tell whether a commit to log {context['path']!r} happened: found {said}"
        raise StorageError(
            message if stored is None else stored.message,
            hint="read the log to see whether the commit happened",
            context=context,
        ) from error
