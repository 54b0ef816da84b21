"""Counts, antichains and frontiers: how far a stream has come.

Operators say what they consumed, produced and still hold (`operate`), and a scope collects it (`subgraph`). Workers
exchange it (`worker`, `broadcast`), and `reachability` turns it into the frontiers at all ports, along what paths do
to times (`summary`), in `reachability_loops`, which `kernels` compiles. A `change_batch` holds changes that are still
to be applied; `frontier` keeps an antichain while its counts change, in a `count_table` where there are many. What
happens is reported as `events`.
"""

from __future__ import annotations
