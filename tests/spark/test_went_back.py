"""Through real Spark: what is lost by a checkpoint or a log that went back is refused by name, and nothing changes."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, functions

from spark_timely.log.log import open_log
from tests.modules import ROOT
from tests.spark.went_back import (
    DAMAGES,
    POLICIES,
    SESSIONS,
    WAYS,
    CapturedQuery,
    Case,
    all_cases,
    cases_of,
    check,
    ids,
    pairwise,
    put,
    scenario,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_any_two_of_what_there_is_meet_in_the_cases() -> None:
    cases = pairwise()
    assert len(cases) == 6
    assert len(all_cases(0)) * len(DAMAGES) == 150
    assert {case.policy for case in cases} == set(POLICIES)
    drawn = {(case.way, case.session, damage) for case in cases for damage in case.damages}
    kinds = (list(WAYS), list(SESSIONS), list(DAMAGES))
    for a, b in itertools.combinations(range(3), 2):
        assert {(one[a], one[b]) for one in drawn} == set(itertools.product(kinds[a], kinds[b]))


@pytest.mark.parametrize("case", cases_of("classic"))
def test_what_went_back_is_refused_by_name(spark: SparkSession, case: Case, tmp_path: Path) -> None:
    check(scenario(spark, tmp_path, case.policy, case.way, list(case.damages)), case.damages)


def sums(df: DataFrame, *, descending: bool) -> DataFrame:
    """Return a sum of doubles, which depends on the order in which they come."""
    each = df.select("t", functions.explode(functions.array(*map(functions.lit, (0.1, 0.2, 0.3)))).alias("x"))
    ordered = each.coalesce(1).sortWithinPartitions(functions.col("x").desc() if descending else functions.col("x"))
    # As Spark does within a task: one after the other.
    listed = ordered.groupBy("t").agg(functions.collect_list("x").alias("xs"))
    return listed.selectExpr("t", "t AS id", "aggregate(xs, 0D, (sum, x) -> sum + x) AS total")


REPETITIONS: dict[str, tuple[str, Callable[[int], Callable[[DataFrame], DataFrame]]]] = {
    "sum of doubles": ("capture", lambda attempt: lambda df: sums(df, descending=attempt == 0)),
    "uuid": ("sink", lambda attempt: lambda df: df.selectExpr("*", "uuid() AS u")),
    "changed column": ("start", lambda attempt: lambda df: df.withColumn("c", functions.lit(attempt))),
    "changed column, captured": ("capture", lambda attempt: lambda df: df.withColumn("c", functions.lit(attempt))),
}


@pytest.mark.parametrize("name", REPETITIONS)
def test_repetition_with_other_rows_continues_and_is_counted(spark: SparkSession, tmp_path: Path, name: str) -> None:
    way, change = REPETITIONS[name]
    query = CapturedQuery(spark, tmp_path, "bounded", way)
    query.grow(2)
    assert query.run(change=change(0)) is None
    captured = open_log(query.log_path).messages()
    for file in ("1", ".1.crc"):
        (query.checkpoint / "commits" / file).unlink(missing_ok=True)
    query.grow()
    assert query.run(change=change(1)) is None
    log = open_log(query.log_path)
    assert ids(query) == [0, 1, 2]
    assert log.messages().slice(0, 2).equals(captured)
    assert log.core.stream("main").note.differing == 1
    assert log.verify().legal


def forget_after(checkpoint: Path, newest: int) -> None:
    """Run the commands of the documentation in a checkpoint."""
    page = (ROOT / "docs" / "how-to" / "refused-after-restart.md").read_text(encoding="utf-8")
    (block,) = [part.split("```")[0] for part in page.split("```bash\n")[1:]]
    assert block.startswith("cd CHECKPOINT\nk=7\n")
    commands = block.replace("cd CHECKPOINT\nk=7\n", f"set -eu\nk={newest}\n")
    subprocess.run(["bash", "-c", commands], cwd=checkpoint, check=True)


@pytest.mark.parametrize("way", WAYS)
def test_way_back_of_the_documentation_loses_nothing(spark: SparkSession, tmp_path: Path, way: str) -> None:
    query = CapturedQuery(spark, tmp_path, "bounded", way)
    query.grow()
    assert query.run() is None
    shutil.copytree(query.log_path, tmp_path / "kept")
    query.grow(2)
    assert query.run() is None
    put(tmp_path / "kept", query.log_path)
    query.grow()
    assert "all numbers after 0 and from 'offsets' all numbers after 1" in str(query.run())
    forget_after(query.checkpoint, 0)
    assert query.run() is None
    log = open_log(query.log_path)
    assert ids(query) == [0, 1, 2, 3]
    assert (log.core.stream("main").note.gaps, log.core.stream("main").note.differing) == ((), 0)
    assert log.verify().legal


@pytest.mark.parametrize("way", WAYS)
def test_log_deleted_on_purpose_begins_again_with_consent(spark: SparkSession, tmp_path: Path, way: str) -> None:
    query = CapturedQuery(spark, tmp_path, "bounded", way)
    query.grow(2)
    assert query.run() is None
    shutil.rmtree(query.log_path)
    query.grow(2)
    assert "beginAt=2" in str(query.run())
    assert query.run(begin_at=2) is None
    assert ids(query) == [2, 3]
    state = open_log(query.log_path).core.stream("main")
    assert (state.note.gaps, state.epoch) == (((0, 1),), 1)
