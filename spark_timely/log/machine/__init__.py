"""What a commit may do and what it makes of a stream: pure functions of plain values, no files, no clocks.

A request is judged by the state of its stream (`state`): `decide` says what the state becomes, or refuses, or finds
the request in the log already (`repetition` says whether it is the same one). `commit_loop` repeats the decision until
it is in the log. `history` answers what was held after which commit; `rollback` finds that a log was put back.
"""

from __future__ import annotations
