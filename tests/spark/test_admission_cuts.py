"""Rows with null, impossible and future times: one log for any cut, by the sink, by `capture` and by a writer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_timely.log.log import Log, create_log, open_log
from spark_timely.spark.capture.foreach_batch import capture
from tests.spark.test_foreach_batch import CLOCK, fixed_clock, frame
from tests.unit.sink.driver import SinkDriver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
__all__ = ["fixed_clock"]

LONG = [pytest.mark.long, pytest.mark.timeout(7200)]
HOUR = 3_600_000_000
OPTIONS = {
    "timeColumn": "t",
    "frontier": "bounded",
    "lateness": "3 hours",
    "maxFutureSkew": "1 day",
    "lateData": "deadLetter",
    "badTime": "deadLetter",
}
NO_TIME, IMPOSSIBLE, FUTURE = "no time", "out of bounds", "skewed"


class Data:
    """Rows in disorder within the lateness, of which three in a hundred have no place."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        # Each row is at most the lateness behind all before it, and none after the clock.
        ahead = np.sort(rng.integers(CLOCK - 300 * HOUR, CLOCK, n))
        times = ahead - rng.integers(0, 3 * HOUR + 1, n)
        kinds = rng.choice(["", NO_TIME, IMPOSSIBLE, FUTURE], n, p=[0.97, 0.01, 0.01, 0.01])
        times[kinds == IMPOSSIBLE] = rng.integers(253_402_300_800_000_000, 2**62, n)[kinds == IMPOSSIBLE]
        times[kinds == FUTURE] = rng.integers(CLOCK + 25 * HOUR, 250_000_000_000_000_000, n)[kinds == FUTURE]
        moments = pa.array(times, pa.int64(), mask=kinds == NO_TIME).view(pa.timestamp("us", "UTC"))
        self.table = pa.table({"t": moments, "id": pa.array(np.arange(n), pa.int64())})
        self.reasons = {kind: set(np.flatnonzero(kinds == kind).tolist()) for kind in (NO_TIME, IMPOSSIBLE, FUTURE)}
        self.good = np.flatnonzero(kinds == "")
        self.times = times
        self.frontier = int(times[self.good].max()) - 3 * HOUR

    def cut(self, rng: np.random.Generator, most: int) -> list[pa.Table]:
        n = self.table.num_rows
        places = [0, *sorted(rng.integers(0, n, int(rng.integers(1, most))).tolist()), n]
        return [self.table.slice(low, high - low) for low, high in itertools.pairwise(places)]

    def check(self, log: Log) -> None:
        messages, dead = log.messages(), log.dead()
        order = np.argsort(messages["id"].to_numpy())
        assert np.array_equal(messages["id"].to_numpy()[order], self.good)
        found = messages["_time"].cast(pa.int64()).to_numpy()[order]
        assert np.array_equal(found, self.times[self.good])
        kinds = pc.list_element(pc.split_pattern(dead["_reason"], ":"), 0)
        for kind, ids in self.reasons.items():
            assert set(dead.filter(pc.equal(kinds, kind))["id"].to_pylist()) == ids
        assert dead.num_rows == sum(map(len, self.reasons.values()))
        # The whole row, its own time included.
        own = dead.sort_by("id")
        assert own["t"].equals(self.table.take(own["id"].combine_chunks())["t"])
        assert log.frontier().elements == ((self.frontier,),)


def by_sink(folder: Path, parts: list[pa.Table]) -> Log:
    driver = SinkDriver(folder, **OPTIONS)
    for part in parts:
        half = part.num_rows // 2
        driver.run([part.slice(0, half), part.slice(half)], chunk=10_000)
    return driver.log()


def by_writer(folder: Path, parts: list[pa.Table]) -> Log:
    path, schema = str(folder / "log"), pa.schema([("t", pa.timestamp("us", "UTC")), ("id", pa.int64())])
    create_log(path, schema, times="timestamp")
    log = open_log(path, clock=lambda: CLOCK / 1_000_000)
    writer = log.writer(
        owner="me", late_data="deadLetter", bad_time="deadLetter", lateness="3 hours", max_future_skew="1 day"
    )
    for batch, part in enumerate(parts):
        writer.append(part, time_column="t", batch=batch)
    return open_log(path)


def by_capture(spark: SparkSession) -> Callable[[Path, list[pa.Table]], Log]:
    def run(folder: Path, parts: list[pa.Table]) -> Log:
        path = str(folder / "log")
        for batch, part in enumerate(parts):
            capture(frame(spark, part), batch, path=path, app_id="a", **OPTIONS)
        return open_log(path)

    return run


def killed(log: Log, rng: np.random.Generator) -> Iterator[None]:
    """Kill the process around the commit, half of the times before it and half after, until it survives."""
    commit = log.core.commit
    while rng.random() < 0.6:
        after = rng.random() < 0.5

        def dies(request: object, after: bool = after) -> object:
            if after:
                commit(request)
            raise KeyboardInterrupt

        log.core.commit = dies
        yield
    log.core.commit = commit
    yield


@pytest.mark.parametrize(("n", "cuts"), [(3_000, 1), pytest.param(1_000_000, 20, marks=LONG)])
def test_rows_without_a_place_are_apart_for_any_cut(spark: SparkSession, tmp_path: Path, n: int, cuts: int) -> None:
    data = Data(n, np.random.default_rng(n))
    ways = {"sink": by_sink, "writer": by_writer, "capture": by_capture(spark)}
    digests = set()
    for number in range(cuts):
        parts = data.cut(np.random.default_rng([n, number]), most=2 if cuts == 1 else 10)
        for name, run in ways.items():
            folder = tmp_path / f"{name}{number}"
            folder.mkdir()
            log = run(folder, parts)
            data.check(log)
            digests.add(log.verify().digest)
    assert len(digests) == 1

    rng, frontier = np.random.default_rng(n), log.frontier().elements[0][0]
    for seq in sorted(set(log.dead()["_seq"].to_pylist())):
        for _ in killed(log, rng):
            try:
                log.resubmit(seq, lambda letters: at(letters, frontier))
            except KeyboardInterrupt:
                continue
        assert not log.resubmit(seq, lambda letters: at(letters, frontier)).committed
    again = open_log(log.path)
    assert np.array_equal(np.sort(again.messages()["id"].to_numpy()), np.arange(n))
    assert again.frontier() == log.frontier()
    assert again.verify().legal


def at(letters: pa.Table, time: int) -> pa.Table:
    moments = pa.repeat(pa.scalar(time, pa.timestamp("us", "UTC")), letters.num_rows)
    return letters.set_column(letters.column_names.index("_time"), "_time", moments)
