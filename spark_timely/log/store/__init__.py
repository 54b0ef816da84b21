"""Stores of a log: a Delta table on a disk or in an object store, or memory.

`base` says what a store does, and has the simplest one, in memory. `delta` creates a Delta table, follows it entry by
entry, and puts commits into it: itself (`entries`), or by delta-rs (`delta_calls`) where the table's features or the
place do not allow it. What delta-rs writes on a local disk is made aside first (`scratch`). `guard` finds in the
entries what other programs changed.

`storage` reads, writes and flushes files by path, on a disk or in memory; `cloud` in an object store. `urls` knows the
names of the storage options, and which URLs are one place. `checkpoints` keeps the table's log small, and `repair`
mends it. `newest` finds a frontier by delta-rs alone, and `clones` words errors about a copied log.
"""

from __future__ import annotations
