"""The compute instance as a pure state machine: commands and observations in, responses out.

An instance keeps dataflows up to date, and answers from what they give. Commands (`command`) say what shall run: a
dataflow has a `plan`, which `sql` makes of a query. They are checked by their `session`, enter the history (`history`)
and change the instance (`instance`). The driver (`drive`) runs what the instance names as running, and states what it
sees (`observation`). A turn of the instance gives what clients get (`response`). When clients connect again, their
commands are compared with what runs (`reconciliation`). Which dataflows start when is decided by `hydration`, from
which time on they compute by `as_of`, and what people may look at is in `introspection`.

The driver keeps the commands in a log (`command_log`), with marks of the folders that no live collection has
(`ledger`). But for that log, nothing here reads files, clocks or Spark; `drive` does.
"""

from __future__ import annotations
