"""The compute instance on Spark: what `spark_timely.compute.drive` leaves to whoever has a session.

`instance` has the class that people use. `jobs` runs its jobs of Spark, each in a pool, and ends them. `tasks`
evaluates the bodies of its continual tasks.
"""

from __future__ import annotations
