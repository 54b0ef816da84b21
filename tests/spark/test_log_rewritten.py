"""A log whose table delta-spark rewrites: OPTIMIZE, checkpoint, columns, deletion vectors."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.errors import ForeignChangeError, LogFormatError
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.log.reader import frontier_at
from spark_timely.time.antichain import Antichain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAYLOAD = pa.schema([("v", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))])
LONG_NAMES = ("x" * 40 + "a", "x" * 40 + "b")


def facts(log: Log) -> tuple[Any, ...]:
    report = log.verify()
    assert report.legal, report.problems
    states = [
        (s.stream, s.seq, s.counts, s.before, s.owner, s.batch, s.rows, str(s.bounds), s.at, s.reason)
        for s in log.streams().values()
    ]
    return report.digest, report.commits, log.frontier(), states, frontier_at(log.core, seq=2)


def rows(numbers: np.ndarray, names: tuple[str, ...]) -> pa.Table:
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {
            **dict.fromkeys(names, times),
            "v": pa.array(range(len(numbers)), pa.int64()),
            "at": times,
            "tags": pa.array([["a", None]] * len(numbers), pa.list_(pa.string())),
        }
    )


@pytest.mark.parametrize(("arity", "written"), [(1, "INT96"), (2, "TIMESTAMP_MICROS")])
def test_optimize_of_delta_spark_changes_no_answer(
    spark: SparkSession, log_path: str, arity: int, written: str
) -> None:
    log = create_log(log_path, PAYLOAD, times=("timestamp",) * arity, streams=2, merge_every=None)
    low = log.domain.types[0].lo
    writers = [log.writer(name, owner=name) for name in LONG_NAMES]
    # Microseconds that a cut to milliseconds loses, from the year 1700 on.
    steps = [low, -1_500_001] if written == "INT96" else [1_000, 500_001]
    steps += [999_999, 1_000_000, 1_700_000_000_123_456]
    for earlier, later in itertools.pairwise(steps):
        for writer in writers:
            numbers = np.array([earlier, earlier + 1, later - 1, later + 987_654])
            target = Antichain.of((later,) * arity)
            writer.append(rows(numbers, log.domain.columns), advance_to=target)
    before = facts(log)
    setting = "spark.sql.parquet.outputTimestampType"
    usual = spark.conf.get(setting)
    spark.conf.set(setting, written)
    try:
        spark.sql(f"OPTIMIZE delta.`{log_path}`")
    finally:
        spark.conf.set(setting, usual)
    fresh = open_log(log_path, merge_every=None)
    assert len(fresh.core.files()) == 1
    assert len(fresh.core.progress_files()) == 1
    assert facts(fresh) == before
    log.refresh()
    assert facts(log) == before
    file = pq.ParquetFile(f"{log_path}/{fresh.core.files().paths[0]}")
    assert ("INT96" in {c.physical_type for c in map(file.schema.column, range(4))}) == (written == "INT96")
    # No bound of a file is narrower than its rows.
    index = fresh.core.files()
    messages = fresh.messages()
    times = log.domain.from_columns(messages)
    # Spark writes times before 1883 or so with seconds in their offset, which delta-rs does not read.
    assert index.known.all() == (written != "INT96")
    if index.known.all():
        assert (index.min_times.min(axis=0) <= times.min(axis=0)).all()
        assert (index.max_times.max(axis=0) >= times.max(axis=0)).all()
    last = times[np.lexsort(times.T[::-1])][-1]
    assert fresh.messages(lower=Antichain.of(tuple(last.tolist()))).num_rows >= 1
    # It goes on, and our own compaction takes what Spark wrote.
    target = Antichain.of((steps[-1] + 5,) * arity)
    writers[0].append(rows(np.array([steps[-1]]), log.domain.columns), advance_to=target)
    after = facts(log)
    log.compact()
    assert facts(log) == after
    assert facts(open_log(log_path)) == after


def test_column_added_through_spark(spark: SparkSession, log_path: str) -> None:
    log = create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(0,))
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": [1], "v": [1]}), advance_to=1)
    digest = log.verify().digest
    spark.sql(f"ALTER TABLE delta.`{log_path}` ADD COLUMNS (w STRING COMMENT 'new')")
    log.refresh()
    assert log.schema.names == ["v", "w"]
    assert log.verify().digest == digest
    writer.append(pa.table({"_time": [2], "v": [2], "w": ["x"]}), advance_to=3)
    assert open_log(log_path).messages()["w"].to_pylist() == [None, "x"]
    assert open_log(log_path).verify().legal


def test_deletion_vectors_are_refused_until_purged(spark: SparkSession, log_path: str) -> None:
    log = create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(0,), merge_every=None)
    writer = log.writer(owner="me")
    writer.append(pa.table({"_time": range(100), "v": range(100)}), advance_to=50)
    table = f"delta.`{log_path}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert open_log(log_path).messages().num_rows == 100
    whole = open_log(log_path).core.version
    spark.sql(f"DELETE FROM {table} WHERE v = 7")
    with pytest.raises(LogFormatError, match="deletion vectors"):
        open_log(log_path)
    with pytest.raises(LogFormatError, match="deletion vectors"):
        log.refresh()
    spark.sql(f"REORG TABLE {table} APPLY (PURGE)")
    fresh = open_log(log_path)
    # The row is gone.
    with pytest.raises(ForeignChangeError, match=r"\(DELETE\) with 99 messages in the place of 100"):
        fresh.messages()
    assert not fresh.verify().legal
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {whole}")
    assert open_log(log_path).messages().num_rows == 100
    assert open_log(log_path).verify().legal


def test_shallow_clone_is_refused_with_and_without_vectors(spark: SparkSession, log_path: str) -> None:
    log = create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(0,), merge_every=None)
    log.writer(owner="me").append(pa.table({"_time": range(100), "v": range(100)}), advance_to=50)
    made = f"{log_path}-clone"
    spark.sql(f"CREATE TABLE delta.`{made}` SHALLOW CLONE delta.`{log_path}`")
    with pytest.raises(LogFormatError, match=r"found file 'file:.*, which is outside of its folder"):
        open_log(made)
    spark.sql(f"ALTER TABLE delta.`{made}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{made}` WHERE v = 7")
    with pytest.raises(LogFormatError, match="outside of its folder"):
        open_log(made)
    assert log.verify().legal


def test_column_mapping_is_refused(spark: SparkSession, log_path: str) -> None:
    create_log(log_path, pa.schema([("v", pa.int64())]), minimum=(0,))
    spark.sql(
        f"ALTER TABLE delta.`{log_path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    with pytest.raises(LogFormatError, match="column mapping"):
        open_log(log_path)
