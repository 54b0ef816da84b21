"""What drives a compute instance: from the values of `spark_timely.compute` to streams, steps and logs.

`plans` makes streams of a dataflow's plan.
"""

from __future__ import annotations
