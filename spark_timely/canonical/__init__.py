"""Contents as one number: the canonical hash of a log, and the digest of a micro-batch's rows.

`row_hash` hashes rows of Arrow data, column by column, and sums those of a micro-batch as it came in;
`state` sums the hashes of a log's contents up to a frontier. Sums do not depend on the order of rows, nor on files.
"""

from __future__ import annotations
