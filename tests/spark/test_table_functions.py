"""Frontiers and progress of logs as tables of SQL say what the log says."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import spark_timely
from spark_timely import Log
from spark_timely.spark.table_functions import TimelyFrontiers, TimelyProgress

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of two streams, of which one is complete."""
    log = spark_timely.create_log(tmp_path / "a log", SCHEMA, times=("date",), streams=2)
    days = [dt.date(2013, 6, 12), dt.date(2013, 6, 14)]
    rows = pa.table({"_time": pa.array(days, pa.date32()), "v": pa.array([1, 2], pa.int64())})
    log.writer("one", owner="q1").append(rows, advance_to=dt.date(2013, 6, 15))
    log.writer("two", owner="q2").close()
    log.allow_compaction([dt.date(2013, 6, 13)])
    return log


def test_frontiers_are_those_of_the_log(spark: SparkSession, log: Log) -> None:
    found = spark.sql(f"SELECT * FROM timely_frontiers('{log.path}') ORDER BY stream").collect()
    assert [(row["stream"], row["owner"], json.loads(row["frontier"]), row["complete"]) for row in found] == [
        ("one", "q1", ["2013-06-15"], False),
        ("two", "q2", [], True),
    ]
    for row in found:
        state = log.core.stream(row["stream"])
        assert state is not None
        assert row["seq"] == state.seq
        assert row["at"].timestamp() == pytest.approx(state.at / 1e6)
        assert (json.loads(row["since"]), json.loads(row["upper"])) == (["2013-06-13"], ["2013-06-15"])
        assert (row["kind"], row["times"], row["log_id"]) == ("stream", "date", log.core.log_id)


def test_progress_sums_to_what_is_held(spark: SparkSession, log: Log) -> None:
    found = spark.sql(f"""
        SELECT stream, time, sum(delta) AS held FROM timely_progress('{log.path}') GROUP BY ALL HAVING held <> 0
    """).collect()
    assert [tuple(row) for row in found if row["stream"] == "one"] == [("one", "2013-06-15", 1)]
    n = spark.sql(f"SELECT count(*), max(n_rows) FROM timely_progress('{log.path}') WHERE owner = 'q1'").first()
    assert n is not None
    assert n[1] == 2
    rows = [row for row in log.core.progress().to_pylist() if row["_query"] == "q1"]
    assert n[0] == len(rows)


def test_logs_of_a_table_side_by_side(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    spark_timely.create_log(tmp_path / "other", SCHEMA, times=("long", "long"))
    paths = spark.createDataFrame([(log.path,), (str(tmp_path / "other"),)], "path string")
    paths.createOrReplaceTempView("some_paths")
    found = spark.sql("SELECT path, stream, upper, times FROM some_paths, LATERAL timely_frontiers(path)").collect()
    spark.catalog.dropTempView("some_paths")
    assert len([row for row in found if row["path"] == log.path]) == 2
    assert [row["times"] for row in found if row["path"] != log.path] == ["long, long"]


@pytest.mark.parametrize("function", ["timely_frontiers", "timely_progress"])
def test_path_that_is_no_log_is_an_error(spark: SparkSession, tmp_path: Path, function: str) -> None:
    with pytest.raises(PySparkException, match=r"TIMELY_LOG_MISSING\] could not .*nothing"):
        spark.sql(f"SELECT * FROM {function}('{tmp_path}/nothing')").collect()
    with pytest.raises(PySparkException, match=rf"could not look into a log with {function}: found path=None"):
        spark.sql(f"SELECT * FROM {function}(NULL)").collect()


def test_functions_are_plain_python_too(log: Log) -> None:
    assert len(list(TimelyFrontiers().eval(log.path))) == 2
    assert len(list(TimelyProgress().eval(log.path, {}))) == log.core.progress().num_rows


def test_another_session_of_the_process_has_them(spark: SparkSession, log: Log) -> None:
    for name in ("timely_frontiers", "timely_progress"):
        other = spark.newSession()
        assert other.sql(f"SELECT stream FROM {name}('{log.path}') WHERE stream = 'one'").collect()
    with pytest.raises(AnalysisException, match="no_such_function"):
        spark.newSession().sql("SELECT * FROM no_such_function('timely_frontiers')")
