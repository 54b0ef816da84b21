"""Micro-batches through the writer in Spark's order: what is in the log, under every policy."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as spark

from spark_timely import errors
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol import rules
from spark_timely.sink.writer import TimelyStreamWriter
from spark_timely.spark.base.shipping import _source
from tests.faults.harness import long_lane
from tests.oracles.capture_model import CaptureModel, LateRowError
from tests.unit.sink.driver import BOUNDED, MIN, SCHEMA, SinkDriver, rows


def split(table: pa.Table, rng: random.Random) -> list[pa.Table]:
    """Spread rows over up to three tasks, some of them without rows."""
    owners = np.array([rng.randrange(3) for _ in range(table.num_rows)], dtype=int)
    return [table.filter(pa.array(owners == task)) for task in range(3)]


def pairs(table: pa.Table) -> Counter[tuple[int, int]]:
    """Return (time, id) of rows, with how often each occurs."""
    return Counter(zip(table["_time"].to_pylist(), table["id"].to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(30 if long_lane() else 1))
@pytest.mark.parametrize("late_data", ["error", "deadLetter", "advance"])
@pytest.mark.parametrize("policy", ["batch", "bounded", "skew", "hold"])
def test_any_cut_over_tasks_and_batches_equals_the_model(
    tmp_path: Path, policy: str, late_data: str, seed: int
) -> None:
    rng = random.Random(f"{policy} {late_data} {seed}")
    options = {"frontier": "bounded" if policy == "skew" else policy, "lateData": late_data}
    if policy != "batch":
        options["timeColumn"] = "t"
    if options["frontier"] == "bounded":
        options["lateness"] = "2"
    driver = SinkDriver(tmp_path, **options)
    model = CaptureModel(0 if policy == "batch" else MIN, options["frontier"], late_data, 2)
    if policy == "skew":
        driver.options["maxFutureSkew"] = "9"
    now, first = 0, 0
    for _ in range(7):
        size = rng.choice([0, 0, 1, 4, 9])
        times = [max(0, now + rng.randint(-4 if rng.random() < 0.4 else 0, 4)) for _ in range(size)]
        if times and rng.random() < 0.3:
            times[0] = now + 50
        now += rng.randint(0, 3)
        data = rows(times, first)
        first += size
        if policy == "skew":
            # Integer times are measured from the held time, once there is one.
            model.ceiling = None if model.frontier == MIN else (model.frontier or 0) + 9
        before = (driver.log().core.version if driver.log_path.exists() else None, driver.data_files())
        if policy == "hold" and driver.log_path.exists() and rng.random() < 0.4:
            driver.log().advance("main", [now])
            model.frontier = now
            before = (driver.log().core.version, driver.data_files())
        try:
            model.batch([(t, (("id", i),)) for t, i in zip(*data.to_pydict().values(), strict=True)])
        except LateRowError:
            with pytest.raises(errors.LateDataError):
                driver.run(split(data, rng))
            assert (driver.log().core.version, driver.data_files()) == before
            # The source moves on without these rows.
            (driver.checkpoint / "offsets" / str(driver.next_batch())).unlink()
            continue
        driver.run(split(data, rng))
        if rng.random() < 0.3:  # the driver dies between the two commits
            (driver.checkpoint / "commits" / str(driver.next_batch() - 1)).unlink()
            before = (driver.log().core.version, driver.data_files())
            driver.run(split(data, rng))
            assert (driver.log().core.version, driver.data_files()) == before
    log = driver.log()
    assert pairs(log.messages()) == Counter((t, row[0][1]) for t, row in model.messages)
    assert pairs(log.dead()) == Counter((t, row[0][1]) for t, row in model.dead)
    assert log.frontier().elements == ((model.frontier,),)
    assert log.verify().legal


def test_first_micro_batch_makes_the_log_and_preparing_does_not(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, streams="2")
    writer = driver.writer(SCHEMA)
    writer.write(iter([]))
    assert not driver.log_path.exists()
    driver.run([rows([4])])
    log = driver.log()
    assert log.core.unclaimed == 1
    assert log.frontier().elements == ((MIN,),)
    assert log.core.stream("main").frontier.elements == ((3,),)
    assert log.core.stream("main").owner == "query-a"


def test_micro_batch_without_rows_and_with_one_empty_task(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path)
    driver.run([pa.table({"id": pa.array([], pa.int64())})])
    log = driver.log()
    assert log.frontier().elements == ((1,),)
    assert log.core.stream("main").rows == 0
    assert log.messages().num_rows == 0
    driver.run([pa.table({"id": [5]})])
    assert pairs(driver.log().messages()) == {(1, 5): 1}


def test_each_micro_batch_is_one_commit_of_the_stream(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    for n, times in enumerate([[1], [2, 3], []], start=1):
        driver.run([rows(times), rows(times)])
        assert driver.log().core.stream("main").seq == n
        assert driver.log().core.stream("main").batch == n - 1


def test_query_id_that_nobody_tells_is_refused(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.options["checkpointLocation"] = "hdfs://nowhere/checkpoint"
    with pytest.raises(errors.StorageError, match="could not commit micro-batch 0: found no query id"):
        driver.run([rows([4])])
    assert driver.data_files() == set()


def test_second_stream_joins_at_the_frontier_of_a_live_one(tmp_path: Path) -> None:
    SinkDriver(tmp_path, **BOUNDED).run([rows([9])])
    other = SinkDriver(tmp_path, query="query-b", checkpoint="b", stream="other", **BOUNDED)
    with pytest.raises(errors.LateDataError, match=r"in stream 'other': found time 7 behind the frontier \[8\]"):
        other.run([rows([7])])
    assert other.log().core.stream("other") is None
    other.run([rows([8, 12])])
    assert other.log().core.stream("other").frontier.elements == ((11,),)
    assert other.log().frontier().elements == ((8,),)
    assert other.log().verify().legal


def test_second_stream_claims_the_capability_that_waits_for_it(tmp_path: Path) -> None:
    SinkDriver(tmp_path, **BOUNDED, streams="2").run([rows([9])])
    other = SinkDriver(tmp_path, query="query-b", checkpoint="b", stream="other", **BOUNDED, streams="2")
    other.run([rows([3])])
    assert other.log().frontier().elements == ((2,),)
    assert other.log().core.unclaimed == 0


def test_joiner_whose_donor_moved_on_is_refused_and_runs_again(tmp_path: Path) -> None:
    donor = SinkDriver(tmp_path, **BOUNDED)
    donor.run([rows([9])])
    other = SinkDriver(tmp_path, query="query-b", checkpoint="b", stream="other", **BOUNDED)
    writer = other.writer(SCHEMA)
    message = writer.write(iter(rows([8]).to_batches()))
    donor.run([rows([20])])
    with pytest.raises(errors.NotBeyondError, match="time 8"):
        other.writer(SCHEMA).commit([message], 0)
    assert other.log().core.stream("other") is None
    other.run([rows([30])])
    assert other.log().verify().legal


def test_stream_opened_by_hand_for_the_query_is_used(tmp_path: Path) -> None:
    SinkDriver(tmp_path, **BOUNDED).run([rows([9])])
    other = SinkDriver(tmp_path, query="query-b", checkpoint="b", stream="other", **BOUNDED)
    other.log().core.open_stream("other", owner="query-b", donor="main", at=15)
    other.run([rows([15, 20])])
    assert other.log().core.stream("other").frontier.elements == ((19,),)


def test_product_times_dead_letters_and_advanced_rows(tmp_path: Path) -> None:
    create_log(str(tmp_path / "log"), pa.schema([("a", pa.int64()), ("b", pa.int64())]), times=("long", "long"))
    data = pa.table({"a": pa.array([1, 2, 9], pa.int64()), "b": pa.array([1, 9, 0], pa.int64())})
    for late_data, kept in (("deadLetter", [(2, 9), (9, 0)]), ("advance", [(1, 4), (2, 9), (2, 9), (9, 0), (9, 0)])):
        driver = SinkDriver(tmp_path, timeColumn="a,b", frontier="hold", lateData=late_data)
        if late_data == "deadLetter":
            driver.run([data.slice(0, 0)])
            driver.log().advance("main", [[1, 4], [3, 0]])
        driver.run([data])
        log = driver.log()
        found = log.messages()
        assert sorted(zip(found["_time_0"].to_pylist(), found["_time_1"].to_pylist(), strict=True)) == kept
        assert log.dead()["_reason"].to_pylist() == ["late: behind the frontier [[1, 4], [3, 0]]"]
        assert log.verify().legal


def test_dead_letters_are_in_the_commit_with_reason_and_clock(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="deadLetter", maxFutureSkew="10")
    driver.run([rows([9])])
    driver.run([rows([3, 8, 50], 10)])
    dead = driver.log().dead().sort_by("id")
    assert dead["_reason"].to_pylist() == ["late: behind the frontier [8]", "skewed: after 18"]
    assert dead["_time"].to_pylist() == dead["t"].to_pylist() == [3, 50]
    assert dead["_seq"].to_pylist() == [2, 2]
    assert dead["_at"].null_count == 0
    assert driver.log().core.stream("main").reason == "bounded; 2 dead letters"
    assert driver.log().core.stream("main").frontier.elements == ((8,),)


def test_advanced_rows_keep_their_payload_and_are_counted(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED, lateData="advance", maxFutureSkew="10")
    driver.run([rows([9])])
    driver.run([rows([3, 12, 50], 10)])
    found = driver.log().messages().sort_by("id")
    assert found["_time"].to_pylist() == [9, 8, 12, 50]
    assert found["t"].to_pylist() == [9, 3, 12, 50]
    reason = driver.log().core.stream("main").reason
    assert reason == "bounded: greatest time 12, lateness 1; 1 rows advanced; 1 skewed rows kept"


def test_collection_log_has_diffs_and_no_such_payload_column(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, diffColumn="d")
    driver.run([pa.table({"d": pa.array([1, -1, 2], pa.int32()), "id": [1, 1, 2]})])
    log = driver.log()
    assert log.kind == "collection"
    assert log.schema.names == ["id"]
    assert log.snapshot(0).select(["id", "_diff"]).to_pylist() == [{"id": 2, "_diff": 2}]


def test_replayed_time_column_is_used_and_not_stored_twice(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="_time", frontier="hold")
    driver.run([pa.table({"_time": pa.array([3], pa.int64()), "id": [1]})])
    assert driver.log().schema.names == ["id"]
    assert pairs(driver.log().messages()) == {(3, 1): 1}


def test_time_column_whose_name_only_looks_like_the_logs_is_kept(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="_timestamp", frontier="hold")
    driver.run([pa.table({"_timestamp": pa.array([3], pa.int64()), "id": [1]})])
    assert driver.log().messages()["_timestamp"].to_pylist() == [3]


def test_events_keep_the_minimum_that_their_column_tells(tmp_path: Path) -> None:
    facts = '{"version": 1, "kind": "stream", "times": ["long"], "minimum": [0], "nullable": {}}'
    schema = (
        spark.StructType()
        .add("_event", spark.StringType(), False, {"timely.log": facts})
        .add("_stream", "string")
        .add("_delta", "long")
        .add("_time", "long")
        .add("id", "long")
    )
    data = pa.table(
        {
            "_event": ["progress", "message", "progress"],
            "_stream": ["a", "a", "a"],
            "_delta": pa.array([-1, None, 1], pa.int64()),
            "_time": pa.array([0, 2, 4], pa.int64()),
            "id": pa.array([None, 7, None], pa.int64()),
        }
    )
    driver = SinkDriver(tmp_path, frontier="events")
    driver.run([data], schema=schema)
    assert driver.log().domain.minimum == (0,)
    assert driver.log().frontier().elements == ((4,),)
    assert pairs(driver.log().messages()) == {(2, 7): 1}


def test_arrow_in_the_sessions_zone_is_stored_in_utc(tmp_path: Path) -> None:
    moment = dt.datetime(2013, 1, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    zone = pa.timestamp("us", "America/New_York")
    data = pa.table(
        {"t": pa.array([moment], zone), "deep": pa.array([[{"at": moment}]], pa.list_(pa.struct([("at", zone)])))}
    )
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold")
    driver.run([data])
    (file,) = [name for name in driver.data_files() if "message" in name]
    stored = pq.read_table(driver.log_path / file, partitioning=None)
    assert stored.schema.field("_time").type == stored.schema.field("t").type == pa.timestamp("us", "UTC")
    assert stored["deep"].to_pylist() == [[{"at": moment}]]
    assert driver.log().messages()["_time"].to_pylist() == [moment]


def test_types_at_their_limits_are_kept_exactly(tmp_path: Path) -> None:
    values = {
        "tiny": pa.array([-128, 127], pa.int8()),
        "small": pa.array([-(2**15), 2**15 - 1], pa.int16()),
        "whole": pa.array([-(2**31), 2**31 - 1], pa.int32()),
        "big": pa.array([-(2**63), 2**63 - 1], pa.int64()),
        "single": pa.array([float("inf"), -0.0], pa.float32()),
        "double": pa.array([float("-inf"), 5e-324], pa.float64()),
        "money": pa.array([None, 10**37], pa.decimal128(38, 0)),
        "text": pa.array(["", "ä\u0000\U0001f600"]),
        "blob": pa.array([b"", b"\xff\x00"]),
        "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "moment": pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999], pa.timestamp("us", "UTC")),
        "wall": pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999], pa.timestamp("us")),
        "pairs": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
    driver = SinkDriver(tmp_path)
    driver.run([pa.table(values)])
    found = driver.log().messages().select(list(values))
    assert found.to_pylist() == pa.table(values).cast(found.schema).to_pylist()


@pytest.mark.parametrize("kind", ["long", "int", "short", "date", "timestamp"])
def test_times_at_the_limits_of_their_type(tmp_path: Path, kind: str) -> None:
    from spark_timely.time.domain import TimeType

    time = TimeType(kind)
    data = pa.table({"t": time.to_arrow([time.lo, time.hi]), "id": pa.array([0, 1])})
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="bounded")
    driver.run([data])
    assert driver.log().frontier().elements == ((time.hi,),)
    driver.run([data.slice(1, 1)])
    with pytest.raises(errors.LateDataError):
        driver.run([data.slice(0, 1)])


def test_task_flushes_at_the_target_size_and_each_file_is_sorted(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold", targetFileSize="1k")
    rng = np.random.default_rng(5)
    times = rng.permutation(600)
    data = rows(times.tolist())
    driver.run([data], chunk=100)
    files = sorted(name for name in driver.data_files() if "message" in name)
    assert len(files) == 6
    for file in files:
        stored = pq.read_table(driver.log_path / file, partitioning=None)["_time"].to_pylist()
        assert stored == sorted(stored)
        assert len(stored) == 100
    assert driver.log().messages()["_time"].to_pylist() == list(range(600))


def test_message_to_the_driver_is_bounded(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, timeColumn="t", frontier="hold")
    schema = spark.StructType().add("t", "long").add("id", "long")
    sizes = []
    for n in (1_000, 100_000):
        message = driver.writer(schema).write(iter(rows(range(n)).to_batches()))
        sizes.append(len(pickle.dumps(message)))
    assert sizes[1] < 1.1 * sizes[0] < 4_000


def test_writer_reads_nothing_and_writes_nothing_in_its_pickle(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([1])])
    text = pickle.dumps(driver.writer(SCHEMA))
    # The check of a task's Python is text of its own, and the same for every writer. How long a path is says nothing.
    path = str(tmp_path).encode()
    assert len(text) - len(_source()) - text.count(path) * len(path) < 3_800
    assert isinstance(pickle.loads(text), TimelyStreamWriter)
    # Code that is carried, not named, comes with the path of its file.
    assert rules.__file__.encode() not in text


def test_missing_data_file_fails_the_reading_not_the_capture(tmp_path: Path) -> None:
    driver = SinkDriver(tmp_path, **BOUNDED)
    driver.run([rows([5])])
    (name,) = [name for name in driver.data_files() if "message" in name]
    (driver.log_path / name).unlink()
    driver.run([rows([6])])
    with pytest.raises(errors.DataLossError):
        open_log(str(driver.log_path)).messages()


@pytest.mark.parametrize(("made", "given", "warned"), [(1, 3, True), (3, 3, False), (3, 1, True), (2, None, False)])
def test_number_of_streams_that_the_log_was_not_made_for_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, made: int, given: int | None, warned: bool
) -> None:
    SinkDriver(tmp_path, **BOUNDED, streams=str(made)).run([rows([1])])
    assert not caplog.text
    options = {**BOUNDED, "stream": "b"} | ({} if given is None else {"streams": str(given)})
    other = SinkDriver(tmp_path, query="b", checkpoint="b", **options)
    other.run([rows([1])])
    texts = [record.getMessage() for record in caplog.records if record.name == "spark_timely.sink"]
    assert [f"streams={given} has no effect" in text for text in texts[:1]] == [True] * warned
    caplog.clear()
    other.run([rows([1])])  # told where it joins, not at each micro-batch
    assert not caplog.text
