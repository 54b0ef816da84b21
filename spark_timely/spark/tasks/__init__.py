"""The continual tasks: what a body gives of what arrives is written into a log.

`continual` has the task as people make it, and `upsert` one that applies changes to a table. `bodies` evaluates SQL and
functions of DataFrames, `arrow_bodies` functions of Arrow tables.
"""

from __future__ import annotations
