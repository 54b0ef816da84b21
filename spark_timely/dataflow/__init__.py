"""Dataflows over capture logs: views of their streams, and sinks that own logs.

Nothing here knows Spark. A *view* is pure and picklable: it says what its frontier is (`front`), which
range of each input its own range needs (`pre`), and computes the rows of a range (`run`). Only *sinks*
fire; what waits for one is the interval between the upper of its log and the frontier of its view.
"""

from __future__ import annotations
