"""Streaming queries that run dataflows.

`dataflow` is the query: a source says when to look, and `foreachBatch` takes the steps. `tasks` gives the tasks of a
step to Spark.
"""

from __future__ import annotations
