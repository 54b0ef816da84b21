"""Dataflows as streaming queries: AvailableNow, restart, a lost checkpoint, frontiers of their own, a failure."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException

import spark_timely as st
from spark_timely.errors import WaitTimeoutError

if TYPE_CHECKING:
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
    late.delay(st.ceil_to(5)).aggregate(by="origin", n=st.count()).capture(str(folder / "windows"))
    return flow


def windows(folder: Path) -> Counter[tuple[int, str]]:
    found = st.open_log(str(folder / "windows")).messages().to_pylist()
    counted = Counter({(row["_time"], row["origin"]): row["n"] for row in found})
    assert len(counted) == len(found), "a group twice"
    return counted


def test_dataflow_goes_on_after_restarts_and_without_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
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


def test_two_inputs_have_frontiers_of_their_own_and_the_query_follows_them(spark: SparkSession, tmp_path: Path) -> None:
    one, two = Flights(tmp_path / "one", 1), Flights(tmp_path / "two", 2)
    one.write(8)
    two.write(3)
    flow = st.Dataflow("both", checkpoint=str(tmp_path / "checkpoint"))
    left, right = flow.replay(one.log), flow.replay(two.log)
    left.aggregate(by="origin", n=st.count()).capture(str(tmp_path / "alone"))
    pairs = left.join(right.select("origin", other=pc.field("delay")), on="origin")
    pairs.aggregate(by="origin", n=st.count()).capture(str(tmp_path / "joined"))
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


def test_failure_of_a_function_names_operator_and_times_in_the_querys_error(
    spark: SparkSession, tmp_path: Path
) -> None:
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
