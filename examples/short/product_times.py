"""Times of two coordinates, such as day and revision: a frontier is a set of times, none before another.

Prints::

    frontier: [[1, 1], [2, 0]]
    complete: [(0, 0, 'first'), (0, 1, 'revised'), (1, 0, 'first')]
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely

log = spark_timely.create_log("log", pa.schema([("what", pa.string())]), times=("long", "long"), minimum=(0, 0))
rows = pa.table(
    {"_time_0": [0, 0, 1, 2], "_time_1": [0, 1, 0, 0], "what": ["first", "revised", "first", "not complete"]}
)
# Day 0 gets no more revisions, day 1 may get revisions from the first on, and day 2 has just begun.
log.writer("main", owner="me").append(rows, advance_to=[(1, 1), (2, 0)])
print("frontier:", log.frontier().to_json())

spark = spark_timely.session("product times")
found = spark.read.format("timely").option("includeTime", "true").load("log")
print("complete:", sorted((r["_time_0"], r["_time_1"], r["what"]) for r in found.toLocalIterator()))
