"""Hand completeness on, night after night: three jobs in a row, and a join of two streams that keeps no state.

Run it with ``make handover``, or ``python examples/handover.py``. Every night of a week in June 2013

1. the flights that left New York and have become known are captured (``frontier=bounded``), and the weather reports
   of the airports are appended by a producer without Spark;
2. a job takes the union of both logs with ``frontier=source``: its log is as far as the later of the two allows;
3. a job joins the flights of each hour with the weather of that hour, once, when both are complete. A micro-batch
   holds whole hours, so a plain join inside ``foreachBatch`` is all it takes.

One night the weather is silent, one night the second job does not run, one night no flights come. Then all is done
again in one run, with other limits and workers: the same hash, the same table. The picture
``build/handover/handover.png`` shows how far each log was after each night.

Every answer is compared with pandas; the exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import flights_data
import handover_picture
import numpy as np
import pandas as pd
import pyarrow as pa
from flights import empty_folder
from flights_jobs import start_spark
from flights_report import Report, short, shown_path

import spark_timely

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = pd.Timestamp("2013-06-10", tz="UTC")
DAY = pd.Timedelta(days=1)
LATENESS = DAY  # no flight of these days becomes known later than that after one of a later hour
WEATHER = pa.schema([("hour", pa.timestamp("us", tz="UTC")), ("origin", pa.string()), ("wind", pa.float64())])
LOGS = ("flights", "weather", "both")


@dataclass(frozen=True, slots=True)
class Night:
    """What comes in one night: flights known and weather reported before a moment; None where nothing comes."""

    what: str
    flights: pd.Timestamp | None
    weather: pd.Timestamp | None
    union: bool = True


NIGHTS = (
    Night("all is well", START + 2 * DAY, START + 1.5 * DAY),
    Night("no weather", START + 3 * DAY, None),
    Night("the second job fails", START + 4 * DAY, START + 4 * DAY, union=False),
    Night("no flights", None, START + 5 * DAY),
    Night("all is well", START + 6 * DAY, START + 6 * DAY),
)


@dataclass
class Chain:
    """The jobs in a row, over a folder of their own."""

    spark: SparkSession
    out: Path
    flights: pd.DataFrame
    weather: pd.DataFrame
    limits: dict[str, int] = field(default_factory=dict)
    upper: dict[str, pd.Timestamp] = field(default_factory=lambda: {"flights": START, "weather": START})

    def __post_init__(self) -> None:
        self.inbox = flights_data.Inbox(self.out / "inbox")
        self.inbox.path.mkdir(parents=True)
        log = spark_timely.create_log(self.log("weather"), WEATHER, times=("timestamp",))
        self.station = log.writer(owner="weather station")

    def log(self, name: str) -> str:
        """Return the path of one of the logs."""
        return str(self.out / f"{name}.log")

    def send(self, night: Night) -> None:
        """Bring the night's flights as files, and its weather reports into their log."""
        if night.flights is not None:
            known = self.flights["known_at"]
            rows = self.flights[(known >= self.upper["flights"]) & (known < night.flights)]
            rng = np.random.default_rng(2013)
            self.inbox.deliver(rows, every="1D", name=f"until-{night.flights:%d}", rng=rng)
            self.upper["flights"] = night.flights
        if night.weather is not None:
            hours = self.weather["hour"]
            rows = self.weather[(hours >= self.upper["weather"]) & (hours < night.weather)]
            table = pa.Table.from_pandas(rows, WEATHER, preserve_index=False)
            self.station.append(table.append_column("_time", table["hour"]), advance_to=night.weather)
            self.upper["weather"] = night.weather

    def capture(self) -> None:
        """Job 1: capture what has come into the inbox; no flight is more than a day behind."""
        inbox = self.spark.readStream.schema(flights_data.SPARK_SCHEMA).option("maxFilesPerTrigger", 1)
        spark_timely.start(
            inbox.parquet(str(self.inbox.path)),
            path=self.log("flights"),
            checkpoint=str(self.out / "flights.checkpoint"),
            trigger="availableNow",
            time_column="hour",
            frontier="bounded",
            lateness="1 day",
        ).await_termination()

    def union(self) -> None:
        """Job 2: flights and weather in one log, which is complete as far as both of them are."""
        flights = self._replay("flights").where("NOT cancelled")
        weather = self._replay("weather")
        both = flights.selectExpr("hour", "origin", "'flight' AS kind", "dep_delay AS delay", "NULL AS wind").union(
            weather.selectExpr("hour", "origin", "'weather' AS kind", "NULL AS delay", "wind")
        )
        spark_timely.start(
            both,
            path=self.log("both"),
            checkpoint=str(self.out / "both.checkpoint"),
            trigger="availableNow",
            time_column="hour",
            frontier="source",
        ).await_termination()

    def join(self) -> None:
        """Job 3: delay and wind per hour and airport, each hour once."""
        table = self.out / "table"

        def settle(df: DataFrame, batch_id: int) -> None:
            flights = df.where("kind = 'flight'").groupBy("hour", "origin").agg({"delay": "avg", "*": "count"})
            weather = df.where("kind = 'weather'").select("hour", "origin", "wind")
            joined = flights.toDF("hour", "origin", "delay", "n").join(weather, ["hour", "origin"])
            # A folder per micro-batch: one that is repeated after a crash writes the same again.
            joined.select("hour", "origin", "n", "delay", "wind").write.mode("overwrite").parquet(f"{table}/{batch_id}")

        query = self._replay("both").writeStream.foreachBatch(settle)
        query = query.option("checkpointLocation", str(self.out / "table.checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    def close(self) -> None:
        """Say that nobody will add flights or reports: the end passes on from log to log."""
        spark_timely.open_log(self.log("flights")).close("main")
        self.station.close()

    def final(self) -> pd.DataFrame:
        """Return the table of the last job."""
        folders = [str(path) for path in (self.out / "table").glob("[0-9]*")]
        if not folders:
            return pd.DataFrame(columns=["hour", "origin", "n", "delay", "wind"])
        return tidy(self.spark.read.parquet(*folders).toArrow().to_pandas())

    def frontier(self, name: str) -> pd.Timestamp | None:
        """Return up to which hour a log is complete; None if for ever, the start where it is not made yet."""
        if not (Path(self.log(name)) / "_delta_log").exists():
            return START
        elements = spark_timely.open_log(self.log(name)).frontier().elements
        return max(pd.Timestamp(elements[0][0], unit="us", tz="UTC"), START) if elements else None

    def _replay(self, name: str) -> DataFrame:
        return self.spark.readStream.format("timely").options(**self.limits).load(self.log(name))


def tidy(table: pd.DataFrame) -> pd.DataFrame:
    """Order a table by hour and airport, with times in UTC and sums rounded."""
    rounded = table.assign(delay=table["delay"].astype(float).round(6), n=table["n"].astype(int))
    rounded["hour"] = rounded["hour"].dt.tz_convert("UTC").astype("datetime64[us, UTC]")
    return rounded.sort_values(["hour", "origin"], ignore_index=True)


def truth(flights: pd.DataFrame, weather: pd.DataFrame, *, known: pd.Timestamp, upper: pd.Timestamp) -> pd.DataFrame:
    """Return what pandas makes of the flights known before a moment, and of the hours before another."""
    rows = flights[~flights["cancelled"] & (flights["known_at"] < known) & (flights["hour"] < upper)]
    rows = rows.groupby(["hour", "origin"], as_index=False).agg(n=("flight", "size"), delay=("dep_delay", "mean"))
    return tidy(rows.merge(weather, on=["hour", "origin"]))


def tell(spark: SparkSession, out: Path, report: Report) -> list[dict[str, pd.Timestamp | None]]:
    """Go through the nights, then do all in one run; return how far each log was after each night."""
    flights, weather = week(flights_data.load_flights()), load_weather()
    chain = Chain(spark, out / "nights", flights, weather)
    far: list[dict[str, pd.Timestamp | None]] = []
    for number, night in enumerate(NIGHTS, 1):
        report.step(number, f"Night {number}: {night.what}")
        chain.send(night)
        chain.capture()
        if night.union:
            chain.union()
        chain.join()
        far.append({name: chain.frontier(name) for name in LOGS})
        report.table(["log", "complete before"], [[name, short(far[-1][name] or NIGHTS[-1].weather)] for name in LOGS])
        check_night(chain, far[-1], report, ran=night.union)

    report.step(len(NIGHTS) + 1, "Nobody will add to the first two logs: closing them passes on")
    chain.close()
    chain.union()
    chain.join()
    end = START + 6 * DAY
    far.append({name: chain.frontier(name) for name in LOGS})
    report.check("all three logs are complete", far[-1], dict.fromkeys(LOGS))
    expected = truth(flights, weather, known=end, upper=end + DAY)
    report.check(
        f"all {len(expected):,} hours and airports are final, as in pandas", same(chain, expected), expected=True
    )

    report.step(len(NIGHTS) + 2, "All again in one run: other limits, other workers")
    again = Chain(spark, out / "at-once", flights, weather, {"maxTimesPerTrigger": 50, "workers": 3})
    again.send(Night("all at once", end, end))
    again.capture()
    again.close()
    again.union()
    again.join()
    hashes = {spark_timely.open_log(one.log("both")).verify().canonical_hash for one in (chain, again)}
    report.check(f"one canonical hash: {min(hashes)[:32]}", len(hashes), 1)
    report.check("the same table", same(again, expected), expected=True)
    return far


def check_night(chain: Chain, far: dict[str, pd.Timestamp | None], report: Report, *, ran: bool) -> None:
    """Compare one night's answers with pandas."""
    flights, both = far["flights"], far["both"]
    if flights is None or both is None:
        raise AssertionError
    known = chain.upper["flights"]
    seen = chain.flights[chain.flights["known_at"] < known]
    report.check("flights: a day behind the latest one", flights, seen["hour"].max() - LATENESS)
    if ran:
        report.check("both: as far as the later of the two", both, min(flights, chain.upper["weather"]))
    expected = truth(chain.flights, chain.weather, known=known, upper=both)
    report.check(f"{len(expected):,} hours and airports are final, as in pandas", same(chain, expected), expected=True)


def same(chain: Chain, expected: pd.DataFrame) -> bool:
    """Say whether the last job's table is the expected one: nothing missing, nothing twice, nothing early."""
    found = chain.final()
    return len(found) == len(expected) and bool(len(found) == 0 or found.equals(expected[found.columns]))


def week(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the flights of six days that were known by then."""
    return flights[(flights["hour"] >= START) & (flights["known_at"] < START + 6 * DAY)].reset_index(drop=True)


def load_weather() -> pd.DataFrame:
    """Return wind in miles per hour, per hour and airport; where one has several reports, the strongest."""
    table = pd.read_csv(flights_data.package_data() / "weather.csv")
    table["hour"] = pd.to_datetime(table["time_hour"], utc=True).astype("datetime64[us, UTC]")
    chosen = table[(table["hour"] >= START) & (table["hour"] < START + 6 * DAY)]
    return chosen.groupby(["hour", "origin"], as_index=False).agg(wind=("wind_speed", "max"))


def main(arguments: list[str] | None = None) -> int:
    """Run the example; return 0 if all our answers are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "build" / "handover", help="where to write"
    )
    out = empty_folder(parser.parse_args(arguments).out.resolve())
    report = Report()
    report.title("spark-timely: completeness passes from job to job, night after night")
    spark = start_spark(out / "spark.log", report)
    try:
        far = tell(spark, out, report)
    finally:
        spark.stop()
    path = handover_picture.draw(out / "handover.png", far, [night.what for night in NIGHTS], start=START)
    report.step(len(NIGHTS) + 3, "The picture", f"{shown_path(path)}: how far each log was after each night.")
    if report.failed:
        print(f"\nNot as it should be: {'; '.join(report.failed)}")
        return 1
    print("\nAll answers agree with pandas.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
