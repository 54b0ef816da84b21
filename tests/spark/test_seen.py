"""What a body sees of a collection is the same whether its rows are summed or, where none is taken away, only read."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import spark_timely as st
from spark_timely.continual.engine import source_plan
from spark_timely.continual.plan import SourcePlan, TaskSource
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.spark.frames.contents import AT, FROM, TO, StepViews, at_frame, between_frame, frame_of
from tests.faults.harness import long_lane

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row: TypeAlias = "tuple[object, ...]"
Update: TypeAlias = "tuple[int, Row, int]"

SCHEMA = pa.schema([("k`", pa.string()), ("x", pa.float64()), ("y", pa.float32()), ("n", pa.int32())])
LAST = 12
SEEDS = range(20) if long_lane() else range(1)


def some_row(rng: random.Random) -> Row:
    # Zeros of both signs are one row, and so are all that are no number.
    floats = [0.0, -0.0, 1.5, math.nan, None]
    return rng.choice(["a", "ü", None]), rng.choice(floats), rng.choice(floats), rng.choice([0, 1, None])


def updates(seed: int) -> list[list[Update]]:
    """Return commits: the first one only adds, at times up to 3; each later one changes what is there, at its time."""
    rng = random.Random(seed)
    first = [(rng.randrange(4), some_row(rng), rng.choice([1, 1, 2])) for _ in range(60)]
    commits, there = [first], Counter[Row]()
    one_of = {shown(row): row for _, row, _ in first}
    for _, row, diff in first:
        there[shown(row)] += diff
    for time in range(5, LAST, 2):
        gone = rng.choices(list(there.elements()), k=5)
        changes: list[Update] = [(time, one_of[row], -1) for row in dict.fromkeys(gone)]
        changes += [(time, some_row(rng), 1) for _ in range(4)]
        for _, row, diff in changes:
            one_of[shown(row)] = row
            there[shown(row)] += diff
        commits.append(changes)
    return commits


def shown(row: Row) -> Row:
    """Return a row by which equal ones are found: zero has no sign."""
    return tuple(
        "nan" if isinstance(x, float) and math.isnan(x) else x + 0.0 if isinstance(x, float) else x for x in row
    )


def unsigned(rows: DataFrame, *more: str) -> Counter[Row]:
    """Count rows, and find a zero with a sign: it would be another answer."""
    found = [
        tuple(row)
        for row in rows.select(*(F.col(f"`{n.replace('`', '``')}`") for n in (*SCHEMA.names, *more))).collect()
    ]
    for row in found:
        assert not any(isinstance(x, float) and x == 0 and math.copysign(1, x) < 0 for x in row), row
    return Counter(map(shown, found))


def log_of(folder: Path, commits: list[list[Update]]) -> st.Log:
    log = st.create_log(folder, SCHEMA, minimum=(0,), kind="collection")
    writer = log.writer(owner="test")
    for commit in commits:
        times, rows, diffs = zip(*commit, strict=True)
        columns = {name: [row[place] for row in rows] for place, name in enumerate(SCHEMA.names)}
        schema = pa.schema([("_time", pa.int64()), ("_diff", pa.int64()), *SCHEMA])
        table = pa.table({"_time": list(times), "_diff": list(diffs), **columns}, schema)
        writer.append(table, advance_to=max(times) + 1)
    return log


def contents(commits: list[list[Update]], time: int) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for at, row, diff in (each for commit in commits for each in commit):
        if at <= time:
            found[shown(row)] += diff
    return +found


def plan_of(log: st.Log, shown_as: str, lower: int | None, stop: int, first: int) -> SourcePlan:
    source = TaskSource("r", log.path, shown_as)  # type: ignore[arg-type]
    return source_plan(source, log, catalog_of(log)(), log.core.storage, lower, stop, first)


@pytest.mark.parametrize("seed", SEEDS)
def test_contents_are_those_of_their_sums(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    commits = updates(seed)
    log = log_of(tmp_path / "log", commits)
    for first in (4, 2, 7):
        # At 2 rows of the file that only adds are still to come; at 7 rows have gone.
        plan = plan_of(log, "contents", None, LAST, first)
        assert plan.adds_at_first == (first < 5)
        for each in (plan, replace(plan, adds_at_first=False)):
            with StepViews(spark) as views:
                rows = between_frame(spark, each, first, views).localCheckpoint()
                for time in range(first, LAST):
                    there = rows.where(f"{FROM} <= {time} AND ({TO} IS NULL OR {time} < {TO})")
                    assert unsigned(there) == contents(commits, time), (first, time, each.adds_at_first)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_time_and_what_came_are_those_of_their_sums(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    commits = updates(seed)
    log = log_of(tmp_path / "log", commits)
    for stop in (3, 5, 6):
        plan = plan_of(log, "contents", None, stop, stop - 1)
        assert plan.adds_only == (stop < 6)
        for each in (plan, replace(plan, adds_only=False)):
            with StepViews(spark) as views:
                assert unsigned(frame_of(spark, each, views)) == contents(commits, stop - 1)
    inserts = plan_of(log, "inserts", 0, 4, 0)
    assert inserts.adds_only
    wanted = Counter({(*shown(row), at): 0 for at, row, _ in commits[0]})
    for at, row, diff in commits[0]:
        wanted[*shown(row), at] += diff
    for each in (inserts, replace(inserts, adds_only=False)):
        with StepViews(spark) as views:
            assert unsigned(at_frame(spark, each, views), AT) == wanted


def test_rows_are_only_read_where_all_files_are_known_to_add(tmp_path: Path) -> None:
    row: Row = ("a", 1.0, 1.0, 1)
    log = log_of(tmp_path / "log", [[(0, row, 2), (4, row, 1)], [(5, row, -1), (7, row, 1)], [(8, row, 1)]])
    known = [(plan_of(log, "contents", None, 9, first).adds_at_first) for first in range(9)]
    assert known == [True] * 5 + [False] * 4
    assert [plan_of(log, "inserts", lower, lower + 1, lower).adds_only for lower in range(9)] == (
        # A file is taken for what is between its bounds.
        [True] * 5 + [False] * 3 + [True]
    )
    stream = st.create_log(tmp_path / "stream", SCHEMA, minimum=(0,))
    assert plan_of(stream, "contents", None, 9, 0).adds_only  # there is nothing
