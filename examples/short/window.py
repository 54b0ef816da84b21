"""Hopping windows that fire once, when they are complete.

Prints::

    windows that end at 2: 1 flights
    windows that end at 4: 3 flights
    windows that end at 6: 4 flights
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely
from spark_timely import functions as tf

log = spark_timely.create_log("log", pa.schema([("hour", pa.int64())]), minimum=(0,))
hours = [1, 3, 3, 4, 5, 6]
log.writer("main", owner="me").append(pa.table({"_time": hours, "hour": hours}), advance_to=7)

flow = spark_timely.Dataflow("windows", checkpoint="checkpoints/windows")
windows = flow.replay("log").delay(tf.windows(4, every=2))  # [0, 4), [2, 6), [4, 8) …
windows.aggregate(n=tf.count()).capture("counts")
flow.start(spark_timely.session("window"), trigger="availableNow").await_termination()

for row in sorted(spark_timely.open_log("counts").messages().to_pylist(), key=lambda row: row["_time"]):
    print(f"windows that end at {row['_time']}: {row['n']} flights")
