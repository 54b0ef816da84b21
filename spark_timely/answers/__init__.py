"""Answers from logs at a time (peek, subscribe, SQL), in process and without a server.

A peek is planned (`plan`): which log and time, which keys, which rows and columns, in which order and how many. It
waits until its time is complete, and is answered from an index of the log by key (`index_peek`), from the log's files
(`log_peek`), or, where too much would have to be read, by a job that is given the plan. Each of the three gives rows
with their counts (`contents`), of which the same few lines make the answer (`finishing`). What was read of files stays
in memory (`kept`).
"""

from __future__ import annotations
