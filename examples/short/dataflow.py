"""A dataflow: operators over logs, computed for each complete time, appended to logs of its own exactly once.

Prints::

    {'_time': 1, 'origin': 'EWR', 'n': 1, 'worst': 20}
    {'_time': 1, 'origin': 'JFK', 'n': 2, 'worst': 50}
    frontier [2]
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely
from spark_timely import functions as tf

schema = pa.schema([("origin", pa.string()), ("delay", pa.int64())])
log = spark_timely.create_log("log", schema, minimum=(0,))
rows = pa.table({"_time": [1, 1, 1, 2], "origin": ["JFK", "EWR", "JFK", "JFK"], "delay": [30, 20, 50, 90]})
log.writer("main", owner="me").append(rows, advance_to=2)  # the row at time 2 waits

flow = spark_timely.Dataflow("delays", checkpoint="checkpoints/delays")
late = flow.replay("log").filter("delay > 15")
late.aggregate(by="origin", n=tf.count(), worst=tf.max("delay")).capture("delays")
flow.start(spark_timely.session("dataflow"), trigger="availableNow").await_termination()

delays = spark_timely.open_log("delays")
for row in sorted(delays.messages().to_pylist(), key=lambda row: row["origin"]):
    print({name: row[name] for name in ("_time", "origin", "n", "worst")})
print("frontier", delays.frontier().to_json())
