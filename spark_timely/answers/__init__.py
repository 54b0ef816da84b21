"""Answers from logs at a time (peek, subscribe, SQL), in process and without a server.

A peek is planned (`plan`): which log and time, which keys, which rows and columns, in which order and how many. It
waits until its time is complete, and is answered from an index of the log by key (`spark_timely.log.arranged`), from
the log's files (`log_peek`), or, where too much would have to be read, by a job that is given the plan. Each of the
three gives rows with their counts, of which the plan makes the answer. What was read of files
stays in memory (`kept`).

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
