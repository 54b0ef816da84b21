"""Where each aircraft was, and when that was known: all versions of a table (SCD type 2), in one go and live.

Run it with ``make scd2``, or ``python examples/scd2.py``. An aircraft that left New York in 2013 is at its
destination from its landing on, until something else is known of it; after a cancelled flight nobody knows where it is.
Newark and Kennedy report their flights day by day, LaGuardia three days later. So an aircraft that uses several of them
has changes that come late: behind newer ones.

1. All reports of the year wait in a log. One task makes the versions of it, all days in one job.
2. A second task does the same live: its log grows in six parts, and it is started after each. Its output is the same.
3. One aircraft, as its versions were known on two days in a row: a late report splits the version that it falls into.

The versions are compared with pandas; the exit code is 1 if they differ.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import flights_data
import numpy as np
import pandas as pd
import pyarrow as pa
from flights import empty_folder
from flights_jobs import start_spark
from flights_report import Report

import spark_timely

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENT = pa.timestamp("us", "UTC")
REPORTS = pa.schema(
    [
        ("tailnum", pa.string()),
        ("landed", MOMENT),
        ("airport", pa.string()),
        ("origin", pa.string()),
        ("cancelled", pa.bool_()),
    ]
)
LATER = {"LGA": dt.timedelta(days=3)}
PARTS = 6
WHERE = ["tailnum", "airport", "origin"]


def reports() -> pd.DataFrame:
    """Return what is reported of aircraft, in the order of the days of the reports (`_time`)."""
    flights = flights_data.load_flights()
    flights = flights[flights["tailnum"].notna()].rename(columns={"dest": "airport", "known_at": "landed"})
    delays = flights["origin"].map(LATER).fillna(pd.Timedelta(0))
    day = (flights["landed"] + delays).dt.date
    return flights.assign(_time=day).sort_values("_time", kind="stable", ignore_index=True)[["_time", *REPORTS.names]]


def late(found: pd.DataFrame) -> int:
    """Return how many reports come on a later day than one of the same aircraft that is newer."""
    newest = found.groupby(["tailnum", "_time"], as_index=False)["landed"].max().sort_values("_time")
    newest["before"] = newest.groupby("tailnum")["landed"].transform(lambda landed: landed.cummax().shift())
    both = found.merge(newest[["tailnum", "_time", "before"]], on=["tailnum", "_time"])
    return int((both["landed"] < both["before"]).sum())


def versions_of(found: pd.DataFrame) -> pd.DataFrame:
    """Return the versions that reports make, whichever came first, as pandas tells them."""
    # What is reported for one moment counts once: a cancelled flight last, as it ends what is there.
    by_moment = found.sort_values(["tailnum", "landed", "cancelled", "airport", "origin"])
    by_moment = by_moment.drop_duplicates(["tailnum", "landed"], keep="last")
    ends = by_moment.groupby("tailnum")["landed"].shift(-1)
    made = by_moment.assign(begins=by_moment["landed"], ends=ends)[~by_moment["cancelled"]]
    in_microseconds = dict.fromkeys(["begins", "ends"], "datetime64[us, UTC]")
    return made[[*WHERE, "begins", "ends"]].astype(in_microseconds).reset_index(drop=True)


def versions_in(path: Path, day: dt.date) -> pd.DataFrame:
    """Return the versions that a table has as of a day."""
    table = spark_timely.open_log(path).snapshot(day)
    found = table.select([*WHERE, "__START_AT", "__END_AT"]).rename_columns([*WHERE, "begins", "ends"])
    return found.to_pandas().sort_values(["tailnum", "begins"], ignore_index=True)


def follow(spark: SparkSession, log: Path, output: Path) -> float:
    """Apply what is new in a log to the versions, and return the seconds that it took."""
    task = spark_timely.ContinualTask.upsert(
        output.name,
        input=log,
        output=output,
        keys="tailnum",
        sequence_by="landed",
        delete_when="cancelled",
        columns=WHERE,
        history=True,
    )
    began = time.monotonic()
    task.start(spark, trigger="availableNow").await_termination()
    return time.monotonic() - began


def append(log: Path, found: pd.DataFrame, after: dt.date) -> None:
    """Append reports to a log; those before `after` are complete."""
    schema = REPORTS.insert(0, pa.field("_time", pa.date32()))
    rows = pa.Table.from_pandas(found, schema=schema, preserve_index=False)
    spark_timely.open_log(log).writer(owner="airports").append(rows, advance_to=after)


def tell(spark: SparkSession, out: Path, found: pd.DataFrame, report: Report) -> pd.DataFrame:
    """Make the versions in both ways, compare them, and return them."""
    days = sorted(set(found["_time"]))
    end = days[-1] + dt.timedelta(days=1)
    logs, outputs = ((out / f"{name}-all", out / f"{name}-live") for name in ("reports", "aircraft"))
    for log in logs:
        spark_timely.create_log(log, REPORTS, times=("date",))
    report.step(
        1,
        f"{len(found):,} reports of {found['tailnum'].nunique():,} aircraft, on {len(days)} days, in one go",
        f"{late(found):,} of them come late: a newer one of the same aircraft came on a day before.",
    )
    append(logs[0], found, end)
    took = follow(spark, logs[0], outputs[0])
    made, expected = versions_in(outputs[0], days[-1]), versions_of(found)
    report.say(f"{len(made):,} versions after {took:.1f} s, in which Spark's workers start too.")
    report.check("they are those of pandas", made.equals(expected) or "others", expected=True)

    report.step(2, f"The same live: the log grows in {PARTS} parts, and the task is started after each")
    stops = [int(stop) for stop in np.linspace(0, len(days), PARTS + 1)]
    times = []
    for first, stop in itertools.pairwise(stops):
        after = end if stop == len(days) else days[stop]
        append(logs[1], found[(found["_time"] >= days[first]) & (found["_time"] < after)], after)
        times.append(follow(spark, logs[1], outputs[1]))
    report.say(f"The parts took {' · '.join(f'{took:.1f}' for took in times)} s.")
    for day in (days[9], days[len(days) // 2], days[-1]):
        same = versions_in(outputs[0], day).equals(versions_in(outputs[1], day))
        report.check(f"equal contents as of {day:%d %b}", same, expected=True)
    known = found[found["_time"] <= days[9]]
    report.check(
        f"and as of {days[9]:%d %b} those that pandas makes of what was known then",
        versions_in(outputs[1], days[9]).equals(versions_of(known)),
        expected=True,
    )
    return made


def chosen(found: pd.DataFrame) -> tuple[str, dt.date]:
    """Return an aircraft of which a late report splits a version, and the day of this report."""
    days = sorted(set(found["_time"]))[8:30]
    some = found[found["_time"] <= days[-1]]
    for day in days:  # until one is found, which is soon
        lately = some[(some["_time"] == day) & some["origin"].isin(LATER)]
        for tail, known in some[some["tailnum"].isin(lately["tailnum"])].groupby("tailnum"):
            before, after = (versions_of(known[known["_time"] <= at]) for at in (day - dt.timedelta(days=1), day))
            places = after["airport"].to_list()
            newest = [str(each.tail(1).to_dict("records")) for each in (before, after)]
            split = len(after) == len(before) + 1 and newest[0] == newest[1]
            if 4 <= len(after) <= 6 and len(set(places)) == len(places) and split:
                return str(tail), day
    raise SystemExit("could not find an aircraft with a late report — hint: look at more days")


def show(table: Path, found: pd.DataFrame, report: Report) -> None:
    """Print one aircraft's versions as they were known on two days."""
    tail, day = chosen(found)
    report.step(3, f"Where {tail} was, as it was known on two days")
    for known in (day - dt.timedelta(days=1), day):
        rows = versions_in(table, known)
        rows = rows[rows["tailnum"] == tail]
        report.say("", f"known on {known:%d %b}")
        cells = [
            [
                row.airport,
                f"{row.begins:%d %b %H:%M}",
                "" if pd.isna(row.ends) else f"{row.ends:%d %b %H:%M}",
                row.origin,
            ]
            for row in rows.itertuples()
        ]
        report.table(["at", "from (UTC)", "to", "came from"], cells, indent="  ")


def main(arguments: list[str] | None = None) -> int:
    """Run the example; return 0 if all answers are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    build = Path(__file__).parents[1] / "build" / "scd2"
    parser.add_argument("--out", type=Path, default=build, help="where to write")
    out = empty_folder(parser.parse_args(arguments).out.resolve())
    report = Report()
    report.title("spark-timely: all versions of a table, late changes included, in one go and live")
    found = reports()
    spark = start_spark(out / "spark.log", report)
    try:
        tell(spark, out, found, report)
    finally:
        spark.stop()
    show(out / "aircraft-all", found, report)
    if report.failed:
        print(f"\nNot as it should be: {'; '.join(report.failed)}")
        return 1
    print("\nAll answers agree with pandas.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
