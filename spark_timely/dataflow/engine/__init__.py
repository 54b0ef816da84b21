"""The engine of dataflows: runs their outputs step by step, without Spark; tasks come in as a parameter.

A step (`steps.Engine`) reads how far the logs of `inputs` are; `tracking` asks the progress layer which times are
complete at each output; `cutting` cuts the range that waits, [upper, frontier), into tasks; `tasks` says what one task
computes, and `shuffle` how one piece is computed by several tasks; `outputs` appends what they wrote, if the upper is
still the same, or writes down why an output failed. `explain` shows all that from the logs alone.
"""

from __future__ import annotations
