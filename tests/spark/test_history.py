"""Operators over all history as streaming queries: a table kept current, counts, joins as of a time; restarts."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.errors import OwnershipError, SinceViolationError
from tests.oracles.totals_model import average, decimal_average, decimal_sum, float_sum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("changed", pa.int64()), ("op", pa.string()), ("cents", pa.int64())])
NOW = {"availableNow": True}
Row = tuple[int, int, str, int]


class Orders:
    """A log of changes, and what a sequential program makes of it."""

    def __init__(self, folder: Path) -> None:
        self.rng = random.Random(7)
        self.folder = folder
        self.log = st.create_log(str(folder / "changes"), SCHEMA, minimum=(0,))
        self.writer = self.log.writer(owner="test")
        self.rows: list[tuple[int, Row]] = []

    def write(self, time: int, n: int) -> None:
        rng = self.rng
        rows = [(rng.randrange(200), rng.randrange(1000), rng.choice("IUUD"), rng.randrange(9)) for _ in range(n)]
        columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True))
        self.writer.append(pa.table({"_time": [time] * n, **columns}, schema=_with_time()), advance_to=time + 1)
        self.rows += [(time, row) for row in rows]

    def flow(self) -> st.Dataflow:
        flow = st.Dataflow("orders", checkpoint=str(self.folder / "checkpoint"))
        changes = flow.replay(self.log)
        current = changes.latest("id", order_by="changed", deleted="op = 'D'")
        current.capture(str(self.folder / "current"))
        changes.aggregate(by="id", over="history", n=tf.count()).capture(str(self.folder / "counts"))
        priced = changes.select(
            "id",
            "cents",
            euro=pc.field("cents").cast(pa.decimal128(21, 2)),
            share=pc.field("cents").cast("double") / 10,
        )
        priced.aggregate(
            by="id",
            over="history",
            mean=tf.avg("cents"),
            euro=tf.sum("euro"),
            each=tf.avg("euro"),
            share=tf.sum("share"),
        ).capture(str(self.folder / "sums"))
        changes.drop_duplicates("id").capture(str(self.folder / "first"))
        changes.join(current.select("id", now=pc.field("cents")), on="id", as_of=True).capture(
            str(self.folder / "joined")
        )
        return flow

    def check(self, upper: int) -> None:
        for time in range(upper):
            now = [row for when, row in self.rows if when <= time]
            newest: dict[int, Row] = {}
            for row in sorted(now, key=lambda r: (r[1], r[2] == "D", r[0], r[2], r[3])):
                newest[row[0]] = row
            current = Counter(row for row in newest.values() if row[2] != "D")
            assert contents(self.folder / "current", time) == current
            assert contents(self.folder / "counts", time) == Counter(Counter(row[0] for row in now).items())
            by_id: dict[int, list[int]] = {}
            for row in now:
                by_id.setdefault(row[0], []).append(row[3])
            assert contents(self.folder / "sums", time) == Counter(
                (k, average(cents), *decimals(cents), float_sum([n / 10 for n in cents])) for k, cents in by_id.items()
            )
            joined = Counter(
                (*row, newest[row[0]][3])
                for when, row in self.rows
                if when == time and newest[row[0]][2] != "D"
            )  # fmt: skip
            log = st.open_log(str(self.folder / "joined"))
            found = [row for row in log.messages().to_pylist() if row["_time"] == time]
            assert Counter(tuple(row[name] for name in log.schema.names) for row in found) == joined
        ids = [row["id"] for row in st.open_log(str(self.folder / "first")).messages().to_pylist()]
        assert sorted(ids) == sorted({row[0] for when, row in self.rows if when < upper})


def decimals(cents: list[int]) -> tuple[Decimal | None, Decimal | None]:
    values = list(map(Decimal, cents))
    return decimal_sum(values, 21, 2), decimal_average(values, 21, 2)


def _with_time() -> pa.Schema:
    return pa.schema([("_time", pa.int64()), *SCHEMA])


def contents(path: Path, time: int) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    log = st.open_log(str(path))
    for row in log.messages().to_pylist():
        if row["_time"] <= time:
            found[tuple(row[name] for name in log.schema.names)] += row["_diff"]
    return Counter({row: n for row, n in found.items() if n})


def test_a_table_is_kept_current_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    for time in range(6):
        orders.write(time, 300)
        if time % 2:
            orders.flow().start(spark, trigger=NOW, workers=2).await_termination()
    orders.check(6)
    plan = orders.flow().explain()
    assert f"keeps key id, columns id, changed, op, cents, in its own output {tmp_path / 'first'}: " in plan
    assert plan.count("keeps key id, ") == 4
    assert f", hidden _kept_deleted, in a log of its own {tmp_path / 'current'}/_spark_timely/" in plan
    assert "keeps nothing, looks into " in plan


def test_a_live_query_follows_the_log(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    query = orders.flow().start(spark)
    try:
        for time in range(4):
            orders.write(time, 50)
            query.await_frontier(time)
    finally:
        query.stop()
    orders.check(4)


def test_state_is_neither_forgotten_nor_moved_by_others(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.write(0, 20)
    orders.flow().start(spark, trigger=NOW, retain="1 hour").await_termination()
    first = st.open_log(str(tmp_path / "first"))
    assert first.allow_compaction(1).elements == ((0,),)
    with pytest.raises(OwnershipError):
        first.writer(owner="somebody", stream="main")


def test_history_needs_all_messages(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.write(0, 20)
    orders.write(1, 20)
    orders.log.allow_compaction(1)
    flow = st.Dataflow("late", checkpoint=str(tmp_path / "late-checkpoint"))
    flow.replay(orders.log).aggregate(over="history", n=tf.count()).capture(str(tmp_path / "late"))
    with pytest.raises(SinceViolationError, match="from the beginning"):
        flow.start(spark, trigger=NOW)


@pytest.mark.parametrize("frontier", ["source", "bounded"])
def test_a_copy_of_a_log_that_has_forgotten_is_not_whole(frontier: str, spark: SparkSession, tmp_path: Path) -> None:
    def copy(name: str, to: str) -> st.Log:
        rows = spark.readStream.format("timely").option("includeTime", "true").load(str(tmp_path / name))
        st.start(
            rows,
            path=str(tmp_path / to),
            checkpoint=str(tmp_path / f"{to}-checkpoint"),
            time_column="_time",
            frontier=frontier,
            trigger="availableNow",
            **({"lateness": "0", "through": "foreachBatch"} if frontier == "bounded" else {}),
        ).await_termination()
        return st.open_log(str(tmp_path / to))

    orders = Orders(tmp_path)
    for time in range(6):
        orders.write(time, 20)
    whole = copy("changes", "whole")
    orders.log.allow_compaction(3)
    first = copy("changes", "first")
    assert sorted(set(first.messages()["_time"].to_pylist())) == [3, 4, 5]
    for log in (first, copy("first", "second")):
        assert log.since().elements == ((3,),)
        flow = st.Dataflow("counts", checkpoint=str(tmp_path / "counts-checkpoint"))
        flow.replay(log).aggregate(over="history", n=tf.count()).capture(str(tmp_path / "counts"))
        with pytest.raises(SinceViolationError, match=r"found since=\[3\] in log .* from the beginning"):
            flow.start(spark, trigger=NOW)
    flow = st.Dataflow("whole", checkpoint=str(tmp_path / "whole-flow"))
    flow.replay(whole).aggregate(over="history", n=tf.count()).capture(str(tmp_path / "all"))
    flow.start(spark, trigger=NOW).await_termination()
    assert contents(tmp_path / "all", 5 if frontier == "source" else 4) == {(120 if frontier == "source" else 100,): 1}
