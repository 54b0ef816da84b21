"""Dataflows over capture logs: streams of operators that read logs, and outputs that each write a log.

A user writes a dataflow as streams (`stream`). Each method of a stream makes an operator (`operators`, with `delays`
and `aggregates` as parameters), and an operator makes a *view* of the views below it (`views`). What operators over all
history compute is in `history`, what they keep in `remembered`. Outputs and logs are in `logs`, those that a dataflow
keeps for itself in `kept_logs`; `fingerprint` is a hash of what an output is made by. The `engine` runs the outputs.
Streaming queries (`spark_timely.spark.dataflows`) and the compute instance (`spark_timely.compute.drive`) run it.

Nothing here starts a job of Spark: the caller brings the function that runs tasks. A view is pure and can be
pickled. It says what its frontier is (`front`), which range of each input its own range needs (`pre`), and it computes
the rows of a range (`run`). A *sink* is an output: the one place that writes. It has work where the frontier of its
view is beyond the upper of its log: the times between the two wait.
"""

from __future__ import annotations
