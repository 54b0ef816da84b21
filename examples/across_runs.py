"""What is complete when the sources take turns: two nightly runs, three airports, one of them silent in each.

Run it with ``make across-runs``, or ``python examples/across_runs.py``. The flights that left New York on a day
of 2013 come from three airports, each with a log of its own that says how far it is.

1. In the first run (``Trigger.AvailableNow``) EWR and JFK have news, in the second JFK and LGA. A job takes the
   union of the three with ``frontier=source``; a second one reports each hour that is complete, once.
2. Plain Spark does the same with its watermark, which is one number for the whole query: with the policy ``min``
   it never knows that anything is complete, with ``max`` it calls hours final that lack an airport, and drops
   the flights that come later.
3. The picture ``build/across-runs/across_runs.png`` shows who knew what.

Every answer is compared with pandas; the exit code is 1 if ours differs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import across_runs_picture
import flights_data
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from flights import empty_folder
from flights_jobs import start_spark
from flights_report import Report, shown_path

import spark_timely

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AIRPORTS = ("EWR", "JFK", "LGA")
START = pd.Timestamp("2013-06-12 10:00", tz="UTC")
SCHEMA = pa.schema([("hour", pa.timestamp("us", tz="UTC")), ("origin", pa.string()), ("flight", pa.int32())])
# What has come before each run, by airport: flights of the hours before this one. Airports without an entry are silent.
RUNS = (
    {"EWR": START + pd.Timedelta(hours=6), "JFK": START + pd.Timedelta(hours=4)},
    {"JFK": START + pd.Timedelta(hours=10), "LGA": START + pd.Timedelta(hours=8)},
)
Counts = dict[pd.Timestamp, int]


@dataclass
class Airport:
    """One source: a log that is written without Spark, and the same rows as files for plain Spark."""

    name: str
    out: Path
    flights: pd.DataFrame
    upper: pd.Timestamp = START
    log: str = field(init=False)
    inbox: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log, self.inbox = str(self.out / f"{self.name}.log"), self.out / f"{self.name}.files"
        self.inbox.mkdir()
        self.writer = spark_timely.create_log(self.log, SCHEMA, times=("timestamp",)).writer(owner=self.name)

    def send(self, until: pd.Timestamp) -> None:
        """Append the flights up to an hour, and say that no more of them will come."""
        hours = self.flights["hour"]
        rows = self.flights[(self.flights["origin"] == self.name) & (hours >= self.upper) & (hours < until)]
        table = pa.Table.from_pandas(rows[SCHEMA.names], SCHEMA, preserve_index=False)
        self.writer.append(table.append_column("_time", table["hour"]), advance_to=until)
        pq.write_table(table, self.inbox / f"{until:%H}.parquet")
        self.upper = until


def timely_run(spark: SparkSession, airports: list[Airport], out: Path) -> Counts:
    """Take the union of the logs, report the hours that became complete, and return their counts."""
    logs = [spark.readStream.format("timely").load(airport.log) for airport in airports]
    spark_timely.start(
        reduce(lambda left, right: left.union(right), logs),
        path=str(out / "all.log"),
        checkpoint=str(out / "all.checkpoint"),
        trigger="availableNow",
        time_column="hour",
        frontier="source",
    ).await_termination()

    final: Counts = {}

    def report(df: DataFrame, batch_id: int) -> None:
        del batch_id
        final.update(counts_of(df.groupBy("hour").count()))

    complete = spark.readStream.format("timely").load(str(out / "all.log"))
    query = complete.writeStream.foreachBatch(report).option("checkpointLocation", str(out / "report.checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    return final


def plain_run(spark: SparkSession, airports: list[Airport], out: Path, policy: str) -> Counts:
    """Let plain Spark count the flights per hour; return what it calls final."""
    streams = [
        spark.readStream.schema("hour TIMESTAMP, origin STRING, flight INT")
        .parquet(str(airport.inbox))
        .withWatermark("hour", "0 seconds")
        for airport in airports
    ]
    final: Counts = {}

    def report(df: DataFrame, batch_id: int) -> None:
        del batch_id
        final.update(counts_of(df))

    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", policy)
    union = reduce(lambda left, right: left.union(right), streams)
    query = union.groupBy("hour").count().writeStream.outputMode("append").foreachBatch(report)
    query = query.option("checkpointLocation", str(out / f"plain-{policy}.checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")
    return final


def counts_of(df: DataFrame) -> Counts:
    """Return flights per hour; a handful of rows."""
    found = df.toArrow().to_pandas()
    return dict(zip(found["hour"].dt.tz_convert("UTC"), found["count"].astype(int), strict=True))


def tell(spark: SparkSession, out: Path, flights: pd.DataFrame, report: Report) -> dict[str, Counts]:
    """Do both runs in three ways, and compare with pandas; return what each way calls final."""
    airports = [Airport(name, out, flights) for name in AIRPORTS]
    ways: dict[str, Counts] = {"timely": {}, "min": {}, "max": {}}
    names = {"timely": "frontier=source", "min": "plain Spark, policy min", "max": "plain Spark, policy max"}
    for number, news in enumerate(RUNS, 1):
        for name, until in news.items():
            next(airport for airport in airports if airport.name == name).send(until)
        heard = ", ".join(f"{name} until {until:%H:%M}" for name, until in news.items())
        silent = ", ".join(name for name in AIRPORTS if name not in news)
        report.step(number, f"Run {number}: {heard}; nothing from {silent}")
        ways["timely"] |= timely_run(spark, airports, out)
        for policy in ("min", "max"):
            ways[policy] |= plain_run(spark, airports, out, policy)
        # The truth: an hour is complete once every airport has said so.
        upper = min(airport.upper for airport in airports)
        truth = flights[(flights["hour"] >= START) & (flights["hour"] < upper)].groupby("hour").size().to_dict()
        everything = flights.groupby("hour").size().to_dict()
        for way, final in ways.items():
            wrong = sum(count != everything[hour] for hour, count in final.items())
            last = f"up to {max(final):%H:%M}, {wrong} of them wrong" if final else "nothing"
            report.say(f"{names[way]:<24} {len(final):>2} hours final, {last}")
        report.check(f"after run {number} all that is complete, and nothing else, is final", ways["timely"], truth)
        frontier = spark_timely.open_log(out / "all.log").frontier().elements[0][0]
        least = pd.Timestamp(max(frontier, START.value // 1000), unit="us", tz="UTC")
        report.check(f"and the log of all airports says so: {least:%H:%M}", least, upper)
    return ways


def main(arguments: list[str] | None = None) -> int:
    """Run the example; return 0 if all our answers are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "build" / "across-runs", help="where to write"
    )
    out = empty_folder(parser.parse_args(arguments).out.resolve())
    report = Report()
    report.title("spark-timely: complete means complete, also when a job is silent tonight")
    spark = start_spark(out / "spark.log", report)
    try:
        flights = flights_of_the_day()
        ways = tell(spark, out, flights, report)
    finally:
        spark.stop()
    path = across_runs_picture.draw(out / "across_runs.png", flights, RUNS, ways, start=START)
    report.step(3, "The picture", f"{shown_path(path)}: what came when, and who called what final.")
    if report.failed:
        print(f"\nNot as it should be: {'; '.join(report.failed)}")
        return 1
    print("\nOur answers agree with pandas.")
    return 0


def flights_of_the_day() -> pd.DataFrame:
    """Return the flights of the hours that the runs speak of, in UTC."""
    flights = flights_data.load_flights()
    end = max(until for news in RUNS for until in news.values())
    chosen = (flights["hour"] >= START) & (flights["hour"] < end)
    return flights.loc[chosen, SCHEMA.names].reset_index(drop=True)


if __name__ == "__main__":
    sys.exit(main())
