"""What starts queries and jobs where a SparkSession is, above the source and the sink.

`session` prepares a session. `start` runs a capture as a query, by the sink or by `capture`, and closes its stream;
`idle` advances it while the source is silent. `dataflow` runs dataflows: `dataflow_tasks` gives their tasks to Spark.
`collection` reads the contents of a collection. What source and sink stand on themselves is in `base`.
"""

from __future__ import annotations
