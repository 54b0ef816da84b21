"""What changes while queries run: columns of a log, the owner of a stream, a source that falls silent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality

import spark_timely
from tests.faults.harness import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BOUNDED = {"time_column": "t", "frontier": "bounded", "lateness": 3, "late_data": "deadLetter"}


def put(folder: Path, name: str, **columns: list[object]) -> None:
    """Put a file into the folder in one step."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    pq.write_table(pa.table(columns), hidden)
    hidden.rename(folder / f"{name}.parquet")


class Seen:
    """Columns and rows that a replay was given."""

    def __init__(self) -> None:
        self.columns: set[tuple[str, ...]] = set()
        self.rows: Counter[tuple[object, ...]] = Counter()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        del batch_id
        self.columns.add(tuple(df.columns))
        self.rows.update(tuple(row) for row in df.collect())


def test_replay_keeps_its_columns_until_it_restarts(spark: SparkSession, tmp_path: Path) -> None:
    log, folder = str(tmp_path / "log"), tmp_path / "in"

    def capture(schema: str, **options: object) -> None:
        files = spark.readStream.schema(schema).parquet(str(folder))
        spark_timely.start(
            files, path=log, checkpoint=str(tmp_path / "capture"), trigger="availableNow", **BOUNDED, **options
        ).await_termination()

    def replay(seen: Seen) -> object:
        read = spark.readStream.format("timely").load(log)
        return read.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / "replay")).start()

    put(folder, "a", t=[1, 5], id=[1, 2])
    capture("t long, id long")
    first, second = Seen(), Seen()
    running = replay(first)
    try:
        running.processAllAvailable()
        put(folder, "b", t=[6, 9], id=[3, 4], note=["x", "y"])
        with pytest.raises(Exception, match="column 'note': found no such column in the log"):
            capture("t long, id long, note string")
        # Refused by the sink, and taken by Spark's own writer.
        capture("t long, id long, note string", merge_schema=True, through="foreachBatch")
        running.processAllAvailable()
    finally:
        running.stop()
    assert first.columns == {("t", "id")}
    assert first.rows == Counter([(1, 1), (5, 2)])
    assert spark.read.format("timely").option("delivery", "arrival").load(log).columns == ["t", "id", "note"]
    plain = spark.read.format("delta").load(log).where("_event = 'message'").select("id", "note")
    wanted = spark.createDataFrame([(1, None), (2, None), (3, "x"), (4, "y")], plain.schema)
    assert_df_equality(plain, wanted, ignore_row_order=True)
    # Another query takes the stream over, without the column.
    put(tmp_path / "other", "c", t=[20, 20], id=[5, 6])
    other = spark.readStream.schema("t long, id long").parquet(str(tmp_path / "other"))
    keywords = {"path": log, "checkpoint": str(tmp_path / "takes"), "trigger": "availableNow", **BOUNDED}
    with pytest.raises(Exception, match="takeover=true"):
        spark_timely.start(other, **keywords).await_termination()
    for _ in range(2):  # the second time it owns the stream already
        spark_timely.start(other, **keywords, takeover=True).await_termination()
    put(folder, "d", t=[30], id=[7], note=["z"])
    with pytest.raises(Exception, match="found it owned by"):
        capture("t long, id long, note string", merge_schema=True)
    restarted = replay(second)
    try:
        restarted.processAllAvailable()
    finally:
        restarted.stop()
    assert second.columns == {("t", "id", "note")}
    assert second.rows == Counter([(6, 3, "x"), (9, 4, "y")])
    assert spark_timely.open_log(log).core.stream("main").epoch == 1
    assert spark_timely.open_log(log).verify().legal


@pytest.mark.parametrize("through", ["sink", "foreachBatch"])
def test_silent_source_completes_what_was_captured(spark: SparkSession, tmp_path: Path, through: str) -> None:
    path, folder = str(tmp_path / "log"), tmp_path / "in"
    put(folder, "a", t=[1, 9], id=[1, 2])
    files = spark.readStream.schema("t long, id long").parquet(str(folder))
    query = spark_timely.start(
        files,
        path=path,
        checkpoint=str(tmp_path / "capture"),
        through=through,  # type: ignore[arg-type]
        idle_timeout="300 ms",
        **BOUNDED,
    )
    reasons: list[str] = []

    def frontier_is(time: int) -> None:
        def reached() -> bool:
            if not (tmp_path / "log" / "_delta_log" / f"{0:020}.json").exists():
                return False
            state = spark_timely.open_log(path).core.stream("main")
            if state is None:
                return False
            reasons[:] = [str(state.frontier), state.reason]
            return state.frontier.elements == ((time,),)

        wait_until(reached, deadline_s=60, what=f"frontier {time}", report=lambda: str(reasons))

    try:
        frontier_is(10)
        assert "idle: no micro-batch for 300 milliseconds" in reasons[1]
        put(folder, "b", t=[8, 12], id=[3, 4])  # 8 would have been within the lateness
        frontier_is(13)
        assert query.is_active
    finally:
        query.stop()
    log = spark_timely.open_log(path)
    assert log.messages()["t"].to_pylist() == [1, 9, 12]
    assert log.dead()["t"].to_pylist() == [8]
    assert log.verify().legal
    assert not (tmp_path / "capture" / "timely-gate").exists()
