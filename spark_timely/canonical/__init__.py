"""Hashes of contents: the canonical hash of a log, and digests of the rows of a micro-batch or a commit.

`row_hash` hashes rows of Arrow data, column by column, and sums those of a micro-batch as it came in;
`state` sums the hashes of a log's contents up to a frontier. Sums do not depend on the order of rows, nor on files.
"""

from __future__ import annotations
