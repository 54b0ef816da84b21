"""`start`: a query that captures into a log, closes its stream at its end, and advances it while idle.

It is `spark_timely.start`, which users call in place of Spark's ``writeStream … start()``; the query captures by the
sink, or in foreachBatch (`foreach_batch`). What is checked before it begins is in `spark_timely.sink.start`.

A sink alone sees neither the end of its query nor idleness. `start` sees both; for idleness see `idle`. With
``on_finish="close"`` a query that used its input up declares its stream complete, so that replays of the log learn that
nothing more will come.

Spark tells a query that ended by itself from one that was stopped in no field: both are not active, and
neither has an exception. What tells them apart is the report of a trigger that looked for input and
found none; a stopped query never gets to it. Spark leaves that report out within ten seconds of
the last one, unless a setting says otherwise when the query is made.

Invariants
----------
1. A stream is closed only in the name of the query that owns it, and only with evidence that the query
   has used its input up.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from spark_timely.conf.given import DurationLike, SinkGiven
from spark_timely.conf.kinds import seconds_of
from spark_timely.conf.options import SinkOptions
from spark_timely.errors import InvalidOptionError, InvalidUsageError, TimelyError, shown
from spark_timely.log.files.format import LogFormat
from spark_timely.log.machine.state import CommitRequest
from spark_timely.log.store.storage import check_place, normal_path, promised
from spark_timely.log.store.urls import own_options
from spark_timely.masking import masked_logger
from spark_timely.notebook import counted, facts_table, page, shown_in_notebook
from spark_timely.sink.columns import roles_of
from spark_timely.sink.plan import check_owner, check_unbroken, find_log, parse_sink
from spark_timely.spark.base.checkpoint import all_committed
from spark_timely.spark.base.credentials import refuse_secrets
from spark_timely.spark.base.failure import query_error
from spark_timely.spark.base.trigger import Ending, Trigger, ending_of, parse_trigger
from spark_timely.spark.capture.idle import IdleWatch, check_idle_options
from spark_timely.spark.patches import check_query
from spark_timely.spark.session import changed_settings, given_to_spark, register, spare_progress, with_stored
from spark_timely.time.antichain import Antichain
from spark_timely.time.text import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["CaptureQuery", "start"]

Through = Literal["sink", "foreachBatch"]

_log = masked_logger("spark_timely.spark")

# Every trigger without input is reported, not only the first within ten seconds.
_REPORT_ALL = {"spark.sql.streaming.noDataProgressEventInterval": "0"}
# Reports each second, for idle times that are short beside Spark's ten seconds.
_REPORT_SOON = {"spark.sql.streaming.noDataProgressEventInterval": "1000"}
_SHORT_S = 40.0


class CaptureQuery:
    """A running capture: Spark's streaming query, and what happens when it ends.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
        Spark's own handle.
    options : SinkOptions
        Options of the capture.
    schema : pyspark.sql.types.StructType
        Schema of the data: says what the log is made of if the query ends without a single micro-batch.
    close : {"availableNow", "once"} or None
        Trigger of a query whose stream is to be closed after its clean end; None: it stays open.
    repeats : bool
        Whether the query may have begun by repeating a micro-batch of an earlier run. With ``once`` it
        then ends without looking for more.
    idle : IdleWatch or None
        Advances the stream while the query is idle.

    Notes
    -----
    Made by `start`. To have the stream closed, call `await_termination`.

    Examples
    --------
    ::

        query = spark_timely.start(df, path=path, checkpoint=folder, trigger="availableNow", on_finish="close")
        query.await_termination()  # closes the stream once all of `df` is captured
    """

    def __init__(
        self,
        query: StreamingQuery,
        options: SinkOptions,
        schema: StructType,
        *,
        close: Ending | None = None,
        repeats: bool = False,
        idle: IdleWatch | None = None,
    ) -> None:
        self.query = query
        self._options = options
        self._schema = schema
        self._close = close
        self._stopped = False
        self._repeats = repeats
        self._idle = idle

    def __repr__(self) -> str:
        """Return the log, the stream and the checkpoint; asks nobody."""
        options = self._options
        return (
            f"{type(self).__name__}({shown(options.path)}, stream={options.stream!r},"
            f" checkpoint={shown(options.checkpoint_location)})"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: whether the query runs, how far it and its stream are. Never fails."""
        return shown_in_notebook(self, self._page)

    def _page(self) -> str:
        options, report = self._options, self.query.lastProgress
        log = find_log(options.path, options.storage_options)
        state = None if log is None else log.core.stream(options.stream)
        facts: list[tuple[str, object]] = [
            ("log", options.path),
            ("stream", options.stream),
            ("frontier", "" if log is None or state is None else log.domain.show_frontier(state.frontier)),
            ("checkpoint", options.checkpoint_location),
        ]
        if report is not None:
            facts += [
                ("micro-batch", report["batchId"]),
                ("rows in it", counted(report["numInputRows"])),
                ("begun at", report["timestamp"]),
                ("took", f"{report['durationMs'].get('triggerExecution', 0):,} ms"),
            ]
        return page(f"Capture {self.id} {'runs' if self.is_active else 'has ended'}", facts_table(facts))

    @property
    def id(self) -> str:
        """Id of the query: stays the same over restarts, and owns the stream."""
        return str(self.query.id)

    @property
    def progress(self) -> dict[str, Any] | None:
        """Spark's last report of the query, and under ``timely`` what became of rows.

        `timely` has the stream's `frontier` as text, `seq`, and of the newest micro-batch in the log `batch` and how
        many rows were `dead`, `advanced` and `skewed`; and `dead_letters`, all that the log has. None before the first
        report.

        Raises
        ------
        StorageError
            If the log cannot be reached.
        """
        report, options = self.query.lastProgress, self._options
        if report is None:
            return None
        log = find_log(options.path, options.storage_options)
        state = None if log is None else log.core.stream(options.stream)
        facts: dict[str, Any] = {}
        if log is not None and state is not None:
            batch = state.note.batch
            facts = {
                "frontier": log.domain.show_frontier(state.frontier),
                "seq": state.seq,
                "batch": state.batch,
                "dead": 0 if batch is None else batch.dead,
                "advanced": 0 if batch is None else batch.advanced,
                "skewed": 0 if batch is None else batch.skewed,
                "dead_letters": log.describe()["dead_letters"],
            }
        found = json.loads(report.json) if hasattr(report, "json") else dict(report)
        return {**found, "timely": facts}

    @property
    def is_active(self) -> bool:
        """Whether the query still runs."""
        return bool(self.query.isActive)

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended; then close the stream if that was asked for.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait, in seconds; for ever if not given.

        Returns
        -------
        bool
            Whether the query has ended.

        Raises
        ------
        pyspark.errors.StreamingQueryException
            If the query failed. Where this library refused something it is that error too, with its text alone, as a
            `LateDataError`: ``except`` takes it by both names. The stream stays open, and a restart continues.
        OwnershipError
            If the stream to be closed, or advanced after an idle time, belongs to another query.
        RolledBackError
            If the log whose stream is to be closed was deleted, replaced, or restored to an earlier state.
        SchemaMismatchError
            If the query had no micro-batch, and its data would not fit the log.
        StorageError
            If the log cannot be reached when the stream is to be closed; calling again tries again.

        Notes
        -----
        A query that was stopped, by whomever, did not use its input up, and its stream stays open. It also
        stays open, with a warning in the log ``spark_timely.spark``, where Spark's last report and the
        checkpoint do not show that the input is used up.
        """
        from pyspark.errors import StreamingQueryException

        wait_s = seconds_of(f"could not wait for query {self.id}", "timeout_s", timeout_s, optional=True)
        try:
            if wait_s > threading.TIMEOUT_MAX:
                self.query.awaitTermination()
            elif not self.query.awaitTermination(max(1, round(wait_s))):
                return False
        except StreamingQueryException as error:
            raise query_error(error) from None
        if self._idle is not None:
            self._idle.stop()
            if not self._stopped and not self._close:
                # A run that ends by itself may be over before its idleness was looked at.
                self._idle.look()
        if self._close and not self._stopped:
            missing = self._missing_evidence()
            if missing is None:
                self._close_stream()
            else:
                _log.warning(
                    "could not close stream %r of log %r after query %s: found %s — hint: the stream stays open; start"
                    " the query again, or call open_log(path).close(stream) if it is complete",
                    self._options.stream,
                    self._options.path,
                    self.id,
                    missing,
                )
            self._close = None
        return True

    def stop(self) -> None:
        """Stop the query; its stream stays open, and a restart continues where it was."""
        self._stopped = True
        if self._idle is not None:
            self._idle.stop()
        self.query.stop()

    def _committed(self) -> bool | None:
        location = str(self._options.checkpoint_location)
        return all_committed(location, storage_options=self._options.storage_options)

    def _missing_evidence(self) -> str | None:
        """Return why it is not sure that the query used its input up; None if it is."""
        if self._committed() is False:
            return "a micro-batch that was planned and not committed"
        report = self.query.lastProgress
        if report is None:
            return "no report of the query: it was stopped before its first trigger was done"
        if "addBatch" not in report["durationMs"]:
            # It looked for input and found none. (Through Connect the report tells no number of rows.)
            return None
        if self._close == "availableNow":
            return f"micro-batch {report['batchId']} as its last report: it was stopped before it looked for more"
        # With `once` all there is comes as one micro-batch, and its report is made when it is done.
        return "a micro-batch of an earlier run, repeated: later input was not looked for" if self._repeats else None

    def _close_stream(self) -> None:
        from spark_timely.log.log import create_log
        from spark_timely.log.writer import downgrade_to

        options = self._options
        log = find_log(options.path, options.storage_options)
        check_unbroken(options, log, self.id)
        if log is None:
            form = roles_of(self._schema, options, form=None).form
            # Not one micro-batch: an empty input is complete too.
            log = create_log(
                options.path,
                form.payload,
                times=tuple(kind.value for kind in form.domain.types),
                minimum=np.array(form.domain.minimum),
                kind=form.kind,
                streams=options.streams,
                exist_ok=True,
                storage_options=own_options(options.path, options.storage_options) or None,
            )
        state = log.core.stream(options.stream)
        if state is not None:
            # A query without a single micro-batch never called the sink, which would have refused it.
            check_owner(state, self.id)
        elif log.frontier().is_empty:
            return
        else:
            roles_of(self._schema, options, form=LogFormat(log.domain, log.kind, log.schema))
            state = log.core.open_stream(options.stream, owner=self.id)
        if state.closed:
            return
        times, deltas = downgrade_to(state.counts, Antichain.empty(log.domain.arity))
        log.core.commit(
            CommitRequest(
                stream=options.stream,
                owner=self.id,
                progress_times=times,
                progress_deltas=deltas,
                expected_seq=state.seq,
                reason=f"end of query {self.id}",
                carry=True,
            )
        )


def start(
    df: DataFrame,
    *,
    path: str,
    checkpoint: str,
    trigger: Trigger | None = None,
    on_finish: Literal["hold", "close"] = "hold",
    idle_timeout: DurationLike | None = None,
    through: Through = "sink",
    query_name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[SinkGiven],
) -> CaptureQuery:
    """Start a query that captures a streaming DataFrame into a log.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        A streaming DataFrame, classic or Connect.
    path : str
        Where the log is; made at the first micro-batch.
    checkpoint : str
        The query's checkpoint location.
    trigger : str, timedelta or mapping, optional
        ``"availableNow"``, ``"once"``, an interval such as ``"10 seconds"``, or what
        ``DataStreamWriter.trigger`` takes, as a mapping. Spark's default if not given.
    on_finish : {"hold", "close"}
        ``close``: after the clean end of a query with ``availableNow`` or ``once`` its stream is closed,
        by `CaptureQuery.await_termination`. A setting of the session is changed while the query starts, and
        restored.
    idle_timeout : str or timedelta, optional
        With ``frontier="bounded"``: a duration such as ``"10 minutes"``. When the query has
        looked for input and found none, so long after the stream's last commit, the stream gives up the
        lateness and moves to just after the greatest time seen. Later rows behind that follow `late_data`, which
        must be chosen. Runs that end by themselves look once, at their end: silence counts over all runs.
        This process must reach the checkpoint and the log, and must keep running.
    through : {"sink", "foreachBatch"}
        By which way rows are written: ``format("timely")`` in Python workers, or Spark's own Parquet
        writer. The log is the same.
    query_name : str, optional
        Name of the query.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs.
    **options : SinkGiven
        Options of the sink in snake_case, which editors and type checkers know, or as Spark writes them: `stream`,
        `time_column`, `frontier`, `lateness`, `late_data` and so on.

    Returns
    -------
    CaptureQuery

    Raises
    ------
    InvalidOptionError
        If options are unknown or contradict each other, or `idle_timeout` is given and the checkpoint cannot be
        read from here.
    InvalidUsageError
        If `df` is not streaming.
    SchemaMismatchError
        If the data cannot be kept in a log.

    Examples
    --------
    >>> query = start(flights, path="/data/log", checkpoint="/data/checkpoint", trigger="availableNow",
    ...               time_column="hour", frontier="bounded", lateness="3 hours",
    ...               on_finish="close")  # doctest: +SKIP
    >>> query.await_termination()  # doctest: +SKIP
    True
    """
    wanted = parse_trigger(trigger, attempt="could not start the capture")
    given: dict[str, object] = {name: value for name, value in options.items() if value is not None}
    refuse_secrets(given)
    full = with_stored(lambda: df.sparkSession, given, storage_options)
    parsed = parse_sink({"path": path, "checkpointLocation": checkpoint, "idleTimeout": idle_timeout, **full})
    # As the sink's planner does it in another process, so that both mean the same place.
    storage = promised(parsed.storage_options, single_writer=parsed.single_writer, flush=parsed.flush)
    parsed = replace(parsed, path=normal_path(path), storage_options=storage)
    check_place(parsed.path, storage)
    timeout_s = None if parsed.idle_timeout is None else check_idle_options(parsed)
    close = _ending(on_finish, wanted, parsed)
    if through not in ("sink", "foreachBatch"):
        raise _refusal(option="through", found=f"through={through!r}", hint="use 'sink' or 'foreachBatch'")
    if parsed.dialect == "cdcv2" and through == "sink":
        raise _refusal(
            option="dialect",
            found="dialect='cdcv2' with through='sink'",
            hint="give through='foreachBatch': a task of the sink sees neither the rows of other tasks nor the log, so"
            " it cannot tell a copy",
        )
    if not df.isStreaming:
        msg = "could not start the capture: found a DataFrame that is not streaming"
        raise InvalidUsageError(msg, hint="read it with spark.readStream, or append rows with open_log(…).writer()")
    # Before Spark makes the writer: it refuses early then.
    register(df.sparkSession)
    writer = df.writeStream.option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if wanted:
        writer = writer.trigger(**wanted)
    texts = {name: _text(value) for name, value in given_to_spark(df.sparkSession, given, storage_options).items()}
    if through == "sink":
        writer = writer.format("timely").options(**texts, path=path)
    else:
        # Asked by the sink's own `start` in the other case.
        check_query(df, parsed, {**texts, "path": path, "checkpointLocation": checkpoint}, gapless=False)
        spare_progress(df.sparkSession)
        writer = writer.foreachBatch(
            _Capture(path, checkpoint, with_stored(lambda: df.sparkSession, given, storage_options, ask=False))
        )
    _warn_of_future(df, parsed)
    # Looked at before the query plans anything.
    repeats = close == "once" and all_committed(checkpoint, storage_options=parsed.storage_options) is not True
    query = _started(writer, df.sparkSession, _reports(close, wanted, timeout_s))
    idle = None
    if timeout_s is not None:
        idle = IdleWatch(query, parsed)
        try:
            idle.start()
        except TimelyError:
            query.stop()
            raise
    return CaptureQuery(query, parsed, df.schema, close=close, repeats=repeats, idle=idle)


def _reports(close: Ending | None, trigger: Mapping[str, object], timeout_s: float | None) -> dict[str, str] | None:
    """Return the setting for how often triggers without input are reported, None for Spark's own."""
    if close is not None or (timeout_s is not None and ending_of(trigger) is not None):
        return _REPORT_ALL
    return _REPORT_SOON if timeout_s is not None and timeout_s < _SHORT_S else None


def _started(writer: DataStreamWriter, spark: SparkSession, settings: dict[str, str] | None) -> StreamingQuery:
    if settings is None:
        return writer.start()
    with changed_settings(spark, settings, purpose="start" if settings is _REPORT_ALL else "idle"):
        return writer.start()


@dataclass(frozen=True)
class _Capture:
    """The function for foreachBatch; plain values only, since Connect pickles it."""

    path: str
    checkpoint: str
    options: Mapping[str, object] = field(repr=False)  # credentials are never shown

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        from spark_timely.spark.capture.foreach_batch import capture

        options: dict[str, Any] = dict(self.options)  # `start` has checked them
        capture(df, batch_id, path=self.path, checkpoint=self.checkpoint, **options)


def _warn_of_future(df: DataFrame, options: SinkOptions) -> None:
    """Say once, when a query starts, that a single row from the future would make all later rows late."""
    if options.frontier != "bounded" or options.max_future_skew is not None:
        return
    wanted = {name.lower() for name in options.time_column}
    kinds = {field.dataType.typeName() for field in df.schema.fields if field.name.lower() in wanted}
    if kinds & {"timestamp", "date"}:
        _log.warning(
            "stream %r of log %r: frontier='bounded' without maxFutureSkew: one row with a time far in the future moves"
            " the frontier there, and every later row is late — hint: give max_future_skew='1 day', or as far as clocks"
            " of your sources may be wrong, and late_data='deadLetter' to set such rows apart",
            options.stream,
            options.path,
        )


def _ending(on_finish: str, trigger: Mapping[str, object], options: SinkOptions) -> Ending | None:
    """Return how a query ends whose stream is to be closed, None if it is to stay open."""
    if on_finish not in ("hold", "close"):
        raise _refusal(option="onFinish", found=f"on_finish={on_finish!r}", hint="use 'hold' or 'close'")
    if on_finish == "hold":
        return None
    closing = {
        "dialect='cdcv2'": (options.dialect == "cdcv2", "a statement with an empty upper closes the stream"),
        "frontier='source'": (options.frontier == "source", "the stream closes when its sources are complete"),
    }
    for found, (given, by_itself) in closing.items():
        if given:
            hint = f"leave on_finish out: {by_itself}; the end of the query's input does not say that it is complete"
            raise _refusal(option="onFinish", found=f"on_finish='close' with {found}", hint=hint)
    ending = ending_of(trigger)
    if ending is not None:
        return ending
    raise _refusal(
        option="onFinish",
        found=f"on_finish='close' with trigger {shown(dict(trigger))}",
        hint="give trigger='availableNow' or 'once': other queries do not end by themselves; for them call"
        " open_log(path).close(stream) when the stream is complete",
    )


def _refusal(*, option: str, found: str, hint: str) -> InvalidOptionError:
    return InvalidOptionError(f"could not start the capture: found {found}", hint=hint, context={"option": option})


def _text(value: object) -> str:
    """Return an option as Spark passes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    if isinstance(value, timedelta):
        return parse_duration(value).text
    return str(value)
