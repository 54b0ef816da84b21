"""Times: partial orders in arrays, antichains, types of times, and times as text.

A time is a row of integers; a log says which type each of them has (`domain`). `antichain` compares and sorts rows and
sums their diffs, and has the frontiers that bound them. `text` reads and writes what people see. Everything above uses
these; they know nothing of logs or dataflows.
"""

from __future__ import annotations
