"""The compute instance as a pure state machine: commands and observations in, responses out.

Commands (`command`) say what shall run; they enter the history (`history`) and change the instance (`instance`).
The driver runs what the instance names as running, and states what it sees (`observation`). A turn of the
instance gives what clients get (`response`). When clients connect again, their commands are compared with what runs
(`reconciliation`). Which dataflows start when is decided by `hydration`, from which time on they compute by `as_of`,
and what people may look at is in `introspection`. Nothing here reads files, clocks or Spark.
"""

from __future__ import annotations
