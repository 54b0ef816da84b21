"""Dataflows over capture logs: streams of operators that read logs, and outputs that each write a log.

A user writes a dataflow down as streams (`stream`): each operator makes a view of views (`row_views`, `time_views`,
with `delays` and `aggregates` as their parameters). Outputs and logs are in `logs`; `fingerprint` says what an output
is made by. The `engine` runs the outputs.

Nothing here knows Spark. A *view* is pure and picklable: it says what its frontier is (`front`), which
range of each input its own range needs (`pre`), and computes the rows of a range (`run`). Only *sinks*
fire; what waits for one is the interval between the upper of its log and the frontier of its view.
"""

from __future__ import annotations
