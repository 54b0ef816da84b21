"""Copies of contents into Parquet or CSV files, written by Spark: complete, or visibly not.

It is `spark_timely.copy_to`; the command line and compute instances make their copies by it too. How a folder is
owned, and when its files get their names, is in `copy_folder`. A copy is made once; a `mirror` is kept up to date.

Invariants
----------
1. What can be refused is refused before anything is written.
2. Rows are counted where they are written, in the same job, and compared with the files: no second reading, and none
   is sent to the driver.
3. A job that outlives its client is found by a tag, which ``INCOMPLETE`` names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    BooleanType,
    CharType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from spark_timely.errors import (
    InvalidUsageError,
    SchemaMismatchError,
    StorageError,
    described,
    shown,
)
from spark_timely.log import Log
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import identity, own_options
from spark_timely.log.timestamp import opened_targets
from spark_timely.predicate import parse_predicate
from spark_timely.spark.answers.copy_folder import INCOMPLETE, Written, begin, check_empty, finish, tag_of
from spark_timely.spark.answers.sql import at_one_time, contents_frame
from spark_timely.spark.base.observed import observed
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.spark.base.tags import end_tagged, home_of, tagged
from spark_timely.spark.frames.contents import StepViews
from spark_timely.spark.frames.scan import quoted, spark_root
from spark_timely.spark.replay.batch_frame import check_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

    from spark_timely.log.store.storage import TableStorage
    from spark_timely.time.domain import TimeLike

__all__ = ["INCOMPLETE", "Format", "copy_to"]

Format = Literal["parquet", "csv"]

# What the JVM says of an error that is none of Spark's: the last cause is the first.
_CAUSE: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)

_LEAST_BYTES: Final = 16_000_000
_MOST_BYTES: Final = 1 << 30

# Of a file of the log, or of a frame, as many rows say how long a row will be.
_SAMPLE_ROWS: Final = 10_000
_SAMPLE_FILES: Final = 3

# A null is nothing, an empty text is two quotes; a quote in a text is doubled; nothing is trimmed.
_CSV: Final = {
    "header": "true",
    "encoding": "UTF-8",
    "sep": ",",
    "quote": '"',
    "escape": '"',
    "lineSep": "\n",
    "nullValue": "",
    "emptyValue": '""',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    "timeZone": "UTC",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "compression": "none",
}
_TASK: Final = "of task\n"  # a name that no column of anybody has
_ROWS_OF_A_TASK: Final = 1 << 33  # numbers that Spark's increasing ids have for each
_PLAIN: Final = (
    BooleanType, CharType, DateType, NumericType, StringType, TimestampNTZType, TimestampType, VarcharType
)  # fmt: skip
_OWN: Final = {
    # Hadoop's own sign that a job is done.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # With version 2, which sessions may have as their default, each attempt at a task puts its files into place itself,
    # all attempts under the same names: one that was given up, and lives on, would replace files that were counted.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}


def copy_to(
    spark: SparkSession,
    target: str | os.PathLike[str] | Log | DataFrame,
    folder: str | os.PathLike[str],
    /,
    *,
    as_of: TimeLike | None = None,
    format: Format = "parquet",
    where: str | None = None,
    select: Sequence[str] | None = None,
    max_file_bytes: int = 256 << 20,
    forgotten: bool = False,
    timeout_s: float = 60.0,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Copy what a log contains at a time, or a DataFrame, into plain files of an empty folder; return how many rows.

    While files are written, in ``_attempt-TOKEN/`` below the folder, it has a file ``INCOMPLETE``. That goes when all
    of them have their names and are counted.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    target : path, Log or DataFrame
        A collection log: its contents, each row as often as it is contained; a stream log: its messages up to the
        time; a DataFrame, such as `sql` gives: its rows.
    folder : path or URL
        Where Spark's executors can write, and this process. It may not be there yet; nothing may be in it, but for
        folders of attempts that were cut short.
    as_of : time, optional
        The time, inclusive; the newest one that is complete unless given. It is waited for.
    format : {"parquet", "csv"}
        CSV has a header; a null is empty, an empty text is ``""``, a quote in a text is doubled, moments are
        ISO 8601 in UTC.
    where : str, optional
        A condition on rows, as text, of the small part of SQL that `spark_timely.predicate` knows.
    select : sequence of str, optional
        The columns, in this order; all unless given.
    max_file_bytes : int
        About how large a file may become: 16,000,000 to 1,073,741,824 bytes. Smaller ones are not put together.
    forgotten, timeout_s
        As of `sql`.
    storage_options : mapping of str to str, optional
        Credentials and settings for cloud URLs, of log and folder. Spark itself writes with those of its session.

    Returns
    -------
    int
        Rows that were written.

    Raises
    ------
    InvalidUsageError
        If the folder has anything in it, or somebody copies into it: then the job is named; or an argument is wrong.
    SchemaMismatchError
        If there is no such column, or CSV cannot have it: arrays, maps, structs, binary.
    SinceViolationError, NotBeyondError, LogMissingError
        As of `sql`.
    StorageError
        If the folder cannot be written, or files lack rows that the job has written.
    RolledBackError
        If somebody took the folder away meanwhile, or put files into it.

    Notes
    -----
    If the job fails, ``INCOMPLETE`` and what was written stay: delete the folder, and copy again.

    A job may outlive this process. It has the tag ``timely-copy-TOKEN``; what it writes late stays in its
    ``_attempt-TOKEN/``.

    Cost: one job of Spark, as its own writer, which counts the rows; one read of each footer of Parquet. On a disk each
    file is flushed and linked, in a store it is copied once more within the store.

    Examples
    --------
    ::

        spark_timely.copy_to(spark, "/data/accounts", "/exports/accounts", where="balance > 0", format="csv")
    """
    attempt = f"copy to {shown(str(folder))}"
    _check_arguments(attempt, format, max_file_bytes)
    place = normal_path(folder)
    paths = [normal_path(target)] if isinstance(target, (str, os.PathLike)) else []
    options = checked_options(storage_options, place, *paths)
    storage = open_storage(place, own_options(place, options) or None)
    check_empty(storage, attempt)
    with StepViews(spark) as views:
        if isinstance(target, (str, os.PathLike, Log)):
            own = None if isinstance(target, Log) else own_options(paths[0], options) or None
            opened = opened_targets(target, storage_options=own)
            found = at_one_time(opened, attempt=attempt, as_of=as_of, forgotten=forgotten, timeout_s=timeout_s)
            (log,) = found.logs
            _check_outside(log, storage, attempt)
            frame = _chosen(contents_frame(spark, log, found.time, views), where, select, attempt)
            row_bytes = _row_bytes_of(log, frame.columns, format)
        else:
            if as_of is not None:
                msg = f"could not {attempt}: found as_of={shown(as_of)} beside a DataFrame"
                raise InvalidUsageError(msg, hint="leave it out: a DataFrame has the time that it was made for")
            frame = _chosen(target, where, select, attempt)
            row_bytes = sum(map(_width, frame.schema.fields))
        if format == "csv":
            _check_plain(frame, attempt)
        most = max(int(max_file_bytes / max(row_bytes, 1e-3)), 1)
        root = spark_root(spark, storage)
        session = frame.sparkSession
        made = begin(storage, attempt, home_of(session))
        for token in check_empty(storage, attempt, own=True):  # one per dead attempt, mostly none
            end_tagged(session, tag_of(token))
        try:
            with tagged(session, made.tag):
                written = _written(frame, f"{root}/{made.folder}", format, most)
        except Exception as error:
            if isinstance(error, PySparkException):
                raise  # of the rows: Spark says which
            if isinstance(error, _UncountedError):
                msg = f"could not {attempt}: found {error}"
                hint = "copy again, into another folder: Spark has dropped the event that holds the count"
                raise StorageError(msg, hint=hint, context={"path": storage.uri}) from error
            causes = _CAUSE.findall(str(error)) or [described(error).partition("\n")[0]]
            msg = f"could not {attempt}: found {shown(causes[-1])}"
            raise StorageError(
                msg,
                hint=f"check space and permissions, then delete the folder: {INCOMPLETE} stays in it",
                context={"path": storage.uri},
            ) from error
        except BaseException:  # this process ends, and would leave the job behind
            end_tagged(session, made.tag)
            raise
        return finish(made, written)


def _check_arguments(attempt: str, format_: object, max_file_bytes: object) -> None:
    if format_ not in get_args(Format):
        msg = f"could not {attempt}: found format={shown(format_)}"
        raise InvalidUsageError(msg, hint="say format='parquet' or format='csv'")
    whole = isinstance(max_file_bytes, int) and not isinstance(max_file_bytes, bool)
    if not whole or not _LEAST_BYTES <= max_file_bytes <= _MOST_BYTES:  # type: ignore[operator]
        msg = f"could not {attempt}: found max_file_bytes={shown(max_file_bytes)}"
        raise InvalidUsageError(msg, hint=f"give a number of bytes from {_LEAST_BYTES} to {_MOST_BYTES}")


def _chosen(frame: DataFrame, where: str | None, select: Sequence[str] | None, attempt: str) -> DataFrame:
    """Return the rows and columns that are wanted."""
    known = frame.columns
    if where is not None:
        if not isinstance(where, str):
            msg = f"could not {attempt}: found where={shown(where)}"
            raise InvalidUsageError(msg, hint="give a condition as a text")
        check_settings(frame.sparkSession)
        schema = arrow_schema(frame.schema)
        types = dict(zip(schema.names, schema.types, strict=True))
        frame = frame.where(parse_predicate(where, types, what=attempt).sql)
    if select is None:
        return frame
    names = [select] if isinstance(select, str) else list(select)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) < len(names):
        found = f"no column {unknown[0]!r}" if unknown else f"select={shown(names)}"
        msg = f"could not {attempt}: found {found}"
        raise SchemaMismatchError(
            msg, hint=f"choose each column once, among {shown(known)}", context={"columns": unknown}
        )
    return frame.select(*map(quoted, names))


def _check_plain(frame: DataFrame, attempt: str) -> None:
    """Refuse columns that have no form in CSV which all readers share."""
    wrong = [each for each in frame.schema.fields if not isinstance(each.dataType, _PLAIN)]
    if wrong:
        kind = wrong[0].dataType.simpleString()
        msg = f"could not {attempt}: found column {wrong[0].name!r} of type {kind}, which CSV has no form for"
        raise SchemaMismatchError(
            msg, hint="select other columns, or copy as Parquet", context={"columns": [each.name for each in wrong]}
        )


def _width(field: StructField) -> float:
    """Return about how many bytes a value takes, by its type alone: nothing is computed for it."""
    return 8.0 if isinstance(field.dataType, (NumericType, BooleanType, DateType)) else 24.0


def _check_outside(log: Log, storage: TableStorage, attempt: str) -> None:
    """Refuse a folder of the log itself: what cleans the log up may delete what is in it."""
    options = {storage.uri: storage.options, log.path: log.core.storage_options}
    one, other = (
        os.path.realpath(each.uri) if each.local else identity(each.uri, options.get(each.uri))
        for each in (storage, log.core.storage)
    )
    if f"{one}/".startswith(f"{other.rstrip('/')}/"):
        msg = f"could not {attempt}: found a folder inside of log {log.path!r}"
        raise InvalidUsageError(msg, hint="give a folder of its own", context={"path": log.path})


# The job ----------------------------------------------------------------------------------------------


def _written(frame: DataFrame, root: str, format_: Format, most: int) -> Written:
    """Let Spark write into a folder that is not there; return what the job counted."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    # Right before the files: a task that is repeated counts once.
    seen, n_rows = Observation(), F.count(F.lit(1)).alias("n")
    if format_ == "csv":  # has no footers: which tasks had rows is noted, by the first row of each
        is_first = F.monotonically_increasing_id() % _ROWS_OF_A_TASK == 0
        tasks = frame.withColumn(_TASK, F.when(is_first, F.spark_partition_id()))
        counted = tasks.observe(seen, n_rows, F.collect_set(quoted(_TASK)).alias("tasks")).drop(_TASK)
    else:
        counted = frame.observe(seen, n_rows)
    writer = counted.write.mode("error").options(**_OWN).option("maxRecordsPerFile", most)
    if format_ == "csv":
        writer.options(**_CSV).csv(root)
    else:
        writer.parquet(root)
    found = observed(seen)
    if "n" not in found:
        msg = "no count of the rows written"
        raise _UncountedError(msg)
    return Written(int(found["n"]), frozenset(map(int, found["tasks"])) if format_ == "csv" else None)


class _UncountedError(Exception):
    """Spark has dropped the event that holds the count: its listeners are too slow."""


# How long rows are ------------------------------------------------------------------------------------


def _row_bytes_of(log: Log, names: Sequence[str], format_: Format) -> float:
    """Return about how many bytes a row of some columns takes, by the largest files of a log."""
    index = log.core.files()
    largest = np.argsort(index.sizes)[::-1][:_SAMPLE_FILES]
    paths = index.paths[largest].tolist()
    if paths and format_ == "csv":
        with log.core.storage.open_input(paths[0]) as file:
            batches = pq.ParquetFile(file).iter_batches(_SAMPLE_ROWS, columns=list(names))
            return next((_csv_bytes(pa.Table.from_batches([each])) for each in batches), 1.0)
    n_bytes, n_rows = 0, 0
    for path in paths:  # three at most
        with log.core.storage.open_input(path) as file:
            footer = pq.read_metadata(file)
        n_rows += footer.num_rows
        for group in (footer.row_group(at) for at in range(footer.num_row_groups)):
            parts = [group.column(at) for at in range(group.num_columns)]
            n_bytes += sum(each.total_compressed_size for each in parts if each.path_in_schema.split(".")[0] in names)
    return n_bytes / n_rows if n_rows else 1.0


def _csv_bytes(rows: pa.Table) -> float:
    """Return about how many bytes a row takes as CSV; a value that Arrow does not write as such counts 30."""
    shown_as = [
        column
        if pa.types.is_primitive(column.type) or pa.types.is_string(column.type)
        else pa.repeat("x" * 30, len(rows))
        for column in rows.columns
    ]
    sink = pa.BufferOutputStream()
    pv.write_csv(pa.table(shown_as, names=rows.column_names), sink)
    return float(sink.tell()) / max(len(rows), 1)
