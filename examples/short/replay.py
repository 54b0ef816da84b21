"""Replay a log: whole times in each micro-batch, so that a plain group-by is final.

Prints::

    hour 0: 2 flights
    hour 1: 1 flights
    hour 2: 3 flights
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely

log = spark_timely.create_log("log", pa.schema([("hour", pa.int64())]), minimum=(0,))
hours = [0, 2, 1, 2, 0, 2, 3]
log.writer("main", owner="me").append(pa.table({"_time": hours, "hour": hours}), advance_to=3)  # 3 is still open


def report(batch, batch_id):  # noqa: ANN001, ANN201, D103
    for row in batch.groupBy("hour").count().orderBy("hour").toLocalIterator():
        print(f"hour {row['hour']}: {row['count']} flights")


spark = spark_timely.session("replay")
complete = spark.readStream.format("timely").option("maxTimesPerTrigger", "1").load("log")
query = complete.writeStream.foreachBatch(report).option("checkpointLocation", "checkpoints/report")
query.trigger(availableNow=True).start().awaitTermination()
