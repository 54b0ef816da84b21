"""Capture a stream: its rows, and what is known to be complete, in one log.

Prints::

    frontier: 2013-06-12T17:00Z
"""

from __future__ import annotations

import spark_timely

spark = spark_timely.session("capture", **{"spark.sql.session.timeZone": "UTC"})
rows = spark.range(30).selectExpr("timestamp'2013-06-12' + make_interval(0, 0, 0, 0, int(id)) AS hour", "id AS flight")
rows.limit(20).write.parquet("inbox")

flights = spark.readStream.schema(rows.schema).parquet("inbox")
capture = (
    flights.writeStream.format("timely")
    .option("path", "log")
    .option("timeColumn", "hour")
    .option("frontier", "bounded")  # complete is what is more than the lateness before the newest row
    .option("lateness", "2 hours")
    .option("checkpointLocation", "checkpoints/capture")
)
capture.trigger(availableNow=True).start().awaitTermination()

log = spark_timely.open_log("log")
print("frontier:", log.domain.render_frontier(log.frontier()).strip("[]'\""))
