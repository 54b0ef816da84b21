"""Completeness handed from job to job, without Spark: drawn histories, product times, crashes, against loops."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_timely
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.protocol.policy import FrontierPolicy, Policy
from spark_timely.protocol.rules import StreamCounts, check_progress
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.spark.base.source_frontier import batch_frontier
from spark_timely.testing import assert_same_updates
from spark_timely.testing.strategies import PAYLOAD_SCHEMA, History, column_names, histories
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.oracles.replay_model import Frontier, ReplayModel, is_beyond, minimal
from tests.property.test_same_answer import draw_limits, rewrite_files
from tests.support import examples, expected_table, frontier_from_json, frontier_set, write_commit
from tests.unit.sink.driver import SinkDriver

pytestmark = pytest.mark.timeout(7200)

GRID = list(itertools.product(range(6), repeat=2))
pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4)


@given(held=st.lists(st.sampled_from(GRID), min_size=1, max_size=4), sources=st.lists(pairs, min_size=1, max_size=4))
def test_product_frontier_is_complete_where_all_sources_are(
    held: list[tuple[int, int]], sources: list[list[tuple[int, int]]]
) -> None:
    offsets = [
        {"version": 1, "delivery": "complete", "times": ["long", "long"], "origin": [[0, 0]], "frontier": times}
        for times in sources
    ]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "offsets").mkdir()
        (Path(folder) / "offsets" / "0").write_text("\n".join(["v1", "{}", *map(json.dumps, offsets)]))
        found = batch_frontier(0, checkpoint=folder)
    assert frontier_set(found) == minimal(time for times in sources for time in times)
    policy = Policy(TimeDomain(("long", "long"), (0, 0)), FrontierPolicy.SOURCE)
    counts = StreamCounts.from_arrays(held, [2] * len(held), 2)
    change = policy.downgrade(counts, source=found)
    after = check_progress(counts, change.times, change.deltas).frontier
    for time in GRID:
        still_open = is_beyond(time, held) and any(is_beyond(time, times) for times in sources)
        assert after.less_equal(time) == still_open
    # Nothing known: nothing moves.
    assert not policy.downgrade(counts).times.size
    assert policy.downgrade(counts, source=counts.frontier).deltas.size == 0
    assert np.all(change.deltas != 0)


class Job:
    """A query that takes the union of some logs and captures it with ``frontier=source``, called in Spark's order."""

    def __init__(self, folder: Path, name: str, sources: list[str], history: History, rng: random.Random) -> None:
        self.sources, self.rng = sources, rng
        names = ",".join(column_names(history.arity))
        self.sink = SinkDriver(folder / name, query=name, timeColumn=names, frontier="source")
        self.path = str(self.sink.log_path)
        spark_timely.create_log(self.path, PAYLOAD_SCHEMA, times=history.kinds)
        self.minimum = history.minimum

    def run_one(self) -> bool:
        """Run a micro-batch, crash on either side of its commit now and then; say whether there was any."""
        batch = self.sink.next_batch()
        options = [{"path": path, "includeTime": "true", **draw_limits(self.rng)} for path in self.sources]
        schemas = [TimelyDataSource(each).schema() for each in options]
        readers: list[Any] = [
            TimelyDataSource(each).streamReader(schema) for each, schema in zip(options, schemas, strict=True)
        ]
        starts = self._offsets(batch - 1) or [json.dumps(reader.initialOffset()) for reader in readers]
        ends = self._offsets(batch)
        if not ends:
            ends = [
                json.dumps(reader.latestOffset(json.loads(start), None))
                for reader, start in zip(readers, starts, strict=True)
            ]
            if batch and ends == starts:
                return False
        tasks = [arrow_schema(schemas[0]).empty_table()]
        for reader, start, end in zip(readers, starts, ends, strict=True):
            for split in reader.partitions(json.loads(start), json.loads(end)):
                tasks.append(pa.Table.from_batches(list(reader.read(split)), tasks[0].schema))
        crash = self.rng.choice([None, None, "before commit", "after commit"])
        self.sink.run(tasks, sources=ends, crash=crash, schema=schemas[0])
        if crash != "before commit":
            assert self.frontier() == self._meet(ends)
        return True

    def frontier(self) -> Frontier:
        return frontier_set(self.sink.log().frontier())

    def _meet(self, ends: list[str]) -> Frontier:
        found = [json.loads(end) for end in ends]
        if any("begin" in end for end in found):
            return frozenset([self.minimum])
        return minimal(time for end in found for time in frontier_from_json(end["frontier"]))

    def _offsets(self, batch: int) -> list[str]:
        file = self.sink.checkpoint / "offsets" / str(batch)
        return file.read_text().split("\n")[2:] if file.exists() else []


@examples(5, long=240)
@given(history=histories(), rng=st.randoms(use_true_random=False))
def test_two_jobs_in_a_row_are_never_ahead_of_their_sources(history: History, rng: random.Random) -> None:
    """Each stream of the history is a log of its own; a job takes their union, another one the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logs = {
            stream: spark_timely.create_log(folder / stream, PAYLOAD_SCHEMA, times=history.kinds)
            for stream in history.streams
        }
        first = Job(folder, "first", [str(folder / stream) for stream in logs], history, rng)
        second = Job(folder, "second", [first.path], history, rng)
        models = {stream: ReplayModel(history.minimum, 1) for stream in logs}
        whole = ReplayModel(history.minimum, len(logs))

        def run(job: Job) -> bool:
            went = job.run_one()
            sources = minimal(time for log in logs.values() for time in frontier_set(log.frontier()))
            assert all(is_beyond(time, first.frontier()) for time in sources)
            assert all(is_beyond(time, second.frontier()) for time in first.frontier())
            return went

        for commit in history.commits:
            write_commit(logs[commit.stream], commit.stream, commit.messages, commit.progress, history.kinds)
            for model in (models[commit.stream], whole):
                model.apply(commit.stream, commit.messages, commit.progress)
            for job in (first, second):
                if rng.random() < 0.3:
                    run(job)
            if rng.random() < 0.1:
                rewrite_files(first.path, rng)
        for job in (first, second):
            while run(job):
                pass
        assert first.frontier() == second.frontier() == whole.frontier()
        delivered: dict[Any, list[Any]] = {}
        for model in models.values():
            for time, rows in model.closed().items():
                delivered.setdefault(time, []).extend(rows)
        for job, wanted in ((first, delivered), (second, whole.closed())):
            found = spark_timely.open_log(job.path)
            names = [*PAYLOAD_SCHEMA.names, *column_names(history.arity)]
            expected = expected_table(wanted, history.kinds)
            assert_same_updates(found.messages().select(names), expected, what=Path(job.path).parent.name)
            report = found.verify()
            assert report.legal, report.problems
        complete = spark_timely.open_log(second.path).frontier() == Antichain.empty(history.arity)
        assert complete == (whole.frontier() == frozenset())
