"""A job in a session that is not ours: with Spark's event log, and all that it shows printed."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_timely


def main() -> None:
    """Read by named credentials and by options that are refused, and print what Spark says."""
    folder, secrets = Path(sys.argv[1]), json.load(sys.stdin)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    (folder / "events").mkdir()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"file://{folder}/events")
    builder = builder.config("spark.eventLog.compress", "false")  # so that it can be searched
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
    schema = pa.schema([("t", pa.int64()), ("word", pa.string())])
    log = spark_timely.create_log(folder / "log", schema, times=("long",))
    log.writer(owner="somebody").append(pa.table({"t": [1, 2], "word": ["a", "b"]}), time_column="t", advance_to=3)
    for store, options in secrets.items():  # three
        spark_timely.credential(spark, store, options)
        spark.sql(f"CREATE TABLE of_{store} USING timely OPTIONS (path '{log.path}', credential '{store}')")
        for rows in (
            spark.read.format("timely").option("credential", store).load(log.path),
            spark.table(f"of_{store}"),
        ):
            rows.explain(True)
            assert rows.count() == 2
            try:
                rows.select("wrod")
            except PySparkException:
                traceback.print_exc()
        for statement in ("SHOW CREATE TABLE", "DESCRIBE EXTENDED"):
            sys.stdout.write(f"{spark.sql(f'{statement} of_{store}').collect()}\n")
        for name, value in options.items():  # a few
            try:
                spark.read.format("timely").option(f"storage.{name}", value).load(log.path)
            except spark_timely.errors.InvalidOptionError:
                traceback.print_exc()
        spark.sql(f"DROP TABLE of_{store}")
    sys.stdout.write(f"{spark.sql('SET').collect()} {spark.sparkContext.getConf().getAll()}\n")
    spark.stop()


if __name__ == "__main__":
    main()
