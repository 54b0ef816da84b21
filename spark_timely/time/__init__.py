"""Times: partial orders in arrays, antichains, types of times, and times as text.

A time is a row of integers (`arrays`), a log says which type each of them has (`domain`). `arrays` compares
and sorts rows and sums their diffs, `antichain` bounds them. `text` reads and writes what people see.
"""

from __future__ import annotations
