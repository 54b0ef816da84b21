"""Keep late rows as dead letters: none is dropped in silence, and the answer that was given stays as it is.

Prints::

    messages: [1, 2, 9]
    dead letters: [3]
"""

from __future__ import annotations

import spark_timely

spark = spark_timely.session("late data")


def capture(*hours):  # noqa: ANN002, ANN201, D103
    spark.createDataFrame([(hour,) for hour in hours], "hour long").write.mode("append").parquet("inbox")
    rows = spark.readStream.schema("hour long").parquet("inbox")
    query = spark_timely.start(
        rows,
        path="log",
        checkpoint="checkpoints/capture",
        trigger="availableNow",
        time_column="hour",
        frontier="bounded",
        lateness=2,
        late_data="deadLetter",
    )
    query.await_termination()


capture(1, 2, 9)  # closes all hours below 7
capture(3)  # late
log = spark_timely.open_log("log")
print("messages:", sorted(log.messages()["hour"].to_pylist()))
print("dead letters:", log.dead()["hour"].to_pylist())
