"""The source ``timely``: replays a log into Spark, as a batch or a stream.

`source` is what Spark asks first; it reads the options (`replay_options`), and sends reads on to `spark_readers` and
writes to the sink. `bounds` makes offsets of the options. Between two offsets the `planner` (or `arrivals`, in the
order captured, from the `recent` progress) decides which times or commits come, by what the `catalog` knows of the
log's files, and cuts them into splits (`splits`), which carry the progress rows too. The `reader` reads a split in a
task. What the query has yet to read is kept in the log by `retaining`. Two sources are apart: `letters` reads dead
letters, the rows that captures put aside, and the `clock` says which logs moved, for dataflows.
"""

from __future__ import annotations
