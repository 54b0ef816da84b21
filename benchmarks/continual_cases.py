"""Continual tasks: triggers, restarts, empty times, catching up at many times together, and upserts.

What stands beside a catch-up is written by hand, as somebody does who knows Spark and this data. It leaves out what a
task also does: nobody owns its output, a second run writes everything twice, nothing keeps the logs from forgetting
what is still to be read, and no error names the time that it is of.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from delta.tables import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F

import spark_timely as st

from .report import Case, alternate, seconds
from .spark_cases import PEER_SETTINGS, last_micro_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NAMES = (
    "ct_trigger_vs_bare_job",
    "ct_restart_flat",
    "ct_empty_advance_commits",
    "ct_catchup_vs_by_hand",
    "ct_catchup_vs_micro_batches",
    "ct_overhead_changing_reference",
    "ct_upsert_vs_merge",
    "ct_arrow_step_vs_empty_job",
)
ROWS, CURRENCIES, TRIGGERS, WARM = 1000, 100, 20, 10
MANY, FEW, EMPTY = 10_000, 100, 10_000
DEADLINE_S = 120
# Of rows that are asked for, a tenth is ordered at the times of a catch-up; the reference has as many rows.
ALL_ROWS, CATCH_UP, UPSERT_TIMES = 10_000_000, 10, 300
# Times of one commit of the orders, and how often the reference changes.
TOGETHER, SELDOM, OFTEN, CHANGED_KEYS = 10, 2, 20, 1000
# Micro-batches by hand that are measured, and before them some that are not.
BY_HAND, MERGED, UNCOUNTED = 40, 60, 3
PAIRS = 5
ORDERS = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("currency", pa.int64())])
RATES = pa.schema([("currency", pa.int64()), ("rate", pa.float64())])
BODY = "SELECT o.id, o.amount * r.rate AS eur FROM orders o JOIN rates r USING (currency)"
NOW = {"availableNow": True}


def run(spark: SparkSession, scratch: Path, wanted: Callable[[str], bool], n_rows: int = ALL_ROWS) -> list[Case]:
    """Run the cases whose names are wanted; a tenth of `n_rows` orders are caught up, 1000 at a time."""
    measures: tuple[Callable[[SparkSession, Path], Case], ...] = (
        _triggers,
        _restarts,
        _empty_times,
        lambda spark, folder: _by_hand(spark, folder, n_rows, NAMES[3], SELDOM, 1.3),
        lambda spark, folder: _micro_batches(spark, folder, n_rows),
        lambda spark, folder: _by_hand(spark, folder, n_rows, NAMES[5], OFTEN, 1.5),
        lambda spark, folder: _upserts(spark, folder, n_rows),
        _arrow_steps,
    )
    cases = []
    for name, measure in zip(NAMES, measures, strict=True):
        if wanted(name):
            folder = scratch / "continual"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            cases.append(measure(spark, folder))
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


def _orders_and_rates(folder: Path) -> tuple[st.Log, st.Log]:
    """Return a log for orders, and one of rates, which is complete."""
    orders = st.create_log(str(folder / "orders"), ORDERS, minimum=(0,))
    rates = st.create_log(str(folder / "rates"), RATES, minimum=(0,), kind="collection")
    _append(rates, 0, _rates())
    rates.close("main")
    return orders, rates


def _triggers(spark: SparkSession, folder: Path) -> Case:
    case = Case(
        NAMES[0],
        f"a micro-batch with {ROWS} new rows joined to {CURRENCIES}, commit included, as Spark reports it; peer:"
        " the same body as a job of Spark's over Parquet files, into Parquet; in turn",
        2.0,
        higher_is_better=False,
        settings=dict(PEER_SETTINGS),
    )
    orders, rates = _orders_and_rates(folder)
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
            took = last_micro_batch(query.query, DEADLINE_S)
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
    before = output.core.positions()["main"]
    times = np.repeat(np.arange(EMPTY), 2)
    rows = {"currency": times // 7, "rate": np.full(2 * EMPTY, 1.0)}
    updates = pa.table({"_time": times, "_diff": np.tile([1, -1], EMPTY), **rows})
    log.writer(owner="bench").append(updates, advance_to=EMPTY)
    task.start(spark, trigger=NOW).await_termination()
    output.refresh()
    if output.frontier() != log.frontier() or output.messages().num_rows:
        msg = "the output of empty times is not empty"
        raise RuntimeError(msg)
    case.ours.append(float(output.core.positions()["main"] - before))
    case.peer.append(1.0)
    return case


# Many times together ----------------------------------------------------------------------------------

CATCH_UP_ORDERS = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("key", pa.int64())])
CATCH_UP_RATES = pa.schema([("key", pa.int64()), ("rate", pa.float64())])
CATCH_UP_BODY = "SELECT o.id, o.amount * r.rate AS eur FROM orders o JOIN rates r USING (key)"
ORDERS_SQL = "_time long, id long, amount double, key long"
RATES_SQL = "_time long, _diff long, key long, rate double"


class _CatchUp:
    """Logs of orders and rates that nobody has looked at yet, and both ways to join them.

    Amounts and rates are multiples of an eighth, so that no sum depends on the order of its parts.
    """

    def __init__(self, spark: SparkSession, folder: Path, n_rows: int, changes: int) -> None:
        self.spark, self.folder, self._number = spark, folder, 0
        self.mine: tuple[object, ...] = ()
        self.theirs: tuple[object, ...] = ()
        self.times = max(n_rows // CATCH_UP // ROWS, 2 * OFTEN)
        self.keys = self.times * ROWS
        # A tenth of the keys at most, so that small runs are alike.
        self.changed = min(CHANGED_KEYS, self.keys // 10)
        rng = np.random.default_rng(7)
        self.orders = st.create_log(str(folder / "orders"), CATCH_UP_ORDERS, minimum=(0,))
        writer = self.orders.writer(owner="bench")
        for first in range(1, self.times + 1, TOGETHER):
            after = min(first + TOGETHER, self.times + 1)
            at = np.repeat(np.arange(first, after), ROWS)
            ids = first * ROWS + np.arange(at.shape[0])
            keys = rng.integers(0, self.keys, at.shape[0])
            writer.append(pa.table({"_time": at, "id": ids, "amount": ids % 1000 * 0.5, "key": keys}), advance_to=after)
        self.rates = st.create_log(str(folder / "rates"), CATCH_UP_RATES, minimum=(0,), kind="collection")
        bank, every = self.rates.writer(owner="bench"), np.arange(self.keys)
        held = 1.0 + every % 64 / 8
        bank.append(pa.table({"_time": every * 0, "_diff": every * 0 + 1, "key": every, "rate": held}), advance_to=1)
        for number in range(1, changes + 1):
            at = 1 + number * self.times // (changes + 1)
            keys = rng.choice(self.keys, self.changed, replace=False)
            before = held[keys]
            held[keys] = before + 16.0
            columns = {
                "_time": np.full(2 * self.changed, at),
                "_diff": np.repeat([-1, 1], self.changed),
                "key": np.tile(keys, 2),
                "rate": np.concatenate([before, held[keys]]),
            }
            bank.append(pa.table(columns), advance_to=at + 1)
        bank.advance(self.times + 1)

    def read(self, log: st.Log, columns: str) -> DataFrame:
        """Return the rows of the files that a log has now, as anybody reads Parquet."""
        files = [file for file in deltalake.DeltaTable(log.path).file_uris() if "_event=message" in file]
        return self.spark.read.schema(columns).parquet(*files)

    def intervals(self) -> DataFrame:
        """Return each rate with the times from and before which it holds.

        One sum tells it, for somebody who knows that no rate comes back: what sums to nothing is gone.
        """
        rates = self.read(self.rates, RATES_SQL).groupBy("key", "rate")
        return rates.agg(
            F.min("_time").alias("begins"), F.max("_time").alias("ends"), F.sum("_diff").alias("n")
        ).select("key", "rate", "begins", F.expr("IF(n = 0, ends, NULL)").alias("ends"))

    def ours(self, *, last: int | None = None) -> float:
        """Catch up with a task whose output is new, and return the seconds of its query."""
        self._number += 1
        out = self.folder / f"ours-{self._number}"
        logs = {"inputs": {"orders": self.orders}, "references": {"rates": self.rates}}
        task = st.ContinualTask(f"catch up {self._number}", **logs, body=CATCH_UP_BODY, output=out)  # type: ignore[arg-type]
        took = seconds(lambda: task.start(self.spark, trigger=NOW).await_termination())
        found = st.open_log(out)
        if found.frontier() != self.orders.frontier():
            msg = f"the task is at {found.frontier()}, its orders at {self.orders.frontier()}"
            raise RuntimeError(msg)
        rows = self.spark.read.format("delta").load(str(out)).where("_event = 'message'")
        self.mine = _answer(rows if last is None else rows.where(f"_time <= {last}"))
        task.drop()
        shutil.rmtree(out)
        return took

    def by_hand(self) -> float:
        """Do the same as one job of Spark's, into a Delta table, and return its seconds, once both agree."""
        out = str(self.folder / "by-hand")

        def work() -> None:
            orders, rates = self.read(self.orders, ORDERS_SQL).alias("o"), self.intervals().alias("r")
            there = "o.key = r.key AND o._time >= r.begins AND (r.ends IS NULL OR o._time < r.ends)"
            joined = orders.join(rates, F.expr(there))
            joined.selectExpr("o._time", "o.id", "o.amount * r.rate AS eur").write.format("delta").save(out)

        took = seconds(work)
        self.theirs = _answer(self.spark.read.format("delta").load(out))
        self.check()
        shutil.rmtree(out)
        return took

    def check(self) -> None:
        """Refuse two answers that differ."""
        if self.mine != self.theirs or not any(self.mine):
            msg = f"the task gave (rows, hash, sum) {self.mine}, by hand it is {self.theirs}"
            raise RuntimeError(msg)


def _answer(rows: DataFrame) -> tuple[object, ...]:
    """Return the number of rows, a sum over hashes of whole rows with their times, and a sum of values."""
    whole = F.sum(F.xxhash64("_time", "id", "eur").cast("decimal(38, 0)"))
    found = rows.agg(F.count("*"), whole, F.sum("eur")).first()
    assert found is not None
    return tuple(found)


def _by_hand(spark: SparkSession, folder: Path, n_rows: int, name: str, changes: int, aim: float) -> Case:
    """Compare a catch-up with one batch job over the same files, with the same range join.

    The job leaves out what the module says, and the frontier.
    """
    both = _CatchUp(spark, folder, n_rows, changes)
    case = Case(
        name,
        f"{both.times} times of {ROWS} orders each, joined with what {both.keys} rates are at each time, which change"
        f" {changes} times, {both.changed} at once; from start to end of a query, into a new log; peer: one batch job"
        " by hand over the same files, with the same range join, into a Delta table; in turn",
        aim,
        higher_is_better=False,
        settings=dict(PEER_SETTINGS),
    )
    # Both are still getting faster after two runs.
    alternate(case, both.ours, both.by_hand, PAIRS, warm=4)
    return case


def _micro_batches(spark: SparkSession, folder: Path, n_rows: int) -> Case:
    """Compare a catch-up with a streaming query by hand that has one time in each micro-batch.

    It gets its intervals for nothing: they are in memory before it starts. What it leaves out is what the module says,
    and the frontier; a micro-batch that is repeated appends its rows twice.
    """
    both = _CatchUp(spark, folder, n_rows, SELDOM)
    counted = min(BY_HAND, both.times - UNCOUNTED)
    last = UNCOUNTED + counted
    case = Case(
        NAMES[4],
        f"as {NAMES[3]}, {both.times} times; peer: foreachBatch by hand, a file of {ROWS} orders in each micro-batch,"
        f" joined with intervals in memory, appended to a Delta table: {counted} micro-batches, scaled to {both.times}",
        20.0,
        settings={**PEER_SETTINGS, "micro-batches": counted},
    )
    (folder / "files").mkdir()
    orders = both.orders.messages(upper=last + 1).select(["_time", *CATCH_UP_ORDERS.names])
    intervals = both.intervals().persist()
    intervals.count()

    def each(batch: DataFrame, number: int) -> None:
        del number
        there = "o.key = r.key AND o._time >= r.begins AND (r.ends IS NULL OR o._time < r.ends)"
        joined = batch.alias("o").join(intervals.alias("r"), F.expr(there))
        joined.selectExpr("o._time", "o.id", "o.amount * r.rate AS eur").write.format("delta").mode("append").save(
            str(folder / "delta")
        )

    stream = spark.readStream.schema(ORDERS_SQL).option("maxFilesPerTrigger", 1).parquet(str(folder / "files"))
    query = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        took = [_fed(query, folder, at, orders.filter(pc.field("_time") == at)) for at in range(1, last + 1)]
    finally:
        query.stop()
        intervals.unpersist()
    both.theirs = _answer(spark.read.format("delta").load(str(folder / "delta")))
    for number in range(3):
        mine = both.ours(last=last)
        both.check()
        if number:  # the first one warms Spark
            case.ours.append(mine)
            case.peer.append(sum(took[UNCOUNTED:]) * both.times / counted)
    return case


def _fed(query: StreamingQuery, folder: Path, number: int, rows: pa.Table) -> float:
    """Give a file to a query, and return the seconds of the micro-batch that takes it, as Spark reports them."""
    hidden = folder / "files" / f".{number}"
    pq.write_table(rows, hidden)
    hidden.rename(folder / "files" / f"part-{number:04d}.parquet")
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and query.isActive:
        # Batches are numbered from 0 on, and take a file each; a batch without a file is reported too.
        done = [each for each in query.recentProgress if each["batchId"] == number - 1 and each["numInputRows"]]
        if done:
            return float(done[0]["durationMs"]["triggerExecution"]) / 1000
        time.sleep(0.005)
    msg = f"micro-batch {number - 1} was not reported: {query.exception()}"
    raise RuntimeError(msg)


# Upserts ----------------------------------------------------------------------------------------------

CHANGES = pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("gone", pa.bool_()), ("v", pa.int64())])
CHANGES_SQL = "k long, seq long, gone boolean, v long"


def _changes(times: int, keys: int) -> Iterator[tuple[int, pa.Table]]:
    """Give times with their changes: all keys first, then 1000 each, of which a tenth delete and a twentieth are late.

    A late change is of a key that changed at the time before, and is older than that; that one may have deleted it.
    """
    rng = np.random.default_rng(7)
    every = np.arange(keys)
    columns = {"k": every, "seq": every * 0, "gone": every < 0, "v": every}
    yield 0, pa.table(columns, CHANGES)
    before = every[:ROWS]
    for at in range(1, times + 1):
        changed = rng.choice(keys, ROWS, replace=False)
        seq = 2 * (at * ROWS + np.arange(ROWS))
        late = np.arange(ROWS) < (ROWS // 20 if at > 2 else 0)
        changed[late] = before[late.nonzero()[0] + ROWS // 2]
        # Two times earlier, and odd, so that no two changes of a key have one number.
        seq[late] -= 4 * ROWS - 1
        gone = ~late & (rng.random(ROWS) < 0.1 / 0.95)
        yield at, pa.table({"k": changed, "seq": seq, "gone": gone, "v": changed * 1000 + at}, CHANGES)
        before = changed


def _upserts(spark: SparkSession, folder: Path, n_rows: int) -> Case:
    """Compare an upsert that is far behind with MERGE in foreachBatch, which has one time in each micro-batch.

    Both know what the table was at each time: the task's log forever, Delta as long as it keeps versions. What deletes
    leave behind is a row with a flag there, which is for ever too, and which each reader has to leave out. One MERGE of
    everything would know the end alone.
    """
    times, keys = max(n_rows * UPSERT_TIMES // ALL_ROWS, TOGETHER), max(n_rows // 100, 2 * ROWS)
    counted = min(MERGED, times - UNCOUNTED)
    last = UNCOUNTED + counted
    case = Case(
        NAMES[6],
        f"{times} times of {ROWS} changes each of {keys} keys, a tenth of them deletes, a twentieth late, caught up in"
        " one query; peer: MERGE into a Delta table in foreachBatch, by the same order, deletes as a flag, a time in"
        f" each micro-batch: {counted} micro-batches, scaled to {times}",
        3.0,
        settings={**PEER_SETTINGS, "micro-batches": counted},
    )
    made = dict(_changes(times, keys))
    for number in range(4):
        here = folder / f"pair-{number}"
        (here / "files").mkdir(parents=True)
        mine = theirs = 0.0
        # The side that goes first changes.
        for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            if side == "ours":
                mine = _upserted(spark, here, made)
            else:
                theirs = _merged(spark, here, made, last)
        merged = spark.read.format("delta").load(str(here / "delta")).where("NOT gone").drop("gone").toArrow()
        for at, expected in ((last, merged), (times, _current(made))):
            ours = st.open_log(here / "ours").snapshot(at).drop_columns(["_diff"]).sort_by("k")
            if not ours.num_rows or not ours.equals(expected.sort_by("k").cast(ours.schema)):
                msg = f"at {at} the task gave another table, of {ours.num_rows} and not {expected.num_rows} rows"
                raise RuntimeError(msg)
        if number:  # the first pair warms Spark
            case.ours.append(mine)
            case.peer.append(theirs * times / counted)
        shutil.rmtree(here)
    return case


def _current(made: Mapping[int, pa.Table]) -> pa.Table:
    """Return what is there at the end, without Spark."""
    rows = pa.concat_tables(made.values()).sort_by([("k", "ascending"), ("seq", "ascending")])
    k = rows["k"].to_numpy()
    newest = np.append(k[1:] != k[:-1], values=True)
    return rows.filter(newest).filter(pc.invert(rows.filter(newest)["gone"])).drop_columns(["gone"])


def _upserted(spark: SparkSession, folder: Path, made: Mapping[int, pa.Table]) -> float:
    """Load all keys, then catch up with all changes, and return the seconds of the second query."""
    log = st.create_log(str(folder / "changes"), CHANGES, minimum=(0,))
    writer = log.writer(owner="bench")

    def add(first: int, after: int) -> None:
        rows = pa.concat_tables([made[at].add_column(0, "_time", pa.repeat(pa.scalar(at), len(made[at]))) for at in
                                 range(first, after)])  # fmt: skip
        writer.append(rows, advance_to=after)

    def follow() -> float:
        task = st.ContinualTask.upsert(
            "upsert", input=log, output=folder / "ours", keys="k", sequence_by="seq", delete_when="gone",
            except_columns=["gone"],
        )  # fmt: skip
        return seconds(lambda: task.start(spark, trigger=NOW).await_termination())

    add(0, 1)
    follow()
    for first in range(1, len(made), TOGETHER):
        add(first, min(first + TOGETHER, len(made)))
    return follow()


def _merged(spark: SparkSession, folder: Path, made: Mapping[int, pa.Table], last: int) -> float:
    """Merge the changes of some times, one after the other, and return the seconds of those that count."""
    path = str(folder / "delta")
    pq.write_table(made[0], folder / "first.parquet")
    spark.read.schema(CHANGES_SQL).parquet(str(folder / "first.parquet")).write.format("delta").save(path)
    target = DeltaTable.forPath(spark, path)
    newest = Window.partitionBy("k").orderBy(F.desc("seq"))

    def merge(batch: DataFrame, number: int) -> None:
        del number
        # MERGE refuses two changes of one row.
        changes = batch.withColumn("_nth", F.row_number().over(newest)).where("_nth = 1").drop("_nth").alias("s")
        merging = target.alias("t").merge(changes, "t.k = s.k")
        merging.whenMatchedUpdateAll("s.seq > t.seq").whenNotMatchedInsertAll().execute()

    stream = spark.readStream.schema(CHANGES_SQL).option("maxFilesPerTrigger", 1).parquet(str(folder / "files"))
    query = stream.writeStream.foreachBatch(merge).option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        return sum([_fed(query, folder, at, made[at]) for at in range(1, last + 1)][UNCOUNTED:])
    finally:
        query.stop()


# Functions of Arrow tables ----------------------------------------------------------------------------


def _arrow_steps(spark: SparkSession, folder: Path) -> Case:
    """Compare a step of a function of Arrow tables with a job of one task that does nothing."""
    case = Case(
        NAMES[7],
        f"a micro-batch with {ROWS} new rows that a function of Arrow tables joins to {CURRENCIES}, commit included, as"
        " Spark reports it; peer: a job of one task whose mapInArrow gives back the one row it gets; in turn",
        3.0,
        higher_is_better=False,
        settings=dict(PEER_SETTINGS),
    )
    orders, rates = _orders_and_rates(folder)

    def body(inputs: Mapping[str, pa.Table], references: Mapping[str, pa.Table], time: object) -> pa.Table:
        del time
        both = inputs["orders"].join(references["rates"], "currency", join_type="inner")
        return pa.table({"id": both["id"], "eur": pc.multiply(both["amount"], both["rate"])})

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    logs = {"inputs": {"orders": orders}, "references": {"rates": rates}}
    task = st.ContinualTask("arrow", **logs, body=body, version="1", arrow=True, output=folder / "eur")  # type: ignore[arg-type]
    query = task.start(spark)
    try:
        for number in range(WARM + TRIGGERS):
            _append(orders, number, _orders(number * ROWS))
            query.await_frontier(number, timeout_s=DEADLINE_S)
            took = last_micro_batch(query.query, DEADLINE_S)
            empty = seconds(lambda: spark.range(0, 1, 1, 1).mapInArrow(nothing, "id long").collect())
            if number >= WARM:
                case.ours.append(took)
                case.peer.append(empty)
    finally:
        query.stop()
    found = st.open_log(folder / "eur").messages(columns=["id", "eur"]).sort_by("id")
    ids = np.arange((WARM + TRIGGERS) * ROWS)
    eur = ids * 0.5 * _rates()["rate"][ids % CURRENCIES]
    if not np.array_equal(found["id"].to_numpy(), ids) or not np.array_equal(found["eur"].to_numpy(), eur):
        msg = f"the function gave other rows, {found.num_rows} in number"
        raise RuntimeError(msg)
    return case
