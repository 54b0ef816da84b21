"""A Spark session with the settings that matter here, and the registration of the data source."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_timely.errors import InvalidUsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session", "session_settings"]

# Arrow's Java library checks the bounds of each value that it reads; Spark asks only for rows that are there.
_ARROW_FLAGS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def session_settings(*, delta: bool = False) -> dict[str, str]:
    """Return the Spark settings that matter for capture and replay, for sessions made elsewhere.

    Parameters
    ----------
    delta : bool
        Also those that make Spark read and write Delta tables by itself.

    Returns
    -------
    dict of str to str
        Settings to be given before the session starts.

    Notes
    -----
    Unix domain sockets between the JVM and Python workers cut the cost of a task to a third; the path lets
    Spark's Python processes find pyspark compiled (see `worker_start/sitecustomize.py`), which saves most of
    what starting one costs; record batches of 100,000 rows cost less per row than Spark's 10,000; without Arrow's
    checks of bounds and nulls the JVM needs a quarter less time for rows that come from Python; INT96
    timestamps, which Spark's Parquet writer may use, have no statistics; 50 partitions for the state of a
    small Delta table cost seconds.

    Examples
    --------
    >>> session_settings()["spark.python.unix.domain.socket.enabled"]
    'true'
    """
    settings = {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).with_name("worker_start")),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.databricks.delta.snapshotPartitions": "2",
        **dict.fromkeys(_JAVA_OPTIONS, _ARROW_FLAGS),
    }
    if delta:
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return settings


def session(
    app_name: str = "spark-timely", /, *, master: str = "local[*]", delta: bool = False, **conf: str
) -> SparkSession:
    """Return a classic Spark session with `session_settings`, workers on this very Python, and the source registered.

    Parameters
    ----------
    app_name : str
        Name of the application.
    master : str
        Where Spark runs.
    delta : bool
        Whether Spark itself shall know Delta tables; needs the package ``delta-spark``.
    **conf : str
        Further settings; they win over the helper's (Java options are added to its own). Names with
        dots: ``**{"spark.ui.enabled": "false"}``.

    Returns
    -------
    pyspark.sql.SparkSession
        A running session of this process is returned with the settings that can still be changed.

    Raises
    ------
    InvalidUsageError
        If `delta` is asked for and ``delta-spark`` is not installed.

    Notes
    -----
    Spark starts its Python workers as ``python3`` from the path unless ``PYSPARK_PYTHON`` says
    otherwise; here it is this interpreter, where the variable is not set.

    Examples
    --------
    ::

        spark = spark_timely.session("replay", master="local[4]", delta=True)
        spark.readStream.format("timely").load(path)
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in _with_own(session_settings(delta=delta), conf).items():
        builder = builder.config(name, value)
    if delta:
        try:
            from delta import configure_spark_with_delta_pip
        except ImportError as error:
            msg = "could not start a session for Delta tables: found no package delta-spark"
            raise InvalidUsageError(msg, hint="pip install 'spark-timely[spark]', or leave delta=True out") from error
        extra = [name for name in conf.get("spark.jars.packages", "").split(",") if name]
        if not conf.get("spark.jars"):
            builder = configure_spark_with_delta_pip(builder, extra_packages=extra)
    found = builder.getOrCreate()
    register(found)
    return found


def _with_own(settings: dict[str, str], conf: dict[str, str]) -> dict[str, str]:
    """Return the helper's settings and the user's; of two values of one Java option the JVM takes the later."""
    java = {name: f"{settings[name]} {conf[name]}" for name in _JAVA_OPTIONS if name in conf}
    return {**settings, **conf, **java}


def register(spark: SparkSession, /) -> None:
    """Make ``format("timely")`` known to a session, classic or Connect. Doing it again changes nothing.

    Where the package is installed before Spark starts, Spark finds it by itself at the first use of any
    Python data source; registering works in all cases.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession

    Examples
    --------
    ::

        spark_timely.register(spark)
        spark.read.format("timely").load("/data/orders")
    """
    from spark_timely.datasource.source import TimelyDataSource

    spark.dataSource.register(TimelyDataSource)
