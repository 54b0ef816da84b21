"""Where a log is kept: the files of a Delta table, or memory.

`base` says what a store does and has the one in memory; `delta` follows a Delta table entry by entry (`entries`), puts
commits into it by way of `create` and `scratch`, and keeps it small (`upkeep`). `storage` reads, writes and flushes
files by path (`fsync`), `single_writer` and `features` say where that is safe, `repair` and `checkpoints` mend damage.
"""

from __future__ import annotations
