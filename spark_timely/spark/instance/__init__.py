"""The compute instance on Spark: a session runs the large steps, copies and peeks of `spark_timely.compute.drive`.

`instance` has the class that people use. `jobs` runs its jobs of Spark, each in a pool, and ends them. `tasks`
evaluates the bodies of its continual tasks.
"""

from __future__ import annotations
