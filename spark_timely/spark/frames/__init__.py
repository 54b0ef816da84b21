"""Logs as DataFrames: files that Spark's own Parquet scan reads, and the contents of collections.

`scan` reads files, and turns ranges of times into conditions; all else goes through it. `collection` sums diffs, for
users' snapshots of one log or of several at one cut. `contents` gives what a log holds at one time, or at many times
together, to the bodies of continual tasks and to `spark_timely.spark.answers`.
"""

from __future__ import annotations
