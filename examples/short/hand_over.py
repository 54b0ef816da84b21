"""Hand completeness from job to job: what is computed from a log is as far as the log.

Prints::

    large orders: frontier [4], 2 rows
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely

schema = pa.schema([("hour", pa.int64()), ("amount", pa.int64())])
orders = spark_timely.create_log("orders", schema, minimum=(0,))
rows = pa.table({"_time": [1, 2, 3, 5], "hour": [1, 2, 3, 5], "amount": [70, 5, 90, 80]})
orders.writer("main", owner="till").append(rows, advance_to=4)

spark = spark_timely.session("hand over")
query = (
    spark.readStream.format("timely")
    .load("orders")
    .where("amount > 50")
    .writeStream.format("timely")
    .option("path", "large")
    .option("timeColumn", "hour")
    .option("frontier", "source")
    .option("checkpointLocation", "checkpoints/large")
)
query.trigger(availableNow=True).start().awaitTermination()
large = spark_timely.open_log("large")
print(f"large orders: frontier {large.frontier().to_json()}, {large.messages().num_rows} rows")
