"""The state machine of a log: pure functions that decide what a commit may do to a stream; no files, no clocks.

A request is judged by the state of its stream (`state`): `decide` says what the state becomes, or refuses, or finds
the request in the log already (`repetition` says whether it is the same one). `commit_loop` repeats the decision until
it is in the log. `history` answers what was held after which commit; `lost_commits` finds that a log was
put back.
"""

from __future__ import annotations
