"""Logs as tables of Spark's catalog: made, read, written to, and dropped without loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.errors import InvalidUsageError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("own_catalog")]

NAME = "timely_table"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Iterator[Log]:
    """Return a log with two closed times, and drop what a test made of it."""
    schema = pa.schema([("t", pa.int64()), ("word", pa.string())])
    log = spark_timely.create_log(tmp_path / "log", schema, times=("long",))
    log.writer(owner="somebody").append(pa.table({"t": [1, 2], "word": ["a", "ü"]}), time_column="t", advance_to=3)
    yield log
    for kind in ("VIEW", "TABLE"):
        spark.sql(f"DROP {kind} IF EXISTS {NAME}_{kind}")


@pytest.mark.parametrize("place", ["OPTIONS (path '{}')", "LOCATION '{}'"])
def test_table_reads_the_log_and_drop_leaves_it(spark: SparkSession, log: Log, place: str) -> None:
    table = f"{NAME}_table"
    spark.sql(f"CREATE TABLE {table} USING timely {place.format(log.path)} COMMENT 'of a log' TBLPROPERTIES ('a'='b')")
    expected = [Row(t=1, word="a"), Row(t=2, word="ü")]
    assert spark.sql(f"SELECT * FROM {table} ORDER BY t").collect() == expected
    assert spark.table(table).where("word = 'ü'").count() == 1
    columns = {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE {table}").collect()}
    assert (columns["t"], columns["word"]) == ("bigint", "string")
    log.writer(owner="somebody").append(pa.table({"t": [3], "word": ["c"]}), time_column="t", advance_to=4)
    assert spark.table(table).count() == 3
    spark.sql(f"DROP TABLE {table}")
    assert log.messages().num_rows == 3
    assert log.verify().legal


def test_table_keeps_the_options_that_it_was_made_with(spark: SparkSession, log: Log) -> None:
    table = f"{NAME}_table"
    spark.sql(f"CREATE TABLE {table} USING timely OPTIONS (path '{log.path}', includeTime 'true', where 't > 1')")
    assert spark.table(table).columns == ["_time", "t", "word"]
    assert [row["word"] for row in spark.table(table).collect()] == ["ü"]


def test_table_in_deltas_catalog_is_refused_with_the_way_out(spark: SparkSession, log: Log) -> None:
    spark.conf.set("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    spark.sql(f"CREATE TABLE {NAME}_table USING timely OPTIONS (path '{log.path}')")
    for read in (lambda: spark.table(f"{NAME}_table"), lambda: spark.sql(f"SELECT * FROM {NAME}_table")):
        with pytest.raises(InvalidUsageError, match=r"catalog of another library.*CREATE TEMPORARY VIEW"):
            read()
    spark.sql(f"CREATE TEMPORARY VIEW {NAME}_view USING timely OPTIONS (path '{log.path}')")
    assert spark.table(f"{NAME}_view").count() == 2


def test_view_reads_the_log(spark: SparkSession, log: Log) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW {NAME}_view USING timely OPTIONS (path '{log.path}')")
    assert spark.sql(f"SELECT count(*) AS n FROM {NAME}_view").collect() == [Row(n=2)]


def test_stream_from_a_table_and_into_it(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    table = f"{NAME}_table"
    spark.sql(f"CREATE TABLE {table} USING timely OPTIONS (path '{log.path}')")
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"t": pa.array([7]), "word": ["z"]}), tmp_path / "in" / "0.parquet")
    rows = spark.readStream.schema("t long, word string").parquet(str(tmp_path / "in"))
    writer = rows.writeStream.format("timely").option("checkpointLocation", str(tmp_path / "in-checkpoint"))
    writer.option("stream", "second").trigger(availableNow=True).toTable(table).awaitTermination()
    assert spark_timely.open_log(log.path).messages(stream="second")["word"].to_pylist() == ["z"]
    out = spark.readStream.table(table).writeStream.format("parquet").trigger(availableNow=True)
    out.option("checkpointLocation", str(tmp_path / "out-checkpoint")).start(str(tmp_path / "out")).awaitTermination()
    assert sorted(pq.read_table(tmp_path / "out")["word"].to_pylist()) == sorted(
        row["word"] for row in spark.table(table).collect()
    )


def test_catalog_keeps_no_credential_of_a_table(spark: SparkSession, log: Log) -> None:
    table, options = f"{NAME}_table", f"(path '{log.path}', `storage.aws_secret_access_key` 'hidden-word')"
    with pytest.raises(AnalysisException, match=r"found option 'storage.aws_secret_access_key' — hint: give") as caught:
        spark.sql(f"CREATE TABLE {table} USING timely OPTIONS {options}")
    assert "hidden-word" not in str(caught.value)
    assert not spark.catalog.tableExists(table)
    with pytest.raises(AnalysisException, match=r"'storage.aws_secret_access_key': found a credential") as caught:
        spark.sql(f"CREATE TEMPORARY VIEW {NAME}_view USING timely OPTIONS {options}")
    assert "hidden-word" not in str(caught.value)


def test_table_keeps_the_name_of_a_credential(spark: SparkSession, log: Log) -> None:
    table = f"{NAME}_table"
    spark_timely.credential(spark, "lake", {"aws_secret_access_key": "hidden-word"})
    spark.sql(f"CREATE TABLE {table} USING timely OPTIONS (path '{log.path}', credential 'lake')")
    assert spark.table(table).count() == 2
    told = [spark.sql(f"{asked} {table}").collect() for asked in ("SHOW CREATE TABLE", "DESCRIBE EXTENDED")]
    assert "hidden-word" not in str(told)


def test_option_that_a_table_cannot_follow_is_refused(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    table = f"{NAME}_table"
    spark.sql(f"CREATE TABLE {table} USING timely OPTIONS (path '{log.path}', includeTime 'true')")
    assert spark.read.options(includeTime="TRUE", upTo="2", path=f"{log.path}/").table(table).count() == 1
    for name, value in {"includeMetadata": "true", "columns": "word", "path": str(tmp_path / "other")}.items():
        with pytest.raises(AnalysisException, match=f"could not read a table of format timely: found {name}="):
            spark.read.option(name, value).table(table).count()


def test_table_is_not_moved_to_another_log(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    table, (other, incoming) = f"{NAME}_table", (tmp_path / "other", tmp_path / "in")
    incoming.mkdir()
    spark.sql(f"CREATE TABLE {table} USING timely OPTIONS (path '{log.path}')")
    move = f"alter\n table {table} SET  location '{other}'"
    with pytest.raises(
        InvalidUsageError, match="found SET LOCATION for a table of format timely — hint: drop the table"
    ):
        spark.sql(move)
    # As another program does it.
    spark._jsparkSession.sql(move)  # type: ignore[attr-defined]
    writer = spark.readStream.schema("t long, word string").parquet(str(incoming)).writeStream.format("timely")
    writer = writer.options(checkpointLocation=str(tmp_path / "checkpoint"), timeColumn="t", frontier="bounded")
    with pytest.raises(InvalidUsageError, match=r"found it at '.*other', its columns name the log '.*log'"):
        writer.toTable(table)


def test_one_writer_goes_into_one_table_after_another(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table, rows = f"{NAME}_table", spark.readStream.schema("t long, word string").parquet(str(tmp_path / "in"))
    other = spark_timely.create_log(tmp_path / "other", log.schema, times=("long",))
    writer = rows.writeStream.format("timely").options(stream="second", timeColumn="t", frontier="bounded")
    writer = writer.trigger(availableNow=True)
    for path in (log.path, other.path):
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.sql(f"CREATE TABLE {table} USING timely OPTIONS (path '{path}')")
        writer.option("checkpointLocation", f"{tmp_path}/checkpoint of {Path(path).name}").toTable(
            table
        ).awaitTermination()


def test_log_that_a_table_names_twice_is_one(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    table = f"{NAME}_table"
    spark.sql(f"CREATE TABLE {table} USING timely OPTIONS (path '{log.path}')")
    link = tmp_path / "link"
    os.symlink(log.path, link)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING timely OPTIONS (path '{link}')")
    assert spark.table(table).count() == 2
