"""Capture in ``foreachBatch``: Spark writes the log's files without leaving the JVM, then the sink commits them.

`foreach_batch` plans the micro-batch as the sink does. `classify` writes the sink's decisions and its digest as
SQL; `staging` lets Spark write the files by them and reads their footers; the sink commits. `cdcv2` does the
same with messages of CDCv2. `start` runs a capture as a query, by the sink or in ``foreachBatch``, and closes its
stream; `idle` advances it while the source is silent.
"""

from __future__ import annotations
