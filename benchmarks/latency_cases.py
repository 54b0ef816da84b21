"""From a small file that arrives to its rows behind a capture and a replay, against Spark's Delta sink and source."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .report import Case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NAMES = ("latency_p50_vs_delta_to_delta", "latency_p99_vs_delta_to_delta")
WARM, MEASURED, ROUNDS = 4, 12, 3
ROWS = 100
DEADLINE_S = 60


def run(spark: SparkSession, scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure both sides in turn, each with its two queries running continuously and the other's stopped."""
    if not any(map(wanted, NAMES)):
        return []
    what = (
        f"{{}} of the seconds from a file of {ROWS} rows to its rows in foreachBatch of the replay, default triggers; "
        "peer: Spark's Delta sink and Delta source"
    )
    median = Case(NAMES[0], what.format("median"), 0.5, higher_is_better=False)
    tail = Case(NAMES[1], what.format("99th percentile"), None, higher_is_better=False)
    for number in range(ROUNDS):
        sides = [("timely", median.ours, tail.ours), ("delta", median.peer, tail.peer)]
        for kind, medians, tails in sides if number % 2 == 0 else reversed(sides):
            took = _latencies(spark, scratch / f"latency-{kind}-{number}", kind)
            medians.append(float(np.median(took)))
            tails.append(float(np.percentile(took, 99)))
    return [case for case in (median, tail) if wanted(case.name)]


def _latencies(spark: SparkSession, folder: Path, kind: str) -> list[float]:
    incoming = folder / "in"
    incoming.mkdir(parents=True)
    seen: list[int] = []

    def note(rows: DataFrame, batch_id: int) -> None:
        del batch_id
        seen.extend(row["id"] for row in rows.select("id").collect())

    _drop(incoming, 0)
    capture = (
        spark.readStream.schema("id long, value double")
        .parquet(str(incoming))
        .writeStream.format(kind)
        .option("checkpointLocation", str(folder / "capture"))
        .start(str(folder / "log"))
    )
    queries = [capture]
    try:
        capture.processAllAvailable()
        queries.append(
            spark.readStream.format(kind)
            .load(str(folder / "log"))
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(folder / "replay"))
            .start()
        )
        took = [_one(incoming, number, seen, queries) for number in range(1, WARM + MEASURED + 1)]
    finally:
        for query in queries:
            query.stop()
    if sorted(seen) != list(range(ROWS * (WARM + MEASURED + 1))):
        message = f"latency of {kind}: expected each of {ROWS * (WARM + MEASURED + 1)} rows once, saw {len(seen)}"
        raise AssertionError(message)
    return took[WARM:]


def _drop(incoming: Path, number: int) -> float:
    """Let a file appear, and return when."""
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    hidden = incoming / f".{uuid.uuid4().hex}"
    pq.write_table(pa.table({"id": ids, "value": ids / 7}), hidden)
    start = time.perf_counter()
    hidden.rename(incoming / f"part-{number:05d}.parquet")
    return start


def _one(incoming: Path, number: int, seen: list[int], queries: list[object]) -> float:
    start = _drop(incoming, number)
    while len(seen) < ROWS * (number + 1):
        if time.perf_counter() - start > DEADLINE_S:
            message = f"file {number} was not seen within {DEADLINE_S} s: {queries}"
            raise AssertionError(message)
        time.sleep(0.002)
    took = time.perf_counter() - start
    time.sleep(0.05 + 0.01 * (number % 7))  # not in step with anybody's polling
    return took
