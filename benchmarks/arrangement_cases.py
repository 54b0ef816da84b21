"""Operators over all history: many keys beside few, and beside what Spark's users have: a state store, or MERGE."""

from __future__ import annotations

import shutil
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable
from pyspark.sql import functions as F

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.spark.dataflows.tasks import catalog_of, run_one
from spark_timely.typing import DataflowQuery

from .dataflow_cases import PROVIDER, STORES
from .report import Case
from .spark_cases import PEER_SETTINGS, last_micro_batch
from .worker_memory import WorkerMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NAMES = (
    "arrangement_10m_vs_100k_keys",
    "arrangement_task_work_10m_vs_100k_keys",
    "arrangement_count_vs_spark_update_mode",
    "dedup_vs_spark_drop_duplicates",
    "latest_vs_merge",
    "asof_join_10m_vs_100k",
    "asof_join_vs_stream_static",
    "arrangement_first_load_vs_batch",
    "arrangement_first_load_worker_memory",
    "arrangement_cold_vs_decode",
    "arrangement_worst_micro_batch",
    "arrangement_space",
)
NOW = {"availableNow": True}
MANY, FEW, CHANGED = 10_000_000, 100_000, 10_000
BATCHES = 20
DEADLINE_S = 120
TASK_BYTES = 4 << 20
KEYS = pa.schema([("k", pa.int64())])


class ArrangementCases:
    """The comparisons, in one session.

    Parameters
    ----------
    spark : SparkSession
    scratch : Path
    many : int
        Keys of the large side.
    """

    def __init__(self, spark: SparkSession, scratch: Path, many: int = MANY) -> None:
        self.spark, self.scratch, self.many = spark, scratch, many
        self.rng = np.random.default_rng(7)

    def run(self, wanted: Callable[[str], bool]) -> list[Case]:
        """Run the cases whose names are wanted."""
        groups: tuple[tuple[tuple[str, ...], Callable[[], list[Case]]], ...] = (
            (NAMES[8:9], self.load_memory),
            (NAMES[:1], self.micro_batches),
            (NAMES[1:2], self.task_work),
            (NAMES[2:3], self.counts),
            (NAMES[3:4], self.dedup),
            (NAMES[4:5], self.latest),
            (NAMES[5:7], self.joins),
            ((NAMES[7], NAMES[9]), self.loads),
            (NAMES[10:], self.long_run),
        )
        return [case for names, measure in groups if any(map(wanted, names)) for case in measure()]

    # -- what is written

    def _folder(self, name: str) -> Path:
        folder = self.scratch / f"arrangement-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _log(self, folder: Path, keys: int) -> st.Log:
        """Return a log with each of some keys once, at time 0."""
        log = st.create_log(str(folder / "in"), KEYS, minimum=(0,))
        every = self.rng.permutation(keys).astype(np.int64)
        log.writer(owner="bench").append(_rows(0, every), advance_to=1)
        return log

    def _some(self, keys: int) -> np.ndarray:
        return self.rng.choice(keys, CHANGED, replace=False).astype(np.int64)

    # -- many keys beside few

    def _counting(self, folder: Path, log: st.Log) -> st.Dataflow:
        flow = st.Dataflow(folder.name, checkpoint=str(folder / "checkpoint"))
        flow.replay(log).aggregate(by="k", over="history", n=tf.count()).capture(str(folder / "out"))
        return flow

    def micro_batches(self) -> list[Case]:
        """Compare warm micro-batches of 10,000 random keys, of many keys and of few, both in one session, in turn."""
        case = Case(
            NAMES[0],
            f"{CHANGED} random keys of {self.many} counted over all history, a whole micro-batch, commit included, as "
            f"Spark reports it; peer: the same of {FEW}; in turn, after the index was made",
            1.5,
            higher_is_better=False,
            settings=dict(PEER_SETTINGS),
        )
        sides = []
        for keys in (self.many, FEW):
            folder = self._folder(f"keys-{keys}")
            log = self._log(folder, keys)
            self._counting(folder, log).start(self.spark, trigger=NOW).await_termination()
            sides.append((keys, folder, log, self._counting(folder, log).start(self.spark)))
        try:
            for number in range(1, BATCHES + 11):
                took = []
                for keys, _, log, query in sides:
                    log.writer(owner="bench").append(_rows(number, self._some(keys)), advance_to=number + 1)
                    query.await_frontier(number, timeout_s=DEADLINE_S)
                    took.append(last_micro_batch(query.query, DEADLINE_S))
                if number > 10:
                    case.ours.append(took[0])
                    case.peer.append(took[1])
        finally:
            for *_, query in sides:
                query.stop()
        for keys, folder, _, _ in sides:
            self._check_counts(folder / "out", keys, BATCHES + 10)
            shutil.rmtree(folder)
        return [case]

    def _check_counts(self, path: Path, keys: int, batches: int) -> None:
        rows = self.spark.read.format("delta").load(str(path)).where("_event = 'message'")
        found = rows.agg(F.sum("_diff"), F.sum(F.expr("_diff * n"))).first()
        if found is None or tuple(found) != (keys, keys + batches * CHANGED):
            message = f"counts of {path}: expected {keys} keys, {keys + batches * CHANGED} rows; found {found}"
            raise AssertionError(message)

    def task_work(self) -> list[Case]:
        """Compare the work of tasks alone."""
        case = Case(
            NAMES[1],
            f"{CHANGED} random keys of {self.many} counted, time in tasks; peer: the same of {FEW}",
            2.5,
            higher_is_better=False,
        )
        spent = 0.0

        def run(outputs, tasks):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            nonlocal spent
            began = time.perf_counter()
            found = [run_one(task, outputs[task.output], {}) for task in tasks]
            if not any(task.index for task in tasks):
                spent += time.perf_counter() - began
            return found

        sides = []
        for keys in (self.many, FEW):
            folder = self._folder(f"work-{keys}")
            log = self._log(folder, keys)
            flow = self._counting(folder, log)
            engine = Engine("work", flow.sinks, flow.storage, files_of=catalog_of)
            engine.advance(run)
            sides.append((keys, folder, log, engine))
        for number in range(1, BATCHES + 11):
            took = []
            for keys, _, log, engine in sides:
                log.writer(owner="bench").append(_rows(number, self._some(keys)), advance_to=number + 1)
                spent = 0.0
                engine.advance(run)
                engine.end()
                took.append(spent)
            if number > 10:
                case.ours.append(took[0])
                case.peer.append(took[1])
        for keys, folder, _, _ in sides:
            self._check_counts(folder / "out", keys, BATCHES + 10)
            shutil.rmtree(folder)
        return [case]

    # -- beside Spark's state store

    def _fed(self, folder: Path, log: st.Log, query: DataflowQuery, make: Callable[[int], pa.Table]) -> float:
        """Return the seconds of all micro-batches that follow twenty appends, one after the other."""
        writer, took = log.writer(owner="bench"), 0.0
        for number in range(1, BATCHES + 1):
            writer.append(make(number), advance_to=number + 1)
            query.await_frontier(number, timeout_s=DEADLINE_S)
            took += last_micro_batch(query.query, DEADLINE_S)
        return took

    def _fed_files(self, folder: Path, query: StreamingQuery, make: Callable[[int], pa.Table]) -> float:
        took = 0.0
        for number in range(1, BATCHES + 1):
            _put(folder, number, make(number))
            took += _next(query, number)
        return took

    def _stateful(self, folder: Path, rows: Callable[[DataFrame], DataFrame], mode: str) -> StreamingQuery:
        source = self.spark.readStream.schema("_time long, k long").option("maxFilesPerTrigger", 1)
        made = rows(source.parquet(str(folder / "files")))

        def each(batch: DataFrame, number: int) -> None:
            del number
            batch.write.format("delta").mode("append").save(str(folder / "delta"))

        return made.writeStream.outputMode(mode).foreachBatch(each).option(
            "checkpointLocation", str(folder / "peer-checkpoint")
        ).start()  # fmt: skip

    def counts(self) -> list[Case]:
        """Compare running counts with Spark's, twenty micro-batches of 10,000 rows each over many keys."""
        case = Case(
            NAMES[2],
            f"{BATCHES} micro-batches of {CHANGED} rows counted over {self.many} keys; peer: groupBy().count() in "
            "update mode, RocksDB, appended to a Delta table",
            3.0,
            settings={**PEER_SETTINGS, "store": "rocksdb"},
        )
        folder = self._folder("counts")
        log = self._log(folder, self.many)
        self._counting(folder, log).start(self.spark, trigger=NOW).await_termination()
        made = {number: _rows(number, self._some(self.many)) for number in range(1, BATCHES + 1)}
        query = self._counting(folder, log).start(self.spark)
        try:
            case.ours.append(self._fed(folder, log, query, made.__getitem__))
        finally:
            query.stop()
        self._check_counts(folder / "out", self.many, BATCHES)
        before = self.spark.conf.get(PROVIDER)
        self.spark.conf.set(PROVIDER, STORES["rocksdb"])
        try:
            (folder / "files").mkdir()
            _put(folder, 0, log.messages().select(["_time", "k"]).filter(pa.compute.field("_time") == 0))
            peer = self._stateful(folder, lambda rows: rows.groupBy("k").agg(F.count("*").alias("n")), "update")
            try:
                _next(peer, 0)
                case.peer.append(self._fed_files(folder, peer, made.__getitem__))
            finally:
                peer.stop()
        finally:
            self.spark.conf.set(PROVIDER, before)
        newest = self.spark.read.format("delta").load(str(folder / "delta")).groupBy("k").agg(F.max("n").alias("n"))
        found = newest.agg(F.count("*"), F.sum("n")).first()
        if found is None or tuple(found) != (self.many, self.many + BATCHES * CHANGED):
            message = f"counts of Spark: found {found}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return [case]

    def dedup(self) -> list[Case]:
        """Compare the first rows of keys with Spark's dropDuplicates without watermark, in 20 micro-batches."""
        case = Case(
            NAMES[3],
            f"{self.many} rows in {BATCHES} micro-batches, each key twice; peer: dropDuplicates without watermark, "
            "RocksDB, into a Delta table",
            3.0,
            settings={**PEER_SETTINGS, "store": "rocksdb"},
        )
        folder = self._folder("dedup")
        each = self.many // BATCHES
        keys = self.rng.permutation(np.arange(self.many, dtype=np.int64) // 2)
        made = {n: _rows(n, keys[(n - 1) * each : n * each]) for n in range(1, BATCHES + 1)}
        log = st.create_log(str(folder / "in"), KEYS, minimum=(0,))
        log.writer(owner="bench").advance(1)
        flow = st.Dataflow("dedup", checkpoint=str(folder / "checkpoint"))
        flow.replay(log).drop_duplicates("k").capture(str(folder / "out"))
        query = flow.start(self.spark)
        try:
            case.ours.append(self._fed(folder, log, query, made.__getitem__))
        finally:
            query.stop()
        found = self.spark.read.format("delta").load(str(folder / "out")).where("_event = 'message'").agg(
            F.count("*"), F.countDistinct("k")
        ).first()  # fmt: skip
        if found is None or tuple(found) != (self.many // 2, self.many // 2):
            message = f"first rows: found {found}"
            raise AssertionError(message)
        before = self.spark.conf.get(PROVIDER)
        self.spark.conf.set(PROVIDER, STORES["rocksdb"])
        try:
            (folder / "files").mkdir()
            _put(folder, 0, made[1].slice(0, 0))
            source = self.spark.readStream.schema("_time long, k long").option("maxFilesPerTrigger", 1)
            rows = source.parquet(str(folder / "files")).dropDuplicates(["k"])
            peer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "peer")).start(
                str(folder / "delta")
            )  # fmt: skip
            try:
                _next(peer, 0)
                case.peer.append(self._fed_files(folder, peer, made.__getitem__))
            finally:
                peer.stop()
        finally:
            self.spark.conf.set(PROVIDER, before)
        n_rows = self.spark.read.format("delta").load(str(folder / "delta")).count()
        if n_rows != self.many // 2:
            message = f"dropDuplicates of Spark: found {n_rows}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return [case]

    def latest(self) -> list[Case]:
        """Compare a table kept current with MERGE in foreachBatch: of a tenth of the keys."""
        keys = self.many // 10
        case = Case(
            NAMES[4],
            f"{BATCHES} micro-batches of {CHANGED} changes of {keys} keys; peer: MERGE into a Delta table in "
            "foreachBatch",
            3.0,
            settings=dict(PEER_SETTINGS),
        )
        folder = self._folder("latest")
        schema = pa.schema([("k", pa.int64()), ("changed", pa.int64()), ("v", pa.int64())])
        log = st.create_log(str(folder / "in"), schema, minimum=(0,))

        def rows(time_: int, changed: np.ndarray) -> pa.Table:
            at = np.full(changed.shape[0], time_, np.int64)
            return pa.table({"_time": at, "k": changed, "changed": at, "v": changed * 3 + time_})

        made = {n: rows(n, self._some(keys)) for n in range(1, BATCHES + 1)}
        first = rows(0, self.rng.permutation(keys).astype(np.int64))
        log.writer(owner="bench").append(first, advance_to=1)

        def flow() -> st.Dataflow:
            found = st.Dataflow("latest", checkpoint=str(folder / "checkpoint"))
            found.replay(log).latest("k", order_by="changed").capture(str(folder / "out"))
            return found

        flow().start(self.spark, trigger=NOW).await_termination()
        query = flow().start(self.spark)
        try:
            case.ours.append(self._fed(folder, log, query, made.__getitem__))
        finally:
            query.stop()
        (folder / "files").mkdir()
        _put(folder, 0, first)
        self.spark.read.parquet(str(folder / "files")).drop("_time").write.format("delta").save(str(folder / "delta"))
        target = DeltaTable.forPath(self.spark, str(folder / "delta"))

        def merge(batch: DataFrame, number: int) -> None:
            del number
            changes = batch.drop("_time").alias("s")
            merged = target.alias("t").merge(changes, "t.k = s.k")
            merged.whenMatchedUpdateAll("s.changed > t.changed").whenNotMatchedInsertAll().execute()

        source = self.spark.readStream.schema("_time long, k long, changed long, v long")
        stream = source.option("maxFilesPerTrigger", 1).parquet(str(folder / "files"))
        peer = stream.writeStream.foreachBatch(merge).option("checkpointLocation", str(folder / "peer")).start()
        try:
            _next(peer, 0)
            case.peer.append(self._fed_files(folder, peer, made.__getitem__))
        finally:
            peer.stop()
        ours = self.spark.read.format("delta").load(str(folder / "out")).where("_event = 'message'")
        mine = ours.agg(F.sum("_diff"), F.sum(F.expr("_diff * v"))).first()
        theirs = self.spark.read.format("delta").load(str(folder / "delta")).agg(F.count("*"), F.sum("v")).first()
        if mine is None or theirs is None or tuple(mine) != tuple(theirs):
            message = f"latest: found {mine}, MERGE made {theirs}"
            raise AssertionError(message)
        shutil.rmtree(folder)
        return [case]

    # -- joins as of a time

    def _dimension(self, folder: Path, keys: int) -> st.Log:
        schema = pa.schema([("k", pa.int64()), ("rate", pa.int64())])
        log = st.create_log(str(folder / "rates"), schema, minimum=(0,), kind="collection")
        every = self.rng.permutation(keys).astype(np.int64)
        n = every.shape[0]
        rows = pa.table({"_time": np.zeros(n, np.int64), "_diff": np.ones(n, np.int64), "k": every, "rate": every + 1})
        log.writer(owner="bench").append(rows, advance_to=1)
        return log

    def joins(self) -> list[Case]:
        """Compare facts joined as of their time: with many rows and few, and with Spark's stream-static join."""
        scale = Case(
            NAMES[5],
            f"{CHANGED} facts joined as of their time with a dimension of {self.many} rows; peer: with one of {FEW}",
            1.5,
            higher_is_better=False,
            settings=dict(PEER_SETTINGS),
        )
        static = Case(
            NAMES[6],
            f"{CHANGED} facts joined as of their time with a dimension of {self.many} rows, into a log; peer: a "
            "stream-static join with the same Delta table, into a Delta table",
            2.0,
            settings=dict(PEER_SETTINGS),
        )
        sides = []
        for keys in (self.many, FEW):
            folder = self._folder(f"join-{keys}")
            dimension = self._dimension(folder, keys)
            facts = st.create_log(str(folder / "facts"), KEYS, minimum=(0,))
            flow = st.Dataflow(folder.name, checkpoint=str(folder / "checkpoint"))
            flow.replay(facts).join(flow.replay(dimension), on="k", as_of=True).capture(str(folder / "out"))
            sides.append((keys, folder, dimension, facts, flow.start(self.spark)))
        keys, folder, dimension, *_ = sides[0]
        (folder / "files").mkdir()
        _put(folder, 0, _rows(0, np.zeros(0, np.int64)))
        source = self.spark.readStream.schema("_time long, k long").option("maxFilesPerTrigger", 1)
        rates = self.spark.read.format("delta").load(dimension.path).where("_event = 'message'").select("k", "rate")
        joined = source.parquet(str(folder / "files")).join(rates, "k")
        peer = joined.writeStream.format("delta").option("checkpointLocation", str(folder / "peer")).start(
            str(folder / "delta")
        )  # fmt: skip
        try:
            _next(peer, 0)
            for number in range(1, BATCHES // 2 + 6):
                took = []
                changed = {side[0]: self._some(side[0]) for side in sides}
                for keys, _, dimension, facts, query in sides:
                    dimension.writer(owner="bench").advance(number + 1)
                    facts.writer(owner="bench").append(_rows(number, changed[keys]), advance_to=number + 1)
                    query.await_frontier(number, timeout_s=DEADLINE_S)
                    took.append(last_micro_batch(query.query, DEADLINE_S))
                _put(folder, number, _rows(number, changed[sides[0][0]]))
                theirs = _next(peer, number)
                if number > 5:
                    scale.ours.append(took[0])
                    scale.peer.append(took[1])
                    static.ours.append(took[0])
                    static.peer.append(theirs)
        finally:
            peer.stop()
            for *_, query in sides:
                query.stop()
        ours = self.spark.read.format("delta").load(str(sides[0][1] / "out")).where("_event = 'message'")
        mine = ours.agg(F.count("*"), F.sum("rate")).first()
        made = self.spark.read.format("delta").load(str(folder / "delta")).agg(F.count("*"), F.sum("rate")).first()
        if mine is None or made is None or tuple(mine) != tuple(made):
            message = f"joins: found {mine}, Spark made {made}"
            raise AssertionError(message)
        for _, folder, *_ in sides:
            shutil.rmtree(folder)
        return [scale, static]

    # -- loads

    def loads(self) -> list[Case]:
        """Compare the first load with Spark's batch group-by, and a look without an index with a plain decode.

        And say how much memory a worker takes in the first load, where Linux tells it.
        """
        load = Case(
            NAMES[7],
            f"the first {self.many} rows of as many keys counted over all history, into a log; peer: groupBy().count() "
            "of the same Parquet files into a Delta table",
            1.5,
            higher_is_better=False,
            settings=dict(PEER_SETTINGS),
        )
        cold = Case(
            NAMES[9],
            f"the first micro-batch of {CHANGED} keys after a restart without an index over {self.many}; peer: one "
            "decode of the same files",
            3.0,
            higher_is_better=False,
        )
        for number in range(3):
            folder = self._folder("load")
            log = self._log(folder, self.many)
            began = time.perf_counter()
            self._counting(folder, log).start(self.spark, trigger=NOW).await_termination()
            ours = time.perf_counter() - began
            files = [str(file) for file in (folder / "in" / "_event=message").glob("*.parquet")]
            began = time.perf_counter()
            grouped = self.spark.read.parquet(*files).groupBy("k").agg(F.count("*").alias("n"))
            grouped.write.format("delta").save(str(folder / "delta"))
            peer = time.perf_counter() - began
            for name in ("a warm decode", "the measured one"):
                began = time.perf_counter()
                made = (folder / "out" / "_event=message").glob("*.parquet")
                rows = sum(pq.ParquetFile(file).read().num_rows for file in made)
                decode = time.perf_counter() - began
                assert rows == self.many, name
            for indexed in folder.rglob("by-*"):
                shutil.rmtree(indexed)
            log.writer(owner="bench").append(_rows(1, self._some(self.many)), advance_to=2)
            query = self._counting(folder, log).start(self.spark)
            try:
                query.await_frontier(1, timeout_s=DEADLINE_S)
                first = last_micro_batch(query.query, DEADLINE_S)
            finally:
                query.stop()
            self._check_counts(folder / "out", self.many, 1)
            if number:  # the first one warms Spark
                load.ours.append(ours)
                load.peer.append(peer)
                cold.ours.append(first)
                cold.peer.append(decode)
            shutil.rmtree(folder)
        return [load, cold]

    def load_memory(self) -> list[Case]:
        """Say how the memory of a worker grows with what there is to load, where tasks are of one size.

        Before all else in the session: a worker that lives on keeps what it once took from the system.
        """
        case = Case(
            NAMES[8],
            f"the most memory of its own that one of Spark's Python workers has in the first load of {self.many} rows, "
            f"the index included, in tasks of at most {TASK_BYTES >> 20} MiB of files; peer: of a quarter of the rows",
            1.5,
            unit="MB",
            higher_is_better=False,
        )
        largest = {}
        for keys in (self.many // 4, self.many):
            folder = self._folder(f"load-{keys}")
            log = self._log(folder, keys)
            with WorkerMemory() as workers:
                query = self._counting(folder, log).start(self.spark, trigger=NOW, max_bytes_per_task=TASK_BYTES)
                query.await_termination()
            self._check_counts(folder / "out", keys, 0)
            assert workers.looks, "no worker was seen"
            largest[keys] = workers.largest / 1e6
            shutil.rmtree(folder)
        case.peer, case.ours = [largest[self.many // 4]], [largest[self.many]]
        return [case]

    # -- a long run

    def long_run(self) -> list[Case]:
        """Say the slowest of 300 micro-batches beside the median, and the space of an index beside one copy."""
        worst = Case(
            NAMES[10],
            f"the slowest of 300 micro-batches of {CHANGED} keys of {self.many // 10}, with merges; peer: the median",
            5.0,
            higher_is_better=False,
        )
        space = Case(
            NAMES[11],
            "bytes of all files of the index after these; peer: of one run of the same contents",
            3.0,
            unit="MB",
            higher_is_better=False,
        )
        folder, keys = self._folder("long"), self.many // 10
        log = self._log(folder, keys)
        self._counting(folder, log).start(self.spark, trigger=NOW).await_termination()
        query = self._counting(folder, log).start(self.spark)
        took = []
        try:
            for number in range(1, 311):
                log.writer(owner="bench").append(_rows(number, self._some(keys)), advance_to=number + 1)
                query.await_frontier(number, timeout_s=DEADLINE_S)
                took.append(last_micro_batch(query.query, DEADLINE_S))
        finally:
            query.stop()
        self._check_counts(folder / "out", keys, 310)
        worst.ours.append(max(took[10:]))
        worst.peer.append(statistics.median(took[10:]))
        (indexed,) = folder.rglob("by-*")
        one = keys * 40  # hash, time, diff, key and count, of 8 bytes each
        space.ours.append(sum(file.stat().st_size for file in indexed.iterdir()) / 1e6)
        space.peer.append(one / 1e6)
        shutil.rmtree(folder)
        return [worst, space]


def _rows(time_: int, keys: np.ndarray) -> pa.Table:
    return pa.table({"_time": np.full(keys.shape[0], time_, np.int64), "k": keys})


def _put(folder: Path, number: int, rows: pa.Table) -> None:
    hidden = folder / "files" / f".{number}"
    pq.write_table(rows, hidden)
    hidden.rename(folder / "files" / f"part-{number:04d}.parquet")


def _next(query: StreamingQuery, number: int) -> float:
    """Return the seconds of the micro-batch of a file, once it is done."""
    deadline = time.perf_counter() + DEADLINE_S
    while time.perf_counter() < deadline:
        for progress in query.recentProgress:
            if progress.batchId == number and "addBatch" in progress.durationMs:
                return progress.durationMs["triggerExecution"] / 1000
        time.sleep(0.005)
    error = query.exception()
    message = f"micro-batch {number} was not reported within {DEADLINE_S} s: {error}"
    raise AssertionError(message)
