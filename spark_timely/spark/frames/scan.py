"""The scan of a log's files by Spark's own Parquet reader, with ranges of times as conditions on rows.

Whatever is read from a log as a DataFrame without a task in Python goes through here, such as contents, answers and
replays by `spark_timely.replay`: rows stay in the JVM. ``format("timely")`` reads in Python
(`spark_timely.datasource.reader`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_timely.errors import InvalidOptionError
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
_NO_FILE_SYSTEM: Final = re.compile(r"No FileSystem for scheme|ClassNotFoundException: Class org\.apache\.hadoop\.fs")
_S3A: Final = (
    "org.apache.hadoop:hadoop-aws",
    ", with credentials as spark.hadoop.fs.s3a.access.key, .secret.key and .endpoint",
)
_AZURE: Final = ("org.apache.hadoop:hadoop-azure", ", with credentials as spark.hadoop.fs.azure.account.key.<host>")
_PACKAGES: Final = {"s3a": _S3A, "abfs": _AZURE, "abfss": _AZURE}
_reached: dict[str, str] = {}  # by scheme, the one by which Hadoop was seen to know the store
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
    root = spark_root(spark, storage)
    # What Spark would take for a pattern is a name here.
    full = [_PATTERN.sub(r"\\\g<0>", f"{root}/{path}") for path in paths]
    options = {**_OPTIONS, "ignoreMissingFiles": "true"} if skip_missing else _OPTIONS
    return spark.read.schema(spark_schema(schema)).options(**options).parquet(*full)


def spark_root(spark: SparkSession, storage: TableStorage, /) -> str:
    """Return where a log is as Spark's own reader and writer take it; refuse a URL that Spark cannot reach.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    storage : TableStorage
        Of the log.

    Raises
    ------
    InvalidOptionError
        If Spark's Hadoop has no file system for the URL's scheme.

    Notes
    -----
    Cost: for a URL one look at it by Spark, once in a process for each scheme.
    """
    if storage.local:
        return f"file://{storage.uri}"
    scheme, _, rest = storage.uri.partition("://")
    # Hadoop's own name of S3; `s3` is one only where somebody set it.
    names = ("s3", "s3a") if scheme.lower() == "s3" else (scheme.lower(),)
    if scheme.lower() not in _reached:
        for name in names:
            error = _no_file_system(spark, f"{name}://{rest}")
            if error is None:
                _reached[scheme.lower()] = name
                break
        else:
            msg = (
                f"could not let Spark read or write log {storage.uri!r}: found no file system of Hadoop for {scheme!r}"
            )
            package, hint = _PACKAGES.get(names[-1], ("the connector of the store", ""))
            raise InvalidOptionError(
                msg,
                hint=f"start Spark with {package} in spark.jars.packages, of the version of its Hadoop{hint}; see"
                " docs/how-to/object-stores.md",
                context={"path": storage.uri},
            ) from error
    return f"{_reached[scheme.lower()]}://{rest}"


def _no_file_system(spark: SparkSession, url: str) -> Exception | None:
    """Return the error of a Spark that has no file system for a URL; any other is left to the job to tell."""
    try:
        spark.read.format("binaryFile").load(url).schema  # noqa: B018 - looks for the file system, through Connect too
    except Exception as error:  # noqa: BLE001 - of Py4J, or of Connect
        return error if _NO_FILE_SYSTEM.search(str(error)) else None
    return None


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
    for time in elements:
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
