"""Stores of a log: a Delta table on a disk or in an object store, or memory.

`base` says what a store does, and has the simplest one, in memory. `delta` creates a Delta table, follows it entry by
entry (`entries`), and puts commits into it: itself, or by delta-rs (`delta_calls`) where `features` and the
place do not allow it. What delta-rs writes on a local disk is made aside first (`scratch`). `storage` reads, writes and
flushes files by path, as the storage options say, whose names `keys` knows; `urls` tells which URLs are one place.
`checkpoints` keeps the table's log small, and `repair` mends it. `newest` finds a frontier by delta-rs alone.
"""

from __future__ import annotations
