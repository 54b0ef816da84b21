"""Contents as one number: the canonical hash of a log, and the digest of a micro-batch's rows.

`row_hash` hashes rows of Arrow data, column by column, in two `lanes`; `state` sums the hashes of a log's
contents up to a frontier; `digest` sums those of a micro-batch as it came in. Sums do not depend on the order of rows,
nor on files.
"""

from __future__ import annotations
