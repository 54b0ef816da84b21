"""The sink ``timely``: captures micro-batches into a log, each exactly once.

`columns` says which column of the data becomes what in the log (`cdcv2`: for CDCv2's messages). Before the tasks
the `plan` reads what the stream holds, and `continuity` judges whether the log has all that came before this
micro-batch. Tasks judge and write `rows`; the `commit` puts their reports together and appends, or finds the
micro-batch in the log already. The `writer` is what Spark calls for all of it; a capture in foreachBatch uses the same
parts.
"""

from __future__ import annotations
