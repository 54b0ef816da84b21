"""Golden things that need Spark: mirrors, and an instance with continual tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import spark_timely
from spark_timely.log.log import create_log, open_log
from spark_timely.spark.compute import ComputeInstance
from spark_timely.spark.mirror import mirror_to
from tests.golden.lasting import Facts, Thing, log_facts, rows_hash
from tests.golden.lasting_plain import PLAIN, TOTALS, change, order, orders_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session() -> SparkSession:
    """Return a session as the tests have one."""
    from tests.conftest import QUICK_CHECKPOINTS, SESSION_ZONE

    found = spark_timely.session(
        "spark-timely golden",
        master="local[2]",
        delta=True,
        **{
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": SESSION_ZONE,
            "spark.sql.streaming.checkpointFileManagerClass": QUICK_CHECKPOINTS,
        },
    )
    spark_timely.register(found)
    return found


# Mirrors ------------------------------------------------------------------------------------------------


def step_mirrors(spark: SparkSession, folder: Path) -> None:
    for name, key in (("by key", "k"), ("counted", None)):
        mirror_to(spark, folder / "log", folder / name, key=key).step()


def write_mirrors(spark: SparkSession, folder: Path) -> None:
    log = create_log(folder / "log", PLAIN, kind="collection", minimum=(0,))
    change(log, [(0, 1, "a", 1), (1, 1, "b", 2)], 2)
    step_mirrors(spark, folder)
    change(log, [(2, -1, "a", 1), (2, 1, "a", 10)], 3)
    step_mirrors(spark, folder)
    change(log, [(3, -1, "b", 2)], 4)


def read_mirrors(spark: SparkSession, folder: Path) -> Facts:
    found: Facts = {"log": log_facts(folder / "log")}
    for name in ("by key", "counted"):
        table = spark.read.format("delta").load(str(folder / name)).toArrow()
        how = spark.sql(f"DESCRIBE HISTORY delta.`{folder / name}`").select("operation").toArrow()
        found[name] = [rows_hash(table), how["operation"].to_pylist()[::-1]]
    log = open_log(folder / "log")
    found["retained for"] = {name: each.needed.to_json() for name, each in log.retainers().items()}
    return found


def proceed_mirrors(spark: SparkSession, folder: Path) -> None:
    change(open_log(folder / "log"), [(4, 1, "c", 3)], 6)
    step_mirrors(spark, folder)


# An instance --------------------------------------------------------------------------------------------


JOIN = "SELECT o.k, o.v * r.v AS v FROM orders o JOIN rates r USING (k)"
KEPT = "INSERT INTO output SELECT k, v FROM o; DELETE FROM output WHERE v < :time * 4 OR v = 10"


def write_instance(spark: SparkSession, folder: Path) -> None:
    log = orders_in(folder)
    rates = create_log(
        folder / "rates", pa.schema([("k", pa.int64()), ("v", pa.int64())]), kind="collection", minimum=(0,)
    )
    order(rates, [(1, 1, 1, 2), (1, 1, 2, 3), (2, -1, 2, 3), (2, 1, 2, 5)], 4)
    with ComputeInstance(spark, str(folder / "instance"), moved=True) as instance:
        logs = {"inputs": {"orders": log.path}, "references": {"rates": rates.path}}
        instance.continual_task("eur", JOIN, into=folder / "eur", **logs)
        instance.continual_task("kept", KEPT, inputs={"o": log.path})
        instance.index("totals", TOTALS, imports={"orders": log.path}, key="k")
        instance.index("sums", "SELECT k, sum(v) AS s FROM eur GROUP BY k", key="k")
        for name in ("kept", "totals", "sums"):
            instance.await_frontier(name, 3, timeout_s=120)


def read_instance(spark: SparkSession, folder: Path) -> Facts:
    upper = open_log(folder / "orders").frontier().elements[0][0]
    found: Facts = {"eur": log_facts(folder / "eur")}
    with ComputeInstance(spark, str(folder / "instance"), read_only=True) as instance:
        for name in ("kept", "totals", "sums"):
            found[name] = sorted(map(repr, instance.peek(name, at=upper - 1).to_pylist()))
    return found


def proceed_instance(spark: SparkSession, folder: Path) -> None:
    order(open_log(folder / "rates"), [(4, 1, 3, 7)], 7)
    order(open_log(folder / "orders"), [(4, 1, 3, 11), (5, -1, 2, 20), (5, 1, 1, 50)], 7)
    with ComputeInstance(spark, str(folder / "instance"), moved=True) as instance:
        for name in ("kept", "totals", "sums"):
            instance.await_frontier(name, 6, timeout_s=120)


THINGS = [
    Thing("mirrors", write_mirrors, read_mirrors, proceed_mirrors),
    Thing("instance with tasks", write_instance, read_instance, proceed_instance),
]
