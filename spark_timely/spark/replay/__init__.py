"""Replay without a streaming query of Spark: the driver plans the micro-batches.

`replay` plans them, and keeps a checkpoint of its own kind. `batch_frame` makes a DataFrame of a micro-batch, also in
`foreachBatch` of a streaming query.
"""

from __future__ import annotations
