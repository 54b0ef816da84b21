"""The base of source and sink in Spark: schemas, checkpoints, offsets, worker processes, differences of versions.

Columns pass through `schema`, from Spark's types to Arrow's and back. A query is known by its `checkpoint`, where it
keeps too into which logs it captured; `offsets` are the positions of replays that Spark keeps there, and
`source_frontier` reads from them how far a micro-batch's sources are. `worker` and `shipping` are for the processes in
which Spark calls us, `compat` for what differs between versions, `credentials` for cloud stores, and `failure`,
`observed`, `tags` and `trigger` for queries and jobs of Spark. `beginnings` says from which time on a log has all.
"""

from __future__ import annotations
