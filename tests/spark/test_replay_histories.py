"""`batch_frame` and the driver's replay give what ``format("timely")`` gives, for any log, cut anywhere.

Legal streams (ties, several streams, one and several time columns, frontiers of several elements) are written in files
that are narrow or merged. A query of ``format("timely")``, one with ``content=splits`` and a replay in the driver are
stopped and started again between the writes, with other limits. Each micro-batch is compared: its number, its columns,
and its rows by their canonical hash. The first two call the source's reader as Spark does, without its processes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as s

import spark_timely
from spark_timely.canonical.row_hash import digest_of
from spark_timely.conf.options import SourceOptions
from spark_timely.datasource.planner import ReplayPlanner, layout_of
from spark_timely.datasource.splits import LAYOUT_KEY, SPLIT_SCHEMA, ReplayLayout
from spark_timely.log.log import open_log
from spark_timely.spark import batch_frame
from spark_timely.spark.base.schema import spark_schema
from spark_timely.testing.driver import Checkpoint, MicroBatch, StreamDriver
from spark_timely.testing.strategies import PAYLOAD_SCHEMA, History, histories
from tests.support import examples, write_commit
from tests.unit.datasource.support import STORAGES, MemoryReader, ReadsAll, make_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]

# A failing draw is not made smaller: each takes seconds. It is printed as it is.
few: Final = settings(
    examples(10, long=300), phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)

# Of a micro-batch: its number, its columns, how many rows it has, their canonical hash.
Found = tuple[int, object, int, str]


class DiskReader(MemoryReader):
    """A stream reader over a log on disk."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        log = open_log(path)
        self.layout = layout_of(log, options)
        self.key = id(log.core.storage)
        STORAGES[self.key] = log.core.storage  # type: ignore[assignment]
        self.planner = ReplayPlanner(log, options, self.layout)


def hash_of(rows: pa.Table) -> str:
    return digest_of(rows, [(name, name) for name in rows.schema.names]).text


def run_of(path: str, checkpoint: Checkpoint, *, once: bool, **options: Any) -> tuple[list[MicroBatch], ReplayLayout]:
    """Run a query up to what is there, without Spark."""
    parsed = make_options(**{"path": path, **options})
    layout = layout_of(open_log(path), parsed)
    schema = SPLIT_SCHEMA if layout.content == "splits" else layout.schema
    driver = StreamDriver(lambda: DiskReader(path, parsed), schema=schema, checkpoint=checkpoint)
    if not once:
        return driver.available_now(), layout
    one = driver.run_one(ReadsAll())
    return [] if one is None else [one], layout


def framed(spark: SparkSession, batches: list[MicroBatch], layout: ReplayLayout) -> list[Found]:
    """Return what `batch_frame` gives for the splits of each micro-batch."""
    schema = spark_schema(SPLIT_SCHEMA)
    schema["_plan"].metadata = {LAYOUT_KEY: json.dumps(layout.to_json())}
    found: list[Found] = []
    for batch in batches:
        rows = batch_frame(spark, spark.createDataFrame(batch.rows, schema))
        table = rows.toArrow()
        found.append((batch.number, rows.schema, table.num_rows, hash_of(table)))
    return found


def drawn_limits(rng: random.Random, *, arrival: bool) -> dict[str, Any]:
    """Choose where micro-batches end, and how tasks share their files; none of it speaks of times under `arrival`."""
    limits: list[dict[str, Any]] = [
        {},
        {"maxRowsPerTrigger": rng.choice([3, 8])},
        {"maxFilesPerTrigger": rng.choice([1, 3])},
        {"maxBytesPerTrigger": rng.choice([3000, 10_000])},
    ]
    found = {"workers": rng.choice([1, 2, 8])}
    if arrival:
        return found | rng.choice(limits)
    limits += [{"maxTimesPerTrigger": rng.choice([1, 2, 5])}] * 2
    return found | rng.choice(limits) | {"splitBy": rng.choice(["bytes", "time"])}


def cut_anywhere(rng: random.Random) -> Callable[[Any, int], list[int]]:
    """Return what cuts a commit into files that are narrow in time: rows as few as these would stay in one."""

    def cuts(times: Any, size_bytes: int) -> list[int]:
        del size_bytes
        places = (np.flatnonzero(times[1:, 0] != times[:-1, 0]) + 1).tolist()
        return sorted(rng.sample(places, min(len(places), rng.choice([0, 1, 3]))))

    return cuts


@few
@given(history=histories(max_commits=9), rng=s.randoms(use_true_random=False))
def test_frames_and_driver_give_the_rows_of_the_source(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, history: History, rng: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("histories")
    path = str(folder / "log")
    log = spark_timely.create_log(
        path, PAYLOAD_SCHEMA, times=history.kinds, streams=len(history.streams), merge_every=rng.choice([None, 2])
    )
    of_query: dict[str, Any] = {"includeTime": True, "includeMetadata": rng.random() < 0.3}
    if rng.random() < 0.2:
        of_query["delivery"] = "arrival"
    by_source, by_splits = Checkpoint(), Checkpoint()
    kept: list[Found] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        table = rows.toArrow()
        kept.append((batch_id, rows.schema, table.num_rows, hash_of(table)))

    stops = {rng.randint(0, len(history.commits)) for _ in range(2)} | {len(history.commits)}
    for position in range(len(history.commits) + 1):
        if position in stops:
            options = of_query | drawn_limits(rng, arrival="delivery" in of_query)
            once = rng.random() < 0.2
            wanted, layout = run_of(path, by_source, once=once, **options)
            columns = spark_schema(layout.schema)
            expected = [(batch.number, columns, batch.rows.num_rows, hash_of(batch.rows)) for batch in wanted]
            splits, layout_of_splits = run_of(path, by_splits, once=once, **options, content="splits")
            assert framed(spark, splits, layout_of_splits) == expected, options
            kept.clear()
            job = spark_timely.replay(spark, path, **options).foreachBatch(keep)
            n_done = job.run(checkpoint=folder / "driver", trigger="once" if once else "availableNow")
            assert n_done == len(expected)
            assert kept == expected, options
        if position < len(history.commits):
            commit = history.commits[position]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("spark_timely.log.files.parquet.narrow_cuts", cut_anywhere(rng))
                write_commit(log, commit.stream, commit.messages, commit.progress, history.kinds)
            if rng.random() < 0.2:
                log.compact(target_file_size=rng.choice([1000, 1 << 20]))
