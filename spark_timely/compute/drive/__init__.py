"""The driver of a compute instance: from the values of `spark_timely.compute` to streams, steps and logs.

`Handle` has the methods that people call. `Driver` writes each command down and hands it to the instance. In each turn
`Worker` lets the runners of dataflows take steps, and peeks, copies and subscribes read what these have written. All
share one `State`.
"""

from __future__ import annotations
