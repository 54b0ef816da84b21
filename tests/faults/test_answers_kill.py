"""Copies and mirrors in drivers of their own that are killed: no folder looks finished that is not, no change is lost.

``SPARK_TIMELY_LONG=1`` kills at each moment, and many times while files are written. The seed is printed;
``SPARK_TIMELY_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import spark_timely
from spark_timely import Log
from spark_timely.errors import InvalidUsageError
from spark_timely.spark.answers.copy_to import copy_to
from spark_timely.spark.answers.mirror import mirror_to
from spark_timely.time.antichain import Antichain
from tests.faults.harness import Job, long_lane, seed_of_run, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(3600)]

ROWS = 20_000
Rows = Counter[tuple[int, int]]


def append(log: Log, step: int, held: Rows) -> None:
    """Append changes at one time: a value for each key in its third, in place of the one that it had."""
    keys = [key for key in range(ROWS) if key % 3 == step % 3 or step == 0]
    before = {key: value for key, value in held if step and key % 3 == step % 3}
    rows = [(key, value, -1) for key, value in before.items()] + [(key, step, 1) for key in keys]
    held.subtract((key, value) for key, value, diff in rows if diff < 0)
    held.update((key, value) for key, value, diff in rows if diff > 0)
    for row in [row for row, n in held.items() if not n]:
        del held[row]
    keys_, values, diffs = (pa.array(each, pa.int64()) for each in zip(*rows, strict=True))
    times = pa.array([step] * len(rows), pa.int64())
    log.writer(owner="tests").append(
        pa.table({"_time": times, "_diff": diffs, "k": keys_, "v": values}), advance_to=step + 1
    )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    return spark_timely.create_log(tmp_path / "log", schema, minimum=(0,), kind="collection")


def moments(short: list[str], long: list[str], what: str) -> list[tuple[str, float]]:
    """Return when to die, and how long after files appear or, at any moment, after the work was begun.

    ``SPARK_TIMELY_KILLS`` says how many of the long lane's are drawn: all unless given.
    """
    rng = random.Random(seed_of_run())
    tell(f"{what}: seed {seed_of_run()}")
    if not long_lane():
        return [(moment, rng.uniform(0.0, 0.05)) for moment in short]
    found = [(moment, rng.uniform(0.0, 0.05)) for moment in long]
    found += [("while", rng.uniform(0.0, 0.5)) for _ in range(5)]
    found += [("any", rng.uniform(0.0, 6.0)) for _ in range(5)]
    places = sorted(rng.sample(range(len(found)), min(int(os.environ.get("SPARK_TIMELY_KILLS", "99")), len(found))))
    return [found[place] for place in places]


def test_copy_killed_at_any_moment_looks_unfinished(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    held: Rows = Counter()
    for step in range(2):
        append(log, step, held)
    drawn = moments(["while"], ["begun", "while", "written", "named", "deleted"], "copy")
    for number, (moment, more_s) in enumerate(drawn):
        place = tmp_path / f"copy-{number}"
        spec = {"what": "copy", "log": log.path, "place": str(place), "die": moment, "more_s": more_s}
        job = Job("answers_job.py", spec, tmp_path / f"runs-{number}")
        assert job.end_within(240), job.text()
        job.kill()
        assert moment in ("while", "any") or not job.text().count("Traceback"), job.text()
        names = {path.name for path in place.iterdir()} if place.exists() else set()
        files = list(place.rglob("*.parquet")) if place.exists() else []
        if "INCOMPLETE" not in names:
            assert moment in ("deleted", "while", "any"), f"{moment=} {more_s=}"
            if moment == "any" and not names:
                continue  # it had not begun
            tables = [pq.read_table(path) for path in files]
            assert Counter(tuple(row.values()) for table in tables for row in table.to_pylist()) == held
        with pytest.raises(InvalidUsageError, match="in it"):
            copy_to(spark, log, place)  # nobody adds to what is there


@pytest.mark.parametrize("key", ["k", None] if long_lane() else ["k"])
def test_mirror_killed_at_any_moment_equals_its_upper(
    spark: SparkSession, log: Log, tmp_path: Path, key: str | None
) -> None:
    held: Rows = Counter()
    before: Rows = Counter()
    table = tmp_path / "table"
    steps = moments(["while", "merged"], ["while", "created", "merged", "retained", "while", "merged"], "mirror")
    made = 0
    for n_steps, (moment, more_s) in enumerate(steps):
        append(log, n_steps, held)
        spec = {"what": "mirror", "log": log.path, "place": str(table), "die": moment, "more_s": more_s, "key": key}
        job = Job("answers_job.py", spec, tmp_path / f"runs-{n_steps}")
        assert job.end_within(240), job.text()
        job.kill()
        mirror = mirror_to(spark, log.path, table, key=key)
        position = mirror.position()
        if position is not None:
            # Whatever was killed, the table is the contents at the upper that it says: of this step or the one before.
            has_moved = position.cut.frontier == log.frontier()
            made += has_moved
            assert has_moved or position.cut.frontier == Antichain.of(n_steps)
            assert found(table) == (held if has_moved else before), f"{moment=} {more_s=}"
        if moment in ("merged", "retained") and n_steps > 0:
            assert position is not None
            assert position.cut.frontier == log.frontier()
        assert mirror.step().upper == log.frontier()
        assert found(table) == held, f"{moment=} {more_s=}"
        tell(f"{moment} {more_s:.3f}: {'nothing' if position is None else position.cut.frontier}")
        before = Counter(held)
    tell(f"{len(steps)} kills, {made} behind the commit")


def found(table: Path) -> Rows:
    """Return the rows of a table, each as often as it counts."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    counts = rows["_count"].to_pylist() if "_count" in rows.schema.names else [1] * len(rows)
    counted: Rows = Counter()
    for row, n in zip(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True), counts, strict=True):
        counted[row] += n
    return counted
