"""Costs that must not grow with a log's history: one commit, and planning one micro-batch."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING

import pyarrow as pa

import spark_timely as st
from spark_timely.datasource.source import TimelyDataSource

from .report import Case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHORT, LONG = 10, 1000
MEASURED = 40
SCHEMA = pa.schema([("value", pa.int64())])


def _rows(time_: int) -> pa.Table:
    return pa.table({"_time": pa.array([time_] * 10, pa.int64()), "value": pa.array(range(10), pa.int64())})


class GrowingLog:
    """A log that one producer appends to, one time per commit."""

    def __init__(self, path: Path, *, auto_compact: bool = True) -> None:
        self.path = str(path)
        self.log = st.create_log(self.path, SCHEMA, times=("long",), minimum=(0,), auto_compact=auto_compact)
        self.writer = self.log.writer(owner="bench")
        self.time = 0

    def commit(self) -> float:
        """Append one time, close it, and return the seconds it took."""
        rows = _rows(self.time)
        start = time.perf_counter()
        self.writer.append(rows, advance_to=[self.time + 1])
        took = time.perf_counter() - start
        self.time += 1
        return took

    def grow(self, commits: int) -> None:
        """Bring the log to that many commits."""
        while self.time < commits:
            self.commit()

    def check(self) -> None:
        """Compare contents and frontier with what was appended."""
        log = st.open_log(self.path)
        if log.frontier().to_json() != [self.time] or log.messages().num_rows != 10 * self.time:
            message = f"log {self.path}: expected {self.time} times of 10 rows, frontier {self.time}"
            raise AssertionError(message)


class Planner:
    """The planner process of a query, driven as Spark drives it, warm."""

    def __init__(self, path: str, **options: str) -> None:
        source = TimelyDataSource({"path": path, "pollInterval": "0ms", **options})
        self.path = path
        self.reader = source.streamReader(source.schema())
        self.limit = self.reader.getDefaultReadLimit()
        self.offset = self._through_text(self.reader.initialOffset())
        self.plan()

    @staticmethod
    def _through_text(offset: dict[str, object]) -> dict[str, object]:
        return dict(json.loads(json.dumps(offset)))

    def plan(self) -> float:
        """Plan one micro-batch from where the last ended, and return the seconds it took."""
        start = time.perf_counter()
        end = self._through_text(self.reader.latestOffset(self.offset, self.limit))
        partitions = self.reader.partitions(self.offset, end)
        took = time.perf_counter() - start
        if end == self.offset or not partitions:
            message = f"planning {self.path}: nothing new after {self.offset}"
            raise AssertionError(message)
        self.offset = end
        return took


def pairs(case: Case, ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> None:
    """Add the medians of short series taken in turn: single commits are too short to compare."""
    for _ in range(rounds):
        mine, theirs = [], []
        for _ in range(MEASURED // rounds):
            mine.append(ours())
            theirs.append(peer())
        case.ours.append(1000 * statistics.median(mine))
        case.peer.append(1000 * statistics.median(theirs))


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure the flat costs at 1000 commits against 10."""
    names = ("commit_1k_vs_10_commits", "planning_1k_vs_10_commits")
    if not any(wanted(name) for name in names):
        return []
    short, long = GrowingLog(scratch / "flat-short"), GrowingLog(scratch / "flat-long")
    long.grow(LONG)
    short.grow(SHORT)
    commit = Case(
        names[0],
        f"one commit of 10 rows after {LONG} commits; peer: after {SHORT}",
        1.5,
        unit="ms",
        higher_is_better=False,
    )
    planning = Case(
        names[1],
        f"planning one new commit after {LONG} commits, warm; peer: after {SHORT}",
        1.5,
        unit="ms",
        higher_is_better=False,
    )
    planners = Planner(long.path), Planner(short.path)

    def commit_and_plan(log: GrowingLog, planner: Planner, plans: list[float]) -> float:
        took = log.commit()
        plans.append(planner.plan())
        return took

    long_plans: list[float] = []
    short_plans: list[float] = []
    pairs(
        commit,
        lambda: commit_and_plan(long, planners[0], long_plans),
        lambda: commit_and_plan(short, planners[1], short_plans),
        rounds=5,
    )
    size = MEASURED // 5
    for start in range(0, MEASURED, size):
        planning.ours.append(1000 * statistics.median(long_plans[start : start + size]))
        planning.peer.append(1000 * statistics.median(short_plans[start : start + size]))
    long.check()
    short.check()
    return [case for case in (commit, planning) if wanted(case.name)]
