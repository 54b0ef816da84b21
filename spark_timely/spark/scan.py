"""Read files of a log by Spark's own Parquet scan: which ones, and which times of them, as conditions on columns.

Whatever is read from a log as a DataFrame without a task in Python goes through here: rows stay in the JVM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_timely.spark.base.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_timely.log.store.storage import TableStorage
    from spark_timely.time.domain import TimeDomain, TimeType


# A file that is gone is an error, and days are what they are, whatever the session says.
_OPTIONS: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")


def scan(
    spark: SparkSession,
    storage: TableStorage,
    paths: Iterable[str],
    schema: pa.Schema,
    /,
    *,
    skip_missing: bool = False,
) -> DataFrame:
    """Return the rows of Parquet files of a log, one or more, as Spark reads them itself.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    storage : TableStorage
        Of the log.
    paths : iterable of str
        Relative to the log.
    schema : pyarrow.Schema
        Columns to read; those that a file does not have are null.
    skip_missing : bool
        Whether a file that goes while the rows are read is passed over.
    """
    root = f"file://{storage.uri}" if storage.local else storage.uri
    # What Spark would take for a pattern is a name here.
    full = [_PATTERN.sub(r"\\\g<0>", f"{root}/{path}") for path in paths]
    options = {**_OPTIONS, "ignoreMissingFiles": "true"} if skip_missing else _OPTIONS
    return spark.read.schema(spark_schema(schema)).options(**options).parquet(*full)


def quoted(name: str) -> Column:
    """Return a column by name: a dot in it is no field of a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


def beyond(
    domain: TimeDomain, elements: Iterable[Sequence[int]], /, *, moved_to: Sequence[int] | None = None
) -> Column:
    """Return the condition that a row's time is beyond a frontier.

    Parameters
    ----------
    domain : TimeDomain
        Of the log.
    elements : iterable of times
        Of the frontier.
    moved_to : time, optional
        Earlier times count as this one.
    """
    found = F.lit(False)  # noqa: FBT003 - as Spark has it
    floors = (None,) * domain.arity if moved_to is None else tuple(moved_to)
    for time in elements:  # one turn per element
        # Said of the column itself, so that Spark passes over row groups by it.
        parts = [
            quoted(name) >= literal(kind, value)
            for name, kind, value, floor in zip(domain.columns, domain.types, time, floors, strict=True)
            if floor is None or floor < value
        ]
        found = found | reduce(lambda one, other: one & other, parts, F.lit(True))  # noqa: FBT003
    return found


def literal(kind: TimeType, value: int, /) -> Column:
    """Return one coordinate of a time."""
    if kind.value == "timestamp":
        return F.timestamp_micros(F.lit(value))
    if kind.value == "date":
        return F.date_from_unix_date(F.lit(value))
    return F.lit(value)
