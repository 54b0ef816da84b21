"""Logs as DataFrames: files that Spark's own Parquet scan reads, and the contents of collections.

`scan` says which files are read, and which times of them. `collection` sums diffs, of one log or of several at one cut.
`contents` gives what a log holds at one time, or at many times together.
"""

from __future__ import annotations
