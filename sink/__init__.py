"""The sink ``timely``: captures micro-batches into a log, each exactly once.

`columns` says which column of the data becomes what in the log. Before the tasks the `plan` reads what the stream
holds, and judges whether the log has all that came before this micro-batch. Tasks judge and write `rows`; the `commit`
puts their reports together and appends, or finds the micro-batch in the log already. The `writer` is what Spark calls
for all of it; a capture in foreachBatch (`spark_timely.spark.capture`) uses the same parts. `start` refuses a query
that could capture nothing, before Spark makes a writer.
"""

from __future__ import annotations
