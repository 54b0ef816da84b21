"""Timely's progress tracking: counts of pointstamps, and the frontiers that follow from them.

Operators say what they consumed, produced and still hold (`operate`, in a `change_batch`), and a scope collects it
(`subgraph`). Workers exchange it (`worker`, `broadcast`), and `reachability` turns it into the frontiers at all ports,
along what paths do to times, in `reachability_loops`, which `kernels` compiles. `frontier` keeps an antichain while its
counts change, in a `count_table` where there are many. What happens is reported as `events`.

Dataflows over logs ask the tracker of `reachability` alone: their graph is static, and known to one process. Scopes,
workers and the exchange between them are there for the rules of timely that name them (`tests/RULES.md`, 000 and 001).
"""

from __future__ import annotations
