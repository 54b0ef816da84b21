"""Capture a year of real flights, replay it three ways, and get one answer.

Run it with ``make demo``, or ``python examples/flights.py``. It

1. orders 336,776 flights that left New York in 2013 as they became known;
2. captures them with ``writeStream.format("timely")``, stopped and restarted, and shows the frontier,
   while a second job prints delays per hour and airport, each number once, when it is final;
3. replays the log with 1, 2 and 8 workers and other limits: one canonical hash;
4. counts how often a job in arrival order has to correct itself;
5. draws the picture ``build/demo/flights.png``.

Every answer is compared with pandas; the exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import flights_data
import flights_picture
import numpy as np
import pandas as pd
import pyarrow as pa
from flights_report import Report

import spark_timely
from spark_timely.capture.canonical import CanonicalState
from spark_timely.cli import main as command_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

LATENESS = pd.Timedelta(hours=12)
MARKER = ".made-by-the-flights-demo"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the capture query: what arrives before it starts, and how much a micro-batch takes."""

    name: str  # of the files that arrive
    title: str
    until: str  # what becomes known before this moment has arrived
    every: str  # one file per
    files_per_trigger: int
    live: bool = False  # small steps: printed, drawn, and compared with arrival order


@dataclass(frozen=True, slots=True)
class Plan:
    """A stretch of the stream, and the runs that capture it."""

    start: str
    runs: tuple[Run, ...]

    @classmethod
    def year(cls) -> Plan:
        """All of 2013: five months in a hurry, three stormy days as they happen, the rest in a hurry."""
        return cls(
            "2013-01-01",
            (
                Run("past", "backfill to 12 June", "2013-06-12", "1D", 41),
                Run("live", "live, until stopped", "2013-06-13 09:00", "3h", 1, live=True),
                Run("live", "live again, restarted", "2013-06-14 18:00", "3h", 1, live=True),
                Run("rest", "the rest of the year", "2014-01-03", "1D", 51),
            ),
        )

    @classmethod
    def week(cls) -> Plan:
        """Seven days of June, for the test suite."""
        return cls(
            "2013-06-08",
            (
                Run("past", "backfill to 12 June", "2013-06-12 12:00", "1D", 3),
                Run("live", "live, until stopped", "2013-06-13 09:00", "3h", 2, live=True),
                Run("live", "live again, restarted", "2013-06-14", "3h", 2, live=True),
                Run("rest", "one more day", "2013-06-15", "1D", 4),
            ),
        )

    @property
    def live(self) -> tuple[pd.Timestamp, pd.Timestamp]:
        """Return from when to when the small steps go."""
        edges = [self.start, *(run.until for run in self.runs)]
        live = [index for index, run in enumerate(self.runs) if run.live]
        return pd.Timestamp(edges[live[0]], tz="UTC"), pd.Timestamp(edges[live[-1] + 1], tz="UTC")

    def arrivals(self, flights: pd.DataFrame) -> Iterator[tuple[Run, pd.DataFrame]]:
        """Yield the flights that arrive before each run."""
        start = pd.Timestamp(self.start, tz="UTC")
        for run in self.runs:
            until = pd.Timestamp(run.until, tz="UTC")
            yield run, flights[(flights["known_at"] >= start) & (flights["known_at"] < until)]
            start = until


# ------------------------------------------------------------------------------------------------
# What pandas says must come out.


@dataclass
class Expected:
    """The answers that pandas gives, from the flights alone."""

    flights: pd.DataFrame  # with the column `dead`
    frontiers: list[pd.Timestamp]  # after each micro-batch
    moments: list[pd.Timestamp]  # of arrival, up to which each micro-batch had read

    @classmethod
    def of(cls, plan: Plan, flights: pd.DataFrame) -> Expected:
        """Play the runs through by hand: the frontier is the latest hour seen, less the lateness."""
        parts, frontiers, moments = [], [], []
        frontier = pd.Timestamp("1700-01-01", tz="UTC")
        for run, rows in plan.arrivals(flights):
            period = rows["known_at"].dt.floor(run.every)
            files = sorted(period.unique())
            for first in range(0, len(files), run.files_per_trigger):
                taken = files[first : first + run.files_per_trigger]
                batch = rows[period.isin(taken)]
                parts.append(batch.assign(dead=batch["hour"] < frontier))
                frontier = max(frontier, batch["hour"].max() - LATENESS)
                frontiers.append(frontier)
                moments.append(min(taken[-1] + pd.Timedelta(run.every), pd.Timestamp(run.until, tz="UTC")))
        return cls(pd.concat(parts), frontiers, moments)

    def delays(self) -> dict[tuple[pd.Timestamp, str], Delay]:
        """Return the delays per hour and airport, of the flights that are messages."""
        groups = self.flights[~self.flights["dead"]].groupby(["hour", "origin"])["dep_delay"]
        return {
            key: (
                len(values),
                int(values.count()),
                int(values.sum()),
                None if values.isna().all() else int(values.max()),
            )
            for key, values in groups
        }


# Flights, those of them that left, the sum of their delays and the greatest, in minutes.
Delay = tuple[int, int, int, int | None]


# ------------------------------------------------------------------------------------------------
# The jobs. Functions that run in Spark's workers are made inside others, so that they travel by value.


@dataclass(frozen=True)
class Demo:
    """The jobs of the demo, and where they keep what they write."""

    spark: SparkSession
    out: Path

    @property
    def inbox(self) -> flights_data.Inbox:
        """The folder in which files of flights arrive."""
        return flights_data.Inbox(self.out / "inbox")

    @property
    def log(self) -> str:
        """The capture log."""
        return str(self.out / "log")

    def capture(self, run: Run, total: int, report: Report) -> None:
        """Capture all that has arrived, going on from the checkpoint."""
        query = (
            self.spark.readStream.schema(flights_data.SPARK_SCHEMA)
            .option("maxFilesPerTrigger", run.files_per_trigger)
            .parquet(str(self.inbox.path))
            .writeStream.format("timely")
            .option("path", self.log)
            .option("timeColumn", "hour")
            .option("frontier", "bounded")
            .option("lateness", "12 hours")
            .option("lateData", "deadLetter")
            .option("checkpointLocation", str(self.out / "checkpoints" / "capture"))
            .trigger(availableNow=True)
            .start()
        )

        def captured() -> int:
            return sum({p.batchId: p.numInputRows for p in query.recentProgress}.values())

        report.watch(run.title, total, done=captured, over=query.awaitTermination, note=self.frontier)

    def frontier(self) -> str:
        """Return the frontier as text. Anybody may look, at any time, from any process."""
        try:
            log = spark_timely.open_log(self.log)
        except spark_timely.errors.LogMissingError:
            return ""
        return "frontier " + ", ".join(short(moment) for moment in moments(log.frontier().times[:, 0]))

    def settle(self, name: str, answer: dict[tuple[pd.Timestamp, str], Delay]) -> list[pd.Timestamp]:
        """Put the delays of all newly complete hours into `answer`; return these hours.

        An hour arrives whole, and in one worker (``splitBy=time``): a plain group-by on Arrow data
        gives the final numbers. No watermark, no state store, no shuffle.
        """
        before = set(answer)

        def delays(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            table = pa.Table.from_batches(batches)
            numbers = [("hour", "count"), ("dep_delay", "count"), ("dep_delay", "sum"), ("dep_delay", "max")]
            found = table.group_by(["hour", "origin"]).aggregate(numbers)
            yield from found.rename_columns(["hour", "origin", "flights", "departed", "minutes", "worst"]).to_batches()

        def keep(batch: DataFrame, batch_id: int) -> None:
            final = batch.mapInArrow(delays, DELAYS).toArrow()
            for hour, origin, *numbers in zip(*(column.to_pylist() for column in final.columns), strict=True):
                flights, departed, minutes, worst = numbers
                key = (pd.Timestamp(hour).tz_convert("UTC"), origin)
                if key in answer:
                    raise SystemExit(f"{key} was reported twice, the second time in micro-batch {batch_id}")
                answer[key] = (flights, departed, minutes or 0, worst)  # no sum where none departed

        query = (
            self.spark.readStream.format("timely")
            .option("splitBy", "time")
            .option("workers", 2)
            .load(self.log)
            .select("hour", "origin", "dep_delay")
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.out / "checkpoints" / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted({hour for hour, _ in answer.keys() - before})

    def replay(self, name: str, total: int, report: Report, **options: object) -> Replay:
        """Replay the log into its canonical hash.

        Rows are hashed in the workers that read them; only sums per hour travel to the driver.
        """
        log = spark_timely.open_log(self.log)
        columns = log.schema.names
        state = CanonicalState()
        batches: list[int] = []

        def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            from spark_timely.capture.canonical import CanonicalState

            part = CanonicalState(columns)
            for batch in batches:
                times = batch.column("_time").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
                part.add(batch, times.to_numpy())
            yield from part.to_arrow().to_batches()

        def merge(batch: DataFrame, batch_id: int) -> None:
            part = CanonicalState.from_arrow(batch.mapInArrow(sums, SUMS).toArrow())
            state.merge(part)
            batches.append(int(part.counts.sum()))

        started = time.monotonic()
        query = (
            self.spark.readStream.format("timely")
            .options(includeTime=True, **options)
            .load(self.log)
            .writeStream.foreachBatch(merge)
            .option("checkpointLocation", str(self.out / "checkpoints" / name))
            .trigger(availableNow=True)
            .start()
        )
        report.watch(name, total, done=lambda: sum(batches), over=query.awaitTermination)
        return Replay(state.digest(log.frontier()), sum(batches), len(batches), time.monotonic() - started)

    def corrections(self, pattern: str, files_per_trigger: int) -> Counter[tuple[object, str]]:
        """Return how often plain Spark prints each number, in arrival order, over the same files."""
        from pyspark.sql import functions as F

        printed: Counter[tuple[object, str]] = Counter()

        def see(batch: DataFrame, batch_id: int) -> None:
            table = batch.toArrow()
            printed.update(zip(table["hour"].to_pylist(), table["origin"].to_pylist(), strict=True))

        query = (
            self.spark.readStream.schema(flights_data.SPARK_SCHEMA)
            .option("pathGlobFilter", pattern)
            .option("maxFilesPerTrigger", files_per_trigger)
            .parquet(str(self.inbox.path))
            .groupBy("hour", "origin")
            .agg(F.count("*"), F.avg("dep_delay"), F.max("dep_delay"))
            .writeStream.outputMode("update")
            .foreachBatch(see)
            .option("checkpointLocation", str(self.out / "checkpoints" / "arrival_order"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return printed


@dataclass(frozen=True, slots=True)
class Replay:
    """What one replay gave."""

    digest: str
    rows: int
    micro_batches: int
    seconds: float


DELAYS = "hour TIMESTAMP, origin STRING, flights LONG, departed LONG, minutes LONG, worst INT"
SUMS = "time_0 LONG, count LONG, sum_0 LONG, sum_1 LONG"


# ------------------------------------------------------------------------------------------------
# The story.


def tell(demo: Demo, plan: Plan, flights: pd.DataFrame, report: Report) -> None:
    """Run all steps, and compare each answer with pandas."""
    expected = Expected.of(plan, flights)
    rows = expected.flights
    step_data(rows, report)
    answer = step_capture(demo, plan, expected, report)
    step_replay(demo, len(rows[~rows["dead"]]), report)
    step_corrections(demo, plan, answer, report)
    step_picture(demo, plan, expected, report)


def step_data(flights: pd.DataFrame, report: Report) -> None:
    """Say what the data is, and how far arrival and event time disagree."""
    hours = flights_data.behind(flights)
    report.step(
        1,
        f"{len(flights):,} flights that left New York in 2013",
        "A flight becomes known when it lands; its time is the hour in which it left. So what arrives is not in",
        f"order: {np.mean(hours > 0):.0%} of the flights come after one of a later hour. Who waits 3 hours for the rest"
        f" misses {int((hours > 3).sum()):,};",
        f"who waits 12 hours misses {int((hours > 12).sum())}; the slowest flight is {hours.max():.0f} hours behind.",
    )


def step_capture(demo: Demo, plan: Plan, expected: Expected, report: Report) -> dict[tuple[pd.Timestamp, str], Delay]:
    """Capture run by run, and let a second job report what became final."""
    report.step(
        2,
        "Capture with progress, and a second job that knows what is final",
        '`writeStream.format("timely")` appends the rows of each micro-batch together with the frontier,',
        "in one commit: no flight of an hour before it will ever follow (frontier=bounded, lateness=12 hours).",
        "The second job reads only complete hours. Each number it prints is final, and printed once.",
    )
    rng = np.random.default_rng(2013)
    answer: dict[tuple[pd.Timestamp, str], Delay] = {}
    known = 0
    for run, rows in plan.arrivals(expected.flights):
        demo.inbox.deliver(rows, every=run.every, name=run.name, rng=rng)
        report.say("")
        demo.capture(run, len(rows), report)
        moved = frontiers(spark_timely.open_log(demo.log))
        if run.live:
            report.say(f"the frontier moved to {trail(moved[known:])}")
        known = len(moved)
        final = demo.settle("delays", answer)
        report.say(f"second job: {len(final):,} more hours are final, up to {short(final[-1])}")
        if run.live:
            print_delays(answer, final[-4:], report)
    report.say("", "The year is over: nobody will add to this log. Closing it makes the last hours final too.")
    run_command(report, "close", demo.log)
    demo.settle("delays", answer)

    log = spark_timely.open_log(demo.log)
    dead = log.dead().to_pandas()
    for flight in dead.itertuples():
        behind = (flight.known_at - flight.hour) / flights_data.HOUR
        report.say(
            f"Dead letter: {flight.carrier} {flight.flight} {flight.origin}-{flight.dest} left {short(flight.hour)},"
            f" was diverted, and came {behind:.0f} hours later:",
            "an earlier micro-batch had closed its hour. It is kept, apart from the messages, in the same table.",
        )
    report.say("")
    flights = expected.flights
    messages = int(log.files().rows.sum())
    report.check(
        f"{messages:,} messages + {count(len(dead), 'dead letter')} = {len(flights):,} flights: none lost, none twice",
        (messages, len(dead)),
        (int((~flights["dead"]).sum()), int(flights["dead"].sum())),
    )
    report.check(
        f"the frontier after each of {len(expected.frontiers)} micro-batches is what pandas says",
        frontiers(log),
        expected.frontiers,
    )
    report.check(
        f"{len(answer):,} delays per hour and airport, each reported once, equal those of pandas",
        answer == expected.delays() or "other delays",
        expected=True,
    )
    return answer


def print_delays(answer: dict[tuple[pd.Timestamp, str], Delay], hours: list[pd.Timestamp], report: Report) -> None:
    """Print mean and worst delay of some hours, one column per airport."""
    airports = sorted({airport for _, airport in answer})
    table = []
    for hour in hours:
        cells = [delay_text(answer.get((hour, airport))) for airport in airports]
        table.append([short(hour), *cells])
    report.table(["final (UTC)", *(f"{airport}  mean / worst" for airport in airports)], table)


def delay_text(delay: Delay | None) -> str:
    """Write a mean and a worst delay in minutes."""
    if delay is None or not delay[1]:
        return "-"
    _, departed, minutes, worst = delay
    return f"{minutes / departed:+.0f} / {worst:+d} min"


def step_replay(demo: Demo, messages: int, report: Report) -> None:
    """Replay with other workers, limits and files, and compare the canonical hashes."""
    report.step(
        3,
        "Replay: other workers, other limits, other files, the same answer",
        "A micro-batch of a replay holds whole hours, whatever the number of workers and the limits; so every",
        "replay comes to the same canonical hash: per hour its set of rows, and the frontier.",
        "",
    )
    results = {
        "1 worker": demo.replay("1 worker", messages, report, workers=1),
        "2 workers, 2000 hours each": demo.replay("2 workers", messages, report, workers=2, maxTimesPerTrigger=2000),
    }
    report.say("", "Now the small files of the capture are merged. That must change no answer either.")
    run_command(report, "compact", demo.log)
    report.say("")
    results["8 workers, 60000 rows each"] = demo.replay(
        "8 workers", messages, report, workers=8, maxRowsPerTrigger=60_000
    )
    of_log = spark_timely.open_log(demo.log).verify().digest
    report.say("")
    report.table(
        ["replay", "micro-batches", "rows", "canonical hash"],
        [[name, f"{r.micro_batches:,}", f"{r.rows:,}", r.digest[:32]] for name, r in results.items()]
        + [["the log itself", "-", f"{messages:,}", of_log[:32]]],
    )
    report.check("one hash", {r.digest for r in results.values()}, {of_log})
    report.check("every message exactly once", {r.rows for r in results.values()}, {messages})


def step_corrections(demo: Demo, plan: Plan, answer: dict[tuple[pd.Timestamp, str], Delay], report: Report) -> None:
    """Compare with a job that reports in arrival order."""
    report.step(
        4,
        "Without a frontier: how often a number has to be corrected",
        "The same delays over the live days by plain Spark in arrival order (outputMode=update).",
    )
    live = next(run for run in plan.runs if run.live)
    printed = demo.corrections(f"{live.name}-*.parquet", live.files_per_trigger)
    corrected = sum(times > 1 for times in printed.values())
    report.say(
        f"It printed {sum(printed.values()):,} numbers for {len(printed):,} hours and airports: {corrected:,} of these"
        f" ({corrected / len(printed):.0%}) had to be corrected.",
        "And at no point could it say which were right. With the frontier: each printed once, and final.",
    )
    report.check("arrival order needs corrections, the frontier none", corrected > 0, expected=True)


def step_picture(demo: Demo, plan: Plan, expected: Expected, report: Report) -> None:
    """Draw arrivals and frontier from what the log holds."""
    log = spark_timely.open_log(demo.log)
    start, end = plan.live
    columns = ["hour", "known_at", "origin", "dest", "carrier", "flight", "cancelled"]
    reach = pd.Timedelta(days=2)
    messages = log.messages(lower=start - reach, upper=end + reach, columns=columns).to_pandas().assign(dead=False)
    dots = pd.concat([messages, log.dead().select(columns).to_pandas().assign(dead=True)], ignore_index=True)
    dots = dots[(dots["known_at"] >= start) & (dots["known_at"] < end)]
    steps = [pair for pair in zip(expected.moments, frontiers(log), strict=True) if start <= pair[0] <= end]
    path = flights_picture.draw(demo.out / "flights.png", dots, steps, lateness=LATENESS)
    report.step(5, "The picture", f"{shown_path(path)}: arrivals as dots, the frontier as a line.")


def frontiers(log: spark_timely.Log) -> list[pd.Timestamp]:
    """Return the frontier after each micro-batch, as the log's progress rows tell it."""
    rows = log.progress().select(["_batch", "_count", "_time", "_rows"]).to_pandas()
    # Commits of no micro-batch, the opening and the closing one, count no rows.
    held = rows[rows["_batch"].notna() & rows["_rows"].notna() & (rows["_count"] > 0)]
    return held.groupby("_batch")["_time"].min().sort_index().to_list()


def moments(times: np.ndarray) -> pd.DatetimeIndex:
    """Return times of the log, which are microseconds, as moments."""
    return pd.DatetimeIndex(pd.to_datetime(times, unit="us", utc=True))


def trail(moments: list[pd.Timestamp]) -> str:
    """Write moments in a row, each day once."""
    days: dict[str, list[str]] = {}
    for moment in dict.fromkeys(moments):
        days.setdefault(f"{moment:%d %b}".lstrip("0"), []).append(f"{moment:%H:%M}")
    return " · ".join(f"{day} {' '.join(hours)}" for day, hours in days.items())


def run_command(report: Report, *arguments: str) -> None:
    """Run the command line in this process, and show what it says."""
    report.say(f"$ spark-timely {arguments[0]} {' '.join(shown_path(Path(a)) for a in arguments[1:])}")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = command_line(arguments)
    report.say(*(f"  {line}" for line in said.getvalue().splitlines()))
    if code:
        report.check(f"spark-timely {arguments[0]}", code, 0)


def short(moment: pd.Timestamp) -> str:
    """Write a moment as 13 Jun 08:00."""
    return f"{moment:%d %b %H:%M}".lstrip("0")


def count(number: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown_path(path: Path) -> str:
    """Write a path as short as it can be typed here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def empty_folder(path: Path) -> Path:
    """Make `path` an empty folder; only what an earlier demo made is removed."""
    if path.exists() and any(path.iterdir()) and not (path / MARKER).exists():
        raise SystemExit(f"could not write to {path}: it holds other files — hint: choose another --out")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / MARKER).touch()
    return path


def start_spark(messages: Path, report: Report) -> SparkSession:
    """Start Spark; what it writes to standard error goes to a file."""
    report.say(f"Spark starts; its own messages go to {shown_path(messages)}")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    terminal = os.dup(2)
    with messages.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            return spark_timely.session("flights", master="local[2]", **settings)
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if all answers are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "build" / "demo", help="where to write")
    parser.add_argument("--week", action="store_true", help="eight days instead of the year")
    options = parser.parse_args(arguments)

    report = Report()
    report.title("spark-timely: capture a stream with its progress, replay it anywhere, know what is complete")
    out = empty_folder(options.out.resolve())
    flights = flights_data.load_flights()
    plan = Plan.week() if options.week else Plan.year()
    spark = start_spark(out / "spark.log", report)
    try:
        tell(Demo(spark, out), plan, flights, report)
    finally:
        spark.stop()
    log = shown_path(out / "log")
    report.step(
        6,
        "Next",
        f"spark-timely stats {log}    the log at a glance",
        f"spark-timely head {log}     its first rows; --events shows the progress between them",
        f"spark-timely frontier {log} --passed 2013-06-13T00:00:00Z; echo $?    is that hour complete? for scripts",
        "README.md    your own stream in ten lines; the log is a Delta table that anything can read",
    )
    seconds = time.monotonic() - report.started
    if report.failed:
        print(f"\nNot as it should be, after {seconds:.0f} s: {'; '.join(report.failed)}")
        return 1
    print(f"\nAll answers agree with pandas. {seconds:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
