"""The plan of a captured micro-batch: the state of its stream, and refusal of what cannot be captured.

The `writer` makes it on the driver before any task runs, and again in the process that commits; a capture in
foreachBatch makes it in the driver. It travels to the tasks by pickling. It opens no stream and creates no log: one
that does not exist yet is planned as one whose stream holds the minimum time, and is made by the `commit`. Two of its
parts have names of their own. The `Standing` is what rows are judged by: the capabilities that the stream holds, and a
wall clock. A `Consent` names micro-batches that are missing and that the user does without.

Invariants
----------
1. Every row of a micro-batch is judged by the `Standing` of one plan; the commit refuses reports that
   were made under another.
2. A repeated micro-batch is judged by the counts before its first commit and by the wall clock
   recorded with it, so it makes the decisions that are in the log already, and writes nothing.
3. The plan of a query that does not own its stream, of a closed stream, of a checkpoint that was rolled back, or
   of a log that was, is refused. With `takeover` a query that never owned the stream is planned all the same: its
   first micro-batch makes it the owner.
4. A micro-batch is captured only where nothing before it is missing, as far as is known: by the commits that the query
   wrote down in its checkpoint, and in the sink by its numbers alone, which have no gaps there. On a log that was put
   back, from micro-batch 9 to 5, the next one would be 10: 6 to 9 would be missing, and their times declared complete.
   Nothing is created before that is refused.
5. Consent is bound to one number: `beginAt=10` accepts that 6 to 9 are missing before micro-batch 10. It is no consent
   at any other number, nor to another micro-batch in the place of one that the log has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_timely.conf.options import SINK_OPTIONS, SinkOptions, parse_options
from spark_timely.errors import (
    ClosedError,
    InvalidOptionError,
    InvalidUsageError,
    LogMissingError,
    OwnershipError,
    RolledBackError,
    shown,
)
from spark_timely.log.machine.repetition import Repetition, judge_repetition, refused_repetition
from spark_timely.log.store.clones import of_clone
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import (
    Storage,
    check_place,
    checked_options,
    foreign_names,
    has_table,
    normal_path,
    promised,
)
from spark_timely.log.store.urls import own_options
from spark_timely.masking import masked_logger
from spark_timely.protocol.note import MicroBatch
from spark_timely.protocol.policy import FrontierPolicy, HeldBy, Policy
from spark_timely.protocol.rules import StreamCounts
from spark_timely.sink.columns import ColumnRoles, policy_of, roles_of
from spark_timely.spark.base.checkpoint import (
    LogEntry,
    find_entry,
    planned_offsets,
    read_entries,
    require_checkpoint,
)
from spark_timely.spark.base.source_frontier import end_of_sources

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_timely.canonical.row_hash import RowsDigest
    from spark_timely.log import Log
    from spark_timely.log.machine.state import StreamState
    from spark_timely.spark.base.checkpoint import LogEntry, PlannedOffsets


@dataclass(frozen=True, slots=True)
class BatchId:
    """Name a micro-batch: whose, which, and which capture within it.

    Attributes
    ----------
    query : str or None
        Query id, or the name that foreachBatch gave; None where it is not known here.
    batch : int or None
        Number of the micro-batch; None where it is not known here.
    step : int
        Which capture into the same stream within the micro-batch.
    planned : PlannedOffsets or None
        What Spark planned it from; None where that cannot be read here. Says nothing about which one is meant.
    run_by : str or None
        Id of the Spark query, as Spark's tasks know it, where `query` is another name. Neither does that.

    Examples
    --------
    >>> BatchId("q", 3) == BatchId("q", 3, 0)
    True
    """

    query: str | None
    batch: int | None
    step: int = 0
    planned: PlannedOffsets | None = field(default=None, compare=False)
    run_by: str | None = field(default=None, compare=False)

    def micro_batch(self, digest: RowsDigest | None = None) -> MicroBatch:
        """Return what the log's note says of it.

        Parameters
        ----------
        digest : RowsDigest, optional
            Of the rows that came in.
        """
        return MicroBatch(
            offsets=None if self.planned is None else self.planned.hash,
            before=None if self.planned is None else self.planned.before,
            source="" if self.planned is None else self.planned.source,
            digest=None if digest is None else digest.text,
            n_input=None if digest is None else digest.n_rows,
            query=self.run_by,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The target of a query: log and stream, with what the query finds there.

    Attributes
    ----------
    path, stream : str
    log_id : str or None
        Id of the log; None where there is none.
    state : StreamState or None
        Newest state of the stream; None where it is not open.
    entry : LogEntry or None
        What the query wrote down of this log.
    gapless : bool
        Whether each micro-batch of the query comes here, so that its numbers have no gaps.
    of_clone : str
        What is said of the log where it is another one than the entry's, and a clone.
    """

    path: str
    stream: str
    log_id: str | None
    state: StreamState | None
    entry: LogEntry | None
    gapless: bool
    of_clone: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a log for a query, and its cure.

    Attributes
    ----------
    found, hint : str
    newest : int or None
        Newest micro-batch of the query in the log.
    """

    found: str
    hint: str
    newest: int | None


@dataclass(frozen=True, slots=True)
class Consent:
    """Micro-batches that are missing, and that somebody does without.

    Attributes
    ----------
    missing : tuple of (int, int)
        First and last number; empty where the log alone is another one.
    reason : str
        For people.
    """

    missing: tuple[tuple[int, int], ...]
    reason: str


def judge_continuity(place: Place, ident: BatchId, begin_at: int | None, *, takeover: bool) -> Consent | None:
    """Refuse a micro-batch before which something is missing.

    Parameters
    ----------
    place : Place
    ident : BatchId
        The micro-batch; one whose query or number is not known yet passes.
    begin_at : int or None
        Before which micro-batch something may be missing.
    takeover : bool
        Whether the query may take the stream over.

    Returns
    -------
    Consent or None
        What is missing with consent; None where nothing is.

    Raises
    ------
    RolledBackError
        Saying whether the log was deleted, replaced or restored, and how to continue without loss.
    """
    if ident.query is None or ident.batch is None:
        return None
    finding = find_break(place, ident.query, (ident.batch, ident.step), ident.run_by, takeover=takeover)
    if finding is None:
        return None
    if begin_at == ident.batch:
        first = 0 if finding.newest is None else finding.newest + 1
        if first >= ident.batch:
            return Consent((), f"continues here by beginAt={begin_at}")
        last = ident.batch - 1
        numbers = f"micro-batch {first} is" if first == last else f"micro-batches {first} to {last} are"
        return Consent(((first, last),), f"{numbers} missing, by beginAt={begin_at}")
    msg = (
        f"could not capture micro-batch {ident.batch} (step {ident.step}) into stream {place.stream!r} of log"
        f" {place.path!r}: {finding.found}"
    )
    raise RolledBackError(
        msg,
        hint=f"{finding.hint}; or accept with beginAt={ident.batch} that what came before is not in this log",
        context={"path": place.path, "stream": place.stream, "batch": ident.batch, "newest": finding.newest},
    )


def find_break(
    place: Place, query: str, number: tuple[int, int], run_by: str | None = None, *, takeover: bool = False
) -> Finding | None:
    """Return what a log does not have that it should; None if nothing is known to be missing.

    Parameters
    ----------
    place : Place
    query : str
        Owner of what is to be written.
    number : (int, int)
        Micro-batch and step that are to be written.
    run_by : str or None
        Id of the Spark query, where it is known and not the owner's name.
    takeover : bool
        Whether the query may take the stream over.
    """
    entry, state = place.entry, place.state
    mine = state is not None and state.owner == query
    newest = None if state is None or not mine or state.batch is None else (state.batch, state.step or 0)
    if entry is not None and entry.log_id != place.log_id:
        return _other_log(place, entry, newest)
    if state is not None and not mine and (not takeover or query in state.note.former):
        # Another owner's: refused as such.
        return None
    recorded = None if state is None or newest is None else state.note.batch
    if recorded is not None and None not in (recorded.query, run_by) and recorded.query != run_by:
        return Finding(
            f"found micro-batch {state.batch if state else 0} by Spark query {recorded.query!r}, this is Spark query"
            f" {run_by!r}",
            "one app_id names one query: give this query an app_id of its own, and another stream or takeover=true",
            None if newest is None else newest[0],
        )
    if newest is not None and number <= newest:
        # The log has the number: whether it is the same micro-batch is another question.
        return None
    if entry is not None and not mine and (state is not None or entry.commits[0].seq > 1):
        # The takeover is not in the log any more. What was captured before it may be lost too, and nobody repeats that;
        # what its former owner has captured since would come twice, and may have numbers of commits that are gone.
        taken = entry.commits[0]
        now = "with no such stream" if state is None else f"at seq={state.seq} and owned by {state.owner!r}"
        return Finding(
            f"found the log restored to an earlier state, {now}; this query took it over at seq={taken.seq} with"
            f" micro-batch {taken.batch}",
            _way_back(None),
            None,
        )
    lost = None if entry is None else entry.first_lost(-1 if state is None or not mine else state.seq, newest)
    if entry is not None and lost is not None and number[0] > lost:
        left = entry.newest
        now = _newest_text(state, newest)
        found = f"found the log restored to an earlier state, with {now}; the query left it at seq={left.seq}"
        return Finding(
            f"{found} and micro-batch {left.batch}", _way_back(newest), None if newest is None else newest[0]
        )
    if place.gapless and number[0] > (0 if newest is None else newest[0] + 1):
        what = "no micro-batch of this query in it" if newest is None else f"micro-batch {newest[0]} as its newest"
        return Finding(f"found {what}", _way_back(newest), None if newest is None else newest[0])
    return None


def _other_log(place: Place, entry: LogEntry, newest: tuple[int, int] | None) -> Finding:
    left = f"with seq={entry.newest.seq} and micro-batch {entry.newest.batch}"
    again = "or start the query with a new checkpoint, to capture everything again"
    if place.log_id is None:
        found = f"found no log where this query left one, {left}: it was deleted or moved"
        hint = f"restore the log with id={entry.log_id!r}, or give its new path; {again}"
    else:
        found = (
            f"found another log, id={place.log_id!r}{place.of_clone}, where this query left id={entry.log_id!r}, {left}"
        )
        hint = f"give the path of the log with id={entry.log_id!r}, or restore it; {again}"
    return Finding(found, hint, None if newest is None else newest[0])


def _newest_text(state: StreamState | None, newest: tuple[int, int] | None) -> str:
    if state is None:
        return "no such stream"
    what = "no micro-batch of this query" if newest is None else f"micro-batch {newest[0]}"
    return f"seq={state.seq} and {what}"


def _way_back(newest: tuple[int, int] | None) -> str:
    """Return how to continue without loss."""
    if newest is None:
        return "restore the log's newest state; or start the query with a new checkpoint, to capture everything again"
    return (
        "to lose nothing restore the log's newest state; or stop the query, delete from 'commits' all numbers after"
        f" {newest[0]} and from 'offsets' all numbers after {newest[0] + 1} in its checkpoint, and start it again"
    )


_log = masked_logger("spark_timely.sink")


def now_us() -> int:
    """Return the wall clock in microseconds since the epoch, UTC.

    Examples
    --------
    >>> now_us() > 1_700_000_000_000_000
    True
    """
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Standing:
    """Hold what a micro-batch is judged by.

    Attributes
    ----------
    seq : int or None
        Newest commit of the stream; None: the stream is still to be opened.
    counts : StreamCounts
        Capabilities held.
    at : int
        Wall clock of the decision, in microseconds since the epoch, UTC.
    repeated : StreamState or None
        State right after the first commit of this micro-batch, if it is in the log.

    Examples
    --------
    >>> Standing(None, StreamCounts.initial(0), 0).repeated is None
    True
    """

    seq: int | None
    counts: StreamCounts
    at: int
    repeated: StreamState | None = None

    @property
    def base(self) -> StreamCounts | None:
        """The counts that rows are judged by where the stream is not open yet."""
        return self.counts if self.seq is None else None


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Hold everything that is decided before the first task runs. Small and picklable.

    Attributes
    ----------
    options : SinkOptions
    roles : ColumnRoles
    policy : Policy
    ident : BatchId
        What is known of the micro-batch on the driver.
    fresh : Standing
        Judges a micro-batch that is not in the log.
    newest : StreamState or None
        State of the stream; None: it is still to be opened.
    recorded : StreamState or None
        State right after the first commit of the micro-batch that may be repeated.
    place : Place
        The log that was found, and what the query wrote down of it.
    former : frozenset of str
        Owners of the stream, now and before, where the query may take it over.
    before : str or None
        Hash of the checkpoint's entry of the micro-batch that is the log's newest one.
    """

    options: SinkOptions
    roles: ColumnRoles
    policy: Policy
    ident: BatchId
    fresh: Standing
    newest: StreamState | None
    recorded: StreamState | None
    place: Place
    former: frozenset[str] = frozenset()
    before: str | None = None

    def check_owner(self, state: StreamState, query: str | None) -> None:
        """Refuse a query that does not own the stream and may not take it over.

        Parameters
        ----------
        state : StreamState
            State of the stream, of the plan or newer.
        query : str or None
            Id of the query; one that is not known yet passes.

        Raises
        ------
        OwnershipError
            Naming the owner.
        """
        if not self.options.takeover:
            check_owner(state, query)
        elif query is not None and state.owner != query and (query in self.former or self._owned_by(query)):
            msg = (
                f"could not capture into stream {state.stream!r}: found it taken over by {state.owner!r} from this"
                f" query, {query!r}"
            )
            raise OwnershipError(
                msg,
                hint="start the query with a new checkpoint to take the stream over again, or give it a stream of its"
                " own: a query takes a stream over at its first micro-batch, once",
                context={"stream": state.stream, "owner": state.owner, "query": query},
            )

    def held_by(self, standing: Standing) -> HeldBy:
        """Return why the stream holds what rows are judged by, for errors."""
        newest = None if standing.base is not None else self.newest
        return HeldBy(mover=None if newest is None else newest.note.mover, joins=self._joins(standing))

    def _joins(self, standing: Standing) -> bool:
        """Whether the stream is new in a log whose frontier had moved."""
        return standing.base is not None and standing.counts != StreamCounts.initial(self.policy.domain.minimum)

    def consent(self, ident: BatchId) -> Consent | None:
        """Return what is missing before a micro-batch with consent; refuse what is missing without.

        Raises
        ------
        RolledBackError
            If the log was deleted, replaced or restored to an earlier state.
        """
        return judge_continuity(self.place, ident, self.options.begin_at, takeover=self.options.takeover)

    def _owned_by(self, query: str) -> bool:
        return self.newest is not None and self.newest.owner == query

    def standing(self, ident: BatchId) -> Standing:
        """Return what a micro-batch is judged by, or refuse it.

        Parameters
        ----------
        ident : BatchId
            The micro-batch, as the caller knows it.

        Returns
        -------
        Standing

        Raises
        ------
        OwnershipError
            If another query owns the stream.
        RolledBackError
            If the stream already holds a later micro-batch of the query, or the log does not have all earlier
            ones.
        ClosedError
            If the stream is closed, unless the micro-batch is a repeated one.
        """
        self.consent(ident)
        state = self.newest
        if state is None:
            return self.fresh
        self.check_owner(state, ident.query)
        if ident.query is not None and state.owner != ident.query:
            # Taken over: micro-batches of the owner before say nothing about this query's.
            self._check_open(state)
            return self.fresh
        known = self.recorded
        if known is not None and (known.batch, known.step) == (ident.batch, ident.step):
            self._check_same(ident, state, known)
            return Standing(known.seq, known.before, known.at, known)
        if state.batch is not None and ident.batch is not None:
            newest = (state.batch, state.step or 0)
            if (ident.batch, ident.step) <= newest:
                raise self._refused(ident, state, state.note.batch)
            self._check_follows(ident, state, state.note.batch)
        self._check_open(state)
        return self.fresh

    def _check_same(self, ident: BatchId, state: StreamState, known: StreamState) -> None:
        """Refuse another micro-batch of a number that the log has, as far as is known without its rows."""
        recorded = known.note.batch
        if self.options.dialect == "cdcv2" or recorded is None or recorded.n_input == 0:
            # Copies do no harm there, and without rows none is lost: the commit compares what came in.
            return
        if None not in (ident.planned, recorded.offsets):
            repeated = ident.micro_batch()
            if judge_repetition(recorded, repeated) is Repetition.OTHER:
                raise self._refused(ident, state, recorded)

    def _check_follows(self, ident: BatchId, state: StreamState, newest: MicroBatch | None) -> None:
        """Refuse a micro-batch that begins elsewhere than the log's newest one ended.

        A log that was put back and written by a copy of the checkpoint has the same numbers, and other rows.
        """
        if self.options.dialect == "cdcv2" or newest is None or newest.offsets is None or ident.planned is None:
            return
        begins = ident.planned.hash if ident.batch == state.batch else self.before
        if ident.batch is not None and state.batch == ident.batch - 1:
            begins = ident.planned.before
        if begins is not None and begins != newest.offsets:
            raise self._refused(ident, state, newest)

    def _refused(self, ident: BatchId, state: StreamState, recorded: MicroBatch | None) -> RolledBackError:
        return refused_repetition(
            self.options.path,
            state.stream,
            (ident.batch or 0, ident.step),
            (state.batch or 0, state.step or 0),
            recorded,
            repeated=ident.micro_batch(),
        )

    def _check_open(self, state: StreamState) -> None:
        """Refuse a closed stream; but one that was closed by CDCv2's statements may hear everything again."""
        if state.closed and not (self.options.dialect == "cdcv2" and state.note.statements is not None):
            raise _closed(self.options.path, state.stream)


def find_log(path: str, storage_options: dict[str, str]) -> Log | None:
    """Open the log of a sink, None if the path is empty.

    Parameters
    ----------
    path : str
        Where the log is or will be.
    storage_options : dict
        Credentials for a cloud URL.

    Returns
    -------
    Log or None

    Raises
    ------
    LogMissingError
        If something else than a log is there.
    """
    from spark_timely.log.log import keep_log

    storage = open_storage(path, storage_options)
    for again in (True, False):  # another query may make it between the two looks
        try:
            return keep_log(path, storage_options=own_options(path, storage_options) or None)
        except LogMissingError:
            if not has_table(storage):
                break
            if not again:
                raise
    _check_free(storage)
    return None


def parse_sink(options: Mapping[str, object], /, *, checkpoint: str | None = None) -> SinkOptions:
    """Read the options of a capture; a storage option that neither the log nor the checkpoint knows is refused.

    Parameters
    ----------
    options : mapping
        Names in any case, and values.
    checkpoint : str, optional
        Checkpoint of the query, where it is not among the options.

    Raises
    ------
    InvalidOptionError
        As `parse_options`, and as `spark_timely.log.store.urls.check_names`.
    """
    parsed = parse_options(SINK_OPTIONS, options)
    checked_options(parsed.storage_options, parsed.path, parsed.checkpoint_location or checkpoint)
    return parsed


def sink_options(options: Mapping[str, object], /, *, output_mode: str = "append") -> SinkOptions:
    """Read the options of the sink, and refuse what it cannot do.

    Parameters
    ----------
    options : mapping
        Names in any case, and values.
    output_mode : str
        Of the query.

    Raises
    ------
    InvalidUsageError
        If the output mode is not append.
    InvalidOptionError
        If options are unknown, missing or contradict each other, or are about what a sink does not see: the end of its
        query, that nothing comes, rows of other tasks.
    """
    parsed = parse_sink(options)
    if output_mode.lower() != "append":
        msg = f"could not start the sink for log {parsed.path!r}: found output mode {output_mode!r}"
        raise InvalidUsageError(
            msg,
            hint="use outputMode('append'), and aggregate after the replay, where times are complete: a log only grows",
            context={"path": parsed.path},
        )
    if parsed.dialect == "cdcv2":
        msg = "could not use option dialect='cdcv2' with format('timely')"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, dialect='cdcv2', through='foreachBatch'), or spark_timely.capture in"
            " foreachBatch: a task of a sink sees neither the rows of other tasks nor the log, so it cannot tell a"
            " copy",
            context={"option": "dialect"},
        )
    if parsed.idle_timeout is not None:
        msg = "could not use option 'idleTimeout' with format('timely')"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, idle_timeout='10 minutes'): a sink is not called while its query is idle",
            context={"option": "idleTimeout"},
        )
    if parsed.on_finish == "close":
        msg = "could not use option onFinish='close' with format('timely')"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, on_finish='close'), or close the stream from the command line: a sink"
            " does not see the end of its query",
            context={"option": "onFinish"},
        )
    require_checkpoint(parsed.checkpoint_location)
    return parsed


def make_plan(
    schema: StructType,
    options: SinkOptions,
    ident: BatchId,
    /,
    *,
    clock: Callable[[], int] = now_us,
    find: Callable[[str, dict[str, str]], Log | None] = find_log,
    gapless: bool = False,
    begun: bool = True,
) -> CapturePlan:
    """Read the stream's state and plan a micro-batch of it.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType
        Schema of the data.
    options : SinkOptions
        Parsed options.
    ident : BatchId
        What is known of the micro-batch.
    clock : callable
        Gives microseconds since the epoch.
    find : callable
        Opens a log.
    gapless : bool
        Whether each micro-batch of the query is written to the log, so that its numbers have no gaps.
    begun : bool
        Whether Spark has begun the micro-batch: before that its sources say nothing.

    Returns
    -------
    CapturePlan

    Raises
    ------
    InvalidOptionError, SchemaMismatchError
        If options or schema do not fit the log; if the log is on a volume, and nobody promised a single writer.
    ClosedError, OwnershipError, RolledBackError
        If the query may not append to the stream.
    InvalidUsageError, StorageError
        If the frontier of the query's sources is asked for and is not known, or what the query wrote down of its
        logs cannot be read.

    Notes
    -----
    Cost: one cold open of the log and a few small reads of the checkpoint; the log's history is looked at only when a
    micro-batch may be repeated.
    """
    # A relative path would mean another directory in another process.
    storage = promised(options.storage_options, single_writer=options.single_writer, flush=options.flush)
    options = replace(options, path=normal_path(options.path), storage_options=storage)
    check_place(options.path, storage)
    log = find(options.path, options.storage_options)
    place = look_around(options, ident.query, log, gapless=gapless)
    # First of all: what is said of another log's columns or closed streams would be beside the point.
    judge_continuity(place, ident, options.begin_at, takeover=options.takeover)
    roles = roles_of(schema, options, form=None if log is None else log.core.format)
    policy = policy_of(options, roles.form)
    initial = StreamCounts.initial(roles.form.domain.minimum)
    fresh = Standing(None, initial, clock())
    if begun and policy.frontier is FrontierPolicy.SOURCE:
        # Asked again by the commit; here for what it refuses.
        end_of_sources(options, policy, ident.batch)
    if log is None:
        return CapturePlan(options, roles, policy, ident, fresh, None, None, place)
    state = place.state
    recorded, former = None, frozenset[str]()
    if state is None:
        _warn_of_streams(log, options)
        fresh = Standing(None, _first_counts(log, options), fresh.at)
    else:
        fresh = Standing(state.seq, state.counts, fresh.at)
        recorded = _recorded(log, state, ident)
        if options.takeover and state.owner != ident.query:
            former = log.core.owners(options.stream)
    plan = CapturePlan(
        options,
        roles,
        policy,
        ident,
        fresh,
        state,
        recorded,
        place,
        former=former,
        before=_entry_of_newest(options, state, ident),
    )
    plan.standing(ident)
    return plan


def _entry_of_newest(options: SinkOptions, state: StreamState | None, ident: BatchId) -> str | None:
    """Return the hash of the checkpoint's entry of the log's newest micro-batch, where it is an earlier one."""
    if state is None or state.batch is None or ident.planned is None or options.checkpoint_location is None:
        return None
    if ident.batch is None or state.batch >= ident.batch - 1:
        return None  # read already
    found = planned_offsets(options.checkpoint_location, state.batch, storage_options=options.storage_options)
    return None if found is None else found.hash


def look_around(options: SinkOptions, query: str | None, log: Log | None, /, *, gapless: bool = False) -> Place:
    """Return what there is where a query writes, and what it wrote down of it in its checkpoint.

    Parameters
    ----------
    options : SinkOptions
    query : str or None
        Id of the query.
    log : Log or None
        The log that was found.
    gapless : bool
        As in `make_plan`.

    Raises
    ------
    StorageError
        If what it wrote down cannot be read.
    """
    entries: tuple[LogEntry, ...] = ()
    path = normal_path(options.path)
    if query is not None and options.checkpoint_location is not None:
        entries = read_entries(options.checkpoint_location, query, storage_options=options.storage_options)
    log_id = None if log is None else log.core.log_id
    entry = find_entry(entries, path, options.stream, log_id, options.storage_options)
    return Place(
        path=path,
        stream=options.stream,
        log_id=log_id,
        state=None if log is None else log.core.stream(options.stream),
        entry=entry,
        gapless=gapless,
        of_clone="" if log is None or entry is None or entry.log_id == log_id else of_clone(log.core.storage),
    )


def check_unbroken(options: SinkOptions, log: Log | None, query: str, /) -> None:
    """Refuse a log that lost something, where its frontier is to be moved and no micro-batch comes.

    Parameters
    ----------
    options : SinkOptions
    log : Log or None
        The log that was found.
    query : str
        Id of the query.

    Raises
    ------
    RolledBackError
        If it was deleted, replaced, or restored to an earlier state.
    StorageError
        If what the query wrote down cannot be read.
    """
    place = look_around(options, query, log)
    finding = None
    if place.entry is not None:
        finding = find_break(place, query, (place.entry.newest.batch + 1, 0))
    if finding is not None:
        msg = f"could not move stream {place.stream!r} of log {place.path!r}: {finding.found}"
        raise RolledBackError(msg, hint=finding.hint, context={"path": place.path, "stream": place.stream})


def _recorded(log: Log, state: StreamState, ident: BatchId) -> StreamState | None:
    """Return the state after the commit of the micro-batch, where it may be a repeated one."""
    if state.batch is None or state.step is None:
        return None
    if ident.batch is None:
        # Which micro-batch it is, only the tasks will know: only the newest can be repeated.
        return log.core.recorded(state.stream, state.batch, ident.step)
    if ident.batch != state.batch:
        return None
    return log.core.recorded(state.stream, ident.batch, ident.step)


def check_owner(state: StreamState, query: str | None) -> None:
    """Refuse a query that does not own the stream; one whose id is not known yet passes.

    Parameters
    ----------
    state : StreamState
        Newest state of the stream.
    query : str or None
        Id of the query.

    Raises
    ------
    OwnershipError
        Naming the owner.
    """
    if query is None or state.owner == query:
        return
    msg = f"could not capture into stream {state.stream!r}: found it owned by {state.owner!r}, this query is {query!r}"
    raise OwnershipError(
        msg,
        hint="continue from the owner's checkpoint, give this query a stream of its own with option 'stream', or take"
        " this one over with takeover=true; a stream whose query is gone holds the log's frontier back until it is"
        " closed (spark-timely close --stream)",
        context={"stream": state.stream, "owner": state.owner, "query": query},
    )


def _first_counts(log: Log, options: SinkOptions) -> StreamCounts:
    """Return what a stream that is still to be opened will hold: a claim, or a copy of a live stream's."""
    if all(state.closed for state in log.core.ends().values()):
        raise _closed(options.path, None)
    if log.core.unclaimed > 0:
        return StreamCounts.initial(log.domain.minimum)
    live = [state for state in log.streams().values() if not state.closed]
    # The same choice as the log's own, so that opening at this time succeeds unless somebody moved on.
    return StreamCounts.initial(min(state.frontier.elements[0] for state in live))


def _warn_of_streams(log: Log, options: SinkOptions) -> None:
    """Warn a query that joins a log if the log waits for fewer streams than the option says."""
    claimed = len(log.streams())
    waits_for = log.core.unclaimed + claimed
    # Without unclaimed capabilities some streams may be copies; the log never waited for more than there are.
    if (
        "streams" in options.given
        and options.streams != waits_for
        and (log.core.unclaimed or options.streams > claimed)
    ):
        _log.warning(
            "log %r: option streams=%d has no effect: the log was made for %s%d streams — hint: its frontier does not"
            " wait for further ones; give the option to the query that makes the log, or make it with create_log",
            options.path,
            options.streams,
            "" if log.core.unclaimed else "at most ",
            waits_for,
        )


def _check_free(storage: Storage) -> None:
    """Refuse a directory that holds something else: its files would lie about inside the log."""
    # What a first micro-batch leaves behind which was killed before the log was made: data files, a
    # table's log without entries.
    other = foreign_names(storage.names())
    if other:
        msg = f"could not make a log at {storage.uri!r}: found {shown(other[0])}, and no log"
        raise LogMissingError(
            msg,
            hint="give the path of a log, or of a directory that is empty or not there",
            context={"path": storage.uri},
        )


def _closed(path: str, stream: str | None) -> ClosedError:
    what = f"log {path!r}" if stream is None else f"stream {stream!r} of log {path!r}"
    return ClosedError(
        f"could not capture into {what}: found it closed",
        hint="capture into another log: nothing can follow a complete stream"
        if stream is not None
        else "capture into another log; one that waits for several streams is made with streams=2, or as many as there"
        " will be",
        context={"path": path, "stream": stream},
    )
