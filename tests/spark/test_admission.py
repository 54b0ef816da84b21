"""Rows without a usable time: `capture` puts into a log what the sink puts there, under any setting of the session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import spark_timely
from spark_timely import errors
from spark_timely.spark.capture.foreach_batch import capture
from tests.spark.test_foreach_batch import fixed_clock, frame
from tests.support import session_zone
from tests.unit.sink.driver import SinkDriver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_timely.log import Log

pytestmark = pytest.mark.spark
__all__ = ["fixed_clock"]

DAY = 86_400_000_000
NOW = 15_706 * DAY  # of the fixed clock
MOMENTS = [NOW, NOW - DAY, None, 2**60, 253_402_300_800_000_000, -98_616 * DAY, NOW + 1000 * DAY, NOW - 9 * DAY]
DATES = [15_706, None, 2_932_897, -98_616, 15_705, 15_690, 20_000]


def moments(name: str, first: int) -> pa.Table:
    times = pa.array(MOMENTS, pa.int64()).view(pa.timestamp("us", "UTC"))
    return pa.table({name: times, "id": pa.array(range(first, first + len(MOMENTS)), pa.int64())})


def dates(first: int, *, product: bool) -> pa.Table:
    times = pa.array(DATES, pa.int32()).view(pa.date32())
    ids = pa.array(range(first, first + len(DATES)), pa.int64())
    numbers = pa.array([1, 2, None, 4, 5, None, 7], pa.int64())
    return pa.table({"day": times, "id": ids, **({"n": numbers} if product else {})})


def contents(log: Log) -> dict[str, object]:
    """Return messages, dead letters and frontier; times as numbers, which Python's calendar may not have."""
    found: dict[str, object] = {"frontier": log.frontier()}
    for name, part in (("messages", log.messages()), ("dead", log.dead())):
        columns = {column: values(part[column]) for column in part.schema.names}
        found[name] = sorted(zip(*columns.values(), strict=True), key=repr)
    return found


def values(column: pa.ChunkedArray) -> list[object]:
    array = column.combine_chunks()
    if pa.types.is_timestamp(array.type) or pa.types.is_date32(array.type):
        array = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    return array.to_pylist()


CASES = {
    "timestamps": (
        lambda first: moments("t", first),
        {"timeColumn": "t", "frontier": "bounded", "maxFutureSkew": "1 day"},
    ),
    "own column": (lambda first: moments("_time", first), {"timeColumn": "_time", "frontier": "hold"}),
    "product": (lambda first: dates(first, product=True), {"timeColumn": "n,day", "frontier": "hold"}),
}


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("late_data", ["deadLetter", "advance"])
def test_capture_sets_apart_what_the_sink_does(spark: SparkSession, tmp_path: Path, case: str, late_data: str) -> None:
    make, options = CASES[case]
    options = {**options, "badTime": "deadLetter", "lateData": late_data}
    if case == "own column":
        options["lateData"] = "deadLetter"  # nothing else would hold the row's own time
    driver, other = SinkDriver(tmp_path / "sink", **options), SinkDriver(tmp_path / "capture", **options)
    with session_zone(spark, "America/New_York" if late_data == "advance" else "UTC"):
        for batch in range(2):
            rows = make(100 * batch)
            driver.run([rows.slice(0, 3), rows.slice(3)])
            outcome = capture(frame(spark, rows), batch, path=str(other.log_path), app_id="query-a", **options)
            assert outcome.committed
        again = capture(frame(spark, make(100)), 1, path=str(other.log_path), app_id="query-a", **options)
    assert not again.committed
    assert again.state.note.differing == 0  # the same digest, whatever stands in for a time
    sink, captured = contents(driver.log()), contents(other.log())
    assert sink == captured
    assert driver.log().streams()["main"].note.mover == other.log().streams()["main"].note.mover or case == "timestamps"


def test_capture_names_the_option_for_a_row_without_a_time(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidUsageError, match=r"found null in row .* set badTime to 'deadLetter'"):
        capture(
            frame(spark, moments("t", 0)), 0, path=str(tmp_path / "log"), app_id="a", timeColumn="t", frontier="hold"
        )


def test_letters_are_read_in_spark_and_brought_back(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql import functions as F

    path, source = str(tmp_path / "log"), tmp_path / "source"
    frame(spark, moments("t", 0).slice(0, 4)).write.parquet(str(source))
    query = spark_timely.start(
        spark.readStream.schema("t timestamp, id long").parquet(str(source)),
        path=path,
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="availableNow",
        time_column="t",
        frontier="bounded",
        lateness="2 days",
        bad_time="deadLetter",
    )
    query.await_termination()
    assert caplog.text.count("without maxFutureSkew") == 1
    assert query.progress is not None
    assert query.progress["timely"]["dead"] == query.progress["timely"]["dead_letters"] == 2

    letters = spark.read.format("timely").option("content", "dead").load(path)
    found = letters.select("_log_id", "_stream", "_seq", "_reason", "id").orderBy("id").collect()
    log = spark_timely.open_log(path)
    assert [(row["_log_id"], row["_stream"], row["id"]) for row in found] == [
        (log.core.log_id, "main", 2),
        (log.core.log_id, "main", 3),
    ]
    assert [row["_reason"] for row in found] == ["no time: found null", f"out of bounds: found us:{2**60}"]

    def streamed() -> list[int]:
        taken: list[int] = []
        stream = spark.readStream.format("timely").option("content", "dead").load(path)
        following = (
            stream.writeStream.foreachBatch(lambda df, _: taken.extend(row["id"] for row in df.select("id").collect()))
            .option("checkpointLocation", str(tmp_path / "letters"))
            .trigger(availableNow=True)
            .start()
        )
        following.awaitTermination()
        return sorted(taken)

    assert streamed() == [2, 3]
    assert streamed() == []
    (seq,) = {row["_seq"] for row in found}
    fixed = letters.where(F.col("_seq") == seq).withColumn("_time", F.timestamp_micros(F.lit(NOW)))
    fixed = fixed.withColumn("t", F.col("_time"))
    assert log.resubmit(seq, fixed.toArrow(), log_id=found[0]["_log_id"]).committed
    assert not log.resubmit(seq, fixed.toArrow()).committed
    assert sorted(log.messages()["id"].to_pylist()) == [0, 1, 2, 3]
