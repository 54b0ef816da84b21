"""The same answer for any cut, through Spark: a small sample of what tests/property does at large.

Legal streams (ties, idle stretches, several streams, k = 1 and 2, integers, dates, timestamps at
microseconds) are written to a log and replayed by real queries, with any number of workers and any limits,
compacted in between by our compaction and by delta-spark's OPTIMIZE, failed and started again. Every
micro-batch must hold exactly the messages between its frontiers, a repeated one the same rows again.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import spark_timely
from spark_timely.testing import assert_same_updates
from spark_timely.testing.strategies import (
    MINIMA,
    PAYLOAD_SCHEMA,
    History,
    arrivals,
    histories,
    rows_table,
)
from tests.faults.harness import long_lane, numbers
from tests.oracles.capture_model import CaptureModel, LateRowError
from tests.oracles.replay_model import Frontier, ReplayModel, Row
from tests.support import ZONES, expected_table, frontier_from_json, session_zone, write_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_timely.testing.strategies import Arrivals

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]

# A failing draw is not shrunk: each takes seconds. It is printed as it is.
few = settings(
    max_examples=80 if long_lane() else 3,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class CrashError(Exception):
    """What the recorder throws to end a query in the middle of a micro-batch."""


class Recorder:
    """A foreachBatch function that keeps what it is given, and fails now and then."""

    def __init__(self, rng: random.Random, n_crashes: int) -> None:
        self.batches: dict[int, pa.Table] = {}
        self.n_repeated = 0
        self.rng, self.n_crashes = rng, n_crashes

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        table = df.toArrow()
        if batch_id in self.batches:
            self.n_repeated += 1
            assert_same_updates(table, self.batches[batch_id], what=f"repeated micro-batch {batch_id}")
        self.batches[batch_id] = table
        if self.n_crashes and self.rng.random() < 0.3:
            self.n_crashes -= 1
            raise CrashError


def frontier_of_batch(checkpoint: Path, batch_id: int) -> Frontier | None:
    """Return the frontier at which a micro-batch ends, from Spark's own offset log."""
    found = json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1])
    if "frontier" not in found:
        return None
    return frontier_from_json(found["frontier"])


class Replayed:
    """A query that reads a log to its present end, whatever stops it on the way."""

    def __init__(
        self, spark: SparkSession, log: str, checkpoint: Path, recorder: Recorder, kinds: tuple[str, ...]
    ) -> None:
        self.spark, self.log, self.checkpoint, self.recorder = spark, log, checkpoint, recorder
        self.kinds = kinds

    def run(self, options: dict[str, str]) -> bool:
        """Run until all that is closed was delivered; return False where the recorder failed on purpose."""
        from pyspark.errors import StreamingQueryException

        query = (
            self.spark.readStream.format("timely")
            .option("includeTime", "true")
            .options(**options)
            .load(self.log)
            .writeStream.foreachBatch(self.recorder)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "CrashError" not in str(error):
                raise
            return False
        return True

    def check(self, model: ReplayModel) -> Frontier:
        """Compare every micro-batch with the model; return the frontier reached."""
        reached: Frontier = frozenset([model.minimum])
        for batch_id in numbers(self.checkpoint / "offsets"):
            ended = frontier_of_batch(self.checkpoint, batch_id)
            ended = reached if ended is None else ended
            if batch_id in self.recorder.batches:
                expected = expected_table(model.between(reached, ended), self.kinds)
                assert_same_updates(
                    self.recorder.batches[batch_id],
                    expected,
                    what=f"micro-batch {batch_id} from {sorted(reached)} to {sorted(ended)}",
                )
            reached = ended
        return reached

    def delivered(self) -> pa.Table:
        """Return all rows of all micro-batches."""
        return pa.concat_tables(self.recorder.batches.values())


def draw_options(rng: random.Random) -> dict[str, str]:
    """Choose workers and limits."""
    options = {"workers": rng.choice(["1", "2", "3", "8"])}
    options |= rng.choice([{}, {"splitBy": "time"}, {"splitBy": "bytes"}])
    if rng.random() < 0.7:
        options["maxTimesPerTrigger"] = rng.choice(["1", "2", "5"])
    if rng.random() < 0.3:
        options["maxRowsPerTrigger"] = rng.choice(["1", "4"])
    if rng.random() < 0.3:
        options["maxFilesPerTrigger"] = rng.choice(["1", "3"])
    if rng.random() < 0.3:
        options["maxBytesPerTrigger"] = rng.choice(["1000", "10kb"])
    return options


def shuffle_files(spark: SparkSession, path: str, rng: random.Random) -> None:
    """Rewrite the log's files in some way that changes no answer, or leave them."""
    way = rng.choice(["none", "ours", "delta-spark", "deltalake"])
    if way == "ours":
        spark_timely.open_log(path).compact()
    elif way == "delta-spark":
        spark.sql(f"OPTIMIZE delta.`{path}`")
    elif way == "deltalake":
        from deltalake import DeltaTable

        DeltaTable(path).optimize.compact()


@few
@given(history=histories(max_commits=10), rng=st.randoms(use_true_random=False))
def test_replay_of_any_history_gives_exactly_the_closed_messages(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, history: History, rng: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    path = str(folder / "log")
    with session_zone(spark, rng.choice(ZONES)):
        log = spark_timely.create_log(path, PAYLOAD_SCHEMA, times=history.kinds, streams=len(history.streams))
        model = ReplayModel(history.minimum, len(history.streams))
        recorder = Recorder(rng, n_crashes=rng.choice([0, 1, 2]))
        replay = Replayed(spark, path, folder / "checkpoint", recorder, history.kinds)
        cuts = sorted(rng.randint(0, len(history.commits)) for _ in range(2))
        for stop in [*cuts, len(history.commits)]:
            for commit in history.commits[len(model.frontiers) - 1 : stop]:
                write_commit(log, commit.stream, commit.messages, commit.progress, history.kinds)
                model.apply(commit.stream, commit.messages, commit.progress)
            shuffle_files(spark, path, rng)
            options = draw_options(rng)
            while not replay.run(options):
                shuffle_files(spark, path, rng)
                options = draw_options(rng)
            assert replay.check(model) == model.frontier()
        if recorder.batches:
            assert_same_updates(replay.delivered(), expected_table(model.closed(), history.kinds))
        assert spark_timely.open_log(path).verify().legal


def write_cut(folder: Path, drawn: Arrivals, rng: random.Random) -> list[list[tuple[int, Row]]]:
    """Write the rows as one Parquet file per micro-batch, cut at random; some are empty."""
    folder.mkdir(parents=True)
    batches: list[list[tuple[int, Row]]] = [[]]
    for (time,), row in drawn.rows:
        for _ in range(rng.choice([0] * 8 + [1, 2])):
            batches.append([])
        batches[-1].append((time, row))
    for index, rows in enumerate(batches):
        table = rows_table([((time,), row) for time, row in rows], (drawn.kind,), names=["t"])
        file = folder / f"part-{index:05d}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_700_000_000 + index, 1_700_000_000 + index))
    return batches


def capture_files(spark: SparkSession, source: Path, folder: Path, through: str, options: dict[str, str]) -> None:
    """Capture a folder of files, one micro-batch each, into ``folder/log``."""
    schema = spark.read.parquet(str(source)).schema
    df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    checkpoint, log = str(folder / "checkpoint"), str(folder / "log")
    if through == "sink":
        writer = df.writeStream.format("timely").options(**options).option("path", log)
    else:
        names = {"timeColumn": "time_column", "lateData": "late_data"}
        keywords = {names.get(name, name): value for name, value in options.items()}

        def into_log(batch: DataFrame, batch_id: int) -> None:
            spark_timely.capture(batch, batch_id, path=log, checkpoint=checkpoint, **keywords)

        writer = df.writeStream.foreachBatch(into_log)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def stored(path: str, event: str) -> pa.Table:
    """Return the rows of one kind as a plain reader of the table sees them, with their times."""
    from deltalake import DeltaTable

    names = ["_event", "_time", "t", *PAYLOAD_SCHEMA.names]
    table = DeltaTable(path).to_pyarrow_dataset().to_table(columns=names)
    return table.filter(pa.compute.equal(table["_event"], event)).drop_columns(["_event"])


@pytest.mark.parametrize("through", ["sink", "foreachBatch"])
@few
@given(
    drawn=arrivals(max_rows=25),
    late_data=st.sampled_from(["deadLetter", "advance", "error"]),
    rng=st.randoms(use_true_random=False),
)
def test_capture_of_any_cut_puts_each_row_in_one_place(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    through: str,
    drawn: Arrivals,
    late_data: str,
    rng: random.Random,
) -> None:
    from pyspark.errors import StreamingQueryException

    folder = tmp_path_factory.mktemp("capture")
    batches = write_cut(folder / "in", drawn, rng)
    model = CaptureModel(MINIMA[drawn.kind], "bounded", late_data, drawn.lateness)
    refused = False
    for rows in batches:
        try:
            model.batch([(time, (("t", time), *row)) for time, row in rows])
        except LateRowError:
            refused = True
            break
    unit = {"timestamp": " us", "date": " days"}.get(drawn.kind, "")
    lateness = f"{drawn.lateness}{unit}"
    options = {"timeColumn": "t", "frontier": "bounded", "lateness": lateness, "lateData": late_data}
    with session_zone(spark, rng.choice(ZONES)):
        if refused:
            with pytest.raises(StreamingQueryException, match="behind the frontier"):
                capture_files(spark, folder / "in", folder, through, options)
        else:
            capture_files(spark, folder / "in", folder, through, options)
    path = str(folder / "log")
    log = spark_timely.open_log(path)
    assert log.frontier().times.tolist() == [[model.frontier]]
    for event, rows in (("message", model.messages), ("dead", model.dead)):
        own = [dict(row)["t"] for _, row in rows]
        expected = rows_table([((time,), row) for time, row in rows], (drawn.kind,))
        times = rows_table([((time,), ()) for time in own], (drawn.kind,), names=["t"])["t"]
        assert_same_updates(stored(path, event), expected.append_column("t", times), what=f"{event} rows")
    assert log.verify().legal
    assert Counter(stored(path, "message")["n"].to_pylist()).total() == len(model.messages)
