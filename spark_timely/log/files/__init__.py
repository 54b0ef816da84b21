"""The files of a log: what is in them, how they are written, and what is known of them without reading.

`format` has the columns, `parquet` writes and reads them with sorted rows, cut where `straggler_cuts` says and encoded
as `encoding` finds best; `statistics` describes a file, `index` and `live_files` keep the descriptions as arrays.
"""

from __future__ import annotations
