"""The state machine of a log: pure functions that decide what a commit may do to a stream; no files, no clocks.

A request is judged by the state of its stream (`state`): `decide` says what the state becomes, or refuses, or finds
the request in the log already (`repetition` says whether it is the same one). Its `commit_loop` repeats the decision
until it is in the log. `since` decides what history the log may forget, and `base` how much of a stream's progress.
`history` answers what was held after which commit; `lost_commits` finds that a log was put back. `judge` finds what
other programs changed, `strange` checks the files that they rewrote, and `ledger` says to both how many messages there
should be. `streams`, `retention` and `store.guard` in the folder above read and write for them.
"""

from __future__ import annotations
