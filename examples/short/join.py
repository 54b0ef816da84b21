"""Join two streams per complete time: no watermark, no state, each pair once.

Prints::

    {'_time': 1, 'flight': 'UA1', 'wind': 12}
    {'_time': 2, 'flight': 'DL2', 'wind': None}
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely


def log_of(path, columns, closed):  # noqa: ANN001, ANN201, D103
    rows = pa.table(columns)
    log = spark_timely.create_log(path, rows.drop_columns(["_time"]).schema, minimum=(0,))
    log.writer("main", owner="me").append(rows, advance_to=closed)


log_of("flights", {"_time": [1, 2, 3], "airport": ["JFK"] * 3, "flight": ["UA1", "DL2", "AA3"]}, 4)
log_of("weather", {"_time": [1], "airport": ["JFK"], "wind": [12]}, 3)  # at hour 3 reports may still come

flow = spark_timely.Dataflow("windy", checkpoint="checkpoints/windy")
pairs = flow.replay("flights").join(flow.replay("weather"), on="airport", how="left")
pairs.capture("windy")
flow.start(spark_timely.session("join"), trigger="availableNow").await_termination()

for row in sorted(spark_timely.open_log("windy").messages().to_pylist(), key=lambda row: row["_time"]):
    print({name: row[name] for name in ("_time", "flight", "wind")})
