"""An instance with continual tasks and a function of Python; the same for classic and Connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from spark_timely.log.log import create_log, open_log
from spark_timely.spark.instance.instance import ComputeInstance
from tests.spark.connect_compute_job import SCHEMA, append, rows

JOIN = "SELECT o.k, o.v * r.v AS v FROM orders o JOIN rates r USING (k)"
PLAN = '{"op": "function", "name": "twice", "of": {"op": "import", "name": "orders"}}'

EXPECTED: dict[str, Any] = {
    "written": [[1, 1, 20], [2, 2, 100], [3, 1, 60], [4, 3, 77]],
    "kept": [[1, 30, 1], [2, 20, 1]],
    "index": [[1, 80, 1], [2, 100, 1], [3, 77, 1]],
    "function": [[11, 22], [20, 40], [30, 60]],
    "errors": 0,
    "zone": "Asia/Tokyo",
}


def twice(table: pa.Table) -> pa.Table:
    return pa.table({"k": table["k"], "v": table["v"], "w": pc.multiply(table["v"], 2)})


def main(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what was written and answered, with a restart and other settings of the session between."""
    orders = create_log(folder / "orders", SCHEMA, minimum=(0,), kind="collection")
    rates = create_log(folder / "rates", SCHEMA, minimum=(0,), kind="collection")
    append(orders, (1, 1, 1, 10), (2, 1, 2, 20), (3, 1, 1, 30), (3, -1, 1, 10), upper=4)
    append(rates, (1, 1, 1, 2), (1, 1, 2, 3), (2, -1, 2, 3), (2, 1, 2, 5), upper=4)
    name, zone = "spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone")
    with ComputeInstance(spark, str(folder / "instance")) as instance:
        instance.continual_task(
            "eur", JOIN, inputs={"orders": orders.path}, references={"rates": rates.path}, into=folder / "eur"
        )
        instance.continual_task(
            "kept",
            "INSERT INTO output SELECT k, v FROM o; DELETE FROM output WHERE v < :time * 4 OR v = 10",
            inputs={"o": orders.path},
        )
        instance.index("sums", "SELECT k, sum(v) AS s FROM eur GROUP BY k", key="k")
        for id_ in ("kept", "sums"):
            instance.await_frontier(id_, 3, timeout_s=120)
    try:
        spark.conf.set(name, "Asia/Tokyo")
        append(rates, (4, 1, 3, 7), upper=5)
        append(orders, (4, 1, 3, 11), upper=5)
        with ComputeInstance(spark, str(folder / "instance")) as instance:
            for id_ in ("kept", "sums"):
                instance.await_frontier(id_, 4, timeout_s=120)
            asked: dict[str, Any] = {"imports": {"orders": orders.path}, "functions": {"twice": twice}}
            instance.copy_to(PLAN, str(folder / "copy"), timeout_s=120, **asked)
            copied = pa.concat_tables(
                pa.parquet.read_table(file) for file in sorted((folder / "copy").glob("*.parquet"))
            )
            found = {
                "kept": rows(instance.peek("kept")),
                "index": rows(instance.peek("sums")),
                "function": rows(copied.select(["v", "w"])),
                "errors": instance.show("errors").num_rows,
                "zone": spark.conf.get(name),
            }
    finally:
        spark.conf.set(name, str(zone))
    return {"written": rows(open_log(folder / "eur").messages().select(["_time", "k", "v"])), **found}
