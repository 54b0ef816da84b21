"""The same answer for any cut, at large and without Spark.

Random legal streams are written through the log's own producers and replayed by the in-memory driver, which
calls the reader in Spark's order: any number of workers, any limits, new readers and repeated micro-batches
anywhere, the log's files rewritten in between. Every micro-batch must hold exactly the messages at the times
between its frontiers, and all of them together have the canonical hash that an oracle computes from the drawn
history alone.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

import spark_timely
from spark_timely.canonical.state import CanonicalState
from spark_timely.datasource.source import TimelyDataSource
from spark_timely.errors import LateDataError
from spark_timely.spark.base.schema import arrow_schema
from spark_timely.testing import assert_same_updates
from spark_timely.testing.driver import Checkpoint, MicroBatch, StreamDriver
from spark_timely.testing.strategies import (
    MINIMA,
    PAYLOAD_SCHEMA,
    Arrivals,
    History,
    arrivals,
    column_names,
    histories,
    rows_table,
)
from spark_timely.time.antichain import Antichain
from spark_timely.time.domain import TimeDomain
from tests.oracles.canonical_model import digest
from tests.oracles.capture_model import CaptureModel, LateRowError
from tests.oracles.replay_model import Frontier, ReplayModel, is_beyond
from tests.support import examples, expected_table, frontier_from_json, frontier_set, write_commit
from tests.unit.sink.driver import SinkDriver

pytestmark = pytest.mark.timeout(7200)


def reader_of(path: str, checkpoint: Checkpoint, options: dict[str, str]) -> StreamDriver:
    """Return a driver of a query over a log, as a new planner process has it."""
    given_options = {"path": path, "includeTime": "true", **options}
    schema = TimelyDataSource(given_options).schema()

    def make() -> Any:
        return TimelyDataSource(given_options).streamReader(schema)

    return StreamDriver(make, schema=arrow_schema(schema), checkpoint=checkpoint)


def rewrite_files(path: str, rng: random.Random) -> None:
    """Rewrite the log's files in a way that changes no answer, or leave them."""
    way = rng.choice(["none", "none", "ours", "deltalake", "fine"])
    if way == "ours":
        spark_timely.open_log(path).compact()
    elif way == "deltalake":
        DeltaTable(path).optimize.compact()
    elif way == "fine":
        spark_timely.open_log(path).compact(target_file_size=2_000)


def draw_limits(rng: random.Random) -> dict[str, str]:
    """Choose workers and limits of a query."""
    options = {"workers": rng.choice(["1", "2", "3", "8"])}
    options |= rng.choice([{}, {"splitBy": "time"}, {"splitBy": "bytes"}])
    for name, values in (
        ("maxTimesPerTrigger", ["1", "2", "5"]),
        ("maxRowsPerTrigger", ["1", "4", "20"]),
        ("maxFilesPerTrigger", ["1", "3"]),
        ("maxBytesPerTrigger", ["1", "3000", "10kb"]),
    ):
        if rng.random() < 0.35:
            options[name] = rng.choice(values)
    return options


def frontier_at(text: str, before: Frontier) -> Frontier:
    """Return the frontier of an offset; a symbolic one is where the query begins."""
    found = json.loads(text)
    return frontier_from_json(found["frontier"]) if "frontier" in found else before


class Replay:
    """One query: its checkpoint, and what each of its micro-batches held."""

    def __init__(self, path: str, history: History, rng: random.Random) -> None:
        self.path, self.history, self.rng = path, history, rng
        self.checkpoint = Checkpoint()
        self.batches: dict[int, pa.Table] = {}

    def run(self, model: ReplayModel) -> None:
        """Run some way or to the end, with fresh limits, crashes on the way."""
        driver = reader_of(self.path, self.checkpoint, draw_limits(self.rng))
        for _ in range(self.rng.choice([0, 1, 2])):
            batch = driver.run_one(commit=self.rng.random() < 0.7)
            if batch is None:
                break
            self._take(batch, model)
            if self.rng.random() < 0.5:
                rewrite_files(self.path, self.rng)
            if self.checkpoint.n_committed < len(self.checkpoint.offsets) or self.rng.random() < 0.3:
                driver = reader_of(self.path, self.checkpoint, draw_limits(self.rng))  # a restart

    def finish(self, model: ReplayModel) -> None:
        """Run to the log's present end, and compare the frontier reached with the model's."""
        fail_after = self.rng.choice([None, 0, 1, 2])
        for crash in (fail_after, None):
            driver = reader_of(self.path, self.checkpoint, draw_limits(self.rng))
            for batch in driver.available_now(fail_after=crash):
                self._take(batch, model)
        reached = frozenset([model.minimum])
        for text in self.checkpoint.offsets:
            reached = frontier_at(text, reached)
        assert reached == model.frontier()

    def _take(self, batch: MicroBatch, model: ReplayModel) -> None:
        begin = frozenset([model.minimum])
        lower = frontier_at(batch.start, begin)
        upper = frontier_at(batch.end, lower)
        for time in model.frontier():
            assert is_beyond(time, upper), f"{sorted(upper)} was declared complete, {time} is still held"
        what = f"micro-batch {batch.number} from {sorted(lower)} to {sorted(upper)}"
        assert_same_updates(batch.rows, expected_table(model.between(lower, upper), self.history.kinds), what=what)
        if batch.number in self.batches:
            assert_same_updates(batch.rows, self.batches[batch.number], what=f"repeated micro-batch {batch.number}")
        self.batches[batch.number] = batch.rows


def hash_of_batches(tables: Iterable[pa.Table], history: History, frontier: Antichain) -> str:
    """Return the canonical hash of what a replay delivered, hashed micro-batch by micro-batch and added."""
    total = CanonicalState(PAYLOAD_SCHEMA, history.arity)
    names = column_names(history.arity)
    for table in tables:
        part = CanonicalState(PAYLOAD_SCHEMA, history.arity)
        part.add(table.drop_columns(names), TimeDomain(history.kinds).from_columns(table.select(names)))
        total.merge(part)
    return total.digest(frontier)


@examples(16, long=1200)
@given(history=histories(), rng=st.randoms(use_true_random=False))
def test_replay_delivers_exactly_the_closed_messages_for_any_cut(history: History, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/log"
        log = spark_timely.create_log(path, PAYLOAD_SCHEMA, times=history.kinds, streams=len(history.streams))
        model = ReplayModel(history.minimum, len(history.streams))
        replay = Replay(path, history, rng)
        for commit in history.commits:
            write_commit(log, commit.stream, commit.messages, commit.progress, history.kinds)
            model.apply(commit.stream, commit.messages, commit.progress)
            assert frontier_set(log.frontier()) == model.frontier()
            if rng.random() < 0.15:
                rewrite_files(path, rng)
            if rng.random() < 0.25:
                replay.run(model)
        replay.finish(model)
        delivered = pa.concat_tables(replay.batches.values()) if replay.batches else None
        if delivered is not None:
            assert_same_updates(delivered, expected_table(model.closed(), history.kinds), what="all rows")
        log = spark_timely.open_log(path)
        report = log.verify()
        assert report.legal, report.problems
        closed = [(time, dict(row)) for time, rows in model.closed().items() for row in rows]
        wanted = digest(closed, model.frontier(), history.arity)
        assert report.canonical_hash == wanted
        assert hash_of_batches(replay.batches.values(), history, log.frontier()) == wanted
        assert Counter(log.messages()["_stream"].to_pylist()) == Counter(
            {
                name: n
                for name in history.streams
                if (n := sum(len(c.messages) for c in history.commits if c.stream == name))
            }
        )


def cut_rows(drawn: Arrivals, rng: random.Random) -> list[list[Any]]:
    """Cut rows into micro-batches at random, empty ones included."""
    batches: list[list[Any]] = [[]]
    for row in drawn.rows:
        for _ in range(rng.choice([0, 0, 0, 0, 1, 2])):
            batches.append([])
        batches[-1].append(row)
    return batches


def own_time(rows: list[Any], kind: str) -> pa.Table:
    """Make a task's input: payload, and the time in a column `t` of its own."""
    return rows_table(rows, (kind,), names=["t"])


def lateness_of(drawn: Arrivals) -> str:
    """Return the lateness as an option: on dates and timestamps with its unit."""
    return f"{drawn.lateness}{ {'timestamp': ' us', 'date': ' days'}.get(drawn.kind, '') }"


@examples(10, long=500)
@given(
    drawn=arrivals(max_rows=15),
    late_data=st.sampled_from(["error", "deadLetter", "advance"]),
    rng=st.randoms(use_true_random=False),
)
def test_capture_of_any_cut_puts_each_row_in_one_place(drawn: Arrivals, late_data: str, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = {"timeColumn": "t", "frontier": "bounded", "lateness": lateness_of(drawn), "lateData": late_data}
        driver = SinkDriver(Path(folder), **options)
        model = CaptureModel(MINIMA[drawn.kind], "bounded", late_data, drawn.lateness)
        for rows in cut_rows(drawn, rng):
            tasks: list[list[Any]] = [[] for _ in range(rng.choice([1, 1, 2, 3]))]
            for row in rows:
                rng.choice(tasks).append(row)
            tables = [own_time(task, drawn.kind) for task in tasks]
            try:
                model.batch([(time, (("t", time), *row)) for (time,), row in rows])
            except LateRowError:
                before = driver.data_files()
                with pytest.raises(LateDataError, match="behind the frontier"):
                    driver.run(tables)
                assert driver.data_files() == before
                break
            for _ in range(rng.choice([0, 0, 1, 2])):  # killed on either side of the log's commit, now and then both
                driver.run(tables, crash=rng.choice(["before commit", "after commit"]))
            driver.run(list(reversed(tables)))
            assert driver.log().frontier().times.tolist() == [[model.frontier]]
        if not driver.log_path.exists():
            return
        log = driver.log()
        for event, found, rows in (("message", log.messages(), model.messages), ("dead", log.dead(), model.dead)):
            expected = rows_table([((time,), row) for time, row in rows], (drawn.kind,))
            own = own_time([((dict(row)["t"],), ()) for _, row in rows], drawn.kind)["t"]
            names = ["t", "_time", *PAYLOAD_SCHEMA.names]
            assert_same_updates(found.select(names), expected.append_column("t", own), what=f"{event} rows")
        report = log.verify()
        assert report.legal, report.problems


@examples(8, long=300)
@given(drawn=arrivals(max_rows=10, late=False), rng=st.randoms(use_true_random=False))
def test_capture_without_late_rows_has_one_hash_for_any_cut(drawn: Arrivals, rng: random.Random) -> None:
    options = {"timeColumn": "t", "frontier": "bounded", "lateness": lateness_of(drawn), "lateData": "error"}
    hashes = set()
    for cut in ([list(drawn.rows)], [[row] for row in drawn.rows] or [[]], cut_rows(drawn, rng)):
        with tempfile.TemporaryDirectory() as folder:
            driver = SinkDriver(Path(folder), **options)
            for rows in cut:
                driver.run([own_time(rows, drawn.kind)])
            log = driver.log()
            hashes.add(log.verify().canonical_hash)
            log.close()
            hashes.add("closed " + log.verify().canonical_hash)
    assert len(hashes) == 2


def times_of(table: pa.Table) -> set[int]:
    """Return the distinct times of a table."""
    return set(table["_time"].unique().to_pylist())


@pytest.mark.parametrize("compacted", [False, True])
def test_replay_of_many_row_groups_loses_and_doubles_nothing(tmp_path: Path, *, compacted: bool) -> None:
    """Files large enough to be cut into row groups: splits share files, and files hold many times."""
    rng = np.random.default_rng(17)
    path = str(tmp_path / "log")
    schema = pa.schema([("key", pa.int64()), ("word", pa.string())])
    log = spark_timely.create_log(path, schema, minimum=(0,), streams=2)
    for stream in ("a", "b"):
        writer = log.writer(stream=stream, owner=stream)
        for number in range(2):
            n = 300_000
            times = rng.integers(10 * number, 10 * number + 25, n)
            keys = pa.array(rng.integers(0, 2**40, n))
            rows = pa.table({"key": keys, "word": pc.cast(keys, pa.string()), "_time": times})
            writer.append(rows, advance_to=10 * number + 10)
    if compacted:
        log.compact()
    report = log.verify()
    assert report.legal, report.problems
    files = DeltaTable(path).file_uris()
    assert max(pq.ParquetFile(file).num_row_groups for file in files) > 1, "the case that is meant"
    for workers in ("1", "2", "3", "8"):
        assert replayed_by(workers, path, schema).digest(log.frontier()) == report.canonical_hash, workers


def replayed_by(workers: str, path: str, schema: pa.Schema) -> CanonicalState:
    """Replay a log whose first twenty times are closed, in several ways; return what came of it."""
    checkpoint = Checkpoint()
    total = CanonicalState(schema, 1)
    seen: set[int] = set()
    for options in ({"maxRowsPerTrigger": "100000"}, {"maxBytesPerTrigger": "4mb", "splitBy": "time"}, {}):
        driver = reader_of(path, checkpoint, {"workers": workers, **options})
        batches = driver.available_now() if not options else filter(None, [driver.run_one(), driver.run_one()])
        for batch in batches:
            here = times_of(batch.rows)
            assert not here & seen
            assert here == set(range(min(here), max(here) + 1)), "a prefix of the times that are left"
            seen |= here
            tasks = [times_of(task) for task in batch.tasks]
            if "splitBy" in options:
                assert sum(map(len, tasks)) == len(here), "a worker gets whole times"
            total.add(batch.rows.drop_columns(["_time"]), batch.rows["_time"].to_numpy().reshape(-1, 1))
    assert seen == set(range(20)), workers
    return total
