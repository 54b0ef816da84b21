"""Continual tasks: react to what arrives, look things up, write at the same time.

A task runs its body at each time at which an input has inserts, and writes what the body gives at that time. `sink`
decides what is written when, and is pure; `updates` are the rows that bodies over Arrow read and write. `body` reads
the SQL of a body. `engine` looks at the logs, decides by the sink, and commits; `plan` is what it hands to whoever
evaluates the body, which is `spark_timely.spark.tasks.bodies`.
"""

from __future__ import annotations
