"""What a commit may do and what it makes of a stream: pure functions of plain values, no files, no clocks.

`decide` judges a request against the state of its stream (`state`), `repetition` says whether a micro-batch that comes
again is the same one, and `history` answers what was held after which commit.
"""

from __future__ import annotations
