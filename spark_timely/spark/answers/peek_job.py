"""The Spark job of a peek that would read more than a process should.

Compute instances and the command line give it to `spark_timely.answers.peek`, which reads small peeks in the process
itself (`spark_timely.answers.log_peek`) and calls it for large ones. The plan is that of `spark_timely.answers.peek`,
and so is the answer, which is bounded: the driver gets the rows that its caller gets, or a few more that
`spark_timely.answers.plan.finish` leaves out.

Invariants
----------
1. Rows are judged before they are counted, and counted by the plan's columns: the same rows and counts as in process.
2. With a limit no more rows come than limit and offset together, of each partition at most; with `max_bytes` no
   partition gives more than that and one record batch.
3. A row that counts less than zero fails the job, wherever it stands in the order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, NoReturn

import pyarrow as pa
from pyspark.errors import ArithmeticException, NumberFormatException
from pyspark.sql import functions as F

from spark_timely.answers.plan import Thinning, row_sizes
from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    MultiplicityOverflowError,
    NegativeMultiplicityError,
    TimelyError,
)
from spark_timely.log.files.format import conform
from spark_timely.log.store.storage import MemoryStorage
from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.base.shipping import for_task
from spark_timely.spark.frames.collection import consolidate, refuse_maps, refused_sql
from spark_timely.spark.frames.contents import listed
from spark_timely.spark.frames.scan import beyond, literal, quoted, scan
from spark_timely.spark.replay.batch_frame import check_settings
from spark_timely.trace.updates import DIFF

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_timely.answers.plan import OrderBy, PeekPlan

__all__ = ["peek_job"]

# More keys than these are not sent to all tasks.
_FEW_KEYS: Final = 100_000

_FILE_GONE: Final = re.compile(r"PATH_NOT_FOUND|FAILED_READ_FILE|FileNotFoundException|FILE_NOT_EXIST")
_OURS: Final = re.compile(r"\[(TIMELY_\w+)\] (could not [^\n]*?)(?: — hint: ([^\n]*?))?(?= SQLSTATE|\n|$)")


def peek_job(spark: SparkSession, /) -> Callable[[PeekPlan], pa.Table]:
    """Return what answers plans of peeks by jobs of a session, for ``peek(…, job=peek_job(spark))``.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect. A plan with a condition needs ``spark.sql.ansi.enabled``.

    Returns
    -------
    callable
        Takes a plan; returns rows of its `columns`, each with its count in ``_diff``: all of them, or at least the
        first ones by the order. It raises as a peek in process does: `NegativeMultiplicityError`,
        `MultiplicityOverflowError`; `InvalidUsageError` if a condition cannot be computed, or a column is or contains a
        map; `DataLossError` if a file is gone.

    Examples
    --------
    ::

        peek("/data/orders", where="amount > 100", limit=10, job=peek_job(spark))
    """
    return lambda plan: _answer(spark, plan)


def _answer(spark: SparkSession, plan: PeekPlan) -> pa.Table:
    payload = plan.form.payload
    schema = pa.schema(
        [*(payload.field(name).with_nullable(True) for name in plan.columns), pa.field(DIFF, pa.int64())]  # noqa: FBT003 - as Arrow has it
    )
    if isinstance(plan.storage, MemoryStorage):
        msg = f"could not peek log {plan.path!r} by a job: found a log in memory"
        raise InvalidUsageError(msg, hint="leave job out")
    if not plan.files or (plan.keys is not None and not plan.keys.num_rows):
        return schema.empty_table()
    attempt = f"peek log {plan.path!r} by a job"
    try:
        rows = _matching(spark, plan)
        refuse_maps(rows, attempt, InvalidUsageError)
        row = [listed([name]) for name in plan.columns]
        negative = refused_sql(f"peek log {plan.path!r}", DIFF, row, "BOOLEAN")
        counted = consolidate(rows).where(f"IF({DIFF} < 0, {negative}, true)")
        found = _bounded(counted, plan).toArrow()
    except TimelyError:
        raise
    except Exception as error:  # noqa: BLE001 - of Spark, of Py4J, of Connect: raised again, or said in our words
        _refuse(error, plan)
    return conform(found.select(schema.names), schema)


def _matching(spark: SparkSession, plan: PeekPlan) -> DataFrame:
    """Return the updates that count, in the columns that they are counted by, with their diffs."""
    domain, payload = plan.form.domain, plan.form.payload
    stream = plan.form.kind == "stream"
    times = [pa.field(name, kind.arrow) for name, kind in zip(domain.columns, domain.types, strict=True)]
    own = [] if stream else [pa.field(DIFF, pa.int64())]
    read = [payload.field(name).with_nullable(True) for name in plan.read_columns]  # noqa: FBT003 - as Arrow has it
    rows = scan(spark, plan.storage, plan.files, pa.schema([*times, *read, *own]))  # type: ignore[arg-type]
    parts = [
        quoted(name) <= literal(kind, value)
        for name, kind, value in zip(domain.columns, domain.types, plan.at, strict=True)
    ]
    rows = rows.where(reduce(and_, parts))
    if stream and plan.since != domain.minimum_frontier:
        rows = rows.where(beyond(domain, plan.since.elements))
    if plan.where is not None:
        check_settings(spark)
        rows = rows.where(plan.where.sql)
    if plan.keys is not None:
        rows = _of_keys(spark, rows, plan.keys)
    diff = F.lit(1).cast("long").alias(DIFF) if stream else quoted(DIFF)
    return rows.select(*map(quoted, plan.columns), diff)


def _of_keys(spark: SparkSession, rows: DataFrame, keys: pa.Table) -> DataFrame:
    """Return the rows that have one of some keys; null equals null, as in the plan."""
    names = [f"__timely_key_{number}" for number in range(keys.num_columns)]
    shape = spark_schema(pa.schema([(name, kind) for name, kind in zip(names, keys.schema.types, strict=True)]))
    wanted = spark.createDataFrame(keys.rename_columns(names), shape)
    if keys.num_rows <= _FEW_KEYS:
        wanted = F.broadcast(wanted)
    equal = [quoted(mine).eqNullSafe(quoted(other)) for mine, other in zip(keys.schema.names, names, strict=True)]
    return rows.join(wanted, reduce(and_, equal), "left_semi")


def _bounded(counted: DataFrame, plan: PeekPlan) -> DataFrame:
    """Return as many rows as the answer needs (invariant 2)."""
    bound = plan.bound
    if bound is not None and bound < 1 << 31:
        others = [name for name in plan.columns if name not in {each.column for each in plan.order}]
        if not plan.order:
            return counted.limit(bound)
        if not any(pa.types.is_nested(plan.form.payload.field(name).type) for name in others):
            # The same order as `finish` has, to the last column.
            ordered = [*map(_sorted_by, plan.order), *(quoted(name).asc_nulls_first() for name in others)]
            return counted.orderBy(*ordered).limit(bound)
    elif plan.max_bytes is None:
        return counted
    schema = counted.schema

    def thinned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept, size = Thinning(plan), 0
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if plan.bound is not None:
                kept.add(rows)
                continue
            yield batch
            size += int(row_sizes(rows.drop_columns([DIFF])).sum())
            if plan.max_bytes is not None and size > plan.max_bytes:
                return  # it is too large already, whatever comes
        rows = kept.rows()
        yield from () if rows is None else rows.to_batches()

    return counted.mapInArrow(for_task(thinned), schema)


def _sorted_by(each: OrderBy) -> Column:
    column = quoted(each.column)
    if each.descending:
        return column.desc_nulls_first() if each.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if each.nulls_first else column.asc_nulls_last()


def _refuse(error: Exception, plan: PeekPlan) -> NoReturn:
    """Raise the error of a peek for what a job says; its own where it is Spark's."""
    text = str(error)
    found = _OURS.search(text)
    kinds: list[type[TimelyError]] = [NegativeMultiplicityError, MultiplicityOverflowError]
    kind = None if found is None else next((each for each in kinds if each.condition == found.group(1)), None)
    if found is not None and kind is not None:
        raise kind(found.group(2), hint=found.group(3), context={"path": plan.path}) from error
    line = text.strip().partition("\n")[0]
    if _FILE_GONE.search(text):
        msg = f"could not peek log {plan.path!r} by a job: found that a file is gone: {line}"
        # A peek plans again, where the log has other files by now.
        raise DataLossError(
            msg, hint="peek again; put the file back, or verify the log", context={"path": plan.path}
        ) from error
    if isinstance(error, (ArithmeticException, NumberFormatException)):
        msg = f"could not peek log {plan.path!r} by a job: found {line}"
        raise InvalidUsageError(msg, hint="leave out, or write differently, what goes beyond its type") from error
    raise error
