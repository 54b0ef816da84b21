"""Outputs that begin later: at their time stands what is there then, and from then on they are as any other."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_timely.dataflow.aggregates import count, sum_of
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.protocol.replay import Limits
from spark_timely.spark.dataflows.tasks import catalog_of
from spark_timely.time.antichain import Antichain
from tests.property.test_dataflow import runner

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def plans(stream: Stream) -> list[Stream]:
    return [
        stream.filter("v > 2"),
        stream.select("k").distinct(),
        stream.aggregate(by="k", n=count(), s=sum_of("v"), over="history"),
        stream.latest("k", order_by="v"),
        stream.latest("k", order_by="v").aggregate(by="k", n=count(), over="history"),
    ]


def filled(path: Path, rng: random.Random, *, forgets: bool) -> Log:
    log = create_log(path, SCHEMA, kind="collection", minimum=(0,), flush=False)
    there: list[tuple[int, int]] = []
    at = 0
    for _ in range(5):
        rows: dict[str, list[int]] = {"_time": [], "_diff": [], "k": [], "v": []}
        for time in sorted(rng.choices(range(at, at + 3), k=rng.randrange(8))):
            gone = there.pop(rng.randrange(len(there))) if there and rng.random() < 0.4 else None
            if gone is None:
                there.append((rng.randrange(3), rng.randrange(5)))
            k, v = there[-1] if gone is None else gone
            for name, value in (("_time", time), ("_diff", 1 if gone is None else -1), ("k", k), ("v", v)):
                rows[name].append(value)
        at += 3
        log.writer(owner="test").append(pa.table({n: pa.array(c, pa.int64()) for n, c in rows.items()}), advance_to=at)
    if forgets:
        log.allow_compaction(2)
    return log


def contents(log: Log, time: int) -> list[tuple[object, ...]]:
    log.refresh()
    return sorted(tuple(row.values()) for row in log.snapshot(time).to_pylist())


@pytest.mark.parametrize("seed", range(6))
def test_output_that_begins_later_is_equal_from_then_on(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    log = filled(tmp_path / "in", rng, forgets=seed % 3 == 2)
    as_of = rng.choice([0, 2, 3, 7, 13])
    made: dict[str, list[Log]] = {}
    for name, begins in (("whole", None), ("later", as_of)):
        scope = Scope(name)
        for number, stream in enumerate(plans(scope.replay(log))):
            stream.capture(str(tmp_path / f"{name}-{number}"))
        scope.sinks = [replace(sink, as_of=begins) for sink in scope.sinks]
        engine = Engine(name, scope.sinks, scope.storage, files_of=catalog_of, limits=Limits(times=rng.choice([1, 4])))
        engine.advance(runner(scope.storage))
        made[name] = [open_log(sink.path) for sink in scope.sinks if not sink.kept]
    for whole, later in zip(made["whole"], made["later"], strict=True):
        assert later.frontier() == whole.frontier() == Antichain.of(15)
        first = max(as_of, 2 if seed % 3 == 2 else 0)
        assert later.since() == (Antichain.of(first) if first else later.domain.minimum_frontier)
        times = later.messages()["_time"].to_pylist()
        assert not times or min(times) >= first
        for time in range(first, 15):
            assert contents(later, time) == contents(whole, time)


def test_output_that_begins_later_waits_until_its_inputs(tmp_path: Path) -> None:
    log = filled(tmp_path / "in", random.Random(1), forgets=False)
    scope = Scope("flow")
    scope.replay(log).filter("v >= 0").capture(str(tmp_path / "out"))
    scope.sinks = [replace(sink, as_of=15) for sink in scope.sinks]
    engine = Engine("flow", scope.sinks, scope.storage, files_of=catalog_of)
    out = open_log(tmp_path / "out")
    engine.advance(runner(scope.storage))
    out.refresh()
    assert out.frontier() == out.domain.minimum_frontier
    log.writer(owner="test").advance(16)
    engine.advance(runner(scope.storage))
    out.refresh()
    assert out.frontier() == Antichain.of(16)
    assert contents(out, 15) == contents(log, 15)
