"""An audit by a continual task: what the sum of an account was whenever it changed, kept for ever.

The log of payments is the input, and a reference too: its contents as of the time make the sum.

Prints::

    time 1: sum 1
    time 2: sum 6
    time 4: sum 21
    no payment comes at time 6, and no sum is written
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely

payments = spark_timely.create_log("payments", pa.schema([("cents", pa.int64())]), minimum=(0,), kind="collection")
writer = payments.writer("main", owner="till")
rows = {"_time": [1, 2, 2, 4, 4, 4], "cents": [1, 2, 3, 4, 5, 6], "_diff": [1] * 6}
writer.append(pa.table(rows), advance_to=5)

audit = spark_timely.ContinualTask(
    "audit",
    inputs={"new": "payments"},
    references={"payments": "payments"},
    # It must read its input to be run; one row for each time, however many payments there are.
    body="SELECT sum(cents) AS sum FROM payments WHERE EXISTS (SELECT * FROM new)",
    output="sums",
)
spark = spark_timely.session("audit")
audit.start(spark, trigger="availableNow").await_termination()

# A payment is taken back: a row that goes is no insert, so nothing is written.
writer.append([{"_time": 6, "cents": 6, "_diff": -1}], advance_to=7)
audit.start(spark, trigger="availableNow").await_termination()

sums = spark_timely.open_log("sums")
for row in sums.messages().sort_by("_time").to_pylist():
    print(f"time {row['_time']}: sum {row['sum']}")
if sums.frontier() == payments.domain.parse_frontier([7]):
    print("no payment comes at time 6, and no sum is written")
