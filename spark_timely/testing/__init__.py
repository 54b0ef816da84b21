"""Test kit for users of the library.

Text tables (`table_from_text`), comparisons that print both-sided differences per time
(`assert_same_updates`, `assert_same_rows`), dataflows over tables at hand (`stream_of`, `rows_of`), continual tasks
evaluated in both ways (`assert_same_together`) and a manual clock. The modules `strategies` (needs hypothesis; draws
histories of logs) and `driver` (calls a reader as Spark does) are imported by name.
"""

from __future__ import annotations

from spark_timely.testing.driver import ManualClock
from spark_timely.testing.tables import (
    assert_same_rows,
    assert_same_updates,
    row_counts,
    rows_of,
    stream_of,
    table_from_text,
)
from spark_timely.testing.tasks import assert_same_together

__all__ = [
    "ManualClock",
    "assert_same_rows",
    "assert_same_together",
    "assert_same_updates",
    "row_counts",
    "rows_of",
    "stream_of",
    "table_from_text",
]
