"""Copies of contents in plain files, Parquet or CSV, written by Spark: all of them or visibly not.

Invariants
----------
1. A folder with files has the file ``INCOMPLETE`` from before the first of them is begun until all of them are there,
   counted and on the disk. So whatever is killed, and when, no folder looks finished that is not.
2. ``INCOMPLETE`` is created exclusively, and the folder is looked into again after that: of several that copy into one
   folder at once exactly one continues, and none adds to what another has finished.
3. What can be refused is refused before anything is written.
4. Rows are counted where they are written, in the same job: no second reading, and none is sent to the driver.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

from spark_timely.answers.timestamp import opened_targets
from spark_timely.errors import (
    InvalidUsageError,
    RolledBackError,
    SchemaMismatchError,
    StorageError,
    described,
    shown,
)
from spark_timely.log import Log
from spark_timely.log.files.parquet import side_by_side
from spark_timely.log.store.cloud import CloudStorage, open_storage
from spark_timely.log.store.keys import own_options
from spark_timely.log.store.storage import checked_options, normal_path
from spark_timely.log.store.urls import identity
from spark_timely.predicate import parse_predicate
from spark_timely.spark.at_one_time import at_one_time, contents_frame
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.spark.batch_frame import check_settings
from spark_timely.spark.scan import quoted, spark_root
from spark_timely.spark.seen import StepViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

    from spark_timely.log.store.storage import TableStorage
    from spark_timely.time.domain import TimeLike

__all__ = ["INCOMPLETE", "Format", "copy_to"]

INCOMPLETE: Final = "INCOMPLETE"
"""The file that a folder has while it is written, and after that was cut short."""

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
_PLAIN: Final = (
    BooleanType, CharType, DateType, NumericType, StringType, TimestampNTZType, TimestampType, VarcharType
)  # fmt: skip
# Hadoop's own sign that a job is done would be there before `INCOMPLETE` is gone.
_UNSIGNED: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


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

    While the files are written the folder has a file ``INCOMPLETE``. It goes when all of them are there.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    target : path, Log or DataFrame
        A collection log: its contents, each row as often as it is contained; a stream log: its messages up to the
        time; a DataFrame, such as `sql` gives: its rows.
    folder : path or URL
        Where Spark's executors can write. It may not be there yet; nothing may be in it.
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
        If the folder has anything in it, or somebody copies into it; or an argument is wrong.
    SchemaMismatchError
        If there is no such column, or CSV cannot have it: arrays, maps, structs, binary.
    SinceViolationError, NotBeyondError, LogMissingError
        As of `sql`.
    StorageError
        If the folder cannot be written.

    Notes
    -----
    If the job fails, ``INCOMPLETE`` and what was written stay: delete the folder, and copy again.

    Cost: one job of Spark, as its own writer. Rows of Parquet are counted from footers, of CSV by the job's own
    counter.

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
    _check_empty(storage, attempt)
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
        token = _begin(storage, attempt)
        try:
            n_rows = _written(frame, root, format, most)
        except Exception as error:
            if isinstance(error, PySparkException):
                raise  # of the rows: Spark says which
            causes = _CAUSE.findall(str(error)) or [described(error).partition("\n")[0]]
            msg = f"could not {attempt}: found {shown(causes[-1])}"
            raise StorageError(
                msg,
                hint=f"check space and permissions, then delete the folder: {INCOMPLETE} stays in it",
                context={"path": storage.uri},
            ) from error
        return _finish(storage, attempt, token, n_rows)


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


# The folder -------------------------------------------------------------------------------------------


def _check_empty(storage: TableStorage, attempt: str, *, but: str | None = None) -> None:
    """Refuse a folder with anything in it, but for one name."""
    names = [name for name in storage.names() if name != but]
    if not names and not (storage.local and os.path.lexists(storage.uri) and not os.path.isdir(storage.uri)):
        return
    if INCOMPLETE in names:
        found, hint = f"{INCOMPLETE} in it", "wait for the copy that runs; if it was cut short, delete the folder"
    else:
        other = f"a link to {shown(os.readlink(storage.uri))}" if os.path.islink(storage.uri) else "a file"
        found, hint = f"{shown(names[:5])} in it" if names else other, "give a folder that is empty or not there"
    msg = f"could not {attempt}: found {found}"
    raise InvalidUsageError(msg, hint=hint, context={"path": storage.uri})


def _check_outside(log: Log, storage: TableStorage, attempt: str) -> None:
    """Refuse a folder of the log itself: what cleans the log up may delete what is in it."""
    options = {storage.uri: storage.options, log.path: log.storage_options}
    one, other = (
        os.path.realpath(each.uri) if each.local else identity(each.uri, options.get(each.uri))
        for each in (storage, log.storage)
    )
    if f"{one}/".startswith(f"{other.rstrip('/')}/"):
        msg = f"could not {attempt}: found a folder inside of log {log.path!r}"
        raise InvalidUsageError(msg, hint="give a folder of its own", context={"path": log.path})


def _begin(storage: TableStorage, attempt: str) -> bytes:
    """Create `INCOMPLETE`, as the only one who does, and return what is in it (invariant 2)."""
    token = json.dumps({"copy": uuid.uuid4().hex, "what": "files are written here; it goes when all are there"})
    content = token.encode()
    try:
        if storage.local:
            os.makedirs(storage.uri, exist_ok=True)
            with open(storage.full(INCOMPLETE), "xb") as file:
                file.write(content)
            storage.flush([INCOMPLETE], always=True)
        else:
            storage.put(INCOMPLETE, content, replace=False)
            if isinstance(storage, CloudStorage):
                storage.check_excludes(INCOMPLETE)
    except FileExistsError as error:
        msg = f"could not {attempt}: found {INCOMPLETE} in it, of another copy"
        hint = "wait for the copy that runs; if it was cut short, delete the folder"
        raise InvalidUsageError(msg, hint=hint, context={"path": storage.uri}) from error
    except OSError as error:
        msg = f"could not {attempt}: found {type(error).__name__}: {error.strerror or error}"
        raise StorageError(msg, hint="check the folder and its permissions", context={"path": storage.uri}) from error
    try:
        _check_empty(storage, attempt, but=INCOMPLETE)
    except InvalidUsageError:
        # Another one has finished between the look and now: what is there is its, and whole.
        storage.delete(INCOMPLETE)
        raise
    return content


def _written(frame: DataFrame, root: str, format_: Format, most: int) -> int | None:
    """Let Spark write; return how many rows it counted, where files do not say it."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    if format_ == "parquet":
        frame.write.mode("append").options(**_UNSIGNED).option("maxRecordsPerFile", most).parquet(root)
        return None
    # Right before the files: a task that is repeated counts once.
    seen = Observation()
    counted = frame.observe(seen, F.count(F.lit(1)).alias("n"))
    counted.write.mode("append").options(**_UNSIGNED, **_CSV).option("maxRecordsPerFile", most).csv(root)
    return int(seen.get["n"])


def _finish(storage: TableStorage, attempt: str, token: bytes, n_rows: int | None = None) -> int:
    """Put all files on the disk, count their rows unless that was done, and delete `INCOMPLETE`."""
    storage.forget()
    paths = [name for name in storage.names() if not name.startswith((".", "_")) and name != INCOMPLETE]
    if n_rows is None:
        n_rows = sum(side_by_side(storage, lambda path: _n_rows(storage, path), paths))
    storage.flush([*paths, ""], always=True)
    if storage.find(INCOMPLETE) != token:
        msg = f"could not {attempt}: found that {INCOMPLETE} was deleted or replaced while it was written"
        raise RolledBackError(
            msg, hint="delete the folder, and copy again: another copy may be in it", context={"path": storage.uri}
        )
    storage.delete(INCOMPLETE)
    with suppress(StorageError):  # what comes back after a power cut is the sign, not its absence
        storage.flush([""], always=True)
    return n_rows


def _n_rows(storage: TableStorage, path: str) -> int:
    with storage.open_input(path) as file:
        return int(pq.read_metadata(file).num_rows)


# How long rows are ------------------------------------------------------------------------------------


def _row_bytes_of(log: Log, names: Sequence[str], format_: Format) -> float:
    """Return about how many bytes a row of some columns takes, by the largest files of a log."""
    index = log.files()
    largest = np.argsort(index.sizes)[::-1][:_SAMPLE_FILES]
    paths = index.paths[largest].tolist()
    if paths and format_ == "csv":
        with log.storage.open_input(paths[0]) as file:
            batches = pq.ParquetFile(file).iter_batches(_SAMPLE_ROWS, columns=list(names))
            return next((_csv_bytes(pa.Table.from_batches([each])) for each in batches), 1.0)
    n_bytes, n_rows = 0, 0
    for path in paths:  # three at most
        with log.storage.open_input(path) as file:
            footer = pq.read_metadata(file)
        n_rows += footer.num_rows
        for group in (footer.row_group(at) for at in range(footer.num_row_groups)):  # one turn per row group
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
