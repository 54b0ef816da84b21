"""Retention by a continual task: a table of the last three hours, kept current beside the log of all.

Prints::

    as of 10:00: ['a']
    as of 11:00: ['a', 'b']
    as of 13:00: ['b', 'c']
    as of 20:00: ['d']
"""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

import spark_timely


def hour(number):  # noqa: ANN001, ANN201, D103
    return dt.datetime(2013, 6, 12, number, tzinfo=dt.UTC)


schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("what", pa.string())])
log = spark_timely.create_log("events", schema, times=("timestamp",))
# The time of a row in the log is none of its columns: a condition on it needs a column.
rows = [{"_time": hour(n), "at": hour(n), "what": what} for n, what in ((10, "a"), (11, "b"), (13, "c"), (20, "d"))]
log.writer("main", owner="me").append(rows, advance_to=hour(21))

recent = spark_timely.ContinualTask.retain(
    "recent",
    input="events",
    output="recent",
    expr="at > :time - INTERVAL 3 HOURS",  # looked at whenever the input has rows
)
recent.start(spark_timely.session("retain"), trigger="availableNow").await_termination()

table = spark_timely.open_log("recent")  # a collection: its contents as of any time are still there
for n in (10, 11, 13, 20):
    print(f"as of {n}:00: {sorted(table.snapshot(hour(n))['what'].to_pylist())}")
