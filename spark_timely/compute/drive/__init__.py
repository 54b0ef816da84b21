"""The driver of a compute instance: from the values of `spark_timely.compute` to streams, steps and logs.

`handle` has the methods that people call; it asks `description` for the dataflows that they name. `driver` writes each
command down and hands it to the instance. In each turn the `worker` lets the `runners` of dataflows take steps, and
`peeks` (with the copies) and `subscribes` read what these have written; `relations` writes the introspection. All share
one `state`, and the `directory` in which the instance keeps its logs.

Around that: `plans` builds the operators of a dataflow, `task_beginnings` says when a continual task begins, `recovery`
judges the command log at a start, `retention` and `folders` keep and delete what is stored, `requests` come from other
processes, `causes` says what a collection waits for, and `runtime` has what Spark does for all of this.
"""

from __future__ import annotations
