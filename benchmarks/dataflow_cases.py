"""Dataflows against Spark's own operators: aggregation per complete time, join per time, small micro-batches."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.dataflow.engine.steps import MOST_TOGETHER, Engine
from spark_timely.dataflow.logs import open_logs
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import SparkTasks, catalog_of

from .data import LATENESS, N_EPOCHS, N_FILES, N_KEYS, SEED
from .report import Case, alternate, seconds
from .spark_cases import PEER_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from .spark_cases import SparkCases

NAMES = (
    "dataflow_aggregate_vs_stateful_default",
    "dataflow_aggregate_vs_stateful_rocksdb",
    "dataflow_join_vs_stream_stream_join",
    "empty_micro_batch_vs_spark",
    "dataflow_100_steps_together_vs_one_by_one",
    "dataflow_start_vs_clock",
    "dataflow_memory_of_a_worker_plain",
    "dataflow_bytes_read_per_byte_plain",
    "dataflow_memory_of_a_worker_hopping",
    "dataflow_bytes_read_per_byte_hopping",
    "news_during_backlog_seconds",
    "news_during_backlog_vs_alone",
)
STORES = {
    "default": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
JOIN_SHARE, JOIN_EPOCHS = 5, 200
NOW = {"availableNow": True}
# Micro-batches of one run, of which Spark's take 1.5 to 3 s each.
WARM, MEASURED = 5, 12
DEADLINE_S = 60
# Steps of the backlog, and after how many of them a small dataflow beside it gets news.
BACKLOG, NEWS_AFTER = 60, (3, 8, 13, 18, 23)
# Steps, and rows of each, that are taken together or one by one.
SMALL_STEPS, SMALL_ROWS = 100, 1000


class DataflowCases:
    """The comparisons over the session, the events and the logs of `SparkCases`."""

    def __init__(self, base: SparkCases) -> None:
        self.base = base
        self.spark: SparkSession = base.spark
        self.scratch: Path = base.scratch

    def run(self, wanted: Callable[[str], bool]) -> list[Case]:
        """Run the cases whose names are wanted, in a fixed order."""
        todo: dict[str, Callable[[], Case]] = {
            NAMES[0]: lambda: self.aggregate("default", 12.0),
            NAMES[1]: lambda: self.aggregate("rocksdb", 22.0),
            NAMES[2]: self.join,
            NAMES[3]: self.empty_micro_batch,
            NAMES[4]: self.steps_together,
            NAMES[5]: self.start,
        }
        cases = [measure() for name, measure in todo.items() if wanted(name)]
        for kind in ("plain", "hopping"):
            if any(wanted(name) for name in NAMES if name.endswith(kind)):
                cases += [case for case in self.alone(kind) if wanted(case.name)]
        if any(wanted(name) for name in NAMES if name.startswith("news_")):
            cases += [case for case in self.news() if wanted(case.name)]
        return cases

    def _folder(self, name: str) -> Path:
        return self.scratch / f"{name}-{uuid.uuid4().hex[:8]}"

    # -- aggregation

    def _groups(self, log: Path, folder: Path) -> st.Dataflow:
        flow = st.Dataflow("bench", checkpoint=str(folder / "checkpoint"))
        groups = flow.replay(str(log)).aggregate(by="key", n=tf.count(), total=tf.sum("value"))
        groups.capture(str(folder / "out"))
        return flow

    def _dataflow_aggregate(self, log: Path) -> float:
        folder = self._folder("dataflow")
        flow = self._groups(log, folder)

        def work() -> None:
            step = N_EPOCHS // N_FILES
            flow.start(self.spark, trigger=NOW, workers=2, max_times_per_step=step).await_termination()

        took = seconds(work)
        data = self.base.data
        out = st.open_log(str(folder / "out"))
        rows = self.spark.read.format("delta").load(str(folder / "out")).where("_event = 'message'")
        place = F.col("_time") * N_KEYS + F.col("key")
        found = rows.agg(F.count("*"), F.sum("n"), F.sum(place), F.countDistinct("_seq")).first()
        expected = (data.n_groups, data.n_rows, data.place_sum, N_FILES)
        if found is None or tuple(found) != expected or not out.frontier().is_empty:
            message = f"dataflow: expected groups, rows, places, commits {expected}; found {found}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return took

    def aggregate(self, store: str, aim: float) -> Case:
        """Compare a dataflow's aggregation into a log with Spark's watermark aggregation into a Delta table."""
        log, _ = self.base.captured()
        before = self.spark.conf.get(PROVIDER)
        self.spark.conf.set(PROVIDER, STORES[store])
        try:
            case = Case(
                f"dataflow_aggregate_vs_stateful_{store}",
                "count and exact sum per time and key of complete times, into a log in ten commits; peer: "
                f"withWatermark + groupBy, state store {store}, into a Delta table in ten micro-batches",
                aim,
                settings={"workers": 2, **PEER_SETTINGS},
            )
            alternate(
                case,
                lambda: self._dataflow_aggregate(log),
                lambda: self.base._stateful_aggregate("delta"),
                self.base.repeats,
            )
        finally:
            self.spark.conf.set(PROVIDER, before)
        return case

    # -- join

    def _sides(self) -> tuple[Path, Path, int]:
        """Return folders of files, and logs beside them, of two inputs whose ids are the same in each epoch."""
        folder = self.scratch / "join"
        n_rows = self.base.data.n_rows // JOIN_SHARE
        if not folder.exists():
            rng = np.random.default_rng(SEED)
            per_file = n_rows // N_FILES
            for side in ("left", "right"):
                schema = pa.schema([("id", pa.int64()), (side, pa.float64())])
                log = st.create_log(str(folder / f"{side}-log"), schema, minimum=(0,), auto_compact=False)
                writer = log.writer(owner="bench")
                (folder / side).mkdir()
                for number in range(N_FILES):
                    order = rng.permutation(per_file)
                    ids = number * per_file + order
                    epochs = ids * JOIN_EPOCHS // (per_file * N_FILES)
                    values = rng.random(per_file)
                    table = pa.table({"epoch": epochs, "id": ids, side: values})
                    pq.write_table(table, folder / side / f"part-{number:04d}.parquet", compression="zstd")
                    last = number == N_FILES - 1
                    upper = [] if last else [(number + 1) * JOIN_EPOCHS // N_FILES]
                    writer.append(table.rename_columns(["_time", "id", side]), advance_to=upper)
        return folder / "left", folder / "right", n_rows // N_FILES * N_FILES

    def _check_pairs(self, rows: DataFrame, n_rows: int, what: str) -> None:
        found = rows.agg(F.count("*"), F.sum("id"), F.countDistinct("id")).first()
        expected = (n_rows, n_rows * (n_rows - 1) // 2, n_rows)
        if found is None or tuple(found) != expected:
            message = f"{what}: expected pairs, sum of ids, ids {expected}; found {found}"
            raise AssertionError(message)

    def _dataflow_join(self) -> float:
        left, right, n_rows = self._sides()
        folder = self._folder("dataflow-join")
        flow = st.Dataflow("bench", checkpoint=str(folder / "checkpoint"))
        pairs = flow.replay(f"{left}-log").join(flow.replay(f"{right}-log"), on="id")
        pairs.capture(str(folder / "out"))

        def work() -> None:
            step = JOIN_EPOCHS // N_FILES
            flow.start(self.spark, trigger=NOW, workers=2, max_times_per_step=step).await_termination()

        took = seconds(work)
        rows = self.spark.read.format("delta").load(str(folder / "out")).where("_event = 'message'")
        self._check_pairs(rows, n_rows, "dataflow join")
        if not st.open_log(str(folder / "out")).frontier().is_empty:
            message = "dataflow join: the output is not complete"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return took

    def _stream_stream_join(self) -> float:
        left, right, n_rows = self._sides()
        folder = self._folder("stream-join")

        def side(path: Path) -> DataFrame:
            rows = self.spark.readStream.schema(f"epoch long, id long, {path.name} double")
            # Spark's watermark begins at 0, and takes rows at it for late.
            at = F.timestamp_seconds(F.col("epoch") + 1).alias(f"at_{path.name}")
            chosen = rows.option("maxFilesPerTrigger", 1).parquet(str(path))
            return chosen.select(at, F.col("id").alias(f"id_{path.name}"), path.name).withWatermark(
                f"at_{path.name}", f"{LATENESS} seconds"
            )

        pairs = side(left).join(side(right), F.expr("at_left = at_right AND id_left = id_right"))

        def work() -> None:
            chosen = pairs.select("at_left", F.col("id_left").alias("id"), "left", "right")
            query = chosen.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
            query.trigger(availableNow=True).start(str(folder / "out")).awaitTermination()

        took = seconds(work)
        self._check_pairs(self.spark.read.format("delta").load(str(folder / "out")), n_rows, "stream-stream join")
        shutil.rmtree(folder)
        return took

    def join(self) -> Case:
        """Compare a join per time with Spark's stream-stream join of the same rows."""
        case = Case(
            "dataflow_join_vs_stream_stream_join",
            "two inputs of a fifth of the events each, joined by time and id, into a log in ten commits; peer: "
            "stream-stream join with watermarks, default state store, into a Delta table in ten micro-batches",
            5.0,
            settings={"workers": 2, **PEER_SETTINGS},
        )
        alternate(case, self._dataflow_join, self._stream_stream_join, self.base.repeats)
        return case

    # -- small micro-batches

    def empty_micro_batch(self) -> Case:
        """Compare the duration of micro-batches of one row, as Spark reports it."""
        case = Case(
            "empty_micro_batch_vs_spark",
            "median duration of a micro-batch of one row: a dataflow's, read, counted and appended to a log; peer: "
            "foreachBatch that counts and appends to a Delta table; both running continuously",
            0.2,
            higher_is_better=False,
            settings=dict(PEER_SETTINGS),
        )
        # The first micro-batches of each run are not counted either.
        alternate(case, self._dataflow_micro_batch, self._spark_micro_batch, self.base.repeats, warm=1)
        return case

    def _dataflow_micro_batch(self) -> float:
        folder = self._folder("small-dataflow")
        log = st.create_log(str(folder / "in"), pa.schema([("v", pa.int64())]), minimum=(0,))
        writer = log.writer(owner="bench")
        flow = st.Dataflow("small", checkpoint=str(folder / "checkpoint"))
        flow.replay(log).aggregate(by="v", n=tf.count()).capture(str(folder / "out"))
        query = flow.start(self.spark)
        try:
            for time_ in range(WARM + MEASURED):
                writer.append(pa.table({"_time": [time_], "v": [time_]}), advance_to=time_ + 1)
                query.await_frontier(time_, timeout_s=DEADLINE_S)
            took = _durations(query.query, MEASURED)
        finally:
            query.stop()
        n_rows = st.open_log(str(folder / "out")).messages().num_rows
        if n_rows != WARM + MEASURED:
            message = f"small dataflow: expected {WARM + MEASURED} groups, found {n_rows}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return took

    def _spark_micro_batch(self) -> float:
        folder = self._folder("small-spark")
        (folder / "in").mkdir(parents=True)
        done: list[int] = []

        def each(rows: DataFrame, batch_id: int) -> None:
            counted = rows.groupBy("t", "v").agg(F.count("*").alias("n"))
            counted.write.format("delta").mode("append").option("txnAppId", "small").option(
                "txnVersion", batch_id
            ).save(str(folder / "out"))
            done.append(batch_id)

        rows = self.spark.readStream.schema("t long, v long").parquet(str(folder / "in"))
        query = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(folder / "checkpoint")).start()
        try:
            for time_ in range(WARM + MEASURED):
                before = len(done)
                hidden = folder / "in" / f".{time_}"
                pq.write_table(pa.table({"t": [time_], "v": [time_]}), hidden)
                hidden.rename(folder / "in" / f"part-{time_:04d}.parquet")
                deadline = time.perf_counter() + DEADLINE_S
                while len(done) == before:
                    if time.perf_counter() > deadline:
                        message = f"file {time_} was not seen within {DEADLINE_S} s"
                        raise AssertionError(message)
                    time.sleep(0.005)
            query.processAllAvailable()
            took = _durations(query, MEASURED)
        finally:
            query.stop()
        n_rows = self.spark.read.format("delta").load(str(folder / "out")).count()
        if n_rows != WARM + MEASURED:
            message = f"small micro-batches of Spark: expected {WARM + MEASURED} rows, found {n_rows}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return took

    # -- small steps

    def steps_together(self) -> Case:
        """Compare many small steps, of which several share a job, with a job each."""
        case = Case(
            "dataflow_100_steps_together_vs_one_by_one",
            f"{SMALL_STEPS} steps of {SMALL_ROWS} rows each (count and sum per time and key), a commit each, by jobs "
            "of up to twenty steps; peer: by a job each; both as jobs of Spark, without the start of a query",
            1.7,
            settings={"rows": SMALL_STEPS * SMALL_ROWS},
        )
        alternate(case, lambda: self._small_steps(MOST_TOGETHER), lambda: self._small_steps(1), self.base.repeats)
        return case

    def _small_steps(self, most_together: int) -> float:
        folder = self._folder("steps")
        rng = np.random.default_rng(SEED)
        times = np.arange(SMALL_STEPS).repeat(SMALL_ROWS)
        rows = pa.table({"_time": times, "key": rng.integers(0, 50, len(times)), "value": rng.random(len(times))})
        schema = pa.schema([("key", pa.int64()), ("value", pa.float64())])
        log = st.create_log(str(folder / "in"), schema, minimum=(0,))
        log.writer(owner="bench").append(rows, advance_to=SMALL_STEPS)
        flow = self._groups(folder / "in", folder)
        engine = Engine(
            flow.name,
            flow.sinks,
            flow.storage,
            files_of=catalog_of,
            limits=Limits(times=1, size_bytes=512 << 20),
            most_together=most_together,
        )
        tasks = SparkTasks(self.spark, flow.storage, max_bytes_in_driver=0)
        took = seconds(lambda: engine.advance(tasks))
        out = st.open_log(str(folder / "out"))
        made = out.messages()
        found = (len(set(made["_seq"].to_pylist())), sum(made["n"].to_pylist()), out.frontier().to_json())
        if found != (SMALL_STEPS, len(times), [SMALL_STEPS]):
            message = f"small steps: expected {SMALL_STEPS} commits of {len(times)} rows; found {found}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return took

    # -- a start with nothing to do

    def start(self) -> Case:
        """Compare the start of a dataflow that finds nothing to do with one whose micro-batch a clock makes."""
        folder = self._folder("start")
        log = st.create_log(str(folder / "in"), pa.schema([("key", pa.int64()), ("value", pa.int64())]), minimum=(0,))
        log.writer(owner="bench").append(pa.table({"_time": [0], "key": [0], "value": [0]}), advance_to=1)
        flow = self._groups(folder / "in", folder)
        flow.start(self.spark, trigger=NOW).await_termination()
        case = Case(
            "dataflow_start_vs_clock",
            "an availableNow dataflow with nothing to do, from start to end; peer: the same, its micro-batch made by "
            "content=clock instead of Spark's own source",
            0.5,
            higher_is_better=False,
            settings=dict(PEER_SETTINGS),
        )

        def look(rows: DataFrame, batch_id: int) -> None:
            del batch_id
            engine = Engine("bench", flow.sinks, flow.storage, files_of=catalog_of)
            engine.advance(SparkTasks(rows.sparkSession, flow.storage))

        def by_clock() -> None:
            open_logs(flow.sinks, flow.storage)
            clock = self.spark.readStream.format("timely").option("content", "clock").option("run", uuid.uuid4().hex)
            query = clock.load(str(folder / "in")).writeStream.foreachBatch(look).trigger(**NOW)
            query.option("checkpointLocation", str(folder / "clock")).start().awaitTermination()

        def ours() -> None:
            flow.start(self.spark, trigger=NOW).await_termination()

        alternate(case, lambda: seconds(ours), lambda: seconds(by_clock), self.base.repeats)
        n_rows = st.open_log(str(folder / "out")).messages().num_rows
        if n_rows != 1:
            message = f"start: expected one group, found {n_rows}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return case

    # -- news during a backlog

    def news(self) -> list[Case]:
        """Say after what time a small dataflow beside a backlog answers news."""
        what = (
            f"a dataflow that has {BACKLOG} steps to do (count and sum per time and key of all events), and a small one"
            f" beside it whose input gets a row {len(NEWS_AFTER)} times meanwhile; "
        )
        longest = Case(
            "news_during_backlog_seconds",
            f"{what}seconds from the news to the answer, the most of a run; peer: one second, which a job should take",
            2.5,
            higher_is_better=False,
        )
        latency = Case(
            "news_during_backlog_vs_alone",
            f"{what}seconds from the news to the answer, the median of a run; peer: the same once the backlog is done",
            None,
            higher_is_better=False,
        )
        for number in range(1 + self.base.repeats):
            most, during, alone = self._news()
            if number:  # the first run pays for loading classes
                longest.ours.append(most)
                longest.peer.append(1.0)
                latency.ours.append(during)
                latency.peer.append(alone)
        return [longest, latency]

    def _news(self) -> tuple[float, float, float]:
        """Return the longest wait during the backlog, and the median waits during it and after it, in seconds."""
        events_log, _ = self.base.captured()
        folder = self._folder("news")
        log = st.create_log(str(folder / "in"), pa.schema([("v", pa.int64())]), minimum=(0,))
        writer = log.writer(owner="bench")
        large, small = self._groups(events_log, folder), st.Dataflow("small", checkpoint=str(folder / "unused"))
        small.replay(log).capture(str(folder / "small"))
        per_step = -(-N_EPOCHS // BACKLOG)
        query = large.start(self.spark, workers=2, max_times_per_step=per_step, beside=[small])
        try:
            for number in range(2 * len(NEWS_AFTER)):
                if number < len(NEWS_AFTER):
                    time_ = per_step * NEWS_AFTER[number] - 1
                    st.wait(str(folder / "out"), time=time_, timeout_s=DEADLINE_S, poll_s=0.01)
                elif number == len(NEWS_AFTER):
                    st.wait(str(folder / "out"), frontier=[], timeout_s=4 * DEADLINE_S)
                writer.append(pa.table({"_time": [number], "v": [number]}), advance_to=number + 1)
                st.wait(str(folder / "small"), time=number, timeout_s=DEADLINE_S, poll_s=0.01)
        finally:
            query.stop()
        asked, answered, steps = (_moments(folder / name) for name in ("in", "small", "out"))
        n_groups = self.spark.read.format("delta").load(str(folder / "out")).where("_event = 'message'").count()
        if (len(asked), len(answered), n_groups) != (2 * len(NEWS_AFTER), len(asked), self.base.data.n_groups):
            message = f"news: found {len(asked)} news, {len(answered)} answers, {n_groups} groups"
            raise AssertionError(message)
        pairs = list(zip(asked, answered, strict=True))
        during, alone = pairs[: len(NEWS_AFTER)], pairs[len(NEWS_AFTER) :]
        if during[-1][1] >= steps[-1]:
            message = "news: the backlog was done before the last answer; give more rows"
            raise AssertionError(message)
        waits = [[end - start for start, end in each] for each in (during, alone)]
        shutil.rmtree(folder)
        return max(waits[0]), statistics.median(waits[0]), statistics.median(waits[1])

    # -- costs, for information

    def alone(self, kind: str) -> list[Case]:
        """Say the peak memory of a process that runs all tasks one by one, and how much of the files it reads."""
        log, _ = self.base.captured()
        arguments = [str(log), str(self._folder("alone")), str(N_EPOCHS // N_FILES), kind]
        done = subprocess.run([sys.executable, "-c", _MEASURED, *arguments], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        if kind == "plain" and found["rows"] != self.base.data.n_groups:
            message = f"tasks alone: expected {self.base.data.n_groups} groups, found {found['rows']}"
            raise AssertionError(message)
        windows = ", four windows of 20 times, one every 5," if kind == "hopping" else ""
        what = f"count and sum per time and key{windows} in steps of a tenth of the times, two tasks each; "
        memory = Case(
            f"dataflow_memory_of_a_worker_{kind}",
            f"peak memory of a process that runs all tasks: {what}peer: the same process after its imports",
            None,
            unit="MB",
            higher_is_better=False,
        )
        memory.ours.append(found["peak"])
        memory.peer.append(found["before"])
        read = Case(
            f"dataflow_bytes_read_per_byte_{kind}",
            f"bytes read by that process: {what}peer: bytes of the input's files, all columns",
            None,
            unit="MB",
            higher_is_better=False,
        )
        read.ours.append(found["read"])
        read.peer.append(found["size"])
        return [memory, read]


_MEASURED = """
import json, sys
from spark_timely.protocol.replay import Limits
from spark_timely.dataflow.aggregates import count, sum_of
from spark_timely.dataflow.delays import windows
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope
from spark_timely.log.log import open_log
from spark_timely.spark.dataflows.tasks import catalog_of, run_one
entry = lambda path, name: next(int(x.split()[1]) for x in open(path) if x.startswith(name))
peak = lambda: entry("/proc/self/status", "VmHWM") / 1024
path, folder, step, kind = sys.argv[1:]
size = int(open_log(path).core.files().sizes.sum()) / 2**20
before = peak()
scope = Scope("alone")
rows = scope.replay(path)
rows = rows.delay(windows(20, every=5)) if kind == "hopping" else rows
rows.aggregate(by="key", n=count(), total=sum_of("value")).capture(folder + "/out")
engine = Engine("alone", scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=int(step)), workers=2)
read = 0
def run(plans, tasks):
    global read
    start = entry("/proc/self/io", "rchar")
    found = [run_one(task, plans[task.output], scope.storage) for task in tasks]
    read += entry("/proc/self/io", "rchar") - start
    return found
rows = sum(done.n_rows for done in engine.advance(run))
print(json.dumps({"before": before, "peak": peak(), "rows": rows, "read": read / 2**20, "size": size}))
"""


def _moments(path: Path) -> list[float]:
    """Return when the commits that moved a log's stream were made, in seconds of the wall clock, in their order."""
    rows = st.open_log(str(path)).core.progress().to_pylist()
    return sorted({row["_seq"]: row["_at"].timestamp() for row in rows if row["_seq"] and row["_delta"]}.values())


def _durations(query: StreamingQuery, n: int) -> float:
    """Return the median duration in seconds of the newest micro-batches that ran: a clock's have no rows to count."""
    deadline = time.perf_counter() + DEADLINE_S
    while True:  # a micro-batch is reported a moment after its work is done
        ran = [each.durationMs for each in query.recentProgress if "addBatch" in each.durationMs]
        found = [durations["triggerExecution"] for durations in ran]
        if len(found) >= n or time.perf_counter() > deadline:
            break
        time.sleep(0.05)
    if len(found) < n // 2:
        message = f"expected about {n} micro-batches, found {len(found)}"
        raise AssertionError(message)
    return statistics.median(found[-n:]) / 1000
