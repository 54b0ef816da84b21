"""The rows of a micro-batch as a DataFrame over Spark's own Parquet scan: no row crosses into Python.

`replay` makes its DataFrames here; in foreachBatch of a query that reads ``content=splits`` users call
`spark_timely.spark.batch_frame`. The splits of a micro-batch say which files and which range of times or commits it
holds. They are bookkeeping: a few small rows, looked at in the driver. The range becomes a condition on the rows, so
the pieces that splits cut files into do not matter here, as long as all of them are there.

Invariants
----------
1. A row is in the frame exactly when the tasks of ``format("timely")`` would give it out, with the same values.
2. The columns are those of the layout: names, order, types, nulls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from spark_timely.datasource.reader import missing_file, warn_of_missing_file
from spark_timely.datasource.splits import LAYOUT_KEY, ReplayLayout, Split, split_from
from spark_timely.errors import InvalidUsageError
from spark_timely.log.store.cloud import open_storage
from spark_timely.log.store.storage import checked_options
from spark_timely.protocol.replay import WHOLE
from spark_timely.spark.base.schema import spark_schema
from spark_timely.spark.frames.collection import consolidate
from spark_timely.spark.frames.scan import beyond, literal, quoted, scan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from spark_timely.log.store.storage import TableStorage


_COMMIT: Final = (pa.field("_stream", pa.string()), pa.field("_seq", pa.int64()))
_DIFF: Final = pa.field("_diff", pa.int64())


def batch_frame(
    spark: SparkSession, splits: DataFrame, /, *, storage_options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return the rows behind the splits of a micro-batch, read by Spark's own Parquet scan.

    For ``foreachBatch`` of a query with ``content=splits``: rows stay in the JVM, where ``format("timely")`` moves
    them through Python. The rows are the same.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect: ``splits.sparkSession``.
    splits : pyspark.sql.DataFrame
        All splits of one micro-batch, as ``foreachBatch`` gives them, or of one batch read.
    storage_options : mapping of str to str, optional
        Settings and credentials of a cloud store, for looks at files: splits hold none. Spark's own scan takes those
        of the session.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns that ``format("timely")`` gives with ``includeTime``. What is not null in the log is not null here,
        but for what is inside of arrays, maps and structs. The option `workers` has no effect: Spark cuts the scan.

    Raises
    ------
    InvalidUsageError
        If these are no splits, or not all splits of one micro-batch. If the query has a condition, and the session
        ``spark.sql.ansi.enabled=false``. Of contents (`asOf`), if a column is or contains
        a map.
    DataLossError
        If a file is missing. Unless the query has ``failOnDataLoss=false``: then its rows are left out.

    Notes
    -----
    Under ``delivery=arrival`` the rows are sorted by stream, commit and time, all of the micro-batch; contents
    (`asOf`) are consolidated over all splits.

    Cost: one job that collects the splits, a few hundred bytes each; nothing is read before the frame is used. A file
    that is lost between this call and its use fails with Spark's own error.

    Examples
    --------
    ::

        from spark_timely.spark import batch_frame

        def load(splits, batch_id):
            rows = batch_frame(splits.sparkSession, splits)
            rows.write.mode("append").parquet("/data/copy")

        splits = spark.readStream.format("timely").option("content", "splits").load("/data/log")
        splits.writeStream.foreachBatch(load).option("checkpointLocation", "/data/checkpoint").start()
    """
    if "_plan" not in splits.columns:
        msg = f"could not make a frame of splits: found columns={splits.columns!r:.200}"
        raise InvalidUsageError(msg, hint="read the log with option content=splits, and keep its columns")
    found = [split_from(row["_plan"]) for row in splits.select("_plan").collect()]
    if found:
        return frame_of_splits(spark, [split for split, _ in found], found[0][1], storage_options)
    text = splits.schema["_plan"].metadata.get(LAYOUT_KEY)
    if text is None:
        msg = "could not make a frame of splits: found no split, and no layout with the column '_plan'"
        raise InvalidUsageError(msg, hint="pass the DataFrame as foreachBatch gives it")
    return frame_of_splits(spark, [], ReplayLayout.from_json(json.loads(text)), storage_options)


def frame_of_splits(
    spark: SparkSession,
    splits: Sequence[Split],
    layout: ReplayLayout,
    storage_options: Mapping[str, str] | None = None,
    /,
) -> DataFrame:
    """Return the rows of all splits of a micro-batch.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    splits : sequence of Split
        None is a micro-batch without rows.
    layout : ReplayLayout
        Columns to give out.
    storage_options : mapping, optional
        For looks at files.
    """
    _check_whole(splits)
    ranges: dict[object, list[Split]] = {}
    for split in splits:
        key = (split.root, split.lower, split.upper, split.as_of, split.streams, split.consolidate)
        ranges.setdefault(key, []).append(split)
    _check_one(sorted(ranges.values(), key=lambda each: each[0].number))
    options = checked_options(storage_options, *dict.fromkeys(split.root for split in splits)) or None
    found = [_frame(spark, each, layout, open_storage(each[0].root, options)) for each in ranges.values()]
    frames = [frame for frame in found if frame is not None]
    if not frames:
        return spark.createDataFrame([], spark_schema(layout.schema))
    return reduce(lambda one, other: one.union(other), frames)


_ALL: Final = "pass all splits of one micro-batch, each once, as foreachBatch gives them"


def _check_whole(splits: Sequence[Split]) -> None:
    """Refuse a part of a micro-batch: the splits that are left out may hold pieces of the same files."""
    if not splits:
        return
    numbers, wanted = sorted(split.number for split in splits), splits[0].n_splits
    if numbers != list(range(wanted)) or {split.n_splits for split in splits} != {wanted}:
        msg = f"could not make a frame of splits: found splits {numbers!r:.100} of a micro-batch of {wanted}"
        raise InvalidUsageError(msg, hint=_ALL)


def _check_one(ranges: Sequence[Sequence[Split]]) -> None:
    """Refuse splits of several reads whose numbers happen to fit together."""
    heads = [splits[0] for splits in ranges]
    # A batch read as of a time has two ranges: the contents, and the changes after them.
    follow = all(one.consolidate and one.upper == other.lower for one, other in pairwise(heads))
    same = {(head.root, head.as_of, head.streams) for head in heads}
    if not follow or len(same) > 1:
        msg = "could not make a frame of splits: found splits of several micro-batches or logs"
        raise InvalidUsageError(msg, hint=_ALL)
    for splits in ranges:
        if splits[0].lower is None or any(split.first or split.last for split in splits):
            continue  # by commits or by times: whole files each
        shares: dict[str, list[tuple[int, int]]] = {}
        for piece in (piece for split in splits for piece in split.pieces):
            shares.setdefault(piece.path, []).append((piece.start, piece.stop))
        for path, found in shares.items():
            ends = [0, *(end for share in sorted(found) for end in share), WHOLE]
            if any(one != other for one, other in zip(ends[::2], ends[1::2], strict=True)):
                msg = f"could not make a frame of splits: found a part of file {path!r}"
                raise InvalidUsageError(msg, hint=_ALL)


def _frame(
    spark: SparkSession, splits: Sequence[Split], layout: ReplayLayout, storage: TableStorage
) -> DataFrame | None:
    """Return the rows of one range; None where it has no files."""
    paths = list(dict.fromkeys(piece.path for split in splits for piece in split.pieces))
    if not layout.fail_on_data_loss:
        there = [path for path in paths if storage.exists(path)]
        for path in sorted(set(paths) - set(there)):
            warn_of_missing_file(splits[0].root, path)
        paths = there
    if not paths:
        return None
    try:
        rows = scan(spark, storage, paths, _stored(layout), skip_missing=not layout.fail_on_data_loss)
        assert rows.schema  # through Connect a missing file is found now
    except AnalysisException as error:
        gone = next((path for path in paths if not storage.exists(path)), None)
        if gone is None:
            raise
        raise missing_file(splits[0].root, gone) from error
    rows = rows.where(_in_range(splits, layout))
    if layout.where is not None:
        check_settings(spark)
        rows = rows.where(layout.where.predicate().sql)
    if splits[0].as_of is not None:
        for name, kind, value in zip(layout.domain.columns, layout.domain.types, splits[0].as_of, strict=True):
            rows = rows.withColumn(name, F.greatest(quoted(name), literal(kind, value)))
    if splits[0].consolidate:
        rows = _contents(rows, layout)
    if splits[0].commits is not None:
        rows = rows.orderBy("_stream", "_seq", *(quoted(name) for name in layout.domain.columns))
    wanted = spark_schema(layout.schema)
    return rows.select(*(_shaped(field.name, field.dataType, nullable=field.nullable) for field in wanted))


def check_settings(spark: SparkSession) -> None:
    """Refuse a condition where Spark would take numbers that do not fit for other numbers."""
    if str(spark.conf.get("spark.sql.ansi.enabled")).lower() != "true":
        msg = "could not let Spark choose rows: found a condition 'where', and spark.sql.ansi.enabled=false"
        raise InvalidUsageError(
            msg, hint="set it to true in this session: else numbers that do not fit are other numbers"
        )


def _stored(layout: ReplayLayout) -> pa.Schema:
    """Return the columns that are read: those that are wanted, and what rows are chosen by."""
    fields = {
        name: pa.field(name, kind.arrow) for name, kind in zip(layout.domain.columns, layout.domain.types, strict=True)
    }
    fields |= {field.name: field for field in _COMMIT}
    if layout.collection:
        fields[_DIFF.name] = _DIFF
    needed = () if layout.where is None else layout.where.schema
    fields |= {field.name: field.with_nullable(True) for field in (*layout.schema, *needed)}  # noqa: FBT003
    return pa.schema(list(fields.values()))


def _in_range(splits: Sequence[Split], layout: ReplayLayout) -> Column:
    """Return the condition of the range that splits have in common."""
    one = splits[0]
    found = F.lit(True)  # noqa: FBT003 - as Spark has it
    if one.lower is not None and one.upper is not None:
        low = beyond(layout.domain, one.lower, moved_to=one.as_of)
        found = low & ~beyond(layout.domain, one.upper, moved_to=one.as_of)
    if one.streams is not None:
        found = found & F.col("_stream").isin(list(one.streams))
    if one.commits is not None:
        found = found & _of_commits(commit for split in splits for commit in split.commits or ())
    return found


def _of_commits(commits: Iterable[tuple[str, int, int]]) -> Column:
    """Return the condition that a row is of one of some commits, per stream from a first to before a last."""
    streams: dict[tuple[int, int], dict[str, None]] = {}
    for stream, first, last in commits:
        streams.setdefault((first, last), {})[stream] = None
    parts = [
        F.col("_stream").isin(list(names)) & (F.col("_seq") >= first) & (F.col("_seq") < last)
        for (first, last), names in streams.items()
    ]
    return _either(parts)


def _either(parts: Sequence[Column]) -> Column:
    """Return whether one of some conditions holds; as a tree, for a chain of thousands is too deep for Spark."""
    if not parts:
        return F.lit(False)  # noqa: FBT003 - as Spark has it
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return _either(parts[:half]) | _either(parts[half:])


def _contents(rows: DataFrame, layout: ReplayLayout) -> DataFrame:
    """Return equal rows once, with the sum of their diffs; they come from no one commit."""
    commit = [field.name for field in _COMMIT]
    names = [name for name in layout.schema.names if name not in (*commit, _DIFF.name)]
    summed = consolidate(rows.select(*(quoted(name) for name in (*names, _DIFF.name))))
    return summed.withColumns({"_stream": F.lit(None).cast("string"), "_seq": F.lit(None).cast("bigint")})


def _shaped(name: str, kind: DataType, *, nullable: bool) -> Column:
    """Return a column as the layout has it. A scan says that all may be null: what is not, gets a value in place of it.

    No null is there to be replaced: the log refuses one in such a column.
    """
    column = quoted(name)
    if not nullable:
        value = _value_of(kind)
        column = column if value is None else F.coalesce(column, value)
    return column.cast(kind).alias(name)


def _value_of(kind: DataType) -> Column | None:
    """Return some value of a type that is not null; None for a nested type."""
    text = kind.simpleString()
    if text in ("string", "binary"):
        return F.lit("").cast(kind)
    if text == "boolean":
        return F.lit(False)  # noqa: FBT003 - as Spark has it
    if text == "date":
        return F.date_from_unix_date(F.lit(0))
    if text == "timestamp":
        return F.timestamp_micros(F.lit(0))
    if text == "timestamp_ntz":
        return F.expr("timestamp_ntz'1970-01-01 00:00:00'")
    if isinstance(kind, DecimalType):
        return F.lit(Decimal(0).scaleb(-kind.scale)).cast(kind)
    if text in ("tinyint", "smallint", "int", "bigint", "float", "double"):
        return F.lit(0).cast(kind)
    return None
