"""Answers from logs at a time (peek, subscribe, SQL), in process and without a server.

A *peek* reads a log's rows at one time. It is planned (`plan`): which log and time, which keys, which rows and columns,
in which order and how many. It waits until its time is complete (`peek`), and is answered from an index of the log by
key (`spark_timely.log.arrangements`), from the log's files (`log_peek`), or, where too much would have to be read, by a
job that is given the plan. Each of the three gives rows with their counts, of which the plan makes the answer. What was
read of files stays in memory (`file_cache`).

A *subscription* reads the contents and then each change (`subscribe`): `batches` chooses the next times, `follow` reads
them once for all subscriptions of a process, `envelopes` gives them the form that is wanted, and `retainers` retains
the log for them. `statements` parses all of this from SQL, for the command line.

Examples
--------
>>> from spark_timely.answers import start_peek
>>> start_peek.__name__
'start_peek'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.lazy import lazy_names

if TYPE_CHECKING:
    from spark_timely.answers.peek import start_peek
    from spark_timely.log.timestamp import explain_timestamp

__all__ = ["explain_timestamp", "start_peek"]

_EXPORTS = {
    "explain_timestamp": "spark_timely.log.timestamp",
    "start_peek": "spark_timely.answers.peek",
}

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
