"""The commit of a micro-batch, exactly once: checks the tasks' reports against the plan, then appends their files.

The last step of a micro-batch: the `writer` takes it in the Python process in which Spark calls its `commit`, and
captures in foreachBatch in the driver. All that it knows came from two sides: the plan, made before the tasks, with the
state that the stream had then, and one report for each task, with the files that the task wrote. Everything that can be
refused is refused before the log is touched. A log or a stream that does not exist yet is created here.

Invariants
----------
1. A micro-batch is in the log once. If the log has a commit of its number already, both are compared
   (`log.machine.repetition`): the same one changes nothing, another one is refused.
2. All reports were made under the plan, for the log's format, and the stream has no commit that the plan did not
   know.
3. A file is deleted only after the log was read again and does not name it.
4. What was committed is written down in the query's checkpoint, after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.canonical.row_hash import RowsDigest
from spark_timely.errors import (
    NegativeCountError,
    StorageError,
    TimelyError,
    TimelyInternalError,
    UpperMismatchError,
)
from spark_timely.log.machine.repetition import Repetition, judge_repetition, refused_repetition, shown_source
from spark_timely.log.machine.since import may_read
from spark_timely.log.machine.state import CommitOutcome, CommitRequest, DataFile
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.urls import own_options
from spark_timely.masking import masked_logger
from spark_timely.protocol.note import Mover, Note
from spark_timely.protocol.policy import Downgrade, FrontierPolicy
from spark_timely.protocol.rules import StreamCounts, check_messages, check_progress
from spark_timely.sink.columns import fingerprint
from spark_timely.sink.plan import BatchId, CapturePlan, find_log
from spark_timely.spark.base.beginnings import beginning_of_sources
from spark_timely.spark.base.checkpoint import LogCommit, write_entry
from spark_timely.spark.base.source_frontier import end_of_sources
from spark_timely.time.antichain import Antichain, IntArray, consolidate_rows, joined_bounds, minimal

if TYPE_CHECKING:
    from spark_timely.log import Log
    from spark_timely.log.machine.state import StreamState
    from spark_timely.sink.plan import Consent

_log = masked_logger("spark_timely.sink")


@dataclass(frozen=True, slots=True, eq=False)
class TaskReport:
    """Hold what one task did with its rows. Bounded in size, picklable.

    Attributes
    ----------
    ident : BatchId
        The micro-batch, as the task knows it.
    seq : int or None
        Newest commit of the stream under which the rows were judged; None: not open yet.
    repeated : bool
        Whether the rows were judged as those of a repeated micro-batch; then no file was written.
    form : str
        Fingerprint of the format for which the files were written.
    at : int
        Wall clock by which the rows were judged, microseconds since the epoch, UTC.
    base : StreamCounts or None
        Counts by which they were judged where the stream is not open yet.
    n_rows, n_dead, n_advanced, n_skewed : int
        Messages; dead letters; messages among them that were moved to the frontier, and that lie too
        far in the future.
    minima : ndarray of int64, shape (m, k)
        Minimal times of the messages.
    bounds : ndarray of int64, shape (2, k), or None
        Least and greatest value per coordinate of the messages' times; None without messages.
    greatest : int or None
        Greatest time that may move the frontier; ``bounded`` only.
    progress_times, progress_deltas : ndarray of int64, shapes (p, k) and (p,)
        Changes of counts found in the data; ``events`` only.
    files : tuple of DataFile
        Written, and not yet part of the log.
    statements : str or None
        ``dialect=cdcv2`` only: the file with statements that are not used up; empty if there are none.
    digest : RowsDigest or None
        Of the rows as they came in, before they were judged; None where rows may come in any number of
        copies (``dialect=cdcv2``).
    mover : str
        Where a row with the greatest time came from, for people.
    """

    ident: BatchId
    seq: int | None
    repeated: bool
    form: str
    at: int
    base: StreamCounts | None
    n_rows: int
    n_dead: int
    n_advanced: int
    n_skewed: int
    minima: IntArray
    bounds: IntArray | None
    greatest: int | None
    progress_times: IntArray
    progress_deltas: IntArray
    files: tuple[DataFile, ...]
    statements: str | None = None
    digest: RowsDigest | None = None
    mover: str = ""


def merge_reports(reports: Sequence[TaskReport], /) -> TaskReport:
    """Put the reports of a micro-batch's tasks together.

    Parameters
    ----------
    reports : sequence of TaskReport
        At least one, all made under the same standing.

    Returns
    -------
    TaskReport

    Raises
    ------
    UpperMismatchError
        If they were made under different standings.

    Notes
    -----
    Cost: O(tasks + minima log minima).
    """
    if not reports:
        msg = "could not commit a micro-batch: found no report of any task"
        raise TimelyInternalError(msg, hint="report this bug of spark-timely, with this message (sink invariant 2)")
    first = reports[0]
    mixed = {(r.ident, r.seq, r.repeated, r.form, r.at, r.base) for r in reports}
    if len(mixed) > 1:
        seqs = sorted({-1 if report.seq is None else report.seq for report in reports})
        msg = f"could not commit micro-batch {first.ident.batch}: found reports of tasks planned at seqs {seqs!r}"
        raise UpperMismatchError(
            msg, hint="restart the query: it runs the micro-batch again", expected=first.seq, current=seqs
        )
    tops = [report.greatest for report in reports if report.greatest is not None]
    times, deltas = consolidate_rows(
        np.concatenate([report.progress_times for report in reports]),
        np.concatenate([report.progress_deltas for report in reports]),
    )
    return replace(
        first,
        n_rows=sum(report.n_rows for report in reports),
        n_dead=sum(report.n_dead for report in reports),
        n_advanced=sum(report.n_advanced for report in reports),
        n_skewed=sum(report.n_skewed for report in reports),
        minima=minimal(np.concatenate([report.minima for report in reports])),
        bounds=joined_bounds([report.bounds for report in reports if report.bounds is not None]),
        greatest=max(tops, default=None),
        mover=next((report.mover for report in reports if tops and report.greatest == max(tops)), ""),
        progress_times=times,
        progress_deltas=deltas,
        files=tuple(file for report in reports for file in report.files),
        digest=_digest_of_all(reports),
    )


def _digest_of_all(reports: Sequence[TaskReport]) -> RowsDigest | None:
    digests = [report.digest for report in reports if report.digest is not None]
    return None if len(digests) < len(reports) else sum(digests[1:], digests[0])


def commit_reports(
    plan: CapturePlan,
    ident: BatchId,
    reports: Sequence[TaskReport],
    /,
    *,
    find: Callable[[str, dict[str, str]], Log | None] = find_log,
) -> CommitOutcome:
    """Append a micro-batch to the log, once.

    Parameters
    ----------
    plan : CapturePlan
        A plan of this micro-batch. It may be another one than the tasks had: each report says which that was.
    ident : BatchId
        The micro-batch, with its number.
    reports : sequence of TaskReport
        One per task.
    find : callable
        Opens a log.

    Returns
    -------
    CommitOutcome
        `committed` is False where the log held the micro-batch already.

    Raises
    ------
    RolledBackError
        If the log holds another micro-batch of this number.
    UpperMismatchError
        If the stream was moved since the tasks were planned.
    ProtocolError
        If the data's own progress rows break the protocol.
    TimelyError
        What the plan's checks and the log's commit raise.
    """
    whole = merge_reports(reports)
    if whole.ident.batch not in (None, ident.batch):
        raise _moved(plan, ident, f"tasks of micro-batch {whole.ident.batch}", "another micro-batch")
    ident = _named(ident, whole.ident)
    standing = plan.standing(ident)
    consent = plan.consent(ident)
    if standing.repeated is not None:
        return _confirm(plan, ident, standing.repeated, whole, find)
    if whole.repeated:
        raise _moved(plan, ident, "tasks that took it for a repeated one", "none of it in the log")
    if whole.base is None and standing.seq != whole.seq:
        raise _moved(plan, ident, f"tasks planned at seq={whole.seq}", f"seq={standing.seq}")
    # Before the log or the stream is made: what is refused leaves nothing behind.
    change = _legal_change(plan, ident, whole, standing.counts if whole.base is None else whole.base)
    log = _log_of(plan, ident, whole, find)
    state = _state(log, plan, ident, whole)
    if plan.roles.added:
        # In a commit of its own, the last that can be refused: a crash between the two leaves an empty column.
        log.add_columns(_added(plan))
    outcome = log.core.commit(_request(plan, ident, whole, change, consent, state.seq))
    if not outcome.committed:
        # Another attempt at the same micro-batch came first, between this one's look at the stream and its commit.
        delete_files(plan, [whole], find=find)
    elif state.owner != ident.query:
        _warn_of_takeover(plan, ident, state)
    _say_beginning(log, plan, ident, outcome.state, whole)
    _write_down(plan, ident, log.core.log_id, outcome.state)
    return outcome


def _legal_change(plan: CapturePlan, ident: BatchId, whole: TaskReport, counts: StreamCounts) -> Downgrade:
    """Return how the frontier moves with a micro-batch; refuse rows and moves that break the protocol."""
    by_source = plan.policy.frontier is FrontierPolicy.SOURCE
    source = end_of_sources(plan.options, plan.policy, ident.batch) if by_source else None
    change = plan.policy.downgrade(
        counts,
        greatest=whole.greatest,
        events=(whole.progress_times, whole.progress_deltas),
        source=source,
    )
    domain, stream = plan.policy.domain, plan.options.stream
    check_messages(counts, whole.minima, stream=stream, domain=domain)
    try:
        check_progress(counts, change.times, change.deltas, stream=stream, domain=domain)
    except NegativeCountError as error:
        if whole.base is None or plan.roles.minimum_known:
            raise
        raise _with_likely_cause(plan, error) from error
    _check_visible(plan, whole)
    return change


def _log_of(
    plan: CapturePlan, ident: BatchId, whole: TaskReport, find: Callable[[str, dict[str, str]], Log | None]
) -> Log:
    """Open the log of a plan, or make it; refuse one whose columns are not those of the tasks."""
    log = find(plan.options.path, plan.options.storage_options) or _create(plan)
    if whole.form != fingerprint(plan.roles) or not plan.roles.fits(log.core.format.extended(_added(plan))):
        # Planned while there was no log, or before another query added columns. What fits is for a new plan to say.
        raise _moved(plan, ident, "tasks planned for a log of other columns", "been made by another query meanwhile")
    log.core.auto_compact = plan.options.auto_compact == "inline"
    log.core.auto_vacuum = plan.options.auto_vacuum == "inline"
    _keep(log, plan)
    return log


def _added(plan: CapturePlan) -> pa.Schema:
    """Return the columns that a micro-batch adds to its log."""
    return pa.schema([plan.roles.form.payload.field(name) for name in plan.roles.added])


def _request(
    plan: CapturePlan, ident: BatchId, whole: TaskReport, change: Downgrade, consent: Consent | None, seq: int
) -> CommitRequest:
    """Return the commit of a micro-batch to a stream whose newest commit has a number."""
    reasons = [change.reason, *_counted((whole.n_dead, whole.n_advanced, whole.n_skewed))]
    batch = replace(
        ident.micro_batch(whole.digest),
        query=ident.run_by if consent is not None else ident.run_by or _run_by(plan, ident),
        dead=whole.n_dead,
        advanced=whole.n_advanced,
        skewed=whole.n_skewed,
    )
    note = Note(
        batch=batch,
        greatest=whole.greatest,
        mover=_mover(plan, change, whole, seq + 1),
        statements=whole.statements,
        gaps=() if consent is None else consent.missing,
    )
    return CommitRequest(
        stream=plan.options.stream,
        owner=str(ident.query),
        progress_times=change.times,
        progress_deltas=change.deltas,
        batch=ident.batch,
        step=ident.step,
        expected_seq=seq,
        files=whole.files,
        reason="; ".join(reasons if consent is None else [*reasons, consent.reason]),
        note=note,
        at=whole.at,
        message_minima=whole.minima,
        n_rows=whole.n_rows,
        bounds=whole.bounds,
        takeover=plan.options.takeover,
        new_epoch=consent is not None,
    )


def _mover(plan: CapturePlan, change: Downgrade, whole: TaskReport, seq: int) -> Mover | None:
    """Return the row that moves the frontier with this commit, if one does."""
    if plan.policy.frontier is not FrontierPolicy.BOUNDED or whole.greatest is None or not len(change.times):
        return None
    frontier = int(change.times[change.deltas > 0][0, 0])
    return Mover(whole.greatest, frontier, seq, whole.at, whole.mover)


def _say_beginning(log: Log, plan: CapturePlan, ident: BatchId, state: StreamState, whole: TaskReport) -> None:
    """Say of a copy of a log that had forgotten that it cannot be read as of a time before that: nothing is there.

    Once, with the first micro-batch: since moves to where the source began, and no further than the first row that was
    captured, so that nothing is forgotten by it. The note of the commit says where the source began in any case, also
    where since may not move: others retain the log, or it has other streams, which have more.
    """
    if state.seq != 1 or ident.planned is None or log.core.unclaimed or len(log.streams()) != 1:
        return
    begins = beginning_of_sources(ident.planned.source, log.domain)
    if begins is None:
        return
    if whole.minima.shape[0]:
        begins = begins.meet(Antichain.from_times(whole.minima, log.domain.arity))
    try:
        if not may_read(begins, log.since()):
            log.allow_compaction([list(time) for time in begins], by=f"query {ident.query}")
    except TimelyError as error:
        _log.warning("log %r begins at %s, which its since does not say: %s", log.path, begins, error)


def _warn_of_takeover(plan: CapturePlan, ident: BatchId, state: StreamState) -> None:
    """Say that a new checkpoint begins where its sources begin, whatever the stream has of them already."""
    if state.batch is None:
        return  # nobody captured into it
    source = shown_source(state.note.batch)
    ended = f", whose sources ended at {source}" if source else ""
    _log.warning(
        "micro-batch %d of query %r took stream %r of log %r over from %r after its micro-batch %d%s: rows that the"
        " sources give again are in the log twice — hint: a new checkpoint begins where its sources begin; let them"
        " begin where the log ended (startingOffsets of Kafka, startingVersion of Delta, startingFrontier of a log),"
        " or keep the checkpoint; then remove takeover=true",
        ident.batch,
        ident.query,
        plan.options.stream,
        plan.options.path,
        state.owner,
        state.batch,
        ended,
    )


def _run_by(plan: CapturePlan, ident: BatchId) -> str | None:
    """Return the id of the Spark query that wrote the stream before: where this one's is not known, it stays."""
    newest = plan.newest
    if newest is None or newest.owner != ident.query or newest.note.batch is None:
        return None
    return newest.note.batch.query


def _write_down(plan: CapturePlan, ident: BatchId, log_id: str, state: StreamState) -> None:
    """Write into the checkpoint which log has the micro-batch, and in which commit."""
    location = plan.options.checkpoint_location
    if location is None or ident.query is None or ident.batch is None:
        return
    write_entry(
        location,
        ident.query,
        path=plan.options.path,
        stream=plan.options.stream,
        log_id=log_id,
        commit=LogCommit(state.seq, ident.batch, ident.step),
        storage_options=plan.options.storage_options,
    )


def delete_files(
    plan: CapturePlan,
    reports: Iterable[TaskReport],
    /,
    *,
    find: Callable[[str, dict[str, str]], Log | None] = find_log,
) -> None:
    """Delete files of tasks, but for those that the log knows; where that is not known, none.

    Parameters
    ----------
    plan : CapturePlan
        Says where.
    reports : iterable of TaskReport
        Whose files. No commit of them may be under way.
    find : callable
        Opens a log.

    Notes
    -----
    What stays without being in the log is an orphan: `vacuum(full=True)` finds it, and it harms nobody.
    """
    paths = {file.path for report in reports for file in report.files}
    if not paths:
        return
    try:
        log = find(plan.options.path, plan.options.storage_options)
        unknown = paths if log is None else paths - log.core.live_paths(paths)
        storage = open_storage(plan.options.path, plan.options.storage_options)
        for path in sorted(unknown):
            storage.delete(path)
    except (TimelyError, OSError):
        return


def is_refusal(error: BaseException, /) -> bool:
    """Return whether an error of `commit_reports` means that the log surely was not changed.

    Parameters
    ----------
    error : BaseException
        What was raised.

    Returns
    -------
    bool

    Examples
    --------
    >>> from spark_timely.errors import RolledBackError
    >>> is_refusal(RolledBackError("could not …")), is_refusal(KeyboardInterrupt())
    (True, False)
    """
    if isinstance(error, StorageError):
        return error.determinate
    return isinstance(error, TimelyError)


def _named(ident: BatchId, known: BatchId) -> BatchId:
    """Return the micro-batch with its query, from the checkpoint or else from the tasks."""
    query = ident.query if ident.query is not None else known.query
    if query is None:
        msg = (
            f"could not commit micro-batch {ident.batch}: found no query id, neither in the checkpoint nor in the tasks"
        )
        raise StorageError(
            msg,
            hint="put the checkpoint where Python can read it: a local path, or a cloud URL with 'storage.' options",
            determinate=True,
        )
    return replace(ident, query=query)


def _create(plan: CapturePlan) -> Log:
    from spark_timely.log.log import create_log, keep_log

    form, options = plan.roles.form, plan.options
    storage_options = own_options(options.path, options.storage_options) or None
    made = create_log(
        options.path,
        form.payload,
        times=tuple(kind.value for kind in form.domain.types),
        minimum=np.array(form.domain.minimum),
        kind=form.kind,
        streams=options.streams,
        key=form.key,
        keep=None if options.keep is None else options.keep.text,
        keep_committed=options.keep_committed.text,
        exist_ok=True,
        storage_options=storage_options,
    )
    return keep_log(options.path, storage_options=storage_options, made=made)


def _keep(log: Log, plan: CapturePlan) -> None:
    """Let the log keep what the query says, unless it does so already."""
    wanted, committed = plan.options.keep, plan.options.keep_committed
    if wanted is None:
        return
    kept = log.core.kept()
    if kept is None or (kept.length, kept.committed) != (log.domain.types[0].duration(wanted), committed.amount):
        log.keep(wanted.text, committed=committed.text)


def _check_visible(plan: CapturePlan, whole: TaskReport) -> None:
    """Refuse files that tasks wrote to a disk of their own: the log would name what nobody can read."""
    storage = open_storage(plan.options.path, plan.options.storage_options)
    if not storage.local:
        return
    for file in whole.files:  # one look at the directory each
        if not storage.exists(file.path):
            msg = (
                f"could not commit to log {plan.options.path!r}: found no file {file.path!r}, which a task has written"
            )
            raise StorageError(
                msg,
                hint="give a path that driver and executors share: a mounted directory, or a cloud URL",
                determinate=True,
                context={"path": plan.options.path, "file": file.path},
            )


def _state(log: Log, plan: CapturePlan, ident: BatchId, whole: TaskReport) -> StreamState:
    """Return the stream's state, opening it if need be; refuse one that is not what the tasks knew."""
    stream = plan.options.stream
    state = log.core.stream(stream)
    if state is not None:
        plan.check_owner(state, ident.query)
    if whole.base is None:
        if state is None or state.seq != whole.seq:
            found = "no such stream" if state is None else f"seq={state.seq}"
            raise _moved(plan, ident, f"tasks planned at seq={whole.seq}", found)
        return state
    if state is None:
        state = log.core.open_stream(stream, owner=str(ident.query), at=whole.base.frontier.times[0])
    if state.seq != 0 or state.counts != whole.base:
        raise _moved(plan, ident, "tasks planned before the stream was open", f"seq={state.seq}")
    return state


def _confirm(
    plan: CapturePlan,
    ident: BatchId,
    recorded: StreamState,
    whole: TaskReport,
    find: Callable[[str, dict[str, str]], Log | None],
) -> CommitOutcome:
    """Compare a repeated micro-batch with what is in the log."""
    repeated = ident.micro_batch(whole.digest)
    if plan.options.dialect == "cdcv2":
        same = Repetition.SAME  # copies do no harm
    else:
        same = judge_repetition(recorded.note.batch, repeated)
    if same in (Repetition.OTHER, Repetition.UNKNOWN):
        number = (recorded.batch or 0, recorded.step or 0)
        raise refused_repetition(
            plan.options.path, plan.options.stream, number, number, recorded.note.batch, repeated=repeated
        )
    if same is Repetition.DIFFERING:
        _log.warning(
            "log %r: micro-batch %s of stream %r was repeated with other rows than the log holds; the log's stand —"
            " hint: its code was changed, calls functions that are not deterministic, or its source cannot be replayed",
            plan.options.path,
            ident.batch,
            plan.options.stream,
        )
        _amend(plan, ident, find, Note(differing=1), f"micro-batch {ident.batch} was repeated with other rows")
    elif recorded.note.batch is not None and repeated.offsets not in (None, recorded.note.batch.offsets):
        # Planned again, without rows: the next micro-batch begins where this plan ends.
        note = Note(batch=replace(repeated, seq=recorded.note.batch.seq))
        _amend(plan, ident, find, note, f"micro-batch {ident.batch}, which is empty, was planned again")
    log = find(plan.options.path, plan.options.storage_options)
    if log is not None:
        # Spark will forget the micro-batch; the process that committed it may have died before it was on the disk.
        log.core.flush()
        _say_beginning(log, plan, ident, recorded, whole)
    # Written by tasks that did not know yet that it is a repeated one.
    delete_files(plan, [whole], find=find)
    _write_down(plan, ident, str(plan.place.log_id), recorded)
    return CommitOutcome(committed=False, state=recorded)


def _amend(
    plan: CapturePlan,
    ident: BatchId,
    find: Callable[[str, dict[str, str]], Log | None],
    note: Note,
    reason: str,
) -> None:
    """Write down what became known of the newest micro-batch, in a commit that moves nothing."""
    options = plan.options
    log = find(options.path, options.storage_options)
    state = None if log is None else log.core.stream(options.stream)
    if log is None or state is None or state.closed or ident.query is None or state.owner != ident.query:
        return
    if note.batch is not None and (state.note.batch is None or state.note.batch.seq != note.batch.seq):
        return  # an earlier step; the newest one says what it was planned from
    nothing = np.empty((0, log.domain.arity), np.int64)
    try:
        log.core.commit(
            CommitRequest(
                stream=options.stream,
                owner=ident.query,
                progress_times=nothing,
                progress_deltas=np.empty(0, np.int64),
                expected_seq=state.seq,
                reason=reason,
                note=note,
                carry=True,
            )
        )
    except UpperMismatchError:
        # Another attempt at it is writing, and finds the same.
        return


def _moved(plan: CapturePlan, ident: BatchId, found: str, current: str) -> UpperMismatchError:
    return UpperMismatchError(
        f"could not commit micro-batch {ident.batch} to stream {plan.options.stream!r} of log {plan.options.path!r}:"
        f" found {found}, the log has {current}",
        hint="restart the query, which runs the micro-batch again: the stream was changed while it ran",
        expected=found,
        current=current,
        context={"stream": plan.options.stream, "batch": ident.batch},
    )


def _with_likely_cause(plan: CapturePlan, error: NegativeCountError) -> NegativeCountError:
    """Return the error with its likely cause: events of a log that begins elsewhere."""
    begins = plan.policy.domain.render_time(plan.policy.domain.minimum)
    return NegativeCountError(
        error.message,
        hint=f"{error.hint}; the log begins at {begins!r}, since column {plan.roles.event!r} has lost the metadata"
        " that tell where the captured log begins (a cast or an expression drops them): pass the column on as the"
        " replay gives it, or make the log first with create_log(…, minimum=…)",
        context=error.context,
        location=error.location,
        time=error.time,
        count=error.count,
    )


def _counted(numbers: tuple[int, int, int]) -> list[str]:
    """Return in words how many rows were treated specially."""
    return [f"{n} {what}" for n, what in zip(numbers, _SPECIAL, strict=True) if n]


_SPECIAL = ("dead letters", "rows advanced", "skewed rows kept")
