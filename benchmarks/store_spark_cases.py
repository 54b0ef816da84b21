"""A captured micro-batch in an object store, against Spark's own Delta sink over S3A on the same server.

The server is MinIO on loopback, behind the proxy of the tests, which counts requests and makes each take longer. Both
sides keep Spark's checkpoint in the store: it is the same work for both, so times without it are reported too.
"""

from __future__ import annotations

import os
import statistics
import uuid
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_timely as st
from spark_timely.typing import CaptureQuery
from tests.stores.hadoop import environment, package_settings, s3a_settings
from tests.stores.proxy import ProxyProcess
from tests.stores.servers import minio

from .report import Case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NAMES = ("capture_store_vs_delta_sink", "capture_foreach_batch_store_vs_delta_sink")
DELAYS_MS = (50, 0)
ROWS, BATCHES, SKIPPED = 10_000, 8, 2
LATENESS = 5


def run(scratch: Path, wanted: Callable[[str], bool], repeats: int = 3) -> list[Case]:
    """Measure both sides in turn, in a session of their own: Hadoop's connector is downloaded when it is asked for."""
    if not any(map(wanted, NAMES)):
        return []
    folder = scratch / "minio"
    folder.mkdir()
    server = minio(folder).start()
    try:
        with (
            ProxyProcess(server.address) as proxy,
            patch.dict(os.environ, environment(server.options(proxy.address))),
        ):
            spark = st.session(
                "bench",
                master="local[2]",
                delta=True,
                **{
                    "spark.driver.memory": "3g",
                    "spark.ui.enabled": "false",
                    "spark.sql.shuffle.partitions": "2",
                    "spark.sql.parquet.compression.codec": "zstd",
                    **package_settings(),
                    **s3a_settings(proxy.address),
                },
            )
            spark.sparkContext.setLogLevel("ERROR")
            try:
                return _Sides(spark, proxy, _files(scratch / "incoming")).cases(wanted, repeats)
            finally:
                spark.stop()
    finally:
        server.stop()


def _files(folder: Path) -> Path:
    folder.mkdir()
    for number in range(BATCHES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        times = number * 10 + ids % 10
        pq.write_table(pa.table({"t": times, "id": ids, "value": ids / 7}), folder / f"part-{number:05d}.parquet")
        os.utime(folder / f"part-{number:05d}.parquet", (1_700_000_000 + number,) * 2)
    return folder


class _Sides:
    """The two sides; what they say per micro-batch is the median of those that come after the first ones."""

    def __init__(self, spark: SparkSession, proxy: ProxyProcess, incoming: Path) -> None:
        self.spark, self.proxy, self.incoming = spark, proxy, incoming
        self.delay = 0.0
        self.requests: dict[str, list[float]] = {}

    def cases(self, wanted: Callable[[str], bool], repeats: int) -> list[Case]:
        found = []
        for name, ours in zip(NAMES, (self.sink, self.foreach_batch), strict=True):
            for delay in DELAYS_MS if wanted(name) else ():
                found.append(self._case(name, ours, delay, repeats))
        return found

    def _case(self, name: str, ours: Callable[[], float], delay: int, repeats: int) -> Case:
        by = "the sink" if ours == self.sink else "capture in foreachBatch"
        case = Case(
            f"{name}{'' if delay else '_at_once'}",
            f"seconds a micro-batch of {ROWS} rows by {by}, log and checkpoint in MinIO over a proxy with {delay} ms a "
            "request; peer: Spark's Delta sink over S3A on the same server",
            1.0 if ours == self.sink and delay else None,
        )
        self.requests = {}
        for number in range(-1, repeats):  # the first pair is not counted
            self.delay = delay / 1000
            pair = [ours, self.delta] if number % 2 else [self.delta, ours]
            took = {each: each() for each in pair}
            if number >= 0:
                case.ours.append(took[ours])
                case.peer.append(took[self.delta])
        case.settings = {what: statistics.median(counts) for what, counts in self.requests.items()}
        return case

    def _root(self) -> str:
        return f"s3a://bucket/{uuid.uuid4().hex[:8]}"

    def _arrivals(self) -> DataFrame:
        reader = self.spark.readStream.schema("t long, id long, value double").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.incoming))

    def _measured(self, what: str, work: Callable[[], CaptureQuery], root: str) -> float:
        # The second of a pair waits as long as the first.
        self.proxy.delay = self.delay
        try:
            with self.proxy.counting() as seen:
                query = work()
                query.awaitTermination()
        finally:
            # What is looked up then is of the data, not of the time.
            self.proxy.delay = 0.0
        done = [progress for progress in query.recentProgress if progress.numInputRows]
        if len(done) != BATCHES:
            message = f"{what}: expected {BATCHES} micro-batches, ran {len(done)}"
            raise AssertionError(message)
        place = root.partition("bucket/")[2]
        own = sum(not request.key.startswith(f"{place}/checkpoint") for request in seen.requests)
        self.requests.setdefault(f"{what}: requests a micro-batch", []).append(seen.total / BATCHES)
        self.requests.setdefault(f"{what}: of them not of the checkpoint", []).append(own / BATCHES)
        return statistics.median(progress.batchDuration / 1000 for progress in done[SKIPPED:])

    def _check(self, rows: DataFrame, what: str) -> None:
        found = rows.selectExpr("count(*) AS n", "sum(id) AS ids").first()
        n = ROWS * BATCHES
        if found is None or (found["n"], found["ids"]) != (n, n * (n - 1) // 2):
            message = f"{what}: found {found}"
            raise AssertionError(message)

    def _check_log(self, root: str, what: str) -> None:
        self._check(self.spark.read.format("delta").load(f"{root}/log").where("_event = 'message'"), what)
        frontier = st.open_log(f"{root}/log").frontier().to_json()
        if frontier != [BATCHES * 10 - 1 - LATENESS]:
            message = f"{what}: the frontier is {frontier}"
            raise AssertionError(message)

    def delta(self) -> float:
        root = self._root()
        writer = self._arrivals().writeStream.format("delta").option("checkpointLocation", f"{root}/checkpoint")
        took = self._measured("delta", lambda: writer.trigger(availableNow=True).start(f"{root}/table"), root)
        self._check(self.spark.read.format("delta").load(f"{root}/table"), "Delta sink")
        return took

    def sink(self) -> float:
        root = self._root()
        writer = self._arrivals().writeStream.format("timely").option("checkpointLocation", f"{root}/checkpoint")
        writer = writer.options(timeColumn="t", frontier="bounded", lateness=LATENESS).trigger(availableNow=True)
        took = self._measured("timely", lambda: writer.start(f"{root}/log"), root)
        self._check_log(root, "sink")
        return took

    def foreach_batch(self) -> float:
        root = self._root()

        def each(rows: DataFrame, number: int) -> None:
            st.capture(
                rows,
                number,
                path=f"{root}/log",
                checkpoint=f"{root}/checkpoint",
                time_column="t",
                frontier="bounded",
                lateness=LATENESS,
            )

        writer = self._arrivals().writeStream.foreachBatch(each).option("checkpointLocation", f"{root}/checkpoint")
        took = self._measured("timely", lambda: writer.trigger(availableNow=True).start(), root)
        self._check_log(root, "capture in foreachBatch")
        return took
