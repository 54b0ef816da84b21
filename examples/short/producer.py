"""Write a log from a program without Spark: rows, and in the same commit up to where they are complete.

Prints::

    [4] 3
    repeated: [4] 3
    closed: []
"""

from __future__ import annotations

import pyarrow as pa

import spark_timely

schema = pa.schema([("word", pa.string())])
log = spark_timely.create_log("log", schema, minimum=(0,))
writer = log.writer("main", owner="me")
rows = pa.table({"_time": [1, 3, 3], "word": ["a", "b", "c"]})

writer.append(rows, advance_to=4, batch=1)  # from now on no row comes at a time below 4
print(log.frontier().to_json(), log.messages().num_rows)

# After a crash nobody knows whether the append arrived. With the same number it is safe to repeat it.
again = spark_timely.open_log("log").writer("main", owner="me")
again.append(rows, advance_to=4, batch=1)
log.refresh()
print("repeated:", log.frontier().to_json(), log.messages().num_rows)

log.close()
print("closed:", log.frontier().to_json())
