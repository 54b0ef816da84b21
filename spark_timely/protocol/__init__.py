"""The capture protocol: the events of a captured stream, its rules, the policies of progress, the plan of a replay.

A capture (`sink`, or a `log.writer`) makes of a micro-batch messages and a statement about progress (`event`), by a
policy of the frontier (`policy`), and commits them with a `note` for programs. `rules` checks that a stream keeps what
it stated. `replay` plans, for `datasource` and dataflows, which files are read and in which splits. All are pure: no
files, no Spark, no clock.
"""

from __future__ import annotations
