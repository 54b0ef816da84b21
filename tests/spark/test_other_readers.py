"""The log as a plain table: through delta-spark's SQL, pyarrow and deltalake, progress rows included."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable

import spark_timely
from spark_timely.errors import InvalidUsageError, LogFormatError, LogMissingError
from spark_timely.spark import table_path
from spark_timely.testing import assert_same_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = pa.table(
    {
        "t": pa.array([1, 2, 2, 4], pa.timestamp("us", tz="UTC")),
        "word": ["moin", None, "tach", "servus"],
        "n": pa.array([1, 2, 3, None], pa.int32()),
    }
)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sql.md"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a log of two streams with messages, progress and nothing else."""
    folder = tmp_path_factory.mktemp("log with spaces") / "log"
    log = spark_timely.create_log(str(folder), ROWS.schema, times=("timestamp",), streams=2)
    for name, rows in (("a", ROWS.slice(0, 2)), ("b", ROWS.slice(2))):
        writer = log.writer(stream=name, owner=name)
        writer.append(rows.append_column("_time", rows["t"]))
        writer.close()
    return str(folder)


def documented_filter() -> str:
    """Return the SQL filter that the documentation gives to plain readers."""
    found = re.search(r"WHERE (_event = 'message')", PAGE.read_text(encoding="utf-8"))
    assert found, "the page documents no filter for plain readers"
    return found.group(1)


def test_delta_sql_reads_messages_and_progress(spark: SparkSession, path: str) -> None:
    table = spark.sql(f"SELECT _event, count(*) AS n FROM delta.`{path}` GROUP BY _event")
    counts = {row["_event"]: row["n"] for row in table.collect()}
    assert counts["message"] == 4
    assert counts["progress"] >= 4
    assert set(counts) <= {"message", "progress", "dead", "since"}


def test_delta_sql_with_the_documented_filter_gives_the_data(spark: SparkSession, path: str) -> None:
    found = spark.sql(f"SELECT t, word, n FROM delta.`{path}` WHERE {documented_filter()}").toArrow()
    assert_same_rows(found, ROWS)


def test_delta_sql_progress_rows_sum_to_the_frontier(spark: SparkSession, path: str) -> None:
    """The counts of every stream, summed from its changes alone, end at zero: the log is complete."""
    query = f"""
        SELECT _stream, _time, sum(_delta) AS held FROM delta.`{path}`
        WHERE _event = 'progress' GROUP BY _stream, _time HAVING sum(_delta) != 0
    """
    held = {(row["_stream"], row["held"]) for row in spark.sql(query).collect()}
    assert {name for name, _ in held} <= {"#open", "a", "b"}
    assert spark_timely.open_log(path).frontier().is_empty


def test_delta_sql_schema_has_our_columns_first(spark: SparkSession, path: str) -> None:
    names = spark.table(f"delta.`{path}`").columns
    first = names.index("t")
    assert all(name.startswith("_") for name in names[:first])
    assert names[first:] == ["t", "word", "n"]
    assert first + 1 <= 32, "Delta keeps statistics for the first 32 columns only"


def test_log_in_the_catalog_is_written_and_read_by_name(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = str(tmp_path / "100% a log ü")
    log = spark_timely.create_log(folder, ROWS.schema, times=("timestamp",))
    spark.sql("CREATE SCHEMA IF NOT EXISTS raw_logs")
    request.addfinalizer(lambda: spark.sql("DROP SCHEMA raw_logs CASCADE"))
    spark.sql(f"CREATE TABLE raw_logs.`by_name` USING delta LOCATION '{folder}'")
    for name in ("raw_logs.by_name", "spark_catalog.raw_logs.`by_name`"):
        assert table_path(spark, name) == log.path
    writer = spark_timely.open_log(table_path(spark, "raw_logs.by_name")).writer(owner="me")
    writer.append(ROWS.append_column("_time", ROWS["t"]))
    writer.close()
    replayed = spark.read.format("timely").load(table_path(spark, "raw_logs.by_name"))
    assert_same_rows(replayed.toArrow(), ROWS)
    named = spark.sql(f"SELECT t, word, n FROM raw_logs.by_name WHERE {documented_filter()}")
    assert_df_equality(named, replayed, ignore_row_order=True, ignore_nullable=True)

    spark.sql("CREATE TABLE raw_logs.files (n INT) USING parquet")
    with pytest.raises(LogMissingError, match=r"could not use table 'raw_logs.files' as a log: found format='parquet'"):
        table_path(spark, "raw_logs.files")
    with pytest.raises(
        LogMissingError, match=r"could not look up table 'raw_logs.nope': found .*TABLE_OR_VIEW_NOT_FOUND"
    ):
        table_path(spark, "raw_logs.nope")
    for name in ("", "a; DROP TABLE b", "a.b.c.d", "`a", "a b"):
        with pytest.raises(InvalidUsageError, match="could not look up a table: found name="):
            table_path(spark, name)


def test_table_whose_commits_are_its_catalogs_is_refused() -> None:
    detail = {"format": "delta", "tableFeatures": ["appendOnly", "catalogManaged"], "location": "s3://managed/x"}
    session = SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: [detail]))
    with pytest.raises(
        LogFormatError, match=r"found table features \['catalogManaged'\], its commits are its catalog's"
    ):
        table_path(cast("SparkSession", session), "main.raw.managed")


def test_deltalake_and_pyarrow_read_the_same_rows(path: str) -> None:
    table = DeltaTable(path).to_pyarrow_dataset().to_table()
    messages = table.filter(pc.equal(table["_event"], "message"))
    assert_same_rows(messages.select(["t", "word", "n"]), ROWS)
    progress = table.filter(pc.equal(table["_event"], "progress"))
    assert progress.num_rows >= 4
    for name in ("t", "word", "n"):
        assert progress[name].null_count == progress.num_rows, "a progress row carries no payload"
    assert Counter(messages["_stream"].to_pylist()) == {"a": 2, "b": 2}


def test_deltalake_partition_filter_gives_only_the_data(path: str) -> None:
    found = DeltaTable(path).to_pyarrow_table(filters=[("_event", "=", "message")], columns=["t", "word", "n"])
    assert_same_rows(found, ROWS)


def test_pandas_reads_the_messages(path: str) -> None:
    frame = DeltaTable(path).to_pandas(filters=[("_event", "=", "message")], columns=["t", "word"])
    assert len(frame) == 4
    assert str(frame["t"].dt.tz) == "UTC"


def test_delta_stream_reads_the_log_as_a_source(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """A plain Delta stream over the log sees every message once: our commits only append."""
    query = (
        spark.readStream.format("delta")
        .load(path)
        .where("_event = 'message'")
        .select("t", "word", "n")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).toArrow(), ROWS)


def test_log_written_on_after_delta_spark_touched_it_stays_a_log(spark: SparkSession, tmp_path: Path) -> None:
    """OPTIMIZE, a property, a comment: the log goes on as before, its facts intact."""
    folder = str(tmp_path / "log")
    log = spark_timely.create_log(folder, ROWS.schema, times=("timestamp",))
    writer = log.writer(owner="me")
    writer.append(ROWS.append_column("_time", ROWS["t"]))
    spark.sql(f"OPTIMIZE delta.`{folder}`")
    spark.sql(f"COMMENT ON TABLE delta.`{folder}` IS 'edited by people'")
    writer = spark_timely.open_log(folder).writer(owner="me")
    writer.append(ROWS.append_column("_time", ROWS["t"]))
    writer.close()
    log = spark_timely.open_log(folder)
    assert log.frontier().is_empty
    assert_same_rows(log.messages().select(["t", "word", "n"]), pa.concat_tables([ROWS, ROWS]))
    assert log.verify().legal
