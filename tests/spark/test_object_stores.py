"""Logs behind URLs that Spark itself is to read or write, without a connector of Hadoop."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import spark_timely
from spark_timely.errors import InvalidOptionError
from spark_timely.log.store.cloud import open_storage
from spark_timely.spark.frames.scan import spark_root

pytestmark = pytest.mark.spark

NOBODY = {"aws_region": "us-east-1", "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true"}


@pytest.mark.parametrize("dialect", ["timely", "cdcv2"])
def test_capture_without_a_file_system_is_refused_first(spark: SparkSession, dialect: str) -> None:
    data = spark.createDataFrame([(1, 1)], "t long, v long")
    with pytest.raises(
        InvalidOptionError, match=r"no file system of Hadoop for 's3'.*hadoop-aws.*fs\.s3a\.access\.key"
    ):
        spark_timely.capture(data, 0, path="s3://bucket/log", app_id="x", dialect=dialect, storage_options=NOBODY)


@pytest.mark.parametrize(
    ("url", "package"), [("s3a://b/x", "hadoop-aws"), ("abfss://c@a.dfs.core.windows.net/x", "hadoop-azure")]
)
def test_package_of_the_store_is_named(spark: SparkSession, url: str, package: str) -> None:
    with pytest.raises(InvalidOptionError, match=package):
        spark_root(spark, open_storage(url))


def test_local_log_is_a_file_for_spark(spark: SparkSession) -> None:
    assert spark_root(spark, open_storage("/data/log")) == "file:///data/log"
