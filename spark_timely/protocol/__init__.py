"""The capture protocol: the events of a captured stream, its rules, the policies of progress, the plan of a replay.

A micro-batch becomes messages and a statement about progress (`event`, `note`) as a policy of the frontier has it
(`policy`); `rules` says whether a stream keeps what it stated. `replay` plans how it is read again, and in which
splits.
"""

from __future__ import annotations
