"""Continual tasks: SQL or a function that runs when rows arrive, looks things up, and writes at the same time.

A task runs its *body* at each time at which an input has inserts, and writes what the body gives at that time. Other
logs that the body only looks things up in are its *references*. Tasks run as streaming queries
(`spark_timely.spark.tasks`) and in compute instances (`spark_timely.compute.drive.runners`).

`sink` decides what is written when, and is pure. `engine` looks at the logs, decides by the sink, and commits; `plan`
is what it hands to `spark_timely.spark.tasks.bodies`, which evaluates the body. `body` reads the SQL of a body, with
`names`. Where a task is far behind, `many_times` rewrites the SQL so that one query answers many times; `grammar` says
what can be rewritten, and `skeleton` compares what it found with sqlglot.
"""

from __future__ import annotations
