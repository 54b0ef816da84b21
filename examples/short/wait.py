"""Wait until a time is complete, in a job's first line; in a shell it is ``spark-timely wait``.

Prints::

    not yet: found frontier=[2] after 0.1 seconds
    complete: frontier [5]
"""

from __future__ import annotations

import threading

import pyarrow as pa

import spark_timely

log = spark_timely.create_log("log", pa.schema([("v", pa.int64())]), minimum=(0,))
writer = log.writer("main", owner="producer")
writer.advance(2)
try:
    spark_timely.wait("log", time=4, timeout_s=0.1, poll_s=0.01)
except spark_timely.errors.WaitTimeoutError as error:
    print("not yet:", str(error).split(" — ")[0].split(": ")[-1])

threading.Timer(0.2, lambda: writer.advance(5)).start()  # another process, as a rule
frontier = spark_timely.wait("log", time=4, timeout_s=60, poll_s=0.01)
print("complete: frontier", frontier.to_json())
