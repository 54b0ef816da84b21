"""A compute instance: from commit to answer, a small dataflow beside a large one, many of them, and one more."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.spark.instance.instance import ComputeInstance
from tests.faults.harness import descendants

from .report import Case, alternate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_timely.log import Log

END_TO_END = "instance_end_to_end_vs_delta_to_delta"
BESIDE = "instance_small_beside_hydration"
MANY = "instance_100_vs_10_dataflows"
ADD = "instance_add_vs_query"
IDLE = "instance_idle_processor_share"
NAMES = (END_TO_END, BESIDE, MANY, ADD, IDLE)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS, KEYS = 100, 10
COMMITS, ROUNDS = 12, 5
QUERY = "SELECT k, count(*) AS n, sum(v) AS total FROM orders GROUP BY k"
DEADLINE_S = 120.0


def run(spark: SparkSession, scratch: Path, wanted: Callable[[str], bool], n_rows: int) -> list[Case]:
    """Measure instances of the session."""
    cases = []
    if wanted(END_TO_END):
        cases.append(_end_to_end(spark, scratch / "end-to-end"))
    if wanted(ADD):
        cases.append(_add(spark, scratch / "add"))
    if wanted(MANY) or wanted(IDLE):
        cases += [case for case in _many(spark, scratch / "many") if wanted(case.name)]
    if wanted(BESIDE):
        cases.append(_beside(spark, scratch / "beside", n_rows))
    return cases


class _Orders:
    """A collection that grows by a commit of a hundred updates at a time."""

    def __init__(self, path: Path) -> None:
        self.log: Log = st.create_log(path, SCHEMA, kind="collection", minimum=(0,))
        self.writer = self.log.writer(owner="bench")
        self.at = 0

    def commit(self) -> int:
        """Commit, and return the time that is complete now."""
        columns = {
            "_time": np.full(ROWS, self.at),
            "_diff": np.ones(ROWS, np.int64),
            "k": np.arange(ROWS) % KEYS,
            "v": np.arange(ROWS),
        }
        self.writer.append(pa.table(columns), advance_to=self.at + 1)
        self.at += 1
        return self.at - 1


# From commit to answer ------------------------------------------------------------------------------


def _end_to_end(spark: SparkSession, scratch: Path) -> Case:
    case = Case(
        END_TO_END,
        f"median of {COMMITS}: from a commit of {ROWS} updates to the subscriber's interval through a maintained"
        " aggregate; peer: Spark's micro-batches from Delta to Delta, trigger 0 s, seen by a reader that polls every"
        " 10 ms",
        0.4,
        higher_is_better=False,
    )
    orders = _Orders(scratch / "orders")
    orders.commit()
    peer = _Delta(spark, scratch)
    with ComputeInstance(spark, str(scratch / "instance")) as instance:
        instance.index("totals", QUERY, imports={"orders": orders.log.path}, key="k")
        with instance.subscribe("totals") as batches:

            def ours() -> float:
                took = []
                for number in range(COMMITS):
                    time.sleep(0.05 + 0.01 * (number % 7))  # not in step with anybody's polling
                    wanted = orders.commit()
                    began = time.perf_counter()
                    while True:
                        batch = batches.next_batch(timeout_s=DEADLINE_S)
                        assert batch is not None, "no batch within the deadline"
                        if not batch.upper.less_equal((wanted,)):
                            break
                    took.append(time.perf_counter() - began)
                    added = batch.updates.filter(pa.compute.greater(batch.updates["_diff"], 0))
                    assert sum(added["n"].to_pylist()) == ROWS * (wanted + 1), batch
                return float(np.median(took))

            alternate(case, ours, peer.median, ROUNDS, warm=1)
    peer.stop()
    return case


class _Delta:
    """The same aggregate by Spark's own means: Delta's source, a streaming aggregation, Delta's sink."""

    def __init__(self, spark: SparkSession, scratch: Path) -> None:
        from deltalake import DeltaTable, write_deltalake
        from pyspark.sql import functions as F

        self._write, self._table = write_deltalake, DeltaTable
        self.source, self.sink = str(scratch / "delta-in"), str(scratch / "delta-out")
        self.commits = 0
        self._commit()
        rows = spark.readStream.format("delta").load(self.source)
        totals = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
        self.query = (
            totals.writeStream.format("delta")
            .outputMode("complete")
            .option("checkpointLocation", str(scratch / "delta-checkpoint"))
            .trigger(processingTime="0 seconds")
            .start(self.sink)
        )
        self.query.processAllAvailable()

    def _commit(self) -> None:
        rows = pa.table({"k": np.arange(ROWS) % KEYS, "v": np.arange(ROWS)})
        self._write(self.source, rows, mode="append")
        self.commits += 1

    def _seen(self) -> int:
        rows = self._table(self.sink).to_pyarrow_table(columns=["n"])
        return int(sum(rows["n"].to_pylist()))

    def median(self) -> float:
        """Return the median seconds of some commits."""
        took = []
        for number in range(COMMITS):
            time.sleep(0.05 + 0.01 * (number % 7))  # as our side
            version = self._table(self.sink).version()
            self._commit()
            began = time.perf_counter()
            reader = self._table(self.sink)
            while True:
                reader.update_incremental()
                if reader.version() > version:
                    took_s = time.perf_counter() - began
                    if self._seen() == ROWS * self.commits:
                        break
                    version = reader.version()  # a micro-batch that had begun before
                assert time.perf_counter() - began < DEADLINE_S, "not seen within the deadline"
                time.sleep(0.01)  # as the reader polls
            took.append(took_s)
        return float(np.median(took))

    def stop(self) -> None:
        """End the query."""
        self.query.stop()


# One more --------------------------------------------------------------------------------------------


def _add(spark: SparkSession, scratch: Path) -> Case:
    case = Case(
        ADD,
        "seconds until a further dataflow is hydrated while others run; peer: until the output of a streaming query of"
        " its own is as far",
        0.25,
        higher_is_better=False,
    )
    orders = _Orders(scratch / "orders")
    for _ in range(20):
        orders.commit()
    number = 0
    with ComputeInstance(spark, str(scratch / "instance")) as instance:
        for other in range(3):
            instance.index(f"other-{other}", QUERY, imports={"orders": orders.log.path}, key="k")
            instance.await_frontier(f"other-{other}", orders.at - 1, timeout_s=DEADLINE_S)

        def ours() -> float:
            nonlocal number
            number += 1
            began = time.perf_counter()
            instance.index(f"more-{number}", QUERY, imports={"orders": orders.log.path}, key="k")
            instance.await_frontier(f"more-{number}", orders.at - 1, timeout_s=DEADLINE_S)
            took = time.perf_counter() - began
            assert sum(instance.peek(f"more-{number}")["n"].to_pylist()) == ROWS * orders.at
            instance.drop(f"more-{number}")
            return took

        def peer() -> float:
            nonlocal number
            number += 1
            began = time.perf_counter()
            flow = st.Dataflow(f"flow-{number}", checkpoint=str(scratch / f"checkpoint-{number}"))
            stream = flow.replay(orders.log.path)
            totals = stream.aggregate(by="k", n=tf.count(), total=tf.sum("v"), over="history")
            totals.capture(str(scratch / f"out-{number}"))
            query = flow.start(spark, retain=None)
            query.await_frontier(orders.at - 1, timeout_s=DEADLINE_S)
            took = time.perf_counter() - began
            query.stop()
            return took

        alternate(case, ours, peer, ROUNDS)
    return case


# Many ------------------------------------------------------------------------------------------------


def _processor_s() -> dict[int, float]:
    """Return the processor seconds of this process and each that it started, by id."""
    found = {}
    for process in {*descendants(os.getpid()), os.getpid()}:
        try:
            with open(f"/proc/{process}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        found[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _memory_mb() -> float:
    with open(f"/proc/{os.getpid()}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _many(spark: SparkSession, scratch: Path) -> list[Case]:
    steps = Case(
        MANY,
        "seconds per commit of an input until all of 100 dataflows that read it are past it; peer: 10 dataflows",
        12.0,
        higher_is_better=False,
    )
    idle = Case(
        IDLE,
        "processor seconds per second of an instance with 100 dataflows in which nothing happens; peer: 1",
        0.05,
        higher_is_better=False,
    )
    orders = _Orders(scratch / "orders")
    orders.commit()
    took: dict[int, list[float]] = {}
    for n in (10, 100):
        before = _memory_mb()
        with ComputeInstance(spark, str(scratch / f"instance-{n}"), retain=None) as instance:
            instance.configure(hydration_limit=100)
            for number in range(n):
                instance.index(f"totals-{number}", QUERY, imports={"orders": orders.log.path}, key="k")

            def all_there(n: int = n, instance: ComputeInstance = instance) -> None:
                for number in range(n):
                    instance.await_frontier(f"totals-{number}", orders.at - 1, timeout_s=DEADLINE_S)

            all_there()
            took[n] = []
            for _ in range(ROUNDS + 1):
                began = time.perf_counter()
                orders.commit()
                all_there()
                took[n].append(time.perf_counter() - began)
            steps.settings[f"memory_{n}_mb"] = round(_memory_mb() - before, 1)
            if n == 100:
                for _ in range(3):
                    time.sleep(2)  # until what the last commit began has ended
                    used, began = _processor_s(), time.perf_counter()
                    time.sleep(10)  # what is measured: nothing happens
                    now, took_s = _processor_s(), time.perf_counter() - began
                    # Of processes that are there at both ends: one that ends takes its seconds with it.
                    idle.ours.append(sum(now[each] - used[each] for each in now.keys() & used.keys()) / took_s)
                    idle.peer.append(1.0)
            assert sum(instance.peek("totals-7")["n"].to_pylist()) == ROWS * orders.at
    steps.ours, steps.peer = took[100][1:], took[10][1:]
    return [steps, idle]


# Beside a large one ----------------------------------------------------------------------------------


def _beside(spark: SparkSession, scratch: Path, n_rows: int) -> Case:
    case = Case(
        BESIDE,
        f"99th percentile of commit to answer of a small dataflow while one of {n_rows:,} rows hydrates; peer: alone",
        5.0,
        higher_is_better=False,
    )
    big = st.create_log(scratch / "big", SCHEMA, kind="collection", minimum=(0,), flush=False)
    writer, rng = big.writer(owner="bench"), np.random.default_rng(7)
    for part in np.array_split(np.arange(n_rows), 20):
        columns = {
            "_time": np.zeros(len(part), np.int64),
            "_diff": np.ones(len(part), np.int64),
            "k": rng.integers(0, n_rows // 10, len(part)),
            "v": part,
        }
        writer.append(pa.table(columns))
    writer.advance(1)
    orders = _Orders(scratch / "orders")
    orders.commit()
    with ComputeInstance(spark, str(scratch / "instance"), retain=None) as instance:
        instance.index("totals", QUERY, imports={"orders": orders.log.path}, key="k")
        instance.await_frontier("totals", 0, timeout_s=DEADLINE_S)

        def tail(until: Callable[[int], bool]) -> list[float]:
            took: list[float] = []
            while not until(len(took)):
                time.sleep(0.02)  # between two commits, on both sides alike
                wanted = orders.commit()
                began = time.perf_counter()
                instance.await_frontier("totals", wanted, timeout_s=DEADLINE_S)
                took.append(time.perf_counter() - began)
            return took

        tail(lambda n: n >= 20)
        for number in range(3):
            alone = tail(lambda n: n >= 60)
            began = time.perf_counter()
            instance.index(f"big-{number}", QUERY, imports={"orders": big.path}, key="k")
            beside = tail(lambda _, number=number: not instance.frontier(f"big-{number}").less_equal((0,)))
            case.settings[f"hydrated_{number}_s"] = round(time.perf_counter() - began, 2)
            case.settings[f"answers_{number}"] = len(beside)
            instance.drop(f"big-{number}")
            case.ours.append(float(np.percentile(beside, 99)))
            case.peer.append(float(np.percentile(alone, 99)))
    return case
