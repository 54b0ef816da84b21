"""Operators over all history: each keeps what it needs of its input as state, and updates its result from new rows.

Pure functions over Arrow tables, each a `base.HistoryOperator` that knows no log and no file; the as-of join (`asof`)
is a function without state. `operators.history`, `operators.grouped` and `operators.joins` check what a user asked for
and make them; `dataflow.remembered` puts them into a dataflow's graph. `keys`, `runs`, `contents` and `exact` are the
arithmetic that they share.
"""

from __future__ import annotations
