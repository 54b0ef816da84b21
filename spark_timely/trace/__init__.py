"""Arrangements: an index by key of a collection's updates, as sorted runs that are searched and merged.

`updates` has the one value for rows with times and diffs, and its sums, also for all that know no index. The rest is
the index. A `run` is a file of updates sorted by the hash of their key (`keys`). A `spine` is the list of the runs that
count, at one state of the index; the `folder` has both as files. An `arrangement` is the index opened for look-ups.

`spark_timely.log.arrangements` finds the index of a log, `dataflow.engine.arrangements` makes and merges it, and joins,
history operators and peeks (`spark_timely.answers.peek`) look into it.
"""

from __future__ import annotations
