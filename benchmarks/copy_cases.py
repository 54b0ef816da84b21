"""A copy of a collection in files, against Spark writing the same contents by hand from the log's table."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

import spark_timely as st
from spark_timely.spark.answers.copy_to import copy_to

from .report import Case, alternate, seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

COMMITS = 10
WARM, REPEATS = 2, 3
CHANGES, ADDS = "copy_to_vs_spark_write", "copy_to_adds_vs_spark_write"
NAMES = (CHANGES, ADDS)
SCHEMA = pa.schema([("k", pa.int64()), ("value", pa.float64()), ("text", pa.string())])


def run(spark: SparkSession, scratch: Path, wanted: Callable[[str], bool], n_rows: int) -> list[Case]:
    """Measure copies of a collection of which a hundredth is taken away again, and of one that only grows."""
    return [_measure(spark, scratch / name, name, n_rows) for name in NAMES if wanted(name)]


def _measure(spark: SparkSession, folder: Path, name: str, n_rows: int) -> Case:
    changes = name == CHANGES
    by_hand = "filter, sum of diffs, explode, write" if changes else "filter and write, knowing that nothing is summed"
    case = Case(
        name,
        f"{n_rows} rows as Parquet at the newest time: copy_to, counted and flushed; peer: Spark over the log's table"
        f" by hand, {by_hand}",
        1.2,
        higher_is_better=False,
    )
    log = _log(folder / "log", n_rows, changes=changes)
    wanted = _facts(_contents(spark, log, changes=changes))

    def ours() -> float:
        place = folder / uuid.uuid4().hex
        took = seconds(lambda: _check_equal(copy_to(spark, log.path, place), wanted[0]))
        return _checked(spark, place, wanted, took)

    def peer() -> float:
        place = folder / uuid.uuid4().hex
        took = seconds(lambda: _contents(spark, log, changes=changes).write.parquet(str(place)))
        return _checked(spark, place, wanted, took)

    alternate(case, ours, peer, REPEATS, WARM)
    case.settings = {"rows": n_rows, "commits": COMMITS + changes}
    shutil.rmtree(folder)
    return case


def _log(path: Path, n_rows: int, *, changes: bool) -> st.Log:
    """Return a log of ten commits, and one that takes each hundredth row away again."""
    rng = np.random.default_rng(24)
    log = st.create_log(path, SCHEMA, minimum=(0,), kind="collection")
    writer, per_commit = log.writer(owner="bench"), n_rows // COMMITS
    words = pa.array([f"word number {number:08d}" for number in range(5000)])
    gone: list[pa.Table] = []
    for number in range(COMMITS):
        keys = np.arange(number * per_commit, (number + 1) * per_commit)
        rows = pa.table({
            "k": keys, "value": rng.random(per_commit), "text": words.take(pa.array(rng.integers(0, 5000, per_commit))),
        })  # fmt: skip
        writer.append(_at(rows, number, 1), advance_to=number + 1)
        if changes:
            gone.append(rows.slice(0, per_commit // 100))
    if gone:
        writer.append(_at(pa.concat_tables(gone), COMMITS, -1), advance_to=COMMITS + 1)
    return log


def _at(rows: pa.Table, time: int, diff: int) -> pa.Table:
    n = rows.num_rows
    stamps = {"_time": np.full(n, time, np.int64), "_diff": np.full(n, diff, np.int64)}
    return pa.table({**stamps, **dict(zip(rows.column_names, rows.columns, strict=True))})


def _contents(spark: SparkSession, log: st.Log, *, changes: bool) -> DataFrame:
    """Return the contents as somebody writes them who knows the columns of the log's table."""
    (upper,) = log.frontier().elements[0]
    rows = spark.read.format("delta").load(log.path).where(f"_event = 'message' AND _time < {upper}")
    names = SCHEMA.names
    if not changes:
        return rows.select(*names)
    held = rows.groupBy(*names).agg(F.sum("_diff").alias("n")).where("n > 0")
    return held.select(*names, F.explode(F.sequence(F.lit(1), F.col("n"))).alias("copy")).drop("copy")


def _facts(rows: DataFrame) -> tuple[int, int]:
    found = rows.agg(F.count("*").alias("n"), F.sum("k").alias("keys")).first()
    assert found is not None
    return int(found["n"]), int(found["keys"])


def _check_equal(found: int, expected: int) -> None:
    if found != expected:
        message = f"expected {expected} rows, found {found}"
        raise AssertionError(message)


def _checked(spark: SparkSession, place: Path, wanted: tuple[int, int], took: float) -> float:
    found = _facts(spark.read.parquet(str(place)))
    if found != wanted:
        message = f"expected rows and sum of keys {wanted}, found {found}"
        raise AssertionError(message)
    shutil.rmtree(place)
    return took
