"""SQL over contents: what collections contain at one time, as DataFrames, and Spark's SQL over them.

It is `spark_timely.sql`, and serves the command line; `copy_to` and `mirror` read their rows here. A query that is no
peek, such as a join or an aggregate over several collections, is Spark's. What it reads are the contents of all of them
at one time, which `spark_timely.log.timestamp` chooses. So what belongs together is seen together: never an order at a
rate that is not there yet.

Invariants
----------
1. All collections of a text are read as of one time, that is complete in each, and a log once for all names that it
   has. One snapshot of a log gives its files, and shows that since allows the time and that upper has passed it.
2. A DataFrame names its files. What is committed, forgotten or compacted later does not change its rows; a file that
   was deleted meanwhile is an error of Spark's, never a row less.
3. The text that runs is the user's, but for the names of tables and ``:time``, as `spark_timely.continual.body` has it.
4. Views have names that are never used twice. Spark classic analyses at once, and they are dropped at once; a Connect
   server analyses at each action, and they stay until its session ends.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F

from spark_timely.conf.kinds import seconds_of
from spark_timely.continual.body import at_time, check_columns, read_query, unknown_functions
from spark_timely.continual.engine import source_plan
from spark_timely.continual.plan import TaskSource
from spark_timely.errors import (
    InvalidUsageError,
    LogFormatError,
    NotBeyondError,
    SinceViolationError,
    StorageError,
    TimelyError,
    shown,
)
from spark_timely.log import Log
from spark_timely.log.machine.since import needed_by_contents
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import own_options
from spark_timely.log.timestamp import (
    check_complete,
    check_since,
    choose_time,
    domain_of,
    input_of,
    opened_targets,
)
from spark_timely.log.wait import passes, wait_for
from spark_timely.masking import masked_logger
from spark_timely.scanner import markers
from spark_timely.scanner import scanned as scanned_text
from spark_timely.spark.base.beginnings import beginning
from spark_timely.spark.base.compat import built_in_functions, is_remote
from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.spark.frames.collection import consolidate, copies_of, held_or_error, refuse_maps
from spark_timely.spark.frames.contents import DIFF, StepViews, frame_of, listed, time_sql
from spark_timely.spark.frames.scan import beyond, quoted, scan
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.log.timestamp import Time, TimestampExplanation
    from spark_timely.time.domain import TimeDomain, TimeLike

__all__ = ["AtOneTime", "at_one_time", "contents_frame", "rows_between", "sql"]

_logger = masked_logger("spark_timely.answers")

_POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class AtOneTime:
    """Logs that can be read at one time, each as of the snapshot that was looked at.

    Attributes
    ----------
    explanation : TimestampExplanation
    logs : tuple of Log
        In the order of the inputs.
    """

    explanation: TimestampExplanation
    logs: tuple[Log, ...]

    @property
    def time(self) -> Time:
        """The time at which all are read."""
        return self.explanation.time


def sql(
    spark: SparkSession,
    text: str,
    /,
    *,
    names: Mapping[str, str | os.PathLike[str] | Log] | None = None,
    as_of: TimeLike | None = None,
    as_of_at_least: TimeLike | None = None,
    forgotten: bool = False,
    functions: Sequence[str] = (),
    timeout_s: float = 60.0,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return what a SELECT gives over collections as they all were at one time.

    The time is chosen as `explain_timestamp` says: the newest one that is complete in all of them. ``:time`` in the
    text is that time.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    text : str
        One SELECT of Spark's SQL, joins, aggregates and WITH included. Its tables are `names`, or paths of logs in
        backquotes: ``SELECT count(*) FROM `/data/orders```. Clocks, random numbers and what depends on the session are
        refused; so is a name that is no column of the logs. A clock that only a computed text names, as
        ``CAST(concat('to', 'day') AS date)``, is not found.
    names : mapping of str to path or Log, optional
        What the tables of the text are. Logs that it does not read are not opened.
    as_of : time, optional
        The time; it may be one that is still open, and is waited for then.
    as_of_at_least : time, optional
        The first time that can be read and is not before this one.
    forgotten : bool
        Whether contents of a stream log that has forgotten messages are those that it still has. Else such a log is
        refused: what it has lost would be missing without a word.
    functions : sequence of str
        Functions of the session that the text may call: each gives the same whenever it is called.
    timeout_s : float
        How long to wait until the time is complete, in seconds; 0 looks once.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs; a log that is open has its own.

    Returns
    -------
    pyspark.sql.DataFrame
        Lazy, and of this time whenever it is computed. What depends on the order of rows (``first``, ``collect_list``,
        ``LIMIT`` without ``ORDER BY``) is as Spark comes upon them.
        Of a collection a row is there as often as it is contained; of a stream log all messages up to the time. A row
        contained fewer than zero times fails the query with `TIMELY_NEGATIVE_MULTIPLICITY` in its text.

    Raises
    ------
    InvalidUsageError
        If the text is no single SELECT, names a table that is not named, or has something that is not taken; or the
        times of its logs cannot be compared; or a collection has a column with a map.
    SchemaMismatchError
        If a name is no column of the logs: it would be a variable of the session, or a clock.
    SinceViolationError
        If a log has forgotten times before `as_of` that were distinct, or a stream log has forgotten messages.
    NotBeyondError
        If the time is not complete within `timeout_s`; at once if no time is given, and none is complete.
    LogMissingError
        If there is no log at a path.

    Notes
    -----
    Nothing is retained for a DataFrame: the files that it names stay where they are until a vacuum deletes them, a day
    after they were replaced unless it is set otherwise. While a time is waited for, the logs retain it, where they
    can be written to. On Connect its views stay until the session ends.

    Cost: one look at each log; no file of data is opened here.

    Examples
    --------
    ::

        spark_timely.sql(
            spark,
            "SELECT o.id, o.amount * r.rate AS euros, :time AS at FROM orders o JOIN rates r USING (currency)",
            names={"orders": "/data/orders", "rates": "/data/rates"},
        ).show()
    """
    attempt = "run a query at one time"
    named = dict(names or {})
    query = read_query(text, attempt=attempt, names=list(named))
    if not query.reads:
        msg = f"could not {attempt}: found no table of a log in {shown(text)}"
        raise InvalidUsageError(msg, hint="read a log by its name or path, or use spark.sql")
    targets, own = _logs_of(query.reads, named, storage_options)
    unknown = unknown_functions(query.functions, built_in_functions(spark), functions)
    if unknown:
        msg = f"could not {attempt}: found function {unknown[0]!r}, which is none of Spark's, in {shown(text)}"
        raise InvalidUsageError(msg, hint=f"say functions=[{unknown[0]!r}] if it gives the same whenever it is called")
    schemas = {log.core.log_id: log.schema.names for log in targets.values()}
    check_columns([query], {name: schemas[log_id] for name, log_id in own.items()}, attempt=attempt)
    opened = list(targets.items())
    found = at_one_time(
        opened, attempt=attempt, as_of=as_of, as_of_at_least=as_of_at_least, forgotten=forgotten, timeout_s=timeout_s
    )
    domain, time = found.explanation.domain, found.time
    bare = bool(markers(scanned_text(query.query, attempt)))
    if bare and domain.arity > 1:
        msg = f"could not {attempt}: found :time in {shown(text)}, and times of {domain.arity} coordinates"
        raise InvalidUsageError(msg, hint="leave :time out: it stands for one value")
    with ExitStack() as dropped:
        views = dropped.enter_context(StepViews(spark))
        by_log = {log.core.log_id: views.add(contents_frame(spark, log, time, views)) for log in found.logs}
        bound = query.bind({name: by_log[log_id] for name, log_id in own.items()})
        frame = spark.sql(at_time(bound, time_sql(domain, time[0])) if bare else bound)
        if is_remote(spark):
            dropped.pop_all()  # invariant 4
    return frame


def _logs_of(
    reads: Sequence[str],
    named: Mapping[str, str | os.PathLike[str] | Log],
    storage_options: Mapping[str, str] | None,
) -> tuple[dict[str, Log], dict[str, str]]:
    """Return the logs that a text reads, each once by one of its names, and the log's id for each of its names."""
    places = {name: named.get(name, name) for name in reads}
    paths = [normal_path(place) for place in places.values() if not isinstance(place, Log)]
    options = checked_options(storage_options, *paths)
    logs: dict[str, Log] = {}
    own: dict[str, str] = {}
    for name, place in places.items():
        storage = None if isinstance(place, Log) else own_options(normal_path(place), options) or None
        ((_, log),) = opened_targets(place, storage_options=storage)
        if log.core.log_id not in own.values():
            logs[name] = log
        own[name] = log.core.log_id
    return logs, own


def at_one_time(
    opened: Sequence[tuple[str, Log]],
    *,
    attempt: str,
    as_of: TimeLike | None = None,
    as_of_at_least: TimeLike | None = None,
    forgotten: bool = False,
    timeout_s: float = 60.0,
) -> AtOneTime:
    """Choose the time at which some logs are read, and wait until it is complete in all of them.

    Parameters
    ----------
    opened : sequence of (str, Log)
        Names, and logs as they are now: see `opened_targets`.
    attempt : str
        For errors: what is done with them.
    as_of, as_of_at_least, forgotten, timeout_s
        As of `sql`.

    Raises
    ------
    InvalidUsageError, SinceViolationError, NotBeyondError
        As of `sql`.
    """
    seconds_of(f"could not {attempt}", "timeout_s", timeout_s)
    domain = domain_of(opened)
    first = choose_time(domain, [input_of(*each) for each in opened], as_of=as_of, as_of_at_least=as_of_at_least)
    check_complete(attempt, first)
    logs = tuple(log for _, log in opened)
    for log in logs:
        _check_whole(log, attempt, forgotten=forgotten)
    if not first.waits_for():
        return AtOneTime(first, logs)
    at = domain.time_to_json(first.time)
    with _retained(logs, first.time, timeout_s):
        done = wait_for(logs, passes(domain, time=first.time), timeout_s=timeout_s, poll_s=_POLL_S)
        inputs = tuple(input_of(*each) for each in opened)
        # since may have moved meanwhile, of a log that could not retain the time.
        check_since(domain, inputs, first.time)
    after = replace(
        first, inputs=inputs,
        since=reduce(Antichain.join, (each.since for each in inputs)),
        upper=reduce(Antichain.meet, (each.upper for each in inputs)),
    )  # fmt: skip
    if done:
        return AtOneTime(after, logs)
    late = after.waits_for()[0]
    msg = (
        f"could not {attempt}: found upper={domain.render_frontier(late.upper)} and"
        f" since={domain.render_frontier(late.since)} of log {late.path!r}, which have not passed time={at} after"
        f" {timeout_s:g} seconds"
    )
    raise NotBeyondError(
        msg,
        hint="wait longer, ask for an earlier time, or see which stream holds the log back (spark-timely stats)",
        time=domain.render_time(first.time),
        frontier=domain.render_frontier(late.upper),
    )


def _check_whole(log: Log, attempt: str, *, forgotten: bool) -> None:
    """Refuse a stream log that has forgotten messages, unless that is what is asked for."""
    begins = beginning(log) if log.kind == "stream" and not forgotten else None
    if begins is None:
        return
    since, upper = log.domain.render_frontier(begins), log.domain.render_frontier(log.frontier())
    least = log.domain.render_frontier(log.domain.minimum_frontier)
    msg = f"could not {attempt}: found since={since} and upper={upper} of stream log {log.path!r}, of which all is read"
    raise SinceViolationError(
        msg,
        hint="say forgotten=True to read the messages that it still has, or read a collection log",
        as_of=least,
        since=since,
        context={"path": log.path},
    )


@contextmanager
def _retained(logs: Sequence[Log], time: Time, timeout_s: float) -> Iterator[None]:
    """Keep logs readable at a time while it is waited for; those that cannot be written to are read as they are."""
    name, kept = f"query {uuid.uuid4().hex[:12]}", list[Log]()
    seconds = math.ceil(min(timeout_s, 1e6)) + 60
    try:
        for log in logs if timeout_s else ():
            with suppress(StorageError, LogFormatError):
                as_of, expiry_us = needed_by_contents(time), seconds * 1_000_000
                log.core.retain_as_of(name, as_of, owner=name, expiry_us=expiry_us, what=f"retain log {log.path!r}")
                kept.append(log)
        yield
    finally:
        for log in kept:
            try:
                log.release(name)
            except TimelyError as error:
                _logger.info("retainer %r of log %r stays until it expires: %s", name, log.path, error)


def contents_frame(spark: SparkSession, log: Log, time: Time, views: StepViews) -> DataFrame:
    """Return what a log contains at a time, in the columns of its payload; as of its present snapshot.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    log : Log
        That has passed the time, and whose since is not beyond it.
    time : tuple of int
    views : StepViews
        What the frame is made from: they must be there where it is analysed.

    Raises
    ------
    InvalidUsageError
        If it is a collection with a column that is or contains a map.
    """
    domain = log.domain
    if domain.arity == 1:
        storage = open_storage(log.path, dict(log.core.storage_options) or None)
        lower = log.since().elements[0][0] if _forgets(log) else None
        source = TaskSource(log.path, log.path, "contents")
        plan = source_plan(source, log, catalog_of(log)(), storage, lower, time[0] + 1)
        if log.kind == "collection":
            _check_maps(spark, log)
        return frame_of(spark, plan, views)
    rows = rows_between(spark, log, log.since() if _forgets(log) else None, _later(domain, time))
    if log.kind == "stream":
        return rows
    attempt = f"read the contents of log {log.path!r} at {domain.render_time(time)!r}"
    names = [listed([name]) for name in log.schema.names]
    return copies_of(rows.withColumn(DIFF, F.expr(held_or_error(DIFF, attempt, names))))


def rows_between(spark: SparkSession, log: Log, lower: Antichain | None, upper: Antichain) -> DataFrame:
    """Return the rows of a log at times beyond one frontier and not beyond another, without their times.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    log : Log
        As of its present snapshot.
    lower : Antichain or None
        None is from the beginning on.
    upper : Antichain

    Returns
    -------
    pyspark.sql.DataFrame
        Of a stream log its messages; of a collection distinct rows and the sums of their diffs, in ``_diff``, never 0.
    """
    domain, index = log.domain, log.core.files()
    own = [pa.field(DIFF, pa.int64())] if log.kind == "collection" else []
    payload = [each.with_nullable(True) for each in log.schema]  # noqa: FBT003 - as Arrow has it
    times = [pa.field(name, kind.arrow) for name, kind in zip(domain.columns, domain.types, strict=True)]
    log.core.look_into(lambda files: files.may_hold_times(lower, upper))
    paths = index.paths[index.may_hold_times(lower, upper)].tolist()
    if not paths:
        return spark.createDataFrame([], spark_schema(pa.schema([*payload, *own])))
    storage = open_storage(log.path, dict(log.core.storage_options) or None)
    found = scan(spark, storage, paths, pa.schema([*times, *payload, *own]))
    if upper:
        found = found.where(~beyond(domain, upper.elements))
    if lower is not None:
        found = found.where(beyond(domain, lower.elements))
    rows = found.select(*(quoted(each.name) for each in (*payload, *own)))
    return consolidate(rows) if own else rows


def _later(domain: TimeDomain, time: Time) -> Antichain:
    """Return the frontier of all times that are not less or equal to one: greater in some coordinate."""
    least = [kind.lo for kind in domain.types]
    found = [
        (*least[:at], value + 1, *least[at + 1 :])
        for at, (value, kind) in enumerate(zip(time, domain.types, strict=True))
        if value < kind.hi
    ]
    return Antichain.from_times(found, domain.arity)


def _forgets(log: Log) -> bool:
    """Whether some messages of a stream log are gone, be they still in files."""
    return log.kind == "stream" and log.since() != log.domain.minimum_frontier


def _check_maps(spark: SparkSession, log: Log) -> None:
    if any(pa.types.is_map(each.type) or pa.types.is_nested(each.type) for each in log.schema):
        shape = spark.createDataFrame([], spark_schema(log.schema))
        refuse_maps(shape, f"read the contents of log {log.path!r}", InvalidUsageError)
