"""Dataflows as streaming queries: AvailableNow, restart, a lost checkpoint, frontiers of their own, a failure."""

from __future__ import annotations

import os
import random
import re
import shutil
import time as clock
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.dataflow.engine.steps import MOST_TOGETHER
from spark_timely.errors import (
    InvalidUsageError,
    LogMissingError,
    OperatorError,
    PlanMismatchError,
    StorageError,
    WaitTimeoutError,
)
from spark_timely.predicate import parse_predicate
from spark_timely.spark.dataflows.dataflow import JobCancelledError
from spark_timely.typing import DataflowQuery
from tests.faults.harness import delete_last_commit, wait_until
from tests.unit.test_predicate import TABLE, TYPES, condition

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("origin", pa.string()), ("delay", pa.int64())])
NOW = {"availableNow": True}


class Flights:
    """A log of flights and what a sequential program makes of it."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.log = st.create_log(str(path), SCHEMA, minimum=(0,))
        self.writer = self.log.writer(owner="test")
        self.rows: list[tuple[int, str, int]] = []

    def write(self, frontier: int, n: int = 200) -> None:
        now = self.writer.frontier.elements[0][0]
        rows = [
            (self.rng.randrange(now, frontier + 3), self.rng.choice("abc"), self.rng.randrange(40)) for _ in range(n)
        ]
        times, origins, delays = zip(*rows, strict=True)
        self.writer.append(pa.table({"_time": times, "origin": origins, "delay": delays}), advance_to=frontier)
        self.rows += rows

    def late(self, upper: int | None = None) -> Counter[tuple[int, str]]:
        """Count late flights per window of five, its end, and origin; windows that end before `upper`."""
        ends = [(-(-time // 5) * 5, origin) for time, origin, delay in self.rows if delay > 15]
        return Counter(each for each in ends if upper is None or each[0] < upper)


def flow_of(folder: Path, flights: Flights) -> st.Dataflow:
    flow = st.Dataflow("delays", checkpoint=str(folder / "checkpoint"))
    late = flow.replay(flights.log).filter(pc.field("delay") > 15)
    late.delay(tf.ceil_to(5)).aggregate(by="origin", n=tf.count()).capture(str(folder / "windows"))
    return flow


def windows(folder: Path) -> Counter[tuple[int, str]]:
    found = st.open_log(str(folder / "windows")).messages().to_pylist()
    counted = Counter({(row["_time"], row["origin"]): row["n"] for row in found})
    assert len(counted) == len(found), "a group twice"
    return counted


def test_dataflow_continues_after_restarts_and_a_lost_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights")
    flights.write(12)
    query = flow_of(tmp_path, flights).start(spark, trigger=NOW, workers=2)
    assert query.await_termination(120)
    assert query.frontier.to_json() == [15]
    assert windows(tmp_path) == flights.late(15)
    flights.write(21)
    assert flow_of(tmp_path, flights).start(spark, trigger=NOW, workers=3).await_termination(120)
    assert windows(tmp_path) == flights.late(25)
    # An output that is gone is made again although no input moved; so it is without a checkpoint.
    shutil.rmtree(tmp_path / "windows")
    assert flow_of(tmp_path, flights).start(spark, trigger=NOW).await_termination(120)
    assert windows(tmp_path) == flights.late(25)
    shutil.rmtree(tmp_path / "checkpoint")
    flights.writer.close()
    query = flow_of(tmp_path, flights).start(spark, trigger=NOW)
    assert query.await_termination(120)
    assert query.frontier.is_empty
    assert windows(tmp_path) == flights.late()
    assert st.open_log(str(tmp_path / "windows")).verify().legal


DAMAGES = [
    ("metadata", b""), ("metadata", b"{}"), ("offsets/0", b"v1\n{"), ("offsets/0", b"\xff\xfe"), ("commits/0", b""),
]  # fmt: skip


def test_damaged_checkpoint_of_an_ending_query_is_named(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights")
    flights.write(12)
    assert flow_of(tmp_path, flights).start(spark, trigger=NOW).await_termination(120)
    ending = tmp_path / "checkpoint" / "ending"
    for file, content in DAMAGES:
        whole = (ending / file).read_bytes()
        (ending / file).write_bytes(content)
        with pytest.raises(
            StorageError, match=rf"found a damaged file '{file}' in checkpoint .* — hint: delete the folder"
        ):
            flow_of(tmp_path, flights).start(spark, trigger=NOW)
        (ending / file).write_bytes(whole)
    shutil.rmtree(ending)
    flights.write(21)
    assert flow_of(tmp_path, flights).start(spark, trigger=NOW).await_termination(120)
    assert windows(tmp_path) == flights.late(25)


def micro_batches(query: DataflowQuery) -> list[int]:
    return [progress.batchId for progress in query.query.recentProgress if "addBatch" in progress.durationMs]


def test_each_start_of_an_ending_query_looks_at_the_logs(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights")
    flights.write(12)
    folder = tmp_path / "it ends"
    ids = set[str]()
    for number, trigger in enumerate(["availableNow", "once", "once", "availableNow"]):
        query = flow_of(folder, flights).start(spark, trigger=trigger)
        assert query.await_termination(120)
        assert micro_batches(query) == [number]
        assert windows(folder) == flights.late(15)
        ids.add(query.id)
        shutil.rmtree(folder / "windows")
    assert len(ids) == 1
    # One that ends and one that lives do not see each other's offsets; a commit that Spark lost is a look more.
    lives = flow_of(folder, flights).start(spark, trigger={"processingTime": "0 seconds"})
    assert lives.await_frontier(14, timeout_s=120)
    assert {path.name for path in (folder / "checkpoint").iterdir()} >= {"ending", "offsets", "commits"}
    for trigger in ("once", "availableNow"):
        delete_last_commit(folder / "checkpoint" / "ending")
        query = flow_of(folder, flights).start(spark, trigger=trigger)
        assert query.await_termination(120)
        assert micro_batches(query)
        assert lives.is_active
    lives.stop()


def test_input_that_is_gone_is_refused_by_start(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights")
    flow = flow_of(tmp_path, flights)
    shutil.rmtree(tmp_path / "flights")
    with pytest.raises(LogMissingError, match="flights"):
        flow.start(spark, trigger=NOW)


def test_another_plan_of_a_name_is_refused_or_replaces_the_first(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights", 5)
    flights.write(12)

    def flow(least: int, out: Path, replaces: str | None = None) -> st.Dataflow:
        made = st.Dataflow("late", checkpoint=str(tmp_path / f"checkpoint {least}"))
        made.replay(flights.log).filter(f"delay > {least}").capture(out, replaces=replaces)
        return made

    out = tmp_path / "out"
    (tmp_path / "link").symlink_to(out, target_is_directory=True)
    old = flow(15, out).start(spark, trigger={"processingTime": "0 seconds"})
    try:
        old.await_frontier(11, timeout_s=120)
        version = st.open_log(str(out)).core.version
        with pytest.raises(PlanMismatchError, match=r"filter delay > 15.*filter delay > 20") as caught:
            flow(20, tmp_path / "link").start(spark, trigger=NOW)
        assert st.open_log(str(out)).core.version == version
        first = str(caught.value.found)
        assert f"plan {first}" in old.explain()
        doubled = flow(15, out)
        doubled.replay(flights.log).filter("delay <= 15").capture(tmp_path / "link")
        with pytest.raises(InvalidUsageError, match=r"link' to be log '.*out', which 'capture_3' writes"):
            doubled.start(spark, trigger=NOW)
        flow(20, out, replaces=first).start(spark, trigger=NOW).await_termination(120)
        flights.write(21)
        with pytest.raises(PlanMismatchError, match=f"expected plan='{first}'"):
            old.await_termination(120)
    finally:
        old.stop()
    flow(20, out, replaces=first).start(spark, trigger=NOW).await_termination(120)
    found = [(row["_time"], row["delay"]) for row in st.open_log(str(out)).messages().to_pylist()]
    wanted = [(time, delay) for time, _, delay in flights.rows if time < 21 and delay > (15 if time < 12 else 20)]
    assert sorted(found) == sorted(wanted)


def test_query_follows_the_frontier_of_each_input(spark: SparkSession, tmp_path: Path) -> None:
    one, two = Flights(tmp_path / "one", 1), Flights(tmp_path / "two", 2)
    one.write(8)
    two.write(3)
    flow = st.Dataflow("both", checkpoint=str(tmp_path / "checkpoint"))
    left, right = flow.replay(one.log), flow.replay(two.log)
    left.aggregate(by="origin", n=tf.count()).capture(str(tmp_path / "alone"))
    pairs = left.join(right.select("origin", other=pc.field("delay")), on="origin")
    pairs.aggregate(by="origin", n=tf.count()).capture(str(tmp_path / "joined"))
    probe = left.probe()
    query = flow.start(spark, trigger={"processingTime": "0 seconds"})
    try:
        assert query.await_frontier(2, timeout_s=120).to_json() == [3]
        st.wait(str(tmp_path / "alone"), time=7)
        assert probe.frontier.to_json() == [3], "the join waits for the slower input, the other output does not"
        two.write(6)
        query.await_frontier(5, timeout_s=120)
        with pytest.raises(WaitTimeoutError, match=r"found outputs at frontier=\[6\]"):
            query.await_frontier(6, timeout_s=0.2)
    finally:
        query.stop()
    expected: Counter[tuple[int, str]] = Counter()
    per_time = Counter((time, origin) for time, origin, _ in two.rows)
    for time, origin, _ in one.rows:
        if time < 6 and per_time[time, origin]:
            expected[time, origin] += per_time[time, origin]
    found = {(r["_time"], r["origin"]): r["n"] for r in st.open_log(str(tmp_path / "joined")).messages().to_pylist()}
    assert found == dict(expected)


def test_query_of_several_dataflows_shows_plan_and_numbers(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights", 3)
    flights.write(12)
    flights.writer.close()
    flow = flow_of(tmp_path, flights)
    other = st.Dataflow("by origin", checkpoint=str(tmp_path / "unused"))
    halves = other.replay(flights.log).filter("delay BETWEEN 2 AND 30").select("origin", half=pc.field("delay") / 2.0)
    halves.delay(tf.windows(8, every=4)).aggregate(by="origin", n=tf.count(), mean=tf.sum("half")).capture(
        str(tmp_path / "hopping")
    )
    # So small that the groups of all pieces are put together by key; everything is computed twice.
    query = flow.start(spark, trigger=NOW, workers=2, max_bytes_per_task=1, beside=[other], twice=True)
    with pytest.raises(InvalidUsageError, match="found outputs"):
        query.result()
    found = query.result(str(tmp_path / "hopping")).collect()
    assert windows(tmp_path) == flights.late()
    expected: dict[tuple[int, str], list[float]] = {}
    for time, origin, delay in flights.rows:
        for end in range(time + 1, time + 9):
            if end % 4 == 0 and 2 <= delay <= 30:
                expected.setdefault((end, origin), []).append(delay / 2)
    log = st.open_log(str(tmp_path / "hopping"))
    got = {(row["_time"], row["origin"]): (row["n"], row["mean"]) for row in log.messages().to_pylist()}
    assert got == {key: (len(values), sum(values)) for key, values in expected.items()}
    assert Counter((row["origin"], row["n"], row["mean"]) for row in found) == Counter(
        (origin, len(values), sum(values)) for (_, origin), values in expected.items()
    )
    told = {(each.operator, each.output): each.rows for each in query.metrics()}
    assert told["replay_1", "capture_5"] == len(flights.rows)
    assert told["capture_5", "capture_5"] == len(flights.late())
    assert "nothing waits" in query.explain()
    assert [(each.done, each.total) for each in query.progress()] == [(200, 200), (400, 400)]


def test_condition_as_text_means_what_it_means_to_spark(spark: SparkSession) -> None:
    texts = [condition(random.Random(seed))[0] for seed in range(150)]
    rows = spark.createDataFrame(TABLE).selectExpr(
        "`Mixed Case`", *(f"({text}) AS c{i}" for i, text in enumerate(texts))
    )
    found = rows.toArrow()
    for i, text in enumerate(texts):
        holds = found.filter(pc.field(f"c{i}"))["Mixed Case"].to_pylist()
        assert (
            sorted(holds)
            == TABLE.filter(parse_predicate(text, TYPES, what="filter").expression)["Mixed Case"].to_pylist()
        ), text


def test_failed_function_is_named_with_its_times_by_the_query(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights")
    flights.write(4)

    def broken(rows: pa.Table) -> pa.Table:
        return rows.select(["delay"]) if rows.num_rows == 0 else rows.select(["nonsense"])

    flow = st.Dataflow("broken", checkpoint=str(tmp_path / "checkpoint"))
    stream = flow.replay(flights.log)
    stream.map(broken).capture(str(tmp_path / "bad"))
    stream.capture(str(tmp_path / "good"))
    query = flow.start(spark, trigger=NOW)
    with pytest.raises(StreamingQueryException, match=r"could not run operator 'map_2' at times from \[0\] to \[4\]"):
        query.await_termination(120)
    assert st.open_log(str(tmp_path / "bad")).frontier().to_json() == [0]
    assert st.open_log(str(tmp_path / "good")).frontier().to_json() == [4]
    with pytest.raises(StreamingQueryException, match="operator 'map_2'"):
        query.await_frontier(3, timeout_s=5)


def test_query_continues_without_a_failed_or_dropped_dataflow(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path / "flights")
    flights.write(4)

    def failing(mended: bool) -> st.Dataflow:
        def broken(rows: pa.Table) -> pa.Table:
            at = pc.max(rows["_time"]).as_py()
            return rows.select(["delay"] if mended or at is None or at < 4 else ["nonsense"])

        flow = st.Dataflow("broken", checkpoint=str(tmp_path / "checkpoint"))
        rows = flow.replay(flights.log)
        rows.map(broken).capture(str(tmp_path / "bad"))
        rows.capture(str(tmp_path / "good"))
        return flow

    def beside() -> st.Dataflow:
        other = st.Dataflow("other", checkpoint=str(tmp_path / "other's checkpoint"))
        other.replay(flights.log).capture(str(tmp_path / "other"))
        return other

    hosted = beside()
    query = failing(mended=False).start(spark, trigger={"processingTime": "0 seconds"}, beside=[hosted])
    try:
        query.await_frontier(3, timeout_s=120)
        flights.write(5)
        with pytest.raises(OperatorError, match=r"could not run operator 'map_2' at times from \[4\] to \[5\]"):
            query.await_frontier(4, timeout_s=120)
        assert query.await_frontier(3, timeout_s=120).to_json() == [4], "it failed past this time"
        for name in ("good", "other"):
            st.wait(str(tmp_path / name), time=4, timeout_s=120)
        assert [(each.output, each.operator) for each in query.failures()] == [("capture_3", "map_2")]
        assert "stopped: [TIMELY_OPERATOR] could not run operator 'map_2'" in query.explain()
        flights.write(6)
        for name in ("good", "other"):
            st.wait(str(tmp_path / name), time=5, timeout_s=120)
        query.drop(hosted)
        with pytest.raises(InvalidUsageError, match=r"could not drop 'other': found dataflows \['broken'\]"):
            query.drop("other")
        with pytest.raises(InvalidUsageError, match="found nothing else in the query"):
            query.drop("broken")
        flights.write(8)
        st.wait(str(tmp_path / "good"), time=7, timeout_s=120)
        assert query.is_active
    finally:
        query.stop()
    with pytest.raises(OperatorError, match="operator 'map_2'"):
        query.await_termination(60)
    assert [st.open_log(str(tmp_path / name)).frontier().to_json() for name in ("bad", "other")] == [[4], [6]]
    query = failing(mended=True).start(spark, trigger=NOW, beside=[beside()])
    assert query.await_termination(120)
    assert query.failures() == []
    for name in ("bad", "good", "other"):
        log = st.open_log(str(tmp_path / name))
        assert (log.frontier().to_json(), log.messages().num_rows) == ([8], sum(time < 8 for time, *_ in flights.rows))


def test_job_that_failed_is_run_again_although_no_input_moves(spark: SparkSession, tmp_path: Path) -> None:
    flights, lost = Flights(tmp_path / "flights"), Flights(tmp_path / "lost", 1)
    for each in (flights, lost):
        each.write(4)
    (file,) = lost.log.core.files().paths.tolist()
    away = (tmp_path / "lost" / file).rename(tmp_path / "away")
    flow = st.Dataflow("flow", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(lost.log).capture(str(tmp_path / "bad"))
    flow.replay(flights.log).capture(str(tmp_path / "good"))
    query = flow.start(spark, trigger={"processingTime": "0 seconds"})
    try:
        st.wait(str(tmp_path / "good"), time=3, timeout_s=120)
        wait_until(lambda: bool(query.failures()), deadline_s=120, what="the failure", report=query.explain)
        with pytest.raises(WaitTimeoutError, match=r"found outputs at frontier=\[0\]") as caught:
            query.await_frontier(3, timeout_s=0.1)
        assert any(
            "tried again: [TIMELY_OPERATOR] could not run operator 'capture_" in note for note in caught.value.__notes__
        )
        away.rename(tmp_path / "lost" / file)
        assert query.await_frontier(3, timeout_s=120).to_json() == [4]
        assert query.failures() == []
        assert query.is_active
    finally:
        query.stop()
    assert query.await_termination(60)
    assert st.open_log(str(tmp_path / "bad")).messages().num_rows == sum(time < 4 for time, *_ in lost.rows)


def test_query_of_small_steps_stops_before_its_backlog_is_done(spark: SparkSession, tmp_path: Path) -> None:
    """All steps run where they are planned, where no job of Spark is cancelled."""
    log = st.create_log(str(tmp_path / "in"), pa.schema([("n", pa.int64())]), minimum=(0,))
    log.writer(owner="test").append(pa.table({"_time": range(3000), "n": range(3000)}), advance_to=3000)
    flow = st.Dataflow("flow", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(log).filter("n >= 0").capture(str(tmp_path / "out"))
    query = flow.start(spark, trigger=NOW, max_times_per_step=1, workers=1)
    try:
        st.wait(str(tmp_path / "out"), time=3, timeout_s=120)
    finally:
        query.stop()
    assert query.await_termination(60)
    (done,) = st.open_log(str(tmp_path / "out")).frontier().to_json()
    assert 4 <= done < 3000
    assert query.failures() == []


def test_news_is_answered_during_a_long_backlog(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    logs = {name: st.create_log(str(tmp_path / f"{name} in"), schema, minimum=(0,)) for name in ("large", "small")}
    flows = [st.Dataflow(name, checkpoint=str(tmp_path / "checkpoint")) for name in logs]
    for flow in flows:
        flow.replay(logs[flow.name]).capture(str(tmp_path / flow.name))
    large, small = (log.writer(owner="test") for log in logs.values())
    large.append(pa.table({"_time": range(34), "n": range(34)}), advance_to=34)
    query = flows[0].start(
        spark, trigger={"processingTime": "0 seconds"}, max_times_per_step=1, workers=1, beside=flows[1:]
    )
    try:
        st.wait(str(tmp_path / "large"), time=33, timeout_s=240)  # more than a micro-batch, and no log moved
        large.append(pa.table({"_time": range(34, 234), "n": range(34, 234)}), advance_to=234)
        for time in range(3):
            st.wait(str(tmp_path / "large"), time=35 + 50 * time, timeout_s=120, poll_s=0.02)
            small.append(pa.table({"_time": [time], "n": [time]}), advance_to=time + 1)
            st.wait(str(tmp_path / "small"), time=time, timeout_s=120, poll_s=0.02)
        st.wait(str(tmp_path / "large"), time=233, timeout_s=240)
        assert query.is_active
    finally:
        query.stop()
    asked, answered, steps = (at_of(tmp_path / name) for name in ("small in", "small", "large"))
    pairs = zip(asked.values(), answered.values(), strict=True)
    between = [sum(start < at < end for at in steps.values()) for start, end in pairs]
    assert max(between) <= 2 * MOST_TOGETHER, between
    assert len(steps) == 234


def at_of(path: Path) -> dict[int, datetime]:
    """Return when each commit that moved a log's stream was made, by its number."""
    rows = st.open_log(str(path)).core.progress().to_pylist()
    return {row["_seq"]: row["_at"] for row in rows if row["_delta"] and row["_seq"]}


def test_stop_while_a_job_runs_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    """One task of two has written when the job is cancelled: the driver does not know what."""
    flights = Flights(tmp_path / "flights")
    flights.write(6)
    flights.write(12)  # another file, for the other task
    written, first = tmp_path / "copy" / "_event=message", str(tmp_path / "first")

    def slow(rows: pa.Table) -> pa.Table:
        if rows.num_rows:
            try:
                os.close(os.open(first, os.O_CREAT | os.O_EXCL))
            except FileExistsError:  # the other task: which of them it is, depends on the cut
                clock.sleep(60.0)
        return rows.select(["origin", "delay"])

    flow = st.Dataflow("slow", checkpoint=str(tmp_path / "checkpoint"))
    flow.replay(flights.log).map(slow).capture(str(tmp_path / "copy"))
    query = flow.start(spark, workers=2)
    wait_until(lambda: any(written.glob("*.parquet")), deadline_s=60, what="a task to write")
    query.stop()
    assert query.query.exception() is None
    assert not query.is_active
    assert list(written.glob("*.parquet")) == []
    assert st.open_log(str(tmp_path / "copy")).messages().num_rows == 0


# As Spark has it (4.2): each letter behind the first words needs a frame of its stack.
_OF_A_STOP = re.compile(
    "py4j.protocol.Py4JJavaError: An error occurred while calling((?:.|\r\n|\r|\n)*)"
    "(java.lang.InterruptedException|java.nio.channels.ClosedByInterruptException)"
)


def test_cancelled_job_is_said_in_words_of_a_stop() -> None:
    calls = "\n\tat org.apache.spark.Somewhere.run(Somewhere.scala:1)" * 1000
    long = f"An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job 7 cancelled {calls}"
    try:
        try:
            raise RuntimeError(long)
        except RuntimeError as error:
            raise JobCancelledError(error) from None
    except JobCancelledError as error:
        told = "".join(traceback.format_exception(error))
    found = _OF_A_STOP.search(told)
    assert found is not None
    assert len(told) - found.start() < 500
    assert "calling o1.collect" in told
