"""The Parquet files of a log: their format, reading and writing them, and an index of their statistics.

Rows of the columns that `format` has are sorted, laid out in files and written by `parquet`, and read by
`parquet_reader`. `statistics` describes each file for the entry that adds it to the table. `index` keeps the
descriptions of the live files as arrays, by which a reader chooses the files that it reads; `footer` has those of a
file's row groups, by which it chooses parts of one.
"""

from __future__ import annotations
