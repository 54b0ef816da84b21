"""What is captured in which run, and what pandas says must come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

LATENESS = pd.Timedelta(hours=12)
# Flights, those of them that left, the sum of their delays and the greatest, in minutes.
Delay = tuple[int, int, int, int | None]


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
