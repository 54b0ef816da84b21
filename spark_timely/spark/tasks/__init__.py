"""Continual tasks on Spark: a streaming query runs a body at each time at which rows arrive, and writes a log.

`continual` has the task as people make it, and `upsert` one that applies changes to a table. `bodies` evaluates SQL and
functions of DataFrames, `arrow_bodies` functions of Arrow tables.
"""

from __future__ import annotations
