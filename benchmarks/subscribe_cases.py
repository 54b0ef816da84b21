"""How soon a subscription has a commit, and what a hundred subscriptions of one log cost."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import spark_timely as st
from spark_timely.answers.subscribe import Subscription, subscribe

from .report import Case, alternate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 100  # of a commit
COMMITS, ROUNDS = 40, 9
MANY, SHARED_COMMITS = 100, 20
LATENCY, SHARED = "subscribe_vs_bare_poll", "subscribe_100_vs_1"

# Appends when it is asked to, and says at which moment the commit could be seen: when its entry got its name.
_WRITER = """
import os, sys, time
import numpy as np, pyarrow as pa
import spark_timely as st

named, link = [0], os.link
def link_and_note(source, target, **more):
    link(source, target, **more)
    if "_delta_log" in os.fspath(target):
        named[0] = time.monotonic_ns()
os.link = link_and_note
log = st.open_log(sys.argv[1])
writer, rows, now = log.writer(owner="bench"), int(sys.argv[2]), log.frontier().elements[0][0]
print("ready", flush=True)
for _ in sys.stdin:
    columns = {"_time": np.full(rows, now), "_diff": np.ones(rows, np.int64), "v": np.arange(rows)}
    writer.append(pa.table(columns), advance_to=now + 1)
    now += 1
    print(named[0], flush=True)
"""


def run(scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Measure the latency of a subscription, and the processor time of many."""
    cases = [_latency(scratch)] if wanted(LATENCY) else []
    if wanted(SHARED):
        cases.append(_shared(scratch))
    return cases


def _log(path: Path) -> st.Log:
    schema = pa.schema([("v", pa.int64())])
    return st.create_log(path, schema, minimum=(0,), kind="collection")


def _latency(scratch: Path) -> Case:
    case = Case(
        LATENCY,
        f"median of {COMMITS}: from the moment at which a commit of {ROWS} updates can be seen until a subscription has"
        " given them, poll interval 0; peer: until a handle that only looks for news has the frontier",
        3.0,
        unit="ms",
        higher_is_better=False,
    )
    log = _log(scratch / "subscribe-latency")
    command = [sys.executable, "-c", _WRITER, log.path, str(ROWS)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer,
        subscribe(log.path, as_of=0, poll_s=0) as subscription,
    ):
        assert writer.stdin is not None
        assert writer.stdout is not None
        stdin, stdout = writer.stdin, writer.stdout
        stdout.readline()

        def commit(see: Callable[[], object]) -> float:
            stdin.write("\n")
            stdin.flush()
            see()
            seen = time.monotonic_ns()
            return (seen - int(stdout.readline())) / 1e6

        def drained() -> None:
            while subscription.next_batch(timeout_s=0) is not None:
                pass

        def ours() -> float:
            took = []
            for _ in range(COMMITS):
                drained()
                took.append(commit(lambda: _check(next(subscription).rows, ROWS)))
            return statistics.median(took)

        bare = st.open_log(log.path)

        def look() -> None:
            before = bare.frontier()
            while bare.frontier() == before:
                while not bare.core.has_news():
                    pass
                bare.refresh()

        def peer() -> float:
            took = []
            for _ in range(COMMITS):
                bare.refresh()
                took.append(commit(look))
            return statistics.median(took)

        alternate(case, ours, peer, ROUNDS)
        stdin.close()
    return case


def _shared(scratch: Path) -> Case:
    case = Case(
        SHARED,
        f"processor time of {MANY} subscriptions to one log for a commit of {ROWS} updates; peer: of one subscription",
        3.0,
        unit="ms",
        higher_is_better=False,
        settings={"commits": SHARED_COMMITS},
    )
    log = _log(scratch / "subscribe-shared")
    writer, now = log.writer(owner="bench"), [0]

    def append() -> None:
        columns = {"_time": [now[0]] * ROWS, "_diff": [1] * ROWS, "v": range(ROWS)}
        writer.append(
            pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}), advance_to=now[0] + 1
        )
        now[0] += 1

    def measured(n: int) -> float:
        append()
        subscriptions: list[Subscription] = [subscribe(log.path) for _ in range(n)]
        for each in subscriptions:
            each.fetch()
        spent = 0.0
        for _ in range(SHARED_COMMITS):
            append()
            start = time.process_time()
            found = [each.fetch(timeout_s=0) for each in subscriptions]
            spent += time.process_time() - start
            for rows in found:
                _check(rows, ROWS)
        for each in subscriptions:
            each.close()
        return 1000 * spent / SHARED_COMMITS

    alternate(case, lambda: measured(MANY), lambda: measured(1), ROUNDS)
    return case


def _check(rows: pa.Table, n: int) -> None:
    total = pc.sum(rows["v"]).as_py()
    if rows.num_rows != n or total != n * (n - 1) // 2:
        message = f"expected {n} updates, found {rows.num_rows} with a sum of {total}"
        raise AssertionError(message)
