"""Read several logs as of one frontier: the same rows whenever the cut is read, in any process.

Prints::

    cut at [3]
    orders: [1, 2]
    returns: [2]
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import spark_timely

for name, hours, closed in (("orders", [1, 2, 4], 5), ("returns", [2, 3], 3)):
    log = spark_timely.create_log(name, pa.schema([("hour", pa.int64())]), minimum=(0,))
    log.writer("main", owner="till").append(pa.table({"_time": hours, "hour": hours}), advance_to=closed)

cut = spark_timely.cut(["orders", "returns"])
print("cut at", cut.frontier.to_json())
Path("cut.json").write_text(str(cut))

spark = spark_timely.session("cut")
for name, rows in zip(("orders", "returns"), spark_timely.snapshot(spark, Path("cut.json").read_text()), strict=True):
    print(f"{name}:", sorted(row["hour"] for row in rows.toLocalIterator()))
