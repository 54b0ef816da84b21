"""Capture of a micro-batch in ``foreachBatch``, with Spark's own Parquet writer.

It is `spark_timely.capture`, which users call in a foreachBatch of their own; `start` uses it too. Rows stay in the
JVM, other than in the sink (`spark_timely.sink.writer`), whose tasks get them in Python. The sink's decisions are SQL
expressions (`classify`), one Spark job writes the files into a directory of their own below the log (`staging`), and
the driver reads their footers and commits.

Invariants
----------
1. One write job per micro-batch, and a second one where rows were taken to come sorted and did not; one whose
   number is in the log runs one aggregation instead, and writes nothing.
2. The log holds what the Python writer would have put there: same messages, dead letters, progress.
3. A directory whose commit was refused is deleted, but for files that the log knows; one whose commit is
   unclear stays.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias, Unpack
from weakref import WeakKeyDictionary

import numpy as np

from spark_timely.conf.given import SinkGiven
from spark_timely.conf.options import SinkOptions
from spark_timely.errors import (
    InvalidOptionError,
    InvalidUsageError,
)
from spark_timely.log.machine.state import CommitOutcome
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import TableStorage
from spark_timely.log.store.urls import identity
from spark_timely.sink.columns import fingerprint
from spark_timely.sink.commit import TaskReport, commit_reports, is_refusal
from spark_timely.sink.plan import BatchId, CapturePlan, Standing, make_plan, parse_sink
from spark_timely.sink.writer import QUERY_PROPERTY
from spark_timely.spark.base.checkpoint import checkpoint_state, is_finished, planned_offsets
from spark_timely.spark.capture.cdcv2 import capture_messages
from spark_timely.spark.capture.classify import Classified, classify, digest_in, digest_sums, row_hash_sql
from spark_timely.spark.capture.staging import (
    Staged,
    counted,
    discard,
    displaced,
    hints_of,
    in_order,
    placed,
    remove,
    staging_folder,
    tidy,
    without_places,
    write_files,
)
from spark_timely.spark.frames.scan import spark_root
from spark_timely.spark.session import with_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession


# Path of a log, stream, query, step.
_Place: TypeAlias = tuple[str, str, str, int]
_GROUP_PROPERTY = "spark.jobGroup.id"


def capture(
    df: DataFrame,
    batch_id: int,
    *,
    path: str,
    checkpoint: str | None = None,
    app_id: str | None = None,
    step: int = 0,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[SinkGiven],
) -> CommitOutcome:
    """Append one micro-batch to a log, exactly once; for use inside ``foreachBatch``.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The micro-batch, classic or Connect.
    batch_id : int
        Number that Spark gives to the micro-batch.
    path : str
        Where the log is; made at the first micro-batch.
    checkpoint : str, optional
        The query's checkpoint location: names the owner of the stream by the query's id, and tells with
        ``frontier="source"`` how far the sources are.
    app_id : str, optional
        Name of the owner instead, where the checkpoint cannot be read from Python. Must stay the same
        over restarts, and belong to this query alone: another Spark query is refused, but through Connect, where
        its id is not known. A log that is deleted or restored is not noticed then.
    step : int
        Which capture into the same stream within the micro-batch, ascending from 0. Two captures of one
        micro-batch into one stream need different steps: with the same one the second is refused. With
        ``frontier="source"`` the last of them moves the frontier; give the others ``frontier="hold"``.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs.
    **options : SinkGiven
        Options of the sink in snake_case, which editors and type checkers know, or as Spark writes them: `stream`,
        `time_column`, `frontier`, `lateness`, `late_data` and so on. `target_file_size` has no effect: Spark writes one
        file per task; repartition `df` for fewer or more.

    Returns
    -------
    CommitOutcome
        `committed` is False for a repeated micro-batch: it is in the log already.

    Raises
    ------
    InvalidOptionError
        If an option is unknown, or not exactly one of `checkpoint` and `app_id` is given.
    LateDataError
        If a row is late or skewed under ``late_data="error"``.
    InvalidUsageError
        If the same foreachBatch call captured into this stream with the same step before.
    TimelyError
        As the sink's: ownership, schema, closed, rolled back.

    Notes
    -----
    With ``dialect="cdcv2"`` rows are CDCv2's messages; see `spark_timely.spark.capture.cdcv2`. Copies and other orders
    of them do no harm, and `committed` is False too once the stream is complete.

    Spark does not flush what it writes: the driver does so before the commit, with the files on its own host's disk.
    What executors wrote on other hosts, into a directory that is shared, is as safe as that file system makes it.

    Cost: one Spark job that writes, and one footer read and one flush per file. The job sorts rows by time, unless
    those of an earlier micro-batch came sorted: then the files' time columns are read instead, and if one is not in
    order the job is run again with a sort, and what made `df` with it. While it runs, three settings of
    `df.sparkSession` are changed, and restored after it; after the last one where several captures share a
    session. Inside ``foreachBatch`` that session is the query's own.

    Examples
    --------
    >>> def into_log(df, batch_id):
    ...     capture(df, batch_id, path="/data/log", checkpoint="/data/checkpoint",
    ...             time_column="hour", frontier="bounded", lateness="3 hours")
    >>> query = stream.writeStream.foreachBatch(into_log).option(
    ...     "checkpointLocation", "/data/checkpoint").start()  # doctest: +SKIP
    """
    parsed = _options(path, checkpoint, with_stored(lambda: df.sparkSession, options, storage_options))
    parsed = replace(parsed, checkpoint_location=parsed.checkpoint_location if checkpoint is None else checkpoint)
    # Before any job, and before anything is written.
    spark_root(df.sparkSession, open_storage(parsed.path, parsed.storage_options))
    ident = _ident(df, batch_id, step, app_id, parsed)
    if parsed.dialect == "cdcv2":
        return capture_messages(df, make_plan(df.schema, parsed, ident), ident)
    captured = Captured(df.sparkSession, parsed, ident)
    captured.reserve()
    try:
        return _capture(df, parsed, ident)
    except BaseException:
        captured.release()
        raise


def _capture(df: DataFrame, parsed: SinkOptions, ident: BatchId) -> CommitOutcome:
    plan = make_plan(df.schema, parsed, ident)
    standing = plan.standing(ident)
    seq = 1 if standing.seq is None else standing.seq + 1
    if standing.repeated is not None:
        return commit_reports(plan, ident, [_digested(df, plan, ident, standing)])
    rows = classify(plan, standing, df.schema, seq=seq)
    storage = open_storage(parsed.path, parsed.storage_options)
    staging, hints = staging_folder(parsed.stream, seq), hints_of(storage, parsed.stream)

    def written(*, sort: bool) -> Staged:
        data, counts = _digested_in_passing(df, plan, rows, storage, sort=sort, look=hints.due)
        write_files(data, storage, staging, parsed, by_class=not rows.uniform, plain=hints.plain)
        return Staged(plan, ident, standing, storage, staging, rows.uniform, counts)

    try:
        staged = written(sort=not hints.sorted)
        if hints.sorted and rows.sort_by and not staged.is_sorted():
            hints.disappointed()
            remove(storage, staging)
            staging = staging_folder(parsed.stream, seq)
            staged = written(sort=True)
        report = staged.report()
    except BaseException:
        # The log was not asked yet.
        remove(storage, staging)
        raise
    try:
        outcome = commit_reports(plan, ident, [report])
    except BaseException as error:
        if is_refusal(error):
            discard(plan, storage, staging, report)
        raise
    tidy(storage, staging, {file.path for file in report.files} if outcome.committed else set())
    if outcome.committed:
        hints.learn(storage, report.files, staged.counts)
    return outcome


def _digested_in_passing(
    df: DataFrame, plan: CapturePlan, rows: Classified, storage: TableStorage, *, sort: bool, look: bool
) -> tuple[DataFrame, Observation | None]:
    """Return what a file holds, with the digest of the rows as they came in: whatever becomes of them.

    Unless `sort`, rows stay as they came. With `look`, a sort tells how many it has moved.
    """
    sort_by = rows.sort_by if sort else ()
    if rows.inputs is None:
        df, written = counted(df, storage, digest_sums(row_hash_sql(plan.roles.inputs, df.schema)))
        return in_order(df.selectExpr(*rows.columns), sort_by), written
    look = look and bool(sort_by)
    # The same sums over the same values. Measured: a third cheaper over rows that the sort has laid down.
    data = in_order(df.selectExpr(*(placed(rows.columns) if look else rows.columns)), sort_by)
    sums = digest_sums(row_hash_sql(rows.inputs, data.schema))
    if not look:
        return counted(data, storage, sums)
    data, moved = displaced(data)
    data, written = counted(data, storage, [*sums, *moved])
    return without_places(data), written


class Captured:
    """The micro-batches that the captures of this process have written under one step of a stream.

    A run of a query never repeats a micro-batch. So the same micro-batch twice by one run is a second capture and no
    repetition: its rows would be taken for those of the first. A run is known by the id that classic Spark gives to the
    jobs of its thread; and, in other threads and through Connect, by the session's object: one call of foreachBatch
    has one (classic), or one process of a run has one (Connect).
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _by_session: ClassVar[WeakKeyDictionary[SparkSession, dict[_Place, object]]] = WeakKeyDictionary()
    _by_run: ClassVar[dict[_Place, object]] = {}

    def __init__(self, session: SparkSession, options: SinkOptions, ident: BatchId) -> None:
        self._session, self._options, self._ident = session, options, ident
        storage = open_storage(options.path, options.storage_options)
        place = os.path.realpath(storage.uri) if storage.local else identity(storage.uri, storage.options)
        self._key = (place, options.stream, str(ident.query), ident.step)
        self._run = _run_of(session)
        self._before: list[object] = []

    def reserve(self) -> None:
        """Note the capture, as long as the session's object lives; raises `InvalidUsageError` for a second one."""
        with self._lock:
            known = self._known()
            self._before = [done.get(self._key) for done, _ in known]
            if any(before == made for before, (_, made) in zip(self._before, known, strict=True)):
                raise self._refusal()
            for done, made in known:
                done[self._key] = made

    @classmethod
    def forget(cls, session: SparkSession) -> None:
        """Forget what was captured in a session: a run begins in it, which may repeat a micro-batch."""
        with cls._lock:
            cls._by_session.pop(session, None)

    def release(self) -> None:
        """Forget a capture that failed."""
        with self._lock:
            for before, (done, _) in zip(self._before, self._known(), strict=True):
                done[self._key] = before

    def _known(self) -> list[tuple[dict[_Place, object], object]]:
        """Return where captures are noted, and what is noted there of this one."""
        batch = int(self._ident.batch or 0)
        known: list[tuple[dict[_Place, object], object]] = [(self._by_session.setdefault(self._session, {}), batch)]
        return known if self._run is None else [*known, (self._by_run, (self._run, batch))]

    def _refusal(self) -> InvalidUsageError:
        batch, step, stream = self._ident.batch, self._ident.step, self._options.stream
        msg = (
            f"could not capture micro-batch {batch} (step {step}) into stream {stream!r} of log"
            f" {self._options.path!r}: found a capture of this micro-batch and step by the same foreachBatch function"
        )
        return InvalidUsageError(
            msg,
            hint="number the captures into one stream within a micro-batch with step=0, step=1, …, and capture the"
            " DataFrame that foreachBatch gives, or what is made from it",
            context={"path": self._options.path, "stream": stream, "batch": batch, "step": step},
        )


def _options(path: str, checkpoint: str | None, options: Mapping[str, object]) -> SinkOptions:
    parsed = parse_sink({"path": path, **options}, checkpoint=checkpoint)
    if parsed.idle_timeout is not None:
        msg = "could not use option 'idle_timeout' with capture"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, idle_timeout=…): foreachBatch is not called while its query is idle",
            context={"option": "idleTimeout"},
        )
    if parsed.on_finish == "close":
        msg = "could not use option 'on_finish' with capture: found 'close'"
        raise InvalidOptionError(
            msg,
            hint="use spark_timely.start(…, on_finish='close'): a micro-batch does not see the end of its query",
            context={"option": "onFinish"},
        )
    return parsed


def _ident(df: DataFrame, batch_id: int, step: int, app_id: str | None, options: SinkOptions) -> BatchId:
    """Return which micro-batch this is, and whose."""
    for name, value in (("batch_id", batch_id), ("step", step)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            msg = f"could not capture: found {name}={value!r}"
            raise InvalidUsageError(msg, hint="pass the number that foreachBatch gives", context={"option": name})
    location = options.checkpoint_location
    if (location is None) == (app_id is None):
        found = "neither 'checkpoint' nor 'app_id'" if location is None else "both 'checkpoint' and 'app_id'"
        hint = (
            "give checkpoint, the query's checkpointLocation, or app_id, a name that stays the same over restarts:"
            " a repeated micro-batch is recognised by it"
        )
        raise _unknown_query(batch_id, found, hint)
    if app_id is not None:
        return BatchId(_nonempty(app_id), batch_id, step, run_by=_spark_query(df))
    known = checkpoint_state(str(location), storage_options=options.storage_options)
    if known.query is None:
        hint = "give the same checkpoint as to the query, where Python can read it; else give app_id"
        raise _unknown_query(batch_id, f"no query id in checkpoint {location!r}", hint)
    if is_finished(str(location), batch_id, storage_options=options.storage_options):
        msg = f"could not capture micro-batch {batch_id}: found checkpoint {location!r} where it is finished"
        raise InvalidUsageError(
            msg,
            hint="pass the batch_id that foreachBatch gives to the function, and the checkpoint of that query: Spark"
            " repeats no micro-batch that it has finished",
            context={"batch": batch_id},
        )
    planned = planned_offsets(str(location), batch_id, storage_options=options.storage_options)
    return BatchId(known.query, batch_id, step, planned)


def _unknown_query(batch_id: int, found: str, hint: str) -> InvalidOptionError:
    msg = f"could not capture micro-batch {batch_id}: found {found}"
    return InvalidOptionError(msg, hint=hint, context={"option": "checkpoint"})


def _run_of(session: SparkSession) -> str | None:
    """Return the id of the run of a query whose thread this is; None outside of one, and through Connect."""
    group = _local_property(session, _GROUP_PROPERTY)
    try:
        # A run's id is one of these. Another text is a group that the user's function has made for its jobs.
        return None if group is None else str(uuid.UUID(group))
    except ValueError:
        return None


def _spark_query(df: DataFrame) -> str | None:
    """Return the id of the query whose micro-batch is captured, as the tasks of its jobs know it.

    None outside of a query, in threads that a foreachBatch function starts, and through Connect. There, tried with
    Spark 4.2, neither the session nor the tasks of a job know which query has called the function.
    """
    return _local_property(df.sparkSession, QUERY_PROPERTY)


def _local_property(session: SparkSession, name: str) -> str | None:
    try:
        found = session.sparkContext.getLocalProperty(name)
    except Exception:  # noqa: BLE001 - whatever a kind of session raises where it has no such thing
        return None
    return None if found is None else str(found)


def _nonempty(app_id: str) -> str:
    if not app_id.strip():
        msg = f"could not capture: found app_id={app_id!r}"
        raise InvalidOptionError(msg, hint="give a name that is not empty", context={"option": "app_id"})
    return app_id


def _digested(df: DataFrame, plan: CapturePlan, ident: BatchId, standing: Standing) -> TaskReport:
    """Return the report of a micro-batch whose number is in the log: the digest of its rows, and nothing written."""
    k = plan.policy.domain.arity
    empty = np.zeros((0, k), dtype=np.int64)
    found = df.selectExpr(*digest_sums(row_hash_sql(plan.roles.inputs, df.schema))).collect()[0].asDict()
    return TaskReport(
        ident=ident,
        seq=standing.seq,
        repeated=True,
        form=fingerprint(plan.roles),
        at=standing.at,
        base=standing.base,
        n_rows=0,
        n_dead=0,
        n_advanced=0,
        n_skewed=0,
        minima=empty,
        bounds=None,
        greatest=None,
        progress_times=empty,
        progress_deltas=np.zeros(0, dtype=np.int64),
        files=(),
        digest=digest_in(found),
    )
