"""The sink and `start` through real queries: what is in the log, and what a user is shown."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_timely
from spark_timely import errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def put(folder: Path, index: int, times: list[int | None]) -> None:
    """Write the rows of a micro-batch as one Parquet file."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = [100 * index + place for place in range(len(times))]
    table = pa.table({"t": pa.array(times, pa.int64()), "id": pa.array(ids, pa.int64())})
    file = folder / f"part-{index:05d}.parquet"
    pq.write_table(table, file)
    # The file source goes by modification times, and files of one millisecond are in no order.
    os.utime(file, (1_700_000_000 + index, 1_700_000_000 + index))


def arrivals(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the files of a folder as a stream, one per micro-batch."""
    return (
        spark.readStream.schema("t long, id long")
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", "false")
        .parquet(str(folder))
    )


def capture_all(df: DataFrame, folder: Path, **options: str) -> None:
    """Run the sink until the input is used up."""
    query = (
        df.writeStream.format("timely")
        .options(**{"checkpointLocation": str(folder / "checkpoint"), "path": str(folder / "log"), **options})
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def last_line(error: BaseException) -> str:
    """Return the line of a traceback that says what went wrong, as a user looks for it."""
    lines = [line for line in str(error).splitlines() if "[TIMELY_" in line]
    assert lines, str(error)
    return lines[-1]


BOUNDED = {"timeColumn": "t", "frontier": "bounded", "lateness": "1"}


def test_late_row_fails_the_query_with_a_line_that_suffices(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0, [5, 9])
    capture_all(arrivals(spark, tmp_path / "in"), tmp_path, **BOUNDED)
    log = spark_timely.open_log(str(tmp_path / "log"))
    version, files = log.core.version, set((tmp_path / "log").rglob("*.parquet"))
    put(tmp_path / "in", 1, [9, 3])
    with pytest.raises(Exception, match="found time 3") as found:
        capture_all(arrivals(spark, tmp_path / "in"), tmp_path, **BOUNDED)
    line = last_line(found.value)
    assert "[TIMELY_LATE_DATA] could not capture row {'t': 3, 'id': 101} in stream 'main': found time 3 behind" in line
    assert "hint: set lateData to 'deadLetter'" in line
    log.refresh()
    assert log.core.version == version
    assert set((tmp_path / "log").rglob("*.parquet")) == files
    # The option that the error names lets the row pass; nothing else changed.
    capture_all(arrivals(spark, tmp_path / "in"), tmp_path, **BOUNDED, lateData="deadLetter")
    log.refresh()
    assert log.messages()["t"].to_pylist() == [5, 9, 9]
    assert log.dead()["id"].to_pylist() == [101]


@pytest.mark.parametrize(
    ("mode", "options", "text"),
    [
        ("append", {"timeColumn": "x", "frontier": "hold"}, "found no column 'x'"),
        ("append", {"frontier": "bounded"}, "frontier='bounded' without option 'timeColumn'"),
        ("append", {"checkpointLocation": None}, "option 'checkpointLocation' is missing"),
        ("complete", {}, "found output mode 'complete'"),
    ],
)
def test_refusal_before_any_task_is_told_in_one_line(
    spark: SparkSession, tmp_path: Path, mode: str, options: dict[str, str | None], text: str
) -> None:
    put(tmp_path / "in", 0, [5])
    df = arrivals(spark, tmp_path / "in")
    if mode == "complete":
        df = df.groupBy("t").count()
    writer = df.writeStream.format("timely").outputMode(mode).option("path", str(tmp_path / "log"))
    given = {"checkpointLocation": str(tmp_path / "checkpoint"), **options}
    if given["checkpointLocation"] is None:
        # Spark itself takes the location from the session; the sink is not shown it.
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "hidden"))
    for name, value in given.items():
        if value is not None:
            writer = writer.option(name, value)
    try:
        with pytest.raises(Exception, match="could not") as found:
            writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert text in last_line(found.value)
    assert "hint: " in last_line(found.value)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("through", ["sink", "foreachBatch"])
def test_start_closes_the_stream_after_a_clean_end_only(spark: SparkSession, tmp_path: Path, through: str) -> None:
    put(tmp_path / "in", 0, [5, 9])
    put(tmp_path / "in", 1, [3])
    keywords = {"path": str(tmp_path / "log"), "checkpoint": str(tmp_path / "checkpoint"), "trigger": "availableNow"}
    options = {"time_column": ["t"], "frontier": "bounded", "lateness": 1, "target_file_size": "1mb"}
    with pytest.raises(Exception, match="found time 3"):
        spark_timely.start(
            arrivals(spark, tmp_path / "in"), **keywords, through=through, on_finish="close", **options
        ).await_termination()
    log = spark_timely.open_log(keywords["path"])
    assert log.frontier().to_json() == [8]
    query = spark_timely.start(
        arrivals(spark, tmp_path / "in"),
        **keywords,
        through=through,
        on_finish="close",
        query_name=f"closing_{through}",
        late_data="advance",
        **options,
    )
    assert query.await_termination()
    assert not query.is_active
    assert json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"] == query.id
    log.refresh()
    assert log.frontier().is_empty
    assert log.messages()["_time"].to_pylist() == [5, 8, 9]
    assert log.verify().legal
    state = log.core.stream("main")
    assert state is not None
    assert state.reason == f"end of query {query.id}"
    # Nothing new came: running it again is no error, and closes nothing twice.
    again = spark_timely.start(
        arrivals(spark, tmp_path / "in"), **keywords, through=through, on_finish="close", late_data="advance", **options
    )
    assert again.await_termination(60)
    version = log.core.version
    log.refresh()
    assert log.core.version == version


def test_start_of_a_query_without_input_gives_a_complete_log(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    query = spark_timely.start(
        arrivals(spark, tmp_path / "in"),
        path=str(tmp_path / "log"),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available_now",
        on_finish="close",
    )
    query.await_termination()
    log = spark_timely.open_log(str(tmp_path / "log"))
    assert log.frontier().is_empty
    assert log.schema.names == ["t", "id"]


def test_stopped_query_keeps_its_stream_open(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0, [5, 9])
    query = spark_timely.start(
        arrivals(spark, tmp_path / "in"),
        path=str(tmp_path / "log"),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
        on_finish="close",
    )
    query.stop()
    assert query.await_termination(60)
    if (tmp_path / "log" / "_delta_log").exists():
        assert not spark_timely.open_log(str(tmp_path / "log")).frontier().is_empty


def test_query_stopped_from_elsewhere_keeps_its_stream_open(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(40):
        put(tmp_path / "in", index, [index])
    keywords = {"path": str(tmp_path / "log"), "checkpoint": str(tmp_path / "checkpoint"), "trigger": "availableNow"}
    query = spark_timely.start(
        arrivals(spark, tmp_path / "in"), **keywords, on_finish="close", through="foreachBatch", frontier="batch"
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "checkpoint" / "commits" / "0").exists() and time.monotonic() < deadline:
        query.await_termination(1)
    spark.streams.get(query.id).stop()
    assert query.await_termination(60)
    log = spark_timely.open_log(keywords["path"])
    assert not log.frontier().is_empty
    assert "the stream stays open" in caplog.text
    # The rest of the input in one go; this run ends by itself, with rows in its last micro-batch.
    rest = spark.readStream.schema("t long, id long").parquet(str(tmp_path / "in"))
    again = spark_timely.start(rest, **keywords, on_finish="close", through="foreachBatch", frontier="batch")
    assert again.await_termination(60)
    log.refresh()
    assert log.frontier().is_empty
    assert sorted(log.messages()["t"].to_pylist()) == list(range(40))
    assert spark.conf.get("spark.sql.streaming.noDataProgressEventInterval", None) in (None, "10000ms", "10s", "10000")


@pytest.mark.parametrize(
    ("keywords", "kind", "text"),
    [
        ({"on_finish": "close"}, errors.InvalidOptionError, "on_finish='close' with trigger {}"),
        ({"on_finish": "close", "trigger": "5 seconds"}, errors.InvalidOptionError, "'processingTime': '5 seconds'"),
        ({"on_finish": "maybe"}, errors.InvalidOptionError, "found on_finish='maybe'"),
        ({"through": "delta"}, errors.InvalidOptionError, "found through='delta'"),
        ({"time_column": "t"}, errors.InvalidOptionError, "'timeColumn' without option 'frontier'"),
        ({"time_column": "x", "frontier": "hold"}, errors.InvalidOptionError, "found no column 'x'"),
        ({"lateNes": 3}, errors.InvalidOptionError, "did you mean 'lateness'?"),
    ],
)
def test_start_called_wrongly_is_refused_at_once(
    spark: SparkSession, tmp_path: Path, keywords: dict[str, object], kind: type[Exception], text: str
) -> None:
    put(tmp_path / "in", 0, [5])
    df = arrivals(spark, tmp_path / "in")
    given = {"path": str(tmp_path / "log"), "checkpoint": str(tmp_path / "c"), **keywords}
    with pytest.raises(kind) as found:
        spark_timely.start(df, **given)
    assert text in str(found.value)
    assert not (tmp_path / "c").exists()


def test_start_of_a_batch_dataframe_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidUsageError, match="not streaming"):
        spark_timely.start(spark.range(3), path=str(tmp_path / "log"), checkpoint=str(tmp_path / "c"))


@pytest.mark.parametrize("place", ["a b/ü/a%20b", "~"])
def test_checkpoint_is_where_spark_has_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Spark decodes no URL and knows no home; a second run that looked elsewhere would be another query."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    log, checkpoint = str(tmp_path / "log"), (tmp_path / "of query" / place)
    put(tmp_path / "in", 0, [1, 2])
    given = checkpoint.as_uri() if place != "~" else f"{tmp_path}/of query/~"
    for index in (1, 2):
        writer = arrivals(spark, tmp_path / "in").writeStream.format("timely")
        writer = writer.options(path=log, timeColumn="t", frontier="bounded", checkpointLocation=given)
        writer.trigger(availableNow=True).start().awaitTermination()
        put(tmp_path / "in", index, [3])
    assert spark_timely.open_log(log).messages().num_rows == 3
    found = [folder for folder, _, files in os.walk(tmp_path) if "timely-logs" in files]
    assert len(found) == 1
    assert "metadata" in os.listdir(found[0])


def test_function_after_the_format_takes_its_place(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0, [1, 2])
    seen: list[int] = []
    writer = arrivals(spark, tmp_path / "in").writeStream.format("timely")
    writer = writer.foreachBatch(lambda rows, _: seen.append(rows.count()))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert seen == [2]
