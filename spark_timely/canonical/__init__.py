"""Hashes of contents: the canonical hash of a log, and digests of the rows of a micro-batch or a commit.

Three sums of hashes of rows, none of which depends on the order of rows or on files. `row_hash` hashes a row, and sums
those of a micro-batch as it came in, by which the sink knows a repeated attempt. `content` sums the messages of a
commit as stored, to notice changes by other programs. `state` sums a log's contents up to a frontier, to compare logs.
"""

from __future__ import annotations
