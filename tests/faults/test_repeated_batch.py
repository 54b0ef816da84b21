"""A crash between the log's commit and Spark's: the micro-batch comes again and changes nothing.

Under every frontier policy with ``lateData=error``: a repeated batch that were judged by the counts *after*
its first commit would find its own rows late, and the query would be stuck for ever.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from tests.faults.harness import delete_last_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]

POLICIES: dict[str, dict[str, str]] = {
    "batch": {"frontier": "batch"},
    "bounded": {"timeColumn": "t", "frontier": "bounded", "lateness": "1"},
    "skew": {"timeColumn": "t", "frontier": "bounded", "lateness": "0", "maxFutureSkew": "100"},
    "events": {"frontier": "events"},
    "hold": {"timeColumn": "t", "frontier": "hold"},
}
EVENTS = "id long, t long, _event string, _time long, _delta long"
# Per micro-batch: the times of its rows. Every batch but the first would be late if judged by the
# frontier after itself; the last but one is empty.
BATCHES: list[list[int]] = [[1, 2, 2, 5], [5, 7, 9, 9], [], [9, 10, 11]]


def write_batch(folder: Path, index: int, policy: str) -> None:
    """Write the rows of a micro-batch as one Parquet file."""
    folder.mkdir(parents=True, exist_ok=True)
    times = BATCHES[index]
    ids = [100 * index + place for place in range(len(times))]
    columns: dict[str, pa.Array] = {"t": pa.array(times, pa.int64()), "id": pa.array(ids, pa.int64())}
    if policy == "events":
        # Message rows at their times; then the capability moves to the greatest time of the batch.
        greatest = max(times, default=None)
        before = max((t for batch in BATCHES[:index] for t in batch), default=-(2**63))
        moves = [] if greatest is None else [(before, -1), (greatest, 1)]
        n_moves = len(moves)
        columns = {
            "id": pa.array([*ids, *[None] * n_moves], pa.int64()),
            "t": pa.array([*times, *[None] * n_moves], pa.int64()),
            "_event": pa.array(["message"] * len(ids) + ["progress"] * n_moves),
            "_time": pa.array([*times, *[time for time, _ in moves]], pa.int64()),
            "_delta": pa.array([None] * len(ids) + [delta for _, delta in moves], pa.int64()),
        }
    file = folder / f"part-{index:05d}.parquet"
    pq.write_table(pa.table(columns), file)
    os.utime(file, (1_700_000_000 + index, 1_700_000_000 + index))


def run(spark: SparkSession, folder: Path, policy: str, through: str) -> None:
    """Run the query until its input is used up."""
    schema = EVENTS if policy == "events" else "t long, id long"
    df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    options = {"lateData": "error", **POLICIES[policy]}
    checkpoint = str(folder / "checkpoint")
    if through == "sink":
        writer = df.writeStream.format("timely").options(**options).option("path", str(folder / "log"))
    else:
        names = {"timeColumn": "time_column", "lateData": "late_data", "maxFutureSkew": "max_future_skew"}
        keywords = {names.get(name, name): value for name, value in options.items()}
        log = str(folder / "log")

        def into_log(batch: DataFrame, batch_id: int) -> None:
            spark_timely.capture(batch, batch_id, path=log, checkpoint=checkpoint, **keywords)

        writer = df.writeStream.foreachBatch(into_log)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def data_files(folder: Path) -> set[str]:
    """Return the message files that lie in the log's folder, whether the log knows them or not."""
    return {str(file.relative_to(folder)) for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts}


def ids(folder: Path) -> Counter[int]:
    """Return the ids of the log's messages."""
    return Counter(spark_timely.open_log(str(folder)).messages()["id"].to_pylist())


# Each policy one way: without Spark each is repeated in `tests/unit/sink/test_attempts.py`, and by any cut in
# `tests/property/test_same_answer.py`.
SHORT = set(zip(sorted(POLICIES), itertools.cycle(["sink", "foreachBatch"]), strict=False))


@pytest.mark.parametrize(
    ("policy", "through"),
    [
        pytest.param(*case, marks=[] if case in SHORT else pytest.mark.long)
        for case in itertools.product(sorted(POLICIES), ["sink", "foreachBatch"])
    ],
)
def test_batch_repeated_after_a_crash_between_commits_is_a_no_op(
    spark: SparkSession, tmp_path: Path, policy: str, through: str
) -> None:
    expected: Counter[int] = Counter()
    for index, times in enumerate(BATCHES):
        write_batch(tmp_path / "in", index, policy)
        expected.update(100 * index + place for place in range(len(times)))
        run(spark, tmp_path, policy, through)
        log = spark_timely.open_log(str(tmp_path / "log"))
        version, frontier, state = log.core.version, log.frontier(), log.core.stream("main")
        files = data_files(tmp_path / "log")
        assert ids(tmp_path / "log") == expected

        assert delete_last_commit(tmp_path / "checkpoint") == index
        run(spark, tmp_path, policy, through)

        log = spark_timely.open_log(str(tmp_path / "log"))
        assert log.core.stream("main") == state
        assert log.frontier() == frontier
        assert log.core.version == version, "the repeated micro-batch made a commit of its own"
        assert data_files(tmp_path / "log") == files, "the repeated micro-batch left files behind"
        assert ids(tmp_path / "log") == expected
    assert log.verify().legal


@pytest.mark.parametrize("through", ["sink", "foreachBatch"])
def test_repeated_batch_with_other_rows_is_counted_alone(spark: SparkSession, tmp_path: Path, through: str) -> None:
    write_batch(tmp_path / "in", 0, "bounded")
    run(spark, tmp_path, "bounded", through)
    log = spark_timely.open_log(str(tmp_path / "log"))
    before = ids(tmp_path / "log")
    delete_last_commit(tmp_path / "checkpoint")
    # The input was rewritten in between: Spark plans the same micro-batch again, and reads other rows.
    file = tmp_path / "in" / "part-00000.parquet"
    pq.write_table(pa.table({"t": pa.array([1], pa.int64()), "id": pa.array([7], pa.int64())}), file)
    run(spark, tmp_path, "bounded", through)
    log.refresh()
    assert ids(tmp_path / "log") == before
    assert log.core.stream("main").note.differing == 1
