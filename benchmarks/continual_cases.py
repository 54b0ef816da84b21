"""Continual tasks: a trigger beside the bare SQL job, restarts over long histories, and what empty times cost."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_timely as st

from .report import Case, alternate, seconds
from .spark_cases import PEER_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

NAMES = ("ct_trigger_vs_bare_job", "ct_restart_flat", "ct_empty_advance_commits")
ROWS, CURRENCIES, TRIGGERS, WARM = 1000, 100, 20, 10
MANY, FEW, EMPTY = 10_000, 100, 10_000
DEADLINE_S = 120
ORDERS = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("currency", pa.int64())])
RATES = pa.schema([("currency", pa.int64()), ("rate", pa.float64())])
BODY = "SELECT o.id, o.amount * r.rate AS eur FROM orders o JOIN rates r USING (currency)"
NOW = {"availableNow": True}


def run(spark: SparkSession, scratch: Path, wanted: Callable[[str], bool]) -> list[Case]:
    """Run the cases whose names are wanted."""
    folder = scratch / "continual"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    measures = (_triggers, _restarts, _empty_times)
    cases = [measure(spark, folder) for name, measure in zip(NAMES, measures, strict=True) if wanted(name)]
    shutil.rmtree(folder)
    return cases


def _orders(first: int) -> dict[str, np.ndarray]:
    ids = np.arange(first, first + ROWS, dtype=np.int64)
    return {"id": ids, "amount": ids * 0.5, "currency": ids % CURRENCIES}


def _rates() -> dict[str, np.ndarray]:
    currencies = np.arange(CURRENCIES, dtype=np.int64)
    return {"currency": currencies, "rate": 1.0 + currencies / 8}


def _append(log: st.Log, at: int, rows: dict[str, np.ndarray]) -> None:
    n = len(next(iter(rows.values())))
    log.writer(owner="bench").append(pa.table({"_time": np.full(n, at), **rows}), advance_to=at + 1)


def _triggers(spark: SparkSession, folder: Path) -> Case:
    case = Case(
        NAMES[0],
        f"a micro-batch with {ROWS} new rows joined to {CURRENCIES}, commit included, as Spark reports it; peer:"
        " the same body as a job of Spark's over Parquet files, into Parquet; in turn",
        2.0,
        higher_is_better=False,
        settings=dict(PEER_SETTINGS),
    )
    orders = st.create_log(str(folder / "orders"), ORDERS, minimum=(0,))
    rates = st.create_log(str(folder / "rates"), RATES, minimum=(0,), kind="collection")
    _append(rates, 0, _rates())
    rates.close("main")
    pq.write_table(pa.table(_rates(), RATES), folder / "rates.parquet")
    task = st.ContinualTask(
        "enrich", inputs={"orders": orders}, references={"rates": rates}, body=BODY, output=folder / "eur"
    )
    query = task.start(spark)
    spark.read.schema("currency long, rate double").parquet(str(folder / "rates.parquet")).createTempView("rates")
    try:
        for number in range(WARM + TRIGGERS):
            rows = _orders(number * ROWS)
            pq.write_table(pa.table(rows, ORDERS), folder / f"orders-{number}.parquet")
            _append(orders, number, rows)
            query.await_frontier(number, timeout_s=DEADLINE_S)
            took = _last(query)
            bare = seconds(lambda number=number: _bare(spark, folder, number))  # type: ignore[misc]
            if number >= WARM:
                case.ours.append(took)
                case.peer.append(bare)
    finally:
        query.stop()
        spark.catalog.dropTempView("rates")
    ours = spark.read.parquet(str(folder / "eur" / "_event=message")).select("id", "eur")
    peers = spark.read.parquet(*(str(folder / f"bare-{number}") for number in range(WARM + TRIGGERS)))
    if ours.exceptAll(peers).count() or ours.count() != (WARM + TRIGGERS) * ROWS:
        msg = "the task and the bare jobs gave other rows"
        raise RuntimeError(msg)
    return case


def _bare(spark: SparkSession, folder: Path, number: int) -> None:
    files = str(folder / f"orders-{number}.parquet")
    spark.read.schema("id long, amount double, currency long").parquet(files).createOrReplaceTempView("orders")
    spark.sql(BODY).write.parquet(str(folder / f"bare-{number}"))


def _last(query: st.DataflowQuery) -> float:
    """Return the seconds of the newest micro-batch that took a step, as Spark reports them."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = [each for each in query.query.recentProgress if each["durationMs"].get("addBatch", 0) > 0]
        if found and not query.query.status["isTriggerActive"]:
            return float(found[-1]["durationMs"]["triggerExecution"]) / 1000
        time.sleep(0.005)
    msg = "Spark reported no micro-batch"
    raise RuntimeError(msg)


def _restarts(spark: SparkSession, folder: Path) -> Case:
    case = Case(
        NAMES[1],
        f"a start for one new time of {ROWS} rows after {MANY} input times, until it has ended; peer: after {FEW}",
        1.5,
        higher_is_better=False,
        settings=dict(PEER_SETTINGS),
    )
    sides = {}
    for times in (MANY, FEW):
        log = st.create_log(str(folder / f"history-{times}"), ORDERS, minimum=(0,))
        writer = log.writer(owner="bench")
        for first in range(0, times, FEW):
            rows = _orders(first)
            at = first + np.arange(ROWS) * FEW // ROWS
            writer.append(pa.table({"_time": at, **rows}), advance_to=first + FEW)
        # The task begins late: how long the history is must not matter, and it is not to be written.
        task = st.ContinualTask(
            f"restart-{times}",
            inputs={"orders": log},
            body="SELECT count(*) AS n, sum(amount) AS amount FROM orders",
            output=folder / f"restarted-{times}",
            as_of="latest",
        )
        task.start(spark, trigger=NOW).await_termination()
        sides[times] = [log, task, times]

    def restart(times: int) -> float:
        log, task, at = sides[times]
        _append(log, at, _orders(at))
        sides[times][2] += 1
        return seconds(lambda: task.start(spark, trigger=NOW).await_termination())

    alternate(case, lambda: restart(MANY), lambda: restart(FEW), 7)
    for times, (log, _, at) in sides.items():
        found = st.open_log(folder / f"restarted-{times}")
        if found.messages()["n"].to_pylist() != [ROWS] * (at - times) or found.frontier() != log.frontier():
            msg = f"after {times} times the task gave other rows"
            raise RuntimeError(msg)
    return case


def _empty_times(spark: SparkSession, folder: Path) -> Case:
    case = Case(
        NAMES[2],
        f"commits of the output for {EMPTY} input times at which what comes cancels; peer: 1",
        1.0,
        unit="commits",
        higher_is_better=False,
    )
    log = st.create_log(str(folder / "cancels"), RATES, minimum=(0,), kind="collection")
    task = st.ContinualTask("empty", inputs={"rates": log}, body="SELECT currency FROM rates", output=folder / "empty")
    task.start(spark, trigger=NOW).await_termination()
    output = st.open_log(folder / "empty")
    before = output.positions()["main"]
    times = np.repeat(np.arange(EMPTY), 2)
    rows = {"currency": times // 7, "rate": np.full(2 * EMPTY, 1.0)}
    updates = pa.table({"_time": times, "_diff": np.tile([1, -1], EMPTY), **rows})
    log.writer(owner="bench").append(updates, advance_to=EMPTY)
    task.start(spark, trigger=NOW).await_termination()
    output.refresh()
    if output.frontier() != log.frontier() or output.messages().num_rows:
        msg = "the output of empty times is not empty"
        raise RuntimeError(msg)
    case.ours.append(float(output.positions()["main"] - before))
    case.peer.append(1.0)
    return case
