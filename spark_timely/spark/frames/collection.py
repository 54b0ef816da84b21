"""Collection logs as DataFrames of their contents, also several at one cut: sums of diffs, by a shuffle.

Users call `spark_timely.snapshot` and `spark_timely.consolidate`. `contents`, answers and bodies of continual tasks use
the parts: exact sums, a row as often as it is contained, errors for counts below zero. A *cut* is a frontier as of
which several logs are read together (`spark_timely.log.cut`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, overload

from spark_timely.errors import InvalidUsageError, MultiplicityOverflowError, shown
from spark_timely.log.store.storage import checked_options
from spark_timely.log.store.urls import own_options
from spark_timely.spark.session import stored
from spark_timely.trace.updates import refusal_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from spark_timely.errors import TimelyError
    from spark_timely.log import Log
    from spark_timely.log.cut import Cut
    from spark_timely.time.domain import TimeLike

__all__ = [
    "consolidate",
    "copies_of",
    "held_or_error",
    "refuse_maps",
    "refused_sql",
    "snapshot",
    "sql_text",
    "sum_of_halves",
    "whole_of_halves",
]

_DIFF = "_diff"
_LOW = 0xFFFFFFFF


def consolidate(df: DataFrame, /, *, diff: str = _DIFF) -> DataFrame:
    """Sum the diffs of rows that are equal in all other columns, and drop those that become zero.

    A source cannot shuffle: what ``format("timely")`` gives of a collection log is consolidated per split
    only. Times count as columns: leave ``includeTime`` out to sum over them.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Updates with a column of diffs; nulls are equal to each other.
    diff : str
        Name of that column.

    Returns
    -------
    pyspark.sql.DataFrame
        Same columns in the same order. Sums of integers are exact; one beyond 64 bits fails the query with
        `TIMELY_MULTIPLICITY_OVERFLOW` in its text.

    Raises
    ------
    InvalidUsageError
        If there is no such column, or another one is or contains a map.

    Examples
    --------
    ::

        updates = spark.read.format("timely").option("asOf", 7).option("upTo", 8).load(path)
        contents = spark_timely.consolidate(updates)
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType

    if diff not in df.columns:
        msg = f"could not consolidate a DataFrame: found no column {diff!r} in {df.columns!r:.200}"
        raise InvalidUsageError(msg, hint="read a collection log: only its updates have diffs")
    refuse_maps(df, "consolidate a DataFrame", InvalidUsageError)
    others = [_quoted(name) for name in df.columns if name != diff]
    quoted = _quoted(diff)
    integers = isinstance(df.schema[diff].dataType, ByteType | ShortType | IntegerType | LongType)
    total = functions.expr(sum_of_halves(quoted)) if integers else functions.sum(functions.col(quoted))
    summed = df.groupBy(*others).agg(total.alias(diff))
    if integers:
        summed = summed.withColumn(diff, functions.expr(whole_of_halves(quoted)))
    return summed.where(functions.col(quoted) != 0).select(*map(_quoted, df.columns))


def sum_of_halves(column: str, /) -> str:
    """Return, in SQL, the sums of the upper and of the lower half of integers.

    Neither overflows before 2**31 rows. Spark's own sum wraps around, or fails under ANSI where the total is within 64
    bits but a part of it is not.
    """
    whole = f"CAST({column} AS BIGINT)"
    return f"named_struct('high', sum(shiftright({whole}, 32)), 'low', sum({whole} & CAST({_LOW} AS BIGINT)))"


def whole_of_halves(column: str, /) -> str:
    """Return, in SQL, the sum of which these are the halves; it fails the query where 64 bits do not hold it."""
    low = f"({column}.low & CAST({_LOW} AS BIGINT))"
    high = f"({column}.high + shiftright({column}.low, 32))"
    found = f"CAST(CAST({high} AS DECIMAL(38, 0)) * CAST({2**32} AS DECIMAL(38, 0)) + {low} AS STRING)"
    message = (
        f"concat('[{MultiplicityOverflowError.condition}] could not consolidate a DataFrame: found diff=', {found},"
    )
    hint = "' — hint: a sum of diffs has at most 64 bits; correct what was captured')"
    # Null where a row has no diff but null: that is none.
    return (
        f"CASE WHEN {high} IS NULL OR {high} BETWEEN {-(2**31)} AND {2**31 - 1}"
        f" THEN (shiftleft({high}, 32) | {low}) ELSE CAST(raise_error({message} {hint}) AS BIGINT) END"
    )


def held_or_error(column: str, attempt: str, names: Sequence[str], /) -> str:
    """Return, in SQL, how often a row is contained; it fails the query where that is fewer than zero times.

    Parameters
    ----------
    column : str
        Of the count, which is not 0.
    attempt : str
        For the error: what cannot be done, as in ``peek log '/log'``.
    names : sequence of str
        Columns of the row.
    """
    return f"CASE WHEN {column} > 0 THEN {column} ELSE {refused_sql(attempt, column, names)} END"


def refused_sql(attempt: str, column: str, names: Sequence[str], kind: str = "BIGINT", /) -> str:
    """Return, in SQL, a value of a type that fails the query: contents have a row fewer than zero times.

    Parameters
    ----------
    attempt, column : str
        As for `held_or_error`.
    names : sequence of str
        Columns of the row, as SQL.
    kind : str
    """
    begin, between, end = map(sql_text, refusal_words(attempt))
    row = f"to_json(struct({', '.join(names)}))"
    return f"CAST(raise_error(concat({begin}, {row}, {between}, CAST({column} AS STRING), {end})) AS {kind})"


def sql_text(text: str, /) -> str:
    r"""Return a text as a literal of Spark's SQL.

    Examples
    --------
    >>> print(sql_text("it's"))
    'it\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@overload
def snapshot(
    spark: SparkSession,
    log: str | os.PathLike[str] | Log,
    as_of: TimeLike,
    /,
    *,
    diffs: bool = ...,
    storage_options: Mapping[str, str] | None = ...,
) -> DataFrame: ...


@overload
def snapshot(
    spark: SparkSession,
    cut: Cut | str | Mapping[str, object],
    /,
    *,
    diffs: bool = ...,
    storage_options: Mapping[str, str] | None = ...,
) -> tuple[DataFrame, ...]: ...


def snapshot(
    spark: SparkSession,
    of: str | os.PathLike[str] | Log | Cut | Mapping[str, object],
    as_of: TimeLike | None = None,
    /,
    *,
    diffs: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame | tuple[DataFrame, ...]:
    """Return the contents of a collection log as of a closed time, or what the logs of a cut hold as of it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect; the data source must be known to it (`register`).
    of : path or Log, or a Cut or its JSON
        A log with a time; or a cut alone, as `spark_timely.cut` made it, here or in another process.
    as_of : time
        Of a log: as `TimeDomain.parse_time` takes it; not beyond the log's frontier.
    diffs : bool
        Whether to give distinct rows and how often each is contained, in ``_diff``, instead of each row
        as often as it is contained.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs; a log that is open has its own.

    Returns
    -------
    pyspark.sql.DataFrame
        Of a log. A row contained fewer than zero times fails the query with `TIMELY_NEGATIVE_MULTIPLICITY` in its text.
    tuple of pyspark.sql.DataFrame
        Of a cut, one per log in its order: of a stream log the messages at times not beyond the cut's frontier; of a
        collection log its contents as of it. The same rows whenever it is called.

    Raises
    ------
    InvalidUsageError
        If the log is no collection, has a column with a map, or the time is none of its times; if options are given
        with a log that is open; if there is no time, and it is no cut.

    Notes
    -----
    The logs of a cut are looked up by Spark's side: here, and when a DataFrame is first computed. One that is
    missing, was replaced by another, or has not come so far fails with `LogMissingError`, `DataLossError`
    or `NotBeyondError` in the text. Spark keeps the files that a DataFrame was planned with: make it
    again after compaction and vacuum.

    Examples
    --------
    ::

        spark_timely.snapshot(spark, "/data/accounts", 7).show()

        cut = spark_timely.cut(["/data/orders", "/data/payments"])
        orders, payments = spark_timely.snapshot(spark, cut)
        orders.join(payments, "order_id").count()
    """
    from spark_timely.log import Log
    from spark_timely.log.cut import Cut

    if isinstance(of, Cut):
        cut = of
    elif isinstance(of, Mapping) or (as_of is None and isinstance(of, str) and of.lstrip().startswith("{")):
        cut = Cut.from_json(of)
    elif as_of is None:
        msg = f"could not take a snapshot: found no time beside log {shown(of.path if isinstance(of, Log) else of)}"
        raise InvalidUsageError(msg, hint="give a time of the log that is complete, or a cut in place of the log")
    else:
        return _at_time(spark, of, as_of, storage_options, diffs=diffs)
    if as_of is not None:
        msg = f"could not take a snapshot of a cut: found a time beside it, {shown(as_of)}"
        raise InvalidUsageError(msg, hint="leave the time out: a cut says as of when its logs are")
    return _at_cut(spark, cut, storage_options, diffs=diffs)


def _at_time(
    spark: SparkSession,
    log: str | os.PathLike[str] | Log,
    time: TimeLike,
    storage_options: Mapping[str, str] | None,
    *,
    diffs: bool,
) -> DataFrame:
    """Return the contents of a collection log at a closed time."""
    from spark_timely.log import Log
    from spark_timely.log.log import open_log

    if isinstance(log, Log) and storage_options is not None:
        msg = f"could not take a snapshot: found storage options beside log {log.path!r}, which is open"
        raise InvalidUsageError(msg, hint="leave them out, or give the path of the log")
    opened = log if isinstance(log, Log) else open_log(log, storage_options=storage_options)
    at = opened.domain.parse_time(time)
    # Up to the times right after it: the contents, and none of the changes that follow.
    up_to = opened.domain.successors(at)
    reader = spark.read.format("timely").option("asOf", json.dumps(opened.domain.time_to_json(at)))
    reader = reader.options(**stored(spark, opened.core.storage_options))
    updates = reader.option("upTo", json.dumps(opened.domain.frontier_to_json(up_to))).load(opened.path)
    return _held_rows(
        updates, f"take a snapshot of log {opened.path!r} at {opened.domain.render_time(at)!r}", diffs=diffs
    )


def _at_cut(
    spark: SparkSession, found: Cut, storage_options: Mapping[str, str] | None, *, diffs: bool
) -> tuple[DataFrame, ...]:
    """Return what the logs of a cut hold as of it."""
    frames = []
    options = checked_options(storage_options, *(log.path for log in found.logs))
    for log in found.logs:
        reader = spark.read.format("timely").option("cut", str(found))
        frame = reader.options(**stored(spark, own_options(log.path, options))).load(log.path)
        if _DIFF in frame.columns:  # ours: no payload has a column of that name
            at = found.domain.render_frontier(found.frontier)
            frame = _held_rows(frame, f"take a snapshot of log {log.path!r} at the cut of frontier={at}", diffs=diffs)
        frames.append(frame)
    return tuple(frames)


def _held_rows(updates: DataFrame, attempt: str, /, *, diffs: bool) -> DataFrame:
    """Sum updates to rows that are contained, and fail where one is contained fewer than zero times.

    Parameters
    ----------
    updates : pyspark.sql.DataFrame
        With their diffs in ``_diff``.
    attempt : str
        For errors: what cannot be done.
    diffs : bool
        Whether to give distinct rows and how often each is contained, instead of each as often as it is.
    """
    from pyspark.sql import functions

    names = [_quoted(name) for name in updates.columns if name != _DIFF]
    checked = consolidate(updates).withColumn(_DIFF, functions.expr(held_or_error(_DIFF, attempt, names)))
    return checked if diffs else copies_of(checked)


def copies_of(counted: DataFrame, /) -> DataFrame:
    """Return each row as often as its ``_diff`` says, which is positive; without that column."""
    from pyspark.sql import functions

    copies = functions.sequence(functions.lit(1).cast("long"), functions.col(_DIFF))
    return counted.withColumn(_DIFF, functions.explode(copies)).drop(_DIFF)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def refuse_maps(df: DataFrame, attempt: str, error: type[TimelyError], /) -> None:
    """Refuse a DataFrame whose rows cannot be compared; raises the error."""
    maps = [field.name for field in df.schema.fields if _has_map(field.dataType)]
    if maps:
        msg = f"could not {attempt}: found column {maps[0]!r}, which is or contains a map"
        hint = "turn it into an array with array_sort(map_entries(…)): Spark cannot tell whether two maps are equal"
        raise error(msg, hint=hint, context={"columns": maps})


def _has_map(kind: DataType) -> bool:
    """Whether a type is a map or contains one."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))
