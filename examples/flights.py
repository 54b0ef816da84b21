"""Capture a year of real flights, replay it three ways, and get one answer.

Run it with ``make demo``, or ``python examples/flights.py``. It

1. orders 336,776 flights that left New York in 2013 as they became known;
2. captures them with ``writeStream.format("timely")``, stopped and restarted, and shows the frontier,
   while a second job prints delays per hour and airport, each number once, when it is final;
3. replays the log with 1, 2 and 8 workers and other limits: one canonical hash;
4. counts how often a job in arrival order has to correct itself;
5. draws the picture ``build/demo/flights.png``;
6. computes delays per hour and airport as a dataflow, into a log of their own, which another job replays.

Every answer is compared with pandas; the exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import time
from pathlib import Path

import flights_data
import flights_picture
import numpy as np
import pandas as pd
from flights_jobs import Demo, frontiers, start_spark
from flights_plan import LATENESS, Delay, Expected, Plan
from flights_report import Report, count, short, shown_path, trail

import spark_timely
from spark_timely.cli import main as command_line

MARKER = ".made-by-the-flights-demo"


def tell(demo: Demo, plan: Plan, flights: pd.DataFrame, report: Report) -> None:
    """Run all steps, and compare each answer with pandas."""
    expected = Expected.of(plan, flights)
    rows = expected.flights
    step_data(rows, report)
    step_capture(demo, plan, expected, report)
    step_replay(demo, len(rows[~rows["dead"]]), report)
    step_corrections(demo, plan, report)
    step_picture(demo, plan, expected, report)
    step_dataflow(demo, expected, len(rows[~rows["dead"]]), report)


def step_data(flights: pd.DataFrame, report: Report) -> None:
    """Say what the data is, and how far arrival and event time disagree."""
    hours = flights_data.behind(flights)
    report.step(
        1,
        f"{len(flights):,} flights that left New York in 2013",
        "A flight becomes known when it lands; its time is the hour in which it left. So what arrives is not in",
        f"order: {np.mean(hours > 0):.0%} of the flights come after one of a later hour. A job that waits 3 hours"
        f" for the rest misses {int((hours > 3).sum()):,};",
        f"one that waits 12 hours misses {int((hours > 12).sum())}; the slowest is {hours.max():.0f} hours behind.",
    )


def step_capture(demo: Demo, plan: Plan, expected: Expected, report: Report) -> None:
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
    slow = int((flights_data.behind(expected.flights) > LATENESS / flights_data.HOUR).sum())
    if slow > len(dead):
        report.say(
            f"{count(slow - len(dead), 'other flight')} as slow came in the micro-batch that closed the hour: in time."
        )
    report.say("")
    flights = expected.flights
    messages = log.describe()["messages"]
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
        "replay gives the same canonical hash: per hour its set of rows, and the frontier.",
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


def step_corrections(demo: Demo, plan: Plan, report: Report) -> None:
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


def step_dataflow(demo: Demo, expected: Expected, messages: int, report: Report) -> None:
    """Compute the delays as a dataflow, and let another job replay what it captured."""
    report.step(
        6,
        "The delays as a dataflow: a log made from a log",
        "What step 2 did by hand, declared: replay, aggregate by airport for each complete hour, capture. What",
        "comes out is a log like any other, with a frontier of its own; no state store, and no checkpoint to lose.",
        "",
    )
    answer = demo.delays(messages, report)
    log = spark_timely.open_log(demo.delays_log)
    report.check(
        f"another job replays {len(answer):,} delays per hour and airport from it, each once, equal to those of pandas",
        answer == expected.delays() or "other delays",
        expected=True,
    )
    report.check("its log is complete, as the flights' is", log.frontier().is_empty, expected=True)


def run_command(report: Report, *arguments: str) -> None:
    """Run the command line in this process, and show what it says."""
    report.say(f"$ spark-timely {arguments[0]} {' '.join(shown_path(Path(a)) for a in arguments[1:])}")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = command_line(arguments)
    report.say(*(f"  {line}" for line in said.getvalue().splitlines()))
    if code:
        report.check(f"spark-timely {arguments[0]}", code, 0)


def empty_folder(path: Path) -> Path:
    """Make `path` an empty folder; only what an earlier demo made is removed."""
    if path.exists() and any(path.iterdir()) and not (path / MARKER).exists():
        raise SystemExit(f"could not write to {path}: it holds other files — hint: choose another --out")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / MARKER).touch()
    return path


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if all answers are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "build" / "demo", help="where to write")
    parser.add_argument("--week", action="store_true", help="eight days instead of the year")
    options = parser.parse_args(arguments)

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
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
        7,
        "Next",
        f"spark-timely stats {log}    the log at a glance",
        f"spark-timely head {log}     its first rows; --events shows the progress between them",
        f"spark-timely frontier {log} --passed 2013-06-13T00:00:00Z; echo $?    is that hour complete? for scripts",
        "README.md    your own stream in 12 lines; the log is a Delta table that anything can read",
    )
    seconds = time.monotonic() - report.started
    if report.failed:
        print(f"\nNot as it should be, after {seconds:.0f} s: {'; '.join(report.failed)}")
        return 1
    print(f"\nAll answers agree with pandas. {seconds:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
