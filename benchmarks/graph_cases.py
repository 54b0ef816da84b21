"""Costs that must grow with a dataflow's graph as the graph does, and not with its depth or the ways through it."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import spark_timely as st
from spark_timely.dataflow.engine.explain import explain
from spark_timely.dataflow.engine.steps import Engine
from spark_timely.dataflow.stream import Scope, Stream
from spark_timely.log.log import open_log
from spark_timely.spark.dataflows.tasks import SparkTasks, catalog_of

from .report import Case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("graph_10k_vs_1k_operators",)
FEW, MANY = 1_000, 10_000
PAIRS = 3
TIMES = 20
SCHEMA = pa.schema([("n", pa.int64())])


def _chain(stream: Stream, n: int) -> Stream:
    for number in range(n):
        stream = stream.filter(pc.field("n") >= -number)
    return stream


def _ladder(stream: Stream, n: int) -> Stream:
    for number in range(n // 3):
        one, other = stream.branch(pc.field("n") > number % TIMES)
        stream = one.concat(other)
    return stream


def _measured(folder: Path, source: Path, build: Callable[[Stream, int], Stream], n: int) -> float:
    """Build a dataflow, take a step of it and describe it; return the seconds that took."""
    gc.collect()
    out = folder / f"{build.__name__}-{n}-{time.monotonic_ns()}"
    start = time.perf_counter()
    scope = Scope("bench")
    build(scope.replay(str(source)), n).capture(str(out))
    # All of it runs in this process: nothing asks for a session.
    tasks = SparkTasks(lambda _: [], scope.storage, here_s=float("inf"))
    engine = Engine("bench", scope.sinks, scope.storage, files_of=catalog_of)
    engine.advance(tasks)
    explain(scope)
    took = time.perf_counter() - start
    log = open_log(str(out))
    if log.frontier().to_json() != [TIMES] or log.messages().num_rows != TIMES:
        message = f"{build.__name__} of {n} operators: expected {TIMES} rows, frontier {TIMES}"
        raise AssertionError(message)
    return took


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure ten thousand operators against one thousand: in a chain, and in a ladder of branch and concat."""
    if not wanted(NAMES[0]):
        return []
    source = scratch / "graph-in"
    log = st.create_log(str(source), SCHEMA, minimum=(0,))
    log.writer(owner="bench").append(pa.table({"_time": range(TIMES), "n": range(TIMES)}), advance_to=TIMES)
    case = Case(
        NAMES[0],
        f"build, step and explain {MANY} operators in a chain, and in a ladder of branch and concat; peer: {FEW}",
        12.0,
        higher_is_better=False,
    )
    _measured(scratch, source, _ladder, FEW)  # what is compiled once
    for _ in range(PAIRS):
        case.ours.append(sum(_measured(scratch, source, build, MANY) for build in (_chain, _ladder)))
        case.peer.append(sum(_measured(scratch, source, build, FEW) for build in (_chain, _ladder)))
    return [case]
