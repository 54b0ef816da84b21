"""Capture and replay at the same time, with Spark's default trigger: a replay follows what is being written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from tests.faults.harness import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark


class Seen:
    """What the replay's micro-batches held, in their order."""

    def __init__(self) -> None:
        self.batches: list[Counter[tuple[int, int]]] = []

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        del batch_id
        self.batches.append(Counter((row["t"], row["id"]) for row in df.collect()))

    def rows(self) -> Counter[tuple[int, int]]:
        return sum(self.batches, Counter())


def write_rows(folder: Path, number: int, times: list[int]) -> Counter[tuple[int, int]]:
    """Put a file into the folder in one step; return its rows."""
    ids = [100 * number + place for place in range(len(times))]
    table = pa.table({"t": pa.array(times, pa.int64()), "id": pa.array(ids, pa.int64())})
    folder.mkdir(exist_ok=True)
    hidden = folder / f".part-{number:03d}"
    pq.write_table(table, hidden)
    hidden.rename(folder / f"part-{number:03d}.parquet")
    return Counter(zip(times, ids, strict=True))


def test_replay_follows_a_capture_that_is_running(spark: SparkSession, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in", 0, [0, 1])
    files = spark.readStream.schema("t long, id long").parquet(str(tmp_path / "in"))
    queries: list[StreamingQuery] = []
    try:
        capture = (
            files.writeStream.format("timely")
            .option("timeColumn", "t")
            .option("frontier", "bounded")
            .option("lateness", 1)
            .option("checkpointLocation", str(tmp_path / "capture"))
            .start(str(tmp_path / "log"))
        )
        queries.append(capture)
        capture.processAllAvailable()
        seen = Seen()
        replay = (
            spark.readStream.format("timely")
            .load(str(tmp_path / "log"))
            .writeStream.foreachBatch(seen)
            .option("checkpointLocation", str(tmp_path / "replay"))
            .start()
        )
        queries.append(replay)
        for number in range(1, 5):
            rows += write_rows(tmp_path / "in", number, [2 * number - 1, 2 * number, 2 * number + 1])
            capture.processAllAvailable()
            replay.processAllAvailable()
            frontier = 2 * number  # greatest time less lateness
            assert seen.rows() == Counter({row: n for row, n in rows.items() if row[0] < frontier})
        capture.stop()
        spark_timely.open_log(str(tmp_path / "log")).close()
        wait_until(
            lambda: seen.rows() == rows, deadline_s=60, what="the end of the replay", report=lambda: repr(seen.batches)
        )
        # A time is never split over two micro-batches.
        times = [{t for t, _ in batch} for batch in seen.batches]
        assert all(not (a & b) for i, a in enumerate(times) for b in times[i + 1 :])
    finally:
        for query in queries:
            query.stop()


def test_replay_waits_for_the_slower_of_two_captures(spark: SparkSession, tmp_path: Path) -> None:
    """Two queries write two streams of one log at the same time; what the idle one has not closed is not given out."""
    rows: dict[str, Counter[tuple[int, int]]] = {}
    queries: list[StreamingQuery] = []
    captures: dict[str, StreamingQuery] = {}
    seen = Seen()

    def closed_before(frontier: int) -> Counter[tuple[int, int]]:
        both = rows["a"] + rows["b"]
        return Counter({row: n for row, n in both.items() if row[0] < frontier})

    try:
        for number, name in enumerate(("a", "b")):
            rows[name] = write_rows(tmp_path / name, 10 * number, [0])
            captures[name] = (
                spark.readStream.schema("t long, id long")
                .parquet(str(tmp_path / name))
                .writeStream.format("timely")
                .options(timeColumn="t", frontier="bounded", lateness=0, stream=name, streams=2)
                .option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
                .start(str(tmp_path / "log"))
            )
            queries.append(captures[name])
        for capture in captures.values():  # both create the log, or open the other's
            capture.processAllAvailable()
        replay = (
            spark.readStream.format("timely")
            .load(str(tmp_path / "log"))
            .writeStream.foreachBatch(seen)
            .option("checkpointLocation", str(tmp_path / "replay"))
            .start()
        )
        queries.append(replay)
        rows["a"] += write_rows(tmp_path / "a", 1, [1, 2, 3])
        captures["a"].processAllAvailable()
        replay.processAllAvailable()
        assert seen.rows() == closed_before(0), "b has closed nothing"
        rows["b"] += write_rows(tmp_path / "b", 11, [2, 2])
        captures["b"].processAllAvailable()
        replay.processAllAvailable()
        assert seen.rows() == closed_before(2)
        for number in range(2, 5):  # both at once
            rows["a"] += write_rows(tmp_path / "a", number, [number + 2] * 3)
            rows["b"] += write_rows(tmp_path / "b", 10 + number, [number + 2] * 2)
        for capture in captures.values():
            capture.processAllAvailable()
        replay.processAllAvailable()
        assert seen.rows() == closed_before(6)
        for query in (*captures.values(), replay):
            assert query.exception() is None
        assert spark_timely.open_log(str(tmp_path / "log")).verify().legal
    finally:
        for query in queries:
            query.stop()
