"""Continual tasks: SQL or a function that runs when rows arrive, looks things up, and writes at the same time.

A task runs its body at each time at which an input has inserts, and writes what the body gives at that time. `sink`
decides what is written when, and is pure. `body` reads the SQL of a body. `engine` looks at the logs, decides by the
sink, and commits; `plan` is what it hands to `spark_timely.spark.tasks.bodies`, which evaluates the body.
"""

from __future__ import annotations
