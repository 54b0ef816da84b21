"""The engine of dataflows: runs their outputs step by step, without Spark; tasks come in as a parameter.

A step (`steps.Engine`) reads how far the logs of `inputs` are; `tracking` asks the progress layer which times are
complete at each output; `cutting` cuts the range that waits, [upper, frontier), into tasks; `tasks` has what one task
computes, as a value. `task_runner` runs it, with `lookups` into what logs hold of some keys and `shuffle` where several
tasks compute one piece. `outputs` appends what they wrote, if the upper is still the same, or records why an output
failed. `arrangements` keeps indexes for the look-ups. `explain` shows all that from the logs alone.

`spark_timely.spark.dataflows` and `spark_timely.compute.drive` run it. The engine of continual tasks
(`spark_timely.continual`) has steps of its own, and takes `inputs` and `outputs` from here.
"""

from __future__ import annotations
